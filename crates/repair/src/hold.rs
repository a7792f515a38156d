//! Forbids huge pages by `madvise(MADV_NOHUGEPAGE)`, which a process can call only for its own
//! memory.

use pagewise_model::{Absent, AddrRange, Reading};
use pagewise_remote::{self as remote, on_tracer_thread};
use pagewise_sys::madvise::Advice;

use crate::{INTERRUPTED, RangeOutcome, RepairConditions, RepairTarget};

/// Number of remote calls in one stop of a thread; the thread runs between stops.
const CALLS: usize = 8;

/// Forbids huge pages in each range by remote calls in a thread of the process. One stop covers at
/// most [`CALLS`] ranges.
pub(crate) fn forbid_huge_pages(
    target: &RepairTarget,
    ranges: &[AddrRange],
    conditions: &RepairConditions<'_>,
    outcome: &mut RangeOutcome,
) -> Reading<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    let target = target.remote().map_err(|error| why(&error))?;
    for some in ranges.chunks(CALLS) {
        if (conditions.is_interrupted)() {
            return Err(Absent::NotCollected(INTERRUPTED.into()));
        }
        let stopped = on_tracer_thread(|| -> Reading<_> {
            let mut thread = target.any_thread().map_err(|error| why(&error))?;
            let calls = some
                .iter()
                .try_for_each(|range| thread.advise(range.start..range.end, Advice::NoHugePage));
            let stopped = thread.release();
            calls.map_err(|error| Absent::NotSupported(error.to_string().into()))?;
            Ok(stopped)
        });
        outcome.stopped_for(stopped?);
    }
    Ok(())
}

/// Converts the error of a remote call to the reason why the call was not made.
pub(crate) fn why(error: &remote::RemoteError) -> Absent {
    match error {
        remote::RemoteError::NotPermitted => Absent::NotPermitted(
            "the right to trace it (CAP_SYS_PTRACE, ptrace_scope), and no other tracer".into(),
        ),
        remote::RemoteError::Gone => Absent::Vanished,
        other => Absent::NotSupported(other.to_string().into()),
    }
}
