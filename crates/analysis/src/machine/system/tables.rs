//! Tables of owners, tmpfs uses and slab caches.

use std::borrow::Cow;

use pagewise_model::account::{
    MemoryAccount, MemoryOwner, OwnerPart, ShmemKind, ShmemUse, SlabCache, SystemReading,
};
use pagewise_model::evidence::counter;
use pagewise_model::report::{Audience, CellValue, ColumnCells, Label, ReportTable, TableColumn};
use pagewise_model::{Bytes, Name};

use super::SystemOptions;
use crate::account::owner_text;
use crate::blocks::{first, for_programs, table};
use crate::cells::text;

/// Maximum characters of the parts in a row for people: the width of the column on a terminal of 80
/// columns.
const PARTS_WIDTH: usize = 27;
/// Characters of a size, with the blanks and the comma around it.
const SIZE_WIDTH: usize = 7;

fn label_of(owner: &MemoryOwner) -> Label {
    owner_text(&owner.id).map_or_else(|| Cow::Owned(owner.id.clone()), |it| it.label.into())
}

/// The owners with the unaccounted memory as their last row.
pub(super) fn owners_for_people(reading: &SystemReading, account: &MemoryAccount) -> ReportTable {
    let owners = &account.owners;
    let mut labels: Vec<Label> = owners.iter().map(label_of).collect();
    let mut bytes: Vec<CellValue> =
        owners.iter().map(|owner| CellValue::Bytes(owner.bytes.0)).collect();
    let share =
        |part: Bytes| part.fraction_of(account.total).map_or(CellValue::None, CellValue::Bar);
    let mut shares: Vec<CellValue> = owners.iter().map(|owner| share(owner.bytes)).collect();
    let mut parts: Vec<CellValue> = owners.iter().map(|owner| sentence(&owner.parts)).collect();
    labels.push("unaccounted".into());
    bytes.push(unaccounted(account.unaccounted));
    shares.push(share(Bytes(account.unaccounted.unsigned_abs())));
    parts.push(suspects(reading));
    let columns = vec![
        TableColumn::new("owner", "Owner", ColumnCells::Labels(labels)),
        TableColumn::new("bytes", "Memory", ColumnCells::Values(bytes)),
        TableColumn::new("share", "Share", ColumnCells::Values(shares)),
        TableColumn::new("parts", "Largest parts", ColumnCells::Values(parts)),
    ];
    let total =
        vec![text("MemTotal"), CellValue::Bytes(account.total.0), CellValue::None, CellValue::None];
    ReportTable { total: Some(total), ..table("", "", Audience::People, columns) }
}

fn unaccounted(bytes: i64) -> CellValue {
    match u64::try_from(bytes) {
        Ok(bytes) => CellValue::Bytes(bytes),
        Err(_) => CellValue::Change(bytes),
    }
}

/// Memory that may be part of the unaccounted memory.
fn suspects(reading: &SystemReading) -> CellValue {
    let percpu = counter(&reading.meminfo, "Percpu").filter(|_| reading.percpu_at_boot.is_err());
    let sizes = [
        ("network buffers up to ", reading.sockets.clone().ok()),
        ("per-CPU variables up to ", percpu.map(Bytes)),
    ];
    let sized = |(words, bytes): (&'static str, Option<Bytes>)| {
        let bytes = bytes.filter(|it| !it.is_zero())?;
        Some(vec![text(words), CellValue::Bytes(bytes.0)])
    };
    let lists = reading.zones.is_err().then(|| vec![text("free pages in lists of CPUs")]);
    let known: Vec<_> = sizes.into_iter().filter_map(sized).chain(lists).collect();
    match known.is_empty() {
        true => text("pages of drivers and of the kernel without a counter"),
        false => CellValue::Sentence(known.join(&text(", "))),
    }
}

/// `mysqld (77) 1.2G, nginx (9) 3.0M`
fn sentence(parts: &[OwnerPart]) -> CellValue {
    let mut pieces = Vec::new();
    let mut width = 0;
    for part in parts {
        width += part.name.escaped().chars().count() + SIZE_WIDTH;
        if !pieces.is_empty() && width > PARTS_WIDTH {
            break;
        }
        if !pieces.is_empty() {
            pieces.push(text(", "));
        }
        pieces.push(CellValue::Name(part.name.clone()));
        pieces.push(text(" "));
        pieces.push(CellValue::Bytes(part.bytes.0));
    }
    if pieces.is_empty() { CellValue::None } else { CellValue::Sentence(pieces) }
}

/// `owners`: `id`, `bytes` and `detail`.
pub(super) fn owners_for_programs(account: &MemoryAccount) -> ReportTable {
    let owners = &account.owners;
    let detail = |owner: &MemoryOwner| {
        let record = |part: &OwnerPart| {
            CellValue::Record(vec![
                ("name".into(), CellValue::Name(part.name.clone())),
                ("bytes".into(), CellValue::Bytes(part.bytes.0)),
            ])
        };
        CellValue::List(owner.parts.iter().map(record).collect())
    };
    let meaning = |owner: &MemoryOwner| -> Label {
        owner_text(&owner.id).map_or("".into(), |it| it.meaning.into())
    };
    let ids = owners.iter().map(|owner| Cow::Owned(owner.id.clone())).collect();
    let columns = vec![
        TableColumn::new("id", "Owner", ColumnCells::Labels(ids)),
        TableColumn::new(
            "label",
            "Owner",
            ColumnCells::Labels(owners.iter().map(label_of).collect()),
        ),
        TableColumn::new(
            "bytes",
            "Memory",
            ColumnCells::Bytes(owners.iter().map(|owner| owner.bytes.0).collect()),
        ),
        TableColumn::new(
            "detail",
            "Parts",
            ColumnCells::Values(owners.iter().map(detail).collect()),
        ),
        TableColumn::new(
            "meaning",
            "Meaning",
            ColumnCells::Labels(owners.iter().map(meaning).collect()),
        ),
    ];
    table("owners", "", Audience::Programs, columns)
}

/// Uses of tmpfs memory.
pub(super) fn shmem(reading: &SystemReading, options: &SystemOptions) -> Option<ReportTable> {
    let uses = reading.shmem.as_ref().ok().filter(|uses| !uses.is_empty())?;
    let (shown, more) = first(uses, options.rows, "--limit");
    let kind = |it: &ShmemUse| -> Label {
        match it.kind {
            ShmemKind::Tmpfs => "tmpfs".into(),
            ShmemKind::Memfd => "memfd".into(),
            ShmemKind::SystemV => "System V".into(),
        }
    };
    let optional =
        |bytes: Option<Bytes>| bytes.map_or(CellValue::None, |it| CellValue::Bytes(it.0));
    let columns = vec![
        TableColumn::new("kind", "Kind", ColumnCells::Labels(shown.iter().map(kind).collect())),
        TableColumn::new(
            "bytes",
            "Allocated",
            ColumnCells::Bytes(shown.iter().map(|it| it.bytes.0).collect()),
        ),
        TableColumn::new(
            "limit",
            "Limit",
            ColumnCells::Values(shown.iter().map(|it| optional(it.limit)).collect()),
        ),
        for_programs(TableColumn::new(
            "swapped",
            "Swapped",
            ColumnCells::Values(shown.iter().map(|it| optional(it.swapped)).collect()),
        )),
        TableColumn::new(
            "name",
            "Name",
            ColumnCells::Names(shown.iter().map(|it| it.name.clone()).collect()),
        ),
    ];
    let note = match more.as_ref() {
        "" => "Allocated includes memory in swap.".into(),
        more => format!("Allocated includes memory in swap. {more}").into(),
    };
    Some(ReportTable { note, ..table("shmem", "Memory of tmpfs", Audience::Everyone, columns) })
}

/// The largest slab caches.
pub(super) fn slabs(reading: &SystemReading, options: &SystemOptions) -> Option<ReportTable> {
    let slabs = reading.slabs.as_ref().ok()?;
    let rows = options.rows.map(|rows| rows.min(slabs.len()));
    let (shown, note) = first(slabs, rows, "--limit");
    let flag = |it: &SlabCache| CellValue::from_reading(it.reclaimable.clone(), CellValue::Flag);
    let used =
        |it: &SlabCache| it.active.fraction_of(it.bytes).map_or(CellValue::None, CellValue::Share);
    let names = |it: &SlabCache| -> Name { it.name.clone() };
    let columns = vec![
        TableColumn::new("name", "Cache", ColumnCells::Names(shown.iter().map(names).collect())),
        TableColumn::new(
            "bytes",
            "Memory",
            ColumnCells::Bytes(shown.iter().map(|it| it.bytes.0).collect()),
        ),
        TableColumn {
            meaning: "Objects in use, as a share of the memory of the cache.".into(),
            ..TableColumn::new(
                "used",
                "In use",
                ColumnCells::Values(shown.iter().map(used).collect()),
            )
        },
        TableColumn::new(
            "objects",
            "Objects",
            ColumnCells::Counts(shown.iter().map(|it| it.objects).collect()),
        ),
        TableColumn::new(
            "reclaimable",
            "Reclaimable",
            ColumnCells::Values(shown.iter().map(flag).collect()),
        ),
    ];
    Some(ReportTable { note, ..table("slabs", "Largest slab caches", Audience::Everyone, columns) })
}
