//! Processes and limits as the OOM killer compares them, at two times.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::cgroup_tree::CgroupTree;
use pagewise_model::listing::{Listing, ProcessSummary};
use pagewise_model::oom::{OOM_VERSION, OomMachine, OomProcess, OomReading};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, PageSize, Pid, Reading};

use crate::capture::Wish;
use crate::cgroup::hierarchy::CgroupHierarchy;
use crate::process::same_memory;
use crate::system_reading::meminfo_of;
use crate::text::number;
use crate::{ProcError, ProcRoot, fragmentation, listing, meminfo, stat, status, zoneinfo};

/// Reads the processes of a machine twice, `interval` apart. Reads a copied tree once.
///
/// # Errors
/// [`ProcError`] where the tree cannot be listed.
pub fn read(root: &ProcRoot, wish: Wish, interval: Duration) -> Result<OomReading, ProcError> {
    let begin = Instant::now();
    let page_size = fragmentation::page_size(root);
    let first = machine(root, begin);
    let first_tree = cgroups(root);
    let before = sizes(root, page_size)?;
    if root.is_live() {
        thread::sleep(interval.saturating_sub(begin.elapsed()));
    }
    let listing = listing::list(root, wish)?;
    let processes = processes(root, &listing, &before);
    let unreadable = listing.hidden + (listing.processes.len() - processes.len()) as u64;
    let last = machine(root, begin);
    let flag = |name: &str| -> Reading<u64> {
        number(&root.machine(name)?).ok_or(Absent::NotSupported("not a number".into()))
    };
    Ok(OomReading {
        pagewise_oom: OOM_VERSION,
        page_size,
        machine: [first, last],
        processes,
        unreadable,
        cgroups: first_tree.and_then(|first| Ok([first, cgroups(root)?])),
        kills_allocating_task: flag("sys/vm/oom_kill_allocating_task").map(|value| value != 0),
        panics: flag("sys/vm/panic_on_oom"),
        nodes: meminfo::nodes_online(root),
    })
}

/// Returns the processes of a listing, in order of their start: the kernel visits processes in this
/// order. `before` contains the RES of processes at an earlier time.
pub(crate) fn processes(
    root: &ProcRoot,
    listing: &Listing,
    before: &HashMap<(Pid, u64), Bytes>,
) -> Vec<OomProcess> {
    let summaries = listing.processes.iter();
    let mut read: Vec<(u64, OomProcess)> =
        summaries.filter_map(|summary| process(root, summary, before)).collect();
    read.sort_by_key(|(start, process)| (*start, process.pid));
    let mut processes: Vec<OomProcess> = read.into_iter().map(|(_, process)| process).collect();
    add_same_memory(root, &mut processes);
    processes
}

fn machine(root: &ProcRoot, begin: Instant) -> OomMachine {
    let zones = zoneinfo::parse(&root.machine("zoneinfo").unwrap_or_default());
    OomMachine {
        at_ns: nanoseconds(begin.elapsed()),
        meminfo: meminfo_of(root),
        kept_back: zones.iter().fold(0, |sum, zone| sum.saturating_add(zone.min)),
    }
}

fn cgroups(root: &ProcRoot) -> Reading<CgroupTree> {
    Ok(CgroupHierarchy::find(root)?.whole_tree())
}

/// RES of each process, by its ID and the time of its start.
fn sizes(root: &ProcRoot, page_size: PageSize) -> Result<HashMap<(Pid, u64), Bytes>, ProcError> {
    let size = |pid: Pid| {
        let statm = stat::parse_statm(&root.read(pid, "statm").ok()?, page_size).ok()?;
        let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
        Some(((pid, stat.start_ticks), statm.resident))
    };
    Ok(root.pids()?.into_iter().filter_map(size).collect())
}

/// A process, with the time of its start; `None` if its counters cannot be read.
fn process(
    root: &ProcRoot,
    summary: &ProcessSummary,
    before: &HashMap<(Pid, u64), Bytes>,
) -> Option<(u64, OomProcess)> {
    let pid = summary.pid;
    let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
    let holder = root.holder(pid, stat.has_ended(), stat.threads);
    let status = status::parse(&root.read(holder, "status").ok()?).status;
    // The score is read directly after the sizes that it depends on.
    let score = number_of(root, pid, "oom_score")
        .and_then(|it| u64::try_from(it).map_err(|_| Absent::NotSupported("not a number".into())));
    let adj = number_of(root, pid, "oom_score_adj");
    let has_memory = status.rss_anon.is_ok();
    let size = |reading: &Reading<Bytes>| reading.clone().unwrap_or_default();
    let process = OomProcess {
        pid,
        name: summary.name.clone(),
        command: summary.command.clone(),
        uid: summary.uid,
        cgroup: summary.cgroup.clone(),
        rss: size(&status.rss_anon) + size(&status.rss_file) + size(&status.rss_shmem),
        swap: size(&status.vm_swap),
        page_tables: size(&status.vm_pte),
        adj,
        score,
        has_memory,
        uss: summary.uss.clone(),
        uss_anonymous: summary.quadrants.private_anonymous.clone(),
        rss_before: before.get(&(pid, stat.start_ticks)).copied().filter(|_| root.is_live()),
        same_memory: Vec::new(),
    };
    Some((stat.start_ticks, process))
}

fn number_of(root: &ProcRoot, pid: Pid, name: &str) -> Reading<i64> {
    let text = root.reading(pid, name)?;
    let text = std::str::from_utf8(text.trim_ascii()).ok();
    text.and_then(|it| it.parse().ok()).ok_or(Absent::NotSupported("not a number".into()))
}

fn add_same_memory(root: &ProcRoot, processes: &mut [OomProcess]) {
    let sized =
        processes.iter().filter(|it| it.has_memory).map(|it| (it.pid, (it.rss, it.page_tables)));
    let owners = same_memory::of_earlier(root, sized);
    for (pid, owner) in &owners {
        for process in processes.iter_mut() {
            let is_same = process.pid == *owner || owners.get(&process.pid) == Some(owner);
            if is_same && process.pid != *pid {
                process.same_memory.push(*pid);
            }
            if process.pid == *pid {
                process.same_memory.push(*owner);
            }
        }
    }
}
