//! Causes of page faults, and how to avoid them.

use std::collections::HashMap;

use pagewise_model::faults::{FaultKind, FaultRecording};
use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{Bytes, Pid, Quadrant};

use super::{FindingRule, fact};
use crate::cells::{float, text};
use crate::faults::count;
use crate::faults::places::{FaultFrames, StackFaults};

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Faults(lost),
    FindingRule::Faults(major),
    FindingRule::Faults(again),
    FindingRule::Faults(first_touch),
    FindingRule::Faults(growth),
    FindingRule::Faults(copies),
    FindingRule::Faults(zero),
    FindingRule::Faults(dirty),
];

/// Fewer faults than this take negligible time.
const MANY: u64 = 1000;
/// Minimum number of major faults for a finding.
const MANY_MAJOR: u64 = 10;
/// A smaller share of all is not the first cause to examine.
const LARGE: f64 = 0.2;

fn lost(recording: &FaultRecording, _: &FaultFrames<'_>) -> Option<Finding> {
    (recording.lost > 0).then(|| Finding {
        id: "lost-events",
        severity: Severity::Critical,
        claim: vec![
            CellValue::Count(recording.lost),
            text(" events are missing: every count in this report is too small."),
        ],
        evidence: vec![fact("lost", "lost", CellValue::Count(recording.lost), "")],
        next_step: vec![text("Record one fault in N only: --every 10.")],
    })
}

/// Number of faults of a kind, if they are many and a large share of all.
fn many(recording: &FaultRecording, kind: FaultKind) -> Option<u64> {
    let found = count(recording, |row, _| row.kind == kind);
    let is_large = float(found) >= float(recording.count()) * LARGE;
    (found >= MANY && is_large).then_some(found)
}

/// The function with the largest of these counts, and that count.
fn most_in(
    frames: &FaultFrames<'_>,
    counts: impl Fn(&StackFaults) -> u64,
) -> Vec<pagewise_model::report::Fact> {
    let most = frames.most(counts);
    let facts = most.map(|(function, count)| {
        [
            fact("most_in", "most of them in", CellValue::Name(function), ""),
            fact("faults_there", "that is", CellValue::Count(count), ""),
        ]
    });
    facts.into_iter().flatten().collect()
}

fn first_touch(recording: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let found = many(recording, FaultKind::Anonymous)?;
    let memory = recording.page_size.pages(found);
    let mut evidence = vec![
        fact("faults", "faults", CellValue::Count(found), ""),
        fact("memory", "memory", CellValue::Bytes(memory.0), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[FaultKind::Anonymous.index()]));
    if are_of_stacks(recording, found) {
        return Some(Finding {
            id: "first-touch",
            severity: Severity::Note,
            claim: vec![
                CellValue::Count(found),
                text(" faults are the first touch of anonymous memory, most of it on stacks."),
            ],
            evidence,
            next_step: vec![text(
                "Keep the threads instead of creating new ones: the stack of a new thread is touched again. Allocate large local \
                 arrays once, outside of the function.",
            )],
        });
    }
    let mut next_step = vec![text(
        "Touch it before time matters: MAP_POPULATE, MADV_POPULATE_WRITE, or calloc and touch; a container at its final size \
         (reserve() alone touches no memory).",
    )];
    if let Ok(Bytes(huge)) = recording.huge_page
        && memory.0 >= huge
        && huge > 0
    {
        next_step.push(text(" With huge pages (MADV_HUGEPAGE) about "));
        next_step.push(CellValue::Count(memory.0.div_ceil(huge)));
        next_step.push(text(" faults would do, if the memory lies together."));
    }
    Some(Finding {
        id: "first-touch",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(found),
            text(" faults are the first touch of anonymous memory, a page at a time."),
        ],
        evidence,
        next_step,
    })
}

/// True if most of the first touches are on stacks: the kernel or the C library maps a stack, so
/// the program cannot ask for it to be populated.
fn are_of_stacks(recording: &FaultRecording, first_touches: u64) -> bool {
    let on_stacks = count(recording, |row, mapped| {
        let is_main = mapped.is_some_and(|mapped| mapped.name.as_bytes() == b"[stack]");
        row.kind == FaultKind::Anonymous && (row.on_stack || is_main)
    });
    on_stacks >= first_touches.div_ceil(2)
}

/// Faults on memory that was touched first more often than it has pages: released, and touched
/// again.
fn again(recording: &FaultRecording, _: &FaultFrames<'_>) -> Option<Finding> {
    if recording.every > 1 {
        return None;
    }
    let mut sums: HashMap<(Pid, u32), u64> = HashMap::new();
    for row in recording.rows.iter().filter(|row| row.kind == FaultKind::Anonymous) {
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
    (found >= MANY && float(found) >= float(recording.count()) * LARGE).then(|| Finding {
        id: "touched-again",
        severity: Severity::Warning,
        claim: vec![
            text("At least "),
            CellValue::Count(found),
            text(" faults touched memory again that had been released to the kernel."),
        ],
        evidence: vec![fact("faults", "faults", CellValue::Count(found), "")],
        next_step: vec![text(
            "Keep it: mallopt(M_TRIM_THRESHOLD, -1) and mallopt(M_MMAP_MAX, 0), or in the environment \
             MALLOC_TRIM_THRESHOLD_=-1 and MALLOC_MMAP_MAX_=0; a pool of your own; no MADV_DONTNEED and no munmap on a path \
             where time matters.",
        )],
    })
}

fn major(recording: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let found = count(recording, |row, _| row.kind == FaultKind::Major);
    let swapped = count(recording, |row, mapped| {
        let quadrant = mapped.and_then(|mapped| mapped.quadrant);
        let of_no_file =
            matches!(quadrant, Some(Quadrant::PrivateAnonymous | Quadrant::SharedAnonymous));
        row.kind == FaultKind::Major && of_no_file
    });
    if found < MANY_MAJOR {
        return None;
    }
    let mut evidence = vec![
        fact("faults", "major faults", CellValue::Count(found), ""),
        fact("of_no_file", "in anonymous memory (swap)", CellValue::Count(swapped), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[FaultKind::Major.index()]));
    let next_step = if swapped * 2 > found {
        "Compare the usage of the memory cgroup with its limit (`pagewise doctor PID`), and raise the limit if it is full; else give the \
         machine more memory. Without swap the kernel would kill the process instead."
    } else {
        "Read the files before time matters: MAP_POPULATE, MADV_POPULATE_READ, MADV_WILLNEED or readahead(2); to keep them, mlock."
    };
    Some(Finding {
        id: "major-faults",
        severity: Severity::Warning,
        claim: vec![CellValue::Count(found), text(" faults waited for I/O.")],
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

fn growth(_: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let grows = |stack: &[&pagewise_model::traced::Frame]| {
        let names = stack.iter().filter_map(|frame| frame.function.as_deref());
        names.into_iter().any(|name| GROWING.iter().any(|growing| name.contains(growing)))
    };
    let growing = frames.stacks.iter().filter(|(stack, _)| grows(stack));
    let found: u64 = growing.map(|(_, sum)| sum.count).sum();
    (found >= MANY && float(found) >= float(frames.all) * LARGE).then(|| Finding {
        id: "growing-containers",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(found),
            text(" faults came from containers that grew and moved to new memory."),
        ],
        evidence: vec![fact("faults", "faults", CellValue::Count(found), "")],
        next_step: vec![text(
            "Construct them at their final size: reserve() spares the moves, and only touching spares the faults.",
        )],
    })
}

fn copies(recording: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let found = count(recording, |row, mapped| {
        let quadrant = mapped.and_then(|mapped| mapped.quadrant);
        row.kind == FaultKind::CopyOnWrite && quadrant == Some(Quadrant::PrivateAnonymous)
    });
    if found < MANY || float(found) < float(recording.count()) * LARGE {
        return None;
    }
    let mut evidence = vec![
        fact("faults", "faults", CellValue::Count(found), ""),
        fact("memory", "memory", CellValue::Bytes(recording.page_size.pages(found).0), ""),
    ];
    evidence.extend(most_in(frames, |sum| sum.kinds[FaultKind::CopyOnWrite.index()]));
    Some(Finding {
        id: "copies-on-write",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(found),
            text(
                " faults wrote an anonymous page that was shared after fork, or read before it was written.",
            ),
        ],
        evidence,
        next_step: vec![text(
            "If the child executes another program, use posix_spawn or vfork. If it saves a snapshot, fork less often, and exclude \
             memory that it does not need with MADV_DONTFORK. Write pages before you read them.",
        )],
    })
}

fn zero(recording: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let found = many(recording, FaultKind::Zero)?;
    let mut evidence = vec![fact("faults", "faults", CellValue::Count(found), "")];
    evidence.extend(most_in(frames, |sum| sum.kinds[FaultKind::Zero.index()]));
    Some(Finding {
        id: "zero-page",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(found),
            text(
                " faults read memory that was never written: each page that is written later faults again.",
            ),
        ],
        evidence,
        next_step: vec![text("Write it first, or populate it: MADV_POPULATE_WRITE.")],
    })
}

fn dirty(recording: &FaultRecording, frames: &FaultFrames<'_>) -> Option<Finding> {
    let found = many(recording, FaultKind::WriteProtect)?;
    let mut evidence = vec![fact("faults", "faults", CellValue::Count(found), "")];
    evidence.extend(most_in(frames, |sum| sum.kinds[FaultKind::WriteProtect.index()]));
    Some(Finding {
        id: "dirty-tracking",
        severity: Severity::Note,
        claim: vec![
            CellValue::Count(found),
            text(
                " faults wrote a write-protected shared page: in this way the kernel records that the page is dirty.",
            ),
        ],
        evidence,
        next_step: vec![text(
            "A page faults again after each write-back: msync less often, or keep what need not be on a disk on tmpfs.",
        )],
    })
}
