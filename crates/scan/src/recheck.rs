//! Excerpts of a running process that are read a second time, to see if the process changed them.

use std::time::Duration;

use pagewise_model::evidence::MemoryRecheck;
use pagewise_model::heap_sample::MemoryExcerpt;
use pagewise_model::{Absent, Reading, Snapshot};
use pagewise_proc::ProcRoot;

use crate::running::RunningMemory;

/// Reads excerpts of the running process again, and counts the changed ones. `snapshot` describes
/// the process at an earlier time. `after_ns` is the time since the first reading in nanoseconds.
/// Also returns the longest system call that may have held the process's mmap lock.
///
/// # Errors
/// The reason why the memory of the process cannot be read.
pub fn recheck(
    root: &ProcRoot,
    snapshot: &Snapshot,
    excerpts: &[MemoryExcerpt],
    after_ns: u64,
) -> Reading<(MemoryRecheck, Duration)> {
    let pid = snapshot.process.pid;
    let memory = RunningMemory::open(root, pid, snapshot.provenance.page_size, &[])
        .map_err(|error| Absent::NotSupported(format!("its memory: {error}").into()))?;
    let read = |address: u64, into: &mut [u8]| memory.read_present(address, into);
    let found = count_changed(&read, excerpts, after_ns);
    Ok((found, Duration::from_nanos(memory.longest_call_ns())))
}

/// Reads bytes at an address. Returns false if they cannot be read.
type ReadBytes<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

fn count_changed(read: &ReadBytes<'_>, excerpts: &[MemoryExcerpt], after_ns: u64) -> MemoryRecheck {
    let mut found = MemoryRecheck { after_ns, ..MemoryRecheck::default() };
    for excerpt in excerpts {
        let mut now = vec![0; excerpt.bytes.len()];
        // Pages that are in swap by now, or unmapped, are not counted.
        if read(excerpt.address, &mut now) {
            found.parts += excerpt.weight;
            found.changed += if now == excerpt.bytes { 0 } else { excerpt.weight };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_excerpts_count_by_weight_and_unread_ones_do_not_count() {
        let block = |address, weight| MemoryExcerpt { address, bytes: vec![7; 16], weight };
        let sample = [block(0x1000, 3), block(0x2000, 2), block(0x3000, 5)];
        let read = |address: u64, into: &mut [u8]| {
            into.fill(if address == 0x2000 { 8 } else { 7 });
            address != 0x3000
        };
        let found = count_changed(&read, &sample, 9);
        assert_eq!(found, MemoryRecheck { parts: 5, changed: 2, after_ns: 9 });
    }
}
