//! `pagewise events`: the perf events that this machine can count.

use std::process::ExitCode;

use clap::Args;
use pagewise_analysis::events;
use pagewise_measure::events::survey;
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// List only events whose name contains LETTERS, and search all tracepoints of the kernel too.
    /// Without LETTERS, the list has the events that pagewise describes
    #[arg(value_name = "LETTERS")]
    pub(crate) like: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Tries each event and reports.
pub(crate) fn run(args: &Events, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let survey = survey(args.like.as_deref());
    emit(&events::events(&survey), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}
