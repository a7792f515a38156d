//! Reports of simulations whose numbers are made up.

use pagewise_model::report::{CellValue, NamedFacts, Report, ReportBlock, ReportTable};
use pagewise_model::simulated::{
    AccessSplit, AccessStream, CacheResult, CacheRun, NextPageResult, ReplacementResult,
    ReplacementRun, SimulatedCpu, Simulation, TlbResult, TlbRun, Translation,
};
use pagewise_model::{Absent, Bytes};

use super::*;

fn absent() -> Absent {
    Absent::NotSupported("nobody said".into())
}

fn stream() -> AccessStream {
    AccessStream {
        subject: "true".into(),
        accesses: AccessSplit { reads: 900, writes: 100 },
        unknown_lines: 0,
        cut_off: false,
    }
}

fn run(walks: u64) -> TlbRun {
    TlbRun {
        first: TlbResult { entries: 64, ways: 4 },
        second: Ok(TlbResult { entries: 1536, ways: 6 }),
        dtlb: AccessSplit { reads: 200, writes: 50 },
        stlb: AccessSplit { reads: walks, writes: 1 },
        prefetcher: Some((NextPageResult { after: 3, share: 0.84 }, 7)),
    }
}

fn simulation() -> Simulation {
    let level = |size| CacheResult { size: Bytes::kib(size), ways: 8, line: Bytes(64) };
    let caches = |policy: &str| CacheRun {
        policy: policy.to_owned(),
        l1d: AccessSplit { reads: 30, writes: 20 },
        l2: Err(absent()),
    };
    Simulation {
        stream: stream(),
        cpu: SimulatedCpu {
            name: "i7-6800K".to_owned(),
            policy: "LRU".to_owned(),
            l1d: level(32),
            l2: Err(absent()),
        },
        caches: vec![caches("LRU"), caches("FIFO")],
        translations: vec![
            Translation { page: Bytes::kib(4), tlb: Ok(run(40)) },
            Translation { page: Bytes::mib(2), tlb: Err(absent()) },
        ],
    }
}

fn kept() -> ReplacementResult {
    let run = |policy: &str, reads| ReplacementRun {
        policy: policy.to_owned(),
        back: AccessSplit { reads, writes: 0 },
        written: 3,
    };
    ReplacementResult {
        stream: AccessStream { cut_off: true, ..stream() },
        memory: Bytes::mib(1),
        page: Bytes::kib(4),
        pages: 300,
        policies: vec![run("LRU", 20), run("clock", 30)],
    }
}

fn reports() -> [Report; 3] {
    [tlb(&simulation()), cache(&simulation()), pages_kept(&kept())]
}

fn table_of(report: &Report) -> &ReportTable {
    let tables = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Table(table) => Some(table),
        _ => None,
    });
    tables.into_iter().next().unwrap()
}

fn cell(report: &Report, key: &str, row: usize) -> CellValue {
    table_of(report).columns.iter().find(|column| column.key == key).unwrap().value(row)
}

fn facts_under<'a>(report: &'a Report, key: &str) -> &'a NamedFacts {
    let found = report.blocks.iter().find_map(|block| match block {
        ReportBlock::Facts(facts) if facts.key == key => Some(facts),
        _ => None,
    });
    found.unwrap()
}

fn fact_of(report: &Report, key: &str) -> CellValue {
    facts_under(report, "").facts.iter().find(|fact| fact.key == key).unwrap().value.clone()
}

#[test]
fn every_report_says_that_it_is_simulated() {
    for report in reports() {
        assert!(
            matches!(&report.title[0], CellValue::Text(text) if text.starts_with("Simulated "))
        );
        assert_eq!(fact_of(&report, "simulated"), CellValue::Flag(true));
        let assumes = |fact: &&Fact| fact.key == "assumes";
        let model = facts_under(&report, "model");
        assert!(model.facts.iter().find(assumes).is_some(), "{model:?}");
    }
}

#[test]
fn the_headline_is_of_the_smallest_pages_and_the_first_policy() {
    for report in &reports()[..2] {
        let expected = [("accesses", 1000), ("l1d_misses", 50), ("dtlb_misses", 250)];
        for (key, count) in expected {
            assert_eq!(fact_of(report, key), CellValue::Count(count), "{key}");
        }
        assert_eq!(fact_of(report, "stlb_misses"), CellValue::Count(41));
        assert_eq!(fact_of(report, "l2_misses"), CellValue::Absent(absent()));
    }
}

#[test]
fn a_tlb_that_is_not_known_has_absent_misses_and_not_0() {
    let report = tlb(&simulation());
    for key in ["dtlb_misses", "stlb_misses", "dtlb_entries", "dtlb_miss_rate"] {
        assert_eq!(cell(&report, key, 1), CellValue::Absent(absent()), "{key}");
    }
    assert_eq!(cell(&report, "stlb_misses", 0), CellValue::Count(41));
    assert_eq!(cell(&report, "dtlb_miss_rate", 0), CellValue::Share(0.25));
}

#[test]
fn refaults_are_compared_with_those_of_lru() {
    let report = pages_kept(&kept());
    assert_eq!(cell(&report, "times_lru", 1), CellValue::Number(1.5));
    let none = ReplacementResult {
        policies: vec![ReplacementRun {
            back: AccessSplit::default(),
            ..kept().policies[0].clone()
        }],
        ..kept()
    };
    assert_eq!(cell(&pages_kept(&none), "times_lru", 0), CellValue::None);
}

#[test]
fn a_truncated_trace_is_reported() {
    let says = |report: &Report| {
        report.blocks.iter().any(|block| match block {
            ReportBlock::Text(text) => {
                matches!(&text.pieces[0], CellValue::Text(text) if text.starts_with("Cut off"))
            }
            _ => false,
        })
    };
    assert_eq!(reports().each_ref().map(says), [false, false, true]);
}

#[test]
fn every_column_is_defined() {
    for report in reports() {
        for column in &table_of(&report).columns {
            assert!(crate::define::define(&column.key).is_some(), "{}", column.key);
        }
    }
}
