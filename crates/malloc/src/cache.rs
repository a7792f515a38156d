//! Cache of a thread: lists of freed blocks of each small size class, linked through the blocks
//! themselves.
//!
//! A thread moves blocks in batches between its cache and the pool of blocks, and takes the lock of
//! the pool once for each batch. The cache is emptied when the thread ends.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use pagewise_alloc::tlsf::size_class;

use crate::heap::{self, ALIGN, asked, with_blocks, word};
use crate::thread::with_thread_cache;

/// Number of size classes of the pool of blocks that are cached: blocks of up to 8 KiB.
const CLASSES: usize = 64;
/// Approximate maximum number of cached bytes of a size class. [`max_blocks`] computes from it the
/// maximum number of cached blocks, which is within [`MAX_BLOCKS`].
const MAX_BYTES: usize = 64 << 10;
const MAX_BLOCKS: RangeInclusive<usize> = 8..=128;

/// Maximum number of cached blocks of a size class. An empty list takes a quarter of this number
/// from the pool at once.
fn max_blocks(class: usize) -> usize {
    (MAX_BYTES / size_class::capacity(class)).clamp(*MAX_BLOCKS.start(), *MAX_BLOCKS.end())
}

/// Free list of one size class. The first word of each block is the address of the next block.
struct CachedClass {
    first: Cell<*mut u8>,
    count: Cell<u32>,
    /// Number of blocks that may be added; 0 before the cache is opened.
    left: Cell<u32>,
}

/// State of the cache of a thread.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum CacheState {
    /// Nothing was cached yet.
    New = 0,
    /// The cache is in use, and is emptied when the thread exits.
    Open,
    /// The thread exits: blocks are not cached any more.
    Closed,
}

/// The cache of a thread. Zero-filled memory is a new cache.
#[repr(C)]
pub(crate) struct ThreadCache {
    classes: [CachedClass; CLASSES],
    state: Cell<CacheState>,
}

/// Allocates a block of a small size.
pub(crate) fn allocate(size: usize) -> Option<NonNull<u8>> {
    let class = size_class::of(size).unwrap_or(CLASSES);
    with_thread_cache(|cache| {
        let Some(cached) = cache.classes.get(class) else {
            return heap::allocate(heap::layout(size, ALIGN)?);
        };
        match NonNull::new(cached.first.get()) {
            Some(block) => {
                pop(cached, block);
                Some(block)
            }
            None => cache.refill(class),
        }
    })
}

/// Frees a block of the pool of blocks.
///
/// # Safety
/// The block is live, and is not used any more.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    let size = asked(word(block));
    let class = size_class::of(size).unwrap_or(CLASSES);
    with_thread_cache(|cache| {
        let Some(cached) = cache.classes.get(class) else {
            // SAFETY: the caller passes a live block.
            return unsafe { heap::free(block) };
        };
        // A block that was allocated with an alignment above 16 may have fewer bytes than its size
        // class requires.
        let is_short = size_class::capacity(class) > size;
        if cached.left.get() == 0 {
            cache.make_room(class);
        }
        if is_short || cache.state.get() == CacheState::Closed {
            // SAFETY: the caller passes a live block.
            return unsafe { heap::free(block) };
        }
        push(cached, block);
    });
}

fn push(cached: &CachedClass, block: NonNull<u8>) {
    set_next(block, cached.first.get());
    cached.first.set(block.as_ptr());
    cached.count.set(cached.count.get() + 1);
    cached.left.set(cached.left.get().saturating_sub(1));
}

/// Removes the first block of a list.
fn pop(cached: &CachedClass, block: NonNull<u8>) {
    cached.first.set(next(block));
    cached.count.set(cached.count.get() - 1);
    cached.left.set(cached.left.get() + 1);
}

/// Returns the address of the block that follows a cached block in its list.
fn next(block: NonNull<u8>) -> *mut u8 {
    // SAFETY: a cached block holds the address of the next one in its first word.
    unsafe { block.cast::<*mut u8>().read() }
}

fn set_next(block: NonNull<u8>, next: *mut u8) {
    // SAFETY: the block is free, and larger than a word.
    unsafe { block.cast::<*mut u8>().write(next) };
}

impl ThreadCache {
    /// Takes blocks of a size class from the pool, and returns one of them.
    #[cold]
    fn refill(&self, class: usize) -> Option<NonNull<u8>> {
        let layout = heap::layout(size_class::capacity(class), ALIGN)?;
        self.open();
        let more = if self.state.get() == CacheState::Open { max_blocks(class) / 4 } else { 0 };
        with_blocks(|pool| {
            let block = pool.allocate(layout)?;
            for _ in 1..more {
                let Some(block) = pool.allocate(layout) else { break };
                push(&self.classes[class], block);
            }
            Some(block)
        })
    }

    /// If the list of a size class is full, releases half of its blocks to the pool.
    #[cold]
    fn make_room(&self, class: usize) {
        self.open();
        let cached = &self.classes[class];
        let most = u32::try_from(max_blocks(class)).unwrap_or(0);
        if cached.count.get() >= most {
            give_back(cached, most / 2);
        }
        cached.left.set(most.saturating_sub(cached.count.get()));
    }

    /// Opens the cache, and registers the function that empties it when the thread exits.
    fn open(&self) {
        if self.state.get() == CacheState::New {
            // The state changes before the following call, since that call may allocate.
            self.state.set(CacheState::Open);
            empty_at_exit();
        }
    }

    fn close(&self) {
        self.state.set(CacheState::Closed);
        self.classes.iter().for_each(|cached| give_back(cached, cached.count.get()));
    }
}

fn give_back(cached: &CachedClass, count: u32) {
    with_blocks(|pool| {
        for _ in 0..count {
            let Some(block) = NonNull::new(cached.first.get()) else { return };
            cached.first.set(next(block));
            cached.count.set(cached.count.get() - 1);
            // SAFETY: a cached block counts as live in the pool, and is not in use.
            unsafe { heap::free_in(pool, block) };
        }
    });
}

/// Number of the pthread key, plus 1, whose destructor empties the cache of a thread; 0 before the
/// key is created.
static KEY: AtomicU32 = AtomicU32::new(0);

fn empty_at_exit() {
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made = 0;
        // SAFETY: the call writes only to `made`, and the destructor is a function of this library.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(thread_ends)) } != 0 {
            return;
        }
        key = match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made + 1,
            Err(other) => other,
        };
    }
    // SAFETY: the key was created. The value is not NULL, since the destructor is not called for
    // NULL.
    unsafe { libc::pthread_setspecific(key - 1, ptr::without_provenance(1)) };
}

/// Empties the cache of the exiting thread. Destructors of other keys may still allocate and free:
/// these calls use the pool.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    with_thread_cache(ThreadCache::close);
}
