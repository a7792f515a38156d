//! What would avoid the faults: each rule looks for one thing, and speaks only where the numbers do.

use std::collections::HashMap;

use pagewise_model::faults::{Kind, Recording};
use pagewise_model::report::{Finding, Severity, Value};
use pagewise_model::{Bytes, Pid, Quadrant};

use super::places::{Frames, Sum};
use super::{count, real};
use crate::explain::fact;

/// Fewer faults than this take no time that anyone notices.
const MANY: u64 = 1000;
/// So many that waited for I/O are seen by anyone.
const MANY_MAJOR: u64 = 10;
/// What is less than this share of all is not what to look at first.
const LARGE: f64 = 0.2;

/// The findings, the gravest first.
pub(super) fn all(recording: &Recording, frames: &Frames<'_>) -> Vec<Finding> {
    let rules = [
        lost(recording),
        major(recording, frames),
        again(recording),
        first_touch(recording, frames),
        growth(frames),
        copies(recording, frames),
        zero(recording, frames),
        dirty(recording, frames),
    ];
    let mut findings: Vec<Finding> = rules.into_iter().flatten().collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn text(text: impl Into<std::borrow::Cow<'static, str>>) -> Value {
    Value::text(text)
}

fn lost(recording: &Recording) -> Option<Finding> {
    (recording.lost > 0).then(|| Finding {
        id: "lost-events",
        severity: Severity::Critical,
        claim: vec![
            Value::Count(recording.lost),
            text(" events are missing: every count here is too small."),
        ],
        evidence: vec![fact("lost", "lost", Value::Count(recording.lost), "")],
        next_step: vec![text("Record each of some faults only: --every 10.")],
    })
}

/// How many of a kind, where they are many and a large part of all.
fn many(recording: &Recording, kind: Kind) -> Option<u64> {
    let found = count(recording, |row, _| row.kind == kind);
    let is_large = real(found) >= real(recording.count()) * LARGE;
    (found >= MANY && is_large).then_some(found)
}

/// Where most of them are.
fn most_in(frames: &Frames<'_>, counts: impl Fn(&Sum) -> u64) -> Vec<pagewise_model::report::Fact> {
    let most = frames.most(counts);
    let facts = most.map(|(function, count)| {
        [
            fact("most_in", "most of them in", Value::Name(function), ""),
            fact("faults_there", "that is", Value::Count(count), ""),
        ]
    });
    facts.into_iter().flatten().collect()
}

fn first_touch(recording: &Recording, frames: &Frames<'_>) -> Option<Finding> {
    let found = many(recording, Kind::Anonymous)?;
    let memory = recording.page_size.pages(found);
    let mut evidence = vec![
        fact("faults", "faults", Value::Count(found), ""),
        fact("memory", "memory", Value::Bytes(memory.0), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[Kind::Anonymous.index()]));
    let mut next_step = vec![text(
        "Touch it before time matters: MAP_POPULATE, MADV_POPULATE_WRITE, or calloc and touch; a container at its final size \
         (reserve() alone touches nothing).",
    )];
    if let Ok(Bytes(huge)) = recording.huge_page
        && memory.0 >= huge
        && huge > 0
    {
        next_step.push(text(" With huge pages (MADV_HUGEPAGE) about "));
        next_step.push(Value::Count(memory.0.div_ceil(huge)));
        next_step.push(text(" faults would do, if the memory lies together."));
    }
    Some(Finding {
        id: "first-touch",
        severity: Severity::Note,
        claim: vec![
            Value::Count(found),
            text(" faults are the first touch of memory of no file, a page at a time."),
        ],
        evidence,
        next_step,
    })
}

/// Memory that was touched first more often than it has pages: given back, and taken again.
fn again(recording: &Recording) -> Option<Finding> {
    if recording.every > 1 {
        return None;
    }
    let mut sums: HashMap<(Pid, u32), u64> = HashMap::new();
    for row in recording.rows.iter().filter(|row| row.kind == Kind::Anonymous) {
        let pid = recording.threads.get(row.thread as usize)?.pid;
        *sums.entry((pid, row.mapping)).or_default() += row.count;
    }
    let over = |((_, mapping), faults): (&(Pid, u32), &u64)| {
        let mapped = recording.mappings.get(*mapping as usize)?;
        let is_private = mapped.quadrant == Some(Quadrant::PrivateAnonymous);
        let pages = recording.page_size.count(mapped.range.len());
        is_private.then(|| faults.saturating_sub(pages))
    };
    let found: u64 = sums.iter().filter_map(over).sum();
    (found >= MANY && real(found) >= real(recording.count()) * LARGE).then(|| Finding {
        id: "touched-again",
        severity: Severity::Warning,
        claim: vec![
            text("At least "),
            Value::Count(found),
            text(" faults took memory again that had been given back to the kernel."),
        ],
        evidence: vec![fact("faults", "faults", Value::Count(found), "")],
        next_step: vec![text(
            "Keep it: mallopt(M_TRIM_THRESHOLD, -1) and mallopt(M_MMAP_MAX, 0), or in the environment \
             MALLOC_TRIM_THRESHOLD_=-1 and MALLOC_MMAP_MAX_=0; a pool of your own; no MADV_DONTNEED and no munmap on a path \
             where time matters.",
        )],
    })
}

fn major(recording: &Recording, frames: &Frames<'_>) -> Option<Finding> {
    let found = count(recording, |row, _| row.kind == Kind::Major);
    let swapped = count(recording, |row, mapped| {
        let quadrant = mapped.and_then(|mapped| mapped.quadrant);
        let of_no_file =
            matches!(quadrant, Some(Quadrant::PrivateAnonymous | Quadrant::SharedAnonymous));
        row.kind == Kind::Major && of_no_file
    });
    if found < MANY_MAJOR {
        return None;
    }
    let mut evidence = vec![
        fact("faults", "major faults", Value::Count(found), ""),
        fact("of_no_file", "of them in memory of no file (swap)", Value::Count(swapped), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[Kind::Major.index()]));
    let next_step = if swapped * 2 > found {
        "Give the machine or the cgroup more memory, switch swap off, or lock what must stay: mlockall(MCL_CURRENT | MCL_FUTURE)."
    } else {
        "Read the files before time matters: MAP_POPULATE, MADV_POPULATE_READ, MADV_WILLNEED or readahead(2); to keep them, mlock."
    };
    Some(Finding {
        id: "major-faults",
        severity: Severity::Warning,
        claim: vec![Value::Count(found), text(" faults waited for I/O.")],
        evidence,
        next_step: vec![text(next_step)],
    })
}

/// Functions that make a container larger, as compilers name them.
const GROWING: [&str; 5] = [
    "_M_realloc_insert",
    "_M_realloc_append",
    "_M_default_append",
    "grow_amortized",
    "finish_grow",
];

fn growth(frames: &Frames<'_>) -> Option<Finding> {
    let grows = |stack: &[&pagewise_model::traced::Frame]| {
        let names = stack.iter().filter_map(|frame| frame.function.as_deref());
        names.into_iter().any(|name| GROWING.iter().any(|growing| name.contains(growing)))
    };
    let growing = frames.stacks.iter().filter(|(stack, _)| grows(stack));
    let found: u64 = growing.map(|(_, sum)| sum.count).sum();
    (found >= MANY && real(found) >= real(frames.all) * LARGE).then(|| Finding {
        id: "growing-containers",
        severity: Severity::Note,
        claim: vec![
            Value::Count(found),
            text(" faults came of containers that grew and were moved to new memory."),
        ],
        evidence: vec![fact("faults", "faults", Value::Count(found), "")],
        next_step: vec![text(
            "Construct them at their final size: reserve() spares the moves, and only touching spares the faults.",
        )],
    })
}

fn copies(recording: &Recording, frames: &Frames<'_>) -> Option<Finding> {
    let found = count(recording, |row, mapped| {
        let quadrant = mapped.and_then(|mapped| mapped.quadrant);
        row.kind == Kind::CopyOnWrite && quadrant == Some(Quadrant::PrivateAnonymous)
    });
    if found < MANY || real(found) < real(recording.count()) * LARGE {
        return None;
    }
    let mut evidence = vec![
        fact("faults", "faults", Value::Count(found), ""),
        fact("memory", "memory", Value::Bytes(recording.page_size.pages(found).0), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[Kind::CopyOnWrite.index()]));
    Some(Finding {
        id: "copies-on-write",
        severity: Severity::Note,
        claim: vec![
            Value::Count(found),
            text(
                " faults wrote a page of no file that was shared after fork, or read before it was written.",
            ),
        ],
        evidence,
        next_step: vec![text(
            "Where a child only starts another program, use posix_spawn or vfork; keep what it does not need from it with \
             MADV_DONTFORK; write before you read.",
        )],
    })
}

fn zero(recording: &Recording, frames: &Frames<'_>) -> Option<Finding> {
    let found = many(recording, Kind::Zero)?;
    let mut evidence = vec![fact("faults", "faults", Value::Count(found), "")];
    evidence.extend(most_in(frames, |sum| sum.kinds[Kind::Zero.index()]));
    Some(Finding {
        id: "zero-page",
        severity: Severity::Note,
        claim: vec![
            Value::Count(found),
            text(
                " faults read memory that was never written: each page that is written later faults again.",
            ),
        ],
        evidence,
        next_step: vec![text("Write it first, or populate it: MADV_POPULATE_WRITE.")],
    })
}

fn dirty(recording: &Recording, frames: &Frames<'_>) -> Option<Finding> {
    let found = many(recording, Kind::WriteProtect)?;
    let mut evidence = vec![fact("faults", "faults", Value::Count(found), "")];
    evidence.extend(most_in(frames, |sum| sum.kinds[Kind::WriteProtect.index()]));
    Some(Finding {
        id: "dirty-tracking",
        severity: Severity::Note,
        claim: vec![
            Value::Count(found),
            text(
                " faults wrote a shared page that could only be read until then: the kernel notes so that it is dirty.",
            ),
        ],
        evidence,
        next_step: vec![text(
            "A page faults again after each write-back: msync less often, or keep what need not be on a disk on tmpfs.",
        )],
    })
}
