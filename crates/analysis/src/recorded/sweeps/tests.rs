//! Tests of reports about recordings.

use std::sync::Arc;

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::report::{Audience, CellValue, Report, ReportBlock, ReportTable};
use pagewise_model::settings::PressureFigures;
use pagewise_model::sweep::{
    BytesByPageKind, CategoryBytes, CategorySample, PagesReading, ProcessIdentity, ProcessKey,
    Sweep, SweepCgroup, SweepCost, SweepEvent, SweepEventKind, SweepMachine, SweepProcess,
    SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Pid};

use super::*;

const OPTIONS: RecordOptions = RecordOptions { utc_offset: 3600, rows: 5 };

pub(super) fn process(pid: u32, name: &str, rss: Bytes) -> SweepProcess {
    SweepProcess {
        key: ProcessKey { pid: Pid(pid), start_ticks: 1 },
        identity: Arc::new(ProcessIdentity {
            name: name.into(),
            parent: Pid(1),
            command: Ok(vec![format!("/usr/bin/{name}").as_str().into(), "--flag".into()]),
            exe: Err(Absent::Vanished),
            uid: Ok(7),
            user: None,
            cgroup: Ok("/a".into()),
            started_unix_ns: 0,
        }),
        state: 'S',
        threads: 1,
        virt: rss,
        rss,
        rss_by_kind: Ok(BytesByPageKind { anonymous: rss, ..BytesByPageKind::default() }),
        peak_rss: Ok(rss),
        pss: Ok(BytesByPageKind { anonymous: rss, ..BytesByPageKind::default() }),
        uss: Ok(rss),
        uss_anonymous: Ok(rss),
        pages: PagesReading::Now,
        swap: Ok(Bytes::ZERO),
        swap_shmem: Ok(Bytes::ZERO),
        minor_faults: rss.0 >> 12,
        major_faults: 0,
        cpu_ns: 0,
        oom_score: Ok(600),
        oom_score_adj: Ok(0),
    }
}

pub(super) fn sweep(minute: u64, processes: Vec<SweepProcess>) -> Sweep {
    let counter = |name: &str, count| BootCounter { name: name.into(), count };
    let ns = minute * 60_000_000_000;
    Sweep {
        time: SweepTime { unix_ns: 1_764_028_800_000_000_000 + ns, boot_ns: ns },
        cost: SweepCost { cpu_ns: 1_000_000, ..SweepCost::default() },
        processes,
        kernel_threads: 2,
        vanished: 0,
        hidden: 0,
        cgroups: Ok(vec![SweepCgroup {
            path: "/a".into(),
            current: Ok(Bytes::mib(10 + minute)),
            peak: Err(Absent::Vanished),
            limit: Ok(Some(Bytes::mib(100))),
            swap: Ok(Bytes::ZERO),
            usage: Err(Absent::Vanished),
            limit_hits: Ok(minute),
            oom_kills: Ok(0),
            pressure: Err(Absent::Vanished),
        }]),
        machine: SweepMachine {
            meminfo: Ok(vec![counter("MemAvailable", Bytes::mib(900 - minute).0)]),
            vmstat: Ok(vec![counter("pgmajfault", minute * 120)]),
            memory_pressure: Ok(PressureFigures::default()),
            io_pressure: Ok(PressureFigures::default()),
            forks: Ok(minute),
        },
    }
}

fn tables<'r>(report: &'r Report, key: &str) -> Vec<&'r ReportTable> {
    let tables = report.blocks.iter().filter_map(|block| match block {
        ReportBlock::Table(table) if table.key == key => Some(table),
        _ => None,
    });
    tables.collect()
}

fn cell(table: &ReportTable, column: &str, row: usize) -> CellValue {
    let column = table.columns.iter().find(|it| it.key == column);
    column.unwrap_or_else(|| panic!("no such column in {}", table.key)).value(row)
}

#[test]
fn a_long_command_is_cut_between_characters() {
    let of = |name: &str| ProcessIdentity {
        name: name.into(),
        command: Ok(Vec::new()),
        ..(*process(1, "a", Bytes::ZERO).identity).clone()
    };
    let short = short_command(&of(&"ä".repeat(200)));
    assert!(short.as_bytes().len() < 170);
    assert!(std::str::from_utf8(short.as_bytes()).unwrap().ends_with("ä…"));
    assert_eq!(short_command(&of("short")), "[short]".into());
}

#[test]
fn a_moment_has_rates_since_an_earlier_sweep() {
    let before =
        sweep(0, vec![process(1, "db", Bytes::mib(100)), process(2, "web", Bytes::mib(50))]);
    let now = sweep(2, vec![process(1, "db", Bytes::mib(100)), process(2, "web", Bytes::mib(150))]);
    let recorded = RecordedMoment {
        asked_ns: now.time.unix_ns,
        sweep: &now,
        before: Some(&before),
        events: &[],
        categories: &[],
    };
    let report = moment(&recorded, OPTIONS);
    assert_eq!(report.title[1], CellValue::text("2025-11-25 01:02:00"));
    let processes = tables(&report, "processes")[0];
    assert_eq!(cell(processes, "pid", 0), CellValue::Count(2));
    let growth = CellValue::Change(Bytes::mib(50).0.cast_signed());
    assert_eq!(cell(processes, "rss_per_minute", 0), growth);
    assert_eq!(cell(processes, "command", 0), CellValue::Name("web --flag".into()));
    let without = moment(&RecordedMoment { before: None, ..recorded }, OPTIONS);
    let processes = tables(&without, "processes")[0];
    assert_eq!(cell(processes, "rss_per_minute", 0), CellValue::None, "no rate is not 0");
}

#[test]
fn a_moment_states_the_age_of_an_outdated_pss() {
    let mut processes = vec![process(1, "db", Bytes::mib(100)), process(2, "web", Bytes::mib(50))];
    let of = |processes: Vec<SweepProcess>| {
        let sweep = sweep(2, processes);
        let recorded = RecordedMoment {
            asked_ns: sweep.time.unix_ns,
            sweep: &sweep,
            before: None,
            events: &[],
            categories: &[],
        };
        let report = moment(&recorded, OPTIONS);
        let table = tables(&report, "processes")[0];
        let column = table.columns.iter().find(|it| it.key == "outdated_ns").unwrap();
        (column.audience, [0, 1].map(|row| cell(table, "outdated_ns", row)))
    };
    let none = [CellValue::None, CellValue::None];
    assert_eq!(of(processes.clone()), (Audience::Programs, none));
    processes[0].pages = PagesReading::Postponed(90_000_000_000);
    let ages = [CellValue::Nanos(30_000_000_000), CellValue::None];
    assert_eq!(of(processes), (Audience::Everyone, ages));
}

#[test]
fn an_outdated_pss_is_not_growth() {
    let at = |minute, pages| {
        let grown = process(2, "web", Bytes::mib(50 + 10 * minute));
        sweep(minute, vec![SweepProcess { pages, ..grown }])
    };
    let growth = |last| {
        let mut summary = PeriodSummary::new(Vec::new(), 2);
        summary.add(&at(0, PagesReading::Now));
        summary.add(&at(4, last));
        let report = period(&summary, &[], &[], OPTIONS);
        cell(tables(&report, "grew")[0], "pss_growth", 0)
    };
    let minute = 60_000_000_000;
    let grown = CellValue::Change(Bytes::mib(40).0.cast_signed());
    assert_eq!(growth(PagesReading::Now), grown);
    assert_eq!(growth(PagesReading::Postponed(3 * minute)), grown);
    assert!(matches!(growth(PagesReading::Postponed(0)), CellValue::Absent(_)));
    assert!(matches!(growth(PagesReading::Postponed(2 * minute)), CellValue::Absent(_)));
}

#[test]
fn a_period_names_growth_peaks_limits_and_what_an_oom_kill_ended() {
    let web = |minute| process(2, "web", Bytes::mib(50 + 10 * minute));
    let mut sweeps: Vec<Sweep> =
        (0..5).map(|it| sweep(it, vec![process(1, "db", Bytes::mib(100)), web(it)])).collect();
    sweeps.push(sweep(5, vec![process(1, "db", Bytes::mib(100))]));
    let time = sweeps[5].time;
    let kill = SweepEventKind::OomKill { cgroup: Some("/a".into()), kills: 1 };
    let exit = SweepEventKind::Exited {
        process: web(0).key,
        name: "web".into(),
        peak_rss: Ok(Bytes::mib(90)),
        last_rss: Bytes::mib(90),
        lived_ns: 5,
    };
    let events = [exit, kill].map(|event| SweepEvent { time, event }).to_vec();
    let mut summary = PeriodSummary::new(events, 6);
    sweeps.iter().for_each(|it| summary.add(it));
    let category = |name: &str, mib| CategoryBytes {
        category: name.into(),
        rss: Ok(Bytes::mib(mib)),
        pss: Ok(Bytes::mib(mib)),
        swap: Ok(Bytes::ZERO),
    };
    let sample = |at: usize, heap| CategorySample {
        time: sweeps[at].time,
        process: web(0).key,
        categories: vec![category("malloc_heap", heap), category("stack", 2)],
    };
    let report = period(&summary, &[sample(0, 40), sample(4, 80)], &[], OPTIONS);
    let grew = tables(&report, "grew")[0];
    assert_eq!(grew.rows(), 1);
    assert_eq!(cell(grew, "growth", 0), CellValue::Change(Bytes::mib(40).0.cast_signed()));
    let CellValue::Sentence(pieces) = cell(grew, "category", 0) else { panic!("no category") };
    assert_eq!(pieces[0], CellValue::Name(Name::from("malloc_heap")));
    let peaks = tables(&report, "peaks")[0];
    assert_eq!(cell(peaks, "pid", 0), CellValue::Count(1));
    assert_eq!(cell(peaks, "ended", 1), CellValue::text("yes"));
    let cgroups = tables(&report, "cgroups")[0];
    assert_eq!(cell(cgroups, "limit_hits", 0), CellValue::Count(5));
    let oom = tables(&report, "oom")[0];
    assert_eq!(cell(oom, "pid", 1), CellValue::Count(2));
    assert_eq!(cell(oom, "after", 0), CellValue::text("still running"));
    assert_eq!(cell(oom, "after", 1), CellValue::text("ended"));
    assert_eq!(tables(&report, "events")[0].rows(), 1, "exits are background");
}

#[test]
fn a_process_that_ended_has_grown_to_its_last_size() {
    let mut ended = process(2, "web", Bytes::ZERO);
    (ended.state, ended.peak_rss) = ('Z', Ok(Bytes::mib(90)));
    let sizes = [20, 50, 90].map(|mib| process(2, "web", Bytes::mib(mib)));
    let mut summary = PeriodSummary::new(Vec::new(), 5);
    for (minute, process) in (0..).zip([&sizes[..], &[ended.clone(), ended]].concat()) {
        summary.add(&sweep(minute, vec![process]));
    }
    let report = period(&summary, &[], &[], OPTIONS);
    let growth = CellValue::Change(Bytes::mib(70).0.cast_signed());
    assert_eq!(cell(tables(&report, "grew")[0], "growth", 0), growth);
    let peaks = tables(&report, "peaks")[0];
    assert_eq!(cell(peaks, "last_rss", 0), CellValue::Bytes(Bytes::mib(90).0));
    assert_eq!(cell(peaks, "ended", 0), CellValue::text("yes"));
    let events = tables(&report, "events")[0];
    assert!((events.rows() == 0) && events.note.contains("No OOM kill"), "{:?}", events.note);
}

#[test]
fn times_have_the_parts_that_differ() {
    let hour = 3_600_000_000_000;
    let day = 24 * hour;
    let shown = |times: [u64; 2]| {
        let columns = OPTIONS.time_columns("at", "AT", &times.map(Some));
        [0, 1].map(|row| columns[0].value(row))
    };
    assert_eq!(shown([0, hour]), ["01:00:00", "02:00:00"].map(CellValue::text));
    assert_eq!(shown([0, day]), ["01-01 01:00:00", "01-02 01:00:00"].map(CellValue::text));
    assert_eq!(
        shown([0, 365 * day]),
        ["1970-01-01 01:00:00", "1971-01-01 01:00:00"].map(CellValue::text)
    );
}

#[test]
fn processes_of_one_host_are_compared_by_their_identity_and_of_two_by_name() {
    let before =
        sweep(0, vec![process(1, "web", Bytes::mib(10)), process(2, "web", Bytes::mib(30))]);
    let after = sweep(9, vec![process(1, "web", Bytes::mib(15)), process(3, "db", Bytes::mib(7))]);
    let same = compare(ComparedSweeps { before: &before, after: &after, same_host: true }, OPTIONS);
    let rows = tables(&same, "processes")[0];
    assert_eq!(rows.rows(), 3);
    assert_eq!(cell(rows, "pss_change", 0), CellValue::Change(-Bytes::mib(30).0.cast_signed()));
    assert_eq!(cell(rows, "presence", 0), CellValue::text("gone"));
    let other = ComparedSweeps { before: &before, after: &after, same_host: false };
    let rows = compare(other, OPTIONS);
    let rows = tables(&rows, "processes")[0];
    assert_eq!(rows.rows(), 2);
    assert_eq!(cell(rows, "processes_before", 0), CellValue::Count(2));
}

#[test]
fn a_process_that_withholds_swap_and_pss_has_no_change_of_them() {
    let hidden = |rss| SweepProcess {
        swap: Err(Absent::NotPermitted("CAP_SYS_PTRACE".into())),
        pss: Err(Absent::NotPermitted("CAP_SYS_PTRACE".into())),
        ..process(1, "a", rss)
    };
    let before = sweep(0, vec![process(1, "a", Bytes::mib(5)), process(2, "b", Bytes::mib(5))]);
    let after = sweep(1, vec![hidden(Bytes::mib(9)), process(2, "b", Bytes::mib(6))]);
    let compared = ComparedSweeps { before: &before, after: &after, same_host: true };
    let report = compare(compared, OPTIONS);
    let table = tables(&report, "processes")[0];
    for column in ["pss_change", "swap_change"] {
        assert!(matches!(cell(table, column, 0), CellValue::Absent(_)), "{column}");
    }
    assert_eq!(cell(table, "rss_change", 0), CellValue::Change(Bytes::mib(4).0.cast_signed()));
    assert_eq!(cell(table, "pss_change", 1), CellValue::Change(Bytes::mib(1).0.cast_signed()));
}
