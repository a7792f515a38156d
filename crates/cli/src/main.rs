//! The `pagewise` command: the only place that reads the environment, prints, or sets an exit code.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage; a reader that closes the pipe is no error.
//! `explain -- COMMAND` and its kin pass on the command's own code.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod helper;
mod keeper;
mod look;
mod output;
mod pause;
mod plan;
mod shield;

use std::io;
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::args::{Cli, Command};
use crate::commands::run_command::NotRun;
use crate::look::Look;
use crate::output::{note, write_stderr};

fn main() -> ExitCode {
    let mut command = args::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return show(&error.format(&mut command)),
    };
    let look = Look::resolve(&cli.look);
    let done = match cli.command {
        Command::Explain(args) => commands::explain::run(args, &look),
        Command::Maps(args) => commands::maps::run(args, &look),
        Command::Ps(args) => commands::ps::run(&args, &look),
        Command::Diff(args) => commands::diff::run(&args, &look),
        Command::Define(args) => commands::define::run(&args, &look),
        Command::Pages(args) => commands::pages::run(&args, &look),
        Command::Pools(args) => commands::pools::run(&args, &look),
        Command::Thp(args) => commands::thp::run(&args, &look),
        Command::Run(args) => commands::run::run(&args),
        Command::Stat(args) => commands::stat::run(&args, &Look::on_stderr(&cli.look)),
        Command::Events(args) => commands::events::run(&args, &look),
        Command::Fragmentation(args) => commands::fragmentation::run(&args, &look),
        Command::Doctor(args) => commands::doctor::run(&args, &look),
        Command::Syscalls(args) => commands::syscalls::run(args, &look),
        Command::Shootdowns(args) => commands::shootdowns::run(&args, &cli.look),
        Command::Faults(args) => commands::faults::run(&args, &cli.look),
        Command::Heap(args) => commands::heap::run(&args, &look),
        Command::Guard(args) => commands::guard::run(&args, &cli.look),
        Command::Watch(args) => commands::watch::run(&args, &look, &Look::on_stderr(&cli.look)),
        Command::Sim(args) => commands::sim::run(args, &look),
        Command::Lab(args) => commands::lab::run(args, &look),
        Command::LabRun(args) => commands::lab::run_once(args),
        Command::LabTouch { bytes } => commands::lab::touch(bytes),
        Command::Keep(args) => Ok(keeper::run(&args)),
        Command::Shield { pid } => shield::run(pid),
        Command::HugePageSubject => commands::thp::be_the_subject(),
        Command::Completions { shell } => commands::shell::completions(shell),
        Command::Man { dir } => commands::shell::man(dir.as_deref()),
    };
    done.unwrap_or_else(|error| fail(&error))
}

/// Prints what clap has to say: help, the version, or what is wrong with the options.
fn show(said: &clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(2);
    match said.print() {
        // What was asked for must arrive; that something is wrong says the exit code, too.
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
    ExitCode::from(if error.is::<plan::Usage>() { 2 } else { 1 })
}

/// What the reader can do about it.
fn hint(error: &anyhow::Error) -> Option<String> {
    let proc = error.downcast_ref::<pagewise_proc::Error>().and_then(|error| error.hint());
    proc.or_else(|| error.downcast_ref::<pagewise_repair::Error>().and_then(|error| error.hint()))
        .or_else(|| error.downcast_ref::<pagewise_measure::Error>().and_then(|error| error.hint()))
        .or_else(|| error.downcast_ref::<pagewise_trace::Error>().and_then(|error| error.hint()))
}

/// No error message may steer the terminal, whatever a file or a process is called.
fn clean(text: &str) -> String {
    let lines: Vec<_> =
        text.split('\n').map(|line| pagewise_model::name::escape(line.as_bytes())).collect();
    lines.join("\n")
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds.into_iter().any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
