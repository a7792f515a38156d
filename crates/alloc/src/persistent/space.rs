//! Allocation and frees of blocks in a transaction, the undo of a transaction, and counts of
//! blocks.
//!
//! Invariants of the order of stores: the log entry of a range or block is stored before any store
//! to the range or block. With [`Durability::Power`] the entry is also flushed before this store.
//! The next generation is stored in the head after all stores of the transaction: this store is the
//! commit. The blocks that the transaction freed become free after the commit.

use super::format::{
    CHUNK, CHUNKS, CLASSES, ChunkClass, ChunkState, GENERATION, TABLE, checked, class_of, next,
};
use super::index::BlockLookup;
use super::log::{self, LogEntry, LogEntryKind};
use super::{Durability, Persistent, PersistentError, PersistentUsage};

impl Persistent {
    /// Allocates a block in the open transaction. Returns its offset in the file.
    #[inline]
    pub(super) fn allocate_place(
        &mut self,
        size: usize,
        align: usize,
    ) -> Result<usize, PersistentError> {
        match class_of(size, align) {
            Some(class) => self.take_slot(class),
            None if align <= CHUNK => self.take_run(size.div_ceil(CHUNK)),
            None => Err(PersistentError::Alignment),
        }
    }

    #[inline]
    fn take_slot(&mut self, class: usize) -> Result<usize, PersistentError> {
        let (chunk, from) = match self.index.with_room(class) {
            Some(found) => found,
            None => (self.new_slab(class)?, 0),
        };
        let row = &TABLE[class];
        let bitmap = self.shape.bitmap(chunk);
        for word in from..row.words {
            let bits = self.mapping.load(bitmap + word * 8);
            if bits != !0 {
                let slot = word * 64 + bits.trailing_ones() as usize;
                let place = self.shape.chunk(chunk) + slot * row.size;
                self.note(LogEntryKind::Take, place, 0)?;
                self.mapping.store(bitmap + word * 8, bits | (bits + 1));
                self.index.taken(chunk, class, word);
                self.watched.classes.asked(class);
                return Ok(place);
            }
        }
        Err(PersistentError::Corrupt { what: "a bitmap", place: bitmap as u64 })
    }

    /// Assigns a free chunk to a size class.
    #[cold]
    fn new_slab(&mut self, class: usize) -> Result<usize, PersistentError> {
        let chunk = self.free_chunks(1)?;
        let entry = self.shape.entry(chunk);
        self.note(LogEntryKind::Bytes, entry, 8)?;
        // The bitmap of a free chunk is never read, so its old content need not be logged.
        for word in 0..TABLE[class].words {
            self.mapping.store(self.shape.bitmap(chunk) + word * 8, TABLE[class].empty(word));
        }
        self.mapping.store(entry, ChunkState::Slab(class).word(entry));
        self.index.set_slab(chunk, class, TABLE[class].slots);
        Ok(chunk)
    }

    #[cold]
    fn take_run(&mut self, chunks: usize) -> Result<usize, PersistentError> {
        let first = self.free_chunks(chunks)?;
        let (entry, place) = (self.shape.entry(first), self.shape.chunk(first));
        self.note(LogEntryKind::Take, place, 0)?;
        self.mapping.store(entry, ChunkState::Run(chunks).word(entry));
        self.index.set_run(first, chunks);
        self.watched.count_run(chunks * CHUNK, 0);
        Ok(place)
    }

    /// Allocates consecutive free chunks; the file grows if necessary.
    fn free_chunks(&mut self, chunks: usize) -> Result<usize, PersistentError> {
        if let Some(first) = self.index.find(chunks) {
            return Ok(first);
        }
        let has = self.index.chunks();
        let need = has.saturating_add(chunks).saturating_sub(self.index.free_at_end());
        if need > self.shape.capacity {
            return Err(PersistentError::Full);
        }
        // The file grows by at least an eighth, so that growth is rare. If that fails, it grows
        // only by the required number of chunks.
        let ample = need.max(has + has / 8).max(has + 16).min(self.shape.capacity);
        self.grow(ample).or_else(|_| self.grow(need))?;
        self.index.find(chunks).ok_or(PersistentError::Full)
    }

    /// Extends the file by this number of chunks. If the process is killed during this call, the
    /// file may be longer than its recorded number of chunks, which is harmless.
    fn grow(&mut self, chunks: usize) -> Result<(), PersistentError> {
        let (shape, has) = (self.shape, self.index.chunks());
        if shape.with(chunks) > self.mapping.len() {
            return Err(PersistentError::Os { call: "mmap", errno: libc::ENOMEM });
        }
        let file = &self.mapping.file;
        file.allocate(shape.entry(has), shape.entry(chunks))?;
        file.allocate(shape.bitmap(has), shape.bitmap(chunks))?;
        file.allocate(shape.chunk(has), shape.chunk(chunks))?;
        if self.durability == Durability::Power {
            file.sync()?;
        }
        for chunk in has..chunks {
            if self.mapping.load(shape.entry(chunk)) != 0 {
                self.mapping.store(shape.entry(chunk), 0);
            }
        }
        self.mapping.store(CHUNKS, checked(CHUNKS, chunks as u64));
        self.index.grow(chunks);
        self.tell_growth();
        Ok(())
    }

    /// Logs that a range is about to change, or that a block is allocated or freed.
    #[inline(always)]
    pub(super) fn note(
        &mut self,
        kind: LogEntryKind,
        place: usize,
        len: usize,
    ) -> Result<(), PersistentError> {
        if self.careful {
            return self.note_with_care(kind, place, len);
        }
        if self.log.append(&mut self.mapping, self.generation, kind, (place, len)) {
            return Ok(());
        }
        self.note_after_a_pause(kind, place, len)
    }

    /// Slow path of `note` if `append` has failed: reports counts, and tries again.
    #[cold]
    fn note_after_a_pause(
        &mut self,
        kind: LogEntryKind,
        place: usize,
        len: usize,
    ) -> Result<(), PersistentError> {
        self.watched.tell();
        let done = self.log.go_on(len)
            && self.log.append(&mut self.mapping, self.generation, kind, (place, len));
        if done { Ok(()) } else { Err(PersistentError::LogFull) }
    }

    /// Slow path of `note` for [`Durability::Power`] and for memory checkers: flushes the entry,
    /// and disables reports of checkers meanwhile.
    #[cold]
    fn note_with_care(
        &mut self,
        kind: LogEntryKind,
        place: usize,
        len: usize,
    ) -> Result<(), PersistentError> {
        let _quiet = self.watched.quiet();
        if !self.log.append(&mut self.mapping, self.generation, kind, (place, len)) {
            self.note_after_a_pause(kind, place, len)?;
        }
        if self.durability == Durability::Power && kind != LogEntryKind::Free {
            return self.mapping.sync(0, self.shape.table());
        }
        Ok(())
    }

    /// Copies words one by one, with accesses that memory checkers do not report.
    pub(super) fn copy(&mut self, from: usize, to: usize, len: usize) {
        let _quiet = self.watched.quiet();
        for offset in (0..len).step_by(8) {
            let word = self.mapping.load(from + offset);
            self.mapping.store(to + offset, word);
        }
    }

    /// Returns the allocated block that starts at an offset; `None` if no allocated block starts
    /// there.
    #[inline]
    pub(super) fn taken(&self, place: usize) -> Option<BlockLookup> {
        let found = self.index.locate(place)?;
        match found {
            BlockLookup::Run { .. } => Some(found),
            BlockLookup::Slot { chunk, slot, .. } => {
                let bits = self.mapping.load(self.shape.bitmap(chunk) + slot / 64 * 8);
                (bits >> (slot % 64) & 1 == 1).then_some(found)
            }
        }
    }

    /// Commits the open transaction.
    #[inline]
    pub(super) fn finish(&mut self) -> Result<(), PersistentError> {
        if self.log.is_empty() {
            return Ok(());
        }
        if self.durability == Durability::Power {
            return self.finish_for_good();
        }
        let (ended, frees) = (self.generation, self.log.few_frees());
        self.next_generation(1);
        self.free_noted(ended, frees);
        Ok(())
    }

    /// Commits the open transaction with flushes. The blocks that the transaction freed become free
    /// only after the commit is flushed, because later transactions may overwrite them.
    #[cold]
    fn finish_for_good(&mut self) -> Result<(), PersistentError> {
        self.mapping.sync(0, self.shape.with(self.index.chunks()))?;
        let (ended, frees) = (self.generation, self.log.few_frees());
        self.next_generation(1);
        let synced = self.mapping.sync(0, self.shape.table());
        self.free_noted(ended, frees);
        synced
    }

    #[inline]
    fn next_generation(&mut self, by: u64) {
        self.generation = next(self.generation, by);
        self.mapping.store(GENERATION, checked(GENERATION, self.generation));
        self.log.begin(self.shape, self.generation);
        if self.watched.is_turn(self.generation) {
            self.watched.take_turn();
        }
    }

    /// Marks the blocks as free that the last committed transaction has freed.
    #[inline]
    fn free_noted(&mut self, generation: u64, few: Option<usize>) {
        match few {
            Some(frees) => (0..frees).for_each(|at| self.put_back(self.log.free(at))),
            None => self.free_read(generation),
        }
    }

    /// As [`Persistent::free_noted`], but reads the blocks from the log.
    #[cold]
    fn free_read(&mut self, generation: u64) {
        let mut entries = log::forward(self.shape, generation);
        while let Some(entry) = entries.next(&self.mapping) {
            // `taken` returns `None` if the transaction freed the block twice.
            if let Some(found) =
                self.taken(entry.place).filter(|_| entry.kind == LogEntryKind::Free)
            {
                self.put_back(found);
            }
        }
        self.watched.tell();
    }

    /// True if the open transaction frees the block at an offset.
    pub(super) fn is_freed(&self, place: usize) -> bool {
        let mut entries = log::forward(self.shape, self.generation);
        while let Some(entry) = entries.next(&self.mapping) {
            if entry.kind == LogEntryKind::Free && entry.place == place {
                return true;
            }
        }
        false
    }

    /// Marks a block as free. Does nothing if the block is free already, because its transaction
    /// freed it twice.
    #[inline]
    fn put_back(&mut self, found: BlockLookup) {
        match found {
            BlockLookup::Run { chunk, chunks } => self.put_run_back(chunk, chunks),
            BlockLookup::Slot { chunk, class, slot } => {
                let (place, bit) = (self.shape.bitmap(chunk) + slot / 64 * 8, 1 << (slot % 64));
                let bits = self.mapping.load(place);
                if bits & bit == 0 {
                    return;
                }
                self.mapping.store(place, bits & !bit);
                self.watched.classes.returned(class);
                if self.watched.closely() {
                    self.tell_freed(found);
                }
                if self.index.freed(chunk, class, slot / 64, 1) {
                    self.drop_slab(chunk, class);
                }
            }
        }
    }

    #[cold]
    fn put_run_back(&mut self, chunk: usize, chunks: usize) {
        if self.index.run(chunk).is_some() {
            self.mapping.store(self.shape.entry(chunk), 0);
            self.index.release(chunk, chunks);
            self.watched.count_run(0, chunks * CHUNK);
            if self.watched.closely() {
                self.tell_freed(BlockLookup::Run { chunk, chunks });
            }
        }
    }

    /// Releases a chunk of a size class without allocated blocks.
    #[cold]
    fn drop_slab(&mut self, chunk: usize, class: usize) {
        self.index.unlink(chunk, class);
        self.mapping.store(self.shape.entry(chunk), 0);
        self.index.release(chunk, 1);
    }

    /// Undoes the open transaction.
    #[inline]
    pub(super) fn undo(&mut self) -> Result<(), PersistentError> {
        if self.log.is_empty() { Ok(()) } else { self.undo_logged() }
    }

    #[cold]
    fn undo_logged(&mut self) -> Result<(), PersistentError> {
        let quiet = self.watched.quiet();
        let mut entries = log::backward(&self.mapping, self.shape, self.generation);
        while let Some(entry) = entries.next(&self.mapping) {
            match entry.kind {
                LogEntryKind::Bytes => {
                    self.follow(&entry);
                    entry.undo(&mut self.mapping);
                }
                LogEntryKind::Take => {
                    self.taken(entry.place).into_iter().for_each(|it| self.put_back(it))
                }
                LogEntryKind::Free => {}
            }
        }
        drop(quiet);
        self.watched.tell();
        self.forget(self.index.chunks())
    }

    /// Called after an undo. Empties the log of the undone generation, and the log of the
    /// generation before, whose blocks have been freed.
    pub(super) fn forget(&mut self, chunks: usize) -> Result<(), PersistentError> {
        if self.durability == Durability::Power {
            self.mapping.sync(0, self.shape.with(chunks))?;
        }
        self.next_generation(2);
        match self.durability {
            Durability::Process => Ok(()),
            Durability::Power => self.mapping.sync(0, self.shape.table()),
        }
    }

    /// Updates the index for an entry that is about to be undone: if the entry changed the table,
    /// its chunk becomes free again.
    fn follow(&mut self, entry: &LogEntry) {
        let shape = self.shape;
        let changed = self.mapping.load(entry.place) != entry.old(&self.mapping);
        if changed && (shape.table()..shape.bitmaps()).contains(&entry.place) {
            let chunk = (entry.place - shape.table()) / 8;
            if let Some(class) = self.index.class(chunk).filter(|_| self.index.room(chunk) > 0) {
                self.index.unlink(chunk, class);
            }
            self.index.release(chunk, 1);
        }
    }

    /// Computes the index from the file, and checks that the file is one that this library can have
    /// written.
    pub(super) fn survey(&mut self, chunks: usize) -> Result<(), PersistentError> {
        self.index.grow(chunks);
        let mut chunk = 0;
        while chunk < chunks {
            chunk += match self.state(chunk)? {
                ChunkState::Free => 1,
                ChunkState::Slab(class) => {
                    let free = self.free_slots(chunk, class)?;
                    self.index.set_slab(chunk, class, free);
                    1
                }
                ChunkState::Run(length) => {
                    self.check_run(chunk, length, chunks)?;
                    self.index.set_run(chunk, length);
                    length
                }
            };
        }
        Ok(())
    }

    /// Returns the state of a chunk in the table.
    pub(super) fn state(&self, chunk: usize) -> Result<ChunkState, PersistentError> {
        let place = self.shape.entry(chunk);
        ChunkState::read(place, self.mapping.load(place))
            .ok_or(PersistentError::Corrupt { what: "a chunk's state", place: place as u64 })
    }

    fn check_run(&self, chunk: usize, length: usize, chunks: usize) -> Result<(), PersistentError> {
        let fits = length <= chunks - chunk
            && (chunk + 1..chunk + length).all(|inside| self.state(inside) == Ok(ChunkState::Free));
        let place = self.shape.entry(chunk) as u64;
        if fits {
            Ok(())
        } else {
            Err(PersistentError::Corrupt { what: "the length of a run", place })
        }
    }

    /// Returns the number of free blocks of a chunk according to its bitmap.
    fn free_slots(&self, chunk: usize, class: usize) -> Result<usize, PersistentError> {
        let row: &ChunkClass = &TABLE[class];
        let bitmap = self.shape.bitmap(chunk);
        let mut free = 0;
        for word in 0..row.words {
            let bits = self.mapping.load(bitmap + word * 8);
            let hidden = word < self.index.word(chunk) && bits != !0;
            if bits & row.empty(word) != row.empty(word) || hidden {
                return Err(PersistentError::Corrupt { what: "a bitmap", place: bitmap as u64 });
            }
            free += bits.count_zeros() as usize;
        }
        Ok(free)
    }

    /// Checks the file as `survey` does, and compares the index with it.
    pub(super) fn audit(&self) -> Result<PersistentUsage, PersistentError> {
        let mut usage = PersistentUsage {
            file: self.shape.with(self.index.chunks()),
            ..PersistentUsage::default()
        };
        let mut chunk = 0;
        while chunk < self.index.chunks() {
            let place = self.shape.entry(chunk) as u64;
            let (fits, length) = match self.state(chunk)? {
                ChunkState::Free => {
                    (self.index.class(chunk).is_none() && self.index.run(chunk).is_none(), 1)
                }
                ChunkState::Slab(class) => {
                    let free = self.free_slots(chunk, class)?;
                    let blocks = TABLE[class].slots - free;
                    usage.blocks += blocks;
                    usage.bytes += blocks * TABLE[class].size;
                    (self.index.class(chunk) == Some(class) && self.index.room(chunk) == free, 1)
                }
                ChunkState::Run(length) => {
                    self.check_run(chunk, length, self.index.chunks())?;
                    usage.blocks += 1;
                    usage.bytes += length * CHUNK;
                    (self.index.run(chunk) == Some(length), length)
                }
            };
            if !fits {
                return Err(PersistentError::Corrupt { what: "the index of chunks", place });
            }
            chunk += length;
        }
        self.index.check().map_err(|what| PersistentError::Corrupt { what, place: 0 })?;
        Ok(usage)
    }
}

const _: () = assert!(CLASSES < 200, "the numbers above are for runs");
