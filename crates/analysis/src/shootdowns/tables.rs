//! The tables of a report about shootdowns.

use std::collections::BTreeMap;

use pagewise_model::bounds::OTHER_THREADS;
use pagewise_model::histogram::Histogram;
use pagewise_model::report::{Audience, Cells, Column, Label, Table, Value};
use pagewise_model::shootdowns::{Caller, NO_PID, Process, Thread};
use pagewise_model::traced::Frame;
use pagewise_model::{Name, Reading};

use super::causes::Cause;
use super::{CALLS, FLUSH, Options, Sum, Told, share, unknown};
use crate::blocks::{for_programs, table};

fn values(values: impl IntoIterator<Item = Value>) -> Cells {
    Cells::Values(values.into_iter().collect())
}

/// The number of a process; those that are not kept apart have none.
fn number(pid: u32) -> Value {
    if pid == NO_PID { Value::None } else { Value::Count(pid.into()) }
}

fn counts(counts: impl IntoIterator<Item = u64>) -> Cells {
    Cells::Counts(counts.into_iter().collect())
}

fn labels(labels: impl IntoIterator<Item = String>) -> Cells {
    Cells::Labels(labels.into_iter().map(Label::from).collect())
}

fn seen_by(audience: Audience, column: Column) -> Column {
    Column { audience, ..column }
}

/// Nothing for people where there are no rows.
fn some_rows(table: Table) -> Table {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    Table { audience, ..table }
}

/// The first rows, and a note of how many there are more.
fn first<'r, T>(rows: &'r [T], options: &Options) -> (&'r [T], Label) {
    let shown = options.limit.unwrap_or(usize::MAX).min(rows.len());
    let left = rows.len() - shown;
    let note = if left == 0 { "".into() } else { format!("and {left} more: --rows all").into() };
    (&rows[..shown], note)
}

/// The columns of sums: what was asked for, of whom, and how long it took.
fn sum_columns(told: &Told<'_>, sums: &[Sum]) -> Vec<Column> {
    let queued =
        |of: fn(&Sum) -> u64| values(sums.iter().map(|sum| told.queued(Value::Count(of(sum)))));
    let per_order = sums.iter().map(|sum| sum.pages_per_order().map_or(Value::None, Value::Number));
    let waited = sums.iter().map(|sum| told.ended(Value::Seconds(sum.waited)));
    let part = |sum: &Sum| share(sum.orders, told.all.orders).map_or(Value::None, Value::Share);
    vec![
        Column::new("ipis", "IPIS", queued(|sum| sum.ipis)),
        Column::new("waited", "WAITED", values(waited)),
        Column::new("flush_orders", "ORDERS", counts(sums.iter().map(|sum| sum.orders))),
        seen_by(
            Audience::Long,
            Column {
                meaning: "The part of all orders to flush.".into(),
                ..Column::new("share", "SHARE", values(sums.iter().map(part)))
            },
        ),
        seen_by(
            Audience::Long,
            Column::new("shootdowns", "SHOOTDOWNS", queued(|sum| sum.shootdowns)),
        ),
        Column::new("pages_per_order", "PAGES EACH", values(per_order)),
        seen_by(
            Audience::Long,
            Column::new("full_orders", "FULL", counts(sums.iter().map(|sum| sum.full))),
        ),
        seen_by(
            Audience::Long,
            Column::new("local_flushes", "LOCAL", counts(sums.iter().map(|sum| sum.local))),
        ),
    ]
}

pub(super) fn by_cause(told: &Told<'_>) -> Table {
    let (causes, sums): (Vec<&Cause>, Vec<Sum>) = told.by_cause().into_iter().unzip();
    let mut columns = sum_columns(told, &sums);
    let seen = columns.iter_mut().filter(|column| column.key != "full_orders");
    seen.for_each(|column| column.audience = Audience::Everyone);
    columns.push(Column {
        meaning: "What the kernel was doing, by its functions on the stack.".into(),
        ..Column::new("cause", "CAUSE", labels(causes.iter().map(|cause| cause.name())))
    });
    some_rows(table("by_cause", "By cause", Audience::Everyone, columns))
}

/// Where in a program: the innermost function that is known by its line; else the innermost that is not of the C library.
fn place(stack: &[Frame]) -> Option<&Frame> {
    const LIBRARIES: &[&[u8]] = &[b"libc.so", b"libc-", b"ld-", b"libpthread", b"libgcc_s"];
    let is_library = |frame: &&Frame| {
        let module = frame.module.as_ref().map(|module| Name::new(module.base()));
        module.is_some_and(|module| {
            LIBRARIES.iter().any(|library| module.as_bytes().starts_with(library))
        })
    };
    let has_line = |frame: &&Frame| frame.line.as_ref().is_some_and(|line| line.number > 0);
    let own = stack.iter().find(|frame| !is_library(frame) && has_line(frame));
    let is_named = |frame: &&Frame| frame.function.is_some() || frame.module.is_some();
    own.or_else(|| stack.iter().find(|frame| !is_library(frame) && is_named(frame)))
        .or_else(|| stack.first())
}

/// The function of a frame, or the place in its file.
fn function(frame: &Frame) -> Name {
    match (&frame.function, &frame.module) {
        (Some(function), _) => Name::new(function.as_bytes()),
        (None, Some(module)) => {
            Name::new(&[module.base(), format!("+{:#x}", frame.offset).as_bytes()].concat())
        }
        (None, None) => Name::new(format!("{:#x}", frame.offset).as_bytes()),
    }
}

fn line(frame: &Frame, whole: bool) -> Option<Name> {
    let line = frame.line.as_ref().filter(|line| line.number > 0)?;
    let path = Name::new(line.file.as_bytes());
    let path = if whole { path.as_bytes() } else { path.base() };
    Some(Name::new(&[path, format!(":{}", line.number).as_bytes()].concat()))
}

/// Who a stack is of, in one name: its place; of the kernel's own threads the outermost function that is not the same for all.
fn who(stack: &[Frame], chain: &[String]) -> Reading<Name> {
    const OF_ALL: &[&str] = &["kthread", "ret_from_fork", "ret_from_fork_asm"];
    let kernels = || {
        let own = chain.iter().rev().find(|name| !OF_ALL.contains(&name.as_str()))?;
        Some(Name::new(own.as_bytes()))
    };
    place(stack).map(function).or_else(kernels).map_or_else(unknown, Ok)
}

fn named(reading: Reading<Name>) -> Value {
    Value::of(reading, Value::Name)
}

/// A stack for programs: function and line of each.
fn frames(stack: &[Frame]) -> Value {
    let record = |frame: &Frame| {
        Value::Record(vec![
            ("function".into(), Value::Name(function(frame))),
            ("line".into(), line(frame, true).map_or(Value::None, Value::Name)),
            ("module".into(), frame.module.clone().map_or(Value::None, Value::Name)),
            ("inlined".into(), Value::Flag(frame.inlined)),
        ])
    };
    Value::List(stack.iter().map(record).collect())
}

/// The callers of a place in one line.
fn callers(stack: &[Frame]) -> Name {
    const DEEPEST: usize = 4;
    let own = place(stack);
    let behind = stack.iter().skip_while(|frame| Some(*frame) != own).skip(1);
    let names: Vec<Name> = behind.take(DEEPEST).map(function).collect();
    Name::new(&names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b" < "[..]))
}

/// The process of a row; for programs only where there is but one.
fn process_columns(told: &Told<'_>, rows: impl Iterator<Item = usize> + Clone) -> Vec<Column> {
    let (mut others, first) = (rows.clone(), rows.clone().next());
    let is_one = others.all(|row| Some(row) == first) && told.recording.pid.is_some();
    let audience = if is_one { Audience::Programs } else { Audience::Everyone };
    let of = |row: usize| told.recording.processes.get(row);
    let pid = |row| of(row).map_or(Value::None, |it: &Process| number(it.pid));
    let name = |row| of(row).map_or(Value::None, |it: &Process| Value::Name(it.name.clone()));
    vec![
        seen_by(audience, Column::new("pid", "PID", values(rows.clone().map(pid)))),
        seen_by(audience, Column::new("process", "PROCESS", values(rows.map(name)))),
    ]
}

pub(super) fn by_stack(told: &Told<'_>, options: &Options) -> Table {
    // Of one place, what the kernel did differently on the way is no matter.
    let mut sums: BTreeMap<(usize, usize, &Cause), (Sum, &[String])> = BTreeMap::new();
    for (site, cause) in told.recording.sites.iter().zip(&told.causes) {
        let entry = sums.entry((site.process, site.stack, cause));
        entry.or_insert_with(|| (Sum::default(), told.chain(site))).0.add(site);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, (sum, _))| std::cmp::Reverse((sum.ipis, sum.orders, sum.local)));
    if options.limit.is_some() {
        // What flushed its own CPU only costs little.
        rows.retain(|(_, (sum, _))| sum.orders > 0);
    }
    let (shown, note) = first(&rows, options);
    let stack = |row: usize| told.recording.stacks.get(row).map_or(&[][..], Vec::as_slice);
    let each = || shown.iter();
    let lines = each().map(|((_, at, _), _)| {
        place(stack(*at)).and_then(|frame| line(frame, false)).map_or(Value::None, Value::Name)
    });
    let kernel = |chain: &[String]| {
        Value::List(chain.iter().map(|name| Value::Name(Name::new(name.as_bytes()))).collect())
    };
    let sums: Vec<Sum> = each().map(|(_, (sum, _))| *sum).collect();
    let mut columns = sum_columns(told, &sums);
    columns.push(Column::new(
        "cause",
        "CAUSE",
        labels(each().map(|((.., cause), _)| cause.name())),
    ));
    columns.push(Column {
        meaning: "The innermost function of the program that is known by its line.".into(),
        ..Column::new(
            "function",
            "FUNCTION",
            values(each().map(|((_, at, _), (_, chain))| named(who(stack(*at), chain)))),
        )
    });
    columns.push(Column {
        meaning: "The line of the source, where there is debugging information.".into(),
        ..Column::new("line", "LINE", values(lines))
    });
    columns.push(seen_by(
        Audience::People,
        Column {
            meaning: "The functions that called it, the innermost first.".into(),
            ..Column::new(
                "callers",
                "CALLED BY",
                Cells::Names(each().map(|((_, at, _), _)| callers(stack(*at))).collect()),
            )
        },
    ));
    columns.extend(process_columns(told, each().map(|((process, ..), _)| *process)));
    columns.push(for_programs(Column::new(
        "stack",
        "STACK",
        values(each().map(|((_, at, _), _)| frames(stack(*at)))),
    )));
    columns.push(for_programs(Column::new(
        "kernel",
        "KERNEL",
        values(each().map(|(_, (_, chain))| kernel(chain))),
    )));
    some_rows(Table { note, ..table("by_stack", "By call stack", Audience::Everyone, columns) })
}

/// The name of a call with what it was asked for.
fn call_name(told: &Told<'_>, call: usize) -> String {
    told.recording.calls.get(call).map_or_else(String::new, |call| {
        Cause::Call { name: call.name.clone(), advice: call.advice }.name()
    })
}

pub(super) fn calls(told: &Told<'_>, options: &Options) -> Table {
    let mut rows: Vec<&Caller> = told.recording.callers.iter().collect();
    if options.limit.is_some() && rows.iter().any(|row| row.shooting > 0) {
        rows.retain(|row| row.shooting > 0);
    }
    rows.sort_by_key(|row| std::cmp::Reverse((row.shooting, row.calls)));
    let (shown, note) = first(&rows, options);
    let stack = |row: &Caller| told.recording.stacks.get(row.stack).map_or(&[][..], Vec::as_slice);
    let each = || shown.iter().copied();
    let mean = |sum: u64, count: u64| match sum.checked_div(count) {
        Some(mean) => Value::Nanos(mean),
        None => Value::None,
    };
    let lines = each().map(|row| {
        place(stack(row)).and_then(|frame| line(frame, false)).map_or(Value::None, Value::Name)
    });
    let mut columns = vec![
        Column {
            meaning: "How often it was called.".into(),
            ..Column::new("count", "COUNT", counts(each().map(|row| row.calls)))
        },
        Column::new("shooting", "SHOOTING", counts(each().map(|row| row.shooting))),
        Column::new(
            "shooting_ns",
            "TAKES",
            values(each().map(|row| mean(row.shooting_ns, row.shooting))),
        ),
        Column::new(
            "quiet_ns",
            "OTHERWISE",
            values(each().map(|row| mean(row.quiet_ns, row.calls - row.shooting))),
        ),
        Column {
            meaning: "The system call.".into(),
            ..Column::new("call", "CALL", labels(each().map(|row| call_name(told, row.call))))
        },
        Column {
            meaning: "The innermost function of the program that is known by its line.".into(),
            ..Column::new(
                "function",
                "FUNCTION",
                values(each().map(|row| named(who(stack(row), &[])))),
            )
        },
        Column {
            meaning: "The line of the source, where there is debugging information.".into(),
            ..Column::new("line", "LINE", values(lines))
        },
        seen_by(
            Audience::Long,
            Column {
                meaning: "The functions that called it, the innermost first.".into(),
                ..Column::new(
                    "callers",
                    "CALLED BY",
                    Cells::Names(each().map(|row| callers(stack(row))).collect()),
                )
            },
        ),
    ];
    columns.extend(process_columns(told, each().map(|row| row.process)));
    columns.push(for_programs(Column::new(
        "stack",
        "STACK",
        values(each().map(|row| frames(stack(row)))),
    )));
    some_rows(Table {
        note,
        ..table("calls", "Calls that can flush, by who makes them", Audience::Everyone, columns)
    })
}

/// Everything that has a distribution of times, with what it is.
fn distributions<'t>(
    told: &'t Told<'_>,
    options: &Options,
) -> Vec<(String, Reading<&'t Histogram>)> {
    let recording = told.recording;
    let ends = |times| match told.ended(Value::None) {
        Value::Absent(absent) => Err(absent),
        _ => Ok(times),
    };
    let mut all = vec![
        ("wait for all CPUs".to_owned(), ends(&recording.waits)),
        ("one CPU, queue to done".to_owned(), ends(&recording.reaches)),
    ];
    if let Some(missing) = CALLS.iter().find(|name| !recording.has(name)) {
        all.push(("system calls".to_owned(), Err(recording.why_not(missing))));
    }
    let mut calls: Vec<usize> = (0..recording.calls.len()).collect();
    if options.limit.is_some() {
        // The others take as long as they would anyway.
        calls.retain(|&at| recording.calls[at].shooting.count() > 0);
    }
    calls.sort_by_key(|&at| {
        let call = &recording.calls[at];
        std::cmp::Reverse((call.shooting.count(), call.quiet.count()))
    });
    for at in calls {
        let (name, call) = (call_name(told, at), &recording.calls[at]);
        let with = [
            (", shooting", &call.shooting),
            (", not", &call.quiet),
            (", shooting, in the program", &call.around_shooting),
            (", not, in the program", &call.around_quiet),
        ];
        let with = with.into_iter().filter(|(_, times)| times.count() > 0);
        all.extend(with.map(|(what, times)| (format!("{name}{what}"), Ok(times))));
    }
    all
}

pub(super) fn latency(told: &Told<'_>, options: &Options) -> Table {
    let all = distributions(told, options);
    let column = |of: &dyn Fn(&Histogram) -> Value| {
        values(all.iter().map(|(_, times)| match times {
            Ok(times) => of(times),
            Err(absent) => Value::Absent(absent.clone()),
        }))
    };
    let percentile = |share: f64| {
        column(&move |times| times.percentile(share).map_or(Value::None, Value::Nanos))
    };
    let longest = |times: &Histogram| match times.count() {
        0 => Value::None,
        _ => Value::Nanos(times.longest()),
    };
    let mean = |times: &Histogram| match times.sum().checked_div(times.count()) {
        Some(mean) => Value::Nanos(mean),
        None => Value::None,
    };
    let meaning =
        |meaning: &'static str, column: Column| Column { meaning: meaning.into(), ..column };
    let columns = vec![
        meaning(
            "From the order until the last CPU was done; from putting it into one CPU's queue until that was done; or a \
             system call from entry to exit.",
            Column::new("what", "WHAT", labels(all.iter().map(|(what, _)| what.clone()))),
        ),
        meaning(
            "How many.",
            Column::new("count", "COUNT", column(&|times| Value::Count(times.count()))),
        ),
        meaning("The mean.", Column::new("mean", "MEAN", column(&mean))),
        meaning("Half of them took no longer.", Column::new("p50", "P50", percentile(0.5))),
        meaning("Nine in ten took no longer.", Column::new("p90", "P90", percentile(0.9))),
        meaning("99 in a hundred took no longer.", Column::new("p99", "P99", percentile(0.99))),
        meaning("The longest.", Column::new("max", "MAX", column(&longest))),
    ];
    let audience = if told.recording.has(FLUSH) { Audience::Everyone } else { Audience::Programs };
    table("latency", "How long it takes", audience, columns)
}

/// The distributions themselves.
pub(super) fn histograms(told: &Told<'_>) -> Table {
    let all: Vec<(String, &Histogram)> = distributions(told, &Options::default())
        .into_iter()
        .filter_map(|(what, times)| Some((what, times.ok()?)))
        .collect();
    let cells = |times: &Histogram| {
        let cell = |(ns, count): (u64, u64)| {
            Value::Record(vec![
                ("up_to_ns".into(), Value::Nanos(ns)),
                ("count".into(), Value::Count(count)),
            ])
        };
        Value::List(times.cells().map(cell).collect())
    };
    let columns = vec![
        Column::new("what", "WHAT", labels(all.iter().map(|(what, _)| what.clone()))),
        Column::new("cells", "CELLS", values(all.iter().map(|(_, times)| cells(times)))),
    ];
    table("histograms", "", Audience::Programs, columns)
}

pub(super) fn by_cpu(told: &Told<'_>) -> Table {
    let each = || told.recording.cpus.iter();
    let reading = |reading: &Reading<u64>| Value::of(reading.clone(), Value::Count);
    let columns = vec![
        Column {
            meaning: "The CPU's number.".into(),
            ..Column::new("cpu", "CPU", counts(each().map(|cpu| cpu.cpu.into())))
        },
        Column::new(
            "ipis_sent",
            "SENT",
            values(each().map(|cpu| told.queued(Value::Count(cpu.sent)))),
        ),
        Column::new(
            "received",
            "RECEIVED",
            values(each().map(|cpu| told.flushed(Value::Count(cpu.received)))),
        ),
        Column::new(
            "call_function_interrupts",
            "INTERRUPTS",
            values(each().map(|cpu| reading(&cpu.interrupts))),
        ),
        Column::new(
            "machine_shootdowns",
            "MACHINE",
            values(each().map(|cpu| reading(&cpu.machine))),
        ),
    ];
    some_rows(table("by_cpu", "By CPU", Audience::Everyone, columns))
}

pub(super) fn by_process(told: &Told<'_>, options: &Options) -> Table {
    let mut sums: Vec<Sum> = vec![Sum::default(); told.recording.processes.len()];
    for site in &told.recording.sites {
        if let Some(sum) = sums.get_mut(site.process) {
            sum.add(site);
        }
    }
    let mut rows: Vec<(usize, &Process, Sum)> = told
        .recording
        .processes
        .iter()
        .zip(sums)
        .enumerate()
        .map(|(at, (process, sum))| (at, process, sum))
        .filter(|(_, process, sum)| process.received + sum.orders + sum.local > 0)
        .collect();
    rows.sort_by_key(|(_, process, sum)| std::cmp::Reverse((sum.ipis, process.received)));
    let (shown, note) = first(&rows, options);
    let sums: Vec<Sum> = shown.iter().map(|(.., sum)| *sum).collect();
    let mut columns = vec![Column::new(
        "received",
        "RECEIVED",
        counts(shown.iter().map(|(_, process, _)| process.received)),
    )];
    columns.extend(sum_columns(told, &sums));
    columns.extend([
        Column::new("pid", "PID", values(shown.iter().map(|(_, process, _)| number(process.pid)))),
        Column::new(
            "process",
            "PROCESS",
            Cells::Names(shown.iter().map(|(_, process, _)| process.name.clone()).collect()),
        ),
    ]);
    let audience = if rows.len() > 1 { Audience::Everyone } else { Audience::Programs };
    Table { note, ..table("by_process", "By process", audience, columns) }
}

/// The number of a thread; that of an idle CPU is 0, and those that are not kept apart have none.
fn tid(thread: &Thread) -> Value {
    match thread.name.as_bytes() == OTHER_THREADS.as_bytes() {
        true => Value::None,
        false => Value::Count(thread.tid.into()),
    }
}

pub(super) fn by_thread(told: &Told<'_>, options: &Options) -> Table {
    let mut rows: Vec<_> = told.recording.threads.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.ipis, row.received)));
    let (shown, note) = first(&rows, options);
    let each = || shown.iter();
    let mut columns = process_columns(told, each().map(|row| row.process));
    columns.extend([
        Column {
            meaning: "The thread.".into(),
            ..Column::new("tid", "TID", values(each().map(|row| tid(row))))
        },
        Column {
            meaning: "Its name.".into(),
            ..Column::new(
                "thread",
                "THREAD",
                Cells::Names(each().map(|row| row.name.clone()).collect()),
            )
        },
        Column::new("flush_orders", "ORDERS", counts(each().map(|row| row.sends))),
        Column::new("ipis", "IPIS", values(each().map(|row| told.queued(Value::Count(row.ipis))))),
        Column::new("received", "RECEIVED", counts(each().map(|row| row.received))),
    ]);
    let audience = if rows.len() > 1 { Audience::Long } else { Audience::Programs };
    Table { note, ..table("by_thread", "By thread", audience, columns) }
}

pub(super) fn by_reason(told: &Told<'_>) -> Table {
    let mut rows: Vec<_> = told.recording.reasons.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.flushes));
    let each = || rows.iter();
    let columns = vec![
        Column {
            meaning: "The kernel's word, in tlb:tlb_flush.".into(),
            ..Column::new("reason", "REASON", labels(each().map(|row| row.reason.clone())))
        },
        Column::new("flushes", "FLUSHES", counts(each().map(|row| row.flushes))),
        Column {
            meaning: "Those that were for all pages.".into(),
            ..Column::new("full", "ALL PAGES", counts(each().map(|row| row.full)))
        },
        Column {
            meaning: "How many pages the others were for.".into(),
            ..Column::new("pages", "PAGES", counts(each().map(|row| row.pages)))
        },
    ];
    some_rows(table("by_reason", "By the kernel's reason", Audience::Everyone, columns))
}

/// What the machine counted meanwhile; for people where the kernel did something of itself.
pub(super) fn machine(told: &Told<'_>) -> Table {
    let rows = &told.recording.machine;
    let columns = vec![
        Column {
            meaning: "A line of /proc/vmstat.".into(),
            ..Column::new(
                "name",
                "COUNTER",
                Cells::Names(rows.iter().map(|(name, _)| name.clone()).collect()),
            )
        },
        Column {
            meaning: "By how much it grew.".into(),
            ..Column::new("added", "ADDED", counts(rows.iter().map(|(_, added)| *added)))
        },
    ];
    let audience = if told.recording.pid.is_none() { Audience::Everyone } else { Audience::Long };
    let title = "What the machine did meanwhile";
    some_rows(table("machine", title, audience, columns))
}
