//! Where pools of C programs live that are made by the library: in memory of their own source, since a program that gives a
//! buffer wants nothing else to be taken.

use std::alloc::Layout;
use std::ptr::NonNull;

use pagewise_alloc::{Block, Os, Source};

/// A pool and the memory in which it lies. The pool comes first: a pointer to it is one to its home.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Home<T> {
    pool: T,
    block: Block,
}

/// Makes a pool in memory of a source, which it may have then; `None` where there is none.
pub(crate) fn place<S: Source, T>(source: S, make: impl FnOnce(S) -> T) -> Option<NonNull<T>> {
    let block = source.take(Layout::new::<Home<T>>())?;
    let home = block.start.cast::<Home<T>>();
    // SAFETY: the block is as large and aligned as asked, and nobody else's.
    unsafe { home.write(Home { pool: make(source), block }) };
    Some(home.cast())
}

/// Ends a pool, and says in which memory it was.
///
/// # Safety
/// The pool came from [`place`], and nobody uses it any more.
pub(crate) unsafe fn end<T>(pool: NonNull<T>) -> Block {
    // SAFETY: a pool that was placed is the start of its home, and is read for the last time.
    let Home { pool, block } = unsafe { pool.cast::<Home<T>>().read() };
    drop(pool);
    block
}

/// Gives memory of the system back.
///
/// # Safety
/// It came from [`Os`], and nobody uses it any more.
pub(crate) unsafe fn give_back_to_system(block: Block) {
    // SAFETY: the caller promises the same.
    unsafe { Os.give_back(block) };
}
