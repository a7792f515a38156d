//! Memory that a process can release without a restart, and the effect and the cost of the release.

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::trim::{
    MemoryByKind, PartOutcome, SettledProcess, TrimEstimate, TrimPart, TrimResult,
};
use pagewise_model::{Absent, Bytes, Name, Reading, Snapshot};

use crate::blocks::{facts_of, table};
use crate::explain::{fact, who};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.trim/1";

/// Minimum number of bytes for which stopping the process is worthwhile.
const WORTHWHILE: Bytes = Bytes::kib(256);

/// Reports the memory that can be released, and the command that releases it: facts `process` and
/// `estimate`, table `stacks`.
pub fn estimate(snapshot: &Snapshot, estimate: &TrimEstimate, asked: &[TrimPart]) -> Report {
    let mut report = announced(snapshot, estimate);
    report.blocks.push(ReportBlock::Text(next_step(snapshot, estimate, asked)));
    report
}

/// Reports the memory that can be released. Called directly before the release.
pub fn announced(snapshot: &Snapshot, estimate: &TrimEstimate) -> Report {
    let mut report = titled(snapshot);
    report.blocks.push(ReportBlock::Facts(who::process(&snapshot.process)));
    report.blocks.extend(estimate_blocks(estimate));
    report
}

/// Reports the effect of a release: facts `returned`, `pause_us` and `cost`, tables `memory` and
/// `parts`.
pub fn effect(snapshot: &Snapshot, estimate: &TrimEstimate, result: &TrimResult) -> Report {
    let mut report = titled(snapshot);
    report.blocks.extend(effect_blocks(estimate, result));
    report
}

/// Reports the estimate and the effect together, for programs and for HTML pages.
pub fn whole(snapshot: &Snapshot, estimate: &TrimEstimate, result: &TrimResult) -> Report {
    let mut report = titled(snapshot);
    report.blocks.push(ReportBlock::Facts(who::process(&snapshot.process)));
    report.blocks.extend(estimate_blocks(estimate));
    report.blocks.extend(effect_blocks(estimate, result));
    report
}

fn titled(snapshot: &Snapshot) -> Report {
    let title = who::title_of("Memory to release", &snapshot.process, "");
    Report { schema: SCHEMA, title, blocks: Vec::new() }
}

const MEANINGS: [(TrimPart, &str, &str); 4] = [
    (TrimPart::Heap, "heap", "Pages of the allocator without a live block."),
    (TrimPart::Stacks, "stacks", "Pages of thread stacks below the stack pointer."),
    (TrimPart::Huge, "huge pages", "Zero-filled base pages of sparse huge pages."),
    (TrimPart::Cold, "cold", "Memory that was not accessed for the time of --cold."),
];

fn estimate_blocks(estimate: &TrimEstimate) -> Vec<ReportBlock> {
    let part = |(part, label, meaning): (TrimPart, &'static str, &'static str)| {
        fact(part.key(), label, CellValue::bytes(estimate.of_part(part)), meaning)
    };
    let mut facts: Vec<Fact> = MEANINGS.map(part).to_vec();
    let running = estimate.stacks.as_ref().map_or(0, |stacks| stacks.running);
    facts.push(
        fact(
            "running_threads",
            "running threads",
            CellValue::Count(running),
            "Threads that were running: the estimate leaves out their stacks.",
        )
        .hidden_if(running == 0),
    );
    facts.push(
        fact(
            "longest_stop_ns",
            "longest stop",
            CellValue::from_reading(
                estimate.longest_stop_ns.as_ref().map_err(Clone::clone),
                |stop| CellValue::Nanos(*stop),
            ),
            "The time for which the process was stopped to copy its heap.",
        )
        .hidden_if(estimate.longest_stop_ns.is_err()),
    );
    let mut blocks =
        vec![ReportBlock::Facts(facts_of("estimate", "Estimate", FactsShape::Columns, facts))];
    blocks.extend(stacks(estimate).map(ReportBlock::Table));
    blocks
}

/// Builds the table of threads with unused stack memory, the largest amount first.
fn stacks(estimate: &TrimEstimate) -> Option<ReportTable> {
    let mut threads: Vec<_> = estimate.stacks.as_ref().ok()?.threads.iter().collect();
    threads.retain(|thread| !thread.resident.is_zero());
    threads.sort_by_key(|thread| (std::cmp::Reverse(thread.resident), thread.tid));
    let columns = vec![
        TableColumn::new(
            "tid",
            "thread",
            ColumnCells::Counts(threads.iter().map(|it| it.tid.0.into()).collect()),
        ),
        TableColumn::new(
            "name",
            "name",
            ColumnCells::Names(threads.iter().map(|it| it.name.clone()).collect()),
        ),
        TableColumn::new(
            "unused",
            "unused",
            ColumnCells::Bytes(threads.iter().map(|it| it.resident.0).collect()),
        ),
    ];
    (!threads.is_empty())
        .then(|| table("stacks", "Unused stack memory by thread", Audience::Long, columns))
}

/// Advises to release memory, or states that no part is worth releasing.
fn next_step(snapshot: &Snapshot, estimate: &TrimEstimate, asked: &[TrimPart]) -> Paragraph {
    let worthwhile = |part: &TrimPart| match estimate.of_part(*part) {
        Ok(bytes) => bytes >= WORTHWHILE,
        Err(_) => *part == TrimPart::Heap && !estimate.functions.is_empty(),
    };
    let (useful, useless): (Vec<TrimPart>, Vec<TrimPart>) =
        TrimPart::ALL.iter().partition(|part| worthwhile(part));
    let nothing: Vec<TrimPart> =
        useless.into_iter().filter(|part| estimate.of_part(*part).is_ok()).collect();
    let mut pieces = Vec::new();
    if !nothing.is_empty() {
        pieces.extend(less("Less than ", &nothing, " would be released of each of these: "));
    }
    let pid = snapshot.process.pid;
    let parts = if asked.is_empty() { &useful } else { asked };
    let option = |part: &TrimPart| match part {
        TrimPart::Cold => "--cold AGE".to_owned(),
        part => format!("--{}", part.key()),
    };
    let options: Vec<String> = parts.iter().map(option).collect();
    pieces.push(CellValue::text(match options.is_empty() {
        true => "There is nothing worth releasing.".to_owned(),
        false => format!("Nothing is done yet: pagewise trim {pid} {} --yes", options.join(" ")),
    }));
    paragraph(pieces)
}

/// Returns the pieces of a sentence about the parts that yield less than [`WORTHWHILE`]: `before`,
/// the size [`WORTHWHILE`], `middle`, and the names of the parts with commas and a final period.
fn less(before: &'static str, parts: &[TrimPart], middle: &'static str) -> [CellValue; 4] {
    let names: Vec<&str> = parts.iter().map(|part| part.key()).collect();
    [
        CellValue::text(before),
        CellValue::Bytes(WORTHWHILE.0),
        CellValue::text(middle),
        CellValue::text(format!("{}. ", names.join(", "))),
    ]
}

fn paragraph(pieces: Vec<CellValue>) -> Paragraph {
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn effect_blocks(estimate: &TrimEstimate, result: &TrimResult) -> Vec<ReportBlock> {
    let mut blocks = vec![
        ReportBlock::Facts(returned(result)),
        ReportBlock::Facts(NamedFacts {
            audience: Audience::Programs,
            ..facts_of("", "", FactsShape::Line, vec![pause_us(result)])
        }),
        ReportBlock::Table(memory(result)),
        ReportBlock::Facts(cost(result)),
        ReportBlock::Table(parts(estimate, result)),
    ];
    blocks.extend(in_vain(result).map(ReportBlock::Text));
    blocks
}

/// Longest stop of the process in microseconds, rounded up.
fn pause_us(result: &TrimResult) -> Fact {
    let micros = result.longest_stop_ns().div_ceil(1000);
    fact("pause_us", "pause", CellValue::Count(micros), "The longest stop of a thread.")
}

fn outcome_of(result: &TrimResult, part: TrimPart) -> Reading<&PartOutcome> {
    match result.parts.iter().find(|(of, _)| *of == part) {
        Some((_, outcome)) => outcome.as_ref().map_err(Clone::clone),
        None => Err(Absent::NotCollected(format!("--{} was not given", part.key()).into())),
    }
}

/// Number of released bytes; negative if the process has allocated more memory in the meantime.
fn released(outcome: &PartOutcome) -> CellValue {
    match u64::try_from(outcome.returned()) {
        Ok(bytes) => CellValue::Bytes(bytes),
        Err(_) => CellValue::Change(outcome.returned()),
    }
}

fn returned(result: &TrimResult) -> NamedFacts {
    let part = |(part, label, meaning): (TrimPart, &'static str, &'static str)| {
        let outcome = outcome_of(result, part);
        let is_hidden = !result.parts.iter().any(|(of, _)| *of == part);
        let value = CellValue::from_reading(outcome, released);
        fact(part.key(), label, value, meaning).hidden_if(is_hidden)
    };
    facts_of("returned", "Released", FactsShape::Columns, MEANINGS.map(part).to_vec())
}

/// Builds the table of memory before the release, after it, and some time later.
fn memory(result: &TrimResult) -> ReportTable {
    let mut rows: Vec<(Label, &MemoryByKind)> =
        vec![("before".into(), &result.before), ("after".into(), &result.after)];
    if let Ok(settled) = &result.settled {
        rows.push(("settled".into(), &settled.memory));
    }
    let bytes =
        |key: &'static str, label: &'static str, of: &dyn Fn(&MemoryByKind) -> Reading<Bytes>| {
            TableColumn::bytes(key, label, rows.iter().map(|(_, memory)| of(memory)))
        };
    let columns = vec![
        TableColumn {
            audience: Audience::People,
            ..TableColumn::new(
                "when",
                "",
                ColumnCells::Labels(rows.iter().map(|(when, _)| when.clone()).collect()),
            )
        },
        bytes("rss", "RSS", &|it| Ok(it.breakdown.resident())),
        bytes("uss", "USS", &|it| Ok(it.breakdown.exclusive())),
        bytes("anon", "anonymous", &|it| {
            Ok(it.breakdown.anon_exclusive + it.breakdown.anon_co_mapped)
        }),
        bytes("file", "file", &|it| Ok(it.breakdown.file_exclusive + it.breakdown.file_co_mapped)),
        bytes("swap", "swap", &|it| Ok(it.breakdown.swapped)),
        bytes("page_tables", "page tables", &|it| it.page_tables.clone()),
    ];
    let keys = rows.iter().map(|(when, _)| when.clone()).collect();
    ReportTable { row_keys: Some(keys), ..table("memory", "Memory", Audience::Everyone, columns) }
}

/// Reports the cost of the release for the process.
fn cost(result: &TrimResult) -> NamedFacts {
    let settled = |of: &dyn Fn(&SettledProcess) -> CellValue| {
        CellValue::from_reading(result.settled.as_ref().map_err(Clone::clone), of)
    };
    let grown = |settled: &SettledProcess| {
        let [after, later] =
            [&result.after, &settled.memory].map(|it| it.breakdown.resident().0.cast_signed());
        CellValue::Change(later.wrapping_sub(after))
    };
    let facts = vec![
        fact(
            "longest_stop_ns",
            "longest stop",
            CellValue::Nanos(result.longest_stop_ns()),
            "The longest time for which a thread of it was stopped.",
        ),
        fact(
            "minor_faults",
            "minor faults",
            settled(&|it| CellValue::Count(it.minor_faults)),
            "Page faults of the whole process afterwards that needed no disk.",
        ),
        fact(
            "major_faults",
            "major faults",
            settled(&|it| CellValue::Count(it.major_faults)),
            "Page faults of the whole process afterwards that needed a disk.",
        ),
        fact(
            "resident_again",
            "resident memory",
            settled(&grown),
            "Change of resident memory in the same time.",
        ),
        fact("waited_ns", "within", settled(&|it| CellValue::Nanos(it.waited_ns)), ""),
    ];
    facts_of("cost", "Cost", FactsShape::Line, facts)
}

/// Builds the table of parts: one row for each requested part.
fn parts(estimate: &TrimEstimate, result: &TrimResult) -> ReportTable {
    let each = |of: &dyn Fn(TrimPart, &Reading<PartOutcome>) -> CellValue| {
        ColumnCells::Values(result.parts.iter().map(|(part, outcome)| of(*part, outcome)).collect())
    };
    let of_outcome = |of: &dyn Fn(&PartOutcome) -> CellValue| {
        each(&|_, outcome| CellValue::from_reading(outcome.as_ref().map_err(Clone::clone), of))
    };
    let columns = vec![
        TableColumn::new("part", "part", each(&|part, _| CellValue::text(part.key()))),
        TableColumn::new(
            "estimate",
            "estimate",
            each(&|part, _| CellValue::bytes(estimate.of_part(part))),
        ),
        TableColumn::new("returned", "released", of_outcome(&released)),
        TableColumn::new(
            "longest_stop_ns",
            "longest stop",
            of_outcome(&|it| CellValue::Nanos(it.longest_stop_ns)),
        ),
        TableColumn::new("done", "done", of_outcome(&|it| CellValue::Count(it.done))),
        TableColumn::new("failed", "failed", of_outcome(&|it| CellValue::Count(it.failed))),
        TableColumn::new(
            "functions",
            "functions",
            of_outcome(&|it| {
                let name = |name: &str| CellValue::Name(Name::new(name.as_bytes()));
                CellValue::List(it.functions.iter().map(|function| name(&function.name)).collect())
            }),
        ),
        TableColumn::new(
            "why",
            "reason",
            of_outcome(&|it| {
                it.why.as_ref().map_or(CellValue::None, |why| CellValue::text(why.clone()))
            }),
        ),
    ];
    table("parts", "Parts", Audience::Everyone, columns)
}

/// Names the parts whose release yielded less than [`WORTHWHILE`].
fn in_vain(result: &TrimResult) -> Option<Paragraph> {
    let is_vain = |outcome: &PartOutcome| outcome.returned() < WORTHWHILE.0.cast_signed();
    let vain: Vec<TrimPart> = result
        .parts
        .iter()
        .filter(|(_, outcome)| outcome.as_ref().is_ok_and(is_vain))
        .map(|(part, _)| *part)
        .collect();
    let pieces = less("Less than ", &vain, " was released of each of these: ");
    (!vain.is_empty()).then(|| paragraph(pieces.to_vec()))
}

#[cfg(test)]
mod tests {
    use pagewise_model::Breakdown;
    use pagewise_model::trim::UnusedStacks;

    use crate::sample::snapshot;

    use super::*;

    fn memory(resident: u64) -> MemoryByKind {
        let breakdown = Breakdown { anon_exclusive: Bytes(resident), ..Breakdown::default() };
        MemoryByKind { breakdown, page_tables: Ok(Bytes::kib(64)) }
    }

    fn estimated(heap: Reading<Bytes>) -> TrimEstimate {
        TrimEstimate {
            heap,
            functions: Vec::new(),
            stacks: Ok(UnusedStacks::default()),
            huge: Ok(Bytes::mib(3)),
            cold: Err(Absent::NotCollected("--cold".into())),
            longest_stop_ns: Ok(0),
            corrupted: 0,
        }
    }

    fn fact_of(report: &Report, block: &str, key: &str) -> CellValue {
        let facts = report.blocks.iter().filter_map(|it| match it {
            ReportBlock::Facts(facts) if facts.key == block => Some(&facts.facts),
            _ => None,
        });
        facts.flatten().find(|fact| fact.key == key).unwrap().value.clone()
    }

    fn advice(report: &Report) -> String {
        let texts = report.blocks.iter().filter_map(|it| match it {
            ReportBlock::Text(text) => Some(format!("{:?}", text.pieces)),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn an_absent_estimate_is_not_zero() {
        let heap = Err(Absent::NotSupported("no symbols".into()));
        let report = estimate(&snapshot(Vec::new()), &estimated(heap.clone()), &[]);
        assert_eq!(fact_of(&report, "estimate", "heap"), CellValue::bytes(heap));
        assert_eq!(fact_of(&report, "estimate", "stacks"), CellValue::Bytes(0));
        assert!(advice(&report).contains("--huge --yes"), "{}", advice(&report));
        assert!(!advice(&report).contains("--stacks"), "{}", advice(&report));
    }

    #[test]
    fn a_process_that_grows_meanwhile_returns_a_negative_amount() {
        let outcome = PartOutcome {
            rss_before: Bytes::mib(5),
            rss_after: Bytes::mib(6),
            done: 1,
            longest_stop_ns: 1_500,
            ..PartOutcome::default()
        };
        let result = TrimResult {
            parts: vec![(TrimPart::Heap, Ok(outcome))],
            before: memory(5 << 20),
            after: memory(6 << 20),
            settled: Err(Absent::Vanished),
        };
        let report = effect(&snapshot(Vec::new()), &estimated(Ok(Bytes::mib(1))), &result);
        assert_eq!(fact_of(&report, "returned", "heap"), CellValue::Change(-(1 << 20)));
        assert!(matches!(fact_of(&report, "returned", "stacks"), CellValue::Absent(_)));
        assert_eq!(fact_of(&report, "", "pause_us"), CellValue::Count(2));
        assert_eq!(fact_of(&report, "cost", "minor_faults"), CellValue::Absent(Absent::Vanished));
        assert!(advice(&report).contains("heap"), "{}", advice(&report));
    }
}
