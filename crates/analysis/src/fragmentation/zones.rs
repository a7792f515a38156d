//! The tables of zones, orders and migrate types.

use pagewise_model::fragmentation::{PageTypes, TypedFree, Zone};
use pagewise_model::report::{Audience, Block, Cells, Column, Fact, Label, Table, Value};
use pagewise_model::{Absent, Bytes, Name};

use super::{
    Subject, allocatable, block, fact, facts_of, fragmentation_index, free, index, unusable_index,
};
use crate::blocks::table;
use crate::explain::meaning;

/// A column with the meaning that the table of fields has for it.
fn column(key: &'static str, label: &'static str, cells: Cells) -> Column {
    Column { meaning: meaning(key).into(), ..Column::new(key, label, cells) }
}

fn counts(counts: &[u64]) -> Value {
    Value::List(counts.iter().copied().map(Value::Count).collect())
}

/// `nodes[].zones[]`, for programs.
pub(super) fn nodes(subject: &Subject<'_>) -> Table {
    let mut nodes: Vec<u32> = subject.zones.iter().map(|zone| zone.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let zones_of = |node: &u32| {
        let zones = subject.zones.iter().filter(|zone| zone.node == *node);
        Value::List(zones.map(|zone| record(subject, zone)).collect())
    };
    let zones = nodes.iter().map(zones_of).collect();
    let nodes = nodes.iter().map(|&node| u64::from(node)).collect();
    let columns = vec![
        column("node", "Node", Cells::Counts(nodes)),
        column("zones", "Zones", Cells::Values(zones)),
    ];
    table("nodes", "", Audience::Programs, columns)
}

fn record(subject: &Subject<'_>, zone: &Zone) -> Value {
    let [unusable, fragmentation] = indices(subject, zone);
    let members: [(&str, Value); 6] = [
        ("name", Value::Name(zone.name.clone())),
        ("free_by_order", counts(&zone.free)),
        ("free", Value::Bytes(free(zone, subject.all.page_size).0)),
        ("allocatable_huge", huge(subject, zone)),
        ("unusable_index", unusable),
        ("fragmentation_index", fragmentation),
    ];
    Value::Record(members.map(|(key, value)| (Label::from(key.to_owned()), value)).to_vec())
}

fn huge(subject: &Subject<'_>, zone: &Zone) -> Value {
    let order = subject.huge_order.clone();
    Value::of(order, |order| Value::Bytes(allocatable(zone, order, subject.all.page_size).0))
}

/// The unusable free index and the fragmentation index for huge pages.
fn indices(subject: &Subject<'_>, zone: &Zone) -> [Value; 2] {
    let page_size = subject.all.page_size;
    let order = || subject.huge_order.clone();
    let unusable =
        |order| index(unusable_index(free(zone, page_size), allocatable(zone, order, page_size)));
    let fragmentation = |order| index(fragmentation_index(zone, order, page_size));
    [Value::of(order(), unusable), Value::of(order(), fragmentation)]
}

/// One row a zone, for people.
pub(super) fn zones(subject: &Subject<'_>) -> Table {
    let page_size = subject.all.page_size;
    let each =
        |value: &dyn Fn(&Zone) -> Value| Cells::Values(subject.zones.iter().map(value).collect());
    let nodes = subject.zones.iter().map(|zone| u64::from(zone.node)).collect();
    let share = |zone: &Zone| {
        let order = subject.huge_order.clone();
        Value::of(order, |order| {
            let huge = allocatable(zone, order, page_size);
            huge.fraction_of(free(zone, page_size)).map_or(Value::None, Value::Bar)
        })
    };
    let mut columns = vec![
        column("node", "Node", Cells::Counts(nodes)),
        column("zone", "Zone", each(&|zone| Value::Name(zone.name.clone()))),
        column("free", "Free", each(&|zone| Value::Bytes(free(zone, page_size).0))),
        column("allocatable_huge", "In huge pages", each(&|zone| huge(subject, zone))),
        Column::new("huge_share", "Share of free", each(&share)),
        column("unusable_index", "Unusable", each(&|zone| indices(subject, zone)[0].clone())),
    ];
    let would_fail = each(&|zone| indices(subject, zone)[1].clone());
    if matches!(&would_fail, Cells::Values(values) if values.iter().any(|v| *v != Value::None)) {
        columns.push(column("fragmentation_index", "Fragmentation", would_fail));
    }
    table("", "Zones", Audience::People, columns)
}

/// One row an order, over all zones: the picture of where free memory lies.
pub(super) fn orders(subject: &Subject<'_>) -> Table {
    let page_size = subject.all.page_size;
    let most = subject.zones.iter().map(|zone| zone.free.len()).max().unwrap_or(0);
    let each = |value: &dyn Fn(usize) -> u64| (0..most).map(value).collect::<Vec<u64>>();
    let count = |order: usize| {
        let counts = subject.zones.iter().filter_map(|zone| zone.free.get(order));
        counts.fold(0_u64, |sum, count| sum.saturating_add(*count))
    };
    let free = |order: usize| block(order, page_size).0.saturating_mul(count(order));
    let share = |order: usize| Bytes(free(order)).fraction_of(subject.free());
    let bars = (0..most).map(|order| share(order).map_or(Value::None, Value::Bar)).collect();
    let unusable = |order| index(unusable_index(subject.free(), subject.at_order(order)));
    let columns = vec![
        column("order", "Order", Cells::Counts(each(&|order| order as u64))),
        column("block", "Block", Cells::Bytes(each(&|order| block(order, page_size).0))),
        column("blocks", "Blocks", Cells::Counts(each(&count))),
        column("free", "Free", Cells::Bytes(each(&free))),
        Column::new("share", "Share of free", Cells::Values(bars)),
        column(
            "allocatable",
            "Allocatable",
            Cells::Bytes(each(&|order| subject.at_order(order).0)),
        ),
        column("unusable_index", "Unusable", Cells::Values((0..most).map(unusable).collect())),
    ];
    let note = "Allocatable: what can be had in blocks of that order without compaction. Unusable: the share of free \
                memory that is of no use to such a request.";
    Table { note: note.into(), ..table("orders", "All zones", Audience::Everyone, columns) }
}

/// What may be put where: `types[]` for programs, sums over the zones for people.
pub(super) fn types(subject: &Subject<'_>) -> Vec<Block> {
    match &subject.all.types {
        Ok(types) => {
            vec![Block::Table(each_type(subject, types)), Block::Table(sums(subject, types))]
        }
        Err(absent) => vec![Block::Facts(facts_of("", vec![without_types(absent)]))],
    }
}

fn without_types(absent: &Absent) -> Fact {
    let value = Value::Absent(absent.clone());
    fact("types", "by migrate type", value, "/proc/pagetypeinfo.")
}

fn bytes(subject: &Subject<'_>, of: &TypedFree, order: usize) -> Bytes {
    let zone = Zone { node: of.node, name: of.zone.clone(), free: of.free.clone() };
    allocatable(&zone, order, subject.all.page_size)
}

fn each_type(subject: &Subject<'_>, types: &PageTypes) -> Table {
    let rows = &types.free;
    let names = |name: fn(&TypedFree) -> &Name| {
        Cells::Names(rows.iter().map(|row| name(row).clone()).collect())
    };
    let blocks = |row: &TypedFree| {
        let of_it = |b: &&pagewise_model::fragmentation::TypedBlocks| {
            (b.node, &b.zone, &b.kind) == (row.node, &row.zone, &row.kind)
        };
        types.blocks.iter().find(of_it).map_or(Value::None, |found| Value::Count(found.count))
    };
    let columns = vec![
        column("node", "Node", Cells::Counts(rows.iter().map(|r| u64::from(r.node)).collect())),
        column("zone", "Zone", names(|row| &row.zone)),
        column("type", "Type", names(|row| &row.kind)),
        column("free", "Free", Cells::Bytes(rows.iter().map(|r| bytes(subject, r, 0).0).collect())),
        column(
            "at_least",
            "At least",
            Cells::Values(rows.iter().map(|row| Value::Flag(row.capped)).collect()),
        ),
        column("pageblocks", "Pageblocks", Cells::Values(rows.iter().map(blocks).collect())),
        column(
            "free_by_order",
            "Free by order",
            Cells::Values(rows.iter().map(|row| counts(&row.free)).collect()),
        ),
    ];
    table("types", "", Audience::Programs, columns)
}

/// Whether any memory is of a type.
fn is_of_use(types: &PageTypes, kind: &Name) -> bool {
    types.blocks.iter().any(|row| row.kind == *kind && row.count > 0)
        || types.free.iter().any(|row| row.kind == *kind && row.free.iter().any(|n| *n > 0))
}

fn sums(subject: &Subject<'_>, types: &PageTypes) -> Table {
    let mut kinds: Vec<&Name> = Vec::new();
    for row in types.free.iter().filter(|row| is_of_use(types, &row.kind)) {
        if !kinds.contains(&&row.kind) {
            kinds.push(&row.kind);
        }
    }
    let of_kind = |kind: &Name, order: usize| -> u64 {
        let rows = types.free.iter().filter(|row| row.kind == *kind);
        rows.map(|row| bytes(subject, row, order)).sum::<Bytes>().0
    };
    let blocks = |kind: &Name| {
        let rows = types.blocks.iter().filter(|row| row.kind == *kind);
        rows.fold(0_u64, |sum, row| sum.saturating_add(row.count))
    };
    let all: u64 = kinds.iter().fold(0, |sum: u64, kind| sum.saturating_add(blocks(kind)));
    let share =
        |kind: &Name| Bytes(blocks(kind)).fraction_of(Bytes(all)).map_or(Value::None, Value::Bar);
    let huge = |kind: &Name| {
        Value::of(subject.huge_order.clone(), |order| Value::Bytes(of_kind(kind, order)))
    };
    let columns = vec![
        column("type", "Type", Cells::Names(kinds.iter().map(|kind| (*kind).clone()).collect())),
        column("free", "Free", Cells::Bytes(kinds.iter().map(|kind| of_kind(kind, 0)).collect())),
        column(
            "allocatable_huge",
            "In huge pages",
            Cells::Values(kinds.iter().map(|kind| huge(kind)).collect()),
        ),
        column(
            "pageblocks",
            "Pageblocks",
            Cells::Counts(kinds.iter().map(|kind| blocks(kind)).collect()),
        ),
        Column::new(
            "pageblock_share",
            "Share of pageblocks",
            Cells::Values(kinds.iter().map(|kind| share(kind)).collect()),
        ),
    ];
    let at_least = types.free.iter().any(|row| row.capped);
    let note = "A pageblock is the piece of memory that has a type, free or used. Compaction moves Movable pages only.";
    let capped = " The kernel stops counting at 100,000 blocks: what is free is at least this.";
    let note = format!("{note}{}", if at_least { capped } else { "" });
    Table { note: note.into(), ..table("", "By what may be put there", Audience::People, columns) }
}
