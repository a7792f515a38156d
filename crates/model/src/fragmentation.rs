//! The free memory of a machine by block size, and the kernel's counters of compaction and of huge
//! pages.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, PageSize, Reading};

/// The free memory of a machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeMemory {
    /// The base page size: a block of order `k` is `2^k` of these.
    pub page_size: PageSize,
    /// Size that one PMD page-table entry maps: `transparent_hugepage/hpage_pmd_size`.
    #[serde(with = "plain")]
    pub huge_size: Reading<Bytes>,
    /// Nanoseconds since boot when it was read.
    #[serde(with = "plain")]
    pub since_boot_ns: Reading<u64>,
    /// `/proc/buddyinfo`, one a zone.
    #[serde(with = "plain")]
    pub zones: Reading<Vec<Zone>>,
    /// `/proc/pagetypeinfo`; root only.
    #[serde(with = "plain")]
    pub types: Reading<PageTypes>,
    /// `/proc/vmstat`: every line.
    #[serde(with = "plain")]
    pub vmstat: Reading<Vec<BootCounter>>,
    /// `transparent_hugepage/hugepages-*kB/stats/*`, by size.
    #[serde(with = "plain")]
    pub sizes: Reading<Vec<SizeStats>>,
}

/// The free blocks of one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// The NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: Name,
    /// Number of free blocks of each order, from order 0. A block is counted in its own order only.
    pub free: Vec<u64>,
}

/// `/proc/pagetypeinfo`: free blocks by migrate type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTypes {
    /// One a zone and migrate type.
    pub free: Vec<TypedFree>,
    /// One a zone and migrate type.
    pub blocks: Vec<TypedBlocks>,
}

/// The free blocks of one migrate type in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedFree {
    /// The NUMA node.
    pub node: u32,
    /// The zone.
    pub zone: Name,
    /// `Unmovable`, `Movable`, `Reclaimable`, `HighAtomic`, `CMA`, `Isolate`.
    pub kind: Name,
    /// Number of free blocks of each order, from order 0.
    pub free: Vec<u64>,
    /// True if some of these are lower bounds: the kernel stops counting at 100,000 and prints
    /// `>100000`.
    pub capped: bool,
}

/// Number of pageblocks (the unit that has a migrate type) of one type in a zone, free or used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedBlocks {
    /// The NUMA node.
    pub node: u32,
    /// The zone.
    pub zone: Name,
    /// The migrate type.
    pub kind: Name,
    /// Number of pageblocks.
    pub count: u64,
}

/// A counter of the kernel: a number of events since boot, or a present value such as `MemFree` or
/// `nr_free_pages`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootCounter {
    /// The kernel's name for it.
    pub name: Name,
    /// Value of the counter.
    pub count: u64,
}

/// Kernel counters for transparent huge pages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeStats {
    /// The size.
    pub size: Bytes,
    /// Each file of `stats`. Files called `nr_*` have present values; the others count since boot.
    pub stats: Vec<BootCounter>,
}
