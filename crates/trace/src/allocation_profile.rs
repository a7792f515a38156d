//! Calls of `malloc`, `calloc` and `realloc` in a running process, counted by call stack and size.
//!
//! The kernel reports the calls by uprobes at the entries of the functions. No library is loaded
//! into the process, and the probes vanish with pagewise's file descriptors. Each call takes some
//! microseconds longer, so recordings are short.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use pagewise_model::bounds::{Folded, MemoryLimit};
use pagewise_model::evidence::{AllocationSizeRow, AllocationSizes};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Reading};
use pagewise_proc::{ProcRoot, variables};
use pagewise_sys::perf_event::{Mode, PerfEvent, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};

use crate::record::{PerfRecord, PerfSample};
use crate::shootdowns::around::{TimedCode, kind, of_process};
use crate::spaces::REGION;
use crate::symbolized::symbolize;
use crate::{
    Callers, Finder, RecordedStacks, SessionEvent, Spaces, StackId, TraceError, TraceSession,
    TraceTarget, Uprobes, heaviest,
};

/// Number of bytes of each CPU's ring.
const RING: usize = 4 << 20;
/// Maximum number of pairs of a call stack and a size that are kept. Calls of further pairs count
/// for an unknown stack.
const MAX_ROWS: usize = 1 << 13;
/// Indices of the registers si and di in a sample: the second and the first argument of a function
/// on x86-64.
const SI: usize = 4;
const DI: usize = 5;

/// Arguments of a function that determine the requested size.
#[derive(Clone, Copy, Debug)]
enum SizeArgument {
    First,
    Second,
    Product,
}

const FUNCTIONS: [(&str, SizeArgument); 3] = [
    ("malloc", SizeArgument::First),
    ("calloc", SizeArgument::Product),
    ("realloc", SizeArgument::Second),
];

/// Records the allocations of a process.
#[derive(Debug)]
pub struct AllocationProfiler {
    session: TraceSession,
    /// File with the functions, which stays open: the kernel reads the file by its path as long as
    /// the probes exist.
    code: TimedCode,
    counts: AllocationCounts,
    limit: MemoryLimit,
    began: Instant,
}

#[derive(Debug)]
struct AllocationCounts {
    pid: u32,
    /// The functions by their offsets in the file.
    functions: Vec<(u64, SizeArgument)>,
    spaces: Spaces,
    stacks: RecordedStacks,
    finder: Finder,
    rows: HashMap<(StackId, u64), u64>,
    all: u64,
}

/// Returns the file whose `malloc` the process calls, and its functions. An allocator library takes
/// precedence over the C library.
fn allocator(pid: u32) -> Option<(TimedCode, Vec<(u64, SizeArgument)>)> {
    let names = FUNCTIONS.map(|(name, _)| name);
    let found = of_process(pid).into_iter().filter_map(|code| {
        let base = code.name.base();
        if base.starts_with(b"ld-") || base.starts_with(b"ld.so") {
            return None;
        }
        let is_libc = base.starts_with(b"libc.") || base.starts_with(b"libc-");
        let functions = variables::functions(&code.file, &names);
        let argument = |name: &str| FUNCTIONS.iter().find(|it| it.0 == name).map(|it| it.1);
        let mut known: Vec<(u64, SizeArgument)> = functions
            .iter()
            .filter_map(|function| Some((function.offset, argument(&function.name)?)))
            .collect();
        known.sort_by_key(|(offset, _)| *offset);
        known.dedup_by_key(|(offset, _)| *offset);
        let has_malloc = functions.iter().any(|function| function.name == "malloc");
        has_malloc.then_some((is_libc, code, known))
    });
    let first = found.min_by_key(|(is_libc, ..)| *is_libc);
    first.map(|(_, code, functions)| (code, functions))
}

impl AllocationProfiler {
    /// Begins to record. `stack` is the number of stack bytes that are copied with each call.
    ///
    /// # Errors
    /// The reason, if no symbol of the process names a function `malloc`, or the kernel refuses the
    /// probes.
    pub fn begin(pid: u32, stack: u16, limit: MemoryLimit) -> Reading<AllocationProfiler> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Absent::NotSupported("arguments are known on x86-64 only".into()));
        }
        let kind = kind()?;
        let no_malloc = || Absent::NotSupported("no mapped file has a function malloc".into());
        let (code, functions) = allocator(pid).ok_or_else(no_malloc)?;
        let finder = Finder::new(Callers::Tables(stack), limit);
        let session = open(pid, kind, &code, &functions, finder.carries());
        let session = session.map_err(|error| error.absent("root, or CAP_PERFMON and CAP_BPF"))?;
        let mut spaces = Spaces::within(limit.part(16 * REGION));
        spaces.read(&ProcRoot::live(), pid);
        let counts = AllocationCounts {
            pid,
            functions,
            spaces,
            stacks: RecordedStacks::within(limit.part(5)),
            finder,
            rows: HashMap::new(),
            all: 0,
        };
        Ok(AllocationProfiler { session, code, counts, limit, began: Instant::now() })
    }

    /// Waits for calls for at most `at_most`, and counts them.
    pub fn step(&mut self, at_most: Duration) {
        self.session.wait(at_most);
        let AllocationProfiler { session, counts, .. } = self;
        session.drain(&mut |record| counts.note(&record));
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.counts.all
    }

    /// Ends the recording, and looks up the functions.
    pub fn finish(self) -> AllocationSizes {
        let AllocationProfiler { mut session, code, mut counts, limit, began } = self;
        let took_ns = nanoseconds(began.elapsed());
        // An error here has no consequence: the files are closed next.
        let _ = session.disable();
        session.finish(&mut |record| counts.note(&record));
        let lost = session.lost();
        drop((session, code));
        let AllocationCounts { stacks, rows, all, .. } = counts;
        let counted = heaviest::sums(rows.iter().map(|((stack, _), count)| (*stack, *count)));
        let mut symbols = stacks.symbols();
        let mut folded = Folded::default();
        let (frames, lists, number) = symbolize(&stacks, &mut symbols, counted, limit, &mut folded);
        let row = |((stack, size), count): ((StackId, u64), u64)| AllocationSizeRow {
            stack: number.get(&stack).copied().unwrap_or(u32::MAX),
            size,
            count,
        };
        let mut rows: Vec<AllocationSizeRow> = rows.into_iter().map(row).collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.count), row.stack, row.size));
        AllocationSizes { took_ns, calls: all, lost, frames, stacks: lists, rows }
    }
}

/// Opens a session that has the probes.
fn open(
    pid: u32,
    kind: PerfType,
    code: &TimedCode,
    functions: &[(u64, SizeArgument)],
    carries: Carries,
) -> Result<TraceSession, TraceError> {
    let tasks = SessionEvent {
        name: "mappings of the process".to_owned(),
        sampling: Sampling {
            // A dummy event, which counts nothing.
            event: PerfEvent::new(PerfType::SOFTWARE, 9),
            every: 1,
            carries: Carries::default(),
            mode: Mode::default(),
            tasks: true,
            wake_at: 1 << 16,
        },
    };
    let wanted = std::slice::from_ref(&tasks);
    let mut session = TraceSession::open_any(TraceTarget::Process(pid), wanted, RING)?;
    let path = CString::new(format!("/proc/self/fd/{}", code.file.as_raw_fd()));
    // The path is leaked once per recording, because the kernel needs it until the recording ends.
    let path: &'static CStr = Box::leak(path.unwrap_or_default().into_boxed_c_str());
    let offsets: Vec<u64> = functions.iter().map(|(offset, _)| *offset).collect();
    let uprobes = Uprobes {
        name: &format!("functions of {}", code.name.escaped()),
        kind,
        path,
        offsets: &offsets,
        at_return: false,
        pid: Some(pid),
        carries,
    };
    session.add_uprobes(1, &uprobes)?;
    session.enable()?;
    Ok(session)
}

impl AllocationCounts {
    fn note(&mut self, record: &PerfRecord<'_>) {
        self.spaces.note(record);
        if let PerfRecord::Sample(sample) = record
            && sample.pid == self.pid
            && sample.which == 1
        {
            self.count(sample);
        }
    }

    fn count(&mut self, sample: &PerfSample<'_>) {
        let Some(size) = self.size(sample) else { return };
        let addresses = self.finder.find(&self.spaces, sample).iter().copied();
        let stack = self.stacks.number(&self.spaces, sample.pid, addresses);
        self.all += 1;
        let mut key = (stack, size);
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            key = (StackId::OTHER, size);
        }
        if self.rows.len() < 2 * MAX_ROWS || self.rows.contains_key(&key) {
            *self.rows.entry(key).or_default() += 1;
        }
    }

    /// The requested size.
    fn size(&self, sample: &PerfSample<'_>) -> Option<u64> {
        let region = self.spaces.find(sample.pid, sample.ip)?;
        let offset = sample.ip - region.start + region.offset;
        let known = self.functions.iter().find(|(start, _)| *start == offset);
        let (_, argument) = known?;
        let mut registers = sample.registers();
        let [si, di] = [registers.nth(SI)?, registers.next()?];
        const { assert!(DI == SI + 1) };
        Some(match argument {
            SizeArgument::First => di,
            SizeArgument::Second => si,
            SizeArgument::Product => di.saturating_mul(si),
        })
    }
}
