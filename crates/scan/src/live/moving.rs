//! A copy of a process that continues to run.

use std::time::{Duration, Instant};

use pagewise_model::{Bytes, Pid};
use pagewise_proc::{ProcRoot, threads};
use pagewise_remote::StopPoint;

use super::{CopyRequest, CopyScope, Prepared, ProcessCopy};
use crate::ScanError;

/// Copies a process without a stop if at most `max_bytes` must be copied. Values can be of
/// different times, so blocks that were allocated or freed meanwhile can appear unreachable or
/// inconsistent. Registers are unknown. The stack pointers of running threads are unknown too, so
/// their whole stacks count as roots.
///
/// # Errors
/// [`ScanError::NoMemory`]; [`ScanError::TooLarge`]; [`ScanError::Grows`]; errors of reading the
/// process.
pub fn copy_moving(
    root: &ProcRoot,
    pid: Pid,
    scope: CopyScope,
    max_bytes: Bytes,
) -> Result<ProcessCopy, ScanError> {
    let request =
        CopyRequest { scope, max_pause: Duration::MAX, busy_code: &[], announce: &|_| {} };
    let listed = threads::read(root, pid).unwrap_or_default();
    let prepared = Prepared::new(root, pid, &request, listed.len(), &mut |_, _| Duration::ZERO)?;
    if prepared.expected.bytes > max_bytes {
        return Err(ScanError::TooLarge { bytes: prepared.expected.bytes, limit: max_bytes });
    }
    let known = listed.iter().filter_map(|thread| {
        let stack = *thread.stack_pointer.as_ref().ok()?;
        let registers = [0; 17];
        Some((
            thread.tid.0,
            StopPoint { instruction: 0, stack, registers, thread_data: 0, call: None },
        ))
    });
    let points: Vec<(u32, StopPoint)> = known.collect();
    let copy = prepared.fill(root, &points, Instant::now(), &request)?;
    let mut copy = copy.ok_or(ScanError::Grows)?;
    copy.release_spare();
    (copy.measured.pause_ns, copy.measured.stops) = (0, 0);
    Ok(copy)
}
