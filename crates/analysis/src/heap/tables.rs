//! Tables: what was never freed, who allocates most, each site, by library, by thread.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{Amount, Recording, Site};
use pagewise_model::report::{Audience, Block, Cells, Column, Facts, Label, Shape, Table, Value};

use super::frames::{Place, Sites, Sum, plus};
use super::{Options, share, table, within};
use crate::blocks::{facts_of, first, for_programs};
use crate::explain::fact;

/// A heading with nothing below it tells people nothing.
fn for_programs_if_empty(table: Table) -> Table {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    Table { audience, ..table }
}

/// A column of numbers that are estimates where samples were taken: people see that in the heading.
fn numbers(key: &'static str, label: &'static str, estimated: bool, cells: Cells) -> Column {
    let label: Label = if estimated { format!("≈ {label}").into() } else { label.into() };
    Column::new(key, label, cells)
}

/// How far bytes may be off; for programs only where they are exact.
fn margin(key: &'static str, estimated: bool, errors: impl Iterator<Item = f64>) -> Column {
    let cells =
        errors.map(|error| if estimated { Value::Bytes(within(error)) } else { Value::None });
    let column = Column::new(key, "±", Cells::Values(cells.collect()));
    if estimated { column } else { for_programs(column) }
}

fn is_estimated(recording: &Recording) -> bool {
    recording.every_bytes.is_some()
}

/// What was never freed, by call stack; and how much of it is not shown.
pub(super) fn leaks(sites: &Sites<'_>, options: &Options) -> Vec<Block> {
    let recording = sites.recording;
    let mut leaks: Vec<&Site> =
        sites.all().filter(|site| site.leaked() != Amount::default()).collect();
    leaks.sort_by_key(|site| (Reverse((site.leaked().bytes, site.leaked().blocks)), site.stack));
    let (shown, note) = first(&leaks, options.limit, "--top");
    let all = recording.totals.leaked.bytes;
    let estimated = is_estimated(recording);
    let each = || shown.iter().map(|site| site.leaked());
    let columns = vec![
        numbers("bytes", "BYTES", estimated, Cells::Bytes(each().map(|it| it.bytes).collect())),
        margin("within", estimated, shown.iter().map(|it| it.errors.unwrap_or_default().1)),
        Column::new(
            "share",
            "SHARE",
            Cells::Values(each().map(|it| share(it.bytes, all)).collect()),
        ),
        numbers("blocks", "BLOCKS", estimated, Cells::Counts(each().map(|it| it.blocks).collect())),
        for_programs(Column::new(
            "stack",
            "CALL STACK",
            Cells::Values(shown.iter().map(|site| sites.stack_value(site)).collect()),
        )),
        Column {
            audience: Audience::People,
            ..Column::new(
                "where",
                "ALLOCATED IN ← CALLED BY",
                Cells::Names(shown.iter().map(|site| sites.stack_words(site)).collect()),
            )
        },
    ];
    let leaked = Table { note, ..table("leaks", "Not freed", Audience::Everyone, columns) };
    let mut blocks = vec![Block::Table(for_programs_if_empty(leaked))];
    let mut rest = Amount::default();
    leaks[shown.len()..].iter().for_each(|site| plus(&mut rest, site.leaked()));
    if shown.len() < leaks.len() {
        let facts = vec![
            fact("stacks", "stacks", Value::Count((leaks.len() - shown.len()) as u64), ""),
            fact("bytes", "bytes", Value::Bytes(rest.bytes), ""),
            fact("blocks", "blocks", Value::Count(rest.blocks), ""),
        ];
        let facts = facts_of("leaks_left_out", "", Shape::Line, facts);
        blocks.push(Block::Facts(Facts { audience: Audience::Programs, ..facts }));
    }
    blocks
}

/// Columns of sums.
fn sums(estimated: bool, sums: &[Sum]) -> Vec<Column> {
    let bytes = |key, label, pick: fn(&Sum) -> u64| {
        numbers(key, label, estimated, Cells::Bytes(sums.iter().map(pick).collect()))
    };
    let counts = |key, label, pick: fn(&Sum) -> u64| {
        numbers(key, label, estimated, Cells::Counts(sums.iter().map(pick).collect()))
    };
    vec![
        counts("allocations", "CALLS", |sum| sum.allocated.blocks),
        bytes("allocated_bytes", "ALLOCATED", |sum| sum.allocated.bytes),
        margin("allocated_within", estimated, sums.iter().map(|sum| sum.errors.0)),
        counts("temporary", "TEMPORARY", |sum| sum.temporary),
        bytes("peak_bytes", "AT PEAK", |sum| sum.at_peak.bytes),
        for_programs(counts("peak_blocks", "BLOCKS", |sum| sum.at_peak.blocks)),
        bytes("leaked_bytes", "NOT FREED", |sum| sum.leaked.bytes),
        for_programs(counts("leaked_blocks", "BLOCKS", |sum| sum.leaked.blocks)),
        for_programs(margin("leaked_within", estimated, sums.iter().map(|sum| sum.errors.1))),
    ]
}

/// By who asked for memory: most bytes, most calls, most for a moment only.
pub(super) fn places(sites: &Sites<'_>, options: &Options) -> Vec<Table> {
    let by_place = sites.by_place();
    let mut tables =
        vec![places_table(sites, &by_place, options, "places", "Most bytes allocated")];
    /// What an order goes by.
    type By = fn(&Sum) -> u64;
    let others: [(&str, &str, By); 2] = [
        ("places_by_calls", "Most allocations", |sum| sum.allocated.blocks),
        ("places_by_temporary", "Most temporary allocations", |sum| sum.temporary),
    ];
    for (key, title, by) in others {
        let mut sorted: Vec<(Place, Sum)> =
            by_place.iter().filter(|(_, sum)| by(sum) > 0).copied().collect();
        sorted.sort_by_key(|(place, sum)| (Reverse(by(sum)), *place));
        let same = |a: &[(Place, Sum)], b: &[(Place, Sum)]| {
            a.iter().map(|it| it.0).eq(b.iter().map(|it| it.0))
        };
        // Of few places each order shows all: once is enough.
        let few = options.limit.is_none_or(|limit| by_place.len() <= limit);
        if few || same(&sorted, &by_place) {
            continue;
        }
        let table = places_table(sites, &sorted, options, key, title);
        tables.push(Table { audience: Audience::People, ..table });
    }
    tables
        .into_iter()
        .map(for_programs_if_empty)
        .filter(|it| it.key == "places" || it.rows() > 0)
        .collect()
}

fn places_table(
    sites: &Sites<'_>,
    places: &[(Place, Sum)],
    options: &Options,
    key: &'static str,
    title: &'static str,
) -> Table {
    let (shown, note) = first(places, options.limit, "--top");
    let mut columns =
        sums(is_estimated(sites.recording), &shown.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    let frame = |place: &Place| place.and_then(|number| sites.frame(number));
    let value = |pick: &dyn Fn(&pagewise_model::traced::Frame) -> Option<Value>| {
        let each =
            shown.iter().map(|(place, _)| frame(place).and_then(pick).unwrap_or(Value::None));
        Cells::Values(each.collect())
    };
    columns.extend([
        for_programs(Column::new(
            "function",
            "FUNCTION",
            value(&|frame| Some(super::frames::function(frame))),
        )),
        for_programs(Column::new(
            "file",
            "FILE",
            value(&|frame| Some(Value::Name(Name::new(frame.line.as_ref()?.file.as_bytes())))),
        )),
        for_programs(Column::new(
            "line",
            "LINE",
            value(&|frame| Some(Value::Count(frame.line.as_ref()?.number.into()))),
        )),
        for_programs(Column::new(
            "module",
            "MODULE",
            value(&|frame| Some(Value::Name(frame.module.clone()?))),
        )),
        for_programs(Column::new(
            "offset",
            "OFFSET",
            value(&|frame| Some(Value::Count(frame.offset))),
        )),
        Column {
            audience: Audience::People,
            ..Column::new(
                "where",
                "ALLOCATED IN",
                Cells::Names(shown.iter().map(|(place, _)| sites.words(*place)).collect()),
            )
        },
    ]);
    Table { note, ..table(key, title, Audience::Everyone, columns) }
}

/// Each call stack, for programs.
pub(super) fn sites(sites: &Sites<'_>, options: &Options) -> Table {
    let recording = sites.recording;
    let mut order: Vec<&Site> = sites.all().collect();
    order.sort_by_key(|site| (Reverse(site.allocated.bytes), site.stack));
    let (shown, note) = first(&order, options.limit, "--top");
    let of = |site: &&Site| {
        let mut sum = Sum::default();
        sum.add(site);
        sum
    };
    let mut columns = sums(is_estimated(recording), &shown.iter().map(of).collect::<Vec<_>>());
    let kind = |site: &&Site| -> Label {
        match site.kind {
            pagewise_model::heap::Kind::Heap => "heap".into(),
            pagewise_model::heap::Kind::Mapping => "mapping".into(),
            pagewise_model::heap::Kind::Pool => "pool".into(),
        }
    };
    columns.extend([
        Column::new(
            "frees",
            "FREES",
            Cells::Counts(shown.iter().map(|it| it.freed.blocks).collect()),
        ),
        Column::new(
            "freed_bytes",
            "FREED",
            Cells::Bytes(shown.iter().map(|it| it.freed.bytes).collect()),
        ),
        Column::new("kind", "KIND", Cells::Labels(shown.iter().map(kind).collect())),
        Column::new(
            "stack",
            "CALL STACK",
            Cells::Values(shown.iter().map(|site| sites.stack_value(site)).collect()),
        ),
    ]);
    Table { note, ..table("sites", "By call stack", Audience::Programs, columns) }
}

/// By the file of who asked for memory.
pub(super) fn libraries(sites: &Sites<'_>, options: &Options) -> Table {
    let mut by: HashMap<Option<&Name>, Sum> = HashMap::new();
    for site in sites.all() {
        let frame = sites.place(site).and_then(|number| sites.frame(number));
        by.entry(frame.and_then(|frame| frame.module.as_ref())).or_default().add(site);
    }
    let mut rows: Vec<(Option<&Name>, Sum)> = by.into_iter().collect();
    rows.sort_by_key(|(module, sum)| (Reverse(sum.allocated.bytes), *module));
    let (shown, note) = first(&rows, options.limit, "--top");
    let mut columns =
        sums(is_estimated(sites.recording), &shown.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    let path = |(module, _): &(Option<&Name>, Sum)| {
        module.map_or(Value::None, |it| Value::Name(it.clone()))
    };
    let called = |(module, _): &(Option<&Name>, Sum)| {
        module.map_or_else(|| Name::new(b"[no file]"), |it| Name::new(it.base()))
    };
    columns.extend([
        for_programs(Column::new(
            "module",
            "FILE",
            Cells::Values(shown.iter().map(path).collect()),
        )),
        Column {
            audience: Audience::People,
            ..Column::new("file", "FILE", Cells::Names(shown.iter().map(called).collect()))
        },
    ]);
    let audience = if rows.len() > 1 { Audience::Everyone } else { Audience::Programs };
    Table { note, ..table("libraries", "By library", audience, columns) }
}

/// By thread.
pub(super) fn threads(recording: &Recording, options: &Options) -> Table {
    let mut order: Vec<&pagewise_model::heap::Thread> = recording.threads.iter().collect();
    order.sort_by_key(|thread| (Reverse(thread.allocated.bytes), thread.tid));
    let (shown, note) = first(&order, options.limit, "--top");
    let estimated = is_estimated(recording);
    let amounts =
        |pick: fn(&pagewise_model::heap::Thread) -> u64| shown.iter().map(|it| pick(it)).collect();
    let tid = |thread: &&pagewise_model::heap::Thread| match thread.tid {
        0 => Value::None,
        tid => Value::Count(tid.into()),
    };
    let name = |thread: &&pagewise_model::heap::Thread| match (thread.tid, thread.name.is_empty()) {
        (0, true) => Name::new(b"[threads that ended]"),
        _ => thread.name.clone(),
    };
    let columns = vec![
        numbers(
            "allocations",
            "CALLS",
            estimated,
            Cells::Counts(amounts(|it| it.allocated.blocks)),
        ),
        numbers(
            "allocated_bytes",
            "ALLOCATED",
            estimated,
            Cells::Bytes(amounts(|it| it.allocated.bytes)),
        ),
        numbers("frees", "FREES", estimated, Cells::Counts(amounts(|it| it.freed.blocks))),
        numbers("freed_bytes", "FREED", estimated, Cells::Bytes(amounts(|it| it.freed.bytes))),
        Column::new("tid", "TID", Cells::Values(shown.iter().map(tid).collect())),
        Column::new("name", "THREAD", Cells::Names(shown.iter().map(name).collect())),
    ];
    let audience = if order.len() > 1 { Audience::Everyone } else { Audience::Programs };
    Table { note, ..table("threads", "By thread", audience, columns) }
}
