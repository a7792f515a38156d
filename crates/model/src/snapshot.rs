//! All data that was read of one process at one time: the input of the analyses.

use serde::{Deserialize, Serialize};

use crate::core_dump::CoreDump;
use crate::heap_sample::{self, HeapSample};
use crate::machine::{MachineSettings, Provenance};
use crate::mapping::{Mapping, MappingPages};
use crate::object::ElfObject;
use crate::pagewise_pools::RegisteredPool;
use crate::process::{
    CgroupMemory, KsmStat, NodeShare, Process, ProcessStatus, ResourceLimits, Statm, Thread,
};
use crate::reading::plain;
use crate::{Reading, Smaps};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const SNAPSHOT_VERSION: u32 = 1;

/// One process at one time.
///
/// Not atomic: the files of `/proc` are read one after the other while the process runs. Analyses
/// report contradictions between the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`] of the program that made the snapshot.
    pub pagewise_snapshot: u32,
    /// Method and conditions of the reading.
    pub provenance: Provenance,
    /// The machine on which the process was read.
    pub machine: MachineSettings,
    /// Identity and properties of the process.
    pub process: Process,
    /// `statm`.
    #[serde(with = "plain")]
    pub statm: Reading<Statm>,
    /// `status`.
    #[serde(with = "plain")]
    pub status: Reading<ProcessStatus>,
    /// `smaps_rollup`; only read with [`crate::machine::ReadMethod::Full`].
    #[serde(with = "plain")]
    pub rollup: Reading<Box<Smaps>>,
    /// The sum of the page walks of all mappings; absent with [`crate::machine::ReadMethod::Full`].
    /// Its PSS is rounded once, like in `smaps_rollup`, so it can exceed the sum over the mappings.
    #[serde(with = "plain")]
    pub walk: Reading<Box<MappingPages>>,
    /// All mappings, by address.
    #[serde(with = "plain")]
    pub mappings: Reading<Vec<Mapping>>,
    /// All threads, by thread ID.
    #[serde(with = "plain")]
    pub threads: Reading<Vec<Thread>>,
    /// Mapped files whose headers were read, in the order of their first mapping.
    pub objects: Vec<ElfObject>,
    /// First 16 bytes of large private anonymous mappings whose first page is resident. glibc
    /// stores the header of a mapped chunk, or of a heap of an arena, there.
    pub heads: Vec<MappingHead>,
    /// Pools of pagewise's own allocators with counters; empty if they could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<RegisteredPool>,
    /// A sample of the heap.
    #[serde(with = "plain", default = "heap_sample::not_saved")]
    pub heap_sample: Reading<HeapSample>,
    /// The core file from which the process was read; `None` if it was read from `/proc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<Box<CoreDump>>,
    /// `limits`.
    #[serde(with = "plain")]
    pub limits: Reading<ResourceLimits>,
    /// The memory cgroup.
    #[serde(with = "plain")]
    pub cgroup: Reading<CgroupMemory>,
    /// `ksm_stat`.
    #[serde(with = "plain")]
    pub ksm: Reading<KsmStat>,
    /// Resident bytes on each NUMA node (`numa_maps`); absent if the machine has one node.
    #[serde(with = "plain")]
    pub numa: Reading<Vec<NodeShare>>,
}

/// The first 16 bytes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingHead {
    /// Address of the mapping.
    pub address: u64,
    /// The first two machine words of the mapping.
    pub words: [u64; 2],
}
