//! A heap in a file. Its blocks persist when the file is closed and opened again, even if the file
//! is then mapped at another address.
//!
//! All changes belong to transactions. If the process is killed, at any instruction, all effects of
//! each committed transaction persist, and an uncommitted transaction has no effect.
//!
//! ```
//! use pagewise_alloc::persistent::{PersistentOptions, Persistent};
//! # let folder = std::ffi::CString::new(format!("/tmp/pagewise-doc-{}.heap",
//! std::process::id())).unwrap();
//! # let path = folder.as_c_str();
//! // SAFETY: nobody changes the file but through this library.
//! let mut heap = unsafe { Persistent::open(path, &PersistentOptions::default()) }?;
//! let mut tx = heap.begin();
//! let runs = match tx.root::<u64>("runs")? {
//!     Some(runs) => runs,
//!     None => {
//!         let runs = tx.make(0)?;
//!         tx.set_root("runs", runs)?;
//!         runs
//!     }
//! };
//! *tx.change(runs)? += 1;
//! tx.commit()?;
//! assert_eq!(*heap.get(runs)?, 1);
//! # std::fs::remove_file(path.to_str().unwrap()).unwrap();
//! # Ok::<(), pagewise_alloc::persistent::PersistentError>(())
//! ```
//!
//! # The file
//!
//! ```text
//! +-------+------+-------+------+------+---------+---------+-------+-------+- - -
//! | fixed | head | roots | log  | log  | table   | bitmaps | chunk | chunk |
//! | part  |      |       | even | odd  |         |         |   0   |   1   |
//! +-------+------+-------+------+------+---------+---------+-------+-------+- - -
//! ```
//!
//! `docs/persistent.md` describes each byte. A chunk has 16 KiB: it is free, contains blocks of one
//! size class, or belongs to a run of chunks that is one block. The table contains the state of
//! each chunk. The bitmap of a chunk contains a bit for each of its blocks. Invariants, at every
//! instruction:
//!
//! - The head contains the generation: the number of the open transaction. If the process were
//!   killed now, recovery would undo the changes in the log of this generation, and then free the
//!   blocks that the log of the preceding generation lists. After a recovery, table, bitmaps and
//!   roots agree, and the heap contains exactly the committed data.
//! - In the table, every chunk of a run but the first is marked as free. In the bitmap of a chunk
//!   of a size class, the bits beyond its blocks are set. Bitmaps of free chunks have no meaning.
//! - The index of the chunks with free blocks is not in the file; it is computed at each open.
//!
//! # Safety against kills and power failure, and its cost
//!
//! | [`Durability`] | a killed process | a loss of power | flushes |
//! |---|---|---|---|
//! | `Process` | all that was committed | perhaps nothing; damage is mostly noticed | none |
//! | `Power` | all that was committed | all that was committed | one for each block taken or range changed, two for a commit |

mod error;
mod file;
mod format;
#[cfg(test)]
mod hostile;
mod index;
mod log;
mod mapping;
mod open;
mod pointer;
#[cfg(test)]
mod replay;
mod space;
mod transaction;
mod watched;

use core::ffi::CStr;
use core::ops::Range;
use core::ptr::NonNull;

use format::{CHUNK, HeapShape, NAME, NamedRoot, ROOT_COUNT, ROOTS};

pub use error::PersistentError;
pub use pointer::{PlainData, Rel};
pub use transaction::Tx;

/// Failures that committed data survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Death of the process at any instruction, also by SIGKILL: the kernel keeps the stored data.
    /// Commits flush nothing.
    #[default]
    Process,
    /// Loss of power and a kernel crash as well: the log is flushed before the data that it
    /// describes changes, and the data is flushed before the commit.
    Power,
}

/// Options to open a heap.
#[derive(Clone, Copy, Debug)]
pub struct PersistentOptions {
    /// Create a heap if the file does not exist.
    pub create: bool,
    /// Wait until another process or thread that has the heap open closes it, rather than fail.
    pub wait: bool,
    /// Failures that committed data survives.
    pub durability: Durability,
    /// Maximum total size of blocks of a new heap in bytes, up to 2^38; default 2^36. This much
    /// address space is reserved while the heap is open; the file grows as blocks are allocated.
    pub capacity: Option<usize>,
    /// Capacity of the log of a new heap in bytes: each change of a transaction takes 24 bytes and
    /// the old contents.
    pub log: usize,
    /// Store a hash over the contents of all blocks when the heap is closed, and compare it when a
    /// heap with such a hash is opened. Both operations read all blocks, at some gigabytes per
    /// second. A heap that was not closed has no such hash.
    pub check_data: bool,
}

impl PersistentOptions {
    /// Default options: a heap with at most 2^36 bytes of blocks and a log of 2^20 bytes, which is
    /// created if the file does not exist and survives kills of the process.
    pub const DEFAULT: PersistentOptions = PersistentOptions {
        create: true,
        wait: false,
        durability: Durability::Process,
        capacity: None,
        log: 1 << 20,
        check_data: false,
    };
}

impl Default for PersistentOptions {
    fn default() -> PersistentOptions {
        PersistentOptions::DEFAULT
    }
}

/// Numbers of blocks and bytes of a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistentUsage {
    /// Number of allocated blocks.
    pub blocks: usize,
    /// Bytes of the allocated blocks, after rounding up to size classes or whole chunks.
    pub bytes: usize,
    /// Size of the file in bytes, holes included.
    pub file: usize,
}

/// An open heap in a file. Dropping this value closes the heap and seals it with a hash over all of
/// its metadata.
///
/// A child of `fork` must not use the heap: an access raises SIGSEGV. Dropping the value in the
/// child does nothing.
#[derive(Debug)]
pub struct Persistent {
    /// This field is declared before `mapping`, and so it is dropped first: the end of the heap is
    /// reported before the heap is unmapped.
    watched: watched::WatchedHeap,
    mapping: mapping::HeapFileMapping,
    shape: HeapShape,
    /// Generation of the open transaction, or of the next transaction if none is open.
    generation: u64,
    log: log::Log,
    index: index::ChunkIndex,
    durability: Durability,
    /// True if log entries need more work: flushes, or reports to a memory checker.
    careful: bool,
    /// True if the hash of the contents of blocks is checked at the open and stored at the close.
    check_data: bool,
    /// True once the seal in the file is cleared: closing then writes a new seal.
    opened: bool,
}

impl Persistent {
    /// Opens a heap, recovers it if it was not closed, and checks it.
    ///
    /// # Errors
    /// [`PersistentError::Busy`] if the heap is open elsewhere and [`PersistentOptions::wait`] is
    /// not set; [`PersistentError::Foreign`], [`PersistentError::Newer`],
    /// [`PersistentError::CutOff`] and [`PersistentError::Corrupt`] if the file is not a whole heap
    /// of this format; [`PersistentError::Os`] if a system call fails.
    ///
    /// # Safety
    /// While the file is open, only this library changes it.
    pub unsafe fn open(
        path: &CStr,
        options: &PersistentOptions,
    ) -> Result<Persistent, PersistentError> {
        open::open(path, options)
    }

    /// Begins a transaction. Dropping the transaction undoes it.
    #[inline]
    pub fn begin(&mut self) -> Tx<'_> {
        if !self.log.is_empty() {
            // The transaction was leaked instead of dropped. If it cannot be undone now, it is
            // undone at the next open.
            let _ = self.undo();
        }
        Tx { heap: self }
    }

    /// Resumes the transaction that [`Tx::pause`] left open, or begins one.
    #[inline]
    pub fn resume(&mut self) -> Tx<'_> {
        Tx { heap: self }
    }

    /// Returns the value that a pointer refers to.
    ///
    /// # Errors
    /// [`PersistentError::OutOfRange`] if the pointer is not aligned, or if the `T` is not within
    /// the chunks of the heap. The function does not detect that the block was freed.
    #[inline]
    pub fn get<T: PlainData>(&self, pointer: Rel<T>) -> Result<&T, PersistentError> {
        let place = self.resolve(pointer, 1)?;
        // SAFETY: `resolve` checked the range and the alignment of the `T`; every bit pattern is a
        // valid `T`; no store can happen while the heap is borrowed.
        Ok(unsafe { place.as_ref() })
    }

    /// Returns a slice of `count` values, of which the first is the target of the pointer.
    ///
    /// # Errors
    /// As [`Persistent::get`].
    pub fn slice<T: PlainData>(
        &self,
        pointer: Rel<T>,
        count: usize,
    ) -> Result<&[T], PersistentError> {
        let place = self.resolve(pointer, count)?;
        // SAFETY: `resolve` checked that `count` values of a `T` fit at this address and are
        // aligned; every bit pattern is a valid `T`.
        Ok(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }

    /// Returns the address of `count` values, which is valid while the heap is open. Checks their
    /// range and alignment.
    #[inline]
    fn resolve<T>(&self, pointer: Rel<T>, count: usize) -> Result<NonNull<T>, PersistentError> {
        let (place, end) = (pointer.place(), self.shape.with(self.index.chunks()));
        let size = size_of::<T>().checked_mul(count).ok_or(PersistentError::OutOfRange)?;
        let fits = place >= self.shape.data() && place <= end && size <= end - place;
        if !fits || !place.is_multiple_of(align_of::<T>()) || align_of::<T>() > CHUNK {
            return Err(PersistentError::OutOfRange);
        }
        // SAFETY: the offset is before the end of the chunks, all of which are mapped.
        Ok(unsafe { self.mapping.base.add(place) }.cast())
    }

    /// Returns the block with a name; `None` if no block has the name.
    ///
    /// # Errors
    /// [`PersistentError::OutOfRange`] if the block is too small for a `T`;
    /// [`PersistentError::Name`] if the name is empty, too long, or contains a NUL.
    pub fn root<T: PlainData>(&self, name: &str) -> Result<Option<Rel<T>>, PersistentError> {
        let Some(at) = self.find_root(&root_name(name)?) else { return Ok(None) };
        let pointer = Rel::from_offset(self.root_at(at).offset);
        self.resolve(pointer, 1)?;
        let fits = self.size(pointer)? >= size_of::<T>();
        if fits { Ok(Some(pointer)) } else { Err(PersistentError::OutOfRange) }
    }

    fn find_root(&self, name: &[u8; NAME]) -> Option<usize> {
        let name = format::words_of(name);
        (0..ROOT_COUNT).find(|at| {
            let place = ROOTS + at * size_of::<NamedRoot>();
            name.iter().zip(0..).all(|(word, at)| self.mapping.load(place + at * 8) == *word)
        })
    }

    #[cold]
    fn has_name(&self, offset: u64) -> bool {
        (0..ROOT_COUNT)
            .map(|at| self.root_at(at))
            .any(|root| root != NamedRoot::NONE && root.offset == offset)
    }

    /// Records in the index that the block at an offset has a name, so that `free` refuses the
    /// block.
    fn mark_named(&mut self, place: usize) -> Result<(), PersistentError> {
        let found = self.taken(place).ok_or(PersistentError::NotABlock)?;
        self.index.set_named(found);
        Ok(())
    }

    /// Returns the size of a block in bytes, which is at least the requested size.
    ///
    /// # Errors
    /// [`PersistentError::NotABlock`] if no allocated block starts at the pointer.
    pub fn block_size<T>(&self, pointer: Rel<T>) -> Result<usize, PersistentError> {
        let size = self.size(pointer)?;
        self.open_up(pointer.place(), size);
        Ok(size)
    }

    fn size<T>(&self, pointer: Rel<T>) -> Result<usize, PersistentError> {
        Ok(self.taken(pointer.place()).ok_or(PersistentError::NotABlock)?.size())
    }

    /// Sets the name of the heap in `pagewise pools`; only the first 32 bytes are used.
    pub fn set_name(&mut self, name: &str) {
        self.watched.set_name(name);
    }

    /// Checks all invariants of the file and of its index.
    ///
    /// # Errors
    /// [`PersistentError::Corrupt`] if one is violated.
    pub fn check(&self) -> Result<PersistentUsage, PersistentError> {
        self.check_roots()?;
        self.audit()
    }

    /// Waits until all committed transactions would survive a loss of power: for heaps with
    /// [`Durability::Process`], whose commits do not wait.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn sync(&mut self) -> Result<(), PersistentError> {
        self.mapping.sync(0, self.shape.with(self.index.chunks()))
    }

    /// Returns the range of offsets that contains all blocks. Its end grows with the file.
    pub fn range(&self) -> Range<u64> {
        self.shape.data() as u64..self.shape.with(self.index.chunks()) as u64
    }

    /// Returns the address at which the file is mapped while it is open.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Closes the heap, as dropping it does, but returns the error if the close fails.
    ///
    /// # Errors
    /// Returns the error of the system call. The heap is closed nevertheless, and the next open
    /// recovers it.
    pub fn close(mut self) -> Result<(), PersistentError> {
        self.seal()
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        // A heap without a seal is recovered at the next open.
        let _ = self.seal();
    }
}

/// Returns a name in the form that roots store, padded with zeros.
fn root_name(name: &str) -> Result<[u8; NAME], PersistentError> {
    let mut padded = [0; NAME];
    let fits = !name.is_empty() && !name.contains('\0');
    let room = padded.get_mut(..name.len()).filter(|_| fits).ok_or(PersistentError::Name)?;
    room.copy_from_slice(name.as_bytes());
    Ok(padded)
}
