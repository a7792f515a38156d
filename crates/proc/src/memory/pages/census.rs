//! Counts the pages of one chunk of address space into the tallies of the mappings in it. A page is
//! exclusive if only one page table maps it, and co-mapped otherwise.

use std::collections::VecDeque;

use pagewise_model::{AddrRange, Backing, Bytes, Mapping, PageSize, Sharing};

use super::entry::{EntryState, StateRun, Word, frame, is_exclusive, runs};
use super::frames::{FrameLookup, FrameReader};
use super::space::PageTables;
use super::tally::{Ground, PageOrigin, PageTally};
use crate::ProcError;

/// A page whose mappers are to be counted.
#[derive(Clone, Copy, Debug)]
struct SharedPage {
    slot: usize,
    kind: PageOrigin,
    /// True if the page was already counted as exclusive.
    exclusive: bool,
}

/// A mapping that is being counted.
#[derive(Debug)]
struct CensusMapping {
    ground: Ground,
    tally: PageTally,
}

/// The words of `pagemap` for one part of a mapping.
#[derive(Clone, Copy, Debug)]
struct MappingWords<'w> {
    slot: usize,
    start: u64,
    words: &'w [Word],
}

/// The mappings being counted, in order, and the frame lookups that are not done yet.
#[derive(Debug)]
pub(super) struct Census {
    page_size: PageSize,
    huge_size: Option<u64>,
    swap_in_use: bool,
    frames: Option<FrameReader>,
    trust: Trust,
    doubtful: bool,
    asked: Vec<FrameLookup<SharedPage>>,
    open: VecDeque<CensusMapping>,
}

/// Treatment of the exclusive bit of huge anonymous pages.
///
/// Most kernels report the bit of the first base page for all pages of a huge page. This bit can be
/// wrong after a `fork`. If a parent or child process writes to a base page, the kernel splits only
/// that process's mapping of the huge page. One entry of the target still maps the whole huge page,
/// but the other process now shares only a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The bit is used. It is correct if the process shares no anonymous memory.
    Bits,
    /// The mappings of every base page are counted, which takes 0.1 us for each page.
    Counts,
}

impl Census {
    pub(super) fn new(
        page_size: PageSize,
        huge_size: Option<u64>,
        frames: Option<FrameReader>,
        trust: Trust,
    ) -> Census {
        Census {
            page_size,
            huge_size,
            swap_in_use: pagewise_sys::system::swap_in_use() > 0,
            frames,
            trust,
            doubtful: false,
            asked: Vec::new(),
            open: VecDeque::new(),
        }
    }

    /// Counts the words that were read at `start` into the tallies of the mappings that lie there.
    /// The first element of `mappings` is the first mapping that [`Census::close`] has not
    /// finished.
    pub(super) fn count(
        &mut self,
        space: &mut PageTables,
        mappings: &[Mapping],
        start: u64,
        words: &[Word],
    ) -> Result<(), ProcError> {
        let here = AddrRange { start, end: start + self.page_size.pages(words.len() as u64).0 };
        for (slot, mapping) in mappings.iter().enumerate() {
            if mapping.range.start >= here.end {
                break;
            }
            self.open_up_to(slot, mapping);
            if let Some(part) = mapping.range.intersection(here) {
                let words = &words[self.index(part.start - start)..self.index(part.end - start)];
                self.count_part(space, MappingWords { slot, start: part.start, words })?;
            }
        }
        self.settle();
        Ok(())
    }

    /// Finishes the first unfinished mapping, and returns its tally.
    pub(super) fn close(&mut self, mapping: &Mapping) -> PageTally {
        self.open_up_to(0, mapping);
        let mut tally = self.open.pop_front().map(|open| open.tally).unwrap_or_default();
        let is_full = tally.breakdown.resident() >= mapping.size();
        tally.swap_hidden &= !(is_full && mapping.sharing == Sharing::Shared);
        tally
    }

    fn open_up_to(&mut self, slot: usize, mapping: &Mapping) {
        if slot == self.open.len() {
            let backing = mapping.backing();
            self.open.push_back(CensusMapping {
                ground: Ground::from_backing(backing, mapping.sharing),
                tally: PageTally::new(self.swap_in_use && backing == Backing::Shmem),
            });
        }
    }

    fn index(&self, bytes: u64) -> usize {
        usize::try_from(self.page_size.count(Bytes(bytes))).unwrap_or(usize::MAX)
    }

    fn bytes(&self, words: &[Word]) -> Bytes {
        self.page_size.pages(words.len() as u64)
    }

    fn count_part(
        &mut self,
        space: &mut PageTables,
        part: MappingWords<'_>,
    ) -> Result<(), ProcError> {
        let mut at = part.start;
        // Range of resident pages of one kind without a hole. A page-table entry of a huge page (a
        // huge entry) can only lie in such a range.
        let mut solid = (None, AddrRange { start: at, end: at });
        for run in runs(part.words) {
            let here = AddrRange { start: at, end: at + self.bytes(run.words).0 };
            let kind = self.count_run(space, part.slot, here, run)?;
            if kind == solid.0 {
                solid.1.end = here.end;
            } else {
                self.count_huge(space, part, solid)?;
                solid = (kind, here);
            }
            at = here.end;
        }
        self.count_huge(space, part, solid)
    }

    /// Counts a run, and returns the kind of its pages if they are resident.
    fn count_run(
        &mut self,
        space: &mut PageTables,
        slot: usize,
        here: AddrRange,
        run: StateRun<'_>,
    ) -> Result<Option<PageOrigin>, ProcError> {
        let bytes = here.len();
        let CensusMapping { ground, tally } = &mut self.open[slot];
        match run.state {
            EntryState::Empty => {}
            // If no swap is in use, a swap entry is a marker: the first kernels with guard regions
            // had no bit for them, and userfaultfd leaves markers.
            EntryState::Swapped if !self.swap_in_use => {}
            EntryState::Swapped => tally.breakdown.swapped += bytes,
            EntryState::Guard => tally.breakdown.guard += bytes,
            EntryState::Present { file, exclusive } => {
                let Some(kind) = ground.kind(file, exclusive) else { return Ok(None) };
                if exclusive {
                    tally.add_exclusive(kind, bytes);
                } else if self.frames.is_some() {
                    self.ask(run.words, SharedPage { slot, kind, exclusive: false });
                } else {
                    guess_co_mapped(space, tally, *ground, kind, here)?;
                }
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    fn ask(&mut self, words: &[Word], claim: SharedPage) {
        self.asked
            .extend(words.iter().map(|word| FrameLookup { frame: frame(word), about: claim }));
    }

    /// Counts every aligned block of `solid` that a huge entry maps.
    fn count_huge(
        &mut self,
        space: &mut PageTables,
        part: MappingWords<'_>,
        (kind, solid): (Option<PageOrigin>, AddrRange),
    ) -> Result<(), ProcError> {
        let (Some(kind), Some(size)) = (kind, self.huge_size) else { return Ok(()) };
        let mut start = solid.start.next_multiple_of(size);
        while start + size <= solid.end {
            let words = &part.words[self.index(start - part.start)..][..self.index(size)];
            let may_be_huge = self.may_be_huge(kind, words);
            if may_be_huge && (!space.can_scan() || space.is_huge(start)?) {
                self.add_huge(part.slot, kind, words, space.can_scan());
            }
            start += size;
        }
        Ok(())
    }

    /// Returns true if one huge entry may map all these pages, and the result affects a count. If
    /// frames are visible, the first frame must be aligned. It must also be mapped, unlike the
    /// frame of the huge zero page.
    fn may_be_huge(&mut self, kind: PageOrigin, words: &[Word]) -> bool {
        let Some(frames) = &mut self.frames else { return kind == PageOrigin::Anonymous };
        let first = frame(&words[0]);
        let matters = kind == PageOrigin::Anonymous || is_exclusive(&words[0]);
        matters && first.is_multiple_of(words.len() as u64) && frames.count_one(first) > 0
    }

    fn add_huge(&mut self, slot: usize, kind: PageOrigin, words: &[Word], is_sure: bool) {
        let size = self.bytes(words);
        let tally = &mut self.open[slot].tally;
        if kind == PageOrigin::Anonymous {
            tally.huge_hidden |= !is_sure;
            tally.anon_huge += size;
        }
        let is_counted = kind == PageOrigin::File || self.trust == Trust::Counts;
        let exclusive = words.iter().filter(|word| is_exclusive(word)).count();
        match self.frames {
            // Without an exclusive bit, `count_run` has already requested the number of mappings of
            // each base page.
            Some(_) if exclusive == 0 => {}
            // Linux 6.11 to 6.14 report a separate bit for each base page.
            _ if (1..words.len()).contains(&exclusive) => {}
            Some(_) if is_counted => self.ask(words, SharedPage { slot, kind, exclusive: true }),
            _ => self.doubtful = true,
        }
    }

    /// Returns true if exclusive bits of huge pages were used without a check.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Looks up the number of mappings of the pages in `asked`.
    fn settle(&mut self) {
        let Some(frames) = &mut self.frames else { return };
        let (open, page_size) = (&mut self.open, self.page_size);
        frames.count(&mut self.asked, |claim, mappers| {
            let CensusMapping { ground, tally } = &mut open[claim.slot];
            if claim.exclusive {
                tally.correct(claim.kind, page_size, mappers);
            } else {
                tally.add_counted(*ground, claim.kind, page_size, mappers);
            }
        });
    }
}

/// Counts pages that are not exclusive and whose frames are hidden. The PSS of these pages is
/// unknown. In anonymous memory they may be the zero page.
fn guess_co_mapped(
    space: &mut PageTables,
    tally: &mut PageTally,
    ground: Ground,
    kind: PageOrigin,
    here: AddrRange,
) -> Result<(), ProcError> {
    let zero = match ground {
        Ground::Anonymous if space.can_scan() => Bytes(space.zero_bytes(here)?),
        Ground::Anonymous => {
            tally.undecided = true;
            return Ok(());
        }
        _ => Bytes::ZERO,
    };
    let co_mapped = here.len() - zero;
    tally.breakdown.zero += zero;
    tally.add_co_mapped(kind, co_mapped);
    tally.pss_hidden |= !co_mapped.is_zero();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use pagewise_model::mapping::Device;
    use pagewise_model::{Absent, Breakdown, Pid, Prot};
    use pagewise_skip::{Lack, skip};
    use pagewise_sys::probe::Features;

    use super::super::{Pace, read_with, walk};
    use super::*;
    use crate::ProcRoot;

    const PAGE: PageSize = PageSize::new(4096).unwrap();
    /// `PRESENT` and `EXCLUSIVE` of `entry`, and the first frame of the huge page.
    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;
    const FRAME: u64 = 512;

    fn words(values: impl Iterator<Item = u64>) -> Vec<u8> {
        values.flat_map(u64::to_ne_bytes).collect()
    }

    /// Counts one huge page of `size` bytes at the address `size`. The functions return the
    /// exclusive bit and the number of mappings of a base page by its index.
    fn read_huge(size: u64, is_exclusive: fn(u64) -> bool, mappers: fn(u64) -> u64) -> Breakdown {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| fs::write(folder.path().join(name), bytes);
        let pages = size / PAGE.bytes();
        let entry =
            |page: u64| PRESENT | (FRAME + page) | if is_exclusive(page) { EXCLUSIVE } else { 0 };
        let before = std::iter::repeat_n(0, usize::try_from(pages).unwrap());
        fs::create_dir(folder.path().join("7")).unwrap();
        write("7/pagemap", words(before.chain((0..pages).map(entry)))).unwrap();
        let counts = (0..FRAME).map(|_| 0).chain((0..pages).map(mappers));
        write("kpagecount", words(counts)).unwrap();
        let mut mappings = [mapping(size)];
        let features = Features { pagemap_scan: false, frames: true };
        let root = ProcRoot::at(Path::new(folder.path()));
        read_with(&features, &root, Pid(7), &mut mappings, PAGE, &Pace::FAST).unwrap();
        mappings[0].pages.as_ref().unwrap().breakdown
    }

    fn mapping(size: u64) -> Mapping {
        Mapping {
            range: AddrRange { start: size, end: 2 * size },
            prot: Prot { read: true, write: true, exec: false },
            sharing: Sharing::Private,
            offset: 0,
            device: Device::default(),
            inode: 0,
            name: "".into(),
            on_tmpfs: false,
            smaps: Err(Absent::NotCollected("".into())),
            pages: Err(Absent::NotCollected("".into())),
        }
    }

    #[test]
    fn a_huge_page_that_is_shared_in_part_counts_once() {
        let Some(size) = walk::huge_size() else { return skip(&Lack::Machine("no huge pages")) };
        // Another process wrote to the first base page and shares the others. Linux 6.11 to 6.14
        // report a separate bit for each base page.
        let mappers = |page| if page == 0 { 1 } else { 2 };
        let pages = read_huge(size, |page| page == 0, mappers);
        assert_eq!(pages.resident(), Bytes(size));
        assert_eq!(pages.anon_exclusive, PAGE.pages(1));
        let alone = read_huge(size, |_| true, |_| 1);
        assert_eq!(alone.anon_exclusive, Bytes(size));
    }
}
