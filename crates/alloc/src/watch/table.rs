//! Counters of all pools of a process, to be found from outside.
//!
//! A private mapping of a file in memory with the name [`NAME`]: `/proc/<pid>/maps` shows it as
//! `/memfd:pagewise-pools (deleted)`, in stripped and static programs too, and a child of `fork`
//! has its own. A process with the right to trace reads it with `process_vm_readv`; the target does
//! nothing.
//!
//! ```text
//!   0        64               64 + 4 KiB           64 + 8 KiB
//!   | header | entry 0        | entry 1            | ..
//! ```

use core::ffi::CStr;
use core::mem::size_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::PoolEntry;

/// Name of the mapping in the kernel.
const NAME: &CStr = c"pagewise-pools";

/// The first word: `PWPOOLS` and the version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PWPOOLS\x01");

/// Maximum number of pools with an entry; further ones are only counted.
const ENTRIES: u32 = 1024;

/// All pools of a process.
#[repr(C)]
#[derive(Debug)]
pub struct PoolTable {
    magic: AtomicU64,
    entry_size: AtomicU32,
    entries: AtomicU32,
    /// Entries from here on were never used.
    used: AtomicU32,
    /// Pools that found no entry.
    lost: AtomicU32,
    reserved: [u64; 5],
    entry: [PoolEntry; ENTRIES as usize],
}

/// Value of [`PoolTable::entry_size`].
const ENTRY_SIZE: u32 = 4 << 10;
const _: () = assert!(size_of::<PoolEntry>() == ENTRY_SIZE as usize);
const _: () = assert!(core::mem::offset_of!(PoolTable, entry) == 64);

static TABLE: AtomicPtr<PoolTable> = AtomicPtr::new(core::ptr::null_mut());

/// An entry for a new pool; `None` if all are in use, or without memory for them.
#[cold]
pub(super) fn enter(kind: &str) -> Option<&'static PoolEntry> {
    let table = table()?;
    let entry = table.entry.iter().enumerate().find(|(_, entry)| entry.claim(kind));
    let Some((at, entry)) = entry else {
        table.lost.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    let used = u32::try_from(at + 1).unwrap_or(u32::MAX);
    table.used.fetch_max(used, Ordering::Relaxed);
    Some(entry)
}

fn table() -> Option<&'static PoolTable> {
    let made = TABLE.load(Ordering::Acquire);
    // SAFETY: the pointer is that of a table, which stays mapped for good.
    unsafe { made.as_ref() }.or_else(make)
}

/// Creates the table. If two threads do, the second one unmaps its own and uses that of the first.
fn make() -> Option<&'static PoolTable> {
    let new = map()?;
    // SAFETY: the mapping is as large as a table, aligned to pages, and zero: a table without
    // pools.
    let table = unsafe { &*new };
    table.entry_size.store(ENTRY_SIZE, Ordering::Relaxed);
    table.entries.store(ENTRIES, Ordering::Relaxed);
    table.magic.store(MAGIC, Ordering::Release);
    match TABLE.compare_exchange(core::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(table),
        Err(first) => {
            // SAFETY: no other code has the address of this mapping.
            unsafe { libc::munmap(new.cast(), size_of::<PoolTable>()) };
            // SAFETY: the pointer is that of a table, which stays mapped for good.
            unsafe { first.as_ref() }
        }
    }
}

fn map() -> Option<*mut PoolTable> {
    // SAFETY: the name ends with NUL.
    let file = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if file == -1 {
        return None;
    }
    let size = size_of::<PoolTable>();
    let length = libc::off_t::try_from(size).unwrap_or(0);
    // SAFETY: the call takes numbers.
    let sized = unsafe { libc::ftruncate(file, length) } == 0;
    let start = if sized {
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                file,
                0,
            )
        }
    } else {
        libc::MAP_FAILED
    };
    // SAFETY: this is ours, and the mapping keeps the file.
    unsafe { libc::close(file) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}
