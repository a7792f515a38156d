//! The report as a whole: its keys, its totals, and its contents if values are unknown.

use pagewise_analysis::explain::{ExplainOptions, explain};
use pagewise_model::SmapsCounter::*;
use pagewise_model::report::{Audience, CellValue, ReportBlock, ReportTable};
use pagewise_model::{Absent, Bytes, Snapshot};

use crate::build::*;

const ALL: ExplainOptions = ExplainOptions { largest: 3, all_mappings: true, address_map: true };

fn process() -> Snapshot {
    snapshot(vec![
        map(0x5555_0000_0000, 64, "rw-p", "[heap]").anonymous(40),
        map(0x7000_0000_0000, 64, "r-xp", "/lib/libz.so.1").file(0, 30, 10),
        map(0x7000_0010_0000, 64, "rw-p", "").anonymous(50),
        map(0x7ffc_0000_0000, 132, "rw-p", "[stack]").anonymous(12),
        map(0xffff_ffff_ff60_0000, 4, "--xp", "[vsyscall]"),
    ])
}

fn keys(table: &ReportTable) -> Vec<&str> {
    let programs = |a| matches!(a, Audience::Everyone | Audience::Programs | Audience::Long);
    table.columns.iter().filter(|c| programs(c.audience)).map(|c| c.key.as_ref()).collect()
}

fn texts(report: &pagewise_model::Report) -> String {
    let text = |block: &ReportBlock| match block {
        ReportBlock::Text(text) => format!("{:?}", text.pieces),
        _ => String::new(),
    };
    report.blocks.iter().map(text).collect()
}

#[test]
fn the_keys_that_programs_rely_on_are_there() {
    let report = explain(&process(), &ALL);
    assert_eq!(report.schema, "pagewise.explain/1");
    assert_eq!(value(&report, "process", "pid"), CellValue::text("1234"));
    for total in ["virt", "res", "shr", "data", "code", "swap", "pss", "uss", "peak_res"] {
        assert!(matches!(value(&report, "totals", total), CellValue::Bytes(_)), "{total}");
    }
    for key in ["quadrants.declared", "quadrants.effective"] {
        let quadrants = table(&report, key);
        let rows = ["private_anonymous", "shared_anonymous", "private_file", "shared_file"];
        assert_eq!(quadrants.row_keys.as_ref().unwrap(), &rows);
        assert_eq!(keys(quadrants), ["reserved", "resident", "pss", "swapped", "dirty"]);
    }
    let pools = keys(table(&report, "pools")).join(" ");
    assert_eq!(pools, "pool reserved resident pss swap mappings name");
    let mappings = keys(table(&report, "mappings")).join(" ");
    let expected = "start end mode offset name pool part quadrant rss pss swap anon_huge dirty";
    assert_eq!(mappings, expected);
}

#[test]
fn swapped_shared_memory_is_in_the_total_as_in_the_quadrants() {
    let segment = map(0x7100_0000_0000, 64 << 10, "rw-s", "/SYSV00000000 (deleted)");
    let heap = map(0x7200_0000_0000, 64 << 10, "rw-p", "[heap]");
    let mappings =
        vec![segment.using(&[(Swap, 60 << 10)]), heap.using(&[(Rss, 8), (Swap, 1 << 10)])];
    let mut swapped = snapshot(mappings);
    swapped.status.as_mut().unwrap().vm_swap = Ok(Bytes::mib(1));
    let report = explain(&swapped, &ALL);
    assert_eq!(value(&report, "totals", "swap"), CellValue::Bytes(61 << 20));
    assert_eq!(value(&report, "totals", "swap_private"), CellValue::Bytes(1 << 20));
    let shown = |report: &pagewise_model::Report| {
        let Some(ReportBlock::Facts(facts)) =
            report.blocks.iter().find(|b| matches!(b, ReportBlock::Facts(f) if f.key == "totals"))
        else {
            panic!("no totals")
        };
        let fact = facts.facts.iter().find(|fact| fact.key == "swap_private").unwrap();
        fact.audience
    };
    assert_eq!(shown(&report), Audience::Everyone, "the two differ");
    assert_eq!(shown(&explain(&process(), &ALL)), Audience::Long, "the two agree");

    // Page tables do not show swapped tmpfs pages.
    let why = Absent::NotCollected("ask for --full".into());
    let Ok(mappings) = &mut swapped.mappings else { panic!("built with mappings") };
    mappings[0] = map(0x7100_0000_0000, 64 << 10, "rw-s", "/SYSV00000000 (deleted)").pages(
        [0, 0],
        [0, 0],
        Ok(Bytes::ZERO),
    );
    std::sync::Arc::make_mut(mappings[0].pages.as_mut().unwrap()).swap = Err(why.clone());
    swapped.rollup = absent();
    let report = explain(&swapped, &ALL);
    assert_eq!(value(&report, "totals", "swap"), CellValue::Absent(why));
    assert_eq!(value(&report, "totals", "swap_private"), CellValue::Bytes(1 << 20));
}

#[test]
fn totals_are_those_of_statm_and_the_rollup() {
    let mut snapshot = process();
    rollup(&mut snapshot).set(Pss, 112 << 10);
    let report = explain(&snapshot, &ALL);
    assert_eq!(value(&report, "totals", "virt"), CellValue::Bytes(324 << 10));
    assert_eq!(value(&report, "totals", "res"), CellValue::Bytes(132 << 10));
    assert_eq!(value(&report, "totals", "pss"), CellValue::Bytes(112 << 10));
    assert_eq!(value(&report, "totals", "uss"), CellValue::Bytes(102 << 10));
    let share = (132 << 10) as f64 / Bytes::gib(16).0 as f64;
    assert_eq!(value(&report, "totals", "mem_share"), CellValue::Share(share));
}

#[test]
fn pools_add_up_to_the_rollup_to_the_byte() {
    let mut snapshot = process();
    let mappings = snapshot.mappings.as_mut().unwrap();
    mappings.insert(2, map(0x7000_0008_0000, 64, "r--p", "/lib/libz.so.1").file(0, 30, 10));
    mappings.insert(3, map(0x7000_0009_0000, 64, "r--p", "/usr/share/x").file(0, 30, 10));
    agree(&mut snapshot);
    let pss = rollup(&mut snapshot).get(Pss).unwrap() + 2048;
    rollup(&mut snapshot).set(Pss, pss);
    let report = explain(&snapshot, &ALL);
    let sum = |key| -> u64 {
        let number = |value| match value {
            CellValue::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        column(table(&report, "pools"), key).into_iter().map(number).sum()
    };
    assert_eq!(sum("pss"), pss);
    assert_eq!(sum("reserved"), snapshot.statm.as_ref().unwrap().size.0);
    assert_eq!(sum("resident"), snapshot.statm.as_ref().unwrap().resident.0);
}

#[test]
fn the_largest_mappings_have_a_name_even_where_the_kernel_gives_none() {
    let report = explain(&process(), &ALL);
    let largest = table(&report, "largest");
    assert_eq!(column(largest, "rss"), [50, 40, 30].map(|kib| CellValue::Bytes(kib << 10)));
    assert_eq!(
        column(largest, "name"),
        [name("[anonymous]"), name("[heap]"), name("/lib/libz.so.1")]
    );
}

#[test]
fn people_see_the_effective_quadrants_only_where_they_differ() {
    let shown = |snapshot| table(&explain(&snapshot, &ALL), "quadrants.effective").audience;
    assert_eq!(shown(process()), Audience::Everyone);
    let plain = vec![map(0x5555_0000_0000, 64, "rw-p", "[heap]").anonymous(40)];
    assert_eq!(shown(snapshot(plain)), Audience::Programs);
}

#[test]
fn many_pools_of_a_kind_share_a_row_for_people_but_not_for_programs() {
    let libraries =
        (1..=100).map(|i| map(i << 24, 64, "r-xp", &format!("/lib/lib{i}.so")).file(0, 4, 1));
    let report = explain(&snapshot(libraries.collect()), &ALL);
    let tables: Vec<&ReportTable> = report
        .blocks
        .iter()
        .filter_map(|block| match block {
            ReportBlock::Table(table) if table.key == "pools" => Some(table),
            _ => None,
        })
        .collect();
    assert_eq!(
        tables.iter().map(|t| t.audience).collect::<Vec<_>>(),
        [Audience::Programs, Audience::People]
    );
    assert_eq!(tables[0].rows(), 100);
    assert_eq!(tables[1].rows(), 6);
    assert_eq!(column(tables[1], "name")[0], name("and 95 more"));
    assert_eq!(column(tables[1], "resident")[0], CellValue::Bytes((95 * 4) << 10));
}

#[test]
fn sums_that_differ_from_the_rollup_are_torn_and_named() {
    let mut torn = process();
    rollup(&mut torn).set(Anonymous, 0);
    let report = explain(&torn, &ALL);
    assert_eq!(value(&report, "provenance", "torn"), CellValue::Flag(true));
    let counters = value(&report, "provenance", "torn_counters");
    assert_eq!(counters, CellValue::List(vec![CellValue::text("Anonymous")]));
    let whole = value(&explain(&process(), &ALL), "provenance", "torn");
    assert_eq!(whole, CellValue::Flag(false));
}

#[test]
fn a_share_that_rounding_cannot_explain_is_torn() {
    let torn = |more: u64| {
        let mut snapshot = process();
        let pss = rollup(&mut snapshot).get(Pss).unwrap();
        rollup(&mut snapshot).set(Pss, pss + more);
        value(&explain(&snapshot, &ALL), "provenance", "torn")
    };
    // One mapping holds co-mapped pages, so less than a KiB can be lost.
    assert_eq!(torn(0), CellValue::Flag(false));
    assert_eq!(torn(1 << 10), CellValue::Flag(true));
    assert_eq!(torn(1 << 20), CellValue::Flag(true));
}

#[test]
fn late_rss_counters_are_drift_in_bytes_and_not_torn() {
    let mut late = process();
    late.statm.as_mut().unwrap().resident = Bytes::kib(120);
    let report = explain(&late, &ALL);
    assert_eq!(value(&report, "provenance", "drift_res"), CellValue::Change(-12 << 10));
    assert_eq!(value(&report, "provenance", "torn"), CellValue::Flag(false));
    assert_eq!(value(&report, "totals", "res"), CellValue::Bytes(120 << 10), "as top shows it");
}

#[test]
fn mappings_that_came_or_went_are_torn_even_without_a_rollup() {
    let mut changed = process();
    changed.rollup = absent();
    assert!(matches!(value(&explain(&changed, &ALL), "provenance", "torn"), CellValue::Absent(_)));
    changed.statm.as_mut().unwrap().size += Bytes::kib(8);
    let report = explain(&changed, &ALL);
    assert_eq!(value(&report, "provenance", "torn"), CellValue::Flag(true));
    assert_eq!(value(&report, "provenance", "drift_virt"), CellValue::Change(8 << 10));
}

#[test]
fn a_process_that_may_not_be_read_says_so_and_keeps_what_is_known() {
    let denied = Absent::NotPermitted("CAP_SYS_PTRACE".into());
    let snapshot = Snapshot {
        mappings: Err(denied.clone()),
        rollup: Err(denied.clone()),
        walk: Err(denied.clone()),
        threads: Err(denied.clone()),
        ..process()
    };
    let report = explain(&snapshot, &ALL);
    assert_eq!(value(&report, "totals", "res"), CellValue::Bytes(132 << 10));
    assert_eq!(value(&report, "totals", "pss"), CellValue::Absent(denied.clone()));
    for key in ["quadrants", "pools", "mappings", "findings"] {
        assert_eq!(value(&report, "", key), CellValue::Absent(denied.clone()));
    }
    assert!(texts(&report).contains("CAP_SYS_PTRACE"));
}

#[test]
fn kernel_threads_and_zombies_are_explained_not_blamed() {
    let mut kernel = Snapshot { mappings: Ok(Vec::new()), ..process() };
    kernel.process.kernel_thread = true;
    assert!(texts(&explain(&kernel, &ALL)).contains("kernel thread"));
    kernel.process.kernel_thread = false;
    kernel.process.state = 'Z';
    kernel.mappings = absent();
    let texts = texts(&explain(&kernel, &ALL));
    assert!(texts.contains("has ended") && !texts.contains("cannot be shown"), "{texts}");
}

#[test]
fn the_address_map_splits_where_holes_are_too_wide_to_draw() {
    let report = explain(&process(), &ALL);
    let map = report.blocks.iter().find_map(|block| match block {
        ReportBlock::AddressMap(map) => Some(map),
        _ => None,
    });
    let clusters = &map.expect("asked for").clusters;
    let sizes: Vec<usize> = clusters.iter().map(|cluster| cluster.cells.len()).collect();
    assert_eq!(sizes, [1, 2, 1]);
    assert_eq!(clusters[0].cells[0].pool, "heap");
    assert_eq!(clusters[0].cells[0].filled, Ok(40.0 / 64.0));
}
