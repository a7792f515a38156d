//! `/proc/<pid>/pagemap`: the state of every page, and the sums of `smaps` computed from it.
//!
//! Never reads `smaps`, which holds the target's mmap lock for a whole mapping at a time.
//! Pages are read in chunks over neighboring mappings, with rests between; a read of
//! `pagemap` holds the lock for one page-table page at a time, a scan for what it walks.

mod census;
pub mod entry;
pub(crate) mod flags;
mod frames;
pub(crate) mod hugetlb;
pub(crate) mod space;
mod tally;
pub(crate) mod walk;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagewise_model::mapping::MappingPages;
use pagewise_model::{Absent, Bytes, Mapping, PageSize, Pid, Reading, parallel};
use pagewise_sys::probe::Features;

use self::census::Trust;
use self::walk::{WalkTotals, Walker};
use crate::{ProcError, ProcRoot};

/// Pace at which a process's page tables may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Address space to read before a rest.
    pub chunk: Bytes,
    /// Length of a rest.
    pub rest: Duration,
}

impl Pace {
    /// Short reads with rests between, for a target that is at work.
    ///
    /// A rest is long enough for a thread that sleeps on the mmap lock to wake up and take it. With
    /// 20 us that often fails, and it waits until the kernel hands the lock over after 4 ms.
    pub const POLITE: Pace = Pace { chunk: Bytes::mib(2), rest: Duration::from_micros(60) };

    /// Longer reads, for one reading of a large process: a rest takes as much CPU time as the
    /// reading of 4 MiB. The lock is released after each 2 MiB, but a waiting thread rarely gets it
    /// before the rest.
    pub const LARGE: Pace = Pace { chunk: Bytes::mib(16), rest: Duration::from_micros(60) };

    /// No rests: for a target that is stopped, idle or small.
    pub const FAST: Pace = Pace { chunk: Bytes::mib(16), rest: Duration::ZERO };
}

/// Totals of a reading, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageWalk {
    /// The longest single system call: the target's mmap lock was held for no longer.
    pub longest_hold_ns: u64,
    /// The pages of all mappings together. Its PSS is rounded once, as in `smaps_rollup`, so it
    /// can be more than the sum over the mappings.
    pub total: Reading<MappingPages>,
    /// Reason why some huge pages may be split wrongly into exclusive and co-mapped: the kernel
    /// sets one exclusive bit for a whole huge page, even if a relative shares only a part.
    pub doubt: Option<Absent>,
}

/// Fills in [`Mapping::pages`] of every mapping.
///
/// A process that runs meanwhile changes under the reading: the sums are of pages seen one after
/// the other, not at one moment.
///
/// # Errors
/// [`ProcError::NotPermitted`] where we may not trace the process, [`ProcError::NoSuchProcess`]
/// where it is gone or has no memory any more.
///
/// # Complexity
/// 5 ns a page of populated address space (Linux 6.18, x86-64); holes are free where the kernel
/// has `PAGEMAP_SCAN`, and else cost the same up to 64 GiB a mapping, above which it is not read.
pub fn read(
    root: &ProcRoot,
    pid: Pid,
    mappings: &mut [Mapping],
    page_size: PageSize,
    pace: &Pace,
) -> Result<PageWalk, ProcError> {
    read_with(&Features::detect(), root, pid, mappings, page_size, pace)
}

/// [`read`] with only those kernel interfaces that `features` names.
///
/// # Errors
/// As [`read`].
pub fn read_with(
    features: &Features,
    root: &ProcRoot,
    pid: Pid,
    mappings: &mut [Mapping],
    page_size: PageSize,
    pace: &Pace,
) -> Result<PageWalk, ProcError> {
    let walker = |trust| Walker::new(features, root, pid, page_size, pace, trust);
    let mut first = walk_all(&walker, Trust::Bits, mappings, pace)?;
    if !(first.is_doubtful() && features.frames) {
        return Ok(first.finish());
    }
    let longest = first.longest();
    first = walk_all(&walker, Trust::Counts, mappings, pace)?;
    first.note_longest(longest);
    Ok(first.finish())
}

/// Walks all mappings: many of them with two threads, if the pace has no rests.
fn walk_all(
    walker: &(impl Fn(Trust) -> Result<Walker, ProcError> + Sync),
    trust: Trust,
    mappings: &mut [Mapping],
    pace: &Pace,
) -> Result<WalkTotals, ProcError> {
    let walk = |mappings: &mut [Mapping]| {
        let mut walker = walker(trust)?;
        walker.walk(mappings)?;
        Ok(walker.into_totals())
    };
    if !pace.rest.is_zero() || mappings.len() < parallel::MIN_ROWS {
        return walk(mappings);
    }
    let (lower, upper) = mappings.split_at_mut(mappings.len() / 2);
    let lower = Mutex::new(lower);
    let (lower, upper) = parallel::both(
        true,
        || walk(&mut lower.lock().unwrap_or_else(PoisonError::into_inner)),
        || walk(upper),
    );
    let mut all = lower?;
    all.merge(upper?);
    Ok(all)
}
