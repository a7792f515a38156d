//! The memory calls of a command or a process: a time line in words, what each call did to VIRT, and the sums by
//! call and by caller. What the dynamic linker did at start-up is told apart from the program.

mod effect;
mod replay;
mod space;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use pagewise_model::calls::{Recording, Stops};
use pagewise_model::report::{
    Audience, Block, Cells, Column, Facts, Label, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::{Absent, Name, Pid};

use crate::blocks::{ended_yet, facts_of, first, for_programs, process, table};
use crate::explain::fact;
use replay::{Act, Phase, Played, Process, Row};
pub(crate) use words::advice;

/// What to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// So many calls of the time line, and processes; all where there is no limit.
    pub limit: Option<usize>,
}

/// The calls as a report: `recording`, `totals`, `by_name`, `by_caller`, `processes` and `calls`.
pub fn calls(recording: &Recording, options: &Options) -> Report {
    let played = replay::play(recording);
    let mut blocks =
        vec![Block::Facts(about(recording, &played)), Block::Facts(totals(recording, &played))];
    let tables = [
        by_name(&played.rows),
        by_caller(&played.rows),
        processes(&played.processes, options),
        time_line(&played.rows, options),
    ];
    blocks.extend(tables.map(for_programs_if_empty).map(Block::Table));
    blocks.extend(remarks(recording, &played).into_iter().map(Block::Text));
    Report { schema: "pagewise.syscalls/1", title: title(recording, &played), blocks }
}

/// A heading with nothing below it tells people nothing.
fn for_programs_if_empty(table: Table) -> Table {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    Table { audience, ..table }
}

fn title(recording: &Recording, played: &Played<'_>) -> Vec<Value> {
    let name = match (recording.command.first(), played.processes.first()) {
        (Some(word), _) => word.clone(),
        (None, Some(process)) => process.program.clone(),
        (None, None) => Name::default(),
    };
    vec![
        Value::text("Memory calls of "),
        Value::Name(Name::new(name.base())),
        Value::text(format!(" ({})", recording.pid)),
    ]
}

/// What was recorded, and how.
fn about(recording: &Recording, played: &Played<'_>) -> Facts {
    let stops = match recording.stops {
        Stops::MemoryCalls => "memory calls",
        Stops::EveryCall => "every system call",
    };
    let processes = u64::try_from(played.processes.len()).unwrap_or(u64::MAX);
    let [pid, command] = process(recording.pid, &recording.command);
    let paused = recording.paused_ns.map_or(Value::None, Value::Seconds);
    facts_of(
        "recording",
        "",
        Shape::Line,
        vec![
            pid,
            command,
            fact("ending", "ended", ended_yet(recording.ending), ""),
            fact("seconds", "after", Value::Seconds(recording.took_ns), ""),
            fact("processes", "processes", Value::Count(processes), "").hidden_if(processes < 2),
            fact("stopped_at", "stopped at", Value::text(stops), ""),
            fact("longest_pause", "all threads stopped for", paused, "")
                .hidden_if(recording.paused_ns.is_none()),
            fact("lost", "calls not recorded", Value::Count(recording.lost), "")
                .hidden_if(recording.lost == 0),
            fact(
                "lost_processes",
                "processes not recorded",
                Value::Count(recording.lost_processes),
                "",
            )
            .hidden_if(recording.lost_processes == 0),
        ],
    )
}

/// Sums over all calls, and VIRT of the first process.
fn totals(recording: &Recording, played: &Played<'_>) -> Facts {
    let mut all = Sum::default();
    for row in played.rows.iter().filter(|row| row.phase != Phase::Exec) {
        all.add(row);
    }
    let first = played.processes.iter().find(|process| process.pid == recording.pid);
    let virt_end = first.and_then(|process| process.virt_end);
    let is_one_of_many = played.processes.len() > 1;
    let otherwise = first.and_then(|process| process.virt_otherwise);
    facts_of(
        "totals",
        "",
        Shape::Columns,
        vec![
            meant("calls", "CALLS", Value::Count(all.count)),
            meant("errors", "ERRORS", Value::Count(all.errors)),
            meant("virt_change", "VIRT by calls", Value::Change(all.change)),
            meant("virt_otherwise", "by itself", otherwise.map_or_else(gone, Value::Change))
                .hidden_if(is_one_of_many),
            meant("virt_end", "VIRT at the end", virt_end.map_or_else(gone, |n| Value::Bytes(n.0)))
                .hidden_if(is_one_of_many),
            meant("seconds", "TIME", all.seconds()),
        ],
    )
}

fn meant(key: &'static str, label: &'static str, value: Value) -> pagewise_model::report::Fact {
    fact(key, label, value, crate::explain::meaning(key))
}

/// What stands for the VIRT of a process that was gone before it could be asked.
fn gone() -> Value {
    Value::Absent(Absent::Vanished)
}

/// Calls of one kind, added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    errors: u64,
    bytes: u64,
    change: i64,
    /// `None` where none of them was timed.
    nanos: Option<u64>,
}

impl Sum {
    fn add(&mut self, row: &Row<'_>) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(row.effect.bytes.unwrap_or(0));
        self.change = self.change.saturating_add(row.effect.change.unwrap_or(0));
        if let Act::Call(call) = row.act {
            self.errors += u64::from(call.result.is_err());
            self.nanos = Some(self.nanos.unwrap_or(0).saturating_add(call.took_ns));
        }
    }

    fn seconds(&self) -> Value {
        self.nanos.map_or(Value::None, Value::Seconds)
    }
}

/// Rows added up by a key, and the columns of the sums.
fn sums<'r, K: Ord>(rows: &'r [Row<'_>], key: impl Fn(&'r Row<'_>) -> K) -> BTreeMap<K, Sum> {
    let mut sums: BTreeMap<K, Sum> = BTreeMap::new();
    for row in rows {
        sums.entry(key(row)).or_default().add(row);
    }
    sums
}

fn sum_columns(sums: &[Sum]) -> Vec<Column> {
    let each = || sums.iter();
    let counts = |count: fn(&Sum) -> u64| Cells::Counts(each().map(count).collect());
    let values = |value: fn(&Sum) -> Value| Cells::Values(each().map(value).collect());
    vec![
        Column {
            meaning: "How often it was called.".into(),
            ..Column::new("count", "COUNT", counts(|sum| sum.count))
        },
        Column::new("errors", "ERRORS", counts(|sum| sum.errors)),
        Column::new("bytes", "BYTES", Cells::Bytes(each().map(|sum| sum.bytes).collect())),
        Column::new("virt_change", "VIRT", values(|sum| Value::Change(sum.change))),
        Column::new("seconds", "TIME", values(Sum::seconds)),
    ]
}

fn by_name(rows: &[Row<'_>]) -> Table {
    let mut found: Vec<(&str, Sum)> = sums(rows, |row| name(row.act)).into_iter().collect();
    found.sort_by_key(|(name, sum)| (std::cmp::Reverse(sum.count), *name));
    let (names, found): (Vec<&str>, Vec<Sum>) = found.into_iter().unzip();
    let names = names.into_iter().map(|name| Label::from(name.to_owned())).collect();
    let mut columns = vec![Column {
        meaning: "The system call; execve where a program was executed.".into(),
        ..Column::new("name", "CALL", Cells::Labels(names))
    }];
    columns.extend(sum_columns(&found));
    table("by_name", "By call", Audience::Everyone, columns)
}

fn by_caller(rows: &[Row<'_>]) -> Table {
    let found = sums(rows, |row| (row.phase, &row.by));
    let (callers, found): (Vec<(Phase, &Name)>, Vec<Sum>) = found.into_iter().unzip();
    let phases = callers.iter().map(|(phase, _)| Label::from(phase.name())).collect();
    let mut columns = vec![Column::new("phase", "PHASE", Cells::Labels(phases))];
    columns.extend(sum_columns(&found));
    columns.extend(callers_columns(&callers));
    table("by_caller", "By phase and caller", Audience::Everyone, columns)
}

/// Whose code made the call: a path for programs, its last part for people.
fn callers_columns(callers: &[(Phase, &Name)]) -> [Column; 2] {
    let brief = |(phase, by): &(Phase, &Name)| match phase {
        Phase::Exec => Value::text("the kernel"),
        _ if by.is_empty() => Value::text("code in no file"),
        _ => Value::Name(Name::new(by.base())),
    };
    let people = Column::new("caller", "BY", Cells::Values(callers.iter().map(brief).collect()));
    let paths = callers.iter().map(|(_, by)| some_name(by)).collect();
    [
        Column { audience: Audience::People, ..people },
        for_programs(Column::new("by", "BY", Cells::Values(paths))),
    ]
}

fn some_name(name: &Name) -> Value {
    if name.is_empty() { Value::None } else { Value::Name(name.clone()) }
}

fn processes(all: &[Process], options: &Options) -> Table {
    let (shown, note) = first(all, options.limit, "--calls");
    let each = || shown.iter();
    let values = |value: fn(&Process) -> Value| Cells::Values(each().map(value).collect());
    let counts = |count: fn(&Process) -> u64| Cells::Counts(each().map(count).collect());
    let starts = each().map(|process| process.virt_start).collect();
    let otherwise = |process: &Process| process.virt_otherwise.map_or_else(gone, Value::Change);
    let end = |process: &Process| process.virt_end.map_or_else(gone, |end| Value::Bytes(end.0));
    let columns = vec![
        Column::new("pid", "PID", counts(|process| process.pid.0.into())),
        Column::new("parent", "PARENT", values(|process| number(process.parent))),
        Column::new("calls", "CALLS", counts(|process| process.calls)),
        Column::new("virt_start", "FROM", Cells::Bytes(starts)),
        Column::new("virt_change", "CHANGE", values(|process| Value::Change(process.virt_change))),
        Column::new("virt_otherwise", "ITSELF", values(otherwise)),
        Column::new("virt_end", "TO", values(end)),
        Column::new("ending", "ENDED", values(|process| ended_yet(process.ending))),
        for_programs(Column::new("recorded", "RECORDED", values(|p| Value::Flag(p.is_native)))),
        Column::new("program", "PROGRAM", values(|process| some_name(&process.program))),
    ];
    let audience = if all.len() > 1 { Audience::Everyone } else { Audience::Programs };
    Table { note, ..table("processes", "Processes and their VIRT", audience, columns) }
}

fn number(pid: Option<Pid>) -> Value {
    pid.map_or(Value::None, |pid| Value::Count(pid.0.into()))
}

/// Every call in the order in which they were done.
fn time_line(all: &[Row<'_>], options: &Options) -> Table {
    let (rows, note) = first(all, options.limit, "--calls");
    let counts = |count: fn(&Row<'_>) -> u64| Cells::Counts(rows.iter().map(count).collect());
    let values = |value: fn(&Row<'_>) -> Value| Cells::Values(rows.iter().map(value).collect());
    let names = rows.iter().map(|row| Label::from(name(row.act))).collect();
    let arguments = rows.iter().map(|row| arguments(row.act)).collect();
    let callers: Vec<(Phase, &Name)> = rows.iter().map(|row| (row.phase, &row.by)).collect();
    let [caller, by] = callers_columns(&callers);
    let seen_by = |audience, column: Column| Column { audience, ..column };
    let (processes, threads) = several(rows);
    let columns = vec![
        Column::new("time", "AT", values(|row| Value::Seconds(row.event.time_ns))),
        seen_by(processes, Column::new("pid", "PID", counts(|row| row.event.pid.0.into()))),
        seen_by(threads, Column::new("tid", "TID", counts(|row| row.event.tid.0.into()))),
        for_programs(Column::new("phase", "PHASE", values(|row| Value::text(row.phase.name())))),
        seen_by(Audience::People, Column::new("stage", "PHASE", values(stage))),
        Column {
            meaning: "The system call; execve where a program was executed.".into(),
            ..Column::new("name", "CALL", Cells::Labels(names))
        },
        Column::new("args", "ARGUMENTS", Cells::Names(arguments)),
        seen_by(Audience::People, Column::new("outcome", "RESULT", values(outcome))),
        for_programs(Column::new("result", "RESULT", values(result))),
        for_programs(Column::new("error", "ERROR", values(error))),
        for_programs(Column::new("bytes", "BYTES", values(bytes))),
        Column::new("virt_change", "VIRT", values(change)),
        seen_by(Audience::Long, Column::new("seconds", "TIME", values(seconds))),
        seen_by(Audience::Long, caller),
        by,
    ];
    Table { note, ..table("calls", "Time line", Audience::Everyone, columns) }
}

/// Who sees the ids of processes, and those of threads: nobody needs them where there is one.
fn several(rows: &[Row<'_>]) -> (Audience, Audience) {
    let count = |id: fn(&Row<'_>) -> Pid| rows.iter().map(id).collect::<BTreeSet<Pid>>().len();
    let (processes, threads) = (count(|row| row.event.pid), count(|row| row.event.tid));
    let if_useful = |useful| if useful { Audience::Everyone } else { Audience::Programs };
    (if_useful(processes > 1), if_useful(threads > processes))
}

/// The phase in one short word; none for the program's own time.
fn stage(row: &Row<'_>) -> Value {
    match row.phase {
        Phase::Exec => Value::text("exec"),
        Phase::StartUp => Value::text("start"),
        Phase::Program => Value::None,
    }
}

fn name(act: Act<'_>) -> &'static str {
    match act {
        Act::Call(call) => call.kind.name(),
        Act::Executed(_) => "execve",
    }
}

fn arguments(act: Act<'_>) -> Name {
    match act {
        Act::Call(call) => words::arguments(call),
        Act::Executed(image) => {
            let exe = image.exe.clone().unwrap_or_default();
            Name::new(&[b"\"", exe.as_bytes(), b"\""].concat())
        }
    }
}

/// What people read: an address, a number, or the error.
fn outcome(row: &Row<'_>) -> Value {
    match row.act {
        Act::Executed(_) => Value::Count(0),
        Act::Call(call) => match call.result {
            Err(number) => Value::text(words::error(number)),
            Ok(address) if words::returns_an_address(call.kind) => Value::Address(address),
            Ok(value) => Value::Count(value),
        },
    }
}

fn result(row: &Row<'_>) -> Value {
    match row.act {
        Act::Executed(_) => Value::Count(0),
        Act::Call(call) => call.result.map_or(Value::None, Value::Count),
    }
}

fn error(row: &Row<'_>) -> Value {
    match row.act {
        Act::Executed(_) => Value::None,
        Act::Call(call) => {
            call.result.map_or_else(|number| Value::text(words::error(number)), |_| Value::None)
        }
    }
}

fn bytes(row: &Row<'_>) -> Value {
    row.effect.bytes.map_or(Value::None, Value::Bytes)
}

fn change(row: &Row<'_>) -> Value {
    row.effect.change.map_or(Value::None, Value::Change)
}

fn seconds(row: &Row<'_>) -> Value {
    match row.act {
        Act::Executed(_) => Value::None,
        Act::Call(call) => Value::Seconds(call.took_ns),
    }
}

/// What a reader must know to read the numbers right.
fn remarks(recording: &Recording, played: &Played<'_>) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if recording.lost > 0 {
        let lost = recording.lost;
        remarks.push(format!(
            "{lost} calls were made when the recording had taken its memory, and are not among these: --memory-limit raises it."
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
             or the kernel does not tell (before 5.3): {foreign}."
        ));
    }
    let left = recording.left.len();
    if recording.ending.is_some() && left > 0 {
        let became = match recording.stops {
            Stops::MemoryCalls => "were ended with the recording",
            Stops::EveryCall => "run on",
        };
        remarks.push(format!("Processes that the command left behind and that {became}: {left}."));
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![Value::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
