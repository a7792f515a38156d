//! `pagewise thp`: what huge pages cost a process, and the way back.

use std::io;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use pagewise_analysis::thp::{self, plan_blocks, repair_blocks};
use pagewise_model::thp::{HugePages, Look, Method, Plan};
use pagewise_model::{Absent, Reading, Snapshot};
use pagewise_proc::capture::{Request, Wish, capture};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, huge, referenced, target};
use pagewise_repair::{Conditions, Target, carry_out, self_test};
use pagewise_sys::interrupt::Interrupts;
use pagewise_view::text::Units;

use crate::args::{Act, ShrinkMethod, Thp};
use crate::keeper::KeeperProcess;
use crate::look;
use crate::output::emit;
use crate::pause;
use crate::plan::wish;

/// Looks at the huge pages of a process, and changes them where asked twice.
pub(crate) fn run(args: &Thp, look: &look::Look) -> anyhow::Result<ExitCode> {
    let root = ProcRoot::live();
    let pid = target::find(&root, &args.target)?;
    let wish = wish(&args.reading);
    root.check_access(pid)?;
    let snapshot = capture(&root, pid, &Request { wish, ..Request::default() })?;
    let huge = scan(&root, &snapshot, args.sample.map_or(Look::Exact, Look::Sample), wish)?;
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

fn scan(
    root: &ProcRoot,
    snapshot: &Snapshot,
    look: Look,
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

/// What the options ask to do.
fn plan(
    root: &ProcRoot,
    snapshot: &Snapshot,
    huge: &Reading<HugePages>,
    act: &Act,
    wish: Wish,
) -> anyhow::Result<Option<Plan>> {
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
        return page_out(root, snapshot, act).map(Some);
    }
    Ok(None)
}

/// Waits to see what is not used.
fn page_out(root: &ProcRoot, snapshot: &Snapshot, act: &Act) -> anyhow::Result<Plan> {
    match snapshot.machine.swap_free {
        Ok(free) if !free.is_zero() => {}
        _ => bail!("there is no swap to move memory to"),
    }
    let pid = snapshot.process.pid;
    referenced::clear(root, pid)?;
    std::thread::sleep(act.idle);
    let plan = thp::page_out(&referenced::mappings(root, pid)?);
    plan.map_err(|absent| anyhow::anyhow!("nobody knows what it uses: {absent}"))
}

fn needed<T>(reading: Result<T, &Absent>) -> anyhow::Result<T> {
    reading.map_err(|absent| anyhow::anyhow!("its huge pages cannot be looked at: {absent}"))
}

/// Carries a plan out; also says whether nothing of it could be done.
fn act(
    snapshot: &Snapshot,
    plan: &Plan,
    act: &Act,
) -> anyhow::Result<(Vec<pagewise_model::report::Block>, bool)> {
    let target = Target::open(snapshot.process.pid, snapshot.process.start_ticks)?;
    let method = match act.method {
        // Nothing needs a method where there is nothing to do.
        _ if plan.ranges.is_empty() => Method::Split,
        ShrinkMethod::Auto => match self_test::choose(&Method::ALL, &subject) {
            Ok(method) => method,
            Err(absent) => bail!("{absent}"),
        },
        ShrinkMethod::Split => Method::Split,
        ShrinkMethod::Drop => Method::Drop,
        ShrinkMethod::Swap => Method::Swap,
    };
    if method == Method::Drop && !plan.ranges.is_empty() {
        pause::announce(&ProcRoot::live(), snapshot.process.pid);
    }
    // Whoever asks us to end gets a report of what was done until then.
    let interrupts = Interrupts::note_all();
    let mut keeper = KeeperProcess::start();
    let mut conditions = Conditions {
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

/// This very program, to try on what works.
fn subject() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("huge-page-subject");
    Ok(command)
}

/// Is the process that [`self_test`] tries on.
pub(crate) fn be_the_subject() -> anyhow::Result<ExitCode> {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let text = std::fs::read_to_string(FILE).context(FILE)?;
    let huge_size = text.trim().parse().context(FILE)?;
    let intact = self_test::be_the_subject(huge_size, io::stdin(), io::stdout())?;
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
