//! Accesses to some bytes of a process: a breakpoint of the CPU on each of its threads reports
//! them, and the process is never stopped.
//!
//! The kernel does not report the written value. The instruction has completed, and its registers
//! are known: most stores can be computed from them, even if the memory has changed since. For all
//! other stores, a BPF program copies the memory at the event, if that is permitted. Otherwise the
//! memory is read later, and its content belongs to an access if the read follows this access and
//! precedes the next one:
//!
//! ```text
//!   hit        hit              hit    hit
//! ───┼──────────┼───────┬────────┼──────┼───►  time
//!                     reading: the value that the second hit left
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pagewise_model::bounds::MemoryLimit;
use pagewise_model::traced::Frame;
use pagewise_model::watched::{Hit, InKernel, ValueOrigin, WatchAccess};
use pagewise_model::{Absent, Name, Pid, Reading};
use pagewise_proc::ProcRoot;
use pagewise_sys::perf_event::{Mode, PerfEvent};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_sys::remote;

use crate::code::Codes;
use crate::kernel::KernelFunctions;
use crate::session::now;
use crate::spaces::REGION;
use crate::x86_store::{COUNTER, CodeBefore, FLAGS, KnownRegisters, StoreEffect, ends_with_call};
use crate::{
    PerfRecord, PerfSample, RecordedStacks, SessionEvent, Spaces, StackId, Symbols, TraceError,
    TraceSession, TraceTarget, Unwinder,
};

/// Number of breakpoints of a CPU.
const SLOTS: usize = 4;
/// Maximum time from an access until the kernel records its time, in nanoseconds; measured: some 10
/// µs.
const MARGIN: u64 = 100_000;
/// Maximum time in nanoseconds between two events that report one access: the kernel reports an
/// access to the bytes of two breakpoints twice.
const TOGETHER: u64 = 1_000_000;
/// Maximum number of callers that are recorded.
const CALLERS: u16 = 64;
/// Number of stack bytes that the kernel copies at an access: they contain the callers of code
/// without frame pointers, and the watched bytes if these are on the stack.
const STACK: u16 = 4 << 10;
/// Divisor of the memory limit for all rings together, with privileges. [`SMALL`] is the number of
/// bytes of one ring without privileges.
const RINGS: u64 = 4;
const SMALL: usize = 128 << 10;
/// Divisors of the memory limit: `STACKS` for call stacks and `FRAMES` for their frames. `FRAME` is
/// the number of bytes of a frame with its data in a report.
const STACKS: u64 = 16;
const FRAMES: u64 = 4;
const FRAME: usize = 1 << 10;
/// Maximum number of code addresses that are remembered. Each takes some hundred bytes.
const ADDRESSES: usize = 1 << 14;

/// An access whose values are not all known yet.
#[derive(Debug)]
struct PendingAccess {
    time: u64,
    /// Time of the last event of the access.
    until: u64,
    pid: u32,
    tid: u32,
    ip: u64,
    /// For a copy by the kernel: number of bytes that were still to be copied.
    left: Option<u64>,
    /// Breakpoints that reported the access, one bit each.
    which: u32,
    registers: Option<KnownRegisters>,
    effect: Option<StoreEffect>,
    /// The watched bytes in the stack copy, which the kernel makes at the time of the access.
    copied: Option<Vec<u8>>,
    /// The watched bytes as the BPF program found them, some microseconds after the access.
    found: Option<Vec<u8>>,
    instruction: Option<Rc<str>>,
    kernel: Option<InKernel>,
    stack: StackId,
    thread: Name,
}

/// Content of memory that was read between two accesses.
#[derive(Debug)]
struct ContentBefore {
    from: u64,
    to: u64,
    bytes: Vec<u8>,
}

/// The instruction before an address. It is decoded once and then cached.
#[derive(Debug)]
struct InstructionBefore {
    code: CodeBefore,
    text: Option<Rc<str>>,
    /// True if a function begins at the address.
    begins: bool,
    /// The instruction at the address, if it is a repeated string instruction.
    repeats: Option<(CodeBefore, Option<Rc<str>>)>,
}

/// The instruction that made an access.
#[derive(Debug, Default)]
struct AccessInstruction {
    effect: Option<StoreEffect>,
    text: Option<Rc<str>>,
    /// True if the instruction repeats itself, and is not finished.
    goes_on: bool,
    /// True for a call, which wrote its return address: the writing function is the caller.
    is_call: bool,
}

impl InstructionBefore {
    /// The access to `length` bytes at `start` with these registers after it.
    fn access(&self, registers: &KnownRegisters, start: u64, length: usize) -> AccessInstruction {
        let effect = self.code.effect(registers, start, length);
        let text = self.text.clone().filter(|_| effect.is_some());
        let mut access = AccessInstruction { effect, text, ..AccessInstruction::default() };
        if let Some((code, text)) = self.repeats.as_ref().filter(|_| access.effect.is_none()) {
            access.effect = code.effect(registers, start, length);
            access.goes_on = access.effect.is_some();
            access.text = text.clone().filter(|_| access.goes_on);
        }
        access.is_call =
            self.begins && (start..start + length as u64).contains(&registers.stack_pointer());
        if access.is_call {
            access.text = Some("call".into());
        }
        access
    }
}

/// The watched bytes, if they are in the part of the stack that the kernel copied.
fn copied_with_stack(
    sample: &PerfSample<'_>,
    stack_pointer: u64,
    start: u64,
    length: usize,
) -> Option<Vec<u8>> {
    let at = usize::try_from(start.wrapping_sub(stack_pointer)).ok()?;
    Some(sample.stack.get(at..)?.get(..length)?.to_vec())
}

/// Results besides the accesses.
#[derive(Debug, Default)]
pub struct Hits {
    /// Number of accesses of child processes to their own copies of the memory.
    pub in_copies: u64,
    /// Number of times the memory differed from the value that the last access had left.
    pub unseen: u64,
    /// Number of accesses whose call stack is not kept because of the memory limit: their stack is
    /// [`StackId::OTHER`].
    pub other_stacks: u64,
    /// True if the process has executed another program, so that the watched memory is gone.
    pub executed: bool,
}

/// A watch of some bytes. Dropping it removes the breakpoints.
#[derive(Debug)]
pub struct MemoryWatch {
    session: TraceSession,
    kernel: Reading<()>,
    first: Reading<Vec<u8>>,
    observer: Observer,
}

/// Converts records to accesses.
#[derive(Debug)]
struct Observer {
    spaces: Spaces,
    stacks: RecordedStacks,
    unwinder: Unwinder,
    code: Codes,
    symbols: Symbols,
    frames: Vec<Vec<Frame>>,
    /// Number of bytes that are left for frames of call stacks. The field `numbered` is the number
    /// of call stacks whose frames are already subtracted.
    room: usize,
    numbered: usize,
    pid: u32,
    start: u64,
    length: usize,
    reads: bool,
    shared: bool,
    /// Index of the event with copies of the memory. The field `copied` contains the last copy of
    /// each thread.
    copies: Option<usize>,
    copied: HashMap<u32, Vec<u8>>,
    began: u64,
    last: Option<Vec<u8>>,
    /// Value that the last access had left, if the memory differed since.
    surprise: Option<Vec<u8>>,
    pending: VecDeque<PendingAccess>,
    held: VecDeque<ContentBefore>,
    codes: HashMap<(u32, u64), Rc<InstructionBefore>>,
    returns: HashMap<(u32, u64), Option<Option<u64>>>,
    names: HashMap<u32, Name>,
    strangers: HashSet<u32>,
    functions: Option<KernelFunctions>,
    /// True if recent values had to be read from memory.
    needs_reading: bool,
    told: Hits,
}

/// The aligned pieces of 1, 2, 4 or 8 bytes that breakpoints can watch.
///
/// # Errors
/// [`TraceError::Unfit`] if the bytes need more than four breakpoints, or if 2, 4 or 8 bytes are
/// not aligned to their number.
fn pieces(start: u64, length: u64) -> Result<Vec<(u64, u64)>, TraceError> {
    let unfit = |why: String, hint: String| Err(TraceError::Unfit { why, hint });
    if length == 0 {
        return unfit("no bytes are to be watched".into(), "say how many".into());
    }
    let Some(end) = start.checked_add(length) else {
        return unfit("the bytes end behind the last address".into(), String::new());
    };
    if matches!(length, 2 | 4 | 8) && !start.is_multiple_of(length) {
        let aligned = start & !(length - 1);
        return unfit(
            format!("{length} bytes at {start:#x} are not aligned: the CPU watches aligned ones"),
            format!("watch 1 byte there, or {length} bytes at {aligned:#x}"),
        );
    }
    let (mut at, mut pieces) = (start, Vec::new());
    while at < end && pieces.len() <= SLOTS {
        let fits = |size: &u64| at.is_multiple_of(*size) && size.saturating_add(at) <= end;
        let size = [8, 4, 2, 1].into_iter().find(fits).expect("one byte is always aligned");
        pieces.push((at, size));
        at += size;
    }
    if pieces.len() > SLOTS {
        return unfit(
            format!("{length} bytes at {start:#x} need more than the {SLOTS} breakpoints of a CPU"),
            "each watches 1, 2, 4 or 8 aligned bytes: at most 32 from a multiple of 8 on".into(),
        );
    }
    Ok(pieces)
}

/// Opens the breakpoints of `pieces`. The second result is the reason why accesses of the kernel
/// are not reported.
fn open_session(
    pid: u32,
    pieces: &[(u64, u64)],
    reads: bool,
    limit: MemoryLimit,
) -> Result<(TraceSession, Result<(), Absent>), TraceError> {
    let carries = Carries { callers: CALLERS, ..Unwinder::carries(STACK) };
    let wanted = |exclude_kernel: bool| -> Vec<SessionEvent> {
        let each = pieces.iter().enumerate().map(|(at, &(start, length))| SessionEvent {
            name: format!("{length} bytes at {start:#x}"),
            sampling: Sampling {
                event: PerfEvent::access(start, length, reads),
                every: 1,
                carries: Carries {
                    kernel: !exclude_kernel,
                    registers_there: if exclude_kernel { FLAGS } else { FLAGS | COUNTER },
                    ..carries
                },
                mode: Mode { exclude_kernel, ..Mode::default() },
                tasks: at == 0,
                wake_at: 1,
            },
        });
        each.collect()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let large = 1 << (limit.part(RINGS) / cpus).max(1 << 20).ilog2();
    let target = TraceTarget::Process(pid);
    let (mut kernel, mut size) = (Ok(()), large);
    let session = loop {
        match TraceSession::open(target, &wanted(kernel.is_err()), size) {
            Err(TraceError::NotWatched { error, .. })
                if error.kind() == io::ErrorKind::PermissionDenied
                    && (kernel.is_ok() || size == large) =>
            {
                // Without privileges the kernel's own accesses are not reported, and rings are
                // small.
                if kernel.is_ok() {
                    kernel = Err(Absent::NotPermitted("root or CAP_PERFMON".into()));
                } else {
                    size = SMALL;
                }
            }
            session => break session?,
        }
    };
    Ok((session, kernel))
}

impl MemoryWatch {
    /// Begins to watch writes to some bytes of a process, whose mappings are read from `root`. If
    /// `reads` is true, reads are watched too.
    ///
    /// # Errors
    /// [`TraceError::Unfit`] for bytes that cannot be watched together, and those of
    /// [`TraceSession::open`].
    pub fn open(
        root: &ProcRoot,
        pid: u32,
        start: u64,
        length: u64,
        reads: bool,
        limit: MemoryLimit,
    ) -> Result<MemoryWatch, TraceError> {
        let pieces = pieces(start, length)?;
        let (mut session, kernel) = open_session(pid, &pieces, reads, limit)?;
        let mut spaces = Spaces::within(limit.part(16 * REGION));
        spaces.read(root, pid);
        let shared = spaces.find(pid, start).is_some_and(|region| region.shared);
        let length = usize::try_from(length).expect("a few bytes");
        // If copying is not permitted, values follow from the code, or are read later.
        let copies = session.copy(pieces.len(), start, length).is_ok();
        let began = now();
        session.enable()?;
        let first = read(pid, start, length);
        let mut observer = Observer::new(pid, start, length, reads, limit);
        observer.names.extend(name(pid, pid).map(|name| (pid, name)));
        observer.last = first.as_ref().ok().cloned();
        (observer.spaces, observer.shared, observer.began) = (spaces, shared, began);
        observer.copies = copies.then_some(pieces.len());
        Ok(MemoryWatch { session, kernel, first, observer })
    }

    /// `Ok` if accesses by the kernel are recorded; else the reason.
    pub fn kernel(&self) -> &Reading<()> {
        &self.kernel
    }

    /// Content of the bytes at the start.
    pub fn first(&self) -> &Reading<Vec<u8>> {
        &self.first
    }

    /// Results so far.
    pub fn told(&self) -> &Hits {
        &self.observer.told
    }

    /// Number of accesses that did not fit into the kernel's buffers.
    pub fn lost(&self) -> u64 {
        self.session.lost()
    }

    /// Duration of the watch so far, in nanoseconds.
    pub fn took_ns(&self) -> u64 {
        now().saturating_sub(self.observer.began)
    }

    /// The frames of call stacks by number, as far as they are known now.
    pub fn frames(&mut self) -> &[Vec<Frame>] {
        self.observer.resolve();
        &self.observer.frames
    }

    /// Waits for accesses, at most for the time `at_most`. Passes those that are complete to
    /// `each`, in order of time.
    pub fn step(&mut self, at_most: Duration, each: &mut dyn FnMut(Hit)) {
        /// Delay before a read of the rings. While values follow from the code, accesses can wait.
        const REST: Duration = Duration::from_millis(2);
        let MemoryWatch { session, observer, .. } = self;
        if !observer.needs_reading {
            std::thread::sleep(REST.min(at_most));
        }
        session.wait(at_most);
        observer.hold();
        session.drain(&mut |record| observer.note(&record));
        observer.settle(Some(session.handed_on()), each);
        observer.resolve();
    }

    /// Ends the watch, and passes on the remaining accesses.
    pub fn finish(&mut self, each: &mut dyn FnMut(Hit)) {
        let MemoryWatch { session, observer, .. } = self;
        // If stopping fails, further events are discarded.
        let _ = session.disable();
        observer.hold();
        session.finish(&mut |record| observer.note(&record));
        observer.settle(None, each);
        observer.explain(None);
    }
}

impl Observer {
    fn new(pid: u32, start: u64, length: usize, reads: bool, limit: MemoryLimit) -> Observer {
        Observer {
            spaces: Spaces::default(),
            stacks: RecordedStacks::within(limit.part(STACKS)),
            unwinder: Unwinder::within(limit.bytes() / 4),
            code: Codes::default(),
            symbols: Symbols::default(),
            frames: Vec::new(),
            room: limit.part(FRAMES),
            numbered: 0,
            pid,
            start,
            length,
            reads,
            shared: false,
            copies: None,
            copied: HashMap::new(),
            began: 0,
            last: None,
            surprise: None,
            pending: VecDeque::new(),
            held: VecDeque::new(),
            codes: HashMap::new(),
            returns: HashMap::new(),
            names: HashMap::new(),
            strangers: HashSet::new(),
            functions: None,
            needs_reading: true,
            told: Hits::default(),
        }
    }

    /// Finds the functions of new call stacks, preferably while the process runs: its files may be
    /// reachable only through the process.
    fn resolve(&mut self) {
        let Observer { stacks, symbols, frames, .. } = self;
        for places in stacks.places().iter().skip(frames.len()) {
            let stack: Vec<Frame> =
                places.iter().flat_map(|place| symbols.frames(place).to_vec()).collect();
            frames.push(stack);
        }
    }

    /// Stores the present content of the memory.
    fn hold(&mut self) {
        let from = now();
        if let Ok(bytes) = read(self.pid, self.start, self.length) {
            self.held.push_back(ContentBefore { from, to: now(), bytes });
        }
    }

    fn note(&mut self, record: &PerfRecord<'_>) {
        self.spaces.note(record);
        match *record {
            PerfRecord::Sample(sample) => self.hit(&sample),
            PerfRecord::Named { pid, exec: true, .. } if pid == self.pid => {
                self.told.executed = true
            }
            PerfRecord::Named { pid, exec: true, .. } => {
                self.strangers.insert(pid);
            }
            PerfRecord::Named { tid, name, .. } => {
                self.names.insert(tid, Name::new(name));
            }
            // The TID may be used again by a thread with another name.
            PerfRecord::Ended { tid, .. } => {
                self.names.remove(&tid);
            }
            _ => {}
        }
    }

    /// Handles a sample.
    fn hit(&mut self, sample: &PerfSample<'_>) {
        if self.told.executed || self.strangers.contains(&sample.pid) {
            return;
        }
        if sample.pid != self.pid && !self.shared {
            self.told.in_copies += 1;
            return;
        }
        if self.copies == Some(sample.which) {
            // The sample of this copy follows.
            let bytes = sample.raw.get(..self.length).map(<[u8]>::to_vec);
            self.copied.extend(bytes.map(|bytes| (sample.tid, bytes)));
            return;
        }
        let found = self.copied.remove(&sample.tid);
        // The flags are the last requested register. In the kernel they are the kernel's own.
        let flags =
            sample.registers_there().last().filter(|_| FLAGS != 0 && !sample.is_in_kernel());
        let registers =
            KnownRegisters::from_sample(sample.registers()).map(|it| it.with_flags(flags));
        if self.is_known(sample, registers, found.as_deref()) {
            return;
        }
        self.needs_reading = found.is_none();
        let (start, length) = (self.start, self.length);
        let stack_pointer = registers.map_or(u64::MAX, |it| it.stack_pointer());
        let copied = copied_with_stack(sample, stack_pointer, start, length);
        let mut addresses = std::mem::take(&mut self.callers(sample, stack_pointer));
        let mut kernel = None;
        let mut access = AccessInstruction::default();
        if sample.is_in_kernel() {
            kernel = Some(self.in_kernel(sample));
        } else if let (Some(registers), Some(place)) = (registers, addresses.first().copied()) {
            let before = self.before(sample.pid, place);
            access = before.access(&registers, start, length);
            if access.is_call {
                addresses.remove(0);
            }
        }
        // The address reported for an access is after the instruction: like a return address, it is
        // decremented by one byte.
        if let Some(first) = addresses.first_mut().filter(|_| !access.goes_on) {
            *first = first.saturating_sub(1);
        }
        let stack = self.number_stack(sample.pid, addresses);
        let PerfSample { time, pid, tid, ip, which, .. } = *sample;
        let (which, thread) = (1 << which, self.thread(pid, tid));
        self.pending.push_back(PendingAccess {
            time,
            until: time,
            pid,
            tid,
            ip,
            left: left(sample),
            which,
            registers,
            effect: access.effect,
            copied,
            found,
            instruction: access.text,
            kernel,
            stack,
            thread,
        });
    }

    /// Returns the number of a call stack, or [`StackId::OTHER`] once the memory for stacks is used
    /// up.
    fn number_stack(&mut self, pid: u32, addresses: Vec<u64>) -> StackId {
        let stack = match self.room {
            0 => StackId::OTHER,
            _ => self.stacks.number(&self.spaces, pid, addresses.into_iter()),
        };
        self.told.other_stacks += u64::from(stack == StackId::OTHER);
        if let Some(places) = self.stacks.places().get(stack.index())
            && stack.index() >= self.numbered
        {
            self.numbered = stack.index() + 1;
            self.room = self.room.saturating_sub(places.len() * FRAME);
        }
        stack
    }

    /// True if the access was reported before. Then another breakpoint has reported it with
    /// otherwise equal data, or the sample continues a copy by the kernel, whose remaining count
    /// decreases.
    fn is_known(
        &mut self,
        sample: &PerfSample<'_>,
        registers: Option<KnownRegisters>,
        found: Option<&[u8]>,
    ) -> bool {
        let bit = 1 << sample.which;
        let left = left(sample);
        let recent = self.pending.iter_mut().rev();
        let mut recent = recent.take_while(|it| sample.time - it.until < TOGETHER);
        let Some(it) = recent.find(|it| it.tid == sample.tid) else { return false };
        // The event of the last piece of a copy has the address after the instruction. The events
        // of the other pieces have the address of the instruction.
        let goes_on = left.zip(it.left).is_some_and(|(left, before)| left < before);
        let is_twin = it.ip == sample.ip && left == it.left && it.which & bit == 0;
        if it.registers != registers || !(is_twin || goes_on) {
            return false;
        }
        it.which |= bit;
        (it.until, it.left) = (sample.time, left);
        // The copy of an earlier event is not the final value.
        it.copied = None;
        it.found = found.map(<[u8]>::to_vec);
        true
    }

    /// Instruction pointer and return addresses: by unwind tables as far as the stack copy reaches,
    /// from there on by frame pointers.
    fn callers(&mut self, sample: &PerfSample<'_>, stack_pointer: u64) -> Vec<u64> {
        let Observer { unwinder, spaces, .. } = self;
        let mut callers = unwinder.unwind(spaces, sample).to_vec();
        if callers.len() < 2 {
            return self.by_frames(sample, stack_pointer);
        }
        let last = callers.last().copied();
        callers.extend(sample.callers().skip_while(|it| Some(*it) != last).skip(1));
        callers
    }

    /// Instruction pointer and return addresses, including the caller of a function without a
    /// frame, which the chain of frame pointers skips. An address that is not a return address ends
    /// the stack: code without frame pointers leaves other values there.
    fn by_frames(&mut self, sample: &PerfSample<'_>, stack_pointer: u64) -> Vec<u64> {
        let mut addresses = sample.callers();
        let Some(first) = addresses.next() else { return Vec::new() };
        let (pid, rest) = (sample.pid, addresses.collect::<Vec<u64>>());
        let mut callers = vec![first];
        let before = self.before(pid, first);
        let words = sample.stack.as_chunks::<8>().0;
        let word = |depth: u64| words.get(usize::try_from(depth / 8).ok()?);
        let depth = if before.begins { Some(0) } else { before.code.return_address };
        let hidden = depth.and_then(word).map(|word| u64::from_ne_bytes(*word));
        if let Some(hidden) =
            hidden.filter(|it| stack_pointer != u64::MAX && rest.first() != Some(it))
            && self.is_returned_to(pid, hidden)
        {
            callers.push(hidden);
        }
        for address in rest {
            if !self.is_returned_to(pid, address) {
                break;
            }
            callers.push(address);
        }
        callers
    }

    /// True if the address is a possible return address.
    fn is_returned_to(&mut self, pid: u32, address: u64) -> bool {
        /// Maximum number of bytes of a call instruction.
        const MAX_CALL_BYTES: u64 = 7;
        let key = (self.spaces.program(pid), address);
        let Observer { spaces, code, returns, .. } = self;
        if returns.len() > ADDRESSES {
            returns.clear();
        }
        returns
            .entry(key)
            .or_insert_with(|| {
                let region = spaces.find(pid, address)?;
                // Code in no file has no symbols.
                if !region.is_file() {
                    return region.name.as_bytes().is_empty().then_some(None);
                }
                ends_with_call(&code.before(spaces, pid, address, MAX_CALL_BYTES)?, address)
            })
            .is_some()
    }

    /// The code before an address.
    fn before(&mut self, pid: u32, address: u64) -> Rc<InstructionBefore> {
        let key = (self.spaces.program(pid), address);
        if let Some(known) = self.codes.get(&key) {
            return Rc::clone(known);
        }
        let bytes = self.code.of_function(&self.spaces, pid, address);
        let begins = bytes.as_ref().is_some_and(Vec::is_empty);
        let code =
            bytes.map_or_else(CodeBefore::default, |bytes| CodeBefore::read(&bytes, address));
        let text = code.text().map(Rc::from);
        let repeats = self.repeating(pid, address);
        let before = Rc::new(InstructionBefore { code, text, begins, repeats });
        if self.codes.len() > ADDRESSES {
            self.codes.clear();
        }
        self.codes.insert(key, Rc::clone(&before));
        before
    }

    fn repeating(&mut self, pid: u32, address: u64) -> Option<(CodeBefore, Option<Rc<str>>)> {
        /// Maximum number of bytes of a repeated string instruction: `rep movsq` has 3 bytes, and 4
        /// with a prefix for the size of addresses.
        const MAX_INSTRUCTION_BYTES: u64 = 4;
        let end = address.checked_add(MAX_INSTRUCTION_BYTES)?;
        let bytes = self.code.before(&self.spaces, pid, end, MAX_INSTRUCTION_BYTES)?;
        let code = CodeBefore::repeating(&bytes, address)?;
        let text = code.text().map(Rc::from);
        Some((code, text))
    }

    fn in_kernel(&mut self, sample: &PerfSample<'_>) -> InKernel {
        let functions =
            self.functions.get_or_insert_with(|| KernelFunctions::read().unwrap_or_default());
        let mut names = sample.kernel_callers().filter_map(|address| functions.find(address));
        InKernel {
            function: functions.find(sample.ip).map(str::to_owned),
            call: names.find_map(system_call).map(str::to_owned),
        }
    }

    /// Passes on the accesses whose values are final: all if `handed_on` is `None`, else those that
    /// are old enough at that time.
    fn settle(&mut self, handed_on: Option<u64>, each: &mut dyn FnMut(Hit)) {
        while let Some(front) = self.pending.front() {
            let (time, next) = (front.until, self.pending.get(1).map(|it| it.time));
            let behind = next.or(handed_on).unwrap_or(u64::MAX);
            // Another breakpoint may still report the same access.
            if handed_on.is_some_and(|until| time + TOGETHER > until) {
                break;
            }
            let margin = if next.is_some() { MARGIN } else { 0 };
            let fits =
                |held: &&ContentBefore| held.from > time && held.to.saturating_add(margin) < behind;
            let first = self.held.iter().find(fits).map(|held| held.bytes.clone());
            let last = self.held.iter().rev().find(fits).map(|held| held.bytes.clone());
            if next.is_none() && handed_on.is_some() && first.is_none() {
                break;
            }
            // The value found may be one that another thread stored at the same time.
            let mut soon = self.pending.iter().take_while(|it| it.time < time + MARGIN);
            let is_alone = soon.all(|it| it.tid == front.tid);
            let Some(mut pending) = self.pending.pop_front() else { break };
            pending.found = pending.found.filter(|_| is_alone);
            let hit = self.make(pending, first, last);
            self.held.retain(|held| held.from > time);
            each(hit);
        }
        // Handles and drops reads that are older than any access that can still arrive.
        if let (Some(until), true) = (handed_on, self.pending.is_empty()) {
            let is_old = |held: &ContentBefore| held.to.saturating_add(MARGIN) < until;
            while self.held.front().is_some_and(is_old)
                && let Some(held) = self.held.pop_front()
            {
                self.see(held.bytes);
            }
            self.needs_reading = true;
        }
    }

    /// Handles content of the memory that no pending access explains.
    fn see(&mut self, bytes: Vec<u8>) {
        if self.last.as_ref().is_some_and(|last| *last != bytes) && self.surprise.is_none() {
            self.surprise = self.last.take();
        }
        self.last = Some(bytes);
    }

    /// Explains a surprise by the effect of the next access. If the next access stores exactly the
    /// value that was found in memory, the memory was read after this store, but before the kernel
    /// reported the store. Then the value that the last access had left is restored. Otherwise the
    /// change of the memory was unseen.
    fn explain(&mut self, effect: Option<StoreEffect>) {
        let Some(before) = self.surprise.take() else { return };
        let (start, length) = (self.start, self.length);
        let after = effect.and_then(|effect| effect.after(start, Some(before.as_slice()), length));
        match after {
            Some((after, _)) if Some(&after) == self.last.as_ref() => self.last = Some(before),
            _ => self.told.unseen += 1,
        }
    }

    /// Returns an access with its values. If they are known, `first` is the content of the memory
    /// after this access, and `last` is its content before the next access.
    fn make(&mut self, it: PendingAccess, first: Option<Vec<u8>>, last: Option<Vec<u8>>) -> Hit {
        self.explain(it.effect.filter(|effect| effect.access != WatchAccess::Read));
        let mut old = self.last.take();
        let access = match (it.effect, self.reads) {
            (Some(effect), _) => effect.access,
            (None, false) => WatchAccess::Write,
            (None, true) => WatchAccess::Either,
        };
        let after = it.effect.and_then(|it| it.after(self.start, old.as_deref(), self.length));
        let (value, known) = match (access, after, it.copied, first) {
            (WatchAccess::Read, loaded, ..) => {
                (loaded.map(|it| it.0).or_else(|| old.clone()).or(it.found), ValueOrigin::Unchanged)
            }
            (_, Some((value, false)), ..) => (Some(value), ValueOrigin::Stored),
            (_, _, Some(value), _) => (Some(value), ValueOrigin::Copied),
            (_, Some((value, true)), ..) => (Some(value), ValueOrigin::Computed),
            (_, None, None, first) => match (it.found, first) {
                (Some(value), _) => (Some(value), ValueOrigin::Copied),
                (None, Some(value)) => (Some(value), ValueOrigin::Read),
                (None, None) => (None, ValueOrigin::Not),
            },
        };
        if access == WatchAccess::Read {
            old.clone_from(&value);
        }
        self.needs_reading = matches!(known, ValueOrigin::Read | ValueOrigin::Not);
        self.last.clone_from(&value);
        if let Some(last) = last {
            self.see(last);
        }
        let unknown = || Absent::Ambiguous("a look at the memory before the next access".into());
        let known = if value.is_none() { ValueOrigin::Not } else { known };
        Hit {
            time_ns: it.time.saturating_sub(self.began),
            pid: Pid(it.pid),
            tid: Pid(it.tid),
            thread: it.thread,
            access,
            old: old.ok_or_else(unknown),
            value: value.ok_or_else(unknown),
            known,
            instruction: it.instruction.map(|text| text.to_string()),
            kernel: it.kernel,
            stack: it.stack.0,
        }
    }

    /// The name of a thread, which may have ended.
    fn thread(&mut self, pid: u32, tid: u32) -> Name {
        if let Some(name) = self.names.get(&tid) {
            return name.clone();
        }
        // A new thread has the name of its creator at first.
        let name = name(pid, tid).or_else(|| self.names.get(&pid).cloned()).unwrap_or_default();
        // The records of some ended threads may be lost.
        if self.names.len() > ADDRESSES {
            self.names.clear();
        }
        self.names.insert(tid, name.clone());
        name
    }
}

/// The system call whose function in the kernel has that name.
fn system_call(function: &str) -> Option<&str> {
    const PREFIXES: &[&str] =
        &["__x64_sys_", "__ia32_sys_", "__arm64_sys_", "__riscv_sys_", "__se_sys_", "ksys_"];
    PREFIXES.iter().find_map(|prefix| function.strip_prefix(prefix))
}

/// For an access by the kernel: number of bytes still to copy, if the access is a copy.
fn left(sample: &PerfSample<'_>) -> Option<u64> {
    sample.registers_there().next().filter(|_| sample.is_in_kernel())
}

/// The name of a thread that runs.
fn name(pid: u32, tid: u32) -> Option<Name> {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(Name::new(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// Content of some bytes of a process.
fn read(pid: u32, start: u64, length: usize) -> Reading<Vec<u8>> {
    let mut bytes = vec![0; length];
    let end = start.saturating_add(length as u64);
    match remote::read(pid, std::slice::from_ref(&(start..end)), &mut bytes) {
        Ok(read) if read == length => Ok(bytes),
        Ok(_) => Err(Absent::NotSupported("no memory can be read there".into())),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(Absent::Vanished),
        Err(_) => Err(Absent::NotPermitted("the process's owner, or CAP_SYS_PTRACE".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_store::StoreChange;

    const MS: u64 = 1_000_000;

    /// An observer of one byte that held 1.
    fn observer() -> Observer {
        Observer { last: Some(vec![1]), ..Observer::new(7, 0x1000, 1, false, MemoryLimit::DEFAULT) }
    }

    /// An access at a time in milliseconds, with its stored value if it is known.
    fn access(at: u64, stores: Option<u8>) -> PendingAccess {
        let change = stores.map(|value| (0x1000, 1, StoreChange::Set(value.into())));
        PendingAccess {
            time: at * MS,
            until: at * MS,
            pid: 7,
            tid: 7,
            ip: 0,
            left: None,
            which: 1,
            registers: None,
            effect: change
                .map(|change| StoreEffect { access: WatchAccess::Write, change: Some(change) }),
            copied: None,
            found: None,
            instruction: None,
            kernel: None,
            stack: StackId(0),
            thread: Name::default(),
        }
    }

    impl PendingAccess {
        fn at(self, time: u64) -> PendingAccess {
            PendingAccess { time, until: time, ..self }
        }
    }

    fn held(at: u64, value: u8) -> ContentBefore {
        ContentBefore { from: at * MS, to: at * MS, bytes: vec![value] }
    }

    /// Reported accesses and reads: old and new value of each if known, and the number of unseen
    /// changes.
    fn told(
        accesses: Vec<PendingAccess>,
        looks: Vec<ContentBefore>,
    ) -> (Vec<[Option<u8>; 2]>, u64) {
        let mut observer = observer();
        observer.pending.extend(accesses);
        observer.held.extend(looks);
        let mut values = Vec::new();
        observer.settle(None, &mut |hit| {
            values.push([hit.old, hit.value].map(|value| value.ok().map(|bytes| bytes[0])));
        });
        observer.explain(None);
        (values, observer.told.unseen)
    }

    #[test]
    fn a_value_read_belongs_to_the_access_before_only() {
        let accesses = vec![access(10, None), access(20, None), access(30, None)];
        let looks = vec![held(5, 1), held(25, 7), held(35, 8)];
        let expected = vec![[Some(1), None], [None, Some(7)], [Some(7), Some(8)]];
        assert_eq!(told(accesses, looks), (expected, 0));
    }

    #[test]
    fn a_stored_value_is_reported_whatever_was_read() {
        let accesses = vec![access(10, Some(5)), access(20, Some(6))];
        let expected = vec![[Some(1), Some(5)], [Some(5), Some(6)]];
        assert_eq!(told(accesses, vec![]), (expected.clone(), 0));
        // A store may be seen before its event.
        let accesses = vec![access(10, Some(5)), access(20, Some(6))];
        assert_eq!(told(accesses, vec![held(15, 6)]), (expected, 0));
    }

    #[test]
    fn a_value_found_at_once_is_reported_unless_another_thread_was_there() {
        let found = |at: u64, tid, value| {
            PendingAccess { found: Some(vec![value]), tid, ..access(0, None) }.at(at)
        };
        // A thread makes its next access only after its previous access was reported.
        let expected = vec![[Some(1), Some(5)], [Some(5), Some(6)]];
        assert_eq!(told(vec![found(MS, 7, 5), found(MS + 10_000, 7, 6)], vec![]), (expected, 0));
        let accesses = vec![found(MS, 7, 5), found(MS + 10_000, 8, 6), found(9 * MS, 7, 7)];
        let expected = vec![[Some(1), None], [None, Some(6)], [Some(6), Some(7)]];
        assert_eq!(told(accesses, vec![]), (expected, 0));
        // A value that follows from the instruction takes precedence over a value that was found in
        // memory.
        let stored = PendingAccess { found: Some(vec![9]), ..access(1, Some(5)) };
        assert_eq!(told(vec![stored], vec![]), (vec![[Some(1), Some(5)]], 0));
    }

    #[test]
    fn a_value_that_no_access_stored_counts_as_unseen() {
        let accesses = vec![access(10, Some(5)), access(20, Some(6))];
        let expected = vec![[Some(1), Some(5)], [Some(9), Some(6)]];
        assert_eq!(told(accesses, vec![held(15, 9)]), (expected, 1));
        let expected = vec![[Some(1), Some(5)]];
        assert_eq!(told(vec![access(10, Some(5))], vec![held(15, 9)]), (expected, 1));
    }

    #[test]
    fn aligned_ranges_need_few_breakpoints_and_others_are_refused() {
        assert_eq!(pieces(0x1000, 8).unwrap(), [(0x1000, 8)]);
        assert_eq!(pieces(0x1001, 1).unwrap(), [(0x1001, 1)]);
        assert_eq!(pieces(0x1000, 32).unwrap().len(), 4);
        assert_eq!(pieces(0x1004, 12).unwrap(), [(0x1004, 4), (0x1008, 8)]);
        for (start, length) in [(0x1004, 8), (0x1001, 2), (0x1002, 4), (0x1000, 33), (0x1000, 0)] {
            assert!(pieces(start, length).is_err(), "{start:#x} {length}");
        }
        assert!(pieces(u64::MAX - 1, 4).is_err());
    }
}
