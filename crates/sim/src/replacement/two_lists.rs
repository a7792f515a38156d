//! Linux's active and inactive lists, as `mm/vmscan.c` has them for anonymous memory since 5.9.
//!
//! ```text
//!            not accessed: reclaimed
//!                   ▲
//!   fault ──► inactive ── accessed twice: activated ──► active
//!                ▲  └─ accessed once: to its front        │
//!                └──────────── while active is longer ────┘
//! ```
//!
//! Left out: refaults that activate at once (`workingset_refault`), files, and lists by node.

use super::lists::FrameLists;
use super::{FrameNumber, Reclaim, at};

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

#[derive(Debug)]
pub(super) struct TwoLists {
    lists: FrameLists<2>,
    pages: Vec<PageFlags>,
    /// True if a page that should be activated is activated; else it is reclaimed.
    activates: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct PageFlags {
    /// The CPU's accessed bit.
    accessed: bool,
    /// `PG_referenced`: a scan has found it accessed before.
    referenced: bool,
}

/// Result of `folio_check_references` for a page.
enum FolioVerdict {
    Reclaim,
    Keep,
    Activate,
}

impl TwoLists {
    pub(super) fn new(activates: bool) -> TwoLists {
        TwoLists { lists: FrameLists::new(), pages: Vec::new(), activates }
    }

    fn check_references(&mut self, frame: FrameNumber) -> FolioVerdict {
        let page = &mut self.pages[frame];
        let before = std::mem::take(page);
        if !before.accessed {
            return FolioVerdict::Reclaim;
        }
        page.referenced = true;
        if before.referenced { FolioVerdict::Activate } else { FolioVerdict::Keep }
    }

    /// `shrink_active_list`, with the ratio of `inactive_is_low` for less than 1 GiB of memory.
    fn deactivate(&mut self) {
        while self.lists.length(INACTIVE) < self.lists.length(ACTIVE) {
            let Some(frame) = self.lists.pop(ACTIVE) else { return };
            self.pages[frame].accessed = false;
            self.lists.push(INACTIVE, frame);
        }
    }
}

impl Reclaim for TwoLists {
    fn used(&mut self, frame: FrameNumber) {
        self.pages[frame].accessed = true;
    }

    fn filled(&mut self, frame: FrameNumber) {
        *at(&mut self.pages, frame) = PageFlags { accessed: true, referenced: false };
        self.lists.push(INACTIVE, frame);
    }

    fn reclaim(&mut self) -> FrameNumber {
        loop {
            self.deactivate();
            let frame =
                self.lists.pop(INACTIVE).expect("it is the longer list, and all frames are filled");
            match self.check_references(frame) {
                FolioVerdict::Activate if self.activates => self.lists.push(ACTIVE, frame),
                FolioVerdict::Keep => self.lists.push(INACTIVE, frame),
                FolioVerdict::Activate | FolioVerdict::Reclaim => return frame,
            }
        }
    }
}
