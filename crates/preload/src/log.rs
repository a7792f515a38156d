//! A log of large blocks, for who looks on and wants to know what was where at which time: in memory that is shared, so that
//! it stays when the process is gone.
//!
//! A ring that is written under a lock, so that its entries are in order of time. Nobody waits for who reads: what finds no
//! room is lost, and it is said when.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use pagewise_heaplog::tables::{LOG, header, log};

use crate::kernel;
use crate::lock::Lock;
use crate::shared::{self, head};

static LOCK: Lock = Lock::new();
/// The smallest block that is written down; none where there is no log.
static LEAST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Writes down blocks of so many bytes and more from now on, and first of all that it does; 0 for none.
pub(crate) fn begin(least: u64) {
    if least > 0 {
        LEAST.store(least, Relaxed);
        write(0, 0, 0);
    }
}

/// Whether there is a log.
pub(crate) fn is_on() -> bool {
    LEAST.load(Relaxed) != u64::MAX
}

/// Whether a block of so many bytes is written down.
#[inline(always)]
pub(crate) fn wants(size: u64) -> bool {
    size >= LEAST.load(Relaxed)
}

/// Forgets everything, in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    LEAST.store(u64::MAX, Relaxed);
}

/// A block is live, from before the program learns of it.
#[cold]
#[inline(never)]
pub(crate) fn allocated(address: u64, size: u64, site: u32) {
    write(address, size, u64::from(site) + 1);
}

/// A block is to be freed.
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
