//! Tables of the quadrants, the pools, the largest mappings, and all mappings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Gaps, Label, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Mapping, Name, Quadrant, Reading};

use super::{ExplainSubject, meaning};
use crate::blocks::table;
use crate::maps::mode;
use crate::pools::{PoolKind, PoolSums};
use crate::quadrants::{self, QuadrantCell, Quadrants, counts_in_virt};

/// Maximum number of rows for pools of the same type, for people. If a type has more pools, its
/// smaller pools share a row.
const ROWS_OF_A_KIND: usize = 6;

/// Builds the tables of the quadrants by mapping type and by page state. People see the second
/// table only if it differs from the first.
pub(super) fn quadrants(quadrants: &Quadrants, shown: bool) -> Vec<ReportBlock> {
    let agree = quadrants.agree();
    let declared = quadrant_table("quadrants.declared", "By mapping type", &quadrants.declared);
    let effective = quadrant_table("quadrants.effective", "By page state", &quadrants.effective);
    let audience = |visible: bool| match visible {
        true => Audience::Everyone,
        false => Audience::Programs,
    };
    let same = shown && agree;
    let note = if same { "Page by page it is the same." } else { "" };
    let note_effective = "A written page of a private file mapping is anonymous; a page that other processes map too is shared.";
    let tables = [
        ReportTable { audience: audience(shown), note: note.into(), ..declared },
        ReportTable {
            audience: audience(shown && !agree),
            note: note_effective.into(),
            ..effective
        },
    ];
    tables.map(ReportBlock::Table).into()
}

/// A column of the quadrants: key, heading, field whose meaning the column has, and function that
/// returns the number.
type QuadrantColumn =
    (&'static str, &'static str, &'static str, fn(&QuadrantCell) -> &Reading<Bytes>);

const QUADRANT_COLUMNS: [QuadrantColumn; 5] = [
    ("reserved", "Reserved", "VIRT", |c| &c.reserved),
    ("resident", "Resident", "RSS", |c| &c.resident),
    ("pss", "PSS", "PSS", |c| &c.pss),
    ("swapped", "Swapped", "Swap", |c| &c.swapped),
    ("dirty", "Dirty", "dirty", |c| &c.dirty),
];

fn quadrant_table(
    key: &'static str,
    title: &'static str,
    cells: &quadrants::QuadrantCells,
) -> ReportTable {
    let names = Quadrant::ALL.map(|q| Label::from(q.label()));
    let names = TableColumn::new("quadrant", "", ColumnCells::Labels(names.to_vec()));
    let mut columns = vec![TableColumn { audience: Audience::People, ..names }];
    let mut total = vec![CellValue::text("total")];
    for (key, label, meant, number) in QUADRANT_COLUMNS {
        columns.push(bytes(key, label, meant, cells.iter().map(|c| number(c).clone())));
        total.push(CellValue::bytes(cells.iter().map(|c| number(c).clone()).sum()));
    }
    ReportTable {
        row_keys: Some(Quadrant::ALL.map(|q| q.key().into()).to_vec()),
        total: Some(total),
        ..table(key, title, Audience::Everyone, columns)
    }
}

/// One row of the table of pools.
struct PoolTableRow {
    kind: PoolKind,
    name: Name,
    sums: PoolSums,
    /// Bytes of the pool in the core file; 0 without a core file.
    in_core: Bytes,
}

impl PoolTableRow {
    /// Sort key for descending order: by resident size or bytes in the core file, then by address
    /// space.
    fn rank(&self) -> Reverse<(Bytes, Bytes)> {
        let resident = self.sums.resident.clone().unwrap_or(self.in_core);
        Reverse((resident, self.sums.reserved))
    }
}

/// Builds the tables of pools: all pools for programs; for people, small pools of the same type
/// share a row.
pub(super) fn pools(subject: &ExplainSubject<'_>) -> [ReportBlock; 2] {
    let pools = subject.pools.list().iter().zip(&subject.sums).zip(in_core_by_pool(subject));
    let mut rows: Vec<PoolTableRow> = pools
        .map(|((pool, sums), in_core)| PoolTableRow {
            kind: pool.kind,
            name: pool.name.clone(),
            sums: sums.clone(),
            in_core,
        })
        .collect();
    rows.sort_by_key(PoolTableRow::rank);
    let is_core = subject.coverage.is_some();
    let all = pool_table(&rows, is_core, Audience::Programs);
    let shown = if rows.is_empty() { Audience::Programs } else { Audience::People };
    [ReportBlock::Table(all), ReportBlock::Table(pool_table(&fold(rows), is_core, shown))]
}

/// Returns the bytes of each pool in the core file; 0 without a core file.
fn in_core_by_pool(subject: &ExplainSubject<'_>) -> Vec<Bytes> {
    let mut sums = vec![Bytes::ZERO; subject.pools.list().len()];
    let Some(coverage) = &subject.coverage else { return sums };
    let counted = |(index, _): &(usize, &Bytes)| counts_in_virt(&subject.mappings[*index]);
    for (mapping, held) in coverage.held.iter().enumerate().filter(counted) {
        sums[subject.pools.index(mapping)] += *held;
    }
    sums
}

/// Adds the column of bytes in the core file after the column `after`. If there is a core file,
/// columns that core files lack are for programs only.
fn with_core(columns: Vec<TableColumn>, after: &str, in_core: Vec<u64>) -> Vec<TableColumn> {
    let mut added = Vec::with_capacity(columns.len() + 1);
    let mut in_core = Some(TableColumn {
        meaning: IN_CORE.into(),
        ..TableColumn::new("in_core", "In core", ColumnCells::Bytes(in_core))
    });
    for column in columns {
        let is_last = column.key == after;
        let is_unrecorded = matches!(column.gaps, Gaps::All(Absent::NotRecorded(_)));
        let audience = if is_unrecorded { Audience::Programs } else { column.audience };
        added.push(TableColumn { audience, ..column });
        if is_last {
            added.extend(in_core.take());
        }
    }
    added
}

/// Meaning of the column of bytes in a core file.
const IN_CORE: &str = "Bytes of memory that the core file has. They need not have been resident.";

/// If a type has many pools, sums its smaller rows into one row.
fn fold(rows: Vec<PoolTableRow>) -> Vec<PoolTableRow> {
    let mut of_kind: BTreeMap<PoolKind, usize> = BTreeMap::new();
    for row in &rows {
        *of_kind.entry(row.kind).or_default() += 1;
    }
    let mut seen: BTreeMap<PoolKind, usize> = BTreeMap::new();
    let mut folded: BTreeMap<PoolKind, (usize, PoolSums, Bytes)> = BTreeMap::new();
    let mut kept = Vec::new();
    for row in rows {
        let seen = seen.entry(row.kind).or_default();
        *seen += 1;
        if of_kind[&row.kind] <= ROWS_OF_A_KIND || *seen < ROWS_OF_A_KIND {
            kept.push(row);
        } else {
            let (count, sums, in_core) =
                folded.entry(row.kind).or_insert((0, PoolSums::NONE, Bytes::ZERO));
            *count += 1;
            sums.add(&row.sums);
            *in_core += row.in_core;
        }
    }
    kept.extend(folded.into_iter().map(|(kind, (count, sums, in_core))| {
        let name = Name::from(format!("and {count} more").as_str());
        PoolTableRow { kind, name, sums, in_core }
    }));
    kept.sort_by_key(PoolTableRow::rank);
    kept
}

fn pool_table(rows: &[PoolTableRow], is_core: bool, audience: Audience) -> ReportTable {
    let label = |of: fn(PoolKind) -> &'static str| {
        ColumnCells::Labels(rows.iter().map(|row| of(row.kind).into()).collect())
    };
    let ids = TableColumn::new("pool", "Pool", label(PoolKind::id));
    let labels = TableColumn::new("label", "Pool", label(PoolKind::label));
    let number =
        |number: fn(&PoolSums) -> Reading<Bytes>| rows.iter().map(move |r| number(&r.sums));
    let mappings = rows.iter().map(|row| row.sums.mappings).collect();
    let names = ColumnCells::Names(rows.iter().map(|row| row.name.clone()).collect());
    let mut columns = vec![
        TableColumn { audience: Audience::Programs, ..ids },
        TableColumn { audience: Audience::People, ..labels },
        bytes("reserved", "Reserved", "VIRT", number(|s| Ok(s.reserved))),
        bytes("resident", "Resident", "RSS", number(|s| s.resident.clone())),
        bytes("pss", "PSS", "PSS", number(|s| s.pss.clone())),
        quiet(bytes("swap", "Swap", "Swap", number(|s| s.swap.clone()))),
        TableColumn::new("mappings", "Maps", ColumnCells::Counts(mappings)),
        TableColumn::new("name", "Name", names),
    ];
    if is_core {
        columns = with_core(columns, "reserved", rows.iter().map(|row| row.in_core.0).collect());
    }
    table("pools", "By pool", audience, columns)
}

/// Builds the table of the mappings with the most resident memory, or with the most bytes in a core
/// file, for people.
pub(super) fn largest(subject: &ExplainSubject<'_>, count: usize) -> Option<ReportTable> {
    let mappings = subject.mappings;
    let indices = largest_first(subject, count);
    let chosen: Vec<&Mapping> = indices.iter().map(|&index| &mappings[index]).collect();
    if chosen.is_empty() {
        return None;
    }
    let name = |m: &&Mapping| match m.name.is_empty() {
        false => m.name.clone(),
        true => {
            let index = mappings.partition_point(|other| other.range.start < m.range.start);
            subject.pools.pool_of(index).name.clone()
        }
    };
    let number = |number: fn(&Mapping) -> Reading<Bytes>| chosen.iter().map(move |m| number(m));
    let modes = ColumnCells::Labels(chosen.iter().map(|m| mode(m)).collect());
    let starts = ColumnCells::Addresses(chosen.iter().map(|m| m.range.start).collect());
    let mut columns = vec![
        TableColumn::new("address", "Address", starts),
        TableColumn::new("mode", "Mode", modes),
        bytes("size", "Size", "Size", number(|m| Ok(m.size()))),
        bytes("rss", "RSS", "RSS", number(Mapping::rss)),
        bytes("pss", "PSS", "PSS", number(Mapping::pss)),
        quiet(bytes("dirty", "Dirty", "dirty", number(Mapping::dirty))),
        quiet(bytes("anon_huge", "Huge", "AnonHugePages", number(Mapping::anon_huge))),
        quiet(bytes("swap", "Swap", "Swap", number(Mapping::swap))),
        TableColumn::new("name", "Name", ColumnCells::Names(chosen.iter().map(name).collect())),
    ];
    if let Some(coverage) = &subject.coverage {
        let in_core = indices.iter().map(|&index| coverage.held[index].0).collect();
        columns = with_core(columns, "size", in_core);
    }
    Some(table("largest", "Largest mappings", Audience::People, columns))
}

/// Returns the indices of the mappings with the most resident memory, or with the most bytes in a
/// core file, the largest first.
fn largest_first(subject: &ExplainSubject<'_>, count: usize) -> Vec<usize> {
    let mappings = subject.mappings;
    let in_core = |index: usize| subject.coverage.as_ref().map(|coverage| coverage.held[index]);
    let rank = |(index, m): (usize, &Mapping)| {
        let bytes = m.rss().ok().or_else(|| in_core(index)).unwrap_or_default();
        (Reverse((bytes, m.size())), index)
    };
    // The top of the heap is the smallest of the largest mappings so far.
    let mut largest = BinaryHeap::with_capacity(count.min(mappings.len()));
    for rank in mappings.iter().enumerate().map(rank) {
        if largest.len() < count {
            largest.push(rank);
        } else if let Some(mut last) = largest.peek_mut().filter(|last| rank < **last) {
            *last = rank;
        }
    }
    largest.into_sorted_vec().into_iter().map(|(_, index)| index).collect()
}

/// Builds the table of all mappings, for programs.
pub(super) fn mappings(subject: &ExplainSubject<'_>) -> ReportTable {
    let mappings = subject.mappings;
    let number = |number: fn(&Mapping) -> Reading<Bytes>| mappings.iter().map(number);
    let counts = |count: fn(&Mapping) -> u64| mappings.iter().map(count).collect::<Vec<_>>();
    let pools = (0..mappings.len()).map(|index| subject.pools.pool_of(index).id().into());
    let mut columns = vec![
        TableColumn::new("start", "Start", ColumnCells::Addresses(counts(|m| m.range.start))),
        TableColumn::new("end", "End", ColumnCells::Addresses(counts(|m| m.range.end))),
        TableColumn::new("mode", "Mode", ColumnCells::Labels(mappings.iter().map(mode).collect())),
        TableColumn::new("offset", "Offset", ColumnCells::Bytes(counts(|m| m.offset))),
        TableColumn::new(
            "name",
            "Name",
            ColumnCells::Names(mappings.iter().map(|m| m.name.clone()).collect()),
        ),
        TableColumn::new("pool", "Pool", ColumnCells::Labels(pools.collect())),
        TableColumn::new("part", "Part", ColumnCells::Values(parts(subject))),
        TableColumn::new("quadrant", "Quadrant", labels(mappings, |m| m.declared().key())),
        bytes("rss", "RSS", "RSS", number(Mapping::rss)),
        bytes("pss", "PSS", "PSS", number(Mapping::pss)),
        bytes("swap", "Swap", "Swap", number(Mapping::swap)),
        bytes("anon_huge", "Huge", "AnonHugePages", number(Mapping::anon_huge)),
        bytes("dirty", "Dirty", "dirty", number(Mapping::dirty)),
    ];
    if let Some(coverage) = &subject.coverage {
        let in_core = coverage.held.iter().map(|held| held.0).collect();
        columns = with_core(columns, "quadrant", in_core);
    }
    table("mappings", "Mappings", Audience::Programs, columns)
}

fn labels(mappings: &[Mapping], label: fn(&Mapping) -> &'static str) -> ColumnCells {
    ColumnCells::Labels(mappings.iter().map(|m| label(m).into()).collect())
}

fn parts(subject: &ExplainSubject<'_>) -> Vec<CellValue> {
    let part = |index| match subject.pools.part(index) {
        Some(part) => CellValue::text(part.key()),
        None => CellValue::None,
    };
    (0..subject.mappings.len()).map(part).collect()
}

/// Builds a column of bytes. If all rows lack a value for the same reason, the reason is stored
/// once.
fn bytes(
    key: &'static str,
    label: &'static str,
    meant: &'static str,
    readings: impl Iterator<Item = Reading<Bytes>> + Clone,
) -> TableColumn {
    let mut column = match one_reason(readings.clone()) {
        Some((absent, rows)) => TableColumn {
            gaps: Gaps::All(absent),
            ..TableColumn::new(key, label, ColumnCells::Bytes(vec![0; rows]))
        },
        None => TableColumn::bytes(key, label, readings),
    };
    column.meaning = meaning(meant).into();
    column
}

/// Returns the reason for absence that all rows share, and the number of rows; `None` if the rows
/// do not share a reason.
fn one_reason(mut readings: impl Iterator<Item = Reading<Bytes>>) -> Option<(Absent, usize)> {
    let reason = readings.next()?.err()?;
    let mut rows = 1;
    for reading in readings {
        if reading.err().as_ref() != Some(&reason) {
            return None;
        }
        rows += 1;
    }
    Some((reason, rows))
}

/// Hides a column of bytes from people who do not use `--long`, if all values are 0.
fn quiet(column: TableColumn) -> TableColumn {
    let nothing = match &column.cells {
        ColumnCells::Bytes(cells) => cells.iter().all(|&bytes| bytes == 0),
        _ => false,
    };
    let silent = nothing && !matches!(column.gaps, Gaps::Some(_));
    let audience = if silent { Audience::Long } else { Audience::Everyone };
    TableColumn { audience, ..column }
}
