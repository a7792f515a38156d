//! Forks after which a process copies its pages, and forks that copy large page tables.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{CallProfile, Gathered, Instrument};
use pagewise_model::faults::{FaultKind, FaultRecording};
use pagewise_model::report::CellValue;
use pagewise_model::{Bytes, Quadrant};

use super::{command, lost, milliseconds, missing, per_second};
use crate::causes::signs::{
    anonymous, bytes, bytes_fact, count_fact, is_own, known_rate_fact, rate_fact, share_of_run_time,
};
use crate::causes::{CauseEvidence, cause, remedy_code};
use crate::cells::{float, ratio, text, whole_bytes};
use crate::explain::fact;

/// Minimum number of copied bytes per fork: fewer are the usual cost of a child.
const COPIED_PER_FORK: Bytes = Bytes::mib(8);
/// Minimum copied bytes per fork as a share of RES.
const COPIED_SHARE: f64 = 0.1;
/// Minimum number of copied pages per second that costs notable time.
const MANY_COPIES: f64 = 500.0;
/// CPU time of a copy-on-write fault in seconds: the fault, a new page and the copy.
const COPY_SECONDS: f64 = 1.5e-6;
/// CPU time in seconds that fork takes for each page in the page tables.
const FORK_PAGE_SECONDS: f64 = 150e-9;
/// Minimum private memory in bytes for which fork is slow.
const LARGE_PROCESS: Bytes = Bytes::mib(64);
/// Minimum number of forks per second that costs notable time.
const MANY_FORKS: f64 = 0.5;

/// Minimum share of a CPU that forks alone take to be trouble.
const MUCH_FORKING: f64 = 0.02;
/// Minimum share of the run time of the process that forks alone take to be trouble.
const MAIN_WORK: f64 = 0.3;

/// Forks of the process, and copies of its pages after forks.
struct Copies {
    /// Number of recorded forks.
    forks: u64,
    /// Duration of the recording of forks in nanoseconds.
    forks_ns: u64,
    /// Number of children that called `execve`.
    execs: u64,
    /// Number of copied pages per second.
    rate: f64,
}

impl Copies {
    fn forks_per_second(&self) -> f64 {
        per_second(self.forks, self.forks_ns)
    }
}

/// Number of copy-on-write faults of the process itself in private anonymous memory. Excludes pages
/// that were read before they were written: their faults replace the shared zero page, and do not
/// come from a fork.
fn copied_pages(evidence: &CauseEvidence<'_>, recording: &FaultRecording) -> u64 {
    let own = is_own(evidence);
    let count = |kind| -> u64 {
        let is_private = |mapping: u32| {
            let mapping = recording.mappings.get(mapping as usize);
            mapping.is_some_and(|it| it.quadrant == Some(Quadrant::PrivateAnonymous))
        };
        let rows = recording.rows.iter();
        let rows = rows.filter(|row| row.kind == kind && own(row) && is_private(row.mapping));
        rows.map(|row| row.count).sum()
    };
    count(FaultKind::CopyOnWrite).saturating_sub(count(FaultKind::Zero))
}

fn forks(profile: &CallProfile) -> u64 {
    profile.rows.iter().filter(|row| row.call == "fork").map(|row| row.count).sum()
}

/// Returns the forks and copies, or the verdict if a recording is missing.
fn copies(evidence: &CauseEvidence<'_>) -> Result<Copies, Verdict> {
    let recording = match &evidence.all.faults {
        Gathered::Value(recording) => recording,
        Gathered::NotNeeded => return Err(Verdict::RuledOut(vec![text("few page faults")])),
        Gathered::Missing(why) => {
            return Err(missing(evidence, Instrument::Faults, why.to_string()));
        }
    };
    let rate = per_second(copied_pages(evidence, recording), recording.took_ns);
    match &evidence.all.calls {
        Gathered::Value(profile) => Ok(Copies {
            forks: forks(profile),
            forks_ns: profile.took_ns,
            execs: profile.execs,
            rate,
        }),
        _ if rate * evidence.demand() < MANY_COPIES => {
            Err(Verdict::RuledOut(vec![CellValue::Rate(rate), text(" copied pages")]))
        }
        Gathered::NotNeeded => Err(Verdict::RuledOut(vec![text("little time in the kernel")])),
        Gathered::Missing(why) => Err(missing(evidence, Instrument::Calls, why.to_string())),
    }
}

pub(super) fn cow_storm(evidence: &CauseEvidence<'_>) -> Verdict {
    let copies = match copies(evidence) {
        Ok(copies) => copies,
        Err(verdict) => return verdict,
    };
    let excluded = |words: &'static str| {
        Verdict::RuledOut(vec![
            CellValue::Rate(copies.rate),
            text(" copied pages, "),
            CellValue::Count(copies.forks),
            text(words),
        ])
    };
    // A single fork is not trouble: a database forks occasionally for a snapshot.
    if copies.rate * evidence.demand() < MANY_COPIES || copies.forks < 2 {
        return excluded(" forks");
    }
    if copies.execs * 2 > copies.forks {
        return excluded(" forks, most of whose children call execve");
    }
    let per_fork = evidence.now.provenance.page_size.bytes();
    let per_fork = copies.rate / copies.forks_per_second() * float(per_fork);
    let resident = evidence.resident().unwrap_or_default();
    let enough = float(COPIED_PER_FORK.0).max(float(resident.0) * COPIED_SHARE);
    if per_fork < enough {
        return excluded(" forks, which copy little each");
    }
    storm_cause(evidence, &copies, per_fork.min(float(resident.0))).into()
}

fn storm_cause(evidence: &CauseEvidence<'_>, copies: &Copies, per_fork: f64) -> Cause {
    let per_fork = whole_bytes(per_fork);
    let forking = evidence.calling_function(|row| row.call == "fork");
    let writing = evidence.faulting_function(|row, _| row.kind == FaultKind::CopyOnWrite);
    let process = &evidence.now.process;
    let object = forking
        .or(writing)
        .map_or_else(|| CauseObject::Process(process.pid, process.name.clone()), |it| it.object());
    let interval = 1.0 / copies.forks_per_second();
    let lost = lost(copies.rate, COPY_SECONDS);
    let sentence = vec![
        text("The process forks every "),
        seconds(interval),
        text(", and then copies "),
        bytes(per_fork),
        text(" on write each time: "),
        CellValue::Rate(copies.rate),
        text(" copied pages."),
    ];
    let mut found = cause("cow-storm", object, Confidence::Certain, sentence);
    let share = share_of_run_time(evidence, lost);
    found.cost = CauseCost {
        time_share: share,
        ..CauseCost::of_memory(per_fork, evidence.resident().unwrap_or_default())
    };
    found.evidence = vec![
        rate_fact("copies_per_s", "copied pages", copies.rate),
        count_fact("forks", "forks", copies.forks),
        fact("interval", "interval of forks", seconds(interval), ""),
        bytes_fact("copied_per_fork", "copied per fork", per_fork),
        fact("lost_ms_per_s", "time lost in ms per s", milliseconds(lost), ""),
    ];
    if let Some(name) = writing.and_then(|writing| writing.frame.function.clone()) {
        let name = CellValue::Name(name.as_str().into());
        found.evidence.push(fact("writer", "most copies written by", name, ""));
    }
    found.code = remedy_code([text(
        "Fork less often: write an append-only log between snapshots, or snapshot from a replica. \
         Exclude memory that the child does not read with madvise(MADV_DONTFORK).",
    )]);
    found
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is not negative")]
fn seconds(seconds: f64) -> CellValue {
    CellValue::Nanos((seconds.clamp(0.0, 1e6) * 1e9) as u64)
}

pub(super) fn fork_exec_copy(evidence: &CauseEvidence<'_>) -> Verdict {
    let profile = match &evidence.all.calls {
        Gathered::Value(profile) => profile,
        Gathered::NotNeeded => return Verdict::RuledOut(vec![text("little time in the kernel")]),
        Gathered::Missing(why) => return missing(evidence, Instrument::Calls, why.to_string()),
    };
    let forks = forks(profile);
    let rate = per_second(forks, profile.took_ns);
    let Some(private) = anonymous(evidence) else {
        let command = format!("pagewise explain {}", evidence.pid());
        return Verdict::Unknown("the private memory could not be read".into(), command.into());
    };
    let children = match ratio(profile.execs, forks) {
        Some(share) if share > 0.5 => Some(ForkedChildren::Execute),
        _ => Some(ForkedChildren::Remain).filter(|_| forks_cost_much(evidence, rate, private)),
    };
    let is_much = rate * evidence.demand() >= MANY_FORKS && private >= LARGE_PROCESS;
    let Some(children) = children.filter(|_| is_much) else {
        return Verdict::RuledOut(vec![
            CellValue::Rate(rate),
            text(" forks, "),
            CellValue::Count(profile.execs),
            text(" children that call execve, "),
            bytes(private),
            text(" of private memory"),
        ]);
    };
    fork_cause(evidence, children, (forks, rate), private).into()
}

/// Activity of most of the forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForkedChildren {
    /// The children execute another program.
    Execute,
    /// The children continue with the memory of the process, such as those of a command
    /// substitution in a shell.
    Remain,
}

impl ForkedChildren {
    const fn purpose(self) -> &'static str {
        match self {
            ForkedChildren::Execute => " only to start other programs: ",
            ForkedChildren::Remain => " for short-lived children: ",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            ForkedChildren::Execute => {
                "Start programs with posix_spawn or vfork, which copy nothing, or from a small helper process that was forked at the start."
            }
            ForkedChildren::Remain => {
                "Do the work in the process itself or in a thread, or fork the children from a small helper process that was forked at \
                 the start. In a shell script, a function can assign its result to a variable (printf -v) instead of a command \
                 substitution."
            }
        }
    }
}

/// CPU time of forks as a share of one CPU. `rate` is in forks per second.
fn fork_share(evidence: &CauseEvidence<'_>, rate: f64, private: Bytes) -> f64 {
    let pages = float(evidence.now.provenance.page_size.count(private));
    lost(rate * pages, FORK_PAGE_SECONDS)
}

/// True if forks take a large part of the time of the process, and copies on write after forks are
/// not the cause.
fn forks_cost_much(evidence: &CauseEvidence<'_>, rate: f64, private: Bytes) -> bool {
    let share = fork_share(evidence, rate, private);
    share * evidence.demand() >= MUCH_FORKING
        && share_of_run_time(evidence, share) >= MAIN_WORK
        && !matches!(cow_storm(evidence), Verdict::Present(_))
}

fn fork_cause(
    evidence: &CauseEvidence<'_>,
    children: ForkedChildren,
    (forks, rate): (u64, f64),
    private: Bytes,
) -> Cause {
    let process = &evidence.now.process;
    let forking = evidence.calling_function(|row| row.call == "fork");
    let object = forking
        .map_or_else(|| CauseObject::Process(process.pid, process.name.clone()), |it| it.object());
    let faults = evidence.faults();
    let copied = faults.map(|it| per_second(copied_pages(evidence, it), it.took_ns));
    // Without a recording of page faults, the cost covers only the forks.
    let lost = fork_share(evidence, rate, private) + lost(copied.unwrap_or(0.0), COPY_SECONDS);
    let sentence = vec![
        text("The process forks "),
        CellValue::Rate(rate),
        text(children.purpose()),
        text("each fork copies the page tables of "),
        bytes(private),
        text(" and write-protects that memory."),
    ];
    let check = command(evidence, Instrument::Calls);
    let mut found = cause("fork-exec-copy", object, Confidence::Likely(check.into()), sentence);
    found.cost = CauseCost::of_time(share_of_run_time(evidence, lost));
    found.evidence = vec![
        count_fact("forks", "forks", forks),
        rate_fact("forks_per_s", "rate", rate),
        bytes_fact("private", "private memory", private),
        fact("lost_ms_per_s", "time lost in ms per s", milliseconds(lost), ""),
    ];
    found.evidence.extend(known_rate_fact("copies_per_s", "copied pages", copied));
    found.code = remedy_code([text(children.remedy())]);
    found
}
