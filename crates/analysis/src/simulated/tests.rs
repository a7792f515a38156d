//! Reports of simulations whose numbers are made up.

use pagewise_model::report::{Block, Facts, Report, Table, Value};
use pagewise_model::simulated::{
    Cache, CacheRun, Cpu, NextPage, Replacement, ReplacementRun, Simulation, Split, Stream,
    TlbLevel, TlbRun, Translation,
};
use pagewise_model::{Absent, Bytes};

use super::*;

fn absent() -> Absent {
    Absent::NotSupported("nobody said".into())
}

fn stream() -> Stream {
    Stream {
        subject: "true".into(),
        accesses: Split { reads: 900, writes: 100 },
        unknown_lines: 0,
        cut_off: false,
    }
}

fn run(walks: u64) -> TlbRun {
    TlbRun {
        first: TlbLevel { entries: 64, ways: 4 },
        second: Ok(TlbLevel { entries: 1536, ways: 6 }),
        dtlb: Split { reads: 200, writes: 50 },
        stlb: Split { reads: walks, writes: 1 },
        prefetcher: Some((NextPage { after: 3, share: 0.84 }, 7)),
    }
}

fn simulation() -> Simulation {
    let level = |size| Cache { size: Bytes::kib(size), ways: 8, line: Bytes(64) };
    let caches = |policy: &str| CacheRun {
        policy: policy.to_owned(),
        l1d: Split { reads: 30, writes: 20 },
        l2: Err(absent()),
    };
    Simulation {
        stream: stream(),
        cpu: Cpu {
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

fn kept() -> Replacement {
    let run = |policy: &str, reads| ReplacementRun {
        policy: policy.to_owned(),
        back: Split { reads, writes: 0 },
        written: 3,
    };
    Replacement {
        stream: Stream { cut_off: true, ..stream() },
        memory: Bytes::mib(1),
        page: Bytes::kib(4),
        pages: 300,
        policies: vec![run("LRU", 20), run("clock", 30)],
    }
}

fn reports() -> [Report; 3] {
    [tlb(&simulation()), cache(&simulation()), pages_kept(&kept())]
}

fn table_of(report: &Report) -> &Table {
    let tables = report.blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        _ => None,
    });
    tables.into_iter().next().unwrap()
}

fn cell(report: &Report, key: &str, row: usize) -> Value {
    table_of(report).columns.iter().find(|column| column.key == key).unwrap().value(row)
}

fn facts_under<'a>(report: &'a Report, key: &str) -> &'a Facts {
    let found = report.blocks.iter().find_map(|block| match block {
        Block::Facts(facts) if facts.key == key => Some(facts),
        _ => None,
    });
    found.unwrap()
}

fn fact_of(report: &Report, key: &str) -> Value {
    facts_under(report, "").facts.iter().find(|fact| fact.key == key).unwrap().value.clone()
}

#[test]
fn every_report_says_that_it_is_simulated() {
    for report in reports() {
        assert!(matches!(&report.title[0], Value::Text(text) if text.starts_with("Simulated ")));
        assert_eq!(fact_of(&report, "simulated"), Value::Flag(true));
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
            assert_eq!(fact_of(report, key), Value::Count(count), "{key}");
        }
        assert_eq!(fact_of(report, "stlb_misses"), Value::Count(41));
        assert_eq!(fact_of(report, "l2_misses"), Value::Absent(absent()));
    }
}

#[test]
fn a_tlb_that_is_not_known_has_no_misses_rather_than_none() {
    let report = tlb(&simulation());
    for key in ["dtlb_misses", "stlb_misses", "dtlb_entries", "dtlb_miss_rate"] {
        assert_eq!(cell(&report, key, 1), Value::Absent(absent()), "{key}");
    }
    assert_eq!(cell(&report, "stlb_misses", 0), Value::Count(41));
    assert_eq!(cell(&report, "dtlb_miss_rate", 0), Value::Share(0.25));
}

#[test]
fn refaults_are_compared_with_those_of_lru() {
    let report = pages_kept(&kept());
    assert_eq!(cell(&report, "times_lru", 1), Value::Number(1.5));
    let none = Replacement {
        policies: vec![ReplacementRun { back: Split::default(), ..kept().policies[0].clone() }],
        ..kept()
    };
    assert_eq!(cell(&pages_kept(&none), "times_lru", 0), Value::None);
}

#[test]
fn what_was_cut_off_is_said() {
    let says = |report: &Report| {
        report.blocks.iter().any(|block| match block {
            Block::Text(text) => {
                matches!(&text.pieces[0], Value::Text(text) if text.starts_with("Cut off"))
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
