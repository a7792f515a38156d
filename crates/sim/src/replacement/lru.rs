//! LRU: one list, the page that is used goes to its front.

use super::lists::Lists;
use super::{Frame, Reclaim};

#[derive(Debug)]
pub(super) struct Lru {
    list: Lists<1>,
}

impl Lru {
    pub(super) fn new() -> Lru {
        Lru { list: Lists::new() }
    }
}

impl Reclaim for Lru {
    fn used(&mut self, frame: Frame) {
        self.list.move_to(0, frame);
    }

    fn filled(&mut self, frame: Frame) {
        self.list.push(0, frame);
    }

    fn reclaim(&mut self) -> Frame {
        self.list.pop(0).expect("memory has a frame, and all are filled")
    }
}
