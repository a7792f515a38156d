//! The diagnosis of a machine or of a cgroup: processes and cgroups with signs of trouble, each
//! with the command that finds the cause of the signs.

use pagewise_model::evidence::{
    ActivityPoint, CgroupActivity, CgroupPoint, Evidence, MachinePoint, counter,
};
use pagewise_model::machine_evidence::{MachineEvidence, ProcessActivity};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, NamedFacts, Report, ReportBlock, ReportTable,
    Severity, TableColumn,
};
use pagewise_model::{Bytes, Name, Reading};

use super::ranking::Diagnosis;
use super::report::{DiagnosisOptions, SCHEMA, cost, healthy_fact, report, text_block};
use crate::cells::{float, text, whole};
use crate::explain::fact;

/// A sign of trouble of a process, a cgroup or the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct TroubleSign {
    /// Stable name for programs.
    pub id: &'static str,
    /// Text with the measured values.
    pub words: Vec<CellValue>,
}

impl TroubleSign {
    /// Severity of the sign: kills and imminent kills are critical.
    pub fn severity(&self) -> Severity {
        match self.id {
            "oom-kills" | "near-limit" | "memory-short" => Severity::Critical,
            _ => Severity::Warning,
        }
    }
}

/// A process or cgroup with its signs of trouble.
#[derive(Debug)]
pub struct SuspectOf<'a, T> {
    /// The process or cgroup.
    pub subject: &'a T,
    /// Signs of the process or cgroup; empty if it is healthy.
    pub signs: Vec<TroubleSign>,
}

/// Signs of trouble of a machine or cgroup.
#[derive(Debug)]
pub struct MachineDiagnosis<'a> {
    /// Signs of the machine itself.
    pub machine: Vec<TroubleSign>,
    /// Processes, those with the most signs first.
    pub processes: Vec<SuspectOf<'a, ProcessActivity>>,
    /// Cgroups with at least one sign.
    pub cgroups: Vec<SuspectOf<'a, CgroupActivity>>,
}

impl MachineDiagnosis<'_> {
    /// True if the machine, its processes and its cgroups have no signs.
    pub fn is_healthy(&self) -> bool {
        self.machine.is_empty()
            && self.cgroups.is_empty()
            && self.processes.iter().all(|it| it.signs.is_empty())
    }
}

/// Minimum growth of a process in bytes that is a sign.
const GROWTH: f64 = 4.0 * 1048576.0;
/// Minimum growth rate of a process in bytes per second that is a sign.
const GROWTH_RATE: f64 = 262_144.0;
/// Minimum growth of a process that is a sign, as a share of its private memory.
const GROWTH_SHARE: f64 = 0.01;
/// Minimum number of swapped bytes of a process that is a sign.
const SWAP: Bytes = Bytes::mib(32);
/// Minimum number of swapped bytes that is a sign, as a share of the private memory of the process.
const SWAP_SHARE: f64 = 0.1;
/// Minimum number of major faults per second that shows that the process uses its swapped memory.
const SWAP_FAULTS: f64 = 5.0;
/// Minimum number of major faults per second that is a sign. Each major fault waits for a device:
/// about 0.1 ms for flash memory.
const MAJOR_FAULTS: f64 = 50.0;
/// Minimum number of minor faults per second that is a sign: these faults take some per cent of a
/// CPU.
const MINOR_FAULTS: f64 = 20_000.0;
/// Minimum share of a CPU in the kernel that confirms the cost of the minor faults.
const FAULTS_SYSTEM_SHARE: f64 = 0.1;
/// Minimum memory of one process that is a sign, as a share of the machine's memory.
const MACHINE_SHARE: f64 = 0.5;
/// Minimum memory of a cgroup without page cache that is a sign, as a share of the cgroup's limit.
const LIMIT_SHARE: f64 = 0.9;
/// Minimum pressure in hundredths of a percent that is a sign: tasks waited for memory in 10 % of
/// the time.
const PRESSURE: u64 = 1000;
/// Share of available memory of the machine below which reclaim slows all programs.
const AVAILABLE_SHARE: f64 = 0.05;
/// Minimum number of removed cgroups that is a sign: fewer are normal where containers are started
/// and removed.
const MANY_DYING: u64 = 1000;
/// Minimum rate of swap-in and of swap-out, each in pages per second, that is a sign: memory is
/// swapped out and needed again.
const SWAP_RATE: f64 = 100.0;
/// Maximum number of healthy processes that are listed for a cgroup.
const LISTED: usize = 20;

/// Finds the signs of trouble of a machine or cgroup.
pub fn diagnose_machine(evidence: &MachineEvidence) -> MachineDiagnosis<'_> {
    let total = counter(&evidence.machine[1].meminfo, "MemTotal").map(Bytes);
    let mut processes: Vec<SuspectOf<'_, ProcessActivity>> = evidence
        .processes
        .iter()
        .map(|subject| SuspectOf { subject, signs: process_signs(&subject.points, total) })
        .collect();
    processes.sort_by_key(|it| std::cmp::Reverse(it.signs.len()));
    let cgroups = evidence
        .cgroups
        .iter()
        .map(|subject| SuspectOf { subject, signs: cgroup_signs(subject) })
        .filter(|it| !it.signs.is_empty())
        .collect();
    MachineDiagnosis { machine: machine_signs(&evidence.machine), processes, cgroups }
}

/// Rates of a process between its two readings.
struct ProcessRates {
    /// Change of the anonymous and swapped memory between the readings, in bytes.
    growth: f64,
    growth_rate: f64,
    private: f64,
    swap: Option<Bytes>,
    major: f64,
    minor: f64,
    /// CPU time in the kernel as a share of one CPU.
    system: f64,
}

impl ProcessRates {
    /// Computes the rates; `None` if no time passed between the readings.
    fn between([first, last]: &[ActivityPoint; 2]) -> Option<ProcessRates> {
        let seconds = float(last.at_ns.checked_sub(first.at_ns)?) / 1e9;
        let rate = |value: fn(&ActivityPoint) -> u64| {
            float(value(last).saturating_sub(value(first))) / seconds
        };
        let private = |point: &ActivityPoint| {
            let own = point.anonymous.as_ref().map_or(point.resident, |it| *it);
            float(own.0) + point.swap.as_ref().map_or(0.0, |swap| float(swap.0))
        };
        let growth = private(last) - private(first);
        (seconds > 0.0).then(|| ProcessRates {
            growth,
            growth_rate: growth / seconds,
            private: private(last),
            swap: last.swap.as_ref().ok().copied(),
            major: rate(|point| point.major_faults),
            minor: rate(|point| point.minor_faults),
            system: rate(|point| point.system_ns) / 1e9,
        })
    }
}

fn process_signs(points: &[ActivityPoint; 2], total: Option<Bytes>) -> Vec<TroubleSign> {
    let Some(rates) = ProcessRates::between(points) else { return Vec::new() };
    let mut signs = Vec::new();
    let mut add = |id, is_there: bool, words: Vec<CellValue>| {
        if is_there {
            signs.push(TroubleSign { id, words });
        }
    };
    let is_growing = rates.growth >= GROWTH
        && rates.growth_rate >= GROWTH_RATE
        && rates.growth >= rates.private * GROWTH_SHARE;
    let growth = CellValue::Bytes(whole(rates.growth_rate));
    add("growth", is_growing, vec![text("grows by "), growth, text(" per second")]);
    let swap = rates.swap.unwrap_or_default();
    let is_swapped =
        swap >= SWAP && float(swap.0) >= rates.private * SWAP_SHARE && rates.major >= SWAP_FAULTS;
    let words =
        vec![CellValue::Bytes(swap.0), text(" are swapped out, and the process needs them")];
    add("swap", is_swapped, words);
    let words = vec![CellValue::Rate(rates.major), text(" major page faults per second")];
    add("major-faults", rates.major >= MAJOR_FAULTS, words);
    let is_churning = rates.minor >= MINOR_FAULTS && rates.system >= FAULTS_SYSTEM_SHARE;
    let words = vec![
        CellValue::Rate(rates.minor),
        text(" page faults per second; the kernel takes "),
        CellValue::Share(rates.system),
        text(" of a CPU"),
    ];
    add("page-faults", is_churning, words);
    let share = total.and_then(|total| points[1].resident.fraction_of(total));
    let share = share.filter(|share| *share >= MACHINE_SHARE);
    let words = vec![CellValue::Share(share.unwrap_or(0.0)), text(" of the machine's memory")];
    add("largest", share.is_some(), words);
    signs
}

/// Returns the charged memory without the page cache, which the kernel can drop.
fn kept(point: &CgroupPoint) -> Option<Bytes> {
    let line = |names: [&str; 2]| names.iter().find_map(|name| counter(&point.stat, name));
    let cache = [["total_inactive_file", "inactive_file"], ["total_active_file", "active_file"]];
    let cache: u64 = cache.into_iter().filter_map(line).sum();
    Some(point.usage?.saturating_sub(Bytes(cache)))
}

fn cgroup_signs(cgroup: &CgroupActivity) -> Vec<TroubleSign> {
    let [first, last] = &cgroup.points;
    let mut signs = Vec::new();
    if let (Some(limit), Some(kept)) = (cgroup.limit, kept(last))
        && kept.fraction_of(limit).is_some_and(|share| share >= LIMIT_SHARE)
    {
        let words = vec![
            CellValue::Bytes(kept.0),
            text(" of the limit of "),
            CellValue::Bytes(limit.0),
            text(" are in use beside page cache"),
        ];
        signs.push(TroubleSign { id: "near-limit", words });
    }
    let kills = last.oom_kills.zip(first.oom_kills).map(|(now, before)| now.saturating_sub(before));
    if let Some(kills) = kills.filter(|kills| *kills > 0) {
        let words = vec![CellValue::Count(kills), text(" processes were killed at the limit")];
        signs.push(TroubleSign { id: "oom-kills", words });
    }
    let pressure = last.pressure.filter(|pressure| pressure.some >= PRESSURE);
    signs.extend(pressure.map(|pressure| waiting(pressure.some)));
    signs
}

fn waiting(hundredths: u64) -> TroubleSign {
    let share = CellValue::Share(float(hundredths) / 10_000.0);
    let words = vec![text("tasks waited for memory in "), share, text(" of the last 10 s")];
    TroubleSign { id: "pressure", words }
}

fn machine_signs([first, last]: &[MachinePoint; 2]) -> Vec<TroubleSign> {
    let mut signs = Vec::new();
    let memory = |name| counter(&last.meminfo, name).map(Bytes);
    if let (Some(available), Some(total)) = (memory("MemAvailable"), memory("MemTotal"))
        && available.fraction_of(total).is_some_and(|share| share < AVAILABLE_SHARE)
    {
        let words = vec![
            CellValue::Bytes(available.0),
            text(" of "),
            CellValue::Bytes(total.0),
            text(" are available"),
        ];
        signs.push(TroubleSign { id: "memory-short", words });
    }
    let rate = |name| machine_rate(first, last, name);
    if let (Some(into), Some(out)) = (rate("pswpin"), rate("pswpout"))
        && into >= SWAP_RATE
        && out >= SWAP_RATE
    {
        let words = vec![
            CellValue::Rate(out),
            text(" pages are swapped out and "),
            CellValue::Rate(into),
            text(" swapped in per second"),
        ];
        signs.push(TroubleSign { id: "swapping", words });
    }
    let kills = counter(&last.vmstat, "oom_kill").zip(counter(&first.vmstat, "oom_kill"));
    let kills = kills.map_or(0, |(now, before)| now.saturating_sub(before));
    if kills > 0 {
        let words =
            vec![CellValue::Count(kills), text(" processes were killed for lack of memory")];
        signs.push(TroubleSign { id: "oom-kills", words });
    }
    let dying = last.dying_cgroups.filter(|dying| *dying >= MANY_DYING);
    signs.extend(dying.map(|dying| {
        let words = vec![CellValue::Count(dying), text(" removed cgroups still hold memory")];
        TroubleSign { id: "removed-cgroups", words }
    }));
    let pressure = last.pressure.filter(|pressure| pressure.some >= PRESSURE);
    signs.extend(pressure.map(|pressure| waiting(pressure.some)));
    signs
}

/// Increase of a counter of `/proc/vmstat` per second.
fn machine_rate(first: &MachinePoint, last: &MachinePoint, name: &str) -> Option<f64> {
    let span = last.at_ns.checked_sub(first.at_ns).filter(|span| *span > 0)?;
    let increase = counter(&last.vmstat, name)?.saturating_sub(counter(&first.vmstat, name)?);
    Some(float(increase) * 1e9 / float(span))
}

/// Reports the signs of a machine or cgroup.
pub fn machine_report(evidence: &MachineEvidence, found: &MachineDiagnosis<'_>) -> Report {
    let mut blocks = vec![ReportBlock::Facts(healthy_fact(found.is_healthy()))];
    if found.is_healthy() {
        blocks
            .push(text_block("", vec![text("No process or cgroup has signs of memory trouble.")]));
    }
    blocks.extend(machine_blocks(evidence, found));
    blocks.push(ReportBlock::Facts(cost(&evidence.cost)));
    let title = match &evidence.cgroup {
        Some(name) => vec![text("Diagnosis of cgroup "), CellValue::Name(name.clone())],
        None => vec![text("Diagnosis of the machine")],
    };
    Report { schema: SCHEMA, title, blocks }
}

/// Reports the diagnosis of the largest process of a cgroup, followed by the signs of the cgroup
/// and of its other processes.
pub fn cgroup_report(
    evidence: &MachineEvidence,
    found: &MachineDiagnosis<'_>,
    largest: (&Evidence, &Diagnosis),
    options: &DiagnosisOptions,
) -> Report {
    let (process, diagnosis) = largest;
    let Report { mut blocks, .. } = report(process, diagnosis, options);
    let is_healthy = diagnosis.causes.is_empty() && found.is_healthy();
    if let Some(verdict) = blocks.first_mut() {
        *verdict = ReportBlock::Facts(healthy_fact(is_healthy));
    }
    // The report ends with the cost of both diagnoses, so the cost of the first diagnosis is
    // removed here.
    blocks.pop();
    blocks.extend(machine_blocks(evidence, found));
    blocks.push(ReportBlock::Facts(cost(&evidence.cost)));
    let mut title = vec![text("Diagnosis of cgroup ")];
    title.extend(evidence.cgroup.clone().map(CellValue::Name));
    title.push(text(format!(" and its largest process {}", process.first.process.pid)));
    Report { schema: SCHEMA, title, blocks }
}

/// Returns the blocks about the machine, its processes and its cgroups.
fn machine_blocks(evidence: &MachineEvidence, found: &MachineDiagnosis<'_>) -> Vec<ReportBlock> {
    let mut blocks = vec![ReportBlock::Facts(machine_facts(evidence, found))];
    for sign in &found.machine {
        blocks.push(text_block("Machine", sign.words.clone()));
    }
    let healthy = if evidence.cgroup.is_some() { LISTED } else { 0 };
    let sick = found.processes.iter().filter(|it| !it.signs.is_empty());
    let others = found.processes.iter().filter(|it| it.signs.is_empty()).take(healthy);
    let listed: Vec<_> = sick.chain(others).collect();
    blocks.push(ReportBlock::Table(processes_table(&listed)));
    blocks.push(ReportBlock::Table(cgroups_table(&found.cgroups)));
    if evidence.unreadable > 0 {
        let words = vec![
            CellValue::Count(evidence.unreadable),
            text(" processes could not be read; root can read all."),
        ];
        blocks.push(text_block("Could not be seen", words));
    }
    blocks
}

fn machine_facts(evidence: &MachineEvidence, found: &MachineDiagnosis<'_>) -> NamedFacts {
    let [first, last] = &evidence.machine;
    let memory = |name| counter(&last.meminfo, name).map_or(CellValue::None, CellValue::Bytes);
    let rate = |name| machine_rate(first, last, name).map_or(CellValue::None, CellValue::Rate);
    let pressure = last.pressure.map(|it| CellValue::Share(float(it.some) / 10_000.0));
    let number = |count: usize| CellValue::Count(count as u64);
    NamedFacts {
        key: "machine".into(),
        title: "Machine".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Line,
        facts: vec![
            fact("mem_total", "memory", memory("MemTotal"), ""),
            fact("mem_available", "available", memory("MemAvailable"), ""),
            fact("pressure_some", "pressure", pressure.unwrap_or(CellValue::None), ""),
            fact("swap_in_rate", "pages swapped in", rate("pswpin"), ""),
            fact("swap_out_rate", "pages swapped out", rate("pswpout"), ""),
            fact("processes_seen", "processes", number(evidence.processes.len()), ""),
            fact("cgroups_seen", "cgroups", number(evidence.cgroups.len()), ""),
            fact("signs", "signs", ids(&found.machine), "").for_programs(),
        ],
    }
}

fn ids(signs: &[TroubleSign]) -> CellValue {
    CellValue::List(signs.iter().map(|sign| text(sign.id)).collect())
}

/// Joins the measured values of all signs to one text.
fn words(signs: &[TroubleSign]) -> CellValue {
    let mut all = Vec::new();
    for sign in signs {
        if !all.is_empty() {
            all.push(text("; "));
        }
        all.extend(sign.words.iter().cloned());
    }
    CellValue::Sentence(all)
}

fn processes_table(listed: &[&SuspectOf<'_, ProcessActivity>]) -> ReportTable {
    type Suspect<'a> = SuspectOf<'a, ProcessActivity>;
    let column =
        |key: &'static str, label: &'static str, cell: &dyn Fn(&Suspect<'_>) -> CellValue| {
            TableColumn::new(
                key,
                label,
                ColumnCells::Values(listed.iter().map(|it| cell(it)).collect()),
            )
        };
    let rates = |it: &Suspect<'_>| ProcessRates::between(&it.subject.points);
    let last = |it: &Suspect<'_>| it.subject.points[1].clone();
    let columns = vec![
        column("pid", "PID", &|it| CellValue::Count(it.subject.pid.0.into())),
        column("name", "process", &|it| CellValue::Name(it.subject.name.clone())),
        column("resident", "RES", &|it| CellValue::Bytes(last(it).resident.0)),
        column("growth", "growth", &|it| {
            rates(it).map_or(CellValue::None, |rates| change(rates.growth))
        }),
        column("swap", "swapped", &|it| reading(&last(it).swap)),
        column("major_faults", "major faults", &|it| {
            rates(it).map_or(CellValue::None, |rates| CellValue::Rate(rates.major))
        }),
        programs(column("minor_faults", "minor faults", &|it| {
            rates(it).map_or(CellValue::None, |rates| CellValue::Rate(rates.minor))
        })),
        programs(column("system_share", "kernel", &|it| {
            rates(it).map_or(CellValue::None, |rates| CellValue::Share(rates.system))
        })),
        programs(column("signs", "signs", &|it| ids(&it.signs))),
        column("sentence", "signs", &|it| words(&it.signs)),
        column("next", "next", &|it| text(format!("pagewise diagnose {}", it.subject.pid))),
    ];
    table("processes", "Processes", columns)
}

#[expect(clippy::cast_possible_truncation, reason = "a difference of sizes")]
fn change(bytes: f64) -> CellValue {
    CellValue::Change(bytes as i64)
}

fn reading(reading: &Reading<Bytes>) -> CellValue {
    CellValue::bytes(reading.clone())
}

fn programs(column: TableColumn) -> TableColumn {
    TableColumn { audience: Audience::Programs, ..column }
}

fn table(key: &'static str, title: &'static str, columns: Vec<TableColumn>) -> ReportTable {
    let is_empty = columns.first().is_none_or(|column| column.cells.is_empty());
    ReportTable {
        key: key.into(),
        title: title.into(),
        audience: if is_empty { Audience::Programs } else { Audience::Everyone },
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

fn cgroups_table(found: &[SuspectOf<'_, CgroupActivity>]) -> ReportTable {
    type Suspect<'a> = SuspectOf<'a, CgroupActivity>;
    let column =
        |key: &'static str, label: &'static str, cell: &dyn Fn(&Suspect<'_>) -> CellValue| {
            TableColumn::new(key, label, ColumnCells::Values(found.iter().map(cell).collect()))
        };
    let bytes = |bytes: Option<Bytes>| bytes.map_or(CellValue::None, |it| CellValue::Bytes(it.0));
    let columns = vec![
        column("path", "cgroup", &|it| CellValue::Name(it.subject.path.clone())),
        column("usage", "usage", &|it| bytes(it.subject.points[1].usage)),
        column("limit", "limit", &|it| bytes(it.subject.limit)),
        programs(column("signs", "signs", &|it| ids(&it.signs))),
        column("sentence", "signs", &|it| words(&it.signs)),
        column("next", "next", &|it| CellValue::Name(command_of(&it.subject.path))),
    ];
    table("cgroups", "Cgroups", columns)
}

/// Returns the command that diagnoses a cgroup. The path comes from outside, so it is quoted for a
/// shell unless all its characters are safe.
fn command_of(path: &Name) -> Name {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:@".contains(byte);
    let mut command = b"pagewise diagnose ".to_vec();
    if path.as_bytes().iter().all(is_plain) {
        command.extend_from_slice(path.as_bytes());
    } else {
        command.push(b'\'');
        for byte in path.as_bytes() {
            match byte {
                b'\'' => command.extend_from_slice(b"'\\''"),
                byte => command.push(*byte),
            }
        }
        command.push(b'\'');
    }
    Name::new(&command)
}

#[cfg(test)]
mod tests {
    use pagewise_model::Pid;
    use pagewise_model::evidence::DiagnosisCost;
    use pagewise_model::fragmentation::BootCounter;
    use pagewise_model::machine_evidence::MACHINE_EVIDENCE_VERSION;
    use pagewise_model::settings::Pressure;

    use super::*;

    fn point(seconds: u64, mebibytes: u64) -> ActivityPoint {
        let size = Bytes::mib(mebibytes);
        ActivityPoint {
            at_ns: seconds * 1_000_000_000,
            mapped: size,
            resident: size,
            anonymous: Ok(size),
            file: Ok(Bytes::ZERO),
            shmem: Ok(Bytes::ZERO),
            swap: Ok(Bytes::ZERO),
            peak: Ok(size),
            minor_faults: 0,
            major_faults: 0,
            user_ns: 0,
            system_ns: 0,
            threads: 1,
            file_traffic: Ok(Bytes::ZERO),
            storage_traffic: Ok(Bytes::ZERO),
            memory_writes: Ok(Bytes::ZERO),
            main_thread_waits: Ok(0),
        }
    }

    fn process(pid: u32, points: [ActivityPoint; 2]) -> ProcessActivity {
        ProcessActivity { pid: Pid(pid), name: Name::new(b"x"), points }
    }

    fn evidence(processes: Vec<ProcessActivity>, cgroups: Vec<CgroupActivity>) -> MachineEvidence {
        MachineEvidence {
            pagewise_machine_evidence: MACHINE_EVIDENCE_VERSION,
            cgroup: None,
            machine: [MachinePoint::default(), MachinePoint::default()],
            processes,
            unreadable: 0,
            cgroups,
            cost: DiagnosisCost::default(),
        }
    }

    #[test]
    fn processes_that_grow_or_miss_swapped_memory_have_signs_and_others_have_none() {
        let mut swapped = [point(0, 100), point(10, 100)];
        (swapped[1].swap, swapped[1].major_faults) = (Ok(Bytes::mib(50)), 100);
        swapped[0].swap = Ok(Bytes::mib(50));
        let mut idle = swapped.clone();
        idle[1].major_faults = 0;
        let all = evidence(
            vec![
                process(1, [point(0, 100), point(10, 110)]),
                process(2, swapped),
                process(3, idle),
                process(4, [point(0, 100), point(10, 101)]),
                process(5, [point(10, 100), point(10, 900)]),
            ],
            Vec::new(),
        );
        let found = diagnose_machine(&all);
        let signs = |pid| {
            let of = found.processes.iter().find(|it| it.subject.pid == Pid(pid)).unwrap();
            of.signs.iter().map(|sign| sign.id).collect::<Vec<_>>()
        };
        assert_eq!(signs(1), ["growth"]);
        assert_eq!(signs(2), ["swap"]);
        assert!(signs(3).is_empty() && signs(4).is_empty() && signs(5).is_empty());
        assert!(!found.is_healthy());
    }

    #[test]
    fn page_cache_does_not_bring_a_cgroup_near_its_limit() {
        let cgroup = |cache: u64| {
            let stat = vec![
                BootCounter { name: Name::new(b"total_inactive_file"), count: cache << 20 },
                BootCounter { name: Name::new(b"inactive_file"), count: 1 },
            ];
            let point = CgroupPoint { usage: Some(Bytes::mib(99)), stat, ..CgroupPoint::default() };
            CgroupActivity {
                path: Name::new(b"/a b"),
                limited: Name::new(b"/sys/fs/cgroup/a b"),
                version: 1,
                limit: Some(Bytes::mib(100)),
                swap_limit: None,
                points: [point.clone(), point],
            }
        };
        let mut waiting = cgroup(50);
        waiting.points[1].pressure = Some(Pressure { some: 2000, full: 0 });
        waiting.points[0].oom_kills = Some(1);
        waiting.points[1].oom_kills = Some(2);
        let all = evidence(Vec::new(), vec![cgroup(50), cgroup(0), waiting]);
        let found = diagnose_machine(&all);
        let signs: Vec<Vec<&str>> =
            found.cgroups.iter().map(|it| it.signs.iter().map(|sign| sign.id).collect()).collect();
        assert_eq!(signs, [vec!["near-limit"], vec!["oom-kills", "pressure"]]);
        assert_eq!(command_of(&Name::new(b"/a'b")), Name::new(b"pagewise diagnose '/a'\\''b'"));
    }
}
