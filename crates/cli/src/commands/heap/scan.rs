//! `pagewise heap scan`: reads the present heap of a process from outside the process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use pagewise_analysis::heap_graph;
use pagewise_analysis::heap_scan::{HeapScanOptions, heap_scan};
use pagewise_heap::{allocation_stacks, recorder_memory, stacks_of_recording};
use pagewise_heaplog::{LogRecording, reader};
use pagewise_model::heap_graph::not_recorded;
use pagewise_model::heap_scan::{HeapScan, MemoryCopy};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::process::Process;
use pagewise_model::{AddrRange, Bytes, Pid};
use pagewise_proc::capture::outline;
use pagewise_proc::data_symbols::{NamedVariables, named_variables};
use pagewise_proc::{ProcRoot, target};
use pagewise_scan::allocator_code::allocator_code;
use pagewise_scan::core_image::CoreImage;
use pagewise_scan::live::{
    CopyRequest, CopyScope, ExpectedPause, ProcessCopy, copy_forked, copy_moving, copy_running,
    copy_stopped,
};
use pagewise_scan::memory::Memory;
use pagewise_scan::reachability::{FindAllocations, FrameRequest, GraphRequest, WantedTypes};
use pagewise_scan::{saved, scan};
use pagewise_sys::trace::{Stopped, Traced};
use pagewise_trace::{ProcessCode, RecordedFile, demangled};
use pagewise_view::html;
use pagewise_view::text::Units;

use super::scan_code::ScannedCode;
use super::{ROWS, rows};
use crate::commands::heap::args::HeapScanArgs;
use crate::commands::run_command::{NotRun, exit_code};
use crate::keeper::KeeperProcess;
use crate::output::{emit_with_page, note};
use crate::pause::WORTH_SAYING;
use crate::target::{UsageError, open_core};
use crate::terminal::TerminalLook;

/// Maximum number of scans of a process whose heap changes during each copy.
const MAX_SCANS: u32 = 4;

/// Scans a process, or a command at its exit, or opens a saved scan.
pub(crate) fn run(args: &HeapScanArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let (earlier, scan, exit) = match (&args.from, &args.core, args.command.split_first()) {
        (Some(file), ..) => (None, saved::open(file)?, ExitCode::SUCCESS),
        (None, Some(file), _) => (None, of_core(args, file)?, ExitCode::SUCCESS),
        (None, None, Some((program, arguments))) => {
            let (scan, exit) = at_exit(args, program, arguments)?;
            (None, scan, exit)
        }
        (None, None, None) => {
            let (earlier, scan) = of_process(args)?;
            (earlier, scan, ExitCode::SUCCESS)
        }
    };
    if let Some(file) = &args.save {
        saved::save(&scan, file).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let options = HeapScanOptions { limit: rows(args.top, &args.output, ROWS) };
    let report = heap_scan(&scan, earlier.as_ref(), &options);
    let cells = scan.graph.as_ref().map(heap_graph::cells).unwrap_or_default();
    let page = |out: &mut dyn Write| match cells.is_empty() {
        true => html::write(&report, out),
        false => html::write_retained(&report, &cells, out),
    };
    emit_with_page(&report, &args.output, look, Units::Human, page)?;
    Ok(exit)
}

/// Scans a core file. The mapped files may be of another machine or have changed, so they are found
/// by build ID. Variables have names if debug information describes them.
fn of_core(args: &HeapScanArgs, file: &Path) -> anyhow::Result<HeapScan> {
    let began = Instant::now();
    let (core, images) = open_core(file, args.exe.as_deref())?;
    let image = CoreImage::new(core, images);
    let variables = |_: &[u64]| NamedVariables::default();
    let builds = image.images().builds().iter();
    let files = builds.map(|it| RecordedFile {
        name: it.name.clone(),
        path: it.path.clone(),
        build_id: it.build_id.clone(),
    });
    let code = ScannedCode::new(ProcessCode::of_core(image.mappings(), files.collect()));
    let recording = args.recording_of(&image.snapshot().process)?;
    let search = args.pointer_search(recording.as_ref());
    let allocations = |starts: &[u64]| match &recording {
        Some(recording) => stacks_of_recording(recording, starts),
        None => Err(not_recorded()),
    };
    with_request(search, &variables, &code, &allocations, &[], |request| {
        Ok(scan::scan_core(&image, began, request)?.scan)
    })
}

/// Scans a process once, or twice with an interval in between.
fn of_process(args: &HeapScanArgs) -> anyhow::Result<(Option<HeapScan>, HeapScan)> {
    let name = args.target.as_deref().context("no target was given")?;
    let (root, pid) = target::hold(&ProcRoot::live(), name)?;
    if root.ourselves() == Some(pid) {
        return Err(UsageError("pagewise cannot stop and scan itself".to_owned()).into());
    }
    if !root.has_our_ids() {
        bail!("/proc is not of this pid namespace: the process would not be found in it");
    }
    root.check_access(pid)?;
    let recording = args.recording_of(&outline(&root, pid)?.0)?;
    let search = args.pointer_search(recording.as_ref());
    let method = if args.fork { CopyMethod::Fork } else { CopyMethod::Stop };
    let scan = || running(&root, pid, method, args.max_pause, search);
    let Some(interval) = args.every else {
        return Ok((None, scan()?));
    };
    let earlier = scan()?;
    // The time of the earlier scan is part of the interval.
    sleep(interval.saturating_sub(Duration::from_nanos(earlier.took_ns)));
    Ok((Some(earlier), scan()?))
}

/// The state of a process while its memory is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMethod {
    /// The process is stopped.
    Stop,
    /// The process runs, after pagewise made it fork a snapshot.
    Fork,
}

/// Scans a process without stopping it, if at most `max_bytes` are to be copied. If the allocator's
/// data contradicts itself, and the scan was fast, the process is scanned again.
pub(crate) fn moving(root: &ProcRoot, pid: Pid, max_bytes: Bytes) -> anyhow::Result<HeapScan> {
    const FAST: Duration = Duration::from_millis(250);
    let scan = || {
        let began = Instant::now();
        let copy = copy_moving(root, pid, CopyScope::HeapAndRoots, max_bytes)?;
        scanned(root, &copy, ProcessMoment::Running, began, Some(PointerSearch::LEAKS))
    };
    let first = scan()?;
    if first.heap.corrupted == 0 || Duration::from_nanos(first.took_ns) > FAST {
        return Ok(first);
    }
    let second = scan()?;
    Ok(if second.heap.corrupted < first.heap.corrupted { second } else { first })
}

/// Scans a running process. If its allocator's data contradicts itself while a thread may have been
/// changing it, the process is scanned again.
pub(crate) fn running(
    root: &ProcRoot,
    pid: Pid,
    method: CopyMethod,
    max_pause: Duration,
    search: Option<PointerSearch<'_>>,
) -> anyhow::Result<HeapScan> {
    let purpose = match method {
        CopyMethod::Stop => "to copy",
        CopyMethod::Fork => "to fork a snapshot of",
    };
    let announce = |expected: ExpectedPause| {
        if expected.pause > WORTH_SAYING {
            note(format_args!(
                "stops process {pid} for about {} ms {purpose} {} MiB",
                expected.pause.as_millis(),
                expected.bytes.0 >> 20
            ));
        }
    };
    let busy_code = match outline(root, pid)?.1 {
        Ok(mappings) => allocator_code(root, pid, &mappings),
        Err(_) => Vec::new(),
    };
    let scope = scope(search);
    let request = CopyRequest { scope, max_pause, busy_code: &busy_code, announce: &announce };
    let (mut discarded, mut scans) = (MemoryCopy::default(), 0);
    loop {
        let mut scan = scan_once(root, pid, method, &request, search)?;
        scan.copy = scan.copy.after(discarded);
        scans += 1;
        let is_settled = scan.heap.corrupted == 0 || !scan.may_be_in_change();
        if is_settled || scans == MAX_SCANS {
            return Ok(scan);
        }
        discarded = scan.copy;
    }
}

fn scan_once(
    root: &ProcRoot,
    pid: Pid,
    method: CopyMethod,
    request: &CopyRequest<'_>,
    search: Option<PointerSearch<'_>>,
) -> anyhow::Result<HeapScan> {
    let began = Instant::now();
    let copy = match method {
        CopyMethod::Stop => copy_running(root, pid, request)?,
        CopyMethod::Fork => {
            let mut keeper = KeeperProcess::start();
            let copied = copy_forked(root, pid, request, &mut keeper);
            keeper.dismiss();
            copied?
        }
    };
    scanned(root, &copy, ProcessMoment::Running, began, search)
}

const fn scope(search: Option<PointerSearch<'_>>) -> CopyScope {
    if search.is_some() { CopyScope::HeapAndRoots } else { CopyScope::Heap }
}

/// Results that need the pointers of the heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerSearch<'r> {
    retained: bool,
    why: Option<u64>,
    types: bool,
    /// The recording that has the call stacks of blocks if the process has no recorder.
    recording: Option<&'r LogRecording>,
}

impl PointerSearch<'_> {
    /// Searches for unreachable blocks, and for the roots that retain most bytes.
    pub(crate) const LEAKS: PointerSearch<'static> =
        PointerSearch { retained: true, why: None, types: false, recording: None };
}

/// Calls `scan` with the request of a search. The request takes functions and types from `code`.
/// Without a search, `scan` gets no request.
fn with_request<T>(
    search: Option<PointerSearch<'_>>,
    variables: &dyn Fn(&[u64]) -> NamedVariables,
    code: &ScannedCode,
    allocations: &FindAllocations<'_>,
    recorder: &[AddrRange],
    scan: impl FnOnce(Option<&GraphRequest<'_>>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(PointerSearch { retained, why, types, .. }) = search else { return scan(None) };
    let frames = |wanted: &FrameRequest<'_>| code.frames(wanted);
    let data_types = |wanted: &WantedTypes<'_>| code.data_types(wanted);
    let request = GraphRequest {
        retained,
        why,
        variables,
        frames: &frames,
        types: types.then_some(&data_types as _),
        allocations,
        recorder,
        demangle: &demangled,
    };
    scan(Some(&request))
}

impl HeapScanArgs {
    fn pointer_search<'r>(&self, recording: Option<&'r LogRecording>) -> Option<PointerSearch<'r>> {
        let (retained, why, types) = (self.retained, self.why, self.types);
        let search = PointerSearch { retained, why, types, recording };
        let is_wanted = self.leaks || self.retained || self.types || self.why.is_some();
        is_wanted.then_some(search)
    }

    /// Opens the recording of --recording. Fails if the recording is of another process than the
    /// scanned one.
    fn recording_of(&self, process: &Process) -> anyhow::Result<Option<LogRecording>> {
        let Some(path) = &self.recording else { return Ok(None) };
        let cannot = || format!("cannot read {}", path.display());
        let recording = reader::read(File::open(path).with_context(cannot)?);
        let recording = recording.with_context(cannot)?.recording;
        let (pid, began_ns) = (recording.begin.pid, recording.begin.began_ns);
        let age = process.age_ns.as_ref().map_or(Duration::MAX, |age| Duration::from_nanos(*age));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // The age is rounded to clock ticks: allow one second.
        let started = now.saturating_sub(age).saturating_sub(Duration::from_secs(1));
        if pid != process.pid.0 || started > Duration::from_nanos(began_ns) {
            let words = format!(
                "{} is a recording of process {pid}, and not of this process {}",
                path.display(),
                process.pid
            );
            return Err(UsageError(words).into());
        }
        Ok(Some(recording))
    }
}

/// Walks the heap of a copy. If `search` is given, also searches the pointers of the copy.
fn scanned(
    root: &ProcRoot,
    copy: &ProcessCopy,
    moment: ProcessMoment,
    began: Instant,
    search: Option<PointerSearch<'_>>,
) -> anyhow::Result<HeapScan> {
    let (mappings, program) = (copy.mappings(), copy.process.exe.as_ref().ok());
    let variables =
        |addresses: &[u64]| named_variables(root, copy.process.pid, mappings, program, addresses);
    let code = ScannedCode::new(ProcessCode::of_process(copy.process.pid, mappings));
    // The process may run during this search: it neither frees nor reuses leaked blocks.
    let recording = search.and_then(|search| search.recording);
    let allocations = |starts: &[u64]| {
        let live = allocation_stacks(root, copy.process.pid, starts);
        match recording.filter(|_| live.is_err()) {
            Some(recording) => stacks_of_recording(recording, starts),
            None => live,
        }
    };
    let recorder = recorder_memory(root, copy.process.pid);
    with_request(search, &variables, &code, &allocations, &recorder, |request| {
        Ok(scan::scan(copy, moment, began, request)?.scan)
    })
}

/// Runs a command, and scans it when it is about to exit.
fn at_exit(
    args: &HeapScanArgs,
    program: &OsStr,
    arguments: &[OsString],
) -> anyhow::Result<(HeapScan, ExitCode)> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let mut traced =
        Traced::spawn(program, arguments).map_err(|error| NotRun::new(program, error))?;
    let stopped = traced.run(None)?;
    let began = Instant::now();
    let scanned = match stopped {
        Stopped::AtExit => Some(stopped_at_exit(args.pointer_search(None), &root, &traced, began)),
        _ => None,
    };
    let why = traced.untraced();
    let exit = exit_code(traced.finish().context("cannot wait for the command")?);
    match scanned {
        Some(scan) => Ok((scan?, exit)),
        None => bail!(
            "the command ended before its heap could be scanned{}",
            why.map(|why| format!(": {why}")).unwrap_or_default()
        ),
    }
}

fn stopped_at_exit(
    search: Option<PointerSearch<'_>>,
    root: &ProcRoot,
    traced: &Traced,
    began: Instant,
) -> anyhow::Result<HeapScan> {
    let (pid, task) = (Pid(traced.pid()), Pid(traced.task()));
    let copy = copy_stopped(root, pid, task, scope(search))?;
    scanned(root, &copy, ProcessMoment::AtExit, began, search)
}
