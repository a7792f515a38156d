//! Memory of a live process: all threads are stopped, the resident pages that a scan needs are
//! copied, and the threads continue.
//!
//! ```text
//!  plan      the ranges to copy: resident pages of mappings that can contain blocks or pointers
//!  transfer  the copy itself, by several threads
//!  image     the copied ranges as a `Memory`
//!  constants  bytes of mapped files that need no copy
//!  moving    a copy without a stop of the process
//!  snapshot  a copy of a child that the process is made to fork
//! ```
//!
//! The pause begins when the first thread is stopped. The page tables are read before the pause, so
//! that the memory for the copy can be mapped and faulted in. They are read again during the pause,
//! because the process ran in between. If pagewise is killed during the pause, the kernel detaches
//! all threads, and they continue.

mod constants;
mod image;
mod moving;
mod plan;
mod snapshot;
mod transfer;

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_model::heap_scan::MemoryCopy;
use pagewise_model::mapping::Sharing;
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, PageSize, Pid};
use pagewise_proc::capture::outline;
use pagewise_proc::{ProcRoot, meminfo};
use pagewise_remote::{RemoteError, RemoteProcess, StopPoint, Tracee, on_tracer_thread};
use pagewise_sys::priority::{briefly_raised, favored};
use pagewise_sys::ptrace::expected_pause;
use pagewise_sys::{remote, system};

use crate::ScanError;
use crate::memory::ScannedThread;

use constants::MappedFiles;
pub use image::ProcessCopy;
pub use moving::copy_moving;
use plan::{CopyPlan, PageScanner};
pub use snapshot::copy_forked;
use transfer::{CopyBuffer, TransferFailure};

/// Maximum number of attempts to prepare enough memory for the copy.
const ATTEMPTS: u32 = 4;
/// Memory that must stay available on the machine in addition to the copy.
const RESERVE: Bytes = Bytes::mib(64);
/// The memory for the copy includes a reserve, because the process may grow. This number of bytes
/// of the reserve, and 1/128 of the size of the copy, are faulted in before the pause.
const FAULTED_SPARE: u64 = 1 << 20;
/// Maximum number of repeated stops, if a thread is in the code of the allocator each time, and the
/// time between two stops.
const MAX_REPEATS: u64 = 29;
const BETWEEN_STOPS: Duration = Duration::from_micros(300);
/// Number of bytes above the stack pointer that are examined for return addresses.
const STACK_BYTES: usize = 512;
/// Number of bytes that are copied before the pause to measure the copy rate.
const TRIAL: u64 = 32 << 20;
/// Minimum copy rate for the estimate of a pause, in bytes per microsecond, and the rate that is
/// assumed without a measurement.
const MIN_RATE: u64 = 256;
const USUAL_RATE: u64 = 8 << 10;

/// The memory to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyScope {
    /// Memory that can contain blocks, and the data of the allocator.
    Heap,
    /// The memory of `Heap`, and all memory that can contain pointers to blocks.
    HeapAndRoots,
}

/// Parameters of a copy.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct CopyRequest<'a> {
    /// Memory to copy.
    pub scope: CopyScope,
    /// Maximum permitted pause.
    pub max_pause: Duration,
    /// Address ranges of the allocator's code, in which no thread should be during the copy.
    pub busy_code: &'a [AddrRange],
    /// Called with the expected pause before the pause begins.
    pub announce: &'a (dyn Fn(ExpectedPause) + Sync),
}

impl CopyRequest<'_> {
    /// Time from the beginning of the pause after which the copy is given up: the last chunk of
    /// each copying thread, and letting the threads go, need the rest of the permitted pause.
    fn copy_time(&self) -> Duration {
        self.max_pause / 5 * 4
    }
}

/// Expected pause of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedPause {
    /// Number of threads to stop.
    pub threads: usize,
    /// Number of bytes to copy.
    pub bytes: Bytes,
    /// Expected duration of the pause.
    pub pause: Duration,
}

/// Copies a running process. Any thread may call this function.
///
/// # Errors
/// [`ScanError::NoMemory`]; [`ScanError::PauseTooLong`] before or during the pause; errors of
/// reading and of stopping the process.
pub fn copy_running(
    root: &ProcRoot,
    pid: Pid,
    request: &CopyRequest<'_>,
) -> Result<ProcessCopy, ScanError> {
    let target = RemoteProcess::open_to_stop(pid.0, None)?;
    let mut pauses = Pauses::default();
    for _ in 0..ATTEMPTS {
        let threads = target.threads()?.len();
        let reader = reader_of(root, pid);
        let prepared = Prepared::new(root, pid, request, threads, &mut |plan, buffer| {
            expected(plan, buffer, reader, threads)
        })?;
        (request.announce)(prepared.expected);
        let copied =
            on_tracer_thread(|| favored(|| prepared.copy(root, &target, request, &mut pauses)))?;
        if let Some(copy) = copied {
            return Ok(copy);
        }
    }
    Err(ScanError::Grows)
}

/// Copies a process that the calling thread has stopped. Requires that all its threads are in
/// ptrace stops. `task` is the process, or one of its other threads if its first thread has ended.
///
/// # Errors
/// The errors of [`copy_running`], except those of stopping the process.
pub fn copy_stopped(
    root: &ProcRoot,
    pid: Pid,
    task: Pid,
    scope: CopyScope,
) -> Result<ProcessCopy, ScanError> {
    let max_pause = Duration::MAX;
    let request = CopyRequest { scope, max_pause, busy_code: &[], announce: &|_| {} };
    let tids = threads_of(root, pid);
    // The process is already stopped, so the pause is not estimated: the expected pause is 0, which
    // every limit permits.
    let prepared = Prepared::new(root, task, &request, tids.len(), &mut |_, _| Duration::ZERO)?;
    let stops = tids.iter().filter_map(|tid| {
        let id = i32::try_from(*tid).ok()?;
        Some((*tid, StopPoint::of_traced(id).ok()?))
    });
    let stops: Vec<(u32, StopPoint)> = stops.collect();
    let copy = prepared.fill(root, &stops, Instant::now(), &request)?;
    let mut copy = copy.ok_or(ScanError::Grows)?;
    // The caller had stopped the process already, so the copy did not cause the pause.
    copy.measured.pause_ns = 0;
    copy.process.pid = pid;
    Ok(copy)
}

fn threads_of(root: &ProcRoot, pid: Pid) -> Vec<u32> {
    let listed = std::fs::read_dir(root.file(pid, "task")).into_iter().flatten();
    listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Maximum expected pause for which a copy gets a real-time priority. A longer copy gets the lowest
/// niceness, because other threads need the CPU too.
const SHORT_PAUSE: Duration = Duration::from_millis(20);

/// Number and durations of the stops of a process.
#[derive(Debug, Default)]
struct Pauses {
    longest: Duration,
    count: u64,
}

impl Pauses {
    /// Adds a stop that began at `since` and ends now.
    fn add(&mut self, since: Instant) {
        self.longest = self.longest.max(since.elapsed());
        self.count += 1;
    }
}

/// A planned copy with its memory, before the pause.
struct Prepared<'r> {
    process: Process,
    /// The thread through which the memory is read: the first thread, or another one if it has
    /// ended.
    reader: Pid,
    page_size: PageSize,
    scanner: PageScanner<'r>,
    buffer: CopyBuffer,
    names: HashMap<u32, Vec<u8>>,
    expected: ExpectedPause,
    /// The ranges to copy, as planned before the pause.
    planned: Vec<AddrRange>,
    /// Number of bytes of the private mappings that the program can write to.
    committed: Bytes,
}

impl<'r> Prepared<'r> {
    fn new(
        root: &'r ProcRoot,
        pid: Pid,
        request: &CopyRequest<'_>,
        threads: usize,
        estimate: &mut dyn FnMut(&CopyPlan, &mut CopyBuffer) -> Duration,
    ) -> Result<Prepared<'r>, ScanError> {
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let (process, mappings) = outline(root, pid)?;
        let mappings = readable(root, pid, mappings)?;
        let reader = reader_of(root, pid);
        let scanner = PageScanner::open(root, &process, reader, page_size)?;
        let plan = CopyPlan::read(&scanner, mappings, request.scope, &[])?;
        let wanted = room_for(plan.bytes());
        permit_memory(root, wanted)?;
        let needed = plan.bytes().saturating_add(plan.bytes() / 128).saturating_add(FAULTED_SPARE);
        let mut buffer = CopyBuffer::map(wanted, needed).map_err(ScanError::Buffer)?;
        let pause = estimate(&plan, &mut buffer);
        let expected = ExpectedPause { threads, bytes: Bytes(plan.bytes()), pause };
        if pause > request.max_pause {
            let (bytes, limit) = (expected.bytes, request.max_pause);
            return Err(ScanError::PauseTooLong { bytes, takes: pause, limit });
        }
        let names = threads_of(root, pid).into_iter().map(|tid| (tid, name_of(root, pid, tid)));
        let names = names.collect();
        let writable = plan.mappings.iter().filter(|it| it.prot.write);
        let private = writable.filter(|it| it.sharing == Sharing::Private);
        let committed = private.map(|it| it.range.len()).sum();
        let planned = plan.ranges;
        Ok(Prepared {
            process,
            reader,
            page_size,
            scanner,
            buffer,
            names,
            expected,
            planned,
            committed,
        })
    }

    /// Stops all threads, copies, and resumes the threads. Returns `None` if the process has grown
    /// beyond the prepared memory. Adds the stops to `pauses`.
    fn copy(
        self,
        root: &ProcRoot,
        target: &RemoteProcess,
        request: &CopyRequest<'_>,
        pauses: &mut Pauses,
    ) -> Result<Option<ProcessCopy>, ScanError> {
        let SettledStop { stopped, stops, since, unsettled } =
            settled_stop(target, self.reader, request, pauses)?;
        let is_short = self.expected.pause <= SHORT_PAUSE;
        let copy = || self.fill(root, &stops, since, request);
        // Preemption of the copying threads would prolong the pause.
        let copied = if is_short { briefly_raised(copy) } else { copy() };
        drop(stopped);
        pauses.add(since);
        let measured = |mut copy: ProcessCopy| {
            copy.release_spare();
            copy.measured.pause_ns = nanoseconds(pauses.longest);
            copy.measured.stops = pauses.count;
            copy.measured.unsettled_threads = unsettled;
            copy
        };
        copied.map(|copy| copy.map(measured))
    }

    /// Copies a stopped process.
    fn fill(
        self,
        root: &ProcRoot,
        stops: &[(u32, StopPoint)],
        since: Instant,
        request: &CopyRequest<'_>,
    ) -> Result<Option<ProcessCopy>, ScanError> {
        let Prepared { process, reader, page_size, scanner, mut buffer, names, expected, .. } =
            self;
        let text = root.read(reader, "maps")?;
        let mappings = pagewise_proc::maps::parse(&text).mappings;
        let plan = CopyPlan::read(&scanner, mappings, request.scope, stops)?;
        if plan.bytes() > buffer.capacity() {
            return Ok(None);
        }
        let deadline = since.checked_add(request.copy_time());
        let unread = buffer.fill(reader.0, &plan.ranges, deadline).map_err(|why| match why {
            TransferFailure::Late => ScanError::PauseTooLong {
                bytes: Bytes(plan.bytes()),
                takes: since.elapsed().max(request.max_pause),
                limit: request.max_pause,
            },
            TransferFailure::Refused(error) => ScanError::Copy(error),
        })?;
        let measured = MemoryCopy {
            copied: Bytes(plan.bytes() - unread.iter().map(|hole| hole.len().0).sum::<u64>()),
            swapped: plan.swapped,
            unread: unread.iter().map(|hole| hole.len()).sum(),
            pause_ns: nanoseconds(since.elapsed()),
            expected_pause_ns: nanoseconds(expected.pause),
            stops: 1,
            unsettled_threads: 0,
            snapshot_ns: None,
        };
        let threads = stops.iter().map(|(tid, stop)| thread(*tid, stop, &names)).collect();
        let copy = ProcessCopy::new(process, page_size, plan, threads, buffer, &unread, measured);
        Ok(Some(copy.with_files(MappedFiles::new(root, reader))))
    }
}

/// All threads of a process in ptrace stops.
struct SettledStop {
    stopped: Vec<Tracee>,
    stops: Vec<(u32, StopPoint)>,
    since: Instant,
    /// Number of threads that may be in the code of the allocator.
    unsettled: u64,
}

/// Stops all threads, and repeats this until no thread is in the code of the allocator, at most
/// [`MAX_REPEATS`] times. Adds every stop except the last to `pauses`.
fn settled_stop(
    target: &RemoteProcess,
    reader: Pid,
    request: &CopyRequest<'_>,
    pauses: &mut Pauses,
) -> Result<SettledStop, ScanError> {
    let mut repeats = 0;
    loop {
        let since = Instant::now();
        let stopped = target.stop_all_anywhere(request.max_pause)?;
        if stopped.is_empty() {
            return Err(RemoteError::Gone.into());
        }
        let stops: Vec<(u32, StopPoint)> =
            stopped.iter().map(|thread| (thread.thread(), thread.place())).collect();
        let unsettled = unsettled_threads(reader, &stops, request.busy_code);
        if unsettled == 0 || repeats == MAX_REPEATS {
            return Ok(SettledStop { stopped, stops, since, unsettled });
        }
        drop(stopped);
        pauses.add(since);
        repeats += 1;
        sleep(BETWEEN_STOPS);
    }
}

/// Number of threads whose program counter, or a return address near the top of their stack, is in
/// `code`.
fn unsettled_threads(reader: Pid, stops: &[(u32, StopPoint)], code: &[AddrRange]) -> u64 {
    let is_busy = |address: u64| code.iter().any(|range| range.contains(address));
    let returns = |stop: &StopPoint| {
        let mut bytes = vec![0; examined_stack(stop)];
        let range = stop.stack..stop.stack.saturating_add(bytes.len() as u64);
        let read = remote::read(reader.0, std::slice::from_ref(&range), &mut bytes).unwrap_or(0);
        bytes[..read].as_chunks().0.iter().any(|word| is_busy(u64::from_le_bytes(*word)))
    };
    let busy = stops.iter().filter(|(_, stop)| is_busy(stop.instruction) || returns(stop));
    if code.is_empty() { 0 } else { busy.count() as u64 }
}

/// Number of bytes above the stack pointer that are examined for return addresses. A thread in a
/// system call that allocators do not make is not in allocator code: only stale return addresses on
/// its stack point to allocator code.
fn examined_stack(stop: &StopPoint) -> usize {
    /// System call numbers of `mmap`, `mprotect`, `munmap`, `brk`, `mremap` and `madvise` on
    /// x86-64.
    const OF_ALLOCATORS: [u64; 6] = [9, 10, 11, 12, 25, 28];
    /// System call number of `futex`. The function that waits for a lock of the allocator has a
    /// small frame, so fewer bytes of the stack are examined.
    const FUTEX: u64 = 202;
    match stop.call {
        Some((FUTEX, _)) => STACK_BYTES / 8,
        Some((number, _)) if !OF_ALLOCATORS.contains(&number) => 0,
        _ => STACK_BYTES,
    }
}

fn thread(tid: u32, stop: &StopPoint, names: &HashMap<u32, Vec<u8>>) -> ScannedThread {
    ScannedThread {
        tid,
        name: names.get(&tid).cloned().unwrap_or_default(),
        stack_pointer: stop.stack,
        thread_pointer: stop.thread_data,
        registers: stop.registers.to_vec(),
    }
}

fn readable(
    root: &ProcRoot,
    pid: Pid,
    mappings: Result<Vec<Mapping>, Absent>,
) -> Result<Vec<Mapping>, ScanError> {
    match mappings {
        Ok(mappings) if !mappings.is_empty() => Ok(mappings),
        Ok(_) => {
            Err(ScanError::NoHeap("the process has no memory: it has ended, or is a kernel thread"))
        }
        Err(_) => {
            Err(pagewise_proc::ProcError::no_access(root, pid, pagewise_proc::CAP_SYS_PTRACE)
                .into())
        }
    }
}

/// Returns the thread through which the memory of a process can be read: the first thread, or
/// another thread if the first thread has ended.
fn reader_of(root: &ProcRoot, pid: Pid) -> Pid {
    let has_memory = |pid: &Pid| root.read(*pid, "maps").is_ok_and(|text| !text.is_empty());
    let threads = threads_of(root, pid).into_iter().map(Pid);
    std::iter::once(pid).chain(threads).find(has_memory).unwrap_or(pid)
}

fn name_of(root: &ProcRoot, pid: Pid, tid: u32) -> Vec<u8> {
    let name = root.read(pid, &format!("task/{tid}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n").map(<[u8]>::to_vec).unwrap_or(name)
}

/// Number of bytes to reserve for a copy of `bytes`, including a reserve for growth of the process.
const fn room_for(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 16).saturating_add(8 << 20)
}

fn permit_memory(root: &ProcRoot, wanted: u64) -> Result<(), ScanError> {
    let needed = Bytes(wanted);
    match meminfo::machine(root).mem_available {
        Ok(available) if available < needed + RESERVE => {
            Err(ScanError::NoMemory { needed, available, reserve: RESERVE })
        }
        _ => Ok(()),
    }
}

/// Returns the expected pause, with the reserve of [`CopyRequest::copy_time`]. The copy rate is
/// measured on the first part, while the process runs.
fn expected(plan: &CopyPlan, buffer: &mut CopyBuffer, pid: Pid, threads: usize) -> Duration {
    let trial = plan.first_bytes(TRIAL);
    let bytes: u64 = trial.iter().map(|range| range.len().0).sum();
    let begin = Instant::now();
    let read = buffer.fill(pid.0, &trial, None).is_ok();
    let micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
    let rate = if read && bytes >= TRIAL / 2 { bytes / micros } else { USUAL_RATE };
    let copy = Duration::from_micros(plan.bytes() / rate.max(MIN_RATE));
    (expected_pause(threads) + copy) * 5 / 4
}
