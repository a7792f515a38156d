//! Costs of commands: the measured runs with all values, unchanged.
//!
//! Analyses compute medians and rates from these values.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::report::Label;
use crate::{Absent, Bytes, Name, PageSize, Reading, Snapshot};

/// Value of a counter, and the share of time for which the counter ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Value that the counter had at the end.
    pub value: u64,
    /// Share of time for which the counter ran; `None` for a counter that always runs. The kernel
    /// multiplexes hardware counters if there are more events than counters.
    pub share: Option<Share>,
}

/// Duration for which a counter was enabled, and duration for which it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Nanoseconds for which the counter was enabled.
    pub enabled: u64,
    /// Nanoseconds for which the counter ran.
    pub running: u64,
}

impl Count {
    /// Creates the value of a counter that always ran.
    pub const fn exact(value: u64) -> Count {
        Count { value, share: None }
    }

    /// Estimate of the value for the whole time, extrapolated from the time for which the counter
    /// ran.
    ///
    /// # Errors
    /// [`Absent::NeverScheduled`] for a counter that never ran: its value 0 has no meaning.
    #[expect(clippy::cast_precision_loss, reason = "counts above 2^53 are not told apart by one")]
    pub fn estimate(self) -> Reading<f64> {
        match self.share {
            None => Ok(self.value as f64),
            Some(Share { running: 0, .. }) => Err(Absent::NeverScheduled),
            Some(_) => Ok(self.value as f64 * self.scale()),
        }
    }

    /// Factor of the extrapolation in [`Count::estimate`]; 1 for a counter that ran all the time.
    #[expect(clippy::cast_precision_loss, reason = "times are shorter than 2^53 ns, 104 days")]
    pub fn scale(self) -> f64 {
        match self.share {
            Some(Share { enabled, running }) if 0 < running && running < enabled => {
                enabled as f64 / running as f64
            }
            _ => 1.0,
        }
    }
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricUnit {
    /// Nanoseconds; reports and JSON show seconds.
    Nanos,
    /// A count.
    Count,
    /// Bytes.
    Bytes,
}

/// Processes and CPU modes whose events a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricScope {
    /// The command and its children, in user mode and in the kernel.
    Process,
    /// The command and its children, in user mode only.
    ProcessUser,
    /// All code that ran on the machine during the run.
    Machine,
}

impl MetricScope {
    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            MetricScope::Process => "process",
            MetricScope::ProcessUser => "process:user",
            MetricScope::Machine => "machine",
        }
    }
}

/// Source of a metric. Reports show metrics of one source together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricOrigin {
    /// A clock and `getrusage`.
    Rusage,
    /// Samples of `/proc` during the run.
    Sampled,
    /// Software events that the kernel counts.
    Software,
    /// A tracepoint of the kernel.
    Tracepoint,
    /// Hardware events that the CPU counts.
    Hardware,
    /// `/proc/vmstat` and `/proc/interrupts`.
    Machine,
}

/// A metric that is measured in each run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredMetric {
    /// Name of the metric: `minflt`.
    pub name: Label,
    /// Unit of the values.
    pub unit: MetricUnit,
    /// Scope of the count.
    pub scope: MetricScope,
    /// Source of the count.
    pub origin: MetricOrigin,
}

/// One run of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRun {
    /// Start of the run, in nanoseconds since the start of the first run.
    pub at: u64,
    /// Ending of the run.
    pub ending: ProgramEnding,
    /// Resident memory before the program began, as the kernel counts it. The metric `peak_res` is
    /// at least this value.
    pub floor: Bytes,
    /// Values, one for each metric of [`Measurement::metrics`], in the same order.
    #[serde(with = "plain_each")]
    pub values: Vec<Reading<Count>>,
    /// Snapshot of the command's largest process at the sample with the highest PSS; `None` if it
    /// was not requested.
    pub at_peak: Option<Box<Snapshot>>,
}

/// A command and its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredArm {
    /// Program and arguments of the command.
    pub command: Vec<Name>,
    /// Runs, in the order of their execution.
    pub runs: Vec<MeasuredRun>,
}

/// Conditions of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConditions {
    /// `uname -r` of the machine.
    pub kernel: Name,
    /// The base page size of the machine.
    pub page_size: PageSize,
    /// Number of CPUs that the commands could run on.
    pub cpus: usize,
    /// The CPU to which the commands were pinned; `None` if they were not pinned.
    pub pinned: Option<u32>,
    /// Number of warm-up runs of each command, which are not measured.
    pub warmups: u32,
    /// Interval between two samples of `/proc` in nanoseconds; `None` without samples.
    pub sampled_every: Option<u64>,
    /// `scaling_governor` of the CPU; absent if the machine does not have this file, like many
    /// virtual machines.
    #[serde(with = "plain")]
    pub governor: Reading<Name>,
    /// Time at which the first run began, in seconds since 1970.
    pub unix_seconds: u64,
    /// True if runs are missing because the user interrupted the measurement.
    pub interrupted: bool,
}

/// Commands that were run and measured. The runs of two commands alternate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Conditions of the runs.
    pub conditions: RunConditions,
    /// Measured metrics.
    pub metrics: Vec<MeasuredMetric>,
    /// The measured commands: one, or two that are compared.
    pub arms: Vec<MeasuredArm>,
}

/// An event, and the scope in which this machine can count it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Countable {
    /// Name by which the user selects the event.
    pub name: Name,
    /// Source of the count.
    pub origin: MetricOrigin,
    /// True if `stat` counts the event by default.
    pub usual: bool,
    /// Scope in which the event can be counted; absent with the reason if it cannot be counted.
    #[serde(with = "plain")]
    pub scope: Reading<MetricScope>,
}

/// A performance monitoring unit, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pmu {
    /// Name of the PMU: `cpu`.
    pub name: Name,
    /// Names of the PMU's events.
    pub events: Vec<Name>,
    /// Names of the terms in which events of the PMU are written (`format` in sysfs).
    pub terms: Vec<Name>,
}

/// Events that can be counted on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountableSurvey {
    /// `uname -r` of the machine.
    pub kernel: Name,
    /// `kernel.perf_event_paranoid`.
    #[serde(with = "plain")]
    pub paranoid: Reading<i64>,
    /// Events with a name in pagewise, and events that the user requested.
    pub events: Vec<Countable>,
    /// The machine's PMUs.
    pub pmus: Vec<Pmu>,
    /// Number of tracepoints of the kernel.
    #[serde(with = "plain")]
    pub tracepoints: Reading<u64>,
}

/// Stores each element of a list in the form of [`plain`].
mod plain_each {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Count, plain};
    use crate::Reading;

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct PlainCount(#[serde(with = "plain")] Reading<Count>);

    pub(super) fn serialize<S: Serializer>(
        values: &[Reading<Count>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().cloned().map(PlainCount))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Reading<Count>>, D::Error> {
        let values = Vec::<PlainCount>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|PlainCount(value)| value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiplexed_counter_is_scaled_and_one_that_never_ran_is_absent() {
        let count =
            |enabled, running| Count { value: 100, share: Some(Share { enabled, running }) };
        assert_eq!(Count::exact(7).estimate(), Ok(7.0));
        assert_eq!(count(1000, 1000).estimate(), Ok(100.0));
        assert_eq!(count(1000, 250).estimate(), Ok(400.0));
        assert_eq!(count(1000, 0).estimate(), Err(Absent::NeverScheduled));
        assert_eq!(count(0, 0).estimate(), Err(Absent::NeverScheduled));
        // The kernel can count slightly more running time than enabled time.
        assert_eq!(count(1000, 1001).scale(), 1.0);
    }

    #[test]
    fn runs_survive_json_with_their_gaps() {
        let run = MeasuredRun {
            at: 5,
            ending: ProgramEnding::Killed(9),
            floor: Bytes::kib(600),
            values: vec![Ok(Count::exact(1)), Err(Absent::NeverScheduled)],
            at_peak: None,
        };
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<MeasuredRun>(&json).unwrap(), run, "{json}");
        assert_eq!(run.ending.status(), 137);
    }
}
