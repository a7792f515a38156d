//! Which chunks are free and which have room, in memory of our own: worked out from the file when it is opened, checked
//! meanwhile, and never written to it. What it says of blocks can be trusted, whatever the file says.
//!
//! ```text
//! infos:  an Info for each chunk that there may be; those of a size with room are a queue, linked by numbers of chunks
//! free:   a bit for each chunk, set where it is free
//! ```
//!
//! Invariants: `kind` is 0 for free chunks and those that the file does not have yet; a chunk is in the queue of its class
//! where `free > 0`, and in no queue otherwise; no chunk before `hint` is free; no word of a bitmap before that chunk's
//! `word` has a free block.
//!
//! Blocks are taken of the first chunk of a queue until it is full, and chunks that get room go to the end: by their turn
//! they have more of it, so that chunks come and go seldom and blocks taken one after another lie together.

use core::alloc::Layout;
use core::ptr::NonNull;

use super::format::{CHUNK, CLASSES, Class, MOST_CHUNKS, Shape, TABLE};
use crate::source::{Block, Os, Source};

/// No chunk.
const NIL: u32 = u32::MAX;
const FREE: u8 = 0;
const RUN: u8 = 254;
const INSIDE: u8 = 255;

#[derive(Clone, Copy, Debug)]
struct Info {
    /// The next in the list; of a run, its length.
    next: u32,
    before: u32,
    /// How many blocks of a chunk are free.
    free: u16,
    /// `FREE`, 1 + class, `RUN` or `INSIDE`.
    kind: u8,
    /// The first word of the bitmap that may have a free block.
    word: u8,
    /// Whether one of its blocks may have a name.
    named: bool,
}

impl Info {
    const NONE: Info = Info { next: NIL, before: NIL, free: 0, kind: FREE, word: 0, named: false };
}

/// The chunks of a class that have room.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

/// A block, as its place tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Shares a chunk with others of its class; whether it is taken is in the bitmap.
    Slot { chunk: usize, class: usize, slot: usize },
    /// A run of this many chunks.
    Run { chunk: usize, chunks: usize },
}

impl Found {
    /// How many bytes it has.
    #[inline]
    pub(super) fn size(self) -> usize {
        match self {
            Found::Slot { class, .. } => TABLE[class].size,
            Found::Run { chunks, .. } => chunks * CHUNK,
        }
    }

    /// In one word, which is stored and loaded at once. Chunks and their numbers have 24 bits, slots 16.
    #[inline]
    pub(super) fn pack(self) -> u64 {
        match self {
            Found::Slot { chunk, class, slot } => ((chunk << 24) | (class << 16) | slot) as u64,
            Found::Run { chunk, chunks } => {
                ((chunk << 24) | (chunks % Self::LONGEST)) as u64 | Self::RUN
            }
        }
    }

    /// What was packed.
    #[inline]
    pub(super) fn unpack(word: u64) -> Found {
        #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
        let (low, chunk) = (word as usize & 0xff_ffff, (word >> 24) as usize & 0xff_ffff);
        if word & Self::RUN == 0 {
            return Found::Slot { chunk, class: low >> 16, slot: low & 0xffff };
        }
        Found::Run { chunk, chunks: if low == 0 { Self::LONGEST } else { low } }
    }

    const RUN: u64 = 1 << 48;
    /// A run of all chunks there may be is packed as 0.
    const LONGEST: usize = MOST_CHUNKS;

    #[inline]
    fn chunk(self) -> usize {
        match self {
            Found::Slot { chunk, .. } | Found::Run { chunk, .. } => chunk,
        }
    }
}

/// What is known of the chunks.
#[derive(Debug)]
pub(super) struct Index {
    infos: NonNull<Info>,
    free: NonNull<u64>,
    block: Block,
    shape: Shape,
    /// How many chunks the file has.
    chunks: usize,
    hint: usize,
    queues: [Queue; CLASSES],
}

impl Index {
    /// Of a file without chunks; `None` where there is no memory.
    pub(super) fn new(shape: Shape) -> Option<Index> {
        let words = shape.capacity.div_ceil(64);
        let (infos, offset) = Layout::array::<u64>(words)
            .ok()?
            .extend(Layout::array::<Info>(shape.capacity).ok()?)
            .ok()?;
        let block = Os.take(infos)?;
        let free = block.start.cast();
        // SAFETY: the layout above has the infos there.
        let infos = unsafe { block.start.add(offset) }.cast();
        let queues = [Queue { first: NIL, last: NIL }; CLASSES];
        Some(Index { infos, free, block, shape, chunks: 0, hint: 0, queues })
    }

    #[inline]
    fn info(&mut self, chunk: usize) -> &mut Info {
        assert!(chunk < self.shape.capacity, "no such chunk");
        // SAFETY: there are as many as the capacity, and one more than the last is not reached.
        let place = unsafe { self.infos.add(chunk) };
        // SAFETY: zeroed memory is an info, nobody else has a reference to it, and it lives as long as the index.
        unsafe { &mut *place.as_ptr() }
    }

    #[inline]
    fn peek(&self, chunk: usize) -> Info {
        assert!(chunk < self.shape.capacity, "no such chunk");
        // SAFETY: there are as many as the capacity, and one more than the last is not reached.
        let place = unsafe { self.infos.add(chunk) };
        // SAFETY: zeroed memory is an info, and nobody writes to it meanwhile.
        unsafe { place.read() }
    }

    fn words(&self) -> &[u64] {
        // SAFETY: as many words were laid out there, and they were zeroed.
        unsafe { core::slice::from_raw_parts(self.free.as_ptr(), self.shape.capacity.div_ceil(64)) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        let words = self.shape.capacity.div_ceil(64);
        // SAFETY: as above, and nobody else has a reference to them.
        unsafe { core::slice::from_raw_parts_mut(self.free.as_ptr(), words) }
    }

    /// How many chunks the file has.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Takes in that the file has this many chunks: those that are new are free.
    pub(super) fn grow(&mut self, chunks: usize) {
        let first = self.chunks;
        self.chunks = chunks;
        self.release(first, chunks - first);
    }

    /// Makes chunks free.
    pub(super) fn release(&mut self, first: usize, chunks: usize) {
        for chunk in first..first + chunks {
            *self.info(chunk) = Info::NONE;
            self.words_mut()[chunk / 64] |= 1 << (chunk % 64);
        }
        if chunks > 0 {
            self.hint = self.hint.min(first);
        }
    }

    /// The first of so many free chunks, the lowest there are.
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

    /// How many chunks at the end of the file are free.
    pub(super) fn free_at_end(&self) -> usize {
        (0..self.chunks).rev().take_while(|chunk| self.peek(*chunk).kind == FREE).count()
    }

    /// The next chunk from `from` on whose bit is set in `view` of its word.
    fn next(&self, from: usize, view: fn(u64) -> u64) -> Option<usize> {
        let words = self.words();
        let head = view(*words.get(from / 64)?) & (!0 << (from % 64));
        let rest = words.iter().enumerate().skip(from / 64 + 1).map(|(at, word)| (at, view(*word)));
        let (at, word) =
            core::iter::once((from / 64, head)).chain(rest).find(|(_, word)| *word != 0)?;
        Some(at * 64 + word.trailing_zeros() as usize).filter(|chunk| *chunk < self.chunks)
    }

    fn take(&mut self, chunk: usize, info: Info) {
        *self.info(chunk) = info;
        self.words_mut()[chunk / 64] &= !(1 << (chunk % 64));
    }

    /// Makes free chunks a run.
    pub(super) fn set_run(&mut self, first: usize, chunks: usize) {
        let next = u32::try_from(chunks).unwrap_or(NIL);
        for chunk in first..first + chunks {
            self.take(chunk, Info { kind: INSIDE, ..Info::NONE });
        }
        self.take(first, Info { next, kind: RUN, ..Info::NONE });
    }

    /// Makes a free chunk one of a class, of which so many blocks are free.
    pub(super) fn set_slab(&mut self, chunk: usize, class: usize, free: usize) {
        let kind = u8::try_from(class + 1).unwrap_or(INSIDE);
        self.take(chunk, Info { kind, ..Info::NONE });
        if free > 0 {
            self.freed(chunk, class, 0, free);
        }
    }

    /// A chunk of a class that has room, and the first word of its bitmap that may say where.
    #[inline]
    pub(super) fn with_room(&self, class: usize) -> Option<(usize, usize)> {
        let first = self.queues[class].first;
        if first == NIL {
            return None;
        }
        Some((first as usize, usize::from(self.peek(first as usize).word)))
    }

    /// Takes in that a block of a chunk is taken, the first that was free: of this word of its bitmap.
    #[inline]
    pub(super) fn taken(&mut self, chunk: usize, class: usize, word: usize) {
        let info = self.info(chunk);
        info.word = u8::try_from(word).unwrap_or(0);
        info.free -= 1;
        if info.free == 0 {
            self.unlink(chunk, class);
        }
    }

    /// Takes in that so many more blocks of a chunk are free, in this word of its bitmap or behind it. Returns whether all
    /// are, and others of the class have room.
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
        let Queue { first, last } = self.queues[class];
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

    /// Takes a chunk out of the queue of its class.
    #[inline]
    pub(super) fn unlink(&mut self, chunk: usize, class: usize) {
        let Info { next, before, .. } = self.peek(chunk);
        match before {
            NIL => self.queues[class].first = next,
            before => self.info(before as usize).next = next,
        }
        match next {
            NIL => self.queues[class].last = before,
            next => self.info(next as usize).before = before,
        }
    }

    /// The first word of a chunk's bitmap that may have a free block.
    pub(super) fn word(&self, chunk: usize) -> usize {
        usize::from(self.peek(chunk).word)
    }

    /// Takes in that a block of a chunk has a name.
    pub(super) fn set_named(&mut self, found: Found) {
        self.info(found.chunk()).named = true;
    }

    /// Whether a block may have a name.
    #[inline]
    pub(super) fn may_be_named(&self, found: Found) -> bool {
        self.peek(found.chunk()).named
    }

    /// How many blocks of a chunk are free.
    pub(super) fn room(&self, chunk: usize) -> usize {
        usize::from(self.peek(chunk).free)
    }

    /// The class of a chunk, where it has one.
    pub(super) fn class(&self, chunk: usize) -> Option<usize> {
        let kind = usize::from(self.peek(chunk).kind);
        kind.checked_sub(1).filter(|class| *class < CLASSES)
    }

    /// The length of the run that starts at a chunk.
    pub(super) fn run(&self, chunk: usize) -> Option<usize> {
        let info = self.peek(chunk);
        (info.kind == RUN).then_some(info.next as usize)
    }

    /// Which block starts at a place of the file.
    #[inline]
    pub(super) fn locate(&self, place: usize) -> Option<Found> {
        let offset = place.checked_sub(self.shape.data())?;
        let (chunk, inside) = (offset / CHUNK, offset % CHUNK);
        if chunk >= self.chunks {
            return None;
        }
        let info = self.peek(chunk);
        if let Some(row) = TABLE.get(usize::from(info.kind).wrapping_sub(1)) {
            let slot = Class::slot(row, inside)?;
            return Some(Found::Slot { chunk, class: usize::from(info.kind) - 1, slot });
        }
        let found = Found::Run { chunk, chunks: info.next as usize };
        (info.kind == RUN && inside == 0).then_some(found)
    }

    /// What must hold of the queues and the bits.
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
        let is_free = |chunk: &usize| self.words()[chunk / 64] >> (chunk % 64) & 1 == 1;
        let agrees = |chunk: &usize| is_free(chunk) == (self.peek(*chunk).kind == FREE);
        let hinted = (0..self.hint.min(self.chunks)).all(|chunk| !is_free(&chunk));
        if !hinted || !(0..self.chunks).all(|chunk| agrees(&chunk)) {
            return Err("the bits of free chunks");
        }
        Ok(())
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // SAFETY: it came from there, and the index is used no more.
        unsafe { Os.give_back(self.block) };
    }
}

// SAFETY: its memory belongs to it alone, on whatever thread.
unsafe impl Send for Index {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Index {}

const _: () = assert!(MOST_CHUNKS == 1 << 24 && CLASSES <= 1 << 8, "a block is packed into a word");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_packed_is_the_same_block() {
        let slots = [(0, 0, 0), (MOST_CHUNKS - 1, CLASSES - 1, 511), (7, 3, 100)];
        let slots = slots.map(|(chunk, class, slot)| Found::Slot { chunk, class, slot });
        let runs = [(0, MOST_CHUNKS), (MOST_CHUNKS - 1, 1), (5, 1000)];
        let runs = runs.map(|(chunk, chunks)| Found::Run { chunk, chunks });
        for found in slots.into_iter().chain(runs) {
            assert_eq!(Found::unpack(found.pack()), found);
        }
    }
}
