//! The processes with the most resident memory (RES), except the target, which is the process that
//! pagewise diagnoses.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::evidence::OtherProcess;
use pagewise_model::{Bytes, PageSize, Pid};

use crate::{ProcRoot, cgroup, stat};

/// Maximum number of processes that [`ProcessSizes::largest_others`] returns.
const SHOWN: usize = 5;

/// RES and major page faults of every process, by its ID and the time of its start.
#[derive(Debug, Default)]
pub struct ProcessSizes(HashMap<(Pid, u64), (Bytes, u64)>);

fn each(root: &ProcRoot, page_size: PageSize) -> impl Iterator<Item = (stat::PidStat, Pid, Bytes)> {
    let pids = root.pids().unwrap_or_default();
    pids.into_iter().filter_map(move |pid| {
        let statm = stat::parse_statm(&root.read(pid, "statm").ok()?, page_size).ok()?;
        let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
        Some((stat, pid, statm.resident))
    })
}

impl ProcessSizes {
    /// Reads all processes.
    pub fn read(root: &ProcRoot, page_size: PageSize) -> ProcessSizes {
        let sizes = each(root, page_size)
            .map(|(stat, pid, resident)| ((pid, stat.start_ticks), (resident, stat.major_faults)));
        ProcessSizes(sizes.collect())
    }

    /// Returns the processes other than `target` that have the most resident memory now, the
    /// largest first. Their growth and their major page faults are counted since `self` was read.
    pub fn largest_others(
        &self,
        root: &ProcRoot,
        page_size: PageSize,
        target: Pid,
    ) -> Vec<OtherProcess> {
        let group = |pid| root.read(pid, "cgroup").ok().and_then(|text| cgroup::parse(&text));
        let mut all: Vec<_> = each(root, page_size).filter(|(_, pid, _)| *pid != target).collect();
        all.sort_by_key(|(_, _, resident)| Reverse(*resident));
        all.truncate(SHOWN);
        let own = group(target);
        let other = |(stat, pid, resident): (stat::PidStat, Pid, Bytes)| {
            let before = self.0.get(&(pid, stat.start_ticks)).copied().unwrap_or_default();
            OtherProcess {
                pid,
                name: stat.name,
                resident,
                growth: resident.0.cast_signed().wrapping_sub(before.0.0.cast_signed()),
                major_faults: stat.major_faults.saturating_sub(before.1),
                same_cgroup: own.is_some() && group(pid) == own,
            }
        };
        all.into_iter().map(other).collect()
    }
}
