//! What the TLBs of the CPU that the source had would miss: where there is no PMU to ask, and to compare with one.

use pagewise_sim::geometry::{I7_6800K, PageSize};
use pagewise_sim::workload::Sink;
use pagewise_sim::{Levels, Policy, Split};

use crate::LabError;

/// Accesses that find their page in no TLB of an i7-6800K whose walker fetches the next base page too, by LRU.
///
/// # Errors
/// [`LabError::Failed`] where it is not known to have a TLB for such pages.
pub(crate) fn walks(page: PageSize, play: impl FnOnce(Sink<'_>)) -> Result<Split, LabError> {
    let impossible = |unfit| LabError::Failed(format!("the TLB cannot be simulated: {unfit}"));
    let shape = I7_6800K.tlb(page).map_err(impossible)?;
    let mut tlb = Levels::tlb(&shape, Policy::Lru).map_err(impossible)?;
    if let Some(model) = I7_6800K.next_page.filter(|_| page == PageSize::Base) {
        tlb = tlb.prefetching(model);
    }
    play(&mut |accesses| tlb.play(accesses));
    Ok(tlb.counts().last)
}
