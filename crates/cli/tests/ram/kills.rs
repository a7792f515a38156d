//! Predictions of `pagewise oom` against real OOM kills in memory cgroups.
//!
//! Each scenario fills a cgroup with processes of known memory, sets its limit a little above what
//! they use, asks `pagewise oom` for the next victim, and then has a small process ask for more.
//! `PAGEWISE_OOM=all` runs all scenarios; without it the first few run.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip, skip_part};
use serde_json::Value;

use super::fixture::cgroup::{Actor, TestCgroup};
use super::fixture::json;

/// Processes of a cgroup: the arguments of `oomed` for each.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Cgroup below the limited one for each process: "" for the limited one itself.
    pub(crate) processes: &'static [(&'static str, &'static str)],
    /// `memory.oom.group` of the cgroup `a` (v2 only).
    kills_group: bool,
}

const fn scenario(
    name: &'static str,
    processes: &'static [(&'static str, &'static str)],
) -> Scenario {
    Scenario { name, processes, kills_group: false }
}

/// Scenarios that run always.
const FEW: usize = 5;

pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("the larger of two", &[("", "anon=12 wait"), ("", "anon=24 wait")]),
    scenario("an adjustment outweighs size", &[("", "anon=24 wait"), ("", "anon=4 adj=700 wait")]),
    scenario("shared memory counts in full", &[("", "anon=14 wait"), ("", "anon=4 shm=24 wait")]),
    scenario(
        "a large child, not its parent",
        &[("", "anon=8 fork anon=20 wait"), ("", "anon=12 wait")],
    ),
    scenario(
        "threads are one process",
        &[("", "thread=8 thread=8 thread=8 wait"), ("", "anon=14 wait")],
    ),
    scenario(
        "raised a little and still smaller",
        &[("", "anon=30 wait"), ("", "anon=10 adj=100 wait")],
    ),
    scenario(
        "raised by more than it is smaller",
        &[("", "anon=30 wait"), ("", "anon=10 adj=800 wait")],
    ),
    scenario(
        "three steps of an adjustment",
        &[("", "anon=6 adj=300 wait"), ("", "anon=12 adj=200 wait"), ("", "anon=18 adj=100 wait")],
    ),
    scenario("both adjusted", &[("", "anon=10 adj=500 wait"), ("", "anon=20 adj=500 wait")]),
    scenario("page tables count", &[("", "anon=8 wait"), ("", "tables=1600 wait")]),
    scenario(
        "children with the pages of their parents",
        &[("", "anon=4 fork anon=6 wait"), ("", "anon=4 fork anon=7 wait"), ("", "anon=9 wait")],
    ),
    scenario("first thread has ended", &[("", "thread=24 gone"), ("", "anon=10 wait")]),
    scenario("two cgroups below the limit", &[("a", "anon=10 wait"), ("b", "anon=20 wait")]),
    scenario("a cgroup that is deeper", &[("a/b/c", "anon=22 wait"), ("a", "anon=12 wait")]),
    scenario("a suspended parent of vfork", &[("", "anon=20 vfork"), ("", "anon=10 wait")]),
    scenario(
        "a child of fork that shares pages",
        &[("", "anon=16 fork anon=6 wait"), ("", "anon=12 wait")],
    ),
    scenario(
        "many small ones and a middle one",
        &[
            ("", "anon=3 wait"),
            ("", "anon=3 wait"),
            ("", "anon=3 wait"),
            ("", "anon=3 wait"),
            ("", "anon=9 wait"),
        ],
    ),
    scenario("the smallest with 1000", &[("", "anon=30 wait"), ("", "anon=2 adj=1000 wait")]),
    scenario("tmpfs against anonymous", &[("", "shm=12 wait"), ("", "anon=20 wait")]),
    Scenario {
        name: "a group is killed as a whole",
        processes: &[("a", "anon=20 wait"), ("a", "anon=4 wait"), ("b", "anon=10 wait")],
        kills_group: true,
    },
    // A lower oom_score_adj needs CAP_SYS_RESOURCE, which root lacks in most containers.
    scenario("protected by -1000", &[("", "anon=30 adj=-1000 wait"), ("", "anon=10 wait")]),
    scenario(
        "protected a little and still larger",
        &[("", "anon=30 adj=-100 wait"), ("", "anon=10 wait")],
    ),
    scenario(
        "protected by more than it is larger",
        &[("", "anon=30 adj=-800 wait"), ("", "anon=10 wait")],
    ),
];

/// True if a process runs: it is neither gone nor a zombie.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    // The first thread of a process may have ended while others run.
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state.is_some_and(|state| !matches!(state, 'Z' | 'X') || tasks > 1)
}

/// The forecast of a cgroup.
fn forecast(path: &str) -> Value {
    let report = json(&["oom", "--json", "--for", "0s", "--limit", "all"]);
    let scopes = report["scopes"].as_array().unwrap().clone();
    scopes.into_iter().find(|scope| scope["scope"] == path).unwrap_or_else(|| panic!("no {path}"))
}

/// Result of a scenario.
#[derive(Debug)]
struct Kill {
    predicted: u64,
    killed: BTreeSet<u32>,
}

/// Runs a scenario; `None` if the kernel does not let the test make it.
fn run(scenario: &Scenario, number: usize) -> Option<Kill> {
    let Some(cgroup) = TestCgroup::make(&format!("oom{number}")) else {
        skip(&Lack::Machine("no memory cgroup can be made"));
        return None;
    };
    let mut folders = Vec::new();
    for (path, _) in scenario.processes {
        folders.push(cgroup.below(path));
    }
    let pusher = cgroup.below(if cgroup.version == 2 { "pusher" } else { "" });
    if scenario.kills_group && fs::write(cgroup.below("a").join("memory.oom.group"), "1").is_err() {
        skip(&Lack::Machine("memory cgroups have no memory.oom.group here"));
        return None;
    }
    // Processes of v2 are in cgroups without children only.
    let place = |folder: &Path, at: usize| match cgroup.version == 2 && folder == cgroup.folder {
        true => cgroup.below(&format!("own{at}")),
        false => folder.to_path_buf(),
    };
    let actors: Vec<Actor> = scenario
        .processes
        .iter()
        .enumerate()
        .map(|(at, (_, arguments))| Actor::start(&place(&folders[at], at), arguments))
        .collect();
    let mut pusher = Actor::start(&pusher, "wait push=3 wait");
    let members = cgroup.members();
    let Some(_limit) = cgroup.limit(2 << 20) else {
        skip(&Lack::Machine("the limit of a memory cgroup cannot be set"));
        return None;
    };
    let forecast = forecast(&cgroup.path());
    let predicted =
        forecast["pid"].as_u64().unwrap_or_else(|| panic!("{}: {forecast}", scenario.name));
    pusher.stdin.write_all(b"\n").unwrap();
    pusher.expect("pushed");
    // A killed process takes a moment to end.
    let deadline = Instant::now() + Duration::from_secs(5);
    let dead = || -> BTreeSet<u32> { members.iter().copied().filter(|pid| !lives(*pid)).collect() };
    while dead().is_empty() && Instant::now() < deadline {
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(20));
    let killed = dead();
    drop(actors);
    drop(pusher);
    Some(Kill { predicted, killed })
}

/// The process that was killed first. Further kills happen if the next request comes before its
/// memory is free.
fn first_killed(killed: &BTreeSet<u32>) -> Option<u32> {
    let log = Command::new("dmesg").output().map(|it| it.stdout).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let victim = |line: &str| {
        let rest = line.split_once("Killed process ")?.1;
        rest.split(' ').next()?.parse().ok().filter(|pid| killed.contains(pid))
    };
    // The kernel does not report each of many kills in a short time, but names each.
    log.lines().find_map(victim).or_else(|| killed.first().copied())
}

/// Lowers the `oom_score_adj` of a process of ours.
fn can_protect() -> std::io::Result<()> {
    let mut child = Command::new("sleep").arg("9").spawn()?;
    let written = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "-500");
    child.kill()?;
    child.wait()?;
    written
}

#[test]
fn the_predicted_process_is_the_one_that_the_kernel_kills() {
    if !is_root() {
        return;
    }
    let all = std::env::var_os("PAGEWISE_OOM").is_some_and(|it| it == "all");
    let count = if all { SCENARIOS.len() } else { FEW };
    let mut wrong = Vec::new();
    let mut run_count = 0;
    for (number, scenario) in SCENARIOS.iter().take(count).enumerate() {
        let lowers = scenario.processes.iter().any(|(_, it)| it.contains("adj=-"));
        if lowers && let Err(error) = can_protect() {
            skip_part(&Lack::Refused { call: "a lower oom_score_adj", error: &error });
            continue;
        }
        let Some(kill) = run(scenario, number) else { continue };
        run_count += 1;
        let is_right =
            first_killed(&kill.killed).is_some_and(|pid| u64::from(pid) == kill.predicted);
        eprintln!("{}: predicted {}, killed {:?}", scenario.name, kill.predicted, kill.killed);
        if !is_right {
            wrong.push(format!("{}: {kill:?}", scenario.name));
        }
    }
    eprintln!("{} of {run_count} predictions were right", run_count - wrong.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_report_of_the_kernel_log_names_the_same_victim() {
    if !is_root() {
        return;
    }
    if let Err(error) = fs::File::open("/dev/kmsg") {
        return skip(&Lack::Refused { call: "open of /dev/kmsg", error: &error });
    }
    let Some(kill) = run(&SCENARIOS[0], 99) else { return };
    let report = json(&["oom", "--json", "--for", "0s"]);
    let last = &report["past"]["last"];
    let victim = last["victim_pid"].as_u64();
    let is_ours = victim.is_some_and(|pid| kill.killed.iter().any(|it| u64::from(*it) == pid));
    let other = last["victim"] != "oomed";
    if other || victim.is_none() {
        // Other tests or programs are killed too, and the log may have lost the report.
        return skip(&Lack::Chance("another OOM kill came last, or the log has no report"));
    }
    let sentence = last["explanation"].as_str().unwrap();
    assert!(is_ours || sentence.contains("oomed"), "{last}");
    assert!(sentence.contains("had reached its limit"), "{sentence}");
}
