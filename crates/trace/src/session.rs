//! Events of a process, a command or a machine, reported while they occur. A copy is a sample with
//! bytes of memory, which a BPF program writes directly before another sample
//! ([`TraceSession::copy`]).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::time::Duration;

use pagewise_sys::bpf::{Attachment, Copies, UprobeSamples};
use pagewise_sys::descriptor_holder::DescriptorHolder;
use pagewise_sys::perf_event::{Mode, PerfCounter, PerfEvent, PerfScope, PerfType};
use pagewise_sys::perf_ring::{self, Carries, HeldEvent, PerfRecordHeader, PerfRing, Sampling};
use pagewise_sys::system;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::TraceError;
use crate::record::{self, Carried, PerfRecord};

/// Processes whose events are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceTarget {
    /// A running process: each of its threads, and all threads and processes that they create from
    /// now on.
    Process(u32),
    /// A process before its next `exec`: the process and all threads and processes that it creates,
    /// from that `exec` on.
    Command(u32),
    /// All processes.
    Machine,
}

/// An event that is wanted.
#[derive(Clone, Debug)]
pub struct SessionEvent {
    /// Name of the event for messages about its absence.
    pub name: String,
    /// Sampling of the event. The first event of a session is sampled, others may be counted only.
    /// `mode` is set for the target, except for `exclude_kernel` and `exclude_user`.
    pub sampling: Sampling,
}

/// Uprobes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Uprobes<'u> {
    /// The name of the functions in errors.
    pub name: &'u str,
    /// The type of the PMU `uprobe`.
    pub kind: PerfType,
    /// A path to the file. The kernel reads the path from our memory.
    pub path: &'static CStr,
    /// The offsets of the instructions in the file.
    pub offsets: &'u [u64],
    /// True if the uprobes report the return of the functions that begin at `offsets`, not the
    /// instructions.
    pub at_return: bool,
    /// The process to trace. If the kernel cannot limit uprobes to a process, they are placed in
    /// every process that executes the file.
    pub pid: Option<u32>,
    /// The fields of each sample.
    pub carries: Carries,
}

/// Returns true if a uprobe link can be limited to one process, as since Linux 6.10. Earlier
/// kernels limit it to one thread.
fn links_choose_processes() -> bool {
    let release = system::kernel_release();
    let release = String::from_utf8_lossy(&release);
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 10))
}

/// A record that was read and not passed on yet. Many records wait at a time, so the fields are
/// small: a record takes 32 bytes.
#[derive(Clone, Copy, Debug)]
struct WaitingRecord {
    time: u64,
    /// Position among the records of the same time.
    number: u32,
    header: PerfRecordHeader,
    /// Index in `TraceSession::carried`.
    event: u16,
    /// Index of the record's ring.
    ring: u16,
    /// Index of the arena in `TraceSession::arenas` that contains the bytes of the record. The
    /// fields `length` and `start` are the number of these bytes and their position. The kernel's
    /// records are below 64 KiB.
    arena: bool,
    length: u16,
    start: u32,
}

const _: () = assert!(size_of::<WaitingRecord>() == 32);

/// A ring, and how far it was read.
#[derive(Debug)]
struct RingReader {
    ring: PerfRing,
    /// All records of the ring up to this time have been read.
    until: u64,
    /// True if the last read left records in the ring.
    has_more: bool,
}

/// Number of bytes of records that are read at a time from all rings together. At most twice this
/// number of bytes waits to be passed on.
const BATCH: usize = 8 << 20;
/// Minimum number of bytes that is read from each ring.
const MIN_BATCH: usize = 256 << 10;
/// Maximum disorder of the records of one ring, in nanoseconds: the duration of an interrupt.
const DISORDER: u64 = 1_000_000;

/// Placeholder for the time of a copy whose sample has not been read yet.
const NOT_YET: u64 = u64::MAX;

impl WaitingRecord {
    /// Range of the record's bytes in the arena.
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + usize::from(self.length)
    }

    /// Handles the record after a copy: the sample of the copy, or any record if this sample was
    /// lost.
    fn settle(&mut self, time: u64, is_its_sample: bool) {
        self.time = time;
        if !is_its_sample {
            self.header.kind = record::NOTHING;
        }
    }
}

/// Events that the kernel writes into rings, one per CPU. Dropping the session closes them.
#[derive(Debug)]
pub struct TraceSession {
    rings: Vec<RingReader>,
    /// The first counter of each CPU, which owns the ring, then the others.
    counters: Vec<PerfCounter>,
    /// Events that are only counted: index of the event, CPU, counter.
    counted: Vec<(usize, u32, PerfCounter)>,
    /// Events of the whole machine: outputs of BPF programs, and events that threads cannot
    /// inherit.
    others: Vec<PerfCounter>,
    copies: Option<Copies>,
    /// The child processes that have the descriptors of uprobes, and the programs that the uprobes
    /// run.
    uprobes: Vec<(DescriptorHolder, Option<UprobeSamples>)>,
    /// Index of the event that the copies belong to.
    copied: Option<usize>,
    events: HashMap<u64, u16>,
    carried: Vec<Carried>,
    /// Bytes of waiting records: one arena contains the last batch, the other one receives the next
    /// batch.
    arenas: [Vec<u8>; 2],
    /// Index of the arena that receives the next batch.
    next: bool,
    waiting: Vec<WaitingRecord>,
    /// The process and its descendants, if events are of the whole machine but only the records of
    /// these processes are passed on.
    family: Option<HashSet<u32>>,
    /// All records up to this time have been read.
    horizon: u64,
    handed_on: u64,
    lost: u64,
    torn: u64,
}

impl Drop for TraceSession {
    fn drop(&mut self) {
        self.uprobes.iter().for_each(|(holder, _)| holder.release());
    }
}

impl Uprobes<'_> {
    fn event(&self, offset: u64) -> PerfEvent {
        let event = PerfEvent::instruction(self.kind, self.path, offset);
        // Bit 0: at the return of the function.
        PerfEvent { config: self.at_return.into(), ..event }
    }
}

/// Samples every event, with these fields.
fn sampling(event: PerfEvent, carries: Carries) -> Sampling {
    let mode = Mode::default();
    Sampling { event, every: 1, carries, mode, tasks: false, wake_at: 1 << 16 }
}

impl TraceSession {
    /// Opens events, with a ring of the given size on each CPU. Counting starts with
    /// [`TraceSession::enable`], or with the command's `exec`.
    ///
    /// # Errors
    /// [`TraceError::NotWatched`] for an event that the kernel refuses or does not have;
    /// [`TraceError::Gone`]; [`TraceError::System`].
    pub fn open(
        target: TraceTarget,
        wanted: &[SessionEvent],
        ring: usize,
    ) -> Result<TraceSession, TraceError> {
        let cpus = cpus()?;
        let mut session = TraceSession {
            rings: Vec::new(),
            counters: Vec::new(),
            counted: Vec::new(),
            others: Vec::new(),
            copies: None,
            uprobes: Vec::new(),
            copied: None,
            events: HashMap::new(),
            carried: Vec::new(),
            arenas: Default::default(),
            next: false,
            waiting: Vec::new(),
            family: None,
            horizon: 0,
            handed_on: 0,
            lost: 0,
            torn: 0,
        };
        let mut known = BTreeSet::new();
        loop {
            // The loop is repeated, because a thread may have created another thread before its own
            // events were open.
            let new: Vec<Option<u32>> = match target {
                TraceTarget::Machine => vec![None],
                TraceTarget::Command(pid) => vec![Some(pid)],
                TraceTarget::Process(pid) => threads(pid)?.into_iter().map(Some).collect(),
            };
            let new: Vec<Option<u32>> = new.into_iter().filter(|it| !known.contains(it)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                known.insert(thread);
                session.open_thread(target, thread, wanted, &cpus, ring)?;
            }
        }
        match (target, session.rings.is_empty()) {
            (TraceTarget::Process(pid) | TraceTarget::Command(pid), true) => {
                Err(TraceError::Gone { pid })
            }
            _ => Ok(session),
        }
    }

    /// Like [`TraceSession::open`], but also for a process with too many threads for an event on
    /// each of them. In this case, the events of the whole machine are opened, and only the records
    /// of the process and its descendants are passed on. This needs the rights of
    /// [`TraceTarget::Machine`].
    ///
    /// # Errors
    /// As [`TraceSession::open`].
    pub fn open_any(
        target: TraceTarget,
        wanted: &[SessionEvent],
        ring: usize,
    ) -> Result<TraceSession, TraceError> {
        let opened = TraceSession::open(target, wanted, ring);
        let TraceTarget::Process(pid) = target else { return opened };
        let is_too_many = |opened: &Result<TraceSession, TraceError>| {
            let Err(TraceError::NotWatched { error, .. }) = opened else { return false };
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
        };
        let opened = match opened {
            opened if !is_too_many(&opened) => return opened,
            _ if system::open_more_files() => TraceSession::open(target, wanted, ring),
            opened => opened,
        };
        if !is_too_many(&opened) {
            return opened;
        }
        match TraceSession::open(TraceTarget::Machine, wanted, ring) {
            Ok(mut session) => {
                session.family = Some(HashSet::from([pid]));
                Ok(session)
            }
            Err(_) => opened,
        }
    }

    /// True if counts include all processes although one was requested. The records that are passed
    /// on are always only those of the process and its descendants.
    pub fn counts_others(&self) -> bool {
        self.family.is_some()
    }

    fn open_thread(
        &mut self,
        target: TraceTarget,
        thread: Option<u32>,
        wanted: &[SessionEvent],
        cpus: &[u32],
        ring: usize,
    ) -> Result<(), TraceError> {
        for (at, cpu) in cpus.iter().copied().enumerate() {
            let whose = match thread {
                Some(thread) => PerfScope::ThreadOn { thread, cpu },
                None => PerfScope::Cpu(cpu),
            };
            for (which, SessionEvent { name, sampling }) in wanted.iter().enumerate() {
                let mut sampling = *sampling;
                sampling.mode.disabled = true;
                sampling.mode.inherit = target != TraceTarget::Machine;
                sampling.mode.enable_on_exec = matches!(target, TraceTarget::Command(_));
                let failed = |error| TraceError::NotWatched { what: name.clone(), error };
                let counter = match perf_ring::open(&sampling, whose) {
                    // The thread has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                    counter => counter.map_err(failed)?,
                };
                if sampling.every == 0 {
                    self.counted.push((which, cpu, counter));
                    continue;
                }
                let id = perf_ring::id(&counter).map_err(failed)?;
                self.know(id, Carried { which, carries: sampling.carries });
                if self.rings.len() == at {
                    let ring = PerfRing::map_counter(&counter, ring).map_err(failed)?;
                    self.rings.push(RingReader { ring, until: 0, has_more: false });
                    self.counters.insert(at, counter);
                } else {
                    perf_ring::redirect(&counter, &self.counters[at]).map_err(failed)?;
                    self.counters.push(counter);
                }
            }
        }
        Ok(())
    }

    /// Stores the event of the records with an identifier.
    fn know(&mut self, id: u64, event: Carried) {
        let at = self.carried.iter().position(|known| *known == event).unwrap_or_else(|| {
            self.carried.push(event);
            self.carried.len() - 1
        });
        self.events.insert(id, u16::try_from(at).expect("a session has few kinds of events"));
    }

    /// True if a counter belongs to the event with this index.
    fn is_of(&self, counter: &PerfCounter, which: usize) -> bool {
        let event = perf_ring::id(counter).ok().and_then(|id| self.events.get(&id));
        event.is_some_and(|event| self.carried[usize::from(*event)].which == which)
    }

    /// Copies bytes of memory directly before each sample, on the same CPU. The copies are samples
    /// of an event with the index `which`, with the bytes in `raw`.
    ///
    /// # Errors
    /// Returns the error of the kernel: this needs CAP_BPF, and Linux 5.5.
    pub fn copy(&mut self, which: usize, address: u64, length: usize) -> io::Result<()> {
        let cpus = cpus().map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))?;
        let highest = cpus.iter().copied().max().unwrap_or(0);
        let copies = Copies::for_address(address, length, highest.saturating_add(1))?;
        let carries = Carries { raw: true, ..Carries::default() };
        let sampling = Sampling {
            event: PerfEvent::OUTPUT,
            every: 1,
            carries,
            mode: Mode::default(),
            tasks: false,
            wake_at: 1,
        };
        let mut outputs = Vec::new();
        for (cpu, ring) in cpus.into_iter().zip(&self.counters[..self.rings.len()]) {
            let output = perf_ring::open(&sampling, PerfScope::Cpu(cpu))?;
            perf_ring::redirect(&output, ring)?;
            copies.write_to(cpu, &output)?;
            outputs.push((perf_ring::id(&output)?, output));
        }
        self.counters.iter().try_for_each(|counter| copies.run_at(counter))?;
        for (id, output) in outputs {
            self.know(id, Carried { which, carries });
            self.others.push(output);
        }
        (self.copies, self.copied) = (Some(copies), Some(which));
        Ok(())
    }

    /// Places uprobes whose samples have the index `which`. The uprobes are active immediately.
    ///
    /// To remove a uprobe event, the kernel waits for several RCU grace periods: about 0.1 s for
    /// each event, and removals by all processes follow one another. So all uprobes of a call are
    /// one link (Linux 6.6, CAP_BPF). Before Linux 6.6 they are one event for each offset
    /// (CAP_BPF). Only without CAP_BPF they are one event for each offset on each CPU.
    ///
    /// # Errors
    /// [`TraceError::NotWatched`]
    pub fn add_uprobes(&mut self, which: usize, uprobes: &Uprobes<'_>) -> Result<(), TraceError> {
        let attached = [Attachment::Link, Attachment::Events]
            .into_iter()
            .any(|attachment| self.attach(attachment, which, uprobes).is_ok());
        if attached { Ok(()) } else { self.open_uprobes(which, uprobes) }
    }

    /// Opens an event for each offset on each CPU.
    pub(crate) fn open_uprobes(
        &mut self,
        which: usize,
        uprobes: &Uprobes<'_>,
    ) -> Result<(), TraceError> {
        let cpus = cpus()?;
        let rings = &self.counters[..self.rings.len()];
        let of_offset = |&offset: &u64| {
            let sampling = sampling(uprobes.event(offset), uprobes.carries);
            let rings = rings.iter().zip(&cpus);
            rings.map(move |(ring, &cpu)| HeldEvent { sampling, cpu, ring })
        };
        let events: Vec<HeldEvent<'_>> = uprobes.offsets.iter().flat_map(of_offset).collect();
        let failed = |error| TraceError::NotWatched { what: uprobes.name.to_owned(), error };
        let (holder, ids) = perf_ring::open_held(&events).map_err(failed)?;
        for id in ids {
            self.know(id, Carried { which, carries: uprobes.carries });
        }
        self.uprobes.push((holder, None));
        Ok(())
    }

    /// Attaches a BPF program that writes the samples.
    pub(crate) fn attach(
        &mut self,
        attachment: Attachment,
        which: usize,
        uprobes: &Uprobes<'_>,
    ) -> io::Result<()> {
        let cpus = cpus().map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))?;
        let highest = cpus.iter().copied().max().unwrap_or(0);
        let samples = UprobeSamples::load(attachment, highest.saturating_add(1))?;
        let output = sampling(PerfEvent::OUTPUT, uprobes.carries);
        let mut outputs = Vec::new();
        for (&cpu, ring) in cpus.iter().zip(&self.counters[..self.rings.len()]) {
            let output = perf_ring::open(&output, PerfScope::Cpu(cpu))?;
            perf_ring::redirect(&output, ring)?;
            samples.write_to(cpu, &output)?;
            outputs.push((perf_ring::id(&output)?, output));
        }
        let holder = match attachment {
            Attachment::Link => {
                let pid = uprobes.pid.filter(|_| links_choose_processes());
                samples.link(uprobes.path, uprobes.offsets, uprobes.at_return, pid)?
            }
            Attachment::Events => {
                let event = |&offset: &u64| Sampling {
                    every: 0,
                    ..sampling(uprobes.event(offset), Carries::default())
                };
                let events: Vec<Sampling> = uprobes.offsets.iter().map(event).collect();
                // The program runs at each hit, on whichever CPU.
                samples.run_at(&events, cpus.first().copied().unwrap_or(0))?
            }
        };
        for (id, output) in outputs {
            self.know(id, Carried { which, carries: uprobes.carries });
            self.others.push(output);
        }
        self.uprobes.push((holder, Some(samples)));
        Ok(())
    }

    /// Begins to count.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn enable(&self) -> Result<(), TraceError> {
        self.each(PerfCounter::enable)
    }

    /// Stops counting. The counts can still be read.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn disable(&self) -> Result<(), TraceError> {
        self.each(PerfCounter::disable)
    }

    fn each(&self, what: fn(&PerfCounter) -> io::Result<()>) -> Result<(), TraceError> {
        let counted = self.counted.iter().map(|(.., counter)| counter);
        let done = self.counters.iter().chain(counted).try_for_each(what);
        done.map_err(|error| TraceError::System { doing: "cannot switch events".to_owned(), error })
    }

    /// Limits the samples of a tracepoint to those that match an expression: `reason == 1`.
    ///
    /// # Errors
    /// [`TraceError::System`] for an expression that the kernel does not understand.
    pub fn filter(&self, which: usize, expression: &std::ffi::CStr) -> Result<(), TraceError> {
        for counter in &self.counters {
            if self.is_of(counter, which) {
                counter.set_filter(expression).map_err(|error| TraceError::System {
                    doing: "cannot choose among events".to_owned(),
                    error,
                })?;
            }
        }
        Ok(())
    }

    /// Counts of an event that is only counted (`every` is 0), by CPU.
    ///
    /// # Errors
    /// [`TraceError::System`]
    pub fn counted(&self, which: usize) -> Result<Vec<(u32, u64)>, TraceError> {
        let mut sums: Vec<(u32, u64)> = Vec::new();
        for (_, cpu, counter) in self.counted.iter().filter(|(event, ..)| *event == which) {
            let count = counter.read().map_err(|error| TraceError::System {
                doing: "cannot read a count".to_owned(),
                error,
            })?;
            match sums.iter_mut().find(|(known, _)| known == cpu) {
                Some((_, sum)) => *sum += count.value,
                None => sums.push((*cpu, count.value)),
            }
        }
        Ok(sums)
    }

    /// Waits until a ring reaches its wake-up level, at most for `at_most`.
    pub fn wait(&self, at_most: Duration) {
        let rings = &self.counters[..self.rings.len()];
        let mut fds: Vec<PollFd<'_>> =
            rings.iter().map(|counter| PollFd::new(counter, PollFlags::IN)).collect();
        // `poll` reports a hangup once the threads of a ring's first counter end. Other threads
        // still write to the ring.
        let timeout = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let _ = poll(&mut fds, Some(&timeout));
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)) {
            std::thread::sleep(at_most.min(Duration::from_millis(5)));
        }
    }

    /// Reads the rings, and passes on, in order of time, the records from before the previous read:
    /// these are complete by now.
    pub fn drain(&mut self, each: &mut dyn FnMut(PerfRecord<'_>)) {
        self.drain_until(now(), each);
    }

    /// Like [`TraceSession::drain`], but does not pass on records from after `time`.
    pub fn drain_until(&mut self, time: u64, each: &mut dyn FnMut(PerfRecord<'_>)) {
        // At most the capacity of the rings is read, so that the caller is not delayed for long.
        self.drain_within(self.capacity(), time, each);
    }

    /// Returns the time up to which all records have been passed on.
    pub fn handed_on(&self) -> u64 {
        self.handed_on
    }

    /// Reads and passes on batches until the rings are empty, all events up to a time were read, or
    /// the byte limit is reached.
    fn drain_within(&mut self, mut left: usize, until: u64, each: &mut dyn FnMut(PerfRecord<'_>)) {
        loop {
            let horizon = self.horizon.min(until);
            let (bytes, has_more) = self.read();
            self.hand_on(horizon, each);
            left = left.saturating_sub(bytes);
            if !has_more || left == 0 || self.horizon >= until {
                return;
            }
        }
    }

    /// Number of bytes of all rings together.
    fn capacity(&self) -> usize {
        self.rings.iter().map(|read| read.ring.capacity()).sum()
    }

    /// Ends the recording, and passes on all remaining records.
    pub fn finish(&mut self, each: &mut dyn FnMut(PerfRecord<'_>)) {
        // If stopping fails, further events are discarded.
        let _ = self.disable();
        self.drain_within(self.capacity().saturating_mul(2), u64::MAX, each);
        // Reads events that were in flight at the last reading.
        self.read();
        self.hand_on(u64::MAX, each);
    }

    /// Number of events that did not fit into a ring, and of records that could not be read.
    pub fn lost(&self) -> u64 {
        self.lost + self.torn
    }

    /// Total count of an event, sampled or not, from the kernel; `None` if it cannot be read, or
    /// includes other processes.
    pub fn total(&self, which: usize) -> Option<u64> {
        if self.counts_others() {
            return None;
        }
        let counters = self.counters.iter().filter(|counter| self.is_of(counter, which));
        counters.map(|counter| Some(counter.read().ok()?.value)).sum()
    }

    /// Reads a batch. While a ring has a backlog, only the rings that are furthest behind are read,
    /// because records of the other rings would have to wait. Returns the number of bytes, and true
    /// if a ring has more.
    fn read(&mut self) -> (usize, bool) {
        let now = now();
        let at_most = (BATCH / self.rings.len().max(1)).max(MIN_BATCH);
        let TraceSession { rings, events, carried, arenas, next, waiting, torn, copied, .. } = self;
        let arena = &mut arenas[usize::from(*next)];
        let behind = rings.iter().map(|read| read.until).min().unwrap_or(now);
        let has_backlog = rings.iter().any(|read| read.has_more);
        let mut bytes_read = 0;
        for (at, read) in (0_u16..).zip(rings.iter_mut()) {
            if has_backlog && read.until > behind {
                continue;
            }
            // A sample follows its copy in the ring, but can have an earlier time: the kernel may
            // read the clock for the sample first.
            let is_due = |it: &WaitingRecord| it.ring == at && it.time == NOT_YET;
            let mut due = waiting.iter().position(is_due);
            let mut last = read.until;
            let (bytes, is_left) = read.ring.drain_within(at_most, &mut |header, bytes| {
                let stamp = record::stamp(header, bytes);
                let known = stamp.and_then(|(time, id)| Some((time, *events.get(&id)?)));
                let length = u16::try_from(bytes.len()).ok();
                let Some(((mut time, event), length)) = known.zip(length) else {
                    *torn += 1;
                    return;
                };
                last = time;
                let which = carried[usize::from(event)].which;
                let (is_sample, is_loss) = (record::is_sample(header), record::is_loss(header));
                if let Some(copy) = due.filter(|_| is_sample || is_loss) {
                    let is_of_it = is_sample && *copied != Some(which);
                    waiting[copy].settle(time, is_of_it);
                    due = None;
                }
                if *copied == Some(which) && is_sample {
                    due = Some(waiting.len());
                    time = NOT_YET;
                }
                let start = u32::try_from(arena.len()).expect("a batch is below 4 GiB");
                let number = u32::try_from(waiting.len()).expect("a batch is below 4 GiB");
                arena.extend_from_slice(bytes);
                let (arena, ring) = (*next, at);
                waiting.push(WaitingRecord {
                    time,
                    number,
                    header,
                    event,
                    ring,
                    arena,
                    length,
                    start,
                });
            });
            read.until = if is_left { last.saturating_sub(DISORDER).max(read.until) } else { now };
            read.has_more = is_left;
            bytes_read += bytes;
        }
        self.horizon = rings.iter().map(|read| read.until).min().unwrap_or(now);
        let has_more = rings.iter().any(|read| read.has_more);
        waiting.sort_unstable_by_key(|it| (it.time, it.number));
        (bytes_read, has_more)
    }

    fn hand_on(&mut self, until: u64, each: &mut dyn FnMut(PerfRecord<'_>)) {
        self.handed_on = self.handed_on.max(until);
        let TraceSession { arenas, next, carried, waiting, family, lost, torn, .. } = self;
        let due = waiting.partition_point(|it| it.time <= until);
        for it in waiting.drain(..due) {
            let bytes = &arenas[usize::from(it.arena)][it.range()];
            match record::parse(it.header, bytes, carried[usize::from(it.event)]) {
                Some(PerfRecord::Lost(events)) => *lost += events,
                Some(record) if family.as_mut().is_none_or(|it| is_of(it, &record)) => each(record),
                Some(_) => {}
                None => *torn += 1,
            }
        }
        // Only records of the last batch, and the remainder of the batch before it, still wait. The
        // remainder is moved to the arena of the last batch, so that the other arena can receive
        // the next batch.
        let [first, second] = arenas;
        let (last, before) = if *next { (second, first) } else { (first, second) };
        for (number, it) in (0_u32..).zip(waiting.iter_mut()) {
            it.number = number;
            if it.arena != *next {
                let bytes = &before[it.range()];
                it.start = u32::try_from(last.len()).expect("a batch is below 4 GiB");
                it.arena = *next;
                last.extend_from_slice(bytes);
            }
        }
        before.clear();
        *next = !*next;
    }
}

/// True if a record belongs to `family`. Processes that are forked by the family join it.
fn is_of(family: &mut HashSet<u32>, record: &PerfRecord<'_>) -> bool {
    match *record {
        PerfRecord::Sample(sample) => family.contains(&sample.pid),
        PerfRecord::Mapped(mapped) => family.contains(&mapped.pid),
        PerfRecord::Named { pid, .. } | PerfRecord::Ended { pid, .. } => family.contains(&pid),
        PerfRecord::Forked { pid, parent, .. } => {
            let is_made_by_one = family.contains(&parent);
            if is_made_by_one {
                family.insert(pid);
            }
            is_made_by_one
        }
        PerfRecord::Lost(_) | PerfRecord::Other => true,
    }
}

/// Present time of the clock of records, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// The threads of a process.
fn threads(pid: u32) -> Result<Vec<u32>, TraceError> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| TraceError::Gone { pid })?;
    let names = folder.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// The online CPUs.
fn cpus() -> Result<Vec<u32>, TraceError> {
    const ONLINE: &str = "/sys/devices/system/cpu/online";
    let failed = |error| TraceError::System { doing: format!("cannot read {ONLINE}"), error };
    let text = fs::read_to_string(ONLINE).map_err(failed)?;
    Ok(ranges(text.trim()))
}

/// `0-3,5` as 0, 1, 2, 3, 5.
fn ranges(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PerfSample;

    #[test]
    fn a_process_and_its_children_are_separated_from_other_processes() {
        let mut family = HashSet::from([7]);
        let sample = |pid| {
            let mut sample = PerfSample::default();
            sample.pid = pid;
            PerfRecord::Sample(sample)
        };
        let forked = |pid, parent| PerfRecord::Forked { pid, parent, tid: pid };
        let mut of = |record: PerfRecord<'_>| is_of(&mut family, &record);
        assert!(of(sample(7)) && !of(sample(8)));
        assert!(of(forked(8, 7)) && of(sample(8)) && of(forked(9, 8)) && of(sample(9)));
        assert!(!of(forked(11, 10)) && !of(sample(11)));
        assert!(of(PerfRecord::Ended { pid: 8, tid: 88 }) && of(PerfRecord::Lost(1)));
    }

    #[test]
    fn cpus_are_counted_as_the_kernel_writes_them() {
        assert_eq!(ranges("0-3,5"), [0, 1, 2, 3, 5]);
        assert_eq!(ranges("0"), [0]);
        assert_eq!(ranges(""), Vec::<u32>::new());
    }
}
