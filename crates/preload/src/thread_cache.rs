//! glibc's thread caches of freed blocks, which glibc empties when the thread ends.
//!
//! The program has already freed the blocks in a thread cache. When a thread ends,
//! `tcache_thread_shutdown` passes each of these blocks to `free` again, and then the cache itself,
//! which no function of `malloc`'s family has returned. If `free` is hooked inline, these calls
//! reach the recorder, although they free no block of the program.
//!
//! In glibc 2.34 and later, the second word of a cached block is a random number of the process
//! (`tcache_key`), which glibc clears when the block leaves the cache. So the recorder recognizes
//! these calls by their caller, which is in glibc, and by this number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::glibc_cache::CacheLayout;
use pagewise_heaplog::glibc_chunk;

use crate::modules;
use crate::next_alloc;

/// Value of `tcache_key`; 0 if unknown.
static KEY: AtomicU64 = AtomicU64::new(0);
/// Start and end of glibc's code.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Reads `tcache_key` from a block that this thread allocates and frees. Requires that `malloc` and
/// `free` are glibc's and that blocks have headers.
pub(crate) fn learn() {
    const SIZE: usize = 24;
    let code = modules::find(next_alloc::FREE.load(Relaxed).addr() as u64);
    let (start, end) = code.map_or((0, 0), |it| (it.start as u64, it.end as u64));
    CODE[0].store(start, Relaxed);
    CODE[1].store(end, Relaxed);
    let block = next_alloc::malloc(SIZE);
    if block.is_null() {
        return;
    }
    let second = block.cast::<u64>().wrapping_add(1);
    // SAFETY: the block has three words.
    unsafe { second.write_volatile(0) };
    // The block came from the cache, or the cache has no block of this size. In both cases the
    // cache has space for the block.
    next_alloc::free(block);
    // SAFETY: glibc does not unmap such a small block. Any value of the word is accepted.
    KEY.store(unsafe { second.read_volatile() }, Relaxed);
}

/// True if `free` was called with this stack pointer to empty the cache of an ending thread.
pub(crate) fn is_emptied(address: u64, stack: u64) -> bool {
    let key = KEY.load(Relaxed);
    if key == 0 {
        return false;
    }
    let back: *const u64 = std::ptr::with_exposed_provenance(stack as usize);
    // SAFETY: the stub passes its stack pointer, which points to the return address of the call.
    let caller = unsafe { back.read_volatile() };
    if !(CODE[0].load(Relaxed)..CODE[1].load(Relaxed)).contains(&caller) {
        return false;
    }
    let word = |at: u64| {
        let word: *const u64 = std::ptr::with_exposed_provenance((address + at) as usize);
        // SAFETY: every block has at least three words. More words are read only if the chunk has
        // the size of a cache.
        unsafe { word.read_volatile() }
    };
    if word(8) == key {
        return true;
    }
    let cache = CacheLayout::of_chunk(glibc_chunk::size(next_alloc::glibc_size(address)));
    // glibc has already removed all blocks from the lists of this cache.
    cache.is_some_and(|cache| {
        (cache.entries()..cache.bytes()).step_by(8).all(|at| word(at as u64) == 0)
    })
}
