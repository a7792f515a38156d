//! Tests of the table: sums, growth, order, tree, filter, and moves of the replay cursor.

use std::convert::Infallible;
use std::sync::Arc;

use pagewise_model::fragmentation::BootCounter;
use pagewise_model::report::{CellValue, ReportBlock};
use pagewise_model::settings::{Pressure, PressureFigures};
use pagewise_model::sweep::{
    BytesByPageKind, CategoryBytes, CategorySample, CgroupUsage, PagesReading, ProcessIdentity,
    ProcessKey, Sweep, SweepCgroup, SweepCost, SweepEvent, SweepEventKind, SweepMachine,
    SweepProcess, SweepTime,
};
use pagewise_model::sweep_source::SweepSource;
use pagewise_model::top::{TopColumn, TopGrouping, TopKey, TopQuery, TopRow, TopSubject, TopTable};
use pagewise_model::{Absent, Bytes, Name, Pid};

use super::{ReplayCursor, TopHistory, recorded_process, table};

fn process(pid: u32, parent: u32, pss: u64, command: &str, cgroup: &str) -> SweepProcess {
    let words = command.split(' ').map(Name::from).collect();
    SweepProcess {
        key: ProcessKey { pid: Pid(pid), start_ticks: u64::from(pid) },
        identity: Arc::new(ProcessIdentity {
            name: "comm".into(),
            parent: Pid(parent),
            command: Ok(words),
            exe: Ok(Name::from(command.split(' ').next().unwrap())),
            uid: Ok(7),
            user: Some(if pid.is_multiple_of(2) { "even".into() } else { "odd".into() }),
            cgroup: Ok(cgroup.into()),
            started_unix_ns: 0,
        }),
        state: 'S',
        threads: 1,
        virt: Bytes::mib(900),
        rss: Bytes(pss + 1000),
        rss_by_kind: Err(Absent::Vanished),
        peak_rss: Err(Absent::Vanished),
        pss: Ok(BytesByPageKind { anonymous: Bytes(pss), ..BytesByPageKind::default() }),
        uss: Ok(Bytes(pss / 2)),
        uss_anonymous: Ok(Bytes(pss / 2)),
        pages: PagesReading::Now,
        swap: Ok(Bytes::ZERO),
        swap_shmem: Ok(Bytes::ZERO),
        minor_faults: 0,
        major_faults: 0,
        cpu_ns: 0,
        oom_score: Ok(pss / 1000),
        oom_score_adj: Ok(0),
    }
}

fn cgroup(path: &str, current: u64) -> SweepCgroup {
    SweepCgroup {
        path: path.into(),
        current: Ok(Bytes(current)),
        peak: Err(Absent::Vanished),
        limit: Ok(None),
        swap: Ok(Bytes::ZERO),
        usage: Ok(CgroupUsage::default()),
        limit_hits: Ok(0),
        oom_kills: Ok(0),
        pressure: Ok(PressureFigures {
            avg10: Pressure { some: 250, full: 0 },
            ..PressureFigures::default()
        }),
    }
}

fn sweep(seconds: u64, processes: Vec<SweepProcess>) -> Sweep {
    let ns = seconds * 1_000_000_000;
    let meminfo = [("MemTotal", 1 << 30), ("MemAvailable", 1 << 29)];
    Sweep {
        time: SweepTime { unix_ns: 1_000_000_000_000 + ns, boot_ns: ns },
        cost: SweepCost::default(),
        processes,
        kernel_threads: 0,
        vanished: 0,
        hidden: 0,
        cgroups: Ok(vec![cgroup("/", 9000), cgroup("/a", 5000), cgroup("/a/b", 1000)]),
        machine: SweepMachine {
            meminfo: Ok(meminfo.map(|(n, count)| BootCounter { name: n.into(), count }).to_vec()),
            vmstat: Ok(Vec::new()),
            memory_pressure: Err(Absent::NotInThisKernel("4.20".into())),
            io_pressure: Err(Absent::NotInThisKernel("4.20".into())),
            forks: Ok(0),
        },
    }
}

fn three() -> Vec<SweepProcess> {
    vec![
        process(1, 0, 3000, "/sbin/init", "/"),
        process(20, 1, 50_000, "/bin/sh -c x", "/a"),
        process(30, 20, 40_000, "/opt/app --big", "/a/b"),
    ]
}

fn history(sweeps: Vec<Sweep>) -> TopHistory {
    let mut history = TopHistory::default();
    sweeps.into_iter().for_each(|sweep| history.push(Arc::new(sweep), &[]));
    history
}

fn shown(history: &TopHistory, query: &TopQuery) -> TopTable {
    table(history, query).unwrap()
}

fn names(table: &TopTable) -> Vec<String> {
    table.rows.iter().map(|row| row.name.escaped().into_owned()).collect()
}

fn row<'t>(table: &'t TopTable, name: &str) -> &'t TopRow {
    table.rows.iter().find(|row| row.name.as_bytes() == name.as_bytes()).unwrap()
}

#[test]
fn rows_are_sorted_and_those_without_a_value_come_last() {
    let mut processes = three();
    processes[1].pss = Err(Absent::NotPermitted("root".into()));
    let history = history(vec![sweep(1, processes)]);
    let query = TopQuery::default();
    let table = shown(&history, &query);
    assert_eq!(names(&table), ["app", "init", "sh"]);
    assert_eq!(table.unreadable, Some((1, Absent::NotPermitted("root".into()))));
    let reversed = TopQuery { reversed: true, ..query.clone() };
    assert_eq!(names(&shown(&history, &reversed)), ["init", "app", "sh"]);
    let by_name = TopQuery { sort: TopColumn::Name, ..query };
    assert_eq!(names(&shown(&history, &by_name)), ["app", "init", "sh"]);
}

#[test]
fn a_process_whose_pages_wait_for_the_budget_is_sorted_by_its_rss() {
    let mut processes = three();
    processes[1].pss = Err(Absent::NotCollected("the budget".into()));
    let history = history(vec![sweep(1, processes)]);
    assert_eq!(names(&shown(&history, &TopQuery::default())), ["sh", "app", "init"]);
}

#[test]
fn growth_is_per_minute_over_the_last_minute() {
    let at = |seconds, pss| sweep(seconds, vec![process(20, 1, pss, "a", "/a")]);
    let query = TopQuery::default();
    let one = history(vec![at(0, 5000)]);
    assert!(matches!(shown(&one, &query).rows[0].growth, Err(Absent::NotCollected(_))));
    let short = history(vec![at(0, 5000), at(4, 6000)]);
    assert!(matches!(shown(&short, &query).rows[0].growth, Err(Absent::NotCollected(_))));
    let ten_seconds = history(vec![at(0, 5000), at(10, 6000)]);
    assert_eq!(shown(&ten_seconds, &query).rows[0].growth, Ok(6000));
    // The sample at second 0 is more than a minute older than the last sample.
    let long = history(vec![at(0, 0), at(30, 6000), at(60, 8000), at(90, 9000)]);
    assert_eq!(shown(&long, &query).rows[0].growth, Ok(3000));
    let far_apart = history(vec![at(0, 0), at(100, 1000), at(220, 3000)]);
    assert_eq!(shown(&far_apart, &query).rows[0].growth, Ok(1000));
    let shrinks = history(vec![at(0, 5000), at(60, 4000)]);
    assert_eq!(shown(&shrinks, &query).rows[0].growth, Ok(-1000));
}

#[test]
fn a_change_from_rss_to_pss_is_not_growth() {
    let mut first = process(20, 1, 5000, "a", "/a");
    first.pss = Err(Absent::NotCollected("later".into()));
    let then = process(20, 1, 1000, "a", "/a");
    let history = history(vec![sweep(0, vec![first]), sweep(5, vec![then])]);
    assert!(shown(&history, &TopQuery::default()).rows[0].growth.is_err());
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut other = process(20, 1, 9000, "b", "/a");
    other.key.start_ticks = 99;
    let history =
        history(vec![sweep(0, vec![process(20, 1, 10, "a", "/a")]), sweep(1, vec![other])]);
    let table = shown(&history, &TopQuery::default());
    assert_eq!(names(&table), ["b"]);
    assert!(table.rows[0].growth.is_err() && table.rows[0].minor.is_err());
}

#[test]
fn faults_are_rates_between_the_last_two_sweeps() {
    let mut now = process(20, 1, 10, "a", "/a");
    (now.minor_faults, now.major_faults) = (400, 6);
    let history = history(vec![sweep(0, vec![process(20, 1, 10, "a", "/a")]), sweep(2, vec![now])]);
    let row = &shown(&history, &TopQuery::default()).rows[0];
    assert_eq!((&row.minor, &row.major), (&Ok(200.0), &Ok(3.0)));
}

#[test]
fn processes_that_the_kernel_never_kills_have_no_oom_rank() {
    let mut processes = three();
    processes[1].oom_score_adj = Ok(-1000);
    let history = history(vec![sweep(1, processes)]);
    let table = shown(&history, &TopQuery::default());
    assert_eq!(row(&table, "app").oom_rank, Ok(1));
    assert!(row(&table, "sh").oom_rank.is_err() && row(&table, "init").oom_rank.is_err());
}

#[test]
fn a_group_has_the_sums_of_its_processes() {
    let grown = || {
        let mut processes = three();
        processes.push(process(40, 1, 60_000, "x", "/a"));
        processes
    };
    let history = history(vec![sweep(0, three()), sweep(60, grown())]);
    let query = TopQuery { grouping: Some(TopGrouping::User), ..TopQuery::default() };
    let table = shown(&history, &query);
    assert_eq!(names(&table), ["even", "odd"]);
    assert_eq!((table.rows[0].processes, table.rows[0].pss.clone()), (3, Ok(Bytes(150_000))));
    assert_eq!(table.rows[0].growth, Ok(60_000), "a started process is growth of its group");
}

#[test]
fn an_ended_process_is_part_of_the_past_of_its_group() {
    let history = history(vec![sweep(0, three()), sweep(60, three()[..2].to_vec())]);
    let query = TopQuery { grouping: Some(TopGrouping::User), ..TopQuery::default() };
    let table = shown(&history, &query);
    assert_eq!(row(&table, "even").growth, Ok(-40_000));
}

#[test]
fn a_tree_has_children_below_their_parents_and_the_filter_keeps_ancestors() {
    let history = history(vec![sweep(1, three())]);
    let tree = TopQuery { tree: true, ..TopQuery::default() };
    let table = shown(&history, &tree);
    assert_eq!(names(&table), ["init", "sh", "app"]);
    let branches: Vec<_> = table.rows.iter().map(|row| row.branches.clone()).collect();
    assert_eq!(branches, [vec![], vec![false], vec![false, false]]);
    let filtered = TopQuery { filter: "APP".into(), ..tree.clone() };
    assert_eq!(names(&shown(&history, &filtered)).len(), 3);
    let filtered = TopQuery { filter: "sh".into(), ..tree };
    assert_eq!(names(&shown(&history, &filtered)), ["init", "sh"]);
}

#[test]
fn a_cycle_of_parents_loses_no_row() {
    let processes = vec![process(2, 3, 1, "a", "/"), process(3, 2, 2, "b", "/")];
    let history = history(vec![sweep(1, processes)]);
    let tree = TopQuery { tree: true, ..TopQuery::default() };
    let mut found = names(&shown(&history, &tree));
    found.sort();
    assert_eq!(found, ["a", "b"]);
}

#[test]
fn the_filter_finds_names_arguments_users_and_pids() {
    let history = history(vec![sweep(1, three())]);
    let found = |filter: &str| {
        let query = TopQuery { filter: filter.into(), ..TopQuery::default() };
        let table = shown(&history, &query);
        (names(&table), table.filtered)
    };
    assert_eq!(found("BIG"), (vec!["app".to_owned()], 2));
    assert_eq!(found("20").0, ["sh"]);
    assert_eq!(found("odd").0, ["init"]);
    assert_eq!(found("2").0.len(), 0, "a PID matches as a whole");
    assert_eq!(found(" ").0.len(), 3);
}

#[test]
fn cgroups_have_their_charge_and_the_processes_inside() {
    let history = history(vec![sweep(1, three())]);
    let query =
        TopQuery { subject: TopSubject::Cgroups, sort: TopColumn::Current, ..TopQuery::default() };
    let table = shown(&history, &query);
    assert_eq!(names(&table), ["/", "/a", "/a/b"]);
    let a = row(&table, "/a");
    assert_eq!(
        (a.processes, a.pss.clone(), a.current.clone()),
        (2, Ok(Bytes(90_000)), Ok(Bytes(5000)))
    );
    assert_eq!(a.pressure, Ok(0.025));
    assert!(!table.columns.contains(&TopColumn::Limit), "no cgroup has one");
    let tree = TopQuery { tree: true, ..query.clone() };
    assert_eq!(shown(&history, &tree).rows[2].branches, [false, false]);

    let inside = TopQuery { cgroup: Some("/a".into()), ..TopQuery::default() };
    assert_eq!(names(&shown(&history, &inside)), ["sh", "app"]);

    let mut none = sweep(1, three());
    none.cgroups = Err(Absent::NotSupported("none".into()));
    let history = self::history(vec![none]);
    assert_eq!(shown(&history, &query).missing, Some(Absent::NotSupported("none".into())));
}

#[test]
fn a_process_whose_pss_is_outdated_grows_with_its_rss() {
    let at = |seconds: u64, rss: u64, pages| {
        let mut process = process(10, 1, 5000, "a", "/a");
        (process.rss, process.pages) = (Bytes(rss), pages);
        sweep(seconds, vec![process])
    };
    let read = PagesReading::Postponed(0);
    let sweeps = vec![at(0, 9000, PagesReading::Now), at(10, 9500, read), at(20, 10_000, read)];
    let table = shown(&history(sweeps), &TopQuery::default());
    assert_eq!(table.rows[0].growth, Ok(3000));
    assert_eq!(table.rows[0].trend, [Some(5000), Some(5500), Some(6000)]);
    assert_eq!(table.rows[0].pss, Ok(Bytes(5000)), "it was read");
}

#[test]
fn outdated_values_have_their_age_in_each_sum() {
    let mut processes = three();
    let second = 1_000_000_000;
    processes[1].pages = PagesReading::Postponed(48 * second);
    processes[2].pages = PagesReading::Unchanged(second);
    let history = history(vec![sweep(60, processes)]);
    let table = shown(&history, &TopQuery::default());
    let age = Some(12 * second);
    assert_eq!((table.outdated.count, table.outdated.oldest_ns), (1, 12 * second));
    assert_eq!(row(&table, "sh").outdated_ns, age);
    assert_eq!(row(&table, "app").outdated_ns, None, "it has not changed");
    let groups = TopQuery { grouping: Some(TopGrouping::User), ..TopQuery::default() };
    let groups = shown(&history, &groups);
    assert_eq!(row(&groups, "even").outdated_ns, age);
    assert_eq!(row(&groups, "odd").outdated_ns, None);
    let cgroups = TopQuery { subject: TopSubject::Cgroups, ..TopQuery::default() };
    let cgroups = shown(&history, &cgroups);
    assert_eq!(row(&cgroups, "/a").outdated_ns, age);
    assert_eq!(row(&cgroups, "/a/b").outdated_ns, None);
}

#[test]
fn a_history_forgets_processes_that_ended_long_ago() {
    let mut history = TopHistory::default();
    for second in 0..200 {
        let pid = 100 + u32::try_from(second).unwrap();
        history.push(Arc::new(sweep(second, vec![process(pid, 1, 10, "a", "/a")])), &[]);
    }
    assert!(history.processes().count() <= super::MAX_SAMPLES);
}

#[test]
fn starts_and_ends_of_processes_are_not_shown_as_events() {
    let event = |event| SweepEvent { time: SweepTime::default(), event };
    let key = ProcessKey::default();
    let mut history = TopHistory::default();
    let events = [
        event(SweepEventKind::Started { process: key, name: "a".into() }),
        event(SweepEventKind::OomKill { cgroup: None, kills: 1 }),
    ];
    history.push(Arc::new(sweep(1, three())), &events);
    let table = shown(&history, &TopQuery::default());
    assert_eq!(table.events.len(), 1);
    assert!(
        matches!(&table.events[0].sentence[0], CellValue::Text(text) if text.starts_with("OOM"))
    );
}

/// A recording in memory.
#[derive(Debug)]
struct MemorySource {
    sweeps: Vec<Sweep>,
    events: Vec<SweepEvent>,
    categories: Vec<CategorySample>,
}

impl SweepSource for MemorySource {
    type Error = Infallible;

    fn span(&mut self) -> Result<Option<(u64, u64)>, Infallible> {
        let time = |sweep: Option<&Sweep>| sweep.map(|it| it.time.unix_ns);
        Ok(time(self.sweeps.first()).zip(time(self.sweeps.last())))
    }

    fn at(&mut self, unix_ns: u64, count: usize) -> Result<Vec<Sweep>, Infallible> {
        let end = self.sweeps.partition_point(|it| it.time.unix_ns <= unix_ns);
        Ok(self.sweeps[end.saturating_sub(count)..end].to_vec())
    }

    fn next(&mut self, unix_ns: u64) -> Result<Option<Sweep>, Infallible> {
        Ok(self.sweeps.iter().find(|it| it.time.unix_ns > unix_ns).cloned())
    }

    fn events(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<SweepEvent>, Infallible> {
        let inside = |it: &&SweepEvent| (from_ns..=to_ns).contains(&it.time.unix_ns);
        Ok(self.events.iter().filter(inside).cloned().collect())
    }

    fn categories(&mut self, from: u64, to: u64) -> Result<Vec<CategorySample>, Infallible> {
        let inside = |it: &&CategorySample| (from..=to).contains(&it.time.unix_ns);
        Ok(self.categories.iter().filter(inside).cloned().collect())
    }

    fn next_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Infallible> {
        Ok(self.events.iter().find(|it| it.time.unix_ns > unix_ns).cloned())
    }

    fn previous_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Infallible> {
        Ok(self.events.iter().rev().find(|it| it.time.unix_ns < unix_ns).cloned())
    }
}

#[test]
fn a_cursor_steps_through_a_recording_and_jumps_to_events() {
    let sweeps: Vec<Sweep> = (0..10).map(|n| sweep(n * 5, three())).collect();
    let kill = SweepEvent {
        time: sweeps[4].time,
        event: SweepEventKind::OomKill { cgroup: None, kills: 2 },
    };
    let times: Vec<u64> = sweeps.iter().map(|it| it.time.unix_ns).collect();
    let source = MemorySource { sweeps, events: vec![kill], categories: Vec::new() };
    let mut cursor = ReplayCursor::new(source, Some(times[2] + 7)).unwrap().unwrap();
    assert_eq!(cursor.time(), times[2]);
    cursor.step_forward().unwrap();
    assert_eq!(cursor.time(), times[3]);
    assert_eq!(cursor.next_event(), Ok(true));
    assert_eq!(cursor.time(), times[4]);
    assert_eq!(shown(cursor.history(), &TopQuery::default()).events.len(), 1);
    assert_eq!(cursor.next_event(), Ok(false));
    cursor.go(u64::MAX).unwrap();
    assert_eq!(cursor.time(), times[9]);
    cursor.step_forward().unwrap();
    assert_eq!(cursor.time(), times[9]);
    assert_eq!(cursor.previous_event(), Ok(true));
    for _ in 0..20 {
        cursor.step_back().unwrap();
    }
    assert_eq!(cursor.time(), times[0]);
    let row = &shown(cursor.history(), &TopQuery::default()).rows[0];
    assert!(matches!(row.key, TopKey::Process(_)));
}

#[test]
fn an_empty_recording_has_no_cursor() {
    let source = MemorySource { sweeps: Vec::new(), events: Vec::new(), categories: Vec::new() };
    assert!(ReplayCursor::new(source, None).unwrap().is_none());
}

#[test]
fn the_page_of_a_recorded_process_has_its_latest_categories() {
    let sweeps: Vec<Sweep> = (0..4).map(|n| sweep(n * 60, three())).collect();
    let key = sweeps[0].processes[0].key;
    let sample = |at: usize, mib| CategorySample {
        time: sweeps[at].time,
        process: key,
        categories: vec![CategoryBytes {
            category: "heap".into(),
            rss: Ok(Bytes::mib(mib)),
            pss: Ok(Bytes::mib(mib)),
            swap: Ok(Bytes::ZERO),
        }],
    };
    let categories = vec![sample(0, 1), sample(1, 2), sample(3, 4)];
    let source = MemorySource { sweeps: sweeps.clone(), events: Vec::new(), categories };
    let mut cursor = ReplayCursor::new(source, Some(sweeps[2].time.unix_ns)).unwrap().unwrap();
    let latest = cursor.categories(key).unwrap().unwrap();
    assert_eq!(latest.time, sweeps[1].time, "those of later are not known yet");
    let page = recorded_process(cursor.history(), key, Some(&latest)).unwrap();
    let table = page.blocks.iter().find_map(|block| match block {
        ReportBlock::Table(table) => Some(table),
        _ => None,
    });
    let table = table.unwrap();
    assert_eq!(table.columns[0].value(0), CellValue::text("brk heap"));
    assert_eq!(table.columns[1].value(0), CellValue::Bytes(2 << 20));
    let other = sweeps[0].processes[1].key;
    assert_eq!(cursor.categories(other), Ok(None));
}
