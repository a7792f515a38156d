//! The kernel's page replacement, simulated for the pages of a stream of accesses: it counts the
//! page faults that too little memory causes.
//!
//! The model: one process has a fixed number of frames for itself. A page is reclaimed when a frame
//! is needed and none is free; a page written since it was read in has to be written back first. No
//! read-ahead, no reserve of free frames, and the CPU's accessed bits are examined only when a
//! frame is needed.

mod clock;
mod generations;
mod lists;
mod lru;
mod two_lists;

use std::collections::HashMap;
use std::fmt::Debug;

use crate::{MemoryAccess, ReadWriteCounts, Unfit};

/// A policy: the page that it reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageReplacement {
    /// The page that was used longest ago. A kernel cannot know this page; other policies
    /// approximate it.
    Lru,
    /// Clock, or second chance: the pages are in a ring, around which a hand moves. It reclaims a
    /// page that was not used since its last visit, and skips a page that was.
    Clock,
    /// Linux's active and inactive lists. A page of the inactive list that was used stays there
    /// once and is activated at the next use; the active list returns pages to the inactive one
    /// when it is the longer of the two.
    TwoLists,
    /// The same with a change: a page that should be activated is reclaimed like any other.
    ActivateReclaimed,
    /// Generations, after Linux's MGLRU: used pages move to the youngest generation, and pages of
    /// the oldest are reclaimed.
    Generations,
}

impl PageReplacement {
    /// All of them.
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

/// A number of a frame, from 0.
type FrameNumber = usize;

/// Choice of frames to reclaim.
trait Reclaim: Debug + Send {
    /// The page in this frame is used.
    fn used(&mut self, frame: FrameNumber);

    /// A page was read into this frame, and is used. Frames come into use in their order.
    fn filled(&mut self, frame: FrameNumber);

    /// Takes out the frame whose page is to be reclaimed. All frames are filled.
    fn reclaim(&mut self) -> FrameNumber;
}

/// Data of a frame, which may be used for the first time.
fn at<T: Default>(notes: &mut Vec<T>, frame: FrameNumber) -> &mut T {
    if frame == notes.len() {
        notes.push(T::default());
    }
    &mut notes[frame]
}

/// Counts of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementCounts {
    /// Pages used for the first time: minor faults where they are anonymous.
    pub first: u64,
    /// Faults on pages that were reclaimed: major faults.
    pub back: ReadWriteCounts,
    /// Pages reclaimed that had to be written first.
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

/// Content of a frame.
#[derive(Clone, Copy, Debug)]
struct FrameContent {
    page: u64,
    dirty: bool,
}

/// No machine has more frames: a larger number is an error.
const MAX_FRAMES: usize = 1 << 28;

impl SimulatedMemory {
    /// Empty memory with this number of frames, for this page size.
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

    /// Makes these accesses, one after the other.
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

    /// The frame of a page, which is read in if it is missing.
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

    /// Gives a frame to a page, which is clean. Reclaims another page if all frames are in use.
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
