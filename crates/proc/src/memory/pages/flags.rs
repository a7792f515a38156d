//! `/proc/kpageflags`: the kind of the page in each page frame. Needs CAP_SYS_ADMIN.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bits of a word: admin-guide/mm/pagemap.rst.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
/// The page is merged with equal pages (KSM).
pub(crate) const KSM: u64 = 1 << 21;
/// The page is the zero page.
pub(crate) const ZERO_PAGE: u64 = 1 << 24;

/// Maximum number of base pages of a folio that is recognized as one: a huge page of 4 KiB base
/// pages.
const LARGEST: u64 = 512;

/// The open file `/proc/kpageflags`.
#[derive(Debug)]
pub(crate) struct FrameFlagsFile(File);

impl FrameFlagsFile {
    pub(crate) fn open(root: &Path) -> Option<FrameFlagsFile> {
        File::open(root.join("kpageflags")).ok().map(FrameFlagsFile)
    }

    /// Reads the flags of consecutive frames, and of those neighboring frames that may belong to
    /// the same folios.
    pub(crate) fn around(&self, first: u64, count: u64) -> FlagsAround {
        let own = read_flag_words(&self.0, first, count);
        let is = |word: Option<&u64>, bits: u64| word.is_some_and(|word| word & bits != 0);
        let mut all = Vec::new();
        if is(own.first(), TAIL) {
            let before = first.min(LARGEST);
            all = read_flag_words(&self.0, first - before, before);
        }
        let before = all.len();
        let after = if is(own.last(), HEAD | TAIL) { LARGEST } else { 0 };
        all.extend(own);
        all.extend(read_flag_words(&self.0, first.saturating_add(count), after));
        FlagsAround { words: all, before }
    }
}

/// Flags of consecutive frames and of their neighbors.
#[derive(Debug)]
pub(crate) struct FlagsAround {
    words: Vec<u64>,
    before: usize,
}

impl FlagsAround {
    /// Returns the flags of the `i`th frame; `None` for a frame without a struct page.
    pub(crate) fn flags(&self, i: usize) -> Option<u64> {
        self.words.get(self.before + i).copied()
    }

    /// Number of base pages of the folio that contains the `i`th frame.
    pub(crate) fn folio(&self, i: usize) -> u32 {
        let at = self.before + i;
        let is_tail = |word: &&u64| **word & TAIL != 0;
        match self.words.get(at) {
            Some(word) if word & (HEAD | TAIL) != 0 => {}
            _ => return 1,
        }
        let back = self.words[..=at].iter().rev().take_while(is_tail).count();
        let ahead = self.words[at + 1..].iter().take_while(is_tail).count();
        u32::try_from(1 + back + ahead).unwrap_or(u32::MAX)
    }
}

/// Reads `count` words of a file that has one word for each frame. Returns fewer words at the end
/// of memory.
pub(crate) fn read_flag_words(file: &File, first: u64, count: u64) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let mut bytes = vec![0; usize::try_from(count.saturating_mul(8)).unwrap_or(0)];
    let read = file.read_at(&mut bytes, first.saturating_mul(8)).unwrap_or(0);
    bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folio_is_a_head_and_its_tails() {
        let around =
            FlagsAround { words: vec![0, HEAD, TAIL, TAIL, TAIL, 0, HEAD, TAIL], before: 2 };
        let sizes: Vec<u32> = (0..7).map(|i| around.folio(i)).collect();
        assert_eq!(sizes, [4, 4, 4, 1, 2, 2, 1]);
        assert_eq!((around.flags(0), around.flags(6)), (Some(TAIL), None));
    }
}
