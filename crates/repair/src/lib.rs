//! Changes the memory of a running process, only on request of the user: carries out a [`FixPlan`]
//! and returns the result as a [`Repair`].
//!
//! No written data of a process is lost, even on errors. Pages are only split, collapsed, moved to
//! swap or released by the allocator. A page is dropped only if it is zero-filled while no thread
//! can write to it, or lies below the stack pointer of the thread that drops it.
#![forbid(unsafe_code)]

mod drop_zeros;
mod error;
mod hold;
pub mod self_test;
mod target;
pub mod trim;

use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagewise_model::AddrRange;
use pagewise_model::thp::{Action, FixMethod, FixPlan, Repair};
use pagewise_model::units::nanoseconds;
use pagewise_sys::madvise::Advice;

pub use error::RepairError;
pub use pagewise_remote::{Keeper, Undo};
pub use target::RepairTarget;

/// Limits and callbacks of [`carry_out`].
pub struct RepairConditions<'a> {
    /// Maximum time for which all threads may be stopped at once.
    pub max_pause: Duration,
    /// Records the steps that undo a change if this process is killed.
    pub keeper: &'a mut (dyn Keeper + Send),
    /// Called between changes. Returns true if the repair must end early.
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

impl fmt::Debug for RepairConditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepairConditions")
            .field("max_pause", &self.max_pause)
            .finish_non_exhaustive()
    }
}

/// Reason why the kernel refuses advice for another process.
const NOT_PERMITTED: &str = "not permitted: process_madvise needs CAP_SYS_NICE";

/// Reason why the remaining ranges of a plan were not processed.
const INTERRUPTED: &str = "a signal asked pagewise to end";

/// Number of ranges in one `process_madvise` call, which holds the process's mmap lock for reading.
const BATCH: usize = 16;

/// Reason that a page is still huge although the kernel reported no error.
const STILL_HUGE: &str = "it is shared with another process, pinned, or was made huge again at once (--hold forbids that)";

/// Outcome for the ranges of a plan.
#[derive(Debug, Default)]
struct RangeOutcome {
    done: u64,
    failed: u64,
    why: Option<String>,
    longest_stop: Duration,
}

impl RangeOutcome {
    fn fail(&mut self, why: impl ToString) {
        self.failed += 1;
        self.why.get_or_insert_with(|| why.to_string());
    }

    fn stopped_for(&mut self, time: Duration) {
        self.longest_stop = self.longest_stop.max(time);
    }
}

/// Carries out a plan. `method` releases zero pages: see [`self_test::choose`].
///
/// Single ranges can fail while others succeed, because the process runs meanwhile.
///
/// # Errors
/// Fails with [`RepairError::Proc`] if the process has ended or may not be read, and with
/// [`RepairError::Refused`] if the plan cannot be carried out safely.
pub fn carry_out(
    target: &RepairTarget,
    plan: &FixPlan,
    method: FixMethod,
    conditions: &mut RepairConditions<'_>,
) -> Result<Repair, RepairError> {
    let rss_before = target.resident()?;
    let begin = Instant::now();
    let mut outcome = RangeOutcome::default();
    let held = hold::forbid_huge_pages(target, &plan.hold, conditions, &mut outcome);
    match plan.action {
        Action::Shrink => shrink(target, &plan.ranges, method, conditions, &mut outcome)?,
        Action::Collapse => {
            advise(target, &ranges(&plan.ranges), Advice::Collapse, conditions, &mut outcome)?;
        }
        Action::PageOut => {
            advise(target, &ranges(&plan.ranges), Advice::PageOut, conditions, &mut outcome)?;
        }
    }
    let took = begin.elapsed();
    Ok(Repair {
        action: plan.action,
        method: (plan.action == Action::Shrink && !plan.ranges.is_empty()).then_some(method),
        done: outcome.done,
        failed: outcome.failed,
        why: outcome.why,
        rss_before,
        rss_after: target.resident()?,
        took_ns: nanoseconds(took),
        longest_stop_ns: nanoseconds(outcome.longest_stop),
        not_held: held.err(),
    })
}

fn shrink(
    target: &RepairTarget,
    blocks: &[AddrRange],
    method: FixMethod,
    conditions: &mut RepairConditions<'_>,
    outcome: &mut RangeOutcome,
) -> Result<(), RepairError> {
    match method {
        FixMethod::Split => {
            let page = target.page_size().bytes();
            let firsts: Vec<Range<u64>> =
                blocks.iter().map(|block| block.start..block.start.saturating_add(page)).collect();
            advise(target, &firsts, Advice::Cold, conditions, outcome)?;
            // `MADV_COLD` returns no error for a huge page that it cannot split.
            let whole = target.still_huge(blocks)?;
            for _ in 0..whole.min(outcome.done) {
                outcome.done -= 1;
                outcome.fail(STILL_HUGE);
            }
            Ok(())
        }
        FixMethod::Drop => drop_zeros::drop_zeros(target, blocks, conditions, outcome),
        FixMethod::Swap => advise(target, &ranges(blocks), Advice::PageOut, conditions, outcome),
    }
}

/// Advises each range with `process_madvise`. Counts ranges that the kernel rejects and continues
/// with the next one.
fn advise(
    target: &RepairTarget,
    mut ranges: &[Range<u64>],
    advice: Advice,
    conditions: &RepairConditions<'_>,
    outcome: &mut RangeOutcome,
) -> Result<(), RepairError> {
    while !ranges.is_empty() {
        if (conditions.is_interrupted)() {
            ranges.iter().for_each(|_| outcome.fail(INTERRUPTED));
            break;
        }
        let batch = &ranges[..ranges.len().min(BATCH)];
        let mut left = match target.process().advise(batch, advice) {
            Ok(bytes) => bytes,
            Err(error) if target.is_gone() => {
                return Err(RepairError::system("the process is gone", error));
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::PermissionDenied => outcome.fail(NOT_PERMITTED),
                    _ => outcome.fail(error),
                }
                ranges = &ranges[1..];
                continue;
            }
        };
        let lengths = batch.iter().map(|range| range.end - range.start);
        let whole = lengths.take_while(|&length| {
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        });
        let done = whole.count();
        outcome.done += done as u64;
        if done == 0 {
            outcome.fail("the kernel did only a part of it");
        }
        ranges = &ranges[done.max(1)..];
    }
    Ok(())
}

fn ranges(ranges: &[AddrRange]) -> Vec<Range<u64>> {
    ranges.iter().map(|range| range.start..range.end).collect()
}
