//! The working set of an interval: referenced bytes by mapping.

use pagewise_model::page_map::TouchedMemory;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Paragraph, Report, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::{Bytes, Mapping, Reading, SmapsCounter};

use super::{SCHEMA, name};
use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning, who};

/// Memory that a process used in an interval, as a report: facts `process`, `interval` and `total`,
/// table `mappings`.
pub fn touched(touched: &TouchedMemory) -> Report {
    let total = |counter| -> Reading<Bytes> {
        touched.mappings.iter().map(|mapping| mapping.counter(counter)).sum()
    };
    let (resident, referenced) = (total(SmapsCounter::Rss), total(SmapsCounter::Referenced));
    let written = touched.written.clone().map(|written| written.into_iter().sum());
    let interval = vec![
        fact("interval_ns", "interval", CellValue::Nanos(touched.interval_ns), ""),
        fact(
            "clear_ns",
            "time to clear",
            CellValue::Nanos(touched.clear_ns),
            "The process could not map memory for so long, and every CPU it runs on flushed its TLB.",
        ),
        fact(
            "read_ns",
            "time to read",
            CellValue::Nanos(touched.read_ns),
            "It could not map memory while one of its mappings was read.",
        ),
    ];
    let totals = vec![
        fact("resident", "Resident", CellValue::bytes(resident), meaning("resident")),
        fact("touched", "Touched", CellValue::bytes(referenced), meaning("touched")),
        fact("written", "Written", CellValue::bytes(written), meaning("written")),
    ];
    Report {
        schema: SCHEMA,
        title: who::title_of("Touched memory", &touched.process, ""),
        blocks: vec![
            ReportBlock::Facts(who::process(&touched.process)),
            ReportBlock::Facts(facts_of("interval", "Reading", FactsShape::Line, interval)),
            ReportBlock::Facts(facts_of("total", "Total", FactsShape::Columns, totals)),
            ReportBlock::Table(mappings(touched)),
            ReportBlock::Text(Paragraph {
                title: "".into(),
                pieces: remarks(touched),
                audience: Audience::People,
            }),
        ],
    }
}

/// Remarks that are needed to read the numbers correctly.
fn remarks(touched: &TouchedMemory) -> Vec<CellValue> {
    let mut pieces = vec![CellValue::text(
        "The referenced bits were cleared at the start (clear_refs), so the kernel takes what was not \
         touched since for unused, and reclaims it first when memory is short.",
    )];
    let huge: Bytes = touched.mappings.iter().filter_map(|it| it.anon_huge().ok()).sum();
    if huge > Bytes::ZERO {
        pieces.extend([
            CellValue::text(" "),
            CellValue::Bytes(huge.0),
            CellValue::text(
                " are in huge pages, which have one referenced bit each: a huge page counts as touched as a whole \
                 if one byte of it was.",
            ),
        ]);
    }
    pieces
}

/// The mappings that were touched, the most touched first.
fn mappings(touched: &TouchedMemory) -> ReportTable {
    let bytes = |mapping: &Mapping| mapping.counter(SmapsCounter::Referenced);
    let mut rows: Vec<usize> = (0..touched.mappings.len())
        .filter(|&row| bytes(&touched.mappings[row]) != Ok(Bytes::ZERO))
        .collect();
    rows.sort_by_key(|&row| std::cmp::Reverse(bytes(&touched.mappings[row]).unwrap_or_default()));
    let each = || rows.iter().map(|&row| &touched.mappings[row]);
    let share = |mapping: &Mapping| -> Reading<CellValue> {
        Ok(bytes(mapping)?.fraction_of(mapping.rss()?).map_or(CellValue::None, CellValue::Share))
    };
    let written = |&row: &usize| touched.written.as_ref().map_err(Clone::clone).map(|all| all[row]);
    let written = TableColumn::bytes("written", "Written", rows.iter().map(written));
    let names = each().map(name).collect();
    let columns = vec![
        TableColumn::new(
            "start",
            "Address",
            ColumnCells::Addresses(each().map(|m| m.range.start).collect()),
        ),
        for_programs(TableColumn::new(
            "end",
            "End",
            ColumnCells::Addresses(each().map(|m| m.range.end).collect()),
        )),
        TableColumn::new("size", "Size", ColumnCells::Bytes(each().map(|m| m.size().0).collect())),
        TableColumn::bytes("rss", "RSS", each().map(Mapping::rss)),
        TableColumn::bytes("touched", "Touched", each().map(bytes)),
        TableColumn::new(
            "share",
            "share of RSS",
            ColumnCells::Values(
                each().map(|m| share(m).unwrap_or_else(CellValue::Absent)).collect(),
            ),
        ),
        if touched.written.is_ok() { written } else { for_programs(written) },
        TableColumn::new("name", "Mapping", ColumnCells::Names(names)),
    ];
    table("mappings", "Touched mappings", Audience::Everyone, columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{mapping, snapshot, with_smaps};

    fn remark_on(counters: &[(SmapsCounter, u64)]) -> String {
        let mapped = with_smaps(mapping("10000000-10400000 rw-p 0 0"), counters, "");
        let process = snapshot(Vec::new()).process;
        let written = Err(pagewise_model::Absent::NotSupported("a sample".into()));
        let mappings = vec![mapped];
        let (interval_ns, clear_ns, read_ns) = (1, 1, 1);
        let touched = TouchedMemory { process, mappings, interval_ns, clear_ns, read_ns, written };
        format!("{:?}", remarks(&touched))
    }

    #[test]
    fn a_huge_page_is_said_to_count_as_a_whole() {
        let huge = remark_on(&[(SmapsCounter::AnonHugePages, 2 << 20)]);
        assert!(huge.contains("a huge page counts as touched as a whole"), "{huge}");
        assert!(huge.contains(&(2 << 20).to_string()), "{huge}");
        let small = remark_on(&[(SmapsCounter::AnonHugePages, 0)]);
        assert!(!small.contains("huge page"), "{small}");
    }
}
