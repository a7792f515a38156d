//! Cache of a thread: freed blocks of each small size, in lists through the blocks themselves.
//!
//! A thread takes and gives [`BATCH`] blocks at a time from and to the pool of blocks, whose lock
//! is taken once for them. The cache is emptied when the thread ends.

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::heap::{self, ALIGN, WORD, capacity, with_blocks, word};

/// Size classes: blocks with 24, 40, .. 1016 usable bytes.
const CLASSES: usize = 63;
/// Maximum usable size of cached blocks.
const MAX_CACHED: usize = WORD + CLASSES * ALIGN;
/// Blocks that are taken at once, and maximum number of cached blocks of a class.
const BATCH: u16 = 32;
const MAX_BLOCKS: u16 = 128;

/// Cached blocks of one class: the first, which holds the address of the next.
struct CachedClass {
    first: Cell<*mut u8>,
    count: Cell<u16>,
}

/// States of the cache of a thread.
#[derive(Clone, Copy, PartialEq)]
enum CacheState {
    /// Nothing was cached yet.
    New,
    /// The thread's end will empty it.
    Open,
    /// The thread ends: nothing is cached any more.
    Closed,
}

struct ThreadCache {
    classes: [CachedClass; CLASSES],
    state: Cell<CacheState>,
}

thread_local! {
    static CACHE: ThreadCache = const {
        ThreadCache {
            classes: [const {
                CachedClass { first: Cell::new(ptr::null_mut()), count: Cell::new(0) }
            }; CLASSES],
            state: Cell::new(CacheState::New),
        }
    };
}

/// The class of a request; CLASSES or more if it is too large.
const fn class(size: usize) -> usize {
    size.saturating_sub(WORD + 1) / ALIGN
}

/// Usable bytes of blocks of a class.
const fn size_of_class(class: usize) -> usize {
    WORD + (class + 1) * ALIGN
}

/// A block of a small size.
pub(crate) fn allocate(size: usize) -> Option<NonNull<u8>> {
    let class = class(size);
    CACHE.with(|cache| {
        let Some(cached) = cache.classes.get(class) else {
            return heap::allocate(heap::layout(size, ALIGN)?);
        };
        match NonNull::new(cached.first.get()) {
            Some(block) => {
                cached.first.set(next(block));
                cached.count.set(cached.count.get() - 1);
                Some(block)
            }
            None => cache.refill(class),
        }
    })
}

/// Frees a block of the pool of blocks.
///
/// # Safety
/// It is live, and not used any more.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    let capacity = capacity(word(block));
    if capacity > MAX_CACHED {
        // SAFETY: the caller passes a live block.
        return unsafe { heap::free(block) };
    }
    // The largest class that the block is long enough for: it may be 16 bytes longer.
    let class = (capacity - WORD) / ALIGN - 1;
    CACHE.with(|cache| {
        let cached = &cache.classes[class];
        if cached.count.get() >= MAX_BLOCKS || cache.state.get() != CacheState::Open {
            cache.make_room(cached);
        }
        if cache.state.get() == CacheState::Closed {
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
}

/// The block behind a cached one in its list.
fn next(block: NonNull<u8>) -> *mut u8 {
    // SAFETY: a cached block holds the address of the next one in its first word.
    unsafe { block.cast::<*mut u8>().read() }
}

fn set_next(block: NonNull<u8>, next: *mut u8) {
    // SAFETY: the block is free, and longer than a word.
    unsafe { block.cast::<*mut u8>().write(next) };
}

impl ThreadCache {
    /// Takes blocks of a class from the pool, and returns one.
    #[cold]
    fn refill(&self, class: usize) -> Option<NonNull<u8>> {
        // SAFETY: the size is small, and 16 is a power of two.
        let layout = unsafe { Layout::from_size_align_unchecked(size_of_class(class), ALIGN) };
        self.open();
        let more = if self.state.get() == CacheState::Open { BATCH } else { 0 };
        with_blocks(|pool| {
            let block = pool.allocate(layout)?;
            for _ in 1..more {
                let Some(block) = pool.allocate(layout) else { break };
                // A block that is longer than its class would come back to another one.
                push(&self.classes[class], block);
            }
            Some(block)
        })
    }

    /// Gives blocks of a full class to the pool.
    #[cold]
    fn make_room(&self, cached: &CachedClass) {
        self.open();
        if cached.count.get() < MAX_BLOCKS {
            return;
        }
        give_back(cached, cached.count.get() / 2);
    }

    /// Has the end of the thread empty the cache.
    fn open(&self) {
        if self.state.get() == CacheState::New {
            // First, since the call may allocate.
            self.state.set(CacheState::Open);
            empty_at_exit();
        }
    }

    fn close(&self) {
        self.state.set(CacheState::Closed);
        self.classes.iter().for_each(|cached| give_back(cached, cached.count.get()));
    }
}

fn give_back(cached: &CachedClass, count: u16) {
    with_blocks(|pool| {
        for _ in 0..count {
            let Some(block) = NonNull::new(cached.first.get()) else { return };
            cached.first.set(next(block));
            cached.count.set(cached.count.get() - 1);
            // SAFETY: a block's capacity was valid when it was allocated.
            let layout = unsafe { Layout::from_size_align_unchecked(capacity(word(block)), ALIGN) };
            // SAFETY: a cached block is live for the pool, and not in use.
            unsafe { pool.free(block, layout) };
        }
    });
}

/// Key whose destructor empties the cache of a thread; 0 before it is made, and one more after.
static KEY: AtomicU32 = AtomicU32::new(0);

fn empty_at_exit() {
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made = 0;
        // SAFETY: the call writes a key; the destructor is a function of this library.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(thread_ends)) } != 0 {
            return;
        }
        key = match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made + 1,
            Err(other) => other,
        };
    }
    // A value that is not NULL has the destructor called.
    // SAFETY: the key was made.
    unsafe { libc::pthread_setspecific(key - 1, ptr::without_provenance(1)) };
}

/// Destructors of other keys may still allocate and free: these calls go to the pool.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    _ = CACHE.try_with(ThreadCache::close);
}
