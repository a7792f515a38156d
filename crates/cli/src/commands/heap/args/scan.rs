//! The options of `pagewise heap scan`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::{OutputArgs, RowLimit, limit};

#[derive(Debug, Args)]
pub(crate) struct HeapScanArgs {
    /// A PID, a process name, or a part of a name that matches one process only
    #[arg(value_name = "TARGET", required_unless_present_any = ["from", "core", "command"])]
    pub(crate) target: Option<String>,
    /// Read a saved scan instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "every", "save"])]
    pub(crate) from: Option<PathBuf>,
    /// Scan a core file instead of a process, also one compressed with zstd or LZ4
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "from"])]
    pub(crate) core: Option<PathBuf>,
    /// The program of the core file, if it is not at the path that the core records; its build ID
    /// must be the recorded one
    #[arg(long, value_name = "FILE", requires = "core")]
    pub(crate) exe: Option<PathBuf>,
    /// Save the scan to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Scan twice, TIME apart (`10s`), and report the growth by size
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with_all = ["command", "core"])]
    pub(crate) every: Option<Duration>,
    /// Stop the process for at most TIME; give up if that is too short
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: Duration,
    /// Make the process fork a snapshot, and copy that while the process runs on: a shorter pause,
    /// more memory
    #[arg(long, conflicts_with_all = ["from", "core", "command"])]
    pub(crate) fork: bool,
    /// Report leaks: blocks to which no register, stack, variable or mapping leads
    #[arg(long, conflicts_with = "from")]
    pub(crate) leaks: bool,
    /// Report the bytes that would be unreachable without each variable, stack or mapping
    #[arg(long, conflicts_with = "from")]
    pub(crate) retained: bool,
    /// Report live blocks by type, and add types to the other reports. Types come from the virtual
    /// functions of C++ classes, and from debug information on the variables that point to blocks
    #[arg(long, conflicts_with = "from")]
    pub(crate) types: bool,
    /// Report the pointers that keep the block at ADDRESS (`0x55d0c0ffee00`) alive
    #[arg(long, value_name = "ADDRESS", value_parser = hex_address, conflicts_with_all = ["from", "every"])]
    pub(crate) why: Option<u64>,
    /// Show N rows of each table, or `all`; by default 10, and 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<RowLimit>,
    /// Read the call stacks of leaked blocks from a recording that `pagewise heap attach` of this
    /// process has completed. While a recorder is in the process, this option is not needed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "command"])]
    pub(crate) recording: Option<PathBuf>,
    /// Run this command and scan its heap when it exits, while its memory is still mapped
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn hex_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("`{text}` is not a hexadecimal address"))
}
