//! The generations of V8's heap. Each page of the heap begins with a header (`MemoryChunk`):
//!
//! ```text
//! word 0  size of the page            word 4  end of the objects
//!      1  flags                            5  allocated bytes
//!      2  address of the heap              7  highest used offset
//!      3  start of the objects
//! ```
//! The relations between these words identify a header, because headers differ between versions of
//! V8.

use std::collections::HashMap;

use pagewise_model::{Backing, Bytes, Mapping, Sharing};
use pagewise_scan::memory::Memory;

/// Alignment of V8's heap pages in bytes.
const PAGE: u64 = 256 << 10;
/// Maximum number of headers that are read: a heap of 8 GiB has this number of pages.
pub(super) const MAX_PAGES: usize = 32768;
/// Maximum number of headers that are read to detect V8 in a process.
pub(super) const MAX_TRIED_PAGES: usize = 256;
/// Minimum number of headers with the same heap address: fewer may be chance.
const MIN_HEADERS: u64 = 8;
/// Mask of the flags `FROM_PAGE` and `TO_PAGE`, which mark pages of the young generation.
const YOUNG: u64 = 0b1_1000;
const WORDS: usize = 8;

/// Values from the header of a page of V8's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeapPage {
    heap: u64,
    size: u64,
    allocated: u64,
    is_young: bool,
}

/// Returns the number of bytes of objects in the old generation; `None` if the memory has no heap
/// of V8.
pub(super) fn old_generation(memory: &dyn Memory, max_pages: usize) -> Option<Bytes> {
    let pages = pages(memory, max_pages);
    let mut heaps: HashMap<u64, u64> = HashMap::new();
    for page in &pages {
        *heaps.entry(page.heap).or_default() += 1;
    }
    // A process can have several V8 heaps: each worker thread has its own heap.
    let is_heap = |page: &&HeapPage| heaps.get(&page.heap).is_some_and(|it| *it >= MIN_HEADERS);
    let known: Vec<&HeapPage> = pages.iter().filter(is_heap).collect();
    let old = known.iter().filter(|page| !page.is_young).map(|page| Bytes(page.allocated));
    (!known.is_empty()).then(|| old.sum())
}

fn pages(memory: &dyn Memory, max_pages: usize) -> Vec<HeapPage> {
    let mut pages = Vec::new();
    let mut left = max_pages;
    for mapping in memory.mappings().iter().filter(|mapping| may_hold(mapping)) {
        let mut at = mapping.range.start.next_multiple_of(PAGE);
        while at < mapping.range.end && left > 0 {
            left -= 1;
            let mut header = [[0; 8]; WORDS];
            let is_read = memory.read(at, header.as_flattened_mut());
            let page = is_read.then(|| page_at(at, &header.map(u64::from_le_bytes))).flatten();
            // The search skips a large page as a whole: its single object may contain bytes like a
            // header.
            let step = page.map_or(PAGE, |page| page.size.next_multiple_of(PAGE));
            pages.extend(page);
            at = at.saturating_add(step);
        }
    }
    pages
}

fn may_hold(mapping: &Mapping) -> bool {
    mapping.prot.read
        && mapping.prot.write
        && mapping.sharing == Sharing::Private
        && mapping.backing() == Backing::Anonymous
}

/// Parses the header of the page at `at`; `None` if the words do not have the relations of a
/// header.
fn page_at(at: u64, words: &[u64; WORDS]) -> Option<HeapPage> {
    const UNIT: u64 = 1 << 10;
    const LARGEST: u64 = 1 << 40;
    let [size, flags, heap, start, end, allocated, _, highest] = *words;
    let is_header = size >= UNIT
        && size.is_multiple_of(UNIT)
        && size <= LARGEST
        && heap != 0
        && heap.is_multiple_of(8)
        && at < start
        && start <= end
        && end <= at.saturating_add(size)
        && allocated <= end - start
        && highest <= size;
    is_header.then_some(HeapPage { heap, size, allocated, is_young: flags & YOUNG != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0004_0000;

    fn header() -> [u64; WORDS] {
        [PAGE, 0x4, 0x1000, AT + 0x1148, AT + PAGE, 0x3eea0, 0, 0x3ffe8]
    }

    #[test]
    fn a_header_is_recognized_by_its_relations() {
        let page = page_at(AT, &header()).unwrap();
        assert_eq!((page.allocated, page.is_young), (0x3eea0, false));
        for (word, value) in
            [(0, 5000), (2, 0), (3, AT), (4, AT + PAGE + 8), (5, PAGE), (7, PAGE + 1)]
        {
            let mut other = header();
            other[word] = value;
            assert_eq!(page_at(AT, &other), None, "word {word}");
        }
    }

    #[test]
    fn pages_of_the_semispaces_are_young() {
        for flags in [0xa, 0x12, 0x4000a] {
            let mut young = header();
            young[1] = flags;
            assert!(page_at(AT, &young).unwrap().is_young, "{flags:x}");
        }
    }
}
