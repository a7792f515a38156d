//! The lab: every experiment runs, and its results have the keys that programs rely on. After an
//! experiment, also a killed one, the system is as before.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, has_all_rights, is_root, skip, skip_part};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use fixture::{as_nobody, interruptible, readable_copies};

/// Sizes at which an experiment only shows that it runs. Experiments that are not listed are fast
/// at their default sizes.
const TINY: &[(&str, &[&str])] = &[
    ("first-touch", &["mib=2"]),
    ("aslr", &["starts=4"]),
    ("stack-vs-heap", &["ints=100000"]),
    ("thp-advise", &["blocks=2"]),
    ("cow-fork", &["mib=4"]),
    ("thp-compaction", &["mib=192", "wanted=24"]),
    ("thp-bloat", &["mib=16"]),
    ("mem-access", &["mib=2", "rounds=16"]),
    ("readahead", &["mib=2", "jumps=4"]),
    ("ksm", &["mib=2"]),
    ("latency-ladder", &["mib=2", "disk=1", "reads=5", "sequences=2"]),
    ("tlb-shootdown", &["calls=500"]),
    ("fault-avoidance", &["mib=2"]),
    ("page-source", &["mib=2", "live=2"]),
    ("allocators", &["nodes=10000", "rounds=1", "live=100"]),
    ("compete", &["set=16", "limit=12", "touches=300", "beside=50"]),
    ("oom", &["mib=64"]),
    ("ipc", &["rounds=10", "mib=1"]),
];

/// Number of bytes that an experiment may need in addition to its stated amount.
const ROOM: u64 = 64 << 20;

const MAX_RUN_TIME: Duration = Duration::from_secs(120);

/// Returns a lock, so that only one test at a time changes settings of the system.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `pagewise lab run` with files in a folder of its own.
struct LabFolder {
    disk: TempDir,
}

impl LabFolder {
    fn new() -> LabFolder {
        // A swap file must be on a disk, and /tmp may be a tmpfs.
        LabFolder { disk: tempfile::tempdir_in("/var/tmp").unwrap() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = interruptible();
        command.args(["lab", "run", "--quick", "--change-system", "--disk"]).arg(self.disk.path());
        command.args(words).stdin(Stdio::null());
        command
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.command(words).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts an experiment, and waits until it has made a change to the system that must be
    /// undone.
    fn in_the_midst(&self, words: &[&str], has_begun: impl Fn(&LabFolder) -> bool) -> Child {
        let mut command = self.command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it has begun", || has_begun(self));
        child
    }

    fn swaps(&self) -> bool {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        swaps.contains(self.disk.path().to_str().unwrap())
    }

    fn files(&self) -> usize {
        fs::read_dir(self.disk.path()).unwrap().count()
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + MAX_RUN_TIME;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the present values of the settings that experiments may change.
fn settings() -> BTreeMap<PathBuf, String> {
    let folders = [
        "/sys/kernel/mm/transparent_hugepage",
        "/sys/kernel/mm/transparent_hugepage/khugepaged",
        "/sys/kernel/mm/ksm",
    ];
    let vm = [
        "overcommit_memory",
        "overcommit_ratio",
        "overcommit_kbytes",
        "swappiness",
        "drop_caches",
        "compact_memory",
    ];
    let mut files: Vec<PathBuf> =
        vm.iter().map(|name| Path::new("/proc/sys/vm").join(name)).collect();
    for folder in folders {
        files
            .extend(fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    // Counters of work are not settings.
    let counts = [
        "pages_",
        "full_scans",
        "stable_node",
        "ksm_zero_pages",
        "general_profit",
        "use_zero_pages",
    ];
    let is_count = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        counts.iter().any(|count| name.starts_with(count)) && name != "pages_to_scan"
    };
    let files = files.into_iter().filter(|path| path.is_file() && !is_count(path));
    files.filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?))).collect()
}

/// Returns the cgroups of the lab that the process `lab` runs.
fn cgroups(lab: u32) -> Vec<PathBuf> {
    let bases = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let names = [format!("pagewise-lab-{lab}"), format!("pagewise-lab-{lab}.within")];
    let all =
        bases.iter().flat_map(|base| names.iter().map(move |name| Path::new(base).join(name)));
    all.filter(|path| path.exists()).collect()
}

/// Returns the names of experiments in `lab list` or `lab vm list`, each with the reason not to run
/// it.
fn listed(words: &[&str]) -> Vec<(String, Option<String>)> {
    let list = fixture::json(words);
    let rows = list["experiments"].as_array().unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    rows.iter().map(|row| (text(&row["name"]).unwrap(), text(&row["skipped"]))).collect()
}

/// Returns the names of the experiments that run without a virtual machine of their own.
fn names() -> Vec<String> {
    let names = listed(&["lab", "list", "--json"]).into_iter().map(|(name, _)| name);
    names.filter(|name| !name.starts_with("vm-")).collect()
}

fn tiny(name: &str) -> Vec<&'static str> {
    let row = TINY.iter().find(|row| row.0 == name);
    row.map_or(&[][..], |row| row.1).iter().flat_map(|set| ["--set", set]).collect()
}

fn strings(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value[key].is_string(), "{key} is no string in {value}");
    }
}

#[test]
fn every_experiment_runs_and_has_the_keys_that_programs_rely_on() {
    let _alone = alone();
    let before = settings();
    for name in names() {
        let lab = LabFolder::new();
        let words = [&[name.as_str(), "--runs", "1"][..], &tiny(&name)].concat();
        let found = lab.json(&words);
        strings(&found["environment"], &["kernel", "version"]);
        let experiment = &found["experiments"][0];
        strings(experiment, &["name", "verdict", "question", "rerun"]);
        assert_eq!(experiment["name"], name.as_str());
        if !experiment["skipped"].is_null() {
            assert_eq!(experiment["verdict"], "skipped");
            eprintln!("{name}: {}", experiment["skipped"]);
            continue;
        }
        for claim in experiment["claims"].as_array().unwrap() {
            strings(claim, &["text", "source", "expected", "measured", "verdict"]);
            assert!(claim["agrees"].is_boolean() || claim["agrees"].is_null(), "{claim}");
        }
        for arm in experiment["arms"].as_array().unwrap() {
            if arm["name"] == "mlockall" && !has_all_rights() {
                skip_part(&Lack::Root);
                continue;
            }
            assert_eq!(arm["failures"].as_array().unwrap().len(), 0, "{name}: {arm}");
            for metric in arm["metrics"].as_array().unwrap() {
                strings(metric, &["name"]);
                assert!(
                    !metric["values"].as_array().unwrap().is_empty()
                        || metric["median"]["absent"].is_string()
                );
            }
        }
        assert_eq!(lab.files(), 0, "{name} left files");
        assert!(!lab.swaps(), "{name} left swap");
    }
    assert_eq!(settings(), before);
}

/// Returns true if `SigIgn` of `/proc/self/status` has SIGHUP.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0
}

/// All experiments would take minutes in virtual machines, so the test boots one machine for one
/// condition.
#[test]
fn a_condition_runs_in_a_virtual_machine_and_its_values_come_back() {
    let experiments = listed(&["lab", "vm", "list", "--json"]);
    assert_eq!(experiments.len(), 9, "{experiments:?}");
    if let Some(why) = &experiments[0].1 {
        return match why {
            _ if why.contains("qemu") => skip(&Lack::Tool("qemu-system-x86_64")),
            _ => skip(&Lack::Machine(why)),
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let words = ["lab-once", "vm-cgroup", "memory.max", "--journal", path, "--folder", path];
    let output = fixture::pagewise(&words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&run["values"]["kills"], &run["values"]["alive"]), (&1.0.into(), &0.0.into()));
}

#[test]
fn kernels_of_a_comparison_are_built_by_one_command() {
    let experiments = listed(&["lab", "vm", "list", "--json"]);
    let (_, why) = experiments.iter().find(|(name, _)| name == "vm-patch").unwrap();
    let others = &experiments[0].1;
    // This user may have built the kernels already: the list then gives no reason.
    if let (None, Some(why)) = (others, why) {
        assert!(why.contains("`pagewise lab vm compare`"), "{why}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    let folder = tempfile::tempdir().unwrap();
    command.args(["lab", "vm", "build-kernel", "--patch", "/nonexistent"]);
    command.env("XDG_CACHE_HOME", folder.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("cannot read /nonexistent"), "{stderr}");
}

#[test]
fn a_missing_program_is_named_with_the_command_that_installs_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["lab", "vm", "run", "vm-oom", "--json"]).env("PATH", "/nonexistent");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let experiment = &found["experiments"][0];
    assert_eq!(experiment["verdict"], "skipped");
    let why = experiment["skipped"].as_str().unwrap();
    assert!(why.contains("is not installed; run `"), "{why}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["lab", "vm", "list"]).env("PATH", "/nonexistent");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    // All experiments are skipped for the same reason, which is printed once.
    assert_eq!(listed.matches("is not installed").count(), 1, "{listed}");
}

#[test]
fn a_requested_end_leaves_nothing_behind_and_keeps_the_results() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // Under nohup, this test and the programs that it starts ignore SIGHUP.
        if signal == Signal::HUP && ignores_hangup() {
            skip_part(&Lack::Machine("SIGHUP is ignored, as under nohup"));
            continue;
        }
        let (lab, before) = (LabFolder::new(), settings());
        let mut running = lab
            .in_the_midst(&["compete", "--set", "set=64", "--set", "limit=32"], LabFolder::swaps);
        kill_process(Pid::from_child(&running), signal).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(128 + signal.as_raw()));
        assert_eq!((lab.swaps(), lab.files(), cgroups(running.id())), (false, 0, vec![]));
        assert_eq!(settings(), before);
    }
}

#[test]
fn the_next_lab_restores_what_a_killed_one_left() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (lab, before) = (LabFolder::new(), settings());
    let mut running =
        lab.in_the_midst(&["compete", "--set", "set=64", "--set", "limit=32"], LabFolder::swaps);
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(lab.files() > 0, "a killed lab cannot have tidied up");
    LabFolder::new().json(&["stack-vs-heap", "--runs", "1", "--set", "ints=1000"]);
    assert_eq!((lab.swaps(), lab.files(), cgroups(running.id())), (false, 0, vec![]));
    assert_eq!(settings(), before);
}

#[test]
fn a_setting_is_put_back_by_the_next_lab_too() {
    const MODE: &str = "/proc/sys/vm/overcommit_memory";
    if !is_root() {
        return;
    }
    let _alone = alone();
    let mode = || fs::read_to_string(MODE).unwrap();
    let (lab, before) = (LabFolder::new(), settings());
    // The experiment changes the mode in each run. With many runs, the mode differs from `before`
    // most of the time.
    let has_begun = |_: &LabFolder| mode() != before[Path::new(MODE)];
    let mut running = lab.in_the_midst(&["overcommit", "--runs", "1000"], has_begun);
    running.kill().unwrap();
    running.wait().unwrap();
    LabFolder::new().json(&["stack-vs-heap", "--runs", "1", "--set", "ints=1000"]);
    assert_eq!(settings(), before);
}

#[test]
fn memory_is_bounded_by_what_is_stated() {
    const MIB: u64 = 100;
    if !is_root() {
        return;
    }
    let _alone = alone();
    let lab = LabFolder::new();
    let words = ["thp-bloat", "--set", &format!("mib={MIB}"), "--runs", "100"];
    let mut running = lab.in_the_midst(&words, |_| true);
    let limit = || {
        let cgroup = cgroups(running.id()).into_iter().next()?;
        let read = |name: &str| fs::read_to_string(cgroup.join(name));
        let text = read("memory.max").or_else(|_| read("memory.limit_in_bytes")).ok()?;
        text.trim().parse().ok().filter(|limit: &u64| *limit < 1 << 40)
    };
    let begin = Instant::now();
    while limit().is_none() && begin.elapsed() < MAX_RUN_TIME {
        thread::sleep(Duration::from_millis(5));
    }
    let found = limit();
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    running.wait().unwrap();
    assert_eq!(found, Some((MIB << 20) + ROOM));
}

#[test]
fn a_refusal_names_the_needed_rights() {
    let _alone = alone();
    let words =
        ["lab", "run", "compete", "overcommit", "oom", "--quick", "--change-system", "--json"];
    let Some(output) = run_unprivileged(&words) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for experiment in found["experiments"].as_array().unwrap() {
        assert_eq!(experiment["verdict"], "skipped");
        assert!(experiment["skipped"].as_str().unwrap().contains("root"), "{experiment}");
    }
}

/// Returns the output of a command run by an unprivileged user; `None`, after printing a message,
/// if that is not possible.
fn run_unprivileged(words: &[&str]) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        return Some(fixture::pagewise(words));
    }
    let folder = readable_copies(&[]);
    match as_nobody().arg(folder.path().join("pagewise")).args(words).output() {
        Ok(output) => Some(output),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "setpriv: {error}");
            skip(&Lack::Tool("setpriv"));
            None
        }
    }
}

#[test]
fn settings_are_not_changed_unasked() {
    let found = fixture::json(&["lab", "run", "overcommit", "--quick", "--json"]);
    let skipped = found["experiments"][0]["skipped"].as_str().unwrap();
    assert!(skipped.contains("--change-system") || skipped.contains("root"), "{skipped}");
}

#[test]
fn saved_results_are_shown_and_compared_like_new_ones() {
    let (lab, folder) = (LabFolder::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [saved, html, markdown] = ["saved.json", "report.html", "report.md"].map(path);
    let words = [
        "stack-vs-heap",
        "--set",
        "ints=100000",
        "--save",
        &saved,
        "--html",
        &html,
        "--markdown",
        &markdown,
    ];
    let run = lab.json(&words);
    assert_eq!(fixture::json(&["lab", "report", &saved, "--json"]), run);
    let compared = fixture::json(&["lab", "compare", &saved, &saved, "--json"]);
    for row in compared["compared"].as_array().unwrap() {
        assert_eq!(row["ratio"], 1, "{row}");
    }
    let [html, markdown] = [html, markdown].map(|path| fs::read_to_string(path).unwrap());
    for claim in run["experiments"][0]["claims"].as_array().unwrap() {
        let text = claim["text"].as_str().unwrap();
        assert!(html.contains(text) && markdown.contains(text), "{text}");
    }
    assert!(!html.contains("http://") && !html.contains("https://"), "the page needs the network");
}

#[test]
fn a_wrong_argument_is_reported_before_anything_runs() {
    let error = |words: &[&str]| {
        let output = fixture::pagewise(words);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["lab", "run", "nonsense"]).contains("unknown experiment nonsense"));
    let sizes = error(&["lab", "run", "thp-bloat", "--set", "nonsense=1"]);
    assert!(sizes.contains("thp-bloat has no parameter nonsense"));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "{}").unwrap();
    let path = file.path().to_str().unwrap();
    assert!(error(&["lab", "report", path]).contains("is not a lab notebook"));
}
