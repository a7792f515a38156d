//! Causes: time lost in page faults, TLB shootdowns and memory system calls.

mod churn;
mod copies;
mod shootdowns;

use pagewise_model::cause::Verdict;
use pagewise_model::evidence::{CallProfile, CallProfileRow, Gathered, Instrument};
use pagewise_model::report::CellValue;

use super::signs::{count_fact, cpu_shares, private_memory, rate_fact, share_of_run_time};
use super::{CauseEvidence, CauseRow, cause, remedy_code};
use crate::cells::{ratio, text};
use pagewise_model::cause::{CauseCost, Confidence};

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "cow-storm",
        title: "copy-on-write after fork",
        meaning: "The process forks again and again, and each time copies much of its memory on write.",
        needs: &[Instrument::Faults, Instrument::Calls],
        excluded_by: "fewer than two forks, less than 8 MiB per fork, or children that call execve",
        source: "fork(2): pages are copied at the first write",
        rule: copies::cow_storm,
    },
    CauseRow {
        id: "fork-exec-copy",
        title: "fork of a large process",
        meaning: "A large process forks to start other programs or short-lived children: each fork copies its page tables.",
        needs: &[Instrument::Calls],
        excluded_by: "less than 64 MiB of private memory, vfork, or children that call no execve and whose forks take a small part of the run time",
        source: "posix_spawn(3); fork copies the page table entry of each page: 10 ms to 22 ms for 300 MB",
        rule: copies::fork_exec_copy,
    },
    CauseRow {
        id: "fault-churn",
        title: "memory released and touched again",
        meaning: "Memory is released to the kernel and faulted in again, which costs zeroing and faults.",
        needs: &[Instrument::Activity, Instrument::Faults, Instrument::Calls],
        excluded_by: "fewer than 4000 first touches per second, or 40 of huge pages, or memory that grows by as much",
        source: "mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; madvise(2), MADV_DONTNEED",
        rule: churn::fault_churn,
    },
    CauseRow {
        id: "tlb-shootdowns",
        title: "TLB shootdowns",
        meaning: "A thread unmaps or protects memory, which interrupts the CPUs of the other threads.",
        needs: &[Instrument::Shootdowns],
        excluded_by: "one thread, or less than 1 % of a CPU lost",
        source: "tracepoints tlb:tlb_flush and csd:csd_queue_cpu; 4 µs per interrupt (estimate)",
        rule: shootdowns::tlb_shootdowns,
    },
    CauseRow {
        id: "memory-calls",
        title: "memory system calls",
        meaning: "The process calls the kernel very often to map, release or protect memory.",
        needs: &[Instrument::Calls],
        excluded_by: "fewer than 3000 memory system calls per second, or less than 3 % of the run time",
        source: "2 µs per call, 5 µs if the process is mostly in the kernel (estimates)",
        rule: memory_calls,
    },
];

const NS_PER_SECOND: f64 = 1e9;

/// Returns the number of events per second. `took_ns` is the duration of the recording in
/// nanoseconds.
fn per_second(count: u64, took_ns: u64) -> f64 {
    ratio(count, took_ns).map_or(0.0, |per_ns| per_ns * NS_PER_SECOND)
}

/// Returns the command that runs one instrument on the process.
fn command(evidence: &CauseEvidence<'_>, instrument: Instrument) -> String {
    let (words, options) =
        instrument.command().split_once(" --").unwrap_or((instrument.command(), ""));
    format!("{words} {} --{options}", evidence.pid())
}

/// Returns the verdict if an instrument could not run.
fn missing(evidence: &CauseEvidence<'_>, instrument: Instrument, why: String) -> Verdict {
    Verdict::Unknown(why.into(), command(evidence, instrument).into())
}

/// True for system calls that change mappings or pages, not for forks.
fn is_memory_call(row: &CallProfileRow) -> bool {
    !["fork", "vfork"].contains(&row.call.as_str())
}

/// Number of memory system calls per second. Includes the lost events, in proportion to the
/// recorded calls.
fn memory_call_rate(profile: &CallProfile) -> f64 {
    call_rate(profile, is_memory_call)
}

/// Does the same as [`memory_call_rate`] for the calls that a filter selects.
fn call_rate(profile: &CallProfile, is_meant: impl Fn(&CallProfileRow) -> bool) -> f64 {
    let calls = profile.rows.iter().filter(|row| is_meant(row));
    let recorded: u64 = profile.rows.iter().map(|row| row.count).sum();
    let with_lost = 1.0 + ratio(profile.lost, recorded).unwrap_or(0.0);
    per_second(calls.map(|row| row.count).sum(), profile.took_ns) * with_lost
}

/// True for `mprotect`, by which malloc extends the heap of a thread in steps of one or a few
/// pages.
fn can_extend(row: &CallProfileRow) -> bool {
    row.call == "mprotect"
}

/// Maximum ratio of the bytes that `mprotect` makes usable to the growth. It exceeds 1, because a
/// program touches new pages later, and a heap can shrink in the meantime.
const BYTES_PER_GROWTH: f64 = 2.0;

/// True if `mprotect` calls made about as many bytes usable as the private memory grew by. The
/// growth, not the calls, is then the trouble.
fn extends_the_heap(evidence: &CauseEvidence<'_>, profile: &CallProfile) -> bool {
    let bytes = profile.rows.iter().filter(|row| can_extend(row)).map(|row| row.bytes);
    let bytes = per_second(bytes.fold(0, u64::saturating_add), profile.took_ns);
    evidence.growth(private_memory).is_some_and(|growth| bytes <= growth * BYTES_PER_GROWTH)
}

/// Minimum number of memory system calls per second that is trouble.
const MANY_CALLS: f64 = 3000.0;
/// CPU time of a memory system call in seconds: its entry, the lock of the mappings, and the work
/// on the page tables.
const CALL_SECONDS: f64 = 2e-6;
/// CPU time in seconds of a memory system call in a process that is mostly in the kernel: calls
/// that split and merge mappings take longer.
const COSTLY_CALL_SECONDS: f64 = 5e-6;
/// Minimum share of the run time that calls take: a smaller share is the usual cost of large blocks
/// of malloc.
const MUCH_OF_RUN_TIME: f64 = 0.03;

fn memory_calls(evidence: &CauseEvidence<'_>) -> Verdict {
    let profile = match &evidence.all.calls {
        Gathered::Value(profile) => profile,
        Gathered::NotNeeded => {
            return Verdict::RuledOut(vec![text("little time in the kernel")]);
        }
        Gathered::Missing(why) => {
            return missing(evidence, Instrument::Calls, why.to_string());
        }
    };
    let extends = extends_the_heap(evidence, profile);
    let is_meant = |row: &CallProfileRow| is_memory_call(row) && !(extends && can_extend(row));
    let rows = || profile.rows.iter().filter(|row| is_meant(row));
    let count: u64 = rows().map(|row| row.count).sum();
    let rate = call_rate(profile, is_meant);
    let each = if is_mostly_in_kernel(evidence) { COSTLY_CALL_SECONDS } else { CALL_SECONDS };
    let lost = share_of_run_time(evidence, rate * each);
    let caller = evidence.calling_function(is_meant);
    let are_many = rate * evidence.demand() >= MANY_CALLS;
    let (true, Some(caller)) = (are_many && lost >= MUCH_OF_RUN_TIME, caller) else {
        return Verdict::RuledOut(vec![
            CellValue::Rate(rate),
            text(" memory system calls, which take "),
            CellValue::Share(lost),
            text(" of the run time"),
        ]);
    };
    let most = most_frequent(rows());
    let sentence = vec![
        CellValue::Rate(rate),
        text(" memory system calls, mostly "),
        text(most.clone()),
        text(", "),
        CellValue::Share(caller.share()),
        text(" of them from one function."),
    ];
    let mut found = cause("memory-calls", caller.object(), Confidence::Certain, sentence);
    found.cost = CauseCost::of_time(lost);
    let bytes: u64 = rows().map(|row| row.bytes).fold(0, u64::saturating_add);
    found.evidence = vec![
        rate_fact("calls_per_s", "calls", rate),
        count_fact("calls", "recorded", count),
        crate::explain::fact("most", "most of them", text(most.clone()), ""),
        crate::explain::fact(
            "bytes_per_call",
            "bytes per call",
            ratio(bytes, count).map_or(CellValue::None, CellValue::Number),
            "",
        ),
    ];
    found.code = remedy_code([text(call_advice(&most))]);
    found.into()
}

/// True if the process spends more than half of its CPU time in the kernel.
fn is_mostly_in_kernel(evidence: &CauseEvidence<'_>) -> bool {
    cpu_shares(evidence).is_some_and(|(all, system)| system > all / 2.0)
}

/// Returns the name of the most frequent call. The name of `madvise` includes its advice.
fn most_frequent<'a>(rows: impl Iterator<Item = &'a CallProfileRow>) -> String {
    let mut counts: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for row in rows {
        let advice = (row.call == "madvise").then(|| crate::calls::advice(row.detail)).flatten();
        let name = advice.map_or_else(|| row.call.clone(), |advice| format!("madvise({advice})"));
        *counts.entry(name).or_default() += row.count;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name).unwrap_or_default()
}

fn call_advice(call: &str) -> &'static str {
    match call {
        "mprotect" | "pkey_mprotect" => {
            "Change the protection of a whole range at once, or use protection keys (pkey_set), which need no call."
        }
        "mmap" | "munmap" => {
            "Map one large area and divide it, or keep mappings for reuse. For blocks of malloc raise M_MMAP_THRESHOLD with mallopt."
        }
        "brk" => {
            "Raise M_TOP_PAD and M_TRIM_THRESHOLD with mallopt, so that the heap grows and shrinks in larger steps."
        }
        "mremap" => "Grow buffers by doubling instead of by a constant.",
        "mincore" => {
            "Do not call mincore before each access: call it for a large range at once, or count the major faults of getrusage."
        }
        _ => "Make the call for larger ranges at once, or less often.",
    }
}

/// Time lost by events, as a share of one CPU. `rate` is in events per second.
fn lost(rate: f64, seconds_each: f64) -> f64 {
    (rate * seconds_each).min(1.0)
}

/// Converts a share of one CPU to milliseconds per second.
fn milliseconds(share: f64) -> CellValue {
    CellValue::Number((share * 10_000.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::{CpuWaits, Evidence};
    use pagewise_model::faults::FaultKind;
    use pagewise_model::{Bytes, Quadrant};

    use super::*;
    use crate::causes::made::{activity, present, verdict};
    use crate::causes::made_recordings::{add_work, calls, faults, steady};

    const MIB: u64 = 1 << 20;

    fn is_ruled_out(evidence: &Evidence, id: &str) -> bool {
        matches!(verdict(evidence, id), Verdict::RuledOut(_))
    }

    /// Returns evidence of a process of 100 MiB with these numbers of forks, `execve` calls and
    /// copied pages in 4 s.
    fn forking(forks: u64, execs: u64, copies: u64) -> Evidence {
        let mut evidence = steady(100 * MIB);
        evidence.faults = faults(FaultKind::CopyOnWrite, copies, "", Quadrant::PrivateAnonymous);
        evidence.calls = calls(&[("fork", 0, forks)], execs);
        add_work(&mut evidence, copies, 0.1, 0.1);
        evidence
    }

    #[test]
    fn snapshots_by_fork_are_a_storm_and_one_snapshot_is_not() {
        let found = present(&forking(4, 0, 80_000), "cow-storm");
        assert_eq!(found.object.function(), Some("do_fork"));
        assert!(found.cost.memory_share > 0.7, "{:?}", found.cost);
        assert!(is_ruled_out(&forking(1, 0, 25_000), "cow-storm"));
        assert!(is_ruled_out(&forking(400, 0, 80_000), "cow-storm"), "a fork server");
    }

    #[test]
    fn forks_whose_children_execute_programs_copy_page_tables() {
        let evidence = forking(20, 20, 80_000);
        assert_eq!(present(&evidence, "fork-exec-copy").object.function(), Some("do_fork"));
        assert!(is_ruled_out(&evidence, "cow-storm"));
        let mut spawning = forking(0, 20, 0);
        spawning.calls = calls(&[("vfork", 0, 20)], 20);
        assert!(is_ruled_out(&spawning, "fork-exec-copy"), "posix_spawn copies nothing");
    }

    #[test]
    fn forks_of_a_large_process_for_short_lived_children_cost_its_time() {
        let with = |user: f64, copies: u64| {
            let mut evidence = forking(120, 0, copies);
            add_work(&mut evidence, copies, 0.12, user);
            evidence
        };
        let found = present(&with(0.02, 2000), "fork-exec-copy");
        let remedy = format!("{:?}", found.code);
        assert!(remedy.contains("thread") && !remedy.contains("posix_spawn"), "{remedy}");
        assert!(is_ruled_out(&with(0.9, 2000), "fork-exec-copy"), "it computes most of the time");
        let storm = with(0.02, 800_000);
        assert!(is_ruled_out(&storm, "fork-exec-copy"));
        present(&storm, "cow-storm");
    }

    /// Returns evidence of a process that touches 10,000 new pages per second.
    fn touching(anonymous: impl IntoIterator<Item = u64>) -> Evidence {
        let mut evidence = steady(20 * MIB);
        evidence.activity = activity(anonymous);
        evidence.faults =
            faults(FaultKind::Anonymous, 40_000, "[heap]", Quadrant::PrivateAnonymous);
        evidence.calls = calls(&[("brk", 0, 400)], 0);
        add_work(&mut evidence, 40_000, 0.05, 0.02);
        evidence
    }

    #[test]
    fn memory_that_is_touched_again_is_churn_and_memory_that_grows_is_not() {
        let found = present(&touching([20 * MIB; 17]), "fault-churn");
        assert_eq!(found.object.function(), Some("update"));
        assert!(found.now.unwrap().command.contains("MALLOC_TRIM_THRESHOLD_"));
        let growing = touching((0..17).map(|at| 20 * MIB + at * 10 * MIB));
        assert!(is_ruled_out(&growing, "fault-churn"));
        let mut start = touching([20 * MIB; 17]);
        add_work(&mut start, 400, 0.05, 0.02);
        assert!(is_ruled_out(&start, "fault-churn"));
    }

    #[test]
    fn pages_of_shared_memory_and_copies_of_file_pages_are_new_pages() {
        let with = |kind, quadrant| {
            let mut evidence = touching([20 * MIB; 17]);
            evidence.faults = faults(kind, 40_000, "scratch", quadrant);
            evidence
        };
        let shared = with(FaultKind::Anonymous, Quadrant::SharedAnonymous);
        assert_eq!(present(&shared, "fault-churn").object.function(), Some("update"));
        let mut growing = shared;
        for (at, point) in (0..).zip(&mut growing.activity) {
            point.shmem = Ok(Bytes(at * 10 * MIB));
        }
        assert!(is_ruled_out(&growing, "fault-churn"), "shared memory that grows");
        let mut copies = with(FaultKind::CopyOnWrite, Quadrant::PrivateFile);
        assert_eq!(present(&copies, "fault-churn").object.function(), Some("update"));
        copies.calls = calls(&[("fork", 0, 4)], 0);
        assert!(is_ruled_out(&copies, "fault-churn"), "copies after fork");
        let files = with(FaultKind::File, Quadrant::SharedFile);
        assert!(is_ruled_out(&files, "fault-churn"), "files that are read once");
    }

    /// Changes the evidence to a process that got one tenth of the CPU time that it needed.
    fn starve(evidence: &mut Evidence) {
        let waits = CpuWaits { ran_ns: 40_000_000, waited_ns: 360_000_000, undelayed_ns: None };
        evidence.cpu_waits = Gathered::Value(waits);
    }

    #[test]
    fn rates_are_those_of_free_cpus() {
        let mut churn = touching([20 * MIB; 17]);
        churn.faults = faults(FaultKind::Anonymous, 4000, "[heap]", Quadrant::PrivateAnonymous);
        add_work(&mut churn, 4000, 0.005, 0.002);
        let mut forks = forking(3, 3, 400);
        let mut storm = steady(MIB);
        storm.calls = calls(&[("mprotect", 0, 4400)], 0);
        add_work(&mut storm, 0, 0.09, 0.005);
        forks.calls = calls(&[("fork", 0, 1)], 1);
        let mut all = [("fault-churn", churn), ("fork-exec-copy", forks), ("memory-calls", storm)];
        for (id, evidence) in &mut all {
            assert!(is_ruled_out(evidence, id), "{id}");
            starve(evidence);
            present(evidence, id);
        }
    }

    #[test]
    fn a_call_for_each_page_outranks_the_faults() {
        let mut evidence = touching([20 * MIB; 17]);
        evidence.calls = calls(&[("mremap", 0, 40_000)], 0);
        assert_eq!(present(&evidence, "memory-calls").object.function(), Some("do_mremap"));
        assert!(is_ruled_out(&evidence, "fault-churn"));
        evidence.calls = calls(&[("mremap", 0, 400)], 0);
        assert!(is_ruled_out(&evidence, "memory-calls"));
    }

    #[test]
    fn huge_pages_that_are_touched_again_are_churn() {
        let with = |count: u64, anonymous: [u64; 17]| {
            let mut evidence = touching(anonymous);
            evidence.faults = faults(FaultKind::Huge, count, "", Quadrant::PrivateAnonymous);
            evidence.calls = calls(&[("munmap", 0, 80)], 0);
            add_work(&mut evidence, count, 0.03, 0.05);
            evidence
        };
        let found = present(&with(400, [20 * MIB; 17]), "fault-churn");
        assert_eq!(found.object.function(), Some("update"));
        assert!(is_ruled_out(&with(40, [20 * MIB; 17]), "fault-churn"), "few");
        let growing = std::array::from_fn(|at| (20 + at as u64 * 50) * MIB);
        assert!(is_ruled_out(&with(400, growing), "fault-churn"), "it grows");
    }

    #[test]
    fn calls_that_extend_a_growing_heap_are_the_price_of_the_growth() {
        let with = |name: &str, grown: u64| {
            let mut evidence = touching((0..17).map(|at| 20 * MIB + at * grown / 16));
            evidence.calls = calls(&[(name, 0, 16_000)], 0);
            evidence
        };
        // Heaps of threads grow by pages: 16,000 `mprotect` calls for 62 MiB.
        assert!(is_ruled_out(&with("mprotect", 62 * MIB), "memory-calls"));
        present(&with("brk", 62 * MIB), "memory-calls");
        present(&with("mprotect", 0), "memory-calls");
        present(&with("mprotect", 8 * MIB), "memory-calls");
        present(&with("munmap", 62 * MIB), "memory-calls");
    }

    #[test]
    fn lost_events_count_as_calls() {
        let mut evidence = steady(MIB);
        evidence.calls = calls(&[("mincore", 0, 8000)], 0);
        add_work(&mut evidence, 0, 0.08, 0.05);
        assert!(is_ruled_out(&evidence, "memory-calls"));
        let Gathered::Value(profile) = &mut evidence.calls else { panic!("it was made") };
        profile.lost = 8000;
        let found = present(&evidence, "memory-calls");
        assert_eq!(found.object.function(), Some("do_mincore"));
    }

    #[test]
    fn large_blocks_of_a_process_that_computes_are_no_trouble() {
        let mut evidence = touching([20 * MIB; 17]);
        add_work(&mut evidence, 20_000, 0.08, 0.5);
        evidence.calls = calls(&[("munmap", 0, 24_000)], 0);
        assert!(is_ruled_out(&evidence, "memory-calls"));
    }

    #[test]
    fn calls_of_a_process_that_is_mostly_in_the_kernel_are_costly() {
        let with = |system, user| {
            let mut evidence = steady(MIB);
            evidence.calls = calls(&[("mprotect", 0, 44_000)], 0);
            add_work(&mut evidence, 0, system, user);
            evidence
        };
        assert_eq!(
            present(&with(0.9, 0.05), "memory-calls").object.function(),
            Some("do_mprotect")
        );
        assert!(is_ruled_out(&with(0.3, 0.65), "memory-calls"));
    }

    #[test]
    fn a_process_with_one_thread_has_no_shootdowns() {
        assert_eq!(verdict(&steady(MIB), "tlb-shootdowns"), Verdict::NotApplicable);
    }
}
