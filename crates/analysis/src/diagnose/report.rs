//! The report of a diagnosis. Its parts are the causes, the causes that the evidence excludes, and
//! the missing evidence.

use pagewise_model::cause::{Cause, CauseObject, Remedy};
use pagewise_model::evidence::{DiagnosisCost, Evidence};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Name, Pid};

use super::ranking::Diagnosis;
use crate::causes;
use crate::cells::text;
use crate::explain::{fact, who};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.diagnose/1";

/// Number of causes in the report for people by default.
const MAX_CAUSES: usize = 3;

/// Number of ruled out causes in the report for people by default.
const MAX_RULED_OUT: usize = 6;
/// Number of reasons for missing evidence in the report for people by default. With one reason, the
/// report fits 25 lines of a terminal even if the process was read only once.
const MAX_UNSEEN_REASONS: usize = 1;
/// Number of causes per reason for missing evidence in the report for people by default.
const MAX_UNSEEN_TITLES: usize = 3;

/// Options of the report of a diagnosis.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiagnosisOptions {
    /// True to show people all causes and all ruled out causes.
    pub all: bool,
}

/// Returns the report of a diagnosis.
pub fn report(evidence: &Evidence, diagnosis: &Diagnosis, options: &DiagnosisOptions) -> Report {
    let shown = if options.all { diagnosis.causes.len() } else { MAX_CAUSES };
    let mut blocks = vec![ReportBlock::Facts(healthy_fact(diagnosis.causes.is_empty()))];
    blocks.push(ReportBlock::Table(causes_table(&diagnosis.causes)));
    if diagnosis.causes.is_empty() {
        blocks.push(text_block("", vec![text("No trouble found.")]));
    }
    for (number, cause) in (1..).zip(diagnosis.causes.iter().take(shown)) {
        blocks.push(cause_block(number, cause));
    }
    blocks.extend(excluded(diagnosis, options));
    blocks.extend(unseen(diagnosis, options));
    blocks.push(ReportBlock::Facts(cost(&evidence.cost)));
    let title = who::title_of("Diagnosis", &evidence.first.process, "");
    Report { schema: SCHEMA, title, blocks }
}

/// Returns the fact whether any trouble was found, for programs.
pub(super) fn healthy_fact(is_healthy: bool) -> NamedFacts {
    let healthy = CellValue::Flag(is_healthy);
    NamedFacts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Programs,
        shape: FactsShape::Line,
        facts: vec![fact("healthy", "healthy", healthy, "")],
    }
}

pub(crate) fn text_block(title: impl Into<Label>, pieces: Vec<CellValue>) -> ReportBlock {
    ReportBlock::Text(Paragraph { title: title.into(), pieces, audience: Audience::People })
}

/// Describes the object of a cause in words.
pub(crate) fn object_words(object: &CauseObject) -> Name {
    let numbered = |kind: &[u8], pid: &Pid, name: &Name| {
        let mut words = [kind, b" ", name.as_bytes()].concat();
        words.extend_from_slice(format!(" ({pid})").as_bytes());
        Name::new(&words)
    };
    let label = |label: &Label| Name::new(label.as_bytes());
    match object {
        CauseObject::Function(frame) => {
            Name::new(crate::heap::frames::with_its_line(frame).as_bytes())
        }
        CauseObject::Thread(tid, name) => numbered(b"thread", tid, name),
        CauseObject::Process(pid, name) => numbered(b"process", pid, name),
        CauseObject::Mapping(range, name) => {
            let mut words = format!("{:x}-{:x}", range.start, range.end).into_bytes();
            if !name.is_empty() {
                words.push(b' ');
                words.extend_from_slice(name.as_bytes());
            }
            Name::new(&words)
        }
        CauseObject::Variable(name, module) => {
            let mut words = name.as_bytes().to_vec();
            if let Some(module) = module {
                words.extend_from_slice(b" in ");
                words.extend_from_slice(module.base());
            }
            Name::new(&words)
        }
        CauseObject::Cgroup(name) => Name::new(&[b"cgroup ", name.as_bytes()].concat()),
        CauseObject::File(name) => name.clone(),
        CauseObject::Setting(name) | CauseObject::Heap(name) => label(name),
        CauseObject::Machine => Name::new(b"machine"),
    }
}

/// Joins pieces to one sentence.
fn plain(pieces: &[CellValue]) -> CellValue {
    CellValue::Sentence(pieces.to_vec())
}

fn remedy_pieces(remedy: &Remedy) -> Vec<CellValue> {
    let mut pieces = Vec::new();
    if !remedy.command.is_empty() {
        pieces.push(text(format!("`{}`: ", remedy.command)));
    }
    pieces.extend(remedy.change.iter().cloned());
    if !remedy.effect.is_empty() {
        pieces.push(text(" Effect: "));
        pieces.extend(remedy.effect.iter().cloned());
        pieces.push(text("."));
    }
    match remedy.reversible {
        Some(true) => pieces.push(text(" Reversible.")),
        Some(false) => pieces.push(text(" Not reversible.")),
        None => {}
    }
    pieces
}

/// Returns the table of causes for programs.
fn causes_table(causes: &[Cause]) -> ReportTable {
    let column = |key: &'static str, cell: &dyn Fn(&Cause) -> CellValue| {
        TableColumn::new(key, key, ColumnCells::Values(causes.iter().map(cell).collect()))
    };
    let name = |name: &str| CellValue::Name(Name::new(name.as_bytes()));
    let remedy = |remedy: Option<&Remedy>| {
        remedy.map_or(CellValue::None, |remedy| plain(&remedy_pieces(remedy)))
    };
    let columns = vec![
        column("id", &|cause| text(cause.id)),
        column("sentence", &|cause| plain(&cause.sentence)),
        column("confidence", &|cause| text(cause.confidence.key())),
        column("object", &|cause| CellValue::Name(object_words(&cause.object))),
        column("function", &|cause| cause.object.function().map_or(CellValue::None, name)),
        column("file", &|cause| {
            cause.object.line().map_or(CellValue::None, |line| name(&line.file))
        }),
        column("line", &|cause| {
            cause.object.line().map_or(CellValue::None, |line| CellValue::Count(line.number.into()))
        }),
        column("evidence", &|cause| {
            let facts = cause.evidence.iter().map(|it| (it.key.clone(), it.value.clone()));
            CellValue::Record(facts.collect())
        }),
        column("cost", &|cause| {
            CellValue::Record(vec![
                (
                    "bytes".into(),
                    cause.cost.bytes.map_or(CellValue::None, |it| CellValue::Bytes(it.0)),
                ),
                ("memory_share".into(), CellValue::Share(cause.cost.memory_share)),
                ("time_share".into(), CellValue::Share(cause.cost.time_share)),
                ("risk".into(), CellValue::Share(cause.cost.risk)),
            ])
        }),
        column("remedy_now", &|cause| remedy(cause.now.as_ref())),
        column("remedy_now_command", &|cause| {
            let command = cause.now.as_ref().map(|now| now.command.clone());
            command.filter(|it| !it.is_empty()).map_or(CellValue::None, text)
        }),
        column("remedy_code", &|cause| remedy(cause.code.as_ref())),
        column("instruments", &|cause| {
            let needs = causes::row(cause.id).map_or(&[][..], |row| row.needs);
            CellValue::List(needs.iter().map(|it| text(it.key())).collect())
        }),
        column("source", &|cause| {
            causes::row(cause.id).map_or(CellValue::None, |row| text(row.source))
        }),
        column("next", &|cause| {
            cause.confidence.decided_by().map_or(CellValue::None, |it| text(it.clone()))
        }),
    ];
    ReportTable {
        key: "causes".into(),
        title: "".into(),
        audience: Audience::Programs,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// Returns the block of a cause for people.
fn cause_block(number: u32, cause: &Cause) -> ReportBlock {
    let title = causes::row(cause.id).map_or(cause.id, |row| row.title);
    let confidence = cause.confidence.key();
    let line = |key: &'static str, value| fact(key, key, value, "").for_people();
    let object = object_words(&cause.object);
    let mut facts =
        vec![line("finding", plain(&cause.sentence)), line("object", CellValue::Name(object))];
    if !cause.evidence.is_empty() {
        let evidence = cause.evidence.iter().map(|it| (it.label.clone(), it.value.clone()));
        facts.push(line("evidence", CellValue::Record(evidence.collect())));
    }
    let remedies = [("now", &cause.now), ("in the code", &cause.code)];
    for (label, remedy) in remedies {
        facts.extend(remedy.as_ref().map(|it| line(label, plain(&remedy_pieces(it)))));
    }
    if let Some(command) = cause.confidence.decided_by() {
        facts.push(line("to be sure", text(format!("`{command}`"))));
    }
    ReportBlock::Facts(NamedFacts {
        key: "".into(),
        title: format!("{number}. {title} ({confidence})").into(),
        audience: Audience::People,
        shape: FactsShape::List,
        facts,
    })
}

/// Returns a table with these columns for programs.
fn listed(key: &'static str, columns: Vec<(&'static str, Vec<CellValue>)>) -> ReportBlock {
    let columns = columns
        .into_iter()
        .map(|(key, cells)| TableColumn::new(key, key, ColumnCells::Values(cells)));
    ReportBlock::Table(ReportTable {
        key: key.into(),
        title: "".into(),
        audience: Audience::Programs,
        columns: columns.collect(),
        row_keys: None,
        total: None,
        note: "".into(),
    })
}

fn excluded(diagnosis: &Diagnosis, options: &DiagnosisOptions) -> Vec<ReportBlock> {
    let all = &diagnosis.ruled_out;
    let mut blocks = vec![listed(
        "ruled_out",
        vec![
            ("id", all.iter().map(|it| text(it.id)).collect()),
            ("evidence", all.iter().map(|it| plain(&it.evidence)).collect()),
        ],
    )];
    if all.is_empty() {
        return blocks;
    }
    if options.all {
        let lines = all.iter().map(|it| Fact {
            meaning: "".into(),
            ..fact(it.id, it.title, plain(&it.evidence), "")
        });
        blocks.push(ReportBlock::Facts(NamedFacts {
            key: "".into(),
            title: "Ruled out".into(),
            audience: Audience::People,
            shape: FactsShape::List,
            facts: lines.map(Fact::for_people).collect(),
        }));
    } else {
        let (named, others) = all.split_at(all.len().min(MAX_RULED_OUT));
        let titles: Vec<&str> = named.iter().map(|it| it.title).collect();
        let mut pieces = vec![text(titles.join("; "))];
        if !others.is_empty() {
            pieces.push(text("; and "));
            pieces.push(CellValue::Count(others.len() as u64));
            pieces.push(text(" others"));
        }
        pieces.push(text(". `--all` shows the figure of each."));
        blocks.push(text_block("Ruled out", pieces));
    }
    blocks
}

fn unseen(diagnosis: &Diagnosis, options: &DiagnosisOptions) -> Vec<ReportBlock> {
    let all = &diagnosis.not_seen;
    let mut blocks = vec![listed(
        "not_seen",
        vec![
            ("id", all.iter().map(|it| text(it.id)).collect()),
            ("why", all.iter().map(|it| text(it.why.clone())).collect()),
            ("command", all.iter().map(|it| text(it.command.clone())).collect()),
        ],
    )];
    if all.is_empty() {
        return blocks;
    }
    // Causes that lack the same evidence share a line.
    let mut lines: Vec<(&Label, &Label, Vec<&str>)> = Vec::new();
    for it in all {
        match lines.iter_mut().find(|(why, command, _)| (*why, *command) == (&it.why, &it.command))
        {
            Some((_, _, titles)) => titles.push(it.title),
            None => lines.push((&it.why, &it.command, vec![it.title])),
        }
    }
    let shown = if options.all { lines.len() } else { lines.len().min(MAX_UNSEEN_REASONS) };
    let (shown, others) = lines.split_at(shown);
    let mut pieces = Vec::new();
    let mut count: usize = others.iter().map(|(_, _, titles)| titles.len()).sum();
    for (at, (why, command, titles)) in shown.iter().enumerate() {
        let space = if at == 0 { "" } else { " " };
        let command = if command.is_empty() { String::new() } else { format!(" (`{command}`)") };
        let named = if options.all { titles.len() } else { titles.len().min(MAX_UNSEEN_TITLES) };
        count += titles.len() - named;
        pieces.push(text(format!("{space}{}: {why}{command}.", titles[..named].join(", "))));
    }
    if count > 0 {
        pieces.push(text(" "));
        pieces.push(CellValue::Count(count as u64));
        pieces.push(text(if count == 1 { " other" } else { " others" }));
        pieces.push(text(": `--all` shows the reasons."));
    }
    blocks.push(text_block("Could not be seen", pieces));
    blocks
}

pub(super) fn cost(cost: &DiagnosisCost) -> NamedFacts {
    let facts = vec![
        fact("cpu_ms", "CPU ms", CellValue::Count(cost.cpu_ns / 1_000_000), "").for_programs(),
        fact("longest_pause_us", "pause us", CellValue::Count(cost.longest_pause_ns / 1000), "")
            .for_programs(),
        fact("wall_ms", "ms", CellValue::Count(cost.wall_ns / 1_000_000), "").for_programs(),
        fact("cpu", "CPU time", CellValue::Nanos(cost.cpu_ns), "").for_people(),
        fact("pause", "longest pause of the target", CellValue::Nanos(cost.longest_pause_ns), "")
            .for_people(),
        fact("took", "duration", CellValue::Nanos(cost.wall_ns), "").for_people(),
    ];
    NamedFacts {
        key: "cost".into(),
        title: "Cost".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Line,
        facts,
    }
}
