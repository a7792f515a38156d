//! A heap over time: its peak, blocks that were never freed, the functions that allocate the most,
//! and growth between two runs.

mod diff;
pub(crate) mod frames;
mod histograms;
pub(crate) mod layout;
pub(crate) mod peak;
mod tables;
#[cfg(test)]
mod tests;
mod time_line;
mod tree;

use pagewise_model::heap::{AllocationKind, HeapEnding, HeapRecording};
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Findings, NamedFacts, Paragraph, Report, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name, fields};

use crate::blocks::{self, facts_of, process};
use crate::cells::{share, text};
use crate::explain::fact;
use crate::findings::{Evidence, find};
use frames::Sites;

pub use diff::{DiffOptions, GrownQuantity, diff};

/// Options of the report.
#[derive(Clone, Copy, Debug)]
pub struct HeapOptions {
    /// Maximum number of rows of each table; `None` for all.
    pub limit: Option<usize>,
    /// Minimum share of a branch in the total of its tree, from 0 to 1. Smaller branches are
    /// summed.
    pub threshold: f64,
    /// Time point of a tree of live bytes.
    pub at: TreeMoment,
    /// Quantity of the tree.
    pub by: TreeQuantity,
    /// Direction of the tree.
    pub tree: Direction,
}

impl Default for HeapOptions {
    fn default() -> HeapOptions {
        HeapOptions {
            limit: Some(10),
            threshold: 0.01,
            at: TreeMoment::Peak,
            by: TreeQuantity::Live,
            tree: Direction::BottomUp,
        }
    }
}

/// Time point at which a tree of live bytes is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeMoment {
    /// The peak of the live bytes.
    Peak,
    /// The end of the recording: blocks that were never freed.
    End,
    /// The latest stored time point at most this number of nanoseconds after the start.
    Time(u64),
}

/// Quantity that a tree sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeQuantity {
    /// Bytes that are live at the [`TreeMoment`].
    Live,
    /// All bytes that were allocated.
    Allocated,
    /// Number of allocations.
    Calls,
    /// Number of allocations that were freed before the same thread allocated again.
    Temporary,
}

/// Direction of a tree of call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the outermost function to its callees.
    TopDown,
    /// From the function that allocates to its callers.
    BottomUp,
}

/// Reports a recording: `recording`, `totals`, `findings`, `peak`, `timeline`, `layouts`, `arenas`,
/// `page_use`, `pinned`, `leaks`, `places`, `sites`, `sizes`, `lifetimes`, `threads` and
/// `libraries`.
pub fn report(recording: &HeapRecording, options: &HeapOptions) -> Report {
    let sites = Sites::from_recording(recording);
    let mut blocks = vec![
        ReportBlock::Facts(recording_facts(recording)),
        ReportBlock::Text(summary(&sites)),
        ReportBlock::Facts(totals(recording)),
        ReportBlock::Findings(Findings {
            list: find(Evidence::Heap(&sites)),
            none: "Nothing stands out.".into(),
        }),
    ];
    blocks.extend(time_line::chart(recording).map(ReportBlock::Chart));
    blocks.extend(time_line::tables(recording, options).map(ReportBlock::Table));
    blocks.extend(layout::blocks(&sites, options));
    blocks.push(ReportBlock::Facts(at_peak(&sites, options)));
    blocks.extend(tree::blocks(&sites, options));
    blocks.extend(tables::leaks(&sites, options));
    blocks.extend(tables::places(&sites, options).into_iter().map(ReportBlock::Table));
    blocks.push(ReportBlock::Table(tables::sites(&sites, options)));
    blocks.extend(histograms::all(recording));
    blocks.push(ReportBlock::Table(tables::libraries(&sites, options)));
    blocks.push(ReportBlock::Table(tables::threads(recording, options)));
    blocks.extend(remarks(recording).into_iter().map(ReportBlock::Text));
    Report { schema: "pagewise.heap/1", title: title(recording), blocks }
}

fn title(recording: &HeapRecording) -> Vec<CellValue> {
    let name = recording.command.first().unwrap_or(&recording.program);
    vec![
        CellValue::text("Heap of "),
        CellValue::Name(Name::new(name.base())),
        CellValue::text(format!(" ({})", recording.pid)),
    ]
}

/// Converts a standard error to half the width of the 95 % interval.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is below 0 or above 2^64 becomes the end of the range"
)]
fn within(error: f64) -> u64 {
    (error * 1.96).round() as u64
}

/// Returns the meaning of a column. Reports about other recordings use some of these keys for other
/// values.
fn meaning(key: &str) -> &'static str {
    let mut named = fields::named(key);
    named.find(|field| field.source == "heap").map_or("", |field| field.meaning)
}

/// Builds a table of `columns` with their meanings.
fn table(
    key: &'static str,
    title: &'static str,
    audience: Audience,
    columns: Vec<TableColumn>,
) -> ReportTable {
    let described =
        |column: TableColumn| TableColumn { meaning: meaning(&column.key).into(), ..column };
    blocks::table(key, title, audience, columns.into_iter().map(described).collect())
}

fn meant(key: &'static str, label: &'static str, value: CellValue) -> Fact {
    fact(key, label, value, meaning(key))
}

fn ending(recording: &HeapRecording) -> String {
    match recording.ending {
        HeapEnding::Ended(ending) => blocks::ending(ending),
        HeapEnding::Replaced => "replaced by another program (execve)".to_owned(),
        HeapEnding::Detached => "runs on".to_owned(),
        HeapEnding::Gone => "gone".to_owned(),
        HeapEnding::CutOff => "recording cut off".to_owned(),
    }
}

/// Returns the parameters and totals of the recording.
fn recording_facts(recording: &HeapRecording) -> NamedFacts {
    let sampled = recording.every_bytes;
    let [pid, command] = process(recording.pid, &recording.command);
    facts_of(
        "recording",
        "",
        FactsShape::Line,
        vec![
            pid,
            command,
            fact("program", "program", CellValue::Name(recording.program.clone()), "")
                .for_programs(),
            fact("allocator", "malloc", CellValue::Name(recording.allocator.clone()), "")
                .hidden_if(recording.allocator.is_empty()),
            fact("ending", "ended", text(ending(recording)), ""),
            fact("seconds", "after", CellValue::Seconds(recording.took_ns), ""),
            fact("attached", "attached", CellValue::Flag(recording.attached), "")
                .hidden_if(!recording.attached),
            fact(
                "sample_bytes",
                "a sample every",
                sampled.map_or(CellValue::None, CellValue::Bytes),
                "",
            )
            .hidden_if(sampled.is_none()),
            fact("page_size", "page", CellValue::Bytes(recording.page_size.bytes()), "")
                .for_programs(),
            fact("began_ns", "began", CellValue::Count(recording.began_ns), "").for_programs(),
        ],
    )
}

/// Returns the word before a number that is an estimate.
fn about_so_much(recording: &HeapRecording) -> &'static str {
    if recording.every_bytes.is_some() { "about " } else { "" }
}

/// Returns the most important numbers in sentences.
fn summary(sites: &Sites<'_>) -> Paragraph {
    let recording = sites.recording;
    let totals = &recording.totals;
    let about = about_so_much(recording);
    let mut pieces = Vec::new();
    if totals.allocated.blocks == 0 && totals.peak.bytes == 0 {
        pieces.push(text("Nothing was allocated."));
        return paragraph(pieces);
    }
    pieces.extend([
        text(match (recording.attached, about) {
            (true, about) => {
                format!("Of the blocks allocated since the recording began, at most {about}")
            }
            (false, about) => format!("At most {about}"),
        }),
        CellValue::Bytes(totals.peak.bytes),
        text(" were live at once, in "),
        CellValue::Count(totals.peak.blocks),
        text(if totals.peak.blocks == 1 { " block" } else { " blocks" }),
    ]);
    if let Ok(at) = recording.peak_at_ns {
        pieces.extend([text(", "), CellValue::Nanos(at), text(" after the beginning")]);
    }
    if let Some((site, amount)) = sites.largest_place(|site| site.at_peak) {
        pieces.extend([
            text(". The largest part of it, "),
            CellValue::Bytes(amount.bytes),
            text(" ("),
            share(amount.bytes, totals.peak.bytes.max(amount.bytes)),
            text("), was allocated in "),
            CellValue::Name(site),
        ]);
    }
    pieces.push(text(". "));
    if let Some(peak::PeakBounds { least, most }) = peak::bounds(recording) {
        pieces.extend([
            text("This peak is an upper estimate: the true peak lies between "),
            CellValue::Bytes(least),
            text(" and "),
            CellValue::Bytes(most),
            text(" in 95 cases of 100. "),
        ]);
    }
    pieces.extend(match (recording.ending, totals.leaked.blocks) {
        (_, 0) if recording.attached => vec![text("All of these were freed.")],
        (_, 0) => vec![text("All of it was freed.")],
        (HeapEnding::Ended(_) | HeapEnding::Gone, _) => vec![
            text(format!("When it ended, {about}")),
            CellValue::Bytes(totals.leaked.bytes),
            text(" in "),
            CellValue::Count(totals.leaked.blocks),
            text(if totals.leaked.blocks == 1 { " block" } else { " blocks" }),
            text(" had not been freed."),
        ],
        _ => vec![
            text(format!("At the end of the recording {about}")),
            CellValue::Bytes(totals.leaked.bytes),
            text(if recording.attached { " of these were live." } else { " were live." }),
        ],
    });
    paragraph(pieces)
}

fn paragraph(pieces: Vec<CellValue>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

/// Returns the sums over all allocations and frees.
fn totals(recording: &HeapRecording) -> NamedFacts {
    let totals = &recording.totals;
    let errors = totals.errors;
    let error = |pick: fn(&(f64, f64)) -> f64| {
        errors.as_ref().map_or(CellValue::None, |it| CellValue::Bytes(within(pick(it))))
    };
    let is_exact = recording.every_bytes.is_none();
    let bounds = peak::bounds(recording);
    let bound = |pick: fn(&peak::PeakBounds) -> u64| {
        bounds.as_ref().map_or(CellValue::None, |it| CellValue::Bytes(pick(it)))
    };
    let facts = vec![
        meant("allocations", "ALLOCATIONS", CellValue::Count(totals.allocated.blocks)),
        meant("frees", "FREES", CellValue::Count(totals.freed.blocks)),
        meant("temporary", "TEMPORARY", CellValue::Count(totals.temporary)),
        meant("allocated_bytes", "ALLOCATED", CellValue::Bytes(totals.allocated.bytes)),
        meant("allocated_within", "±", error(|it| it.0)).hidden_if(is_exact),
        meant("freed_bytes", "FREED", CellValue::Bytes(totals.freed.bytes)).for_programs(),
        meant("peak_bytes", "PEAK", CellValue::Bytes(totals.peak.bytes)),
        meant("peak_blocks", "BLOCKS THEN", CellValue::Count(totals.peak.blocks)).for_programs(),
        meant("peak_within", "±", CellValue::Bytes(totals.peak_within))
            .hidden_if(totals.peak_within == 0),
        meant("peak_at_least", "AT LEAST", bound(|it| it.least)).hidden_if(is_exact),
        meant("peak_at_most", "AT MOST", bound(|it| it.most)).hidden_if(is_exact),
        meant("leaked_bytes", "NOT FREED", CellValue::Bytes(totals.leaked.bytes)),
        meant("leaked_within", "±", error(|it| it.1)).hidden_if(is_exact),
        meant("leaked_blocks", "IN BLOCKS", CellValue::Count(totals.leaked.blocks)),
        meant("unknown_frees", "UNKNOWN FREES", CellValue::Count(totals.unknown_frees))
            .hidden_if(totals.unknown_frees == 0),
        meant("estimated", "estimated", CellValue::Flag(!is_exact)).for_programs(),
    ];
    facts_of("totals", "", FactsShape::Columns, facts)
}

/// Returns the time and the amount of the peak, and for programs its tree.
fn at_peak(sites: &Sites<'_>, options: &HeapOptions) -> NamedFacts {
    let recording = sites.recording;
    let totals = &recording.totals;
    let time = CellValue::from_reading(recording.peak_at_ns.clone(), CellValue::Seconds);
    let by_site: Vec<(usize, u64, u64)> = recording
        .sites
        .iter()
        .enumerate()
        .map(|(at, site)| (at, site.at_peak.bytes, site.at_peak.blocks))
        .collect();
    let tree =
        tree::CallTree::from_sites(sites, &by_site, tree::missing_at_peak(recording), options.tree);
    let facts = vec![
        meant("time", "AT", time),
        meant("bytes", "BYTES", CellValue::Bytes(totals.peak.bytes)),
        meant("blocks", "BLOCKS", CellValue::Count(totals.peak.blocks)),
        meant("tree", "TREE", tree.value(options.threshold)),
    ];
    NamedFacts { audience: Audience::Programs, ..facts_of("peak", "", FactsShape::List, facts) }
}

/// Returns remarks that readers need to interpret the numbers correctly.
fn remarks(recording: &HeapRecording) -> Vec<Paragraph> {
    let mut remarks = Vec::new();
    if let Some(every) = recording.every_bytes {
        remarks.push(vec![
            text("One allocation was sampled every "),
            CellValue::Bytes(every),
            text(
                " on average, so all numbers are estimates: the truth lies within what stands behind ± in 95 cases of 100. \
                 The peak is an upper estimate, between AT LEAST and AT MOST in as many cases: the highest of many estimates is one that \
                 is too high. Of other numbers without ± the error is not known; those of few samples are uncertain.",
            ),
        ]);
    }
    if recording.attached {
        remarks.push(vec![text(
            "The process was running already. Blocks that it had allocated before the recording began are unknown, so its live bytes \
             and fragmentation are not known: all numbers are of blocks allocated since.",
        )]);
    }
    if recording.ending == HeapEnding::CutOff {
        remarks.push(vec![text(
            "The recording was cut off: what is shown as not freed may have been freed later.",
        )]);
    }
    let unknown = |lack: &Absent| match lack {
        Absent::NotCollected(what) => format!("Unknown: {what}."),
        lack => format!("Unknown: {lack}."),
    };
    remarks.extend(recording.lacks.iter().map(|lack| vec![text(unknown(lack))]));
    remarks.into_iter().map(paragraph).collect()
}

/// Returns the word for memory that is not from `malloc`. It replaces the name of the allocating
/// function.
fn kind_word(kind: AllocationKind) -> Option<&'static str> {
    match kind {
        AllocationKind::Heap => None,
        AllocationKind::Mapping => Some("[mmap, brk]"),
        AllocationKind::Pool => Some("[pool]"),
    }
}

/// Returns the reason for a missing tree: no amounts were stored up to the requested time.
fn no_tree() -> Absent {
    Absent::NotCollected("no call stacks were stored up to then".into())
}
