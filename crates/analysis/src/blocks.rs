//! Blocks of reports as most analyses make them.

use pagewise_model::calls::Ending;
use pagewise_model::report::{Audience, Column, Fact, Facts, Label, Shape, Table, Value};
use pagewise_model::{Name, Pid};

use crate::explain::{fact, meaning};

/// A table of those columns; those that say nothing of themselves get their meaning from the one table of fields.
pub(crate) fn table(
    key: &'static str,
    title: &'static str,
    audience: Audience,
    columns: Vec<Column>,
) -> Table {
    let described = |column: Column| match column.meaning.as_ref() {
        "" => Column { meaning: meaning(&column.key).into(), ..column },
        _ => column,
    };
    Table {
        key: key.into(),
        title: title.into(),
        audience,
        columns: columns.into_iter().map(described).collect(),
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// The rows to show, at most so many, and a word on the others: which option shows all.
pub(crate) fn first<'t, T>(all: &'t [T], limit: Option<usize>, option: &str) -> (&'t [T], Label) {
    let (shown, left_out) = all.split_at(all.len().min(limit.unwrap_or(usize::MAX)));
    let note = match left_out.len() {
        0 => "".into(),
        more => format!("{more} more: {option} all").into(),
    };
    (shown, note)
}

/// A column that only programs see.
pub(crate) fn for_programs(column: Column) -> Column {
    Column { audience: Audience::Programs, ..column }
}

/// The process that a report is of, if it is of one, and the command that was run, if one was.
pub(crate) fn process(pid: impl Into<Option<Pid>>, command: &[Name]) -> [Fact; 2] {
    let pid = pid.into();
    let words = command.iter().cloned().map(Value::Name).collect();
    [
        fact("pid", "pid", pid.map_or(Value::None, |pid| Value::Count(pid.0.into())), "")
            .hidden_if(pid.is_none()),
        fact("command", "command", Value::List(words), "").hidden_if(command.is_empty()),
    ]
}

/// How a process ended.
pub(crate) fn ended(ending: Ending) -> Value {
    Value::text(match ending {
        Ending::Exited(status) => format!("exit {status}"),
        Ending::Killed(signal) => format!("signal {signal}"),
    })
}

/// The same of one that may be running yet.
pub(crate) fn ended_yet(ending: Option<Ending>) -> Value {
    ending.map_or_else(|| Value::text("still running"), ended)
}

/// Facts for everyone.
pub(crate) fn facts_of(
    key: &'static str,
    title: &'static str,
    shape: Shape,
    facts: Vec<Fact>,
) -> Facts {
    Facts { key: key.into(), title: title.into(), audience: Audience::Everyone, shape, facts }
}
