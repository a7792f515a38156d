//! Zero-filled pages, dropped by `madvise` calls of one thread of the process while all its other
//! threads are stopped and nothing else can write to its memory.

use std::io;
use std::ops::Range;

use pagewise_model::name::escape;
use pagewise_model::{Absent, AddrRange, Reading};
use pagewise_proc::{huge, status};
use pagewise_remote::{self as remote, Alone, Keeper, Scratch, on_tracer_thread};
use pagewise_sys::madvise::Advice;
use pagewise_sys::remote::read;
use pagewise_sys::system::shares_memory;

use crate::hold::why;
use crate::{INTERRUPTED, RangeOutcome, RepairConditions, RepairError, RepairTarget};

/// Number of huge pages in a chunk, which is read and changed in one stop of the process.
const BLOCKS: usize = 4;
/// Number of spare slots in a new scratch mapping, for threads that are created before the next
/// stop.
const MORE_THREADS: usize = 64;

/// Files by which a device or the kernel can write to a process's memory while its threads are
/// stopped.
const WRITERS: [&[u8]; 5] = [
    b"anon_inode:[io_uring]",
    b"anon_inode:[userfaultfd]",
    b"/[aio]",
    b"/dev/vfio/",
    b"/dev/infiniband/",
];

/// Drops the zero-filled pages of each block (one huge page).
pub(crate) fn drop_zeros(
    target: &RepairTarget,
    blocks: &[AddrRange],
    conditions: &mut RepairConditions<'_>,
    outcome: &mut RangeOutcome,
) -> Result<(), RepairError> {
    is_alone(target).map_err(RepairError::Refused)?;
    let refused = |error: remote::RemoteError| RepairError::Refused(why(&error));
    let remote = target.remote().map_err(refused)?;
    remote.permits_calls().map_err(refused)?;
    let page = target.page_size().bytes();
    let mut scratch = None;
    let mut result = Ok(());
    for (number, some) in blocks.chunks(BLOCKS).enumerate() {
        if (conditions.is_interrupted)() {
            blocks[number * BLOCKS..].iter().for_each(|_| outcome.fail(INTERRUPTED));
            break;
        }
        let keeper = &mut *conditions.keeper;
        let max_pause = conditions.max_pause;
        let done = on_tracer_thread(|| {
            let place = with_room(&remote, &mut scratch, keeper)?;
            let stopped = remote.stop_all(max_pause)?;
            let Some(mut alone) = Alone::begin(&remote, place, stopped)? else {
                // The process has more threads than the scratch mapping has slots. The next chunk
                // gets a larger mapping.
                return Ok(None);
            };
            let results: Vec<_> =
                some.iter().map(|block| drop_in(target, &mut alone, *block, page)).collect();
            let is_left = alone.is_left();
            Ok(Some((results, is_left, alone.end())))
        });
        // The pause limit may be exceeded only because the machine is busy: try the next chunk.
        if let Err(error @ remote::RemoteError::PauseTooLong { .. }) = &done {
            some.iter().for_each(|_| outcome.fail(error));
            continue;
        }
        match done.map_err(refused) {
            Ok(Some((results, is_left, pause))) => {
                for result in results {
                    match result {
                        Ok(()) => outcome.done += 1,
                        Err(error) => outcome.fail(error),
                    }
                }
                outcome.stopped_for(pause);
                if is_left {
                    // A pending system call still uses the scratch mapping. The keeper unmaps the
                    // mapping after the call has returned.
                    return Err(RepairError::Refused(Absent::NotSupported(LEFT.into())));
                }
            }
            Ok(None) => some.iter().for_each(|_| outcome.fail("it started threads meanwhile")),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    if let Some(scratch) = scratch {
        let unmapped = on_tracer_thread(|| unmap(&remote, scratch, conditions.keeper));
        // If the process has ended, its memory is unmapped already.
        result = result.and(match unmapped {
            Ok(()) | Err(remote::RemoteError::Gone) => Ok(()),
            Err(error) => Err(refused(error)),
        });
    }
    result
}

/// Reason that the remaining blocks are not processed.
const LEFT: &str =
    "one of its system calls has not ended within two seconds; pagewise let it go on";

/// Returns a scratch mapping with a slot for each present thread. Creates it if it is missing or
/// too small.
fn with_room<'a>(
    target: &remote::RemoteProcess,
    scratch: &'a mut Option<Scratch>,
    keeper: &mut dyn Keeper,
) -> Result<&'a Scratch, remote::RemoteError> {
    let mut thread = target.any_thread()?;
    let size = Alone::scratch_size(&mut thread, target.threads()?.len() + 1)?;
    if let Some(small) = scratch.take_if(|scratch| scratch.range().len().0 < size) {
        small.unmap(&mut thread, keeper)?;
    }
    if scratch.is_none() {
        let size = Alone::scratch_size(&mut thread, target.threads()?.len() + MORE_THREADS)?;
        *scratch = Some(Scratch::map(target, &mut thread, size, keeper)?);
    }
    thread.release();
    scratch.as_ref().ok_or(remote::RemoteError::Gone)
}

fn unmap(
    target: &remote::RemoteProcess,
    scratch: Scratch,
    keeper: &mut dyn Keeper,
) -> Result<(), remote::RemoteError> {
    let mut thread = target.any_thread()?;
    let unmapped = scratch.unmap(&mut thread, keeper);
    thread.release();
    unmapped
}

fn drop_in(
    target: &RepairTarget,
    alone: &mut Alone<'_>,
    block: AddrRange,
    page: u64,
) -> io::Result<()> {
    let length = usize::try_from(block.len().0).unwrap_or(0);
    let mut bytes = vec![0; length];
    let range = block.start..block.end;
    let read = read(target.pid().0, std::slice::from_ref(&range), &mut bytes)?;
    for zeros in zero_runs(&bytes[..read], page) {
        let range = block.start + zeros.start * page..block.start + zeros.end * page;
        alone.advise(range, Advice::DontNeed)?;
    }
    Ok(())
}

/// Returns the runs of zero-filled pages, as ranges of page indices.
fn zero_runs(bytes: &[u8], page: u64) -> Vec<Range<u64>> {
    let size = usize::try_from(page).unwrap_or(usize::MAX);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (number, page) in (0_u64..).zip(bytes.chunks_exact(size)) {
        match runs.last_mut() {
            _ if !huge::is_zero(page) => {}
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// `Ok` if only the target's own threads can write to its memory.
fn is_alone(target: &RepairTarget) -> Reading<()> {
    let refuse = |why: String| Err(Absent::NotSupported(why.into()));
    let mappings = target.mappings().map_err(|_| Absent::Vanished)?;
    let names = mappings.iter().map(|mapping| mapping.name.as_bytes().to_vec());
    let writes = |name: &Vec<u8>| WRITERS.iter().any(|writer| name.starts_with(writer));
    if let Some(writer) = names.chain(target.open_files()).find(writes) {
        return refuse(format!("{} can write to its memory while it is stopped", escape(&writer)));
    }
    let status = target.read("status").map_err(|_| Absent::Vanished)?;
    match status::parse(&status).status.vm_pin {
        Ok(pinned) if pinned.is_zero() => {}
        _ => return refuse("a device may write to memory that it has pinned".into()),
    }
    for other in pagewise_proc::ProcRoot::live().pids().map_err(|_| Absent::Vanished)? {
        match shares_memory(target.pid().0, other.0) {
            Ok(true) if other != target.pid() => {
                return refuse(format!("process {other} shares its address space"));
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return refuse("this kernel lacks kcmp, so the processes that share its address space are unknown".into());
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zero_pages_are_found() {
        let page = |byte| vec![byte; 64];
        let bytes = [page(0), page(0), page(1), page(0), vec![0; 10]].concat();
        let runs: Vec<_> = zero_runs(&bytes, 64).into_iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(runs, [(0, 2), (3, 4)]);
        assert!(zero_runs(&[], 64).is_empty());
    }
}
