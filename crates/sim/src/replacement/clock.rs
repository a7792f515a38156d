//! Clock, or second chance: the frames are the ring.

use super::{FrameNumber, Reclaim, at};

#[derive(Debug)]
pub(super) struct Clock {
    /// The CPU's accessed bit of each page: true if it was used since the hand's last visit.
    accessed: Vec<bool>,
    hand: FrameNumber,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { accessed: Vec::new(), hand: 0 }
    }

    /// The frame at the hand, which then advances by one frame.
    fn next(&mut self) -> FrameNumber {
        let frame = self.hand;
        self.hand = (frame + 1) % self.accessed.len();
        frame
    }
}

impl Reclaim for Clock {
    fn used(&mut self, frame: FrameNumber) {
        self.accessed[frame] = true;
    }

    fn filled(&mut self, frame: FrameNumber) {
        *at(&mut self.accessed, frame) = true;
    }

    fn reclaim(&mut self) -> FrameNumber {
        loop {
            let frame = self.next();
            if !std::mem::take(&mut self.accessed[frame]) {
                return frame;
            }
        }
    }
}
