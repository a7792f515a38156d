//! Identity of the process, and the method of the reading.

use pagewise_model::machine::{ProcessMoment, ReadMethod};
use pagewise_model::process::Process;
use pagewise_model::report::{Audience, CellValue, Fact, FactsShape, NamedFacts};
use pagewise_model::{Absent, Name, Reading, Snapshot};

use super::{ExplainSubject, fact};
use crate::blocks::facts_of;

/// Builds the title of the report.
pub(super) fn title(snapshot: &Snapshot) -> Vec<CellValue> {
    let when = match snapshot.provenance.moment {
        ProcessMoment::Running => "",
        ProcessMoment::AtExit => ", as it exited",
        ProcessMoment::After(_) => ", some time after its start",
        ProcessMoment::AtPeak(_) => ", near its peak",
        ProcessMoment::CoreDumped => ", as its core file was written",
    };
    title_of("Memory", &snapshot.process, when)
}

/// Writes `SUBJECT of NAME (PID)WHEN`.
pub(crate) fn title_of(subject: &str, process: &Process, when: &str) -> Vec<CellValue> {
    vec![
        CellValue::text(format!("{subject} of ")),
        CellValue::Name(process.name.clone()),
        CellValue::text(format!(" ({}){when}", process.pid)),
    ]
}

pub(crate) fn process(process: &Process) -> NamedFacts {
    let user = match &process.user {
        Some(name) => CellValue::Name(name.clone()),
        None => CellValue::text(format!("uid {}", process.uid)),
    };
    let command = CellValue::from_reading(process.command.clone(), |words| {
        CellValue::List(words.into_iter().map(CellValue::Name).collect())
    });
    let facts = vec![
        fact("pid", "pid", CellValue::text(process.pid.to_string()), "").for_people(),
        fact("pid", "pid", CellValue::Count(process.pid.0.into()), "").for_programs(),
        fact("name", "name", CellValue::Name(process.name.clone()), "").for_programs(),
        fact("command", "command", command, "").hidden_if(is_empty(&process.command)),
        fact("user", "user", user, ""),
        fact("uid", "uid", CellValue::Count(process.uid.into()), "").for_programs(),
        fact("parent", "parent", CellValue::Count(process.parent.0.into()), "").for_programs(),
        fact("state", "state", CellValue::text(state(process.state)), ""),
        fact("threads", "threads", CellValue::Count(process.threads), ""),
        fact(
            "uptime_ns",
            "up",
            CellValue::from_reading(process.age_ns.clone(), CellValue::Nanos),
            "",
        )
        .hidden_if(process.age_ns.is_err()),
        fact(
            "ns_pids",
            "pids",
            ns_pids(process),
            "Its ids from the outermost pid namespace to its own.",
        )
        .hidden_if(process.ns_pids.len() < 2),
    ];
    facts_of("process", "", FactsShape::Line, facts)
}

fn ns_pids(process: &Process) -> CellValue {
    let pids = process.ns_pids.iter();
    CellValue::List(pids.map(|pid| CellValue::Count(pid.0.into())).collect())
}

fn is_empty(command: &Reading<Vec<Name>>) -> bool {
    command.as_ref().is_ok_and(Vec::is_empty)
}

/// Describes the kernel's letter of a process state in words. An unknown letter is returned as it
/// is.
fn state(letter: char) -> String {
    let word = match letter {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in uninterruptible sleep",
        'T' => "stopped",
        't' => "stopped by a debugger",
        'Z' => "zombie",
        'X' => "dead",
        'I' => "idle",
        other => return other.to_string(),
    };
    word.to_owned()
}

pub(super) fn provenance(
    snapshot: &Snapshot,
    subject: Result<&ExplainSubject<'_>, &Absent>,
) -> NamedFacts {
    let seen = &snapshot.provenance;
    let checked = subject.map_err(Clone::clone).map(|s| &s.invariants);
    let torn = checked.clone().and_then(|i| i.is_torn());
    let unchecked = torn.is_err();
    let counters = checked.clone().and_then(|i| i.torn.clone()).unwrap_or_default();
    let counters: Vec<CellValue> = counters.iter().map(|c| CellValue::text(c.name())).collect();
    let whole = counters.is_empty();
    let drifts = [
        drift("drift_virt", "VIRT off by", checked.clone().and_then(|i| i.drift.virt.clone())),
        drift("drift_res", "RES off by", checked.and_then(|i| i.drift.res.clone())),
    ];
    let mut facts = vec![
        fact("kernel", "kernel", kernel(&seen.kernel), "").hidden_if(seen.kernel.is_empty()),
        fact("page_size", "page size", CellValue::Bytes(seen.page_size.bytes()), ""),
        fact("method", "read", CellValue::text(seen.method.key()), method(seen.method)),
        fact("privileges", "as", CellValue::text(privileges(snapshot)), "")
            .hidden_if(snapshot.core.is_some()),
        fact("took_ns", "in", CellValue::Nanos(seen.took_ns), "Duration of the reading."),
        fact(
            "longest_hold_ns",
            "longest pause of the target",
            CellValue::from_reading(seen.longest_hold_ns.clone(), CellValue::Nanos),
            "The longest system call that may have kept the process from mapping memory meanwhile.",
        )
        .hidden_if(seen.longest_hold_ns.is_err()),
        fact(
            "torn",
            "torn",
            CellValue::from_reading(torn, CellValue::Flag),
            "True if the parts were read at different times: sums over smaps differ from smaps_rollup, or VIRT differs from the mappings.",
        )
        .hidden_if(unchecked),
        fact("torn_counters", "in", CellValue::List(counters), "").hidden_if(whole),
    ];
    facts.extend(drifts);
    facts.push(moment(seen.moment));
    facts.push(
        fact("root", "from", CellValue::Name(seen.root.clone()), "The tree that was read.")
            .hidden_if(seen.root.as_bytes() == b"/proc"),
    );
    facts.extend(gaps(snapshot));
    facts_of("provenance", "Reading", FactsShape::Line, facts)
}

/// Returns the kernel release; a core file without a vdso does not contain it.
fn kernel(release: &Name) -> CellValue {
    if release.is_empty() {
        return CellValue::Absent(Absent::NotRecorded("a core file without a vdso".into()));
    }
    CellValue::Name(release.clone())
}

const fn method(method: ReadMethod) -> &'static str {
    match method {
        ReadMethod::Full => "smaps, every counter.",
        ReadMethod::Fast => "maps and page tables, at full speed.",
        ReadMethod::Polite => {
            "maps and page tables, with rests so that the process is never held long."
        }
        ReadMethod::CoreFile => "A core file: mappings, threads and bytes, without counters.",
    }
}

fn privileges(snapshot: &Snapshot) -> String {
    let seen = &snapshot.provenance;
    let user = if seen.euid == 0 { "root".to_owned() } else { format!("uid {}", seen.euid) };
    let frames = if seen.sees_frames { "" } else { ", without page frames" };
    user + frames
}

/// Builds the fact of a difference of `statm` from the mappings. People see the fact if the
/// difference is not 0.
fn drift(key: &'static str, label: &'static str, drift: Reading<i64>) -> Fact {
    let hidden = !drift.as_ref().is_ok_and(|&bytes| bytes != 0);
    let meaning = "statm minus the sum over the mappings: kernels add RSS up late, so RES may be some pages off.";
    fact(key, label, CellValue::from_reading(drift, CellValue::Change), meaning).hidden_if(hidden)
}

fn moment(moment: ProcessMoment) -> Fact {
    let (name, value) = match moment {
        ProcessMoment::Running => ("running", CellValue::None),
        ProcessMoment::AtExit => ("at exit", CellValue::None),
        ProcessMoment::After(ns) => ("after", CellValue::Nanos(ns)),
        ProcessMoment::AtPeak(peak) => ("near the peak RES", CellValue::Bytes(peak.0)),
        ProcessMoment::CoreDumped => ("core dumped", CellValue::None),
    };
    let pieces = match value {
        CellValue::None => CellValue::text(name),
        value => CellValue::List(vec![CellValue::text(name), value]),
    };
    let is_plain = matches!(moment, ProcessMoment::Running | ProcessMoment::CoreDumped);
    fact("moment", "moment", pieces, "").hidden_if(is_plain)
}

/// Builds the facts of the parts that could not be read: the number for people, a list for programs
/// and with `--long`.
fn gaps(snapshot: &Snapshot) -> [Fact; 2] {
    let gaps = &snapshot.provenance.gaps;
    let each = gaps.iter().map(|gap| {
        let mut line = gap.what.as_bytes().to_vec();
        line.extend(format!(": {}", gap.why).bytes());
        CellValue::Name(Name::new(&line))
    });
    let count = fact("unread", "parts not read", CellValue::Count(gaps.len() as u64), "");
    let list =
        fact("gaps", "not read", CellValue::List(each.collect()), "Missing parts, and the reason.");
    [
        count.hidden_if(gaps.is_empty()),
        Fact {
            audience: if gaps.is_empty() { Audience::Programs } else { Audience::Long },
            ..list
        },
    ]
}
