//! Sources of accesses: a command under valgrind's lackey, a file, or a workload.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use pagewise_model::Name;
use pagewise_model::simulated::{AccessSplit, AccessStream};
use pagewise_sim::lackey::{LackeyReader, ModifyAs};
use pagewise_sim::workload::{Order, PointerChase, Uniform, WindowWalk};
use pagewise_sim::{MemoryAccess, ReadWriteCounts as Counted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::commands::run_command::NotRun;
use crate::commands::sim::args::{Feed, OrderArg, WorkloadArg};

/// Totals of the accesses, and exit code of the program.
pub(super) struct Fed {
    pub(super) stream: AccessStream,
    pub(super) exit: ExitCode,
}

/// Destination of accesses.
type FeedSink<'a> = &'a mut dyn FnMut(&[MemoryAccess]);

/// Default limit of accesses of a command. They take some minutes: lackey makes a system call for
/// every line that it writes.
const OF_A_COMMAND: u64 = 100_000_000;

/// Default limit of accesses of a workload without an end.
const OF_A_WORKLOAD: u64 = 100_000_000;

/// Feeds accesses to `sink` until the end, or until the limit.
pub(super) fn run(feed: Feed, modify: ModifyAs, sink: FeedSink<'_>) -> anyhow::Result<Fed> {
    if let Some(workload) = feed.workload {
        return Ok(play(workload, &feed, sink));
    }
    if let Some(path) = &feed.trace {
        return read_file(path, feed.limit.unwrap_or(u64::MAX), modify, sink);
    }
    run_command(&feed, modify, sink)
}

/// Counts accesses, and passes on at most `limit` of them.
struct Meter<'a> {
    sink: FeedSink<'a>,
    limit: u64,
    accesses: Counted,
    cut_off: bool,
}

impl Meter<'_> {
    fn new(sink: FeedSink<'_>, limit: u64) -> Meter<'_> {
        Meter { sink, limit, accesses: Counted::default(), cut_off: false }
    }

    fn push_block(&mut self, block: &[MemoryAccess]) {
        let left = self.limit.saturating_sub(self.accesses.total());
        let some = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        self.cut_off |= some < block.len();
        self.accesses += Counted::count_block(&block[..some]);
        (self.sink)(&block[..some]);
    }

    fn stream(&self, subject: Name, unknown_lines: u64) -> AccessStream {
        let Counted { reads, writes } = self.accesses;
        let accesses = AccessSplit { reads, writes };
        AccessStream { subject, accesses, unknown_lines, cut_off: self.cut_off }
    }
}

fn play(workload: WorkloadArg, feed: &Feed, sink: FeedSink<'_>) -> Fed {
    let (bytes, seed) = (feed.size, feed.seed);
    let order = match feed.order {
        OrderArg::Random => Order::Random { seed },
        OrderArg::Sequential => Order::Sequential,
    };
    let limit = match workload {
        WorkloadArg::MemAccess => feed.limit.unwrap_or(u64::MAX),
        WorkloadArg::Random | WorkloadArg::Chase => feed.limit.unwrap_or(OF_A_WORKLOAD),
    };
    let mut meter = Meter::new(sink, limit);
    let mut take = |block: &[MemoryAccess]| meter.push_block(block);
    let name = match workload {
        WorkloadArg::MemAccess => {
            let original = WindowWalk { bytes, ..WindowWalk::original(order) };
            // The number of whole rounds within the limit, plus one round that the meter cuts off
            // at the limit.
            let rounds = limit / (original.window * original.passes) + 1;
            WindowWalk { rounds: rounds.min(original.rounds), ..original }.play(&mut take);
            match feed.order {
                OrderArg::Random => "mem-access, random",
                OrderArg::Sequential => "mem-access, sequential",
            }
        }
        WorkloadArg::Random => {
            Uniform { bytes, accesses: limit, seed }.play(&mut take);
            "uniform random reads"
        }
        WorkloadArg::Chase => {
            PointerChase { bytes, stride: CHASE_STRIDE, accesses: limit, seed }.play(&mut take);
            "a pointer chase"
        }
    };
    Fed { stream: meter.stream(name.into(), 0), exit: ExitCode::SUCCESS }
}

/// Distance between two addresses of a pointer chase: a cache line.
const CHASE_STRIDE: u64 = 64;

/// Maximum number of bytes that are read at once.
const PIECE: usize = 256 << 10;

fn read_file(path: &Path, limit: u64, modify: ModifyAs, sink: FeedSink<'_>) -> anyhow::Result<Fed> {
    let named = || format!("cannot read {}", path.display());
    let mut source: Box<dyn Read> = match path.as_os_str().as_bytes() {
        b"-" => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path).with_context(named)?),
    };
    let mut meter = Meter::new(sink, limit);
    let mut reader = LackeyReader::new(modify);
    let mut piece = vec![0; PIECE];
    while !meter.cut_off {
        match source.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => meter.push_block(reader.read(&piece[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(named),
        }
    }
    meter.push_block(reader.finish());
    if meter.accesses.total() == 0 {
        bail!("{} holds no trace: lackey writes one with --trace-mem=yes", path.display());
    }
    let subject = Name::new(path.as_os_str().as_bytes());
    Ok(Fed { stream: meter.stream(subject, reader.lines().unknown), exit: ExitCode::SUCCESS })
}

fn run_command(feed: &Feed, modify: ModifyAs, sink: FeedSink<'_>) -> anyhow::Result<Fed> {
    let (pipe, mut child) = start(feed)?;
    let mut meter = Meter::new(sink, feed.limit.unwrap_or(OF_A_COMMAND));
    let mut reader = LackeyReader::new(modify);
    let read = follow(pipe, &mut child, &mut reader, &mut meter);
    if read.is_err() || meter.cut_off {
        // `kill` fails if the command has ended.
        let _ = child.kill();
    }
    let status = child.wait().context("cannot wait for the command")?;
    read.context("cannot read the output of lackey")?;
    if meter.accesses.total() == 0 {
        return Err(not_run(feed, status));
    }
    let words: Vec<&[u8]> = feed.command.iter().map(|word| word.as_bytes()).collect();
    let stream = meter.stream(Name::new(&words.join(&b' ')), reader.lines().unknown);
    let exit = if meter.cut_off { ExitCode::SUCCESS } else { exit_code(status) };
    Ok(Fed { stream, exit })
}

/// Starts a command under lackey, which writes to the other end of a pipe, so that all standard
/// streams are the command's.
fn start(feed: &Feed) -> anyhow::Result<(File, Child)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).context("cannot make a pipe")?;
    let mut valgrind = Command::new("valgrind");
    // The user's own valgrind configuration is for other tools, and is ignored. Children of the
    // command write no trace.
    valgrind.args(["--command-line-only=yes", "--tool=lackey", "--trace-mem=yes"]);
    valgrind.args(["--basic-counts=no", "--child-silent-after-fork=yes"]);
    valgrind.arg(format!("--log-fd={}", theirs.as_raw_fd()));
    let child = match valgrind.args(&feed.command).spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "valgrind is not installed, which runs the command; --trace reads a trace made elsewhere"
            )
        }
        started => started.context("cannot run valgrind")?,
    };
    Ok((ours.into(), child))
}

/// Reads until the command has ended and its output is read, or until the limit. Does not wait for
/// a child that outlives the command and may keep the pipe open.
fn follow(
    mut pipe: File,
    child: &mut Child,
    reader: &mut LackeyReader,
    meter: &mut Meter<'_>,
) -> io::Result<()> {
    const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    /// Time to sleep after each read: shorter than the time in which lackey fills the pipe.
    const REST: Duration = Duration::from_millis(1);
    let mut piece = vec![0; PIECE];
    let mut ended = false;
    while !meter.cut_off {
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&POLL_INTERVAL)) {
            Ok(0) if ended => break,
            Ok(0) => ended = child.try_wait()?.is_some(),
            Ok(_) => match pipe.read(&mut piece)? {
                0 => break,
                length => {
                    meter.push_block(reader.read(&piece[..length]));
                    // Without this sleep, every line would wake this process.
                    thread::sleep(REST);
                }
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    meter.push_block(reader.finish());
    Ok(())
}

/// If valgrind cannot run the command, it exits with 127 or 126, as a shell does.
fn not_run(feed: &Feed, status: ExitStatus) -> anyhow::Error {
    let kind = match status.code() {
        Some(127) => io::ErrorKind::NotFound,
        Some(126) => io::ErrorKind::PermissionDenied,
        _ => return anyhow::anyhow!("lackey saw no access of the command ({status})"),
    };
    match feed.command.first() {
        Some(program) => NotRun::new(program, kind.into()).into(),
        None => anyhow::anyhow!("no command was given"),
    }
}

/// Returns the command's exit code; after a signal, the exit code that a shell reports.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
