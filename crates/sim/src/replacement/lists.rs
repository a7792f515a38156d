//! Lists of frames: a frame is in at most one list, and moves to another list in constant time.

use super::FrameNumber;

/// Value that refers to no frame.
const NONE: u32 = u32::MAX;

/// Lists that share the frames of one memory. Frames that were never in a list take no memory.
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
    /// Creates empty lists.
    pub(super) fn new() -> FrameLists<COUNT> {
        let ends = [ListEnds { first: NONE, last: NONE, length: 0 }; COUNT];
        FrameLists { ends, links: Vec::new() }
    }

    /// Number of frames in a list.
    pub(super) fn length(&self, list: usize) -> usize {
        self.ends[list].length
    }

    /// Adds a frame that is in no list to the front of a list. New frames are added in ascending
    /// order.
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

    /// Removes and returns the last frame of a list; `None` if the list is empty.
    pub(super) fn pop(&mut self, list: usize) -> Option<FrameNumber> {
        let last = self.ends[list].last;
        (last != NONE).then(|| {
            self.unlink(last as usize);
            last as usize
        })
    }

    /// Moves a frame from its list to the front of another list.
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
