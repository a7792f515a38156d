//! What pools tell those who watch memory: checkers of accesses, statistics. Nobody does yet, and each call is nothing.
//!
//! A pool calls these where it happens, fast paths included, with the memory of its user: no header, no padding.

use core::ptr::NonNull;

use crate::source::Block;

/// A pool, as its watchers know it.
#[derive(Clone, Copy, Debug)]
pub struct Pool(());

/// A pool begins.
#[inline(always)]
pub const fn created(_kind: &'static str) -> Pool {
    Pool(())
}

/// A pool ends, and with it all that it handed out.
#[inline(always)]
pub const fn destroyed(_pool: Pool) {}

/// A pool has a block of its source: nobody may touch it but the pool.
#[inline(always)]
pub const fn taken(_pool: Pool, _block: Block) {}

/// A pool gives a block back.
#[inline(always)]
pub const fn given_back(_pool: Pool, _block: Block) {}

/// Memory was handed out. Its contents are not defined.
#[inline(always)]
pub const fn allocated(_pool: Pool, _start: NonNull<u8>, _size: usize) {}

/// Memory that was handed out keeps its place and has another size.
#[inline(always)]
pub const fn resized(_pool: Pool, _start: NonNull<u8>, _old: usize, _new: usize) {}

/// Memory that was handed out came back.
#[inline(always)]
pub const fn freed(_pool: Pool, _start: NonNull<u8>, _size: usize) {}

/// All that was handed out of these bytes came back at once.
#[inline(always)]
pub const fn popped(_pool: Pool, _start: NonNull<u8>, _size: usize) {}
