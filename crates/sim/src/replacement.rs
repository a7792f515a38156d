//! The kernel's page replacement, simulated for the pages of a stream of accesses: the simulation
//! counts the page faults that a lack of memory causes.
//!
//! In the model, one process has a fixed number of frames for itself. A page is reclaimed when a
//! frame is needed and no frame is free. A page that was written since its last fault must be
//! written back first. There is neither readahead nor a reserve of free frames, and the CPU's
//! accessed bits are examined only when a frame is needed.

mod clock;
mod generations;
mod lists;
mod lru;
mod two_lists;

use std::collections::HashMap;
use std::fmt::Debug;

use crate::{MemoryAccess, ReadWriteCounts, Unfit};

/// A page replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageReplacement {
    /// Reclaims the page that was used longest ago. A kernel cannot know this page; other policies
    /// approximate it.
    Lru,
    /// Clock, or second chance: the pages are in a ring, around which a hand moves. The hand
    /// reclaims a page that was not used since its last visit, and skips a page that was used.
    Clock,
    /// Linux's active and inactive lists. At the first scan that finds an inactive page used, the
    /// page stays inactive. At the second such scan, it is activated. Active pages become inactive
    /// when the active list is longer than the inactive list.
    TwoLists,
    /// Linux's active and inactive lists with one change: a page that should be activated is
    /// reclaimed instead.
    ActivateReclaimed,
    /// Generations, after Linux's MGLRU: used pages move to the youngest generation, and unused
    /// pages of the oldest generation are reclaimed.
    Generations,
}

impl PageReplacement {
    /// All page replacement policies.
    pub const ALL: [PageReplacement; 5] = [
        PageReplacement::Lru,
        PageReplacement::Clock,
        PageReplacement::TwoLists,
        PageReplacement::ActivateReclaimed,
        PageReplacement::Generations,
    ];

    /// Name of the policy.
    pub const fn name(self) -> &'static str {
        match self {
            PageReplacement::Lru => "LRU",
            PageReplacement::Clock => "clock",
            PageReplacement::TwoLists => "active/inactive",
            PageReplacement::ActivateReclaimed => "activate reclaimed",
            PageReplacement::Generations => "generations",
        }
    }

    fn begin(self) -> Box<dyn Reclaim> {
        match self {
            PageReplacement::Lru => Box::new(lru::Lru::new()),
            PageReplacement::Clock => Box::new(clock::Clock::new()),
            PageReplacement::TwoLists => Box::new(two_lists::TwoLists::new(true)),
            PageReplacement::ActivateReclaimed => Box::new(two_lists::TwoLists::new(false)),
            PageReplacement::Generations => Box::new(generations::Generations::new()),
        }
    }
}

/// Number of a frame, starting at 0.
type FrameNumber = usize;

/// Choice of frames to reclaim.
trait Reclaim: Debug + Send {
    /// Records a use of the page in a frame.
    fn used(&mut self, frame: FrameNumber);

    /// Records that a page was read into a frame and used. Frames are filled for the first time in
    /// ascending order.
    fn filled(&mut self, frame: FrameNumber);

    /// Removes the frame whose page is to be reclaimed, and returns it. Called only if all frames
    /// are filled.
    fn reclaim(&mut self) -> FrameNumber;
}

/// Returns the data of a frame, and adds default data if the frame is new.
fn at<T: Default>(notes: &mut Vec<T>, frame: FrameNumber) -> &mut T {
    if frame == notes.len() {
        notes.push(T::default());
    }
    &mut notes[frame]
}

/// Counts of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementCounts {
    /// Number of pages used for the first time: minor faults if the pages are anonymous.
    pub first: u64,
    /// Number of faults on pages that were reclaimed: major faults.
    pub back: ReadWriteCounts,
    /// Number of reclaimed pages that had to be written back first.
    pub written: u64,
}

/// Memory with a fixed number of frames.
#[derive(Debug)]
pub struct SimulatedMemory {
    /// The frame of each page that was ever used; `None` if the page was reclaimed.
    places: HashMap<u64, Option<FrameNumber>>,
    frames: Vec<FrameContent>,
    limit: usize,
    reclaim: Box<dyn Reclaim>,
    page_shift: u32,
    /// The page that was used last and its frame.
    last: Option<(u64, FrameNumber)>,
    counts: ReplacementCounts,
}

/// The page in a frame.
#[derive(Clone, Copy, Debug)]
struct FrameContent {
    page: u64,
    dirty: bool,
}

/// Maximum number of frames; no machine has more.
const MAX_FRAMES: usize = 1 << 28;

impl SimulatedMemory {
    /// Creates empty memory with a number of frames of a page size.
    ///
    /// # Errors
    /// Returns an error for 0 or too many frames, and for a page size that is not a power of two.
    pub fn new(
        frames: usize,
        page: u64,
        replacement: PageReplacement,
    ) -> Result<SimulatedMemory, Unfit> {
        if !page.is_power_of_two() {
            return Err(Unfit("pages must be a power of two bytes"));
        }
        if !(1..=MAX_FRAMES).contains(&frames) {
            return Err(Unfit("memory must have 1 to 256 M pages"));
        }
        Ok(SimulatedMemory {
            places: HashMap::new(),
            frames: Vec::new(),
            limit: frames,
            reclaim: replacement.begin(),
            page_shift: page.ilog2(),
            last: None,
            counts: ReplacementCounts::default(),
        })
    }

    /// Simulates accesses in their order.
    pub fn play(&mut self, block: &[MemoryAccess]) {
        for access in block {
            let (first, last) = access.blocks(self.page_shift);
            for page in first..=last {
                let frame = match self.last {
                    Some((used, frame)) if used == page => frame,
                    _ => self.touch(page, access.write),
                };
                self.frames[frame].dirty |= access.write;
                self.last = Some((page, frame));
            }
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> ReplacementCounts {
        self.counts
    }

    /// Returns the frame of a page. A page without a frame is read in first.
    fn touch(&mut self, page: u64, write: bool) -> FrameNumber {
        match self.places.get(&page) {
            Some(Some(frame)) => {
                self.reclaim.used(*frame);
                return *frame;
            }
            Some(None) => self.counts.back.add(write),
            None => self.counts.first += 1,
        }
        let frame = self.make_room(page);
        self.places.insert(page, Some(frame));
        self.reclaim.filled(frame);
        frame
    }

    /// Assigns a frame to a page, which is clean. Reclaims another page if all frames are in use.
    fn make_room(&mut self, page: u64) -> FrameNumber {
        let held = FrameContent { page, dirty: false };
        if self.frames.len() < self.limit {
            self.frames.push(held);
            return self.frames.len() - 1;
        }
        let frame = self.reclaim.reclaim();
        let old = std::mem::replace(&mut self.frames[frame], held);
        self.counts.written += u64::from(old.dirty);
        self.places.insert(old.page, None);
        frame
    }
}
