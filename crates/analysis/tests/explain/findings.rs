//! Each finding fires on its case, and none on a healthy process.

use pagewise_analysis::explain::{ExplainOptions, explain};
use pagewise_model::SmapsCounter::*;
use pagewise_model::heap_sample::{BytesEstimate, HeapSample};
use pagewise_model::object::OnDisk;
use pagewise_model::process::{CgroupMemory, KsmStat, NodeShare, ResourceLimit};
use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{Bytes, Mapping, Snapshot};

use crate::build::*;

const MIB: u64 = 1 << 20;

fn found(snapshot: &Snapshot) -> Vec<Finding> {
    findings(&explain(snapshot, &ExplainOptions::default())).to_vec()
}

fn ids(snapshot: &Snapshot) -> Vec<&'static str> {
    found(snapshot).iter().map(|finding| finding.id).collect()
}

fn evidence(finding: &Finding, key: &str) -> CellValue {
    let fact = finding.evidence.iter().find(|fact| fact.key == key);
    fact.expect("evidence with that key").value.clone()
}

/// A shell: a program, libc, a small heap, a stack.
fn healthy() -> Snapshot {
    let mut snapshot = snapshot(vec![
        map(0x5555_6000_0000, 1800, "rw-p", "[heap]").anonymous(1700),
        map(0x7000_0000_0000, 300, "r--p", "/usr/lib/locale/locale-archive").file(0, 60, 3),
        map(0x7000_1000_0000, 20, "rw-p", "/usr/lib/libc.so.6.data").anonymous(20),
        map(0x7000_2000_0000, 52, "rw-p", "").anonymous(30),
        map(0x7ffc_0000_0000, 132, "rw-p", "[stack]").anonymous(40),
        map(0x7ffc_1000_0000, 8, "r-xp", "[vdso]").file(0, 4, 0),
    ]);
    library(&mut snapshot, 0x5555_5555_0000, "/usr/bin/prog");
    library(&mut snapshot, 0x7000_0800_0000, "/usr/lib/libc.so.6");
    snapshot
}

/// A healthy process with these mappings too, above its stack.
fn with(more: Vec<Mapping>) -> Snapshot {
    let mut snapshot = healthy();
    let mappings = snapshot.mappings.as_mut().expect("built with mappings");
    mappings.extend(more);
    mappings.sort_by_key(|m| m.range);
    agree(&mut snapshot);
    snapshot
}

/// Address outside of the healthy process's mappings.
const ROOM: u64 = 0x7100_0000_0000;

#[test]
fn a_sampled_heap_is_judged_by_the_bound_that_speaks_against_the_finding() {
    let between = |low, high| BytesEstimate { low: Bytes::mib(low), high: Bytes::mib(high) };
    let sampled = |trimmable, pinned| {
        let mut snapshot = healthy();
        snapshot.heap_sample = Ok(HeapSample {
            resident: Bytes::mib(100),
            trimmable,
            pinned,
            ..HeapSample::default()
        });
        ids(&snapshot)
    };
    let little = between(0, 3);
    assert_eq!(sampled(between(30, 60), little), ["trimmable-heap"]);
    assert_eq!(sampled(little, between(30, 60)), ["fragmented-heap"]);
    assert_eq!(sampled(between(5, 60), between(15, 90)), [""; 0]);
}

#[test]
fn a_healthy_process_has_no_findings() {
    assert_eq!(found(&healthy()), []);
}

#[test]
fn swapped_memory_names_the_pool_that_holds_most_of_it() {
    let swapped = map(ROOM, 64 << 10, "rw-p", "[anon:cache]").using(&[(Swap, 20 << 10)]);
    let snapshot = with(vec![swapped]);
    let found = found(&snapshot);
    assert_eq!((found[0].id, found[0].severity), ("swapped", Severity::Warning));
    assert_eq!(evidence(&found[0], "swap"), CellValue::Bytes(20 * MIB));
    assert_eq!(evidence(&found[0], "most"), name("cache"));
    let little = map(ROOM, 64 << 10, "rw-p", "[anon:cache]").using(&[(Swap, 400)]);
    assert_eq!(ids(&with(vec![little])), [""; 0], "a few idle pages in swap are no news");
}

#[test]
fn reservations_of_runtimes_are_normal_and_those_of_the_program_are_named() {
    let go = with(vec![map(0xc0_0000_0000, 16 << 20, "rw-p", "")]);
    assert_eq!(ids(&go), [""; 0]);
    let shadow = with(vec![
        map(0x7fff_7000, 256 << 10, "rw-p", ""),
        map(0x0200_8fff_7000, 14 << 30, "rw-p", ""),
    ]);
    assert_eq!(ids(&shadow), [""; 0], "a sanitizer");
    let inaccessible = with(vec![map(ROOM, 16 << 20, "---p", "")]);
    assert_eq!(ids(&inaccessible), [""; 0]);
    let own = || with(vec![map(ROOM, 16 << 20, "rw-p", "")]);
    assert_eq!(ids(&own()), ["reserved-only"]);
    let mut java = own();
    library(&mut java, 0x7000_0900_0000, "/usr/lib/jvm/libjvm.so");
    assert_eq!(ids(&java), [""; 0]);
}

#[test]
fn a_stack_that_is_large_but_hardly_touched_is_not_near_its_limit() {
    let mut snapshot = healthy();
    let limit = |bytes| ResourceLimit { soft: Some(bytes), hard: None };
    // The mapping has 132 KiB, of which 40 are resident.
    snapshot.limits.as_mut().unwrap().stack = limit(132 << 10);
    assert_eq!(ids(&snapshot), [""; 0]);
    snapshot.limits.as_mut().unwrap().stack = limit(40 << 10);
    assert_eq!(ids(&snapshot), ["near-stack-limit"]);
}

#[test]
fn many_arenas_are_counted_by_their_heaps() {
    let arenas = |count: u64| {
        let heap = |i| {
            let start = 0x7100_0000_0000 + i * 64 * MIB;
            [map(start, 1024, "rw-p", "").anonymous(1024), map(start + MIB, 63 << 10, "---p", "")]
        };
        with((0..count).flat_map(heap).collect())
    };
    assert_eq!(ids(&arenas(8)), [""; 0]);
    let found = found(&arenas(40));
    assert_eq!(found[0].id, "many-arenas");
    assert_eq!(evidence(&found[0], "heaps"), CellValue::Count(40));
    assert_eq!(evidence(&found[0], "reserved"), CellValue::Bytes(40 * 64 * MIB));
}

#[test]
fn the_number_of_mappings_is_compared_with_its_limit() {
    let mut snapshot = healthy();
    snapshot.machine.max_map_count = Ok(10);
    let found = found(&snapshot);
    assert_eq!((found[0].id, found[0].severity), ("near-max-map-count", Severity::Warning));
    assert_eq!(evidence(&found[0], "mappings"), CellValue::Count(8));
    snapshot.machine.max_map_count = Ok(8);
    assert_eq!(crate::findings::found(&snapshot)[0].severity, Severity::Critical);
}

#[test]
fn resource_limits_are_compared_with_the_amounts_that_they_bound() {
    let limit = |bytes| ResourceLimit { soft: Some(bytes), hard: None };
    let mut snapshot = healthy();
    let statm = *snapshot.statm.as_ref().unwrap();
    let limits = snapshot.limits.as_mut().unwrap();
    limits.stack = limit(48 << 10);
    limits.address_space = limit(statm.size.0 + 1);
    limits.data = limit(statm.data.0 + 1);
    limits.locked = limit(MIB);
    snapshot.status.as_mut().unwrap().vm_lck = Ok(Bytes::kib(900));
    let mut ids = ids(&snapshot);
    ids.sort_unstable();
    let expected =
        ["near-address-space-limit", "near-data-limit", "near-locked-limit", "near-stack-limit"];
    assert_eq!(ids, expected);
}

#[test]
fn a_full_cgroup_is_reported_but_not_a_well_used_one() {
    let mut snapshot = healthy();
    let mut used = |mib| {
        snapshot.cgroup = Ok(CgroupMemory {
            path: "/app".into(),
            version: 2,
            limit: Some(Bytes::mib(100)),
            usage: Ok(Bytes::mib(mib)),
        });
        ids(&snapshot)
    };
    assert_eq!(used(85), [""; 0], "page cache fills a cgroup");
    assert_eq!(used(99), ["near-cgroup-limit"]);
}

#[test]
fn replaced_and_deleted_libraries_are_stale() {
    let mut replaced = healthy();
    replaced.objects[1].on_disk = Ok(OnDisk::Replaced);
    assert_eq!(ids(&replaced), ["stale-files"]);
    assert_eq!(evidence(&found(&replaced)[0], "reserved"), CellValue::Bytes(PAGE));

    let deleted = with(vec![map(ROOM, 64, "r-xp", "/usr/lib/libssl.so.3 (deleted)").file(0, 4, 1)]);
    assert_eq!(ids(&deleted), ["stale-files"]);
    let data = with(vec![map(ROOM, 64, "r--p", "/tmp/scratch (deleted)").file(4, 0, 4)]);
    assert_eq!(ids(&data), [""; 0], "a deleted temporary file is ordinary");
}

#[test]
fn writable_and_executable_memory_is_reported() {
    let snapshot = with(vec![map(ROOM, 64, "rwxp", "").anonymous(64)]);
    let found = found(&snapshot);
    assert_eq!((found[0].id, found[0].severity), ("writable-code", Severity::Note));
    assert_eq!(evidence(&found[0], "reserved"), CellValue::Bytes(64 << 10));
    assert_eq!(evidence(&found[0], "largest"), CellValue::Address(ROOM));
}

#[test]
fn page_tables_are_large_beside_what_is_resident() {
    let mut snapshot = healthy();
    snapshot.status.as_mut().unwrap().vm_pte = Ok(Bytes::mib(40));
    assert_eq!(ids(&snapshot), ["large-page-tables"]);
    let dense = with(vec![map(ROOM, 20 << 20, "rw-p", "").anonymous(20 << 20)]);
    let mut dense = dense;
    dense.status.as_mut().unwrap().vm_pte = Ok(Bytes::mib(41));
    assert_eq!(ids(&dense), [""; 0], "20 GiB in 4 KiB pages need 40 MiB");
}

#[test]
fn unrequested_huge_pages_may_be_bloat() {
    let huge = |flags: &str| {
        let all = 800 << 10;
        let counters =
            [(Rss, all), (Pss, all), (PrivateDirty, all), (Anonymous, all), (AnonHugePages, all)];
        with(vec![map(ROOM, all, "rw-p", "").using(&counters).flags(flags)])
    };
    let found = found(&huge("rd wr"));
    assert_eq!(found[0].id, "huge-page-bloat");
    assert_eq!(evidence(&found[0], "anon_huge"), CellValue::Bytes(800 * MIB));
    assert!(format!("{:?}", found[0].next_step).contains("pagewise thp "));
    assert_eq!(ids(&huge("rd wr hg")), [""; 0], "the program asked with MADV_HUGEPAGE");
}

#[test]
fn a_reading_without_flags_makes_no_claim_about_requested_huge_pages() {
    let all = 800 << 10;
    let mut mapping = map(ROOM, all, "rw-p", "").pages([all, 0], [0, 0], Ok(Bytes::kib(all)));
    std::sync::Arc::make_mut(mapping.pages.as_mut().unwrap()).anon_huge = Ok(Bytes::kib(all));
    let found = found(&with(vec![mapping.clone()]));
    assert_eq!(found.iter().map(|f| f.id).collect::<Vec<_>>(), ["huge-pages"]);
    let (claim, step) = (format!("{:?}", found[0].claim), format!("{:?}", found[0].next_step));
    assert!(claim.contains("does not show whether the program asked"), "{claim}");
    assert!(step.contains("--full"), "{step}");
    // Mappings with `MADV_HUGEPAGE` (`hg`) are not counted.
    let marked = map(ROOM + (1 << 40), all, "rw-p", "").using(&[(AnonHugePages, all)]);
    let both = with(vec![mapping, marked.flags("rd wr hg")]);
    assert_eq!(evidence(&self::found(&both)[0], "anon_huge"), CellValue::Bytes(800 * MIB));
}

#[test]
fn copies_of_file_pages_name_the_file() {
    let copied = map(ROOM, 64 << 10, "rw-p", "/var/lib/model.bin").anonymous(60 << 10);
    let found = found(&with(vec![copied]));
    assert_eq!(found[0].id, "copied-file-pages");
    assert_eq!(evidence(&found[0], "most"), name("/var/lib/model.bin"));
    assert_eq!(evidence(&found[0], "most_copied"), CellValue::Bytes(60 * MIB));
}

#[test]
fn merging_is_a_note_and_merging_at_a_loss_a_warning() {
    let mut snapshot = healthy();
    let mut merged = |pages, profit| {
        snapshot.ksm =
            Ok(KsmStat { merging_pages: pages, rmap_items: pages, profit: Some(profit) });
        found(&snapshot).iter().map(|f| (f.id, f.severity)).collect::<Vec<_>>()
    };
    assert_eq!(merged(0, 0), []);
    assert_eq!(merged(1000, 4_000_000), [("merged-pages", Severity::Note)]);
    assert_eq!(merged(0, -64_000), [("merged-pages", Severity::Warning)]);
}

#[test]
fn memory_spread_unevenly_over_nodes_is_reported_for_threaded_processes() {
    let mut snapshot = healthy();
    snapshot.process.threads = 8;
    let mut on = |gib: [u64; 2]| {
        let node = |(node, gib)| NodeShare { node, resident: Bytes::gib(gib) };
        snapshot.numa = Ok((0..).zip(gib).map(node).collect());
        ids(&snapshot)
    };
    assert_eq!(on([8, 2]), ["numa-imbalance"]);
    assert_eq!(on([5, 5]), [""; 0]);
    assert_eq!(on([10, 0]), [""; 0], "all on one node is how it should be");
}

#[test]
fn the_gravest_finding_comes_first() {
    let mut snapshot = with(vec![map(ROOM, 64, "rwxp", "/data").anonymous(64)]);
    snapshot.machine.max_map_count = Ok(9);
    snapshot.ksm = Ok(KsmStat { merging_pages: 1000, rmap_items: 0, profit: None });
    let severities: Vec<_> = found(&snapshot).iter().map(|f| f.severity).collect();
    assert_eq!(severities, [Severity::Critical, Severity::Warning, Severity::Note]);
}

#[test]
fn every_finding_has_a_next_step() {
    let mut snapshot = with(vec![map(ROOM, 64, "rwxp", "").anonymous(64)]);
    snapshot.machine.max_map_count = Ok(9);
    assert!(found(&snapshot).iter().all(|finding| !finding.next_step.is_empty()));
}
