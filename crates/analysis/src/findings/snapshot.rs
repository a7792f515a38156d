//! Findings about the uses of a process's memory.

use std::collections::{BTreeMap, HashSet};

use pagewise_model::object::OnDisk;
use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{Backing, Bytes, Mapping, Name, Reading, Sharing, SmapsCounter};

use super::{FindingRule, bytes, command, fact, finding, size};
use crate::cells::text;
use crate::explain::ExplainSubject;
use crate::pools::{ARENA_HEAP, LanguageRuntime, PoolKind};
use crate::swapped;
use crate::thp::{HugeRequest, huge_request};

/// Rules of this module. Findings of the same severity are reported in this order.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Snapshot(swapped),
    FindingRule::Snapshot(writable_code),
    FindingRule::Snapshot(stale_files),
    FindingRule::Snapshot(old_versions_of_a_file),
    FindingRule::Snapshot(many_arenas),
    FindingRule::Snapshot(page_tables),
    FindingRule::Snapshot(huge_page_bloat),
    FindingRule::Snapshot(copied_file_pages),
    FindingRule::Snapshot(reserved_only),
    FindingRule::Snapshot(merged),
    FindingRule::Snapshot(spread_over_nodes),
];

/// Minimum number of swapped bytes for a finding. Fewer bytes are normal on a machine that swaps:
/// memory that the program used only at its start.
const SWAPPED: Bytes = Bytes::mib(1);
/// Minimum swapped share for a warning: from this share on, the process is likely to wait for its
/// own memory.
const MOSTLY_SWAPPED: f64 = 0.25;

/// Reports memory in swap.
fn swapped(subject: &ExplainSubject<'_>) -> Option<Finding> {
    // If swapped shared memory is unknown, the value is a lower bound.
    let swap =
        swapped::total(subject.snapshot).or_else(|_| swapped::private(subject.snapshot)).ok()?;
    let resident = resident(subject)?;
    if swap < SWAPPED {
        return None;
    }
    let mostly = swap.fraction_of(swap + resident).is_some_and(|share| share >= MOSTLY_SWAPPED);
    let held = |sums: &crate::pools::PoolSums| sums.swap.clone().unwrap_or_default();
    let most = subject.pools.list().iter().zip(&subject.sums).max_by_key(|(_, sums)| held(sums))?;
    Some(finding(
        "swapped",
        if mostly { Severity::Warning } else { Severity::Note },
        [bytes(swap), text(" of its memory is in swap: the machine was short of memory.")],
        [
            size("swap", "swap", swap),
            size("resident", "RES", resident),
            fact("most", "most of it from", CellValue::Name(most.0.name.clone()), ""),
            size("most_swap", "that is", held(most.1)),
        ],
        vec![text(
            "Watch `vmstat 1`: a column `si` that stays above 0 means that these pages are wanted back. \
             If so, give the machine or the cgroup more memory.",
        )],
    ))
}

/// Mappings that are both writable and executable.
pub(crate) struct WritableCode {
    pub(crate) total: Bytes,
    pub(crate) mappings: u64,
    /// Index of the largest of these mappings.
    pub(crate) largest: usize,
}

/// Prefixes of the names of programs and libraries that compile code at run time, and therefore
/// need writable code.
const COMPILERS: &[&str] = &[
    "java",
    "libjvm",
    "node",
    "libnode",
    "deno",
    "bun",
    "chrom",
    "electron",
    "msedge",
    "opera",
    "libv8",
    "libcef",
    "firefox",
    "libxul",
    "libmozjs",
    "gjs",
    "libjavascriptcore",
    "libwebkit",
    "libQt5Qml",
    "libQt6Qml",
    "qemu",
    "luajit",
    "libluajit",
    "libLLVM",
    "libgccjit",
    "mono",
    "libmono",
    "dotnet",
    "libcoreclr",
    "libclrjit",
    "php",
    "beam",
    "ruby",
    "libruby",
    "pypy",
    "libpypy",
    "julia",
    "libjulia",
    "libpcre",
    "erlexec",
    "wasmtime",
    "libwasm",
    "sbcl",
    "gforth",
    "valgrind",
    "memcheck",
    "racket",
    "libtcc",
    "pharo",
    "squeak",
    "openresty",
    "swipl",
];

/// Size of the writable code that a just-in-time compiler or libffi explains.
fn explained_code(subject: &ExplainSubject<'_>) -> Bytes {
    /// Maximum number of bytes for callbacks: libffi creates a callback of some dozen bytes for
    /// each function that C code may call.
    const CALLBACKS: Bytes = Bytes(256 << 10);
    let is_compiler =
        |name: &[u8]| COMPILERS.iter().any(|compiler| name.starts_with(compiler.as_bytes()));
    let objects = || subject.snapshot.objects.iter().map(|object| object.name.base());
    let exe = subject.snapshot.process.exe.as_ref().ok();
    if exe.is_some_and(|exe| is_compiler(exe.base())) || objects().any(is_compiler) {
        Bytes(u64::MAX)
    } else if objects().any(|name| name.starts_with(b"libffi")) {
        CALLBACKS
    } else {
        Bytes::ZERO
    }
}

/// Finds writable code; `None` if a just-in-time compiler or libffi explains all of it.
pub(crate) fn writable_memory(subject: &ExplainSubject<'_>) -> Option<WritableCode> {
    let is_writable = |mapping: &Mapping| mapping.prot.write && mapping.prot.exec;
    let is_compiled = |index: usize| subject.pools.pool_of(index).kind == PoolKind::Jit;
    let all = subject.mappings.iter().enumerate();
    let compiled = all.filter(|(at, it)| is_writable(it) && is_compiled(*at));
    let compiled: Bytes = compiled.map(|(_, mapping)| mapping.size()).sum();
    let is_explained = compiled <= explained_code(subject);
    let is_meant = |index: usize, mapping: &Mapping| {
        is_writable(mapping) && !(is_explained && is_compiled(index))
    };
    let mappings = || subject.mappings.iter().enumerate().filter(|(at, it)| is_meant(*at, it));
    let (largest, _) = mappings().max_by_key(|(_, mapping)| mapping.size())?;
    Some(WritableCode {
        total: mappings().map(|(_, mapping)| mapping.size()).sum(),
        mappings: mappings().count() as u64,
        largest,
    })
}

/// Returns the remedy for writable code in a pool.
pub(crate) fn writable_advice(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::MainStack | PoolKind::ThreadStack | PoolKind::CachedStack => {
            "An object file requests an executable stack: `readelf -lW FILE | grep GNU_STACK` shows RWE; \
             link with `-z noexecstack`."
        }
        PoolKind::Jit => {
            "Map code once to write and once to execute, or write it first and then drop PROT_WRITE with mprotect. If it is a \
             just-in-time compiler, use its option that keeps code write-protected (W^X)."
        }
        _ => {
            "Map it once to write and once to execute, or drop one of the two rights with mprotect."
        }
    }
}

fn writable_code(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let WritableCode { total, mappings, largest } = writable_memory(subject)?;
    let kind = subject.pools.pool_of(largest).kind;
    // Anonymous code may be from a compiler that is linked statically.
    let severity = if kind == PoolKind::Jit { Severity::Note } else { Severity::Warning };
    let start = subject.mappings[largest].range.start;
    Some(finding(
        "writable-code",
        severity,
        [
            bytes(total),
            text(" is writable and executable at the same time: a stray write there becomes code."),
        ],
        [
            size("reserved", "reserved", total),
            fact("mappings", "mappings", CellValue::Count(mappings), ""),
            fact("largest", "the largest at", CellValue::Address(start), ""),
            fact("pool", "", CellValue::text(kind.label()), ""),
        ],
        vec![text(writable_advice(kind))],
    ))
}

/// Programs and libraries whose file was deleted or replaced after it was mapped.
pub(crate) struct StaleCode {
    /// Names of the programs and libraries, sorted; at least one.
    pub(crate) names: Vec<Name>,
    /// Address space of the mappings of these programs and libraries.
    pub(crate) reserved: Bytes,
}

fn is_code(kind: PoolKind) -> bool {
    matches!(kind, PoolKind::Library | PoolKind::Program | PoolKind::ProgramText)
}

/// Finds code of a process that differs from the files on disk; `None` if all code matches.
pub(crate) fn stale_code(subject: &ExplainSubject<'_>) -> Option<StaleCode> {
    let stale = |object: &&pagewise_model::object::ElfObject| {
        matches!(object.on_disk, Ok(OnDisk::Replaced | OnDisk::Missing))
    };
    let stale: HashSet<_> =
        subject.snapshot.objects.iter().filter(stale).map(|o| (o.device, o.inode)).collect();
    let (mut names, mut reserved) = (Vec::<Name>::new(), Bytes::ZERO);
    for (index, mapping) in subject.mappings.iter().enumerate() {
        let known = stale.contains(&(mapping.device, mapping.inode));
        if mapping.inode == 0 || !(known || mapping.is_deleted()) {
            continue;
        }
        let pool = subject.pools.pool_of(index);
        if is_code(pool.kind) {
            reserved += mapping.size();
            if names.last() != Some(&pool.name) {
                names.push(pool.name.clone());
            }
        }
    }
    names.sort();
    names.dedup();
    (!names.is_empty()).then_some(StaleCode { names, reserved })
}

fn stale_files(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let StaleCode { names, reserved } = stale_code(subject)?;
    let count = names.len();
    let first = names.first()?.clone();
    Some(finding(
        "stale-files",
        Severity::Warning,
        [
            CellValue::Count(count as u64),
            text(" of the files it runs (first "),
            CellValue::Name(first),
            text(
                ") were replaced or deleted after the process mapped them: it still runs the old code.",
            ),
        ],
        [
            size("reserved", "mapped", reserved),
            fact(
                "files",
                "files",
                CellValue::List(names.into_iter().map(CellValue::Name).collect()),
                "",
            ),
        ],
        vec![text("Restart it to run the new code and to free the old files' disk space.")],
    ))
}

/// Versions of one data file that were deleted or replaced, and that the process still maps.
pub(crate) struct OldVersions {
    /// Path of the file.
    pub(crate) name: Name,
    /// Number of deleted versions.
    pub(crate) count: u64,
    /// Address space of their mappings.
    pub(crate) mapped: Bytes,
    /// Their resident pages.
    pub(crate) resident: Reading<Bytes>,
}

/// Minimum number of deleted versions of one file that are trouble: a program that replaces a file
/// keeps the old version until its last reader has finished.
const MIN_VERSIONS: usize = 2;
/// Minimum address space of deleted versions that is trouble.
const MIN_OF_VERSIONS: Bytes = Bytes::mib(16);

/// Finds the data file with most address space in mappings of deleted versions. Ignores files that
/// are mapped for writing: programs delete their temporary files on purpose.
pub(crate) fn old_versions(subject: &ExplainSubject<'_>) -> Option<OldVersions> {
    let mut files: BTreeMap<&[u8], Vec<&Mapping>> = BTreeMap::new();
    for (index, mapping) in subject.mappings.iter().enumerate() {
        let is_data = mapping.backing() == Backing::File && mapping.is_deleted();
        if is_data && !is_code(subject.pools.pool_of(index).kind) {
            files.entry(mapping.path()).or_default().push(mapping);
        }
    }
    let versions = files.into_values().filter_map(|mappings| {
        let is_temporary = mappings.iter().any(|it| it.prot.write || it.prot.exec);
        let inodes: HashSet<_> = mappings.iter().map(|it| (it.device, it.inode)).collect();
        let mapped: Bytes = mappings.iter().map(|mapping| mapping.size()).sum();
        let is_much = inodes.len() >= MIN_VERSIONS && mapped >= MIN_OF_VERSIONS;
        (is_much && !is_temporary).then(|| OldVersions {
            name: Name::new(mappings[0].path()),
            count: inodes.len() as u64,
            mapped,
            resident: mappings.iter().map(|mapping| mapping.rss()).sum(),
        })
    });
    versions.max_by_key(|versions| versions.mapped)
}

/// Returns the sentence about old versions of a file.
pub(crate) fn old_versions_sentence(versions: &OldVersions) -> Vec<CellValue> {
    vec![
        text("The process still maps "),
        CellValue::Count(versions.count),
        text(" old versions of "),
        CellValue::Name(versions.name.clone()),
        text(", which were deleted or replaced: "),
        CellValue::Bytes(versions.mapped.0),
        text(" of files stay on the disk and may stay in the page cache until they are unmapped."),
    ]
}

fn old_versions_of_a_file(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let versions = old_versions(subject)?;
    let sentence = old_versions_sentence(&versions);
    Some(finding(
        "stale-files",
        Severity::Warning,
        sentence,
        [
            size("mapped", "mapped", versions.mapped),
            fact("versions", "old versions", CellValue::Count(versions.count), ""),
        ],
        vec![text(UNMAP_OLD_VERSIONS)],
    ))
}

/// Advice about old versions of a file.
pub(crate) const UNMAP_OLD_VERSIONS: &str =
    "Unmap the old version (munmap) after its last reader has changed to the new one.";

/// Minimum number of 64 MiB heaps of arenas for a finding. A server with eight worker threads
/// normally has eight.
const MANY_HEAPS: u64 = 16;

/// Reports a large number of glibc arenas.
fn many_arenas(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let in_use = |index: &usize| {
        subject.pools.pool_of(*index).kind == PoolKind::MallocArena
            && !subject.mappings[*index].prot.is_none()
    };
    let heaps = (0..subject.mappings.len())
        .filter(in_use)
        .map(|index| subject.mappings[index].size().0.div_ceil(ARENA_HEAP.0))
        .sum();
    if heaps < MANY_HEAPS {
        return None;
    }
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let (_, sums) = pools.clone().find(|(pool, _)| pool.kind == PoolKind::MallocArena)?;
    Some(finding(
        "many-arenas",
        Severity::Note,
        [
            text("malloc spreads over "),
            CellValue::Count(heaps),
            text(" arena heaps: memory freed in one does not serve threads of another."),
        ],
        [
            fact("heaps", "heaps", CellValue::Count(heaps), ""),
            size("reserved", "reserved", sums.reserved),
            fact("resident", "resident", CellValue::bytes(sums.resident.clone()), ""),
            fact("threads", "threads", CellValue::Count(subject.snapshot.process.threads), ""),
        ],
        vec![text(
            "Start it with MALLOC_ARENA_MAX=4 (or call mallopt(M_ARENA_MAX, 4)) and compare RES; \
             malloc_trim(0) releases free pages.",
        )],
    ))
}

/// Minimum size of page tables for a finding: 8 GiB of touched 4 KiB pages need 16 MiB.
const LARGE_TABLES: Bytes = Bytes::mib(16);
/// Minimum ratio of page tables to resident memory for a finding. Dense memory needs 8 bytes of
/// page table for each page, 0.2 % with 4 KiB pages; the minimum is twenty times that ratio.
const TABLES_TO_RESIDENT: f64 = 0.04;

/// True if page tables are large compared with the memory that they map.
pub(crate) fn are_large_tables(tables: Bytes, resident: Bytes) -> bool {
    tables >= LARGE_TABLES
        && tables.fraction_of(resident).is_none_or(|share| share >= TABLES_TO_RESIDENT)
}

/// Reports page tables that are large compared with the memory that they map.
fn page_tables(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let tables = *subject.snapshot.status.as_ref().ok()?.vm_pte.as_ref().ok()?;
    let resident = resident(subject)?;
    let large = are_large_tables(tables, resident);
    large.then(|| {
        finding(
            "large-page-tables",
            Severity::Warning,
            [
                bytes(tables),
                text(" of page tables map "),
                bytes(resident),
                text(" of resident memory: memory is touched sparsely, or was touched and then released."),
            ],
            [size("page_tables", "page tables", tables), size("resident", "RES", resident)],
            vec![text(
                "Keep data that is used together close together, use huge pages for large dense areas, and unmap areas instead \
                 of only freeing their pages (MADV_DONTNEED keeps the tables).",
            )],
        )
    })
}

/// Minimum number of bytes in huge pages for a finding: the bloat of fewer bytes is small.
const MUCH_HUGE: Bytes = Bytes::mib(128);
/// Minimum share of huge pages in RES for a finding: from this share on, the bloat of huge pages
/// dominates the waste of the process.
const MOSTLY_HUGE: f64 = 0.5;

/// Reports memory in huge pages that the program did not request with `MADV_HUGEPAGE`. Without
/// `smaps`, whose `VmFlags` show the request, the finding states that the program may have
/// requested the huge pages.
fn huge_page_bloat(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let is_huge = |m: &&Mapping| m.anon_huge().is_ok_and(|huge| !huge.is_zero());
    let all_huge = || subject.mappings.iter().filter(is_huge);
    let request = |m: &Mapping| huge_request(subject.snapshot, m);
    let is_known = all_huge().all(|m| request(m) != HugeRequest::Unknown);
    let huge = all_huge().filter(|m| request(m) != HugeRequest::Program);
    let huge: Bytes = huge.map(|m| m.anon_huge().unwrap_or_default()).sum();
    let resident = resident(subject)?;
    let share = huge.fraction_of(resident)?;
    let (id, cause, advice) = if is_known {
        (
            "huge-page-bloat",
            " is in transparent huge pages of mappings without MADV_HUGEPAGE: touching one byte makes a whole page resident.",
            "` measures how much of it was never written; \
                MADV_NOHUGEPAGE or PR_SET_THP_DISABLE keeps sparse memory small.",
        )
    } else {
        (
            "huge-pages",
            " is in transparent huge pages. This reading does not show whether the program asked for them (MADV_HUGEPAGE).",
            "` measures how much of it was never written. \
                `pagewise explain --full` reads VmFlags, which show MADV_HUGEPAGE as `hg`.",
        )
    };
    (huge >= MUCH_HUGE && share >= MOSTLY_HUGE).then(|| {
        finding(
            id,
            Severity::Note,
            [bytes(huge), text(" of "), bytes(resident), text(cause)],
            [
                size("anon_huge", "huge", huge),
                size("resident", "RES", resident),
                fact("share", "share", CellValue::Share(share), ""),
            ],
            command("`pagewise thp ", subject, advice),
        )
    })
}

/// Minimum number of copied bytes for a finding: a process copies pages of its libraries while it
/// relocates them, 10 MiB for a large library.
const MANY_COPIES: Bytes = Bytes::mib(16);
/// Minimum share of RES for a finding about copies.
const COPIES_TO_RESIDENT: f64 = 0.1;

/// Reports private copies of pages of mapped files.
fn copied_file_pages(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let is_private_file =
        |m: &&Mapping| m.sharing == Sharing::Private && m.backing() == Backing::File;
    let copies = || subject.mappings.iter().filter(is_private_file).map(|m| (anonymous(m), m));
    let total: Bytes = copies().map(|(bytes, _)| bytes).sum();
    let resident = resident(subject)?;
    let much = total >= MANY_COPIES && total.fraction_of(resident)? >= COPIES_TO_RESIDENT;
    let (most, file) = copies().max_by_key(|(bytes, _)| *bytes)?;
    much.then(|| {
        finding(
            "copied-file-pages",
            Severity::Note,
            [
                bytes(total),
                text(" of mapped file pages were written: they are private copies now, no longer shared."),
            ],
            [
                size("copied", "copied", total),
                size("resident", "RES", resident),
                fact("most", "most of it from", CellValue::Name(file.name.clone()), ""),
                size("most_copied", "that is", most),
            ],
            vec![text(
                "Map the file read-only if it need not be written, or MAP_SHARED if the writes are meant for the file; \
                 processes forked after the writes share the copies.",
            )],
        )
    })
}

/// Returns the resident anonymous bytes of a mapping; 0 if they were not counted.
fn anonymous(mapping: &Mapping) -> Bytes {
    match &mapping.pages {
        Ok(pages) => pages.breakdown.anon_exclusive + pages.breakdown.anon_co_mapped,
        Err(_) => mapping.counter(SmapsCounter::Anonymous).unwrap_or_default(),
    }
}

/// Minimum VIRT for a finding about reserved address space.
const HUGE_VIRT: Bytes = Bytes::gib(8);
/// Maximum ratio of RES to VIRT for a finding: below this ratio, VIRT does not indicate the used
/// memory.
const LITTLE_RESIDENT: f64 = 1.0 / 16.0;

/// Reports a huge address space with a small resident part. Address space that every process of a
/// language runtime reserves is excluded.
fn reserved_only(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let statm = subject.snapshot.statm.as_ref().ok()?;
    let share = statm.resident.fraction_of(statm.size)?;
    if statm.size < HUGE_VIRT || share > LITTLE_RESIDENT {
        return None;
    }
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let (pool, sums) = pools.max_by_key(|(_, sums)| sums.reserved)?;
    if is_usual_reserve(subject, pool.kind) {
        return None;
    }
    Some(finding(
        "reserved-only",
        Severity::Note,
        [
            bytes(statm.size),
            text(" of address space is reserved and only "),
            bytes(statm.resident),
            text(" resident: untouched pages cost nothing."),
        ],
        [
            size("virt", "VIRT", statm.size),
            size("resident", "RES", statm.resident),
            fact("most", "most of it", CellValue::text(pool.kind.label()), ""),
            fact("name", "", CellValue::Name(pool.name.clone()), ""),
            size("most_reserved", "that is", sums.reserved),
        ],
        vec![text(
            "Nothing to do: judge it by RES or PSS, and limit it with a memory cgroup rather than with RLIMIT_AS (`ulimit -v`).",
        )],
    ))
}

/// True if a language runtime, a sanitizer or malloc reserves the address space, or if the address
/// space is inaccessible. A program that fills its memory later maps it with access rights.
fn is_usual_reserve(subject: &ExplainSubject<'_>, largest: PoolKind) -> bool {
    let is_of_runtime = LanguageRuntime::of_process(subject.snapshot).is_some();
    let kinds = [PoolKind::Sanitizer, PoolKind::Go, PoolKind::MallocArena, PoolKind::Reserve];
    is_of_runtime || kinds.contains(&largest)
}

/// Minimum number of merged bytes for a finding.
const MERGED: Bytes = Bytes::mib(1);

/// Reports pages that KSM merged, or memory that the process loses by KSM.
fn merged(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let ksm = subject.snapshot.ksm.as_ref().ok()?;
    let page_size = subject.snapshot.provenance.page_size;
    let merged = page_size.pages(ksm.merging_pages);
    let loss = ksm.profit.filter(|&profit| profit < 0);
    if merged < MERGED && loss.is_none() {
        return None;
    }
    let profit = ksm.profit.map_or(CellValue::None, CellValue::Change);
    let (severity, claim, next_step) = match loss {
        Some(_) => (
            Severity::Warning,
            " is merged by KSM, which costs this process more than it saves.",
            "Remove MADV_MERGEABLE (or PR_SET_MEMORY_MERGE) where pages are seldom equal.",
        ),
        None => (
            Severity::Note,
            " is merged by KSM with equal pages: a write to one copies it again.",
            "Nothing to do; if other tenants must not be able to time your writes, switch merging off.",
        ),
    };
    Some(finding(
        "merged-pages",
        severity,
        [bytes(merged), text(claim)],
        [size("merged", "merged", merged), fact("profit", "saved", profit, "")],
        vec![text(next_step)],
    ))
}

/// Minimum resident memory for a finding about NUMA nodes: the CPU caches hold a sufficient part of
/// a smaller process.
const MUCH_ON_NODES: Bytes = Bytes::gib(1);
/// Minimum share of the resident memory on one node for a finding: the node is then a bottleneck
/// for the threads on other nodes.
const FULLEST_NODE: f64 = 0.75;
/// Minimum share of the resident memory on other nodes for a finding: with a smaller share, the
/// process is local to one node.
const OTHER_NODES: f64 = 0.05;

/// The NUMA node that has most of a process's memory.
pub(crate) struct FullestNode {
    pub(crate) node: u32,
    pub(crate) resident: Bytes,
    pub(crate) total: Bytes,
    pub(crate) share: f64,
}

impl FullestNode {
    /// Finds the node; `None` if the memory of each node is unknown.
    pub(crate) fn of(subject: &ExplainSubject<'_>) -> Option<FullestNode> {
        let nodes = subject.snapshot.numa.as_ref().ok()?;
        let total: Bytes = nodes.iter().map(|node| node.resident).sum();
        let fullest = nodes.iter().max_by_key(|node| node.resident)?;
        let (node, resident) = (fullest.node, fullest.resident);
        Some(FullestNode { node, resident, total, share: resident.fraction_of(total)? })
    }

    /// True if threads on other nodes access most of the memory remotely.
    pub(crate) fn is_uneven(&self, threads: u64) -> bool {
        let is_uneven = (FULLEST_NODE..=1.0 - OTHER_NODES).contains(&self.share);
        is_uneven && self.total >= MUCH_ON_NODES && threads > 1
    }
}

/// Reports a NUMA imbalance.
fn spread_over_nodes(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let fullest = FullestNode::of(subject)?;
    let threads = subject.snapshot.process.threads;
    let (share, total) = (fullest.share, fullest.total);
    fullest.is_uneven(threads).then(|| {
        finding(
            "numa-imbalance",
            Severity::Note,
            [
                CellValue::Share(share),
                text(" of its memory is on node "),
                CellValue::Count(fullest.node.into()),
                text(", the rest on others: threads on other nodes access it remotely."),
            ],
            [
                size("fullest", "fullest node", fullest.resident),
                size("total", "all nodes", total),
                fact("threads", "threads", CellValue::Count(threads), ""),
            ],
            vec![text(
                "Start it with `numactl --interleave=all` for even access, or with `--cpunodebind` and `--membind` to keep it on one node.",
            )],
        )
    })
}

fn resident(subject: &ExplainSubject<'_>) -> Option<Bytes> {
    subject.snapshot.statm.as_ref().ok().map(|statm| statm.resident)
}
