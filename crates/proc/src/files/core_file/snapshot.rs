//! A core file as a [`Snapshot`]: mappings, threads and identity. Other values are absent.

use std::os::unix::ffi::OsStrExt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::core_dump::{CoreDump, CoreSignal, CoreThread, CoreWriter, SignalCause};
use pagewise_model::machine::{Gap, MachineSettings, ProcessMoment, Provenance, ReadMethod};
use pagewise_model::mapping::Mapping;
use pagewise_model::object::ElfObject;
use pagewise_model::process::{Process, Thread};
use pagewise_model::snapshot::{MappingHead, SNAPSHOT_VERSION, Snapshot};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Name, PageSize, Pid, Reading};
use pagewise_sys::system;

use super::images::{ImageFiles, kernel_release};
use super::mappings::{self, CoreMappings, program};
use super::notes::{SignalNote, ThreadNote};
use super::{CORE_FILE, CoreFile};
use crate::heads;

/// `si_code` of signals that a process or thread sent: `SI_USER`, `SI_QUEUE`, `SI_TKILL`.
const SENT: [i32; 3] = [0, -1, -6];
/// Signals for which the kernel stores an address: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV.
const FAULTS: [u32; 5] = [4, 5, 7, 8, 11];
/// Signals with which gdb stops a process: SIGINT, SIGTRAP, SIGSTOP.
const STOPS_OF_GDB: [u32; 3] = [2, 5, 19];

/// Converts a core file to a snapshot. `images` contain the ELF headers of mapped files.
pub fn snapshot(core: &CoreFile, images: &ImageFiles) -> Snapshot {
    let begin = Instant::now();
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let found = mappings::mappings(core, images.objects());
    let mut gaps = core.gaps().to_vec();
    gaps.extend(remarks(&found));
    let page_size = page_size(core, &mut gaps);
    let vdso = found.mappings.iter().find(|mapping| mapping.name.as_bytes() == b"[vdso]");
    let kernel = vdso.and_then(|vdso| kernel_release(core, vdso.range)).unwrap_or_default();
    let heads = heads(core, &found.mappings);
    Snapshot {
        pagewise_snapshot: SNAPSHOT_VERSION,
        machine: machine(),
        statm: absent(),
        status: absent(),
        rollup: absent(),
        walk: absent(),
        threads: Ok(threads(core)),
        objects: images.objects().iter().filter(is_loaded).cloned().collect(),
        heads,
        pools: Vec::new(),
        heap_sample: Err(Absent::NotCollected("this reading does not sample the heap".into())),
        core: Some(Box::new(dump(core))),
        mappings: Ok(found.mappings),
        limits: absent(),
        cgroup: absent(),
        ksm: absent(),
        numa: absent(),
        process: process(core),
        provenance: Provenance {
            kernel,
            page_size,
            euid: system::euid(),
            sees_frames: false,
            method: ReadMethod::CoreFile,
            unix_seconds,
            took_ns: nanoseconds(begin.elapsed()),
            longest_hold_ns: absent(),
            root: Name::new(core.path().as_os_str().as_bytes()),
            moment: ProcessMoment::CoreDumped,
            gaps,
        },
    }
}

fn absent<T>() -> Reading<T> {
    Err(Absent::NotRecorded(CORE_FILE.into()))
}

/// Returns true for an object whose headers are known. Other objects consist of a name only.
fn is_loaded(object: &&ElfObject) -> bool {
    object.elf.is_ok()
}

fn machine() -> MachineSettings {
    MachineSettings {
        mem_total: absent(),
        mem_available: absent(),
        swap_total: absent(),
        swap_free: absent(),
        max_map_count: absent(),
        nodes: absent(),
        thp_enabled: absent(),
    }
}

fn page_size(core: &CoreFile, gaps: &mut Vec<Gap>) -> PageSize {
    core.page_size().unwrap_or_else(|| {
        let why = Absent::Ambiguous("assumed to be this machine's".into());
        gaps.push(Gap { what: "page size".into(), why });
        PageSize::new(system::page_size()).expect("the kernel's page size is one")
    })
}

/// Returns remarks on the values that were inferred and not read.
fn remarks(found: &CoreMappings) -> Vec<Gap> {
    let mut remarks = Vec::new();
    let mut remark = |part: &str, reason: String| {
        remarks.push(Gap { what: part.into(), why: Absent::Ambiguous(reason.into()) });
    };
    if !found.named.is_empty() {
        let names = found.named.join(", ");
        remark("names of special mappings", format!("{names} are inferred from addresses"));
    }
    if found.without_segment > 0 {
        let reason = format!(
            "{} mappings of files have no segment; their rights are those of ELF headers, else `r` is assumed",
            found.without_segment
        );
        remark("access rights", reason);
    }
    if found.assumed_guards > 0 {
        let reason = format!(
            "gdb writes mappings without access as readable; {} that hold only zeros are taken as such",
            found.assumed_guards
        );
        remark("guards", reason);
    }
    remarks
}

fn process(core: &CoreFile) -> Process {
    let notes = core.notes();
    let first = notes.threads.first();
    let known = notes.process.as_ref();
    let pid = known.map(|process| process.pid).or(first.map(|thread| thread.tid));
    let pid = pid.unwrap_or(Pid(0));
    let parent = known.map(|process| process.parent).or(first.map(|thread| thread.parent));
    let name = known.map(|process| process.name.clone());
    let program = program(core).map(|file| file.name.clone());
    let base = program.as_ref().map(|path| Name::new(path.base()));
    Process {
        pid,
        ns_pids: vec![pid],
        parent: parent.unwrap_or(Pid(0)),
        name: name.or(base).unwrap_or_default(),
        command: known.map_or_else(absent, |process| Ok(vec![process.arguments.clone()])),
        exe: program.map_or_else(absent, Ok),
        // The kernel's value for an invalid user ID.
        uid: known.map_or(u32::MAX, |process| process.uid),
        user: None,
        state: known.map_or('?', |process| process.state),
        threads: notes.threads.len() as u64,
        age_ns: absent(),
        start_ticks: 0,
        kernel_thread: false,
    }
}

/// Returns the threads in order of their IDs. A core file contains the name of the first thread
/// only.
fn threads(core: &CoreFile) -> Vec<Thread> {
    let notes = core.notes();
    let name = |thread: &ThreadNote| {
        let process = notes.process.as_ref().filter(|process| process.pid == thread.tid);
        process.map_or_else(Name::default, |process| process.name.clone())
    };
    let mut threads: Vec<Thread> = notes
        .threads
        .iter()
        .map(|thread| Thread {
            tid: thread.tid,
            name: name(thread),
            stack_pointer: if thread.registers.is_empty() {
                absent()
            } else {
                Ok(thread.stack_pointer)
            },
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    threads
}

/// The first words of large anonymous mappings that the core holds.
fn heads(core: &CoreFile, mappings: &[Mapping]) -> Vec<MappingHead> {
    let head = |mapping: &Mapping| {
        let mut bytes = [0; 16];
        let address = mapping.range.start;
        core.read(address, &mut bytes)
            .then(|| MappingHead { address, words: heads::words_of(bytes) })
    };
    mappings.iter().filter(|mapping| heads::is_candidate(mapping)).filter_map(head).collect()
}

fn dump(core: &CoreFile) -> CoreDump {
    let notes = core.notes();
    let thread = |thread: &ThreadNote| CoreThread {
        tid: thread.tid,
        signal: thread.signal,
        instruction: thread.instruction,
        stack_pointer: thread.stack_pointer,
        thread_pointer: thread.thread_pointer,
    };
    CoreDump {
        file: Name::new(core.path().as_os_str().as_bytes()),
        size: core.size(),
        compression: core.compression,
        writer: notes.writer,
        segments: core.segments().to_vec(),
        threads: notes.threads.iter().map(thread).collect(),
        signal: signal(core),
    }
}

/// Returns the signal of the first thread, unless gdb only used this signal to stop the process.
fn signal(core: &CoreFile) -> Option<CoreSignal> {
    let notes = core.notes();
    let thread = notes.threads.first()?;
    let note = notes.signal.filter(|note| note.number == thread.signal);
    let is_stop = notes.writer == CoreWriter::Gdb && STOPS_OF_GDB.contains(&thread.signal);
    (thread.signal != 0 && !is_stop).then(|| CoreSignal {
        tid: thread.tid,
        number: thread.signal,
        code: note.map(|note| note.code),
        cause: note.map_or(SignalCause::Kernel, cause),
    })
}

fn cause(note: SignalNote) -> SignalCause {
    if SENT.contains(&note.code) {
        let [low, high] = [note.word, note.word >> 32].map(|word| (word & 0xffff_ffff) as u32);
        SignalCause::Sender { pid: Pid(low), uid: high }
    } else if FAULTS.contains(&note.number) && note.code != SI_KERNEL {
        SignalCause::Address(note.word)
    } else {
        SignalCause::Kernel
    }
}

/// `si_code` of a signal that the kernel sent without an address: a general protection fault, for
/// example after an access to a non-canonical address.
const SI_KERNEL: i32 = 0x80;
