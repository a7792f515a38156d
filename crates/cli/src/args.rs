//! The command line as clap sees it. Nothing is resolved or read here.

mod groups;
pub(crate) mod guard;
pub(crate) mod heap;
mod sim;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pagewise_model::Bytes;
use pagewise_model::bounds::MemoryLimit;

pub(crate) use groups::command;
pub(crate) use sim::{
    CpuArg, Feed, Hardware, OrderArg, PagesKept, PolicyArg, Sim, Simulate, WorkloadArg,
};

/// Show where a Linux process's memory goes, what it costs, and how to reduce it.
#[derive(Debug, Parser)]
#[command(name = "pagewise", version, max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// Options of the output's appearance, which every command takes.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// Colour the output: `auto` colours on a terminal unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN", help_heading = "Look")]
    pub(crate) color: When,
    /// Fit tables to N columns; by default to the terminal, or to 100 without one
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(40..), help_heading = "Look")]
    pub(crate) width: Option<u16>,
    /// Unit of sizes in text and HTML; JSON always has bytes
    #[arg(long, global = true, value_enum, value_name = "UNIT", help_heading = "Look")]
    pub(crate) units: Option<UnitArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UnitArg {
    /// Scaled: 1.5M
    Human,
    /// KiB, as in pmap
    Kib,
    /// Bytes
    Bytes,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Explain where a process's memory goes and what can be reduced
    ///
    /// Examples:
    ///   pagewise explain self
    ///   pagewise explain 1234 --html report.html
    ///   pagewise explain firefox --save now.json
    ///   pagewise explain --at-peak -- make -j2
    #[command(verbatim_doc_comment)]
    Explain(Explain),
    /// List the mappings of a process with every smaps counter
    ///
    /// Examples:
    ///   pagewise maps 1234 --sort rss
    ///   pagewise maps 1234 --filter 'rss>1M && name~libc'
    ///   pagewise maps 1234 --columns all --json
    #[command(verbatim_doc_comment)]
    Maps(Maps),
    /// List all processes by PSS, USS, RSS and swap
    Ps(Ps),
    /// Show which memory grew, between snapshots or over time
    ///
    /// Examples:
    ///   pagewise diff before.json after.json
    ///   pagewise diff 1234 --every 2s --for 1m
    #[command(verbatim_doc_comment)]
    Diff(Diff),
    /// Show the state of each page: resident, swapped, zero, guard
    ///
    /// Examples:
    ///   pagewise pages 1234
    ///   pagewise pages 1234 libc --detail
    ///   pagewise pages 1234 7f0000000000+2M
    ///   pagewise pages 1234 --touched 5s
    #[command(verbatim_doc_comment)]
    Pages(Pages),
    /// Show the pools of pagewise's allocators in a process
    ///
    /// Examples:
    ///   pagewise pools 1234
    ///   pagewise pools 1234 frames --html pools.html
    #[command(verbatim_doc_comment)]
    Pools(Pools),
    /// Measure the memory that huge pages waste, and release it
    ///
    /// Examples:
    ///   pagewise thp 1234
    ///   pagewise thp 1234 --fix
    ///   pagewise thp 1234 --fix --hold --yes
    #[command(verbatim_doc_comment)]
    Thp(Thp),
    /// Run a command with transparent huge pages restricted
    ///
    /// Examples:
    ///   pagewise run --thp=never -- redis-server
    #[command(verbatim_doc_comment)]
    Run(Run),
    /// Measure a command: time, faults, cache misses, shootdowns
    ///
    /// Runs the command once or N times and reports medians with confidence
    /// intervals.
    ///
    /// The text report goes to standard error, JSON and CSV go to standard output.
    /// The command keeps its own standard input and output. pagewise exits with the
    /// command's exit status.
    ///
    /// Examples:
    ///   pagewise stat -- make -j2
    ///   pagewise stat -n 10 --warmup 1 --cpu 1 -- ./bench
    ///   pagewise stat -n auto --vs './bench-old 100' -- ./bench-new 100
    ///   pagewise stat --events cycles,instructions,tlb:tlb_flush -- ./bench
    #[command(verbatim_doc_comment)]
    Stat(Stat),
    /// List the events that this machine can count
    ///
    /// States the reason for each event that it cannot count.
    ///
    /// Examples:
    ///   pagewise events
    ///   pagewise events compaction:
    #[command(verbatim_doc_comment)]
    Events(Events),
    /// Show how much free memory can become huge pages
    ///
    /// Shows also the kernel's compaction and reclaim since the start.
    ///
    /// Examples:
    ///   pagewise fragmentation
    ///   pagewise fragmentation --every 1s --for 1m
    #[command(verbatim_doc_comment)]
    Fragmentation(Fragmentation),
    /// Check system settings that cost latency or memory
    ///
    /// Prints how to change and how to restore each setting.
    ///
    /// Examples:
    ///   pagewise doctor
    ///   pagewise doctor postgres --profile latency
    #[command(verbatim_doc_comment)]
    Doctor(Doctor),
    /// Record memory system calls: brk, mmap, madvise, mprotect
    ///
    /// Examples:
    ///   pagewise syscalls -- true
    ///   pagewise syscalls --calls all -o report -- make -j2
    ///   pagewise syscalls 1234 --for 5s
    #[command(verbatim_doc_comment)]
    Syscalls(Syscalls),
    /// Record TLB shootdowns: call, source line, CPUs, waiting time
    ///
    /// If pagewise runs a command, the text report goes to standard error and JSON
    /// goes to standard output. The command keeps its own standard input and output.
    /// Needs root.
    ///
    /// Examples:
    ///   pagewise shootdowns -- ./bench
    ///   pagewise shootdowns 1234 --for 10s
    ///   pagewise shootdowns --system --for 10s
    #[command(verbatim_doc_comment)]
    Shootdowns(Shootdowns),
    /// Record page faults by function, mapping and call stack
    ///
    /// By default every fault is recorded with its call stack, which is unwound by
    /// frame pointers. If pagewise runs a command, the text report goes to standard
    /// error.
    ///
    /// Examples:
    ///   pagewise faults -- ./server
    ///   pagewise faults 1234 --for 10s --latency
    ///   pagewise faults --every 100 --html faults.html -- make -j2
    #[command(verbatim_doc_comment)]
    Faults(Faults),
    /// Record the heap: peak, leaks, functions that allocate most
    #[command(subcommand)]
    Heap(heap::Heap),
    /// Detect heap memory errors: overflow, use after free, ..
    ///
    /// Detects overflow, underflow, use after free, double free and invalid free in a
    /// command.
    ///
    /// One in N allocations, chosen at random, is placed between guard pages. A
    /// memory error is reported at the moment of the access, with the call stacks of
    /// the access, the allocation and the free. Then the command ends by the signal
    /// that it would have received, or continues. The command keeps its own standard
    /// streams.
    ///
    /// Examples:
    ///   pagewise guard -- ./server --test
    ///   pagewise guard --rate 1 --then continue -- ./program
    #[command(verbatim_doc_comment)]
    Guard(guard::Guard),
    /// Report each write to some bytes of a process
    ///
    /// Reports the old and the new value, the thread, and the call stack with source
    /// lines.
    ///
    /// Hardware watchpoints of the CPU report the writes of all threads, also of
    /// threads that start later. No thread is stopped. On a virtual machine a helper
    /// process traces the process meanwhile, so no debugger can attach to it.
    ///
    /// Examples:
    ///   pagewise watch 1234 counter --count 1
    ///   pagewise watch 1234 0x7ffd1e2f3a40 8 --for 10s
    ///   pagewise watch 1234 table+64 4 --rw --when 'value == 0'
    ///   pagewise watch --symbol state -- ./program argument
    #[command(verbatim_doc_comment)]
    Watch(Watch),
    /// Simulate caches, TLBs or page replacement for a program
    #[command(subcommand)]
    Sim(Sim),
    /// Check common claims about memory by experiments
    ///
    /// Each experiment states its expectation and judges whether it holds on this
    /// machine.
    ///
    /// Examples:
    ///   pagewise lab list
    ///   pagewise lab run all --quick --html report.html
    ///   pagewise lab run thp-bloat --set mib=800
    ///   pagewise lab compare before.json after.json
    #[command(verbatim_doc_comment)]
    Lab(Lab),
    /// Run one condition of an experiment once; `lab run` starts this command for each run
    #[command(hide = true)]
    LabRun(LabRun),
    /// Write to BYTES bytes of new memory, and print the nanoseconds that a page took
    #[command(hide = true)]
    LabTouch {
        /// Number of bytes
        bytes: usize,
    },
    /// Map huge pages and wait; `thp --fix` tests on this process which methods the kernel supports
    #[command(hide = true)]
    HugePageSubject,
    /// Undo the changes that killed pagewise processes left in other processes; with PID, wait for the end of PID first
    #[command(hide = true)]
    Keep(Keep),
    /// Trace a process until standard input closes, and suppress the SIGTRAPs that a hypervisor adds to watchpoints
    #[command(hide = true)]
    Shield {
        /// The process
        pid: u32,
    },
    /// Define a term, column or kernel counter
    Define(Define),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands
    Man {
        /// Write one manual page for each command into DIR
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// The process to read, and the source to read it from.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// A PID, a process name or a unique part of one, or `self`
    #[arg(value_name = "TARGET", required_unless_present_any = ["from", "command"])]
    pub(crate) target: Option<String>,
    /// Read a saved snapshot instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "root"])]
    pub(crate) from: Option<PathBuf>,
    /// Read a copy of the /proc tree instead of /proc
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Run this command and read its memory at its exit, before the kernel unmaps it
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["target", "root"])]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Save the snapshot to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
}

/// The time at which to read a command that pagewise runs.
#[derive(Debug, Args)]
pub(crate) struct MomentArgs {
    /// Read the command's memory at TIME after its start (`500ms`, `2s`)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "command", conflicts_with = "at_peak")]
    pub(crate) at: Option<Duration>,
    /// Read the command's memory near its highest RES
    #[arg(long, requires = "command")]
    pub(crate) at_peak: bool,
}

/// The way to read: by default `--full` for processes up to 64 MiB of RES, else `--polite`.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    /// Read page tables in pieces of 2 MiB with a sleep after each, so that the process never waits long
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) polite: bool,
    /// Read page tables at full speed, without sleeps
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) fast: bool,
    /// Read all smaps counters; the process waits while the kernel walks each of its mappings
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) full: bool,
}

impl Reading {
    /// Whether the user asked for a particular reading.
    pub(crate) fn is_chosen(&self) -> bool {
        self.polite || self.fast || self.full
    }
}

/// The destination of a report.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Print JSON, with all sizes in bytes; docs/json.md documents the keys
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the report to FILE instead of standard output
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Add the meaning of each number
    #[arg(long, short, help_heading = "Output")]
    pub(crate) long: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the experiments
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Describe the question, expectation, method and requirements of an experiment
    Describe {
        /// The experiment's name
        name: String,
        #[command(flatten)]
        how: LabSizes,
        #[command(flatten)]
        output: Output,
    },
    /// Run experiments and report which expectations hold on this machine
    Run(LabTry),
    /// Show the results that `run --save` saved
    Report {
        /// Saved results; several files are shown as one report
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: LabOutput,
    },
    /// Compare two files of saved results
    Compare {
        /// The earlier results
        before: PathBuf,
        /// The later results
        after: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabTry {
    /// Names of experiments, or `all`
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) how: LabSizes,
    /// Run each condition N times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// Save every measured value to FILE, for `report` and `compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutput,
}

/// The size of the experiments, and the changes that they may make.
#[derive(Debug, Args)]
pub(crate) struct LabSizes {
    /// Use small sizes: each experiment takes seconds and shows the direction of the effect
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Use the sizes of the original experiments: gigabytes, and minutes for each experiment
    #[arg(long)]
    pub(crate) full: bool,
    /// Set a parameter of the experiments that have it; `describe` lists the parameters
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, u64)>,
    /// Let experiments change system settings and add swap files. Every change is undone, after a crash at the next start
    #[arg(long)]
    pub(crate) change_system: bool,
    /// The directory for files of experiments; it must be on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) disk: PathBuf,
}

/// The destination of a report on saved results.
#[derive(Debug, Args)]
pub(crate) struct LabOutput {
    /// Print JSON to FILE or standard output; docs/json.md documents the keys
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = "Output")]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the report to FILE as Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) markdown: Option<PathBuf>,
    /// Add the meaning of each number
    #[arg(long, short, help_heading = "Output")]
    pub(crate) long: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabRun {
    pub(crate) experiment: String,
    pub(crate) arm: String,
    #[arg(long, value_parser = assignment)]
    pub(crate) set: Vec<(String, u64)>,
    #[arg(long)]
    pub(crate) journal: PathBuf,
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) cgroup: Option<PathBuf>,
}

/// `key=value`, the value a number.
fn assignment(text: &str) -> Result<(String, u64), String> {
    let (key, value) = text.split_once('=').ok_or("it is KEY=VALUE")?;
    let value = value.parse().map_err(|_| format!("{value} is no number"))?;
    Ok((key.to_owned(), value))
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Show the N largest mappings
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) largest: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Maps {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Columns to show: `default`, `all` (with every smaps counter), or a list such as `address,rss,Pss_Dirty,name`
    #[arg(long, value_name = "COLUMNS", default_value = "default")]
    pub(crate) columns: String,
    /// Sort by COLUMN, largest first; `+COLUMN` sorts smallest first
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// Show only the mappings for which EXPRESSION is true: `rss>1M && name~libc`
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// List the ELF sections in each file mapping
    #[arg(long)]
    pub(crate) sections: bool,
    /// Show one row for each file
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<MapGroup>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Pages {
    /// A PID, a process name or a unique part of one, or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Limit the report to an address range (START-END or START+SIZE in hex), the mapping at an address, or the mappings whose name contains this text
    #[arg(value_name = "RANGE|MAPPING")]
    pub(crate) place: Option<String>,
    /// List runs of pages in the same state; this is the default if a RANGE or MAPPING is given
    #[arg(long)]
    pub(crate) runs: bool,
    /// Read page frames too: the number of mappings of each page, pages merged by KSM, folio sizes (needs root)
    #[arg(long)]
    pub(crate) detail: bool,
    /// The kernel interface to use
    #[arg(long, value_enum, default_value_t = ByArg::Both, value_name = "INTERFACE")]
    pub(crate) by: ByArg,
    /// Read page tables at full speed, without sleeps
    #[arg(long)]
    pub(crate) fast: bool,
    /// Report the pages accessed within TIME. This clears the referenced bits of the process first
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with_all = ["runs", "detail", "fast"])]
    pub(crate) touched: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Pools {
    /// A PID, a process name or a unique part of one, or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Show only pools whose type or name contains this text
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Draw the growth of the N largest pools; by default 1, or all if a POOL is given
    #[arg(long, value_name = "POOLS")]
    pub(crate) charts: Option<usize>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    /// /proc/PID/pagemap, and PAGEMAP_SCAN for the facts that pagemap lacks: the fastest way
    Both,
    /// Only PAGEMAP_SCAN, which also reports written pages if the process tracks writes with userfaultfd
    Scan,
    /// Only /proc/PID/pagemap, which does not show huge page-table entries and zero pages
    Pagemap,
}

#[derive(Debug, Args)]
pub(crate) struct Thp {
    /// A PID, a process name or a unique part of one, or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Read PAGES base pages, chosen at random, instead of all
    #[arg(long, value_name = "PAGES", num_args = 0..=1, default_missing_value = "24576", conflicts_with_all = ["fix"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    #[command(flatten)]
    pub(crate) act: Act,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The changes that `thp` makes. Without --yes it only prints the plan.
#[derive(Debug, Args)]
pub(crate) struct Act {
    /// Plan: split sparse huge pages and release their zero-filled base pages
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) fix: bool,
    /// Plan: collapse fully resident base pages into huge pages
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) collapse: bool,
    /// Plan: move memory to swap that was not accessed for the time of --idle
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) pageout: bool,
    /// With --pageout: move mappings that were not accessed for TIME. This clears the referenced bits of the process first
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "pageout", value_parser = humantime::parse_duration, help_heading = "Change the process")]
    pub(crate) idle: Duration,
    /// Carry out the plan
    #[arg(long, requires = "act", help_heading = "Change the process")]
    pub(crate) yes: bool,
    /// With --fix: disable huge pages for this memory from now on (stops one thread for some microseconds)
    #[arg(long, requires = "fix", help_heading = "Change the process")]
    pub(crate) hold: bool,
    /// With --fix: treat a huge page as sparse if at least PERCENT of it is zero-filled
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "fix", value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "Change the process")]
    pub(crate) sparse: u8,
    /// With --fix: the method; `auto` first tests on a child process which methods this kernel supports
    #[arg(long, value_enum, default_value_t = ShrinkMethod::Auto, requires = "fix", help_heading = "Change the process")]
    pub(crate) method: ShrinkMethod,
    /// With --fix --method drop: the longest allowed pause of all threads
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "fix", value_parser = humantime::parse_duration, help_heading = "Change the process")]
    pub(crate) max_pause: Duration,
}

/// The arguments of the keeper process.
#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// The process that changes others; notes of what it changes come on standard input
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The file with the same notes
    #[arg(long, value_name = "FILE", requires = "pid")]
    pub(crate) notes: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShrinkMethod {
    /// The least intrusive method that works
    Auto,
    /// process_madvise(MADV_COLD) on one base page of each huge page
    Split,
    /// The process calls madvise(MADV_DONTNEED) on the zero-filled pages while all its threads are stopped
    Drop,
    /// process_madvise(MADV_PAGEOUT): moves the huge pages to swap, where zero-filled pages are dropped
    Swap,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The huge pages that the command may use, within the system's settings
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) thp: ThpArg,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThpArg {
    /// No huge pages
    Never,
    /// Only in memory for which the command calls madvise(MADV_HUGEPAGE)
    Madvise,
    /// All that the system's settings allow, even if this shell disabled them
    Always,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// List only events whose name contains this text, tracepoints included
    #[arg(value_name = "LETTERS")]
    pub(crate) like: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Run the command N times; `auto` runs it until the median wall time is as precise as --precision asks
    #[arg(short = 'n', long = "runs", value_name = "N|auto", default_value = "1", value_parser = how_often)]
    pub(crate) runs: HowOften,
    /// With `-n auto`: the largest half-width of the 95 % confidence interval
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    pub(crate) precision: f64,
    /// With `-n auto`: start no run after TIME
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub(crate) time: Duration,
    /// Run the command N times before the measured runs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) warmup: u32,
    /// Run on CPU N only
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,
    /// Events to count: names, sets (`usual`, `all`, `none`, ..), `system:tracepoint`, `r1a2`, `cpu/event=0xd0/`; see `pagewise events`
    #[arg(long, short, value_name = "EVENTS")]
    pub(crate) events: Option<String>,
    /// Compare with COMMAND, in interleaved runs. COMMAND is split into words as by a shell, but no shell runs it
    #[arg(long, value_name = "COMMAND")]
    pub(crate) vs: Option<String>,
    /// Sample the command's memory every TIME: peak PSS, private/shared x anonymous/file memory
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10ms", value_parser = humantime::parse_duration)]
    pub(crate) sample: Option<Duration>,
    /// Print CSV with one row for each metric
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// `-n` of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowOften {
    Times(u32),
    Auto,
}

fn how_often(text: &str) -> Result<HowOften, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(HowOften::Auto),
        (_, Ok(n @ 1..)) => Ok(HowOften::Times(n)),
        _ => Err("expected a number from 1, or `auto`".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    number
        .ok()
        .filter(|n| *n > 0.0 && *n <= 100.0)
        .ok_or_else(|| "expected per cent above 0".to_owned())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MapGroup {
    File,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Sort by COLUMN, largest first; `+COLUMN` sorts smallest first
    #[arg(long, value_name = "COLUMN", default_value = "pss", allow_hyphen_values = true)]
    pub(crate) sort: String,
    /// Show one row for each group
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<PsGroup>,
    /// Show the first N rows only
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Read a copy of the /proc tree instead of /proc
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PsGroup {
    User,
    Name,
    Cgroup,
    Exe,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The earlier snapshot; with --every, a process
    #[arg(value_name = "A")]
    pub(crate) before: String,
    /// The later snapshot
    #[arg(value_name = "B", required_unless_present = "every", conflicts_with = "every")]
    pub(crate) after: Option<PathBuf>,
    /// Read the process every TIME, and report the growth since the previous reading
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) every: Option<Duration>,
    /// Stop after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Show which mappings have other addresses in the later snapshot (ASLR)
    #[arg(long)]
    pub(crate) layout: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Fragmentation {
    /// Repeat the report every TIME, with the counts since the previous report
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "root")]
    pub(crate) every: Option<Duration>,
    /// Stop after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Check the limits, cgroup and environment of this process too: a PID, a process name, or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// The goal; without one only settings that cost both latency and memory are checked
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub(crate) profile: Option<ProfileArg>,
    /// Read a copy of the /proc tree instead of /proc; DIR/sysfs holds the files of /sys
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Short and steady response times, at the cost of memory
    Latency,
    /// Many programs in little memory, at the cost of time
    Density,
}

#[derive(Debug, Args)]
pub(crate) struct Syscalls {
    /// A PID, or a process name or a unique part of one. It is recorded until Ctrl-C, Ctrl-Z or its end. Each system call
    /// stops it for some microseconds. A SIGSTOP to pagewise stops it too, until SIGCONT
    #[arg(value_name = "TARGET", required_unless_present = "command")]
    pub(crate) target: Option<String>,
    /// Stop recording after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// The longest allowed pause of all threads at the start of the recording
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) max_pause: Duration,
    /// Show N calls of the time line, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "100", value_parser = limit)]
    pub(crate) calls: Limit,
    /// Run this command and record it and its descendants until all have ended. After the command itself has ended,
    /// Ctrl-C ends its remaining descendants
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Shootdowns {
    /// A PID, or a process name or a unique part of one. It is recorded until Ctrl-C or its end
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "system"])]
    pub(crate) target: Option<String>,
    /// Record all processes and kernel threads of the machine, until Ctrl-C
    #[arg(long, conflicts_with_all = ["target", "command"])]
    pub(crate) system: bool,
    /// Stop recording after TIME
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// Show N rows of each table, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "12", value_parser = limit)]
    pub(crate) rows: Limit,
    /// Unwind call stacks by unwind tables, for programs without frame pointers. This copies 8 KiB of the stack at each event
    #[arg(long)]
    pub(crate) unwind: bool,
    /// Measure madvise, mprotect, munmap, mremap and mmap in user mode too, from the call of the C library's function to its
    /// return. Each call hits two uprobes; the report states their measured cost
    #[arg(long)]
    pub(crate) user_wait: bool,
    /// Run this command, and record it and its descendants until it ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) exports: Exports,
}

/// The memory bound of a recorder.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Memory {
    /// Use at most SIZE of memory, 32M or more. Above it the least frequent entries are added up as one, and the report
    /// states their number
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_limit)]
    pub(crate) memory_limit: MemoryLimit,
}

fn memory_limit(text: &str) -> Result<MemoryLimit, String> {
    let bytes = heap::size(text)?;
    MemoryLimit::new(Bytes(bytes)).ok_or_else(|| "a recorder takes 32 MiB or more: `64M`".into())
}

/// Exports of call stacks for other tools.
#[derive(Debug, Args)]
pub(crate) struct Exports {
    /// Write a flame graph as SVG, for any browser
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) flamegraph: Option<PathBuf>,
    /// Write one line for each call stack with its count, for flamegraph.pl and speedscope
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) collapsed: Option<PathBuf>,
    /// Write a profile for `go tool pprof`
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) pprof: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) perfetto: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// A PID, or a process name or a unique part of one. It is recorded until Ctrl-C or its end
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "from"])]
    pub(crate) target: Option<String>,
    /// Stop recording after TIME; a command continues to run
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Record one in N faults; every count is then a multiple of N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Measure how long the kernel handles each fault (needs root)
    #[arg(long)]
    pub(crate) latency: bool,
    /// Copy BYTES of the stack at each fault, at most 65528. Callers without frame pointers are found within these bytes. The
    /// report states how many stacks were cut off
    #[arg(long, value_name = "BYTES", default_value_t = pagewise_trace::faults::STACK, value_parser = clap::value_parser!(u16).range(8..=65528))]
    pub(crate) stack: u16,
    /// Record mremap (needs root), so that faults in memory that mremap just moved or extended have a type. This adds some
    /// 50 ns to every system call of the machine
    #[arg(long)]
    pub(crate) mremap: bool,
    /// Load the heap recorder into the command, and report the call stack that allocated the memory of each fault, for
    /// blocks of a page or of BYTES and more. Children of the command are not recorded
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, requires = "command", value_parser = heap::size)]
    pub(crate) heap: Option<Option<u64>>,
    /// Show N rows of each table, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "15", value_parser = limit)]
    pub(crate) rows: Limit,
    /// Read a saved recording instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command"])]
    pub(crate) from: Option<PathBuf>,
    /// Save the recording to FILE, which `--from` opens on any machine
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    /// Run this command, and record it and its descendants until it ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) exports: Exports,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// TARGET: a PID, or a process name or a unique part of one. ADDR|SYMBOL: an address, or a global or static variable,
    /// also with an offset (`table+64`). LEN: the number of bytes, up to 32; by default the size of the variable, or up to
    /// 8 aligned bytes at an address
    #[arg(value_names = ["TARGET", "ADDR|SYMBOL", "LEN"], num_args = 0..=3)]
    pub(crate) words: Vec<String>,
    /// Watch the variable NAME
    #[arg(long, value_name = "NAME", conflicts_with = "at")]
    pub(crate) symbol: Option<String>,
    /// Watch the address ADDR
    #[arg(long, value_name = "ADDR")]
    pub(crate) at: Option<String>,
    /// Report writes (the default)
    #[arg(long, conflicts_with = "rw")]
    pub(crate) write: bool,
    /// Report reads and writes
    #[arg(long)]
    pub(crate) rw: bool,
    /// Stop after N accesses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Stop after TIME; a command continues to run
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Report only the accesses for which CONDITION is true: `value == 0`, `value < 10 && old >= 10`; values are unsigned
    #[arg(long, value_name = "CONDITION")]
    pub(crate) when: Option<String>,
    /// Show the last N accesses, or `all`, at the end instead of each at once. Files get 100 by default, JSON has all
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) hits: Option<Limit>,
    /// Run this command and watch a variable of its program before its first instruction, or a variable of a library before
    /// the library's code runs
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The highest number of rows; `None` for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(pub(crate) Option<usize>);

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "all" => Ok(Limit(None)),
        number => number.parse().map(|n| Limit(Some(n))).map_err(|_| "a number or `all`".into()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Define {
    /// A term, column or kernel counter; without one all are listed
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
