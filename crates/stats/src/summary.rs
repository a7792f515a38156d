//! Typical value and spread of a sample, and outliers.

/// Modified z-score above which a value is an outlier (Iglewicz and Hoaglin, 1993).
const OUTLYING: f64 = 3.5;

/// Factor by which the MAD of normal values is multiplied to estimate their standard deviation: 1 /
/// 0.6745.
const MAD_TO_SD: f64 = 1.482_602_218_505_602;

/// Factor by which the mean absolute deviation of normal values is multiplied to estimate their
/// standard deviation: the square root of pi / 2.
const MEAN_DEVIATION_TO_SD: f64 = 1.253_314_137_315_5;

/// Distance from the median, as a share of the median, within which a value is never an outlier if
/// most values are equal.
const NEGLIGIBLE: f64 = 0.01;

/// Typical value and spread of a sample, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub n: usize,
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The median of the absolute distances of the values to their median. It is not scaled: for
    /// normal values it is 0.67 standard deviations.
    pub mad: f64,
    /// The sum of the values divided by `n`. Unlike the median, it changes if one run is disturbed.
    pub mean: f64,
    /// The standard deviation with the divisor `n - 1`; `None` for one value.
    pub sd: Option<f64>,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// Summarizes `values`; `None` for an empty slice, or if a value is not finite.
    ///
    /// # Complexity
    /// O(n log n).
    pub fn from_values(values: &[f64]) -> Option<Summary> {
        let sorted = sorted(values)?;
        let n = sorted.len();
        // The values are summed in ascending order, so that the order of the runs does not change
        // the result.
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let median = median_of_sorted(&sorted);
        Some(Summary {
            n,
            median,
            mad: mad(&sorted, median),
            // Rounding can put the mean outside of the range of the values.
            mean: mean.clamp(sorted[0], sorted[n - 1]),
            sd: (n > 1).then(|| (squares / (n - 1) as f64).sqrt()),
            min: sorted[0],
            max: sorted[n - 1],
        })
    }
}

/// Merges curves point by point: the height of point `i` is the median of the heights of point `i`
/// in all curves. The first curve determines the number of points and their first coordinates; a
/// shorter curve does not contribute to the points that it lacks.
///
/// ```
/// let runs = [[(1.0, 5.0), (2.0, 9.0)], [(1.0, 7.0), (2.0, 8.0)], [(1.0, 6.0), (2.0, 1.0)]];
/// let curves: Vec<&[(f64, f64)]> = runs.iter().map(|run| run.as_slice()).collect();
/// assert_eq!(pagewise_stats::median_curve(&curves), [(1.0, 6.0), (2.0, 8.0)]);
/// ```
pub fn median_curve(curves: &[&[(f64, f64)]]) -> Vec<(f64, f64)> {
    let median = |place: usize| {
        let heights: Vec<f64> =
            curves.iter().filter_map(|points| Some(points.get(place)?.1)).collect();
        Some(Summary::from_values(&heights)?.median)
    };
    let first = curves.first().copied().unwrap_or_default();
    let points = first.iter().enumerate();
    points.filter_map(|(place, point)| Some((point.0, median(place)?))).collect()
}

/// Returns the indexes of the outliers: the values whose modified z-score is above 3.5.
///
/// The score is the distance of a value to the median divided by the scaled MAD. If more than half
/// of the values are equal, the MAD is 0 and every other value would be an outlier. In this case
/// the mean absolute deviation replaces the MAD, and a value within 1 % of the median is never an
/// outlier. Fewer than three values have no outliers. If a value is not finite, the result is
/// empty.
///
/// ```
/// assert_eq!(pagewise_stats::outliers(&[10.0, 10.1, 9.9, 10.2, 17.0]), [4]);
/// assert!(pagewise_stats::outliers(&[5.0, 5.0, 5.0, 5.0, 5.01]).is_empty());
/// ```
pub fn outliers(values: &[f64]) -> Vec<usize> {
    let Some(sorted) = sorted(values).filter(|sorted| sorted.len() > 2) else {
        return Vec::new();
    };
    let median = median_of_sorted(&sorted);
    let limit = match mad(&sorted, median) {
        0.0 => least_outlying_of_equals(&sorted, median),
        mad => OUTLYING * MAD_TO_SD * mad,
    };
    let outlying = values.iter().enumerate().filter(|(_, value)| (*value - median).abs() > limit);
    outlying.map(|(index, _)| index).collect()
}

/// Returns the distance from the median beyond which a value is an outlier. Called only if the MAD
/// is 0.
fn least_outlying_of_equals(sorted: &[f64], median: f64) -> f64 {
    let deviations: f64 = sorted.iter().map(|value| (value - median).abs()).sum();
    let spread = MEAN_DEVIATION_TO_SD * deviations / sorted.len() as f64;
    (OUTLYING * spread).max(NEGLIGIBLE * median.abs())
}

/// Returns the values in ascending order; `None` for an empty slice, or if a value is not finite.
pub(crate) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}

/// Returns the median of values in ascending order. Requires at least one value.
pub(crate) fn median_of_sorted(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() - 1) / 2].midpoint(sorted[sorted.len() / 2])
}

/// Returns the median of the absolute distances of the values to `median`.
fn mad(sorted: &[f64], median: f64) -> f64 {
    let mut distances: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
    distances.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&distances)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_and_no_number_have_no_summary() {
        assert!(Summary::from_values(&[]).is_none());
        assert!(Summary::from_values(&[1.0, f64::NAN]).is_none());
        assert!(Summary::from_values(&[1.0, f64::NEG_INFINITY]).is_none());
    }

    #[test]
    fn one_value_has_no_standard_deviation() {
        assert_eq!(Summary::from_values(&[7.0]).unwrap().sd, None);
        assert_eq!(Summary::from_values(&[7.0, 7.0]).unwrap().sd, Some(0.0));
    }

    #[test]
    fn one_disturbed_run_moves_the_mean_but_not_the_median() {
        let summary = Summary::from_values(&[1.0, 1.0, 1.0, 1.0, 101.0]).unwrap();
        assert_eq!((summary.median, summary.mean), (1.0, 21.0));
    }

    #[test]
    fn a_count_that_is_off_by_one_in_a_thousand_does_not_stand_out_but_by_a_tenth_does() {
        let counts = |last| [1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, last];
        assert!(outliers(&counts(1001.0)).is_empty());
        assert_eq!(outliers(&counts(1100.0)), [6]);
        assert_eq!(outliers(&counts(900.0)), [6]);
    }

    #[test]
    fn the_one_run_with_a_major_fault_stands_out() {
        assert_eq!(outliers(&[0.0, 0.0, 3.0, 0.0, 0.0, 0.0]), [2]);
    }

    #[test]
    fn two_values_do_not_say_which_of_them_is_odd() {
        assert!(outliers(&[1.0, 1000.0]).is_empty());
        assert!(outliers(&[]).is_empty());
    }
}
