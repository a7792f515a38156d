//! The tables: quadrants, pools, the largest mappings, every mapping.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::report::{Audience, Block, Cells, Column, Gaps, Label, Table, Value};
use pagewise_model::{Absent, Bytes, Mapping, Name, Quadrant, Reading};

use super::{Subject, meaning};
use crate::blocks::table;
use crate::maps::mode;
use crate::pools::{Kind, Sums};
use crate::quadrants::{self, Cell, Quadrants};

/// Rows of one kind of pool that people see; what is smaller shares a row when there are more.
const ROWS_OF_A_KIND: usize = 6;

/// The quadrants twice for programs; for people the second time only where it differs.
pub(super) fn quadrants(quadrants: &Quadrants, shown: bool) -> Vec<Block> {
    let agree = quadrants.agree();
    let declared =
        quadrant_table("quadrants.declared", "Quadrants, as mapped", &quadrants.declared);
    let effective =
        quadrant_table("quadrants.effective", "Quadrants, page by page", &quadrants.effective);
    let audience = |visible: bool| match visible {
        true => Audience::Everyone,
        false => Audience::Programs,
    };
    let same = shown && agree;
    let note = if same { "Page by page it is the same." } else { "" };
    let note_effective =
        "A written page of a private file is anonymous, a page that others map too is shared.";
    let tables = [
        Table { audience: audience(shown), note: note.into(), ..declared },
        Table { audience: audience(shown && !agree), note: note_effective.into(), ..effective },
    ];
    tables.map(Block::Table).into()
}

/// A column of the quadrants: key, heading, the name of its meaning, and the number.
type QuadrantColumn = (&'static str, &'static str, &'static str, fn(&Cell) -> &Reading<Bytes>);

const QUADRANT_COLUMNS: [QuadrantColumn; 5] = [
    ("reserved", "Reserved", "VIRT", |c| &c.reserved),
    ("resident", "Resident", "RSS", |c| &c.resident),
    ("pss", "PSS", "PSS", |c| &c.pss),
    ("swapped", "Swapped", "Swap", |c| &c.swapped),
    ("dirty", "Dirty", "dirty", |c| &c.dirty),
];

fn quadrant_table(key: &'static str, title: &'static str, cells: &quadrants::Cells) -> Table {
    let names = Quadrant::ALL.map(|q| Label::from(q.label()));
    let names = Column::new("quadrant", "", Cells::Labels(names.to_vec()));
    let mut columns = vec![Column { audience: Audience::People, ..names }];
    let mut total = vec![Value::text("total")];
    for (key, label, meant, number) in QUADRANT_COLUMNS {
        columns.push(bytes(key, label, meant, cells.iter().map(|c| number(c).clone())));
        total.push(Value::bytes(cells.iter().map(|c| number(c).clone()).sum()));
    }
    Table {
        row_keys: Some(Quadrant::ALL.map(|q| q.key().into()).to_vec()),
        total: Some(total),
        ..table(key, title, Audience::Everyone, columns)
    }
}

/// One row of the pools' table.
struct PoolRow {
    kind: Kind,
    name: Name,
    sums: Sums,
}

impl PoolRow {
    /// Largest first: by resident size, then by address space.
    fn rank(&self) -> Reverse<(Bytes, Bytes)> {
        Reverse((self.sums.resident.clone().unwrap_or_default(), self.sums.reserved))
    }
}

/// The pools: every one for programs, small ones of a kind folded for people.
pub(super) fn pools(subject: &Subject<'_>) -> [Block; 2] {
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let mut rows: Vec<PoolRow> = pools
        .map(|(pool, sums)| PoolRow {
            kind: pool.kind,
            name: pool.name.clone(),
            sums: sums.clone(),
        })
        .collect();
    rows.sort_by_key(PoolRow::rank);
    let all = pool_table(&rows, Audience::Programs);
    let shown = if rows.is_empty() { Audience::Programs } else { Audience::People };
    [Block::Table(all), Block::Table(pool_table(&fold(rows), shown))]
}

/// Folds the smaller rows of each kind into one where a kind has many.
fn fold(rows: Vec<PoolRow>) -> Vec<PoolRow> {
    let mut of_kind: BTreeMap<Kind, usize> = BTreeMap::new();
    for row in &rows {
        *of_kind.entry(row.kind).or_default() += 1;
    }
    let mut seen: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut folded: BTreeMap<Kind, (usize, Sums)> = BTreeMap::new();
    let mut kept = Vec::new();
    for row in rows {
        let seen = seen.entry(row.kind).or_default();
        *seen += 1;
        if of_kind[&row.kind] <= ROWS_OF_A_KIND || *seen < ROWS_OF_A_KIND {
            kept.push(row);
        } else {
            let (count, sums) = folded.entry(row.kind).or_insert((0, Sums::NONE));
            *count += 1;
            sums.add(&row.sums);
        }
    }
    kept.extend(folded.into_iter().map(|(kind, (count, sums))| {
        let name = Name::from(format!("and {count} more").as_str());
        PoolRow { kind, name, sums }
    }));
    kept.sort_by_key(PoolRow::rank);
    kept
}

fn pool_table(rows: &[PoolRow], audience: Audience) -> Table {
    let label = |of: fn(Kind) -> &'static str| {
        Cells::Labels(rows.iter().map(|row| of(row.kind).into()).collect())
    };
    let ids = Column::new("pool", "Pool", label(Kind::id));
    let labels = Column::new("label", "Pool", label(Kind::label));
    let number = |number: fn(&Sums) -> Reading<Bytes>| rows.iter().map(move |r| number(&r.sums));
    let mappings = rows.iter().map(|row| row.sums.mappings).collect();
    let names = Cells::Names(rows.iter().map(|row| row.name.clone()).collect());
    let columns = vec![
        Column { audience: Audience::Programs, ..ids },
        Column { audience: Audience::People, ..labels },
        bytes("reserved", "Reserved", "VIRT", number(|s| Ok(s.reserved))),
        bytes("resident", "Resident", "RSS", number(|s| s.resident.clone())),
        bytes("pss", "PSS", "PSS", number(|s| s.pss.clone())),
        quiet(bytes("swap", "Swap", "Swap", number(|s| s.swap.clone()))),
        Column::new("mappings", "Maps", Cells::Counts(mappings)),
        Column::new("name", "Name", names),
    ];
    table("pools", "Where it comes from", audience, columns)
}

/// The mappings with the most resident memory, for people.
pub(super) fn largest(subject: &Subject<'_>, count: usize) -> Option<Table> {
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
            subject.pools.of(index).name.clone()
        }
    };
    let number = |number: fn(&Mapping) -> Reading<Bytes>| chosen.iter().map(move |m| number(m));
    let modes = Cells::Labels(chosen.iter().map(|m| mode(m)).collect());
    let starts = Cells::Addresses(chosen.iter().map(|m| m.range.start).collect());
    let columns = vec![
        Column::new("address", "Address", starts),
        Column::new("mode", "Mode", modes),
        bytes("size", "Size", "Size", number(|m| Ok(m.size()))),
        bytes("rss", "RSS", "RSS", number(Mapping::rss)),
        bytes("pss", "PSS", "PSS", number(Mapping::pss)),
        quiet(bytes("dirty", "Dirty", "dirty", number(Mapping::dirty))),
        quiet(bytes("anon_huge", "Huge", "AnonHugePages", number(Mapping::anon_huge))),
        quiet(bytes("swap", "Swap", "Swap", number(Mapping::swap))),
        Column::new("name", "Name", Cells::Names(chosen.iter().map(name).collect())),
    ];
    Some(table("largest", "The largest mappings", Audience::People, columns))
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
pub(super) fn mappings(subject: &Subject<'_>) -> Table {
    let mappings = subject.mappings;
    let number = |number: fn(&Mapping) -> Reading<Bytes>| mappings.iter().map(number);
    let counts = |count: fn(&Mapping) -> u64| mappings.iter().map(count).collect::<Vec<_>>();
    let pools = (0..mappings.len()).map(|index| subject.pools.of(index).id().into());
    let columns = vec![
        Column::new("start", "Start", Cells::Addresses(counts(|m| m.range.start))),
        Column::new("end", "End", Cells::Addresses(counts(|m| m.range.end))),
        Column::new("mode", "Mode", Cells::Labels(mappings.iter().map(mode).collect())),
        Column::new("offset", "Offset", Cells::Bytes(counts(|m| m.offset))),
        Column::new(
            "name",
            "Name",
            Cells::Names(mappings.iter().map(|m| m.name.clone()).collect()),
        ),
        Column::new("pool", "Pool", Cells::Labels(pools.collect())),
        Column::new("part", "Part", Cells::Values(parts(subject))),
        Column::new("quadrant", "Quadrant", labels(mappings, |m| m.declared().key())),
        bytes("rss", "RSS", "RSS", number(Mapping::rss)),
        bytes("pss", "PSS", "PSS", number(Mapping::pss)),
        bytes("swap", "Swap", "Swap", number(Mapping::swap)),
        bytes("anon_huge", "Huge", "AnonHugePages", number(Mapping::anon_huge)),
        bytes("dirty", "Dirty", "dirty", number(Mapping::dirty)),
    ];
    table("mappings", "Mappings", Audience::Programs, columns)
}

fn labels(mappings: &[Mapping], label: fn(&Mapping) -> &'static str) -> Cells {
    Cells::Labels(mappings.iter().map(|m| label(m).into()).collect())
}

fn parts(subject: &Subject<'_>) -> Vec<Value> {
    let part = |index| match subject.pools.part(index) {
        Some(part) => Value::text(part.key()),
        None => Value::None,
    };
    (0..subject.mappings.len()).map(part).collect()
}

/// A column of bytes. Where no row has a value and all say why in the same way, it says so once.
fn bytes(
    key: &'static str,
    label: &'static str,
    meant: &'static str,
    readings: impl Iterator<Item = Reading<Bytes>> + Clone,
) -> Column {
    let mut column = match one_reason(readings.clone()) {
        Some((absent, rows)) => Column {
            gaps: Gaps::All(absent),
            ..Column::new(key, label, Cells::Bytes(vec![0; rows]))
        },
        None => Column::bytes(key, label, readings),
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
fn quiet(column: Column) -> Column {
    let nothing = match &column.cells {
        Cells::Bytes(cells) => cells.iter().all(|&bytes| bytes == 0),
        _ => false,
    };
    let silent = nothing && !matches!(column.gaps, Gaps::Some(_));
    let audience = if silent { Audience::Long } else { Audience::Everyone };
    Column { audience, ..column }
}
