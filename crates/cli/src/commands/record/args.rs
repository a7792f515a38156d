//! The options of `pagewise record` and `pagewise replay`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::{OutputArgs, RowLimit, byte_count, limit, percent};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RecordArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RecordCommand>,
    #[command(flatten)]
    pub(crate) recorder: RecorderArgs,
}

/// The subcommands of `record`.
#[derive(Debug, Subcommand)]
pub(crate) enum RecordCommand {
    /// Report a period: which processes grew, peaks, limits that were hit, OOM kills
    ///
    /// Examples:
    ///   pagewise record report
    ///   pagewise record report --from 02:00 --to 03:30 --html night.html
    ///   pagewise record report --from '2026-11-24 22:00' --rows all
    #[command(verbatim_doc_comment)]
    Report(ReportArgs),
    /// Compare two times of a recording, or two machines
    ///
    /// Processes of two machines are compared by their name.
    ///
    /// Examples:
    ///   pagewise record diff 02:00 03:30
    ///   pagewise record diff now now --dir web1 --other-dir web2
    #[command(verbatim_doc_comment)]
    Diff(RecordDiffArgs),
    /// Install a systemd service that records
    ///
    /// Writes the unit file, and starts the service if systemd runs. The service has only the
    /// capabilities that it needs, and can write only to its own folder.
    ///
    /// Examples:
    ///   pagewise record install
    ///   pagewise record install --print
    #[command(verbatim_doc_comment)]
    Install(InstallArgs),
    /// Show whether a recorder runs, and the times and sizes of the files
    Status(StatusArgs),
}

/// The folder of a recording.
#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// Folder of the recording; default: /var/lib/pagewise for root, else pagewise in the state
    /// folder of the user (`~/.local/state`)
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RecorderArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Read all processes every TIME
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) every: Duration,
    /// Stop after TIME; default: record until a signal ends the recorder
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Keep the latest N days that have records
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) keep: u16,
    /// Delete the oldest files if all files together exceed SIZE
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = byte_count)]
    pub(crate) max_size: u64,
    /// Spend at most PERCENT of a core on reading the pages of processes; a large process that
    /// changes all the time is then read less often
    #[arg(long, value_name = "PERCENT", default_value = "0.3", value_parser = crate::args::percent_above_zero)]
    pub(crate) budget: f64,
    #[command(flatten)]
    pub(crate) triggers: TriggerArgs,
}

/// Conditions for saving a snapshot and a diagnosis.
#[derive(Debug, Args)]
pub(crate) struct TriggerArgs {
    /// Save a snapshot and a diagnosis of a process that grows by SIZE within 10 minutes, and by at
    /// least a fifth
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = byte_count, help_heading = "Triggers")]
    pub(crate) growth: u64,
    /// Save a snapshot and a diagnosis if tasks wait for memory for PERCENT of ten seconds
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent, help_heading = "Triggers")]
    pub(crate) pressure: f64,
    /// Save a snapshot and a diagnosis if a cgroup uses PERCENT of its limit. Page cache that is
    /// easily reclaimed does not count
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = percent, help_heading = "Triggers")]
    pub(crate) near_limit: f64,
    /// Save no snapshot and no diagnosis
    #[arg(long, help_heading = "Triggers")]
    pub(crate) no_triggers: bool,
}

/// Number of rows of tables.
#[derive(Debug, Args)]
pub(crate) struct RowArgs {
    /// Show the first N rows of each table, or `all`
    #[arg(long, value_name = "N", default_value = "15", value_parser = limit)]
    pub(crate) rows: RowLimit,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Begin at TIME: `02:13`, `2026-11-25`, `2026-11-25 02:13:05`, or a duration before now
    /// (`2h`)
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) from: String,
    /// End at TIME
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) rows: RowArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RecordDiffArgs {
    /// The earlier time, as for `record report --from`
    #[arg(value_name = "BEFORE")]
    pub(crate) before: String,
    /// The later time
    #[arg(value_name = "AFTER")]
    pub(crate) after: String,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Folder of the recording of another machine, for AFTER
    #[arg(long, value_name = "DIR")]
    pub(crate) other_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rows: RowArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Read all processes every TIME
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) every: Duration,
    /// Write the unit file into DIR
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    pub(crate) unit_dir: PathBuf,
    /// Print the unit file and change nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Write the unit file, and do not start the service
    #[arg(long, conflicts_with = "print")]
    pub(crate) no_start: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Show the values of TIME: `02:13`, `2026-11-25 02:13:05`, a duration before now (`2h`), or
    /// `now` for the last recorded values
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub(crate) at: String,
    /// Compute rates over the TIME that ends at --at
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub(crate) over: Duration,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) rows: RowArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
