//! The options of `pagewise guard`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use crate::args::{OutputArgs, byte_count};

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Guard one in N allocations on average; 1 guards every allocation
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate: u64,
    /// The most memory that guarded blocks may use in each process; further blocks are not guarded
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = byte_count)]
    pub(crate) most: u64,
    /// The fate of the command after a memory error
    #[arg(long, value_enum, value_name = "FATE", default_value_t = AfterError::Abort)]
    pub(crate) then: AfterError,
    /// The position of a block in its pages. An overflow on this side is reported at the access, an
    /// overflow on the other side at the free. The default is `end` at rate 1, else `chance`
    #[arg(long, value_enum, value_name = "SIDE")]
    pub(crate) side: Option<SideArg>,
    /// The way to make guard pages. If the kernel lacks it, the next one of the list is used. The
    /// default is `moves` if more than one in 100 allocations is guarded, else `marks`
    #[arg(long, value_enum, value_name = "MEANS")]
    pub(crate) means: Option<MeansArg>,
    /// The exit code if a memory error was found but the command exited by itself
    #[arg(long, value_name = "CODE", default_value_t = 99)]
    pub(crate) error_exitcode: u8,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// The way to make guard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeansArg {
    /// Move the pages of freed small blocks away with UFFDIO_MOVE (Linux 6.8), through a
    /// userfaultfd descriptor in the program
    Moves,
    /// Guard markers in the page tables (MADV_GUARD_INSTALL, Linux 6.13)
    Marks,
    /// Mappings without access (mprotect); vm.max_map_count limits their number
    Mappings,
}

/// The fate of the program after a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AfterError {
    /// End by the signal that the program would have received (SIGSEGV, SIGABRT), or run its own
    /// handler
    Abort,
    /// Continue after the access
    Continue,
}

/// The position of a block in its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SideArg {
    /// At the end of the pages, to detect overflows
    End,
    /// At the start of the pages, to detect underflows
    Start,
    /// At the start or the end, chosen at random
    Chance,
}
