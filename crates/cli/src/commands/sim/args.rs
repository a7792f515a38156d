//! The options of `pagewise sim`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pagewise_sim::NextPagePrefetcher;
use pagewise_sim::geometry::CacheShape;

use crate::args::OutputArgs;

/// The subcommands of `sim`.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Count TLB misses with 4 KiB, 2 MiB and 1 GiB pages
    ///
    /// Examples:
    ///   pagewise sim tlb -- ls
    ///   pagewise sim tlb --cpu i7-6800k --workload mem-access --order random
    ///   valgrind --tool=lackey --trace-mem=yes --log-file=trace ls; pagewise sim tlb --trace trace
    #[command(verbatim_doc_comment)]
    Tlb(Simulate),
    /// Count misses of the L1 data cache and the L2 cache with each replacement policy
    ///
    /// Examples:
    ///   pagewise sim cache -- ls
    ///   pagewise sim cache --l1d 48K,12,64 --json -- ./bench
    #[command(verbatim_doc_comment)]
    Cache(Simulate),
    /// Count page faults with too little memory, with each policy of page reclaim
    ///
    /// Examples:
    ///   pagewise sim pages --memory 256M --workload random --size 400M --limit 4000000
    ///   pagewise sim pages --memory 1M -- ls
    #[command(verbatim_doc_comment)]
    Pages(PagesKept),
}

/// Caches and TLBs, and the memory accesses to simulate.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    pub(crate) hardware: Hardware,
    #[command(flatten)]
    pub(crate) feed: Feed,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Memory, and the memory accesses to simulate.
#[derive(Debug, Args)]
pub(crate) struct PagesKept {
    /// The size of the simulated memory
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, help_heading = "Model")]
    pub(crate) memory: u64,
    /// The page size
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size, help_heading = "Model")]
    pub(crate) page: u64,
    #[command(flatten)]
    pub(crate) feed: Feed,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The simulated caches and TLBs.
#[derive(Debug, Args)]
pub(crate) struct Hardware {
    /// The CPU whose cache and TLB sizes are simulated
    #[arg(long, value_enum, value_name = "CPU", default_value_t = CpuArg::Machine, help_heading = "Model")]
    pub(crate) cpu: CpuArg,
    /// Replacement policy of TLBs and caches; `sim cache` reports all policies, this one first
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyArg::Lru, help_heading = "Model")]
    pub(crate) policy: PolicyArg,
    /// L1 data cache: size, ways, bytes of a line. Default: that of the CPU
    #[arg(long, value_name = "SIZE,WAYS,LINE", value_parser = cache, help_heading = "Model")]
    pub(crate) l1d: Option<CacheShape>,
    /// L2 cache: size, ways, bytes of a line. Default: that of the CPU
    #[arg(long, value_name = "SIZE,WAYS,LINE", value_parser = cache, help_heading = "Model")]
    pub(crate) l2: Option<CacheShape>,
    /// TLB prefetcher for 4 KiB pages: prefetch the next page after STEPS sequential misses;
    /// PERCENT of the prefetches arrive in time. `none` simulates no prefetcher. The default
    /// belongs to the CPU: `none` for `machine`, `3,84` for `i7-6800k`
    #[arg(long, value_name = "STEPS,PERCENT", value_parser = prefetcher, help_heading = "Model")]
    pub(crate) prefetch: Option<PrefetchArg>,
}

/// The source of the memory accesses: a workload, a trace, or a command.
#[derive(Debug, Args)]
pub(crate) struct Feed {
    /// Simulate a built-in sequence of accesses
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["trace", "command"], help_heading = "Accesses")]
    pub(crate) workload: Option<WorkloadArg>,
    /// The order of the windows of mem-access
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = OrderArg::Random, requires = "workload", help_heading = "Accesses")]
    pub(crate) order: OrderArg,
    /// The memory that a workload accesses
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, requires = "workload", help_heading = "Accesses")]
    pub(crate) size: u64,
    /// The seed of random addresses; equal seeds give equal addresses
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "workload",
        help_heading = "Accesses"
    )]
    pub(crate) seed: u64,
    /// Read a trace that valgrind's lackey wrote with --trace-mem=yes; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "command", help_heading = "Accesses")]
    pub(crate) trace: Option<PathBuf>,
    /// Stop after N accesses, and end the command. The default is 100,000,000 for commands,
    /// `random` and `chase`; `mem-access` and --trace have no limit by default
    #[arg(long, value_name = "N", help_heading = "Accesses")]
    pub(crate) limit: Option<u64>,
    /// Run this command under valgrind's lackey, which traces every access and slows the command
    /// down by a factor of several hundred. Children of the command are not traced
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["workload", "trace"])]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuArg {
    /// This machine's CPU, as described by sysfs and cpuid
    Machine,
    /// Intel Core i7-6800K (Broadwell-E)
    #[value(name = "i7-6800k")]
    I7_6800K,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// Replace the least recently used entry
    Lru,
    /// Tree-PLRU, an approximation of LRU with one bit for each node of a binary tree
    Plru,
    /// Replace the oldest entry
    Fifo,
    /// Replace an entry at random
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadArg {
    /// Pass 16 times over each of 2^20 windows of 32 KiB in the memory of --size; windows can
    /// overlap or repeat, and one access in 8 is a write
    MemAccess,
    /// Read at random addresses
    Random,
    /// Chase pointers: read every cache line once in random order, again and again
    Chase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// Random order
    Random,
    /// Ascending order
    Sequential,
}

/// Value of `--prefetch`; `None` simulates no prefetcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchArg(pub(crate) Option<NextPagePrefetcher>);

/// Parses a number of bytes, with or without a unit: `48K`, `1G`, `65536`.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 10),
        Some('M' | 'm') => (&text[..text.len() - 1], 20),
        Some('G' | 'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|size| *size > 0).ok_or_else(|| "expected a size: 48K, 2M, 1G".to_owned())
}

fn cache(text: &str) -> Result<CacheShape, String> {
    let expected = || "expected SIZE,WAYS,LINE: `48K,12,64`".to_owned();
    let [bytes, ways, line] = text.split(',').collect::<Vec<_>>()[..] else {
        return Err(expected());
    };
    let ways = ways.parse().map_err(|_| expected())?;
    Ok(CacheShape { size: size(bytes)?, ways, line: size(line)? })
}

fn prefetcher(text: &str) -> Result<PrefetchArg, String> {
    let expected = || "expected steps and per cent, 3,84, or `none`".to_owned();
    if text == "none" {
        return Ok(PrefetchArg(None));
    }
    let (after, share) = text.split_once(',').ok_or_else(expected)?;
    let share = crate::args::percent_above_zero(share)? / 100.0;
    Ok(PrefetchArg(Some(NextPagePrefetcher {
        after: after.parse().map_err(|_| expected())?,
        share,
    })))
}
