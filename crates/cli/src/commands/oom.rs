//! `pagewise oom`: the process that the OOM killer would select, and the last OOM kill explained.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pagewise_analysis::oom::{OomOptions, oom, past, past_report};
use pagewise_model::oom::OomReport;
use pagewise_proc::{oom_log, oom_reading};
use pagewise_view::text::Units;

use crate::args::{OutputArgs, ReadingArgs, RowLimit, limit};
use crate::output::emit;
use crate::target::{root, wish};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct OomArgs {
    /// Only explain the OOM reports in FILE: the output of `dmesg`, `journalctl -k` or a serial
    /// console
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "during"])]
    pub(crate) log: Option<PathBuf>,
    /// Measure growth over TIME
    #[arg(long = "for", id = "during", value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) during: Duration,
    /// Show at most N rows of each list, or `all`
    #[arg(long, value_name = "N", default_value = "10", value_parser = limit)]
    pub(crate) limit: RowLimit,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys, DIR/kmsg
    /// the kernel log
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Reads the processes and the kernel log.
pub(crate) fn run(args: &OomArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let root = root(args.root.as_deref());
    let options = OomOptions { rows: args.limit.0, ourselves: root.ourselves() };
    let report = match &args.log {
        Some(path) => past_report(past::blocks(&Ok(reports_of(path)?), &options)),
        None => {
            let reading = oom_reading::read(&root, wish(&args.reading), args.during)?;
            oom(&reading, &options, past::blocks(&oom_log::of(&root), &options))
        }
    };
    emit(&report, &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

fn reports_of(path: &Path) -> anyhow::Result<Vec<OomReport>> {
    let log = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(oom_log::parse(&log))
}
