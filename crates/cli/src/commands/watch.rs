//! `pagewise watch`: the writes to some bytes of a process, or of a command from its first
//! instruction on.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use pagewise_analysis::watch::{self, AccessCondition, WatchOptions};
use pagewise_heap::block_at;
use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::mapping::{Mapping, Sharing};
use pagewise_model::watched::{Hit, WatchEnding, WatchRecording};
use pagewise_model::{Name, Pid};
use pagewise_proc::variables::{self, ProgramVariable};
use pagewise_proc::{ProcRoot, maps, program_ending, stat, target};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::perf_event::PerfCounter;
use pagewise_sys::trace::{Stopped, Traced};
use pagewise_trace::{MemoryWatch, StackId};
use pagewise_view::text::{Units, inline};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use crate::args;
use crate::args::{MemoryArgs, OutputArgs, RowLimit, limit};
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::{emit, emit_beside, note, to_stdout, write_stderr};
use crate::shield::OptionalShield;
use crate::target::UsageError;
use crate::terminal::TerminalLook;

/// Help of `--memory-limit`.
const MEMORY_LIMIT_HELP: &str = "Limit the memory of pagewise to SIZE, at least 32M. At this limit, further accesses are only \
    counted, and new call stacks are merged into one entry";

#[derive(Debug, Args)]
#[command(mut_arg("memory_limit", |arg| arg.help(MEMORY_LIMIT_HELP)))]
pub(crate) struct WatchArgs {
    /// TARGET: a PID, a process name, or a part of a name that matches one process only.
    /// ADDR|SYMBOL: an address, or a global or static variable, also with an offset (`table+64`).
    /// LEN: the number of bytes, at most 32. The default of LEN is the size of the variable; for an
    /// address, it is the largest of 8, 4, 2 and 1 that divides the address
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
    /// Report only the accesses for which CONDITION is true: `value == 0`,
    /// `value < 10 && old >= 10`. Values are unsigned; the operators are those of `maps --filter`
    #[arg(long, value_name = "CONDITION")]
    pub(crate) when: Option<String>,
    /// Show the last N accesses, or `all`, at the end, instead of each access when it occurs. Files
    /// of -o and --html have the last 100 accesses by default; JSON has all
    #[arg(long, value_name = "N", value_parser = limit)]
    pub(crate) hits: Option<RowLimit>,
    /// Run this command and watch a variable. The watch starts before the first instruction of the
    /// program; for a variable of a library, it starts before code of the library runs
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Interval of checks for the end of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of bytes that count against the memory limit for each access, including its row of the
/// report. Accesses beyond the memory limit are counted but not stored.
const ACCESS: u64 = 4 << 10;
/// Default maximum number of accesses in HTML pages.
const FEW: usize = 100;

/// Watches, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(
    args: &WatchArgs,
    look: &TerminalLook,
    beside: &TerminalLook,
) -> anyhow::Result<ExitCode> {
    let asked = WatchRequest::from_args(args)?;
    let limit = args.hits.map_or(Some(FEW), |limit| limit.0);
    let limit = if args.output.json { None } else { limit };
    // Accesses are printed at once unless the user gave an output file or a number of hits.
    let told = args.hits.is_none() && is_for_screen(&args.output);
    let options = WatchOptions { limit, told };
    match args.command.split_first() {
        None => {
            let mut told = WatchMessages::new(told.then_some(To::Stdout));
            let watched = process(&asked, &mut told)?;
            told.end()?;
            emit(&watch::watch(&watched, &options), &args.output, look, Units::Human)?;
            Ok(ExitCode::SUCCESS)
        }
        Some((program, arguments)) => {
            let mut told = WatchMessages::new(told.then_some(To::Stderr));
            let (watched, exit) = command(&asked, program, arguments, &mut told)?;
            told.end()?;
            emit_beside(&watch::watch(&watched, &options), &args.output, beside, Units::Human)?;
            Ok(exit)
        }
    }
}

/// Bytes to watch, and the end of the watch.
struct WatchRequest<'a> {
    target: Option<&'a str>,
    place: WatchAddress<'a>,
    length: Option<u64>,
    reads: bool,
    count: Option<u64>,
    during: Option<Duration>,
    when: Option<(&'a str, AccessCondition)>,
    limit: MemoryLimit,
}

/// Address of the bytes to watch.
#[derive(Clone, Copy, Debug)]
enum WatchAddress<'a> {
    At(u64),
    Variable { name: &'a str, offset: u64 },
}

impl<'a> WatchAddress<'a> {
    /// Parses an address, or a name with or without an offset.
    fn parse_address(text: &'a str) -> WatchAddress<'a> {
        if let Some(address) = number(text) {
            return WatchAddress::At(address);
        }
        let parts = text.rsplit_once('+');
        match parts.and_then(|(name, offset)| Some((name, number(offset)?))) {
            Some((name, offset)) => WatchAddress::Variable { name, offset },
            None => WatchAddress::Variable { name: text, offset: 0 },
        }
    }
}

/// Parses a decimal number, or a hexadecimal number with the prefix `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'a> WatchRequest<'a> {
    fn from_args(args: &'a WatchArgs) -> anyhow::Result<WatchRequest<'a>> {
        let mut words = args.words.iter().map(String::as_str);
        let target = if args.command.is_empty() {
            Some(words.next().ok_or(usage("which process, or `-- COMMAND`?"))?)
        } else {
            None
        };
        let place = match (&args.symbol, &args.at) {
            (Some(symbol), _) => match WatchAddress::parse_address(symbol) {
                WatchAddress::At(_) => WatchAddress::Variable { name: symbol, offset: 0 },
                variable @ WatchAddress::Variable { .. } => variable,
            },
            (None, Some(address)) => {
                WatchAddress::At(number(address).ok_or(usage("--at expects an address: 0x404028"))?)
            }
            (None, None) if target.is_some() => WatchAddress::parse_address(
                words.next().ok_or(usage("which bytes? An address, or a variable's name"))?,
            ),
            (None, None) => return Err(usage("which bytes? --symbol NAME, or --at ADDR").into()),
        };
        let length = words.next().map(|word| number(word).ok_or(usage("LEN is a number of bytes")));
        let length = length.transpose()?;
        if words.next().is_some() {
            return Err(usage("one word too many before `--`").into());
        }
        let when = args.when.as_deref();
        let when =
            when.map(|text| AccessCondition::parse(text).map(|when| (text, when))).transpose()?;
        if when.is_some() && length.is_some_and(|length| length > 8) {
            return Err(usage("--when compares numbers, which have no more than 8 bytes").into());
        }
        let (reads, count, during) = (args.rw, args.count, args.during);
        let limit = args.memory.memory_limit;
        Ok(WatchRequest { target, place, length, reads, count, during, when, limit })
    }
}

fn usage(text: &str) -> UsageError {
    UsageError(text.to_owned())
}

/// The bytes to watch, with their address in the process.
struct WatchedBytes {
    address: u64,
    length: u64,
    symbol: Option<Name>,
    mapping: Option<(Name, bool)>,
}

fn find(asked: &WatchRequest<'_>, root: &ProcRoot, pid: Pid) -> anyhow::Result<WatchedBytes> {
    let mappings = maps::parse(&root.read(pid, "maps")?).mappings;
    let (address, size, symbol) = match asked.place {
        WatchAddress::At(address) => (address, 0, None),
        WatchAddress::Variable { name, offset } => {
            let variable = variable(root, pid, &mappings, name)?;
            if variable.size > 0 && offset >= variable.size {
                bail!("{name} has {} bytes, none at {offset}", variable.size);
            }
            let label = if offset == 0 { name.to_owned() } else { format!("{name}+{offset}") };
            let address = variable.address.wrapping_add(offset);
            (address, variable.size.saturating_sub(offset), Some(Name::new(label.as_bytes())))
        }
    };
    let aligned = [8, 4, 2].into_iter().find(|size| address.is_multiple_of(*size)).unwrap_or(1);
    let length = asked.length.unwrap_or(if size > 0 { size } else { aligned });
    if asked.when.is_some() && length > 8 {
        return Err(usage(
            "--when compares numbers, which have no more than 8 bytes: say how many",
        )
        .into());
    }
    let inside = |mapping: &&Mapping| (mapping.range.start..mapping.range.end).contains(&address);
    let mapping = mappings.iter().find(inside);
    let mapping = mapping.map(|it| (it.name.clone(), it.sharing == Sharing::Shared));
    Ok(WatchedBytes { address, length, symbol, mapping })
}

/// Finds the one variable of a name. A variable of the program hides variables of its libraries.
fn variable(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    name: &str,
) -> anyhow::Result<ProgramVariable> {
    let found = variables::find(root, pid, mappings, name.as_bytes());
    let its_own: Vec<&ProgramVariable> = found
        .iter()
        .filter(|it| found.first().is_some_and(|first| first.module == it.module))
        .collect();
    if let Some(it) = its_own.iter().find(|it| it.thread_local) {
        bail!("each thread has a {name} of its own (in {}): say the address of one", module(it));
    }
    match its_own.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(NoVariable(format!(
            "no file that process {pid} maps has a variable {name} with a symbol"
        ))
        .into()),
        several => {
            let places: Vec<String> =
                several.iter().map(|it| format!("{:#x} ({} bytes)", it.address, it.size)).collect();
            bail!(
                "{} has several variables {name}: say an address: {}",
                module(several[0]),
                places.join(", ")
            )
        }
    }
}

fn module(variable: &ProgramVariable) -> String {
    String::from_utf8_lossy(variable.module.base()).into_owned()
}

/// Error: no mapped file has the variable. A library that the process loads later may have it.
#[derive(Debug)]
struct NoVariable(String);

impl fmt::Display for NoVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoVariable {}

/// Accesses received so far.
struct WatchedHits<'a> {
    asked: &'a WatchRequest<'a>,
    hits: Vec<Hit>,
    fitting: u64,
    passed_over: u64,
    dropped: u64,
    /// Accesses that are not printed yet; `None` if accesses are only reported at the end.
    fresh: Option<Vec<Hit>>,
}

impl<'a> WatchedHits<'a> {
    fn new(asked: &'a WatchRequest<'a>, told: &WatchMessages) -> WatchedHits<'a> {
        let fresh = told.to.map(|_| Vec::new());
        WatchedHits { asked, hits: Vec::new(), fitting: 0, passed_over: 0, dropped: 0, fresh }
    }

    fn push_hit(&mut self, hit: Hit) {
        if self.is_enough() {
            return;
        }
        if self.asked.when.as_ref().is_some_and(|(_, when)| !when.holds(&hit)) {
            self.passed_over += 1;
            return;
        }
        self.fitting += 1;
        if let Some(fresh) = &mut self.fresh {
            fresh.push(hit.clone());
        }
        if self.hits.len() < self.asked.limit.part(ACCESS) {
            self.hits.push(hit)
        } else {
            self.dropped += 1
        }
    }

    fn is_enough(&self) -> bool {
        self.asked.count.is_some_and(|count| self.fitting >= count)
    }
}

/// Destination of the lines printed at each access.
#[derive(Clone, Copy)]
enum To {
    Stdout,
    Stderr,
}

/// Destination of printed accesses, and the call stacks printed so far.
struct WatchMessages {
    to: Option<To>,
    /// IDs of the call stacks that were printed.
    stacks: HashSet<u32>,
}

impl WatchMessages {
    fn new(to: Option<To>) -> WatchMessages {
        WatchMessages { to, stacks: HashSet::new() }
    }

    /// Prints the latest accesses.
    fn tell(&mut self, seen: &mut WatchedHits<'_>, watch: &mut MemoryWatch) -> anyhow::Result<()> {
        let fresh = seen.fresh.as_mut().map(std::mem::take).unwrap_or_default();
        let Some(to) = self.to.filter(|_| !fresh.is_empty()) else { return Ok(()) };
        let (frames, mut text) = (watch.frames(), String::new());
        for hit in fresh {
            let is_new = self.stacks.insert(hit.stack);
            for line in watch::lines(&hit, frames, is_new) {
                text += &inline(&line);
                text.push('\n');
            }
        }
        write(to, &text)
    }

    /// Prints an empty line between the accesses and the report.
    fn end(&self) -> anyhow::Result<()> {
        self.to.filter(|_| !self.stacks.is_empty()).map_or(Ok(()), |to| write(to, "\n"))
    }
}

fn write(to: To, text: &str) -> anyhow::Result<()> {
    match to {
        To::Stdout => to_stdout(|out| out.write_all(text.as_bytes())),
        To::Stderr => {
            let written = std::io::stderr().lock().write_all(text.as_bytes());
            written.context("cannot write to standard error")
        }
    }
}

/// Returns true if accesses are printed as text to a terminal or a pipe.
fn is_for_screen(output: &args::OutputArgs) -> bool {
    output.output.is_none() && output.html.is_none() && !output.json
}

/// Watches until the process, the time or the number of accesses ends the watch. `gone` returns an
/// ending if the process has ended or a signal has arrived.
fn observe(
    watch: &mut MemoryWatch,
    seen: &mut WatchedHits<'_>,
    people: &mut WatchMessages,
    mut gone: impl FnMut() -> anyhow::Result<Option<WatchEnding>>,
) -> anyhow::Result<WatchEnding> {
    let deadline = seen.asked.during.map(|during| Instant::now() + during);
    loop {
        // The end is checked before accesses are read: accesses before the end are then all
        // readable.
        let ended = gone()?;
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let left = deadline.map_or(POLL_INTERVAL, |it| {
            it.saturating_duration_since(Instant::now()).min(POLL_INTERVAL)
        });
        if ended.is_none() && !is_late {
            watch.step(left, &mut |hit| seen.push_hit(hit));
        } else {
            watch.finish(&mut |hit| seen.push_hit(hit));
        }
        people.tell(seen, watch)?;
        if seen.is_enough() {
            return Ok(WatchEnding::Enough);
        }
        if watch.told().executed {
            watch.finish(&mut |hit| seen.push_hit(hit));
            people.tell(seen, watch)?;
            return Ok(if seen.is_enough() { WatchEnding::Enough } else { WatchEnding::Executed });
        }
        match ended {
            Some(ended) => return Ok(ended),
            None if is_late => return Ok(WatchEnding::Time),
            None => {}
        }
    }
}

fn made(
    mut watch: MemoryWatch,
    seen: WatchedHits<'_>,
    found: WatchedBytes,
    pid: Pid,
    name: Name,
    ended: WatchEnding,
) -> WatchRecording {
    let told = watch.told();
    let (in_copies, unseen, other_stacks) = (told.in_copies, told.unseen, told.other_stacks);
    let (mut hits, mut stacks) = (seen.hits, watch.frames().to_vec());
    if other_stacks > 0 {
        let other = u32::try_from(stacks.len()).unwrap_or(u32::MAX);
        stacks.push(vec![Folded::frame()]);
        let is_other = |hit: &&mut Hit| hit.stack == StackId::OTHER.0;
        hits.iter_mut().filter(is_other).for_each(|hit| hit.stack = other);
    }
    WatchRecording {
        pid,
        name,
        command: Vec::new(),
        address: found.address,
        length: found.length,
        symbol: found.symbol,
        mapping: found.mapping,
        block: None,
        reads: seen.asked.reads,
        kernel: watch.kernel().clone(),
        first: watch.first().clone(),
        when: seen.asked.when.as_ref().map(|(text, _)| (*text).to_owned()),
        stacks,
        hits,
        passed_over: seen.passed_over,
        dropped: seen.dropped,
        in_copies,
        unseen,
        other_stacks,
        memory_limit: seen.asked.limit.bytes(),
        lost: watch.lost(),
        took_ns: watch.took_ns(),
        ended,
    }
}

fn process(asked: &WatchRequest<'_>, people: &mut WatchMessages) -> anyhow::Result<WatchRecording> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be watched from here");
    }
    let (root, pid) = target::hold(&root, asked.target.unwrap_or_default())?;
    if root.ourselves() == Some(pid) {
        bail!("no process can watch itself: what it finds would be its own doing");
    }
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    if stat.has_ended() || stat.is_kernel_thread() {
        bail!("process {pid} has no memory of its own: it has ended, or it is a kernel thread");
    }
    let found = find(asked, &root, pid)?;
    let ends = open_pid(pid)?;
    let block = block_at(&root, pid, found.address);
    let interrupts = NotedInterrupts::note_all();
    // The shield is active before the breakpoints are set, and until they are removed. Ctrl-C does
    // not end the shield.
    let shield = shield(pid);
    let mut watch = open(asked, &root, pid, &found)?;
    // The shield and the breakpoints were opened by PID: check that the PID still belongs to the
    // same process.
    root.check(pid)?;
    let name = Name::new(stat.name.as_bytes());
    let mapped = if found.mapping.is_none() { "; no memory is mapped there" } else { "" };
    write_stderr(&format!(
        "watching {} bytes at {:#x} of {} ({pid}){mapped}; Ctrl-C ends it\n",
        found.length,
        found.address,
        pagewise_model::name::escape(name.as_bytes()),
    ));
    let mut seen = WatchedHits::new(asked, people);
    let ended = observe(&mut watch, &mut seen, people, || {
        Ok(if interrupts.came() {
            Some(WatchEnding::Interrupted)
        } else {
            has_ended(&ends).then_some(WatchEnding::Process(None))
        })
    })?;
    let watched = WatchRecording { block, ..made(watch, seen, found, pid, name, ended) };
    drop(shield);
    Ok(watched)
}

/// Shields a process from SIGTRAPs that a hypervisor causes. Prints a message if that is not
/// possible.
fn shield(pid: Pid) -> Option<OptionalShield> {
    let shield = OptionalShield::for_process(pid.0);
    if let Err(error) = &shield {
        note(format_args!(
            "process {pid} is not shielded ({error}): this machine is virtual, and if its hypervisor loses the reason of a debug exception, which \
             few do on busy CPUs once in millions of accesses, the kernel sends SIGTRAP to the process"
        ));
    }
    shield.ok()
}

/// Sets the breakpoints on the found bytes.
fn open(
    asked: &WatchRequest<'_>,
    root: &ProcRoot,
    pid: Pid,
    found: &WatchedBytes,
) -> Result<MemoryWatch, pagewise_trace::TraceError> {
    MemoryWatch::open(root, pid.0, found.address, found.length, asked.reads, asked.limit)
}

/// Opens a pidfd of a process, to check for its end.
fn open_pid(pid: Pid) -> anyhow::Result<OwnedFd> {
    let gone = || format!("process {pid} does not exist");
    let number = rustix::process::Pid::from_raw(pid.0.cast_signed()).with_context(gone)?;
    pidfd_open(number, PidfdFlags::empty()).with_context(gone)
}

fn has_ended(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// A command that ended before the variable to watch existed.
struct Never {
    error: anyhow::Error,
}

/// Finds the bytes in a command that is stopped before its first instruction, and sets the
/// breakpoints. For a variable of a library, the command runs until the library is mapped; no code
/// of the library has run then.
fn on_the_way(
    asked: &WatchRequest<'_>,
    root: &ProcRoot,
    traced: &mut Traced,
) -> anyhow::Result<Result<(MemoryWatch, WatchedBytes), Never>> {
    let pid = Pid(traced.pid());
    let mut stop = None;
    loop {
        let missing = match find(asked, root, pid) {
            Ok(found) => {
                let watch = open(asked, root, pid, &found)?;
                return Ok(Ok((watch, found)));
            }
            Err(error) if error.is::<NoVariable>() => error,
            Err(error) => return Err(error),
        };
        if stop.is_none() {
            let mappings = maps::parse(&root.read(pid, "maps")?).mappings;
            let Some(address) = variables::linker_tells(root, pid, &mappings) else {
                return Err(missing.context("it loads no libraries that could bring it"));
            };
            let counter = PerfCounter::trap_at(pid.0, address);
            stop = Some(counter.context("the kernel does not say when libraries are loaded")?);
        }
        traced.stop_on_the_way();
        match traced.run(None)? {
            Stopped::Trapped => {}
            // The new program has another dynamic linker, which must be located.
            Stopped::Executed => stop = None,
            Stopped::AtExit | Stopped::AtTime | Stopped::TimeIsUp | Stopped::Ended(_) => {
                let error = missing.context("the command has ended, and was not watched");
                return Ok(Err(Never { error }));
            }
        }
    }
}

fn command(
    asked: &WatchRequest<'_>,
    program: &OsString,
    arguments: &[OsString],
    people: &mut WatchMessages,
) -> anyhow::Result<(WatchRecording, ExitCode)> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let mut traced = match Traced::spawn(program, arguments) {
        Ok(traced) => traced,
        Err(error) => return Err(NotRun::new(program, error).into()),
    };
    let pid = Pid(traced.pid());
    let opened = match traced.untraced() {
        Some(why) => Err(anyhow::anyhow!("the command cannot be held before it begins: {why}")),
        None => on_the_way(asked, &root, &mut traced),
    };
    let (mut watch, found) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(never)) => return Err(never.error),
        Err(error) => {
            // The command has made no access to the bytes yet, and must not run unwatched.
            let number = rustix::process::Pid::from_raw(pid.0.cast_signed());
            let _ = number.map(|pid| kill_process(pid, Signal::KILL));
            // The killed command stops once more before it ends.
            let _ = traced.run(None);
            let _ = traced.finish();
            return Err(error);
        }
    };
    traced.let_go();
    let shield = shield(pid);
    let (mut seen, mut end) = (WatchedHits::new(asked, people), None);
    let ended = observe(&mut watch, &mut seen, people, || {
        if let Stopped::Ended(ending) = traced.run(Some(Instant::now()))? {
            end = Some(ending);
        }
        Ok(end.map(|ending| WatchEnding::Process(Some(program_ending(ending)))))
    })?;
    let name = Name::new(program.as_bytes());
    let mut watched = made(watch, seen, found, pid, name, ended);
    drop(shield);
    let words = std::iter::once(program).chain(arguments);
    watched.command = words.map(|word| Name::new(word.as_bytes())).collect();
    let end = match end {
        Some(end) => end,
        None => traced.finish().context("cannot wait for the command")?,
    };
    Ok((watched, exit_code(end)))
}
