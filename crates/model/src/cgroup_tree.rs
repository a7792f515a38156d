//! The memory cgroups of a machine as a tree.

use serde::{Deserialize, Serialize};

use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::settings::PressureFigures;
use crate::{Bytes, Name, Pid, Reading};

/// All memory cgroups that are visible, each after its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupTree {
    /// 1 or 2.
    pub version: u8,
    /// The cgroups; the first is the root that is visible.
    pub nodes: Vec<CgroupNode>,
    /// Number of removed cgroups that still hold memory, if the kernel counts them.
    pub dying: Option<u64>,
}

/// A memory cgroup at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupNode {
    /// Its path in the hierarchy.
    pub path: Name,
    /// Number of levels below the first node.
    pub depth: u64,
    /// Index of its parent; `None` for the first.
    pub parent: Option<usize>,
    /// Its own processes, without those of its children.
    pub processes: Vec<Pid>,
    /// Charged memory, children included.
    #[serde(with = "plain")]
    pub current: Reading<Bytes>,
    /// The highest value of `current`.
    #[serde(with = "plain")]
    pub peak: Reading<Bytes>,
    /// The limit of `current`; `None` without one.
    pub limit: Option<Bytes>,
    /// The size above which tasks are slowed down (`memory.high`, v2); `None` without one.
    pub high: Option<Bytes>,
    /// Protected sizes: `memory.min` and `memory.low` (v2), or the soft limit (v1).
    pub protected: Option<Bytes>,
    /// Memory in swap, children included.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Limit of swap (v2), or of memory and swap together (v1); `None` without one.
    pub swap_limit: Option<Bytes>,
    /// `vm.swappiness` of the cgroup (v1).
    pub swappiness: Option<u64>,
    /// True if all processes of the cgroup are killed together (`memory.oom.group`).
    pub kills_all: bool,
    /// True if the kernel kills no process of the cgroup at its limit (`oom_kill_disable`, v1).
    pub kill_disabled: bool,
    /// `memory.stat`, children included.
    pub stat: Vec<BootCounter>,
    /// `memory.events` (v2); the same counters of v1 under the names of v2: `max`, `oom_kill`.
    pub events: Vec<BootCounter>,
    /// `memory.pressure`.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
}
