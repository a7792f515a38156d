//! Tests of synthetic recordings, and of arbitrary recordings.

use pagewise_model::calls::{
    CallDetail, CallEvent, CallEventKind, CallRecording, CallStops, MemoryCall, MemoryCallKind,
    NamedMapping, ProgramImage,
};
use pagewise_model::ending::ProgramEnding;
use pagewise_model::report::{CellValue, ReportBlock, ReportTable};
use pagewise_model::{AddrRange, Bytes, PageSize, Pid};
use proptest::prelude::*;

use super::{CallOptions, calls};

const PROGRAM: u64 = 0x10_0000;
const LINKER: u64 = 0x20_0000;

fn mapped(start: u64, name: &str) -> NamedMapping {
    NamedMapping { range: AddrRange { start, end: start + 0x1_0000 }, name: name.into() }
}

fn image(begin_is_told: bool) -> CallEventKind {
    CallEventKind::Image(Box::new(ProgramImage {
        executed: true,
        exe: Ok("/bin/program".into()),
        is_native: true,
        begin_is_told,
        interpreter: Some("/lib/ld.so".into()),
        brk: Ok(0x30_0000),
        mapped: Ok(vec![mapped(PROGRAM, "/bin/program"), mapped(LINKER, "/lib/ld.so")]),
    }))
}

/// Returns a call by the code at `caller` that maps 64 KiB at `at`.
fn map_from(caller: u64, at: u64) -> CallEventKind {
    CallEventKind::Call(MemoryCall {
        kind: MemoryCallKind::Mmap,
        arguments: [0, 0x1_0000, 3, 0x22, u64::MAX, 0],
        result: Ok(at),
        done_ns: 0,
        took_ns: 1000,
        caller,
        about: CallDetail::Nothing,
    })
}

fn recording(events: Vec<CallEventKind>) -> CallRecording {
    let event = |(at, what)| CallEvent { time_ns: at, pid: Pid(7), tid: Pid(7), what };
    CallRecording {
        pid: Pid(7),
        command: vec!["program".into()],
        page_size: PageSize::new(4096).unwrap(),
        huge_page: Ok(Bytes::mib(2)),
        stops: CallStops::MemoryCalls,
        took_ns: 10,
        paused_ns: None,
        ending: Some(ProgramEnding::Exited(0)),
        left: Vec::new(),
        events: (0..).zip(events).map(event).collect(),
        lost: 0,
        lost_processes: 0,
    }
}

fn table(recording: &CallRecording, key: &str) -> ReportTable {
    let report = calls(recording, &CallOptions::default());
    let found = report.blocks.into_iter().find_map(|block| match block {
        ReportBlock::Table(table) if table.key == key => Some(table),
        _ => None,
    });
    found.unwrap()
}

fn cells(table: &ReportTable, key: &str) -> Vec<CellValue> {
    let column = table.columns.iter().find(|column| column.key == key).unwrap();
    (0..table.rows()).map(|row| column.value(row)).collect()
}

fn phases(events: Vec<CallEventKind>) -> Vec<CellValue> {
    cells(&table(&recording(events), "calls"), "phase")
}

#[test]
fn a_program_begins_at_its_entry_point_despite_earlier_calls() {
    let events = vec![
        image(true),
        map_from(LINKER + 4, 0x40_0000),
        map_from(PROGRAM + 4, 0x50_0000),
        CallEventKind::Begun,
        map_from(LINKER + 4, 0x60_0000),
    ];
    let words = ["exec", "start-up", "start-up", "program"].map(CellValue::text);
    assert_eq!(phases(events), words);
}

#[test]
fn without_an_entry_event_a_program_begins_with_its_first_own_call() {
    let events = vec![
        image(false),
        map_from(LINKER + 4, 0x40_0000),
        map_from(PROGRAM + 4, 0x50_0000),
        map_from(LINKER + 4, 0x60_0000),
    ];
    let words = ["exec", "start-up", "program", "program"].map(CellValue::text);
    assert_eq!(phases(events), words);
}

#[test]
fn changes_not_explained_by_calls_are_reported() {
    let ended = |virt| CallEventKind::Ended { ending: ProgramEnding::Exited(0), virt };
    let otherwise = |virt| {
        let events = vec![image(true), map_from(LINKER, 0x40_0000), ended(virt)];
        cells(&table(&recording(events), "processes"), "virt_otherwise").remove(0)
    };
    assert_eq!(otherwise(Some(Bytes::kib(192))), CellValue::Change(0));
    assert_eq!(otherwise(Some(Bytes::kib(200))), CellValue::Change(8 << 10));
    assert!(matches!(otherwise(None), CellValue::Absent(_)));
}

#[test]
fn a_recording_that_is_not_whole_explains_nothing() {
    let ended =
        CallEventKind::Ended { ending: ProgramEnding::Killed(9), virt: Some(Bytes::mib(1)) };
    let part = CallRecording { lost: 3, ..recording(vec![image(true), ended]) };
    let otherwise = cells(&table(&part, "processes"), "virt_otherwise").remove(0);
    assert!(matches!(otherwise, CellValue::Absent(_)));
}

fn anything() -> impl Strategy<Value = CallEventKind> {
    let number = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0..0x100_0000_u64];
    let kind = (0..MemoryCallKind::ALL.len()).prop_map(|at| MemoryCallKind::ALL[at]);
    let result = prop_oneof![number().prop_map(Ok), any::<i32>().prop_map(Err)];
    let pieces = proptest::collection::vec((number(), number()), 0..3).prop_map(|pieces| {
        let range = |(start, end)| AddrRange { start, end };
        CallDetail::Pieces(pieces.into_iter().map(range).collect())
    });
    let about =
        prop_oneof![Just(CallDetail::Nothing), Just(CallDetail::File("\u{1b}".into())), pieces];
    let call = (kind, [number(), number(), number(), number(), number(), number()], result);
    let call = (call, about, number(), number()).prop_map(
        |((kind, arguments, result), about, done_ns, caller)| {
            CallEventKind::Call(MemoryCall {
                kind,
                arguments,
                result,
                done_ns,
                took_ns: done_ns,
                caller,
                about,
            })
        },
    );
    prop_oneof![
        8 => call,
        1 => any::<bool>().prop_map(image),
        1 => (5..9_u32, any::<bool>())
            .prop_map(|(by, shares_memory)| CallEventKind::Born { by: Pid(by), shares_memory }),
        1 => Just(CallEventKind::Begun),
        1 => Just(CallEventKind::Ended { ending: ProgramEnding::Killed(9), virt: Some(Bytes(u64::MAX)) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_recording_has_a_report(
        events in proptest::collection::vec((6..9_u32, any::<u64>(), anything()), 0..40)
    ) {
        let mut any = recording(Vec::new());
        let event = |(pid, time_ns, what)| CallEvent { time_ns, pid: Pid(pid), tid: Pid(pid), what };
        any.events = events.into_iter().map(event).collect();
        let rows = table(&any, "calls").rows();
        prop_assert!(rows <= any.events.len());
    }
}
