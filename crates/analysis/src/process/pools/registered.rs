//! Mappings that pools of pagewise's allocators have registered.
//!
//! The kernel merges neighbors, so a mapping may contain blocks of several pools and other memory.
//! It belongs to the pool with the largest part if pools have more than half of it.

use std::ops::Range;

use pagewise_model::pagewise_pools::RegisteredPool;
use pagewise_model::{AddrRange, Name};

use super::{PoolKind, PoolMark, Sorter, small};

/// Places the mappings that are mostly registered.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let snapshot = sorter.snapshot;
    let ranges = sorted(&snapshot.pools);
    if ranges.is_empty() {
        return;
    }
    for (index, mapping) in sorter.mappings.iter().enumerate() {
        if !sorter.is_free_anonymous(index) {
            continue;
        }
        if let Some(owner) = owner(&ranges, mapping.range, snapshot.pools.len()) {
            let mark = PoolMark::Number(small(owner).into());
            sorter.put_marked(index, PoolKind::Pagewise, mark, || name(&snapshot.pools[owner]));
        }
    }
}

/// The ranges of all pools that live, by address, each with the index of its pool.
fn sorted(pools: &[RegisteredPool]) -> Vec<(AddrRange, usize)> {
    let living = pools.iter().enumerate().filter(|(_, pool)| pool.lives);
    let mut ranges: Vec<(AddrRange, usize)> =
        living.flat_map(|(at, pool)| pool.ranges.iter().map(move |range| (*range, at))).collect();
    ranges.sort_by_key(|(range, _)| (range.start, range.end));
    ranges
}

/// The pool that has most of a mapping; `None` where pools together have no more than half.
fn owner(ranges: &[(AddrRange, usize)], mapping: AddrRange, pools: usize) -> Option<usize> {
    let ranges = &ranges[near(ranges, mapping)];
    if ranges.is_empty() {
        return None;
    }
    let mut shares = vec![0_u64; pools];
    for (range, pool) in ranges {
        let part = range.intersection(mapping).map_or(0, |part| part.len().0);
        shares[*pool] = shares[*pool].saturating_add(part);
    }
    let all = shares.iter().fold(0_u64, |sum, share| sum.saturating_add(*share));
    let most = (0..pools).max_by_key(|pool| shares[*pool])?;
    (all > mapping.len().0 / 2).then_some(most)
}

/// Indices of the ranges that may overlap a mapping. Ranges of living pools do not overlap, so
/// their ends are in the order of their starts; if a process reports wrong ranges, some are missed.
fn near(ranges: &[(AddrRange, usize)], mapping: AddrRange) -> Range<usize> {
    let start = ranges.partition_point(|(range, _)| range.end <= mapping.start);
    let end = ranges.partition_point(|(range, _)| range.start < mapping.end);
    start..end.max(start)
}

/// `stack frames`: the kind, and the name where it has one.
fn name(pool: &RegisteredPool) -> Name {
    if pool.name.is_empty() {
        return pool.kind.clone();
    }
    Name::new(&[pool.kind.as_bytes(), b" ", pool.name.as_bytes()].concat())
}
