//! Findings that make measured numbers doubtful: failed runs, outliers, drift, scaled counts.

use pagewise_model::Name;
use pagewise_model::ending::ProgramEnding;
use pagewise_model::measured::{MeasuredArm, Measurement, MetricScope};
use pagewise_model::report::{CellValue, Fact, Finding, Severity};
use pagewise_stats::{Summary, TrendDrift, drift, outliers};

use super::{FindingRule, fact, finding};
use crate::cells::text;
use crate::stat::WALL;
use crate::stat::rows::StatRows;

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Measurement(interrupted),
    FindingRule::EachCommand(of_each_command),
    FindingRule::Measurement(user_mode_only),
    FindingRule::Measurement(changing_frequency),
];

/// Maximum p-value of a reported trend.
const UNLIKELY: f64 = 0.01;
/// Minimum relative change of a reported trend.
const NOTABLE: f64 = 0.02;

/// Doubts about the runs of each command.
fn of_each_command(measurement: &Measurement, arms: &[StatRows]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, (arm, rows)) in measurement.arms.iter().zip(arms).enumerate() {
        let whose = DoubtedCommand(["A", "B"].get(at).copied().filter(|_| arms.len() > 1));
        found.extend(failed(arm, whose));
        found.extend(outlying(rows, whose));
        found.extend(drifting(rows, whose));
        found.extend(multiplexed(rows, whose));
    }
    found
}

/// The command that a doubt concerns; `None` if there is only one command.
#[derive(Clone, Copy)]
struct DoubtedCommand(Option<&'static str>);

impl DoubtedCommand {
    fn runs(self) -> CellValue {
        match self.0 {
            Some(arm) => CellValue::text(format!(" runs of {arm} ")),
            None => CellValue::text(" runs "),
        }
    }

    fn fact(self) -> Option<Fact> {
        self.0.map(|arm| fact("arm", "of", CellValue::text(arm), ""))
    }
}

fn count(n: usize) -> CellValue {
    CellValue::Count(n as u64)
}

fn doubt(
    id: &'static str,
    severity: Severity,
    claim: Vec<CellValue>,
    evidence: impl IntoIterator<Item = Fact>,
    next_step: &'static str,
) -> Finding {
    let next_step = if next_step.is_empty() { Vec::new() } else { vec![text(next_step)] };
    finding(id, severity, claim, evidence.into_iter().collect::<Vec<_>>(), next_step)
}

fn interrupted(measurement: &Measurement, _: &[StatRows]) -> Option<Finding> {
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    measurement.conditions.interrupted.then(|| {
        doubt(
            "interrupted",
            Severity::Warning,
            vec![text("Interrupted: the last run is left out, and those that should have followed are missing.")],
            [fact("runs", "runs", count(runs), "")],
            "",
        )
    })
}

/// Runs that did not end with status 0.
fn failed(arm: &MeasuredArm, whose: DoubtedCommand) -> Option<Finding> {
    let failed: Vec<ProgramEnding> =
        arm.runs.iter().map(|run| run.ending).filter(|end| end.status() != 0).collect();
    let first = match failed.first()? {
        ProgramEnding::Exited(status) => {
            vec![text("exited with status "), CellValue::Number(f64::from(*status))]
        }
        ProgramEnding::Killed(signal) => {
            vec![text("were killed by signal "), CellValue::Number(f64::from(*signal))]
        }
    };
    let claim =
        [vec![count(failed.len()), text(" of "), count(arm.runs.len()), whose.runs()], first]
            .concat();
    let step = "Numbers of failed runs say little about successful runs.";
    let facts = [fact("failed", "failed", count(failed.len()), "")];
    Some(doubt(
        "failed-runs",
        Severity::Warning,
        claim,
        facts.into_iter().chain(whose.fact()),
        step,
    ))
}

/// Runs whose wall time is far from the others'.
fn outlying(rows: &StatRows, whose: DoubtedCommand) -> Option<Finding> {
    let row = rows.named(WALL)?;
    let values = row.values();
    let outlying = outliers(&values);
    let median = Summary::from_values(&values)?.median;
    let first = *values.first()?;
    let evidence = |at: &[usize]| {
        let runs = at.iter().map(|at| count(at + 1)).collect();
        let times = at.iter().map(|at| row.kind.value(values[*at])).collect();
        let facts = [
            fact("runs", "runs", CellValue::List(runs), ""),
            fact("wall", "took", CellValue::List(times), ""),
            fact("median", "median", row.kind.value(median), ""),
        ];
        facts.into_iter().chain(whose.fact()).collect::<Vec<_>>()
    };
    if outlying == [0] && first > median {
        return Some(doubt(
            "cold-first-run",
            Severity::Warning,
            vec![
                text("The first run took "),
                CellValue::Number(first / median),
                text(" times as long as the others: its caches were cold."),
            ],
            evidence(&outlying),
            "--warmup 1 leaves such a run out; to measure the cold run, use -n 1.",
        ));
    }
    let claim = vec![
        count(outlying.len()),
        text(" of "),
        count(values.len()),
        whose.runs(),
        text(if outlying.len() == 1 {
            "is an outlier in wall time: something else disturbed it."
        } else {
            "are outliers in wall time: something else disturbed them."
        }),
    ];
    let step = "Outliers change the mean and the standard deviation, not the median. If there are many, stop other programs, or use --cpu.";
    (!outlying.is_empty())
        .then(|| doubt("outliers", Severity::Note, claim, evidence(&outlying), step))
}

/// Wall times that go up or down from run to run.
fn drifting(rows: &StatRows, whose: DoubtedCommand) -> Option<Finding> {
    let TrendDrift { tau, p, change } = drift(&rows.named(WALL)?.values())?;
    if p > UNLIKELY || change.abs() < NOTABLE {
        return None;
    }
    let words = if change > 0.0 { " longer" } else { " shorter" };
    let claim = vec![
        text("The"),
        whose.runs(),
        text("drift: the last takes "),
        CellValue::Share(change.abs()),
        text(words),
        text(" than the first."),
    ];
    let facts = [
        fact("change", "change", CellValue::Share(change), ""),
        fact("tau", "Kendall's tau", CellValue::Number(tau), ""),
        fact("p", "p", CellValue::Number(p), ""),
    ];
    let step = "The median describes no single state. Find the cause of the drift (a growing file, heat, a cache that fills), or warm up longer.";
    Some(doubt("drift", Severity::Warning, claim, facts.into_iter().chain(whose.fact()), step))
}

/// Counts that were scaled because the counters were multiplexed.
fn multiplexed(rows: &StatRows, whose: DoubtedCommand) -> Option<Finding> {
    let scaled: Vec<_> = rows.iter().filter(|row| row.scale > 1.0).collect();
    let most = scaled.iter().map(|row| row.scale).fold(1.0, f64::max);
    let names = scaled.iter().map(|row| CellValue::Text(row.name.clone())).collect();
    let claim = vec![
        count(scaled.len()),
        text(" counters were multiplexed, and their counts are scaled, by up to "),
        CellValue::Number(most),
        text(": estimates, not counts."),
    ];
    let facts = [
        fact("scale", "scaled by", CellValue::Number(most), ""),
        fact("metrics", "counters", CellValue::List(names), ""),
    ];
    let step = "Count fewer events at once: --events cycles,instructions";
    (most > 1.0).then(|| {
        doubt("multiplexed", Severity::Warning, claim, facts.into_iter().chain(whose.fact()), step)
    })
}

/// Events that are counted in user mode only, for lack of permission.
fn user_mode_only(_: &Measurement, arms: &[StatRows]) -> Option<Finding> {
    let rows = arms.first()?;
    let partly =
        rows.iter().filter(|row| row.scope == MetricScope::ProcessUser && row.summary().is_ok());
    let names: Vec<CellValue> = partly.map(|row| CellValue::Text(row.name.clone())).collect();
    let claim = vec![
        count(names.len()),
        text(" events are counted in user mode only: events in the kernel are missing."),
    ];
    let step = "To count both, run as root, or with CAP_PERFMON.";
    (!names.is_empty()).then(|| {
        doubt(
            "user-mode-only",
            Severity::Note,
            claim,
            [fact("metrics", "events", CellValue::List(names), "")],
            step,
        )
    })
}

/// A CPU whose clock follows the load.
fn changing_frequency(measurement: &Measurement, _: &[StatRows]) -> Option<Finding> {
    let governor = measurement.conditions.governor.as_ref().ok()?;
    (*governor != Name::new(b"performance")).then(|| {
        doubt(
            "frequency-scaling",
            Severity::Note,
            vec![
                text("The CPU's frequency follows the load (governor "),
                CellValue::Name(governor.clone()),
                text("): short runs are slower than long ones."),
            ],
            [fact("governor", "governor", CellValue::Name(governor.clone()), "")],
            "For steadier times: cpupower frequency-set -g performance",
        )
    })
}
