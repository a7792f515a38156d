//! How large blocks are, and how long they live: cells of powers of two.

use pagewise_model::heap::Recording;
use pagewise_model::report::{Audience, Block, Cells, Column, Table, Value};

use super::{real, share, table};
use crate::blocks::for_programs;

/// The two histograms; none of what was not measured.
pub(super) fn all(recording: &Recording) -> Vec<Block> {
    let sizes = Histogram {
        key: "sizes",
        title: "Sizes of allocations",
        cells: &recording.sizes,
        value: Value::Bytes,
        counted: ("allocations", "ALLOCATIONS"),
    };
    let mut blocks: Vec<Block> = sizes.tables("".into()).map(Block::Table).into();
    if recording.lifetimes_every > 0 {
        let lifetimes = Histogram {
            key: "lifetimes",
            title: "Lifetimes of freed blocks",
            cells: &recording.lifetimes,
            value: Value::Nanos,
            counted: ("blocks", "BLOCKS"),
        };
        let measured = match recording.lifetimes_every {
            1 => "Measured of each block.".to_owned(),
            every => format!("Measured of 1 in {every} allocations, of those that were freed."),
        };
        blocks.extend(lifetimes.tables(measured).map(Block::Table));
    }
    blocks
}

struct Histogram<'a> {
    key: &'static str,
    title: &'static str,
    cells: &'a [u64],
    value: fn(u64) -> Value,
    counted: (&'static str, &'static str),
}

/// The least and the most that is in a cell: cell 0 is of 0, cell *n* of 2^(n-1) .. 2^n - 1.
fn ends(cell: usize) -> (u64, u64) {
    let power = |n: usize| u32::try_from(n).ok().and_then(|n| 1_u64.checked_shl(n));
    match cell.checked_sub(1) {
        None => (0, 0),
        Some(low) => (power(low).unwrap_or(u64::MAX), power(cell).map_or(u64::MAX, |end| end - 1)),
    }
}

/// Cells from one to another, and how many are in them.
type Row = (usize, usize, u64);

impl Histogram<'_> {
    /// From the first cell that is used to the last.
    fn rows(&self) -> Vec<Row> {
        let is_used = |count: &u64| *count > 0;
        let range = self.cells.iter().position(is_used).zip(self.cells.iter().rposition(is_used));
        range.map_or_else(Vec::new, |(a, b)| (a..=b).map(|at| (at, at, self.cells[at])).collect())
    }

    /// All cells for programs; for people those that are empty together.
    fn tables(&self, note: String) -> [Table; 2] {
        let all = self.rows();
        let mut folded: Vec<Row> = Vec::new();
        for row in &all {
            match folded.last_mut() {
                Some(last) if last.2 == 0 && row.2 == 0 => last.1 = row.1,
                _ => folded.push(*row),
            }
        }
        let people = if all.is_empty() { Audience::Programs } else { Audience::People };
        let programs = self.table(&all, Audience::Programs);
        [Table { note: note.into(), ..self.table(&folded, people) }, programs]
    }

    fn table(&self, rows: &[Row], audience: Audience) -> Table {
        let all = self.cells.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let most = self.cells.iter().copied().max().unwrap_or(0);
        let end = |pick: &dyn Fn(&Row) -> u64| {
            Cells::Values(rows.iter().map(|row| (self.value)(pick(row))).collect())
        };
        let bar = |row: &Row| match most {
            0 => Value::None,
            most => Value::Bar(real(row.2) / real(most)),
        };
        let columns = vec![
            Column::new("from", "FROM", end(&|row| ends(row.0).0)),
            Column::new("to", "TO", end(&|row| ends(row.1).1)),
            Column::new(
                self.counted.0,
                self.counted.1,
                Cells::Counts(rows.iter().map(|row| row.2).collect()),
            ),
            for_programs(Column::new(
                "share",
                "SHARE",
                Cells::Values(rows.iter().map(|row| share(row.2, all)).collect()),
            )),
            Column {
                audience: Audience::People,
                ..Column::new("bar", "", Cells::Values(rows.iter().map(bar).collect()))
            },
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
