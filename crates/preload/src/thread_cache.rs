//! glibc's caches of freed blocks, one a thread, which glibc empties as the thread ends.
//!
//! The blocks in a cache were freed already. When a thread ends, `tcache_thread_shutdown` passes
//! each of them to `free` again, then the cache itself, which no function of `malloc`'s family
//! returned. If `free` is hooked at its entry, the recorder sees these calls. They free no block of
//! the program.
//!
//! A cached block has a number in its second word that glibc draws when it begins (`tcache_key`,
//! glibc 2.34 and later), and that is cleared when the block leaves the cache. So the calls are
//! known by their caller, glibc, and by that number.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::glibc_cache::CacheLayout;
use pagewise_heaplog::glibc_chunk;

use crate::modules;
use crate::next_alloc;

/// The number, 0 where it is not known.
static KEY: AtomicU64 = AtomicU64::new(0);
/// Address range of glibc's code.
static CODE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Learns the number from a block of this thread's. `malloc` and `free` are glibc's, whose blocks
/// have headers.
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
    // A block of this size was taken from the cache, or the cache has none: either way there is
    // room for it.
    next_alloc::free(block);
    // SAFETY: glibc unmaps no block this small; of its memory nothing else is assumed.
    KEY.store(unsafe { second.read_volatile() }, Relaxed);
}

/// True if `free` was called with this stack pointer to empty the cache of a thread that ends.
pub(crate) fn is_emptied(address: u64, stack: u64) -> bool {
    let key = KEY.load(Relaxed);
    if key == 0 {
        return false;
    }
    let back: *const u64 = std::ptr::with_exposed_provenance(stack as usize);
    // SAFETY: the stub has passed its stack pointer, where the call put its return address.
    let caller = unsafe { back.read_volatile() };
    if !(CODE[0].load(Relaxed)..CODE[1].load(Relaxed)).contains(&caller) {
        return false;
    }
    let word = |at: u64| {
        let word: *const u64 = std::ptr::with_exposed_provenance((address + at) as usize);
        // SAFETY: blocks have at least three words; more are read only of what is as large.
        unsafe { word.read_volatile() }
    };
    if word(8) == key {
        return true;
    }
    let cache = CacheLayout::of_chunk(glibc_chunk::size(next_alloc::glibc_size(address)));
    // glibc has taken all blocks out of the lists before.
    cache.is_some_and(|cache| {
        (cache.entries()..cache.bytes()).step_by(8).all(|at| word(at as u64) == 0)
    })
}
