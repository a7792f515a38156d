//! Every process in a table, or grouped: memory of each, and totals of the metrics that add up.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use pagewise_model::listing::{Listing, ProcessSummary};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Report, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Name, Reading};

use crate::blocks::{for_people, for_programs};
use crate::explain::fact;
use crate::filter::FilterError;
use crate::program_name::{self, bracketed, joined};

/// Options of the report.
#[derive(Clone, Debug)]
pub struct PsOptions {
    /// The column to sort by, and whether the largest comes first.
    pub sort: (String, bool),
    /// Grouping of the rows; `None` for one row per process.
    pub group: Option<ProcessGrouping>,
    /// Maximum number of rows; totals count all.
    pub limit: Option<usize>,
}

impl Default for PsOptions {
    fn default() -> PsOptions {
        PsOptions { sort: ("pss".to_owned(), true), group: None, limit: None }
    }
}

/// Grouping of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessGrouping {
    /// The real user.
    User,
    /// The process's name.
    Name,
    /// The memory cgroup.
    Cgroup,
    /// The program file.
    Exe,
}

/// One number of a process.
struct ProcessMetric {
    key: &'static str,
    label: &'static str,
    meaning: &'static str,
    /// True if the sum over processes is an amount of memory: each page counts once in it.
    adds_up: bool,
    read: fn(&ProcessSummary) -> &Reading<Bytes>,
}

const METRICS: [ProcessMetric; 8] = [
    ProcessMetric {
        key: "uss",
        label: "USS",
        meaning: "Resident pages that only this process maps.",
        adds_up: true,
        read: |s| &s.uss,
    },
    ProcessMetric {
        key: "pss",
        label: "PSS",
        meaning: "Resident pages, each divided by how often it is mapped.",
        adds_up: true,
        read: |s| &s.pss,
    },
    ProcessMetric {
        key: "rss",
        label: "RSS",
        meaning: "Resident pages; shared ones count in full in each process.",
        adds_up: false,
        read: |s| &s.rss,
    },
    ProcessMetric {
        key: "swap",
        label: "SWAP",
        meaning: "In swap; pages shared after fork count in full in each process.",
        adds_up: false,
        read: |s| &s.swap,
    },
    ProcessMetric {
        key: "private_anonymous",
        label: "anon priv",
        meaning: "Resident anonymous pages that only this process maps.",
        adds_up: true,
        read: |s| &s.quadrants.private_anonymous,
    },
    ProcessMetric {
        key: "shared_anonymous",
        label: "anon shr",
        meaning: "Resident anonymous pages that other processes map too, and all tmpfs pages.",
        adds_up: false,
        read: |s| &s.quadrants.shared_anonymous,
    },
    ProcessMetric {
        key: "private_file",
        label: "file priv",
        meaning: "Resident pages of private file mappings that only this process maps.",
        adds_up: true,
        read: |s| &s.quadrants.private_file,
    },
    ProcessMetric {
        key: "shared_file",
        label: "file shr",
        meaning: "Resident file pages that other processes map too, or of MAP_SHARED mappings.",
        adds_up: false,
        read: |s| &s.quadrants.shared_file,
    },
];

/// The listing as a report: `processes` or `groups`, `totals` and `unreadable`.
///
/// # Errors
/// A column to sort by that does not exist.
pub fn ps(listing: &Listing, options: &PsOptions) -> Result<Report, FilterError> {
    let table = match options.group {
        None => processes(listing, options)?,
        Some(group) => groups(listing, options, group)?,
    };
    Ok(Report {
        schema: "pagewise.ps/1",
        title: vec![CellValue::text(match options.group {
            None => "Processes",
            Some(ProcessGrouping::User) => "Processes by user",
            Some(ProcessGrouping::Name) => "Processes by name",
            Some(ProcessGrouping::Cgroup) => "Processes by cgroup",
            Some(ProcessGrouping::Exe) => "Processes by program",
        })],
        blocks: vec![
            ReportBlock::Facts(overview(listing)),
            ReportBlock::Table(table),
            ReportBlock::Facts(totals(listing)),
            ReportBlock::Table(unreadable(listing)),
        ],
    })
}

fn overview(listing: &Listing) -> NamedFacts {
    let fact = |key, label, value| fact(key, label, value, "");
    NamedFacts {
        key: "machine".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Line,
        facts: vec![
            fact("processes", "processes", CellValue::Count(listing.processes.len() as u64)),
            fact("mem_total", "RAM", CellValue::bytes(listing.mem_total.clone())),
            fact("took_ns", "read in", CellValue::Nanos(listing.took_ns)),
            fact(
                "longest_hold_ns",
                "held one at most",
                CellValue::from_reading(listing.longest_hold_ns.clone(), CellValue::Nanos),
            )
            .hidden_if(listing.longest_hold_ns.is_err()),
        ],
    }
}

fn processes(listing: &Listing, options: &PsOptions) -> Result<ReportTable, FilterError> {
    let mut rows: Vec<&ProcessSummary> = listing.processes.iter().collect();
    let (name, largest_first) = &options.sort;
    let by = |a: &&ProcessSummary,
              b: &&ProcessSummary,
              order: fn(&ProcessSummary, &ProcessSummary) -> Ordering| {
        if *largest_first { order(b, a) } else { order(a, b) }
    };
    match name.to_ascii_lowercase().as_str() {
        "pid" => rows.sort_by(|a, b| by(a, b, |a, b| a.pid.cmp(&b.pid))),
        "name" | "command" => rows.sort_by(|a, b| by(a, b, |a, b| a.name.cmp(&b.name))),
        "user" => rows.sort_by(|a, b| by(a, b, |a, b| user(a).cmp(&user(b)))),
        _ => {
            let metric = metric(name, &["pid", "name", "command", "user"])?;
            sort_by_reading(&mut rows, |row| (metric.read)(row), *largest_first);
        }
    }
    let shown = &rows[..rows.len().min(options.limit.unwrap_or(usize::MAX))];
    let pids = shown.iter().map(|s| u64::from(s.pid.0)).collect();
    let mut columns = vec![
        TableColumn::new("pid", "PID", ColumnCells::Counts(pids)),
        TableColumn::new(
            "user",
            "USER",
            ColumnCells::Names(shown.iter().map(|s| user(s)).collect()),
        ),
    ];
    columns.extend(METRICS.iter().map(|metric| {
        let cells = shown.iter().map(|row| (metric.read)(row).clone());
        TableColumn {
            meaning: metric.meaning.into(),
            ..TableColumn::bytes(metric.key, metric.label, cells)
        }
    }));
    let names = shown.iter().map(|s| s.name.clone()).collect();
    columns.push(for_programs(TableColumn::new("name", "NAME", ColumnCells::Names(names))));
    let short = |s: &&ProcessSummary| {
        let command = s.command.as_deref().unwrap_or_default();
        Name::new(&program_name::of_command(&s.name, command).line())
    };
    let commands = ColumnCells::Names(shown.iter().map(|s| command(s)).collect());
    columns.push(for_programs(TableColumn::new("command", "COMMAND", commands)));
    let short = ColumnCells::Names(shown.iter().map(short).collect());
    columns.push(for_people(TableColumn::new("command", "COMMAND", short)));
    let total = total_row(&columns, &sums(listing), format!("{} processes", rows.len()).into());
    Ok(table("processes", columns, total, note(listing, rows.len() - shown.len())))
}

/// The processes of one group, added up.
#[derive(Default)]
struct ProcessSum {
    processes: u64,
    /// Number of them with unknown PSS.
    unread: u64,
    bytes: [Bytes; METRICS.len()],
}

impl ProcessSum {
    fn add(&mut self, summary: &ProcessSummary) {
        self.processes += 1;
        self.unread += u64::from(summary.pss.is_err());
        for (sum, metric) in self.bytes.iter_mut().zip(&METRICS) {
            // Unknown values are counted in `unread`, so the sum is over the known ones.
            *sum += (metric.read)(summary).clone().unwrap_or_default();
        }
    }
}

fn groups(
    listing: &Listing,
    options: &PsOptions,
    group: ProcessGrouping,
) -> Result<ReportTable, FilterError> {
    let mut groups: BTreeMap<Name, ProcessSum> = BTreeMap::new();
    for summary in &listing.processes {
        groups.entry(group_name(summary, group)).or_default().add(summary);
    }
    let mut rows: Vec<(Name, ProcessSum)> = groups.into_iter().collect();
    sort_groups(&mut rows, &options.sort)?;
    let all = rows.len();
    rows.truncate(options.limit.unwrap_or(usize::MAX));
    let each = || rows.iter().map(|(_, sum)| sum);
    let mut columns = vec![TableColumn::new(
        "processes",
        "PROCESSES",
        ColumnCells::Counts(each().map(|sum| sum.processes).collect()),
    )];
    columns.extend(METRICS.iter().enumerate().map(|(i, metric)| {
        let cells = ColumnCells::Bytes(each().map(|sum| sum.bytes[i].0).collect());
        TableColumn {
            meaning: metric.meaning.into(),
            ..TableColumn::new(metric.key, metric.label, cells)
        }
    }));
    columns.push(for_programs(TableColumn::new(
        "unread",
        "UNREAD",
        ColumnCells::Counts(each().map(|sum| sum.unread).collect()),
    )));
    let key = match group {
        ProcessGrouping::User => ("user", "USER"),
        ProcessGrouping::Name => ("name", "NAME"),
        ProcessGrouping::Cgroup => ("cgroup", "CGROUP"),
        ProcessGrouping::Exe => ("exe", "PROGRAM"),
    };
    let note = note(listing, all - rows.len());
    let names = rows.into_iter().map(|(name, _)| name).collect();
    columns.push(TableColumn::new(key.0, key.1, ColumnCells::Names(names)));
    let total = total_row(&columns, &sums(listing), format!("{all} groups").into());
    Ok(table("groups", columns, total, note))
}

fn sort_groups(
    rows: &mut [(Name, ProcessSum)],
    (name, largest_first): &(String, bool),
) -> Result<(), FilterError> {
    let others = ["processes", "name", "user", "cgroup", "exe", "command"];
    match name.to_ascii_lowercase().as_str() {
        "processes" => rows.sort_by_key(|(_, sum)| Reverse(sum.processes)),
        // The rows are already in ascending order of their names.
        other if others.contains(&other) => {
            if *largest_first {
                rows.reverse();
            }
            return Ok(());
        }
        other => {
            let metric = metric(other, &others)?;
            let at = METRICS.iter().position(|m| m.key == metric.key).expect("it is one of them");
            rows.sort_by_key(|(_, sum)| Reverse(sum.bytes[at]));
        }
    }
    if !largest_first {
        rows.reverse();
    }
    Ok(())
}

fn group_name(summary: &ProcessSummary, group: ProcessGrouping) -> Name {
    let or_why = |reading: &Reading<Name>| match reading {
        Ok(name) => name.clone(),
        Err(absent) => Name::from(format!("({absent})").as_str()),
    };
    match group {
        ProcessGrouping::User => user(summary),
        ProcessGrouping::Name => summary.name.clone(),
        ProcessGrouping::Cgroup => or_why(&summary.cgroup),
        ProcessGrouping::Exe => or_why(&summary.exe),
    }
}

fn metric(name: &str, others: &[&str]) -> Result<&'static ProcessMetric, FilterError> {
    METRICS.iter().find(|metric| metric.key.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let known: Vec<&str> =
            METRICS.iter().map(|m| m.key).chain(others.iter().copied()).collect();
        FilterError::unknown_column(name, &known)
    })
}

/// Sorts stably; absent values come last in both orders.
fn sort_by_reading<'a>(
    rows: &mut [&'a ProcessSummary],
    read: impl Fn(&'a ProcessSummary) -> &'a Reading<Bytes>,
    largest_first: bool,
) {
    rows.sort_by(|a, b| match (read(a), read(b)) {
        (Ok(a), Ok(b)) if largest_first => b.cmp(a),
        (Ok(a), Ok(b)) => a.cmp(b),
        (a, b) => a.is_err().cmp(&b.is_err()),
    });
}

/// The user's name, or the number where the name is not known.
fn user(summary: &ProcessSummary) -> Name {
    summary.user.clone().unwrap_or_else(|| Name::from(summary.uid.to_string().as_str()))
}

/// The command line, or the name in brackets if it is empty.
fn command(summary: &ProcessSummary) -> Name {
    joined(summary.command.as_deref().unwrap_or_default())
        .unwrap_or_else(|| bracketed(&summary.name))
}

/// The sums that mean an amount of memory, over all processes that could be read.
fn sums(listing: &Listing) -> Vec<(&'static ProcessMetric, Bytes)> {
    let known = |metric: &ProcessMetric| -> Bytes {
        listing.processes.iter().filter_map(|s| (metric.read)(s).as_ref().ok().copied()).sum()
    };
    METRICS.iter().filter(|m| m.adds_up).map(|m| (m, known(m))).collect()
}

fn total_row(
    columns: &[TableColumn],
    sums: &[(&'static ProcessMetric, Bytes)],
    words: Label,
) -> Vec<CellValue> {
    let value = |column: &TableColumn| {
        let sum = sums.iter().find(|(metric, _)| metric.key == column.key);
        sum.map_or(CellValue::None, |(_, bytes)| CellValue::Bytes(bytes.0))
    };
    let mut row: Vec<CellValue> = columns.iter().map(value).collect();
    let last = columns.last().map(|it| it.key.clone());
    for (cell, _) in row.iter_mut().zip(columns).filter(|(_, it)| Some(&it.key) == last.as_ref()) {
        *cell = CellValue::Text(words.clone());
    }
    row
}

fn totals(listing: &Listing) -> NamedFacts {
    let fact = |key, label, value| fact(key, label, value, "");
    let read = listing.processes.iter().filter(|s| s.pss.is_ok()).count() as u64;
    let mut facts: Vec<Fact> = sums(listing)
        .iter()
        .map(|(m, bytes)| fact(m.key, m.label, CellValue::Bytes(bytes.0)))
        .collect();
    facts.extend([
        fact("processes", "processes", CellValue::Count(listing.processes.len() as u64)),
        fact("read", "read", CellValue::Count(read)),
        fact("kernel_threads", "kernel threads", CellValue::Count(listing.kernel_threads)),
        fact("vanished", "vanished", CellValue::Count(listing.vanished)),
        fact("hidden", "hidden", CellValue::Count(listing.hidden)),
    ]);
    NamedFacts {
        key: "totals".into(),
        title: "".into(),
        audience: Audience::Programs,
        shape: FactsShape::List,
        facts,
    }
}

/// The processes whose memory is unknown, with the reason.
fn unread(listing: &Listing) -> impl Iterator<Item = (&ProcessSummary, &Absent)> {
    listing.processes.iter().filter_map(|s| {
        let why = s.memory.as_ref().err().or(s.pss.as_ref().err())?;
        Some((s, why))
    })
}

fn unreadable(listing: &Listing) -> ReportTable {
    let rows: Vec<(&ProcessSummary, &Absent)> = unread(listing).collect();
    let pids = rows.iter().map(|(s, _)| u64::from(s.pid.0)).collect();
    let names = rows.iter().map(|(s, _)| s.name.clone()).collect();
    let why = rows.iter().map(|(_, why)| why.to_string().into()).collect();
    let columns = vec![
        TableColumn::new("pid", "PID", ColumnCells::Counts(pids)),
        TableColumn::new("name", "NAME", ColumnCells::Names(names)),
        TableColumn::new("why", "WHY", ColumnCells::Labels(why)),
    ];
    ReportTable {
        audience: Audience::Programs,
        total: None,
        ..table("unreadable", columns, Vec::new(), "".into())
    }
}

fn table(
    key: &'static str,
    columns: Vec<TableColumn>,
    total: Vec<CellValue>,
    note: Label,
) -> ReportTable {
    ReportTable {
        key: key.into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns,
        row_keys: None,
        total: Some(total),
        note,
    }
}

/// Number of hidden rows, and the columns without a sum.
fn note(listing: &Listing, cut: usize) -> Label {
    let mut lines = Vec::new();
    if cut > 0 {
        lines.push(format!("{cut} more rows are not shown; the totals count them."));
    }
    lines.push(
        "USS, PSS and the private columns add up over processes; RSS, SWAP and the shared columns \
         count what processes share several times, so they have no total."
            .to_owned(),
    );
    lines.extend(reasons(listing));
    let count = |n: u64, one: &str, many: &str| {
        (n > 0).then(|| format!("{n} {}", if n == 1 { one } else { many }))
    };
    let zombies = listing.processes.iter().filter(|s| s.is_zombie()).count() as u64;
    let left_out = [
        count(zombies, "zombie holds no memory.", "zombies hold no memory."),
        count(
            listing.kernel_threads,
            "kernel thread is left out: it has no memory of its own.",
            "kernel threads are left out: they have no memory of their own.",
        ),
        count(
            listing.vanished,
            "process ended before it was read.",
            "processes ended before they were read.",
        ),
        count(
            listing.hidden,
            "process is hidden (hidepid), kernel threads included.",
            "processes are hidden (hidepid), kernel threads included.",
        ),
    ];
    lines.extend(left_out.into_iter().flatten());
    lines.join(" ").into()
}

/// Maximum number of names after a reason.
const NAMED: usize = 4;

/// `12 not read, not permitted: needs CAP_SYS_PTRACE (sshd 71, cron 80, ...).`
fn reasons(listing: &Listing) -> Vec<String> {
    let mut reasons: Vec<(&Absent, Vec<&ProcessSummary>)> = Vec::new();
    for (summary, why) in unread(listing) {
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, rows)) => rows.push(summary),
            None => reasons.push((why, vec![summary])),
        }
    }
    let line = |(why, rows): &(&Absent, Vec<&ProcessSummary>)| {
        let name = |s: &&ProcessSummary| format!("{} {}", s.name.escaped(), s.pid);
        let mut names: Vec<String> = rows.iter().take(NAMED).map(name).collect();
        if rows.len() > NAMED {
            names.push("...".to_owned());
        }
        format!("{} not read, {why} ({}).", rows.len(), names.join(", "))
    };
    reasons.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use pagewise_model::Pid;
    use pagewise_model::listing::{ByQuadrant, PssByKind};
    use pagewise_model::machine::ReadMethod;

    use super::*;
    use crate::sample::{column, table};

    fn process(pid: u32, name: &str, uid: u32, pss: Reading<Bytes>) -> ProcessSummary {
        ProcessSummary {
            pid: Pid(pid),
            name: name.into(),
            state: 'S',
            uid,
            user: (uid == 0).then(|| "root".into()),
            command: Ok(vec![name.into(), "-x".into()]),
            exe: Ok(format!("/bin/{name}").as_str().into()),
            cgroup: Ok("/".into()),
            memory: pss.clone().map(|_| ReadMethod::Full),
            uss: pss.clone(),
            rss: pss.clone().map(|b| b + b),
            swap: pss.clone().map(|_| Bytes::ZERO),
            shares: pss.clone().map(|_| PssByKind::default()),
            quadrants: ByQuadrant::all(pss.clone()),
            pss,
        }
    }

    fn listing() -> Listing {
        let denied = Err(Absent::NotPermitted("CAP_SYS_PTRACE".into()));
        Listing {
            processes: vec![
                process(1, "init", 0, Ok(Bytes::mib(2))),
                process(70, "ssh\x1bd", 0, denied),
                process(71, "big", 1000, Ok(Bytes::mib(9))),
                process(72, "init", 0, Ok(Bytes::mib(3))),
            ],
            kernel_threads: 40,
            vanished: 0,
            hidden: 0,
            mem_total: Ok(Bytes::gib(1)),
            took_ns: 1,
            longest_hold_ns: Ok(1),
        }
    }

    #[test]
    fn the_largest_pss_comes_first_and_unread_rows_last() {
        let report = ps(&listing(), &PsOptions::default()).unwrap();
        let pids = column(table(&report, "processes"), "pid");
        assert_eq!(pids, [71, 72, 1, 70].map(CellValue::Count));
    }

    #[test]
    fn the_smallest_first_still_puts_unread_rows_last() {
        let options = PsOptions { sort: ("rss".into(), false), ..PsOptions::default() };
        let report = ps(&listing(), &options).unwrap();
        assert_eq!(
            column(table(&report, "processes"), "pid"),
            [1, 72, 71, 70].map(CellValue::Count)
        );
    }

    #[test]
    fn pss_has_a_total_and_rss_has_none() {
        let report = ps(&listing(), &PsOptions { limit: Some(1), ..PsOptions::default() }).unwrap();
        let table = table(&report, "processes");
        let total = table.total.as_ref().unwrap();
        let of = |key| &total[table.columns.iter().position(|c| c.key == key).unwrap()];
        assert_eq!((table.rows(), of("pss")), (1, &CellValue::Bytes(14 << 20)));
        assert_eq!(of("rss"), &CellValue::None);
        assert!(table.note.contains("3 more rows"), "{}", table.note);
    }

    #[test]
    fn unread_processes_are_listed_counted_and_named_with_the_reason() {
        let report = ps(&listing(), &PsOptions::default()).unwrap();
        let note = &table(&report, "processes").note;
        assert!(
            note.contains(r"1 not read, not permitted: needs CAP_SYS_PTRACE (ssh\x1bd 70)."),
            "{note}"
        );
        assert!(note.contains("40 kernel threads are left out"), "{note}");
        assert_eq!(column(table(&report, "unreadable"), "pid"), [CellValue::Count(70)]);
        let absent = CellValue::Absent(Absent::NotPermitted("CAP_SYS_PTRACE".into()));
        assert_eq!(column(table(&report, "processes"), "uss")[3], absent);
    }

    #[test]
    fn groups_add_up_known_values_and_count_unknown_ones() {
        let options = PsOptions { group: Some(ProcessGrouping::User), ..PsOptions::default() };
        let report = ps(&listing(), &options).unwrap();
        let groups = table(&report, "groups");
        assert_eq!(column(groups, "user"), ["1000", "root"].map(|n| CellValue::Name(n.into())));
        assert_eq!(column(groups, "pss"), [9 << 20, 5 << 20].map(CellValue::Bytes));
        assert_eq!(column(groups, "processes"), [1, 3].map(CellValue::Count));
        assert_eq!(column(groups, "unread"), [0, 1].map(CellValue::Count));
    }

    #[test]
    fn sorting_groups_by_name_puts_a_first_when_the_smallest_comes_first() {
        let options = PsOptions {
            group: Some(ProcessGrouping::Name),
            sort: ("name".into(), false),
            limit: None,
        };
        let report = ps(&listing(), &options).unwrap();
        let names = column(table(&report, "groups"), "name");
        assert_eq!(names[0], CellValue::Name("big".into()));
    }

    #[test]
    fn an_unknown_column_is_an_error_with_a_suggestion() {
        let options = PsOptions { sort: ("ps".into(), true), ..PsOptions::default() };
        let error = ps(&listing(), &options).unwrap_err().to_string();
        assert!(error.contains("did you mean pss"), "{error}");
    }
}
