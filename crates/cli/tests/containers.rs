//! Targets in containers, which have a root with another C library, and user, PID and mount
//! namespaces of their own. The tests inspect a target from the host, from inside its container,
//! and from another container.
//!
//! `PAGEWISE_STATIC` names the command that `cargo xtask static` builds. Without it, no test runs
//! pagewise inside a root that lacks the C library of pagewise.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may do both")]

mod fixture;

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use fixture::recorder::by_function;
use fixture::victim::{Calls, KillStep, stop_at};
use fixture::{FixtureLink, OtherGlibc, copy_program, number, pagewise};
use pagewise_skip::{Lack, is_root, skip, skip_part};
use serde_json::Value;
use tempfile::TempDir;

/// The C library of a container and of its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Userland {
    /// This machine's C library.
    Glibc,
    /// The oldest glibc in the folder that `PAGEWISE_GLIBC` names: Debian 11 has glibc 2.31.
    OldGlibc,
    /// musl's C library, as in Alpine.
    Musl,
    /// No C library: the root contains only statically linked programs (distroless).
    Static,
}

const USERLANDS: [Userland; 4] =
    [Userland::Glibc, Userland::OldGlibc, Userland::Musl, Userland::Static];

impl Userland {
    fn program(self, name: &str) -> Option<PathBuf> {
        match self {
            Userland::Glibc => Some(fixture::program(name)),
            Userland::OldGlibc if std::env::var_os("PAGEWISE_GLIBC").is_none() => {
                skip_part(&Lack::Machine("PAGEWISE_GLIBC names no folder with C libraries"));
                None
            }
            Userland::OldGlibc => Some(OtherGlibc::all().first()?.program(name)),
            Userland::Musl => fixture::musl_program(FixtureLink::Musl, name),
            Userland::Static => fixture::static_program(name),
        }
    }

    /// Creates a root with these programs and the files that they need.
    fn root(self, programs: &[&str]) -> Option<TempDir> {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
        mode(root.path(), 0o755).unwrap();
        for folder in ["proc", "tmp"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        mode(&root.path().join("tmp"), 0o1777).unwrap();
        for name in programs {
            let program = self.program(name)?;
            copy_program(&program, &root.path().join(name));
            for library in libraries(&program) {
                let inside = root.path().join(library.strip_prefix("/").unwrap());
                fs::create_dir_all(inside.parent().unwrap()).unwrap();
                copy_program(&library, &inside);
            }
        }
        Some(root)
    }
}

/// Returns the loader and the libraries of a program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let bytes = fs::read(program).unwrap();
    let musl = b"/lib/ld-musl-x86_64.so.1\0";
    if bytes.windows(musl.len()).any(|window| window == musl) {
        // musl's loader is also its C library.
        return vec![PathBuf::from("/lib/ld-musl-x86_64.so.1")];
    }
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    let paths = words.map(|word| PathBuf::from(word.trim_end_matches(':')));
    paths.filter(|path| path != program && path.exists()).collect()
}

/// The user namespace of a container. Each container also has PID and mount namespaces of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// A user namespace of its own: root in the container is an unprivileged user outside.
    Own,
    /// The user namespace of the host: root in the container is root outside.
    Host,
}

/// A container whose first process is a fixture program. It ends when this value is dropped.
struct Container {
    root: TempDir,
    child: Child,
    /// PID of the first process on the host.
    pid: String,
}

impl Container {
    /// Starts the first of `programs` in a root that has all of them. Returns `None`, after
    /// recording a skip, without a compiler or if the kernel refuses the namespaces.
    fn start(userland: Userland, users: Users, programs: &[&str]) -> Option<Container> {
        const SCRIPT: &str = r#"mount -t proc proc "$1/proc" && exec chroot "$1" "$2""#;
        let root = userland.root(programs)?;
        let mut command = Command::new("unshare");
        if users == Users::Own {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]);
        command.arg(root.path()).arg(format!("/{}", programs[0]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip_part(&Lack::Tool("unshare"));
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            child.wait().unwrap();
            skip_part(&Lack::Refused { call: "a container", error: &io::Error::other(why) });
            return None;
        }
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = fs::read_to_string(children).unwrap().trim().to_owned();
        Some(Container { root, child, pid })
    }

    /// Runs pagewise inside the container.
    fn inside(&self, words: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--root", "--wd=/", "--"]);
        command.arg("/pagewise").args(words).env_remove("HOME").stdin(Stdio::null());
        command.output().unwrap()
    }

    fn json_inside(&self, words: &[&str]) -> Value {
        let output = self.inside(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Copies the static command into the root.
    fn add_pagewise(&self) -> bool {
        let Some(file) = static_command() else { return false };
        copy_program(&file, &self.root.path().join("pagewise"));
        true
    }

    /// Returns the files of recordings that were left in the root.
    fn left_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.path().join("tmp")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("pagewise-heap-")).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the statically linked pagewise. Returns `None`, after recording a skip, if
/// it was not built.
fn static_command() -> Option<PathBuf> {
    let file = std::env::var_os("PAGEWISE_STATIC").map(PathBuf::from);
    if file.is_none() {
        skip(&Lack::Machine("PAGEWISE_STATIC names no static build: cargo xtask static"));
    }
    file
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns true if `diagnose` has found that a process is healthy, or has found the cause of its
/// trouble.
fn is_diagnosed(output: &Output) -> bool {
    matches!(output.status.code(), Some(0 | 10))
}

/// Returns true if a report of `explain --json` contains a path, such as the path of a mapping.
fn has_mapping(report: &Value, path: &str) -> bool {
    report.to_string().contains(path)
}

#[test]
fn a_process_in_a_container_is_inspected_from_outside() {
    for userland in USERLANDS {
        let Some(container) = Container::start(userland, Users::Own, &["busy_heap"]) else {
            continue;
        };
        let pid = container.pid.as_str();
        let explained = pagewise(&["explain", pid, "--json"]);
        assert!(explained.status.success(), "{userland:?}: {}", said(&explained));
        let report: Value = serde_json::from_slice(&explained.stdout).unwrap();
        assert!(has_mapping(&report, "/busy_heap"), "{userland:?}: {report}");
        // pagewise finds the files of the target in the root of the container.
        let findings = report["findings"].as_array().unwrap();
        assert!(!findings.iter().any(|it| it["id"] == "stale-files"), "{userland:?}: {findings:?}");
        let scanned = pagewise(&["heap", "scan", pid, "--json", "--max-pause", "1min"]);
        assert!(scanned.status.success(), "{userland:?}: {}", said(&scanned));
        let report: Value = serde_json::from_slice(&scanned.stdout).unwrap();
        // The one thread has 200 live blocks at any time.
        assert!(number(&report, "live.blocks") >= 200, "{userland:?}: {report}");
        let diagnosed = pagewise(&["diagnose", pid, "--for", "300ms", "--json"]);
        assert!(is_diagnosed(&diagnosed), "{userland:?}: {}", said(&diagnosed));
    }
}

#[test]
fn a_program_in_a_container_is_recorded_from_outside() {
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("x.pwh");
    let attach = |container: &Container| {
        let (pid, file) = (container.pid.as_str(), file.to_str().unwrap());
        pagewise(&["heap", "attach", pid, "--for", "1s", "--max-pause", "10s", "-o", file])
    };
    for (userland, users) in [
        (Userland::Glibc, Users::Own),
        (Userland::Glibc, Users::Host),
        (Userland::OldGlibc, Users::Own),
    ] {
        if users == Users::Host && !is_root() {
            continue;
        }
        let Some(container) = Container::start(userland, users, &["busy_heap"]) else {
            continue;
        };
        // The second attach finds the recorder already loaded, from a file that has been removed.
        for _ in 0..2 {
            let output = attach(&container);
            assert!(output.status.success(), "{userland:?} {users:?}: {}", said(&output));
            let functions = by_function(&fixture::recorder::report(&file));
            assert!(functions.values().any(|[count, ..]| *count > 10), "{functions:?}");
            assert_eq!(container.left_files(), Vec::<String>::new());
        }
    }
    for (userland, why) in [(Userland::Musl, "musl"), (Userland::Static, "linked statically")] {
        let Some(container) = Container::start(userland, Users::Own, &["busy_heap"]) else {
            continue;
        };
        let output = attach(&container);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(why), "{}", said(&output));
    }
}

/// Number of steps at which an attach is killed, unless `PAGEWISE_KILLS` sets another number.
const KILLED_STEPS: u64 = 6;

#[test]
fn the_folder_of_a_killed_attach_is_removed_by_the_next_one() {
    if !is_root() {
        return;
    }
    let Some(container) = Container::start(Userland::Glibc, Users::Host, &["busy_heap"]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.pwh").to_str().unwrap().to_owned();
    let pid = container.pid.as_str();
    let words = ["heap", "attach", pid, "--for", "20ms", "--max-pause", "10s", "-o", &file];
    let step = |number| KillStep { number, calls: Calls::Outward, ..KillStep::NEVER };
    let steps = stop_at(step(0), &words).steps[&Calls::Outward];
    let wanted = match std::env::var("PAGEWISE_KILLS").as_deref() {
        Ok("all") => steps,
        Ok(number) => number.parse().unwrap(),
        Err(_) => KILLED_STEPS,
    };
    let mut left = 0;
    for at in 1..=wanted.min(steps) {
        let killed = stop_at(step(at * steps / wanted.min(steps)), &words);
        left += container.left_files().len();
        pagewise(&["keep"]);
        let next = pagewise(&words);
        let files = container.left_files();
        assert_eq!(files, Vec::<String>::new(), "after {killed:?}: {}", said(&next));
    }
    eprintln!("{left} of {wanted} killed runs of {steps} steps left a folder");
}

#[test]
fn a_container_without_a_writable_folder_is_named_as_the_reason() {
    let Some(container) = Container::start(Userland::Glibc, Users::Own, &["busy_heap"]) else {
        return;
    };
    let folder = container.root.path().join("tmp");
    fs::rename(&folder, container.root.path().join("elsewhere")).unwrap();
    let output = pagewise(&["heap", "attach", &container.pid, "--for", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("another root directory"), "{}", said(&output));
}

#[test]
fn one_file_works_inside_every_root() {
    if !is_root() {
        return;
    }
    for userland in USERLANDS {
        let programs = ["busy_heap", "heap_known"];
        let Some(container) = Container::start(userland, Users::Host, &programs) else { continue };
        if !container.add_pagewise() {
            return;
        }
        let report = container.json_inside(&["explain", "1", "--json"]);
        assert!(has_mapping(&report, "/busy_heap"), "{userland:?}: {report}");
        let report = container.json_inside(&["heap", "scan", "1", "--json", "--max-pause", "1min"]);
        assert!(number(&report, "live.blocks") >= 200, "{userland:?}: {report}");
        let diagnosed = container.inside(&["diagnose", "1", "--for", "300ms", "--json"]);
        assert!(is_diagnosed(&diagnosed), "{userland:?}: {}", said(&diagnosed));
        records_inside(userland, &container);
    }
}

/// Runs `heap run` inside the container on a program whose allocations are known.
fn records_inside(userland: Userland, container: &Container) {
    let file = "/tmp/known.pwh";
    let output = container.inside(&["heap", "run", "-o", file, "--", "/heap_known"]);
    if userland == Userland::Static {
        // The root has no /sys, which uprobes need.
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("/sys"), "{}", said(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{userland:?}: {}", said(&output));
    let words = ["heap", "report", file, "--json", "--threshold", "0"];
    let functions = by_function(&container.json_inside(&words));
    // musl's `calloc` calls `malloc`, which is recorded, too.
    if userland != Userland::Musl {
        assert_eq!(functions["once"], [1000, 48_000, 1000], "{userland:?}");
        assert_eq!(functions["zeros"], [300, 9000, 290], "{userland:?}");
    }
    assert_eq!(functions["grow"], [100, 400_000, 100], "{userland:?}");
    assert_eq!(functions["in_thread"], [400, 51_200, 400], "{userland:?}");
}

#[test]
fn a_container_inspects_another_one_whose_processes_it_sees() {
    const SCRIPT: &str =
        r#"mount -t proc proc "$1/proc" && root=$1 && shift && exec chroot "$root" /pagewise "$@""#;
    if !is_root() {
        return;
    }
    let Some(command) = static_command() else { return };
    let Some(target) = Container::start(Userland::Glibc, Users::Own, &["busy_heap"]) else {
        return;
    };
    // A side container has a root of its own, and shares the PID namespace of the host.
    let Some(root) = Userland::Static.root(&[]) else { return };
    copy_program(&command, &root.path().join("pagewise"));
    let beside = |words: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(root.path()).args(words);
        unshare.stdin(Stdio::null()).output().unwrap()
    };
    let explained = beside(&["explain", &target.pid, "--json"]);
    assert!(explained.status.success(), "{}", said(&explained));
    let words =
        ["heap", "attach", &target.pid, "--for", "1s", "--max-pause", "10s", "-o", "/tmp/x.pwh"];
    let output = beside(&words);
    assert!(output.status.success(), "{}", said(&output));
    assert!(root.path().join("tmp/x.pwh").exists());
    assert_eq!(target.left_files(), Vec::<String>::new());
}
