//! Histograms of block sizes and lifetimes: cells of powers of two.

use pagewise_model::heap::HeapRecording;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, ReportBlock, ReportTable, TableColumn,
};

use super::table;
use crate::blocks::{for_people, for_programs};
use crate::cells::{float, share};

/// The histogram of sizes, and that of lifetimes if they were measured.
pub(super) fn all(recording: &HeapRecording) -> Vec<ReportBlock> {
    let sizes = HeapHistogram {
        key: "sizes",
        title: "Sizes of allocations",
        cells: &recording.sizes,
        value: CellValue::Bytes,
        counted: ("allocations", "ALLOCATIONS"),
    };
    let mut blocks: Vec<ReportBlock> = sizes.tables("".into()).map(ReportBlock::Table).into();
    if recording.lifetimes_every > 0 {
        let lifetimes = HeapHistogram {
            key: "lifetimes",
            title: "Lifetimes of freed blocks",
            cells: &recording.lifetimes,
            value: CellValue::Nanos,
            counted: ("blocks", "BLOCKS"),
        };
        let measured = match recording.lifetimes_every {
            1 => "Measured of each block.".to_owned(),
            every => format!("Measured of 1 in {every} allocations, of those that were freed."),
        };
        blocks.extend(lifetimes.tables(measured).map(ReportBlock::Table));
    }
    blocks
}

struct HeapHistogram<'a> {
    key: &'static str,
    title: &'static str,
    cells: &'a [u64],
    value: fn(u64) -> CellValue,
    counted: (&'static str, &'static str),
}

/// Minimum and maximum value of a cell: cell 0 is for 0, cell *n* for 2^(n-1) to 2^n - 1.
fn ends(cell: usize) -> (u64, u64) {
    let power = |n: usize| u32::try_from(n).ok().and_then(|n| 1_u64.checked_shl(n));
    match cell.checked_sub(1) {
        None => (0, 0),
        Some(low) => (power(low).unwrap_or(u64::MAX), power(cell).map_or(u64::MAX, |end| end - 1)),
    }
}

/// First and last cell, and the number of values in them.
type CellRange = (usize, usize, u64);

impl HeapHistogram<'_> {
    /// From the first cell that is used to the last.
    fn rows(&self) -> Vec<CellRange> {
        let is_used = |count: &u64| *count > 0;
        let range = self.cells.iter().position(is_used).zip(self.cells.iter().rposition(is_used));
        range.map_or_else(Vec::new, |(a, b)| (a..=b).map(|at| (at, at, self.cells[at])).collect())
    }

    /// All cells for programs; for people, adjacent empty cells share a row.
    fn tables(&self, note: String) -> [ReportTable; 2] {
        let all = self.rows();
        let mut folded: Vec<CellRange> = Vec::new();
        for row in &all {
            match folded.last_mut() {
                Some(last) if last.2 == 0 && row.2 == 0 => last.1 = row.1,
                _ => folded.push(*row),
            }
        }
        let people = if all.is_empty() { Audience::Programs } else { Audience::People };
        let programs = self.table(&all, Audience::Programs);
        [ReportTable { note: note.into(), ..self.table(&folded, people) }, programs]
    }

    fn table(&self, rows: &[CellRange], audience: Audience) -> ReportTable {
        let all = self.cells.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let most = self.cells.iter().copied().max().unwrap_or(0);
        let end = |pick: &dyn Fn(&CellRange) -> u64| {
            ColumnCells::Values(rows.iter().map(|row| (self.value)(pick(row))).collect())
        };
        let bar = |row: &CellRange| match most {
            0 => CellValue::None,
            most => CellValue::Bar(float(row.2) / float(most)),
        };
        let columns = vec![
            TableColumn::new("from", "FROM", end(&|row| ends(row.0).0)),
            TableColumn::new("to", "TO", end(&|row| ends(row.1).1)),
            TableColumn::new(
                self.counted.0,
                self.counted.1,
                ColumnCells::Counts(rows.iter().map(|row| row.2).collect()),
            ),
            for_programs(TableColumn::new(
                "share",
                "SHARE",
                ColumnCells::Values(rows.iter().map(|row| share(row.2, all)).collect()),
            )),
            for_people(TableColumn::new(
                "bar",
                "",
                ColumnCells::Values(rows.iter().map(bar).collect()),
            )),
        ];
        table(self.key, self.title, audience, columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_of_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 11].map(ends), [(0, 0), (1, 1), (2, 3), (4, 7), (1024, 2047)]);
        assert_eq!(ends(64), (1 << 63, u64::MAX));
        assert_eq!(ends(usize::MAX), (u64::MAX, u64::MAX));
    }
}
