//! Synthetic recordings and counters for tests of rules.

use pagewise_model::evidence::{
    CallProfile, CallProfileRow, CgroupActivity, CgroupPoint, Evidence, Gathered, MachinePoint,
};
use pagewise_model::faults::{
    FaultKind, FaultMapping, FaultRecording, FaultRow, FaultSource, FaultThread, Owner, TimeLine,
    VERSION,
};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, AddrRange, Bytes, PageSize, Pid, Quadrant};

use super::made;
use crate::sample::{resident, snapshot};

/// Duration of the recordings and of the observation in nanoseconds.
pub(super) const TOOK_NS: u64 = 4_000_000_000;

/// Returns evidence of a process whose number of resident anonymous bytes does not change for 4 s.
pub(super) fn steady(anonymous: u64) -> Evidence {
    let range = format!("10000000-{:x} rw-p 0 0", 0x1000_0000 + anonymous.next_multiple_of(4096));
    let process = || snapshot(vec![resident(&range, anonymous)]);
    let mut evidence = made::evidence(process(), process());
    evidence.activity = made::activity([anonymous; 17]);
    evidence.machine[1].at_ns = TOOK_NS;
    evidence
}

fn frame(function: &str) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        module: Some("/app".into()),
        offset: 1,
        line: None,
        inlined: false,
    }
}

/// Returns a recording with faults of one kind in the function `update` of the sample process.
pub(super) fn faults(
    kind: FaultKind,
    count: u64,
    name: &str,
    quadrant: Quadrant,
) -> Gathered<Box<FaultRecording>> {
    let pid = Pid(7);
    Gathered::Value(Box::new(FaultRecording {
        version: VERSION,
        pid,
        command: Vec::new(),
        page_size: PageSize::new(4096).unwrap(),
        huge_page: Ok(Bytes::mib(2)),
        began_ns: None,
        took_ns: TOOK_NS,
        ending: None,
        source: FaultSource::Tracepoints,
        every: 1,
        lost: 0,
        counted: None,
        stack_bytes: 0,
        cut: None,
        usage: Err(Absent::NotCollected("a sample".into())),
        frames: vec![frame("update")],
        stacks: vec![vec![0]],
        mappings: vec![FaultMapping {
            pid,
            range: AddrRange { start: 0, end: 1 << 40 },
            name: name.into(),
            quadrant: Some(quadrant),
        }],
        threads: vec![FaultThread { pid, tid: pid, name: "sample".into() }],
        heap: None,
        rows: vec![FaultRow {
            stack: 0,
            mapping: 0,
            thread: 0,
            kind,
            by_kernel: false,
            on_stack: false,
            owner: Owner::Unrecorded,
            count,
            took_ns: None,
        }],
        latencies: Vec::new(),
        time_line: TimeLine::default(),
        folded: pagewise_model::bounds::Folded::default(),
        lacks: Vec::new(),
    }))
}

/// Returns a recording of calls; each call comes from a function with the name of the call.
pub(super) fn calls(rows: &[(&str, u64, u64)], execs: u64) -> Gathered<CallProfile> {
    let row = |(stack, (call, detail, count)): (u32, &(&str, u64, u64))| CallProfileRow {
        call: (*call).to_owned(),
        detail: *detail,
        stack,
        count: *count,
        bytes: 4096 * count,
    };
    Gathered::Value(CallProfile {
        took_ns: TOOK_NS,
        lost: 0,
        frames: rows.iter().map(|(call, ..)| frame(&format!("do_{call}"))).collect(),
        stacks: (0..rows.len()).map(|at| vec![u32::try_from(at).unwrap()]).collect(),
        rows: (0..).zip(rows).map(row).collect(),
        execs,
    })
}

fn counters(list: &[(&str, u64)]) -> Vec<BootCounter> {
    let counter = |(name, count): &(&str, u64)| BootCounter { name: (*name).into(), count: *count };
    list.iter().map(counter).collect()
}

/// Returns a cgroup of v2 with a limit, and the lines of its `memory.stat` at the beginning and at
/// the end of the observation.
pub(super) fn cgroup(
    limit: Bytes,
    usage: Bytes,
    hits: u64,
    stat: [&[(&str, u64)]; 2],
) -> CgroupActivity {
    let point = |hits, stat| CgroupPoint {
        usage: Some(usage),
        limit_hits: Some(hits),
        oom_kills: Some(0),
        stat: counters(stat),
        ..CgroupPoint::default()
    };
    CgroupActivity {
        path: "/service".into(),
        limited: "/service".into(),
        version: 2,
        limit: Some(limit),
        swap_limit: None,
        points: [point(0, stat[0]), point(hits, stat[1])],
    }
}

/// Returns a reading of the machine's counters with this total and available memory.
pub(super) fn machine(total: Bytes, available: Bytes) -> MachinePoint {
    MachinePoint {
        at_ns: TOOK_NS,
        meminfo: counters(&[("MemTotal", total.0), ("MemAvailable", available.0)]),
        ..MachinePoint::default()
    }
}

/// Adds this number of major faults, distributed over the observation.
pub(super) fn add_major_faults(evidence: &mut Evidence, count: u64) {
    let steps = evidence.activity.len() as u64 - 1;
    for (at, point) in (0..).zip(&mut evidence.activity) {
        point.major_faults = count * at / steps;
    }
}

/// Adds this number of minor faults, and CPU time in the kernel and in user mode as shares of one
/// CPU.
pub(super) fn add_work(evidence: &mut Evidence, minor: u64, system: f64, user: f64) {
    let steps = evidence.activity.len() as u64 - 1;
    for (at, point) in (0..).zip(&mut evidence.activity) {
        point.minor_faults = minor * at / steps;
        point.system_ns = scaled(point.at_ns, system);
        point.user_ns = scaled(point.at_ns, user);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "times of seconds"
)]
fn scaled(time_ns: u64, share: f64) -> u64 {
    (time_ns as f64 * share) as u64
}
