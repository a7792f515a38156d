//! The owners of RAM at a recorded time, from the counters that a sweep has.
//!
//! A recording has all lines of `meminfo` and the PSS of the processes. It has neither `zoneinfo`
//! nor the kernel log: per-CPU free lists, zram and per-CPU variables are part of the unaccounted
//! memory.

use std::cmp::Reverse;

use pagewise_model::account::{
    ProcessShare, ProcessSums, SYSTEM_VERSION, SystemReading, VmstatPoint,
};
use pagewise_model::evidence::counter;
use pagewise_model::report::ReportTable;
use pagewise_model::sweep::{Sweep, SweepProcess};
use pagewise_model::{Absent, Name, PageSize, Reading};

use crate::account::account;
use crate::system::owner_tables;

/// Maximum number of processes that an owner names.
const LARGEST: usize = 10;
/// Page size for counters of pages, of which a sweep has none.
const PAGE: PageSize = PageSize::new(4 << 10).expect("a power of two");

/// The owners of RAM for people and for programs; `None` if the sweep has no counters.
pub(super) fn owners(sweep: &Sweep) -> Option<[ReportTable; 2]> {
    let reading = reading(sweep)?;
    let [people, programs] = owner_tables(&reading, &account(&reading));
    Some([ReportTable { title: "Owners of RAM".into(), ..people }, programs])
}

/// The sweep as a reading of the machine. Values that it lacks are absent.
fn reading(sweep: &Sweep) -> Option<SystemReading> {
    let meminfo = sweep.machine.meminfo.clone().ok()?;
    // The stacks of the kernel lie in vmalloc memory on all usual configurations, whose counter is
    // then the larger one.
    let stacks_in_vmalloc = counter(&meminfo, "VmallocUsed") >= counter(&meminfo, "KernelStack");
    Some(SystemReading {
        pagewise_system: SYSTEM_VERSION,
        kernel: Name::default(),
        page_size: PAGE,
        meminfo_before: Vec::new(),
        meminfo,
        vmstat: [VmstatPoint::default(), VmstatPoint::default()],
        zones: unrecorded(),
        free_blocks: unrecorded(),
        huge_size: unrecorded(),
        slabs: unrecorded(),
        processes: sums(&sweep.processes),
        largest: largest(&sweep.processes),
        oom: Vec::new(),
        shmem: unrecorded(),
        hugetlb: unrecorded(),
        zram: unrecorded(),
        balloon_in_total: unrecorded(),
        stacks_in_vmalloc: Ok(stacks_in_vmalloc),
        percpu_at_boot: unrecorded(),
        sockets: unrecorded(),
        files: unrecorded(),
        pressure: unrecorded(),
        swaps: unrecorded(),
        settings: Vec::new(),
        took_ns: 0,
        longest_hold_ns: unrecorded(),
    })
}

fn unrecorded<T>() -> Reading<T> {
    Err(Absent::NotRecorded("a recording".into()))
}

fn sums(processes: &[SweepProcess]) -> ProcessSums {
    let mut sums = ProcessSums::default();
    for process in processes {
        match &process.pss {
            Ok(pss) => {
                sums.read += 1;
                sums.anonymous += pss.anonymous;
                sums.file += pss.file;
                sums.shmem += pss.shmem;
            }
            Err(_) => {
                sums.unread += 1;
                sums.unread_rss += process.rss;
            }
        }
    }
    sums
}

fn largest(processes: &[SweepProcess]) -> Vec<ProcessShare> {
    let share = |process: &SweepProcess| {
        let pss = process.pss.clone().ok()?;
        Some(ProcessShare {
            pid: process.key.pid,
            name: process.identity.name.clone(),
            pss: pss.total(),
            anonymous: pss.anonymous,
            file: pss.file,
            shmem: pss.shmem,
        })
    };
    let mut all: Vec<ProcessShare> = processes.iter().filter_map(share).collect();
    all.sort_by_key(|it| Reverse(it.pss));
    all.truncate(LARGEST);
    all
}

#[cfg(test)]
mod tests {
    use pagewise_model::Bytes;

    use super::super::tests::{process, sweep};
    use super::*;

    #[test]
    fn owners_and_the_rest_are_the_total_at_that_time() {
        let mut sweep = sweep(0, vec![process(1, "db", Bytes::mib(100))]);
        let mut unread = process(2, "other", Bytes::mib(30));
        unread.pss = Err(Absent::Vanished);
        sweep.processes.push(unread);
        let lines = [("MemTotal", 1000), ("MemFree", 400), ("AnonPages", 130), ("Cached", 300)];
        let lines = lines.map(|(name, mib)| pagewise_model::fragmentation::BootCounter {
            name: name.into(),
            count: mib << 20,
        });
        sweep.machine.meminfo = Ok(lines.to_vec());
        let account = account(&reading(&sweep).unwrap());
        let owned: Bytes = account.owners.iter().map(|it| it.bytes).sum();
        assert_eq!(owned.0.cast_signed() + account.unaccounted, 1000 << 20);
        let owner = |id| account.owner(id).map(|it| it.0 >> 20);
        assert_eq!(owner("processes.anonymous"), Some(100));
        assert_eq!(owner("anonymous.unread"), Some(30));
        assert_eq!(owner("free"), Some(400));
        sweep.machine.meminfo = Err(Absent::Vanished);
        assert!(owners(&sweep).is_none());
    }
}
