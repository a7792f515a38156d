//! Unused parts of stacks, released by their own threads.
//!
//! If the call stack of a stopped thread can be followed to the start of the thread, the memory
//! below its stack pointer is unused except for the red zone. A remote call makes the thread call
//! `madvise(MADV_DONTNEED)` itself. If this process is killed before the call, the thread makes the
//! call with this stack pointer or not at all. So the call never releases stack memory that is in
//! use.
//!
//! ```text
//!  | guard | released ........ | margin | saved context | red zone | in use ... | struct pthread |
//!          ^ start of the stack                                    ^ stack pointer
//! ```

use std::ops::Range;
use std::time::Duration;

use pagewise_heap::safe_call::{SafeCalls, StackJudge};
use pagewise_model::mapping::Sharing;
use pagewise_model::trim::{PartOutcome, UnusedStack};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Bytes, Mapping, Reading};
use pagewise_proc::unused_stacks::MARGIN;
use pagewise_remote::{RemoteError, StopPoint, TargetMemory, Tracee, on_tracer_thread};
use pagewise_sys::madvise::Advice;
use pagewise_sys::priority::briefly_raised;

use super::around;
use crate::hold::why;
use crate::{INTERRUPTED, RepairConditions, RepairError, RepairTarget};

/// Minimum number of bytes to release from a stack; a stack with less stays as it is.
pub const MIN_UNUSED: Bytes = Bytes::kib(64);
/// Number of bytes of the address range that one stop of a thread releases, which takes at most
/// about 2 ms.
const PIECE: u64 = 16 << 20;
/// Number of bytes from the thread pointer on that are searched for the bounds of the stack: they
/// cover `struct pthread` of glibc.
const THREAD_DATA: usize = 2304;
/// Maximum distance from `struct pthread` to the end of its stack.
const ABOVE_THREAD_DATA: u64 = 64 << 10;

/// Reason why the stack of a thread stays as it is.
const NOT_FOLLOWED: &str = "its call stack cannot be followed to the start of the thread: it may run on a stack within its stack";
const NO_BOUNDS: &str =
    "the bounds of its stack are unknown: the C library did not map it with a guard";

/// Number of retries if the call stack of a thread cannot be followed.
const ATTEMPTS: u32 = 3;

/// Result of one stop of a thread.
enum StackStop {
    /// End address of the released range, and the time that the thread was stopped for.
    Released(u64, Duration),
    /// Nothing is left to release, or the thread has ended.
    Finished,
    /// The call stack cannot be followed at this point.
    NotFollowed,
}

/// Releases the unused part of each thread's stack, except the stacks for which `small` reports
/// less than [`MIN_UNUSED`] resident bytes.
///
/// # Errors
/// [`RepairError`] if the process has ended; the reason if no thread may make calls.
pub fn release(
    target: &RepairTarget,
    small: &[UnusedStack],
    conditions: &mut RepairConditions<'_>,
) -> Result<Reading<PartOutcome>, RepairError> {
    let mappings = target.mappings()?;
    let is_interrupted = conditions.is_interrupted;
    around(target, |outcome| {
        let calls = target.safe_calls()?;
        let is_small =
            |tid: &u32| small.iter().any(|it| it.tid.0 == *tid && it.resident < MIN_UNUSED);
        let mut threads = calls.target().threads().map_err(|error| why(&error))?;
        threads.retain(|tid| !is_small(tid));
        let page = target.page_size().bytes();
        while !threads.is_empty() && !is_interrupted() {
            on_tracer_thread(|| {
                let mut stacks = StackRelease {
                    calls: &calls,
                    judge: calls.stack_judge(),
                    mappings: &mappings,
                    page,
                    is_over: false,
                };
                while let Some(tid) = threads.pop().filter(|_| !is_interrupted()) {
                    note(stacks.release_of_thread(tid), outcome);
                    if stacks.is_over {
                        break;
                    }
                }
            });
        }
        if is_interrupted() {
            outcome.fail(INTERRUPTED);
        }
        Ok(())
    })
}

fn note(released: Result<Option<Duration>, String>, outcome: &mut PartOutcome) {
    match released {
        Ok(None) => {}
        Ok(Some(stopped)) => {
            outcome.done += 1;
            outcome.longest_stop_ns = outcome.longest_stop_ns.max(nanoseconds(stopped));
        }
        Err(why) => outcome.fail(why),
    }
}

/// The release of the stacks of one process.
struct StackRelease<'a> {
    calls: &'a SafeCalls,
    judge: StackJudge<'a>,
    mappings: &'a [Mapping],
    page: u64,
    /// True if a thread did not stop in time. The thread then stops later, and is detached when the
    /// tracing thread ends.
    is_over: bool,
}

impl StackRelease<'_> {
    /// Releases the unused part of a thread's stack. Returns the longest time for which the thread
    /// was stopped; `None` if it has ended, or if its stack has nothing to release.
    fn release_of_thread(&mut self, tid: u32) -> Result<Option<Duration>, String> {
        let (mut longest, mut from, mut attempts) = (None, 0, 0);
        let Some(thread) = self.stop(tid)? else { return Ok(None) };
        self.judge.read_files(thread);
        loop {
            // Raised priority keeps the stop short: the thread is stopped while we wait for a CPU.
            match briefly_raised(|| self.release_next(tid, from))? {
                StackStop::Finished => return Ok(longest),
                StackStop::Released(end, stopped) => {
                    from = end;
                    longest = longest.max(Some(stopped));
                }
                StackStop::NotFollowed if attempts < ATTEMPTS => attempts += 1,
                StackStop::NotFollowed => return Err(NOT_FOLLOWED.to_owned()),
            }
        }
    }

    fn stop(&mut self, tid: u32) -> Result<Option<Tracee>, String> {
        let stopped = self.calls.target().stop(tid);
        self.is_over |= matches!(stopped, Err(RemoteError::NotStopped(_)));
        stopped.map_err(|error| error.to_string())
    }

    /// Stops a thread and makes it release one piece of its stack, from the address `from` on.
    fn release_next(&mut self, tid: u32, from: u64) -> Result<StackStop, String> {
        match self.stop(tid)? {
            Some(thread) => self.release_piece(thread, from),
            None => Ok(StackStop::Finished),
        }
    }

    /// Makes a stopped thread release one piece of its stack, from the address `from` on.
    fn release_piece(&mut self, mut thread: Tracee, from: u64) -> Result<StackStop, String> {
        let target = self.calls.target();
        if !self.judge.is_on_own_stack(&thread) {
            return Ok(StackStop::NotFollowed);
        }
        let stack = bounds(self.mappings, target.memory(), &thread.place(), self.page);
        let stack = stack.ok_or(NO_BOUNDS)?;
        match target.prepare(&mut thread) {
            Ok(()) => {}
            // The stack is too small for a remote call, so little of it is unused.
            Err(RemoteError::NoStack(_)) => return Ok(StackStop::Finished),
            Err(error) => return Err(error.to_string()),
        }
        let unused = below(&mut thread, target.memory(), stack, self.page)?;
        let start = from.max(unused.start);
        let end = unused.end.min(start.saturating_add(PIECE));
        if start >= end {
            return Ok(StackStop::Finished);
        }
        thread.advise(start..end, Advice::DontNeed).map_err(|error| format!("madvise: {error}"))?;
        Ok(StackStop::Released(end, thread.release()))
    }
}

/// The unused range of a stack, without the alternate stack of signal handlers.
fn below(
    thread: &mut Tracee,
    memory: &TargetMemory,
    stack: Range<u64>,
    page: u64,
) -> Result<Range<u64>, String> {
    let signal_stack =
        thread.signal_stack(memory).map_err(|error| format!("sigaltstack: {error}"))?;
    let in_use = thread.stack_end().unwrap_or(stack.start);
    let mut unused = stack.start..in_use.saturating_sub(MARGIN) / page * page;
    if let Some(signals) = signal_stack.filter(|it| it.start < unused.end && it.end > unused.start)
    {
        unused.start = signals.end.checked_next_multiple_of(page).unwrap_or(unused.end);
    }
    Ok(unused)
}

/// The lowest and the highest address of the stack of a stopped thread: the mapping `[stack]`, or
/// the stack that the C library mapped for the thread.
fn bounds(
    mappings: &[Mapping],
    memory: &TargetMemory,
    place: &StopPoint,
    page: u64,
) -> Option<Range<u64>> {
    let mapping = mappings.iter().find(|it| it.range.contains(place.stack))?;
    if mapping.sharing != Sharing::Private || mapping.inode != 0 || !mapping.prot.write {
        return None;
    }
    let mapped = mapping.range.start..mapping.range.end;
    if mapping.name.as_bytes() == b"[stack]" {
        return Some(mapped);
    }
    let mut data = vec![0; THREAD_DATA];
    memory.read(place.thread_data, &mut data).ok()?;
    let words: Vec<u64> =
        data.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let block = words.windows(3).find_map(|words| block_of(*words.first_chunk()?, place, page))?;
    Some(block.start.max(mapped.start)..block.end.min(mapped.end))
}

/// The stack of a thread from three words of `struct pthread`: `stackblock`, `stackblock_size` and
/// `guardsize` (nptl/descr.h). `None` if the words do not describe the stack.
///
/// A stack that the program supplied is rejected: it has no guard of glibc, and its lower part may
/// contain other data.
fn block_of([start, size, guard]: [u64; 3], place: &StopPoint, page: u64) -> Option<Range<u64>> {
    let end = start.checked_add(size)?;
    let is_aligned = [start, size, guard].iter().all(|word| word.is_multiple_of(page));
    let has_guard = guard > 0 && guard < size;
    let holds_thread = start < place.stack
        && place.stack < place.thread_data
        && place.thread_data < end
        && end - place.thread_data <= ABOVE_THREAD_DATA;
    (is_aligned && has_guard && holds_thread).then(|| start + guard..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4 << 10;
    const START: u64 = 0x7f00_0000_0000;
    const SIZE: u64 = 8 << 20;

    fn place(stack: u64, thread_data: u64) -> StopPoint {
        StopPoint::at_stack(stack, thread_data)
    }

    #[test]
    fn a_stack_of_the_c_library_begins_behind_its_guard() {
        let place = place(START + SIZE - 9000, START + SIZE - 2304);
        assert_eq!(block_of([START, SIZE, PAGE], &place, PAGE), Some(START + PAGE..START + SIZE));
    }

    #[test]
    fn other_words_are_no_stack() {
        let place = place(START + SIZE - 9000, START + SIZE - 2304);
        for words in [
            [START, SIZE, 0],
            [START, SIZE, SIZE],
            [START + 8, SIZE, PAGE],
            [START + SIZE, SIZE, PAGE],
            [START, u64::MAX - PAGE + 1, PAGE],
            [START, SIZE - PAGE, PAGE],
            [START, 2 * SIZE, PAGE],
            [0, 0, 0],
        ] {
            assert_eq!(block_of(words, &place, PAGE), None, "{words:x?}");
        }
    }
}
