//! The tables that are shared with the collector: each word by table and number.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use crate::kernel;

use pagewise_heaplog::tables::{
    CHUNKS, HEADER, LENGTH, LOG, NODES, OWN, OWNERS, PLACES, RECORDS, SITES, STRINGS, THREADS,
    TableRange, header, record, thread,
};

/// Address of the tables; null if they are not mapped. They are unmapped only after the recording
/// of a running program has ended.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the address of the tables.
pub(crate) fn install(base: *mut u8) {
    BASE.store(base, Release);
}

/// Creates tables, once for all tests of this program.
#[cfg(test)]
pub(crate) fn install_for_tests() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let tables = kernel::OwnedFile::unnamed(c"tables", LENGTH).unwrap();
        install(kernel::map(&tables, LENGTH).unwrap());
    });
}

/// Unmaps the tables.
///
/// # Safety
/// The tables are not in use any more.
pub(crate) unsafe fn uninstall() {
    let base = BASE.swap(std::ptr::null_mut(), Relaxed);
    if !base.is_null() {
        // SAFETY: `LENGTH` bytes were mapped at `base`, and the caller guarantees that they are not
        // in use.
        unsafe { kernel::unmap(base, LENGTH) };
    }
}

/// A byte's address in the tables.
#[inline(always)]
fn at(offset: usize) -> *mut u8 {
    debug_assert!(offset < LENGTH);
    BASE.load(Relaxed).wrapping_add(offset)
}

/// A word.
#[inline(always)]
fn word(table: &TableRange, index: usize, number: usize) -> &'static AtomicU64 {
    debug_assert!(index < table.room && number * 8 < table.entry.max(8));
    let place = at(table.place(index) + number * 8).cast::<AtomicU64>();
    // SAFETY: entries lie in the mapping, which is `LENGTH` long and stays; words are aligned, and
    // all access is atomic.
    unsafe { &*place }
}

/// Half a word.
#[inline(always)]
fn half(table: &TableRange, index: usize, number: usize) -> &'static AtomicU32 {
    debug_assert!(index < table.room && number * 4 < table.entry.max(4));
    let place = at(table.place(index) + number * 4).cast::<AtomicU32>();
    // SAFETY: the offset is that of a word of the tables, which stay mapped.
    unsafe { &*place }
}

/// A word of the header.
#[inline(always)]
pub(crate) fn head(number: usize) -> &'static AtomicU64 {
    word(&HEADER, number, 0)
}

/// The reason why recording ended; `None` without tables.
pub(crate) fn trouble() -> Option<u64> {
    (!BASE.load(Relaxed).is_null()).then(|| head(header::TROUBLE).load(Relaxed))
}

/// The epoch of peaks.
#[inline(always)]
pub(crate) fn peak_epoch() -> &'static AtomicU32 {
    half(&HEADER, header::EPOCHS, 0)
}

/// A word of a thread's slot.
#[inline(always)]
pub(crate) fn slot(index: usize, number: usize) -> &'static AtomicU64 {
    debug_assert!(number < thread::WORDS);
    word(&THREADS, index, number)
}

/// A word of a module.
pub(crate) fn module(index: usize, number: usize) -> &'static AtomicU64 {
    word(&pagewise_heaplog::tables::MODULES, index, number)
}

/// Address and module of a place.
pub(crate) fn place(index: usize) -> (&'static AtomicU64, &'static AtomicU64) {
    (word(&PLACES, index, 0), word(&PLACES, index, 1))
}

/// Parent and place of a node.
#[inline(always)]
pub(crate) fn node(index: usize) -> (&'static AtomicU32, &'static AtomicU32) {
    (half(&NODES, index, 0), half(&NODES, index, 1))
}

/// Node and kind of a site.
pub(crate) fn site(index: usize) -> (&'static AtomicU32, &'static AtomicU32) {
    (half(&SITES, index, 0), half(&SITES, index, 1))
}

/// A word of an entry of the log.
pub(crate) fn log(index: usize, number: usize) -> &'static AtomicU64 {
    word(&LOG, index, number)
}

/// Group of sites plus 1 that a chunk counts, and slot of the thread that owns the chunk.
pub(crate) fn owner(index: usize) -> (&'static AtomicU32, &'static AtomicU32) {
    (half(&OWNERS, index, 0), half(&OWNERS, index, 1))
}

/// Adds a range to the list of the recorder's own memory, if there are tables.
pub(crate) fn note_own(address: usize, length: usize) {
    if BASE.load(Relaxed).is_null() {
        return;
    }
    let index = head(header::OWN).fetch_add(1, Relaxed);
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if index < OWN.room {
        word(&OWN, index, 0).store(address as u64, Relaxed);
        word(&OWN, index, 1).store(length as u64, Release);
    }
}

/// Appends bytes to the strings; returns their offset. `None` if the table is full.
pub(crate) fn string(bytes: &[u8]) -> Option<u64> {
    let used = head(header::STRINGS).load(Relaxed);
    let begin = usize::try_from(used).ok()?;
    let end = begin.checked_add(bytes.len()).filter(|&end| end <= STRINGS.room)?;
    // SAFETY: the bytes from `begin` to `end` are in the table, bytes beyond the count are not
    // read, and the lock is held.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at(STRINGS.at + begin), bytes.len()) };
    head(header::STRINGS).store(end as u64, Release);
    Some(used)
}

/// A byte of the strings; zero behind their end.
pub(crate) fn byte(index: usize) -> u8 {
    if index >= STRINGS.room {
        return 0;
    }
    // SAFETY: the byte lies in the table, and who adds strings has written it before it was
    // counted.
    unsafe { at(STRINGS.at + index).read() }
}

/// The counters of a site in one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiteRecord(&'static [AtomicU64; record::SIZE / 8]);

impl SiteRecord {
    /// A record by chunk and number in it.
    #[inline(always)]
    pub(crate) fn at_number(chunk: usize, number: usize) -> SiteRecord {
        debug_assert!(chunk < CHUNKS.room && number < RECORDS);
        let place = at(CHUNKS.place(chunk) + number * record::SIZE).cast();
        // SAFETY: chunks lie in the mapping, are aligned to pages, and hold `RECORDS` records.
        SiteRecord(unsafe { &*place })
    }

    #[inline(always)]
    pub(crate) fn get(self, number: usize) -> u64 {
        self.0[number].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(self, number: usize, value: u64) {
        self.0[number].store(value, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(self, number: usize, more: u64) {
        self.set(number, self.get(number).wrapping_add(more));
    }

    /// Before a change, copies the live counts for the peaks and time points since the last change.
    #[inline(always)]
    pub(crate) fn roll(self) {
        let now = head(header::EPOCHS).load(Relaxed);
        if self.get(record::EPOCHS) != now {
            self.keep(now);
        }
    }

    #[cold]
    fn keep(self, now: u64) {
        let before = self.get(record::EPOCHS);
        let bytes = self.get(record::ALLOCATED).wrapping_sub(self.get(record::FREED));
        let blocks = self.get(record::ALLOCATIONS).wrapping_sub(self.get(record::FREES));
        if (before ^ now) << 32 != 0 {
            self.set(record::AT_PEAK, bytes);
            self.set(record::AT_PEAK + 1, blocks);
        }
        if (before ^ now) >> 32 != 0 {
            self.set(record::AT_MOMENT, bytes);
            self.set(record::AT_MOMENT + 1, blocks);
        }
        // The collector uses the copies only if the record has the epoch that they belong to.
        self.0[record::EPOCHS].store(now, Release);
    }

    /// Adds all that another record of the same site counted, and empties that one.
    pub(crate) fn absorb(self, other: SiteRecord) {
        self.roll();
        other.roll();
        for number in 0..record::SIZE / 8 {
            match number {
                record::EPOCHS => {}
                record::VARIANCE | record::LIVE_VARIANCE => {
                    let sum = f64::from_bits(self.get(number)) + f64::from_bits(other.get(number));
                    self.set(number, sum.to_bits());
                }
                _ => self.add(number, other.get(number)),
            }
        }
        for number in 0..record::SIZE / 8 {
            other.set(number, 0);
        }
    }
}
