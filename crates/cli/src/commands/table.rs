//! The table of commands: each with its description, its group in `pagewise --help`, and its
//! function.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Subcommand};

#[cfg(feature = "export")]
use super::export;
#[cfg(feature = "record")]
use super::record;
#[cfg(feature = "top")]
use super::top;
use super::{
    define, diagnose, diff, doctor, events, explain, faults, fragmentation, guard, heap, lab, maps,
    oom, pages, pools, ps, run, shell, shootdowns, sim, stat, syscalls, system, thp, trim, watch,
};
use crate::args::{Cli, LookArgs};
use crate::terminal::TerminalLook;
use crate::{keeper, shield};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find the cause of a process's memory trouble, and the remedy
    ///
    /// diagnose observes a running process for some seconds. It applies instruments in
    /// order of their cost, and only those that the results of cheaper ones make
    /// worthwhile. By default it uses at most 1 % of the CPU time of the machine and
    /// stops the process for at most 5 ms at a time.
    ///
    /// If the target is a memory cgroup, diagnose observes its largest process, and
    /// reads the counters of its other processes. Without a target, it reads the
    /// counters of all processes and cgroups, and names those with signs of trouble.
    ///
    /// The report has at most three causes, each with its evidence, its object (such
    /// as a function, a mapping or a setting) and its remedies, then the causes that
    /// the evidence rules out, then the evidence that is missing.
    ///
    /// Exit status: 0 if no trouble was found, 10 if trouble was found, 1 if the process could
    /// not be diagnosed.
    ///
    /// Examples:
    ///   pagewise diagnose 1234
    ///   pagewise diagnose redis-server --symptom growth --for 30s
    ///   pagewise diagnose 1234 --save trouble.json --html trouble.html
    ///   pagewise diagnose /system.slice/redis.service
    ///   pagewise diagnose --system
    ///   pagewise diagnose --from trouble.json --all
    #[command(verbatim_doc_comment)]
    Diagnose(diagnose::DiagnoseArgs),
    /// Explain where a process's memory goes and what can be reduced
    ///
    /// If the process has a large glibc heap, explain reads samples of this heap while
    /// the process runs, for about 50 ms at most.
    ///
    /// Examples:
    ///   pagewise explain self
    ///   pagewise explain 1234 --html report.html
    ///   pagewise explain firefox --save now.json
    ///   pagewise explain --at-peak -- make -j2
    ///   pagewise explain --core core.1234
    #[command(verbatim_doc_comment)]
    Explain(explain::Explain),
    /// List the mappings of a process with their smaps counters
    ///
    /// Examples:
    ///   pagewise maps 1234 --sort rss
    ///   pagewise maps 1234 --filter 'rss>1M && name~libc'
    ///   pagewise maps 1234 --columns all --json
    #[command(verbatim_doc_comment)]
    Maps(maps::Maps),
    /// List all processes with their PSS, USS, RSS and swap
    Ps(ps::Ps),
    /// Show processes and cgroups live, with their growth
    ///
    /// The table has PSS, USS, RSS, swap, growth per minute, page faults per second,
    /// memory pressure, and the order in which the kernel would kill processes.
    ///
    /// Enter opens the page of a process: its memory by category, the growth since the
    /// page was opened, mappings, stacks. `d` diagnoses the process, `h` scans its
    /// heap, `f` records its page faults, `?` shows all keys.
    ///
    /// top reads less often if it would otherwise use more than 1 % of a CPU core (3 %
    /// with 900 processes or more).
    ///
    /// Examples:
    ///   pagewise top
    ///   pagewise top 1234
    ///   pagewise top /system.slice/redis.service
    ///   pagewise top --cgroups --tree
    ///   pagewise top --sort growth --every 5s
    #[cfg(feature = "top")]
    #[command(verbatim_doc_comment)]
    Top(top::TopArgs),
    /// Show which memory grew, between snapshots or over time
    ///
    /// Examples:
    ///   pagewise diff before.json after.json
    ///   pagewise diff 1234 --every 2s --for 1m
    #[command(verbatim_doc_comment)]
    Diff(diff::Diff),
    /// Show the state of each page: resident, swapped, zero, guard
    ///
    /// Examples:
    ///   pagewise pages 1234
    ///   pagewise pages 1234 libc --detail
    ///   pagewise pages 1234 7f0000000000+2M
    ///   pagewise pages 1234 --touched 5s
    #[command(verbatim_doc_comment)]
    Pages(pages::PagesArgs),
    /// Show the pools of a program linked with pagewise's allocators
    ///
    /// The Rust crate pagewise-alloc and the C library libpagewise are allocators for
    /// programs. A pool is memory that such an allocator takes from the system and
    /// hands out in blocks. A Rust program must enable the feature `stats` of the
    /// crate.
    ///
    /// Examples:
    ///   pagewise pools 1234
    ///   pagewise pools 1234 frames --html pools.html
    #[command(verbatim_doc_comment)]
    Pools(pools::PoolsArgs),
    /// Measure the memory that huge pages waste, and release it
    ///
    /// Examples:
    ///   pagewise thp 1234
    ///   pagewise thp 1234 --fix
    ///   pagewise thp 1234 --fix --hold --yes
    #[command(verbatim_doc_comment)]
    Thp(thp::Thp),
    /// Release memory that a running process holds but does not use
    ///
    /// Estimates the memory that the process can release without a restart: free pages
    /// of its heap, unused pages of its stacks, zero-filled pages of huge pages, and
    /// memory that was not accessed. With --yes it releases the selected parts, and
    /// reports the effect and the cost.
    ///
    /// Examples:
    ///   pagewise trim 1234
    ///   pagewise trim 1234 --heap --stacks --yes
    ///   pagewise trim 1234 --cold 1m --yes
    #[command(verbatim_doc_comment)]
    Trim(trim::Trim),
    /// Run a command with huge pages disabled or restricted
    ///
    /// Examples:
    ///   pagewise run --thp=never -- redis-server
    #[command(verbatim_doc_comment)]
    Run(run::RunArgs),
    /// Measure a command: time, faults, cache misses, shootdowns
    ///
    /// stat runs the command once, or N times with -n N, and reports medians with
    /// confidence intervals.
    ///
    /// The text report goes to standard error; JSON and CSV go to standard output.
    /// The command uses the same standard input and output; `-o FILE` keeps JSON and
    /// CSV apart from the output of the command. pagewise exits with the exit status
    /// of the command; of several runs, with the first status that is not 0.
    ///
    /// Examples:
    ///   pagewise stat -- make -j2
    ///   pagewise stat -n 10 --warmup 1 --cpu 1 -- ./bench
    ///   pagewise stat -n auto --vs './bench-old 100' -- ./bench-new 100
    ///   pagewise stat --events cycles,instructions,tlb:tlb_flush -- ./bench
    #[command(verbatim_doc_comment)]
    Stat(stat::StatArgs),
    /// List the perf events that this machine can count
    ///
    /// For each event that the machine cannot count, the list gives the reason.
    ///
    /// Examples:
    ///   pagewise events
    ///   pagewise events compaction:
    #[command(verbatim_doc_comment)]
    Events(events::Events),
    /// Show how much free memory can become huge pages
    ///
    /// The report also has the kernel's counts of compaction and reclaim since boot.
    ///
    /// Examples:
    ///   pagewise fragmentation
    ///   pagewise fragmentation --every 1s --for 1m
    #[command(verbatim_doc_comment)]
    Fragmentation(fragmentation::FragmentationArgs),
    /// Show the owner of every byte of RAM, and how much is left
    ///
    /// The owners add up to MemTotal exactly: processes by PSS, page cache, tmpfs,
    /// slab, kernel memory, free memory, and an unaccounted rest. The report also has
    /// the memory that can still be allocated before reclaim, swap and OOM kills.
    ///
    /// Examples:
    ///   pagewise system
    ///   pagewise system --files
    ///   pagewise system --cgroup
    ///   pagewise system --cgroup /system.slice --files 30s
    #[command(verbatim_doc_comment)]
    System(system::SystemArgs),
    /// Show the process that the OOM killer would kill next
    ///
    /// oom lists processes in the order in which the kernel would kill them: for the
    /// machine, and for each memory cgroup with a limit. The report also has the memory
    /// that the kill would free, and the time until memory runs out at the present
    /// growth. Then oom explains the last report of the OOM killer in the kernel log.
    ///
    /// Examples:
    ///   pagewise oom
    ///   pagewise oom --for 10s
    ///   dmesg >log; pagewise oom --log log
    #[command(verbatim_doc_comment)]
    Oom(oom::OomArgs),
    /// Check system settings that increase latency or memory use
    ///
    /// For each setting that could be better, doctor prints the commands that change
    /// and restore the setting, if there are such commands. doctor changes nothing.
    ///
    /// Examples:
    ///   pagewise doctor
    ///   pagewise doctor postgres --profile latency
    #[command(verbatim_doc_comment)]
    Doctor(doctor::Doctor),
    /// Record memory system calls: brk, mmap, madvise, mprotect
    ///
    /// Examples:
    ///   pagewise syscalls -- true
    ///   pagewise syscalls --calls all -o report -- make -j2
    ///   pagewise syscalls 1234 --for 5s
    #[command(verbatim_doc_comment)]
    Syscalls(syscalls::Syscalls),
    /// Record TLB shootdowns by cause, source line and interrupted CPU
    ///
    /// The report shows the system call or kernel operation that caused the
    /// shootdowns, its call stack with source lines, the interrupted CPUs, and the
    /// time that the causing thread waited for them. Recording needs root.
    ///
    /// If pagewise runs a command, the text report goes to standard error and JSON
    /// goes to standard output. The command uses the same standard input and output;
    /// `-o FILE` keeps JSON apart from the output of the command.
    ///
    /// Examples:
    ///   pagewise shootdowns -- ./bench
    ///   pagewise shootdowns 1234 --for 10s
    ///   pagewise shootdowns --system --for 10s
    #[command(verbatim_doc_comment)]
    Shootdowns(shootdowns::ShootdownsArgs),
    /// Record page faults by function, mapping and call stack
    ///
    /// By default every fault is recorded with its call stack, which is unwound by
    /// frame pointers and by unwind tables (--stack). If pagewise runs a command, the
    /// text report goes to standard error.
    ///
    /// Examples:
    ///   pagewise faults -- ./server
    ///   pagewise faults 1234 --for 10s --latency
    ///   pagewise faults --every 100 --html faults.html -- make -j2
    #[command(verbatim_doc_comment)]
    Faults(faults::Faults),
    /// Record all processes for days: growth, peaks, limit hits
    ///
    /// record reads all processes and memory cgroups every 5 s, and the categories of
    /// the largest processes every minute, into one SQLite file a day (docs/record.md
    /// documents its tables). When a process grows fast, tasks wait for memory, or a
    /// cgroup has nearly reached its limit, record saves a snapshot and a diagnosis.
    ///
    /// Large processes are read in small pieces, so that none waits for a time that
    /// grows with its size. Without root, processes of other users have no PSS.
    ///
    /// Examples:
    ///   pagewise record
    ///   pagewise record --dir /var/tmp/memory --every 1s --for 1h
    ///   pagewise record install
    ///   pagewise record report --from 02:00 --to 03:30
    #[cfg(feature = "record")]
    #[command(verbatim_doc_comment)]
    Record(record::RecordArgs),
    /// Show all processes at one time of a recording
    ///
    /// Examples:
    ///   pagewise replay --at 02:13
    ///   pagewise replay --at '2026-11-24 02:13' --rows all
    ///   pagewise replay --at 2h --json
    #[cfg(feature = "record")]
    #[command(verbatim_doc_comment)]
    Replay(record::ReplayArgs),
    /// Export the memory of all processes and cgroups to Prometheus
    ///
    /// export reads all processes and memory cgroups every 15 s, without stalling
    /// them, and serves the values as OpenMetrics at http://127.0.0.1:9256/metrics
    /// (docs/export.md describes the metrics). A scrape never starts a reading. A
    /// configuration file of process-exporter makes groups of processes; without one,
    /// there is a group for each name of a process.
    ///
    /// Examples:
    ///   pagewise export
    ///   pagewise export --config /etc/process-exporter.yml --web-config web.yml
    ///   pagewise export --once
    ///   pagewise export --textfile /var/lib/prometheus/node-exporter
    ///   pagewise export bundle --anonymous -o bundle.json
    #[cfg(feature = "export")]
    #[command(verbatim_doc_comment)]
    Export(export::ExportArgs),
    /// Record the heap: peak, leaks, functions that allocate most
    #[command(subcommand)]
    Heap(heap::args::HeapCommand),
    /// Detect heap memory errors such as overflow and use after free
    ///
    /// guard detects overflow, underflow, use after free, double free and invalid free
    /// of heap blocks.
    ///
    /// guard places one in N allocations (--rate), chosen at random, between guard
    /// pages; errors in other blocks are not detected. An access to a guard page or to
    /// a freed block is reported when it occurs, with the call stacks of the access,
    /// the allocation and the free. A write next to the block that misses the guard
    /// page is reported when the block is freed. After an error, the command ends by a
    /// signal or continues (--then).
    ///
    /// The command uses the standard streams of pagewise. The text report goes to
    /// standard error; JSON goes to standard output.
    ///
    /// Examples:
    ///   pagewise guard -- ./server --test
    ///   pagewise guard --rate 1 --then continue -- ./program
    #[command(verbatim_doc_comment)]
    Guard(guard::args::GuardArgs),
    /// Report each write to an address range (watchpoint)
    ///
    /// For each write, watch reports the old and the new value, the thread, and the
    /// call stack with source lines.
    ///
    /// Hardware watchpoints of the CPU report the writes of all threads, also of
    /// threads that start later. No thread is stopped, except on a virtual machine:
    /// there, a helper process traces the watched process during the watch. A thread
    /// then stops for some microseconds when it receives a signal or creates a thread
    /// or a process, and no debugger can attach to the watched process.
    ///
    /// Examples:
    ///   pagewise watch 1234 counter --count 1
    ///   pagewise watch 1234 0x7ffd1e2f3a40 8 --for 10s
    ///   pagewise watch 1234 table+64 4 --rw --when 'value == 0'
    ///   pagewise watch --symbol state -- ./program argument
    #[command(verbatim_doc_comment)]
    Watch(watch::WatchArgs),
    /// Simulate caches, TLBs or page replacement for a program
    #[command(subcommand)]
    Sim(sim::args::Sim),
    /// Check common claims about memory by experiments
    ///
    /// Each experiment states an expectation, and reports whether the expectation
    /// holds on this machine.
    ///
    /// Examples:
    ///   pagewise lab list
    ///   pagewise lab run all --quick --html report.html
    ///   pagewise lab run thp-bloat --set mib=800
    ///   pagewise lab vm run all --markdown report.md
    ///   pagewise lab compare before.json after.json
    #[command(verbatim_doc_comment)]
    Lab(lab::LabArgs),
    /// Run one condition of an experiment once; `lab run` starts this command for each run
    #[command(hide = true)]
    LabOnce(lab::LabOnce),
    /// Write to BYTES bytes of new memory, and print the nanoseconds that a page took
    #[command(hide = true)]
    LabTouch {
        /// Number of bytes
        bytes: usize,
    },
    /// Map huge pages and wait; `thp --fix` tests on this process which methods the kernel supports
    #[command(hide = true)]
    HugePageSubject,
    /// Undo the changes that killed pagewise processes left in other processes; with PID, wait for
    /// the end of PID first
    #[command(hide = true)]
    Keep(crate::keeper::Keep),
    /// Trace a process until standard input closes, and suppress the SIGTRAPs that a hypervisor
    /// adds to watchpoints
    #[command(hide = true)]
    Shield {
        /// The process
        pid: u32,
    },
    /// Print the definition of a term, column or kernel counter
    Define(define::Define),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command
    Man {
        /// Write one manual page for each command into DIR
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// Runs the command, and returns the exit code.
    pub(crate) fn run(self, options: &LookArgs) -> anyhow::Result<ExitCode> {
        let look = TerminalLook::resolve(options);
        match self {
            Command::Diagnose(args) => diagnose::run(&args, &look),
            Command::Explain(args) => explain::run(args, &look),
            Command::Maps(args) => maps::run(args, &look),
            Command::Ps(args) => ps::run(&args, &look),
            #[cfg(feature = "top")]
            Command::Top(args) => top::run(&args, &look),
            Command::Diff(args) => diff::run(&args, &look),
            Command::Define(args) => define::run(&args, &look),
            Command::Pages(args) => pages::run(&args, &look),
            Command::Pools(args) => pools::run(&args, &look),
            Command::Thp(args) => thp::run(&args, &look),
            Command::Trim(args) => trim::run(&args, &look),
            #[cfg(feature = "record")]
            Command::Record(args) => record::run(&args, &look),
            #[cfg(feature = "record")]
            Command::Replay(args) => record::replay(&args, &look),
            #[cfg(feature = "export")]
            Command::Export(args) => export::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Stat(args) => stat::run(&args, &TerminalLook::on_stderr(options)),
            Command::Events(args) => events::run(&args, &look),
            Command::Fragmentation(args) => fragmentation::run(&args, &look),
            Command::Doctor(args) => doctor::run(&args, &look),
            Command::Oom(args) => oom::run(&args, &look),
            Command::System(args) => system::run(&args, &look),
            Command::Syscalls(args) => syscalls::run(args, &look),
            Command::Shootdowns(args) => shootdowns::run(&args, options),
            Command::Faults(args) => faults::run(&args, options),
            Command::Heap(args) => heap::run(&args, &look),
            Command::Guard(args) => guard::run(&args, options),
            Command::Watch(args) => watch::run(&args, &look, &TerminalLook::on_stderr(options)),
            Command::Sim(args) => sim::run(args, &look),
            Command::Lab(args) => lab::run(args, &look),
            Command::LabOnce(args) => lab::run_once(args),
            Command::LabTouch { bytes } => lab::touch(bytes),
            Command::Keep(args) => Ok(keeper::run(&args)),
            Command::Shield { pid } => shield::run(pid),
            Command::HugePageSubject => thp::be_the_subject(),
            Command::Completions { shell } => shell::completions(shell),
            Command::Man { dir } => shell::man(dir.as_deref()),
        }
    }
}

/// Commands of the features `record` and `export`.
const OVER_TIME: &[&str] = match (cfg!(feature = "record"), cfg!(feature = "export")) {
    (true, true) => &["record", "replay", "export"],
    (true, false) => &["record", "replay"],
    (false, true) => &["export"],
    (false, false) => &[],
};
#[cfg(feature = "top")]
const LOOK_COMMANDS: &[&str] = &["explain", "maps", "ps", "top", "diff", "pages", "pools"];
#[cfg(not(feature = "top"))]
const LOOK_COMMANDS: &[&str] = &["explain", "maps", "ps", "diff", "pages", "pools"];

/// Heading and commands of each group.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Start here", &["diagnose"]),
    ("Look at memory", LOOK_COMMANDS),
    ("Record", &["heap", "guard", "faults", "shootdowns", "syscalls", "watch", "stat"]),
    ("Machine over time", OVER_TIME),
    ("Fix", &["trim", "thp", "run"]),
    ("System", &["system", "oom", "doctor", "fragmentation", "events"]),
    ("Learn", &["lab", "sim", "define"]),
    ("Shell", &["completions", "man", "help"]),
];

/// Returns the command line parser, with the commands in groups.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let commands = listing(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{commands}\nOptions:\n{{options}}\n\n\
        `pagewise COMMAND --help` describes a command, with examples.\n"
    ))
}

fn listing(command: &clap::Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS.into_iter().filter(|(_, names)| !names.is_empty()) {
        let _ = writeln!(text, "\n{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about
                .map_or("Print this help, or the help of a command".into(), ToString::to_string);
            let _ = writeln!(text, "  {name:<14} {about}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group_on_one_line_of_80_columns() {
        let command = Cli::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let mut all: Vec<&str> = shown.map(clap::Command::get_name).chain(["help"]).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
        for line in listing(&command).lines() {
            assert!(line.len() <= 80 && !line.contains('{'), "{line}");
        }
    }
}
