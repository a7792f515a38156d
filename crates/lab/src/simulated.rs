//! Simulated misses of the TLBs of the CPU in the original measurement: if the machine has no PMU,
//! and for comparison with one.

use pagewise_sim::geometry::{I7_6800K, TlbPageSize};
use pagewise_sim::workload::AccessSink;
use pagewise_sim::{Levels, ReadWriteCounts, RecencyPolicy};

use crate::LabError;

/// Accesses that miss all TLB levels of an i7-6800K, with LRU replacement and a page walker that
/// prefetches the next base page.
///
/// # Errors
/// [`LabError::Failed`], if its TLB for such pages is unknown.
pub(crate) fn walks(
    page: TlbPageSize,
    play: impl FnOnce(AccessSink<'_>),
) -> Result<ReadWriteCounts, LabError> {
    let impossible = |unfit| LabError::Failed(format!("the TLB cannot be simulated: {unfit}"));
    let shape = I7_6800K.tlb(page).map_err(impossible)?;
    let mut tlb = Levels::tlb(&shape, RecencyPolicy::Lru).map_err(impossible)?;
    if let Some(model) = I7_6800K.next_page.filter(|_| page == TlbPageSize::Base) {
        tlb = tlb.prefetching(model);
    }
    play(&mut |accesses| tlb.play(accesses));
    Ok(tlb.counts().last)
}
