//! Causes of TLB shootdowns, and how to avoid them.

use pagewise_model::report::{CellValue, Fact, Finding, Severity};

use super::{FindingRule, fact};
use crate::cells::{float, ratio, text};
use crate::shootdowns::causes::Cause;
use crate::shootdowns::{FlushSum, ShootdownCauses};

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::ShootdownCauses(causes),
    FindingRule::Shootdowns(many_cpus),
    FindingRule::Shootdowns(for_nothing),
    FindingRule::Shootdowns(from_others),
];

/// Minimum number of shootdowns for a finding, whatever they cost.
const FEWEST: u64 = 100;
/// Rate per second from which on a cause is worth advice.
const OFTEN: f64 = 100.0;
/// Share of the recorded time, spent waiting for other CPUs, from which on a cause is worth advice.
const MUCH: f64 = 0.002;
/// From this share on, the finding is a warning.
const TOO_MUCH: f64 = 0.02;
/// A flush request for at most this number of pages is small.
const FEW_PAGES: f64 = 8.0;
/// Number of CPUs per shootdown from which on their number is the main cost.
const MANY_CPUS: f64 = 4.0;

/// `madvise`: `MADV_DONTNEED`, `MADV_FREE`.
const DONTNEED: u64 = 4;
const FREE: u64 = 8;

/// Number of shootdowns, or of flush requests if the interrupted CPUs are unknown.
fn shootdowns(told: &ShootdownCauses<'_>, sum: &FlushSum) -> u64 {
    if told.has_queue() { sum.shootdowns } else { sum.orders }
}

fn per_second(told: &ShootdownCauses<'_>, count: u64) -> f64 {
    ratio(count, told.recording.took_ns).map_or(0.0, |per_ns| per_ns * 1e9)
}

fn evidence(told: &ShootdownCauses<'_>, sum: &FlushSum) -> Vec<Fact> {
    let count = shootdowns(told, sum);
    let waited =
        ratio(sum.waited, told.recording.took_ns).map_or(CellValue::None, CellValue::Share);
    let pages = sum.pages_per_order().map_or(CellValue::None, CellValue::Number);
    vec![
        fact("shootdowns", "shootdowns", CellValue::Count(count), ""),
        fact("per_s", "rate", CellValue::Rate(per_second(told, count)), ""),
        fact("waited_share", "waited, of the time", told.ended(waited), ""),
        fact("pages_per_order", "pages each", pages, ""),
    ]
}

/// One finding for each cause that costs enough.
fn causes(told: &ShootdownCauses<'_>) -> Vec<Finding> {
    let causes = told.by_cause().into_iter();
    causes.filter_map(|(cause, sum)| of_cause(told, cause, &sum)).collect()
}

fn of_cause(told: &ShootdownCauses<'_>, cause: &Cause, sum: &FlushSum) -> Option<Finding> {
    let count = shootdowns(told, sum);
    let waited = ratio(sum.waited, told.recording.took_ns).unwrap_or(0.0);
    let is_much = waited >= MUCH || per_second(told, count) >= OFTEN;
    if count < FEWEST || !is_much {
        return None;
    }
    let severity = if waited >= TOO_MUCH { Severity::Warning } else { Severity::Note };
    let (id, advice) = advice(cause, sum)?;
    let claim = vec![
        CellValue::text(cause.name()),
        text(" interrupts other CPUs: "),
        CellValue::Count(count),
        text(" times ("),
        CellValue::Rate(per_second(told, count)),
        text(")."),
    ];
    let evidence = evidence(told, sum);
    Some(Finding { id, severity, claim, evidence, next_step: vec![text(advice)] })
}

/// Remedy for a cause; `None` if none is known.
pub(crate) fn advice(cause: &Cause, sum: &FlushSum) -> Option<(&'static str, &'static str)> {
    let is_small = sum.pages_per_order().is_some_and(|pages| pages <= FEW_PAGES);
    Some(match cause {
        Cause::Call { name, advice } => match (name.as_str(), advice) {
            ("madvise" | "process_madvise", Some(DONTNEED)) if is_small => (
                "dontneed-by-pages",
                "Release memory in larger ranges, or less often: each call is a shootdown, regardless of the number of pages. \
                 MADV_FREE flushes as well. An allocator that does it has a setting: \
                 dirty_decay_ms of jemalloc, TCMALLOC_RELEASE_RATE, MIMALLOC_PURGE_DELAY.",
            ),
            ("madvise" | "process_madvise", Some(DONTNEED)) => (
                "dontneed",
                "Release memory less often. MADV_FREE does not help: it flushes as well, because it marks the pages clean.",
            ),
            ("madvise" | "process_madvise", Some(FREE)) => (
                "free",
                "Advise larger ranges, or less often: with several CPUs even MADV_FREE flushes, because it marks the pages clean.",
            ),
            ("munmap", _) => (
                "munmap",
                "Keep mappings and use them again instead of unmapping and mapping. For glibc's malloc: mallopt(M_MMAP_THRESHOLD) and \
                 mallopt(M_TRIM_THRESHOLD), or GLIBC_TUNABLES=glibc.malloc.mmap_threshold=..:glibc.malloc.trim_threshold=...",
            ),
            ("brk", _) => (
                "brk",
                "malloc trims the top of the heap and extends it again: raise mallopt(M_TRIM_THRESHOLD), \
                 or GLIBC_TUNABLES=glibc.malloc.trim_threshold=...",
            ),
            ("mprotect" | "pkey_mprotect", _) => (
                "mprotect",
                "Change the protection of a whole range at once, or not in the hot path. Protection keys (pkey_alloc, pkey_set) \
                 change what a thread may do with no flush at all.",
            ),
            ("mremap", _) => (
                "mremap",
                "Moving page tables flushes, as realloc of a large block does: reserve address space in advance and grow in place.",
            ),
            ("clone" | "clone3" | "fork", _) => (
                "fork",
                "fork write-protects all memory of a program that has threads, and each write then is a fault and a flush. \
                 If the child executes another program, use posix_spawn or vfork, which do neither. Otherwise fork less often, \
                 or from a small helper process that was made at the start.",
            ),
            ("exit_group" | "exit" | "execve" | "execveat", _) => return None,
            _ => ("system-call", "Make this call less often, or for larger ranges at once."),
        },
        Cause::Write => (
            "copy-on-write",
            "Pages are copied when they are written after a fork, or are private and of a file, or were read before they were \
             ever written: write to them before there are more threads, keep them out of children (MADV_DONTFORK), or do not \
             fork a program with threads.",
        ),
        Cause::Numa => (
            "numa-balancing",
            "NUMA balancing unmaps pages to find out which node uses them: bind memory and threads (numactl) and switch it off with \
             `sysctl kernel.numa_balancing=0`.",
        ),
        Cause::Ksm => (
            "ksm",
            "KSM write-protects pages to merge them: `echo 2 > /sys/kernel/mm/ksm/run` unmerges all pages and stops KSM; to scan less: \
             /sys/kernel/mm/ksm/pages_to_scan, sleep_millisecs.",
        ),
        Cause::Collapse => (
            "collapse",
            "khugepaged collapses base pages into huge pages: use huge pages from the first touch (madvise(MADV_HUGEPAGE), aligned), or \
             let it scan less: /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs.",
        ),
        Cause::Compaction => (
            "compaction",
            "The kernel moves pages to make huge ones: `sysctl vm.compaction_proactiveness=0`, and transparent_hugepage/defrag \
             `defer` or `madvise`. `pagewise fragmentation` shows the free huge pages.",
        ),
        Cause::Reclaim => (
            "reclaim",
            "Memory is short, and the kernel unmaps pages to reclaim them: give the machine or the cgroup more memory, or lock these \
             with mlock. `pagewise doctor` checks the settings.",
        ),
        Cause::WriteBack => (
            "write-back",
            "Pages of a shared file mapping are write-protected each time they are written back: write back less often \
             (vm.dirty_expire_centisecs), or put the file on tmpfs.",
        ),
        Cause::Fault
        | Cause::Migration
        | Cause::Exit
        | Cause::KernelCode
        | Cause::Other
        | Cause::Hidden => return None,
    })
}

/// Shootdowns that interrupt many CPUs each.
fn many_cpus(told: &ShootdownCauses<'_>) -> Option<Finding> {
    let FlushSum { shootdowns, ipis, .. } = told.all;
    let each = ratio(ipis, shootdowns).filter(|each| *each >= MANY_CPUS)?;
    if !told.has_queue() || shootdowns < FEWEST || per_second(told, shootdowns) < OFTEN {
        return None;
    }
    Some(Finding {
        id: "many-cpus",
        severity: Severity::Note,
        claim: vec![text("Each shootdown interrupts "), CellValue::Number(each), text(" CPUs.")],
        evidence: evidence(told, &told.all),
        next_step: vec![text(
            "A flush request goes to every CPU that runs the process: fewer threads, threads bound to fewer CPUs (taskset, cpuset), or \
             several processes instead of threads make requests cheaper.",
        )],
    })
}

/// Requests that interrupt no CPU.
fn for_nothing(told: &ShootdownCauses<'_>) -> Option<Finding> {
    let FlushSum { orders, shootdowns, .. } = told.all;
    let idle = orders.saturating_sub(shootdowns);
    let most = ratio(idle, orders)? > 0.5;
    if !told.has_queue() || idle < FEWEST || !most {
        return None;
    }
    Some(Finding {
        id: "orders-for-nobody",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(idle),
            text(" of "),
            CellValue::Count(orders),
            text(" flush requests interrupted no CPU."),
        ],
        evidence: vec![fact("shootdowns", "shootdowns", CellValue::Count(shootdowns), "")],
        next_step: vec![text(
            "Nothing to do: the process ran on other CPUs before, and those run other work or are idle now. \
             tlb:tlb_flush counts such requests too.",
        )],
    })
}

/// Flushes that no recorded thread requested.
fn from_others(told: &ShootdownCauses<'_>) -> Option<Finding> {
    let received = told.received();
    let is_one = told.recording.pid.is_some();
    let foreign = *told.recording.foreign.as_ref().ok().filter(|_| is_one)?;
    if foreign < FEWEST || float(foreign) < 0.1 * float(received) {
        return None;
    }
    Some(Finding {
        id: "from-others",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(foreign),
            text(" of "),
            CellValue::Count(received),
            text(" flushes that interrupted it were requested by other processes or the kernel."),
        ],
        evidence: vec![fact("per_s", "rate", CellValue::Rate(per_second(told, foreign)), "")],
        next_step: vec![text(
            "`pagewise shootdowns --system --for 10s` shows the source: KSM, khugepaged, compaction and reclaim run as the kernel's \
             own threads.",
        )],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MADV_FREE flushes too: it clears the dirty bits of the pages (`madvise_free_pte_range`).
    #[test]
    fn no_advice_replaces_a_call_by_madv_free() {
        let calls = ["madvise", "process_madvise", "munmap", "brk", "mprotect", "mremap", "mmap"];
        let flags = [None, Some(DONTNEED), Some(FREE)];
        let mut mentions = 0;
        for (name, advised) in calls.iter().flat_map(|call| flags.map(|it| (call, it))) {
            let cause = Cause::Call { name: (*name).to_owned(), advice: advised };
            for pages in [1, 1000] {
                let sum = FlushSum { orders: 1, pages, ..FlushSum::default() };
                let Some((_, words)) = advice(&cause, &sum) else { continue };
                for sentence in words.split(". ").filter(|it| it.contains("MADV_FREE")) {
                    mentions += 1;
                    assert!(sentence.contains("flushes"), "{name}: {sentence}");
                }
            }
        }
        assert!(mentions >= 3, "{mentions}");
    }

    #[test]
    fn causes_inside_the_kernel_have_advice() {
        let own = [Cause::Numa, Cause::Ksm, Cause::Collapse, Cause::Compaction, Cause::Reclaim];
        for cause in own {
            assert!(advice(&cause, &FlushSum::default()).is_some());
        }
        assert!(advice(&Cause::Other, &FlushSum::default()).is_none());
    }
}
