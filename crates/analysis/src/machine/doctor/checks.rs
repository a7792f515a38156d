//! The table of checks: the source, the judging function and the relevance of each setting.

use pagewise_model::report::CellValue;
use pagewise_model::settings::{Capabilities, Pressure};
use pagewise_model::{Absent, Bytes, Mapping, Name, Reading};

use super::judge;
use super::outcome::{DoctorSubject, Judged, SettingCase};

/// One setting to check.
pub(super) struct Check {
    /// A stable name.
    pub(super) id: &'static str,
    /// Name for people.
    pub(super) label: &'static str,
    /// Source of its value.
    pub(super) source: SettingSource,
    /// Function that judges the value for the profile.
    pub(super) judge: fn(&SettingCase<'_>) -> Judged,
    /// Effect of the setting, regardless of its value.
    pub(super) why: &'static str,
}

/// Source of a value.
pub(super) enum SettingSource {
    /// A file that contains only the value, so writing the value back restores it.
    File(&'static str),
    /// A function that reads the value from the subject.
    Of(fn(&DoctorSubject<'_>) -> Reading<CellValue>),
}

/// Reasons for which a value is missing.
pub(super) struct WhyNot;

impl WhyNot {
    pub(super) fn no_target() -> Absent {
        Absent::NotCollected("name a TARGET".into())
    }

    pub(super) fn not_asked() -> Absent {
        Absent::NotCollected("it was not read".into())
    }
}

/// The files that the table needs, by their path on a live system.
pub fn files() -> Vec<&'static str> {
    let file = |check: &Check| match check.source {
        SettingSource::File(path) => Some(path),
        SettingSource::Of(_) => None,
    };
    CHECKS.iter().filter_map(file).collect()
}

macro_rules! checks {
    ($($id:literal $label:literal $source:expr, $judge:ident, $why:literal;)*) => {
        /// Every check but those of single sizes of huge pages.
        pub(super) const CHECKS: &[Check] = &[$(Check {
            id: $id,
            label: $label,
            source: $source,
            judge: judge::$judge,
            why: $why,
        },)*];
    };
}

use SettingSource::{File, Of};

checks! {
    "thp_enabled" "transparent huge pages"
        File("/sys/kernel/mm/transparent_hugepage/enabled"), thp_enabled,
        "Huge pages save TLB misses where memory is used densely and multiply it where it is used sparsely.";
    "thp_defrag" "huge pages: defrag"
        File("/sys/kernel/mm/transparent_hugepage/defrag"), thp_defrag,
        "It decides if a page fault waits while the kernel moves pages to make a huge page.";
    "thp_shmem_enabled" "huge pages: tmpfs"
        File("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), thp_shmem_enabled,
        "Shared memory in huge pages saves TLB misses; files smaller than one waste the rest.";
    "thp_shrink_underused" "huge pages: split unused"
        File("/sys/kernel/mm/transparent_hugepage/shrink_underused"), thp_shrink_underused,
        "When memory is short, huge pages with more than max_ptes_none zero pages are split and these freed.";
    "khugepaged_max_ptes_none" "khugepaged max_ptes_none"
        File("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"), max_ptes_none,
        "So many pages of a range may be untouched and khugepaged still makes it one huge page, which is then all resident.";
    "khugepaged_defrag" "khugepaged: defrag"
        File("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag"), khugepaged_defrag,
        "khugepaged may move pages of running programs to make huge pages; a program waits at the next touch of such a page.";
    "khugepaged_scan_sleep_millisecs" "khugepaged: scan rest"
        File("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs"), scan_sleep,
        "Each collapse holds the memory map of its process and flushes TLBs.";
    "swap" "swap space"
        Of(swap), swap,
        "A page in swap costs a disk read at its next touch; without swap, anonymous memory that is never touched stays in RAM.";
    "swap_used" "swap in use"
        Of(swap_used), swap_used,
        "Swap in use shows that memory was short at some time; swapped pages are read back at a page fault.";
    "swappiness" "swappiness"
        File("/proc/sys/vm/swappiness"), swappiness,
        "The higher, the sooner anonymous memory is swapped rather than page cache dropped.";
    "zswap_enabled" "zswap"
        File("/sys/module/zswap/parameters/enabled"), zswap,
        "Pages to swap are first kept compressed in RAM, which costs CPU time and saves disk I/O.";
    "overcommit_memory" "overcommit"
        File("/proc/sys/vm/overcommit_memory"), overcommit,
        "It decides whether too large an allocation fails at once (2), only if absurd (0), or never (1), with the OOM killer later.";
    "commit_headroom" "commit headroom"
        Of(commit_headroom), commit_headroom,
        "CommitLimit - Committed_AS: under strict overcommit malloc, fork and mmap fail when it is used up.";
    "numa_balancing" "NUMA balancing"
        File("/proc/sys/kernel/numa_balancing"), numa_balancing,
        "The kernel unmaps pages periodically to find out which node touches them: page faults and TLB shootdowns that no program caused.";
    "ksm_run" "KSM"
        File("/sys/kernel/mm/ksm/run"), ksm,
        "Equal pages of programs that request it are merged; scanning costs CPU time, and a write to a merged page faults and copies.";
    "page_table_levels" "page-table levels"
        Of(page_table_levels), page_table_levels,
        "Each TLB miss walks them; a fifth is of use only above 128 TiB of address space.";
    "max_map_count" "max_map_count"
        File("/proc/sys/vm/max_map_count"), max_map_count,
        "Largest number of mappings of a process: above it, mmap, munmap and mprotect fail with ENOMEM, even if memory is free.";
    "zone_reclaim_mode" "zone reclaim"
        File("/proc/sys/vm/zone_reclaim_mode"), zone_reclaim,
        "If set, an allocation reclaims memory of its own node before it uses free memory of another node.";
    "watermark_scale_factor" "watermark_scale_factor"
        File("/proc/sys/vm/watermark_scale_factor"), watermark_scale,
        "Distance between the watermarks of kswapd, in 1/10000 of memory: if it is too small, programs have to reclaim themselves.";
    "min_free_kbytes" "min_free_kbytes"
        File("/proc/sys/vm/min_free_kbytes"), min_free,
        "Memory that the kernel keeps free for interrupts and for reclaim itself; programs cannot use it.";
    "cgroup_limit" "cgroup: limit"
        Of(cgroup_limit), cgroup_limit,
        "Near its limit a cgroup reclaims in the programs that allocate, and then kills one.";
    "cgroup_used" "cgroup: used of limit"
        Of(cgroup_used), cgroup_used,
        "Near its limit a cgroup reclaims in the programs that allocate, and then kills one. Page cache counts too.";
    "pressure_some" "memory pressure: some"
        Of(pressure_some), pressure_some,
        "The share of the last ten seconds in which a task waited for memory (PSI).";
    "pressure_full" "memory pressure: all"
        Of(pressure_full), pressure_full,
        "The share of the last ten seconds in which nothing else ran meanwhile (PSI).";
    "cgroup_pressure" "memory pressure: cgroup"
        Of(cgroup_pressure), pressure_some,
        "The share of the last ten seconds in which a task of the cgroup waited for memory (PSI).";
    "memlock_limit" "RLIMIT_MEMLOCK"
        Of(memlock_limit), memlock_limit,
        "So much may be locked into RAM without CAP_IPC_LOCK; mlockall(MCL_FUTURE) makes allocations beyond it fail.";
    "locked" "locked memory"
        Of(locked), locked,
        "Only locked memory is certain to be in RAM at its next touch: mlockall(MCL_CURRENT|MCL_FUTURE).";
    "mlockall" "all mappings locked"
        Of(all_locked), informative,
        "Told by the flag lo of every mapping in smaps.";
    "malloc_environment" "malloc's environment"
        Of(malloc_environment), malloc_environment,
        "From the environment at the start of the process: mallopt calls and other allocators are not considered.";
    "tlb_shootdowns" "TLB shootdowns"
        Of(tlb_shootdowns), tlb_shootdowns,
        "Unmapping or protecting memory of a program on several CPUs interrupts them all and waits: munmap, madvise, KSM, NUMA balancing, compaction.";
    "perf_event_paranoid" "perf_event_paranoid"
        File("/proc/sys/kernel/perf_event_paranoid"), perf_event_paranoid,
        "The higher, the less may be counted without CAP_PERFMON: above 1 no kernel events, above 2 nothing in some kernels.";
    "ptrace_scope" "ptrace_scope"
        File("/proc/sys/kernel/yama/ptrace_scope"), ptrace_scope,
        "Above 0 only ancestors may trace, which hides memory of one's own programs from pagewise too.";
    "kptr_restrict" "kptr_restrict"
        File("/proc/sys/kernel/kptr_restrict"), informative,
        "It hides kernel addresses, which pagewise does not need.";
    "lockdown" "lockdown"
        File("/sys/kernel/security/lockdown"), lockdown,
        "Under integrity or confidentiality parts of the kernel's own view are closed even to root.";
    "cap_sys_ptrace" "CAP_SYS_PTRACE"
        Of(|s| capability(s, |ours| ours.ptrace)), capability_of_ours,
        "Without it pagewise sees only processes of its own user.";
    "cap_sys_admin" "CAP_SYS_ADMIN"
        Of(|s| capability(s, |ours| ours.admin)), capability_of_ours,
        "Without it page frames are hidden: how often a page is mapped, and of what kind it is.";
    "cap_sys_nice" "CAP_SYS_NICE"
        Of(|s| capability(s, |ours| ours.nice)), capability_of_ours,
        "Without it the kernel refuses process_madvise on other processes: `thp --fix` cannot work.";
}

/// The row of one size of huge page.
pub(super) const SIZE: Check = Check {
    id: "thp_enabled_size",
    label: "huge pages of one size",
    source: SettingSource::Of(|_| Err(WhyNot::not_asked())),
    judge: judge::thp_size,
    why: "For `inherit`, transparent_hugepage/enabled decides; a size that is not in use costs nothing.",
};

fn sum(
    areas: &DoctorSubject<'_>,
    size: fn(&pagewise_model::settings::SwapArea) -> Bytes,
) -> Reading<CellValue> {
    let areas = areas.settings.swaps.as_ref().map_err(Clone::clone)?;
    Ok(CellValue::Bytes(areas.iter().map(size).sum::<Bytes>().0))
}

fn swap(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    sum(subject, |area| area.size)
}

fn swap_used(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    sum(subject, |area| area.used)
}

fn commit_headroom(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let (limit, committed) =
        (subject.settings.commit_limit.clone()?, subject.settings.committed.clone()?);
    let headroom = i128::from(limit.0) - i128::from(committed.0);
    let least = if headroom < 0 { i64::MIN } else { i64::MAX };
    Ok(CellValue::Change(i64::try_from(headroom).unwrap_or(least)))
}

fn page_table_levels(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let five = subject.settings.five_levels.clone()?;
    Ok(CellValue::Count(if five { 5 } else { 4 }))
}

fn cgroup_limit(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let cgroup = subject.process()?.cgroup.as_ref().map_err(Clone::clone)?;
    Ok(cgroup.limit.map_or(CellValue::text("none"), |limit| CellValue::Bytes(limit.0)))
}

fn cgroup_used(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let cgroup = subject.process()?.cgroup.as_ref().map_err(Clone::clone)?;
    let share = match cgroup.limit {
        Some(limit) => cgroup.usage.clone()?.fraction_of(limit),
        None => None,
    };
    Ok(share.map_or(CellValue::text("no limit"), CellValue::Share))
}

fn hundredths(value: u64) -> CellValue {
    // Share in percent; the kernel's values are at most 10,000.
    CellValue::Share(f64::from(u32::try_from(value).unwrap_or(u32::MAX)) / 10_000.0)
}

fn pressure_some(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    subject.settings.pressure.clone().map(|Pressure { some, .. }| hundredths(some))
}

fn pressure_full(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    subject.settings.pressure.clone().map(|Pressure { full, .. }| hundredths(full))
}

fn cgroup_pressure(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let cgroup = subject.process()?.cgroup.as_ref().map_err(Clone::clone)?;
    cgroup.pressure.clone().map(|Pressure { some, .. }| hundredths(some))
}

fn memlock_limit(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let limits = subject.target()?.limits.clone()?;
    Ok(limits.locked.soft.map_or(CellValue::text("unlimited"), CellValue::Bytes))
}

fn locked(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let status = subject.target()?.status.as_ref().map_err(Clone::clone)?;
    Ok(CellValue::bytes(status.vm_lck.clone()))
}

/// True if every mapping that can be is locked; only `smaps` shows this.
fn all_locked(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let mappings = subject.target()?.mappings.as_ref().map_err(Clone::clone)?;
    let locked = |mapping: &Mapping| -> Reading<bool> {
        let smaps = mapping.smaps.as_ref().map_err(Clone::clone)?;
        let flags = smaps.flags.as_ref().ok_or(Absent::NotInThisKernel("3.8".into()))?;
        // The kernel's own mappings are never locked: they are I/O, PFN maps or not expandable.
        Ok(flags.has("lo") || flags.has("io") || flags.has("pf") || flags.has("de"))
    };
    // [vsyscall] is in the kernel's half of the address space and not a mapping of the process.
    let own = mappings.iter().filter(|mapping| mapping.range.start >> 63 == 0);
    let all: Reading<Vec<bool>> = own.map(locked).collect();
    Ok(CellValue::Flag(all?.into_iter().all(|locked| locked)))
}

fn malloc_environment(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    subject.target()?;
    let variables = subject.process()?.environment.as_ref().map_err(Clone::clone)?;
    let pair = |name: &Name, value: &Name| {
        CellValue::Name(Name::new(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
    };
    match variables.as_slice() {
        [] => Ok(CellValue::text("nothing set")),
        some => Ok(CellValue::List(some.iter().map(|v| pair(&v.name, &v.value)).collect())),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn tlb_shootdowns(subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    let shootdowns = subject.settings.shootdowns.clone()?;
    Ok(CellValue::Rate(shootdowns.count as f64 * 1e9 / shootdowns.interval_ns.max(1) as f64))
}

fn capability(subject: &DoctorSubject<'_>, has: fn(&Capabilities) -> bool) -> Reading<CellValue> {
    subject.settings.ours.as_ref().map(|ours| CellValue::Flag(has(ours))).map_err(Clone::clone)
}
