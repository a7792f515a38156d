//! The options of `pagewise sim`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pagewise_sim::NextPage;
use pagewise_sim::geometry::CacheShape;

use super::Output;

/// What is simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// How often TLBs for 4 KiB, 2 MiB and 1 GiB pages miss
    ///
    /// Examples:
    ///   pagewise sim tlb -- ls
    ///   pagewise sim tlb --cpu i7-6800k --workload mem-access --order random
    ///   valgrind --tool=lackey --trace-mem=yes --log-file=trace ls; pagewise sim tlb --trace trace
    #[command(verbatim_doc_comment)]
    Tlb(Simulate),
    /// How often the first and second level of cache miss, with each replacement policy
    ///
    /// Examples:
    ///   pagewise sim cache -- ls
    ///   pagewise sim cache --l1d 48K,12,64 --json -- ./bench
    #[command(verbatim_doc_comment)]
    Cache(Simulate),
    /// How often too little memory makes pages fault, with each way to choose what is reclaimed
    ///
    /// Examples:
    ///   pagewise sim pages --memory 256M --workload random --size 400M --limit 4000000
    ///   pagewise sim pages --memory 1M -- ls
    #[command(verbatim_doc_comment)]
    Pages(PagesKept),
}

/// Caches and TLBs, and what they are fed with.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    pub(crate) hardware: Hardware,
    #[command(flatten)]
    pub(crate) feed: Feed,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Memory, and what it is fed with.
#[derive(Debug, Args)]
pub(crate) struct PagesKept {
    /// How much memory there is
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, help_heading = "Model")]
    pub(crate) memory: u64,
    /// In pages of this size
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size, help_heading = "Model")]
    pub(crate) page: u64,
    #[command(flatten)]
    pub(crate) feed: Feed,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Which caches and TLBs.
#[derive(Debug, Args)]
pub(crate) struct Hardware {
    /// Whose sizes
    #[arg(long, value_enum, value_name = "CPU", default_value_t = CpuArg::Machine, help_heading = "Model")]
    pub(crate) cpu: CpuArg,
    /// Which line or page makes room; `cache` shows all, and this one first
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyArg::Lru, help_heading = "Model")]
    pub(crate) policy: PolicyArg,
    /// Another first level of cache: its size, ways, and bytes in a line
    #[arg(long, value_name = "SIZE,WAYS,LINE", value_parser = cache, help_heading = "Model")]
    pub(crate) l1d: Option<CacheShape>,
    /// Another second level of cache
    #[arg(long, value_name = "SIZE,WAYS,LINE", value_parser = cache, help_heading = "Model")]
    pub(crate) l2: Option<CacheShape>,
    /// Another prefetcher of the page walker for 4 KiB pages: after so many misses each a page further, so many per cent in time; or `none`
    #[arg(long, value_name = "STEPS,PERCENT", value_parser = prefetcher, help_heading = "Model")]
    pub(crate) prefetch: Option<PrefetchArg>,
}

/// What simulators are fed with: one of three.
#[derive(Debug, Args)]
pub(crate) struct Feed {
    /// A built-in stream of accesses
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["trace", "command"], help_heading = "Accesses")]
    pub(crate) workload: Option<WorkloadArg>,
    /// Where the windows of mem-access lie
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = OrderArg::Random, requires = "workload", help_heading = "Accesses")]
    pub(crate) order: OrderArg,
    /// Over how much memory a workload goes
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size, requires = "workload", help_heading = "Accesses")]
    pub(crate) size: u64,
    /// Where places of a workload are random: the same seed, the same places
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "workload",
        help_heading = "Accesses"
    )]
    pub(crate) seed: u64,
    /// Read what valgrind's lackey wrote with --trace-mem=yes; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "command", help_heading = "Accesses")]
    pub(crate) trace: Option<PathBuf>,
    /// Stop after so many accesses: by default 100,000,000 of a command, which is ended then, and of `random` and `chase`; all of
    /// others
    #[arg(long, value_name = "N", help_heading = "Accesses")]
    pub(crate) limit: Option<u64>,
    /// Run this command under valgrind's lackey, which sees every access, hundreds of times slower; its children are not looked
    /// at
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["workload", "trace"])]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuArg {
    /// This machine's, as sysfs and cpuid tell them
    Machine,
    /// A Broadwell-E
    #[value(name = "i7-6800k")]
    I7_6800K,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// What was used longest ago
    Lru,
    /// Tree-PLRU: nearly that, with a bit a node of a tree
    Plru,
    /// What was filled longest ago
    Fifo,
    /// Any
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadArg {
    /// 2^20 windows of 32 KiB, 16 passes over each, every 8th access a write
    MemAccess,
    /// Reads of words anywhere
    Random,
    /// A pointer chase: every line once, in no order, and again
    Chase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// Anywhere
    Random,
    /// One after the other
    Sequential,
}

/// `--prefetch`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefetchArg(pub(crate) Option<NextPage>);

/// `48K`, `1G`, `4096`.
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
    let expected = || "expected a size, ways and bytes in a line: 48K,12,64".to_owned();
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
    let share = super::percent(share)? / 100.0;
    Ok(PrefetchArg(Some(NextPage { after: after.parse().map_err(|_| expected())?, share })))
}
