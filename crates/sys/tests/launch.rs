//! Commands started by a launcher: their endings and resource usage, which excludes the memory of
//! other processes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, skip};
use pagewise_sys::launch::{Launcher, RunOutcome};
use pagewise_sys::perf_event::{self, PerfCounter, PerfEvent, PerfScope, PerfType};
use pagewise_sys::region::AlignedRegion;
use pagewise_sys::trace::TraceEnding;
use rustix::fs::{CWD, FileType, Mode, mknodat};

fn start(program: &str, words: &[&str], cpu: Option<u32>) -> io::Result<Launcher> {
    let words: Vec<OsString> = words.iter().map(Into::into).collect();
    Launcher::start(OsStr::new(program), &words, cpu)
}

fn run(launcher: &mut Launcher) -> io::Result<RunOutcome> {
    Ok(launcher
        .launch(|_| Ok::<_, io::Error>(()))?
        .wait(None)?
        .expect("without a deadline it waits for the end"))
}

fn shell(script: &str) -> Launcher {
    start("sh", &["-c", script], None).expect("there is a shell")
}

#[test]
fn each_run_ends_in_its_own_way() {
    let killed = |signal| TraceEnding::Killed { signal, core: false };
    for (script, ending) in [
        ("exit 0", TraceEnding::Exited(0)),
        ("exit 3", TraceEnding::Exited(3)),
        ("kill -9 $$", killed(9)),
    ] {
        let mut launcher = shell(script);
        for _ in 0..3 {
            assert_eq!(run(&mut launcher).unwrap().ending, ending, "{script}");
        }
    }
}

#[test]
fn a_program_that_cannot_be_executed_has_an_error() {
    let kind = |program| match start(program, &[], None) {
        Ok(mut launcher) => run(&mut launcher).unwrap_err().kind(),
        Err(error) => error.kind(),
    };
    assert_eq!(kind("no-such-program"), io::ErrorKind::NotFound);
    assert_eq!(kind("/no/such/program"), io::ErrorKind::NotFound);
    assert_eq!(kind("/dev/null"), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_large_parent_does_not_make_the_command_large() {
    let before = run(&mut start("true", &[], None).unwrap()).unwrap();
    let mut launcher = start("true", &[], None).unwrap();
    let mut large = AlignedRegion::map(256 << 20, 1 << 21).unwrap();
    large.bytes().fill(1);
    let outcome = run(&mut launcher).unwrap();
    assert!(outcome.usage.max_rss < 16 << 20, "{outcome:?}");
    assert!(outcome.floor <= outcome.usage.max_rss && outcome.floor < 8 << 20, "{outcome:?}");
    assert!(before.floor < 8 << 20, "{before:?}");
    // A launcher that is forked too late has the resident memory of its parent, and reports it as
    // `floor`. A part of this memory may be in swap.
    let late = run(&mut start("true", &[], None).unwrap()).unwrap();
    assert!(late.floor > 200 << 20 && late.usage.max_rss >= late.floor, "{late:?}");
}

#[test]
fn children_of_children_count_too() {
    let mut launcher = shell("(head -c 100000000 /dev/zero | wc -c >/dev/null); true");
    let outcome = run(&mut launcher).unwrap();
    let used = outcome.usage.user + outcome.usage.system;
    assert!(used > Duration::from_millis(1), "{outcome:?}");
    let alone = run(&mut shell("true")).unwrap();
    assert!(outcome.usage.minor_faults > alone.usage.minor_faults, "{outcome:?} {alone:?}");
}

#[test]
fn a_deadline_passes_and_the_command_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut launcher = start("cat", &[fifo.to_str().unwrap()], None).unwrap();
    let mut running = launcher.launch(|_| Ok::<_, io::Error>(())).unwrap();
    let soon = Instant::now() + Duration::from_millis(10);
    assert_eq!(running.wait(Some(soon)).unwrap(), None);
    let task = format!("/proc/{}/comm", running.pid());
    // A slow machine needs longer until the command is executed.
    while std::fs::read_to_string(&task).unwrap() != "cat\n" {
        assert!(soon.elapsed() < Duration::from_secs(60), "it is not executed");
        std::thread::sleep(Duration::from_millis(1));
    }
    let executed = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    let waited = executed.elapsed();
    // The command waits until a process has opened the FIFO for writing.
    drop(std::fs::File::options().write(true).open(&fifo).unwrap());
    let outcome = running.wait(None).unwrap().unwrap();
    assert!(outcome.wall >= waited, "{outcome:?}");
    assert_eq!(outcome.ending, TraceEnding::Exited(0));
}

#[test]
fn a_pinned_command_stays_on_its_cpu() {
    let script = "grep -q '^Cpus_allowed_list:\t0$' /proc/self/status";
    let mut launcher = start("sh", &["-c", script], Some(0)).unwrap();
    assert_eq!(run(&mut launcher).unwrap().ending, TraceEnding::Exited(0));
    for none in [1023, u32::MAX] {
        assert_eq!(start("true", &[], Some(none)).unwrap_err().raw_os_error(), Some(22));
    }
}

#[test]
fn counters_opened_on_the_held_child_count_the_command_and_its_children() {
    let mode = perf_event::Mode {
        inherit: true,
        disabled: true,
        enable_on_exec: true,
        exclude_kernel: false,
        exclude_user: false,
    };
    let faults = PerfEvent::new(PerfType::SOFTWARE, 2);
    // `dd` reads into memory that it has not touched before.
    let scripts = ["true", "dd if=/dev/zero of=/dev/null bs=16M count=1 2>/dev/null"];
    let mut counts = Vec::new();
    for script in scripts {
        let mut launcher = shell(script);
        for _ in 0..3 {
            let mut counter = None;
            let prepare = |pid| {
                counter = Some(PerfCounter::open(faults, PerfScope::Thread(pid), mode, None)?);
                Ok::<_, io::Error>(())
            };
            let mut running = match launcher.launch(prepare) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return skip(&Lack::Refused { call: "perf_event_open", error: &error });
                }
                running => running.unwrap(),
            };
            let usage = running.wait(None).unwrap().unwrap().usage;
            let counted = counter.unwrap().read().unwrap();
            // Only one of the two counts includes page faults of `exec` itself, for the arguments
            // of the command.
            let all = usage.minor_faults + usage.major_faults;
            assert!(counted.value <= all && all <= counted.value + 20, "{counted:?} {usage:?}");
            assert!(counted.enabled > 0, "{counted:?}");
            counts.push(counted.value);
        }
    }
    assert!(counts[3..].iter().all(|count| *count > counts[0] + 50), "{counts:?}");
}

#[test]
fn a_failed_preparation_prevents_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ran");
    let mut launcher = start("touch", &[file.to_str().unwrap()], None).unwrap();
    let refused = launcher.launch(|_| Err(io::Error::from(io::ErrorKind::Unsupported)));
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert!(!file.exists());
    assert_eq!(run(&mut launcher).unwrap().ending, TraceEnding::Exited(0));
    assert!(file.exists());
}

#[test]
fn the_command_has_no_file_of_ours() {
    let script = "exit $(ls /proc/self/fd | wc -l)";
    let plainly = std::process::Command::new("sh").args(["-c", script]).status().unwrap();
    let mut launcher = shell(script);
    assert_eq!(run(&mut launcher).unwrap().ending, TraceEnding::Exited(plainly.code().unwrap()));
}
