//! A process that ends while it is looked at, and another one that gets its id.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod fixture;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::Pid;
use pagewise_proc::capture::{CaptureRequest, capture, outline};
use pagewise_proc::{ProcError, ProcRoot, referenced};
use pagewise_skip::{Lack, is_root, skip};
use rustix::process::{Signal, kill_process};

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Another process with an id that is free.
fn with_id(pid: u32) -> Option<Child> {
    // Others start processes meanwhile.
    for _ in 0..300 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut child = sleeper();
        if child.id() == pid {
            return Some(child);
        }
        end(&mut child);
    }
    None
}

#[test]
fn a_held_process_is_never_confused_with_a_reused_pid() {
    if !is_root() {
        return;
    }
    let mut first = sleeper();
    let pid = Pid(first.id());
    let held = ProcRoot::live().holding(pid).unwrap();
    assert!(held.check(pid).is_ok());
    assert!(capture(&held, pid, &CaptureRequest::default()).is_ok());
    end(&mut first);
    let gone =
        |error: ProcError| assert!(matches!(error, ProcError::NoSuchProcess { .. }), "{error}");
    gone(held.check(pid).unwrap_err());
    let Some(mut other) = with_id(pid.0) else {
        return skip(&Lack::Machine("no process can be made with a chosen PID"));
    };
    let unheld = capture(&ProcRoot::live(), pid, &CaptureRequest::default());
    let answers = [
        held.check(pid).map(drop),
        held.read(pid, "stat").map(drop),
        held.read(pid, "smaps").map(drop),
        capture(&held, pid, &CaptureRequest::default()).map(drop),
        outline(&held, pid).map(drop),
        referenced::clear(&held, pid).map(drop),
        pagewise_proc::pagewise_pools::read(&held, pid).map(drop),
        held.holding(pid).map(drop),
    ];
    end(&mut other);
    assert!(unheld.is_ok(), "it is there for whoever asks anew");
    let [answers @ .., anew] = answers;
    assert!(anew.is_ok());
    for answer in answers {
        gone(answer.unwrap_err());
    }
}

#[test]
fn an_error_names_the_path_that_people_know() {
    let root = ProcRoot::live().holding(Pid(std::process::id())).unwrap();
    let pid = Pid(std::process::id());
    let error = root.read(pid, "no-such-file").unwrap_err().to_string();
    assert_eq!(error, format!("cannot read /proc/{}/no-such-file", pid.0));
}

#[test]
fn a_series_ends_with_its_process_also_where_another_gets_its_id() {
    if !is_root() {
        return;
    }
    let mut first = sleeper();
    let pid = first.id();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["diff", &pid.to_string(), "--every", "20ms", "--json"]);
    let mut series = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut rows = BufReader::new(series.stdout.take().unwrap()).lines();
    assert!(rows.next().unwrap().unwrap().starts_with('{'), "the first look is behind it");
    // While stopped, the series does not notice the time between the two processes.
    let it = rustix::process::Pid::from_raw(series.id().cast_signed()).unwrap();
    kill_process(it, Signal::STOP).unwrap();
    end(&mut first);
    let other = with_id(pid);
    kill_process(it, Signal::CONT).unwrap();
    let reader = thread::spawn(move || rows.count());
    let deadline = Instant::now() + Duration::from_secs(30);
    let ended = loop {
        match series.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let _ = series.kill();
    let _ = reader.join();
    let Some(mut other) = other else {
        return skip(&Lack::Machine("no process can be made with a chosen PID"));
    };
    end(&mut other);
    assert!(ended.is_some_and(|status| status.success()), "it went on with another process");
}
