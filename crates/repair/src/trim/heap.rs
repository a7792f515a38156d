//! Free pages of a heap, released by the allocator's own function.
//!
//! The function takes the locks of all arenas. In a process with several threads, `malloc_trim`
//! runs on an additional thread, so that all threads of the program continue. Any other function,
//! and any function of a process with one thread, is called by a thread of the program that holds
//! none of these locks ([`pagewise_heap::safe_call`]). All other threads continue and release their
//! locks.

use std::time::Duration;

use pagewise_heap::safe_call::{CallResults, FoundFunction, FunctionCall, SafeCalls};
use pagewise_model::trim::{PartOutcome, ReleaseFunction};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Reading};

use super::{absent, around};
use crate::{INTERRUPTED, RepairConditions, RepairError, RepairTarget};

/// A function of an allocator that releases free pages.
struct ReleaseRow {
    name: &'static str,
    /// String that the first argument points to.
    text: Option<&'static str>,
    arguments: [u64; 5],
    /// True if the function holds no lock while it waits for one.
    waits_free: bool,
    /// True if the only thread-local variable that the function uses is `errno`, so that a new
    /// thread without thread-local data can call it.
    needs_no_thread_data: bool,
    /// True if the function returns an `int` that is 0 or an error number.
    returns_error: bool,
    /// Name of the allocator whose heap walk shows the number of bytes that the function will
    /// release; `None` if no heap walk shows this number.
    estimated_by: Option<&'static str>,
}

const PLAIN: ReleaseRow = ReleaseRow {
    name: "",
    text: None,
    arguments: [0; 5],
    waits_free: false,
    needs_no_thread_data: false,
    returns_error: false,
    estimated_by: None,
};
/// `MALLCTL_ARENAS_ALL` is 4096. The control takes no value: all other arguments are null.
const MALLCTL: ReleaseRow = ReleaseRow {
    text: Some("arena.4096.purge"),
    returns_error: true,
    estimated_by: Some("jemalloc"),
    ..PLAIN
};

const RELEASES: [ReleaseRow; 6] = [
    // `malloc_trim` locks one arena at a time, so it holds no mutex while it waits (malloc.c).
    ReleaseRow {
        name: "malloc_trim",
        waits_free: true,
        needs_no_thread_data: true,
        estimated_by: Some("glibc"),
        ..PLAIN
    },
    ReleaseRow { name: "mallctl", ..MALLCTL },
    ReleaseRow { name: "je_mallctl", ..MALLCTL },
    ReleaseRow { name: "_rjem_mallctl", ..MALLCTL },
    // `mi_collect` releases the pages of the calling thread and of threads that have ended.
    ReleaseRow { name: "mi_collect", arguments: [1, 0, 0, 0, 0], ..PLAIN },
    ReleaseRow {
        name: "MallocExtension_ReleaseFreeMemory",
        estimated_by: Some("tcmalloc"),
        ..PLAIN
    },
];

/// Name of the allocator, as in a heap scan, whose heap walk shows the number of bytes that a
/// function will release. `None` if no heap walk shows this number.
pub fn estimated_by(function: &str) -> Option<&'static str> {
    RELEASES.iter().find(|row| row.name == function)?.estimated_by
}

/// The names of functions that release free pages.
fn names() -> Vec<&'static str> {
    RELEASES.iter().map(|row| row.name).collect()
}

/// Functions of the process that release free pages.
///
/// # Errors
/// The reason why none of these functions can be called.
pub fn functions(calls: &SafeCalls) -> Reading<Vec<FoundFunction>> {
    let found = calls.functions(&names()).map_err(|error| absent(&error))?;
    if found.is_empty() {
        let why = "none of its files has a function that releases free pages: malloc_trim, mallctl, mi_collect, \
                   MallocExtension_ReleaseFreeMemory";
        return Err(Absent::NotSupported(why.into()));
    }
    Ok(found)
}

/// Converts [`functions`] to the form of a report.
pub fn named(functions: &[FoundFunction]) -> Vec<ReleaseFunction> {
    let named =
        |it: &FoundFunction| ReleaseFunction { name: it.name.to_owned(), file: it.file.clone() };
    functions.iter().map(named).collect()
}

/// Makes the allocators of a process release their free pages.
///
/// # Errors
/// [`RepairError`] if the process has ended; the reason if no function was called.
pub fn release(
    target: &RepairTarget,
    conditions: &mut RepairConditions<'_>,
) -> Result<Reading<PartOutcome>, RepairError> {
    around(target, |outcome| {
        let calls = target.safe_calls()?;
        let found = functions(&calls)?;
        for function in &found {
            if (conditions.is_interrupted)() {
                outcome.fail(INTERRUPTED);
                break;
            }
            call(&calls, function, conditions, outcome)?;
        }
        Ok(())
    })
}

fn call(
    calls: &SafeCalls,
    function: &FoundFunction,
    conditions: &mut RepairConditions<'_>,
    outcome: &mut PartOutcome,
) -> Reading<()> {
    let Some(row) = RELEASES.iter().find(|row| row.name == function.name) else { return Ok(()) };
    let results = match row.needs_no_thread_data {
        true => calls.call_on_new_thread(function, row.arguments[0], conditions.keeper),
        false => Ok(None),
    };
    let results = match results.map_err(|error| absent(&error))? {
        Some(results) => results,
        None => borrow_thread(calls, function, row, conditions)?,
    };
    note(row, function, results, outcome);
    Ok(())
}

/// Makes a thread of the program call the function.
fn borrow_thread(
    calls: &SafeCalls,
    function: &FoundFunction,
    row: &ReleaseRow,
    conditions: &mut RepairConditions<'_>,
) -> Reading<CallResults> {
    let call = FunctionCall {
        address: function.address,
        text: row.text,
        arguments: row.arguments,
        lock_wait: row.waits_free.then_some(conditions.max_pause.max(MIN_LOCK_WAIT)),
    };
    calls.call(&[call], conditions.keeper).map_err(|error| absent(&error))
}

fn note(
    row: &ReleaseRow,
    function: &FoundFunction,
    results: CallResults,
    outcome: &mut PartOutcome,
) {
    outcome.longest_stop_ns = outcome.longest_stop_ns.max(nanoseconds(results.stopped));
    for returned in results.returned {
        match returned.map(|value| if row.returns_error { value & INT } else { 0 }) {
            Ok(0) => {
                outcome.done += 1;
                outcome.functions.extend(named(std::slice::from_ref(function)));
            }
            Ok(error) => outcome.fail(format!("{} returned error {error}", row.name)),
            Err(error) => outcome.fail(why_not(row.name, &error)),
        }
    }
}

/// Mask of the bits of an `int` in a register.
const INT: u64 = 0xffff_ffff;

/// Minimum time for which a call may wait for a lock: shorter waits are normal on a busy machine.
const MIN_LOCK_WAIT: Duration = Duration::from_millis(20);

fn why_not(name: &str, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            format!("{name} waited too long for the lock of an arena, and was ended")
        }
        std::io::ErrorKind::TimedOut => {
            format!("{name} has not returned yet; pagewise let it go on")
        }
        _ => format!("{name} did not return: {error}"),
    }
}
