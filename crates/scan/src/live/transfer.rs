//! The copy of ranges into one buffer, by several threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use pagewise_model::AddrRange;
use pagewise_proc::pages::entry::{EXCLUSIVE, FILE, PRESENT};
use pagewise_sys::madvise::{Advice, advise_own};
use pagewise_sys::region::AlignedRegion;
use pagewise_sys::remote::{self, OpenMemory};
use pagewise_sys::system;

/// Bytes that a thread copies at a time.
const CHUNK: usize = 4 << 20;
/// Alignment of the buffer, so that huge pages fit.
const ALIGNMENT: usize = 2 << 20;
/// The most threads: more do not copy faster than memory permits.
const MAX_THREADS: usize = 4;
/// Ranges that one system call takes.
const MAX_RANGES: usize = 1024;

/// Memory for a copy, faulted in.
#[derive(Debug)]
pub(super) struct CopyBuffer {
    region: AlignedRegion,
}

/// Why a copy ended early.
#[derive(Debug)]
pub(super) enum TransferFailure {
    /// The deadline has passed.
    Late,
    /// The kernel refused to read.
    Refused(io::Error),
}

/// A chunk of the buffer, and the ranges that are copied into it one after the other.
struct TransferJob<'b> {
    ranges: VecDeque<Range<u64>>,
    bytes: &'b mut [u8],
}

impl CopyBuffer {
    /// Maps memory, and has the kernel fault in the part that will be needed: page faults in the
    /// pause would prolong it.
    pub(super) fn map(capacity: u64, needed: u64) -> io::Result<CopyBuffer> {
        let [capacity, needed] = [capacity, needed.min(capacity)].map(usize::try_from);
        let (Ok(capacity), Ok(needed)) = (capacity, needed) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut region = AlignedRegion::map(capacity, ALIGNMENT)?;
        // Without huge pages the copy is slower, not wrong.
        let _ = region.advise(Advice::HugePage);
        // Several threads fault pages in faster than one.
        thread::scope(|scope| {
            let part = needed.div_ceil(threads()).next_multiple_of(ALIGNMENT);
            for part in region.bytes()[..needed].chunks_mut(part.max(ALIGNMENT)) {
                scope.spawn(|| fault_in(part));
            }
        });
        Ok(CopyBuffer { region })
    }

    pub(super) fn capacity(&self) -> u64 {
        self.region.as_bytes().len() as u64
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.region.as_bytes()
    }

    /// Releases the memory behind the first `used` bytes: that was for growth of the process.
    pub(super) fn release_spare(&mut self, used: u64) {
        let page = usize::try_from(system::page_size()).unwrap_or(CHUNK);
        let first = usize::try_from(used).ok().and_then(|it| it.checked_next_multiple_of(page));
        if let Some(spare) = first.and_then(|first| self.region.bytes().get_mut(first..)) {
            // If the kernel refuses, the memory stays until the end of the scan.
            let _ = advise_own(spare, Advice::DontNeed);
        }
    }

    /// Copies ranges, one behind the other. Returns the pages that could not be read; their bytes
    /// in the buffer mean nothing.
    pub(super) fn fill(
        &mut self,
        pid: u32,
        ranges: &[AddrRange],
        deadline: Option<Instant>,
    ) -> Result<Vec<AddrRange>, TransferFailure> {
        let memory = SourceMemory::open(pid).map_err(TransferFailure::Refused)?;
        let jobs = Mutex::new(jobs(self.region.bytes(), ranges).into_iter());
        let unread = Mutex::new(Vec::new());
        let work = || -> Result<(), TransferFailure> {
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(job) = job else { return Ok(()) };
                if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                    return Err(TransferFailure::Late);
                }
                let holes = job.copy(&memory).map_err(TransferFailure::Refused)?;
                unread.lock().unwrap_or_else(PoisonError::into_inner).extend(holes);
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads()).map(|_| scope.spawn(work)).collect();
            let own = work();
            let ends = others.into_iter().map(|other| other.join());
            ends.fold(own, |all, end| match end {
                Ok(end) => all.and(end),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let mut unread = unread.into_inner().unwrap_or_else(PoisonError::into_inner);
        unread.sort_unstable();
        Ok(unread)
    }
}

/// Number of threads that copy. The first call reads files of the control group; later calls, in
/// the pause, do not.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS))
}

fn fault_in(bytes: &mut [u8]) {
    if advise_own(bytes, Advice::PopulateWrite).is_err() {
        let page = usize::try_from(system::page_size()).unwrap_or(CHUNK);
        bytes.iter_mut().step_by(page).for_each(|byte| *byte = 0);
    }
}

/// Memory that is copied.
struct SourceMemory {
    pid: u32,
    page: u64,
    memory: OpenMemory,
    pagemap: File,
}

impl SourceMemory {
    fn open(pid: u32) -> io::Result<SourceMemory> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        Ok(SourceMemory { pid, page: system::page_size(), memory: OpenMemory::open(pid)?, pagemap })
    }

    /// As [`OpenMemory::read`]; by the faster `process_vm_readv` if no page is shared with another
    /// process.
    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> io::Result<usize> {
        if ranges.iter().all(|range| self.is_exclusive(range)) {
            return remote::read_exclusive(self.pid, ranges, buffer);
        }
        self.memory.read(ranges, buffer)
    }

    /// True if no other process maps the anonymous pages of a range.
    fn is_exclusive(&self, range: &Range<u64>) -> bool {
        let pages = range.end.div_ceil(self.page).saturating_sub(range.start / self.page);
        let mut entries = vec![0; usize::try_from(pages * 8).unwrap_or(0)];
        let read = self.pagemap.read_exact_at(&mut entries, range.start / self.page * 8);
        let is_own = |entry: u64| entry & PRESENT == 0 || entry & (FILE | EXCLUSIVE) != 0;
        let mut words = entries.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        read.is_ok() && words.all(is_own)
    }
}

fn jobs<'b>(buffer: &'b mut [u8], ranges: &[AddrRange]) -> Vec<TransferJob<'b>> {
    let mut jobs = Vec::new();
    let mut parts = ranges.iter().map(|range| range.start..range.end);
    let mut part = parts.next();
    let mut rest = buffer;
    while part.is_some() {
        let (mut wanted, mut taken) = (CHUNK as u64, VecDeque::new());
        while let Some(range) = part.as_mut().filter(|_| wanted > 0) {
            let end = range.end.min(range.start.saturating_add(wanted));
            wanted -= end - range.start;
            taken.push_back(range.start..end);
            range.start = end;
            if range.is_empty() {
                part = parts.next();
            }
        }
        let length = usize::try_from(CHUNK as u64 - wanted).unwrap_or(CHUNK).min(rest.len());
        let (bytes, others) = rest.split_at_mut(length);
        rest = others;
        jobs.push(TransferJob { ranges: taken, bytes });
    }
    jobs
}

impl TransferJob<'_> {
    /// Copies the ranges. Returns pages that cannot be read.
    fn copy(mut self, memory: &SourceMemory) -> io::Result<Vec<AddrRange>> {
        let page = system::page_size();
        let mut unread = Vec::new();
        while !self.ranges.is_empty() {
            let batch = self.ranges.make_contiguous();
            let batch = &batch[..batch.len().min(MAX_RANGES)];
            let wanted: u64 = batch.iter().map(|range| range.end - range.start).sum();
            let count = memory.read(batch, self.bytes)?;
            self.advance(count);
            if count as u64 == wanted {
                continue;
            }
            // The kernel stops at the range with a page that it cannot read.
            let Some(next) = self.ranges.front() else { break };
            let end = next.end.min((next.start / page + 1) * page);
            let start = next.start;
            let count = memory.read(std::slice::from_ref(&(start..end)), self.bytes)?;
            let length = usize::try_from(end - start).unwrap_or(usize::MAX);
            if count < length {
                unread.push(AddrRange { start, end });
            }
            self.advance(length);
        }
        Ok(unread)
    }

    fn advance(&mut self, bytes: usize) {
        let own = std::mem::take(&mut self.bytes);
        self.bytes = own.get_mut(bytes..).unwrap_or_default();
        let mut left = bytes as u64;
        while let Some(range) = self.ranges.front_mut() {
            let step = left.min(range.end - range.start);
            range.start += step;
            left -= step;
            if !range.is_empty() {
                break;
            }
            self.ranges.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_copied_one_behind_the_other_and_unreadable_pages_are_named() {
        let page = system::page_size();
        let length = usize::try_from(page).unwrap();
        let mut source = AlignedRegion::map(4 * length, length).unwrap();
        for (number, bytes) in source.bytes().chunks_mut(length).enumerate() {
            bytes.fill(u8::try_from(number + 1).unwrap());
        }
        let start = source.start();
        let range = |from: u64, to: u64| AddrRange { start: from, end: to };
        let ranges = [
            range(page, 2 * page),
            range(start, start + page),
            range(start + 2 * page, start + 4 * page),
        ];
        let mut buffer = CopyBuffer::map(8 * page, 8 * page).unwrap();
        let unread = buffer.fill(std::process::id(), &ranges, None).unwrap();
        assert_eq!(unread, [range(page, 2 * page)]);
        let copied: Vec<u8> =
            buffer.as_bytes().chunks(length).map(|bytes| bytes[length - 1]).collect();
        assert_eq!(copied[1..4], [1, 3, 4]);
    }

    #[test]
    fn spare_memory_is_released_and_the_copy_stays() {
        let page = system::page_size();
        let mut buffer = CopyBuffer::map(4 * page, 4 * page).unwrap();
        buffer.region.bytes().fill(7);
        buffer.release_spare(page + 1);
        let length = usize::try_from(page).unwrap();
        let (used, spare) = buffer.as_bytes().split_at(2 * length);
        assert!(used.iter().all(|&byte| byte == 7));
        assert!(spare.iter().all(|&byte| byte == 0));
        buffer.release_spare(u64::MAX);
    }

    #[test]
    fn a_copy_ends_at_its_deadline() {
        let source = AlignedRegion::map(1 << 12, 1 << 12).unwrap();
        let ranges = [AddrRange { start: source.start(), end: source.start() + (1 << 12) }];
        let mut buffer = CopyBuffer::map(1 << 12, 0).unwrap();
        let past = Instant::now();
        while Instant::now() <= past {}
        let failure = buffer.fill(std::process::id(), &ranges, Some(past)).unwrap_err();
        assert!(matches!(failure, TransferFailure::Late));
    }
}
