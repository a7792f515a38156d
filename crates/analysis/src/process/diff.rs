//! Growth between two snapshots: by total, quadrant, pool and mapping; and addresses that moved.
//!
//! Two snapshots of one process are matched by address. Two runs of a program have different
//! addresses (ASLR), so their mappings are matched by name, offset and permissions. Mappings with
//! equal properties are matched in the order of their addresses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Report, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::{Absent, Bytes, Mapping, Name, Prot, Quadrant, Reading, Sharing, Snapshot};

use crate::blocks::facts_of;
use crate::explain;
use crate::maps::mode;
use crate::pools::{self, PoolKind, PoolMap};
use crate::pss::{self, Pss};
use crate::quadrants::quadrants;
use crate::swapped;

/// Options of the report.
#[derive(Clone, Debug)]
pub struct SnapshotDiffOptions {
    /// Maximum number of rows in the table of pools, and in the table of mappings.
    pub largest: usize,
    /// True to add a table of the addresses that moved.
    pub layout: bool,
}

impl Default for SnapshotDiffOptions {
    fn default() -> SnapshotDiffOptions {
        SnapshotDiffOptions { largest: 20, layout: false }
    }
}

/// Reports the changes from `before` to `after`: tables `totals`, `quadrants`, `pools`, `mappings`,
/// and `layout` on request.
pub fn diff(before: &Snapshot, after: &Snapshot, options: &SnapshotDiffOptions) -> Report {
    let mut blocks = vec![
        ReportBlock::Facts(snapshot_facts(before, after)),
        ReportBlock::Table(totals(before, after)),
    ];
    match (DiffSide::new(before), DiffSide::new(after)) {
        (Ok(a), Ok(b)) => {
            blocks.push(ReportBlock::Table(quadrant_table(before, after)));
            blocks.push(ReportBlock::Table(pool_table(&a, &b, options.largest)));
            let same_memory = is_same_process(before, after) && !has_executed(before, after);
            let pairs = pairs(&a, &b, same_memory);
            blocks.push(ReportBlock::Table(mapping_table(&pairs, options.largest)));
            if options.layout {
                blocks.push(ReportBlock::Table(layout(&a, &b)));
            }
        }
        (Err(absent), _) | (_, Err(absent)) => blocks.push(ReportBlock::Facts(NamedFacts {
            facts: vec![fact("mappings", "mappings", CellValue::Absent(absent))],
            ..facts("", FactsShape::List)
        })),
    }
    Report {
        schema: "pagewise.diff/1",
        title: vec![
            CellValue::text("Changes in "),
            CellValue::Name(after.process.name.clone()),
            CellValue::text(format!(" ({})", after.process.pid)),
        ],
        blocks,
    }
}

/// Reports one row of a live series: the changes since `before`, and the pool that grew the most.
/// The elapsed seconds count from `first`.
pub fn series_row(first: &Snapshot, before: &Snapshot, after: &Snapshot) -> Report {
    let start = first.provenance.unix_seconds;
    let seconds = after.provenance.unix_seconds.saturating_sub(start);
    let mut line = vec![fact("seconds", "s", CellValue::Count(seconds))];
    for total in SERIES.iter().filter_map(|key| TOTALS.iter().find(|it| it.key == *key)) {
        let (a, b) = ((total.read)(before), (total.read)(after));
        line.push(fact(total.key, total.label, CellValue::bytes(b.clone())));
        line.push(fact(format!("{}_change", total.key), "CHANGE", change(&a, &b)));
    }
    if has_executed(before, after) {
        line.extend(executed(after));
    } else if let (Ok(a), Ok(b)) = (DiffSide::new(before), DiffSide::new(after)) {
        line.extend(most_grown(&a, &b));
    }
    Report {
        schema: "pagewise.diff.series/1",
        title: Vec::new(),
        blocks: vec![ReportBlock::Facts(NamedFacts { facts: line, ..facts("", FactsShape::Line) })],
    }
}

/// Returns the pool whose resident memory grew the most, and its growth.
fn most_grown(a: &DiffSide<'_>, b: &DiffSide<'_>) -> Vec<Fact> {
    let grown =
        |pool: &PoolDiff| pool.before.resident.clone().ok().zip(pool.after.resident.clone().ok());
    let growth =
        |pool: &PoolDiff| grown(pool).map_or(0, |(before, after)| difference(before, after));
    let pools = pool_rows(a, b);
    let Some(most) = pools.iter().max_by_key(|pool| growth(pool)).filter(|pool| growth(pool) > 0)
    else {
        return Vec::new();
    };
    let label = CellValue::text(most.kind.label());
    let grown = CellValue::Change(growth(most));
    let words = match most.name.as_bytes() {
        [] => label.clone(),
        _ => CellValue::Name(most.name.clone()),
    };
    let words = CellValue::Sentence(vec![grown.clone(), CellValue::text(" "), words]);
    vec![
        fact("grown_pool", "", label).for_programs(),
        fact("grown_name", "", CellValue::Name(most.name.clone())).for_programs(),
        fact("grown", "", grown).for_programs(),
        fact("grown", "GREW MOST", words).for_people(),
    ]
}

/// Returns facts with the program that the process has executed since the earlier snapshot:
/// `execve` discards all earlier memory.
fn executed(after: &Snapshot) -> Vec<Fact> {
    let name = CellValue::Name(after.process.name.clone());
    let words = CellValue::Sentence(vec![CellValue::text("executed "), name.clone()]);
    vec![
        fact("executed", "", name).for_programs(),
        fact("executed", "GREW MOST", words).for_people(),
    ]
}

/// True if both snapshots are of the same process.
fn is_same_process(a: &Snapshot, b: &Snapshot) -> bool {
    (a.process.pid, a.process.start_ticks) == (b.process.pid, b.process.start_ticks)
}

/// True if the process has executed a program between the two snapshots. `execve` maps a new stack,
/// whose end is at a random address. The end does not move while the program runs.
fn has_executed(before: &Snapshot, after: &Snapshot) -> bool {
    let stack_end = |it: &Snapshot| Some(named(mappings(it).ok()?, b"[stack]")?.range.end);
    is_same_process(before, after)
        && stack_end(before).zip(stack_end(after)).is_some_and(|(before, after)| before != after)
}

/// A snapshot, with values that are computed only once.
struct DiffSide<'a> {
    mappings: &'a [Mapping],
    pools: PoolMap,
    pss: Pss,
}

impl<'a> DiffSide<'a> {
    fn new(snapshot: &'a Snapshot) -> Reading<DiffSide<'a>> {
        let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
        let pss = pss::shares(snapshot, mappings);
        Ok(DiffSide { mappings, pools: pools::classify(snapshot), pss })
    }

    fn kind(&self, index: usize) -> PoolKind {
        self.pools.list()[self.pools.index(index)].kind
    }

    fn amounts(&self, index: usize) -> Amounts {
        let mapping = &self.mappings[index];
        Amounts {
            reserved: Ok(mapping.size()),
            resident: mapping.rss(),
            pss: self.pss.pss_of(index, mapping),
            swapped: mapping.swap(),
        }
    }
}

/// The memory of a mapping or a pool. A mapping or pool that does not exist has 0 bytes, which is a
/// known value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Amounts {
    reserved: Reading<Bytes>,
    resident: Reading<Bytes>,
    pss: Reading<Bytes>,
    swapped: Reading<Bytes>,
}

const NOTHING: Amounts = Amounts {
    reserved: Ok(Bytes::ZERO),
    resident: Ok(Bytes::ZERO),
    pss: Ok(Bytes::ZERO),
    swapped: Ok(Bytes::ZERO),
};

type AmountOf = fn(&Amounts) -> &Reading<Bytes>;

/// Columns of changes. The first columns take precedence in the order of the rows.
const CHANGES: [(&str, &str, AmountOf); 4] = [
    ("resident", "RSS", |a| &a.resident),
    ("pss", "PSS", |a| &a.pss),
    ("swapped", "swapped", |a| &a.swapped),
    ("reserved", "reserved", |a| &a.reserved),
];

impl Amounts {
    fn add(&mut self, more: &Amounts) {
        let add = |sum: &mut Reading<Bytes>, more: &Reading<Bytes>| {
            if let Ok(bytes) = sum {
                *sum = more.clone().map(|more| *bytes + more);
            }
        };
        add(&mut self.reserved, &more.reserved);
        add(&mut self.resident, &more.resident);
        add(&mut self.pss, &more.pss);
        add(&mut self.swapped, &more.swapped);
    }
}

/// A part of a process, such as a pool, that exists in the earlier snapshot, in the later snapshot,
/// or in both.
trait ComparedPart {
    fn before(&self) -> Option<&Amounts>;
    fn after(&self) -> Option<&Amounts>;

    fn both(&self, amount: AmountOf) -> (&Reading<Bytes>, &Reading<Bytes>) {
        (amount(self.before().unwrap_or(&NOTHING)), amount(self.after().unwrap_or(&NOTHING)))
    }

    fn mark(&self) -> Label {
        match (self.before(), self.after()) {
            (None, Some(_)) => "new".into(),
            (Some(_), None) => "gone".into(),
            _ => "".into(),
        }
    }

    /// Absolute values of the changes, in the order of [`CHANGES`]; an unknown change counts as 0.
    fn weight(&self) -> [u64; CHANGES.len()] {
        CHANGES.map(|(_, _, amount)| match self.both(amount) {
            (Ok(before), Ok(after)) => before.0.abs_diff(after.0),
            _ => 0,
        })
    }
}

/// Returns at most `largest` changed rows, the largest change first, and the number of all changed
/// rows.
fn most_changed<C: ComparedPart>(mut rows: Vec<C>, largest: usize) -> (Vec<C>, usize) {
    rows.retain(|row| !row.mark().is_empty() || row.weight() != [0; CHANGES.len()]);
    rows.sort_by_cached_key(|row| Reverse(row.weight()));
    let all = rows.len();
    rows.truncate(largest);
    (rows, all)
}

fn change_columns<C: ComparedPart>(rows: &[C]) -> Vec<TableColumn> {
    let marks = rows.iter().map(ComparedPart::mark).collect();
    let mut columns = vec![TableColumn::new("status", "", ColumnCells::Labels(marks))];
    columns.extend(CHANGES.iter().map(|(key, label, amount)| {
        let cell = |row: &C| {
            let (before, after) = row.both(*amount);
            change(before, after)
        };
        TableColumn::new(*key, *label, ColumnCells::Values(rows.iter().map(cell).collect()))
    }));
    columns
}

/// Returns a note on the number of shown rows and of changed rows.
fn shown(shown: usize, all: usize, what: &str) -> Label {
    match (shown, all) {
        (_, 0) => format!("No {what} changed.").into(),
        (shown, all) if shown < all => {
            format!("The {shown} of {all} changed {what} that changed the most.").into()
        }
        _ => "".into(),
    }
}

/// A pool in both snapshots. Pools with the same type and name are summed.
#[derive(Debug)]
struct PoolDiff {
    kind: PoolKind,
    name: Name,
    before: Amounts,
    after: Amounts,
    was: bool,
    is: bool,
}

impl ComparedPart for PoolDiff {
    fn before(&self) -> Option<&Amounts> {
        self.was.then_some(&self.before)
    }

    fn after(&self) -> Option<&Amounts> {
        self.is.then_some(&self.after)
    }
}

fn pool_rows(a: &DiffSide<'_>, b: &DiffSide<'_>) -> Vec<PoolDiff> {
    let mut rows: BTreeMap<(PoolKind, Name), PoolDiff> = BTreeMap::new();
    let mut gather = |side: &DiffSide<'_>, is_after: bool| {
        for index in 0..side.mappings.len() {
            let pool = &side.pools.list()[side.pools.index(index)];
            let row = rows.entry((pool.kind, pool.name.clone())).or_insert_with(|| PoolDiff {
                kind: pool.kind,
                name: pool.name.clone(),
                before: NOTHING,
                after: NOTHING,
                was: false,
                is: false,
            });
            let (sum, there) = if is_after {
                (&mut row.after, &mut row.is)
            } else {
                (&mut row.before, &mut row.was)
            };
            sum.add(&side.amounts(index));
            *there = true;
        }
    };
    gather(a, false);
    gather(b, true);
    rows.into_values().collect()
}

fn pool_table(a: &DiffSide<'_>, b: &DiffSide<'_>, largest: usize) -> ReportTable {
    let (rows, all) = most_changed(pool_rows(a, b), largest);
    let mut columns = change_columns(&rows);
    let kinds = rows.iter().map(|row| row.kind.id().into()).collect();
    let names = rows.iter().map(|row| row.name.clone()).collect();
    columns.push(TableColumn::new("pool", "pool", ColumnCells::Labels(kinds)));
    columns.push(TableColumn::new("name", "name", ColumnCells::Names(names)));
    ReportTable { note: shown(rows.len(), all, "pools"), ..table("pools", "Pools", columns) }
}

/// A mapping in the earlier and in the later snapshot; `None` in the snapshot that lacks the
/// mapping.
#[derive(Debug)]
struct MappingPair<'a> {
    before: Option<(&'a Mapping, Amounts)>,
    after: Option<(&'a Mapping, Amounts)>,
    kind: PoolKind,
}

impl<'a> MappingPair<'a> {
    /// Returns the mapping of the later snapshot; if it does not exist, the mapping of the earlier
    /// snapshot.
    fn mapping(&self) -> &'a Mapping {
        let found = self.after.as_ref().or(self.before.as_ref());
        found.expect("a pair is made of at least one").0
    }
}

impl ComparedPart for MappingPair<'_> {
    fn before(&self) -> Option<&Amounts> {
        self.before.as_ref().map(|(_, amounts)| amounts)
    }

    fn after(&self) -> Option<&Amounts> {
        self.after.as_ref().map(|(_, amounts)| amounts)
    }
}

fn pairs<'a>(a: &DiffSide<'a>, b: &DiffSide<'a>, same_process: bool) -> Vec<MappingPair<'a>> {
    let partners = if same_process { by_address(a, b) } else { by_name(a, b) };
    let mut is_gone = vec![true; a.mappings.len()];
    let side = |side: &DiffSide<'a>, index: usize| (&side.mappings[index], side.amounts(index));
    let mut pairs = Vec::with_capacity(b.mappings.len());
    for (index, partner) in partners.iter().enumerate() {
        if let Some(partner) = *partner {
            is_gone[partner] = false;
        }
        pairs.push(MappingPair {
            before: partner.map(|partner| side(a, partner)),
            after: Some(side(b, index)),
            kind: b.kind(index),
        });
    }
    let gone = is_gone.iter().enumerate().filter(|(_, gone)| **gone);
    pairs.extend(gone.map(|(index, _)| MappingPair {
        before: Some(side(a, index)),
        after: None,
        kind: a.kind(index),
    }));
    pairs
}

/// Returns for each mapping of `b` the index of an overlapping mapping of `a` with the same name. A
/// mapping with the same permissions is preferred, so that a mapping that `mprotect` has split
/// matches the part that is unchanged.
///
/// # Complexity
/// O(n) in the number of mappings: the mappings of a snapshot are sorted and do not overlap.
fn by_address(a: &DiffSide<'_>, b: &DiffSide<'_>) -> Vec<Option<usize>> {
    let mut partners = vec![None; b.mappings.len()];
    let mut taken = vec![false; a.mappings.len()];
    for same_prot in [true, false] {
        let mut low = 0;
        for (index, mapping) in b.mappings.iter().enumerate() {
            while a.mappings.get(low).is_some_and(|old| old.range.end <= mapping.range.start) {
                low += 1;
            }
            if partners[index].is_some() {
                continue;
            }
            let over =
                a.mappings[low..].iter().take_while(|old| old.range.start < mapping.range.end);
            let fits = |(at, old): &(usize, &Mapping)| {
                !taken[low + at]
                    && old.path() == mapping.path()
                    && old.sharing == mapping.sharing
                    && (!same_prot || old.prot == mapping.prot)
            };
            if let Some((at, _)) = over.enumerate().find(fits) {
                taken[low + at] = true;
                partners[index] = Some(low + at);
            }
        }
    }
    partners
}

/// Properties by which the mappings of two runs are matched.
type Likeness<'a> = (&'a [u8], u64, Prot, Sharing, PoolKind);

/// Returns for each mapping of `b` the index of the first unmatched mapping of `a` with equal
/// properties.
fn by_name(a: &DiffSide<'_>, b: &DiffSide<'_>) -> Vec<Option<usize>> {
    fn likeness<'a>(side: &DiffSide<'a>, index: usize) -> Likeness<'a> {
        let mapping = &side.mappings[index];
        // Only a file has offsets. A System V segment has a name and offset 0, but may lack an
        // inode.
        let offset = if mapping.inode == 0 { 0 } else { mapping.offset };
        (mapping.path(), offset, mapping.prot, mapping.sharing, side.kind(index))
    }
    let mut waiting: HashMap<Likeness<'_>, VecDeque<usize>> = HashMap::new();
    for index in 0..a.mappings.len() {
        waiting.entry(likeness(a, index)).or_default().push_back(index);
    }
    let mut partner = |index| waiting.get_mut(&likeness(b, index))?.pop_front();
    (0..b.mappings.len()).map(&mut partner).collect()
}

fn mapping_table(pairs: &[MappingPair<'_>], largest: usize) -> ReportTable {
    let (rows, all) = most_changed(pairs.iter().collect(), largest);
    let mut columns = change_columns(&rows);
    let start = |mapping: Option<&Mapping>| match mapping {
        Some(mapping) => CellValue::Address(mapping.range.start),
        None => CellValue::None,
    };
    let before = rows.iter().map(|row| start(row.before.as_ref().map(|(m, _)| *m))).collect();
    let after = rows.iter().map(|row| start(row.after.as_ref().map(|(m, _)| *m))).collect();
    let here = rows.iter().map(|row| row.mapping().range.start).collect();
    let only = |audience, column| TableColumn { audience, ..column };
    columns.push(only(
        Audience::People,
        TableColumn::new("address", "address", ColumnCells::Addresses(here)),
    ));
    columns.push(only(
        Audience::Programs,
        TableColumn::new("start_before", "", ColumnCells::Values(before)),
    ));
    columns
        .push(only(Audience::Programs, TableColumn::new("start", "", ColumnCells::Values(after))));
    let modes = rows.iter().map(|row| mode(row.mapping())).collect();
    columns.push(TableColumn::new("mode", "mode", ColumnCells::Labels(modes)));
    let kinds = rows.iter().map(|row| row.kind.id().into()).collect();
    columns.push(TableColumn::new("pool", "pool", ColumnCells::Labels(kinds)));
    let names = rows.iter().map(|row| row.mapping().name.clone()).collect();
    columns.push(TableColumn::new("name", "name", ColumnCells::Names(names)));
    ReportTable {
        note: shown(rows.len(), all, "mappings"),
        ..table("mappings", "Mappings", columns)
    }
}

impl<C: ComparedPart> ComparedPart for &C {
    fn before(&self) -> Option<&Amounts> {
        (*self).before()
    }

    fn after(&self) -> Option<&Amounts> {
        (*self).after()
    }
}

/// A total of a whole process.
struct Total {
    key: &'static str,
    label: &'static str,
    read: fn(&Snapshot) -> Reading<Bytes>,
}

/// Keys of the totals in a series. A narrow terminal shows only the first keys.
const SERIES: [&str; 6] = ["res", "pss", "swap", "uss", "virt", "page_tables"];

const TOTALS: [Total; 6] = [
    Total { key: "virt", label: "VIRT", read: |s| Ok(s.statm.clone()?.size) },
    Total { key: "res", label: "RES", read: |s| Ok(s.statm.clone()?.resident) },
    Total { key: "pss", label: "PSS", read: |s| pss::shares(s, mappings(s)?).total },
    Total { key: "uss", label: "USS", read: |s| mappings(s)?.iter().map(Mapping::uss).sum() },
    Total { key: "swap", label: "SWAP", read: swapped::total },
    Total { key: "page_tables", label: "page tables", read: |s| s.status.clone()?.vm_pte },
];

fn mappings(snapshot: &Snapshot) -> Reading<&Vec<Mapping>> {
    snapshot.mappings.as_ref().map_err(Clone::clone)
}

fn totals(before: &Snapshot, after: &Snapshot) -> ReportTable {
    let sides = |total: &Total| ((total.read)(before), (total.read)(after));
    let rows: Vec<_> = TOTALS.iter().map(sides).collect();
    let labels = TOTALS.iter().map(|total| total.label.into()).collect();
    let name = TableColumn::new("total", "", ColumnCells::Labels(labels));
    let mut columns = vec![TableColumn { audience: Audience::People, ..name }];
    columns.extend(before_after_change("", &rows));
    let keys = TOTALS.iter().map(|total| total.key.into()).collect();
    ReportTable { row_keys: Some(keys), ..table("totals", "Totals", columns) }
}

fn quadrant_table(before: &Snapshot, after: &Snapshot) -> ReportTable {
    let (a, b) = (quadrants(before), quadrants(after));
    let sides = |read: fn(&crate::quadrants::QuadrantCell) -> Reading<Bytes>| {
        let side = |side: &Reading<crate::quadrants::Quadrants>, i: usize| match side {
            Ok(quadrants) => read(&quadrants.effective[i]),
            Err(absent) => Err(absent.clone()),
        };
        (0..Quadrant::ALL.len()).map(|i| (side(&a, i), side(&b, i))).collect::<Vec<_>>()
    };
    let labels = Quadrant::ALL.iter().map(|quadrant| quadrant.label().into()).collect();
    let name = TableColumn::new("quadrant", "", ColumnCells::Labels(labels));
    let mut columns = vec![TableColumn { audience: Audience::People, ..name }];
    columns.extend(before_after_change("resident_", &sides(|cell| cell.resident.clone())));
    let only = |key: &'static str, rows: &[(Reading<Bytes>, Reading<Bytes>)]| {
        let cells = rows.iter().map(|(before, after)| change(before, after)).collect();
        TableColumn::new(key, key, ColumnCells::Values(cells))
    };
    columns.push(only("reserved", &sides(|cell| cell.reserved.clone())));
    columns.push(only("swapped", &sides(|cell| cell.swapped.clone())));
    let keys = Quadrant::ALL.iter().map(|quadrant| quadrant.key().into()).collect();
    ReportTable {
        row_keys: Some(keys),
        ..table("quadrants", "Quadrants by page, resident", columns)
    }
}

fn before_after_change(
    prefix: &str,
    rows: &[(Reading<Bytes>, Reading<Bytes>)],
) -> [TableColumn; 3] {
    let changes = rows.iter().map(|(before, after)| change(before, after)).collect();
    let key = |name: &str| format!("{prefix}{name}");
    [
        TableColumn::bytes(key("before"), "before", rows.iter().map(|(before, _)| before.clone())),
        TableColumn::bytes(key("after"), "after", rows.iter().map(|(_, after)| after.clone())),
        TableColumn::new(key("change"), "change", ColumnCells::Values(changes)),
    ]
}

/// A landmark of an address space, and the function that finds its address.
struct Landmark {
    key: &'static str,
    label: &'static str,
    meaning: &'static str,
    find: fn(&DiffSide<'_>) -> Option<u64>,
}

const LANDMARKS: [Landmark; 7] = [
    Landmark {
        key: "program",
        label: "program",
        meaning: "Moves where the program is linked position-independent.",
        find: |side| first(side, |_, kind| PROGRAM.contains(&kind)),
    },
    Landmark {
        key: "heap",
        label: "brk heap",
        meaning: "Begins a random gap after the program.",
        find: |side| first(side, |m, _| m.name.as_bytes() == b"[heap]"),
    },
    Landmark {
        key: "libraries",
        label: "first library",
        meaning: "Libraries are mapped downwards from the mmap base and move with it.",
        find: |side| first(side, |_, kind| kind == PoolKind::Library),
    },
    Landmark {
        key: "mmap_base",
        label: "mmap base",
        meaning: "The highest address given out by mmap, a random gap below the stack.",
        find: mmap_base,
    },
    Landmark {
        key: "stack",
        label: "stack end",
        meaning: "The stack grows down from here.",
        find: |side| Some(named(side.mappings, b"[stack]")?.range.end),
    },
    Landmark {
        key: "vdso",
        label: "vdso",
        meaning: "The kernel's code for fast system calls.",
        find: |side| Some(named(side.mappings, b"[vdso]")?.range.start),
    },
    Landmark {
        key: "vsyscall",
        label: "vsyscall",
        meaning: "An old page at a fixed address: never moves.",
        find: |side| Some(named(side.mappings, b"[vsyscall]")?.range.start),
    },
];

const PROGRAM: [PoolKind; 5] = [
    PoolKind::Program,
    PoolKind::ProgramText,
    PoolKind::ProgramRodata,
    PoolKind::ProgramData,
    PoolKind::ProgramBss,
];

fn first(side: &DiffSide<'_>, fits: impl Fn(&Mapping, PoolKind) -> bool) -> Option<u64> {
    let index = (0..side.mappings.len()).find(|&i| fits(&side.mappings[i], side.kind(i)))?;
    Some(side.mappings[index].range.start)
}

fn named<'a>(mappings: &'a [Mapping], name: &[u8]) -> Option<&'a Mapping> {
    mappings.iter().find(|m| m.name.as_bytes() == name)
}

/// Returns the end of the highest mapping below the stack, except `[vdso]` and `[vvar]`.
fn mmap_base(side: &DiffSide<'_>) -> Option<u64> {
    let stack = named(side.mappings, b"[stack]")?.range.start;
    let below = side
        .mappings
        .iter()
        .rev()
        .find(|m| m.range.end <= stack && !m.name.as_bytes().starts_with(b"[v"))?;
    Some(below.range.end)
}

fn layout(a: &DiffSide<'_>, b: &DiffSide<'_>) -> ReportTable {
    let find = |landmark: &'static Landmark| (landmark, (landmark.find)(a), (landmark.find)(b));
    let rows: Vec<_> = LANDMARKS.iter().map(find).filter(|(_, a, b)| a.or(*b).is_some()).collect();
    let address = |address: &Option<u64>| address.map_or(CellValue::None, CellValue::Address);
    let moved = |a: &Option<u64>, b: &Option<u64>| match (a, b) {
        (Some(a), Some(b)) => CellValue::Flag(a != b),
        _ => CellValue::None,
    };
    let shift = |a: &Option<u64>, b: &Option<u64>| match (a, b) {
        (Some(a), Some(b)) => CellValue::Change(difference(Bytes(*a), Bytes(*b))),
        _ => CellValue::None,
    };
    let values = |cells: Vec<CellValue>| ColumnCells::Values(cells);
    let keys = rows.iter().map(|(landmark, ..)| landmark.key.into()).collect();
    let labels = rows.iter().map(|(landmark, ..)| landmark.label.into()).collect();
    let meanings = rows.iter().map(|(landmark, ..)| landmark.meaning.into()).collect();
    let only = |audience, column| TableColumn { audience, ..column };
    let columns = vec![
        only(Audience::Programs, TableColumn::new("what", "", ColumnCells::Labels(keys))),
        only(Audience::People, TableColumn::new("label", "", ColumnCells::Labels(labels))),
        TableColumn::new(
            "before",
            "before",
            values(rows.iter().map(|(_, a, _)| address(a)).collect()),
        ),
        TableColumn::new(
            "after",
            "after",
            values(rows.iter().map(|(_, _, b)| address(b)).collect()),
        ),
        TableColumn::new(
            "moved",
            "moved",
            values(rows.iter().map(|(_, a, b)| moved(a, b)).collect()),
        ),
        TableColumn::new("shift", "by", values(rows.iter().map(|(_, a, b)| shift(a, b)).collect())),
        only(Audience::People, TableColumn::new("meaning", "", ColumnCells::Labels(meanings))),
    ];
    table("layout", "Layout", columns)
}

fn snapshot_facts(before: &Snapshot, after: &Snapshot) -> NamedFacts {
    let same = is_same_process(before, after);
    let matched = match (same, has_executed(before, after)) {
        (true, false) => "one process: mappings are matched by address",
        (true, true) => {
            "the process executed a program in between: mappings are matched by name, offset and \
             permissions"
        }
        (false, _) => "two processes: mappings are matched by name, offset and permissions",
    };
    let (start, end) = (before.provenance.unix_seconds, after.provenance.unix_seconds);
    let apart = end.saturating_sub(start);
    NamedFacts {
        facts: vec![
            fact("before", "before", CellValue::Count(u64::from(before.process.pid.0))),
            fact("after", "after", CellValue::Count(u64::from(after.process.pid.0))),
            Fact {
                audience: Audience::Programs,
                ..fact("same_process", "", CellValue::Flag(same))
            },
            fact("seconds_apart", "seconds apart", CellValue::Count(apart)),
            Fact { audience: Audience::People, ..fact("matched", "", CellValue::text(matched)) },
        ],
        ..facts("processes", FactsShape::Line)
    }
}

/// Returns the difference of two readings, or the reason for its absence.
fn change(before: &Reading<Bytes>, after: &Reading<Bytes>) -> CellValue {
    match (before, after) {
        (Ok(before), Ok(after)) => CellValue::Change(difference(*before, *after)),
        (Err(absent), _) | (_, Err(absent)) => CellValue::Absent(Absent::clone(absent)),
    }
}

fn difference(before: Bytes, after: Bytes) -> i64 {
    let wide = i128::from(after.0) - i128::from(before.0);
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

/// Builds a fact whose label explains it.
fn fact(key: impl Into<Label>, label: &'static str, value: CellValue) -> Fact {
    explain::fact(key, label, value, "")
}

fn facts(key: &'static str, shape: FactsShape) -> NamedFacts {
    facts_of(key, "", shape, Vec::new())
}

fn table(key: &'static str, title: &'static str, columns: Vec<TableColumn>) -> ReportTable {
    ReportTable {
        key: key.into(),
        title: title.into(),
        audience: Audience::Everyone,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::Pid;

    use super::*;
    use crate::sample::{column, resident, snapshot, table};

    fn run(mappings: &[(&str, u64)]) -> Snapshot {
        snapshot(mappings.iter().map(|(line, bytes)| resident(line, *bytes)).collect())
    }

    fn other_run(mappings: &[(&str, u64)]) -> Snapshot {
        let mut other = run(mappings);
        other.process.pid = Pid(8);
        other
    }

    fn rows(report: &Report, key: &str) -> Vec<(String, i64, String)> {
        let table = table(report, key);
        let text = |value: &CellValue| match value {
            CellValue::Text(text) => text.to_string(),
            CellValue::Name(name) => name.escaped().into_owned(),
            other => panic!("{other:?}"),
        };
        let number = |value: &CellValue| match value {
            CellValue::Change(change) => *change,
            other => panic!("{other:?}"),
        };
        let (status, name) = (column(table, "status"), column(table, "name"));
        let resident = column(table, "resident");
        (0..table.rows())
            .map(|i| (text(&status[i]), number(&resident[i]), text(&name[i])))
            .collect()
    }

    fn row(status: &str, change: i64, name: &str) -> (String, i64, String) {
        (status.to_owned(), change, name.to_owned())
    }

    const HEAP: &str = "5000-a000 rw-p 0 0 [heap]";

    #[test]
    fn one_process_is_matched_by_address() {
        let before =
            run(&[(HEAP, 4096), ("10000-12000 rw-p 0 0", 4096), ("20000-22000 rw-p 0 0", 8192)]);
        let after = run(&[("5000-c000 rw-p 0 0 [heap]", 20480), ("20000-22000 rw-p 0 0", 4096)]);
        let report = diff(&before, &after, &SnapshotDiffOptions::default());
        let expected = [row("", 16384, "[heap]"), row("gone", -4096, ""), row("", -4096, "")];
        let found = rows(&report, "mappings");
        assert_eq!(found[0], expected[0]);
        assert!(
            found[1..].contains(&expected[1]) && found[1..].contains(&expected[2]),
            "{found:?}"
        );
    }

    #[test]
    fn two_runs_are_matched_by_name_and_order_although_all_moved() {
        let before = run(&[
            ("1000-3000 r-xp 0 12 /bin/x", 8192),
            ("5000-6000 rw-p 0 0", 4096),
            ("7000-8000 rw-p 0 0", 0),
        ]);
        let after = other_run(&[
            ("91000-93000 r-xp 0 12 /bin/x", 8192),
            ("95000-96000 rw-p 0 0", 4096),
            ("97000-98000 rw-p 0 0", 4096),
            ("a0000-a1000 rw-s 0 77 /new", 4096),
        ]);
        let report = diff(&before, &after, &SnapshotDiffOptions::default());
        assert_eq!(rows(&report, "mappings"), [row("new", 4096, "/new"), row("", 4096, "")]);
    }

    #[test]
    fn a_mapping_cut_in_two_keeps_the_part_of_equal_permissions() {
        let before = run(&[("10000-20000 rw-p 0 0", 0x8000)]);
        let after = run(&[("10000-11000 r--p 0 0", 0x1000), ("11000-20000 rw-p 0 0", 0x7000)]);
        let report = diff(&before, &after, &SnapshotDiffOptions::default());
        let found = rows(&report, "mappings");
        assert!(
            found.contains(&row("new", 0x1000, "")) && found.contains(&row("", -0x1000, "")),
            "{found:?}"
        );
    }

    #[test]
    fn mappings_and_pools_add_up_to_the_change_of_rss() {
        let before = run(&[(HEAP, 4096), ("10000-12000 rw-p 0 0", 4096)]);
        let after = run(&[("5000-c000 rw-p 0 0 [heap]", 20480), ("30000-39000 rw-p 0 0", 36864)]);
        let report = diff(&before, &after, &SnapshotDiffOptions::default());
        for key in ["mappings", "pools"] {
            let sum: i64 = rows(&report, key).iter().map(|(_, change, _)| change).sum();
            assert_eq!(sum, 20480 + 36864 - 8192, "{key}");
        }
        let totals = table(&report, "totals");
        assert_eq!(column(totals, "change")[1], CellValue::Change(20480 + 36864 - 8192));
        assert_eq!(totals.row_keys.as_ref().unwrap()[1], "res");
    }

    #[test]
    fn equal_snapshots_are_reported_as_unchanged() {
        let same = run(&[(HEAP, 4096)]);
        let report = diff(&same, &same, &SnapshotDiffOptions::default());
        assert_eq!(table(&report, "mappings").note, "No mappings changed.");
        assert_eq!(table(&report, "mappings").rows(), 0);
    }

    #[test]
    fn the_rows_that_do_not_fit_are_counted() {
        let before = run(&[]);
        let after = run(&[(HEAP, 4096), ("10000-12000 rw-p 0 0", 8192)]);
        let report = diff(
            &before,
            &after,
            &SnapshotDiffOptions { largest: 1, ..SnapshotDiffOptions::default() },
        );
        assert_eq!(rows(&report, "mappings"), [row("new", 8192, "")]);
        assert!(table(&report, "mappings").note.contains("1 of 2"));
    }

    #[test]
    fn an_unknown_share_is_absent_and_not_a_change_of_zero() {
        let before = run(&[(HEAP, 4096)]);
        let mut after = run(&[(HEAP, 8192)]);
        after.mappings.as_mut().unwrap()[0].smaps = Err(Absent::Vanished);
        after.mappings.as_mut().unwrap()[0].pages = Err(Absent::Vanished);
        let quadrants = diff(&before, &after, &SnapshotDiffOptions::default());
        assert_eq!(
            column(table(&quadrants, "quadrants"), "resident_change")[0],
            CellValue::Absent(Absent::Vanished)
        );
    }

    #[test]
    fn the_layout_lists_addresses_that_aslr_moved_and_keeps_vsyscall() {
        let fixed = ("ffffffffff600000-ffffffffff601000 --xp 0 0 [vsyscall]", 0);
        let before = run(&[
            (HEAP, 0),
            ("7f0000-7f8000 rw-p 0 0", 0),
            ("7ff000-800000 rw-p 0 0 [stack]", 0),
            ("801000-802000 r-xp 0 0 [vdso]", 0),
            fixed,
        ]);
        let after = other_run(&[
            ("6000-b000 rw-p 0 0 [heap]", 0),
            ("8f0000-8f8000 rw-p 0 0", 0),
            ("8ff000-900000 rw-p 0 0 [stack]", 0),
            ("905000-906000 r-xp 0 0 [vdso]", 0),
            fixed,
        ]);
        let report = diff(
            &before,
            &after,
            &SnapshotDiffOptions { layout: true, ..SnapshotDiffOptions::default() },
        );
        let layout = table(&report, "layout");
        let what =
            ["heap", "mmap_base", "stack", "vdso", "vsyscall"].map(|w| CellValue::Text(w.into()));
        assert_eq!(column(layout, "what"), what);
        assert_eq!(column(layout, "moved"), [true, true, true, true, false].map(CellValue::Flag));
        let shifts = [0x1000, 0x10_0000, 0x10_0000, 0x10_4000, 0].map(CellValue::Change);
        assert_eq!(column(layout, "shift"), shifts);
    }

    #[test]
    fn a_line_of_a_series_names_the_program_that_was_executed() {
        const STACK: &str = "7ffc00000000-7ffc00021000 rw-p 0 0 [stack]";
        const MOVED: &str = "7ffd00000000-7ffd00021000 rw-p 0 0 [stack]";
        const GROWN: &str = "7ffbffff0000-7ffc00021000 rw-p 0 0 [stack]";
        let before = run(&[(HEAP, 4096), (STACK, 4096)]);
        let value = |after: &Snapshot, key: &str| {
            let ReportBlock::Facts(line) = &series_row(&before, &before, after).blocks[0] else {
                panic!("a line of facts")
            };
            line.facts.iter().find(|f| f.key == key).map(|f| f.value.clone())
        };
        let after = run(&[(HEAP, 8192), (MOVED, 4096)]);
        let name = CellValue::Name(after.process.name.clone());
        assert_eq!(value(&after, "executed"), Some(name));
        assert_eq!(value(&after, "grown"), None);
        let grown = run(&[(HEAP, 8192), (GROWN, 4096)]);
        assert_eq!(value(&grown, "executed"), None, "the stack grows at its start");
    }

    #[test]
    fn a_line_of_a_series_names_the_pool_that_grew() {
        let before = run(&[(HEAP, 4096)]);
        let mut after = run(&[(HEAP, 12288)]);
        after.provenance.unix_seconds = 4;
        let ReportBlock::Facts(line) = &series_row(&before, &before, &after).blocks[0] else {
            panic!("a line of facts")
        };
        let value = |key: &str| line.facts.iter().find(|f| f.key == key).map(|f| f.value.clone());
        assert_eq!(value("seconds"), Some(CellValue::Count(4)));
        assert_eq!(value("res_change"), Some(CellValue::Change(8192)));
        assert_eq!(value("grown_pool"), Some(CellValue::text("brk heap")));
    }
}
