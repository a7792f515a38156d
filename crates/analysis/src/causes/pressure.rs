//! Causes: too little memory for the process, its cgroup or the machine.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Remedy, Verdict};
use pagewise_model::evidence::{CgroupActivity, CgroupPoint, Instrument, MemoryFile, OtherProcess};
use pagewise_model::report::CellValue;
use pagewise_model::{Backing, Bytes, Mapping};

use super::signs::{
    ANON, CACHE, CgroupLoad, MachineMemory, MajorFaults, SHMEM, SLAB, behind_growth, bytes,
    bytes_fact, count_fact, known_rate_fact, large_other, rate_fact, stat, steady_growth,
    tight_cgroup,
};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text, whole_bytes};
use crate::cgroup_limit::raised_limit;
use crate::explain::fact;
use crate::pools::PoolKind;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "cgroup-limit",
        title: "cgroup limit",
        meaning: "The memory limit of the cgroup is smaller than the memory that the process uses.",
        needs: &[Instrument::Snapshot, Instrument::Activity, Instrument::Faults],
        excluded_by: "no limit, room below it, or a full cgroup that reclaims page cache for which no process waits",
        source: "Documentation/admin-guide/cgroup-v2.rst, memory.max and memory.events",
        rule: cgroup_limit,
    },
    CauseRow {
        id: "machine-short",
        title: "shortage of the machine",
        meaning: "The machine is short of memory, and another process holds most of it.",
        needs: &[Instrument::Activity],
        excluded_by: "more than 10 % of the machine's memory is available, or a full cgroup",
        source: "proc_meminfo(5), MemAvailable",
        rule: machine_short,
    },
    CauseRow {
        id: "swap-thrash",
        title: "swap thrashing",
        meaning: "The process uses more memory than fits, and waits for pages to come from swap.",
        needs: &[Instrument::Activity, Instrument::Faults],
        excluded_by: "fewer than 25 major faults per second, or most of them on files",
        source: "proc_pid_stat(5), majflt; proc_vmstat, pswpin",
        rule: swap_thrash,
    },
    CauseRow {
        id: "page-cache-charged",
        title: "page cache",
        meaning: "The charged memory of the cgroup grows by page cache or slab, which the kernel can reclaim, or removed files that the process keeps open fill the page cache and the disk.",
        needs: &[Instrument::Activity],
        excluded_by: "no removed files that grow, and one of: the cgroup has no limit, the charged page cache does not grow, private memory grows as fast, or other processes of the cgroup fill the page cache",
        source: "Documentation/admin-guide/cgroup-v2.rst, memory.stat",
        rule: page_cache_charged,
    },
    CauseRow {
        id: "zombie-cgroups",
        title: "removed cgroups",
        meaning: "Removed memory cgroups still hold memory, because page cache is charged to them.",
        needs: &[Instrument::Activity, Instrument::Calls],
        excluded_by: "fewer than 1000 removed cgroups, and not 40 that become more; or a process that neither forks as often nor has cgroups below its own whose memory grows",
        source: "Documentation/admin-guide/cgroup-v2.rst, nr_dying_descendants",
        rule: zombie_cgroups,
    },
];

/// Minimum unreclaimable memory for which the next allocation may fail, as a share of the limit.
const UNRECLAIMABLE: f64 = 0.95;

/// Minimum number of reclaimed pages that are read again per second, for which the limit costs
/// time. Page cache that is read again only much later causes fewer such reads.
const MANY_REFAULTS: f64 = 1000.0;
/// Average time in seconds to read a reclaimed page again: one read of a file fetches many pages.
const REFAULT_SECONDS: f64 = 0.000_03;

fn no_counters(evidence: &CauseEvidence<'_>, what: &'static str) -> Verdict {
    let command = format!("pagewise diagnose {} --for 10s", evidence.pid());
    Verdict::Unknown(what.into(), command.into())
}

fn cgroup_limit(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(load) = CgroupLoad::of(evidence) else { return without_limit(evidence) };
    if !load.is_tight() && load.kills() == 0 {
        let line = vec![bytes(load.usage), text(" of "), bytes(load.limit), text(" charged")];
        return Verdict::RuledOut(line);
    }
    let Some(waits) = MajorFaults::of(evidence) else {
        return no_counters(evidence, "the process was read only once");
    };
    let unreclaimable = unreclaimable(evidence, &load);
    let refaults = load.refaults_per_second(evidence);
    let (cost, confidence, sentence) = if load.kills() > 0 {
        let words = [
            text(" at its limit: the kernel killed "),
            CellValue::Count(load.kills()),
            text(" processes in it."),
        ];
        (CauseCost::of_risk(1.0), Confidence::Certain, words.to_vec())
    } else if waits.are_many() {
        let words = [
            text(" at its limit, and the process waits for "),
            CellValue::Rate(waits.rate),
            text(" major faults: the kernel reclaims pages that the process needs."),
        ];
        let sure = if load.hits().is_some_and(|hits| hits > 0) {
            Confidence::Certain
        } else {
            likely_limit(evidence)
        };
        (CauseCost::of_time(waits.waited()), sure, words.to_vec())
    } else if let Some(refaults) = refaults.filter(|rate| *rate >= MANY_REFAULTS) {
        let words = [
            text(" at its limit, and reads "),
            CellValue::Rate(refaults),
            text(
                " pages again that the kernel has just reclaimed: the limit is smaller than what is used.",
            ),
        ];
        let share = (refaults * REFAULT_SECONDS).min(0.9);
        (CauseCost::of_time(share), Confidence::Certain, words.to_vec())
    } else if unreclaimable >= UNRECLAIMABLE {
        let words = [text(
            " at its limit with memory that cannot be reclaimed: the next allocation gets a process killed.",
        )];
        (CauseCost::of_risk(0.9), likely_limit(evidence), words.to_vec())
    } else {
        return Verdict::RuledOut(vec![
            bytes(load.usage),
            text(" of "),
            bytes(load.limit),
            text(" charged, but only "),
            CellValue::Rate(waits.rate),
            text(" major faults and "),
            refaults.map_or(text("an unknown number of"), CellValue::Rate),
            text(" pages read again: the kernel reclaims page cache that is not needed"),
        ]);
    };
    let mut words =
        vec![text("The cgroup is with "), bytes(load.usage), text(" of "), bytes(load.limit)];
    words.extend(sentence);
    cgroup_cause(evidence, &load, &waits, (cost, confidence, words)).into()
}

fn likely_limit(evidence: &CauseEvidence<'_>) -> Confidence {
    Confidence::Likely(format!("pagewise faults {} --for 10s", evidence.pid()).into())
}

/// Returns the verdict if no limit is known.
fn without_limit(evidence: &CauseEvidence<'_>) -> Verdict {
    let unlimited = || Verdict::RuledOut(vec![text("the cgroup has no memory limit")]);
    match (&evidence.all.cgroup, &evidence.now.cgroup) {
        (Ok(activity), _) if activity.limit.is_none() => unlimited(),
        (_, Ok(cgroup)) if cgroup.limit.is_none() => unlimited(),
        (Ok(_), _) | (_, Ok(_)) => {
            no_counters(evidence, "the usage of the cgroup could not be read")
        }
        (Err(absent), Err(_)) => Verdict::Unknown(
            absent.to_string().into(),
            format!("cat /proc/{}/cgroup", evidence.pid()).into(),
        ),
    }
}

/// Returns the anonymous and shared memory of the cgroup, as a share of the limit: without swap,
/// the kernel cannot reclaim this memory. Returns 0 if the machine has free swap, or if the amount
/// is unknown.
fn unreclaimable(evidence: &CauseEvidence<'_>, load: &CgroupLoad<'_>) -> f64 {
    let has_swap = evidence.now.machine.swap_free.as_ref().is_ok_and(|free| free.0 > 0);
    let charged = load.stat(ANON).map(|anon| anon + load.stat(SHMEM).unwrap_or_default());
    match charged {
        Some(charged) if !has_swap => charged.fraction_of(load.limit).unwrap_or(0.0),
        _ => 0.0,
    }
}

fn cgroup_cause(
    evidence: &CauseEvidence<'_>,
    load: &CgroupLoad<'_>,
    waits: &MajorFaults,
    (cost, confidence, sentence): (CauseCost, Confidence, Vec<CellValue>),
) -> Cause {
    let object = CauseObject::Cgroup(load.path.clone());
    let mut found = cause("cgroup-limit", object, confidence, sentence);
    let factor = behind_growth(evidence);
    found.cost =
        CauseCost { time_share: cost.time_share * factor, risk: cost.risk * factor, ..cost };
    found.evidence = vec![
        bytes_fact("usage", "charged", load.usage),
        bytes_fact("limit", "limit", load.limit),
        rate_fact("major_faults_per_s", "major faults", waits.rate),
    ];
    let swapped = load.swapped().map(|it| bytes_fact("swapped", "in swap", it));
    let hits = load.hits().map(|it| count_fact("limit_hits", "limit hits", it));
    let refaults = load.refaults_per_second(evidence);
    let refaults = known_rate_fact("refaults_per_s", "pages read again", refaults);
    found.evidence.extend([swapped, hits, refaults].into_iter().flatten());
    if let Some(growth) = steady_growth(evidence) {
        found.evidence.push(rate_fact("growth_per_s", "growth of the process in bytes", growth));
    }
    found.now = raise(evidence, load);
    found.code = remedy_code([text(
        "Keep less in memory: bound caches to the limit, and read large files in order instead of mapping them.",
    )]);
    found
}

/// Returns the command that raises the limit above the memory that the cgroup uses.
fn raise(evidence: &CauseEvidence<'_>, load: &CgroupLoad<'_>) -> Option<Remedy> {
    let file = load.limit_file()?;
    // The page cache counts twice, because the size of the file pages that do not fit is unknown.
    let cache = load.stat(CACHE).unwrap_or_default();
    let needed =
        load.usage + load.swapped().unwrap_or_default() + cache.max(mapped_data_files(evidence));
    let raised = raised_limit(load.limit, needed);
    let mut command = format!("echo {} > {file}", raised.0);
    if load.with_swap.is_some_and(|both| both < raised) {
        let both = file.replace("memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
        command = format!("echo {} > {both}; {command}", raised.0);
    }
    let change = [
        text("Raise the limit from "),
        bytes(load.limit),
        text(" to "),
        bytes(raised),
        text(", enough for what is charged and swapped out, and for twice the page cache."),
    ];
    remedy_now(command, change, true)
}

/// Sums the sizes of the mapped files that are neither programs nor libraries. Excludes their
/// resident parts, which are charged already.
fn mapped_data_files(evidence: &CauseEvidence<'_>) -> Bytes {
    let Ok(subject) = evidence.subject else { return Bytes::ZERO };
    let is_data = |(index, mapping): &(usize, &Mapping)| {
        subject.pools.pool_of(*index).kind == PoolKind::File && mapping.backing() == Backing::File
    };
    let missing = |(_, mapping): (usize, &Mapping)| {
        Bytes(mapping.size().0.saturating_sub(mapping.rss().unwrap_or_default().0))
    };
    let sizes: Bytes = subject.mappings.iter().enumerate().filter(is_data).map(missing).sum();
    let total = MachineMemory::of(evidence).map(|memory| memory.total);
    total.map_or(sizes, |total| sizes.min(Bytes(total.0 / 2)))
}

/// True if the process waits for pages of its private memory, or if missing counters cannot exclude
/// this.
fn waits_for_swap(waits: &MajorFaults, evidence: &CauseEvidence<'_>) -> bool {
    let is_swapping = evidence.vmstat_rate("pswpin").is_none_or(|rate| rate > 0.0);
    waits.are_many() && waits.in_files.is_none_or(|share| share < 0.5) && is_swapping
}

fn machine_short(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(memory) = MachineMemory::of(evidence) else {
        return no_counters(evidence, "the memory of the machine could not be read");
    };
    if !memory.is_short() {
        return Verdict::RuledOut(vec![
            bytes(memory.available),
            text(" of "),
            bytes(memory.total),
            text(" available"),
        ]);
    }
    if tight_cgroup(evidence).is_some() {
        return Verdict::RuledOut(vec![text("the limit of the cgroup explains the reclaim")]);
    }
    let Some(other) = large_other(evidence, &memory) else {
        return Verdict::RuledOut(vec![text("no other process holds a quarter of the memory")]);
    };
    short_cause(evidence, &memory, other).into()
}

fn short_cause(
    evidence: &CauseEvidence<'_>,
    memory: &MachineMemory,
    other: &OtherProcess,
) -> Cause {
    let sentence = vec![
        text("Only "),
        bytes(memory.available),
        text(" of the machine's "),
        bytes(memory.total),
        text(" are available, and "),
        CellValue::Name(other.name.clone()),
        text(format!(" ({}) holds ", other.pid)),
        bytes(other.resident),
        text("."),
    ];
    let object = CauseObject::Process(other.pid, other.name.clone());
    let check = format!("pagewise diagnose {}", other.pid);
    let mut found = cause("machine-short", object, Confidence::Likely(check.into()), sentence);
    let waited =
        MajorFaults::of(evidence).filter(MajorFaults::are_many).map_or(0.0, |it| it.waited());
    found.cost = CauseCost { time_share: waited, risk: 0.5, ..CauseCost::default() };
    found.evidence = vec![
        bytes_fact("available", "available", memory.available),
        bytes_fact("other_resident", "RES of the other process", other.resident),
        fact("other_growth", "its growth", CellValue::Change(other.growth), ""),
    ];
    found.now = remedy_now(
        "",
        [text(format!(
            "Limit process {0} by a memory cgroup, or restart it. `pagewise diagnose {0}` finds why it is large.",
            other.pid
        ))],
        true,
    );
    found.code = remedy_code([text(
        "Give each service a memory cgroup with a limit, so that one cannot take the memory of the others.",
    )]);
    found
}

fn swap_thrash(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(waits) = MajorFaults::of(evidence) else {
        return no_counters(evidence, "the process was read only once");
    };
    if !waits_for_swap(&waits, evidence) {
        return Verdict::RuledOut(vec![
            CellValue::Rate(waits.rate),
            text(" major faults, "),
            waits.in_files.map_or(text("none of them recorded"), CellValue::Share),
            text(if waits.in_files.is_some() { " of them on files" } else { "" }),
        ]);
    }
    if let Some(load) = tight_cgroup(evidence) {
        let line = vec![text("the limit of the cgroup explains it: "), bytes(load.limit)];
        return Verdict::RuledOut(line);
    }
    if let Some(paged_out) =
        evidence.calling_function(|row| row.call == "madvise" && row.detail == MADV_PAGEOUT)
    {
        return paged_out_by_itself(&waits, paged_out.object()).into();
    }
    let memory = MachineMemory::of(evidence).filter(MachineMemory::is_short);
    if let Some(other) = memory.and_then(|memory| large_other(evidence, &memory)) {
        let name = CellValue::Name(other.name.clone());
        return Verdict::RuledOut(vec![text("the memory is held by another process: "), name]);
    }
    thrash_cause(evidence, &waits).into()
}

/// Value of the `advice` argument of `madvise` for MADV_PAGEOUT.
const MADV_PAGEOUT: u64 = 21;

fn paged_out_by_itself(waits: &MajorFaults, object: CauseObject) -> Cause {
    let sentence = vec![
        text("The program sends pages to swap with MADV_PAGEOUT and reads them back: "),
        CellValue::Rate(waits.rate),
        text(" major faults."),
    ];
    let mut found = cause("swap-thrash", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_time(waits.waited());
    found.evidence = vec![rate_fact("major_faults_per_s", "major faults", waits.rate)];
    found.code = remedy_code([text(
        "Page out only memory that is not used for minutes, or remove the call.",
    )]);
    found
}

fn thrash_cause(evidence: &CauseEvidence<'_>, waits: &MajorFaults) -> Cause {
    let swapped = evidence.all.activity.last().and_then(|last| last.swap.clone().ok());
    let resident = evidence.resident().unwrap_or_default();
    let mut sentence = vec![
        text("The process waits for "),
        CellValue::Rate(waits.rate),
        text(" pages from swap: its "),
        bytes(resident + swapped.unwrap_or_default()),
        text(" do not fit"),
    ];
    if let Some(swapped) = swapped {
        sentence.extend([text(", and "), bytes(swapped), text(" are in swap")]);
    }
    sentence.push(text("."));
    let check = format!("pagewise faults {} --for 10s", evidence.pid());
    let sure = match waits.in_files {
        Some(_) => Confidence::Certain,
        None => Confidence::Likely(check.into()),
    };
    let mut found = cause("swap-thrash", CauseObject::Machine, sure, sentence);
    found.cost = CauseCost::of_time(waits.waited() * behind_growth(evidence));
    found.evidence = vec![
        rate_fact("major_faults_per_s", "major faults", waits.rate),
        bytes_fact("resident", "RES", resident),
    ];
    let swapped = swapped.map(|it| bytes_fact("swapped", "in swap", it));
    let swap_ins = known_rate_fact(
        "machine_swap_ins_per_s",
        "pages from swap on the machine",
        evidence.vmstat_rate("pswpin"),
    );
    found.evidence.extend(swapped.into_iter().chain(swap_ins));
    // The remedy is neither to disable swap, because the kernel would then kill the process, nor to
    // lock its memory, because locked memory cannot be reclaimed.
    found.now = remedy_now(
        "",
        [text(
            "Stop or move another process (`pagewise ps --sort pss` lists the largest), or add memory: this process needs \
             what is in swap.",
        )],
        true,
    );
    found.code = remedy_code([text(
        "Reduce the working set: bound caches, process data in parts, and keep hot data together.",
    )]);
    found
}

/// Minimum growth of the charged page cache and slab in bytes per second.
const CACHE_GROWTH_PER_SECOND: f64 = 1024.0 * 1024.0;
/// Minimum share of page cache and slab in the growth of the charge.
const MOSTLY_CACHE: f64 = 0.8;
/// Minimum file traffic of the process, as a share of the growth, for which the process causes the
/// growth.
const OWN_PART: f64 = 0.25;

fn page_cache_charged(evidence: &CauseEvidence<'_>) -> Verdict {
    if let Some(file) = growing_removed_file(evidence) {
        return removed_file_cause(evidence, file).into();
    }
    let activity = match &evidence.all.cgroup {
        Ok(activity) => activity,
        Err(absent) => {
            let command = format!("pagewise diagnose {} --for 10s", evidence.pid());
            return Verdict::Unknown(absent.to_string().into(), command.into());
        }
    };
    if activity.path.as_bytes() == b"/" {
        return Verdict::NotApplicable;
    }
    if activity.limit.is_none() {
        return Verdict::RuledOut(vec![text(
            "the cgroup has no limit that page cache could reach",
        )]);
    }
    let Some(growth) = ChargeGrowth::of(evidence, activity) else {
        return no_counters(evidence, "memory.stat of the cgroup could not be read");
    };
    let is_cache = growth.cache >= CACHE_GROWTH_PER_SECOND
        && growth.cache >= MOSTLY_CACHE * (growth.cache + growth.private.max(0.0));
    if !is_cache || !growth.is_large_part() {
        return Verdict::RuledOut(vec![
            text("page cache and slab grow by "),
            bytes(whole_bytes(growth.cache)),
            text(" per second, private memory by "),
            bytes(whole_bytes(growth.private)),
        ]);
    }
    let traffic = evidence.growth(|point| point.file_traffic.clone().ok());
    if traffic.is_some_and(|traffic| traffic < OWN_PART * growth.cache) {
        return Verdict::RuledOut(vec![
            text("page cache and slab grow by "),
            bytes(whole_bytes(growth.cache)),
            text(" per second, but the process reads and writes "),
            bytes(whole_bytes(traffic.unwrap_or_default())),
            text(" per second: other processes of the cgroup fill them"),
        ]);
    }
    cache_cause(evidence, activity, &growth).into()
}

/// Minimum growth in bytes per second of removed files that is trouble.
const REMOVED_GROWTH: f64 = 256.0 * 1024.0;
/// Minimum size of removed files at the beginning of the observation.
const MIN_REMOVED: Bytes = Bytes::mib(16);

/// Returns the largest group of removed files that grows. A temporary file that doubles within the
/// observation belongs to a task that has just begun, such as a sort.
fn growing_removed_file<'a>(evidence: &CauseEvidence<'a>) -> Option<&'a MemoryFile> {
    let seconds = evidence.seconds()?;
    let is_growing = |file: &&MemoryFile| {
        let growth = file.growth();
        float(growth.0) >= REMOVED_GROWTH * seconds && growth <= file.before
    };
    let removed = evidence.all.memory_files.iter().filter(|file| file.is_removed);
    removed.filter(|file| file.before >= MIN_REMOVED).find(is_growing)
}

fn removed_file_cause(evidence: &CauseEvidence<'_>, file: &MemoryFile) -> Cause {
    let per_second =
        whole_bytes(float(file.growth().0) / evidence.seconds().unwrap_or(1.0).max(0.001));
    let name = CellValue::Name(file.name.clone());
    let sentence = match file.count {
        1 => vec![
            text("The process keeps the removed file "),
            name,
            text(" open, which grows by "),
            bytes(per_second),
            text(" per second: it keeps disk space and fills the page cache."),
        ],
        count => vec![
            text("The process keeps removed files open that grow by "),
            bytes(per_second),
            text(" per second ("),
            CellValue::Count(count),
            text(" of the name "),
            name,
            text(", N stands for numbers): they keep disk space and fill the page cache."),
        ],
    };
    let next = format!("ls -l /proc/{}/fd", evidence.pid());
    let object = CauseObject::File(file.name.clone());
    let mut found = cause("page-cache-charged", object, Confidence::Likely(next.into()), sentence);
    let resident = evidence.resident().unwrap_or_default();
    found.cost = cost_of_cache(file.after, resident + file.after);
    found.evidence = vec![
        bytes_fact("growth_per_s", "growth per second", per_second),
        bytes_fact("size", "size", file.after),
        count_fact("files", "removed files of that name", file.count),
    ];
    found.now = remedy_now(
        "",
        [text("Restart the process: the disk space is free when no process has the files open.")],
        false,
    );
    found.code = remedy_code([text(
        "Close each temporary file after its last use, and bound how many are kept. If the file is a log, reopen it after it was \
         rotated.",
    )]);
    found
}

/// Growth of two parts of a cgroup's charge in bytes per second; `usage` and `cached` are sizes at
/// the end of the observation.
struct ChargeGrowth {
    cache: f64,
    private: f64,
    usage: Bytes,
    cached: Bytes,
}

impl ChargeGrowth {
    fn of(evidence: &CauseEvidence<'_>, activity: &CgroupActivity) -> Option<ChargeGrowth> {
        let seconds = evidence.seconds()?;
        let [first, last] = &activity.points;
        // tmpfs counts as page cache, but the kernel cannot drop it.
        let cached = |point| {
            let cache = stat(point, CACHE)?.0.saturating_sub(stat(point, SHMEM)?.0);
            Some(Bytes(cache) + stat(point, SLAB).unwrap_or_default())
        };
        let private = |point| Some(stat(point, ANON)? + stat(point, SHMEM)?);
        let per_second = |before: Bytes, after: Bytes| (float(after.0) - float(before.0)) / seconds;
        Some(ChargeGrowth {
            cache: per_second(cached(first)?, cached(last)?),
            private: per_second(private(first)?, private(last)?),
            usage: last.usage?,
            cached: cached(last)?,
        })
    }

    fn is_large_part(&self) -> bool {
        self.cached.fraction_of(self.usage).is_some_and(|share| share >= 0.5)
    }
}

/// Returns the cost of page cache as a part of `whole`. The kernel can reclaim page cache, so the
/// cost is low. The cause is reported because people and alerts mistake the growth for a leak.
fn cost_of_cache(cached: Bytes, whole: Bytes) -> CauseCost {
    let share = CauseCost::of_memory(cached, whole);
    CauseCost { memory_share: share.memory_share * 0.3, ..share }
}

fn cache_cause(
    evidence: &CauseEvidence<'_>,
    activity: &CgroupActivity,
    growth: &ChargeGrowth,
) -> Cause {
    let sentence = vec![
        text("The charged memory of the cgroup grows by "),
        bytes(whole_bytes(growth.cache)),
        text(
            " per second of page cache and slab: the kernel reclaims it when memory is short, so the program does not leak.",
        ),
    ];
    let object = CauseObject::Cgroup(activity.path.clone());
    let mut found = cause("page-cache-charged", object, Confidence::Certain, sentence);
    found.cost = cost_of_cache(growth.cached, growth.usage);
    found.evidence = vec![
        bytes_fact("usage", "charged", growth.usage),
        bytes_fact("cached", "page cache and slab", growth.cached),
        bytes_fact("private", "RES", evidence.resident().unwrap_or_default()),
    ];
    found.now = remedy_now(
        "",
        [text("Alert on the `anon` (v1: `rss`) line of memory.stat instead of the usage.")],
        true,
    );
    found.code = remedy_code([text(
        "After writing or reading a large file once, call posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), or use O_DIRECT.",
    )]);
    found
}

/// Minimum number of removed cgroups that is trouble: fewer are normal where containers are started
/// and removed.
const MANY_DYING: u64 = 1000;
/// Minimum number of removed cgroups that is trouble if it grows by at least [`DYING_PER_SECOND`].
const SOME_DYING: u64 = 40;
/// Growth per second of the number of removed cgroups that is trouble: about a thousand per hour.
const DYING_PER_SECOND: f64 = 0.3;
/// Minimum memory in bytes that a removed cgroup keeps: its counters for each CPU.
const PER_DYING: Bytes = Bytes::kib(64);

/// True if the process leaves removed cgroups behind. A service that creates a cgroup for each job
/// shows one of two signs: it forks for each job, or the memory that is charged below its cgroup
/// grows.
fn leaves_cgroups(evidence: &CauseEvidence<'_>, growth: f64) -> bool {
    const MANY_OF_THEM: f64 = 0.5;
    let forks = evidence.all.calls.value().map_or(0.0, |profile| {
        let forks =
            profile.rows.iter().filter(|row| ["fork", "vfork"].contains(&row.call.as_str()));
        float(forks.map(|row| row.count).sum::<u64>()) / (float(profile.took_ns.max(1)) / 1e9)
    });
    let below = evidence.all.cgroup.as_ref().ok().and_then(|activity| {
        let [first, last] = &activity.points;
        Some(charged_below(last)?.0.saturating_sub(charged_below(first)?.0))
    });
    growth > 0.0 && forks >= growth * MANY_OF_THEM || below.is_some_and(|grown| grown > 0)
}

/// Returns the page cache and tmpfs memory that is charged to descendants of the cgroup, including
/// removed ones. `None` in v2, whose sums always include descendants.
fn charged_below(point: &CgroupPoint) -> Option<Bytes> {
    let all = stat(point, &["total_cache"])?;
    Some(all.saturating_sub(stat(point, &["cache"])?))
}

fn zombie_cgroups(evidence: &CauseEvidence<'_>) -> Verdict {
    let [_, last] = &evidence.all.machine;
    let Some(dying) = last.dying_cgroups else {
        let command = "cat /proc/cgroups; find /sys/fs/cgroup/memory -type d | wc -l";
        return Verdict::Unknown(
            "the kernel does not count removed cgroups".into(),
            command.into(),
        );
    };
    let memory = Bytes(PER_DYING.0.saturating_mul(dying));
    let total = MachineMemory::of(evidence).map_or(Bytes::ZERO, |memory| memory.total);
    let growth = evidence.machine_rate(|point| point.dying_cgroups);
    let is_growing = dying >= SOME_DYING && growth.is_some_and(|growth| growth >= DYING_PER_SECOND);
    if dying < MANY_DYING && !is_growing {
        return Verdict::RuledOut(vec![CellValue::Count(dying), text(" removed cgroups")]);
    }
    if !leaves_cgroups(evidence, growth.unwrap_or(0.0)) {
        return Verdict::RuledOut(vec![
            CellValue::Count(dying),
            text(
                " removed cgroups of the machine, but the process does not leave them: see `pagewise diagnose --system`",
            ),
        ]);
    }
    let mut sentence = vec![
        CellValue::Count(dying),
        text(
            " removed cgroups still hold memory, because page cache or tmpfs files are charged to them",
        ),
    ];
    if let Some(growth) = growth {
        sentence.extend([text(", and "), CellValue::Rate(growth), text(" more come")]);
    }
    sentence.push(text("."));
    let check = "cat /sys/fs/cgroup/cgroup.stat";
    let own = evidence.all.cgroup.as_ref().map(|activity| activity.path.clone());
    let object = CauseObject::Cgroup(own.unwrap_or_else(|_| "/".into()));
    let mut found = cause("zombie-cgroups", object, Confidence::Likely(check.into()), sentence);
    let share = CauseCost::of_memory(memory, total);
    found.cost = CauseCost { risk: if is_growing { 0.3 } else { 0.1 }, ..share };
    found.evidence = vec![
        count_fact("dying_cgroups", "removed cgroups", dying),
        bytes_fact("at_least", "at least", memory),
    ];
    found.now = remedy_now(
        "sync; echo 3 > /proc/sys/vm/drop_caches",
        [text(
            "Drop the page cache that keeps them. The next reads come from the disk. Files in tmpfs keep their cgroups until they are removed.",
        )],
        false,
    );
    found.code = remedy_code([text(
        "Reuse cgroups instead of creating one for each job, or empty them before removal: memory.force_empty (v1), \
         memory.reclaim (v2). In tmpfs, remove the files of a job before its cgroup.",
    )]);
    found.into()
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::Evidence;
    use pagewise_model::faults::FaultKind;
    use pagewise_model::{Absent, Pid, Quadrant};

    use super::*;
    use crate::causes::made::{activity, present, verdict};
    use crate::causes::made_recordings::{
        add_major_faults, calls, cgroup, faults, machine, steady,
    };

    const MIB: u64 = 1 << 20;

    /// Returns evidence of a process of 60 MiB in a full cgroup of 64 MiB that reads 2000 pages
    /// from swap.
    fn squeezed() -> Evidence {
        let mut evidence = steady(60 * MIB);
        let stat: &[(&str, u64)] =
            &[("anon", 60 * MIB), ("file", MIB), ("shmem", 0), ("swap", 30 * MIB)];
        evidence.cgroup = Ok(cgroup(Bytes::mib(64), Bytes::mib(63), 500, [stat, stat]));
        evidence.faults = faults(FaultKind::Major, 2000, "", Quadrant::PrivateAnonymous);
        evidence.machine[1] = machine(Bytes::gib(8), Bytes::gib(1).min(Bytes::mib(500)));
        add_major_faults(&mut evidence, 2000);
        evidence
    }

    fn is_ruled_out(evidence: &Evidence, id: &str) -> bool {
        matches!(verdict(evidence, id), Verdict::RuledOut(_))
    }

    #[test]
    fn a_full_cgroup_explains_swapping_and_a_higher_limit_holds_what_is_swapped() {
        let evidence = squeezed();
        let found = present(&evidence, "cgroup-limit");
        assert_eq!(found.object, CauseObject::Cgroup("/service".into()));
        assert_eq!(found.confidence, Confidence::Certain);
        let command = found.now.unwrap().command;
        let limit: u64 = command.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(limit >= 93 * MIB, "{command}");
        assert!(command.ends_with("/sys/fs/cgroup/service/memory.max"), "{command}");
        for symptom in ["swap-thrash", "machine-short", "file-refaults"] {
            assert!(is_ruled_out(&evidence, symptom), "{symptom}");
        }
    }

    #[test]
    fn a_cgroup_full_of_page_cache_is_well() {
        let mut evidence = squeezed();
        add_major_faults(&mut evidence, 0);
        assert!(is_ruled_out(&evidence, "cgroup-limit"));
    }

    #[test]
    fn page_cache_that_is_read_again_and_again_does_not_fit() {
        let mut evidence = squeezed();
        add_major_faults(&mut evidence, 0);
        let stat = |count| {
            [("anon", MIB), ("file", 60 * MIB), ("shmem", 0), ("workingset_refault_file", count)]
        };
        evidence.cgroup = Ok(cgroup(Bytes::mib(64), Bytes::mib(64), 9, [&stat(0), &stat(40_000)]));
        present(&evidence, "cgroup-limit");
        evidence.cgroup = Ok(cgroup(Bytes::mib(64), Bytes::mib(64), 9, [&stat(0), &stat(200)]));
        assert!(is_ruled_out(&evidence, "cgroup-limit"));
    }

    #[test]
    fn growth_of_the_process_outranks_the_limit_that_it_meets() {
        let steady = present(&squeezed(), "cgroup-limit").cost.rank();
        let mut evidence = squeezed();
        evidence.activity = activity((0..17).map(|at| 60 * MIB + at * MIB));
        add_major_faults(&mut evidence, 2000);
        assert!(present(&evidence, "cgroup-limit").cost.rank() < steady * 0.5);
    }

    #[test]
    fn without_a_limit_the_machine_or_the_process_that_fills_it_is_the_cause() {
        let mut evidence = squeezed();
        evidence.cgroup = Ok(CgroupActivity { limit: None, ..evidence.cgroup.unwrap() });
        assert!(is_ruled_out(&evidence, "cgroup-limit"));
        assert_eq!(present(&evidence, "swap-thrash").object, CauseObject::Machine);
        evidence.others.push(OtherProcess {
            pid: Pid(99),
            name: "greedy".into(),
            resident: Bytes::gib(6),
            growth: 0,
            major_faults: 0,
            same_cgroup: false,
        });
        assert!(is_ruled_out(&evidence, "swap-thrash"));
        let found = present(&evidence, "machine-short");
        assert_eq!(found.object, CauseObject::Process(Pid(99), "greedy".into()));
        evidence.machine[1] = machine(Bytes::gib(8), Bytes::gib(4));
        assert!(is_ruled_out(&evidence, "machine-short"));
    }

    #[test]
    fn page_cache_that_grows_is_not_mistaken_for_a_leak() {
        let mut evidence = steady(4 * MIB);
        let stat = |anon, file| [("anon", anon), ("file", file), ("shmem", 0)];
        let grown = |before: [(&str, u64); 3], after: [(&str, u64); 3]| {
            Ok(cgroup(Bytes::gib(1), Bytes::mib(80), 0, [&before, &after]))
        };
        evidence.cgroup = grown(stat(4 * MIB, 40 * MIB), stat(4 * MIB, 76 * MIB));
        present(&evidence, "page-cache-charged");
        let before = evidence.clone();
        // Other processes of the cgroup read and write files.
        evidence.activity.iter_mut().for_each(|point| point.file_traffic = Ok(Bytes::mib(1)));
        assert!(is_ruled_out(&evidence, "page-cache-charged"));
        // An unprivileged user may not read the file traffic of the process.
        let refused = Absent::NotPermitted("root".into());
        evidence.activity.iter_mut().for_each(|it| it.file_traffic = Err(refused.clone()));
        present(&evidence, "page-cache-charged");
        if let Ok(activity) = &mut evidence.cgroup {
            activity.limit = None;
        }
        assert!(is_ruled_out(&evidence, "page-cache-charged"), "the cgroup has no limit");
        evidence = before;
        evidence.cgroup = grown(stat(4 * MIB, 76 * MIB), stat(4 * MIB, 76 * MIB));
        assert!(is_ruled_out(&evidence, "page-cache-charged"));
        evidence.cgroup = grown(stat(4 * MIB, 40 * MIB), stat(40 * MIB, 76 * MIB));
        assert!(is_ruled_out(&evidence, "page-cache-charged"));
    }

    #[test]
    fn removed_files_that_grow_fill_the_page_cache() {
        let with = |before: u64, after: u64, is_removed| {
            let mut evidence = steady(4 * MIB);
            evidence.memory_files = vec![MemoryFile {
                name: "/var/tmp/spool-N.bin".into(),
                before: Bytes::mib(before),
                after: Bytes::mib(after),
                count: 70,
                is_closed: false,
                is_removed,
            }];
            verdict(&evidence, "page-cache-charged")
        };
        let Verdict::Present(found) = with(60, 76, true) else { panic!("they grow") };
        assert_eq!(found.object, CauseObject::File("/var/tmp/spool-N.bin".into()));
        assert!(!matches!(with(60, 60, true), Verdict::Present(_)));
        assert!(!matches!(with(20, 76, true), Verdict::Present(_)), "a task that has just begun");
        assert!(!matches!(with(60, 76, false), Verdict::Present(_)), "files on tmpfs");
    }

    #[test]
    fn a_path_that_a_shell_would_read_otherwise_gets_no_command() {
        let mut evidence = squeezed();
        let activity = evidence.cgroup.unwrap();
        evidence.cgroup = Ok(CgroupActivity { limited: "/a b;$(x)".into(), ..activity });
        assert_eq!(present(&evidence, "cgroup-limit").now, None);
    }

    #[test]
    fn removed_cgroups_are_many_or_become_more() {
        let dying = |before, after, forks| {
            let mut evidence = steady(MIB);
            evidence.machine[0].dying_cgroups = Some(before);
            evidence.machine[1].dying_cgroups = Some(after);
            evidence.calls = calls(&[("fork", 0, forks)], 0);
            evidence
        };
        let id = "zombie-cgroups";
        present(&dying(60, 70, 10), id);
        assert!(is_ruled_out(&dying(70, 70, 10), id));
        // Other processes leave the removed cgroups behind.
        assert!(is_ruled_out(&dying(60, 70, 0), id));
        assert!(is_ruled_out(&dying(5000, 5000, 0), id));
        let mut below = dying(5000, 5000, 0);
        let stat = |all| [("total_cache", all), ("cache", MIB)];
        below.cgroup =
            Ok(cgroup(Bytes::gib(1), Bytes::mib(9), 0, [&stat(2 * MIB), &stat(4 * MIB)]));
        assert_eq!(present(&below, id).object, CauseObject::Cgroup("/service".into()));
    }
}
