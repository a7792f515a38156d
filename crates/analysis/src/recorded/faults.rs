//! Page faults of a command or a process by kind, by location in the program, by memory and over
//! time; their durations, and advice to avoid them.

mod heap;
pub(crate) mod places;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use pagewise_model::bounds::OTHER_MAPPINGS;
use pagewise_model::faults::{FaultKind, FaultMapping, FaultRecording, FaultRow, FaultSource};
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::report::{
    Audience, Axis, AxisUnit, CellValue, Chart, ChartLine, ColumnCells, Fact, FactsShape, Findings,
    Gaps, Label, NamedFacts, Paragraph, Report, ReportBlock, ReportTable, Scale, TableColumn,
};
use pagewise_model::{Absent, Name, Pid, Quadrant};

use crate::blocks::{
    ended_yet, facts_of, first, folded, folded_remarks, for_people, for_programs, process,
    stacks_cut, table,
};
use crate::cells::{float, share};
use crate::explain::fact;
use crate::findings::{Evidence, find};
use crate::pools::{PoolKind, name_of_nameless, stack_name};
use places::FaultFrames;

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultOptions {
    /// Maximum number of rows of each table; `None` for all.
    pub limit: Option<usize>,
}

/// The faults as a report: `recording`, `totals`, `kinds`, `quadrants`, `functions`, `lines`,
/// `mappings`, `threads`, `stacks` and `time_line`; where the heap was recorded besides, `heap`,
/// `allocations` and `allocation_stacks`.
pub fn faults(recording: &FaultRecording, options: &FaultOptions) -> Report {
    let frames = FaultFrames::from_recording(recording);
    let mut blocks = vec![
        ReportBlock::Facts(recording_facts(recording)),
        ReportBlock::Facts(totals(recording, Audience::Everyone)),
    ];
    blocks.push(ReportBlock::Facts(folded(&recording.folded)));
    let findings = find(Evidence::Faults(recording, &frames));
    blocks.push(ReportBlock::Findings(Findings {
        list: findings,
        none: "Nothing stands out.".into(),
    }));
    blocks.extend(kinds(recording).map(ReportBlock::Table));
    blocks.push(ReportBlock::Table(quadrants(recording)));
    let tables = [
        frames.functions(options),
        frames.lines(options),
        mappings(recording, options),
        threads(recording, options),
    ];
    let mut tables = tables.map(for_programs_if_empty).map(ReportBlock::Table).into_iter();
    blocks.extend(tables.by_ref().take(2));
    blocks.extend(heap::heap(recording, options));
    blocks.extend(tables);
    blocks.extend(tree::tree(&frames, options).map(ReportBlock::Table));
    blocks.push(ReportBlock::Table(for_programs_if_empty(frames.stacks())));
    blocks.extend(rates(recording).map(ReportBlock::Chart));
    blocks.extend(latencies(recording).map(ReportBlock::Chart));
    blocks.push(ReportBlock::Table(time_line(recording)));
    blocks.extend(remarks(recording).into_iter().map(ReportBlock::Text));
    Report { schema: "pagewise.faults/1", title: title(recording), blocks }
}

/// A heading without rows is useless for people.
fn for_programs_if_empty(table: ReportTable) -> ReportTable {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    ReportTable { audience, ..table }
}

fn title(recording: &FaultRecording) -> Vec<CellValue> {
    let mut title = vec![CellValue::text("Page faults of ")];
    if let Some(word) = recording.command.first() {
        title.push(CellValue::Name(Name::new(word.base())));
        title.push(CellValue::text(format!(" ({})", recording.pid)));
    } else {
        let is_it = |thread: &&pagewise_model::faults::FaultThread| thread.tid == recording.pid;
        let name = recording.threads.iter().find(is_it).map(|thread| thread.name.clone());
        title.extend(name.map(CellValue::Name));
        title.push(CellValue::text(format!(" ({})", recording.pid)));
    }
    title
}

/// Parameters and totals of the recording.
fn recording_facts(recording: &FaultRecording) -> NamedFacts {
    let source = match recording.source {
        FaultSource::Tracepoints => "tracepoints",
        FaultSource::Counters => "counters",
    };
    let [pid, command] = process(recording.pid, &recording.command);
    facts_of(
        "recording",
        "",
        FactsShape::Line,
        vec![
            pid,
            command,
            fact("ending", "ended", ended_yet(recording.ending), ""),
            fact("seconds", "after", CellValue::Seconds(recording.took_ns), ""),
            fact("source", "source", CellValue::text(source), "").for_programs(),
            fact("every", "each of", CellValue::Count(recording.every), "")
                .hidden_if(recording.every == 1),
            fact("lost", "LOST", CellValue::Count(recording.lost), "")
                .hidden_if(recording.lost == 0),
            fact("stack_bytes", "stack", CellValue::Bytes(recording.stack_bytes.into()), "")
                .for_programs(),
            stacks_cut(recording.cut),
            fact("page_size", "page", CellValue::Bytes(recording.page_size.bytes()), "")
                .for_programs(),
        ],
    )
}

fn meant(key: &'static str, label: &'static str, value: CellValue) -> Fact {
    fact(key, label, value, crate::explain::meaning(key))
}

/// Sums over all faults.
fn totals(recording: &FaultRecording, audience: Audience) -> NamedFacts {
    let all = recording.count();
    let sum = |fits: &dyn Fn(&FaultRow) -> bool| {
        recording.rows.iter().filter(|row| fits(row)).map(|row| row.count).sum::<u64>()
    };
    let seconds = float(recording.took_ns) / 1e9;
    let rate = if seconds > 0.0 { CellValue::Rate(float(all) / seconds) } else { CellValue::None };
    let usage = |pick: fn(&(u64, u64)) -> u64| {
        CellValue::from_reading(
            recording.usage.as_ref().map(pick).map_err(Clone::clone),
            CellValue::Count,
        )
    };
    let times = recording.latencies.iter().map(|(_, times)| times.sum()).sum();
    let time =
        if recording.latencies.is_empty() { CellValue::None } else { CellValue::Seconds(times) };
    let facts = vec![
        meant("faults", "FAULTS", CellValue::Count(all)),
        meant("user_faults", "user mode", CellValue::Count(sum(&|row| !row.by_kernel))),
        meant(
            "kernel_faults",
            "in system calls",
            kernel_faults(recording, sum(&|row| row.by_kernel)),
        ),
        meant("faults_per_second", "a second", rate),
        meant("faults_major", "major", CellValue::Count(sum(&|row| row.kind == FaultKind::Major))),
        meant("fault_time", "TIME", time).hidden_if(recording.latencies.is_empty()),
        meant(
            "user_faults_counted",
            "counted",
            recording.counted.map_or(CellValue::None, CellValue::Count),
        )
        .hidden_if(recording.every == 1),
        meant("minflt", "minflt", usage(|(minor, _)| *minor)).for_programs(),
        meant("majflt", "majflt", usage(|(_, major)| *major)).for_programs(),
    ];
    NamedFacts { audience, ..facts_of("totals", "", FactsShape::Columns, facts) }
}

/// Faults in the kernel are unknown to users who may not record kernel events.
fn kernel_faults(recording: &FaultRecording, found: u64) -> CellValue {
    let unseen = recording.lacks.iter().find(|lack| is_of_kernel(lack));
    unseen.map_or(CellValue::Count(found), |lack| CellValue::Absent(lack.clone()))
}

fn is_of_kernel(lack: &Absent) -> bool {
    matches!(lack, Absent::NotPermitted(needs) if needs.contains("CAP_PERFMON"))
}

/// Number of faults in the rows that `fits` accepts.
pub(crate) fn count(
    recording: &FaultRecording,
    fits: impl Fn(&FaultRow, Option<&FaultMapping>) -> bool,
) -> u64 {
    let mapping = |row: &FaultRow| recording.mappings.get(row.mapping as usize);
    recording.rows.iter().filter(|row| fits(row, mapping(row))).map(|row| row.count).sum()
}

/// Reason why faults of a kind are unknown; `None` if they are known.
fn untold(recording: &FaultRecording, kind: FaultKind) -> Option<Absent> {
    let needs_tracepoints = matches!(
        kind,
        FaultKind::Zero | FaultKind::CopyOnWrite | FaultKind::WriteProtect | FaultKind::Huge
    );
    (recording.source == FaultSource::Counters && needs_tracepoints)
        .then(|| Absent::NotPermitted("root and a kernel without lockdown=confidentiality (the tracepoint exceptions:page_fault_user)".into()))
}

/// Faults by kind: for people the kinds that occurred, for programs all kinds.
fn kinds(recording: &FaultRecording) -> [ReportTable; 2] {
    let counted = FaultKind::ALL.map(|kind| (kind, count(recording, |row, _| row.kind == kind)));
    let found: Vec<(FaultKind, u64)> =
        counted.into_iter().filter(|(_, count)| *count > 0).collect();
    let people = if found.is_empty() { Audience::Programs } else { Audience::People };
    let mut tables = [
        kinds_table(recording, &found, people),
        kinds_table(recording, &counted, Audience::Programs),
    ];
    tables[0].key = "kinds_found".into();
    if people == Audience::Programs {
        tables[0].columns.clear();
    }
    tables
}

fn kinds_table(
    recording: &FaultRecording,
    kinds: &[(FaultKind, u64)],
    audience: Audience,
) -> ReportTable {
    let all = recording.count();
    let each = || kinds.iter();
    let gaps = || {
        let rows = each().enumerate();
        let gaps = rows.filter_map(|(at, (kind, _))| Some((at, untold(recording, *kind)?)));
        Gaps::Some(gaps.collect())
    };
    let values = |key, label, value: &dyn Fn(&(FaultKind, u64)) -> CellValue| TableColumn {
        gaps: gaps(),
        ..TableColumn::new(key, label, ColumnCells::Values(each().map(value).collect()))
    };
    let times = |kind: FaultKind| {
        recording.latencies.iter().find(|(other, _)| *other == kind).map(|(_, times)| times)
    };
    let percentile = |share: f64| {
        move |times: &TimeHistogram| {
            times.percentile(share).map_or(CellValue::None, CellValue::Nanos)
        }
    };
    let timed = |key, label, value: &dyn Fn(&TimeHistogram) -> CellValue| {
        let cells = each().map(|(kind, _)| times(*kind).map_or(CellValue::None, value)).collect();
        let column = TableColumn::new(key, label, ColumnCells::Values(cells));
        if recording.latencies.is_empty() { for_programs(column) } else { column }
    };
    let labels = each().map(|(kind, _)| Label::from(kind.label())).collect();
    let meanings = each().map(|(kind, _)| Label::from(kind.meaning())).collect();
    let columns = vec![
        for_people(TableColumn::new("kind", "KIND", ColumnCells::Labels(labels))),
        values("faults", "FAULTS", &|(_, count)| CellValue::Count(*count)),
        values("share", "SHARE", &|(_, count)| share(*count, all)),
        timed("median_ns", "MEDIAN", &percentile(0.5)),
        timed("p90_ns", "90 %", &percentile(0.9)),
        timed("p99_ns", "99 %", &percentile(0.99)),
        timed("p999_ns", "99.9 %", &percentile(0.999)),
        timed("longest_ns", "LONGEST", &|times| CellValue::Nanos(times.longest())),
        timed("fault_time", "TIME", &|times| CellValue::Seconds(times.sum())),
        TableColumn {
            audience: Audience::Long,
            ..TableColumn::new("meaning", "MEANING", ColumnCells::Labels(meanings))
        },
    ];
    let keys = each().map(|(kind, _)| Label::from(kind.key())).collect();
    ReportTable { row_keys: Some(keys), ..table("kinds", "By kind", audience, columns) }
}

/// Faults by quadrant of the mapping, with the kinds in each.
fn quadrants(recording: &FaultRecording) -> ReportTable {
    let all = recording.count();
    let rows: Vec<Option<Quadrant>> =
        Quadrant::ALL.into_iter().map(Some).chain(std::iter::once(None)).collect();
    let is_in =
        |mapped: Option<&FaultMapping>, quadrant| mapped.and_then(|it| it.quadrant) == quadrant;
    let sums: Vec<u64> = rows
        .iter()
        .map(|quadrant| count(recording, |_, mapped| is_in(mapped, *quadrant)))
        .collect();
    let labels = rows.iter().map(|it| Label::from(it.map_or("in no mapping", Quadrant::label)));
    let keys = rows.iter().map(|it| Label::from(it.map_or("nowhere", Quadrant::key)));
    let mut columns = vec![
        for_people(TableColumn::new("quadrant", "QUADRANT", ColumnCells::Labels(labels.collect()))),
        TableColumn::new("faults", "FAULTS", ColumnCells::Counts(sums.clone())),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(sums.iter().map(|sum| share(*sum, all)).collect()),
        ),
    ];
    for kind in FaultKind::ALL {
        let of = |quadrant: &Option<Quadrant>| {
            count(recording, |row, mapped| row.kind == kind && is_in(mapped, *quadrant))
        };
        let counts: Vec<u64> = rows.iter().map(of).collect();
        let none = counts.iter().all(|count| *count == 0);
        let column = TableColumn {
            meaning: kind.meaning().into(),
            gaps: untold(recording, kind).map_or(Gaps::None, Gaps::All),
            ..TableColumn::new(kind.key(), brief(kind), ColumnCells::Counts(counts))
        };
        columns.push(if none { for_programs(column) } else { column });
    }
    ReportTable {
        row_keys: Some(keys.collect()),
        note: "By mapping: a page of a private file that was written (copy-on-write) is private and anonymous from then on."
            .into(),
        ..table("quadrants", "By quadrant", Audience::Everyone, columns)
    }
}

/// Short name of a kind, for narrow columns.
fn brief(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Anonymous => "ANON",
        FaultKind::Zero => "ZERO",
        FaultKind::File => "FILE",
        FaultKind::CopyOnWrite => "COPY",
        FaultKind::WriteProtect => "PROTECT",
        FaultKind::Huge => "HUGE",
        FaultKind::Major => "MAJOR",
        FaultKind::Unknown => "UNKNOWN",
    }
}

/// The reason why merged mappings or threads have no value of their own.
fn apart() -> Absent {
    Absent::NotCollected("a higher --memory-limit: they are many".into())
}

/// Threads by the mappings in which their stacks are.
struct ThreadStacks<'a>(BTreeMap<u32, BTreeSet<(Pid, &'a Name)>>);

impl ThreadStacks<'_> {
    fn of_recording(recording: &FaultRecording) -> ThreadStacks<'_> {
        let mut threads = BTreeMap::<u32, BTreeSet<_>>::new();
        for row in recording.rows.iter().filter(|row| row.on_stack) {
            let thread = recording.threads.get(row.thread as usize);
            // Merged threads have no TID.
            let thread = thread.filter(|it| it.tid.0 != 0).map(|it| (it.tid, &it.name));
            threads.entry(row.mapping).or_default().extend(thread);
        }
        ThreadStacks(threads)
    }

    /// Name of a mapping for people: that of the kernel, or that of the thread whose stack it is.
    fn mapping_name(&self, index: usize, mapped: &FaultMapping) -> CellValue {
        match (mapped.quadrant, mapped.name.is_empty()) {
            (None, _) => CellValue::text("in no known mapping"),
            (Some(_), true) => {
                self.stack_name(index).map_or(CellValue::text("[anonymous]"), CellValue::Name)
            }
            (Some(_), false) => CellValue::Name(mapped.name.clone()),
        }
    }

    fn stack_name(&self, index: usize) -> Option<Name> {
        let threads = self.0.get(&u32::try_from(index).ok()?)?;
        let (tid, name) = threads.first()?;
        let pool = stack_name(name, *tid, threads.len() - 1);
        Some(name_of_nameless(PoolKind::ThreadStack, None, &pool))
    }
}

fn mappings(recording: &FaultRecording, options: &FaultOptions) -> ReportTable {
    let mut sums = vec![[0_u64; FaultKind::ALL.len()]; recording.mappings.len()];
    for row in &recording.rows {
        if let Some(sum) = sums.get_mut(row.mapping as usize) {
            sum[row.kind.index()] += row.count;
        }
    }
    let total = |at: usize| sums[at].iter().sum::<u64>();
    let mut order: Vec<usize> = (0..sums.len()).filter(|at| total(*at) > 0).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(total(*at)), *at));
    let (shown, note) = first(&order, options.limit, "--rows");
    let each = || shown.iter().map(|at| (&recording.mappings[*at], *at));
    let stacks = ThreadStacks::of_recording(recording);
    let all = recording.count();
    let most = |at: usize| {
        let kinds = FaultKind::ALL.into_iter().max_by_key(|kind| sums[at][kind.index()]);
        Label::from(kinds.map_or("", FaultKind::label))
    };
    let quadrant = |mapped: &FaultMapping| {
        Label::from(mapped.quadrant.map_or("", |quadrant| quadrant.label()))
    };
    let sums_of_many = || {
        let rows = each().enumerate();
        let rows = rows.filter(|(_, (it, _))| it.name.as_bytes() == OTHER_MAPPINGS.as_bytes());
        Gaps::Some(rows.map(|(at, _)| (at, apart())).collect())
    };
    let columns = vec![
        TableColumn::new(
            "faults",
            "FAULTS",
            ColumnCells::Counts(each().map(|(_, at)| total(at)).collect()),
        ),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(each().map(|(_, at)| share(total(at), all)).collect()),
        ),
        TableColumn::new(
            "most_kind",
            "MOST ARE",
            ColumnCells::Labels(each().map(|(_, at)| most(at)).collect()),
        ),
        TableColumn::new(
            "quadrant",
            "QUADRANT",
            ColumnCells::Labels(each().map(|(mapped, _)| quadrant(mapped)).collect()),
        ),
        TableColumn {
            audience: Audience::Long,
            gaps: sums_of_many(),
            ..TableColumn::new(
                "start",
                "START",
                ColumnCells::Addresses(each().map(|(mapped, _)| mapped.range.start).collect()),
            )
        },
        TableColumn {
            gaps: sums_of_many(),
            ..TableColumn::new(
                "size",
                "SIZE",
                ColumnCells::Bytes(each().map(|(mapped, _)| mapped.range.len().0).collect()),
            )
        },
        TableColumn::new(
            "name",
            "MAPPING",
            ColumnCells::Values(
                each().map(|(mapped, at)| stacks.mapping_name(at, mapped)).collect(),
            ),
        ),
    ];
    ReportTable { note, ..table("mappings", "By mapping", Audience::Everyone, columns) }
}

fn threads(recording: &FaultRecording, options: &FaultOptions) -> ReportTable {
    let mut sums = vec![0_u64; recording.threads.len()];
    for row in &recording.rows {
        if let Some(sum) = sums.get_mut(row.thread as usize) {
            *sum += row.count;
        }
    }
    let mut order: Vec<usize> = (0..sums.len()).filter(|at| sums[*at] > 0).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(sums[*at]), *at));
    let (shown, note) = first(&order, options.limit, "--rows");
    let each = || shown.iter().map(|at| (&recording.threads[*at], sums[*at]));
    let counts = |value: &dyn Fn(&pagewise_model::faults::FaultThread) -> u64| {
        ColumnCells::Counts(each().map(|(thread, _)| value(thread)).collect())
    };
    let all = recording.count();
    let others = || {
        let rows = each().enumerate().filter(|(_, (thread, _))| thread.tid.0 == 0);
        Gaps::Some(rows.map(|(at, _)| (at, apart())).collect())
    };
    let columns = vec![
        TableColumn::new(
            "faults",
            "FAULTS",
            ColumnCells::Counts(each().map(|(_, sum)| sum).collect()),
        ),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(each().map(|(_, sum)| share(sum, all)).collect()),
        ),
        TableColumn {
            gaps: others(),
            ..TableColumn::new("pid", "PID", counts(&|thread| thread.pid.0.into()))
        },
        TableColumn {
            gaps: others(),
            ..TableColumn::new("tid", "TID", counts(&|thread| thread.tid.0.into()))
        },
        TableColumn::new(
            "name",
            "THREAD",
            ColumnCells::Names(each().map(|(thread, _)| thread.name.clone()).collect()),
        ),
    ];
    let audience = if order.len() > 1 { Audience::Everyone } else { Audience::Programs };
    ReportTable { note, ..table("threads", "By thread", audience, columns) }
}

/// Maximum number of lines in the chart: the most frequent kinds.
const LINES: usize = 4;

/// Rate of faults per second over time.
fn rates(recording: &FaultRecording) -> Option<Chart> {
    let line = &recording.time_line;
    let spans = &line.spans;
    // Two points are not a curve.
    if spans.len() < 3 || line.span_ns == 0 {
        return None;
    }
    let total = |kind: FaultKind| spans.iter().map(|span| span[kind.index()]).sum::<u64>();
    let mut kinds: Vec<FaultKind> =
        FaultKind::ALL.into_iter().filter(|kind| total(*kind) > 0).collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(total(*kind)));
    let point = |kind: FaultKind| {
        move |(at, span): (usize, &[u64; FaultKind::ALL.len()])| {
            let middle = (at as u64).saturating_mul(line.span_ns) + line.span_ns / 2;
            (float(middle), float(span[kind.index()]) / (float(line.span_ns) / 1e9))
        }
    };
    let lines: Vec<ChartLine> = kinds
        .into_iter()
        .take(LINES)
        .map(|kind| ChartLine {
            label: kind.label().into(),
            points: spans.iter().enumerate().map(point(kind)).collect(),
        })
        .collect();
    (!lines.is_empty()).then(|| Chart {
        title: vec![CellValue::text("Faults a second")],
        x: Axis { label: "time".into(), unit: AxisUnit::Nanos, scale: Scale::Linear },
        y: Axis { label: "faults a second".into(), unit: AxisUnit::Rate, scale: Scale::Linear },
        lines,
    })
}

/// Cumulative distribution of the durations of faults, by kind.
fn latencies(recording: &FaultRecording) -> Option<Chart> {
    let mut kinds: Vec<&(FaultKind, TimeHistogram)> = recording.latencies.iter().collect();
    kinds.sort_by_key(|(_, times)| std::cmp::Reverse(times.count()));
    let line = |(kind, times): &(FaultKind, TimeHistogram)| {
        let mut seen = 0;
        let points = times.cells().map(|(end, count)| {
            seen += count;
            (float(end), float(seen) / float(times.count()))
        });
        ChartLine { label: kind.label().into(), points: points.collect() }
    };
    let lines: Vec<ChartLine> = kinds.into_iter().take(LINES).map(line).collect();
    let most = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    (most > 2).then(|| Chart {
        title: vec![CellValue::text("Faults that are over after how long")],
        x: Axis { label: "time".into(), unit: AxisUnit::Nanos, scale: Scale::Log },
        y: Axis { label: "share".into(), unit: AxisUnit::Share, scale: Scale::Linear },
        lines,
    })
}

/// The spans, for programs.
fn time_line(recording: &FaultRecording) -> ReportTable {
    let line = &recording.time_line;
    let starts = (0..line.spans.len() as u64).map(|at| CellValue::Seconds(at * line.span_ns));
    let mut columns = vec![
        TableColumn::new("time", "AT", ColumnCells::Values(starts.collect())),
        TableColumn::new(
            "span",
            "SPAN",
            ColumnCells::Values(
                line.spans.iter().map(|_| CellValue::Seconds(line.span_ns)).collect(),
            ),
        ),
    ];
    for kind in FaultKind::ALL {
        let counts = line.spans.iter().map(|span| span[kind.index()]).collect();
        columns.push(TableColumn {
            gaps: untold(recording, kind).map_or(Gaps::None, Gaps::All),
            ..TableColumn::new(kind.key(), kind.label(), ColumnCells::Counts(counts))
        });
    }
    table("time_line", "", Audience::Programs, columns)
}

/// Remarks that are needed to read the numbers correctly.
fn remarks(recording: &FaultRecording) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if recording.rows.is_empty() {
        remarks.push("No page fault was recorded.".to_owned());
    }
    if recording.every > 1 {
        remarks.push(format!(
            "Each fault stands for {}: small counts are uncertain.",
            recording.every
        ));
    }
    if let Ok((minor, major)) = recording.usage
        && recording.every == 1
        && recording.lost == 0
    {
        let told = count(recording, |row, _| row.kind != FaultKind::Unknown);
        let untold = (minor + major).saturating_sub(told);
        if untold > 0 {
            remarks.push(format!(
                "{untold} more were counted for the command (minflt, majflt) that have no event: those of execve, and of \
                 calls that fill memory at once (MAP_POPULATE, mlock)."
            ));
        }
    }
    if let Some(cut) = recording.cut.filter(|cut| cut.saturating_mul(20) > recording.count()) {
        remarks.push(format!(
            "The call stacks of {cut} faults end too early: {} bytes of the stack were copied with each. --stack copies more.",
            recording.stack_bytes
        ));
    }
    remarks.extend(folded_remarks(&recording.folded, "faults"));
    if let Some(heap) = &recording.heap {
        remarks.extend(heap::remarks(recording, heap));
    }
    remarks.extend(recording.lacks.iter().map(|lack| format!("Unknown: {lack}.")));
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
