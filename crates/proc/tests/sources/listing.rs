//! The listing of processes against `smaps_rollup`, procps and C programs with known memory.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::process::{Child, Command, Stdio};

use pagewise_model::listing::{ByQuadrant, Listing, ProcessSummary};
use pagewise_model::machine::ReadMethod;
use pagewise_model::{Bytes, Pid, Quadrant, Smaps, SmapsCounter};
use pagewise_proc::capture::Wish;
use pagewise_proc::{ProcRoot, listing, smaps};
use pagewise_skip::{Lack, skip};

fn list(wish: Wish) -> Listing {
    listing::list(&ProcRoot::live(), wish).expect("/proc can be listed")
}

fn find(listing: &Listing, pid: u32) -> &ProcessSummary {
    listing.processes.iter().find(|s| s.pid == Pid(pid)).expect("the process is listed")
}

/// A process that does nothing, stopped when the test is over.
struct Idle(Child);

impl Idle {
    fn start(program: &str, arguments: &[&str]) -> Idle {
        let mut command = Command::new(program);
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let idle = Idle(child.expect("the program starts"));
        idle.wait_until_asleep();
        idle
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// It has been loaded when it sleeps in the system call that it was started for.
    fn wait_until_asleep(&self) {
        for _ in 0..500 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            let is_loaded = !stat.contains("(listing-");
            if is_loaded && stat.contains(") S ") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{} does not sleep", self.pid());
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn quadrant_sum(summary: &ProcessSummary) -> Bytes {
    Quadrant::ALL.iter().map(|q| summary.quadrants.get(*q).clone().expect("it was read")).sum()
}

/// Compares two methods. Repeats until they agree: processes that start or end between the two
/// readings change the sharing of libraries.
fn agreed<T: PartialEq + Debug>(one: impl Fn() -> T, other: impl Fn() -> T) -> T {
    for _ in 0..50 {
        let seen = one();
        if seen == other() {
            return seen;
        }
    }
    let seen = one();
    assert_eq!(seen, other());
    seen
}

fn rollup(pid: u32) -> Smaps {
    let text = fs::read(format!("/proc/{pid}/smaps_rollup")).expect("the process lives");
    smaps::parse_rollup(&text).expect("a rollup")
}

#[test]
fn an_idle_process_is_read_as_smaps_rollup_says_in_every_way() {
    let idle = Idle::start("cat", &[]);
    for wish in [Wish::Auto, Wish::Full, Wish::Fast, Wish::Polite] {
        let by_rollup = || {
            let rollup = rollup(idle.pid());
            let bytes = |counter| rollup.bytes(counter).unwrap();
            let uss = bytes(SmapsCounter::PrivateClean) + bytes(SmapsCounter::PrivateDirty);
            let rss = bytes(SmapsCounter::Rss);
            (rss, rss, uss, bytes(SmapsCounter::Swap), bytes(SmapsCounter::Pss))
        };
        let by_listing = || {
            let listing = list(wish);
            let cat = find(&listing, idle.pid()).clone();
            // Without CAP_SYS_ADMIN the page reading does not know the share of co-mapped pages.
            let pss = cat.pss.clone().or_else(|_| rollup(idle.pid()).bytes(SmapsCounter::Pss));
            let sum = quadrant_sum(&cat);
            (cat.rss.unwrap(), sum, cat.uss.unwrap(), cat.swap.unwrap(), pss.unwrap())
        };
        agreed(by_rollup, by_listing);
    }
}

fn quadrants(wish: Wish, pid: u32, method: ReadMethod) -> ByQuadrant {
    let listing = list(wish);
    let summary = find(&listing, pid);
    assert_eq!(summary.memory, Ok(method));
    summary.quadrants.clone()
}

fn agreed_quadrants(pid: u32) -> ByQuadrant {
    let sums = || quadrants(Wish::Full, pid, ReadMethod::Full);
    agreed(sums, || quadrants(Wish::Fast, pid, ReadMethod::Fast))
}

#[test]
fn the_rollup_and_the_pages_give_the_same_quadrants() {
    for idle in [Idle::start("cat", &[]), Idle::start("sh", &["-c", "cat; :"])] {
        agreed_quadrants(idle.pid());
    }
}

/// The child of `parent` once it is a fork that holds at least `least`.
fn grown_child(parent: u32, least: Bytes) -> Option<u32> {
    for _ in 0..500 {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        let listing = list(Wish::Full);
        let holds = |pid: &u32| {
            let child = listing.processes.iter().find(|s| s.pid == Pid(*pid));
            child.is_some_and(|s| {
                s.name.as_bytes() == b"bash" && s.rss.clone().is_ok_and(|rss| rss >= least)
            })
        };
        if let Some(pid) = pids.into_iter().find(holds) {
            return Some(pid);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no child of {parent} grew");
}

#[test]
fn memory_shared_after_fork_is_shared_anonymous_however_it_is_read() {
    // The subshell is a fork that does not exec: its memory is its parent's until one of them
    // writes.
    let script = "x=$(head -c 3000000 /dev/zero | tr '\\0' x); (read y; :); :";
    let parent = Idle::start("bash", &["-c", script]);
    let Some(child) = grown_child(parent.pid(), Bytes(3_000_000)) else {
        return skip(&Lack::KernelFile("/proc/thread-self/children"));
    };
    for pid in [parent.pid(), child] {
        let shared = agreed_quadrants(pid).shared_anonymous.unwrap();
        assert!(shared >= Bytes(3_000_000), "{shared}");
    }
}

#[test]
fn every_process_that_procps_lists_is_listed_or_a_kernel_thread() {
    let idle = Idle::start("cat", &[]);
    let Ok(ps) = Command::new("ps").args(["-eo", "pid=,rss=,user:32="]).output() else {
        return skip(&Lack::Tool("ps"));
    };
    let text = String::from_utf8(ps.stdout).unwrap();
    let listing = list(Wish::Auto);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: HashMap<u32, Vec<String>> =
        text.lines().map(words).map(|row| (row[0].parse().unwrap(), row)).collect();
    let count = listing.processes.len() as u64 + listing.kernel_threads;
    // Other tests start and stop processes meanwhile.
    assert!(count.abs_diff(rows.len() as u64) < 30, "{count} and {}", rows.len());
    let cat = find(&listing, idle.pid());
    let row = &rows[&idle.pid()];
    assert_eq!(cat.user.as_ref().unwrap().as_bytes(), row[2].as_bytes());
    // procps takes RSS from counters that each CPU keeps for itself: up to 64 pages a CPU are not
    // in it.
    let rss = Bytes::kib(row[1].parse().unwrap());
    assert!(cat.rss.clone().unwrap().0.abs_diff(rss.0) < Bytes::mib(1).0, "{rss}");
}

#[test]
fn names_and_commands_are_those_of_the_process() {
    let idle = Idle::start("sh", &["-c", "cat; :", "a b", ""]);
    let listing = list(Wish::Auto);
    let sh = find(&listing, idle.pid());
    let command: Vec<_> =
        sh.command.as_ref().unwrap().iter().map(|w| w.escaped().into_owned()).collect();
    assert_eq!(command, ["sh", "-c", "cat; :", "a b", ""]);
    assert!(sh.exe.as_ref().unwrap().as_bytes().starts_with(b"/"));
}

#[test]
fn a_zombie_is_listed_and_holds_nothing() {
    let mut child = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let listing = list(Wish::Auto);
    let zombie = find(&listing, child.id());
    assert!(zombie.is_zombie());
    assert_eq!((zombie.rss.clone(), zombie.pss.clone()), (Ok(Bytes::ZERO), Ok(Bytes::ZERO)));
    child.wait().unwrap();
}

#[test]
fn an_empty_tree_has_no_processes_and_a_missing_one_is_an_error() {
    let dir = std::env::temp_dir().join(format!("pagewise-listing-{}", std::process::id()));
    fs::create_dir_all(dir.join("17")).unwrap();
    let listing = listing::list(&ProcRoot::at(&dir), Wish::Auto).unwrap();
    assert_eq!((listing.processes.len(), listing.vanished), (0, 1));
    fs::remove_dir_all(&dir).unwrap();
    assert!(listing::list(&ProcRoot::at(&dir), Wish::Auto).is_err());
}
