//! Everything that was read of one process at one moment: what every analysis starts from.

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

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const SNAPSHOT_VERSION: u32 = 1;

/// One process at one moment.
///
/// Not atomic: `/proc` is read file by file while the process runs. An analysis reports
/// contradictions between the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`] of the writer.
    pub pagewise_snapshot: u32,
    /// Method and conditions of the reading.
    pub provenance: Provenance,
    /// The machine it was read on.
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
    /// The page walk over all mappings together; only read without
    /// [`crate::machine::ReadMethod::Full`]. Its PSS is rounded once, as `smaps_rollup` does, so it
    /// can exceed the sum over the mappings.
    #[serde(with = "plain")]
    pub walk: Reading<Box<MappingPages>>,
    /// Every mapping, by address.
    #[serde(with = "plain")]
    pub mappings: Reading<Vec<Mapping>>,
    /// Every thread, by id.
    #[serde(with = "plain")]
    pub threads: Reading<Vec<Thread>>,
    /// Every mapped file that was looked into, in the order of first appearance.
    pub objects: Vec<ElfObject>,
    /// The first 16 bytes of large private anonymous mappings, where their first page is resident:
    /// glibc keeps a chunk's size there.
    pub heads: Vec<MappingHead>,
    /// The pools of pagewise's allocators that count themselves, where they could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<RegisteredPool>,
    /// A sample of the heap.
    #[serde(with = "plain", default = "heap_sample::not_saved")]
    pub heap_sample: Reading<HeapSample>,
    /// The core file that it was read from, if it was.
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
    /// Resident bytes a node, where the machine has several.
    #[serde(with = "plain")]
    pub numa: Reading<Vec<NodeShare>>,
}

/// The first 16 bytes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingHead {
    /// Address.
    pub address: u64,
    /// The two machine words.
    pub words: [u64; 2],
}
