//! Prints the time that each reading of a process takes, and the lower bound: the time that the
//! kernel needs to write the `smaps` of the process.
//!
//! `cargo run --release -p pagewise-proc --example reading PID`
#![expect(clippy::print_stdout, reason = "an example tells what it found")]

use std::process::{Command, Stdio};
use std::time::Instant;

use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::{ProcError, ProcRoot, target};

const ROUNDS: usize = 21;

fn main() -> Result<(), ProcError> {
    let root = ProcRoot::live();
    let pid = target::find(&root, &std::env::args().nth(1).unwrap_or("self".into()))?;
    let cat = format!("/proc/{pid}/smaps");
    let wishes = [("full", Wish::Full), ("fast", Wish::Fast), ("polite", Wish::Polite)];
    let mut floor = Vec::new();
    let mut ours = vec![Vec::new(); wishes.len()];
    for _ in 0..ROUNDS {
        floor.push(millis(|| {
            let done = Command::new("cat").arg(&cat).stdout(Stdio::null()).status();
            assert!(done.is_ok_and(|status| status.success()), "cat {cat} failed");
        }));
        for ((_, wish), times) in wishes.iter().zip(&mut ours) {
            let request = CaptureRequest { wish: *wish, ..CaptureRequest::default() };
            let mut snapshot = None;
            times.push(millis(|| snapshot = Some(capture(&root, pid, &request))));
            snapshot.expect("the closure ran")?;
        }
    }
    println!("{:<12}{:>8.1} ms", "cat smaps", median(&mut floor));
    for ((name, _), times) in wishes.iter().zip(&mut ours) {
        let mid = median(times);
        println!("{name:<12}{mid:>8.1} ms{:>8.2}x", mid / median(&mut floor));
    }
    Ok(())
}

fn millis(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64() * 1e3
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
