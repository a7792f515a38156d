//! Properties that hold for any values.

use pagewise_stats::{Summary, drift, median_interval, outliers, ratio_of_medians};
use proptest::collection::vec;
use proptest::prelude::*;

fn values(least: usize) -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![-1e6..1e6, (-3_i8..3).prop_map(f64::from)];
    vec(value, least..40)
}

/// Multiplication by a power of two is exact: it changes the exponent only.
fn power_of_two() -> impl Strategy<Value = f64> {
    (-8_i32..8).prop_map(|power| 2.0_f64.powi(power))
}

fn scaled(values: &[f64], factor: f64) -> Vec<f64> {
    values.iter().map(|value| value * factor).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_the_values_does_not_matter_to_a_summary(
        (values, shuffled) in values(1).prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
    ) {
        prop_assert_eq!(Summary::from_values(&values), Summary::from_values(&shuffled));
    }

    #[test]
    fn a_summary_scales_with_the_unit(values in values(1), factor in power_of_two()) {
        let (one, other) = (Summary::from_values(&values).unwrap(), Summary::from_values(&scaled(&values, factor)).unwrap());
        prop_assert_eq!(one.median * factor, other.median);
        prop_assert_eq!(one.mad * factor, other.mad);
        prop_assert_eq!(one.mean * factor, other.mean);
        prop_assert_eq!(one.min * factor, other.min);
    }

    #[test]
    fn the_typical_value_is_between_the_smallest_and_the_largest(values in values(1)) {
        let summary = Summary::from_values(&values).unwrap();
        prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
        prop_assert!(summary.min <= summary.mean && summary.mean <= summary.max);
        prop_assert!(summary.mad >= 0.0 && summary.mad <= summary.max - summary.min);
    }

    #[test]
    fn the_interval_of_a_median_holds_the_median_and_scales(values in values(5), factor in power_of_two()) {
        let interval = median_interval(&values).unwrap();
        let median = Summary::from_values(&values).unwrap().median;
        prop_assert!(interval.low <= median && median <= interval.high);
        let scaled = median_interval(&scaled(&values, factor)).unwrap();
        prop_assert_eq!((interval.low * factor, interval.high * factor), (scaled.low, scaled.high));
    }

    #[test]
    fn a_ratio_does_not_depend_on_the_unit(values in vec((1.0..1e6, 1.0..1e6), 5..40), factor in power_of_two()) {
        let (a, b): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        prop_assert_eq!(ratio_of_medians(&a, &b), ratio_of_medians(&scaled(&a, factor), &scaled(&b, factor)));
    }

    #[test]
    fn fewer_than_half_of_the_values_stand_out(values in values(1), factor in power_of_two()) {
        let found = outliers(&values);
        prop_assert!(found.len() * 2 < values.len());
        prop_assert_eq!(found, outliers(&scaled(&values, factor)));
    }

    #[test]
    fn a_trend_turned_round_is_the_opposite_trend(mut values in values(6)) {
        let forth = drift(&values).unwrap();
        values.reverse();
        let back = drift(&values).unwrap();
        prop_assert_eq!(forth.tau, -back.tau);
        prop_assert_eq!(forth.p, back.p);
        prop_assert!((-1.0..=1.0).contains(&forth.tau) && (0.0..=1.0).contains(&forth.p));
    }

    #[test]
    fn no_values_make_a_function_panic(values in vec(any::<f64>(), 0..12), others in vec(any::<f64>(), 0..12)) {
        Summary::from_values(&values);
        outliers(&values);
        drift(&values);
        median_interval(&values);
        if let Some(interval) = ratio_of_medians(&values, &others).and_then(|ratio| ratio.interval) {
            prop_assert!(interval.low <= interval.high && interval.high.is_finite());
        }
    }
}
