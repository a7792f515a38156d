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
    /// The position of a block in its pages. An access beyond this side of the block is reported
    /// when it occurs; a write beyond the other side is reported when the block is freed. The
    /// default is `end` with --rate 1, else `chance`
    #[arg(long, value_enum, value_name = "SIDE")]
    pub(crate) side: Option<SideArg>,
    /// The method of making guard pages. If the kernel lacks the method, guard uses the next one of
    /// the list. The default is `moves` with a --rate up to 100, else `marks`
    #[arg(long, value_enum, value_name = "MEANS")]
    pub(crate) means: Option<MeansArg>,
    /// The exit code of pagewise if a memory error was found but no signal ended the command
    #[arg(long, value_name = "CODE", default_value_t = 99)]
    pub(crate) error_exitcode: u8,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// Method of making guard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeansArg {
    /// Move the page of a freed small block to a new block (UFFDIO_MOVE, Linux 6.8), so that
    /// accesses to the freed block fault. The command then holds a userfaultfd descriptor. Large
    /// blocks use `marks` or `mappings`
    Moves,
    /// Set guard markers in the page tables (MADV_GUARD_INSTALL, Linux 6.13)
    Marks,
    /// Make mappings without access (mprotect); vm.max_map_count limits the number of mappings
    Mappings,
}

/// The fate of the program after a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AfterError {
    /// Send SIGSEGV after a wrong access, or SIGABRT after a wrong free. The signal ends the
    /// command unless the command has a handler for it
    Abort,
    /// Make the accessed page accessible, or ignore the wrong free, and let the command continue
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
