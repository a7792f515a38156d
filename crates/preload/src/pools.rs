//! Blocks of pagewise's own allocators, on request: their pools report each block that they
//! allocate, as they report it to valgrind, and find this function by name
//! (`pagewise_alloc::watch`).
//!
//! A pool's memory is itself inside a block or a mapping, so its blocks are stored in a table of
//! their own: by address, open addressing, under a lock.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use pagewise_heaplog::tables::{kind, record};

use crate::begin::{self, StartStage};
use crate::hooks;
use crate::kernel;
use crate::lock::Lock;
use crate::peak;
use crate::threads::{self, ThreadData};

/// 1 if blocks of pools are recorded.
static IS_ON: AtomicU8 = AtomicU8::new(0);

/// Switches the recording of pool blocks on or off.
pub(crate) fn switch(on: bool) {
    IS_ON.store(u8::from(on), Relaxed);
}

/// Events that a pool reports.
mod told {
    /// A block was allocated.
    pub(super) const ALLOCATED: u32 = 0;
    /// A block was freed.
    pub(super) const FREED: u32 = 1;
    /// A block has another size.
    pub(super) const RESIZED: u32 = 2;
    /// A range of memory, with all blocks in it, left the pool.
    pub(super) const GONE: u32 = 3;
}

/// Bits of a block's size; the others are of its site.
const SIZE: u32 = 43;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct OutEntry {
    /// The address; 0 for a free entry.
    key: u64,
    value: u64,
}

/// Live blocks of pools.
#[derive(Debug)]
struct OutBlocks {
    entries: *mut OutEntry,
    /// One less than the number of entries.
    mask: u64,
    used: u64,
}

// SAFETY: it is reached under a lock only.
unsafe impl Send for OutBlocks {}

static LOCK: Lock = Lock::new();
static BLOCKS: SharedOutBlocks = SharedOutBlocks(std::cell::UnsafeCell::new(OutBlocks {
    entries: std::ptr::null_mut(),
    mask: 0,
    used: 0,
}));

struct SharedOutBlocks(std::cell::UnsafeCell<OutBlocks>);
// SAFETY: the table is only used under its lock.
unsafe impl Sync for SharedOutBlocks {}

/// Calls `body` with the blocks, under the lock.
fn alone<T>(body: impl FnOnce(&mut OutBlocks) -> T) -> T {
    let _held = LOCK.hold();
    // SAFETY: the lock is held, and `body` does not come here again: it is of this file.
    body(unsafe { &mut *BLOCKS.0.get() })
}

/// Forgets everything, in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    alone(|blocks| (blocks.entries, blocks.mask, blocks.used) = (std::ptr::null_mut(), 0, 0));
}

impl OutBlocks {
    const FIRST: u64 = 1 << 10;

    fn entry(&self, index: u64) -> OutEntry {
        let place = self.entries.wrapping_add((index & self.mask) as usize);
        // SAFETY: the index is below the number of entries, which are ours alone while the lock is
        // held.
        unsafe { place.read() }
    }

    fn set(&mut self, index: u64, entry: OutEntry) {
        let place = self.entries.wrapping_add((index & self.mask) as usize);
        // SAFETY: the index is inside the table.
        unsafe { place.write(entry) };
    }

    fn home(&self, key: u64) -> u64 {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) & self.mask
    }

    fn find(&self, key: u64) -> u64 {
        let mut index = self.home(key);
        while ![0, key].contains(&self.entry(index).key) {
            index = (index + 1) & self.mask;
        }
        index
    }

    fn put(&mut self, key: u64, value: u64) -> Option<()> {
        if self.entries.is_null() || self.used * 2 > self.mask {
            self.grow()?;
        }
        self.set(self.find(key), OutEntry { key, value });
        self.used += 1;
        Some(())
    }

    fn remove_key(&mut self, key: u64) -> Option<u64> {
        if self.entries.is_null() {
            return None;
        }
        let index = self.find(key);
        let found = self.entry(index);
        if found.key == 0 {
            return None;
        }
        self.take_at(index);
        Some(found.value)
    }

    /// Empties an entry. Following entries move up, so that no search ends at the hole.
    fn take_at(&mut self, mut hole: u64) {
        self.used -= 1;
        let mut index = hole;
        loop {
            index = (index + 1) & self.mask;
            let entry = self.entry(index);
            if entry.key == 0 {
                break;
            }
            let from_home = index.wrapping_sub(self.home(entry.key)) & self.mask;
            if from_home >= (index.wrapping_sub(hole) & self.mask) {
                self.set(hole, entry);
                hole = index;
            }
        }
        self.set(hole, OutEntry::default());
    }

    /// Removes all blocks from `start` to `end`, and calls `tell` with the value of each.
    fn take_range(&mut self, start: u64, end: u64, tell: &mut dyn FnMut(u64)) {
        if self.used == 0 {
            return;
        }
        let mut index = 0;
        while index <= self.mask {
            let found = self.entry(index);
            if found.key != 0 && (start..end).contains(&found.key) {
                // Another entry may have moved to this index.
                self.take_at(index);
                tell(found.value);
            } else {
                index += 1;
            }
        }
    }

    fn grow(&mut self) -> Option<()> {
        let (old, old_mask) = (self.entries, self.mask);
        let count = if old.is_null() { Self::FIRST } else { (old_mask + 1) * 2 };
        let length = |count: u64| count as usize * size_of::<OutEntry>();
        self.entries = kernel::memory(length(count)).ok()?.cast();
        self.mask = count - 1;
        if old.is_null() {
            return Some(());
        }
        for index in 0..=old_mask {
            // SAFETY: the old table has this many entries.
            let entry = unsafe { old.wrapping_add(index as usize).read() };
            if entry.key != 0 {
                self.set(self.find(entry.key), entry);
            }
        }
        // SAFETY: the memory is from `kernel::memory`, and no other thread uses it.
        unsafe { kernel::forget(old.cast(), length(old_mask + 1)) };
        Some(())
    }
}

fn allocated(thread: &ThreadData, start: u64, size: u64, stack: u64, frame: u64) {
    freed(thread, start);
    let Some((site, record)) = thread.site_of(hooks::at(stack, frame), kind::POOL) else { return };
    let size = size.min((1 << SIZE) - 1);
    if alone(|blocks| blocks.put(start, u64::from(site) << SIZE | size)).is_some() {
        record.roll();
        record.add(record::ALLOCATIONS, 1);
        record.add(record::ALLOCATED, size);
        peak::more(thread, size);
    }
}

fn freed(thread: &ThreadData, start: u64) {
    if let Some(value) = alone(|blocks| blocks.remove_key(start)) {
        count_freed(thread, value);
    }
}

fn count_freed(thread: &ThreadData, value: u64) {
    let size = value & ((1 << SIZE) - 1);
    peak::less(thread, size);
    let Some(record) = thread.record_of((value >> SIZE) as u32) else { return };
    record.roll();
    record.add(record::FREES, 1);
    record.add(record::FREED, size);
}

/// True if pools must report; called once, when the first pool is created.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn pagewise_heap_wants_pools() -> bool {
    IS_ON.load(Relaxed) != 0 && begin::stage() == StartStage::Records
}

unsafe extern "C" fn on_told(what: u32, start: u64, size: u64, stack: u64, frame: u64) {
    let Some(entered) = threads::enter() else { return };
    let thread = entered.thread();
    match what {
        told::ALLOCATED | told::RESIZED => allocated(thread, start, size, stack, frame),
        told::FREED => freed(thread, start),
        told::GONE => alone(|blocks| {
            let tell = &mut |value| count_freed(thread, value);
            blocks.take_range(start, start.saturating_add(size), tell);
        }),
        _ => {}
    }
    threads::leave(entered);
}

/// Function that a pool calls: the event, the address, and the number of bytes.
///
/// # Safety
/// None that the pool could break.
#[cfg(not(test))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn pagewise_heap_pool() {
    std::arch::naked_asm!("mov rcx, rsp", "mov r8, rbp", "jmp {hook}", hook = sym on_told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn blocks_agree_with_a_map() {
        let mut blocks = OutBlocks { entries: std::ptr::null_mut(), mask: 0, used: 0 };
        let mut map = BTreeMap::new();
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for turn in 0..20_000 {
            let key = 16 + draw(3000) * 16;
            match draw(20) {
                0 => {
                    let end = key + draw(2000);
                    let mut gone = (0, 0);
                    blocks.take_range(key, end, &mut |value| {
                        gone = (gone.0 + 1, gone.1 + value);
                    });
                    let mut expected = (0, 0);
                    map.retain(|at, value| {
                        let stays = !(key..end).contains(at);
                        expected.0 += u64::from(!stays);
                        expected.1 += if stays { 0 } else { *value };
                        stays
                    });
                    assert_eq!(gone, expected, "turn {turn}");
                }
                1..=8 => assert_eq!(blocks.remove_key(key), map.remove(&key), "turn {turn}"),
                _ => {
                    assert_eq!(blocks.remove_key(key), map.insert(key, turn), "turn {turn}");
                    blocks.put(key, turn).unwrap();
                }
            }
            assert_eq!(blocks.used, map.len() as u64);
        }
    }
}
