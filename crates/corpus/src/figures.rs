//! Measured figures of a running program that a remedy must lower.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment::meminfo;
use crate::process::Running;

/// The figures that a label may name in `@improves`.
pub const NAMES: &[&str] = &[
    "rss",
    "growth",
    "size",
    "data",
    "stack",
    "stack-share",
    "small-pages",
    "peak",
    "locked",
    "page-tables",
    "mappings",
    "mappings-growth",
    "deleted-files",
    "removed-files",
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
    "removed-cgroups-growth",
];

/// Maximum ratio of the remedied program's figure to the sick program's figure.
const MAX_REMEDIED_SHARE: f64 = 0.7;

/// Returns true if a remedy lowers a figure enough.
pub fn is_improved(sick: f64, remedied: f64) -> bool {
    sick > 0.0 && remedied <= sick * MAX_REMEDIED_SHARE
}

/// Clock ticks in a second: USER_HZ, which is 100 on every architecture that pagewise supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Figures of the work of a program: they fall while the program waits for CPUs.
const WORK: [&str; 3] = ["minor-faults", "cpu", "system-time"];
/// Maximum factor by which a figure is raised for waits for CPUs: above it, the program hardly ran.
const MAX_DEMAND: f64 = 30.0;

/// Returns the figure `name` of `running`, over `interval`. Rates are per second, sizes are in KiB,
/// `step-time` is in nanoseconds, and `failures` is per 1000 steps. The figures in `WORK` are the
/// rates that the program would have if it did not wait for CPUs.
///
/// # Errors
///
/// If a file of the kernel lacks the figure, or the program reports no step.
pub fn measure(name: &str, running: &Running, interval: Duration) -> Result<f64> {
    if matches!(name, "step-time" | "failures") {
        return running.step_time(interval).context("the program reported no step");
    }
    let began = Instant::now();
    let (first, times) = (level(name, running)?, run_queue_times(running));
    thread::sleep(interval);
    let last = level(name, running)?;
    let demand = if WORK.contains(&name) { demand(times, run_queue_times(running)) } else { 1.0 };
    let is_rate = name.ends_with("-growth")
        || matches!(
            name,
            "growth" | "minor-faults" | "major-faults" | "cpu" | "system-time" | "cgroup-failures"
        );
    Ok(if is_rate { (last - first) * demand / began.elapsed().as_secs_f64() } else { last })
}

/// Returns the CPU time, and the time of waits for CPUs, of the threads of a program since they
/// began, in nanoseconds.
fn run_queue_times(running: &Running) -> [f64; 2] {
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid)).into_iter().flatten();
    let times = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let mut words = text.split_whitespace();
        Some([words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?])
    });
    times.fold([0.0; 2], |sum, [ran, waited]| [sum[0] + ran, sum[1] + waited])
}

/// Returns the ratio of the CPU time that a program needed between two readings to the CPU time
/// that it got.
fn demand(before: [f64; 2], after: [f64; 2]) -> f64 {
    let (ran, waited) = (after[0] - before[0], after[1] - before[1]);
    if ran > 0.0 { (1.0 + (waited / ran).max(0.0)).min(MAX_DEMAND) } else { 1.0 }
}

/// Returns the present value of a figure: a size, or a count since the start.
fn level(name: &str, running: &Running) -> Result<f64> {
    match name {
        "rss" | "growth" => Ok(status(running, "VmRSS")? + status(running, "VmSwap")?),
        "size" => status(running, "VmSize"),
        "data" => status(running, "VmData"),
        "stack" => status(running, "VmStk"),
        "stack-share" => Ok(status(running, "VmStk")? / stack_limit(running)?),
        "small-pages" => small_pages(running),
        "peak" => status(running, "VmHWM"),
        "locked" => status(running, "VmLck"),
        "page-tables" => status(running, "VmPTE"),
        "mappings" | "mappings-growth" => maps(running, |_| true),
        "deleted-files" => maps(running, |line| line.ends_with(" (deleted)")),
        "removed-files" => removed_files(running),
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
        "removed-cgroups-growth" => removed_cgroups(),
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

/// Returns the soft limit of the stack in KiB.
fn stack_limit(running: &Running) -> Result<f64> {
    let text = read(running, "limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max stack size"));
    let limit = line.and_then(|line| line.split_whitespace().next()).context("no stack limit")?;
    // A limit that is not a number is `unlimited`.
    let bytes: f64 = limit.parse().unwrap_or(f64::INFINITY);
    Ok(bytes / 1024.0)
}

/// Returns the resident memory that is not in huge pages, in KiB.
fn small_pages(running: &Running) -> Result<f64> {
    let text = read(running, "smaps_rollup")?;
    let [resident, huge] = ["Rss:", "AnonHugePages:"].map(|field| {
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    });
    Ok(resident.context("no Rss")? - huge.context("no AnonHugePages")?)
}

/// Returns the number of memory cgroups (version 1) that were removed and still hold memory.
fn removed_cgroups() -> Result<f64> {
    let text = fs::read_to_string("/proc/cgroups").context("/proc/cgroups")?;
    let line = text.lines().find_map(|line| line.strip_prefix("memory\t"));
    let count = line.and_then(|line| line.split('\t').nth(1)).context("no memory controller")?;
    let count: f64 = count.parse().context("expected a number")?;
    let mut present = 0.0;
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup/memory")];
    while let Some(folder) = folders.pop() {
        present += 1.0;
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    Ok(count - present)
}

/// Returns the number of descriptors of removed files.
fn removed_files(running: &Running) -> Result<f64> {
    let path = format!("/proc/{}/fd", running.pid);
    let links = fs::read_dir(&path).context(path)?.flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    let is_removed = |target: &std::path::PathBuf| {
        target.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")
    };
    Ok(targets.filter(is_removed).count() as f64)
}

fn maps(running: &Running, is_counted: impl Fn(&str) -> bool) -> Result<f64> {
    Ok(read(running, "maps")?.lines().filter(|line| is_counted(line)).count() as f64)
}

/// Returns the sum of fields of `/proc/PID/stat`, counted from 1 as in proc(5).
fn ticks(running: &Running, fields: &[usize]) -> Result<f64> {
    sum_of_fields(&read(running, "stat")?, fields)
}

/// Returns the CPU time of the children of this process that have ended, in milliseconds.
///
/// # Errors
///
/// If `/proc/self/stat` is not as expected.
pub fn children_cpu_ms() -> Result<u64> {
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

/// Returns the number of allocations that met the limit: `memory.failcnt` of version 1, `max` in
/// `memory.events` of version 2.
fn cgroup_failures(running: &Running) -> Result<f64> {
    let text = cgroup_file(running, &["memory.failcnt", "memory.events"])?;
    let count = text.lines().find_map(|line| line.strip_prefix("max ")).unwrap_or(text.trim());
    count.parse().context("expected a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_waits_for_cpus_asks_for_more_than_it_gets() {
        assert_eq!(demand([5.0, 1.0], [15.0, 1.0]), 1.0);
        assert_eq!(demand([5.0, 1.0], [15.0, 31.0]), 4.0);
        assert_eq!(demand([5.0, 1.0], [6.0, 1e9]), MAX_DEMAND);
        assert_eq!(demand([5.0, 1.0], [5.0, 9.0]), 1.0, "threads have ended");
    }

    #[test]
    fn fields_of_stat_are_counted_after_the_name() {
        let stat = "12 (a b) c) S 1 12 12 0 -1 4194304 77 0 5 0 20 30 1 2 20 0";
        assert_eq!(sum_of_fields(stat, &[10]).unwrap(), 77.0);
        assert_eq!(sum_of_fields(stat, &[14, 15, 16, 17]).unwrap(), 53.0);
        assert!(sum_of_fields(stat, &[40]).is_err());
    }
}
