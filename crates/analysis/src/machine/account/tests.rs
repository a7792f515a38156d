//! Tests of the accounts of small machines.

use pagewise_model::account::{
    HugetlbPool, ProcessSums, SYSTEM_VERSION, SlabCache, VmstatPoint, ZoneFigures,
};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::{Absent, PageSize, Reading};
use proptest::prelude::*;

use super::*;

fn none<T>() -> Reading<T> {
    Err(Absent::NotCollected("a sample".into()))
}

/// A machine whose `meminfo` has these lines, in KiB.
pub(crate) fn machine(lines: &[(&str, u64)]) -> SystemReading {
    let count = |(name, kib): &(&str, u64)| BootCounter { name: (*name).into(), count: kib << 10 };
    SystemReading {
        pagewise_system: SYSTEM_VERSION,
        kernel: "6.18.0".into(),
        page_size: PageSize::new(4096).unwrap(),
        meminfo_before: Vec::new(),
        meminfo: lines.iter().map(count).collect(),
        vmstat: [VmstatPoint::default(), VmstatPoint::default()],
        zones: none(),
        free_blocks: none(),
        huge_size: none(),
        slabs: none(),
        processes: ProcessSums::default(),
        largest: Vec::new(),
        oom: Vec::new(),
        shmem: none(),
        hugetlb: none(),
        zram: none(),
        balloon_in_total: Ok(true),
        stacks_in_vmalloc: Ok(true),
        percpu_at_boot: none(),
        sockets: none(),
        files: none(),
        pressure: none(),
        swaps: none(),
        settings: Vec::new(),
        took_ns: 0,
        longest_hold_ns: none(),
    }
}

fn sum(account: &MemoryAccount) -> i64 {
    let owned: u64 = account.owners.iter().map(|owner| owner.bytes.0).sum();
    owned.cast_signed() + account.unaccounted
}

#[test]
fn pages_that_two_counters_have_count_once() {
    let mut reading = machine(&[
        ("MemTotal", 10_000),
        ("MemFree", 1000),
        ("Cached", 3000),
        ("Shmem", 500),
        ("AnonPages", 2000),
        ("Mapped", 900),
        ("VmallocUsed", 300),
        ("KernelStack", 100),
        ("Percpu", 80),
    ]);
    reading.percpu_at_boot = Ok(Bytes::kib(50));
    reading.processes = ProcessSums {
        read: 3,
        anonymous: Bytes::kib(1990),
        file: Bytes::kib(600),
        shmem: Bytes::kib(200),
        ..ProcessSums::default()
    };
    let account = account(&reading);
    let kib = |id: &str| account.owner(id).map(|bytes| bytes.0 >> 10);
    assert_eq!(kib("processes.anonymous"), Some(1990));
    assert_eq!(kib("anonymous.unread"), Some(10));
    assert_eq!(kib("cache.files"), Some(3000 - 500 - 600));
    assert_eq!(kib("shmem.unmapped"), Some(300));
    assert_eq!(kib("vmalloc"), Some(200));
    assert_eq!(kib("percpu"), Some(30));
    assert_eq!(kib("cache.mapped_unread"), None, "all processes were read");
    assert_eq!(account.unaccounted, (10_000 - 1000 - 2000 - 3000 - 200 - 100 - 30) << 10);
    assert_eq!(sum(&account), 10_000 << 10);
}

#[test]
fn memory_of_processes_that_could_not_be_read_is_a_line_of_its_own() {
    let mut reading =
        machine(&[("MemTotal", 9000), ("AnonPages", 2000), ("Mapped", 900), ("Cached", 3000)]);
    reading.processes.unread = 4;
    let account = account(&reading);
    assert_eq!(account.owner("anonymous.unread"), Some(Bytes::kib(2000)));
    assert_eq!(account.owner("cache.mapped_unread"), Some(Bytes::kib(900)));
    assert_eq!(account.owner("cache.files"), Some(Bytes::kib(2100)));
}

#[test]
fn owners_that_exceed_the_total_make_unaccounted_memory_negative() {
    let account =
        account(&machine(&[("MemTotal", 100), ("MemFree", 90), ("Slab", 9), ("SUnreclaim", 30)]));
    assert_eq!(account.unaccounted, -20 << 10);
    assert_eq!(account.owner("free"), Some(Bytes::kib(90)));
}

#[test]
fn a_balloon_outside_of_the_total_owns_nothing() {
    let mut reading = machine(&[("MemTotal", 100), ("Balloon", 40)]);
    assert_eq!(account(&reading).owner("balloon"), Some(Bytes::kib(40)));
    reading.balloon_in_total = Ok(false);
    assert_eq!(account(&reading).owner("balloon"), None);
}

#[test]
fn per_cpu_variables_of_unknown_part_in_the_total_are_unaccounted() {
    let reading = machine(&[("MemTotal", 100), ("MemFree", 90), ("Percpu", 10)]);
    let account = account(&reading);
    assert_eq!((account.owner("percpu"), account.unaccounted), (None, 10 << 10));
}

#[test]
fn parts_are_sorted_and_belong_to_their_owner() {
    let mut reading = machine(&[("MemTotal", 100), ("SReclaimable", 20), ("Hugetlb", 8)]);
    let slab = |name: &str, kib, reclaimable| SlabCache {
        name: name.into(),
        bytes: Bytes::kib(kib),
        active: Bytes::ZERO,
        objects: 1,
        reclaimable: Ok(reclaimable),
    };
    reading.slabs =
        Ok(vec![slab("dentry", 3, true), slab("task", 9, false), slab("inode", 7, true)]);
    reading.hugetlb = Ok(vec![HugetlbPool { size: Bytes::kib(4), pages: 2, free: 2, reserved: 0 }]);
    reading.zones = Ok(vec![ZoneFigures { per_cpu: 2, ..ZoneFigures::default() }]);
    let account = account(&reading);
    let parts = |id: &str| -> Vec<String> {
        let owner = account.owners.iter().find(|owner| owner.id == id).unwrap();
        owner.parts.iter().map(|part| part.name.escaped().into_owned()).collect()
    };
    assert_eq!(parts("slab.reclaimable"), ["inode", "dentry"]);
    assert_eq!(parts("hugetlb"), ["4 KiB pages, free"]);
    assert_eq!(account.owner("free.per_cpu"), Some(Bytes::kib(8)));
}

#[test]
fn every_owner_has_words() {
    for owner in OWNERS {
        assert!(!owner.label.is_empty() && owner.meaning.ends_with('.'), "{owner:?}");
        assert_eq!(OWNERS.iter().filter(|it| it.id == owner.id).count(), 1, "{owner:?}");
    }
}

const LINES: [&str; 20] = [
    "MemTotal",
    "MemFree",
    "Cached",
    "Buffers",
    "Shmem",
    "AnonPages",
    "Mapped",
    "SReclaimable",
    "SUnreclaim",
    "KReclaimable",
    "KernelStack",
    "PageTables",
    "SecPageTables",
    "VmallocUsed",
    "Percpu",
    "Hugetlb",
    "Zswap",
    "Balloon",
    "Active",
    "Inactive",
];

proptest! {
    #[test]
    fn any_counters_add_up_to_the_total(values in prop::collection::vec(0_u64..1 << 40, LINES.len()), anonymous in 0_u64..1 << 40, unread in 0_u64..2) {
        let lines: Vec<(&str, u64)> = LINES.into_iter().zip(values.iter().copied()).collect();
        let mut reading = machine(&lines);
        reading.processes = ProcessSums { anonymous: Bytes::kib(anonymous), unread, ..ProcessSums::default() };
        let account = account(&reading);
        prop_assert_eq!(sum(&account), (values[0] << 10).cast_signed());
    }
}
