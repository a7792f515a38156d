//! `pagewise maps`: the mappings of a process.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use pagewise_analysis::filter::RowFilter;
use pagewise_analysis::maps::{self, MapsColumns, MapsOptions};
use pagewise_view::text::Units;

use crate::args::{OutputArgs, SourceArgs};
use crate::output::emit;
use crate::target::{self, TakenSnapshot, UsageError};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct Maps {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Columns to show: `default`, `all` (every smaps counter; reads the process as --full does),
    /// or a list such as `address,rss,Pss_Dirty,name`. `pagewise define` lists the names
    #[arg(long, value_name = "COLUMNS", default_value = "default")]
    pub(crate) columns: String,
    /// Sort by COLUMN, largest first; `+COLUMN` sorts smallest first. Default: by address
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// Show only mappings that match EXPRESSION, for example `rss>1M && name~libc`. Operators: `>`,
    /// `>=`, `<`, `<=`, `==`, `!=`, `~` (contains), `!~`, `&&`, `||`, `!` and parentheses
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// List the ELF sections in each file mapping
    #[arg(long)]
    pub(crate) sections: bool,
    /// Show one row for each file
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<MapGroup>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MapGroup {
    File,
}

/// Takes the snapshot and lists its mappings.
pub(crate) fn run(mut args: Maps, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let columns = columns(&args.columns);
    // Only smaps has all counters.
    if matches!(columns, MapsColumns::All) && !args.source.reading.is_chosen() {
        args.source.reading.full = true;
    }
    let options = MapsOptions {
        columns,
        sort: args.sort.as_deref().map(sort_key),
        filter: args
            .filter
            .as_deref()
            .map(RowFilter::parse)
            .transpose()
            .map_err(|e| UsageError(e.to_string()))?,
        group_by_file: matches!(args.group, Some(MapGroup::File)),
        sections: args.sections,
    };
    let TakenSnapshot { snapshot, exit, .. } =
        target::look_at(args.source, false)?.with_mappings()?;
    // Never dropped, as in `explain`: pagewise ends after the report.
    let snapshot = ManuallyDrop::new(snapshot);
    let report = maps::maps(&snapshot, &options).map_err(|e| UsageError(e.to_string()))?;
    emit(&ManuallyDrop::new(report), &args.output, look, Units::KiB)?;
    Ok(exit)
}

fn columns(text: &str) -> MapsColumns {
    match text {
        "default" => MapsColumns::Default,
        "all" => MapsColumns::All,
        list => MapsColumns::List(list.split(',').map(|name| name.trim().to_owned()).collect()),
    }
}

/// `rss` and `-rss` sort the largest first, `+rss` the smallest.
pub(crate) fn sort_key(text: &str) -> (String, bool) {
    match text.strip_prefix('+') {
        Some(key) => (key.to_owned(), false),
        None => (text.strip_prefix('-').unwrap_or(text).to_owned(), true),
    }
}
