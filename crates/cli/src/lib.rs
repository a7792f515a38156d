//! The `pagewise` command: parses the options, prints the reports, and returns the exit code. It is
//! a library, which the program, its static build and the tests share.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage; a closed pipe is not an error. `explain -- COMMAND`
//! and similar commands return the command's own code.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod helper;
mod keeper;
mod output;
mod pause;
mod shield;
mod target;
mod terminal;

use std::io;
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::Cli;
use crate::commands::run_command::NotRun;
use crate::output::{note, write_stderr};

/// Runs the command with the arguments and in the environment of this process.
pub fn main() -> ExitCode {
    let mut command = commands::table::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return show(&error.format(&mut command)),
    };
    let done = cli.command.run(&cli.look);
    done.unwrap_or_else(|error| fail(&error))
}

/// Prints what clap has to say: help, the version, or what is wrong with the options.
fn show(said: &clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(2);
    match said.print() {
        // Requested output must arrive; the exit code reports errors in any case.
        Err(error) if !said.use_stderr() => {
            fail(&anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => ExitCode::from(code),
    }
}

/// Prints the chain of causes and the next step, and chooses the exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let chain: Vec<String> = error.chain().map(|cause| clean(&cause.to_string())).collect();
    note(chain.join(": "));
    if let Some(hint) = hint(error) {
        write_stderr(&format!("  → {}\n", clean(&hint)));
    }
    if let Some(not_run) = error.downcast_ref::<NotRun>() {
        return ExitCode::from(not_run.code());
    }
    ExitCode::from(if error.is::<target::UsageError>() { 2 } else { 1 })
}

/// Advice for the reader.
fn hint(error: &anyhow::Error) -> Option<String> {
    let proc = error.downcast_ref::<pagewise_proc::ProcError>().and_then(|error| error.hint());
    proc.or_else(|| {
        error.downcast_ref::<pagewise_repair::RepairError>().and_then(|error| error.hint())
    })
    .or_else(|| {
        error.downcast_ref::<pagewise_measure::MeasureError>().and_then(|error| error.hint())
    })
    .or_else(|| error.downcast_ref::<pagewise_trace::TraceError>().and_then(|error| error.hint()))
    .or_else(|| recording_hint(error))
}

#[cfg(feature = "record")]
fn recording_hint(error: &anyhow::Error) -> Option<String> {
    error.downcast_ref::<pagewise_store::StoreError>().and_then(|error| error.hint())
}

#[cfg(not(feature = "record"))]
const fn recording_hint(_: &anyhow::Error) -> Option<String> {
    None
}

/// Escapes control characters: names of files and processes in an error message must not control
/// the terminal.
fn clean(text: &str) -> String {
    let lines: Vec<_> =
        text.split('\n').map(|line| pagewise_model::name::escape(line.as_bytes())).collect();
    lines.join("\n")
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds.into_iter().any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
