//! `pagewise top`: processes and cgroups, live. A sweep is one reading of all processes.

mod input;
mod instruments;
mod live;
mod pace;
mod reader;
#[cfg(feature = "record")]
mod replay;
mod sampling;
mod screen;
#[cfg(feature = "record")]
mod stored;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use pagewise_model::Name;
use pagewise_model::sweep::ProcessKey;
use pagewise_model::top::{TopColumn, TopGrouping, TopQuery, TopSubject};
use pagewise_proc::cgroup::hierarchy;
use pagewise_proc::{ProcRoot, stat, target};
use pagewise_tui::PageSubject;

use self::live::LiveTop;
#[cfg(feature = "record")]
pub(crate) use self::{replay::run as replay, stored::StoredSweeps};
use crate::terminal::TerminalLook;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// A PID, a process name, a part of a name that matches one process only, or the path of a
    /// memory cgroup; without TARGET, all processes
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Read all processes every TIME; less often if that would take more than 1 % of a CPU core
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) every: Duration,
    /// Sort by COLUMN
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = TopSort::Pss)]
    pub(crate) sort: TopSort,
    /// Show one row for each group
    #[arg(long, value_enum, value_name = "KEY")]
    pub(crate) group: Option<TopGroup>,
    /// Show only rows that contain TEXT in the name, the arguments or the user, or have it as PID
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Show children below their parents
    #[arg(long, conflicts_with = "group")]
    pub(crate) tree: bool,
    /// Show cgroups instead of processes
    #[arg(long, conflicts_with_all = ["group", "target"])]
    pub(crate) cgroups: bool,
}

/// Columns to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    Pid,
    User,
    Pss,
    Uss,
    Rss,
    Swap,
    Growth,
    Minor,
    Major,
    Psi,
    Oom,
    Name,
}

impl TopSort {
    const fn column(self) -> TopColumn {
        match self {
            TopSort::Pid => TopColumn::Pid,
            TopSort::User => TopColumn::User,
            TopSort::Pss => TopColumn::Pss,
            TopSort::Uss => TopColumn::Uss,
            TopSort::Rss => TopColumn::Rss,
            TopSort::Swap => TopColumn::Swap,
            TopSort::Growth => TopColumn::Growth,
            TopSort::Minor => TopColumn::Minor,
            TopSort::Major => TopColumn::Major,
            TopSort::Psi => TopColumn::Pressure,
            TopSort::Oom => TopColumn::OomRank,
            TopSort::Name => TopColumn::Name,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TopGroup {
    User,
    Cgroup,
    Exe,
}

/// Minimum interval of sweeps: rates over shorter times would be noise.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < MIN_INTERVAL { Err("expected 200ms or more".into()) } else { Ok(time) }
}

/// Shows the processes until the user quits.
pub(crate) fn run(args: &TopArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    require_terminal("top")?;
    let root = ProcRoot::live();
    if !root.has_our_ids() {
        bail!("/proc is of another pid namespace: its processes cannot be observed from here");
    }
    let mut query = query(args);
    let subject = match args.target.as_deref() {
        Some(path) if hierarchy::is_path(path) => {
            check_cgroup(&root, path)?;
            query.cgroup = Some(Name::from(path));
            None
        }
        Some(name) => Some(PageSubject::Process(process(&root, name)?)),
        None => None,
    };
    LiveTop::start(&root, args.every, query, subject, look)?.run()
}

/// Returns true if the output options select no other output, and there is a terminal.
#[cfg(feature = "record")]
pub(crate) fn is_for_terminal(output: &crate::args::OutputArgs) -> bool {
    let is_elsewhere = output.json || output.html.is_some() || output.output.is_some();
    !is_elsewhere && require_terminal("replay").is_ok()
}

/// Fails without a terminal. The error names the command that prints a table once.
pub(crate) fn require_terminal(command: &str) -> anyhow::Result<()> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    let problem = match () {
        () if !io::stdout().is_terminal() => "standard output is not one",
        () if !io::stdin().is_terminal() => "standard input is not one",
        () if is_dumb => "TERM names none that can place text",
        () => return Ok(()),
    };
    bail!(
        "`pagewise {command}` needs a terminal: {problem}. `pagewise ps` prints the processes once"
    )
}

fn query(args: &TopArgs) -> TopQuery {
    let subject = if args.cgroups { TopSubject::Cgroups } else { TopSubject::Processes };
    let sort = match args.sort {
        TopSort::Pss if args.cgroups => TopColumn::Current,
        sort => sort.column(),
    };
    TopQuery {
        subject,
        sort,
        filter: args.filter.clone().unwrap_or_default(),
        grouping: args.group.map(|group| match group {
            TopGroup::User => TopGrouping::User,
            TopGroup::Cgroup => TopGrouping::Cgroup,
            TopGroup::Exe => TopGrouping::Exe,
        }),
        tree: args.tree,
        ..TopQuery::default()
    }
}

fn check_cgroup(root: &ProcRoot, path: &str) -> anyhow::Result<()> {
    let hierarchy = hierarchy::CgroupHierarchy::find(root).ok();
    let folder = hierarchy.and_then(|hierarchy| hierarchy.folder(path));
    folder.map(|_| ()).with_context(|| format!("no memory cgroup {path}"))
}

fn process(root: &ProcRoot, name: &str) -> anyhow::Result<ProcessKey> {
    let (root, pid) = target::hold(root, name)?;
    let stat = stat::parse(&root.read(pid, "stat")?)?;
    Ok(ProcessKey { pid, start_ticks: stat.start_ticks })
}
