//! The function that allocates leaked blocks. The heap scan reports the sizes of leaked blocks, and
//! the recording of allocations reports the functions that allocate blocks of each size.

use std::collections::HashMap;

use pagewise_model::evidence::AllocationSizes;
use pagewise_model::heap_graph::HeapGraph;

use super::CauseEvidence;
use super::evidence::FunctionShare;

/// Resolution of the division between call stacks: each share of the leaked bytes is rounded down
/// to a multiple of 1 / `PARTS`.
const PARTS: u64 = 1 << 10;

/// Returns the usable size of a block of glibc for a requested size. A chunk has 8 bytes of header
/// and a size that is a multiple of 16 bytes.
fn usable(requested: u64) -> u64 {
    const UNIT: u64 = 16;
    const HEADER: u64 = 8;
    const MIN: u64 = 24;
    let chunk = requested.saturating_add(HEADER).checked_next_multiple_of(UNIT);
    chunk.map_or(requested, |chunk| chunk - HEADER).max(MIN)
}

/// Returns leaked bytes by call stack. The leaked bytes of each size are divided between the call
/// stacks that allocate blocks of this size, in proportion to their numbers of calls.
fn leaked_by_stack(graph: &HeapGraph, profile: &AllocationSizes) -> Vec<(u32, u64)> {
    let mut leaked: HashMap<u64, u64> = HashMap::new();
    for group in &graph.leaks {
        *leaked.entry(group.size).or_default() += group.bytes;
    }
    let mut calls: HashMap<u64, u64> = HashMap::new();
    for row in &profile.rows {
        *calls.entry(usable(row.size)).or_default() += row.count;
    }
    let part = |row: &pagewise_model::evidence::AllocationSizeRow| {
        let size = usable(row.size);
        let (bytes, all) = (leaked.get(&size)?, calls.get(&size)?);
        let share = row.count.saturating_mul(PARTS) / (*all).max(1);
        Some((row.stack, bytes.saturating_mul(share) / PARTS)).filter(|(_, bytes)| *bytes > 0)
    };
    profile.rows.iter().filter_map(part).collect()
}

/// Returns the function that allocates most of the leaked bytes; `None` if allocations were not
/// recorded, or no recorded allocation has the size of a leaked block.
pub(super) fn leaking_function<'a>(evidence: &CauseEvidence<'a>) -> Option<FunctionShare<'a>> {
    let graph = evidence.all.scan.value()?.graph.as_ref()?;
    let profile = evidence.all.allocation_sizes.value()?;
    let leaked = leaked_by_stack(graph, profile);
    super::evidence::most(leaked.into_iter(), &profile.stacks, &profile.frames)
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::AllocationSizeRow;
    use pagewise_model::heap_graph::LeakGroup;

    use super::*;

    #[test]
    fn usable_sizes_are_those_of_glibc() {
        // The expected sizes are those that malloc_usable_size returns.
        for (requested, expected) in
            [(0, 24), (24, 24), (25, 40), (40, 40), (100, 104), (1000, 1000)]
        {
            assert_eq!(usable(requested), expected, "{requested}");
        }
        assert_eq!(usable(u64::MAX), u64::MAX);
    }

    #[test]
    fn leaked_bytes_belong_to_the_stacks_that_allocate_their_size() {
        let group = |size, bytes| LeakGroup {
            leaks: 1,
            blocks: 1,
            bytes,
            size,
            block_type: None,
            address: 0,
            first_bytes: Vec::new(),
            stack: Err(pagewise_model::heap_graph::not_recorded()),
        };
        let row = |stack, size, count| AllocationSizeRow { stack, size, count };
        let graph =
            HeapGraph { leaks: vec![group(104, 9000), group(40, 100)], ..HeapGraph::default() };
        let profile = AllocationSizes {
            rows: vec![row(0, 33, 5000), row(1, 100, 20), row(2, 90, 10), row(3, 8, 70)],
            ..AllocationSizes::default()
        };
        let mut found = leaked_by_stack(&graph, &profile);
        found.sort_unstable();
        let whole: Vec<u32> = found.iter().map(|(stack, _)| *stack).collect();
        assert_eq!(whole, [0, 1, 2]);
        assert!(found[1].1 > 5900 && found[1].1 <= 6000, "{found:?}");
        assert!(found[2].1 > 2900 && found[2].1 <= 3000, "{found:?}");
    }
}
