//! Page faults of a command or a process: of which kind, where in the program, in which memory, when, how long each took,
//! and what would avoid them.

mod advice;
mod heap;
mod places;
#[cfg(test)]
mod tests;
mod tree;

use pagewise_model::bounds::OTHER_MAPPINGS;
use pagewise_model::faults::{Kind, Mapped, Recording, Row, Source};
use pagewise_model::histogram::Histogram;
use pagewise_model::report::{
    Audience, Axis, Block, Cells, Chart, Column, Fact, Facts, Findings, Gaps, Label, Line,
    Paragraph, Report, Scale, Shape, Table, Unit, Value,
};
use pagewise_model::{Absent, Name, Quadrant};

use crate::blocks::{
    ended_yet, facts_of, first, folded, folded_remarks, for_programs, process, table,
};
use crate::explain::fact;
use places::Frames;

/// What to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// So many rows of each table; all where there is no limit.
    pub limit: Option<usize>,
}

/// The faults as a report: `recording`, `totals`, `kinds`, `quadrants`, `functions`, `lines`, `mappings`, `threads`, `stacks`
/// and `time_line`; where the heap was recorded besides, `heap`, `allocations` and `allocation_stacks`.
pub fn faults(recording: &Recording, options: &Options) -> Report {
    let frames = Frames::of(recording);
    let mut blocks =
        vec![Block::Facts(about(recording)), Block::Facts(totals(recording, Audience::Everyone))];
    blocks.push(Block::Facts(folded(&recording.folded)));
    let findings = advice::all(recording, &frames);
    blocks.push(Block::Findings(Findings { list: findings, none: "Nothing stands out.".into() }));
    blocks.extend(kinds(recording).map(Block::Table));
    blocks.push(Block::Table(quadrants(recording)));
    let tables = [
        frames.functions(options),
        frames.lines(options),
        mappings(recording, options),
        threads(recording, options),
    ];
    let mut tables = tables.map(for_programs_if_empty).map(Block::Table).into_iter();
    blocks.extend(tables.by_ref().take(2));
    blocks.extend(heap::heap(recording, options));
    blocks.extend(tables);
    blocks.extend(tree::tree(&frames, options).map(Block::Table));
    blocks.push(Block::Table(for_programs_if_empty(frames.stacks())));
    blocks.extend(rates(recording).map(Block::Chart));
    blocks.extend(latencies(recording).map(Block::Chart));
    blocks.push(Block::Table(time_line(recording)));
    blocks.extend(remarks(recording).into_iter().map(Block::Text));
    Report { schema: "pagewise.faults/1", title: title(recording), blocks }
}

/// A heading with nothing below it tells people nothing.
fn for_programs_if_empty(table: Table) -> Table {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    Table { audience, ..table }
}

fn title(recording: &Recording) -> Vec<Value> {
    let mut title = vec![Value::text("Page faults of ")];
    if let Some(word) = recording.command.first() {
        title.push(Value::Name(Name::new(word.base())));
        title.push(Value::text(format!(" ({})", recording.pid)));
    } else {
        let is_it = |thread: &&pagewise_model::faults::Thread| thread.tid == recording.pid;
        let name = recording.threads.iter().find(is_it).map(|thread| thread.name.clone());
        title.extend(name.map(Value::Name));
        title.push(Value::text(format!(" ({})", recording.pid)));
    }
    title
}

#[expect(clippy::cast_precision_loss, reason = "what is shown has few digits")]
fn real(number: u64) -> f64 {
    number as f64
}

fn share(part: u64, of: u64) -> Value {
    if of == 0 { Value::None } else { Value::Share(real(part) / real(of)) }
}

/// What was recorded, and how.
fn about(recording: &Recording) -> Facts {
    let source = match recording.source {
        Source::Tracepoints => "tracepoints",
        Source::Counters => "counters",
    };
    let [pid, command] = process(recording.pid, &recording.command);
    facts_of(
        "recording",
        "",
        Shape::Line,
        vec![
            pid,
            command,
            fact("ending", "ended", ended_yet(recording.ending), ""),
            fact("seconds", "after", Value::Seconds(recording.took_ns), ""),
            fact("source", "source", Value::text(source), "").for_programs(),
            fact("every", "each of", Value::Count(recording.every), "")
                .hidden_if(recording.every == 1),
            fact("lost", "LOST", Value::Count(recording.lost), "").hidden_if(recording.lost == 0),
            fact("stack_bytes", "stack", Value::Bytes(recording.stack_bytes.into()), "")
                .for_programs(),
            fact(
                "stacks_cut",
                "stacks cut off",
                recording.cut.map_or(Value::None, Value::Count),
                "",
            )
            .hidden_if(recording.cut.is_none_or(|cut| cut == 0)),
            fact("page_size", "page", Value::Bytes(recording.page_size.bytes()), "").for_programs(),
        ],
    )
}

fn meant(key: &'static str, label: &'static str, value: Value) -> Fact {
    fact(key, label, value, crate::explain::meaning(key))
}

/// Sums over all faults.
fn totals(recording: &Recording, audience: Audience) -> Facts {
    let all = recording.count();
    let sum = |fits: &dyn Fn(&Row) -> bool| {
        recording.rows.iter().filter(|row| fits(row)).map(|row| row.count).sum::<u64>()
    };
    let seconds = real(recording.took_ns) / 1e9;
    let rate = if seconds > 0.0 { Value::Rate(real(all) / seconds) } else { Value::None };
    let usage = |pick: fn(&(u64, u64)) -> u64| {
        Value::of(recording.usage.as_ref().map(pick).map_err(Clone::clone), Value::Count)
    };
    let times = recording.latencies.iter().map(|(_, times)| times.sum()).sum();
    let time = if recording.latencies.is_empty() { Value::None } else { Value::Seconds(times) };
    let facts = vec![
        meant("faults", "FAULTS", Value::Count(all)),
        meant("user_faults", "by the program", Value::Count(sum(&|row| !row.by_kernel))),
        meant("kernel_faults", "in its calls", kernel_faults(recording, sum(&|row| row.by_kernel))),
        meant("faults_per_second", "a second", rate),
        meant("faults_major", "major", Value::Count(sum(&|row| row.kind == Kind::Major))),
        meant("fault_time", "TIME", time).hidden_if(recording.latencies.is_empty()),
        meant(
            "user_faults_counted",
            "counted",
            recording.counted.map_or(Value::None, Value::Count),
        )
        .hidden_if(recording.every == 1),
        meant("minflt", "minflt", usage(|(minor, _)| *minor)).for_programs(),
        meant("majflt", "majflt", usage(|(_, major)| *major)).for_programs(),
    ];
    Facts { audience, ..facts_of("totals", "", Shape::Columns, facts) }
}

/// Of who may not see the kernel, the faults in it are not known.
fn kernel_faults(recording: &Recording, found: u64) -> Value {
    let unseen = recording.lacks.iter().find(|lack| is_of_kernel(lack));
    unseen.map_or(Value::Count(found), |lack| Value::Absent(lack.clone()))
}

fn is_of_kernel(lack: &Absent) -> bool {
    matches!(lack, Absent::NotPermitted(needs) if needs.contains("CAP_PERFMON"))
}

/// Faults of one kind and in one quadrant, added up.
fn count(recording: &Recording, fits: impl Fn(&Row, Option<&Mapped>) -> bool) -> u64 {
    let mapping = |row: &Row| recording.mappings.get(row.mapping as usize);
    recording.rows.iter().filter(|row| fits(row, mapping(row))).map(|row| row.count).sum()
}

/// Why faults of a kind cannot be told; none where they can.
fn untold(recording: &Recording, kind: Kind) -> Option<Absent> {
    let needs_tracepoints =
        matches!(kind, Kind::Zero | Kind::CopyOnWrite | Kind::WriteProtect | Kind::Huge);
    (recording.source == Source::Counters && needs_tracepoints)
        .then(|| Absent::NotPermitted("root (the tracepoint exceptions:page_fault_user)".into()))
}

/// By kind: those that there are for people, all for programs.
fn kinds(recording: &Recording) -> [Table; 2] {
    let counted = Kind::ALL.map(|kind| (kind, count(recording, |row, _| row.kind == kind)));
    let found: Vec<(Kind, u64)> = counted.into_iter().filter(|(_, count)| *count > 0).collect();
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

fn kinds_table(recording: &Recording, kinds: &[(Kind, u64)], audience: Audience) -> Table {
    let all = recording.count();
    let each = || kinds.iter();
    let gaps = || {
        let rows = each().enumerate();
        let gaps = rows.filter_map(|(at, (kind, _))| Some((at, untold(recording, *kind)?)));
        Gaps::Some(gaps.collect())
    };
    let values = |key, label, value: &dyn Fn(&(Kind, u64)) -> Value| Column {
        gaps: gaps(),
        ..Column::new(key, label, Cells::Values(each().map(value).collect()))
    };
    let times = |kind: Kind| {
        recording.latencies.iter().find(|(other, _)| *other == kind).map(|(_, times)| times)
    };
    let percentile = |share: f64| {
        move |times: &Histogram| times.percentile(share).map_or(Value::None, Value::Nanos)
    };
    let timed = |key, label, value: &dyn Fn(&Histogram) -> Value| {
        let cells = each().map(|(kind, _)| times(*kind).map_or(Value::None, value)).collect();
        let column = Column::new(key, label, Cells::Values(cells));
        if recording.latencies.is_empty() { for_programs(column) } else { column }
    };
    let labels = each().map(|(kind, _)| Label::from(kind.label())).collect();
    let meanings = each().map(|(kind, _)| Label::from(kind.meaning())).collect();
    let columns = vec![
        Column { audience: Audience::People, ..Column::new("kind", "KIND", Cells::Labels(labels)) },
        values("faults", "FAULTS", &|(_, count)| Value::Count(*count)),
        values("share", "SHARE", &|(_, count)| share(*count, all)),
        timed("median_ns", "MEDIAN", &percentile(0.5)),
        timed("p90_ns", "90 %", &percentile(0.9)),
        timed("p99_ns", "99 %", &percentile(0.99)),
        timed("p999_ns", "99.9 %", &percentile(0.999)),
        timed("longest_ns", "LONGEST", &|times| Value::Nanos(times.longest())),
        timed("fault_time", "TIME", &|times| Value::Seconds(times.sum())),
        Column {
            audience: Audience::Long,
            ..Column::new("meaning", "WHAT", Cells::Labels(meanings))
        },
    ];
    let keys = each().map(|(kind, _)| Label::from(kind.key())).collect();
    Table { row_keys: Some(keys), ..table("kinds", "By kind", audience, columns) }
}

/// By quadrant of the mapping, with the kinds in each.
fn quadrants(recording: &Recording) -> Table {
    let all = recording.count();
    let rows: Vec<Option<Quadrant>> =
        Quadrant::ALL.into_iter().map(Some).chain(std::iter::once(None)).collect();
    let is_in = |mapped: Option<&Mapped>, quadrant| mapped.and_then(|it| it.quadrant) == quadrant;
    let sums: Vec<u64> = rows
        .iter()
        .map(|quadrant| count(recording, |_, mapped| is_in(mapped, *quadrant)))
        .collect();
    let labels = rows.iter().map(|it| Label::from(it.map_or("in no mapping", Quadrant::label)));
    let keys = rows.iter().map(|it| Label::from(it.map_or("nowhere", Quadrant::key)));
    let mut columns = vec![
        Column {
            audience: Audience::People,
            ..Column::new("quadrant", "QUADRANT", Cells::Labels(labels.collect()))
        },
        Column::new("faults", "FAULTS", Cells::Counts(sums.clone())),
        Column::new(
            "share",
            "SHARE",
            Cells::Values(sums.iter().map(|sum| share(*sum, all)).collect()),
        ),
    ];
    for kind in Kind::ALL {
        let of = |quadrant: &Option<Quadrant>| {
            count(recording, |row, mapped| row.kind == kind && is_in(mapped, *quadrant))
        };
        let counts: Vec<u64> = rows.iter().map(of).collect();
        let none = counts.iter().all(|count| *count == 0);
        let column = Column {
            meaning: kind.meaning().into(),
            gaps: untold(recording, kind).map_or(Gaps::None, Gaps::All),
            ..Column::new(kind.key(), brief(kind), Cells::Counts(counts))
        };
        columns.push(if none { for_programs(column) } else { column });
    }
    Table {
        row_keys: Some(keys.collect()),
        note: "By mapping: a page of a private file that was written (copy-on-write) is private and anonymous from then on."
            .into(),
        ..table("quadrants", "By quadrant", Audience::Everyone, columns)
    }
}

/// A kind where there is little room.
fn brief(kind: Kind) -> &'static str {
    match kind {
        Kind::Anonymous => "ANON",
        Kind::Zero => "ZERO",
        Kind::File => "FILE",
        Kind::CopyOnWrite => "COPY",
        Kind::WriteProtect => "PROTECT",
        Kind::Huge => "HUGE",
        Kind::Major => "MAJOR",
        Kind::Unknown => "UNKNOWN",
    }
}

/// Why what many have together has no value for one.
fn apart() -> Absent {
    Absent::NotCollected("a higher --memory-limit: they are many".into())
}

/// What people read of a mapping.
fn mapping_name(mapped: &Mapped) -> Value {
    match (mapped.quadrant, mapped.name.is_empty()) {
        (None, _) => Value::text("in no mapping that is known"),
        (Some(_), true) => Value::text("[anonymous]"),
        (Some(_), false) => Value::Name(mapped.name.clone()),
    }
}

fn mappings(recording: &Recording, options: &Options) -> Table {
    let mut sums = vec![[0_u64; Kind::ALL.len()]; recording.mappings.len()];
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
    let all = recording.count();
    let most = |at: usize| {
        let kinds = Kind::ALL.into_iter().max_by_key(|kind| sums[at][kind.index()]);
        Label::from(kinds.map_or("", Kind::label))
    };
    let quadrant =
        |mapped: &Mapped| Label::from(mapped.quadrant.map_or("", |quadrant| quadrant.label()));
    let sums_of_many = || {
        let rows = each().enumerate();
        let rows = rows.filter(|(_, (it, _))| it.name.as_bytes() == OTHER_MAPPINGS.as_bytes());
        Gaps::Some(rows.map(|(at, _)| (at, apart())).collect())
    };
    let columns = vec![
        Column::new("faults", "FAULTS", Cells::Counts(each().map(|(_, at)| total(at)).collect())),
        Column::new(
            "share",
            "SHARE",
            Cells::Values(each().map(|(_, at)| share(total(at), all)).collect()),
        ),
        Column::new(
            "most_kind",
            "MOST ARE",
            Cells::Labels(each().map(|(_, at)| most(at)).collect()),
        ),
        Column::new(
            "quadrant",
            "QUADRANT",
            Cells::Labels(each().map(|(mapped, _)| quadrant(mapped)).collect()),
        ),
        Column {
            audience: Audience::Long,
            gaps: sums_of_many(),
            ..Column::new(
                "start",
                "START",
                Cells::Addresses(each().map(|(mapped, _)| mapped.range.start).collect()),
            )
        },
        Column {
            gaps: sums_of_many(),
            ..Column::new(
                "size",
                "SIZE",
                Cells::Bytes(each().map(|(mapped, _)| mapped.range.len().0).collect()),
            )
        },
        Column::new(
            "name",
            "MAPPING",
            Cells::Values(each().map(|(mapped, _)| mapping_name(mapped)).collect()),
        ),
    ];
    Table { note, ..table("mappings", "By mapping", Audience::Everyone, columns) }
}

fn threads(recording: &Recording, options: &Options) -> Table {
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
    let counts = |value: &dyn Fn(&pagewise_model::faults::Thread) -> u64| {
        Cells::Counts(each().map(|(thread, _)| value(thread)).collect())
    };
    let all = recording.count();
    let others = || {
        let rows = each().enumerate().filter(|(_, (thread, _))| thread.tid.0 == 0);
        Gaps::Some(rows.map(|(at, _)| (at, apart())).collect())
    };
    let columns = vec![
        Column::new("faults", "FAULTS", Cells::Counts(each().map(|(_, sum)| sum).collect())),
        Column::new(
            "share",
            "SHARE",
            Cells::Values(each().map(|(_, sum)| share(sum, all)).collect()),
        ),
        Column {
            gaps: others(),
            ..Column::new("pid", "PID", counts(&|thread| thread.pid.0.into()))
        },
        Column {
            gaps: others(),
            ..Column::new("tid", "TID", counts(&|thread| thread.tid.0.into()))
        },
        Column::new(
            "name",
            "THREAD",
            Cells::Names(each().map(|(thread, _)| thread.name.clone()).collect()),
        ),
    ];
    let audience = if order.len() > 1 { Audience::Everyone } else { Audience::Programs };
    Table { note, ..table("threads", "By thread", audience, columns) }
}

/// Lines for the kinds that there are most of.
const LINES: usize = 4;

/// How many a second, over the time.
fn rates(recording: &Recording) -> Option<Chart> {
    let line = &recording.time_line;
    let spans = &line.spans;
    // Two points are no course of events.
    if spans.len() < 3 || line.span_ns == 0 {
        return None;
    }
    let total = |kind: Kind| spans.iter().map(|span| span[kind.index()]).sum::<u64>();
    let mut kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| total(*kind) > 0).collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(total(*kind)));
    let point = |kind: Kind| {
        move |(at, span): (usize, &[u64; Kind::ALL.len()])| {
            let middle = (at as u64).saturating_mul(line.span_ns) + line.span_ns / 2;
            (real(middle), real(span[kind.index()]) / (real(line.span_ns) / 1e9))
        }
    };
    let lines: Vec<Line> = kinds
        .into_iter()
        .take(LINES)
        .map(|kind| Line {
            label: kind.label().into(),
            points: spans.iter().enumerate().map(point(kind)).collect(),
        })
        .collect();
    (!lines.is_empty()).then(|| Chart {
        title: vec![Value::text("Faults a second")],
        x: Axis { label: "time".into(), unit: Unit::Nanos, scale: Scale::Linear },
        y: Axis { label: "faults a second".into(), unit: Unit::Rate, scale: Scale::Linear },
        lines,
    })
}

/// Which share of the faults of a kind is over after how long.
fn latencies(recording: &Recording) -> Option<Chart> {
    let mut kinds: Vec<&(Kind, Histogram)> = recording.latencies.iter().collect();
    kinds.sort_by_key(|(_, times)| std::cmp::Reverse(times.count()));
    let line = |(kind, times): &(Kind, Histogram)| {
        let mut seen = 0;
        let points = times.cells().map(|(end, count)| {
            seen += count;
            (real(end), real(seen) / real(times.count()))
        });
        Line { label: kind.label().into(), points: points.collect() }
    };
    let lines: Vec<Line> = kinds.into_iter().take(LINES).map(line).collect();
    let most = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    (most > 2).then(|| Chart {
        title: vec![Value::text("Faults that are over after how long")],
        x: Axis { label: "time".into(), unit: Unit::Nanos, scale: Scale::Log },
        y: Axis { label: "share".into(), unit: Unit::Share, scale: Scale::Linear },
        lines,
    })
}

/// The spans, for programs.
fn time_line(recording: &Recording) -> Table {
    let line = &recording.time_line;
    let starts = (0..line.spans.len() as u64).map(|at| Value::Seconds(at * line.span_ns));
    let mut columns = vec![
        Column::new("time", "AT", Cells::Values(starts.collect())),
        Column::new(
            "span",
            "SPAN",
            Cells::Values(line.spans.iter().map(|_| Value::Seconds(line.span_ns)).collect()),
        ),
    ];
    for kind in Kind::ALL {
        let counts = line.spans.iter().map(|span| span[kind.index()]).collect();
        columns.push(Column {
            gaps: untold(recording, kind).map_or(Gaps::None, Gaps::All),
            ..Column::new(kind.key(), kind.label(), Cells::Counts(counts))
        });
    }
    table("time_line", "", Audience::Programs, columns)
}

/// What a reader must know to read the numbers right.
fn remarks(recording: &Recording) -> Vec<Paragraph> {
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
        let told = count(recording, |row, _| row.kind != Kind::Unknown);
        let untold = (minor + major).saturating_sub(told);
        if untold > 0 {
            remarks.push(format!(
                "{untold} more were counted for the command (minflt, majflt) that no event tells: those of execve, and of \
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
        pieces: vec![Value::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
