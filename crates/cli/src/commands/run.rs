//! `pagewise run`: a command with settings of its own. It replaces us, so it is itself in every way.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use pagewise_sys::thp::{Allowed, allow};

use crate::args::{Run, ThpArg};
use crate::commands::run_command::NotRun;

/// Runs the command in our place.
///
/// # Errors
/// That the kernel does not know of the setting, or that the command cannot be run.
pub(crate) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    let (allowed, since) = match args.thp {
        ThpArg::Never => (Allowed::None, "3.15"),
        ThpArg::Madvise => (Allowed::Advised, "6.18"),
        ThpArg::Always => (Allowed::All, "3.15"),
    };
    allow(allowed).with_context(|| format!("not in this kernel (since {since})"))?;
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let error = Command::new(program).args(arguments).exec();
    Err(NotRun::new(program, error).into())
}
