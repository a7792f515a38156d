//! A log of the allocations and frees of large blocks with their times. It is in shared memory, so
//! it remains readable after the end of the process.
//!
//! The log is a ring buffer that is written under a lock, so its entries are in order of time. The
//! program never waits for the collector: entries that do not fit are lost, and the time of the
//! loss is stored.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use pagewise_heaplog::tables::{LOG, header, log};

use crate::kernel;
use crate::lock::Lock;
use crate::shared::{self, head};

static LOCK: Lock = Lock::new();
/// Minimum size in bytes of blocks that are logged; `u64::MAX` if the log is off.
static MIN_LOGGED_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// Starts to log blocks of at least `least` bytes, and logs an entry that marks the start. If
/// `least` is 0, the log stays off.
pub(crate) fn begin(least: u64) {
    if least > 0 {
        MIN_LOGGED_BYTES.store(least, Relaxed);
        write(0, 0, 0);
    }
}

/// True if the log is on.
pub(crate) fn is_on() -> bool {
    MIN_LOGGED_BYTES.load(Relaxed) != u64::MAX
}

/// True if a block of `size` bytes is logged.
#[inline(always)]
pub(crate) fn wants(size: u64) -> bool {
    size >= MIN_LOGGED_BYTES.load(Relaxed)
}

/// Clears the state in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    MIN_LOGGED_BYTES.store(u64::MAX, Relaxed);
}

/// Logs an allocation. Called before the program receives the block.
#[cold]
#[inline(never)]
pub(crate) fn allocated(address: u64, size: u64, site: u32) {
    write(address, size, u64::from(site) + 1);
}

/// Logs a free. Called before the block is freed.
#[cold]
#[inline(never)]
pub(crate) fn freed(address: u64) {
    write(address, 0, 0);
}

fn write(address: u64, size: u64, site: u64) {
    let _held = LOCK.hold();
    let time = kernel::clock(libc::CLOCK_MONOTONIC);
    let written = head(header::LOG_WRITTEN).load(Relaxed);
    if written.wrapping_sub(head(header::LOG_READ).load(Acquire)) >= LOG.room as u64 {
        head(header::LOG_LOST).fetch_add(1, Relaxed);
        head(header::LOG_LAST_LOST).store(time, Relaxed);
        let _ = head(header::LOG_FIRST_LOST).compare_exchange(0, time, Release, Relaxed);
        return;
    }
    let index = written as usize % LOG.room;
    let words = [(log::TIME, time), (log::ADDRESS, address), (log::SIZE, size), (log::SITE, site)];
    for (number, word) in words {
        shared::log(index, number).store(word, Relaxed);
    }
    head(header::LOG_WRITTEN).store(written.wrapping_add(1), Release);
}
