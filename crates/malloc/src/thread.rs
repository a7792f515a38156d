//! The memory of a thread's cache. It is thread-local storage in the static TLS block, which the
//! dynamic linker lays out when the program starts, so that an access calls no function.
//!
//! The static TLS block has little space for libraries that are loaded by `dlopen`: this library is
//! for `LD_PRELOAD`.

use crate::cache::ThreadCache;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection .tbss.pagewise_thread_cache,\"awT\",%nobits",
    ".balign 64",
    ".globl pagewise_thread_cache",
    ".hidden pagewise_thread_cache",
    ".type pagewise_thread_cache, %object",
    "pagewise_thread_cache:",
    ".zero {size}",
    ".size pagewise_thread_cache, {size}",
    ".popsection",
    size = const size_of::<ThreadCache>(),
);

const _: () = assert!(align_of::<ThreadCache>() <= 64);

/// Calls `body` with the cache of this thread.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn with_thread_cache<T>(body: impl FnOnce(&ThreadCache) -> T) -> T {
    // SAFETY: the storage belongs to this thread, lives as long as the thread, is aligned, and is
    // zero-filled at first.
    body(unsafe { &*thread_cache() })
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn thread_cache() -> *const ThreadCache {
    let address: *const ThreadCache;
    // SAFETY: the instructions read the offset of the variable and the thread pointer.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + pagewise_thread_cache@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    address
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn thread_cache() -> *const ThreadCache {
    let address: *const ThreadCache;
    // SAFETY: the instructions read the offset of the variable and the thread pointer.
    unsafe {
        core::arch::asm!(
            "adrp {0}, :gottprel:pagewise_thread_cache",
            "ldr {0}, [{0}, :gottprel_lo12:pagewise_thread_cache]",
            "mrs {1}, tpidr_el0",
            "add {0}, {0}, {1}",
            out(reg) address,
            out(reg) _,
            options(pure, readonly, nostack),
        );
    }
    address
}

/// Calls `body` with the cache of this thread.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn with_thread_cache<T>(body: impl FnOnce(&ThreadCache) -> T) -> T {
    thread_local! {
        // SAFETY: zero-filled memory is a new cache.
        static CACHE: ThreadCache = const { unsafe { core::mem::zeroed() } };
    }
    CACHE.with(body)
}
