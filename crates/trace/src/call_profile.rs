//! Memory system calls and forks of a running process, counted by call stack.
//!
//! A tracepoint at the entry of system calls reports them. While it is enabled, every system call
//! of the machine takes about 0.1 µs longer.

use std::collections::HashMap;
use std::ffi::CString;
use std::time::{Duration, Instant};

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::evidence::{CallProfile, CallProfileRow};
use pagewise_model::units::nanoseconds;
use pagewise_proc::ProcRoot;
use pagewise_sys::tracefs::TraceFs;

use crate::record::{PerfRecord, PerfSample};
use crate::spaces::REGION;
use crate::symbolized::symbolize;
use crate::tracepoint::TracepointField;
use crate::{
    Callers, Finder, RecordedStacks, Spaces, StackId, TraceError, TraceSession, TraceTarget,
    Tracepoint, heaviest,
};

const ENTER: &str = "raw_syscalls:sys_enter";
/// Number of bytes of each CPU's ring.
const RING: usize = 1 << 20;
/// Flags of `clone`.
const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x1_0000;
/// Maximum number of rows ([`CallKey`]) that are kept. Calls of further rows count for an unknown
/// call stack.
const MAX_ROWS: usize = 1 << 14;

/// A recorded system call.
struct ProfiledCall {
    number: libc::c_long,
    name: &'static str,
    /// Index of the argument that is a length in bytes.
    length: Option<usize>,
    /// Index of the argument whose value is a part of [`CallKey`]. For `clone` this argument is the
    /// flags, which only determine the name.
    detail: Option<usize>,
}

const fn call(
    number: libc::c_long,
    name: &'static str,
    length: Option<usize>,
    detail: Option<usize>,
) -> ProfiledCall {
    ProfiledCall { number, name, length, detail }
}

/// Calls that create a process are all named `fork`, or `vfork` if the child shares the memory of
/// its parent.
const FORK: &str = "fork";
const VFORK: &str = "vfork";

const CALLS: &[ProfiledCall] = &[
    call(libc::SYS_brk, "brk", None, None),
    call(libc::SYS_mmap, "mmap", Some(1), Some(3)),
    call(libc::SYS_munmap, "munmap", Some(1), None),
    call(libc::SYS_mremap, "mremap", Some(2), None),
    call(libc::SYS_mprotect, "mprotect", Some(1), None),
    call(libc::SYS_pkey_mprotect, "pkey_mprotect", Some(1), None),
    call(libc::SYS_madvise, "madvise", Some(1), Some(2)),
    call(libc::SYS_mincore, "mincore", Some(1), None),
    call(libc::SYS_msync, "msync", Some(1), None),
    call(libc::SYS_mlock, "mlock", Some(1), None),
    call(libc::SYS_mlock2, "mlock2", Some(1), None),
    call(libc::SYS_munlock, "munlock", Some(1), None),
    call(libc::SYS_mlockall, "mlockall", None, Some(0)),
    call(libc::SYS_clone, FORK, None, Some(0)),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_fork, FORK, None, None),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_vfork, VFORK, None, None),
];

/// Key of a row. Calls with equal keys are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallKey {
    call: &'static str,
    detail: u64,
    stack: StackId,
}

/// Number of calls, and the sum of their lengths in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct CallSum {
    count: u64,
    bytes: u64,
}

/// Records the memory system calls of a process.
#[derive(Debug)]
pub struct CallProfiler {
    session: TraceSession,
    counts: CallCounts,
    limit: MemoryLimit,
    began: Instant,
}

/// Calls so far.
#[derive(Debug)]
struct CallCounts {
    pid: u32,
    id: TracepointField,
    arguments: TracepointField,
    spaces: Spaces,
    stacks: RecordedStacks,
    finder: Finder,
    rows: HashMap<CallKey, CallSum>,
    execs: u64,
}

impl CallProfiler {
    /// Begins to record. `stack` is the number of stack bytes that are copied with each call.
    ///
    /// # Errors
    /// [`TraceError::NotWatched`] without the rights; [`TraceError::NoSuchEvent`];
    /// [`TraceError::Gone`].
    pub fn begin(pid: u32, stack: u16, limit: MemoryLimit) -> Result<CallProfiler, TraceError> {
        let denied = |error| TraceError::NotWatched { what: ENTER.to_owned(), error };
        let tracefs = TraceFs::open().map_err(denied)?;
        let enter = Tracepoint::find_or_fail(&tracefs, ENTER)?;
        let field = |name: &str| {
            let what = format!("{name} of {ENTER}");
            enter.field(name).ok_or(TraceError::NoSuchEvent { what })
        };
        let (id, arguments) = (field("id")?, field("args")?);
        let finder = Finder::new(Callers::Tables(stack), limit);
        let wanted = [enter.sampled(finder.carries(), true)];
        let session = TraceSession::open_any(TraceTarget::Process(pid), &wanted, RING)?;
        let tests: Vec<String> = CALLS.iter().map(|it| format!("id == {}", it.number)).collect();
        if let Ok(filter) = CString::new(tests.join(" || ")) {
            session.filter(0, &filter)?;
        }
        let mut spaces = Spaces::within(limit.part(16 * REGION));
        spaces.read(&ProcRoot::live(), pid);
        session.enable()?;
        let counts = CallCounts {
            pid,
            id,
            arguments,
            spaces,
            stacks: RecordedStacks::within(limit.part(5)),
            finder,
            rows: HashMap::new(),
            execs: 0,
        };
        Ok(CallProfiler { session, counts, limit, began: Instant::now() })
    }

    /// Waits for calls for at most `at_most`, and counts them.
    pub fn step(&mut self, at_most: Duration) {
        self.session.wait(at_most);
        let CallProfiler { session, counts, .. } = self;
        session.drain(&mut |record| counts.note(&record));
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.counts.rows.values().map(|sum| sum.count).sum()
    }

    /// Ends the recording, and looks up the functions.
    pub fn finish(self) -> CallProfile {
        let CallProfiler { mut session, mut counts, limit, began } = self;
        // An error here has no consequence: the files are closed next.
        let _ = session.disable();
        let took_ns = nanoseconds(began.elapsed());
        session.finish(&mut |record| counts.note(&record));
        let CallCounts { stacks, rows, execs, .. } = counts;
        let lost = session.lost();
        drop(session);
        let counted = heaviest::sums(rows.iter().map(|(key, sum)| (key.stack, sum.count)));
        let mut symbols = stacks.symbols();
        let mut folded = Folded::default();
        let (frames, lists, number) = symbolize(&stacks, &mut symbols, counted, limit, &mut folded);
        let row = |(key, sum): (CallKey, CallSum)| CallProfileRow {
            call: key.call.to_owned(),
            detail: key.detail,
            stack: number.get(&key.stack).copied().unwrap_or(u32::MAX),
            count: sum.count,
            bytes: sum.bytes,
        };
        let mut rows: Vec<CallProfileRow> = rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            (b.count, &a.call, a.detail, a.stack).cmp(&(a.count, &b.call, b.detail, b.stack))
        });
        CallProfile { took_ns, lost, frames, stacks: lists, rows, execs }
    }
}

impl CallCounts {
    fn note(&mut self, record: &PerfRecord<'_>) {
        self.spaces.note(record);
        match *record {
            PerfRecord::Sample(sample) if sample.pid == self.pid => self.count(&sample),
            PerfRecord::Named { pid, exec: true, .. } if pid != self.pid => self.execs += 1,
            _ => {}
        }
    }

    fn count(&mut self, sample: &PerfSample<'_>) {
        let Some(number) = self.id.read(sample.raw) else { return };
        let known = CALLS.iter().find(|call| u64::try_from(call.number) == Ok(number));
        let Some(call) = known else { return };
        let argument = |at: Option<usize>| {
            at.and_then(|at| self.arguments.read_word(at, sample.raw)).unwrap_or(0)
        };
        let (mut name, mut detail) = (call.name, argument(call.detail));
        if name == FORK {
            if detail & CLONE_THREAD != 0 {
                return;
            }
            name = if detail & CLONE_VM == 0 { FORK } else { VFORK };
            detail = 0;
        }
        let addresses = self.finder.find(&self.spaces, sample).iter().copied();
        let stack = self.stacks.number(&self.spaces, sample.pid, addresses);
        let mut key = CallKey { call: name, detail, stack };
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            key = CallKey { detail: 0, stack: StackId::OTHER, ..key };
        }
        let sum = self.rows.entry(key).or_default();
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(argument(call.length));
    }
}
