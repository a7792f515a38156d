//! `pagewise watch`: who writes some bytes of a process, or of a command from its first instruction on.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::watch::{self, Options, When};
use pagewise_heap::block_at;
use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::calls;
use pagewise_model::mapping::{Mapping, Sharing};
use pagewise_model::watched::{Ended, Hit, Watched};
use pagewise_model::{Name, Pid};
use pagewise_proc::variables::{self, Variable};
use pagewise_proc::{ProcRoot, maps, stat, target};
use pagewise_sys::interrupt::Interrupts;
use pagewise_sys::perf_event::Counter;
use pagewise_sys::trace::{Ending, Stopped, Traced};
use pagewise_trace::{StackId, Watch};
use pagewise_view::text::{Units, inline};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use crate::args;
use crate::commands::run_command::{NotRun, exit_code};
use crate::look::Look;
use crate::output::{emit, emit_beside, note, to_stdout, write_stderr};
use crate::plan::Usage;
use crate::shield::Shield;

/// Between looks at whether the process is still there.
const LOOK: Duration = Duration::from_millis(20);
/// An access takes so many bytes of the memory limit, with all that becomes of it in a report: those beyond are counted and
/// not kept.
const ACCESS: u64 = 4 << 10;
/// Pages in files show so many at most, if nothing else is said.
const FEW: usize = 100;

/// Watches, reports, and passes on the exit code of a command that was run.
pub(crate) fn run(args: &args::Watch, look: &Look, beside: &Look) -> anyhow::Result<ExitCode> {
    let asked = Asked::of(args)?;
    let limit = args.hits.map_or(Some(FEW), |limit| limit.0);
    let limit = if args.output.json { None } else { limit };
    // Who waits for a file or says how many waits for the end.
    let told = args.hits.is_none() && is_for_screen(&args.output);
    let options = Options { limit, told };
    match args.command.split_first() {
        None => {
            let mut told = Told::new(told.then_some(To::Stdout));
            let watched = process(&asked, &mut told)?;
            told.end()?;
            emit(&watch::watch(&watched, &options), &args.output, look, Units::Human)?;
            Ok(ExitCode::SUCCESS)
        }
        Some((program, arguments)) => {
            let mut told = Told::new(told.then_some(To::Stderr));
            let (watched, exit) = command(&asked, program, arguments, &mut told)?;
            told.end()?;
            emit_beside(&watch::watch(&watched, &options), &args.output, beside, Units::Human)?;
            Ok(exit)
        }
    }
}

/// What is to be watched, and until when.
struct Asked<'a> {
    target: Option<&'a str>,
    place: Where<'a>,
    length: Option<u64>,
    reads: bool,
    count: Option<u64>,
    during: Option<Duration>,
    when: Option<(&'a str, When)>,
    limit: MemoryLimit,
}

/// Where the bytes are.
#[derive(Clone, Copy, Debug)]
enum Where<'a> {
    At(u64),
    Variable { name: &'a str, offset: u64 },
}

impl<'a> Where<'a> {
    /// An address, or a name with or without an offset.
    fn of(text: &'a str) -> Where<'a> {
        if let Some(address) = number(text) {
            return Where::At(address);
        }
        let parts = text.rsplit_once('+');
        match parts.and_then(|(name, offset)| Some((name, number(offset)?))) {
            Some((name, offset)) => Where::Variable { name, offset },
            None => Where::Variable { name: text, offset: 0 },
        }
    }
}

/// Decimal, or hexadecimal behind `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'a> Asked<'a> {
    fn of(args: &'a args::Watch) -> anyhow::Result<Asked<'a>> {
        let mut words = args.words.iter().map(String::as_str);
        let target = if args.command.is_empty() {
            Some(words.next().ok_or(usage("which process, or `-- COMMAND`?"))?)
        } else {
            None
        };
        let place = match (&args.symbol, &args.at) {
            (Some(symbol), _) => match Where::of(symbol) {
                Where::At(_) => Where::Variable { name: symbol, offset: 0 },
                variable @ Where::Variable { .. } => variable,
            },
            (None, Some(address)) => {
                Where::At(number(address).ok_or(usage("--at takes an address: 0x404028"))?)
            }
            (None, None) if target.is_some() => Where::of(
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
        let when = when.map(|text| When::parse(text).map(|when| (text, when))).transpose()?;
        if when.is_some() && length.is_some_and(|length| length > 8) {
            return Err(usage("--when compares numbers, which have no more than 8 bytes").into());
        }
        let (reads, count, during) = (args.rw, args.count, args.during);
        let limit = args.memory.memory_limit;
        Ok(Asked { target, place, length, reads, count, during, when, limit })
    }
}

fn usage(text: &str) -> Usage {
    Usage(text.to_owned())
}

/// The bytes that were found.
struct Found {
    address: u64,
    length: u64,
    symbol: Option<Name>,
    mapping: Option<(Name, bool)>,
}

fn find(asked: &Asked<'_>, root: &ProcRoot, pid: Pid) -> anyhow::Result<Found> {
    let mappings = maps::parse(&root.read(pid, "maps")?).mappings;
    let (address, size, symbol) = match asked.place {
        Where::At(address) => (address, 0, None),
        Where::Variable { name, offset } => {
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
    Ok(Found { address, length, symbol, mapping })
}

/// The one variable of a name: the program's own hides those of its libraries.
fn variable(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    name: &str,
) -> anyhow::Result<Variable> {
    let found = variables::find(root, pid, mappings, name.as_bytes());
    let its_own: Vec<&Variable> = found
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

fn module(variable: &Variable) -> String {
    String::from_utf8_lossy(variable.module.base()).into_owned()
}

/// That no file has a variable of a name, yet.
#[derive(Debug)]
struct NoVariable(String);

impl fmt::Display for NoVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoVariable {}

/// What was seen so far.
struct Seen<'a> {
    asked: &'a Asked<'a>,
    hits: Vec<Hit>,
    fitting: u64,
    passed_over: u64,
    dropped: u64,
    /// Those that came last, where people see each as it comes.
    fresh: Option<Vec<Hit>>,
}

impl<'a> Seen<'a> {
    fn new(asked: &'a Asked<'a>, told: &Told) -> Seen<'a> {
        let fresh = told.to.map(|_| Vec::new());
        Seen { asked, hits: Vec::new(), fitting: 0, passed_over: 0, dropped: 0, fresh }
    }

    fn take(&mut self, hit: Hit) {
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

/// Where people see each access as it comes.
#[derive(Clone, Copy)]
enum To {
    Stdout,
    Stderr,
}

/// What people were told so far.
struct Told {
    to: Option<To>,
    /// Call stacks that they have seen, by number.
    stacks: HashSet<u32>,
}

impl Told {
    fn new(to: Option<To>) -> Told {
        Told { to, stacks: HashSet::new() }
    }

    /// Tells of accesses that just came.
    fn tell(&mut self, seen: &mut Seen<'_>, watch: &mut Watch) -> anyhow::Result<()> {
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

    /// Sets apart what follows.
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

/// Whether what is told goes to a terminal or a pipe, as text.
fn is_for_screen(output: &args::Output) -> bool {
    output.output.is_none() && output.html.is_none() && !output.json
}

/// Watches until something ends it; `gone` says whether the process has ended.
fn observe(
    watch: &mut Watch,
    seen: &mut Seen<'_>,
    people: &mut Told,
    mut gone: impl FnMut() -> anyhow::Result<Option<Ended>>,
) -> anyhow::Result<Ended> {
    let deadline = seen.asked.during.map(|during| Instant::now() + during);
    loop {
        // What was done before its end is there once the end is seen.
        let ended = gone()?;
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let left =
            deadline.map_or(LOOK, |it| it.saturating_duration_since(Instant::now()).min(LOOK));
        if ended.is_none() && !is_late {
            watch.step(left, &mut |hit| seen.take(hit));
        } else {
            watch.finish(&mut |hit| seen.take(hit));
        }
        people.tell(seen, watch)?;
        if seen.is_enough() {
            return Ok(Ended::Enough);
        }
        if watch.told().executed {
            watch.finish(&mut |hit| seen.take(hit));
            people.tell(seen, watch)?;
            return Ok(if seen.is_enough() { Ended::Enough } else { Ended::Executed });
        }
        match ended {
            Some(ended) => return Ok(ended),
            None if is_late => return Ok(Ended::Time),
            None => {}
        }
    }
}

fn made(
    mut watch: Watch,
    seen: Seen<'_>,
    found: Found,
    pid: Pid,
    name: Name,
    ended: Ended,
) -> Watched {
    let told = watch.told();
    let (in_copies, unseen, other_stacks) = (told.in_copies, told.unseen, told.other_stacks);
    let (mut hits, mut stacks) = (seen.hits, watch.frames().to_vec());
    if other_stacks > 0 {
        let other = u32::try_from(stacks.len()).unwrap_or(u32::MAX);
        stacks.push(vec![Folded::frame()]);
        let is_other = |hit: &&mut Hit| hit.stack == StackId::OTHER.0;
        hits.iter_mut().filter(is_other).for_each(|hit| hit.stack = other);
    }
    Watched {
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

fn process(asked: &Asked<'_>, people: &mut Told) -> anyhow::Result<Watched> {
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
    let interrupts = Interrupts::note_all();
    // Before there are breakpoints, and until there are none.
    let shield = shield(pid);
    let mut watch = open(asked, &root, pid, &found)?;
    // Both were opened by its id.
    root.check(pid)?;
    let name = Name::new(stat.name.as_bytes());
    let mapped = if found.mapping.is_none() { "; no memory is mapped there" } else { "" };
    write_stderr(&format!(
        "watching {} bytes at {:#x} of {} ({pid}){mapped}; Ctrl-C ends it\n",
        found.length,
        found.address,
        pagewise_model::name::escape(name.as_bytes()),
    ));
    let mut seen = Seen::new(asked, people);
    let ended = observe(&mut watch, &mut seen, people, || {
        Ok(if interrupts.came() {
            Some(Ended::Interrupted)
        } else {
            has_ended(&ends).then_some(Ended::Process(None))
        })
    })?;
    let watched = Watched { block, ..made(watch, seen, found, pid, name, ended) };
    drop(shield);
    Ok(watched)
}

/// Shields a process from SIGTRAPs that a hypervisor causes, and says so if that is not possible.
fn shield(pid: Pid) -> Option<Shield> {
    let shield = Shield::of(pid.0);
    if let Err(error) = &shield {
        note(format_args!(
            "process {pid} is not shielded ({error}): this machine is virtual, and if its hypervisor loses the reason of a debug exception, which \
             few do on busy CPUs once in millions of accesses, the kernel sends SIGTRAP to the process"
        ));
    }
    shield.ok()
}

/// Begins to watch what was found.
fn open(
    asked: &Asked<'_>,
    root: &ProcRoot,
    pid: Pid,
    found: &Found,
) -> Result<Watch, pagewise_trace::Error> {
    Watch::open(root, pid.0, found.address, found.length, asked.reads, asked.limit)
}

/// A process, to be asked whether it has ended.
fn open_pid(pid: Pid) -> anyhow::Result<OwnedFd> {
    let gone = || format!("there is no process {pid}");
    let number = rustix::process::Pid::from_raw(pid.0.cast_signed()).with_context(gone)?;
    pidfd_open(number, PidfdFlags::empty()).with_context(gone)
}

fn has_ended(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// A command that ended before what was to be watched had come.
struct Never {
    error: anyhow::Error,
}

/// Finds the bytes in a command that is held before its first instruction, and watches them; where they are of a library,
/// it runs until that is mapped and none of its code has run.
fn on_the_way(
    asked: &Asked<'_>,
    root: &ProcRoot,
    traced: &mut Traced,
) -> anyhow::Result<Result<(Watch, Found), Never>> {
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
            let counter = Counter::trap_at(pid.0, address);
            stop = Some(counter.context("the kernel does not say when libraries are loaded")?);
        }
        traced.stop_on_the_way();
        match traced.run(None)? {
            Stopped::Trapped => {}
            // Where the other program's linker is has to be found anew.
            Stopped::Executed => stop = None,
            Stopped::AtExit | Stopped::AtTime | Stopped::TimeIsUp | Stopped::Ended(_) => {
                let error = missing.context("the command has ended, and was not watched");
                return Ok(Err(Never { error }));
            }
        }
    }
}

fn command(
    asked: &Asked<'_>,
    program: &OsString,
    arguments: &[OsString],
    people: &mut Told,
) -> anyhow::Result<(Watched, ExitCode)> {
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
            // It has done nothing that was to be seen yet, and shall do nothing unwatched.
            let number = rustix::process::Pid::from_raw(pid.0.cast_signed());
            let _ = number.map(|pid| kill_process(pid, Signal::KILL));
            // It stops once more on its way out.
            let _ = traced.run(None);
            let _ = traced.finish();
            return Err(error);
        }
    };
    traced.let_go();
    let shield = shield(pid);
    let (mut seen, mut end) = (Seen::new(asked, people), None);
    let ended = observe(&mut watch, &mut seen, people, || {
        if let Stopped::Ended(ending) = traced.run(Some(Instant::now()))? {
            end = Some(ending);
        }
        Ok(end.map(|ending| Ended::Process(Some(told(ending)))))
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

fn told(ending: Ending) -> calls::Ending {
    match ending {
        Ending::Exited(status) => calls::Ending::Exited(status),
        Ending::Killed { signal, .. } => calls::Ending::Killed(signal),
    }
}
