//! Attaches to a running program: one of its threads loads the recorder, and pagewise hooks the
//! program's functions while all threads are stopped.
//!
//! Each step waits until it is safe. A thread loads the recorder only while it is in no function of
//! the C library that holds a lock ([`crate::safe_call`]), and on a stack that pagewise maps.
//! Pagewise changes function entries only while all threads are stopped. At that time, no thread
//! executes the replaced instructions, and no return address points into them. The recorder's
//! memory is unmapped only when no thread can reach it.
//!
//! pagewise may be killed at any point. Threads then restore their own registers
//! ([`pagewise_remote`]). Code is changed by single writes within a page, and the program works
//! after each write. A keeper, a process outside of the target, undoes the other changes
//! ([`Attached::left_behind`]).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_heaplog::tables::named::{self, row};
use pagewise_heaplog::tables::{self, HEADER, MAGIC, attached, header, hooks};
use pagewise_model::{Mapping, Pid};
use pagewise_proc::elf::{is_of_32_bits, is_static_program};
use pagewise_proc::target_file::{self, Refusal, TargetRoot};
use pagewise_proc::{ProcRoot, maps, variables};
use pagewise_remote::{self as remote, Keeper, TargetMemory, Tracee, on_tracer_thread};
use pagewise_sys::remote::read_each;
use thiserror::Error;

use crate::collector::{Collector, Identity};
use crate::probes;
use crate::safe_call::{
    CallRoom, Judge, Mallocs, PATIENCE, ProcessFunction, is_libc, is_ready, is_recorder,
    permits_calls, safe_thread,
};

/// Reason why a running program is not recorded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachRefused {
    /// A part of the process cannot be read.
    #[error("cannot read {what} of process {pid}")]
    Unreadable {
        /// PID of the process.
        pid: u32,
        /// Name of the part that cannot be read.
        what: &'static str,
        /// Error of the read.
        #[source]
        source: io::Error,
    },
    /// The process cannot be recorded.
    #[error("process {pid} cannot be recorded: {why}")]
    Not {
        /// PID of the process.
        pid: u32,
        /// Reason as text.
        why: String,
    },
    /// No thread reached a point at which it may load a library.
    #[error("in {} s no thread of process {pid} was where it could load the recorder: they are within the C library", waited.as_secs())]
    NeverSafe {
        /// PID of the process.
        pid: u32,
        /// Duration of the attempts.
        waited: Duration,
    },
    /// Another process of pagewise records the process.
    #[error("process {pid} cannot be recorded: another recording of it runs")]
    Recorded {
        /// PID of the process.
        pid: u32,
    },
    /// Like `NeverSafe`, for a process with an allocator that replaces the allocator of the C
    /// library.
    #[error(
        "in {} s no thread of process {pid} was where it could load the recorder: {files} has a malloc of its own, and {why}",
        waited.as_secs()
    )]
    InMalloc {
        /// PID of the process.
        pid: u32,
        /// Duration of the attempts.
        waited: Duration,
        /// Names of the files that contain the allocators.
        files: String,
        /// Reason why no thread reached a point at which it may load a library.
        why: &'static str,
    },
    /// The threads could not be stopped, or could not be made to call a function.
    #[error("cannot stop process {pid} for a moment")]
    NotStopped {
        /// PID of the process.
        pid: u32,
        /// Error of the remote call.
        #[source]
        source: remote::RemoteError,
    },
    /// A function of the process could not be called.
    #[error("a function that process {pid} was made to call did not return as it should")]
    NotCalled {
        /// PID of the process.
        pid: u32,
        /// Error of the call.
        #[source]
        source: io::Error,
    },
    /// The collector failed.
    #[error(transparent)]
    Collector(#[from] crate::HeapError),
}

/// Limits of the attempts to stop all threads at points at which it is safe to change or unmap
/// code.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    /// Number of attempts.
    attempts: u32,
    /// Limit of a pause after [`TOO_LONG`] attempts have exceeded the permitted pause.
    at_last: Duration,
}

/// Time limits of the attempts to stop all threads at points at which it is safe to change or unmap
/// code: the general limit, and the limit for a process that a signal has stopped.
const SEARCH: Duration = Duration::from_secs(4);
const SEARCH_STOPPED: Duration = Duration::from_millis(300);
/// Limits at the beginning of a recording: no pause exceeds the permitted pause.
const TO_BEGIN: Pauses = Pauses { attempts: 400, at_last: Duration::ZERO };
/// Limits of the attempts to begin while no thread is inside `dlclose`: about 100 ms in total. A
/// longer search may never succeed: a stale return address into `dlclose` may stay on a stack
/// forever.
const OUTSIDE_DLCLOSE: Pauses = Pauses { attempts: 60, at_last: Duration::ZERO };
/// Limits at the end of a recording: a long pause is better than functions that stay hooked.
const TO_END: Pauses = Pauses { attempts: 400, at_last: PAUSE_AT_LAST };
/// Limits of the attempts to unmap relocated prologues: few attempts, since the page of the
/// prologues may stay mapped.
const TO_UNMAP_CODE: Pauses = Pauses { attempts: 10, at_last: Duration::ZERO };
/// Maximum pause at the end of a recording, if the threads cannot be stopped within the permitted
/// pause.
const PAUSE_AT_LAST: Duration = Duration::from_secs(2);
/// On a busy machine, an attempt to stop all threads may exceed the limit of a pause. After this
/// number of such attempts the limit is raised, and the same number of further attempts may exceed
/// the raised limit.
const TOO_LONG: u32 = 10;
/// Number of bytes of a thread's stack that are searched for return addresses.
const SEARCHED: usize = 64 << 10;
/// Number of bytes of a jump with a 32-bit displacement.
const JUMP: usize = 5;

/// A process that is recorded while it runs.
#[derive(Debug)]
pub struct Attached {
    process: AttachedProcess,
    entries: Vec<FunctionEntry>,
    /// Offset of the recorder's thread-local words from the thread pointer.
    own: u64,
    /// Address range of the recorder's code.
    recorder: Range<u64>,
    /// Address of the function that ends the recording.
    detach: u64,
    /// Address of the function that unmaps the recorder's memory.
    release: u64,
    /// Address of the recorder's word for the number of threads that exist but do not record yet.
    coming: u64,
    /// Address ranges of the relocated prologues, near the hooked functions.
    moved: Vec<Range<u64>>,
}

/// Parts of a recorder that remain in a process after its recording has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehind {
    /// Only the library, which no function calls, and perhaps a page of relocated prologues, to
    /// which a signal handler may return.
    Whole,
    /// The library and the recorder's memory, since some thread did not leave the recorder. No
    /// function is hooked.
    MemoryStays,
    /// Nothing: the process has ended, or runs another program.
    NotThere,
}

/// First bytes of a function, without and with the jump of an inline hook.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FunctionEntry {
    at: u64,
    /// Number of bytes of the instructions that were relocated.
    length: u64,
    before: [u8; JUMP],
    after: [u8; JUMP],
}

/// The longest time for which any thread of a process was stopped, or made a call for pagewise.
#[derive(Clone, Debug, Default)]
pub struct PauseMeter(Arc<AtomicU64>);

impl PauseMeter {
    fn note(&self, pause: Duration) {
        let nanoseconds = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// The longest pause so far.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Threads that are stopped until the value is dropped.
#[derive(Debug)]
struct StoppedThreads<'a> {
    threads: Vec<Tracee>,
    began: Instant,
    meter: &'a PauseMeter,
}

impl Drop for StoppedThreads<'_> {
    fn drop(&mut self) {
        self.threads.clear();
        self.meter.note(self.began.elapsed());
    }
}

impl Deref for StoppedThreads<'_> {
    type Target = Vec<Tracee>;

    fn deref(&self) -> &Vec<Tracee> {
        &self.threads
    }
}

impl DerefMut for StoppedThreads<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Tracee> {
        &mut self.threads
    }
}

/// The target process, the limit of its pauses, and a meter of its pauses.
#[derive(Debug)]
struct AttachedProcess {
    pid: u32,
    root: ProcRoot,
    target: remote::RemoteProcess,
    max_pause: Duration,
    pauses: PauseMeter,
}

/// Returns the entry of the function at `at` with a jump to `to`; an error if a 32-bit displacement
/// does not reach `to`, or if the jump would cross a page boundary.
fn entry(at: u64, length: u64, before: u64, to: u64) -> io::Result<FunctionEntry> {
    // A write within one page is done completely or not at all, even if this process is killed
    // during the write.
    if at % page_size() + JUMP as u64 > page_size() {
        let what = "a function's first instructions lie on two pages";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let distance = to.wrapping_sub(at.wrapping_add(JUMP as u64)).cast_signed();
    let far = |_| io::Error::new(io::ErrorKind::InvalidData, "a function is too far away");
    let mut after = [0xe9; JUMP];
    after[1..].copy_from_slice(&i32::try_from(distance).map_err(far)?.to_le_bytes());
    let mut first = [0; JUMP];
    first.copy_from_slice(&before.to_le_bytes()[..JUMP]);
    Ok(FunctionEntry { at, length, before: first, after })
}

impl Attached {
    /// Loads the recorder into a running process and makes it record for `collector`, to which
    /// `Collector::expect` must have named the process. All threads of the process are stopped for
    /// at most `max_pause`; `pauses` records the longest pause. Each change is reported to `keeper`
    /// before it is made, so that the keeper can undo it if pagewise is killed.
    ///
    /// # Errors
    /// Returns an error if attaching would be harmful, with the reason.
    pub fn begin(
        collector: &mut Collector,
        pid: u32,
        max_pause: Duration,
        pauses: &PauseMeter,
        keeper: &mut (dyn Keeper + Send),
    ) -> Result<Attached, AttachRefused> {
        on_tracer_thread(|| Attached::begin_traced(collector, pid, max_pause, pauses, keeper))
    }

    fn begin_traced(
        collector: &mut Collector,
        pid: u32,
        max_pause: Duration,
        pauses: &PauseMeter,
        keeper: &mut dyn Keeper,
    ) -> Result<Attached, AttachRefused> {
        let not = |why: &str| AttachRefused::Not { pid, why: why.to_owned() };
        let root = ProcRoot::live();
        let before = mappings(&root, pid)?;
        let mallocs = can_be_attached(&root, pid, &before)?;
        let process = AttachedProcess::open(pid, max_pause, pauses.clone())?;
        process.target.permits_calls().map_err(|error| not(&error.to_string()))?;
        process.target.permits_pause(max_pause).map_err(|error| process.not_stopped(error))?;
        let mappings = match Attached::left_behind(pid, max_pause)? {
            Some(left) => {
                left.end_traced(keeper)?;
                mappings(&root, pid)?
            }
            None => before,
        };
        let is_loaded = loaded(&root, pid, &mappings).is_some();
        let library = collector.library();
        if !sees(&root, pid, collector.socket()) || !is_loaded && !sees(&root, pid, library) {
            collector.move_into(&root, pid).map_err(|error| {
                not(&format!("it has another root directory (a container), and {error}"))
            })?;
        }
        let library = match loaded(&root, pid, &mappings) {
            Some(library) => library,
            None => collector.library().to_owned(),
        };
        collector.open_to(&root, pid)?;
        let loader = Loader::find(&root, pid, &mappings)?;
        let mut judge = Judge::new(&process.root, pid, mallocs);
        let mut thread = process.safe_thread(&mut judge)?;
        let began = Instant::now();
        let loaded = process.load(&mut thread, &loader, &library, collector, keeper);
        thread.release();
        pauses.note(began.elapsed());
        loaded?;
        collector.has_come();
        let tables = collector.tables_of(pid).ok_or_else(|| not("its recorder did not answer"))?;
        let attached = Attached::resolve(process, &|_, number| tables.head(number))?;
        if let Err(error) = attached.hook(loader.close.as_ref()) {
            // `end_traced` makes the recorder unmap its memory. The original error is reported, not
            // an error of `end_traced`.
            let _ = attached.end_traced(keeper);
            return Err(error);
        }
        Ok(attached)
    }

    /// Reads the addresses that the recorder publishes in the header of its tables.
    fn resolve(
        process: AttachedProcess,
        head: &dyn Fn(&AttachedProcess, usize) -> io::Result<u64>,
    ) -> Result<Attached, AttachRefused> {
        let head = |number| head(&process, number);
        let get = |number| head(number).map_err(|source| process.unreadable(source));
        let entries = process.entries(&head).map_err(|source| process.unreadable(source))?;
        let (own, detach) = (get(hooks::OWN)?, get(hooks::DETACH)?);
        let (release, coming) = (get(hooks::RELEASE)?, get(hooks::COMING)?);
        let recorder = process.recorder(detach)?;
        let moved = moved_code(&get)?;
        Ok(Attached { process, entries, own, recorder, detach, release, coming, moved })
    }

    /// Returns the recording that a killed collector has left in a process, if there is one.
    ///
    /// # Errors
    /// Returns an error if the collector of the recording may still be running, or if the process
    /// cannot be read.
    pub fn left_behind(pid: u32, max_pause: Duration) -> Result<Option<Attached>, AttachRefused> {
        let root = ProcRoot::live();
        let mappings = mappings(&root, pid)?;
        let Some(tables) = crate::tables::mapping(&mappings) else {
            return Ok(None);
        };
        let tables = tables.range.start;
        let process = AttachedProcess::open(pid, max_pause, PauseMeter::default())?;
        let head = |process: &AttachedProcess, number: usize| {
            let mut word = [0; 8];
            process.memory().read(tables + HEADER.place(number) as u64, &mut word)?;
            Ok(u64::from_ne_bytes(word))
        };
        let get = |number| head(&process, number).map_err(|source| process.unreadable(source));
        // Until a forked child begins to record, it has the tables of its parent.
        let is_its_own = own_number(&root, pid) == Some(get(header::PID)?);
        let words = [
            get(tables::collector::PID)?,
            get(tables::collector::STARTED)?,
            get(tables::collector::NAMESPACE)?,
        ];
        let Some(who) = Identity::told(words)
            .filter(|_| is_its_own && get(header::MAGIC).is_ok_and(|it| it == MAGIC))
        else {
            return Ok(None);
        };
        if who.may_live(&root) {
            return Err(AttachRefused::Recorded { pid });
        }
        Attached::resolve(process, &head).map(Some)
    }

    /// Returns the recording of a recorded child that the process has forked since attaching.
    ///
    /// # Errors
    /// Returns an error if the child cannot be read.
    pub fn child(&self, pid: u32) -> Result<Attached, AttachRefused> {
        let pauses = self.process.pauses.clone();
        let process = AttachedProcess::open(pid, self.process.max_pause, pauses)?;
        let (entries, recorder) = (self.entries.clone(), self.recorder.clone());
        let Attached { own, detach, release, coming, .. } = *self;
        let moved = self.moved.clone();
        Ok(Attached { process, entries, own, recorder, detach, release, coming, moved })
    }

    /// Installs inline hooks in all functions. `close` is the code of `dlclose`: a thread inside
    /// `dlclose` would unload a library without a report to the recorder. The recorder would then
    /// attribute calls of the next library at the same address to the old library.
    fn hook(&self, close: Option<&Range<u64>>) -> Result<(), AttachRefused> {
        let entries = &self.entries;
        let is_inside = |address: u64| {
            entries.iter().any(|entry| address > entry.at && address - entry.at < entry.length)
        };
        let is_any = |threads: &[Tracee], is_inside: &dyn Fn(u64) -> bool| {
            threads.iter().map(Tracee::place).any(|place| {
                is_inside(place.instruction) || self.process.stack(place.stack).any(is_inside)
            })
        };
        let closes = |address: u64| close.is_some_and(|code| code.contains(&address));
        let is_in_the_way =
            |threads: &[Tracee]| is_any(threads, &|address| is_inside(address) || closes(address));
        let mut stopped = self.process.stop_all_outside(OUTSIDE_DLCLOSE, &is_in_the_way)?;
        if stopped.is_none() {
            // A destructor may run for long inside `dlclose`. Recording then is safe, but a call
            // stack may be wrong.
            let is_in_the_way = |threads: &[Tracee]| is_any(threads, &is_inside);
            stopped = self.process.stop_all_outside(TO_BEGIN, &is_in_the_way)?;
        }
        let Some(stopped) = stopped else {
            return Err(AttachRefused::NeverSafe { pid: self.process.pid, waited: PATIENCE });
        };
        let memory = self.process.memory();
        for entry in entries {
            let mut now = [0; JUMP];
            let read = memory.read(entry.at, &mut now);
            if read.is_err() || (now != entry.before && now != entry.after) {
                let why =
                    "the code of its allocation functions was changed by another tool".to_owned();
                return Err(AttachRefused::Not { pid: self.process.pid, why });
            }
        }
        let mut written = entries.iter().try_for_each(|entry| memory.write(entry.at, &entry.after));
        if written.is_ok() && stopped.len() == 1 && self.coming != 0 {
            // The process has one thread, which does not record yet. With this exact number, the
            // recorder counts peaks exactly.
            written = memory.write(self.coming, &1_u64.to_ne_bytes());
        }
        if written.is_err() {
            for entry in entries {
                let _ = memory.write(entry.at, &entry.before);
            }
        }
        drop(stopped);
        written.map_err(|source| self.process.unreadable(source))
    }

    /// Ends the recording: unhooks all functions, and makes the recorder unmap its memory if no
    /// thread stays in the recorder.
    ///
    /// # Errors
    /// Returns an error if threads cannot be stopped.
    pub fn end(self, keeper: &mut (dyn Keeper + Send)) -> Result<LeftBehind, AttachRefused> {
        on_tracer_thread(|| self.end_traced(keeper))
    }

    fn end_traced(self, keeper: &mut dyn Keeper) -> Result<LeftBehind, AttachRefused> {
        let process = &self.process;
        let unreadable = |source| process.unreadable(source);
        let Some(mut stopped) =
            process.stop_all_outside(TO_END, &|threads| self.is_one_recording(threads))?
        else {
            // If some thread does not leave the recorder, the hooks are removed, and the recorder's
            // memory stays.
            let stopped = process.stop_all(PAUSE_AT_LAST)?;
            let is_there = self.unhook();
            drop(stopped);
            return match is_there.map_err(unreadable)? {
                true => Ok(LeftBehind::MemoryStays),
                false => Ok(LeftBehind::NotThere),
            };
        };
        if stopped.is_empty() || !self.is_there() || !self.unhook().map_err(unreadable)? {
            return Ok(LeftBehind::NotThere);
        }
        let Some(mut thread) = process.ready_one(&mut stopped)? else {
            return Err(AttachRefused::NeverSafe { pid: process.pid, waited: PATIENCE });
        };
        // The other threads continue. They may enter the recorder, whose functions work both before
        // and after the end of the recording.
        drop(stopped);
        let began = Instant::now();
        let room = process.room(&mut thread, keeper)?;
        let ended = room.call(&mut thread, &ProcessFunction::at(self.detach), [0; 5], &mut || {});
        room.unmap(&mut thread, keeper);
        drop(thread);
        process.pauses.note(began.elapsed());
        ended.map_err(|source| process.not_called(source))?;
        self.release(keeper)
    }

    /// Makes the recorder unmap its memory. Called only after the recording has ended and no thread
    /// is in the recorder.
    fn release(&self, keeper: &mut dyn Keeper) -> Result<LeftBehind, AttachRefused> {
        let process = &self.process;
        // A signal handler may return into a relocated prologue. Stale words on a stack cannot be
        // distinguished from such return addresses, so any stack word that is an address in the
        // prologues keeps them mapped.
        let may_return = |threads: &[Tracee]| {
            threads.iter().map(Tracee::place).any(|place| {
                let is_moved = |address: u64| self.moved.iter().any(|it| it.contains(&address));
                is_moved(place.instruction) || process.stack(place.stack).any(is_moved)
            })
        };
        let is_in_the_way =
            |threads: &[Tracee]| self.is_one_recording(threads) || may_return(threads);
        let is_recording = |threads: &[Tracee]| self.is_one_recording(threads);
        let (stopped, with_moved) = match process.stop_all_outside(TO_UNMAP_CODE, &is_in_the_way)? {
            Some(stopped) => (Some(stopped), 1),
            None => (process.stop_all_outside(TO_END, &is_recording)?, 0),
        };
        let Some(mut stopped) = stopped else {
            return Ok(LeftBehind::MemoryStays);
        };
        if stopped.is_empty() || !self.is_there() {
            return Ok(LeftBehind::NotThere);
        }
        self.forget_threads(&stopped).map_err(|source| process.unreadable(source))?;
        let Some(mut thread) = process.ready_one(&mut stopped)? else {
            return Ok(LeftBehind::MemoryStays);
        };
        // The other threads need not wait for the call.
        drop(stopped);
        let began = Instant::now();
        let room = process.room(&mut thread, keeper)?;
        let released = room.call(
            &mut thread,
            &ProcessFunction::at(self.release),
            [with_moved, 0, 0, 0, 0],
            &mut || {},
        );
        room.unmap(&mut thread, keeper);
        drop(thread);
        process.pauses.note(began.elapsed());
        released.map(|_| LeftBehind::Whole).map_err(|source| process.not_called(source))
    }

    /// Clears the recorder's thread-local words of all threads, which are stopped.
    fn forget_threads(&self, stopped: &[Tracee]) -> io::Result<()> {
        let known =
            self.own_words(stopped)?.into_iter().filter(|(_, words)| *words != Some([0; 24]));
        known.map(|(at, _)| at).try_for_each(|at| self.process.memory().write(at, &[0; 24]))
    }

    /// Returns the address and the contents of the recorder's thread-local words of each thread:
    /// the address of the thread's state, the number of bytes that the thread may allocate before
    /// the next sample, and the stage of the thread ([`hooks::BUSY`] while it is inside the
    /// recorder). `None` if the words cannot be read.
    fn own_words(&self, stopped: &[Tracee]) -> io::Result<Vec<(u64, Option<[u8; 24]>)>> {
        let own = |thread: &Tracee| thread.place().thread_data.wrapping_add(self.own);
        let addresses: Vec<u64> = stopped.iter().map(own).collect();
        let words = read_each(self.process.pid, &addresses)?;
        Ok(addresses.into_iter().zip(words).collect())
    }

    /// True if the recorder is still loaded at its address. False if the process has executed
    /// another program.
    fn is_there(&self) -> bool {
        let now = mappings(&self.process.root, self.process.pid).unwrap_or_default();
        let found = now.iter().find(|it| it.range.start == self.recorder.start);
        found.is_some_and(|it| is_recorder(&it.name))
    }

    /// Restores the entries of all functions. Returns false, and changes nothing, if an entry
    /// cannot be read, or contains neither its original code nor the jump.
    fn unhook(&self) -> io::Result<bool> {
        let mut jumps = Vec::new();
        for entry in &self.entries {
            let mut now = [0; JUMP];
            let read = self.process.memory().read(entry.at, &mut now);
            if read.is_err() || (now != entry.after && now != entry.before) {
                return Ok(false);
            }
            if now == entry.after {
                jumps.push(entry);
            }
        }
        for entry in jumps {
            self.process.memory().write(entry.at, &entry.before)?;
        }
        Ok(true)
    }

    /// True if any of the stopped threads is inside the recorder and may use its memory.
    fn is_one_recording(&self, threads: &[Tracee]) -> bool {
        if threads.iter().any(|thread| self.recorder.contains(&thread.place().instruction)) {
            return true;
        }
        // If the words cannot be read, the process has ended and records nothing.
        let Ok(words) = self.own_words(threads) else { return false };
        let mut states = Vec::new();
        for words in words.into_iter().filter_map(|(_, words)| words) {
            let word =
                |number: usize| words[number * 8..][..8].try_into().map_or(0, u64::from_ne_bytes);
            if word(2) == hooks::BUSY {
                return true;
            }
            // The address is 0 if the recorder has no state for the thread.
            states.extend(Some(word(0)).filter(|&address| address != 0));
        }
        let Ok(states) = read_each::<4>(self.process.pid, &states) else { return false };
        states.into_iter().flatten().any(|state| u32::from_ne_bytes(state) == hooks::NOW)
    }
}

impl AttachedProcess {
    fn open(
        pid: u32,
        max_pause: Duration,
        pauses: PauseMeter,
    ) -> Result<AttachedProcess, AttachRefused> {
        let root = ProcRoot::live();
        let target = remote::RemoteProcess::open(pid, None).map_err(|error| match error {
            remote::RemoteError::NotPermitted => {
                AttachRefused::Not { pid, why: NOT_OURS.to_owned() }
            }
            error => AttachRefused::Not { pid, why: error.to_string() },
        })?;
        Ok(AttachedProcess { pid, root, target, max_pause, pauses })
    }

    fn memory(&self) -> &TargetMemory {
        self.target.memory()
    }

    fn unreadable(&self, source: io::Error) -> AttachRefused {
        AttachRefused::Unreadable { pid: self.pid, what: "the memory", source }
    }

    fn not_stopped(&self, source: remote::RemoteError) -> AttachRefused {
        match source {
            remote::RemoteError::NotPermitted => {
                AttachRefused::Not { pid: self.pid, why: NOT_OURS.to_owned() }
            }
            source => AttachRefused::NotStopped { pid: self.pid, source },
        }
    }

    fn not_called(&self, source: io::Error) -> AttachRefused {
        AttachRefused::NotCalled { pid: self.pid, source }
    }

    /// Stops a thread at a point at which it may load a library.
    fn safe_thread(&self, judge: &mut Judge) -> Result<Tracee, AttachRefused> {
        let found = safe_thread(&self.root, &self.target, judge);
        let found = found.map_err(|error| self.not_stopped(error))?;
        found.ok_or_else(|| self.never_safe(judge.mallocs()))
    }

    fn never_safe(&self, mallocs: &Mallocs) -> AttachRefused {
        let (pid, waited) = (self.pid, PATIENCE);
        let files: Vec<String> = mallocs.names().map(|name| name.escaped().to_string()).collect();
        if files.is_empty() {
            return AttachRefused::NeverSafe { pid, waited };
        }
        let why = match mallocs.scattered() {
            Some(_) => {
                "only a thread that waits for input, a connection, a child or a signal is known not to be within it: try again while \
                 one does, or use `pagewise heap run`"
            }
            None => "they are within that or the C library",
        };
        AttachRefused::InMalloc { pid, waited, files: files.join(" and "), why }
    }

    /// Maps a stack and code for the functions that a thread of the process is made to call.
    fn room(
        &self,
        thread: &mut Tracee,
        keeper: &mut dyn Keeper,
    ) -> Result<CallRoom, AttachRefused> {
        CallRoom::make(&self.target, thread, keeper).map_err(|error| self.not_stopped(error))
    }

    /// Prepares a stopped thread for remote calls; false if its stack has too little space, or if
    /// it is in a restartable sequence.
    fn is_ready(&self, thread: &mut Tracee) -> Result<bool, AttachRefused> {
        is_ready(&self.target, thread).map_err(|error| self.not_stopped(error))
    }

    /// Removes one of the stopped threads from the list and prepares it for remote calls; `None` if
    /// no thread can be prepared.
    fn ready_one(&self, stopped: &mut Vec<Tracee>) -> Result<Option<Tracee>, AttachRefused> {
        for index in 0..stopped.len() {
            if self.is_ready(&mut stopped[index])? {
                return Ok(Some(stopped.swap_remove(index)));
            }
        }
        Ok(None)
    }

    /// Stops all threads, also threads that are created meanwhile. Returns no threads if the
    /// process has ended. The threads continue when the value is dropped.
    fn stop_all(&self, limit: Duration) -> Result<StoppedThreads<'_>, AttachRefused> {
        let began = Instant::now();
        let threads = self.target.stop_all_anywhere(limit).or_else(|error| match error {
            remote::RemoteError::Gone => Ok(Vec::new()),
            error => Err(self.not_stopped(error)),
        })?;
        Ok(StoppedThreads { threads, began, meter: &self.pauses })
    }

    /// Stops all threads at a point at which `is_in_the_way` is false; `None` if the attempts find
    /// no such point.
    fn stop_all_outside(
        &self,
        pauses: Pauses,
        is_in_the_way: &dyn Fn(&[Tracee]) -> bool,
    ) -> Result<Option<StoppedThreads<'_>>, AttachRefused> {
        let mut too_long = 0;
        let began = Instant::now();
        for attempt in 0..pauses.attempts {
            // The position of threads does not change while a signal has stopped the process, so
            // the shorter time limit applies.
            let is_over = began.elapsed() > SEARCH;
            if is_over || began.elapsed() > SEARCH_STOPPED && self.is_stopped() {
                break;
            }
            let limit = match too_long {
                0..TOO_LONG => self.max_pause,
                _ => self.max_pause.max(pauses.at_last),
            };
            match self.stop_all(limit) {
                Ok(stopped) if !is_in_the_way(&stopped) => return Ok(Some(stopped)),
                Ok(stopped) => drop(stopped),
                Err(AttachRefused::NotStopped {
                    source: remote::RemoteError::PauseTooLong { .. },
                    ..
                }) if too_long < 2 * TOO_LONG => {
                    too_long += 1;
                }
                Err(error) => return Err(error),
            }
            sleep(Duration::from_micros(100 + 50 * u64::from(attempt)));
        }
        Ok(None)
    }

    /// True if a signal has stopped the process.
    fn is_stopped(&self) -> bool {
        let stat = self.root.read(Pid(self.pid), "stat").ok();
        let stat = stat.and_then(|text| pagewise_proc::stat::parse(&text).ok());
        stat.is_some_and(|stat| stat.state == 'T')
    }

    /// Reads the words of a stack from `at` upward, at most [`SEARCHED`] bytes.
    fn stack(&self, at: u64) -> impl Iterator<Item = u64> + use<> {
        let bytes = self.memory().read_up_to(at & !7, SEARCHED);
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        words.into_iter()
    }

    /// Makes a stopped thread load the recorder and begin to record.
    fn load(
        &self,
        thread: &mut Tracee,
        loader: &Loader,
        library: &Path,
        collector: &mut Collector,
        keeper: &mut dyn Keeper,
    ) -> Result<(), AttachRefused> {
        let room = self.room(thread, keeper)?;
        let loaded = self.load_in(&room, thread, loader, library, collector);
        room.unmap(thread, keeper);
        loaded
    }

    /// Reads a message of the loader at an address of the process.
    fn message_at(&self, address: Option<u64>) -> String {
        let bytes = address.map(|at| self.memory().read_up_to(at, 300)).unwrap_or_default();
        pagewise_model::name::escape(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
            .into()
    }

    fn load_in(
        &self,
        room: &CallRoom,
        thread: &mut Tracee,
        loader: &Loader,
        library: &Path,
        collector: &mut Collector,
    ) -> Result<(), AttachRefused> {
        let not = |why: String| AttachRefused::Not { pid: self.pid, why };
        let run = |thread: &mut Tracee, function, [first, second]: [u64; 2]| {
            let (function, arguments) = (ProcessFunction::at(function), [first, second, 0, 0, 0]);
            room.call(thread, &function, arguments, &mut || {}).map_err(|it| self.not_called(it))
        };
        let text = |at: u64, bytes: &[u8]| {
            let bytes = [bytes, b"\0"].concat();
            let at = room.text() + at;
            self.memory().write(at, &bytes).map(|()| at).map_err(|it| self.unreadable(it))
        };
        let path = text(0, library.as_os_str().as_bytes())?;
        let attach = text(0x4000, b"pagewise_heap_attach")?;
        let detach = text(0x4040, b"pagewise_heap_detach")?;
        let settings = text(0x4080, collector.settings().as_bytes())?;
        let handle = run(thread, loader.open, [path, loader.flags])?;
        if handle == 0 {
            let error = loader.error.map(|error| run(thread, error, [0; 2])).transpose()?;
            return Err(not(format!("it does not load the recorder: {}", self.message_at(error))));
        }
        let attach = run(thread, loader.symbol, [handle, attach])?;
        let detach = run(thread, loader.symbol, [handle, detach])?;
        if attach == 0 || detach == 0 {
            return Err(not("it has loaded another version of the recorder".to_owned()));
        }
        let mut failed = None;
        let mut idle = || {
            if let Err(error) = collector.step() {
                failed.get_or_insert(error);
            }
        };
        let answer =
            room.call(thread, &ProcessFunction::at(attach), [settings, 0, 0, 0, 0], &mut idle);
        if let Some(error) = failed {
            return Err(error.into());
        }
        match answer.map_err(|source| self.not_called(source))? {
            attached::YES => Ok(()),
            attached::BUSY => Err(AttachRefused::Recorded { pid: self.pid }),
            attached::LATE => Err(not(
                "its recorder waited too long for an answer, because the machine is busy: try again"
                    .to_owned(),
            )),
            _ => Err(not(match collector.not_hooked().first() {
                Some((_, why)) => why.to_string(),
                None => "its recorder cannot begin: it has no memory, or may not open a socket"
                    .to_owned(),
            })),
        }
    }

    /// First bytes of the functions to hook, without and with jumps.
    fn entries(&self, head: &dyn Fn(usize) -> io::Result<u64>) -> io::Result<Vec<FunctionEntry>> {
        let (family, others) = (head(hooks::NEAR)?, head(hooks::NEAR_OTHERS)?);
        let wanted = head(hooks::WANTED)?;
        let mut entries = Vec::new();
        for index in 0..hooks::FUNCTIONS {
            let (at, length) = (head(hooks::AT + index)?, head(hooks::LENGTHS + index)?);
            if at == 0 || length == 0 || wanted >> index & 1 == 0 {
                continue;
            }
            let near = if index < hooks::FAMILY || others == 0 { family } else { others };
            let to = near.wrapping_add((index * hooks::STRIDE) as u64);
            match entry(at, length, head(hooks::BEFORE + index)?, to) {
                Ok(entry) => entries.push(entry),
                Err(far) if index < hooks::FAMILY => return Err(far),
                Err(_) => {}
            }
        }
        let count = usize::try_from(head(named::COUNT)?).unwrap_or(0).min(named::MAX_CHUNKS);
        for number in 0..count {
            let word = |word| head(named::ROWS + number * row::WORDS + word);
            let (at, length) = (word(row::AT)?, word(row::LENGTH)?);
            if at != 0 && length != 0 {
                entries.push(entry(at, length, word(row::BEFORE)?, word(row::PLACE)?)?);
            }
        }
        Ok(entries)
    }

    /// Address range of the recorder's code that contains `address`.
    fn recorder(&self, address: u64) -> Result<Range<u64>, AttachRefused> {
        let mappings = mappings(&self.root, self.pid)?;
        let has = |it: &&Mapping| (it.range.start..it.range.end).contains(&address);
        let found = mappings.iter().find(has).map(|it| it.range.start..it.range.end);
        found.ok_or_else(|| AttachRefused::Not {
            pid: self.pid,
            why: "its recorder is nowhere".to_owned(),
        })
    }
}

/// Address ranges of a recorder's relocated prologues.
fn moved_code(
    get: &dyn Fn(usize) -> Result<u64, AttachRefused>,
) -> Result<Vec<Range<u64>>, AttachRefused> {
    let near = [get(hooks::NEAR)?, get(hooks::NEAR_OTHERS)?].into_iter().filter(|&at| at != 0);
    let mut rooms: Vec<(u64, u64)> = near.map(|at| (at, (hooks::CODE_WORDS * 8) as u64)).collect();
    let count = usize::try_from(get(named::ROOM_COUNT)?).unwrap_or(0).min(named::MAX_ROOMS);
    for number in 0..count {
        rooms.push((get(named::ROOMS + 2 * number)?, get(named::ROOMS + 2 * number + 1)?));
    }
    Ok(rooms.into_iter().map(|(at, length)| at..at.saturating_add(length)).collect())
}

/// Functions of the C library that load libraries.
#[derive(Clone, Debug)]
struct Loader {
    open: u64,
    flags: u64,
    symbol: u64,
    error: Option<u64>,
    /// The code of `dlclose`.
    close: Option<Range<u64>>,
}

impl Loader {
    fn find(root: &ProcRoot, pid: u32, mappings: &[Mapping]) -> Result<Loader, AttachRefused> {
        /// `RTLD_NOW | RTLD_NODELETE`.
        const FLAGS: u64 = 0x1002;
        /// `__RTLD_DLOPEN`, which `__libc_dlopen_mode` requires.
        const INNER: u64 = 0x8000_0000;
        const NAMES: [&str; 6] =
            ["dlopen", "dlsym", "dlerror", "dlclose", "__libc_dlopen_mode", "__libc_dlsym"];
        let not = |why: &str| AttachRefused::Not { pid, why: why.to_owned() };
        let libc = mappings.iter().find(|it| is_libc(&it.name) && it.prot.exec);
        let libc = libc.ok_or_else(|| not("its C library has no code"))?;
        let file = target_file::open_mapped(root, Pid(pid), libc).map_err(|why| match why {
            Refusal::OtherFile | Refusal::NotRegular => {
                not("its C library is not the file any more that it was started with")
            }
            why => AttachRefused::Unreadable { pid, what: "the C library", source: why.into() },
        })?;
        let functions = variables::functions(&file, &NAMES);
        let address = |name: &str| {
            let function = functions.iter().find(|function| function.name == name)?;
            let into = function.offset.checked_sub(libc.offset)?;
            let address = libc.range.start.checked_add(into)?;
            (address < libc.range.end).then_some(address)
        };
        let plain = || Some((address("dlopen")?, FLAGS, address("dlsym")?));
        let inner =
            || Some((address("__libc_dlopen_mode")?, FLAGS | INNER, address("__libc_dlsym")?));
        let (open, flags, symbol) = plain()
            .or_else(inner)
            .ok_or_else(|| not("its C library has no function that loads libraries"))?;
        let close = address("dlclose").and_then(|start| {
            let size = functions.iter().find(|function| function.name == "dlclose")?.size;
            Some(start..start.checked_add(size)?)
        });
        Ok(Loader { open, flags, symbol, error: address("dlerror"), close })
    }
}

fn mappings(root: &ProcRoot, pid: u32) -> Result<Vec<Mapping>, AttachRefused> {
    let text = root.read(Pid(pid), "maps");
    let text = text.map_err(|error| AttachRefused::Not { pid, why: error.to_string() })?;
    Ok(maps::parse(&text).mappings)
}

/// Returns the allocators of a process that replace the allocator of the C library; an error if
/// `/proc` shows that the process cannot be recorded.
fn can_be_attached(
    root: &ProcRoot,
    pid: u32,
    mappings: &[Mapping],
) -> Result<Mallocs, AttachRefused> {
    permits_calls(root, pid).map_err(|why| AttachRefused::Not { pid, why })?;
    let not = |why: String| Err(AttachRefused::Not { pid, why });
    if !mappings.iter().any(|it| is_libc(&it.name)) {
        return not(without_libc(root, pid, mappings).to_owned());
    }
    if executable(root, pid).is_some_and(|file| is_of_32_bits(&file)) {
        return not("it is a program of 32 bits".to_owned());
    }
    Mallocs::find(root, pid, mappings).or_else(not)
}

/// Reason why a process has no C library that could load the recorder.
fn without_libc(root: &ProcRoot, pid: u32, mappings: &[Mapping]) -> &'static str {
    let is_musl = |mapping: &Mapping| {
        let file = mapping.name.base();
        file == b"libc.so" || file.starts_with(b"ld-musl-")
    };
    if mappings.iter().any(is_musl) {
        return "its C library is musl's, and that is not hooked";
    }
    match executable(root, pid) {
        Some(file) if is_of_32_bits(&file) => "it is a program of 32 bits",
        Some(file) if probes::is_of_go(&file) => {
            "it is a Go program, whose runtime does not use malloc: `go tool pprof` shows the Go heap"
        }
        Some(file) if is_static_program(&file) => {
            "it is linked statically and so loads nothing: `pagewise heap run` records it from its beginning"
        }
        _ => "it has no C library of GNU's that could load the recorder",
    }
}

fn executable(root: &ProcRoot, pid: u32) -> Option<File> {
    target_file::open_program(root, Pid(pid)).ok()
}

/// Checks that a process runs, is not a kernel thread, and may be traced.
///
/// # Errors
/// Returns the reason if the process does not exist, has ended, is a kernel thread, or may not be
/// traced.
pub fn is_visible(pid: u32) -> Result<(), AttachRefused> {
    let root = ProcRoot::live();
    let not = |why: &str| Err(AttachRefused::Not { pid, why: why.to_owned() });
    let stat = root.read(Pid(pid), "stat").ok();
    let Some(stat) = stat.and_then(|text| pagewise_proc::stat::parse(&text).ok()) else {
        return not("the process does not exist");
    };
    if stat.has_ended() {
        return not("it has ended, and its parent has not asked how (a zombie)");
    }
    if stat.is_kernel_thread() {
        return not("it is a thread of the kernel");
    }
    match fs::read_link(root.file(Pid(pid), "exe")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => not(NOT_OURS),
        // The `exe` link of a main thread that has ended cannot be read, though the process still
        // runs.
        _ => Ok(()),
    }
}

const NOT_OURS: &str = "it is another user's, gained privileges, or may not be traced (kernel.yama.ptrace_scope): that takes root \
or CAP_SYS_PTRACE";

/// Returns the path from which a process has loaded the recorder before. The loader identifies a
/// library by its path, even if the file was removed.
fn loaded(root: &ProcRoot, pid: u32, mappings: &[Mapping]) -> Option<PathBuf> {
    let mapping = mappings.iter().find(|mapping| is_recorder(&mapping.name))?;
    let name = mapping.name.as_bytes();
    let path = Path::new(OsStr::from_bytes(name.strip_suffix(b" (deleted)").unwrap_or(name)));
    // After `chroot` the kernel shows the path relative to the root of this process, but the loader
    // has stored the path relative to the root of the target.
    let theirs = fs::read_link(root.file(Pid(pid), "root")).ok();
    let within = theirs.and_then(|theirs| path.strip_prefix(theirs).ok().map(Path::to_owned));
    Some(within.map_or_else(|| path.to_owned(), |within| Path::new("/").join(within)))
}

/// True if a path names the same file in the root of the target as in the root of this process.
fn sees(root: &ProcRoot, pid: u32, path: &Path) -> bool {
    let theirs = TargetRoot::of_process(root, Pid(pid)).and_then(|it| it.find(path));
    let ours = TargetRoot::own().and_then(|it| it.find(path));
    theirs.ok().zip(ours.ok()).is_some_and(|(theirs, ours)| theirs.id() == ours.id())
}

/// PID of a process in its own PID namespace.
pub(crate) fn own_number(root: &ProcRoot, pid: u32) -> Option<u64> {
    let status = root.read(Pid(pid), "status").ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
