//! A heap in a file: blocks that are there again when the file is opened again, wherever it is mapped then.
//!
//! Everything happens in transactions. One that was not committed when the process was killed, at whatever instruction,
//! never happened; one that was is there whole.
//!
//! ```
//! use pagewise_alloc::persistent::{Options, Persistent};
//! # let folder = std::ffi::CString::new(format!("/tmp/pagewise-doc-{}.heap", std::process::id())).unwrap();
//! # let path = folder.as_c_str();
//! // SAFETY: nobody changes the file but through this library.
//! let mut heap = unsafe { Persistent::open(path, &Options::default()) }?;
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
//! # Ok::<(), pagewise_alloc::persistent::Error>(())
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
//! `docs/persistent.md` says what each byte means. Invariants, at every instruction:
//!
//! - Undoing the log of the generation in the head, then freeing what the log of the one before says, leaves a heap whose
//!   table, bitmaps and roots agree, with all that was committed and nothing else.
//! - Chunks of the table in order: a run's inside is free; a chunk of a class has a bitmap in which the bits beyond its
//!   blocks are set. Bitmaps of free chunks mean nothing.
//! - What is not in the file (which chunks have room) is worked out when it is opened.
//!
//! # What survives, and what it costs
//!
//! | [`Durability`] | a killed process | a loss of power | flushes |
//! |---|---|---|---|
//! | `Process` | all that was committed | perhaps nothing; damage is mostly noticed | none |
//! | `Power` | all that was committed | all that was committed | one for each block taken or range changed, two for a commit |

mod format;
#[cfg(test)]
mod hostile;
mod index;
mod log;
mod mapping;
mod open;
#[cfg(test)]
mod replay;
mod space;
mod watched;

use core::alloc::Layout;
use core::ffi::CStr;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, Range};
use core::ptr::NonNull;

use format::{CHUNK, NAME, ROOT_COUNT, ROOTS, Root, Shape};
use log::Kind;

use crate::{Allocator, Discipline};

/// Against what commits are safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Death of the process at any instruction, SIGKILL included: the kernel has what was stored. No flush.
    #[default]
    Process,
    /// Loss of power and death of the kernel as well: the log is flushed before what it is about, and that before the
    /// commit.
    Power,
}

/// How to open a heap.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Make a heap where there is no file.
    pub create: bool,
    /// Wait for another who has it open, rather than fail.
    pub wait: bool,
    /// Against what commits are safe.
    pub durability: Durability,
    /// The most bytes of blocks that a new heap may ever have, up to 2^38; 2^36 unless said otherwise. So much address
    /// space is taken while it is open; the file grows as blocks are taken.
    pub capacity: Option<usize>,
    /// The bytes that a transaction of a new heap may write down: 24 and the old contents for each change.
    pub log: usize,
}

impl Options {
    /// Of a heap of up to 2^36 bytes that is made where there is none, whose log has 2^20, safe against kills.
    pub const DEFAULT: Options = Options {
        create: true,
        wait: false,
        durability: Durability::Process,
        capacity: None,
        log: 1 << 20,
    };
}

impl Default for Options {
    fn default() -> Options {
        Options::DEFAULT
    }
}

/// Why a call failed; the heap is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The system would not.
    Os {
        /// What it was asked.
        call: &'static str,
        /// What it said, as in `errno.h`.
        errno: i32,
    },
    /// Another has the heap open.
    Busy,
    /// The file is no heap.
    Foreign,
    /// The file's format is not known to this version.
    Newer {
        /// The version of the format.
        version: u32,
    },
    /// The file is shorter than it says.
    CutOff {
        /// The bytes that it should have.
        expected: u64,
        /// The bytes that it has.
        found: u64,
    },
    /// The file was damaged, or not written by this library.
    Corrupt {
        /// What is wrong.
        what: &'static str,
        /// Where in the file.
        place: u64,
    },
    /// No memory for what is not kept in the file.
    OutOfMemory,
    /// The heap has as many chunks as it may have.
    Full,
    /// The transaction changes more than the log holds.
    LogFull,
    /// The pointer is null, or not to a block that was taken and not freed.
    NotABlock,
    /// The block has a name: take it away first.
    Named,
    /// The range is not in the heap, or the pointer is not aligned for its type.
    OutOfRange,
    /// More than the 16 KiB that blocks can be aligned to.
    Alignment,
    /// The name of a root is empty, longer than 40 bytes, or has a NUL.
    Name,
    /// There are 64 roots.
    TooManyRoots,
    /// The capacity or the size of the log is 0 or too large.
    Options,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { call, errno } => write!(f, "{call} failed with errno {errno}"),
            Error::Busy => f.write_str("the heap is open elsewhere: close it there, or wait"),
            Error::Foreign => f.write_str("the file is not a persistent heap"),
            Error::Newer { version } => {
                write!(f, "the heap has format {version}, this library knows {}", format::VERSION)
            }
            Error::CutOff { expected, found } => {
                write!(f, "the heap is cut off: it has {found} bytes of {expected}")
            }
            Error::Corrupt { what, place } => {
                write!(f, "the heap is damaged at byte {place}: {what} is not what was written")
            }
            Error::OutOfMemory => f.write_str("no memory for the index of the heap"),
            Error::Full => f.write_str("the heap is as large as it may get"),
            Error::LogFull => f.write_str("the transaction is larger than the heap's log"),
            Error::NotABlock => f.write_str("no block of the heap starts there"),
            Error::Named => f.write_str("the block has a name: take it away first"),
            Error::OutOfRange => {
                f.write_str("that is not in the heap, or not aligned for its type")
            }
            Error::Alignment => write!(f, "blocks can be aligned to {CHUNK} bytes at most"),
            Error::Name => write!(f, "the name of a root has 1 to {NAME} bytes and no NUL"),
            Error::TooManyRoots => {
                write!(f, "the heap has {ROOT_COUNT} roots, and may have no more")
            }
            Error::Options => f.write_str("the capacity or the size of the log is 0 or too large"),
        }
    }
}

impl core::error::Error for Error {}

/// What may lie in a heap: any bytes are a value of it, and it points to nothing outside.
///
/// # Safety
/// Any bit pattern is a value, there is no padding, and no reference, pointer or lifetime is inside.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: a number, of which any bits are one.
        unsafe impl Plain for $type {}
    )* };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

// SAFETY: an array has its items and nothing between.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: a number of 64 bits; what it leads to is checked whenever it is followed.
unsafe impl<T: 'static> Plain for Rel<T> {}

/// A pointer to a `T` in a heap: how far it is from the start of the file, so that it may lie in the heap itself. 0 is null.
#[repr(transparent)]
pub struct Rel<T> {
    offset: u64,
    _to: PhantomData<fn() -> T>,
}

impl<T> Rel<T> {
    /// Points to nothing.
    pub const NULL: Rel<T> = Rel { offset: 0, _to: PhantomData };

    /// To a place of the file. What is there is checked when it is followed.
    pub const fn from_offset(offset: u64) -> Rel<T> {
        Rel { offset, _to: PhantomData }
    }

    /// How far it is from the start of the file.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Whether it points to nothing.
    pub const fn is_null(self) -> bool {
        self.offset == 0
    }

    /// To the same place, as something else.
    pub const fn cast<U>(self) -> Rel<U> {
        Rel::from_offset(self.offset)
    }

    fn place(self) -> usize {
        usize::try_from(self.offset).unwrap_or(usize::MAX)
    }
}

impl<T> Clone for Rel<T> {
    fn clone(&self) -> Rel<T> {
        *self
    }
}

impl<T> Copy for Rel<T> {}

impl<T> Default for Rel<T> {
    fn default() -> Rel<T> {
        Rel::NULL
    }
}

impl<T> PartialEq for Rel<T> {
    fn eq(&self, other: &Rel<T>) -> bool {
        self.offset == other.offset
    }
}

impl<T> Eq for Rel<T> {}

impl<T> fmt::Debug for Rel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rel({:#x})", self.offset)
    }
}

/// What a heap holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that are taken.
    pub blocks: usize,
    /// Their bytes, as large as they were made.
    pub bytes: usize,
    /// The bytes of the file, holes included.
    pub file: usize,
}

/// A heap in a file, open. Dropping it closes it; a heap that is closed is sealed with a hash over all that describes it.
///
/// A child of `fork` must not use it, and is sent SIGSEGV where it does; dropping it there does nothing.
#[derive(Debug)]
pub struct Persistent {
    /// Before the mapping, since it is told first of its end.
    watched: watched::Watched,
    mapping: mapping::Mapping,
    shape: Shape,
    /// Of the open transaction, or of the next one.
    generation: u64,
    log: log::Log,
    index: index::Index,
    durability: Durability,
    /// Whether more is to be done when something is written down.
    careful: bool,
    /// Whether the seal is broken, so that it is ours to renew.
    opened: bool,
}

impl Persistent {
    /// Opens a heap, recovers it where it was not closed, and checks it.
    ///
    /// # Errors
    /// [`Error::Busy`] where another has it open and [`Options::wait`] is not set; [`Error::Foreign`], [`Error::Newer`],
    /// [`Error::CutOff`] and [`Error::Corrupt`] where the file is not a whole heap of this format; what the system says.
    ///
    /// # Safety
    /// Nobody changes the file but through this library, while it is open.
    pub unsafe fn open(path: &CStr, options: &Options) -> Result<Persistent, Error> {
        open::open(path, options)
    }

    /// Begins a transaction. Dropping it undoes it.
    #[inline]
    pub fn begin(&mut self) -> Tx<'_> {
        if !self.log.is_empty() {
            // One that was forgotten rather than dropped. Where it cannot be flushed now, it is undone when next opened.
            let _ = self.undo();
        }
        Tx { heap: self }
    }

    /// Takes up the transaction that [`Tx::pause`] left open, or begins one.
    #[inline]
    pub fn resume(&mut self) -> Tx<'_> {
        Tx { heap: self }
    }

    /// What a pointer leads to.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where there is no `T` in the heap. Whether the block was freed meanwhile is not looked at.
    #[inline]
    pub fn get<T: Plain>(&self, pointer: Rel<T>) -> Result<&T, Error> {
        let place = self.resolve(pointer, 1)?;
        // SAFETY: `resolve` checked that a `T` has room there and is aligned; any bytes are one; no store can happen while
        // it is borrowed.
        Ok(unsafe { place.as_ref() })
    }

    /// What `count` values from a pointer on are.
    ///
    /// # Errors
    /// As [`Persistent::get`].
    pub fn slice<T: Plain>(&self, pointer: Rel<T>, count: usize) -> Result<&[T], Error> {
        let place = self.resolve(pointer, count)?;
        // SAFETY: as in `get`, of `count` values.
        Ok(unsafe { core::slice::from_raw_parts(place.as_ptr(), count) })
    }

    /// The address of values, while the heap is open.
    #[inline]
    fn resolve<T>(&self, pointer: Rel<T>, count: usize) -> Result<NonNull<T>, Error> {
        let (place, end) = (pointer.place(), self.shape.with(self.index.chunks()));
        let size = size_of::<T>().checked_mul(count).ok_or(Error::OutOfRange)?;
        let fits = place >= self.shape.data() && place <= end && size <= end - place;
        if !fits || !place.is_multiple_of(align_of::<T>()) || align_of::<T>() > CHUNK {
            return Err(Error::OutOfRange);
        }
        // SAFETY: the place lies before the end of the chunks, all of which are mapped.
        Ok(unsafe { self.mapping.base.add(place) }.cast())
    }

    /// The block with a name; `None` where there is no such name.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where the block is too small for a `T`; [`Error::Name`] for what can be no name.
    pub fn root<T: Plain>(&self, name: &str) -> Result<Option<Rel<T>>, Error> {
        let Some(at) = self.find_root(&root_name(name)?) else { return Ok(None) };
        let pointer = Rel::from_offset(self.root_at(at).offset);
        self.resolve(pointer, 1)?;
        let fits = self.size(pointer)? >= size_of::<T>();
        if fits { Ok(Some(pointer)) } else { Err(Error::OutOfRange) }
    }

    fn find_root(&self, name: &[u8; NAME]) -> Option<usize> {
        let name = format::words_of(name);
        (0..ROOT_COUNT).find(|at| {
            let place = ROOTS + at * size_of::<Root>();
            name.iter().zip(0..).all(|(word, at)| self.mapping.load(place + at * 8) == *word)
        })
    }

    #[cold]
    fn has_name(&self, offset: u64) -> bool {
        (0..ROOT_COUNT)
            .map(|at| self.root_at(at))
            .any(|root| root != Root::NONE && root.offset == offset)
    }

    /// Takes in that the block at a place has a name, so that it is not freed.
    fn mark_named(&mut self, place: usize) -> Result<(), Error> {
        let found = self.taken(place).ok_or(Error::NotABlock)?;
        self.index.set_named(found);
        Ok(())
    }

    /// How many bytes a block has: at least what was asked for.
    ///
    /// # Errors
    /// [`Error::NotABlock`] where no block that is taken starts there.
    pub fn block_size<T>(&self, pointer: Rel<T>) -> Result<usize, Error> {
        let size = self.size(pointer)?;
        self.open_up(pointer.place(), size);
        Ok(size)
    }

    fn size<T>(&self, pointer: Rel<T>) -> Result<usize, Error> {
        Ok(self.taken(pointer.place()).ok_or(Error::NotABlock)?.size())
    }

    /// Names the heap for `pagewise pools`; the first 32 bytes count.
    pub fn set_name(&mut self, name: &str) {
        self.watched.set_name(name);
    }

    /// Walks everything that must hold, in the file and in the index of it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where it does not hold.
    pub fn check(&self) -> Result<Usage, Error> {
        self.check_roots()?;
        self.audit()
    }

    /// Waits until all that was committed would survive a loss of power: a checkpoint for heaps of [`Durability::Process`].
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.mapping.sync(0, self.shape.with(self.index.chunks()))
    }

    /// Between which offsets blocks lie now. The end grows.
    pub fn range(&self) -> Range<u64> {
        self.shape.data() as u64..self.shape.with(self.index.chunks()) as u64
    }

    /// Where the file is mapped, for as long as it is open.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    /// Closes the heap, as dropping it does, and says whether that went well.
    ///
    /// # Errors
    /// What the system says. The heap is closed, and recovered when next opened.
    pub fn close(mut self) -> Result<(), Error> {
        self.seal()
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        // Where it cannot be sealed it is recovered when next opened.
        let _ = self.seal();
    }
}

/// A name as roots have it.
fn root_name(name: &str) -> Result<[u8; NAME], Error> {
    let mut padded = [0; NAME];
    let fits = !name.is_empty() && !name.contains('\0');
    let room = padded.get_mut(..name.len()).filter(|_| fits).ok_or(Error::Name)?;
    room.copy_from_slice(name.as_bytes());
    Ok(padded)
}

/// A transaction: all that it does becomes part of the heap when it is committed, or never.
#[derive(Debug)]
pub struct Tx<'h> {
    heap: &'h mut Persistent,
}

impl Deref for Tx<'_> {
    type Target = Persistent;

    fn deref(&self) -> &Persistent {
        self.heap
    }
}

impl Tx<'_> {
    /// Takes a block. What is in it is left over from whoever had it before, and is not in the log: change it freely
    /// while this transaction lasts.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::LogFull`], [`Error::Alignment`]; the system's word where the file cannot grow.
    #[inline]
    pub fn alloc(&mut self, layout: Layout) -> Result<Rel<u8>, Error> {
        let (size, align) = (layout.size(), layout.align());
        let place = if self.heap.watched.closely() {
            self.heap.take_apart(size, align)?
        } else {
            self.heap.take(size, align)?
        };
        Ok(Rel::from_offset(place as u64))
    }

    /// Takes a block for a value.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    #[inline]
    pub fn make<T: Plain>(&mut self, value: T) -> Result<Rel<T>, Error> {
        let pointer = self.alloc(Layout::new::<T>())?.cast::<T>();
        self.put(pointer, value)?;
        Ok(pointer)
    }

    /// Frees a block once the transaction is committed; until then it can be read.
    ///
    /// # Errors
    /// [`Error::NotABlock`] where no block that is taken starts there; [`Error::Named`]; [`Error::LogFull`].
    #[inline]
    pub fn free<T>(&mut self, pointer: Rel<T>) -> Result<(), Error> {
        let found = self.heap.taken(pointer.place()).ok_or(Error::NotABlock)?;
        if self.heap.index.may_be_named(found) && self.heap.has_name(pointer.offset()) {
            return Err(Error::Named);
        }
        self.heap.note(Kind::Free, pointer.place(), 0)?;
        self.heap.log.remember(found);
        Ok(())
    }

    /// Gives a block another size and its old contents as far as they fit. Returns where it is now: in its place, where that
    /// has the size that is right, or in a new one, and then the old is freed once the transaction is committed.
    ///
    /// # Errors
    /// As [`Tx::alloc`] and [`Tx::free`]; the block is as it was then.
    pub fn resize<T>(&mut self, pointer: Rel<T>, layout: Layout) -> Result<Rel<T>, Error> {
        let has = self.size(pointer)?;
        let is_right = format::rounded(layout.size(), layout.align()) == Some(has);
        let is_aligned = pointer.place().is_multiple_of(layout.align());
        if is_right && is_aligned && !self.watched.closely() {
            return Ok(pointer);
        }
        let moved = self.alloc(layout)?;
        let kept = has.min(self.size(moved)?);
        self.heap.copy(pointer.place(), moved.place(), kept);
        match self.free(pointer) {
            Ok(()) => Ok(moved.cast()),
            Err(error) => self.free(moved).and(Err(error)),
        }
    }

    /// What a pointer leads to, to be changed: its old contents come back unless the transaction is committed.
    ///
    /// # Errors
    /// As [`Persistent::get`]; [`Error::LogFull`].
    #[inline]
    pub fn change<T: Plain>(&mut self, pointer: Rel<T>) -> Result<&mut T, Error> {
        let mut place = self.heap.resolve(pointer, 1)?;
        self.keep::<T>(pointer.place())?;
        // SAFETY: `resolve` checked that a `T` has room there and is aligned; any bytes are one; nobody else has a
        // reference into the heap while the transaction is borrowed.
        Ok(unsafe { place.as_mut() })
    }

    /// As [`Tx::change`], of `count` values.
    ///
    /// # Errors
    /// As [`Tx::change`].
    pub fn change_slice<T: Plain>(
        &mut self,
        pointer: Rel<T>,
        count: usize,
    ) -> Result<&mut [T], Error> {
        let place = self.heap.resolve(pointer, count)?;
        self.keep_bytes(pointer.place(), size_of::<T>() * count)?;
        // SAFETY: as in `change`, of `count` values.
        Ok(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    /// A block that this transaction took, to be filled: its old contents are not kept.
    ///
    /// # Errors
    /// As [`Persistent::get`].
    pub fn fill<T: Plain>(&mut self, pointer: Rel<T>, count: usize) -> Result<&mut [T], Error> {
        let place = self.heap.resolve(pointer, count)?;
        // SAFETY: as in `change`, of `count` values.
        Ok(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    /// Stores a value in a block that this transaction took.
    #[inline]
    fn put<T: Plain>(&mut self, pointer: Rel<T>, value: T) -> Result<(), Error> {
        let place = self.heap.resolve(pointer, 1)?;
        // SAFETY: `resolve` checked that a `T` has room there and is aligned.
        unsafe { place.write(value) };
        Ok(())
    }

    /// Writes down what a value is, rounded to words: blocks are made of words, so it stays in its block.
    #[inline]
    fn keep<T>(&mut self, place: usize) -> Result<(), Error> {
        let is_words = size_of::<T>().is_multiple_of(8) && align_of::<T>().is_multiple_of(8);
        if is_words && size_of::<T>() > 0 {
            return self.heap.note(Kind::Bytes, place, size_of::<T>());
        }
        self.keep_bytes(place, size_of::<T>())
    }

    fn keep_bytes(&mut self, place: usize, size: usize) -> Result<(), Error> {
        let start = place & !7;
        let len = (place + size).next_multiple_of(8) - start;
        if size == 0 { Ok(()) } else { self.heap.note(Kind::Bytes, start, len) }
    }

    /// Gives a block a name, under which it is found when the heap is opened again. [`Rel::NULL`] takes the name away.
    ///
    /// # Errors
    /// [`Error::NotABlock`], [`Error::Name`], [`Error::TooManyRoots`], [`Error::LogFull`].
    pub fn set_root<T>(&mut self, name: &str, pointer: Rel<T>) -> Result<(), Error> {
        let name = root_name(name)?;
        let mut root = Root::NONE;
        if !pointer.is_null() {
            root = Root::new(name, pointer.offset());
            self.heap.mark_named(pointer.place())?;
            if self.heap.is_freed(pointer.place()) {
                return Err(Error::NotABlock);
            }
        }
        let at = match self.heap.find_root(&name) {
            None if pointer.is_null() => return Ok(()),
            None => self.heap.find_root(&[0; NAME]).ok_or(Error::TooManyRoots)?,
            Some(at) => at,
        };
        let place = ROOTS + at * size_of::<Root>();
        self.heap.note(Kind::Bytes, place, size_of::<Root>())?;
        for (word, value) in root.words().into_iter().enumerate() {
            self.heap.mapping.store(place + word * 8, value);
        }
        Ok(())
    }

    /// Makes all that was done part of the heap, at one instruction.
    ///
    /// # Errors
    /// With [`Durability::Power`], what the system says: whether the transaction survives a loss of power is not known then.
    #[inline]
    pub fn commit(self) -> Result<(), Error> {
        self.heap.finish()
    }

    /// Leaves it open without a value that stands for it, for callers in other languages: [`Persistent::resume`] takes it up,
    /// [`Persistent::begin`] and closing the heap undo it.
    #[inline]
    pub fn pause(self) {
        core::mem::forget(self);
    }

    /// Undoes all that was done, as dropping it does, and says whether that went well.
    ///
    /// # Errors
    /// With [`Durability::Power`], what the system says; it is tried again by the next transaction and when next opened.
    pub fn abort(self) -> Result<(), Error> {
        self.heap.undo()
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing to undo.
        let _ = self.heap.undo();
    }
}

// SAFETY: blocks are taken of chunks that are free, or of bits that are clear, so they do not overlap; they are as aligned
// as their class; and the file stays where it is mapped while it is open.
unsafe impl Allocator for Persistent {
    const NAME: &'static str = "persistent";
    const FREES: Discipline = Discipline::Any;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let mut tx = self.begin();
        let block = tx.alloc(layout).ok()?;
        let place = tx.resolve(block, layout.size()).ok()?;
        tx.commit().ok()?;
        Some(place)
    }

    unsafe fn free(&mut self, block: NonNull<u8>, _layout: Layout) {
        let offset = block.addr().get() - self.base().addr().get();
        let mut tx = self.begin();
        // What is no block is refused, and what is one is freed by this log, which was empty.
        let freed = tx.free(Rel::<u8>::from_offset(offset as u64)).and_then(|()| tx.commit());
        debug_assert_eq!(freed, Ok(()), "a block that is not of this heap was freed");
    }

    fn check(&self) {
        if let Err(error) = Persistent::check(self) {
            panic!("{error}");
        }
    }
}
