//! One word of `pagemap`: bits as in admin-guide/mm/pagemap.rst, and runs of words with equal bits.

/// A word as read from `pagemap`, in native byte order.
pub(crate) type Word = [u8; 8];

/// The size of a word in the file.
pub(crate) const WORD: u64 = size_of::<Word>() as u64;

/// Bits 0-54: the page frame, 0 where it is hidden.
const FRAME: u64 = (1 << 55) - 1;
/// The page was written since `clear_refs`, if the kernel tracks writes.
const SOFT_DIRTY: u64 = 1 << 55;
/// Only one page table maps the page (since 4.2).
pub const EXCLUSIVE: u64 = 1 << 56;
/// A guard region (since 6.15).
const GUARD: u64 = 1 << 58;
/// The page is of a file or of shared memory. The kernel also sets this bit for the huge zero page.
pub const FILE: u64 = 1 << 61;
const SWAP: u64 = 1 << 62;
/// The page is in memory.
pub const PRESENT: u64 = 1 << 63;

/// The bits that decide how a page is counted.
const KIND: u64 = EXCLUSIVE | GUARD | FILE | SWAP | PRESENT;

/// Meaning of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Nothing is mapped.
    Empty,
    /// In memory.
    Present {
        /// The file bit.
        file: bool,
        /// The exclusive bit.
        exclusive: bool,
    },
    /// In swap.
    Swapped,
    /// A guard region, which is stored as a swap entry.
    Guard,
}

/// Consecutive pages with the same [`EntryState`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateRun<'a> {
    pub(crate) state: EntryState,
    pub(crate) words: &'a [Word],
}

/// Splits words into runs.
pub(crate) fn runs(mut words: &[Word]) -> impl Iterator<Item = StateRun<'_>> {
    std::iter::from_fn(move || {
        let kind = u64::from_ne_bytes(*words.first()?) & KIND;
        let (run, rest) = words.split_at(alike(kind, words));
        words = rest;
        Some(StateRun { state: state(kind), words: run })
    })
}

/// Returns the number of leading words whose [`KIND`] bits are those of `kind`.
fn alike(kind: u64, words: &[Word]) -> usize {
    // Eight words are compared at a time without a branch between them: 8 GiB have 2 million words.
    let differs = |word: &Word| (u64::from_ne_bytes(*word) ^ kind) & KIND;
    let eights = words.as_chunks::<8>().0;
    let same =
        eights.iter().take_while(|eight| eight.iter().fold(0, |all, w| all | differs(w)) == 0);
    let sure = same.count() * 8;
    sure + words[sure..].iter().take_while(|word| differs(word) == 0).count()
}

fn state(kind: u64) -> EntryState {
    if kind & PRESENT != 0 {
        EntryState::Present { file: kind & FILE != 0, exclusive: kind & EXCLUSIVE != 0 }
    } else if kind & GUARD != 0 {
        EntryState::Guard
    } else if kind & SWAP != 0 {
        EntryState::Swapped
    } else {
        EntryState::Empty
    }
}

/// Returns true if nothing is mapped at any of the pages. Kernels that track soft-dirty pages also
/// set that bit in holes.
pub(crate) fn are_empty(words: &[Word]) -> bool {
    alike(0, words) == words.len()
}

/// Returns true if the page was written since soft-dirty bits were cleared. Always false if the
/// kernel does not track writes.
pub(crate) fn is_soft_dirty(word: &Word) -> bool {
    u64::from_ne_bytes(*word) & SOFT_DIRTY != 0
}

/// The page frame of a present page.
pub(crate) fn frame(word: &Word) -> u64 {
    u64::from_ne_bytes(*word) & FRAME
}

/// True if the exclusive bit is set.
pub(crate) fn is_exclusive(word: &Word) -> bool {
    u64::from_ne_bytes(*word) & EXCLUSIVE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_dirty_holes_are_empty() {
        let hole = SOFT_DIRTY.to_ne_bytes();
        assert!(are_empty(&[hole; 21]) && are_empty(&[Word::default(); 8]));
        for bit in [PRESENT, SWAP, GUARD, FILE, EXCLUSIVE] {
            assert!(!are_empty(&[hole, (SOFT_DIRTY | bit).to_ne_bytes()]));
        }
    }

    #[test]
    fn runs_cover_every_word_and_part_where_the_kind_changes() {
        let pattern = [
            (PRESENT | EXCLUSIVE, 19),
            (0, 1),
            (SWAP | 77, 3),
            (SWAP | GUARD, 9),
            (PRESENT | FILE | 5, 8),
        ];
        let words: Vec<Word> =
            pattern.iter().flat_map(|&(word, n)| vec![word.to_ne_bytes(); n]).collect();
        let found: Vec<_> = runs(&words).map(|run| (run.state, run.words.len())).collect();
        let present = |file, exclusive| EntryState::Present { file, exclusive };
        assert_eq!(
            found,
            [
                (present(false, true), 19),
                (EntryState::Empty, 1),
                (EntryState::Swapped, 3),
                (EntryState::Guard, 9),
                (present(true, false), 8),
            ]
        );
    }

    #[test]
    fn frames_that_differ_do_not_part_a_run() {
        let words = [(PRESENT | 1).to_ne_bytes(), (PRESENT | 900).to_ne_bytes()];
        assert_eq!(runs(&words).count(), 1);
        assert_eq!(frame(&words[1]), 900);
    }
}
