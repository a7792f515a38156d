//! State of each page of a process, as runs of pages with equal states.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::process::Process;
use crate::reading::plain;
use crate::{AddrRange, Bytes, Mapping, PageSize, Reading};

/// State of each page of some mappings.
///
/// Not atomic: pages can change while others are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMap {
    /// The process.
    pub process: Process,
    /// The base page size of the machine.
    pub page_size: PageSize,
    /// Interface by which the page tables were read.
    pub way: PageTableWay,
    /// `Ok` if the page frames were read too. Otherwise the fields that need page frames are
    /// absent.
    #[serde(with = "plain")]
    pub frames: Reading<()>,
    /// `Ok` if [`PageState::soft_dirty`] is valid on this kernel.
    #[serde(with = "plain")]
    pub soft_dirty: Reading<()>,
    /// The mappings whose pages were read, by address.
    pub mappings: Vec<MappedPages>,
    /// Duration of the reading in nanoseconds.
    pub took_ns: u64,
    /// Longest duration of a single system call that may have held the process's mmap lock, in
    /// nanoseconds.
    pub longest_hold_ns: u64,
    /// Parts that could not be read.
    pub gaps: Vec<Gap>,
}

/// Interface by which the page tables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageTableWay {
    /// The words of `pagemap`, and `PAGEMAP_SCAN` for the properties that `pagemap` lacks: huge
    /// page-table entries and the zero page.
    Both,
    /// `PAGEMAP_SCAN` alone.
    Scan,
    /// The words of `/proc/<pid>/pagemap` alone.
    Pagemap,
}

impl PageTableWay {
    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            PageTableWay::Both => "pagemap and PAGEMAP_SCAN",
            PageTableWay::Scan => "PAGEMAP_SCAN",
            PageTableWay::Pagemap => "pagemap",
        }
    }
}

/// The pages of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedPages {
    /// The mapping, without its counters.
    pub mapping: Mapping,
    /// The pages of the mapping, or the requested part of them, in order. Runs have no gaps or
    /// overlaps, and adjacent runs differ in their states.
    pub runs: PageRuns,
}

/// Consecutive pages with equal states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Address range.
    pub range: AddrRange,
    /// State of each page.
    pub state: PageState,
}

/// Adjacent runs of pages, stored in 8 bytes each: a process of 8 GiB can have two million runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRuns {
    start: u64,
    end: u64,
    /// One word for each run: the length in bytes in the lower bits, the index of the state in the
    /// upper bits.
    runs: Vec<u64>,
    states: Vec<PageState>,
    /// Index of each state in `states`; empty if there are at most `FEW_STATES` states.
    #[serde(skip)]
    indices: HashMap<PageState, usize>,
}

impl PageRuns {
    /// Number of bits for the length of a run. User addresses have 47 bits, or 56 bits with five
    /// levels of page tables; a longer run is stored as several runs.
    const LENGTH_BITS: u32 = 48;
    const MAX_LENGTH: u64 = (1 << PageRuns::LENGTH_BITS) - 1;
    const MAX_STATES: usize = 1 << (u64::BITS - PageRuns::LENGTH_BITS);
    const FEW_STATES: usize = 8;
    /// Number of indices that are reserved for states without `mappers` and `folio`. There are 7 x
    /// 3^5 states without them: 7 kinds, and 5 flags that are true, false or `None`.
    const RESERVED_STATES: usize = 2048;

    /// Creates an empty list of runs that begins at the address `start`.
    pub fn new(start: u64) -> PageRuns {
        PageRuns { start, end: start, ..PageRuns::default() }
    }

    /// Appends `length` bytes of pages with the same state. When only reserved indices are left, a
    /// new state is stored without `mappers` and `folio`.
    pub fn push(&mut self, length: u64, state: PageState) {
        if length == 0 {
            return;
        }
        let unreserved = PageRuns::MAX_STATES - PageRuns::RESERVED_STATES;
        let index = self.index_of(state, unreserved).or_else(|| {
            let reduced = PageState { mappers: None, folio: None, ..state };
            self.index_of(reduced, PageRuns::MAX_STATES)
        });
        // The reserved indices suffice for all states without `mappers` and `folio`.
        let index = index.unwrap_or_default();
        self.end = self.end.saturating_add(length);
        let last = self.runs.last().copied().map(PageRuns::unpack);
        let mut rest = length;
        if let Some((before, _)) = last.filter(|(_, state)| *state == index) {
            self.runs.pop();
            rest = rest.saturating_add(before);
        }
        while rest > 0 {
            let part = rest.min(PageRuns::MAX_LENGTH);
            self.runs.push(PageRuns::pack(part, index));
            rest -= part;
        }
    }

    fn pack(length: u64, index: usize) -> u64 {
        length | (index as u64) << PageRuns::LENGTH_BITS
    }

    fn unpack(run: u64) -> (u64, usize) {
        let index = usize::try_from(run >> PageRuns::LENGTH_BITS).unwrap_or(usize::MAX);
        (run & PageRuns::MAX_LENGTH, index)
    }

    /// Index of a state. A new state is added if fewer than `limit` states are stored; otherwise
    /// the result is `None`. The states of the last two runs are compared first, because adjacent
    /// runs often alternate between two states.
    fn index_of(&mut self, state: PageState, limit: usize) -> Option<usize> {
        let mut recent = self.runs.iter().rev().take(2).map(|run| PageRuns::unpack(*run).1);
        let recent = recent.find(|index| self.states.get(*index) == Some(&state));
        let known = || match self.indices.is_empty() {
            true => self.states.iter().position(|known| *known == state),
            false => self.indices.get(&state).copied(),
        };
        if let Some(index) = recent.or_else(known) {
            return Some(index);
        }
        let index = self.states.len();
        if index >= limit {
            return None;
        }
        self.states.push(state);
        if index == PageRuns::FEW_STATES {
            self.indices.extend(self.states.iter().copied().zip(0..));
        } else if index > PageRuns::FEW_STATES {
            self.indices.insert(state, index);
        }
        Some(index)
    }

    /// Address range of all runs.
    pub const fn range(&self) -> AddrRange {
        AddrRange { start: self.start, end: self.end }
    }

    /// Iterates over the runs, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = PageRun> + Clone {
        let mut start = self.start;
        self.runs.iter().map(move |run| {
            let (length, index) = PageRuns::unpack(*run);
            let range = AddrRange { start, end: start.saturating_add(length) };
            start = range.end;
            PageRun { range, state: self.states.get(index).copied().unwrap_or_default() }
        })
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// True if the list contains no run.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Releases the unused capacity of the list.
    pub fn shrink_to_fit(&mut self) {
        self.runs.shrink_to_fit();
        self.states.shrink_to_fit();
        self.indices = HashMap::new();
    }
}

/// State of a page. A field is `None` if the interface that was read does not provide it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageState {
    /// Kind of the page.
    pub kind: PageMapKind,
    /// True if a huge page-table entry maps the page.
    pub huge: Option<bool>,
    /// True if the page was written since its soft-dirty bit was cleared, or since it was mapped.
    pub soft_dirty: Option<bool>,
    /// True if the page was written since it was last write-protected; `None` if the process does
    /// not track writes (asynchronous userfaultfd).
    pub written: Option<bool>,
    /// True if no other page table maps the page.
    pub exclusive: Option<bool>,
    /// Number of page tables that map the page.
    pub mappers: Option<u32>,
    /// True if KSM merged the page with equal pages of this or other processes.
    pub ksm: Option<bool>,
    /// Number of base pages of the folio that the page belongs to.
    pub folio: Option<u32>,
}

/// Kind of a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PageMapKind {
    /// Not present: the page was never accessed, or was discarded.
    #[default]
    Untouched,
    /// Anonymous memory.
    Anonymous,
    /// A page of a file.
    File,
    /// A page of tmpfs, named or not.
    Shmem,
    /// The kernel's zero page: the page was read and never written.
    Zero,
    /// Not present: in swap, or in migration between NUMA nodes.
    Swapped,
    /// Not present: a guard region (`MADV_GUARD_INSTALL`).
    Guard,
}

impl PageMapKind {
    /// All kinds of pages.
    pub const ALL: [PageMapKind; 7] = [
        PageMapKind::Untouched,
        PageMapKind::Anonymous,
        PageMapKind::File,
        PageMapKind::Shmem,
        PageMapKind::Zero,
        PageMapKind::Swapped,
        PageMapKind::Guard,
    ];

    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            PageMapKind::Untouched => "untouched",
            PageMapKind::Anonymous => "anonymous",
            PageMapKind::File => "file",
            PageMapKind::Shmem => "shmem",
            PageMapKind::Zero => "zero",
            PageMapKind::Swapped => "swapped",
            PageMapKind::Guard => "guard",
        }
    }

    /// True if RES includes the page.
    pub const fn is_resident(self) -> bool {
        matches!(self, PageMapKind::Anonymous | PageMapKind::File | PageMapKind::Shmem)
    }
}

/// Memory that a process accessed during an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedMemory {
    /// The process.
    pub process: Process,
    /// The mappings with all counters of `smaps`, which were read at the end of the interval.
    pub mappings: Vec<Mapping>,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Duration of clearing the referenced bits, in nanoseconds. During this time, the process
    /// could not map memory.
    pub clear_ns: u64,
    /// Duration of reading `smaps` in nanoseconds.
    pub read_ns: u64,
    /// Bytes written during the interval, one number for each mapping in order.
    #[serde(with = "plain")]
    pub written: Reading<Vec<Bytes>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_keep_lengths_and_states() {
        let mut runs = PageRuns::new(0x1000);
        let state = |kind| PageState { kind, ..PageState::default() };
        runs.push(0x1000, state(PageMapKind::File));
        runs.push(0x3000, state(PageMapKind::Zero));
        runs.push(0x2000, state(PageMapKind::Zero));
        runs.push(0x1000, state(PageMapKind::File));
        let found: Vec<_> = runs.iter().map(|run| (run.range.start, run.state.kind)).collect();
        let expected =
            [(0x1000, PageMapKind::File), (0x2000, PageMapKind::Zero), (0x7000, PageMapKind::File)];
        assert_eq!(found, expected);
        assert_eq!(runs.range(), AddrRange { start: 0x1000, end: 0x8000 });
        assert_eq!(runs.len(), 3);
    }

    #[test]
    fn states_beyond_the_table_are_stored_without_mappers_and_folio() {
        let mut runs = PageRuns::new(0);
        let states = u32::try_from(PageRuns::MAX_STATES).unwrap();
        for mappers in 0..states + 10 {
            let kind = PageMapKind::Anonymous;
            runs.push(1, PageState { kind, mappers: Some(mappers), ..PageState::default() });
        }
        let last = runs.iter().last().unwrap();
        assert_eq!(last.range.end, u64::from(states) + 10);
        assert_eq!((last.state.kind, last.state.mappers), (PageMapKind::Anonymous, None));
        let swapped = PageState { kind: PageMapKind::Swapped, ..PageState::default() };
        runs.push(1, PageState { folio: Some(1), ..swapped });
        assert_eq!(runs.iter().last().unwrap().state, swapped);
    }
}
