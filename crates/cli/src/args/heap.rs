//! The options of `pagewise heap`.

mod export;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(crate) use export::{HeapExport, OfArg};

use super::{Limit, Output, limit};

/// What to do with recordings of heaps.
#[derive(Debug, Subcommand)]
pub(crate) enum Heap {
    /// Run a command and record its heap, with every call of malloc and free by call stack
    ///
    /// Its standard streams, its exit code and a Ctrl-C are its own. The recording is small; `pagewise heap report` reads it.
    ///
    /// Examples:
    ///   pagewise heap run -- ./server --test
    ///   pagewise heap run -o heap.pwh --sample 512k -- ./server
    #[command(verbatim_doc_comment)]
    Run(HeapRun),
    /// Record the heap of a program that runs already, for some time: what it allocates from now on
    ///
    /// One of its threads is made to load the recorder, where that is safe. When the recording ends, the program's functions are
    /// as they were. Of the C library of GNU, on x86-64.
    ///
    /// Examples:
    ///   pagewise heap attach 1234 --for 10s
    ///   pagewise heap attach 1234 -o heap.pwh --sample 512k
    #[command(verbatim_doc_comment)]
    Attach(HeapAttach),
    /// Say what was on the heap when most was, what was never freed, and who allocates most
    ///
    /// Examples:
    ///   pagewise heap report heap.pwh
    ///   pagewise heap report heap.pwh --at end --tree top-down
    ///   pagewise heap report heap.pwh --by calls --threshold 5
    #[command(verbatim_doc_comment)]
    Report(HeapReport),
    /// Say what grew from one recording to another, by call stack: of another run, or another build
    ///
    /// Examples:
    ///   pagewise heap diff before.pwh after.pwh
    ///   pagewise heap diff before.pwh after.pwh --by leaked
    #[command(verbatim_doc_comment)]
    Diff(HeapDiff),
    /// Write a recording for other tools: massif's, heaptrack's, pprof, flame graphs, Perfetto
    ///
    /// Examples:
    ///   pagewise heap export heap.pwh --massif massif.out
    ///   pagewise heap export heap.pwh --heaptrack heaptrack.gz --pprof heap.pb.gz
    ///   pagewise heap export heap.pwh --flamegraph leaks.svg --of leaked
    ///   pagewise heap export heap.pwh --collapsed --of temporary | sort -k2
    #[command(verbatim_doc_comment)]
    Export(HeapExport),
}

#[derive(Debug, Args)]
pub(crate) struct HeapRun {
    /// The file to write; `PROGRAM.PID.pwh` by default
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Take samples, one in so many bytes in the mean, instead of every call: for production
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) sample: Option<u64>,
    /// Record memory that the program maps itself, too: mmap, mremap, brk
    #[arg(long)]
    pub(crate) mmap: bool,
    /// Record each block of pagewise's own allocators, too, which are slower then; see `pagewise pools`
    #[arg(long)]
    pub(crate) pools: bool,
    /// Record the command's children too, each into a file of its own: `FILE.PID`
    #[arg(long)]
    pub(crate) follow: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct HeapAttach {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,
    /// For how long (`10s`, `500ms`); until Ctrl-C or its end by default
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<std::time::Duration>,
    /// The file to write; `PROGRAM.PID.pwh` by default
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Take samples, one in so many bytes in the mean, instead of every call
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) sample: Option<u64>,
    /// Record memory that the program maps itself from now on, too: mmap, mremap, brk
    #[arg(long)]
    pub(crate) mmap: bool,
    /// Record children that it forks meanwhile too, each into a file of its own: `FILE.PID`
    #[arg(long)]
    pub(crate) follow: bool,
    /// The longest time for which all its threads may be stopped at once, at the beginning and at the end
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: std::time::Duration,
}

#[derive(Debug, Args)]
pub(crate) struct HeapReport {
    /// A recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// How many rows of each table to show, or `all`; 10 by default, 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<Limit>,
    /// Add up branches of trees with less than this many per cent of all
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    pub(crate) threshold: f64,
    /// Show what was live at this time after the beginning (`500ms`, `2s`), at the `peak`, or at the `end`; the peak by
    /// default
    #[arg(long, value_name = "TIME|peak|end", value_parser = moment)]
    pub(crate) at: Option<Moment>,
    /// Where trees begin
    #[arg(long, value_enum, value_name = "WAY", default_value_t = Way::BottomUp)]
    pub(crate) tree: Way,
    /// What the tree adds up
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = What::Live)]
    pub(crate) by: What,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct HeapDiff {
    /// The recording that it is compared with
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// The recording that is compared
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
    /// How many call stacks to show, or `all`; 20 by default, 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<Limit>,
    /// What to sort by: what grew most comes first
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Grown::Peak)]
    pub(crate) by: Grown,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// When.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    Peak,
    End,
    /// Nanoseconds after the beginning.
    Time(u64),
}

/// From where a tree grows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Way {
    /// From the function that allocates to its callers
    BottomUp,
    /// From `main` to the functions that allocate
    TopDown,
}

/// What a tree adds up.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum What {
    /// Bytes live at the time of --at
    Live,
    /// All bytes that were allocated
    Allocated,
    /// Allocations
    Calls,
    /// Allocations that were freed before the same thread allocated another
    Temporary,
}

/// What grew.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Grown {
    /// Bytes live at the peak
    Peak,
    /// Bytes that were never freed
    Leaked,
    /// All bytes that were allocated
    Allocated,
    /// Allocations
    Calls,
}

pub(super) fn size(text: &str) -> Result<u64, String> {
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

fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim_end_matches('%').parse().ok();
    let number = number.filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 100".into())
}

fn moment(text: &str) -> Result<Moment, String> {
    match text {
        "peak" => Ok(Moment::Peak),
        "end" => Ok(Moment::End),
        time => {
            let time = humantime::parse_duration(time)
                .map_err(|error| format!("{error}: a time (`500ms`, `2s`), `peak` or `end`"))?;
            Ok(Moment::Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
        }
    }
}
