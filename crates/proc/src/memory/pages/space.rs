//! An open `pagemap`: timed reads and scans, sleeps, and the search for the end of holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagewise_model::{AddrRange, Bytes, PageSize, Pid};
use pagewise_sys::pagemap_scan::{Categories, Scan, ScanRegion, ScanRequest, scan};
use pagewise_sys::precise_sleep::PreciseRests;
use pagewise_sys::priority::Priority;
use pagewise_sys::probe::Features;

use super::Pace;
use super::entry::{WORD, Word};
use crate::{ProcError, ProcRoot};

/// Duration of a scan above which the next scan is shorter.
const LONG: Duration = Duration::from_micros(200);

/// Total time for which scans may hold the mmap lock before this thread sleeps. A single scan that
/// takes less time doubles the range of the next scan. A waiting thread thus gets the lock within a
/// quarter of a millisecond.
const BRIEF: Duration = Duration::from_micros(170);

/// The page tables of one process.
#[derive(Debug)]
pub(crate) struct PageTables {
    pid: Pid,
    path: PathBuf,
    file: File,
    page_size: PageSize,
    can_scan: bool,
    pace: Pace,
    rests: Option<PreciseRests>,
    /// Raises the priority of this thread during calls, if the target is running. If a call were
    /// preempted, it would hold the mmap lock until it is scheduled again.
    priority: Option<Priority>,
    since_rest: u64,
    held: Duration,
    /// Time for which the last call held the mmap lock. The field `longest` is the maximum of these
    /// times.
    last: Duration,
    longest: Duration,
}

impl PageTables {
    pub(crate) fn open(
        features: &Features,
        root: &ProcRoot,
        pid: Pid,
        page_size: PageSize,
        pace: &Pace,
    ) -> Result<PageTables, ProcError> {
        let path = root.path().join(pid.to_string()).join("pagemap");
        let file = File::open(&path).map_err(|error| ProcError::of_process(error, pid, &path))?;
        Ok(PageTables {
            pid,
            path,
            file,
            page_size,
            can_scan: features.pagemap_scan,
            pace: *pace,
            rests: (!pace.rest.is_zero()).then(PreciseRests::start),
            priority: if pace.rest.is_zero() { None } else { Priority::of_this_thread() },
            since_rest: 0,
            held: Duration::ZERO,
            last: Duration::ZERO,
            longest: Duration::ZERO,
        })
    }

    pub(crate) const fn can_scan(&self) -> bool {
        self.can_scan
    }

    pub(crate) const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Returns the size in bytes of the address space of one read.
    pub(crate) const fn chunk(&self) -> u64 {
        self.pace.chunk.0
    }

    /// A buffer for the words of one chunk.
    pub(crate) fn chunk_words(&self) -> Vec<Word> {
        let count = self.page_size.count(self.pace.chunk).max(1);
        vec![Word::default(); usize::try_from(count).unwrap_or(1)]
    }

    /// Returns the duration of the longest system call so far.
    pub(crate) const fn longest(&self) -> Duration {
        self.longest
    }

    /// Reads the words of `range` into `words`; fewer than asked for at the end of the address
    /// space.
    ///
    /// # Errors
    /// [`ProcError::NoSuchProcess`] where the process has no memory any more.
    pub(crate) fn read<'w>(
        &mut self,
        range: AddrRange,
        words: &'w mut [Word],
    ) -> Result<&'w [Word], ProcError> {
        self.rest_after(range.len().0);
        let wanted = usize::try_from(self.page_size.count(range.len())).unwrap_or(usize::MAX);
        let wanted = wanted.min(words.len());
        let offset = self.page_size.count(Bytes(range.start)).saturating_mul(WORD);
        let bytes = words[..wanted].as_flattened_mut();
        let read = self.hold(|space| space.file.read_at(bytes, offset));
        match read.map_err(|error| self.failed(error))? / size_of::<Word>() {
            0 => Err(ProcError::NoSuchProcess { pid: self.pid }),
            read => Ok(&words[..read]),
        }
    }

    /// True if a huge entry (a page-table entry of a huge page) maps the page at `address`. False
    /// for the huge zero page.
    pub(crate) fn is_huge(&mut self, address: u64) -> Result<bool, ProcError> {
        let page = AddrRange { start: address, end: address + self.page_size.bytes() };
        let request = ScanRequest {
            all_of: Categories::HUGE,
            report: Categories::HUGE | Categories::PFNZERO,
            ..ScanRequest::default()
        };
        let mut region = [ScanRegion::default()];
        let found = self.scan(page, &request, &mut region)?.regions;
        Ok(found > 0 && !region[0].categories.contains(Categories::PFNZERO))
    }

    /// Number of bytes of `range` that map the zero page.
    pub(crate) fn zero_bytes(&mut self, mut range: AddrRange) -> Result<u64, ProcError> {
        let request = ScanRequest {
            all_of: Categories::PFNZERO,
            report: Categories::PFNZERO,
            ..ScanRequest::default()
        };
        let mut regions = [ScanRegion::default(); 64];
        let mut bytes = 0;
        while !range.is_empty() {
            let found = self.scan(range, &request, &mut regions)?;
            bytes += regions[..found.regions].iter().map(|r| r.end - r.start).sum::<u64>();
            range.start = found.walk_end.max(range.start + self.page_size.bytes());
        }
        Ok(bytes)
    }

    /// Calls `each` with every run of pages of `range` that fits `request`, in order. A run can be
    /// passed in several parts.
    ///
    /// A scan holds the mmap lock for its whole range, so the ranges grow only while scans are
    /// fast.
    pub(crate) fn each_region(
        &mut self,
        range: AddrRange,
        request: &ScanRequest,
        mut each: impl FnMut(&ScanRegion),
    ) -> Result<(), ProcError> {
        let mut regions = [ScanRegion::default(); 256];
        let (mut at, mut stride) = (range.start, self.chunk());
        while at < range.end {
            let end = range.end.min(at.saturating_add(stride));
            let found = self.scan(AddrRange { start: at, end }, request, &mut regions)?;
            stride = if self.last < BRIEF { stride.saturating_mul(2) } else { self.chunk() };
            self.rest_once_held_for(self.last);
            regions[..found.regions].iter().for_each(&mut each);
            at = if found.walk_end > at { found.walk_end } else { end };
        }
        Ok(())
    }

    /// Returns the first mapped address of `range`, or the end of `range`. Without `PAGEMAP_SCAN`,
    /// returns the start of `range`, because the hole has to be read.
    pub(crate) fn next_populated(&mut self, range: AddrRange) -> Result<u64, ProcError> {
        if !self.can_scan {
            return Ok(range.start);
        }
        // The scan reports guard regions as swap entries.
        let request = ScanRequest {
            any_of: Categories::PRESENT | Categories::SWAPPED,
            report: Categories::PRESENT,
            max_pages: 1,
            ..ScanRequest::default()
        };
        let mut region = [ScanRegion::default()];
        // A scan holds the mmap lock for its whole range. Ranges without page tables take no time,
        // but empty page tables are walked, so the stride grows only while scans are fast.
        let (mut at, mut stride) = (range.start, self.chunk());
        while at < range.end {
            let end = range.end.min(at.saturating_add(stride));
            if self.scan(AddrRange { start: at, end }, &request, &mut region)?.regions > 0 {
                return Ok(region[0].start);
            }
            let quick = self.last < LONG;
            stride = if quick { stride.saturating_mul(2) } else { self.chunk() };
            at = end;
        }
        Ok(range.end)
    }

    fn scan(
        &mut self,
        range: AddrRange,
        request: &ScanRequest,
        regions: &mut [ScanRegion],
    ) -> Result<Scan, ProcError> {
        self.hold(|space| scan(&space.file, range.start..range.end, request, regions))
            .map_err(|error| self.failed(error))
    }

    /// Makes a system call that holds the target's mmap lock, and records the time that it took.
    fn hold<T>(&mut self, call: impl FnOnce(&PageTables) -> T) -> T {
        let (answer, held) = {
            let timed = || {
                let begin = Instant::now();
                (call(self), begin.elapsed())
            };
            match &self.priority {
                Some(priority) => priority.raised(timed),
                None => timed(),
            }
        };
        self.last = held;
        self.longest = self.longest.max(held);
        answer
    }

    fn failed(&self, error: io::Error) -> ProcError {
        ProcError::of_process(error, self.pid, &self.path)
    }

    /// Sleeps if scans have held the lock for [`BRIEF`] since the last sleep. The criterion is time
    /// and not bytes, because a huge entry covers many bytes.
    fn rest_once_held_for(&mut self, time: Duration) {
        self.held += time;
        if self.held < BRIEF {
            return;
        }
        self.held = Duration::ZERO;
        if let Some(rests) = &self.rests {
            rests.rest(self.pace.rest * 3);
        }
    }

    /// Sleeps if a chunk has been read since the last sleep.
    fn rest_after(&mut self, bytes: u64) {
        let Some(rests) = &self.rests else { return };
        if self.since_rest >= self.pace.chunk.0 {
            rests.rest(self.pace.rest);
            self.since_rest = 0;
        }
        self.since_rest = self.since_rest.saturating_add(bytes);
    }
}
