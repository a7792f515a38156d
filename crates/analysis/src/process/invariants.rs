//! Relations that must hold between the files of one process, and their deviations.
//!
//! `/proc` is read file by file while the process runs. Sums over `smaps` that differ from
//! `smaps_rollup` show that the parts are of different times. `statm` may also differ for another
//! reason: kernels count RSS per thread or per CPU and sum it late. A difference in RSS is
//! therefore shown in bytes, but proves nothing.

use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter, Snapshot};

use crate::pools::PoolSums;
use crate::pss::Pss;

/// Result of the checks of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invariants {
    /// Counters whose sum over the mappings differs from `smaps_rollup` (the rollup); absent if the
    /// snapshot has no rollup.
    pub torn: Reading<Vec<SmapsCounter>>,
    /// Difference of `statm` from the mappings, in bytes: positive if `statm` has more.
    pub drift: StatmDrift,
}

/// `statm` minus the sum over the mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatmDrift {
    /// Difference in VIRT. A value other than 0 means that a mapping was added or removed between
    /// two reads.
    pub virt: Reading<i64>,
    /// Difference in RES.
    pub res: Reading<i64>,
}

impl Invariants {
    /// True if the parts of the snapshot are certainly of different times. Absent if the snapshot
    /// has no rollup, except if VIRT differs.
    pub fn is_torn(&self) -> Reading<bool> {
        match &self.torn {
            _ if self.drift.virt.as_ref().is_ok_and(|&drift| drift != 0) => Ok(true),
            Ok(counters) => Ok(!counters.is_empty()),
            Err(absent) => Err(absent.clone()),
        }
    }
}

/// Counters that the rollup sums in whole KiB: a different sum means that the parts were read at
/// different times. `Pss` and its parts are rounded and have a separate check ([`Pss::torn`]).
/// `Referenced` is left out, because it changes at any time.
const SUMMED: [SmapsCounter; 14] = [
    SmapsCounter::Rss,
    SmapsCounter::SharedClean,
    SmapsCounter::SharedDirty,
    SmapsCounter::PrivateClean,
    SmapsCounter::PrivateDirty,
    SmapsCounter::Anonymous,
    SmapsCounter::Ksm,
    SmapsCounter::LazyFree,
    SmapsCounter::AnonHugePages,
    SmapsCounter::ShmemPmdMapped,
    SmapsCounter::FilePmdMapped,
    SmapsCounter::SharedHugetlb,
    SmapsCounter::PrivateHugetlb,
    SmapsCounter::Swap,
];

/// Finds the counters whose sum over the mappings differs from the snapshot's rollup; absent if the
/// snapshot has no rollup.
pub(crate) fn torn(
    snapshot: &Snapshot,
    mappings: &[Mapping],
    pss: &Pss,
) -> Reading<Vec<SmapsCounter>> {
    let rollup = snapshot.rollup.as_ref().map_err(Clone::clone)?;
    let counters: Vec<SmapsCounter> = SUMMED.into_iter().filter(|c| rollup.has(*c)).collect();
    let sums = sums(mappings, &counters);
    let summed = counters.into_iter().zip(sums);
    let torn = summed.filter(|(counter, sum)| rollup.get(*counter) != Ok(*sum));
    Ok(torn.map(|(counter, _)| counter).chain(pss.torn.then_some(SmapsCounter::Pss)).collect())
}

/// Difference of the snapshot's `statm` from the sums over its mappings.
pub(crate) fn drift(snapshot: &Snapshot, total: &PoolSums) -> StatmDrift {
    let statm = || snapshot.statm.as_ref().map_err(Clone::clone);
    StatmDrift {
        virt: statm().map(|s| difference(s.size, total.reserved)),
        res: statm().and_then(|s| Ok(difference(s.resident, total.resident.clone()?))),
    }
}

fn sums(mappings: &[Mapping], counters: &[SmapsCounter]) -> Vec<u64> {
    let mut sums = vec![0u64; counters.len()];
    for smaps in mappings.iter().filter_map(|m| m.smaps.as_ref().ok()) {
        for (sum, counter) in sums.iter_mut().zip(counters) {
            *sum = sum.saturating_add(smaps.get(*counter).unwrap_or(0));
        }
    }
    sums
}

fn difference(a: Bytes, b: Bytes) -> i64 {
    let size = i64::try_from(a.0.abs_diff(b.0)).unwrap_or(i64::MAX);
    if a >= b { size } else { -size }
}
