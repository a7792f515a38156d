//! Reports of a heap to memory checkers and statistics: each block if a checker is present, and
//! counts.
//!
//! The file does not contain the requested sizes of blocks. So the counts use the sizes of blocks,
//! and checkers treat every byte of a block that existed at the open as accessible.

use core::ptr::NonNull;

use super::format::{CHUNK, CLASSES, ChunkState, HeapShape, TABLE};
use super::index::BlockLookup;
use super::{Persistent, PersistentError};
use crate::source::SourceBlock;
use crate::watch::{self, PoolProgress};

/// Maximum number of transactions between two reports of counts. A large transaction is also
/// reported before its end.
const UNTOLD: u64 = 512;

/// Identity of a heap for checkers and statistics.
#[derive(Debug)]
pub(super) struct WatchedHeap {
    pool: watch::WatchedPool,
    /// Counts of blocks in chunks of a size class.
    pub(super) classes: watch::ClassCounts<CLASSES>,
    /// Mask of generation bits. Counts are reported when the generation has none of these bits, so
    /// that at most an eighth of all transactions is unreported.
    between: u64,
    /// Number of transactions before the last report.
    turns: u64,
    /// True if a memory checker is present.
    closely: bool,
    /// Start and length in bytes of the part of the mapping that was reported.
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: `first` points into the mapping of the heap, which moves to another thread together with
// this value.
unsafe impl Send for WatchedHeap {}
// SAFETY: the functions that a shared reference to a heap may call do not access the pool.
unsafe impl Sync for WatchedHeap {}

impl WatchedHeap {
    /// Creates the record of a file that was mapped just now, about which nothing was reported yet.
    pub(super) fn new(first: NonNull<u8>) -> WatchedHeap {
        let pool = watch::created("persistent");
        WatchedHeap {
            pool,
            classes: watch::ClassCounts::default(),
            between: 0,
            turns: 0,
            closely: watch::checked(),
            first,
            len: 0,
        }
    }

    #[inline]
    pub(super) fn closely(&self) -> bool {
        self.closely
    }

    pub(super) fn set_name(&mut self, name: &str) {
        watch::named(&self.pool, name);
    }

    /// Disables reports of a memory checker while the returned value lives: the heap accesses words
    /// that are only partly in a block.
    #[inline]
    pub(super) fn quiet(&self) -> Option<watch::Quiet> {
        self.closely.then(watch::quiet)
    }

    /// True if counts are reported at the end of the transaction with this generation.
    #[inline]
    pub(super) fn is_turn(&self, generation: u64) -> bool {
        cfg!(feature = "stats") && generation & self.between == 0
    }

    /// Reports the counts, and computes the generation of the next report.
    #[cold]
    pub(super) fn take_turn(&mut self) {
        self.tell();
        self.turns += self.between + 1;
        self.between = (self.turns / 8).clamp(1, UNTOLD).next_power_of_two() - 1;
    }

    /// Reports the counts to the statistics.
    #[cold]
    pub(super) fn tell(&self) {
        self.classes.tell(&self.pool, |class| TABLE[class].size);
    }

    /// Counts a run of chunks: `requested` is the size in bytes of an allocated run, `returned`
    /// that of a freed run, and the other argument is 0.
    pub(super) fn count_run(&self, requested: usize, returned: usize) {
        let (requests, size) = ((requested > 0).into(), requested.max(returned));
        watch::progress(&self.pool, PoolProgress { requests, requested, returned, size });
    }

    /// Reports that the chunks in the file have grown to `len` bytes.
    fn grow(&mut self, len: usize) {
        if len > self.len {
            // SAFETY: the mapping contains all chunks, and `self.len` is at most their length.
            let start = unsafe { self.first.add(self.len) };
            let block = SourceBlock { start, size: len - self.len, zeroed: false };
            watch::taken(&self.pool, block);
            self.len = len;
        }
    }
}

impl Drop for WatchedHeap {
    fn drop(&mut self) {
        if self.len > 0 {
            let block = SourceBlock { start: self.first, size: self.len, zeroed: false };
            watch::given_back(&self.pool, block);
        }
        watch::destroyed(&self.pool);
    }
}

impl Persistent {
    /// Reports all blocks when a heap is opened.
    pub(super) fn introduce(&mut self) -> Result<(), PersistentError> {
        self.tell_growth();
        let mut chunk = 0;
        while chunk < self.index.chunks() {
            chunk += match self.state(chunk)? {
                ChunkState::Free => 1,
                ChunkState::Slab(class) => {
                    self.introduce_slab(chunk, class);
                    1
                }
                ChunkState::Run(chunks) => {
                    self.introduce_blocks(1, chunks * CHUNK);
                    self.introduce_block(self.shape.chunk(chunk), chunks * CHUNK);
                    chunks
                }
            };
        }
        Ok(())
    }

    fn introduce_slab(&mut self, chunk: usize, class: usize) {
        let row = &TABLE[class];
        self.introduce_blocks(row.slots - self.index.room(chunk), row.size);
        let places = (0..row.slots).map(|slot| self.shape.chunk(chunk) + slot * row.size);
        places
            .filter(|place| self.watched.closely && self.taken(*place).is_some())
            .for_each(|place| self.introduce_block(place, row.size));
    }

    fn introduce_block(&self, place: usize, size: usize) {
        if self.watched.closely {
            watch::allocated_zeroed(&self.watched.pool, self.address(place), size);
        }
    }

    fn introduce_blocks(&mut self, requests: usize, size: usize) {
        let requested = requests * size;
        watch::progress(
            &self.watched.pool,
            PoolProgress { requests, requested, returned: 0, size },
        );
    }

    /// Reports the new length of the file.
    pub(super) fn tell_growth(&mut self) {
        self.watched.grow(self.index.chunks() * CHUNK);
    }

    /// Makes a whole block accessible for checkers, since its user receives its full size.
    pub(super) fn open_up(&self, place: usize, size: usize) {
        if self.watched.closely {
            watch::ours(self.address(place), size);
        }
    }

    fn address(&self, place: usize) -> NonNull<u8> {
        assert!(place < self.mapping.len(), "outside of the heap");
        // SAFETY: the assertion above checked that the address is mapped.
        unsafe { self.mapping.base.add(place) }
    }

    /// Allocates a block with a red zone after it.
    #[cold]
    pub(super) fn take_apart(
        &mut self,
        size: usize,
        align: usize,
    ) -> Result<usize, PersistentError> {
        let place = self.allocate_place(size.saturating_add(watch::GAP), align)?;
        watch::allocated(&self.watched.pool, self.address(place), size);
        Ok(place)
    }

    /// Reports to memory checkers that a block is free again.
    #[cold]
    pub(super) fn tell_freed(&self, found: BlockLookup) {
        let place = match found {
            BlockLookup::Slot { chunk, class, slot } => {
                self.shape.chunk(chunk) + slot * TABLE[class].size
            }
            BlockLookup::Run { chunk, .. } => self.shape.chunk(chunk),
        };
        watch::freed(&self.watched.pool, self.address(place), found.size());
    }
}

/// Returns the address of the first byte that is reported to checkers.
pub(super) fn first(base: NonNull<u8>, shape: HeapShape) -> NonNull<u8> {
    // SAFETY: the mapping contains the metadata, behind which the chunks begin.
    unsafe { base.add(shape.data()) }
}
