//! How to leave a function, by the address that a call returns to: read from tables once, then looked up.
//!
//! A table of open addressing that readers use without a lock. It grows by being made anew at twice the size; the old one's
//! pages are given back, and who still reads it finds nothing there and comes to the slow way.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pagewise_heaplog::tables::{PLACES, header};

use crate::cfi::{self, Row};
use crate::kernel;
use crate::lock::Lock;
use crate::modules;
use crate::shared;

/// Rows and places that are known, and all that belongs to them, are added under this lock.
pub(crate) static LOCK: Lock = Lock::new();

/// An entry: the address, then the row and the place's number.
#[repr(C)]
struct Entry {
    address: AtomicU64,
    found: AtomicU64,
}

/// A table: entries, and their number less one.
struct Table {
    entries: AtomicPtr<Entry>,
    mask: AtomicUsize,
    used: AtomicUsize,
}

static TABLE: Table = Table {
    entries: AtomicPtr::new(std::ptr::null_mut()),
    mask: AtomicUsize::new(0),
    used: AtomicUsize::new(0),
};

/// An address that was one of a library that is gone.
const GONE: u64 = 1;
/// Set in the address of an instruction that was interrupted: it has not called anybody.
pub(crate) const INTERRUPTED: u64 = 1 << 63;
/// Entries of the first table.
const FIRST: usize = 1 << 11;

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// How to leave.
    pub row: Row,
    /// The number of the place.
    pub place: u32,
}

impl Known {
    #[inline(always)]
    fn unpack(found: u64) -> Known {
        Known { row: Row::unpack(found as u32), place: (found >> 32) as u32 }
    }
}

#[inline(always)]
fn hash(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// An entry of a table that has at least `mask` + 1.
#[inline(always)]
fn entry(entries: *mut Entry, index: usize) -> &'static Entry {
    let place = entries.wrapping_add(index);
    // SAFETY: tables are never unmapped, the index is below the number of entries, and entries are atomic.
    unsafe { &*place }
}

/// What is known of the place that a call returns to.
#[inline(always)]
pub(crate) fn find(address: u64) -> Option<Known> {
    // The mask is stored before the entries, and only grows: an old table is never read beyond its end.
    let entries = TABLE.entries.load(Ordering::Acquire);
    if entries.is_null() {
        return None;
    }
    let mask = mask_of(entries);
    let mut index = hash(address) & mask;
    loop {
        let entry = entry(entries, index + 1);
        let there = entry.address.load(Ordering::Acquire);
        if there == address {
            return Some(Known::unpack(entry.found.load(Ordering::Relaxed)));
        }
        if there == 0 {
            return None;
        }
        index = (index + 1) & mask;
    }
}

/// Entry 0 tells the mask, so that it belongs to the table that is read.
#[inline(always)]
fn mask_of(entries: *mut Entry) -> usize {
    // An old table's pages are zeros: then it has one entry, which is free.
    entry(entries, 0).found.load(Ordering::Relaxed) as usize
}

/// What is known of a place, learned now where it is not known yet.
#[inline(always)]
pub(crate) fn get(address: u64) -> Option<Known> {
    match find(address) {
        Some(known) => Some(known),
        None => learn(address),
    }
}

#[cold]
#[inline(never)]
fn learn(address: u64) -> Option<Known> {
    let _held = LOCK.hold();
    if let Some(known) = find(address) {
        return Some(known);
    }
    // A call's address lies before the one that it returns to, which may be another function's.
    let code =
        if address & INTERRUPTED == 0 { address.wrapping_sub(1) } else { address & !INTERRUPTED };
    let object = modules::find(code);
    let row = match &object {
        Some(object) => cfi::row(&object.image, object.header, usize::try_from(code).ok()?),
        None => Row::Unknown,
    };
    let module = object.map_or(0, |object| modules::number(&object).map_or(0, |number| number + 1));
    let number = shared::head(header::PLACES).load(Ordering::Relaxed);
    let index = usize::try_from(number).ok().filter(|&index| index < PLACES.room)?;
    let (to, of) = shared::place(index);
    to.store(address & !INTERRUPTED, Ordering::Relaxed);
    of.store(module, Ordering::Relaxed);
    shared::head(header::PLACES).store(number + 1, Ordering::Release);
    let found = u64::from(row.pack()) | number << 32;
    insert(address, found)?;
    Some(Known::unpack(found))
}

/// Adds an entry; the lock is held.
fn insert(address: u64, found: u64) -> Option<()> {
    let used = TABLE.used.load(Ordering::Relaxed);
    let mut entries = TABLE.entries.load(Ordering::Relaxed);
    let mask = TABLE.mask.load(Ordering::Relaxed);
    if entries.is_null() || used * 3 > mask * 2 {
        entries = grow(entries, mask)?;
    }
    put(entries, TABLE.mask.load(Ordering::Relaxed), address, found);
    TABLE.used.store(used + 1, Ordering::Relaxed);
    Some(())
}

fn put(entries: *mut Entry, mask: usize, address: u64, found: u64) {
    let mut index = hash(address) & mask;
    while entry(entries, index + 1).address.load(Ordering::Relaxed) != 0 {
        index = (index + 1) & mask;
    }
    let entry = entry(entries, index + 1);
    entry.found.store(found, Ordering::Relaxed);
    entry.address.store(address, Ordering::Release);
}

#[cold]
fn grow(old: *mut Entry, old_mask: usize) -> Option<*mut Entry> {
    let count = if old.is_null() { FIRST } else { (old_mask + 1) * 2 };
    let length = (count + 1) * size_of::<Entry>();
    let entries = kernel::memory(length).ok()?.cast::<Entry>();
    let mask = count - 1;
    entry(entries, 0).found.store(mask as u64, Ordering::Relaxed);
    let mut used = 0;
    if !old.is_null() {
        for index in 0..=old_mask {
            let entry = entry(old, index + 1);
            let address = entry.address.load(Ordering::Relaxed);
            if address != 0 && address != GONE {
                put(entries, mask, address, entry.found.load(Ordering::Relaxed));
                used += 1;
            }
        }
    }
    TABLE.used.store(used, Ordering::Relaxed);
    TABLE.mask.store(mask, Ordering::Relaxed);
    TABLE.entries.store(entries, Ordering::Release);
    if !old.is_null() {
        // SAFETY: the memory is of `kernel::memory`, and zeros are free entries to who still reads.
        unsafe { kernel::forget(old.cast(), (old_mask + 2) * size_of::<Entry>()) };
    }
    Some(entries)
}

/// Forgets all addresses from `start` to `end`: their code is gone. The lock is held.
pub(crate) fn forget(start: u64, end: u64) {
    let entries = TABLE.entries.load(Ordering::Relaxed);
    if entries.is_null() {
        return;
    }
    for index in 0..=TABLE.mask.load(Ordering::Relaxed) {
        let entry = entry(entries, index + 1);
        if (start..end).contains(&(entry.address.load(Ordering::Relaxed) & !INTERRUPTED)) {
            entry.address.store(GONE, Ordering::Relaxed);
        }
    }
}

/// Forgets everything, in a child of `fork`, where all memory of ours is zeros.
pub(crate) fn reset() {
    LOCK.reset();
    TABLE.entries.store(std::ptr::null_mut(), Ordering::Relaxed);
    TABLE.mask.store(0, Ordering::Relaxed);
    TABLE.used.store(0, Ordering::Relaxed);
}
