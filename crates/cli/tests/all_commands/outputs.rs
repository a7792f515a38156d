//! Outputs: full disks, signals, planted links, full and closed standard streams.

use crate::fixture;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip, skip_part};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use fixture::{ProcessGroup, disk, pagewise, program};

const GOOD: &str = "what was there before\n";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn run_in(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// A recording of a heap in a folder.
fn recording(folder: &Path) -> PathBuf {
    let output = run_in(folder, &["heap", "run", "-o", "first.pwh", "--", "true"]);
    assert!(output.status.success(), "{}", said(&output));
    folder.join("first.pwh")
}

/// A file system that is full but for a file called `out`.
struct FullDisk(TempDir);

impl FullDisk {
    fn new() -> Option<FullDisk> {
        let folder = tempfile::tempdir_in(disk()).unwrap();
        if mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=64k")).is_err() {
            skip(&Lack::Machine("the user may not mount a tmpfs"));
            return None;
        }
        fs::write(folder.path().join("out"), GOOD).unwrap();
        let filled = fs::write(folder.path().join("filler"), vec![1; 128 << 10]);
        assert_eq!(filled.unwrap_err().raw_os_error(), Some(28));
        Some(FullDisk(folder))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_what_was_there_and_is_named() {
    if !is_root() {
        return;
    }
    let Some(full) = FullDisk::new() else { return };
    let aside = tempfile::tempdir_in(disk()).unwrap();
    let heap = recording(aside.path());
    let heap = heap.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["explain", "self", "--save", "out"],
        &["explain", "self", "--html", "out"],
        &["explain", "self", "--json", "--output", "out"],
        &["maps", "self", "--long", "--output", "out"],
        &["stat", "--csv", "--output", "out", "--", "true"],
        &["faults", "--save", "out", "--", "true"],
        &["faults", "--pprof", "out", "--", "true"],
        &["faults", "--flamegraph", "out", "--", "true"],
        &["lab", "run", "first-touch", "--quick", "--runs", "1", "--save", "out"],
        &["heap", "report", heap, "--html", "out"],
        &["heap", "export", heap, "--pprof", "out"],
        &["heap", "export", heap, "--heaptrack", "out"],
    ];
    for words in commands {
        let output = run_in(full.0.path(), words);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("cannot write out"), "{words:?}: {said}");
        assert!(said.contains("No space left on device"), "{words:?}: {said}");
        let left = fs::read_to_string(full.0.path().join("out")).unwrap();
        assert_eq!(left, GOOD, "{words:?}");
        assert_eq!(names(full.0.path()), ["filler", "out"], "{words:?}");
    }
}

#[test]
fn a_recording_that_a_full_disk_ends_leaves_the_one_before() {
    if !is_root() {
        return;
    }
    let Some(full) = FullDisk::new() else { return };
    let output = run_in(full.0.path(), &["heap", "run", "-o", "out", "--", "true"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write out") && said.contains("No space left"), "{said}");
    assert_eq!(fs::read_to_string(full.0.path().join("out")).unwrap(), GOOD);
    assert_eq!(names(full.0.path()), ["filler", "out"], "nothing was recorded yet");
}

#[test]
fn a_signal_in_the_middle_of_writing_leaves_what_was_there_and_no_other_file() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let path = folder.path().join("out");
    for option in ["--html", "--save"] {
        fs::write(&path, GOOD).unwrap();
        // The kernel sends SIGXFSZ when a file becomes longer than a block.
        let script = format!("ulimit -c 0; ulimit -f 1; exec \"$0\" explain self {option} out");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_pagewise")])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(25), "{output:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), GOOD, "{option}");
        assert_eq!(names(folder.path()), ["out"], "{option}");
    }
}

#[test]
fn recordings_are_their_owners_and_reports_are_as_the_umask_says() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let heap = recording(folder.path());
    assert_eq!(mode(&heap), 0o600);
    let file = |name: &str| folder.path().join(name);
    for words in [
        &["explain", "self", "--save", "snapshot", "--html", "page"][..],
        &["faults", "--save", "faults", "--pprof", "profile", "--output", "report", "--", "true"],
    ] {
        let output = run_in(folder.path(), words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    }
    for name in ["snapshot", "faults"] {
        assert_eq!(mode(&file(name)), 0o600, "{name}");
    }
    // A file with the permissions that the umask gives.
    fs::write(file("usual"), "").unwrap();
    for name in ["page", "profile", "report"] {
        assert_eq!(mode(&file(name)), mode(&file("usual")), "{name}");
    }
}

#[test]
fn special_files_and_links_are_written_through() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::create_dir(file("elsewhere")).unwrap();
    symlink("elsewhere/page", file("link")).unwrap();
    let output = run_in(folder.path(), &["explain", "self", "--html", "link"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::symlink_metadata(file("link")).unwrap().is_symlink());
    assert!(fs::read_to_string(file("elsewhere/page")).unwrap().starts_with("<!"));
    // Output to a pipe, and to a file to which standard output is redirected.
    let output = run_in(folder.path(), &["explain", "self", "--html", "/dev/stdout"]);
    assert!(output.status.success() && output.stdout.starts_with(b"<!"), "{}", said(&output));
    let redirected = Command::new(env!("CARGO_BIN_EXE_pagewise"))
        .args(["explain", "self", "--save", "/dev/stdout", "--html", "/dev/null"])
        .stdout(File::create(file("redirected")).unwrap())
        .status();
    assert!(redirected.unwrap().success());
    assert!(fs::read(file("redirected")).unwrap().starts_with(b"{"));
    // Output to a FIFO.
    let fifo = file("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    let reader = Command::new("cat").arg(&fifo).stdout(Stdio::piped()).spawn().unwrap();
    let output = run_in(folder.path(), &["explain", "self", "--save", "fifo"]);
    assert!(output.status.success(), "{}", said(&output));
    let read = reader.wait_with_output().unwrap().stdout;
    assert!(read.starts_with(b"{") && read.ends_with(b"}\n"));
    for option in ["--save", "--html"] {
        let output = run_in(folder.path(), &["explain", "self", option, "/dev/full"]);
        assert_eq!(output.status.code(), Some(1), "{option}");
        assert!(said(&output).contains("cannot write /dev/full"), "{}", said(&output));
    }
}

#[test]
fn a_folder_is_not_replaced() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    let output = run_in(folder.path(), &["explain", "self", "--html", "out"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot write out: Is a directory"), "{}", said(&output));
}

#[test]
fn a_recording_is_complete_before_it_replaces_another() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("r.pwh"), GOOD).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["heap", "run", "-o", "r.pwh", "--", "sleep", "60"]).current_dir(folder.path());
    // The command is killed too: otherwise it would run on and keep its output open.
    let running = ProcessGroup::start(&mut command);
    let deadline = Instant::now() + Duration::from_secs(180);
    let has_grown = || fs::metadata(file("r.pwh.part")).is_ok_and(|it| it.len() > 200);
    while !has_grown() {
        assert!(Instant::now() < deadline, "{:?}", names(folder.path()));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(running);
    assert_eq!(fs::read_to_string(file("r.pwh")).unwrap(), GOOD);
    // The recording is readable up to the kill.
    let report = run_in(folder.path(), &["heap", "report", "r.pwh.part"]);
    assert!(report.status.success(), "{}", said(&report));
    let output = run_in(folder.path(), &["heap", "run", "-o", "r.pwh", "--", "true"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_ne!(fs::read(file("r.pwh")).unwrap(), GOOD.as_bytes());
    assert_eq!(names(folder.path()), ["r.pwh", "r.pwh.part"]);
}

#[test]
fn followed_children_are_not_recorded_through_planted_links() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, GOOD).unwrap();
    let last: u32 = match fs::read_to_string("/proc/sys/kernel/ns_last_pid") {
        Ok(text) => text.trim().parse().unwrap(),
        Err(_) => return skip(&Lack::KernelFile("/proc/sys/kernel/ns_last_pid")),
    };
    let planted = last..last + 3000;
    for pid in planted.clone() {
        symlink(&victim, folder.path().join(format!("r.pwh.{pid}"))).unwrap();
    }
    // The shell runs each program in a process of its own.
    let script = "/bin/true; /bin/true; /bin/true; :";
    let output = run_in(
        folder.path(),
        &["heap", "run", "--follow", "-o", "r.pwh", "--", "sh", "-c", script],
    );
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read_to_string(&victim).unwrap(), GOOD);
    let made: Vec<PathBuf> = names(folder.path())
        .into_iter()
        .filter(|name| name.starts_with("r.pwh."))
        .map(|name| folder.path().join(name))
        .filter(|path| !fs::symlink_metadata(path).unwrap().is_symlink())
        .collect();
    assert!(made.len() >= 3, "{made:?}");
    for path in &made {
        assert_eq!(mode(path), 0o600);
        let report = run_in(folder.path(), &["heap", "report", path.to_str().unwrap()]);
        assert!(report.status.success(), "{}", said(&report));
    }
    if made.iter().all(|path| !path.to_str().unwrap().ends_with(".2")) {
        skip_part(&Lack::Chance("other processes took the PIDs for which links were planted"));
    }
}

/// Each command, short; where it writes files it writes them into the folder that it runs in.
const COMMANDS: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["heap", "--help"],
    &["no-such-command"],
    &["explain", "self"],
    &["explain", "4194304"],
    &["explain", "--", "true"],
    &["explain", "self", "--json"],
    &["explain", "self", "--save", "saved"],
    &["maps", "self"],
    &["ps"],
    &["diff", "self", "--every", "10ms", "--for", "30ms"],
    &["diff", "no", "such"],
    &["pages", "self"],
    &["pages", "self", "--touched", "10ms"],
    &["pools", "self"],
    &["thp", "self"],
    &["trim", "self"],
    &["run", "--thp=never", "--", "true"],
    &["stat", "--", "true"],
    &["stat", "-n", "3", "--", "true"],
    &["stat", "--csv", "--", "true"],
    &["events"],
    &["fragmentation"],
    &["doctor"],
    &["system", "--for", "0s"],
    &["system", "--cgroup"],
    &["oom", "--for", "0s"],
    &["oom", "--log", "no-such-log"],
    &["syscalls", "--", "true"],
    &["shootdowns", "--", "true"],
    &["faults", "--", "true"],
    &["heap", "run", "-o", "new.pwh", "--", "true"],
    &["heap", "run", "-o", "/dev/full", "--", "true"],
    &["heap", "report", "first.pwh"],
    &["heap", "diff", "first.pwh", "first.pwh"],
    &["heap", "export", "first.pwh", "--massif"],
    &["heap", "export", "first.pwh", "--heaptrack"],
    &["heap", "attach", "4194304"],
    &["heap", "scan", "4194304"],
    &["heap", "scan", "--", "true"],
    &["heap", "scan", "--save", "/dev/full", "--", "true"],
    &["guard", "--", "true"],
    &["guard", "--rate", "1", "--", "./misuse", "double_free"],
    &["watch", "--symbol", "stop", "--", "true"],
    &["sim", "cache", "--workload", "no-such"],
    &["lab", "list"],
    &["lab", "describe", "first-touch"],
    &["lab", "run", "first-touch", "--quick", "--runs", "1"],
    &["define", "Pss"],
    &["define", "no such thing"],
    &["completions", "bash"],
    &["man"],
    &["man", "--dir", "pages"],
];

/// Folder for [`COMMANDS`].
fn prepared() -> TempDir {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    recording(folder.path());
    fixture::copy_program(&program("misuse"), &folder.path().join("misuse"));
    folder
}

fn redirected(folder: &Path, words: &[&str], redirections: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirections}")]);
    command.arg(env!("CARGO_BIN_EXE_pagewise")).args(words);
    command.current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// Asserts that a command did not panic, and that no signal ended it.
fn ended_in_order(words: &[&str], redirections: &str, output: &Output) {
    let context = format!("{words:?} {redirections}: {}", said(output));
    assert_eq!(output.status.signal(), None, "{context}");
    assert_ne!(output.status.code(), Some(101), "{context}");
    assert!(!said(output).contains("panicked"), "{context}");
}

#[test]
fn no_command_panics_where_standard_error_is_full_or_closed() {
    let folder = prepared();
    for redirections in ["2>/dev/full", ">&- 2>&-"] {
        for words in COMMANDS {
            let output = redirected(folder.path(), words, redirections);
            ended_in_order(words, redirections, &output);
        }
    }
}

#[test]
fn a_failed_write_is_an_error_with_its_reason() {
    let folder = prepared();
    let mut tried = 0;
    for words in COMMANDS {
        let usual = redirected(folder.path(), words, "");
        ended_in_order(words, "", &usual);
        let output = redirected(folder.path(), words, ">/dev/full");
        ended_in_order(words, ">/dev/full", &output);
        if usual.stdout.is_empty() {
            continue;
        }
        tried += 1;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("No space left on device"), "{words:?}: {said}");
        // A closed output is not an error.
        let closed = redirected(folder.path(), words, ">&-");
        ended_in_order(words, ">&-", &closed);
        assert_eq!(closed.status.code(), usual.status.code(), "{words:?}");
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn a_manual_page_is_replaced_as_a_whole() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let path = folder.path().to_str().unwrap();
    for _ in 0..2 {
        assert!(pagewise(&["man", "--dir", path]).status.success());
        let names = names(folder.path());
        assert!(names.iter().all(|name| name.ends_with(".1")), "{names:?}");
        assert!(names.contains(&"pagewise-heap-attach.1".to_owned()), "{names:?}");
    }
}
