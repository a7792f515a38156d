//! Live blocks: allocation site and size of each block, by the address of the block.
//!
//! The map has two levels. A root table of 2^20 entries refers to leaves, each for 128 MiB of
//! addresses, which are created when the first block in them is recorded. A leaf has a cell for
//! each address at which a block can begin. The C library's blocks are at least 32 bytes apart, and
//! their headers determine their sizes up to a few bytes. So a cell of 4 bytes contains the site,
//! and the difference between the usable and the requested size. Other allocators round sizes
//! differently, and their blocks may be 16 bytes apart, so their cells are words that also contain
//! the size. For requests of up to 8 bytes, such an allocator may place two blocks within 16 bytes.
//! A block that begins 8 bytes after a multiple of 16 has its cell in a separate leaf.

use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release,
};

use pagewise_heaplog::tables::header;
use pagewise_heaplog::tables::live::{
    self, HALF, LEAF, NARROW, SITE_BITS, SITE_SHIFT, SIZE_BITS, SLACK, SPACE, TIMED, WIDE,
};

use crate::kernel;
use crate::lock::Lock;
use crate::shared;

/// Recorded data of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedBlock {
    pub site: u32,
    pub size: u64,
    /// True if the lifetime of the block is being measured.
    pub timed: bool,
}

static ROOT: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(std::ptr::null_mut());
static LOCK: Lock = Lock::new();
/// 1 if the cells have the format for the C library's blocks.
static IS_GLIBC: AtomicU8 = AtomicU8::new(0);

/// Bit 3 of an address, moved to bit 63. Processes that read the tables get from it in which half
/// of the cell's 16 bytes the block begins.
fn half(address: u64) -> u64 {
    address << 60 & HALF
}

/// Bit 4 of an address, moved to bit 31. In a cell of 4 bytes, it shows in which half of the cell's
/// 32 bytes the block begins.
#[inline(always)]
fn odd(address: u64) -> u32 {
    const _: () = assert!(live::ODD == 16 << 27, "bit 4 of an address, moved to bit 31");
    (address as u32) << 27 & live::ODD
}

/// Creates an empty map.
pub(crate) fn begin(is_glibc: bool) -> Option<()> {
    IS_GLIBC.store(u8::from(is_glibc), Relaxed);
    // The second half of the root table is for blocks that begin between multiples of 16.
    let root = kernel::memory((2 << (SPACE - LEAF)) * size_of::<AtomicPtr<u8>>()).ok()?;
    ROOT.store(root.cast(), Release);
    let kind = if is_glibc { NARROW } else { WIDE };
    shared::head(header::LIVE_SIZES).store(0, Relaxed);
    shared::head(header::LIVE_MAP).store(root.addr() as u64 | kind, Relaxed);
    Some(())
}

/// True if cells have 4 bytes.
#[inline(always)]
fn is_glibc() -> bool {
    IS_GLIBC.load(Relaxed) != 0
}

/// Clears the map in a child of `fork`.
pub(crate) fn reset() {
    LOCK.reset();
    ODD.lock.reset();
    ROOT.store(std::ptr::null_mut(), Relaxed);
    ODD.table.store(std::ptr::null_mut(), Relaxed);
    ODD.mask.store(0, Relaxed);
    ODD.used.store(0, Relaxed);
}

#[inline(always)]
fn leaf<const USUAL: bool>(address: u64) -> Option<&'static AtomicPtr<u8>> {
    if address >> SPACE != 0 {
        return None;
    }
    // The map is created before any call is recorded, and a child of `fork` does not call this
    // function before a reset.
    let root = ROOT.load(Relaxed);
    let half = if USUAL || is_glibc() { 0 } else { address >> 3 & 1 };
    let place = root.wrapping_add((half << (SPACE - LEAF) | address >> LEAF) as usize);
    // SAFETY: both halves of the table have an entry for each value of these address bits, and the
    // table is unmapped only when no thread is in the recorder.
    Some(unsafe { &*place })
}

/// Cell of 4 bytes for the 32 bytes that contain an address.
#[inline(always)]
fn narrow(leaf: *mut u8, address: u64) -> &'static AtomicU32 {
    let place =
        leaf.cast::<AtomicU32>().wrapping_add(((address & ((1 << LEAF) - 1)) >> 5) as usize);
    // SAFETY: a leaf has a cell for every 32 bytes of its range, and is unmapped only when no
    // thread is in the recorder.
    unsafe { &*place }
}

/// Cell of 8 bytes for the 16 bytes that contain an address.
#[inline(always)]
fn wide(leaf: *mut u8, address: u64) -> &'static AtomicU64 {
    let place =
        leaf.cast::<AtomicU64>().wrapping_add(((address & ((1 << LEAF) - 1)) >> 4) as usize);
    // SAFETY: a leaf has a cell for every 16 bytes of its range, and is unmapped only when no
    // thread is in the recorder.
    unsafe { &*place }
}

#[cold]
#[inline(never)]
fn new_leaf(entry: &AtomicPtr<u8>) -> Option<*mut u8> {
    let _held = LOCK.hold();
    let there = entry.load(Relaxed);
    if !there.is_null() {
        return Some(there);
    }
    let length =
        if IS_GLIBC.load(Relaxed) == 1 { (1 << LEAF) / 32 * 4 } else { (1 << LEAF) / 16 * 8 };
    let leaf = kernel::memory(length).ok()?;
    entry.store(leaf, Release);
    Some(leaf)
}

/// Records a block with the usable size `room`. Returns false if memory is exhausted or the address
/// is outside of the map.
#[inline(always)]
pub(crate) fn put<const USUAL: bool>(address: u64, block: RecordedBlock, room: u64) -> bool {
    let Some(entry) = leaf::<USUAL>(address) else { return false };
    let mut leaf = entry.load(Relaxed);
    if leaf.is_null() {
        match new_leaf(entry) {
            Some(new) => leaf = new,
            None => return false,
        }
    }
    if USUAL || is_glibc() {
        let slack = room.wrapping_sub(block.size);
        let low = if slack < u64::from(SLACK) {
            slack as u32
        } else {
            if !ODD.put(address, block.size) {
                return false;
            }
            SLACK
        };
        let timed = if block.timed { TIMED } else { 0 };
        let site = (block.site + 1) << SITE_SHIFT;
        narrow(leaf, address).store(odd(address) | site | timed | low, Relaxed);
    } else {
        let size = block.size.min((1 << SIZE_BITS) - 1);
        let high = u64::from(block.site + 1) << 1 | u64::from(block.timed);
        wide(leaf, address).store(half(address) | high << SIZE_BITS | size, Relaxed);
    }
    true
}

/// Removes a block from the map; `None` if it is not recorded. `room` returns the usable size of
/// the block. It is called only if the cell contains the difference between the usable and the
/// requested size.
#[inline(always)]
pub(crate) fn remove_block<const USUAL: bool>(
    address: u64,
    room: impl FnOnce() -> u64,
) -> Option<RecordedBlock> {
    let leaf = leaf::<USUAL>(address)?.load(Relaxed);
    if leaf.is_null() {
        return None;
    }
    if USUAL || is_glibc() {
        let cell = narrow(leaf, address);
        let value = cell.load(Relaxed);
        let site = (value >> SITE_SHIFT & ((1 << SITE_BITS) - 1)).checked_sub(1)?;
        cell.store(0, Relaxed);
        let size = match value & SLACK {
            SLACK => ODD.remove_entry(address)?,
            slack => room().wrapping_sub(u64::from(slack)),
        };
        Some(RecordedBlock { site, size, timed: value & TIMED != 0 })
    } else {
        let cell = wide(leaf, address);
        let value = cell.load(Relaxed);
        let high = (value & !HALF) >> SIZE_BITS;
        let site = ((high >> 1) as u32).checked_sub(1)?;
        cell.store(0, Relaxed);
        Some(RecordedBlock { site, size: value & ((1 << SIZE_BITS) - 1), timed: high & 1 != 0 })
    }
}

/// Sizes of blocks whose usable size exceeds the requested size by [`SLACK`] bytes or more, so that
/// the difference does not fit in a cell of 4 bytes. Such blocks are rare. The sizes are in a hash
/// table with open addressing under a lock.
struct Odd {
    lock: Lock,
    table: AtomicPtr<(AtomicU64, AtomicU64)>,
    mask: AtomicU64,
    used: AtomicU64,
}

static ODD: Odd = Odd {
    lock: Lock::new(),
    table: AtomicPtr::new(std::ptr::null_mut()),
    mask: AtomicU64::new(0),
    used: AtomicU64::new(0),
};

impl Odd {
    const FIRST: u64 = 256;

    fn entry(&self, index: u64) -> &'static (AtomicU64, AtomicU64) {
        let place = self.table.load(Relaxed).wrapping_add(index as usize);
        // SAFETY: the index is below the number of entries, and a table is unmapped only when no
        // thread is in the recorder.
        unsafe { &*place }
    }

    fn find(&self, address: u64) -> u64 {
        let mask = self.mask.load(Relaxed);
        let mut index = live::place(address, mask + 1);
        loop {
            let key = self.entry(index).0.load(Relaxed);
            if key == address || key == 0 {
                return index;
            }
            index = (index + 1) & mask;
        }
    }

    #[cold]
    fn put(&self, address: u64, size: u64) -> bool {
        let _held = self.lock.hold();
        let (mask, used) = (self.mask.load(Relaxed), self.used.load(Relaxed));
        if (self.table.load(Relaxed).is_null() || used * 2 > mask) && self.grow().is_none() {
            return false;
        }
        let (key, value) = self.entry(self.find(address));
        if key.load(Relaxed) == 0 {
            key.store(address, Relaxed);
            self.used.fetch_add(1, Relaxed);
        }
        value.store(size, Relaxed);
        true
    }

    #[cold]
    fn remove_entry(&self, address: u64) -> Option<u64> {
        let _held = self.lock.hold();
        if self.table.load(Relaxed).is_null() {
            return None;
        }
        let mask = self.mask.load(Relaxed);
        let mut hole = self.find(address);
        let (key, value) = self.entry(hole);
        if key.load(Relaxed) == 0 {
            return None;
        }
        let size = value.load(Relaxed);
        self.used.fetch_sub(1, Relaxed);
        // The following entries move into the hole, so that no search ends there early.
        let mut index = hole;
        loop {
            index = (index + 1) & mask;
            let (key, value) = self.entry(index);
            let address = key.load(Relaxed);
            if address == 0 {
                break;
            }
            let home = live::place(address, mask + 1);
            if (index.wrapping_sub(home) & mask) >= (index.wrapping_sub(hole) & mask) {
                let (to_key, to_value) = self.entry(hole);
                to_key.store(address, Relaxed);
                to_value.store(value.load(Relaxed), Relaxed);
                hole = index;
            }
        }
        self.entry(hole).0.store(0, Relaxed);
        Some(size)
    }

    fn grow(&self) -> Option<()> {
        let old = self.table.load(Relaxed);
        let old_count = if old.is_null() { 0 } else { self.mask.load(Relaxed) + 1 };
        let count = (old_count * 2).max(Self::FIRST);
        let length = usize::try_from(count).ok()? * size_of::<(AtomicU64, AtomicU64)>();
        let table = kernel::memory(length).ok()?.cast::<(AtomicU64, AtomicU64)>();
        self.table.store(table, Relaxed);
        self.mask.store(count - 1, Relaxed);
        for index in 0..old_count {
            let place = old.wrapping_add(index as usize);
            // SAFETY: the old table has this number of entries, and is unmapped only when no thread
            // is in the recorder.
            let (key, value) = unsafe { &*place };
            if key.load(Relaxed) != 0 {
                let (to_key, to_value) = self.entry(self.find(key.load(Relaxed)));
                to_key.store(key.load(Relaxed), Relaxed);
                to_value.store(value.load(Relaxed), Relaxed);
            }
        }
        let told = table.addr() as u64 | u64::from(count.trailing_zeros());
        shared::head(header::LIVE_SIZES).store(told, Relaxed);
        if !old.is_null() {
            let length = old_count as usize * size_of::<(AtomicU64, AtomicU64)>();
            // SAFETY: the memory belongs to `kernel::memory`, and all readers hold the lock.
            unsafe { kernel::forget(old.cast(), length) };
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Reproducible pseudorandom numbers.
    struct LiveRandom(u64);

    impl LiveRandom {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 16) % end
        }
    }

    /// Records and removes blocks at random addresses that are at least `apart` bytes from each
    /// other.
    fn comes_and_goes(is_glibc: bool, apart: u64) {
        begin(is_glibc).unwrap();
        let mut chance = LiveRandom(0x1357_9bdf_0246_8ace);
        let mut expected: BTreeMap<u64, (RecordedBlock, u64)> = BTreeMap::new();
        for _ in 0..200_000 {
            // The addresses are in a few leaves, and in half of the cases close to each other.
            let leaf = 0x1000 + chance.below(5) * 3;
            let places = if chance.below(2) == 0 { 1 << 9 } else { (1 << LEAF) / apart };
            let address = (leaf << LEAF) + chance.below(places) * apart + apart / 2;
            match expected.remove(&address) {
                Some((block, room)) => {
                    assert_eq!(remove_block::<false>(address, || room), Some(block));
                    assert_eq!(remove_block::<false>(address, || room), None, "it is gone");
                }
                None => {
                    let size = match chance.below(4) {
                        0 => chance.below(32),
                        1 => chance.below(5000),
                        2 => chance.below(1 << 36),
                        _ => 24 + 16 * chance.below(100),
                    };
                    let room = size
                        + if chance.below(3) == 0 { chance.below(5000) } else { chance.below(24) };
                    let block = RecordedBlock {
                        site: u32::try_from(chance.below(2 << 20)).unwrap(),
                        size,
                        timed: chance.below(9) == 0,
                    };
                    assert_eq!(remove_block::<false>(address, || room), None);
                    assert!(put::<false>(address, block, room));
                    expected.insert(address, (block, room));
                }
            }
        }
        assert!(expected.len() > 10_000);
        for (address, (block, room)) in expected {
            assert_eq!(remove_block::<false>(address, || room), Some(block));
        }
        // These addresses do not exist in user space.
        assert!(!put::<false>(1 << 47, RecordedBlock { site: 1, size: 1, timed: false }, 24));
        assert_eq!(remove_block::<false>(u64::MAX, || 0), None);
        reset();
    }

    #[test]
    fn a_recorded_block_is_found_until_it_is_removed() {
        shared::install_for_tests();
        comes_and_goes(true, 32);
        comes_and_goes(false, 8);
    }
}
