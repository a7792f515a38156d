//! Pools of private anonymous memory without a name. The address, size, access rights and first
//! words of a mapping identify its use.

use pagewise_model::{AddrRange, Bytes, Mapping};

use super::{LanguageRuntime, PoolKind, Sorter, stacks};

/// Name of the pool of glibc's arenas other than the main arena.
pub(super) const ARENAS: &str = "glibc thread arenas";
/// Name of the pool of glibc's mapped chunks.
pub(super) const CHUNKS: &str = "glibc mmapped chunks";

/// HEAP_MAX_SIZE of 64-bit glibc: the heap of an arena is aligned to this size and reserves this
/// number of bytes.
pub(crate) const ARENA_HEAP: Bytes = Bytes::mib(64);

/// Maximum size of a stack guard; a larger mapping without access is a reservation. The guard is
/// one page in glibc, Go and Rust, and four pages in the JVM: 256 KiB with pages of 64 KiB.
pub(super) const LARGEST_GUARD: Bytes = Bytes::mib(1);

/// IS_MMAPPED: in the size word of a chunk that has its own mapping, glibc sets only this flag.
const IS_MMAPPED: u64 = 2;
const CHUNK_FLAGS: u64 = 7;

/// Assigns a pool to every mapping that has no pool yet.
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

/// Allocators that the libraries and the program reveal.
struct Libraries {
    glibc: bool,
    /// Pool name of memory that is either from the allocator or from plain mmap.
    allocator: Option<&'static str>,
}

/// Part of a library's path, prefix of a symbol in a file, and pool name of memory that is either
/// from the allocator or from plain mmap.
const ALLOCATORS: &[(&[u8], &[u8], &str)] = &[
    (b"/libjemalloc", b"je_", "jemalloc, and mmap"),
    (b"/libtcmalloc", b"tc_", "tcmalloc, and mmap"),
    (b"/libmimalloc", b"mi_", "mimalloc, and mmap"),
    // If a distribution has both glibc and musl, ld-musl-x86_64.so.1 is a link to libc.so.
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

/// Address ranges of a sanitizer on x86-64, and the start of the mapping that identifies the
/// sanitizer: no other program reserves [`SHADOW`] at this address.
struct SanitizerLayout {
    name: &'static str,
    sign: u64,
    ranges: &'static [AddrRange],
}

/// Minimum size of the mapping at [`SanitizerLayout::sign`]: smaller than the smallest reservation
/// of a sanitizer, larger than ordinary mappings.
const SHADOW: Bytes = Bytes::gib(256);

const fn range(start: u64, end: u64) -> AddrRange {
    AddrRange { start, end }
}

/// The first matching layout applies. Source in compiler-rt: asan_mapping.h, tsan_platform.h,
/// msan.h.
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

/// Start address of Go's heap on 64-bit machines; Go 1.26 and newer choose a random address.
const GO_HEAP: u64 = 0xc0_0000_0000;
/// heapArenaBytes of 64-bit Go: Go reserves its heap in aligned multiples of this size.
const GO_ARENA: Bytes = Bytes::mib(64);

/// Assigns Go's heap: adjacent mappings that together are whole arenas, in a Go program or at Go's
/// old heap address.
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
        // A Go program may also use glibc, whose arenas have the same size.
        let is_glibc = head(sorter, first).is_some_and(|words| is_heap_info(first, words));
        if whole && !is_glibc && (is_go_program || start == GO_HEAP) {
            run.for_each(|index| sorter.put(index, PoolKind::Go, "Go heap arenas"));
        }
    }
}

/// Returns the indices of the adjacent anonymous mappings without a pool, starting at `first`;
/// empty if `first` has a pool.
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

/// Assigns glibc's arenas: aligned writable memory, and inaccessible memory up to the end of the
/// heap.
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

/// Index of the inaccessible mapping from the end of the writable part of an arena's heap to the
/// end of the heap. The kernel may have merged the guard of a stack with this mapping.
fn rest_of_heap(sorter: &Sorter<'_>, index: usize) -> Option<usize> {
    let used = sorter.mappings[index].range.end;
    let next = sorter.mappings.get(index + 1)?;
    let end = used.checked_next_multiple_of(ARENA_HEAP.0)?;
    let fills = next.range.start == used
        && used != end
        && (end..=end.saturating_add(LARGEST_GUARD.0)).contains(&next.range.end);
    (fills && next.prot.is_none() && sorter.is_free_anonymous(index + 1)).then_some(index + 1)
}

/// True if the first two words are those of an arena heap: the address of its arena, and the
/// address of the previous heap. The first heap contains its arena and has 0 as the previous heap.
fn is_heap_info(mapping: &Mapping, [arena, previous]: [u64; 2]) -> bool {
    let own = mapping.range.contains(arena) && previous == 0;
    let linked = previous != 0 && arena != 0 && previous.is_multiple_of(ARENA_HEAP.0);
    own || linked
}

/// Assigns chunks of large requests: a mapping starts with the header of the chunk that fills the
/// mapping or the first part of it.
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

/// The first words of a mapping, if they were read.
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

/// Mapping that contains an address.
pub(super) fn at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    index_at(mappings, address).map(|index| &mappings[index])
}

/// Index of the mapping that contains an address.
pub(super) fn index_at(mappings: &[Mapping], address: u64) -> Option<usize> {
    let after = mappings.partition_point(|m| m.range.start <= address);
    let index = after.checked_sub(1)?;
    mappings[index].range.contains(address).then_some(index)
}

/// Indices of the mappings that start in a range.
fn within(mappings: &[Mapping], range: AddrRange) -> std::ops::Range<usize> {
    let first = mappings.partition_point(|m| m.range.start < range.start);
    let end = mappings.partition_point(|m| m.range.start < range.end);
    first..end.max(first)
}
