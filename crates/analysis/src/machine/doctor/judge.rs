//! Verdicts on the values of settings: one function for each check. Without a profile, only values
//! that cost latency or memory under every profile are judged.

use pagewise_model::Bytes;
use pagewise_model::report::CellValue;
use pagewise_model::settings::{CgroupSettings, SwapArea};

use super::WorkloadProfile::{Density, Latency};
use super::outcome::{Judged, SettingCase, word};
use crate::cgroup_limit::raised_limit;

/// Minimum used share of a cgroup's limit for a note.
const CGROUP_FULL: f64 = 0.8;
/// Minimum used share of a cgroup's limit for a warning: the kernel is about to reclaim memory of
/// the cgroup.
const CGROUP_BURSTING: f64 = 0.95;
/// Minimum number of swapped bytes that the verdict on a cgroup mentions.
const SWAPPED: Bytes = Bytes::mib(1);
/// Minimum number of TLB shootdowns per second for a note (`SHOOTDOWNS`) and for a warning
/// (`MANY_SHOOTDOWNS`) under profile `Latency`.
const SHOOTDOWNS: f64 = 1_000.0;
const MANY_SHOOTDOWNS: f64 = 20_000.0;
/// The kernel's default of `vm.max_map_count`.
const MAPS: u64 = 65_530;
/// Minimum number of threads for which the arenas of malloc take notable memory.
const MANY_THREADS: u64 = 16;

/// Accepts any value: the value is for information only.
pub(super) fn informative(_: &SettingCase<'_>) -> Judged {
    Judged::ok()
}

pub(super) fn thp_enabled(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "always" if case.is_for(Density) => {
            Judged::warn("Every program gets them, asked or not, and sparse ones grow many times.").write("madvise")
        }
        "always" => {
            Judged::note("Every program gets them, asked or not; `pagewise thp PID` measures what that costs one.")
                .write("madvise")
        }
        "never" if !case.is_for(Density) => {
            Judged::note("Not even programs that ask get any.").write("madvise")
        }
        _ => Judged::ok(),
    }
}

/// True if transparent huge pages are set to `never`, so that the settings of their allocation have
/// no effect.
fn is_without_thp(case: &SettingCase<'_>) -> bool {
    let enabled = case.subject.settings.file("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_some_and(|enabled| *enabled == Ok("never".into()))
}

pub(super) fn thp_defrag(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        _ if is_without_thp(case) => Judged::ok(),
        "always" if !case.is_for(Density) => {
            Judged::warn("Any fault may wait for compaction.").write("defer+madvise")
        }
        "always" => Judged::note("Any fault may wait for compaction.").write("defer+madvise"),
        "madvise" | "defer+madvise" if case.is_for(Latency) => {
            Judged::note("Faults wait for compaction where programs asked for huge pages.")
                .write("defer")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn thp_shmem_enabled(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "always" | "force" => {
            Judged::note("A file smaller than a huge page occupies a whole huge page.")
                .write("within_size")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn thp_shrink_underused(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "0" if !case.is_for(Latency) => {
            Judged::note("Sparse huge pages keep their zero pages.").write("1")
        }
        _ => Judged::ok(),
    }
}

/// Judges values with which khugepaged may fill half of a huge page or more with zeros.
pub(super) fn max_ptes_none(case: &SettingCase<'_>) -> Judged {
    let settings = case.subject.settings;
    let Some((none, huge)) = case.number().zip(settings.huge_size.clone().ok()) else {
        return Judged::ok();
    };
    let pages = settings.page_size.count(huge);
    let eighth = (pages / 8).to_string();
    let all = none.saturating_add(1) >= pages;
    let because = if all {
        "One touched page is enough, and splitting of underused huge pages is off at this value."
    } else {
        "Half of a huge page or more may be memory that was never used."
    };
    match none >= pages / 2 && !is_without_thp(case) {
        true if case.is_for(Density) => Judged::warn(because).write(eighth),
        true if case.is_for(Latency) => Judged::ok(),
        true if all => Judged::note(because).write(eighth),
        _ => Judged::ok(),
    }
}

pub(super) fn khugepaged_defrag(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "1" if case.is_for(Latency) => {
            Judged::note("It moves pages of programs while they run.").write("0")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn scan_sleep(case: &SettingCase<'_>) -> Judged {
    match case.number() {
        Some(0..1000) => Judged::note("khugepaged scans all but without rest.").write("10000"),
        _ => Judged::ok(),
    }
}

pub(super) fn thp_size(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "always" if case.is_for(Density) => {
            Judged::note("Programs get it unasked.").write("madvise")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn swap(case: &SettingCase<'_>) -> Judged {
    let areas = case.subject.settings.swaps.as_deref().unwrap_or_default();
    match areas {
        [] if case.is_for(Density) => {
            Judged::note("No swap: anonymous memory that is never touched cannot leave RAM.")
        }
        [_, ..] if case.is_for(Latency) => {
            let off = areas.iter().map(|area| command("swapoff", area)).collect::<Option<Vec<_>>>();
            let on =
                areas.iter().map(|area| command(&swapon(area), area)).collect::<Option<Vec<_>>>();
            Judged::note("Swapped pages are read back from disk at a page fault.")
                .run(off.map(|all| all.join("; ")), on.map(|all| all.join("; ")))
        }
        _ => Judged::ok(),
    }
}

/// Returns the command that enables a swap area again. The kernel assigns negative priorities; a
/// command cannot request them.
fn swapon(area: &SwapArea) -> String {
    if area.priority < 0 { "swapon".into() } else { format!("swapon -p {}", area.priority) }
}

fn command(command: &str, area: &SwapArea) -> Option<String> {
    word(area.path.as_bytes()).map(|path| format!("{command} {path}"))
}

pub(super) fn swap_used(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Bytes(1..) if !case.is_for(Density) => {
            Judged::note("Its first touches will wait for the disk.")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn swappiness(case: &SettingCase<'_>) -> Judged {
    match (case.subject.has_swap(), case.number()) {
        (Ok(true), Some(11..)) if case.is_for(Latency) => {
            Judged::note("Anonymous memory goes to swap while page cache could be dropped.")
                .write("1")
        }
        (Ok(true), Some(0..60)) if case.is_for(Density) => Judged::note(
            "Anonymous memory that is never touched stays in RAM at the cost of page cache.",
        )
        .write("60"),
        _ => Judged::ok(),
    }
}

pub(super) fn zswap(case: &SettingCase<'_>) -> Judged {
    match (case.subject.has_swap(), case.text()) {
        (Ok(true), "N" | "0") if case.is_for(Density) => {
            Judged::note("Swapped pages go to the disk uncompressed.").write("Y")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn overcommit(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "1" => Judged::note("Nothing is refused; when memory runs out, a process is killed.")
            .write("0"),
        _ => Judged::ok(),
    }
}

pub(super) fn commit_headroom(case: &SettingCase<'_>) -> Judged {
    let is_strict = case.subject.number("/proc/sys/vm/overcommit_memory") == Some(2);
    let limit = case.subject.settings.commit_limit.as_ref().map_or(0, |limit| limit.0);
    let tenth = i64::try_from(limit / 10).unwrap_or(i64::MAX);
    match case.value {
        CellValue::Change(headroom) if is_strict && *headroom < tenth => Judged::warn(
            "Less than a tenth of what may be promised is left, and the limit is strict.",
        ),
        _ => Judged::ok(),
    }
}

pub(super) fn numa_balancing(case: &SettingCase<'_>) -> Judged {
    let one_node = case.subject.settings.nodes == Ok(1);
    match case.text() {
        "" | "0" => Judged::ok(),
        _ if one_node => Judged::ok(),
        _ if case.is_for(Latency) => Judged::warn("It is on.").write("0"),
        _ if case.is_for(Density) => Judged::ok(),
        _ => Judged::note("It is on.").write("0"),
    }
}

pub(super) fn ksm(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "1" if case.is_for(Latency) => Judged::warn("It runs.").write("0"),
        "0" if case.is_for(Density) => Judged::note(
            "It does not run; it would help only programs that use madvise(MADV_MERGEABLE).",
        )
        .write("1"),
        _ => Judged::ok(),
    }
}

pub(super) fn page_table_levels(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Count(5) if case.is_for(Latency) => Judged::note("Walks are a level longer.")
            .run(
                Some("add no5lvl to the kernel's command line and reboot".into()),
                Some("remove no5lvl from the kernel command line and reboot".into()),
            ),
        _ => Judged::ok(),
    }
}

pub(super) fn max_map_count(case: &SettingCase<'_>) -> Judged {
    let Some(limit) = case.number() else { return Judged::ok() };
    let mappings = case.subject.target().and_then(|target| {
        target.mappings.as_ref().map(|mappings| mappings.len() as u64).map_err(Clone::clone)
    });
    let double = limit.saturating_mul(2).min(i32::MAX as u64).to_string();
    match mappings {
        Ok(have) if have >= limit - limit / 10 => {
            Judged::warn(format!("The process has {have}.")).write(double)
        }
        Ok(have) if have >= limit / 2 => {
            Judged::note(format!("The process has {have}.")).write(double)
        }
        _ if limit < MAPS => {
            Judged::note("It is below the kernel's default.").write(MAPS.to_string())
        }
        _ => Judged::ok(),
    }
}

pub(super) fn zone_reclaim(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "" | "0" => Judged::ok(),
        _ if case.is_for(Latency) => {
            Judged::warn("Allocations reclaim while other nodes have free memory.").write("0")
        }
        _ => Judged::note("Allocations reclaim while other nodes have free memory.").write("0"),
    }
}

pub(super) fn watermark_scale(case: &SettingCase<'_>) -> Judged {
    match case.number() {
        Some(0..50) if case.is_for(Latency) => {
            Judged::note("kswapd begins late: in a burst programs reclaim themselves.").write("100")
        }
        Some(101..) if case.is_for(Density) => {
            Judged::note("More than a hundredth of memory is kept free.").write("10")
        }
        Some(501..) if !case.is_for(Latency) => {
            Judged::note("More than a twentieth of memory is kept free.").write("10")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn min_free(case: &SettingCase<'_>) -> Judged {
    let total = case.subject.settings.mem_total.as_ref().map_or(0, |total| total.0 >> 10);
    match case.number() {
        _ if total == 0 => Judged::ok(),
        Some(kept) if kept > total / 20 => {
            Judged::note("More than a twentieth of memory is kept free.")
                .write((total / 200).to_string())
        }
        Some(kept) if case.is_for(Latency) && kept < total / 1000 => Judged::note(
            "Less than a thousandth of memory is kept free: a burst of allocations waits.",
        )
        .write((total / 200).to_string()),
        _ => Judged::ok(),
    }
}

pub(super) fn cgroup_limit(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Text(_) if case.is_for(Density) => {
            Judged::note("No limit: one program can use all memory.")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn cgroup_used(case: &SettingCase<'_>) -> Judged {
    let CellValue::Share(used) = case.value else { return Judged::ok() };
    let Some(cgroup) = cgroup_of(case) else { return Judged::ok() };
    let (change, undo) = raise_limit(cgroup).unzip();
    let swapped = cgroup.swapped.clone().unwrap_or_default();
    let because = |words: &str| match swapped >= SWAPPED {
        true => format!("{words} {} MiB of it are in swap.", swapped.0 >> 20),
        false => words.to_owned(),
    };
    match *used {
        CGROUP_BURSTING.. => Judged::warn(because("It is all but used up.")).run(change, undo),
        CGROUP_FULL.. => Judged::note(because("Little is left.")).run(change, undo),
        _ => Judged::ok(),
    }
}

fn cgroup_of<'a>(case: &SettingCase<'a>) -> Option<&'a CgroupSettings> {
    case.subject.process().ok()?.cgroup.as_ref().ok()
}

/// Returns the command that raises a cgroup's limit, and the command that restores the limit.
fn raise_limit(cgroup: &CgroupSettings) -> Option<(String, String)> {
    let (limit, file) = (cgroup.limit?, word(cgroup.limit_file.as_bytes())?);
    let swapped = cgroup.swapped.clone().unwrap_or_default();
    let usage = cgroup.usage.clone().unwrap_or_default();
    let raised = raised_limit(limit, usage + swapped);
    let write = |limit: Bytes, file| format!("echo {} > {file}", limit.0);
    let (change, undo) = (write(raised, file), write(limit, file));
    match &cgroup.with_swap {
        // The kernel refuses a memory limit above the combined limit of memory and swap.
        Some((name, both)) if *both < raised => {
            let name = word(name.as_bytes())?;
            let first = write(raised, name);
            Some((format!("{first}; {change}"), format!("{undo}; {}", write(*both, name))))
        }
        _ => Some((change, undo)),
    }
}

pub(super) fn pressure_some(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Share(0.1..) => Judged::warn("Programs wait for memory."),
        CellValue::Share(0.01..) => Judged::note("Programs wait for memory now and then."),
        CellValue::Share(0.001..) if case.is_for(Latency) => {
            Judged::note("Programs wait for memory now and then.")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn pressure_full(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Share(0.01..) => Judged::warn("At times nothing runs for want of memory."),
        _ => Judged::ok(),
    }
}

pub(super) fn memlock_limit(case: &SettingCase<'_>) -> Judged {
    let limits = case.subject.target().ok().and_then(|target| {
        let limits = target.limits.as_ref().ok()?;
        Some((target.process.pid, limits.locked))
    });
    match (case.value, limits) {
        (CellValue::Bytes(_), Some((pid, limit))) if case.is_for(Latency) => {
            let word = |bound: Option<u64>| bound.map_or("unlimited".to_owned(), |n| n.to_string());
            let set = |bounds: String| Some(format!("prlimit --pid {pid} --memlock={bounds}"));
            Judged::note("mlockall may fail.").run(
                set("unlimited".into()),
                set(format!("{}:{}", word(limit.soft), word(limit.hard))),
            )
        }
        _ => Judged::ok(),
    }
}

pub(super) fn locked(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Bytes(0) if case.is_for(Latency) => Judged::note("None is."),
        _ => Judged::ok(),
    }
}

pub(super) fn malloc_environment(case: &SettingCase<'_>) -> Judged {
    let CellValue::Text(_) = case.value else { return Judged::ok() };
    let threads = case.subject.target().map_or(0, |target| target.process.threads);
    let started =
        |with: &str| (Some(format!("start it with {with}")), Some("start it without".into()));
    if case.is_for(Latency) {
        let tunables = "GLIBC_TUNABLES=glibc.malloc.trim_threshold=18446744073709551615:glibc.malloc.mmap_max=0";
        let (change, undo) = started(tunables);
        return Judged::note(
            "glibc's malloc gives memory back to the kernel, and pays faults to get it again.",
        )
        .run(change, undo);
    }
    if case.is_for(Density) && threads >= MANY_THREADS {
        let (change, undo) = started("MALLOC_ARENA_MAX=2");
        return Judged::note(format!(
            "{threads} threads may have glibc's malloc keep up to 8 arenas for each CPU."
        ))
        .run(change, undo);
    }
    Judged::ok()
}

pub(super) fn tlb_shootdowns(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Rate(MANY_SHOOTDOWNS..) if case.is_for(Latency) => {
            Judged::warn("There are many.")
        }
        CellValue::Rate(MANY_SHOOTDOWNS..) => Judged::note("There are many."),
        CellValue::Rate(SHOOTDOWNS..) if case.is_for(Latency) => Judged::note("There are some."),
        _ => Judged::ok(),
    }
}

pub(super) fn perf_event_paranoid(case: &SettingCase<'_>) -> Judged {
    let allowed = case.subject.settings.ours.as_ref().is_ok_and(|ours| ours.perfmon);
    match case.text().parse::<i64>() {
        Ok(2..) if !allowed => {
            Judged::note("pagewise may not count events of the kernel as this user.").write("1")
        }
        _ => Judged::ok(),
    }
}

pub(super) fn ptrace_scope(case: &SettingCase<'_>) -> Judged {
    let allowed = case.subject.settings.ours.as_ref().is_ok_and(|ours| ours.ptrace);
    match case.text() {
        "" | "0" => Judged::ok(),
        "3" => Judged::note("Nobody may trace, and that lasts until the next boot."),
        _ if allowed => Judged::ok(),
        _ => Judged::note("pagewise may not read processes that it did not start.").write("0"),
    }
}

pub(super) fn lockdown(case: &SettingCase<'_>) -> Judged {
    match case.text() {
        "integrity" | "confidentiality" => Judged::note("Only a boot without lockdown= ends it."),
        _ => Judged::ok(),
    }
}

pub(super) fn capability_of_ours(case: &SettingCase<'_>) -> Judged {
    match case.value {
        CellValue::Flag(false) => Judged::note("pagewise does not have it.")
            .run(Some("run pagewise with sudo".into()), Some("run it without".into())),
        _ => Judged::ok(),
    }
}
