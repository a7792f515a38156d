//! Findings about the heap of a process that another process scanned.

use pagewise_model::Bytes;
use pagewise_model::heap_graph::LeakGroup;
use pagewise_model::heap_scan::{HeapAllocator, HeapScan, WalkedArena, WalkedHeap};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{CellValue, Finding, Severity};

use super::{FindingRule, bytes, fact, finding, size};
use crate::cells::{share, text};
use crate::heap::frames::{allocator, frame_cell};
use crate::heap_scan::pinned;

/// Rules of this module. Findings of the same severity are reported in this order.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::HeapScan(corrupted),
    FindingRule::HeapScan(leaked),
    FindingRule::HeapScan(trimmable),
    FindingRule::HeapScan(fragmented),
    FindingRule::HeapScan(cached),
    FindingRule::HeapScan(many_arenas),
    FindingRule::HeapScan(not_walked),
];

/// Minimum number of bytes for a finding: smaller amounts are not a memory problem.
pub(super) const LARGE: Bytes = Bytes::mib(8);
/// Minimum share of the resident heap for a finding.
pub(super) const PART: f64 = 0.2;
/// Minimum share of leaked bytes in the live bytes for a finding.
const LEAKED_PART: f64 = 0.01;
/// Minimum number of arenas, without the main arena, for a finding.
const MANY_ARENAS: u64 = 8;

/// Advice for a program whose heap has free pages.
pub(super) const TRIM_IN_PROGRAM: &str = "In the program, call `malloc_trim(0)` after the peak, or set `MALLOC_TRIM_THRESHOLD_` and `MALLOC_ARENA_MAX` lower. \
     Do not if the program soon needs the memory again: each page is then faulted in anew.";
/// Advice for a program whose live blocks pin pages.
pub(super) const COPY_SURVIVORS: &str = "Allocate long-lived blocks from a pool of their own, or copy the survivors after the peak and free the originals. \
     Releasing free pages does not help here. `pagewise heap run` shows the functions whose blocks pin pages.";

/// Advice for an allocator: calls and settings that reduce its free memory.
pub(crate) struct AllocatorAdvice {
    name: &'static str,
    /// Call that releases free pages.
    pub(crate) release: &'static str,
    /// Settings with which the allocator itself releases more pages.
    settings: &'static str,
    /// Change that makes thread caches smaller.
    caches: &'static str,
    /// Setting that reduces the number of arenas; `None` if threads have no arenas, or if no
    /// setting limits the number.
    arenas: Option<&'static str>,
}

const ALLOCATORS: [AllocatorAdvice; 3] = [
    AllocatorAdvice {
        name: "glibc",
        release: "malloc_trim(0)",
        settings: "set `MALLOC_TRIM_THRESHOLD_` and `MALLOC_ARENA_MAX` lower",
        caches: "Set the tunable `glibc.malloc.tcache_count` lower (GLIBC_TUNABLES)",
        arenas: Some("MALLOC_ARENA_MAX=2"),
    },
    AllocatorAdvice {
        name: "jemalloc",
        release: "mallctl(\"arena.4096.purge\")",
        settings: "set `MALLOC_CONF=background_thread:true,dirty_decay_ms:1000`",
        caches: "Set `MALLOC_CONF=tcache_max:4096` (in 5.2 `lg_tcache_max:12`), call `mallctl(\"thread.tcache.flush\")` in threads that become idle",
        arenas: Some("MALLOC_CONF=narenas:2"),
    },
    AllocatorAdvice {
        name: "tcmalloc",
        release: "MallocExtension_ReleaseFreeMemory()",
        settings: "set `TCMALLOC_RELEASE_RATE=10`",
        caches: "Set `TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES` lower",
        arenas: None,
    },
];

/// True if an allocator has a call that releases free pages.
pub(crate) fn can_release(allocator: &str) -> bool {
    ALLOCATORS.iter().any(|it| it.name == allocator)
}

/// Returns the advice for the allocator with the largest sum of `measure`; `None` if no advice
/// exists for that allocator. Scans by earlier versions of pagewise do not name the allocator,
/// which is glibc.
pub(crate) fn advice(
    heap: &WalkedHeap,
    measure: fn(&WalkedArena) -> u64,
) -> Option<&'static AllocatorAdvice> {
    let bytes = |(index, _): &(usize, &HeapAllocator)| -> u64 {
        heap.arenas.iter().filter(|arena| arena.allocator == *index).map(measure).sum()
    };
    let largest = heap.allocators.iter().enumerate().rev().max_by_key(bytes);
    let name = largest.map_or("glibc", |(_, allocator)| allocator.name.as_str());
    ALLOCATORS.iter().find(|it| it.name == name)
}

fn is_large(scan: &HeapScan, amount: Bytes) -> bool {
    let part = amount.fraction_of(scan.heap.resident());
    amount >= LARGE && part.is_some_and(|part| part >= PART)
}

/// Reports contradictions in the allocator's data.
fn corrupted(scan: &HeapScan) -> Option<Finding> {
    let first = scan.heap.corruption.first()?;
    let mut evidence = vec![
        fact("contradictions", "contradictions", CellValue::Count(scan.heap.corrupted), ""),
        fact("block", "first block", CellValue::Address(first.block), ""),
        fact("address", "wrong word at", CellValue::Address(first.address), ""),
        fact("expected", "expected", CellValue::text(first.expected.clone()), ""),
        fact("found", "found", CellValue::Address(first.found), ""),
    ];
    if scan.may_be_in_change() {
        let threads = CellValue::Count(scan.copy.unsettled_threads);
        evidence.push(fact("unsettled", "threads inside of malloc", threads, ""));
        return Some(finding(
            "heap-in-change",
            Severity::Note,
            [text(
                "The allocator's data contradicts itself, and a thread may have been changing it at the time of the scan.",
            )],
            evidence,
            vec![text(
                "Scan again: if the contradictions remain at the same addresses, the heap is corrupted.",
            )],
        ));
    }
    Some(finding(
        "heap-corrupted",
        Severity::Critical,
        [
            text("The heap is corrupted: the allocator's data contradicts itself in "),
            CellValue::Count(scan.heap.corrupted),
            text(" places. The program has written outside of its blocks, or freed a block twice."),
        ],
        evidence,
        vec![text(
            "Run the program under `pagewise guard -- CMD`, which reports the first wrong access with its call stack.",
        )],
    ))
}

/// Reports free pages that a call of the allocator would release. A core file is skipped, because
/// it does not record which pages were resident.
fn trimmable(scan: &HeapScan) -> Option<Finding> {
    let trimmable = scan.heap.trimmable();
    if scan.moment == ProcessMoment::CoreDumped || !is_large(scan, trimmable) {
        return None;
    }
    let resident = scan.heap.resident();
    let top: Bytes = scan.heap.arenas.iter().map(|arena| arena.trimmable_top).sum();
    let AllocatorAdvice { release, settings, .. } = advice(&scan.heap, |arena| arena.trimmable.0)?;
    Some(finding(
        "trimmable-heap",
        Severity::Warning,
        [
            bytes(trimmable),
            text(" of the heap are whole free pages: "),
            share(trimmable.0, resident.0),
            CellValue::text(format!(
                " of its resident memory. `{release}` returns them to the system."
            )),
        ],
        [
            size("resident", "resident heap", resident),
            size("live", "live", Bytes(scan.heap.live().bytes)),
            size("trimmable", "trimmable", trimmable),
            size("top", "part at the end of the heap", top),
        ],
        vec![
            CellValue::text(match scan.moment {
                ProcessMoment::Running => format!(
                    "Run `pagewise trim {} --heap --yes`, which makes the running process call `{release}`. ",
                    scan.process.pid
                ),
                _ => String::new(),
            }),
            CellValue::text(format!(
                "In the program, call `{release}` after the peak, or {settings}. \
                 Do not if the program soon needs the memory again: each page is then faulted in anew."
            )),
        ],
    ))
}

/// Reports blocks that no root reaches. `None` if a part of the memory was not read, because
/// pointers in the unread part may reach the blocks.
fn leaked(scan: &HeapScan) -> Option<Finding> {
    let graph = scan.graph.as_ref().filter(|graph| graph.unseen.is_zero())?;
    let (leaked, live) = (Bytes(graph.leaked.bytes), Bytes(scan.heap.live().bytes));
    let first = graph.leaks.first()?;
    if leaked.fraction_of(live).is_none_or(|part| part < LEAKED_PART) {
        return None;
    }
    let mut claim = vec![
        text("Memory leak: "),
        bytes(leaked),
        text(" in "),
        CellValue::Count(graph.leaked.blocks),
        text(if graph.leaked.blocks == 1 { " block is live" } else { " blocks are live" }),
        text(", and no register, stack, variable or mapping leads to them."),
    ];
    let function = first.stack.as_ref().ok().and_then(|stack| allocator(stack)).map(frame_cell);
    if let Some(function) = &function {
        let group = text(" The largest group of these blocks was allocated by ");
        claim.extend([group, function.clone(), text(".")]);
    }
    Some(finding(
        "leaked-blocks",
        Severity::Warning,
        claim,
        [
            size("leaked", "leaked", leaked),
            size("live", "live", live),
            size("size", "most bytes in leaks of blocks of", Bytes(first.size)),
            fact("leaks", "leaks of this size", CellValue::Count(first.leaks), ""),
        ],
        leak_advice(first, function),
    ))
}

/// Advises a change of the program for its largest group of leaked blocks. `function` is the
/// function that allocated the blocks, if it is known.
fn leak_advice(group: &LeakGroup, function: Option<CellValue>) -> Vec<CellValue> {
    let mut advice = match function {
        Some(function) => vec![
            text("Free the blocks of "),
            function,
            text(" before the last pointer to them is gone, which saves "),
            bytes(Bytes(group.bytes)),
            text(". `--json` prints its callers (`leaks[].stack`)."),
        ],
        None => vec![text(
            "Run the program with `pagewise heap run` to find the call stacks that allocate blocks of this size.",
        )],
    };
    advice.push(text(
        " Programs that store pointers compressed or encrypted do not leak these blocks.",
    ));
    advice
}

/// Reports pages that a few live blocks pin.
fn fragmented(scan: &HeapScan) -> Option<Finding> {
    let heap = &scan.heap;
    let arenas = || heap.arenas.iter();
    let resident: Bytes = arenas().map(|arena| arena.resident).sum();
    let pinned: Bytes = arenas().map(pinned).sum();
    if !is_large(scan, pinned) {
        return None;
    }
    let gap = arenas().map(|arena| arena.largest_gap).max().unwrap_or_default();
    let blocks = arenas().map(|arena| arena.live.blocks).sum();
    Some(finding(
        "fragmented-heap",
        Severity::Warning,
        [
            text("Memory fragmentation: "),
            bytes(pinned),
            text(" of the heap are free and cannot be returned, because they share pages with "),
            CellValue::Count(blocks),
            text(" live blocks of "),
            bytes(Bytes(arenas().map(|arena| arena.live.bytes).sum())),
            text("."),
        ],
        [
            size("resident", "resident in arenas", resident),
            size("live", "live chunks", arenas().map(|arena| arena.live_chunks).sum()),
            size("trimmable", "trimmable", heap.trimmable()),
            size("largest_gap", "largest gap between live blocks", gap),
        ],
        vec![text(COPY_SURVIVORS)],
    ))
}

/// Reports free blocks in thread caches.
fn cached(scan: &HeapScan) -> Option<Finding> {
    let cached = Bytes(scan.heap.free().tcache);
    let caches = advice(&scan.heap, |arena| arena.free.tcache).map(|it| it.caches);
    is_large(scan, cached).then(|| {
        finding(
            "thread-caches",
            Severity::Note,
            [bytes(cached), text(" of the heap are free blocks in thread caches, which other threads cannot use.")],
            [size("cached", "in thread caches", cached)],
            vec![CellValue::text(match caches {
                Some(caches) => format!(
                    "{caches}, or let idle threads end: a thread's cache is freed at its end."
                ),
                None => "Let idle threads end: a thread's cache is freed at its end.".to_owned(),
            })],
        )
    })
}

/// Resident free bytes of an arena. In a core file, all bytes that the file holds count.
fn resident_free(arena: &WalkedArena) -> Bytes {
    (pinned(arena) + arena.trimmable).min(Bytes(arena.free.total()))
}

/// Reports arenas whose free memory other threads cannot use.
fn many_arenas(scan: &HeapScan) -> Option<Finding> {
    let others: Vec<&WalkedArena> =
        scan.heap.arenas.iter().filter(|arena| !arena.is_main).collect();
    let free: Bytes = others.iter().map(|arena| resident_free(arena)).sum();
    if (others.len() as u64) < MANY_ARENAS || !is_large(scan, free) {
        return None;
    }
    let setting = advice(&scan.heap, |arena| resident_free(arena).0)?.arenas?;
    let idle = others.iter().filter(|arena| arena.threads == 0).count() as u64;
    Some(finding(
        "arena-heavy",
        Severity::Note,
        [
            CellValue::Count(others.len() as u64),
            text(" thread arenas hold "),
            bytes(free),
            text(" of free resident memory, which threads of other arenas cannot use."),
        ],
        [
            fact("arenas", "thread arenas", CellValue::Count(others.len() as u64), ""),
            fact("idle", "arenas without a thread", CellValue::Count(idle), ""),
            size("free", "free and resident in them", free),
        ],
        vec![CellValue::text(format!(
            "Start the program with `{setting}`: less memory, more waiting for locks if many threads allocate at once."
        ))],
    ))
}

/// Reports parts of the heap that could not be walked.
fn not_walked(scan: &HeapScan) -> Option<Finding> {
    let missing: Bytes = scan.heap.gaps.iter().map(|gap| gap.bytes).sum();
    (!missing.is_zero()).then(|| {
        finding(
            "heap-not-walked",
            Severity::Note,
            [
                bytes(missing),
                text(" of the heap could not be walked, so that all sums are lower bounds."),
            ],
            [
                size("missing", "not walked", missing),
                size("swapped", "in swap", scan.copy.swapped),
                fact("ranges", "ranges", CellValue::Count(scan.heap.gaps.len() as u64), ""),
            ],
            vec![text(
                "Bring swapped memory back (`swapoff -a`, then `swapon -a`) and scan again.",
            )],
        )
    })
}

#[cfg(test)]
mod tests {
    use pagewise_model::heap_scan::FreeBytes;

    use super::*;
    use crate::sample;

    /// Returns a scan of ten arenas of 32 MiB each. Almost all of each arena is free, and
    /// `resident` bytes of each arena are resident.
    fn arenas_of(allocator: &str, resident: Bytes) -> HeapScan {
        let allocator = HeapAllocator { name: allocator.to_owned(), ..HeapAllocator::default() };
        let arena = |index: u64| WalkedArena {
            is_main: index == 0,
            held: Bytes::mib(32),
            resident,
            live_chunks: Bytes::kib(40),
            free: FreeBytes { pages: 31 << 20, ..FreeBytes::default() },
            ..WalkedArena::default()
        };
        let arenas = (0..10).map(arena).collect();
        let allocators = vec![allocator];
        sample::heap_scan(WalkedHeap { arenas, allocators, ..WalkedHeap::default() })
    }

    fn next_step(finding: &Finding) -> String {
        format!("{:?}", finding.next_step)
    }

    #[test]
    fn fewer_arenas_are_advised_only_where_the_allocator_has_a_setting_for_them() {
        let finding_of = |name| many_arenas(&arenas_of(name, Bytes::mib(16)));
        let [glibc, jemalloc] = ["glibc", "jemalloc"].map(|name| finding_of(name).unwrap());
        assert!(next_step(&glibc).contains("MALLOC_ARENA_MAX"));
        assert!(next_step(&jemalloc).contains("narenas"));
        for other in ["mimalloc", "tcmalloc", "musl"] {
            assert!(finding_of(other).is_none(), "{other} has no such setting");
        }
    }

    #[test]
    fn free_arena_memory_that_is_not_resident_is_not_a_finding() {
        assert!(many_arenas(&arenas_of("glibc", Bytes::kib(100))).is_none());
    }

    #[test]
    fn no_call_of_one_allocator_is_advised_for_another() {
        let cached = |name| {
            let mut scan = arenas_of(name, Bytes::mib(32));
            for arena in &mut scan.heap.arenas {
                arena.free = FreeBytes { tcache: 30 << 20, ..FreeBytes::default() };
                arena.trimmable = Bytes::mib(20);
            }
            (cached(&scan).unwrap(), trimmable(&scan))
        };
        let (caches, trim) = cached("glibc");
        assert!(next_step(&caches).contains("glibc.malloc.tcache_count") && trim.is_some());
        let (caches, trim) = cached("mimalloc");
        assert!(!next_step(&caches).contains("glibc") && trim.is_none());
    }
}
