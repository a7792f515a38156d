//! The memory that is left before an OOM kill, for the machine and each cgroup with a limit, and
//! the time that it lasts at the present growth.

use pagewise_model::cgroup_tree::{CgroupNode, CgroupTree};
use pagewise_model::evidence::counter;
use pagewise_model::oom::{OomMachine, OomProcess, OomReading};
use pagewise_model::report::CellValue;
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid, Reading};

use super::{OomRank, OomRule, machine_pages, next_victim, rank};
use crate::cells::{float, text};

/// The memory that a limit restricts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OomScope {
    /// The whole memory of the machine.
    Machine,
    /// A memory cgroup, and the cgroups below it.
    Cgroup(Name),
}

impl OomScope {
    /// Name of the scope as a cell.
    pub fn cell(&self) -> CellValue {
        match self {
            OomScope::Machine => text("the machine"),
            OomScope::Cgroup(name) => CellValue::Name(name.clone()),
        }
    }
}

/// Forecast of the next OOM kill in a scope.
#[derive(Clone, Debug)]
pub struct OomForecast<'a> {
    /// The machine or the cgroup.
    pub scope: OomScope,
    /// The limit: RAM of the machine, or the limit of the cgroup.
    pub limit: Reading<Bytes>,
    /// Used memory that the kernel cannot reclaim without swap.
    pub kept: Reading<Bytes>,
    /// Memory that can still be allocated, including free swap.
    pub left: Reading<Bytes>,
    /// Growth of the used memory in bytes per second; negative if it shrinks.
    pub growth: Option<f64>,
    /// Seconds until no memory is left at the present growth; `None` without growth.
    pub seconds_left: Option<f64>,
    /// The next victim in the scope; `None` if the kernel can select no process.
    pub next: Option<OomRank<'a>>,
    /// True if the kernel kills all processes of the victim's cgroup as well.
    pub kills_all: bool,
    /// True if the kernel does not kill a process at this limit, but blocks the processes (v1).
    pub kill_disabled: bool,
}

/// Growth in bytes per second: slower growth is noise of an idle machine, and gives no forecast.
const MIN_GROWTH: f64 = 65_536.0;

/// Returns the forecasts: the machine first, then the cgroups with a limit, in ascending order of
/// the memory that is left.
pub fn forecasts(reading: &OomReading, ourselves: Option<Pid>) -> Vec<OomForecast<'_>> {
    let rule = rule(reading, ourselves);
    let mut forecasts = vec![machine(reading, &rule)];
    if let Ok([first, last]) = &reading.cgroups {
        let mut cgroups: Vec<OomForecast<'_>> = last
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.limit.is_some())
            .map(|(at, _)| cgroup(reading, [first, last], at, &rule))
            .collect();
        cgroups.sort_by_key(|it| it.left.clone().unwrap_or(Bytes(u64::MAX)));
        forecasts.extend(cgroups);
    }
    forecasts
}

/// Returns the values of the machine that determine the order of processes.
pub(super) fn rule(reading: &OomReading, ourselves: Option<Pid>) -> OomRule {
    let page_size = reading.page_size;
    let machine_pages = machine_pages(&reading.machine[1].meminfo, page_size);
    OomRule { machine_pages, page_size, ourselves }
}

/// Growth of the pagewise process between the two readings, in bytes.
fn own_growth(reading: &OomReading, rule: &OomRule) -> f64 {
    let own = reading.processes.iter().find(|it| Some(it.pid) == rule.ourselves);
    own.and_then(|it| Some(float((it.rss - it.rss_before?).0))).unwrap_or(0.0)
}

fn line(machine: &OomMachine, name: &str) -> Option<Bytes> {
    counter(&machine.meminfo, name).map(Bytes)
}

/// Memory of the machine that can still be allocated.
fn machine_left(machine: &OomMachine, page_size: PageSize) -> Reading<Bytes> {
    let line = |name: &str| line(machine, name).ok_or(Absent::NotInThisKernel("".into()));
    let kernel = line("KReclaimable").or_else(|_| line("SReclaimable"))?;
    let free = line("MemFree")? - page_size.pages(machine.kept_back);
    Ok(free + line("Active(file)")? + line("Inactive(file)")? + kernel + line("SwapFree")?)
}

fn machine<'a>(reading: &'a OomReading, rule: &OomRule) -> OomForecast<'a> {
    let [first, last] = &reading.machine;
    let left = machine_left(last, reading.page_size);
    let limit = line(last, "MemTotal").ok_or(Absent::NotInThisKernel("".into()));
    let all = limit.clone().map(|it| it + line(last, "SwapTotal").unwrap_or_default());
    let kept = all.and_then(|all| Ok(all - left.clone()?));
    let before = machine_left(first, reading.page_size).ok();
    let ranks = rank(reading.processes.iter(), rule.machine_pages, rule);
    let own = own_growth(reading, rule);
    let growth =
        before.zip(left.clone().ok()).and_then(|(before, now)| rate(reading, now, before, own));
    OomForecast {
        scope: OomScope::Machine,
        limit,
        kept,
        seconds_left: seconds_left(&left, growth),
        left,
        growth,
        next: next_victim(&ranks),
        kills_all: false,
        kill_disabled: false,
    }
}

/// Minimum number of seconds between two readings from which a rate is computed.
const MIN_SECONDS: f64 = 0.2;

/// Growth from `small` to `large` in bytes per second, without `own`, the growth of the pagewise
/// process.
fn rate(reading: &OomReading, small: Bytes, large: Bytes, own: f64) -> Option<f64> {
    let [first, last] = &reading.machine;
    let seconds = float(last.at_ns.checked_sub(first.at_ns)?) / 1e9;
    (seconds >= MIN_SECONDS).then(|| (float(large.0) - float(small.0) - own) / seconds)
}

fn seconds_left(left: &Reading<Bytes>, growth: Option<f64>) -> Option<f64> {
    let growth = growth.filter(|growth| *growth >= MIN_GROWTH)?;
    left.as_ref().ok().map(|left| float(left.0) / growth)
}

/// Page cache of a cgroup that the kernel can drop; in v2 also reclaimable slab.
fn reclaimable(node: &CgroupNode) -> Bytes {
    let lines = ["inactive_file", "active_file", "slab_reclaimable"];
    lines.iter().filter_map(|name| counter(&node.stat, name)).map(Bytes).sum()
}

fn cgroup<'a>(
    reading: &'a OomReading,
    [first, last]: [&CgroupTree; 2],
    at: usize,
    rule: &OomRule,
) -> OomForecast<'a> {
    let node = &last.nodes[at];
    let limit = node.limit.ok_or(Absent::NotSupported("no limit".into()));
    let kept = |node: &CgroupNode| node.current.clone().map(|it| it - reclaimable(node));
    let swap = swap_left(reading, last, node);
    let left = limit.clone().and_then(|limit| Ok(limit - kept(node)? + swap));
    let is_member =
        |it: &&OomProcess| it.cgroup.as_ref().is_ok_and(|path| is_below(path, &node.path));
    let members = || reading.processes.iter().filter(is_member);
    let is_own = members().any(|it| Some(it.pid) == rule.ourselves);
    let own = if is_own { own_growth(reading, rule) } else { 0.0 };
    let before = first.nodes.iter().find(|it| it.path == node.path).map(kept);
    let growth = before
        .and_then(Result::ok)
        .zip(kept(node).ok())
        .and_then(|(before, now)| rate(reading, before, now, own));
    let pages = limit_pages(reading, last, node).unwrap_or(rule.machine_pages);
    let ranks = rank(members(), pages, rule);
    let next = next_victim(&ranks);
    OomForecast {
        scope: OomScope::Cgroup(node.path.clone()),
        limit,
        kept: kept(node),
        seconds_left: seconds_left(&left, growth),
        left,
        growth,
        next,
        kills_all: next.is_some_and(|it| kills_all(last, node, it)),
        kill_disabled: node.kill_disabled,
    }
}

/// True if the kernel kills the victim's cgroup as a whole, or a cgroup between the victim's and
/// the limited cgroup.
fn kills_all(tree: &CgroupTree, limited: &CgroupNode, victim: OomRank<'_>) -> bool {
    let Ok(own) = &victim.process.cgroup else { return false };
    let above =
        tree.nodes.iter().filter(|it| is_below(own, &it.path) && is_below(&it.path, &limited.path));
    above.into_iter().any(|it| it.kills_all)
}

/// True if `path` is `top` or a cgroup below `top`.
pub(crate) fn is_below(path: &Name, top: &Name) -> bool {
    let (path, top) = (path.as_bytes(), top.as_bytes());
    let top = top.strip_suffix(b"/").unwrap_or(top);
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Number of pages that a cgroup may use, by which the kernel scales `oom_score_adj`
/// (`mem_cgroup_get_max` of mm/memcontrol.c): the memory limit plus the swap that the cgroup may
/// use.
pub(crate) fn limit_pages(
    reading: &OomReading,
    tree: &CgroupTree,
    node: &CgroupNode,
) -> Option<u64> {
    let limit = node.limit?;
    let swap = line(&reading.machine[1], "SwapTotal").unwrap_or_default();
    let may_swap = node.swappiness != Some(0);
    let beside = match (tree.version, node.swap_limit) {
        _ if !may_swap => Bytes::ZERO,
        (1, Some(both)) => (both - limit).min(swap),
        (_, Some(own)) if tree.version != 1 => own.min(swap),
        _ => swap,
    };
    Some(reading.page_size.count(limit) + reading.page_size.count(beside))
}

/// Number of bytes of swap that a cgroup can still use.
fn swap_left(reading: &OomReading, tree: &CgroupTree, node: &CgroupNode) -> Bytes {
    let free = line(&reading.machine[1], "SwapFree").unwrap_or_default();
    let used = node.swap.clone().unwrap_or_default();
    let own = match (tree.version, node.swap_limit, node.limit) {
        _ if node.swappiness == Some(0) => Bytes::ZERO,
        (1, Some(both), Some(limit)) => both - limit - used,
        (_, Some(own), _) => own - used,
        _ => free,
    };
    own.min(free)
}

/// Converts a number of seconds to a cell.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds of a forecast"
)]
pub(crate) fn duration(seconds: f64) -> CellValue {
    /// Number of seconds: longer times are shown as one year.
    const YEAR: f64 = 31_536_000.0;
    CellValue::Seconds((seconds.clamp(0.0, YEAR) * 1e9) as u64)
}

/// Returns the cell of [`duration`], or an empty cell if the forecast is `None`.
pub(crate) fn time_left(seconds: Option<f64>) -> CellValue {
    seconds.map_or(CellValue::None, duration)
}
