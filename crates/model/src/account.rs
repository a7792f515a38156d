//! Counters of a machine's RAM, and the account that is computed from them. Each byte has exactly
//! one owner in the account.

use serde::{Deserialize, Serialize};

use crate::fragmentation::{BootCounter, Zone};
use crate::oom::OomProcess;
use crate::reading::plain;
use crate::settings::{PressureFigures, SwapArea};
use crate::{Bytes, Name, PageSize, Pid, Reading};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const SYSTEM_VERSION: u32 = 1;

/// Counters of a machine's memory; an analysis computes its [`MemoryAccount`] from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemReading {
    /// [`SYSTEM_VERSION`] of the program that wrote the file.
    pub pagewise_system: u32,
    /// `uname -r`.
    pub kernel: Name,
    /// The base page size.
    pub page_size: PageSize,
    /// `/proc/meminfo` before the processes were read. Counters in kB are converted to bytes.
    pub meminfo_before: Vec<BootCounter>,
    /// `/proc/meminfo` after the processes were read. Counters in kB are converted to bytes.
    pub meminfo: Vec<BootCounter>,
    /// `/proc/vmstat` at the beginning and at the end of the reading.
    pub vmstat: [VmstatPoint; 2],
    /// `/proc/zoneinfo`.
    #[serde(with = "plain")]
    pub zones: Reading<Vec<ZoneFigures>>,
    /// `/proc/buddyinfo`.
    #[serde(with = "plain")]
    pub free_blocks: Reading<Vec<Zone>>,
    /// Size of a PMD-mapped huge page.
    #[serde(with = "plain")]
    pub huge_size: Reading<Bytes>,
    /// Caches of `/proc/slabinfo`, the cache with the most memory first.
    #[serde(with = "plain")]
    pub slabs: Reading<Vec<SlabCache>>,
    /// Sums over all processes.
    pub processes: ProcessSums,
    /// The processes with the largest PSS, largest first.
    pub largest: Vec<ProcessShare>,
    /// The processes, with the values that the OOM killer compares.
    pub oom: Vec<OomProcess>,
    /// Memory in tmpfs mounts, memfds and System V segments, largest first.
    #[serde(with = "plain")]
    pub shmem: Reading<Vec<ShmemUse>>,
    /// Pools of huge pages (hugetlbfs), one for each huge-page size.
    #[serde(with = "plain")]
    pub hugetlb: Reading<Vec<HugetlbPool>>,
    /// Memory of zram devices: `mm_stat` of `/sys/block/zram*`.
    #[serde(with = "plain")]
    pub zram: Reading<Vec<ZramDevice>>,
    /// True if `MemTotal` includes the pages that a balloon driver holds.
    #[serde(with = "plain")]
    pub balloon_in_total: Reading<bool>,
    /// True if `VmallocUsed` includes `KernelStack` (CONFIG_VMAP_STACK).
    #[serde(with = "plain")]
    pub stacks_in_vmalloc: Reading<bool>,
    /// The part of `Percpu` that was allocated at boot, which is not part of `MemTotal`.
    #[serde(with = "plain")]
    pub percpu_at_boot: Reading<Bytes>,
    /// Bytes of the pages of socket buffers (`mem` of `/proc/net/sockstat`). Some of these pages
    /// belong to slabs; no other counter includes the remaining pages.
    #[serde(with = "plain")]
    pub sockets: Reading<Bytes>,
    /// Page cache, by file system and by file.
    #[serde(with = "plain")]
    pub files: Reading<CachedFiles>,
    /// `/proc/pressure/memory`.
    #[serde(with = "plain")]
    pub pressure: Reading<PressureFigures>,
    /// `/proc/swaps`.
    #[serde(with = "plain")]
    pub swaps: Reading<Vec<SwapArea>>,
    /// Kernel settings of reclaim: the path of each file on a live system, and its value.
    pub settings: Vec<(Name, u64)>,
    /// Duration of the reading in nanoseconds.
    pub took_ns: u64,
    /// Longest duration of a single system call that may have held the mmap lock of a process, in
    /// nanoseconds.
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
    /// ID of the NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: Name,
    /// Free pages.
    pub free: u64,
    /// The `min` watermark: below it, only urgent requests of the kernel get pages.
    pub min: u64,
    /// The `low` watermark: below it, kswapd begins to reclaim.
    pub low: u64,
    /// The `high` watermark: kswapd stops when it is reached.
    pub high: u64,
    /// Physical pages of the zone.
    pub present: u64,
    /// Pages that the page allocator manages: `present` minus the pages reserved at boot.
    pub managed: u64,
    /// Free pages in per-CPU lists, which `free` does not include.
    pub per_cpu: u64,
    /// Free pages of this zone that a request for a higher zone must not take, indexed by the
    /// requested zone.
    pub protection: Vec<u64>,
}

/// A cache of `/proc/slabinfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabCache {
    /// Name of the cache. The kernel merges caches with equal object sizes under the name of the
    /// first cache.
    pub name: Name,
    /// Memory of the cache's slabs.
    pub bytes: Bytes,
    /// Memory of the cache's objects that are in use.
    pub active: Bytes,
    /// Number of objects in use.
    pub objects: u64,
    /// True if the kernel can free objects of the cache under memory pressure; absent if the cache
    /// has no file in `/sys/kernel/slab`.
    #[serde(with = "plain")]
    pub reclaimable: Reading<bool>,
}

/// Sums of the PSS of all processes by page kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSums {
    /// Number of processes with known PSS.
    pub read: u64,
    /// Number of processes whose memory could not be read.
    pub unread: u64,
    /// Sum of the RSS of the unread processes.
    pub unread_rss: Bytes,
    /// Number of processes that share their address space with another process. The sums count the
    /// memory of such processes once.
    pub same_memory: u64,
    /// PSS of anonymous pages.
    pub anonymous: Bytes,
    /// PSS of file pages.
    pub file: Bytes,
    /// PSS of tmpfs pages and of shared anonymous pages.
    pub shmem: Bytes,
}

/// PSS of one process by page kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessShare {
    /// PID of the process.
    pub pid: Pid,
    /// `comm` of the process.
    pub name: Name,
    /// PSS of the process.
    pub pss: Bytes,
    /// PSS of anonymous pages.
    pub anonymous: Bytes,
    /// PSS of file pages.
    pub file: Bytes,
    /// PSS of tmpfs pages and of shared anonymous pages.
    pub shmem: Bytes,
}

/// Memory of one tmpfs mount, memfd name or System V segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShmemUse {
    /// Kind of the tmpfs memory.
    pub kind: ShmemKind,
    /// Mount point, name of the memfd, or ID of the System V segment.
    pub name: Name,
    /// Allocated bytes, including bytes in swap.
    pub bytes: Bytes,
    /// Allocated bytes that are in swap; `None` if the kernel does not count them.
    pub swapped: Option<Bytes>,
    /// Maximum size of the file system; `None` if it has no limit.
    pub limit: Option<Bytes>,
}

/// Kinds of tmpfs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShmemKind {
    /// A mounted tmpfs.
    Tmpfs,
    /// Files of `memfd_create`.
    Memfd,
    /// A segment of `shmget`.
    SystemV,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugetlbPool {
    /// Size of a page.
    pub size: Bytes,
    /// Number of pages in the pool.
    pub pages: u64,
    /// Number of unused pages.
    pub free: u64,
    /// Number of unused pages that a mapping has reserved.
    pub reserved: u64,
}

/// A zram device: compressed swap or a compressed block device in RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZramDevice {
    /// Name of the device: `zram0`.
    pub name: Name,
    /// Stored bytes before compression.
    pub stored: Bytes,
    /// Memory that the device uses.
    pub used: Bytes,
}

/// Page cache by file system and by file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFiles {
    /// File systems by cached bytes, largest first.
    pub file_systems: Vec<CachedFileSystem>,
    /// Files with the most cached bytes, largest first.
    pub largest: Vec<CachedFile>,
    /// Number of files whose page cache was queried.
    pub files: u64,
    /// Number of files that could not be opened.
    pub unreadable: u64,
    /// True if the search ended early because it reached its limit of time or of files.
    pub incomplete: bool,
}

/// Page cache of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFileSystem {
    /// Mount point.
    pub point: Name,
    /// Type of the file system: `ext4`, `btrfs`.
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
    /// Path of the file.
    pub path: Name,
    /// Size of the file.
    pub size: Bytes,
    /// Cached bytes.
    pub cached: Bytes,
    /// Cached bytes that are not yet written to the device; `None` if the kernel does not count
    /// them.
    pub dirty: Option<Bytes>,
    /// Memory cgroups that the file's pages are charged to, with the number of sampled pages of
    /// each cgroup, largest first; empty if the charges were not read.
    #[serde(default)]
    pub charged: Vec<PageCharge>,
}

/// Sampled pages of a file that are charged to a memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCharge {
    /// Path of the cgroup; `None` if the cgroup was removed or is not visible.
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
    /// Bytes of `total` without an owner. The counters are read one after the other, so the owners'
    /// bytes can exceed `total`; the number is then negative.
    pub unaccounted: i64,
}

impl MemoryAccount {
    /// Returns the bytes of the owner with this ID; `None` if the account does not have the owner.
    pub fn owner(&self, id: &str) -> Option<Bytes> {
        self.owners.iter().find(|owner| owner.id == id).map(|owner| owner.bytes)
    }
}

/// An owner of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryOwner {
    /// Stable name: `processes.anonymous`.
    pub id: String,
    /// Bytes of the owner.
    pub bytes: Bytes,
    /// Parts of the bytes, largest first. Parts that the kernel does not count are missing, so the
    /// parts add up to at most `bytes`.
    pub parts: Vec<OwnerPart>,
}

/// A part of an owner's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerPart {
    /// Name of the part.
    pub name: Name,
    /// Bytes of the part.
    pub bytes: Bytes,
}
