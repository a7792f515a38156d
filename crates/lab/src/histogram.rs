//! Times in a histogram: cells as wide as a share of the time, so that every time is known to 1.6 %, from nanoseconds to
//! centuries, and noting one costs some nanoseconds and no memory.

/// Cells for each power of two: 64, so that a cell is at most 1/64 of what is in it.
const BITS: u32 = 6;
const CELLS: usize = ((u64::BITS - BITS) as usize + 1) << BITS;

/// How often which time was seen.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    cells: Vec<u64>,
    all: u64,
    longest: u64,
}

impl Histogram {
    /// An empty one. All of its memory is touched: noting a time does not fault.
    pub(crate) fn new() -> Histogram {
        let mut cells = vec![1; CELLS];
        cells.fill(0);
        Histogram { cells, all: 0, longest: 0 }
    }

    /// Notes a time.
    pub(crate) fn note(&mut self, time: u64) {
        self.cells[cell(time)] += 1;
        self.all += 1;
        self.longest = self.longest.max(time);
    }

    /// The longest time.
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// The time within which this share of all times is: the end of its cell.
    pub(crate) fn percentile(&self, share: f64) -> u64 {
        let wanted = share * crate::bench::count(self.all);
        let mut seen = 0;
        let found = self.cells.iter().position(|times| {
            seen += times;
            seen > 0 && crate::bench::count(seen) >= wanted
        });
        found.map_or(0, |cell| end(cell).min(self.longest))
    }

    /// What one in ten takes longer than, one in a hundred, and so on, as far as there are so many times.
    pub(crate) fn tail(&self) -> Vec<(f64, f64)> {
        let all = crate::bench::count(self.all);
        let one_in = (0..18).map(|power| 10_f64.powi(power)).take_while(|one_in| *one_in <= all);
        one_in.map(|n| (n, crate::bench::count(self.percentile(1.0 - 1.0 / n)))).collect()
    }
}

/// The cell of a time: below 64 each has its own, above each power of two has 64.
fn cell(time: u64) -> usize {
    let shift = (u64::BITS - time.leading_zeros()).saturating_sub(BITS + 1);
    let within = usize::try_from(time >> shift).expect("less than 2^7 is left");
    ((shift as usize) << BITS) + within
}

/// The longest time of a cell.
fn end(cell: usize) -> u64 {
    let shift = (cell >> BITS).saturating_sub(1);
    let within = (cell - (shift << BITS)) as u64;
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
    fn percentiles_are_those_of_the_times() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.percentile(0.5), histogram.tail()), (0, vec![]));
        (1..=1000).for_each(|time| histogram.note(time * 1000));
        for (share, time) in [(0.0, 1000), (0.5, 500_000), (0.999, 999_000), (1.0, 1_000_000)] {
            let found = histogram.percentile(share);
            assert!(found >= time && found - time <= time / 64, "{share}: {found}");
        }
        assert_eq!(histogram.longest(), 1_000_000);
        assert_eq!(
            histogram.tail().iter().map(|point| point.0).collect::<Vec<_>>(),
            [1.0, 10.0, 100.0, 1000.0]
        );
    }
}
