//! Findings about what a process's memory is used for.

use pagewise_model::object::OnDisk;
use pagewise_model::report::{Finding, Severity, Value};
use pagewise_model::{Backing, Bytes, Counter, Mapping, Name, Sharing};

use super::{bytes, command, fact, finding, size, text};
use crate::explain::Subject;
use crate::pools::{ARENA_HEAP, Kind};
use crate::swapped;

/// Less in swap than this is what start-up code leaves there on any machine that swaps.
const SWAPPED: Bytes = Bytes::mib(1);
/// From this share on, the process is likely to wait for its own memory.
const MOSTLY_SWAPPED: f64 = 0.25;

/// Memory in swap.
pub(super) fn swapped(subject: &Subject<'_>) -> Option<Finding> {
    // Where swapped shared memory is unknown, at least so much.
    let swap =
        swapped::total(subject.snapshot).or_else(|_| swapped::private(subject.snapshot)).ok()?;
    let resident = resident(subject)?;
    if swap < SWAPPED {
        return None;
    }
    let mostly = swap.fraction_of(swap + resident).is_some_and(|share| share >= MOSTLY_SWAPPED);
    let held = |sums: &crate::pools::Sums| sums.swap.clone().unwrap_or_default();
    let most = subject.pools.list().iter().zip(&subject.sums).max_by_key(|(_, sums)| held(sums))?;
    Some(finding(
        "swapped",
        if mostly { Severity::Warning } else { Severity::Note },
        [bytes(swap), text(" of its memory is in swap: the machine was short of memory.")],
        [
            size("swap", "swap", swap),
            size("resident", "RES", resident),
            fact("most", "most of it from", Value::Name(most.0.name.clone()), ""),
            size("most_swap", "that is", held(most.1)),
        ],
        vec![text(
            "Watch `vmstat 1`: a column `si` that stays above 0 means that these pages are wanted back. \
             If so, give the machine or the cgroup more memory.",
        )],
    ))
}

/// Memory that is writable and executable at once.
pub(super) fn writable_code(subject: &Subject<'_>) -> Option<Finding> {
    let mappings =
        || subject.mappings.iter().enumerate().filter(|(_, m)| m.prot.write && m.prot.exec);
    let (index, largest) = mappings().max_by_key(|(_, m)| m.size())?;
    let total: Bytes = mappings().map(|(_, m)| m.size()).sum();
    let kind = subject.pools.of(index).kind;
    let (severity, next_step) = match kind {
        // What runs Java or JavaScript is made so, and most of it has a switch.
        Kind::Jit => (
            Severity::Note,
            "If it is a just-in-time compiler, look for its option to keep code write-protected (W^X).",
        ),
        Kind::MainStack | Kind::ThreadStack | Kind::CachedStack => (
            Severity::Warning,
            "An executable stack is asked for by some object file: `readelf -lW FILE | grep GNU_STACK` shows RWE; \
             link with `-z noexecstack`.",
        ),
        _ => (
            Severity::Warning,
            "Map it once to write and once to execute, or drop one of the two rights with mprotect.",
        ),
    };
    Some(finding(
        "writable-code",
        severity,
        [
            bytes(total),
            text(" is writable and executable at once: a stray write there becomes code."),
        ],
        [
            size("reserved", "reserved", total),
            fact("mappings", "mappings", Value::Count(mappings().count() as u64), ""),
            fact("largest", "the largest at", Value::Address(largest.range.start), ""),
            fact("pool", "", Value::text(kind.label()), ""),
        ],
        vec![text(next_step)],
    ))
}

/// Programs and libraries whose file was deleted or replaced since.
pub(super) fn stale_files(subject: &Subject<'_>) -> Option<Finding> {
    let stale = |object: &&pagewise_model::object::Object| {
        matches!(object.on_disk, Ok(OnDisk::Replaced | OnDisk::Missing))
    };
    let stale: std::collections::HashSet<_> =
        subject.snapshot.objects.iter().filter(stale).map(|o| (o.device, o.inode)).collect();
    let is_code = |kind| matches!(kind, Kind::Library | Kind::Program | Kind::ProgramText);
    let (mut names, mut reserved) = (Vec::<Name>::new(), Bytes::ZERO);
    for (index, mapping) in subject.mappings.iter().enumerate() {
        let known = stale.contains(&(mapping.device, mapping.inode));
        if mapping.inode == 0 || !(known || mapping.is_deleted()) {
            continue;
        }
        let pool = subject.pools.of(index);
        if is_code(pool.kind) {
            reserved += mapping.size();
            if names.last() != Some(&pool.name) {
                names.push(pool.name.clone());
            }
        }
    }
    names.sort();
    names.dedup();
    let count = names.len();
    let first = names.first()?.clone();
    Some(finding(
        "stale-files",
        Severity::Warning,
        [
            Value::Count(count as u64),
            text(" of the files it runs (first "),
            Value::Name(first),
            text(") were replaced or deleted since: it still runs the old code."),
        ],
        [
            size("reserved", "mapped", reserved),
            fact("files", "files", Value::List(names.into_iter().map(Value::Name).collect()), ""),
        ],
        vec![text("Restart it to run the new code and to free the old files' disk space.")],
    ))
}

/// A server with eight worker threads has eight arenas, and that is well.
const MANY_HEAPS: u64 = 16;

/// glibc arenas.
pub(super) fn many_arenas(subject: &Subject<'_>) -> Option<Finding> {
    let in_use = |index: &usize| {
        subject.pools.of(*index).kind == Kind::MallocArena
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
    let (_, sums) = pools.clone().find(|(pool, _)| pool.kind == Kind::MallocArena)?;
    Some(finding(
        "many-arenas",
        Severity::Note,
        [
            text("malloc spreads over "),
            Value::Count(heaps),
            text(" arena heaps: memory freed in one does not serve threads of another."),
        ],
        [
            fact("heaps", "heaps", Value::Count(heaps), ""),
            size("reserved", "reserved", sums.reserved),
            fact("resident", "resident", Value::bytes(sums.resident.clone()), ""),
            fact("threads", "threads", Value::Count(subject.snapshot.process.threads), ""),
        ],
        vec![text(
            "Start it with MALLOC_ARENA_MAX=4 (or call mallopt(M_ARENA_MAX, 4)) and compare RES; \
             malloc_trim(0) gives back what is free.",
        )],
    ))
}

/// Page tables below this are nobody's trouble: 8 GiB of touched 4 KiB pages need 16 MiB.
const LARGE_TABLES: Bytes = Bytes::mib(16);
/// Dense memory takes 8 bytes of page table a page, 0.2 % with 4 KiB pages; this is twenty times that.
const TABLES_TO_RESIDENT: f64 = 0.04;

/// Page tables that are large beside what they map.
pub(super) fn page_tables(subject: &Subject<'_>) -> Option<Finding> {
    let tables = *subject.snapshot.status.as_ref().ok()?.vm_pte.as_ref().ok()?;
    let resident = resident(subject)?;
    let large = tables >= LARGE_TABLES
        && tables.fraction_of(resident).is_none_or(|share| share >= TABLES_TO_RESIDENT);
    large.then(|| {
        finding(
            "large-page-tables",
            Severity::Warning,
            [
                bytes(tables),
                text(" of page tables map "),
                bytes(resident),
                text(" of resident memory: it is touched sparsely, or was and then given back."),
            ],
            [size("page_tables", "page tables", tables), size("resident", "RES", resident)],
            vec![text(
                "Keep what is used close together, use huge pages for large dense areas, and unmap areas instead \
                 of only freeing their pages (MADV_DONTNEED keeps the tables).",
            )],
        )
    })
}

/// Fewer huge pages than this cannot bloat by much.
const MUCH_HUGE: Bytes = Bytes::mib(128);
/// From this share of RES on, what huge pages waste is what the process wastes.
const MOSTLY_HUGE: f64 = 0.5;

/// Memory in huge pages that the program did not request with `MADV_HUGEPAGE`, or may not have requested: only `smaps` has the `VmFlags`
/// that show it.
pub(super) fn huge_page_bloat(subject: &Subject<'_>) -> Option<Finding> {
    let is_huge = |m: &&Mapping| m.anon_huge().is_ok_and(|huge| !huge.is_zero());
    let all_huge = || subject.mappings.iter().filter(is_huge);
    let is_known = all_huge().all(|m| asked_for_huge_pages(m).is_some());
    let huge = all_huge().filter(|m| asked_for_huge_pages(m) != Some(true));
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
                fact("share", "share", Value::Share(share), ""),
            ],
            command("`pagewise thp ", subject, advice),
        )
    })
}

/// Whether the program marked a mapping with `MADV_HUGEPAGE`. `None` if its `VmFlags` were not read.
fn asked_for_huge_pages(mapping: &Mapping) -> Option<bool> {
    let flags = mapping.smaps.as_ref().ok()?.flags.as_ref()?;
    Some(flags.has("hg"))
}

/// Every process copies some pages of its libraries while it relocates them: a large one 10 MiB.
const MANY_COPIES: Bytes = Bytes::mib(16);
/// Fewer than this are lost in the rest of the process.
const COPIES_TO_RESIDENT: f64 = 0.1;

/// Private copies of pages of mapped files.
pub(super) fn copied_file_pages(subject: &Subject<'_>) -> Option<Finding> {
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
                text(" of pages of mapped files were written and are now private copies, no longer shared."),
            ],
            [
                size("copied", "copied", total),
                size("resident", "RES", resident),
                fact("most", "most of it from", Value::Name(file.name.clone()), ""),
                size("most_copied", "that is", most),
            ],
            vec![text(
                "Map the file read-only where it need not be written, or MAP_SHARED where the writes are meant for it; \
                 processes forked after the writes share the copies.",
            )],
        )
    })
}

/// Resident anonymous pages of a mapping; none where nobody counted.
fn anonymous(mapping: &Mapping) -> Bytes {
    match &mapping.pages {
        Ok(pages) => pages.breakdown.anon_exclusive + pages.breakdown.anon_co_mapped,
        Err(_) => mapping.counter(Counter::Anonymous).unwrap_or_default(),
    }
}

/// More address space than this makes people who read VIRT ask.
const HUGE_VIRT: Bytes = Bytes::gib(8);
/// With less than this resident, VIRT says nothing about memory.
const LITTLE_RESIDENT: f64 = 1.0 / 16.0;

/// Huge address space of which little is resident.
pub(super) fn reserved_only(subject: &Subject<'_>) -> Option<Finding> {
    let statm = subject.snapshot.statm.as_ref().ok()?;
    let share = statm.resident.fraction_of(statm.size)?;
    if statm.size < HUGE_VIRT || share > LITTLE_RESIDENT {
        return None;
    }
    let pools = subject.pools.list().iter().zip(&subject.sums);
    let (pool, sums) = pools.max_by_key(|(_, sums)| sums.reserved)?;
    Some(finding(
        "reserved-only",
        Severity::Note,
        [
            bytes(statm.size),
            text(" of address space is reserved and only "),
            bytes(statm.resident),
            text(" resident: "),
            text(who_reserves(subject, pool.kind)),
            text("."),
        ],
        [
            size("virt", "VIRT", statm.size),
            size("resident", "RES", statm.resident),
            fact("most", "most of it", Value::text(pool.kind.label()), ""),
            fact("name", "", Value::Name(pool.name.clone()), ""),
            size("most_reserved", "that is", sums.reserved),
        ],
        vec![text(
            "Nothing to do: judge it by RES or PSS, and limit it with a memory cgroup rather than with RLIMIT_AS (`ulimit -v`).",
        )],
    ))
}

fn who_reserves(subject: &Subject<'_>, largest: Kind) -> &'static str {
    let has_java = || subject.pools.list().iter().any(|pool| pool.name.base() == b"libjvm.so");
    match largest {
        Kind::Sanitizer => "a sanitizer keeps its shadow memory there",
        Kind::Go => "Go keeps room for its heap there",
        Kind::MallocArena => "each arena of glibc's malloc keeps 64M of room",
        _ if has_java() => "the Java virtual machine keeps room for its heap there",
        Kind::Reserve => "the program keeps room there without any access",
        _ => "untouched pages cost nothing",
    }
}

/// Less than this merged is not worth a word.
const MERGED: Bytes = Bytes::mib(1);

/// KSM.
pub(super) fn merged(subject: &Subject<'_>) -> Option<Finding> {
    let ksm = subject.snapshot.ksm.as_ref().ok()?;
    let page_size = subject.snapshot.provenance.page_size;
    let merged = page_size.pages(ksm.merging_pages);
    let loss = ksm.profit.filter(|&profit| profit < 0);
    if merged < MERGED && loss.is_none() {
        return None;
    }
    let profit = ksm.profit.map_or(Value::None, Value::Change);
    let (severity, claim, next_step) = match loss {
        Some(_) => (
            Severity::Warning,
            " is merged by KSM, which costs this process more than it saves.",
            "Withdraw MADV_MERGEABLE (or PR_SET_MEMORY_MERGE) where pages are seldom alike.",
        ),
        None => (
            Severity::Note,
            " is merged by KSM with equal pages: a write to one copies it again.",
            "Nothing to do; where other tenants must not be able to time your writes, turn merging off.",
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

/// Smaller processes fit the caches well enough.
const MUCH_ON_NODES: Bytes = Bytes::gib(1);
/// One node with this much is a bottleneck for the threads on the others.
const FULLEST_NODE: f64 = 0.75;
/// Less than this elsewhere: the process lives on one node, and that is well.
const OTHER_NODES: f64 = 0.05;

/// NUMA imbalance.
pub(super) fn spread_over_nodes(subject: &Subject<'_>) -> Option<Finding> {
    let nodes = subject.snapshot.numa.as_ref().ok()?;
    let total: Bytes = nodes.iter().map(|node| node.resident).sum();
    let fullest = nodes.iter().max_by_key(|node| node.resident)?;
    let share = fullest.resident.fraction_of(total)?;
    let uneven = (FULLEST_NODE..=1.0 - OTHER_NODES).contains(&share);
    let threads = subject.snapshot.process.threads;
    (uneven && total >= MUCH_ON_NODES && threads > 1).then(|| {
        finding(
            "numa-imbalance",
            Severity::Note,
            [
                Value::Share(share),
                text(" of its memory is on node "),
                Value::Count(fullest.node.into()),
                text(", the rest elsewhere: threads on other nodes reach across."),
            ],
            [
                size("fullest", "fullest node", fullest.resident),
                size("total", "all nodes", total),
                fact("threads", "threads", Value::Count(threads), ""),
            ],
            vec![text(
                "Start it with `numactl --interleave=all` for even access, or with `--cpunodebind` and `--membind` to keep it on one node.",
            )],
        )
    })
}

fn resident(subject: &Subject<'_>) -> Option<Bytes> {
    subject.snapshot.statm.as_ref().ok().map(|statm| statm.resident)
}
