//! Layout of the allocator's memory, density of its pages, and call stacks whose blocks pin pages
//! that are mostly empty.

use std::fmt::Write as _;

use pagewise_model::heap::{
    AllocatorArea, AllocatorAreaKind, AllocatorLayout, HeapAmount, HeapRecording, PageDensity,
};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Gaps, Label, NamedFacts, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Reading};

use super::frames::Sites;
use super::{HeapOptions, TreeMoment, meant, table};
use crate::blocks::{facts_of, first, for_people, for_programs};
use crate::cells::{float, share, text};

/// Indices of the cells for pages whose live share is above 0 and at most a quarter.
const SPARSE: std::ops::RangeInclusive<usize> = 1..=2;

/// Sums over the footprint of an allocator.
#[derive(Clone, Debug)]
pub(crate) struct LayoutSums {
    pub(crate) held: u64,
    pub(crate) live: Reading<HeapAmount>,
    pub(crate) resident: Reading<Bytes>,
    pub(crate) empty: Reading<Bytes>,
    pub(crate) sparse: Reading<Bytes>,
}

impl LayoutSums {
    pub(crate) fn from_layout(recording: &HeapRecording, layout: &AllocatorLayout) -> LayoutSums {
        // The number of empty pages in blocks with their own mappings is unknown.
        let parts = || layout.areas.iter().filter(|area| area.kind != AllocatorAreaKind::Mapped);
        let resident = layout.areas.iter().map(|area| area.resident.clone());
        let live: Reading<Vec<HeapAmount>> =
            layout.areas.iter().map(|area| area.live.clone()).collect();
        LayoutSums {
            held: layout.areas.iter().fold(0, |sum, area| area.held.0.saturating_add(sum)),
            live: live.map(|all| {
                all.iter().fold(HeapAmount::default(), |sum, it| HeapAmount {
                    bytes: sum.bytes.saturating_add(it.bytes),
                    blocks: sum.blocks.saturating_add(it.blocks),
                })
            }),
            resident: add(resident),
            empty: add(parts().map(|area| area.empty.clone())),
            sparse: layout.pages.as_ref().map(|it| sparse(recording, it)).map_err(Clone::clone),
        }
    }

    /// Number of bytes of the footprint that are not live.
    fn unused(&self) -> Option<u64> {
        self.live.as_ref().ok().map(|live| self.held.saturating_sub(live.bytes))
    }
}

fn add(mut all: impl Iterator<Item = Reading<Bytes>>) -> Reading<Bytes> {
    all.try_fold(Bytes(0), |sum, it| Ok(Bytes(sum.0.saturating_add(it?.0))))
}

/// Number of bytes in pages whose live share is above 0 and at most a quarter.
fn sparse(recording: &HeapRecording, pages: &PageDensity) -> Bytes {
    let cells = pages.cells.get(SPARSE).unwrap_or_default();
    let count = cells.iter().fold(0_u64, |sum, cell| sum.saturating_add(*cell));
    Bytes(count.saturating_mul(recording.page_size.bytes()))
}

/// Returns the layout with the most bytes that are not live. If the live bytes are unknown, returns
/// the layout with the largest footprint.
pub(crate) fn worst(recording: &HeapRecording) -> Option<&AllocatorLayout> {
    let by = |layout: &&AllocatorLayout| {
        let sums = LayoutSums::from_layout(recording, layout);
        (sums.unused(), sums.held)
    };
    // A layout that was read while many blocks changed is less reliable than a consistent layout.
    let is_whole = |layout: &&AllocatorLayout| {
        let blocks = LayoutSums::from_layout(recording, layout).live.map_or(0, |live| live.blocks);
        layout.unclear <= blocks / 50
    };
    let all = || recording.layouts.iter().filter(|layout| !layout.areas.is_empty());
    all().filter(is_whole).max_by_key(by).or_else(|| all().max_by_key(by))
}

/// Returns the layout that the options select.
fn chosen<'a>(recording: &'a HeapRecording, options: &HeapOptions) -> Option<&'a AllocatorLayout> {
    let mut all = recording.layouts.iter().filter(|layout| !layout.areas.is_empty());
    match options.at {
        TreeMoment::Peak => worst(recording),
        TreeMoment::End => all.next_back(),
        TreeMoment::Time(time) => all.rfind(|layout| layout.time_ns <= time),
    }
}

/// Writes the name of an area.
fn area_label(kind: AllocatorAreaKind) -> String {
    match kind {
        AllocatorAreaKind::Main => "main arena (brk)".to_owned(),
        AllocatorAreaKind::Arena(number) => format!("arena {number}"),
        AllocatorAreaKind::Mapped => "mappings of their own".to_owned(),
        AllocatorAreaKind::Mappings => "mappings with blocks".to_owned(),
    }
}

/// Names the areas that together have nine tenths of the bytes that are not live: `arenas 1-8`.
pub(crate) fn where_unused(layout: &AllocatorLayout) -> Option<String> {
    let unused = |area: &AllocatorArea| {
        area.live.as_ref().ok().map(|live| area.held.0.saturating_sub(live.bytes))
    };
    let mut all: Vec<(u64, AllocatorAreaKind)> =
        layout.areas.iter().filter_map(|area| Some((unused(area)?, area.kind))).collect();
    all.sort_by_key(|(unused, _)| std::cmp::Reverse(*unused));
    let sum = all.iter().fold(0_u64, |sum, (unused, _)| sum.saturating_add(*unused));
    let (mut so_far, mut most) = (0_u64, Vec::new());
    for (unused, kind) in all {
        if float(so_far) >= float(sum) * 0.9 || unused == 0 {
            break;
        }
        so_far = so_far.saturating_add(unused);
        most.push(kind);
    }
    let mut parts = Vec::new();
    if most.contains(&AllocatorAreaKind::Main) {
        parts.push("the main arena (brk)".to_owned());
    }
    let mut numbers: Vec<u32> = most
        .iter()
        .filter_map(
            |kind| if let AllocatorAreaKind::Arena(number) = kind { Some(*number) } else { None },
        )
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    if !numbers.is_empty() {
        let word = if numbers.len() == 1 { "arena" } else { "arenas" };
        parts.push(format!("{word} {}", runs(&numbers)));
    }
    if most.contains(&AllocatorAreaKind::Mapped) {
        parts.push("blocks with mappings of their own".to_owned());
    }
    if most.contains(&AllocatorAreaKind::Mappings) {
        parts.push("mappings with blocks in them".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join(" and "))
}

/// Number of arenas in the layout.
pub(crate) fn arenas_of(layout: &AllocatorLayout) -> usize {
    let is_arena = |area: &&AllocatorArea| {
        matches!(area.kind, AllocatorAreaKind::Main | AllocatorAreaKind::Arena(_))
    };
    layout.areas.iter().filter(is_arena).count()
}

/// Writes sorted numbers as runs: `1-3, 5`.
fn runs(numbers: &[u32]) -> String {
    /// Maximum number of runs in the text.
    const MAX_RUNS: usize = 8;
    let mut ends: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ends.last_mut() {
            Some(last) if last.1.checked_add(1) == Some(*number) => last.1 = *number,
            _ => ends.push((*number, *number)),
        }
    }
    let mut words = String::new();
    for (at, (first, last)) in ends.iter().take(MAX_RUNS).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let _ = match first == last {
            true => write!(words, "{comma}{first}"),
            false => write!(words, "{comma}{first}-{last}"),
        };
    }
    if ends.len() > MAX_RUNS {
        words.push_str(" ..");
    }
    words
}

/// Returns the call site that pins the most bytes of sparsely used pages, and the number of bytes.
pub(crate) fn pins_most(sites: &Sites<'_>, layout: &AllocatorLayout) -> Option<(CellValue, u64)> {
    let pages = layout.pages.as_ref().ok()?;
    let bytes = |at: usize| {
        let of_site = pages.pinned.iter().filter(|it| it.site as usize == at);
        of_site.fold(0_u64, |sum, it| sum.saturating_add(it.bytes))
    };
    let mut sums: std::collections::HashMap<super::frames::AllocatingFrame, u64> =
        Default::default();
    for (at, site) in sites.recording.sites.iter().enumerate() {
        let bytes = bytes(at);
        if bytes > 0 {
            let sum = sums.entry(sites.place(site)).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let (place, bytes) =
        sums.into_iter().max_by_key(|(place, sum)| (*sum, std::cmp::Reverse(*place)))?;
    Some((CellValue::Name(sites.frame_text(place)), bytes))
}

/// Builds `layouts`; and `arenas`, `page_use` and `pinned` of the selected layout.
pub(crate) fn blocks(sites: &Sites<'_>, options: &HeapOptions) -> Vec<ReportBlock> {
    let recording = sites.recording;
    let mut blocks = vec![ReportBlock::Table(all(recording))];
    let Some(layout) = chosen(recording, options) else {
        let absent = Absent::NotCollected("the layout of the allocator's memory".into());
        let facts = vec![meant("time", "AT", CellValue::Absent(absent))];
        let facts = facts_of("layout", "", FactsShape::List, facts);
        blocks.push(ReportBlock::Facts(NamedFacts { audience: Audience::Programs, ..facts }));
        return blocks;
    };
    blocks.push(ReportBlock::Facts(summary(recording, layout)));
    blocks.push(ReportBlock::Table(arenas(recording, layout, options)));
    match &layout.pages {
        Ok(pages) => {
            blocks.extend(page_use(recording, pages).map(ReportBlock::Table));
            blocks.push(ReportBlock::Table(pinned(sites, pages, options)));
        }
        Err(_) => blocks.push(ReportBlock::Table(ReportTable {
            audience: Audience::Programs,
            ..table("pinned", "", Audience::Programs, Vec::new())
        })),
    }
    blocks
}

/// Builds the table of the sums over each layout, for programs.
fn all(recording: &HeapRecording) -> ReportTable {
    let rows: Vec<(&AllocatorLayout, LayoutSums)> =
        recording.layouts.iter().map(|it| (it, LayoutSums::from_layout(recording, it))).collect();
    let values = |key, label, pick: &dyn Fn(&(&AllocatorLayout, LayoutSums)) -> CellValue| {
        TableColumn::new(key, label, ColumnCells::Values(rows.iter().map(pick).collect()))
    };
    let bytes = |key, label, pick: &dyn Fn(&LayoutSums) -> Reading<Bytes>| {
        TableColumn::bytes(key, label, rows.iter().map(|row| pick(&row.1)))
    };
    let columns = vec![
        values("time", "AT", &|row| CellValue::Seconds(row.0.time_ns)),
        bytes("live", "LIVE", &|it| {
            it.live.as_ref().map(|it| Bytes(it.bytes)).map_err(Clone::clone)
        }),
        bytes("held", "HELD", &|it| Ok(Bytes(it.held))),
        bytes("resident", "RESIDENT", &|it| it.resident.clone()),
        bytes("empty", "EMPTY", &|it| it.empty.clone()),
        bytes("sparse", "SPARSE", &|it| it.sparse.clone()),
        values("areas", "AREAS", &|row| CellValue::Count(row.0.areas.len() as u64)),
        values("unclear", "UNCLEAR", &|row| CellValue::Count(row.0.unclear)),
    ];
    table("layouts", "", Audience::Programs, columns)
}

/// Returns the sums over the selected layout, for programs.
fn summary(recording: &HeapRecording, layout: &AllocatorLayout) -> NamedFacts {
    let sums = LayoutSums::from_layout(recording, layout);
    let bytes = |key, label, it: Reading<Bytes>| {
        meant(key, label, CellValue::from_reading(it, |it| CellValue::Bytes(it.0)))
    };
    let facts = vec![
        meant("time", "AT", CellValue::Seconds(layout.time_ns)),
        bytes("live", "LIVE", sums.live.map(|it| Bytes(it.bytes))),
        bytes("held", "HELD", Ok(Bytes(sums.held))),
        bytes("resident", "RESIDENT", sums.resident),
        bytes("empty", "EMPTY", sums.empty),
        bytes("sparse", "SPARSE", sums.sparse),
        meant("unclear", "UNCLEAR", CellValue::Count(layout.unclear)),
    ];
    let facts = facts_of("layout", "", FactsShape::List, facts);
    NamedFacts { audience: Audience::Programs, ..facts }
}

fn at(layout: &AllocatorLayout) -> String {
    format!("{:.3} s after the beginning", float(layout.time_ns) / 1e9)
}

fn arenas(
    recording: &HeapRecording,
    layout: &AllocatorLayout,
    options: &HeapOptions,
) -> ReportTable {
    let mut order: Vec<&AllocatorArea> = layout.areas.iter().collect();
    // Areas are in the order of their numbers; if not all are shown, the largest footprint is
    // first.
    if options.limit.is_some_and(|limit| order.len() > limit) {
        order.sort_by_key(|area| std::cmp::Reverse(area.held));
    }
    let (shown, mut note) = first(&order, options.limit, "--top");
    if layout.unclear > 0 {
        let words = format!("{} blocks could not be placed.", layout.unclear);
        note = if note.is_empty() { words.into() } else { format!("{note} {words}").into() };
    }
    let estimated = recording.every_bytes.is_some();
    let bytes = |key, label: &'static str, pick: &dyn Fn(&AllocatorArea) -> Reading<Bytes>| {
        TableColumn::bytes(key, label, shown.iter().map(|area| pick(area)))
    };
    let values = |key, label: &'static str, pick: &dyn Fn(&AllocatorArea) -> CellValue| {
        TableColumn::new(
            key,
            label,
            ColumnCells::Values(shown.iter().map(|area| pick(area)).collect()),
        )
    };
    let live = |pick: fn(&HeapAmount) -> u64, value: fn(u64) -> CellValue| {
        move |area: &AllocatorArea| {
            CellValue::from_reading(area.live.as_ref().map(pick).map_err(Clone::clone), value)
        }
    };
    let kind = |area: &AllocatorArea| match area.kind {
        AllocatorAreaKind::Main => "main",
        AllocatorAreaKind::Arena(_) => "arena",
        AllocatorAreaKind::Mapped => "mapped",
        AllocatorAreaKind::Mappings => "mappings",
    };
    let number = |area: &AllocatorArea| match area.kind {
        AllocatorAreaKind::Arena(number) => CellValue::Count(number.into()),
        _ => CellValue::None,
    };
    let mut columns = vec![
        values(
            "live",
            if estimated { "≈ LIVE" } else { "LIVE" },
            &live(|it| it.bytes, CellValue::Bytes),
        ),
        values(
            "blocks",
            if estimated { "≈ BLOCKS" } else { "BLOCKS" },
            &live(|it| it.blocks, CellValue::Count),
        ),
        bytes("held", "HELD", &|area| Ok(area.held)),
        bytes("resident", "RESIDENT", &|area| area.resident.clone()),
        bytes("empty", "EMPTY", &|area| area.empty.clone()),
        bytes("gap", "LONGEST GAP", &|area| area.gap.clone()),
        bytes("top", "TOP", &|area| area.top.clone()),
        values("threads", "THREADS", &|area| {
            CellValue::from_reading(area.threads.clone(), CellValue::Count)
        }),
        values("parts", "PARTS", &|area| CellValue::Count(area.parts.into())),
        for_programs(TableColumn::new(
            "kind",
            "KIND",
            ColumnCells::Labels(shown.iter().map(|area| Label::from(kind(area))).collect()),
        )),
        for_programs(values("number", "NUMBER", &number)),
        TableColumn {
            audience: Audience::People,
            ..values("area", "AREA", &|area| text(area_label(area.kind)))
        },
    ];
    let is_unknown = |column: &TableColumn| {
        matches!(&column.gaps, Gaps::Some(rows) if rows.len() == shown.len())
            || matches!(&column.cells, ColumnCells::Values(all) if all.iter().all(|it| matches!(it, CellValue::Absent(_))))
    };
    for column in &mut columns {
        // A column without a value is for programs only.
        if is_unknown(column) && column.audience == Audience::Everyone {
            column.audience = Audience::Programs;
        }
    }
    let title = format!("Layout of malloc's memory, {}", at(layout));
    ReportTable { title: title.into(), note, ..table("arenas", "", Audience::Everyone, columns) }
}

/// Builds the tables of pages by live share, for people and for programs.
fn page_use(recording: &HeapRecording, pages: &PageDensity) -> [ReportTable; 2] {
    let page = recording.page_size.bytes();
    let all = pages.cells.iter().fold(0_u64, |sum, cell| sum.saturating_add(*cell));
    let most = pages.cells.iter().copied().max().unwrap_or(0);
    let rows: Vec<(f64, f64, u64)> = pages
        .cells
        .iter()
        .enumerate()
        .map(|(at, count)| {
            (float(at.saturating_sub(1) as u64) / 8.0, float(at as u64) / 8.0, *count)
        })
        .collect();
    let make = |audience| {
        let cells = |pick: &dyn Fn(&(f64, f64, u64)) -> CellValue| {
            ColumnCells::Values(rows.iter().map(pick).collect())
        };
        let bar = |row: &(f64, f64, u64)| match most {
            0 => CellValue::None,
            most => CellValue::Bar(float(row.2) / float(most)),
        };
        let columns = vec![
            TableColumn::new("above", "LIVE ABOVE", cells(&|row| CellValue::Share(row.0))),
            TableColumn::new("to", "TO", cells(&|row| CellValue::Share(row.1))),
            TableColumn::new(
                "pages",
                "PAGES",
                ColumnCells::Counts(rows.iter().map(|row| row.2).collect()),
            ),
            TableColumn::new(
                "bytes",
                "BYTES",
                ColumnCells::Bytes(rows.iter().map(|row| row.2.saturating_mul(page)).collect()),
            ),
            TableColumn::new("share", "SHARE", cells(&|row| share(row.2, all))),
            for_people(TableColumn::new("bar", "", cells(&bar))),
        ];
        table(
            "page_use",
            "Resident pages of the heap by how much of them is live",
            audience,
            columns,
        )
    };
    let people = if all == 0 { Audience::Programs } else { Audience::People };
    let mut shown = make(people);
    shown.key = "page_use_shown".into();
    if all == 0 {
        shown.columns.clear();
    }
    [shown, make(Audience::Programs)]
}

/// Builds the table of call stacks whose blocks pin pages with a live share of at most a quarter.
fn pinned(sites: &Sites<'_>, pages: &PageDensity, options: &HeapOptions) -> ReportTable {
    let (shown, mut note) = first(&pages.pinned, options.limit, "--top");
    let recording = sites.recording;
    let all = sparse(recording, pages).0;
    let hidden: u64 = pages.pinned[shown.len()..].iter().map(|it| it.bytes).sum();
    let others = pages.others.bytes.saturating_add(hidden);
    if others > 0 && note.is_empty() {
        note = "Call stacks that keep less are left out.".into();
    }
    let bytes = |key, label, pick: fn(&pagewise_model::heap::PinnedPages) -> u64| {
        TableColumn::new(key, label, ColumnCells::Bytes(shown.iter().map(pick).collect()))
    };
    let site = |at: u32| recording.sites.get(at as usize);
    let columns = vec![
        bytes("kept", "KEPT", |it| it.bytes),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(shown.iter().map(|it| share(it.bytes, all)).collect()),
        ),
        bytes("live", "LIVE IN THEM", |it| it.live.bytes),
        TableColumn::new(
            "blocks",
            "BLOCKS",
            ColumnCells::Counts(shown.iter().map(|it| it.live.blocks).collect()),
        ),
        for_programs(TableColumn::new(
            "stack",
            "CALL STACK",
            ColumnCells::Values(
                shown
                    .iter()
                    .map(|it| site(it.site).map_or(CellValue::None, |site| sites.stack_value(site)))
                    .collect(),
            ),
        )),
        for_people(TableColumn::new(
            "where",
            "ALLOCATED IN ← CALLED BY",
            ColumnCells::Names(
                shown
                    .iter()
                    .map(|it| {
                        site(it.site)
                            .map_or_else(|| sites.frame_text(None), |it| sites.stack_words(it))
                    })
                    .collect(),
            ),
        )),
    ];
    let audience = if shown.is_empty() { Audience::Programs } else { Audience::Everyone };
    let title = "Allocations pinning mostly empty pages";
    ReportTable { note, ..table("pinned", title, audience, columns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_are_written_as_a_run() {
        assert_eq!(runs(&[1, 2, 3, 5, 7, 8]), "1-3, 5, 7-8");
        assert_eq!(runs(&[4]), "4");
        assert_eq!(runs(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
    }
}
