//! `/proc/<pid>/pagemap`: the state of every page, and the sums of `smaps` computed from it.
//!
//! This module never reads `smaps`, because that read holds the target's mmap lock for a whole
//! mapping at a time. Pages are read in chunks over neighboring mappings, with sleeps between the
//! chunks. A read of `pagemap` holds the lock for one page-table page at a time, and a scan holds
//! it for the range that it walks.

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
    /// Address space to read before a sleep.
    pub chunk: Bytes,
    /// Duration of a sleep.
    pub rest: Duration,
}

impl Pace {
    /// Short reads with sleeps between them, for a running target.
    ///
    /// During a sleep, a thread that waits for the mmap lock has enough time to wake up and take
    /// the lock. With 20 us the thread often fails, and waits until the kernel hands the lock over
    /// after 4 ms.
    pub const POLITE: Pace = Pace { chunk: Bytes::mib(2), rest: Duration::from_micros(60) };

    /// Longer reads, for a single reading of a large process, because one sleep takes as much CPU
    /// time as the reading of 4 MiB. The lock is released after each 2 MiB, but a waiting thread
    /// rarely gets it before the sleep.
    pub const LARGE: Pace = Pace { chunk: Bytes::mib(16), rest: Duration::from_micros(60) };

    /// Reads without sleeps, for a target that is stopped, idle or small.
    pub const FAST: Pace = Pace { chunk: Bytes::mib(16), rest: Duration::ZERO };
}

/// Totals of a reading, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageWalk {
    /// Duration of the longest single system call: the target's mmap lock was not held for longer.
    pub longest_hold_ns: u64,
    /// Sums over the pages of all mappings. The PSS is rounded once, as in `smaps_rollup`, so it
    /// can be more than the sum of the PSS of each mapping.
    pub total: Reading<MappingPages>,
    /// Reason why some huge pages may be counted wrongly as exclusive, or as co-mapped (other
    /// processes also map them): the kernel sets one exclusive bit for a whole huge page, even if a
    /// parent or child process shares only a part of it.
    pub doubt: Option<Absent>,
}

/// Fills in [`Mapping::pages`] of every mapping.
///
/// If the process runs meanwhile, the sums combine pages that were read at different times.
///
/// # Errors
/// [`ProcError::NotPermitted`] where we may not trace the process, [`ProcError::NoSuchProcess`]
/// where it is gone or has no memory any more.
///
/// # Complexity
/// 5 ns for each page of populated address space (Linux 6.18, x86-64). With `PAGEMAP_SCAN`, holes
/// take no time. Without it, pages of holes take as long as populated pages, and mappings above 64
/// GiB are not read.
pub fn read(
    root: &ProcRoot,
    pid: Pid,
    mappings: &mut [Mapping],
    page_size: PageSize,
    pace: &Pace,
) -> Result<PageWalk, ProcError> {
    read_with(&Features::detect(), root, pid, mappings, page_size, pace)
}

/// Like [`read`], but uses only the kernel interfaces that `features` names.
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

/// Walks all mappings. If the pace has no sleeps, two threads divide a large number of mappings
/// between them.
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
