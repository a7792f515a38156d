//! Compares the listing of processes with `smaps_rollup`, procps and C programs with known memory.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::fs;
use std::process::{Child, Command, Stdio};

use pagewise_model::listing::{ByQuadrant, Listing, ProcessSummary};
use pagewise_model::machine::ReadMethod;
use pagewise_model::{Bytes, Pid, Quadrant, Smaps, SmapsCounter};
use pagewise_proc::capture::Wish;
use pagewise_proc::{ProcRoot, listing, smaps, stat};
use pagewise_skip::{Lack, skip};

fn list(wish: Wish) -> Listing {
    listing::list(&ProcRoot::live(), wish).expect("/proc can be listed")
}

fn find(listing: &Listing, pid: u32) -> &ProcessSummary {
    listing.processes.iter().find(|s| s.pid == Pid(pid)).expect("the process is listed")
}

/// A process that does nothing, killed when dropped.
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

    /// Waits until the process sleeps in the system call for which it was started: it has then
    /// loaded its libraries.
    fn wait_until_asleep(&self) {
        for _ in 0..6000 {
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

/// Compares two methods. Each method returns values that belong to the process alone, which must be
/// equal, and sizes that depend on the sharing of libraries. The sizes of the second method must
/// lie between two readings by the first one. The comparison is repeated until both methods agree,
/// because a process that starts and ends during a reading changes the sharing for a part of that
/// time.
fn agreed<T: PartialEq + Debug, const N: usize>(
    one: impl Fn() -> (T, [Bytes; N]),
    other: impl Fn() -> (T, [Bytes; N]),
) -> T {
    for _ in 0..100 {
        let (before, seen, after) = (one(), other(), one());
        let shares = before.1.iter().zip(&seen.1).zip(&after.1);
        let is_between = |((&one, seen), &other): ((&Bytes, _), &Bytes)| {
            (one.min(other)..=one.max(other)).contains(seen)
        };
        if before.0 == seen.0 && seen.0 == after.0 && shares.into_iter().all(is_between) {
            return seen.0;
        }
    }
    let (seen, expected) = (other(), one());
    panic!("{seen:?} and {expected:?}");
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
            ((rss, rss, bytes(SmapsCounter::Swap)), [uss, bytes(SmapsCounter::Pss)])
        };
        let by_listing = || {
            let listing = list(wish);
            let cat = find(&listing, idle.pid()).clone();
            // Without CAP_SYS_ADMIN the page reading cannot compute the PSS of pages that other
            // processes also map.
            let pss = cat.pss.clone().or_else(|_| rollup(idle.pid()).bytes(SmapsCounter::Pss));
            let sum = quadrant_sum(&cat);
            let own = (cat.rss.unwrap(), sum, cat.swap.unwrap());
            (own, [cat.uss.unwrap(), pss.unwrap()])
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

/// Shared anonymous memory of a process, for which both methods return the same quadrants.
fn agreed_shared_anonymous(pid: u32) -> Bytes {
    let sums = |wish, method| {
        let sums = quadrants(wish, pid, method);
        let anonymous = (sums.private_anonymous, sums.shared_anonymous);
        (anonymous, [sums.private_file.unwrap(), sums.shared_file.unwrap()])
    };
    let by_rollup = || sums(Wish::Full, ReadMethod::Full);
    agreed(by_rollup, || sums(Wish::Fast, ReadMethod::Fast)).1.unwrap()
}

#[test]
fn the_rollup_and_the_pages_give_the_same_quadrants() {
    for idle in [Idle::start("cat", &[]), Idle::start("sh", &["-c", "cat; :"])] {
        agreed_shared_anonymous(idle.pid());
    }
}

/// Waits until a child of `parent` that has not called `exec` has at least `least` bytes of
/// resident memory, and returns it.
fn grown_child(parent: u32, least: Bytes) -> Option<u32> {
    for _ in 0..6000 {
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
    // The subshell is a fork that does not exec: it shares the memory of its parent until one of
    // them writes. The variable is larger than the requested size, because khugepaged may copy a
    // part.
    let script = "x=$(head -c 8000000 /dev/zero | tr '\\0' x); (read y; :); :";
    let parent = Idle::start("bash", &["-c", script]);
    let Some(child) = grown_child(parent.pid(), Bytes(3_000_000)) else {
        return skip(&Lack::KernelFile("/proc/thread-self/children"));
    };
    for pid in [parent.pid(), child] {
        let shared = agreed_shared_anonymous(pid);
        assert!(shared >= Bytes(3_000_000), "{shared}");
    }
}

/// Process ID and start time of each process, and true if it is a kernel thread.
fn started_processes() -> HashSet<(u32, u64, bool)> {
    let process = |pid: u32| {
        let stat = stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?).ok()?;
        Some((pid, stat.start_ticks, stat.is_kernel_thread()))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|it| process(it.file_name().to_str()?.parse().ok()?)).collect()
}

/// Processes and threads that the machine created since its start.
fn created_tasks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("processes ")).unwrap();
    line.parse().unwrap()
}

#[test]
fn every_process_that_procps_lists_is_listed_or_a_kernel_thread() {
    let idle = Idle::start("cat", &[]);
    let created = created_tasks();
    let before = started_processes();
    let Ok(ps) = Command::new("ps").args(["-eo", "pid=,rss=,user:32="]).output() else {
        return skip(&Lack::Tool("ps"));
    };
    let text = String::from_utf8(ps.stdout).unwrap();
    let listing = list(Wish::Auto);
    let after = started_processes();
    let created = created_tasks() - created;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: HashMap<u32, Vec<String>> =
        text.lines().map(words).map(|row| (row[0].parse().unwrap(), row)).collect();
    // Other tests start and stop processes meanwhile.
    let lasting: Vec<_> = before.intersection(&after).collect();
    for (pid, _, is_kernel_thread) in &lasting {
        let is_listed = listing.processes.iter().any(|summary| summary.pid == Pid(*pid));
        assert!(rows.contains_key(pid) && (is_listed || *is_kernel_thread), "{pid}");
    }
    let count = listing.processes.len() as u64 + listing.kernel_threads;
    let (least, most) = (lasting.len() as u64, before.len() as u64 + created);
    assert!((least..=most).contains(&count), "{least} to {most}: {count}");
    let cat = find(&listing, idle.pid());
    let row = &rows[&idle.pid()];
    assert_eq!(cat.user.as_ref().unwrap().as_bytes(), row[2].as_bytes());
    // procps reads RSS from counters that each CPU keeps for itself. Up to 64 pages of each CPU are
    // missing in it.
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
