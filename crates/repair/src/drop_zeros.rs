//! Zero pages dropped by the process itself, while each of its threads is stopped and nothing else can write to them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use pagewise_model::name::escape;
use pagewise_model::{Absent, AddrRange, Reading};
use pagewise_proc::{huge, status};
use pagewise_sys::borrow::Borrowed;
use pagewise_sys::madvise::Advice;
use pagewise_sys::remote;
use pagewise_sys::system::shares_memory;

use crate::hold::{may_call, why};
use crate::{Error, Outcome, Target};

/// How many huge pages are read and treated while the process is stopped.
const BLOCKS: usize = 4;

/// Files by which a device or the kernel can write to a process's memory while its threads are stopped.
const WRITERS: [&[u8]; 5] = [
    b"anon_inode:[io_uring]",
    b"anon_inode:[userfaultfd]",
    b"/[aio]",
    b"/dev/vfio/",
    b"/dev/infiniband/",
];

/// Drops what is zero in each block.
pub(crate) fn drop_zeros(
    target: &Target,
    blocks: &[AddrRange],
    outcome: &mut Outcome,
) -> Result<(), Error> {
    may_call(target).and_then(|()| is_alone(target)).map_err(Error::Refused)?;
    let page = target.page_size().bytes();
    for some in blocks.chunks(BLOCKS) {
        let mut threads = stop_all(target).map_err(|error| Error::Refused(why(&error)))?;
        for block in some {
            match drop_in(target, &mut threads, *block, page) {
                Ok(()) => outcome.done += 1,
                Err(error) => outcome.fail(error),
            }
        }
        for (_, thread) in threads {
            outcome.stopped_for(thread.give_back());
        }
    }
    Ok(())
}

fn drop_in(
    target: &Target,
    threads: &mut BTreeMap<u32, Borrowed>,
    block: AddrRange,
    page: u64,
) -> io::Result<()> {
    let length = usize::try_from(block.len().0).unwrap_or(0);
    let mut bytes = vec![0; length];
    let range = block.start..block.end;
    let read = remote::read(target.pid().0, std::slice::from_ref(&range), &mut bytes)?;
    let Some(thread) = threads.values_mut().next() else {
        return Err(io::ErrorKind::NotFound.into());
    };
    for zeros in zero_runs(&bytes[..read], page) {
        let range = block.start + zeros.start * page..block.start + zeros.end * page;
        thread.advise(range, Advice::DontNeed)?;
    }
    Ok(())
}

/// Runs of zero pages, as page numbers.
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

/// Stops every thread: also those that are made while others are being stopped.
fn stop_all(target: &Target) -> io::Result<BTreeMap<u32, Borrowed>> {
    let mut stopped = BTreeMap::new();
    loop {
        let threads = target.threads().map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        let fresh: Vec<u32> =
            threads.into_iter().filter(|tid| !stopped.contains_key(tid)).collect();
        if fresh.is_empty() {
            return Ok(stopped);
        }
        for tid in fresh {
            match target.borrow(tid) {
                Ok(thread) => drop(stopped.insert(tid, thread)),
                // It has ended meanwhile.
                Err(_) if !target.threads().is_ok_and(|all| all.contains(&tid)) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether nobody but its own threads can write to its memory.
fn is_alone(target: &Target) -> Reading<()> {
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
                return refuse(format!("process {other} shares its memory"));
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return refuse("this kernel cannot tell who shares its memory (kcmp)".into());
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
