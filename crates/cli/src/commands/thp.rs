//! `pagewise thp`: the memory that huge pages waste in a process, and its release.

use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use pagewise_analysis::thp::{self, plan_blocks, repair_blocks};
use pagewise_model::thp::{FixMethod, FixPlan, HugePageLook, HugePages};
use pagewise_model::{Absent, Reading, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, huge, referenced, target};
use pagewise_repair::{RepairConditions, RepairTarget, carry_out, self_test};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_view::text::Units;

use crate::args::{OutputArgs, ReadingArgs};
use crate::keeper::KeeperProcess;
use crate::output::emit;
use crate::target::wish;
use crate::{pause, terminal};

#[derive(Debug, Args)]
pub(crate) struct Thp {
    /// A PID, a process name, a part of a name that matches one process only, or `self` (pagewise)
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Estimate the zero-filled memory from PAGES base pages, chosen at random, instead of reading
    /// all base pages. If PAGES is omitted, it is 24576
    #[arg(long, value_name = "PAGES", num_args = 0..=1, default_missing_value = "24576", conflicts_with_all = ["fix"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    #[command(flatten)]
    pub(crate) act: ThpActs,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The changes that `thp` makes. Without --yes it only prints the plan.
#[derive(Debug, Args)]
pub(crate) struct ThpActs {
    /// Split sparse huge pages, and release their zero-filled base pages. Without --yes, only print
    /// this plan
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) fix: bool,
    /// Collapse fully resident base pages into huge pages. Without --yes, only print this plan
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) collapse: bool,
    /// Swap out the mappings that were not accessed for the time of --idle. Without --yes, only
    /// print this plan
    #[arg(long, group = "act", help_heading = "Change the process")]
    pub(crate) pageout: bool,
    /// With --pageout: clear the referenced bits of the process, wait TIME, and select the mappings
    /// that were not accessed in this time
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "pageout", value_parser = humantime::parse_duration, help_heading = "Change the process")]
    pub(crate) idle: Duration,
    /// Carry out the plan of --fix, --collapse or --pageout
    #[arg(long, requires = "act", help_heading = "Change the process")]
    pub(crate) yes: bool,
    /// With --fix: disable huge pages from now on, for each mapping in which at least half of the
    /// huge pages are sparse, and for the sparse huge pages of other mappings. This stops one
    /// thread for a few microseconds
    #[arg(long, requires = "fix", help_heading = "Change the process")]
    pub(crate) hold: bool,
    /// With --fix: treat a huge page as sparse if at least PERCENT of it is zero-filled
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "fix", value_parser = clap::value_parser!(u8).range(1..=100), help_heading = "Change the process")]
    pub(crate) sparse: u8,
    /// With --fix: the method; `auto` first tests on a child process which methods this kernel
    /// supports
    #[arg(long, value_enum, default_value_t = ShrinkMethod::Auto, requires = "fix", help_heading = "Change the process")]
    pub(crate) method: ShrinkMethod,
    /// With --fix --method drop: stop all threads for at most TIME at a time. Huge pages for which
    /// TIME is too short are not changed
    #[arg(long, value_name = "TIME", default_value = "100ms", requires = "fix", value_parser = humantime::parse_duration, help_heading = "Change the process")]
    pub(crate) max_pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShrinkMethod {
    /// The least intrusive method that works
    Auto,
    /// process_madvise(MADV_COLD) on one base page of each huge page
    Split,
    /// The process calls madvise(MADV_DONTNEED) on the zero-filled pages while all its threads are
    /// stopped
    Drop,
    /// process_madvise(MADV_PAGEOUT): moves the huge pages to swap, where zero-filled pages are
    /// dropped
    Swap,
}

/// Reports the huge pages of a process. Changes them only with --yes.
pub(crate) fn run(args: &Thp, look: &terminal::TerminalLook) -> anyhow::Result<ExitCode> {
    let root = ProcRoot::live();
    let pid = target::find(&root, &args.target)?;
    let wish = wish(&args.reading);
    root.check_access(pid)?;
    let snapshot = capture(&root, pid, &CaptureRequest { wish, ..CaptureRequest::default() })?;
    let huge = scan(
        &root,
        &snapshot,
        args.sample.map_or(HugePageLook::Exact, HugePageLook::Sample),
        wish,
    )?;
    let mut report = thp::thp(&snapshot, &huge);
    let mut exit = ExitCode::SUCCESS;
    if let Some(plan) = plan(&root, &snapshot, &huge, &args.act, wish)? {
        if args.act.yes {
            let (blocks, failed) = act(&snapshot, &plan, &args.act)?;
            report.blocks.extend(blocks);
            exit = if failed { ExitCode::FAILURE } else { exit };
        } else {
            report.blocks.extend(plan_blocks(&plan, &snapshot));
        }
    }
    emit(&report, &args.output, look, Units::Human)?;
    Ok(exit)
}

pub(crate) fn scan(
    root: &ProcRoot,
    snapshot: &Snapshot,
    look: HugePageLook,
    wish: Wish,
) -> anyhow::Result<Reading<HugePages>> {
    let mappings = snapshot.mappings.as_deref().unwrap_or_default();
    if let Err(absent) = &snapshot.mappings {
        return Ok(Err(absent.clone()));
    }
    let page_size = snapshot.provenance.page_size;
    Ok(huge::scan(root, snapshot.process.pid, mappings, page_size, look, &pace(wish))?)
}

fn pace(wish: Wish) -> Pace {
    if wish == Wish::Fast { Pace::FAST } else { Pace::POLITE }
}

/// Change that the options select.
fn plan(
    root: &ProcRoot,
    snapshot: &Snapshot,
    huge: &Reading<HugePages>,
    act: &ThpActs,
    wish: Wish,
) -> anyhow::Result<Option<FixPlan>> {
    let page_size = snapshot.provenance.page_size;
    if act.fix {
        let huge = needed(huge.as_ref())?;
        let sparse = f64::from(act.sparse) / 100.0;
        return Ok(Some(thp::shrink(huge, page_size.pages(1), sparse, act.hold)));
    }
    if act.collapse {
        let mappings = snapshot.mappings.as_deref().unwrap_or_default();
        let pid = snapshot.process.pid;
        let dense = huge::dense_blocks(root, pid, mappings, page_size, &pace(wish))?;
        let (blocks, spared) = needed(dense.as_ref())?;
        return Ok(Some(thp::collapse(blocks.clone(), *spared)));
    }
    if act.pageout {
        return page_out(root, snapshot, act.idle).map(Some);
    }
    Ok(None)
}

/// Clears the referenced bits, waits for `idle`, and plans to swap out the mappings that were not
/// accessed.
pub(crate) fn page_out(
    root: &ProcRoot,
    snapshot: &Snapshot,
    idle: Duration,
) -> anyhow::Result<FixPlan> {
    match snapshot.machine.swap_free {
        Ok(free) if !free.is_zero() => {}
        _ => bail!("swap is off: memory cannot be moved to it"),
    }
    let pid = snapshot.process.pid;
    referenced::clear(root, pid)?;
    std::thread::sleep(idle);
    let plan = thp::page_out(&referenced::mappings(root, pid)?);
    plan.map_err(|absent| anyhow::anyhow!("its huge pages are unknown: {absent}"))
}

fn needed<T>(reading: Result<T, &Absent>) -> anyhow::Result<T> {
    reading.map_err(|absent| anyhow::anyhow!("its huge pages cannot be examined: {absent}"))
}

/// Carries out a plan. Also returns true if no part of the plan could be carried out.
fn act(
    snapshot: &Snapshot,
    plan: &FixPlan,
    act: &ThpActs,
) -> anyhow::Result<(Vec<pagewise_model::report::ReportBlock>, bool)> {
    let target = RepairTarget::open(snapshot.process.pid, snapshot.process.start_ticks)?;
    let method = match act.method {
        // An empty plan needs no method.
        _ if plan.ranges.is_empty() => FixMethod::Split,
        ShrinkMethod::Auto => gentlest_method()?,
        ShrinkMethod::Split => FixMethod::Split,
        ShrinkMethod::Drop => FixMethod::Drop,
        ShrinkMethod::Swap => FixMethod::Swap,
    };
    if method == FixMethod::Drop && !plan.ranges.is_empty() {
        pause::announce(&ProcRoot::live(), snapshot.process.pid);
    }
    // After a signal, the report has the changes that were made until then.
    let interrupts = NotedInterrupts::note_all();
    let mut keeper = KeeperProcess::start();
    let mut conditions = RepairConditions {
        max_pause: act.max_pause,
        keeper: &mut keeper,
        is_interrupted: &|| interrupts.came(),
    };
    let repair = carry_out(&target, plan, method, &mut conditions);
    keeper.dismiss();
    let repair = repair?;
    let failed = repair.done == 0 && repair.failed > 0;
    Ok((repair_blocks(&repair), failed))
}

/// The least intrusive method that this kernel supports, by a test on a child process.
pub(crate) fn gentlest_method() -> anyhow::Result<FixMethod> {
    self_test::choose(&FixMethod::ALL, &subject).map_err(|absent| anyhow::anyhow!("{absent}"))
}

/// This program, as the child process on which methods are tested.
fn subject() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("huge-page-subject");
    Ok(command)
}

/// Runs as the child process on which [`self_test`] tests methods.
pub(crate) fn be_the_subject() -> anyhow::Result<ExitCode> {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let text = std::fs::read_to_string(FILE).context(FILE)?;
    let huge_size = text.trim().parse().context(FILE)?;
    let intact = self_test::be_the_subject(huge_size, io::stdin(), io::stdout())?;
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
