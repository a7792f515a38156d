//! Resident pages of a heap, counted by the live share of each page: the fraction of its bytes that
//! are live.

use pagewise_model::AddrRange;

/// Number of counters: one for pages without live bytes, and one for each eighth of a page.
pub(crate) const CELLS: usize = 9;

/// Counts the resident pages of an address range by their live share. Requires live ranges in order
/// of address.
pub(crate) struct PageDensityCounter<'r> {
    page: u64,
    /// Resident ranges, in order of address.
    runs: &'r [AddrRange],
    /// Address of the page that contains the end of the last live range, and the number of live
    /// bytes in this page.
    open: Option<(u64, u64)>,
    cells: [u64; CELLS],
}

impl<'r> PageDensityCounter<'r> {
    pub(crate) fn new(page: u64, runs: &'r [AddrRange]) -> PageDensityCounter<'r> {
        PageDensityCounter { page, runs, open: None, cells: [0; CELLS] }
    }

    pub(crate) fn add(&mut self, live: AddrRange) {
        let page = self.page;
        let first = live.start - live.start % page;
        let last = live.end - live.end % page;
        if first == last {
            return self.add_part(first, live.len().0);
        }
        if first < live.start {
            self.add_part(first, first + page - live.start);
        }
        let whole = AddrRange { start: live.start.next_multiple_of(page), end: last };
        let resident = self.resident(whole);
        self.cells[CELLS - 1] += resident / page;
        if last < live.end {
            self.add_part(last, live.end - last);
        }
    }

    fn add_part(&mut self, at: u64, bytes: u64) {
        match &mut self.open {
            Some((open, live)) if *open == at => *live += bytes,
            _ => {
                self.close();
                self.open = Some((at, bytes));
            }
        }
    }

    fn close(&mut self) {
        let Some((at, live)) = self.open.take() else { return };
        let page = AddrRange { start: at, end: at + self.page };
        if self.resident(page) > 0 {
            let cell = (live.min(self.page) * 8).div_ceil(self.page);
            let cell = usize::try_from(cell).unwrap_or(CELLS);
            self.cells[cell.min(CELLS - 1)] += 1;
        }
    }

    /// Number of resident bytes of `range`. Requires that `range` does not begin before the ranges
    /// of earlier calls.
    fn resident(&mut self, range: AddrRange) -> u64 {
        while self.runs.first().is_some_and(|run| run.end <= range.start) {
            self.runs = &self.runs[1..];
        }
        resident_in(self.runs, range)
    }

    /// Returns the number of pages for each live share. `pages` is the number of all resident
    /// pages.
    pub(crate) fn finish(mut self, pages: u64) -> [u64; CELLS] {
        self.close();
        let used: u64 = self.cells[1..].iter().sum();
        self.cells[0] = pages.saturating_sub(used);
        self.cells
    }
}

/// Number of bytes of `range` that `runs` cover. The first run may begin before `range`.
pub(crate) fn resident_in(runs: &[AddrRange], range: AddrRange) -> u64 {
    let parts = runs.iter().take_while(|run| run.start < range.end);
    parts.filter_map(|run| run.intersection(range)).map(|part| part.len().0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 12;

    #[test]
    fn pages_are_counted_by_the_share_of_them_that_is_live() {
        let range = |start, end| AddrRange { start, end };
        let runs = [range(0, 10 * PAGE), range(11 * PAGE, 20 * PAGE)];
        let mut counter = PageDensityCounter::new(PAGE, &runs);
        counter.add(range(16, 80));
        counter.add(range(1024, 1024 + 192));
        // This range begins in the middle of a page and ends in the middle of a page that is not
        // resident.
        counter.add(range(5 * PAGE + 2048, 10 * PAGE + 2048));
        counter.add(range(12 * PAGE, 13 * PAGE));
        assert_eq!(counter.finish(19), [12, 1, 0, 0, 1, 0, 0, 0, 5]);
    }
}
