//! `/proc/kpagecount`: how many page tables map each page frame. Needs CAP_SYS_ADMIN.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::entry::{WORD, Word};

/// Frames further apart than this are asked for in separate reads: a read costs what four frames
/// do.
const BRIDGE: u64 = 4;

/// Maximum number of frames of one read.
const WINDOW: usize = 2048;

/// A page to look up, and the caller's data about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLookup<T> {
    pub(super) frame: u64,
    pub(super) about: T,
}

/// The open file and a buffer.
#[derive(Debug)]
pub(super) struct FrameReader {
    file: File,
    words: Vec<u8>,
}

impl FrameReader {
    pub(super) fn open(root: &Path) -> Option<FrameReader> {
        let file = File::open(root.join("kpagecount")).ok()?;
        Some(FrameReader { file, words: vec![0; WINDOW * size_of::<Word>()] })
    }

    /// Calls `each` with the caller's data and the number of mappings of every page in `asked`. A
    /// frame without a struct page is mapped 0 times. Empties `asked`.
    pub(super) fn count<T>(
        &mut self,
        asked: &mut Vec<FrameLookup<T>>,
        mut each: impl FnMut(&T, u64),
    ) {
        asked.sort_unstable_by_key(|asked| asked.frame);
        let mut rest = asked.as_slice();
        while let Some(first) = rest.first().map(|asked| asked.frame) {
            let (window, later) = rest.split_at(window(rest));
            let last = window[window.len() - 1].frame;
            let counts = self.read(first, last);
            for FrameLookup { frame, about } in window {
                let count = usize::try_from(frame - first).ok().and_then(|i| counts.get(i));
                each(about, count.map_or(0, |word| u64::from_ne_bytes(*word)));
            }
            rest = later;
        }
        asked.clear();
    }

    /// Number of mappings of one frame.
    pub(super) fn count_one(&mut self, frame: u64) -> u64 {
        self.read(frame, frame).first().map_or(0, |word| u64::from_ne_bytes(*word))
    }

    /// The counts of `first..=last`, or fewer at the end of memory.
    fn read(&mut self, first: u64, last: u64) -> &[Word] {
        let wanted = usize::try_from((last - first + 1) * WORD).unwrap_or(usize::MAX);
        let wanted = wanted.min(self.words.len());
        let read = self.file.read_at(&mut self.words[..wanted], first.saturating_mul(WORD));
        self.words[..read.unwrap_or(0)].as_chunks().0
    }
}

/// Number of leading pages, sorted by frame, that one read should cover.
fn window<T>(asked: &[FrameLookup<T>]) -> usize {
    let first = asked[0].frame;
    let near = |pair: &[FrameLookup<T>]| {
        pair[1].frame - pair[0].frame <= BRIDGE && pair[1].frame - first < WINDOW as u64
    };
    1 + asked.windows(2).take_while(|pair| near(pair)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(frames: &[u64]) -> Vec<FrameLookup<()>> {
        frames.iter().map(|&frame| FrameLookup { frame, about: () }).collect()
    }

    #[test]
    fn near_frames_are_read_together_and_far_ones_apart() {
        assert_eq!(window(&at(&[5, 5, 6, 9, 10, 1000])), 5);
        assert_eq!(window(&at(&[5])), 1);
    }

    #[test]
    fn a_window_never_outgrows_the_buffer() {
        let frames: Vec<u64> = (0..10_000).collect();
        assert_eq!(window(&at(&frames)), WINDOW);
    }
}
