//! LRU: the frames are in one list, and a use moves the frame to the front.

use super::lists::FrameLists;
use super::{FrameNumber, Reclaim};

#[derive(Debug)]
pub(super) struct Lru {
    list: FrameLists<1>,
}

impl Lru {
    pub(super) fn new() -> Lru {
        Lru { list: FrameLists::new() }
    }
}

impl Reclaim for Lru {
    fn used(&mut self, frame: FrameNumber) {
        self.list.move_to(0, frame);
    }

    fn filled(&mut self, frame: FrameNumber) {
        self.list.push(0, frame);
    }

    fn reclaim(&mut self) -> FrameNumber {
        self.list.pop(0).expect("memory has a frame, and all are filled")
    }
}
