//! The report of a machine's RAM: the account, headroom, pressure, reclaim, fragmentation, limits.

mod files;
mod tables;

use pagewise_model::account::{MemoryAccount, SystemReading};
use pagewise_model::evidence::counter;
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Findings, NamedFacts, Report, ReportBlock, ReportTable,
};
use pagewise_model::settings::PressureFigures;
use pagewise_model::{Absent, Bytes, Pid, Reading};

use crate::account::account;
use crate::blocks::facts_of;
use crate::cells::{float, text};
use crate::explain::fact;
use crate::fragmentation::{FreeForHugePages, huge_of_free};
use crate::headroom::{Headroom, headroom};
use crate::oom;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.system/1";

/// Options of the report.
#[derive(Clone, Copy, Debug)]
pub struct SystemOptions {
    /// Maximum number of rows in the lists of files and slab caches; `None` for all.
    pub rows: Option<usize>,
    /// PID of the pagewise process, if it runs on the machine that was read.
    pub ourselves: Option<Pid>,
}

/// Builds the blocks about the page cache of files.
pub(crate) fn files_blocks(reading: &SystemReading, options: &SystemOptions) -> Vec<ReportBlock> {
    files::blocks(reading, options)
}

/// Reports the RAM of a machine.
pub fn system(reading: &SystemReading, options: &SystemOptions) -> Report {
    let account = account(reading);
    let room = headroom(&reading.meminfo, &reading.zones, reading.page_size);
    let mut blocks = vec![ReportBlock::Facts(totals(reading, &account))];
    blocks.extend(owner_tables(reading, &account).map(ReportBlock::Table));
    blocks.extend([
        ReportBlock::Findings(Findings {
            list: oom::machine_findings(reading, &account),
            none: "Nothing stands out.".into(),
        }),
        ReportBlock::Facts(headroom_facts(&room)),
        ReportBlock::Facts(oom::next_of_machine(reading, options.ourselves)),
        ReportBlock::Facts(pressure(&reading.pressure, "pressure", "Memory pressure (PSI)")),
        ReportBlock::Facts(reclaim(reading)),
        ReportBlock::Facts(fragmentation(reading)),
        ReportBlock::Facts(limits(reading)),
        ReportBlock::Facts(outside(reading)),
    ]);
    blocks.extend(tables::shmem(reading, options).map(ReportBlock::Table));
    blocks.extend(tables::slabs(reading, options).map(ReportBlock::Table));
    blocks.extend(files::blocks(reading, options));
    Report {
        schema: SCHEMA,
        title: vec![
            text("Memory of this machine (Linux "),
            CellValue::Name(reading.kernel.clone()),
            text(")"),
        ],
        blocks,
    }
}

/// Builds the tables of the owners of RAM, for people and for programs.
pub(crate) fn owner_tables(reading: &SystemReading, account: &MemoryAccount) -> [ReportTable; 2] {
    [tables::owners_for_people(reading, account), tables::owners_for_programs(account)]
}

fn totals(reading: &SystemReading, account: &MemoryAccount) -> NamedFacts {
    let sums = &reading.processes;
    let share = Bytes(account.unaccounted.unsigned_abs()).fraction_of(account.total);
    let facts = vec![
        fact("total", "RAM", CellValue::Bytes(account.total.0), "MemTotal."),
        fact(
            "unaccounted",
            "unaccounted",
            CellValue::Change(account.unaccounted),
            "MemTotal less all owners: pages that drivers and the kernel allocated directly. Negative if the counters changed while they were read.",
        )
        .for_programs(),
        fact("unaccounted_share", "unaccounted", share.map_or(CellValue::None, CellValue::Share), "")
            .for_programs(),
        fact("processes", "processes", CellValue::Count(sums.read), "Processes whose PSS was read."),
        fact("processes_unread", "not readable", CellValue::Count(sums.unread), "Processes whose memory could not be read.")
            .hidden_if(sums.unread == 0),
        fact("same_memory", "sharing all memory", CellValue::Count(sums.same_memory), "Processes that use the same memory as another one (vfork, CLONE_VM): it counts once.")
            .hidden_if(sums.same_memory == 0),
        fact("changed_while_read", "changed while read", changed_while_read(reading), "Change of MemFree between both readings of meminfo: no line is more exact than this."),
        fact("kernel", "", CellValue::Name(reading.kernel.clone()), "").for_programs(),
        fact("page_size", "", CellValue::Bytes(reading.page_size.bytes()), "").for_programs(),
        fact("took_ns", "read in", CellValue::Nanos(reading.took_ns), ""),
        fact(
            "longest_hold_ns",
            "held one process at most",
            CellValue::from_reading(reading.longest_hold_ns.clone(), CellValue::Nanos),
            "",
        )
        .hidden_if(reading.longest_hold_ns.is_err()),
    ];
    facts_of("", "", FactsShape::Line, facts)
}

/// Describes the change of free memory while the machine was read.
fn changed_while_read(reading: &SystemReading) -> CellValue {
    let free = |lines| counter(lines, "MemFree");
    match (free(&reading.meminfo_before), free(&reading.meminfo)) {
        (Some(before), Some(after)) => CellValue::Bytes(before.abs_diff(after)),
        _ => CellValue::Absent(Absent::NotInThisKernel("".into())),
    }
}

fn headroom_facts(room: &Headroom) -> NamedFacts {
    let row = |key, label, value: &Reading<Bytes>, meaning| {
        fact(key, label, CellValue::bytes(value.clone()), meaning)
    };
    let facts = vec![
        row(
            "before_reclaim",
            "before reclaim",
            &room.before_reclaim,
            "Free pages above the low watermarks, at which kswapd begins to work.",
        ),
        row(
            "before_swap",
            "before swap",
            &room.before_swap,
            "MemAvailable: the kernel's estimate of what programs can get before others are swapped out.",
        ),
        row(
            "before_oom",
            "before OOM, at most",
            &room.before_oom,
            "Free pages above the min watermarks, all page cache of files, all reclaimable kernel memory, and free swap.",
        ),
    ];
    facts_of(
        "headroom",
        "Headroom: memory that programs can still allocate",
        FactsShape::Columns,
        facts,
    )
}

/// Reports the pressure (PSI) of memory.
pub(crate) fn pressure(
    reading: &Reading<PressureFigures>,
    key: &'static str,
    title: &'static str,
) -> NamedFacts {
    let share = |pick: fn(&PressureFigures) -> Option<u64>| {
        CellValue::from_reading(reading.clone(), |it| {
            pick(&it).map_or(CellValue::None, |it| CellValue::Share(float(it) / 10_000.0))
        })
    };
    let total = |pick: fn(&PressureFigures) -> u64| {
        CellValue::from_reading(reading.clone(), |it| {
            CellValue::Nanos(pick(&it).saturating_mul(1000))
        })
    };
    let facts = vec![
        fact(
            "some_avg10",
            "some 10s",
            share(|it| Some(it.avg10.some)),
            "Share of time in which a task waited for memory.",
        ),
        fact("some_avg60", "1 min", share(|it| Some(it.longer?[0].some)), ""),
        fact("some_avg300", "5 min", share(|it| Some(it.longer?[1].some)), ""),
        fact(
            "full_avg10",
            "full 10s",
            share(|it| Some(it.avg10.full)),
            "Share of time in which all tasks waited.",
        ),
        fact("full_avg60", "1 min", share(|it| Some(it.longer?[0].full)), ""),
        fact("full_avg300", "5 min", share(|it| Some(it.longer?[1].full)), ""),
        fact("some_total_ns", "some, in all", total(|it| it.some_us), ""),
        fact("full_total_ns", "full, in all", total(|it| it.full_us), "").for_programs(),
    ];
    if let Err(absent) = reading {
        let why = vec![fact(key, title, CellValue::Absent(absent.clone()), "")];
        return facts_of("", "", FactsShape::Line, why);
    }
    facts_of(key, title, FactsShape::Columns, facts)
}

/// A rate of kernel events: its key, its label, the prefixes of the names of its counters, and true
/// if the counters are in pages.
type RateRow = (&'static str, &'static str, &'static [&'static str], bool);

/// Rates of reclaim and swap. If the last member is true, the counters are in pages and the rate is
/// in bytes.
const RATES: [RateRow; 8] = [
    ("scanned", "scanned", &["pgscan_kswapd", "pgscan_direct", "pgscan_khugepaged"], true),
    ("reclaimed_kswapd", "by kswapd", &["pgsteal_kswapd"], true),
    ("reclaimed_direct", "by tasks", &["pgsteal_direct"], true),
    ("stalls", "stalls", &["allocstall"], false),
    ("swap_in", "swap in", &["pswpin"], true),
    ("swap_out", "swap out", &["pswpout"], true),
    ("refaults", "refaults", &["workingset_refault"], true),
    ("major_faults", "major faults", &["pgmajfault"], false),
];

fn reclaim(reading: &SystemReading) -> NamedFacts {
    let [first, last] = &reading.vmstat;
    let seconds = float(last.at_ns.saturating_sub(first.at_ns)) / 1e9;
    let total = |point: &pagewise_model::account::VmstatPoint, starts: &[&str]| {
        let is_one = |name: &[u8]| {
            starts.iter().any(|start| {
                let rest = name.strip_prefix(start.as_bytes());
                // `pgscan_direct_throttle` counts tasks, not pages.
                rest.is_some_and(|rest| {
                    rest.is_empty() || *start == "allocstall" || *start == "workingset_refault"
                })
            })
        };
        let found: Vec<u64> = point
            .counters
            .iter()
            .filter(|it| is_one(it.name.as_bytes()))
            .map(|it| it.count)
            .collect();
        (!found.is_empty()).then(|| found.iter().fold(0_u64, |sum, it| sum.saturating_add(*it)))
    };
    let absent = || CellValue::Absent(Absent::NotInThisKernel("".into()));
    let row = |(key, label, names, in_pages): &RateRow| {
        let value = match (total(first, names), total(last, names)) {
            (Some(before), Some(now)) if seconds > 0.0 => {
                let rate = float(now.saturating_sub(before)) / seconds;
                match in_pages {
                    true => CellValue::Sentence(vec![
                        CellValue::Bytes(per_second(rate, reading.page_size.bytes())),
                        text("/s"),
                    ]),
                    false => CellValue::Rate(rate),
                }
            }
            _ => absent(),
        };
        let number = match (total(first, names), total(last, names)) {
            (Some(before), Some(now)) if seconds > 0.0 => {
                let rate = float(now.saturating_sub(before)) / seconds;
                let unit = if *in_pages { float(reading.page_size.bytes()) } else { 1.0 };
                CellValue::Number(rate * unit)
            }
            _ => absent(),
        };
        [fact(*key, *label, value, "").for_people(), fact(*key, *label, number, "").for_programs()]
    };
    let mut facts: Vec<Fact> = RATES.iter().flat_map(row).collect();
    let kills = counter(&last.counters, "oom_kill");
    facts.push(fact(
        "oom_kills",
        "OOM kills",
        kills.map_or_else(absent, CellValue::Count),
        "Processes that the OOM killer has killed, in all cgroups.",
    ));
    facts_of(
        "reclaim",
        "Reclaim and swap per second, and OOM kills since boot",
        FactsShape::Columns,
        facts,
    )
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
fn per_second(rate: f64, unit: u64) -> u64 {
    (rate * float(unit)).max(0.0) as u64
}

fn fragmentation(reading: &SystemReading) -> NamedFacts {
    let value = |make: fn(FreeForHugePages) -> CellValue| {
        CellValue::from_reading(huge_of_free(reading), make)
    };
    let facts = vec![
        fact(
            "allocatable_huge",
            "free in huge pages",
            value(|it| CellValue::Bytes(it.allocatable.0)),
            "Huge pages that free blocks provide without compaction.",
        ),
        fact(
            "unusable_index",
            "free memory in smaller blocks",
            value(|it| it.unusable_index().map_or(CellValue::None, CellValue::Share)),
            "The share of free memory in blocks that are smaller than a huge page: see `pagewise fragmentation`.",
        ),
    ];
    facts_of("fragmentation", "Fragmentation", FactsShape::Line, facts)
}

fn limits(reading: &SystemReading) -> NamedFacts {
    let line = |name: &str| {
        counter(&reading.meminfo, name)
            .map_or_else(|| CellValue::Absent(Absent::NotInThisKernel("".into())), CellValue::Bytes)
    };
    let setting = |name: &str| {
        let path = format!("/proc/sys/vm/{name}");
        let found = reading.settings.iter().find(|(it, _)| it.as_bytes() == path.as_bytes());
        found.map_or(CellValue::Absent(Absent::NotInThisKernel("".into())), |(_, value)| {
            CellValue::Count(*value)
        })
    };
    let swaps = reading.swaps.as_ref().map(|areas| areas.iter().map(|it| it.used).sum());
    let facts = vec![
        fact("swap_total", "swap", line("SwapTotal"), ""),
        fact("swap_used", "swap used", CellValue::bytes(swaps.map_err(Clone::clone)), ""),
        fact(
            "committed",
            "committed",
            line("Committed_AS"),
            "Committed_AS: memory that the kernel has promised.",
        ),
        fact(
            "commit_limit",
            "commit limit",
            line("CommitLimit"),
            "CommitLimit: it applies if vm.overcommit_memory is 2.",
        ),
        fact("overcommit_memory", "overcommit_memory", setting("overcommit_memory"), ""),
        fact("swappiness", "swappiness", setting("swappiness"), ""),
        fact("min_free_kbytes", "min_free_kbytes", setting("min_free_kbytes"), ""),
        fact("watermark_scale_factor", "", setting("watermark_scale_factor"), "").for_programs(),
    ];
    facts_of("limits", "Limits", FactsShape::Line, facts)
}

/// Reports memory that is not part of `MemTotal`.
fn outside(reading: &SystemReading) -> NamedFacts {
    let reserved = || -> Reading<Bytes> {
        let zones = reading.zones.as_ref().map_err(Clone::clone)?;
        let present = zones.iter().fold(0_u64, |sum, zone| sum.saturating_add(zone.present));
        let total = counter(&reading.meminfo, "MemTotal").unwrap_or(0);
        Ok(reading.page_size.pages(present) - Bytes(total))
    };
    let balloon =
        counter(&reading.meminfo, "Balloon").filter(|_| reading.balloon_in_total == Ok(false));
    let facts = vec![
        fact(
            "reserved",
            "reserved at boot",
            CellValue::bytes(reserved()),
            "Physical pages that the page allocator never had: kernel code, page descriptors, memory of devices.",
        ),
        fact(
            "percpu_at_boot",
            "of it per-CPU variables",
            CellValue::bytes(reading.percpu_at_boot.clone()),
            "The first part of Percpu.",
        )
        .hidden_if(reading.percpu_at_boot.is_err()),
        fact(
            "balloon",
            "taken by the hypervisor",
            balloon.map_or(CellValue::None, CellValue::Bytes),
            "Pages in the balloon that the driver took out of MemTotal.",
        )
        .hidden_if(balloon.is_none_or(|it| it == 0)),
        fact(
            "sockets",
            "network buffers",
            CellValue::bytes(reading.sockets.clone()),
            "Pages of network buffers (sockstat): partly slab, partly unaccounted.",
        )
        .for_programs(),
    ];
    NamedFacts {
        audience: Audience::Everyone,
        ..facts_of("outside", "Outside of MemTotal", FactsShape::Line, facts)
    }
}
