//! The command line as clap sees it. Nothing is resolved or read here.

pub(crate) mod guard;
pub(crate) mod heap;
mod sim;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pagewise_model::Bytes;
use pagewise_model::bounds::MemoryLimit;

pub(crate) use sim::{
    CpuArg, Feed, Hardware, OrderArg, PagesKept, PolicyArg, Sim, Simulate, WorkloadArg,
};

/// Where a Linux process's memory is, what it costs, and why.
#[derive(Debug, Parser)]
#[command(name = "pagewise", version, max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) look: Look,
}

/// How output looks; understood by every command.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// Colour: `auto` is on a terminal only, and never where NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = When::Auto, value_name = "WHEN", help_heading = "Look")]
    pub(crate) color: When,
    /// Columns to fit; the terminal's by default, else 100
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(40..), help_heading = "Look")]
    pub(crate) width: Option<u16>,
    /// Units of sizes for people; JSON is always bytes
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
    /// 1.5M
    Human,
    /// KiB, as pmap
    Kib,
    /// Bytes
    Bytes,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Explain where a process's memory is
    ///
    /// Examples:
    ///   pagewise explain self
    ///   pagewise explain 1234 --html report.html
    ///   pagewise explain firefox --save now.json
    ///   pagewise explain --at-peak -- make -j2
    #[command(verbatim_doc_comment)]
    Explain(Explain),
    /// List the mappings of a process, as pmap does and further
    ///
    /// Examples:
    ///   pagewise maps 1234 --sort rss
    ///   pagewise maps 1234 --filter 'rss>1M && name~libc'
    ///   pagewise maps 1234 --columns all --json
    #[command(verbatim_doc_comment)]
    Maps(Maps),
    /// List every process with USS, PSS, RSS, swap and quadrants
    Ps(Ps),
    /// Say what grew between two snapshots, or every so often in a running process
    ///
    /// Examples:
    ///   pagewise diff before.json after.json
    ///   pagewise diff 1234 --every 2s --for 1m
    #[command(verbatim_doc_comment)]
    Diff(Diff),
    /// Say what is mapped at every page: untouched, resident and how, zero, swapped, guard
    ///
    /// Examples:
    ///   pagewise pages 1234
    ///   pagewise pages 1234 libc --detail
    ///   pagewise pages 1234 7f0000000000+2M
    ///   pagewise pages 1234 --touched 5s
    #[command(verbatim_doc_comment)]
    Pages(Pages),
    /// Show the pools of pagewise's allocators in a running process: what is out, what they hold for it
    ///
    /// Examples:
    ///   pagewise pools 1234
    ///   pagewise pools 1234 frames --html pools.html
    #[command(verbatim_doc_comment)]
    Pools(Pools),
    /// Measure what huge pages cost a process, and give their unused parts back
    ///
    /// Examples:
    ///   pagewise thp 1234
    ///   pagewise thp 1234 --fix
    ///   pagewise thp 1234 --fix --hold --yes
    #[command(verbatim_doc_comment)]
    Thp(Thp),
    /// Run a command with fewer huge pages than the system gives
    ///
    /// Examples:
    ///   pagewise run --thp=never -- redis-server
    #[command(verbatim_doc_comment)]
    Run(Run),
    /// Run a command once or often, and say what it costs: time, faults, misses, shootdowns, memory
    ///
    /// The report goes to standard error, JSON and CSV to standard output; the command has all of
    /// standard input and output as without us. Its exit status is ours.
    ///
    /// Examples:
    ///   pagewise stat -- make -j2
    ///   pagewise stat -n 10 --warmup 1 --cpu 1 -- ./bench
    ///   pagewise stat -n auto --vs './bench-old 100' -- ./bench-new 100
    ///   pagewise stat --events cycles,instructions,tlb:tlb_flush -- ./bench
    #[command(verbatim_doc_comment)]
    Stat(Stat),
    /// List what can be counted here, and say why the rest cannot
    ///
    /// Examples:
    ///   pagewise events
    ///   pagewise events compaction:
    #[command(verbatim_doc_comment)]
    Events(Events),
    /// Say how much free memory can be had in huge pages, and what the kernel did to make some
    ///
    /// Examples:
    ///   pagewise fragmentation
    ///   pagewise fragmentation --every 1s --for 1m
    #[command(verbatim_doc_comment)]
    Fragmentation(Fragmentation),
    /// Judge the settings that cost latency or memory, with the way to change and to restore each
    ///
    /// Examples:
    ///   pagewise doctor
    ///   pagewise doctor postgres --profile latency
    #[command(verbatim_doc_comment)]
    Doctor(Doctor),
    /// Record the memory system calls of a command or a process: brk, mmap, madvise and their kin
    ///
    /// Examples:
    ///   pagewise syscalls -- true
    ///   pagewise syscalls --calls all -o report -- make -j2
    ///   pagewise syscalls 1234 --for 5s
    #[command(verbatim_doc_comment)]
    Syscalls(Syscalls),
    /// Say who has TLBs flushed: which call, which line, which CPUs it interrupts, how long it waits for them
    ///
    /// Of a command the report goes to standard error, JSON to standard output; the command has all of standard
    /// input and output as without us. Needs root.
    ///
    /// Examples:
    ///   pagewise shootdowns -- ./bench
    ///   pagewise shootdowns 1234 --for 10s
    ///   pagewise shootdowns --system --for 10s
    #[command(verbatim_doc_comment)]
    Shootdowns(Shootdowns),
    /// Record page faults: by function, line, mapping, kind and call stack, with how long each took
    ///
    /// Every fault is recorded, with its call stack by frame pointers. Of a command the report goes to standard error.
    ///
    /// Examples:
    ///   pagewise faults -- ./server
    ///   pagewise faults 1234 --for 10s --latency
    ///   pagewise faults --every 100 --html faults.html -- make -j2
    #[command(verbatim_doc_comment)]
    Faults(Faults),
    /// Record the heap of a program over time, and say what was on it: the peak, leaks, who allocates most
    #[command(subcommand)]
    Heap(heap::Heap),
    /// Run a command and say where it misuses its heap: overflows, use after free, double and invalid frees, by whom
    ///
    /// Each of so many allocations, drawn by chance, lies on pages of its own with inaccessible ones around them. A mistake is
    /// told as it is made, with the call stacks of the access, the allocation and the free; then the command ends, as
    /// it would have of itself, or goes on. Its standard streams are its own.
    ///
    /// Examples:
    ///   pagewise guard -- ./server --test
    ///   pagewise guard --rate 1 --then continue -- ./program
    #[command(verbatim_doc_comment)]
    Guard(guard::Guard),
    /// Say who writes some bytes of a process: old and new value, thread, and call stack with source lines, for each access
    ///
    /// The CPU watches them, on all threads, those that come later too; nothing is stopped. On a virtual machine a helper process traces the
    /// process meanwhile, so that no debugger can.
    ///
    /// Examples:
    ///   pagewise watch 1234 counter --count 1
    ///   pagewise watch 1234 0x7ffd1e2f3a40 8 --for 10s
    ///   pagewise watch 1234 table+64 4 --rw --when 'value == 0'
    ///   pagewise watch --symbol state -- ./program argument
    #[command(verbatim_doc_comment)]
    Watch(Watch),
    /// Simulate caches, TLBs or page replacement on what a program accesses: where no counter tells, or in another machine
    #[command(subcommand)]
    Sim(Sim),
    /// Try on this machine what is said about memory: experiments that judge themselves
    ///
    /// Examples:
    ///   pagewise lab list
    ///   pagewise lab run all --quick --html report.html
    ///   pagewise lab run thp-bloat --set mib=800
    ///   pagewise lab compare before.json after.json
    #[command(verbatim_doc_comment)]
    Lab(Lab),
    /// Run one condition of an experiment once: `lab run` starts it for each run
    #[command(hide = true)]
    LabRun(LabRun),
    /// Touch so many bytes, and print how many nanoseconds a page took
    #[command(hide = true)]
    LabTouch {
        /// How many
        bytes: usize,
    },
    /// Have huge pages and wait: `thp --fix` tries on it what works on this kernel
    #[command(hide = true)]
    HugePageSubject,
    /// Undo what killed runs of pagewise left in other processes; with PID, wait for that process's end first
    #[command(hide = true)]
    Keep(Keep),
    /// Trace a process until standard input is closed, and keep from it the SIGTRAPs of watched memory that a hypervisor causes
    #[command(hide = true)]
    Shield {
        /// The process
        pid: u32,
    },
    /// Say what a number means: `define SHR`, `define Pss_Dirty`
    Define(Define),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands into a folder
    Man {
        /// Write one page a command here
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Which process, and from where.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// A pid, a process name (exact, else part of one), or `self`
    #[arg(value_name = "TARGET", required_unless_present_any = ["from", "command"])]
    pub(crate) target: Option<String>,
    /// Open a saved snapshot instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command", "root"])]
    pub(crate) from: Option<PathBuf>,
    /// Read a copied /proc tree instead of /proc
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Run this command and look at it as it exits, before its memory is torn down
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["target", "root"])]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) moment: MomentArgs,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Save the snapshot to this file; `--from` opens it anywhere
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
}

/// When to look at a command that we run.
#[derive(Debug, Args)]
pub(crate) struct MomentArgs {
    /// Look at the command this long after its start (`500ms`, `2s`)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "command", conflicts_with = "at_peak")]
    pub(crate) at: Option<Duration>,
    /// Look at the command near its highest RES
    #[arg(long, requires = "command")]
    pub(crate) at_peak: bool,
}

/// How to read; by default small processes are read in full and large ones politely.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    /// Read page tables in short pieces with rests, so that the target never waits long
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) polite: bool,
    /// Read page tables at full speed
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) fast: bool,
    /// Read every counter of smaps; the target waits while each mapping is walked
    #[arg(long, group = "reading", help_heading = "Reading")]
    pub(crate) full: bool,
}

impl Reading {
    /// Whether the user asked for a particular reading.
    pub(crate) fn is_chosen(&self) -> bool {
        self.polite || self.fast || self.full
    }
}

/// Where a report goes.
#[derive(Debug, Args)]
pub(crate) struct Output {
    /// JSON: bytes, never kB; keys documented in docs/json.md
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the report here instead of to standard output
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Say what each number means
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
    /// Say what an experiment asks, expects, measures and needs
    Describe {
        /// The experiment
        name: String,
        #[command(flatten)]
        how: LabSizes,
        #[command(flatten)]
        output: Output,
    },
    /// Run experiments, and say what holds here
    Run(LabTry),
    /// Show what was saved with `run --save`
    Report {
        /// Notebooks; several are shown as one
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: LabOutput,
    },
    /// Say what differs between two notebooks
    Compare {
        /// What it is compared with
        before: PathBuf,
        /// What is compared
        after: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabTry {
    /// Experiments, or `all`
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) how: LabSizes,
    /// How often each condition is run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: Option<u32>,
    /// Keep every value in this file, for `report` and `compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutput,
}

/// How large experiments are, and what they may do.
#[derive(Debug, Args)]
pub(crate) struct LabSizes {
    /// Small sizes: directions show within seconds
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// The sizes of the sources: gigabytes, and minutes each
    #[arg(long)]
    pub(crate) full: bool,
    /// Set a parameter, as `describe` lists them; for those experiments that have it
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    pub(crate) set: Vec<(String, u64)>,
    /// Let experiments change settings of the system, swap files among them; they are put back, at the next start if need be
    #[arg(long)]
    pub(crate) change_system: bool,
    /// Where experiments make files: on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) disk: PathBuf,
}

/// Where the report of a notebook goes.
#[derive(Debug, Args)]
pub(crate) struct LabOutput {
    /// JSON, to FILE or standard output; keys documented in docs/json.md
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = "Output")]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write one self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) markdown: Option<PathBuf>,
    /// Say what each number means
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
    /// How many of the largest mappings to show
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) largest: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Maps {
    #[command(flatten)]
    pub(crate) source: Source,
    /// `default`, `all` (every line of smaps, unknown ones too), or a list: `address,rss,Pss_Dirty,name`
    #[arg(long, value_name = "COLUMNS", default_value = "default")]
    pub(crate) columns: String,
    /// Sort by a column, the largest first; `+rss` for the smallest first
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// Show only mappings that fit: `rss>1M && name~libc`
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// List the ELF sections inside each file mapping
    #[arg(long)]
    pub(crate) sections: bool,
    /// One row a file
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<MapGroup>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Pages {
    /// A pid, a process name (exact, else part of one), or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Only there: START-END or START+SIZE (hex), an address, or a mapping's name or part of it
    #[arg(value_name = "RANGE|MAPPING")]
    pub(crate) place: Option<String>,
    /// List the runs of pages alike (also where a RANGE or MAPPING is named)
    #[arg(long)]
    pub(crate) runs: bool,
    /// Look up page frames too: pages mapped more than once, by how many, merged ones, sizes of folios
    #[arg(long)]
    pub(crate) detail: bool,
    /// Which kernel interface to ask
    #[arg(long, value_enum, default_value_t = ByArg::Both, value_name = "INTERFACE")]
    pub(crate) by: ByArg,
    /// Read page tables at full speed, without rests
    #[arg(long)]
    pub(crate) fast: bool,
    /// Say instead what is touched in this time; clears the referenced bits of the process at first
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with_all = ["runs", "detail", "fast"])]
    pub(crate) touched: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Pools {
    /// A pid, a process name (exact, else part of one), or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Only pools of this kind or name, or part of it
    #[arg(value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Draw how so many pools grew, those that hold most; 1, or all where a POOL is named
    #[arg(long, value_name = "POOLS")]
    pub(crate) charts: Option<usize>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    /// The words of /proc/PID/pagemap, and PAGEMAP_SCAN for what they do not tell: the fastest
    Both,
    /// PAGEMAP_SCAN alone: also says what was written, where the process tracks that (userfaultfd)
    Scan,
    /// The words alone: says nothing of huge entries and zero pages
    Pagemap,
}

#[derive(Debug, Args)]
pub(crate) struct Thp {
    /// A pid, a process name (exact, else part of one), or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Read so many base pages, picked at random, instead of all
    #[arg(long, value_name = "PAGES", num_args = 0..=1, default_missing_value = "24576", conflicts_with_all = ["fix"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    #[command(flatten)]
    pub(crate) act: Act,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What `thp` does to a process. Without --yes it only says what it would do.
#[derive(Debug, Args)]
pub(crate) struct Act {
    /// Plan to split sparse huge pages and give their zero pages back
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) fix: bool,
    /// Plan to make huge pages of memory that is resident in base pages throughout
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) collapse: bool,
    /// Plan to move memory to swap that is not used for a while (see --idle)
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) pageout: bool,
    /// With --pageout: how long a mapping must not be used; clears the referenced bits of the process at first
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "pageout", value_parser = humantime::parse_duration, help_heading = "Change the process")]
    pub(crate) idle: Duration,
    /// Do it
    #[arg(long, requires = "act", help_heading = "Change the process")]
    pub(crate) yes: bool,
    /// With --fix: forbid huge pages there from now on (stops one thread for some microseconds)
    #[arg(long, requires = "fix", help_heading = "Change the process")]
    pub(crate) hold: bool,
    /// With --fix: a huge page of which this share is zero is sparse
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "fix", value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "Change the process")]
    pub(crate) sparse: u8,
    /// With --fix: how; `auto` tries on a process of its own what works on this kernel
    #[arg(long, value_enum, default_value_t = ShrinkMethod::Auto, requires = "fix", help_heading = "Change the process")]
    pub(crate) method: ShrinkMethod,
    /// With --fix --method drop: the longest time for which all threads may be stopped at once
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
    /// The gentlest that works
    Auto,
    /// process_madvise(MADV_COLD) on one base page of each
    Split,
    /// madvise(MADV_DONTNEED) on what is zero, by the process while all its threads are stopped
    Drop,
    /// process_madvise(MADV_PAGEOUT): through swap
    Swap,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Which huge pages the command may have, of those that the system's settings allow
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) thp: ThpArg,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ThpArg {
    /// None
    Never,
    /// Only where it asks with madvise(MADV_HUGEPAGE)
    Madvise,
    /// All that the system's settings allow, whatever was set for this shell
    Always,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Only events, and also tracepoints, whose name has these letters
    #[arg(value_name = "LETTERS")]
    pub(crate) like: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// How often to run it: a number, or `auto` until the median wall time is known well enough
    #[arg(short = 'n', long = "runs", value_name = "N|auto", default_value = "1", value_parser = how_often)]
    pub(crate) runs: HowOften,
    /// With `-n auto`: how far the 95 % interval may reach to each side
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    pub(crate) precision: f64,
    /// With `-n auto`: begin no run after this time
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub(crate) time: Duration,
    /// Runs beforehand that do not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) warmup: u32,
    /// Stay on this CPU
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,
    /// What to count instead of the usual: names and sets (`usual`, `all`, `none`, ..), `system:tracepoint`, `r1a2`, `cpu/event=0xd0/`; see `pagewise events`
    #[arg(long, short, value_name = "EVENTS")]
    pub(crate) events: Option<String>,
    /// Compare with this command, by turns; words are split as a shell does, without a shell
    #[arg(long, value_name = "COMMAND")]
    pub(crate) vs: Option<String>,
    /// Look at its memory every so often: peak PSS and quadrants
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10ms", value_parser = humantime::parse_duration)]
    pub(crate) sample: Option<Duration>,
    /// CSV: a row a metric
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
    /// Sort by a column, the largest first; `+rss` for the smallest first
    #[arg(long, value_name = "COLUMN", default_value = "pss", allow_hyphen_values = true)]
    pub(crate) sort: String,
    /// One row a group
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<PsGroup>,
    /// Show only the first N rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Read a copied /proc tree instead of /proc
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
    /// A saved snapshot; with --every a process
    #[arg(value_name = "A")]
    pub(crate) before: String,
    /// The later snapshot
    #[arg(value_name = "B", required_unless_present = "every", conflicts_with = "every")]
    pub(crate) after: Option<PathBuf>,
    /// Read the process again and again, and say what grew since the last time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) every: Option<Duration>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Show which addresses moved between the two and which did not
    #[arg(long)]
    pub(crate) layout: bool,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Fragmentation {
    /// Look again and again, and say what was counted since the last time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "root")]
    pub(crate) every: Option<Duration>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "every")]
    pub(crate) during: Option<Duration>,
    /// Read a copied /proc tree instead of /proc; files of /sys are in DIR/sysfs
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A process to judge its limits, cgroup and environment too: a pid, a process name, or `self`
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// What is wanted; by default only what costs either way is judged
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub(crate) profile: Option<ProfileArg>,
    /// Read a copied /proc tree instead of /proc; files of /sys are in DIR/sysfs
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
    /// A pid, or a process name (exact, else part of one): recorded until Ctrl-C or Ctrl-Z, or its end. It stops at each system
    /// call for some microseconds; a SIGSTOP to pagewise stops it too, until SIGCONT
    #[arg(value_name = "TARGET", required_unless_present = "command")]
    pub(crate) target: Option<String>,
    /// Stop recording the process after this long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// The longest time for which all threads of the process may be stopped at once, when the recording begins
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) max_pause: Duration,
    /// How many calls of the time line to show, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "100", value_parser = limit)]
    pub(crate) calls: Limit,
    /// Run this command and record it and all that it starts until they have ended; once the command has,
    /// Ctrl-C ends those that are left
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Shootdowns {
    /// A pid, or a process name (exact, else part of one): recorded until Ctrl-C, or its end
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "system"])]
    pub(crate) target: Option<String>,
    /// Record all that runs on the machine, the kernel's own threads too, until Ctrl-C
    #[arg(long, conflicts_with_all = ["target", "command"])]
    pub(crate) system: bool,
    /// Stop recording after this long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "command")]
    pub(crate) during: Option<Duration>,
    /// How many rows of each table to show, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "12", value_parser = limit)]
    pub(crate) rows: Limit,
    /// Find callers by unwind tables: for programs that keep no frame pointers. Costs more: 8 KiB of the stack an event
    #[arg(long)]
    pub(crate) unwind: bool,
    /// Time madvise, mprotect, munmap, mremap and mmap in the program too, from calling the C library's function until it
    /// returns. Two uprobes a call, whose cost is measured and stated
    #[arg(long)]
    pub(crate) user_wait: bool,
    /// Run this command and record it and all that it starts until it has ended
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "target")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) exports: Exports,
}

/// The memory of a recorder.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Memory {
    /// Take no more memory than this, from 32M: what counts least is then not kept apart, and the report says how much
    /// that is
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_limit)]
    pub(crate) memory_limit: MemoryLimit,
}

fn memory_limit(text: &str) -> Result<MemoryLimit, String> {
    let bytes = heap::size(text)?;
    MemoryLimit::new(Bytes(bytes)).ok_or_else(|| "a recorder takes 32 MiB or more: `64M`".into())
}

/// Call stacks for other tools.
#[derive(Debug, Args)]
pub(crate) struct Exports {
    /// Write a flame graph: SVG, for any browser
    #[arg(long, value_name = "FILE", help_heading = "Call stacks")]
    pub(crate) flamegraph: Option<PathBuf>,
    /// Write a line for each call stack and its count: for flamegraph.pl, speedscope
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
    /// A pid, or a process name (exact, else part of one): recorded until Ctrl-C, or its end
    #[arg(value_name = "TARGET", required_unless_present_any = ["command", "from"])]
    pub(crate) target: Option<String>,
    /// Stop recording after this long; a command runs on
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Record each of N faults only; every count is then a multiple of N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
    /// Time each fault (root only): from where the kernel takes it up to where it has handled it
    #[arg(long)]
    pub(crate) latency: bool,
    /// Copy so much of the stack with each fault: callers that keep no frame pointers are found as far as that reaches; the
    /// report says how many stacks were cut off. 64K less 8 at most
    #[arg(long, value_name = "BYTES", default_value_t = pagewise_trace::faults::STACK, value_parser = clap::value_parser!(u16).range(8..=65528))]
    pub(crate) stack: u16,
    /// Follow mremap (root only), so that faults in memory that it moved or made longer a moment ago are known too. It takes
    /// every system call of the machine some 50 ns
    #[arg(long)]
    pub(crate) mremap: bool,
    /// Load the recorder of heaps into the command, and say who allocated the memory that faults: of blocks of a page or
    /// more, or of so many bytes. Its children are not recorded
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, requires = "command", value_parser = heap::size)]
    pub(crate) heap: Option<Option<u64>>,
    /// How many rows of each table to show, or `all`; JSON has all
    #[arg(long, value_name = "N", default_value = "15", value_parser = limit)]
    pub(crate) rows: Limit,
    /// Open a saved recording instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "command"])]
    pub(crate) from: Option<PathBuf>,
    /// Save the recording to this file; `--from` opens it anywhere
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) save: Option<PathBuf>,
    /// Run this command and record it and all that it starts until it has ended
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
    /// Which process: a pid, or a name (exact, else part of one). Which bytes of it: an address, or the name of a global
    /// or static variable, also with an offset: `table+64`. How many: 1, 2, 4, 8, or up to 32 in aligned pieces; a
    /// variable's own size, or what is aligned up to 8, if it is not said
    #[arg(value_names = ["TARGET", "ADDR|SYMBOL", "LEN"], num_args = 0..=3)]
    pub(crate) words: Vec<String>,
    /// Watch this variable
    #[arg(long, value_name = "NAME", conflicts_with = "at")]
    pub(crate) symbol: Option<String>,
    /// Watch this address
    #[arg(long, value_name = "ADDR")]
    pub(crate) at: Option<String>,
    /// Tell writes: the default
    #[arg(long, conflicts_with = "rw")]
    pub(crate) write: bool,
    /// Tell reads as well as writes
    #[arg(long)]
    pub(crate) rw: bool,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this long; a command runs on
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) during: Option<Duration>,
    /// Tell those only for which this holds: `value == 0`, `value < 10 && old >= 10`; numbers without a sign
    #[arg(long, value_name = "CONDITION")]
    pub(crate) when: Option<String>,
    /// Show so many hits at the end, the last ones, or `all`, and none as it comes; in files it is 100, and JSON has all
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) hits: Option<Limit>,
    /// Run this command and watch a variable of its program from before its first instruction on, or one of a library
    /// from before its own code runs
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// At most so many rows; `None` for all.
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
    /// A column or a kernel field; none lists them all
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// JSON
    #[arg(long)]
    pub(crate) json: bool,
}
