//! `pagewise record`: a recording of all processes, and reports of it.

mod args;
mod category_round;
mod oom_reports;
mod post_mortems;
mod recorder;
mod reports;
mod service;
mod times;

use std::process::ExitCode;

pub(crate) use args::{RecordArgs, ReplayArgs};

use self::args::RecordCommand;
use crate::terminal::TerminalLook;

/// Records, or runs a subcommand.
pub(crate) fn run(args: &RecordArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => recorder::run(&args.recorder),
        Some(RecordCommand::Report(args)) => reports::report(args, look),
        Some(RecordCommand::Diff(args)) => reports::diff(args, look),
        Some(RecordCommand::Install(args)) => service::install(args),
        Some(RecordCommand::Status(args)) => service::status(args, look),
    }
}

/// Shows all processes at one time of a recording.
pub(crate) fn replay(args: &ReplayArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    reports::replay(args, look)
}
