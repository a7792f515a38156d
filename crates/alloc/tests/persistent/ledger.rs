//! A heap whose content is a function of the number of committed transactions, so that a test can
//! check the content after a kill. The module allocates only in the heap, since it also runs in
//! children of `fork`.

use pagewise_alloc::persistent::{Persistent, PersistentError, Rel, Tx};

/// Maximum number of blocks in addition to the ledger.
const SLOTS: usize = 48;
/// Maximum number of blocks that one transaction replaces.
const MAX_REPLACED: u64 = 9;

/// Block with the name `ledger`: the number of committed steps, and a pointer to the block of each
/// slot.
type LedgerPages = [u64; 1 + SLOTS];
/// Header of a block: the step that created the block, and the number and the sum of the words that
/// follow.
type LedgerHeader = [u64; 3];

fn random(seed: u64, salt: u64) -> u64 {
    let mixed = (seed ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
}

/// Returns the number of words of the block that a step creates in a slot, at most `most`; 0 if it
/// creates no block.
fn block_words(step: u64, slot: usize, most: usize) -> usize {
    let dice = random(step, slot as u64);
    let most = match dice % 16 {
        0 => return 0,
        1 => 6000.min(most),
        2..4 => 900.min(most),
        _ => 60.min(most),
    };
    1 + usize::try_from(dice >> 8 & 0xffff).unwrap_or(0) % most
}

/// Returns the slots whose blocks a step replaces: in some steps more blocks than the number of
/// frees that the log stores in memory.
fn slots(step: u64) -> impl Iterator<Item = usize> {
    let dice = random(step, 1 << 40);
    let count = if dice.is_multiple_of(8) { MAX_REPLACED } else { 1 + dice % 3 };
    let first = usize::try_from(dice >> 32).unwrap_or(0);
    (0..usize::try_from(count).unwrap_or(1)).map(move |at| (first + at * 5) % SLOTS)
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(1, |sum, word| random(sum, *word))
}

/// A heap and its ledger.
pub(crate) struct HeapLedger {
    pub(crate) heap: Persistent,
    pages: Rel<LedgerPages>,
    most: usize,
}

impl HeapLedger {
    /// Opens the ledger of a heap, or creates it. Each block has at most `most` words.
    pub(crate) fn new(mut heap: Persistent, most: usize) -> Result<HeapLedger, PersistentError> {
        let found = heap.root("ledger")?;
        let pages = match found {
            Some(pages) => pages,
            None => {
                let mut tx = heap.begin();
                let pages = tx.make([0; 1 + SLOTS])?;
                tx.set_root("ledger", pages)?;
                tx.commit()?;
                pages
            }
        };
        Ok(HeapLedger { heap, pages, most })
    }

    /// Number of committed steps.
    pub(crate) fn done(&self) -> u64 {
        self.heap.get(self.pages).map_or(0, |pages| pages[0])
    }

    /// Commits the next step. Every fifth step is first aborted once.
    pub(crate) fn step(&mut self) -> Result<(), PersistentError> {
        let (pages, step, most) = (self.pages, self.done() + 1, self.most);
        if step.is_multiple_of(5) {
            write(self.heap.begin(), pages, step, most)?.abort()?;
        }
        write(self.heap.begin(), pages, step, most)?.commit()
    }

    /// Panics unless the content of the heap is exactly that of its number of steps.
    pub(crate) fn check(&self, expected: &Expected) {
        let usage = self.heap.check().unwrap();
        let pages = self.heap.get(self.pages).unwrap();
        assert_eq!(pages[0], expected.done);
        let mut blocks = 1;
        for (slot, (page, step)) in pages[1..].iter().zip(expected.made).enumerate() {
            let count = if step == 0 { 0 } else { block_words(step, slot, self.most) };
            assert_eq!(*page == 0, count == 0, "slot {slot}");
            if count > 0 {
                self.check_block(Rel::from_offset(*page), step, count);
                blocks += 1;
            }
        }
        assert_eq!(usage.blocks, blocks);
    }

    fn check_block(&self, block: Rel<u64>, step: u64, count: usize) {
        let size = (count + size_of::<LedgerHeader>() / 8) * 8;
        assert!(self.heap.block_size(block).unwrap() >= size);
        let block = self.heap.slice(block, size / 8).unwrap();
        let (header, content) = block.split_at(3);
        assert_eq!(*header, [step, count as u64, sum(content)]);
        assert!(content.iter().zip(0..).all(|(word, at)| *word == random(step, at)));
    }
}

/// Executes a step without its commit.
fn write(
    mut tx: Tx<'_>,
    pages: Rel<LedgerPages>,
    step: u64,
    most: usize,
) -> Result<Tx<'_>, PersistentError> {
    for slot in slots(step) {
        let page = Rel::from_offset(pages.offset() + 8 * (1 + slot as u64));
        let old = *tx.get::<Rel<u64>>(page)?;
        if !old.is_null() {
            tx.free(old)?;
        }
        *tx.change(page)? = make(&mut tx, step, block_words(step, slot, most))?;
    }
    *tx.change(pages.cast::<u64>())? = step;
    let name = if step.is_multiple_of(2) { "even" } else { "odd" };
    tx.set_root(name, if step % 4 < 2 { pages } else { Rel::NULL })?;
    Ok(tx)
}

fn make(tx: &mut Tx<'_>, step: u64, count: usize) -> Result<Rel<u64>, PersistentError> {
    if count == 0 {
        return Ok(Rel::NULL);
    }
    let size = count + size_of::<LedgerHeader>() / 8;
    let layout = std::alloc::Layout::array::<u64>(size).map_err(|_| PersistentError::Full)?;
    let block = tx.alloc(layout)?.cast();
    let (header, content) = tx.fill(block, size)?.split_at_mut(3);
    content.iter_mut().zip(0..).for_each(|(word, at)| *word = random(step, at));
    header.copy_from_slice(&[step, count as u64, sum(content)]);
    Ok(block)
}

/// Expected content of a heap, computed without a heap.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    done: u64,
    /// For each slot, the step that last replaced its block.
    made: [u64; SLOTS],
}

impl Expected {
    pub(crate) const NEW: Expected = Expected { done: 0, made: [0; SLOTS] };

    /// Updates the expected content to that after `done` steps.
    pub(crate) fn advance(&mut self, done: u64) {
        while self.done < done {
            self.done += 1;
            slots(self.done).for_each(|slot| self.made[slot] = self.done);
        }
    }
}
