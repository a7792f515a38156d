//! `pagewise record` and `pagewise replay`: recordings of live processes.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::cgroup::{Actor, TestCgroup};
use crate::fixture::{Fixture, ProcessGroup, disk, json, number, pagewise};

/// A running recorder, which is killed when this value is dropped.
struct Recorder {
    command: Command,
    child: Child,
}

impl Recorder {
    fn start(folder: &Path, more: &[&str]) -> Recorder {
        Recorder::with_triggers(folder, &[&["--no-triggers"], more].concat())
    }

    fn with_triggers(folder: &Path, more: &[&str]) -> Recorder {
        Recorder::with_messages(folder, more, Stdio::inherit())
    }

    fn with_messages(folder: &Path, more: &[&str], messages: Stdio) -> Recorder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        command.args(["record", "--every", "200ms", "--dir"]).arg(folder);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        let child = command.spawn().unwrap();
        Recorder { command, child }
    }

    /// Starts the recorder again if a signal from outside has ended it. The new recorder continues
    /// the recording. An error or a crash of the recorder is a failure.
    fn keep_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            // The recorder ends with success at SIGINT, SIGTERM and SIGHUP.
            let is_ended_by_signal = status.success() || status.signal() == Some(9);
            assert!(is_ended_by_signal, "the recorder ended: {status}");
            eprintln!("the recorder ended ({status}) and is started again");
            self.child = self.command.spawn().unwrap();
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in(disk()).unwrap()
}

fn dir(folder: &TempDir) -> &str {
    folder.path().to_str().unwrap()
}

/// Returns the number of sweeps of a recording.
fn sweeps(folder: &TempDir) -> u64 {
    number(&json(&["record", "status", "--dir", dir(folder), "--json"]), "recording.sweeps")
}

/// Returns the kernel stack and system call of each thread of all recorders.
fn waits_of_recorders() -> String {
    let mut text = String::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if !words.split(|&byte| byte == 0).any(|word| word == b"record") {
            continue;
        }
        for task in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            let [stat, call, stack] = ["stat", "syscall", "stack"]
                .map(|file| fs::read_to_string(task.path().join(file)).unwrap_or_default());
            text.push_str(&format!("\n{stat}{call}{stack}"));
        }
    }
    text
}

/// Waits until a recording has more sweeps, which takes long on a busy machine.
fn wait_for(folder: &TempDir, count: u64) {
    let began = Instant::now();
    while sweeps(folder) < count {
        let is_late = began.elapsed() >= Duration::from_secs(300);
        assert!(!is_late, "fewer than {count} sweeps: {}", waits_of_recorders());
        sleep(Duration::from_millis(100));
    }
}

fn process_of(report: &Value, pid: u32) -> Option<&Value> {
    report["processes"].as_array().unwrap().iter().find(|it| it["pid"] == pid)
}

#[test]
fn a_recorded_process_has_the_kernels_numbers() {
    let target = Fixture::start("big", &["8"]);
    let folder = folder();
    let recorder = Recorder::start(folder.path(), &[]);
    // On a busy machine, the budget of the first sweeps does not suffice for every process.
    let mut count = 1;
    let report = loop {
        count += 1;
        assert!(count < 100, "its PSS is never collected");
        wait_for(&folder, count);
        let report = json(&["replay", "--dir", dir(&folder), "--json"]);
        if process_of(&report, target.pid).unwrap()["pss"].is_u64() {
            break report;
        }
    };
    let process = process_of(&report, target.pid).unwrap();
    let rollup = target.rollup();
    // The target is stopped. Only its share of pages of the C library changes, with the number of
    // processes that map this library.
    let shared = rollup["Rss"] - rollup["Private_Clean"] - rollup["Private_Dirty"];
    let close = |key: &str, kernels: u64, tolerance: u64| {
        let recorded = number(process, key);
        assert!(recorded.abs_diff(kernels) <= tolerance, "{key}: {recorded} and {kernels}");
    };
    close("rss", rollup["Rss"], 128 << 10);
    close("pss_anonymous", rollup["Pss_Anon"], 4 << 10);
    close("pss", rollup["Pss"], shared);
    close("uss", rollup["Private_Clean"] + rollup["Private_Dirty"], shared);
    assert_eq!(process["name"], "big");
    assert_eq!(process["command"], "big 8");
    // The recorder records itself too.
    assert!(process_of(&report, recorder.pid()).is_some());
    let status = json(&["record", "status", "--dir", dir(&folder), "--json"]);
    assert_eq!(status["recording"]["recording"], true);
    drop(recorder);
    let status = json(&["record", "status", "--dir", dir(&folder), "--json"]);
    assert_eq!(status["recording"]["recording"], false);
}

#[test]
fn a_recorder_that_is_killed_loses_no_sweep_and_the_gap_is_marked() {
    let folder = folder();
    let first = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 3);
    drop(first);
    let before = sweeps(&folder);
    assert!(before >= 3);
    let mut second = Recorder::start(folder.path(), &[]);
    wait_for(&folder, before + 1);
    let report = json(&["record", "report", "--dir", dir(&folder), "--from", "10m", "--json"]);
    assert!(number(&report, "period.sweeps") > before);
    // On a busy machine, delays of the recorder cause further gaps.
    let events = report["events"].as_array().unwrap();
    let is_gap = |it: &Value| {
        it["kind"] == "gap" && it["event"].as_str().unwrap().contains("recorder not running")
    };
    assert!(events.iter().any(is_gap), "{events:?}");
    // A second recorder would write between the first one's rows.
    let output = pagewise(&["record", "--dir", dir(&folder), "--for", "1s"]);
    assert_eq!(second.child.try_wait().unwrap(), None, "it goes on");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another recorder"));
}

#[test]
fn many_short_processes_between_two_sweeps_are_counted() {
    let folder = folder();
    let recorder = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 2);
    // Each subshell of the script is a new process.
    let script = "i=0; while [ $i -lt 10000 ]; do (:); i=$((i+1)); done";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    let count = sweeps(&folder);
    wait_for(&folder, count + 2);
    drop(recorder);
    let report = json(&["record", "report", "--dir", dir(&folder), "--from", "10m", "--json"]);
    let short = number(&report, "period.short_lived");
    let seen = number(&report, "period.processes");
    assert!(short + seen >= 10_000, "{short} and {seen}");
}

#[test]
fn the_growth_of_a_process_is_in_the_report_and_in_the_difference() {
    let folder = folder();
    // The program doubles a string until it has 32 MiB, after its input has ended. If its last
    // command were a program, bash would become this program.
    let script =
        "s=$(printf '%1048576s'); read -r line; for i in 1 2 3 4 5; do s=$s$s; done; kill -STOP $$";
    let mut child =
        Command::new("bash").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    let mut recorder = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 2);
    drop(child.stdin.take());
    let began = Instant::now();
    let grown = loop {
        recorder.keep_running();
        // Other programs may grow by more, so all rows are read.
        let report = ["record", "report", "--dir", dir(&folder), "--from", "10m", "--json"];
        let report = json(&[&report[..], &["--rows", "all"]].concat());
        let rows = report["grew"].as_array().unwrap().clone();
        let own = rows.into_iter().find(|it| it["pid"] == child.id());
        if let Some(own) = own.as_ref().filter(|it| number(it, "growth") > 24 << 20) {
            break own.clone();
        }
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "no growth: {own:?}; {} sweeps; {} {}",
            sweeps(&folder),
            fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default(),
            waits_of_recorders()
        );
        sleep(Duration::from_millis(300));
    };
    drop(recorder);
    assert_eq!(grown["name"], "bash");
    let diff = json(&["record", "diff", "--dir", dir(&folder), "now", "now", "--json"]);
    assert_eq!(diff["processes"].as_array().unwrap().len(), 0);
    let page = folder.path().join("page.html");
    let written = pagewise(&[
        "record",
        "report",
        "--dir",
        dir(&folder),
        "--from",
        "10m",
        "--html",
        page.to_str().unwrap(),
    ]);
    assert!(written.status.success());
    assert!(fs::read_to_string(page).unwrap().contains("Processes that grew"));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the report of a recording, with all rows.
fn report_of(folder: &TempDir) -> Value {
    let place = ["record", "report", "--dir", dir(folder)];
    json(&[&place[..], &["--from", "10m", "--rows", "all", "--json"]].concat())
}

/// Waits for a trigger whose event has a text. Returns the report.
fn triggered(recorder: &mut Recorder, folder: &TempDir, text: &str) -> Value {
    let began = Instant::now();
    loop {
        recorder.keep_running();
        let report = report_of(folder);
        let events = report["events"].as_array().unwrap();
        let is_it = |it: &Value| {
            it["kind"] == "triggered" && it["event"].as_str().is_some_and(|it| it.contains(text))
        };
        if events.iter().any(is_it) {
            return report;
        }
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "no trigger {text}: {events:?} {}",
            waits_of_recorders()
        );
        sleep(Duration::from_millis(300));
    }
}

#[test]
fn a_cgroup_near_its_limit_has_a_snapshot_of_its_largest_process() {
    if !is_root() {
        return;
    }
    let Some(cgroup) = TestCgroup::make("near") else {
        return skip(&Lack::Machine("no memory cgroup can be made"));
    };
    let mut actor = Actor::start(&cgroup.folder, "anon=40 wait push=2 wait");
    if cgroup.limit(3 << 20).is_none() {
        return skip(&Lack::Machine("no memory cgroup can be limited"));
    }
    let folder = folder();
    let mut recorder =
        Recorder::with_triggers(folder.path(), &["--pressure", "100", "--growth", "64G"]);
    wait_for(&folder, 2);
    let report = report_of(&folder);
    assert!(!report["events"].to_string().contains(&cgroup.path()), "93 % of the limit");
    actor.push();
    let report = triggered(&mut recorder, &folder, &cgroup.path());
    let file = format!("near-limit-{}-snapshot.json", actor.child.id());
    let saved = || {
        let report = report_of(&folder);
        let saved = report["saved"].as_array()?.clone();
        saved
            .iter()
            .find_map(|it| it["file"].as_str().filter(|it| it.ends_with(&file)).map(str::to_owned))
    };
    let began = Instant::now();
    let saved = loop {
        recorder.keep_running();
        if let Some(saved) = saved() {
            break saved;
        }
        assert!(began.elapsed() < Duration::from_secs(300), "no snapshot: {report}");
        sleep(Duration::from_millis(300));
    };
    drop(recorder);
    let snapshot = json(&["explain", "--from", &saved, "--json"]);
    assert_eq!(snapshot["process"]["pid"], actor.child.id());
}

#[test]
fn an_oom_kill_is_recorded_with_the_report_of_the_kernel() {
    if !is_root() {
        return;
    }
    let Some(cgroup) = TestCgroup::make("killed") else {
        return skip(&Lack::Machine("no memory cgroup can be made"));
    };
    if fs::File::open("/dev/kmsg").is_err() {
        return skip(&Lack::Machine("the kernel log may not be read"));
    }
    let mut actor = Actor::start(&cgroup.folder, "anon=10 wait push=20 wait");
    if cgroup.limit(8 << 20).is_none() {
        return skip(&Lack::Machine("no memory cgroup can be limited"));
    }
    let folder = folder();
    let mut recorder = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 2);
    let _ = writeln!(actor.stdin);
    let victim = format!("The kernel killed oomed ({})", actor.child.id());
    let began = Instant::now();
    loop {
        recorder.keep_running();
        let report = report_of(&folder);
        let events = report["events"].as_array().unwrap();
        let is_it = |it: &Value| {
            it["kind"] == "oom-report"
                && it["event"].as_str().is_some_and(|it| it.contains(&victim))
        };
        if events.iter().any(is_it) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(300), "no report of {victim}: {events:?}");
        sleep(Duration::from_millis(300));
    }
    drop(recorder);
    let text = pagewise(&["record", "report", "--dir", dir(&folder), "--from", "10m"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("OOM kill before ") && text.contains(&cgroup.path()), "{text}");
}

#[test]
fn tasks_that_wait_for_memory_are_a_trigger() {
    if !is_root() {
        return;
    }
    // Returns the share of the last ten seconds in which a task waited for memory, in hundredths of
    // a percent.
    let waited = || -> Option<u64> {
        let text = fs::read_to_string("/proc/pressure/memory").ok()?;
        let share = text.strip_prefix("some avg10=")?.split(' ').next()?;
        share.replace('.', "").parse().ok()
    };
    match waited() {
        None => return skip(&Lack::Machine("the kernel does not measure pressure (psi=0)")),
        // The trigger fires when the pressure rises above its value.
        Some(share) if share >= 20 => {
            return skip(&Lack::Chance("other programs wait for memory already"));
        }
        Some(_) => {}
    }
    let Some(cgroup) = TestCgroup::make("pressed") else {
        return skip(&Lack::Machine("no memory cgroup can be made"));
    };
    if cgroup.limit(8 << 20).is_none() {
        return skip(&Lack::Machine("no memory cgroup can be limited"));
    }
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 10 << 20]).unwrap();
    let mut recorder =
        Recorder::with_triggers(folder.path(), &["--pressure", "0.2", "--growth", "64G"]);
    wait_for(&folder, 2);
    // Each process reads a file that is a little larger than the limit: the pages of the file are
    // reclaimed and needed again at once.
    let script = format!(
        "echo $$ >{}/cgroup.procs && while :; do cat {} >/dev/null; done",
        cgroup.folder.display(),
        file.display()
    );
    let reader = |_| ProcessGroup::start(Command::new("sh").args(["-c", &script]));
    let readers: Vec<ProcessGroup> = (0..3).map(reader).collect();
    let began = Instant::now();
    while waited().is_some_and(|share| share < 30) {
        if began.elapsed() > Duration::from_secs(15) {
            return skip(&Lack::Chance("the disk is too fast to wait for"));
        }
        sleep(Duration::from_millis(200));
    }
    triggered(&mut recorder, &folder, "pressure");
    drop((readers, recorder));
}

#[test]
fn a_full_disk_ends_no_recorder_and_leaves_a_marked_gap() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs", dir(&folder)])
        .output();
    match mounted {
        Ok(output) if output.status.success() => {}
        Ok(_) => return skip(&Lack::Machine("root may not mount a tmpfs")),
        Err(_) => return skip(&Lack::Tool("mount")),
    }
    let result = std::panic::catch_unwind(|| full_disk(&folder));
    let unmounted = Command::new("umount").args(["-l", dir(&folder)]).status().unwrap();
    assert!(unmounted.success());
    result.unwrap();
}

fn full_disk(folder: &TempDir) {
    let messages = tempfile::NamedTempFile::new().unwrap();
    let stderr = Stdio::from(messages.reopen().unwrap());
    let mut recorder = Recorder::with_messages(folder.path(), &["--no-triggers"], stderr);
    wait_for(folder, 2);
    let filler = folder.path().join("filler");
    // The write fails when the disk is full.
    let _ = fs::write(&filler, vec![1_u8; 4 << 20]);
    let said = || fs::read_to_string(messages.path()).unwrap();
    let begin = Instant::now();
    while !said().contains("cannot write the sweep") {
        assert!(begin.elapsed() < Duration::from_secs(180), "{}", said());
        assert!(recorder.child.try_wait().unwrap().is_none(), "the recorder has ended");
        sleep(Duration::from_millis(100));
    }
    fs::remove_file(&filler).unwrap();
    let before = sweeps(folder);
    wait_for(folder, before + 2);
    let report = json(&["record", "report", "--dir", dir(folder), "--from", "10m", "--json"]);
    let events = report["events"].as_array().unwrap();
    let is_gap =
        |it: &&Value| it["kind"] == "gap" && it["event"].as_str().unwrap().contains("not writable");
    assert!(events.iter().any(|it| is_gap(&it)), "{events:?}");
}

#[test]
fn the_questions_of_the_documentation_run_with_any_sqlite() {
    let folder = folder();
    let recorder = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 3);
    drop(recorder);
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/record.md");
    let text = fs::read_to_string(document).unwrap();
    let blocks: Vec<&str> = text.split("```sql").skip(1).collect();
    assert_eq!(blocks.len(), 10);
    let entries = fs::read_dir(folder.path()).unwrap().flatten().map(|it| it.path());
    let file = entries.into_iter().find(|it| it.extension().is_some_and(|it| it == "db")).unwrap();
    for block in blocks {
        let query = block.split("```").next().unwrap();
        let run = Command::new("sqlite3").arg("-readonly").arg(&file).arg(query).output();
        let Ok(run) = run else { return skip(&Lack::Tool("sqlite3")) };
        assert!(run.status.success(), "{query}\n{}", String::from_utf8_lossy(&run.stderr));
    }
}

#[test]
fn the_unit_file_is_one_that_systemd_accepts() {
    let printed = pagewise(&["record", "install", "--print"]);
    assert!(printed.status.success());
    let folder = folder();
    let installed = pagewise(&["record", "install", "--no-start", "--unit-dir", dir(&folder)]);
    assert!(installed.status.success());
    let unit = folder.path().join("pagewise-record.service");
    assert_eq!(fs::read(&unit).unwrap(), printed.stdout);
    let Ok(checked) = Command::new("systemd-analyze").arg("verify").arg(&unit).output() else {
        return skip(&Lack::Tool("systemd-analyze"));
    };
    // systemd-analyze also reports units that this machine lacks.
    let said = String::from_utf8_lossy(&checked.stderr);
    let ours: Vec<&str> = said.lines().filter(|it| it.contains("pagewise-record")).collect();
    assert!(ours.iter().all(|it| it.contains("Man page") || it.contains("man ")), "{ours:?}");
}

#[test]
fn times_and_folders_without_a_recording_are_clear_errors() {
    let folder = folder();
    let fails = |args: &[&str], code: i32, says: &str| {
        let output = pagewise(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    };
    fails(&["replay", "--dir", dir(&folder)], 1, "no recording");
    fails(&["replay", "--dir", dir(&folder), "--at", "yesterday"], 2, "is not a time");
    fails(&["record", "report", "--dir", dir(&folder), "--from", "1h", "--to", "2h"], 2, "before");
    let recorder = Recorder::start(folder.path(), &[]);
    wait_for(&folder, 1);
    drop(recorder);
    fails(&["replay", "--dir", dir(&folder), "--at", "2020-01-01"], 1, "begins after");
    let empty =
        ["record", "report", "--dir", dir(&folder), "--from", "2020-01-01", "--to", "2020-01-02"];
    fails(&empty, 1, "no sweeps");
}
