//! Selection of the ranges of a process to copy.

use std::fs::File;
use std::thread::sleep;
use std::time::Duration;

use pagewise_model::mapping::Sharing;
use pagewise_model::page_map::{PageMapKind, PageTableWay};
use pagewise_model::process::Process;
use pagewise_model::{AddrRange, Backing, Bytes, Mapping, PageSize, Pid};
use pagewise_proc::page_map::{self, PageMapRequest};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, status};
use pagewise_remote::StopPoint;
use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest, scan};
use pagewise_sys::probe::{Features, scans_guards};

use super::CopyScope;
use crate::ScanError;

/// Number of bytes below the stack pointer that a function may use (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;
/// Maximum number of runs of pages that one system call returns.
const REGIONS: usize = 1024;
/// Number of times that the page table entries of absent pages are read again if the process has
/// pages in swap. [`BETWEEN_LOOKS`] is the time between two reads.
const MOVE_LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);

/// The ranges to copy, and the bytes that cannot be copied.
#[derive(Debug)]
pub(super) struct CopyPlan {
    /// All mappings of the process.
    pub(super) mappings: Vec<Mapping>,
    /// Ranges to copy, in order of address. No range is empty or adjacent to the next one.
    pub(super) ranges: Vec<AddrRange>,
    /// Bytes in swap, which are not copied: reading these pages would swap them in.
    pub(super) swapped: Bytes,
}

/// The page tables of a process, opened before it is stopped.
pub(super) struct PageScanner<'a> {
    root: &'a ProcRoot,
    process: Process,
    /// The process or thread through which the memory is read.
    reader: Pid,
    page_size: PageSize,
    /// File descriptor for `PAGEMAP_SCAN`; `None` before Linux 6.7.
    pagemap: Option<File>,
    report: Categories,
}

impl<'a> PageScanner<'a> {
    pub(super) fn open(
        root: &'a ProcRoot,
        process: &Process,
        reader: Pid,
        page_size: PageSize,
    ) -> Result<PageScanner<'a>, ScanError> {
        let path = root.file(reader, "pagemap");
        let can_scan = Features::detect().pagemap_scan;
        let pagemap = can_scan.then(|| File::open(path)).transpose().map_err(ScanError::Copy)?;
        let guard =
            if can_scan && scans_guards() { Categories::GUARD } else { Categories::default() };
        let report = Categories::PRESENT | Categories::SWAPPED | Categories::PFNZERO | guard;
        Ok(PageScanner { root, process: process.clone(), reader, page_size, pagemap, report })
    }

    /// Separates pages under migration from swapped pages among `absent`. While the kernel migrates
    /// a page, for example during compaction, its page table entry looks like a swap entry. Reading
    /// a page under migration waits until the migration ends. Returns the pages in memory, and the
    /// bytes in swap.
    fn moving(
        &self,
        wanted: &[&Mapping],
        absent: Vec<AddrRange>,
    ) -> Result<(Vec<AddrRange>, Bytes), ScanError> {
        if absent.is_empty() || self.swapped() == Some(Bytes::ZERO) {
            return Ok((absent, Bytes::ZERO));
        }
        let (mut swapped, mut moved) = (absent, Vec::new());
        for _ in 0..MOVE_LOOKS {
            sleep(BETWEEN_LOOKS);
            let parts: Vec<Mapping> = swapped.iter().flat_map(|it| parts_of(wanted, *it)).collect();
            swapped.clear();
            self.scan(&parts.iter().collect::<Vec<_>>(), |range, kind| match kind {
                PageMapKind::Swapped => swapped.push(range),
                kind if is_copied(kind) => moved.push(range),
                _ => {}
            })?;
        }
        Ok((moved, swapped.iter().map(|range| range.len()).sum()))
    }

    /// Bytes of the process in swap (`VmSwap`); `None` if unknown.
    fn swapped(&self) -> Option<Bytes> {
        let text = self.root.read(self.reader, "status").ok()?;
        status::parse(&text).status.vm_swap.ok()
    }

    /// Calls `each` for runs of consecutive pages of one kind, in order of address, without pages
    /// that were never touched.
    fn scan(
        &self,
        wanted: &[&Mapping],
        mut each: impl FnMut(AddrRange, PageMapKind),
    ) -> Result<(), ScanError> {
        match &self.pagemap {
            Some(pagemap) => {
                wanted.iter().try_for_each(|it| self.scan_mapping(pagemap, it, &mut each))
            }
            None => {
                let wanted = wanted.iter().map(|it| (*it).clone()).collect();
                let request =
                    PageMapRequest { way: PageTableWay::Scan, detail: false, pace: Pace::FAST };
                let process = self.process.clone();
                let map =
                    page_map::read(self.root, process, wanted, None, self.page_size, &request)?;
                let runs = map.mappings.iter().flat_map(|pages| pages.runs.iter());
                runs.for_each(|run| each(run.range, run.state.kind));
                Ok(())
            }
        }
    }

    fn scan_mapping(
        &self,
        pagemap: &File,
        mapping: &Mapping,
        each: &mut impl FnMut(AddrRange, PageMapKind),
    ) -> Result<(), ScanError> {
        // To determine whether a page belongs to a file, the kernel reads its `struct page`, which
        // is usually not in the CPU cache: 0.1 us per page. Private anonymous mappings contain no
        // file pages.
        let is_plain = mapping.inode == 0
            && mapping.backing() == Backing::Anonymous
            && mapping.sharing == Sharing::Private;
        let request = ScanRequest {
            any_of: Categories::PRESENT | Categories::SWAPPED,
            report: self.report | if is_plain { Categories::default() } else { Categories::FILE },
            ..ScanRequest::default()
        };
        let mut regions = [ScanRegion::default(); REGIONS];
        let mut at = mapping.range.start;
        while at < mapping.range.end {
            let found = scan(pagemap, at..mapping.range.end, &request, &mut regions);
            let found = found.map_err(ScanError::Copy)?;
            for region in &regions[..found.regions] {
                let range = AddrRange { start: region.start, end: region.end };
                each(range, kind(region.categories, mapping));
            }
            at = found.walk_end.max(at + self.page_size.bytes());
        }
        Ok(())
    }
}

/// Returns the parts of `mappings` that lie in a range.
fn parts_of(mappings: &[&Mapping], range: AddrRange) -> Vec<Mapping> {
    let parts = mappings.iter().filter_map(|it| Some((it.range.intersection(range)?, it)));
    parts.map(|(range, mapping)| Mapping { range, ..(**mapping).clone() }).collect()
}

const fn is_copied(kind: PageMapKind) -> bool {
    matches!(kind, PageMapKind::Anonymous | PageMapKind::Shmem)
}

fn kind(categories: Categories, mapping: &Mapping) -> PageMapKind {
    let has = |category| categories.contains(category);
    if has(Categories::GUARD) {
        PageMapKind::Guard
    } else if has(Categories::SWAPPED) && !has(Categories::FILE) {
        PageMapKind::Swapped
    } else if has(Categories::PFNZERO) {
        PageMapKind::Zero
    } else if !has(Categories::FILE) {
        PageMapKind::Anonymous
    } else if mapping.backing() == Backing::Shmem {
        PageMapKind::Shmem
    } else {
        PageMapKind::File
    }
}

impl CopyPlan {
    /// Reads the page tables of the mappings that a scan needs. Leaves out dead stack memory, which
    /// is below the stack pointers in `stops`.
    pub(super) fn read(
        scanner: &PageScanner<'_>,
        mappings: Vec<Mapping>,
        scope: CopyScope,
        stops: &[(u32, StopPoint)],
    ) -> Result<CopyPlan, ScanError> {
        let dead = dead_stacks(&mappings, scanner.page_size, stops);
        let mut plan = CopyPlan { mappings, ranges: Vec::new(), swapped: Bytes::ZERO };
        let mappings = std::mem::take(&mut plan.mappings);
        let wanted: Vec<&Mapping> =
            mappings.iter().filter(|mapping| is_wanted(mapping, scope)).collect();
        let mut absent = Vec::new();
        scanner.scan(&wanted, |range, kind| match kind {
            PageMapKind::Swapped => absent.push(range),
            kind if is_copied(kind) => plan.add(range, &dead),
            _ => {}
        })?;
        let (moving, swapped) = scanner.moving(&wanted, absent)?;
        plan.add_others(moving, &dead);
        plan.swapped = swapped;
        Ok(CopyPlan { mappings, ..plan })
    }

    /// Adds ranges in any order. They may lie between ranges that were added before.
    fn add_others(&mut self, others: Vec<AddrRange>, dead: &[AddrRange]) {
        if others.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.ranges);
        all.extend(others);
        all.sort_unstable();
        all.into_iter().for_each(|range| self.add(range, dead));
    }

    fn add(&mut self, range: AddrRange, dead: &[AddrRange]) {
        let mut start = range.start;
        let first = dead.partition_point(|it| it.end <= range.start);
        for gap in dead[first..].iter().take_while(|it| it.start < range.end) {
            self.push(AddrRange { start, end: gap.start.max(start) });
            start = gap.end.min(range.end);
        }
        self.push(AddrRange { start, end: range.end });
    }

    fn push(&mut self, range: AddrRange) {
        match self.ranges.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len().0).sum()
    }

    /// The first ranges of the plan, up to `bytes` bytes.
    pub(super) fn first_bytes(&self, bytes: u64) -> Vec<AddrRange> {
        let mut left = bytes;
        let mut first = Vec::new();
        for range in &self.ranges {
            let end = range.end.min(range.start.saturating_add(left));
            if end == range.start {
                break;
            }
            left -= end - range.start;
            first.push(AddrRange { start: range.start, end });
        }
        first
    }
}

/// True if a mapping can contain blocks or pointers to blocks. Unchanged pages of a private file
/// mapping contain none.
fn is_wanted(mapping: &Mapping, scope: CopyScope) -> bool {
    if !mapping.prot.read {
        return false;
    }
    match (mapping.backing(), mapping.sharing) {
        (Backing::Special, _) => false,
        (_, Sharing::Private) => {
            mapping.prot.write || scope == CopyScope::HeapAndRoots && !mapping.prot.exec
        }
        (Backing::Shmem, Sharing::Shared) => scope == CopyScope::HeapAndRoots && mapping.prot.write,
        // `maps` always contains the letter `p` or `s`, so `Unknown` does not occur.
        (_, Sharing::Shared | Sharing::Unknown) => false,
    }
}

/// Returns the stack memory below the stack pointers, in order of address. Only mappings of thread
/// stacks have dead memory: the stack of a coroutine may be a block of the heap.
fn dead_stacks(
    mappings: &[Mapping],
    page_size: PageSize,
    stops: &[(u32, StopPoint)],
) -> Vec<AddrRange> {
    let page = page_size.bytes();
    let mut dead: Vec<AddrRange> = stops
        .iter()
        .filter_map(|(_, stop)| {
            let at = mappings.partition_point(|it| it.range.end <= stop.stack);
            let mapping = mappings.get(at).filter(|it| it.range.contains(stop.stack))?;
            let below = at.checked_sub(1).map(|below| &mappings[below]);
            let is_guarded =
                below.is_some_and(|it| it.prot.is_none() && it.range.end == mapping.range.start);
            // The C library places the control block of a thread at the top of the thread's stack.
            let is_stack = mapping.name.as_bytes() == b"[stack]"
                || is_guarded
                    && stop.stack < stop.thread_data
                    && mapping.range.contains(stop.thread_data);
            let live = stop.stack.saturating_sub(RED_ZONE);
            let end = live - live % page;
            is_stack.then_some(AddrRange { start: mapping.range.start, end })
        })
        .filter(|range| !range.is_empty())
        .collect();
    dead.sort_unstable();
    dead.dedup_by_key(|range| range.start);
    dead
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::mapping;

    #[test]
    fn dead_ranges_are_left_out_and_neighbors_joined() {
        let range = |start, end| AddrRange { start, end };
        let mut plan = CopyPlan { mappings: Vec::new(), ranges: Vec::new(), swapped: Bytes::ZERO };
        let dead = [range(10, 20), range(30, 40)];
        for part in [range(0, 5), range(5, 12), range(15, 35), range(38, 50), range(60, 70)] {
            plan.add(part, &dead);
        }
        assert_eq!(plan.ranges, [range(0, 10), range(20, 30), range(40, 50), range(60, 70)]);
        assert_eq!(plan.bytes(), 40);
        assert_eq!(plan.first_bytes(15), [range(0, 10), range(20, 25)]);
        assert_eq!(plan.first_bytes(0), []);
    }

    #[test]
    fn pages_that_move_are_copied_with_their_neighbors() {
        let range = |start, end| AddrRange { start, end };
        let ranges = vec![range(0, 10), range(20, 30)];
        let mut plan = CopyPlan { mappings: Vec::new(), ranges, swapped: Bytes::ZERO };
        plan.add_others(vec![range(40, 50), range(10, 20)], &[range(45, 60)]);
        assert_eq!(plan.ranges, [range(0, 30), range(40, 45)]);
    }

    #[test]
    fn a_page_of_a_file_that_moves_is_not_swapped() {
        let of = |categories| kind(categories, &mapping(0x1000, 0x1000, "/lib/libc.so.6", 7));
        let swapped = Categories::SWAPPED;
        assert_eq!(of(swapped), PageMapKind::Swapped);
        assert_eq!(of(swapped | Categories::FILE), PageMapKind::File);
    }
}
