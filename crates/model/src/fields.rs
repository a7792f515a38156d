//! What every number means: one row a field, from which help, tables and documents are made.

/// One field: a line of a `/proc` file, or a column that we print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The kernel's spelling, or our column's.
    pub name: &'static str,
    /// The file it is read from: `smaps` (and `smaps_rollup`), `maps`, `status`, `statm`, `meminfo`, `vmstat`;
    /// `hugepages stats` for `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`;
    /// `stat` for what runs of commands are measured by; `sim` for what simulators count; `faults` for recorded page faults; `watch` for accesses to memory; `heap` for recordings of heaps; `pagewise` for what else we compute.
    pub source: &'static str,
    /// `kB` (1024 bytes), `pages`, `bytes`, `flag`, `count`, or the form of what is no number.
    pub unit: &'static str,
    /// The kernel release that brought it; empty where it has been there since 2.6.14 or longer.
    pub since: &'static str,
    /// One sentence.
    pub meaning: &'static str,
    /// What people take it for and it is not; empty where there is no trap.
    pub trap: &'static str,
}

/// The fields of that name. Upper and lower case matter only where a field is spelled exactly so;
/// `_`, `-` and a space count alike.
pub fn named(name: &str) -> impl Iterator<Item = &'static Field> {
    let exact = FIELDS.iter().any(|f| f.name == name);
    let name = name.to_owned();
    FIELDS.iter().filter(move |f| if exact { f.name == name } else { is_alike(f.name, &name) })
}

/// Whether two names differ by nothing but case and the kind of space between words.
pub fn is_alike(a: &str, b: &str) -> bool {
    let plain = |byte: u8| match byte {
        b'-' | b' ' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    a.bytes().map(plain).eq(b.bytes().map(plain))
}

macro_rules! fields {
    ($($source:literal { $($name:literal $unit:literal $since:literal $meaning:literal $trap:literal;)* })*) => {
        /// Every field, by source and in the kernel's order.
        pub const FIELDS: &[Field] = &[$($(Field {
            name: $name,
            source: $source,
            unit: $unit,
            since: $since,
            meaning: $meaning,
            trap: $trap,
        },)*)*];
    };
}

// Name, unit, since; the meaning; the trap. Releases are those that first printed the line.
fields! {
    "smaps" {
        "Size" "kB" "2.6.14"
            "Address space of the mapping."
            "Reserved, not used: it costs nothing until pages are touched.";
        "KernelPageSize" "kB" "2.6.29"
            "The page size that the mapping asks of the kernel: larger than the base page for hugetlb only."
            "Transparent huge pages do not show here: AnonHugePages, ShmemPmdMapped and FilePmdMapped have them.";
        "MMUPageSize" "kB" "2.6.29"
            "The page size that the hardware uses for the mapping: KernelPageSize but for a few POWER machines."
            "Transparent huge pages do not show here.";
        "Rss" "kB" "2.6.14"
            "Resident: memory of the mapping that this process's page table maps now."
            "Shared pages count in full for each process, so sums over processes mean nothing; huge TLB pages and device memory are left out.";
        "Pss" "kB" "2.6.25"
            "Resident memory where each page is divided by how often it is mapped."
            "A share, not a cost: it falls when another process maps the same pages. Mappings count, not processes; kernels that keep no map count for each page of a large folio use its average.";
        "Pss_Dirty" "kB" "6.0"
            "The part of Pss whose pages are dirty."
            "Anonymous memory is nearly always dirty; what leaving it costs is a write to swap, not to a file.";
        "Pss_Anon" "kB" "5.4"
            "The part of Pss that is anonymous."
            "smaps_rollup only.";
        "Pss_File" "kB" "5.4"
            "The part of Pss that is page cache of files."
            "smaps_rollup only; tmpfs is in Pss_Shmem.";
        "Pss_Shmem" "kB" "5.4"
            "The part of Pss that is tmpfs: shared anonymous memory, memfd, System V, /dev/shm."
            "smaps_rollup only.";
        "Shared_Clean" "kB" "2.6.14"
            "Resident pages that are mapped more than once and can be dropped without writing."
            "Nothing to do with MAP_SHARED: private library text that two processes map is here, and a MAP_SHARED page that only one maps is in Private_Clean.";
        "Shared_Dirty" "kB" "2.6.14"
            "Resident pages that are mapped more than once and must be written somewhere before they are dropped."
            "After fork a parent's private memory shows up here until one side writes to it.";
        "Private_Clean" "kB" "2.6.14"
            "Resident pages that are mapped once and can be dropped without writing."
            "Mapped once, not MAP_PRIVATE; and an unmapped page can stay in the page cache, so it is not all freed when the process ends.";
        "Private_Dirty" "kB" "2.6.14"
            "Resident pages that are mapped once and must be written somewhere before they are dropped."
            "For a MAP_SHARED file that is the file, for the rest swap.";
        "Referenced" "kB" "2.6.22"
            "Resident pages that are marked as accessed."
            "Since the mark was last cleared, by reclaim or by clear_refs: not a working set by itself.";
        "Anonymous" "kB" "2.6.37"
            "Resident pages that belong to no file."
            "Also in a mapping of a file: what a private mapping has written is copied and anonymous from then on.";
        "KSM" "kB" "6.7"
            "Resident pages that the kernel merged with equal ones."
            "Merged zero pages are not counted.";
        "LazyFree" "kB" "4.12"
            "Resident pages given up with MADV_FREE and not written since."
            "Still in Rss until memory is short; can lag behind, since pages wait in per-CPU batches.";
        "AnonHugePages" "kB" "2.6.39"
            "Anonymous memory that huge (PMD) page-table entries map."
            "Large folios of other sizes, and huge pages mapped piece by piece, are not counted.";
        "ShmemPmdMapped" "kB" "4.8"
            "tmpfs memory that huge (PMD) page-table entries map."
            "A huge page that is mapped piece by piece is not counted.";
        "FilePmdMapped" "kB" "5.4"
            "Page cache of files that huge (PMD) page-table entries map."
            "tmpfs is in ShmemPmdMapped.";
        "Shared_Hugetlb" "kB" "4.4"
            "Memory of the huge TLB pool that is mapped more than once."
            "Not in Rss, Pss, Shared_* or Private_*.";
        "Private_Hugetlb" "kB" "4.4"
            "Memory of the huge TLB pool that is mapped once."
            "Not in Rss, Pss, Shared_* or Private_*.";
        "Swap" "kB" "2.6.26"
            "Pages of the mapping that are in swap."
            "For tmpfs mappings it includes swapped pages of the object (since 4.5), which VmSwap leaves out; pages shared after fork count in full.";
        "SwapPss" "kB" "4.3"
            "Pages in swap, each divided by how many page tables point at it."
            "Swapped pages of tmpfs objects are left out, so it is no share of Swap.";
        "Locked" "kB" "2.6.38"
            "The proportional share (Pss) of the mapping where mlock holds it."
            "Neither a yes or no nor the locked size: VmLck has the size.";
        "THPeligible" "flag" "5.0"
            "1 where the kernel may use a transparent huge page of some enabled size here, else 0."
            "Eligible is not huge: AnonHugePages says what there is. Before 6.8 only the PMD size counted.";
        "ProtectionKey" "number" "4.6"
            "The memory protection key of the mapping."
            "Shown only where the CPU has protection keys.";
        "VmFlags" "flags" "3.8"
            "The kernel's flags of the mapping, two letters each: `define nr` explains one."
            "Codes come and go between kernels; there are none in smaps_rollup.";
    }
    "maps" {
        "address" "hex" ""
            "The first address and the one past the last, in hex."
            "Neighbours with equal flags and backing are merged, so one line may be several mmap calls.";
        "perms" "letters" ""
            "r, w, x for read, write and execute; s for MAP_SHARED, p for MAP_PRIVATE."
            "p says that writes stay private, not that nobody else maps the same pages.";
        "offset" "hex" ""
            "Where in the file the mapping begins."
            "For anonymous memory it is meaningless.";
        "dev" "hex" ""
            "Major and minor number of the device the file is on."
            "btrfs and overlayfs can show another device here than stat does.";
        "inode" "number" ""
            "The inode of the file; 0 where there is none."
            "";
        "pathname" "text" ""
            "The file, or a name in brackets that the kernel or the program gave."
            "` (deleted)` is appended to files without a name, and newlines are written \\012; a live file's own name can look the same.";
    }
    "status" {
        "Name" "text" ""
            "The name of the main thread: at most 15 bytes."
            "Any thread can be renamed, so it need not be the program's; newlines and backslashes are escaped.";
        "Umask" "octal" "4.7"
            "The file mode creation mask."
            "";
        "State" "letter" ""
            "What the main thread does: R runs, S sleeps, D waits and cannot be killed, T is stopped, t is traced, Z is a zombie, I is idle, X is dead."
            "Other threads can be busy while the main one sleeps.";
        "Tgid" "number" ""
            "The process id."
            "";
        "Ngid" "number" "3.13"
            "The NUMA group that automatic balancing put the thread in; 0 for none."
            "";
        "Pid" "number" ""
            "The thread id: that of the main thread is the process id."
            "";
        "PPid" "number" ""
            "The parent's process id."
            "init or a subreaper, once the parent has ended.";
        "TracerPid" "number" ""
            "The process that traces this one; 0 for none, or for one outside our pid namespace."
            "";
        "Uid" "numbers" ""
            "Real, effective, saved and filesystem user id."
            "";
        "Gid" "numbers" ""
            "Real, effective, saved and filesystem group id."
            "";
        "FDSize" "count" ""
            "How many slots the table of file descriptors has."
            "Slots, not open files.";
        "Groups" "numbers" ""
            "Supplementary group ids."
            "";
        "NStgid" "numbers" "4.1"
            "The process id in each pid namespace from the reader's to its own."
            "";
        "NSpid" "numbers" "4.1"
            "The thread id in each pid namespace from the reader's to its own."
            "";
        "NSpgid" "numbers" "4.1"
            "The process group in each pid namespace from the reader's to its own."
            "";
        "NSsid" "numbers" "4.1"
            "The session in each pid namespace from the reader's to its own."
            "";
        "Kthread" "flag" "6.8"
            "1 for a kernel thread, which has no memory of its own."
            "";
        "VmPeak" "kB" "2.6.15"
            "The highest VmSize so far."
            "Address space, not memory: VmHWM is the peak in memory.";
        "VmSize" "kB" ""
            "Address space of all mappings: VIRT."
            "Reserved, not used. [vsyscall] is not counted.";
        "VmLck" "kB" ""
            "Size of the mappings that mlock holds."
            "The whole size of the mappings, resident or not.";
        "VmPin" "kB" "3.2"
            "Memory that drivers pinned for direct access and charged to the process."
            "Only drivers that account for it count, as RDMA and io_uring do; pages pinned otherwise do not show.";
        "VmHWM" "kB" "2.6.15"
            "The highest VmRSS so far: peak RES."
            "After fork it starts at what the child inherited, and writing 5 to clear_refs resets it.";
        "VmRSS" "kB" ""
            "Resident memory: RssAnon + RssFile + RssShmem."
            "Counted per CPU and off by some pages on many kernels: smaps is exact.";
        "RssAnon" "kB" "4.5"
            "Resident anonymous memory."
            "Counted per CPU and off by some pages on many kernels.";
        "RssFile" "kB" "4.5"
            "Resident page cache of files."
            "The page cache itself stays when the process ends. Counted per CPU and off by some pages on many kernels.";
        "RssShmem" "kB" "4.5"
            "Resident tmpfs memory: shared anonymous memory, memfd, System V, /dev/shm."
            "Counted per CPU and off by some pages on many kernels.";
        "VmData" "kB" ""
            "Address space of private writable mappings, stacks left out."
            "Reserved, not resident. statm's data adds the stack.";
        "VmStk" "kB" ""
            "Address space of mappings that grow down: the main stack."
            "Stacks of other threads are in VmData; what is resident is less.";
        "VmExe" "kB" ""
            "Address space of the program's text."
            "The program's own only: libraries are in VmLib.";
        "VmLib" "kB" ""
            "Address space of executable, not writable mappings, less VmExe."
            "Text of libraries, but JIT code and the vdso too; no data of libraries.";
        "VmPTE" "kB" "2.6.10"
            "Memory of the process's page tables, all levels."
            "Before 4.15 only the lowest level, with VmPMD beside it.";
        "VmPMD" "kB" "4.0"
            "Memory of the second level of page tables."
            "Gone since 4.15: VmPTE counts all levels.";
        "VmSwap" "kB" "2.6.34"
            "Anonymous memory of the process in swap."
            "Swapped tmpfs pages are left out, so it can be less than the sum of Swap in smaps.";
        "HugetlbPages" "kB" "4.4"
            "Memory of the huge TLB pool that the process maps."
            "Not in VmRSS.";
        "CoreDumping" "flag" "4.15"
            "1 while its memory is being dumped."
            "";
        "THP_enabled" "flag" "5.0"
            "0 where PR_SET_THP_DISABLE forbids the process transparent huge pages, else 1."
            "1 does not mean that it gets any: the machine's setting and each mapping decide too.";
        "untag_mask" "mask" "6.4"
            "Which bits of a pointer are its address: the rest may be a tag (x86 LAM)."
            "";
        "x86_Thread_features" "text" "6.6"
            "CPU features the thread has turned on: shadow stacks."
            "";
        "x86_Thread_features_locked" "text" "6.6"
            "CPU features the thread can no longer turn on or off."
            "";
        "Threads" "count" ""
            "How many threads the process has."
            "";
        "SigQ" "counts" ""
            "Signals queued for the user, and the limit."
            "For the user, not the process.";
        "SigPnd" "mask" ""
            "Signals that wait for the thread."
            "";
        "ShdPnd" "mask" ""
            "Signals that wait for the process."
            "";
        "SigBlk" "mask" ""
            "Signals that the thread blocks."
            "";
        "SigIgn" "mask" ""
            "Signals that are ignored."
            "";
        "SigCgt" "mask" ""
            "Signals that have a handler."
            "";
        "CapInh" "mask" ""
            "Inheritable capabilities."
            "";
        "CapPrm" "mask" ""
            "Permitted capabilities."
            "";
        "CapEff" "mask" ""
            "Effective capabilities: what the kernel checks."
            "In a user namespace they count only inside it.";
        "CapBnd" "mask" "2.6.26"
            "The bounding set of capabilities."
            "";
        "CapAmb" "mask" "4.3"
            "Ambient capabilities: kept over exec."
            "";
        "NoNewPrivs" "flag" "4.10"
            "1 where exec can give no new privileges."
            "";
        "Seccomp" "number" "3.8"
            "0 no filter, 1 strict, 2 filters."
            "";
        "Seccomp_filters" "count" "5.9"
            "How many seccomp filters apply."
            "";
        "Speculation_Store_Bypass" "text" "4.17"
            "How the thread stands to speculative store bypass."
            "";
        "SpeculationIndirectBranch" "text" "5.11"
            "How the thread stands to indirect branch speculation."
            "";
        "Cpus_allowed" "mask" "2.6.24"
            "The CPUs the thread may run on."
            "";
        "Cpus_allowed_list" "list" "2.6.26"
            "The CPUs the thread may run on, as a list."
            "";
        "Mems_allowed" "mask" "2.6.24"
            "The NUMA nodes the thread may take memory from."
            "";
        "Mems_allowed_list" "list" "2.6.26"
            "The NUMA nodes the thread may take memory from, as a list."
            "";
        "voluntary_ctxt_switches" "count" "2.6.23"
            "How often the thread gave up the CPU."
            "The main thread's only.";
        "nonvoluntary_ctxt_switches" "count" "2.6.23"
            "How often the CPU was taken from the thread."
            "The main thread's only.";
    }
    "statm" {
        "size" "pages" ""
            "All mappings: VIRT."
            "Address space, not memory.";
        "resident" "pages" ""
            "Resident anonymous, file and tmpfs pages: RES."
            "Counted per CPU and off by some pages on many kernels: smaps is exact.";
        "shared" "pages" ""
            "Resident file and tmpfs pages: SHR."
            "Says what kind of page it is, not that anybody shares it.";
        "text" "pages" ""
            "Address space of the program's text: CODE."
            "The program's own: libraries are not in it.";
        "lib" "pages" ""
            "0 since 2.6."
            "Once meant libraries.";
        "data" "pages" ""
            "Address space of private writable mappings and stacks: DATA."
            "Reserved, not resident: a sanitizer's shadow makes it terabytes.";
        "dt" "pages" ""
            "0 since 2.6."
            "Once meant dirty pages.";
    }
    "meminfo" {
        "MemTotal" "kB" ""
            "RAM the kernel manages."
            "Less than the machine has: firmware and the kernel's own image are left out.";
        "MemFree" "kB" ""
            "RAM that nobody uses at all."
            "Small on a healthy machine, since the page cache fills the rest: MemAvailable is what programs can have.";
        "MemAvailable" "kB" "3.14"
            "An estimate of what programs can still take without swapping."
            "An estimate: free memory, and the page cache and slab that can be dropped, less a reserve.";
        "Buffers" "kB" ""
            "Page cache of block devices."
            "Metadata of filesystems and raw disk reads; not network or socket buffers.";
        "Cached" "kB" ""
            "Page cache of files, tmpfs included."
            "tmpfs and shared anonymous memory are in it (see Shmem) and cannot be dropped; SwapCached and Buffers are not.";
        "SwapCached" "kB" ""
            "Memory that is in RAM and still has its copy in swap."
            "Not swap in use: it can leave RAM again without another write.";
        "Active" "kB" ""
            "Anonymous and file pages that reclaim takes late."
            "";
        "Inactive" "kB" ""
            "Anonymous and file pages that reclaim looks at first."
            "Not idle: they may have been used a moment ago.";
        "Active(anon)" "kB" "2.6.28"
            "Anonymous and tmpfs pages on the active list."
            "On kernels with the multi-generational LRU the lists are made up from generations.";
        "Inactive(anon)" "kB" "2.6.28"
            "Anonymous and tmpfs pages on the inactive list."
            "Without swap they cannot be reclaimed.";
        "Active(file)" "kB" "2.6.28"
            "File pages on the active list."
            "";
        "Inactive(file)" "kB" "2.6.28"
            "File pages on the inactive list."
            "";
        "Unevictable" "kB" "2.6.28"
            "Pages that cannot be reclaimed: mlock, ramfs, secret memory and others."
            "More than Mlocked.";
        "Mlocked" "kB" "2.6.28"
            "Pages locked by mlock."
            "Resident pages of the whole machine, while VmLck is one process's address space.";
        "HighTotal" "kB" ""
            "RAM that the kernel does not map all the time (32-bit only)."
            "";
        "HighFree" "kB" ""
            "Free part of HighTotal."
            "";
        "LowTotal" "kB" ""
            "RAM that the kernel maps all the time (32-bit only)."
            "";
        "LowFree" "kB" ""
            "Free part of LowTotal."
            "";
        "MmapCopy" "kB" "2.6.29"
            "Memory given out by mmap on machines without an MMU."
            "";
        "SwapTotal" "kB" ""
            "Swap space."
            "";
        "SwapFree" "kB" ""
            "Swap space that is not in use."
            "Its use says that memory was short once, not that it is now.";
        "Zswap" "kB" "5.19"
            "RAM that compressed swap pages take."
            "Compressed size.";
        "Zswapped" "kB" "5.19"
            "What the pages held by zswap would take uncompressed."
            "Also counted as used swap.";
        "Dirty" "kB" ""
            "Page cache that waits to be written to disk."
            "Not the dirty of smaps, which counts anonymous memory.";
        "Writeback" "kB" ""
            "Page cache that is being written to disk now."
            "";
        "AnonPages" "kB" "2.6.18"
            "Anonymous pages that page tables map."
            "Of the whole machine, each once; tmpfs is not in it.";
        "Mapped" "kB" ""
            "Page cache that page tables map, tmpfs included."
            "Each page once, however many processes map it.";
        "Shmem" "kB" "2.6.32"
            "tmpfs and shared anonymous memory, mapped or not."
            "Counted in Cached too, though it cannot be dropped.";
        "KReclaimable" "kB" "4.20"
            "Kernel memory that reclaim can ask back: SReclaimable and some more."
            "";
        "Slab" "kB" ""
            "Kernel objects: SReclaimable + SUnreclaim."
            "Large kmalloc and vmalloc memory is elsewhere.";
        "SReclaimable" "kB" "2.6.19"
            "Slab that shrinkers can free, as dentries and inodes."
            "Can, not will: one object in use keeps its whole page.";
        "SUnreclaim" "kB" "2.6.19"
            "Slab that cannot be freed by reclaim."
            "";
        "KernelStack" "kB" "2.6.32"
            "Kernel stacks of all threads."
            "";
        "ShadowCallStack" "kB" "5.8"
            "Shadow call stacks of all threads (arm64, RISC-V)."
            "";
        "PageTables" "kB" "2.6.18"
            "Page tables of user space."
            "Page tables of the kernel are not in it.";
        "SecPageTables" "kB" "6.1"
            "Page tables for others than the CPU's user space: KVM guests, IOMMU."
            "";
        "Quicklists" "kB" "2.6.27"
            "Page-table pages kept for reuse."
            "Gone since 5.4.";
        "NFS_Unstable" "kB" "2.6.18"
            "0 since 5.8."
            "Once pages sent to an NFS server and not yet on its disk.";
        "Bounce" "kB" "2.6.18"
            "Bounce buffers of block devices."
            "0 on recent kernels, which use none.";
        "WritebackTmp" "kB" "2.6.26"
            "Copies that FUSE makes to write back."
            "FUSE of recent kernels makes none, so it stays 0.";
        "CommitLimit" "kB" "2.6.10"
            "How much may be promised to programs under strict overcommit."
            "Binds only where vm.overcommit_memory is 2.";
        "Committed_AS" "kB" ""
            "How much has been promised to programs."
            "Promised, not used; can exceed RAM and swap unless vm.overcommit_memory is 2.";
        "VmallocTotal" "kB" ""
            "Address space for vmalloc."
            "Address space of the kernel, not RAM.";
        "VmallocUsed" "kB" ""
            "Memory of vmalloc areas."
            "0 from 4.4 to 5.2, which did not count it.";
        "VmallocChunk" "kB" ""
            "0 since 4.4."
            "Once the largest free piece of vmalloc address space.";
        "Percpu" "kB" "4.19"
            "Memory of per-CPU variables."
            "Without its own bookkeeping.";
        "EarlyMemtestBad" "kB" "6.4"
            "RAM found bad by the memory test at boot."
            "Only shown where the test ran.";
        "HardwareCorrupted" "kB" "2.6.32"
            "RAM taken out of use after a hardware memory error."
            "";
        "AnonHugePages" "kB" "2.6.38"
            "Anonymous memory in transparent huge pages that huge (PMD) entries map."
            "Large folios of other sizes are not counted.";
        "ShmemHugePages" "kB" "4.8"
            "tmpfs memory in huge pages, mapped or not."
            "";
        "ShmemPmdMapped" "kB" "4.8"
            "tmpfs memory that huge (PMD) page-table entries map."
            "";
        "FileHugePages" "kB" "5.4"
            "Page cache of files in huge pages, mapped or not."
            "";
        "FilePmdMapped" "kB" "5.4"
            "Page cache of files that huge (PMD) page-table entries map."
            "";
        "CmaTotal" "kB" "3.19"
            "Memory set aside for the contiguous memory allocator."
            "Movable pages may use it meanwhile.";
        "CmaFree" "kB" "3.19"
            "Free part of CmaTotal."
            "";
        "Unaccepted" "kB" "6.5"
            "RAM that a confidential guest has not accepted from its host yet."
            "";
        "Balloon" "kB" "6.16"
            "RAM that balloon drivers gave back to the host."
            "";
        "HugePages_Total" "pages" ""
            "Pages in the huge TLB pool of the default size."
            "Of the default size only; taken from MemFree even while unused.";
        "HugePages_Free" "pages" ""
            "Pages of the pool that nobody has touched."
            "Some may be promised: see HugePages_Rsvd.";
        "HugePages_Rsvd" "pages" "2.6.17"
            "Pages of the pool that are promised to a mapping and not yet touched."
            "";
        "HugePages_Surp" "pages" "2.6.24"
            "Pages above the pool's size, taken on demand."
            "";
        "Hugepagesize" "kB" ""
            "The default size of huge TLB pages."
            "Not the size of transparent huge pages, though often equal.";
        "Hugetlb" "kB" "4.16"
            "RAM in huge TLB pools of all sizes, used or not."
            "";
        "DirectMap4k" "kB" "2.6.27"
            "RAM that the kernel maps with 4 KiB pages."
            "The kernel's own map of RAM: nothing to do with the page size of programs.";
        "DirectMap2M" "kB" "2.6.27"
            "RAM that the kernel maps with 2 MiB pages."
            "Not how many huge pages are in use.";
        "DirectMap4M" "kB" "2.6.27"
            "RAM that the kernel maps with 4 MiB pages (x86 without PAE)."
            "Not how many huge pages are in use.";
        "DirectMap1G" "kB" "2.6.27"
            "RAM that the kernel maps with 1 GiB pages."
            "Not how many huge pages are in use.";
    }
    "vmstat" {
        "thp_fault_alloc" "count" "2.6.39"
            "Huge pages given at a page fault."
            "";
        "thp_fault_fallback" "count" "2.6.39"
            "Faults that got base pages instead."
            "No huge page was free and none could be made in time.";
        "thp_fault_fallback_charge" "count" "5.8"
            "The same, for the cgroup's limit."
            "Also counted in thp_fault_fallback.";
        "thp_collapse_alloc" "count" "2.6.39"
            "Huge pages got to collapse base pages."
            "By khugepaged or MADV_COLLAPSE; the collapse may fail afterwards.";
        "thp_collapse_alloc_failed" "count" "2.6.39"
            "Collapses that got no huge page."
            "";
        "thp_file_alloc" "count" "4.8"
            "Huge pages given to tmpfs."
            "";
        "thp_file_fallback" "count" "5.8"
            "tmpfs faults that got base pages."
            "";
        "thp_file_mapped" "count" "4.8"
            "Times a file's huge page was mapped."
            "Each mapping counts, so it exceeds the pages.";
        "thp_split_page" "count" "4.5"
            "Huge pages split into base pages."
            "For reclaim, for migration, or since parts were unused.";
        "thp_split_page_failed" "count" "4.5"
            "Splits that failed: page in use."
            "";
        "thp_deferred_split_page" "count" "4.5"
            "Pages queued to be split: partly freed."
            "Their memory comes back when it is short.";
        "thp_underused_split_page" "count" "6.12"
            "Pages split as mostly zero."
            "Only where khugepaged/max_ptes_none is below its maximum and shrink_underused is 1.";
        "thp_split_pmd" "count" "4.5"
            "Huge entries replaced by base ones."
            "The page itself can stay whole: mprotect of a part does it.";
        "thp_zero_page_alloc" "count" "3.8"
            "Times the huge zero page was made."
            "Reads of untouched memory share it.";
        "thp_swpout" "count" "4.14"
            "Huge pages swapped out whole."
            "";
        "thp_swpout_fallback" "count" "4.14"
            "Huge pages split to be swapped out."
            "Swap had no room in one piece, or cannot take them.";
        "thp_migration_success" "count" "5.9"
            "Huge pages migrated."
            "";
        "thp_migration_fail" "count" "5.9"
            "Huge pages that could not migrate."
            "";
        "thp_migration_split" "count" "5.9"
            "Huge pages split to migrate."
            "";
        "compact_stall" "count" "2.6.35"
            "Times an allocation waited to compact."
            "Each is latency in a program; kcompactd is not in it.";
        "compact_success" "count" "2.6.35"
            "Such waits that gave a page."
            "";
        "compact_fail" "count" "2.6.35"
            "Such waits in vain."
            "";
        "compact_migrate_scanned" "count" "3.8"
            "Pages looked at to be moved."
            "Work of compaction, in a program or in kcompactd.";
        "compact_free_scanned" "count" "3.8"
            "Pages looked at as a place to move to."
            "";
        "compact_isolated" "count" "3.8"
            "Pages taken out to be moved."
            "";
        "compact_daemon_wake" "count" "4.6"
            "Times kcompactd was woken."
            "";
        "allocstall" "count" ""
            "Times an allocation waited to reclaim."
            "Until 4.7; by zone since then.";
        "allocstall_dma" "count" "4.8"
            "Waits to reclaim, zone DMA."
            "Each is latency in a program; kswapd is not in it.";
        "allocstall_dma32" "count" "4.8"
            "Waits to reclaim, zone DMA32."
            "Each is latency in a program; kswapd is not in it.";
        "allocstall_normal" "count" "4.8"
            "Waits to reclaim, zone Normal."
            "Each is latency in a program; kswapd is not in it.";
        "allocstall_high" "count" "4.8"
            "Waits to reclaim, zone HighMem."
            "Each is latency in a program; kswapd is not in it.";
        "allocstall_movable" "count" "4.8"
            "Waits to reclaim, zone Movable."
            "Each is latency in a program; kswapd is not in it.";
        "pswpin" "count" ""
            "Pages read from swap."
            "";
        "pswpout" "count" ""
            "Pages written to swap."
            "";
    }
    "hugepages stats" {
        "nr_anon" "count" "6.12"
            "Anonymous pages of this size there are now."
            "";
        "nr_anon_partially_mapped" "count" "6.12"
            "Of these, partly unmapped ones."
            "Their unused parts come back when memory is short.";
        "anon_fault_alloc" "count" "6.10"
            "Pages of this size given at a fault."
            "";
        "anon_fault_fallback" "count" "6.10"
            "Faults that got a smaller size."
            "";
        "anon_fault_fallback_charge" "count" "6.10"
            "The same, for the cgroup's limit."
            "";
        "swpout" "count" "6.10"
            "Pages swapped out whole."
            "";
        "swpout_fallback" "count" "6.10"
            "Pages split to be swapped out."
            "";
        "swpin" "count" "6.13"
            "Pages swapped in whole."
            "";
        "swpin_fallback" "count" "6.14"
            "Swap-ins that used a smaller size."
            "";
        "zswpout" "count" "6.13"
            "Pages given to zswap whole."
            "";
        "shmem_alloc" "count" "6.11"
            "Pages of this size given to tmpfs."
            "";
        "shmem_fallback" "count" "6.11"
            "tmpfs faults that got a smaller size."
            "";
        "shmem_fallback_charge" "count" "6.11"
            "shmem_fallback for the cgroup's limit."
            "";
        "swpin_fallback_charge" "count" "6.14"
            "swpin_fallback for the cgroup's limit."
            "";
        "split" "count" "6.11"
            "Pages of this size split."
            "";
        "split_failed" "count" "6.11"
            "Splits that failed."
            "";
        "split_deferred" "count" "6.11"
            "Pages queued to be split."
            "";
    }
    "stat" {
        "wall" "s" ""
            "Time from the start of a run to its end."
            "It includes waiting.";
        "user" "s" ""
            "CPU time in user mode, of the command and the children it waited for."
            "";
        "sys" "s" ""
            "CPU time in the kernel, of the command and the children it waited for."
            "";
        "peak_res" "bytes" ""
            "The most that was resident at once in the largest process of a run (ru_maxrss)."
            "Not the sum of its processes; and never less than the process that started it had.";
        "minflt" "count" ""
            "Page faults that needed no I/O, of the command and the children it waited for."
            "Faults of exec itself are in it, and not in page_faults.";
        "majflt" "count" ""
            "Page faults that waited for I/O, of the command and the children it waited for."
            "";
        "inblock" "count" ""
            "Blocks of 512 bytes that were read from disk for it."
            "";
        "oublock" "count" ""
            "Blocks of 512 bytes that it made dirty in files on disk."
            "Counted when the page gets dirty, written or not.";
        "nvcsw" "count" ""
            "Times that it waited: voluntary context switches."
            "";
        "nivcsw" "count" ""
            "Times that it was preempted: involuntary context switches."
            "";
        "peak_pss" "bytes" ""
            "The most PSS of the command and its descendants together that a sample saw."
            "What lies between two samples is not seen.";
        "peak_pss_anon" "bytes" ""
            "The part of peak_pss that is anonymous memory."
            "";
        "peak_pss_file" "bytes" ""
            "The part of peak_pss that is pages of files."
            "";
        "peak_pss_shmem" "bytes" ""
            "The part of peak_pss that is shared memory and tmpfs."
            "";
        "peak_private_anon" "bytes" ""
            "Resident private anonymous pages of its largest process near the peak."
            "Of one process; peak_pss is of all.";
        "peak_private_file" "bytes" ""
            "Resident private pages of files of its largest process near the peak."
            "Of one process; peak_pss is of all.";
        "peak_shared_anon" "bytes" ""
            "Resident shared anonymous pages of its largest process near the peak."
            "Of one process; peak_pss is of all.";
        "peak_shared_file" "bytes" ""
            "Resident shared pages of files of its largest process near the peak."
            "Of one process; peak_pss is of all.";
        "cpus_used" "ratio" ""
            "CPU time over wall time: how many CPUs it kept busy."
            "";
        "faults_per_mib" "per MiB" ""
            "Page faults over peak_res: 256 where each page of 4 KiB is touched once."
            "Far below that, huge pages or fault-around are in play; far above, memory is given back and taken again.";
        "faults_per_s" "per s" ""
            "Page faults a second of wall time."
            "";
        "shootdowns_per_s" "per s" ""
            "TLB shootdowns that the command caused, a second of wall time."
            "";
        "tlb_shootdowns_per_s" "per s" ""
            "Interrupts that CPUs got to flush their TLBs, a second of wall time."
            "Of the whole machine.";
        "ipc" "ratio" ""
            "Instructions a cycle."
            "";
        "l1d_read_miss_rate" "ratio" ""
            "l1d_read_misses over l1d_reads."
            "On Intel prefetched lines count as misses.";
        "l1d_write_miss_rate" "ratio" ""
            "l1d_write_misses over l1d_writes."
            "";
        "dtlb_read_miss_rate" "ratio" ""
            "dtlb_read_misses over dtlb_reads."
            "";
        "dtlb_write_miss_rate" "ratio" ""
            "dtlb_write_misses over dtlb_writes."
            "";
        "llc_read_miss_rate" "ratio" ""
            "llc_read_misses over llc_reads."
            "";
        "task_clock" "s" ""
            "CPU time of all threads, by the scheduler's clock."
            "";
        "page_faults" "count" ""
            "Page faults of all kinds."
            "";
        "minor_faults" "count" ""
            "Page faults that needed no I/O."
            "";
        "major_faults" "count" ""
            "Page faults that waited for I/O."
            "";
        "context_switches" "count" ""
            "Times a thread left its CPU."
            "";
        "cpu_migrations" "count" ""
            "Times a thread went on on another CPU."
            "";
        "alignment_faults" "count" ""
            "Unaligned accesses that the kernel mended: none on x86."
            "";
        "emulation_faults" "count" ""
            "Instructions that the kernel carried out in the CPU's place."
            "";
        "cycles" "count" ""
            "CPU cycles, while not halted."
            "";
        "instructions" "count" ""
            "Instructions that were completed."
            "";
        "l1d_reads" "count" ""
            "Loads that asked the level 1 data cache."
            "";
        "l1d_read_misses" "count" ""
            "Loads that missed it: Intel counts every line that is filled, for prefetches too."
            "";
        "l1d_writes" "count" ""
            "Stores that asked the level 1 data cache."
            "";
        "l1d_write_misses" "count" ""
            "Stores that missed it: few CPUs count them."
            "";
        "l1d_prefetches" "count" ""
            "Prefetches into the level 1 data cache: few CPUs count them."
            "";
        "l1d_prefetch_misses" "count" ""
            "Prefetches that were not there yet: few CPUs count them."
            "";
        "dtlb_reads" "count" ""
            "Loads that asked the data TLB."
            "";
        "dtlb_read_misses" "count" ""
            "Loads that missed the data TLB: Intel counts those that missed its second level too, and so walked."
            "";
        "dtlb_writes" "count" ""
            "Stores that asked the data TLB."
            "";
        "dtlb_write_misses" "count" ""
            "Stores that missed the data TLB, as loads do."
            "";
        "page_walks_read" "count" ""
            "Page walks that loads made necessary and that found a page."
            "";
        "page_walks_write" "count" ""
            "Page walks that stores made necessary and that found a page."
            "";
        "llc_reads" "count" ""
            "Loads that asked the last-level cache."
            "";
        "llc_read_misses" "count" ""
            "Loads that it did not have."
            "";
        "page_fault_user" "count" ""
            "Page faults of code in user mode."
            "";
        "page_fault_kernel" "count" ""
            "Page faults of system calls, as of read() into fresh memory."
            "";
        "tlb_flush_task_switch" "count" ""
            "TLB flushes since another address space came onto the CPU."
            "";
        "tlb_flush_remote_received" "count" ""
            "TLB flushes that another CPU asked this one for."
            "Counted for whatever ran here then: the flush may have been for another process.";
        "tlb_flush_local" "count" ""
            "TLB flushes of a range, on the CPU that changed it."
            "";
        "tlb_flush_local_mm" "count" ""
            "TLB flushes of the address space, on the CPU that changed it."
            "";
        "tlb_flush_remote_sent" "count" ""
            "TLB shootdowns caused: it made other CPUs flush, and waited."
            "";
        "tlb_flush_wrong_cpu" "count" "6.15"
            "TLB flushes asked of a CPU that the process had left already."
            "";
        "mm_page_alloc" "count" ""
            "Blocks of pages that the kernel allocated for it."
            "";
        "mm_compaction_begin" "count" ""
            "Times that it had to compact memory itself."
            "";
        "mm_direct_reclaim_begin" "count" ""
            "Times that it had to reclaim memory itself to get some."
            "";
        "tlb_shootdowns" "count" ""
            "Interrupts that CPUs got to flush their TLBs: the TLB row of /proc/interrupts."
            "Of the whole machine; one shootdown interrupts every CPU that the process runs on.";
        "median" "value" ""
            "The middle value of all runs."
            "";
        "mad" "value" ""
            "The median distance to the median."
            "Unscaled: 0.67 standard deviations where values are normal.";
        "sd" "value" ""
            "The standard deviation, with n - 1 below."
            "One disturbed run moves it much.";
        "mean" "value" ""
            "The sum over the number of runs."
            "One disturbed run moves it; the median stays.";
        "ratio" "ratio" ""
            "The median of A over that of B."
            "";
        "verdict" "text" ""
            "What the 95 % interval of the ratio says of A."
            "Cannot tell is not the same as equal.";
        "scope" "text" ""
            "Whose events are counted: process, process:user (user mode only), or machine."
            "";
        "origin" "text" ""
            "Who counts: the kernel (software), a tracepoint, or the CPU (hardware)."
            "";
        "usual" "flag" ""
            "Whether stat counts it unless told otherwise."
            "";
    }
    "sim" {
        "accesses" "count" ""
            "Accesses to memory that a simulator was fed with: loads, stores, and instructions that do both, which count as a read."
            "Instruction fetches are not among them.";
        "reads" "count" ""
            "Simulated accesses that read."
            "One that reads and then writes the same bytes is a read.";
        "writes" "count" ""
            "Simulated accesses that write without reading."
            "";
        "l1d_misses" "count" ""
            "Simulated accesses with a line that the first level of cache did not hold."
            "One that lies in two lines counts once, as in cachegrind; counters of CPUs count lines that were filled, prefetched ones too.";
        "l1d_misses_by_reads" "count" ""
            "Those of them that read."
            "";
        "l1d_misses_by_writes" "count" ""
            "Those of them that write."
            "Writes allocate a line as reads do.";
        "l1d_miss_rate" "share" ""
            "Simulated misses of the first level of cache by accesses."
            "";
        "l2_misses" "count" ""
            "Simulated lines that neither level of cache held."
            "No prefetcher brings lines here, as those of CPUs do.";
        "l2_miss_rate" "share" ""
            "Simulated misses of the second level by all accesses, not by what the first level missed."
            "";
        "dtlb_misses" "count" ""
            "Simulated accesses with a page that the first level of TLB did not hold."
            "Not page walks: most are found in the second level. Events of CPUs called dTLB misses are often walks.";
        "dtlb_miss_rate" "share" ""
            "Simulated misses of the first level of TLB by accesses."
            "";
        "stlb_misses" "count" ""
            "Simulated page walks: pages that no level of TLB held."
            "All memory is taken to be in pages of one size.";
        "stlb_misses_by_reads" "count" ""
            "Page walks for accesses that read."
            "In the program's order; a CPU may let a load overtake a store.";
        "stlb_misses_by_writes" "count" ""
            "Page walks for accesses that write."
            "In the program's order; a CPU may let a load overtake a store.";
        "stlb_miss_rate" "share" ""
            "Simulated page walks by accesses."
            "";
        "dtlb_entries" "count" ""
            "How many pages the first level of TLB for data holds."
            "A hypervisor may have cpuid say what is not so.";
        "dtlb_ways" "count" ""
            "How many pages of a set it holds."
            "";
        "stlb_entries" "count" ""
            "How many pages the second level of TLB holds, if all were of this size."
            "It is shared with instructions, and often with other sizes.";
        "stlb_ways" "count" ""
            "How many pages of a set it holds."
            "";
        "prefetched" "count" ""
            "Pages that the page walker's prefetcher put in before they were asked for."
            "An assumption: makers of CPUs say little of it.";
        "policy" "text" ""
            "How what is replaced is chosen."
            "CPUs have policies of their own, near tree-PLRU.";
        "refaults" "count" ""
            "Simulated faults on pages that were reclaimed before: major faults."
            "The first use of a page is none of them.";
        "refaults_by_reads" "count" ""
            "Those of them that read."
            "";
        "refaults_by_writes" "count" ""
            "Those of them that write."
            "";
        "times_lru" "ratio" ""
            "Refaults by those of LRU."
            "LRU is not the least that can be: a loop larger than memory is its worst case.";
        "written_back" "count" ""
            "Reclaimed pages that had to be written first, since they were changed."
            "";
        "unknown_lines" "count" ""
            "Lines of a trace that are no access, no instruction and no words of valgrind's."
            "";
        "cut_off" "flag" ""
            "Whether there were more accesses than were taken."
            "";
    }
    "lab" {
        "verdict" "text" ""
            "What the runs on this machine say of a claim: agrees, cannot tell or disagrees."
            "Of an experiment it is the worst of its claims; skipped where it was not run.";
        "agrees" "flag" ""
            "Whether a claim holds here; null where that cannot be told."
            "";
        "claims" "text" ""
            "How many claims of an experiment hold here."
            "What does not hold on one machine may hold on another: each says why it need not.";
        "noise" "share" ""
            "The most by which two series of one condition differ here, run by turns: the end of a 95 % interval."
            "Nothing is called more or less below it.";
        "took_ns" "ns" ""
            "How long an experiment took, with all its runs."
            "";
        "first_touch_ns" "ns" ""
            "Time for the first touch of a page, by a process that is the first to have it."
            "Many times second_touch_ns where a host takes back memory that its guest does not use.";
        "second_touch_ns" "ns" ""
            "Time for the first touch of a page, of memory that another process had just before."
            "";
    }
    "guard" {
        "bugs" "count" ""
            "Mistakes that were found, each once for each call stack of the access and the allocation."
            "Of those with objects that were not guarded nothing is known.";
        "bugs_dropped" "count" ""
            "Mistakes that were counted and not kept: the first 1,000 are."
            "";
        "rate" "number" ""
            "One allocation of so many is guarded, in the mean; each has the same chance."
            "";
        "guarded" "count" ""
            "Objects that were guarded, by processes that ended in order."
            "";
        "left_out" "count" ""
            "Objects that were to be guarded and were not, for want of room."
            "--most says how much memory they may take.";
        "most_bytes" "bytes" ""
            "The most bytes of memory in guarded objects at a time, of one process."
            "An object takes whole pages. Slots of freed objects take some 100 bytes each beside it.";
        "means" "word" ""
            "How pages are made inaccessible: by moving those of small objects on to the next (UFFDIO_MOVE), by marks in the page tables (MADV_GUARD_INSTALL), or by mappings (mprotect)."
            "Of mappings a process may have only so many (vm.max_map_count).";
        "processes" "count" ""
            "Processes that were guarded: the command, its children, and each program that one of them became."
            "";
        "told" "count" ""
            "Those that ended in order, and so told how much they guarded."
            "One that is killed, or calls _exit, does not.";
        "kind" "word" ""
            "What is wrong: overflow, underflow, use-after-free, double-free, invalid-free, mismatch, wild; segv and bus: an access to other memory ended the program."
            "Which object was meant is the nearest one, which need not be the one that the program had in mind.";
        "access" "word" ""
            "What was done: read, write, execute, free; or that it was found to have been written before the free or the end."
            "";
        "address" "address" ""
            "The first byte that must not be touched."
            "Of an access that begins inside the object that is its end.";
        "distance" "bytes" ""
            "How far outside of the object that byte is: from its end, or from its beginning."
            "";
        "object" "address" ""
            "The object's first byte."
            "";
        "size" "bytes" ""
            "The object's size, as the program asked for it."
            "";
        "tid" "number" ""
            "The thread that made the mistake, or in which it was found."
            "";
        "goes_on" "flag" ""
            "Whether the program went on behind the mistake."
            "";
        "stack" "list" ""
            "Where the mistake was made, or found: the innermost call first."
            "";
        "made_by" "word" ""
            "Of a mismatch, how the object was allocated: malloc, new, new[]."
            "malloc stands for its whole family.";
        "freed_as" "word" ""
            "Of a mismatch, how it was freed, by what would go together: malloc is free, new is delete, new[] is delete[]."
            "";
        "freed_size" "bytes" ""
            "Of a mismatch, of how many bytes it is, as delete was told."
            "Without -fsized-deallocation delete is not told.";
        "allocated_by" "number" ""
            "The thread that allocated the object."
            "";
        "allocation_stack" "list" ""
            "Where it was allocated."
            "";
        "freed_by" "number" ""
            "The thread that freed it before."
            "";
        "free_stack" "list" ""
            "Where it was freed before."
            "";
    }
    "watch" {
        "block_offset" "count" ""
            "Where in a block of the heap the bytes were when it began, in bytes from its start."
            "Known where a recorder is in the process: pagewise heap run.";
        "block_size" "bytes" ""
            "The size of that block, as asked for."
            "Of large blocks it is not known from outside: see block_room.";
        "block_room" "bytes" ""
            "What the allocator gave for that block."
            "";
        "allocated_by" "text" ""
            "Who asked for that block, and the line."
            "";
        "block_frames" "text" ""
            "Who asked for that block, then its callers."
            "";
        "time" "s" ""
            "When the kernel noted the access, from the start of the watching."
            "Some microseconds after it.";
        "tid" "number" ""
            "The thread that made the access."
            "";
        "old" "value" ""
            "What the bytes held before the access, as a number, or in hexadecimal digits where there are more than 8."
            "What the last access left, unless something else was found in memory meanwhile.";
        "value" "value" ""
            "What the bytes held after the access, as a number, or in hexadecimal digits where there are more than 8."
            "Numbers have no sign. `known` says how it is known.";
        "known" "text" ""
            "How the value is known: stored by the instruction, computed from what was there, copied by the kernel with the access, read from memory before the next access, unchanged by an access that reads, or not at all (no)."
            "What is read may have been changed by another process or a device since; what is stored may not.";
        "access" "text" ""
            "What was done: write, read, or read or write where the instruction is not known."
            "The CPU watches writes, or reads and writes; never reads alone.";
        "place" "text" ""
            "Where the access was made: the system call or the function of a library, by the function and line of the program that made it."
            "Code without debugging information has no lines, stripped code no functions.";
        "instruction" "text" ""
            "The instruction that made the access, as objdump writes it."
            "Nothing where no symbol says where its function begins, and in the kernel.";
        "call" "text" ""
            "The system call in which the kernel made the access for the program."
            "Nothing for other work of the kernel: a signal's frame, a robust lock.";
        "kernel" "text" ""
            "The function of the kernel that made the access."
            "? where kernel.kptr_restrict hides the addresses.";
        "thread" "text" ""
            "The thread that made the access: its name, for people behind its number."
            "Names were chosen by others: not to be trusted.";
        "stack" "number" ""
            "Which call stack."
            "";
        "count" "count" ""
            "How many accesses."
            "A copy by the kernel is one; one by rep movs or rep stos in the program is told at each step that touches the bytes.";
        "passed_over" "count" ""
            "Accesses for which the condition did not hold, or whose values are not known."
            "";
        "dropped" "count" ""
            "Accesses that were counted and not kept: as many are as fit into the memory limit, 65,536 in 256 MiB."
            "";
        "other_stacks" "count" ""
            "Accesses whose call stack is not kept apart, since no more call stacks fit into the memory limit."
            "They are listed, with `[other call stacks]` for theirs.";
        "memory_limit" "bytes" ""
            "The most memory that the recorder may take: the accesses, their call stacks, and the kernel's rings."
            "";
        "in_copies" "count" ""
            "Accesses of child processes to their own copies of the memory, which change nothing here."
            "";
        "unseen" "count" ""
            "How often something else was found in memory than the last access had left: another process, a debugger or a device wrote it."
            "Two changes between two looks are one; without privileges the kernel's own writes are among them.";
        "lost" "count" ""
            "Accesses, and other records, that did not fit into the kernel's buffers."
            "";
    }
    "pagewise" {
        "VIRT" "bytes" ""
            "Address space: the sum of all mappings (statm size)."
            "Not memory: most of it may never be touched.";
        "RES" "bytes" ""
            "Resident memory: anonymous, file and tmpfs pages (statm resident)."
            "Shared pages count in full in each process; huge TLB memory is left out.";
        "SHR" "bytes" ""
            "Resident file and tmpfs pages (statm shared)."
            "Neither what is shared nor what could be: a private library nobody else maps is in it, memory shared after fork is not.";
        "DATA" "bytes" ""
            "Address space of private writable mappings and stacks (statm data)."
            "Reserved, not resident: a sanitizer's shadow makes it terabytes.";
        "CODE" "bytes" ""
            "Address space of the program's text (statm text)."
            "Not resident, and without libraries.";
        "SWAP" "bytes" ""
            "Memory in swap: the sum of smaps' Swap over the mappings, shared memory (tmpfs) included."
            "Old tools printed VIRT - RES under this name, which means nothing.";
        "SWAP (private)" "bytes" ""
            "Private anonymous memory in swap (VmSwap)."
            "Swapped shared memory (tmpfs) is left out; SWAP has it.";
        "%MEM" "%" ""
            "RES as a share of MemTotal."
            "Adds up to more than 100 % over processes, since shared pages count in each.";
        "PSS" "bytes" ""
            "Proportional set size: each resident page divided by how often it is mapped."
            "The only one of these that adds up over processes, and for that it changes when others start or end.";
        "USS" "bytes" ""
            "Unique set size: resident pages that only this process maps."
            "What its end would free at once, but for file pages, which stay in the page cache.";
        "RSS" "bytes" ""
            "Resident set size, from smaps or the page table: exact where RES may be off by some pages."
            "Shared pages count in full in each process.";
        "peak RES" "bytes" ""
            "The highest RES so far (VmHWM)."
            "Starts at what was inherited by fork; the moments of the peaks of two processes differ.";
        "locked" "bytes" ""
            "Size of the mappings that mlock holds (VmLck)."
            "Their whole size, resident or not.";
        "page tables" "bytes" ""
            "Memory of the process's page tables (VmPTE)."
            "Not in RES; grows with the touched address space, not with what is resident now.";
        "size" "bytes" ""
            "Address space of a mapping."
            "Reserved, not resident.";
        "reserved" "bytes" ""
            "Address space, touched or not."
            "Costs nothing but page tables until it is touched, and commit charge where it may be written.";
        "resident" "bytes" ""
            "In RAM and mapped by this process."
            "A page that is in the page cache but not mapped here is not resident in this sense.";
        "swapped" "bytes" ""
            "In swap."
            "Non-zero says that memory was short once, not that it is now.";
        "dirty" "bytes" ""
            "Must be written somewhere before it can be dropped: Shared_Dirty + Private_Dirty."
            "To the file for a shared file mapping, to swap for the rest: not only what waits for the disk.";
        "huge" "bytes" ""
            "Anonymous memory that huge (PMD) page-table entries map (AnonHugePages)."
            "Large folios of other sizes are not counted.";
        "anon_huge" "bytes" ""
            "Anonymous memory that huge (PMD) page-table entries map (AnonHugePages)."
            "Large folios of other sizes are not counted.";
        "mapped" "text" ""
            "Whether one page-table entry maps a large folio, or one a base page."
            "Only one entry saves TLB misses for certain; some processors join base entries of a folio.";
        "bloat" "bytes" ""
            "Base pages inside anonymous huge pages that are zero in every byte: resident, and of no use."
            "A page that was used and cleared looks the same; so does one that is about to be used.";
        "file" "bytes" ""
            "Memory of files and tmpfs that huge page-table entries map."
            "Its zeros are the file's and are not called bloat.";
        "eligible" "bytes" ""
            "Resident in base pages of mappings that the kernel may give huge pages (THPeligible)."
            "It may also take huge pages of other sizes than the PMD's; whether it does depends on free memory.";
        "verdict" "text" ""
            "How huge pages are used: touched sparsely where half or more is zero, well used up to a tenth."
            "Of what was zero at that moment. In `doctor` it is how a setting suits the profile: ok, note, warn, or unknown where it could not be read.";
        "anonymous" "bytes" ""
            "Resident anonymous pages: heap, stack, written private file pages."
            "The zero page is not among them.";
        "shmem" "bytes" ""
            "Resident pages of tmpfs: shared anonymous memory, memfd, System V, /dev/shm."
            "The kernel counts them as file pages.";
        "zero" "bytes" ""
            "Mapped to the kernel's zero page: read and never written."
            "Not resident: RES does not count it.";
        "guard" "bytes" ""
            "Guard regions (MADV_GUARD_INSTALL): touching one is SIGSEGV."
            "Stored as swap entries; Swap does not count them.";
        "untouched" "bytes" ""
            "Nothing is mapped there: never touched, or given back."
            "It may be in the page cache all the same, where it is of a file.";
        "soft_dirty" "flag" ""
            "Written since soft-dirty bits were cleared, or since it was mapped."
            "Only where the kernel tracks it (CONFIG_MEM_SOFT_DIRTY).";
        "co_mapped" "bytes" ""
            "Resident pages that other page tables map as well."
            "Not what is declared shared: memory after fork is, until it is written.";
        "exclusive" "flag" ""
            "No other page table maps the page."
            "Of a huge page the kernel says the same of all of it.";
        "mappers" "count" ""
            "By how many page tables the page is mapped."
            "One process can map a page twice.";
        "ksm" "flag" ""
            "Merged with equal pages by KSM."
            "It is copied again when it is written.";
        "large_folios" "bytes" ""
            "Resident in folios of more than one base page, however they are mapped."
            "Of files too: the page cache has them as well.";
        "folio_pages" "count" ""
            "How many base pages the page's folio has."
            "A folio need not be mapped as a whole.";
        "state" "text" ""
            "What a page is: untouched, anonymous, file, shmem, zero, swapped, guard."
            "At the moment it was looked at.";
        "strip" "picture" ""
            "A mapping's pages in one line, each character an equal part."
            "Small parts vanish in a large mapping.";
        "touched" "bytes" ""
            "Referenced since the bits were cleared: a page counts whole however little of it was used."
            "By anyone who maps the page, and by the kernel on the process's behalf.";
        "written" "bytes" ""
            "Written in the interval."
            "Needs soft-dirty tracking, or write-protection set up by the process itself.";
        "private_anonymous" "bytes" ""
            "Stack, malloc, MAP_PRIVATE|MAP_ANONYMOUS."
            "A page that fork left shared counts as shared anonymous in the effective view until it is written.";
        "shared_anonymous" "bytes" ""
            "MAP_SHARED|MAP_ANONYMOUS, System V, memfd, /dev/shm, tmpfs."
            "The kernel counts it as file pages, so it is in SHR.";
        "private_file" "bytes" ""
            "MAP_PRIVATE of a file: programs and libraries."
            "Once written, a page is copied and private anonymous; pages that others map too are shared in effect.";
        "shared_file" "bytes" ""
            "MAP_SHARED of a file."
            "Dirty pages go to the file, not to swap.";
        "declared" "bytes" ""
            "The quadrant by what was asked of mmap."
            "Pages can differ: see effective.";
        "effective" "bytes" ""
            "The quadrant by what each page is: anonymous or not, mapped once or more."
            "Untouched address space keeps its declared quadrant, so both views add up to VIRT.";
        "r" "letter" ""
            "The mapping may be read."
            "";
        "w" "letter" ""
            "The mapping may be written."
            "In a private file mapping writes stay in the process.";
        "x" "letter" ""
            "The mapping may be executed."
            "";
        "s" "letter" ""
            "MAP_SHARED: writes reach whoever maps the same object."
            "Not that anybody else does.";
        "p" "letter" ""
            "MAP_PRIVATE: writes stay in this process."
            "Its pages can be physically shared all the same: library text, memory after fork.";
        "R" "letter" ""
            "No swap is reserved for the mapping (MAP_NORESERVE)."
            "Touching it when memory is short may kill the process instead of failing an allocation.";
        "?" "letter" ""
            "Whether swap is reserved is unknown: smaps was not read."
            "`--full` tells.";
        "start" "address" ""
            "The first address of a mapping."
            "Moves from run to run where addresses are randomised.";
        "end" "address" ""
            "One past the last address of a mapping."
            "";
        "device" "hex" ""
            "Major and minor number of the device the mapped file is on."
            "btrfs and overlayfs can show another device here than stat does.";
        "name" "text" ""
            "The mapped file, or the name the kernel or the program gave; of a process its 15 bytes of comm."
            "Chosen by others: not to be trusted, and escaped wherever it is shown.";
        "use" "text" ""
            "A mapping's name, or in brackets what nameless memory is used for."
            "What is in brackets is found out by pagewise, unless it is one of the kernel's: [heap], [stack], [vdso].";
        "pid" "number" ""
            "The process id."
            "In the pid namespace of the /proc that was read.";
        "user" "text" ""
            "The real user's name, or number where the name is not known."
            "Permissions follow the effective user.";
        "command" "text" ""
            "The command line."
            "The process may have overwritten it; in brackets it is the name instead.";
        "change" "bytes" ""
            "What is there after, less what was there before."
            "Pages can come and go between: a change of 0 does not mean that nothing happened. In `doctor` it is the command that sets what is advised.";
        "mode" "letters" ""
            "r w x, then s or p, then R."
            "";
        "pool" "text" ""
            "What a mapping is used for: program text, a library, malloc, a stack."
            "Told by ELF headers, stack pointers and malloc's marks; what nothing tells apart is called anonymous.";
        "quadrant" "text" ""
            "Private or shared, anonymous or file."
            "Of the mapping: its pages can differ.";
        "node" "number" ""
            "A NUMA node."
            "";
        "zone" "text" ""
            "A part of a node's memory: DMA and DMA32 for devices that reach no further, Normal, Movable."
            "";
        "zones" "list" ""
            "The zones of a node."
            "";
        "free" "bytes" ""
            "Memory in free blocks."
            "Pages that wait on the lists of a CPU are not in it; page cache that could be dropped neither.";
        "order" "number" ""
            "A block of order k is 2^k base pages."
            "";
        "block" "bytes" ""
            "The size of one block."
            "";
        "pool_live" "bytes" ""
            "What a pool of pagewise's allocators handed out and did not get back."
            "Pools tell of it in slow paths: it may be off by what a block of theirs holds, and what aligns or rounds counts.";
        "pool_peak" "bytes" ""
            "The most that was out of a pool at once."
            "Seen where pools tell of their progress: what came and went in between is not in it.";
        "pool_held" "bytes" ""
            "What a pool has of its source: the system, another pool, a buffer."
            "Address space: pages that were never touched are not resident.";
        "pool_peak_held" "bytes" ""
            "The most that a pool had of its source."
            "";
        "pool_use" "share" ""
            "Which share of what is held is out."
            "";
        "requests" "count" ""
            "How often memory was asked for."
            "Up to the last slow path. Stack and ring do not count each request: theirs is what was asked for, divided by the sizes met at the ends of blocks.";
        "mean_size" "bytes" ""
            "What was asked for, by requests."
            "";
        "blocks_taken" "count" ""
            "Blocks that a pool ever took of its source: system calls, where that is the system."
            "";
        "blocks_returned" "count" ""
            "Blocks that a pool gave back to its source."
            "";
        "slow_paths" "count" ""
            "How often a pool had to do more than a few instructions."
            "";
        "size_classes" "list" ""
            "Requests by size, each class up to a power of two."
            "Estimated: the size of one request stands for those around it.";
        "series" "list" ""
            "How a pool went from its beginning: requests, what was out, what was held. At most 65 points, the last now."
            "";
        "blocks" "count" ""
            "Free blocks of exactly that order."
            "";
        "free_by_order" "list" ""
            "Free blocks of each order, from order 0; a block counts in its own order only."
            "The kernel's lists, without pages that wait on the lists of a CPU.";
        "allocatable" "bytes" ""
            "What can be had in blocks of that order without compaction: free memory in blocks at least as large."
            "The kernel keeps some of it back (watermarks, reserves), and compaction can make more.";
        "allocatable_huge" "bytes" ""
            "What can be had in huge pages without compaction: free memory in blocks at least as large."
            "The kernel keeps some of it back (watermarks, reserves), and compaction can make more.";
        "unusable_index" "share" ""
            "The share of free memory in blocks that are too small for the request: 1 - allocatable / free."
            "";
        "fragmentation_index" "share" ""
            "Why a request would fail: towards 0 for lack of memory, towards 1 since free memory lies in small blocks."
            "Nothing where it would not fail; 1 - (1 + free pages / requested pages) / free blocks.";
        "type" "text" ""
            "What may be put there: the migrate type."
            "The kernel takes from another type before it fails, which mixes them.";
        "pageblocks" "count" ""
            "Pieces of memory that have a migrate type, free or used."
            "Usually of the size of a huge page.";
        "at_least" "flag" ""
            "Whether a count is a lower bound: the kernel stops counting at 100,000 blocks."
            "";
        "id" "text" ""
            "A stable name."
            "";
        "label" "text" ""
            "What people call it."
            "";
        "value" "any" ""
            "What is set now: the text of the kernel's file, or a number."
            "";
        "why" "text" ""
            "What is wrong with the value, where something is, and why the setting matters."
            "";
        "undo" "text" ""
            "The command that restores what is set now."
            "";
        "page_size" "bytes" ""
            "The base page size of the machine."
            "";
        "huge_size" "bytes" ""
            "What one huge (PMD) page-table entry maps."
            "";
        "huge_order" "number" ""
            "A huge page is 2^order base pages."
            "";
        "share" "share" ""
            "What part of the whole it is."
            "";
        "count" "count" ""
            "How many since boot."
            "";
        "per_second" "rate" ""
            "How many a second, between two readings."
            "";
        "elapsed_ns" "ns" ""
            "The time since the first reading."
            "";
        "time" "s" ""
            "When a call was made, from the start of the recording."
            "As the recorder saw it: some microseconds late.";
        "tid" "number" ""
            "The thread id."
            "";
        "args" "text" ""
            "The arguments of a call as a C program would write them, with the file behind a descriptor."
            "Names in it were chosen by others: not to be trusted.";
        "outcome" "text" ""
            "What a call returned, or the name of its error."
            "brk never fails: it returns the break as it is, moved or not.";
        "result" "number" ""
            "What a call returned; nothing where it failed."
            "brk never fails: it returns the break as it is, moved or not.";
        "error" "text" ""
            "The name of the error of a call that failed."
            "A call that a signal interrupts (ERESTART) is made again and counts twice.";
        "errors" "count" ""
            "How many calls failed."
            "brk never does.";
        "bytes" "bytes" ""
            "The memory that calls name: the length that was asked for, or by how much the break moved."
            "Not what was mapped or freed: munmap takes a range with holes, mprotect changes no size.";
        "virt_change" "bytes" ""
            "By how much calls changed VIRT: whole pages, less what was mapped there before."
            "Reserved address space, not memory in use. Of a process it holds what others did that use the same memory (vfork).";
        "virt_otherwise" "bytes" ""
            "By how much VIRT changed without a call: the stack that grows as it is touched."
            "What the kernel says at the end, less what the calls add up to.";
        "virt_start" "bytes" ""
            "VIRT of a process when it came to be, or when the recording began."
            "0 of a command: it begins with its program. A fork begins with a copy of its maker's.";
        "virt_end" "bytes" ""
            "VIRT of a process just before it ended, or when the recording did."
            "";
        "phase" "text" ""
            "start-up from execve to the program's entry point (the dynamic linker at work), then program; exec is the kernel mapping it."
            "Constructors of libraries run before the entry point; libraries that dlopen loads come after it.";
        "stage" "text" ""
            "The phase in short: exec, start for the dynamic linker's start-up, nothing for the program."
            "";
        "caller" "text" ""
            "The file whose code made the call: the dynamic linker, the C library, the program."
            "The system call instruction's place: malloc is in the C library, whoever calls it.";
        "by" "path" ""
            "The file whose code made the call; nothing for code in no file."
            "The system call instruction's place: malloc is in the C library, whoever calls it.";
        "seconds" "s" ""
            "From the start of a call to its end, by the clock."
            "The cost of being stopped is in it: some microseconds a call.";
        "calls" "count" ""
            "How many memory calls."
            "";
        "parent" "number" ""
            "The process that made it."
            "";
        "program" "path" ""
            "The file of the program that a process ran last."
            "";
        "recorded" "flag" ""
            "Whether the calls of a process are recorded."
            "Those of 32-bit programs on a 64-bit kernel are not.";
        "ending" "text" ""
            "How a process ended."
            "";
        "meaning" "text" ""
            "What a counter counts."
            "";
        "flush_orders" "count" ""
            "Orders to other CPUs to flush their TLBs: tlb_flush events with the reason remote IPI send."
            "The kernel orders, and then may find that no CPU has to be interrupted.";
        "shootdowns" "count" ""
            "Orders to flush that interrupted at least one CPU."
            "";
        "ipis" "count" ""
            "CPUs that were interrupted to flush their TLBs: one order may interrupt many."
            "By csd_queue_cpu: a CPU that is being interrupted already needs no interrupt more.";
        "waited" "s" ""
            "How long those who ordered waited until the last CPU had flushed, added up over all threads."
            "Only where that was seen: a CPU that runs something else by then is not watched. What recording costs is in it.";
        "pages_per_order" "count" ""
            "Pages to flush of an order, on average."
            "Without orders for all pages: beyond 33 pages (tlb_single_page_flush_ceiling) the kernel flushes all.";
        "full_orders" "count" ""
            "Orders to flush all pages."
            "";
        "local_flushes" "count" ""
            "Flushes of the CPU's own TLB for its own process."
            "";
        "received" "count" ""
            "Flushes that another CPU asked for and that interrupted it: tlb_flush events with the reason remote shootdown."
            "";
        "foreign" "count" ""
            "Flushes received that none of those who are watched asked for: the kernel's own threads, or other processes."
            "";
        "flushes" "count" ""
            "All tlb_flush events."
            "One shootdown is several: the order, the flush here, and one on each CPU that is interrupted.";
        "unseen" "count" ""
            "Orders whose end was not seen, since a CPU ran something that is not watched."
            "";
        "sent" "count" ""
            "Interrupts sent to call a function on another CPU, by tracepoint."
            "For whatever function, not only flushes; one ipi_send_cpumask is for several CPUs.";
        "ipis_sent" "count" ""
            "CPUs that were interrupted from this one."
            "";
        "call_function_interrupts" "count" ""
            "Interrupts here to call a function, while one of those who are watched ran."
            "For whatever function, not only flushes.";
        "machine_shootdowns" "count" ""
            "Interrupts here to flush the TLB, whoever ran: the TLB row of /proc/interrupts."
            "Of the whole machine.";
        "shooting" "count" ""
            "Calls in which other CPUs were interrupted to flush."
            "";
        "shooting_ns" "ns" ""
            "How long a call takes that interrupts other CPUs, on average."
            "From its entry to its exit, with what recording costs.";
        "quiet_ns" "ns" ""
            "How long it takes otherwise, on average."
            "From its entry to its exit, with what recording costs.";
        "cause" "text" ""
            "What had TLBs flushed: a system call, or what the kernel does of itself."
            "By the kernel's functions on the stack; where none of them tells it is other.";
    }
    "faults" {
        "faults" "count" ""
            "How many page faults."
            "A page that is there already does not fault: how often memory is used says this nothing of.";
        "user_faults" "count" ""
            "Page faults of the program's own instructions (exceptions:page_fault_user)."
            "";
        "kernel_faults" "count" ""
            "Page faults of the kernel on memory of the program, in its system calls: read(2) into new memory."
            "Only those that ended: a try that may not wait is done again.";
        "faults_per_second" "rate" ""
            "Page faults by the time of the recording."
            "";
        "faults_major" "count" ""
            "Page faults that waited for I/O, or for another that did."
            "Those that waited for a lock are among them, as in majflt.";
        "fault_time" "s" ""
            "From where the kernel takes a fault up to where it has handled it, of all together."
            "The CPU's way into the kernel and back is not in it, and what writing the event down costs is: about a microsecond each.";
        "user_faults_counted" "count" ""
            "Page faults in user mode as the kernel counted them, recorded or not."
            "";
        "faults_below" "count" ""
            "Page faults in a function and in all that it calls."
            "A function that calls itself counts once.";
        "most_kind" "text" ""
            "The kind that most of the faults are of."
            "";
        "median_ns" "ns" ""
            "The time within which half of the faults were handled, to 1.6 %."
            "What writing the event down costs is in it.";
        "p90_ns" "ns" ""
            "The time within which nine in ten were handled, to 1.6 %."
            "";
        "p99_ns" "ns" ""
            "The time within which 99 in a hundred were handled, to 1.6 %."
            "";
        "p999_ns" "ns" ""
            "The time within which 999 in a thousand were handled, to 1.6 %."
            "";
        "longest_ns" "ns" ""
            "The longest of them."
            "";
        "function" "text" ""
            "The function that faulted."
            "As symbols and debugging information name it; what is inlined counts for itself.";
        "called" "text" ""
            "The function that faulted."
            "";
        "module" "path" ""
            "The file that the function is in."
            "";
        "line" "number" ""
            "The line of the source."
            "Optimised code mixes lines: the one before may be meant.";
        "place" "text" ""
            "The file of the source, and the line."
            "";
        "frames" "text" ""
            "The function that faulted, then those that called it."
            "Where neither frame pointers nor unwind tables lead on, callers are missing.";
        "span" "s" ""
            "The length of a span of the time line."
            "";
        "kind" "text" ""
            "What a fault was for."
            "";
        "anonymous" "count" ""
            "Faults that touched memory of no file first."
            "";
        "zero_page" "count" ""
            "Faults that read private memory of no file that was never written."
            "What came back from the swap cache is among them.";
        "copy_on_write" "count" ""
            "Faults that wrote a private page that was somebody else's too, or the file's."
            "A page that nobody else has any more is taken over, and not copied.";
        "write_protect" "count" ""
            "Faults that wrote a page of shared memory that could only be read until then."
            "";
        "huge" "count" ""
            "Faults that made or mapped a huge page."
            "";
        "major" "count" ""
            "Faults that waited for I/O, or for another that did."
            "";
        "unknown" "count" ""
            "Faults of which it is not known what they were for."
            "An access that is not allowed is one of them.";
        "every" "count" ""
            "Each of so many faults was recorded."
            "";
        "lost" "count" ""
            "Events that the kernel had no room to write down."
            "";
        "memory_limit" "bytes" ""
            "The most memory that the recorder may take: its tables, the kernel's rings, and the search for functions."
            "";
        "other_stacks" "count" ""
            "Events of call stacks that are not kept apart: they are counted under `[other call stacks]`."
            "Totals by kind, thread and mapping have them.";
        "folded_stacks" "count" ""
            "How many call stacks became part of `[other call stacks]`, for want of memory."
            "One that came again later, and went again, counts each time.";
        "stack_error" "count" ""
            "How many events one call stack can miss, which are counted under `[other call stacks]` instead."
            "A call stack with more than this is listed.";
        "other_threads" "count" ""
            "Events of threads that are not kept apart: they are counted under `[other threads]`."
            "";
        "other_mappings" "count" ""
            "Events in mappings that are not kept apart: they are counted under `[other mappings]` of their quadrant."
            "";
        "forgotten_mappings" "count" ""
            "How often a process had more mappings than fit into the recorder's memory, so that some were forgotten."
            "Events there are in no mapping that is known.";
        "unresolved_places" "count" ""
            "Places in code whose function was not looked up, since the names took too much memory."
            "Those of the call stacks with the most events are looked up first.";
        "source" "text" ""
            "What told of the faults: tracepoints, or the kernel's counters."
            "";
        "in_blocks" "count" ""
            "Faults in blocks of malloc and its kin that were live, touched by the program or by a system call of it."
            "Of blocks of so many bytes and more: see least_block.";
        "by_allocator" "count" ""
            "Faults of the allocator itself, while it served a call or freed a block."
            "calloc clears what it gives, realloc copies, and the header of the next block may be on another page.";
        "elsewhere" "count" ""
            "Faults in no block that is told of: smaller ones, stacks, files, mappings of the program's own."
            "";
        "by_recorder" "count" ""
            "Faults in the recorder's own memory, which are not there without it."
            "";
        "unrecorded" "count" ""
            "Faults of processes whose heap was not recorded, and before the recorder began."
            "";
        "least_block" "bytes" ""
            "Blocks of fewer bytes are not told of."
            "Their pages are mostly touched by the allocator, which writes a header behind each.";
        "log_lost" "count" ""
            "How often what was live came to be unknown, since the recorder's log was full."
            "";
        "unrecorded_processes" "count" ""
            "Children of the command that loaded the recorder, and were not recorded."
            "";
        "touched_at" "text" ""
            "Who touched the memory: the innermost function outside of the C library, and the line; the allocator, where it did so itself."
            "";
        "allocated_at" "text" ""
            "Who asked for the block: the innermost function outside of the C library that does not only pass the request on, and the line."
            "";
        "called_from" "text" ""
            "Who called the function that asked for the block."
            "";
        "blocks" "count" ""
            "Blocks that were allocated there, of those that are told of."
            "All of them, whether they were touched or not.";
        "bytes" "bytes" ""
            "Bytes in these blocks together, as asked for."
            "Blocks that came one after the other may have had the same memory.";
        "touched_by" "text" ""
            "Who touched the memory: the program, or the allocator."
            "";
        "touched_function" "text" ""
            "The function that touched the memory."
            "";
        "touched_file" "path" ""
            "The file of the source that it is in."
            "";
        "touched_line" "number" ""
            "The line."
            "";
        "allocated_function" "text" ""
            "The function that asked for the block."
            "";
        "allocated_file" "path" ""
            "The file of the source that it is in."
            "";
        "allocated_line" "number" ""
            "The line."
            "";
    }
    "heap" {
        "allocations" "count" ""
            "Calls that allocated memory: malloc, calloc, memalign and their kin, and new through them."
            "realloc is a free and an allocation.";
        "frees" "count" ""
            "Blocks that were freed."
            "free(NULL) is none.";
        "temporary" "count" ""
            "Blocks that were freed before the same thread allocated another."
            "heaptrack counts so, too; of realloc, what it gave up at once.";
        "allocated_bytes" "bytes" ""
            "All bytes that were allocated, as the program asked for them."
            "What an allocator adds, and rounds up to, is not in it.";
        "allocated_within" "bytes" ""
            "Half of the interval around allocated bytes in which the truth lies in 95 cases of 100, where samples were taken."
            "Of few samples it is itself uncertain.";
        "freed_bytes" "bytes" ""
            "All bytes that were freed."
            "";
        "peak_bytes" "bytes" ""
            "What was live when most was live in the whole process."
            "Of a call stack, what it had then: it may have had more at another time.";
        "peak_blocks" "count" ""
            "In how many blocks that was."
            "";
        "peak_within" "bytes" ""
            "How far the peak may be off, since threads allocated at the same time."
            "";
        "peak_at_least" "bytes" ""
            "The most that was live at once is no less in 39 cases of 40, where samples were taken."
            "peak_bytes is the highest of many estimates: an upper estimate, which can be far above this.";
        "peak_at_most" "bytes" ""
            "The most that was live at once is no more in 39 cases of 40, where samples were taken."
            "";
        "leaked_bytes" "bytes" ""
            "What was live at the end."
            "Memory that is needed to the end is no leak; what still has a pointer to it is here, too.";
        "leaked_blocks" "count" ""
            "In how many blocks that was."
            "";
        "leaked_within" "bytes" ""
            "Half of the interval around it in which the truth lies in 95 cases of 100, where samples were taken."
            "";
        "unknown_frees" "count" ""
            "Frees of memory that was allocated before the recording began, or where the recorder does not see."
            "";
        "estimated" "flag" ""
            "Whether samples were taken, so that all numbers are estimates."
            "";
        "time" "s" ""
            "When, after the beginning of the recording."
            "";
        "live" "bytes" ""
            "What was allocated and not freed, as the program asked for it."
            "What an allocator adds is not in it.";
        "live_blocks" "count" ""
            "In how many blocks that was."
            "";
        "held" "bytes" ""
            "What the allocator had from the kernel: live blocks, free ones, and what it keeps about them."
            "Address space: what was never touched is not in memory.";
        "resident" "bytes" ""
            "What of the whole process was in memory: VmRSS without the recorder's own."
            "Code, stacks and mappings of the program are in it; what is shared counts in full.";
        "file" "bytes" ""
            "What of that were pages of files (RssFile); in tables of functions, the file of the source."
            "";
        "shmem" "bytes" ""
            "What of that was shared memory (RssShmem)."
            "";
        "swap" "bytes" ""
            "What was swapped out (VmSwap)."
            "";
        "empty" "bytes" ""
            "Resident pages of the allocator in which nothing is live."
            "malloc_trim(0) gives most of it back. What the allocator keeps for itself there counts as nothing, and neither do blocks with mappings of their own.";
        "sparse" "bytes" ""
            "Resident pages of the allocator in which something is live, but no more than a quarter of the page."
            "They stay as long as these blocks do: malloc cannot move them.";
        "unclear" "count" ""
            "Blocks whose place could not be made out, since the program ran on while they were looked at, or since they are swapped out."
            "They are in no sum of arenas.";
        "areas" "count" ""
            "Parts of what the allocator holds that are told apart: arenas and the like."
            "";
        "area" "text" ""
            "A part of what the allocator holds: one of glibc's arenas, numbered as they were first met; mappings of large blocks; or, of other allocators, mappings with blocks in them."
            "";
        "parts" "count" ""
            "Heaps or mappings that it is made of."
            "A heap of an arena of glibc's has at most 64 MiB.";
        "gap" "bytes" ""
            "The longest run of bytes without a live block between two blocks, or before the first."
            "What is behind the last one is not in it: see top.";
        "top" "bytes" ""
            "The last chunk of an arena, which is free: what glibc gives back by itself once it is longer than M_TRIM_THRESHOLD."
            "Known of glibc only, and where the arena did not change just then.";
        "number" "count" ""
            "The arena's number, in the order in which they were first met."
            "";
        "above" "share" ""
            "More than this share of a page is live."
            "";
        "pages" "count" ""
            "Resident pages of the allocator of which so much is live."
            "Blocks with mappings of their own have none here.";
        "kept" "bytes" ""
            "Resident pages that blocks of a call stack keep, of which no more than a quarter is live."
            "A page of several call stacks is shared out by the bytes that each has in it.";
        "has_tree" "flag" ""
            "Whether it was taken down then what each call stack had: --at shows it."
            "";
        "bytes" "bytes" ""
            "Bytes, as the program asked for them."
            "";
        "within" "bytes" ""
            "Half of the interval around it in which the truth lies in 95 cases of 100, where samples were taken."
            "";
        "share" "share" ""
            "Of all."
            "";
        "blocks" "count" ""
            "In how many blocks."
            "";
        "calls" "count" ""
            "Calls that allocated memory."
            "";
        "stack" "text" ""
            "The call that allocated, then those that called it, each as function (file:line)."
            "Where neither frame pointers nor unwind tables lead on, callers are missing.";
        "where" "text" ""
            "Who asked for memory, with its line, and who called that. operator new and its kin, which allocate for others, are left out."
            "";
        "function" "text" ""
            "The function that asked for memory; in trees, each that called it."
            "As symbols and debugging information name it; none where no symbol covers the place.";
        "line" "number" ""
            "The line of the source."
            "Optimised code mixes lines: the one before may be meant.";
        "module" "path" ""
            "The file of code that the function is in."
            "";
        "offset" "number" ""
            "Where in that file (p_vaddr), before where the call returns to; the address, of memory of no file."
            "";
        "kind" "text" ""
            "heap: malloc and its kin. mapping: mmap and brk of the program's own. pool: blocks of pagewise's allocators."
            "";
        "from" "number" ""
            "The least of a cell."
            "";
        "to" "number" ""
            "The most of a cell."
            "";
        "tid" "number" ""
            "The thread."
            "None for threads that are not told apart.";
        "name" "text" ""
            "The thread's name."
            "";
        "tree" "object" ""
            "Call stacks with what they have in common told once: function, bytes, blocks, share, children, and what is left out below the threshold."
            "";
        "peak_change" "bytes" ""
            "By how much more was live at the peak."
            "The peaks of two recordings may be at different points of the program.";
        "leaked_change" "bytes" ""
            "By how much more was live at the end."
            "";
        "allocated_change" "bytes" ""
            "By how much more was allocated."
            "";
        "allocations_change" "count" ""
            "How many more allocations there were."
            "";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    #[test]
    fn every_counter_has_a_row_with_the_same_release() {
        for counter in Counter::ALL {
            let row = FIELDS.iter().find(|f| f.source == "smaps" && f.name == counter.name());
            assert_eq!(row.map(|f| f.since), Some(counter.since()), "{}", counter.name());
        }
    }

    #[test]
    fn no_source_names_a_field_twice() {
        for (i, field) in FIELDS.iter().enumerate() {
            let twin =
                FIELDS[..i].iter().find(|f| (f.name, f.source) == (field.name, field.source));
            assert_eq!(twin, None);
        }
    }

    #[test]
    fn a_meaning_is_a_sentence_and_a_trap_is_one_or_nothing() {
        for field in FIELDS {
            assert!(field.meaning.ends_with('.') && !field.unit.is_empty(), "{field:?}");
            assert!(field.trap.is_empty() || field.trap.ends_with('.'), "{field:?}");
        }
    }

    #[test]
    fn case_matters_only_where_it_tells_fields_apart() {
        let sources = |name| named(name).map(|f| f.source).collect::<Vec<_>>();
        assert_eq!(sources("Rss"), ["smaps"]);
        assert_eq!(sources("RSS"), ["pagewise"]);
        assert_eq!(sources("rss"), ["smaps", "pagewise"]);
        assert_eq!(sources("anonhugepages"), ["smaps", "meminfo"]);
        assert_eq!(sources("Private anonymous"), ["pagewise"]);
    }
}
