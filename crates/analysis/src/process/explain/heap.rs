//! The sample of the heap: live, free and trimmable bytes.

use pagewise_model::Absent;
use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{CellValue, Fact, FactsShape, NamedFacts, ReportBlock};

use super::{ExplainSubject, absent_for_programs, fact, paragraph};
use crate::blocks::facts_of;
use crate::cells::text;

/// Builds facts `heap_sample`, and the next step if the heap may grow: one snapshot does not prove
/// a leak.
pub(super) fn blocks(subject: &ExplainSubject<'_>) -> Vec<ReportBlock> {
    let snapshot = subject.snapshot;
    let sample = match &snapshot.heap_sample {
        Ok(sample) => sample,
        Err(absent) => return vec![ReportBlock::Facts(missing(absent))],
    };
    let mut blocks = vec![ReportBlock::Facts(facts(sample))];
    if snapshot.provenance.moment == ProcessMoment::Running {
        let command = format!("`pagewise heap scan {} --leaks`", snapshot.process.pid);
        blocks.push(ReportBlock::Text(paragraph(vec![
            text("If the heap grows: "),
            CellValue::text(command),
            text(" reports blocks to which no pointer leads. One snapshot shows no growth."),
        ])));
    }
    blocks
}

pub(super) fn missing(absent: &Absent) -> NamedFacts {
    absent_for_programs(&["heap_sample"], absent)
}

fn facts(sample: &HeapSample) -> NamedFacts {
    let (title, read) = match sample.windows == sample.population {
        true => ("Heap", "All windows were read."),
        false => ("Heap, from a sample", "Windows of 64 KiB that were read, at random places."),
    };
    let mut facts =
        vec![fact("resident", "resident", CellValue::Bytes(sample.resident.0), RESIDENT)];
    let bounds = [
        (
            "live",
            "live",
            sample.live,
            "Resident memory of live blocks and of the allocator itself.",
        ),
        ("free", "free", sample.free, "Resident memory of free blocks."),
        ("trimmable", "trimmable", sample.trimmable, TRIMMABLE),
        ("pinned", "pinned", sample.pinned, "Free bytes of pages that live blocks keep resident."),
        ("top", "at the end", sample.top, "Free memory that the next allocations use."),
    ];
    facts.extend(
        bounds.map(|(key, label, estimate, meaning)| {
            fact(key, label, estimate_cell(estimate), meaning)
        }),
    );
    facts.extend(conditions(sample, read));
    facts_of("heap_sample", title, FactsShape::List, facts)
}

const RESIDENT: &str =
    "Resident memory of the arenas. Large blocks with mappings of their own are not part of it.";
const TRIMMABLE: &str = "Resident pages of free blocks alone, which malloc_trim(0) would return.";

fn conditions(sample: &HeapSample, read: &'static str) -> Vec<Fact> {
    let count = |key, label, value, meaning| fact(key, label, CellValue::Count(value), meaning);
    let all = [
        count("windows", "windows read", sample.windows, read),
        count("population", "windows of the heap", sample.population, ""),
        count("arenas", "arenas", sample.arenas, ""),
        fact(
            "unsettled",
            "unknown",
            CellValue::Bytes(sample.unsettled.0),
            "Resident bytes in these windows whose use remained unknown.",
        ),
        fact("read", "bytes read", CellValue::Bytes(sample.read.0), ""),
        fact("took_ns", "duration", CellValue::Nanos(sample.took_ns), ""),
    ];
    all.into_iter().map(|fact| fact.hidden_if(true)).collect()
}

/// Writes bounds for a sentence: one number if the bounds differ by at most 2 %.
pub(crate) fn estimate_words(BytesEstimate { low, high }: BytesEstimate) -> Vec<CellValue> {
    match high.0 - low.0.min(high.0) <= high.0 / 50 {
        true => vec![CellValue::Bytes(low.0)],
        false => vec![CellValue::Bytes(low.0), text(" to "), CellValue::Bytes(high.0)],
    }
}

/// Returns the bounds as a record.
pub(crate) fn estimate_cell(estimate: BytesEstimate) -> CellValue {
    CellValue::Record(vec![
        ("low".into(), CellValue::Bytes(estimate.low.0)),
        ("high".into(), CellValue::Bytes(estimate.high.0)),
    ])
}
