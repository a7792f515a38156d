//! Proportional shares that add up: `smaps` rounds each mapping's `Pss` down to a KiB, `smaps_rollup`
//! rounds only the sum.
//!
//! The difference is less than a KiB for each mapping that holds co-mapped pages (pages of one mapper
//! count in full, so they round to nothing lost). It is spread evenly over those mappings, so quadrants
//! and pools add up to the rollup's `Pss` to the byte. Rows of single mappings keep the kernel's number.

use pagewise_model::{Bytes, Counter, Mapping, Reading, Snapshot};

/// What rounding to a KiB takes at most, and one more.
const ROUNDING: u64 = Bytes::kib(1).0;

/// The shares of a snapshot's mappings.
#[derive(Clone, Debug)]
pub struct Pss {
    /// What each mapping gets on top of its own `Pss`; empty where nobody gets anything.
    extra: Vec<u16>,
    /// The process's share: the rollup's `Pss`, else the sum of the mappings'.
    pub total: Reading<Bytes>,
    /// Whether rounding cannot explain the difference between the rollup and the sum.
    pub torn: bool,
}

impl Pss {
    /// The share of a mapping: its own, and what the spreading adds.
    pub fn of(&self, index: usize, mapping: &Mapping) -> Reading<Bytes> {
        let extra = self.extra.get(index).copied().unwrap_or(0);
        mapping.pss().map(|pss| pss + Bytes(extra.into()))
    }
}

/// The shares of all mappings.
pub fn shares(snapshot: &Snapshot, mappings: &[Mapping]) -> Pss {
    let sum: Reading<Bytes> = mappings.iter().map(Mapping::pss).sum();
    let rollup = snapshot.rollup.as_ref().map_err(Clone::clone).and_then(|r| r.bytes(Counter::Pss));
    let (Ok(rollup), Ok(sum)) = (&rollup, &sum) else {
        return Pss { extra: Vec::new(), total: rollup.or(sum), torn: false };
    };
    let (rollup, sum) = (*rollup, *sum);
    let co_mapped: Vec<bool> = mappings.iter().map(holds_co_mapped).collect();
    let holders = co_mapped.iter().filter(|&&c| c).count() as u64;
    let lost = rollup.checked_sub(sum).map(|lost| lost.0);
    let torn = lost.is_none_or(|lost| lost != 0 && lost >= holders.saturating_mul(ROUNDING));
    let extra = match lost {
        Some(lost) if !torn && lost > 0 => spread(&co_mapped, lost, holders),
        _ => Vec::new(),
    };
    Pss { extra, total: Ok(rollup), torn }
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
    let shared = |counter| mapping.counter(counter).is_ok_and(|bytes| !bytes.is_zero());
    shared(Counter::SharedClean) || shared(Counter::SharedDirty)
}
