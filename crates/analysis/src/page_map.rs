//! The pages of a process: sums and a strip for each mapping, runs of pages alike, and what was touched meanwhile.

mod strip;
mod touched;

use std::borrow::Cow;

use pagewise_model::page_map::{MappedPages, PageKind, PageMap, PageRun, PageState};
use pagewise_model::report::{
    Audience, Block, Cells, Column, Facts, MapCell, Paragraph, Report, Shape, Table, Value,
};
use pagewise_model::{Bytes, Mapping, Name, Reading};

pub use touched::touched;

use crate::address_map::clustered;
use crate::blocks::{facts_of, for_programs, table};
use crate::explain::{fact, meaning, who};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.pages/1";

/// So many runs are drawn one by one on the address map; of more, each mapping is one cell.
const DRAWN: usize = 4000;

/// What to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The runs themselves, for people as well.
    pub runs: bool,
    /// The address space as a picture.
    pub address_map: bool,
}

/// The pages as a report: facts `process`, `scan` and `total`, tables `mappings` and `runs`.
///
/// # Complexity
/// O(n) in the number of runs.
pub fn pages(map: &PageMap, options: &Options) -> Report {
    let sums: Vec<Sums> = map.mappings.iter().map(|pages| Sums::of(&pages.runs)).collect();
    let total = sums.iter().fold(Sums::default(), Sums::plus);
    let mut blocks = vec![
        Block::Facts(who::process(&map.process)),
        Block::Facts(seen(map)),
        Block::Facts(totals(map, &total)),
        Block::Table(mappings(map, &sums, &total)),
        Block::Table(runs(map, options.runs)),
    ];
    if !map.mappings.is_empty() {
        blocks.insert(4, Block::Text(legend()));
    }
    if options.address_map {
        blocks.push(Block::AddressMap(clustered(cells(map).into_iter())));
    }
    Report { schema: SCHEMA, title: who::title_of(&map.process, "its pages"), blocks }
}

/// Bytes by what the pages are.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    by_kind: [Bytes; PageKind::ALL.len()],
    huge: Bytes,
    soft_dirty: Bytes,
    co_mapped: Bytes,
    ksm: Bytes,
    large: Bytes,
}

impl Sums {
    fn of(runs: &[PageRun]) -> Sums {
        let mut sums = Sums::default();
        for PageRun { range, state } in runs {
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

    fn plus(mut self, other: &Sums) -> Sums {
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
        let resident = PageKind::ALL.into_iter().filter(|kind| kind.is_resident());
        resident.map(|kind| self.by_kind[kind as usize]).sum()
    }
}

/// One number of [`Sums`], with its key, heading, and whether it is only known with details.
struct Measure {
    key: &'static str,
    label: &'static str,
    of: fn(&Sums) -> Bytes,
    needs: Needs,
}

/// What must have been read for a number to mean anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    SoftDirty,
    /// The exclusive bit: any look with details.
    Words,
    Frames,
}

const MEASURES: &[Measure] = &[
    Measure { key: "resident", label: "Resident", of: Sums::resident, needs: Needs::Nothing },
    Measure { key: "anonymous", label: "Anon", of: |s| s.by_kind[1], needs: Needs::Nothing },
    Measure { key: "file", label: "File", of: |s| s.by_kind[2], needs: Needs::Nothing },
    Measure { key: "shmem", label: "Shmem", of: |s| s.by_kind[3], needs: Needs::Nothing },
    Measure { key: "huge", label: "Huge", of: |s| s.huge, needs: Needs::Nothing },
    Measure { key: "zero", label: "Zero", of: |s| s.by_kind[4], needs: Needs::Nothing },
    Measure { key: "swapped", label: "Swap", of: |s| s.by_kind[5], needs: Needs::Nothing },
    Measure { key: "guard", label: "Guard", of: |s| s.by_kind[6], needs: Needs::Nothing },
    Measure { key: "untouched", label: "Untouched", of: |s| s.by_kind[0], needs: Needs::Nothing },
    Measure {
        key: "soft_dirty",
        label: "Soft-dirty",
        of: |s| s.soft_dirty,
        needs: Needs::SoftDirty,
    },
    Measure { key: "co_mapped", label: "Co-mapped", of: |s| s.co_mapped, needs: Needs::Words },
    Measure { key: "ksm", label: "KSM", of: |s| s.ksm, needs: Needs::Frames },
    Measure { key: "large_folios", label: "Large", of: |s| s.large, needs: Needs::Frames },
];

impl Measure {
    /// The number, or why it is not known.
    fn reading(&self, map: &PageMap, sums: &Sums) -> Reading<Bytes> {
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

    /// Whether people see the column: not where it says nothing.
    fn is_shown(&self, map: &PageMap, total: &Sums) -> bool {
        let always = matches!(self.key, "resident" | "anonymous" | "file");
        always || self.key != "untouched" && self.reading(map, total).is_ok_and(|n| !n.is_zero())
    }
}

/// Whether the words of `pagemap` were read, which tell pages mapped once from others.
fn has_words(map: &PageMap) -> bool {
    let mut runs = map.mappings.iter().flat_map(|pages| &pages.runs);
    runs.any(|run| run.state.exclusive.is_some())
}

fn seen(map: &PageMap) -> Facts {
    let state = |reading: &Reading<()>| match reading {
        Ok(()) => Value::Flag(true),
        Err(absent) => Value::Absent(absent.clone()),
    };
    let runs = map.mappings.iter().map(|pages| pages.runs.len() as u64).sum();
    let gaps = map.gaps.iter().map(|gap| {
        Value::List(vec![Value::Name(gap.what.clone()), Value::text(format!(": {}", gap.why))])
    });
    let gaps: Vec<Value> = gaps.collect();
    let none = gaps.is_empty();
    let facts = vec![
        fact("way", "by", Value::text(map.way.key()), "Which interface told the states."),
        fact("frames", "frames", state(&map.frames), "Whether page frames were looked up too.")
            .for_programs(),
        fact("soft_dirty", "soft-dirty", state(&map.soft_dirty), "").for_programs(),
        fact("page_size", "page size", Value::Bytes(map.page_size.bytes()), ""),
        fact("runs", "runs", Value::Count(runs), "How many runs of pages alike there are.")
            .for_people(),
        fact("took_ns", "in", Value::Nanos(map.took_ns), ""),
        fact(
            "longest_hold_ns",
            "held it at most",
            Value::Nanos(map.longest_hold_ns),
            "The longest system call that may have kept the process from mapping memory meanwhile.",
        ),
        fact("gaps", "not looked at", Value::List(gaps), "").hidden_if(none),
    ];
    facts_of("scan", "Seen", Shape::Line, facts)
}

fn totals(map: &PageMap, total: &Sums) -> Facts {
    let facts = MEASURES.iter().map(|measure| {
        let value = Value::bytes(measure.reading(map, total));
        let hidden = !measure.is_shown(map, total);
        fact(measure.key, measure.label, value, meaning(measure.key)).hidden_if(hidden)
    });
    facts_of("total", "Total", Shape::Columns, facts.collect())
}

fn mappings(map: &PageMap, sums: &[Sums], total: &Sums) -> Table {
    let all = &map.mappings;
    let address = |of: fn(&MappedPages) -> u64| Cells::Addresses(all.iter().map(of).collect());
    let mut columns = vec![
        Column::new("start", "Address", address(|pages| pages.mapping.range.start)),
        for_programs(Column::new("end", "End", address(|pages| pages.mapping.range.end))),
        Column::new(
            "size",
            "Size",
            Cells::Bytes(all.iter().map(|pages| pages.mapping.size().0).collect()),
        ),
    ];
    for measure in MEASURES {
        let cells = sums.iter().map(|sums| measure.reading(map, sums));
        let column = Column::bytes(measure.key, measure.label, cells);
        let shown = measure.is_shown(map, total);
        columns.push(if shown { column } else { for_programs(column) });
    }
    let strip = |pages: &MappedPages| strip::draw(&pages.runs, map.page_size);
    let strips = all.iter().map(|pages| Value::Picture(Cow::Owned(strip(pages))));
    columns.push(Column {
        audience: Audience::People,
        ..Column::new("strip", "Pages", Cells::Values(strips.collect()))
    });
    columns.push(Column::new(
        "name",
        "Mapping",
        Cells::Names(all.iter().map(|pages| name(&pages.mapping)).collect()),
    ));
    table("mappings", "Mappings", Audience::Everyone, columns)
}

fn name(mapping: &Mapping) -> Name {
    if mapping.name.is_empty() { "[anonymous]".into() } else { mapping.name.clone() }
}

fn legend() -> Paragraph {
    Paragraph {
        title: "".into(),
        pieces: vec![Value::text(strip::LEGEND)],
        audience: Audience::People,
    }
}

fn runs(map: &PageMap, for_people: bool) -> Table {
    let all: Vec<&PageRun> = map.mappings.iter().flat_map(|pages| &pages.runs).collect();
    let address = |of: fn(&PageRun) -> u64| Cells::Addresses(all.iter().map(|r| of(r)).collect());
    let flag = |of: fn(&PageState) -> Option<bool>| {
        let cell = |run: &&PageRun| of(&run.state).map_or(Value::None, Value::Flag);
        Cells::Values(all.iter().map(cell).collect())
    };
    let count = |of: fn(&PageState) -> Option<u32>| {
        let cell = |run: &&PageRun| of(&run.state).map_or(Value::None, |n| Value::Count(n.into()));
        Cells::Values(all.iter().map(cell).collect())
    };
    let states = all.iter().map(|run| Cow::Borrowed(run.state.kind.key())).collect();
    let columns = vec![
        Column::new("start", "Address", address(|run| run.range.start)),
        Column::new("end", "End", address(|run| run.range.end)),
        Column::new("size", "Size", Cells::Bytes(all.iter().map(|r| r.range.len().0).collect())),
        Column::new("state", "State", Cells::Labels(states)),
        Column::new("huge", "Huge", flag(|state| state.huge)),
        Column::new("soft_dirty", "Soft-dirty", flag(|state| state.soft_dirty)),
        Column::new("written", "Written", flag(|state| state.written)),
        Column::new("exclusive", "Exclusive", flag(|state| state.exclusive)),
        Column::new("mappers", "Mappers", count(|state| state.mappers)),
        Column::new("ksm", "KSM", flag(|state| state.ksm)),
        Column::new("folio_pages", "Folio", count(|state| state.folio)),
    ];
    let shown = |column: Column| {
        let says = match &column.cells {
            Cells::Values(cells) => cells.iter().any(|cell| *cell != Value::None),
            _ => true,
        };
        if says { column } else { for_programs(column) }
    };
    let audience = if for_people { Audience::Everyone } else { Audience::Programs };
    table("runs", "Runs", audience, columns.into_iter().map(shown).collect())
}

/// The address map: each run where there are few, else each mapping.
fn cells(map: &PageMap) -> Vec<MapCell> {
    let count: usize = map.mappings.iter().map(|pages| pages.runs.len()).sum();
    if count <= DRAWN {
        let cells =
            map.mappings.iter().flat_map(|pages| pages.runs.iter().map(|run| run_cell(pages, run)));
        return cells.collect();
    }
    map.mappings.iter().map(mapping_cell).collect()
}

fn run_cell(pages: &MappedPages, run: &PageRun) -> MapCell {
    let key = run.state.kind.key();
    MapCell {
        range: run.range,
        pool: pool(run.state.kind),
        label: vec![Value::text(key), Value::text(": "), Value::Name(name(&pages.mapping))],
        filled: Ok(if run.state.kind.is_resident() { 1.0 } else { 0.0 }),
        facts: vec![
            fact("size", "size", Value::Bytes(run.range.len().0), ""),
            fact("huge", "huge", run.state.huge.map_or(Value::None, Value::Flag), ""),
        ],
    }
}

fn mapping_cell(pages: &MappedPages) -> MapCell {
    let sums = Sums::of(&pages.runs);
    let most = PageKind::ALL.into_iter().max_by_key(|kind| sums.by_kind[*kind as usize]);
    MapCell {
        range: pages.mapping.range,
        pool: pool(most.unwrap_or_default()),
        label: vec![Value::Name(name(&pages.mapping))],
        filled: Ok(sums.resident().fraction_of(pages.mapping.size()).unwrap_or(0.0).min(1.0)),
        facts: vec![
            fact("size", "size", Value::Bytes(pages.mapping.size().0), ""),
            fact("resident", "resident", Value::Bytes(sums.resident().0), ""),
        ],
    }
}

/// The pool whose colour a page has.
const fn pool(kind: PageKind) -> &'static str {
    match kind {
        PageKind::Untouched | PageKind::Guard | PageKind::Zero => "reserve",
        PageKind::Anonymous => "anonymous",
        PageKind::File => "file",
        PageKind::Shmem => "tmpfs",
        PageKind::Swapped => "named",
    }
}
