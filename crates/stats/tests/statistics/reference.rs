//! Comparison with the results of numpy, scipy and pymannkendall for the same values.
//! `reference.py` has written them to `reference.tsv`.

use pagewise_stats::{Interval, Summary, drift, median_interval, outliers, ratio_of_medians};

const REFERENCE: &str = include_str!("reference.tsv");

struct ReferenceCase {
    values: Vec<f64>,
    others: Vec<f64>,
    figures: Vec<f64>,
}

/// Returns the cases of `reference.tsv` with this kind. The fields of a line are separated by tabs:
/// kind, values, other values, results.
fn cases(kind: &str) -> Vec<ReferenceCase> {
    let numbers = |text: &str| text.split_whitespace().map(number).collect();
    let fields = REFERENCE.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let cases: Vec<ReferenceCase> = fields
        .filter(|fields| fields[0] == kind)
        .map(|fields| ReferenceCase {
            values: numbers(fields[1]),
            others: numbers(fields[2]),
            figures: numbers(fields[3]),
        })
        .collect();
    assert!(cases.len() > 5, "{kind} has few cases");
    cases
}

fn number(text: &str) -> f64 {
    text.parse().expect("reference.tsv holds numbers")
}

#[track_caller]
fn close(found: &[f64], case: &ReferenceCase, tolerance: f64) {
    assert_eq!(found.len(), case.figures.len());
    for (found, expected) in found.iter().zip(&case.figures) {
        let near = (found - expected).abs() <= tolerance * expected.abs().max(1e-3);
        assert!(near, "{found} is not {expected}, of {:?}", case.values);
    }
}

#[test]
fn summaries_are_those_of_numpy() {
    for case in cases("summary") {
        let found = Summary::from_values(&case.values).unwrap();
        // For a single value, which has no standard deviation, Python prints nan.
        assert_eq!(found.sd.is_none(), case.figures[3].is_nan());
        let sd = found.sd.unwrap_or(0.0);
        let expected = case.figures.iter().map(|f| if f.is_nan() { 0.0 } else { *f }).collect();
        let case = ReferenceCase { figures: expected, ..case };
        close(&[found.median, found.mad, found.mean, sd, found.min, found.max], &case, 1e-12);
    }
}

#[test]
fn outliers_are_those_of_the_modified_z_score() {
    for case in cases("outliers") {
        let found: Vec<f64> = outliers(&case.values).iter().map(|&index| index as f64).collect();
        assert_eq!(found, case.figures, "{:?}", case.values);
    }
}

#[test]
fn trends_are_those_of_kendall_mann_and_theil() {
    for case in cases("drift") {
        let found = drift(&case.values).unwrap();
        close(&[found.tau, found.p, found.change], &case, 1e-9);
    }
}

/// 10,000 resamples are compared with 400,000 of scipy, so an end of an interval may differ by one
/// step between neighboring values.
#[test]
fn intervals_of_the_median_are_those_of_scipy() {
    for case in cases("interval") {
        let Interval { low, high } = median_interval(&case.values).unwrap();
        let width = case.figures[1] - case.figures[0];
        for (found, expected) in [low, high].iter().zip(&case.figures) {
            assert!(
                (found - expected).abs() <= 0.1 * width,
                "{low}..{high}, not {:?}",
                case.figures
            );
        }
    }
}

#[test]
fn ratios_and_their_intervals_are_those_of_scipy() {
    for case in cases("ratio") {
        let ratio = ratio_of_medians(&case.values, &case.others).unwrap();
        let interval = ratio.interval.unwrap();
        assert!((ratio.median - case.figures[0]).abs() < 1e-12);
        let width = case.figures[2] - case.figures[1];
        for (found, expected) in [interval.low, interval.high].iter().zip(&case.figures[1..]) {
            assert!(
                (found - expected).abs() <= 0.1 * width,
                "{interval:?}, not {:?}",
                case.figures
            );
        }
    }
}
