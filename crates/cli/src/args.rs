//! Options that several commands share. Each command's own options are in its module.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use pagewise_model::Bytes;
use pagewise_model::bounds::MemoryLimit;

use crate::commands::table::Command;

/// Show where a Linux process's memory goes, how much time it costs, and how to reduce both.
#[derive(Debug, Parser)]
#[command(name = "pagewise", version, max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) look: LookArgs,
}

/// Options of the output's appearance, which every command takes.
#[derive(Debug, Args)]
pub(crate) struct LookArgs {
    /// Color the output; `auto`: only on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = ColorWhen::Auto, value_name = "WHEN", help_heading = "Display")]
    pub(crate) color: ColorWhen,
    /// Limit tables to N characters per line; default: the width of the terminal, or 100 without a
    /// terminal
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(40..), help_heading = "Display")]
    pub(crate) width: Option<u16>,
    /// Unit of sizes in text reports; default: kib for `maps`, human for all others. JSON always
    /// has bytes; HTML always has scaled sizes
    #[arg(long, global = true, value_enum, value_name = "UNIT", help_heading = "Display")]
    pub(crate) units: Option<UnitArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UnitArg {
    /// Scaled: 1.5M
    Human,
    /// KiB, as in pmap
    Kib,
    /// Bytes
    Bytes,
}

/// The process to read, and the source to read it from.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// A PID, a process name, a part of a name that matches one process only, or `self` (pagewise)
    #[arg(value_name = "TARGET", required_unless_present_any = ["from", "core", "command"])]
    pub(crate) target: Option<String>,
    /// Read a saved snapshot instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "root"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) core: CoreArgs,
    /// Read a copy of the /proc tree instead of /proc
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Run this command, and take the snapshot when the command exits, while its memory is still
    /// mapped
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["target", "root"])]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    /// Save the snapshot to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
}

/// A core file in place of a process.
#[derive(Debug, Args)]
pub(crate) struct CoreArgs {
    /// Read a core file instead of a process, also one compressed with zstd or LZ4
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "root", "from", "reading"])]
    pub(crate) core: Option<PathBuf>,
    /// The program of the core file, if it is not at the path that the core records; its build ID
    /// must be the recorded one
    #[arg(long, value_name = "FILE", requires = "core")]
    pub(crate) exe: Option<PathBuf>,
}

/// The time at which to read a command that pagewise runs.
#[derive(Debug, Args)]
pub(crate) struct MomentArgs {
    /// Take the snapshot at TIME after the start of the command (`500ms`, `2s`)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "command", conflicts_with = "at_peak")]
    pub(crate) at: Option<Duration>,
    /// Take the snapshot at about the time of the command's highest RES
    #[arg(long, requires = "command")]
    pub(crate) at_peak: bool,
}

/// The way to read: by default `--full` for processes up to 64 MiB of RES, else `--polite`.
#[derive(Debug, Args)]
pub(crate) struct ReadingArgs {
    /// Read page tables for 2 MiB of addresses at a time and sleep in between, so that the process
    /// whose memory is read never waits long for its mmap_lock. This is the default for processes
    /// above 64 MiB of RES
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) polite: bool,
    /// Read page tables at full speed, without sleeps
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) fast: bool,
    /// Read smaps, which also has dirty, referenced and locked bytes, and flags. The kernel holds
    /// the mmap_lock of the process while it walks a mapping; a thread that needs this lock waits.
    /// This is the default for processes up to 64 MiB of RES
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) full: bool,
}

impl ReadingArgs {
    /// True if the user asked for a particular reading.
    pub(crate) fn is_chosen(&self) -> bool {
        self.polite || self.fast || self.full
    }
}

/// The destination of a report.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON, with all sizes in bytes; docs/json.md in pagewise's source documents the keys
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the report to FILE instead of printing it
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Add the meaning of each number
    #[arg(long, short, help_heading = "Output")]
    pub(crate) long: bool,
}

/// A percentage from 0 to 100, with or without `%`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let number = number.filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 100".into())
}

/// A percentage above 0 and at most 100, with or without `%`.
pub(crate) fn percent_above_zero(text: &str) -> Result<f64, String> {
    let number = percent(text).ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| "expected a number above 0 and at most 100".into())
}

/// The memory bound of a recorder.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Limit the memory of pagewise to SIZE, at least 32M. At this limit, pagewise merges the
    /// rarest call stacks into one entry, and likewise threads and mappings; the report states the
    /// number of events in these entries
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_limit)]
    pub(crate) memory_limit: MemoryLimit,
}

pub(crate) fn memory_limit(text: &str) -> Result<MemoryLimit, String> {
    let bytes = byte_count(text)?;
    MemoryLimit::new(Bytes(bytes)).ok_or_else(|| "expected 32 MiB or more: `64M`".into())
}

/// Exports of call stacks for other tools.
#[derive(Debug, Args)]
pub(crate) struct Exports {
    /// Write a flame graph as SVG, for any browser
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) flamegraph: Option<PathBuf>,
    /// Write one line for each call stack with its count, for flamegraph.pl and speedscope
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) collapsed: Option<PathBuf>,
    /// Write a profile for `go tool pprof`
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) pprof: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) perfetto: Option<PathBuf>,
}

/// The highest number of rows; `None` for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLimit(pub(crate) Option<usize>);

pub(crate) fn limit(text: &str) -> Result<RowLimit, String> {
    match text {
        "all" => Ok(RowLimit(None)),
        number => number.parse().map(|n| RowLimit(Some(n))).map_err(|_| "a number or `all`".into()),
    }
}

/// A number of bytes above 0, with a unit: `512k`.
pub(crate) fn byte_count(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("a number of bytes, KiB, MiB or GiB: `512k`".into()),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "a number above 0: `512k`".into())
}
