//! Histogram of durations from nanoseconds to centuries, with 64 cells for each power of two: the
//! error of a duration is at most 1.6 %. Memory is used only for the cells from the first to the
//! last nonempty one, unless [`TimeHistogram::ready`] created the histogram.

use serde::{Deserialize, Serialize};

/// Binary logarithm of the number of cells for each power of two. The width of a cell is at most
/// 1/64 of the durations in the cell.
const BITS: u32 = 6;
/// Number of cells for all 64-bit durations.
const CELLS: usize = ((u64::BITS - BITS) as usize + 1) << BITS;

/// Histogram of durations in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeHistogram {
    /// Index of the first stored cell among all cells; `cells` begins with this cell.
    first: usize,
    cells: Vec<u64>,
    all: u64,
    sum: u64,
    longest: u64,
}

impl TimeHistogram {
    /// Creates an empty histogram with all cells in resident memory, so that
    /// [`TimeHistogram::note`] takes some nanoseconds and causes no page fault.
    pub fn ready() -> TimeHistogram {
        // Zero-filled memory from the allocator may not be resident, so the cells are filled with 1
        // first.
        let mut cells = vec![1; CELLS];
        cells.fill(0);
        TimeHistogram { cells, ..TimeHistogram::default() }
    }

    /// Records a duration.
    pub fn note(&mut self, time: u64) {
        let cell = cell(time);
        if self.cells.is_empty() {
            self.first = cell;
        }
        if cell < self.first {
            let more = self.first - cell;
            self.cells.splice(0..0, std::iter::repeat_n(0, more));
            self.first = cell;
        }
        let at = cell - self.first;
        if at >= self.cells.len() {
            self.cells.resize(at + 1, 0);
        }
        self.cells[at] += 1;
        self.all += 1;
        self.sum = self.sum.saturating_add(time);
        self.longest = self.longest.max(time);
    }

    /// Number of recorded durations.
    pub fn count(&self) -> u64 {
        self.all
    }

    /// Sum of all durations.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The longest duration.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Quantile: the upper bound of the cell up to which `share` of all durations lie, but at most
    /// the longest duration. `None` if the histogram is empty.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share of more than 2^53 times is as good as one of 2^53"
    )]
    pub fn percentile(&self, share: f64) -> Option<u64> {
        let wanted = share * self.all as f64;
        let mut seen = 0_u64;
        let at = self.cells.iter().position(|times| {
            seen = times.saturating_add(seen);
            seen > 0 && seen as f64 >= wanted
        })?;
        Some(end(self.first.saturating_add(at)).min(self.longest))
    }

    /// Upper quantiles: pairs of N and the duration that one in N durations exceeds. N is each
    /// power of ten up to the number of durations.
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    pub fn tail(&self) -> Vec<(f64, u64)> {
        let one_in = (0..18).map(|power| 10_f64.powi(power));
        let one_in = one_in.take_while(|one_in| *one_in <= self.all as f64);
        one_in.filter_map(|n| Some((n, self.percentile(1.0 - 1.0 / n)?))).collect()
    }

    /// Iterates over the nonempty cells: the longest possible duration of a cell, and the number of
    /// durations in the cell.
    pub fn cells(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let cells = self.cells.iter().zip(0..);
        cells
            .filter(|(times, _)| **times > 0)
            .map(|(times, cell)| (end(self.first.saturating_add(cell)), *times))
    }
}

/// Index of the cell of a duration. Each duration below 64 has its own cell; above, each power of
/// two has 64 cells.
fn cell(time: u64) -> usize {
    let shift = (u64::BITS - time.leading_zeros()).saturating_sub(BITS + 1);
    let within = usize::try_from(time >> shift).expect("less than 2^7 is left");
    ((shift as usize) << BITS) + within
}

/// The longest duration that belongs to a cell.
fn end(cell: usize) -> u64 {
    let shift = (cell >> BITS).saturating_sub(1).min(63);
    let within = cell.saturating_sub(shift << BITS) as u64;
    (within << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_cell_no_wider_than_a_64th_of_it() {
        let powers = (0..64).map(|power| 1_u64 << power);
        let times = powers.flat_map(|power| [power, power + power / 3, power + (power - 1)]);
        for time in times.chain([0, u64::MAX]) {
            let cell = cell(time);
            assert!(cell < CELLS);
            assert!(end(cell) >= time && end(cell) - time <= time / 64, "{time}");
            assert!(cell == 0 || end(cell - 1) < time, "{time}");
        }
    }

    #[test]
    fn percentiles_do_not_depend_on_the_order_of_the_times() {
        for histogram in [TimeHistogram::default(), TimeHistogram::ready()] {
            percentiles_are_those_of_the_times(histogram);
        }
    }

    fn percentiles_are_those_of_the_times(mut histogram: TimeHistogram) {
        assert_eq!((histogram.percentile(0.5), histogram.tail()), (None, vec![]));
        (1..=1000).rev().step_by(2).for_each(|time| histogram.note(time * 1000));
        (1..=1000).step_by(2).for_each(|time| histogram.note(time * 1000));
        for (share, time) in [(0.0, 1000), (0.5, 500_000), (0.999, 999_000), (1.0, 1_000_000)] {
            let found = histogram.percentile(share).unwrap();
            assert!(found >= time && found - time <= time / 64, "{share}: {found}");
        }
        assert_eq!((histogram.count(), histogram.longest()), (1000, 1_000_000));
        assert_eq!(histogram.cells().map(|(_, times)| times).sum::<u64>(), 1000);
        let one_in: Vec<f64> = histogram.tail().iter().map(|point| point.0).collect();
        assert_eq!(one_in, [1.0, 10.0, 100.0, 1000.0]);
    }
}
