//! Runs that cover a range from end to end.

use pagewise_model::AddrRange;
use pagewise_model::page_map::{PageRuns, PageState};

/// Collects runs in order. Gaps between them become untouched pages, and equal neighbors are
/// merged.
#[derive(Debug)]
pub(super) struct RunCollector {
    range: AddrRange,
    runs: PageRuns,
}

impl RunCollector {
    pub(super) fn over(range: AddrRange) -> RunCollector {
        RunCollector { range, runs: PageRuns::new(range.start) }
    }

    /// Adds pages. The part before the end of the last ones, or outside of the range, is ignored.
    pub(super) fn put(&mut self, range: AddrRange, state: PageState) {
        let at = self.runs.range().end;
        let start = range.start.clamp(at, self.range.end);
        let end = range.end.min(self.range.end);
        if start >= end {
            return;
        }
        self.runs.push(start - at, PageState::default());
        self.runs.push(end - start, state);
    }

    pub(super) fn finish(mut self) -> PageRuns {
        let rest = self.range.end.saturating_sub(self.runs.range().end);
        self.runs.push(rest, PageState::default());
        // Most mappings have one run, and there are tens of thousands of them.
        self.runs.shrink_to_fit();
        self.runs
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::page_map::PageMapKind;
    use proptest::prelude::*;

    use super::*;

    const KINDS: [PageMapKind; 3] =
        [PageMapKind::Untouched, PageMapKind::Anonymous, PageMapKind::Swapped];

    proptest! {
        #[test]
        fn runs_cover_the_range_and_say_what_was_put(
            lengths in proptest::collection::vec((0_u64..5, 0_u64..5, 0_usize..3), 0..20)
        ) {
            let range = AddrRange { start: 10, end: 60 };
            let mut runs = RunCollector::over(range);
            let mut pages = [PageMapKind::Untouched; 50];
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
            let runs: Vec<_> = runs.finish().iter().collect();
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
    fn duplicate_pages_and_pages_outside_of_the_range_are_ignored() {
        let mut runs = RunCollector::over(AddrRange { start: 10, end: 20 });
        let state = |kind| PageState { kind, ..PageState::default() };
        runs.put(AddrRange { start: 0, end: 12 }, state(PageMapKind::File));
        runs.put(AddrRange { start: 11, end: 14 }, state(PageMapKind::Shmem));
        runs.put(AddrRange { start: 0, end: 99 }, state(PageMapKind::Guard));
        runs.put(AddrRange { start: 0, end: 99 }, state(PageMapKind::File));
        let found: Vec<_> = runs.finish().iter().map(|r| (r.range.start, r.state.kind)).collect();
        assert_eq!(
            found,
            [(10, PageMapKind::File), (12, PageMapKind::Shmem), (14, PageMapKind::Guard)]
        );
    }
}
