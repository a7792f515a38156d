//! What page frames tell: `/proc/kpageflags` and `/proc/kpagecount`, by the frame numbers of `pagemap`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagewise_model::page_map::{PageKind, PageState};

use crate::pages::entry::{Word, frame, is_exclusive};

/// Bits of a word of `kpageflags`: admin-guide/mm/pagemap.rst.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const KSM: u64 = 1 << 21;
const ZERO_PAGE: u64 = 1 << 24;

/// The largest folio that is told whole, in base pages: the huge pages of 4 KiB page tables.
const LARGEST: u64 = 512;

/// The open files; without them only the exclusive bit of `pagemap` is told.
pub(super) struct Detail(Option<Files>);

struct Files {
    flags: File,
    counts: File,
}

impl Detail {
    pub(super) fn open(root: &Path, sees_frames: bool) -> Option<Detail> {
        let open = |name| File::open(root.join(name)).ok();
        let files = || Some(Files { flags: open("kpageflags")?, counts: open("kpagecount")? });
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

impl Files {
    /// Adds what is known of frames in a row.
    fn refine(&self, first: u64, states: &mut [PageState]) {
        // The head of the first folio may lie before, the tail of the last behind.
        let before = first.min(LARGEST);
        let count = states.len() as u64;
        let flags = words(&self.flags, first - before, before + count + LARGEST);
        let counts = words(&self.counts, first, count);
        for (i, state) in states.iter_mut().enumerate() {
            let at = usize::try_from(before).unwrap_or(0) + i;
            // A frame without a struct page is nobody's.
            let (Some(&own), Some(&mappers)) = (flags.get(at), counts.get(i)) else { continue };
            if own & ZERO_PAGE != 0 {
                *state =
                    PageState { kind: PageKind::Zero, huge: state.huge, ..PageState::default() };
                continue;
            }
            state.mappers = u32::try_from(mappers).ok();
            state.exclusive = Some(mappers == 1);
            state.ksm = Some(own & KSM != 0);
            state.folio = Some(folio(&flags, at));
        }
    }
}

/// How many pages the folio has that the page at `at` is in.
fn folio(flags: &[u64], at: usize) -> u32 {
    let is_tail = |word: &&u64| **word & TAIL != 0;
    if flags[at] & (HEAD | TAIL) == 0 {
        return 1;
    }
    let back = flags[..=at].iter().rev().take_while(is_tail).count();
    let ahead = flags[at + 1..].iter().take_while(is_tail).count();
    u32::try_from(1 + back + ahead).unwrap_or(u32::MAX)
}

/// Words of one of the files; fewer where there is no such memory.
fn words(file: &File, first: u64, count: u64) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(count.saturating_mul(8)).unwrap_or(0)];
    let read = file.read_at(&mut bytes, first.saturating_mul(8)).unwrap_or(0);
    bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folio_is_a_head_and_its_tails() {
        let flags = [0, HEAD, TAIL, TAIL, TAIL, 0, HEAD, TAIL];
        let sizes: Vec<u32> = (0..flags.len()).map(|at| folio(&flags, at)).collect();
        assert_eq!(sizes, [1, 4, 4, 4, 4, 1, 2, 2]);
    }
}
