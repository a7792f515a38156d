//! Meaning of every number, one row for each field. Help texts, tables and documents are generated
//! from these rows.

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Absent, Bytes, Reading};

/// Meaning of one field: a line of a `/proc` file, or a column of a pagewise report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldMeaning {
    /// The kernel's name of the field, or the name of pagewise's column.
    pub name: &'static str,
    /// Source of the field: the file `smaps` (also for `smaps_rollup`), `maps`, `status`, `statm`,
    /// `meminfo` or `vmstat`; `hugepages stats` for
    /// `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`; `stat` for metrics of measured
    /// commands; `sim` for results of simulators; `faults` for recorded page faults; `watch` for
    /// recorded accesses to memory; `heap` for recordings of heaps; `pagewise` for other computed
    /// values.
    pub source: &'static str,
    /// `kB` (1024 bytes), `pages`, `bytes`, `flag`, `count`, or the format of a value that is not a
    /// number.
    pub unit: &'static str,
    /// The kernel release that introduced the field; empty if 2.6.14 or an older release has it.
    pub since: &'static str,
    /// Meaning of the field in one sentence.
    pub meaning: &'static str,
    /// A common misunderstanding of the value; empty if the value is clear.
    pub trap: &'static str,
}

/// Returns the fields with this name. If no field has exactly this spelling, names are compared
/// without regard to case and to the difference of `_`, `-` and space.
pub fn named(name: &str) -> impl Iterator<Item = &'static FieldMeaning> {
    let exact = FIELDS.iter().any(|f| f.name == name);
    let name = name.to_owned();
    FIELDS.iter().filter(move |f| if exact { f.name == name } else { is_alike(f.name, &name) })
}

/// True if two names are equal apart from case and from the difference of `_`, `-` and space.
pub fn is_alike(a: &str, b: &str) -> bool {
    let plain = |byte: u8| match byte {
        b'-' | b' ' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    a.bytes().map(plain).eq(b.bytes().map(plain))
}

/// Defines [`FIELDS`]. It also defines [`ProcessStatus`], with a field for each row that ends with
/// `as` and a field name.
macro_rules! fields {
    ($($source:literal {
        $($name:literal $unit:literal $since:literal $meaning:literal $trap:literal $(as $field:ident)?;)*
    })*) => {
        /// Every field, by source and in the kernel's order.
        pub const FIELDS: &[FieldMeaning] = &[$($(FieldMeaning {
            name: $name,
            source: $source,
            unit: $unit,
            since: $since,
            meaning: $meaning,
            trap: $trap,
        },)*)*];

        /// The `Vm*`, `Rss*` and `HugetlbPages` lines of `/proc/<pid>/status`, in bytes.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct ProcessStatus {
            $($($(
                #[doc = $meaning]
                #[serde(with = "plain", default = "not_saved")]
                pub $field: Reading<Bytes>,
            )?)*)*
        }

        impl ProcessStatus {
            /// Creates the struct: `read` is called for each field with the name of the line and
            /// the kernel release that introduced the line. The release is empty if all supported
            /// kernels have the line.
            pub fn from_lines(
                read: impl Fn(&'static str, &'static str) -> Reading<Bytes>,
            ) -> ProcessStatus {
                ProcessStatus { $($($($field: read($name, recent($since)),)?)*)* }
            }
        }
    };
}

/// Value of a line that a saved snapshot lacks, because an older version of pagewise saved it.
fn not_saved() -> Reading<Bytes> {
    Err(Absent::NotCollected("save the snapshot with this version of pagewise".into()))
}

/// Returns `since`; empty for 2.6 releases, because all supported kernels are newer.
const fn recent(since: &'static str) -> &'static str {
    match since.as_bytes() {
        [b'2', b'.', ..] => "",
        _ => since,
    }
}

// Columns of a row: name, unit, since, meaning, trap, field of `ProcessStatus`. The release
// (`since`) is the first that printed the line.
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
            "Large folios of other sizes, and huge pages that are mapped by base pages, are not counted.";
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
            "Swapped pages of tmpfs objects are not counted, so SwapPss is not a share of Swap.";
        "Locked" "kB" "2.6.38"
            "The proportional share (Pss) of the mapping where mlock holds it."
            "Neither a yes or no nor the locked size: VmLck has the size.";
        "THPeligible" "flag" "5.0"
            "1 where the kernel may use a transparent huge page of some enabled size here, else 0."
            "Eligible does not mean huge: AnonHugePages is the amount in use. Before 6.8 only the PMD size counted.";
        "ProtectionKey" "number" "4.6"
            "The memory protection key of the mapping."
            "Shown only where the CPU has protection keys.";
        "VmFlags" "flags" "3.8"
            "The kernel's flags of the mapping, two letters each: `define nr` explains one."
            "Codes differ between kernel releases; smaps_rollup has none.";
    }
    "maps" {
        "address" "hex" ""
            "The first address and the one past the last, in hex."
            "Neighbors with equal flags and backing are merged, so one line may be several mmap calls.";
        "perms" "letters" ""
            "r, w, x for read, write and execute; s for MAP_SHARED, p for MAP_PRIVATE."
            "p means that writes stay private; other processes may still map the same pages.";
        "offset" "hex" ""
            "Offset in the file at which the mapping begins."
            "For anonymous memory it is meaningless.";
        "dev" "hex" ""
            "Major and minor number of the device the file is on."
            "btrfs and overlayfs can show another device here than stat does.";
        "inode" "number" ""
            "The inode of the file; 0 if the mapping has no file."
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
            "State of the main thread: R running, S sleeping, D in uninterruptible sleep, T stopped, t traced, Z zombie, I idle, X dead."
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
            "Number of slots in the table of file descriptors."
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
            "Address space, not memory: VmHWM is the peak in memory."
            as vm_peak;
        "VmSize" "kB" ""
            "Address space of all mappings: VIRT."
            "Reserved, not used. [vsyscall] is not counted.";
        "VmLck" "kB" ""
            "Size of the mappings that mlock holds."
            "The whole size of the mappings, resident or not."
            as vm_lck;
        "VmPin" "kB" "3.2"
            "Memory that drivers pinned for direct access and charged to the process."
            "Only drivers that account for it count, as RDMA and io_uring do; pages pinned otherwise do not show."
            as vm_pin;
        "VmHWM" "kB" "2.6.15"
            "The highest VmRSS so far: peak RES."
            "After fork it starts at what the child inherited, and writing 5 to clear_refs resets it."
            as vm_hwm;
        "VmRSS" "kB" ""
            "Resident memory: RssAnon + RssFile + RssShmem."
            "Counted per CPU and off by some pages on many kernels: smaps is exact.";
        "RssAnon" "kB" "4.5"
            "Resident anonymous memory."
            "Counted per CPU and off by some pages on many kernels."
            as rss_anon;
        "RssFile" "kB" "4.5"
            "Resident page cache of files."
            "The page cache itself stays when the process ends. Counted per CPU and off by some pages on many kernels."
            as rss_file;
        "RssShmem" "kB" "4.5"
            "Resident tmpfs memory: shared anonymous memory, memfd, System V, /dev/shm."
            "Counted per CPU and off by some pages on many kernels."
            as rss_shmem;
        "VmData" "kB" ""
            "Address space of private writable mappings, stacks left out."
            "Reserved, not resident. statm's data adds the stack.";
        "VmStk" "kB" ""
            "Address space of mappings that grow down: the main stack."
            "Stacks of other threads are in VmData; the resident part is smaller."
            as vm_stk;
        "VmExe" "kB" ""
            "Address space of the program's text."
            "The program's own only: libraries are in VmLib.";
        "VmLib" "kB" ""
            "Address space of executable, not writable mappings, less VmExe."
            "Text of libraries, but JIT code and the vdso too; no data of libraries.";
        "VmPTE" "kB" "2.6.10"
            "Memory of the process's page tables, all levels."
            "Before 4.15 only the lowest level, with VmPMD beside it."
            as vm_pte;
        "VmPMD" "kB" "4.0"
            "Memory of the second level of page tables."
            "Gone since 4.15: VmPTE counts all levels.";
        "VmSwap" "kB" "2.6.34"
            "Anonymous memory of the process in swap."
            "Swapped tmpfs pages are left out, so it can be less than the sum of Swap in smaps."
            as vm_swap;
        "HugetlbPages" "kB" "4.4"
            "Memory of the huge TLB pool that the process maps."
            "Not in VmRSS."
            as hugetlb;
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
            "Number of threads of the process."
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
            "Number of seccomp filters that apply to the thread."
            "";
        "Speculation_Store_Bypass" "text" "4.17"
            "Mitigation of speculative store bypass that applies to the thread."
            "";
        "SpeculationIndirectBranch" "text" "5.11"
            "Mitigation of indirect branch speculation that applies to the thread."
            "";
        "Cpus_allowed" "mask" "2.6.24"
            "The CPUs the thread may run on."
            "";
        "Cpus_allowed_list" "list" "2.6.26"
            "The CPUs the thread may run on, as a list."
            "";
        "Mems_allowed" "mask" "2.6.24"
            "The NUMA nodes that the thread may allocate memory from."
            "";
        "Mems_allowed_list" "list" "2.6.26"
            "The NUMA nodes that the thread may allocate memory from, as a list."
            "";
        "voluntary_ctxt_switches" "count" "2.6.23"
            "Voluntary context switches: the thread blocked or yielded the CPU."
            "The main thread's only.";
        "nonvoluntary_ctxt_switches" "count" "2.6.23"
            "Involuntary context switches: the kernel preempted the thread."
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
            "RAM that is not used at all."
            "Small on a healthy machine, since the page cache fills the rest: MemAvailable is what programs can have.";
        "MemAvailable" "kB" "3.14"
            "An estimate of the memory that programs can still allocate without swapping."
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
            "Anonymous and file pages that reclaim takes last."
            "";
        "Inactive" "kB" ""
            "Anonymous and file pages that reclaim examines first."
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
            "Swap in use shows that memory was short at some time, not that it is short now.";
        "Zswap" "kB" "5.19"
            "RAM that compressed swap pages occupy."
            "Compressed size.";
        "Zswapped" "kB" "5.19"
            "Uncompressed size of the pages held by zswap."
            "Also counted as used swap.";
        "Dirty" "kB" ""
            "Page cache that waits to be written to disk."
            "Not the dirty of smaps, which counts anonymous memory.";
        "Writeback" "kB" ""
            "Page cache that is being written to disk now."
            "";
        "AnonPages" "kB" "2.6.18"
            "Anonymous pages that page tables map."
            "Of the whole machine, each page once; tmpfs is not included.";
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
            "Page tables that the CPU does not use for user space: KVM guests, IOMMU."
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
            "Upper limit of Committed_AS under strict overcommit."
            "Binds only where vm.overcommit_memory is 2.";
        "Committed_AS" "kB" ""
            "Memory that the kernel has committed to programs."
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
            "RAM that was retired after a hardware memory error."
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
            "RAM that balloon drivers returned to the host."
            "";
        "HugePages_Total" "pages" ""
            "Pages in the huge TLB pool of the default size."
            "Of the default size only; taken from MemFree even while unused.";
        "HugePages_Free" "pages" ""
            "Pages of the pool that were never touched."
            "Some may be promised: see HugePages_Rsvd.";
        "HugePages_Rsvd" "pages" "2.6.17"
            "Pages of the pool that are promised to a mapping and not yet touched."
            "";
        "HugePages_Surp" "pages" "2.6.24"
            "Pages above the pool's size, allocated on demand."
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
            "Swap had no contiguous space for the folio, or the device does not support it.";
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
            "Pages that compaction scanned as candidates to move."
            "Work of compaction, in a program or in kcompactd.";
        "compact_free_scanned" "count" "3.8"
            "Pages that compaction scanned as destinations."
            "";
        "compact_isolated" "count" "3.8"
            "Pages that compaction isolated to move."
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
            "Those among them that are partly unmapped."
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
            "Changes between two samples are not seen.";
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
            "Far below that: huge pages or fault-around are in use. Far above: memory is released and allocated again.";
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
            "TLB shootdowns caused: the thread made other CPUs flush, and waited for them."
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
            "Conclusion about A from the 95 % interval of the ratio."
            "\"Cannot tell\" does not mean equal.";
        "scope" "text" ""
            "Events counted: of the process, of the process in user mode only (process:user), or of the machine."
            "";
        "origin" "text" ""
            "Source of the count: the kernel (software), a tracepoint, or the CPU (hardware)."
            "";
        "usual" "flag" ""
            "True if stat counts the event by default."
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
            "All memory is assumed to be in pages of one size.";
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
            "Number of entries of the first-level data TLB."
            "The cpuid values of a virtual machine may be wrong.";
        "dtlb_ways" "count" ""
            "Associativity: number of entries of a set."
            "";
        "stlb_entries" "count" ""
            "Number of entries of the second-level TLB for pages of this size."
            "The level is shared with instructions, and often with other page sizes.";
        "stlb_ways" "count" ""
            "Associativity: number of entries of a set."
            "";
        "prefetched" "count" ""
            "Pages that the page walker's prefetcher put in before they were asked for."
            "An assumption: CPU vendors document little of it.";
        "policy" "text" ""
            "Replacement policy."
            "CPUs have policies of their own, near tree-PLRU.";
        "refaults" "count" ""
            "Simulated faults on pages that were reclaimed before: major faults."
            "The first use of a page is not counted.";
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
            "Lines of a trace that are not an access, an instruction or a message of valgrind."
            "";
        "cut_off" "flag" ""
            "True if the trace had more accesses than the limit; the rest was not simulated."
            "";
    }
    "lab" {
        "verdict" "text" ""
            "Conclusion of the runs on this machine about a claim: agrees, cannot tell or disagrees."
            "The verdict of an experiment is the worst of its claims; skipped if it was not run.";
        "agrees" "flag" ""
            "True if a claim holds on this machine; null if the runs cannot tell."
            "";
        "claims" "text" ""
            "Number of claims of an experiment that hold on this machine."
            "A claim that does not hold here may hold on another machine: the text of the claim says why.";
        "noise" "share" ""
            "Largest difference between two interleaved series of one condition: the end of a 95 % interval."
            "Smaller differences between conditions are reported as no difference.";
        "took_ns" "ns" ""
            "Duration of an experiment with all its runs."
            "";
        "first_touch_ns" "ns" ""
            "Time for the first touch of a page, by a process that is the first to have it."
            "Many times second_touch_ns if the hypervisor reclaims memory that its guest does not use.";
        "second_touch_ns" "ns" ""
            "Time for the first touch of a page, of memory that another process had just before."
            "";
    }
    "guard" {
        "bugs" "count" ""
            "Memory errors found, each once for each pair of call stacks (access and allocation)."
            "Errors on objects that were not guarded are not found.";
        "bugs_dropped" "count" ""
            "Memory errors that were counted but not stored: only the first 1,000 are stored."
            "";
        "rate" "number" ""
            "Sampling rate: one allocation in N is guarded on average; each has the same probability."
            "";
        "guarded" "count" ""
            "Objects that were guarded, by processes that exited normally."
            "";
        "left_out" "count" ""
            "Objects that were selected for guarding but not guarded, because the memory limit was reached."
            "--most sets the limit.";
        "most_bytes" "bytes" ""
            "The most bytes of memory in guarded objects at a time, of one process."
            "An object occupies whole pages. Slots of freed objects need about 100 bytes each in addition.";
        "means" "word" ""
            "Method that makes pages inaccessible: moving the pages of small objects to the next slot (UFFDIO_MOVE), guard markers in the page tables (MADV_GUARD_INSTALL), or mappings (mprotect)."
            "The number of mappings of a process is limited (vm.max_map_count).";
        "processes" "count" ""
            "Processes that were guarded: the command, its children, and each program that one of them became."
            "";
        "told" "count" ""
            "Processes that exited normally, and so reported the number of guarded objects."
            "One that is killed, or calls _exit, does not.";
        "kind" "word" ""
            "Kind of memory error: overflow, underflow, use-after-free, double-free, invalid-free, mismatch, wild; segv and bus: an access to other memory ended the program."
            "The object is the nearest one, which need not be the one that the program meant.";
        "access" "word" ""
            "Access: read, write, execute, free; or a write that was found at the free or at the exit."
            "";
        "address" "address" ""
            "The first byte that must not be touched."
            "For an access that begins inside the object, this is the end of the object.";
        "distance" "bytes" ""
            "Distance of that byte from the object: from its end, or from its beginning."
            "";
        "object" "address" ""
            "The object's first byte."
            "";
        "size" "bytes" ""
            "The object's size, as the program asked for it."
            "";
        "tid" "number" ""
            "The thread that made the memory error, or in which the error was found."
            "";
        "goes_on" "flag" ""
            "True if the program continued after the memory error."
            "";
        "stack" "list" ""
            "Call stack at which the memory error was made or found, innermost call first."
            "";
        "made_by" "word" ""
            "Of a mismatch: the function that allocated the object: malloc, new, new[]."
            "malloc stands for its whole family.";
        "freed_as" "word" ""
            "Of a mismatch: the function that freed the object, named by its counterpart: malloc for free, new for delete, new[] for delete[]."
            "";
        "freed_size" "bytes" ""
            "Of a mismatch: the size that was passed to delete."
            "Programs compiled without -fsized-deallocation pass no size.";
        "allocated_by" "number" ""
            "The thread that allocated the object."
            "";
        "allocation_stack" "list" ""
            "Call stack of the allocation."
            "";
        "freed_by" "number" ""
            "The thread that freed it before."
            "";
        "free_stack" "list" ""
            "Call stack of the earlier free."
            "";
    }
    "watch" {
        "block_offset" "count" ""
            "Offset of the bytes in their heap block when the watch began, in bytes."
            "Known if a recorder is in the process: pagewise heap run.";
        "block_size" "bytes" ""
            "The size of that block, as asked for."
            "The requested size of large blocks is unknown from outside: see block_room.";
        "block_room" "bytes" ""
            "Usable size of that block in the allocator."
            "";
        "allocated_by" "text" ""
            "The function and line that allocated that block."
            "";
        "block_frames" "text" ""
            "Call stack that allocated that block, innermost function first."
            "";
        "time" "s" ""
            "Time at which the kernel recorded the access, since the start of the watch."
            "Some microseconds after it.";
        "tid" "number" ""
            "The thread that made the access."
            "";
        "old" "value" ""
            "Content of the bytes before the access, as a number, or as hexadecimal digits for more than 8 bytes."
            "The content that the last access left, unless a different content was found in memory in between.";
        "value" "value" ""
            "Content of the bytes after the access, as a number, or as hexadecimal digits for more than 8 bytes."
            "Numbers are unsigned. `known` names the source of the value.";
        "known" "text" ""
            "Source of the value: stored by the instruction, computed from the previous content, copied by the kernel with the access, read from memory before the next access, unchanged by an access that reads, or unknown (no)."
            "A value that was read may have been changed by another process or a device since the access; a stored value may not.";
        "access" "text" ""
            "Access: write, read, or read or write if the instruction is unknown."
            "The CPU watches writes, or reads and writes; never reads alone.";
        "place" "text" ""
            "Code that made the access: the system call or library function, and the function and line of the program that called it."
            "Code without debugging information has no lines; stripped code has no functions.";
        "instruction" "text" ""
            "The instruction that made the access, as objdump writes it."
            "Absent if no symbol gives the start of the function, and in the kernel.";
        "call" "text" ""
            "The system call in which the kernel made the access for the program."
            "Absent for other work of the kernel: a signal frame, a robust futex.";
        "kernel" "text" ""
            "The function of the kernel that made the access."
            "? where kernel.kptr_restrict hides the addresses.";
        "thread" "text" ""
            "The thread that made the access: its name, for people behind its number."
            "The target chooses the name: do not trust it.";
        "stack" "number" ""
            "Number of the call stack."
            "";
        "count" "count" ""
            "Number of accesses."
            "A copy by the kernel is one access; rep movs or rep stos in the program is reported at each step that touches the bytes.";
        "passed_over" "count" ""
            "Accesses for which the condition was false, or whose values are unknown."
            "";
        "dropped" "count" ""
            "Accesses that were counted but not stored: the memory limit bounds the stored ones, 65,536 in 256 MiB."
            "";
        "other_stacks" "count" ""
            "Accesses whose call stack is not stored, because the memory limit is reached."
            "They are listed under the call stack `[other call stacks]`.";
        "memory_limit" "bytes" ""
            "Memory limit of the recorder: accesses, their call stacks, and the perf ring buffers."
            "";
        "in_copies" "count" ""
            "Accesses of child processes to their own copies of the memory, which change nothing here."
            "";
        "unseen" "count" ""
            "Number of times the memory differed from the content that the last access left: another process, a debugger or a device wrote it."
            "Two changes between two accesses count as one; without privileges the kernel's own writes are included.";
        "lost" "count" ""
            "Accesses and other records that did not fit into the perf ring buffers."
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
            "Does not show sharing or possible sharing: a private library that no other process maps is included, memory shared after fork is not.";
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
            "The only one of these values that can be summed over processes; it changes when other processes start or end.";
        "USS" "bytes" ""
            "Unique set size: resident pages that only this process maps."
            "Memory that the exit of the process would free at once, except for file pages, which stay in the page cache.";
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
            "A value above 0 shows that memory was short at some time, not that it is short now.";
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
            "True if a page-table entry maps a huge page; false if it maps a base page."
            "Only one entry saves TLB misses for certain; some processors join base entries of a folio.";
        "bloat" "bytes" ""
            "Base pages inside anonymous huge pages that are zero in every byte: resident, and of no use."
            "A page that was used and then cleared looks the same; so does one that is about to be used.";
        "file" "bytes" ""
            "Memory of files and tmpfs that huge page-table entries map."
            "Its zeros are the file's and are not called bloat.";
        "eligible" "bytes" ""
            "Resident in base pages of mappings that the kernel may give huge pages (THPeligible)."
            "The kernel may also use huge pages of other sizes than the PMD's; the result depends on free memory.";
        "verdict" "text" ""
            "Use of huge pages: touched sparsely if half or more is zero, well used if at most a tenth is zero."
            "Refers to the pages that were zero at the time of the scan. In `doctor`: how a setting suits the profile: ok, note, warn, or unknown if it could not be read.";
        "anonymous" "bytes" ""
            "Resident anonymous pages: heap, stack, written private file pages."
            "The zero page is not included.";
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
            "Address space without pages: never touched, or released."
            "The pages may still be in the page cache if a file is mapped.";
        "soft_dirty" "flag" ""
            "Written since soft-dirty bits were cleared, or since it was mapped."
            "Only where the kernel tracks it (CONFIG_MEM_SOFT_DIRTY).";
        "co_mapped" "bytes" ""
            "Resident pages that other page tables map too."
            "Not the memory that is declared shared: memory after fork counts until it is written.";
        "exclusive" "flag" ""
            "No other page table maps the page."
            "For a huge page the kernel reports the same for all its base pages.";
        "mappers" "count" ""
            "Number of page tables that map the page."
            "One process can map a page twice.";
        "ksm" "flag" ""
            "Merged with equal pages by KSM."
            "It is copied again when it is written.";
        "large_folios" "bytes" ""
            "Resident in folios of more than one base page, however they are mapped."
            "Files count too: the page cache has large folios as well.";
        "folio_pages" "count" ""
            "Number of base pages of the page's folio."
            "A folio need not be mapped as a whole.";
        "state" "text" ""
            "State of a page: untouched, anonymous, file, shmem, zero, swapped, guard."
            "State at the time of the scan.";
        "strip" "picture" ""
            "A mapping's pages in one line, each character an equal part."
            "Small parts vanish in a large mapping.";
        "touched" "bytes" ""
            "Referenced since the bits were cleared: a page counts whole however little of it was used."
            "By any process that maps the page, and by the kernel on its behalf.";
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
            "A page that was written is copied and private anonymous; pages that other processes map too are shared in effect.";
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
            "True if it is unknown whether swap is reserved, because smaps was not read."
            "`--full` reads smaps.";
        "start" "address" ""
            "The first address of a mapping."
            "Moves from run to run where addresses are randomized.";
        "end" "address" ""
            "One past the last address of a mapping."
            "";
        "device" "hex" ""
            "Major and minor number of the device the mapped file is on."
            "btrfs and overlayfs can show another device here than stat does.";
        "name" "text" ""
            "The mapped file, or the name the kernel or the program gave; of a process its 15 bytes of comm."
            "The target chooses the name: do not trust it. It is escaped wherever it is shown.";
        "use" "text" ""
            "A mapping's name, or in brackets what nameless memory is used for."
            "A name in brackets was derived by pagewise, except for the kernel's: [heap], [stack], [vdso].";
        "pid" "number" ""
            "The process id."
            "In the pid namespace of the /proc that was read.";
        "user" "text" ""
            "Name of the real user, or its number if the name is unknown."
            "Permissions follow the effective user.";
        "command" "text" ""
            "The command line."
            "The process may have overwritten it; in brackets it is the name instead.";
        "change" "bytes" ""
            "The value after, minus the value before."
            "Pages can come and go between: a change of 0 does not mean that nothing happened. In `doctor` it is the command that sets what is advised.";
        "mode" "letters" ""
            "r w x, then s or p, then R."
            "";
        "pool" "text" ""
            "Use of a mapping: program text, a library, malloc, a stack."
            "Derived from ELF headers, stack pointers and the marks of malloc; mappings without such evidence are called anonymous.";
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
            "Bytes that a pool of pagewise's allocators handed out and that were not freed."
            "Pools update the value in slow paths: it may be off by the contents of one of their blocks, and it includes alignment and rounding.";
        "pool_peak" "bytes" ""
            "High-water mark of the bytes that a pool had handed out."
            "Sampled when a pool reports its progress: shorter peaks are missed.";
        "pool_held" "bytes" ""
            "Bytes that a pool has obtained from its source: the system, another pool, a buffer."
            "Address space: pages that were never touched are not resident.";
        "pool_peak_held" "bytes" ""
            "High-water mark of the bytes that a pool had from its source."
            "";
        "pool_use" "share" ""
            "Share of the held bytes that is handed out."
            "";
        "requests" "count" ""
            "Number of allocation requests."
            "Up to the last slow path. Stack and ring pools do not count requests: their value is the requested bytes divided by the sizes seen at the ends of blocks.";
        "mean_size" "bytes" ""
            "Requested bytes per request."
            "";
        "blocks_taken" "count" ""
            "Blocks that a pool obtained from its source so far: system calls, if the source is the system."
            "";
        "blocks_returned" "count" ""
            "Blocks that a pool returned to its source."
            "";
        "slow_paths" "count" ""
            "Number of times a pool entered a slow path."
            "";
        "size_classes" "list" ""
            "Requests by size, each class up to a power of two."
            "Estimated: the size of one request stands for those around it.";
        "series" "list" ""
            "Course of a pool over time: requests, live bytes, held bytes. At most 65 points, the last one current."
            "";
        "blocks" "count" ""
            "Free blocks of exactly that order."
            "";
        "free_by_order" "list" ""
            "Free blocks of each order, from order 0; a block counts in its own order only."
            "The kernel's lists, without pages that wait on the lists of a CPU.";
        "allocatable" "bytes" ""
            "Memory available in blocks of that order without compaction: free memory in blocks at least as large."
            "The kernel keeps some of it back (watermarks, reserves), and compaction can make more.";
        "allocatable_huge" "bytes" ""
            "Memory available as huge pages without compaction: free memory in blocks at least as large."
            "The kernel keeps some of it back (watermarks, reserves), and compaction can make more.";
        "unusable_index" "share" ""
            "The share of free memory in blocks that are too small for the request: 1 - allocatable / free."
            "";
        "fragmentation_index" "share" ""
            "Why a request would fail: towards 0 for lack of memory, towards 1 since free memory lies in small blocks."
            "Nothing where it would not fail; 1 - (1 + free pages / requested pages) / free blocks.";
        "type" "text" ""
            "Migrate type: the kind of allocation that the block is for."
            "The kernel falls back to another type before an allocation fails, which mixes them.";
        "pageblocks" "count" ""
            "Pieces of memory that have a migrate type, free or used."
            "Usually of the size of a huge page.";
        "at_least" "flag" ""
            "True if a count is a lower bound: the kernel stops counting at 100,000 blocks."
            "";
        "id" "text" ""
            "A stable name."
            "";
        "label" "text" ""
            "Name of the setting for people."
            "";
        "value" "any" ""
            "Current value: the text of the kernel's file, or a number."
            "";
        "why" "text" ""
            "Problem with the value, if there is one, and the reason why the setting matters."
            "";
        "undo" "text" ""
            "The command that restores what is set now."
            "";
        "page_size" "bytes" ""
            "The base page size of the machine."
            "";
        "huge_size" "bytes" ""
            "Size that one PMD page-table entry maps."
            "";
        "huge_order" "number" ""
            "A huge page is 2^order base pages."
            "";
        "share" "share" ""
            "Share of the total."
            "";
        "count" "count" ""
            "Count since boot."
            "";
        "per_second" "rate" ""
            "Rate per second between two readings."
            "";
        "elapsed_ns" "ns" ""
            "The time since the first reading."
            "";
        "time" "s" ""
            "Time of a call since the start of the recording."
            "As the recorder saw it: some microseconds late.";
        "tid" "number" ""
            "The thread id."
            "";
        "args" "text" ""
            "The arguments of a call as a C program would write them, with the file behind a descriptor."
            "The target chooses names in it: do not trust them.";
        "outcome" "text" ""
            "Return value of a call, or the name of its error."
            "brk never fails: it returns the break as it is, moved or not.";
        "result" "number" ""
            "Return value of a call; absent if it failed."
            "brk never fails: it returns the break as it is, moved or not.";
        "error" "text" ""
            "The name of the error of a call that failed."
            "A call that a signal interrupts (ERESTART) is made again and counts twice.";
        "errors" "count" ""
            "Number of calls that failed."
            "brk never does.";
        "bytes" "bytes" ""
            "Memory that calls name: the requested length, or the amount by which the break moved."
            "Differs from the mapped or freed amount: munmap may name a range with holes, mprotect changes no size.";
        "virt_change" "bytes" ""
            "Amount by which calls changed VIRT: whole pages, minus the previous mappings that they replaced."
            "Reserved address space, not memory in use. It includes calls of other processes that share the same memory (vfork).";
        "virt_otherwise" "bytes" ""
            "Amount by which VIRT changed without a call: the stack grows when it is touched."
            "VIRT at the end as the kernel reports it, minus the sum of the calls.";
        "virt_start" "bytes" ""
            "VIRT of a process when it was created, or when the recording began."
            "0 for a command: it begins with its program. A fork begins with a copy of its parent's.";
        "virt_end" "bytes" ""
            "VIRT of a process just before it ended, or when the recording did."
            "";
        "phase" "text" ""
            "start-up from execve to the program's entry point (the dynamic linker at work), then program; exec is the kernel mapping it."
            "Constructors of libraries run before the entry point; libraries that dlopen loads come after it.";
        "stage" "text" ""
            "Short name of the phase: exec, start for the dynamic linker's start-up, empty for the program."
            "";
        "caller" "text" ""
            "The file whose code made the call: the dynamic linker, the C library, the program."
            "The address of the system call instruction counts: malloc is in the C library, regardless of its caller.";
        "by" "path" ""
            "The file whose code made the call; empty for code in no file."
            "The address of the system call instruction counts: malloc is in the C library, regardless of its caller.";
        "seconds" "s" ""
            "Wall-clock time from the start of a call to its end."
            "Includes the cost of the tracing stop: some microseconds a call.";
        "calls" "count" ""
            "Number of memory calls."
            "";
        "parent" "number" ""
            "The process that created it."
            "";
        "program" "path" ""
            "The file of the program that a process ran last."
            "";
        "recorded" "flag" ""
            "True if the calls of a process are recorded."
            "Those of 32-bit programs on a 64-bit kernel are not.";
        "ending" "text" ""
            "Exit status or signal of a process."
            "";
        "meaning" "text" ""
            "Meaning of a counter."
            "";
        "flush_orders" "count" ""
            "Flush requests to other CPUs: tlb_flush events with the reason remote IPI send."
            "The kernel may find after the request that no CPU has to be interrupted.";
        "shootdowns" "count" ""
            "Flush requests that interrupted at least one CPU."
            "";
        "ipis" "count" ""
            "CPUs that were interrupted to flush their TLBs: one request may interrupt several."
            "From csd_queue_cpu: a CPU with an interrupt already pending is not interrupted again.";
        "waited" "s" ""
            "Time that requesting threads waited until the last CPU had flushed, summed over all threads."
            "Only for requests whose end was recorded: a CPU that runs another program by then is not recorded. Includes the cost of recording.";
        "pages_per_order" "count" ""
            "Pages per flush request, on average."
            "Without full flushes: above 33 pages (tlb_single_page_flush_ceiling) the kernel flushes the whole TLB.";
        "full_orders" "count" ""
            "Requests to flush the whole TLB."
            "";
        "local_flushes" "count" ""
            "Flushes of the CPU's own TLB for its own process."
            "";
        "received" "count" ""
            "Flushes that another CPU requested and that interrupted this one: tlb_flush events with the reason remote shootdown."
            "";
        "foreign" "count" ""
            "Flushes received that no recorded thread requested: from the kernel's own threads, or from other processes."
            "";
        "flushes" "count" ""
            "All tlb_flush events."
            "One shootdown consists of several: the request, the local flush, and one on each interrupted CPU.";
        "unseen" "count" ""
            "Requests whose end was not recorded, because a CPU ran a program that is not recorded."
            "";
        "sent" "count" ""
            "Interrupts sent from one CPU to others, by tracepoint."
            "For any purpose, not only flushes: function calls, since Linux 6.4 also rescheduling; one ipi_send_cpumask addresses several CPUs.";
        "ipis_sent" "count" ""
            "CPUs that were interrupted from this one."
            "";
        "call_function_interrupts" "count" ""
            "Function-call interrupts received while a recorded thread ran."
            "For any function, not only flushes.";
        "machine_shootdowns" "count" ""
            "Interrupts received to flush the TLB, whichever program ran: the TLB row of /proc/interrupts."
            "Of the whole machine.";
        "shooting" "count" ""
            "Calls during which other CPUs were interrupted to flush."
            "";
        "shooting_ns" "ns" ""
            "Mean duration of a call that interrupts other CPUs."
            "From its entry to its exit, including the cost of recording.";
        "quiet_ns" "ns" ""
            "Mean duration of a call that interrupts no other CPU."
            "From its entry to its exit, including the cost of recording.";
        "cause" "text" ""
            "Cause of the TLB flush: a system call, or an activity of the kernel itself."
            "Derived from the kernel functions on the stack; `other` if none of them identifies it.";
    }
    "faults" {
        "faults" "count" ""
            "Number of page faults."
            "A page that is present does not fault: the number does not show how often memory is used.";
        "user_faults" "count" ""
            "Page faults of the program's own instructions (exceptions:page_fault_user)."
            "";
        "kernel_faults" "count" ""
            "Page faults of the kernel on memory of the program, in system calls: read(2) into new memory."
            "Only completed ones: the kernel repeats an attempt that may not sleep.";
        "faults_per_second" "rate" ""
            "Page faults per second of the recording."
            "";
        "faults_major" "count" ""
            "Page faults that waited for I/O, or for another fault that did."
            "Faults that waited for a lock are included, as in majflt.";
        "fault_time" "s" ""
            "Time in the kernel's page fault handler, summed over all faults."
            "Excludes the CPU's entry into the kernel and the return; includes the cost of writing the event, about a microsecond each.";
        "user_faults_counted" "count" ""
            "Page faults in user mode as the kernel counted them, recorded or not."
            "";
        "faults_below" "count" ""
            "Page faults in a function and in all functions that it calls."
            "A function that calls itself counts once.";
        "most_kind" "text" ""
            "The kind of most of the faults."
            "";
        "median_ns" "ns" ""
            "The time within which half of the faults were handled, to 1.6 %."
            "Includes the cost of writing the event.";
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
            "Optimized code mixes lines: the one before may be meant.";
        "place" "text" ""
            "The file of the source, and the line."
            "";
        "frames" "text" ""
            "The function that faulted, then those that called it."
            "If frame pointers and unwind tables are both missing, callers are missing.";
        "span" "s" ""
            "The length of a span of the time line."
            "";
        "kind" "text" ""
            "Kind of the fault."
            "";
        "anonymous" "count" ""
            "First touch of anonymous memory."
            "";
        "zero_page" "count" ""
            "Reads of private anonymous memory that was never written."
            "Pages that returned from the swap cache are included.";
        "copy_on_write" "count" ""
            "Writes to a private page that another process shares, or that belongs to a file."
            "A page that no other process maps any more is reused, not copied.";
        "write_protect" "count" ""
            "Writes to a page of shared memory that was write-protected until then."
            "";
        "huge" "count" ""
            "Faults that made or mapped a huge page."
            "";
        "major" "count" ""
            "Faults that waited for I/O, or for another fault that did."
            "";
        "unknown" "count" ""
            "Faults of unknown kind."
            "Accesses that are not permitted are included.";
        "every" "count" ""
            "One fault in N was recorded."
            "";
        "lost" "count" ""
            "Events that did not fit into the perf ring buffers."
            "";
        "memory_limit" "bytes" ""
            "Memory limit of the recorder: its tables, the perf ring buffers, and the symbol lookup."
            "";
        "other_stacks" "count" ""
            "Events whose call stack is not stored: they are counted under `[other call stacks]`."
            "Totals by kind, thread and mapping include them.";
        "folded_stacks" "count" ""
            "Number of call stacks that were merged into `[other call stacks]` to stay within the memory limit."
            "A call stack that returned and was merged again counts each time.";
        "stack_error" "count" ""
            "Largest number of events that one call stack can miss; they are counted under `[other call stacks]`."
            "A call stack with more than this is listed.";
        "other_threads" "count" ""
            "Events of threads without a row of their own: they are counted under `[other threads]`."
            "";
        "other_mappings" "count" ""
            "Events in mappings without a row of their own: they are counted under `[other mappings]` of their quadrant."
            "";
        "forgotten_mappings" "count" ""
            "Number of times the mappings of a process exceeded the recorder's memory, so that some were discarded."
            "Events in discarded mappings have no mapping.";
        "unresolved_places" "count" ""
            "Addresses in code whose function was not looked up, because the symbols needed too much memory."
            "Addresses of the call stacks with the most events are looked up first.";
        "source" "text" ""
            "Source of the faults: tracepoints, or the kernel's counters."
            "";
        "in_blocks" "count" ""
            "Faults in live blocks of malloc and the other allocation functions, touched by the program or by a system call of it."
            "Only blocks of least_block bytes or more.";
        "by_allocator" "count" ""
            "Faults of the allocator itself, during an allocation or a free."
            "calloc clears memory, realloc copies, and the header of the next block may be on another page.";
        "elsewhere" "count" ""
            "Faults outside of recorded blocks: smaller blocks, stacks, files, mappings of the program's own."
            "";
        "by_recorder" "count" ""
            "Faults in the recorder's own memory; they do not occur without it."
            "";
        "unrecorded" "count" ""
            "Faults of processes whose heap was not recorded, and faults before the recorder began."
            "";
        "least_block" "bytes" ""
            "Smallest block that is recorded."
            "The pages of smaller blocks are mostly touched by the allocator, which writes a header next to each.";
        "log_lost" "count" ""
            "Number of times the live blocks became unknown, because the recorder's log was full."
            "";
        "unrecorded_processes" "count" ""
            "Children of the command that loaded the recorder but were not recorded."
            "";
        "touched_at" "text" ""
            "Code that touched the memory: the innermost function outside of the C library, and the line; the allocator, if it touched the memory itself."
            "";
        "allocated_at" "text" ""
            "Code that allocated the block: the innermost function outside of the C library that is not a mere allocation wrapper, and the line."
            "";
        "called_from" "text" ""
            "Caller of the function that allocated the block."
            "";
        "blocks" "count" ""
            "Recorded blocks that were allocated there."
            "All of them, whether touched or not.";
        "bytes" "bytes" ""
            "Requested bytes of these blocks, summed."
            "Consecutive blocks may have had the same memory.";
        "touched_by" "text" ""
            "Code that touched the memory: the program, or the allocator."
            "";
        "touched_function" "text" ""
            "The function that touched the memory."
            "";
        "touched_file" "path" ""
            "The source file of that function."
            "";
        "touched_line" "number" ""
            "The line."
            "";
        "allocated_function" "text" ""
            "The function that allocated the block."
            "";
        "allocated_file" "path" ""
            "The source file of that function."
            "";
        "allocated_line" "number" ""
            "The line."
            "";
    }
    "heap" {
        "allocations" "count" ""
            "Allocation calls: malloc, calloc, memalign and similar functions, and new through them."
            "realloc is a free and an allocation.";
        "frees" "count" ""
            "Blocks that were freed."
            "free(NULL) is not counted.";
        "temporary" "count" ""
            "Blocks that were freed before the same thread allocated another."
            "heaptrack counts the same way; a realloc counts if it freed the old block at once.";
        "allocated_bytes" "bytes" ""
            "Sum of the requested sizes of all allocations."
            "Overhead and rounding of the allocator are not included.";
        "allocated_within" "bytes" ""
            "Half-width of the 95 % interval of allocated bytes, if allocations were sampled."
            "For few samples the interval itself is uncertain.";
        "freed_bytes" "bytes" ""
            "Sum of the sizes of all freed blocks."
            "";
        "peak_bytes" "bytes" ""
            "Live bytes at the time point at which the whole process had the most."
            "For a call stack: its live bytes at that time point; it may have had more at another.";
        "peak_blocks" "count" ""
            "Number of blocks of these bytes."
            "";
        "peak_within" "bytes" ""
            "Error bound of the peak, because threads allocated at the same time."
            "";
        "peak_at_least" "bytes" ""
            "Lower bound of the true peak (97.5 % confidence), if allocations were sampled."
            "peak_bytes is the highest of many estimates: it is biased upwards, and can be far above this.";
        "peak_at_most" "bytes" ""
            "Upper bound of the true peak (97.5 % confidence), if allocations were sampled."
            "";
        "leaked_bytes" "bytes" ""
            "Live bytes at the end."
            "Memory in use until the end is not a leak; memory that is still reachable counts too.";
        "leaked_blocks" "count" ""
            "Number of blocks of these bytes."
            "";
        "leaked_within" "bytes" ""
            "Half-width of the 95 % interval of these bytes, if allocations were sampled."
            "";
        "unknown_frees" "count" ""
            "Frees of blocks that were allocated before the recording began, or by functions that are not recorded."
            "";
        "estimated" "flag" ""
            "True if allocations were sampled, so that all numbers are estimates."
            "";
        "time" "s" ""
            "Time since the start of the recording."
            "";
        "live" "bytes" ""
            "Requested bytes that were allocated and not freed."
            "Overhead of the allocator is not included.";
        "live_blocks" "count" ""
            "Number of blocks of these bytes."
            "";
        "held" "bytes" ""
            "Footprint of the allocator: live blocks, free blocks, and metadata."
            "Address space: pages that were never touched are not resident.";
        "resident" "bytes" ""
            "Resident memory of the whole process: VmRSS without the recorder's own."
            "Code, stacks and mappings of the program are included; shared pages count in full.";
        "file" "bytes" ""
            "Resident file pages (RssFile); in tables of functions, the source file."
            "";
        "shmem" "bytes" ""
            "Resident shared memory (RssShmem)."
            "";
        "swap" "bytes" ""
            "Swapped memory (VmSwap)."
            "";
        "empty" "bytes" ""
            "Resident pages of the allocator without a live block."
            "malloc_trim(0) releases most of them. The allocator's own metadata counts as not live; blocks with mappings of their own are left out.";
        "sparse" "bytes" ""
            "Resident pages of the allocator of which more than nothing and at most a quarter is live."
            "They stay resident as long as these blocks live: malloc cannot move blocks.";
        "unclear" "count" ""
            "Blocks whose address could not be determined, because the program changed them during the scan, or because they are swapped out."
            "The sums of the arenas do not include them.";
        "areas" "count" ""
            "Number of parts of the allocator's footprint: arenas, or mappings."
            "";
        "area" "text" ""
            "A part of the allocator's footprint: a glibc arena, numbered in the order of first use; mappings of large blocks; or, for other allocators, mappings with blocks in them."
            "";
        "parts" "count" ""
            "Number of heaps or mappings in the part."
            "A heap of a glibc arena has at most 64 MiB.";
        "gap" "bytes" ""
            "The longest run of bytes without a live block between two blocks, or before the first."
            "The free bytes after the last block are not included: see top.";
        "top" "bytes" ""
            "The last chunk of an arena, which is free: glibc trims it when it exceeds M_TRIM_THRESHOLD."
            "Known for glibc only, and only if the arena did not change during the scan.";
        "number" "count" ""
            "The arena's number, in the order of first use."
            "";
        "above" "share" ""
            "Lower bound of the live share of a page (exclusive)."
            "";
        "pages" "count" ""
            "Resident pages of the allocator with this live share."
            "Blocks with mappings of their own are left out.";
        "kept" "bytes" ""
            "Resident pages, at most a quarter live, that blocks of a call stack keep."
            "A page with blocks of several call stacks is divided by the bytes of each.";
        "has_tree" "flag" ""
            "True if the live bytes of each call stack were stored at that time point: --at shows them."
            "";
        "bytes" "bytes" ""
            "Requested bytes."
            "";
        "within" "bytes" ""
            "Half-width of the 95 % interval of the value, if allocations were sampled."
            "";
        "share" "share" ""
            "Share of the total."
            "";
        "blocks" "count" ""
            "Number of blocks."
            "";
        "calls" "count" ""
            "Number of allocation calls."
            "";
        "stack" "text" ""
            "The function that allocated, then its callers, each as function (file:line)."
            "If frame pointers and unwind tables are both missing, callers are missing.";
        "where" "text" ""
            "The function that allocated, with its line, and its callers. operator new and similar wrappers are left out."
            "";
        "function" "text" ""
            "The function that allocated; in trees, each function that called it."
            "As symbols and debugging information name it; absent if no symbol covers the address.";
        "line" "number" ""
            "The line of the source."
            "Optimized code mixes lines: the one before may be meant.";
        "module" "path" ""
            "The file of code that the function is in."
            "";
        "offset" "number" ""
            "Offset in that file (p_vaddr) of the call instruction; the address, for code in no file."
            "";
        "kind" "text" ""
            "heap: malloc and similar functions. mapping: mmap and brk of the program's own. pool: blocks of pagewise's allocators."
            "";
        "from" "number" ""
            "Lower end of a cell."
            "";
        "to" "number" ""
            "Upper end of a cell."
            "";
        "tid" "number" ""
            "The thread id."
            "Absent for threads without a row of their own.";
        "name" "text" ""
            "The thread's name."
            "";
        "tree" "object" ""
            "Call stacks merged into a tree: function, bytes, blocks, share, children, and the sum of the branches below the threshold."
            "";
        "peak_change" "bytes" ""
            "Difference of the live bytes at the peak."
            "The peaks of two recordings may be at different points of the program.";
        "leaked_change" "bytes" ""
            "Difference of the live bytes at the end."
            "";
        "allocated_change" "bytes" ""
            "Difference of the allocated bytes."
            "";
        "allocations_change" "count" ""
            "Difference of the number of allocations."
            "";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SmapsCounter;

    #[test]
    fn a_status_line_that_an_older_file_lacks_is_absent() {
        let saved: ProcessStatus = serde_json::from_str(r#"{"vm_hwm": 4096}"#).unwrap();
        assert_eq!(saved.vm_hwm, Ok(Bytes(4096)));
        assert!(matches!(saved.vm_pin, Err(Absent::NotCollected(_))), "{:?}", saved.vm_pin);
    }

    #[test]
    fn every_counter_has_a_row_with_the_same_release() {
        for counter in SmapsCounter::ALL {
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
    fn case_matters_only_if_it_distinguishes_fields() {
        let sources = |name| named(name).map(|f| f.source).collect::<Vec<_>>();
        assert_eq!(sources("Rss"), ["smaps"]);
        assert_eq!(sources("RSS"), ["pagewise"]);
        assert_eq!(sources("rss"), ["smaps", "pagewise"]);
        assert_eq!(sources("anonhugepages"), ["smaps", "meminfo"]);
        assert_eq!(sources("Private anonymous"), ["pagewise"]);
    }
}
