//! Borrowed threads go on as if nothing had been.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]
#![cfg(target_arch = "x86_64")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use pagewise_sys::borrow::Borrowed;
use pagewise_sys::madvise::Advice;

const SIZE: u64 = 4 << 20;

/// `loops.c`, running.
struct Loops {
    child: Child,
    stdout: BufReader<ChildStdout>,
    memory: Range<u64>,
    threads: Vec<u32>,
}

impl Loops {
    fn start() -> Loops {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loops");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/borrow/loops.c");
        // Each test builds its own, so that none runs what another is writing.
        let program = program.with_extension(format!("{:?}", std::thread::current().id()));
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o"];
        let built = Command::new("cc").args(flags).arg(&program).status().unwrap();
        assert!(built.success(), "the tests need a C compiler called cc");
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let words: Vec<u64> = line.split(' ').skip(1).map(|w| w.trim().parse().unwrap()).collect();
        let threads = words[1..].iter().map(|&tid| u32::try_from(tid).unwrap()).collect();
        Loops { child, stdout, memory: words[0]..words[0] + SIZE, threads }
    }

    fn vdso(&self) -> Range<u64> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
        hex(start)..hex(end)
    }

    /// The `VmFlags` of its memory.
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

    /// Ends it; it has checked that every loop went on.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "a loop was disturbed: {rest}");
    }
}

#[test]
fn every_kind_of_thread_can_be_borrowed_again_and_again() {
    let loops = Loops::start();
    let vdso = loops.vdso();
    let mut stops = Vec::new();
    for round in 0..300 {
        for &tid in &loops.threads {
            let mut thread = Borrowed::stop(tid, vdso.clone()).unwrap();
            let advice = if round % 2 == 0 { Advice::NoHugePage } else { Advice::HugePage };
            thread.advise(loops.memory.clone(), advice).unwrap();
            let error = thread.advise(1..2, advice).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(22), "an odd address is EINVAL");
            stops.push(thread.give_back());
        }
        let expected = if round % 2 == 0 { " nh " } else { " hg " };
        assert!(loops.flags().contains(expected), "{}", loops.flags());
    }
    stops.sort();
    assert!(stops[stops.len() / 2] < Duration::from_millis(5), "{:?}", stops[stops.len() / 2]);
    loops.end();
}

#[test]
fn a_thread_that_made_no_call_goes_on_as_well() {
    let loops = Loops::start();
    for _ in 0..100 {
        for &tid in &loops.threads {
            drop(Borrowed::stop(tid, loops.vdso()).unwrap());
        }
    }
    loops.end();
}

#[test]
fn a_stopped_process_stays_stopped() {
    let loops = Loops::start();
    let signal = |name: &str| {
        let pid = loops.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    };
    let settles = |state: char| {
        (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            loops.state() == state
        })
    };
    signal("STOP");
    assert!(settles('T'));
    let mut thread = Borrowed::stop(loops.threads[0], loops.vdso()).unwrap();
    thread.advise(loops.memory.clone(), Advice::NoHugePage).unwrap();
    thread.give_back();
    assert!(loops.flags().contains(" nh "));
    assert!(settles('T'));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(loops.state(), 'T');
    signal("CONT");
    assert!(settles('S'));
    loops.end();
}

#[test]
fn a_thread_that_is_gone_or_traced_is_an_error() {
    let loops = Loops::start();
    let vdso = loops.vdso();
    let first = Borrowed::stop(loops.threads[0], vdso.clone()).unwrap();
    assert!(Borrowed::stop(loops.threads[0], vdso.clone()).is_err());
    first.give_back();
    let nothing = Borrowed::stop(loops.threads[0], 0..0x1000).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::Unsupported);
    let pid = loops.threads[0];
    loops.end();
    assert_eq!(Borrowed::stop(pid, vdso).unwrap_err().raw_os_error(), Some(3));
}

#[test]
fn a_thread_that_is_killed_meanwhile_is_an_error() {
    let mut loops = Loops::start();
    let mut thread = Borrowed::stop(loops.threads[0], loops.vdso()).unwrap();
    loops.child.kill().unwrap();
    let error = thread.advise(loops.memory.clone(), Advice::NoHugePage).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(3), "{error}");
    drop(thread);
    loops.child.wait().unwrap();
}

#[test]
fn huge_pages_can_be_forbidden_to_a_whole_process() {
    let loops = Loops::start();
    let mut thread = Borrowed::stop(loops.threads[0], loops.vdso()).unwrap();
    thread.disable_huge_pages().unwrap();
    thread.give_back();
    let status = fs::read_to_string(format!("/proc/{}/status", loops.child.id())).unwrap();
    assert!(status.contains("THP_enabled:\t0"), "{status}");
    loops.end();
}
