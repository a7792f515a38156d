//! Pages: runs of slices with blocks of one size, and their free lists. mimalloc carves blocks from
//! a page on demand: the carved blocks come first, and the bytes after them were never used.
//!
//! The first word of a free block is the link to the next block of its list. The link is the
//! address of the next block. In builds with encoded lists, this address is combined with two keys
//! of the page. An encoded list ends with the address of the page's table entry. The list of blocks
//! freed by other threads has flags in the two lowest bits of its head.

use std::collections::{BTreeSet, HashSet};

use pagewise_model::AddrRange;

use super::layout::{
    DELAYED_FREE, DELAYED_KEYS, FIRST_BLOCK_RULES, FREE, FirstBlockRule, SegmentLayout,
};
use super::segments::{PageEntry, PageSpan, Segment};
use crate::blocks::LiveBlock;
use crate::corruption::CorruptionLog;
use crate::memory::{Memory, half};

/// Mask of the flags in the head of the list of blocks freed by other threads.
const FLAGS: u64 = 3;
/// Number of bytes after a block in builds with padding: a check value and the number of unused
/// bytes.
const PADDING: u64 = 8;
/// Maximum number of blocks of a page that are examined to detect padding.
const PADDING_VOTES: u64 = 64;

/// Maximum number of pages that are examined to determine the position of the first block.
const VOTING_PAGES: usize = 1000;

/// The two keys of an encoded list.
pub(super) type ListKeys = [u64; 2];

/// A page of mimalloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockPage {
    /// Index of the segment.
    pub(super) segment: usize,
    /// Address of the page's entry in the table of the segment.
    address: u64,
    /// Range from the first to the last carved block.
    pub(super) blocks: AddrRange,
    pub(super) block_size: u64,
    /// Number of blocks that fit in the page.
    pub(super) reserved: u64,
    /// True if the stored number of used blocks differs by one from the number derived from the
    /// lists. Then the thread may be allocating or freeing a block.
    pub(super) is_in_change: bool,
    used: u64,
    /// Heads of the two lists of the owner and of the list of blocks freed by other threads.
    lists: [ListHead; 3],
    heap: u64,
    keys: Option<ListKeys>,
    /// Bitmap of the blocks that are in a list.
    listed: Vec<u64>,
}

/// Address of the link to the first block of a list, and the address of this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListHead {
    address: u64,
    first: u64,
}

/// A live block and its index in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexedBlock {
    pub(super) index: u64,
    pub(super) block: LiveBlock,
}

impl BlockPage {
    fn new(
        layout: &SegmentLayout,
        segment: usize,
        span: &PageSpan,
        rule: FirstBlockRule,
    ) -> Option<BlockPage> {
        let page = PageEntry { layout, entry: &span.entry, slices: span.slices };
        let block_size = page.block_size();
        let capacity = page.capacity();
        let (offsets, word) = (&layout.page, |at| page.word(at));
        let first = match offsets.first_block {
            Some(at) => word(at),
            None => span.slices.start + rule(block_size),
        };
        let head = |at: u64| ListHead { address: span.address + at, first: word(at) };
        let mut others = head(offsets.thread_free);
        others.first &= !FLAGS;
        let blocks = AddrRange { start: first, end: first + capacity * block_size };
        let is_page = capacity > 0 && blocks.end <= span.slices.end;
        is_page.then(|| BlockPage {
            segment,
            address: span.address,
            blocks,
            block_size,
            reserved: page.reserved(),
            is_in_change: false,
            used: page.used(),
            lists: [head(FREE), head(offsets.local_free), others],
            heap: word(offsets.heap),
            keys: offsets.keys.map(|at| [word(at), word(at + 8)]),
            listed: vec![0; usize::try_from(capacity.div_ceil(64)).unwrap_or(0)],
        })
    }

    fn capacity(&self) -> u64 {
        self.blocks.len().0 / self.block_size
    }

    /// Index of the block that begins at `address`; `None` if no block begins there.
    fn index(&self, address: u64) -> Option<u64> {
        let distance = address.checked_sub(self.blocks.start)?;
        let is_block = self.blocks.contains(address) && distance.is_multiple_of(self.block_size);
        is_block.then(|| distance / self.block_size)
    }

    /// Decodes the first word of a free block: the address of the next block in its list.
    fn next(&self, word: u64) -> u64 {
        self.keys.map_or(word, |keys| decoded(word, keys, self.address))
    }

    /// Number of entries of a list before the first entry that is not a block of the page.
    fn blocks_of_list(&self, memory: &dyn Memory, first: u64) -> u64 {
        let (mut next, mut count) = (first, 0);
        while count < self.capacity() && self.index(next).is_some() {
            count += 1;
            let Some(word) = memory.word(next) else { break };
            next = self.next(word);
        }
        count
    }

    /// Marks a block as free. Returns false if it was already marked.
    fn mark(&mut self, index: u64) -> bool {
        let cell = usize::try_from(index / 64).ok().and_then(|at| self.listed.get_mut(at));
        let Some(cell) = cell else { return false };
        let bit = 1 << (index % 64);
        let is_new = *cell & bit == 0;
        *cell |= bit;
        is_new
    }

    fn is_listed(&self, index: u64) -> bool {
        let cell = usize::try_from(index / 64).ok().and_then(|at| self.listed.get(at));
        cell.is_some_and(|cell| cell >> (index % 64) & 1 != 0)
    }
}

/// Reads the pages of all segments.
pub(super) struct PageReader<'a> {
    memory: &'a dyn Memory,
    /// Pages in order of address.
    pages: Vec<BlockPage>,
    segments: &'a [Segment],
}

impl<'a> PageReader<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        layout: &SegmentLayout,
        segments: &'a [Segment],
    ) -> PageReader<'a> {
        let spans = || {
            let numbered = segments.iter().enumerate();
            numbered.flat_map(|(at, segment)| segment.pages.iter().map(move |span| (at, span)))
        };
        // The best rule is the one by which most list entries are blocks of their pages.
        let agreeing = |rule: &FirstBlockRule| {
            let pages = spans().filter_map(|(at, span)| BlockPage::new(layout, at, span, *rule));
            let entries = |page: &BlockPage| {
                page.lists.iter().map(|head| page.blocks_of_list(memory, head.first)).sum::<u64>()
            };
            pages.take(VOTING_PAGES).map(|page| entries(&page)).sum::<u64>()
        };
        let votes = FIRST_BLOCK_RULES.map(|rule| agreeing(&rule));
        let most = votes.into_iter().max().unwrap_or(0);
        let best = votes.iter().position(|votes| *votes == most).unwrap_or(0);
        let rule = FIRST_BLOCK_RULES[best];
        let pages = spans().filter_map(|(at, span)| BlockPage::new(layout, at, span, rule));
        PageReader { memory, pages: pages.collect(), segments }
    }

    pub(super) fn pages(&self) -> &[BlockPage] {
        &self.pages
    }

    /// Follows all lists.
    pub(super) fn read_lists(&mut self, log: &mut CorruptionLog) {
        for at in 0..self.pages.len() {
            let [free, local, others] = self.pages[at].lists;
            let own = self.read_list(at, free, log) + self.read_list(at, local, log);
            // Blocks in the list of other threads are still included in the count of used blocks.
            self.read_list(at, others, log);
            self.check_used(at, own, log);
        }
        let heaps: BTreeSet<(u64, u64)> = self
            .pages
            .iter()
            .filter(|page| page.heap != 0)
            .map(|page| (page.heap, self.segments[page.segment].thread))
            .collect();
        for (heap, thread) in heaps {
            self.read_delayed(heap, thread, log);
        }
    }

    /// Marks the blocks of a list as free, and returns their number.
    fn read_list(&mut self, at: usize, head: ListHead, log: &mut CorruptionLog) -> u64 {
        let (mut link, mut next, mut count) = (head.address, head.first, 0);
        while next != 0 {
            let page = &mut self.pages[at];
            let is_new = page.index(next).is_some_and(|index| page.mark(index));
            if !is_new {
                log.add(page.blocks.start, link, "a free block of the page, in one list", next);
                break;
            }
            count += 1;
            link = next;
            let Some(word) = self.memory.word(next) else { break };
            next = self.pages[at].next(word);
        }
        count
    }

    /// Checks that each carved block is either in use or among the `own` entries of the owner's
    /// lists.
    fn check_used(&mut self, at: usize, own: u64, log: &mut CorruptionLog) {
        let page = &mut self.pages[at];
        let used = page.capacity().saturating_sub(own);
        if used != page.used {
            page.is_in_change = used.abs_diff(page.used) == 1;
            let expected = format!("a page with {used} blocks in use");
            log.add(page.blocks.start, page.address, &expected, page.used);
        }
    }

    /// Marks the blocks in the list of a heap to which other threads add freed blocks.
    fn read_delayed(&mut self, heap: u64, thread: u64, log: &mut CorruptionLog) {
        let word = |at: u64| self.memory.word(heap.checked_add(at)?);
        let Some(list) = DELAYED_FREE.into_iter().find(|at| word(at + 8) == Some(thread)) else {
            return;
        };
        let keys = word(list + DELAYED_KEYS).zip(word(list + DELAYED_KEYS + 8));
        let (mut link, mut next) = (heap + list, word(list).unwrap_or(0));
        let mut known = HashSet::new();
        while next != 0 {
            let Some(at) = self.page_at(next).filter(|_| known.insert(next)) else {
                log.add(heap, link, "a free block of the heap", next);
                break;
            };
            let page = &mut self.pages[at];
            let is_new = page.index(next).is_some_and(|index| page.mark(index));
            if !is_new {
                log.add(next, link, "a free block in one list", next);
                break;
            }
            let is_encoded = page.keys.is_some();
            link = next;
            let Some(word) = self.memory.word(next) else { break };
            next = match keys.filter(|_| is_encoded) {
                Some((first, second)) => decoded(word, [first, second], heap),
                None => word,
            };
        }
    }

    fn page_at(&self, address: u64) -> Option<usize> {
        let at = self.pages.partition_point(|page| page.blocks.end <= address);
        self.pages.get(at).filter(|page| page.blocks.contains(address)).map(|_| at)
    }

    /// Returns the blocks of a page that are in no list.
    pub(super) fn live_blocks(
        &self,
        page: &BlockPage,
        log: &mut CorruptionLog,
    ) -> Vec<IndexedBlock> {
        let live = || (0..page.capacity()).filter(|index| !page.is_listed(*index));
        let start = |index: u64| page.blocks.start + index * page.block_size;
        let is_padded = page.keys.is_some_and(|keys| {
            let votes = live().take(usize::try_from(PADDING_VOTES).unwrap_or(0));
            let [whole, all] = votes.fold([0, 0], |[whole, all], index| {
                let padding = self.padding(page, start(index), keys);
                [whole + u64::from(padding.is_some()), all + 1]
            });
            2 * whole > all
        });
        let keys = page.keys.filter(|_| is_padded);
        let size = |index: u64, log: &mut CorruptionLog| {
            let Some(keys) = keys else { return page.block_size };
            let usable = page.block_size.saturating_sub(PADDING);
            let unused = self.padding(page, start(index), keys);
            if unused.is_none() {
                let padding = start(index) + usable;
                let found = self.memory.word(padding).unwrap_or(0);
                log.add(start(index), padding, "the check value behind the block", found);
            }
            usable - unused.unwrap_or(0)
        };
        let blocks = live().map(|index| IndexedBlock {
            index,
            block: LiveBlock { start: start(index), size: size(index, log) },
        });
        blocks.collect()
    }

    /// Number of unused bytes at the end of a block according to its padding; `None` if the check
    /// value is wrong.
    fn padding(&self, page: &BlockPage, block: u64, keys: ListKeys) -> Option<u64> {
        /// Mask of the checked bits: since 2.1.8 the first byte of the check value is 0.
        const CHECKED: u32 = 0xffff_ff00;
        let usable = page.block_size.checked_sub(PADDING)?;
        let mut bytes = [0; 8];
        if !self.memory.read(block + usable, &mut bytes) {
            return None;
        }
        let expected = half(&encoded(block, keys).to_le_bytes(), 0);
        let (found, unused) = (half(&bytes, 0), u64::from(half(&bytes, 4)));
        (found & CHECKED == expected & CHECKED && unused <= usable).then_some(unused)
    }
}

/// Computes `mi_ptr_encode`.
#[expect(clippy::cast_possible_truncation, reason = "a rotation uses the lowest 6 bits")]
pub(super) const fn encoded(address: u64, [first, second]: ListKeys) -> u64 {
    (address ^ second).rotate_left(first as u32 & 63).wrapping_add(first)
}

/// Computes `mi_ptr_decode`, and returns 0 for a link that decodes to `end`, which marks the end of
/// the list.
#[expect(clippy::cast_possible_truncation, reason = "a rotation uses the lowest 6 bits")]
fn decoded(word: u64, [first, second]: ListKeys, end: u64) -> u64 {
    let address = word.wrapping_sub(first).rotate_right(first as u32 & 63) ^ second;
    if address == end { 0 } else { address }
}
