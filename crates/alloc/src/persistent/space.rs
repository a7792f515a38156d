//! Blocks: taken and given back in a transaction, undone with it, and counted.
//!
//! Invariant of the order of stores: what the log says of a place is stored (and, where power may fail, flushed) before
//! anything is stored there; the generation is stored after all that the transaction stored; blocks are freed after that.

use super::format::{
    CHUNK, CHUNKS, CLASSES, Class, GENERATION, State, TABLE, checked, class_of, next,
};
use super::index::Found;
use super::log::{self, Entry, Kind};
use super::{Durability, Error, Persistent, Usage};

impl Persistent {
    /// Takes a block in the open transaction. Returns its place in the file.
    #[inline]
    pub(super) fn take(&mut self, size: usize, align: usize) -> Result<usize, Error> {
        match class_of(size, align) {
            Some(class) => self.take_slot(class),
            None if align <= CHUNK => self.take_run(size.div_ceil(CHUNK)),
            None => Err(Error::Alignment),
        }
    }

    #[inline]
    fn take_slot(&mut self, class: usize) -> Result<usize, Error> {
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
                self.note(Kind::Take, place, 0)?;
                self.mapping.store(bitmap + word * 8, bits | (bits + 1));
                self.index.taken(chunk, class, word);
                self.watched.classes.asked(class);
                return Ok(place);
            }
        }
        Err(Error::Corrupt { what: "a bitmap", place: bitmap as u64 })
    }

    /// Makes a free chunk one of a class.
    #[cold]
    fn new_slab(&mut self, class: usize) -> Result<usize, Error> {
        let chunk = self.free_chunks(1)?;
        let entry = self.shape.entry(chunk);
        self.note(Kind::Bytes, entry, 8)?;
        // Nobody reads the bitmap of a free chunk, so it need not be in the log.
        for word in 0..TABLE[class].words {
            self.mapping.store(self.shape.bitmap(chunk) + word * 8, TABLE[class].empty(word));
        }
        self.mapping.store(entry, State::Slab(class).word(entry));
        self.index.set_slab(chunk, class, TABLE[class].slots);
        Ok(chunk)
    }

    #[cold]
    fn take_run(&mut self, chunks: usize) -> Result<usize, Error> {
        let first = self.free_chunks(chunks)?;
        let (entry, place) = (self.shape.entry(first), self.shape.chunk(first));
        self.note(Kind::Take, place, 0)?;
        self.mapping.store(entry, State::Run(chunks).word(entry));
        self.index.set_run(first, chunks);
        self.watched.count_run(chunks * CHUNK, 0);
        Ok(place)
    }

    /// So many free chunks in a row; the file grows where there are none.
    fn free_chunks(&mut self, chunks: usize) -> Result<usize, Error> {
        if let Some(first) = self.index.find(chunks) {
            return Ok(first);
        }
        let has = self.index.chunks();
        let need = has.saturating_add(chunks).saturating_sub(self.index.free_at_end());
        if need > self.shape.capacity {
            return Err(Error::Full);
        }
        // An eighth more at once, so that growing is seldom; where that is too much, what must be.
        let ample = need.max(has + has / 8).max(has + 16).min(self.shape.capacity);
        self.grow(ample).or_else(|_| self.grow(need))?;
        self.index.find(chunks).ok_or(Error::Full)
    }

    /// Makes the file longer. A kill meanwhile leaves it longer than it says, which is no harm.
    fn grow(&mut self, chunks: usize) -> Result<(), Error> {
        let (shape, has) = (self.shape, self.index.chunks());
        if shape.with(chunks) > self.mapping.len() {
            return Err(Error::Os { call: "mmap", errno: libc::ENOMEM });
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

    /// Writes down that a range is about to change, or that a block will be free.
    #[inline(always)]
    pub(super) fn note(&mut self, kind: Kind, place: usize, len: usize) -> Result<(), Error> {
        if self.careful {
            return self.note_with_care(kind, place, len);
        }
        if self.log.append(&mut self.mapping, self.generation, kind, (place, len)) {
            return Ok(());
        }
        self.note_after_a_pause(kind, place, len)
    }

    /// Where a transaction is large: counts are told meanwhile.
    #[cold]
    fn note_after_a_pause(&mut self, kind: Kind, place: usize, len: usize) -> Result<(), Error> {
        self.watched.tell();
        let done = self.log.go_on(len)
            && self.log.append(&mut self.mapping, self.generation, kind, (place, len));
        if done { Ok(()) } else { Err(Error::LogFull) }
    }

    /// Where power may fail or accesses are checked.
    #[cold]
    fn note_with_care(&mut self, kind: Kind, place: usize, len: usize) -> Result<(), Error> {
        let _quiet = self.watched.quiet();
        if !self.log.append(&mut self.mapping, self.generation, kind, (place, len)) {
            self.note_after_a_pause(kind, place, len)?;
        }
        if self.durability == Durability::Power && kind != Kind::Free {
            return self.mapping.sync(0, self.shape.table());
        }
        Ok(())
    }

    /// Copies words. Not as memory: of what is checked, a block may have a part only.
    pub(super) fn copy(&mut self, from: usize, to: usize, len: usize) {
        let _quiet = self.watched.quiet();
        for offset in (0..len).step_by(8) {
            let word = self.mapping.load(from + offset);
            self.mapping.store(to + offset, word);
        }
    }

    /// Whether a block that is taken starts at a place, and which.
    #[inline]
    pub(super) fn taken(&self, place: usize) -> Option<Found> {
        let found = self.index.locate(place)?;
        match found {
            Found::Run { .. } => Some(found),
            Found::Slot { chunk, slot, .. } => {
                let bits = self.mapping.load(self.shape.bitmap(chunk) + slot / 64 * 8);
                (bits >> (slot % 64) & 1 == 1).then_some(found)
            }
        }
    }

    /// Ends the open transaction: all that it did is now part of the heap.
    #[inline]
    pub(super) fn finish(&mut self) -> Result<(), Error> {
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

    /// What is freed can be written over once the commit cannot be lost.
    #[cold]
    fn finish_for_good(&mut self) -> Result<(), Error> {
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

    /// Frees what a transaction that was just committed says.
    #[inline]
    fn free_noted(&mut self, generation: u64, few: Option<usize>) {
        match few {
            Some(frees) => (0..frees).for_each(|at| self.put_back(self.log.free(at))),
            None => self.free_read(generation),
        }
    }

    /// Frees what a transaction that was just committed says in its log.
    #[cold]
    fn free_read(&mut self, generation: u64) {
        let mut entries = log::forward(self.shape, generation);
        while let Some(entry) = entries.next(&self.mapping) {
            // None where it was freed twice in its transaction.
            if let Some(found) = self.taken(entry.place).filter(|_| entry.kind == Kind::Free) {
                self.put_back(found);
            }
        }
        self.watched.tell();
    }

    /// Whether the open transaction frees a block.
    pub(super) fn is_freed(&self, place: usize) -> bool {
        let mut entries = log::forward(self.shape, self.generation);
        while let Some(entry) = entries.next(&self.mapping) {
            if entry.kind == Kind::Free && entry.place == place {
                return true;
            }
        }
        false
    }

    /// Makes a block free for the next transaction, unless it was freed twice in this one.
    #[inline]
    fn put_back(&mut self, found: Found) {
        match found {
            Found::Run { chunk, chunks } => self.put_run_back(chunk, chunks),
            Found::Slot { chunk, class, slot } => {
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
                self.tell_freed(Found::Run { chunk, chunks });
            }
        }
    }

    /// Gives back a chunk of which no block is taken.
    #[cold]
    fn drop_slab(&mut self, chunk: usize, class: usize) {
        self.index.unlink(chunk, class);
        self.mapping.store(self.shape.entry(chunk), 0);
        self.index.release(chunk, 1);
    }

    /// Undoes all that the open transaction did.
    #[inline]
    pub(super) fn undo(&mut self) -> Result<(), Error> {
        if self.log.is_empty() { Ok(()) } else { self.undo_logged() }
    }

    #[cold]
    fn undo_logged(&mut self) -> Result<(), Error> {
        let quiet = self.watched.quiet();
        let mut entries = log::backward(&self.mapping, self.shape, self.generation);
        while let Some(entry) = entries.next(&self.mapping) {
            match entry.kind {
                Kind::Bytes => {
                    self.follow(&entry);
                    entry.undo(&mut self.mapping);
                }
                Kind::Take => self.taken(entry.place).into_iter().for_each(|it| self.put_back(it)),
                Kind::Free => {}
            }
        }
        drop(quiet);
        self.watched.tell();
        self.forget(self.index.chunks())
    }

    /// After an undo: the log is empty, also that of the generation before, whose blocks are free by now.
    pub(super) fn forget(&mut self, chunks: usize) -> Result<(), Error> {
        if self.durability == Durability::Power {
            self.mapping.sync(0, self.shape.with(chunks))?;
        }
        self.next_generation(2);
        match self.durability {
            Durability::Process => Ok(()),
            Durability::Power => self.mapping.sync(0, self.shape.table()),
        }
    }

    /// Keeps the index in step with what is about to be undone: a chunk that was made one of a class is free again.
    fn follow(&mut self, entry: &Entry) {
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

    /// Works the index out of the file, and whether the file can be what this library wrote.
    pub(super) fn survey(&mut self, chunks: usize) -> Result<(), Error> {
        self.index.grow(chunks);
        let mut chunk = 0;
        while chunk < chunks {
            chunk += match self.state(chunk)? {
                State::Free => 1,
                State::Slab(class) => {
                    let free = self.free_slots(chunk, class)?;
                    self.index.set_slab(chunk, class, free);
                    1
                }
                State::Run(length) => {
                    self.check_run(chunk, length, chunks)?;
                    self.index.set_run(chunk, length);
                    length
                }
            };
        }
        Ok(())
    }

    /// What the table says of a chunk.
    pub(super) fn state(&self, chunk: usize) -> Result<State, Error> {
        let place = self.shape.entry(chunk);
        State::read(place, self.mapping.load(place))
            .ok_or(Error::Corrupt { what: "a chunk's state", place: place as u64 })
    }

    fn check_run(&self, chunk: usize, length: usize, chunks: usize) -> Result<(), Error> {
        let fits = length <= chunks - chunk
            && (chunk + 1..chunk + length).all(|inside| self.state(inside) == Ok(State::Free));
        let place = self.shape.entry(chunk) as u64;
        if fits { Ok(()) } else { Err(Error::Corrupt { what: "the length of a run", place }) }
    }

    /// How many blocks of a chunk its bitmap says are free.
    fn free_slots(&self, chunk: usize, class: usize) -> Result<usize, Error> {
        let row: &Class = &TABLE[class];
        let bitmap = self.shape.bitmap(chunk);
        let mut free = 0;
        for word in 0..row.words {
            let bits = self.mapping.load(bitmap + word * 8);
            let hidden = word < self.index.word(chunk) && bits != !0;
            if bits & row.empty(word) != row.empty(word) || hidden {
                return Err(Error::Corrupt { what: "a bitmap", place: bitmap as u64 });
            }
            free += bits.count_zeros() as usize;
        }
        Ok(free)
    }

    /// Walks the file as `survey` does, and holds the index to it.
    pub(super) fn audit(&self) -> Result<Usage, Error> {
        let mut usage = Usage { file: self.shape.with(self.index.chunks()), ..Usage::default() };
        let mut chunk = 0;
        while chunk < self.index.chunks() {
            let place = self.shape.entry(chunk) as u64;
            let (fits, length) = match self.state(chunk)? {
                State::Free => {
                    (self.index.class(chunk).is_none() && self.index.run(chunk).is_none(), 1)
                }
                State::Slab(class) => {
                    let free = self.free_slots(chunk, class)?;
                    let blocks = TABLE[class].slots - free;
                    usage.blocks += blocks;
                    usage.bytes += blocks * TABLE[class].size;
                    (self.index.class(chunk) == Some(class) && self.index.room(chunk) == free, 1)
                }
                State::Run(length) => {
                    self.check_run(chunk, length, self.index.chunks())?;
                    usage.blocks += 1;
                    usage.bytes += length * CHUNK;
                    (self.index.run(chunk) == Some(length), length)
                }
            };
            if !fits {
                return Err(Error::Corrupt { what: "the index of chunks", place });
            }
            chunk += length;
        }
        self.index.check().map_err(|what| Error::Corrupt { what, place: 0 })?;
        Ok(usage)
    }
}

const _: () = assert!(CLASSES < 200, "the numbers above are for runs");
