//! Memory system calls of traced processes, with data from `/proc` that is read while the processes
//! are stopped.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Instant;

use pagewise_model::bounds::MemoryLimit;
use pagewise_model::calls::{
    CallDetail, CallEvent, CallEventKind, CallRecording, CallStops, MemoryCall, MemoryCallKind,
    NamedMapping, ProgramImage, descriptor,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{AddrRange, Bytes, Mapping, Name, PageSize, Pid, Reading};
use pagewise_sys::trace::calls::{self as watch, TraceEvent, TracedProgram};
use pagewise_sys::{remote, system};

use crate::{ProcRoot, auxv, maps, meminfo, program_ending, stat};

/// Maximum length of a name that `memfd_create` accepts, with the NUL at its end.
const MAX_NAME_BYTES: usize = 250;

/// Number of bytes that one recorded call, with its data in a report, takes from the memory limit.
/// A call has about 730 bytes as JSON.
const CALL: u64 = 1 << 10;
/// A recorded process takes as much memory as `PROCESS` calls, because its mappings begin as a copy
/// of its parent's. `MAPPINGS` mappings of a program take as much memory as one call.
const PROCESS: usize = 16;
const MAPPINGS: usize = 4;
/// Number of bytes of a name that take as much memory as a call.
const NAMES: usize = 256;

/// Records until every process has ended or the tracing ends. `command` is empty for a process that
/// was already running. Once the recording has used its memory limit, further calls and processes
/// are counted and not recorded.
///
/// # Errors
/// The errors of `waitpid`.
pub fn record(
    watched: &mut TracedProgram,
    command: Vec<Name>,
    limit: MemoryLimit,
) -> io::Result<CallRecording> {
    let root = ProcRoot::live();
    let mut recorder = CallRecorder::new(&root, limit.part(CALL));
    while let Some(seen) = watched.next()? {
        recorder.note(watched, &seen);
        // A command is traced to its end, but a process that was already running can be detached
        // earlier.
        if recorder.lost > 0 && command.is_empty() {
            break;
        }
    }
    recorder.interpret_first();
    let left: Vec<Pid> = watched.processes().into_iter().map(Pid).collect();
    let took_ns = recorder.since_start(Instant::now());
    for &pid in &left {
        let virt = recorder.virt(pid);
        let what = CallEventKind::Left { virt };
        recorder.push(CallEvent { time_ns: took_ns, pid, tid: pid, what });
    }
    Ok(CallRecording {
        pid: Pid(watched.pid()),
        command,
        page_size: recorder.page_size,
        huge_page: root.machine("meminfo").and_then(|text| meminfo::parse(&text, "Hugepagesize")),
        stops: match watched.stops() {
            watch::TraceStops::MemoryCalls => CallStops::MemoryCalls,
            watch::TraceStops::EveryCall => CallStops::EveryCall,
        },
        took_ns,
        paused_ns: watched.pause().map(nanoseconds),
        ending: watched.ending().map(program_ending),
        left,
        lost: recorder.lost,
        lost_processes: recorder.lost_processes,
        events: recorder.events,
    })
}

/// State of the recording.
struct CallRecorder<'r> {
    root: &'r ProcRoot,
    page_size: PageSize,
    start: Option<Instant>,
    events: Vec<CallEvent>,
    /// Number of further calls, or of items of the same memory size, that may be recorded.
    left: usize,
    /// Processes that are recorded and have not ended.
    processes: HashSet<u32>,
    lost: u64,
    lost_processes: u64,
    /// The call that each thread has entered and not left, by thread ID.
    open: HashMap<u32, OpenCall>,
    /// VIRT of processes that are about to end.
    last: HashMap<u32, Bytes>,
    /// Data of the first event, if the process was already running. Its threads are stopped while
    /// the data is read, but not while the data is interpreted.
    first: Option<First>,
}

/// A process that was already running when the tracing began.
struct First {
    time_ns: u64,
    pid: Pid,
    is_native: bool,
    texts: Texts,
}

/// Contents of the `/proc` files about the program that a stopped process runs.
struct Texts {
    maps: Reading<Vec<u8>>,
    auxv: Reading<Vec<u8>>,
    stat: Reading<Vec<u8>>,
    exe: Reading<Name>,
}

/// A call that is not yet done.
struct OpenCall {
    time_ns: u64,
    kind: MemoryCallKind,
    call: watch::TracedCall,
    about: CallDetail,
}

impl<'r> CallRecorder<'r> {
    fn new(root: &'r ProcRoot, left: usize) -> CallRecorder<'r> {
        CallRecorder {
            root,
            page_size: PageSize::new(system::page_size()).expect("the kernel's page size is one"),
            start: None,
            events: Vec::new(),
            left,
            processes: HashSet::new(),
            lost: 0,
            lost_processes: 0,
            open: HashMap::new(),
            last: HashMap::new(),
            first: None,
        }
    }

    /// Nanoseconds from the first event to `when`.
    fn since_start(&mut self, when: Instant) -> u64 {
        let start = *self.start.get_or_insert(when);
        nanoseconds(when.saturating_duration_since(start))
    }

    fn note(&mut self, watched: &mut TracedProgram, seen: &TraceEvent) {
        let time_ns = self.since_start(seen.when);
        let what = match seen.event {
            watch::TraceEventKind::Attached { is_native } => {
                let texts = self.texts(seen.tid);
                watched.go_on();
                // The calls of this process are recorded from now on.
                self.processes.insert(seen.pid);
                self.first = Some(First { time_ns, pid: Pid(seen.pid), is_native, texts });
                return;
            }
            watch::TraceEventKind::Executed { is_native } => {
                let texts = self.texts(seen.tid);
                let mut image = texts.image(is_native);
                image.executed = true;
                let entry = texts.auxv().entry.filter(|_| image.interpreter.is_some());
                image.begin_is_told = entry.is_some_and(|entry| watched.expect(entry));
                CallEventKind::Image(Box::new(image))
            }
            watch::TraceEventKind::Born { by, shares_memory } => {
                CallEventKind::Born { by: Pid(by), shares_memory }
            }
            watch::TraceEventKind::Arrived => CallEventKind::Begun,
            watch::TraceEventKind::Entered(call) => return self.enter(seen.tid, time_ns, call),
            watch::TraceEventKind::Left(done) => return self.leave(seen, done),
            watch::TraceEventKind::Ending => return self.measure(seen),
            watch::TraceEventKind::Ended(how) => CallEventKind::Ended {
                ending: program_ending(how),
                virt: self.last.remove(&seen.pid),
            },
        };
        self.push(CallEvent { time_ns, pid: Pid(seen.pid), tid: Pid(seen.tid), what });
    }

    /// Records an event, if it fits into the memory limit.
    fn push(&mut self, event: CallEvent) {
        let takes = takes(&event.what);
        let is_full = takes > self.left;
        let pid = event.pid.0;
        match &event.what {
            // The ending of each recorded process is recorded.
            CallEventKind::Ended { .. } | CallEventKind::Left { .. } => {
                if !self.processes.remove(&pid) {
                    return;
                }
            }
            CallEventKind::Call(_) if is_full || !self.processes.contains(&pid) => {
                self.lost += 1;
                return;
            }
            CallEventKind::Born { .. } if is_full => {
                self.lost_processes += 1;
                return;
            }
            // An executed program replaces the process's mappings. Without these mappings, further
            // calls of the process cannot be interpreted.
            CallEventKind::Image(_) if is_full => self.left = 0,
            _ if is_full => return,
            CallEventKind::Born { .. } | CallEventKind::Image(_) => {
                self.processes.insert(pid);
            }
            CallEventKind::Begun | CallEventKind::Call(_) => {}
        }
        if !is_full
            || matches!(event.what, CallEventKind::Ended { .. } | CallEventKind::Left { .. })
        {
            self.left = self.left.saturating_sub(takes);
            self.events.push(event);
        }
    }

    fn enter(&mut self, tid: u32, time_ns: u64, call: watch::TracedCall) {
        let Some(kind) = MemoryCallKind::named(call.name) else { return };
        let about = self.call_detail(tid, kind, &call.arguments);
        self.open.insert(tid, OpenCall { time_ns, kind, call, about });
    }

    fn leave(&mut self, seen: &TraceEvent, done: watch::Done) {
        let Some(OpenCall { time_ns, kind, call, mut about }) = self.open.remove(&seen.tid) else {
            return;
        };
        if let (MemoryCallKind::Shmat, Ok(address)) = (kind, done.result) {
            about = CallDetail::Pieces(self.attached(seen.tid, address));
        }
        let what = CallEventKind::Call(MemoryCall {
            kind,
            arguments: call.arguments,
            result: done.result,
            done_ns: self.since_start(seen.when),
            took_ns: nanoseconds(done.took),
            caller: call.caller,
            about,
        });
        self.push(CallEvent { time_ns, pid: Pid(seen.pid), tid: Pid(seen.tid), what });
    }

    /// Data that must be read before a call takes effect.
    fn call_detail(&self, tid: u32, kind: MemoryCallKind, arguments: &[u64; 6]) -> CallDetail {
        let file = |fd| self.root.link(Pid(tid), &format!("fd/{fd}")).ok().map(CallDetail::File);
        let told = match kind {
            MemoryCallKind::Mmap => descriptor(kind, arguments).and_then(file),
            MemoryCallKind::MemfdCreate => self.text(tid, arguments[0]).map(CallDetail::Text),
            MemoryCallKind::Shmdt => Some(CallDetail::Pieces(self.to_detach(tid, arguments[0]))),
            _ => None,
        };
        told.unwrap_or(CallDetail::Nothing)
    }

    /// The text at an address, up to its NUL.
    fn text(&self, tid: u32, address: u64) -> Option<Name> {
        let end = address.saturating_add(MAX_NAME_BYTES as u64);
        // The next page may be unmapped.
        let page_end = (address | (self.page_size.bytes() - 1)).saturating_add(1).min(end);
        let mut buffer = [0; MAX_NAME_BYTES];
        let read = remote::read(tid, &[address..page_end, page_end..end], &mut buffer).ok()?;
        buffer[..read].split(|&byte| byte == 0).next().map(Name::new)
    }

    /// Returns the mapping that `shmat` created at an address.
    fn attached(&self, tid: u32, address: u64) -> Vec<AddrRange> {
        let mappings = self.mappings(tid).unwrap_or_default();
        mappings.iter().filter(|m| m.range.start == address).map(|m| m.range).collect()
    }

    /// Returns the mappings that `shmdt` of an address unmaps, by the kernel's rule: mappings of
    /// one segment whose distance from the address equals their offset in the segment.
    fn to_detach(&self, tid: u32, address: u64) -> Vec<AddrRange> {
        let mappings = self.mappings(tid).unwrap_or_default();
        let is_part = |m: &&Mapping| {
            m.name.as_bytes().starts_with(b"/SYSV")
                && m.range.start.checked_sub(address) == Some(m.offset)
        };
        let parts: Vec<&Mapping> = mappings.iter().filter(is_part).collect();
        let of_the_first = |m: &&&Mapping| {
            parts.first().is_some_and(|first| (first.device, first.inode) == (m.device, m.inode))
        };
        parts.iter().filter(of_the_first).map(|m| m.range).collect()
    }

    fn mappings(&self, tid: u32) -> Reading<Vec<Mapping>> {
        self.root.reading(Pid(tid), "maps").map(|text| maps::parse(&text).mappings)
    }

    fn texts(&self, tid: u32) -> Texts {
        Texts {
            maps: self.root.reading(Pid(tid), "maps"),
            auxv: self.root.reading(Pid(tid), "auxv"),
            stat: self.root.reading(Pid(tid), "stat"),
            exe: self.root.link(Pid(tid), "exe"),
        }
    }

    /// For a process that was already running when the tracing began: inserts its program before
    /// all other events.
    fn interpret_first(&mut self) {
        if let Some(First { time_ns, pid, is_native, texts }) = self.first.take() {
            let what = CallEventKind::Image(Box::new(texts.image(is_native)));
            self.events.insert(0, CallEvent { time_ns, pid, tid: pid, what });
        }
    }

    /// Stores VIRT before the memory is released. If threads end one after the other, the last
    /// value is kept.
    fn measure(&mut self, seen: &TraceEvent) {
        if let Some(virt) = self.virt(Pid(seen.tid)) {
            self.last.insert(seen.pid, virt);
        }
    }

    fn virt(&self, task: Pid) -> Option<Bytes> {
        let statm = self.root.read(task, "statm").ok()?;
        let size = stat::parse_statm(&statm, self.page_size).ok()?.size;
        Some(size).filter(|size| !size.is_zero())
    }
}

/// Returns the approximate memory size of an event, in units of one call.
fn takes(what: &CallEventKind) -> usize {
    match what {
        CallEventKind::Born { .. } => PROCESS,
        CallEventKind::Image(image) => 1 + image.mapped.as_ref().map_or(0, Vec::len) / MAPPINGS,
        CallEventKind::Call(MemoryCall {
            about: CallDetail::File(name) | CallDetail::Text(name),
            ..
        }) => 1 + name.as_bytes().len() / NAMES,
        CallEventKind::Call(MemoryCall { about: CallDetail::Pieces(pieces), .. }) => {
            1 + pieces.len() / MAPPINGS
        }
        CallEventKind::Call(_)
        | CallEventKind::Begun
        | CallEventKind::Ended { .. }
        | CallEventKind::Left { .. } => 1,
    }
}

impl Texts {
    fn auxv(&self) -> auxv::Auxv {
        auxv::parse(self.auxv.as_deref().unwrap_or_default())
    }

    /// Returns the program that the process runs.
    fn image(&self, is_native: bool) -> ProgramImage {
        let mappings = self.maps.as_ref().map(|text| maps::parse(text).mappings);
        let here = mappings.as_deref().unwrap_or_default();
        let named = |address: u64| here.iter().find(|m| m.range.contains(address));
        let base = self.auxv().base.filter(|_| is_native);
        ProgramImage {
            executed: false,
            exe: self.exe.clone(),
            is_native,
            begin_is_told: false,
            interpreter: base.and_then(named).map(|mapping| mapping.name.clone()),
            brk: self.program_break(here),
            mapped: mappings.map(mapped).map_err(Clone::clone),
        }
    }

    /// Returns the end of the heap, or its future start if the heap is empty.
    fn program_break(&self, mappings: &[Mapping]) -> Reading<u64> {
        let heap = mappings.iter().rfind(|mapping| mapping.name.as_bytes() == b"[heap]");
        match heap {
            Some(heap) => Ok(heap.range.end),
            None => stat::start_of_heap(self.stat.as_deref().map_err(Clone::clone)?),
        }
    }
}

/// Ranges and names of mappings. `[vsyscall]` lies outside of user space, and VIRT leaves it out.
fn mapped(mappings: Vec<Mapping>) -> Vec<NamedMapping> {
    let in_user_space = |mapping: &Mapping| mapping.name.as_bytes() != b"[vsyscall]";
    let mapped = mappings.into_iter().filter(in_user_space);
    mapped.map(|mapping| NamedMapping { range: mapping.range, name: mapping.name }).collect()
}

#[cfg(test)]
mod tests {
    use pagewise_model::ending::ProgramEnding;

    use super::*;

    #[test]
    fn calls_above_the_limit_are_counted_and_each_process_ends() {
        let root = ProcRoot::live();
        let mut recorder = CallRecorder::new(&root, 2 * PROCESS + 5);
        let mut push = |pid, what| {
            recorder.push(CallEvent { time_ns: 0, pid: Pid(pid), tid: Pid(pid), what });
        };
        let call = || {
            CallEventKind::Call(MemoryCall {
                kind: MemoryCallKind::Munmap,
                arguments: [0; 6],
                result: Ok(0),
                done_ns: 0,
                took_ns: 0,
                caller: 0,
                about: CallDetail::Nothing,
            })
        };
        let ended = || CallEventKind::Ended { ending: ProgramEnding::Exited(0), virt: None };
        for pid in 2..6 {
            push(pid, CallEventKind::Born { by: Pid(1), shares_memory: false });
            push(pid, call());
        }
        (0..10).for_each(|_| push(2, call()));
        (2..6).for_each(|pid| push(pid, ended()));
        // The limit has capacity for two processes, for one call of each, and for three further
        // calls. The endings of these two processes are always recorded.
        let is_call = |it: &&CallEvent| matches!(it.what, CallEventKind::Call(_));
        assert_eq!(recorder.events.iter().filter(is_call).count(), 5);
        assert_eq!((recorder.lost, recorder.lost_processes), (9, 2));
        let ends =
            recorder.events.iter().filter(|it| matches!(it.what, CallEventKind::Ended { .. }));
        assert_eq!(ends.map(|it| it.pid.0).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn every_call_that_is_watched_has_a_place_in_the_model() {
        for name in watch::names() {
            assert!(MemoryCallKind::named(name).is_some(), "{name}");
        }
    }
}
