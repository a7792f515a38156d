//! Memory calls of a command or a process: a time line in words, the effect of each call on VIRT,
//! and sums by call and by caller. Calls by the dynamic linker at start-up are separate from the
//! program's calls.

mod effect;
mod replay;
mod space;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use pagewise_model::calls::{CallRecording, CallStops};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name, Pid};

use crate::blocks::{
    ended_yet, facts_of, first, for_people, for_programs, process, seen_by, table,
};
use crate::explain::fact;
use replay::{LifePhase, Played, ReplayedProcess, TimelineAct, TimelineRow};
pub(crate) use words::advice;

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Maximum number of rows in the time line, and of processes; `None` for all.
    pub limit: Option<usize>,
}

/// Reports the calls: `recording`, `totals`, `by_name`, `by_caller`, `processes` and `calls`.
pub fn calls(recording: &CallRecording, options: &CallOptions) -> Report {
    let played = replay::play(recording);
    let mut blocks = vec![
        ReportBlock::Facts(recording_facts(recording, &played)),
        ReportBlock::Facts(totals(recording, &played)),
    ];
    let tables = [
        by_name(&played.rows),
        by_caller(&played.rows),
        processes(&played.processes, options),
        time_line(&played.rows, options),
    ];
    blocks.extend(tables.map(for_programs_if_empty).map(ReportBlock::Table));
    blocks.extend(remarks(recording, &played).into_iter().map(ReportBlock::Text));
    Report { schema: "pagewise.syscalls/1", title: title(recording, &played), blocks }
}

/// Hides a table without rows from people, to whom a heading alone is useless.
fn for_programs_if_empty(table: ReportTable) -> ReportTable {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    ReportTable { audience, ..table }
}

fn title(recording: &CallRecording, played: &Played<'_>) -> Vec<CellValue> {
    let name = match (recording.command.first(), played.processes.first()) {
        (Some(word), _) => word.clone(),
        (None, Some(process)) => process.program.clone(),
        (None, None) => Name::default(),
    };
    vec![
        CellValue::text("Memory calls of "),
        CellValue::Name(Name::new(name.base())),
        CellValue::text(format!(" ({})", recording.pid)),
    ]
}

/// Returns the parameters and totals of the recording.
fn recording_facts(recording: &CallRecording, played: &Played<'_>) -> NamedFacts {
    let stops = match recording.stops {
        CallStops::MemoryCalls => "memory calls",
        CallStops::EveryCall => "every system call",
    };
    let processes = u64::try_from(played.processes.len()).unwrap_or(u64::MAX);
    let [pid, command] = process(recording.pid, &recording.command);
    let paused = recording.paused_ns.map_or(CellValue::None, CellValue::Seconds);
    facts_of(
        "recording",
        "",
        FactsShape::Line,
        vec![
            pid,
            command,
            fact("ending", "ended", ended_yet(recording.ending), ""),
            fact("seconds", "after", CellValue::Seconds(recording.took_ns), ""),
            fact("processes", "processes", CellValue::Count(processes), "")
                .hidden_if(processes < 2),
            fact("stopped_at", "stopped at", CellValue::text(stops), ""),
            fact("longest_pause", "all threads stopped for", paused, "")
                .hidden_if(recording.paused_ns.is_none()),
            fact("lost", "calls not recorded", CellValue::Count(recording.lost), "")
                .hidden_if(recording.lost == 0),
            fact(
                "lost_processes",
                "processes not recorded",
                CellValue::Count(recording.lost_processes),
                "",
            )
            .hidden_if(recording.lost_processes == 0),
        ],
    )
}

/// Returns the sums over all calls, and VIRT of the first process.
fn totals(recording: &CallRecording, played: &Played<'_>) -> NamedFacts {
    let mut all = CallSum::default();
    for row in played.rows.iter().filter(|row| row.phase != LifePhase::Exec) {
        all.add(row);
    }
    let first = played.processes.iter().find(|process| process.pid == recording.pid);
    let virt_end = first.and_then(|process| process.virt_end);
    let is_one_of_many = played.processes.len() > 1;
    let otherwise = first.and_then(|process| process.virt_otherwise);
    facts_of(
        "totals",
        "",
        FactsShape::Columns,
        vec![
            meant("calls", "CALLS", CellValue::Count(all.count)),
            meant("errors", "ERRORS", CellValue::Count(all.errors)),
            meant("virt_change", "VIRT by calls", CellValue::Change(all.change)),
            meant("virt_otherwise", "by itself", otherwise.map_or_else(gone, CellValue::Change))
                .hidden_if(is_one_of_many),
            meant(
                "virt_end",
                "VIRT at the end",
                virt_end.map_or_else(gone, |n| CellValue::Bytes(n.0)),
            )
            .hidden_if(is_one_of_many),
            meant("seconds", "TIME", all.seconds()),
        ],
    )
}

fn meant(key: &'static str, label: &'static str, value: CellValue) -> pagewise_model::report::Fact {
    fact(key, label, value, crate::explain::meaning(key))
}

/// Value of VIRT for a process that ended before its VIRT could be read.
fn gone() -> CellValue {
    CellValue::Absent(Absent::Vanished)
}

/// Sums over calls with the same key, such as the name of the call.
#[derive(Clone, Copy, Default)]
struct CallSum {
    count: u64,
    errors: u64,
    bytes: u64,
    change: i64,
    /// Sum of the durations; `None` if no call was timed.
    nanos: Option<u64>,
}

impl CallSum {
    fn add(&mut self, row: &TimelineRow<'_>) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(row.effect.bytes.unwrap_or(0));
        self.change = self.change.saturating_add(row.effect.change.unwrap_or(0));
        if let TimelineAct::Call(call) = row.act {
            self.errors += u64::from(call.result.is_err());
            self.nanos = Some(self.nanos.unwrap_or(0).saturating_add(call.took_ns));
        }
    }

    fn seconds(&self) -> CellValue {
        self.nanos.map_or(CellValue::None, CellValue::Seconds)
    }
}

/// Sums the calls by a key.
fn sums<'r, K: Ord>(
    rows: &'r [TimelineRow<'_>],
    key: impl Fn(&'r TimelineRow<'_>) -> K,
) -> BTreeMap<K, CallSum> {
    let mut sums: BTreeMap<K, CallSum> = BTreeMap::new();
    for row in rows {
        sums.entry(key(row)).or_default().add(row);
    }
    sums
}

fn sum_columns(sums: &[CallSum]) -> Vec<TableColumn> {
    let each = || sums.iter();
    let counts = |count: fn(&CallSum) -> u64| ColumnCells::Counts(each().map(count).collect());
    let values =
        |value: fn(&CallSum) -> CellValue| ColumnCells::Values(each().map(value).collect());
    vec![
        TableColumn {
            meaning: "Number of calls.".into(),
            ..TableColumn::new("count", "COUNT", counts(|sum| sum.count))
        },
        TableColumn::new("errors", "ERRORS", counts(|sum| sum.errors)),
        TableColumn::new(
            "bytes",
            "BYTES",
            ColumnCells::Bytes(each().map(|sum| sum.bytes).collect()),
        ),
        TableColumn::new("virt_change", "VIRT", values(|sum| CellValue::Change(sum.change))),
        TableColumn::new("seconds", "TIME", values(CallSum::seconds)),
    ]
}

fn by_name(rows: &[TimelineRow<'_>]) -> ReportTable {
    let mut found: Vec<(&str, CallSum)> = sums(rows, |row| name(row.act)).into_iter().collect();
    found.sort_by_key(|(name, sum)| (std::cmp::Reverse(sum.count), *name));
    let (names, found): (Vec<&str>, Vec<CallSum>) = found.into_iter().unzip();
    let names = names.into_iter().map(|name| Label::from(name.to_owned())).collect();
    let mut columns = vec![TableColumn {
        meaning: "The system call; execve where a program was executed.".into(),
        ..TableColumn::new("name", "CALL", ColumnCells::Labels(names))
    }];
    columns.extend(sum_columns(&found));
    table("by_name", "By call", Audience::Everyone, columns)
}

fn by_caller(rows: &[TimelineRow<'_>]) -> ReportTable {
    let found = sums(rows, |row| (row.phase, &row.by));
    let (callers, found): (Vec<(LifePhase, &Name)>, Vec<CallSum>) = found.into_iter().unzip();
    let phases = callers.iter().map(|(phase, _)| Label::from(phase.name())).collect();
    let mut columns = vec![TableColumn::new("phase", "PHASE", ColumnCells::Labels(phases))];
    columns.extend(sum_columns(&found));
    columns.extend(callers_columns(&callers));
    table("by_caller", "By phase and caller", Audience::Everyone, columns)
}

/// Builds the columns of the files whose code made the calls: the path for programs, the last
/// component of the path for people.
fn callers_columns(callers: &[(LifePhase, &Name)]) -> [TableColumn; 2] {
    let brief = |(phase, by): &(LifePhase, &Name)| match phase {
        LifePhase::Exec => CellValue::text("the kernel"),
        _ if by.is_empty() => CellValue::text("code in no file"),
        _ => CellValue::Name(Name::new(by.base())),
    };
    let people = TableColumn::new(
        "caller",
        "CALLER",
        ColumnCells::Values(callers.iter().map(brief).collect()),
    );
    let paths = callers.iter().map(|(_, by)| some_name(by)).collect();
    [
        TableColumn { audience: Audience::People, ..people },
        for_programs(TableColumn::new("by", "CALLER", ColumnCells::Values(paths))),
    ]
}

fn some_name(name: &Name) -> CellValue {
    if name.is_empty() { CellValue::None } else { CellValue::Name(name.clone()) }
}

fn processes(all: &[ReplayedProcess], options: &CallOptions) -> ReportTable {
    let (shown, note) = first(all, options.limit, "--calls");
    let each = || shown.iter();
    let values =
        |value: fn(&ReplayedProcess) -> CellValue| ColumnCells::Values(each().map(value).collect());
    let counts =
        |count: fn(&ReplayedProcess) -> u64| ColumnCells::Counts(each().map(count).collect());
    let starts = each().map(|process| process.virt_start).collect();
    let otherwise =
        |process: &ReplayedProcess| process.virt_otherwise.map_or_else(gone, CellValue::Change);
    let end = |process: &ReplayedProcess| {
        process.virt_end.map_or_else(gone, |end| CellValue::Bytes(end.0))
    };
    let columns = vec![
        TableColumn::new("pid", "PID", counts(|process| process.pid.0.into())),
        TableColumn::new("parent", "PARENT", values(|process| number(process.parent))),
        TableColumn::new("calls", "CALLS", counts(|process| process.calls)),
        TableColumn::new("virt_start", "FROM", ColumnCells::Bytes(starts)),
        TableColumn::new(
            "virt_change",
            "CHANGE",
            values(|process| CellValue::Change(process.virt_change)),
        ),
        TableColumn::new("virt_otherwise", "BY KERNEL", values(otherwise)),
        TableColumn::new("virt_end", "TO", values(end)),
        TableColumn::new("ending", "ENDED", values(|process| ended_yet(process.ending))),
        for_programs(TableColumn::new(
            "recorded",
            "RECORDED",
            values(|p| CellValue::Flag(p.is_native)),
        )),
        TableColumn::new("program", "PROGRAM", values(|process| some_name(&process.program))),
    ];
    let audience = if all.len() > 1 { Audience::Everyone } else { Audience::Programs };
    ReportTable { note, ..table("processes", "Processes and their VIRT", audience, columns) }
}

fn number(pid: Option<Pid>) -> CellValue {
    pid.map_or(CellValue::None, |pid| CellValue::Count(pid.0.into()))
}

/// Builds the table of all calls, in the order in which they returned.
fn time_line(all: &[TimelineRow<'_>], options: &CallOptions) -> ReportTable {
    let (rows, note) = first(all, options.limit, "--calls");
    let counts =
        |count: fn(&TimelineRow<'_>) -> u64| ColumnCells::Counts(rows.iter().map(count).collect());
    let values = |value: fn(&TimelineRow<'_>) -> CellValue| {
        ColumnCells::Values(rows.iter().map(value).collect())
    };
    let names = rows.iter().map(|row| Label::from(name(row.act))).collect();
    let arguments = rows.iter().map(|row| arguments(row.act)).collect();
    let callers: Vec<(LifePhase, &Name)> = rows.iter().map(|row| (row.phase, &row.by)).collect();
    let [caller, by] = callers_columns(&callers);
    let (processes, threads) = several(rows);
    let columns = vec![
        TableColumn::new("time", "AT", values(|row| CellValue::Seconds(row.event.time_ns))),
        seen_by(processes, TableColumn::new("pid", "PID", counts(|row| row.event.pid.0.into()))),
        seen_by(threads, TableColumn::new("tid", "TID", counts(|row| row.event.tid.0.into()))),
        for_programs(TableColumn::new(
            "phase",
            "PHASE",
            values(|row| CellValue::text(row.phase.name())),
        )),
        for_people(TableColumn::new("stage", "PHASE", values(stage))),
        TableColumn {
            meaning: "The system call; execve where a program was executed.".into(),
            ..TableColumn::new("name", "CALL", ColumnCells::Labels(names))
        },
        TableColumn::new("args", "ARGUMENTS", ColumnCells::Names(arguments)),
        for_people(TableColumn::new("outcome", "RESULT", values(outcome))),
        for_programs(TableColumn::new("result", "RESULT", values(result))),
        for_programs(TableColumn::new("error", "ERROR", values(error))),
        for_programs(TableColumn::new("bytes", "BYTES", values(bytes))),
        TableColumn::new("virt_change", "VIRT", values(change)),
        seen_by(Audience::Long, TableColumn::new("seconds", "TIME", values(seconds))),
        seen_by(Audience::Long, caller),
        by,
    ];
    ReportTable { note, ..table("calls", "Time line", Audience::Everyone, columns) }
}

/// Returns the audiences of PIDs and of TIDs. People do not need PIDs if there is only one process,
/// or TIDs if each process has one thread.
fn several(rows: &[TimelineRow<'_>]) -> (Audience, Audience) {
    let count =
        |id: fn(&TimelineRow<'_>) -> Pid| rows.iter().map(id).collect::<BTreeSet<Pid>>().len();
    let (processes, threads) = (count(|row| row.event.pid), count(|row| row.event.tid));
    let if_useful = |useful| if useful { Audience::Everyone } else { Audience::Programs };
    (if_useful(processes > 1), if_useful(threads > processes))
}

/// Returns the phase in one short word; empty for the program's own time.
fn stage(row: &TimelineRow<'_>) -> CellValue {
    match row.phase {
        LifePhase::Exec => CellValue::text("exec"),
        LifePhase::StartUp => CellValue::text("start"),
        LifePhase::Program => CellValue::None,
    }
}

fn name(act: TimelineAct<'_>) -> &'static str {
    match act {
        TimelineAct::Call(call) => call.kind.name(),
        TimelineAct::Executed(_) => "execve",
    }
}

fn arguments(act: TimelineAct<'_>) -> Name {
    match act {
        TimelineAct::Call(call) => words::arguments(call),
        TimelineAct::Executed(image) => {
            let exe = image.exe.clone().unwrap_or_default();
            Name::new(&[b"\"", exe.as_bytes(), b"\""].concat())
        }
    }
}

/// Returns the result of a call for people: an address, a number, or the error.
fn outcome(row: &TimelineRow<'_>) -> CellValue {
    match row.act {
        TimelineAct::Executed(_) => CellValue::Count(0),
        TimelineAct::Call(call) => match call.result {
            Err(number) => CellValue::text(words::error(number)),
            Ok(address) if words::returns_an_address(call.kind) => CellValue::Address(address),
            Ok(value) => CellValue::Count(value),
        },
    }
}

fn result(row: &TimelineRow<'_>) -> CellValue {
    match row.act {
        TimelineAct::Executed(_) => CellValue::Count(0),
        TimelineAct::Call(call) => call.result.map_or(CellValue::None, CellValue::Count),
    }
}

fn error(row: &TimelineRow<'_>) -> CellValue {
    match row.act {
        TimelineAct::Executed(_) => CellValue::None,
        TimelineAct::Call(call) => call
            .result
            .map_or_else(|number| CellValue::text(words::error(number)), |_| CellValue::None),
    }
}

fn bytes(row: &TimelineRow<'_>) -> CellValue {
    row.effect.bytes.map_or(CellValue::None, CellValue::Bytes)
}

fn change(row: &TimelineRow<'_>) -> CellValue {
    row.effect.change.map_or(CellValue::None, CellValue::Change)
}

fn seconds(row: &TimelineRow<'_>) -> CellValue {
    match row.act {
        TimelineAct::Executed(_) => CellValue::None,
        TimelineAct::Call(call) => CellValue::Seconds(call.took_ns),
    }
}

/// Returns remarks that readers need to interpret the numbers correctly.
fn remarks(recording: &CallRecording, played: &Played<'_>) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if recording.lost > 0 {
        let lost = recording.lost;
        remarks.push(format!(
            "{lost} calls were made after the recording had reached its memory limit, and are not included: --memory-limit raises the limit."
        ));
    }
    if recording.lost_processes > 0 {
        let lost = recording.lost_processes;
        remarks.push(format!("{lost} processes were made then, of which no call is recorded."));
    }
    if played.rows.is_empty() {
        remarks.push("No memory call was made.".to_owned());
    }
    let foreign = played.processes.iter().filter(|process| !process.is_native).count();
    if foreign > 0 {
        remarks.push(format!(
            "Processes whose calls are not recorded, since they ran programs of another architecture (32-bit) \
             or the kernel does not say (before 5.3): {foreign}."
        ));
    }
    let left = recording.left.len();
    if recording.ending.is_some() && left > 0 {
        let became = match recording.stops {
            CallStops::MemoryCalls => "were ended with the recording",
            CallStops::EveryCall => "run on",
        };
        remarks.push(format!("Processes that the command left behind and that {became}: {left}."));
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
