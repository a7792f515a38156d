//! The memory cgroups as a tree: charged memory, limits, what can be reclaimed, events.

use pagewise_model::account::SystemReading;
use pagewise_model::cgroup_tree::{CgroupNode, CgroupTree};
use pagewise_model::evidence::counter;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Finding, Findings, Report, ReportBlock,
    ReportTable, Severity, TableColumn,
};
use pagewise_model::{Absent, Bytes, Name, Reading};

use crate::blocks::{facts_of, first, for_people, for_programs, table};
use crate::cells::{float, text};
use crate::explain::fact;
use crate::system::{SystemOptions, files_blocks};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.system.cgroups/1";

/// Working set of a cgroup: charged memory without inactive page cache.
fn working_set(node: &CgroupNode) -> Reading<Bytes> {
    let current = node.current.clone()?;
    line(node, "inactive_file").map(|inactive| current - inactive)
}

/// A line of `memory.stat` in bytes, children included.
fn line(node: &CgroupNode, name: &str) -> Reading<Bytes> {
    let found = counter(&node.stat, name).map(Bytes);
    found.ok_or_else(|| Absent::NotInThisKernel("".into()))
}

/// Anonymous memory: `anon`, or `rss` in v1.
fn anonymous(node: &CgroupNode) -> Reading<Bytes> {
    line(node, "anon").or_else(|_| line(node, "rss"))
}

/// Page cache without tmpfs.
fn cache(node: &CgroupNode) -> Reading<Bytes> {
    let all = line(node, "file").or_else(|_| line(node, "cache"))?;
    Ok(all - line(node, "shmem").unwrap_or_default())
}

/// Kernel memory charged to the cgroup. Without a counter in the kernel, it is the rest of the
/// charged memory.
fn kernel(node: &CgroupNode) -> Reading<Bytes> {
    line(node, "kernel").or_else(|why| {
        // The root of version 1 does not charge it.
        if node.path.as_bytes() == b"/" {
            return Err(why);
        }
        let known = anonymous(node)? + cache(node)? + line(node, "shmem").unwrap_or_default();
        Ok(node.current.clone()? - known)
    })
}

/// Charged memory of the cgroup without its children.
fn own(tree: &CgroupTree, at: usize) -> Reading<Bytes> {
    let below = tree.nodes.iter().filter(|it| it.parent == Some(at));
    let below: Bytes = below.map(|it| it.current.clone().unwrap_or_default()).sum();
    Ok(tree.nodes[at].current.clone()? - below)
}

/// The nodes depth first, the largest of the same parent first.
fn depth_first(tree: &CgroupTree) -> Vec<usize> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); tree.nodes.len()];
    let mut stack: Vec<usize> = Vec::new();
    for (at, node) in tree.nodes.iter().enumerate() {
        match node.parent {
            // A parent comes before its children, so no node can be its own ancestor.
            Some(parent) if parent < at => children[parent].push(at),
            _ => stack.push(at),
        }
    }
    let size = |at: &usize| tree.nodes[*at].current.clone().unwrap_or_default();
    let mut order = Vec::with_capacity(tree.nodes.len());
    stack.reverse();
    while let Some(at) = stack.pop() {
        order.push(at);
        let mut below = std::mem::take(&mut children[at]);
        below.sort_by_key(size);
        stack.extend(below);
    }
    order
}

/// True for a cgroup that holds nothing and limits nothing.
fn is_empty(node: &CgroupNode) -> bool {
    node.processes.is_empty()
        && node.limit.is_none()
        && node.current.as_ref().is_ok_and(|it| it.is_zero())
}

/// The memory cgroups as a report; `reading` has the cgroups to which the page cache of files is
/// charged, if that was requested.
pub fn cgroups(
    tree: &CgroupTree,
    reading: Option<&SystemReading>,
    options: &SystemOptions,
) -> Report {
    let order: Vec<usize> =
        depth_first(tree).into_iter().filter(|at| !is_empty(&tree.nodes[*at])).collect();
    let (shown, more) = first(&order, options.rows, "--limit");
    let note = match tree.version {
        1 => format!("The kernel's memory is not charged to / in version 1. {more}").into(),
        _ => more,
    };
    let mut blocks = vec![
        ReportBlock::Facts(summary(tree, order.len())),
        ReportBlock::Findings(Findings {
            list: findings(tree, &order),
            none: "Nothing stands out.".into(),
        }),
        ReportBlock::Table(ReportTable { note, ..nodes(tree, shown) }),
    ];
    if let Some(reading) = reading {
        blocks.extend(files_blocks(reading, options));
    }
    Report { schema: SCHEMA, title: vec![text("Memory cgroups")], blocks }
}

fn summary(tree: &CgroupTree, listed: usize) -> pagewise_model::report::NamedFacts {
    let dying = tree.dying.map_or_else(
        || CellValue::Absent(Absent::NotSupported("the kernel does not count them".into())),
        CellValue::Count,
    );
    let facts = vec![
        fact(
            "version",
            "version",
            CellValue::Count(tree.version.into()),
            "Version of the cgroup interface.",
        ),
        fact("count", "cgroups", CellValue::Count(tree.nodes.len() as u64), ""),
        fact("listed", "with memory or a limit", CellValue::Count(listed as u64), ""),
        fact(
            "dying",
            "removed, still charged",
            dying,
            "Removed cgroups whose page cache or kernel objects remain charged to them.",
        )
        .hidden_if(tree.dying.is_none()),
    ];
    facts_of("", "", FactsShape::Line, facts)
}

fn nodes(tree: &CgroupTree, order: &[usize]) -> ReportTable {
    let cells = |make: &dyn Fn(usize, &CgroupNode) -> CellValue| {
        ColumnCells::Values(order.iter().map(|at| make(*at, &tree.nodes[*at])).collect())
    };
    let bytes = |value: Reading<Bytes>| CellValue::bytes(value);
    let optional =
        |value: Option<Bytes>| value.map_or(CellValue::None, |it| CellValue::Bytes(it.0));
    let column =
        |key: &'static str, label: &'static str, meaning: &'static str, cells: ColumnCells| {
            TableColumn { meaning: meaning.into(), ..TableColumn::new(key, label, cells) }
        };
    let event = |node: &CgroupNode, name: &str| {
        counter(&node.events, name).map_or(CellValue::None, CellValue::Count)
    };
    let psi = |node: &CgroupNode| {
        CellValue::from_reading(node.pressure.clone(), |it| {
            let minute = it.longer.map(|[minute, _]| minute.some);
            minute.map_or(CellValue::None, |it| CellValue::Share(float(it) / 10_000.0))
        })
    };
    let has_psi = order.iter().any(|at| tree.nodes[*at].pressure.is_ok());
    let psi = column(
        "pressure_some_avg60",
        "PSI",
        "Share of the last minute in which a task of the cgroup waited for memory.",
        cells(&|_, it| psi(it)),
    );
    let columns = vec![
        column(
            "current",
            "Current",
            "Charged memory, children included.",
            cells(&|_, it| bytes(it.current.clone())),
        ),
        for_programs(column(
            "own",
            "Own",
            "Charged memory without the children.",
            cells(&|at, _| bytes(own(tree, at))),
        )),
        column(
            "limit",
            "Limit",
            "memory.max, or memory.limit_in_bytes.",
            cells(&|_, it| optional(it.limit)),
        ),
        for_programs(column("high", "High", "memory.high.", cells(&|_, it| optional(it.high)))),
        for_programs(column("protected", "Protected", "", cells(&|_, it| optional(it.protected)))),
        for_programs(column("peak", "Peak", "", cells(&|_, it| bytes(it.peak.clone())))),
        column(
            "working_set",
            "Working set",
            "Current less page cache that was not used lately (inactive_file).",
            cells(&|_, it| bytes(working_set(it))),
        ),
        column("anonymous", "Anon", "Anonymous memory.", cells(&|_, it| bytes(anonymous(it)))),
        column(
            "cache",
            "Cache",
            "Page cache of files that the cgroup was the first to read or write.",
            cells(&|_, it| bytes(cache(it))),
        ),
        column(
            "shmem",
            "Shmem",
            "tmpfs and shared memory.",
            cells(&|_, it| bytes(line(it, "shmem"))),
        ),
        column(
            "kernel",
            "Kernel",
            "Kernel memory on account of the cgroup.",
            cells(&|_, it| bytes(kernel(it))),
        ),
        column("swap", "Swap", "Memory in swap.", cells(&|_, it| bytes(it.swap.clone()))),
        for_programs(column("swap_limit", "", "", cells(&|_, it| optional(it.swap_limit)))),
        column(
            "limit_hits",
            "Hits",
            "Number of times that the limit was reached.",
            cells(&|_, it| event(it, "max")),
        ),
        column(
            "oom_kills",
            "Kills",
            "OOM kills in the cgroup.",
            cells(&|_, it| event(it, "oom_kill")),
        ),
        if has_psi { psi } else { for_programs(psi) },
        column(
            "processes",
            "Procs",
            "Its own processes.",
            cells(&|_, it| CellValue::Count(it.processes.len() as u64)),
        ),
        for_programs(column("events", "", "", cells(&|_, it| events(it)))),
        for_programs(column("path", "", "", cells(&|_, it| CellValue::Name(it.path.clone())))),
        for_people(column("tree", "Cgroup", "", cells(&|_, it| branch(it)))),
    ];
    table("cgroups", "Cgroups, with those below them", Audience::Everyone, columns)
}

fn events(node: &CgroupNode) -> CellValue {
    let record = |it: &pagewise_model::fragmentation::BootCounter| {
        (it.name.escaped().into_owned().into(), CellValue::Count(it.count))
    };
    CellValue::Record(node.events.iter().map(record).collect())
}

/// The last part of the path, indented.
fn branch(node: &CgroupNode) -> CellValue {
    let path = node.path.as_bytes();
    let last = path.rsplit(|&b| b == b'/').next().filter(|it| !it.is_empty());
    let indent = "  ".repeat(usize::try_from(node.depth.min(20)).unwrap_or(20));
    match (node.depth, last) {
        (1.., Some(last)) => {
            CellValue::Sentence(vec![text(indent), CellValue::Name(Name::new(last))])
        }
        _ => CellValue::Name(node.path.clone()),
    }
}

/// Minimum share of the limit that the working set takes, for a finding.
const NEAR_LIMIT: f64 = 0.9;
/// Minimum page cache of a cgroup without processes, for a finding.
const MUCH_CACHE: Bytes = Bytes::mib(64);
/// Maximum number of listed findings of one kind.
const MAX_LISTED: usize = 4;

fn findings(tree: &CgroupTree, order: &[usize]) -> Vec<Finding> {
    let mut near: Vec<Finding> =
        order.iter().filter_map(|at| near_limit(&tree.nodes[*at])).collect();
    near.truncate(MAX_LISTED);
    let mut left: Vec<Finding> =
        order.iter().filter_map(|at| without_processes(tree, *at)).collect();
    left.truncate(MAX_LISTED);
    near.extend(left);
    near
}

fn near_limit(node: &CgroupNode) -> Option<Finding> {
    let limit = node.limit?;
    let kept = working_set(node).ok()?;
    let share = kept.fraction_of(limit).filter(|share| *share >= NEAR_LIMIT)?;
    let kills = counter(&node.events, "oom_kill").unwrap_or(0);
    Some(Finding {
        id: "near-limit",
        severity: if kills > 0 { Severity::Critical } else { Severity::Warning },
        claim: vec![
            CellValue::Name(node.path.clone()),
            text(" uses "),
            CellValue::Bytes(kept.0),
            text(" of its limit of "),
            CellValue::Bytes(limit.0),
            text(format!(
                ", without page cache that it did not use lately. OOM kills so far: {kills}."
            )),
        ],
        evidence: vec![fact("share", "share", CellValue::Share(share), "")],
        next_step: vec![text(
            "`pagewise diagnose CGROUP` finds the cause of its growth; `pagewise oom` the process that would be killed.",
        )],
    })
}

/// Page cache that is charged to a cgroup whose processes have ended or moved.
fn without_processes(tree: &CgroupTree, at: usize) -> Option<Finding> {
    let node = &tree.nodes[at];
    let has_children = tree.nodes.iter().any(|it| it.parent == Some(at));
    let cache = cache(node).ok().filter(|it| *it >= MUCH_CACHE)?;
    if has_children || !node.processes.is_empty() {
        return None;
    }
    Some(Finding {
        id: "cache-without-process",
        severity: Severity::Note,
        claim: vec![
            CellValue::Bytes(cache.0),
            text(" of page cache are charged to "),
            CellValue::Name(node.path.clone()),
            text(
                ", which has no process: the cgroup that reads a file first pays for it, also if others use it now.",
            ),
        ],
        evidence: vec![fact("cache", "page cache", CellValue::Bytes(cache.0), "")],
        next_step: vec![text(
            "The kernel drops this memory when it needs some. `--files` names the files and the cgroups that pay for them.",
        )],
    })
}

#[cfg(test)]
mod tests {
    use pagewise_model::fragmentation::BootCounter;

    use super::*;

    fn node(path: &str, parent: Option<usize>, current: u64, file: u64) -> CgroupNode {
        let absent = || Absent::NotSupported("a sample".into());
        let count = |name: &str, count| BootCounter { name: name.into(), count };
        CgroupNode {
            path: path.into(),
            depth: path.matches('/').count() as u64,
            parent,
            processes: Vec::new(),
            current: Ok(Bytes(current)),
            peak: Err(absent()),
            limit: None,
            high: None,
            protected: None,
            swap: Ok(Bytes::ZERO),
            swap_limit: None,
            swappiness: None,
            kills_all: false,
            kill_disabled: false,
            stat: vec![count("file", file), count("inactive_file", file), count("shmem", 0)],
            events: vec![count("oom_kill", 1)],
            pressure: Err(absent()),
        }
    }

    #[test]
    fn the_largest_child_comes_first_and_own_memory_is_without_children() {
        let tree = CgroupTree {
            version: 2,
            nodes: vec![
                node("/", None, 100, 0),
                node("/a", Some(0), 30, 0),
                node("/b", Some(0), 60, 0),
                node("/a/c", Some(1), 10, 0),
            ],
            dying: None,
        };
        assert_eq!(depth_first(&tree), [0, 2, 1, 3]);
        assert_eq!(own(&tree, 0), Ok(Bytes(10)));
        assert_eq!(own(&tree, 1), Ok(Bytes(20)));
    }

    #[test]
    fn a_full_cgroup_and_cache_without_processes_are_findings() {
        let mut full = node("/full", Some(0), 1000, 10);
        full.limit = Some(Bytes(1000));
        let cache = MUCH_CACHE.0;
        let tree = CgroupTree {
            version: 2,
            nodes: vec![node("/", None, 0, 0), full, node("/left", Some(0), cache, cache)],
            dying: None,
        };
        let ids: Vec<_> = findings(&tree, &depth_first(&tree)).iter().map(|it| it.id).collect();
        assert_eq!(ids, ["near-limit", "cache-without-process"]);
    }
}
