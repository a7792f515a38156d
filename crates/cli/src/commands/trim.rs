//! `pagewise trim`: memory that a running process can release without a restart.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use pagewise_analysis::{thp as thp_report, trim as trim_report};
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::thp::{FixMethod, FixPlan, HugePageLook, HugePages};
use pagewise_model::trim::{
    PartOutcome, ReleaseFunction, TrimEstimate, TrimPart, TrimResult, UnusedStacks,
};
use pagewise_model::{Absent, Reading, Report, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::{ProcRoot, target, unused_stacks};
use pagewise_repair::trim::{heap, stacks};
use pagewise_repair::{RepairConditions, RepairError, RepairTarget, carry_out};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::text::Units;

use super::heap::scan::CopyMethod;
use super::thp;
use crate::args::{OutputArgs, ReadingArgs};
use crate::keeper::KeeperProcess;
use crate::output::emit;
use crate::target::wish;
use crate::{pause, terminal};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("part").args(["heap", "stacks", "huge", "cold"]).multiple(true))]
pub(crate) struct Trim {
    /// A PID, a process name, or a part of a name that matches one process only
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Select free pages of the heap: the allocator releases them (malloc_trim and the like)
    #[arg(long, help_heading = "Select memory")]
    pub(crate) heap: bool,
    /// Select pages of thread stacks below the stack pointer
    #[arg(long, help_heading = "Select memory")]
    pub(crate) stacks: bool,
    /// Select zero-filled pages of sparse huge pages, as `thp --fix` does
    #[arg(long, help_heading = "Select memory")]
    pub(crate) huge: bool,
    /// Select memory that was not accessed for AGE: it moves to swap. This clears the referenced
    /// bits of the process and waits for AGE first
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration, help_heading = "Select memory")]
    pub(crate) cold: Option<Duration>,
    /// Release the selected memory
    #[arg(long, requires = "part")]
    pub(crate) yes: bool,
    /// Count page faults of the process for TIME after the release
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "yes", value_parser = humantime::parse_duration)]
    pub(crate) settle: Duration,
    /// Stop all threads for at most TIME to copy the heap for the estimate, and let malloc_trim
    /// wait for a lock for at most TIME
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub(crate) max_pause: Duration,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl Trim {
    /// Returns the parts of the memory that the options select.
    fn parts(&self) -> Vec<TrimPart> {
        let is_selected = |part: &TrimPart| match part {
            TrimPart::Heap => self.heap,
            TrimPart::Stacks => self.stacks,
            TrimPart::Huge => self.huge,
            TrimPart::Cold => self.cold.is_some(),
        };
        TrimPart::ALL.into_iter().filter(is_selected).collect()
    }

    /// Returns true if the report is printed as text on standard output.
    fn is_read_at_once(&self) -> bool {
        !self.output.json && self.output.html.is_none() && self.output.output.is_none()
    }
}

/// An estimate, and the plans of the changes on which it is based.
struct TrimPlan {
    estimate: TrimEstimate,
    huge: Reading<FixPlan>,
    cold: Reading<FixPlan>,
}

/// Estimates the memory that a process can release, and releases it if --yes is given.
pub(crate) fn run(args: &Trim, look: &terminal::TerminalLook) -> anyhow::Result<ExitCode> {
    let root = ProcRoot::live();
    let pid = target::find(&root, &args.target)?;
    root.check_access(pid)?;
    let wish = wish(&args.reading);
    let snapshot = capture(&root, pid, &CaptureRequest { wish, ..CaptureRequest::default() })?;
    let process = RepairTarget::open(pid, snapshot.process.start_ticks)?;
    let plan = plan(&root, &snapshot, &process, args, wish)?;
    let show = |report: &Report| emit(report, &args.output, look, Units::Human);
    let parts = args.parts();
    if !args.yes {
        show(&trim_report::estimate(&snapshot, &plan.estimate, &parts))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.is_read_at_once() {
        show(&trim_report::announced(&snapshot, &plan.estimate))?;
    }
    let result = release(&process, &snapshot, &plan, args)?;
    show(&match args.is_read_at_once() {
        true => trim_report::effect(&snapshot, &plan.estimate, &result),
        false => trim_report::whole(&snapshot, &plan.estimate, &result),
    })?;
    let is_done = |outcome: &Reading<PartOutcome>| {
        outcome.as_ref().is_ok_and(|outcome| outcome.done > 0 || outcome.failed == 0)
    };
    Ok(match result.parts.iter().any(|(_, outcome)| is_done(outcome)) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn plan(
    root: &ProcRoot,
    snapshot: &Snapshot,
    process: &RepairTarget,
    args: &Trim,
    wish: Wish,
) -> anyhow::Result<TrimPlan> {
    let parts = args.parts();
    let unasked = |part: TrimPart| match parts.is_empty() || parts.contains(&part) {
        true => Ok(()),
        false => Err(Absent::NotCollected(format!("--{} was not given", part.key()).into())),
    };
    let huge = match unasked(TrimPart::Huge) {
        Ok(()) => thp::scan(root, snapshot, HugePageLook::Exact, wish)?,
        Err(absent) => Err(absent),
    };
    let huge = huge.map(|huge| shrink(snapshot, &huge));
    let stacks = match unasked(TrimPart::Stacks) {
        Ok(()) => unused(root, snapshot)?,
        Err(absent) => Err(absent),
    };
    let cold = cold(root, snapshot, args)?;
    let change = |plan: &Reading<FixPlan>| {
        plan.as_ref().map_err(Clone::clone).and_then(|plan| plan.change.clone())
    };
    let functions = functions(process);
    // The walk stops the process, so it is left out if the options select only other parts.
    let scan = unasked(TrimPart::Heap)
        .and_then(|()| functions.as_ref().map_err(Clone::clone))
        .and_then(|functions| walk(root, snapshot, functions, args.max_pause));
    let of_scan = scan.as_ref().map_err(Clone::clone);
    let estimate = TrimEstimate {
        // A copy may fail during the pause; the length of the pause is then unknown.
        longest_stop_ns: of_scan.map(|scan| scan.copy.pause_ns),
        corrupted: scan.as_ref().map_or(0, damage),
        heap: scan.map(|scan| scan.heap.trimmable()),
        functions: functions.unwrap_or_default(),
        stacks,
        huge: change(&huge),
        cold: change(&cold),
    };
    Ok(TrimPlan { estimate, huge, cold })
}

/// Returns the number of contradictions in the allocator's data; 0 if a thread may have been
/// changing this data.
fn damage(scan: &HeapScan) -> u64 {
    if scan.may_be_in_change() { 0 } else { scan.heap.corrupted }
}

/// Walks the heap. Fails if the walk cannot show the amount that each function will release.
fn walk(
    root: &ProcRoot,
    snapshot: &Snapshot,
    functions: &[ReleaseFunction],
    max_pause: Duration,
) -> Reading<HeapScan> {
    let unknown = |function: &ReleaseFunction, why: &str| {
        let file = function.file.escaped();
        let why = format!("{} of {file} {why}: --heap --yes measures it", function.name);
        Absent::NotSupported(why.into())
    };
    let estimated = functions.iter().map(|it| (it, heap::estimated_by(&it.name)));
    if let Some((function, _)) = estimated.clone().find(|(_, allocator)| allocator.is_none()) {
        return Err(unknown(function, "releases pages of one thread, which is not known before"));
    }
    let pid = snapshot.process.pid;
    let scan = super::heap::scan::running(root, pid, CopyMethod::Stop, max_pause, None)
        .map_err(|error| Absent::NotSupported(format!("{error:#}").into()))?;
    for (function, allocator) in estimated {
        let refused = scan.heap.refused.iter().find(|it| Some(it.name.as_str()) == allocator);
        if let Some(refused) = refused {
            return Err(unknown(
                function,
                &format!("has an allocator that was not walked ({})", refused.why),
            ));
        }
        let is_walked = scan.heap.allocators.iter().any(|it| Some(it.name.as_str()) == allocator);
        // The C library is in every process; its heap is not walked if another allocator replaces
        // it.
        if !is_walked && allocator != Some("glibc") {
            return Err(unknown(function, "has an allocator whose heap was not found"));
        }
    }
    Ok(scan)
}

fn functions(process: &RepairTarget) -> Reading<Vec<ReleaseFunction>> {
    let calls = process.safe_calls()?;
    heap::functions(&calls).map(|found| heap::named(&found))
}

fn unused(root: &ProcRoot, snapshot: &Snapshot) -> anyhow::Result<Reading<UnusedStacks>> {
    let pid = snapshot.process.pid;
    let parts = snapshot
        .mappings
        .as_ref()
        .and_then(|mappings| snapshot.threads.as_ref().map(|threads| (mappings, threads)));
    match parts {
        Ok((mappings, threads)) => {
            let page_size = snapshot.provenance.page_size;
            Ok(unused_stacks::read(root, pid, mappings, threads, page_size)?)
        }
        Err(absent) => Ok(Err(absent.clone())),
    }
}

/// Minimum share of zero-filled bytes in a sparse huge page: the default of `thp --fix`.
const SPARSE: f64 = 0.5;

fn shrink(snapshot: &Snapshot, huge: &HugePages) -> FixPlan {
    thp_report::shrink(huge, snapshot.provenance.page_size.pages(1), SPARSE, false)
}

/// Waits for the time of --cold, and returns the plan to swap out the memory that was not accessed
/// in this time.
fn cold(root: &ProcRoot, snapshot: &Snapshot, args: &Trim) -> anyhow::Result<Reading<FixPlan>> {
    let Some(age) = args.cold else {
        return Ok(Err(Absent::NotCollected("--cold AGE waits for AGE".into())));
    };
    match &snapshot.machine.swap_free {
        Ok(free) if !free.is_zero() => thp::page_out(root, snapshot, age).map(Ok),
        _ => Ok(Err(Absent::NotSupported("swap is off: memory cannot be moved to it".into()))),
    }
}

/// Releases the selected parts one after the other, and counts page faults for the time of
/// --settle.
fn release(
    process: &RepairTarget,
    snapshot: &Snapshot,
    plan: &TrimPlan,
    args: &Trim,
) -> anyhow::Result<TrimResult> {
    let before = process.memory_by_kind()?;
    // After a signal, the report still has the parts that were released.
    let interrupts = NotedInterrupts::note_all();
    let is_interrupted = || interrupts.came();
    let mut keeper = KeeperProcess::start();
    let mut conditions = RepairConditions {
        max_pause: args.max_pause,
        keeper: &mut keeper,
        is_interrupted: &is_interrupted,
    };
    let parts: anyhow::Result<Vec<_>> = args
        .parts()
        .into_iter()
        .map(|part| Ok((part, release_part(part, process, snapshot, plan, &mut conditions)?)))
        .collect();
    keeper.dismiss();
    let (parts, faults, after) = (parts?, process.faults()?, process.memory_by_kind()?);
    let began = Instant::now();
    while began.elapsed() < args.settle && !interrupts.came() {
        sleep(args.settle.saturating_sub(began.elapsed()).min(Duration::from_millis(50)));
    }
    // The process may have ended.
    let settled = process.settled(faults, began.elapsed()).map_err(|_| Absent::Vanished);
    Ok(TrimResult { parts, before, after, settled })
}

fn release_part(
    part: TrimPart,
    process: &RepairTarget,
    snapshot: &Snapshot,
    plan: &TrimPlan,
    conditions: &mut RepairConditions<'_>,
) -> anyhow::Result<Reading<PartOutcome>> {
    match part {
        TrimPart::Heap if plan.estimate.corrupted > 0 => Ok(Err(Absent::NotSupported(
            "the data of its allocator contradict themselves: malloc_trim might end the process. `pagewise heap scan` lists the contradictions"
                .into(),
        ))),
        TrimPart::Heap => Ok(heap::release(process, conditions)?),
        TrimPart::Stacks => {
            let known = plan.estimate.stacks.as_ref().map_or(&[][..], |stacks| &stacks.threads);
            Ok(stacks::release(process, known, conditions)?)
        }
        TrimPart::Huge => by_plan(&plan.huge, process, snapshot, conditions),
        TrimPart::Cold => by_plan(&plan.cold, process, snapshot, conditions),
    }
}

fn by_plan(
    plan: &Reading<FixPlan>,
    process: &RepairTarget,
    snapshot: &Snapshot,
    conditions: &mut RepairConditions<'_>,
) -> anyhow::Result<Reading<PartOutcome>> {
    let plan = match plan {
        Ok(plan) => plan,
        Err(absent) => return Ok(Err(absent.clone())),
    };
    let method = match plan.ranges.is_empty() {
        true => FixMethod::Split,
        false => thp::gentlest_method()?,
    };
    if method == FixMethod::Drop {
        pause::announce(&ProcRoot::live(), snapshot.process.pid);
    }
    match carry_out(process, plan, method, conditions) {
        Ok(repair) => Ok(Ok(repair.into())),
        Err(RepairError::Refused(absent)) => Ok(Err(absent)),
        Err(error) => Err(error.into()),
    }
}
