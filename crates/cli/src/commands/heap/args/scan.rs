//! The options of `pagewise heap scan`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{OutputArgs, RowLimit, limit};

#[derive(Debug, Args)]
pub(crate) struct HeapScanArgs {
    /// A PID, a process name, or a part of a name that matches one process only
    #[arg(value_name = "TARGET", required_unless_present_any = ["from", "command"])]
    pub(crate) target: Option<String>,
    /// Read a saved scan instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "every", "save"])]
    pub(crate) from: Option<PathBuf>,
    /// Save the scan to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Scan twice, TIME apart (`10s`), and report the growth by size
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) every: Option<Duration>,
    /// Stop the process for at most TIME; give up if that is too short
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: Duration,
    /// Show N rows of each table, or `all`; by default 10, and 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<RowLimit>,
    /// Run this command and scan its heap when it exits, while its memory is still mapped
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
