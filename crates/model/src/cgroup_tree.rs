//! The memory cgroups of a machine as a tree.

use serde::{Deserialize, Serialize};

use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::settings::PressureFigures;
use crate::{Bytes, Name, Pid, Reading};

/// All visible memory cgroups. Each cgroup follows its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupTree {
    /// Version of the cgroup hierarchy: 1 or 2.
    pub version: u8,
    /// The cgroups. The first is the root of the visible hierarchy.
    pub nodes: Vec<CgroupNode>,
    /// Number of removed cgroups that still hold memory; `None` if the kernel does not count them.
    pub dying: Option<u64>,
}

/// A memory cgroup at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupNode {
    /// Path of the cgroup in the hierarchy.
    pub path: Name,
    /// Number of levels below the root of the visible hierarchy.
    pub depth: u64,
    /// Index of the parent; `None` for the root of the visible hierarchy.
    pub parent: Option<usize>,
    /// Processes of the cgroup itself, without those of its descendants.
    pub processes: Vec<Pid>,
    /// Charged memory, descendants included.
    #[serde(with = "plain")]
    pub current: Reading<Bytes>,
    /// Highest value of `current` so far.
    #[serde(with = "plain")]
    pub peak: Reading<Bytes>,
    /// Limit of `current`; `None` if the cgroup has no limit.
    pub limit: Option<Bytes>,
    /// Size above which the kernel throttles the tasks (`memory.high`, v2); `None` if it is not
    /// set.
    pub high: Option<Bytes>,
    /// Size that reclaim spares: the larger of `memory.min` and `memory.low` (v2), or the soft
    /// limit (v1); `None` if it is not set.
    pub protected: Option<Bytes>,
    /// Memory in swap, descendants included.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Limit of swap (v2), or of memory and swap together (v1); `None` if the cgroup has no such
    /// limit.
    pub swap_limit: Option<Bytes>,
    /// `memory.swappiness` of the cgroup (v1).
    pub swappiness: Option<u64>,
    /// True if an OOM kill ends all processes of the cgroup (`memory.oom.group`).
    pub kills_all: bool,
    /// True if the kernel kills no process of the cgroup when it reaches its limit
    /// (`oom_kill_disable`, v1).
    pub kill_disabled: bool,
    /// `memory.stat`, descendants included.
    pub stat: Vec<BootCounter>,
    /// `memory.events` (v2). The counters of v1 have the names of v2: `max`, `oom_kill`.
    pub events: Vec<BootCounter>,
    /// `memory.pressure`.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
}
