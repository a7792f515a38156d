//! Opening and closing. All content of a file is checked before it is used, and a file is not
//! written before it is known to be a heap.

use core::ffi::CStr;

use super::file::LockedFile;
use super::format::{
    AREA, BITMAP, CHUNK, CHUNKS, ChunkState, DATA_SEAL, DATA_SEALED, FixedHeader, GENERATION,
    HeapShape, MAGIC, NamedRoot, ROOT_COUNT, ROOTS, SEAL, TABLE, VALUE, VERSION, checked, mix,
    next, value,
};
use super::index::ChunkIndex;
use super::log::{self, LogEntry, LogEntryKind};
use super::mapping::HeapFileMapping;
use super::watched::{self, WatchedHeap};
use super::{Durability, Persistent, PersistentError, PersistentOptions};

/// Default of the maximum total size of a new heap's blocks in bytes.
const CAPACITY: usize = 1 << 36;

impl HeapShape {
    fn from_options(options: &PersistentOptions) -> Result<HeapShape, PersistentError> {
        let capacity = options.capacity.unwrap_or(CAPACITY).div_ceil(CHUNK);
        let log =
            options.log.max(1).checked_next_multiple_of(AREA).ok_or(PersistentError::Options)?;
        HeapShape::new(capacity, log).ok_or(PersistentError::Options)
    }

    /// Returns the shape of the heap in a file with this header and this size in bytes.
    fn read(first: Option<&FixedHeader>, size: usize) -> Result<HeapShape, PersistentError> {
        let fixed = first.filter(|fixed| fixed.magic == MAGIC).ok_or(PersistentError::Foreign)?;
        if fixed.version != VERSION {
            return Err(PersistentError::Newer { version: fixed.version });
        }
        let corrupt = PersistentError::Corrupt { what: "the fixed part", place: 0 };
        if fixed.check != fixed.hash() || fixed.chunk as usize != CHUNK {
            return Err(corrupt);
        }
        let sizes = usize::try_from(fixed.capacity).ok().zip(usize::try_from(fixed.log).ok());
        let shape =
            sizes.and_then(|(capacity, log)| HeapShape::new(capacity, log)).ok_or(corrupt)?;
        shape.check_size(0, size)?;
        Ok(shape)
    }

    fn check_size(self, chunks: usize, size: usize) -> Result<(), PersistentError> {
        let expected = self.with(chunks);
        let cut = PersistentError::CutOff { expected: expected as u64, found: size as u64 };
        if size < expected { Err(cut) } else { Ok(()) }
    }
}

/// Opens a heap, or creates one.
pub(super) fn open(
    path: &CStr,
    options: &PersistentOptions,
) -> Result<Persistent, PersistentError> {
    let found = LockedFile::open(path, libc::O_NONBLOCK);
    let missing = PersistentError::Os { call: "open", errno: libc::ENOENT };
    match found {
        Ok(file) => adopt(file, options),
        Err(error) if error == missing && options.create => match create(path, options) {
            // Another process has created the file meanwhile.
            Err(PersistentError::Os { call: "linkat", errno: libc::EEXIST }) => {
                adopt(LockedFile::open(path, libc::O_NONBLOCK)?, options)
            }
            made => made,
        },
        Err(error) => Err(error),
    }
}

/// Creates a heap in a file without a name, and links the file when the heap is complete, so that a
/// kill never leaves a partial heap.
fn create(path: &CStr, options: &PersistentOptions) -> Result<Persistent, PersistentError> {
    let shape = HeapShape::from_options(options)?;
    let file = LockedFile::open_nameless_beside(path)?;
    file.lock(false)?;
    file.allocate(0, shape.table())?;
    file.lengthen(shape.data())?;
    let mut mapping = HeapFileMapping::new(file, shape.data(), shape.with(shape.capacity))?;
    let fixed = FixedHeader::new(shape);
    for (at, word) in fixed.as_words().into_iter().enumerate() {
        mapping.store(at * 8, word);
    }
    mapping.store(GENERATION, checked(GENERATION, 2));
    mapping.store(CHUNKS, checked(CHUNKS, 0));
    if options.durability == Durability::Power {
        mapping.file.sync()?;
    }
    mapping.file.link(path)?;
    if options.durability == Durability::Power {
        LockedFile::sync_name(path)?;
    }
    ready(mapping, shape, options)
}

/// Opens a heap in an existing file.
pub(super) fn adopt(
    file: LockedFile,
    options: &PersistentOptions,
) -> Result<Persistent, PersistentError> {
    let size = file.size()?;
    file.lock(options.wait)?;
    // The file may have grown before it was locked.
    let size = size.max(file.size()?);
    let shape = HeapShape::read(file.fixed()?.as_ref(), size)?;
    let longest = shape.with(shape.capacity);
    let mapping = HeapFileMapping::new(file, size.next_multiple_of(AREA).min(longest), longest)?;
    ready(mapping, shape, options)
}

fn ready(
    mapping: HeapFileMapping,
    shape: HeapShape,
    options: &PersistentOptions,
) -> Result<Persistent, PersistentError> {
    let index = ChunkIndex::new(shape).ok_or(PersistentError::OutOfMemory)?;
    let generation = word(&mapping, GENERATION, "the generation")?;
    let chunks =
        usize::try_from(word(&mapping, CHUNKS, "the number of chunks")?).unwrap_or(usize::MAX);
    if chunks > shape.capacity {
        return Err(PersistentError::Corrupt {
            what: "the number of chunks",
            place: CHUNKS as u64,
        });
    }
    shape.check_size(chunks, mapping.file.size()?)?;
    let watched = WatchedHeap::new(watched::first(mapping.base, shape));
    let careful = options.durability == Durability::Power || watched.closely();
    let mut heap = Persistent {
        watched,
        mapping,
        shape,
        generation,
        log: log::Log::new(shape, generation),
        index,
        durability: options.durability,
        careful,
        check_data: options.check_data,
        opened: false,
    };
    let seal = heap.mapping.load(SEAL);
    if seal != 0 && seal != heap.hash(chunks) {
        return Err(PersistentError::Corrupt { what: "the seal", place: SEAL as u64 });
    }
    if seal == 0 {
        heap.recover(chunks)?;
    }
    heap.survey(chunks)?;
    heap.check_roots()?;
    if options.check_data && seal != 0 {
        heap.verify_data(chunks, seal)?;
    }
    heap.survey_roots()?;
    heap.introduce()?;
    heap.unseal()?;
    Ok(heap)
}

/// Returns the value of a checked word; [`PersistentError::Corrupt`] if its check is wrong.
fn word(
    mapping: &HeapFileMapping,
    place: usize,
    what: &'static str,
) -> Result<u64, PersistentError> {
    value(place, mapping.load(place)).ok_or(PersistentError::Corrupt { what, place: place as u64 })
}

impl Persistent {
    /// Recovers the heap after a kill: undoes the transaction that was open, and repeats the frees
    /// of the last committed transaction.
    fn recover(&mut self, chunks: usize) -> Result<(), PersistentError> {
        let (shape, generation) = (self.shape, self.generation);
        let mut entries = log::forward(shape, generation);
        while let Some(entry) = entries.next(&self.mapping) {
            check_entry(&entry, shape, chunks)?;
        }
        let mut entries = log::backward(&self.mapping, shape, generation);
        while let Some(entry) = entries.next(&self.mapping) {
            match entry.kind {
                LogEntryKind::Bytes => entry.undo(&mut self.mapping),
                LogEntryKind::Take => self.free_again(entry.place, chunks),
                LogEntryKind::Free => {}
            }
        }
        let mut entries = log::forward(shape, next(generation, VALUE));
        while let Some(entry) = entries.next(&self.mapping) {
            if entry.kind == LogEntryKind::Free {
                self.free_again(entry.place, chunks);
            }
        }
        // The log is emptied even if nothing was undone. A loss of power may have left a valid
        // entry of this generation behind a gap in the log. If the next transaction filled the gap,
        // recovery would undo this entry too.
        self.forget(chunks)
    }

    /// Frees a block that is allocated. Ignores an offset at which no block starts.
    fn free_again(&mut self, place: usize, chunks: usize) {
        let Some(offset) = place.checked_sub(self.shape.data()) else { return };
        let (chunk, inside) = (offset / CHUNK, offset % CHUNK);
        if chunk >= chunks {
            return;
        }
        match self.state(chunk) {
            Ok(ChunkState::Run(_)) if inside == 0 => self.mapping.store(self.shape.entry(chunk), 0),
            Ok(ChunkState::Slab(class)) => {
                if let Some(slot) = TABLE[class].slot(inside) {
                    let word = self.shape.bitmap(chunk) + slot / 64 * 8;
                    let bits = self.mapping.load(word);
                    self.mapping.store(word, bits & !(1 << (slot % 64)));
                }
            }
            _ => {}
        }
    }

    /// Returns the hash over the metadata of the heap and of its blocks, without the contents of
    /// blocks.
    fn hash(&self, chunks: usize) -> u64 {
        let roots = (0..ROOT_COUNT * 8).map(|word| ROOTS + word * 8);
        let table = (0..chunks).map(|chunk| self.shape.entry(chunk));
        let head = [GENERATION, CHUNKS].into_iter();
        let hash = head.chain(roots).chain(table).fold(3, |hash, place| self.mix(hash, place));
        let slabs =
            (0..chunks).filter(|chunk| matches!(self.state(*chunk), Ok(ChunkState::Slab(_))));
        let words = slabs.flat_map(|chunk| (0..BITMAP / 8).map(move |word| (chunk, word * 8)));
        words.fold(hash, |hash, (chunk, word)| self.mix(hash, self.shape.bitmap(chunk) + word)) | 1
    }

    /// Compares the contents of all blocks with their hash, if the heap was sealed with one.
    fn verify_data(&self, chunks: usize, seal: u64) -> Result<(), PersistentError> {
        let known = self.mapping.load(DATA_SEALED) == seal;
        if known && self.mapping.load(DATA_SEAL) != self.hash_data(chunks) {
            return Err(PersistentError::Corrupt {
                what: "the contents of a block",
                place: DATA_SEAL as u64,
            });
        }
        Ok(())
    }

    /// Returns the hash over the contents of all blocks. It consists of four independent sums, so
    /// that the processor computes them in parallel.
    fn hash_data(&self, chunks: usize) -> u64 {
        let blocks = (0..chunks).flat_map(|chunk| self.blocks_of(chunk));
        let sums = blocks.fold([5, 6, 7, 8], |mut sums: [u64; 4], block| {
            for (lane, place) in block.step_by(8).enumerate() {
                let sum = &mut sums[lane % 4];
                *sum = mix(*sum, self.mapping.load(place));
            }
            sums
        });
        sums.into_iter().fold(9, mix) | 1
    }

    /// Returns the allocated blocks of a chunk, as ranges of the file.
    pub(super) fn blocks_of(&self, chunk: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
        let start = self.shape.with(chunk);
        let (run, slab) = match self.state(chunk) {
            Ok(ChunkState::Run(length)) => (Some(start..start + length * CHUNK), None),
            Ok(ChunkState::Slab(class)) => (None, Some(&TABLE[class])),
            Ok(ChunkState::Free) | Err(_) => (None, None),
        };
        let taken = move |slot: &usize| {
            let bits = self.mapping.load(self.shape.bitmap(chunk) + slot / 64 * 8);
            bits >> (slot % 64) & 1 == 1
        };
        let slots = slab.into_iter().flat_map(move |class| {
            let block = move |slot| start + slot * class.size..start + (slot + 1) * class.size;
            (0..class.slots).filter(taken).map(block)
        });
        run.into_iter().chain(slots)
    }

    fn mix(&self, hash: u64, place: usize) -> u64 {
        mix(hash, self.mapping.load(place))
    }

    fn unseal(&mut self) -> Result<(), PersistentError> {
        self.mapping.store(SEAL, 0);
        self.mapping.store(DATA_SEALED, 0);
        self.opened = true;
        match self.durability {
            Durability::Process => Ok(()),
            Durability::Power => self.mapping.sync(0, self.shape.table()),
        }
    }

    /// Undoes the open transaction, and writes the seal, so that the next open can check all
    /// metadata.
    pub(super) fn seal(&mut self) -> Result<(), PersistentError> {
        if !core::mem::take(&mut self.opened) || !self.mapping.is_ours() {
            return Ok(());
        }
        self.undo()?;
        let power = self.durability == Durability::Power;
        let end = self.shape.with(self.index.chunks());
        if power {
            self.mapping.sync(0, end)?;
        }
        let seal = self.hash(self.index.chunks());
        if self.check_data {
            self.mapping.store(DATA_SEAL, self.hash_data(self.index.chunks()));
            self.mapping.store(DATA_SEALED, seal);
        }
        self.mapping.store(SEAL, seal);
        if power { self.mapping.sync(0, self.shape.table()) } else { Ok(()) }
    }

    pub(super) fn check_roots(&self) -> Result<(), PersistentError> {
        for at in 0..ROOT_COUNT {
            let root = self.root_at(at);
            let named = root.name[0] != 0;
            let known = || {
                let whole = root.check == root.hash() && root.tag == 0;
                let place = usize::try_from(root.offset).unwrap_or(0);
                let alone = (0..at).all(|other| self.root_at(other).name != root.name);
                whole && alone && self.taken(place).is_some()
            };
            if named && !known() || !named && root != NamedRoot::NONE {
                let place = (ROOTS + at * size_of::<NamedRoot>()) as u64;
                return Err(PersistentError::Corrupt { what: "a root", place });
            }
        }
        Ok(())
    }

    /// Records in the index the blocks that have names.
    fn survey_roots(&mut self) -> Result<(), PersistentError> {
        for at in 0..ROOT_COUNT {
            let root = self.root_at(at);
            if root != NamedRoot::NONE {
                self.mark_named(usize::try_from(root.offset).unwrap_or(0))?;
            }
        }
        Ok(())
    }

    /// Reads the root with an index from the file.
    pub(super) fn root_at(&self, at: usize) -> NamedRoot {
        let place = ROOTS + at * size_of::<NamedRoot>();
        NamedRoot::from_words(core::array::from_fn(|word| self.mapping.load(place + word * 8)))
    }
}

/// Returns an error if no transaction can have changed the range of an entry.
fn check_entry(entry: &LogEntry, shape: HeapShape, chunks: usize) -> Result<(), PersistentError> {
    let ranges = [
        ROOTS..ROOTS + ROOT_COUNT * size_of::<NamedRoot>(),
        shape.table()..shape.entry(chunks),
        shape.data()..shape.with(chunks),
    ];
    let end = entry.place.saturating_add(entry.len);
    let inside = ranges.iter().any(|range| range.contains(&entry.place) && end <= range.end);
    let fits = entry.kind != LogEntryKind::Bytes || inside && entry.place.is_multiple_of(8);
    let place = entry.place as u64;
    if fits { Ok(()) } else { Err(PersistentError::Corrupt { what: "the log", place }) }
}
