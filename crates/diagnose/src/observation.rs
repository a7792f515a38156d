//! Two readings of the counters of all processes and cgroups, on the machine or in one cgroup.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pagewise_model::evidence::{ActivityPoint, DiagnosisCost, Instrument, MachinePoint};
use pagewise_model::machine_evidence::{
    MACHINE_EVIDENCE_VERSION, MachineEvidence, ProcessActivity,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Name, PageSize, Pid};
use pagewise_proc::cgroup::WatchedCgroup;
use pagewise_proc::cgroup::hierarchy::CgroupHierarchy;
use pagewise_proc::{ProcRoot, activity, machine_activity, stat};
use pagewise_sys::system;

use crate::Budget;
use crate::budget::CostMeter;

/// Interval of the checks whether the observation is over.
const TURN: Duration = Duration::from_millis(50);
/// Maximum number of processes in the evidence; the largest are kept.
const MAX_PROCESSES: usize = 4000;

/// Parameters of the observation of a machine.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct ObservationRequest<'a> {
    /// Duration of the observation.
    pub duration: Duration,
    /// Bounds of the cost of the observation.
    pub budget: Budget,
    /// Path of the cgroup to which the observation is limited; `None` for the whole machine.
    pub cgroup: Option<&'a str>,
    /// True if the observation must end now.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Process ID and start time in clock ticks after boot, which together identify a process.
type ProcessKey = (Pid, u64);

/// An observation in progress, with the counters at its beginning.
#[derive(Debug)]
pub struct MachineObservation {
    began: Instant,
    meter: CostMeter,
    page_size: PageSize,
    cgroup: Option<Name>,
    machine: MachinePoint,
    processes: HashMap<ProcessKey, (Name, ActivityPoint)>,
    unreadable: u64,
    cgroups: Vec<WatchedCgroup>,
}

impl MachineObservation {
    /// Reads the counters for the first time. `None` if the requested cgroup does not exist.
    pub fn begin(root: &ProcRoot, request: &ObservationRequest<'_>) -> Option<MachineObservation> {
        let began = Instant::now();
        let mut meter = CostMeter::new(request.budget);
        let page_size = PageSize::new(system::page_size()).expect("the kernel's page size is one");
        let hierarchy = CgroupHierarchy::find(root).ok();
        let folder = match (request.cgroup, &hierarchy) {
            (None, _) => None,
            (Some(path), Some(hierarchy)) => Some(hierarchy.folder(path)?),
            (Some(_), None) => return None,
        };
        let members = folder.as_ref().zip(hierarchy.as_ref());
        let members = members.map(|(folder, hierarchy)| hierarchy.members(folder));
        let (processes, unreadable, cgroups) = meter.measure(Instrument::Activity, || {
            let pids = members.unwrap_or_else(|| root.pids().unwrap_or_default());
            let (processes, unreadable) = counters(root, &pids, page_size, began);
            let watched = hierarchy.as_ref().map_or_else(Vec::new, |hierarchy| {
                let folders = match &folder {
                    Some(folder) => hierarchy.folders(folder),
                    None => hierarchy.all(),
                };
                folders.iter().map(|folder| hierarchy.watch(folder)).collect()
            });
            ((processes, unreadable, watched), Duration::ZERO)
        });
        let cgroup = folder.as_ref().zip(hierarchy.as_ref());
        Some(MachineObservation {
            began,
            meter,
            page_size,
            cgroup: cgroup.map(|(folder, hierarchy)| hierarchy.name(folder)),
            machine: machine_activity::point(root, 0),
            processes,
            unreadable,
            cgroups,
        })
    }

    /// Returns the process with the most resident memory that satisfies a condition.
    pub fn largest(&self, is_wanted: &dyn Fn(Pid) -> bool) -> Option<Pid> {
        let mut all: Vec<(Pid, &ActivityPoint)> =
            self.processes.iter().map(|((pid, _), (_, point))| (*pid, point)).collect();
        all.sort_by_key(|(pid, point)| (Reverse(point.resident), *pid));
        all.into_iter().map(|(pid, _)| pid).find(|pid| is_wanted(*pid))
    }

    /// Waits until the observation is over, reads the counters again, and returns the evidence.
    pub fn finish(mut self, root: &ProcRoot, request: &ObservationRequest<'_>) -> MachineEvidence {
        let end = self.began + request.duration;
        let mut interrupted = (request.is_interrupted)();
        while !interrupted && Instant::now() < end {
            sleep(TURN.min(end.saturating_duration_since(Instant::now())));
            interrupted = (request.is_interrupted)();
        }
        let (began, page_size) = (self.began, self.page_size);
        let before = std::mem::take(&mut self.processes);
        let watched = std::mem::take(&mut self.cgroups);
        let (processes, cgroups) = self.meter.measure(Instrument::Activity, || {
            let pids: Vec<Pid> = before.keys().map(|(pid, _)| *pid).collect();
            let (after, _) = counters(root, &pids, page_size, began);
            let cgroups = watched.into_iter().map(WatchedCgroup::finish).collect();
            ((both(before, after), cgroups), Duration::ZERO)
        });
        let wall_ns = nanoseconds(began.elapsed());
        MachineEvidence {
            pagewise_machine_evidence: MACHINE_EVIDENCE_VERSION,
            cgroup: self.cgroup,
            machine: [self.machine, machine_activity::point(root, wall_ns)],
            processes,
            unreadable: self.unreadable,
            cgroups,
            cost: DiagnosisCost {
                cpu_ns: nanoseconds(self.meter.spent()),
                longest_pause_ns: 0,
                wall_ns,
                cpu_budget_ns: nanoseconds(request.budget.cpu),
                pause_budget_ns: nanoseconds(request.budget.pause),
                interrupted,
                runs: self.meter.runs().to_vec(),
            },
        }
    }
}

/// Reads the counters of processes; ignores kernel threads, ended processes and pagewise itself.
/// Also returns the number of processes that cannot be read.
fn counters(
    root: &ProcRoot,
    pids: &[Pid],
    page_size: PageSize,
    began: Instant,
) -> (HashMap<ProcessKey, (Name, ActivityPoint)>, u64) {
    let (mut found, mut unreadable) = (HashMap::new(), 0);
    for &pid in pids.iter().filter(|pid| root.ourselves() != Some(**pid)) {
        let stat = root.read(pid, "stat").and_then(|text| stat::parse(&text));
        let Ok(stat) = stat else {
            unreadable += 1;
            continue;
        };
        if stat.is_kernel_thread() || stat.has_ended() {
            continue;
        }
        match activity::point(root, pid, page_size, nanoseconds(began.elapsed())) {
            Ok(point) => drop(found.insert((pid, stat.start_ticks), (stat.name, point))),
            Err(_) => unreadable += 1,
        }
    }
    (found, unreadable)
}

/// Combines the two readings of each process that was read twice; the largest processes are first.
fn both(
    before: HashMap<ProcessKey, (Name, ActivityPoint)>,
    mut after: HashMap<ProcessKey, (Name, ActivityPoint)>,
) -> Vec<ProcessActivity> {
    let mut all: Vec<ProcessActivity> = before
        .into_iter()
        .filter_map(|(key, (name, first))| {
            let (_, last) = after.remove(&key)?;
            Some(ProcessActivity { pid: key.0, name, points: [first, last] })
        })
        .collect();
    all.sort_by_key(|it| (Reverse(it.points[1].resident), it.pid));
    all.truncate(MAX_PROCESSES);
    all
}
