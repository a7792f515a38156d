//! What a heap tells those who watch memory: each block, where they check accesses, and counts.
//!
//! Blocks keep no note of the size they were asked for, so counts are of the sizes that blocks have, and a block that was there
//! when the heap was opened can be touched as a whole.

use core::ptr::NonNull;

use super::format::{CHUNK, CLASSES, Shape, State, TABLE};
use super::index::Found;
use super::{Error, Persistent};
use crate::source::Block;
use crate::watch::{self, Progress};

/// How many transactions are untold at most, large ones apart.
const UNTOLD: u64 = 512;

/// A heap, as its watchers know it.
#[derive(Debug)]
pub(super) struct Watched {
    pool: watch::Pool,
    /// What was counted of blocks that share chunks.
    pub(super) classes: watch::Classes<CLASSES>,
    /// Counts are told when the generation has none of these bits: an eighth of all transactions are untold at most.
    between: u64,
    /// How many transactions there were when they were told last.
    turns: u64,
    /// Whether accesses are checked.
    closely: bool,
    /// From where on and up to where watchers know what lies in the file.
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: what it points to belongs to the mapping beside it.
unsafe impl Send for Watched {}
// SAFETY: through a shared reference nothing is told of the pool.
unsafe impl Sync for Watched {}

impl Watched {
    /// Of a file that is mapped here, in which watchers know nothing yet.
    pub(super) fn new(first: NonNull<u8>) -> Watched {
        let pool = watch::created("persistent");
        Watched {
            pool,
            classes: watch::Classes::default(),
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

    /// While the heap reads or writes words of which a block may have a part only.
    #[inline]
    pub(super) fn quiet(&self) -> Option<watch::Quiet> {
        self.closely.then(watch::quiet)
    }

    /// Whether counts are told at the end of the transaction that made this the generation.
    #[inline]
    pub(super) fn is_turn(&self, generation: u64) -> bool {
        cfg!(feature = "stats") && generation & self.between == 0
    }

    /// Tells what was counted, and when to do so next.
    #[cold]
    pub(super) fn take_turn(&mut self) {
        self.tell();
        self.turns += self.between + 1;
        self.between = (self.turns / 8).clamp(1, UNTOLD).next_power_of_two() - 1;
    }

    /// Tells what was counted.
    #[cold]
    pub(super) fn tell(&self) {
        self.classes.tell(&self.pool, |class| TABLE[class].size);
    }

    /// Counts a run that is taken, or is free again.
    pub(super) fn count_run(&self, requested: usize, returned: usize) {
        let (requests, size) = ((requested > 0).into(), requested.max(returned));
        watch::progress(&self.pool, Progress { requests, requested, returned, size });
    }

    /// The file has so many bytes of chunks now.
    fn grow(&mut self, len: usize) {
        if len > self.len {
            // SAFETY: all of it is mapped.
            let start = unsafe { self.first.add(self.len) };
            let block = Block { start, size: len - self.len, zeroed: false };
            watch::taken(&self.pool, block);
            self.len = len;
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.len > 0 {
            let block = Block { start: self.first, size: self.len, zeroed: false };
            watch::given_back(&self.pool, block);
        }
        watch::destroyed(&self.pool);
    }
}

impl Persistent {
    /// Tells of all that is there when a heap is opened.
    pub(super) fn introduce(&mut self) -> Result<(), Error> {
        self.tell_growth();
        let mut chunk = 0;
        while chunk < self.index.chunks() {
            chunk += match self.state(chunk)? {
                State::Free => 1,
                State::Slab(class) => {
                    self.introduce_slab(chunk, class);
                    1
                }
                State::Run(chunks) => {
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
        watch::progress(&self.watched.pool, Progress { requests, requested, returned: 0, size });
    }

    /// Tells how long the file is now.
    pub(super) fn tell_growth(&mut self) {
        self.watched.grow(self.index.chunks() * CHUNK);
    }

    /// Makes a block touchable as a whole, since its user knows how large it is.
    pub(super) fn open_up(&self, place: usize, size: usize) {
        if self.watched.closely {
            watch::ours(self.address(place), size);
        }
    }

    fn address(&self, place: usize) -> NonNull<u8> {
        assert!(place < self.mapping.len(), "outside of the heap");
        // SAFETY: it is mapped, as was just checked.
        unsafe { self.mapping.base.add(place) }
    }

    /// Takes a block with bytes behind it that nobody may touch.
    #[cold]
    pub(super) fn take_apart(&mut self, size: usize, align: usize) -> Result<usize, Error> {
        let place = self.take(size.saturating_add(watch::GAP), align)?;
        watch::allocated(&self.watched.pool, self.address(place), size);
        Ok(place)
    }

    /// Tells those who check accesses that a block is free again.
    #[cold]
    pub(super) fn tell_freed(&self, found: Found) {
        let place = match found {
            Found::Slot { chunk, class, slot } => {
                self.shape.chunk(chunk) + slot * TABLE[class].size
            }
            Found::Run { chunk, .. } => self.shape.chunk(chunk),
        };
        watch::freed(&self.watched.pool, self.address(place), found.size());
    }
}

/// Where watchers begin to look.
pub(super) fn first(base: NonNull<u8>, shape: Shape) -> NonNull<u8> {
    // SAFETY: the chunks are mapped behind what describes them.
    unsafe { base.add(shape.data()) }
}
