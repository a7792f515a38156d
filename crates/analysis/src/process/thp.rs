//! Costs of huge pages for a process: the zero-filled part of the huge pages, its location, and the
//! possible actions.

mod estimate;
mod plan;
pub(crate) mod table;

use pagewise_model::machine::Gap;
use pagewise_model::report::{
    Audience, CellValue, FactsShape, Findings, Label, NamedFacts, Paragraph, Report, ReportBlock,
};
use pagewise_model::thp::{Action, FixPlan, HugePageLook, HugePages, Repair};
use pagewise_model::{Absent, Bytes, Mapping, Reading, Snapshot};

pub use estimate::ZeroEstimate;
pub use plan::{collapse, page_out, shrink};

use crate::blocks::facts_of;
use crate::explain::{fact, who};
use crate::findings::{Evidence, find};
use crate::pools;
use table::ThpRows;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.thp/1";

/// Minimum number of bytes of bloat for a finding.
pub(crate) const MUCH: Bytes = Bytes::mib(4);
/// Minimum zero-filled share of huge pages for a finding about bloat.
pub(crate) const NOTABLE: f64 = 0.25;
/// Minimum zero-filled share of huge pages that are touched sparsely.
pub(crate) const SPARSE: f64 = 0.5;
/// Maximum zero-filled share of huge pages that are used well.
const DENSE: f64 = 0.1;

/// Reports the huge pages of a process: facts `process`, `scan` and `total`, table `mappings`,
/// findings.
pub fn thp(snapshot: &Snapshot, huge: &Reading<HugePages>) -> Report {
    let mut blocks = vec![ReportBlock::Facts(who::process(&snapshot.process))];
    match huge {
        Ok(huge) => blocks.extend(body(snapshot, huge)),
        Err(absent) => blocks.extend(withheld(absent)),
    }
    Report { schema: SCHEMA, title: who::title_of("Huge pages", &snapshot.process, ""), blocks }
}

fn body(snapshot: &Snapshot, huge: &HugePages) -> Vec<ReportBlock> {
    let pools = pools::classify(snapshot);
    let rows = ThpRows::from_snapshot(snapshot, &pools, huge);
    let bloat = ZeroEstimate::over(huge.mappings.iter(), huge.huge_size);
    let sizes = match &huge.sizes {
        Ok(_) => table::sizes(huge).map(ReportBlock::Table),
        Err(absent) => {
            let sizes = fact("sizes", "sizes", CellValue::Absent(absent.clone()), "");
            Some(ReportBlock::Facts(NamedFacts {
                audience: Audience::Programs,
                ..facts_of("", "", FactsShape::Line, vec![sizes])
            }))
        }
    };
    let mut blocks = vec![
        ReportBlock::Facts(scan(snapshot, huge)),
        ReportBlock::Facts(total(snapshot, &rows, &bloat)),
        ReportBlock::Text(verdict(huge, &rows, &bloat)),
    ];
    blocks.extend(sizes);
    blocks.extend([
        ReportBlock::Table(rows.table()),
        ReportBlock::Findings(Findings {
            list: find(Evidence::HugePages(snapshot, &rows, &bloat)),
            none: "Nothing to mend.".into(),
        }),
    ]);
    blocks
}

fn withheld(absent: &Absent) -> Vec<ReportBlock> {
    let keys = ["total", "mappings", "findings"];
    let facts = keys.map(|key| fact(key, key, CellValue::Absent(absent.clone()), ""));
    let pieces = vec![
        CellValue::text("Its huge pages cannot be examined: "),
        CellValue::text(absent.to_string()),
        CellValue::text("."),
    ];
    vec![
        ReportBlock::Facts(NamedFacts {
            audience: Audience::Programs,
            ..facts_of("", "", FactsShape::Line, facts.to_vec())
        }),
        ReportBlock::Text(Paragraph { title: "".into(), pieces, audience: Audience::People }),
    ]
}

#[cfg(test)]
mod tests;

/// Describes the method of the scan, and the settings of the system.
fn scan(snapshot: &Snapshot, huge: &HugePages) -> NamedFacts {
    let look = match huge.look {
        HugePageLook::Exact => "every page",
        HugePageLook::Sample(_) => "a sample",
    };
    let enabled = snapshot.machine.thp_enabled.clone();
    let gaps = huge.gaps.iter().map(|Gap { what, why }| {
        let reason = CellValue::text(format!(": {why}"));
        CellValue::List(vec![CellValue::Name(what.clone()), reason])
    });
    let gaps: Vec<CellValue> = gaps.collect();
    let partial = !gaps.is_empty();
    let facts = vec![
        fact(
            "look",
            "examined",
            CellValue::text(look),
            "Which base pages of huge pages were read.",
        ),
        fact("read", "read", CellValue::Bytes(huge.read.0), "Amount of its memory that was read."),
        fact("took_ns", "in", CellValue::Nanos(huge.took_ns), ""),
        fact(
            "longest_hold_ns",
            "longest pause of the target",
            CellValue::Nanos(huge.longest_hold_ns),
            "The longest scan of page tables; the process cannot map memory meanwhile.",
        ),
        fact("huge_size", "huge page", CellValue::Bytes(huge.huge_size.0), ""),
        fact(
            "thp_enabled",
            "THP enabled",
            CellValue::from_reading(enabled, CellValue::Name),
            "The system's setting: /sys/kernel/mm/transparent_hugepage/enabled.",
        ),
        fact("partial", "partial", CellValue::Flag(partial), "True if a part was not examined.")
            .hidden_if(!partial),
        fact("gaps", "for", CellValue::List(gaps), "").hidden_if(!partial),
    ];
    facts_of("scan", "Reading", FactsShape::Line, facts)
}

fn total(snapshot: &Snapshot, rows: &ThpRows<'_>, bloat: &Reading<ZeroEstimate>) -> NamedFacts {
    let res = snapshot.statm.clone().map(|statm| statm.resident);
    let mut facts = vec![
        fact(
            "res",
            "RES",
            CellValue::bytes(res),
            "Resident in the whole process, as top shows it.",
        ),
        fact(
            "resident",
            "in huge-page mappings",
            CellValue::bytes(rows.resident()),
            "Resident in the mappings below: those with huge pages or large enough for one.",
        ),
        fact("huge", "huge", CellValue::Bytes(rows.huge().0), "Resident in anonymous huge pages."),
        fact(
            "bloat",
            "bloat",
            CellValue::bytes(bloat.clone().map(|bloat| bloat.bytes)),
            "Base pages in anonymous huge pages that are zero in every byte: never used, or cleared.",
        ),
    ];
    if let Ok(bloat) = bloat
        && bloat.low < bloat.high
    {
        let range = "The true value lies between the two in 95 of 100 samples.";
        facts.push(fact("bloat_low", "at least", CellValue::Bytes(bloat.low.0), range));
        facts.push(fact("bloat_high", "at most", CellValue::Bytes(bloat.high.0), range));
    }
    facts.extend([
        fact(
            "file",
            "huge file",
            CellValue::Bytes(rows.file().0),
            "Huge pages of files and tmpfs.",
        )
        .hidden_if(rows.file().is_zero()),
        fact(
            "eligible",
            "could be huge",
            CellValue::bytes(rows.eligible()),
            "Resident in base pages where the kernel may use huge ones.",
        ),
    ]);
    facts_of("total", "Total", FactsShape::Columns, facts)
}

/// Reason why the kernel uses huge pages for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugeRequest {
    /// The program called `madvise(MADV_HUGEPAGE)` or `madvise(MADV_COLLAPSE)`.
    Program,
    /// The setting `always` of the system.
    System,
    /// The `VmFlags` of the mapping were not read, and the setting of the system does not exclude
    /// either reason.
    Unknown,
}

/// Determines the reason for huge pages in a mapping: by the `VmFlags` of the mapping, which only
/// `smaps` has, or by a setting that gives huge pages only on request. `MADV_COLLAPSE` sets no
/// flag.
pub(crate) fn huge_request(snapshot: &Snapshot, mapping: &Mapping) -> HugeRequest {
    let flags = mapping.smaps.as_ref().ok().and_then(|smaps| smaps.flags.as_ref());
    let enabled = snapshot.machine.thp_enabled.as_ref().ok();
    match (flags, enabled) {
        (Some(flags), _) if flags.has("hg") => HugeRequest::Program,
        (_, Some(enabled)) if [&b"madvise"[..], b"never"].contains(&enabled.as_bytes()) => {
            HugeRequest::Program
        }
        (Some(_), _) => HugeRequest::System,
        (None, _) => HugeRequest::Unknown,
    }
}

/// Verdict on a mapping or a process without huge pages.
const NONE: &str = "no huge pages";

/// Returns the verdict on a mapping or a process, by the zero-filled share of its huge pages.
fn judge(huge: Bytes, bloat: &Reading<ZeroEstimate>) -> &'static str {
    match bloat.as_ref().map(|bloat| bloat.bytes.fraction_of(huge)) {
        _ if huge.is_zero() => NONE,
        Err(_) | Ok(None) => "unknown",
        Ok(Some(share)) if share >= SPARSE => "touched sparsely",
        Ok(Some(share)) if share > DENSE => "partly used",
        Ok(Some(_)) => "well used",
    }
}

fn verdict(huge: &HugePages, rows: &ThpRows<'_>, bloat: &Reading<ZeroEstimate>) -> Paragraph {
    let verdict = judge(rows.huge(), bloat);
    let mut pieces = match bloat {
        Ok(bloat) if !rows.huge().is_zero() => vec![
            CellValue::Bytes(bloat.bytes.0),
            CellValue::text(" of "),
            CellValue::Bytes(rows.huge().0),
            CellValue::text(" in huge pages is zero: "),
        ],
        _ => Vec::new(),
    };
    match verdict {
        NONE => pieces.extend([
            CellValue::text("no huge page of "),
            CellValue::Bytes(huge.huge_size.0),
            CellValue::text("."),
        ]),
        _ => pieces.push(CellValue::text(format!("{verdict}."))),
    }
    let smaller = huge.sizes.iter().flatten().filter(|size| !size.one_entry);
    let resident = smaller.clone().map(|size| size.resident).sum::<Bytes>();
    if !resident.is_zero() {
        let zero: Reading<Bytes> = smaller.map(|size| size.zero.clone()).sum();
        pieces.extend([
            CellValue::text(" "),
            CellValue::Bytes(resident.0),
            CellValue::text(" lies in large folios that base entries map; "),
            CellValue::bytes(zero),
            CellValue::text(" of it is zero."),
        ]);
    }
    Paragraph { title: "Verdict".into(), pieces, audience: Audience::People }
}

/// Builds the last blocks of a report about planned changes: facts `plan`.
pub fn plan_blocks(plan: &FixPlan, snapshot: &Snapshot) -> Vec<ReportBlock> {
    let count = plan.ranges.len() as u64;
    let (change, spared) = match plan.action {
        Action::Shrink => ("frees about", "spared, since it is used"),
        Action::Collapse => ("adds about", "spared, since it is not resident throughout"),
        Action::PageOut => ("frees up to", "spared, since it was used"),
    };
    let bytes = plan.ranges.iter().map(|range| range.len()).sum::<Bytes>();
    let facts = vec![
        fact("action", "action", CellValue::text(plan.action.key()), "").for_programs(),
        fact("ranges", "ranges", CellValue::Count(count), "Number of memory ranges."),
        fact("bytes", "bytes", CellValue::Bytes(bytes.0), "Size of these ranges."),
        fact("change", change, CellValue::bytes(plan.change.clone()), "")
            .hidden_if(plan.change == Ok(Bytes::ZERO)),
        fact("spared", spared, CellValue::Bytes(plan.spared.0), ""),
        fact(
            "hold",
            "mappings without huge pages from then on",
            CellValue::Count(plan.hold.len() as u64),
            "Ranges with MADV_NOHUGEPAGE.",
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
        ReportBlock::Facts(facts_of("plan", "Plan", FactsShape::Line, facts)),
        ReportBlock::Text(Paragraph {
            title: "".into(),
            pieces: vec![CellValue::text(words), CellValue::text(last)],
            audience: Audience::People,
        }),
    ]
}

/// Builds the last blocks of a report about changes that were made: facts `fix`.
pub fn repair_blocks(repair: &Repair) -> Vec<ReportBlock> {
    let text = |label: &str| CellValue::text(Label::from(label.to_owned()));
    let facts = vec![
        fact("action", "action", CellValue::text(repair.action.key()), "").for_programs(),
        fact("rss_before", "RSS before", CellValue::Bytes(repair.rss_before.0), ""),
        fact("rss_after", "after", CellValue::Bytes(repair.rss_after.0), ""),
        fact("seconds", "in", CellValue::Seconds(repair.took_ns), "Duration."),
        fact(
            "longest_stop_ns",
            "longest stop",
            CellValue::Nanos(repair.longest_stop_ns),
            "The longest time for which a thread of it was stopped.",
        ),
        fact(
            "method",
            "by",
            repair.method.map_or(CellValue::None, |m| CellValue::text(m.key())),
            "",
        )
        .hidden_if(repair.method.is_none()),
        fact("done", "done", CellValue::Count(repair.done), "Pieces of memory that were treated."),
        fact("failed", "failed", CellValue::Count(repair.failed), "").hidden_if(repair.failed == 0),
        fact("why", "since", repair.why.as_deref().map_or(CellValue::None, text), "")
            .hidden_if(repair.why.is_none()),
        fact(
            "not_held",
            "huge pages may come back",
            repair.not_held.clone().map_or(CellValue::None, CellValue::Absent),
            "",
        )
        .hidden_if(repair.not_held.is_none()),
    ];
    vec![ReportBlock::Facts(facts_of("fix", "Done", FactsShape::Line, facts))]
}
