//! Evidence for a diagnosis of a machine or of a cgroup: two readings of the counters of all
//! processes and cgroups.

use serde::{Deserialize, Serialize};

use crate::evidence::{ActivityPoint, CgroupActivity, DiagnosisCost, Evidence, MachinePoint};
use crate::{Name, Pid};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const MACHINE_EVIDENCE_VERSION: u32 = 1;

/// Counters of processes and cgroups at two times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineEvidence {
    /// [`MACHINE_EVIDENCE_VERSION`] of the writer.
    pub pagewise_machine_evidence: u32,
    /// The cgroup to which the evidence is limited; `None` for the whole machine.
    pub cgroup: Option<Name>,
    /// The machine at the beginning and at the end.
    pub machine: [MachinePoint; 2],
    /// Processes that ran at both times, the largest first.
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
    /// Its ID.
    pub pid: Pid,
    /// `comm`.
    pub name: Name,
    /// The beginning and the end.
    pub points: [ActivityPoint; 2],
}

/// The evidence of any diagnosis, as it is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SavedDiagnosis {
    /// A process.
    Process(Box<Evidence>),
    /// A cgroup and its largest process.
    Group {
        /// The cgroup.
        machine: Box<MachineEvidence>,
        /// The largest process.
        largest: Box<Evidence>,
    },
    /// A machine, or a cgroup without processes.
    Machine(Box<MachineEvidence>),
}
