//! Who the process is, and how its memory was seen.

use pagewise_model::machine::{Method, Moment};
use pagewise_model::process::Process;
use pagewise_model::report::{Audience, Fact, Facts, Shape, Value};
use pagewise_model::{Absent, Name, Reading, Snapshot};

use super::{Subject, fact};

/// The line that names the subject.
pub(super) fn title(snapshot: &Snapshot) -> Vec<Value> {
    let when = match snapshot.provenance.moment {
        Moment::Running => "",
        Moment::AtExit => ", as it exited",
        Moment::After(_) => ", some time after its start",
        Moment::AtPeak(_) => ", near its peak",
    };
    title_of(&snapshot.process, &format!("where its memory is{when}"))
}

/// `NAME (PID): SUBJECT`.
pub(crate) fn title_of(process: &Process, subject: &str) -> Vec<Value> {
    vec![Value::Name(process.name.clone()), Value::text(format!(" ({}): {subject}", process.pid))]
}

pub(crate) fn process(process: &Process) -> Facts {
    let user = match &process.user {
        Some(name) => Value::Name(name.clone()),
        None => Value::text(format!("uid {}", process.uid)),
    };
    let command = Value::of(process.command.clone(), |words| {
        Value::List(words.into_iter().map(Value::Name).collect())
    });
    let facts = vec![
        fact("pid", "pid", Value::text(process.pid.to_string()), "").for_people(),
        fact("pid", "pid", Value::Count(process.pid.0.into()), "").for_programs(),
        fact("name", "name", Value::Name(process.name.clone()), "").for_programs(),
        fact("command", "command", command, "").hidden_if(is_empty(&process.command)),
        fact("user", "user", user, ""),
        fact("uid", "uid", Value::Count(process.uid.into()), "").for_programs(),
        fact("parent", "parent", Value::Count(process.parent.0.into()), "").for_programs(),
        fact("state", "state", Value::text(state(process.state)), ""),
        fact("threads", "threads", Value::Count(process.threads), ""),
        fact("uptime_ns", "up", Value::of(process.age_ns.clone(), Value::Nanos), "")
            .hidden_if(process.age_ns.is_err()),
        fact(
            "ns_pids",
            "pids",
            ns_pids(process),
            "Its ids from the outermost pid namespace to its own.",
        )
        .hidden_if(process.ns_pids.len() < 2),
    ];
    line("process", facts)
}

fn ns_pids(process: &Process) -> Value {
    let pids = process.ns_pids.iter();
    Value::List(pids.map(|pid| Value::Count(pid.0.into())).collect())
}

fn is_empty(command: &Reading<Vec<Name>>) -> bool {
    command.as_ref().is_ok_and(Vec::is_empty)
}

/// The kernel's letter in words; a letter we do not know stays one.
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

pub(super) fn provenance(snapshot: &Snapshot, subject: Result<&Subject<'_>, &Absent>) -> Facts {
    let seen = &snapshot.provenance;
    let checked = subject.map_err(Clone::clone).map(|s| &s.invariants);
    let torn = checked.clone().and_then(|i| i.is_torn());
    let unchecked = torn.is_err();
    let counters = checked.clone().and_then(|i| i.torn.clone()).unwrap_or_default();
    let counters: Vec<Value> = counters.iter().map(|c| Value::text(c.name())).collect();
    let whole = counters.is_empty();
    let drifts = [
        drift("drift_virt", "VIRT off by", checked.clone().and_then(|i| i.drift.virt.clone())),
        drift("drift_res", "RES off by", checked.and_then(|i| i.drift.res.clone())),
    ];
    let mut facts = vec![
        fact("kernel", "kernel", Value::Name(seen.kernel.clone()), ""),
        fact("page_size", "page size", Value::Bytes(seen.page_size.bytes()), ""),
        fact("method", "read", Value::text(seen.method.key()), method(seen.method)),
        fact("privileges", "as", Value::text(privileges(snapshot)), ""),
        fact("took_ns", "in", Value::Nanos(seen.took_ns), "How long the reading took."),
        fact(
            "longest_hold_ns",
            "held it at most",
            Value::of(seen.longest_hold_ns.clone(), Value::Nanos),
            "The longest system call that may have kept the process from mapping memory meanwhile.",
        )
        .hidden_if(seen.longest_hold_ns.is_err()),
        fact(
            "torn",
            "torn",
            Value::of(torn, Value::Flag),
            "Whether the parts are of different moments: sums over smaps differ from smaps_rollup, or VIRT from the mappings.",
        )
        .hidden_if(unchecked),
        fact("torn_counters", "in", Value::List(counters), "").hidden_if(whole),
    ];
    facts.extend(drifts);
    facts.push(moment(seen.moment));
    facts.push(
        fact("root", "from", Value::Name(seen.root.clone()), "The tree that was read.")
            .hidden_if(seen.root.as_bytes() == b"/proc"),
    );
    facts.extend(gaps(snapshot));
    Facts { title: "Seen".into(), ..line("provenance", facts) }
}

const fn method(method: Method) -> &'static str {
    match method {
        Method::Full => "smaps, every counter.",
        Method::Fast => "maps and page tables, at full speed.",
        Method::Polite => {
            "maps and page tables, with rests so that the process is never held long."
        }
    }
}

fn privileges(snapshot: &Snapshot) -> String {
    let seen = &snapshot.provenance;
    let user = if seen.euid == 0 { "root".to_owned() } else { format!("uid {}", seen.euid) };
    let frames = if seen.sees_frames { "" } else { ", without page frames" };
    user + frames
}

/// How far statm is from the mappings; people see it where it is off.
fn drift(key: &'static str, label: &'static str, drift: Reading<i64>) -> Fact {
    let hidden = !drift.as_ref().is_ok_and(|&bytes| bytes != 0);
    let meaning = "statm minus the sum over the mappings: kernels add RSS up late, so RES may be some pages off.";
    fact(key, label, Value::of(drift, Value::Change), meaning).hidden_if(hidden)
}

fn moment(moment: Moment) -> Fact {
    let (name, value) = match moment {
        Moment::Running => ("running", Value::None),
        Moment::AtExit => ("at exit", Value::None),
        Moment::After(ns) => ("after", Value::Nanos(ns)),
        Moment::AtPeak(peak) => ("near the peak RES", Value::Bytes(peak.0)),
    };
    let pieces = match value {
        Value::None => Value::text(name),
        value => Value::List(vec![Value::text(name), value]),
    };
    fact("moment", "moment", pieces, "").hidden_if(moment == Moment::Running)
}

/// What could not be read: the number for people, each for programs and those who ask.
fn gaps(snapshot: &Snapshot) -> [Fact; 2] {
    let gaps = &snapshot.provenance.gaps;
    let each = gaps.iter().map(|gap| {
        let mut line = gap.what.as_bytes().to_vec();
        line.extend(format!(": {}", gap.why).bytes());
        Value::Name(Name::new(&line))
    });
    let count = fact("unread", "parts not read", Value::Count(gaps.len() as u64), "");
    let list = fact("gaps", "not read", Value::List(each.collect()), "What is missing, and why.");
    [
        count.hidden_if(gaps.is_empty()),
        Fact {
            audience: if gaps.is_empty() { Audience::Programs } else { Audience::Long },
            ..list
        },
    ]
}

fn line(key: &'static str, facts: Vec<Fact>) -> Facts {
    Facts {
        key: key.into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: Shape::Line,
        facts,
    }
}
