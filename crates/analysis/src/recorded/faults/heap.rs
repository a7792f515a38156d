//! Faults in heap blocks, by the source line that touched the block and the line that allocated it.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::faults::{Allocation, FaultHeap, FaultRecording, Owner};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, NamedFacts, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::traced::{Frame, SourcePosition};

use super::FaultOptions;
use super::places::{FunctionKey, called, function};
use crate::blocks::{facts_of, first, for_people, for_programs, seen_by, table};
use crate::cells::share;
use crate::explain::fact;
use crate::heap::frames::passes_on;

/// Builds `heap`, `allocations` and `allocation_stacks`; no blocks if the heap was not recorded.
pub(super) fn heap(recording: &FaultRecording, options: &FaultOptions) -> Vec<ReportBlock> {
    let Some(heap) = &recording.heap else { return Vec::new() };
    let mut by_line = by_line(recording, heap, options);
    if by_line.rows() == 0 {
        by_line.audience = Audience::Programs;
    }
    vec![
        ReportBlock::Facts(sums(recording, heap)),
        ReportBlock::Table(by_line),
        ReportBlock::Table(by_stack(recording, heap)),
    ]
}

/// Returns remarks that readers need to interpret the table.
pub(super) fn remarks(recording: &FaultRecording, heap: &FaultHeap) -> Vec<String> {
    let mut remarks = vec![format!(
        "What is elsewhere is in no block of {} bytes or more (--heap=BYTES): in smaller ones, stacks, files, mappings of the \
         program's own, or where nothing is allocated.",
        heap.least
    )];
    if recording.rows.iter().any(|row| matches!(row.owner, Owner::Allocator(_))) {
        remarks.push(
            "The allocator touches memory itself: calloc clears it, realloc copies it, and each block has a header.".to_owned(),
        );
    }
    if heap.lost > 0 {
        remarks.push(format!(
            "{} times the recorder's log was full: the live blocks of that time are unknown, and faults in them count as elsewhere.",
            heap.lost
        ));
    }
    if heap.refused > 0 {
        remarks.push(format!(
            "{} of the command's children could have been recorded, too: only its own process is.",
            heap.refused
        ));
    }
    remarks
}

/// Returns the meaning of a column. Reports about other recordings use some of these keys for other
/// values.
fn meaning(key: &str) -> &'static str {
    let mut named = pagewise_model::fields::named(key);
    named.find(|field| field.source == "faults").map_or("", |field| field.meaning)
}

fn described(columns: Vec<TableColumn>) -> Vec<TableColumn> {
    let described =
        |column: TableColumn| TableColumn { meaning: meaning(&column.key).into(), ..column };
    columns.into_iter().map(described).collect()
}

/// Returns the sums of faults by owner of the memory.
fn sums(recording: &FaultRecording, heap: &FaultHeap) -> NamedFacts {
    let sum = |fits: fn(Owner) -> bool| {
        let rows = recording.rows.iter().filter(|row| fits(row.owner));
        rows.map(|row| row.count).sum::<u64>()
    };
    let meant = |key, label, value| fact(key, label, value, meaning(key));
    let count = |key, label, fits| meant(key, label, CellValue::Count(sum(fits)));
    let at_least = |fact: Fact, count: u64| fact.hidden_if(count == 0);
    let recorder = sum(|owner| owner == Owner::Recorder);
    let unrecorded = sum(|owner| owner == Owner::Unrecorded);
    let facts = vec![
        count("in_blocks", "IN BLOCKS", |owner| matches!(owner, Owner::Block(_))),
        count("by_allocator", "by the allocator", |owner| matches!(owner, Owner::Allocator(_))),
        count("elsewhere", "elsewhere", |owner| owner == Owner::Elsewhere),
        at_least(meant("by_recorder", "of the recorder", CellValue::Count(recorder)), recorder),
        at_least(meant("unrecorded", "not recorded", CellValue::Count(unrecorded)), unrecorded),
        meant("least_block", "blocks from", CellValue::Bytes(heap.least)),
        at_least(meant("log_lost", "LOG LOST", CellValue::Count(heap.lost)), heap.lost),
        meant("unrecorded_processes", "children", CellValue::Count(heap.refused)).for_programs(),
    ];
    facts_of("heap", "Faults by owner of the memory", FactsShape::Columns, facts)
}

/// The parts of call stacks that the table shows: the function that touched the block, the function
/// that allocated the block, and the caller of the allocating function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Between<'a> {
    /// `None` if the allocator itself touched the block.
    touched: Option<SourceLine<'a>>,
    allocated: Option<SourceLine<'a>>,
    called_from: Option<FunctionKey<'a>>,
}

/// Faults with the same [`Between`].
#[derive(Clone, Copy, Debug)]
struct FaultGroup<'a> {
    between: Between<'a>,
    faults: u64,
    blocks: u64,
    bytes: u64,
}

/// Function that returns a value of a group for programs, or `None` if the value is unknown.
type BlockPart = for<'a> fn(&Between<'a>) -> Option<CellValue>;

/// A function, and a source line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SourceLine<'a> {
    function: FunctionKey<'a>,
    line: Option<&'a SourcePosition>,
}

impl<'a> SourceLine<'a> {
    fn from_frame(frame: &'a Frame) -> SourceLine<'a> {
        SourceLine { function: function(frame), line: frame.line.as_ref() }
    }

    /// Writes `fill (a.c:12)`. The result is a [`Name`], because the traced program determines the
    /// text.
    fn name(self) -> Name {
        let mut words = called(self.function).as_bytes().to_vec();
        if let Some(line) = self.line {
            let base = line.file.rsplit('/').next().unwrap_or_default();
            words.extend_from_slice(format!(" ({base}:{})", line.number).as_bytes());
        }
        Name::new(&words)
    }
}

/// True for a frame in the C library or in a similar wrapper. The report shows the caller of such a
/// frame instead.
fn is_of_c(frame: &Frame) -> bool {
    const FILES: [&[u8]; 7] = [
        b"libc.so",
        b"libc-",
        b"libstdc++.so",
        b"libc++.so",
        b"libgcc_s.so",
        b"ld-linux",
        b"ld-musl",
    ];
    let base = frame.module.as_ref().map(Name::base).unwrap_or_default();
    FILES.iter().any(|file| base.starts_with(file))
}

/// Returns the code that touched a block: the innermost call outside of the C library, if such a
/// call exists.
fn touched<'a>(mut frames: impl Iterator<Item = &'a Frame> + Clone) -> Option<SourceLine<'a>> {
    let own = frames.clone().find(|frame| !is_of_c(frame));
    own.or_else(|| frames.next()).map(SourceLine::from_frame)
}

/// An allocation call stack, and the faults in its blocks.
#[derive(Clone, Copy, Debug)]
struct Faulted<'a> {
    allocation: &'a Allocation<u32>,
    faults: u64,
    by_allocator: u64,
}

fn frames<'a>(
    recording: &'a FaultRecording,
    numbers: &'a [u32],
) -> impl Iterator<Item = &'a Frame> + Clone {
    numbers.iter().filter_map(|at| recording.frames.get(*at as usize))
}

/// Returns the function that allocated, without the C library and allocation wrappers, and the
/// caller of that function.
fn allocated<'a>(
    recording: &'a FaultRecording,
    allocation: &'a Allocation<u32>,
) -> (Option<SourceLine<'a>>, Option<FunctionKey<'a>>) {
    let all: Vec<&Frame> = frames(recording, &allocation.frames).collect();
    let own = all.iter().position(|frame| !passes_on(frame) && !is_of_c(frame));
    let own = own.or_else(|| all.iter().position(|frame| !passes_on(frame))).unwrap_or(0);
    let by = all.get(own).map(|frame| SourceLine::from_frame(frame));
    // A recursive caller has the name of the allocating function, and adds no information.
    let callers = all.iter().skip(own + 1).map(|frame| function(frame));
    let from = callers.into_iter().find(|it| by.is_none_or(|by| by.function != *it));
    (by, from)
}

/// Groups the faults by touching line and allocating line, the group with the most faults first.
fn groups<'a>(recording: &'a FaultRecording, heap: &'a FaultHeap) -> Vec<FaultGroup<'a>> {
    let mut groups: HashMap<Between<'a>, (u64, Vec<u32>)> = HashMap::new();
    for row in &recording.rows {
        let (number, by_program) = match row.owner {
            Owner::Block(number) => (number, true),
            Owner::Allocator(number) => (number, false),
            _ => continue,
        };
        let Some(allocation) = heap.allocations.get(number as usize) else { continue };
        let stack = recording.stacks.get(row.stack as usize).map_or(&[][..], Vec::as_slice);
        let touched = by_program.then(|| touched(frames(recording, stack))).flatten();
        let (allocated, called_from) = allocated(recording, allocation);
        let group = groups.entry(Between { touched, allocated, called_from }).or_default();
        group.0 += row.count;
        group.1.push(number);
    }
    let mut rows: Vec<FaultGroup<'a>> = groups
        .into_iter()
        .map(|(between, (faults, mut numbers))| {
            numbers.sort_unstable();
            numbers.dedup();
            let sum = |of: fn(&Allocation<u32>) -> u64| {
                let known = numbers.iter().filter_map(|at| heap.allocations.get(*at as usize));
                known.map(of).fold(0, u64::saturating_add)
            };
            FaultGroup { between, faults, blocks: sum(|it| it.blocks), bytes: sum(|it| it.bytes) }
        })
        .collect();
    rows.sort_by_key(|row| (Reverse(row.faults), row.between));
    rows
}

fn by_line(recording: &FaultRecording, heap: &FaultHeap, options: &FaultOptions) -> ReportTable {
    let rows = groups(recording, heap);
    let (shown, note) = first(&rows, options.limit, "--rows");
    let all = recording.count();
    let each = |cell: &dyn Fn(&FaultGroup<'_>) -> CellValue| {
        ColumnCells::Values(shown.iter().map(cell).collect())
    };
    // If only the allocator touched the memory of a row, the number of blocks is unknown.
    let known = |row: &FaultGroup<'_>, value| if row.blocks == 0 { CellValue::None } else { value };
    let long = |column| seen_by(Audience::Long, column);
    let people = |key, label, cells| for_people(TableColumn::new(key, label, cells));
    let mut columns = vec![
        TableColumn::new("faults", "FAULTS", each(&|row| CellValue::Count(row.faults))),
        long(TableColumn::new("share", "SHARE", each(&|row| share(row.faults, all)))),
        people(
            "touched_at",
            "TOUCHED BY",
            each(&|row| {
                row.between
                    .touched
                    .map_or(CellValue::text("the allocator"), |it| CellValue::Name(it.name()))
            }),
        ),
        people("allocated_at", "ALLOCATED BY", each(&|row| place(row.between.allocated))),
        TableColumn::new(
            "called_from",
            "CALLED FROM",
            each(&|row| {
                row.between.called_from.map_or(CellValue::None, |it| CellValue::Name(called(it)))
            }),
        ),
        long(TableColumn::new(
            "blocks",
            "BLOCKS",
            each(&|row| known(row, CellValue::Count(row.blocks))),
        )),
        long(TableColumn::new(
            "bytes",
            "BYTES",
            each(&|row| known(row, CellValue::Bytes(row.bytes))),
        )),
        for_programs(TableColumn::new(
            "touched_by",
            "",
            each(&|row| {
                CellValue::text(if row.between.touched.is_some() { "program" } else { "allocator" })
            }),
        )),
    ];
    let parts: [(&'static str, BlockPart); 6] = [
        ("touched_function", |it| it.touched.and_then(function_of)),
        ("touched_file", |it| it.touched.and_then(file_of)),
        ("touched_line", |it| it.touched.and_then(line_of)),
        ("allocated_function", |it| it.allocated.and_then(function_of)),
        ("allocated_file", |it| it.allocated.and_then(file_of)),
        ("allocated_line", |it| it.allocated.and_then(line_of)),
    ];
    columns.extend(parts.map(|(key, part)| {
        for_programs(TableColumn::new(
            key,
            "",
            each(&|row| part(&row.between).unwrap_or(CellValue::None)),
        ))
    }));
    ReportTable {
        note,
        ..table("allocations", "By allocation", Audience::Everyone, described(columns))
    }
}

fn place(place: Option<SourceLine<'_>>) -> CellValue {
    place.map_or(CellValue::None, |place| CellValue::Name(place.name()))
}

fn function_of(place: SourceLine<'_>) -> Option<CellValue> {
    place.function.0.map(|name| CellValue::Name(Name::new(name.as_bytes())))
}

fn file_of(place: SourceLine<'_>) -> Option<CellValue> {
    place.line.map(|line| CellValue::Name(Name::new(line.file.as_bytes())))
}

fn line_of(place: SourceLine<'_>) -> Option<CellValue> {
    place.line.map(|line| CellValue::Count(line.number.into()))
}

/// Builds the table of allocations with their whole call stacks, for programs.
fn by_stack(recording: &FaultRecording, heap: &FaultHeap) -> ReportTable {
    let none = |allocation| Faulted { allocation, faults: 0, by_allocator: 0 };
    let mut rows: Vec<Faulted<'_>> = heap.allocations.iter().map(none).collect();
    for row in &recording.rows {
        let (Owner::Block(number) | Owner::Allocator(number)) = row.owner else { continue };
        if let Some(sum) = rows.get_mut(number as usize) {
            sum.faults += row.count;
            let is_allocator = matches!(row.owner, Owner::Allocator(_));
            sum.by_allocator += if is_allocator { row.count } else { 0 };
        }
    }
    rows.retain(|row| row.faults > 0);
    rows.sort_by_key(|row| Reverse(row.faults));
    let counts =
        |count: fn(&Faulted<'_>) -> u64| ColumnCells::Counts(rows.iter().map(count).collect());
    let words = |frame: &Frame| {
        let mut words = called(function(frame)).as_bytes().to_vec();
        if let Some(line) = &frame.line {
            words.extend_from_slice(format!(" ({}:{})", line.file, line.number).as_bytes());
        }
        CellValue::Name(Name::new(&words))
    };
    let calls = |row: &Faulted<'_>| {
        CellValue::List(frames(recording, &row.allocation.frames).map(words).collect())
    };
    let columns = vec![
        TableColumn::new("faults", "FAULTS", counts(|row| row.faults)),
        TableColumn::new("by_allocator", "BY ALLOCATOR", counts(|row| row.by_allocator)),
        TableColumn::new("blocks", "BLOCKS", counts(|row| row.allocation.blocks)),
        TableColumn::new("bytes", "BYTES", counts(|row| row.allocation.bytes)),
        TableColumn {
            meaning: "Function that allocated the memory, then its callers.".into(),
            ..TableColumn::new(
                "frames",
                "CALLS",
                ColumnCells::Values(rows.iter().map(calls).collect()),
            )
        },
    ];
    let described = columns.into_iter().map(|column| match column.meaning.as_ref() {
        "" => TableColumn { meaning: meaning(&column.key).into(), ..column },
        _ => column,
    });
    let columns = described.collect();
    table("allocation_stacks", "By allocation, with callers", Audience::Programs, columns)
}
