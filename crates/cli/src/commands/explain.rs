//! `pagewise explain`: the memory of a process by category, pool and mapping.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::Args;
use pagewise_analysis::explain::{self, ExplainOptions};
use pagewise_view::text::Units;

use crate::args::{OutputArgs, SourceArgs};
use crate::output::{emit, note};
use crate::target::{self, TakenSnapshot};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Show the N mappings with the highest RES
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) largest: usize,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Takes the snapshot, explains it, and passes on the exit code of a command that was run.
pub(crate) fn run(args: Explain, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let TakenSnapshot { snapshot, mut exit, denied } = target::look_at(args.source, true)?;
    if let Some(denied) = denied {
        // VIRT, RES and the limits are still known.
        note(denied);
        exit = ExitCode::FAILURE;
    }
    // Never dropped: pagewise ends after the report, and freeing 65,000 mappings one by one would
    // only take time.
    let snapshot = ManuallyDrop::new(snapshot);
    let options = ExplainOptions {
        largest: args.largest,
        all_mappings: args.output.json,
        address_map: args.output.html.is_some(),
    };
    let report = ManuallyDrop::new(explain::explain(&snapshot, &options));
    emit(&report, &args.output, look, Units::Human)?;
    Ok(exit)
}
