//! The options of `pagewise guard`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::Output;

#[derive(Debug, Args)]
pub(crate) struct Guard {
    /// Guard one allocation of so many, in the mean; 1 guards each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) rate: u64,
    /// Memory that guarded objects may take in each process; objects that find no room are not guarded
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::heap::size)]
    pub(crate) most: u64,
    /// What the command does after a mistake
    #[arg(long, value_enum, value_name = "FATE", default_value_t = Then::Abort)]
    pub(crate) then: Then,
    /// Where an object lies in its pages: who goes beyond that side is caught in the act, who goes beyond the other at the
    /// free; `end` at rate 1 and `chance` else by default
    #[arg(long, value_enum, value_name = "SIDE")]
    pub(crate) side: Option<SideArg>,
    /// How pages are made inaccessible at best; what the kernel does not have is done by the next of these. `moves` where more
    /// than one allocation in 100 is guarded and `marks` else by default
    #[arg(long, value_enum, value_name = "MEANS")]
    pub(crate) means: Option<MeansArg>,
    /// The exit code where something was found and the command ended by itself all the same
    #[arg(long, value_name = "CODE", default_value_t = 99)]
    pub(crate) error_exitcode: u8,
    #[command(flatten)]
    pub(crate) output: Output,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// How pages are made inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeansArg {
    /// Pages of objects of less than a page are taken away, by a descriptor that the program has for it (UFFDIO_MOVE, Linux
    /// 6.8)
    Moves,
    /// Marks in the page tables (MADV_GUARD_INSTALL, Linux 6.13)
    Marks,
    /// Mappings, of which a process may have only so many (mprotect)
    Mappings,
}

/// What becomes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Then {
    /// It ends by the signal that it would have ended by (SIGSEGV, SIGABRT), or its own handler decides
    Abort,
    /// It goes on as if nothing had been
    Continue,
}

/// Where in its pages an object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SideArg {
    /// At the end: for overflows
    End,
    /// At the beginning: for underflows
    Start,
    /// Either by chance
    Chance,
}
