//! Density of pages: the fraction of each page that is live, and the allocation sites (call stacks)
//! that pin sparse pages.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use pagewise_heaplog::recording::{LogAmount, LogPageDensity, LogPinned};

use super::BlockExtent;

/// Maximum number of pinning sites that are reported.
const SITES: usize = 20;
/// Index of the last cell of sparse pages: at most a quarter of a sparse page is live.
const SPARSE: u64 = 2;

/// Sums blocks per page. Blocks must be added in order of address.
#[derive(Debug)]
pub(super) struct Use {
    page: u64,
    cells: [u64; 9],
    pinned: HashMap<u32, LogPinned>,
    /// The page to which further blocks may be added, and the index of its extent.
    open: Option<(u64, usize)>,
    /// Number of live bytes in the open page.
    bytes: u64,
    sites: Vec<(u32, LogAmount)>,
}

/// Number of bytes of completed resident pages that contain live blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// Bytes of the page that was open before the call, and the index of its extent.
    pub(super) bytes: u64,
    pub(super) extent: usize,
    /// Bytes of further pages, all in the extent of the added block.
    pub(super) whole: u64,
}

impl Use {
    pub(super) fn new(page: u64) -> Use {
        Use { page, cells: [0; 9], pinned: HashMap::new(), open: None, bytes: 0, sites: Vec::new() }
    }

    /// Updates the index of the open page's extent after an extent was inserted at `at`.
    pub(super) fn moved(&mut self, at: usize) {
        if let Some((_, extent)) = &mut self.open
            && *extent >= at
        {
            *extent += 1;
        }
    }

    /// Adds a block of an extent. Returns the pages that this block completes.
    pub(super) fn add(
        &mut self,
        extents: &[BlockExtent],
        at: usize,
        range: &Range<u64>,
        site: u32,
    ) -> Used {
        if range.is_empty() {
            return Used::default();
        }
        let page = self.page;
        let (first, last) = (range.start - range.start % page, (range.end - 1) / page * page);
        let mut used = Used::default();
        if self.open != Some((first, at)) {
            used = self.close(extents);
            self.open = Some((first, at));
        }
        self.part(site, range.end.min(first + page) - range.start, 1);
        if last > first {
            // A block covers all pages between its first and its last page completely.
            let whole = extents[at].resident_in(&(first + page..last));
            self.cells[8] += whole / page;
            let before = self.close(extents);
            // The page that was open before may belong to another extent; the first page of the
            // block belongs to the extent of the block.
            if used.bytes == 0 {
                used = before;
            } else {
                used.whole = before.bytes;
            }
            used.whole += whole;
            self.open = Some((last, at));
            self.part(site, range.end - last, 0);
        }
        used
    }

    fn part(&mut self, site: u32, bytes: u64, blocks: u64) {
        self.bytes += bytes;
        match self.sites.last_mut() {
            Some((last, sum)) if *last == site => {
                sum.bytes += bytes;
                sum.blocks += blocks;
            }
            _ => self.sites.push((site, LogAmount { bytes, blocks })),
        }
    }

    /// Completes the open page.
    pub(super) fn close(&mut self, extents: &[BlockExtent]) -> Used {
        let used = self.close_page(extents);
        self.sites.clear();
        self.bytes = 0;
        used
    }

    fn close_page(&mut self, extents: &[BlockExtent]) -> Used {
        let (sites, bytes) = (&self.sites, self.bytes);
        let Some((at, extent)) = self.open.take() else { return Used::default() };
        let page = self.page;
        let is_resident =
            extents.get(extent).is_some_and(|it| it.resident_in(&(at..at + page)) > 0);
        if !is_resident || bytes == 0 {
            return Used::default();
        }
        let cell = (bytes.min(page) * 8).div_ceil(page);
        if let Some(count) = usize::try_from(cell).ok().and_then(|cell| self.cells.get_mut(cell)) {
            *count += 1;
        }
        if cell <= SPARSE {
            let mut left = page;
            for (number, (site, live)) in sites.iter().enumerate() {
                let is_last = number + 1 == sites.len();
                let part = if is_last { left } else { (page * live.bytes / bytes).min(left) };
                left -= part;
                let sum = self.pinned.entry(*site).or_default();
                sum.site = *site;
                plus(sum, part, *live);
            }
        }
        Used { bytes: page, extent, whole: 0 }
    }

    /// Returns the density cells and the pinning sites. `empty` is the number of pages without a
    /// live block.
    pub(super) fn finish(mut self, empty: u64) -> LogPageDensity {
        self.cells[0] = empty;
        let mut pinned: Vec<LogPinned> = self.pinned.into_values().collect();
        pinned.sort_unstable_by_key(|it| (Reverse(it.bytes), it.site));
        let mut others = LogPinned::default();
        for it in pinned.iter().skip(SITES) {
            plus(&mut others, it.bytes, it.live);
        }
        pinned.truncate(SITES);
        LogPageDensity { cells: self.cells, pinned, others }
    }
}

fn plus(sum: &mut LogPinned, bytes: u64, live: LogAmount) {
    sum.bytes = sum.bytes.saturating_add(bytes);
    sum.live.bytes = sum.live.bytes.saturating_add(live.bytes);
    sum.live.blocks = sum.live.blocks.saturating_add(live.blocks);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn extent(range: Range<u64>, runs: Vec<Range<u64>>) -> BlockExtent {
        BlockExtent { last: range.start, range, area: 0, runs }
    }

    #[test]
    fn pages_are_counted_by_how_much_of_them_is_live() {
        let end = 20 * PAGE;
        let extents = [extent(0..end, vec![0..10 * PAGE, 11 * PAGE..end])];
        let mut uses = Use::new(PAGE);
        let mut used = Vec::new();
        let mut add = |range: Range<u64>, site| used.push(uses.add(&extents, 0, &range, site));
        // A page with two blocks from two sites, which cover a sixteenth of the page in total.
        add(16..16 + 64, 1);
        add(1024..1024 + 192, 2);
        // A block from the middle of a page to the middle of a page that is not resident, and a
        // second block in that page.
        add(5 * PAGE + 2048..10 * PAGE + 2048, 3);
        add(10 * PAGE + 3000..10 * PAGE + 3010, 3);
        // A block that covers a whole page.
        add(12 * PAGE..13 * PAGE, 4);
        used.push(uses.close(&extents));
        let bytes: u64 = used.iter().map(|it| it.bytes + it.whole).sum();
        let pages = uses.finish(7);
        // Page 0 is sparse, page 5 is half live, pages 6 to 9 and 12 are full.
        assert_eq!(pages.cells, [7, 1, 0, 0, 1, 0, 0, 0, 5]);
        assert_eq!(bytes, 7 * PAGE);
        let live = |bytes, blocks| LogAmount { bytes, blocks };
        assert_eq!(
            pages.pinned,
            [
                LogPinned { site: 2, bytes: PAGE * 3 / 4, live: live(192, 1) },
                LogPinned { site: 1, bytes: PAGE / 4, live: live(64, 1) },
            ]
        );
        assert_eq!(pages.others, LogPinned::default());
    }

    #[test]
    fn overlapping_blocks_do_not_count_twice() {
        let extents = [extent(0..PAGE, std::iter::once(0..PAGE).collect())];
        let mut uses = Use::new(PAGE);
        for _ in 0..3 {
            uses.add(&extents, 0, &(0..4000), 1);
        }
        uses.close(&extents);
        assert_eq!(uses.finish(0).cells[8], 1);
    }
}
