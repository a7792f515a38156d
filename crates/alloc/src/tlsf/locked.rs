//! A TLSF behind a lock: for several threads, and as the global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};

use super::Tlsf;
use crate::source::Source;

/// How often a thread looks at a taken lock before it lets others run, where there is a system to do so.
const LOOKS: u32 = 64;

/// A [`Tlsf`] that any thread may use, one at a time. Those that wait spin, and yield where there is a system.
///
/// ```
/// use pagewise_alloc::{LockedTlsf, source::Os};
///
/// #[global_allocator]
/// static POOL: LockedTlsf<Os> = LockedTlsf::new(Os);
///
/// let words: Vec<String> = (0..1000).map(|word| word.to_string()).collect();
/// assert_eq!(words.concat().len(), 2890);
/// assert!(POOL.with(|pool| pool.held()) > 0);
/// ```
#[derive(Debug)]
pub struct LockedTlsf<S: Source, const N: usize = 16> {
    taken: AtomicBool,
    pool: UnsafeCell<Tlsf<S, N>>,
}

// SAFETY: the pool is only reached with the lock taken, by one thread at a time, and may go from one to another.
unsafe impl<S: Source + Send, const N: usize> Sync for LockedTlsf<S, N> {}

/// The lock, as long as it is held.
struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<S: Source, const N: usize> LockedTlsf<S, N> {
    /// An empty pool.
    pub const fn new(source: S) -> LockedTlsf<S, N> {
        LockedTlsf { taken: AtomicBool::new(false), pool: UnsafeCell::new(Tlsf::new(source)) }
    }

    /// Uses the pool. What is done there must not allocate from this pool otherwise: the lock is taken.
    #[inline]
    pub fn with<T>(&self, body: impl FnOnce(&mut Tlsf<S, N>) -> T) -> T {
        let _held = self.lock();
        // SAFETY: the lock is held, so that nobody else has a reference to the pool.
        body(unsafe { &mut *self.pool.get() })
    }

    #[inline]
    fn lock(&self) -> Held<'_> {
        while self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Held(&self.taken)
    }

    /// Until the lock looks free.
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while self.taken.load(Ordering::Relaxed) {
            looks += 1;
            if looks % LOOKS == 0 {
                let_others_run();
            }
            core::hint::spin_loop();
        }
    }
}

#[cfg(feature = "os")]
fn let_others_run() {
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::sched_yield() };
}

#[cfg(not(feature = "os"))]
fn let_others_run() {}

fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

// SAFETY: blocks have the size and alignment that was asked for and do not overlap; with the lock held nothing panics in
// release builds, and in debug builds only where a block was misused.
unsafe impl<S: Source + Send, const N: usize> GlobalAlloc for LockedTlsf<S, N> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        or_null(self.with(|pool| pool.allocate(layout)))
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator, which is not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller promises the same.
        self.with(|pool| unsafe { pool.free(block, layout) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator, which is not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller promises the same.
        or_null(self.with(|pool| unsafe { pool.reallocate(block, layout, size) }))
    }
}
