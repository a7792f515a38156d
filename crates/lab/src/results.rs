//! Measurements of runs, as the input of an experiment's verdict.

use pagewise_model::lab::{ClaimVerdict, ExperimentClaim, ExperimentRecord};
use pagewise_model::report::{AxisUnit, Label};
use pagewise_stats::{Interval, Summary, median_curve, median_interval, ratio_of_medians};

/// The values of all runs of an experiment.
#[derive(Debug)]
pub struct ExperimentResults<'a>(pub(crate) &'a ExperimentRecord);

/// A number with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntervalEstimate {
    /// The median, or the ratio of two medians.
    pub value: f64,
    /// Confidence interval of 95 %; `None` if there are too few runs.
    pub interval: Option<Interval>,
    /// Unit of the value; a ratio has [`AxisUnit::Number`].
    pub unit: AxisUnit,
}

impl ExperimentResults<'_> {
    /// Value of a parameter.
    pub fn parameter(&self, name: &str) -> f64 {
        let found = self.0.parameters.iter().find(|row| row.name == name);
        found.map_or(f64::NAN, |row| crate::bench::count(row.value))
    }

    /// The median of a quantity in a condition.
    pub fn median(&self, quantity: &str, arm: &str) -> Option<f64> {
        let values = self.0.arm(arm)?.values(quantity);
        Some(Summary::from_values(&values)?.median)
    }

    /// The median of a quantity in a condition, with its confidence interval.
    pub fn value(&self, quantity: &str, arm: &str) -> Option<IntervalEstimate> {
        let values = self.0.arm(arm)?.values(quantity);
        let value = Summary::from_values(&values)?.median;
        let unit = self.0.quantities.iter().find(|row| row.name == quantity)?.unit;
        Some(IntervalEstimate { value, interval: median_interval(&values), unit })
    }

    /// Ratio of the medians of a quantity in two conditions.
    pub fn ratio(&self, quantity: &str, over: &str, under: &str) -> Option<IntervalEstimate> {
        let [a, b] = [over, under].map(|arm| self.0.arm(arm).map(|arm| arm.values(quantity)));
        let ratio = ratio_of_medians(&a?, &b?)?;
        Some(IntervalEstimate {
            value: ratio.median,
            interval: ratio.interval,
            unit: AxisUnit::Number,
        })
    }

    /// Ratio of the medians of two quantities in one condition.
    pub fn times(&self, over: &str, under: &str, arm: &str) -> Option<IntervalEstimate> {
        let arm = self.0.arm(arm)?;
        let ratio = ratio_of_medians(&arm.values(over), &arm.values(under))?;
        Some(IntervalEstimate {
            value: ratio.median,
            interval: ratio.interval,
            unit: AxisUnit::Number,
        })
    }

    /// All values of a quantity in a condition, one for each run.
    pub fn values(&self, quantity: &str, arm: &str) -> Vec<f64> {
        self.0.arm(arm).map(|arm| arm.values(quantity)).unwrap_or_default()
    }

    /// The points of a curve in a condition; each is the median over the runs.
    pub fn curve(&self, curve: &str, arm: &str) -> Vec<(f64, f64)> {
        self.0.arm(arm).map(|arm| median_curve(&arm.curves(curve))).unwrap_or_default()
    }

    /// Begins a claim.
    pub fn claim(&self, text: impl Into<Label>, source: impl Into<Label>) -> OpenClaim {
        let (text, source) = (text.into(), source.into());
        OpenClaim { text, source, noise: self.0.noise.unwrap_or(0.0) }
    }
}

/// A claim that is not judged yet.
#[derive(Debug)]
pub struct OpenClaim {
    text: Label,
    source: Label,
    noise: f64,
}

impl OpenClaim {
    /// Marks a claim about counts, for which the noise of times does not matter.
    pub fn counted(self) -> OpenClaim {
        OpenClaim { noise: 0.0, ..self }
    }

    /// The claim holds if the whole interval of the ratio is above `least` by more than the noise
    /// of this machine.
    pub fn more_than(self, least: f64, ratio: Option<IntervalEstimate>) -> ExperimentClaim {
        let threshold = least * (1.0 + self.noise);
        let expected = format!("more than {least:.2} ×");
        self.judge(expected, ratio, times, |estimate| {
            let (low, high) = estimate.ends();
            decide(low > threshold, high <= least)
        })
    }

    /// The claim holds if the ratio differs from 1 by at most `tolerance`. If the noise of the
    /// machine is larger than `tolerance`, the claim fails only for a difference beyond the noise.
    pub fn the_same(self, tolerance: f64, ratio: Option<IntervalEstimate>) -> ExperimentClaim {
        let noise = self.noise;
        let within = tolerance.max(noise);
        let expected = format!("1 × within {:.0} %", tolerance * 100.0);
        self.judge(expected, ratio, times, |estimate| {
            let (low, high) = estimate.ends();
            let holds = (estimate.value - 1.0).abs() <= tolerance && noise <= tolerance;
            decide(holds, low > 1.0 + within || high < 1.0 - within)
        })
    }

    /// The claim holds if the whole interval of the ratio differs from 1 by more than the noise of
    /// this machine. It never fails: no measurement shows that two numbers are equal.
    pub fn differs(self, ratio: Option<IntervalEstimate>) -> ExperimentClaim {
        let noise = self.noise;
        self.judge("another than 1 ×".to_owned(), ratio, times, |estimate| {
            let is_beyond = |ends: Interval| ends.low > 1.0 + noise || ends.high < 1.0 - noise;
            decide(estimate.interval.is_some_and(is_beyond), false)
        })
    }

    /// The claim holds if the number differs from `expected` by at most the share `tolerance` of
    /// `expected`.
    pub fn near(
        self,
        expected: f64,
        tolerance: f64,
        value: Option<IntervalEstimate>,
    ) -> ExperimentClaim {
        self.judge_in_unit(
            |unit| format!("{} within {:.0} %", number(expected, unit), tolerance * 100.0),
            value,
            |estimate| {
                let (low, high) = estimate.ends();
                let [least, most] =
                    [1.0 - tolerance, 1.0 + tolerance].map(|share| share * expected);
                let holds = (least.min(most)..=most.max(least)).contains(&estimate.value);
                decide(holds, high < least || low > most || estimate.interval.is_none())
            },
        )
    }

    /// The claim holds if the number is at most `most`.
    pub fn at_most(self, most: f64, value: Option<IntervalEstimate>) -> ExperimentClaim {
        self.judge_in_unit(
            |unit| format!("at most {}", number(most, unit)),
            value,
            |estimate| {
                let (low, high) = estimate.ends();
                decide(high <= most, low > most)
            },
        )
    }

    /// The claim holds if the number is at least `least`.
    pub fn at_least(self, least: f64, value: Option<IntervalEstimate>) -> ExperimentClaim {
        self.judge_in_unit(
            |unit| format!("at least {}", number(least, unit)),
            value,
            |estimate| {
                let (low, high) = estimate.ends();
                decide(low >= least, high < least)
            },
        )
    }

    /// The claim holds if `found` is true; `None` if the experiment could not decide.
    pub fn holds(
        self,
        expected: impl Into<Label>,
        found: Option<(bool, Label)>,
    ) -> ExperimentClaim {
        let (verdict, measured, why) = match found {
            Some((true, measured)) => (ClaimVerdict::Agrees, measured, ""),
            Some((false, measured)) => (ClaimVerdict::Disagrees, measured, ""),
            None => (ClaimVerdict::CannotTell, "".into(), NOT_MEASURED),
        };
        let OpenClaim { text, source, .. } = self;
        ExperimentClaim {
            text,
            source,
            expected: expected.into(),
            measured,
            verdict,
            why: why.into(),
        }
    }

    /// Judges a number. The number and the expectation are reported in its unit.
    fn judge_in_unit(
        self,
        expected: impl FnOnce(AxisUnit) -> String,
        found: Option<IntervalEstimate>,
        decide: impl Fn(&IntervalEstimate) -> ClaimVerdict,
    ) -> ExperimentClaim {
        let unit = found.map_or(AxisUnit::Number, |estimate| estimate.unit);
        self.judge(expected(unit), found, |n| number(n, unit), decide)
    }

    fn judge(
        self,
        expected: String,
        found: Option<IntervalEstimate>,
        words: impl Fn(f64) -> String,
        decide: impl Fn(&IntervalEstimate) -> ClaimVerdict,
    ) -> ExperimentClaim {
        let OpenClaim { text, source, .. } = self;
        let (measured, verdict, why) = match &found {
            None => (String::new(), ClaimVerdict::CannotTell, NOT_MEASURED),
            Some(estimate) => {
                let measured = match estimate.interval {
                    Some(Interval { low, high }) if words(low) != words(high) => {
                        format!("{} ({} to {})", words(estimate.value), words(low), words(high))
                    }
                    _ => words(estimate.value),
                };
                let verdict = decide(estimate);
                let why = if verdict == ClaimVerdict::CannotTell { TOO_CLOSE } else { "" };
                (measured, verdict, why)
            }
        };
        let (expected, measured) = (expected.into(), measured.into());
        ExperimentClaim { text, source, expected, measured, verdict, why: why.into() }
    }
}

const NOT_MEASURED: &str = "it was not measured here";
const TOO_CLOSE: &str = "the difference is too small or too noisy to decide";

impl IntervalEstimate {
    fn ends(&self) -> (f64, f64) {
        self.interval.map_or((self.value, self.value), |ends| (ends.low, ends.high))
    }
}

fn decide(holds: bool, fails: bool) -> ClaimVerdict {
    match (holds, fails) {
        (true, _) => ClaimVerdict::Agrees,
        (false, true) => ClaimVerdict::Disagrees,
        (false, false) => ClaimVerdict::CannotTell,
    }
}

fn times(n: f64) -> String {
    format!("{n:.2} ×")
}

/// A number in its unit.
fn number(n: f64, unit: AxisUnit) -> String {
    match unit {
        AxisUnit::Bytes => bytes(n),
        AxisUnit::Nanos if n.abs() >= 1e9 => format!("{} s", digits(n / 1e9)),
        AxisUnit::Nanos if n.abs() >= 1e6 => format!("{} ms", digits(n / 1e6)),
        AxisUnit::Nanos => format!("{} ns", digits(n)),
        AxisUnit::Share => format!("{:.1} %", n * 100.0),
        AxisUnit::Rate => format!("{} /s", digits(n)),
        AxisUnit::Count | AxisUnit::Number => digits(n),
    }
}

fn bytes(n: f64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut rest = n;
    let mut power = 0;
    while rest.abs() >= 10_240.0 && power + 1 < units.len() {
        rest /= 1024.0;
        power += 1;
    }
    format!("{} {}", digits(rest), units[power])
}

/// Formats a number with at most two decimals, and with commas at thousands.
fn digits(n: f64) -> String {
    if n.abs() < 100.0 {
        let text = format!("{n:.2}");
        return text.strip_suffix(".00").map_or_else(|| text.clone(), str::to_owned);
    }
    let digits = format!("{n:.0}");
    let mut marked = String::new();
    for (at, digit) in digits.chars().enumerate() {
        let left = digits.len() - at;
        if at > 0 && digit.is_ascii_digit() && left.is_multiple_of(3) && !marked.ends_with('-') {
            marked.push(',');
        }
        marked.push(digit);
    }
    marked
}

/// Reason why a claim may fail on some machines.
pub(crate) trait Explained {
    /// Adds the reason if the claim does not hold. An undecided measurement has its noise as the
    /// reason.
    #[must_use]
    fn because(self, why: &'static str) -> Self;
}

impl Explained for ExperimentClaim {
    fn because(self, why: &'static str) -> ExperimentClaim {
        if self.verdict == ClaimVerdict::Disagrees {
            ExperimentClaim { why: why.into(), ..self }
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::lab::{ExperimentArm, ExperimentRun, Measured};

    use super::*;

    fn estimate(low: f64, value: f64, high: f64) -> Option<IntervalEstimate> {
        Some(IntervalEstimate {
            value,
            interval: Some(Interval { low, high }),
            unit: AxisUnit::Number,
        })
    }

    fn asked(noise: f64) -> OpenClaim {
        OpenClaim { text: "".into(), source: "".into(), noise }
    }

    #[test]
    fn nothing_is_more_below_the_noise() {
        let verdict = |noise, ratio| asked(noise).more_than(1.0, ratio).verdict;
        assert_eq!(verdict(0.0, estimate(1.01, 1.02, 1.03)), ClaimVerdict::Agrees);
        assert_eq!(verdict(0.02, estimate(1.01, 1.02, 1.03)), ClaimVerdict::CannotTell);
        assert_eq!(verdict(0.0, estimate(0.9, 1.2, 1.5)), ClaimVerdict::CannotTell);
        assert_eq!(verdict(0.0, estimate(0.7, 0.8, 0.9)), ClaimVerdict::Disagrees);
        assert_eq!(verdict(0.0, None), ClaimVerdict::CannotTell);
    }

    #[test]
    fn noise_beyond_the_tolerance_leaves_the_same_undecided() {
        let verdict = |noise, ratio| asked(noise).the_same(0.1, ratio).verdict;
        assert_eq!(verdict(0.05, estimate(0.97, 1.02, 1.2)), ClaimVerdict::Agrees);
        assert_eq!(verdict(0.5, estimate(0.97, 1.02, 1.2)), ClaimVerdict::CannotTell);
        assert_eq!(verdict(0.05, estimate(1.2, 1.3, 1.4)), ClaimVerdict::Disagrees);
        assert_eq!(verdict(0.5, estimate(1.2, 1.3, 1.4)), ClaimVerdict::CannotTell);
        let counted = asked(0.5).counted();
        assert_eq!(counted.the_same(0.1, estimate(1.0, 1.0, 1.0)).verdict, ClaimVerdict::Agrees);
    }

    #[test]
    fn a_difference_is_shown_or_undecided() {
        let verdict = |noise, ratio| asked(noise).differs(ratio).verdict;
        assert_eq!(verdict(0.0, estimate(1.01, 1.02, 1.03)), ClaimVerdict::Agrees);
        assert_eq!(verdict(0.0, estimate(0.5, 0.6, 0.9)), ClaimVerdict::Agrees);
        assert_eq!(verdict(0.2, estimate(0.8, 0.85, 0.9)), ClaimVerdict::CannotTell);
        assert_eq!(verdict(0.0, estimate(0.9, 1.0, 1.1)), ClaimVerdict::CannotTell);
        let few = Some(IntervalEstimate { value: 2.0, interval: None, unit: AxisUnit::Number });
        assert_eq!(verdict(0.0, few), ClaimVerdict::CannotTell);
    }

    #[test]
    fn a_number_is_near_or_not_or_undecided() {
        let verdict = |value| asked(0.0).near(100.0, 0.02, value).verdict;
        assert_eq!(verdict(estimate(99.0, 99.5, 100.0)), ClaimVerdict::Agrees);
        assert_eq!(verdict(estimate(90.0, 95.0, 97.0)), ClaimVerdict::Disagrees);
        assert_eq!(verdict(estimate(90.0, 95.0, 99.0)), ClaimVerdict::CannotTell);
        let exact = Some(IntervalEstimate { value: 50.0, interval: None, unit: AxisUnit::Number });
        assert_eq!(verdict(exact), ClaimVerdict::Disagrees);
    }

    #[test]
    fn numbers_have_their_unit_and_marks_at_thousands() {
        assert_eq!(
            [1.0, 99.994, 1234.0, 1_234_567.0].map(digits),
            ["1", "99.99", "1,234", "1,234,567"]
        );
        assert_eq!(number(16_777_216.0, AxisUnit::Bytes), "16 MiB");
        assert_eq!(number(2_500_000.0, AxisUnit::Nanos), "2.50 ms");
        assert_eq!(number(-1234.0, AxisUnit::Number), "-1,234");
    }

    /// A series of interleaved runs with two equal conditions, of which the first is measured
    /// twice.
    fn same_thrice(mut one: impl FnMut() -> f64) -> ExperimentRecord {
        let about = crate::find("ipc").unwrap().about();
        let outline = crate::outline::outline(about, &Default::default(), String::new());
        let mut arms = ["one", "other", "one again"]
            .map(|name| ExperimentArm { name: name.into(), ..ExperimentArm::default() });
        for _ in 0..ROUNDS {
            for arm in &mut arms {
                let value = ("round_trip".into(), Measured(Ok(one())));
                arm.runs.push(ExperimentRun { values: [value].into(), ..ExperimentRun::default() });
            }
        }
        let mut entry = ExperimentRecord { arms: arms.into(), ..outline };
        entry.noise = crate::runner::noise(about, &mut entry);
        entry
    }

    /// Minimum number of runs of experiments that measure time.
    const ROUNDS: usize = 5;
    const TRIALS: usize = 200;

    /// Number of trials with a wrong verdict about two equal conditions: a claim that one of them
    /// has the larger value agrees, or the claim that both have the same value disagrees.
    fn false_alarms(mut one: impl FnMut() -> f64) -> usize {
        let is_alarm = |_: &usize| {
            let entry = same_thrice(&mut one);
            let results = ExperimentResults(&entry);
            let ratio = |over, under| results.ratio("round_trip", over, under);
            let claim = || results.claim("", "");
            let more = [("other", "one"), ("one", "other")]
                .map(|(over, under)| claim().more_than(1.0, ratio(over, under)).verdict);
            let same = claim().the_same(0.0, ratio("other", "one")).verdict;
            more.contains(&ClaimVerdict::Agrees) || same == ClaimVerdict::Disagrees
        };
        (0..TRIALS).filter(is_alarm).count()
    }

    #[test]
    fn equal_series_are_called_different_in_at_most_one_of_twenty_trials() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut calm = || 100.0 + (0..12).map(|_| random.f64() - 0.5).sum::<f64>();
        assert!(false_alarms(&mut calm) <= TRIALS / 20);
        let mut random = fastrand::Rng::with_seed(2);
        // The values are distributed like times: mostly close to the minimum, sometimes far above.
        let mut tailed = || 100.0 + 5.0 / (random.f64() + 0.01);
        assert!(false_alarms(&mut tailed) <= TRIALS / 20);
        let mut random = fastrand::Rng::with_seed(3);
        let mut hour = 0.0;
        let mut drifting = || {
            hour += 0.5;
            100.0 + hour + random.f64()
        };
        assert!(false_alarms(&mut drifting) <= TRIALS / 20);
    }

    /// On a busy machine, times that are measured shortly after each other are correlated, which
    /// the limit of this test does not account for.
    #[test]
    #[ignore = "it measures"]
    fn the_same_work_timed_twice_is_not_called_another() {
        let mut work = || {
            let begin = std::time::Instant::now();
            std::hint::black_box((0..20_000_u64).map(std::hint::black_box).sum::<u64>());
            crate::bench::nanos(begin)
        };
        let alarms = false_alarms(&mut work);
        assert!(alarms <= TRIALS / 20, "{alarms} of {TRIALS}");
    }
}
