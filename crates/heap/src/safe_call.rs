//! Calls of a running process's own functions by one of its threads. The thread is stopped at a
//! point at which it holds no lock that the functions need (module `judge`), and makes the calls on
//! a stack that pagewise maps (module `room`).

mod judge;
mod mallocs;
mod room;

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_model::{Bytes, Mapping, Name, Pid};
use pagewise_proc::target_file::{self, FileId};
use pagewise_proc::{ProcRoot, maps, variables};
use pagewise_remote::{
    FunctionThread, Keeper, RemoteError, RemoteProcess, Tracee, on_tracer_thread,
};
use thiserror::Error;

use crate::collector::program_file;

pub(crate) use judge::Judge;
pub(crate) use mallocs::Mallocs;
pub(crate) use room::{CallRoom, ProcessFunction};

/// Time limit of the search for a thread that may make a call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Number of threads that are stopped once before a thread is chosen, so that the files of their
/// code are read while no thread is stopped.
const FIRST_THREADS: usize = 16;
/// Time after which pagewise no longer waits for a function on a new thread.
const FUNCTION_LIMIT: Duration = Duration::from_secs(10);
/// Number of bytes of a thread's stack that are searched for return addresses.
const SEARCHED: usize = 1 << 20;

/// Reason why no function of a process is called.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallRefused {
    /// A call would harm the process, or is not possible.
    #[error("{0}")]
    Unfit(String),
    /// No thread reached a point at which it may make the call.
    #[error("in {} s none of its threads was outside its allocator and the C library", .0.as_secs())]
    NeverSafe(Duration),
    /// The threads could not be stopped, or could not be made to call the function.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// A running process whose threads can be made to call its functions.
#[derive(Debug)]
pub struct SafeCalls {
    root: ProcRoot,
    target: RemoteProcess,
    mallocs: Mallocs,
}

/// Checks the stacks of stopped threads. Only the thread that stops these threads may use this
/// value.
#[derive(Debug)]
pub struct StackJudge<'a> {
    root: &'a ProcRoot,
    target: &'a RemoteProcess,
    judge: Judge,
}

/// A function of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFunction {
    /// Name of the function.
    pub name: &'static str,
    /// File that contains the function.
    pub file: Name,
    /// Address of the function.
    pub address: u64,
}

/// A call of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionCall {
    /// Address of the function.
    pub address: u64,
    /// Text for the function to read; the address of the text replaces the first argument.
    pub text: Option<&'static str>,
    /// The arguments.
    pub arguments: [u64; 5],
    /// Maximum time for which the function waits for a lock. `None` for a function that may hold a
    /// lock while it waits for another lock.
    pub lock_wait: Option<Duration>,
}

/// Results of calls.
#[derive(Debug)]
pub struct CallResults {
    /// Return value of each function, up to the first function that did not return.
    pub returned: Vec<io::Result<u64>>,
    /// Maximum time for which a thread of the program was stopped.
    pub stopped: Duration,
}

impl SafeCalls {
    /// Opens the process `pid` that started at `start_ticks`.
    ///
    /// # Errors
    /// [`CallRefused`] if calls would harm the process.
    pub fn open(pid: u32, start_ticks: u64) -> Result<SafeCalls, CallRefused> {
        let root = ProcRoot::live();
        permits_calls(&root, pid).map_err(CallRefused::Unfit)?;
        let target = RemoteProcess::open(pid, Some(start_ticks))?;
        target.permits_calls()?;
        let mappings = target.mappings()?;
        let mallocs = Mallocs::find(&root, pid, &mappings).map_err(CallRefused::Unfit)?;
        Ok(SafeCalls { root, target, mallocs })
    }

    /// The process.
    pub fn target(&self) -> &RemoteProcess {
        &self.target
    }

    /// Finds functions by their names in the files that the process executes.
    ///
    /// # Errors
    /// [`RemoteError::Gone`], if the process has ended.
    pub fn functions(&self, names: &[&'static str]) -> Result<Vec<FoundFunction>, CallRefused> {
        Ok(functions_in(&self.root, self.target.pid(), &self.target.mappings()?, names))
    }

    /// Makes one thread execute the calls, one after the other, while the other threads run.
    ///
    /// # Errors
    /// [`CallRefused`] if no thread makes a call.
    pub fn call(
        &self,
        calls: &[FunctionCall],
        keeper: &mut (dyn Keeper + Send),
    ) -> Result<CallResults, CallRefused> {
        let SafeCalls { root, target, mallocs } = self;
        on_tracer_thread(|| {
            let mut judge = Judge::new(root, target.pid(), mallocs.clone());
            let thread = safe_thread(root, target, &mut judge)?;
            let mut thread = thread.ok_or(CallRefused::NeverSafe(PATIENCE))?;
            let room = CallRoom::make(target, &mut thread, keeper)?;
            let returned = call_each(target, &room, &mut thread, calls);
            room.unmap(&mut thread, keeper);
            Ok(CallResults { returned, stopped: thread.release() })
        })
    }

    /// Makes the process run a function of its C library with one argument on a new thread, so that
    /// the process's existing threads continue to run. The function must use no thread-local
    /// variable except `errno`. Its return value is not available; the result contains 0.
    ///
    /// `None` if the C library assumes a single thread, because it then takes no locks; also if the
    /// C library is not glibc, or is linked statically.
    ///
    /// # Errors
    /// [`CallRefused`] if the function is not run.
    pub fn call_on_new_thread(
        &self,
        function: &FoundFunction,
        argument: u64,
        keeper: &mut (dyn Keeper + Send),
    ) -> Result<Option<CallResults>, CallRefused> {
        if !is_libc(&function.file) || !self.has_several_threads()? {
            return Ok(None);
        }
        let thread = FunctionThread::start(&self.target, function.address, argument, keeper)?;
        let (value, stopped) = match thread.wait(FUNCTION_LIMIT)? {
            true => (Ok(0), thread.unmap(keeper)),
            false => (Err(io::ErrorKind::TimedOut.into()), thread.leave()),
        };
        Ok(Some(CallResults { returned: vec![value], stopped }))
    }

    /// True if the C library takes its locks because the process has several threads.
    fn has_several_threads(&self) -> Result<bool, CallRefused> {
        /// glibc since 2.32.
        const IS_SINGLE: &[u8] = b"__libc_single_threaded";
        /// Offset of `multiple_threads` in the thread control block, before glibc 2.32.
        const SEVERAL: u64 = 24;
        if self.target.threads()?.len() < 2 {
            return Ok(false);
        }
        let (pid, mappings) = (Pid(self.target.pid()), self.target.mappings()?);
        let memory = self.target.memory();
        let mut found = variables::find(&self.root, pid, &mappings, IS_SINGLE)
            .into_iter()
            .filter(|variable| is_libc(&variable.module));
        if let Some(variable) = found.next() {
            let mut is_single = [1];
            return Ok(memory.read(variable.address, &mut is_single).is_ok() && is_single == [0]);
        }
        let data = on_tracer_thread(|| {
            Ok::<_, RemoteError>(self.target.any_thread()?.place().thread_data)
        })?;
        let mut several = [0; 4];
        let is_read = memory.read(data.saturating_add(SEVERAL), &mut several).is_ok();
        Ok(is_read && several != [0; 4])
    }

    /// A [`StackJudge`] for this process.
    pub fn stack_judge(&self) -> StackJudge<'_> {
        let judge = Judge::new(&self.root, self.target.pid(), Mallocs::default());
        StackJudge { root: &self.root, target: &self.target, judge }
    }
}

impl StackJudge<'_> {
    /// Resumes a thread, and reads the files of the code on its call stack, so that they need not
    /// be read at the next stop.
    pub fn read_files(&mut self, thread: Tracee) {
        let place = thread.place();
        let stack = self.target.memory().read_up_to(place.stack, SEARCHED);
        thread.release();
        self.judge.reaches_start(self.root, self.target, &place, &stack);
    }

    /// True if a stopped thread uses no memory of its stack below its stack pointer.
    pub fn is_on_own_stack(&mut self, thread: &Tracee) -> bool {
        let place = thread.place();
        let stack = self.target.memory().read_up_to(place.stack, SEARCHED);
        self.judge.reaches_start(self.root, self.target, &place, &stack)
    }
}

fn call_each(
    target: &RemoteProcess,
    room: &CallRoom,
    thread: &mut Tracee,
    calls: &[FunctionCall],
) -> Vec<io::Result<u64>> {
    let mut returned = Vec::new();
    for call in calls {
        let result = call_one(target, room, thread, call);
        let has_returned = result.is_ok();
        returned.push(result);
        if !has_returned {
            break;
        }
    }
    returned
}

fn call_one(
    target: &RemoteProcess,
    room: &CallRoom,
    thread: &mut Tracee,
    call: &FunctionCall,
) -> io::Result<u64> {
    let mut arguments = call.arguments;
    if let Some(text) = call.text {
        arguments[0] = room.text();
        target.memory().write(room.text(), &[text.as_bytes(), b"\0"].concat())?;
    }
    let function = ProcessFunction { address: call.address, lock_wait: call.lock_wait };
    room.call(thread, &function, arguments, &mut || {})
}

/// Stops a thread at a point at which it may call an allocator or load a library, and prepares it
/// for calls. `None` if no thread reached such a point within [`PATIENCE`].
pub(crate) fn safe_thread(
    root: &ProcRoot,
    target: &RemoteProcess,
    judge: &mut Judge,
) -> Result<Option<Tracee>, RemoteError> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(100);
    // In the first pass of this loop, threads are stopped only to find the files of their code,
    // which are then read.
    let mut is_first = true;
    while began.elapsed() < PATIENCE {
        let threads = target.threads()?;
        let count = if is_first { FIRST_THREADS } else { threads.len() };
        for tid in threads.into_iter().take(count) {
            let mut thread = match target.stop(tid) {
                Ok(Some(thread)) => thread,
                Ok(None) | Err(RemoteError::Restartable(_)) => continue,
                Err(error) => return Err(error),
            };
            let place = thread.place();
            let stack = target.memory().read_up_to(place.stack, SEARCHED);
            if is_first {
                thread.release();
                judge.is_safe(root, target, &place, &stack);
            } else if judge.is_safe(root, target, &place, &stack) && is_ready(target, &mut thread)?
            {
                return Ok(Some(thread));
            }
        }
        is_first = false;
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
    Ok(None)
}

/// Prepares a stopped thread for remote calls; false if its stack has too little space, or if it is
/// in a restartable sequence.
pub(crate) fn is_ready(target: &RemoteProcess, thread: &mut Tracee) -> Result<bool, RemoteError> {
    match target.prepare(thread) {
        Ok(()) => Ok(true),
        Err(RemoteError::NoStack(_) | RemoteError::Restartable(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Finds functions by their names in the executable files of a process, each once.
pub fn functions_in(
    root: &ProcRoot,
    pid: u32,
    mappings: &[Mapping],
    names: &[&'static str],
) -> Vec<FoundFunction> {
    let mut seen: Vec<FileId> = Vec::new();
    let mut found = Vec::new();
    for mapping in mappings.iter().filter(|it| it.inode != 0 && it.prot.exec) {
        let id = FileId::of_mapping(mapping);
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let Ok(file) = target_file::open_mapped(root, Pid(pid), mapping) else { continue };
        let pieces: Vec<&Mapping> =
            mappings.iter().filter(|it| it.prot.exec && FileId::of_mapping(it) == id).collect();
        for function in variables::functions(&file, names) {
            let name = names.iter().find(|name| **name == function.name);
            let address = mallocs::address(&pieces, function.offset);
            if let Some((name, address)) = name.zip(address) {
                found.push(FoundFunction { name, file: mapping.name.clone(), address });
            }
        }
    }
    found
}

/// Returns an error if `/proc` shows that no thread of a process may make calls.
pub(crate) fn permits_calls(root: &ProcRoot, pid: u32) -> Result<(), String> {
    if pid == std::process::id() {
        return Err("it is this one".to_owned());
    }
    let status = status_without_our_tracer(root, pid);
    let status = String::from_utf8_lossy(&status);
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if line("Seccomp:").is_some_and(|mode| mode != "0") {
        return Err("a filter of its system calls (seccomp) might kill it".to_owned());
    }
    if let Some(tracer) = line("TracerPid:").filter(|tracer| *tracer != "0") {
        return Err(format!("a debugger or tracer has it, process {tracer}"));
    }
    if line("State:").is_some_and(|state| state.starts_with(['T', 't'])) {
        return Err("it is stopped: it can be once it goes on".to_owned());
    }
    Ok(())
}

/// Reads `/proc/PID/status`. Waits until no other process of pagewise traces the process: a keeper
/// that undoes the changes of a killed run traces it only briefly.
fn status_without_our_tracer(root: &ProcRoot, pid: u32) -> Vec<u8> {
    let own = program_file(root, std::process::id());
    let began = Instant::now();
    loop {
        let status = root.read(Pid(pid), "status").unwrap_or_default();
        let tracer = String::from_utf8_lossy(&status)
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"))
            .and_then(|tracer| tracer.trim().parse().ok())
            .unwrap_or(0);
        let is_ours = tracer != 0 && own.is_some() && program_file(root, tracer) == own;
        if !is_ours || began.elapsed() >= PATIENCE {
            return status;
        }
        sleep(Duration::from_millis(1));
    }
}

/// True if a mapping is of glibc.
pub(crate) fn is_libc(name: &Name) -> bool {
    let file = name.base();
    file == b"libc.so.6" || (file.starts_with(b"libc-2.") && file.ends_with(b".so"))
}

/// Number of bytes of address space of the recorder library in a process. The library stays loaded
/// after a recording, since a thread may be about to return into it.
pub fn recorder_addresses(root: &ProcRoot, pid: u32) -> Bytes {
    let text = root.read(Pid(pid), "maps").unwrap_or_default();
    let mappings = maps::parse(&text).mappings;
    let mut end = 0;
    let own = mappings.iter().filter(|mapping| {
        // The library's `.bss` follows the mappings of the file and has no name.
        let is_behind = mapping.inode == 0 && mapping.range.start == end;
        let is_own = is_recorder(&mapping.name);
        end = if is_own { mapping.range.end } else { 0 };
        is_own || is_behind
    });
    own.map(|mapping| mapping.range.len()).sum()
}

/// True if a mapping is of the recorder.
pub(crate) fn is_recorder(name: &Name) -> bool {
    let name = name.as_bytes();
    let path = name.strip_suffix(b" (deleted)").unwrap_or(name);
    path.ends_with(b"/libpagewise_preload.so")
}
