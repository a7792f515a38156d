//! Process that the OOM killer selects, by the kernel's own rule, for the machine and for each
//! memory cgroup with a limit; and the memory and time that are left before an OOM kill.
//!
//! `oom_badness` of mm/oom_kill.c: resident pages, pages in swap and pages of page tables, plus
//! `oom_score_adj` thousandths of all pages that the limit allows. Among processes of equal
//! badness, the kernel selects the process that it visits last.

mod forecast;
pub mod past;
mod tables;

use pagewise_model::account::{MemoryAccount, SystemReading};
use pagewise_model::evidence::counter;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::oom::{NEVER_KILLED, OomProcess, OomReading};
use pagewise_model::report::{
    CellValue, Fact, FactsShape, Finding, Findings, NamedFacts, Report, ReportBlock, Severity,
};
use pagewise_model::{Bytes, PageSize, Pid};

use crate::blocks::facts_of;
use crate::cells::text;
use crate::explain::fact;
pub use forecast::{OomForecast, OomScope, forecasts};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.oom/1";

/// Reasons why the OOM killer does not select a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomExemption {
    /// The first process of the machine.
    Init,
    /// The `oom_score_adj` of the process is -1000.
    Adjusted,
    /// The process has ended and has no memory.
    NoMemory,
    /// The kernel shows score 0, although the size of the process implies a higher score.
    Skipped,
    /// The pagewise process that reads the other processes: it will have ended before memory runs
    /// out.
    Ourselves,
}

impl OomExemption {
    /// Describes the reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            OomExemption::Init => "the first process",
            OomExemption::Adjusted => "oom_score_adj is -1000",
            OomExemption::NoMemory => "has ended",
            OomExemption::Ourselves => "this run of pagewise",
            OomExemption::Skipped => {
                "oom_score is 0: vfork child, or already reclaimed by the OOM reaper"
            }
        }
    }
}

/// A process with its badness.
#[derive(Clone, Copy, Debug)]
pub struct OomRank<'a> {
    /// The process.
    pub process: &'a OomProcess,
    /// Badness of the process in pages, or the reason why the OOM killer does not select the
    /// process.
    pub badness: Result<i64, OomExemption>,
}

/// Computes the badness of a process in pages, for a limit of `total_pages`.
pub fn badness(process: &OomProcess, total_pages: u64, page_size: PageSize) -> i64 {
    let pages = |bytes: Bytes| page_size.count(bytes).cast_signed();
    let own = pages(process.rss)
        .saturating_add(pages(process.swap))
        .saturating_add(pages(process.page_tables));
    let adj = process.adj.clone().unwrap_or(0);
    // The kernel divides `total_pages` by 1000 before it multiplies by `oom_score_adj`.
    own.saturating_add(adj.saturating_mul((total_pages / 1000).cast_signed()))
}

/// Converts a badness to the score of `/proc/PID/oom_score` (since 5.9): the score of badness 0 is
/// 666.
pub fn score(badness: i64, total_pages: u64) -> u64 {
    let share = badness.saturating_mul(1000).checked_div(total_pages.cast_signed()).unwrap_or(0);
    let points = 1000_i64.saturating_add(share).saturating_mul(2) / 3;
    u64::try_from(points).unwrap_or(0)
}

/// Number of pages of the whole machine, including swap: the limit for processes in memory cgroups
/// without a limit.
pub fn machine_pages(meminfo: &[BootCounter], page_size: PageSize) -> u64 {
    let line = |name: &str| Bytes(counter(meminfo, name).unwrap_or(0));
    page_size.count(line("MemTotal")) + page_size.count(line("SwapTotal"))
}

/// Returns the reason why a process is not selected, as far as `/proc` shows the reason.
fn exemption(process: &OomProcess, rule: &OomRule) -> Option<OomExemption> {
    /// Minimum computed score for which rounding cannot explain that the kernel shows score 0.
    const CERTAIN: u64 = 3;
    let machine_pages = rule.machine_pages;
    let expected = score(badness(process, machine_pages, rule.page_size), machine_pages);
    let is_first = process.pid.0 == 1;
    match process.score {
        _ if process.adj == Ok(NEVER_KILLED) => Some(OomExemption::Adjusted),
        _ if rule.ourselves == Some(process.pid) => Some(OomExemption::Ourselves),
        _ if !process.has_memory => Some(OomExemption::NoMemory),
        Ok(0) if expected >= CERTAIN && is_first => Some(OomExemption::Init),
        Ok(0) if expected >= CERTAIN => Some(OomExemption::Skipped),
        Err(_) if is_first => Some(OomExemption::Init),
        _ => None,
    }
}

/// Values of the machine that determine the order of processes.
#[derive(Clone, Copy, Debug)]
pub struct OomRule {
    /// Number of pages of RAM and swap.
    pub machine_pages: u64,
    /// Base page size of the machine.
    pub page_size: PageSize,
    /// PID of the pagewise process, if it is among the processes.
    pub ourselves: Option<Pid>,
}

/// Orders processes by the preference of the OOM killer, for a limit of `total_pages`: the next
/// victim is first, processes that are not selected are last.
pub fn rank<'a>(
    processes: impl Iterator<Item = &'a OomProcess>,
    total_pages: u64,
    rule: &OomRule,
) -> Vec<OomRank<'a>> {
    let rank = |process: &'a OomProcess| {
        let why = exemption(process, rule);
        let points = badness(process, total_pages, rule.page_size);
        OomRank { process, badness: why.map_or(Ok(points), Err) }
    };
    let mut ranks: Vec<OomRank<'a>> = processes.map(rank).collect();
    // The sort is stable: among equal processes, the process that the kernel visits last stays
    // first.
    ranks.reverse();
    ranks.sort_by_key(|rank| std::cmp::Reverse(rank.badness.unwrap_or(i64::MIN)));
    ranks
}

/// Returns the first process of the order, if any process can be selected.
pub fn next_victim<'a>(ranks: &[OomRank<'a>]) -> Option<OomRank<'a>> {
    ranks.first().copied().filter(|rank| rank.badness.is_ok())
}

/// Returns the facts `next`: the process, its badness, and the memory that its end frees.
fn next_facts(next: Option<OomRank<'_>>) -> Vec<Fact> {
    let none = || CellValue::None;
    let count = |value: Option<u64>| value.map_or_else(none, CellValue::Count);
    let process = next.map(|rank| rank.process);
    let badness = next.and_then(|rank| rank.badness.ok());
    vec![
        fact(
            "pid",
            "PID",
            count(process.map(|it| it.pid.0.into())),
            "The process that the OOM killer would select now.",
        ),
        fact("name", "name", process.map_or_else(none, |it| CellValue::Name(it.name.clone())), ""),
        fact(
            "badness",
            "badness",
            badness.map_or_else(none, badness_cell),
            "Pages of RSS, swap and page tables, plus oom_score_adj thousandths of all pages.",
        ),
        fact(
            "frees",
            "its end frees",
            process.map_or_else(none, |it| CellValue::bytes(it.uss.clone())),
            "USS: pages that no other process maps. Files of tmpfs that the process has mapped stay.",
        ),
    ]
}

/// Returns a cell for a badness or an adjustment, which may be negative.
#[expect(clippy::cast_precision_loss, reason = "a float has all digits of 2^53 pages")]
pub(crate) fn badness_cell(badness: i64) -> CellValue {
    match u64::try_from(badness) {
        Ok(badness) => CellValue::Count(badness),
        Err(_) => CellValue::Number(badness as f64),
    }
}

/// Reports the next victim of the whole machine, for the report of the machine's memory.
pub(crate) fn next_of_machine(reading: &SystemReading, ourselves: Option<Pid>) -> NamedFacts {
    let page_size = reading.page_size;
    let machine_pages = machine_pages(&reading.meminfo, page_size);
    let rule = OomRule { machine_pages, page_size, ourselves };
    let ranks = rank(reading.oom.iter(), machine_pages, &rule);
    let title = "Next victim if the machine runs out of memory";
    facts_of("oom.next", title, FactsShape::Line, next_facts(next_victim(&ranks)))
}

/// Minimum share of RAM that is in processes that the OOM killer never selects, for a finding.
const PROTECTED_SHARE: f64 = 0.5;
/// Minimum unaccounted share of RAM for a finding.
const UNACCOUNTED_SHARE: f64 = 0.01;
/// Share of RAM: if less memory is available, reclaim slows all programs.
const AVAILABLE_SHARE: f64 = 0.05;
/// Minimum share of tmpfs in RAM for a finding.
const SHMEM_SHARE: f64 = 0.25;

/// Finds problems with the memory of the machine.
pub(crate) fn machine_findings(reading: &SystemReading, account: &MemoryAccount) -> Vec<Finding> {
    let mut findings = Vec::new();
    let share = |bytes: Bytes| bytes.fraction_of(account.total).unwrap_or(0.0);
    let of_total = |bytes: Bytes| {
        vec![
            fact("bytes", "memory", CellValue::Bytes(bytes.0), ""),
            fact("share", "share", CellValue::Share(share(bytes)), ""),
        ]
    };
    let lost = Bytes(account.unaccounted.unsigned_abs());
    if account.unaccounted > 0 && share(lost) > UNACCOUNTED_SHARE {
        findings.push(Finding {
            id: "unaccounted-memory",
            severity: Severity::Warning,
            claim: vec![CellValue::Bytes(lost.0), text(" of RAM have no owner that the kernel counts: drivers or the kernel allocated these pages directly.")],
            evidence: of_total(lost),
            next_step: vec![text("Compare this line over time. If it grows, look for the driver: graphics, network buffers (`ss -m`), io_uring, a hypervisor's balloon.")],
        });
    }
    let shmem = account.owner("shmem.unmapped").unwrap_or_default()
        + account.owner("processes.shmem").unwrap_or_default();
    if share(shmem) > SHMEM_SHARE {
        findings.push(Finding {
            id: "much-shmem",
            severity: Severity::Warning,
            claim: vec![CellValue::Bytes(shmem.0), text(" are tmpfs files and shared memory. The kernel can only swap them out, not drop them.")],
            evidence: of_total(shmem),
            next_step: vec![text("See the table of tmpfs memory below. Delete files that are not needed, or limit the mount: `mount -o remount,size=SIZE`.")],
        });
    }
    let available = counter(&reading.meminfo, "MemAvailable").map(Bytes);
    if let Some(available) = available.filter(|it| share(*it) < AVAILABLE_SHARE) {
        findings.push(Finding {
            id: "little-available",
            severity: Severity::Critical,
            claim: vec![text("Only "), CellValue::Bytes(available.0), text(" are available: programs wait for reclaim, and the OOM killer is near.")],
            evidence: of_total(available),
            next_step: vec![text("Run `pagewise oom` for the process that would be killed, and `pagewise diagnose --system` for its cause.")],
        });
    }
    findings
}

/// Options of the report.
#[derive(Clone, Copy, Debug)]
pub struct OomOptions {
    /// Maximum number of rows in the table of processes; `None` for all.
    pub rows: Option<usize>,
    /// PID of the pagewise process, if it is among the processes.
    pub ourselves: Option<Pid>,
}

/// Reports the processes in the order of the OOM killer, and the forecasts. `past` are the blocks
/// of the last report in the kernel log.
pub fn oom(reading: &OomReading, options: &OomOptions, past: Vec<ReportBlock>) -> Report {
    let forecasts = forecasts(reading, options.ourselves);
    let rule = forecast::rule(reading, options.ourselves);
    let pages = rule.machine_pages;
    let ranks = rank(reading.processes.iter(), pages, &rule);
    let next = next_victim(&ranks);
    let mut blocks = vec![
        ReportBlock::Text(tables::verdict(next, forecasts.first())),
        ReportBlock::Findings(Findings {
            list: findings(reading, &ranks, &forecasts),
            none: "Nothing stands out.".into(),
        }),
        ReportBlock::Facts(programs_only(facts_of(
            "oom.next",
            "",
            FactsShape::Line,
            next_facts(next),
        ))),
        ReportBlock::Facts(programs_only(facts_of("next", "", FactsShape::Line, next_facts(next)))),
        ReportBlock::Table(tables::scopes(&forecasts)),
        ReportBlock::Table(tables::processes(&ranks, options)),
        ReportBlock::Facts(check(reading, &ranks, pages)),
    ];
    blocks.extend(tables::exempt(&ranks).map(ReportBlock::Table));
    blocks.extend(past);
    Report { schema: SCHEMA, title: vec![text("OOM killer: the next victims")], blocks }
}

fn programs_only(facts: NamedFacts) -> NamedFacts {
    NamedFacts { audience: pagewise_model::report::Audience::Programs, ..facts }
}

/// Compares the computed scores with the kernel's scores.
fn check(reading: &OomReading, ranks: &[OomRank<'_>], pages: u64) -> NamedFacts {
    /// Maximum difference of equal scores: the kernel's RSS may lack per-CPU counts that are not
    /// yet summed.
    const TOLERANCE: u64 = 1;
    let scored = ranks
        .iter()
        .filter_map(|rank| Some((rank.badness.ok()?, rank.process.score.clone().ok()?)));
    let (mut compared, mut differ) = (0_u64, 0_u64);
    for (badness, kernel) in scored {
        compared += 1;
        differ += u64::from(score(badness, pages).abs_diff(kernel) > TOLERANCE);
    }
    let facts = vec![
        fact("processes", "processes", CellValue::Count(reading.processes.len() as u64), ""),
        fact("unreadable", "not readable", CellValue::Count(reading.unreadable), "")
            .hidden_if(reading.unreadable == 0),
        fact(
            "compared",
            "compared with oom_score",
            CellValue::Count(compared),
            "Processes whose score was computed from their sizes and compared with the kernel's own.",
        ),
        fact(
            "differ",
            "of them different",
            CellValue::Count(differ),
            "Processes whose size changed meanwhile, or for which the kernel has another rule.",
        ),
        fact("total_pages", "pages of RAM and swap", CellValue::Count(pages), "").for_programs(),
    ];
    facts_of("check", "Check", FactsShape::Line, facts)
}

fn findings(
    reading: &OomReading,
    ranks: &[OomRank<'_>],
    forecasts: &[OomForecast<'_>],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Ok(panics @ 1..) = reading.panics {
        findings.push(Finding {
            id: "panic-on-oom",
            severity: Severity::Critical,
            claim: vec![text("The machine panics instead of killing a process: vm.panic_on_oom is "), CellValue::Count(panics), text(".")],
            evidence: vec![fact("panic_on_oom", "panic_on_oom", CellValue::Count(panics), "")],
            next_step: vec![text("`sysctl vm.panic_on_oom=0` makes it kill a process. Keep the setting if another machine takes over.")],
        });
    }
    if reading.kills_allocating_task == Ok(true) {
        findings.push(Finding {
            id: "kills-allocating-task",
            severity: Severity::Note,
            claim: vec![text("The kernel kills the process that asks for memory, not the one with the highest badness: vm.oom_kill_allocating_task is 1. Limits of cgroups are not concerned.")],
            evidence: vec![fact("oom_kill_allocating_task", "oom_kill_allocating_task", CellValue::Count(1), "")],
            next_step: vec![text("`sysctl vm.oom_kill_allocating_task=0` selects by badness again.")],
        });
    }
    findings.extend(forecasts.iter().filter_map(near_limit));
    findings.extend(protected(reading, ranks));
    findings
}

/// Shares of a limit that are left: below `NEAR_SHARE` the limit is near, below `VERY_NEAR_SHARE`
/// it is very near.
const NEAR_SHARE: f64 = 0.1;
const VERY_NEAR_SHARE: f64 = 0.02;
/// Seconds until an OOM kill: a forecast below `SOON_SECONDS` is a finding if less than half of the
/// limit is left. A forecast below `VERY_SOON_SECONDS` is always a finding. The condition that less
/// than half is left excludes short bursts of allocation, which also appear as growth between two
/// readings that are one second apart.
const SOON_SECONDS: f64 = 600.0;
const VERY_SOON_SECONDS: f64 = 60.0;

fn near_limit(forecast: &OomForecast<'_>) -> Option<Finding> {
    let left = forecast.left.clone().ok()?;
    let share = left.fraction_of(forecast.limit.clone().ok()?)?;
    let within = |limit: f64| forecast.seconds_left.is_some_and(|seconds| seconds < limit);
    let is_very_near = within(VERY_SOON_SECONDS) || share < VERY_NEAR_SHARE;
    let is_near = share < NEAR_SHARE || (share < 0.5 && within(SOON_SECONDS));
    if !is_near && !is_very_near {
        return None;
    }
    let mut claim = vec![
        forecast.scope.cell(),
        text(" has "),
        CellValue::Bytes(left.0),
        text(" left before an OOM kill"),
    ];
    if let Some(seconds) = forecast.seconds_left {
        claim.extend([text(", at the present growth for "), forecast::duration(seconds)]);
    }
    claim.push(text("."));
    if let Some(next) = forecast.next {
        claim.extend([
            text(" The next victim is "),
            CellValue::Name(next.process.name.clone()),
            text(format!(" ({}).", next.process.pid)),
        ]);
    }
    Some(Finding {
        id: "oom-near",
        severity: if is_very_near { Severity::Critical } else { Severity::Warning },
        claim,
        evidence: vec![
            fact("left", "left", CellValue::Bytes(left.0), ""),
            fact("share", "share of the limit", CellValue::Share(share), ""),
        ],
        next_step: vec![text("Find the growth with `pagewise diagnose PID`, or raise the limit.")],
    })
}

/// Reports that processes that the OOM killer never selects have much memory.
fn protected(reading: &OomReading, ranks: &[OomRank<'_>]) -> Option<Finding> {
    let exempt = ranks.iter().filter(|rank| rank.badness == Err(OomExemption::Adjusted));
    let held: Bytes = exempt.clone().map(|rank| rank.process.uss.clone().unwrap_or_default()).sum();
    let total = counter(&reading.machine[1].meminfo, "MemTotal").map(Bytes)?;
    let share = held.fraction_of(total).filter(|share| *share >= PROTECTED_SHARE)?;
    let largest = exempt.max_by_key(|rank| rank.process.rss)?.process;
    Some(Finding {
        id: "protected-memory",
        severity: Severity::Warning,
        claim: vec![
            text("Processes that the OOM killer never selects hold "),
            CellValue::Bytes(held.0),
            text(", "),
            CellValue::Share(share),
            text(" of RAM; the largest is "),
            CellValue::Name(largest.name.clone()),
            text(format!(" ({}). The kernel kills all others first.", largest.pid)),
        ],
        evidence: vec![fact("bytes", "memory", CellValue::Bytes(held.0), "")],
        next_step: vec![text(format!(
            "`echo -900 > /proc/{}/oom_score_adj` protects it and still leaves it as the last victim.",
            largest.pid
        ))],
    })
}

/// Reports a kernel log without a reading of the machine.
pub fn past_report(blocks: Vec<ReportBlock>) -> Report {
    Report { schema: SCHEMA, title: vec![text("OOM killer: reports in the kernel log")], blocks }
}

#[cfg(test)]
mod tests;
