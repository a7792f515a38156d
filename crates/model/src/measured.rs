//! Costs of commands: the measured runs, with every value as it was read.
//!
//! Nothing here is summarized: an analysis makes medians and rates of it.

use serde::{Deserialize, Serialize};

use crate::ending::ProgramEnding;
use crate::reading::plain;
use crate::report::Label;
use crate::{Absent, Bytes, Name, PageSize, Reading, Snapshot};

/// A counted number, and the share of the time in which its counter ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Count while the counter ran.
    pub value: u64,
    /// `None` for a counter that always runs. Hardware counters are multiplexed if there are more
    /// events than counters.
    pub share: Option<Share>,
}

/// Times for which a counter was enabled and for which it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Nanoseconds for which it was enabled.
    pub enabled: u64,
    /// Nanoseconds for which it ran.
    pub running: u64,
}

impl Count {
    /// A number of a counter that always ran.
    pub const fn exact(value: u64) -> Count {
        Count { value, share: None }
    }

    /// Estimate of the value for the whole time, from the part that was measured.
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

    /// Factor of [`Count::estimate`]: 1 for a counter that ran all the time.
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

/// Processes or CPU modes whose events a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricScope {
    /// The command and its children.
    Process,
    /// The command itself and its children, in user mode only.
    ProcessUser,
    /// Everything that ran on the machine meanwhile.
    Machine,
}

impl MetricScope {
    /// The name used in keys.
    pub const fn key(self) -> &'static str {
        match self {
            MetricScope::Process => "process",
            MetricScope::ProcessUser => "process:user",
            MetricScope::Machine => "machine",
        }
    }
}

/// Source of a metric; metrics of one source are shown together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricOrigin {
    /// A clock and `getrusage`.
    Rusage,
    /// Samples of `/proc` while it ran.
    Sampled,
    /// Counted by the kernel.
    Software,
    /// A tracepoint.
    Tracepoint,
    /// Counted by the CPU.
    Hardware,
    /// `/proc/vmstat` and `/proc/interrupts`.
    Machine,
}

/// One thing that was measured in each run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredMetric {
    /// The name: `minflt`.
    pub name: Label,
    /// Unit of its values.
    pub unit: MetricUnit,
    /// Scope of the count.
    pub scope: MetricScope,
    /// Source of the count.
    pub origin: MetricOrigin,
}

/// One run of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRun {
    /// When it began, in nanoseconds since the first run did.
    pub at: u64,
    /// Ending of the run.
    pub ending: ProgramEnding,
    /// Resident memory before the program began, as the kernel counts it: `peak_res` cannot be
    /// lower.
    pub floor: Bytes,
    /// One value for each [`MeasuredMetric`], in their order.
    #[serde(with = "plain_each")]
    pub values: Vec<Reading<Count>>,
    /// Snapshot of the command's largest process at the sample with the highest PSS, if it was
    /// requested.
    pub at_peak: Option<Box<Snapshot>>,
}

/// A command and its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredArm {
    /// The program and its arguments.
    pub command: Vec<Name>,
    /// In the order they were made.
    pub runs: Vec<MeasuredRun>,
}

/// Conditions under which runs were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConditions {
    /// `uname -r` of the machine.
    pub kernel: Name,
    /// Its base page size.
    pub page_size: PageSize,
    /// Number of CPUs that the commands could run on.
    pub cpus: usize,
    /// The CPU that they were pinned to.
    pub pinned: Option<u32>,
    /// Runs before the first that counts, for each command.
    pub warmups: u32,
    /// Nanoseconds between two samples of `/proc`.
    pub sampled_every: Option<u64>,
    /// `scaling_governor` of the CPU; absent where none is chosen, as in virtual machines.
    #[serde(with = "plain")]
    pub governor: Reading<Name>,
    /// Seconds since 1970, when the first run began.
    pub unix_seconds: u64,
    /// True if runs are missing since the user interrupted them.
    pub interrupted: bool,
}

/// Commands that were run and measured. The runs of two commands are interleaved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Conditions of the runs.
    pub conditions: RunConditions,
    /// Measured metrics.
    pub metrics: Vec<MeasuredMetric>,
    /// The command, and the one it is compared with.
    pub arms: Vec<MeasuredArm>,
}

/// An event, and the scope in which it can be counted here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Countable {
    /// Name that selects the group.
    pub name: Name,
    /// Source of the count.
    pub origin: MetricOrigin,
    /// True if `stat` counts it by default.
    pub usual: bool,
    /// Scope of the events that can be counted; absent with the reason if none can.
    #[serde(with = "plain")]
    pub scope: Reading<MetricScope>,
}

/// A performance monitoring unit, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pmu {
    /// Its name: `cpu`.
    pub name: Name,
    /// Names of its events.
    pub events: Vec<Name>,
    /// Names of the terms that describe events of the PMU (`format` in sysfs).
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
    /// Events that have a name in pagewise, and requested events.
    pub events: Vec<Countable>,
    /// The machine's PMUs.
    pub pmus: Vec<Pmu>,
    /// Number of tracepoints.
    #[serde(with = "plain")]
    pub tracepoints: Reading<u64>,
}

/// [`plain`] for each of a list.
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
    fn a_counter_that_took_turns_is_scaled_and_one_that_never_ran_says_nothing() {
        let count =
            |enabled, running| Count { value: 100, share: Some(Share { enabled, running }) };
        assert_eq!(Count::exact(7).estimate(), Ok(7.0));
        assert_eq!(count(1000, 1000).estimate(), Ok(100.0));
        assert_eq!(count(1000, 250).estimate(), Ok(400.0));
        assert_eq!(count(1000, 0).estimate(), Err(Absent::NeverScheduled));
        assert_eq!(count(0, 0).estimate(), Err(Absent::NeverScheduled));
        // The kernel's two clocks may differ by a little.
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
