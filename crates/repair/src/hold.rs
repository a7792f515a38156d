//! Huge pages forbidden: `madvise(MADV_NOHUGEPAGE)`, which only the process itself can call.

use std::io;

use pagewise_model::{Absent, AddrRange, Reading};
use pagewise_sys::borrow::Borrowed;
use pagewise_sys::madvise::Advice;

use crate::{Outcome, Target};

/// How many calls a thread makes before it is let go for a moment.
const CALLS: usize = 8;

/// Forbids huge pages in each range, by a thread of the process that is stopped for as long as some calls take.
pub(crate) fn forbid_huge_pages(
    target: &Target,
    ranges: &[AddrRange],
    outcome: &mut Outcome,
) -> Reading<()> {
    if ranges.is_empty() {
        return Ok(());
    }
    may_call(target)?;
    for some in ranges.chunks(CALLS) {
        let mut thread = any_thread(target)?;
        let calls = some
            .iter()
            .try_for_each(|range| thread.advise(range.start..range.end, Advice::NoHugePage));
        outcome.stopped_for(thread.give_back());
        calls.map_err(|error| why(&error))?;
    }
    Ok(())
}

/// Whether one more system call is safe for it.
pub(crate) fn may_call(target: &Target) -> Reading<()> {
    let status = target.read("status").unwrap_or_default();
    let filters = status.split(|&byte| byte == b'\n').any(|line| line == b"Seccomp:\t2");
    if filters {
        let reason = "it filters its system calls (seccomp), and could be killed for one of ours";
        return Err(Absent::NotSupported(reason.into()));
    }
    Ok(())
}

/// The first of its threads that stops.
fn any_thread(target: &Target) -> Reading<Borrowed> {
    let threads = target.threads().map_err(|_| Absent::Vanished)?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for tid in threads {
        match target.borrow(tid) {
            Ok(thread) => return Ok(thread),
            Err(error) => last = error,
        }
    }
    Err(why(&last))
}

pub(crate) fn why(error: &io::Error) -> Absent {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Absent::NotPermitted(
            "the right to trace it (CAP_SYS_PTRACE, ptrace_scope), and no other tracer".into(),
        ),
        io::ErrorKind::Unsupported => Absent::NotSupported(
            "system calls in its name are made on x86-64 only, and for 64-bit programs".into(),
        ),
        io::ErrorKind::TimedOut => {
            Absent::NotSupported("its threads wait inside the kernel and do not stop".into())
        }
        _ if error.raw_os_error() == Some(NO_SUCH_PROCESS) => Absent::Vanished,
        _ => Absent::NotSupported(error.to_string().into()),
    }
}

/// `ESRCH`.
const NO_SUCH_PROCESS: i32 = 3;
