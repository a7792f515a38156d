//! Swapped memory of a whole process: the sum over its mappings, which equals the sums over
//! quadrants and over pools.
//!
//! `VmSwap` counts private anonymous pages only: it excludes swapped tmpfs pages, and therefore all
//! shared memory.

use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter, Snapshot};

/// Sum over the mappings; if it is absent, the value of `smaps_rollup` or of the page walk.
pub(crate) fn total(snapshot: &Snapshot) -> Reading<Bytes> {
    let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
    let sum: Reading<Bytes> = mappings.iter().map(Mapping::swap).sum();
    let rollup = || snapshot.rollup.as_ref().ok()?.bytes(SmapsCounter::Swap).ok();
    let walk = || snapshot.walk.as_ref().ok()?.swap.clone().ok();
    sum.or_else(|absent| rollup().or_else(walk).ok_or(absent))
}

/// Returns `VmSwap`.
pub(crate) fn private(snapshot: &Snapshot) -> Reading<Bytes> {
    snapshot.status.as_ref().map_err(Clone::clone)?.vm_swap.clone()
}
