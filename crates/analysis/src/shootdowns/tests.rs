//! Recordings whose report is known.

use pagewise_model::calls::Ending;
use pagewise_model::histogram::Histogram;
use pagewise_model::report::{Block, Report, Table, Value};
use pagewise_model::shootdowns::{Call, Caller, Cpu, Process, Recording, Site};
use pagewise_model::traced::{Frame, Line};
use pagewise_model::{Absent, Pid};

use super::*;

fn histogram(times: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    times.iter().for_each(|time| histogram.note(*time));
    histogram
}

fn frame(function: &str, module: &str, line: Option<u32>) -> Frame {
    let line = line.map(|number| Line { file: "src/main.c".into(), number });
    Frame {
        function: Some(function.into()),
        module: Some(module.into()),
        offset: 0,
        line,
        inlined: false,
    }
}

fn site(chain: usize, call: Option<usize>, sends: u64) -> Site {
    Site {
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

fn recording() -> Recording {
    let flush = "flush_tlb_mm_range";
    Recording {
        pid: Some(Pid(7)),
        command: vec!["./bench".into()],
        began_ns: None,
        took_ns: 1_000_000_000,
        ending: Some(Ending::Exited(0)),
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
            Call {
                name: "madvise".into(),
                advice: Some(4),
                shooting: histogram(&[5000, 7000]),
                quiet: histogram(&[700]),
                around_shooting: histogram(&[9000, 9500]),
                around_quiet: Histogram::default(),
            },
            Call { name: "madvise".into(), advice: Some(21), ..Call::default() },
        ],
        processes: vec![Process { pid: 7, name: "bench".into(), received: 9 }],
        threads: Vec::new(),
        sites: vec![
            site(0, Some(0), 500),
            site(1, None, 40),
            site(2, None, 30),
            site(3, None, 20),
            site(4, Some(1), 10),
        ],
        callers: vec![Caller {
            process: 0,
            call: 0,
            stack: 0,
            calls: 3,
            shooting: 2,
            shooting_ns: 12_000,
            quiet_ns: 700,
        }],
        cpus: vec![Cpu {
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

fn find<'r>(report: &'r Report, key: &str) -> &'r Table {
    let tables = report.blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        _ => None,
    });
    tables.into_iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no {key}"))
}

fn column(table: &Table, key: &str) -> Vec<Value> {
    let column = table.columns.iter().find(|column| column.key == key).unwrap();
    (0..table.rows()).map(|row| column.value(row)).collect()
}

fn words(table: &Table, key: &str) -> Vec<String> {
    let word = |value: Value| match value {
        Value::Text(text) => text.into_owned(),
        Value::Name(name) => name.escaped().into_owned(),
        other => panic!("{other:?}"),
    };
    column(table, key).into_iter().map(word).collect()
}

#[test]
fn causes_are_what_the_kernel_was_doing_and_what_is_not_known_is_other() {
    let report = shootdowns(&recording(), &Options::default());
    let causes = words(find(&report, "by_cause"), "cause");
    let expected = [
        "madvise(MADV_DONTNEED)",
        "copy-on-write",
        "NUMA balancing",
        "other",
        "madvise(MADV_PAGEOUT)",
    ];
    assert_eq!(causes, expected);
    let orders = column(find(&report, "by_cause"), "flush_orders");
    assert_eq!(orders, [500, 40, 30, 20, 10].map(Value::Count));
}

#[test]
fn the_place_of_a_call_is_the_programs_own_line() {
    let report = shootdowns(&recording(), &Options::default());
    let calls = find(&report, "calls");
    assert_eq!(words(calls, "function"), ["drops"]);
    assert_eq!(words(calls, "line"), ["main.c:12"]);
    assert_eq!(column(calls, "shooting_ns"), [Value::Nanos(6000)]);
    assert_eq!(column(calls, "quiet_ns"), [Value::Nanos(700)]);
    assert_eq!(words(find(&report, "by_stack"), "callers")[0], "main");
}

#[test]
fn what_no_tracepoint_tells_is_absent_and_not_0() {
    let mut recording = recording();
    recording.tracepoints.retain(|name| name != QUEUE);
    recording.missing = vec![(QUEUE.to_owned(), Absent::NotInThisKernel("6.6".into()))];
    let report = shootdowns(&recording, &Options::default());
    for key in ["ipis", "shootdowns", "waited"] {
        let values = column(find(&report, "by_cause"), key);
        assert!(values.iter().all(|value| matches!(value, Value::Absent(_))), "{key}: {values:?}");
    }
    let first = &column(find(&report, "latency"), "p50")[0];
    assert!(matches!(first, Value::Absent(_)), "{first:?}");
}

#[test]
fn hidden_functions_leave_the_system_calls_and_the_rest_unknown() {
    let hidden = Recording { chains: Err(Absent::NotPermitted("x".into())), ..recording() };
    let causes = words(find(&shootdowns(&hidden, &Options::default()), "by_cause"), "cause");
    assert_eq!(causes, ["madvise(MADV_DONTNEED)", "unknown", "madvise(MADV_PAGEOUT)"]);
}

#[test]
fn advice_is_given_where_it_costs_and_only_there() {
    let ids = |recording: &Recording| -> Vec<&str> {
        advice::all(&Told::of(recording)).iter().map(|finding| finding.id).collect()
    };
    assert_eq!(ids(&recording()), ["dontneed-by-pages"]);
    let mut rare = recording();
    rare.took_ns *= 1000;
    assert_eq!(ids(&rare), Vec::<&str>::new());
}

#[test]
fn a_profile_has_every_order_once_with_the_kernel_on_top() {
    let profile = profile(&recording());
    assert_eq!(profile.samples.iter().map(|sample| sample.count).sum::<u64>(), 600);
    let stack = &profile.stacks[profile.samples[0].stack as usize];
    let names: Vec<&str> = stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names[0], "flush_tlb_mm_range");
    assert_eq!(names[names.len() - 2..], ["drops", "main"]);
}

#[test]
fn who_may_watch_nothing_sees_what_the_machine_counts_and_no_zeros() {
    let why = Absent::NotPermitted("root".into());
    let unwatched = Recording {
        tracepoints: Vec::new(),
        missing: vec![(FLUSH.to_owned(), why.clone()), (QUEUE.to_owned(), why.clone())],
        sites: Vec::new(),
        callers: Vec::new(),
        calls: Vec::new(),
        chains: Err(why.clone()),
        cpus: vec![
            Cpu { cpu: 0, sent: 0, received: 0, interrupts: Err(why.clone()), machine: Ok(5) },
            Cpu { cpu: 1, sent: 0, received: 0, interrupts: Err(why.clone()), machine: Ok(7) },
        ],
        around: Err(why.clone()),
        ..recording()
    };
    let report = shootdowns(&unwatched, &Options::default());
    let facts = report.blocks.iter().find_map(|block| match block {
        Block::Facts(facts) if facts.key == "totals" => Some(&facts.facts),
        _ => None,
    });
    let value = |key: &str| &facts.unwrap().iter().find(|fact| fact.key == key).unwrap().value;
    assert_eq!(*value("machine_shootdowns"), Value::Count(12));
    for key in ["flush_orders", "shootdowns", "local_flushes", "received", "flushes", "waited"] {
        assert_eq!(*value(key), Value::Absent(why.clone()), "{key}");
    }
    assert_eq!(find(&report, "by_cpu").rows(), 2);
}

#[test]
fn an_empty_recording_is_a_report() {
    let empty = Recording {
        tracepoints: Vec::new(),
        stacks: Vec::new(),
        chains: Ok(Vec::new()),
        calls: Vec::new(),
        processes: Vec::new(),
        sites: Vec::new(),
        callers: Vec::new(),
        cpus: Vec::new(),
        waits: Histogram::default(),
        reaches: Histogram::default(),
        took_ns: 0,
        ..recording()
    };
    assert!(shootdowns(&empty, &Options::default()).blocks.len() > 5);
}
