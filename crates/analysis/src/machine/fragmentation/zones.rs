//! The tables of zones, orders and migrate types.

use pagewise_model::fragmentation::{PageTypes, TypedFree, Zone};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::{Absent, Bytes, Name};

use super::{
    ZoneSubject, allocatable, block, fact, fragmentation_index, free, index, unusable_index,
};
use crate::blocks::facts_of;
use crate::blocks::table;
use crate::explain::meaning;

/// A column with the meaning that the table of fields has for it.
fn column(key: &'static str, label: &'static str, cells: ColumnCells) -> TableColumn {
    TableColumn { meaning: meaning(key).into(), ..TableColumn::new(key, label, cells) }
}

fn counts(counts: &[u64]) -> CellValue {
    CellValue::List(counts.iter().copied().map(CellValue::Count).collect())
}

/// `nodes[].zones[]`, for programs.
pub(super) fn nodes(subject: &ZoneSubject<'_>) -> ReportTable {
    let mut nodes: Vec<u32> = subject.zones.iter().map(|zone| zone.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let zones_of = |node: &u32| {
        let zones = subject.zones.iter().filter(|zone| zone.node == *node);
        CellValue::List(zones.map(|zone| record(subject, zone)).collect())
    };
    let zones = nodes.iter().map(zones_of).collect();
    let nodes = nodes.iter().map(|&node| u64::from(node)).collect();
    let columns = vec![
        column("node", "Node", ColumnCells::Counts(nodes)),
        column("zones", "Zones", ColumnCells::Values(zones)),
    ];
    table("nodes", "", Audience::Programs, columns)
}

fn record(subject: &ZoneSubject<'_>, zone: &Zone) -> CellValue {
    let [unusable, fragmentation] = indices(subject, zone);
    let members: [(&str, CellValue); 6] = [
        ("name", CellValue::Name(zone.name.clone())),
        ("free_by_order", counts(&zone.free)),
        ("free", CellValue::Bytes(free(zone, subject.all.page_size).0)),
        ("allocatable_huge", huge(subject, zone)),
        ("unusable_index", unusable),
        ("fragmentation_index", fragmentation),
    ];
    CellValue::Record(members.map(|(key, value)| (Label::from(key.to_owned()), value)).to_vec())
}

fn huge(subject: &ZoneSubject<'_>, zone: &Zone) -> CellValue {
    let order = subject.huge_order.clone();
    CellValue::from_reading(order, |order| {
        CellValue::Bytes(allocatable(zone, order, subject.all.page_size).0)
    })
}

/// The unusable free index and the fragmentation index for huge pages.
fn indices(subject: &ZoneSubject<'_>, zone: &Zone) -> [CellValue; 2] {
    let page_size = subject.all.page_size;
    let order = || subject.huge_order.clone();
    let unusable =
        |order| index(unusable_index(free(zone, page_size), allocatable(zone, order, page_size)));
    let fragmentation = |order| index(fragmentation_index(zone, order, page_size));
    [CellValue::from_reading(order(), unusable), CellValue::from_reading(order(), fragmentation)]
}

/// One row per zone, for people.
pub(super) fn zones(subject: &ZoneSubject<'_>) -> ReportTable {
    let page_size = subject.all.page_size;
    let each = |value: &dyn Fn(&Zone) -> CellValue| {
        ColumnCells::Values(subject.zones.iter().map(value).collect())
    };
    let nodes = subject.zones.iter().map(|zone| u64::from(zone.node)).collect();
    let share = |zone: &Zone| {
        let order = subject.huge_order.clone();
        CellValue::from_reading(order, |order| {
            let huge = allocatable(zone, order, page_size);
            huge.fraction_of(free(zone, page_size)).map_or(CellValue::None, CellValue::Bar)
        })
    };
    let mut columns = vec![
        column("node", "Node", ColumnCells::Counts(nodes)),
        column("zone", "Zone", each(&|zone| CellValue::Name(zone.name.clone()))),
        column("free", "Free", each(&|zone| CellValue::Bytes(free(zone, page_size).0))),
        column("allocatable_huge", "In huge pages", each(&|zone| huge(subject, zone))),
        TableColumn::new("huge_share", "Share of free", each(&share)),
        column("unusable_index", "Unusable", each(&|zone| indices(subject, zone)[0].clone())),
    ];
    let would_fail = each(&|zone| indices(subject, zone)[1].clone());
    if matches!(&would_fail, ColumnCells::Values(values) if values.iter().any(|v| *v != CellValue::None))
    {
        columns.push(column("fragmentation_index", "Fragmentation", would_fail));
    }
    table("", "Zones", Audience::People, columns)
}

/// One row per order, over all zones: the distribution of free memory over block sizes.
pub(super) fn orders(subject: &ZoneSubject<'_>) -> ReportTable {
    let page_size = subject.all.page_size;
    let most = subject.zones.iter().map(|zone| zone.free.len()).max().unwrap_or(0);
    let each = |value: &dyn Fn(usize) -> u64| (0..most).map(value).collect::<Vec<u64>>();
    let count = |order: usize| {
        let counts = subject.zones.iter().filter_map(|zone| zone.free.get(order));
        counts.fold(0_u64, |sum, count| sum.saturating_add(*count))
    };
    let free = |order: usize| block(order, page_size).0.saturating_mul(count(order));
    let share = |order: usize| Bytes(free(order)).fraction_of(subject.free());
    let bars =
        (0..most).map(|order| share(order).map_or(CellValue::None, CellValue::Bar)).collect();
    let unusable = |order| index(unusable_index(subject.free(), subject.at_order(order)));
    let columns = vec![
        column("order", "Order", ColumnCells::Counts(each(&|order| order as u64))),
        column("block", "Block", ColumnCells::Bytes(each(&|order| block(order, page_size).0))),
        column("blocks", "Blocks", ColumnCells::Counts(each(&count))),
        column("free", "Free", ColumnCells::Bytes(each(&free))),
        TableColumn::new("share", "Share of free", ColumnCells::Values(bars)),
        column(
            "allocatable",
            "Allocatable",
            ColumnCells::Bytes(each(&|order| subject.at_order(order).0)),
        ),
        column(
            "unusable_index",
            "Unusable",
            ColumnCells::Values((0..most).map(unusable).collect()),
        ),
    ];
    let note = "Allocatable: what can be had in blocks of that order without compaction. Unusable: the share of free \
                memory that is of no use to such a request.";
    ReportTable { note: note.into(), ..table("orders", "All zones", Audience::Everyone, columns) }
}

/// Pageblocks by migrate type: `types[]` for programs, sums over the zones for people.
pub(super) fn types(subject: &ZoneSubject<'_>) -> Vec<ReportBlock> {
    match &subject.all.types {
        Ok(types) => {
            vec![
                ReportBlock::Table(each_type(subject, types)),
                ReportBlock::Table(sums(subject, types)),
            ]
        }
        Err(absent) => {
            let facts = vec![without_types(absent)];
            vec![ReportBlock::Facts(facts_of("", "", FactsShape::Line, facts))]
        }
    }
}

fn without_types(absent: &Absent) -> Fact {
    let value = CellValue::Absent(absent.clone());
    fact("types", "by migrate type", value, "/proc/pagetypeinfo.")
}

fn bytes(subject: &ZoneSubject<'_>, of: &TypedFree, order: usize) -> Bytes {
    let zone = Zone { node: of.node, name: of.zone.clone(), free: of.free.clone() };
    allocatable(&zone, order, subject.all.page_size)
}

fn each_type(subject: &ZoneSubject<'_>, types: &PageTypes) -> ReportTable {
    let rows = &types.free;
    let names = |name: fn(&TypedFree) -> &Name| {
        ColumnCells::Names(rows.iter().map(|row| name(row).clone()).collect())
    };
    let blocks = |row: &TypedFree| {
        let of_it = |b: &&pagewise_model::fragmentation::TypedBlocks| {
            (b.node, &b.zone, &b.kind) == (row.node, &row.zone, &row.kind)
        };
        types
            .blocks
            .iter()
            .find(of_it)
            .map_or(CellValue::None, |found| CellValue::Count(found.count))
    };
    let columns = vec![
        column(
            "node",
            "Node",
            ColumnCells::Counts(rows.iter().map(|r| u64::from(r.node)).collect()),
        ),
        column("zone", "Zone", names(|row| &row.zone)),
        column("type", "Type", names(|row| &row.kind)),
        column(
            "free",
            "Free",
            ColumnCells::Bytes(rows.iter().map(|r| bytes(subject, r, 0).0).collect()),
        ),
        column(
            "at_least",
            "At least",
            ColumnCells::Values(rows.iter().map(|row| CellValue::Flag(row.capped)).collect()),
        ),
        column("pageblocks", "Pageblocks", ColumnCells::Values(rows.iter().map(blocks).collect())),
        column(
            "free_by_order",
            "Free by order",
            ColumnCells::Values(rows.iter().map(|row| counts(&row.free)).collect()),
        ),
    ];
    table("types", "", Audience::Programs, columns)
}

/// True if any memory is of a type.
fn is_of_use(types: &PageTypes, kind: &Name) -> bool {
    types.blocks.iter().any(|row| row.kind == *kind && row.count > 0)
        || types.free.iter().any(|row| row.kind == *kind && row.free.iter().any(|n| *n > 0))
}

fn sums(subject: &ZoneSubject<'_>, types: &PageTypes) -> ReportTable {
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
    let share = |kind: &Name| {
        Bytes(blocks(kind)).fraction_of(Bytes(all)).map_or(CellValue::None, CellValue::Bar)
    };
    let huge = |kind: &Name| {
        CellValue::from_reading(subject.huge_order.clone(), |order| {
            CellValue::Bytes(of_kind(kind, order))
        })
    };
    let columns = vec![
        column(
            "type",
            "Type",
            ColumnCells::Names(kinds.iter().map(|kind| (*kind).clone()).collect()),
        ),
        column(
            "free",
            "Free",
            ColumnCells::Bytes(kinds.iter().map(|kind| of_kind(kind, 0)).collect()),
        ),
        column(
            "allocatable_huge",
            "In huge pages",
            ColumnCells::Values(kinds.iter().map(|kind| huge(kind)).collect()),
        ),
        column(
            "pageblocks",
            "Pageblocks",
            ColumnCells::Counts(kinds.iter().map(|kind| blocks(kind)).collect()),
        ),
        TableColumn::new(
            "pageblock_share",
            "Share of pageblocks",
            ColumnCells::Values(kinds.iter().map(|kind| share(kind)).collect()),
        ),
    ];
    let at_least = types.free.iter().any(|row| row.capped);
    let note = "A pageblock is the piece of memory that has a type, free or used. Compaction moves Movable pages only.";
    let capped = " The kernel stops counting at 100,000 blocks: what is free is at least this.";
    let note = format!("{note}{}", if at_least { capped } else { "" });
    ReportTable { note: note.into(), ..table("", "By migration type", Audience::People, columns) }
}
