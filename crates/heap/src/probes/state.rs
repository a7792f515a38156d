//! State of a recording by probes: allocation sites (call stacks that allocate), live blocks, and
//! the peak.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use pagewise_heaplog::recording::{
    LogAddress, LogAmount, LogCallNode, LogCounts, LogKind, LogModule, LogSite, LogSiteCounts,
    LogThread, ROOT,
};
use pagewise_proc::ProcRoot;
use pagewise_trace::{PerfRecord, PerfSample, Spaces, Unwinder};

use crate::tables::NewEntries;

/// Meaning of a function's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbedCall {
    /// Argument N, counted from 0, is the size.
    Size(usize),
    /// The size is the product of the first two arguments.
    Array,
    /// The first argument is the block to free, and the second argument is the new size.
    Resize,
    /// The first argument points to the word for the block's address, and the third argument is the
    /// size.
    Into,
    /// The first argument is the block to free.
    Free,
}

/// Meaning of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeRole {
    Nothing,
    Entry(ProbedCall),
    End,
}

/// State of the probed program.
#[derive(Debug, Default)]
pub(super) struct Probed {
    /// Meaning of each event, by its number.
    pub roles: Vec<ProbeRole>,
    /// Code that passes blocks of a thread's cache to `free`, as offsets in the program's file.
    pub cache_flushes: Vec<Range<u64>>,
}

/// A call that has not returned yet.
#[derive(Clone, Debug)]
struct PendingCall {
    stack: u64,
    call: ProbedCall,
    arguments: [u64; 3],
    /// True if no other counted function made the call.
    is_outer: bool,
    /// Site of the call; `None` if the call is not counted.
    site: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    site: u32,
    size: u64,
    born: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SiteSums {
    counted: LogSiteCounts,
    /// With sampling: the variances of allocated and of live bytes.
    variances: (f64, f64),
    epoch: u64,
}

/// Amount that a block represents.
#[derive(Clone, Copy, Debug)]
struct SampleWeight {
    amount: LogAmount,
    variance: f64,
}

#[derive(Clone, Debug, Default)]
struct OneThread {
    sums: LogThread,
    last: u64,
    pending: Vec<PendingCall>,
}

/// State of the recording of one process.
#[derive(Debug)]
pub(super) struct ProbeState {
    pid: u32,
    probed: Rc<Probed>,
    /// Mean number of bytes between samples; `None` if every call is counted.
    every: Option<u64>,
    random: fastrand::Rng,
    spaces: Spaces,
    unwinder: Unwinder,
    modules: HashMap<(u64, u64), u32>,
    places: HashMap<u64, u32>,
    nodes: HashMap<LogCallNode, u32>,
    by_node: HashMap<u32, u32>,
    by_stack: HashMap<Vec<u64>, u32>,
    stack_words: usize,
    all: InternTables,
    /// Number of entries of each table of `all` that were returned already.
    told: [usize; 4],
    sums: Vec<SiteSums>,
    blocks: HashMap<u64, LiveBlock>,
    threads: HashMap<u32, OneThread>,
    /// Live amount.
    pub(super) live: LogAmount,
    /// Amount of all allocations.
    pub(super) allocated: LogAmount,
    peak: LogAmount,
    peak_at: Option<u64>,
    began: Option<u64>,
    rising: bool,
    epoch: u64,
    unknown_frees: u64,
    cut: u64,
    /// Number of allocations that were not counted, because too many blocks were live.
    dropped: u64,
    sizes: Vec<u64>,
    lifetimes: Vec<u64>,
}

#[derive(Debug, Default)]
struct InternTables {
    modules: Vec<LogModule>,
    places: Vec<LogAddress>,
    nodes: Vec<LogCallNode>,
    sites: Vec<LogSite>,
}

/// Maximum number of addresses in the cache of call stacks.
const STACK_WORDS: usize = 1 << 20;
/// Maximum numbers of call nodes, sites, live blocks and threads. Each takes some 30, 300, 70 or
/// 100 bytes in this state and in the writer of the file together.
const NODES: usize = 1 << 20;
const SITES: usize = 1 << 18;
const BLOCKS: usize = 1 << 19;
const THREADS: usize = 1 << 14;
/// Maximum number of unfinished calls of one thread; a program whose calls return has fewer.
const OPEN: usize = 64;

/// Indices of registers in samples, whose order is ax, bx, cx, dx, si, di and so on.
const AX: usize = 0;
const DX: usize = 3;
const SI: usize = 4;
const DI: usize = 5;
const SP: usize = 7;

impl ProbeState {
    pub(super) fn new(pid: u32, probed: Rc<Probed>, every: Option<u64>) -> ProbeState {
        ProbeState {
            pid,
            probed,
            every,
            random: fastrand::Rng::new(),
            spaces: Spaces::default(),
            unwinder: Unwinder::default(),
            modules: HashMap::new(),
            places: HashMap::new(),
            nodes: HashMap::new(),
            by_node: HashMap::new(),
            by_stack: HashMap::new(),
            stack_words: 0,
            dropped: 0,
            // Site 0 is for calls without a call stack.
            all: InternTables {
                sites: vec![LogSite { node: ROOT, kind: LogKind::Heap }],
                ..InternTables::default()
            },
            told: [0; 4],
            sums: vec![SiteSums::default()],
            blocks: HashMap::new(),
            threads: HashMap::new(),
            live: LogAmount::default(),
            allocated: LogAmount::default(),
            peak: LogAmount::default(),
            peak_at: None,
            began: None,
            rising: false,
            epoch: 0,
            unknown_frees: 0,
            cut: 0,
            sizes: vec![0; 65],
            lifetimes: vec![0; 65],
        }
    }

    /// State of a forked child, which has the same mappings and no counts.
    pub(super) fn child(&self, pid: u32) -> ProbeState {
        let mut child = ProbeState::new(pid, Rc::clone(&self.probed), self.every);
        child.spaces.clone_from(&self.spaces);
        child
    }

    /// State of the next program of the process, which has no mappings and no counts yet.
    pub(super) fn next_program(&self) -> ProbeState {
        ProbeState::new(self.pid, Rc::clone(&self.probed), self.every)
    }

    /// True if the process has called a probed function.
    pub(super) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// Processes a record of the kernel.
    pub(super) fn note(&mut self, record: &PerfRecord<'_>) {
        match record {
            PerfRecord::Sample(sample) if sample.pid == self.pid => self.sample(sample),
            PerfRecord::Sample(_) => {}
            PerfRecord::Named { pid, tid, name, .. } if *pid == self.pid => {
                self.threads.entry(*tid).or_default().sums.name = name.to_vec();
                self.spaces.note(record);
            }
            other => self.spaces.note(other),
        }
    }

    fn sample(&mut self, sample: &PerfSample<'_>) {
        let began = *self.began.get_or_insert(sample.time);
        let time = sample.time.saturating_sub(began);
        let mut registers = [0; 17];
        for (register, value) in registers.iter_mut().zip(sample.registers()) {
            *register = value;
        }
        match self.probed.roles.get(sample.which).copied() {
            Some(ProbeRole::Entry(ProbedCall::Free)) => {
                let thread = self.thread(sample.tid, registers[SP]);
                if thread.pending.is_empty()
                    && registers[DI] != 0
                    && (self.blocks.contains_key(&registers[DI]) || !self.is_cache_flush(sample))
                {
                    self.free(sample.tid, registers[DI], time);
                }
            }
            Some(ProbeRole::Entry(call)) => {
                let thread = self.thread(sample.tid, registers[SP]);
                let is_outer = thread.pending.is_empty();
                let arguments = [registers[DI], registers[SI], registers[DX]];
                let is_counted = is_outer && self.is_sample(size(call, arguments));
                let site = is_counted.then(|| self.site(sample));
                let pending = PendingCall { stack: registers[SP], call, arguments, is_outer, site };
                let thread = self.threads.entry(sample.tid).or_default();
                if thread.pending.len() < OPEN {
                    thread.pending.push(pending);
                }
            }
            Some(ProbeRole::End) => self.end(sample, &registers, time),
            _ => {}
        }
    }

    /// True if glibc calls `free` to empty the cache of a thread that ends.
    fn is_cache_flush(&self, sample: &PerfSample<'_>) -> bool {
        let Some(caller) = sample.stack.first_chunk().copied().map(u64::from_ne_bytes) else {
            return false;
        };
        // The program is linked statically, so the caller is in the same file as `free`.
        let free = self.spaces.find(self.pid, sample.ip);
        let region = self.spaces.find(self.pid, caller);
        let Some((_, region)) = free.zip(region).filter(|(free, it)| free.id() == it.id()) else {
            return false;
        };
        let offset = caller - region.start + region.offset;
        self.probed.cache_flushes.iter().any(|code| code.contains(&offset))
    }

    /// Returns the state of a thread. Pending calls that the thread has left by a jump (`longjmp`,
    /// exception) are removed: their frames are below the stack pointer.
    fn thread(&mut self, tid: u32, stack: u64) -> &mut OneThread {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&tid) {
            self.join_threads();
        }
        let thread = self.threads.entry(tid).or_default();
        thread.sums.tid = tid;
        thread.pending.retain(|pending| pending.stack > stack);
        thread
    }

    /// Merges all threads without a pending call, most of which have ended.
    fn join_threads(&mut self) {
        /// TID that stands for all merged threads in the recording.
        const TOGETHER: u32 = 0;
        let mut all = self.threads.remove(&TOGETHER).unwrap_or_default();
        self.threads.retain(|_, thread| {
            let stays = !thread.pending.is_empty();
            if !stays {
                more(&mut all.sums.allocated, thread.sums.allocated);
                more(&mut all.sums.freed, thread.sums.freed);
            }
            stays
        });
        self.threads.insert(TOGETHER, all);
    }

    /// Number of allocations that were not counted, because too many blocks were live.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Handles the return of a function. At the entry of the function the stack pointer was one
    /// word lower.
    fn end(&mut self, sample: &PerfSample<'_>, registers: &[u64; 17], time: u64) {
        let thread = self.threads.entry(sample.tid).or_default();
        let returned = registers[SP].wrapping_sub(8);
        let Some(at) = thread.pending.iter().rposition(|it| it.stack == returned) else { return };
        let pending = thread.pending.swap_remove(at);
        thread.pending.truncate(at);
        if !pending.is_outer {
            return;
        }
        let [first, second, _] = pending.arguments;
        let value = registers[AX];
        let block = match pending.call {
            ProbedCall::Size(_) | ProbedCall::Array => value,
            ProbedCall::Resize => {
                let failed = value == 0 && second != 0;
                if first != 0 && !failed {
                    self.free(sample.tid, first, time);
                }
                value
            }
            // `posix_memalign` returns a 32-bit error number, which is 0 on success.
            ProbedCall::Into if value.trailing_zeros() < 32 => 0,
            ProbedCall::Into => {
                let into = first.checked_sub(registers[SP]).and_then(|at| usize::try_from(at).ok());
                let word = into.and_then(|at| sample.stack.get(at..)?.first_chunk());
                // The block's address is known only if it was stored near the stack pointer.
                // Without the address, the free of the block is not recognized either.
                word.map_or(u64::MAX, |word| u64::from_ne_bytes(*word))
            }
            ProbedCall::Free => return,
        };
        if block == 0 {
            return;
        }
        match pending.site {
            Some(site) => {
                let size = size(pending.call, pending.arguments);
                self.allocate(sample.tid, site, block, size, time);
            }
            None => self.threads.entry(sample.tid).or_default().last = block,
        }
    }

    /// True if a block of `size` bytes is sampled, with probability 1 - exp(-size/mean): this is
    /// the probability that a Poisson process with one point per `mean` bytes has a point in the
    /// block.
    fn is_sample(&mut self, size: u64) -> bool {
        self.every.is_none_or(|mean| self.random.f64() < probability(size, mean))
    }

    /// Amount that a counted block represents.
    fn weight(&self, size: u64) -> SampleWeight {
        let Some(mean) = self.every else {
            return SampleWeight { amount: LogAmount { bytes: size, blocks: 1 }, variance: 0.0 };
        };
        let probability = probability(size, mean);
        let bytes = size as f64;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "both are above zero, and what is more than a word is the most there is"
        )]
        let amount = LogAmount {
            bytes: (bytes / probability).round() as u64,
            blocks: (1.0 / probability).round() as u64,
        };
        SampleWeight { amount, variance: bytes * bytes * (1.0 - probability) / probability.powi(2) }
    }

    fn roll(&mut self, site: u32) -> Option<&mut SiteSums> {
        let epoch = self.epoch;
        let sums = self.sums.get_mut(site as usize)?;
        if sums.epoch != epoch {
            sums.epoch = epoch;
            sums.counted.at_peak = live(&sums.counted);
        }
        Some(sums)
    }

    fn allocate(&mut self, tid: u32, site: u32, block: u64, size: u64, time: u64) {
        if self.blocks.len() >= BLOCKS && !self.blocks.contains_key(&block) {
            self.dropped += 1;
            return;
        }
        let weight = self.weight(size);
        if let Some(sums) = self.roll(site) {
            more(&mut sums.counted.allocated, weight.amount);
            sums.variances.0 += weight.variance;
            sums.variances.1 += weight.variance;
        }
        let thread = self.threads.entry(tid).or_default();
        more(&mut thread.sums.allocated, weight.amount);
        thread.last = block;
        more(&mut self.allocated, weight.amount);
        more(&mut self.live, weight.amount);
        self.sizes[cell(size)] += weight.amount.blocks;
        if let Some(lost) = self.blocks.insert(block, LiveBlock { site, size, born: time })
            && block != u64::MAX
        {
            // The address is already live, so its free was not reported.
            self.unknown_frees += 1;
            self.count_freed(lost);
        }
        if self.live.bytes > self.peak.bytes {
            self.peak = self.live;
            self.peak_at = Some(time);
            self.rising = true;
        }
    }

    fn free(&mut self, tid: u32, address: u64, time: u64) {
        let Some(block) = self.blocks.remove(&address) else {
            // With sampling, most freed blocks were not sampled, so they are not counted as
            // unknown.
            self.unknown_frees += u64::from(self.every.is_none());
            return;
        };
        self.count_freed(block);
        let weight = self.weight(block.size);
        let thread = self.threads.entry(tid).or_default();
        more(&mut thread.sums.freed, weight.amount);
        let is_temporary = thread.last == address;
        if let Some(sums) = self.sums.get_mut(block.site as usize) {
            sums.counted.temporary += if is_temporary { weight.amount.blocks } else { 0 };
        }
        if self.every.is_none() {
            self.lifetimes[cell(time.saturating_sub(block.born))] += 1;
        }
    }

    fn count_freed(&mut self, block: LiveBlock) {
        if std::mem::take(&mut self.rising) {
            self.epoch += 1;
        }
        let weight = self.weight(block.size);
        if let Some(sums) = self.roll(block.site) {
            more(&mut sums.counted.freed, weight.amount);
            sums.variances.1 -= weight.variance;
        }
        self.live.bytes = self.live.bytes.saturating_sub(weight.amount.bytes);
        self.live.blocks = self.live.blocks.saturating_sub(weight.amount.blocks);
    }

    /// Returns the site of a call, and adds it if it is new.
    fn site(&mut self, sample: &PerfSample<'_>) -> u32 {
        if self.spaces.find(self.pid, sample.ip).is_none() {
            self.spaces.read(&ProcRoot::live(), self.pid);
        }
        let before = self.unwinder.cut();
        let calls = self.unwinder.unwind_callers(&self.spaces, sample).to_vec();
        self.cut += self.unwinder.cut() - before;
        if let Some(site) = self.by_stack.get(&calls) {
            return *site;
        }
        let is_full = self.all.nodes.len() >= NODES || self.all.sites.len() >= SITES;
        let mut node = ROOT;
        for call in calls.iter().rev() {
            if is_full && !self.places.contains_key(call) {
                return self.without_site();
            }
            let place = self.place(*call);
            let next = LogCallNode { parent: node, place };
            if is_full && !self.nodes.contains_key(&next) {
                return self.without_site();
            }
            let all = &mut self.all.nodes;
            node = *self.nodes.entry(next).or_insert_with(|| {
                all.push(next);
                number(all.len())
            });
        }
        if is_full && !self.by_node.contains_key(&node) {
            return self.without_site();
        }
        let site = self.site_of(node);
        if self.stack_words > STACK_WORDS {
            self.by_stack.clear();
            self.stack_words = 0;
        }
        self.stack_words += calls.len();
        self.by_stack.insert(calls, site);
        site
    }

    /// Site for calls whose call stack is unknown or does not fit into the tables.
    fn without_site(&mut self) -> u32 {
        self.cut += 1;
        0
    }

    fn site_of(&mut self, node: u32) -> u32 {
        if node == ROOT {
            return 0;
        }
        let (all, sums) = (&mut self.all.sites, &mut self.sums);
        *self.by_node.entry(node).or_insert_with(|| {
            all.push(LogSite { node, kind: LogKind::Heap });
            sums.push(SiteSums::default());
            number(all.len())
        })
    }

    fn place(&mut self, address: u64) -> u32 {
        if let Some(place) = self.places.get(&address) {
            return *place;
        }
        let module = self.module(address.wrapping_sub(1));
        self.all.places.push(LogAddress { address, exact: false, module });
        let place = number(self.all.places.len());
        self.places.insert(address, place);
        place
    }

    fn module(&mut self, address: u64) -> Option<u32> {
        let region = self.spaces.find(self.pid, address).filter(|region| region.is_file())?;
        let (start, end, path) = (region.start, region.end, region.name.as_bytes().to_vec());
        if let Some(module) = self.modules.get(&(start, end)) {
            return Some(*module);
        }
        let (bias, build_id) = self.unwinder.file_at(&self.spaces, self.pid, address)?;
        let build_id = build_id.unwrap_or_default().to_vec();
        self.all.modules.push(LogModule { path, build_id, start, end, bias });
        let module = number(self.all.modules.len());
        self.modules.insert((start, end), module);
        Some(module)
    }

    /// Returns the entries that are new since the last call.
    pub(super) fn news(&mut self) -> NewEntries {
        let all = &self.all;
        let [modules, places, nodes, sites] = self.told;
        self.told = [all.modules.len(), all.places.len(), all.nodes.len(), all.sites.len()];
        NewEntries {
            modules: all.modules[modules..].to_vec(),
            places: all.places[places..].to_vec(),
            nodes: all.nodes[nodes..].to_vec(),
            sites: all.sites[sites..].to_vec(),
        }
    }

    pub(super) fn live_by_site(&self) -> Vec<LogAmount> {
        self.sums.iter().map(|sums| live(&sums.counted)).collect()
    }

    /// All counts up to now.
    pub(super) fn counts(&self, time_ns: u64) -> LogCounts {
        let counted = |sums: &SiteSums| {
            let mut counted = sums.counted;
            // The live amount of a site is also its amount at the peak if the peak is now, or if
            // the site has not changed since the peak.
            if self.rising || sums.epoch != self.epoch {
                counted.at_peak = live(&counted);
            }
            counted.errors = (sums.variances.0.max(0.0).sqrt(), sums.variances.1.max(0.0).sqrt());
            counted
        };
        let mut threads: Vec<LogThread> = self.threads.values().map(|it| it.sums.clone()).collect();
        threads.retain(|it| it.allocated.blocks > 0 || it.freed.blocks > 0);
        threads.sort_by_key(|thread| thread.tid);
        LogCounts {
            time_ns,
            sites: self.sums.iter().map(counted).collect(),
            peak: self.peak,
            peak_within: 0,
            peak_at_ns: self.peak_at,
            unknown_frees: self.unknown_frees,
            cut_stacks: self.cut,
            sizes: self.sizes.clone(),
            lifetimes: self.lifetimes.clone(),
            threads,
        }
    }
}

fn live(counted: &LogSiteCounts) -> LogAmount {
    LogAmount {
        bytes: counted.allocated.bytes.saturating_sub(counted.freed.bytes),
        blocks: counted.allocated.blocks.saturating_sub(counted.freed.blocks),
    }
}

fn more(amount: &mut LogAmount, by: LogAmount) {
    amount.bytes = amount.bytes.saturating_add(by.bytes);
    amount.blocks = amount.blocks.saturating_add(by.blocks);
}

/// Requested size of a call.
fn size(call: ProbedCall, arguments: [u64; 3]) -> u64 {
    let [first, second, third] = arguments;
    match call {
        ProbedCall::Size(number) => arguments.get(number).copied().unwrap_or(0),
        ProbedCall::Array => first.wrapping_mul(second),
        ProbedCall::Resize => second,
        ProbedCall::Into => third,
        ProbedCall::Free => 0,
    }
}

/// Probability that a block is sampled.
fn probability(size: u64, mean: u64) -> f64 {
    (-(-(size.max(1) as f64) / mean.max(1) as f64).exp_m1()).max(f64::MIN_POSITIVE)
}

fn cell(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

/// Index of the last entry of a list of `count` entries.
fn number(count: usize) -> u32 {
    u32::try_from(count).map_or(ROOT - 1, |count| count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_threads_beyond_what_is_kept_are_counted_and_take_no_memory() {
        let mut state = ProbeState::new(7, Rc::default(), None);
        let most = BLOCKS as u64;
        for at in 1..=most + 10 {
            state.allocate(7, 0, at * 16, 8, at);
        }
        assert_eq!((state.live.blocks, state.dropped()), (most, 10));
        state.free(7, 16, 0);
        state.allocate(7, 0, 16, 8, 0);
        assert_eq!((state.live.blocks, state.dropped()), (most, 10), "there was room again");
        for tid in 1..3 * u32::try_from(THREADS).unwrap() {
            more(&mut state.thread(tid, 0).sums.allocated, LogAmount { bytes: 1, blocks: 1 });
            assert!(state.threads.len() <= THREADS + 1);
        }
        let all: u64 = state.threads.values().map(|thread| thread.sums.allocated.blocks).sum();
        assert_eq!(all, most + 1 + 3 * THREADS as u64 - 1, "none is forgotten");
    }
}
