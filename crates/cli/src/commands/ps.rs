//! `pagewise ps`: every process.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use pagewise_analysis::ps::{self, ProcessGrouping, PsOptions};
use pagewise_proc::listing;
use pagewise_view::text::Units;

use crate::args::{OutputArgs, ReadingArgs};
use crate::commands::maps::sort_key;
use crate::output::emit;
use crate::target::{UsageError, root, wish};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Sort by COLUMN, largest first; `+COLUMN` sorts smallest first
    #[arg(long, value_name = "COLUMN", default_value = "pss", allow_hyphen_values = true)]
    pub(crate) sort: String,
    /// Show one row for each group
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<PsGroup>,
    /// Show the first N rows only
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Read a copy of the /proc tree instead of /proc
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PsGroup {
    User,
    Name,
    Cgroup,
    Exe,
}

/// Reads every process and lists them.
pub(crate) fn run(args: &Ps, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let listing = listing::list(&root(args.root.as_deref()), wish(&args.reading))?;
    let group = args.group.map(|group| match group {
        PsGroup::User => ProcessGrouping::User,
        PsGroup::Name => ProcessGrouping::Name,
        PsGroup::Cgroup => ProcessGrouping::Cgroup,
        PsGroup::Exe => ProcessGrouping::Exe,
    });
    let options = PsOptions { sort: sort_key(&args.sort), group, limit: args.limit };
    let report = ps::ps(&listing, &options).map_err(|e| UsageError(e.to_string()))?;
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
