//! The options of `pagewise heap export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::percent;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("formats").required(true).multiple(true)
    .args(["massif", "heaptrack", "pprof", "collapsed", "flamegraph", "perfetto"]))]
pub(crate) struct HeapExport {
    /// A recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write what ms_print and massif-visualizer read
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) massif: Option<Option<PathBuf>>,
    /// Write what heaptrack_print and heaptrack_gui read; packed where OUT ends in .gz
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) heaptrack: Option<Option<PathBuf>>,
    /// Write tracks for ui.perfetto.dev: live, held and resident bytes
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) perfetto: Option<Option<PathBuf>>,
    /// Write a profile for `go tool pprof`: allocated, in use at the end, at the peak
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) pprof: Option<Option<PathBuf>>,
    /// Write a line for each call stack and its number: for flamegraph.pl, speedscope
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) collapsed: Option<Option<PathBuf>>,
    /// Write a flame graph: SVG, for any browser
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) flamegraph: Option<Option<PathBuf>>,
    /// Of what --collapsed and --flamegraph are
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OfArg::Peak, help_heading = "Call stacks")]
    pub(crate) of: OfArg,
    /// Leave out branches of massif's trees with less than this many per cent of all
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = "Over time")]
    pub(crate) threshold: f64,
    /// Write the one format that has no OUT here instead of to standard output
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
}

/// Which number of a call stack.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OfArg {
    /// Bytes live when most was live
    Peak,
    /// Bytes never freed
    Leaked,
    /// All bytes that were allocated
    Allocated,
    /// Allocations
    Allocations,
    /// Allocations that were freed before the same thread allocated another
    Temporary,
}
