//! Causes: free memory that the heap of malloc keeps, and heaps of language runtimes.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Remedy, Verdict};
use pagewise_model::evidence::{Instrument, MemoryRecheck, ZeroSample};
use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::report::{CellValue, Fact, Label};
use pagewise_model::{Bytes, Name, Reading};

use super::collector::{CollectedGrowth, SurvivalProof, collected_growth};
use super::evidence::FunctionShare;
use super::growth::{self, LocatedGrowth, growth_cost, growth_words, is_of_program};
use super::responsible::acts_for_its_caller;
use super::stacks::{locks, zero_part};
use super::trend::{GrownMemory, MemoryTrend, SteadyGrowth, is_starved_filling, trend};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text};
use crate::explain::fact;
use crate::explain::heap::estimate_words;
use crate::pools::{LanguageRuntime, PoolKind};

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "many-arenas",
        title: "many malloc arenas",
        meaning: "Threads have arenas of their own, and the free memory of one does not serve the others.",
        needs: &[Instrument::Snapshot],
        excluded_by: "fewer than 4 thread arenas, or less than 40 % of them free",
        source: "mallopt(3): M_ARENA_MAX; 8 arenas per CPU by default",
        rule: many_arenas,
    },
    CauseRow {
        id: "trimmable-heap",
        title: "free heap pages",
        meaning: "The allocator keeps whole pages of free blocks that it could return to the kernel.",
        needs: &[Instrument::Snapshot],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, in whole free pages at one of up to eight times",
        source: "malloc_trim(3); the remedy is carried out by pagewise trim",
        rule: trimmable,
    },
    CauseRow {
        id: "fragmented-heap",
        title: "heap fragmentation",
        meaning: "Free blocks share their pages, or their arenas of CPython, with live blocks, so that none of these can be returned.",
        needs: &[Instrument::Snapshot],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, of free bytes in shared pages at one of up to eight times",
        source: "measured by windows of the heap (pagewise heap scan)",
        rule: fragmented,
    },
    CauseRow {
        id: "foreign-heap",
        title: "heap of a language runtime",
        meaning: "The heap of a language runtime (Python, Java, Go, V8 and others) grows, or is larger than its contents.",
        needs: &[
            Instrument::Activity,
            Instrument::Snapshot,
            Instrument::ZeroPages,
            Instrument::Collector,
            Instrument::Faults,
        ],
        excluded_by: "the memory of the runtime, or its old generation, does not grow steadily, and less than half of the memory is zero-filled",
        source: "documentation of the runtimes",
        rule: foreign,
    },
];

/// Minimum amount of memory in bytes for a cause.
pub(super) const LARGE: Bytes = Bytes::mib(16);
/// Minimum share of RES for a cause.
pub(super) const PART_OF_RES: f64 = 0.1;

pub(super) fn is_large(evidence: &CauseEvidence<'_>, amount: Bytes) -> bool {
    let resident = evidence.resident().unwrap_or_default();
    amount >= LARGE && amount.fraction_of(resident).is_none_or(|part| part >= PART_OF_RES)
}

/// Returns the sample of the heap. If the heap was not sampled, returns the verdict on the cause.
fn sample_of<'a>(evidence: &CauseEvidence<'a>) -> Result<&'a HeapSample, Verdict> {
    if let Some(sample) = evidence.heap_sample() {
        return Ok(sample);
    }
    let heap = memory_of(evidence, GrownMemory::Malloc);
    if evidence.subject.is_ok() && !is_large(evidence, heap) {
        return Err(Verdict::RuledOut(vec![text("the heap has "), CellValue::Bytes(heap.0)]));
    }
    let heap = &evidence.now.heap_sample;
    let why = heap.as_ref().map_or_else(ToString::to_string, |_| String::new());
    Err(Verdict::Unknown(why.into(), format!("pagewise heap scan {}", evidence.pid()).into()))
}

/// Returns the smallest of the amounts during the observation. A program that allocates and frees
/// much of its heap repeatedly needs the free memory in between.
fn lasting(
    evidence: &CauseEvidence<'_>,
    sample: &HeapSample,
    amount: fn(&HeapSample) -> BytesEstimate,
) -> BytesEstimate {
    let now = amount(sample);
    let first = evidence.all.first.heap_sample.as_ref().map(amount);
    let at_ends = first.map_or(now, |first| if first.low < now.low { first } else { now });
    // The samples in between are less exact: their lower bounds do not show a smaller amount, so
    // the middle of the bounds is used.
    let between = evidence
        .all
        .heap_samples
        .iter()
        .map(amount)
        .map(|it| BytesEstimate { low: Bytes(it.low.0.midpoint(it.high.0)), high: it.high });
    let smallest = between.min_by_key(|it| it.low);
    smallest.filter(|it| it.low < at_ends.low).unwrap_or(at_ends)
}

/// Returns the arenas of an allocator as the object of a cause.
fn arenas_of(sample: &HeapSample) -> CauseObject {
    CauseObject::Heap(format!("heap arenas of {}", sample.allocator).into())
}

fn trim_command(evidence: &CauseEvidence<'_>, amount: Bytes) -> Option<Remedy> {
    let mut remedy = remedy_now(
        format!("pagewise trim {} --heap --yes", evidence.pid()),
        [text("Make the running process call malloc_trim(0).")],
        false,
    );
    if let Some(remedy) = &mut remedy {
        remedy.effect = vec![text("returns "), CellValue::Bytes(amount.0)];
    }
    remedy
}

/// Minimum number of thread arenas: fewer are normal for a server with a few worker threads.
const MANY_ARENAS: u64 = 4;
/// Minimum free share of the memory of thread arenas: arenas that are well used have a smaller free
/// share.
const MOSTLY_FREE: f64 = 0.4;

/// Thread arenas that hold much free memory.
struct SpreadArenas<'a> {
    sample: &'a HeapSample,
    /// Number of arenas without the main arena.
    threads: u64,
    free: BytesEstimate,
    resident: Bytes,
}

/// Free bytes in resident pages of all arenas.
fn free_of(sample: &HeapSample) -> BytesEstimate {
    sample.free
}

fn spread_arenas<'a>(evidence: &CauseEvidence<'a>) -> Result<SpreadArenas<'a>, Verdict> {
    let sample = sample_of(evidence)?;
    let threads = sample.arenas.saturating_sub(1);
    if threads < MANY_ARENAS {
        return Err(Verdict::RuledOut(vec![CellValue::Count(threads), text(" thread arenas")]));
    }
    let pools = evidence.subject.as_ref().map(|subject| {
        let pools = subject.pools.list().iter().zip(&subject.sums);
        let arenas = pools.filter(|(pool, _)| pool.kind == PoolKind::MallocArena);
        arenas.filter_map(|(_, sums)| sums.resident.clone().ok()).sum::<Bytes>()
    });
    let resident = pools.unwrap_or_default();
    let free = lasting(evidence, sample, free_of);
    // The sample has one sum of free bytes for all arenas. The part of the thread arenas is
    // estimated in proportion to their resident memory. Free memory of the main arena has other
    // causes, so it is excluded.
    let of_threads = resident.fraction_of(sample.resident).unwrap_or(0.0).min(1.0);
    let free =
        BytesEstimate { low: part_of(free.low, of_threads), high: part_of(free.high, of_threads) };
    if free.low.fraction_of(resident).unwrap_or(0.0) < MOSTLY_FREE || !is_large(evidence, free.low)
    {
        let mut line = vec![CellValue::Count(threads), text(" thread arenas have at most ")];
        line.extend([CellValue::Bytes(free.high.0), text(" of free memory")]);
        return Err(Verdict::RuledOut(line));
    }
    Ok(SpreadArenas { sample, threads, free, resident })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a size")]
pub(super) fn part_of(bytes: Bytes, share: f64) -> Bytes {
    Bytes((float(bytes.0) * share) as u64)
}

fn many_arenas(evidence: &CauseEvidence<'_>) -> Verdict {
    let SpreadArenas { sample, threads, free, resident } = match spread_arenas(evidence) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let mut sentence = estimate_words(free);
    sentence.extend([
        text(" are free in "),
        CellValue::Count(threads),
        text(" thread arenas of malloc, which hold "),
        CellValue::Bytes(resident.0),
        text(": the free memory of an arena does not serve the threads of the others."),
    ]);
    let object = CauseObject::Setting("MALLOC_ARENA_MAX".into());
    let mut found = cause("many-arenas", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(free.low, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("arenas", "arenas", CellValue::Count(sample.arenas), ""),
        fact("threads", "threads", CellValue::Count(evidence.now.process.threads), ""),
        fact("resident_arenas", "resident thread arenas", CellValue::Bytes(resident.0), ""),
        fact("free", "free", CellValue::Bytes(free.low.0), ""),
        fact("live", "live", CellValue::Bytes(sample.live.low.0), ""),
    ];
    found.now = if sample.trimmable.low >= LARGE {
        trim_command(evidence, sample.trimmable.low)
    } else {
        remedy_now(
            "MALLOC_ARENA_MAX=2",
            [text(
                "Start the program with this environment variable, so that its threads share two arenas.",
            )],
            true,
        )
    };
    found.code = remedy_code([text(
        "Call mallopt(M_ARENA_MAX, 2) at the start of main, or start the program with MALLOC_ARENA_MAX=2. \
         Threads then wait for each other if they allocate very often.",
    )]);
    found.into()
}

/// Returns the verdict that excludes free memory as a cause, if the thread arenas explain it.
fn explained_by_arenas(evidence: &CauseEvidence<'_>) -> Option<Verdict> {
    let arenas = spread_arenas(evidence).ok()?;
    let line = vec![
        text("the free memory is spread over "),
        CellValue::Count(arenas.threads),
        text(" thread arenas, which the cause many-arenas explains"),
    ];
    Some(Verdict::RuledOut(line))
}

fn trimmable(evidence: &CauseEvidence<'_>) -> Verdict {
    let sample = match sample_of(evidence) {
        Ok(sample) => sample,
        Err(verdict) => return verdict,
    };
    if let Some(verdict) = explained_by_arenas(evidence) {
        return verdict;
    }
    let used = evidence.all.free_recheck.value().and_then(MemoryRecheck::changed_share);
    let idle = 1.0 - used.unwrap_or(0.0);
    let kept = lasting(evidence, sample, |sample| sample.trimmable);
    let amount = BytesEstimate { low: part_of(kept.low, idle), high: part_of(kept.high, idle) };
    if !is_large(evidence, amount.low) {
        let mut line = vec![CellValue::Bytes(kept.high.0), text(" of whole free pages at most")];
        let used = used.filter(|_| is_large(evidence, kept.low)).map(CellValue::Share);
        line.extend(used.into_iter().flat_map(|used| {
            [text(", of which the program used "), used, text(" during the observation")]
        }));
        return Verdict::RuledOut(line);
    }
    if let Some(pinned) = fragmentation(evidence, sample) {
        let mut line = estimate_words(pinned);
        line.push(text(" more are pinned by live blocks: see the cause fragmented-heap"));
        return Verdict::RuledOut(line);
    }
    let mut sentence = estimate_words(amount);
    sentence.push(text(" of the heap are whole pages of free blocks, which "));
    sentence.push(text("the allocator keeps and `malloc_trim(0)` would return to the kernel."));
    let mut found = cause("trimmable-heap", arenas_of(sample), Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(amount.low, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("resident_heap", "resident heap", CellValue::Bytes(sample.resident.0), ""),
        fact("trimmable", "trimmable", CellValue::Bytes(amount.low.0), ""),
        fact("live", "live", CellValue::Bytes(sample.live.low.0), ""),
        fact("arenas", "arenas", CellValue::Count(sample.arenas), ""),
    ];
    found.now = trim_command(evidence, amount.low);
    // The advice does not name MALLOC_TRIM_THRESHOLD_, because this setting concerns only the end
    // of the main arena, and live blocks lie above the free pages.
    found.code = remedy_code([text(
        "Call malloc_trim(0) after the phase that frees much. If the memory is needed again soon, leave it.",
    )]);
    found.into()
}

fn fragmented(evidence: &CauseEvidence<'_>) -> Verdict {
    if let Some(found) = fragmented_objects(evidence) {
        return found.into();
    }
    let sample = match sample_of(evidence) {
        Ok(sample) => sample,
        Err(verdict) => return verdict,
    };
    if let Some(verdict) = explained_by_arenas(evidence) {
        return verdict;
    }
    let Some(pinned) = fragmentation(evidence, sample) else {
        let pinned = CellValue::Bytes(sample.pinned.high.0);
        return Verdict::RuledOut(vec![pinned, text(" of pinned free bytes at most")]);
    };
    let trimmable = lasting(evidence, sample, |sample| sample.trimmable);
    let mut sentence = estimate_words(pinned);
    sentence.push(text(" of the heap are free but share pages with live blocks, which take "));
    sentence.extend(estimate_words(sample.live));
    sentence.push(text(": heap fragmentation."));
    let object = main_keeper(evidence, sample).unwrap_or_else(|| arenas_of(sample));
    let mut found = cause("fragmented-heap", object, Confidence::Certain, sentence);
    let unused = pinned.low + trimmable.low;
    found.cost = CauseCost::of_memory(unused, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("resident_heap", "resident heap", CellValue::Bytes(sample.resident.0), ""),
        fact("pinned", "pinned", CellValue::Bytes(pinned.low.0), ""),
        fact("trimmable", "whole free pages", CellValue::Bytes(trimmable.low.0), ""),
        fact("live", "live", CellValue::Bytes(sample.live.low.0), ""),
    ];
    found.evidence.extend(survivors(evidence));
    if trimmable.low >= LARGE {
        found.now = trim_command(evidence, trimmable.low);
    }
    found.code = remedy_code([text(
        "Allocate blocks that live long from a pool of their own, or copy the survivors after each phase.",
    )]);
    found.into()
}

/// Minimum share of free bytes in the arenas of Python objects for fragmentation.
const MOSTLY_FREE_OBJECTS: f64 = 0.5;

/// Returns the cause if most bytes in the arenas of Python objects are free, but share arenas with
/// live objects. CPython returns an arena only if it contains no object.
fn fragmented_objects(evidence: &CauseEvidence<'_>) -> Option<Cause> {
    let heap = &evidence.all.scan.value()?.heap;
    let allocator = heap.allocators.iter().position(|it| it.name == "CPython")?;
    let arenas = || heap.arenas.iter().filter(|arena| arena.allocator == allocator);
    let resident: Bytes = arenas().map(|arena| arena.resident).sum();
    let live: Bytes = arenas().map(|arena| arena.live_chunks).sum();
    let trimmable: Bytes = arenas().map(|arena| arena.trimmable).sum();
    let pinned = resident.saturating_sub(live).saturating_sub(trimmable);
    let is_constant = matches!(trend(evidence), MemoryTrend::Bounded(..));
    let is_fragmented = is_constant
        && is_large(evidence, pinned)
        && pinned.fraction_of(resident).is_some_and(|share| share >= MOSTLY_FREE_OBJECTS);
    if !is_fragmented {
        return None;
    }
    let blocks = arenas().map(|arena| arena.live.blocks).sum();
    let sentence = [
        CellValue::Bytes(pinned.0),
        text(" of the "),
        CellValue::Bytes(resident.0),
        text(
            " in the arenas of Python objects are free, but CPython cannot return them: they share arenas with ",
        ),
        CellValue::Count(blocks),
        text(" live objects."),
    ];
    // A program can fill the free memory again in its next phase.
    let again = format!("pagewise heap scan {} --every 10s", evidence.pid());
    let object = CauseObject::Heap("arenas of CPython (pymalloc)".into());
    let mut found = cause("fragmented-heap", object, Confidence::Possible(again.into()), sentence);
    found.cost = CauseCost::of_memory(pinned, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("resident_heap", "resident arenas", CellValue::Bytes(resident.0), ""),
        fact("pinned", "pinned", CellValue::Bytes(pinned.0), ""),
        fact("live", "live", CellValue::Bytes(live.0), ""),
    ];
    found.code = remedy_code([text(
        "Run the phase that makes many objects in a child process, which returns all its memory when it ends, and send only the results back.",
    )]);
    Some(found)
}

/// Minimum ratio of pinned free bytes to trimmable bytes for fragmentation. With a lower ratio, the
/// free memory remains from one phase of the program, and `malloc_trim` returns most of it.
const MOSTLY_TRIMMABLE: f64 = 0.4;

/// Returns the pinned free bytes, if fragmentation is a larger trouble than trimmable memory.
fn fragmentation(evidence: &CauseEvidence<'_>, sample: &HeapSample) -> Option<BytesEstimate> {
    let pinned = lasting(evidence, sample, |sample| sample.pinned);
    let trimmable = lasting(evidence, sample, |sample| sample.trimmable);
    let is_larger = float(pinned.low.0) >= float(trimmable.low.0) * MOSTLY_TRIMMABLE;
    (is_large(evidence, pinned.low) && is_larger).then_some(pinned)
}

/// Minimum number of live bytes that a variable must retain for the report to name the variable:
/// fewer bytes do not pin many pages.
const SURVIVORS: Bytes = Bytes::kib(256);

/// Returns the variable that keeps more than half of the live bytes, which pin the free memory.
fn main_keeper(evidence: &CauseEvidence<'_>, sample: &HeapSample) -> Option<CauseObject> {
    let keeper = growth::graph(evidence)?.retained.first()?;
    let is_main = keeper.retained.bytes > sample.live.high.0 / 2;
    growth::variable(keeper).filter(|_| is_main)
}

/// Returns facts about the variable that keeps most live blocks, and about the function that
/// allocates memory of malloc now.
fn survivors(evidence: &CauseEvidence<'_>) -> Vec<Fact> {
    let keeper = growth::graph(evidence).and_then(|graph| graph.retained.first());
    let keeper = keeper.filter(|it| !it.root.name.is_empty() && it.retained.bytes >= SURVIVORS.0);
    let mut facts = Vec::new();
    if let Some(keeper) = keeper {
        let name = CellValue::Name(keeper.root.name.clone());
        facts.push(fact("kept_by", "most live blocks are kept by", name, ""));
        let kept = CellValue::Bytes(keeper.retained.bytes);
        facts.push(fact("kept", "that is", kept, ""));
    }
    let function = growth::growing_function(evidence, GrownMemory::Malloc);
    facts.extend(function.map(|function| {
        let name = crate::heap::frames::with_its_line(function.frame);
        fact("allocated_by", "allocated by", CellValue::Name(Name::new(name.as_bytes())), "")
    }));
    facts
}

/// Sums the resident memory of one kind.
fn memory_of(evidence: &CauseEvidence<'_>, memory: GrownMemory) -> Bytes {
    let Ok(subject) = evidence.subject else { return Bytes::ZERO };
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let own = pools.filter(|(pool, _)| GrownMemory::of(pool.kind) == memory);
    own.filter_map(|(_, sums)| sums.resident.clone().ok()).sum()
}

fn foreign(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(runtime) = LanguageRuntime::of_process(evidence.now) else {
        return Verdict::NotApplicable;
    };
    let memory = memory_of(evidence, GrownMemory::Runtime);
    if let Some(found) = oversized_runtime(evidence, runtime, memory) {
        return found.into();
    }
    match collected_growth(evidence, memory) {
        CollectedGrowth::Survivors(growth, proof) => {
            let function = growth::growing_function(evidence, GrownMemory::Runtime);
            let growth = HeapGrowth { growth, proof: Some(proof) };
            return growing_runtime(evidence, runtime, memory, growth, function.as_ref()).into();
        }
        CollectedGrowth::Garbage(line) => {
            return buffers_outside(evidence, runtime, memory)
                .map_or(Verdict::RuledOut(line), Verdict::from);
        }
        CollectedGrowth::BeforeFullCollection => {
            let command = format!("pagewise diagnose {} --for 1m", evidence.pid());
            let why = "the old generation grows, but may hold garbage: full collections freed it before, and none happened meanwhile";
            return Verdict::Unknown(why.into(), command.into());
        }
        CollectedGrowth::Unknown => {}
    }
    let located = match growth::located(evidence) {
        Ok(located) => located,
        Err(verdict @ Verdict::Unknown(..)) => return verdict,
        Err(_) => return Verdict::RuledOut(quiet_runtime(evidence, runtime, memory)),
    };
    let function = growth::growing_function(evidence, located.memory);
    let is_runtime = match located.memory {
        GrownMemory::Runtime => true,
        GrownMemory::Malloc => !is_of_program(evidence, &located, function.as_ref()),
        _ => false,
    };
    let is_outside = runtime.collects_garbage() && located.memory == GrownMemory::Malloc;
    let is_quiet = match is_outside {
        true => !is_established(&located, memory_of(evidence, GrownMemory::Malloc)),
        false => {
            is_first_filling(runtime, memory, &located)
                || is_starved_filling(evidence, located.growth)
        }
    };
    if !is_runtime || is_quiet {
        return Verdict::RuledOut(quiet_runtime(evidence, runtime, memory));
    }
    let proof = is_outside.then_some(SurvivalProof::OutsideHeap);
    let growth = HeapGrowth { growth: located.growth, proof };
    growing_runtime(evidence, runtime, memory, growth, function.as_ref()).into()
}

/// Minimum growth of malloc in bytes outside of the collected heap: less growth may be a reserve of
/// the allocator.
const MANY_BUFFERS: Bytes = Bytes::mib(5);

/// Returns the cause if the runtime grows memory of malloc while the old generation does not grow:
/// buffers of objects, such as those of JavaScript's ArrayBuffer.
fn buffers_outside(
    evidence: &CauseEvidence<'_>,
    runtime: LanguageRuntime,
    memory: Bytes,
) -> Option<Cause> {
    let located = growth::located(evidence).ok()?;
    let function = growth::growing_function(evidence, located.memory);
    let is_outside = located.memory == GrownMemory::Malloc
        && located.growth.bytes >= MANY_BUFFERS
        && !is_of_program(evidence, &located, function.as_ref());
    let proof = Some(SurvivalProof::OutsideHeap);
    let growth = HeapGrowth { growth: located.growth, proof };
    is_outside.then(|| growing_runtime(evidence, runtime, memory, growth, function.as_ref()))
}

/// Growth of the heap of a runtime.
#[derive(Clone, Copy)]
struct HeapGrowth {
    growth: SteadyGrowth,
    /// Reason why the growth is not garbage; `None` without counters of the garbage collector.
    proof: Option<SurvivalProof>,
}

impl HeapGrowth {
    /// Returns the end of the sentence on the growth.
    fn words(self) -> Vec<CellValue> {
        const KEEPS: &str = ": the program keeps more and more objects";
        let mut words = match self.proof {
            None => vec![text(KEEPS)],
            Some(SurvivalProof::NeverCollected | SurvivalProof::Classes(_)) => vec![text(": ")],
            Some(_) => vec![text(KEEPS), text("; ")],
        };
        words.extend(self.proof.into_iter().flat_map(SurvivalProof::words));
        words.push(text("."));
        words
    }

    fn confidence(self, runtime: LanguageRuntime, next: Label) -> Confidence {
        match self.proof {
            Some(SurvivalProof::NeverCollected) => Confidence::Certain,
            Some(
                SurvivalProof::OldGeneration
                | SurvivalProof::OutsideHeap
                | SurvivalProof::Classes(_),
            ) => Confidence::Possible(next),
            None if runtime.collects_garbage() => Confidence::Possible(next),
            _ => Confidence::Likely(next),
        }
    }
}

/// Minimum zero-filled share of an oversized heap: its pages were touched, but never used for
/// objects.
const MOSTLY_ZERO: f64 = 0.5;

/// Returns the cause if most pages of a heap were never written: the heap is larger than the
/// program needs.
fn oversized_runtime(
    evidence: &CauseEvidence<'_>,
    runtime: LanguageRuntime,
    memory: Bytes,
) -> Option<Cause> {
    let subject = evidence.subject.as_ref().ok()?;
    let is_of_runtime = |sample: &ZeroSample| {
        let at = subject.mappings.partition_point(|it| it.range.end <= sample.range.start);
        let mapping = subject.mappings.get(at);
        mapping.is_some_and(|mapping| mapping.range.start < sample.range.end)
            && GrownMemory::of(subject.pools.pool_of(at).kind) == GrownMemory::Runtime
    };
    let zero = zero_part(evidence.all.zero_pages.value()?, is_of_runtime);
    if !is_large(evidence, zero.low) || zero.low.fraction_of(memory)? < MOSTLY_ZERO {
        return None;
    }
    // Zero-filled arrays that the program keeps are objects of the old generation.
    let kept = kept_objects(evidence).unwrap_or_default();
    let unused = memory.saturating_sub(kept).min(zero.low);
    if !is_large(evidence, unused) || unused.fraction_of(memory)? < MOSTLY_ZERO {
        return None;
    }
    // Locked memory is resident for another reason. Go clears memory before it allocates an object
    // in it, so objects whose bytes are all zero look like memory that was never written.
    if locks(evidence, zero.low) || runtime == LanguageRuntime::Go {
        return None;
    }
    // Only Java touches pages of its heap before use. In other runtimes, zero-filled memory in huge
    // pages comes from the size of these pages. If their number is unknown, they may be the reason.
    if runtime != LanguageRuntime::Java
        && huge_pages_of_runtime(evidence).ok()?.0.saturating_mul(2) >= zero.low.0
    {
        return None;
    }
    let sentence = [
        CellValue::Bytes(zero.bytes.0),
        text(" of the "),
        CellValue::Bytes(memory.0),
        text(" of "),
        text(runtime.label()),
        text(" are resident and were never written: its heap is larger than the program needs."),
    ];
    let object = CauseObject::Heap(format!("heap of {}", runtime.label()).into());
    let mut found = cause("foreign-heap", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(unused, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("zero", "zero-filled", CellValue::Bytes(zero.bytes.0), ""),
        fact("runtime", "memory of the runtime", CellValue::Bytes(memory.0), ""),
    ];
    found.code = remedy_code([text(match runtime {
        LanguageRuntime::Java => {
            "Start it with a smaller -Xms and -Xmx, and without -XX:+AlwaysPreTouch."
        }
        _ => "Start it with a smaller initial heap, and do not touch the heap beforehand.",
    })]);
    Some(found)
}

/// Bytes in the old generation at the end of the observation; `None` if the runtime does not count
/// them.
fn kept_objects(evidence: &CauseEvidence<'_>) -> Option<Bytes> {
    evidence.all.collector.value()?.iter().rev().find_map(|point| point.old)
}

/// Number of bytes of the runtime's memory in huge pages; absent if it is unknown for any mapping.
fn huge_pages_of_runtime(evidence: &CauseEvidence<'_>) -> Reading<Bytes> {
    let subject = evidence.subject.as_ref().map_err(Clone::clone)?;
    let mappings = subject.mappings.iter().enumerate();
    let own = mappings.filter(|(index, _)| {
        GrownMemory::of(subject.pools.pool_of(*index).kind) == GrownMemory::Runtime
    });
    own.map(|(_, mapping)| mapping.anon_huge()).sum()
}

/// Returns the report's line that excludes the memory of a runtime as a cause.
fn quiet_runtime(
    evidence: &CauseEvidence<'_>,
    runtime: LanguageRuntime,
    memory: Bytes,
) -> Vec<CellValue> {
    let mut line = vec![text(runtime.label()), text(" has "), CellValue::Bytes(memory.0)];
    if let MemoryTrend::Bounded(change, seconds) = trend(evidence) {
        line.push(text("; private memory changed by "));
        line.push(CellValue::Change(change));
        line.push(text(format!(" in {seconds:.0} s")));
    }
    line
}

/// Minimum size of a collected heap whose growth is judged: a smaller heap is still being filled up
/// to its first collection.
const FIRST_COLLECTION: Bytes = Bytes::mib(64);
/// Growth of an established heap (a heap that is not filled for the first time) during the
/// observation, as a share of the heap. Less growth is noise, and more growth is a heap that is
/// filled for the first time.
const ESTABLISHED_GROWTH: std::ops::Range<f64> = 0.03..0.25;

/// Growth of established malloc memory outside of the collected heap, as a share of the runtime's
/// memory. The upper bound is higher than in [`ESTABLISHED_GROWTH`], because a garbage collection
/// does not empty this memory, so the program does not fill it again.
const ESTABLISHED_BUFFERS: std::ops::Range<f64> = 0.03..0.5;

/// True if the malloc memory that a runtime allocates outside of its collected heap has grown by
/// much, but most of this memory existed before the observation.
fn is_established(located: &LocatedGrowth, memory: Bytes) -> bool {
    let share = located.growth.bytes.fraction_of(memory);
    located.growth.bytes >= MANY_BUFFERS
        && share.is_some_and(|share| ESTABLISHED_BUFFERS.contains(&share))
}

fn is_first_filling(runtime: LanguageRuntime, memory: Bytes, located: &LocatedGrowth) -> bool {
    // The Java virtual machine makes memory writable only when it enlarges its heap. Growth inside
    // writable memory is therefore the first filling of the heap.
    let is_within =
        runtime == LanguageRuntime::Java && located.kind.reserved < located.kind.used / 2;
    let is_small = memory < FIRST_COLLECTION
        || located
            .growth
            .bytes
            .fraction_of(memory)
            .is_none_or(|share| !ESTABLISHED_GROWTH.contains(&share));
    runtime.collects_garbage() && (is_small || is_within)
}

fn growing_runtime(
    evidence: &CauseEvidence<'_>,
    runtime: LanguageRuntime,
    memory: Bytes,
    heap: HeapGrowth,
    function: Option<&FunctionShare<'_>>,
) -> Cause {
    let (pid, growth) = (evidence.pid(), heap.growth);
    let mut sentence = vec![text("The heap of "), text(runtime.label())];
    sentence.extend(growth_words(evidence, growth));
    sentence.extend(heap.words());
    let next = format!("pagewise diagnose {pid} --for 1m");
    let confidence = heap.confidence(runtime, next.into());
    let of_program = function.filter(|function| allocates_by_itself(runtime, function));
    let object = match of_program {
        Some(function) => function.object(),
        None => CauseObject::Heap(format!("heap of {}", runtime.label()).into()),
    };
    let mut found = cause("foreign-heap", object, confidence, sentence);
    found.cost = growth_cost(evidence, growth, growth.bytes);
    found.evidence = vec![
        fact("growth", "growth", CellValue::Bytes(growth.bytes.0), ""),
        fact("runtime", "memory of the runtime", CellValue::Bytes(memory.0), ""),
    ];
    found.evidence.extend(objects(evidence));
    found.evidence.extend(function.map(|function| {
        let name = crate::heap::frames::with_its_line(function.frame);
        fact("allocated_by", "allocated by", CellValue::Name(Name::new(name.as_bytes())), "")
    }));
    let (restart, code) = runtime_remedies(runtime, pid);
    found.now = remedy_now("", [text(restart)], false);
    found.code = remedy_code([text(code)]);
    found
}

/// True if one function of the program first touches most of the growth. Only call stacks of Go
/// show functions of the program. Call stacks of other runtimes show the interpreter or the
/// collector.
fn allocates_by_itself(runtime: LanguageRuntime, function: &FunctionShare<'_>) -> bool {
    const MIN_FUNCTION_SHARE: f64 = 0.5;
    runtime == LanguageRuntime::Go
        && function.share() >= MIN_FUNCTION_SHARE
        && function.frame.function.is_some()
        && !acts_for_its_caller(function.frame)
}

/// Returns the type of objects with the most bytes, if the heap was scanned.
fn objects(evidence: &CauseEvidence<'_>) -> Option<Fact> {
    let scan = evidence.all.scan.value()?;
    let most = scan.heap.objects.first()?;
    Some(fact("largest_type", "type with most bytes", CellValue::Name(most.name.clone()), ""))
}

/// Returns two remedies. The first needs no code change, and names the command that shows the
/// contents of the heap. The second is the code change.
fn runtime_remedies(runtime: LanguageRuntime, pid: u32) -> (String, &'static str) {
    const BOUND: &str = "Give the container that grows a bound: remove an entry for each one that is added beyond it.";
    let (contents, code) = match runtime {
        LanguageRuntime::Python => (
            format!("`pagewise heap scan {pid}` lists its live Python objects by type."),
            "Find the line of Python that allocates them (the call stacks of pagewise show the interpreter): start the program \
             with `python3 -X tracemalloc=5` and compare two snapshots. Give the container that grows a bound.",
        ),
        LanguageRuntime::Java => (
            format!(
                "`-Xmx` bounds its heap. `jcmd {pid} GC.class_histogram` collects garbage and lists the live objects by class."
            ),
            BOUND,
        ),
        LanguageRuntime::Go => (
            format!(
                "Started with GOMEMLIMIT=SIZE, and with GOGC unset, it collects garbage before it reaches SIZE. \
                 `pagewise faults {pid} --for 10s` finds the function that touches new memory."
            ),
            "Remove entries that are not used from maps and slices, and leave GOGC at its default.",
        ),
        // SIGUSR2, because SIGUSR1 opens a debugger of Node.js to all local users, and ends other
        // programs.
        LanguageRuntime::V8 => (
            "`--max-old-space-size=MIB` bounds the heap of Node.js; with `--heapsnapshot-signal=SIGUSR2`, it writes a heap \
             snapshot at this signal."
                .to_owned(),
            "Remove listeners, timers and entries of maps when they are not used any more.",
        ),
        LanguageRuntime::DotNet => {
            (format!("`dotnet-gcdump collect -p {pid}` lists its live objects by type."), BOUND)
        }
        LanguageRuntime::Ruby
        | LanguageRuntime::Php
        | LanguageRuntime::Erlang
        | LanguageRuntime::OtherScript => (
            format!("`pagewise faults {pid} --for 10s` finds the function that touches new memory."),
            BOUND,
        ),
    };
    (format!("Restart the program before the limit is reached. {contents}"), code)
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::{CollectorPoint, Evidence, Gathered};
    use pagewise_model::faults::FaultKind;
    use pagewise_model::heap_graph::{HeapGraph, HeapRoot, RetainingRoot, RootKind};
    use pagewise_model::heap_scan::LiveAmount;
    use pagewise_model::{Quadrant, SmapsCounter, Snapshot};

    use super::*;
    use crate::causes::made::{activity, add_graph, evidence, go_program, present, verdict};
    use crate::causes::made_recordings::faults;
    use crate::sample::{mapping, resident, snapshot, with_smaps};

    const MIB: u64 = 1 << 20;
    const ARENAS: &str = "7f0000000000-7f0008000000 rw-p 0 0 ";

    fn exactly(mib: u64) -> BytesEstimate {
        BytesEstimate { low: Bytes::mib(mib), high: Bytes::mib(mib) }
    }

    /// Returns a snapshot of a process with a heap of 128 MiB.
    fn with_sample(trimmable: u64, pinned: u64, arenas: u64) -> Snapshot {
        let mut made = snapshot(vec![resident("5000000-d000000 rw-p 0 0 [heap]", 128 * MIB)]);
        made.heap_sample = Ok(HeapSample {
            allocator: "glibc".to_owned(),
            arenas,
            resident: Bytes::mib(128),
            live: exactly(128 - trimmable - pinned),
            free: exactly(trimmable + pinned),
            trimmable: exactly(trimmable),
            pinned: exactly(pinned),
            ..HeapSample::default()
        });
        made
    }

    #[test]
    fn free_pages_at_both_times_are_trimmable() {
        let made = evidence(with_sample(60, 0, 1), with_sample(50, 0, 1));
        let cause = present(&made, "trimmable-heap");
        assert_eq!(cause.cost.bytes, Some(Bytes::mib(50)));
        assert_eq!(cause.now.unwrap().command, "pagewise trim 7 --heap --yes");
    }

    #[test]
    fn a_heap_that_is_used_again_is_healthy() {
        let made = evidence(with_sample(0, 0, 1), with_sample(80, 0, 1));
        assert!(matches!(verdict(&made, "trimmable-heap"), Verdict::RuledOut(_)));
        let made = evidence(with_sample(0, 80, 1), with_sample(0, 0, 1));
        assert!(matches!(verdict(&made, "fragmented-heap"), Verdict::RuledOut(_)));
    }

    #[test]
    fn free_memory_that_the_program_uses_in_between_is_healthy() {
        let with = |between: BytesEstimate| {
            let mut made = evidence(with_sample(60, 0, 1), with_sample(50, 0, 1));
            let mut sample = made.first.heap_sample.clone().unwrap();
            sample.trimmable = between;
            made.heap_samples = vec![sample];
            verdict(&made, "trimmable-heap")
        };
        assert!(matches!(with(exactly(2)), Verdict::RuledOut(_)));
        assert!(matches!(with(exactly(55)), Verdict::Present(_)));
        let from = |low, high| BytesEstimate { low: Bytes::mib(low), high: Bytes::mib(high) };
        assert!(matches!(with(from(2, 70)), Verdict::Present(_)), "it shows no smaller amount");
        assert!(matches!(with(from(0, 24)), Verdict::RuledOut(_)));
    }

    #[test]
    fn free_pages_that_the_program_writes_meanwhile_are_healthy() {
        let with = |changed| {
            let mut made = evidence(with_sample(60, 0, 1), with_sample(50, 0, 1));
            let recheck = MemoryRecheck { parts: 100, changed, after_ns: 10_000_000_000 };
            made.free_recheck = Gathered::Value(recheck);
            verdict(&made, "trimmable-heap")
        };
        let Verdict::Present(cause) = with(20) else { panic!("most pages are idle") };
        assert_eq!(cause.cost.bytes, Some(Bytes::mib(40)));
        let Verdict::RuledOut(line) = with(90) else { panic!("the program uses them") };
        assert!(line.contains(&CellValue::Share(0.9)), "{line:?}");
    }

    #[test]
    fn arenas_of_python_that_few_objects_pin_are_fragmented() {
        let with = |live: u64, trimmable: u64, mib: fn(u64) -> u64| {
            let python = || of_runtime("/usr/bin/python3", 90);
            let mut made = evidence(python(), python());
            made.activity = activity((0..40).map(|number| mib(number) * MIB));
            add_graph(&mut made, HeapGraph::default());
            let Gathered::Value(scan) = &mut made.scan else { panic!("it was made") };
            let allocator = |name: &str| pagewise_model::heap_scan::HeapAllocator {
                name: name.to_owned(),
                ..Default::default()
            };
            scan.heap.allocators = vec![allocator("glibc"), allocator("CPython")];
            scan.heap.arenas = vec![pagewise_model::heap_scan::WalkedArena {
                allocator: 1,
                resident: Bytes::mib(80),
                live: LiveAmount { blocks: 9000, bytes: live * MIB },
                live_chunks: Bytes::mib(live),
                trimmable: Bytes::mib(trimmable),
                ..Default::default()
            }];
            verdict(&made, "fragmented-heap")
        };
        let Verdict::Present(cause) = with(4, 0, |_| 90) else { panic!("most of it is free") };
        assert_eq!(cause.cost.bytes, Some(Bytes::mib(76)));
        assert_eq!(cause.confidence.key(), "possible");
        for other in [with(60, 0, |_| 90), with(4, 70, |_| 90), with(4, 0, |at| 90 + at)] {
            assert!(!matches!(other, Verdict::Present(_)), "{other:?}");
        }
    }

    #[test]
    fn scattered_survivors_are_one_cause_with_the_free_pages_between() {
        let made = evidence(with_sample(55, 52, 1), with_sample(55, 52, 1));
        let cause = present(&made, "fragmented-heap");
        assert_eq!(cause.cost.bytes, Some(Bytes::mib(107)));
        assert!(matches!(verdict(&made, "trimmable-heap"), Verdict::RuledOut(_)));
    }

    #[test]
    fn the_variable_that_keeps_the_survivors_is_the_object() {
        let with = |kept: u64| {
            let mut made = evidence(with_sample(55, 52, 1), with_sample(55, 52, 1));
            let root = HeapRoot {
                kind: RootKind::Variable,
                name: "pinned_rows".into(),
                module: None,
                source: None,
                frame: None,
                tid: None,
                address: 0,
            };
            let keeper = RetainingRoot {
                root,
                retained: LiveAmount { blocks: 1000, bytes: kept * MIB },
                path: Vec::new(),
                roots: Vec::new(),
                has_more_roots: false,
            };
            let graph = HeapGraph { retained: vec![keeper], ..HeapGraph::default() };
            add_graph(&mut made, graph);
            present(&made, "fragmented-heap").object
        };
        assert!(matches!(with(18), CauseObject::Variable(name, _) if name == "pinned_rows".into()));
        assert!(matches!(with(6), CauseObject::Heap(_)));
    }

    /// Returns a snapshot of a process with thread arenas of 120 MiB, of which this number of MiB
    /// is free.
    fn with_arenas(free: u64) -> Snapshot {
        let mut made = with_sample(free / 2, free - free / 2, 9);
        let mut arena = resident(ARENAS, 120 * MIB);
        arena.name = "".into();
        if let Ok(mappings) = &mut made.mappings {
            *mappings = vec![arena];
        }
        made.objects.push(crate::causes::made::glibc());
        made.heads.push(pagewise_model::snapshot::MappingHead {
            address: 0x7f00_0000_0000,
            words: [0x7f00_0000_0030, 0],
        });
        made
    }

    #[test]
    fn free_memory_of_many_arenas_has_one_cause() {
        let made = evidence(with_arenas(100), with_arenas(100));
        let cause = present(&made, "many-arenas");
        assert_eq!(cause.object, CauseObject::Setting("MALLOC_ARENA_MAX".into()));
        assert!(matches!(verdict(&made, "trimmable-heap"), Verdict::RuledOut(_)));
        assert!(matches!(verdict(&made, "fragmented-heap"), Verdict::RuledOut(_)));
    }

    #[test]
    fn arenas_full_of_live_blocks_are_healthy() {
        let made = evidence(with_arenas(12), with_arenas(12));
        assert!(matches!(verdict(&made, "many-arenas"), Verdict::RuledOut(_)));
    }

    /// Returns a snapshot of a process of a runtime whose memory has this number of MiB.
    fn of_runtime(program: &str, mib: u64) -> Snapshot {
        let line = format!("7f0000000000-{:x} rw-p 0 0 ", 0x7f00_0000_0000 + mib * MIB);
        let mut made = snapshot(vec![resident(&line, mib * MIB)]);
        made.process.exe = Ok(program.into());
        made
    }

    #[test]
    fn a_python_heap_that_grows_is_of_python_and_no_leak_of_malloc() {
        let mut made =
            evidence(of_runtime("/usr/bin/python3", 50), of_runtime("/usr/bin/python3", 89));
        made.activity = activity((50..90).map(|mib| mib * MIB));
        let cause = present(&made, "foreign-heap");
        assert_eq!(cause.confidence.key(), "likely");
        assert!(matches!(&cause.object, CauseObject::Heap(name) if name.contains("CPython")));
        for other in ["leak", "unbounded-cache", "mapping-growth"] {
            assert!(matches!(verdict(&made, other), Verdict::RuledOut(_)), "{other}");
        }
    }

    #[test]
    fn a_small_heap_of_a_process_that_hardly_ran_may_be_filled() {
        let with = |ran_ms: u64| {
            let at = |mib| of_runtime("/usr/bin/python3", mib);
            let mut made = evidence(at(20), at(30));
            made.activity = activity((0..40).map(|step| 20 * MIB + step * MIB / 4));
            let (ran_ns, waited_ns) = (ran_ms * 1_000_000, (5000 - ran_ms) * 1_000_000);
            let waits =
                pagewise_model::evidence::CpuWaits { ran_ns, waited_ns, undelayed_ns: None };
            made.cpu_waits = Gathered::Value(waits);
            verdict(&made, "foreign-heap")
        };
        assert!(matches!(with(50), Verdict::RuledOut(_)));
        assert!(matches!(with(1000), Verdict::Present(_)));
    }

    #[test]
    fn buffers_that_a_runtime_allocates_beside_its_collected_heap_are_its_growth() {
        let at = |mib: u64| {
            let mut made = snapshot(vec![resident("5000000-9000000 rw-p 0 0 [heap]", mib * MIB)]);
            made.process.exe = Ok("/usr/bin/node".into());
            made
        };
        let with = |module: &str| {
            let mut made = evidence(at(50), at(89));
            made.activity = activity((50..90).map(|mib| mib * MIB));
            let old = Some(Bytes::mib(4));
            let points = (0..10).map(|second| CollectorPoint {
                at_ns: second * 1_000_000_000,
                old,
                ..CollectorPoint::default()
            });
            made.collector = Gathered::Value(points.collect());
            made.faults = faults(FaultKind::Anonymous, 300, "[heap]", Quadrant::PrivateAnonymous);
            let Gathered::Value(recording) = &mut made.faults else { panic!("it was made") };
            recording.frames[0].module = Some(module.into());
            made
        };
        let buffers = with("/usr/bin/node");
        assert_eq!(present(&buffers, "foreign-heap").confidence.key(), "possible");
        // A native library of the program allocates the memory.
        let native = with("/app/native.node");
        assert!(matches!(verdict(&native, "foreign-heap"), Verdict::RuledOut(_)));
    }

    #[test]
    fn the_function_of_a_go_program_that_touches_most_of_the_growth_is_the_object() {
        let with = |function: &str| {
            let go = |mib| {
                let mut made = of_runtime("/usr/bin/app", mib);
                made.objects.push(go_program());
                made
            };
            let mut made = evidence(go(60), go(99));
            made.activity = activity((60..100).map(|mib| mib * MIB));
            let collections = Some(7);
            let point = |at_ns| CollectorPoint { at_ns, collections, ..CollectorPoint::default() };
            made.collector = Gathered::Value(vec![point(0), point(9_000_000_000)]);
            made.faults = faults(FaultKind::Anonymous, 300, "", Quadrant::PrivateAnonymous);
            let Gathered::Value(recording) = &mut made.faults else { panic!("it was made") };
            recording.frames[0].function = Some(function.to_owned());
            let range = made.first.mappings.as_ref().unwrap()[0].range;
            recording.mappings[0].range = range;
            present(&made, "foreign-heap").object
        };
        assert_eq!(with("main.handle").function(), Some("main.handle"));
        assert!(matches!(with("runtime.mallocgc"), CauseObject::Heap(_)));
    }

    #[test]
    fn a_collected_heap_that_grows_is_possible_at_most() {
        let grown = |from: u64| {
            let node = |mib| of_runtime("/usr/bin/node", mib);
            let mut made = evidence(node(from), node(from + 39));
            made.activity = activity((from..from + 40).map(|mib| mib * MIB));
            made
        };
        assert_eq!(present(&grown(200), "foreign-heap").confidence.key(), "possible");
        // The heap is filled for the first time.
        for from in [10, 50] {
            assert!(
                matches!(verdict(&grown(from), "foreign-heap"), Verdict::RuledOut(_)),
                "{from}"
            );
        }
    }

    #[test]
    fn a_heap_that_was_touched_and_never_used_is_oversized() {
        let mut made = evidence(of_runtime("/usr/bin/node", 300), of_runtime("/usr/bin/node", 300));
        made.activity = activity((0..40).map(|_| 300 * MIB));
        let range = made.first.mappings.as_ref().unwrap()[0].range;
        let sample = |made: &mut Evidence, zero| {
            made.zero_pages = Gathered::Value(vec![ZeroSample {
                range,
                resident: Bytes::mib(300),
                locked: None,
                read: 1000,
                zero,
            }]);
            verdict(made, "foreign-heap")
        };
        let with_counters = |counters: &[(SmapsCounter, u64)]| {
            let mut with = made.clone();
            let line = "7f0000000000-7f0012c00000 rw-p 0 0 ";
            with.first.mappings = Ok(vec![with_smaps(mapping(line), counters, "rd wr")]);
            with.last = Gathered::Value(Box::new(with.first.clone()));
            with
        };
        let rss = (SmapsCounter::Rss, 300 * MIB);
        let huge = |bytes| [rss, (SmapsCounter::AnonHugePages, bytes)];
        let mut small = with_counters(&huge(0));
        assert!(matches!(sample(&mut small, 900), Verdict::Present(_)));
        assert!(matches!(sample(&mut small, 200), Verdict::RuledOut(_)));
        let mut large = with_counters(&huge(280 * MIB));
        assert!(matches!(sample(&mut large, 900), Verdict::RuledOut(_)), "huge pages explain them");
        let mut unknown = with_counters(&[rss]);
        assert!(matches!(sample(&mut unknown, 900), Verdict::RuledOut(_)), "they may explain them");
        // Zero-filled arrays that survived collections are objects.
        let mut arrays = small.clone();
        let mut with_old = |mib| {
            let old = Some(Bytes::mib(mib));
            let point = CollectorPoint { old, ..CollectorPoint::default() };
            arrays.collector = Gathered::Value(vec![point]);
            sample(&mut arrays, 900)
        };
        assert!(matches!(with_old(20), Verdict::Present(_)));
        assert!(matches!(with_old(250), Verdict::RuledOut(_)));
        // Zero-filled objects of Go lie in memory that the runtime cleared.
        made.first.process.exe = Ok("/usr/bin/app".into());
        made.first.objects.push(crate::causes::made::go_program());
        made.last = Gathered::Value(Box::new(made.first.clone()));
        assert!(matches!(sample(&mut made, 900), Verdict::RuledOut(_)));
    }

    #[test]
    fn a_runtime_of_constant_size_is_healthy() {
        let mut made = evidence(of_runtime("/usr/bin/node", 500), of_runtime("/usr/bin/node", 500));
        made.activity = activity((0..40).map(|at| (500 + at % 7) * MIB));
        assert!(matches!(verdict(&made, "foreign-heap"), Verdict::RuledOut(_)));
        let made = evidence(of_runtime("/usr/bin/redis", 500), of_runtime("/usr/bin/redis", 500));
        assert!(matches!(verdict(&made, "foreign-heap"), Verdict::NotApplicable));
    }
}
