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
    let mut blocks = vec![Block::Table(sizes.table())];
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
        blocks.push(Block::Table(Table { note: measured.into(), ..lifetimes.table() }));
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

impl Histogram<'_> {
    fn table(&self) -> Table {
        let used: Vec<(usize, u64)> =
            self.cells.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
        // Cells between two that are used show that nothing is there.
        let range = used.first().zip(used.last()).map_or(0..0, |(a, b)| a.0..b.0 + 1);
        let rows: Vec<(usize, u64)> = range.map(|at| (at, self.cells[at])).collect();
        let all = used.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let most = used.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let end = |pick: fn((u64, u64)) -> u64| {
            Cells::Values(rows.iter().map(|(at, _)| (self.value)(pick(ends(*at)))).collect())
        };
        let bar = |(_, count): &(usize, u64)| match most {
            0 => Value::None,
            most => Value::Bar(real(*count) / real(most)),
        };
        let columns = vec![
            Column::new("from", "FROM", end(|it| it.0)),
            Column::new("to", "TO", end(|it| it.1)),
            Column::new(
                self.counted.0,
                self.counted.1,
                Cells::Counts(rows.iter().map(|(_, count)| *count).collect()),
            ),
            for_programs(Column::new(
                "share",
                "SHARE",
                Cells::Values(rows.iter().map(|(_, count)| share(*count, all)).collect()),
            )),
            Column {
                audience: Audience::People,
                ..Column::new("bar", "", Cells::Values(rows.iter().map(bar).collect()))
            },
        ];
        let audience = if rows.is_empty() { Audience::Programs } else { Audience::Everyone };
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
