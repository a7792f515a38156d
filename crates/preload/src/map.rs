//! A table from words to words that readers use without a lock.
//!
//! Open addressing. It grows by replacing the table with one of twice the size; the pages of the
//! old one are released, and concurrent readers of it see empty entries, which means not found.
//! Entries are added under a lock of the caller's.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::kernel;

/// A key that is not 0, and its value.
#[repr(C)]
struct MapEntry {
    key: AtomicU64,
    value: AtomicU64,
}

/// A hash table.
pub(crate) struct WordMap {
    /// The value of the first entry is the hash mask, the number of the other entries less one: so
    /// the mask belongs to the table that is read.
    entries: AtomicPtr<MapEntry>,
    used: AtomicUsize,
}

/// Marker of a removed key (tombstone): it is never searched for.
const GONE: u64 = 1;
/// Bytes of an entry.
const SIZE: usize = size_of::<MapEntry>();
/// Entries of the first table.
const FIRST: usize = 1 << 11;

#[inline(always)]
fn mixed(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn hash(key: u64) -> usize {
    (mixed(key) >> 32) as usize
}

#[inline(always)]
fn at(entries: *mut MapEntry, index: usize) -> &'static MapEntry {
    let place = entries.wrapping_add(index);
    // SAFETY: tables are never unmapped, the index is at most the number of entries, and entries
    // are atomic.
    unsafe { &*place }
}

/// Hash mask. For a released table, whose pages are zeros, the mask selects one entry, which is
/// empty.
#[inline(always)]
fn mask(entries: *mut MapEntry) -> usize {
    at(entries, 0).value.load(Ordering::Relaxed) as usize
}

/// A table at one time, for several look-ups. After a replacement it contains no entries.
#[derive(Clone, Copy)]
pub(crate) struct View {
    entries: *mut MapEntry,
    /// The mask of a hash, times the size of an entry.
    mask: usize,
}

impl View {
    /// The entry of a key.
    #[inline(always)]
    fn entry(self, key: u64) -> Option<&'static MapEntry> {
        const SHIFT: u32 = SIZE.trailing_zeros();
        let mut offset = (mixed(key) >> (32 - SHIFT)) as usize;
        loop {
            offset &= self.mask;
            let place = self.entries.wrapping_byte_add(SIZE + offset);
            // SAFETY: the offset is that of one of the entries.
            let entry = unsafe { &*place };
            match entry.key.load(Ordering::Acquire) {
                there if there == key => return Some(entry),
                0 => return None,
                _ => offset += SIZE,
            }
        }
    }

    /// Value of a key.
    #[inline(always)]
    pub(crate) fn find(self, key: u64) -> Option<u64> {
        let entry = self.entry(key)?;
        let value = entry.value.load(Ordering::Acquire);
        // The table's pages may have been released after its key was read.
        if value == 0 && entry.key.load(Ordering::Relaxed) != key {
            return None;
        }
        Some(value)
    }
}

fn length(mask: usize) -> usize {
    (mask + 2) * SIZE
}

impl WordMap {
    pub(crate) const fn new() -> WordMap {
        WordMap { entries: AtomicPtr::new(std::ptr::null_mut()), used: AtomicUsize::new(0) }
    }

    /// The table as it is now; none where it has nothing.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View> {
        let entries = self.entries.load(Ordering::Acquire);
        if entries.is_null() {
            return None;
        }
        Some(View { entries, mask: mask(entries) * SIZE })
    }

    /// Value of a key.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<u64> {
        self.view()?.find(key)
    }

    /// Adds a missing key; the caller's lock is held. `None` if memory is exhausted.
    pub(crate) fn insert(&self, key: u64, value: u64) -> Option<()> {
        let mut entries = self.entries.load(Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed);
        if entries.is_null() || used * 3 > mask(entries) * 2 {
            entries = self.grow(entries)?;
        }
        put(entries, key, value);
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    /// Sets the value of a key in the table.
    pub(crate) fn change(&self, key: u64, value: u64) {
        if let Some(entry) = self.view().and_then(|view| view.entry(key)) {
            entry.value.store(value, Ordering::Relaxed);
        }
    }

    #[cold]
    fn grow(&self, old: *mut MapEntry) -> Option<*mut MapEntry> {
        let count = if old.is_null() { FIRST } else { (mask(old) + 1) * 2 };
        let entries = kernel::memory(length(count - 1)).ok()?.cast::<MapEntry>();
        at(entries, 0).value.store(count as u64 - 1, Ordering::Relaxed);
        let mut used = 0;
        if !old.is_null() {
            for index in 0..=mask(old) {
                let entry = at(old, index + 1);
                let key = entry.key.load(Ordering::Relaxed);
                if key > GONE {
                    put(entries, key, entry.value.load(Ordering::Relaxed));
                    used += 1;
                }
            }
        }
        self.used.store(used, Ordering::Relaxed);
        self.entries.store(entries, Ordering::Release);
        if !old.is_null() {
            // SAFETY: the memory is of `kernel::memory`, and readers treat zeros as free entries.
            unsafe { kernel::forget(old.cast(), length(mask(old))) };
        }
        Some(entries)
    }

    /// Removes all keys for which `wanted` returns true; the caller's lock is held.
    pub(crate) fn take_out(&self, wanted: impl Fn(u64) -> bool) {
        let entries = self.entries.load(Ordering::Relaxed);
        if entries.is_null() {
            return;
        }
        for index in 0..=mask(entries) {
            let entry = at(entries, index + 1);
            if wanted(entry.key.load(Ordering::Relaxed)) {
                entry.key.store(GONE, Ordering::Relaxed);
            }
        }
    }

    /// Forgets everything, in a child of `fork`, where all memory of ours is zeros.
    pub(crate) fn reset(&self) {
        self.entries.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
    }
}

fn put(entries: *mut MapEntry, key: u64, value: u64) {
    let mask = mask(entries);
    let mut index = hash(key) & mask;
    while at(entries, index + 1).key.load(Ordering::Relaxed) != 0 {
        index = (index + 1) & mask;
    }
    let entry = at(entries, index + 1);
    entry.value.store(value, Ordering::Relaxed);
    entry.key.store(key, Ordering::Release);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_types, reason = "tests run in a program of their own")]

    use super::*;
    use std::collections::HashMap;

    fn key(number: u64) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8) + 2
    }

    #[test]
    fn an_added_key_is_found_until_it_is_removed() {
        let map = WordMap::new();
        let mut expected = HashMap::new();
        assert_eq!(map.find(key(1)), None);
        for number in 0..20_000 {
            map.insert(key(number), number * 3).unwrap();
            expected.insert(key(number), number * 3);
            if number % 3000 == 2999 {
                map.take_out(|key| key % 7 == 0 && key > GONE);
                expected.retain(|key, _| key % 7 != 0);
            }
        }
        for key in (0..25_000).map(key) {
            assert_eq!(map.find(key), expected.get(&key).copied());
        }
    }

    /// Lock-free readers see an entry completely or not at all, while the table is replaced and its
    /// pages are released.
    #[test]
    fn readers_never_see_half_an_entry() {
        const COUNT: u64 = 300_000;
        let map = WordMap::new();
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (map, done) = (&map, &done);
                scope.spawn(move || {
                    let mut number = reader;
                    while done.load(Ordering::Relaxed) < COUNT {
                        number = (number + 7919) % COUNT;
                        let found = map.find(key(number));
                        assert!(
                            found.is_none_or(|value| value == number + 1),
                            "{number}: {found:?}"
                        );
                    }
                });
            }
            for number in 0..COUNT {
                map.insert(key(number), number + 1).unwrap();
                done.store(number + 1, Ordering::Relaxed);
            }
        });
        assert!((0..COUNT).all(|number| map.find(key(number)) == Some(number + 1)));
    }
}
