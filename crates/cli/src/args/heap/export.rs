//! The options of `pagewise heap export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::percent;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("formats").required(true).multiple(true)
    .args(["massif", "heaptrack", "pprof", "collapsed", "flamegraph", "perfetto"]))]
pub(crate) struct HeapExport {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write a massif file, for ms_print and massif-visualizer
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) massif: Option<Option<PathBuf>>,
    /// Write a heaptrack file, for heaptrack_print and heaptrack_gui; compressed if OUT ends in .gz
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) heaptrack: Option<Option<PathBuf>>,
    /// Write a trace for ui.perfetto.dev with live, allocator and resident bytes
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Over time")]
    pub(crate) perfetto: Option<Option<PathBuf>>,
    /// Write a profile for `go tool pprof`: bytes allocated, live at the end, live at the peak
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) pprof: Option<Option<PathBuf>>,
    /// Write one line for each call stack with its number, for flamegraph.pl and speedscope
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) collapsed: Option<Option<PathBuf>>,
    /// Write a flame graph as SVG, for any browser
    #[arg(long, value_name = "OUT", num_args = 0..=1, help_heading = "Call stacks")]
    pub(crate) flamegraph: Option<Option<PathBuf>>,
    /// The quantity in --collapsed and --flamegraph
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OfArg::Peak, help_heading = "Call stacks")]
    pub(crate) of: OfArg,
    /// Leave out branches of massif's trees below PERCENT of the total
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = "Over time")]
    pub(crate) threshold: f64,
    /// Write the one format that has no OUT to this file instead of standard output
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
}

/// The quantity of a call stack.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OfArg {
    /// Bytes that were live at the peak
    Peak,
    /// Bytes never freed
    Leaked,
    /// All bytes allocated
    Allocated,
    /// Number of allocations
    Allocations,
    /// Number of allocations that were freed before the same thread allocated again
    Temporary,
}
