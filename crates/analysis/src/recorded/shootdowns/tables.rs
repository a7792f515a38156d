//! Tables of the report about shootdowns.

use std::collections::BTreeMap;

use pagewise_model::bounds::OTHER_THREADS;
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::report::{Audience, CellValue, ColumnCells, Label, ReportTable, TableColumn};
use pagewise_model::shootdowns::{FlushCaller, FlushProcess, FlushThread, NO_PID};
use pagewise_model::traced::Frame;
use pagewise_model::{Name, Reading};

use super::causes::Cause;
use super::{CALLS, FLUSH, FlushSum, ShootdownCauses, ShootdownOptions, unknown};
use crate::blocks::{for_programs, seen_by, table};
use crate::cells::ratio;

fn values(values: impl IntoIterator<Item = CellValue>) -> ColumnCells {
    ColumnCells::Values(values.into_iter().collect())
}

/// PID of a process; an empty cell for merged processes.
fn number(pid: u32) -> CellValue {
    if pid == NO_PID { CellValue::None } else { CellValue::Count(pid.into()) }
}

fn counts(counts: impl IntoIterator<Item = u64>) -> ColumnCells {
    ColumnCells::Counts(counts.into_iter().collect())
}

fn labels(labels: impl IntoIterator<Item = String>) -> ColumnCells {
    ColumnCells::Labels(labels.into_iter().map(Label::from).collect())
}

/// Hides a table without rows from people.
fn some_rows(table: ReportTable) -> ReportTable {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    ReportTable { audience, ..table }
}

/// Returns the first rows, and a note on the number of other rows.
fn first<'r, T>(rows: &'r [T], options: &ShootdownOptions) -> (&'r [T], Label) {
    let shown = options.limit.unwrap_or(usize::MAX).min(rows.len());
    let left = rows.len() - shown;
    let note = if left == 0 { "".into() } else { format!("and {left} more: --rows all").into() };
    (&rows[..shown], note)
}

/// Builds the columns of sums: requests, interrupted CPUs, and waiting time.
fn sum_columns(told: &ShootdownCauses<'_>, sums: &[FlushSum]) -> Vec<TableColumn> {
    let queued = |of: fn(&FlushSum) -> u64| {
        values(sums.iter().map(|sum| told.queued(CellValue::Count(of(sum)))))
    };
    let per_order =
        sums.iter().map(|sum| sum.pages_per_order().map_or(CellValue::None, CellValue::Number));
    let waited = sums.iter().map(|sum| told.ended(CellValue::Seconds(sum.waited)));
    let part = |sum: &FlushSum| {
        ratio(sum.orders, told.all.orders).map_or(CellValue::None, CellValue::Share)
    };
    vec![
        TableColumn::new("ipis", "IPIS", queued(|sum| sum.ipis)),
        TableColumn::new("waited", "WAITED", values(waited)),
        TableColumn::new("flush_orders", "REQUESTS", counts(sums.iter().map(|sum| sum.orders))),
        seen_by(
            Audience::Long,
            TableColumn {
                meaning: "The part of all orders to flush.".into(),
                ..TableColumn::new("share", "SHARE", values(sums.iter().map(part)))
            },
        ),
        seen_by(
            Audience::Long,
            TableColumn::new("shootdowns", "SHOOTDOWNS", queued(|sum| sum.shootdowns)),
        ),
        TableColumn::new("pages_per_order", "PAGES PER REQUEST", values(per_order)),
        seen_by(
            Audience::Long,
            TableColumn::new(
                "full_orders",
                "FULL FLUSHES",
                counts(sums.iter().map(|sum| sum.full)),
            ),
        ),
        seen_by(
            Audience::Long,
            TableColumn::new("local_flushes", "LOCAL", counts(sums.iter().map(|sum| sum.local))),
        ),
    ]
}

pub(super) fn by_cause(told: &ShootdownCauses<'_>) -> ReportTable {
    let (causes, sums): (Vec<&Cause>, Vec<FlushSum>) = told.by_cause().into_iter().unzip();
    let mut columns = sum_columns(told, &sums);
    let seen = columns.iter_mut().filter(|column| column.key != "full_orders");
    seen.for_each(|column| column.audience = Audience::Everyone);
    columns.push(TableColumn {
        meaning: "Activity of the kernel, from its functions on the stack.".into(),
        ..TableColumn::new("cause", "CAUSE", labels(causes.iter().map(|cause| cause.name())))
    });
    some_rows(table("by_cause", "By cause", Audience::Everyone, columns))
}

/// Returns the location of a stack in the program: the innermost function with a known source line;
/// else the innermost function outside of the C library.
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

/// Returns the function of a frame, or its offset in its file.
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

/// Name of a stack's origin: its location in the program; for kernel threads, the outermost
/// function that is not common to all kernel threads.
fn who(stack: &[Frame], chain: &[String]) -> Reading<Name> {
    const OF_ALL: &[&str] = &["kthread", "ret_from_fork", "ret_from_fork_asm"];
    let kernels = || {
        let own = chain.iter().rev().find(|name| !OF_ALL.contains(&name.as_str()))?;
        Some(Name::new(own.as_bytes()))
    };
    place(stack).map(function).or_else(kernels).map_or_else(unknown, Ok)
}

fn named(reading: Reading<Name>) -> CellValue {
    CellValue::from_reading(reading, CellValue::Name)
}

/// Returns a call stack for programs: function and source line of each frame.
fn frames(stack: &[Frame]) -> CellValue {
    let record = |frame: &Frame| {
        CellValue::Record(vec![
            ("function".into(), CellValue::Name(function(frame))),
            ("line".into(), line(frame, true).map_or(CellValue::None, CellValue::Name)),
            ("module".into(), frame.module.clone().map_or(CellValue::None, CellValue::Name)),
            ("inlined".into(), CellValue::Flag(frame.inlined)),
        ])
    };
    CellValue::List(stack.iter().map(record).collect())
}

/// Writes the callers of a location in one line.
fn callers(stack: &[Frame]) -> Name {
    const DEEPEST: usize = 4;
    let own = place(stack);
    let behind = stack.iter().skip_while(|frame| Some(*frame) != own).skip(1);
    let names: Vec<Name> = behind.take(DEEPEST).map(function).collect();
    Name::new(&names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b" < "[..]))
}

/// Builds the columns of the process of each row. If there is only one process, people do not see
/// these columns.
fn process_columns(
    told: &ShootdownCauses<'_>,
    rows: impl Iterator<Item = usize> + Clone,
) -> Vec<TableColumn> {
    let (mut others, first) = (rows.clone(), rows.clone().next());
    let is_one = others.all(|row| Some(row) == first) && told.recording.pid.is_some();
    let audience = if is_one { Audience::Programs } else { Audience::Everyone };
    let of = |row: usize| told.recording.processes.get(row);
    let pid = |row| of(row).map_or(CellValue::None, |it: &FlushProcess| number(it.pid));
    let name =
        |row| of(row).map_or(CellValue::None, |it: &FlushProcess| CellValue::Name(it.name.clone()));
    vec![
        seen_by(audience, TableColumn::new("pid", "PID", values(rows.clone().map(pid)))),
        seen_by(audience, TableColumn::new("process", "PROCESS", values(rows.map(name)))),
    ]
}

/// Key and value of a row. The key is the index of the process, the index of the call stack, and
/// the cause. The value is the sum over the flush sites with this key, and their kernel functions.
type StackRow<'a> = ((usize, usize, &'a Cause), (FlushSum, &'a [String]));

/// Returns the rows of [`by_stack`], the largest number of interrupted CPUs first.
fn sums_by_stack<'a>(told: &'a ShootdownCauses<'_>) -> Vec<StackRow<'a>> {
    // Sums include all kernel call paths of a location.
    let mut sums: BTreeMap<(usize, usize, &Cause), (FlushSum, &[String])> = BTreeMap::new();
    for (site, cause) in told.recording.sites.iter().zip(&told.causes) {
        let entry = sums.entry((site.process, site.stack, cause));
        entry.or_insert_with(|| (FlushSum::default(), told.chain(site))).0.add(site);
    }
    let mut rows: Vec<StackRow<'a>> = sums.into_iter().collect();
    rows.sort_by_key(|(_, (sum, _))| std::cmp::Reverse((sum.ipis, sum.orders, sum.local)));
    rows
}

fn kernel_functions(chain: &[String]) -> CellValue {
    CellValue::List(chain.iter().map(|name| CellValue::Name(Name::new(name.as_bytes()))).collect())
}

/// Returns the innermost known source line of a call stack.
fn source_line(stack: &[Frame]) -> CellValue {
    let line = place(stack).and_then(|frame| line(frame, false));
    line.map_or(CellValue::None, CellValue::Name)
}

pub(super) fn by_stack(told: &ShootdownCauses<'_>, options: &ShootdownOptions) -> ReportTable {
    let mut rows = sums_by_stack(told);
    if options.limit.is_some() {
        // A flush of only the CPU that requests it costs little.
        rows.retain(|(_, (sum, _))| sum.orders > 0);
    }
    let (shown, note) = first(&rows, options);
    let stack = |row: usize| told.recording.stacks.get(row).map_or(&[][..], Vec::as_slice);
    let each = || shown.iter();
    let lines = each().map(|((_, at, _), _)| source_line(stack(*at)));
    let sums: Vec<FlushSum> = each().map(|(_, (sum, _))| *sum).collect();
    let mut columns = sum_columns(told, &sums);
    columns.push(TableColumn::new(
        "cause",
        "CAUSE",
        labels(each().map(|((.., cause), _)| cause.name())),
    ));
    columns.push(TableColumn {
        meaning: "The innermost function of the program with a known source line.".into(),
        ..TableColumn::new(
            "function",
            "FUNCTION",
            values(each().map(|((_, at, _), (_, chain))| named(who(stack(*at), chain)))),
        )
    });
    columns.push(TableColumn {
        meaning: "The line of the source, where there is debugging information.".into(),
        ..TableColumn::new("line", "LINE", values(lines))
    });
    columns.push(seen_by(
        Audience::People,
        TableColumn {
            meaning: "The functions that called it, the innermost first.".into(),
            ..TableColumn::new(
                "callers",
                "CALLED BY",
                ColumnCells::Names(each().map(|((_, at, _), _)| callers(stack(*at))).collect()),
            )
        },
    ));
    columns.extend(process_columns(told, each().map(|((process, ..), _)| *process)));
    columns.push(for_programs(TableColumn::new(
        "stack",
        "STACK",
        values(each().map(|((_, at, _), _)| frames(stack(*at)))),
    )));
    columns.push(for_programs(TableColumn::new(
        "kernel",
        "KERNEL",
        values(each().map(|(_, (_, chain))| kernel_functions(chain))),
    )));
    some_rows(ReportTable {
        note,
        ..table("by_stack", "By call stack", Audience::Everyone, columns)
    })
}

/// Name of a call with its advice.
fn call_name(told: &ShootdownCauses<'_>, call: usize) -> String {
    told.recording.calls.get(call).map_or_else(String::new, |call| {
        Cause::Call { name: call.name.clone(), advice: call.advice }.name()
    })
}

pub(super) fn calls(told: &ShootdownCauses<'_>, options: &ShootdownOptions) -> ReportTable {
    let mut rows: Vec<&FlushCaller> = told.recording.callers.iter().collect();
    if options.limit.is_some() && rows.iter().any(|row| row.shooting > 0) {
        rows.retain(|row| row.shooting > 0);
    }
    rows.sort_by_key(|row| std::cmp::Reverse((row.shooting, row.calls)));
    let (shown, note) = first(&rows, options);
    let stack =
        |row: &FlushCaller| told.recording.stacks.get(row.stack).map_or(&[][..], Vec::as_slice);
    let each = || shown.iter().copied();
    let mean = |sum: u64, count: u64| match sum.checked_div(count) {
        Some(mean) => CellValue::Nanos(mean),
        None => CellValue::None,
    };
    let lines = each().map(|row| {
        place(stack(row))
            .and_then(|frame| line(frame, false))
            .map_or(CellValue::None, CellValue::Name)
    });
    let mut columns = vec![
        TableColumn {
            meaning: "Number of calls.".into(),
            ..TableColumn::new("count", "COUNT", counts(each().map(|row| row.calls)))
        },
        TableColumn::new("shooting", "SHOOTING", counts(each().map(|row| row.shooting))),
        TableColumn::new(
            "shooting_ns",
            "TAKES",
            values(each().map(|row| mean(row.shooting_ns, row.shooting))),
        ),
        TableColumn::new(
            "quiet_ns",
            "OTHERWISE",
            values(each().map(|row| mean(row.quiet_ns, row.calls - row.shooting))),
        ),
        TableColumn {
            meaning: "The system call.".into(),
            ..TableColumn::new("call", "CALL", labels(each().map(|row| call_name(told, row.call))))
        },
        TableColumn {
            meaning: "The innermost function of the program with a known source line.".into(),
            ..TableColumn::new(
                "function",
                "FUNCTION",
                values(each().map(|row| named(who(stack(row), &[])))),
            )
        },
        TableColumn {
            meaning: "The line of the source, where there is debugging information.".into(),
            ..TableColumn::new("line", "LINE", values(lines))
        },
        seen_by(
            Audience::Long,
            TableColumn {
                meaning: "The functions that called it, the innermost first.".into(),
                ..TableColumn::new(
                    "callers",
                    "CALLED BY",
                    ColumnCells::Names(each().map(|row| callers(stack(row))).collect()),
                )
            },
        ),
    ];
    columns.extend(process_columns(told, each().map(|row| row.process)));
    columns.push(for_programs(TableColumn::new(
        "stack",
        "STACK",
        values(each().map(|row| frames(stack(row)))),
    )));
    some_rows(ReportTable {
        note,
        ..table("calls", "Callers of calls that can flush", Audience::Everyone, columns)
    })
}

/// Returns the distributions of times, with their names.
fn distributions<'t>(
    told: &'t ShootdownCauses<'_>,
    options: &ShootdownOptions,
) -> Vec<(String, Reading<&'t TimeHistogram>)> {
    let recording = told.recording;
    let ends = |times| match told.ended(CellValue::None) {
        CellValue::Absent(absent) => Err(absent),
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
        // Calls without shootdowns have no cost that could be reported.
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

pub(super) fn latency(told: &ShootdownCauses<'_>, options: &ShootdownOptions) -> ReportTable {
    let all = distributions(told, options);
    let column = |of: &dyn Fn(&TimeHistogram) -> CellValue| {
        values(all.iter().map(|(_, times)| match times {
            Ok(times) => of(times),
            Err(absent) => CellValue::Absent(absent.clone()),
        }))
    };
    let percentile = |share: f64| {
        column(&move |times| times.percentile(share).map_or(CellValue::None, CellValue::Nanos))
    };
    let longest = |times: &TimeHistogram| match times.count() {
        0 => CellValue::None,
        _ => CellValue::Nanos(times.longest()),
    };
    let mean = |times: &TimeHistogram| match times.sum().checked_div(times.count()) {
        Some(mean) => CellValue::Nanos(mean),
        None => CellValue::None,
    };
    let meaning = |meaning: &'static str, column: TableColumn| TableColumn {
        meaning: meaning.into(),
        ..column
    };
    let columns = vec![
        meaning(
            "From the order until the last CPU was done; from putting it into one CPU's queue until that was done; or a \
             system call from entry to exit.",
            TableColumn::new("what", "QUANTITY", labels(all.iter().map(|(what, _)| what.clone()))),
        ),
        meaning(
            "How many.",
            TableColumn::new("count", "COUNT", column(&|times| CellValue::Count(times.count()))),
        ),
        meaning("The mean.", TableColumn::new("mean", "MEAN", column(&mean))),
        meaning("Median.", TableColumn::new("p50", "P50", percentile(0.5))),
        meaning("90th percentile.", TableColumn::new("p90", "P90", percentile(0.9))),
        meaning("99th percentile.", TableColumn::new("p99", "P99", percentile(0.99))),
        meaning("The longest.", TableColumn::new("max", "MAX", column(&longest))),
    ];
    let audience = if told.recording.has(FLUSH) { Audience::Everyone } else { Audience::Programs };
    table("latency", "Latency", audience, columns)
}

/// Builds the table of the cells of all distributions.
pub(super) fn histograms(told: &ShootdownCauses<'_>) -> ReportTable {
    let all: Vec<(String, &TimeHistogram)> = distributions(told, &ShootdownOptions::default())
        .into_iter()
        .filter_map(|(what, times)| Some((what, times.ok()?)))
        .collect();
    let cells = |times: &TimeHistogram| {
        let cell = |(ns, count): (u64, u64)| {
            CellValue::Record(vec![
                ("up_to_ns".into(), CellValue::Nanos(ns)),
                ("count".into(), CellValue::Count(count)),
            ])
        };
        CellValue::List(times.cells().map(cell).collect())
    };
    let columns = vec![
        TableColumn::new("what", "QUANTITY", labels(all.iter().map(|(what, _)| what.clone()))),
        TableColumn::new("cells", "CELLS", values(all.iter().map(|(_, times)| cells(times)))),
    ];
    table("histograms", "", Audience::Programs, columns)
}

pub(super) fn by_cpu(told: &ShootdownCauses<'_>) -> ReportTable {
    let each = || told.recording.cpus.iter();
    let reading =
        |reading: &Reading<u64>| CellValue::from_reading(reading.clone(), CellValue::Count);
    let columns = vec![
        TableColumn {
            meaning: "The CPU's number.".into(),
            ..TableColumn::new("cpu", "CPU", counts(each().map(|cpu| cpu.cpu.into())))
        },
        TableColumn::new(
            "ipis_sent",
            "SENT",
            values(each().map(|cpu| told.queued(CellValue::Count(cpu.sent)))),
        ),
        TableColumn::new(
            "received",
            "RECEIVED",
            values(each().map(|cpu| told.flushed(CellValue::Count(cpu.received)))),
        ),
        TableColumn::new(
            "call_function_interrupts",
            "INTERRUPTS",
            values(each().map(|cpu| reading(&cpu.interrupts))),
        ),
        TableColumn::new(
            "machine_shootdowns",
            "MACHINE",
            values(each().map(|cpu| reading(&cpu.machine))),
        ),
    ];
    some_rows(table("by_cpu", "By CPU", Audience::Everyone, columns))
}

pub(super) fn by_process(told: &ShootdownCauses<'_>, options: &ShootdownOptions) -> ReportTable {
    let mut sums: Vec<FlushSum> = vec![FlushSum::default(); told.recording.processes.len()];
    for site in &told.recording.sites {
        if let Some(sum) = sums.get_mut(site.process) {
            sum.add(site);
        }
    }
    let mut rows: Vec<(usize, &FlushProcess, FlushSum)> = told
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
    let sums: Vec<FlushSum> = shown.iter().map(|(.., sum)| *sum).collect();
    let mut columns = vec![TableColumn::new(
        "received",
        "RECEIVED",
        counts(shown.iter().map(|(_, process, _)| process.received)),
    )];
    columns.extend(sum_columns(told, &sums));
    columns.extend([
        TableColumn::new(
            "pid",
            "PID",
            values(shown.iter().map(|(_, process, _)| number(process.pid))),
        ),
        TableColumn::new(
            "process",
            "PROCESS",
            ColumnCells::Names(shown.iter().map(|(_, process, _)| process.name.clone()).collect()),
        ),
    ]);
    let audience = if rows.len() > 1 { Audience::Everyone } else { Audience::Programs };
    ReportTable { note, ..table("by_process", "By process", audience, columns) }
}

/// TID of a thread: 0 for an idle CPU, an empty cell for merged threads.
fn tid(thread: &FlushThread) -> CellValue {
    match thread.name.as_bytes() == OTHER_THREADS.as_bytes() {
        true => CellValue::None,
        false => CellValue::Count(thread.tid.into()),
    }
}

pub(super) fn by_thread(told: &ShootdownCauses<'_>, options: &ShootdownOptions) -> ReportTable {
    let mut rows: Vec<_> = told.recording.threads.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.ipis, row.received)));
    let (shown, note) = first(&rows, options);
    let each = || shown.iter();
    let mut columns = process_columns(told, each().map(|row| row.process));
    columns.extend([
        TableColumn {
            meaning: "The thread.".into(),
            ..TableColumn::new("tid", "TID", values(each().map(|row| tid(row))))
        },
        TableColumn {
            meaning: "Its name.".into(),
            ..TableColumn::new(
                "thread",
                "THREAD",
                ColumnCells::Names(each().map(|row| row.name.clone()).collect()),
            )
        },
        TableColumn::new("flush_orders", "REQUESTS", counts(each().map(|row| row.sends))),
        TableColumn::new(
            "ipis",
            "IPIS",
            values(each().map(|row| told.queued(CellValue::Count(row.ipis)))),
        ),
        TableColumn::new("received", "RECEIVED", counts(each().map(|row| row.received))),
    ]);
    let audience = if rows.len() > 1 { Audience::Long } else { Audience::Programs };
    ReportTable { note, ..table("by_thread", "By thread", audience, columns) }
}

pub(super) fn by_reason(told: &ShootdownCauses<'_>) -> ReportTable {
    let mut rows: Vec<_> = told.recording.reasons.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.flushes));
    let each = || rows.iter();
    let columns = vec![
        TableColumn {
            meaning: "The kernel's word, in tlb:tlb_flush.".into(),
            ..TableColumn::new("reason", "REASON", labels(each().map(|row| row.reason.clone())))
        },
        TableColumn::new("flushes", "FLUSHES", counts(each().map(|row| row.flushes))),
        TableColumn {
            meaning: "Those that were for all pages.".into(),
            ..TableColumn::new("full", "FULL", counts(each().map(|row| row.full)))
        },
        TableColumn {
            meaning: "Number of pages of the other requests.".into(),
            ..TableColumn::new("pages", "PAGES", counts(each().map(|row| row.pages)))
        },
    ];
    some_rows(table("by_reason", "By the kernel's reason", Audience::Everyone, columns))
}

/// Builds the table of the machine's counters during the recording. People see it if the kernel
/// flushed TLBs by itself.
pub(super) fn machine(told: &ShootdownCauses<'_>) -> ReportTable {
    let rows = &told.recording.machine;
    let columns = vec![
        TableColumn {
            meaning: "A line of /proc/vmstat.".into(),
            ..TableColumn::new(
                "name",
                "COUNTER",
                ColumnCells::Names(rows.iter().map(|(name, _)| name.clone()).collect()),
            )
        },
        TableColumn {
            meaning: "By how much it grew.".into(),
            ..TableColumn::new("added", "ADDED", counts(rows.iter().map(|(_, added)| *added)))
        },
    ];
    let audience = if told.recording.pid.is_none() { Audience::Everyone } else { Audience::Long };
    let title = "The machine during the recording";
    some_rows(table("machine", title, audience, columns))
}
