//! The log of a transaction: the bytes that it overwrote, and the blocks that it frees once it is
//! committed.
//!
//! ```text
//! +-------+----------------+-------------------+-----------+
//! | check | kind, place    | length, previous  | old bytes |    an entry: words of 8 bytes; all valid or none
//! +-------+----------------+-------------------+-----------+
//! ```
//!
//! Invariants: an entry is valid if its check is that of its bytes, its position and its
//! transaction's generation. So the log ends at the first invalid entry, and a new generation
//! empties it. `previous` is the position of the entry before. Generations use two logs in turn:
//! the last committed one stays whole while the next one runs.

use super::format::{AREA, HeapShape, LOG, mix};
use super::index::BlockLookup;
use super::mapping::{HeapFileMapping, barrier};

/// Bytes of an entry before the old bytes.
const HEADER: usize = 24;
/// Position of the kind in the word of the offset.
const KIND: u32 = 56;

/// Purpose of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEntryKind {
    /// The bytes that were at a place: copied back unless the transaction is committed.
    Bytes = 1,
    /// A block that is freed once the transaction is committed.
    Free = 2,
    /// A block that is freed unless the transaction is committed.
    Take = 3,
}

/// An entry of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEntry {
    pub(super) kind: LogEntryKind,
    /// Offset in the file of the range or block that it describes.
    pub(super) place: usize,
    pub(super) len: usize,
    /// Offset in the file.
    at: usize,
    previous: usize,
}

impl LogEntry {
    /// Copies the old bytes back.
    pub(super) fn undo(&self, mapping: &mut HeapFileMapping) {
        for offset in (0..self.len).step_by(8) {
            let old = mapping.load(self.at + HEADER + offset);
            mapping.store(self.place + offset, old);
        }
    }

    /// The first word of the old bytes.
    pub(super) fn old(&self, mapping: &HeapFileMapping) -> u64 {
        mapping.load(self.at + HEADER)
    }
}

/// Bytes of log entries between two pauses of a writer.
const PAUSE: usize = 4 << 10;

const _: () = assert!(PAUSE <= AREA);

/// Number of frees of a transaction that are known without reading its log again.
const FEW: usize = 4;

/// The log of the open transaction, and what it frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// Offset in the file.
    start: usize,
    end: usize,
    /// Position of the next pause: `end` at the latest.
    pause: usize,
    /// Position of the next entry, and distance of the last one from the start.
    next: usize,
    last: usize,
    frees: usize,
    /// The first frees, as packed words.
    first_frees: [u64; FEW],
}

impl Log {
    /// The empty log of a generation.
    #[inline]
    pub(super) fn new(shape: HeapShape, generation: u64) -> Log {
        let start = start(shape, generation);
        let (end, pause) = (start + shape.log, start + PAUSE);
        Log { start, end, pause, next: start, last: 0, frees: 0, first_frees: [0; FEW] }
    }

    /// Empties the log, for another generation.
    #[inline]
    pub(super) fn begin(&mut self, shape: HeapShape, generation: u64) {
        self.start = start(shape, generation);
        self.end = self.start + shape.log;
        self.pause = self.start + PAUSE;
        (self.next, self.last, self.frees) = (self.start, 0, 0);
    }

    /// True if the transaction has done nothing yet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.start
    }

    /// Called after a refusal of `append`. Sets the next pause, and returns true if an entry of
    /// this length fits.
    pub(super) fn go_on(&mut self, len: usize) -> bool {
        let need = HEADER + len;
        let has_room = need <= self.end - self.next;
        if has_room {
            self.pause = (self.next + need.max(PAUSE)).min(self.end);
        }
        has_room
    }

    /// Logs data that is about to change. Offsets and lengths are multiples of 8. With a length
    /// known at compile time this takes a few instructions. Returns `false` if a pause is due, or
    /// if the log is full.
    #[inline(always)]
    pub(super) fn append(
        &mut self,
        mapping: &mut HeapFileMapping,
        generation: u64,
        kind: LogEntryKind,
        (place, len): (usize, usize),
    ) -> bool {
        let (at, position) = (self.next, self.next - self.start);
        if HEADER + len > self.pause - at {
            return false;
        }
        let what = (kind as u64) << KIND | place as u64;
        let sizes = (self.last as u64) << 32 | len as u64;
        let mut hash = begin(generation, position, what, sizes);
        for offset in (0..len).step_by(8) {
            let old = mapping.load(place + offset);
            mapping.store(at + HEADER + offset, old);
            hash = mix(hash, old);
        }
        mapping.store_all(at, [hash, what, sizes]);
        barrier();
        self.last = position;
        self.next = at + HEADER + len;
        true
    }

    /// Records the block that the last entry frees.
    #[inline]
    pub(super) fn remember(&mut self, found: BlockLookup) {
        if let Some(free) = self.first_frees.get_mut(self.frees) {
            *free = found.pack();
        }
        self.frees += 1;
    }

    /// Number of blocks to free, if it is small enough that all are known.
    #[inline]
    pub(super) fn few_frees(&self) -> Option<usize> {
        (self.frees <= FEW).then_some(self.frees)
    }

    /// One of the frees that [`Log::few_frees`] counts.
    #[inline]
    pub(super) fn free(&self, at: usize) -> BlockLookup {
        BlockLookup::unpack(self.first_frees[at])
    }
}

/// Offset of the log of a generation.
#[inline]
fn start(shape: HeapShape, generation: u64) -> usize {
    LOG + if generation.is_multiple_of(2) { 0 } else { shape.log }
}

#[inline]
fn begin(generation: u64, position: usize, what: u64, sizes: u64) -> u64 {
    // Two products that do not wait for each other.
    mix(generation, what) ^ mix(position as u64, sizes).rotate_left(32)
}

/// The entry at a position of a generation's log, where there is a valid one.
fn read(
    mapping: &HeapFileMapping,
    shape: HeapShape,
    generation: u64,
    position: usize,
) -> Option<LogEntry> {
    let room = shape.log.checked_sub(position)?.checked_sub(HEADER)?;
    let at = start(shape, generation) + position;
    let (what, sizes) = (mapping.load(at + 8), mapping.load(at + 16));
    let len = usize::try_from(sizes & u64::from(u32::MAX)).ok()?;
    if len > room || !len.is_multiple_of(8) {
        return None;
    }
    let words = (0..len).step_by(8).map(|offset| mapping.load(at + HEADER + offset));
    let hash = words.fold(begin(generation, position, what, sizes), mix);
    let kind = match what >> KIND {
        1 => LogEntryKind::Bytes,
        2 => LogEntryKind::Free,
        3 => LogEntryKind::Take,
        _ => return None,
    };
    let place = usize::try_from(what & ((1 << KIND) - 1)).ok()?;
    let previous = usize::try_from(sizes >> 32).ok()?;
    (mapping.load(at) == hash).then_some(LogEntry { kind, place, len, at, previous })
}

/// The entries of a generation's log, from the first to the last.
pub(super) fn forward(shape: HeapShape, generation: u64) -> Forward {
    Forward { shape, generation, position: 0, last: 0 }
}

/// Position in a log from which its entries are read forward.
#[derive(Debug)]
pub(super) struct Forward {
    shape: HeapShape,
    generation: u64,
    position: usize,
    last: usize,
}

impl Forward {
    pub(super) fn next(&mut self, mapping: &HeapFileMapping) -> Option<LogEntry> {
        let entry = read(mapping, self.shape, self.generation, self.position)?;
        // In a hostile file, `previous` could lead a backward reader in circles, or far away.
        if entry.previous != self.last {
            return None;
        }
        self.last = self.position;
        self.position += HEADER + entry.len;
        Some(entry)
    }
}

/// The entries of a generation's log, from the last to the first.
pub(super) fn backward(mapping: &HeapFileMapping, shape: HeapShape, generation: u64) -> Backward {
    let mut entries = forward(shape, generation);
    while entries.next(mapping).is_some() {}
    let position = (entries.position > 0).then_some(entries.last);
    Backward { shape, generation, position }
}

/// Position in a log from which its entries are read backward.
#[derive(Debug)]
pub(super) struct Backward {
    shape: HeapShape,
    generation: u64,
    position: Option<usize>,
}

impl Backward {
    pub(super) fn next(&mut self, mapping: &HeapFileMapping) -> Option<LogEntry> {
        let position = self.position?;
        let entry = read(mapping, self.shape, self.generation, position)?;
        self.position = (position > 0).then_some(entry.previous);
        Some(entry)
    }
}
