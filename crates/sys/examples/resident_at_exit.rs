//! Runs a command and prints its resident memory at exit on standard error.
//!
//! `cargo run -p pagewise-sys --example resident_at_exit -- ls -l`

#![expect(clippy::print_stderr, reason = "an example reports on standard error")]

use std::ffi::OsString;
use std::process::ExitCode;

use pagewise_sys::system::page_size;
use pagewise_sys::trace::{Stopped, TraceEnding, Traced};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((program, arguments)) = words.split_first() else {
        eprintln!("usage: resident_at_exit COMMAND [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let mut command = match Traced::spawn(program, arguments) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("cannot run it: {error}");
            return ExitCode::from(127);
        }
    };
    if let Some(reason) = command.untraced() {
        eprintln!("not traced: {reason}");
    }
    match command.run(None) {
        Ok(Stopped::AtExit) => eprintln!("resident at exit: {} bytes", resident(command.task())),
        other => eprintln!("not seen at exit: {other:?}"),
    }
    match command.finish() {
        Ok(TraceEnding::Exited(status)) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        Ok(TraceEnding::Killed { signal, .. }) => {
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("cannot wait for it: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The second number of `/proc/<pid>/statm`, in bytes.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * page_size()
}
