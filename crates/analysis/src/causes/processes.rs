//! Causes: properties of the process as a whole.

use pagewise_model::cause::{CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{Instrument, counter};
use pagewise_model::report::CellValue;
use pagewise_model::{Backing, Bytes, Mapping};

use super::signs::{MachineMemory, bytes, bytes_fact, count_fact, known_rate_fact, steady_growth};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text};
use crate::explain::{ExplainSubject, fact};
use crate::findings::snapshot::{
    FullestNode, WritableCode, are_large_tables, writable_advice, writable_memory,
};
use crate::pools::PoolKind;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "writable-code",
        title: "writable code",
        meaning: "Memory is writable and executable at once, and no just-in-time compiler explains it.",
        needs: &[Instrument::Snapshot],
        excluded_by: "no such mapping, or only those of a just-in-time compiler",
        source: "mmap(2); Documentation/security",
        rule: writable_code,
    },
    CauseRow {
        id: "large-page-tables",
        title: "page tables",
        meaning: "Page tables are large beside the memory that they map, which is touched sparsely.",
        needs: &[Instrument::Snapshot],
        excluded_by: "less than 16 MiB, or less than 4 % of RES",
        source: "proc_pid_status(5), VmPTE",
        rule: large_page_tables,
    },
    CauseRow {
        id: "hugetlb-unused",
        title: "unused hugetlb pages",
        meaning: "Pages of the hugetlb pool are reserved for it and used by no process.",
        needs: &[Instrument::Activity],
        excluded_by: "no pool, or less than 64 MiB and 2 % of the machine's memory unused",
        source: "Documentation/admin-guide/mm/hugetlbpage.rst",
        rule: hugetlb_unused,
    },
    CauseRow {
        id: "ksm-cost",
        title: "cost of KSM",
        meaning: "KSM scans the memory of the process and saves less than its own data cost.",
        needs: &[Instrument::Snapshot, Instrument::Activity],
        excluded_by: "KSM does not run, the process has no mergeable memory, or it saves memory",
        source: "Documentation/admin-guide/mm/ksm.rst, general_profit",
        rule: ksm_cost,
    },
    CauseRow {
        id: "numa-imbalance",
        title: "NUMA imbalance",
        meaning: "Most memory of the process is on one NUMA node, and threads run on others.",
        needs: &[Instrument::Snapshot],
        excluded_by: "one node, less than 1 GiB, or memory on one node only",
        source: "numa(7), numa_maps",
        rule: numa_imbalance,
    },
    CauseRow {
        id: "peak-only",
        title: "a peak that is over",
        meaning: "The process needed much more memory than it has now: the trouble is over.",
        needs: &[Instrument::Activity],
        excluded_by: "a peak below three times the present memory, or less than 96 MiB above it",
        source: "proc_pid_status(5), VmHWM",
        rule: peak_only,
    },
];

fn unread(evidence: &CauseEvidence<'_>) -> Verdict {
    let command = format!("pagewise explain {}", evidence.pid());
    Verdict::Unknown("the mappings could not be read".into(), command.into())
}

fn writable_code(evidence: &CauseEvidence<'_>) -> Verdict {
    let Ok(subject) = evidence.subject else { return unread(evidence) };
    let Some(WritableCode { total, mappings, largest }) = writable_memory(subject) else {
        return Verdict::RuledOut(vec![text(
            "no writable code but that of a just-in-time compiler",
        )]);
    };
    let mapping = &subject.mappings[largest];
    let kind = subject.pools.pool_of(largest).kind;
    let sentence = vec![
        bytes(total),
        text(" is writable and executable at the same time: a stray write there becomes code."),
    ];
    let object = CauseObject::Mapping(mapping.range, subject.pools.known_as(largest, mapping));
    let confidence = match kind {
        PoolKind::Jit => Confidence::Likely(format!("pagewise maps {}", evidence.pid()).into()),
        _ => Confidence::Certain,
    };
    let mut found = cause("writable-code", object, confidence, sentence);
    // Writable code is only a risk: it costs no memory and no time.
    found.cost = CauseCost::of_risk(0.2);
    found.evidence = vec![
        bytes_fact("reserved", "reserved", total),
        count_fact("mappings", "mappings", mappings),
        fact("pool", "pool", text(kind.label()), ""),
    ];
    found.code = remedy_code([text(writable_advice(kind))]);
    found.into()
}

fn large_page_tables(evidence: &CauseEvidence<'_>) -> Verdict {
    let tables = evidence.now.status.as_ref().ok().and_then(|status| status.vm_pte.clone().ok());
    let (Some(tables), Some(resident)) = (tables, evidence.resident()) else {
        let command = format!("grep VmPTE /proc/{}/status", evidence.pid());
        return Verdict::Unknown("VmPTE could not be read".into(), command.into());
    };
    if !are_large_tables(tables, resident) {
        let line = vec![bytes(tables), text(" of page tables for "), bytes(resident)];
        return Verdict::RuledOut(line);
    }
    let sentence = vec![
        bytes(tables),
        text(" of page tables map "),
        bytes(resident),
        text(" of resident memory: memory is touched sparsely, or was touched and then released."),
    ];
    let sparse = evidence.subject.as_ref().ok().and_then(sparsest);
    let object = match sparse {
        Some((subject, index)) => {
            let mapping = &subject.mappings[index];
            CauseObject::Mapping(mapping.range, subject.pools.known_as(index, mapping))
        }
        None => CauseObject::Process(evidence.now.process.pid, evidence.now.process.name.clone()),
    };
    let mut found = cause("large-page-tables", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(tables, resident + tables);
    found.evidence = vec![
        bytes_fact("page_tables", "page tables", tables),
        bytes_fact("resident", "RES", resident),
    ];
    if let Some((subject, index)) = sparse {
        let mapping = &subject.mappings[index];
        found.evidence.push(bytes_fact("reserved", "size of the mapping", mapping.size()));
    }
    found.code = remedy_code([text(
        "Keep data that is used together close together, and munmap areas after use: MADV_DONTNEED keeps their page tables. \
         Processes that map the same shared memory each have page tables for it: huge pages make them 512 times smaller.",
    )]);
    found.into()
}

/// Finds the mapping with the most address space without resident pages, among the mappings that
/// can have page tables.
fn sparsest<'a>(subject: &'a ExplainSubject<'a>) -> Option<(&'a ExplainSubject<'a>, usize)> {
    let empty = |mapping: &Mapping| {
        let has_tables = !mapping.prot.is_none() && mapping.backing() != Backing::Special;
        let resident = mapping.rss().unwrap_or_default();
        has_tables.then(|| mapping.size().0.saturating_sub(resident.0))
    };
    let mappings = subject.mappings.iter().enumerate();
    let sparse = mappings.filter_map(|(index, mapping)| Some((empty(mapping)?, index)));
    sparse.max().map(|(_, index)| (subject, index))
}

/// Minimum size in bytes of the unused pages of the hugetlb pool: fewer pages are a reserve.
const UNUSED_POOL: Bytes = Bytes::mib(64);
/// Minimum size of the unused pages of the hugetlb pool, as a share of the machine's memory. It
/// applies only if the process does not use the pool.
const UNUSED_SHARE: f64 = 0.02;

fn hugetlb_unused(evidence: &CauseEvidence<'_>) -> Verdict {
    let [_, last] = &evidence.all.machine;
    let value = |name| counter(&last.meminfo, name);
    let pool = (|| {
        Some((
            value("HugePages_Total")?,
            value("HugePages_Free")?,
            value("HugePages_Rsvd")?,
            Bytes(value("Hugepagesize")?),
        ))
    })();
    let Some((total, free, reserved, page)) = pool else { return Verdict::NotApplicable };
    if total == 0 {
        return Verdict::NotApplicable;
    }
    let unused = Bytes(page.0.saturating_mul(free.saturating_sub(reserved)));
    let whole = MachineMemory::of(evidence).map_or(Bytes::ZERO, |memory| memory.total);
    let share = unused.fraction_of(whole).unwrap_or(0.0);
    let has_pool = evidence
        .now
        .status
        .as_ref()
        .is_ok_and(|status| status.hugetlb.clone().is_ok_and(|it| it.0 > 0));
    let least = if has_pool { 0.0 } else { UNUSED_SHARE };
    if unused < UNUSED_POOL || share < least {
        return Verdict::RuledOut(vec![bytes(unused), text(" of the hugetlb pool unused")]);
    }
    let used = total.saturating_sub(free.saturating_sub(reserved));
    let sentence = vec![
        bytes(unused),
        text(" of the hugetlb pool are used by no process, and nothing else can use them: "),
        CellValue::Count(free.saturating_sub(reserved)),
        text(" of "),
        CellValue::Count(total),
        text(" pages."),
    ];
    let object = CauseObject::Setting("vm.nr_hugepages".into());
    let mut found = cause("hugetlb-unused", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(unused, whole);
    found.evidence = vec![
        bytes_fact("unused", "unused", unused),
        count_fact("total", "pages of the pool", total),
        count_fact("free", "free pages", free),
        count_fact("reserved", "promised pages", reserved),
    ];
    found.now = remedy_now(
        format!("sysctl -w vm.nr_hugepages={used}"),
        [text(
            "Return the unused pages to the kernel. To enlarge the pool again may fail if memory is fragmented.",
        )],
        true,
    );
    found.code = remedy_code([text(
        "Reserve only the pages that the program maps, or use transparent huge pages (MADV_HUGEPAGE), which need no pool.",
    )]);
    found.into()
}

/// CPU time in seconds to scan one page.
const SCAN_SECONDS: f64 = 0.5e-6;

fn ksm_cost(evidence: &CauseEvidence<'_>) -> Verdict {
    let [_, last] = &evidence.all.machine;
    let Some(run) = counter(&last.ksm, "run") else { return Verdict::NotApplicable };
    if run != 1 {
        return Verdict::RuledOut(vec![text("KSM does not run")]);
    }
    let Ok(ksm) = &evidence.now.ksm else {
        let command = format!("cat /proc/{}/ksm_stat", evidence.pid());
        return Verdict::Unknown("ksm_stat could not be read".into(), command.into());
    };
    if ksm.rmap_items == 0 && ksm.merging_pages == 0 {
        return Verdict::RuledOut(vec![text("the process has no mergeable memory")]);
    }
    let page = evidence.now.provenance.page_size;
    let profit = ksm
        .profit
        .unwrap_or_else(|| estimated_profit(page.pages(ksm.merging_pages), ksm.rmap_items));
    let scanned = evidence.machine_rate(|point| counter(&point.ksm, "pages_scanned"));
    let scan_time = (scanned.unwrap_or(0.0) * SCAN_SECONDS).min(1.0);
    if profit > 0 {
        return Verdict::RuledOut(vec![text("KSM saves "), CellValue::Change(profit)]);
    }
    let loss = Bytes(profit.unsigned_abs());
    let sentence = vec![
        text("KSM scans the memory of the process and merges "),
        bytes(page.pages(ksm.merging_pages)),
        text(", while its own data take "),
        bytes(loss),
        text(" more than that."),
    ];
    let object = CauseObject::Setting("/sys/kernel/mm/ksm/run".into());
    let mut found = cause("ksm-cost", object, Confidence::Certain, sentence);
    found.cost = CauseCost {
        time_share: scan_time,
        ..CauseCost::of_memory(loss, evidence.resident().unwrap_or_default())
    };
    found.evidence = vec![
        fact("profit", "saved", CellValue::Change(profit), ""),
        bytes_fact("merged", "merged", page.pages(ksm.merging_pages)),
    ];
    found.evidence.extend(known_rate_fact("pages_scanned_per_s", "scanned pages", scanned));
    found.now = remedy_now(
        "echo 2 > /sys/kernel/mm/ksm/run",
        [text(
            "Unmerge all pages and stop KSM; `echo 1` starts it again. Merged pages of other processes need memory again.",
        )],
        true,
    );
    found.code = remedy_code([text(
        "Remove MADV_MERGEABLE (or PR_SET_MEMORY_MERGE) for memory whose pages are seldom equal.",
    )]);
    found.into()
}

/// Estimates the bytes that KSM saves: merged pages minus the metadata for each candidate page.
fn estimated_profit(merged: Bytes, candidates: u64) -> i64 {
    const CANDIDATE: u64 = 64;
    merged.0.cast_signed().saturating_sub(candidates.saturating_mul(CANDIDATE).cast_signed())
}

fn numa_imbalance(evidence: &CauseEvidence<'_>) -> Verdict {
    if evidence.now.machine.nodes.as_ref().is_ok_and(|nodes| *nodes < 2) {
        return Verdict::NotApplicable;
    }
    let Ok(subject) = evidence.subject else { return unread(evidence) };
    let Some(fullest) = FullestNode::of(subject) else {
        let command = format!("cat /proc/{}/numa_maps", evidence.pid());
        return Verdict::Unknown("the memory by node could not be read".into(), command.into());
    };
    let threads = evidence.now.process.threads;
    if !fullest.is_uneven(threads) {
        return Verdict::RuledOut(vec![
            CellValue::Share(fullest.share),
            text(" of "),
            bytes(fullest.total),
            text(format!(" on node {}", fullest.node)),
        ]);
    }
    let sentence = vec![
        CellValue::Share(fullest.share),
        text(" of the memory is on node "),
        CellValue::Count(fullest.node.into()),
        text(", the rest on others: threads on other nodes access it remotely."),
    ];
    let object = CauseObject::Setting(format!("node {}", fullest.node).into());
    let check = format!("numastat -p {}", evidence.pid());
    let mut found = cause("numa-imbalance", object, Confidence::Possible(check.into()), sentence);
    // The cost is low: a remote access takes about 1.5 times as long as a local access, and only
    // cache misses access memory.
    found.cost = CauseCost::of_time(0.2);
    found.evidence = vec![
        bytes_fact("fullest", "fullest node", fullest.resident),
        bytes_fact("total", "all nodes", fullest.total),
        count_fact("threads", "threads", threads),
    ];
    found.now = remedy_now(
        format!("migratepages {} {} all", evidence.pid(), fullest.node),
        [text("Spread the pages over the nodes; or start it with `numactl --interleave=all`.")],
        true,
    );
    found.code = remedy_code([text(
        "Initialize data in the threads that use it: a page is placed on the node that touches it first.",
    )]);
    found.into()
}

/// Minimum ratio of the peak to the present memory.
const PEAK_FACTOR: f64 = 3.0;
/// Minimum difference between the peak and the present memory in bytes.
const PEAK_ABOVE: Bytes = Bytes::mib(96);

fn peak_only(evidence: &CauseEvidence<'_>) -> Verdict {
    let last = evidence.all.activity.last();
    let peak = last.and_then(|last| last.peak.clone().ok());
    let (Some(last), Some(peak)) = (last, peak) else {
        let command = format!("grep VmHWM /proc/{}/status", evidence.pid());
        return Verdict::Unknown("VmHWM could not be read".into(), command.into());
    };
    // Memory in swap also counts as present memory.
    let present = last.resident + last.swap.clone().unwrap_or_default();
    let above = Bytes(peak.0.saturating_sub(present.0));
    let is_over = above >= PEAK_ABOVE
        && float(peak.0) >= PEAK_FACTOR * float(present.0)
        && steady_growth(evidence).is_none();
    if !is_over {
        let line = vec![text("the highest RES was "), bytes(peak), text(", now "), bytes(present)];
        return Verdict::RuledOut(line);
    }
    let process = &evidence.now.process;
    let sentence = vec![
        text("The process once had "),
        bytes(peak),
        text(" resident and has "),
        bytes(present),
        text(" now: the memory was needed for some time and released."),
    ];
    let object = CauseObject::Process(process.pid, process.name.clone());
    let mut found = cause("peak-only", object, Confidence::Certain, sentence);
    let share = CauseCost::of_memory(above, peak);
    // A past peak ranks below present trouble.
    found.cost = CauseCost { memory_share: share.memory_share * 0.2, ..share };
    found.evidence = vec![
        bytes_fact("peak", "highest RES", peak),
        bytes_fact("present", "RES and swap now", present),
    ];
    found.now = remedy_now(
        format!("echo 5 > /proc/{}/clear_refs", evidence.pid()),
        [text("Reset the high-water mark, and read VmHWM again after the next busy time.")],
        false,
    );
    found.code = remedy_code([text(
        "Record the phase that needs it: `pagewise heap run PROGRAM` shows the functions at the peak. Process data in parts to lower it.",
    )]);
    found.into()
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::Gathered;

    use super::*;
    use crate::causes::made::{evidence, verdict};
    use crate::causes::made_recordings::steady;
    use crate::sample::{resident, snapshot};

    #[test]
    fn writable_code_of_a_just_in_time_compiler_is_how_it_works() {
        let is_present = |exe: &str| {
            let mut process = snapshot(vec![resident("10000000-10010000 rwxp 0 0", 0x10000)]);
            process.process.exe = Ok(exe.into());
            let found = verdict(&evidence(process.clone(), process), "writable-code");
            matches!(found, Verdict::Present(_))
        };
        assert!(is_present("/usr/sbin/nginx"));
        assert!(is_present("/usr/bin/python3"));
        for exe in ["/usr/bin/node", "/opt/jdk/bin/java", "/usr/lib/chromium/chromium"] {
            assert!(!is_present(exe), "{exe}");
        }
    }

    #[test]
    fn callbacks_of_libffi_are_few() {
        let is_present = |kib: u64| {
            let range = format!("10000000-{:x} rwxp 0 0", 0x1000_0000 + (kib << 10));
            let mut process = snapshot(vec![resident(&range, kib << 10)]);
            process.objects.push(pagewise_model::object::ElfObject {
                name: "/usr/lib/libffi.so.8".into(),
                ..crate::causes::made::glibc()
            });
            let found = verdict(&evidence(process.clone(), process), "writable-code");
            matches!(found, Verdict::Present(_))
        };
        assert!(!is_present(64));
        assert!(is_present(512));
    }

    #[test]
    fn a_peak_is_over_if_most_of_it_is_gone_and_not_in_swap() {
        let with = |peak, swapped| {
            let mut evidence = steady(20 << 20);
            for point in &mut evidence.activity {
                point.peak = Ok(Bytes::mib(peak));
                point.swap = Ok(Bytes::mib(swapped));
            }
            matches!(verdict(&evidence, "peak-only"), Verdict::Present(_))
        };
        assert!(with(300, 0));
        assert!(!with(300, 200));
        assert!(!with(40, 0));
    }

    #[test]
    fn the_pool_of_huge_pages_is_set_to_what_is_used() {
        let mut evidence = steady(20 << 20);
        let counters = [
            ("HugePages_Total", 1024),
            ("HugePages_Free", 1000),
            ("HugePages_Rsvd", 8),
            ("Hugepagesize", 2 << 20),
            ("MemTotal", 8 << 30),
            ("MemAvailable", 4 << 30),
        ];
        let counter = |(name, count): (&str, u64)| pagewise_model::fragmentation::BootCounter {
            name: name.into(),
            count,
        };
        evidence.machine[1].meminfo = counters.into_iter().map(counter).collect();
        let Verdict::Present(found) = verdict(&evidence, "hugetlb-unused") else {
            panic!("a quarter of the memory is in the pool")
        };
        assert_eq!(found.now.unwrap().command, "sysctl -w vm.nr_hugepages=32");
        assert_eq!(verdict(&steady(1 << 20), "hugetlb-unused"), Verdict::NotApplicable);
        assert!(matches!(evidence.last, Gathered::Value(_)));
    }
}
