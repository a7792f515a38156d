//! Data of page frames: `/proc/kpageflags` and `/proc/kpagecount`, by the frame numbers of
//! `pagemap`.

use std::fs::File;
use std::path::Path;

use pagewise_model::page_map::{PageMapKind, PageState};

use crate::pages::entry::{Word, frame, is_exclusive};
use crate::pages::flags::{FrameFlagsFile, KSM, ZERO_PAGE, read_flag_words};

/// The open files; without them only the exclusive bit of `pagemap` is known.
pub(super) struct Detail(Option<FrameFiles>);

struct FrameFiles {
    flags: FrameFlagsFile,
    counts: File,
}

impl Detail {
    pub(super) fn open(root: &Path, sees_frames: bool) -> Option<Detail> {
        let counts = || File::open(root.join("kpagecount")).ok();
        let files = || Some(FrameFiles { flags: FrameFlagsFile::open(root)?, counts: counts()? });
        Some(Detail(if sees_frames { files() } else { None }))
    }

    pub(super) const fn sees_frames(&self) -> bool {
        self.0.is_some()
    }

    /// The state of each resident page of a run, by its word.
    pub(super) fn states(&mut self, of: PageState, words: &[Word]) -> Vec<PageState> {
        let mut states: Vec<PageState> = words
            .iter()
            .map(|word| PageState { exclusive: Some(is_exclusive(word)), ..of })
            .collect();
        let Some(files) = &self.0 else { return states };
        let mut at = 0;
        while at < words.len() {
            let first = frame(&words[at]);
            let follows = |(i, word): &(usize, &Word)| frame(word) == first + *i as u64;
            let count = words[at..].iter().enumerate().take_while(follows).count();
            files.refine(first, &mut states[at..at + count]);
            at += count;
        }
        states
    }
}

impl FrameFiles {
    /// Adds the data of consecutive frames to the states of their pages.
    fn refine(&self, first: u64, states: &mut [PageState]) {
        let count = states.len() as u64;
        let around = self.flags.around(first, count);
        let counts = read_flag_words(&self.counts, first, count);
        for (i, state) in states.iter_mut().enumerate() {
            // A frame without a struct page belongs to no process.
            let (Some(flags), Some(&mappers)) = (around.flags(i), counts.get(i)) else { continue };
            if flags & ZERO_PAGE != 0 {
                let huge = state.huge;
                *state = PageState { kind: PageMapKind::Zero, huge, ..PageState::default() };
                continue;
            }
            state.mappers = u32::try_from(mappers).ok();
            state.exclusive = Some(mappers == 1);
            state.ksm = Some(flags & KSM != 0);
            state.folio = Some(around.folio(i));
        }
    }
}
