//! Figures of a running program that a remedy must lower.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::environment::meminfo;
use super::process::Running;

/// The figures that a label may name in `@improves`.
pub(crate) const NAMES: &[&str] = &[
    "rss",
    "growth",
    "size",
    "data",
    "stack",
    "peak",
    "locked",
    "page-tables",
    "mappings",
    "mappings-growth",
    "deleted-files",
    "writable-code",
    "minor-faults",
    "major-faults",
    "cpu",
    "system-time",
    "step-time",
    "failures",
    "shmem-growth",
    "cgroup-growth",
    "cgroup-failures",
];

/// Rates are measured over this time.
pub(crate) const INTERVAL: Duration = Duration::from_secs(4);

/// Clock ticks in a second: USER_HZ, which is 100 on every architecture that pagewise supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The figure `name` of `running`. Rates are per second, sizes are KiB, and failures are a share of
/// 1000 steps.
pub(crate) fn measure(name: &str, running: &Running) -> Result<f64> {
    if matches!(name, "step-time" | "failures") {
        return running.step_time(INTERVAL).context("the program reported no step");
    }
    let began = Instant::now();
    let first = level(name, running)?;
    thread::sleep(INTERVAL);
    let last = level(name, running)?;
    let is_rate = name.ends_with("-growth")
        || matches!(
            name,
            "growth" | "minor-faults" | "major-faults" | "cpu" | "system-time" | "cgroup-failures"
        );
    Ok(if is_rate { (last - first) / began.elapsed().as_secs_f64() } else { last })
}

/// The present value of a figure: a size, or a count since the start.
fn level(name: &str, running: &Running) -> Result<f64> {
    match name {
        "rss" | "growth" => Ok(status(running, "VmRSS")? + status(running, "VmSwap")?),
        "size" => status(running, "VmSize"),
        "data" => status(running, "VmData"),
        "stack" => status(running, "VmStk"),
        "peak" => status(running, "VmHWM"),
        "locked" => status(running, "VmLck"),
        "page-tables" => status(running, "VmPTE"),
        "mappings" | "mappings-growth" => maps(running, |_| true),
        "deleted-files" => maps(running, |line| line.ends_with(" (deleted)")),
        "writable-code" => maps(running, |line| line.contains(" rwx")),
        "minor-faults" => ticks(running, &[10]),
        "major-faults" => ticks(running, &[12]),
        "cpu" => Ok(ticks(running, &[14, 15, 16, 17])? / TICKS_PER_SECOND * 1000.0),
        "system-time" => Ok(ticks(running, &[15, 17])? / TICKS_PER_SECOND * 1000.0),
        "shmem-growth" => kib(meminfo("Shmem")?),
        "cgroup-growth" => {
            let usage = cgroup_number(running, &["memory.usage_in_bytes", "memory.current"])?;
            kib(usage)
        }
        "cgroup-failures" => cgroup_failures(running),
        _ => bail!("{name} is an unknown figure"),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "an arm of a match whose other arms may fail")]
fn kib(bytes: u64) -> Result<f64> {
    Ok((bytes >> 10) as f64)
}

fn read(running: &Running, file: &str) -> Result<String> {
    let path = format!("/proc/{}/{file}", running.pid);
    let bytes = fs::read(&path).with_context(|| path.clone())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn status(running: &Running, field: &str) -> Result<f64> {
    let text = read(running, "status")?;
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.trim().trim_end_matches(" kB").parse().ok())
        .with_context(|| format!("status has no {field}"))
}

fn maps(running: &Running, is_counted: impl Fn(&str) -> bool) -> Result<f64> {
    Ok(read(running, "maps")?.lines().filter(|line| is_counted(line)).count() as f64)
}

/// The sum of fields of `/proc/PID/stat`, counted from 1 as in proc(5).
fn ticks(running: &Running, fields: &[usize]) -> Result<f64> {
    sum_of_fields(&read(running, "stat")?, fields)
}

/// The CPU time of the children of this process that have ended, in milliseconds.
pub(crate) fn children_cpu_ms() -> Result<u64> {
    let ticks = sum_of_fields(&fs::read_to_string("/proc/self/stat")?, &[16, 17])?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a sum of unsigned counters, far below 2^53"
    )]
    Ok((ticks / TICKS_PER_SECOND * 1000.0) as u64)
}

fn sum_of_fields(stat: &str, fields: &[usize]) -> Result<f64> {
    // The name of the program, field 2, may hold spaces and brackets.
    let (_, rest) = stat.rsplit_once(')').context("stat has no name")?;
    let values: Vec<&str> = rest.split_whitespace().collect();
    fields
        .iter()
        .map(|field| {
            let value = values.get(field - 3).context("stat is too short")?;
            value.parse::<f64>().context("a field of stat is not a number")
        })
        .sum()
}

fn cgroup_file(running: &Running, names: &[&str]) -> Result<String> {
    let group = running.cgroup.as_ref().context("the program has no cgroup")?;
    names
        .iter()
        .find_map(|name| fs::read_to_string(group.join(name)).ok())
        .with_context(|| format!("{} has no {}", group.display(), names.join(" or ")))
}

fn cgroup_number(running: &Running, names: &[&str]) -> Result<u64> {
    cgroup_file(running, names)?.trim().parse().context("expected a number")
}

/// Allocations that met the limit: `memory.failcnt` of version 1, `max` in `memory.events` of 2.
fn cgroup_failures(running: &Running) -> Result<f64> {
    let text = cgroup_file(running, &["memory.failcnt", "memory.events"])?;
    let count = text.lines().find_map(|line| line.strip_prefix("max ")).unwrap_or(text.trim());
    count.parse().context("expected a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_are_counted_after_the_name() {
        let stat = "12 (a b) c) S 1 12 12 0 -1 4194304 77 0 5 0 20 30 1 2 20 0";
        assert_eq!(sum_of_fields(stat, &[10]).unwrap(), 77.0);
        assert_eq!(sum_of_fields(stat, &[14, 15, 16, 17]).unwrap(), 53.0);
        assert!(sum_of_fields(stat, &[40]).is_err());
    }
}
