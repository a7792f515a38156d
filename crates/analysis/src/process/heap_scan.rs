//! The present heap of a process: live blocks, free memory between them, and the free memory that
//! the allocator could release.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::Bytes;
use pagewise_model::heap_scan::{
    FreeBytes, HeapAllocator, HeapScan, LiveAmount, LiveSize, LiveType, MappedBlocks,
    RefusedAllocator, UnreadLists, WalkedArena, WalkedHeap,
};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Findings, Label, NamedFacts, Paragraph,
    Report, ReportBlock, ReportTable, TableColumn,
};

use crate::blocks::{facts_of, first, for_programs, table};
use crate::cells::{share, text};
use crate::explain::{fact, who};
use crate::findings::heap_scan::{advice, can_release};
use crate::findings::{Evidence, find};
use crate::heap_graph;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.heap-scan/1";

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapScanOptions {
    /// Maximum number of rows of each table; `None` for all.
    pub limit: Option<usize>,
}

/// Reports a scan: a verdict, `findings`, `process`, `scan`, `live`, `free`, `arenas`, `mapped`,
/// `sizes`, `page_use`, `corruption`, `gaps`, and `pause_us`. With an earlier scan of the same
/// process, the report also has `growth` and `grown`. If pointers were searched, it also has
/// `leaked`, `leaks`, `reachable`, `retained` and `why`.
pub fn heap_scan(scan: &HeapScan, earlier: Option<&HeapScan>, options: &HeapScanOptions) -> Report {
    let mut blocks = vec![ReportBlock::Text(verdict(scan))];
    if let Some(earlier) = earlier {
        blocks.push(ReportBlock::Facts(growth(earlier, scan)));
        blocks.push(ReportBlock::Table(grown(earlier, scan, options)));
    }
    if let Some(graph) = &scan.graph {
        blocks.extend(heap_graph::blocks(graph, options.limit));
    }
    blocks.extend([
        ReportBlock::Findings(Findings {
            list: find(Evidence::HeapScan(scan)),
            none: "Nothing stands out.".into(),
        }),
        ReportBlock::Facts(who::process(&scan.process)),
        ReportBlock::Facts(live(scan.heap.live())),
        ReportBlock::Facts(free(scan)),
        ReportBlock::Facts(unclear(&scan.heap.unread_lists)),
        ReportBlock::Table(allocators(&scan.heap.allocators)),
        ReportBlock::Table(refused(&scan.heap.refused)),
        ReportBlock::Table(arenas(&scan.heap)),
        ReportBlock::Facts(mapped(&scan.heap.mapped)),
        ReportBlock::Table(sizes(&scan.heap.sizes, options)),
        ReportBlock::Table(objects(&scan.heap.objects, options)),
        ReportBlock::Table(page_use(scan)),
        ReportBlock::Table(corruption(scan, options)),
        ReportBlock::Table(gaps(scan)),
        ReportBlock::Facts(scan_facts(scan)),
        ReportBlock::Facts(pause(scan)),
    ]);
    Report { schema: SCHEMA, title: who::title_of("Heap", &scan.process, ""), blocks }
}

/// Builds the conclusion in one paragraph.
fn verdict(scan: &HeapScan) -> Paragraph {
    let heap = &scan.heap;
    let (live, resident) = (heap.live(), heap.resident());
    // The pages of a core file are the pages that were written into it, whether or not they were
    // resident.
    let (held, trimmable) = match scan.moment {
        ProcessMoment::CoreDumped => {
            (" of heap are in the core file, ", text("Whole pages of free chunks hold "))
        }
        _ => {
            let words = match advice(heap, |arena| arena.trimmable.0) {
                Some(advice) => format!("`{}` would return ", advice.release),
                None => "Whole free pages hold ".to_owned(),
            };
            (" of heap are resident, ", CellValue::text(words))
        }
    };
    let mut pieces = Vec::new();
    for refused in &heap.refused {
        let words =
            format!("The blocks of {} could not be found and are not counted. ", refused.name);
        pieces.push(CellValue::text(words));
    }
    pieces.extend([
        CellValue::Bytes(resident.0),
        text(held),
        CellValue::Bytes(live.bytes),
        text(" of them live in "),
        CellValue::Count(live.blocks),
        text(" blocks. "),
    ]);
    if has_trim(heap) {
        let bytes = CellValue::Bytes(heap.trimmable().0);
        pieces.extend([trimmable, bytes, text(". ")]);
    }
    let pinned: Bytes = heap.arenas.iter().map(pinned).sum();
    pieces.extend([
        CellValue::Bytes(pinned.0),
        text(
            " are free in pages that also hold live blocks, or are kept for the next allocations.",
        ),
    ]);
    let unclear = heap.unread_lists.unclear;
    if unclear.blocks > 0 {
        pieces.extend([
            text(" Up to "),
            CellValue::Count(unclear.blocks),
            text(" of the live blocks ("),
            CellValue::Bytes(unclear.bytes),
            text(") may be free: a list of free blocks could not be read."),
        ]);
    }
    if heap.corrupted > 0 {
        pieces.extend([
            text(" The allocator's data contradicts itself in "),
            CellValue::Count(heap.corrupted),
            text(" places."),
        ]);
    }
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

/// Resident free bytes of an arena that `malloc_trim(0)` would keep. If a live block of this arena
/// contains the memory of another allocator, the pages of the block count as resident in the arenas
/// of the other allocator.
pub(crate) fn pinned(arena: &WalkedArena) -> Bytes {
    let used = arena.live_chunks + arena.own;
    arena.resident.saturating_sub(used).saturating_sub(arena.trimmable)
}

/// True if an allocator of the heap has a call that releases free pages. Scans by earlier versions
/// of pagewise do not name the allocator, which is glibc.
fn has_trim(heap: &WalkedHeap) -> bool {
    heap.allocators.is_empty() || heap.allocators.iter().any(|it| can_release(&it.name))
}

fn live(live: LiveAmount) -> NamedFacts {
    let facts = vec![
        fact("blocks", "BLOCKS", CellValue::Count(live.blocks), "Live blocks."),
        fact(
            "bytes",
            "BYTES",
            CellValue::Bytes(live.bytes),
            "Usable bytes of live blocks, as malloc_usable_size returns them.",
        ),
    ];
    facts_of("live", "Live", FactsShape::Columns, facts)
}

/// Reports blocks that may be live or free, because lists of free blocks could not be read.
fn unclear(lists: &UnreadLists) -> NamedFacts {
    let UnreadLists { threads, lists, marked, unclear } = *lists;
    let facts = vec![
        fact(
            "threads",
            "THREADS",
            CellValue::Count(threads),
            "Threads whose cache of free blocks could not be read.",
        ),
        fact(
            "lists",
            "LISTS",
            CellValue::Count(lists),
            "Other lists of free blocks that could not be read to their ends.",
        ),
        fact(
            "blocks",
            "BLOCKS",
            CellValue::Count(unclear.blocks),
            "The most live blocks that may be free blocks of these caches and lists.",
        ),
        fact("bytes", "BYTES", CellValue::Bytes(unclear.bytes), "Usable bytes of these."),
        fact(
            "marked_blocks",
            "MARKED",
            CellValue::Count(marked.blocks),
            "Blocks that are marked as cached; they count as free.",
        ),
        fact("marked_bytes", "", CellValue::Bytes(marked.bytes), "").for_programs(),
    ];
    let facts = facts_of("unclear", "Unclear", FactsShape::Columns, facts);
    let audience = if threads + lists == 0 { Audience::Programs } else { facts.audience };
    NamedFacts { audience, ..facts }
}

/// A group of free bytes in the report, such as a list of free chunks.
struct FreeListRow {
    key: &'static str,
    label: &'static str,
    bytes: fn(&FreeBytes) -> u64,
    meaning: &'static str,
}

const FREE_LISTS: [FreeListRow; 10] = [
    FreeListRow {
        key: "tcache",
        label: "TCACHE",
        bytes: |free| free.tcache,
        meaning: "In caches of threads.",
    },
    FreeListRow {
        key: "fastbins",
        label: "FASTBINS",
        bytes: |free| free.fastbins,
        meaning: "In fastbins, which are not coalesced yet.",
    },
    FreeListRow {
        key: "unsorted",
        label: "UNSORTED",
        bytes: |free| free.unsorted,
        meaning: "In the unsorted bin: freed most recently.",
    },
    FreeListRow {
        key: "small_bins",
        label: "SMALL",
        bytes: |free| free.small_bins,
        meaning: "In bins of chunks below 1 KiB.",
    },
    FreeListRow {
        key: "large_bins",
        label: "LARGE",
        bytes: |free| free.large_bins,
        meaning: "In bins of larger chunks.",
    },
    FreeListRow {
        key: "top",
        label: "TOP",
        bytes: |free| free.top,
        meaning: "In the last chunk of each arena.",
    },
    FreeListRow {
        key: "unlisted",
        label: "UNLISTED",
        bytes: |free| free.unlisted,
        meaning: "Free, and in no list that could be read.",
    },
    FreeListRow {
        key: "slots",
        label: "SLOTS",
        bytes: |free| free.slots,
        meaning: "In slabs, spans and pools, beside live blocks of the same size class.",
    },
    FreeListRow {
        key: "pages",
        label: "PAGES",
        bytes: |free| free.pages,
        meaning: "In runs of whole free pages that the allocator keeps.",
    },
    FreeListRow {
        key: "retained",
        label: "RETAINED",
        bytes: |free| free.retained,
        meaning: "Addresses that the allocator keeps without memory; not part of BYTES.",
    },
];

fn free(scan: &HeapScan) -> NamedFacts {
    let free = scan.heap.free();
    let mut facts = vec![
        fact(
            "bytes",
            "BYTES",
            CellValue::Bytes(free.total()),
            "Free bytes of all arenas, headers included, resident or not.",
        ),
        fact(
            "trimmable",
            "TRIMMABLE",
            CellValue::Bytes(scan.heap.trimmable().0),
            "Resident bytes that a call would return (malloc_trim(0), or the purge of the allocator): whole free pages.",
        ),
        fact(
            "trimmable_top",
            "TRIMMABLE TOP",
            CellValue::Bytes(scan.heap.arenas.iter().map(|it| it.trimmable_top).sum::<Bytes>().0),
            "Part of these at the end of the main arena, which malloc_trim(PAD) keeps up to PAD.",
        ),
    ];
    facts.extend(FREE_LISTS.iter().map(|row| {
        let bytes = (row.bytes)(&free);
        fact(row.key, row.label, CellValue::Bytes(bytes), row.meaning).hidden_if(bytes == 0)
    }));
    facts_of("free", "Free", FactsShape::Columns, facts)
}

/// Builds the table of live blocks by allocator. People see it if the heap has several allocators.
fn allocators(allocators: &[HeapAllocator]) -> ReportTable {
    let counts = |of: fn(&HeapAllocator) -> u64| allocators.iter().map(of).collect();
    let audience = if allocators.len() > 1 { Audience::Everyone } else { Audience::Programs };
    let nested_blocks = ColumnCells::Counts(counts(|it| it.nested.blocks));
    let nested_blocks = for_programs(TableColumn::new("nested_blocks", "", nested_blocks));
    let nested_bytes = TableColumn {
        meaning: "Bytes of live blocks of another allocator in which its memory lies; they are not live there.".into(),
        ..TableColumn::new("nested_bytes", "NESTED", ColumnCells::Bytes(counts(|it| it.nested.bytes)))
    };
    let is_nested = allocators.iter().any(|it| it.nested.blocks > 0);
    let nested_bytes = if is_nested { nested_bytes } else { for_programs(nested_bytes) };
    let columns = vec![
        TableColumn::new(
            "name",
            "ALLOCATOR",
            ColumnCells::Labels(allocators.iter().map(|it| it.name.clone().into()).collect()),
        ),
        TableColumn::new("blocks", "BLOCKS", ColumnCells::Counts(counts(|it| it.live.blocks))),
        TableColumn::new("bytes", "BYTES", ColumnCells::Bytes(counts(|it| it.live.bytes))),
        nested_blocks,
        nested_bytes,
    ];
    table("allocators", "Live blocks by allocator", audience, columns)
}

fn refused(refused: &[RefusedAllocator]) -> ReportTable {
    let audience = if refused.is_empty() { Audience::Programs } else { Audience::Everyone };
    let labels = |of: fn(&RefusedAllocator) -> &String| {
        ColumnCells::Labels(refused.iter().map(|it| of(it).clone().into()).collect())
    };
    let columns = vec![
        TableColumn::new("name", "ALLOCATOR", labels(|it| &it.name)),
        TableColumn::new("why", "REASON", labels(|it| &it.why)),
    ];
    table("refused", "Allocators that could not be walked", audience, columns)
}

fn kind_of(arena: &WalkedArena) -> Label {
    match (arena.label.as_str(), arena.is_main) {
        ("", true) => "main".into(),
        ("", false) => "thread".into(),
        (label, _) => label.to_owned().into(),
    }
}

fn arenas(heap: &WalkedHeap) -> ReportTable {
    let arenas = &heap.arenas;
    let bytes = |of: fn(&WalkedArena) -> u64| ColumnCells::Bytes(arenas.iter().map(of).collect());
    let counts = |of: fn(&WalkedArena) -> u64| ColumnCells::Counts(arenas.iter().map(of).collect());
    let flags = |of: fn(&WalkedArena) -> bool| {
        ColumnCells::Values(arenas.iter().map(|arena| CellValue::Flag(of(arena))).collect())
    };
    let described = |column: TableColumn, meaning: &'static str| TableColumn {
        meaning: meaning.into(),
        ..column
    };
    let kind = arenas.iter().map(kind_of).collect();
    let name = |arena: &WalkedArena| {
        heap.allocators.get(arena.allocator).map_or_else(String::new, |it| it.name.clone()).into()
    };
    let names = ColumnCells::Labels(arenas.iter().map(name).collect());
    let names = TableColumn::new("allocator", "ALLOCATOR", names);
    let mut columns = vec![
        TableColumn::new(
            "start",
            "ARENA",
            ColumnCells::Addresses(arenas.iter().map(|arena| arena.start).collect()),
        ),
        TableColumn::new("kind", "KIND", ColumnCells::Labels(kind)),
        if heap.allocators.len() > 1 { names } else { for_programs(names) },
        described(
            TableColumn::new("held", "HELD", bytes(|arena| arena.held.0)),
            "Bytes that the arena has from the system.",
        ),
        described(
            TableColumn::new("resident", "RESIDENT", bytes(|arena| arena.resident.0)),
            "Resident part of these.",
        ),
        described(
            TableColumn::new("live", "LIVE", bytes(|arena| arena.live.bytes)),
            "Usable bytes of live blocks.",
        ),
        described(
            TableColumn::new("blocks", "BLOCKS", counts(|arena| arena.live.blocks)),
            "Live blocks.",
        ),
        described(
            TableColumn::new("free", "FREE", bytes(|arena| arena.free.total())),
            "Free bytes, headers included.",
        ),
        described(
            TableColumn::new("trimmable", "TRIMMABLE", bytes(|arena| arena.trimmable.0)),
            "Resident bytes that malloc_trim(0), or the purge of the allocator, would return.",
        ),
        described(
            TableColumn::new("largest_gap", "GAP", bytes(|arena| arena.largest_gap.0)),
            "Length of the longest range between two live blocks.",
        ),
        described(
            TableColumn::new("threads", "THREADS", counts(|arena| arena.threads)),
            "Threads that allocate from the arena.",
        ),
        for_programs(TableColumn::new(
            "state",
            "",
            ColumnCells::Addresses(arenas.iter().map(|arena| arena.state).collect()),
        )),
        for_programs(TableColumn::new("parts", "", counts(|arena| arena.parts))),
        for_programs(TableColumn::new("system", "", bytes(|arena| arena.system.0))),
        for_programs(TableColumn::new("live_chunks", "", bytes(|arena| arena.live_chunks.0))),
        for_programs(TableColumn::new("own", "", bytes(|arena| arena.own.0))),
        for_programs(TableColumn::new("threads_seen", "", flags(|arena| arena.threads_seen))),
        for_programs(TableColumn::new("locked", "", flags(|arena| arena.is_locked))),
    ];
    columns.extend(FREE_LISTS.iter().map(|row| {
        let bytes = arenas.iter().map(|arena| (row.bytes)(&arena.free)).collect();
        for_programs(TableColumn::new(row.key, "", ColumnCells::Bytes(bytes)))
    }));
    table("arenas", "Arenas", Audience::Everyone, columns)
}

fn mapped(mapped: &MappedBlocks) -> NamedFacts {
    let counted = |of: fn(LiveAmount) -> u64| {
        mapped.counted.map_or(CellValue::None, |counted| CellValue::Count(of(counted)))
    };
    let facts = vec![
        fact("blocks", "blocks", CellValue::Count(mapped.live.blocks), ""),
        fact("live", "live", CellValue::Bytes(mapped.live.bytes), ""),
        fact("cached_blocks", "", CellValue::Count(mapped.cached.blocks), "").for_programs(),
        fact("cached", "in thread caches", CellValue::Bytes(mapped.cached.bytes), "")
            .hidden_if(mapped.cached.blocks == 0),
        fact("held", "held", CellValue::Bytes(mapped.held.0), ""),
        fact("resident", "resident", CellValue::Bytes(mapped.resident.0), ""),
        fact("counted_blocks", "", counted(|it| it.blocks), "").for_programs(),
        fact("counted_bytes", "", counted(|it| it.bytes), "").for_programs(),
    ];
    facts_of("mapped", "Blocks with mappings of their own", FactsShape::Line, facts)
}

fn bytes_of(size: &LiveSize) -> u64 {
    size.size.saturating_mul(size.blocks)
}

fn sizes(sizes: &[LiveSize], options: &HeapScanOptions) -> ReportTable {
    let mut largest: Vec<&LiveSize> = sizes.iter().collect();
    largest.sort_by_key(|size| (Reverse(bytes_of(size)), size.size));
    let all: u64 = sizes.iter().map(bytes_of).fold(0, u64::saturating_add);
    let (shown, note) = first(&largest, options.limit, "--top");
    let columns = vec![
        TableColumn::new(
            "size",
            "SIZE",
            ColumnCells::Bytes(shown.iter().map(|it| it.size).collect()),
        ),
        TableColumn::new(
            "blocks",
            "BLOCKS",
            ColumnCells::Counts(shown.iter().map(|it| it.blocks).collect()),
        ),
        TableColumn::new(
            "bytes",
            "BYTES",
            ColumnCells::Bytes(shown.iter().map(|it| bytes_of(it)).collect()),
        ),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(shown.iter().map(|it| share(bytes_of(it), all)).collect()),
        ),
    ];
    ReportTable {
        note,
        ..table("sizes", "Live blocks by usable size", Audience::Everyone, columns)
    }
}

/// Builds the table of live Python objects by type.
fn objects(types: &[LiveType], options: &HeapScanOptions) -> ReportTable {
    let audience = if types.is_empty() { Audience::Programs } else { Audience::Everyone };
    let all: u64 = types.iter().map(|it| it.live.bytes).fold(0, u64::saturating_add);
    let (shown, note) = first(types, options.limit, "--top");
    let columns = vec![
        TableColumn::new(
            "type",
            "TYPE",
            ColumnCells::Names(shown.iter().map(|it| it.name.clone()).collect()),
        ),
        TableColumn::new(
            "objects",
            "OBJECTS",
            ColumnCells::Counts(shown.iter().map(|it| it.live.blocks).collect()),
        ),
        TableColumn {
            meaning: "Bytes of the blocks of the objects, without other blocks that they own."
                .into(),
            ..TableColumn::new(
                "bytes",
                "BYTES",
                ColumnCells::Bytes(shown.iter().map(|it| it.live.bytes).collect()),
            )
        },
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(shown.iter().map(|it| share(it.live.bytes, all)).collect()),
        ),
    ];
    ReportTable { note, ..table("objects", "Live Python objects by type", audience, columns) }
}

/// Labels of the shares of a page that live blocks cover.
const PAGE_USES: [&str; 9] = [
    "no live block",
    "up to 1/8",
    "up to 2/8",
    "up to 3/8",
    "up to 4/8",
    "up to 5/8",
    "up to 6/8",
    "up to 7/8",
    "up to 8/8",
];

fn page_use(scan: &HeapScan) -> ReportTable {
    let pages = &scan.heap.density;
    let all: u64 = pages.iter().sum();
    let labels = PAGE_USES.iter().take(pages.len()).map(|label| (*label).into()).collect();
    let columns = vec![
        TableColumn::new("live", "LIVE PART", ColumnCells::Labels(labels)),
        TableColumn::new("pages", "PAGES", ColumnCells::Counts(pages.clone())),
        TableColumn::new(
            "bytes",
            "BYTES",
            ColumnCells::Bytes(pages.iter().map(|it| scan.page_size.pages(*it).0).collect()),
        ),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(pages.iter().map(|it| share(*it, all)).collect()),
        ),
    ];
    table("page_use", "Resident pages of arenas by their live part", Audience::Everyone, columns)
}

fn corruption(scan: &HeapScan, options: &HeapScanOptions) -> ReportTable {
    let all = &scan.heap.corruption;
    let audience = if all.is_empty() { Audience::Programs } else { Audience::Everyone };
    let (shown, note) = first(all, options.limit, "--top");
    let columns = vec![
        TableColumn::new(
            "block",
            "BLOCK",
            ColumnCells::Addresses(shown.iter().map(|it| it.block).collect()),
        ),
        TableColumn::new(
            "address",
            "ADDRESS",
            ColumnCells::Addresses(shown.iter().map(|it| it.address).collect()),
        ),
        TableColumn::new(
            "expected",
            "EXPECTED",
            ColumnCells::Labels(shown.iter().map(|it| it.expected.clone().into()).collect()),
        ),
        TableColumn::new(
            "found",
            "FOUND",
            ColumnCells::Addresses(shown.iter().map(|it| it.found).collect()),
        ),
    ];
    ReportTable { note, ..table("corruption", "Contradictions", audience, columns) }
}

fn gaps(scan: &HeapScan) -> ReportTable {
    let gaps = &scan.heap.gaps;
    let audience = if gaps.is_empty() { Audience::Programs } else { Audience::Everyone };
    let columns = vec![
        TableColumn::new(
            "start",
            "START",
            ColumnCells::Addresses(gaps.iter().map(|it| it.start).collect()),
        ),
        TableColumn::new(
            "bytes",
            "BYTES",
            ColumnCells::Bytes(gaps.iter().map(|it| it.bytes.0).collect()),
        ),
        TableColumn::new(
            "why",
            "REASON",
            ColumnCells::Labels(gaps.iter().map(|it| it.why.to_string().into()).collect()),
        ),
    ];
    table("gaps", "Parts that could not be walked", audience, columns)
}

fn scan_facts(scan: &HeapScan) -> NamedFacts {
    let unknown = HeapAllocator::default();
    let allocator = scan.heap.allocators.first().unwrap_or(&unknown);
    let mangles = allocator.mangles_links.map_or(CellValue::None, CellValue::Flag);
    let facts = vec![
        fact("allocator", "allocator", CellValue::text(allocator.name.clone()), ""),
        fact(
            "thread_caches",
            "thread caches",
            CellValue::text(allocator.thread_caches.clone()),
            "Layout of the thread caches, as it was detected.",
        )
        .hidden_if(allocator.thread_caches.is_empty()),
        fact("mangles_links", "mangled links", mangles, "").for_programs(),
        fact("corrupted", "", CellValue::Count(scan.heap.corrupted), "").for_programs(),
        fact("copied", "copied", CellValue::Bytes(scan.copy.copied.0), "Copied bytes."),
        fact(
            "swapped",
            "in swap",
            CellValue::Bytes(scan.copy.swapped.0),
            "Bytes in swap, which were not copied.",
        )
        .hidden_if(scan.copy.swapped.is_zero()),
        fact("unread", "not readable", CellValue::Bytes(scan.copy.unread.0), "")
            .hidden_if(scan.copy.unread.is_zero()),
        fact("stops", "stops", CellValue::Count(scan.copy.stops), "").for_programs(),
        fact("unsettled_threads", "", CellValue::Count(scan.copy.unsettled_threads), "")
            .for_programs(),
        fact("page_size", "page size", CellValue::Bytes(scan.page_size.bytes()), ""),
        fact("took_ns", "in", CellValue::Nanos(scan.took_ns), "Duration of copy and walk."),
        fact(
            "pause_ns",
            "longest pause of the target",
            CellValue::Nanos(scan.copy.pause_ns),
            "The longest time for which all threads of the process were stopped.",
        ),
        fact(
            "snapshot_ns",
            "lifetime of the forked snapshot",
            scan.copy.snapshot_ns.map_or(CellValue::None, CellValue::Nanos),
            "The time for which the child lived that the process was made to fork; the process ran meanwhile.",
        )
        .hidden_if(scan.copy.snapshot_ns.is_none()),
        fact("expected_pause_ns", "", CellValue::Nanos(scan.copy.expected_pause_ns), "")
            .for_programs(),
    ];
    facts_of("scan", "Scan", FactsShape::Line, facts)
}

fn pause(scan: &HeapScan) -> NamedFacts {
    let pause = CellValue::Count(scan.copy.pause_ns.div_ceil(1000));
    let facts = vec![fact("pause_us", "", pause, "")];
    NamedFacts { audience: Audience::Programs, ..facts_of("", "", FactsShape::Line, facts) }
}

fn change(before: u64, after: u64) -> i64 {
    after.cast_signed().saturating_sub(before.cast_signed())
}

/// Reports the growth between two scans.
fn growth(earlier: &HeapScan, scan: &HeapScan) -> NamedFacts {
    let (before, after) = (&earlier.heap, &scan.heap);
    let interval = scan.time_ns.saturating_sub(earlier.time_ns);
    let bytes = |key: &'static str, label: &'static str, before: u64, after: u64| -> Fact {
        fact(key, label, CellValue::Change(change(before, after)), "")
    };
    let facts = vec![
        fact("interval_ns", "IN", CellValue::Nanos(interval), "Time between the scans."),
        bytes("live_bytes", "LIVE", before.live().bytes, after.live().bytes),
        bytes("free_bytes", "FREE", before.free().total(), after.free().total()),
        bytes("resident", "RESIDENT", before.resident().0, after.resident().0),
        bytes("trimmable", "TRIMMABLE", before.trimmable().0, after.trimmable().0),
        fact("earlier_pause_us", "", CellValue::Count(earlier.copy.pause_ns.div_ceil(1000)), "")
            .for_programs(),
    ];
    facts_of("growth", "Growth between two scans", FactsShape::Columns, facts)
}

/// Builds the table of sizes whose number of live blocks changed, the largest growth in bytes
/// first.
fn grown(earlier: &HeapScan, scan: &HeapScan, options: &HeapScanOptions) -> ReportTable {
    let mut sizes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for size in &earlier.heap.sizes {
        sizes.entry(size.size).or_default().0 = size.blocks;
    }
    for size in &scan.heap.sizes {
        sizes.entry(size.size).or_default().1 = size.blocks;
    }
    let grown = |size: u64, (before, after): (u64, u64)| {
        change(before, after).saturating_mul(i64::try_from(size).unwrap_or(i64::MAX))
    };
    let mut changed: Vec<(u64, (u64, u64))> =
        sizes.into_iter().filter(|(_, (before, after))| before != after).collect();
    changed.sort_by_key(|(size, blocks)| (Reverse(grown(*size, *blocks)), *size));
    let (shown, note) = first(&changed, options.limit, "--top");
    let columns = vec![
        TableColumn::new("size", "SIZE", ColumnCells::Bytes(shown.iter().map(|it| it.0).collect())),
        TableColumn::new(
            "blocks_before",
            "BLOCKS BEFORE",
            ColumnCells::Counts(shown.iter().map(|it| it.1.0).collect()),
        ),
        TableColumn::new(
            "blocks",
            "BLOCKS",
            ColumnCells::Counts(shown.iter().map(|it| it.1.1).collect()),
        ),
        TableColumn::new(
            "grown",
            "GROWTH",
            ColumnCells::Values(
                shown.iter().map(|it| CellValue::Change(grown(it.0, it.1))).collect(),
            ),
        ),
    ];
    ReportTable { note, ..table("grown", "Growth by usable size", Audience::Everyone, columns) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn an_allocator_that_could_not_be_walked_is_in_the_first_sentence() {
        let refused = RefusedAllocator { name: "jemalloc".into(), why: "no layout fits".into() };
        let scan =
            sample::heap_scan(WalkedHeap { refused: vec![refused], ..WalkedHeap::default() });
        let first = verdict(&scan).pieces.swap_remove(0);
        let expected = "The blocks of jemalloc could not be found and are not counted. ";
        assert_eq!(first, CellValue::text(expected));
    }
}
