//! 95 % confidence intervals of a median and of a ratio of two medians, by the bootstrap.
//!
//! Both intervals are percentile intervals. The interval of a median has expanded tails
//! (Hesterberg, "What teachers should know about the bootstrap", 2015): its ends lie as far out as
//! those of a t interval. This is necessary because the median of a resample of few values takes
//! few distinct values. The plain interval therefore covers the true median of normal samples in
//! only 88 % of cases for n = 7 and 92 % for n = 15, the expanded one in 95 % or more.
//!
//! A ratio of two medians takes many more distinct values, and its plain interval is right. With
//! ten values per sample, the plain interval shows a difference between two samples of the same
//! distribution in 5 % of cases. An expanded interval would show one in only 1.5 % of cases, and
//! miss real differences.
//!
//! BCa and the studentized bootstrap are not used: they divide by a spread that is 0 if values are
//! tied, as counts often are. A smoothed bootstrap is not used either: its interval ends at values
//! that were never measured.
//! `tests/statistics/calibration.rs` measures the coverage of the intervals.

use fastrand::Rng;

use crate::normal::{student_975, upper_tail};
use crate::summary::{median_of_sorted, sorted};

/// Minimum number of values for an interval. Even the range from the smallest to the largest of
/// four values covers the true median in only 87.5 % of cases (1 - 2/2^n), the range of five values
/// in 93.75 %.
const FEWEST: usize = 5;

const RESAMPLES: usize = 10_000;
/// Maximum number of draws in all resamples together, for up to 10,000 values. For more values,
/// `FEWEST_RESAMPLES` determines the number of draws.
const DRAWS: usize = 10_000_000;
/// Minimum number of resamples, so that 25 of them lie beyond each end of the interval.
const FEWEST_RESAMPLES: usize = 1_000;

/// Share of the resamples beyond each end of a 95 % interval.
const TAIL: f64 = 0.025;

/// Seed of the random numbers. It is fixed, so that the same values give the same interval.
const SEED: u64 = 0x7061_6765;

/// 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end, in the unit of the values.
    pub low: f64,
    /// Upper end, in the unit of the values.
    pub high: f64,
}

/// Comparison of the medians of two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the first sample divided by the median of the second.
    pub median: f64,
    /// 95 % confidence interval of the ratio. An interval that does not contain 1 shows a
    /// difference.
    pub interval: Option<Interval>,
}

/// Returns the 95 % confidence interval of the median of the distribution from which `values` were
/// drawn. `None` for fewer than five values, or if one is not finite.
///
/// The interval covers the true median in 95 to 99 % of cases (94 % for five values), and more
/// often if values are tied. Requires that the values do not depend on each other: see
/// [`crate::drift`].
///
/// # Complexity
/// O(n) per resample, with 10,000 resamples for up to 1,000 values, and 1,000 resamples for 10,000
/// values or more.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let mut side = ResampledSide::from_values(values)?;
    let n = values.len();
    interval(n, expanded_tail(n), |rng| {
        side.forget();
        (0..n).for_each(|_| side.draw(rng.usize(..n)));
        side.median()
    })
}

/// Compares the median of `a` with that of `b`. Each round measured one value of `a` and one value
/// of `b`.
///
/// The round `(a[i], b[i])` is drawn as a pair, so a slower machine in some rounds does not widen
/// the interval. If the lengths differ, the values are not paired, and each slice is resampled
/// separately.
///
/// `None` if a slice is empty, if a value is negative or not finite, or if the median of `b` is 0.
/// The interval is absent for fewer than five values in either slice, and if enough values of `b`
/// are 0 that the upper end of the interval would be infinite.
///
/// For two samples of the same distribution, the interval shows a difference in 3 to 5 % of cases,
/// in 6 or 7 % of cases for fewer than ten rounds, and almost never for tied values.
///
/// ```
/// let ratio = pagewise_stats::ratio_of_medians(&[2.0, 2.1, 2.0], &[1.0, 1.0, 1.1]).unwrap();
/// assert_eq!(ratio.median, 2.0);
/// assert!(ratio.interval.is_none(), "three rounds are too few");
/// ```
///
/// # Complexity
/// O(n) per resample; the number of resamples is that of [`median_interval`].
pub fn ratio_of_medians(a: &[f64], b: &[f64]) -> Option<Ratio> {
    let (mut a, mut b) = (ResampledSide::from_values(a)?, ResampledSide::from_values(b)?);
    if a.sorted[0] < 0.0 || b.sorted[0] < 0.0 {
        return None;
    }
    let (above, below) = (median_of_sorted(&a.sorted), median_of_sorted(&b.sorted));
    if below == 0.0 {
        return None;
    }
    let (n, m) = (a.sorted.len(), b.sorted.len());
    let interval = interval(n.min(m), TAIL, |rng| {
        a.forget();
        b.forget();
        for _ in 0..n {
            let round = rng.usize(..n);
            a.draw(round);
            if n == m {
                b.draw(round);
            }
        }
        if n != m {
            (0..m).for_each(|_| b.draw(rng.usize(..m)));
        }
        // Two medians of 0 have the ratio 1.
        if a.median() == b.median() { 1.0 } else { a.median() / b.median() }
    });
    Some(Ratio { median: above / below, interval })
}

/// Returns the interval of a statistic of `n` values. `resampled` returns the statistic of one
/// resample. `tail` is the share of the resamples beyond each end.
fn interval(n: usize, tail: f64, mut resampled: impl FnMut(&mut Rng) -> f64) -> Option<Interval> {
    if n < FEWEST {
        return None;
    }
    let mut rng = Rng::with_seed(SEED);
    let resamples = (DRAWS / n).clamp(FEWEST_RESAMPLES, RESAMPLES);
    let mut found: Vec<f64> = (0..resamples).map(|_| resampled(&mut rng)).collect();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a probability times a few thousand, rounded down"
    )]
    let beyond = (tail * resamples as f64) as usize;
    // Two selections of order statistics take less time than sorting.
    let (_, &mut low, above) = found.select_nth_unstable_by(beyond, f64::total_cmp);
    let (_, &mut high, _) =
        above.select_nth_unstable_by(resamples - 2 - 2 * beyond, f64::total_cmp);
    let interval = Interval { low, high };
    interval.high.is_finite().then_some(interval)
}

/// Returns the tail probability for which a normal interval is as wide as a 95 % t interval of `n`
/// values.
fn expanded_tail(n: usize) -> f64 {
    let n = n as f64;
    upper_tail((n / (n - 1.0)).sqrt() * student_975(n - 1.0))
}

/// The values of a sample, and the number of times that a resample has drawn each value.
///
/// `drawn` has the order of `sorted`, so one pass over both finds the median of a resample.
struct ResampledSide {
    sorted: Vec<f64>,
    /// Index in `sorted` of each value, in the order of the measurements.
    rank: Vec<usize>,
    drawn: Vec<usize>,
}

impl ResampledSide {
    fn from_values(values: &[f64]) -> Option<ResampledSide> {
        let sorted = sorted(values)?;
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut rank = vec![0; values.len()];
        order.iter().enumerate().for_each(|(place, &index)| rank[index] = place);
        Some(ResampledSide { drawn: vec![0; values.len()], sorted, rank })
    }

    fn forget(&mut self) {
        self.drawn.fill(0);
    }

    fn draw(&mut self, index: usize) {
        self.drawn[self.rank[index]] += 1;
    }

    /// Returns the median of the resample. Requires that the resample has as many draws as there
    /// are values.
    fn median(&self) -> f64 {
        let n = self.sorted.len();
        let (lower, left) = self.place_of((n - 1) / 2, 0, 0);
        let (upper, _) = self.place_of(n / 2, lower, left);
        self.sorted[lower].midpoint(self.sorted[upper])
    }

    /// Returns the index in `sorted` of the draw with index `number` in ascending order, and the
    /// number of draws before this index. The search starts at index `place`; `passed` draws
    /// precede `place`.
    fn place_of(&self, number: usize, mut place: usize, mut passed: usize) -> (usize, usize) {
        while passed + self.drawn[place] <= number {
            passed += self.drawn[place];
            place += 1;
        }
        (place, passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: [f64; 5] = [3.0, 1.0, 2.0, 5.0, 4.0];

    #[test]
    fn four_values_have_a_median_but_no_interval() {
        assert!(median_interval(&FIVE[..4]).is_none());
        assert!(median_interval(&FIVE).is_some());
        let ratio = ratio_of_medians(&FIVE[..4], &FIVE[..4]).unwrap();
        assert_eq!(ratio, Ratio { median: 1.0, interval: None });
    }

    #[test]
    fn constant_counts_that_differ_by_one_are_different() {
        let ratio = ratio_of_medians(&[102.0; 6], &[100.0; 6]).unwrap();
        assert_eq!(ratio.interval, Some(Interval { low: 1.02, high: 1.02 }));
    }

    #[test]
    fn a_ratio_to_a_median_of_0_is_absent() {
        assert!(ratio_of_medians(&FIVE, &[0.0; 5]).is_none());
        assert!(ratio_of_medians(&[0.0; 5], &[0.0; 5]).is_none());
        let none = ratio_of_medians(&[0.0; 5], &FIVE).unwrap();
        assert_eq!(none.interval, Some(Interval { low: 0.0, high: 0.0 }));
    }

    #[test]
    fn a_ratio_whose_divisor_is_often_0_has_no_interval() {
        let ratio = ratio_of_medians(&FIVE, &[0.0, 0.0, 1.0, 1.0, 1.0]).unwrap();
        assert_eq!(ratio, Ratio { median: 3.0, interval: None });
    }

    #[test]
    fn negative_and_missing_values_have_no_ratio() {
        for broken in [-1.0, f64::NAN, f64::INFINITY] {
            let values = [1.0, 2.0, 3.0, 4.0, broken];
            assert!(ratio_of_medians(&values, &FIVE).is_none(), "{broken}");
            assert!(ratio_of_medians(&FIVE, &values).is_none(), "{broken}");
        }
        assert!(ratio_of_medians(&[], &FIVE).is_none());
    }

    #[test]
    fn sides_of_unequal_length_are_compared_all_the_same() {
        let ratio = ratio_of_medians(&FIVE, &[1.0; 7]).unwrap();
        assert_eq!(ratio.median, 3.0);
        assert_eq!(ratio.interval.map(|interval| interval.low), Some(1.0));
    }

    #[test]
    fn rounds_that_rise_together_have_a_narrower_interval_than_the_same_values_shuffled() {
        let a: Vec<f64> = (10..30).map(f64::from).collect();
        let shuffled: Vec<f64> = (0..20_u32).map(|i| f64::from(10 + i * 7 % 20)).collect();
        let width = |b: &[f64]| {
            let interval = ratio_of_medians(&a, b).unwrap().interval.unwrap();
            interval.high - interval.low
        };
        assert_eq!(width(&a), 0.0);
        assert!(width(&shuffled) > 0.3);
    }

    #[test]
    fn the_same_values_give_the_same_interval() {
        assert_eq!(median_interval(&FIVE), median_interval(&FIVE));
    }
}
