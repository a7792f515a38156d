//! The RAM of a machine: the counters that are read, and the account that is made of them, in which
//! every byte has one owner.

use serde::{Deserialize, Serialize};

use crate::fragmentation::{BootCounter, Zone};
use crate::oom::OomProcess;
use crate::reading::plain;
use crate::settings::{PressureFigures, SwapArea};
use crate::{Bytes, Name, PageSize, Pid, Reading};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const SYSTEM_VERSION: u32 = 1;

/// The counters of a machine, from which its [`MemoryAccount`] is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemReading {
    /// [`SYSTEM_VERSION`] of the writer.
    pub pagewise_system: u32,
    /// `uname -r`.
    pub kernel: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// `/proc/meminfo` before the processes were read. Sizes are in bytes.
    pub meminfo_before: Vec<BootCounter>,
    /// `/proc/meminfo` after the processes were read.
    pub meminfo: Vec<BootCounter>,
    /// `/proc/vmstat` at the beginning and at the end.
    pub vmstat: [VmstatPoint; 2],
    /// `/proc/zoneinfo`.
    #[serde(with = "plain")]
    pub zones: Reading<Vec<ZoneFigures>>,
    /// `/proc/buddyinfo`.
    #[serde(with = "plain")]
    pub free_blocks: Reading<Vec<Zone>>,
    /// Size that one PMD page-table entry maps.
    #[serde(with = "plain")]
    pub huge_size: Reading<Bytes>,
    /// `/proc/slabinfo`, largest first.
    #[serde(with = "plain")]
    pub slabs: Reading<Vec<SlabCache>>,
    /// The memory of all processes together.
    pub processes: ProcessSums,
    /// The processes with the largest PSS, largest first.
    pub largest: Vec<ProcessShare>,
    /// The processes as the OOM killer compares them.
    pub oom: Vec<OomProcess>,
    /// File systems in memory: tmpfs mounts, memfds, System V segments, largest first.
    #[serde(with = "plain")]
    pub shmem: Reading<Vec<ShmemUse>>,
    /// Pools of huge pages (hugetlbfs), one of each page size.
    #[serde(with = "plain")]
    pub hugetlb: Reading<Vec<HugetlbPool>>,
    /// Memory of compressed devices, `mm_stat` of `/sys/block/zram*`.
    #[serde(with = "plain")]
    pub zram: Reading<Vec<ZramDevice>>,
    /// True if the pages of the balloon are part of `MemTotal`.
    #[serde(with = "plain")]
    pub balloon_in_total: Reading<bool>,
    /// True if `VmallocUsed` includes `KernelStack` (CONFIG_VMAP_STACK).
    #[serde(with = "plain")]
    pub stacks_in_vmalloc: Reading<bool>,
    /// The part of `Percpu` that was allocated at boot, which is not part of `MemTotal`.
    #[serde(with = "plain")]
    pub percpu_at_boot: Reading<Bytes>,
    /// Pages of network buffers (`mem` of `/proc/net/sockstat`); some are in slabs, the others have
    /// no counter.
    #[serde(with = "plain")]
    pub sockets: Reading<Bytes>,
    /// Page cache of single files.
    #[serde(with = "plain")]
    pub files: Reading<CachedFiles>,
    /// `/proc/pressure/memory`.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
    /// `/proc/swaps`.
    #[serde(with = "plain")]
    pub swaps: Reading<Vec<SwapArea>>,
    /// Settings of reclaim, by their path on a live system.
    pub settings: Vec<(Name, u64)>,
    /// Duration of the reading.
    pub took_ns: u64,
    /// The longest single system call that may have held the mmap lock of a process.
    #[serde(with = "plain")]
    pub longest_hold_ns: Reading<u64>,
}

/// `/proc/vmstat` at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmstatPoint {
    /// Nanoseconds since the beginning of the reading.
    pub at_ns: u64,
    /// All counters.
    pub counters: Vec<BootCounter>,
}

/// A zone of `/proc/zoneinfo`. Sizes are in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneFigures {
    /// The NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: Name,
    /// Free pages.
    pub free: u64,
    /// Free pages below which only the kernel's urgent requests are served.
    pub min: u64,
    /// Free pages below which kswapd begins to reclaim.
    pub low: u64,
    /// Free pages at which kswapd stops.
    pub high: u64,
    /// Physical pages.
    pub present: u64,
    /// Pages that the page allocator manages: `present` minus the pages reserved at boot.
    pub managed: u64,
    /// Free pages in the lists of single CPUs, which `free` does not count.
    pub per_cpu: u64,
    /// Free pages that requests for higher zones leave in this zone, by requested zone.
    pub protection: Vec<u64>,
}

/// A cache of `/proc/slabinfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabCache {
    /// Its name. Caches of equal object sizes are merged under the name of the first.
    pub name: Name,
    /// Memory of its slabs.
    pub bytes: Bytes,
    /// Memory of its objects that are in use.
    pub active: Bytes,
    /// Number of objects in use.
    pub objects: u64,
    /// True if the kernel can free objects under memory pressure; absent without its file in
    /// `/sys/kernel/slab`.
    #[serde(with = "plain")]
    pub reclaimable: Reading<bool>,
}

/// PSS of all processes by page kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSums {
    /// Processes with known PSS.
    pub read: u64,
    /// Processes whose memory could not be read.
    pub unread: u64,
    /// Sum of the RSS of the unread processes.
    pub unread_rss: Bytes,
    /// Processes that share their address space with another process: the memory counts once.
    pub same_memory: u64,
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Pages of files.
    pub file: Bytes,
    /// Pages of tmpfs and of shared anonymous memory.
    pub shmem: Bytes,
}

/// PSS of one process by page kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessShare {
    /// Its ID.
    pub pid: Pid,
    /// `comm`.
    pub name: Name,
    /// Its PSS.
    pub pss: Bytes,
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Pages of files.
    pub file: Bytes,
    /// Pages of tmpfs and of shared anonymous memory.
    pub shmem: Bytes,
}

/// A use of tmpfs memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShmemUse {
    /// Kind of the use.
    pub kind: ShmemKind,
    /// Mount point, name of the memfd, or number of the segment.
    pub name: Name,
    /// Allocated bytes, also those in swap.
    pub bytes: Bytes,
    /// Bytes of it in swap, if the kernel counts them.
    pub swapped: Option<Bytes>,
    /// Largest size of the file system; `None` without one.
    pub limit: Option<Bytes>,
}

/// Kinds of tmpfs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShmemKind {
    /// A mounted tmpfs.
    Tmpfs,
    /// A file of `memfd_create`.
    Memfd,
    /// A segment of `shmget`.
    SystemV,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugetlbPool {
    /// Size of a page.
    pub size: Bytes,
    /// Pages of the pool.
    pub pages: u64,
    /// Unused pages.
    pub free: u64,
    /// Unused pages that a mapping has reserved.
    pub reserved: u64,
}

/// A compressed device in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZramDevice {
    /// `zram0`.
    pub name: Name,
    /// Stored bytes before compression.
    pub stored: Bytes,
    /// Memory that the device takes.
    pub used: Bytes,
}

/// Page cache of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFiles {
    /// By file system, largest first.
    pub file_systems: Vec<CachedFileSystem>,
    /// Largest files, largest first.
    pub largest: Vec<CachedFile>,
    /// Number of files whose page cache was queried.
    pub files: u64,
    /// Number of files that could not be opened.
    pub unreadable: u64,
    /// True if the search reached its limit of time or of files.
    pub incomplete: bool,
}

/// Page cache of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFileSystem {
    /// Mount point.
    pub point: Name,
    /// `ext4`, `btrfs`.
    pub kind: Name,
    /// Number of files with cached pages.
    pub files: u64,
    /// Cached bytes.
    pub cached: Bytes,
    /// Cached bytes that are not yet written to the device; `None` if the kernel does not count
    /// them.
    pub dirty: Option<Bytes>,
}

/// Page cache of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFile {
    /// Its path.
    pub path: Name,
    /// Its size.
    pub size: Bytes,
    /// Cached bytes.
    pub cached: Bytes,
    /// Cached bytes that are not yet written to the device; `None` if the kernel does not count
    /// them.
    pub dirty: Option<Bytes>,
    /// Memory cgroups that its pages are charged to, with their share of the sampled pages, the
    /// largest first; empty if that was not read.
    #[serde(default)]
    pub charged: Vec<PageCharge>,
}

/// Sampled pages of a file that are charged to a memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCharge {
    /// Path of the cgroup; `None` if it was removed, or is not visible.
    pub cgroup: Option<Name>,
    /// Number of sampled pages.
    pub pages: u64,
}

/// The RAM of a machine by owner.
///
/// The owners' bytes and `unaccounted` add up to `total` exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAccount {
    /// `MemTotal`.
    pub total: Bytes,
    /// Owners, in the order of the report.
    pub owners: Vec<MemoryOwner>,
    /// Memory of `total` without an owner. It is negative if the owners' counters, which are read
    /// one after the other, add up to more.
    pub unaccounted: i64,
}

impl MemoryAccount {
    /// The bytes of an owner.
    pub fn owner(&self, id: &str) -> Option<Bytes> {
        self.owners.iter().find(|owner| owner.id == id).map(|owner| owner.bytes)
    }
}

/// An owner of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryOwner {
    /// Stable name: `processes.anonymous`.
    pub id: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// Parts of the bytes, largest first. Parts that the kernel does not count are missing, so the
    /// parts add up to at most `bytes`.
    pub parts: Vec<OwnerPart>,
}

/// A part of an owner's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerPart {
    /// Its name.
    pub name: Name,
    /// Its bytes.
    pub bytes: Bytes,
}
