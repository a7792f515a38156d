//! Evidence for a diagnosis of a machine or of a cgroup: two readings of the counters of all
//! processes and cgroups.

use serde::{Deserialize, Serialize};

use crate::evidence::{ActivityPoint, CgroupActivity, DiagnosisCost, Evidence, MachinePoint};
use crate::{Name, Pid};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const MACHINE_EVIDENCE_VERSION: u32 = 1;

/// Counters of processes and cgroups at two times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineEvidence {
    /// [`MACHINE_EVIDENCE_VERSION`] of the program that wrote the file.
    pub pagewise_machine_evidence: u32,
    /// The cgroup to which the evidence is limited; `None` for the whole machine.
    pub cgroup: Option<Name>,
    /// The machine at the beginning and at the end.
    pub machine: [MachinePoint; 2],
    /// Processes that existed at both times, largest first.
    pub processes: Vec<ProcessActivity>,
    /// Number of processes whose counters could not be read.
    pub unreadable: u64,
    /// Memory cgroups; empty if no memory cgroup is visible.
    pub cgroups: Vec<CgroupActivity>,
    /// Cost of the diagnosis.
    pub cost: DiagnosisCost,
}

/// Counters of a process at two times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessActivity {
    /// PID of the process.
    pub pid: Pid,
    /// `comm` of the process.
    pub name: Name,
    /// Counters at the beginning and at the end.
    pub points: [ActivityPoint; 2],
}

/// The evidence of any diagnosis, as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SavedDiagnosis {
    /// Evidence of one process.
    Process(Box<Evidence>),
    /// Evidence of a cgroup, and of its largest process.
    Group {
        /// Evidence of the cgroup.
        machine: Box<MachineEvidence>,
        /// Evidence of the largest process.
        largest: Box<Evidence>,
    },
    /// Evidence of a machine, or of a cgroup without processes.
    Machine(Box<MachineEvidence>),
}
