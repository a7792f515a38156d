//! The ranges of a process to copy.

use pagewise_model::mapping::Sharing;
use pagewise_model::page_map::{PageMapKind, PageTableWay};
use pagewise_model::process::Process;
use pagewise_model::{AddrRange, Backing, Bytes, Mapping, PageSize};
use pagewise_proc::page_map::{self, PageMapRequest};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcError, ProcRoot};
use pagewise_remote::StopPoint;

use super::CopyScope;

/// Bytes below the stack pointer that a function may use (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;

/// The ranges to copy, and the pages that cannot be.
#[derive(Debug)]
pub(super) struct CopyPlan {
    /// All mappings of the process.
    pub(super) mappings: Vec<Mapping>,
    /// In order of address, none empty, none adjacent to the next.
    pub(super) ranges: Vec<AddrRange>,
    /// Pages in swap: reading them would bring them back into memory.
    pub(super) swapped: Bytes,
}

impl CopyPlan {
    /// Reads the page tables of the mappings that a scan needs. Dead stack memory is left out: that
    /// below the stack pointers of `stops`.
    pub(super) fn read(
        root: &ProcRoot,
        process: &Process,
        mappings: Vec<Mapping>,
        page_size: PageSize,
        scope: CopyScope,
        stops: &[(u32, StopPoint)],
    ) -> Result<CopyPlan, ProcError> {
        let dead = dead_stacks(&mappings, page_size, stops);
        let wanted = mappings.iter().filter(|mapping| is_wanted(mapping, scope)).cloned().collect();
        let request = PageMapRequest { way: PageTableWay::Scan, detail: false, pace: Pace::FAST };
        let map = page_map::read(root, process.clone(), wanted, None, page_size, &request)?;
        let mut plan = CopyPlan { mappings, ranges: Vec::new(), swapped: Bytes::ZERO };
        for pages in &map.mappings {
            for run in &pages.runs {
                match run.state.kind {
                    PageMapKind::Anonymous | PageMapKind::Shmem => plan.add(run.range, &dead),
                    PageMapKind::Swapped => plan.swapped += run.range.len(),
                    PageMapKind::Untouched
                    | PageMapKind::File
                    | PageMapKind::Zero
                    | PageMapKind::Guard => {}
                }
            }
        }
        Ok(plan)
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

    /// The first ranges, up to a number of bytes.
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

/// True if a mapping can hold blocks or pointers to blocks. A page of a private file mapping that
/// is still the file's was never written.
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
        (_, Sharing::Shared) => false,
    }
}

/// Stack memory below the stack pointers, in order of address. Other mappings than stacks have
/// none: the stack of a coroutine may be a block of the heap.
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
            // The C library places the data of a thread at the top of its stack.
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

    #[test]
    fn dead_ranges_are_left_out_and_neighbours_joined() {
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
}
