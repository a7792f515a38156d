//! What is wrong with a program's use of its heap: each mistake with its call stacks.

use pagewise_model::calls::Ending;
use pagewise_model::guard::{Access, Bug, Call, Family, Guarded, Kind, Means, Mismatch};
use pagewise_model::report::{
    Audience, Block, Cells, Column, Facts, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::traced::Frame;
use pagewise_model::{Name, Reading};

use crate::blocks::{ended, facts_of, process, table};
use crate::explain::fact;
use crate::heap::frames::{full, name};

/// The mistakes as a report: `guard` and `bugs`. Where people were `told` of each as it came, they are told no more of it.
pub fn guard(guarded: &Guarded, told: bool) -> Report {
    let mut blocks = vec![Block::Facts(about(guarded))];
    blocks.push(Block::Table(bugs(guarded)));
    if !told {
        let numbered = guarded.bugs.iter().enumerate();
        blocks.extend(numbered.map(|(index, bug)| Block::Table(stacks(bug, index + 1))));
    }
    blocks.extend(remarks(guarded).into_iter().map(Block::Text));
    let command = guarded.command.first().map_or(Name::default(), |word| Name::new(word.base()));
    let title = vec![
        Value::text("Misuse of the heap by "),
        Value::Name(command),
        Value::text(format!(" ({})", guarded.pid)),
    ];
    Report { schema: "pagewise.guard/1", title, blocks }
}

/// A mistake as it comes, for people: what it is, then its call stacks, a line for each call.
pub fn lines(bug: &Bug, number: usize) -> Vec<Vec<Value>> {
    let mut lines = vec![vec![
        Value::text(format!("pagewise: {number}: {}; thread {} ", sentence(bug), bug.tid)),
        Value::Name(bug.thread.clone()),
        Value::text(" of "),
        Value::Name(Name::new(bug.program.base())),
        Value::text(format!(" ({})", bug.pid)),
    ]];
    for (title, stack) in parts(bug) {
        lines.push(vec![Value::text(format!("    {title}"))]);
        match stack {
            Ok(frames) => lines.extend(frames.iter().map(|frame| {
                let text = [name(frame).as_bytes(), line(frame).as_bytes()].concat();
                vec![Value::text("        "), Value::Name(Name::new(&text))]
            })),
            Err(absent) => {
                lines.push(vec![Value::text("        ? "), Value::text(absent.to_string())])
            }
        }
    }
    lines
}

fn line(frame: &Frame) -> String {
    let line = frame.line.as_ref().map(|line| {
        let file = line.file.rsplit('/').next().unwrap_or_default();
        format!(" {file}:{}", line.number)
    });
    line.unwrap_or_default()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Overflow => "overflow",
        Kind::Underflow => "underflow",
        Kind::UseAfterFree => "use-after-free",
        Kind::DoubleFree => "double-free",
        Kind::InvalidFree => "invalid-free",
        Kind::Wild => "wild",
        Kind::Mismatch => "mismatch",
        Kind::Segv => "segv",
        Kind::Bus => "bus",
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Execute => "execute",
        Access::Free => "free",
        Access::WrittenBeforeFree => "written before free",
        Access::WrittenBeforeEnd => "written before end",
    }
}

/// What allocates and what frees.
fn family(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Malloc => ("malloc", "free"),
        Family::New => ("new", "delete"),
        Family::NewArray => ("new[]", "delete[]"),
    }
}

/// What does not go together.
fn mismatched(it: Mismatch) -> String {
    let (made, freed) = (family(it.made_by).0, family(it.freed_as).1);
    let size = it.freed_size.filter(|_| it.made_by == it.freed_as);
    let size = size.map(|size| format!(" as {}", count(size)));
    format!("allocated with {made}, freed with {freed}{}", size.unwrap_or_default())
}

/// What is wrong, in our own words.
fn sentence(bug: &Bug) -> String {
    if let Some(mismatch) = bug.mismatch {
        return format!("mismatched free: {}: {}", place(bug), mismatched(mismatch));
    }
    let what = match bug.kind {
        Kind::Overflow => "heap overflow",
        Kind::Underflow => "heap underflow",
        Kind::UseAfterFree => "use after free",
        Kind::DoubleFree => "double free",
        Kind::InvalidFree => "free of what is no object",
        Kind::Wild => "access to memory of no object",
        Kind::Mismatch => "mismatched free",
        Kind::Segv => "killed by SIGSEGV",
        Kind::Bus => "killed by SIGBUS",
    };
    let how = match bug.access {
        Access::Read => "a read",
        Access::Write => "a write",
        Access::Execute => "a jump",
        Access::Free => "a free",
        Access::WrittenBeforeFree | Access::WrittenBeforeEnd => "an earlier write",
    };
    format!("{what}: {how} {}", place(bug))
}

fn count(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") }
}

fn place(bug: &Bug) -> String {
    let Some(object) = &bug.object else { return format!("at {:#x}", bug.address) };
    let whole = format!("an object of {} at {:#x}", count(object.size), object.address);
    match bug.distance() {
        Some(distance) if bug.address < object.address => {
            format!("{} before {whole}", count(distance))
        }
        Some(distance) => format!("{} after the end of {whole}", count(distance)),
        None if bug.address == object.address => format!("at the beginning of {whole}"),
        None => format!("{} inside {whole}", count(bug.address - object.address)),
    }
}

/// The call stacks, with what each is of.
fn parts(bug: &Bug) -> Vec<(String, &Reading<Vec<Frame>>)> {
    let first = match bug.access {
        Access::Read => "read by",
        Access::Write => "written by",
        Access::Execute => "executed by",
        Access::Free => "freed by",
        Access::WrittenBeforeFree => "found when it was freed by",
        Access::WrittenBeforeEnd => "found at the program's end",
    };
    let mut parts = vec![(first.to_owned(), &bug.stack)];
    if let Some(object) = &bug.object {
        let part = |word: &str, call: &Call| format!("{word} by thread {}", call.tid);
        parts.push((part("allocated", &object.allocated), &object.allocated.stack));
        if let Some(call) = &object.freed {
            parts.push((part("freed before", call), &call.stack));
        }
    }
    parts
}

fn about(guarded: &Guarded) -> Facts {
    let [pid, command] = process(guarded.pid, &guarded.command);
    let means = Value::of(guarded.means.clone(), |means| {
        Value::text(match means {
            Means::Moves => "moves",
            Means::Marks => "marks",
            Means::Mappings => "mappings",
        })
    });
    // Of those that do not end in order nothing is known.
    let told = |value: Value| {
        if guarded.told > 0 {
            value
        } else if let Err(absent) = &guarded.means {
            Value::Absent(absent.clone())
        } else {
            let why = "processes that are killed do not say how much they guarded";
            Value::Absent(pagewise_model::Absent::NotCollected(why.into()))
        }
    };
    facts_of(
        "guard",
        "",
        Shape::Line,
        vec![
            pid,
            command,
            fact(
                "bugs",
                "bugs",
                Value::Count(guarded.bugs.len() as u64 + guarded.bugs_dropped),
                meaning("bugs"),
            ),
            fact(
                "bugs_dropped",
                "not kept",
                Value::Count(guarded.bugs_dropped),
                meaning("bugs_dropped"),
            )
            .hidden_if(guarded.bugs_dropped == 0),
            fact("rate", "one in", Value::Count(guarded.rate), meaning("rate")),
            fact("guarded", "guarded", told(Value::Count(guarded.guarded)), meaning("guarded")),
            fact("left_out", "left out", told(Value::Count(guarded.left_out)), meaning("left_out"))
                .hidden_if(guarded.left_out == 0),
            fact(
                "most_bytes",
                "at most",
                told(Value::Bytes(guarded.most_bytes)),
                meaning("most_bytes"),
            ),
            fact("means", "by", means, meaning("means")).hidden_if(true),
            fact("processes", "processes", Value::Count(guarded.processes), meaning("processes"))
                .hidden_if(guarded.processes < 2),
            fact("told", "told", Value::Count(guarded.told), meaning("told")).hidden_if(true),
            fact("seconds", "after", Value::Seconds(guarded.took_ns), ""),
            fact("ending", "ended", ended(guarded.ending), ""),
        ],
    )
}

/// What a column of ours means.
fn meaning(column: &str) -> &'static str {
    let field = pagewise_model::fields::named(column).find(|field| field.source == "guard");
    field.map_or("", |field| field.meaning)
}

fn frames(stack: &Reading<Vec<Frame>>) -> Value {
    Value::of(stack.clone(), |frames| {
        Value::List(frames.iter().map(|frame| Value::Name(full(frame))).collect())
    })
}

/// Each mistake, for programs.
fn bugs(guarded: &Guarded) -> Table {
    let cells = |cell: fn(&Bug) -> Value| Cells::Values(guarded.bugs.iter().map(cell).collect());
    fn object(bug: &Bug, cell: fn(&pagewise_model::guard::Object) -> Value) -> Value {
        bug.object.as_ref().map_or(Value::None, cell)
    }
    fn freed(bug: &Bug, cell: fn(&Call) -> Value) -> Value {
        let call = bug.object.as_ref().and_then(|object| object.freed.as_ref());
        call.map_or(Value::None, cell)
    }
    fn mismatch(bug: &Bug, cell: fn(&Mismatch) -> &'static str) -> Value {
        bug.mismatch.as_ref().map_or(Value::None, |it| Value::text(cell(it)))
    }
    let columns = vec![
        Column::new("kind", "KIND", cells(|bug| Value::text(kind(bug.kind)))),
        Column::new("access", "ACCESS", cells(|bug| Value::text(access(bug.access)))),
        Column::new("address", "ADDRESS", cells(|bug| Value::Address(bug.address))),
        Column::new(
            "distance",
            "DISTANCE",
            cells(|bug| bug.distance().map_or(Value::None, Value::Count)),
        ),
        Column::new("object", "OBJECT", cells(|bug| object(bug, |it| Value::Address(it.address)))),
        Column::new("size", "SIZE", cells(|bug| object(bug, |it| Value::Bytes(it.size)))),
        Column::new("pid", "PID", cells(|bug| Value::Count(bug.pid.0.into()))),
        Column::new("tid", "TID", cells(|bug| Value::Count(bug.tid.0.into()))),
        Column::new("thread", "THREAD", cells(|bug| Value::Name(bug.thread.clone()))),
        Column::new("program", "PROGRAM", cells(|bug| Value::Name(bug.program.clone()))),
        Column::new("goes_on", "WENT ON", cells(|bug| Value::Flag(bug.goes_on))),
        Column::new("stack", "STACK", cells(|bug| frames(&bug.stack))),
        Column::new(
            "allocated_by",
            "ALLOCATED BY",
            cells(|bug| object(bug, |it| Value::Count(it.allocated.tid.0.into()))),
        ),
        Column::new(
            "allocation_stack",
            "ALLOCATION",
            cells(|bug| object(bug, |it| frames(&it.allocated.stack))),
        ),
        Column::new(
            "freed_by",
            "FREED BY",
            cells(|bug| freed(bug, |call| Value::Count(call.tid.0.into()))),
        ),
        Column::new("made_by", "MADE BY", cells(|bug| mismatch(bug, |it| family(it.made_by).0))),
        Column::new("freed_as", "FREED AS", cells(|bug| mismatch(bug, |it| family(it.freed_as).0))),
        Column::new(
            "freed_size",
            "FREED SIZE",
            cells(|bug| {
                let size = bug.mismatch.and_then(|it| it.freed_size);
                size.map_or(Value::None, Value::Bytes)
            }),
        ),
        Column::new("free_stack", "FREE", cells(|bug| freed(bug, |call| frames(&call.stack)))),
    ];
    let described = columns
        .into_iter()
        .map(|column| Column { meaning: meaning(&column.key).into(), ..column })
        .collect();
    table("bugs", "", Audience::Programs, described)
}

/// One mistake with its call stacks, for people.
fn stacks(bug: &Bug, number: usize) -> Table {
    let mut rows: Vec<(String, Value, Value, Value)> = Vec::new();
    for (title, stack) in parts(bug) {
        let mut title = title;
        match stack {
            Ok(frames) => {
                for frame in frames {
                    let inlined = if frame.inlined { " (inlined)" } else { "" };
                    let function = [name(frame).as_bytes(), inlined.as_bytes()].concat();
                    let module = frame.module.as_ref().map(|module| Name::new(module.base()));
                    let line = Some(line(frame)).filter(|line| !line.is_empty());
                    rows.push((
                        std::mem::take(&mut title),
                        Value::Name(Name::new(&function)),
                        line.map_or(Value::None, |it| Value::Name(Name::new(it.trim().as_bytes()))),
                        module.map_or(Value::None, Value::Name),
                    ));
                }
            }
            Err(absent) => {
                rows.push((title, Value::Absent(absent.clone()), Value::None, Value::None))
            }
        }
    }
    let column = |key: &'static str,
                  label: &'static str,
                  cell: fn(&(String, Value, Value, Value)) -> Value| {
        Column::new(key, label, Cells::Values(rows.iter().map(cell).collect()))
    };
    let columns = vec![
        column("who", "WHO", |row| Value::text(row.0.clone())),
        column("function", "FUNCTION", |row| row.1.clone()),
        column("line", "LINE", |row| row.2.clone()),
        column("module", "MODULE", |row| row.3.clone()),
    ];
    Table {
        title: format!("{number}: {}; thread {}", sentence(bug), bug.tid).into(),
        ..table("stacks", "", Audience::People, columns)
    }
}

/// The signal that killed the command.
fn ended_by(guarded: &Guarded) -> Option<String> {
    let Ending::Killed(signal) = guarded.ending else { return None };
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => return Some(format!("signal {signal}")),
    };
    Some(name.to_owned())
}

fn remarks(guarded: &Guarded) -> Vec<Paragraph> {
    let mut remarks: Vec<String> = Vec::new();
    if guarded.means.is_err() {
        remarks.push("Nothing was guarded.".to_owned());
    } else if let (Some(signal), true) = (ended_by(guarded), guarded.bugs.is_empty()) {
        remarks.push(format!(
            "The command was killed by {signal}, and no mistake was found before. Where it was is not known: the signal was sent, \
             or no handler could run, as where a stack is too small."
        ));
    } else if guarded.bugs.is_empty() {
        remarks.push(match guarded.rate {
            1 => "Nothing wrong was found.".to_owned(),
            rate => format!(
                "Nothing wrong was found with those that were guarded, one allocation in {rate}."
            ),
        });
    }
    if guarded.bugs_dropped > 0 {
        remarks.push(format!(
            "{} more mistakes were told when {} were kept: they are counted only.",
            guarded.bugs_dropped,
            guarded.bugs.len()
        ));
    }
    if guarded.left_out > 0 {
        let room = match guarded.means {
            Ok(Means::Mappings) => "more memory (--most) or more mappings would have been needed",
            _ => "--most gives them more memory",
        };
        remarks
            .push(format!("{} objects were to be guarded and were not: {room}.", guarded.left_out));
    }
    if guarded.means == Ok(Means::Mappings) {
        remarks.push(
            "This kernel has no guard marks (MADV_GUARD_INSTALL, Linux 6.13): each object takes two mappings, of which a \
             process may have only so many (vm.max_map_count)."
                .to_owned(),
        );
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![Value::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
