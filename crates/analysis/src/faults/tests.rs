//! Reports of recordings whose sums are known.

use pagewise_model::faults::{
    Kind, Mapped, Owner, Recording, Row, Source, Thread, TimeLine, VERSION,
};
use pagewise_model::report::{Block, Report, Value};
use pagewise_model::traced::{Frame, Line};
use pagewise_model::{Absent, AddrRange, Bytes, PageSize, Pid, Quadrant};

use super::{Options, faults};
use crate::sample::{column, table};

const PAGE: u64 = 4096;

fn frame(function: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        module: Some("/bin/a".into()),
        offset: line.into(),
        line: Some(Line { file: "/src/a.c".to_owned(), number: line }),
        inlined: false,
    }
}

/// `main` calls `touch`, which faults on ten pages of memory of no file and on a file.
fn recording(rows: &[(Kind, u32, u64)]) -> Recording {
    let mapped = |name: &str, pages: u64, quadrant| Mapped {
        pid: Pid(7),
        range: AddrRange { start: PAGE, end: PAGE * (pages + 1) },
        name: name.into(),
        quadrant,
    };
    let row = |(kind, mapping, count): &(Kind, u32, u64)| Row {
        stack: 0,
        mapping: *mapping,
        thread: 0,
        kind: *kind,
        by_kernel: false,
        owner: Owner::Unrecorded,
        count: *count,
        took_ns: None,
    };
    Recording {
        version: VERSION,
        pid: Pid(7),
        command: vec!["/bin/a".into()],
        page_size: PageSize::new(PAGE).unwrap(),
        huge_page: Ok(Bytes::mib(2)),
        began_ns: None,
        took_ns: 1_000_000_000,
        ending: None,
        source: Source::Tracepoints,
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
        threads: vec![Thread { pid: Pid(7), tid: Pid(7), name: "a".into() }],
        heap: None,
        rows: rows.iter().map(row).collect(),
        latencies: Vec::new(),
        time_line: TimeLine::default(),
        lacks: Vec::new(),
    }
}

fn report(rows: &[(Kind, u32, u64)]) -> Report {
    faults(&recording(rows), &Options::default())
}

fn findings(report: &Report) -> Vec<&'static str> {
    let list = |block: &Block| match block {
        Block::Findings(findings) => findings.list.iter().map(|it| it.id).collect(),
        _ => Vec::new(),
    };
    report.blocks.iter().flat_map(list).collect()
}

#[test]
fn faults_are_added_up_by_function_line_and_quadrant() {
    let report = report(&[(Kind::Anonymous, 0, 10), (Kind::File, 1, 5), (Kind::Unknown, 2, 1)]);
    let functions = table(&report, "functions");
    assert_eq!(column(functions, "faults"), [Value::Count(16)]);
    assert_eq!(column(functions, "function"), [Value::Name("touch".into())]);
    assert_eq!(column(functions, "most_kind"), [Value::text("minor anonymous")]);
    assert_eq!(column(table(&report, "lines"), "line"), [Value::Count(12)]);
    let quadrants = table(&report, "quadrants");
    assert_eq!(column(quadrants, "faults"), [10, 0, 0, 5, 1].map(Value::Count));
    assert_eq!(column(quadrants, "file"), [0, 0, 0, 5, 0].map(Value::Count));
    assert_eq!(findings(&report), [""; 0]);
}

#[test]
fn what_cannot_be_told_is_absent() {
    let counters = Recording { source: Source::Counters, ..recording(&[(Kind::Anonymous, 0, 3)]) };
    let report = faults(&counters, &Options::default());
    let quadrants = table(&report, "quadrants");
    let is_absent = |value: &Value| matches!(value, Value::Absent(_));
    assert!(column(quadrants, "copy_on_write").iter().all(is_absent));
    assert!(!column(quadrants, "file").iter().any(is_absent));
}

#[test]
fn advice_is_given_where_the_numbers_speak_for_it() {
    let of = |rows: &[(Kind, u32, u64)]| findings(&report(rows));
    assert_eq!(of(&[(Kind::Anonymous, 0, 9)]), [""; 0]);
    assert_eq!(of(&[(Kind::Anonymous, 0, 5000)]), ["touched-again", "first-touch"]);
    assert_eq!(of(&[(Kind::Anonymous, 0, 1005)]), ["first-touch"]);
    assert_eq!(of(&[(Kind::Major, 1, 50)]), ["major-faults"]);
    assert_eq!(of(&[(Kind::WriteProtect, 1, 1000)]), ["dirty-tracking"]);
    assert_eq!(of(&[(Kind::CopyOnWrite, 0, 1000)]), ["copies-on-write"]);
    assert_eq!(of(&[(Kind::CopyOnWrite, 1, 1000)]), [""; 0]);
    assert_eq!(of(&[(Kind::Zero, 0, 1000), (Kind::File, 1, 9000)]), [""; 0]);
    let lost = Recording { lost: 1, ..recording(&[(Kind::Anonymous, 0, 9)]) };
    assert_eq!(findings(&faults(&lost, &Options::default())), ["lost-events"]);
}

#[test]
fn a_saved_recording_may_hold_anything() {
    let rows = [(Kind::File, 99, 5)];
    let broken = Recording { stacks: vec![vec![9, 9]], threads: Vec::new(), ..recording(&rows) };
    let report = faults(&broken, &Options::default());
    assert!(!report.blocks.is_empty());
    assert_eq!(broken.profile().stacks, [vec![]]);
}
