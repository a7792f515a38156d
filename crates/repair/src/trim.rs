//! Memory that a process holds and does not use: its allocator is made to release free pages, and
//! its threads to release the unused part of their stacks.

pub mod heap;
pub mod stacks;

use std::time::Duration;

use pagewise_heap::safe_call::{CallRefused, SafeCalls};
use pagewise_model::trim::{MemoryByKind, PartOutcome, SettledProcess};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Reading};
use pagewise_proc::{stat, status};

use crate::{RepairError, RepairTarget};

impl RepairTarget {
    /// Its memory by kind.
    ///
    /// # Errors
    /// As reading its pages.
    pub fn memory_by_kind(&self) -> Result<MemoryByKind, RepairError> {
        let breakdown = self.total()?.breakdown;
        let page_tables = status::parse(&self.read("status")?).status.vm_pte;
        Ok(MemoryByKind { breakdown, page_tables })
    }

    /// Minor and major page faults since the process began.
    ///
    /// # Errors
    /// As reading its `stat`.
    pub fn faults(&self) -> Result<(u64, u64), RepairError> {
        let stat = stat::parse(&self.read("stat")?)?;
        Ok((stat.minor_faults, stat.major_faults))
    }

    /// Memory of the process, and its page faults since `faults` was read, `waited` ago.
    ///
    /// # Errors
    /// As reading its `stat` and its pages.
    pub fn settled(
        &self,
        (minor, major): (u64, u64),
        waited: Duration,
    ) -> Result<SettledProcess, RepairError> {
        let (minor_now, major_now) = self.faults()?;
        Ok(SettledProcess {
            waited_ns: nanoseconds(waited),
            minor_faults: minor_now.saturating_sub(minor),
            major_faults: major_now.saturating_sub(major),
            memory: self.memory_by_kind()?,
        })
    }

    /// Prepares calls of functions of the process.
    ///
    /// # Errors
    /// The reason that no thread of the process may make such calls.
    pub fn safe_calls(&self) -> Reading<SafeCalls> {
        SafeCalls::open(self.pid().0, self.start_ticks()).map_err(|error| absent(&error))
    }
}

/// Why nothing was called.
fn absent(error: &CallRefused) -> Absent {
    match error {
        CallRefused::Remote(error) => crate::hold::why(error),
        other => Absent::NotSupported(other.to_string().into()),
    }
}

/// Measures resident memory around a release.
fn around(
    target: &RepairTarget,
    release: impl FnOnce(&mut PartOutcome) -> Reading<()>,
) -> Result<Reading<PartOutcome>, RepairError> {
    let mut outcome = PartOutcome { rss_before: target.resident()?, ..PartOutcome::default() };
    if let Err(absent) = release(&mut outcome) {
        return Ok(Err(absent));
    }
    outcome.rss_after = target.resident()?;
    Ok(Ok(outcome))
}
