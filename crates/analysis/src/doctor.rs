//! The settings that cost latency or memory: what each is, whether that is well, and the way there and back.

mod checks;
mod judge;
mod outcome;

use pagewise_model::report::{
    Audience, Block, Cells, Column, Fact, Facts, Label, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::settings::Settings;
use pagewise_model::{Name, Snapshot};

pub use checks::files;
use outcome::{Outcome, Subject, outcomes};

use crate::explain::fact;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.doctor/1";

/// What the user wants of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Short and steady response times, at the cost of memory.
    Latency,
    /// Many programs in little memory, at the cost of time.
    Density,
}

/// How a setting suits the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It costs much.
    Warn,
    /// It costs something, or is worth knowing.
    Note,
    /// It could not be read.
    Unknown,
    /// It is well as it is.
    Ok,
}

impl Verdict {
    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Verdict::Warn => "warn",
            Verdict::Note => "note",
            Verdict::Unknown => "unknown",
            Verdict::Ok => "ok",
        }
    }
}

/// For whom to judge.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// What the user wants; `None` judges what costs either way.
    pub profile: Option<Profile>,
    /// The process that the user named.
    pub target: Option<&'a Snapshot>,
}

/// Judges settings: table `checks` for programs; for people what could be better, then what is well.
pub fn doctor(settings: &Settings, options: &Options<'_>) -> Report {
    let outcomes = outcomes(&Subject { settings, options });
    let mut blocks = vec![Block::Facts(overview(settings, options, &outcomes))];
    blocks.push(Block::Table(programs(&outcomes)));
    let mut costly: Vec<&Outcome> =
        outcomes.iter().filter(|o| matches!(o.verdict, Verdict::Warn | Verdict::Note)).collect();
    costly.sort_by_key(|outcome| outcome.verdict);
    blocks.extend(costly.iter().map(|outcome| Block::Facts(advice(outcome))));
    blocks.push(Block::Text(last_word(&costly)));
    blocks.push(Block::Table(well(&outcomes)));
    blocks.extend(unknown(&outcomes).map(Block::Facts));
    Report { schema: SCHEMA, title: vec![Value::text(title(options.profile))], blocks }
}

fn title(profile: Option<Profile>) -> &'static str {
    match profile {
        None => "Settings that cost latency or memory",
        Some(Profile::Latency) => "Settings, judged for short and steady latency",
        Some(Profile::Density) => "Settings, judged for many programs in little memory",
    }
}

fn overview(settings: &Settings, options: &Options<'_>, outcomes: &[Outcome]) -> Facts {
    let profile = options.profile.map_or(Value::None, |profile| {
        Value::text(match profile {
            Profile::Latency => "latency",
            Profile::Density => "density",
        })
    });
    let count = |verdict: Verdict| {
        let count = outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
        fact(verdict.key(), verdict.key(), Value::Count(count as u64), "")
    };
    let mut facts = vec![fact("kernel", "kernel", Value::Name(settings.kernel.clone()), "")];
    facts.push(fact("profile", "profile", profile, "").for_programs());
    if let Some(target) = options.target {
        let process = &target.process;
        facts.push(fact("pid", "process", Value::Count(process.pid.0.into()), ""));
        facts.push(fact("name", "", Value::Name(process.name.clone()), ""));
    }
    facts.extend([Verdict::Warn, Verdict::Note, Verdict::Unknown, Verdict::Ok].map(count));
    Facts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: Shape::Line,
        facts,
    }
}

fn table(
    key: &'static str,
    title: &'static str,
    audience: Audience,
    columns: Vec<Column>,
) -> Table {
    Table {
        key: key.into(),
        title: title.into(),
        audience,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// Every check, for programs.
fn programs(outcomes: &[Outcome]) -> Table {
    let each = |key: &'static str, value: &dyn Fn(&Outcome) -> Value| {
        Column::new(key, key, Cells::Values(outcomes.iter().map(value).collect()))
    };
    let command = |command: &Option<String>| match command {
        Some(command) => Value::text(command.clone()),
        None => Value::None,
    };
    let columns = vec![
        each("id", &|outcome| Value::Text(outcome.id.clone())),
        each("label", &|outcome| Value::Text(outcome.label.clone())),
        each("value", &|outcome| outcome.value.clone()),
        each("verdict", &|outcome| Value::text(outcome.verdict.key())),
        each("why", &|outcome| Value::text(outcome.why())),
        each("change", &|outcome| command(&outcome.change)),
        each("undo", &|outcome| command(&outcome.undo)),
    ];
    table("checks", "", Audience::Programs, columns)
}

/// One setting that could be better, for people.
fn advice(outcome: &Outcome) -> Facts {
    let mut facts =
        vec![line("now", outcome.value.clone()), line("why", Value::text(outcome.why()))];
    let commands = [("change", &outcome.change), ("undo", &outcome.undo)];
    facts.extend(commands.into_iter().filter_map(|(label, command)| {
        command.as_ref().map(|command| line(label, Value::text(command.clone())))
    }));
    Facts {
        key: "".into(),
        title: format!("{}: {}", outcome.verdict.key(), outcome.label).into(),
        audience: Audience::People,
        shape: Shape::List,
        facts,
    }
}

fn line(label: impl Into<Label>, value: Value) -> Fact {
    fact("", label, value, "")
}

fn last_word(costly: &[&Outcome]) -> Paragraph {
    let words = if costly.is_empty() {
        "Nothing to change."
    } else {
        "Nothing was changed. Commands need root, and last until the next boot; undo restores what is set now."
    };
    Paragraph {
        title: "Changes".into(),
        pieces: vec![Value::text(words)],
        audience: Audience::People,
    }
}

/// What is well as it is, for people.
fn well(outcomes: &[Outcome]) -> Table {
    let rows: Vec<&Outcome> = outcomes.iter().filter(|o| o.verdict == Verdict::Ok).collect();
    let labels = rows.iter().map(|outcome| outcome.label.clone()).collect();
    let values = rows.iter().map(|outcome| in_words(&outcome.value)).collect();
    let columns = vec![
        Column::new("label", "Setting", Cells::Labels(labels)),
        Column::new("value", "Now", Cells::Values(values)),
    ];
    table("", "As it should be", Audience::People, columns)
}

/// A value that stands left in its column, as words do: a size keeps its unit there.
fn in_words(value: &Value) -> Value {
    match value {
        Value::Name(name) if name.is_empty() => Value::Name(Name::from("(empty)")),
        value => value.clone(),
    }
}

/// What is not known, and why not.
fn unknown(outcomes: &[Outcome]) -> Option<Facts> {
    let rows = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Unknown);
    let why = |outcome: &Outcome| match &outcome.value {
        Value::Absent(absent) => Value::text(absent.to_string()),
        value => value.clone(),
    };
    let facts: Vec<Fact> = rows.map(|o| line(o.label.clone(), why(o))).collect();
    (!facts.is_empty()).then(|| Facts {
        key: "".into(),
        title: "Not known".into(),
        audience: Audience::People,
        shape: Shape::List,
        facts,
    })
}
