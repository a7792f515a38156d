//! `pagewise run`: a command with restricted huge pages. The command replaces pagewise (execve), so
//! that its PID and parent are the same as without pagewise.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::{Args, ValueEnum};
use pagewise_sys::thp::{AllowedHugePages, allow};

use crate::commands::run_command::NotRun;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The huge pages that the command may use, within the system's settings
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) thp: ThpArg,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThpArg {
    /// No huge pages
    Never,
    /// Only in memory for which the command calls madvise(MADV_HUGEPAGE)
    Madvise,
    /// All that the system's settings allow, even if the process that starts pagewise disabled huge
    /// pages (prctl PR_SET_THP_DISABLE)
    Always,
}

/// Replaces this process by the command.
///
/// # Errors
/// If the kernel lacks the setting, or the command cannot be run.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (allowed, since) = match args.thp {
        ThpArg::Never => (AllowedHugePages::None, "3.15"),
        ThpArg::Madvise => (AllowedHugePages::Advised, "6.18"),
        ThpArg::Always => (AllowedHugePages::All, "3.15"),
    };
    allow(allowed).with_context(|| format!("not in this kernel (since {since})"))?;
    let (program, arguments) = args.command.split_first().context("no command was given")?;
    let error = Command::new(program).args(arguments).exec();
    Err(NotRun::new(program, error).into())
}
