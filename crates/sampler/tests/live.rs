//! Sweeps of live processes, compared with the kernel's own sums.

#![allow(clippy::unwrap_used, reason = "tests may do it")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pagewise_model::Bytes;
use pagewise_model::sweep::{PagesReading, Sweep, SweepEvent, SweepEventKind, SweepProcess};
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};

/// A process that sleeps. It ends with the value.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    /// Waits until it sleeps, and has had no fault and used no CPU time for a tenth of a second.
    fn wait_until_idle(&self) {
        let activity = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            // State, minor faults, user and system time.
            [0, 7, 11, 12].map(|at| fields[at].to_owned())
        };
        let mut before = activity();
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = activity();
            if now == before && now[0] == "S" {
                return;
            }
            before = now;
        }
    }

    fn of<'s>(&self, sweep: &'s Sweep) -> Option<&'s SweepProcess> {
        sweep.processes.iter().find(|it| it.key.pid.0 == self.0.id())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(&ProcRoot::live(), options).unwrap()
}

/// Bytes of a line of a file of a process.
fn kernels(pid: u32, file: &str, line: &str) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let value = text.lines().find_map(|it| it.strip_prefix(line)).unwrap();
    Bytes::kib(value.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn an_idle_process_is_read_once_and_its_values_are_the_kernels() {
    let sleeper = Sleeper::start();
    sleeper.wait_until_idle();
    let mut sampler = sampler(SamplerOptions { page_share: 1.0, ..SamplerOptions::default() });
    let first = sampler.sweep().unwrap().sweep;
    let process = sleeper.of(&first).unwrap();
    assert_eq!(process.pages, PagesReading::Now);
    let pid = sleeper.0.id();
    assert_eq!(process.rss, kernels(pid, "status", "VmRSS:"));
    assert_eq!(process.peak_rss, Ok(kernels(pid, "status", "VmHWM:")));
    // Other processes map its C library too, and come and go.
    let pss = kernels(pid, "smaps_rollup", "Pss:");
    assert!(process.pss_total().unwrap().0.abs_diff(pss.0) < 256 << 10, "{process:?} {pss}");
    assert_eq!(process.identity.name, "sleep".into());
    let second = sampler.sweep().unwrap().sweep;
    let again = sleeper.of(&second).unwrap();
    assert_eq!(again.pages, PagesReading::Unchanged(first.time.boot_ns));
    assert_eq!((&again.pss, &again.uss), (&process.pss, &process.uss));
    assert!(second.cost.pages_read < first.cost.pages_read);
}

#[test]
fn starts_and_ends_are_events_and_short_processes_are_counted() {
    let mut sampler = sampler(SamplerOptions::default());
    assert!(sampler.sweep().unwrap().events.is_empty(), "the first sweep has nothing to compare");
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    for _ in 0..50 {
        Command::new("true").status().unwrap();
    }
    let events = sampler.sweep().unwrap().events;
    let is_start = |it: &SweepEventKind| matches!(it, SweepEventKind::Started { process, .. } if process.pid.0 == pid);
    assert!(events.iter().any(|it| is_start(&it.event)), "{events:?}");
    let short = events.iter().find_map(|it| match it.event {
        SweepEventKind::ShortLived { count } => Some(count),
        _ => None,
    });
    // A process that starts while the sweep runs may be seen, but its creation is not counted yet:
    // the number of short-lived ones is then too low by it.
    let is_any_start = |it: &&SweepEvent| matches!(it.event, SweepEventKind::Started { .. });
    let started = events.iter().filter(is_any_start).count() as u64;
    assert!(short.unwrap_or(0) + started > 50, "{short:?} {started}");
    drop(sleeper);
    let events = sampler.sweep().unwrap().events;
    let peak = events.iter().find_map(|it| match &it.event {
        SweepEventKind::Exited { process, peak_rss, .. } if process.pid.0 == pid => Some(peak_rss),
        _ => None,
    });
    assert!(peak.unwrap().clone().unwrap() > Bytes::ZERO);
}

#[test]
fn without_a_budget_a_changed_process_keeps_its_older_values_and_says_so() {
    // A small process: the first sweep reads the pages of all of those.
    let script = "read -r line; s=$(printf '%1000000s'); echo; read -r line";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = Sleeper(shell.spawn().unwrap());
    let (mut input, mut output) = (shell.0.stdin.take().unwrap(), shell.0.stdout.take().unwrap());
    let options = SamplerOptions { page_share: 0.0, ..SamplerOptions::default() };
    let mut sampler = sampler(options);
    let first = sampler.sweep().unwrap().sweep;
    let before = shell.of(&first).unwrap();
    // It grows between the sweeps.
    input.write_all(b"\n").unwrap();
    output.read_exact(&mut [0]).unwrap();
    let second = sampler.sweep().unwrap().sweep;
    let after = shell.of(&second).unwrap();
    assert_eq!(before.pages, PagesReading::Now);
    assert_eq!(after.pages, PagesReading::Postponed(first.time.boot_ns));
    assert_eq!(after.pss, before.pss);
    assert!(after.rss > before.rss, "RSS is current");
    assert!(second.cost.postponed > 0);
}

#[test]
fn an_idle_process_that_waits_too_long_for_its_next_reading_says_so() {
    let sleeper = Sleeper::start();
    sleeper.wait_until_idle();
    let options =
        SamplerOptions { page_share: 0.0, refresh: Duration::ZERO, ..SamplerOptions::default() };
    let mut sampler = sampler(options);
    let first = sampler.sweep().unwrap().sweep;
    let at = first.time.boot_ns;
    let mut pages = || sleeper.of(&sampler.sweep().unwrap().sweep).unwrap().pages;
    // It is due in each sweep, and is never read again.
    assert_eq!(pages(), PagesReading::Unchanged(at));
    assert_eq!(pages(), PagesReading::Postponed(at));
}
