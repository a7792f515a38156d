//! Memory of the pools that the library creates for C programs. It comes from the memory source of
//! the pool, since a program that provides a buffer expects no other allocation.

use std::alloc::Layout;
use std::ptr::NonNull;

use pagewise_alloc::{Os, Source, SourceBlock};

/// A pool and the memory that contains it. The pool is the first field, so a pointer to the pool is
/// also one to its `Home`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Home<T> {
    pool: T,
    block: SourceBlock,
}

/// Creates a pool in memory of its source, which the pool owns; `None` if memory is exhausted.
pub(crate) fn place<S: Source, T>(source: S, make: impl FnOnce(S) -> T) -> Option<NonNull<T>> {
    let block = source.take(Layout::new::<Home<T>>())?;
    let home = block.start.cast::<Home<T>>();
    // SAFETY: the block has the requested size and alignment, and no other code uses it.
    unsafe { home.write(Home { pool: make(source), block }) };
    Some(home.cast())
}

/// Drops a pool, and returns the memory that contained it.
///
/// # Safety
/// [`place`] created the pool, which is not used any more.
pub(crate) unsafe fn end<T>(pool: NonNull<T>) -> SourceBlock {
    // SAFETY: a pool that `place` created is the first field of its home, and is read for the last
    // time.
    let Home { pool, block } = unsafe { pool.cast::<Home<T>>().read() };
    drop(pool);
    block
}

/// Releases memory of the system.
///
/// # Safety
/// The block came from [`Os`], and is not used any more.
pub(crate) unsafe fn give_back_to_system(block: SourceBlock) {
    // SAFETY: the caller passes a block of the system's source.
    unsafe { Os.give_back(block) };
}
