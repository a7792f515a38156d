//! Causes: memory that grows steadily.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::Instrument;
use pagewise_model::faults::{FaultKind, FaultMapping, FaultRow};
use pagewise_model::heap_graph::{CONTAINER_BLOCKS, HeapGraph, RetainingRoot, RootKind};
use pagewise_model::heap_sample::BytesEstimate;
use pagewise_model::heap_scan::{HeapScan, LiveAmount};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{CellValue, Fact};
use pagewise_model::{AddrRange, Bytes};

use super::evidence::FunctionShare;
use super::heap::{LARGE, PART_OF_RES};
use super::leak_sites::leaking_function;
use super::responsible::acts_for_its_caller;
use super::trend::{
    GrownMemory, KindGrowth, MemoryTrend, SteadyGrowth, duration_words, grown_most,
    is_first_filling, may_fill_a_cache, no_growth, risk_of, slow_growth, time_to_limit, trend,
    works_through_input,
};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text, whole};
use crate::explain::fact;
use crate::pools::LanguageRuntime;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "leak",
        title: "memory leak",
        meaning: "The program allocates blocks and loses the last pointer to them.",
        needs: &[
            Instrument::Activity,
            Instrument::Snapshot,
            Instrument::HeapScan,
            Instrument::Faults,
        ],
        excluded_by: "private memory does not grow steadily, or the heap scan reaches the blocks that grow, or the program still changes the unreachable blocks",
        source: "reachability by conservative search (pagewise heap scan --leaks), as memcheck does",
        rule: leak,
    },
    CauseRow {
        id: "unbounded-cache",
        title: "unbounded cache or queue",
        meaning: "A container of the program grows without bound: its blocks are reachable.",
        needs: &[
            Instrument::Activity,
            Instrument::Snapshot,
            Instrument::HeapScan,
            Instrument::Faults,
        ],
        excluded_by: "private memory does not grow steadily, or the blocks that grow are unreachable",
        source: "retained sizes by dominators (pagewise heap scan --retained)",
        rule: unbounded_cache,
    },
    CauseRow {
        id: "mapping-growth",
        title: "growing mappings",
        meaning: "The program maps memory, or creates threads, and does not release the mappings.",
        needs: &[Instrument::Activity, Instrument::Snapshot, Instrument::Calls, Instrument::Faults],
        excluded_by: "the address space of mappings outside malloc does not grow steadily",
        source: "mmap(2), pthread_join(3): the stack of a thread that is not joined stays mapped",
        rule: mapping_growth,
    },
];

/// Minimum ratio of unreachable bytes to the growth for which the unreachable blocks explain the
/// growth. The ratio can be below 1, because a stale value may look like a pointer to a leaked
/// block, which then counts as reachable.
const EXPLAINS: f64 = 0.5;
/// Minimum ratio of unreachable bytes to the growth for which the unreachable blocks are a possible
/// reason for the growth.
const EXCLUDES: f64 = 0.25;

/// Minimum share of the growth that one function touches first if a leak or a cache is the reason.
const MAIN_SHARE: f64 = 0.5;

/// Steady growth, and the kind of memory that grew most.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocatedGrowth {
    pub(super) growth: SteadyGrowth,
    pub(super) memory: GrownMemory,
    pub(super) kind: KindGrowth,
}

/// Returns the steady growth. Without steady growth, and for a young program that computes without
/// waiting, returns the verdict on causes of growth.
pub(super) fn located(evidence: &CauseEvidence<'_>) -> Result<LocatedGrowth, Verdict> {
    let located = located_growth(evidence)?;
    if works_through_input(evidence) { Err(work(evidence)) } else { Ok(located) }
}

/// Returns the verdict on growth of a program that may be working through its input.
fn work(evidence: &CauseEvidence<'_>) -> Verdict {
    Verdict::Unknown(
        "the program computes without waiting since its start, as a compiler does: its memory may be released at its end".into(),
        format!("pagewise diagnose {} --for 3m", evidence.pid()).into(),
    )
}

/// Does the same as [`located`], but also returns the growth of a program that may be working
/// through its input. Rules that can prove a leak use this function.
fn located_growth(evidence: &CauseEvidence<'_>) -> Result<LocatedGrowth, Verdict> {
    let pid = evidence.pid();
    let growth = match trend(evidence) {
        MemoryTrend::Steady(growth) => growth,
        MemoryTrend::Bounded(change, seconds) => {
            return Err(match slow_growth(evidence) {
                Some(growth) => too_slow(pid, growth),
                None => Verdict::RuledOut(no_growth(change, seconds)),
            });
        }
        MemoryTrend::Unknown => {
            return Err(Verdict::Unknown(
                "the observation was too short".into(),
                format!("pagewise diagnose {pid} --for 10s").into(),
            ));
        }
    };
    let Some((memory, kind)) = grown_most(evidence) else {
        return Err(Verdict::Unknown(
            "the mappings were not read twice".into(),
            format!("pagewise diff {pid} --for 10s").into(),
        ));
    };
    let memory = match memory {
        GrownMemory::Runtime if maps_by_request(evidence, growth) => GrownMemory::Mappings,
        other => other,
    };
    Ok(LocatedGrowth { growth, memory, kind })
}

/// Returns the verdict on steady growth that is too small to show its cause.
fn too_slow(pid: u32, growth: SteadyGrowth) -> Verdict {
    let seconds = growth.seconds;
    Verdict::Unknown(
        format!(
            "private memory grew steadily, but only by {} KiB in {seconds:.0} s, which may be a warm-up",
            growth.bytes.0 >> 10
        )
        .into(),
        format!("pagewise diagnose {pid} --for 1m").into(),
    )
}

/// Functions of language runtimes that map memory at the request of the program. A name that ends
/// with a parenthesis is the prefix of a C++ name.
const MAPPING_INTERFACES: &[&str] = &[
    // The module `mmap` of Python.
    "new_mmap_object",
    // `FileChannel.map` of Java.
    "Java_sun_nio_ch_FileChannelImpl_map0",
    "Java_sun_nio_ch_FileDispatcherImpl_map0",
    "Java_sun_nio_ch_UnixFileDispatcherImpl_map0",
    // The packages `syscall` and `golang.org/x/sys/unix` of Go.
    "syscall.mmap",
    "golang.org/x/sys/unix.mmap",
    // `WebAssembly.Memory` and resizable buffers of V8, which lie outside of its collected heap.
    "v8::internal::BackingStore::TryAllocateAndPartiallyCommitMemory(",
];

fn is_mapping_interface(function: &str) -> bool {
    MAPPING_INTERFACES.iter().any(|name| match name.ends_with('(') {
        true => function.starts_with(name),
        false => function == *name,
    })
}

/// True if functions that map memory at the request of the program mapped at least half of the
/// growth.
fn maps_by_request(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> bool {
    let Some(profile) = evidence.all.calls.value() else { return false };
    let is_request = |stack: u32| {
        let stack = profile.stacks.get(stack as usize);
        let frames = stack.into_iter().flatten();
        frames
            .filter_map(|frame| profile.frames.get(*frame as usize))
            .any(|frame| frame.function.as_deref().is_some_and(is_mapping_interface))
    };
    let rows = profile.rows.iter().filter(|row| row.call == "mmap" && is_request(row.stack));
    let bytes: u64 = rows.map(|row| row.bytes).fold(0, u64::saturating_add);
    bytes >= growth.bytes.0 / 2
}

/// Returns the growth and the time until a limit, as the part of a sentence after its subject.
pub(super) fn growth_words(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Vec<CellValue> {
    let rate = whole(growth.rate());
    let mut words = vec![text(" grows by "), CellValue::Bytes(rate), text(" per second")];
    if let Some((limit, seconds)) = time_to_limit(evidence, growth) {
        let words_of_time = duration_words(seconds);
        words.push(text(format!(" and reaches {limit} in {words_of_time} at this rate")));
    }
    words
}

/// Returns the cost of growth: the memory that it has taken, and the risk that it reaches a limit.
pub(super) fn growth_cost(
    evidence: &CauseEvidence<'_>,
    growth: SteadyGrowth,
    taken: Bytes,
) -> CauseCost {
    let mut cost = CauseCost::of_memory(taken, evidence.resident().unwrap_or_default());
    cost.risk = risk_of(time_to_limit(evidence, growth).map(|(_, seconds)| seconds));
    cost
}

fn growth_facts(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Vec<Fact> {
    let mut facts = vec![
        fact("growth", "growth", CellValue::Bytes(growth.bytes.0), ""),
        fact("rate", "bytes per second", CellValue::Bytes(whole(growth.rate())), ""),
    ];
    if let Some(resident) = evidence.resident() {
        facts.push(fact("resident", "RES", CellValue::Bytes(resident.0), ""));
    }
    if let Some(peak) = evidence.ends().and_then(|(_, last)| last.peak.clone().ok()) {
        facts.push(fact("peak", "highest RES", CellValue::Bytes(peak.0), ""));
    }
    facts
}

fn function_facts(evidence: &CauseEvidence<'_>, function: Option<&FunctionShare<'_>>) -> Vec<Fact> {
    let Some(function) = function else { return Vec::new() };
    let share = CellValue::Share(function.share());
    let events = match evidence.all.allocations.value() {
        Some(_) => "live bytes of the function",
        None => "first touches by the function",
    };
    vec![fact("function_share", events, share, "")]
}

/// Address ranges of one kind of memory.
fn grown_ranges(evidence: &CauseEvidence<'_>, memory: GrownMemory) -> Vec<AddrRange> {
    let Ok(subject) = evidence.subject else { return Vec::new() };
    let is_meant = |index: &usize| GrownMemory::of(subject.pools.pool_of(*index).kind) == memory;
    let indices = (0..subject.mappings.len()).filter(is_meant);
    indices.map(|index| subject.mappings[index].range).collect()
}

/// True if a page fault added an anonymous base page or huge page to the process.
fn adds_memory(row: &FaultRow) -> bool {
    matches!(row.kind, FaultKind::Anonymous | FaultKind::Huge)
}

/// Returns the function that first touches most of the memory that grows.
pub(super) fn growing_function<'a>(
    evidence: &CauseEvidence<'a>,
    memory: GrownMemory,
) -> Option<FunctionShare<'a>> {
    let ranges = grown_ranges(evidence, memory);
    let is_within = |mapping: Option<&FaultMapping>| {
        mapping.is_some_and(|mapping| {
            let at = ranges.partition_point(|range| range.end <= mapping.range.start);
            ranges.get(at).is_some_and(|range| range.start < mapping.range.end)
        })
    };
    evidence.faulting_function(|row, mapping| adds_memory(row) && is_within(mapping))
}

/// Returns the graph of pointers in the heap, if the heap was scanned for pointers.
pub(super) fn graph<'a>(evidence: &CauseEvidence<'a>) -> Option<&'a HeapGraph> {
    evidence.all.scan.value().and_then(|scan| scan.graph.as_ref())
}

/// Maximum number of blocks to which only registers of a thread point: the six callee-saved
/// registers and two other registers.
const BLOCKS_IN_REGISTERS: u64 = 8;

/// Maximum share of leaked bytes in blocks that changed after the scan, if the leaked blocks grow.
/// A block that the program uses during the scan of a running process can look unreachable.
const CHANGED_WHILE_GROWING: f64 = 0.2;
/// Maximum share of leaked bytes in changed blocks if the leaked blocks do not grow: pointers in an
/// encoded form explain unreachable blocks as well.
const CHANGED_WITHOUT_GROWTH: f64 = 0.02;

/// Returns the share of leaked bytes in blocks that changed after the scan; `None` if too few
/// blocks were read again.
fn changed_share(evidence: &CauseEvidence<'_>) -> Option<f64> {
    evidence.all.leak_recheck.value()?.changed_share()
}

/// Returns the unreachable blocks; `None` if the program still changes many of them. A scan of a
/// running process lacks the registers. The result therefore excludes the largest leaked blocks, as
/// many as the registers can point to.
fn unreachable(evidence: &CauseEvidence<'_>) -> Option<LiveAmount> {
    let scan = evidence.all.scan.value()?;
    if changed_share(evidence).is_some_and(|share| share > CHANGED_WHILE_GROWING) {
        return None;
    }
    let graph = scan.graph.as_ref()?;
    Some(if knows_registers(scan) { graph.leaked } else { without_registers(evidence, graph) })
}

/// Usable size in bytes of the largest block in fastbins of glibc. Free blocks in fastbins look
/// like live blocks.
const MAX_FASTBIN: u64 = 120;
/// Maximum number of bytes in the thread cache (tcache) of one thread: 64 size classes up to 1032
/// bytes, with seven blocks each.
const MAX_THREAD_CACHE: u64 = 256 << 10;

/// Returns the unreachable bytes that free blocks cannot explain. The copy of a running process can
/// contain an inconsistent free list: the blocks after a broken link look like unreachable live
/// blocks. The sample of the heap bounds the bytes of such blocks.
fn certainly_leaked(evidence: &CauseEvidence<'_>, leaked: LiveAmount) -> u64 {
    let Some(scan) = evidence.all.scan.value() else { return 0 };
    if knows_registers(scan) || scan.heap.corrupted == 0 {
        return leaked.bytes;
    }
    let sample = evidence.heap_sample().filter(|sample| sample.allocator == "glibc");
    let (Some(sample), Some(graph)) = (sample, scan.graph.as_ref()) else { return 0 };
    let large = graph.leaks.iter().filter(|group| group.size > MAX_FASTBIN);
    let large: u64 = large.map(|group| group.bytes).sum();
    let caches = evidence.now.process.threads.max(1).saturating_mul(MAX_THREAD_CACHE);
    leaked.bytes.min(large).saturating_sub(sample.free.high.0).saturating_sub(caches)
}

fn knows_registers(scan: &HeapScan) -> bool {
    scan.moment != ProcessMoment::Running || scan.copy.stops > 0
}

fn without_registers(evidence: &CauseEvidence<'_>, graph: &HeapGraph) -> LiveAmount {
    let mut held = evidence.now.process.threads.max(1).saturating_mul(BLOCKS_IN_REGISTERS);
    let mut left = graph.leaked;
    let mut groups: Vec<_> = graph.leaks.iter().filter(|group| group.leaks > 0).collect();
    groups.retain(|group| {
        let is_container = group.blocks / group.leaks >= CONTAINER_BLOCKS;
        if is_container {
            left.bytes = left.bytes.saturating_sub(group.bytes);
            left.blocks = left.blocks.saturating_sub(group.blocks);
        }
        !is_container
    });
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes / group.leaks));
    for group in groups {
        let count = group.leaks.min(held);
        held -= count;
        let part = |all: u64| all / group.leaks * count;
        left.bytes = left.bytes.saturating_sub(part(group.bytes));
        left.blocks = left.blocks.saturating_sub(part(group.blocks));
    }
    left
}

/// Share of the growth that unreachable blocks explain; it can exceed 1.
fn leaked_part(leaked: LiveAmount, growth: SteadyGrowth) -> f64 {
    float(leaked.bytes) / float(growth.bytes.0.max(1))
}

/// True if unreachable blocks explain the growth even if some of them are free blocks.
fn explains_growth(evidence: &CauseEvidence<'_>, leaked: LiveAmount, growth: SteadyGrowth) -> bool {
    let certain = LiveAmount { bytes: certainly_leaked(evidence, leaked), ..leaked };
    leaked_part(certain, growth) >= EXPLAINS
}

/// True if the memory that grows belongs to malloc, and the function that allocates it is not part
/// of a language runtime.
pub(super) fn is_of_program(
    evidence: &CauseEvidence<'_>,
    located: &LocatedGrowth,
    function: Option<&FunctionShare<'_>>,
) -> bool {
    let runtime = LanguageRuntime::of_process(evidence.now);
    let allocates = |runtime: LanguageRuntime| {
        function.is_some_and(|function| {
            function.frame.module.as_ref().is_some_and(|module| runtime.contains(module))
        })
    };
    located.memory == GrownMemory::Malloc && !runtime.is_some_and(allocates)
}

/// Size in bytes of the header of a block of malloc.
const BLOCK_HEADER: u64 = 8;

/// Growth of live blocks in bytes: lower bound, middle estimate and upper bound.
struct LiveGrowth {
    low: f64,
    middle: f64,
    high: f64,
}

/// Estimates the growth of live blocks. `None` if the heap was not sampled at the beginning, or was
/// neither scanned nor sampled at the end.
fn live_growth(evidence: &CauseEvidence<'_>) -> Option<LiveGrowth> {
    let middle = |live: BytesEstimate| f64::midpoint(float(live.low.0), float(live.high.0));
    let before = evidence.all.first.heap_sample.as_ref().ok()?.live;
    let scanned = graph(evidence).map(|graph| {
        let blocks = graph.reachable.blocks.saturating_add(graph.leaked.blocks);
        let usable = graph.reachable.bytes.saturating_add(graph.leaked.bytes);
        let bytes = Bytes(usable.saturating_add(blocks.saturating_mul(BLOCK_HEADER)));
        BytesEstimate { low: bytes, high: bytes }
    });
    let sampled = || Some(evidence.all.last.value()?.heap_sample.as_ref().ok()?.live);
    let now = scanned.or_else(sampled)?;
    Some(LiveGrowth {
        low: float(now.low.0) - float(before.high.0),
        middle: middle(now) - middle(before),
        high: float(now.high.0) - float(before.low.0),
    })
}

/// Returns the verdict on growth that is free memory of the heap, such as the growth of a full
/// cache whose entries have many sizes. The upper bound of the growth of live blocks must be low,
/// too, so that an inexact sample cannot hide this growth.
fn by_free_blocks(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Option<Verdict> {
    const MAX_LIVE_SHARE: f64 = 0.9;
    let live = live_growth(evidence)?;
    let all = float(growth.bytes.0);
    let is_free = live.middle < all * EXCLUDES && live.high < all * MAX_LIVE_SHARE;
    is_free.then(|| {
        Verdict::RuledOut(vec![
            text("live blocks grew by at most "),
            CellValue::Bytes(whole(live.high.max(0.0))),
            text(": most of the growth of "),
            CellValue::Bytes(growth.bytes.0),
            text(" is free memory of the heap"),
        ])
    })
}

/// Returns growth of malloc by the program, with the function that allocates or first touches this
/// memory.
fn of_malloc<'a>(
    evidence: &CauseEvidence<'a>,
) -> Result<(LocatedGrowth, Option<FunctionShare<'a>>), Verdict> {
    let located = located_growth(evidence)?;
    let function =
        evidence.allocating_function().or_else(|| growing_function(evidence, located.memory));
    if !is_of_program(evidence, &located, function.as_ref()) {
        let line = [text("the memory that grows does not come from malloc")];
        return Err(Verdict::RuledOut(line.to_vec()));
    }
    let freed = by_free_blocks(evidence, located.growth);
    let freed = freed.or_else(|| by_few_live_blocks(evidence, located.growth));
    freed.map_or(Ok((located, function)), Err)
}

/// Returns the verdict on growth that the program had freed by the time of the heap scan: all live
/// blocks together are less than half of the growth. Caches that drop a large part at once, and
/// batches, do this.
fn by_few_live_blocks(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Option<Verdict> {
    let graph = graph(evidence)?;
    let live = Bytes(graph.reachable.bytes.saturating_add(graph.leaked.bytes));
    let is_freed = float(live.0) < float(growth.bytes.0) * EXPLAINS;
    is_freed.then(|| {
        Verdict::RuledOut(vec![
            text("all live blocks have "),
            CellValue::Bytes(live.0),
            text(" at the end: the program freed most of the growth of "),
            CellValue::Bytes(growth.bytes.0),
        ])
    })
}

/// If the ratio of the growth to the pinned free memory is at most this value, fragmentation may
/// explain the growth: new blocks do not fit into the gaps between live blocks.
const SMALL_BESIDE_GAPS: f64 = 0.1;

/// Returns the verdict on slow growth of a fragmented heap: most of the heap is free, and the live
/// blocks may not have grown.
fn by_gaps(evidence: &CauseEvidence<'_>, growth: SteadyGrowth) -> Option<Verdict> {
    let sample = evidence.heap_sample()?;
    let before = evidence.all.first.heap_sample.as_ref().ok()?;
    let live = live_growth(evidence)?;
    let pinned = sample.pinned.low.min(before.pinned.low);
    let is_mostly_free = sample.free.low > sample.live.high;
    let may_be_none = live.low <= 0.0 && live.middle < float(growth.bytes.0) * EXPLAINS;
    let is_small = float(growth.bytes.0) < float(pinned.0) * SMALL_BESIDE_GAPS;
    (pinned >= LARGE && is_mostly_free && may_be_none && is_small).then(|| {
        Verdict::Unknown(
            "the heap is fragmented, and its growth is small beside its free memory: live blocks may have stayed the same".into(),
            format!("pagewise diagnose {} --for 1m", evidence.pid()).into(),
        )
    })
}

fn leak(evidence: &CauseEvidence<'_>) -> Verdict {
    let (located, function) = match of_malloc(evidence) {
        Ok(found) => found,
        Err(verdict) => {
            return slow_leak(evidence).or_else(|| old_leak(evidence)).unwrap_or(verdict);
        }
    };
    let growth = located.growth;
    let pid = evidence.pid();
    let mut sentence = vec![text("Memory of malloc")];
    sentence.extend(growth_words(evidence, growth));
    let lost = unreachable(evidence);
    let is_unclear = lost.is_none_or(|lost| {
        leaked_part(lost, growth) >= EXCLUDES && !explains_growth(evidence, lost, growth)
    });
    if is_unclear && let Some(verdict) = by_gaps(evidence, growth) {
        return verdict;
    }
    let (confidence, leaked) = match lost {
        Some(leaked) if leaked_part(leaked, growth) < EXCLUDES => {
            return Verdict::RuledOut(vec![
                CellValue::Bytes(leaked.bytes),
                text(" are unreachable: less than the growth of "),
                CellValue::Bytes(growth.bytes.0),
            ]);
        }
        Some(leaked) if explains_growth(evidence, leaked, growth) => {
            sentence.extend(lost_words(leaked));
            (Confidence::Certain, Some(leaked))
        }
        _ if works_through_input(evidence) => return work(evidence),
        None if is_first_filling(evidence, growth) => return filling(evidence),
        None if function.as_ref().is_some_and(|it| it.share() < MAIN_SHARE) => {
            return Verdict::Unknown(
                "reachability of the growth is unknown, and no function first touches half of it, as in a program that works through a large input".into(),
                format!("pagewise heap scan {pid} --leaks --retained").into(),
            );
        }
        other => {
            sentence.push(text(": a leak, or a container without bound"));
            let command = format!("pagewise heap scan {pid} --leaks --retained");
            (Confidence::Possible(command.into()), other)
        }
    };
    let leak = GrownLeak { growth, leaked, function };
    leak.cause(evidence, confidence, sentence).into()
}

/// Returns the part of a sentence about blocks to which the program has lost all pointers.
fn lost_words(leaked: LiveAmount) -> [CellValue; 4] {
    [
        text(": the program has lost all pointers to "),
        CellValue::Count(leaked.blocks),
        text(" blocks of "),
        CellValue::Bytes(leaked.bytes),
    ]
}

/// Growth that a leak explains.
struct GrownLeak<'a> {
    growth: SteadyGrowth,
    /// Unreachable blocks; `None` if reachability is unknown.
    leaked: Option<LiveAmount>,
    /// The function that allocates or first touches most of the growth.
    function: Option<FunctionShare<'a>>,
}

impl GrownLeak<'_> {
    /// Builds the cause. `sentence` names the growth, and the leaked blocks if they are known.
    fn cause(
        self,
        evidence: &CauseEvidence<'_>,
        confidence: Confidence,
        mut sentence: Vec<CellValue>,
    ) -> Cause {
        let GrownLeak { growth, leaked, function } = self;
        let is_recorded = evidence.allocating_function().is_some();
        let by_size = leaked.filter(|_| !is_recorded).and_then(|_| leaking_function(evidence));
        let by_size = by_size.filter(|it| function.is_none() || !acts_for_its_caller(it.frame));
        let function = by_size.as_ref().or(function.as_ref());
        if let Some(function) = function {
            let verb = match by_size {
                Some(_) => " allocates blocks of their sizes",
                None if is_recorded => " allocates most of it",
                None => " first touches most of it",
            };
            sentence.extend([text("; "), function_name(function), text(verb)]);
        }
        sentence.push(text("."));
        let object = function.map_or_else(|| heap_object(evidence), FunctionShare::object);
        let mut found = cause("leak", object, confidence, sentence);
        let taken = leaked.map_or(growth.bytes, |leaked| Bytes(leaked.bytes));
        found.cost = growth_cost(evidence, growth, taken);
        found.evidence = growth_facts(evidence, growth);
        let facts = leaked.zip(graph(evidence)).map(|(leaked, graph)| leak_facts(leaked, graph));
        found.evidence.extend(facts.into_iter().flatten());
        found.evidence.extend(match by_size {
            Some(by_size) => vec![fact(
                "function_share",
                "leaked bytes of the sizes that the function allocates",
                CellValue::Share(by_size.share()),
                "",
            )],
            None => function_facts(evidence, function),
        });
        leak_remedies(found, evidence.pid())
    }
}

/// Returns the verdict if the private memory grows steadily but little, and unchanged unreachable
/// blocks explain it.
fn slow_leak(evidence: &CauseEvidence<'_>) -> Option<Verdict> {
    let growth = slow_growth(evidence)?;
    changed_share(evidence)?;
    let leaked = unreachable(evidence).filter(|it| explains_growth(evidence, *it, growth))?;
    let mut sentence = vec![text("Private memory")];
    sentence.extend(growth_words(evidence, growth));
    sentence.extend(lost_words(leaked));
    let longer = format!("pagewise diagnose {} --for 1m", evidence.pid());
    let leak = GrownLeak { growth, leaked: Some(leaked), function: None };
    Some(leak.cause(evidence, Confidence::Likely(longer.into()), sentence).into())
}

/// Returns the verdict on growth of a small heap that has more than doubled, if no heap scan proves
/// that the blocks are unreachable.
fn filling(evidence: &CauseEvidence<'_>) -> Verdict {
    Verdict::Unknown(
        "a small heap has more than doubled: the growth does not show yet whether it ends".into(),
        format!("pagewise diagnose {} --for 1m", evidence.pid()).into(),
    )
}

/// Returns the function with its source line, for a sentence.
fn function_name(function: &FunctionShare<'_>) -> CellValue {
    let name = crate::heap::frames::with_its_line(function.frame);
    CellValue::Name(pagewise_model::Name::new(name.as_bytes()))
}

fn leak_facts(leaked: LiveAmount, graph: &HeapGraph) -> Vec<Fact> {
    let mut facts = vec![
        fact("leaked", "unreachable", CellValue::Bytes(leaked.bytes), ""),
        fact("leaked_blocks", "unreachable blocks", CellValue::Count(leaked.blocks), ""),
    ];
    if let Some(most) = graph.leaks.first() {
        facts.push(fact("leaked_size", "size of most of them", CellValue::Bytes(most.size), ""));
        let name = most.block_type.clone().map(CellValue::Name);
        facts.extend(name.map(|name| fact("leaked_type", "type", name, "")));
    }
    facts
}

fn leak_remedies(mut found: Cause, pid: u32) -> Cause {
    let change = [text(format!(
        "Restart the program before the limit is reached. `pagewise heap attach {pid} --for 10s` lists the call paths whose \
         blocks are not freed."
    ))];
    found.now = remedy_now("", change, false);
    found.code = remedy_code([text(
        "Free the block on each path that drops the last pointer to it: also if an entry is replaced, and on error paths.",
    )]);
    found
}

/// Returns the verdict on unreachable blocks that take much memory but do not grow during the
/// observation.
fn old_leak(evidence: &CauseEvidence<'_>) -> Option<Verdict> {
    let graph = graph(evidence)?;
    let changed = changed_share(evidence);
    if changed.is_some_and(|share| share > CHANGED_WITHOUT_GROWTH) {
        return has_many_lost_bytes(evidence, graph.leaked).then(|| encoded_pointers(evidence));
    }
    let amount = unreachable(evidence)?;
    let leaked = Bytes(amount.bytes);
    let resident = evidence.resident()?;
    if !has_many_lost_bytes(evidence, amount) {
        return None;
    }
    let pid = evidence.pid();
    let sentence = [
        text("The program has lost all pointers to "),
        CellValue::Count(amount.blocks),
        text(" blocks of "),
        CellValue::Bytes(leaked.0),
        text(". Their number did not grow during the observation."),
    ];
    let stack = graph.leaks.first().and_then(|most| most.stack.as_ref().ok());
    let frames: Vec<_> = stack.into_iter().flatten().collect();
    let recorded = super::responsible::responsible(&frames);
    let function = recorded.cloned().or_else(|| Some(leaking_function(evidence)?.frame.clone()));
    let object = function.map_or_else(|| heap_object(evidence), CauseObject::Function);
    // Pointers in an encoded form explain unreachable blocks as well, unless these become more.
    let longer = format!("pagewise diagnose {pid} --for 1m");
    let mut found = cause("leak", object, Confidence::Likely(longer.into()), sentence);
    found.cost = CauseCost::of_memory(leaked, resident);
    found.evidence = leak_facts(amount, graph);
    found.evidence.extend(changed.map(|share| {
        fact("changed", "leaked bytes in blocks that changed since", CellValue::Share(share), "")
    }));
    Some(leak_remedies(found, pid).into())
}

/// True if leaked blocks take at least [`LARGE`] and [`PART_OF_RES`], which is a trouble even
/// without growth.
fn has_many_lost_bytes(evidence: &CauseEvidence<'_>, amount: LiveAmount) -> bool {
    let part = evidence.resident().and_then(|resident| Bytes(amount.bytes).fraction_of(resident));
    Bytes(certainly_leaked(evidence, amount)) >= LARGE && part.is_some_and(|it| it >= PART_OF_RES)
}

/// Returns the verdict on blocks without a pointer that the program still changes.
fn encoded_pointers(evidence: &CauseEvidence<'_>) -> Verdict {
    Verdict::Unknown(
        "the program changes blocks to which no pointer was found: it finds them by offsets, handles or encoded pointers, so reachability is unknown".into(),
        format!("pagewise heap attach {} --for 10s", evidence.pid()).into(),
    )
}

/// Returns the heap of the allocator as the object of a cause.
fn heap_object(evidence: &CauseEvidence<'_>) -> CauseObject {
    let sample = evidence.heap_sample();
    let allocator = sample.map_or("malloc", |sample| sample.allocator.as_str());
    // Objects of a runtime own buffers of malloc, such as those of JavaScript's ArrayBuffer.
    let runtime = LanguageRuntime::of_process(evidence.now);
    let owner = runtime.map(|runtime| format!(" in a process of {}", runtime.label()));
    CauseObject::Heap(format!("heap of {allocator}{}", owner.unwrap_or_default()).into())
}

fn unbounded_cache(evidence: &CauseEvidence<'_>) -> Verdict {
    let (located, function) = match of_malloc(evidence) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let growth = located.growth;
    let pid = evidence.pid();
    let Some((graph, leaked)) = graph(evidence).zip(unreachable(evidence)) else {
        return Verdict::Unknown(
            match graph(evidence) {
                Some(_) => "the program changes blocks to which no pointer was found, so reachability of the growth is unknown",
                None => "the heap was not scanned, so reachability of the growth is unknown",
            }
            .into(),
            format!("pagewise heap scan {pid} --leaks --retained").into(),
        );
    };
    if leaked_part(leaked, growth) >= EXCLUDES {
        return Verdict::RuledOut(vec![
            CellValue::Bytes(leaked.bytes),
            text(" of blocks are unreachable, which explains the growth"),
        ]);
    }
    if works_through_input(evidence) {
        return work(evidence);
    }
    if may_fill_a_cache(evidence, growth) {
        return filling(evidence);
    }
    if let Some(verdict) = by_gaps(evidence, growth) {
        return verdict;
    }
    let keeper = graph.retained.first().filter(|it| it.retained.bytes >= growth.bytes.0 / 2);
    let mut sentence = vec![text("Memory of malloc")];
    sentence.extend(growth_words(evidence, growth));
    sentence.push(text(", and the program still reaches it: a container without bound"));
    if let Some(keeper) = keeper {
        sentence.extend([text("; "), CellValue::Name(keeper.root.name.clone()), text(" keeps ")]);
        sentence.push(CellValue::Bytes(keeper.retained.bytes));
    }
    if let Some(function) = &function {
        let verb = match evidence.allocating_function() {
            Some(_) => " allocates most of it",
            None => " first touches most of it",
        };
        sentence.extend([text("; "), function_name(function), text(verb)]);
    }
    sentence.push(text("."));
    let object = keeper
        .and_then(variable)
        .or_else(|| function.as_ref().map(FunctionShare::object))
        .unwrap_or_else(|| heap_object(evidence));
    // Until it is full, a bounded cache grows like an unbounded one.
    let longer = format!("pagewise diagnose {pid} --for 1m");
    let mut found = cause("unbounded-cache", object, Confidence::Likely(longer.into()), sentence);
    let kept = keeper.map_or(growth.bytes, |it| Bytes(it.retained.bytes));
    found.cost = growth_cost(evidence, growth, kept);
    found.evidence = growth_facts(evidence, growth);
    let reachable = CellValue::Bytes(graph.reachable.bytes);
    found.evidence.push(fact("reachable", "reachable", reachable, ""));
    if let Some(function) = &function {
        found.evidence.push(fact("function", "allocated by", function_name(function), ""));
    }
    found.evidence.extend(function_facts(evidence, function.as_ref()));
    let change = [text(format!(
        "Restart the program before the limit is reached, or lower the size of its cache, if it has such a setting. \
         `pagewise heap scan {pid} --retained` lists the variables that keep most memory."
    ))];
    found.now = remedy_now("", change, false);
    found.code = remedy_code([text(
        "Give the container a bound (number of entries, bytes or age), and remove an entry for each one that is added beyond it.",
    )]);
    found.into()
}

/// Returns the variable of a root, if the name of the root occurs in the source code.
pub(super) fn variable(root: &RetainingRoot) -> Option<CauseObject> {
    let is_variable = matches!(root.root.kind, RootKind::Variable | RootKind::ThreadLocal);
    let has_name = is_variable && !root.root.name.is_empty();
    has_name.then(|| CauseObject::Variable(root.root.name.clone(), root.root.module.clone()))
}

fn mapping_growth(evidence: &CauseEvidence<'_>) -> Verdict {
    let located = match located(evidence) {
        Ok(located) => located,
        Err(verdict) => return verdict,
    };
    let LocatedGrowth { growth, memory, kind } = located;
    if !matches!(memory, GrownMemory::Mappings | GrownMemory::Stacks) {
        return Verdict::RuledOut(vec![
            text("mappings outside malloc grew less than other memory: "),
            CellValue::Change(kind.reserved),
        ]);
    }
    // Growth by first touches of memory that was already mapped is bounded by the size of the
    // mapping. A program that does not release its mappings touches new mappings, so its address
    // space grows too.
    if kind.reserved < kind.used / 4 * 3 {
        return Verdict::RuledOut(vec![
            text("touched mappings grow within their size: address space changed by "),
            CellValue::Change(kind.reserved),
        ]);
    }
    let function = mapping_function(evidence, memory);
    let pid = evidence.pid();
    let is_stacks = memory == GrownMemory::Stacks;
    let subject = if is_stacks { "Memory of thread stacks" } else { "Memory that mmap returned" };
    let mut sentence = vec![text(subject)];
    sentence.extend(growth_words(evidence, growth));
    let reason = if is_stacks {
        ": threads end, and their stacks stay mapped"
    } else {
        ": the program maps memory and does not unmap it"
    };
    sentence.push(text(reason));
    if let Some(function) = &function {
        let verb = if is_stacks { " creates them" } else { " maps it" };
        sentence.extend([text("; "), function_name(function), text(verb)]);
    }
    sentence.push(text("."));
    let confidence = match &function {
        Some(_) => Confidence::Certain,
        None => Confidence::Likely(format!("pagewise syscalls {pid} --for 5s").into()),
    };
    let object = function.as_ref().map_or_else(
        || {
            let name = if is_stacks { "stacks of threads" } else { "anonymous mappings" };
            CauseObject::Heap(name.into())
        },
        FunctionShare::object,
    );
    let mut found = cause("mapping-growth", object, confidence, sentence);
    found.cost = growth_cost(evidence, growth, growth.bytes);
    found.evidence = growth_facts(evidence, growth);
    let reserved = CellValue::Change(kind.reserved);
    found.evidence.push(fact("reserved", "address space", reserved, ""));
    let mappings = CellValue::Change(kind.mappings);
    found.evidence.push(fact("mappings", "mappings", mappings, ""));
    found.evidence.extend(function_facts(evidence, function.as_ref()));
    found.code = remedy_code([text(match is_stacks {
        true => {
            "Call pthread_join for each thread, or pthread_detach: the stack of an ended thread stays mapped until then."
        }
        false => {
            "Call munmap when the mapping is not used any more, or reuse a bounded number of mappings."
        }
    })]);
    found.into()
}

/// Returns the function that maps the memory that grows. The recorded system calls identify this
/// function. If they do not, the first touches of the memory identify it.
fn mapping_function<'a>(
    evidence: &CauseEvidence<'a>,
    memory: GrownMemory,
) -> Option<FunctionShare<'a>> {
    let creator = || {
        let recording = evidence.faults()?;
        let creates = |row: &FaultRow| {
            let stack = recording.stacks.get(row.stack as usize);
            let frames = stack.into_iter().flatten();
            frames.filter_map(|frame| recording.frames.get(*frame as usize)).any(|frame| {
                frame.function.as_deref().is_some_and(|name| name.contains("pthread_create"))
            })
        };
        evidence.faulting_function(|row, _| adds_memory(row) && creates(row))
    };
    let by_calls = || evidence.calling_function(|row| row.call == "mmap");
    let by_touch = || growing_function(evidence, memory);
    match memory {
        GrownMemory::Stacks => creator().or_else(by_calls).or_else(by_touch),
        _ => by_calls().or_else(by_touch),
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::{CpuWaits, Evidence, Gathered, MemoryRecheck};
    use pagewise_model::heap_graph::LeakGroup;
    use pagewise_model::heap_sample::HeapSample;
    use pagewise_model::report::CellValue;

    use super::*;
    use crate::causes::made::{activity, add_graph, evidence, verdict};
    use crate::causes::made_recordings::{calls, faults};
    use crate::sample::{resident, snapshot};
    use pagewise_model::traced::Frame;

    const HEAP: &str = "5000000-9000000 rw-p 0 0 [heap]";
    const MIB: u64 = 1 << 20;

    /// Returns evidence of a process whose heap has this number of MiB at each of 40 readings.
    fn heap_of(mib: impl Fn(u64) -> u64) -> Evidence {
        let at = |number: u64| snapshot(vec![resident(HEAP, mib(number) * MIB)]);
        let mut made = evidence(at(0), at(39));
        made.activity = activity((0..40).map(|number| mib(number) * MIB));
        made
    }

    fn found(made: &Evidence, id: &str) -> Box<Cause> {
        match verdict(made, id) {
            Verdict::Present(cause) => cause,
            other => panic!("{id}: {other:?}"),
        }
    }

    fn with_graph(mut made: Evidence, leaked: u64) -> Evidence {
        let amount = |bytes| LiveAmount { blocks: bytes / 64, bytes };
        let graph = HeapGraph {
            leaked: amount(leaked),
            reachable: amount(100 * MIB - leaked),
            ..HeapGraph::default()
        };
        add_graph(&mut made, graph);
        made
    }

    #[test]
    fn growth_without_a_scan_is_a_possible_leak_with_the_command_that_decides() {
        let made = heap_of(|number| 50 + number);
        let leak = found(&made, "leak");
        let Confidence::Possible(command) = &leak.confidence else { panic!("{leak:?}") };
        assert!(command.contains("heap scan 7 --leaks"), "{command}");
        assert!(matches!(verdict(&made, "unbounded-cache"), Verdict::Unknown(..)));
    }

    #[test]
    fn a_small_heap_that_doubles_is_unknown_unless_its_blocks_are_unreachable() {
        let made = heap_of(|number| 8 + number);
        assert!(matches!(verdict(&made, "leak"), Verdict::Unknown(..)));
        let reachable = with_graph(made.clone(), MIB);
        assert!(matches!(verdict(&reachable, "unbounded-cache"), Verdict::Unknown(..)));
        let leaked = with_graph(made, 38 * MIB);
        assert_eq!(found(&leaked, "leak").confidence, Confidence::Certain);
    }

    #[test]
    fn a_larger_heap_that_doubles_is_unknown_while_the_process_is_young() {
        let with = |age_seconds: u64| {
            let mut made = with_graph(heap_of(|number| 30 + number * 3 / 2), MIB);
            let age = Ok(age_seconds * 1_000_000_000);
            made.first.process.age_ns = age.clone();
            if let Gathered::Value(last) = &mut made.last {
                last.process.age_ns = age;
            }
            verdict(&made, "unbounded-cache")
        };
        assert!(matches!(with(20), Verdict::Unknown(..)));
        assert!(matches!(with(3600), Verdict::Present(_)));
    }

    #[test]
    fn growth_that_the_program_has_freed_at_the_end_is_no_cause() {
        let with = |reachable: u64| {
            let mut made = heap_of(|number| 50 + number);
            let bytes = reachable * MIB;
            let reachable = LiveAmount { blocks: bytes / 64, bytes };
            add_graph(&mut made, HeapGraph { reachable, ..HeapGraph::default() });
            made
        };
        assert!(matches!(verdict(&with(60), "unbounded-cache"), Verdict::Present(_)));
        for id in ["unbounded-cache", "leak"] {
            // The program dropped its cache, of which the heap keeps the pages.
            assert!(matches!(verdict(&with(4), id), Verdict::RuledOut(_)), "{id}");
        }
    }

    #[test]
    fn growth_that_many_functions_share_is_no_leak_without_a_scan() {
        let with = |functions: u32| {
            let mut made = heap_of(|number| 50 + number);
            made.faults = faults(
                FaultKind::Anonymous,
                300,
                "[heap]",
                pagewise_model::Quadrant::PrivateAnonymous,
            );
            let Gathered::Value(recording) = &mut made.faults else { panic!("it was made") };
            let (row, frame) = (recording.rows[0], recording.frames[0].clone());
            let name = |at: u32| Some(format!("phase_{at}"));
            recording.frames =
                (0..functions).map(|at| Frame { function: name(at), ..frame.clone() }).collect();
            recording.stacks = (0..functions).map(|at| vec![at]).collect();
            recording.rows = (0..functions).map(|stack| FaultRow { stack, ..row }).collect();
            verdict(&made, "leak")
        };
        assert!(matches!(with(1), Verdict::Present(_)));
        assert!(matches!(with(4), Verdict::Unknown(..)));
    }

    #[test]
    fn unreachable_blocks_of_the_size_of_the_growth_are_a_leak() {
        let made = with_graph(heap_of(|number| 50 + number), 45 * MIB);
        let leak = found(&made, "leak");
        assert_eq!(leak.confidence, Confidence::Certain);
        assert_eq!(leak.cost.bytes, Some(Bytes::mib(45)));
        assert!(matches!(verdict(&made, "unbounded-cache"), Verdict::RuledOut(_)));
    }

    fn with_recheck(mut made: Evidence, changed: u64) -> Evidence {
        let recheck = MemoryRecheck { parts: 256, changed, after_ns: 1_000_000_000 };
        made.leak_recheck = Gathered::Value(recheck);
        made
    }

    #[test]
    fn blocks_that_the_program_still_changes_are_no_certain_leak() {
        let growing = |changed| {
            let made = with_graph(heap_of(|number| 50 + number), 45 * MIB);
            with_recheck(made, changed)
        };
        assert_eq!(found(&growing(10), "leak").confidence, Confidence::Certain);
        assert_eq!(found(&growing(100), "leak").confidence.key(), "possible");
        assert!(matches!(verdict(&growing(100), "unbounded-cache"), Verdict::Unknown(..)));
        let constant = |changed| with_recheck(with_graph(heap_of(|_| 100), 80 * MIB), changed);
        assert_eq!(found(&constant(2), "leak").confidence.key(), "likely");
        for changed in [10, 200] {
            assert!(matches!(verdict(&constant(changed), "leak"), Verdict::Unknown(..)));
        }
        // Such blocks of less than 16 MiB are not reported.
        let few = with_recheck(with_graph(heap_of(|_| 100), MIB), 100);
        assert!(matches!(verdict(&few, "leak"), Verdict::RuledOut(_)));
    }

    #[test]
    fn slow_growth_is_a_leak_only_if_unchanged_unreachable_blocks_explain_it() {
        let slow = |kib: u64, leaked: u64| {
            let mut made = with_graph(heap_of(|_| 100), leaked << 10);
            made.activity = activity((0..40).map(|number| 100 * MIB + number * (kib << 10) / 39));
            made
        };
        let leak = with_recheck(slow(800, 2000), 0);
        assert_eq!(found(&leak, "leak").confidence.key(), "likely");
        for other in
            [slow(800, 2000), with_recheck(slow(800, 2000), 128), with_recheck(slow(800, 100), 0)]
        {
            let Verdict::Unknown(why, next) = verdict(&other, "leak") else { panic!("present") };
            assert!(why.contains("only by 800 KiB") && next.contains("--for 1m"), "{why} {next}");
        }
        let hardly = with_recheck(slow(200, 2000), 0);
        assert!(matches!(verdict(&hardly, "leak"), Verdict::RuledOut(_)));
    }

    #[test]
    fn reachable_growth_is_a_container_and_no_leak() {
        let made = with_graph(heap_of(|number| 50 + number), MIB);
        assert!(matches!(verdict(&made, "leak"), Verdict::RuledOut(_)));
        assert_eq!(found(&made, "unbounded-cache").confidence.key(), "likely");
    }

    #[test]
    fn growth_of_free_blocks_is_no_container() {
        let with = |low, high| {
            let mut made = with_graph(heap_of(|number| 100 + number), MIB);
            let live = BytesEstimate { low: Bytes::mib(low), high: Bytes::mib(high) };
            let sample = HeapSample { live, ..HeapSample::default() };
            made.first.heap_sample = Ok(sample);
            made
        };
        // The scan finds 112 MiB of live blocks including headers, and the heap grew by 39 MiB.
        let full = with(90, 125);
        assert!(matches!(verdict(&full, "unbounded-cache"), Verdict::RuledOut(_)));
        assert!(matches!(verdict(&full, "leak"), Verdict::RuledOut(_)));
        found(&with(60, 64), "unbounded-cache");
        // The bounds of the sample are too wide to exclude growth of live blocks.
        found(&with(40, 200), "unbounded-cache");
    }

    #[test]
    fn blocks_that_registers_may_hold_are_no_leak_if_registers_are_unknown() {
        let group = LeakGroup {
            leaks: 8,
            blocks: 80_000,
            bytes: 80 * MIB,
            size: 80_000,
            block_type: None,
            address: 0,
            first_bytes: Vec::new(),
            stack: Err(pagewise_model::heap_graph::not_recorded()),
        };
        let with_stops = |stops, leaks| {
            let mut made = with_graph(heap_of(|_| 100), 80 * MIB);
            if let Gathered::Value(scan) = &mut made.scan {
                scan.copy.stops = stops;
                let group = LeakGroup { leaks, ..group.clone() };
                scan.graph.as_mut().unwrap().leaks = vec![group];
            }
            verdict(&made, "leak")
        };
        assert!(matches!(with_stops(1, 8), Verdict::Present(_)));
        assert!(matches!(with_stops(0, 8), Verdict::RuledOut(_)));
        assert!(matches!(with_stops(0, 8000), Verdict::Present(_)));
    }

    #[test]
    fn many_blocks_behind_few_lost_ones_are_a_container_that_was_changing() {
        let with_leaks = |leaks| {
            let mut made = with_graph(heap_of(|number| 50 + number), 80 * MIB);
            if let Gathered::Value(scan) = &mut made.scan {
                scan.heap.corrupted = 1;
                scan.graph.as_mut().unwrap().leaks = vec![LeakGroup {
                    leaks,
                    blocks: 370_000,
                    bytes: 80 * MIB,
                    size: 104,
                    block_type: None,
                    address: 0,
                    first_bytes: Vec::new(),
                    stack: Err(pagewise_model::heap_graph::not_recorded()),
                }];
            }
            made
        };
        found(&with_leaks(119), "unbounded-cache");
        assert!(matches!(verdict(&with_leaks(119), "leak"), Verdict::RuledOut(_)));
        found(&with_leaks(37_000), "leak");
    }

    #[test]
    fn unreachable_blocks_of_a_copy_that_contradicts_itself_are_no_proof() {
        let with = |corrupted| {
            let mut made = with_graph(heap_of(|_| 100), 80 * MIB);
            if let Gathered::Value(scan) = &mut made.scan {
                scan.heap.corrupted = corrupted;
                scan.graph.as_mut().unwrap().leaks = vec![LeakGroup {
                    leaks: 80_000,
                    blocks: 80_000,
                    bytes: 80 * MIB,
                    size: 1048,
                    block_type: None,
                    address: 0,
                    first_bytes: Vec::new(),
                    stack: Err(pagewise_model::heap_graph::not_recorded()),
                }];
            }
            verdict(&made, "leak")
        };
        assert!(matches!(with(0), Verdict::Present(_)));
        assert!(matches!(with(2), Verdict::RuledOut(_)));
    }

    #[test]
    fn more_unreachable_blocks_than_free_ones_are_a_leak_of_a_copy_that_contradicts_itself() {
        let with = |free: u64, size: u64| {
            let mut made = with_graph(heap_of(|number| 50 + number), 80 * MIB);
            let free = BytesEstimate { low: Bytes::ZERO, high: Bytes::mib(free) };
            let sample =
                HeapSample { allocator: "glibc".to_owned(), free, ..HeapSample::default() };
            made.first.heap_sample = Ok(sample);
            let Gathered::Value(scan) = &mut made.scan else { panic!("it was made") };
            scan.heap.corrupted = 2;
            scan.graph.as_mut().unwrap().leaks = vec![LeakGroup {
                leaks: 80_000,
                blocks: 80_000,
                bytes: 80 * MIB,
                size,
                block_type: None,
                address: 0,
                first_bytes: Vec::new(),
                stack: Err(pagewise_model::heap_graph::not_recorded()),
            }];
            found(&made, "leak").confidence
        };
        assert_eq!(with(4, 984), Confidence::Certain);
        assert_eq!(with(70, 984).key(), "possible", "free blocks may explain it");
        assert_eq!(with(4, 104).key(), "possible", "so may blocks in fastbins");
    }

    #[test]
    fn slow_growth_of_a_fragmented_heap_may_be_its_gaps() {
        let with = |mib: fn(u64) -> u64, most_live: u64, reachable: u64| {
            let mut made = with_graph(heap_of(mib), MIB / 10);
            let size = |low, high| BytesEstimate { low: Bytes::mib(low), high: Bytes::mib(high) };
            let sample = HeapSample {
                live: size(3, most_live),
                free: size(70, 97),
                pinned: size(60, 90),
                ..HeapSample::default()
            };
            made.first.heap_sample = Ok(sample.clone());
            if let Gathered::Value(last) = &mut made.last {
                last.heap_sample = Ok(sample);
            }
            let Gathered::Value(scan) = &mut made.scan else { panic!("it was made") };
            let bytes = reachable * MIB;
            scan.graph.as_mut().unwrap().reachable = LiveAmount { blocks: 1000, bytes };
            made
        };
        let slow = with(|number| 100 + number / 10, 30, 17);
        assert!(matches!(verdict(&slow, "unbounded-cache"), Verdict::Unknown(..)));
        found(&slow, "fragmented-heap");
        found(&with(|number| 100 + number, 5, 60), "unbounded-cache");
    }

    #[test]
    fn a_cache_that_is_full_after_a_while_is_healthy() {
        for full in [4, 10, 20, 28] {
            let made = heap_of(|number| 50 + number.min(full));
            assert!(matches!(verdict(&made, "leak"), Verdict::RuledOut(_)), "{full}");
        }
    }

    #[test]
    fn a_program_that_grows_less_and_less_is_healthy() {
        // cc1plus (C++ compiler) with a large file, one reading every 0.75 s.
        for grown in [
            [129, 139, 151, 159, 169, 179, 190, 198, 208, 212, 214, 217, 219, 221],
            [161, 183, 199, 213, 218, 224, 230, 232, 236, 240, 246, 252, 258, 264],
        ] {
            let mib = |number: u64| grown[usize::try_from(number / 3).unwrap()];
            assert!(matches!(verdict(&heap_of(mib), "leak"), Verdict::RuledOut(_)), "{grown:?}");
        }
    }

    #[test]
    fn a_young_program_that_computes_without_waiting_may_release_its_memory_at_its_end() {
        let on = |cpu_waits: CpuWaits, waits: u64, age_seconds: u64| {
            let at = |mib: u64| {
                let line = format!("7f0000000000-{:x} rw-p 0 0 ", 0x7f00_0000_0000 + mib * MIB);
                let mut made = snapshot(vec![resident(&line, mib * MIB)]);
                made.process.age_ns = Ok(age_seconds * 1_000_000_000);
                made
            };
            let mut made = evidence(at(50), at(89));
            made.activity = activity((50..90).map(|mib| mib * MIB));
            for (number, point) in (0..).zip(&mut made.activity) {
                // On a busy machine, the process gets one twentieth of a CPU.
                let share = if cpu_waits.waited_ns > 0 { 20 } else { 1 };
                point.user_ns = number * 200_000_000 / share;
                point.main_thread_waits = Ok(number * waits);
            }
            made.cpu_waits = Gathered::Value(cpu_waits);
            verdict(&made, "mapping-growth")
        };
        let with = |waits, age_seconds| on(CpuWaits::default(), waits, age_seconds);
        let busy = CpuWaits { ran_ns: 400_000_000, waited_ns: 7_600_000_000, undelayed_ns: None };
        assert!(matches!(on(busy, 0, 20), Verdict::Unknown(..)));
        assert!(matches!(with(0, 20), Verdict::Unknown(..)));
        assert!(matches!(with(0, 3600), Verdict::Present(_)), "a service under load");
        assert!(matches!(with(25, 20), Verdict::Present(_)), "it waits for requests");
    }

    #[test]
    fn a_heap_that_is_collected_is_healthy() {
        let made = heap_of(|number| 50 + number % 10 * 8 + number / 10);
        assert!(matches!(verdict(&made, "leak"), Verdict::RuledOut(_)));
    }

    #[test]
    fn a_leak_in_bursts_is_a_leak() {
        let made = heap_of(|number| 50 + number / 8 * 5);
        found(&made, "leak");
    }

    #[test]
    fn mappings_that_grow_with_their_address_space_are_no_leak_of_malloc() {
        let at = |mib: u64| {
            let line = format!("7f0000000000-{:x} rw-p 0 0 ", 0x7f00_0000_0000 + mib * MIB);
            snapshot(vec![resident(HEAP, MIB), resident(&line, mib * MIB)])
        };
        let mut made = evidence(at(50), at(89));
        made.activity = activity((50..90).map(|mib| mib * MIB));
        assert_eq!(found(&made, "mapping-growth").confidence.key(), "likely");
        assert!(matches!(verdict(&made, "leak"), Verdict::RuledOut(_)));
    }

    #[test]
    fn mappings_that_a_program_of_a_runtime_asks_for_are_no_heap_of_the_runtime() {
        let at = |mib: u64| {
            let line = format!("7f0000000000-{:x} rw-p 0 0 ", 0x7f00_0000_0000 + mib * MIB);
            let mut made = snapshot(vec![resident(&line, mib * MIB)]);
            made.process.exe = Ok("/usr/bin/python3".into());
            made
        };
        let with = |function: &str| {
            let mut made = evidence(at(50), at(89));
            made.activity = activity((50..90).map(|mib| mib * MIB));
            made.calls = calls(&[("mmap", 0, 39 * 256)], 0);
            let Gathered::Value(profile) = &mut made.calls else { panic!("it was made") };
            profile.frames[0].function = Some(function.to_owned());
            made
        };
        found(&with("syscall.mmap"), "mapping-growth");
        let mapped = with("new_mmap_object");
        assert_eq!(found(&mapped, "mapping-growth").object.function(), Some("new_mmap_object"));
        assert!(matches!(verdict(&mapped, "foreign-heap"), Verdict::RuledOut(_)));
        found(
            &with("v8::internal::BackingStore::TryAllocateAndPartiallyCommitMemory(int)"),
            "mapping-growth",
        );
        let objects = with("_PyObject_Arena");
        assert!(matches!(verdict(&objects, "mapping-growth"), Verdict::RuledOut(_)));
        found(&objects, "foreign-heap");
    }

    #[test]
    fn a_reserved_buffer_that_is_filled_is_no_growth_of_mappings() {
        let at =
            |mib: u64| snapshot(vec![resident("7f0000000000-7f0010000000 rw-p 0 0 ", mib * MIB)]);
        let mut made = evidence(at(50), at(89));
        made.activity = activity((50..90).map(|mib| mib * MIB));
        assert!(matches!(verdict(&made, "mapping-growth"), Verdict::RuledOut(_)));
    }

    #[test]
    fn the_sentence_has_the_time_until_the_limit() {
        let mut made = heap_of(|number| 50 + number);
        if let Gathered::Value(last) = &mut made.last {
            last.machine.mem_available = Ok(Bytes::mib(400));
        }
        let leak = found(&made, "leak");
        let says = |words: &str| {
            leak.sentence.iter().any(|it| matches!(it, CellValue::Text(it) if it.contains(words)))
        };
        assert!(says("100 seconds"), "{:?}", leak.sentence);
        assert!(leak.cost.risk > 0.9, "{:?}", leak.cost);
    }
}
