//! Causes: free memory that the heap keeps.

use pagewise_model::Bytes;
use pagewise_model::cause::{CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::Instrument;
use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::report::CellValue;

use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::text;
use crate::explain::fact;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "trimmable-heap",
        title: "free heap pages",
        meaning: "The allocator keeps whole pages of free blocks that it could return to the kernel.",
        needs: &[Instrument::Snapshot],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, in whole free pages",
        source: "malloc_trim(3); the remedy is carried out by pagewise trim",
        rule: trimmable,
    },
    CauseRow {
        id: "fragmented-heap",
        title: "heap fragmentation",
        meaning: "Free blocks share their pages with live blocks, so that no page can be returned.",
        needs: &[Instrument::Snapshot],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, of free bytes in shared pages",
        source: "measured by windows of the heap (pagewise heap scan)",
        rule: fragmented,
    },
];

/// A smaller amount, or a smaller part of RES, is no trouble.
pub(super) const LARGE: Bytes = Bytes::mib(16);
pub(super) const PART_OF_RES: f64 = 0.1;

fn is_large(evidence: &CauseEvidence<'_>, amount: Bytes) -> bool {
    let resident = evidence.resident().unwrap_or_default();
    amount >= LARGE && amount.fraction_of(resident).is_none_or(|part| part >= PART_OF_RES)
}

/// The sample, or the verdict without one.
fn sample_of<'a>(evidence: &CauseEvidence<'a>) -> Result<&'a HeapSample, Verdict> {
    evidence.heap_sample().ok_or_else(|| {
        let heap = &evidence.now.heap_sample;
        let why = heap.as_ref().map_or_else(ToString::to_string, |_| String::new());
        Verdict::Unknown(why.into(), format!("pagewise heap scan {}", evidence.pid()).into())
    })
}

/// Bounds in a sentence: one number if they differ little.
fn between(estimate: BytesEstimate) -> Vec<CellValue> {
    let BytesEstimate { low, high } = estimate;
    match high.0 - low.0.min(high.0) <= high.0 / 20 {
        true => vec![CellValue::Bytes(low.0)],
        false => vec![CellValue::Bytes(low.0), text(" to "), CellValue::Bytes(high.0)],
    }
}

fn trimmable(evidence: &CauseEvidence<'_>) -> Verdict {
    let sample = match sample_of(evidence) {
        Ok(sample) => sample,
        Err(verdict) => return verdict,
    };
    let amount = sample.trimmable;
    if !is_large(evidence, amount.low) {
        let line = vec![CellValue::Bytes(amount.high.0), text(" of whole free pages at most")];
        return Verdict::RuledOut(line);
    }
    let pid = evidence.pid();
    let mut sentence = between(amount);
    sentence.push(text(" of the heap are whole pages of free blocks, which "));
    sentence.push(text("the allocator keeps and `malloc_trim(0)` would return to the kernel."));
    let heap = CauseObject::Heap(format!("heap of {}", sample.allocator).into());
    let mut found = cause("trimmable-heap", heap, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(amount.low, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("resident_heap", "resident heap", CellValue::Bytes(sample.resident.0), ""),
        fact("trimmable", "trimmable", CellValue::Bytes(amount.low.0), ""),
        fact("arenas", "arenas", CellValue::Count(sample.arenas), ""),
    ];
    found.now = remedy_now(
        format!("pagewise trim {pid} --heap --yes"),
        [text("Make the running process call malloc_trim(0).")],
        false,
    );
    if let Some(now) = &mut found.now {
        now.effect = vec![text("returns "), CellValue::Bytes(amount.low.0)];
    }
    found.code = remedy_code([text(
        "Call malloc_trim(0) after the phase that frees much, or start the program with MALLOC_ARENA_MAX=2 \
         and MALLOC_TRIM_THRESHOLD_=131072.",
    )]);
    found.into()
}

fn fragmented(evidence: &CauseEvidence<'_>) -> Verdict {
    let sample = match sample_of(evidence) {
        Ok(sample) => sample,
        Err(verdict) => return verdict,
    };
    let amount = sample.pinned;
    if !is_large(evidence, amount.low) {
        let line = vec![CellValue::Bytes(amount.high.0), text(" of pinned free bytes at most")];
        return Verdict::RuledOut(line);
    }
    let mut sentence = between(amount);
    sentence.push(text(" of the heap are free but share pages with live blocks, which take "));
    sentence.extend(between(sample.live));
    sentence.push(text(": heap fragmentation."));
    let heap = CauseObject::Heap(format!("heap of {}", sample.allocator).into());
    let mut found = cause("fragmented-heap", heap, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(amount.low, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("resident_heap", "resident heap", CellValue::Bytes(sample.resident.0), ""),
        fact("pinned", "pinned", CellValue::Bytes(amount.low.0), ""),
        fact("live", "live", CellValue::Bytes(sample.live.low.0), ""),
    ];
    found.code = remedy_code([text(
        "Allocate blocks that live long from a pool of their own, or copy the survivors after each phase.",
    )]);
    found.into()
}
