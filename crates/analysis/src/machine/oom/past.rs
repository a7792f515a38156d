//! Reports of the OOM killer in a kernel log, explained: the process that requested memory, the
//! limit that was reached, the victim, the reason for its selection, and the table of processes.

use pagewise_model::evidence::counter;
use pagewise_model::oom::{OomReport, OomTableRow, OomUsage, OomVictim};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Paragraph, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Bytes, Name, PageSize, Reading};

use super::tables::adj_text;
use super::{OomOptions, badness_cell};
use crate::blocks::{facts_of, first, for_people, for_programs, table};
use crate::cells::{float, text};
use crate::explain::fact;

/// The page size of most machines, for a report that does not show the page size.
const USUAL_PAGE: PageSize = PageSize::new(4 << 10).expect("a power of two");

/// Explains the last report, and lists the other reports in one line each. The log may be missing.
pub fn blocks(reports: &Reading<Vec<OomReport>>, options: &OomOptions) -> Vec<ReportBlock> {
    let reports = match reports {
        Ok(reports) => reports,
        Err(absent) => return vec![count(CellValue::Absent(absent.clone()))],
    };
    let mut blocks = vec![count(CellValue::Count(reports.len() as u64))];
    // The kernel prints a line for each kill, but does not print a report for each kill.
    let is_full = |report: &OomReport| report.asker.is_some() || !report.table.is_empty();
    let last = reports.iter().rposition(is_full).or(reports.len().checked_sub(1));
    if let Some(last) = last {
        blocks.extend(explained(&reports[last], &reports[last + 1..], options));
        let others: Vec<&OomReport> =
            reports.iter().enumerate().filter(|(at, _)| *at != last).map(|(_, it)| it).collect();
        blocks.extend(other_reports(&others, options).map(ReportBlock::Table));
    }
    blocks
}

fn count(value: CellValue) -> ReportBlock {
    let facts = vec![fact("reports", "OOM reports in the kernel log", value, "")];
    ReportBlock::Facts(facts_of("past", "Past OOM kills", FactsShape::Line, facts))
}

/// Number of pages by which the kernel scales `oom_score_adj`; `None` if the report does not have
/// it.
fn total_pages(report: &OomReport, page_size: PageSize) -> Option<u64> {
    let swap = report.swap_total.unwrap_or_default();
    match report.memory.filter(|_| is_cgroup(report)) {
        Some(OomUsage { limit: Some(limit), .. }) => {
            let beside = match report.swap {
                Some(OomUsage { limit: Some(both), .. }) if report.swap_is_total => both - limit,
                Some(OomUsage { limit: Some(own), .. }) => own,
                // Without a swap limit, the kernel counts the swap of the machine. A report about a
                // cgroup does not contain the size of the machine's swap.
                _ => Bytes::ZERO,
            };
            Some(page_size.count(limit) + page_size.count(beside))
        }
        _ => {
            let ram = counter(&report.counters, "ram")?
                - counter(&report.counters, "reserved").unwrap_or(0);
            Some(page_size.count(Bytes(ram)) + page_size.count(swap))
        }
    }
}

fn is_cgroup(report: &OomReport) -> bool {
    report.limited.is_some()
}

/// Badness of a row in pages, and the part of the badness that `oom_score_adj` adds.
fn badness(row: &OomTableRow, page_size: PageSize, total_pages: Option<u64>) -> (i64, i64) {
    let own = row.rss.saturating_add(row.swap).saturating_add(page_size.count(row.page_tables));
    let added = row.adj.saturating_mul((total_pages.unwrap_or(0) / 1000).cast_signed());
    (own.cast_signed().saturating_add(added), added)
}

/// Describes a report in words: the requesting process, the limit that was reached, the victim and
/// the reason. `later` contains the kills that followed the report; the kernel printed only one
/// line about each of them.
pub fn explanation(report: &OomReport, later: &[OomReport]) -> Vec<CellValue> {
    let page_size = report.page_size.unwrap_or(USUAL_PAGE);
    let mut pieces = asker(report, page_size);
    pieces.extend(limit(report));
    pieces.extend(victim(report, page_size, total_pages(report, page_size)));
    pieces.extend(followers(later));
    pieces.extend(damage(report));
    trim_end(&mut pieces);
    pieces
}

fn explained(report: &OomReport, later: &[OomReport], options: &OomOptions) -> Vec<ReportBlock> {
    let page_size = report.page_size.unwrap_or(USUAL_PAGE);
    let total = total_pages(report, page_size);
    let pieces = explanation(report, later);
    let mut blocks = vec![
        ReportBlock::Text(Paragraph {
            title: "The last OOM kill".into(),
            pieces: pieces.clone(),
            audience: Audience::People,
        }),
        ReportBlock::Facts(figures(report, pieces, total)),
    ];
    if !report.table.is_empty() {
        blocks.push(ReportBlock::Table(process_table(report, page_size, total, options)));
    }
    blocks
}

fn figures(
    report: &OomReport,
    pieces: Vec<CellValue>,
    total: Option<u64>,
) -> pagewise_model::report::NamedFacts {
    let name = |name: &Option<Name>| name.clone().map_or(CellValue::None, CellValue::Name);
    let victim = report.victims.first();
    let asker = report.asker.as_ref();
    let usage = |of: Option<OomUsage>, pick: fn(OomUsage) -> Option<Bytes>| {
        of.and_then(pick).map_or(CellValue::None, |it| CellValue::Bytes(it.0))
    };
    let facts = vec![
        fact("at_seconds", "", report.at_seconds.map_or(CellValue::None, CellValue::Number), ""),
        fact("age_seconds", "", report.age_seconds.map_or(CellValue::None, CellValue::Number), ""),
        fact("explanation", "", CellValue::Sentence(pieces), ""),
        fact("asker", "", asker.map_or(CellValue::None, |it| CellValue::Name(it.name.clone())), ""),
        fact(
            "asker_pid",
            "",
            asker
                .and_then(|it| it.pid)
                .map_or(CellValue::None, |pid| CellValue::Count(pid.0.into())),
            "",
        ),
        fact(
            "order",
            "",
            asker
                .and_then(|it| u64::try_from(it.order).ok())
                .map_or(CellValue::None, CellValue::Count),
            "",
        ),
        fact("constraint", "", name(&report.constraint), ""),
        fact("cgroup", "", name(&report.limited), ""),
        fact("usage", "", usage(report.memory, |it| Some(it.usage)), ""),
        fact("limit", "", usage(report.memory, |it| it.limit), ""),
        fact(
            "victim",
            "",
            victim.map_or(CellValue::None, |it| CellValue::Name(it.name.clone())),
            "",
        ),
        fact(
            "victim_pid",
            "",
            victim.map_or(CellValue::None, |it| CellValue::Count(it.pid.0.into())),
            "",
        ),
        fact(
            "victim_memory",
            "",
            victim
                .and_then(|it| it.memory)
                .map_or(CellValue::None, |it| CellValue::Bytes(it.into_iter().sum::<Bytes>().0)),
            "",
        ),
        fact(
            "killed",
            "",
            CellValue::List(
                report.victims.iter().map(|it| CellValue::Count(it.pid.0.into())).collect(),
            ),
            "",
        ),
        fact("total_pages", "", total.map_or(CellValue::None, CellValue::Count), ""),
        fact("damaged_lines", "", CellValue::Count(report.damaged), ""),
        fact("truncated", "", CellValue::Flag(report.truncated), ""),
    ];
    super::programs_only(facts_of("past.last", "", FactsShape::Line, facts))
}

/// Describes the process that requested memory.
fn asker(report: &OomReport, page_size: PageSize) -> Vec<CellValue> {
    let Some(asker) = &report.asker else {
        return vec![text(
            "The log does not have the beginning of the report: it is lost, or the kernel did not print it (of many kills, it prints ten reports in five seconds). ",
        )];
    };
    let mut pieces = Vec::new();
    let times = [(report.age_seconds, "ago"), (report.at_seconds, "after boot")];
    let known = times.into_iter().filter_map(|(seconds, what)| Some((seconds?, what)));
    for (seconds, what) in known {
        let after = if what == "ago" { ", " } else { ": " };
        pieces.extend([super::forecast::duration(seconds), text(format!(" {what}{after}"))]);
    }
    pieces.push(CellValue::Name(asker.name.clone()));
    if let Some(pid) = asker.pid {
        pieces.push(text(format!(" ({pid})")));
    }
    match u32::try_from(asker.order).ok().filter(|order| *order < 40) {
        None => pieces.push(text(" was asked by sysrq to invoke the OOM killer. ")),
        Some(order) => {
            let bytes = page_size.pages(1 << order);
            pieces.extend([text(" asked for "), CellValue::Bytes(bytes.0)]);
            if order > 3 {
                pieces.push(text(" in one piece"));
            }
            // A request that is charged to a cgroup always has the flags of kernel memory, so the
            // flags do not show its purpose.
            let has_purpose = !is_cgroup(report);
            pieces.push(text(if has_purpose { reason(&asker.gfp) } else { ". " }));
        }
    }
    pieces
}

/// Describes the purpose of a request, by its flags.
fn reason(gfp: &Name) -> &'static str {
    let has = |flag: &[u8]| memchr_in(gfp.as_bytes(), flag);
    if has(b"GFP_HIGHUSER_MOVABLE") || has(b"GFP_HIGHUSER") {
        " for memory of a program. "
    } else if has(b"GFP_KERNEL_ACCOUNT") {
        " for the kernel, on account of the program. "
    } else if has(b"GFP_NOFS") || has(b"GFP_NOIO") {
        " for a file system. "
    } else {
        " for the kernel. "
    }
}

fn memchr_in(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

/// Describes the limit that was reached.
fn limit(report: &OomReport) -> Vec<CellValue> {
    if let Some(cgroup) = &report.limited {
        return cgroup_limit(report, cgroup);
    }
    let constraint = report.constraint.as_ref().map(Name::as_bytes);
    let mut pieces = match constraint {
        Some(b"CONSTRAINT_CPUSET" | b"CONSTRAINT_MEMORY_POLICY") => {
            let nodes = report.nodes.clone().unwrap_or_default();
            vec![
                text("The NUMA nodes to which the process is bound ("),
                CellValue::Name(nodes),
                text(") had no memory left; others may have had some. "),
            ]
        }
        Some(_) => vec![text("The whole machine was out of memory. ")],
        None => return Vec::new(),
    };
    let free: Bytes = report.zones.iter().map(|zone| zone.free).sum();
    let min: Bytes = report.zones.iter().map(|zone| zone.min).sum();
    if !report.zones.is_empty() {
        pieces.extend([
            CellValue::Bytes(free.0),
            text(" were free, of which the kernel keeps "),
            CellValue::Bytes(min.0),
            text(" for itself. "),
        ]);
    }
    if free > min + min && report.asker.as_ref().is_some_and(|asker| asker.order > 3) {
        pieces.push(text("Enough pages were free, but not side by side: memory is fragmented. "));
    }
    pieces.extend(swap(report));
    pieces
}

fn cgroup_limit(report: &OomReport, cgroup: &Name) -> Vec<CellValue> {
    let mut pieces = vec![text("The memory cgroup "), CellValue::Name(cgroup.clone())];
    let full =
        |usage: OomUsage| usage.limit.filter(|limit| usage.usage.0 >= limit.0 - limit.0 / 64);
    let at = |usage: Option<OomUsage>| usage.and_then(full);
    match (at(report.memory), at(report.swap).filter(|_| report.swap_is_total)) {
        (_, Some(both)) if at(report.memory).is_none_or(|memory| both <= memory) => {
            pieces.extend([
                text(" had reached its limit of memory and swap together, "),
                CellValue::Bytes(both.0),
            ]);
        }
        (Some(limit), _) => {
            pieces.extend([text(" had reached its limit of "), CellValue::Bytes(limit.0)])
        }
        _ => pieces.push(text(" had reached its limit")),
    }
    if let Some(failures) = report.memory.map(|it| it.failures).filter(|count| *count > 0) {
        pieces.push(text(format!(" ({failures} requests had failed)")));
    }
    pieces.push(text(". "));
    let first = |names: [&str; 3]| names.iter().find_map(|name| counter(&report.counters, name));
    // The lines of v1 that begin with `total_` include the cgroups below this cgroup.
    let anon = first(["anon", "total_rss", "rss"]);
    let file = first(["file", "total_cache", "cache"]);
    if let (Some(anon), Some(file)) = (anon, file) {
        pieces.extend([
            CellValue::Bytes(anon),
            text(" of it were anonymous memory, "),
            CellValue::Bytes(file),
            text(" page cache and tmpfs. "),
        ]);
    }
    if let Some(shmem) = first(["total_shmem", "shmem", "shmem"]).filter(|it| Some(*it) > anon) {
        pieces.extend([
            CellValue::Bytes(shmem),
            text(" were tmpfs and shared memory, which a kill frees only if no file remains. "),
        ]);
    }
    pieces
}

fn swap(report: &OomReport) -> Vec<CellValue> {
    match (report.swap_total, report.swap_free) {
        (Some(Bytes(0)), _) => vec![text("The machine has no swap. ")],
        (Some(total), Some(free)) => vec![
            text("Of "),
            CellValue::Bytes(total.0),
            text(" swap, "),
            CellValue::Bytes(free.0),
            text(" were free. "),
        ],
        _ => Vec::new(),
    }
}

/// Describes the killed process, and the reason for its selection.
fn victim(report: &OomReport, page_size: PageSize, total: Option<u64>) -> Vec<CellValue> {
    if report.no_victim {
        return vec![text(
            "No process could be killed: all had oom_score_adj -1000 or no memory. ",
        )];
    }
    let Some(first) = report.victims.first() else {
        return vec![text("The log does not have the killed process. ")];
    };
    let mut pieces = vec![
        text("The kernel killed "),
        CellValue::Name(first.name.clone()),
        text(format!(" ({})", first.pid)),
    ];
    if let Some(memory) = first.memory {
        let all: Bytes = memory.into_iter().sum();
        pieces.extend([text(", which had "), CellValue::Bytes(all.0), text(" resident")]);
    }
    pieces.push(text(why_it(report, first, page_size, total)));
    if let Some([_, _, shmem]) = first.memory.filter(|[anon, _, shmem]| shmem > anon) {
        pieces.extend([
            text("Most of it, "),
            CellValue::Bytes(shmem.0),
            text(
                ", was shared memory, which stays if another process or a file of tmpfs holds it. ",
            ),
        ]);
    }
    let others = report.victims.len() - 1;
    if others > 0 {
        pieces.push(text(format!(
            "With it, it killed {others} more of the cgroup, since memory.oom.group is set. "
        )));
    }
    if let Some(left) = first.left_after_reaper {
        let left: Bytes = left.into_iter().sum();
        pieces.extend([
            text("The OOM reaper then freed its memory; "),
            CellValue::Bytes(left.0),
            text(" were left. "),
        ]);
    }
    pieces
}

/// Describes the reason why the victim was selected, by the table of processes.
fn why_it(
    report: &OomReport,
    victim: &OomVictim,
    page_size: PageSize,
    total: Option<u64>,
) -> String {
    let Some(row) = report.table.iter().find(|row| row.pid == victim.pid) else {
        return ". The table of processes does not have it. ".into();
    };
    let own = badness(row, page_size, total);
    let rank = report.table.iter().filter(|it| it.adj != pagewise_model::oom::NEVER_KILLED);
    let better = rank.filter(|it| badness(it, page_size, total).0 > own.0).count();
    let processes = report.table.len();
    let highest = match processes {
        1 => "It was the only process in the table, with a badness of".to_owned(),
        _ => format!("It had the highest badness of {processes} processes:"),
    };
    match (better, own.1) {
        (0, 0) => format!(". {highest} {} pages. ", own.0),
        (0, added) => format!(
            ". {highest} {} pages, of which oom_score_adj {} added {added}. ",
            own.0, row.adj
        ),
        (better, _) => format!(
            ". {better} of {processes} processes had a higher badness in the table than its {} pages: the kernel could not select them, or their memory had changed. ",
            own.0
        ),
    }
}

/// Describes the kills that followed the explained report. `later` has an entry for each of these
/// kills, of which the kernel printed only one line instead of a whole report.
fn followers(later: &[OomReport]) -> Vec<CellValue> {
    let Some(last) = later.last().and_then(|report| report.victims.first()) else {
        return Vec::new();
    };
    vec![
        text(format!(
            "{} more kills followed, of which the kernel printed one line each; the last was of ",
            later.len()
        )),
        CellValue::Name(last.name.clone()),
        text(format!(" ({}). ", last.pid)),
    ]
}

/// Removes the blank after the last sentence.
fn trim_end(pieces: &mut [CellValue]) {
    if let Some(CellValue::Text(last)) = pieces.last_mut() {
        *last = last.trim_end().to_owned().into();
    }
}

fn damage(report: &OomReport) -> Vec<CellValue> {
    let mut pieces = Vec::new();
    if report.truncated {
        pieces.push(text("The report in the log is incomplete. "));
    }
    if report.damaged > 0 {
        pieces.push(text(format!("{} lines of it could not be read. ", report.damaged)));
    }
    pieces
}

/// Builds the table of processes, by badness.
fn process_table(
    report: &OomReport,
    page_size: PageSize,
    total: Option<u64>,
    options: &OomOptions,
) -> ReportTable {
    let mut rows: Vec<(&OomTableRow, i64)> =
        report.table.iter().map(|row| (row, badness(row, page_size, total).0)).collect();
    let is_protected = |row: &OomTableRow| row.adj == pagewise_model::oom::NEVER_KILLED;
    rows.sort_by_key(|(row, badness)| (is_protected(row), std::cmp::Reverse(*badness)));
    let (shown, note) = first(&rows, options.rows, "--limit");
    let killed = |row: &OomTableRow| report.victims.iter().any(|it| it.pid == row.pid);
    let bytes = |pages: u64| page_size.pages(pages).0;
    let points = |(row, badness): &(&OomTableRow, i64)| match is_protected(row) {
        true => text("never selected"),
        false => badness_cell(*badness),
    };
    let share = |row: &OomTableRow| -> CellValue {
        let all: u64 = report.table.iter().fold(0_u64, |sum, it| sum.saturating_add(it.rss));
        if all == 0 { CellValue::None } else { CellValue::Bar(float(row.rss) / float(all)) }
    };
    let adj = |row: &OomTableRow| badness_cell(row.adj);
    let columns = vec![
        TableColumn::new(
            "pid",
            "PID",
            ColumnCells::Counts(shown.iter().map(|it| it.0.pid.0.into()).collect()),
        ),
        TableColumn::new(
            "badness",
            "Badness",
            ColumnCells::Values(shown.iter().map(points).collect()),
        ),
        for_people(TableColumn::new(
            "adj",
            "Adj",
            ColumnCells::Values(shown.iter().map(|it| adj_text(it.0.adj)).collect()),
        )),
        for_programs(TableColumn::new(
            "oom_score_adj",
            "",
            ColumnCells::Values(shown.iter().map(|it| adj(it.0)).collect()),
        )),
        TableColumn::new(
            "rss",
            "RSS",
            ColumnCells::Bytes(shown.iter().map(|it| bytes(it.0.rss)).collect()),
        ),
        TableColumn::new(
            "share",
            "Share of RSS",
            ColumnCells::Values(shown.iter().map(|it| share(it.0)).collect()),
        ),
        TableColumn::new(
            "swap",
            "Swap",
            ColumnCells::Bytes(shown.iter().map(|it| bytes(it.0.swap)).collect()),
        ),
        TableColumn::new(
            "page_tables",
            "Tables",
            ColumnCells::Bytes(shown.iter().map(|it| it.0.page_tables.0).collect()),
        ),
        TableColumn::new(
            "killed",
            "Killed",
            ColumnCells::Values(
                shown
                    .iter()
                    .map(|it| if killed(it.0) { CellValue::Flag(true) } else { CellValue::None })
                    .collect(),
            ),
        ),
        TableColumn::new(
            "name",
            "Name",
            ColumnCells::Names(shown.iter().map(|it| it.0.name.clone()).collect()),
        ),
    ];
    ReportTable {
        note,
        ..table("past.table", "The table of the report, by badness", Audience::Everyone, columns)
    }
}

/// Lists the other kills in one line each, the last kill first.
fn other_reports(reports: &[&OomReport], options: &OomOptions) -> Option<ReportTable> {
    let all: Vec<&OomReport> = reports.iter().rev().copied().collect();
    let (rows, note) = first(&all, options.rows, "--limit");
    let cells = |make: &dyn Fn(&OomReport) -> CellValue| {
        ColumnCells::Values(rows.iter().map(|it| make(it)).collect())
    };
    let victim = |make: &dyn Fn(&OomVictim) -> CellValue| {
        cells(&|it| it.victims.first().map_or(CellValue::None, make))
    };
    let memory = |it: &OomVictim| {
        it.memory.map_or(CellValue::None, |it| CellValue::Bytes(it.into_iter().sum::<Bytes>().0))
    };
    let at = |it: &OomReport| it.at_seconds.map_or(CellValue::None, super::forecast::duration);
    let age = |it: &OomReport| it.age_seconds.map_or(CellValue::None, super::forecast::duration);
    let asker = |it: &OomReport| {
        it.asker.as_ref().map_or(CellValue::None, |it| CellValue::Name(it.name.clone()))
    };
    let scope = |it: &OomReport| match (&it.limited, &it.constraint) {
        (Some(cgroup), _) => CellValue::Name(cgroup.clone()),
        (None, Some(_)) => text("the machine"),
        (None, None) => CellValue::None,
    };
    let mut columns = vec![
        TableColumn::new("at_seconds", "After boot", cells(&at)),
        TableColumn::new("victim_pid", "PID", victim(&|it| CellValue::Count(it.pid.0.into()))),
        TableColumn::new("memory", "Memory", victim(&memory)),
        TableColumn::new("victim", "Killed", victim(&|it| CellValue::Name(it.name.clone()))),
        TableColumn::new("asker", "Asked by", cells(&asker)),
        TableColumn::new("cgroup", "Limit of", cells(&scope)),
    ];
    if rows.iter().any(|it| it.age_seconds.is_some()) {
        columns.insert(0, TableColumn::new("age_seconds", "Ago", cells(&age)));
    }
    let other = table("past.others", "Other OOM kills", Audience::Everyone, columns);
    (!all.is_empty()).then_some(ReportTable { note, ..other })
}
