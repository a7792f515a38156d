//! Causes: resident stack memory below the stack pointers or in use, and locked memory.

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{Gathered, Instrument, StackUse, ZeroSample};
use pagewise_model::process::Thread;
use pagewise_model::report::{CellValue, Fact};
use pagewise_model::traced::Frame;
use pagewise_model::{Bytes, Name, Reading};

use super::evidence::FunctionShare;
use super::heap::{LARGE, is_large};
use super::responsible::responsible;
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::text;
use crate::explain::fact;
use crate::thp::ZeroEstimate;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "deep-stack",
        title: "stack touched far below its use",
        meaning: "Deep recursion or a large local array touched stack pages that stay resident.",
        needs: &[Instrument::Snapshot, Instrument::Stacks],
        excluded_by: "less than 2 MiB resident below the stack pointer of each thread",
        source: "the kernel does not release stack pages: getrlimit(2), pthread_attr_setstacksize(3)",
        rule: deep_stack,
    },
    CauseRow {
        id: "oversized-stacks",
        title: "oversized stacks of threads",
        meaning: "Many threads have touched stack pages that they do not use, or keep large local arrays on their stacks.",
        needs: &[Instrument::Snapshot, Instrument::Stacks],
        excluded_by: "fewer than 4 threads with 1 MiB below the stack pointer, or less than 16 MiB or 10 % of RES in all; and stacks in use of less than half of RES",
        source: "pthread_attr_setstacksize(3); the remedy is carried out by pagewise trim",
        rule: oversized_stacks,
    },
    CauseRow {
        id: "locked-memory",
        title: "locked memory that is not used",
        meaning: "mlock or mlockall keeps memory resident that the program never wrote.",
        needs: &[Instrument::Snapshot, Instrument::ZeroPages],
        excluded_by: "less than 16 MiB, or less than 10 % of RES, of zero-filled pages in locked memory",
        source: "mlock(2); zero-filled pages are counted in a sample",
        rule: locked,
    },
];

/// Minimum size in bytes of the unused resident part of a deep stack: most threads touch less than
/// 256 KiB of their stacks, and threads of compilers touch up to 1 MiB.
const DEEP: Bytes = Bytes::mib(2);
/// Minimum number of large stacks that have a common cause: fewer are judged one by one.
const MANY_STACKS: usize = 4;
/// Minimum touched share of a stack that may overflow the next time.
const NEAR_END: f64 = 0.6;

/// Returns the large stacks. If the process has no large stacks, returns the verdict on the cause.
fn stacks<'a>(evidence: &CauseEvidence<'a>) -> Result<&'a [StackUse], Verdict> {
    match &evidence.all.stacks {
        Gathered::Value(stacks) => Ok(stacks),
        Gathered::NotNeeded => Err(Verdict::RuledOut(vec![text("no large stack")])),
        Gathered::Missing(why) => Err(Verdict::Unknown(
            why.to_string().into(),
            format!("pagewise trim {} --stacks", evidence.pid()).into(),
        )),
    }
}

fn unused_of(stacks: &[StackUse]) -> Bytes {
    stacks.iter().map(|stack| stack.unused).sum()
}

/// True if at least [`MANY_STACKS`] threads have large stacks, so that these stacks have a common
/// cause.
fn are_many(evidence: &CauseEvidence<'_>, stacks: &[StackUse]) -> bool {
    stacks.len() >= MANY_STACKS && is_large(evidence, unused_of(stacks))
}

/// True if locked memory may explain that the stacks are resident.
fn is_locked(evidence: &CauseEvidence<'_>, stacks: &[StackUse]) -> bool {
    locks(evidence, unused_of(stacks))
}

/// True if the process locks at least this amount of memory, so that the locks may explain why this
/// amount is resident.
pub(super) fn locks(evidence: &CauseEvidence<'_>, amount: Bytes) -> bool {
    let locked = evidence.now.status.as_ref().ok().and_then(|status| status.vm_lck.clone().ok());
    locked.is_some_and(|locked| locked >= LARGE && locked >= amount)
}

/// Minimum used share of the touched pages of a stack for which a thread uses the full depth of the
/// stack again.
const DEEP_AGAIN: f64 = 0.5;

/// True if a thread uses at least half of its touched stack at the beginning or at the end of the
/// observation. Only stacks with at least half of the resident size of the deepest stack count:
/// threads with stacks of similar size do similar work.
fn are_deep_again(evidence: &CauseEvidence<'_>, stacks: &[StackUse], deepest: &StackUse) -> bool {
    let like = stacks.iter().filter(|stack| stack.resident.0 * 2 >= deepest.resident.0);
    let used = |stack: &StackUse| {
        // The unused part is the part below the stack pointer at the beginning.
        let used = stack.resident.saturating_sub(stack.unused) + descent(evidence, stack);
        used.fraction_of(stack.resident).unwrap_or(0.0)
    };
    like.into_iter().any(|stack| used(stack) >= DEEP_AGAIN)
}

/// Number of bytes by which the stack pointer of a thread is deeper at the end than at the
/// beginning.
fn descent(evidence: &CauseEvidence<'_>, stack: &StackUse) -> Bytes {
    let pointer = |threads: &Reading<Vec<Thread>>| {
        let thread = threads.as_ref().ok()?.iter().find(|thread| thread.tid == stack.tid)?;
        let pointer = thread.stack_pointer.clone().ok()?;
        stack.range.contains(pointer).then_some(pointer)
    };
    let last = evidence.all.last.value().and_then(|last| pointer(&last.threads));
    let first = pointer(&evidence.all.first.threads);
    let descent = first.zip(last).map(|(first, last)| first.saturating_sub(last));
    Bytes(descent.unwrap_or(0))
}

/// Returns the verdict on stacks that threads use to the full depth again.
fn deep_again() -> Verdict {
    Verdict::RuledOut(vec![text("threads use the touched part of their stacks again")])
}

/// Returns the function of the program with the largest frames on a stack. If the stack has only
/// functions that act for their callers, returns one of them.
fn function_of(stack: &StackUse) -> Option<&Frame> {
    let frames: Vec<&Frame> = stack.functions.iter().map(|(frame, _)| frame).collect();
    responsible(&frames)
}

/// Returns the function that most stacks have as their [`function_of`].
fn main_function(stacks: &[StackUse]) -> Option<&Frame> {
    let functions: Vec<&Frame> = stacks.iter().filter_map(function_of).collect();
    let same =
        |frame: &Frame| functions.iter().filter(|other| other.function == frame.function).count();
    functions.iter().copied().rev().max_by_key(|frame| same(frame))
}

fn deep_stack(evidence: &CauseEvidence<'_>) -> Verdict {
    let stacks = match stacks(evidence) {
        Ok(stacks) => stacks,
        Err(verdict) => return verdict,
    };
    let Some(deepest) = stacks.iter().max_by_key(|stack| stack.unused) else {
        return Verdict::RuledOut(vec![text("no stack has 1 MiB below its stack pointer")]);
    };
    if deepest.unused < DEEP || are_many(evidence, stacks) || is_locked(evidence, stacks) {
        return Verdict::RuledOut(vec![
            CellValue::Bytes(deepest.unused.0),
            text(" below the stack pointer of a thread at most, or the same in many threads"),
        ]);
    }
    if are_deep_again(evidence, stacks, deepest) {
        return deep_again();
    }
    let pid = evidence.pid();
    let mut sentence = vec![
        text("Thread "),
        CellValue::Name(deepest.name.clone()),
        text(" touched "),
        CellValue::Bytes(deepest.resident.0),
        text(" of its stack, of which "),
        CellValue::Bytes(deepest.unused.0),
        text(" are not used now: deep recursion, or a large local array"),
    ];
    let function = function_of(deepest);
    if let Some(frame) = function {
        let name = crate::heap::frames::with_its_line(frame);
        sentence.extend([text(" in "), CellValue::Name(Name::new(name.as_bytes()))]);
    }
    sentence.push(text("."));
    let object = match function {
        Some(frame) => CauseObject::Function(frame.clone()),
        None => CauseObject::Mapping(deepest.range, stack_name(evidence, deepest)),
    };
    let confidence = match function {
        Some(_) => Confidence::Certain,
        None => Confidence::Likely(format!("pagewise faults {pid} --for 10s").into()),
    };
    let mut found = cause("deep-stack", object, confidence, sentence);
    found.cost = stack_cost(evidence, deepest);
    found.evidence = vec![
        fact("thread", "thread", CellValue::Count(deepest.tid.0.into()), ""),
        fact("resident_stack", "resident stack", CellValue::Bytes(deepest.resident.0), ""),
        fact("unused", "below the stack pointer", CellValue::Bytes(deepest.unused.0), ""),
    ];
    found.evidence.extend(frames_facts(deepest));
    with_stack_remedies(found, evidence, deepest.unused).into()
}

fn frames_facts(stack: &StackUse) -> Option<Fact> {
    let count = stack.functions.first().map(|(_, count)| *count)?;
    Some(fact("frames", "return addresses of the function", CellValue::Count(count), ""))
}

/// Returns the name of a stack as `explain` prints it.
fn stack_name(evidence: &CauseEvidence<'_>, stack: &StackUse) -> Name {
    let name = evidence.subject.as_ref().ok().and_then(|subject| {
        let index = subject.mappings.iter().position(|it| it.range.contains(stack.range.start))?;
        Some(subject.pools.known_as(index, &subject.mappings[index]))
    });
    name.unwrap_or_else(|| Name::from("[stack]"))
}

/// Returns the cost of unused stack memory, and the risk that the next recursion of this depth
/// overflows the stack.
fn stack_cost(evidence: &CauseEvidence<'_>, stack: &StackUse) -> CauseCost {
    let mut cost = CauseCost::of_memory(stack.unused, evidence.resident().unwrap_or_default());
    let is_main = stack.tid == evidence.now.process.pid;
    let limit = evidence.now.limits.as_ref().ok().and_then(|limits| limits.stack.soft);
    let size = if is_main { limit.map(Bytes) } else { Some(stack.range.len()) };
    let share = size.and_then(|size| stack.resident.fraction_of(size)).unwrap_or(0.0);
    if share >= NEAR_END {
        cost.risk = (share / 2.0).min(0.5);
    }
    cost
}

fn with_stack_remedies(mut found: Cause, evidence: &CauseEvidence<'_>, unused: Bytes) -> Cause {
    found.now = remedy_now(
        format!("pagewise trim {} --stacks --yes", evidence.pid()),
        [text("Release the stack pages below the stack pointers.")],
        false,
    );
    if let Some(now) = &mut found.now {
        now.effect = vec![text("returns about "), CellValue::Bytes(unused.0)];
    }
    found.code = remedy_code([text(
        "Bound the depth of the recursion, or replace it by a loop with a stack of its own; allocate large arrays by malloc \
         and free them.",
    )]);
    found
}

fn oversized_stacks(evidence: &CauseEvidence<'_>) -> Verdict {
    let stacks = match stacks(evidence) {
        Ok(stacks) => stacks,
        Err(verdict) => return verdict,
    };
    let unused = unused_of(stacks);
    if !are_many(evidence, stacks) || is_locked(evidence, stacks) {
        if let Some(found) = stacks_in_use(evidence, stacks) {
            return found.into();
        }
        return Verdict::RuledOut(vec![
            CellValue::Count(stacks.len() as u64),
            text(" threads have 1 MiB or more below the stack pointer: "),
            CellValue::Bytes(unused.0),
        ]);
    }
    let deepest = stacks.iter().max_by_key(|stack| stack.unused);
    if deepest.is_some_and(|deepest| are_deep_again(evidence, stacks, deepest)) {
        return deep_again();
    }
    let sentence = [
        CellValue::Bytes(unused.0),
        text(" of the stacks of "),
        CellValue::Count(stacks.len() as u64),
        text(
            " threads are resident and not used: the threads touched them once, or mmap populated them.",
        ),
    ];
    let function = main_function(stacks);
    let object = match function {
        Some(frame) => format!(
            "thread stacks (pthread_attr_setstacksize), touched by {}",
            crate::heap::frames::with_its_line(frame)
        ),
        None => "thread stacks (pthread_attr_setstacksize)".to_owned(),
    };
    let object = CauseObject::Setting(object.into());
    let mut found = cause("oversized-stacks", object, Confidence::Certain, sentence);
    found.cost = CauseCost::of_memory(unused, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("stacks", "large stacks", CellValue::Count(stacks.len() as u64), ""),
        fact("unused", "below the stack pointers", CellValue::Bytes(unused.0), ""),
    ];
    if let Some(largest) = stacks.iter().max_by_key(|stack| stack.unused) {
        let name = CellValue::Name(largest.name.clone());
        found.evidence.push(fact("thread", "largest of thread", name, ""));
    }
    found.evidence.extend(function.map(|frame| {
        let name = crate::heap::frames::with_its_line(frame);
        fact("touched_by", "touched by", CellValue::Name(Name::new(name.as_bytes())), "")
    }));
    let mut found = with_stack_remedies(found, evidence, unused);
    found.code = remedy_code([text(
        "Do not touch or populate stacks beforehand; put large local arrays into memory that the threads share or free; \
         start fewer threads; bound the stacks by pthread_attr_setstacksize.",
    )]);
    found.into()
}

/// Minimum share of RES that stacks in use take to be the main part of the memory.
const MAIN_PART: f64 = 0.5;

/// Returns the cause if used stack memory of many threads takes most of RES: large local arrays or
/// deep calls of functions that wait or work.
fn stacks_in_use(evidence: &CauseEvidence<'_>, stacks: &[StackUse]) -> Option<Cause> {
    let used = |stack: &StackUse| stack.resident.saturating_sub(stack.unused);
    let large: Vec<&StackUse> = stacks.iter().filter(|stack| used(stack) >= LARGE_FRAMES).collect();
    let bytes: Bytes = large.iter().map(|stack| used(stack)).sum();
    let share = bytes.fraction_of(evidence.resident()?)?;
    let locked = locks(evidence, bytes);
    if large.len() < MANY_STACKS || bytes < LARGE || share < MAIN_PART || locked {
        return None;
    }
    let function = large.iter().find_map(|stack| function_of(stack))?;
    let sentence = vec![
        CellValue::Bytes(bytes.0),
        text(" are on the stacks of "),
        CellValue::Count(large.len() as u64),
        text(" threads, each of which keeps a large local array, or deep calls, in "),
        CellValue::Name(Name::new(crate::heap::frames::with_its_line(function).as_bytes())),
        text("."),
    ];
    let pid = evidence.pid();
    let confidence = Confidence::Likely(format!("pagewise pages {pid} --touched 10s").into());
    let object = CauseObject::Function(function.clone());
    let mut found = cause("oversized-stacks", object, confidence, sentence);
    found.cost = CauseCost::of_memory(bytes, evidence.resident().unwrap_or_default());
    found.evidence = vec![
        fact("stacks", "large stacks", CellValue::Count(large.len() as u64), ""),
        fact("used", "above the stack pointers", CellValue::Bytes(bytes.0), ""),
    ];
    found.code = remedy_code([text(
        "Allocate the array by malloc with the size that a request needs, or share arrays between threads; start fewer \
         threads.",
    )]);
    Some(found)
}

/// Minimum used size in bytes of a stack with large frames: smaller ones are usual.
const LARGE_FRAMES: Bytes = Bytes::kib(512);

/// Estimates the zero-filled bytes of the sampled mappings that a filter selects.
pub(super) fn zero_part(
    samples: &[ZeroSample],
    is_meant: impl Fn(&ZeroSample) -> bool,
) -> ZeroEstimate {
    let nothing = ZeroEstimate { bytes: Bytes::ZERO, low: Bytes::ZERO, high: Bytes::ZERO };
    let meant = samples.iter().filter(|sample| is_meant(sample));
    meant.fold(nothing, |sum, sample| {
        let part = ZeroEstimate::of_sample(sample.resident, sample.read, sample.zero);
        ZeroEstimate {
            bytes: sum.bytes + part.bytes,
            low: sum.low + part.low,
            high: sum.high + part.high,
        }
    })
}

fn locked(evidence: &CauseEvidence<'_>) -> Verdict {
    let status = evidence.now.status.as_ref();
    let Some(locked) = status.ok().and_then(|status| status.vm_lck.clone().ok()) else {
        return Verdict::Unknown("VmLck was not read".into(), "".into());
    };
    if !is_large(evidence, locked) {
        return Verdict::RuledOut(vec![CellValue::Bytes(locked.0), text(" locked")]);
    }
    let samples = match &evidence.all.zero_pages {
        Gathered::Value(samples) => samples,
        Gathered::NotNeeded => return Verdict::RuledOut(vec![text("no large locked mapping")]),
        Gathered::Missing(why) => {
            let command = format!("pagewise pages {} --touched 10s", evidence.pid());
            return Verdict::Unknown(why.to_string().into(), command.into());
        }
    };
    let is_all = evidence.resident().is_some_and(|resident| {
        locked.fraction_of(resident).is_some_and(|share| share >= MOSTLY_LOCKED)
    });
    let zero = zero_part(samples, |sample| is_all || sample.locked == Some(true));
    if !is_large(evidence, zero.low) {
        return Verdict::RuledOut(vec![
            CellValue::Bytes(zero.bytes.0),
            text(" zero-filled of "),
            CellValue::Bytes(locked.0),
            text(" locked"),
        ]);
    }
    let call = if is_all { "mlockall" } else { "mlock" };
    let sentence = [
        CellValue::Bytes(locked.0),
        text(" are locked in memory, of which "),
        CellValue::Bytes(zero.bytes.0),
        text(format!(" were never written: {call} makes reserved memory resident.")),
    ];
    let function = evidence.calling_function(|row| row.call.starts_with("mlock"));
    let setting = CauseObject::Setting(format!("{call} (VmLck)").into());
    let object = function.as_ref().map_or(setting, FunctionShare::object);
    let mut found = cause("locked-memory", object, Confidence::Certain, sentence);
    let resident = evidence.resident().unwrap_or_default();
    found.cost = CauseCost::of_memory(zero.low, resident);
    found.evidence = vec![
        fact("locked", "locked", CellValue::Bytes(locked.0), ""),
        fact("zero", "zero-filled", CellValue::Bytes(zero.bytes.0), ""),
        fact("resident", "RES", CellValue::Bytes(resident.0), ""),
    ];
    found.code = remedy_code([text(
        "Call mlock for the pages that must stay in memory, instead of mlockall or the whole reserve; \
         mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) locks pages when they are touched first.",
    )]);
    found.into()
}

/// Minimum locked share of RES that proves `mlockall`, which also locks program files and
/// libraries.
const MOSTLY_LOCKED: f64 = 0.9;

#[cfg(test)]
mod tests {
    use pagewise_model::evidence::Evidence;
    use pagewise_model::process::ProcessStatus;
    use pagewise_model::{AddrRange, Pid, Snapshot};

    use super::*;
    use crate::causes::made::{evidence, present, verdict};
    use crate::sample::{resident, snapshot};

    const MIB: u64 = 1 << 20;

    /// Returns evidence of a process with this number of stacks, each with `unused` resident MiB
    /// below its stack pointer.
    fn with_stacks(count: u32, unused: u64) -> Evidence {
        let mapped = resident("7f0000000000-7f0010000000 rw-p 0 0 ", 100 * MIB);
        let taken: Snapshot = snapshot(vec![mapped]);
        let mut made = evidence(taken.clone(), taken);
        let frame = Frame {
            function: Some("parse_value".to_owned()),
            module: Some("/app".into()),
            offset: 0,
            line: None,
            inlined: false,
        };
        let stack = |number: u32| StackUse {
            tid: Pid(10 + number),
            name: "worker".into(),
            range: AddrRange { start: 0x7f00_0000_0000, end: 0x7f00_0080_0000 },
            resident: Bytes(unused * MIB + 8192),
            unused: Bytes(unused * MIB),
            functions: vec![(frame.clone(), 900)],
        };
        made.stacks = Gathered::Value((0..count).map(stack).collect());
        made
    }

    #[test]
    fn one_deep_stack_has_its_function_as_the_object() {
        let made = with_stacks(1, 7);
        assert_eq!(present(&made, "deep-stack").object.function(), Some("parse_value"));
        assert!(matches!(verdict(&made, "oversized-stacks"), Verdict::RuledOut(_)));
    }

    #[test]
    fn large_stacks_of_many_threads_have_one_cause() {
        let made = with_stacks(8, 6);
        let cause = present(&made, "oversized-stacks");
        assert_eq!(cause.cost.bytes, Some(Bytes::mib(48)));
        assert!(matches!(verdict(&made, "deep-stack"), Verdict::RuledOut(_)));
    }

    #[test]
    fn the_function_that_touched_most_of_the_stacks_is_part_of_the_object() {
        let mut made = with_stacks(8, 6);
        if let Gathered::Value(stacks) = &mut made.stacks {
            stacks[0].functions[0].0.function = Some("log_line".to_owned());
        }
        let CauseObject::Setting(object) = present(&made, "oversized-stacks").object else {
            panic!("a setting")
        };
        let object = String::from_utf8_lossy(object.as_bytes()).into_owned();
        assert!(object.contains("pthread_attr_setstacksize"), "{object}");
        assert!(object.contains("parse_value"), "{object}");
    }

    #[test]
    fn stacks_that_are_deep_again_at_the_end_are_in_use() {
        for count in [1, 8] {
            let made = |descent: u64| {
                let mut made = with_stacks(count, 6);
                let thread = |pointer: u64| Thread {
                    tid: Pid(10),
                    name: "worker".into(),
                    stack_pointer: Ok(pointer),
                };
                let pointer = 0x7f00_0080_0000 - 8192;
                made.first.threads = Ok(vec![thread(pointer)]);
                if let Gathered::Value(last) = &mut made.last {
                    last.threads = Ok(vec![thread(pointer - descent)]);
                }
                made
            };
            for id in ["deep-stack", "oversized-stacks"] {
                assert!(matches!(verdict(&made(4 * MIB), id), Verdict::RuledOut(_)), "{id}");
            }
            let id = if count == 1 { "deep-stack" } else { "oversized-stacks" };
            present(&made(MIB), id);
        }
    }

    #[test]
    fn large_local_arrays_of_many_threads_are_a_cause_if_they_are_most_of_the_memory() {
        let in_use = |count: u32, mib: u64| {
            let mut made = with_stacks(count, 0);
            if let Gathered::Value(stacks) = &mut made.stacks {
                stacks.iter_mut().for_each(|stack| stack.resident = Bytes::mib(mib));
            }
            made
        };
        let found = present(&in_use(80, 1), "oversized-stacks");
        assert_eq!(found.object.function(), Some("parse_value"));
        assert_eq!(found.cost.bytes, Some(Bytes::mib(80)));
        for made in [in_use(2, 40), in_use(40, 1)] {
            assert!(matches!(verdict(&made, "oversized-stacks"), Verdict::RuledOut(_)));
        }
    }

    #[test]
    fn stacks_of_usual_depth_are_healthy() {
        for made in [with_stacks(0, 0), with_stacks(3, 1)] {
            for id in ["deep-stack", "oversized-stacks"] {
                assert!(matches!(verdict(&made, id), Verdict::RuledOut(_)), "{id}");
            }
        }
    }

    /// Returns evidence of a process with 100 MiB, all of it locked, of which this percentage is
    /// zero-filled.
    fn with_locked(zero: u64) -> Evidence {
        let mut taken = snapshot(vec![resident("7f0000000000-7f0010000000 rw-p 0 0 ", 100 * MIB)]);
        let mut status = ProcessStatus::from_lines(|_, _| Ok(Bytes::ZERO));
        status.vm_lck = Ok(Bytes::mib(100));
        taken.status = Ok(status);
        let mut made = evidence(taken.clone(), taken);
        made.zero_pages = Gathered::Value(vec![ZeroSample {
            range: AddrRange { start: 0x7f00_0000_0000, end: 0x7f00_1000_0000 },
            resident: Bytes::mib(100),
            locked: None,
            read: 500,
            zero: 5 * zero,
        }]);
        made
    }

    #[test]
    fn locked_memory_of_a_runtime_is_no_heap_that_is_too_large() {
        let mut made = with_locked(60);
        let python = || Ok("/usr/bin/python3".into());
        made.first.process.exe = python();
        if let Gathered::Value(last) = &mut made.last {
            last.process.exe = python();
        }
        present(&made, "locked-memory");
        assert!(!matches!(verdict(&made, "foreign-heap"), Verdict::Present(_)));
    }

    #[test]
    fn locked_memory_is_a_cause_only_if_it_was_never_written() {
        let cause = present(&with_locked(60), "locked-memory");
        assert!(cause.cost.bytes.is_some_and(|bytes| bytes > Bytes::mib(50)));
        assert!(matches!(verdict(&with_locked(2), "locked-memory"), Verdict::RuledOut(_)));
    }
}
