//! A hash table from words to words that is read without a lock.
//!
//! The table uses open addressing. It grows by replacement with a table of twice the size. The
//! pages of the old table are released, so its concurrent readers find empty entries, as if the key
//! were missing. Callers add entries under a lock of their own.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::kernel;

/// A key that is not 0, with its value.
#[repr(C)]
struct MapEntry {
    key: AtomicU64,
    value: AtomicU64,
}

/// A hash table.
pub(crate) struct WordMap {
    /// First entry of the current table. Its value is the hash mask: the number of the following
    /// entries minus 1. So the mask always belongs to the same table as the entries.
    entries: AtomicPtr<MapEntry>,
    used: AtomicUsize,
}

/// Key that marks a removed entry (tombstone). Callers never search for it.
const GONE: u64 = 1;
/// Number of bytes of an entry.
const SIZE: usize = size_of::<MapEntry>();
/// Number of entries of the first table.
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
    // SAFETY: the index is at most the number of entries, all entries are atomic, and a table is
    // unmapped only when no thread is in the recorder.
    unsafe { &*place }
}

/// Hash mask of a table. For a released table, whose pages are zero, the mask is 0 and selects one
/// entry, which is empty.
#[inline(always)]
fn mask(entries: *mut MapEntry) -> usize {
    at(entries, 0).value.load(Ordering::Relaxed) as usize
}

/// A table at one time, for several lookups. It is empty after the table was replaced.
#[derive(Clone, Copy)]
pub(crate) struct View {
    entries: *mut MapEntry,
    /// Hash mask, multiplied by the size of an entry.
    mask: usize,
}

impl View {
    /// Entry of a key; `None` if the key is missing.
    #[inline(always)]
    fn entry(self, key: u64) -> Option<&'static MapEntry> {
        const SHIFT: u32 = SIZE.trailing_zeros();
        let mut offset = (mixed(key) >> (32 - SHIFT)) as usize;
        loop {
            offset &= self.mask;
            let place = self.entries.wrapping_byte_add(SIZE + offset);
            // SAFETY: the masked offset is that of an entry in the table.
            let entry = unsafe { &*place };
            match entry.key.load(Ordering::Acquire) {
                there if there == key => return Some(entry),
                0 => return None,
                _ => offset += SIZE,
            }
        }
    }

    /// Value of a key; `None` if the key is missing.
    #[inline(always)]
    pub(crate) fn find(self, key: u64) -> Option<u64> {
        let entry = self.entry(key)?;
        let value = entry.value.load(Ordering::Acquire);
        // The pages of the table may have been released after the key was read.
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

    /// Current table; `None` before the first insertion.
    #[inline(always)]
    pub(crate) fn view(&self) -> Option<View> {
        let entries = self.entries.load(Ordering::Acquire);
        if entries.is_null() {
            return None;
        }
        Some(View { entries, mask: mask(entries) * SIZE })
    }

    /// Value of a key; `None` if the key is missing.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<u64> {
        self.view()?.find(key)
    }

    /// Adds a key. Requires that the key is missing and that the caller holds its lock. Returns
    /// `None` if memory is exhausted.
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

    /// Sets the value of an existing key.
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
            // SAFETY: the memory belongs to `kernel::memory`, and readers treat zeros as empty
            // entries.
            unsafe { kernel::forget(old.cast(), length(mask(old))) };
        }
        Some(entries)
    }

    /// Removes all keys for which `wanted` returns true. Requires that the caller holds its lock.
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

    /// Clears the map in a child of `fork`, where all memory of the recorder is zero-filled.
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

    /// Readers without a lock find an entry either completely or not at all, while the table is
    /// replaced and its pages are released.
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
