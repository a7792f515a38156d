//! Time that a program waits for a call that can flush, measured in the program: from the first
//! instruction of the C library's function to its last. The uprobes need no entry in tracefs, and
//! vanish when our file descriptors are closed, even if pagewise is killed.
//!
//! Threads cannot inherit such an event: the kernel would read the path again, in their memory, and
//! their creation would fail. So each event covers the whole machine, and slows all programs that
//! execute the same file. Only since Linux 6.10 the probes of a running process can be limited to
//! it (with CAP_BPF).
//!
//! The probes are at each `ret`, and not at the return address: the program's stack stays
//! unchanged, and so do call stacks.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use pagewise_model::shootdowns;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, Pid, Reading};
use pagewise_proc::target_file::{self, FileId, MAX_ELF_BYTES};
use pagewise_proc::{ProcRoot, maps, variables};
use pagewise_sys::madvise;
use pagewise_sys::perf_event::PerfType;
use pagewise_sys::perf_ring::Carries;

use super::FlushRole;
use crate::{PerfRecord, SessionEvent, TraceError, TraceSession, TraceTarget, Uprobes};

/// C library functions whose calls flush other CPUs. Each makes its system call and little else.
const FUNCTIONS: &[&str] = &["madvise", "mprotect", "munmap", "mremap", "mmap"];
/// Maximum number of bytes of a function. A longer function does other work, too.
const MAX_FUNCTION_BYTES: u64 = 1 << 10;
/// Number of timed calls that do nothing, to measure the overhead.
const TURNS: usize = 200;
/// Number of bytes of the ring for the calls that measure the overhead.
const RING: usize = 1 << 20;

/// Uprobes that take the times of calls in the program.
#[derive(Clone, Debug, Default)]
pub struct CallTimers(Option<Vec<PathBuf>>);

/// A file with code, kept open. The kernel gets a path to the open file, since a name in the
/// target's root can denote another file in our root.
#[derive(Debug)]
pub(crate) struct TimedCode {
    pub(crate) name: Name,
    pub(crate) file: File,
}

/// A function to probe: its file, and the offsets of its entry and returns.
#[derive(Debug)]
struct Wrapper {
    name: String,
    /// File that contains the function.
    code: Rc<TimedCode>,
    /// A path to the open file.
    path: &'static CStr,
    entry: u64,
    returns: Vec<u64>,
}

impl CallTimers {
    /// Returns timers that time no calls.
    pub fn none() -> CallTimers {
        CallTimers(None)
    }

    /// Returns timers for calls in the files that a running process maps. For other targets, calls
    /// are timed in `files` and in our own C library, if these files have such functions.
    pub fn in_files(files: Vec<PathBuf>) -> CallTimers {
        CallTimers(Some(files))
    }

    /// Adds the uprobes to a session, and measures their overhead.
    pub(super) fn open(
        self,
        target: TraceTarget,
        session: &mut TraceSession,
        wanted: &[SessionEvent],
        roles: &mut Vec<FlushRole>,
    ) -> Reading<shootdowns::TimedCallsMeans> {
        let Some(paths) = self.0 else {
            return Err(Absent::NotCollected("--user-wait".into()));
        };
        if !cfg!(target_arch = "x86_64") {
            return Err(Absent::NotSupported(
                "the end of functions is found on x86-64 only".into(),
            ));
        }
        let kind = kind()?;
        let ours = std::process::id();
        let files = match target {
            TraceTarget::Process(pid) => of_process(pid),
            TraceTarget::Command(_) | TraceTarget::Machine => {
                let named = paths.iter().filter_map(|path| {
                    let file = target_file::open_regular(path, MAX_ELF_BYTES).ok()?;
                    Some(TimedCode { name: Name::new(path.as_os_str().as_bytes()), file })
                });
                named.chain(of_process(ours)).collect()
            }
        };
        let found: Vec<Wrapper> = files.into_iter().flat_map(wrappers).collect();
        if found.is_empty() {
            return Err(Absent::NotSupported(
                "no file has functions like munmap that return where they end".into(),
            ));
        }
        let cost_ns = cost(kind, wanted, roles, ours);
        // Without a PID, uprobes slow other programs that execute the files, and valgrind treats
        // the `int3` of a uprobe as an instruction of its program.
        let pid = match target {
            TraceTarget::Process(pid) => Some(pid),
            TraceTarget::Command(_) | TraceTarget::Machine => None,
        };
        add(&found, kind, pid, session, roles).map_err(|error| failed(&error.to_string()))?;
        let functions = found.iter().map(|it| (it.name.clone(), it.code.name.clone()));
        Ok(shootdowns::TimedCallsMeans { functions: functions.collect(), cost_ns })
    }
}

/// Type of the PMU `uprobe`.
pub(crate) fn kind() -> Reading<PerfType> {
    const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
    let text = fs::read_to_string(TYPE);
    let number = text.ok().and_then(|text| text.trim().parse().ok());
    number
        .map(PerfType)
        .ok_or_else(|| Absent::NotInThisKernel("4.17, with CONFIG_UPROBE_EVENTS".into()))
}

/// The files that a process has mapped to execute, each once.
pub(crate) fn of_process(pid: u32) -> Vec<TimedCode> {
    let root = ProcRoot::live();
    let Ok(text) = root.read(Pid(pid), "maps") else { return Vec::new() };
    let mut seen: Vec<FileId> = Vec::new();
    let mut files = Vec::new();
    for mapping in maps::parse(&text).mappings {
        let id = FileId::of_mapping(&mapping);
        if mapping.inode == 0 || !mapping.prot.exec || seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let file = target_file::open_mapped(&root, Pid(pid), &mapping);
        files.extend(file.ok().map(|file| TimedCode { name: Name::new(mapping.path()), file }));
    }
    files
}

fn wrappers(code: TimedCode) -> Vec<Wrapper> {
    let functions = variables::functions(&code.file, FUNCTIONS);
    let path = CString::new(format!("/proc/self/fd/{}", code.file.as_raw_fd()));
    let Ok(path) = path else { return Vec::new() };
    if functions.is_empty() {
        return Vec::new();
    }
    // A few paths are leaked per recording, because the kernel needs them until the recording ends.
    let path: &'static CStr = Box::leak(path.into_boxed_c_str());
    let code = Rc::new(code);
    let wrapper = |function: variables::FileFunction| {
        let size = Some(function.size).filter(|size| (1..=MAX_FUNCTION_BYTES).contains(size))?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        code.file.read_exact_at(&mut bytes, function.offset).ok()?;
        let returns = returns(&bytes)?.into_iter().map(|at| function.offset + at).collect();
        let code = Rc::clone(&code);
        Some(Wrapper { name: function.name, code, path, entry: function.offset, returns })
    };
    functions.into_iter().filter_map(wrapper).collect()
}

/// Offsets at which a function returns. `None` if it may end in another way: by a jump out of the
/// function.
fn returns(code: &[u8]) -> Option<Vec<u64>> {
    let (mut decoder, mut returns) =
        (Decoder::with_ip(64, code, 0, DecoderOptions::NONE), Vec::new());
    while decoder.can_decode() {
        let instruction = decoder.decode();
        match instruction.flow_control() {
            _ if instruction.is_invalid() => return None,
            FlowControl::Return => returns.push(instruction.ip()),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                if instruction.near_branch_target() >= code.len() as u64 =>
            {
                return None;
            }
            FlowControl::IndirectBranch => return None,
            _ => {}
        }
    }
    (!returns.is_empty()).then_some(returns)
}

/// Adds the uprobes of all functions of a file together: the removal of all uprobes takes as long
/// as the removal of one.
fn add(
    wrappers: &[Wrapper],
    kind: PerfType,
    pid: Option<u32>,
    session: &mut TraceSession,
    roles: &mut Vec<FlushRole>,
) -> Result<(), TraceError> {
    let same_file = |a: &Wrapper, b: &Wrapper| Rc::ptr_eq(&a.code, &b.code);
    for of_file in wrappers.chunk_by(same_file) {
        let entries: Vec<u64> = of_file.iter().map(|it| it.entry).collect();
        let returns: Vec<u64> = of_file.iter().flat_map(|it| it.returns.clone()).collect();
        for (role, offsets) in [(FlushRole::Called, entries), (FlushRole::Returned, returns)] {
            let uprobes = Uprobes {
                name: &format!("functions of {}", of_file[0].code.name.escaped()),
                kind,
                path: of_file[0].path,
                offsets: &offsets,
                // A uprobe at each return instruction leaves the call stack of the program as it
                // is.
                at_return: false,
                pid,
                carries: Carries::default(),
            };
            session.add_uprobes(roles.len(), &uprobes)?;
            roles.push(role);
        }
    }
    Ok(())
}

fn failed(what: &str) -> Absent {
    Absent::NotSupported(what.to_owned().into())
}

/// Overhead of recording per call: the difference between calls of our own that do nothing,
/// recorded and unrecorded.
fn cost(kind: PerfType, wanted: &[SessionEvent], roles: &[FlushRole], ours: u32) -> Reading<u64> {
    let mut alone: Vec<u64> = (0..TURNS)
        .map(|_| {
            let began = Instant::now();
            madvise::nothing();
            nanoseconds(began.elapsed())
        })
        .collect();
    let files = of_process(ours);
    let own = files.into_iter().flat_map(wrappers).find(|it| it.name == "madvise");
    let own = own.ok_or_else(|| failed("no function of our own to try it with"))?;
    let mut roles = roles.to_vec();
    let mut session = TraceSession::open(TraceTarget::Process(ours), wanted, RING)
        .map_err(|error| failed(&error.to_string()))?;
    add(&[own], kind, Some(ours), &mut session, &mut roles)
        .map_err(|error| failed(&error.to_string()))?;
    session.enable().map_err(|error| failed(&error.to_string()))?;
    (0..TURNS).for_each(|_| madvise::nothing());
    let (mut since, mut watched) = (HashMap::new(), Vec::new());
    session.finish(&mut |record| {
        let PerfRecord::Sample(sample) = record else { return };
        if sample.pid != ours {
            return;
        }
        match roles.get(sample.which) {
            Some(FlushRole::Called) => drop(since.insert(sample.tid, sample.time)),
            Some(FlushRole::Returned) => {
                watched.extend(
                    since.remove(&sample.tid).map(|since| sample.time.saturating_sub(since)),
                );
            }
            _ => {}
        }
    });
    let half = |times: &mut Vec<u64>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    };
    let (with, without) = (half(&mut watched), half(&mut alone));
    let cost = with.zip(without).map(|(with, without)| with.saturating_sub(without));
    cost.ok_or_else(|| failed("no call of our own was seen"))
}

#[cfg(test)]
mod tests {
    use pagewise_sys::bpf::Attachment;
    use pagewise_sys::perf_event::{Mode, PerfEvent};
    use pagewise_sys::perf_ring::Sampling;

    use pagewise_skip::{Lack, skip, skip_part};

    use super::*;

    /// A session of this process that records nothing but uprobes.
    fn session_of(ours: u32) -> Result<TraceSession, TraceError> {
        let sampling = Sampling {
            // `PERF_COUNT_SW_DUMMY`.
            event: PerfEvent::new(PerfType::SOFTWARE, 9),
            every: 1,
            carries: Carries::default(),
            mode: Mode::default(),
            tasks: false,
            wake_at: 1,
        };
        let wanted = SessionEvent { name: "nothing".to_owned(), sampling };
        TraceSession::open(TraceTarget::Process(ours), &[wanted], RING)
    }

    #[test]
    fn each_attachment_of_a_uprobe_reports_each_call_once() {
        let ours = std::process::id();
        let own = of_process(ours).into_iter().flat_map(wrappers).find(|it| it.name == "madvise");
        let (Ok(kind), Some(own)) = (kind(), own) else {
            return skip(&Lack::KernelFile("/sys/bus/event_source/devices/uprobe/type"));
        };
        // Uprobes need CAP_PERFMON.
        if session_of(ours).is_err() {
            return skip(&Lack::Root);
        }
        let uprobes = Uprobes {
            name: "madvise",
            kind,
            path: own.path,
            offsets: &[own.entry],
            at_return: false,
            pid: None,
            carries: Carries::default(),
        };
        let attachments = [Some(Attachment::Link), Some(Attachment::Events), None];
        for attachment in attachments {
            let mut session = session_of(ours).unwrap();
            let attached = match attachment {
                Some(attachment) => {
                    session.attach(attachment, 1, &uprobes).map_err(|it| it.to_string())
                }
                None => session.open_uprobes(1, &uprobes).map_err(|it| it.to_string()),
            };
            if let Err(error) = attached {
                skip_part(&Lack::Machine(&format!("{attachment:?}: {error}")));
                continue;
            }
            let call = || {
                (0..50).for_each(|_| madvise::nothing());
                rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
            };
            let threads = [std::thread::spawn(call), std::thread::spawn(call)];
            let threads = threads.map(|thread| thread.join().unwrap());
            let mut calls = [0; 2];
            session.finish(&mut |record| {
                let PerfRecord::Sample(sample) = record else { return };
                if sample.which == 1
                    && let Some(at) = threads.iter().position(|tid| *tid == sample.tid)
                {
                    calls[at] += 1;
                }
            });
            // The C library may also call the function when a thread ends.
            assert!(calls.iter().all(|count| (50..60).contains(count)), "{attachment:?} {calls:?}");
        }
    }

    #[test]
    fn a_function_ends_where_it_returns_and_nowhere_else() {
        // mov $11,%eax; syscall; cmp $-4095,%rax; jae 1f; ret; 1: neg %eax; or $-1,%rax; ret
        let code = [
            0xb8, 11, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff, 0x73, 1, 0xc3, 0xf7,
            0xd8, 0x48, 0x83, 0xc8, 0xff, 0xc3,
        ];
        assert_eq!(returns(&code), Some(vec![15, 22]));
        // Code without its end, so that the jump leaves the function; jmp *%rax; no code; bytes
        // that are not an instruction.
        assert_eq!(returns(&code[..16]), None);
        assert_eq!(returns(&[0xff, 0xe0, 0xc3]), None);
        assert_eq!(returns(&[]), None);
        assert_eq!(returns(&[0x06, 0xc3]), None);
    }
}
