//! The walk over an address space: neighboring mappings together, holes skipped.

use std::fs;
use std::time::Duration;

use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, PageSize, Pid, Reading};
use pagewise_sys::probe::Features;

use super::census::{Census, Trust};
use super::entry::{Word, are_empty};
use super::frames::FrameReader;
use super::hugetlb::Hugetlb;
use super::space::PageTables;
use super::tally::{PageTally, TallyLedger};
use super::{Pace, PageWalk};
use crate::{ProcError, ProcRoot};

/// Maximum gap between two mappings, in pages, that is read with them: reading the gap is cheaper
/// than a second read.
pub(crate) const BRIDGE: u64 = 64;

/// Maximum size of a mapping that is read without `PAGEMAP_SCAN`: its holes have to be read, too.
const TOO_LARGE: Bytes = Bytes::gib(64);

/// Upper bound of user addresses on every 64-bit machine. `[vsyscall]` lies above it.
const KERNEL_HALF: u64 = 1 << 63;

/// Reads the pages of one process.
#[derive(Debug)]
pub(super) struct Walker {
    space: PageTables,
    words: Vec<Word>,
    hugetlb: Hugetlb,
    census: Census,
    ledger: TallyLedger,
}

impl Walker {
    pub(super) fn new(
        features: &Features,
        root: &ProcRoot,
        pid: Pid,
        page_size: PageSize,
        pace: &Pace,
        trust: Trust,
    ) -> Result<Walker, ProcError> {
        let huge_size = huge_size();
        // A chunk holds whole huge pages, so that no huge page is split between two chunks.
        let whole = huge_size.unwrap_or(page_size.bytes()).max(page_size.bytes());
        let chunk = Bytes(pace.chunk.0.max(1).next_multiple_of(whole));
        let words = usize::try_from(page_size.count(chunk)).unwrap_or(usize::MAX);
        let frames = if features.frames { FrameReader::open(root.path()) } else { None };
        Ok(Walker {
            space: PageTables::open(features, root, pid, page_size, &Pace { chunk, ..*pace })?,
            words: vec![Word::default(); words],
            hugetlb: Hugetlb::new(root, pid, page_size),
            census: Census::new(page_size, huge_size, frames, trust),
            ledger: TallyLedger::new(),
        })
    }

    /// Fills in the pages of all mappings, which are in the order of their addresses.
    pub(super) fn walk(&mut self, mut mappings: &mut [Mapping]) -> Result<(), ProcError> {
        while let Some(first) = mappings.first_mut() {
            let length = match self.is_read(first) {
                Ok(true) => self.walk_span(mappings)?,
                Ok(false) => {
                    first.pages = self.ledger.enter(&PageTally::default());
                    1
                }
                Err(absent) => {
                    first.pages = self.ledger.leave_out(absent);
                    1
                }
            };
            mappings = &mut mappings[length..];
        }
        Ok(())
    }

    pub(super) fn into_totals(self) -> WalkTotals {
        WalkTotals {
            longest: self.space.longest(),
            has_believed_bits: self.census.is_doubtful(),
            ledger: self.ledger,
        }
    }

    /// Returns true if the mapping has page-table entries to count, or the reason why the mapping
    /// cannot be read.
    fn is_read(&self, mapping: &Mapping) -> Reading<bool> {
        if mapping.range.end > KERNEL_HALF || self.hugetlb.holds(mapping)? {
            return Ok(false);
        }
        if !self.space.can_scan() && mapping.size() > TOO_LARGE {
            let why = "too large to read page by page before Linux 6.7: ask for --full";
            return Err(Absent::NotCollected(why.into()));
        }
        Ok(true)
    }

    /// Reads the first mapping, and those that follow it so closely that one read covers them.
    /// Returns the number of mappings that were read.
    fn walk_span(&mut self, mappings: &mut [Mapping]) -> Result<usize, ProcError> {
        let length = 1 + mappings.windows(2).take_while(|pair| self.joins(pair)).count();
        let mut open = &mut mappings[..length];
        let (mut at, end) = (open[0].range.start, open[length - 1].range.end);
        while at < end {
            let chunk_end = (at + 1).next_multiple_of(self.space.chunk()).min(end);
            let words =
                self.space.read(AddrRange { start: at, end: chunk_end }, &mut self.words)?;
            self.census.count(&mut self.space, open, at, words)?;
            let is_empty = are_empty(words);
            at += self.space.page_size().pages(words.len() as u64).0;
            if is_empty {
                at = self.space.next_populated(AddrRange { start: at, end })?;
            }
            open = self.close(open, at);
        }
        // Also fill in mappings with an empty range: the loop does not reach them.
        self.close(open, u64::MAX);
        Ok(length)
    }

    /// Returns true if one read covers both mappings of a pair, because the gap between them is
    /// small. Mappings that moved while they were listed are out of order.
    fn joins(&self, pair: &[Mapping]) -> bool {
        let gap = AddrRange { start: pair[0].range.end, end: pair[1].range.start };
        gap.start <= gap.end
            && gap.len() <= self.space.page_size().pages(BRIDGE)
            && self.is_read(&pair[1]) == Ok(true)
    }

    /// Fills in the mappings that end at `at` or before, and returns the others.
    fn close<'m>(&mut self, mappings: &'m mut [Mapping], at: u64) -> &'m mut [Mapping] {
        let done = mappings.iter().take_while(|mapping| mapping.range.end <= at).count();
        let (done, rest) = mappings.split_at_mut(done);
        for mapping in done {
            mapping.pages = self.ledger.enter(&self.census.close(mapping));
        }
        rest
    }
}

/// Counts of a walk.
#[derive(Debug)]
pub(super) struct WalkTotals {
    /// Duration of the longest single system call.
    longest: Duration,
    /// True if exclusive bits of huge pages were used without a check.
    has_believed_bits: bool,
    ledger: TallyLedger,
}

impl WalkTotals {
    /// Adds the counts of a walk over other mappings of the same process.
    pub(super) fn merge(&mut self, other: WalkTotals) {
        self.note_longest(other.longest);
        self.has_believed_bits |= other.has_believed_bits;
        self.ledger.merge(other.ledger);
    }

    /// Takes the longest system call of another walk into account.
    pub(super) fn note_longest(&mut self, longest: Duration) {
        self.longest = self.longest.max(longest);
    }

    /// Returns the duration of the longest single system call.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns true if exclusive bits were used that may be wrong. Only a process related by fork
    /// can share a part of a huge page, and such a process shares other anonymous pages, too.
    pub(super) fn is_doubtful(&self) -> bool {
        self.has_believed_bits && self.ledger.shares_anonymous()
    }

    /// Totals of the walk.
    pub(super) fn finish(self) -> PageWalk {
        let doubt = self.is_doubtful().then(|| {
            Absent::NotPermitted(
                "CAP_SYS_ADMIN, to see which parts of huge pages are shared".into(),
            )
        });
        let longest_hold_ns = nanoseconds(self.longest);
        PageWalk { longest_hold_ns, total: self.ledger.total(), doubt }
    }
}

/// The size of a huge page that one PMD entry maps, or `None` if the kernel has no huge pages.
pub(crate) fn huge_size() -> Option<u64> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
    text.trim().parse().ok().filter(|size: &u64| size.is_power_of_two())
}
