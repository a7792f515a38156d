//! Tests of plans and verdicts for synthetic huge pages.

use pagewise_model::report::{ReportBlock, Severity};
use pagewise_model::thp::{HugeMapping, HugePage, HugePageLook, HugePages};
use pagewise_model::{AddrRange, Bytes, Name, SmapsCounter};

use super::*;
use crate::sample::{resident, snapshot, with_smaps};

const HUGE: u64 = 2 << 20;
const BASE: Bytes = Bytes::kib(4);

/// Returns a mapping at 1 GiB; `zeros` are the numbers of zero-filled base pages in its huge pages.
fn mapping(zeros: &[u32]) -> HugeMapping {
    let start = 1 << 30;
    let pages = (0_u64..).zip(zeros).map(|(i, &zero)| HugePage { start: start + i * HUGE, zero });
    let bytes = zeros.len() as u64 * HUGE;
    HugeMapping {
        range: AddrRange { start, end: start + bytes },
        name: Name::default(),
        anonymous: Bytes(bytes),
        file: Bytes::ZERO,
        read: bytes / BASE.0,
        zero: zeros.iter().map(|&zero| u64::from(zero)).sum(),
        pages: pages.collect(),
    }
}

fn huge(mappings: Vec<HugeMapping>) -> HugePages {
    HugePages {
        huge_size: Bytes(HUGE),
        mappings,
        sizes: Ok(Vec::new()),
        look: HugePageLook::Exact,
        read: Bytes::ZERO,
        took_ns: 0,
        longest_hold_ns: 0,
        gaps: Vec::new(),
    }
}

fn report(huge: HugePages) -> Report {
    let bytes: Bytes = huge.mappings.iter().map(|m| m.range.len()).sum();
    let line = format!("{:x}-{:x} rw-p 0 0", 1 << 30, (1 << 30) + bytes.0);
    thp(&snapshot(vec![resident(&line, bytes.0)]), &Ok(huge))
}

fn severity(report: &Report) -> Option<Severity> {
    report.blocks.iter().find_map(|block| match block {
        ReportBlock::Findings(findings) => findings.list.first().map(|finding| finding.severity),
        _ => None,
    })
}

fn report_text(report: &Report) -> String {
    let pieces = |block: &ReportBlock| match block {
        ReportBlock::Text(text) => Some(text.pieces.clone()),
        _ => None,
    };
    let pieces = report.blocks.iter().filter_map(pieces).flatten();
    pieces
        .map(|piece| match piece {
            CellValue::Text(text) => text.into_owned(),
            CellValue::Bytes(bytes) => bytes.to_string(),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn sparse_dense_and_absent_huge_pages_are_distinguished() {
    let sparse = report(huge(vec![mapping(&[511; 16])]));
    assert_eq!(severity(&sparse), Some(Severity::Warning));
    assert!(report_text(&sparse).contains("touched sparsely"));
    let partly = report(huge(vec![mapping(&[150; 16])]));
    assert_eq!(severity(&partly), Some(Severity::Note));
    assert!(report_text(&partly).contains("partly used"));
    let dense = report(huge(vec![mapping(&[2; 16])]));
    assert_eq!(severity(&dense), None);
    assert!(report_text(&dense).contains("well used"));
    let none = report(huge(Vec::new()));
    assert_eq!(severity(&none), None);
    assert!(report_text(&none).contains("no huge page of "));
}

#[test]
fn a_little_bloat_is_not_reported() {
    assert_eq!(severity(&report(huge(vec![mapping(&[511])]))), None);
}

#[test]
fn unreadable_huge_pages_are_absent_and_not_zero() {
    let why = Absent::NotInThisKernel("6.7".into());
    let report = thp(&snapshot(Vec::new()), &Err(why.clone()));
    let has = |block: &ReportBlock| match block {
        ReportBlock::Facts(facts) => facts
            .facts
            .iter()
            .any(|fact| fact.key == "total" && fact.value == CellValue::Absent(why.clone())),
        _ => false,
    };
    assert!(report.blocks.iter().any(has));
    assert!(report_text(&report).contains("cannot be examined"));
}

#[test]
fn without_read_pages_the_estimate_is_absent() {
    let unread = HugeMapping { read: 0, zero: 0, pages: Vec::new(), ..mapping(&[0; 4]) };
    assert!(ZeroEstimate::over([&unread].into_iter(), Bytes(HUGE)).is_err());
    let sampled = HugeMapping { read: 100, zero: 50, pages: Vec::new(), ..mapping(&[0; 4]) };
    let estimate = ZeroEstimate::over([&sampled].into_iter(), Bytes(HUGE)).unwrap();
    assert_eq!(estimate.bytes, Bytes(2 * HUGE));
    assert!(estimate.low < estimate.bytes && estimate.bytes < estimate.high);
    let exact = ZeroEstimate::over([&mapping(&[256; 4])].into_iter(), Bytes(HUGE)).unwrap();
    assert_eq!((exact.low, exact.high), (exact.bytes, exact.bytes));
}

#[test]
fn only_sparse_pages_are_planned_for_and_dense_ones_spared() {
    let found = huge(vec![mapping(&[511, 0, 256, 255])]);
    let plan = shrink(&found, BASE, 0.5, false);
    let starts: Vec<u64> = plan.ranges.iter().map(|range| range.start).collect();
    assert_eq!(starts, [1 << 30, (1 << 30) + 2 * HUGE]);
    assert_eq!(plan.change, Ok(Bytes((511 + 256) * BASE.0)));
    assert_eq!(plan.spared, Bytes(2 * HUGE));
    assert!(plan.hold.is_empty());
    // A huge page without zero-filled base pages is not sparse, even if `sparse` is 0.
    assert!(shrink(&huge(vec![mapping(&[0; 4])]), BASE, 0.0, true).ranges.is_empty());
}

#[test]
fn only_anonymous_mappings_without_a_reference_are_paged_out() {
    let mapping = |line: &str, referenced: u64, anonymous: u64, locked: u64| {
        let counters = [
            (SmapsCounter::Referenced, referenced),
            (SmapsCounter::Anonymous, anonymous),
            (SmapsCounter::Locked, locked),
        ];
        with_smaps(crate::sample::mapping(line), &counters, "")
    };
    let plan = page_out(&[
        mapping("1000-9000 rw-p 0 0", 0, 0x3000, 0),
        mapping("a000-b000 rw-p 0 0", 0x1000, 0x1000, 0),
        mapping("c000-d000 rw-p 0 0", 0, 0x1000, 0x1000),
        mapping("e000-f000 rw-p 0 0", 0, 0, 0),
        mapping("10000-11000 r--p 0 7 /usr/bin/x", 0, 0x1000, 0),
    ])
    .unwrap();
    assert_eq!(plan.ranges, [AddrRange { start: 0x1000, end: 0x9000 }]);
    assert_eq!((plan.change, plan.spared), (Ok(Bytes(0x3000)), Bytes(0x2000)));
    assert!(page_out(&[crate::sample::mapping("1000-2000 rw-p 0 0")]).is_err());
}

#[test]
fn hold_takes_a_whole_mapping_only_where_most_of_it_is_sparse() {
    let most = shrink(&huge(vec![mapping(&[511, 511, 0])]), BASE, 0.5, true);
    assert_eq!(most.hold, [mapping(&[0; 3]).range]);
    let few = shrink(&huge(vec![mapping(&[0, 511, 511, 0, 0, 0, 511])]), BASE, 0.5, true);
    let at = |from: u64, to: u64| AddrRange {
        start: (1 << 30) + from * HUGE,
        end: (1 << 30) + to * HUGE,
    };
    assert_eq!(few.hold, [at(1, 3), at(6, 7)]);
}
