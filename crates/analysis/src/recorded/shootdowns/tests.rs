//! Recordings whose report is known.

use pagewise_model::ending::ProgramEnding;
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::report::{CellValue, Report, ReportBlock, ReportTable};
use pagewise_model::shootdowns::{
    FlushCaller, FlushCpu, FlushProcess, FlushSite, ShootdownRecording, SystemCall,
};
use pagewise_model::traced::{Frame, SourcePosition};
use pagewise_model::{Absent, Pid};

use super::*;
use crate::findings::{self, Evidence};

fn histogram(times: &[u64]) -> TimeHistogram {
    let mut histogram = TimeHistogram::default();
    times.iter().for_each(|time| histogram.note(*time));
    histogram
}

fn frame(function: &str, module: &str, line: Option<u32>) -> Frame {
    let line = line.map(|number| SourcePosition { file: "src/main.c".into(), number });
    Frame {
        function: Some(function.into()),
        module: Some(module.into()),
        offset: 0,
        line,
        inlined: false,
    }
}

fn site(chain: usize, call: Option<usize>, sends: u64) -> FlushSite {
    FlushSite {
        process: 0,
        chain,
        call,
        stack: 0,
        sends,
        shootdowns: sends,
        ipis: 2 * sends,
        local: sends,
        full: 0,
        pages: 3 * sends,
        waited: 1000 * sends,
    }
}

fn chain(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn recording() -> ShootdownRecording {
    let flush = "flush_tlb_mm_range";
    ShootdownRecording {
        pid: Some(Pid(7)),
        command: vec!["./bench".into()],
        began_ns: None,
        took_ns: 1_000_000_000,
        ending: Some(ProgramEnding::Exited(0)),
        lost: 0,
        cut: None,
        tracepoints: [FLUSH, QUEUE, DONE, CALLS[0], CALLS[1]].map(str::to_owned).to_vec(),
        missing: Vec::new(),
        reasons: Vec::new(),
        stacks: vec![vec![
            frame("__madvise", "/usr/lib/libc.so.6", None),
            frame("drops", "/bin/bench", Some(12)),
            frame("main", "/bin/bench", Some(40)),
        ]],
        chains: Ok(vec![
            chain(&[flush, "do_madvise", "__x64_sys_madvise", "do_syscall_64"]),
            chain(&[flush, "ptep_clear_flush", "do_wp_page", "handle_mm_fault", "__x64_sys_read"]),
            chain(&[flush, "change_protection", "task_numa_work", "task_work_run"]),
            chain(&[flush, "something_new.part.0"]),
            chain(&[flush, "reclaim", "shrink_folio_list", "madvise_vma", "__x64_sys_madvise"]),
        ]),
        calls: vec![
            SystemCall {
                name: "madvise".into(),
                advice: Some(4),
                shooting: histogram(&[5000, 7000]),
                quiet: histogram(&[700]),
                around_shooting: histogram(&[9000, 9500]),
                around_quiet: TimeHistogram::default(),
            },
            SystemCall { name: "madvise".into(), advice: Some(21), ..SystemCall::default() },
        ],
        processes: vec![FlushProcess { pid: 7, name: "bench".into(), received: 9 }],
        threads: Vec::new(),
        sites: vec![
            site(0, Some(0), 500),
            site(1, None, 40),
            site(2, None, 30),
            site(3, None, 20),
            site(4, Some(1), 10),
        ],
        callers: vec![FlushCaller {
            process: 0,
            call: 0,
            stack: 0,
            calls: 3,
            shooting: 2,
            shooting_ns: 12_000,
            quiet_ns: 700,
        }],
        cpus: vec![FlushCpu {
            cpu: 0,
            sent: 5,
            received: 9,
            interrupts: Ok(11),
            machine: Err(Absent::NotSupported("x".into())),
        }],
        sent: Vec::new(),
        waits: histogram(&[1000; 600]),
        reaches: histogram(&[900; 1200]),
        unseen: 0,
        foreign: Ok(0),
        around: Err(Absent::NotCollected("--user-wait".into())),
        machine: Vec::new(),
        folded: Default::default(),
    }
}

fn find<'r>(report: &'r Report, key: &str) -> &'r ReportTable {
    let tables = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Table(table) => Some(table),
        _ => None,
    });
    tables.into_iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no {key}"))
}

fn column(table: &ReportTable, key: &str) -> Vec<CellValue> {
    let column = table.columns.iter().find(|column| column.key == key).unwrap();
    (0..table.rows()).map(|row| column.value(row)).collect()
}

fn cell_texts(table: &ReportTable, key: &str) -> Vec<String> {
    let word = |value: CellValue| match value {
        CellValue::Text(text) => text.into_owned(),
        CellValue::Name(name) => name.escaped().into_owned(),
        other => panic!("{other:?}"),
    };
    column(table, key).into_iter().map(word).collect()
}

#[test]
fn causes_are_what_the_kernel_was_doing_and_what_is_not_known_is_other() {
    let report = shootdowns(&recording(), &ShootdownOptions::default());
    let causes = cell_texts(find(&report, "by_cause"), "cause");
    let expected = [
        "madvise(MADV_DONTNEED)",
        "copy-on-write",
        "NUMA balancing",
        "other",
        "madvise(MADV_PAGEOUT)",
    ];
    assert_eq!(causes, expected);
    let orders = column(find(&report, "by_cause"), "flush_orders");
    assert_eq!(orders, [500, 40, 30, 20, 10].map(CellValue::Count));
}

#[test]
fn the_location_of_a_call_is_the_programs_own_line() {
    let report = shootdowns(&recording(), &ShootdownOptions::default());
    let calls = find(&report, "calls");
    assert_eq!(cell_texts(calls, "function"), ["drops"]);
    assert_eq!(cell_texts(calls, "line"), ["main.c:12"]);
    assert_eq!(column(calls, "shooting_ns"), [CellValue::Nanos(6000)]);
    assert_eq!(column(calls, "quiet_ns"), [CellValue::Nanos(700)]);
    assert_eq!(cell_texts(find(&report, "by_stack"), "callers")[0], "main");
}

#[test]
fn a_value_without_a_tracepoint_is_absent_and_not_0() {
    let mut recording = recording();
    recording.tracepoints.retain(|name| name != QUEUE);
    recording.missing = vec![(QUEUE.to_owned(), Absent::NotInThisKernel("6.6".into()))];
    let report = shootdowns(&recording, &ShootdownOptions::default());
    for key in ["ipis", "shootdowns", "waited"] {
        let values = column(find(&report, "by_cause"), key);
        assert!(
            values.iter().all(|value| matches!(value, CellValue::Absent(_))),
            "{key}: {values:?}"
        );
    }
    let first = &column(find(&report, "latency"), "p50")[0];
    assert!(matches!(first, CellValue::Absent(_)), "{first:?}");
}

#[test]
fn hidden_functions_leave_the_system_calls_and_the_rest_unknown() {
    let hidden =
        ShootdownRecording { chains: Err(Absent::NotPermitted("x".into())), ..recording() };
    let causes =
        cell_texts(find(&shootdowns(&hidden, &ShootdownOptions::default()), "by_cause"), "cause");
    assert_eq!(causes, ["madvise(MADV_DONTNEED)", "unknown", "madvise(MADV_PAGEOUT)"]);
}

#[test]
fn advice_is_given_where_it_costs_and_only_there() {
    let ids = |recording: &ShootdownRecording| -> Vec<&str> {
        findings::find(Evidence::Shootdowns(&ShootdownCauses::from_recording(recording)))
            .iter()
            .map(|finding| finding.id)
            .collect()
    };
    assert_eq!(ids(&recording()), ["dontneed-by-pages"]);
    let mut rare = recording();
    rare.took_ns *= 1000;
    assert_eq!(ids(&rare), Vec::<&str>::new());
}

#[test]
fn a_profile_has_every_flush_request_once_with_the_kernel_on_top() {
    let profile = profile(&recording());
    assert_eq!(profile.samples.iter().map(|sample| sample.count).sum::<u64>(), 600);
    let stack = &profile.stacks[profile.samples[0].stack as usize];
    let names: Vec<&str> = stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names[0], "flush_tlb_mm_range");
    assert_eq!(names[names.len() - 2..], ["drops", "main"]);
}

#[test]
fn without_rights_the_machines_counters_are_shown_and_no_zeros() {
    let why = Absent::NotPermitted("root".into());
    let unwatched = ShootdownRecording {
        tracepoints: Vec::new(),
        missing: vec![(FLUSH.to_owned(), why.clone()), (QUEUE.to_owned(), why.clone())],
        sites: Vec::new(),
        callers: Vec::new(),
        calls: Vec::new(),
        chains: Err(why.clone()),
        cpus: vec![
            FlushCpu { cpu: 0, sent: 0, received: 0, interrupts: Err(why.clone()), machine: Ok(5) },
            FlushCpu { cpu: 1, sent: 0, received: 0, interrupts: Err(why.clone()), machine: Ok(7) },
        ],
        around: Err(why.clone()),
        ..recording()
    };
    let report = shootdowns(&unwatched, &ShootdownOptions::default());
    let facts = report.blocks.iter().find_map(|block| match block {
        ReportBlock::Facts(facts) if facts.key == "totals" => Some(&facts.facts),
        _ => None,
    });
    let value = |key: &str| &facts.unwrap().iter().find(|fact| fact.key == key).unwrap().value;
    assert_eq!(*value("machine_shootdowns"), CellValue::Count(12));
    for key in ["flush_orders", "shootdowns", "local_flushes", "received", "flushes", "waited"] {
        assert_eq!(*value(key), CellValue::Absent(why.clone()), "{key}");
    }
    assert_eq!(find(&report, "by_cpu").rows(), 2);
}

#[test]
fn an_empty_recording_is_a_report() {
    let empty = ShootdownRecording {
        tracepoints: Vec::new(),
        stacks: Vec::new(),
        chains: Ok(Vec::new()),
        calls: Vec::new(),
        processes: Vec::new(),
        sites: Vec::new(),
        callers: Vec::new(),
        cpus: Vec::new(),
        waits: TimeHistogram::default(),
        reaches: TimeHistogram::default(),
        took_ns: 0,
        ..recording()
    };
    assert!(shootdowns(&empty, &ShootdownOptions::default()).blocks.len() > 5);
}
