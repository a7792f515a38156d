//! One row per metric: its values in all runs, and their summary. Derived metrics are computed
//! here.

use pagewise_model::measured::{
    Count, MeasuredArm, MeasuredMetric, MeasuredRun, Measurement, MetricOrigin, MetricScope,
    MetricUnit,
};
use pagewise_model::report::{CellValue, Label};
use pagewise_model::{Absent, Quadrant, Reading};
use pagewise_stats::Summary;

use crate::quadrants::{Quadrants, quadrants};

/// Quantity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatRowKind {
    /// Nanoseconds.
    Time,
    Count,
    Bytes,
    /// A number without a unit, such as a quotient of two values of the same unit.
    Ratio,
    PerSecond,
    PerMebibyte,
}

impl StatRowKind {
    /// The unit, for programs.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            StatRowKind::Time => "s",
            StatRowKind::Count => "count",
            StatRowKind::Bytes => "bytes",
            StatRowKind::Ratio => "ratio",
            StatRowKind::PerSecond => "per_s",
            StatRowKind::PerMebibyte => "per_mib",
        }
    }

    /// A number of this kind as a cell.
    pub(crate) fn value(self, number: f64) -> CellValue {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a double ends at the bounds, and none of these is negative"
        )]
        let whole = number.round() as u64;
        match self {
            StatRowKind::Time => CellValue::Seconds(whole),
            StatRowKind::Bytes => CellValue::Bytes(whole),
            StatRowKind::PerSecond => CellValue::Rate(number),
            StatRowKind::Count | StatRowKind::Ratio | StatRowKind::PerMebibyte => {
                CellValue::Number(number)
            }
        }
    }
}

/// Section of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatSection {
    From(MetricOrigin),
    /// Computed from other rows.
    Derived,
}

/// One metric over all runs.
#[derive(Clone, Debug)]
pub(crate) struct StatRow {
    pub(crate) name: Label,
    pub(crate) kind: StatRowKind,
    pub(crate) scope: MetricScope,
    pub(crate) section: StatSection,
    /// One per run.
    pub(crate) readings: Vec<Reading<f64>>,
    /// Largest factor by which the counts of a run were scaled because the counter was multiplexed.
    pub(crate) scale: f64,
}

impl StatRow {
    /// The values of the runs that have one, in the order of the runs.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.readings.iter().filter_map(|reading| reading.clone().ok()).collect()
    }

    /// Summary of the values, or the reason of its absence.
    pub(crate) fn summary(&self) -> Reading<Summary> {
        Summary::from_values(&self.values()).ok_or_else(|| self.absence())
    }

    fn absence(&self) -> Absent {
        let first = self.readings.iter().find_map(|reading| reading.clone().err());
        first.unwrap_or_else(|| Absent::NotCollected("no run was made".into()))
    }

    /// True if nothing was counted in any run.
    pub(crate) fn is_zero(&self) -> bool {
        self.summary().is_ok_and(|summary| summary.max == 0.0)
    }
}

/// The rows of one command.
#[derive(Clone, Debug)]
pub(crate) struct StatRows(Vec<StatRow>);

impl StatRows {
    pub(crate) fn from_measurement(measurement: &Measurement, arm: &MeasuredArm) -> StatRows {
        let measured = measurement.metrics.iter().enumerate();
        let mut rows: Vec<StatRow> =
            measured.map(|(at, metric)| measured_row(metric, &counts(arm, at))).collect();
        if measurement.conditions.sampled_every.is_some() {
            rows.extend(quadrant_rows(arm));
        }
        let derived: Vec<StatRow> =
            DERIVED.iter().filter_map(|derived| derived.row(&rows)).collect();
        rows.extend(derived);
        StatRows(rows)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StatRow> {
        self.0.iter()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&StatRow> {
        self.0.iter().find(|row| row.name == name)
    }
}

/// The values of the metric with index `at`, one per run.
fn counts(arm: &MeasuredArm, at: usize) -> Vec<Reading<Count>> {
    let missing = || Err(Absent::NotCollected("a saved run has no value here".into()));
    arm.runs.iter().map(|run| run.values.get(at).cloned().unwrap_or_else(missing)).collect()
}

fn measured_row(metric: &MeasuredMetric, counts: &[Reading<Count>]) -> StatRow {
    let kind = match metric.unit {
        MetricUnit::Nanos => StatRowKind::Time,
        MetricUnit::Count => StatRowKind::Count,
        MetricUnit::Bytes => StatRowKind::Bytes,
    };
    let scales = counts.iter().filter_map(|count| count.as_ref().ok()).map(|count| count.scale());
    StatRow {
        name: metric.name.clone(),
        kind,
        scope: metric.scope,
        section: StatSection::From(metric.origin),
        readings: counts.iter().map(|count| count.clone()?.estimate()).collect(),
        scale: scales.fold(1.0, f64::max),
    }
}

/// The quadrants page by page, from the snapshot of each run near its peak.
fn quadrant_rows(arm: &MeasuredArm) -> impl Iterator<Item = StatRow> {
    let each: Vec<Reading<Quadrants>> = arm.runs.iter().map(at_peak).collect();
    let names = ["peak_private_anon", "peak_private_file", "peak_shared_anon", "peak_shared_file"];
    (0..Quadrant::ALL.len()).zip(names).map(move |(at, name)| StatRow {
        name: name.into(),
        kind: StatRowKind::Bytes,
        scope: MetricScope::Process,
        section: StatSection::From(MetricOrigin::Sampled),
        readings: each.iter().map(|quadrants| resident(quadrants, at)).collect(),
        scale: 1.0,
    })
}

/// The quadrants of a run near its peak.
pub(crate) fn at_peak(run: &MeasuredRun) -> Reading<Quadrants> {
    let ended = "the command ended before the first sample: choose a shorter --sample";
    let snapshot = run.at_peak.as_ref();
    snapshot.ok_or_else(|| Absent::NotCollected(ended.into())).and_then(|at| quadrants(at))
}

#[expect(clippy::cast_precision_loss, reason = "sizes above 2^53 are not told apart by a byte")]
fn resident(quadrants: &Reading<Quadrants>, at: usize) -> Reading<f64> {
    let cells = quadrants.as_ref().map_err(Clone::clone)?;
    cells.effective[at].resident.clone().map(|bytes| bytes.0 as f64)
}

/// A number computed from other metrics of the same run: the sum of `above`, divided by `below`.
struct Derived {
    name: &'static str,
    kind: StatRowKind,
    above: &'static [&'static str],
    below: &'static str,
    /// Factor of the quotient, for the unit of the row.
    times: f64,
}

const NANOS_PER_SECOND: f64 = 1e9;
const MEBIBYTE: f64 = 1_048_576.0;

const fn derived(
    name: &'static str,
    kind: StatRowKind,
    above: &'static [&'static str],
    below: &'static str,
    times: f64,
) -> Derived {
    Derived { name, kind, above, below, times }
}

use StatRowKind::{PerMebibyte, PerSecond, Ratio};

const DERIVED: &[Derived] = &[
    derived("cpus_used", Ratio, &["user", "sys"], "wall", 1.0),
    derived("faults_per_mib", PerMebibyte, &["minflt", "majflt"], "peak_res", MEBIBYTE),
    derived("faults_per_s", PerSecond, &["minflt", "majflt"], "wall", NANOS_PER_SECOND),
    derived("shootdowns_per_s", PerSecond, &["tlb_flush_remote_sent"], "wall", NANOS_PER_SECOND),
    derived("tlb_shootdowns_per_s", PerSecond, &["tlb_shootdowns"], "wall", NANOS_PER_SECOND),
    derived("ipc", Ratio, &["instructions"], "cycles", 1.0),
    derived("l1d_read_miss_rate", Ratio, &["l1d_read_misses"], "l1d_reads", 1.0),
    derived("l1d_write_miss_rate", Ratio, &["l1d_write_misses"], "l1d_writes", 1.0),
    derived("dtlb_read_miss_rate", Ratio, &["dtlb_read_misses"], "dtlb_reads", 1.0),
    derived("dtlb_write_miss_rate", Ratio, &["dtlb_write_misses"], "dtlb_writes", 1.0),
    derived("llc_read_miss_rate", Ratio, &["llc_read_misses"], "llc_reads", 1.0),
];

impl Derived {
    /// The row, if all metrics that it is computed from were requested.
    fn row(&self, rows: &[StatRow]) -> Option<StatRow> {
        let find = |name: &str| rows.iter().find(|row| row.name == name);
        let above: Vec<&StatRow> =
            self.above.iter().map(|name| find(name)).collect::<Option<_>>()?;
        let below = find(self.below)?;
        let readings = (0..below.readings.len()).map(|run| self.reading(&above, below, run));
        Some(StatRow {
            name: self.name.into(),
            kind: self.kind,
            scope: above[0].scope,
            section: match above[0].scope {
                MetricScope::Machine => StatSection::From(MetricOrigin::Machine),
                MetricScope::Process | MetricScope::ProcessUser => StatSection::Derived,
            },
            readings: readings.collect(),
            scale: 1.0,
        })
    }

    fn reading(&self, above: &[&StatRow], below: &StatRow, run: usize) -> Reading<f64> {
        let mut sum = 0.0;
        for row in above {
            sum += row.readings[run].clone()?;
        }
        match below.readings[run].clone()? {
            0.0 => Err(Absent::NotCollected(format!("{} is 0 there", self.below).into())),
            below => Ok(sum / below * self.times),
        }
    }
}

/// The rows as programs read them: one object each.
pub(crate) fn metrics(rows: &StatRows) -> CellValue {
    CellValue::List(rows.iter().map(record).collect())
}

fn record(row: &StatRow) -> CellValue {
    let mut members: Vec<(Label, CellValue)> =
        vec![("name".into(), CellValue::Text(row.name.clone()))];
    match row.summary() {
        Err(absent) => members.push(("absent".into(), CellValue::text(absent.to_string()))),
        Ok(summary) => {
            let value = |number| row.kind.value(number);
            members.extend([
                ("unit".into(), CellValue::text(row.kind.key())),
                ("scope".into(), CellValue::text(row.scope.key())),
                ("median".into(), value(summary.median)),
                ("mad".into(), value(summary.mad)),
                ("mean".into(), value(summary.mean)),
                ("sd".into(), summary.sd.map_or(CellValue::None, value)),
                ("min".into(), value(summary.min)),
                ("max".into(), value(summary.max)),
                ("n".into(), CellValue::Count(summary.n as u64)),
                (
                    "values".into(),
                    CellValue::List(
                        row.readings
                            .iter()
                            .map(|r| CellValue::from_reading(r.clone(), value))
                            .collect(),
                    ),
                ),
            ]);
            if row.scale > 1.0 {
                members.push(("scaled".into(), CellValue::Number(row.scale)));
            }
        }
    }
    CellValue::Record(members)
}
