//! Tables of blocks that were never freed, of the functions that allocate the most, of sites, of
//! libraries and of threads.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{AllocationSite, HeapAmount, HeapRecording};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Label, NamedFacts, ReportBlock, ReportTable,
    TableColumn,
};

use super::frames::{AllocatingFrame, SiteSum, Sites, plus};
use super::{HeapOptions, table, within};
use crate::blocks::{facts_of, first, for_people, for_programs};
use crate::cells::share;
use crate::explain::fact;

/// Hides a table without rows from people, to whom a heading alone is useless.
fn for_programs_if_empty(table: ReportTable) -> ReportTable {
    let audience = if table.rows() == 0 { Audience::Programs } else { table.audience };
    ReportTable { audience, ..table }
}

/// Builds a column of numbers. If they are estimates from samples, the heading for people marks
/// them.
fn numbers(
    key: &'static str,
    label: &'static str,
    estimated: bool,
    cells: ColumnCells,
) -> TableColumn {
    let label: Label = if estimated { format!("≈ {label}").into() } else { label.into() };
    TableColumn::new(key, label, cells)
}

/// Builds the column of the error bounds of bytes. If the bytes are exact, people do not see the
/// column.
fn margin(key: &'static str, estimated: bool, errors: impl Iterator<Item = f64>) -> TableColumn {
    let cells = errors
        .map(|error| if estimated { CellValue::Bytes(within(error)) } else { CellValue::None });
    let column = TableColumn::new(key, "±", ColumnCells::Values(cells.collect()));
    if estimated { column } else { for_programs(column) }
}

fn is_estimated(recording: &HeapRecording) -> bool {
    recording.every_bytes.is_some()
}

/// Builds the table of blocks that were never freed, by call stack, and the amount that is not
/// shown.
pub(super) fn leaks(sites: &Sites<'_>, options: &HeapOptions) -> Vec<ReportBlock> {
    let recording = sites.recording;
    let mut leaks: Vec<&AllocationSite> =
        sites.all().filter(|site| site.leaked() != HeapAmount::default()).collect();
    leaks.sort_by_key(|site| (Reverse((site.leaked().bytes, site.leaked().blocks)), site.stack));
    let (shown, note) = first(&leaks, options.limit, "--top");
    let all = recording.totals.leaked.bytes;
    let estimated = is_estimated(recording);
    let each = || shown.iter().map(|site| site.leaked());
    let columns = vec![
        numbers(
            "bytes",
            "BYTES",
            estimated,
            ColumnCells::Bytes(each().map(|it| it.bytes).collect()),
        ),
        margin("within", estimated, shown.iter().map(|it| it.errors.unwrap_or_default().1)),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(each().map(|it| share(it.bytes, all)).collect()),
        ),
        numbers(
            "blocks",
            "BLOCKS",
            estimated,
            ColumnCells::Counts(each().map(|it| it.blocks).collect()),
        ),
        for_programs(TableColumn::new(
            "stack",
            "CALL STACK",
            ColumnCells::Values(shown.iter().map(|site| sites.stack_value(site)).collect()),
        )),
        for_people(TableColumn::new(
            "where",
            "ALLOCATED IN ← CALLED BY",
            ColumnCells::Names(shown.iter().map(|site| sites.stack_words(site)).collect()),
        )),
    ];
    let leaked = ReportTable { note, ..table("leaks", "Not freed", Audience::Everyone, columns) };
    let mut blocks = vec![ReportBlock::Table(for_programs_if_empty(leaked))];
    let mut rest = HeapAmount::default();
    leaks[shown.len()..].iter().for_each(|site| plus(&mut rest, site.leaked()));
    if shown.len() < leaks.len() {
        let facts = vec![
            fact("stacks", "stacks", CellValue::Count((leaks.len() - shown.len()) as u64), ""),
            fact("bytes", "bytes", CellValue::Bytes(rest.bytes), ""),
            fact("blocks", "blocks", CellValue::Count(rest.blocks), ""),
        ];
        let facts = facts_of("leaks_left_out", "", FactsShape::Line, facts);
        blocks.push(ReportBlock::Facts(NamedFacts { audience: Audience::Programs, ..facts }));
    }
    blocks
}

/// Builds the columns of sums.
fn sums(estimated: bool, sums: &[SiteSum]) -> Vec<TableColumn> {
    let bytes = |key, label, pick: fn(&SiteSum) -> u64| {
        numbers(key, label, estimated, ColumnCells::Bytes(sums.iter().map(pick).collect()))
    };
    let counts = |key, label, pick: fn(&SiteSum) -> u64| {
        numbers(key, label, estimated, ColumnCells::Counts(sums.iter().map(pick).collect()))
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

/// Builds the tables by allocating frame: most bytes, most allocations, most temporary allocations.
pub(super) fn places(sites: &Sites<'_>, options: &HeapOptions) -> Vec<ReportTable> {
    let by_place = sites.by_place();
    let mut tables =
        vec![places_table(sites, &by_place, options, "places", "Most bytes allocated")];
    /// Function that returns the sort key of a row.
    type OrderKey = fn(&SiteSum) -> u64;
    let others: [(&str, &str, OrderKey); 2] = [
        ("places_by_calls", "Most allocations", |sum| sum.allocated.blocks),
        ("places_by_temporary", "Most temporary allocations", |sum| sum.temporary),
    ];
    for (key, title, by) in others {
        let mut sorted: Vec<(AllocatingFrame, SiteSum)> =
            by_place.iter().filter(|(_, sum)| by(sum) > 0).copied().collect();
        sorted.sort_by_key(|(place, sum)| (Reverse(by(sum)), *place));
        let same = |a: &[(AllocatingFrame, SiteSum)], b: &[(AllocatingFrame, SiteSum)]| {
            a.iter().map(|it| it.0).eq(b.iter().map(|it| it.0))
        };
        // If a table shows all rows, a second order adds no information.
        let few = options.limit.is_none_or(|limit| by_place.len() <= limit);
        if few || same(&sorted, &by_place) {
            continue;
        }
        let table = places_table(sites, &sorted, options, key, title);
        tables.push(ReportTable { audience: Audience::People, ..table });
    }
    tables
        .into_iter()
        .map(for_programs_if_empty)
        .filter(|it| it.key == "places" || it.rows() > 0)
        .collect()
}

fn places_table(
    sites: &Sites<'_>,
    places: &[(AllocatingFrame, SiteSum)],
    options: &HeapOptions,
    key: &'static str,
    title: &'static str,
) -> ReportTable {
    let (shown, note) = first(places, options.limit, "--top");
    let mut columns =
        sums(is_estimated(sites.recording), &shown.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    let frame = |place: &AllocatingFrame| place.and_then(|number| sites.frame(number));
    let value = |pick: &dyn Fn(&pagewise_model::traced::Frame) -> Option<CellValue>| {
        let each =
            shown.iter().map(|(place, _)| frame(place).and_then(pick).unwrap_or(CellValue::None));
        ColumnCells::Values(each.collect())
    };
    columns.extend([
        for_programs(TableColumn::new(
            "function",
            "FUNCTION",
            value(&|frame| Some(super::frames::function(frame))),
        )),
        for_programs(TableColumn::new(
            "file",
            "FILE",
            value(&|frame| Some(CellValue::Name(Name::new(frame.line.as_ref()?.file.as_bytes())))),
        )),
        for_programs(TableColumn::new(
            "line",
            "LINE",
            value(&|frame| Some(CellValue::Count(frame.line.as_ref()?.number.into()))),
        )),
        for_programs(TableColumn::new(
            "module",
            "MODULE",
            value(&|frame| Some(CellValue::Name(frame.module.clone()?))),
        )),
        for_programs(TableColumn::new(
            "offset",
            "OFFSET",
            value(&|frame| Some(CellValue::Count(frame.offset))),
        )),
        for_people(TableColumn::new(
            "where",
            "ALLOCATED IN",
            ColumnCells::Names(shown.iter().map(|(place, _)| sites.frame_text(*place)).collect()),
        )),
    ]);
    ReportTable { note, ..table(key, title, Audience::Everyone, columns) }
}

/// Builds the table of call stacks, for programs.
pub(super) fn sites(sites: &Sites<'_>, options: &HeapOptions) -> ReportTable {
    let recording = sites.recording;
    let mut order: Vec<&AllocationSite> = sites.all().collect();
    order.sort_by_key(|site| (Reverse(site.allocated.bytes), site.stack));
    let (shown, note) = first(&order, options.limit, "--top");
    let of = |site: &&AllocationSite| {
        let mut sum = SiteSum::default();
        sum.add(site);
        sum
    };
    let mut columns = sums(is_estimated(recording), &shown.iter().map(of).collect::<Vec<_>>());
    let kind = |site: &&AllocationSite| -> Label {
        match site.kind {
            pagewise_model::heap::AllocationKind::Heap => "heap".into(),
            pagewise_model::heap::AllocationKind::Mapping => "mapping".into(),
            pagewise_model::heap::AllocationKind::Pool => "pool".into(),
        }
    };
    columns.extend([
        TableColumn::new(
            "frees",
            "FREES",
            ColumnCells::Counts(shown.iter().map(|it| it.freed.blocks).collect()),
        ),
        TableColumn::new(
            "freed_bytes",
            "FREED",
            ColumnCells::Bytes(shown.iter().map(|it| it.freed.bytes).collect()),
        ),
        TableColumn::new("kind", "KIND", ColumnCells::Labels(shown.iter().map(kind).collect())),
        TableColumn::new(
            "stack",
            "CALL STACK",
            ColumnCells::Values(shown.iter().map(|site| sites.stack_value(site)).collect()),
        ),
    ]);
    ReportTable { note, ..table("sites", "By call stack", Audience::Programs, columns) }
}

/// Builds the table by file of the allocating function.
pub(super) fn libraries(sites: &Sites<'_>, options: &HeapOptions) -> ReportTable {
    let mut by: HashMap<Option<&Name>, SiteSum> = HashMap::new();
    for site in sites.all() {
        let frame = sites.place(site).and_then(|number| sites.frame(number));
        by.entry(frame.and_then(|frame| frame.module.as_ref())).or_default().add(site);
    }
    let mut rows: Vec<(Option<&Name>, SiteSum)> = by.into_iter().collect();
    rows.sort_by_key(|(module, sum)| (Reverse(sum.allocated.bytes), *module));
    let (shown, note) = first(&rows, options.limit, "--top");
    let mut columns =
        sums(is_estimated(sites.recording), &shown.iter().map(|(_, sum)| *sum).collect::<Vec<_>>());
    let path = |(module, _): &(Option<&Name>, SiteSum)| {
        module.map_or(CellValue::None, |it| CellValue::Name(it.clone()))
    };
    let called = |(module, _): &(Option<&Name>, SiteSum)| {
        module.map_or_else(|| Name::new(b"[no file]"), |it| Name::new(it.base()))
    };
    columns.extend([
        for_programs(TableColumn::new(
            "module",
            "FILE",
            ColumnCells::Values(shown.iter().map(path).collect()),
        )),
        for_people(TableColumn::new(
            "file",
            "FILE",
            ColumnCells::Names(shown.iter().map(called).collect()),
        )),
    ]);
    let audience = if rows.len() > 1 { Audience::Everyone } else { Audience::Programs };
    ReportTable { note, ..table("libraries", "By library", audience, columns) }
}

/// Builds the table by thread.
pub(super) fn threads(recording: &HeapRecording, options: &HeapOptions) -> ReportTable {
    let mut order: Vec<&pagewise_model::heap::HeapThread> = recording.threads.iter().collect();
    order.sort_by_key(|thread| (Reverse(thread.allocated.bytes), thread.tid));
    let (shown, note) = first(&order, options.limit, "--top");
    let estimated = is_estimated(recording);
    let amounts = |pick: fn(&pagewise_model::heap::HeapThread) -> u64| {
        shown.iter().map(|it| pick(it)).collect()
    };
    let tid = |thread: &&pagewise_model::heap::HeapThread| match thread.tid {
        0 => CellValue::None,
        tid => CellValue::Count(tid.into()),
    };
    let name =
        |thread: &&pagewise_model::heap::HeapThread| match (thread.tid, thread.name.is_empty()) {
            (0, true) => Name::new(b"[threads that ended]"),
            _ => thread.name.clone(),
        };
    let columns = vec![
        numbers(
            "allocations",
            "CALLS",
            estimated,
            ColumnCells::Counts(amounts(|it| it.allocated.blocks)),
        ),
        numbers(
            "allocated_bytes",
            "ALLOCATED",
            estimated,
            ColumnCells::Bytes(amounts(|it| it.allocated.bytes)),
        ),
        numbers("frees", "FREES", estimated, ColumnCells::Counts(amounts(|it| it.freed.blocks))),
        numbers(
            "freed_bytes",
            "FREED",
            estimated,
            ColumnCells::Bytes(amounts(|it| it.freed.bytes)),
        ),
        TableColumn::new("tid", "TID", ColumnCells::Values(shown.iter().map(tid).collect())),
        TableColumn::new("name", "THREAD", ColumnCells::Names(shown.iter().map(name).collect())),
    ];
    let audience = if order.len() > 1 { Audience::Everyone } else { Audience::Programs };
    ReportTable { note, ..table("threads", "By thread", audience, columns) }
}
