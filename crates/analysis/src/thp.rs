//! What huge pages cost a process: how much of them is zero, where that is, and what can be done.

mod estimate;
mod plan;
mod table;

use pagewise_model::machine::Gap;
use pagewise_model::report::{
    Audience, Block, Facts, Finding, Findings, Label, Paragraph, Report, Severity, Shape, Value,
};
use pagewise_model::thp::{Action, HugePages, Look, Plan, Repair};
use pagewise_model::{Absent, Bytes, Reading, Snapshot};

pub use estimate::Estimate;
pub use plan::{collapse, page_out, shrink};

use crate::blocks::facts_of;
use crate::explain::{fact, who};
use crate::pools;
use table::Rows;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.thp/1";

/// Less bloat than this is nobody's trouble.
const MUCH: Bytes = Bytes::mib(4);
/// From this share of its huge pages on, bloat is worth a word.
const NOTABLE: f64 = 0.25;
/// From this share on, huge pages are used badly.
const SPARSE: f64 = 0.5;
/// Up to this share, they are used well.
const DENSE: f64 = 0.1;

/// The huge pages of a process as a report: facts `process`, `scan` and `total`, table `mappings`, findings.
pub fn thp(snapshot: &Snapshot, huge: &Reading<HugePages>) -> Report {
    let mut blocks = vec![Block::Facts(who::process(&snapshot.process))];
    match huge {
        Ok(huge) => blocks.extend(body(snapshot, huge)),
        Err(absent) => blocks.extend(withheld(absent)),
    }
    Report { schema: SCHEMA, title: who::title_of(&snapshot.process, "its huge pages"), blocks }
}

fn body(snapshot: &Snapshot, huge: &HugePages) -> Vec<Block> {
    let pools = pools::classify(snapshot);
    let rows = Rows::of(snapshot, &pools, huge);
    let bloat = Estimate::over(huge.mappings.iter(), huge.huge_size);
    let sizes = match &huge.sizes {
        Ok(_) => table::sizes(huge).map(Block::Table),
        Err(absent) => {
            let sizes = fact("sizes", "sizes", Value::Absent(absent.clone()), "");
            Some(Block::Facts(Facts {
                audience: Audience::Programs,
                ..facts_of("", "", Shape::Line, vec![sizes])
            }))
        }
    };
    let mut blocks = vec![
        Block::Facts(scan(snapshot, huge)),
        Block::Facts(total(snapshot, &rows, &bloat)),
        Block::Text(verdict(huge, &rows, &bloat)),
    ];
    blocks.extend(sizes);
    blocks.extend([
        Block::Table(rows.table()),
        Block::Findings(Findings {
            list: bloated(snapshot, &rows, &bloat).into_iter().collect(),
            none: "Nothing to mend.".into(),
        }),
    ]);
    blocks
}

fn withheld(absent: &Absent) -> Vec<Block> {
    let keys = ["total", "mappings", "findings"];
    let facts = keys.map(|key| fact(key, key, Value::Absent(absent.clone()), ""));
    let pieces = vec![
        Value::text("Its huge pages cannot be looked at: "),
        Value::text(absent.to_string()),
        Value::text("."),
    ];
    vec![
        Block::Facts(Facts {
            audience: Audience::Programs,
            ..facts_of("", "", Shape::Line, facts.to_vec())
        }),
        Block::Text(Paragraph { title: "".into(), pieces, audience: Audience::People }),
    ]
}

#[cfg(test)]
mod tests;

/// How it was looked at, and what the system's settings are.
fn scan(snapshot: &Snapshot, huge: &HugePages) -> Facts {
    let look = match huge.look {
        Look::Exact => "every page",
        Look::Sample(_) => "a sample",
    };
    let enabled = snapshot.machine.thp_enabled.clone();
    let gaps = huge.gaps.iter().map(|Gap { what, why }| {
        let reason = Value::text(format!(": {why}"));
        Value::List(vec![Value::Name(what.clone()), reason])
    });
    let gaps: Vec<Value> = gaps.collect();
    let partial = !gaps.is_empty();
    let facts = vec![
        fact("look", "looked at", Value::text(look), "Which base pages of huge pages were read."),
        fact("read", "read", Value::Bytes(huge.read.0), "How much of its memory was read."),
        fact("took_ns", "in", Value::Nanos(huge.took_ns), ""),
        fact(
            "longest_hold_ns",
            "held it at most",
            Value::Nanos(huge.longest_hold_ns),
            "The longest scan of page tables; the process cannot map memory meanwhile.",
        ),
        fact("huge_size", "huge page", Value::Bytes(huge.huge_size.0), ""),
        fact(
            "thp_enabled",
            "THP enabled",
            Value::of(enabled, Value::Name),
            "The system's setting: /sys/kernel/mm/transparent_hugepage/enabled.",
        ),
        fact("partial", "partial", Value::Flag(partial), "Whether something was not looked at.")
            .hidden_if(!partial),
        fact("gaps", "for", Value::List(gaps), "").hidden_if(!partial),
    ];
    facts_of("scan", "Seen", Shape::Line, facts)
}

fn total(snapshot: &Snapshot, rows: &Rows<'_>, bloat: &Reading<Estimate>) -> Facts {
    let res = snapshot.statm.clone().map(|statm| statm.resident);
    let mut facts = vec![
        fact("res", "RES", Value::bytes(res), "Resident in the whole process, as top shows it."),
        fact(
            "resident",
            "in huge-page mappings",
            Value::bytes(rows.resident()),
            "Resident in the mappings below: those that have huge pages or room for one.",
        ),
        fact("huge", "huge", Value::Bytes(rows.huge().0), "Resident in anonymous huge pages."),
        fact(
            "bloat",
            "bloat",
            Value::bytes(bloat.clone().map(|bloat| bloat.bytes)),
            "Base pages in anonymous huge pages that are zero in every byte: never used, or cleared.",
        ),
    ];
    if let Ok(bloat) = bloat
        && bloat.low < bloat.high
    {
        let range = "The true value lies between the two in 95 of 100 samples.";
        facts.push(fact("bloat_low", "at least", Value::Bytes(bloat.low.0), range));
        facts.push(fact("bloat_high", "at most", Value::Bytes(bloat.high.0), range));
    }
    facts.extend([
        fact("file", "huge file", Value::Bytes(rows.file().0), "Huge pages of files and tmpfs.")
            .hidden_if(rows.file().is_zero()),
        fact(
            "eligible",
            "could be huge",
            Value::bytes(rows.eligible()),
            "Resident in base pages where the kernel may use huge ones.",
        ),
    ]);
    facts_of("total", "Total", Shape::Columns, facts)
}

/// The verdict on what has none.
const NONE: &str = "no huge pages";

/// What to call a mapping, or a process, by how much of its huge pages is zero.
fn judge(huge: Bytes, bloat: &Reading<Estimate>) -> &'static str {
    match bloat.as_ref().map(|bloat| bloat.bytes.fraction_of(huge)) {
        _ if huge.is_zero() => NONE,
        Err(_) | Ok(None) => "unknown",
        Ok(Some(share)) if share >= SPARSE => "touched sparsely",
        Ok(Some(share)) if share > DENSE => "partly used",
        Ok(Some(_)) => "well used",
    }
}

fn verdict(huge: &HugePages, rows: &Rows<'_>, bloat: &Reading<Estimate>) -> Paragraph {
    let verdict = judge(rows.huge(), bloat);
    let mut pieces = match bloat {
        Ok(bloat) if !rows.huge().is_zero() => vec![
            Value::Bytes(bloat.bytes.0),
            Value::text(" of "),
            Value::Bytes(rows.huge().0),
            Value::text(" in huge pages is zero: "),
        ],
        _ => Vec::new(),
    };
    match verdict {
        NONE => pieces.extend([
            Value::text("no huge page of "),
            Value::Bytes(huge.huge_size.0),
            Value::text("."),
        ]),
        _ => pieces.push(Value::text(format!("{verdict}."))),
    }
    let smaller = huge.sizes.iter().flatten().filter(|size| !size.one_entry);
    let resident = smaller.clone().map(|size| size.resident).sum::<Bytes>();
    if !resident.is_zero() {
        let zero: Reading<Bytes> = smaller.map(|size| size.zero.clone()).sum();
        pieces.extend([
            Value::text(" "),
            Value::Bytes(resident.0),
            Value::text(" lies in large folios that base entries map; "),
            Value::bytes(zero),
            Value::text(" of it is zero."),
        ]);
    }
    Paragraph { title: "Verdict".into(), pieces, audience: Audience::People }
}

/// The one finding: huge pages that hold little.
fn bloated(snapshot: &Snapshot, rows: &Rows<'_>, bloat: &Reading<Estimate>) -> Option<Finding> {
    let bloat = bloat.as_ref().ok()?;
    let share = bloat.bytes.fraction_of(rows.huge())?;
    if bloat.low < MUCH || share < NOTABLE {
        return None;
    }
    let (worst, wasted) = rows.worst()?;
    let pid = snapshot.process.pid;
    Some(Finding {
        id: "huge-page-bloat",
        severity: if share >= SPARSE { Severity::Warning } else { Severity::Note },
        claim: vec![
            Value::Bytes(bloat.bytes.0),
            Value::text(
                " is resident only because it lies in huge pages beside something that is used.",
            ),
        ],
        evidence: vec![
            fact("bloat", "bloat", Value::Bytes(bloat.bytes.0), ""),
            fact("huge", "huge", Value::Bytes(rows.huge().0), ""),
            fact("share", "share", Value::Share(share), ""),
            fact("worst", "most of it in", Value::Name(worst), ""),
            fact("worst_bloat", "that is", Value::Bytes(wasted.0), ""),
        ],
        next_step: vec![Value::text(format!(
            "`pagewise thp {pid} --fix` says what can be given back now; add --yes to do it, and --hold to keep it so. \
             For good: {}; or start it with `pagewise run --thp=never -- COMMAND`.",
            rows.remedy()
        ))],
    })
}

/// What is to be done, as a report's last blocks: facts `plan`.
pub fn plan_blocks(plan: &Plan, snapshot: &Snapshot) -> Vec<Block> {
    let count = plan.ranges.len() as u64;
    let (change, spared) = match plan.action {
        Action::Shrink => ("frees about", "spared, since it is used"),
        Action::Collapse => ("adds about", "spared, since it is not resident throughout"),
        Action::PageOut => ("frees up to", "spared, since it was used"),
    };
    let bytes = plan.ranges.iter().map(|range| range.len()).sum::<Bytes>();
    let facts = vec![
        fact("action", "action", Value::text(plan.action.key()), "").for_programs(),
        fact("ranges", "ranges", Value::Count(count), "How many pieces of memory it concerns."),
        fact("bytes", "bytes", Value::Bytes(bytes.0), "How much memory that is."),
        fact("change", change, Value::bytes(plan.change.clone()), "")
            .hidden_if(plan.change == Ok(Bytes::ZERO)),
        fact("spared", spared, Value::Bytes(plan.spared.0), ""),
        fact(
            "hold",
            "mappings without huge pages from then on",
            Value::Count(plan.hold.len() as u64),
            "Where MADV_NOHUGEPAGE is set.",
        )
        .hidden_if(plan.hold.is_empty()),
    ];
    let words = match plan.action {
        Action::Shrink => {
            "Huge pages that are mostly zero are split; their zero pages go back to the system. What is used keeps \
             its place and contents, and pays more TLB misses from then on."
        }
        Action::Collapse => {
            "Base pages that lie together are copied into huge pages. The process waits while one is copied."
        }
        Action::PageOut => {
            "Memory that was not used goes to swap. The process waits for the disk when it needs it again."
        }
    };
    let pid = snapshot.process.pid;
    let last = if plan.ranges.is_empty() {
        " There is nothing to do.".to_owned()
    } else {
        format!(" Nothing is done yet: add --yes to do it to process {pid}.")
    };
    vec![
        Block::Facts(facts_of("plan", "Plan", Shape::Line, facts)),
        Block::Text(Paragraph {
            title: "".into(),
            pieces: vec![Value::text(words), Value::text(last)],
            audience: Audience::People,
        }),
    ]
}

/// What was done, as a report's last blocks: facts `fix`.
pub fn repair_blocks(repair: &Repair) -> Vec<Block> {
    let text = |label: &str| Value::text(Label::from(label.to_owned()));
    let facts = vec![
        fact("action", "action", Value::text(repair.action.key()), "").for_programs(),
        fact("rss_before", "RSS before", Value::Bytes(repair.rss_before.0), ""),
        fact("rss_after", "after", Value::Bytes(repair.rss_after.0), ""),
        fact("seconds", "in", Value::Seconds(repair.took_ns), "How long it took."),
        fact(
            "longest_stop_ns",
            "longest stop",
            Value::Nanos(repair.longest_stop_ns),
            "The longest time for which a thread of it was stopped.",
        ),
        fact("method", "by", repair.method.map_or(Value::None, |m| Value::text(m.key())), "")
            .hidden_if(repair.method.is_none()),
        fact("done", "done", Value::Count(repair.done), "Pieces of memory that were treated."),
        fact("failed", "failed", Value::Count(repair.failed), "").hidden_if(repair.failed == 0),
        fact("why", "since", repair.why.as_deref().map_or(Value::None, text), "")
            .hidden_if(repair.why.is_none()),
        fact(
            "not_held",
            "huge pages may come back",
            repair.not_held.clone().map_or(Value::None, Value::Absent),
            "",
        )
        .hidden_if(repair.not_held.is_none()),
    ];
    vec![Block::Facts(facts_of("fix", "Done", Shape::Line, facts))]
}
