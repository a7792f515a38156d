//! What runs of a command cost: medians and their spread, rates, what is doubtful, and how two commands compare.

mod compare;
mod doubts;
mod rows;
mod tables;

use pagewise_model::measured::{Arm, Ending, Measurement};
use pagewise_model::report::{Audience, Block, Fact, Facts, Findings, Report, Shape, Table, Value};
use pagewise_model::{Absent, Name};

use crate::blocks::facts_of;
use crate::explain::fact;
use rows::{Rows, metrics};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.stat/1";

/// What runs are compared by.
const WALL: &str = "wall";

/// Runs as a report: `metrics`, of the first command, one object each; with a second one `other` and `ratio`.
pub fn stat(measurement: &Measurement) -> Report {
    let arms: Vec<Rows> = measurement.arms.iter().map(|arm| Rows::of(measurement, arm)).collect();
    let mut blocks = vec![Block::Facts(conditions(measurement))];
    if let (Some(arm), Some(rows)) = (measurement.arms.first(), arms.first()) {
        blocks.push(Block::Facts(for_programs("", outcome(arm, rows))));
    }
    if let (Some(other), Some(rows)) = (measurement.arms.get(1), arms.get(1)) {
        blocks.push(Block::Facts(for_programs("other", outcome(other, rows))));
    }
    if let [one, other] = &arms[..] {
        blocks.extend(compare::blocks(one, other));
    }
    blocks.extend(tables::blocks(&arms));
    blocks.extend(tables::quadrants(measurement));
    let doubts =
        Findings { list: doubts::all(measurement, &arms), none: no_doubts(measurement).into() };
    blocks.push(Block::Findings(doubts));
    Report { schema: SCHEMA, title: title(measurement), blocks }
}

/// Every metric of every command, a row each: what a spreadsheet wants. `arm` is A for the command, B for the one it is
/// compared with.
pub fn table(measurement: &Measurement) -> Table {
    let arms: Vec<Rows> = measurement.arms.iter().map(|arm| Rows::of(measurement, arm)).collect();
    tables::flat(&arms)
}

/// The exit status to pass on: the first that is not 0, of the command itself before the one it is compared with.
pub fn exit_status(measurement: &Measurement) -> i32 {
    measurement.arms.iter().map(status_of).find(|status| *status != 0).unwrap_or(0)
}

fn status_of(arm: &Arm) -> i32 {
    let statuses = arm.runs.iter().map(|run| run.ending.status());
    statuses.into_iter().find(|status| *status != 0).unwrap_or(0)
}

fn title(measurement: &Measurement) -> Vec<Value> {
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    match &measurement.arms[..] {
        [] => vec![Value::text("No runs")],
        [arm] if runs == 1 => vec![Value::text("1 run of "), command(arm)],
        [arm] => vec![Value::text(format!("{runs} runs of ")), command(arm)],
        [one, other, ..] => vec![
            Value::text(format!("{runs} runs by turns of A: ")),
            command(one),
            Value::text(", and B: "),
            command(other),
        ],
    }
}

fn command(arm: &Arm) -> Value {
    let words: Vec<&[u8]> = arm.command.iter().map(Name::as_bytes).collect();
    Value::Name(Name::new(&words.join(&b' ')))
}

fn for_programs(key: &'static str, facts: Vec<Fact>) -> Facts {
    Facts { audience: Audience::Programs, ..facts_of(key, "", Shape::Line, facts) }
}

fn no_doubts(measurement: &Measurement) -> &'static str {
    match measurement.arms.first().map_or(0, |arm| arm.runs.len()) {
        0 => "No run was made.",
        1 => "One run tells nothing of how much runs differ: -n 10 does.",
        _ => "No doubts: no run stands out, and they do not drift.",
    }
}

/// How the runs were made.
fn conditions(measurement: &Measurement) -> Facts {
    let made = &measurement.conditions;
    let some = |n: Option<u64>, why: &'static str| {
        n.map_or(Value::Absent(Absent::NotCollected(why.into())), Value::Count)
    };
    let runs = measurement.arms.first().map_or(0, |arm| arm.runs.len());
    let status = |key, arm: Option<&Arm>| arm.map(|arm| exit_fact(key, arm));
    let mut facts = vec![fact("runs", "runs", Value::Count(runs as u64), "How often it was run.")];
    facts.extend(status("exit_status", measurement.arms.first()));
    facts.extend([
        fact(
            "warmups",
            "warm-ups",
            Value::Count(made.warmups.into()),
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
        fact("cpus", "CPUs", Value::Count(made.cpus as u64), "How many CPUs it could run on.")
            .hidden_if(made.pinned.is_some()),
        fact(
            "sampled_every",
            "memory sampled every",
            made.sampled_every.map_or_else(
                || Value::Absent(Absent::NotCollected("--sample TIME looks at its memory".into())),
                Value::Seconds,
            ),
            "How often its memory was looked at, which slows it down a little.",
        )
        .hidden_if(made.sampled_every.is_none()),
        fact("kernel", "Linux", Value::Name(made.kernel.clone()), "The kernel's release."),
        fact("page_size", "pages of", Value::Bytes(made.page_size.bytes()), "The base page size.")
            .for_programs(),
        fact(
            "interrupted",
            "interrupted",
            Value::Flag(made.interrupted),
            "Whether a Ctrl-C kept more runs from being made.",
        )
        .hidden_if(!made.interrupted),
    ]);
    facts_of("", "", Shape::Line, facts)
}

/// `0`, or the statuses that occurred.
fn exit_fact(key: &'static str, arm: &Arm) -> Fact {
    fact(
        key,
        "exit status",
        Value::Count(u64::try_from(status_of(arm)).unwrap_or(0)),
        "The first that is not 0, as a shell gives it.",
    )
}

/// What programs read of one command.
fn outcome(arm: &Arm, rows: &Rows) -> Vec<Fact> {
    let ended = |ending: Ending| match ending {
        Ending::Exited(status) => ("exited", status),
        Ending::Killed(signal) => ("killed", signal),
    };
    let endings = arm.runs.iter().map(|run| {
        let (how, number) = ended(run.ending);
        Value::Record(vec![(how.into(), Value::Count(u64::try_from(number).unwrap_or(0)))])
    });
    let words = arm.command.iter().cloned().map(Value::Name);
    let floor = arm.runs.iter().map(|run| run.floor).max();
    vec![
        fact("command", "command", Value::List(words.collect()), ""),
        exit_fact("exit_status", arm),
        fact("endings", "ends", Value::List(endings.collect()), ""),
        fact(
            "peak_res_floor",
            "floor of peak RES",
            floor.map_or(Value::None, |floor| Value::Bytes(floor.0)),
            "",
        ),
        fact("metrics", "metrics", metrics(rows), ""),
    ]
}

#[cfg(test)]
mod tests;
