//! Reports of recordings whose sums are known.

use pagewise_model::bounds::Folded;
use pagewise_model::faults::{
    Allocation, FaultHeap, FaultKind, FaultMapping, FaultRecording, FaultRow, FaultSource,
    FaultThread, Owner, TimeLine, VERSION,
};
use pagewise_model::report::{CellValue, Report, ReportBlock};
use pagewise_model::traced::{Frame, SourcePosition};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize, Pid, Quadrant};

use super::{FaultOptions, faults};
use crate::sample::{column, table};

const PAGE: u64 = 4096;

fn frame(function: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        module: Some("/bin/a".into()),
        offset: line.into(),
        line: Some(SourcePosition { file: "/src/a.c".to_owned(), number: line }),
        inlined: false,
    }
}

/// `main` calls `touch`, which faults on ten pages of memory of no file and on a file.
fn recording(rows: &[(FaultKind, u32, u64)]) -> FaultRecording {
    let mapped = |name: &str, pages: u64, quadrant| FaultMapping {
        pid: Pid(7),
        range: AddrRange { start: PAGE, end: PAGE * (pages + 1) },
        name: name.into(),
        quadrant,
    };
    let row = |(kind, mapping, count): &(FaultKind, u32, u64)| FaultRow {
        stack: 0,
        mapping: *mapping,
        thread: 0,
        kind: *kind,
        by_kernel: false,
        on_stack: false,
        owner: Owner::Unrecorded,
        count: *count,
        took_ns: None,
    };
    FaultRecording {
        version: VERSION,
        pid: Pid(7),
        command: vec!["/bin/a".into()],
        page_size: PageSize::new(PAGE).unwrap(),
        huge_page: Ok(Bytes::mib(2)),
        began_ns: None,
        took_ns: 1_000_000_000,
        ending: None,
        source: FaultSource::Tracepoints,
        every: 1,
        lost: 0,
        counted: None,
        stack_bytes: 2048,
        cut: Some(3),
        usage: Err(Absent::NotCollected("".into())),
        frames: vec![frame("touch", 12), frame("main", 30)],
        stacks: vec![vec![0, 1]],
        mappings: vec![
            mapped("", 10, Some(Quadrant::PrivateAnonymous)),
            mapped("/data\x1b[2J", 10, Some(Quadrant::SharedFile)),
            mapped("", 0, None),
        ],
        threads: vec![FaultThread { pid: Pid(7), tid: Pid(7), name: "a".into() }],
        heap: None,
        rows: rows.iter().map(row).collect(),
        latencies: Vec::new(),
        time_line: TimeLine::default(),
        folded: Folded::default(),
        lacks: Vec::new(),
    }
}

fn report(rows: &[(FaultKind, u32, u64)]) -> Report {
    faults(&recording(rows), &FaultOptions::default())
}

fn findings(report: &Report) -> Vec<&'static str> {
    let list = |block: &ReportBlock| match block {
        ReportBlock::Findings(findings) => findings.list.iter().map(|it| it.id).collect(),
        _ => Vec::new(),
    };
    report.blocks.iter().flat_map(list).collect()
}

#[test]
fn faults_are_added_up_by_function_line_and_quadrant() {
    let report = report(&[
        (FaultKind::Anonymous, 0, 10),
        (FaultKind::File, 1, 5),
        (FaultKind::Unknown, 2, 1),
    ]);
    let functions = table(&report, "functions");
    assert_eq!(column(functions, "faults"), [CellValue::Count(16)]);
    assert_eq!(column(functions, "function"), [CellValue::Name("touch".into())]);
    assert_eq!(column(functions, "most_kind"), [CellValue::text("minor anonymous")]);
    assert_eq!(column(table(&report, "lines"), "line"), [CellValue::Count(12)]);
    let quadrants = table(&report, "quadrants");
    assert_eq!(column(quadrants, "faults"), [10, 0, 0, 5, 1].map(CellValue::Count));
    assert_eq!(column(quadrants, "file"), [0, 0, 0, 5, 0].map(CellValue::Count));
    assert_eq!(findings(&report), [""; 0]);
}

/// The advice of the findings, as text.
fn advice(report: &Report) -> String {
    let list = |block: &ReportBlock| match block {
        ReportBlock::Findings(findings) => {
            findings.list.iter().flat_map(|it| it.next_step.clone()).collect()
        }
        _ => Vec::new(),
    };
    let pieces = report.blocks.iter().flat_map(list);
    pieces.map(|piece| format!("{piece:?}")).collect()
}

#[test]
fn stacks_cannot_be_populated() {
    let with = |on_stack: bool, name: &str| {
        let mut recording = recording(&[(FaultKind::Anonymous, 0, 5000)]);
        recording.rows[0].on_stack = on_stack;
        recording.mappings[0].name = name.into();
        recording.mappings[0].range.end = PAGE * 10_000;
        let report = faults(&recording, &FaultOptions::default());
        assert_eq!(findings(&report), ["first-touch"]);
        advice(&report)
    };
    assert!(with(false, "").contains("MAP_POPULATE"));
    for advice in [with(true, ""), with(false, "[stack]")] {
        assert!(advice.contains("threads") && !advice.contains("POPULATE"), "{advice}");
    }
}

#[test]
fn a_stack_has_the_name_that_explain_prints() {
    let stack_rows = |rows: &[(FaultKind, u32, u64)]| {
        let mut recording = recording(rows);
        let thread =
            |tid, name: &str| FaultThread { pid: Pid(7), tid: Pid(tid), name: name.into() };
        recording.threads.extend([thread(9, "worker-3"), thread(8, "worker-2")]);
        for (row, thread) in recording.rows.iter_mut().zip([1, 2]) {
            (row.thread, row.on_stack) = (thread, true);
        }
        let report = faults(&recording, &FaultOptions::default());
        column(table(&report, "mappings"), "name")
    };
    let named = |name: &str| CellValue::Name(name.into());
    assert_eq!(
        stack_rows(&[(FaultKind::Anonymous, 0, 4)]),
        [named("[thread stack: worker-3 (9)]")]
    );
    assert_eq!(
        stack_rows(&[(FaultKind::Anonymous, 0, 4), (FaultKind::Anonymous, 0, 2)]),
        [named("[thread stack: worker-2 (8) and 1 more]")]
    );
    let report = report(&[(FaultKind::Anonymous, 0, 4)]);
    let names = column(table(&report, "mappings"), "name");
    assert_eq!(names, [CellValue::text("[anonymous]")], "the stack pointer was elsewhere");
}

#[test]
fn an_unknown_value_is_absent() {
    let counters = FaultRecording {
        source: FaultSource::Counters,
        ..recording(&[(FaultKind::Anonymous, 0, 3)])
    };
    let report = faults(&counters, &FaultOptions::default());
    let quadrants = table(&report, "quadrants");
    let is_absent = |value: &CellValue| matches!(value, CellValue::Absent(_));
    assert!(column(quadrants, "copy_on_write").iter().all(is_absent));
    assert!(!column(quadrants, "file").iter().any(is_absent));
}

#[test]
fn advice_is_given_where_the_numbers_speak_for_it() {
    let of = |rows: &[(FaultKind, u32, u64)]| findings(&report(rows));
    assert_eq!(of(&[(FaultKind::Anonymous, 0, 9)]), [""; 0]);
    assert_eq!(of(&[(FaultKind::Anonymous, 0, 5000)]), ["touched-again", "first-touch"]);
    assert_eq!(of(&[(FaultKind::Anonymous, 0, 1005)]), ["first-touch"]);
    assert_eq!(of(&[(FaultKind::Major, 1, 50)]), ["major-faults"]);
    assert_eq!(of(&[(FaultKind::WriteProtect, 1, 1000)]), ["dirty-tracking"]);
    assert_eq!(of(&[(FaultKind::CopyOnWrite, 0, 1000)]), ["copies-on-write"]);
    assert_eq!(of(&[(FaultKind::CopyOnWrite, 1, 1000)]), [""; 0]);
    assert_eq!(of(&[(FaultKind::Zero, 0, 1000), (FaultKind::File, 1, 9000)]), [""; 0]);
    let lost = FaultRecording { lost: 1, ..recording(&[(FaultKind::Anonymous, 0, 9)]) };
    assert_eq!(findings(&faults(&lost, &FaultOptions::default())), ["lost-events"]);
}

#[test]
fn a_saved_recording_may_hold_anything() {
    let rows = [(FaultKind::File, 99, 5)];
    let broken =
        FaultRecording { stacks: vec![vec![9, 9]], threads: Vec::new(), ..recording(&rows) };
    let report = faults(&broken, &FaultOptions::default());
    assert!(!report.blocks.is_empty());
    assert_eq!(broken.profile().stacks, [vec![]]);
}

/// `touch` faults in blocks that `make` asked for through a wrapper; `memset` of the C library,
/// called by `main`, in others.
fn with_heap(owners: &[(u32, Owner, u64)]) -> FaultRecording {
    let of_c = |function: &str, line| Frame {
        module: Some("/lib/libc.so.6".into()),
        ..frame(function, line)
    };
    let mut recording = recording(&[]);
    recording.frames.extend([frame("make", 5), frame("xmalloc", 6), of_c("memset", 7)]);
    recording.stacks = vec![vec![0, 1], vec![4, 1]];
    let allocation = |blocks, frames: &[u32]| Allocation {
        blocks,
        bytes: blocks * 10 * PAGE,
        frames: frames.to_vec(),
    };
    let allocations = vec![allocation(2, &[3, 2, 1]), allocation(0, &[4, 1])];
    recording.heap = Some(FaultHeap { least: PAGE, lost: 0, refused: 0, allocations });
    recording.rows = owners
        .iter()
        .map(|(stack, owner, count)| FaultRow {
            stack: *stack,
            mapping: 0,
            thread: 0,
            kind: FaultKind::Anonymous,
            by_kernel: false,
            on_stack: false,
            owner: *owner,
            count: *count,
            took_ns: None,
        })
        .collect();
    recording
}

#[test]
fn faults_are_added_up_by_touching_and_allocating_function() {
    let rows = [
        (0, Owner::Block(0), 9),
        (1, Owner::Block(0), 4),
        (0, Owner::Allocator(0), 3),
        (0, Owner::Allocator(1), 2),
        (0, Owner::Recorder, 7),
        (0, Owner::Elsewhere, 5),
        (0, Owner::Unrecorded, 6),
        (1, Owner::Block(0), 1),
    ];
    let report = faults(&with_heap(&rows), &FaultOptions::default());
    let allocations = table(&report, "allocations");
    assert_eq!(column(allocations, "faults"), [9, 5, 3, 2].map(CellValue::Count));
    let names = |names: [&str; 4]| names.map(|name| CellValue::Name(name.into()));
    let touched = column(allocations, "touched_at");
    assert_eq!(touched[..2], names(["touch (a.c:12)", "main (a.c:30)", "", ""])[..2]);
    assert_eq!(touched[2], CellValue::text("the allocator"));
    let allocated = names(["make (a.c:5)", "make (a.c:5)", "make (a.c:5)", "main (a.c:30)"]);
    assert_eq!(column(allocations, "allocated_at"), allocated);
    assert_eq!(column(allocations, "called_from")[0], CellValue::Name("main".into()));
    assert_eq!(column(allocations, "blocks")[0], CellValue::Count(2));
    assert_eq!(column(allocations, "blocks")[3], CellValue::None, "the blocks are unknown");
    let stacks = table(&report, "allocation_stacks");
    assert_eq!(column(stacks, "faults"), [17, 2].map(CellValue::Count));
    assert_eq!(column(stacks, "by_allocator"), [3, 2].map(CellValue::Count));
    let fact = |key: &str| {
        let facts = report.blocks.iter().filter_map(|block| match block {
            ReportBlock::Facts(facts) if facts.key == "heap" => Some(&facts.facts),
            _ => None,
        });
        facts.flatten().find(|fact| fact.key == key).map(|fact| fact.value.clone()).unwrap()
    };
    let sums = ["in_blocks", "by_allocator", "elsewhere", "by_recorder", "unrecorded"].map(fact);
    assert_eq!(sums, [14, 5, 5, 7, 6].map(CellValue::Count));
}

#[test]
fn invalid_allocation_numbers_are_harmless() {
    let mut broken = with_heap(&[(9, Owner::Block(9), 1), (0, Owner::Block(0), 2)]);
    broken.heap.as_mut().unwrap().allocations[0].frames = vec![99, 98];
    let report = faults(&broken, &FaultOptions::default());
    assert_eq!(column(table(&report, "allocations"), "faults"), [CellValue::Count(2)]);
    assert_eq!(column(table(&report, "allocations"), "allocated_at"), [CellValue::None]);
    assert_eq!(broken.profile().samples.len(), 2);
}
