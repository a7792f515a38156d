//! Lists of frames: a frame is in at most one of them, and moves from one to another in constant
//! time.

use super::FrameNumber;

/// No frame.
const NONE: u32 = u32::MAX;

/// Lists over the same frames. Frames that were never in a list take no memory.
#[derive(Debug)]
pub(super) struct FrameLists<const COUNT: usize> {
    ends: [ListEnds; COUNT],
    links: Vec<ListNeighbors>,
}

#[derive(Clone, Copy, Debug)]
struct ListEnds {
    first: u32,
    last: u32,
    length: usize,
}

#[derive(Clone, Copy, Debug)]
struct ListNeighbors {
    before: u32,
    after: u32,
    list: usize,
}

impl<const COUNT: usize> FrameLists<COUNT> {
    /// Empty lists.
    pub(super) fn new() -> FrameLists<COUNT> {
        let ends = [ListEnds { first: NONE, last: NONE, length: 0 }; COUNT];
        FrameLists { ends, links: Vec::new() }
    }

    /// Number of frames in a list.
    pub(super) fn length(&self, list: usize) -> usize {
        self.ends[list].length
    }

    /// Puts a frame that is in no list at the front of one. New frames come in their order.
    pub(super) fn push(&mut self, list: usize, frame: FrameNumber) {
        let ends = &mut self.ends[list];
        let number = u32::try_from(frame).unwrap_or(NONE);
        let link = ListNeighbors { before: NONE, after: ends.first, list };
        if frame == self.links.len() {
            self.links.push(link);
        } else {
            self.links[frame] = link;
        }
        match ends.first {
            NONE => ends.last = number,
            first => self.links[first as usize].before = number,
        }
        ends.first = number;
        ends.length += 1;
    }

    /// Takes the last frame of a list.
    pub(super) fn pop(&mut self, list: usize) -> Option<FrameNumber> {
        let last = self.ends[list].last;
        (last != NONE).then(|| {
            self.unlink(last as usize);
            last as usize
        })
    }

    /// Moves a frame from its list to the front of another.
    pub(super) fn move_to(&mut self, list: usize, frame: FrameNumber) {
        self.unlink(frame);
        self.push(list, frame);
    }

    fn unlink(&mut self, frame: FrameNumber) {
        let ListNeighbors { before, after, list } = self.links[frame];
        let ends = &mut self.ends[list];
        match before {
            NONE => ends.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            after => self.links[after as usize].before = before,
        }
        ends.length -= 1;
    }
}
