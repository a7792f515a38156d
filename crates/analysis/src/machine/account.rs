//! The account of a machine's RAM: every byte of `MemTotal` has one owner, or is unaccounted.
//!
//! Each owner is a counter of the kernel, or the part of a counter that processes have mapped. If
//! two counters of the kernel include the same pages, the smaller counter is subtracted from the
//! larger: kernel stacks from vmalloc, tmpfs from the page cache. The difference between the sum of
//! the owners and `MemTotal` is reported as unaccounted, and is not distributed over the owners.

use pagewise_model::account::{MemoryAccount, MemoryOwner, OwnerPart, SystemReading};
use pagewise_model::evidence::counter;
use pagewise_model::{Bytes, Name};

/// Identifier and texts of an owner of memory.
#[derive(Clone, Copy, Debug)]
pub struct OwnerText {
    /// Stable name of the owner.
    pub id: &'static str,
    /// Name of the owner for people.
    pub label: &'static str,
    /// Source of the owner's bytes, and the memory that they include.
    pub meaning: &'static str,
}

/// All owners, in the order of the report.
pub const OWNERS: [OwnerText; 24] = [
    OwnerText {
        id: "processes.anonymous",
        label: "processes, anonymous",
        meaning: "Heaps, stacks and other anonymous memory: the sum of Pss_Anon of all processes.",
    },
    OwnerText {
        id: "processes.file",
        label: "processes, mapped files",
        meaning: "Programs, libraries and mapped files: the sum of Pss_File of all processes.",
    },
    OwnerText {
        id: "processes.shmem",
        label: "processes, shared memory",
        meaning: "Mapped tmpfs files and shared anonymous memory: the sum of Pss_Shmem of all processes.",
    },
    OwnerText {
        id: "anonymous.unread",
        label: "other anonymous memory",
        meaning: "AnonPages of meminfo less the processes' anonymous memory: memory of processes that could not be read, or that changed meanwhile.",
    },
    OwnerText {
        id: "cache.mapped_unread",
        label: "files of unread processes",
        meaning: "Mapped of meminfo less the processes' mapped files and shared memory, if processes could not be read.",
    },
    OwnerText {
        id: "anonymous.unmapped",
        label: "swap cache, huge page rests",
        meaning: "Anonymous pages on the LRU lists that no process maps: pages also in swap, and unmapped parts of huge pages.",
    },
    OwnerText {
        id: "cache.files",
        label: "page cache of files",
        meaning: "File pages that no process maps: Cached less Shmem less mapped files. The kernel drops clean ones when it needs memory. --files lists the files.",
    },
    OwnerText {
        id: "cache.devices",
        label: "page cache of devices",
        meaning: "Buffers of meminfo: metadata of file systems, and raw reads of devices.",
    },
    OwnerText {
        id: "shmem.unmapped",
        label: "tmpfs, shm, memfd",
        meaning: "Shmem of meminfo that no process maps: files of tmpfs, memfd_create and shmget. Without swap it cannot be reclaimed.",
    },
    OwnerText {
        id: "slab.reclaimable",
        label: "slab, reclaimable",
        meaning: "SReclaimable: kernel objects that are freed under memory pressure, mostly dentries and inodes.",
    },
    OwnerText {
        id: "slab.unreclaimable",
        label: "slab, unreclaimable",
        meaning: "SUnreclaim: other kernel objects, and kmalloc blocks of several pages.",
    },
    OwnerText {
        id: "kernel.reclaimable",
        label: "other kernel, reclaimable",
        meaning: "KReclaimable less SReclaimable: buffers of drivers that the kernel can ask back.",
    },
    OwnerText {
        id: "kernel.stacks",
        label: "kernel stacks",
        meaning: "KernelStack: one stack for each thread, 16 KiB on x86-64.",
    },
    OwnerText {
        id: "page_tables",
        label: "page tables",
        meaning: "PageTables: page tables of processes.",
    },
    OwnerText {
        id: "page_tables.secondary",
        label: "page tables of VMs, IOMMU",
        meaning: "SecPageTables: page tables of virtual machines and of the IOMMU.",
    },
    OwnerText {
        id: "vmalloc",
        label: "vmalloc",
        meaning: "VmallocUsed less kernel stacks: large kernel buffers, modules, BPF programs and maps.",
    },
    OwnerText {
        id: "percpu",
        label: "per-CPU variables",
        meaning: "Percpu less the part that the kernel allocated at boot.",
    },
    OwnerText {
        id: "hugetlb",
        label: "huge page pools",
        meaning: "Hugetlb: pools of hugetlbfs, free pages included. Other programs cannot use them.",
    },
    OwnerText {
        id: "zswap",
        label: "zswap",
        meaning: "Zswap: compressed pages that were to be swapped out.",
    },
    OwnerText {
        id: "zram",
        label: "zram",
        meaning: "Memory of compressed devices: mm_stat of /sys/block/zram*.",
    },
    OwnerText {
        id: "balloon",
        label: "balloon",
        meaning: "Memory that the hypervisor has taken from this guest, if it is part of MemTotal.",
    },
    OwnerText {
        id: "memmap",
        label: "page descriptors",
        meaning: "nr_memmap_pages of vmstat: descriptors of memory that was added after boot.",
    },
    OwnerText {
        id: "free.per_cpu",
        label: "free, in lists of CPUs",
        meaning: "Free pages that single CPUs hold ready (zoneinfo), which MemFree does not count.",
    },
    OwnerText { id: "free", label: "free", meaning: "MemFree." },
];

/// Returns the texts of an owner.
pub fn owner_text(id: &str) -> Option<&'static OwnerText> {
    OWNERS.iter().find(|owner| owner.id == id)
}

/// Maximum number of listed parts of an owner.
const MAX_PARTS: usize = 8;

/// Counters of a machine by name. A missing counter counts as 0 bytes of its owner, because the
/// kernel then does not have such memory.
struct Figures<'a>(&'a SystemReading);

impl Figures<'_> {
    fn meminfo(&self, name: &str) -> Bytes {
        Bytes(counter(&self.0.meminfo, name).unwrap_or(0))
    }

    fn pages(&self, name: &str) -> Bytes {
        let last = &self.0.vmstat[1].counters;
        self.0.page_size.pages(counter(last, name).unwrap_or(0))
    }

    fn lru(&self) -> Bytes {
        let isolated = self.pages("nr_isolated_anon") + self.pages("nr_isolated_file");
        ["Active", "Inactive", "Unevictable"].map(|it| self.meminfo(it)).into_iter().sum::<Bytes>()
            + isolated
    }

    fn file_pages(&self) -> Bytes {
        self.meminfo("Cached") - self.meminfo("Shmem")
    }

    /// Page cache that is mapped by processes whose memory could not be read.
    fn mapped_unread(&self) -> Bytes {
        let sums = &self.0.processes;
        match sums.unread {
            0 => Bytes::ZERO,
            _ => self.meminfo("Mapped") - (sums.file + sums.shmem),
        }
    }

    fn vmalloc(&self) -> Bytes {
        let stacks = match self.0.stacks_in_vmalloc {
            Ok(true) => self.meminfo("KernelStack"),
            _ => Bytes::ZERO,
        };
        self.meminfo("VmallocUsed") - stacks
    }

    /// Percpu memory within `MemTotal`: the percpu memory that the kernel allocated at boot is
    /// outside of it. If the size at boot is unknown, returns 0, and all percpu memory stays
    /// unaccounted.
    fn percpu(&self) -> Bytes {
        let at_boot = self.0.percpu_at_boot.as_ref();
        at_boot.map_or(Bytes::ZERO, |at_boot| self.meminfo("Percpu") - *at_boot)
    }

    fn per_cpu_lists(&self) -> Bytes {
        let zones = self.0.zones.as_deref().unwrap_or_default();
        let pages = zones.iter().fold(0_u64, |sum, zone| sum.saturating_add(zone.per_cpu));
        self.0.page_size.pages(pages)
    }

    fn balloon(&self) -> Bytes {
        match self.0.balloon_in_total {
            Ok(true) => self.meminfo("Balloon"),
            _ => Bytes::ZERO,
        }
    }

    fn owner(&self, id: &str) -> Bytes {
        let sums = &self.0.processes;
        let anonymous = self.meminfo("AnonPages");
        match id {
            "processes.anonymous" => sums.anonymous,
            "processes.file" => sums.file,
            "processes.shmem" => sums.shmem,
            "anonymous.unread" => anonymous - sums.anonymous,
            "cache.mapped_unread" => self.mapped_unread(),
            "anonymous.unmapped" => {
                self.lru() - (anonymous + self.meminfo("Cached") + self.meminfo("Buffers"))
            }
            "cache.files" => self.file_pages() - (sums.file + self.mapped_unread()),
            "cache.devices" => self.meminfo("Buffers"),
            "shmem.unmapped" => self.meminfo("Shmem") - sums.shmem,
            "slab.reclaimable" => self.meminfo("SReclaimable"),
            "slab.unreclaimable" => self.meminfo("SUnreclaim"),
            "kernel.reclaimable" => self.meminfo("KReclaimable") - self.meminfo("SReclaimable"),
            "kernel.stacks" => self.meminfo("KernelStack"),
            "page_tables" => self.meminfo("PageTables"),
            "page_tables.secondary" => self.meminfo("SecPageTables"),
            "vmalloc" => self.vmalloc(),
            "percpu" => self.percpu(),
            "hugetlb" => self.meminfo("Hugetlb"),
            "zswap" => self.meminfo("Zswap"),
            "zram" => self.0.zram.iter().flatten().map(|device| device.used).sum(),
            "balloon" => self.balloon(),
            "memmap" => self.pages("nr_memmap_pages"),
            "free.per_cpu" => self.per_cpu_lists(),
            "free" => self.meminfo("MemFree"),
            _ => Bytes::ZERO,
        }
    }
}

/// Computes the account. Owners without memory are left out.
pub fn account(reading: &SystemReading) -> MemoryAccount {
    let figures = Figures(reading);
    let owner = |text: &OwnerText| {
        let bytes = figures.owner(text.id);
        let mut parts = parts(reading, text.id);
        // The account assigns mapped file pages to the processes, but the page cache of a file
        // system includes them. A file system can therefore have more bytes than its owner, and is
        // then left out.
        parts.retain(|part| part.bytes <= bytes);
        (!bytes.is_zero()).then(|| MemoryOwner { id: text.id.to_owned(), bytes, parts })
    };
    let owners: Vec<MemoryOwner> = OWNERS.iter().filter_map(owner).collect();
    let total = figures.meminfo("MemTotal");
    let owned: Bytes = owners.iter().map(|owner| owner.bytes).sum();
    let unaccounted = total.0.cast_signed().saturating_sub(owned.0.cast_signed());
    MemoryAccount { total, owners, unaccounted }
}

fn part(name: impl Into<Name>, bytes: Bytes) -> OwnerPart {
    OwnerPart { name: name.into(), bytes }
}

/// Returns the largest known parts of an owner.
fn parts(reading: &SystemReading, id: &str) -> Vec<OwnerPart> {
    let mut parts = all_parts(reading, id);
    parts.retain(|part| !part.bytes.is_zero());
    parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    parts.truncate(MAX_PARTS);
    parts
}

fn all_parts(reading: &SystemReading, id: &str) -> Vec<OwnerPart> {
    let processes = |bytes: fn(&pagewise_model::account::ProcessShare) -> Bytes| {
        let named = |it: &pagewise_model::account::ProcessShare| {
            let name = [it.name.as_bytes(), format!(" ({})", it.pid).as_bytes()].concat();
            part(Name::new(&name), bytes(it))
        };
        reading.largest.iter().map(named).collect()
    };
    let slabs = |reclaimable: bool| {
        let slabs = reading.slabs.iter().flatten();
        let slabs = slabs.filter(|it| it.reclaimable == Ok(reclaimable));
        slabs.map(|it| part(it.name.clone(), it.bytes)).collect()
    };
    match id {
        "processes.anonymous" => processes(|it| it.anonymous),
        "processes.file" => processes(|it| it.file),
        "processes.shmem" => processes(|it| it.shmem),
        "cache.files" => {
            let files = reading.files.iter().flat_map(|it| &it.file_systems);
            files.map(|it| part(it.point.clone(), it.cached)).collect()
        }
        "shmem.unmapped" => {
            let uses = reading.shmem.iter().flatten();
            uses.map(|it| part(it.name.clone(), it.bytes)).collect()
        }
        "slab.reclaimable" => slabs(true),
        "slab.unreclaimable" => slabs(false),
        "hugetlb" => reading.hugetlb.iter().flatten().flat_map(pool_parts).collect(),
        "zram" => {
            let devices = reading.zram.iter().flatten();
            devices.map(|it| part(it.name.clone(), it.used)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the used and the free pages of a hugetlb pool as parts.
fn pool_parts(pool: &pagewise_model::account::HugetlbPool) -> [OwnerPart; 2] {
    let bytes = |pages: u64| Bytes(pool.size.0.saturating_mul(pages));
    let name =
        |state: &str| Name::from(format!("{} KiB pages, {state}", pool.size.0 >> 10).as_str());
    let used = pool.pages.saturating_sub(pool.free);
    [part(name("in use"), bytes(used)), part(name("free"), bytes(pool.free))]
}

#[cfg(test)]
mod tests;
