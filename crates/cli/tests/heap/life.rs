//! Environment of recorded programs and their children, and files that a recording leaves.

use crate::fixture;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pagewise_skip::{Lack, is_root, skip};
use tempfile::TempDir;

use fixture::{number, program};

/// A folder for all files that a recording leaves.
struct RecordingFolder {
    folder: TempDir,
}

impl RecordingFolder {
    fn new() -> RecordingFolder {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let place = RecordingFolder { folder };
        // Programs of other users find the recorder by this path, too.
        fs::set_permissions(place.folder.path(), Permissions::from_mode(0o755)).unwrap();
        for name in ["cache", "run"] {
            fs::create_dir(place.at(name)).unwrap();
            fs::set_permissions(place.at(name), Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the command that runs `command` under `pagewise` with these words.
    fn pagewise(&self, words: &[&str], command: &[&str]) -> Command {
        let mut pagewise = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        pagewise.args(words).arg("--").args(command).stdin(Stdio::null());
        pagewise.env("XDG_CACHE_HOME", self.at("cache")).env("TMPDIR", self.at("run"));
        pagewise.env_remove("LD_PRELOAD").current_dir(self.folder.path());
        pagewise
    }

    fn run(&self, words: &[&str], command: &[&str]) -> Output {
        self.pagewise(words, command).output().unwrap()
    }

    /// Returns the cached recorder libraries.
    fn kept(&self) -> Vec<PathBuf> {
        entries(&self.at("cache/pagewise")).iter().flat_map(|folder| entries(folder)).collect()
    }

    fn runs(&self) -> Vec<PathBuf> {
        entries(&self.at("run"))
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the lines on standard error that the program wrote, not pagewise.
fn complaints(output: &Output) -> Vec<String> {
    let lines = text(&output.stderr);
    lines.lines().filter(|line| !line.starts_with("pagewise:")).map(str::to_owned).collect()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("in a minute it did not come to this: {what}");
}

/// Arguments of pagewise that load the recorder into a command.
const WAYS: [&[&str]; 3] = [
    &["heap", "run", "-o", "a.pwh"],
    &["heap", "run", "--follow", "-o", "b.pwh"],
    &["guard", "--json", "-o", "guard.json"],
];

#[test]
fn a_child_that_outlives_pagewise_executes_programs_without_a_word() {
    for words in WAYS {
        let place = RecordingFolder::new();
        let (gate, said, done) = (place.at("gate"), place.at("said"), place.at("done"));
        assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
        let script = "(read word < gate; /bin/true; /bin/echo x > done) 2> said > /dev/null &";
        let output = place.run(words, &["setsid", "-w", "sh", "-c", script]);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        assert_eq!(complaints(&output), [""; 0], "{words:?}");
        assert_eq!(place.runs(), [""; 0].map(PathBuf::from), "{words:?}");
        fs::write(&gate, "go\n").unwrap();
        wait_until("the child has executed two programs", || {
            fs::metadata(&done).is_ok_and(|file| file.len() > 0)
        });
        assert_eq!(fs::read_to_string(&said).unwrap(), "", "{words:?}");
    }
}

#[test]
fn the_recorders_file_is_kept_and_used_again() {
    let place = RecordingFolder::new();
    let kept = |place: &RecordingFolder| {
        let kept = place.kept();
        assert_eq!(kept.len(), 1, "{kept:?}");
        kept[0].clone()
    };
    assert!(place.run(WAYS[0], &["true"]).status.success());
    let first = kept(&place);
    let before = fs::metadata(&first).unwrap();
    assert_eq!(before.mode() & 0o777, 0o644);
    assert!(place.run(WAYS[0], &["true"]).status.success());
    let again = fs::metadata(kept(&place)).unwrap();
    assert_eq!((before.ino(), before.mtime()), (again.ino(), again.mtime()));
    // A modified file is not loaded into a program.
    fs::write(&first, "not a library").unwrap();
    let output = place.run(WAYS[0], &["true"]);
    assert!(output.status.success());
    assert_eq!(complaints(&output), [""; 0]);
    assert_eq!(fs::metadata(kept(&place)).unwrap().len(), before.len());
    assert_eq!(place.runs().len(), 0);
}

#[test]
fn a_recorder_that_cannot_be_cached_exists_during_the_run() {
    let place = RecordingFolder::new();
    // pagewise must not use a folder in which other users can put a library.
    fs::set_permissions(place.at("cache"), Permissions::from_mode(0o777)).unwrap();
    let mut pagewise = place.pagewise(WAYS[0], &["sh", "-c", "echo $LD_PRELOAD"]);
    let output = pagewise.env("HOME", place.at("cache")).output().unwrap();
    assert!(output.status.success());
    assert_eq!(complaints(&output), [""; 0]);
    let loaded = PathBuf::from(text(&output.stdout).trim());
    assert!(!loaded.starts_with(place.at("cache")), "{}", loaded.display());
    assert_eq!(place.kept().len(), 0);
    assert_eq!(place.runs().len(), 0);
}

#[test]
fn a_long_path_to_temporary_files_works() {
    let place = RecordingFolder::new();
    let long = place.at(&"long".repeat(40));
    fs::create_dir(&long).unwrap();
    for words in WAYS {
        let output = place.pagewise(words, &["true"]).env("TMPDIR", &long).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        assert_eq!(complaints(&output), [""; 0], "{words:?}");
    }
    assert!(number(&fixture::recorder::report(&place.at("a.pwh")), "recording.pid") > 0);
}

#[test]
fn the_next_run_tidies_up_after_one_that_was_killed() {
    let place = RecordingFolder::new();
    let mut pagewise = place.pagewise(WAYS[0], &["sh", "-c", "echo began; read word"]);
    let mut pagewise = pagewise.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(pagewise.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "began\n");
    // While the run lasts, no other run removes its folder.
    assert!(place.run(WAYS[0], &["true"]).status.success());
    assert_eq!(place.runs().len(), 1);
    let left = place.runs()[0].clone();
    let input = pagewise.stdin.take().unwrap();
    pagewise.kill().unwrap();
    pagewise.wait().unwrap();
    drop(input);
    // The process that started the command ends with the command.
    wait_until("the folder of the killed run is gone", || {
        assert!(place.run(WAYS[0], &["true"]).status.success());
        !left.exists()
    });
    assert_eq!(place.runs().len(), 0);
}

#[test]
fn a_program_of_another_user_is_recorded_and_learns_nothing() {
    if !is_root() {
        return;
    }
    const ENDS_WITH: i32 = 3;
    let place = RecordingFolder::new();
    let known = program("heap_known");
    let copy = place.at("heap_known");
    fixture::copy_program(&known, &copy);
    let copy = copy.to_str().unwrap();
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let command = [&setpriv[..], &[copy]].concat();
    let output = place.run(WAYS[0], &command);
    assert_eq!(output.status.code(), Some(ENDS_WITH), "{}", text(&output.stderr));
    assert_eq!(complaints(&output), [""; 0]);
    let recorded = fixture::recorder::report(&place.at("a.pwh"));
    let plain = place.run(WAYS[0], &[copy]);
    assert_eq!(plain.status.code(), Some(ENDS_WITH), "{}", text(&plain.stderr));
    let alone = fixture::recorder::report(&place.at("a.pwh"));
    for key in ["totals.allocations", "totals.allocated_bytes", "totals.leaked_bytes"] {
        assert_eq!(number(&recorded, key), number(&alone, key), "{key}");
    }
    // The script starts a child that has changed its user, and a child whose parents have ended.
    let script =
        format!("{}; (setsid {} &) > /dev/null; true", command.join(" "), command.join(" "));
    for words in WAYS {
        let output = place.run(words, &["sh", "-c", &script]);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        assert_eq!(complaints(&output), [""; 0], "{words:?}");
    }
}

#[test]
fn foreign_clients_of_the_socket_are_ignored() {
    if !is_root() {
        return;
    }
    let place = RecordingFolder::new();
    let mut pagewise = place.pagewise(
        &["heap", "run", "--follow", "-o", "c.pwh"],
        &["sh", "-c", "echo $PAGEWISE_HEAP; read word"],
    );
    let mut pagewise = pagewise.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut settings = String::new();
    BufReader::new(pagewise.stdout.take().unwrap()).read_line(&mut settings).unwrap();
    let library = place.kept()[0].clone();
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups", "true"]);
    stranger.env("LD_PRELOAD", library).env("PAGEWISE_HEAP", settings.trim());
    let output = stranger.current_dir("/").output().unwrap();
    // setpriv runs as root, and is recorded. The program that it executes runs as another user, and
    // is not.
    assert_eq!(text(&output.stderr), "");
    drop(pagewise.stdin.take());
    pagewise.wait().unwrap();
    let files = entries(place.folder.path());
    let programs: Vec<String> = files
        .iter()
        .filter(|path| path.to_string_lossy().contains("c.pwh."))
        .map(|path| fixture::recorder::report(path)["recording"]["program"].to_string())
        .collect();
    assert!(programs.iter().all(|program| program.contains("setpriv")), "{programs:?}");
}

/// Returns the call stacks of a recording, with the bytes that each call stack allocated.
fn stacks(report: &serde_json::Value) -> Vec<(u64, Vec<String>)> {
    let calls = |site: &serde_json::Value| -> Vec<String> {
        let calls = site["stack"].as_array().unwrap().iter();
        calls.map(|call| call.as_str().unwrap().to_owned()).collect()
    };
    let sites = report["sites"].as_array().unwrap().iter();
    sites.map(|site| (number(site, "allocated_bytes"), calls(site))).collect()
}

#[test]
fn an_instruction_that_was_interrupted_is_the_one_that_is_named() {
    let place = RecordingFolder::new();
    let program = program("interrupted");
    let output = place.run(WAYS[0], &[program.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = text(&output.stdout).trim().to_owned();
    let stacks = stacks(&fixture::recorder::report(&place.at("a.pwh")));
    let of = |bytes: u64| {
        let (_, stack) = stacks.iter().find(|(it, _)| *it == bytes).unwrap();
        assert!(stack[0].starts_with("in_handler "), "{stack:?}");
        let at = stack.iter().position(|call| call.starts_with("handle ")).unwrap();
        // The frame of the signal return comes first, then the interrupted function.
        let interrupted = stack[at + 1..]
            .iter()
            .find(|call| !call.contains("restore_rt") && !call.contains("libc"))
            .unwrap();
        assert!(stack.last().unwrap().contains("_start"), "{stack:?}");
        interrupted.clone()
    };
    let first = of(100);
    assert!(first.starts_with("in_a_line "), "{first}");
    assert!(first.ends_with(&format!("interrupted.c:{line})")), "{first}");
    let second = of(200);
    assert!(second.starts_with("at_once"), "{second}");
}

#[test]
fn functions_of_the_recorder_are_on_no_call_stack() {
    let place = RecordingFolder::new();
    let program = program("interrupted");
    let output = place.run(WAYS[0], &[program.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stacks = stacks(&fixture::recorder::report(&place.at("a.pwh")));
    let thread =
        stacks.iter().find(|(_, stack)| stack.iter().any(|call| call.contains("pthread_create")));
    let (_, thread) = thread.expect("the C library allocates for a thread");
    let at = thread.iter().position(|call| call.contains("pthread_create")).unwrap();
    assert!(thread[at + 1].starts_with("main "), "{thread:?}");
    for (_, stack) in &stacks {
        // Only names of functions are checked: the source files may lie in a folder of this name.
        let mut functions = stack.iter().map(|call| call.split(" (").next().unwrap());
        assert!(!functions.any(|name| name.contains("pagewise")), "{stack:?}");
    }
    // The recording does not list the recorder library either.
    let bytes = fs::read(place.at("a.pwh")).unwrap();
    let file = pagewise_heaplog::reader::read(&bytes[..]).unwrap().recording;
    let is_ours = |path: &[u8]| path.ends_with(b"libpagewise_preload.so");
    assert!(!file.modules.iter().any(|module| is_ours(&module.path)), "{:?}", file.modules);
}

#[test]
fn a_program_finds_two_more_variables_and_no_other_change() {
    let variables = |bytes: &[u8]| -> Vec<String> {
        let mut all: Vec<String> = bytes.split(|&byte| byte == 0).map(text).collect();
        all.retain(|variable| !variable.is_empty() && !variable.starts_with("_="));
        all.sort();
        all
    };
    for words in WAYS {
        let place = RecordingFolder::new();
        let plain = Command::new("env").arg("-0").env_clear().env("PATH", "/bin").output().unwrap();
        let plain = variables(&plain.stdout);
        // The program itself, and a child of it.
        for command in [&["env", "-0"][..], &["sh", "-c", "env -0; :"]] {
            for before in [None, Some("libm.so.6")] {
                let mut pagewise = place.pagewise(words, command);
                pagewise.env_clear().env("PATH", "/bin").env("XDG_CACHE_HOME", place.at("cache"));
                pagewise.envs(before.map(|library| ("LD_PRELOAD", library)));
                let output = pagewise.output().unwrap();
                assert!(output.status.success(), "{}", text(&output.stderr));
                let mut found = variables(&output.stdout);
                let recorder = place.kept()[0].to_str().unwrap().to_owned();
                let preload = [Some(recorder.as_str()), before].into_iter().flatten();
                let preload = format!("LD_PRELOAD={}", preload.collect::<Vec<_>>().join(":"));
                assert!(found.contains(&preload), "{found:?}");
                found.retain(|it| *it != preload && !it.starts_with("PAGEWISE_HEAP="));
                found.retain(|it| !it.starts_with("XDG_CACHE_HOME="));
                // A shell sets some variables itself.
                found.retain(|it| !it.starts_with("PWD=") && !it.starts_with("SHLVL="));
                found.retain(|it| !it.starts_with("OLDPWD="));
                assert_eq!(found, plain, "{words:?} {command:?}");
            }
        }
    }
}

#[test]
fn a_child_that_spoils_its_tables_ends_no_other_recording() {
    if !is_root() {
        return;
    }
    let place = RecordingFolder::new();
    let program = program("spoils");
    let output = place.run(WAYS[1], &[program.to_str().unwrap()]);
    let said = text(&output.stderr);
    match output.status.code() {
        Some(77) => return skip(&Lack::Machine("the program may not open /proc/self/map_files")),
        code => assert_eq!(code, Some(0), "{said}"),
    }
    assert!(said.contains("ends where the recorder's tables could no longer be read"), "{said}");
    let report = fixture::recorder::report(&place.at("b.pwh"));
    let sizes = stacks(&report);
    assert!([1000, 2000].iter().all(|size| sizes.iter().any(|(it, _)| it == size)), "{sizes:?}");
}

#[test]
fn a_program_has_no_further_library_but_the_recorder() {
    let libraries = |output: &Output| -> Vec<String> {
        let maps = text(&output.stdout);
        let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        let mut paths: Vec<_> = paths.filter(|it| it.contains(".so")).map(str::to_owned).collect();
        paths.sort();
        paths.dedup();
        paths
    };
    let plain = Command::new("cat").arg("/proc/self/maps").output().unwrap();
    let plain = libraries(&plain);
    for words in WAYS {
        let place = RecordingFolder::new();
        let mut found = libraries(&place.run(words, &["cat", "/proc/self/maps"]));
        let before = found.len();
        found.retain(|path| !path.ends_with("/libpagewise_preload.so"));
        assert_eq!((before - found.len(), &found), (1, &plain), "{words:?}");
    }
}
