//! What keeps the numbers from meaning what they seem to.

use pagewise_model::Name;
use pagewise_model::measured::{Arm, Ending, Measurement, Scope};
use pagewise_model::report::{Fact, Finding, Severity, Value};
use pagewise_stats::{Drift, Summary, drift, outliers};

use super::WALL;
use super::rows::Rows;
use crate::explain::fact;

/// A trend is told where chance makes one so seldom,
const UNLIKELY: f64 = 0.01;
/// and it matters.
const NOTABLE: f64 = 0.02;

pub(super) fn all(measurement: &Measurement, arms: &[Rows]) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(interrupted(measurement));
    for (at, (arm, rows)) in measurement.arms.iter().zip(arms).enumerate() {
        let whose = Whose(["A", "B"].get(at).copied().filter(|_| arms.len() > 1));
        found.extend(failed(arm, whose));
        found.extend(outlying(rows, whose));
        found.extend(drifting(rows, whose));
        found.extend(multiplexed(rows, whose));
    }
    found.extend(arms.first().and_then(user_mode_only));
    found.extend(changing_frequency(measurement));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// Which command a doubt is about, where there are two.
#[derive(Clone, Copy)]
struct Whose(Option<&'static str>);

impl Whose {
    fn runs(self) -> Value {
        match self.0 {
            Some(arm) => Value::text(format!(" runs of {arm} ")),
            None => Value::text(" runs "),
        }
    }

    fn fact(self) -> Option<Fact> {
        self.0.map(|arm| fact("arm", "of", Value::text(arm), ""))
    }
}

fn text(words: &'static str) -> Value {
    Value::text(words)
}

fn count(n: usize) -> Value {
    Value::Count(n as u64)
}

fn finding(
    id: &'static str,
    severity: Severity,
    claim: Vec<Value>,
    evidence: impl IntoIterator<Item = Fact>,
    next_step: &'static str,
) -> Finding {
    let next_step = if next_step.is_empty() { Vec::new() } else { vec![text(next_step)] };
    Finding { id, severity, claim, evidence: evidence.into_iter().collect(), next_step }
}

fn interrupted(measurement: &Measurement) -> Option<Finding> {
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    measurement.conditions.interrupted.then(|| {
        finding(
            "interrupted",
            Severity::Warning,
            vec![text("Interrupted: the last run is left out, and those that should have followed are missing.")],
            [fact("runs", "runs", count(runs), "")],
            "",
        )
    })
}

/// Runs that did not end with status 0.
fn failed(arm: &Arm, whose: Whose) -> Option<Finding> {
    let failed: Vec<Ending> =
        arm.runs.iter().map(|run| run.ending).filter(|end| end.status() != 0).collect();
    let first = match failed.first()? {
        Ending::Exited(status) => {
            vec![text("exited with status "), Value::Number(f64::from(*status))]
        }
        Ending::Killed(signal) => {
            vec![text("were killed by signal "), Value::Number(f64::from(*signal))]
        }
    };
    let claim =
        [vec![count(failed.len()), text(" of "), count(arm.runs.len()), whose.runs()], first]
            .concat();
    let step = "Numbers of runs that fail say little of runs that do not.";
    let facts = [fact("failed", "failed", count(failed.len()), "")];
    Some(finding(
        "failed-runs",
        Severity::Warning,
        claim,
        facts.into_iter().chain(whose.fact()),
        step,
    ))
}

/// Runs whose wall time is far from the others'.
fn outlying(rows: &Rows, whose: Whose) -> Option<Finding> {
    let row = rows.named(WALL)?;
    let values = row.values();
    let outlying = outliers(&values);
    let median = Summary::of(&values)?.median;
    let first = *values.first()?;
    let evidence = |at: &[usize]| {
        let runs = at.iter().map(|at| count(at + 1)).collect();
        let times = at.iter().map(|at| row.kind.value(values[*at])).collect();
        let facts = [
            fact("runs", "runs", Value::List(runs), ""),
            fact("wall", "took", Value::List(times), ""),
            fact("median", "median", row.kind.value(median), ""),
        ];
        facts.into_iter().chain(whose.fact()).collect::<Vec<_>>()
    };
    if outlying == [0] && first > median {
        return Some(finding(
            "cold-first-run",
            Severity::Warning,
            vec![
                text("The first run took "),
                Value::Number(first / median),
                text(" times as long as is usual for the others: it found caches empty."),
            ],
            evidence(&outlying),
            "--warmup 1 leaves such a run out; where the cold run is what matters, run it once each time.",
        ));
    }
    let claim = vec![
        count(outlying.len()),
        text(" of "),
        count(values.len()),
        whose.runs(),
        text(if outlying.len() == 1 {
            "stands out in wall time: something else happened then."
        } else {
            "stand out in wall time: something else happened then."
        }),
    ];
    let step = "The median does not mind, mean and sd do. If there are many, stop what else runs, or use --cpu.";
    (!outlying.is_empty())
        .then(|| finding("outliers", Severity::Note, claim, evidence(&outlying), step))
}

/// Wall times that go up or down from run to run.
fn drifting(rows: &Rows, whose: Whose) -> Option<Finding> {
    let Drift { tau, p, change } = drift(&rows.named(WALL)?.values())?;
    if p > UNLIKELY || change.abs() < NOTABLE {
        return None;
    }
    let words = if change > 0.0 { " longer" } else { " shorter" };
    let claim = vec![
        text("The"),
        whose.runs(),
        text("drift: the last takes "),
        Value::Share(change.abs()),
        text(words),
        text(" than the first."),
    ];
    let facts = [
        fact("change", "change", Value::Share(change), ""),
        fact("tau", "Kendall's tau", Value::Number(tau), ""),
        fact("p", "p", Value::Number(p), ""),
    ];
    let step = "The median is of no one state. Find what changes (a file that grows, heat, a cache that fills), or warm up longer.";
    Some(finding("drift", Severity::Warning, claim, facts.into_iter().chain(whose.fact()), step))
}

/// Counts that were scaled since the counters took turns.
fn multiplexed(rows: &Rows, whose: Whose) -> Option<Finding> {
    let scaled: Vec<_> = rows.iter().filter(|row| row.scale > 1.0).collect();
    let most = scaled.iter().map(|row| row.scale).fold(1.0, f64::max);
    let names = scaled.iter().map(|row| Value::Text(row.name.clone())).collect();
    let claim = vec![
        count(scaled.len()),
        text(" counters took turns with others, and their counts are scaled, by up to "),
        Value::Number(most),
        text(": estimates, not counts."),
    ];
    let facts = [
        fact("scale", "scaled by", Value::Number(most), ""),
        fact("metrics", "counters", Value::List(names), ""),
    ];
    let step = "Ask for fewer events at once: --events cycles,instructions";
    (most > 1.0).then(|| {
        finding(
            "multiplexed",
            Severity::Warning,
            claim,
            facts.into_iter().chain(whose.fact()),
            step,
        )
    })
}

/// Events that we may count in user mode only.
fn user_mode_only(rows: &Rows) -> Option<Finding> {
    let partly = rows.iter().filter(|row| row.scope == Scope::ProcessUser && row.summary().is_ok());
    let names: Vec<Value> = partly.map(|row| Value::Text(row.name.clone())).collect();
    let claim = vec![
        count(names.len()),
        text(
            " events are counted in user mode only: what the kernel does for the command is missing.",
        ),
    ];
    let step = "To count both, run as root, or with CAP_PERFMON.";
    (!names.is_empty()).then(|| {
        finding(
            "user-mode-only",
            Severity::Note,
            claim,
            [fact("metrics", "events", Value::List(names), "")],
            step,
        )
    })
}

/// A CPU whose clock follows the load.
fn changing_frequency(measurement: &Measurement) -> Option<Finding> {
    let governor = measurement.conditions.governor.as_ref().ok()?;
    (*governor != Name::new(b"performance")).then(|| {
        finding(
            "frequency-scaling",
            Severity::Note,
            vec![
                text("The CPU's frequency follows the load (governor "),
                Value::Name(governor.clone()),
                text("): short runs are slower than long ones."),
            ],
            [fact("governor", "governor", Value::Name(governor.clone()), "")],
            "For steadier times: cpupower frequency-set -g performance",
        )
    })
}
