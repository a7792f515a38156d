//! Stops of a traced command, and the memory that can be read at each.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_sys::trace::{Stopped, TraceEnding, Traced};

use crate::support::{
    acts, acts_static, assert_memory_is_whole, ending, kill, spawn, state, until, untraced_ending,
    within_patience,
};

#[test]
fn memory_is_whole_at_every_kind_of_exit() {
    for program in [acts(), acts_static()].into_iter().flatten() {
        for line in [
            "exit 0",
            "exit 3",
            "exit 255",
            "exit_raw 4",
            "abort",
            "fault",
            "raise 15",
            "raise 9",
            "raise 31",
            "exit_in_thread 5",
            "outlive_main",
            "churn 10",
            "exec_in_thread 7",
            "fork",
            "posix_spawn",
            "vfork 10",
            "clone",
        ] {
            assert_eq!(ending(program, line), untraced_ending(program, line), "{line}");
        }
    }
}

#[test]
fn a_kill_from_outside_is_an_ending() {
    let Some(acts) = acts() else { return };
    for (signal, number) in [("TERM", 15), ("KILL", 9)] {
        within_patience(|| {
            let mut traced = spawn(acts, "pause");
            let pid = traced.pid();
            let killer = thread::spawn(move || {
                until("the command sleeps", || state(pid) == 'S');
                kill(pid, signal);
            });
            if traced.run(None).unwrap() == Stopped::AtExit {
                assert_memory_is_whole(pid);
            }
            killer.join().unwrap();
            assert_eq!(
                traced.finish().unwrap(),
                TraceEnding::Killed { signal: number, core: false }
            );
        });
    }
}

#[test]
fn a_kill_during_the_last_stop_does_not_hang_us() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut traced = spawn(acts, "exit 3");
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        kill(traced.pid(), "KILL");
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(3));
    });
}

#[test]
fn every_thread_is_still_listed_when_one_ends_the_process() {
    let Some(acts) = acts() else { return };
    for _ in 0..20 {
        within_patience(|| {
            let mut traced = spawn(acts, "exit_in_thread 5");
            assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
            let tasks = fs::read_dir(format!("/proc/{}/task", traced.pid())).unwrap();
            let tasks: Vec<u32> = tasks
                .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
                .collect();
            assert_eq!(tasks.len(), 10);
            // On busy CPUs some are still on the way to their last stop.
            until("all threads stop", || tasks.iter().all(|&task| state(task) == 't'));
            traced.finish().unwrap();
        });
    }
}

#[test]
fn after_the_main_thread_has_ended_another_one_can_be_read() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut traced = spawn(acts, "outlive_main");
        assert_eq!(traced.task(), traced.pid());
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_ne!(traced.task(), traced.pid());
        assert_eq!(state(traced.pid()), 'Z');
        assert_memory_is_whole(traced.task());
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(0));
    });
}

#[test]
fn only_the_last_program_of_a_chain_is_seen_at_its_exit() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let script = format!("exec sh -c 'true; exec {} exit 6'", acts.display());
        let mut traced = Traced::spawn("sh".as_ref(), &["-c".into(), script.into()]).unwrap();
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_memory_is_whole(traced.task());
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(6));
    });
}

/// The counters that `acts count` keeps in a file, one for each thread.
fn counters(file: &Path) -> Vec<u64> {
    let bytes = fs::read(file).unwrap_or_default();
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.take(4).collect()
}

/// Waits until each of the four threads has counted further.
fn until_all_run(file: &Path) {
    let mut before = counters(file);
    // Before the file is there, none has counted.
    before.resize(4, 0);
    until("all its threads run", || {
        let now = counters(file);
        now.len() == 4 && now.iter().zip(&before).all(|(now, before)| now != before)
    });
}

/// Number of threads that count within a tenth of a second.
fn moving(file: &Path) -> usize {
    let before = counters(file);
    thread::sleep(Duration::from_millis(100));
    counters(file).iter().zip(&before).filter(|(after, before)| after != before).count()
}

#[test]
fn at_a_time_all_threads_stop_and_run_on_after() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        let mut traced = spawn(acts, &format!("count 4 {}", file.display()));
        for _ in 0..3 {
            let begin = Instant::now();
            let deadline = begin + Duration::from_millis(200);
            assert_eq!(traced.run(Some(deadline)).unwrap(), Stopped::TimeIsUp);
            assert!(begin.elapsed() >= Duration::from_millis(200));
            until_all_run(&file);
            assert_eq!(traced.freeze().unwrap(), Stopped::AtTime);
            assert_eq!(moving(&file), 0);
            assert_memory_is_whole(traced.task());
            traced.thaw();
            until_all_run(&file);
        }
        kill(traced.pid(), "TERM");
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_eq!(traced.finish().unwrap(), TraceEnding::Killed { signal: 15, core: false });
    });
}

#[test]
fn a_time_after_the_exit_stops_at_the_exit() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut traced = spawn(acts, "exit 3");
        let deadline = Instant::now() + Duration::from_secs(50);
        assert_eq!(traced.run(Some(deadline)).unwrap(), Stopped::AtExit);
        assert_eq!(traced.freeze().unwrap(), Stopped::AtExit);
        assert_memory_is_whole(traced.task());
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(3));
    });
}

#[test]
fn a_command_can_be_stopped_while_it_waits_in_vfork() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut traced = spawn(acts, "vfork 90000");
        let pid = traced.pid();
        let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        until("it has a child", || {
            let deadline = Instant::now() + Duration::from_millis(10);
            assert_eq!(traced.run(Some(deadline)).unwrap(), Stopped::TimeIsUp);
            !children().is_empty()
        });
        assert_eq!(traced.freeze().unwrap(), Stopped::AtTime);
        assert_memory_is_whole(traced.task());
        // The command waits until its child ends, which is still there.
        kill(children().trim().parse().unwrap(), "KILL");
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(0));
    });
}

#[test]
fn a_command_that_is_let_go_runs_on_untraced() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        let mut traced = spawn(acts, &format!("count 4 {}", file.display()));
        until("it counts", || {
            counters(&file).iter().all(|&count| count > 0) || {
                traced.run(Some(Instant::now())).unwrap();
                false
            }
        });
        traced.freeze().unwrap();
        let pid = traced.pid();
        traced.let_go();
        until_all_run(&file);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("TracerPid:\t0\n"), "{status}");
        kill(pid, "TERM");
        assert_eq!(traced.finish().unwrap(), TraceEnding::Killed { signal: 15, core: false });
    });
}

#[test]
fn a_command_that_is_dropped_runs_on_untraced() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counters");
        let mut traced = spawn(acts, &format!("count 4 {}", file.display()));
        let pid = traced.pid();
        traced.run(Some(Instant::now() + Duration::from_millis(100))).unwrap();
        drop(traced);
        until_all_run(&file);
        kill(pid, "KILL");
    });
}

#[test]
fn the_end_does_not_wait_for_grandchildren() {
    within_patience(|| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > '{}'; exit 4", file.display());
        let mut traced = Traced::spawn("sh".as_ref(), &["-c".into(), script.into()]).unwrap();
        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(4));
        // It would not be there any more if anything had waited for it.
        kill(fs::read_to_string(file).unwrap().trim().parse().unwrap(), "KILL");
    });
}

#[test]
fn commands_and_children_of_other_threads_keep_their_endings() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || {
                    for round in 0..10 {
                        let code = worker * 10 + round;
                        // A child of this very thread, which ends while the command runs.
                        let mut child = Command::new("sh")
                            .args(["-c", &format!("exit {code}")])
                            .spawn()
                            .unwrap();
                        let mut traced = spawn(acts, &format!("exit_in_thread {code}"));
                        assert_eq!(traced.run(None).unwrap(), Stopped::AtExit);
                        assert_memory_is_whole(traced.task());
                        assert_eq!(traced.finish().unwrap(), TraceEnding::Exited(code));
                        assert_eq!(child.wait().unwrap().code(), Some(code));
                    }
                });
            }
        });
    });
}
