//! What to change, by cause, where the numbers speak for it.

use std::cmp::Reverse;

use pagewise_model::report::{Fact, Finding, Severity, Value};

use super::causes::Cause;
use super::{Sum, Told, float, share};
use crate::explain::fact;

/// Fewer than this are not worth a word, whatever they cost.
const FEWEST: u64 = 100;
/// So many a second are worth one.
const OFTEN: f64 = 100.0;
/// So much of the time that was recorded, spent in waiting for other CPUs, is, too.
const MUCH: f64 = 0.002;
/// From here on it is a warning.
const TOO_MUCH: f64 = 0.02;
/// Orders for no more pages than this are small.
const FEW_PAGES: f64 = 8.0;
/// From so many CPUs for each shootdown on, their number is the cost.
const MANY_CPUS: f64 = 4.0;

/// `madvise`: `MADV_DONTNEED`, `MADV_FREE`.
const DONTNEED: u64 = 4;
const FREE: u64 = 8;

/// All that there is to say, the gravest first.
pub(super) fn all(told: &Told<'_>) -> Vec<Finding> {
    let rules = told.by_cause().into_iter().filter_map(|(cause, sum)| of_cause(told, cause, &sum));
    let mut all: Vec<Finding> = rules.collect();
    all.extend([many_cpus(told), for_nothing(told), from_others(told)].into_iter().flatten());
    all.sort_by_key(|finding| Reverse(finding.severity));
    all
}

fn text(text: &'static str) -> Value {
    Value::text(text)
}

/// How many shootdowns: orders, where it is not told whom they interrupt.
fn shootdowns(told: &Told<'_>, sum: &Sum) -> u64 {
    if told.has_queue() { sum.shootdowns } else { sum.orders }
}

fn per_second(told: &Told<'_>, count: u64) -> f64 {
    share(count, told.recording.took_ns).map_or(0.0, |per_ns| per_ns * 1e9)
}

fn evidence(told: &Told<'_>, sum: &Sum) -> Vec<Fact> {
    let count = shootdowns(told, sum);
    let waited = share(sum.waited, told.recording.took_ns).map_or(Value::None, Value::Share);
    let pages = sum.pages_per_order().map_or(Value::None, Value::Number);
    vec![
        fact("shootdowns", "shootdowns", Value::Count(count), ""),
        fact("per_s", "rate", Value::Rate(per_second(told, count)), ""),
        fact("waited_share", "waited, of the time", told.ended(waited), ""),
        fact("pages_per_order", "pages each", pages, ""),
    ]
}

fn of_cause(told: &Told<'_>, cause: &Cause, sum: &Sum) -> Option<Finding> {
    let count = shootdowns(told, sum);
    let waited = share(sum.waited, told.recording.took_ns).unwrap_or(0.0);
    let is_much = waited >= MUCH || per_second(told, count) >= OFTEN;
    if count < FEWEST || !is_much {
        return None;
    }
    let severity = if waited >= TOO_MUCH { Severity::Warning } else { Severity::Note };
    let (id, advice) = advice(cause, sum)?;
    let claim = vec![
        Value::text(cause.name()),
        text(" interrupts other CPUs: "),
        Value::Count(count),
        text(" times ("),
        Value::Rate(per_second(told, count)),
        text(")."),
    ];
    let evidence = evidence(told, sum);
    Some(Finding { id, severity, claim, evidence, next_step: vec![text(advice)] })
}

/// What helps against a cause; nothing where it is not known.
fn advice(cause: &Cause, sum: &Sum) -> Option<(&'static str, &'static str)> {
    let is_small = sum.pages_per_order().is_some_and(|pages| pages <= FEW_PAGES);
    Some(match cause {
        Cause::Call { name, advice } => match (name.as_str(), advice) {
            ("madvise" | "process_madvise", Some(DONTNEED)) if is_small => (
                "dontneed-by-pages",
                "Give memory back in larger ranges, or less often: each call is a shootdown, however few pages it is for. \
                 MADV_FREE takes the pages only when memory is short. An allocator that does it has a setting: \
                 dirty_decay_ms of jemalloc, TCMALLOC_RELEASE_RATE, MIMALLOC_PURGE_DELAY.",
            ),
            ("madvise" | "process_madvise", Some(DONTNEED)) => (
                "dontneed",
                "Give memory back less often, or with MADV_FREE, which takes the pages only when memory is short.",
            ),
            ("madvise" | "process_madvise", Some(FREE)) => (
                "free",
                "Advise larger ranges, or less often: with several CPUs even MADV_FREE flushes, since the pages get clean.",
            ),
            ("munmap", _) => (
                "munmap",
                "Keep mappings and use them again rather than unmap and map. Of glibc's malloc: mallopt(M_MMAP_THRESHOLD) and \
                 mallopt(M_TRIM_THRESHOLD), or GLIBC_TUNABLES=glibc.malloc.mmap_threshold=..:glibc.malloc.trim_threshold=...",
            ),
            ("brk", _) => (
                "brk",
                "malloc gives the top of the heap back and takes it again: mallopt(M_TRIM_THRESHOLD), \
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
                "fork write-protects all memory of a program that has threads, and each write then is a fault and a flush: \
                 posix_spawn or vfork do not, and neither does a small helper process that was made at the start.",
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
            "NUMA balancing takes access away to see who uses a page: bind memory and threads (numactl) and switch it off by \
             `sysctl kernel.numa_balancing=0`.",
        ),
        Cause::Ksm => (
            "ksm",
            "KSM write-protects pages to merge them: `echo 2 > /sys/kernel/mm/ksm/run` undoes and ends it; else scan less: \
             /sys/kernel/mm/ksm/pages_to_scan, sleep_millisecs.",
        ),
        Cause::Collapse => (
            "collapse",
            "khugepaged makes huge pages of small ones: touch memory as huge pages at first (madvise(MADV_HUGEPAGE), aligned), or \
             have it scan less: /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs.",
        ),
        Cause::Compaction => (
            "compaction",
            "The kernel moves pages to make huge ones: `sysctl vm.compaction_proactiveness=0`, and transparent_hugepage/defrag \
             `defer` or `madvise`. `pagewise fragmentation` says how much is left.",
        ),
        Cause::Reclaim => (
            "reclaim",
            "Memory is short, and pages are unmapped to be given to others: give the machine or the cgroup more, or keep these \
             by mlock. `pagewise doctor` judges the settings.",
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

/// Each order interrupts many CPUs.
fn many_cpus(told: &Told<'_>) -> Option<Finding> {
    let Sum { shootdowns, ipis, .. } = told.all;
    let each = share(ipis, shootdowns).filter(|each| *each >= MANY_CPUS)?;
    if !told.has_queue() || shootdowns < FEWEST || per_second(told, shootdowns) < OFTEN {
        return None;
    }
    Some(Finding {
        id: "many-cpus",
        severity: Severity::Note,
        claim: vec![text("Each shootdown interrupts "), Value::Number(each), text(" CPUs.")],
        evidence: evidence(told, &told.all),
        next_step: vec![text(
            "An order goes to every CPU that runs the process: fewer threads, threads kept on fewer CPUs (taskset, cpuset), or \
             several processes instead of threads make it cheaper.",
        )],
    })
}

/// Orders that interrupt nobody.
fn for_nothing(told: &Told<'_>) -> Option<Finding> {
    let Sum { orders, shootdowns, .. } = told.all;
    let idle = orders.saturating_sub(shootdowns);
    let most = share(idle, orders)? > 0.5;
    if !told.has_queue() || idle < FEWEST || !most {
        return None;
    }
    Some(Finding {
        id: "orders-for-nobody",
        severity: Severity::Note,
        claim: vec![
            Value::Count(idle),
            text(" of "),
            Value::Count(orders),
            text(" orders to flush interrupted no CPU."),
        ],
        evidence: vec![fact("shootdowns", "shootdowns", Value::Count(shootdowns), "")],
        next_step: vec![text(
            "Nothing to do: the process ran on other CPUs before, and those have other work or none by now. \
             tlb:tlb_flush counts such orders too.",
        )],
    })
}

/// Flushes that nobody of those who are watched asked for.
fn from_others(told: &Told<'_>) -> Option<Finding> {
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
            Value::Count(foreign),
            text(" of "),
            Value::Count(received),
            text(" flushes that interrupted it were asked for by others."),
        ],
        evidence: vec![fact("per_s", "rate", Value::Rate(per_second(told, foreign)), "")],
        next_step: vec![text(
            "`pagewise shootdowns --system --for 10s` says by whom: KSM, khugepaged, compaction and reclaim run as the kernel's \
             own threads.",
        )],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_of_itself_has_an_advice() {
        let own = [Cause::Numa, Cause::Ksm, Cause::Collapse, Cause::Compaction, Cause::Reclaim];
        for cause in own {
            assert!(advice(&cause, &Sum::default()).is_some());
        }
        assert!(advice(&Cause::Other, &Sum::default()).is_none());
    }
}
