//! The tables: quadrants, pools, the largest mappings, every mapping.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Gaps, Label, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Mapping, Name, Quadrant, Reading};

use super::{ExplainSubject, meaning};
use crate::blocks::table;
use crate::maps::mode;
use crate::pools::{PoolKind, PoolSums};
use crate::quadrants::{self, QuadrantCell, Quadrants};

/// Rows of one kind of pool that people see; what is smaller shares a row when there are more.
const ROWS_OF_A_KIND: usize = 6;

/// The quadrants twice for programs; for people the second time only where it differs.
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

/// A column of the quadrants: key, heading, the name of its meaning, and the number.
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

/// One row of the pools' table.
struct PoolTableRow {
    kind: PoolKind,
    name: Name,
    sums: PoolSums,
}

impl PoolTableRow {
    /// Largest first: by resident size, then by address space.
    fn rank(&self) -> Reverse<(Bytes, Bytes)> {
        Reverse((self.sums.resident.clone().unwrap_or_default(), self.sums.reserved))
    }
}

/// The pools: every one for programs, small ones of a kind folded for people.
pub(super) fn pools(subject: &ExplainSubject<'_>) -> [ReportBlock; 2] {
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let mut rows: Vec<PoolTableRow> = pools
        .map(|(pool, sums)| PoolTableRow {
            kind: pool.kind,
            name: pool.name.clone(),
            sums: sums.clone(),
        })
        .collect();
    rows.sort_by_key(PoolTableRow::rank);
    let all = pool_table(&rows, Audience::Programs);
    let shown = if rows.is_empty() { Audience::Programs } else { Audience::People };
    [ReportBlock::Table(all), ReportBlock::Table(pool_table(&fold(rows), shown))]
}

/// Folds the smaller rows of each kind into one where a kind has many.
fn fold(rows: Vec<PoolTableRow>) -> Vec<PoolTableRow> {
    let mut of_kind: BTreeMap<PoolKind, usize> = BTreeMap::new();
    for row in &rows {
        *of_kind.entry(row.kind).or_default() += 1;
    }
    let mut seen: BTreeMap<PoolKind, usize> = BTreeMap::new();
    let mut folded: BTreeMap<PoolKind, (usize, PoolSums)> = BTreeMap::new();
    let mut kept = Vec::new();
    for row in rows {
        let seen = seen.entry(row.kind).or_default();
        *seen += 1;
        if of_kind[&row.kind] <= ROWS_OF_A_KIND || *seen < ROWS_OF_A_KIND {
            kept.push(row);
        } else {
            let (count, sums) = folded.entry(row.kind).or_insert((0, PoolSums::NONE));
            *count += 1;
            sums.add(&row.sums);
        }
    }
    kept.extend(folded.into_iter().map(|(kind, (count, sums))| {
        let name = Name::from(format!("and {count} more").as_str());
        PoolTableRow { kind, name, sums }
    }));
    kept.sort_by_key(PoolTableRow::rank);
    kept
}

fn pool_table(rows: &[PoolTableRow], audience: Audience) -> ReportTable {
    let label = |of: fn(PoolKind) -> &'static str| {
        ColumnCells::Labels(rows.iter().map(|row| of(row.kind).into()).collect())
    };
    let ids = TableColumn::new("pool", "Pool", label(PoolKind::id));
    let labels = TableColumn::new("label", "Pool", label(PoolKind::label));
    let number =
        |number: fn(&PoolSums) -> Reading<Bytes>| rows.iter().map(move |r| number(&r.sums));
    let mappings = rows.iter().map(|row| row.sums.mappings).collect();
    let names = ColumnCells::Names(rows.iter().map(|row| row.name.clone()).collect());
    let columns = vec![
        TableColumn { audience: Audience::Programs, ..ids },
        TableColumn { audience: Audience::People, ..labels },
        bytes("reserved", "Reserved", "VIRT", number(|s| Ok(s.reserved))),
        bytes("resident", "Resident", "RSS", number(|s| s.resident.clone())),
        bytes("pss", "PSS", "PSS", number(|s| s.pss.clone())),
        quiet(bytes("swap", "Swap", "Swap", number(|s| s.swap.clone()))),
        TableColumn::new("mappings", "Maps", ColumnCells::Counts(mappings)),
        TableColumn::new("name", "Name", names),
    ];
    table("pools", "By pool", audience, columns)
}

/// The mappings with the most resident memory, for people.
pub(super) fn largest(subject: &ExplainSubject<'_>, count: usize) -> Option<ReportTable> {
    let mappings = subject.mappings;
    let chosen = most_resident(mappings, count);
    let chosen: Vec<&Mapping> = chosen.iter().map(|&index| &mappings[index]).collect();
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
    let columns = vec![
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
    Some(table("largest", "Largest mappings", Audience::People, columns))
}

/// The places of the mappings with the most resident memory, the largest first.
fn most_resident(mappings: &[Mapping], count: usize) -> Vec<usize> {
    let rank =
        |(index, m): (usize, &Mapping)| (Reverse((m.rss().unwrap_or_default(), m.size())), index);
    let mut ranks: Vec<_> = mappings.iter().enumerate().map(rank).collect();
    if count < ranks.len() {
        ranks.select_nth_unstable(count);
        ranks.truncate(count);
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, index)| index).collect()
}

/// Every mapping, for programs.
pub(super) fn mappings(subject: &ExplainSubject<'_>) -> ReportTable {
    let mappings = subject.mappings;
    let number = |number: fn(&Mapping) -> Reading<Bytes>| mappings.iter().map(number);
    let counts = |count: fn(&Mapping) -> u64| mappings.iter().map(count).collect::<Vec<_>>();
    let pools = (0..mappings.len()).map(|index| subject.pools.pool_of(index).id().into());
    let columns = vec![
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

/// A column of bytes. If all rows lack a value for the same reason, the reason is given once.
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

/// The reason that all rows share, and how many rows that is.
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

/// A column that people only see where it has something to say.
fn quiet(column: TableColumn) -> TableColumn {
    let nothing = match &column.cells {
        ColumnCells::Bytes(cells) => cells.iter().all(|&bytes| bytes == 0),
        _ => false,
    };
    let silent = nothing && !matches!(column.gaps, Gaps::Some(_));
    let audience = if silent { Audience::Long } else { Audience::Everyone };
    TableColumn { audience, ..column }
}
