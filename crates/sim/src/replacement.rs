//! The kernel's page replacement, over the pages of a stream of accesses: which faults come of too little memory.
//!
//! The model: one process has so many frames and nothing else wants them. A page is reclaimed when a frame is needed and
//! none is free; one that was written since it was read in has to be written first. No read-ahead, no free frames kept in
//! reserve, and the CPU's accessed bits are looked at when a frame is needed, never in between.

mod clock;
mod generations;
mod lists;
mod lru;
mod two_lists;

use std::collections::HashMap;
use std::fmt::Debug;

use crate::{Access, Split, Unfit};

/// Which page makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The page that was used longest ago: what a kernel cannot know, and what others come near.
    Lru,
    /// Clock, or second chance: pages in a ring; a hand goes round, takes a page that was not used since it last came
    /// by, and forgives one that was.
    Clock,
    /// Linux's active and inactive lists. A page of the inactive list that was used stays there once and is activated
    /// when that is seen again; the active list gives back to the inactive one what makes it the longer of the two.
    TwoLists,
    /// The same with a change: a page that should be activated is reclaimed like any other.
    ActivateReclaimed,
    /// Generations, after Linux's MGLRU: what was used gets into the youngest, the oldest is reclaimed.
    Generations,
}

impl Replacement {
    /// All of them.
    pub const ALL: [Replacement; 5] = [
        Replacement::Lru,
        Replacement::Clock,
        Replacement::TwoLists,
        Replacement::ActivateReclaimed,
        Replacement::Generations,
    ];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Replacement::Lru => "LRU",
            Replacement::Clock => "clock",
            Replacement::TwoLists => "active/inactive",
            Replacement::ActivateReclaimed => "activate reclaimed",
            Replacement::Generations => "generations",
        }
    }

    fn begin(self) -> Box<dyn Reclaim> {
        match self {
            Replacement::Lru => Box::new(lru::Lru::new()),
            Replacement::Clock => Box::new(clock::Clock::new()),
            Replacement::TwoLists => Box::new(two_lists::TwoLists::new(true)),
            Replacement::ActivateReclaimed => Box::new(two_lists::TwoLists::new(false)),
            Replacement::Generations => Box::new(generations::Generations::new()),
        }
    }
}

/// A number of a frame, from 0.
type Frame = usize;

/// What chooses frames.
trait Reclaim: Debug + Send {
    /// The page in this frame is used.
    fn used(&mut self, frame: Frame);

    /// A page was read into this frame, and is used. Frames come into use in their order.
    fn filled(&mut self, frame: Frame);

    /// Takes out the frame whose page is to be reclaimed. All frames are filled.
    fn reclaim(&mut self) -> Frame;
}

/// What is noted of a frame, which may have come into use just now.
fn at<T: Default>(notes: &mut Vec<T>, frame: Frame) -> &mut T {
    if frame == notes.len() {
        notes.push(T::default());
    }
    &mut notes[frame]
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages used for the first time: minor faults where they are anonymous.
    pub first: u64,
    /// Faults on pages that were reclaimed: major faults.
    pub back: Split,
    /// Pages reclaimed that had to be written first.
    pub written: u64,
}

/// Memory of a few frames.
#[derive(Debug)]
pub struct Memory {
    /// The frame of each page that was ever used; `None` where it was reclaimed.
    places: HashMap<u64, Option<Frame>>,
    frames: Vec<Held>,
    limit: usize,
    reclaim: Box<dyn Reclaim>,
    page_shift: u32,
    /// The page that was used last and its frame.
    last: Option<(u64, Frame)>,
    counts: Counts,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    page: u64,
    dirty: bool,
}

/// More frames than any machine has are a mistake.
const MOST_FRAMES: usize = 1 << 28;

impl Memory {
    /// Empty memory of so many frames, of pages of so many bytes.
    ///
    /// # Errors
    /// Of no frames, or too many, and of pages that are no power of two.
    pub fn new(frames: usize, page: u64, replacement: Replacement) -> Result<Memory, Unfit> {
        if !page.is_power_of_two() {
            return Err(Unfit("pages must be a power of two bytes"));
        }
        if !(1..=MOST_FRAMES).contains(&frames) {
            return Err(Unfit("memory must have 1 to 256 M pages"));
        }
        Ok(Memory {
            places: HashMap::new(),
            frames: Vec::new(),
            limit: frames,
            reclaim: replacement.begin(),
            page_shift: page.ilog2(),
            last: None,
            counts: Counts::default(),
        })
    }

    /// Makes these accesses, one after the other.
    pub fn play(&mut self, block: &[Access]) {
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

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The frame of a page, which is there afterwards.
    fn touch(&mut self, page: u64, write: bool) -> Frame {
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

    /// A frame that holds nothing but this page, clean.
    fn make_room(&mut self, page: u64) -> Frame {
        let held = Held { page, dirty: false };
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
