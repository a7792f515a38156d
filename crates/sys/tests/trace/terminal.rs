//! Signals of a terminal or a shell to a whole job, which is pagewise and the command.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{kill, kill_group, state, tracer, until};

/// A tracer of a shell script, in a process group of its own.
struct Job(Child);

impl Job {
    fn start(script: &str) -> Job {
        Job(tracer().args(["sh", "-c", script]).process_group(0).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// PID of the command, which is the tracer's only child.
    fn command(&self) -> u32 {
        let mut pid = None;
        until("the command runs", || {
            let pgrep =
                Command::new("pgrep").args(["-x", "-P", &self.pid().to_string(), "sh"]).output();
            pid = String::from_utf8_lossy(&pgrep.unwrap().stdout).trim().parse().ok();
            pid.is_some()
        });
        pid.unwrap()
    }

    /// Waits until the script has printed a line, which it does after it has set its traps.
    fn ready(&mut self) {
        let mut byte = [0];
        self.0.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    }

    fn exit_code(mut self) -> i32 {
        let mut code = None;
        until("the job ends", || {
            code = self.0.try_wait().unwrap().map(|status| status.code());
            code.is_some()
        });
        code.flatten().unwrap()
    }
}

#[test]
fn an_interrupt_is_the_commands_to_handle() {
    let mut job = Job::start("trap 'exit 5' INT; echo; while :; do sleep 0.01; done");
    job.ready();
    kill_group(job.pid(), "INT");
    assert_eq!(job.exit_code(), 5);
}

#[test]
fn an_interrupt_that_kills_the_command_leaves_us_to_report_it() {
    for (signal, number) in [("INT", 2), ("QUIT", 3)] {
        let mut job = Job::start("echo; exec sleep 50");
        job.ready();
        kill_group(job.pid(), signal);
        assert_eq!(job.exit_code(), 128 + number);
    }
}

#[test]
fn a_terminal_stop_stops_both_and_a_continue_wakes_both() {
    // The script starts no child: a shell that waits in vfork cannot stop before the child has
    // called `exec`, and a child that stops before its `exec` stays stopped.
    let folder = tempfile::tempdir().unwrap();
    let end = folder.path().join("end");
    let count = "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done";
    let file = end.display();
    let mut job = Job::start(&format!("echo; while [ ! -e '{file}' ]; do {count}; done; exit 6"));
    job.ready();
    let command = job.command();
    for _ in 0..3 {
        kill_group(job.pid(), "TSTP");
        until("the tracer stops", || state(job.pid()) == 'T');
        assert!(matches!(state(command), 't' | 'T'));
        kill_group(job.pid(), "CONT");
        until("both run", || state(job.pid()) == 'S' && matches!(state(command), 'S' | 'R'));
    }
    fs::write(&end, "").unwrap();
    assert_eq!(job.exit_code(), 6);
}

#[test]
fn a_command_that_ignores_a_terminal_stop_is_not_left_without_us() {
    let mut job = Job::start("trap '' TSTP; echo; sleep 5; exit 6");
    job.ready();
    kill_group(job.pid(), "TSTP");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        assert_ne!(state(job.pid()), 'T');
        thread::sleep(Duration::from_millis(2));
    }
    until("the tracer waits", || state(job.pid()) == 'S');
    assert_eq!(job.exit_code(), 6);
}

#[test]
fn the_command_outlives_a_killed_tracer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("done");
    let mut job = Job::start(&format!("echo; sleep 0.5; echo survived > {}", file.display()));
    job.ready();
    kill(job.pid(), "KILL");
    job.0.wait().unwrap();
    until("the command ends by itself", || {
        fs::read_to_string(&file).is_ok_and(|text| text == "survived\n")
    });
}
