//! Files that a target puts in the place of a library to harm an observer: a FIFO, a link to a
//! secret, or a file that is truncated. Every command ends in time, and opens only regular files of
//! the target.

use crate::fixture;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use fixture::disk;

/// Time limit of a command, including its `--for 1s`. A slower command counts as blocked; a debug
/// build on a busy machine is slow.
const MAX_COMMAND_TIME: Duration = Duration::from_secs(180);
/// User ID of a user without the capabilities of root.
const NOBODY: u32 = 65534;

const LIBRARY: &str = "
__attribute__((noinline)) long touch_pages(volatile char *memory, long pages, long page) {
    for (long at = 0; at < pages; at++) { memory[at * page] = 1; }
    return pages;
}";

const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    long (*touch)(volatile char *, long, long) = library ? dlsym(library, "touch_pages") : 0;
    if (!touch) { return 1; }
    puts("ready");
    fflush(stdout);
    for (;;) {
        char *memory = mmap(0, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        touch(memory, 64, 4096);
        munmap(memory, 64 * 4096);
        usleep(500);
    }
}"#;

/// A program that calls a library in a loop. It is killed when this value is dropped.
struct LoopingTarget {
    child: Child,
    library: PathBuf,
    folder: TempDir,
}

impl Drop for LoopingTarget {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl LoopingTarget {
    /// Starts the program as a user. Returns `None`, after printing a message, without a compiler.
    fn start(user: u32) -> Option<LoopingTarget> {
        let folder = tempfile::tempdir_in(disk()).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (library, program) = (folder.path().join("libtouch.so"), folder.path().join("program"));
        for (source, to, flags) in
            [(LIBRARY, &library, &["-shared", "-fPIC"][..]), (PROGRAM, &program, &["-ldl"])]
        {
            let from = to.with_extension("c");
            // The debugging information of the library is large enough that reading it takes time.
            let others =
                (0..3000).map(|at| format!("\nlong other_{at}(long a) {{ return a * {at}; }}"));
            let others = if to == &library { others.collect() } else { String::new() };
            fs::write(&from, [source, &others].concat()).unwrap();
            let mut compiler = Command::new("cc");
            compiler.args(["-g", "-O1", "-o"]).arg(to).arg(from).args(flags);
            let Ok(status) = compiler.status() else {
                skip(&Lack::Tool("cc"));
                return None;
            };
            assert!(status.success());
        }
        let mut command = Command::new(program);
        command.arg(&library).stdin(Stdio::null()).stdout(Stdio::piped());
        if rustix::process::geteuid().is_root() {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(LoopingTarget { child, library, folder })
    }
}

/// Reports opens of a file, except opens with `O_PATH`.
struct OpenedFiles(OwnedFd);

impl OpenedFiles {
    fn watch(path: &Path) -> OpenedFiles {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, path, WatchFlags::OPEN).unwrap();
        OpenedFiles(watch)
    }

    fn any(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 4096]).is_ok_and(|read| read > 0)
    }
}

/// Runs pagewise as a user, and returns its output. Fails the test after [`MAX_COMMAND_TIME`].
fn run(user: u32, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    command.current_dir(folder.path());
    if rustix::process::geteuid().is_root() {
        command.uid(user).gid(user);
    }
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let texts = [
        read(Box::new(child.stdout.take().unwrap())),
        read(Box::new(child.stderr.take().unwrap())),
    ];
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > MAX_COMMAND_TIME {
            let _ = child.kill();
            panic!("{words:?} waits");
        }
        thread::sleep(Duration::from_millis(20));
    };
    // No signal, such as SIGBUS, ended pagewise.
    assert!(status.code().is_some(), "{words:?}: {status}");
    texts.map(|text| text.join().unwrap()).concat()
}

/// Returns the commands that read files of a process.
fn commands(pid: &str) -> [Vec<&str>; 7] {
    [
        vec!["explain", pid],
        vec!["maps", pid, "--sections"],
        vec!["faults", pid, "--for", "1s"],
        vec!["shootdowns", pid, "--user-wait", "--for", "1s"],
        vec!["watch", pid, "--symbol", "no_such_variable", "--for", "1s"],
        vec!["heap", "attach", pid, "--for", "1s", "--max-pause", "1min"],
        vec!["heap", "scan", pid, "--max-pause", "1min"],
    ]
}

fn users() -> Vec<u32> {
    match rustix::process::geteuid().is_root() {
        true => vec![0, NOBODY],
        false => vec![rustix::process::geteuid().as_raw()],
    }
}

#[test]
fn commands_open_nothing_but_regular_files_in_the_place_of_a_library() {
    for user in users() {
        let Some(target) = LoopingTarget::start(user) else { return };
        let pid = target.child.id().to_string();
        let secret = target.folder.path().join("secret");
        fs::write(&secret, b"not the target's").unwrap();
        for kind in ["FIFO", "secret"] {
            fs::remove_file(&target.library).unwrap();
            let watched = match kind {
                "FIFO" => {
                    let mode = Mode::from_raw_mode(0o666);
                    rustix::fs::mknodat(CWD, &target.library, FileType::Fifo, mode, 0).unwrap();
                    &target.library
                }
                _ => {
                    symlink(&secret, &target.library).unwrap();
                    &secret
                }
            };
            let opened = OpenedFiles::watch(watched);
            for words in commands(&pid) {
                run(user, &words);
                assert!(!opened.any(), "{kind} opened by {words:?} of user {user}");
            }
        }
    }
}

/// pagewise finds the mapped file by its mapping, also if the path of the file now names another
/// file.
#[test]
fn functions_of_a_library_are_known_though_its_name_leads_elsewhere() {
    if !is_root() {
        return;
    }
    let Some(target) = LoopingTarget::start(0) else { return };
    fs::remove_file(&target.library).unwrap();
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, &target.library, FileType::Fifo, mode, 0).unwrap();
    let said = run(0, &["faults", &target.child.id().to_string(), "--for", "1s"]);
    assert!(said.contains("touch_pages"), "{said}");
}

/// `cp` truncates an existing file before it writes to the file.
#[test]
fn a_library_that_is_truncated_again_and_again_ends_no_recording() {
    if !is_root() {
        return;
    }
    let Some(target) = LoopingTarget::start(0) else { return };
    let pid = target.child.id().to_string();
    let whole = fs::read(&target.library).unwrap();
    // The target must survive: its code stays, and only symbols and debug information are cut off.
    let kept = whole.len() / 2;
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&target.library).unwrap();
            while !ends.load(Ordering::Relaxed) {
                file.set_len(kept as u64).unwrap();
                thread::sleep(Duration::from_micros(300));
                std::os::unix::fs::FileExt::write_all_at(&file, &whole[kept..], kept as u64)
                    .unwrap();
                thread::sleep(Duration::from_micros(300));
            }
        });
        // A failure here fails the test only after the other thread has ended.
        let said = std::panic::catch_unwind(|| run(0, &["faults", &pid, "--for", "2s"]));
        ends.store(true, Ordering::Relaxed);
        assert!(said.unwrap().contains("faults"));
    });
}

/// strace lists the files that pagewise opens.
#[test]
fn every_file_that_is_opened_is_found_without_links_first() {
    if !is_root() {
        return;
    }
    let Some(target) = LoopingTarget::start(0) else { return };
    let list = target.folder.path().join("opened");
    let strace = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=open,openat,openat2", "-o"])
        .arg(&list)
        .arg(env!("CARGO_BIN_EXE_pagewise"))
        .args(["faults", &target.child.id().to_string(), "--for", "1s"])
        .stdin(Stdio::null())
        .output();
    if strace.is_err() {
        return skip(&Lack::Tool("strace"));
    }
    let text = fs::read_to_string(list).unwrap();
    let library = target.library.to_str().unwrap();
    let named: Vec<&str> = text.lines().filter(|line| line.contains("libtouch.so")).collect();
    assert!(!named.is_empty(), "{library} was not looked for: {text}");
    for line in named {
        assert!(line.contains("O_PATH"), "{line}");
    }
    for line in text.lines().filter(|line| line.contains("/proc/self/fd/")) {
        assert!(line.contains("O_PATH") || line.contains("O_NONBLOCK"), "{line}");
    }
}
