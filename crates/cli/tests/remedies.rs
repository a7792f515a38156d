//! Each remedy in the table of causes is carried out on a sick program (a program that has the
//! cause on purpose), and the figure that measures the cause improves.
//!
//! `PAGEWISE_CAUSES` names causes, separated by commas: only their remedies are carried out then.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagewise_corpus::{Label, ProgramForm, Running, figures};
use pagewise_skip::{Lack, is_root, skip_part};
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::Value;

use fixture::{json, pagewise};

/// Number of programs that run side by side: most of them sleep most of the time.
const WORKERS: usize = 8;
/// Maximum number of times that a program or a diagnosis is tried: a busy machine delays them.
const TRIES: usize = 3;
/// Time over which rates are measured.
const FIGURE_TIME: Duration = Duration::from_millis(1500);
/// Time in which a changed program reaches its steady state.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Time for which a program that grows is observed, and time for any other program.
const GROWTH_TIME: &str = "3s";
const OTHER_TIME: &str = "2s";
/// Minimum number of trials. With fewer trials, the machine lacks nearly everything, and the test
/// shows nothing.
const MIN_TRIALS: usize = 20;
/// Number of threads for each CPU above which a cause may be too small to be found.
const MAX_OTHER_WORK: f64 = 5.0;
/// Share of the CPU time taken by the hypervisor above which a cause may be too small to be found.
const MAX_STOLEN: f64 = 0.1;

/// Method of carrying out a remedy.
#[derive(Clone, Copy, Debug)]
enum Trial {
    /// The command that the report prints is run.
    Command,
    /// The command that the report prints is run, and needs a capability that containers often
    /// lack.
    PrivilegedCommand(CapabilitySet),
    /// The program is started with the variables that the report prints as the command.
    Variables,
    /// The advice contains these words, and the program is started with these variables.
    Started(&'static str, &'static [&'static str]),
    /// The advice contains these words, and the program is started again.
    Restarted(&'static str),
    /// The advice contains these words, and the remedied form of the program makes this change.
    Remedied(&'static str),
    /// The remedy is not carried out, for this reason.
    Not(&'static str),
}

use Trial::{Not, PrivilegedCommand, Remedied, Restarted, Started, Variables};

/// The remedies of a cause, and the sick program on which they are carried out.
struct CauseTrial {
    cause: &'static str,
    /// A file of `fixtures/sick` without its extension.
    program: &'static str,
    /// The figure that improves; empty for the figure in the program's `Label`.
    figure: &'static str,
    /// The trial of the remedy without a change of the program; `None` if the report has no such
    /// remedy.
    now: Option<Trial>,
    /// The trial of the remedy that changes the program; `None` if the report has no such remedy.
    code: Option<Trial>,
}

const fn trial(
    cause: &'static str,
    program: &'static str,
    now: Option<Trial>,
    code: Option<Trial>,
) -> CauseTrial {
    CauseTrial { cause, program, figure: "", now, code }
}

const WHOLE_MACHINE: Trial = Not("a setting of the whole machine");
const HIGHER_LIMIT: Trial = Not("the same limit, raised before the start");

#[rustfmt::skip]
const TRIALS: &[CauseTrial] = &[
    trial("near-max-map-count", "mapcount_striped_guard", Some(WHOLE_MACHINE), Some(Remedied("Map fewer, larger areas"))),
    trial("near-rlimit-as", "rlimit_as_index_server", Some(Trial::Command), Some(HIGHER_LIMIT)),
    trial("near-rlimit-data", "rlimit_data_row_buffers", Some(Trial::Command), Some(HIGHER_LIMIT)),
    CauseTrial {
        figure: "stack-share",
        ..trial("near-rlimit-stack", "rlimit_stack_expression", Some(Trial::Command), Some(Remedied("Bound the recursion")))
    },
    trial(
        "near-rlimit-memlock", "rlimit_memlock_packet_ring",
        Some(PrivilegedCommand(CapabilitySet::SYS_RESOURCE)), Some(Remedied("Lock only the pages that must stay")),
    ),
    trial("cgroup-limit", "cgroup_mapped_index", Some(Trial::Command), Some(Not("no program of the corpus can do with less"))),
    trial("cgroup-limit", "cgroup_oom_children", Some(Trial::Command), Some(Not("no program of the corpus can do with less"))),
    trial("machine-short", "machine_short_neighbor", Some(Not("needs a machine with little memory")), Some(Not("needs a machine with little memory"))),
    trial("swap-thrash", "swap_working_set", Some(Not("needs a machine with little memory")), Some(Not("needs a machine with little memory"))),
    trial("page-cache-charged", "pagecache_log_writer", Some(Not("changes an alert only")), Some(Remedied("POSIX_FADV_DONTNEED"))),
    CauseTrial {
        figure: "removed-cgroups-growth",
        ..trial("zombie-cgroups", "zombie_cgroups", Some(Not("drops the page cache of the whole machine")), Some(Remedied("In tmpfs, remove the files of a job before its cgroup")))
    },
    trial("leak", "leak_session_table", Some(Restarted("Restart")), Some(Remedied("Free the block"))),
    trial("unbounded-cache", "cache_dns_answers", Some(Restarted("Restart")), Some(Remedied("Give the container a bound"))),
    trial("mapping-growth", "maps_tile_server", None, Some(Remedied("Call munmap"))),
    trial("mapping-growth", "maps_unjoined_threads", None, Some(Remedied("pthread_detach"))),
    trial("many-arenas", "arenas_rpc_handlers", Some(Trial::Command), Some(Started("MALLOC_ARENA_MAX=2", &["MALLOC_ARENA_MAX=2"]))),
    trial("trimmable-heap", "trim_after_import", Some(Trial::Command), Some(Remedied("Call malloc_trim(0)"))),
    trial("fragmented-heap", "frag_log_lines", None, Some(Remedied("from a pool of their own"))),
    trial("foreign-heap", "foreign_python_history", Some(Restarted("Restart")), Some(Remedied("Give the container that grows a bound"))),
    trial(
        "foreign-heap", "foreign_java_oversized", None,
        Some(Started("smaller -Xms and -Xmx", &["JAVA_TOOL_OPTIONS=-Xms32m -Xmx32m -XX:-AlwaysPreTouch"])),
    ),
    trial("thp-bloat-requested", "thpreq_sparse_table", Some(Trial::Command), Some(Remedied("Do not call madvise with MADV_HUGEPAGE"))),
    trial("thp-bloat-system", "thpsys_sparse_slots", Some(Trial::Command), Some(Remedied("prctl(PR_SET_THP_DISABLE"))),
    CauseTrial {
        figure: "small-pages",
        ..trial("thp-missing", "thpmissing_hash_join", Some(Trial::Command), Some(Remedied("Call madvise(MADV_HUGEPAGE)")))
    },
    trial("deep-stack", "deepstack_local_image", Some(Trial::Command), Some(Remedied("allocate large arrays by malloc"))),
    trial("oversized-stacks", "stacks_warm_up_scratch", Some(Trial::Command), Some(Remedied("put large local arrays into memory that the threads share"))),
    trial("locked-memory", "locked_whole_process", None, Some(Remedied("Call mlock for the pages that must stay"))),
    trial("cow-storm", "cow_snapshot_store", None, Some(Remedied("write an append-only log"))),
    trial("fork-exec-copy", "forkexec_thumbnailer", None, Some(Remedied("posix_spawn"))),
    trial("fault-churn", "churn_rust_big_vectors", Some(Variables), Some(Remedied("Allocate the buffer once and reuse it"))),
    trial("fault-churn", "churn_frame_buffers", Some(Variables), Some(Remedied("Allocate the buffer once and reuse it"))),
    trial("fault-churn", "churn_dontneed_arena", None, Some(Remedied("Release pages only if they stay unused"))),
    trial("tlb-shootdowns", "shoot_write_barrier", None, Some(Remedied("not in the hot path"))),
    trial("memory-calls", "calls_growing_log", None, Some(Remedied("Grow buffers by doubling"))),
    trial("file-refaults", "refault_segment_search", None, Some(Remedied("do not drop it"))),
    trial("file-refaults", "refault_cold_index", Some(Trial::Command), Some(Remedied("Read the file before time matters"))),
    trial("shm-growth", "shm_memfd_frames", None, Some(Remedied("close of the memfd"))),
    trial("stale-files", "stale_replaced_plugin", Some(Remedied("Restart the process")), None),
    trial("writable-code", "wx_plugin_loader", None, Some(Remedied("mprotect"))),
    trial("large-page-tables", "tables_sparse_index", None, Some(Remedied("Keep data that is used together close together"))),
    trial("hugetlb-unused", "hugetlb_unused_pool", Some(WHOLE_MACHINE), Some(Not("the pool is a setting of the whole machine"))),
    trial("ksm-cost", "ksm_unique_pages", Some(WHOLE_MACHINE), Some(Not("KSM is a setting of the whole machine"))),
    trial("numa-imbalance", "", Some(Not("needs two NUMA nodes")), Some(Not("needs two NUMA nodes"))),
    trial("peak-only", "peak_one_request", Some(Trial::Command), Some(Remedied("Process data in parts"))),
];

#[test]
fn every_cause_has_a_trial_of_its_remedies() {
    let defined = json(&["define", "--json"]);
    let rows = defined["fields"].as_array().unwrap().iter();
    let causes: BTreeSet<&str> = rows
        .filter(|row| row["source"] == "cause")
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let tried: BTreeSet<&str> = TRIALS.iter().map(|trial| trial.cause).collect();
    assert_eq!(causes, tried, "a cause without a row in TRIALS, or a row without a cause");
}

#[test]
fn each_remedy_is_carried_out_on_a_sick_program_and_improves_its_figure() {
    if !is_root() {
        return;
    }
    let labels = pagewise_corpus::labels().unwrap();
    let chosen = std::env::var("PAGEWISE_CAUSES").ok();
    let is_chosen = |it: &&CauseTrial| {
        chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|cause| cause == it.cause))
    };
    let trials: Vec<&CauseTrial> = TRIALS.iter().filter(is_chosen).collect();
    let (next, tried) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let work = || {
        while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            match trial.carry_out(&labels) {
                Ok(count) => {
                    tried.fetch_add(count, Ordering::Relaxed);
                }
                Err(why) => failures.lock().unwrap().push(format!("{}: {why}", trial.name())),
            }
            eprintln!("{}: {:.1?}", trial.name(), began.elapsed());
        }
    };
    std::thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        trials.len(),
        failures.join("\n")
    );
    let tried = tried.into_inner();
    assert!(chosen.is_some() || tried >= MIN_TRIALS, "only {tried} remedies were carried out");
}

/// Checks if programs get the CPU time that they need.
struct CpuWatch {
    /// CPU time of the machine in clock ticks: the total, and the time that the hypervisor took.
    before: [u64; 2],
}

impl CpuWatch {
    fn begin() -> CpuWatch {
        CpuWatch { before: CpuWatch::cpu_times() }
    }

    fn cpu_times() -> [u64; 2] {
        let text = std::fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().next().unwrap();
        let times = line.split_whitespace().skip(1).map(|it| it.parse::<u64>().unwrap());
        let times: Vec<u64> = times.collect();
        // The following fields, the times of guests, are part of the other fields.
        [times.iter().take(8).sum(), times[7]]
    }

    /// Returns true if other programs or other virtual machines took much of the CPU time.
    fn are_busy(&self) -> bool {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap();
        let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let [all, stolen] = CpuWatch::cpu_times();
        let (all, stolen) = (all - self.before[0], stolen - self.before[1]);
        load / cpus as f64 > MAX_OTHER_WORK || stolen as f64 > all as f64 * MAX_STOLEN
    }
}

/// A remedy of a report: its words, and its command if it has one.
struct PrintedRemedy<'a> {
    words: &'a str,
    command: Option<&'a str>,
}

impl CauseTrial {
    fn name(&self) -> String {
        format!("{} ({})", self.cause, self.program)
    }

    /// Carries out the remedies, and returns their number.
    fn carry_out(&self, labels: &[Label]) -> Result<usize, String> {
        let is_left_out = |trial: &Option<Trial>| matches!(trial, None | Some(Not(_)));
        if is_left_out(&self.now) && is_left_out(&self.code) {
            return Ok(0);
        }
        let label = labels.iter().find(|label| label.name == self.program);
        let label = label.ok_or("no such program")?;
        let Some(sick) = start(label, ProgramForm::Sick)? else { return Ok(0) };
        let cpus = CpuWatch::begin();
        let cause = match self.diagnose(sick.pid)? {
            Ok(cause) => cause,
            // A program that gets little CPU time may not show its memory problem.
            Err(others) if cpus.are_busy() => {
                skip_part(&Lack::Chance(&format!("{}: {others}", self.name())));
                return Ok(0);
            }
            Err(others) => return Err(others),
        };
        let before = self.figure_of_trouble(label, &sick)?;
        let remedy = |words: &str, command: &str| {
            let words = cause[words].as_str()?;
            Some(PrintedRemedy { words, command: cause[command].as_str() })
        };
        let mut count = 0;
        let code = remedy("remedy_code", "");
        let now = remedy("remedy_now", "remedy_now_command");
        let mut sick = Some(sick);
        for (which, trial, remedy) in [("now", self.now, now), ("code", self.code, code)] {
            if which == "code" {
                // Some figures are of the whole machine, so the sick program must end first.
                sick = None;
            }
            let is_done = match (trial, remedy) {
                (None, None) => false,
                (Some(trial), Some(remedy)) => self
                    .carry_out_one((label, sick.as_ref()), trial, &remedy, before)
                    .map_err(|why| format!("{which}: {}: {why}", remedy.words))?,
                (None, Some(remedy)) => {
                    return Err(format!("{which}: not in TRIALS: {}", remedy.words));
                }
                (Some(_), None) => return Err(format!("{which}: the report has no such remedy")),
            };
            count += usize::from(is_done);
        }
        Ok(count)
    }

    /// Returns the cause in the report about a process; the inner error if the report does not name
    /// the cause.
    fn diagnose(&self, pid: u32) -> Result<Result<Value, String>, String> {
        let is_growth = self.figure.ends_with("growth") || GROWTHS.contains(&self.cause);
        let time = if is_growth { GROWTH_TIME } else { OTHER_TIME };
        let mut why = String::new();
        for _ in 0..TRIES {
            let output = pagewise(&["diagnose", &pid.to_string(), "--json", "--for", time]);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| text)?;
            let causes = report["causes"].as_array().ok_or("no causes")?;
            let found = causes.iter().find(|it| it["id"] == self.cause);
            // Some remedies depend on the state of the machine, for example on evictions from the
            // page cache.
            let has_remedies = |it: &Value| self.now.is_none() || it["remedy_now"].is_string();
            match found {
                Some(found) if has_remedies(found) => return Ok(Ok(found.clone())),
                Some(_) => why = "the report has no remedy without a change".to_owned(),
                None => {
                    let ids: Vec<String> = causes.iter().map(|it| it["id"].to_string()).collect();
                    why = format!("the report names other causes: [{}]", ids.join(", "));
                }
            }
        }
        Ok(Err(why))
    }

    fn figure_of(&self, label: &Label, running: &Running) -> Result<f64, String> {
        let figure = match self.figure {
            "" => label.improves.as_deref().ok_or("the label has no figure")?,
            figure => figure,
        };
        figures::measure(figure, running, FIGURE_TIME).map_err(|error| format!("{error:#}"))
    }

    /// Returns the figure of a sick program. On a busy machine, the program may do nothing for some
    /// time.
    fn figure_of_trouble(&self, label: &Label, sick: &Running) -> Result<f64, String> {
        let mut figure = self.figure_of(label, sick)?;
        for _ in 1..TRIES {
            if figure > 0.0 {
                break;
            }
            figure = self.figure_of(label, sick)?;
        }
        Ok(figure)
    }

    /// Carries out one remedy. Returns false if the remedy is left out.
    fn carry_out_one(
        &self,
        (label, sick): (&Label, Option<&Running>),
        trial: Trial,
        remedy: &PrintedRemedy<'_>,
        before: f64,
    ) -> Result<bool, String> {
        let says = |words: &str| {
            let is_said = remedy.words.contains(words);
            is_said.then_some(()).ok_or_else(|| format!("it does not say {words:?}"))
        };
        let command = || remedy.command.ok_or("it has no command");
        let sick = || sick.ok_or("a change of the program needs another form of it");
        let form = match trial {
            Not(why) => {
                eprintln!("{}: not carried out: {why}", self.name());
                return Ok(false);
            }
            PrivilegedCommand(needed) if !has_capability(needed) => {
                let why = format!("{}: {needed:?} is missing", self.name());
                skip_part(&Lack::Machine(&why));
                return Ok(false);
            }
            Trial::Command | PrivilegedCommand(_) => {
                run(command()?)?;
                return self.is_improved(label, sick()?, before);
            }
            Restarted(words) => {
                says(words)?;
                return self.is_smaller_after_restart(label, sick()?);
            }
            Variables => ProgramForm::Variables(command()?.split(' ').collect()),
            Started(words, variables) => {
                says(words)?;
                ProgramForm::Variables(variables.to_vec())
            }
            Remedied(words) => {
                says(words)?;
                ProgramForm::Remedied
            }
        };
        match start(label, form)? {
            Some(remedied) => self.is_improved(label, &remedied, before),
            None => Ok(false),
        }
    }

    fn is_improved(&self, label: &Label, running: &Running, before: f64) -> Result<bool, String> {
        let mut after = f64::NAN;
        let cpus = CpuWatch::begin();
        for _ in 0..TRIES {
            std::thread::sleep(SETTLE_TIME);
            after = self.figure_of(label, running)?;
            if figures::is_improved(before, after) {
                eprintln!("{}: {before:.0} -> {after:.0}", self.name());
                return Ok(true);
            }
        }
        let why = format!("the figure was {before:.0} and is {after:.0}");
        if cpus.are_busy() {
            skip_part(&Lack::Chance(&format!("{}: {why}", self.name())));
            return Ok(false);
        }
        Err(why)
    }

    fn is_smaller_after_restart(&self, label: &Label, old: &Running) -> Result<bool, String> {
        let Some(new) = start(label, ProgramForm::Sick)? else { return Ok(false) };
        let [new, old] = [&new, old].map(|it| figures::measure("rss", it, Duration::ZERO).unwrap());
        eprintln!("{}: RES {old:.0} -> {new:.0}", self.name());
        match new < old {
            true => Ok(true),
            false => Err(format!("RES was {old:.0} KiB and is {new:.0} KiB")),
        }
    }
}

/// Causes whose evidence is growth.
const GROWTHS: [&str; 6] = [
    "leak",
    "unbounded-cache",
    "mapping-growth",
    "foreign-heap",
    "shm-growth",
    "page-cache-charged",
];

/// Starts a program. Returns `None`, after recording a skip, if this machine cannot run it.
fn start(label: &Label, form: ProgramForm<'_>) -> Result<Option<Running>, String> {
    match label.start(form, false).map_err(|error| format!("{error:#}"))? {
        Ok(running) => Ok(Some(running)),
        Err(why) => {
            skip_part(&Lack::Machine(&format!("{}: {why}", label.name)));
            Ok(None)
        }
    }
}

/// Runs a command as a user does, with the pagewise of this test.
fn run(command: &str) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_BIN_EXE_pagewise")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(std::env::split_paths(&path));
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", std::env::join_paths(folders).unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(text)
}

fn has_capability(needed: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}
