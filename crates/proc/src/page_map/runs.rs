//! Runs that cover a range from end to end.

use pagewise_model::AddrRange;
use pagewise_model::page_map::{PageRun, PageState};

/// Collects runs in order: what is left out between them is untouched, and neighbours alike become one.
#[derive(Debug)]
pub(super) struct Runs {
    range: AddrRange,
    at: u64,
    runs: Vec<PageRun>,
}

impl Runs {
    pub(super) fn over(range: AddrRange) -> Runs {
        Runs { range, at: range.start, runs: Vec::new() }
    }

    /// Adds pages. What lies before the end of the last ones, or outside the range, is left out.
    pub(super) fn put(&mut self, range: AddrRange, state: PageState) {
        let start = range.start.clamp(self.at, self.range.end);
        let end = range.end.min(self.range.end);
        if start >= end {
            return;
        }
        if start > self.at {
            self.push(AddrRange { start: self.at, end: start }, PageState::default());
        }
        self.push(AddrRange { start, end }, state);
        self.at = end;
    }

    fn push(&mut self, range: AddrRange, state: PageState) {
        match self.runs.last_mut() {
            Some(last) if last.state == state => last.range.end = range.end,
            _ => self.runs.push(PageRun { range, state }),
        }
    }

    pub(super) fn finish(mut self) -> Vec<PageRun> {
        if self.at < self.range.end {
            self.push(AddrRange { start: self.at, end: self.range.end }, PageState::default());
        }
        self.runs
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::page_map::PageKind;
    use proptest::prelude::*;

    use super::*;

    const KINDS: [PageKind; 3] = [PageKind::Untouched, PageKind::Anonymous, PageKind::Swapped];

    proptest! {
        #[test]
        fn runs_cover_the_range_and_say_what_was_put(
            lengths in proptest::collection::vec((0_u64..5, 0_u64..5, 0_usize..3), 0..20)
        ) {
            let range = AddrRange { start: 10, end: 60 };
            let mut runs = Runs::over(range);
            let mut pages = [PageKind::Untouched; 50];
            let mut at = 5;
            for (gap, length, kind) in lengths {
                at += gap;
                let put = AddrRange { start: at, end: at + length };
                let state = PageState { kind: KINDS[kind], ..PageState::default() };
                runs.put(put, state);
                for page in put.start..put.end {
                    if range.contains(page) {
                        pages[usize::try_from(page - 10).unwrap()] = KINDS[kind];
                    }
                }
                at += length;
            }
            let runs = runs.finish();
            prop_assert_eq!(runs[0].range.start, 10);
            prop_assert_eq!(runs[runs.len() - 1].range.end, 60);
            for pair in runs.windows(2) {
                prop_assert_eq!(pair[0].range.end, pair[1].range.start);
                prop_assert_ne!(pair[0].state, pair[1].state);
            }
            for run in runs {
                for page in run.range.start..run.range.end {
                    prop_assert_eq!(pages[usize::try_from(page - 10).unwrap()], run.state.kind);
                }
            }
        }
    }

    #[test]
    fn what_comes_twice_or_outside_is_left_out() {
        let mut runs = Runs::over(AddrRange { start: 10, end: 20 });
        let state = |kind| PageState { kind, ..PageState::default() };
        runs.put(AddrRange { start: 0, end: 12 }, state(PageKind::File));
        runs.put(AddrRange { start: 11, end: 14 }, state(PageKind::Shmem));
        runs.put(AddrRange { start: 0, end: 99 }, state(PageKind::Guard));
        runs.put(AddrRange { start: 0, end: 99 }, state(PageKind::File));
        let found: Vec<_> = runs.finish().iter().map(|r| (r.range.start, r.state.kind)).collect();
        assert_eq!(found, [(10, PageKind::File), (12, PageKind::Shmem), (14, PageKind::Guard)]);
    }
}
