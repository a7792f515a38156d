//! `pagewise heap scan`: the heap of a process as it is, from outside.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagewise_analysis::heap_scan::{HeapScanOptions, heap_scan};
use pagewise_model::Pid;
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::machine::ProcessMoment;
use pagewise_proc::{ProcRoot, target};
use pagewise_scan::live::{CopyRequest, CopyScope, ExpectedPause, copy_running, copy_stopped};
use pagewise_scan::{saved, scan};
use pagewise_sys::trace::{Stopped, Traced};
use pagewise_view::text::Units;

use super::{ROWS, rows};
use crate::commands::heap::args::HeapScanArgs;
use crate::commands::run_command::{NotRun, exit_code};
use crate::output::{emit, note};
use crate::pause::WORTH_SAYING;
use crate::target::UsageError;
use crate::terminal::TerminalLook;

/// Scans a process, a command at its exit, or opens a saved scan.
pub(crate) fn run(args: &HeapScanArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let (earlier, scan, exit) = match (&args.from, args.command.split_first()) {
        (Some(file), _) => (None, saved::open(file)?, ExitCode::SUCCESS),
        (None, Some((program, arguments))) => {
            let (scan, exit) = at_exit(program, arguments)?;
            (None, scan, exit)
        }
        (None, None) => {
            let (earlier, scan) = of_process(args)?;
            (earlier, scan, ExitCode::SUCCESS)
        }
    };
    if let Some(file) = &args.save {
        saved::save(&scan, file).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let options = HeapScanOptions { limit: rows(args.top, &args.output, ROWS) };
    emit(&heap_scan(&scan, earlier.as_ref(), &options), &args.output, look, Units::Human)?;
    Ok(exit)
}

/// One scan, or two with a time between.
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
    let Some(interval) = args.every else {
        return Ok((None, running(&root, pid, args.max_pause)?));
    };
    let began = Instant::now();
    let earlier = running(&root, pid, args.max_pause)?;
    sleep(interval.saturating_sub(began.elapsed()));
    Ok((Some(earlier), running(&root, pid, args.max_pause)?))
}

/// Stops a process to copy its heap, and walks the copy.
pub(crate) fn running(root: &ProcRoot, pid: Pid, max_pause: Duration) -> anyhow::Result<HeapScan> {
    let began = Instant::now();
    let announce = |expected: ExpectedPause| {
        if expected.pause > WORTH_SAYING {
            note(format_args!(
                "stops process {pid} for about {} ms to copy {} MiB",
                expected.pause.as_millis(),
                expected.bytes.0 >> 20
            ));
        }
    };
    let request = CopyRequest { scope: CopyScope::Heap, max_pause, announce: &announce };
    let copy = copy_running(root, pid, &request)?;
    Ok(scan::scan(&copy, ProcessMoment::Running, began)?.scan)
}

/// Runs a command, and scans it when it is about to exit.
fn at_exit(program: &OsStr, arguments: &[OsString]) -> anyhow::Result<(HeapScan, ExitCode)> {
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is not of this pid namespace: a command run here would not be found in it");
    }
    let mut traced =
        Traced::spawn(program, arguments).map_err(|error| NotRun::new(program, error))?;
    let stopped = traced.run(None)?;
    let began = Instant::now();
    let scanned = match stopped {
        Stopped::AtExit => Some(stopped_at_exit(&root, &traced, began)),
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

fn stopped_at_exit(root: &ProcRoot, traced: &Traced, began: Instant) -> anyhow::Result<HeapScan> {
    let (pid, task) = (Pid(traced.pid()), Pid(traced.task()));
    let copy = copy_stopped(root, pid, task, CopyScope::Heap)?;
    Ok(scan::scan(&copy, ProcessMoment::AtExit, began)?.scan)
}
