//! Processes that connect to the sockets for recorders and guards again and again, and send
//! nothing.

use crate::fixture;

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip};

use fixture::{disk, program};

/// Returns the socket of a run's recorders, from the environment of its command.
fn socket_of(pagewise: &mut Child) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        assert!(pagewise.try_wait().unwrap().is_none(), "it has ended");
        assert!(Instant::now() < deadline, "it runs nothing");
        let mut processes = vec![pagewise.id()];
        while let Some(pid) = processes.pop() {
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().map(|it| it.parse::<u32>().unwrap()));
            }
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&environment);
            let socket = text.split('\0').find_map(|it| it.split_once("socket=").map(|it| it.1));
            if let Some(socket) = socket {
                return socket.into();
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Connects from several threads until it is dropped: it keeps some connections open without
/// sending data, and closes others at once.
struct Flood {
    ends: Arc<AtomicBool>,
    connected: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn begin(socket: PathBuf) -> Flood {
        let ends = Arc::<AtomicBool>::default();
        let connected = Arc::<AtomicUsize>::default();
        let flood = |number: usize| {
            let (ends, connected, socket) = (ends.clone(), connected.clone(), socket.clone());
            thread::spawn(move || {
                let mut kept = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    let Ok(stream) = UnixStream::connect(&socket) else {
                        thread::sleep(Duration::from_millis(1));
                        continue;
                    };
                    connected.fetch_add(1, Ordering::Relaxed);
                    if number == 0 && kept.len() < 200 {
                        kept.push(stream);
                    }
                }
            })
        };
        let threads = (0..2).map(flood).collect();
        let flood = Flood { ends, connected, threads };
        while flood.connected.load(Ordering::Relaxed) < 300 {
            thread::sleep(Duration::from_millis(1));
        }
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn begin(folder: &std::path::Path, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(words).current_dir(folder).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn silent_clients_do_not_keep_recorders_from_being_answered() {
    // On a busy machine, the answer to a recorder may exceed the time limit of 5 s.
    let said = (0..5).map(|_| record_in_a_flood()).find(|said| !said.contains("waited 5 s"));
    let said = said.expect("a run without a late answer");
    let recordings = said.lines().filter(|line| line.contains("heap report r.pwh")).count();
    assert_eq!(recordings, 5, "{said}");
}

/// Returns the messages of a run that records five processes during a flood.
fn record_in_a_flood() -> String {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    // The command waits for the flood.
    let script = "read line; /bin/true; /bin/true; /bin/true; /bin/true; :";
    let words = ["heap", "run", "--follow", "-o", "r.pwh", "--", "sh", "-c", script];
    let mut pagewise = begin(folder.path(), &words);
    let flood = Flood::begin(socket_of(&mut pagewise));
    drop(pagewise.stdin.take());
    let output = pagewise.wait_with_output().unwrap();
    drop(flood);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said.into_owned()
}

#[test]
fn silent_clients_do_not_keep_guards_from_being_answered() {
    // On a busy machine, an answer to the guard may exceed the time limit of the guard.
    let said = (0..5).map(|_| guard_in_a_flood()).find(|said| said.contains("ouble free"));
    assert!(said.is_some(), "no run reports the misuse");
}

/// Returns the messages of a guarded program that frees a block twice during a flood.
fn guard_in_a_flood() -> String {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fixture::copy_program(&program("misuse"), &folder.path().join("misuse"));
    let script = "read line; exec ./misuse double_free";
    let words = ["guard", "--rate", "1", "--", "sh", "-c", script];
    let mut pagewise = begin(folder.path(), &words);
    let flood = Flood::begin(socket_of(&mut pagewise));
    drop(pagewise.stdin.take());
    let output = pagewise.wait_with_output().unwrap();
    drop(flood);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Environment variable that makes this test program act as the other user of the next test.
const STRANGER: &str = "PAGEWISE_TEST_STRANGER";

#[test]
fn other_users_cannot_connect() {
    if std::env::var_os(STRANGER).is_some() {
        return connect_to_all();
    }
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let mut pagewise =
        begin(folder.path(), &["heap", "run", "-o", "r.pwh", "--", "sh", "-c", "read line; :"]);
    let socket = socket_of(&mut pagewise);
    let mut stranger = Command::new(std::env::current_exe().unwrap());
    stranger.args(["--exact", "flood::other_users_cannot_connect", "--nocapture"]);
    stranger.env(STRANGER, socket.parent().unwrap()).current_dir("/").uid(65534).gid(65534);
    let stranger = stranger.output();
    // This user can connect, which shows that the socket exists.
    let ours = UnixStream::connect(&socket);
    drop(pagewise.stdin.take());
    let output = pagewise.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(ours.is_ok());
    let Ok(stranger) = stranger else {
        return skip(&Lack::Machine("another user cannot run the program of the test"));
    };
    let said = String::from_utf8_lossy(&stranger.stdout);
    assert!(said.contains("connected to 0 of "), "{said}");
}

/// Connects to every path in the folder that it can find.
#[expect(clippy::print_stdout, reason = "the other process reads it")]
fn connect_to_all() {
    let folder = PathBuf::from(std::env::var_os(STRANGER).unwrap());
    let told = fs::read_to_string("/proc/net/unix").unwrap();
    let mut paths: Vec<PathBuf> = told
        .lines()
        .filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}").into()))
        .filter(|path: &PathBuf| path.starts_with(&folder))
        .collect();
    paths.push(folder.join("s"));
    paths.extend(fs::read_dir(&folder).into_iter().flatten().flatten().map(|it| it.path()));
    let connected = paths.iter().filter(|path| UnixStream::connect(path).is_ok()).count();
    println!("connected to {connected} of {}", paths.len());
}
