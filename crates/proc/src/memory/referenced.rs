//! Memory that a process uses in an interval: the referenced bits of its page tables, cleared at
//! the start and read at the end.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use pagewise_model::{Mapping, Pid};

use crate::{ProcError, ProcRoot, smaps};

/// Clears the referenced bit of every page that the process maps. Returns the duration of the call.
///
/// The process cannot observe the change, but the kernel treats the pages as unused until the
/// process accesses them again, and reclaims them sooner. The call holds the mmap lock and flushes
/// the TLB of every CPU that the process runs on.
///
/// # Errors
/// [`ProcError::NotPermitted`] for another user's process, [`ProcError::NoSuchProcess`] where it is
/// gone.
pub fn clear(root: &ProcRoot, pid: Pid) -> Result<Duration, ProcError> {
    write(root, pid, b"1\n")
}

/// Clears the soft-dirty bit of every page, so that the next write to a page is a page fault.
/// Returns the duration of the call.
///
/// # Errors
/// As [`clear`].
pub fn clear_soft_dirty(root: &ProcRoot, pid: Pid) -> Result<Duration, ProcError> {
    write(root, pid, b"4\n")
}

fn write(root: &ProcRoot, pid: Pid, what: &[u8]) -> Result<Duration, ProcError> {
    let path = root.file(pid, "clear_refs");
    let begin = Instant::now();
    let file = OpenOptions::new().write(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(what));
    written
        .map(|()| begin.elapsed())
        .map_err(|error| ProcError::of_process(error, pid, &root.usual(&path)))
}

/// The mappings with every counter of `smaps`, `Referenced` among them.
///
/// # Errors
/// As reading `smaps`; [`ProcError::Parse`] where it is cut off.
pub fn mappings(root: &ProcRoot, pid: Pid) -> Result<Vec<Mapping>, ProcError> {
    let parsed = smaps::parse(&root.read(pid, "smaps")?);
    match parsed.torn {
        None if parsed.mappings.is_empty() => Err(ProcError::NoSuchProcess { pid }),
        None => Ok(parsed.mappings),
        Some(torn) => Err(torn),
    }
}
