//! The log of a transaction: the bytes that the transaction has overwritten, and the blocks that
//! become free when it is committed.
//!
//! ```text
//! +-------+----------------+-------------------+-----------+
//! | check | kind, place    | length, previous  | old bytes |    an entry: words of 8 bytes; all valid or none
//! +-------+----------------+-------------------+-----------+
//! ```
//!
//! Invariants:
//! - An entry is valid if its check is computed from its bytes, its position and the generation of
//!   its transaction. So the log ends at the first invalid entry, and a new generation empties the
//!   log.
//! - `previous` is the position of the preceding entry.
//! - Two logs are used alternately: the log of the last committed generation stays unchanged while
//!   the next transaction runs.

use super::format::{AREA, HeapShape, LOG, mix};
use super::index::BlockLookup;
use super::mapping::{HeapFileMapping, barrier};

/// Number of bytes of an entry before its old bytes.
const HEADER: usize = 24;
/// Number of the bit at which the kind begins, in the word that also contains the offset.
const KIND: u32 = 56;

/// Purpose of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEntryKind {
    /// The old bytes of a range; they are copied back unless the transaction is committed.
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
    /// Offset in the file of the range or block that the entry describes.
    pub(super) place: usize,
    pub(super) len: usize,
    /// Offset of the entry in the file.
    at: usize,
    previous: usize,
}

impl LogEntry {
    /// Copies the old bytes back into their range.
    pub(super) fn undo(&self, mapping: &mut HeapFileMapping) {
        for offset in (0..self.len).step_by(8) {
            let old = mapping.load(self.at + HEADER + offset);
            mapping.store(self.place + offset, old);
        }
    }

    /// Returns the first word of the old bytes.
    pub(super) fn old(&self, mapping: &HeapFileMapping) -> u64 {
        mapping.load(self.at + HEADER)
    }
}

/// After this number of bytes of log entries, `append` fails once. Its caller then takes a slow
/// path, which reports counts.
const PAUSE: usize = 4 << 10;

const _: () = assert!(PAUSE <= AREA);

/// The first frees of a transaction, at most this number, are also stored in memory. If the
/// transaction has no further frees, its commit need not read the log.
const FEW: usize = 4;

/// The log of the open transaction, and its first frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// Offset of the log in the file.
    start: usize,
    end: usize,
    /// Offset in the file at which `append` fails the next time; at most `end`.
    pause: usize,
    /// Offset in the file of the next entry, and offset of the last entry from `start`.
    next: usize,
    last: usize,
    frees: usize,
    /// The first frees, packed by [`BlockLookup::pack`].
    first_frees: [u64; FEW],
}

impl Log {
    /// Creates the empty log of a generation.
    #[inline]
    pub(super) fn new(shape: HeapShape, generation: u64) -> Log {
        let start = start(shape, generation);
        let (end, pause) = (start + shape.log, start + PAUSE);
        Log { start, end, pause, next: start, last: 0, frees: 0, first_frees: [0; FEW] }
    }

    /// Empties the log for another generation.
    #[inline]
    pub(super) fn begin(&mut self, shape: HeapShape, generation: u64) {
        self.start = start(shape, generation);
        self.end = self.start + shape.log;
        self.pause = self.start + PAUSE;
        (self.next, self.last, self.frees) = (self.start, 0, 0);
    }

    /// True if the transaction has logged nothing yet.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.start
    }

    /// Called after `append` has returned false. If an entry with `len` old bytes fits into the
    /// log, sets the next offset at which `append` fails, and returns true.
    pub(super) fn go_on(&mut self, len: usize) -> bool {
        let need = HEADER + len;
        let has_room = need <= self.end - self.next;
        if has_room {
            self.pause = (self.next + need.max(PAUSE)).min(self.end);
        }
        has_room
    }

    /// Adds an entry: for [`LogEntryKind::Bytes`], with the bytes of a range that is about to
    /// change. Requires that `place` and `len` are multiples of 8. If `len` is known at compile
    /// time, this takes a few instructions. Returns `false` if the log is full, or if the slow path
    /// must report counts.
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

    /// Stores in memory the block that the last entry frees.
    #[inline]
    pub(super) fn remember(&mut self, found: BlockLookup) {
        if let Some(free) = self.first_frees.get_mut(self.frees) {
            *free = found.pack();
        }
        self.frees += 1;
    }

    /// Returns the number of blocks to free, if all of them are stored in memory.
    #[inline]
    pub(super) fn few_frees(&self) -> Option<usize> {
        (self.frees <= FEW).then_some(self.frees)
    }

    /// Returns the block of the free with this index, which is below [`Log::few_frees`].
    #[inline]
    pub(super) fn free(&self, at: usize) -> BlockLookup {
        BlockLookup::unpack(self.first_frees[at])
    }
}

/// Returns the offset in the file of the log of a generation.
#[inline]
fn start(shape: HeapShape, generation: u64) -> usize {
    LOG + if generation.is_multiple_of(2) { 0 } else { shape.log }
}

#[inline]
fn begin(generation: u64, position: usize, what: u64, sizes: u64) -> u64 {
    // The processor computes both products in parallel, since neither depends on the other.
    mix(generation, what) ^ mix(position as u64, sizes).rotate_left(32)
}

/// Returns the entry at a position of a generation's log, if the entry is valid.
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

/// Iterates over the entries of a generation's log, from the first to the last.
pub(super) fn forward(shape: HeapShape, generation: u64) -> Forward {
    Forward { shape, generation, position: 0, last: 0 }
}

/// Iterator over the entries of a log, from the first to the last.
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
        // In a hostile file, `previous` could lead the iteration from last to first into a loop or
        // outside of the log.
        if entry.previous != self.last {
            return None;
        }
        self.last = self.position;
        self.position += HEADER + entry.len;
        Some(entry)
    }
}

/// Iterates over the entries of a generation's log, from the last to the first.
pub(super) fn backward(mapping: &HeapFileMapping, shape: HeapShape, generation: u64) -> Backward {
    let mut entries = forward(shape, generation);
    while entries.next(mapping).is_some() {}
    let position = (entries.position > 0).then_some(entries.last);
    Backward { shape, generation, position }
}

/// Iterator over the entries of a log, from the last to the first.
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
