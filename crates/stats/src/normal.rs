//! Tails of the normal distribution, and quantiles of Student's t from them.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Standard normal quantile at 97.5 %.
const Z_975: f64 = 1.959_963_984_540_054;

/// Returns the probability that a standard normal value exceeds `z`, for `z >= 0`.
pub(crate) fn upper_tail(z: f64) -> f64 {
    erfc(z * FRAC_1_SQRT_2) / 2.0
}

/// Returns the complementary error function of `x`, for `x >= 0`, with about 13 correct digits.
fn erfc(x: f64) -> f64 {
    if x < 2.0 { 1.0 - erf_by_series(x) } else { erfc_by_fraction(x) }
}

/// Returns the error function by a series: `2/sqrt(pi) exp(-x^2)` times the sum of `2^k x^(2k+1) /
/// (2k+1)!!`. Every term is positive, so no digits cancel (Abramowitz and Stegun 7.1.6).
fn erf_by_series(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut odd = 1.0;
    while term > sum * f64::EPSILON {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// Returns the complementary error function by the continued fraction `exp(-x^2)/sqrt(pi) / (x +
/// (1/2)/(x + 1/(x + (3/2)/(x + ..))))` (Abramowitz and Stegun 7.1.14). Sixty levels are more than
/// x = 2 needs, and a larger x needs fewer levels.
fn erfc_by_fraction(x: f64) -> f64 {
    let denominator = (1..=60).rev().fold(x, |below, level| x + f64::from(level) / 2.0 / below);
    (-x * x).exp() / PI.sqrt() / denominator
}

/// Returns the level, in standard deviations, that the maximum of a stationary normal process over
/// `lengths` correlation lengths exceeds with probability `chance`. The autocorrelation of the
/// process is `r(t) = 1 - |t| + ..`, as that of a moving sum of independent terms. For 0 lengths
/// the level is the quantile of a single value.
///
/// The probability is approximated by the sum of two probabilities: that a single value exceeds the
/// level, and that a cluster of values crosses the level upward, with the rate `z phi(z)`
/// (Pickands, with H = 1). The approximation is good for small probabilities, and the level is
/// never below the quantile.
pub fn highest_of(lengths: f64, chance: f64) -> f64 {
    let density = |z: f64| (-z * z / 2.0).exp() / (2.0 * PI).sqrt();
    let above = |z: f64| upper_tail(z) + lengths.max(0.0) * z * density(z);
    // The rate decreases for z above 1, so the search starts at 1.
    let (mut low, mut high) = (1.0, 40.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if above(middle) > chance { low = middle } else { high = middle }
    }
    high
}

/// Returns Student's t at 97.5 % for `freedom` degrees of freedom, by the expansion of Abramowitz
/// and Stegun 26.7.5: 0.3 % too small for 4 degrees, correct to four digits for 8 degrees or more.
pub(crate) fn student_975(freedom: f64) -> f64 {
    let z = Z_975;
    let expansion = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    expansion.iter().rev().fold(0.0, |sum, term| (sum + term) / freedom) + z
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, relative: f64) {
        assert!((found - expected).abs() <= relative * expected, "{found} is not {expected}");
    }

    /// Computed by `python3 -c 'from scipy.stats import norm; print([(z, norm.sf(z)) for z in (0,
    /// .1, 1, 1.96, 2.8, 2.9, 5, 9)])'`.
    #[test]
    fn tails_are_those_of_scipy() {
        for (z, expected) in [
            (0.0, 0.5),
            (0.1, 0.460_172_162_722_971),
            (1.0, 0.158_655_253_931_457_05),
            (1.96, 0.024_997_895_148_220_435),
            (2.8, 0.002_555_130_330_427_933_3),
            (2.9, 0.001_865_813_300_384_037_7),
            (5.0, 2.866_515_718_791_933e-7),
            (9.0, 1.128_588_405_953_842e-19),
        ] {
            close(upper_tail(z), expected, 1e-12);
        }
    }

    #[test]
    fn tails_fall_to_nothing_and_never_below() {
        assert_eq!(upper_tail(1e300), 0.0);
        assert_eq!(upper_tail(f64::INFINITY), 0.0);
    }

    /// Computed by `python3 -c 'from scipy.stats import t; print([(n, t.ppf(.975, n)) for n in (4,
    /// 5, 9, 19, 99)])'`.
    #[test]
    fn quantiles_of_t_are_those_of_scipy() {
        for (freedom, expected, relative) in [
            (4.0, 2.776_445_105_197_794, 4e-3),
            (5.0, 2.570_581_836_314_739, 2e-3),
            (9.0, 2.262_157_162_798_205, 2e-4),
            (19.0, 2.093_024_054_408_31, 1e-5),
            (99.0, 1.984_216_951_586_417, 1e-6),
        ] {
            close(student_975(freedom), expected, relative);
        }
    }

    #[test]
    fn one_value_of_a_process_is_as_high_as_its_quantile() {
        close(highest_of(0.0, 0.025), Z_975, 1e-9);
        assert!(highest_of(f64::INFINITY, 0.025) <= 40.0);
    }

    /// Computes sums of the last 1000 numbers of a stream, and counts the runs in which the maximum
    /// of these sums over a multiple of 1000 numbers exceeds the level.
    #[test]
    fn the_highest_of_a_process_is_above_its_level_as_often_as_said() {
        const LENGTH: usize = 1000;
        const RUNS: u32 = 400;
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Pseudo-random term: 1 or -1.
            if state >> 63 == 0 { 1.0 } else { -1.0 }
        };
        for lengths in [2_usize, 10] {
            let level = highest_of(lengths as f64, 0.05) * (LENGTH as f64).sqrt();
            let is_above = |_| {
                let mut all: Vec<f64> = (0..LENGTH).map(|_| draw()).collect();
                let mut sum: f64 = all.iter().sum();
                let mut highest = sum;
                for at in 0..lengths * LENGTH {
                    let new = draw();
                    sum += new - std::mem::replace(&mut all[at % LENGTH], new);
                    highest = highest.max(sum);
                }
                u32::from(highest > level)
            };
            let above: u32 = (0..RUNS).map(is_above).sum();
            // The expected number is 20; the limits are 3 standard deviations away.
            assert!((7..=33).contains(&above), "{above} of {RUNS} for {lengths}");
        }
    }
}
