//! Proportional shares (PSS) whose sum is exact: the `Pss` of each mapping is rounded down to a
//! KiB, but the `Pss` of the process is summed first and rounded once.
//!
//! The sum loses less than a KiB for each mapping with co-mapped pages, which other processes also
//! map. Pages that only this process maps count in full, so rounding loses nothing for a mapping
//! without co-mapped pages. The loss is spread evenly over the mappings with co-mapped pages, so
//! the sum over quadrants or pools is exactly the process's `Pss`. Rows of single mappings show the
//! kernel's value.

use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter, Snapshot};

/// Upper bound in bytes of the loss by rounding down to a KiB.
const ROUNDING: u64 = Bytes::kib(1).0;

/// The proportional shares (PSS) of a snapshot's mappings.
#[derive(Clone, Debug)]
pub struct Pss {
    /// Number of bytes that are added to the `Pss` of each mapping; empty if no mapping receives
    /// any.
    extra: Vec<u16>,
    /// The PSS of the process: from `smaps_rollup`, else from the walk of the page tables, else the
    /// sum over the mappings.
    pub total: Reading<Bytes>,
    /// True if rounding cannot explain the difference between the PSS of the process and the sum.
    pub torn: bool,
}

impl Pss {
    /// PSS of a mapping: the kernel's value plus the mapping's part of the loss.
    pub fn pss_of(&self, index: usize, mapping: &Mapping) -> Reading<Bytes> {
        let extra = self.extra.get(index).copied().unwrap_or(0);
        mapping.pss().map(|pss| pss + Bytes(extra.into()))
    }
}

/// Computes the shares of all mappings.
pub fn shares(snapshot: &Snapshot, mappings: &[Mapping]) -> Pss {
    let sum: Reading<Bytes> = mappings.iter().map(Mapping::pss).sum();
    let (total, sum) = match (rounded_once(snapshot), sum) {
        (Ok(total), Ok(sum)) => (total, sum),
        (total, sum) => return Pss { extra: Vec::new(), total: total.or(sum), torn: false },
    };
    if total == sum {
        return Pss { extra: Vec::new(), total: Ok(total), torn: false };
    }
    let co_mapped: Vec<bool> = mappings.iter().map(holds_co_mapped).collect();
    let holders = co_mapped.iter().filter(|&&c| c).count() as u64;
    let lost = total.checked_sub(sum).filter(|lost| lost.0 < holders.saturating_mul(ROUNDING));
    let extra = lost.map(|lost| spread(&co_mapped, lost.0, holders));
    Pss { torn: extra.is_none(), extra: extra.unwrap_or_default(), total: Ok(total) }
}

/// Returns the PSS of the process that was summed before it was rounded.
fn rounded_once(snapshot: &Snapshot) -> Reading<Bytes> {
    match (&snapshot.rollup, &snapshot.walk) {
        (Ok(rollup), _) => rollup.bytes(SmapsCounter::Pss),
        (Err(_), Ok(walk)) => walk.pss.clone(),
        (Err(absent), Err(_)) => Err(absent.clone()),
    }
}

/// Distributes `lost` bytes evenly over the mappings with co-mapped pages, whose number is
/// `holders`. The first of these mappings get the remainder, a byte each.
fn spread(co_mapped: &[bool], lost: u64, holders: u64) -> Vec<u16> {
    let (each, mut over) = (lost / holders, lost % holders);
    let mut share = |&holds: &bool| {
        let more = u64::from(holds && over > 0);
        over -= more;
        let share = if holds { each + more } else { 0 };
        u16::try_from(share).expect("a share is at most the KiB that rounding takes")
    };
    co_mapped.iter().map(&mut share).collect()
}

fn holds_co_mapped(mapping: &Mapping) -> bool {
    match (&mapping.smaps, &mapping.pages) {
        (Err(_), Ok(pages)) => pages.breakdown.exclusive() != pages.breakdown.resident(),
        _ => {
            let shared = |counter| mapping.counter(counter).is_ok_and(|bytes| !bytes.is_zero());
            shared(SmapsCounter::SharedClean) || shared(SmapsCounter::SharedDirty)
        }
    }
}
