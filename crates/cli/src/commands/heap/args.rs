//! The options of `pagewise heap`.

mod export;
mod scan;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(crate) use export::{HeapExport, OfArg};
pub(crate) use scan::HeapScanArgs;

use crate::args::{OutputArgs, RowLimit, byte_count, limit, percent};
use pagewise_model::units::nanoseconds;

/// The subcommands of `heap`.
#[derive(Debug, Subcommand)]
pub(crate) enum HeapCommand {
    /// Run a command and record every malloc and free with its call stack
    ///
    /// The command uses the standard streams of pagewise and receives Ctrl-C; pagewise exits with
    /// the exit code of the command. The recording is small (a few KiB to 1 MiB);
    /// `pagewise heap report` reads the recording.
    ///
    /// Examples:
    ///   pagewise heap run -- ./server --test
    ///   pagewise heap run -o heap.pwh --sample 512k -- ./server
    #[command(verbatim_doc_comment)]
    Run(HeapRun),
    /// Record the heap of a running program: the blocks that it allocates from now on
    ///
    /// pagewise makes one thread of the program load a recorder library, at a point where dlopen is
    /// safe. pagewise redirects malloc, free and related functions to this library, and restores
    /// these functions at the end. The program must use glibc on x86-64.
    ///
    /// Examples:
    ///   pagewise heap attach 1234 --for 10s
    ///   pagewise heap attach 1234 -o heap.pwh --sample 512k
    #[command(verbatim_doc_comment)]
    Attach(HeapAttach),
    /// Scan the heap of a running program as it is: live blocks, fragmentation, trimmable memory
    ///
    /// Needs no recorder and no restart. pagewise stops all threads of the program while it copies
    /// the heap (about 0.1 s per GiB), lets them run on, and walks the allocator's data in the
    /// copy. It needs as much available memory as the heap has. Supports glibc, jemalloc, tcmalloc,
    /// mimalloc, musl, CPython and pagewise's pools on x86-64 (versions: docs/heap.md). `--leaks`,
    /// `--retained` and `--why` also copy all other memory that can hold pointers, and follow these
    /// from registers, stacks, variables and mappings. While a recorder of `heap run` or `heap
    /// attach` is on, `--leaks` also reports the call stacks that allocated the leaked blocks.
    ///
    /// Examples:
    ///   pagewise heap scan 1234
    ///   pagewise heap scan 1234 --every 10s
    ///   pagewise heap scan 1234 --leaks --retained
    ///   pagewise heap scan --save heap.json -- ./server --test
    #[command(verbatim_doc_comment)]
    Scan(HeapScanArgs),
    /// Report the heap at its peak, the blocks that were never freed, and the functions that
    /// allocate most
    ///
    /// Examples:
    ///   pagewise heap report heap.pwh
    ///   pagewise heap report heap.pwh --at end --tree top-down
    ///   pagewise heap report heap.pwh --by calls --threshold 5
    #[command(verbatim_doc_comment)]
    Report(HeapReport),
    /// Report the growth by call stack between two recordings, even of different builds
    ///
    /// Examples:
    ///   pagewise heap diff before.pwh after.pwh
    ///   pagewise heap diff before.pwh after.pwh --by leaked
    #[command(verbatim_doc_comment)]
    Diff(HeapDiff),
    /// Convert a recording for massif, heaptrack, pprof, flame graphs or Perfetto
    ///
    /// Examples:
    ///   pagewise heap export heap.pwh --massif massif.out
    ///   pagewise heap export heap.pwh --heaptrack heaptrack.gz --pprof heap.pb.gz
    ///   pagewise heap export heap.pwh --flamegraph leaks.svg --of leaked
    ///   pagewise heap export heap.pwh --collapsed --of temporary | sort -k2
    #[command(verbatim_doc_comment)]
    Export(HeapExport),
}

/// Options that `heap run` and `heap attach` share.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Write the recording to FILE instead of `PROGRAM.PID.pwh`
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Instead of every call, record one allocation per SIZE allocated bytes on average; use this
    /// in production
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(crate) sample: Option<u64>,
    /// Also record mmap, mremap and brk calls that are not made by malloc
    #[arg(long)]
    pub(crate) mmap: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HeapRun {
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Also record each block of a program's pools (see `pagewise pools`); this makes the
    /// allocators of the pools slower
    #[arg(long)]
    pub(crate) pools: bool,
    /// Record the command's children too, each in a file `FILE.PID`
    #[arg(long)]
    pub(crate) follow: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct HeapAttach {
    /// The PID of the process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,
    /// Stop after TIME (`10s`, `500ms`); by default at Ctrl-C or the end of the process
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) time: Option<std::time::Duration>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Also record children that are forked during the recording, each in a file `FILE.PID`
    #[arg(long)]
    pub(crate) follow: bool,
    /// Stop all threads for at most TIME at a time, at the start and at the end of the recording.
    /// If TIME is too short at the start, nothing is recorded; if it is too short at the end, the
    /// limit rises to 2 s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: std::time::Duration,
}

#[derive(Debug, Args)]
pub(crate) struct HeapReport {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Show N rows of each table, or `all`; by default 10, and 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<RowLimit>,
    /// Merge branches of the call trees that have less than PERCENT of the total into one row
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    pub(crate) threshold: f64,
    /// Show the blocks that were live at TIME after the start (`500ms`, `2s`), at the `peak` (the
    /// default), or at the `end`
    #[arg(long, value_name = "TIME|peak|end", value_parser = moment)]
    pub(crate) at: Option<TimePoint>,
    /// The root of the call trees in the report
    #[arg(long, value_enum, value_name = "WAY", default_value_t = TreeRoot::BottomUp)]
    pub(crate) tree: TreeRoot,
    /// The quantity that the call trees add up
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = TreeSum::Live)]
    pub(crate) by: TreeSum,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HeapDiff {
    /// The earlier recording
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// The later recording
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
    /// Show N call stacks, or `all`; by default 20, and 10000 in JSON
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) top: Option<RowLimit>,
    /// The quantity to sort by, largest growth first
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Grown::Peak)]
    pub(crate) by: Grown,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A time point of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimePoint {
    Peak,
    End,
    /// Nanoseconds after the start of the recording.
    Time(u64),
}

/// The root of the call trees.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TreeRoot {
    /// The allocating functions, with their callers below
    BottomUp,
    /// `main`, with the functions that it calls below
    TopDown,
}

/// The quantity that the call trees add up.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TreeSum {
    /// Bytes that were live at the time of --at
    Live,
    /// All bytes allocated
    Allocated,
    /// Number of allocations
    Calls,
    /// Number of allocations that were freed before the same thread allocated again
    Temporary,
}

/// The quantity to compare.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Grown {
    /// Bytes that were live at the peak
    Peak,
    /// Bytes never freed
    Leaked,
    /// All bytes allocated
    Allocated,
    /// Number of allocations
    Calls,
}

fn moment(text: &str) -> Result<TimePoint, String> {
    match text {
        "peak" => Ok(TimePoint::Peak),
        "end" => Ok(TimePoint::End),
        time => {
            let time = humantime::parse_duration(time)
                .map_err(|error| format!("{error}: a time (`500ms`, `2s`), `peak` or `end`"))?;
            Ok(TimePoint::Time(nanoseconds(time)))
        }
    }
}
