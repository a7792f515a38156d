//! Commands and processes whose memory calls are traced: they behave like untraced processes, and
//! the tracer reports every call.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_sys::trace::TraceEnding;
use pagewise_sys::trace::calls::{TraceEvent, TraceEventKind, TracedProgram};

use crate::support::{acts, acts_static, kill, state, until, untraced_ending, within_patience};

/// Limit of the pause, longer than the pause of any process of these tests.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts `acts` with the words of `line` as arguments.
fn start(program: &Path, line: &str) -> TracedProgram {
    let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
    TracedProgram::spawn(program.as_os_str(), &words).unwrap().unwrap()
}

/// Returns all events until no task is left.
fn all(watched: &mut TracedProgram) -> Vec<TraceEvent> {
    let mut seen = Vec::new();
    while let Some(event) = watched.next().unwrap() {
        seen.push(event);
    }
    seen
}

#[test]
fn a_command_ends_as_without_us() {
    for program in [acts(), acts_static()].into_iter().flatten() {
        for line in [
            "exit 3",
            "exit_raw 4",
            "abort",
            "fault",
            "raise 15",
            "raise 9",
            "raise 5",
            "exit_in_thread 5",
            "outlive_main",
            "churn 4",
            "exec_in_thread 7",
            "vfork 10",
        ] {
            within_patience(|| {
                let mut watched = start(program, line);
                let seen = all(&mut watched);
                assert_eq!(watched.ending(), Some(untraced_ending(program, line)), "{line}");
                let first = seen.first().unwrap();
                assert_eq!(first.event, TraceEventKind::Executed { is_native: true }, "{line}");
            });
        }
    }
}

#[test]
fn every_call_that_begins_ends_with_its_result() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let began = Instant::now();
        let mut watched = start(acts, "churn 2");
        let mut open = std::collections::BTreeMap::new();
        let mut mapped = Vec::new();
        for seen in all(&mut watched) {
            match seen.event {
                TraceEventKind::Entered(call) => assert_eq!(open.insert(seen.tid, call), None),
                TraceEventKind::Left(done) => {
                    let call = open.remove(&seen.tid).unwrap();
                    assert!(done.took <= began.elapsed());
                    if call.name == "mmap" && call.arguments[1] == 18 << 20 {
                        mapped.push(done.result.unwrap());
                    }
                }
                _ => {}
            }
        }
        // The guarded 16 MiB that the program maps first.
        assert_eq!((mapped.len(), open.len()), (1, 0));
        assert!(mapped[0] > 0 && mapped[0].trailing_zeros() >= 12);
    });
}

#[test]
fn signals_reach_their_handlers_once() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let folder = tempfile::tempdir().unwrap();
        let counts = folder.path().join("counts");
        let mut watched = start(acts, &format!("signals 20 {}", counts.display()));
        let seen = all(&mut watched);
        assert_eq!(fs::read_to_string(counts).unwrap(), "usr1 20 rt 200 chld 20 trap 20\n");
        let born =
            seen.iter().filter(|seen| matches!(seen.event, TraceEventKind::Born { .. })).count();
        assert_eq!(born, 20);
    });
}

#[test]
fn descendants_are_listed_with_their_parent_and_shared_memory() {
    let Some(acts) = acts() else { return };
    // In these acts, each child exits with status 1 if it is traced.
    for (line, shares) in
        [("fork", false), ("vfork 10", true), ("clone", false), ("posix_spawn", true)]
    {
        within_patience(|| {
            let mut watched = start(acts, line);
            let seen = all(&mut watched);
            let born: Vec<(u32, bool)> = seen
                .iter()
                .filter_map(|seen| match seen.event {
                    TraceEventKind::Born { by, shares_memory } => Some((by, shares_memory)),
                    _ => None,
                })
                .collect();
            assert_eq!(born.first(), Some(&(watched.pid(), shares)), "{line}");
            let ended =
                seen.iter().filter(|seen| matches!(seen.event, TraceEventKind::Ended(_))).count();
            assert_eq!(ended, born.len() + 1, "{line}");
        });
    }
}

/// A program that was started by another thread, so that the tracing thread does not wait for its
/// end; killed when dropped.
struct ForeignProgram(Child);

impl ForeignProgram {
    fn start(program: &Path, line: &str) -> ForeignProgram {
        let (program, line) = (program.to_owned(), line.to_owned());
        let start = move || {
            let mut command = Command::new(program);
            command.args(line.split_whitespace()).stdout(Stdio::null()).spawn().unwrap()
        };
        ForeignProgram(thread::spawn(start).join().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn tracer(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("TracerPid:"));
        line.unwrap().trim_start_matches("TracerPid:").trim().to_owned()
    }
}

impl Drop for ForeignProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Traces a running process for `time`, and detaches from it.
fn watch(pid: u32, time: Duration) -> Vec<TraceEvent> {
    thread::spawn(move || {
        let mut watched = TracedProgram::attach(pid, Some(Instant::now() + time), PAUSE).unwrap();
        all(&mut watched)
    })
    .join()
    .unwrap()
}

#[test]
fn a_running_process_is_left_as_it_was() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counters");
        let running = ForeignProgram::start(acts, &format!("count 4 {}", file.display()));
        let count = || fs::read(&file).unwrap_or_default();
        let words = |bytes: &[u8]| -> Vec<u64> {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().take(4).map(|word| u64::from_ne_bytes(*word)).collect()
        };
        until("all threads count", || words(&count()).iter().filter(|n| **n > 0).count() == 4);
        for _ in 0..3 {
            let seen = watch(running.pid(), Duration::from_millis(50));
            assert_eq!(
                seen.first().map(|seen| seen.event),
                Some(TraceEventKind::Attached { is_native: true })
            );
            assert_eq!(running.tracer(), "0");
            let before = words(&count());
            until("every thread runs on", || {
                words(&count()).iter().zip(&before).all(|(now, before)| now > before)
            });
        }
    });
}

#[test]
fn a_stopped_process_stays_stopped() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let mut running = ForeignProgram::start(acts, "pause");
        let pid = running.pid();
        until("it pauses", || state(pid) == 'S');
        kill(pid, "STOP");
        until("it stops", || state(pid) == 'T');
        watch(pid, Duration::from_millis(50));
        assert_eq!(running.tracer(), "0");
        // Detaching wakes the process briefly, before it stops again without a tracer.
        until("it is stopped again", || state(pid) == 'T');
        thread::sleep(Duration::from_millis(50));
        assert_eq!(state(pid), 'T');
        kill(pid, "CONT");
        until("it goes on", || state(pid) == 'S');
        kill(pid, "TERM");
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(running.0.wait().unwrap().signal(), Some(15));
    });
}

#[test]
fn the_end_of_a_traced_process_ends_the_trace() {
    let Some(acts) = acts() else { return };
    within_patience(|| {
        let running = ForeignProgram::start(acts, "pause");
        let pid = running.pid();
        until("it pauses", || state(pid) == 'S');
        let watching = thread::spawn(move || {
            let mut watched = TracedProgram::attach(pid, None, PAUSE).unwrap();
            all(&mut watched);
            watched.ending()
        });
        until("it is watched", || running.tracer() != "0");
        kill(pid, "TERM");
        let ending = watching.join().unwrap();
        assert_eq!(ending, Some(TraceEnding::Killed { signal: 15, core: false }));
    });
}

#[test]
fn remaining_processes_of_a_filtered_command_end_with_the_trace() {
    within_patience(|| {
        let script = "sleep 50 >/dev/null 2>&1 & echo $! > $0; exit 4";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let words = ["-c".into(), script.into(), file.clone().into_os_string()];
        let mut watched = TracedProgram::spawn("sh".as_ref(), &words).unwrap().unwrap();
        while watched.ending().is_none() {
            watched.next().unwrap();
        }
        assert_eq!(watched.ending(), Some(TraceEnding::Exited(4)));
        let left: u32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        assert_eq!(watched.processes().into_iter().collect::<Vec<_>>(), [left]);
        drop(watched);
        until("it is gone", || !fs::exists(format!("/proc/{left}")).unwrap() || state(left) == 'Z');
    });
}

#[test]
fn a_signal_while_remaining_processes_are_killed_leaves_none_of_them_stopped() {
    within_patience(|| {
        // The end of all these processes takes longer than the interval of the timer that
        // interrupts waits.
        let script = "for i in $(seq 100); do sleep 50 >/dev/null 2>&1 & done";
        let words = ["-c".into(), script.into()];
        let mut watched = TracedProgram::spawn("sh".as_ref(), &words).unwrap().unwrap();
        while watched.ending().is_none() {
            watched.next().unwrap();
        }
        let left = watched.processes();
        assert_eq!(left.len(), 100);
        drop(watched);
        let is_gone = |pid: &u32| matches!(state(*pid), '-' | 'Z' | 'X');
        until("all are gone", || left.iter().all(is_gone));
    });
}

#[test]
fn a_trace_ends_although_a_process_is_killed_while_it_makes_children() {
    within_patience(|| {
        for milliseconds in 0..20 {
            let words = ["-c".into(), "while :; do (:) & done".into()];
            let mut watched = TracedProgram::spawn("sh".as_ref(), &words).unwrap().unwrap();
            let pid = watched.pid();
            let killer = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20 + milliseconds));
                kill(pid, "KILL");
            });
            all(&mut watched);
            assert_eq!(watched.ending(), Some(TraceEnding::Killed { signal: 9, core: false }));
            killer.join().unwrap();
        }
    });
}

#[test]
fn killed_processes_that_make_children_leave_none_of_them() {
    within_patience(|| {
        // A command-line argument that no other process has.
        let name = format!("50.{}", std::process::id());
        let script = format!("(while :; do sleep {name} & done) & exit");
        for _ in 0..10 {
            let words = ["-c".into(), script.clone().into()];
            let mut watched = TracedProgram::spawn("sh".as_ref(), &words).unwrap().unwrap();
            while watched.ending().is_none() || watched.processes().len() < 20 {
                watched.next().unwrap();
            }
            drop(watched);
            let found = || Command::new("pgrep").args(["-f", &name]).output().unwrap();
            until("all are gone", || found().stdout.is_empty());
        }
    });
}

#[test]
fn a_missing_process_cannot_be_watched() {
    let error = TracedProgram::attach(u32::MAX, None, PAUSE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(3));
    let error = TracedProgram::spawn("no-such-program-anywhere".as_ref(), &[]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}
