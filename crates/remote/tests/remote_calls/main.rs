//! Threads that make remote calls continue undisturbed.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::io::ErrorKind::TimedOut;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use pagewise_model::{Mapping, Pid};
use pagewise_proc::{ProcRoot, target_file, variables};
use pagewise_remote::{
    Alone, ForkedSnapshot, FunctionThread, Keeper, RemoteError, RemoteProcess, Scratch, Tracee,
    Undo,
};
use pagewise_sys::madvise::Advice;

const SIZE: u64 = 4 << 20;
/// Minimum number of iterations of the loop of a test, even if its time limit has passed.
const MIN_ROUNDS: u32 = 20;
/// Time limit of a test, after which it ends early.
const LONG: Duration = Duration::from_secs(60);

/// A running process of `loops.c`.
struct Loops {
    child: Child,
    stdout: BufReader<ChildStdout>,
    memory: Range<u64>,
    threads: Vec<u32>,
}

impl Loops {
    fn start() -> Loops {
        Loops::run(&Loops::program())
    }

    /// Path of the program. On a machine without a compiler, `PAGEWISE_TEST_PROGRAMS` names a
    /// folder with the built program.
    fn program() -> PathBuf {
        if let Some(folder) = std::env::var_os("PAGEWISE_TEST_PROGRAMS") {
            return PathBuf::from(folder).join("loops");
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loops");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote_calls/loops.c");
        // Each test builds its own program, so that no test executes a file that another test is
        // writing.
        let program = program.with_extension(format!("{:?}", std::thread::current().id()));
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o"];
        let built = Command::new("cc").args(flags).arg(&program).status().unwrap();
        assert!(built.success(), "the tests need a C compiler called cc");
        program
    }

    fn run(program: &Path) -> Loops {
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let words: Vec<u64> = line.split(' ').skip(1).map(|w| w.trim().parse().unwrap()).collect();
        let threads = words[1..].iter().map(|&tid| u32::try_from(tid).unwrap()).collect();
        Loops { child, stdout, memory: words[0]..words[0] + SIZE, threads }
    }

    fn target(&self) -> RemoteProcess {
        RemoteProcess::open(self.child.id(), None).unwrap()
    }

    /// Returns the `VmFlags` of the program's memory.
    fn flags(&self) -> String {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let from = smaps.find(&format!("{:x}-", self.memory.start)).unwrap();
        let line = smaps[from..].lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        format!("{line} ")
    }

    fn state(&self) -> char {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    }

    /// Ends the program, which has checked that all of its loops continued.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "a loop was disturbed: {rest}");
    }
}

/// Stops a thread, and prepares it to make calls.
fn ready(target: &RemoteProcess, tid: u32) -> Tracee {
    let mut thread = target.stop(tid).unwrap().expect("it lives");
    target.prepare(&mut thread).unwrap();
    thread
}

#[test]
fn every_kind_of_thread_makes_remote_calls_again_and_again() {
    let loops = Loops::start();
    let target = loops.target();
    let began = Instant::now();
    for round in 0..300 {
        // An emulated machine is a hundred times slower.
        if round >= MIN_ROUNDS && began.elapsed() > LONG {
            break;
        }
        for &tid in &loops.threads {
            let mut thread = ready(&target, tid);
            let advice = if round % 2 == 0 { Advice::NoHugePage } else { Advice::HugePage };
            thread.advise(loops.memory.clone(), advice).unwrap();
            let error = thread.advise(1..2, advice).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(22), "an odd address is EINVAL");
            thread.release();
        }
        let expected = if round % 2 == 0 { " nh " } else { " hg " };
        assert!(loops.flags().contains(expected), "{}", loops.flags());
    }
    loops.end();
}

#[test]
fn a_thread_that_made_no_call_goes_on_as_well() {
    let loops = Loops::start();
    let target = loops.target();
    for _ in 0..100 {
        for &tid in &loops.threads {
            drop(target.stop(tid).unwrap().unwrap());
        }
        drop(target.stop_all(Duration::from_secs(60)).unwrap());
    }
    loops.end();
}

/// The tracing thread ends during a remote call: the kernel detaches its tracees as if the process
/// were killed.
#[test]
fn threads_restore_themselves_after_the_end_of_their_tracer() {
    let loops = Loops::start();
    let target = loops.target();
    for round in 0..200 {
        for &tid in &loops.threads {
            pagewise_remote::on_tracer_thread(|| {
                let mut thread = ready(&target, tid);
                if round % 2 == 0 {
                    thread.advise(loops.memory.clone(), Advice::NoHugePage).unwrap();
                }
                // The thread has registers of a remote call, and all signals blocked.
                std::mem::forget(thread);
            });
        }
    }
    loops.end();
}

#[test]
fn calls_are_made_alone_and_threads_restore_themselves_from_there_too() {
    let loops = Loops::start();
    let target = loops.target();
    let mut thread = target.any_thread().unwrap();
    let threads = loops.threads.len() + 4;
    let size = Alone::scratch_size(&mut thread, threads).unwrap();
    let scratch = Scratch::map(&target, &mut thread, size, &mut ()).unwrap();
    drop(thread);
    for round in 0..200 {
        let dies = round % 2 == 0;
        pagewise_remote::on_tracer_thread(|| {
            let stopped = target.stop_all(Duration::from_secs(60)).unwrap();
            let mut alone = Alone::begin(&target, &scratch, stopped).unwrap().unwrap();
            for _ in 0..round % 3 {
                alone.advise(loops.memory.clone(), Advice::NoHugePage).unwrap();
            }
            if dies {
                std::mem::forget(alone);
            } else {
                alone.end();
            }
        });
        // The gate is used again only after the other threads have passed it.
        let uses = |thread: &Tracee| scratch.range().contains(thread.place().stack);
        while target.stop_all(Duration::from_secs(60)).unwrap().iter().any(uses) {}
    }
    let undo = format!("{} {} {}", target.pid(), target.start_ticks(), scratch.range());
    let undo: pagewise_remote::Undo = undo.parse().unwrap();
    assert!(undo.carry_out(Duration::from_secs(60)).unwrap());
    assert!(!undo.carry_out(Duration::from_secs(60)).unwrap(), "there is nothing to do twice");
    let maps = fs::read_to_string(format!("/proc/{}/maps", loops.child.id())).unwrap();
    assert!(!maps.contains(&scratch.range().to_string()));
    loops.end();
}

/// Notes that were written and not removed.
#[derive(Default)]
struct NotedUndos(Vec<Undo>);

impl Keeper for NotedUndos {
    fn note(&mut self, undo: &Undo) {
        self.0.push(*undo);
    }

    fn strike(&mut self, undo: &Undo) {
        self.0.retain(|noted| noted != undo);
    }
}

/// PIDs of the children of a process, including zombies.
fn children(pid: u32) -> Vec<u32> {
    let folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = folders.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let is_child = |child: &u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(pid)
    };
    pids.filter(is_child).collect()
}

/// Waits until a process has no children; false if it still has children at the time limit.
fn is_childless(pid: u32) -> bool {
    (0..12_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        children(pid).is_empty()
    })
}

#[test]
fn a_snapshot_has_the_memory_of_its_time_and_leaves_no_child() {
    let loops = Loops::start();
    let target = loops.target();
    let code = target.memory();
    for _ in 0..20 {
        let mut noted = NotedUndos::default();
        pagewise_remote::on_tracer_thread(|| {
            let mut stopped = target.stop_all(Duration::from_secs(60)).unwrap();
            let snapshot = ForkedSnapshot::fork(&target, &mut stopped, &mut noted).unwrap();
            let at = stopped[0].place().stack & !15;
            let read = |pid: u32| {
                let mut bytes = vec![0; 64];
                let range = at..at + 64;
                pagewise_sys::remote::read(pid, std::slice::from_ref(&range), &mut bytes).unwrap();
                bytes
            };
            let before = [read(target.pid()), read(snapshot.child())];
            assert_eq!(before[0], before[1]);
            // The child has not returned from the `clone` call that created it.
            let place =
                pagewise_remote::StopPoint::of_traced(snapshot.child().cast_signed()).unwrap();
            let mut instructions = [0; 3];
            code.read(place.instruction - 2, &mut instructions).unwrap();
            assert_eq!(instructions, [0x0f, 0x05, 0xc3], "behind `syscall`, at `ret`");
            assert_eq!(noted.0.len(), 1);
            drop(stopped);
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(
                read(snapshot.child()),
                before[1],
                "the process ran on, the snapshot did not"
            );
            snapshot.end(&mut noted).unwrap();
        });
        assert_eq!(noted.0, []);
        assert_eq!(children(target.pid()), Vec::<u32>::new());
    }
    loops.end();
}

/// The tracing thread ends after the fork without cleaning up, as if pagewise were killed: before
/// or after the stopped threads have their own registers again.
#[test]
fn a_snapshot_of_a_tracer_that_died_is_waited_for() {
    let loops = Loops::start();
    let target = loops.target();
    for round in 0..20 {
        let mut noted = NotedUndos::default();
        pagewise_remote::on_tracer_thread(|| {
            let mut stopped = target.stop_all(Duration::from_secs(60)).unwrap();
            let snapshot = ForkedSnapshot::fork(&target, &mut stopped, &mut noted).unwrap();
            match round % 2 {
                // The forking thread still has the registers of its last call, so it waits for the
                // child itself.
                0 => stopped.into_iter().for_each(std::mem::forget),
                _ => drop(stopped),
            }
            std::mem::forget(snapshot);
        });
        if round % 2 == 1 {
            let [undo] = noted.0[..] else { panic!("{:?}", noted.0) };
            let undo: Undo = undo.to_string().parse().unwrap();
            assert!(undo.carry_out(Duration::from_secs(60)).unwrap());
            assert!(
                !undo.carry_out(Duration::from_secs(60)).unwrap(),
                "there is nothing to do twice"
            );
        }
        assert!(is_childless(target.pid()), "round {round}");
    }
    loops.end();
}

/// Address of a function in the C library of a process.
fn function(target: &RemoteProcess, name: &str) -> u64 {
    let root = ProcRoot::live();
    let mappings = target.mappings().unwrap();
    let libc = |it: &&Mapping| it.prot.exec && it.name.base().starts_with(b"libc.so");
    let libc = mappings.iter().find(libc).unwrap();
    let file = target_file::open_mapped(&root, Pid(target.pid()), libc).unwrap();
    let found = variables::functions(&file, &[name]);
    libc.range.start + (found[0].offset - libc.offset)
}

#[test]
fn a_function_runs_on_one_more_thread_which_is_gone_afterwards() {
    let loops = Loops::start();
    let target = loops.target();
    let trim = function(&target, "malloc_trim");
    let (before, mut ran) = (target.threads().unwrap().len(), 0);
    for round in 0..20 {
        let mut noted = NotedUndos::default();
        let thread = match FunctionThread::start(&target, trim, 0, &mut noted) {
            Ok(thread) => thread,
            // On a busy machine, the call that creates the additional thread may time out. The
            // thread that was left to make this call creates the additional thread later, or has
            // created it.
            Err(RemoteError::System { source, .. }) if source.kind() == TimedOut => {
                let undone = noted.0.iter().all(|it| it.carry_out(Duration::from_secs(60)).is_ok());
                assert!(undone, "{:?}", noted.0);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        ran += 1;
        match round % 2 {
            0 => {
                assert!(thread.wait(Duration::from_secs(60)).unwrap());
                thread.unmap(&mut noted);
                assert_eq!(noted.0, []);
            }
            // The function is left running, as if pagewise were killed.
            _ => {
                thread.leave();
                let [undo] = noted.0[..] else { panic!("{:?}", noted.0) };
                let undo: Undo = undo.to_string().parse().unwrap();
                assert!(undo.carry_out(Duration::from_secs(60)).unwrap());
            }
        }
        // The additional thread stops using the memory shortly before it has ended.
        while target.threads().unwrap().len() > before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(ran > 0, "no function ran");
    loops.end();
}

#[test]
fn a_pause_that_is_too_long_is_refused_before_it_begins() {
    let loops = Loops::start();
    let target = loops.target();
    let error = target.stop_all(Duration::from_micros(30)).unwrap_err();
    assert!(matches!(error, RemoteError::PauseTooLong { .. }), "{error}");
    loops.end();
}

#[test]
fn a_stopped_process_stays_stopped() {
    let loops = Loops::start();
    let target = loops.target();
    let signal = |name: &str| {
        let pid = loops.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    };
    let settles = |state: char| {
        (0..30_000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            loops.state() == state
        })
    };
    for dies in [false, true] {
        signal("STOP");
        assert!(settles('T'));
        pagewise_remote::on_tracer_thread(|| {
            let mut thread = ready(&target, loops.threads[0]);
            thread.advise(loops.memory.clone(), Advice::NoHugePage).unwrap();
            if dies {
                std::mem::forget(thread);
            }
        });
        assert!(loops.flags().contains(" nh "));
        assert!(settles('T'));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(loops.state(), 'T');
        signal("CONT");
        assert!(settles('S'));
    }
    loops.end();
}

#[test]
fn an_ended_or_traced_thread_is_an_error() {
    let loops = Loops::start();
    let target = loops.target();
    let first = ready(&target, loops.threads[0]);
    assert!(matches!(target.stop(loops.threads[0]), Err(RemoteError::NotPermitted)));
    first.release();
    let pid = loops.threads[0];
    loops.end();
    assert!(target.stop(pid).unwrap().is_none());
    assert!(matches!(target.any_thread(), Err(RemoteError::Gone)));
    assert!(matches!(RemoteProcess::open(pid, None), Err(RemoteError::Gone)));
}

#[test]
fn another_process_with_a_reused_pid_is_not_ours() {
    let loops = Loops::start();
    let start = loops.target().start_ticks();
    assert!(matches!(
        RemoteProcess::open(loops.child.id(), Some(start + 1)),
        Err(RemoteError::Gone)
    ));
    loops.end();
}

#[test]
fn a_thread_that_is_killed_meanwhile_is_an_error() {
    let mut loops = Loops::start();
    let target = loops.target();
    let mut thread = ready(&target, loops.threads[0]);
    loops.child.kill().unwrap();
    let error = thread.advise(loops.memory.clone(), Advice::NoHugePage).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(3), "{error}");
    drop(thread);
    loops.child.wait().unwrap();
}

#[test]
fn huge_pages_can_be_forbidden_to_a_whole_process() {
    let loops = Loops::start();
    let mut thread = ready(&loops.target(), loops.threads[0]);
    thread.disable_huge_pages().unwrap();
    thread.release();
    let status = fs::read_to_string(format!("/proc/{}/status", loops.child.id())).unwrap();
    assert!(status.contains("THP_enabled:\t0"), "{status}");
    loops.end();
}
