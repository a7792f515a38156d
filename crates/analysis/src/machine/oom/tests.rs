//! Tests of the kernel's rule on small machines.

use pagewise_model::cgroup_tree::{CgroupNode, CgroupTree};
use pagewise_model::oom::{OOM_VERSION, OomMachine};
use pagewise_model::{Absent, Name, Pid, Reading};

use super::*;

const PAGE: PageSize = PageSize::new(4096).expect("a power of two");

/// Returns a process with `rss` resident pages and the adjustment `adj`.
fn process(pid: u32, rss: u64, adj: i64) -> OomProcess {
    OomProcess {
        pid: Pid(pid),
        name: format!("p{pid}").as_str().into(),
        command: Ok(Vec::new()),
        uid: 0,
        cgroup: Ok("/a/b".into()),
        rss: PAGE.pages(rss),
        swap: Bytes::ZERO,
        page_tables: Bytes::ZERO,
        adj: Ok(adj),
        score: Err(Absent::NotCollected("a sample".into())),
        has_memory: true,
        uss: Ok(PAGE.pages(rss)),
        uss_anonymous: Ok(PAGE.pages(rss)),
        rss_before: None,
        same_memory: Vec::new(),
    }
}

fn rule(machine_pages: u64) -> OomRule {
    OomRule { machine_pages, page_size: PAGE, ourselves: None }
}

fn order(processes: &[OomProcess], total: u64) -> Vec<u32> {
    let ranks = rank(processes.iter(), total, &rule(total));
    ranks.iter().filter(|it| it.badness.is_ok()).map(|it| it.process.pid.0).collect()
}

#[test]
fn badness_is_pages_and_thousandths_of_the_limit() {
    let mut it = process(7, 1000, 0);
    it.swap = PAGE.pages(10);
    // 3 KiB of page tables are less than one page.
    it.page_tables = Bytes(4096 * 5 + 3 * 1024);
    assert_eq!(badness(&it, 1_000_999, PAGE), 1015);
    it.adj = Ok(-10);
    assert_eq!(badness(&it, 1_000_999, PAGE), 1015 - 10 * 1000);
}

#[test]
fn the_score_of_a_process_without_memory_is_two_thirds_of_1000() {
    assert_eq!(score(0, 100_000), 666);
    assert_eq!(score(100_000, 100_000), 1333);
    assert_eq!(score(-100_000, 100_000), 0);
    assert_eq!(score(5, 0), 666, "no pages at all");
}

#[test]
fn the_largest_process_is_first_then_the_youngest_of_equal_processes() {
    let processes = [process(5, 10, 0), process(6, 30, 0), process(7, 30, 0), process(8, 1, 0)];
    assert_eq!(order(&processes, 1000), [7, 6, 5, 8]);
}

#[test]
fn an_adjustment_outweighs_size_and_protects() {
    let processes =
        [process(5, 900, -1000), process(6, 10, 500), process(7, 300, -100), process(8, 40, 0)];
    assert_eq!(order(&processes, 10_000), [6, 8, 7]);
}

#[test]
fn the_kernels_own_score_of_0_shows_what_it_skips() {
    let mut first = process(1, 50, 0);
    first.score = Ok(0);
    let mut vfork_child = process(9, 500, 0);
    vfork_child.score = Ok(0);
    let mut ended = process(10, 0, 0);
    ended.has_memory = false;
    let processes = [first, vfork_child, ended, process(11, 20, 0)];
    let ranks = rank(processes.iter(), 1000, &rule(1000));
    let why = |pid: u32| ranks.iter().find(|it| it.process.pid.0 == pid).unwrap().badness;
    assert_eq!(why(1), Err(OomExemption::Init));
    assert_eq!(why(9), Err(OomExemption::Skipped));
    assert_eq!(why(10), Err(OomExemption::NoMemory));
    assert_eq!(next_victim(&ranks).unwrap().process.pid.0, 11);
}

fn node(path: &str, limit: Option<u64>, current: u64, parent: Option<usize>) -> CgroupNode {
    let absent = || Absent::NotCollected("a sample".into());
    let stat = vec![pagewise_model::fragmentation::BootCounter {
        name: "inactive_file".into(),
        count: 100 << 12,
    }];
    CgroupNode {
        path: path.into(),
        depth: 0,
        parent,
        processes: Vec::new(),
        current: Ok(PAGE.pages(current)),
        peak: Err(absent()),
        limit: limit.map(|pages| PAGE.pages(pages)),
        high: None,
        protected: None,
        swap: Ok(Bytes::ZERO),
        swap_limit: None,
        swappiness: None,
        kills_all: path == "/a/b",
        kill_disabled: false,
        stat,
        events: Vec::new(),
        pressure: Err(absent()),
    }
}

fn machine(at_ns: u64, pages: &[(&str, u64)]) -> OomMachine {
    let line = |(name, pages): &(&str, u64)| pagewise_model::fragmentation::BootCounter {
        name: (*name).into(),
        count: pages << 12,
    };
    OomMachine { at_ns, meminfo: pages.iter().map(line).collect(), kept_back: 10 }
}

const LINES: [(&str, u64); 7] = [
    ("MemTotal", 100_000),
    ("MemFree", 5000),
    ("Active(file)", 100),
    ("Inactive(file)", 200),
    ("KReclaimable", 10),
    ("SwapTotal", 0),
    ("SwapFree", 0),
];

fn reading(trees: Reading<[CgroupTree; 2]>) -> OomReading {
    let mut before = LINES;
    before[1].1 = 6000;
    OomReading {
        pagewise_oom: OOM_VERSION,
        page_size: PAGE,
        machine: [machine(0, &before), machine(1_000_000_000, &LINES)],
        processes: vec![
            process(5, 500, 0),
            process(6, 400, 300),
            OomProcess { cgroup: Ok("/ab".into()), ..process(7, 5000, 0) },
        ],
        unreadable: 0,
        cgroups: trees,
        kills_allocating_task: Ok(false),
        panics: Ok(0),
        nodes: Ok(1),
    }
}

fn tree(current: u64) -> CgroupTree {
    let nodes = vec![
        node("/", None, 9000, None),
        node("/a", Some(1000), current, Some(0)),
        node("/a/b", None, current, Some(1)),
    ];
    CgroupTree { version: 2, nodes, dying: None }
}

#[test]
fn the_machine_and_a_cgroup_have_victims_of_their_own() {
    let reading = reading(Ok([tree(700), tree(900)]));
    let forecasts = forecasts(&reading, None);
    let [machine, cgroup] = forecasts.as_slice() else { panic!("{forecasts:?}") };
    // The adjustment is 300 thousandths of 100,000 pages.
    assert_eq!(machine.next.unwrap().process.pid.0, 6);
    assert_eq!(machine.left, Ok(PAGE.pages(5000 - 10 + 100 + 200 + 10)));
    assert_eq!(machine.growth, Some(1000.0 * 4096.0));
    assert!((machine.seconds_left.unwrap() - 5.3).abs() < 0.01);
    // The adjustment is 300 thousandths of 1000 pages: 700 pages in total; /ab is not below /a.
    assert_eq!(cgroup.next.unwrap().badness, Ok(700));
    assert_eq!(cgroup.left, Ok(PAGE.pages(1000 - (900 - 100))));
    assert_eq!(cgroup.growth, Some(200.0 * 4096.0));
    assert!(cgroup.kills_all, "/a/b has memory.oom.group");
}

#[test]
fn the_process_that_reads_is_no_victim_and_its_growth_is_not_the_machines() {
    let mut reading = reading(Ok([tree(700), tree(900)]));
    reading.processes[1].rss_before = Some(PAGE.pages(100));
    let forecasts = forecasts(&reading, Some(Pid(6)));
    assert_eq!(forecasts[0].next.unwrap().process.pid.0, 7);
    assert_eq!(forecasts[0].growth, Some(700.0 * 4096.0));
    assert_eq!(forecasts[1].growth, Some(-100.0 * 4096.0));
}

#[test]
fn the_limit_of_a_cgroup_includes_the_swap_that_it_may_use() {
    let mut reading = reading(Ok([tree(0), tree(0)]));
    reading.machine[1]
        .meminfo
        .iter_mut()
        .find(|it| it.name == Name::from("SwapTotal"))
        .unwrap()
        .count = 500 << 12;
    let pages = |tree: &CgroupTree| forecast::limit_pages(&reading, tree, &tree.nodes[1]);
    let mut tree = tree(0);
    assert_eq!(pages(&tree), Some(1500));
    tree.nodes[1].swap_limit = Some(PAGE.pages(20));
    assert_eq!(pages(&tree), Some(1020));
    tree.nodes[1].swappiness = Some(0);
    assert_eq!(pages(&tree), Some(1000));
    let v1 = CgroupTree { version: 1, ..tree };
    let mut v1 = v1;
    v1.nodes[1].swappiness = Some(60);
    v1.nodes[1].swap_limit = Some(PAGE.pages(1200));
    assert_eq!(pages(&v1), Some(1200), "memory and swap together");
}

#[test]
fn a_machine_without_cgroups_still_has_a_forecast() {
    let reading = reading(Err(Absent::NotSupported("none".into())));
    let report = oom(&reading, &OomOptions { rows: None, ourselves: None }, Vec::new());
    assert_eq!(forecasts(&reading, None).len(), 1);
    assert_eq!(report.schema, SCHEMA);
}
