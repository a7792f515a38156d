//! `pagewise define`: definitions of terms, columns and kernel counters.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use pagewise_analysis::define;
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Define {
    /// A term, column or kernel counter; without NAME, all are listed
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the definition of each name, or the list of all.
pub(crate) fn run(args: &Define, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let output = OutputArgs { json: args.json, html: None, output: None, long: true };
    if args.names.is_empty() {
        emit(&define::all(), &output, look, Units::Human)?;
    }
    for name in &args.names {
        let Some(report) = define::define(name) else { bail!(unknown(name)) };
        emit(&report, &output, look, Units::Human)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(name: &str) -> String {
    let similar = define::similar(name);
    if similar.is_empty() {
        format!("no field or column is called {name:?}; `pagewise define` lists them all")
    } else {
        format!("no field or column is called {name:?}; did you mean {}?", similar.join(", "))
    }
}
