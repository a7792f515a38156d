//! The options of `pagewise export`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use pagewise_exporter::ExpositionFormat;

use crate::args::percent_above_zero;

/// Default address of `--listen`. Its port is also the default port of process-exporter.
pub(super) const NO_LISTEN: &str = "127.0.0.1:9256";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ExportCommand>,
    #[command(flatten)]
    pub(crate) exporter: ExporterArgs,
}

/// The subcommands of `export`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExportCommand {
    /// Save what a support request needs: versions, one reading of all processes, findings
    ///
    /// Takes 5 seconds: some findings are rates.
    ///
    /// Examples:
    ///   pagewise export bundle -o bundle.json
    ///   pagewise export bundle --anonymous -o bundle.json
    #[command(verbatim_doc_comment)]
    Bundle(BundleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ExporterArgs {
    /// Serve the metrics at ADDRESS:PORT; repeat for several [default: 127.0.0.1:9256]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,
    /// Read all processes every TIME
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
    pub(crate) every: Duration,
    /// Look for signs of trouble, and make the account of the RAM, every TIME; `0s`: never. With
    /// --once, observe the machine for TIME (at most 5 s) to find signs of trouble; without this
    /// option, --once only makes the account [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) diagnose_every: Option<Duration>,
    /// Group processes by the rules of FILE, a configuration file of process-exporter. Without
    /// FILE, processes of the same name are a group
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Leave out processes that match no rule, instead of adding them to the group of their
    /// nearest ancestor that matches one
    #[arg(long)]
    pub(crate) no_children: bool,
    /// Read TLS certificates and passwords from FILE, in the format of Prometheus' exporters
    #[arg(long, value_name = "FILE")]
    pub(crate) web_config: Option<PathBuf>,
    /// Write pagewise.prom to DIR after each reading, for the textfile collector of node_exporter.
    /// Nothing is served unless --listen is given
    #[arg(long, value_name = "DIR")]
    pub(crate) textfile: Option<PathBuf>,
    /// Push the metrics to an OpenTelemetry collector after each reading (OTLP over HTTP or HTTPS,
    /// JSON).
    /// Nothing is served unless --listen is given
    #[arg(long, value_name = "URL", conflicts_with = "once")]
    pub(crate) otlp: Option<String>,
    /// Send a header with each push, for example `Authorization=Bearer TOKEN`; repeat for several.
    /// `NAME=@FILE` reads the value from FILE: every user can read the command line
    #[arg(long, value_name = "NAME=VALUE", requires = "otlp")]
    pub(crate) otlp_header: Vec<String>,
    /// Trust the certificates in FILE for a collector with TLS, instead of those of the machine
    #[arg(long, value_name = "FILE", requires = "otlp")]
    pub(crate) otlp_ca: Option<PathBuf>,
    /// Print the metrics of one reading
    #[arg(long, conflicts_with = "listen")]
    pub(crate) once: bool,
    /// Format of --once
    #[arg(long, value_enum, default_value = "prometheus")]
    pub(crate) format: FormatChoice,
    /// Export at most N series; metrics state the number of those left out
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) max_series: usize,
    /// Export the N largest groups, and the sum of the others as the group `other`
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_groups: usize,
    /// Export the N largest cgroups
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) max_cgroups: usize,
    /// Spend at most PERCENT of the time of one CPU on reading the pages of processes
    #[arg(long, value_name = "PERCENT", default_value = "0.3", value_parser = percent_above_zero)]
    pub(crate) budget: f64,
    /// Read the names of pods and containers from the names of the log files in DIR
    #[arg(long, value_name = "DIR", default_value = "/var/log/containers")]
    pub(crate) container_logs: PathBuf,
    /// Read the names and images of containers from the runtime at SOCKET, which has the API of
    /// Docker: /run/docker.sock, /run/podman/podman.sock
    #[arg(long, value_name = "SOCKET")]
    pub(crate) container_socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// Replace the names of processes, programs, users and cgroups, and leave out command lines
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// A text format.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FormatChoice {
    /// The text format of Prometheus
    Prometheus,
    /// OpenMetrics 1.0
    Openmetrics,
}

impl From<FormatChoice> for ExpositionFormat {
    fn from(choice: FormatChoice) -> ExpositionFormat {
        match choice {
            FormatChoice::Prometheus => ExpositionFormat::Prometheus,
            FormatChoice::Openmetrics => ExpositionFormat::OpenMetrics,
        }
    }
}
