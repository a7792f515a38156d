//! State of every page of a process, as runs of equal pages.
//!
//! Two methods exist, and tests compare their results. `PAGEMAP_SCAN` returns runs and skips empty
//! ranges. `pagemap` has a word per page, takes half the time for many pages, and shows neither the
//! zero page nor huge entries (page-table entries that map a huge page). So usually the words are
//! read, and scans provide the missing data. With CAP_SYS_ADMIN the data of page frames is added:
//! the number of mappings of each frame, merged pages, and sizes of folios.

mod detail;
mod runs;

use std::time::Instant;

use pagewise_model::page_map::{
    MappedPages, PageMap, PageMapKind, PageRuns, PageState, PageTableWay,
};
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Backing, Bytes, Mapping, PageSize, Reading, Sharing};
use pagewise_sys::pagemap_scan::{Categories, ScanRegion, ScanRequest};
use pagewise_sys::probe::{Features, tracks_soft_dirty};

use self::detail::Detail;
use self::runs::RunCollector;
use crate::pages::Pace;
use crate::pages::entry::{self, EntryState, Word, are_empty, is_soft_dirty};
use crate::pages::hugetlb::Hugetlb;
use crate::pages::space::PageTables;
use crate::pages::walk;
use crate::{ProcError, ProcRoot};

/// Upper bound of user addresses on every 64-bit machine. `[vsyscall]` lies above it.
const KERNEL_HALF: u64 = 1 << 63;

/// Parameters of the page scan.
#[derive(Clone, Copy, Debug)]
pub struct PageMapRequest {
    /// Kernel interface to use. Without `PAGEMAP_SCAN` in the kernel, `pagemap` is used.
    pub way: PageTableWay,
    /// True to read the data of each page frame as well.
    pub detail: bool,
    /// Pace of the reading.
    pub pace: Pace,
}

/// Reads the pages of `mappings`, or of those parts of them that lie in `within`.
///
/// # Errors
/// [`ProcError::NotPermitted`] where we may not trace the process, [`ProcError::NoSuchProcess`]
/// where it is gone.
///
/// # Complexity
/// A scan takes 6 ns for each populated page and no time for holes. Reading `pagemap` or frame data
/// can take several times as long.
pub fn read(
    root: &ProcRoot,
    process: Process,
    mappings: Vec<Mapping>,
    within: Option<AddrRange>,
    page_size: PageSize,
    look: &PageMapRequest,
) -> Result<PageMap, ProcError> {
    let begin = Instant::now();
    let features = Features::detect();
    let way = if features.pagemap_scan { look.way } else { PageTableWay::Pagemap };
    let features = Features { pagemap_scan: way != PageTableWay::Pagemap, ..features };
    let soft_dirty = soft_dirty();
    let space = PageTables::open(&features, root, process.pid, page_size, &look.pace)?;
    let mut reader = PageReader {
        words: space.chunk_words(),
        space,
        hugetlb: Hugetlb::new(root, process.pid, page_size),
        guards: way == PageTableWay::Scan && pagewise_sys::probe::scans_guards(),
        huge_size: walk::huge_size().filter(|_| way == PageTableWay::Both),
        soft_dirty: soft_dirty.is_ok(),
        read: NOTHING,
        detail: if look.detail { Detail::open(root.path(), features.frames) } else { None },
    };
    let frames = reader.frames(look.detail);
    let mut gaps = Vec::new();
    let mut all = Vec::new();
    let ends = ends_of_neighbors(&mappings, page_size);
    for (mapping, neighbors_end) in mappings.into_iter().zip(ends) {
        let range = within.map_or(Some(mapping.range), |within| mapping.range.intersection(within));
        let Some(range) = range.filter(|range| range.end <= KERNEL_HALF) else { continue };
        if reader.hugetlb.holds(&mapping) == Ok(true) {
            let why = Absent::NotSupported("memory of the huge TLB pool: RES leaves it out".into());
            gaps.push(pagewise_model::machine::Gap { what: mapping.name.clone(), why });
            continue;
        }
        let runs = match way {
            PageTableWay::Scan => reader.scan(&mapping, range)?,
            PageTableWay::Both | PageTableWay::Pagemap => {
                reader.runs_from_words(&mapping, range, neighbors_end)?
            }
        };
        let runs = reader.refine(runs)?;
        all.push(MappedPages { mapping, runs });
    }
    Ok(PageMap {
        process,
        page_size,
        way,
        frames,
        soft_dirty,
        mappings: all,
        took_ns: nanoseconds(begin.elapsed()),
        longest_hold_ns: nanoseconds(reader.space.longest()),
        gaps,
    })
}

fn soft_dirty() -> Reading<()> {
    if tracks_soft_dirty() {
        Ok(())
    } else {
        Err(Absent::NotSupported("this kernel does not track soft-dirty pages".into()))
    }
}

struct PageReader {
    space: PageTables,
    hugetlb: Hugetlb,
    /// True if a scan distinguishes guard regions from swap.
    guards: bool,
    /// Size of a huge page in bytes, if scans must find huge pages.
    huge_size: Option<u64>,
    soft_dirty: bool,
    words: Vec<Word>,
    /// Address range whose words are at the beginning of `words`.
    read: AddrRange,
    detail: Option<Detail>,
}

const NOTHING: AddrRange = AddrRange { start: 0, end: 0 };

/// Returns, for each mapping, the end address of its group. Gaps between the mappings of a group
/// are so small that one read across a gap is cheaper than two reads.
fn ends_of_neighbors(mappings: &[Mapping], page_size: PageSize) -> Vec<u64> {
    let bridge = page_size.pages(walk::BRIDGE).0;
    let mut ends: Vec<u64> = mappings.iter().map(|mapping| mapping.range.end).collect();
    for at in (1..mappings.len()).rev() {
        let (start, before) = (mappings[at].range.start, mappings[at - 1].range.end);
        if start.checked_sub(before).is_some_and(|gap| gap <= bridge) && start < KERNEL_HALF {
            ends[at - 1] = ends[at].min(KERNEL_HALF);
        }
    }
    ends
}

impl PageReader {
    fn frames(&self, wanted: bool) -> Reading<()> {
        match &self.detail {
            _ if !wanted => Err(Absent::NotCollected("ask for --detail".into())),
            Some(detail) if detail.sees_frames() => Ok(()),
            _ => Err(Absent::NotPermitted("CAP_SYS_ADMIN".into())),
        }
    }

    /// The pages of a mapping by `PAGEMAP_SCAN`.
    fn scan(&mut self, mapping: &Mapping, range: AddrRange) -> Result<PageRuns, ProcError> {
        let mut report =
            Categories::PRESENT | Categories::FILE | Categories::PFNZERO | Categories::HUGE;
        report = report | Categories::SWAPPED | Categories::SOFT_DIRTY;
        report = report | Categories::WPALLOWED | Categories::WRITTEN;
        if self.guards {
            report = report | Categories::GUARD;
        }
        let request = ScanRequest {
            any_of: Categories::PRESENT | Categories::SWAPPED,
            report,
            ..ScanRequest::default()
        };
        let mut runs = RunCollector::over(range);
        let tracks = self.soft_dirty;
        self.space.each_region(range, &request, |region: &ScanRegion| {
            let state = scanned(mapping, region.categories, tracks);
            runs.put(AddrRange { start: region.start, end: region.end }, state);
        })?;
        Ok(runs.finish())
    }

    /// Returns the pages of a mapping from the words of `pagemap`, and from scans for the data that
    /// words lack. Words are read up to `neighbors_end`, and kept for the mappings that follow.
    fn runs_from_words(
        &mut self,
        mapping: &Mapping,
        range: AddrRange,
        neighbors_end: u64,
    ) -> Result<PageRuns, ProcError> {
        let mut runs = RunCollector::over(range);
        let most = self.space.page_size().pages(self.words.len() as u64).0;
        let mut words = std::mem::take(&mut self.words);
        let mut at = range.start;
        while at < range.end {
            // Parts are aligned so that no huge page is split between two parts.
            let part_end = (at / most + 1).saturating_mul(most);
            if !(self.read.start..self.read.end).contains(&at) {
                let end = part_end.min(neighbors_end.max(range.end));
                self.read = NOTHING;
                let read = self.space.read(AddrRange { start: at, end }, &mut words)?;
                let length = self.space.page_size().pages(read.len() as u64).0;
                self.read = AddrRange { start: at, end: at + length };
            }
            let (page_size, start) = (self.space.page_size(), self.read.start);
            let index = |address: u64| {
                usize::try_from(page_size.count(Bytes(address - start))).unwrap_or(usize::MAX)
            };
            let end = range.end.min(part_end).min(self.read.end);
            let read = &words[index(at)..index(end)];
            let is_empty = are_empty(read);
            self.put_words(mapping, at, read, &mut runs)?;
            at += self.space.page_size().pages(read.len() as u64).0;
            if is_empty {
                at = self.space.next_populated(AddrRange { start: at, end: range.end })?;
            }
        }
        self.words = words;
        Ok(runs.finish())
    }

    fn put_words(
        &mut self,
        mapping: &Mapping,
        mut at: u64,
        words: &[Word],
        runs: &mut RunCollector,
    ) -> Result<(), ProcError> {
        let tracks = self.soft_dirty;
        for run in entry::runs(words) {
            let alike = |a: &Word, b: &Word| is_soft_dirty(a) == is_soft_dirty(b) || !tracks;
            for words in run.words.chunk_by(alike) {
                let length = self.space.page_size().pages(words.len() as u64).0;
                let soft_dirty = tracks.then(|| is_soft_dirty(&words[0]));
                let state = worded(mapping, run.state, soft_dirty);
                let range = AddrRange { start: at, end: at + length };
                match self.huge_size {
                    Some(huge_size) if state.kind.is_resident() => {
                        self.put_scanned(range, state, huge_size, runs)?;
                    }
                    _ => runs.put(range, state),
                }
                at += length;
            }
        }
        Ok(())
    }

    /// Adds resident pages with equal words. Scans identify the pages that huge entries map, and
    /// the zero page.
    fn put_scanned(
        &mut self,
        range: AddrRange,
        state: PageState,
        huge_size: u64,
        runs: &mut RunCollector,
    ) -> Result<(), ProcError> {
        // In `pagemap`, the zero page looks like an anonymous page that is not exclusive.
        if state.kind == PageMapKind::Anonymous && state.exclusive == Some(false) {
            return self.put_shared_anonymous(range, state, runs);
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / huge_size + 1).saturating_mul(huge_size));
            let is_whole = end - at == huge_size;
            let huge = is_whole && self.space.is_huge(at)?;
            runs.put(AddrRange { start: at, end }, PageState { huge: Some(huge), ..state });
            at = end;
        }
        Ok(())
    }

    fn put_shared_anonymous(
        &mut self,
        range: AddrRange,
        state: PageState,
        runs: &mut RunCollector,
    ) -> Result<(), ProcError> {
        let request = ScanRequest {
            all_of: Categories::PRESENT,
            report: Categories::PFNZERO | Categories::HUGE,
            ..ScanRequest::default()
        };
        self.space.each_region(range, &request, |region: &ScanRegion| {
            let huge = Some(region.categories.contains(Categories::HUGE));
            let is_zero = region.categories.contains(Categories::PFNZERO);
            let zero = PageState { kind: PageMapKind::Zero, huge, ..PageState::default() };
            let state = if is_zero { zero } else { PageState { huge, ..state } };
            runs.put(AddrRange { start: region.start, end: region.end }, state);
        })
    }

    /// Adds the data of the frames behind resident pages.
    fn refine(&mut self, runs: PageRuns) -> Result<PageRuns, ProcError> {
        let Some(detail) = &mut self.detail else { return Ok(runs) };
        self.read = NOTHING;
        let mut refined = RunCollector::over(runs.range());
        for run in runs.iter() {
            if !run.state.kind.is_resident() {
                refined.put(run.range, run.state);
                continue;
            }
            let mut at = run.range.start;
            while at < run.range.end {
                let most = self.space.page_size().pages(self.words.len() as u64).0;
                let end = run.range.end.min(at.saturating_add(most));
                let words = self.space.read(AddrRange { start: at, end }, &mut self.words)?;
                let page = self.space.page_size().bytes();
                for state in detail.states(run.state, words) {
                    refined.put(AddrRange { start: at, end: at + page }, state);
                    at += page;
                }
            }
        }
        Ok(refined.finish())
    }
}

/// Kind of a present page, by the backing of its mapping: the file bit alone does not distinguish
/// tmpfs from files.
fn present(mapping: &Mapping, file: bool) -> PageMapKind {
    match (mapping.backing(), mapping.sharing) {
        (Backing::Anonymous, _) => PageMapKind::Anonymous,
        (Backing::Shmem, Sharing::Shared) => PageMapKind::Shmem,
        (Backing::Shmem, Sharing::Private | Sharing::Unknown) if file => PageMapKind::Shmem,
        _ if file => PageMapKind::File,
        (_, Sharing::Private) => PageMapKind::Anonymous,
        _ => PageMapKind::File,
    }
}

fn scanned(mapping: &Mapping, categories: Categories, tracks_soft_dirty: bool) -> PageState {
    let has = |category| categories.contains(category);
    let kind = if has(Categories::PFNZERO) {
        PageMapKind::Zero
    } else if has(Categories::PRESENT) {
        present(mapping, has(Categories::FILE))
    } else if has(Categories::GUARD) {
        PageMapKind::Guard
    } else {
        PageMapKind::Swapped
    };
    let mapped = has(Categories::PRESENT);
    PageState {
        kind,
        huge: mapped.then(|| has(Categories::HUGE)),
        soft_dirty: (mapped && tracks_soft_dirty).then(|| has(Categories::SOFT_DIRTY)),
        written: (mapped && has(Categories::WPALLOWED)).then(|| has(Categories::WRITTEN)),
        ..PageState::default()
    }
}

fn worded(mapping: &Mapping, state: EntryState, soft_dirty: Option<bool>) -> PageState {
    let (kind, exclusive) = match state {
        EntryState::Empty => (PageMapKind::Untouched, None),
        EntryState::Present { file, exclusive } => (present(mapping, file), Some(exclusive)),
        EntryState::Swapped => (PageMapKind::Swapped, None),
        EntryState::Guard => (PageMapKind::Guard, None),
    };
    let soft_dirty = soft_dirty.filter(|_| exclusive.is_some());
    PageState { kind, exclusive, soft_dirty, ..PageState::default() }
}
