//! Requests to valgrind: each pool is one of its memory pools.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::GAP;
use crate::source::SourceBlock;

/// The numbers of requests, which are a stable part of valgrind's interface to programs.
mod request {
    pub(super) const CREATE_MEMPOOL: usize = 0x1303;
    pub(super) const DESTROY_MEMPOOL: usize = 0x1304;
    pub(super) const MEMPOOL_ALLOC: usize = 0x1305;
    pub(super) const MEMPOOL_FREE: usize = 0x1306;
    pub(super) const MEMPOOL_CHANGE: usize = 0x1309;
    pub(super) const CHANGE_ERR_DISABLEMENT: usize = 0x1801;
    /// Requests of memcheck begin with these two letters.
    const MEMCHECK: usize = (b'M' as usize) << 24 | (b'C' as usize) << 16;
    pub(super) const MAKE_MEM_NOACCESS: usize = MEMCHECK;
    pub(super) const MAKE_MEM_UNDEFINED: usize = MEMCHECK + 1;
    pub(super) const MAKE_MEM_DEFINED: usize = MEMCHECK + 2;
    pub(super) const GET_VBITS: usize = MEMCHECK + 8;
}

/// Sends a request; returns 0 if valgrind is absent, or does not know the request.
fn ask<const N: usize>(request: usize, arguments: [usize; N]) -> usize {
    let mut words = [0; 6];
    words[0] = request;
    words[1..=N].copy_from_slice(&arguments);
    ask_words(&words)
}

#[cfg(target_arch = "x86_64")]
fn ask_words(words: &[usize; 6]) -> usize {
    let mut answer = 0_usize;
    // SAFETY: the four rotations leave `rdi` as it was and the exchange does nothing; valgrind
    // reads the words, and writes only `rdx`.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
fn ask_words(words: &[usize; 6]) -> usize {
    let mut answer = 0_usize;
    // SAFETY: the four rotations leave `x12` as it was and the rest does nothing; valgrind reads
    // the words, and writes only `x3`.
    unsafe {
        core::arch::asm!(
            "ror x12, x12, #3", "ror x12, x12, #13", "ror x12, x12, #51", "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") words.as_ptr(),
            inout("x3") answer,
            options(nostack),
        );
    }
    answer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ask_words(_words: &[usize; 6]) -> usize {
    0
}

/// True if memcheck runs the program: other tools of valgrind need no reports.
pub(super) fn is_running() -> bool {
    /// Answer of memcheck after it has reported which bytes are defined.
    const TOLD: usize = 1;
    let (byte, mut defined) = (0_u8, 0_u8);
    let [byte, defined] =
        [(&raw const byte).expose_provenance(), (&raw mut defined).expose_provenance()];
    ask(request::GET_VBITS, [byte, defined, 1]) == TOLD
}

pub(super) fn report_errors(report: bool) {
    let disablement = if report { usize::MAX } else { 1 };
    ask(request::CHANGE_ERR_DISABLEMENT, [disablement]);
}

/// Pools are known by a number: they may move in memory.
fn id(pool: &Cell<usize>) -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    if pool.get() == 0 {
        pool.set(LAST.fetch_add(1, Relaxed) + 1);
        let (redzone, zeroed) = (GAP, 0);
        ask(request::CREATE_MEMPOOL, [pool.get(), redzone, zeroed]);
    }
    pool.get()
}

pub(super) fn taken(pool: &Cell<usize>, block: SourceBlock) {
    id(pool);
    ask(request::MAKE_MEM_NOACCESS, [block.start.addr().get(), block.size]);
}

/// The contents are undefined for the next user of this memory.
pub(super) fn given_back(block: SourceBlock) {
    ask(request::MAKE_MEM_UNDEFINED, [block.start.addr().get(), block.size]);
}

pub(super) fn destroyed(pool: &Cell<usize>) {
    let id = pool.take();
    if id != 0 {
        ask(request::DESTROY_MEMPOOL, [id]);
    }
}

pub(super) fn allocated(pool: &Cell<usize>, start: NonNull<u8>, size: usize) {
    ask(request::MEMPOOL_ALLOC, [id(pool), start.addr().get(), size]);
}

/// The added bytes of a block that grew are undefined.
pub(super) fn resized(pool: &Cell<usize>, start: NonNull<u8>, old: usize, new: usize) {
    let start = start.addr().get();
    ask(request::MEMPOOL_CHANGE, [id(pool), start, start, new]);
    if new > old {
        ask(request::MAKE_MEM_UNDEFINED, [start + old, new - old]);
    } else {
        ask(request::MAKE_MEM_NOACCESS, [start + new, old - new]);
    }
}

pub(super) fn freed(pool: &Cell<usize>, start: NonNull<u8>, _size: usize) {
    ask(request::MEMPOOL_FREE, [id(pool), start.addr().get()]);
}

pub(super) fn defined(start: NonNull<u8>, size: usize) {
    ask(request::MAKE_MEM_DEFINED, [start.addr().get(), size]);
}

pub(super) fn hidden(start: NonNull<u8>, size: usize) {
    ask(request::MAKE_MEM_NOACCESS, [start.addr().get(), size]);
}

/// memcheck detects that the pool has no such block, and reports it with the call stack.
pub(super) fn misused(pool: &Cell<usize>, start: NonNull<u8>) {
    ask(request::MEMPOOL_FREE, [id(pool), start.addr().get()]);
}
