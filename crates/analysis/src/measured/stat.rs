//! Costs of runs of a command: medians and their spread, rates, doubts, and comparisons of two
//! commands.

mod compare;
pub(crate) mod rows;
mod tables;

use pagewise_model::ending::ProgramEnding;
use pagewise_model::measured::{MeasuredArm, Measurement};
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Findings, NamedFacts, Report, ReportBlock, ReportTable,
};
use pagewise_model::{Absent, Name};

use crate::blocks::facts_of;
use crate::explain::fact;
use crate::findings::{Evidence, find};
use rows::{StatRows, metrics};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.stat/1";

/// Metric by which runs are compared.
pub(crate) const WALL: &str = "wall";

/// Runs as a report: `metrics` of the first command, one object per metric; with a second command
/// also `other` and `ratio`.
pub fn stat(measurement: &Measurement) -> Report {
    let arms: Vec<StatRows> =
        measurement.arms.iter().map(|arm| StatRows::from_measurement(measurement, arm)).collect();
    let mut blocks = vec![ReportBlock::Facts(conditions(measurement))];
    if let (Some(arm), Some(rows)) = (measurement.arms.first(), arms.first()) {
        blocks.push(ReportBlock::Facts(for_programs("", outcome(arm, rows))));
    }
    if let (Some(other), Some(rows)) = (measurement.arms.get(1), arms.get(1)) {
        blocks.push(ReportBlock::Facts(for_programs("other", outcome(other, rows))));
    }
    if let [one, other] = &arms[..] {
        blocks.extend(compare::blocks(one, other));
    }
    blocks.extend(tables::blocks(&arms));
    blocks.extend(tables::quadrants(measurement));
    let doubts = Findings {
        list: find(Evidence::Measurement(measurement, &arms)),
        none: no_doubts(measurement).into(),
    };
    blocks.push(ReportBlock::Findings(doubts));
    Report { schema: SCHEMA, title: title(measurement), blocks }
}

/// One row per metric and command, for a spreadsheet. Column `arm` is A for the first command, and
/// B for the command that it is compared with.
pub fn table(measurement: &Measurement) -> ReportTable {
    let arms: Vec<StatRows> =
        measurement.arms.iter().map(|arm| StatRows::from_measurement(measurement, arm)).collect();
    tables::flat(&arms)
}

/// The exit status to pass on: the first that is not 0. The runs of the first command precede those
/// of the second.
pub fn exit_status(measurement: &Measurement) -> i32 {
    measurement.arms.iter().map(status_of).find(|status| *status != 0).unwrap_or(0)
}

fn status_of(arm: &MeasuredArm) -> i32 {
    let statuses = arm.runs.iter().map(|run| run.ending.status());
    statuses.into_iter().find(|status| *status != 0).unwrap_or(0)
}

fn title(measurement: &Measurement) -> Vec<CellValue> {
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    match &measurement.arms[..] {
        [] => vec![CellValue::text("No runs")],
        [arm] if runs == 1 => vec![CellValue::text("1 run of "), command(arm)],
        [arm] => vec![CellValue::text(format!("{runs} runs of ")), command(arm)],
        [one, other, ..] => vec![
            CellValue::text(format!("{runs} interleaved runs of A: ")),
            command(one),
            CellValue::text(", and B: "),
            command(other),
        ],
    }
}

fn command(arm: &MeasuredArm) -> CellValue {
    let words: Vec<&[u8]> = arm.command.iter().map(Name::as_bytes).collect();
    CellValue::Name(Name::new(&words.join(&b' ')))
}

fn for_programs(key: &'static str, facts: Vec<Fact>) -> NamedFacts {
    NamedFacts { audience: Audience::Programs, ..facts_of(key, "", FactsShape::Line, facts) }
}

fn no_doubts(measurement: &Measurement) -> &'static str {
    match measurement.arms.first().map_or(0, |arm| arm.runs.len()) {
        0 => "No run was made.",
        1 => "One run does not show how much runs differ: use -n 10.",
        _ => "No doubts: no run stands out, and they do not drift.",
    }
}

/// Conditions of the runs.
fn conditions(measurement: &Measurement) -> NamedFacts {
    let made = &measurement.conditions;
    let some = |n: Option<u64>, why: &'static str| {
        n.map_or(CellValue::Absent(Absent::NotCollected(why.into())), CellValue::Count)
    };
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    let status = |key, arm: Option<&MeasuredArm>| arm.map(|arm| exit_fact(key, arm));
    let mut facts = vec![fact("runs", "runs", CellValue::Count(runs as u64), "Number of runs.")];
    facts.extend(status("exit_status", measurement.arms.first()));
    facts.extend([
        fact(
            "warmups",
            "warm-ups",
            CellValue::Count(made.warmups.into()),
            "Runs before that do not count.",
        )
        .hidden_if(made.warmups == 0),
        fact(
            "cpu",
            "pinned to CPU",
            some(made.pinned.map(Into::into), "--cpu N pins to one"),
            "The one CPU that it ran on.",
        )
        .hidden_if(made.pinned.is_none()),
        fact(
            "cpus",
            "CPUs",
            CellValue::Count(made.cpus as u64),
            "Number of CPUs that it could run on.",
        )
        .hidden_if(made.pinned.is_some()),
        fact(
            "sampled_every",
            "memory sampled every",
            made.sampled_every.map_or_else(
                || {
                    CellValue::Absent(Absent::NotCollected(
                        "--sample TIME samples its memory".into(),
                    ))
                },
                CellValue::Seconds,
            ),
            "Interval between samples of its memory; sampling slows the command down a little.",
        )
        .hidden_if(made.sampled_every.is_none()),
        fact("kernel", "Linux", CellValue::Name(made.kernel.clone()), "The kernel's release."),
        fact(
            "page_size",
            "pages of",
            CellValue::Bytes(made.page_size.bytes()),
            "The base page size.",
        )
        .for_programs(),
        fact(
            "interrupted",
            "interrupted",
            CellValue::Flag(made.interrupted),
            "True if Ctrl-C ended the measurement early.",
        )
        .hidden_if(!made.interrupted),
    ]);
    facts_of("", "", FactsShape::Line, facts)
}

/// The first exit status that is not 0, or 0.
fn exit_fact(key: &'static str, arm: &MeasuredArm) -> Fact {
    fact(
        key,
        "exit status",
        CellValue::Count(u64::try_from(status_of(arm)).unwrap_or(0)),
        "The first that is not 0, as a shell gives it.",
    )
}

/// Facts about one command, for programs.
fn outcome(arm: &MeasuredArm, rows: &StatRows) -> Vec<Fact> {
    let ended = |ending: ProgramEnding| match ending {
        ProgramEnding::Exited(status) => ("exited", status),
        ProgramEnding::Killed(signal) => ("killed", signal),
    };
    let endings = arm.runs.iter().map(|run| {
        let (how, number) = ended(run.ending);
        CellValue::Record(vec![(how.into(), CellValue::Count(u64::try_from(number).unwrap_or(0)))])
    });
    let words = arm.command.iter().cloned().map(CellValue::Name);
    let floor = arm.runs.iter().map(|run| run.floor).max();
    vec![
        fact("command", "command", CellValue::List(words.collect()), ""),
        exit_fact("exit_status", arm),
        fact("endings", "ends", CellValue::List(endings.collect()), ""),
        fact(
            "peak_res_floor",
            "floor of peak RES",
            floor.map_or(CellValue::None, |floor| CellValue::Bytes(floor.0)),
            "",
        ),
        fact("metrics", "metrics", metrics(rows), ""),
    ]
}

#[cfg(test)]
mod tests;
