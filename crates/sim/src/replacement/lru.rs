//! LRU: one list; a used page moves to its front.

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
