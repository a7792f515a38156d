//! Synthetic processes for tests.

use pagewise_model::mapping::{Prot, Sharing};
use pagewise_model::{Absent, AddrRange, Device, Mapping, Name};

use crate::memory::{Memory, ScannedThread};

/// Memory of a synthetic process.
#[derive(Clone)]
pub(crate) struct MadeProcess {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) threads: Vec<ScannedThread>,
    pub(crate) pieces: Vec<MemoryPiece>,
}

/// A range of bytes of a synthetic process.
#[derive(Clone)]
pub(crate) struct MemoryPiece {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

impl MemoryPiece {
    fn range(&self) -> AddrRange {
        AddrRange { start: self.start, end: self.start + self.bytes.len() as u64 }
    }
}

impl Memory for MadeProcess {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn threads(&self) -> &[ScannedThread] {
        &self.threads
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        let first = self.pieces.partition_point(|piece| piece.range().end <= range.start);
        let parts = self.pieces[first..]
            .iter()
            .map_while(|piece| piece.range().intersection(range).map(|part| (piece, part)));
        for (piece, part) in parts {
            let [first, end] = [part.start.next_multiple_of(8), part.end]
                .map(|at| usize::try_from(at - piece.start).unwrap());
            if first < end {
                each(piece.start + first as u64, &piece.bytes[first..end]);
            }
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let index = self.pieces.partition_point(|piece| piece.range().end <= address);
        let piece = self.pieces.get(index).filter(|piece| piece.start <= address);
        let bytes = piece.and_then(|piece| {
            let first = usize::try_from(address - piece.start).unwrap();
            piece.bytes.get(first..first + into.len())
        });
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

/// Creates a private writable mapping.
pub(crate) fn mapping(start: u64, bytes: u64, name: &str, inode: u64) -> Mapping {
    Mapping {
        range: AddrRange { start, end: start + bytes },
        prot: Prot { read: true, write: true, exec: false },
        sharing: Sharing::Private,
        offset: 0,
        device: Device::default(),
        inode,
        name: Name::new(name.as_bytes()),
        on_tmpfs: false,
        smaps: Err(Absent::NeverScheduled),
        pages: Err(Absent::NeverScheduled),
    }
}

impl MadeProcess {
    /// Creates a process with zero-filled memory and one thread for each thread pointer.
    pub(crate) fn new(mut mappings: Vec<Mapping>, thread_pointers: &[u64]) -> MadeProcess {
        mappings.sort_by_key(|mapping| mapping.range);
        let pieces = mappings.iter().map(|it| MemoryPiece {
            start: it.range.start,
            bytes: vec![0; usize::try_from(it.range.len().0).unwrap()],
        });
        let pieces = pieces.collect();
        let thread = |(tid, &thread_pointer)| ScannedThread {
            tid,
            name: Vec::new(),
            stack_pointer: 0,
            thread_pointer,
            registers: Vec::new(),
        };
        let threads = (1..).zip(thread_pointers).map(thread).collect();
        MadeProcess { mappings, threads, pieces }
    }

    pub(crate) fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            self.put_narrow(at, u64::from(*byte), 1);
        }
    }

    pub(crate) fn put(&mut self, address: u64, word: u64) {
        let mut pieces = self.pieces.iter_mut();
        let piece = pieces.find(|piece| piece.range().contains(address)).unwrap();
        let at = usize::try_from(address - piece.start).unwrap();
        piece.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn put_narrow(&mut self, address: u64, value: u64, width: u64) {
        let old = self.word(address & !7).unwrap();
        let shift = 8 * (address % 8);
        let mask = ((1 << (8 * width)) - 1) << shift;
        self.put(address & !7, (old & !mask) | (value << shift));
    }

    /// Replaces `words` random words of the memory by random values, or by addresses in the memory.
    pub(crate) fn damage(&mut self, random: &mut fastrand::Rng, words: usize) {
        for _ in 0..words {
            let index = random.usize(..self.pieces.len());
            let word = random.usize(..self.pieces[index].bytes.len() / 8) * 8;
            let other = self.mappings[random.usize(..self.mappings.len())].range;
            let value = match random.u8(..4) {
                0 => random.u64(..),
                1 => random.u64(..256),
                _ => random.u64(other.start..other.end) & !15,
            };
            self.pieces[index].bytes[word..word + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
}
