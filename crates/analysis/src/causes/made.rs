//! Synthetic evidence for tests of rules.

use pagewise_model::evidence::{
    ActivityPoint, DiagnosisCost, EVIDENCE_VERSION, Evidence, Gathered, MachinePoint,
};
use pagewise_model::heap_graph::HeapGraph;
use pagewise_model::heap_scan::{HEAP_SCAN_VERSION, HeapScan, MemoryCopy, WalkedHeap};
use pagewise_model::machine::ProcessMoment;
use pagewise_model::object::{Elf, ElfObject, ObjectSection, OnDisk};
use pagewise_model::report::Severity;
use pagewise_model::{Absent, AddrRange, Bytes, Device, Snapshot};

use super::{CauseEvidence, CauseRow, latest};
use crate::causes::judge;
use crate::explain::ExplainSubject;
use crate::findings;
use pagewise_model::cause::{Cause, Verdict};

/// Interval of the readings of counters in nanoseconds.
const STEP_NS: u64 = 250_000_000;

/// Returns evidence with two snapshots, and without results of other instruments.
pub(super) fn evidence(first: Snapshot, last: Snapshot) -> Evidence {
    Evidence {
        pagewise_evidence: EVIDENCE_VERSION,
        first,
        last: Gathered::Value(Box::new(last)),
        activity: Vec::new(),
        cpu_waits: Gathered::NotNeeded,
        machine: [MachinePoint::default(), MachinePoint::default()],
        others: Vec::new(),
        memory_files: Vec::new(),
        cgroup: Err(Absent::NotCollected("a sample".into())),
        stacks: Gathered::NotNeeded,
        huge_pages: Gathered::NotNeeded,
        zero_pages: Gathered::NotNeeded,
        collector: Gathered::NotNeeded,
        scan: Gathered::NotNeeded,
        leak_recheck: Gathered::NotNeeded,
        free_recheck: Gathered::NotNeeded,
        heap_samples: Vec::new(),
        faults: Gathered::NotNeeded,
        shootdowns: Gathered::NotNeeded,
        calls: Gathered::NotNeeded,
        allocation_sizes: Gathered::NotNeeded,
        allocations: Gathered::NotNeeded,
        cost: DiagnosisCost::default(),
    }
}

/// Returns readings of the counters every 250 ms, with these numbers of anonymous bytes.
pub(super) fn activity(anonymous: impl IntoIterator<Item = u64>) -> Vec<ActivityPoint> {
    let point = |(number, bytes): (u64, u64)| ActivityPoint {
        at_ns: number * STEP_NS,
        mapped: Bytes(bytes),
        resident: Bytes(bytes),
        anonymous: Ok(Bytes(bytes)),
        file: Ok(Bytes::ZERO),
        shmem: Ok(Bytes::ZERO),
        swap: Ok(Bytes::ZERO),
        peak: Ok(Bytes(bytes)),
        minor_faults: 0,
        major_faults: 0,
        user_ns: 0,
        system_ns: 0,
        threads: 1,
        file_traffic: Ok(Bytes::mib(number * 1024)),
        storage_traffic: Ok(Bytes::mib(number * 1024)),
        memory_writes: Ok(Bytes::ZERO),
        main_thread_waits: Ok(number * 100),
    };
    (0..).zip(anonymous).map(point).collect()
}

/// Adds a heap scan of a running process with this graph of pointers.
pub(super) fn add_graph(made: &mut Evidence, graph: HeapGraph) {
    made.scan = Gathered::Value(Box::new(HeapScan {
        pagewise_heap_scan: HEAP_SCAN_VERSION,
        process: made.first.process.clone(),
        moment: ProcessMoment::Running,
        time_ns: 0,
        page_size: made.first.provenance.page_size,
        copy: MemoryCopy::default(),
        took_ns: 0,
        heap: WalkedHeap::default(),
        graph: Some(graph),
    }));
}

/// Returns the verdict on one cause.
pub(super) fn verdict(evidence: &Evidence, id: &str) -> Verdict {
    let now = latest(evidence);
    let subject = ExplainSubject::from_snapshot(now);
    let before = ExplainSubject::from_snapshot(&evidence.first).ok();
    let all = CauseEvidence { all: evidence, now, subject: &subject, before: before.as_ref() };
    let verdicts = judge(&all);
    if let Ok(subject) = &subject {
        assert_no_finding_is_ruled_out(subject, &verdicts);
    }
    verdicts.into_iter().find(|(row, _)| row.id == id).expect("the table has the cause").1
}

/// Causes that need evidence over time: a snapshot may show their signs in a healthy process. The
/// findings of one snapshot say so.
const OVER_TIME: [&str; 3] = ["trimmable-heap", "fragmented-heap", "cgroup-limit"];

/// Asserts that no rule excludes all causes that a warning of `explain` states. A note names the
/// command that decides.
fn assert_no_finding_is_ruled_out(subject: &ExplainSubject<'_>, verdicts: &[(&CauseRow, Verdict)]) {
    let mut stated = findings::find(findings::Evidence::Snapshot(subject));
    stated.retain(|finding| finding.severity >= Severity::Warning);
    for finding in stated {
        let of_finding: Vec<_> = findings::causes_of(finding.id).map(|row| row.id).collect();
        let is_open = |(row, verdict): &&(&CauseRow, Verdict)| {
            of_finding.contains(&row.id) && !matches!(verdict, Verdict::RuledOut(_))
        };
        let needs_time = of_finding.iter().any(|id| OVER_TIME.contains(id));
        let agrees = of_finding.is_empty() || needs_time || verdicts.iter().any(|it| is_open(&it));
        assert!(agrees, "{finding:?} contradicts {of_finding:?}");
    }
}

/// Returns a cause, which must be present.
pub(super) fn present(made: &Evidence, id: &str) -> Cause {
    match verdict(made, id) {
        Verdict::Present(cause) => *cause,
        other => panic!("{id}: {other:?}"),
    }
}

/// Returns a program that the Go toolchain has built.
pub(super) fn go_program() -> ElfObject {
    let mut program = glibc();
    program.name = "/usr/bin/app".into();
    if let Ok(elf) = &mut program.elf {
        elf.is_static = false;
        let range = AddrRange { start: 0, end: 4096 };
        elf.sections.push(ObjectSection {
            name: ".gopclntab".into(),
            range,
            offset: 0,
            zero_filled: false,
            thread_local: false,
            write: false,
            exec: false,
        });
    }
    program
}

/// Returns the library of glibc, by which the arenas of glibc are recognized.
pub(super) fn glibc() -> ElfObject {
    ElfObject {
        device: Device::default(),
        inode: 0,
        name: "/lib/libc.so.6".into(),
        on_disk: Ok(OnDisk::Same),
        elf: Ok(Elf {
            segments: Vec::new(),
            sections: Vec::new(),
            relro: None,
            is_static: true,
            allocator: None,
        }),
    }
}
