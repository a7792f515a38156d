//! Memory of a process that runs meanwhile: nothing is stopped or copied beforehand.
//!
//! Only pages that are present are read: a read of others would map or swap them in. Values that
//! are read one after the other can be of different times.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pagewise_model::units::nanoseconds;
use pagewise_model::{AddrRange, Mapping, PageSize, Pid};
use pagewise_proc::ProcRoot;
use pagewise_proc::pages::entry::{FILE, PRESENT};
use pagewise_sys::priority::briefly_raised;
use pagewise_sys::remote::OpenMemory;

use crate::memory::{Memory, ScannedThread};

/// Bytes that one system call reads: the kernel holds the mmap lock of the process for some
/// microseconds meanwhile.
const PIECE: u64 = 128 << 10;

/// Memory of a running process.
#[derive(Debug)]
pub struct RunningMemory<'m> {
    memory: OpenMemory,
    page: u64,
    pagemap: File,
    mappings: &'m [Mapping],
    longest_ns: AtomicU64,
}

impl<'m> RunningMemory<'m> {
    /// Opens the memory of a process with these mappings.
    ///
    /// # Errors
    /// That of the kernel, if its memory or page map cannot be opened.
    pub fn open(
        root: &ProcRoot,
        pid: Pid,
        page_size: PageSize,
        mappings: &'m [Mapping],
    ) -> io::Result<RunningMemory<'m>> {
        let pagemap = File::open(root.file(pid, "pagemap"))?;
        let (page, longest_ns) = (page_size.bytes(), AtomicU64::new(0));
        Ok(RunningMemory { memory: OpenMemory::open(pid.0)?, page, pagemap, mappings, longest_ns })
    }

    /// Duration of the longest system call in nanoseconds.
    pub fn longest_call_ns(&self) -> u64 {
        self.longest_ns.load(Ordering::Relaxed)
    }

    fn measured<T>(&self, call: impl FnOnce() -> T) -> T {
        // The kernel holds the mmap lock of the process meanwhile. The time is taken before the
        // priority is lowered: then other threads may run.
        let (result, took) = briefly_raised(|| {
            let began = Instant::now();
            (call(), began.elapsed())
        });
        self.longest_ns.fetch_max(nanoseconds(took), Ordering::Relaxed);
        result
    }

    /// As [`Memory::read`], also of pages of files that are present, such as code.
    pub fn read_present(&self, address: u64, into: &mut [u8]) -> bool {
        self.read_without(0, address, into)
    }

    /// Reads pages that are present and lack a bit of their entry of `pagemap`.
    fn read_without(&self, excluded: u64, address: u64, into: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(into.len() as u64) else { return false };
        let range = AddrRange { start: address, end };
        into.is_empty()
            || range.len().0 <= PIECE
                && self.present(range, excluded) == [range]
                && self.copy(address, into) == into.len()
    }

    /// Runs of pages in a range that are present and lack the bit `excluded`.
    fn present(&self, range: AddrRange, excluded: u64) -> Vec<AddrRange> {
        let start = range.start - range.start % self.page;
        let pages = (range.end - start).div_ceil(self.page);
        let mut entries = vec![0; usize::try_from(pages * 8).unwrap_or(0)];
        let offset = start / self.page * 8;
        let read = self.measured(|| self.pagemap.read_exact_at(&mut entries, offset));
        let mut runs: Vec<AddrRange> = Vec::new();
        if read.is_err() {
            return runs;
        }
        let step = usize::try_from(self.page).unwrap_or(usize::MAX);
        for (entry, at) in entries.as_chunks().0.iter().zip((start..).step_by(step)) {
            let entry = u64::from_ne_bytes(*entry);
            if entry & PRESENT == 0 || entry & excluded != 0 {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += self.page,
                _ => runs.push(AddrRange { start: at, end: at + self.page }),
            }
        }
        runs.iter().filter_map(|run| run.intersection(range)).collect()
    }

    fn copy(&self, address: u64, into: &mut [u8]) -> usize {
        let range = address..address.saturating_add(into.len() as u64);
        self.measured(|| self.memory.read(&[range], into)).unwrap_or(0)
    }
}

impl Memory for RunningMemory<'_> {
    fn mappings(&self) -> &[Mapping] {
        self.mappings
    }

    /// None: registers of a running thread cannot be read.
    fn threads(&self) -> &[ScannedThread] {
        &[]
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        let mut bytes = vec![0; usize::try_from(PIECE.min(range.len().0)).unwrap_or(0)];
        let mut start = range.start.next_multiple_of(8);
        while start < range.end {
            let end = range.end.min((start - start % self.page).saturating_add(PIECE));
            for run in self.present(AddrRange { start, end }, FILE) {
                let length = usize::try_from(run.len().0).unwrap_or(0).min(bytes.len());
                let count = self.copy(run.start, &mut bytes[..length]);
                each(run.start, &bytes[..count]);
            }
            start = end;
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.read_without(FILE, address, into)
    }
}

#[cfg(test)]
mod tests {
    use pagewise_proc::capture::outline;
    use pagewise_sys::madvise::Advice;
    use pagewise_sys::region::AlignedRegion;
    use pagewise_sys::system;

    use super::*;

    #[test]
    fn pages_that_were_never_touched_stay_untouched() {
        let page = system::page_size();
        let length = usize::try_from(page).unwrap();
        let mut region = AlignedRegion::map(64 * length, length).unwrap();
        region.advise(Advice::NoHugePage).unwrap();
        let start = region.start();
        region.bytes()[3 * length..5 * length].fill(7);
        let (root, pid) = (ProcRoot::live(), Pid(std::process::id()));
        let mappings = outline(&root, pid).unwrap().1.unwrap();
        let page_size = PageSize::new(page).unwrap();
        let memory = RunningMemory::open(&root, pid, page_size, &mappings).unwrap();
        let range = AddrRange { start, end: start + 64 * page };
        for _ in 0..2 {
            let mut visited = Vec::new();
            memory.visit(range, &mut |at, bytes| {
                assert!(bytes.iter().all(|byte| *byte == 7));
                visited.push((at - start, bytes.len()));
            });
            assert_eq!(visited, [(3 * page, 2 * length)]);
            assert_eq!(memory.word(start + 5 * page), None);
            assert_eq!(memory.word(start + 5 * page - 8), Some(0x0707_0707_0707_0707));
        }
    }
}
