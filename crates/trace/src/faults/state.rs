//! State of a recording of faults: pending faults, and sums of the completed ones.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use pagewise_model::bounds::{Folded, MemoryLimit, OTHER_MAPPINGS, OTHER_THREADS};
use pagewise_model::faults::{
    FaultHeap, FaultKind, FaultMapping, FaultRow, FaultThread, Owner, TimeLine,
};
use pagewise_model::histogram::TimeHistogram;
use pagewise_model::mapping::Quadrant;
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Name, Pid};
use pagewise_proc::ProcRoot;

use crate::faults::HeapBlocks;
use crate::faults::calls::join;
use crate::faults::fold::{self, FaultLimits};
use crate::faults::kinds::{ErrorCode, FaultFacts, kind};
use crate::faults::mappings::Mappings;
use crate::faults::moves::Moves;
use crate::faults::owners::Owners;
use crate::faults::plan::FaultRole;
use crate::faults::time_line::FaultTimes;
use crate::heaviest;
use crate::record::{PerfRecord, PerfSample};
use crate::spaces::{REGION, Spaces};
use crate::stacks::{RecordedStacks, StackId};
use crate::symbolized::symbolize;
use crate::unwind::{Unwinder, stack_pointer};

/// Divisor of the recording time: mappings are read again for at most 1/`REREAD` of that time.
const REREAD: u32 = 50;

/// A fault that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFault {
    pid: u32,
    time: u64,
    address: u64,
    /// Instruction pointer in user mode. For a fault in a system call, this is the instruction of
    /// the call.
    user_ip: Option<u64>,
    code: ErrorCode,
    by_kernel: bool,
    pub(super) stack: StackId,
    pub(super) memory: FaultMemory,
    /// Stack pointer of the program.
    pointer: Option<u64>,
    owner: Owner,
}

/// Memory in which a fault occurred.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultMemory {
    pub(super) mapping: u32,
    quadrant: Option<Quadrant>,
    is_huge: bool,
    on_stack: bool,
}

/// Common properties of faults that are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FaultKey {
    pub(super) stack: StackId,
    pub(super) mapping: u32,
    pub(super) thread: u32,
    pub(super) kind: FaultKind,
    pub(super) by_kernel: bool,
    pub(super) on_stack: bool,
    pub(super) owner: Owner,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultSum {
    pub(super) count: u64,
    took: Option<u64>,
}

impl FaultSum {
    pub(super) fn add(&mut self, other: FaultSum) {
        self.count += other.count;
        if let Some(took) = other.took {
            self.took = Some(self.took.unwrap_or(0).saturating_add(took));
        }
    }
}

/// State of the recording.
#[derive(Debug)]
pub(super) struct FaultState {
    root: ProcRoot,
    roles: Vec<FaultRole>,
    every: u64,
    latency: bool,
    spaces: Spaces,
    stacks: RecordedStacks,
    unwinder: Unwinder,
    /// Buffer for a call stack.
    calls: Vec<u64>,
    mappings: Mappings,
    moves: Moves,
    /// Source of the owners of memory.
    blocks: Option<Box<dyn HeapBlocks>>,
    /// Number of faults whose call stacks end too early.
    cut: u64,
    pending: HashMap<u32, PendingFault>,
    threads: Vec<FaultThread>,
    /// Indices of the living threads in `threads`, by TID.
    living: HashMap<u32, u32>,
    rows: HashMap<FaultKey, FaultSum>,
    latencies: [TimeHistogram; FaultKind::ALL.len()],
    begin: u64,
    times: FaultTimes,
    seen: u64,
    since: Instant,
    reread: Duration,
    limit: MemoryLimit,
    limits: FaultLimits,
    folded: Folded,
}

/// Result of the recording.
#[derive(Debug)]
pub(super) struct FaultsFound {
    pub(super) frames: Vec<Frame>,
    pub(super) stacks: Vec<Vec<u32>>,
    pub(super) mappings: Vec<FaultMapping>,
    pub(super) threads: Vec<FaultThread>,
    pub(super) heap: Option<FaultHeap>,
    pub(super) lacks: Vec<Absent>,
    pub(super) rows: Vec<FaultRow>,
    pub(super) latencies: Vec<(FaultKind, TimeHistogram)>,
    pub(super) time_line: TimeLine,
    pub(super) folded: Folded,
}

impl FaultState {
    pub(super) fn new(
        roles: Vec<FaultRole>,
        every: u64,
        latency: bool,
        limit: MemoryLimit,
    ) -> FaultState {
        let mut spaces = Spaces::within(limit.part(16 * REGION));
        spaces.know_tmpfs();
        FaultState {
            root: ProcRoot::live(),
            roles,
            every,
            latency,
            spaces,
            stacks: RecordedStacks::within(limit.part(5)),
            unwinder: Unwinder::within(limit.bytes() / 4),
            calls: Vec::new(),
            mappings: Mappings::new(),
            moves: Moves::default(),
            blocks: None,
            cut: 0,
            pending: HashMap::new(),
            threads: Vec::new(),
            living: HashMap::new(),
            rows: HashMap::new(),
            latencies: Default::default(),
            begin: 0,
            times: FaultTimes::from(0),
            seen: 0,
            since: Instant::now(),
            reread: Duration::ZERO,
            limit,
            limits: FaultLimits::for_memory(limit),
            folded: Folded { memory_limit: limit.bytes(), ..Folded::default() },
        }
    }

    pub(super) fn begin(&mut self, now: u64) {
        self.begin = now;
        self.times = FaultTimes::from(now);
    }

    pub(super) fn ask(&mut self, blocks: Box<dyn HeapBlocks>) {
        self.blocks = Some(blocks);
    }

    /// Reads new data of the blocks, before further records are noted. All records up to `asked`
    /// have been noted.
    pub(super) fn drain(&mut self, asked: u64) {
        if let Some(blocks) = &mut self.blocks {
            blocks.drain(asked);
        }
    }

    fn owner(&mut self, sample: &PerfSample<'_>, address: u64) -> Owner {
        let blocks = self.blocks.as_mut();
        blocks.map_or(Owner::Unrecorded, |it| it.find(sample.pid, sample.time, address))
    }

    pub(super) fn begin_ns(&self) -> u64 {
        self.begin
    }

    /// Number of faults with incomplete call stacks.
    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    /// Number of faults in user mode that began.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Reads the mappings and thread names of a running process.
    pub(super) fn know(&mut self, pid: u32) {
        self.spaces.read(&self.root, pid);
        let Ok(folder) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        let names = folder.flatten().map(|entry| entry.file_name());
        let threads: Vec<u32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
        for tid in threads {
            let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
            let thread = self.thread(pid, tid);
            self.threads[thread as usize].name = Name::new(name.trim_ascii_end());
        }
    }

    pub(super) fn note(&mut self, record: &PerfRecord<'_>) {
        match record {
            PerfRecord::Sample(sample) => {
                self.sample(sample);
                return self.make_room();
            }
            PerfRecord::Named { pid, tid, name, exec } => {
                if *exec {
                    self.end(*tid, None);
                    if let Some(blocks) = &mut self.blocks {
                        blocks.replaced(*pid);
                    }
                }
                let thread = self.thread(*pid, *tid);
                self.threads[thread as usize].name = Name::new(name);
            }
            PerfRecord::Forked { pid, tid, parent } => {
                self.living.remove(tid);
                // A new thread has the name of its parent until it is renamed.
                let name =
                    self.living.get(parent).map(|at| self.threads[*at as usize].name.clone());
                let thread = self.thread(*pid, *tid);
                self.threads[thread as usize].name = name.unwrap_or_default();
            }
            PerfRecord::Ended { tid, .. } => {
                self.end(*tid, None);
                self.moves.forget(*tid);
                self.living.remove(tid);
            }
            _ => {}
        }
        self.spaces.note(record);
        self.make_room();
    }

    /// Merges entries of the tables that exceed their limits.
    fn make_room(&mut self) {
        let FaultLimits { rows: most_rows, threads, mappings, pending } = self.limits;
        if self.pending.len() > pending {
            // The records that end these faults were lost.
            let open: Vec<u32> = self.pending.keys().copied().collect();
            open.into_iter().for_each(|tid| self.end(tid, None));
        }
        let is_full = self.stacks.is_full();
        let FaultState { rows, limits, .. } = self;
        let are_too_many = rows.len() > most_rows;
        if self.threads.len() > threads {
            fold::threads(rows, &mut self.threads, &mut self.living, limits.threads / 2);
        }
        if self.mappings.len() > mappings {
            let half = limits.mappings / 2;
            fold::mappings(rows, &mut self.mappings, &mut self.pending, half);
        }
        if are_too_many {
            // Ended threads and mappings are numerous, and one call stack occurs in many of them,
            // so they are merged before stacks.
            fold::threads(rows, &mut self.threads, &mut self.living, limits.threads / 32);
            if rows.len() > most_rows / 2 {
                let few = limits.mappings / 16;
                fold::mappings(rows, &mut self.mappings, &mut self.pending, few);
            }
            fold::rows(rows, most_rows / 2, &mut self.folded);
        }
        if is_full {
            let half = self.stacks.room() / 2;
            fold::stacks(rows, &mut self.stacks, &self.pending, half, &mut self.folded);
        }
    }

    fn sample(&mut self, sample: &PerfSample<'_>) {
        match self.roles.get(sample.which) {
            Some(FaultRole::Begin { by_kernel, address, code }) => {
                let (by_kernel, address, code) =
                    (*by_kernel, address.read(sample.raw), code.read(sample.raw));
                self.seen += u64::from(!by_kernel);
                self.end(sample.tid, None);
                let (Some(address), Some(code)) = (address, code) else { return };
                // Addresses in the upper half are the kernel's own.
                if address >> 63 == 0 {
                    self.pend(sample, address, ErrorCode(code), by_kernel);
                }
            }
            Some(FaultRole::End { major }) => {
                let pending = self.pending.get(&sample.tid);
                if pending.is_some_and(|pending| pending.address == sample.address) {
                    self.end(sample.tid, Some((sample.time, *major)));
                }
            }
            Some(FaultRole::HugePage) => {
                let ip = sample.callers().next();
                if let Some(pending) = self.pending.get_mut(&sample.tid) {
                    pending.memory.is_huge |= ip.is_some() && pending.user_ip == ip;
                }
            }
            Some(FaultRole::Moves(fields)) => self.moves.ask(fields, sample),
            Some(FaultRole::Moved(fields)) => self.moves.answer(fields, sample, &mut self.spaces),
            Some(FaultRole::Whole { major }) => self.whole(sample, *major),
            None => {}
        }
    }

    /// The memory at an address, in a fault of a thread with this stack pointer.
    fn memory(&mut self, pid: u32, address: u64, pointer: Option<u64>) -> FaultMemory {
        let FaultState { spaces, mappings, .. } = self;
        let region = spaces.find(pid, address);
        let is_huge = region.is_some_and(|region| {
            let name = region.name.as_bytes();
            name.starts_with(b"/anon_hugepage") || name.starts_with(b"/dev/hugepages/")
        });
        let on_stack = region
            .zip(pointer)
            .is_some_and(|(region, pointer)| (region.start..region.end).contains(&pointer));
        let (mapping, quadrant) = mappings.number(pid, spaces.program(pid), region);
        FaultMemory { mapping, quadrant, is_huge, on_stack }
    }

    fn pend(&mut self, sample: &PerfSample<'_>, address: u64, code: ErrorCode, by_kernel: bool) {
        let pointer = stack_pointer(sample);
        let pending = PendingFault {
            pid: sample.pid,
            time: sample.time,
            address,
            user_ip: sample.callers().next(),
            code,
            by_kernel,
            stack: self.stack(sample, by_kernel),
            memory: self.memory(sample.pid, address, pointer),
            pointer,
            owner: self.owner(sample, address),
        };
        self.pending.insert(sample.tid, pending);
    }

    /// Returns the number of the call stack. In `execve`, the caller is not mapped any more, so the
    /// number is that of the empty stack.
    fn stack(&mut self, sample: &PerfSample<'_>, by_kernel: bool) -> StackId {
        let FaultState { spaces, stacks, unwinder, calls, .. } = self;
        let from = sample.callers().next();
        let is_mapped = |address| spaces.find(sample.pid, address).is_some();
        if by_kernel && !from.is_some_and(is_mapped) {
            return stacks.number(spaces, sample.pid, std::iter::empty());
        }
        let known = unwinder.cut();
        join(unwinder.unwind(spaces, sample), sample.callers(), calls);
        // Frame pointers may reach the outermost frame even if the tables do not.
        let is_whole = unwinder.cut() == known
            || calls.last().is_some_and(|last| unwinder.is_outermost(spaces, sample.pid, *last));
        self.cut += if is_whole { 0 } else { self.every };
        stacks.number(spaces, sample.pid, calls.iter().copied())
    }

    /// Ends the fault of a thread. If the end of the fault was reported, the second argument is its
    /// time, and true for a major fault.
    fn end(&mut self, tid: u32, told: Option<(u64, bool)>) {
        let Some(mut pending) = self.pending.remove(&tid) else { return };
        if told.is_none() && pending.by_kernel {
            return;
        }
        if pending.memory.quadrant.is_none() {
            // The fault itself may have extended the stack mapping.
            pending.memory = self.memory_again(pending.pid, pending.address, pending.pointer);
        }
        let FaultMemory { mapping, quadrant, is_huge, on_stack } = pending.memory;
        let facts = FaultFacts {
            code: Some(pending.code),
            // If faults are timed, each fault that succeeds has an end event. A fault without one
            // has failed, and gets no quadrant.
            quadrant: quadrant.filter(|_| told.is_some() || !self.latency),
            major: told.is_some_and(|(_, major)| major),
            huge: is_huge,
        };
        let took = told.filter(|_| self.latency).map(|(end, _)| end.saturating_sub(pending.time));
        let key = FaultKey {
            stack: pending.stack,
            mapping,
            thread: self.thread(pending.pid, tid),
            kind: kind(&facts),
            by_kernel: pending.by_kernel,
            on_stack,
            owner: pending.owner,
        };
        self.add(key, pending.time, self.every, took);
    }

    fn memory_again(&mut self, pid: u32, address: u64, pointer: Option<u64>) -> FaultMemory {
        let may = self.reread * REREAD <= self.since.elapsed();
        if self.spaces.find(pid, address).is_none() && may {
            let begin = Instant::now();
            self.spaces.fill(&self.root, pid);
            self.reread += begin.elapsed();
        }
        self.memory(pid, address, pointer)
    }

    fn whole(&mut self, sample: &PerfSample<'_>, major: bool) {
        let pointer = stack_pointer(sample);
        let mut memory = self.memory(sample.pid, sample.address, pointer);
        if memory.quadrant.is_none() {
            memory = self.memory_again(sample.pid, sample.address, pointer);
        }
        let FaultMemory { mapping, quadrant, is_huge: huge, on_stack } = memory;
        // In a system call, the instruction pointer of the sample is in the kernel.
        let by_kernel = sample.ip >> 63 != 0;
        let stack = self.stack(sample, by_kernel);
        let kind = kind(&FaultFacts { code: None, quadrant, major, huge });
        let thread = self.thread(sample.pid, sample.tid);
        let owner = self.owner(sample, sample.address);
        let key = FaultKey { stack, mapping, thread, kind, by_kernel, on_stack, owner };
        self.add(key, sample.time, if major { 1 } else { self.every }, None);
    }

    fn add(&mut self, key: FaultKey, time: u64, count: u64, took: Option<u64>) {
        self.rows.entry(key).or_default().add(FaultSum { count, took });
        self.times.note(time, key.kind, count);
        if let Some(took) = took {
            self.latencies[key.kind.index()].note(took);
        }
    }

    fn thread(&mut self, pid: u32, tid: u32) -> u32 {
        let FaultState { living, threads, .. } = self;
        *living.entry(tid).or_insert_with(|| {
            threads.push(FaultThread { pid: Pid(pid), tid: Pid(tid), name: Name::default() });
            u32::try_from(threads.len() - 1).unwrap_or(u32::MAX)
        })
    }

    pub(super) fn finish(mut self, took: u64) -> FaultsFound {
        let open: Vec<u32> = self.pending.keys().copied().collect();
        for tid in open {
            self.end(tid, None);
        }
        let FaultState { mut threads, mut rows, times, blocks, mut folded, limit, .. } = self;
        let FaultState { mappings, latencies, stacks, spaces, unwinder, .. } = self;
        folded.forgotten_mappings = spaces.forgotten();
        // Free this memory before the lookup of functions takes some.
        drop((spaces, unwinder));
        let counted = heaviest::sums(rows.iter().map(|(key, sum)| (key.stack, sum.count)));
        let mut symbols = stacks.symbols();
        let symbolized = symbolize(&stacks, &mut symbols, counted, limit, &mut folded);
        drop(stacks);
        let (mut frames, stacks, stack_of) = symbolized;
        let owners = Owners::from_stacks(blocks, &mut frames, &stacks);
        let (mappings, mapping_of) = mappings.finish();
        let others = u32::try_from(threads.len()).unwrap_or(u32::MAX);
        if rows.keys().any(|key| key.thread == fold::OTHER_THREADS) {
            threads.push(FaultThread { pid: Pid(0), tid: Pid(0), name: OTHER_THREADS.into() });
        }
        let mut sums: HashMap<FaultKey, FaultSum> = HashMap::new();
        for (key, sum) in rows.drain() {
            let stack = StackId(stack_of[&key.stack]);
            let is_other = |sum: FaultSum, it| if it { sum.count } else { 0 };
            folded.stack_events += is_other(sum, Some(&stack.0) == stack_of.get(&StackId::OTHER));
            folded.thread_events += is_other(sum, key.thread == fold::OTHER_THREADS);
            let mapping = mapping_of[key.mapping as usize];
            let owner = owners.settled(key.owner, stack.0);
            let is_summed = mappings[mapping as usize].name.as_bytes() == OTHER_MAPPINGS.as_bytes();
            folded.mapping_events += is_other(sum, is_summed);
            let thread = key.thread.min(others);
            let key = FaultKey { stack, mapping, thread, owner, ..key };
            sums.entry(key).or_default().add(sum);
        }
        let row = |(key, sum): (FaultKey, FaultSum)| FaultRow {
            stack: key.stack.0,
            mapping: key.mapping,
            thread: key.thread,
            kind: key.kind,
            by_kernel: key.by_kernel,
            on_stack: key.on_stack,
            owner: key.owner,
            count: sum.count,
            took_ns: sum.took,
        };
        let mut rows: Vec<FaultRow> = sums.into_iter().map(row).collect();
        rows.sort_by_key(|row| {
            let FaultRow {
                stack, mapping, thread, kind, by_kernel, on_stack, owner, count, ..
            } = *row;
            (std::cmp::Reverse(count), stack, mapping, thread, kind, by_kernel, on_stack, owner)
        });
        let (heap, mut lacks) = owners.finish(&mut rows);
        lacks.extend(symbols.lacks());
        let latencies = FaultKind::ALL.into_iter().zip(latencies);
        FaultsFound {
            frames,
            stacks,
            mappings,
            threads,
            heap,
            lacks,
            rows,
            latencies: latencies.filter(|(_, times)| times.count() > 0).collect(),
            time_line: times.finish(took),
            folded,
        }
    }
}
