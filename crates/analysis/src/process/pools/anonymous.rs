//! Pools of private anonymous memory without a name, recognized by address, shape and first words.

use pagewise_model::{AddrRange, Bytes, Mapping};

use super::{LanguageRuntime, PoolKind, Sorter, stacks};

/// The name of the pool of glibc's further arenas.
pub(super) const ARENAS: &str = "glibc thread arenas";
/// The name of the pool of glibc's mapped chunks.
pub(super) const CHUNKS: &str = "glibc mmapped chunks";

/// HEAP_MAX_SIZE of 64-bit glibc: the heap of an arena is aligned to this size and reserves it.
pub(crate) const ARENA_HEAP: Bytes = Bytes::mib(64);

/// A larger mapping without access is a reservation, not the guard of a stack: glibc takes one
/// page, the JVM four, Go and Rust one; 64 KiB pages make it 256 KiB.
pub(super) const LARGEST_GUARD: Bytes = Bytes::mib(1);

/// IS_MMAPPED, the only flag set in the size word of a chunk that glibc mapped alone.
const IS_MMAPPED: u64 = 2;
const CHUNK_FLAGS: u64 = 7;

/// Places every mapping that has no home yet.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let libraries = Libraries::from_sorter(sorter);
    sanitizers(sorter);
    go(sorter);
    if libraries.glibc {
        arenas(sorter);
        chunks(sorter);
    }
    stacks::place(sorter);
    rest(sorter, libraries.allocator);
}

/// Allocators, as far as the libraries and the program reveal them.
struct Libraries {
    glibc: bool,
    /// Name for the memory of an allocator that cannot be distinguished from plain mmap.
    allocator: Option<&'static str>,
}

/// Part of a library's path, or prefix of a symbol inside a file; and the name of the pool for
/// memory that cannot be distinguished from plain mmap.
const ALLOCATORS: &[(&[u8], &[u8], &str)] = &[
    (b"/libjemalloc", b"je_", "jemalloc, and mmap"),
    (b"/libtcmalloc", b"tc_", "tcmalloc, and mmap"),
    (b"/libmimalloc", b"mi_", "mimalloc, and mmap"),
    // ld-musl-x86_64.so.1 is a link to libc.so where a distribution keeps both C libraries.
    (b"/ld-musl-", b"", "musl malloc, and mmap"),
    (b"-musl/libc.so", b"", "musl malloc, and mmap"),
];

impl Libraries {
    fn from_sorter(sorter: &Sorter<'_>) -> Libraries {
        let mut found = Libraries { glibc: false, allocator: None };
        for pool in sorter.pools.iter().filter(|p| p.kind == PoolKind::Library) {
            let base = pool.name.base();
            found.glibc |= base == b"libc.so.6" || base.starts_with(b"libc-2.");
            let path = pool.name.as_bytes();
            let holds = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
            found.allocator = found.allocator.or_else(|| allocator(|row| holds(row.0)));
        }
        for elf in sorter.snapshot.objects.iter().filter_map(|o| o.elf.as_ref().ok()) {
            found.glibc |= elf.is_static;
            if let Some(symbol) = &elf.allocator {
                let starts = |part: &[u8]| !part.is_empty() && symbol.as_bytes().starts_with(part);
                let inside = allocator(|row| starts(row.1));
                found.allocator = found.allocator.or(inside);
            }
        }
        found
    }
}

fn allocator(fits: impl Fn(&(&[u8], &[u8], &str)) -> bool) -> Option<&'static str> {
    ALLOCATORS.iter().find(|row| fits(row)).map(|row| row.2)
}

/// Address ranges of a sanitizer on x86-64, and the mapping that reveals it: no other program
/// reserves this size at this address.
struct SanitizerLayout {
    name: &'static str,
    sign: u64,
    ranges: &'static [AddrRange],
}

/// Minimum size of the mapping at [`SanitizerLayout::sign`]: below the smallest reservation of a
/// sanitizer, above ordinary mappings.
const SHADOW: Bytes = Bytes::gib(256);

const fn range(start: u64, end: u64) -> AddrRange {
    AddrRange { start, end }
}

/// The first that fits decides. compiler-rt: asan_mapping.h, tsan_platform.h, msan.h.
const LAYOUTS: &[SanitizerLayout] = &[
    SanitizerLayout {
        name: "AddressSanitizer shadow",
        sign: 0x0200_8fff_7000,
        ranges: &[range(0x7fff_7000, 0x1000_7fff_8000)],
    },
    SanitizerLayout {
        name: "MemorySanitizer shadow and origins",
        sign: 0x5000_0000_0000,
        ranges: &[
            range(0x0100_0000_0000, 0x5100_0000_0000),
            range(0x6000_0000_0000, 0x6100_0000_0000),
        ],
    },
    SanitizerLayout {
        name: "ThreadSanitizer shadow",
        sign: 0x3000_0000_0000,
        ranges: &[
            range(0x0100_0000_0000, 0x2000_0000_0000),
            range(0x3000_0000_0000, 0x4000_0000_0000),
        ],
    },
];

fn sanitizers(sorter: &mut Sorter<'_>) {
    let signs = |layout: &&SanitizerLayout| {
        let at = at(sorter.mappings, layout.sign);
        at.is_some_and(|m| m.range.start == layout.sign && m.size() >= SHADOW)
    };
    let Some(layout) = LAYOUTS.iter().find(signs) else { return };
    for range in layout.ranges {
        for index in within(sorter.mappings, *range) {
            if sorter.is_free_anonymous(index) {
                sorter.put(index, PoolKind::Sanitizer, layout.name);
            }
        }
    }
}

/// Start of Go's heap on 64-bit machines before version 1.26 made it random.
const GO_HEAP: u64 = 0xc0_0000_0000;
/// heapArenaBytes of 64-bit Go: it reserves its heap in multiples of this, so aligned.
const GO_ARENA: Bytes = Bytes::mib(64);

/// Go's heap: neighbors that together are whole arenas, in a Go program or at Go's old address.
fn go(sorter: &mut Sorter<'_>) {
    let mappings = sorter.mappings;
    let is_go_program = has_section(sorter, b".gopclntab");
    let mut next = 0;
    while next < mappings.len() {
        let run = run_at(sorter, next);
        next = run.end.max(next + 1);
        let Some(last) = run.clone().last() else { continue };
        let (start, end) = (mappings[run.start].range.start, mappings[last].range.end);
        let whole = start.is_multiple_of(GO_ARENA.0) && end.is_multiple_of(GO_ARENA.0);
        let first = &mappings[run.start];
        // A Go program may use glibc too, whose arenas are as large.
        let is_glibc = head(sorter, first).is_some_and(|words| is_heap_info(first, words));
        if whole && !is_glibc && (is_go_program || start == GO_HEAP) {
            run.for_each(|index| sorter.put(index, PoolKind::Go, "Go heap arenas"));
        }
    }
}

/// The adjacent anonymous mappings without a pool, from `first` on; empty if `first` has a pool.
fn run_at(sorter: &Sorter<'_>, first: usize) -> std::ops::Range<usize> {
    let mut end = first;
    while end < sorter.mappings.len()
        && sorter.is_free_anonymous(end)
        && (end == first || sorter.mappings[end - 1].range.end == sorter.mappings[end].range.start)
    {
        end += 1;
    }
    first..end
}

fn has_section(sorter: &Sorter<'_>, name: &[u8]) -> bool {
    let mut elves = sorter.snapshot.objects.iter().filter_map(|o| o.elf.as_ref().ok());
    elves.any(|elf| elf.sections.iter().any(|section| section.name.as_bytes() == name))
}

/// Arenas: aligned writable memory, and inaccessible memory up to the end of the heap.
fn arenas(sorter: &mut Sorter<'_>) {
    for index in 0..sorter.mappings.len() {
        let mapping = &sorter.mappings[index];
        let starts = mapping.range.start.is_multiple_of(ARENA_HEAP.0)
            && mapping.prot.write
            && sorter.is_free_anonymous(index);
        if !starts {
            continue;
        }
        let rest = rest_of_heap(sorter, index);
        match head(sorter, mapping) {
            Some(words) if !is_heap_info(mapping, words) => continue,
            None if rest.is_none() => continue,
            _ => sorter.put(index, PoolKind::MallocArena, ARENAS),
        }
        if let Some(rest) = rest {
            sorter.put(rest, PoolKind::MallocArena, ARENAS);
        }
    }
}

/// The inaccessible mapping that follows up to the end of the last heap. The kernel may have merged
/// the guard of a stack with it.
fn rest_of_heap(sorter: &Sorter<'_>, index: usize) -> Option<usize> {
    let used = sorter.mappings[index].range.end;
    let next = sorter.mappings.get(index + 1)?;
    let end = used.checked_next_multiple_of(ARENA_HEAP.0)?;
    let fills = next.range.start == used
        && used != end
        && (end..=end.saturating_add(LARGEST_GUARD.0)).contains(&next.range.end);
    (fills && next.prot.is_none() && sorter.is_free_anonymous(index + 1)).then_some(index + 1)
}

/// A heap starts with the address of its arena, which is inside a heap, and the address of the
/// previous heap, or 0.
fn is_heap_info(mapping: &Mapping, [arena, previous]: [u64; 2]) -> bool {
    let own = mapping.range.contains(arena) && previous == 0;
    let linked = previous != 0 && arena != 0 && previous.is_multiple_of(ARENA_HEAP.0);
    own || linked
}

/// Large requests: each mapping starts with the header of the chunk that fills it, or its first
/// part.
fn chunks(sorter: &mut Sorter<'_>) {
    for index in 0..sorter.mappings.len() {
        if !sorter.is_free_anonymous(index) || sorter.mappings[index].prot.is_none() {
            continue;
        }
        let mapping = &sorter.mappings[index];
        let page = sorter.snapshot.provenance.page_size.bytes();
        if head(sorter, mapping).is_some_and(|words| is_chunk(mapping, words, page)) {
            sorter.put(index, PoolKind::MallocChunk, CHUNKS);
        }
    }
}

fn is_chunk(mapping: &Mapping, [previous, word]: [u64; 2], page: u64) -> bool {
    let size = word & !CHUNK_FLAGS;
    previous == 0
        && word & CHUNK_FLAGS == IS_MMAPPED
        && size != 0
        && size.is_multiple_of(page)
        && size <= mapping.size().0
}

/// The first words of a mapping, where they were read.
fn head(sorter: &Sorter<'_>, mapping: &Mapping) -> Option<[u64; 2]> {
    let heads = &sorter.snapshot.heads;
    let found = heads.binary_search_by_key(&mapping.range.start, |head| head.address).ok()?;
    Some(heads[found].words)
}

fn rest(sorter: &mut Sorter<'_>, allocator: Option<&'static str>) {
    let runtime = LanguageRuntime::of_process(sorter.snapshot);
    let (kind, name) = match (allocator, runtime) {
        (Some(name), _) => (PoolKind::Allocator, name),
        (None, Some(runtime)) => (PoolKind::Runtime, runtime.memory()),
        (None, None) => (PoolKind::Anonymous, "[anonymous]"),
    };
    for index in 0..sorter.mappings.len() {
        if !sorter.is_free(index) {
            continue;
        }
        let prot = sorter.mappings[index].prot;
        match prot {
            _ if prot.is_none() => sorter.put(index, PoolKind::Reserve, "guards and reservations"),
            _ if prot.exec => sorter.put(index, PoolKind::Jit, "anonymous and executable"),
            _ if prot.write => sorter.put(index, kind, name),
            _ => sorter.put(index, PoolKind::Anonymous, "[anonymous]"),
        }
    }
}

/// The mapping that holds an address.
pub(super) fn at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    index_at(mappings, address).map(|index| &mappings[index])
}

/// The index of the mapping that contains an address.
pub(super) fn index_at(mappings: &[Mapping], address: u64) -> Option<usize> {
    let after = mappings.partition_point(|m| m.range.start <= address);
    let index = after.checked_sub(1)?;
    mappings[index].range.contains(address).then_some(index)
}

/// The indices of the mappings that start in a range.
fn within(mappings: &[Mapping], range: AddrRange) -> std::ops::Range<usize> {
    let first = mappings.partition_point(|m| m.range.start < range.start);
    let end = mappings.partition_point(|m| m.range.start < range.end);
    first..end.max(first)
}
