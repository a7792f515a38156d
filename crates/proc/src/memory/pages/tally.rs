//! The pages of one mapping, added up as the kernel adds them up for `smaps`.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewise_model::mapping::MappingPages;
use pagewise_model::{Absent, Backing, Breakdown, Bytes, PageSize, Reading, Sharing};

/// The kernel adds up proportional shares in 1/4096 bytes (`PSS_SHIFT` of fs/proc/task_mmu.c).
const PSS_SHIFT: u32 = 12;

/// Number of recent [`MappingPages`] values that are kept. A later mapping with equal sums shares
/// the kept value. Neighboring mappings often alternate between a few values.
const RECENT: usize = 4;

/// Kinds of pages that a mapping can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// Anonymous pages and the zero page.
    Anonymous,
    /// Page-cache pages, and anonymous copies of written pages.
    PrivateFile,
    /// Pages of tmpfs.
    Shmem,
    /// Page-cache pages, and page frames that no counter counts (devices, DAX, `[vvar]`).
    Other,
}

/// Anonymous or page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageOrigin {
    Anonymous,
    File,
}

impl Ground {
    pub(super) const fn from_backing(backing: Backing, sharing: Sharing) -> Ground {
        match (backing, sharing) {
            (Backing::Anonymous, _) => Ground::Anonymous,
            (Backing::Shmem, Sharing::Shared) => Ground::Shmem,
            (Backing::Shmem | Backing::File, Sharing::Private | Sharing::Unknown) => {
                Ground::PrivateFile
            }
            (Backing::File, Sharing::Shared) | (Backing::Special, _) => Ground::Other,
        }
    }

    /// Kind of a present page, or `None` for a page frame that is in no counter.
    pub(super) const fn kind(self, file: bool, exclusive: bool) -> Option<PageOrigin> {
        match (self, file, exclusive) {
            // The huge zero page has the file bit.
            (Ground::Anonymous, _, _) => Some(PageOrigin::Anonymous),
            // Before 6.11 huge pages of tmpfs lack the file bit.
            (Ground::Shmem, _, _) | (_, true, _) => Some(PageOrigin::File),
            (Ground::PrivateFile, false, _) | (_, false, true) => Some(PageOrigin::Anonymous),
            (Ground::Other, false, false) => None,
        }
    }
}

/// Running sums of one mapping, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageTally {
    pub(super) breakdown: Breakdown,
    /// Bytes << [`PSS_SHIFT`].
    pss: u64,
    /// The part of `pss` that belongs to anonymous pages.
    pss_anon: u64,
    /// True if the share of a co-mapped page (a page that other page tables also map) is missing
    /// from `pss`.
    pub(super) pss_hidden: bool,
    /// True if tmpfs pages may be in swap without being counted.
    pub(super) swap_hidden: bool,
    pub(super) anon_huge: Bytes,
    /// True if blocks that may be huge are missing from `anon_huge`.
    pub(super) huge_hidden: bool,
    /// True if some pages may be either the zero page or co-mapped pages.
    pub(super) undecided: bool,
}

impl PageTally {
    /// Returns an empty tally. `swap_hidden` is true if tmpfs pages may be in swap.
    pub(super) fn new(swap_hidden: bool) -> PageTally {
        PageTally { swap_hidden, ..PageTally::default() }
    }

    /// Adds pages that one page table maps.
    pub(super) fn add_exclusive(&mut self, kind: PageOrigin, bytes: Bytes) {
        *self.exclusive(kind) += bytes;
        self.add_share(kind, bytes.0 << PSS_SHIFT);
    }

    /// Adds the size of pages that other page tables also map. Does not add their PSS.
    pub(super) fn add_co_mapped(&mut self, kind: PageOrigin, bytes: Bytes) {
        let sum = match kind {
            PageOrigin::Anonymous => &mut self.breakdown.anon_co_mapped,
            PageOrigin::File => &mut self.breakdown.file_co_mapped,
        };
        *sum += bytes;
    }

    /// Adds a page that `mappers` page-table entries map.
    pub(super) fn add_counted(
        &mut self,
        ground: Ground,
        kind: PageOrigin,
        page: PageSize,
        mappers: u64,
    ) {
        match (mappers, ground, kind) {
            (0, Ground::Anonymous, _) => self.breakdown.zero += page.pages(1),
            (0, _, PageOrigin::Anonymous) => {}
            // The kernel treats a page-cache page with a map count of 0 as exclusive.
            (0 | 1, _, _) => self.add_exclusive(kind, page.pages(1)),
            _ => self.add_shared(kind, page, mappers),
        }
    }

    /// Changes a page that was added as exclusive to a co-mapped page, if more than one entry maps
    /// it.
    pub(super) fn correct(&mut self, kind: PageOrigin, page: PageSize, mappers: u64) {
        if mappers > 1 {
            let sum = self.exclusive(kind);
            *sum = *sum - page.pages(1);
            let share = page.bytes() << PSS_SHIFT;
            self.pss = self.pss.saturating_sub(share);
            if kind == PageOrigin::Anonymous {
                self.pss_anon = self.pss_anon.saturating_sub(share);
            }
            self.add_shared(kind, page, mappers);
        }
    }

    fn add_shared(&mut self, kind: PageOrigin, page: PageSize, mappers: u64) {
        self.add_co_mapped(kind, page.pages(1));
        self.add_share(kind, (page.bytes() << PSS_SHIFT) / mappers);
    }

    fn add_share(&mut self, kind: PageOrigin, share: u64) {
        self.pss = self.pss.saturating_add(share);
        if kind == PageOrigin::Anonymous {
            self.pss_anon = self.pss_anon.saturating_add(share);
        }
    }

    fn exclusive(&mut self, kind: PageOrigin) -> &mut Bytes {
        match kind {
            PageOrigin::Anonymous => &mut self.breakdown.anon_exclusive,
            PageOrigin::File => &mut self.breakdown.file_exclusive,
        }
    }

    fn merge(&mut self, other: &PageTally) {
        let (into, from) = (&mut self.breakdown, &other.breakdown);
        into.anon_exclusive += from.anon_exclusive;
        into.anon_co_mapped += from.anon_co_mapped;
        into.file_exclusive += from.file_exclusive;
        into.file_co_mapped += from.file_co_mapped;
        into.swapped += from.swapped;
        into.zero += from.zero;
        into.guard += from.guard;
        self.pss = self.pss.saturating_add(other.pss);
        self.pss_anon = self.pss_anon.saturating_add(other.pss_anon);
        self.anon_huge += other.anon_huge;
        self.pss_hidden |= other.pss_hidden;
        self.swap_hidden |= other.swap_hidden;
        self.huge_hidden |= other.huge_hidden;
        self.undecided |= other.undecided;
    }
}

/// Turns tallies into model values and keeps the total.
#[derive(Debug)]
pub(super) struct TallyLedger {
    total: PageTally,
    total_gap: Option<Absent>,
    /// Recently returned values. A mapping with equal values shares one of them.
    recent: VecDeque<Arc<MappingPages>>,
    pss_hidden: Absent,
    swap_hidden: Absent,
    huge_hidden: Absent,
    undecided: Absent,
}

impl TallyLedger {
    pub(super) fn new() -> TallyLedger {
        TallyLedger {
            total: PageTally::default(),
            total_gap: None,
            recent: VecDeque::with_capacity(RECENT),
            pss_hidden: Absent::NotPermitted(
                "CAP_SYS_ADMIN, to count the page tables that map a page".into(),
            ),
            swap_hidden: Absent::NotCollected(
                "page tables do not show swapped tmpfs pages: ask for --full".into(),
            ),
            huge_hidden: Absent::NotInThisKernel("6.7".into()),
            undecided: Absent::NotPermitted(
                "CAP_SYS_ADMIN or Linux 6.7, to distinguish the zero page from shared pages".into(),
            ),
        }
    }

    /// Adds a mapping to the total, and returns the value of the mapping.
    pub(super) fn enter(&mut self, tally: &PageTally) -> Reading<Arc<MappingPages>> {
        self.total.merge(tally);
        let pages = self.pages(tally)?;
        if let Some(same) = self.recent.iter().find(|recent| ***recent == pages) {
            return Ok(Arc::clone(same));
        }
        let pages = Arc::new(pages);
        self.recent.truncate(RECENT - 1);
        self.recent.push_front(Arc::clone(&pages));
        Ok(pages)
    }

    /// Returns the reason as the value of a mapping that was not read. The total is then also
    /// unknown.
    pub(super) fn leave_out<T>(&mut self, why: Absent) -> Reading<T> {
        self.total_gap = Some(why.clone());
        Err(why)
    }

    /// Adds the total of other mappings of the same process.
    pub(super) fn merge(&mut self, other: TallyLedger) {
        self.total.merge(&other.total);
        self.total_gap = self.total_gap.take().or(other.total_gap);
    }

    /// Returns true if another process also maps any anonymous page of the process.
    pub(super) fn shares_anonymous(&self) -> bool {
        !self.total.breakdown.anon_co_mapped.is_zero()
    }

    /// Returns the sums over all mappings.
    pub(super) fn total(self) -> Reading<MappingPages> {
        match &self.total_gap {
            Some(why) => Err(why.clone()),
            None => self.pages(&self.total),
        }
    }

    fn pages(&self, tally: &PageTally) -> Reading<MappingPages> {
        let unless = |hidden: bool, why: &Absent, bytes: Bytes| {
            if hidden { Err(why.clone()) } else { Ok(bytes) }
        };
        let pss = Bytes::kib(tally.pss >> PSS_SHIFT >> 10);
        let pss_anon = Bytes(tally.pss_anon >> PSS_SHIFT);
        unless(tally.undecided, &self.undecided, Bytes::ZERO)?;
        Ok(MappingPages {
            breakdown: tally.breakdown,
            pss: unless(tally.pss_hidden, &self.pss_hidden, pss),
            pss_anon: unless(tally.pss_hidden, &self.pss_hidden, pss_anon),
            swap: unless(tally.swap_hidden, &self.swap_hidden, tally.breakdown.swapped),
            anon_huge: unless(tally.huge_hidden, &self.huge_hidden, tally.anon_huge),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageSize = PageSize::new(4096).unwrap();

    #[test]
    fn shares_are_rounded_to_a_4096th_of_a_page_and_a_kib_of_a_mapping() {
        let mut tally = PageTally::default();
        for _ in 0..3 {
            tally.add_counted(Ground::Shmem, PageOrigin::File, PAGE, 3);
        }
        // 3 * (16777216 / 3) is 1/4096 byte less than a page, so rounding down loses one KiB.
        assert_eq!(TallyLedger::new().enter(&tally).unwrap().pss, Ok(Bytes::kib(3)));
    }

    #[test]
    fn the_zero_page_is_not_resident() {
        let mut tally = PageTally::default();
        tally.add_counted(Ground::Anonymous, PageOrigin::Anonymous, PAGE, 0);
        let pages = TallyLedger::new().enter(&tally).unwrap();
        assert_eq!(pages.breakdown.resident(), Bytes::ZERO);
        assert_eq!(pages.breakdown.zero, PAGE.pages(1));
    }

    #[test]
    fn mappings_alike_share_one_value() {
        let mut ledger = TallyLedger::new();
        let mut tally = PageTally::default();
        tally.add_exclusive(PageOrigin::Anonymous, PAGE.pages(1));
        let (one, empty, two) = (
            ledger.enter(&tally).unwrap(),
            ledger.enter(&PageTally::default()).unwrap(),
            ledger.enter(&tally).unwrap(),
        );
        assert!(Arc::ptr_eq(&one, &two) && !Arc::ptr_eq(&one, &empty));
    }

    #[test]
    fn a_mapping_left_out_leaves_no_total() {
        let mut ledger = TallyLedger::new();
        let left: Reading<()> = ledger.leave_out(Absent::Vanished);
        assert_eq!(left, Err(Absent::Vanished));
        assert_eq!(ledger.total(), Err(Absent::Vanished));
    }
}
