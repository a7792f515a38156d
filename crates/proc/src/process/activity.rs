//! Counters of a process at one time.

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::process::ProcessStatus;
use pagewise_model::{Bytes, PageSize, Pid, Reading};
use pagewise_sys::system;

use crate::{ProcError, ProcRoot, stat, status};

/// Reads the counters of a process; `at_ns` is the time since the beginning of the observation.
///
/// # Errors
/// [`ProcError::NoSuchProcess`], [`ProcError::NotPermitted`], [`ProcError::Parse`]
pub fn point(
    root: &ProcRoot,
    pid: Pid,
    page_size: PageSize,
    at_ns: u64,
) -> Result<ActivityPoint, ProcError> {
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    let statm = stat::parse_statm(&root.read(pid, "statm")?, page_size)?;
    let status = root.reading(pid, "status").map(|text| status::parse(&text).status);
    let line = |line: fn(&ProcessStatus) -> &Reading<Bytes>| {
        status.as_ref().map_err(Clone::clone).and_then(|status| line(status).clone())
    };
    let tick_ns = 1_000_000_000 / system::ticks_per_second().max(1);
    Ok(ActivityPoint {
        at_ns,
        mapped: statm.size,
        resident: statm.resident,
        anonymous: line(|status| &status.rss_anon),
        file: line(|status| &status.rss_file),
        shmem: line(|status| &status.rss_shmem),
        swap: line(|status| &status.vm_swap),
        peak: line(|status| &status.vm_hwm),
        minor_faults: stat.minor_faults,
        major_faults: stat.major_faults,
        user_ns: stat.user_ticks.saturating_mul(tick_ns),
        system_ns: stat.system_ticks.saturating_mul(tick_ns),
        threads: stat.threads,
    })
}
