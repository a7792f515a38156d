//! Announces or refuses a long stop of a process before the stop.

use std::time::Duration;

use anyhow::bail;
use pagewise_model::Pid;
use pagewise_proc::{ProcRoot, stat};
use pagewise_sys::ptrace::expected_pause;

use crate::output::note;

/// Minimum pause that is announced. The scheduler alone often delays a thread for as long as a
/// shorter pause.
pub(crate) const WORTH_SAYING: Duration = Duration::from_millis(10);

/// Refuses to stop all threads of a process for longer than `max_pause`. Announces a permitted
/// stop.
pub(crate) fn permit(root: &ProcRoot, pid: Pid, max_pause: Duration) -> anyhow::Result<()> {
    let Some((threads, pause)) = expected(root, pid) else { return Ok(()) };
    if pause > max_pause {
        bail!(
            "stopping the {threads} threads of process {pid} takes about {} ms, more than the {} ms of --max-pause",
            milliseconds(pause),
            milliseconds(max_pause)
        );
    }
    announce(root, pid);
    Ok(())
}

/// Prints the time for which all threads of a process are about to be stopped, if this time is
/// longer than [`WORTH_SAYING`].
pub(crate) fn announce(root: &ProcRoot, pid: Pid) {
    if let Some((threads, pause)) = expected(root, pid).filter(|(_, it)| *it > WORTH_SAYING) {
        let pause = milliseconds(pause);
        note(format_args!("stops the {threads} threads of process {pid} for about {pause} ms"));
    }
}

/// Returns the number of threads of a process, and the expected time for which stopping them pauses
/// the process. Returns `None` if the process has ended.
fn expected(root: &ProcRoot, pid: Pid) -> Option<(u64, Duration)> {
    let threads = stat::parse(&root.read(pid, "stat").ok()?).ok()?.threads;
    Some((threads, expected_pause(usize::try_from(threads).unwrap_or(usize::MAX))))
}

/// Returns a time in milliseconds, with microseconds as decimals.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
