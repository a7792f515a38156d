//! The mappings with huge pages, or with sufficient size for a huge page.

use std::borrow::Cow;

use pagewise_model::report::{Audience, ColumnCells, ReportTable, TableColumn};
use pagewise_model::thp::{HugeMapping, HugePages};
use pagewise_model::{Backing, Bytes, Mapping, Name, Reading, Sharing, SmapsCounter, Snapshot};

use super::{ZeroEstimate, judge};
use crate::blocks::{for_programs, table};
use crate::pools::{PoolKind, PoolMap};

/// A mapping with its huge pages.
struct ThpRow<'a> {
    mapping: &'a Mapping,
    name: Name,
    kind: PoolKind,
    huge: Option<&'a HugeMapping>,
    bloat: Reading<ZeroEstimate>,
}

impl ThpRow<'_> {
    fn anonymous(&self) -> Bytes {
        self.huge.map_or(Bytes::ZERO, |huge| huge.anonymous)
    }

    fn file(&self) -> Bytes {
        self.huge.map_or(Bytes::ZERO, |huge| huge.file)
    }

    /// Resident bytes in base pages if the mapping may have huge pages; else 0.
    fn eligible(&self) -> Reading<Bytes> {
        let smaps = self.mapping.smaps.as_ref().map_err(Clone::clone)?;
        let is_eligible = smaps.get(SmapsCounter::ThpEligible)? != 0;
        let base = self.mapping.rss()?.saturating_sub(self.anonymous() + self.file());
        Ok(if is_eligible { base } else { Bytes::ZERO })
    }
}

/// Builds the table of anonymous memory in large folios, by size. If huge page table entries map
/// all large folios, people do not see the table.
pub(crate) fn sizes(huge: &HugePages) -> Option<ReportTable> {
    let sizes = huge.sizes.as_ref().ok()?;
    let mapped = |one_entry| Cow::Borrowed(if one_entry { "one entry" } else { "base entries" });
    let columns = vec![
        TableColumn::new(
            "size",
            "Size",
            ColumnCells::Bytes(sizes.iter().map(|s| s.size.0).collect()),
        ),
        TableColumn::new(
            "rss",
            "Resident",
            ColumnCells::Bytes(sizes.iter().map(|s| s.resident.0).collect()),
        ),
        TableColumn::bytes("bloat", "Bloat", sizes.iter().map(|s| s.zero.clone())),
        TableColumn::new(
            "mapped",
            "Mapped by",
            ColumnCells::Labels(sizes.iter().map(|s| mapped(s.one_entry)).collect()),
        ),
    ];
    let audience =
        if sizes.iter().all(|s| s.one_entry) { Audience::Programs } else { Audience::Everyone };
    Some(table("sizes", "Huge pages by size", audience, columns))
}

/// The mappings of the table.
pub(crate) struct ThpRows<'a>(Vec<ThpRow<'a>>);

impl<'a> ThpRows<'a> {
    pub(crate) fn from_snapshot(
        snapshot: &'a Snapshot,
        pools: &PoolMap,
        huge: &'a HugePages,
    ) -> ThpRows<'a> {
        let mappings = snapshot.mappings.as_deref().unwrap_or_default();
        let rows = mappings.iter().enumerate().filter_map(|(index, mapping)| {
            let found = huge.mappings.iter().find(|found| found.range == mapping.range);
            let kind = pools.pool_of(index).kind;
            (found.is_some() || has_room(mapping, kind, huge.huge_size)).then(|| ThpRow {
                mapping,
                name: pools.known_as(index, mapping),
                kind,
                huge: found,
                bloat: ZeroEstimate::over(found.into_iter(), huge.huge_size),
            })
        });
        ThpRows(rows.collect())
    }

    pub(crate) fn resident(&self) -> Reading<Bytes> {
        self.0.iter().map(|row| row.mapping.rss()).sum::<Result<Bytes, _>>()
    }

    pub(crate) fn huge(&self) -> Bytes {
        self.0.iter().map(ThpRow::anonymous).sum()
    }

    pub(crate) fn file(&self) -> Bytes {
        self.0.iter().map(ThpRow::file).sum()
    }

    pub(crate) fn eligible(&self) -> Reading<Bytes> {
        self.0.iter().map(ThpRow::eligible).sum::<Result<Bytes, _>>()
    }

    /// Returns the mapping with the most bloat.
    pub(crate) fn worst(&self) -> Option<(Name, Bytes)> {
        let worst = self.0.iter().max_by_key(|row| bloat_of(row))?;
        Some((worst.name.clone(), bloat_of(worst)))
    }

    /// Returns a remedy in the program's code for the mapping with the most bloat.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.0.iter().max_by_key(|row| bloat_of(row)).map(|row| row.kind) {
            Some(
                PoolKind::Heap
                | PoolKind::MallocArena
                | PoolKind::MallocChunk
                | PoolKind::Allocator,
            ) => {
                "prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) at the start of main, as malloc has no finer switch \
                 (jemalloc: MALLOC_CONF=thp:never)"
            }
            Some(PoolKind::MainStack | PoolKind::ThreadStack | PoolKind::CachedStack) => {
                "pthread_attr_setstack with a stack after madvise(stack, size, MADV_NOHUGEPAGE)"
            }
            _ => "madvise(start, length, MADV_NOHUGEPAGE) right after the mmap that makes it",
        }
    }

    pub(crate) fn table(&self) -> ReportTable {
        let rows = &self.0;
        let name = |row: &ThpRow<'_>| row.mapping.name.clone();
        let verdict = |row: &ThpRow<'_>| Cow::Borrowed(judge(row.anonymous(), &row.bloat));
        let address = |of: fn(&Mapping) -> u64| {
            ColumnCells::Addresses(rows.iter().map(|row| of(row.mapping)).collect())
        };
        let bytes = |of: &dyn Fn(&ThpRow<'_>) -> Bytes| {
            ColumnCells::Bytes(rows.iter().map(|row| of(row).0).collect())
        };
        let columns = vec![
            TableColumn::new("start", "Address", address(|m| m.range.start)),
            for_programs(TableColumn::new("end", "End", address(|m| m.range.end))),
            TableColumn::new("size", "Size", bytes(&|row| row.mapping.size())),
            TableColumn::bytes("rss", "RSS", rows.iter().map(|row| row.mapping.rss())),
            TableColumn::new("huge", "Huge", bytes(&|row| row.anonymous())),
            TableColumn::bytes(
                "bloat",
                "Bloat",
                rows.iter().map(|row| row.bloat.clone().map(|bloat| bloat.bytes)),
            ),
            TableColumn::new("file", "Huge file", bytes(&|row| row.file())),
            TableColumn::bytes("eligible", "Could be", rows.iter().map(ThpRow::eligible)),
            TableColumn::new(
                "verdict",
                "Verdict",
                ColumnCells::Labels(rows.iter().map(verdict).collect()),
            ),
            for_programs(TableColumn::new(
                "name",
                "Name",
                ColumnCells::Names(rows.iter().map(name).collect()),
            )),
            TableColumn::new(
                "use",
                "Mapping",
                ColumnCells::Names(rows.iter().map(|row| row.name.clone()).collect()),
            ),
        ];
        let nothing_of = |key: &str| match key {
            "file" => self.file().is_zero(),
            "eligible" => self.eligible().is_err(),
            _ => false,
        };
        let shown = |column: TableColumn| {
            if nothing_of(&column.key) { for_programs(column) } else { column }
        };
        let note = if self.eligible().is_err() && !rows.is_empty() {
            "Which mappings could be huge and are not is in smaps only: --full reads it."
        } else {
            ""
        };
        let title = "Mappings with huge pages or large enough for one";
        let columns = columns.into_iter().map(shown).collect();
        ReportTable { note: note.into(), ..table("mappings", title, Audience::Everyone, columns) }
    }
}

fn bloat_of(row: &ThpRow<'_>) -> Bytes {
    row.bloat.as_ref().map_or(Bytes::ZERO, |bloat| bloat.bytes)
}

/// True if a whole huge page of anonymous memory fits into the mapping, and a part of the mapping
/// is resident. Stacks are excluded, because they do not benefit from huge pages.
fn has_room(mapping: &Mapping, kind: PoolKind, huge_size: Bytes) -> bool {
    if matches!(kind, PoolKind::MainStack | PoolKind::ThreadStack | PoolKind::CachedStack) {
        return false;
    }
    let size = huge_size.0.max(1);
    let first = mapping.range.start.div_ceil(size).saturating_mul(size);
    let fits = first.saturating_add(size) <= mapping.range.end;
    let anonymous = mapping.sharing == Sharing::Private && mapping.backing() == Backing::Anonymous;
    fits && anonymous && mapping.rss().is_ok_and(|rss| !rss.is_zero())
}
