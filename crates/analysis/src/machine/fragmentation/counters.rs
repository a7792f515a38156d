//! Kernel counters: huge page allocations and failures, compaction, direct reclaim.

use pagewise_model::fields::{FIELDS, FieldMeaning};
use pagewise_model::fragmentation::{BootCounter, FreeMemory, SizeStats};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::{Absent, Name, Reading};

use super::{fact, label};
use crate::blocks::facts_of;
use crate::explain::meaning;

/// The fields of a source that have a meaning.
fn known(source: &str) -> impl Iterator<Item = &'static FieldMeaning> {
    FIELDS.iter().filter(move |field| field.source == source)
}

/// Prefixes of `vmstat` counters that are reported even without a meaning: newer kernels add more
/// of them.
const FAMILIES: [&[u8]; 3] = [b"thp_", b"compact_", b"allocstall"];

/// A counter that this kernel has.
struct CounterRow {
    name: Label,
    /// Empty for a counter that the table of fields does not have.
    meaning: &'static str,
    count: u64,
    /// Increase, and increase per second; absent if there is only one reading.
    added: Reading<(u64, f64)>,
}

/// The time from one reading to another.
pub(super) fn elapsed_ns(before: &FreeMemory, now: &FreeMemory) -> Reading<u64> {
    Ok(now.since_boot_ns.clone()?.saturating_sub(before.since_boot_ns.clone()?))
}

fn rows(before: Option<&FreeMemory>, now: &FreeMemory) -> Reading<Vec<CounterRow>> {
    let counters = now.vmstat.as_ref().map_err(Clone::clone)?;
    let added = |counter: &BootCounter| -> Reading<(u64, f64)> {
        let before = before.ok_or(Absent::NotCollected("take --every 1s for a rate".into()))?;
        let earlier = before.vmstat.as_ref().map_err(Clone::clone)?;
        let earlier = earlier.iter().find(|it| it.name == counter.name).map_or(0, |it| it.count);
        let added = counter.count.saturating_sub(earlier);
        Ok((added, per_second(added, elapsed_ns(before, now)?)))
    };
    let row = |counter: &BootCounter, meaning| CounterRow {
        name: label(&counter.name.escaped()),
        meaning,
        count: counter.count,
        added: added(counter),
    };
    let find = |field: &FieldMeaning| counters.iter().find(|it| is_called(it, field.name));
    let with_meaning = known("vmstat").filter_map(|field| Some(row(find(field)?, field.meaning)));
    let others = counters.iter().filter(|counter| {
        let is_of_a_family =
            FAMILIES.iter().any(|family| counter.name.as_bytes().starts_with(family));
        is_of_a_family && !known("vmstat").any(|field| is_called(counter, field.name))
    });
    Ok(with_meaning.chain(others.map(|counter| row(counter, ""))).collect())
}

fn is_called(counter: &BootCounter, name: &str) -> bool {
    counter.name.as_bytes() == name.as_bytes()
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn per_second(count: u64, in_ns: u64) -> f64 {
    if in_ns == 0 { 0.0 } else { count as f64 * 1e9 / in_ns as f64 }
}

/// The blocks of all counters.
pub(super) fn blocks(before: Option<&FreeMemory>, now: &FreeMemory) -> Vec<ReportBlock> {
    let mut blocks: Vec<ReportBlock> =
        programs(before, now).map(ReportBlock::Table).into_iter().collect();
    match rows(before, now) {
        Ok(rows) => blocks.push(ReportBlock::Table(people(&rows, before.is_some()))),
        Err(absent) => blocks.push(missing("counters", "what the kernel counted", absent)),
    }
    match &now.sizes {
        Ok(sizes) => {
            blocks.push(ReportBlock::Table(sizes_for_programs(sizes)));
            blocks.extend(sizes_for_people(sizes).map(ReportBlock::Table));
        }
        Err(absent) => blocks.push(missing("sizes", "huge pages by size", absent.clone())),
    }
    blocks
}

fn missing(key: &'static str, label: &'static str, absent: Absent) -> ReportBlock {
    let facts = vec![fact(key, label, CellValue::Absent(absent), "")];
    ReportBlock::Facts(facts_of("", "", FactsShape::Line, facts))
}

fn table(key: &'static str, audience: Audience, columns: Vec<TableColumn>) -> ReportTable {
    ReportTable {
        key: key.into(),
        title: "".into(),
        audience,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

/// `counters`: an object with one member per counter.
pub(super) fn programs(before: Option<&FreeMemory>, now: &FreeMemory) -> Option<ReportTable> {
    let rows = rows(before, now).ok()?;
    let values = |value: &dyn Fn(&CounterRow) -> CellValue| {
        ColumnCells::Values(rows.iter().map(value).collect())
    };
    let added = |row: &CounterRow, make: fn((u64, f64)) -> CellValue| {
        CellValue::from_reading(row.added.clone(), make)
    };
    let mut columns = vec![
        TableColumn::new("count", "Since boot", values(&|row| CellValue::Count(row.count))),
        TableColumn::new("meaning", "Meaning", values(&meaning_of)),
    ];
    if before.is_some() {
        let change = values(&|row| added(row, |(count, _)| CellValue::Count(count)));
        let rate = values(&|row| added(row, |(_, rate)| CellValue::Rate(rate)));
        columns.push(TableColumn::new("change", "Added", change));
        columns.push(TableColumn::new("per_second", "Per second", rate));
    }
    let keys = rows.iter().map(|row| row.name.clone()).collect();
    Some(ReportTable { row_keys: Some(keys), ..table("counters", Audience::Programs, columns) })
}

fn meaning_of(row: &CounterRow) -> CellValue {
    let unknown = || Absent::NotCollected("unknown to pagewise".into());
    match row.meaning {
        "" => CellValue::Absent(unknown()),
        meaning => CellValue::text(meaning),
    }
}

/// The counters that are not 0, and the names of those that are.
fn people(rows: &[CounterRow], has_rates: bool) -> ReportTable {
    let shown: Vec<&CounterRow> = rows.iter().filter(|row| row.count > 0).collect();
    let zero: Vec<&str> = rows.iter().filter(|row| row.count == 0).map(|r| &*r.name).collect();
    let mut columns = vec![
        TableColumn::new(
            "counter",
            "Counter",
            ColumnCells::Labels(texts(&shown, |row| row.name.clone())),
        ),
        TableColumn::new(
            "count",
            "Since boot",
            ColumnCells::Counts(shown.iter().map(|r| r.count).collect()),
        ),
    ];
    if has_rates {
        let rate = |row: &&CounterRow| {
            CellValue::from_reading(row.added.clone(), |(_, rate)| CellValue::Rate(rate))
        };
        columns.push(TableColumn::new(
            "per_second",
            "Per second",
            ColumnCells::Values(shown.iter().map(rate).collect()),
        ));
    }
    columns.push(TableColumn::new(
        "meaning",
        "",
        ColumnCells::Labels(texts(&shown, |row| row.meaning.into())),
    ));
    let note = if zero.is_empty() {
        String::new()
    } else {
        format!("None since boot: {}.", zero.join(", "))
    };
    ReportTable {
        title: "Kernel counters".into(),
        note: note.into(),
        ..table("", Audience::People, columns)
    }
}

fn texts(rows: &[&CounterRow], text: fn(&CounterRow) -> Label) -> Vec<Label> {
    rows.iter().map(|row| text(row)).collect()
}

/// The counters that increased, as facts of a line. For people: programs have [`programs`].
pub(super) fn moving(before: &FreeMemory, now: &FreeMemory) -> Vec<Fact> {
    let rows = rows(Some(before), now).unwrap_or_default();
    let moved = rows.iter().filter_map(|row| match row.added {
        Ok((1.., rate)) => Some(Fact {
            key: row.name.clone(),
            label: row.name.clone(),
            value: CellValue::Rate(rate),
            meaning: "".into(),
            audience: Audience::People,
        }),
        _ => None,
    });
    moved.collect()
}

/// `sizes[]`: every statistic of every size.
fn sizes_for_programs(sizes: &[SizeStats]) -> ReportTable {
    let stat = |stat: &BootCounter| (label(&stat.name.escaped()), CellValue::Count(stat.count));
    let stats = |size: &SizeStats| CellValue::Record(size.stats.iter().map(stat).collect());
    let columns = vec![
        TableColumn::new(
            "size",
            "Size",
            ColumnCells::Bytes(sizes.iter().map(|s| s.size.0).collect()),
        ),
        TableColumn::new("stats", "", ColumnCells::Values(sizes.iter().map(stats).collect())),
    ];
    table("sizes", Audience::Programs, columns)
}

/// The sizes and statistics that are not 0.
fn sizes_for_people(sizes: &[SizeStats]) -> Option<ReportTable> {
    let used: Vec<&SizeStats> =
        sizes.iter().filter(|size| size.stats.iter().any(|stat| stat.count > 0)).collect();
    let columns = [TableColumn::new(
        "size",
        "Size",
        ColumnCells::Bytes(used.iter().map(|s| s.size.0).collect()),
    )];
    let source = "hugepages stats";
    let mut unknown: Vec<&Name> =
        used.iter().flat_map(|size| &size.stats).map(|it| &it.name).collect();
    unknown.retain(|name| !known(source).any(|field| name.as_bytes() == field.name.as_bytes()));
    unknown.sort();
    unknown.dedup();
    let known_names = known(source).map(|field| (Name::from(field.name), meaning(field.name)));
    let names = known_names.chain(unknown.into_iter().map(|name| (name.clone(), "")));
    let statistics = names.filter_map(|(name, meaning)| {
        let count = |size: &&SizeStats| {
            let stat = size.stats.iter().find(|stat| stat.name == name);
            stat.map_or(CellValue::None, |stat| CellValue::Count(stat.count))
        };
        let counts: Vec<CellValue> = used.iter().map(count).collect();
        let name = label(&name.escaped());
        counts.iter().any(|count| matches!(count, CellValue::Count(1..))).then(|| TableColumn {
            meaning: meaning.into(),
            ..TableColumn::new(name.clone(), name, ColumnCells::Values(counts))
        })
    });
    (!used.is_empty()).then(|| ReportTable {
        title: "Huge pages by size".into(),
        note: "Other sizes and statistics are 0. Those called nr_* are what there is now.".into(),
        ..table("", Audience::People, columns.into_iter().chain(statistics).collect())
    })
}
