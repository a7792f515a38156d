//! Transactions, as users call them. Their effects in the file are implemented in `space`.

use core::alloc::Layout;
use core::ops::Deref;
use core::ptr::NonNull;

use super::format::{self, NAME, NamedRoot, ROOTS};
use super::log::LogEntryKind;
use super::{Persistent, PersistentError, PlainData, Rel, root_name};
use crate::{Discipline, DisciplinedAllocator};

/// A transaction: all of its changes become part of the heap when it is committed. Without a
/// commit, the heap does not change.
#[derive(Debug)]
pub struct Tx<'h> {
    pub(super) heap: &'h mut Persistent,
}

impl Deref for Tx<'_> {
    type Target = Persistent;

    fn deref(&self) -> &Persistent {
        self.heap
    }
}

impl Tx<'_> {
    /// Allocates a block. Its contents may be those of an earlier block. They are not logged: this
    /// transaction may change them without [`Tx::change`].
    ///
    /// # Errors
    /// [`PersistentError::Full`], [`PersistentError::LogFull`], [`PersistentError::Alignment`];
    /// [`PersistentError::Os`] if the file cannot grow.
    #[inline]
    pub fn alloc(&mut self, layout: Layout) -> Result<Rel<u8>, PersistentError> {
        let (size, align) = (layout.size(), layout.align());
        let place = if self.heap.watched.closely() {
            self.heap.take_apart(size, align)?
        } else {
            self.heap.allocate_place(size, align)?
        };
        Ok(Rel::from_offset(place as u64))
    }

    /// Allocates a block, and stores a value in it.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    #[inline]
    pub fn make<T: PlainData>(&mut self, value: T) -> Result<Rel<T>, PersistentError> {
        let pointer = self.alloc(Layout::new::<T>())?.cast::<T>();
        self.put(pointer, value)?;
        Ok(pointer)
    }

    /// Frees a block when the transaction is committed. Until then the block can be read.
    ///
    /// # Errors
    /// [`PersistentError::NotABlock`] if no allocated block starts at the pointer;
    /// [`PersistentError::Named`]; [`PersistentError::LogFull`].
    #[inline]
    pub fn free<T>(&mut self, pointer: Rel<T>) -> Result<(), PersistentError> {
        let found = self.heap.taken(pointer.place()).ok_or(PersistentError::NotABlock)?;
        if self.heap.index.may_be_named(found) && self.heap.has_name(pointer.offset()) {
            return Err(PersistentError::Named);
        }
        self.heap.note(LogEntryKind::Free, pointer.place(), 0)?;
        self.heap.log.remember(found);
        Ok(())
    }

    /// Resizes a block, and keeps its contents up to the smaller size. Returns the same pointer if
    /// the size class stays, else the pointer to a new block. The old block is then freed when the
    /// transaction is committed.
    ///
    /// # Errors
    /// As [`Tx::alloc`] and [`Tx::free`]. After an error the block is unchanged.
    pub fn resize<T>(
        &mut self,
        pointer: Rel<T>,
        layout: Layout,
    ) -> Result<Rel<T>, PersistentError> {
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

    /// Returns the value that a pointer refers to, for changes. Its old contents are restored
    /// unless the transaction is committed.
    ///
    /// # Errors
    /// As [`Persistent::get`]; [`PersistentError::LogFull`].
    #[inline]
    pub fn change<T: PlainData>(&mut self, pointer: Rel<T>) -> Result<&mut T, PersistentError> {
        let mut place = self.heap.resolve(pointer, 1)?;
        self.keep::<T>(pointer.place())?;
        // SAFETY: `resolve` checked that a `T` fits at this address and is aligned; every bit
        // pattern is a valid `T`; no other reference into the heap exists while the transaction is
        // borrowed.
        Ok(unsafe { place.as_mut() })
    }

    /// As [`Tx::change`], for `count` consecutive values.
    ///
    /// # Errors
    /// As [`Tx::change`].
    pub fn change_slice<T: PlainData>(
        &mut self,
        pointer: Rel<T>,
        count: usize,
    ) -> Result<&mut [T], PersistentError> {
        let place = self.heap.resolve(pointer, count)?;
        self.keep_bytes(pointer.place(), size_of::<T>() * count)?;
        // SAFETY: `resolve` checked that `count` values of a `T` fit at this address and are
        // aligned; every bit pattern is valid, and the transaction is borrowed exclusively.
        Ok(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    /// Returns values in a block that this transaction allocated, for changes. Their old contents
    /// are not logged.
    ///
    /// # Errors
    /// As [`Persistent::get`].
    pub fn fill<T: PlainData>(
        &mut self,
        pointer: Rel<T>,
        count: usize,
    ) -> Result<&mut [T], PersistentError> {
        let place = self.heap.resolve(pointer, count)?;
        // SAFETY: `resolve` checked that `count` values of a `T` fit at this address and are
        // aligned; every bit pattern is valid, and the transaction is borrowed exclusively.
        Ok(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), count) })
    }

    /// Stores a value in a block that this transaction allocated.
    #[inline]
    fn put<T: PlainData>(&mut self, pointer: Rel<T>, value: T) -> Result<(), PersistentError> {
        let place = self.heap.resolve(pointer, 1)?;
        // SAFETY: `resolve` checked that a `T` fits at this address and is aligned.
        unsafe { place.write(value) };
        Ok(())
    }

    /// Logs the old bytes of a value, rounded to whole words. Blocks consist of whole words, so the
    /// range stays in its block.
    #[inline]
    fn keep<T>(&mut self, place: usize) -> Result<(), PersistentError> {
        let is_words = size_of::<T>().is_multiple_of(8) && align_of::<T>().is_multiple_of(8);
        if is_words && size_of::<T>() > 0 {
            return self.heap.note(LogEntryKind::Bytes, place, size_of::<T>());
        }
        self.keep_bytes(place, size_of::<T>())
    }

    fn keep_bytes(&mut self, place: usize, size: usize) -> Result<(), PersistentError> {
        let start = place & !7;
        let len = (place + size).next_multiple_of(8) - start;
        if size == 0 { Ok(()) } else { self.heap.note(LogEntryKind::Bytes, start, len) }
    }

    /// Sets the name of a block; [`Persistent::root`] finds the block by this name, also after the
    /// heap is opened again. [`Rel::NULL`] removes the name.
    ///
    /// # Errors
    /// [`PersistentError::NotABlock`], [`PersistentError::Name`],
    /// [`PersistentError::TooManyRoots`], [`PersistentError::LogFull`].
    pub fn set_root<T>(&mut self, name: &str, pointer: Rel<T>) -> Result<(), PersistentError> {
        let name = root_name(name)?;
        let mut root = NamedRoot::NONE;
        if !pointer.is_null() {
            root = NamedRoot::new(name, pointer.offset());
            self.heap.mark_named(pointer.place())?;
            if self.heap.is_freed(pointer.place()) {
                return Err(PersistentError::NotABlock);
            }
        }
        let at = match self.heap.find_root(&name) {
            None if pointer.is_null() => return Ok(()),
            None => self.heap.find_root(&[0; NAME]).ok_or(PersistentError::TooManyRoots)?,
            Some(at) => at,
        };
        let place = ROOTS + at * size_of::<NamedRoot>();
        self.heap.note(LogEntryKind::Bytes, place, size_of::<NamedRoot>())?;
        for (word, value) in root.as_words().into_iter().enumerate() {
            self.heap.mapping.store(place + word * 8, value);
        }
        Ok(())
    }

    /// Commits the transaction, by a single store.
    ///
    /// # Errors
    /// With [`Power`](super::Durability::Power), the error of a flush. After such an error the
    /// transaction may or may not survive a loss of power.
    #[inline]
    pub fn commit(self) -> Result<(), PersistentError> {
        self.heap.finish()
    }

    /// Leaves the transaction open without a value of this type, for callers in other languages.
    /// [`Persistent::resume`] resumes it; [`Persistent::begin`] and closing the heap undo it.
    #[inline]
    pub fn pause(self) {
        core::mem::forget(self);
    }

    /// Undoes the transaction, as dropping it does, but returns the error if the undo fails.
    ///
    /// # Errors
    /// With [`Power`](super::Durability::Power), the error of a flush: the next transaction or the
    /// next open undoes the transaction again.
    pub fn abort(self) -> Result<(), PersistentError> {
        self.heap.undo()
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        // After a commit the undo has no effect.
        let _ = self.heap.undo();
    }
}

// SAFETY: a block is allocated only from free chunks or from clear bits, so blocks do not overlap.
// Blocks have the alignment of their size class, and the address of the mapping does not change
// while the file is open.
unsafe impl DisciplinedAllocator for Persistent {
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
        // `Tx::free` rejects an address at which no block begins. The transaction is new, so its
        // log has space for the entry.
        let freed = tx.free(Rel::<u8>::from_offset(offset as u64)).and_then(|()| tx.commit());
        debug_assert_eq!(freed, Ok(()), "a block that is not of this heap was freed");
    }

    fn check(&self) {
        if let Err(error) = Persistent::check(self) {
            panic!("{error}");
        }
    }
}
