//! Index of the free chunks and of the chunks with free blocks, in private memory. It is computed
//! from the file at the open, checked, and never written to the file. Its data about blocks is
//! reliable, whatever the file contains.
//!
//! ```text
//! infos:  a ChunkInfo for each possible chunk; those of a size class with free blocks are a queue
//! free:   a bit for each chunk, set if it is free
//! ```
//!
//! Invariants:
//! - `kind` is `FREE` for free chunks and for chunks that the file does not have yet.
//! - A chunk is in the queue of its size class if `free > 0`, and in no queue otherwise.
//! - No chunk before `hint` is free.
//! - In the bitmap of a chunk, no word before the `word` of this chunk has a free block.
//!
//! Blocks are allocated in the first chunk of a queue until this chunk is full. A full chunk in
//! which a block is freed is added at the end of the queue. Until it becomes the first chunk, more
//! of its blocks are freed. So chunks are seldom assigned to a size class and released again, and
//! consecutive allocations are adjacent.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::format::{CHUNK, CLASSES, ChunkClass, HeapShape, MAX_CHUNKS, TABLE};
use crate::source::{Os, Source, SourceBlock};

/// Index that means that a queue has no further chunk.
const NIL: u32 = u32::MAX;
const FREE: u8 = 0;
const RUN: u8 = 254;
const INSIDE: u8 = 255;

#[derive(Clone, Copy, Debug)]
struct ChunkInfo {
    /// Index of the next chunk in the queue; for the first chunk of a run, number of chunks in the
    /// run.
    next: u32,
    before: u32,
    /// Number of free blocks of a chunk.
    free: u16,
    /// `FREE`, 1 + size class, `RUN` (first chunk of a run) or `INSIDE` (other chunk of a run).
    kind: u8,
    /// Index of the first word of the bitmap that may have a free block.
    word: u8,
    /// True if a block of this chunk may have a name.
    named: bool,
}

impl ChunkInfo {
    const NONE: ChunkInfo =
        ChunkInfo { next: NIL, before: NIL, free: 0, kind: FREE, word: 0, named: false };
}

/// The queue of the chunks of a size class that have free blocks.
#[derive(Clone, Copy, Debug)]
struct ChunkQueue {
    first: u32,
    last: u32,
}

/// Position of a block in the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockLookup {
    /// A block in a chunk of a size class. The bitmap of the chunk shows if the block is allocated.
    Slot { chunk: usize, class: usize, slot: usize },
    /// A block that is a run of chunks, with its first chunk and the number of chunks.
    Run { chunk: usize, chunks: usize },
}

impl BlockLookup {
    /// Size of the block in bytes.
    #[inline]
    pub(super) fn size(self) -> usize {
        match self {
            BlockLookup::Slot { class, .. } => TABLE[class].size,
            BlockLookup::Run { chunks, .. } => chunks * CHUNK,
        }
    }

    /// Packs the position into one word, which one instruction stores or loads. Indexes and counts
    /// of chunks take 24 bits, slots 16 bits.
    #[inline]
    pub(super) fn pack(self) -> u64 {
        match self {
            BlockLookup::Slot { chunk, class, slot } => {
                ((chunk << 24) | (class << 16) | slot) as u64
            }
            BlockLookup::Run { chunk, chunks } => {
                ((chunk << 24) | (chunks % Self::MAX_RUN_CHUNKS)) as u64 | Self::RUN
            }
        }
    }

    /// Decodes a packed word.
    #[inline]
    pub(super) fn unpack(word: u64) -> BlockLookup {
        #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
        let (low, chunk) = (word as usize & 0xff_ffff, (word >> 24) as usize & 0xff_ffff);
        if word & Self::RUN == 0 {
            return BlockLookup::Slot { chunk, class: low >> 16, slot: low & 0xffff };
        }
        BlockLookup::Run { chunk, chunks: if low == 0 { Self::MAX_RUN_CHUNKS } else { low } }
    }

    const RUN: u64 = 1 << 48;
    /// Number of chunks of a run that is packed as 0.
    const MAX_RUN_CHUNKS: usize = MAX_CHUNKS;

    #[inline]
    fn chunk(self) -> usize {
        match self {
            BlockLookup::Slot { chunk, .. } | BlockLookup::Run { chunk, .. } => chunk,
        }
    }
}

/// Index of all chunks.
#[derive(Debug)]
pub(super) struct ChunkIndex {
    infos: NonNull<ChunkInfo>,
    free: NonNull<u64>,
    block: SourceBlock,
    shape: HeapShape,
    /// Number of chunks in the file.
    chunks: usize,
    hint: usize,
    queues: [ChunkQueue; CLASSES],
}

impl ChunkIndex {
    /// Creates the index of a file without chunks; `None` if memory is exhausted.
    pub(super) fn new(shape: HeapShape) -> Option<ChunkIndex> {
        let words = shape.capacity.div_ceil(64);
        let (infos, offset) = Layout::array::<u64>(words)
            .ok()?
            .extend(Layout::array::<ChunkInfo>(shape.capacity).ok()?)
            .ok()?;
        let block = Os.take(infos)?;
        let free = block.start.cast();
        // SAFETY: `extend` computed `offset` as the offset of the infos in the block.
        let infos = unsafe { block.start.add(offset) }.cast();
        let queues = [ChunkQueue { first: NIL, last: NIL }; CLASSES];
        Some(ChunkIndex { infos, free, block, shape, chunks: 0, hint: 0, queues })
    }

    #[inline]
    fn info(&mut self, chunk: usize) -> &mut ChunkInfo {
        assert!(chunk < self.shape.capacity, "no such chunk");
        // SAFETY: `infos` has `capacity` elements, and `chunk` is less.
        let place = unsafe { self.infos.add(chunk) };
        // SAFETY: the memory was zero-filled, which is a valid value; no other reference to it
        // exists, and it lives as long as the index.
        unsafe { &mut *place.as_ptr() }
    }

    #[inline]
    fn peek(&self, chunk: usize) -> ChunkInfo {
        assert!(chunk < self.shape.capacity, "no such chunk");
        // SAFETY: `infos` has `capacity` elements, and `chunk` is less.
        let place = unsafe { self.infos.add(chunk) };
        // SAFETY: the memory was zero-filled, which is a valid value, and no write happens at the
        // same time.
        unsafe { place.read() }
    }

    fn bitmap_words(&self) -> &[u64] {
        // SAFETY: the array has this number of words, and was zero-filled.
        unsafe { core::slice::from_raw_parts(self.free.as_ptr(), self.shape.capacity.div_ceil(64)) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        let words = self.shape.capacity.div_ceil(64);
        // SAFETY: the array has this number of words and was zero-filled, and no other reference to
        // it exists.
        unsafe { core::slice::from_raw_parts_mut(self.free.as_ptr(), words) }
    }

    /// Number of chunks in the file.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Sets the number of chunks in the file; the added chunks are free.
    pub(super) fn grow(&mut self, chunks: usize) {
        let first = self.chunks;
        self.chunks = chunks;
        self.release(first, chunks - first);
    }

    /// Marks chunks as free.
    pub(super) fn release(&mut self, first: usize, chunks: usize) {
        for chunk in first..first + chunks {
            *self.info(chunk) = ChunkInfo::NONE;
            self.words_mut()[chunk / 64] |= 1 << (chunk % 64);
        }
        if chunks > 0 {
            self.hint = self.hint.min(first);
        }
    }

    /// Returns the first chunk of the first sequence of `chunks` free chunks.
    pub(super) fn find(&mut self, chunks: usize) -> Option<usize> {
        let mut first = self.next(self.hint, |word| word)?;
        self.hint = first;
        loop {
            let end = self.next(first, |word| !word).unwrap_or(self.chunks).min(self.chunks);
            if end - first >= chunks {
                return Some(first);
            }
            first = self.next(end, |word| word)?;
        }
    }

    /// Number of free chunks at the end of the file.
    pub(super) fn free_at_end(&self) -> usize {
        (0..self.chunks).rev().take_while(|chunk| self.peek(*chunk).kind == FREE).count()
    }

    /// Returns the first chunk, from `from` on, whose bit is set in `view(word)`, where `word` is
    /// the bitmap word of the chunk.
    fn next(&self, from: usize, view: fn(u64) -> u64) -> Option<usize> {
        let words = self.bitmap_words();
        let head = view(*words.get(from / 64)?) & (!0 << (from % 64));
        let rest = words.iter().enumerate().skip(from / 64 + 1).map(|(at, word)| (at, view(*word)));
        let (at, word) =
            core::iter::once((from / 64, head)).chain(rest).find(|(_, word)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros() as usize).filter(|chunk| *chunk < self.chunks)
    }

    fn mark_used(&mut self, chunk: usize, info: ChunkInfo) {
        *self.info(chunk) = info;
        self.words_mut()[chunk / 64] &= !(1 << (chunk % 64));
    }

    /// Turns free chunks into a run.
    pub(super) fn set_run(&mut self, first: usize, chunks: usize) {
        let next = u32::try_from(chunks).unwrap_or(NIL);
        for chunk in first..first + chunks {
            self.mark_used(chunk, ChunkInfo { kind: INSIDE, ..ChunkInfo::NONE });
        }
        self.mark_used(first, ChunkInfo { next, kind: RUN, ..ChunkInfo::NONE });
    }

    /// Assigns a free chunk to a size class; `free` of its blocks are free.
    pub(super) fn set_slab(&mut self, chunk: usize, class: usize, free: usize) {
        let kind = u8::try_from(class + 1).unwrap_or(INSIDE);
        self.mark_used(chunk, ChunkInfo { kind, ..ChunkInfo::NONE });
        if free > 0 {
            self.freed(chunk, class, 0, free);
        }
    }

    /// Returns a chunk of a size class that has free blocks, and the index of the first word of its
    /// bitmap that may have a free block.
    #[inline]
    pub(super) fn with_room(&self, class: usize) -> Option<(usize, usize)> {
        let first = self.queues[class].first;
        if first == NIL {
            return None;
        }
        Some((first as usize, usize::from(self.peek(first as usize).word)))
    }

    /// Records that the first free block of a chunk was allocated. `word` is the index of the
    /// bitmap word with the bit of this block.
    #[inline]
    pub(super) fn taken(&mut self, chunk: usize, class: usize, word: usize) {
        let info = self.info(chunk);
        info.word = u8::try_from(word).unwrap_or(0);
        info.free -= 1;
        if info.free == 0 {
            self.unlink(chunk, class);
        }
    }

    /// Records that `blocks` blocks of a chunk were freed; `word` is the first word of the bitmap
    /// with such a block. Returns true if all blocks of the chunk are free now and other chunks of
    /// its size class have free blocks.
    #[inline]
    pub(super) fn freed(&mut self, chunk: usize, class: usize, word: usize, blocks: usize) -> bool {
        let info = self.info(chunk);
        let before = info.free;
        info.free += u16::try_from(blocks).unwrap_or(0);
        info.word = info.word.min(u8::try_from(word).unwrap_or(0));
        let free = usize::from(info.free);
        if before == 0 {
            self.link(chunk, class);
        }
        free == TABLE[class].slots && !self.is_alone(chunk, class)
    }

    fn is_alone(&self, chunk: usize, class: usize) -> bool {
        let ChunkQueue { first, last } = self.queues[class];
        first == last && first as usize == chunk
    }

    #[inline]
    fn link(&mut self, chunk: usize, class: usize) {
        let number = u32::try_from(chunk).unwrap_or(NIL);
        let last = core::mem::replace(&mut self.queues[class].last, number);
        let info = self.info(chunk);
        (info.next, info.before) = (NIL, last);
        match last {
            NIL => self.queues[class].first = number,
            last => self.info(last as usize).next = number,
        }
    }

    /// Removes a chunk from the queue of its size class.
    #[inline]
    pub(super) fn unlink(&mut self, chunk: usize, class: usize) {
        let ChunkInfo { next, before, .. } = self.peek(chunk);
        match before {
            NIL => self.queues[class].first = next,
            before => self.info(before as usize).next = next,
        }
        match next {
            NIL => self.queues[class].last = before,
            next => self.info(next as usize).before = before,
        }
    }

    /// Returns the index of the first word of a chunk's bitmap that may have a free block.
    pub(super) fn word(&self, chunk: usize) -> usize {
        usize::from(self.peek(chunk).word)
    }

    /// Records that a block of a chunk has a name.
    pub(super) fn set_named(&mut self, found: BlockLookup) {
        self.info(found.chunk()).named = true;
    }

    /// True if a block of the same chunk has a name, or had one since the chunk was last free.
    #[inline]
    pub(super) fn may_be_named(&self, found: BlockLookup) -> bool {
        self.peek(found.chunk()).named
    }

    /// Number of free blocks of a chunk.
    pub(super) fn room(&self, chunk: usize) -> usize {
        usize::from(self.peek(chunk).free)
    }

    /// Returns the size class of a chunk; `None` for free chunks and runs.
    pub(super) fn class(&self, chunk: usize) -> Option<usize> {
        let kind = usize::from(self.peek(chunk).kind);
        kind.checked_sub(1).filter(|class| *class < CLASSES)
    }

    /// Returns the number of chunks of the run that starts at a chunk.
    pub(super) fn run(&self, chunk: usize) -> Option<usize> {
        let info = self.peek(chunk);
        (info.kind == RUN).then_some(info.next as usize)
    }

    /// Returns the block that starts at an offset in the file; `None` if no block can start there.
    #[inline]
    pub(super) fn locate(&self, place: usize) -> Option<BlockLookup> {
        let offset = place.checked_sub(self.shape.data())?;
        let (chunk, inside) = (offset / CHUNK, offset % CHUNK);
        if chunk >= self.chunks {
            return None;
        }
        let info = self.peek(chunk);
        if let Some(row) = TABLE.get(usize::from(info.kind).wrapping_sub(1)) {
            let slot = ChunkClass::slot(row, inside)?;
            return Some(BlockLookup::Slot { chunk, class: usize::from(info.kind) - 1, slot });
        }
        let found = BlockLookup::Run { chunk, chunks: info.next as usize };
        (info.kind == RUN && inside == 0).then_some(found)
    }

    /// Checks the invariants of the queues and the bits.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let mut listed = 0usize;
        for (class, queue) in self.queues.iter().enumerate() {
            let (mut at, mut before) = (queue.first, NIL);
            while at != NIL {
                let info = self.peek(at as usize);
                let fits =
                    usize::from(info.kind) == class + 1 && info.free > 0 && info.before == before;
                listed += 1;
                if !fits || listed > self.chunks {
                    return Err("a queue of chunks with room");
                }
                (before, at) = (at, info.next);
            }
            if before != queue.last {
                return Err("the end of a queue of chunks with room");
            }
        }
        let room =
            (0..self.chunks).filter(|chunk| self.class(*chunk).is_some() && self.room(*chunk) > 0);
        if room.count() != listed {
            return Err("a chunk with room is in no queue");
        }
        let is_free = |chunk: &usize| self.bitmap_words()[chunk / 64] >> (chunk % 64) & 1 == 1;
        let agrees = |chunk: &usize| is_free(chunk) == (self.peek(*chunk).kind == FREE);
        let hinted = (0..self.hint.min(self.chunks)).all(|chunk| !is_free(&chunk));
        if !hinted || !(0..self.chunks).all(|chunk| agrees(&chunk)) {
            return Err("the bits of free chunks");
        }
        Ok(())
    }
}

impl Drop for ChunkIndex {
    fn drop(&mut self) {
        // SAFETY: the block came from this source, and the index is not used any more.
        unsafe { Os.give_back(self.block) };
    }
}

// SAFETY: the memory belongs to the index alone, whichever thread uses it.
unsafe impl Send for ChunkIndex {}
// SAFETY: functions with a shared reference only read the memory.
unsafe impl Sync for ChunkIndex {}

const _: () = assert!(MAX_CHUNKS == 1 << 24 && CLASSES <= 1 << 8, "a block is packed into a word");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_packed_is_the_same_block() {
        let slots = [(0, 0, 0), (MAX_CHUNKS - 1, CLASSES - 1, 511), (7, 3, 100)];
        let slots = slots.map(|(chunk, class, slot)| BlockLookup::Slot { chunk, class, slot });
        let runs = [(0, MAX_CHUNKS), (MAX_CHUNKS - 1, 1), (5, 1000)];
        let runs = runs.map(|(chunk, chunks)| BlockLookup::Run { chunk, chunks });
        for found in slots.into_iter().chain(runs) {
            assert_eq!(BlockLookup::unpack(found.pack()), found);
        }
    }
}
