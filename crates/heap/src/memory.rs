//! Resident memory of a process, and the footprint of its allocator.

use std::fs::File;

use pagewise_heaplog::recording::LogResident;
use pagewise_heaplog::tables::{allocator, header};
use pagewise_model::{Bytes, Mapping, Name, Pid};
use pagewise_proc::{ProcRoot, maps, status};
use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest, scan};

use crate::tables::SharedTables;

/// Memory at one time point; values that could not be read are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryCopy {
    pub held: Option<u64>,
    pub resident: Option<LogResident>,
}

/// Reads the resident memory of a process, and the footprint of its allocator. `mapped` is the
/// number of bytes in blocks with mappings of their own.
pub(crate) fn read(root: &ProcRoot, pid: Pid, tables: &SharedTables, mapped: u64) -> MemoryCopy {
    // Only the mappings of glibc's malloc can be recognized.
    let is_glibc = tables.head(header::ALLOCATOR).is_ok_and(|whose| whose == allocator::GLIBC);
    let held = if is_glibc { held_by(root, pid, mapped) } else { None };
    MemoryCopy { held, resident: resident(root, pid, tables) }
}

/// Footprint of glibc's malloc in a process; `None` if it cannot be read, and after the process has
/// released its memory.
fn held_by(root: &ProcRoot, pid: Pid, mapped: u64) -> Option<u64> {
    let maps = maps::parse(&root.read(pid, "maps").ok()?);
    // For an exiting process, `maps` ends early, or is empty. If the process still has memory after
    // the read, `maps` was complete.
    resident_of(root, pid)?;
    maps.torn.is_none().then(|| held(&maps.mappings, mapped))
}

fn resident(root: &ProcRoot, pid: Pid, tables: &SharedTables) -> Option<LogResident> {
    let ours = tables.resident().ok()?;
    let resident = resident_of(root, pid)?;
    let shmem = resident.shmem.saturating_sub(ours);
    Some(LogResident { shmem, recorder: own(root, pid, tables), ..resident })
}

/// Resident memory of a process, including the recorder's memory.
pub(crate) fn resident_of(root: &ProcRoot, pid: Pid) -> Option<LogResident> {
    let status = status::parse(&root.read(pid, "status").ok()?).status;
    let bytes =
        |reading: &pagewise_model::Reading<Bytes>| reading.as_ref().ok().map(|bytes| bytes.0);
    Some(LogResident {
        anonymous: bytes(&status.rss_anon)?,
        file: bytes(&status.rss_file)?,
        shmem: bytes(&status.rss_shmem)?,
        swap: bytes(&status.vm_swap)?,
        recorder: None,
    })
}

/// Resident memory of the recorder itself; `None` if the kernel does not show it.
fn own(root: &ProcRoot, pid: Pid, tables: &SharedTables) -> Option<u64> {
    const RUNS: usize = 512;
    let pagemap = File::open(root.file(pid, "pagemap")).ok()?;
    let (present, zero) = (Categories::PRESENT, Categories::PFNZERO);
    let request = ScanRequest { all_of: present, report: zero, ..ScanRequest::default() };
    let page = rustix::param::page_size() as u64;
    let mut regions = vec![ScanRegion::default(); RUNS];
    let mut bytes = 0;
    for (start, length) in tables.own().ok()?? {
        let end = start.checked_add(length)?.checked_next_multiple_of(page)?;
        let mut at = start;
        while at < end {
            let scan = scan(&pagemap, at..end, &request, &mut regions).ok()?;
            let touched = regions.iter().take(scan.regions);
            // A page that was only read maps the kernel's shared zero page.
            let touched = touched.filter(|region| !region.categories.contains(zero));
            bytes += touched.map(|region| region.end - region.start).sum::<u64>();
            at = scan.walk_end.max(at + page);
        }
    }
    Some(bytes)
}

/// Footprint of glibc's malloc: the `brk` heap, thread arenas, and large blocks.
fn held(mappings: &[Mapping], mapped: u64) -> u64 {
    let heap = mappings.iter().filter(|mapping| mapping.name == Name::new(b"[heap]"));
    let heap: u64 = heap.map(|mapping| mapping.range.len().0).sum();
    // The program's threads may be updating `mapped` now, so the sum saturates.
    heap.saturating_add(arenas(mappings)).saturating_add(mapped)
}

/// HEAP_MAX_SIZE of glibc on 64-bit machines, in bytes: the heap of an arena starts at a multiple
/// of this size, and reserves this size.
pub(crate) const ARENA: u64 = 64 << 20;

/// Number of bytes of the accessible parts of thread arenas. Each part begins at a multiple of
/// [`ARENA`] and is followed by a reserved part.
fn arenas(mappings: &[Mapping]) -> u64 {
    let is_used = |mapping: &Mapping| {
        mapping.range.start.is_multiple_of(ARENA)
            && mapping.inode == 0
            && mapping.name == Name::new(b"")
            && mapping.prot.write
    };
    let mut sum = 0;
    for (mapping, next) in mappings.iter().zip(mappings.iter().skip(1)) {
        let length = mapping.range.len().0;
        let reserved = next.range.start == mapping.range.end
            && !next.prot.read
            && length + next.range.len().0 >= ARENA;
        if is_used(mapping) && (reserved || length == ARENA) {
            sum += length;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_footprint_of_an_ended_process_is_unknown() {
        let root = ProcRoot::live();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid(child.id());
        assert!(held_by(&root, pid, 7).is_some_and(|held| held >= 7));
        drop(child.stdin.take());
        // The process is a zombie without memory until the test waits for it.
        let ended = |pid| !crate::collector::lives(&root, pid);
        while !ended(child.id()) {
            std::thread::yield_now();
        }
        assert!(root.read(pid, "maps").is_ok_and(|text| text.is_empty()), "nothing is mapped");
        assert_eq!(held_by(&root, pid, 7), None);
        child.wait().unwrap();
    }
}
