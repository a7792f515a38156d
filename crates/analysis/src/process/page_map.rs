//! The pages of a process: sums and a strip for each mapping, runs of equal pages, and the memory
//! that was touched in an interval.

mod strip;
mod touched;

use std::borrow::Cow;
use std::sync::Arc;

use pagewise_model::page_map::{MappedPages, PageMap, PageMapKind, PageRun, PageRuns, PageState};
use pagewise_model::report::{
    Audience, CellValue, CodedCells, ColumnCells, FactsShape, MapCell, NamedFacts, Paragraph,
    Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Bytes, Mapping, Name, Reading};

pub use touched::touched;

use crate::address_map::clustered;
use crate::blocks::{Coder, facts_of, for_people, for_programs, table};
use crate::explain::{fact, meaning, who};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.pages/1";

/// Maximum number of runs for which the address map has a cell for each run; with more runs, it has
/// a cell for each mapping.
const DRAWN: usize = 4000;

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageMapOptions {
    /// True to show the runs to people as well; programs always get the runs.
    pub runs: bool,
    /// True if the report is for programs.
    pub for_programs: bool,
    /// True to draw the address space.
    pub address_map: bool,
}

/// Reports the pages: facts `process`, `scan` and `total`, tables `mappings` and `runs`.
///
/// # Complexity
/// O(n) in the number of runs.
pub fn pages(map: &PageMap, options: &PageMapOptions) -> Report {
    let sums: Vec<PageSums> =
        map.mappings.iter().map(|pages| PageSums::from_runs(&pages.runs)).collect();
    let total = sums.iter().fold(PageSums::default(), PageSums::plus);
    let mut blocks = vec![
        ReportBlock::Facts(who::process(&map.process)),
        ReportBlock::Facts(seen(map)),
        ReportBlock::Facts(totals(map, &total)),
        ReportBlock::Table(mappings(map, &sums, &total)),
    ];
    if options.runs || options.for_programs {
        blocks.push(ReportBlock::Table(runs(map, options.runs)));
    }
    if !map.mappings.is_empty() {
        blocks.insert(4, ReportBlock::Text(legend()));
    }
    if options.address_map {
        blocks.push(ReportBlock::AddressMap(clustered(cells(map).into_iter())));
    }
    Report { schema: SCHEMA, title: who::title_of("Pages", &map.process, ""), blocks }
}

/// Bytes by page state.
#[derive(Clone, Copy, Debug, Default)]
struct PageSums {
    by_kind: [Bytes; PageMapKind::ALL.len()],
    huge: Bytes,
    soft_dirty: Bytes,
    co_mapped: Bytes,
    ksm: Bytes,
    large: Bytes,
}

impl PageSums {
    fn from_runs(runs: &PageRuns) -> PageSums {
        let mut sums = PageSums::default();
        for PageRun { range, state } in runs.iter() {
            let bytes = range.len();
            sums.by_kind[state.kind as usize] += bytes;
            let resident = state.kind.is_resident();
            let add = |sum: &mut Bytes, applies: Option<bool>| {
                if resident && applies == Some(true) {
                    *sum += bytes;
                }
            };
            add(&mut sums.huge, state.huge);
            add(&mut sums.soft_dirty, state.soft_dirty);
            add(&mut sums.co_mapped, state.exclusive.map(|exclusive| !exclusive));
            add(&mut sums.ksm, state.ksm);
            add(&mut sums.large, state.folio.map(|pages| pages > 1));
        }
        sums
    }

    fn plus(mut self, other: &PageSums) -> PageSums {
        for (sum, more) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += more;
        }
        self.huge += other.huge;
        self.soft_dirty += other.soft_dirty;
        self.co_mapped += other.co_mapped;
        self.ksm += other.ksm;
        self.large += other.large;
        self
    }

    fn resident(&self) -> Bytes {
        let resident = PageMapKind::ALL.into_iter().filter(|kind| kind.is_resident());
        resident.map(|kind| self.by_kind[kind as usize]).sum()
    }
}

/// A sum of [`PageSums`]: its key, heading and function, and the data that it needs.
struct PageMeasure {
    key: &'static str,
    label: &'static str,
    of: fn(&PageSums) -> Bytes,
    needs: Needs,
}

/// Data without which a sum has no meaning.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    SoftDirty,
    /// The exclusive bit in the words of `pagemap`.
    Words,
    Frames,
}

const MEASURES: &[PageMeasure] = &[
    PageMeasure {
        key: "resident",
        label: "Resident",
        of: PageSums::resident,
        needs: Needs::Nothing,
    },
    PageMeasure { key: "anonymous", label: "Anon", of: |s| s.by_kind[1], needs: Needs::Nothing },
    PageMeasure { key: "file", label: "File", of: |s| s.by_kind[2], needs: Needs::Nothing },
    PageMeasure { key: "shmem", label: "Shmem", of: |s| s.by_kind[3], needs: Needs::Nothing },
    PageMeasure { key: "huge", label: "Huge", of: |s| s.huge, needs: Needs::Nothing },
    PageMeasure { key: "zero", label: "Zero", of: |s| s.by_kind[4], needs: Needs::Nothing },
    PageMeasure { key: "swapped", label: "Swap", of: |s| s.by_kind[5], needs: Needs::Nothing },
    PageMeasure { key: "guard", label: "Guard", of: |s| s.by_kind[6], needs: Needs::Nothing },
    PageMeasure {
        key: "untouched",
        label: "Untouched",
        of: |s| s.by_kind[0],
        needs: Needs::Nothing,
    },
    PageMeasure {
        key: "soft_dirty",
        label: "Soft-dirty",
        of: |s| s.soft_dirty,
        needs: Needs::SoftDirty,
    },
    PageMeasure { key: "co_mapped", label: "Co-mapped", of: |s| s.co_mapped, needs: Needs::Words },
    PageMeasure { key: "ksm", label: "KSM", of: |s| s.ksm, needs: Needs::Frames },
    PageMeasure { key: "large_folios", label: "Large", of: |s| s.large, needs: Needs::Frames },
];

impl PageMeasure {
    /// Returns the sum, or the reason for its absence.
    fn reading(&self, map: &PageMap, sums: &PageSums) -> Reading<Bytes> {
        match self.needs {
            Needs::Nothing => {}
            Needs::SoftDirty => map.soft_dirty.clone()?,
            Needs::Words => {
                let not_asked = map.frames.clone().err().filter(|_| !has_words(map));
                not_asked.map_or(Ok(()), Err)?;
            }
            Needs::Frames => map.frames.clone()?,
        }
        Ok((self.of)(sums))
    }

    /// True if people see the column. `resident`, `anonymous` and `file` are always shown,
    /// `untouched` never; any other column is shown if its sum is not 0.
    fn is_shown(&self, map: &PageMap, total: &PageSums) -> bool {
        let always = matches!(self.key, "resident" | "anonymous" | "file");
        always || self.key != "untouched" && self.reading(map, total).is_ok_and(|n| !n.is_zero())
    }
}

/// True if the words of `pagemap` were read. These words distinguish pages that are mapped once
/// from pages that are mapped several times.
fn has_words(map: &PageMap) -> bool {
    let mut runs = map.mappings.iter().flat_map(|pages| pages.runs.iter());
    runs.any(|run| run.state.exclusive.is_some())
}

fn seen(map: &PageMap) -> NamedFacts {
    let state = |reading: &Reading<()>| match reading {
        Ok(()) => CellValue::Flag(true),
        Err(absent) => CellValue::Absent(absent.clone()),
    };
    let runs = map.mappings.iter().map(|pages| pages.runs.len() as u64).sum();
    let gaps = map.gaps.iter().map(|gap| {
        CellValue::List(vec![
            CellValue::Name(gap.what.clone()),
            CellValue::text(format!(": {}", gap.why)),
        ])
    });
    let gaps: Vec<CellValue> = gaps.collect();
    let none = gaps.is_empty();
    let facts = vec![
        fact(
            "way",
            "by",
            CellValue::text(map.way.key()),
            "Interface that the states were read from.",
        ),
        fact("frames", "frames", state(&map.frames), "True if page frames were looked up too.")
            .for_programs(),
        fact("soft_dirty", "soft-dirty", state(&map.soft_dirty), "").for_programs(),
        fact("page_size", "page size", CellValue::Bytes(map.page_size.bytes()), ""),
        fact("runs", "runs", CellValue::Count(runs), "Number of runs of equal pages.").for_people(),
        fact("took_ns", "in", CellValue::Nanos(map.took_ns), ""),
        fact(
            "longest_hold_ns",
            "longest pause of the target",
            CellValue::Nanos(map.longest_hold_ns),
            "The longest system call that may have kept the process from mapping memory meanwhile.",
        ),
        fact("gaps", "not examined", CellValue::List(gaps), "").hidden_if(none),
    ];
    facts_of("scan", "Reading", FactsShape::Line, facts)
}

fn totals(map: &PageMap, total: &PageSums) -> NamedFacts {
    let facts = MEASURES.iter().map(|measure| {
        let value = CellValue::bytes(measure.reading(map, total));
        let hidden = !measure.is_shown(map, total);
        fact(measure.key, measure.label, value, meaning(measure.key)).hidden_if(hidden)
    });
    facts_of("total", "Total", FactsShape::Columns, facts.collect())
}

fn mappings(map: &PageMap, sums: &[PageSums], total: &PageSums) -> ReportTable {
    let all = &map.mappings;
    let address =
        |of: fn(&MappedPages) -> u64| ColumnCells::Addresses(all.iter().map(of).collect());
    let mut columns = vec![
        TableColumn::new("start", "Address", address(|pages| pages.mapping.range.start)),
        for_programs(TableColumn::new("end", "End", address(|pages| pages.mapping.range.end))),
        TableColumn::new(
            "size",
            "Size",
            ColumnCells::Bytes(all.iter().map(|pages| pages.mapping.size().0).collect()),
        ),
    ];
    for measure in MEASURES {
        let cells = sums.iter().map(|sums| measure.reading(map, sums));
        let column = TableColumn::bytes(measure.key, measure.label, cells);
        let shown = measure.is_shown(map, total);
        columns.push(if shown { column } else { for_programs(column) });
    }
    let strip = |pages: &MappedPages| strip::draw(&pages.runs, map.page_size);
    let strips = all.iter().map(|pages| CellValue::Picture(Cow::Owned(strip(pages))));
    columns.push(for_people(TableColumn::new(
        "strip",
        "Pages",
        ColumnCells::Values(strips.collect()),
    )));
    columns.push(TableColumn::new(
        "name",
        "Mapping",
        ColumnCells::Names(all.iter().map(|pages| name(&pages.mapping)).collect()),
    ));
    table("mappings", "Mappings", Audience::Everyone, columns)
}

fn name(mapping: &Mapping) -> Name {
    if mapping.name.is_empty() { "[anonymous]".into() } else { mapping.name.clone() }
}

fn legend() -> Paragraph {
    Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(strip::LEGEND)],
        audience: Audience::People,
    }
}

fn runs(map: &PageMap, for_people: bool) -> ReportTable {
    let all = || map.mappings.iter().flat_map(|pages| pages.runs.iter());
    let address =
        |of: fn(&PageRun) -> u64| ColumnCells::Addresses(all().map(|run| of(&run)).collect());
    let (states, codes) = coded_states(all().map(|run| run.state));
    let coded = |value: &dyn Fn(&PageState) -> CellValue| {
        let values = states.iter().map(value).collect();
        ColumnCells::Coded(CodedCells { values, codes: Arc::clone(&codes) })
    };
    let flag = |of: fn(&PageState) -> Option<bool>| {
        coded(&|state| of(state).map_or(CellValue::None, CellValue::Flag))
    };
    let count = |of: fn(&PageState) -> Option<u32>| {
        coded(&|state| of(state).map_or(CellValue::None, |n| CellValue::Count(n.into())))
    };
    let kind = coded(&|state| CellValue::text(state.kind.key()));
    let columns = vec![
        TableColumn::new("start", "Address", address(|run| run.range.start)),
        TableColumn::new("end", "End", address(|run| run.range.end)),
        TableColumn::new(
            "size",
            "Size",
            ColumnCells::Bytes(all().map(|run| run.range.len().0).collect()),
        ),
        TableColumn::new("state", "State", kind),
        TableColumn::new("huge", "Huge", flag(|state| state.huge)),
        TableColumn::new("soft_dirty", "Soft-dirty", flag(|state| state.soft_dirty)),
        TableColumn::new("written", "Written", flag(|state| state.written)),
        TableColumn::new("exclusive", "Exclusive", flag(|state| state.exclusive)),
        TableColumn::new("mappers", "Mappers", count(|state| state.mappers)),
        TableColumn::new("ksm", "KSM", flag(|state| state.ksm)),
        TableColumn::new("folio_pages", "Folio", count(|state| state.folio)),
    ];
    let shown = |column: TableColumn| {
        let says = match &column.cells {
            ColumnCells::Coded(coded) => coded.values.iter().any(|cell| *cell != CellValue::None),
            _ => true,
        };
        if says { column } else { for_programs(column) }
    };
    let audience = if for_people { Audience::Everyone } else { Audience::Programs };
    table("runs", "Runs", audience, columns.into_iter().map(shown).collect())
}

/// Returns the different states, and the index of each run's state.
fn coded_states(runs: impl Iterator<Item = PageState>) -> (Vec<PageState>, Arc<Vec<u32>>) {
    let mut coder = Coder::new();
    let codes = Arc::new(runs.map(|state| coder.code(state)).collect());
    (coder.distinct, codes)
}

/// Returns the cells of the address map: the runs if there are at most [`DRAWN`], else the
/// mappings.
fn cells(map: &PageMap) -> Vec<MapCell> {
    let count: usize = map.mappings.iter().map(|pages| pages.runs.len()).sum();
    if count <= DRAWN {
        let cells = map
            .mappings
            .iter()
            .flat_map(|pages| pages.runs.iter().map(|run| run_cell(pages, &run)));
        return cells.collect();
    }
    map.mappings.iter().map(mapping_cell).collect()
}

fn run_cell(pages: &MappedPages, run: &PageRun) -> MapCell {
    let key = run.state.kind.key();
    MapCell {
        range: run.range,
        pool: pool(run.state.kind),
        label: vec![
            CellValue::text(key),
            CellValue::text(": "),
            CellValue::Name(name(&pages.mapping)),
        ],
        filled: Ok(if run.state.kind.is_resident() { 1.0 } else { 0.0 }),
        facts: vec![
            fact("size", "size", CellValue::Bytes(run.range.len().0), ""),
            fact("huge", "huge", run.state.huge.map_or(CellValue::None, CellValue::Flag), ""),
        ],
    }
}

fn mapping_cell(pages: &MappedPages) -> MapCell {
    let sums = PageSums::from_runs(&pages.runs);
    let most = PageMapKind::ALL.into_iter().max_by_key(|kind| sums.by_kind[*kind as usize]);
    MapCell {
        range: pages.mapping.range,
        pool: pool(most.unwrap_or_default()),
        label: vec![CellValue::Name(name(&pages.mapping))],
        filled: Ok(sums.resident().fraction_of(pages.mapping.size()).unwrap_or(0.0).min(1.0)),
        facts: vec![
            fact("size", "size", CellValue::Bytes(pages.mapping.size().0), ""),
            fact("resident", "resident", CellValue::Bytes(sums.resident().0), ""),
        ],
    }
}

/// Identifier of the pool whose color represents pages of this type.
const fn pool(kind: PageMapKind) -> &'static str {
    match kind {
        PageMapKind::Untouched | PageMapKind::Guard | PageMapKind::Zero => "reserve",
        PageMapKind::Anonymous => "anonymous",
        PageMapKind::File => "file",
        PageMapKind::Shmem => "tmpfs",
        PageMapKind::Swapped => "named",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_the_same_state_have_the_same_code() {
        let state = |kind| PageState { kind, ..PageState::default() };
        let (file, zero) = (state(PageMapKind::File), state(PageMapKind::Zero));
        let (states, codes) = coded_states([file, zero, zero, file].into_iter());
        assert_eq!(states, [file, zero]);
        assert_eq!(*codes, [0, 1, 1, 0]);
    }
}
