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

use super::lists::Lists;
use super::{Frame, Reclaim, at};

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

#[derive(Debug)]
pub(super) struct TwoLists {
    lists: Lists<2>,
    pages: Vec<Flags>,
    /// Whether what should be activated is; else it is reclaimed.
    activates: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    /// The CPU's accessed bit.
    accessed: bool,
    /// `PG_referenced`: a scan has found it accessed before.
    referenced: bool,
}

/// What `folio_check_references` says of a page.
enum Verdict {
    Reclaim,
    Keep,
    Activate,
}

impl TwoLists {
    pub(super) fn new(activates: bool) -> TwoLists {
        TwoLists { lists: Lists::new(), pages: Vec::new(), activates }
    }

    fn check_references(&mut self, frame: Frame) -> Verdict {
        let page = &mut self.pages[frame];
        let before = std::mem::take(page);
        if !before.accessed {
            return Verdict::Reclaim;
        }
        page.referenced = true;
        if before.referenced { Verdict::Activate } else { Verdict::Keep }
    }

    /// `shrink_active_list`, as far as `inactive_is_low` has it go in less than a GiB.
    fn deactivate(&mut self) {
        while self.lists.length(INACTIVE) < self.lists.length(ACTIVE) {
            let Some(frame) = self.lists.pop(ACTIVE) else { return };
            self.pages[frame].accessed = false;
            self.lists.push(INACTIVE, frame);
        }
    }
}

impl Reclaim for TwoLists {
    fn used(&mut self, frame: Frame) {
        self.pages[frame].accessed = true;
    }

    fn filled(&mut self, frame: Frame) {
        *at(&mut self.pages, frame) = Flags { accessed: true, referenced: false };
        self.lists.push(INACTIVE, frame);
    }

    fn reclaim(&mut self) -> Frame {
        loop {
            self.deactivate();
            let frame =
                self.lists.pop(INACTIVE).expect("it is the longer list, and all frames are filled");
            match self.check_references(frame) {
                Verdict::Activate if self.activates => self.lists.push(ACTIVE, frame),
                Verdict::Keep => self.lists.push(INACTIVE, frame),
                Verdict::Activate | Verdict::Reclaim => return frame,
            }
        }
    }
}
