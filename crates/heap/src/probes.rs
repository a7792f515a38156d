//! Statically linked programs, which load no library: uprobes of the kernel observe their `malloc`
//! and similar functions.
//!
//! A probe at the entry of each function records its arguments and a copy of a part of the stack. A
//! probe at the return of each allocation function records the return value. This module does the
//! work that the recorder does in other programs. A probe costs some microseconds per call. Events
//! that do not fit into the ring buffer are lost and counted.

mod state;

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_heaplog::recording::{Begin, LogEnd, LogEnding, LogSnapshot};
use pagewise_model::Pid;
use pagewise_model::units::nanoseconds;
use pagewise_proc::elf::is_static_program;
use pagewise_proc::target_file::{self, MAX_ELF_BYTES};
use pagewise_proc::{ProcRoot, variables};
use pagewise_sys::perf_event::{Mode, PerfEvent, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_trace::{PerfRecord, SessionEvent, TraceSession, TraceTarget, Unwinder, Uprobes};
use thiserror::Error;

use crate::collector::{FIRST, Finished, MOMENTS, lives, tree};
use crate::memory;
use crate::output::{OutputFate, RecordingOutput};
use state::{ProbeRole, ProbeState, Probed, ProbedCall};

/// Reason why a statically linked program is not recorded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unwatched {
    /// The program is a Go program without `malloc`.
    #[error(
        "it is a Go program, whose runtime does not use malloc: `go tool pprof` shows the Go heap"
    )]
    Go,
    /// The program has no symbols of `malloc` and `free`.
    #[error(
        "it is linked statically and has no symbols malloc and free: they were stripped, or it uses other functions"
    )]
    NoSymbols,
    /// The kernel has no uprobes.
    #[error(
        "it is linked statically, and /sys lists no uprobes: /sys is not mounted, or the kernel lacks CONFIG_UPROBE_EVENTS"
    )]
    NoProbes,
    /// The user may not use uprobes.
    #[error("it is linked statically, and probes on its functions need root or CAP_PERFMON")]
    NotPermitted(#[source] pagewise_trace::TraceError),
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] crate::HeapError),
}

/// Number of stack bytes that are copied at the entry of an allocation function.
const STACK: u16 = 4000;
/// Number of stack bytes that are copied at the return of an allocation function. `posix_memalign`
/// may have stored the address of the block there.
const NEAR: u32 = 512;
/// Number of bytes of all ring buffers together; maximum and minimum number of bytes of the ring
/// buffer of one CPU.
const RINGS: usize = 64 << 20;
const RING: usize = 32 << 20;
const MIN_RING: usize = 1 << 17;

/// Names of the probed functions, and the meaning of their arguments.
const FUNCTIONS: &[(&str, ProbedCall)] = &[
    ("malloc", ProbedCall::Size(0)),
    ("free", ProbedCall::Free),
    ("cfree", ProbedCall::Free),
    ("calloc", ProbedCall::Array),
    ("realloc", ProbedCall::Resize),
    ("memalign", ProbedCall::Size(1)),
    ("aligned_alloc", ProbedCall::Size(1)),
    ("posix_memalign", ProbedCall::Into),
    ("valloc", ProbedCall::Size(0)),
    ("pvalloc", ProbedCall::Size(0)),
];

/// Functions of glibc that pass the blocks of a thread's cache to `free` as the thread ends. The
/// program has freed these blocks before.
const CACHE_FLUSHES: [&str; 2] = ["tcache_thread_shutdown", "__malloc_arena_thread_freeres"];

/// A program whose functions can be probed.
#[derive(Debug)]
pub struct ProbePlan {
    path: PathBuf,
    /// The functions, each with the offset of its entry in the file.
    functions: Vec<(ProbedCall, u64)>,
    /// The code of [`CACHE_FLUSHES`], as offsets in the file.
    cache_flushes: Vec<Range<u64>>,
}

/// Plans the probes for a statically linked command. `None` if the command loads libraries, as most
/// do.
///
/// # Errors
/// Returns an error with the reason if the command is statically linked and cannot be probed.
pub fn plan(program: &OsStr) -> Result<Option<ProbePlan>, Unwatched> {
    let Some(path) = find(program) else { return Ok(None) };
    let Ok(file) = target_file::open_regular(&path, MAX_ELF_BYTES) else { return Ok(None) };
    if !is_static_program(&file) {
        return Ok(None);
    }
    let names: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).chain(CACHE_FLUSHES).collect();
    let found = variables::functions(&file, &names);
    let mut functions: Vec<(ProbedCall, u64)> = Vec::new();
    for (name, call) in FUNCTIONS {
        let function = found.iter().find(|function| function.name == *name);
        if let Some(function) = function
            && !functions.iter().any(|(_, offset)| *offset == function.offset)
        {
            functions.push((*call, function.offset));
        }
    }
    let has = |name: &str| found.iter().any(|function| function.name == name);
    if has("malloc") && has("free") {
        let flushes = found.iter().filter(|it| CACHE_FLUSHES.contains(&it.name.as_str()));
        let cache_flushes = flushes.map(|it| it.offset..it.offset.saturating_add(it.size));
        return Ok(Some(ProbePlan { path, functions, cache_flushes: cache_flushes.collect() }));
    }
    let is_go = !variables::functions(&file, &["runtime.mallocgc"]).is_empty() || is_of_go(&file);
    Err(if is_go { Unwatched::Go } else { Unwatched::NoSymbols })
}

/// True if a command's program contains the Go runtime in addition to C code whose heap can be
/// recorded.
pub fn has_go(program: &OsStr) -> bool {
    find(program)
        .and_then(|path| target_file::open_regular(&path, MAX_ELF_BYTES).ok())
        .is_some_and(|file| is_of_go(&file))
}

/// Finds the file of a command as a shell does: by its path, or in the folders of `PATH`.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return fs::canonicalize(program).ok();
    }
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path| path.is_file()).and_then(|path| fs::canonicalize(path).ok())
}

/// True if Go's linker created a file: this linker writes a note near the beginning.
pub(crate) fn is_of_go(file: &File) -> bool {
    const NOTE: &[u8] = b"Go\0\0";
    let mut bytes = vec![0; 64 << 10];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    bytes[..read].windows(NOTE.len()).any(|window| window == NOTE)
}

/// Parameters of a recording.
#[derive(Clone, Debug)]
pub struct ProbeRequest {
    /// Path of the recording.
    pub file: PathBuf,
    /// The program and its arguments.
    pub command: Vec<Vec<u8>>,
    /// Mean number of bytes between samples; `None` to record every call.
    pub every_bytes: Option<u64>,
    /// True if children that are forked are recorded too, each into a file of its own.
    pub follow: bool,
}

/// Records a program by probes.
#[derive(Debug)]
pub struct Probes {
    session: TraceSession,
    root: ProcRoot,
    request: ProbeRequest,
    program: PathBuf,
    first: u32,
    watched: ProbedProcesses,
    finished: Vec<Finished>,
    /// Number of allocations in ended processes that were not counted.
    dropped: u64,
    next: Instant,
    step: Duration,
    moments: u32,
}

/// The probed processes.
#[derive(Debug)]
struct ProbedProcesses {
    first: u32,
    follow: bool,
    running: Vec<ProbedProcess>,
    /// Processes that have executed another program, or whose PID has a new process.
    replaced: Vec<ProbedProcess>,
}

/// A probed process.
#[derive(Debug)]
struct ProbedProcess {
    state: ProbeState,
    pid: u32,
    parent: u32,
    /// True if the recorded process executed this program by a later `execve`.
    execs: bool,
    began: Instant,
    file: Option<RecordingOutput>,
}

impl ProbedProcess {
    fn new(state: ProbeState, pid: u32, parent: u32) -> ProbedProcess {
        ProbedProcess { state, pid, parent, execs: false, began: Instant::now(), file: None }
    }
}

impl ProbedProcesses {
    /// Processes a record of the kernel.
    fn note(&mut self, record: &PerfRecord<'_>) {
        match *record {
            PerfRecord::Forked { pid, parent, .. } if pid != parent && self.follow => {
                let parent = self.running.iter().find(|one| one.pid == parent);
                let child = parent.map(|it| ProbedProcess::new(it.state.child(pid), pid, it.pid));
                if let Some(mut child) = child {
                    child.state.note(record);
                    // The kernel may reuse the PID of an ended process.
                    self.leave(pid);
                    self.running.push(child);
                }
                return;
            }
            PerfRecord::Named { pid, exec: true, .. } => {
                let index = self.running.iter().position(|one| one.pid == pid);
                if let Some(index) = index.filter(|&at| self.running[at].state.has_begun()) {
                    let one = &self.running[index];
                    let next = ProbedProcess::new(one.state.next_program(), pid, one.parent);
                    let next = ProbedProcess { execs: true, ..next };
                    let before = std::mem::replace(&mut self.running[index], next);
                    // Without `follow`, only the recording of the last program is kept.
                    self.replaced.push(before);
                }
            }
            _ => {}
        }
        for one in &mut self.running {
            one.state.note(record);
        }
    }

    fn leave(&mut self, pid: u32) {
        if let Some(index) = self.running.iter().position(|one| one.pid == pid && pid != self.first)
        {
            let gone = self.running.swap_remove(index);
            self.replaced.push(gone);
        }
    }
}

impl Probes {
    /// Begins to record a process that is stopped and has not executed the program yet.
    ///
    /// # Errors
    /// Returns an error if probes are not available, or if the file cannot be written.
    pub fn open(plan: &ProbePlan, pid: u32, request: ProbeRequest) -> Result<Probes, Unwatched> {
        let kind = kind().ok_or(Unwatched::NoProbes)?;
        let tasks = SessionEvent {
            name: "the program's mappings".to_owned(),
            sampling: Sampling {
                // `PERF_COUNT_SW_DUMMY`, which counts nothing.
                event: PerfEvent::new(PerfType::SOFTWARE, 9),
                tasks: true,
                ..sampling(Carries::default())
            },
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let ring = 1 << (RINGS / cpus).clamp(MIN_RING, RING).ilog2();
        let session =
            TraceSession::open(TraceTarget::Command(pid), std::slice::from_ref(&tasks), ring);
        let mut session = session.map_err(Unwatched::NotPermitted)?;
        let mut roles = vec![ProbeRole::Nothing];
        // The events contain a pointer to the path, so the path must stay allocated.
        let path = CString::new(plan.path.as_os_str().as_bytes()).unwrap_or_default();
        let path: &'static CStr = Box::leak(path.into_boxed_c_str());
        let name = format!("functions of {}", plan.path.display());
        for (call, offset) in &plan.functions {
            let whole = Unwinder::carries(if *call == ProbedCall::Free { 8 } else { STACK });
            let entry = Uprobes {
                name: &name,
                kind,
                path,
                offsets: &[*offset],
                at_return: false,
                pid: None,
                carries: whole,
            };
            session.add_uprobes(roles.len(), &entry).map_err(Unwatched::NotPermitted)?;
            roles.push(ProbeRole::Entry(*call));
        }
        let allocating = plan.functions.iter().filter(|(call, _)| *call != ProbedCall::Free);
        let ends = Uprobes {
            name: &name,
            kind,
            path,
            offsets: &allocating.map(|(_, offset)| *offset).collect::<Vec<u64>>(),
            at_return: true,
            pid: None,
            carries: Carries { stack: NEAR, ..Unwinder::carries(STACK) },
        };
        session.add_uprobes(roles.len(), &ends).map_err(Unwatched::NotPermitted)?;
        roles.push(ProbeRole::End);
        let probed = Probed { roles, cache_flushes: plan.cache_flushes.clone() };
        let state = ProbeState::new(pid, Rc::new(probed), request.every_bytes);
        let first = ProbedProcess::new(state, pid, std::process::id());
        let watched = ProbedProcesses {
            first: pid,
            follow: request.follow,
            running: vec![first],
            replaced: vec![],
        };
        let mut probes = Probes {
            session,
            root: ProcRoot::live(),
            request,
            program: plan.path.clone(),
            first: pid,
            watched,
            finished: Vec::new(),
            dropped: 0,
            next: Instant::now() + FIRST,
            step: FIRST,
            moments: 0,
        };
        // The file is created here, so that an error is reported before the command begins.
        let mut one = probes.watched.running.remove(0);
        let created = probes.create(&mut one);
        probes.watched.running.push(one);
        created?;
        Ok(probes)
    }

    /// Waits for records of the kernel for at most `at_most`, and processes them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn step(&mut self, at_most: Duration) -> Result<(), crate::HeapError> {
        self.session.wait(at_most);
        let watched = &mut self.watched;
        self.session.drain(&mut |record: PerfRecord<'_>| watched.note(&record));
        self.settle()?;
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        let mut running = std::mem::take(&mut self.watched.running);
        let added = running.iter_mut().filter(|one| one.state.has_begun()).try_for_each(|one| {
            let resident = memory::resident_of(&self.root, Pid(one.pid));
            self.create(one)?;
            one.add(resident)
        });
        self.watched.running = running;
        added?;
        self.moments += 1;
        if self.moments.is_multiple_of(MOMENTS) {
            self.step *= 2;
        }
        self.next = now + self.step;
        Ok(())
    }

    /// Ends the recordings of processes that have executed another program, and of ended children
    /// whose PID was reused.
    fn settle(&mut self) -> Result<(), crate::HeapError> {
        for mut one in std::mem::take(&mut self.watched.replaced) {
            let is_first = one.pid == self.first;
            self.dropped = self.dropped.saturating_add(one.state.dropped());
            self.create(&mut one)?;
            let then = match is_first {
                true if self.request.follow => OutputFate::Move(self.beside(one.pid)),
                true => OutputFate::Discard,
                false => OutputFate::Keep,
            };
            let is_kept = !matches!(then, OutputFate::Discard);
            self.finished.extend(one.finish(LogEnding::Replaced, then)?.filter(|_| is_kept));
        }
        Ok(())
    }

    /// Path for the recording of another process. A file with this path may exist already.
    fn beside(&self, pid: u32) -> PathBuf {
        let mut path = self.request.file.clone().into_os_string();
        path.push(format!(".{pid}"));
        path.into()
    }

    /// Creates the recording of a process, if the process has none yet.
    fn create(&self, one: &mut ProbedProcess) -> Result<(), crate::HeapError> {
        if one.file.is_some() {
            return Ok(());
        }
        let is_first = one.pid == self.first;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let program = self.program.clone().into_os_string().into_vec();
        let words = self.root.read(Pid(one.pid), "cmdline").ok().filter(|it| !it.is_empty());
        let command = match words {
            _ if is_first && !one.execs => self.request.command.clone(),
            Some(words) => {
                let words = words.strip_suffix(b"\0").unwrap_or(&words);
                words.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
            }
            // The process has ended, so its further arguments are unknown.
            None => vec![program.clone()],
        };
        let begin = Begin {
            pid: one.pid,
            parent: one.parent,
            began_ns: nanoseconds(now.saturating_sub(one.began.elapsed())),
            page_size: rustix::param::page_size() as u64,
            every_bytes: self.request.every_bytes.unwrap_or(0),
            command,
            program: program.clone(),
            allocator: program,
            lifetimes_every: u32::from(self.request.every_bytes.is_none()),
            attached: false,
        };
        one.file = Some(match is_first {
            true => RecordingOutput::create(&self.request.file, &begin)?,
            false => RecordingOutput::create_new(&self.beside(one.pid), &begin)?,
        });
        Ok(())
    }

    /// Ends all recordings. Returns the recordings, beginning with that of the first process, and
    /// the number of events that were lost or not counted because too many blocks were live.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn finish(mut self, how: LogEnding) -> Result<(Vec<Finished>, u64), crate::HeapError> {
        let watched = &mut self.watched;
        self.session.finish(&mut |record: PerfRecord<'_>| watched.note(&record));
        self.settle()?;
        for mut one in std::mem::take(&mut self.watched.running) {
            let is_first = one.pid == self.first;
            if !is_first && !one.state.has_begun() {
                continue;
            }
            self.dropped = self.dropped.saturating_add(one.state.dropped());
            self.create(&mut one)?;
            let ending = match is_first {
                true => how,
                false if lives(&self.root, one.pid) => LogEnding::Detached,
                false => LogEnding::Gone,
            };
            self.finished.extend(one.finish(ending, OutputFate::Keep)?);
        }
        let file = &self.request.file;
        self.finished.sort_by_key(|finished| finished.file != *file);
        Ok((self.finished, self.session.lost().saturating_add(self.dropped)))
    }
}

impl ProbedProcess {
    fn add(
        &mut self,
        resident: Option<pagewise_heaplog::recording::LogResident>,
    ) -> Result<(), crate::HeapError> {
        let Some(output) = &mut self.file else { return Ok(()) };
        let new = self.state.news();
        let moment = LogSnapshot {
            time_ns: nanoseconds(self.began.elapsed()),
            live: self.state.live,
            allocated: self.state.allocated,
            held: None,
            resident,
            tree: Some(tree(&self.state.live_by_site())),
            older_freed: None,
        };
        let writer = &mut output.writer;
        let written = new.write(writer).and_then(|()| writer.moment(&moment));
        written.map_err(|source| output.error(source))
    }

    /// Ends the recording of the process; `None` if the process has no recording.
    fn finish(
        mut self,
        how: LogEnding,
        then: OutputFate,
    ) -> Result<Option<Finished>, crate::HeapError> {
        self.add(None)?;
        let time_ns = nanoseconds(self.began.elapsed());
        let counts = self.state.counts(time_ns);
        let (allocated, peak, live) = (self.state.allocated, counts.peak, self.state.live);
        let Some(mut output) = self.file else { return Ok(None) };
        output.writer.counts(&counts).map_err(|source| output.error(source))?;
        let (path, bytes) = output.end(&LogEnd { time_ns, how }, then)?;
        Ok(Some(Finished {
            pid: self.pid,
            file: path,
            bytes,
            how,
            allocated,
            peak,
            live,
            trouble: None,
            without_new: false,
            broken: false,
            became_another: false,
        }))
    }
}

fn sampling(carries: Carries) -> Sampling {
    Sampling {
        event: PerfEvent::new(PerfType::SOFTWARE, 9),
        every: 1,
        carries,
        mode: Mode::default(),
        tasks: false,
        wake_at: 1 << 18,
    }
}

/// PMU type of uprobes; `None` if the kernel does not list it.
fn kind() -> Option<PerfType> {
    let text = fs::read_to_string(Path::new("/sys/bus/event_source/devices/uprobe/type")).ok()?;
    text.trim().parse().ok().map(PerfType)
}
