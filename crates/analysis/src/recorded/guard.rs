//! Memory errors of a program: each with its call stacks.

use pagewise_model::ending::{ProgramEnding, signal_name};
use pagewise_model::guard::{
    AllocatorCall, BugAccess, BugKind, Family, FreeMismatch, GuardMeans, Guarded, MemoryBug,
};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, NamedFacts, Paragraph, Report, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::traced::Frame;
use pagewise_model::{Name, Reading};

use crate::blocks::{ended, facts_of, process, table};
use crate::explain::fact;
use crate::heap::frames::{full, name};

/// Memory errors as a report: `guard` and `bugs`. With `told`, each was printed for people when it
/// occurred, and is not printed again.
pub fn guard(guarded: &Guarded, told: bool) -> Report {
    let mut blocks = vec![ReportBlock::Facts(guard_facts(guarded))];
    blocks.push(ReportBlock::Table(bugs(guarded)));
    if !told {
        let numbered = guarded.bugs.iter().enumerate();
        blocks.extend(numbered.map(|(index, bug)| ReportBlock::Table(stacks(bug, index + 1))));
    }
    blocks.extend(remarks(guarded).into_iter().map(ReportBlock::Text));
    let command = guarded.command.first().map_or(Name::default(), |word| Name::new(word.base()));
    let title = vec![
        CellValue::text("Misuse of the heap by "),
        CellValue::Name(command),
        CellValue::text(format!(" ({})", guarded.pid)),
    ];
    Report { schema: "pagewise.guard/1", title, blocks }
}

/// A memory error at its occurrence, for people: its kind, then its call stacks, a line for each
/// call.
pub fn lines(bug: &MemoryBug, number: usize) -> Vec<Vec<CellValue>> {
    let mut lines = vec![vec![
        CellValue::text(format!("pagewise: {number}: {}; thread {} ", sentence(bug), bug.tid)),
        CellValue::Name(bug.thread.clone()),
        CellValue::text(" of "),
        CellValue::Name(Name::new(bug.program.base())),
        CellValue::text(format!(" ({})", bug.pid)),
    ]];
    for (title, stack) in parts(bug) {
        lines.push(vec![CellValue::text(format!("    {title}"))]);
        match stack {
            Ok(frames) => lines.extend(frames.iter().map(|frame| {
                let text = [name(frame).as_bytes(), line(frame).as_bytes()].concat();
                vec![CellValue::text("        "), CellValue::Name(Name::new(&text))]
            })),
            Err(absent) => {
                lines.push(vec![CellValue::text("        ? "), CellValue::text(absent.to_string())])
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

fn kind(kind: BugKind) -> &'static str {
    match kind {
        BugKind::Overflow => "overflow",
        BugKind::Underflow => "underflow",
        BugKind::UseAfterFree => "use-after-free",
        BugKind::DoubleFree => "double-free",
        BugKind::InvalidFree => "invalid-free",
        BugKind::Wild => "wild",
        BugKind::Mismatch => "mismatch",
        BugKind::Segv => "segv",
        BugKind::Bus => "bus",
    }
}

fn access(access: BugAccess) -> &'static str {
    match access {
        BugAccess::Read => "read",
        BugAccess::Write => "write",
        BugAccess::Execute => "execute",
        BugAccess::Free => "free",
        BugAccess::WrittenBeforeFree => "written before free",
        BugAccess::WrittenBeforeEnd => "written before end",
    }
}

/// Functions of a family: one that allocates, one that frees.
fn family(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Malloc => ("malloc", "free"),
        Family::New => ("new", "delete"),
        Family::NewArray => ("new[]", "delete[]"),
    }
}

/// Functions of a mismatch.
fn mismatched(it: FreeMismatch) -> String {
    let (made, freed) = (family(it.made_by).0, family(it.freed_as).1);
    let size = it.freed_size.filter(|_| it.made_by == it.freed_as);
    let size = size.map(|size| format!(" as {}", count(size)));
    format!("allocated with {made}, freed with {freed}{}", size.unwrap_or_default())
}

/// Sentence that describes the error.
fn sentence(bug: &MemoryBug) -> String {
    if let Some(mismatch) = bug.mismatch {
        return format!("mismatched free: {}: {}", place(bug), mismatched(mismatch));
    }
    let what = match bug.kind {
        BugKind::Overflow => "heap overflow",
        BugKind::Underflow => "heap underflow",
        BugKind::UseAfterFree => "use after free",
        BugKind::DoubleFree => "double free",
        BugKind::InvalidFree => "free of an address that is not an object",
        BugKind::Wild => "access to memory of no object",
        BugKind::Mismatch => "mismatched free",
        BugKind::Segv => "killed by SIGSEGV",
        BugKind::Bus => "killed by SIGBUS",
    };
    let how = match bug.access {
        BugAccess::Read => "a read",
        BugAccess::Write => "a write",
        BugAccess::Execute => "a jump",
        BugAccess::Free => "a free",
        BugAccess::WrittenBeforeFree | BugAccess::WrittenBeforeEnd => "an earlier write",
    };
    format!("{what}: {how} {}", place(bug))
}

fn count(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") }
}

fn place(bug: &MemoryBug) -> String {
    let Some(object) = &bug.object else { return format!("at {:#x}", bug.address) };
    let whole = format!("an object of {} at {:#x}", count(object.size), object.address);
    match bug.distance() {
        Some(distance) if bug.address < object.address => {
            format!("{} before {whole}", count(distance))
        }
        Some(distance) => format!("{} after the end of {whole}", count(distance)),
        None if bug.address == object.address => format!("at the beginning of {whole}"),
        None => format!("at offset {} of {whole}", bug.address - object.address),
    }
}

/// The call stacks, each with its title.
fn parts(bug: &MemoryBug) -> Vec<(String, &Reading<Vec<Frame>>)> {
    let first = match bug.access {
        BugAccess::Read => "read by",
        BugAccess::Write => "written by",
        BugAccess::Execute => "executed by",
        BugAccess::Free => "freed by",
        BugAccess::WrittenBeforeFree => "found when it was freed by",
        BugAccess::WrittenBeforeEnd => "found at the program's end",
    };
    let mut parts = vec![(first.to_owned(), &bug.stack)];
    if let Some(object) = &bug.object {
        let part = |word: &str, call: &AllocatorCall| format!("{word} by thread {}", call.tid);
        parts.push((part("allocated", &object.allocated), &object.allocated.stack));
        if let Some(call) = &object.freed {
            parts.push((part("freed before", call), &call.stack));
        }
    }
    parts
}

fn guard_facts(guarded: &Guarded) -> NamedFacts {
    let [pid, command] = process(guarded.pid, &guarded.command);
    let means = CellValue::from_reading(guarded.means.clone(), |means| {
        CellValue::text(match means {
            GuardMeans::Moves => "moves",
            GuardMeans::Marks => "marks",
            GuardMeans::Mappings => "mappings",
        })
    });
    // The counts of processes that did not exit normally are unknown.
    let told = |value: CellValue| {
        if guarded.told > 0 {
            value
        } else if let Err(absent) = &guarded.means {
            CellValue::Absent(absent.clone())
        } else {
            let why = "processes that are killed do not say how much they guarded";
            CellValue::Absent(pagewise_model::Absent::NotCollected(why.into()))
        }
    };
    facts_of(
        "guard",
        "",
        FactsShape::Line,
        vec![
            pid,
            command,
            fact(
                "bugs",
                "bugs",
                CellValue::Count(guarded.bugs.len() as u64 + guarded.bugs_dropped),
                meaning("bugs"),
            ),
            fact(
                "bugs_dropped",
                "not kept",
                CellValue::Count(guarded.bugs_dropped),
                meaning("bugs_dropped"),
            )
            .hidden_if(guarded.bugs_dropped == 0),
            fact("rate", "one in", CellValue::Count(guarded.rate), meaning("rate")),
            fact("guarded", "guarded", told(CellValue::Count(guarded.guarded)), meaning("guarded")),
            fact(
                "left_out",
                "left out",
                told(CellValue::Count(guarded.left_out)),
                meaning("left_out"),
            )
            .hidden_if(guarded.left_out == 0),
            fact(
                "most_bytes",
                "at most",
                told(CellValue::Bytes(guarded.most_bytes)),
                meaning("most_bytes"),
            ),
            fact("means", "by", means, meaning("means")).hidden_if(true),
            fact(
                "processes",
                "processes",
                CellValue::Count(guarded.processes),
                meaning("processes"),
            )
            .hidden_if(guarded.processes < 2),
            fact("told", "told", CellValue::Count(guarded.told), meaning("told")).hidden_if(true),
            fact("seconds", "after", CellValue::Seconds(guarded.took_ns), ""),
            fact("ending", "ended", ended(guarded.ending), ""),
        ],
    )
}

/// Meaning of a column.
fn meaning(column: &str) -> &'static str {
    let field = pagewise_model::fields::named(column).find(|field| field.source == "guard");
    field.map_or("", |field| field.meaning)
}

fn frames(stack: &Reading<Vec<Frame>>) -> CellValue {
    CellValue::from_reading(stack.clone(), |frames| {
        CellValue::List(frames.iter().map(|frame| CellValue::Name(full(frame))).collect())
    })
}

/// Each memory error, for programs.
fn bugs(guarded: &Guarded) -> ReportTable {
    let cells = |cell: fn(&MemoryBug) -> CellValue| {
        ColumnCells::Values(guarded.bugs.iter().map(cell).collect())
    };
    fn object(
        bug: &MemoryBug,
        cell: fn(&pagewise_model::guard::GuardedObject) -> CellValue,
    ) -> CellValue {
        bug.object.as_ref().map_or(CellValue::None, cell)
    }
    fn freed(bug: &MemoryBug, cell: fn(&AllocatorCall) -> CellValue) -> CellValue {
        let call = bug.object.as_ref().and_then(|object| object.freed.as_ref());
        call.map_or(CellValue::None, cell)
    }
    fn mismatch(bug: &MemoryBug, cell: fn(&FreeMismatch) -> &'static str) -> CellValue {
        bug.mismatch.as_ref().map_or(CellValue::None, |it| CellValue::text(cell(it)))
    }
    let columns = vec![
        TableColumn::new("kind", "KIND", cells(|bug| CellValue::text(kind(bug.kind)))),
        TableColumn::new("access", "ACCESS", cells(|bug| CellValue::text(access(bug.access)))),
        TableColumn::new("address", "ADDRESS", cells(|bug| CellValue::Address(bug.address))),
        TableColumn::new(
            "distance",
            "DISTANCE",
            cells(|bug| bug.distance().map_or(CellValue::None, CellValue::Count)),
        ),
        TableColumn::new(
            "object",
            "OBJECT",
            cells(|bug| object(bug, |it| CellValue::Address(it.address))),
        ),
        TableColumn::new("size", "SIZE", cells(|bug| object(bug, |it| CellValue::Bytes(it.size)))),
        TableColumn::new("pid", "PID", cells(|bug| CellValue::Count(bug.pid.0.into()))),
        TableColumn::new("tid", "TID", cells(|bug| CellValue::Count(bug.tid.0.into()))),
        TableColumn::new("thread", "THREAD", cells(|bug| CellValue::Name(bug.thread.clone()))),
        TableColumn::new("program", "PROGRAM", cells(|bug| CellValue::Name(bug.program.clone()))),
        TableColumn::new("goes_on", "CONTINUED", cells(|bug| CellValue::Flag(bug.goes_on))),
        TableColumn::new("stack", "STACK", cells(|bug| frames(&bug.stack))),
        TableColumn::new(
            "allocated_by",
            "ALLOCATED BY",
            cells(|bug| object(bug, |it| CellValue::Count(it.allocated.tid.0.into()))),
        ),
        TableColumn::new(
            "allocation_stack",
            "ALLOCATION",
            cells(|bug| object(bug, |it| frames(&it.allocated.stack))),
        ),
        TableColumn::new(
            "freed_by",
            "FREED BY",
            cells(|bug| freed(bug, |call| CellValue::Count(call.tid.0.into()))),
        ),
        TableColumn::new(
            "made_by",
            "MADE BY",
            cells(|bug| mismatch(bug, |it| family(it.made_by).0)),
        ),
        TableColumn::new(
            "freed_as",
            "FREED AS",
            cells(|bug| mismatch(bug, |it| family(it.freed_as).0)),
        ),
        TableColumn::new(
            "freed_size",
            "FREED SIZE",
            cells(|bug| {
                let size = bug.mismatch.and_then(|it| it.freed_size);
                size.map_or(CellValue::None, CellValue::Bytes)
            }),
        ),
        TableColumn::new("free_stack", "FREE", cells(|bug| freed(bug, |call| frames(&call.stack)))),
    ];
    let described = columns
        .into_iter()
        .map(|column| TableColumn { meaning: meaning(&column.key).into(), ..column })
        .collect();
    table("bugs", "", Audience::Programs, described)
}

/// One memory error with its call stacks, for people.
fn stacks(bug: &MemoryBug, number: usize) -> ReportTable {
    let mut rows: Vec<(String, CellValue, CellValue, CellValue)> = Vec::new();
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
                        CellValue::Name(Name::new(&function)),
                        line.map_or(CellValue::None, |it| {
                            CellValue::Name(Name::new(it.trim().as_bytes()))
                        }),
                        module.map_or(CellValue::None, CellValue::Name),
                    ));
                }
            }
            Err(absent) => rows.push((
                title,
                CellValue::Absent(absent.clone()),
                CellValue::None,
                CellValue::None,
            )),
        }
    }
    let column =
        |key: &'static str,
         label: &'static str,
         cell: fn(&(String, CellValue, CellValue, CellValue)) -> CellValue| {
            TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(cell).collect()))
        };
    let columns = vec![
        column("who", "STACK OF", |row| CellValue::text(row.0.clone())),
        column("function", "FUNCTION", |row| row.1.clone()),
        column("line", "LINE", |row| row.2.clone()),
        column("module", "MODULE", |row| row.3.clone()),
    ];
    ReportTable {
        title: format!("{number}: {}; thread {}", sentence(bug), bug.tid).into(),
        ..table("stacks", "", Audience::People, columns)
    }
}

/// The signal that killed the command.
fn ended_by(guarded: &Guarded) -> Option<String> {
    let ProgramEnding::Killed(signal) = guarded.ending else { return None };
    let name = u32::try_from(signal).ok().and_then(signal_name);
    Some(name.map_or_else(|| format!("signal {signal}"), str::to_owned))
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
            "{} more memory errors were reported after {} had been stored: they are counted only.",
            guarded.bugs_dropped,
            guarded.bugs.len()
        ));
    }
    if guarded.left_out > 0 {
        let room = match guarded.means {
            Ok(GuardMeans::Mappings) => {
                "more memory (--most) or more mappings would have been needed"
            }
            _ => "--most gives them more memory",
        };
        remarks.push(format!(
            "{} objects were selected for guarding but not guarded: {room}.",
            guarded.left_out
        ));
    }
    if guarded.means == Ok(GuardMeans::Mappings) {
        remarks.push(
            "This kernel has no guard marks (MADV_GUARD_INSTALL, Linux 6.13): each object takes two mappings, of which a \
             process may have only so many (vm.max_map_count)."
                .to_owned(),
        );
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}
