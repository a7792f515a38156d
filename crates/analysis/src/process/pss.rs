//! Proportional shares that add up: each mapping's `Pss` is rounded down to a KiB, the process's is
//! summed up first and rounded once.
//!
//! The difference is less than a KiB for each mapping that holds co-mapped pages (pages of one
//! mapper count in full, so rounding loses nothing). It is spread evenly over those mappings, so
//! quadrants and pools add up to the process's `Pss` to the byte. Rows of single mappings keep the
//! kernel's number.

use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter, Snapshot};

/// Rounding down to a KiB loses less than this.
const ROUNDING: u64 = Bytes::kib(1).0;

/// The shares of a snapshot's mappings.
#[derive(Clone, Debug)]
pub struct Pss {
    /// Amount that each mapping receives beyond its own `Pss`; empty if none does.
    extra: Vec<u16>,
    /// The process's share: the rollup's, else the page walk's, else the sum of the mappings'.
    pub total: Reading<Bytes>,
    /// True if rounding cannot explain the difference between the process's share and the sum.
    pub torn: bool,
}

impl Pss {
    /// The share of a mapping: its own, and what the spreading adds.
    pub fn pss_of(&self, index: usize, mapping: &Mapping) -> Reading<Bytes> {
        let extra = self.extra.get(index).copied().unwrap_or(0);
        mapping.pss().map(|pss| pss + Bytes(extra.into()))
    }
}

/// The shares of all mappings.
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

/// The share that was summed up before it was rounded.
fn rounded_once(snapshot: &Snapshot) -> Reading<Bytes> {
    match (&snapshot.rollup, &snapshot.walk) {
        (Ok(rollup), _) => rollup.bytes(SmapsCounter::Pss),
        (Err(_), Ok(walk)) => walk.pss.clone(),
        (Err(absent), Err(_)) => Err(absent.clone()),
    }
}

/// An even part of `lost` for each holder; the first ones get a byte more where it does not divide.
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
