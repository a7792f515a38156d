//! Drift: a trend of values over the rounds in which they were measured.

use crate::normal::upper_tail;
use crate::summary::{median_of_sorted, sorted};

/// Minimum number of values for a trend. Six random values are in perfect order, ascending or
/// descending, in one of 360 cases.
const FEWEST: usize = 6;

/// Maximum number of values whose pairs are all compared. A longer series is divided into this
/// number of stretches, each of which is replaced by its median.
const MAX_SERIES: usize = 500;

/// Trend of values over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrendDrift {
    /// Kendall's tau-b of value and round: 1 if each value is above the preceding one, -1 if each
    /// value is below the preceding one, about 0 without a trend.
    pub tau: f64,
    /// Probability that values without a trend are at least as ordered as these values
    /// (Mann-Kendall test, two-sided).
    pub p: f64,
    /// Change of the values from the first round to the last on the Theil-Sen line, as a share of
    /// their median: 0.1 is an increase by 10 %. If the median is 0, the change is a share of their
    /// mean.
    pub change: f64,
}

/// Computes the trend of values in the order of their measurement; `None` for fewer than six
/// values, or if a value is not finite.
///
/// This is the Mann-Kendall test with corrections for ties and for continuity: the trend need not
/// be a straight line, and an outlier counts no more than any other value. `p` assumes that
/// Kendall's S is normally distributed, which is conservative for few values: for six values in
/// perfect order `p` is 0.0085, but the exact probability is 0.0028.
///
/// # Complexity
/// O(n^2) up to 500 values. For more values O(n log n), since only the medians of 500 stretches are
/// compared.
pub fn drift(values: &[f64]) -> Option<TrendDrift> {
    if values.len() < FEWEST {
        return None;
    }
    let all = sorted(values)?;
    let series = shortened(values);
    let pairs = Pairs::count_pairs(&series);
    Some(TrendDrift {
        tau: pairs.tau(),
        p: pairs.p(),
        change: relative(slope(&series) * (series.len() - 1) as f64, &all),
    })
}

/// Returns `values`. If there are more than `MAX_SERIES` values, returns the medians of
/// `MAX_SERIES` stretches.
fn shortened(values: &[f64]) -> Vec<f64> {
    if values.len() <= MAX_SERIES {
        return values.to_vec();
    }
    let ends = (0..=MAX_SERIES).map(|stretch| stretch * values.len() / MAX_SERIES);
    let ends: Vec<usize> = ends.collect();
    let stretches = ends.windows(2).filter_map(|ends| sorted(&values[ends[0]..ends[1]]));
    stretches.map(|stretch| median_of_sorted(&stretch)).collect()
}

/// Returns `change` as a share of the median, or of the mean if the median is 0.
fn relative(change: f64, sorted: &[f64]) -> f64 {
    let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
    let share = |of: f64| if of == 0.0 { None } else { Some(change / of.abs()) };
    share(median_of_sorted(sorted)).or_else(|| share(mean)).unwrap_or(0.0)
}

/// Numbers of ordered and of tied pairs of a series.
struct Pairs {
    n: f64,
    /// Kendall's S: number of ascending pairs minus number of descending pairs.
    s: f64,
    /// For each distinct value, the number of times that it occurs.
    ties: Vec<f64>,
}

impl Pairs {
    fn count_pairs(series: &[f64]) -> Pairs {
        let signs = series.iter().enumerate().flat_map(|(at, earlier)| {
            series[at + 1..].iter().map(move |later| sign(*earlier, *later))
        });
        let mut sorted = series.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let ties = sorted.chunk_by(|a, b| a == b).map(|equals| equals.len() as f64);
        Pairs { n: series.len() as f64, s: signs.sum(), ties: ties.collect() }
    }

    /// Returns Kendall's tau-b: S divided by the geometric mean of the number of pairs and the
    /// number of pairs with different values; 0 if all values are equal.
    fn tau(&self) -> f64 {
        let all = self.n * (self.n - 1.0) / 2.0;
        let tied: f64 = self.ties.iter().map(|t| t * (t - 1.0) / 2.0).sum();
        if self.s == 0.0 { 0.0 } else { self.s / (all * (all - tied)).sqrt() }
    }

    fn p(&self) -> f64 {
        let part = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
        let variance = (part(self.n) - self.ties.iter().map(|&t| part(t)).sum::<f64>()) / 18.0;
        // Continuity correction: without ties S changes in steps of 2, so half a step, 1, is
        // subtracted.
        let beyond = (self.s.abs() - 1.0).max(0.0);
        if beyond == 0.0 { 1.0 } else { 2.0 * upper_tail(beyond / variance.sqrt()) }
    }
}

/// Returns 1 if the later value is above the earlier one, -1 if it is below, and 0 if both are
/// equal.
fn sign(earlier: f64, later: f64) -> f64 {
    f64::from(i8::from(later > earlier) - i8::from(later < earlier))
}

/// Returns the median of the slopes between all pairs of values (Theil-Sen), per round.
fn slope(series: &[f64]) -> f64 {
    let mut slopes: Vec<f64> = (0..series.len())
        .flat_map(|a| (a + 1..series.len()).map(move |b| (a, b)))
        .map(|(a, b)| (series[b] - series[a]) / (b - a) as f64)
        .collect();
    slopes.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&slopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rising(n: u32) -> Vec<f64> {
        (0..n).map(|round| 100.0 + f64::from(round)).collect()
    }

    #[test]
    fn five_values_are_too_few_for_a_trend() {
        assert!(drift(&rising(5)).is_none());
        assert!(drift(&[1.0, 2.0, 3.0, 4.0, 5.0, f64::NAN]).is_none());
    }

    #[test]
    fn six_values_in_order_are_a_trend() {
        let found = drift(&rising(6)).unwrap();
        assert_eq!(found.tau, 1.0);
        assert!((0.0085..0.0086).contains(&found.p), "{}", found.p);
        assert_eq!(found.change, 5.0 / 102.5);
    }

    #[test]
    fn values_that_never_vary_have_no_trend() {
        assert_eq!(drift(&[4.0; 8]), Some(TrendDrift { tau: 0.0, p: 1.0, change: 0.0 }));
        assert_eq!(drift(&[0.0; 8]), Some(TrendDrift { tau: 0.0, p: 1.0, change: 0.0 }));
    }

    #[test]
    fn one_slow_first_run_is_not_a_trend() {
        let found = drift(&[900.0, 100.0, 102.0, 99.0, 101.0, 100.5, 99.5, 100.2]).unwrap();
        assert!(found.p > 0.2, "{found:?}");
        assert!(found.change.abs() < 0.05, "{found:?}");
    }

    #[test]
    fn a_change_from_nothing_is_a_share_of_the_mean() {
        let found = drift(&[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0]).unwrap();
        assert!(found.change > 0.0 && found.change.is_finite(), "{found:?}");
    }

    #[test]
    fn a_long_series_shows_the_trend_of_its_stretches() {
        let found = drift(&rising(100_000)).unwrap();
        assert_eq!(found.tau, 1.0);
        let whole = 99_999.0 / (100.0 + 99_999.0 / 2.0);
        assert!((found.change / whole - 1.0).abs() < 0.01, "{found:?}");
    }
}
