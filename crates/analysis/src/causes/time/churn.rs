//! Memory that is released to the kernel and touched again.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Remedy, Verdict};
use pagewise_model::evidence::{ActivityPoint, CallProfileRow, Gathered, Instrument};
use pagewise_model::faults::{FaultKind, FaultMapping, FaultRecording, FaultRow};
use pagewise_model::report::CellValue;
use pagewise_model::{Bytes, Quadrant};

use super::{MANY_CALLS, command, memory_call_rate, milliseconds, missing, per_second};
use crate::causes::signs::{
    bytes, bytes_fact, cpu_shares, is_own, private_memory, rate_fact, share_of_run_time,
};
use crate::causes::{CauseEvidence, cause, remedy_code, remedy_now};
use crate::cells::{float, text, whole_bytes};
use crate::explain::fact;

/// Minimum number of first touches of base pages per second that costs notable time: 1 µs each is
/// 0.4 % of a CPU.
const MANY_TOUCHES: f64 = 4000.0;
/// CPU time of a first touch in seconds: the page fault, the zeroing of the page, and its release.
const TOUCH_SECONDS: f64 = 1e-6;
/// CPU time in seconds of the first touch of a huge page of 2 MiB, mostly for zeroing at 20 GB/s.
const HUGE_TOUCH_SECONDS: f64 = 100e-6;
/// Minimum number of first touches of huge pages per second with the same cost as [`MANY_TOUCHES`].
const MANY_HUGE_TOUCHES: f64 = MANY_TOUCHES * TOUCH_SECONDS / HUGE_TOUCH_SECONDS;
/// Minimum share of the CPU time of the process that touches take: a smaller share is the usual
/// cost of allocation.
const MUCH_OF_CPU: f64 = 0.1;
/// Minimum share of the first touches that growth does not explain. With a larger share, the
/// process releases memory and touches it again.
const MOSTLY_AGAIN: f64 = 0.5;

/// Minimum number of memory system calls per touched page for which the calls take more time than
/// the page faults.
const CALLS_PER_TOUCH: f64 = 0.5;

/// Values of the `advice` argument of `madvise` that release pages: MADV_DONTNEED, MADV_FREE,
/// MADV_DONTNEED_LOCKED.
const RELEASING: [u64; 3] = [4, 8, 24];

/// Mechanism that releases the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseMechanism {
    /// malloc trims its heap by brk, and the heap grows again.
    Brk,
    /// malloc maps and unmaps large blocks.
    MappedBlocks,
    /// The program maps and unmaps memory.
    Mappings,
    /// The program calls madvise with an advice that releases pages.
    Advice,
    Unknown,
}

pub(super) fn fault_churn(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(faults) = evidence.rate(|point| point.minor_faults) else {
        let command = command(evidence, Instrument::Faults);
        return Verdict::Unknown("the process was read only once".into(), command.into());
    };
    let demand = evidence.demand();
    if faults * demand < MANY_HUGE_TOUCHES {
        return Verdict::RuledOut(vec![CellValue::Rate(faults), text(" minor faults")]);
    }
    let recording = match &evidence.all.faults {
        Gathered::Value(recording) => recording,
        Gathered::NotNeeded => return Verdict::RuledOut(vec![text("few page faults")]),
        Gathered::Missing(why) if faults * demand >= MANY_TOUCHES => {
            return missing(evidence, Instrument::Faults, why.to_string());
        }
        Gathered::Missing(_) => {
            return Verdict::RuledOut(vec![CellValue::Rate(faults), text(" minor faults")]);
        }
    };
    let FirstTouches { pages: touches, seconds } = first_touches(evidence, recording, faults);
    let calls = evidence.all.calls.value().map_or(0.0, memory_call_rate);
    if calls * demand >= MANY_CALLS && calls >= touches * CALLS_PER_TOUCH {
        let line = vec![CellValue::Rate(calls), text(" memory system calls explain the faults")];
        return Verdict::RuledOut(line);
    }
    let page = float(evidence.now.provenance.page_size.bytes());
    let Some(growth) = evidence.growth(own_memory) else {
        let command = command(evidence, Instrument::Faults);
        return Verdict::Unknown("the private memory could not be read".into(), command.into());
    };
    let growth = growth.max(0.0);
    let again = (touches - growth / page).max(0.0);
    let lost = (seconds * again / touches.max(1.0)).min(1.0);
    let of_cpu = share_of_cpu(evidence, lost);
    let are_many = seconds * demand >= MANY_TOUCHES * TOUCH_SECONDS;
    if !are_many || again < touches * MOSTLY_AGAIN || of_cpu < MUCH_OF_CPU {
        return Verdict::RuledOut(vec![
            CellValue::Rate(touches),
            text(" first touches of pages, "),
            CellValue::Share(of_cpu),
            text(" of the CPU time, with a growth of "),
            bytes(whole_bytes(growth)),
            text(" per second"),
        ]);
    }
    churn_cause(evidence, touches, lost).into()
}

/// Private and shared memory of the process in bytes, without file pages.
fn own_memory(point: &ActivityPoint) -> Option<Bytes> {
    Some(private_memory(point)? + *point.shmem.as_ref().ok()?)
}

/// True if a page fault gave the process a page that remains until the process releases it. A write
/// to a private mapping of a file copies the page of the file, but after a fork it may also copy a
/// page of the process. Such a write therefore counts only if the process does not fork.
fn adds_a_page(row: &FaultRow, mapping: Option<&FaultMapping>, forks: bool) -> bool {
    let quadrant = mapping.and_then(|mapping| mapping.quadrant);
    match (row.kind, quadrant) {
        (FaultKind::Anonymous | FaultKind::Huge, Some(quadrant)) => {
            matches!(quadrant, Quadrant::PrivateAnonymous | Quadrant::SharedAnonymous)
        }
        (FaultKind::CopyOnWrite, Some(Quadrant::PrivateFile)) => !forks,
        _ => false,
    }
}

/// True if the process forked during the recording of calls, or if calls were not recorded.
fn forks(evidence: &CauseEvidence<'_>) -> bool {
    let calls = evidence.all.calls.value();
    calls.is_none_or(|profile| profile.rows.iter().any(|row| row.call == "fork"))
}

/// First touches of pages by the process.
struct FirstTouches {
    /// Number of base pages per second, including those in huge pages.
    pages: f64,
    /// CPU time of the first touches in seconds per second.
    seconds: f64,
}

/// Computes the first touches by the process itself. `faults` is the rate of minor faults over the
/// whole observation. This rate bounds the result, because the recording may cover a part of the
/// observation with more faults.
fn first_touches(
    evidence: &CauseEvidence<'_>,
    recording: &FaultRecording,
    faults: f64,
) -> FirstTouches {
    let (own, forks) = (is_own(evidence), forks(evidence));
    let rows = recording.rows.iter().filter(|row| {
        own(row) && adds_a_page(row, recording.mappings.get(row.mapping as usize), forks)
    });
    let (mut base, mut huge) = (0_u64, 0_u64);
    for row in rows {
        let sum = if row.kind == FaultKind::Huge { &mut huge } else { &mut base };
        *sum = sum.saturating_add(row.count);
    }
    let rate = |count| per_second(count, recording.took_ns);
    let (base, huge) = (rate(base), rate(huge));
    let part = (faults / (base + huge).max(1.0)).min(1.0);
    let (base, huge) = (base * part, huge * part);
    let size = recording
        .huge_page
        .as_ref()
        .map_or(1.0, |size| float(size.0) / float(recording.page_size.bytes()));
    FirstTouches {
        pages: base + huge * size,
        seconds: base * TOUCH_SECONDS + huge * HUGE_TOUCH_SECONDS,
    }
}

/// Converts lost time to a share of the CPU time of the process. The lost time is at most the CPU
/// time in the kernel.
fn share_of_cpu(evidence: &CauseEvidence<'_>, lost: f64) -> f64 {
    let Some((all, system)) = cpu_shares(evidence) else { return 0.0 };
    if all > 0.0 { lost.min(system) / all } else { 0.0 }
}

fn releases(row: &CallProfileRow) -> bool {
    match row.call.as_str() {
        "madvise" => RELEASING.contains(&row.detail),
        call => ["munmap", "brk", "mremap"].contains(&call),
    }
}

/// Returns the mechanism with the most releasing calls.
fn mechanism(evidence: &CauseEvidence<'_>) -> ReleaseMechanism {
    let Some(profile) = evidence.all.calls.value() else { return ReleaseMechanism::Unknown };
    let most = profile.rows.iter().filter(|row| releases(row)).max_by_key(|row| row.count);
    let Some(most) = most else { return ReleaseMechanism::Unknown };
    let stack = profile.stacks.get(most.stack as usize);
    let is_by_malloc = |frame: &u32| {
        let name = profile.frames.get(*frame as usize).and_then(|frame| frame.function.as_deref());
        name.is_some_and(releases_a_block)
    };
    let by_malloc = stack.is_some_and(|stack| stack.iter().any(is_by_malloc));
    match most.call.as_str() {
        "brk" => ReleaseMechanism::Brk,
        "madvise" => ReleaseMechanism::Advice,
        _ if by_malloc => ReleaseMechanism::MappedBlocks,
        _ => ReleaseMechanism::Mappings,
    }
}

/// True for functions that free a block of malloc, by their names in the dynamic symbols or in the
/// debug symbols of glibc.
fn releases_a_block(function: &str) -> bool {
    let name = function.trim_start_matches("__GI_").trim_start_matches("__libc_");
    ["free", "realloc", "munmap_chunk", "_int_free", "cfree"].contains(&name)
        || name.starts_with("operator delete")
}

fn churn_cause(evidence: &CauseEvidence<'_>, touches: f64, lost: f64) -> Cause {
    let forks = forks(evidence);
    let touching = evidence.faulting_function(|row, mapping| adds_a_page(row, mapping, forks));
    let releasing = evidence.calling_function(releases);
    let process = &evidence.now.process;
    let object = touching
        .or(releasing)
        .map_or_else(|| CauseObject::Process(process.pid, process.name.clone()), |it| it.object());
    let mechanism = mechanism(evidence);
    let page = evidence.now.provenance.page_size.bytes();
    let sentence = vec![
        text("The process touches "),
        bytes(whole_bytes(touches * float(page))),
        text(" of new pages per second without growing: "),
        text(mechanism_words(mechanism)),
    ];
    let confidence = match mechanism {
        ReleaseMechanism::Unknown => {
            Confidence::Likely(command(evidence, Instrument::Calls).into())
        }
        _ => Confidence::Certain,
    };
    let mut found = cause("fault-churn", object, confidence, sentence);
    found.cost = CauseCost::of_time(share_of_run_time(evidence, lost));
    found.evidence = vec![
        rate_fact("touches_per_s", "first touches", touches),
        fact("lost_ms_per_s", "time lost in ms per s", milliseconds(lost), ""),
        bytes_fact("resident", "RES", evidence.resident().unwrap_or_default()),
    ];
    if let Some(name) = releasing.and_then(|releasing| releasing.frame.function.clone()) {
        let name = CellValue::Name(name.as_str().into());
        found.evidence.push(fact("releaser", "released by", name, ""));
    }
    found.now = restart(mechanism);
    found.code = remedy_code([text(code(mechanism))]);
    found
}

fn mechanism_words(mechanism: ReleaseMechanism) -> &'static str {
    match mechanism {
        ReleaseMechanism::Brk => "free trims the top of the heap, and malloc extends it again.",
        ReleaseMechanism::MappedBlocks => "malloc maps large blocks, and free unmaps them.",
        ReleaseMechanism::Mappings => "the program unmaps memory and maps it again.",
        ReleaseMechanism::Advice => {
            "the program or its allocator releases pages with madvise and uses them again."
        }
        ReleaseMechanism::Unknown => "memory is released and used again.",
    }
}

fn restart(mechanism: ReleaseMechanism) -> Option<Remedy> {
    let is_malloc = matches!(mechanism, ReleaseMechanism::Brk | ReleaseMechanism::MappedBlocks);
    is_malloc.then_some(())?;
    remedy_now(
        "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 MALLOC_TOP_PAD_=16777216",
        [text(
            "Restart the program with these variables, so that glibc's malloc keeps freed memory. \
             RES then stays at its peak. If `nm -D` of the program lists mallopt, its calls override these variables: change \
             the calls instead.",
        )],
        true,
    )
}

fn code(mechanism: ReleaseMechanism) -> &'static str {
    match mechanism {
        ReleaseMechanism::Brk | ReleaseMechanism::MappedBlocks => {
            "Allocate the buffer once and reuse it, or call mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, 1 << 30) at the start, and remove calls with lower values."
        }
        ReleaseMechanism::Mappings => "Map the area once and reuse it instead of unmapping it.",
        ReleaseMechanism::Advice => {
            "Release pages only if they stay unused for seconds; for allocators raise the delay: dirty_decay_ms of jemalloc, \
             MIMALLOC_PURGE_DELAY, TCMALLOC_RELEASE_RATE."
        }
        ReleaseMechanism::Unknown => {
            "Keep the memory and reuse it: no munmap, no MADV_DONTNEED, and no ftruncate or fallocate(FALLOC_FL_PUNCH_HOLE) of a \
             file in memory on a path where time matters."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_has_several_names_in_glibc() {
        for name in ["free", "__libc_free", "__GI___libc_free", "cfree", "__GI___libc_realloc"] {
            assert!(releases_a_block(name), "{name}");
        }
        for name in ["__GI_munmap", "free_list_push", "release"] {
            assert!(!releases_a_block(name), "{name}");
        }
    }
}
