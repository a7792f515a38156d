//! Report blocks that several analyses share. Blocks for people appear in text and HTML, and blocks
//! for programs in JSON.

use std::collections::HashMap;
use std::hash::Hash;

use pagewise_model::bounds::{Folded, OTHER_MAPPINGS, OTHER_STACKS, OTHER_THREADS};
use pagewise_model::ending::ProgramEnding;
use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, Gaps, Label, NamedFacts, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name, Pid};

use crate::explain::{fact, meaning};

/// Builds a table from `columns`. A column with an empty meaning gets the meaning that `FIELDS` has
/// for its key.
pub(crate) fn table(
    key: &'static str,
    title: &'static str,
    audience: Audience,
    columns: Vec<TableColumn>,
) -> ReportTable {
    let described = |column: TableColumn| match column.meaning.as_ref() {
        "" => TableColumn { meaning: meaning(&column.key).into(), ..column },
        _ => column,
    };
    ReportTable {
        key: key.into(),
        title: title.into(),
        audience,
        columns: columns.into_iter().map(described).collect(),
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// Selects at most `limit` rows, and returns a note on the number of other rows. The note names the
/// option that shows all rows.
pub(crate) fn first<'t, T>(all: &'t [T], limit: Option<usize>, option: &str) -> (&'t [T], Label) {
    let (shown, left_out) = all.split_at(all.len().min(limit.unwrap_or(usize::MAX)));
    let note = match left_out.len() {
        0 => "".into(),
        more => format!("{more} more: {option} all").into(),
    };
    (shown, note)
}

/// Converts the missing values of a column to `Gaps`. If all rows lack a value for the same reason,
/// the reason is stored once.
pub(crate) fn gaps(absent: Vec<(usize, Absent)>, rows: usize) -> Gaps {
    match absent.first() {
        None => Gaps::None,
        Some((_, first)) if absent.len() == rows && absent.iter().all(|(_, why)| why == first) => {
            Gaps::All(first.clone())
        }
        Some(_) => Gaps::Some(absent.into_iter().collect()),
    }
}

/// Numbers distinct values in the order of their first appearance.
pub(crate) struct Coder<K> {
    /// The distinct values; the code of a value is its index.
    pub(crate) distinct: Vec<K>,
    known: HashMap<K, u32>,
    last: Option<(K, u32)>,
}

impl<K: Copy + Eq + Hash> Coder<K> {
    pub(crate) fn new() -> Coder<K> {
        Coder { distinct: Vec::new(), known: HashMap::new(), last: None }
    }

    /// Returns the code of a value. Adjacent rows often have the same value, so the last one is
    /// compared first.
    pub(crate) fn code(&mut self, value: K) -> u32 {
        let code = match self.last {
            Some((last, code)) if last == value => code,
            _ => *self.known.entry(value).or_insert_with(|| {
                self.distinct.push(value);
                u32::try_from(self.distinct.len() - 1).unwrap_or(u32::MAX)
            }),
        };
        self.last = Some((value, code));
        code
    }
}

/// Restricts a column to reports for programs.
pub(crate) fn for_programs(column: TableColumn) -> TableColumn {
    seen_by(Audience::Programs, column)
}

/// Restricts a column to reports for people.
pub(crate) fn for_people(column: TableColumn) -> TableColumn {
    seen_by(Audience::People, column)
}

/// Restricts a column to the readers in `audience`.
pub(crate) fn seen_by(audience: Audience, column: TableColumn) -> TableColumn {
    TableColumn { audience, ..column }
}

/// Builds the fact for `cut`, the number of call stacks that do not reach the first function of
/// their thread. `cut` is `None` if the number is unknown.
pub(crate) fn stacks_cut(cut: Option<u64>) -> Fact {
    fact("stacks_cut", "stacks cut off", cut.map_or(CellValue::None, CellValue::Count), "")
        .hidden_if(cut.is_none_or(|cut| cut == 0))
}

/// Returns facts for the PID and the command line of the reported process. An unknown PID and an
/// empty command line are hidden.
pub(crate) fn process(pid: impl Into<Option<Pid>>, command: &[Name]) -> [Fact; 2] {
    let pid = pid.into();
    let words = command.iter().cloned().map(CellValue::Name).collect();
    [
        fact("pid", "pid", pid.map_or(CellValue::None, |pid| CellValue::Count(pid.0.into())), "")
            .hidden_if(pid.is_none()),
        fact("command", "command", CellValue::List(words), "").hidden_if(command.is_empty()),
    ]
}

/// Describes the ending of a program in words.
pub(crate) fn ending(ending: ProgramEnding) -> String {
    match ending {
        ProgramEnding::Exited(status) => format!("exit {status}"),
        ProgramEnding::Killed(signal) => format!("signal {signal}"),
    }
}

/// Returns the words of [`ending`] as a cell.
pub(crate) fn ended(ended: ProgramEnding) -> CellValue {
    CellValue::text(ending(ended))
}

/// Returns the cell of [`ended`] for a program that may still be running.
pub(crate) fn ended_yet(ending: Option<ProgramEnding>) -> CellValue {
    ending.map_or_else(|| CellValue::text("still running"), ended)
}

/// Groups facts for all readers.
pub(crate) fn facts_of(
    key: &'static str,
    title: &'static str,
    shape: FactsShape,
    facts: Vec<Fact>,
) -> NamedFacts {
    NamedFacts { key: key.into(), title: title.into(), audience: Audience::Everyone, shape, facts }
}

/// Converts a limit in bytes to a cell. 0 stands for no limit, and becomes `CellValue::None`.
pub(crate) fn limit(bytes: u64) -> CellValue {
    if bytes == 0 { CellValue::None } else { CellValue::Bytes(bytes) }
}

/// Returns the memory limit of a recorder, and the numbers of events that were merged to stay
/// within the limit.
pub(crate) fn folded(folded: &Folded) -> NamedFacts {
    let count = |key, value| fact(key, "", CellValue::Count(value), meaning(key));
    let facts = vec![
        fact("memory_limit", "", limit(folded.memory_limit), meaning("memory_limit")),
        count("other_stacks", folded.stack_events),
        count("folded_stacks", folded.stacks),
        count("stack_error", folded.stack_error),
        count("other_threads", folded.thread_events),
        count("other_mappings", folded.mapping_events),
        count("forgotten_mappings", folded.forgotten_mappings),
        count("unresolved_places", folded.unresolved_places),
    ];
    NamedFacts {
        audience: Audience::Programs,
        ..facts_of("kept_apart", "", FactsShape::Columns, facts)
    }
}

/// Returns the contents of [`folded`] for people: one sentence for each cause of merged events.
/// `what` is a plural noun for the events.
pub(crate) fn folded_remarks(folded: &Folded, what: &str) -> Vec<String> {
    let Folded { stacks, stack_events, stack_error, thread_events, mapping_events, .. } = *folded;
    let limit = folded.memory_limit >> 20;
    let mut remarks = Vec::new();
    if stack_events > 0 || stacks > 0 {
        remarks.push(format!(
            "{stack_events} {what} are counted under `{OTHER_STACKS}`: the recorder keeps no more call stacks apart than fit \
             into {limit} MiB (--memory-limit), and folded the rarest {stacks} times. Each call stack listed can have up to \
             {stack_error} more; one that is not listed has no more than that."
        ));
    }
    if thread_events > 0 {
        remarks.push(format!(
            "{thread_events} {what} are counted under `{OTHER_THREADS}`, for the same reason."
        ));
    }
    if mapping_events > 0 {
        remarks.push(format!(
            "{mapping_events} {what} are counted under `{OTHER_MAPPINGS}`, for the same reason."
        ));
    }
    if folded.forgotten_mappings > 0 {
        remarks.push(format!(
            "{} times a process had more mappings than fit into {limit} MiB (--memory-limit): some {what} are in no mapping \
             that is known.",
            folded.forgotten_mappings
        ));
    }
    if folded.unresolved_places > 0 {
        remarks.push(format!(
            "{} places in code have no function: their names did not fit into {limit} MiB (--memory-limit).",
            folded.unresolved_places
        ));
    }
    remarks
}
