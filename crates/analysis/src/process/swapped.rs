//! Memory of a whole process in swap: the sum over its mappings, with which quadrants and pools
//! agree.
//!
//! `VmSwap` counts private anonymous pages only: it leaves out swapped tmpfs pages, and so all
//! shared memory.

use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter, Snapshot};

/// The sum over the mappings; else what `smaps_rollup` or the page walk say.
pub(crate) fn total(snapshot: &Snapshot) -> Reading<Bytes> {
    let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
    let sum: Reading<Bytes> = mappings.iter().map(Mapping::swap).sum();
    let rollup = || snapshot.rollup.as_ref().ok()?.bytes(SmapsCounter::Swap).ok();
    let walk = || snapshot.walk.as_ref().ok()?.swap.clone().ok();
    sum.or_else(|absent| rollup().or_else(walk).ok_or(absent))
}

/// `VmSwap`.
pub(crate) fn private(snapshot: &Snapshot) -> Reading<Bytes> {
    snapshot.status.as_ref().map_err(Clone::clone)?.vm_swap.clone()
}
