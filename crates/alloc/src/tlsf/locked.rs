//! A TLSF pool behind a lock, for several threads and as the global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use super::Tlsf;
use crate::lock::Locked;
use crate::source::Source;

/// A [`Tlsf`] that several threads may use, one thread at a time. Waiting threads spin, and with
/// the feature `os` they also yield. A child of `fork` may use a pool that is a static variable.
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
pub struct LockedTlsf<S: Source, const N: usize = 32> {
    pool: Locked<Tlsf<S, N>>,
}

impl<S: Source, const N: usize> LockedTlsf<S, N> {
    /// Creates an empty pool. In debug builds it detects memory errors, like a pool of
    /// [`LockedTlsf::guarded`].
    pub const fn new(source: S) -> LockedTlsf<S, N> {
        LockedTlsf { pool: Locked::new(Tlsf::new(source)) }
    }

    /// Creates an empty pool that does not have the checks of [`LockedTlsf::guarded`], also in
    /// debug builds.
    pub const fn unguarded(source: S) -> LockedTlsf<S, N> {
        LockedTlsf { pool: Locked::new(Tlsf::unguarded(source)) }
    }

    /// Creates an empty pool that detects memory errors, also in release builds: each block ends
    /// with a canary, and freed blocks stay in a quarantine, as in a pool of [`Tlsf::guarded`].
    pub const fn guarded(source: S) -> LockedTlsf<S, N> {
        LockedTlsf { pool: Locked::new(Tlsf::guarded(source)) }
    }

    /// Calls `body` with the pool while the lock is held. `body` must not call another function of
    /// this value: the call would wait forever.
    #[inline]
    pub fn with<T>(&self, body: impl FnOnce(&mut Tlsf<S, N>) -> T) -> T {
        #[cfg(feature = "os")]
        self.pool.survive_fork(crate::fork::ForkOrder::Blocks);
        self.pool.with(body)
    }
}

fn or_null(block: Option<NonNull<u8>>) -> *mut u8 {
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

// SAFETY: blocks have the requested size and alignment and do not overlap. No function unwinds: a
// memory error is reported without an allocation after the lock is released, and aborts the
// process.
unsafe impl<S: Source + Send, const N: usize> GlobalAlloc for LockedTlsf<S, N> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = self.with(|pool| pool.try_allocate(layout));
        or_null(allocated.unwrap_or_else(|misuse| misuse.abort()))
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a block of this allocator, which is not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        let freed = self.with(|pool| unsafe { pool.try_free(block, layout) });
        freed.unwrap_or_else(|misuse| misuse.abort());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator, which is not null.
        let block = unsafe { NonNull::new_unchecked(block) };
        // SAFETY: the caller passes a block of this pool with this layout.
        let resized = self.with(|pool| unsafe { pool.try_reallocate(block, layout, size) });
        or_null(resized.unwrap_or_else(|misuse| misuse.abort()))
    }
}
