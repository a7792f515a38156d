//! Free blocks by size: a class is found, and a block in it, in a fixed number of steps.
//!
//! ```text
//!  classes     which lists are not empty: see `classes`; sizes are counted in GRANULEs
//!  heads[1][2] ─> block <─> block <─> block
//! ```

use super::block::{FreeLinks, GRANULE, LIMIT, TlsfBlock};
use crate::classes::{self, EXACT, ROW, SizeClassBitmap};

const LEVELS: usize = classes::levels(LIMIT / GRANULE);

/// The lists of free blocks.
#[derive(Clone, Debug)]
pub(super) struct FreeLists {
    classes: SizeClassBitmap<LEVELS>,
    heads: [[Option<TlsfBlock>; ROW]; LEVELS],
}

/// The class of a size of a block.
#[inline]
const fn class(size: usize) -> usize {
    classes::class(size / GRANULE)
}

impl FreeLists {
    pub(super) const EMPTY: FreeLists =
        FreeLists { classes: SizeClassBitmap::EMPTY, heads: [[None; ROW]; LEVELS] };

    /// Adds a free block.
    #[inline]
    pub(super) fn insert(&mut self, block: TlsfBlock, size: usize) {
        let class = class(size);
        let next = self.heads[class / ROW][class % ROW].replace(block);
        block.set_links(FreeLinks { next, previous: None });
        match next {
            Some(next) => next.set_previous_in_list(Some(block)),
            None => self.classes.set(class),
        }
    }

    /// Removes a block, wherever it is in its list.
    #[inline]
    pub(super) fn remove(&mut self, block: TlsfBlock, size: usize) {
        let FreeLinks { next, previous } = block.links();
        if let Some(next) = next {
            next.set_previous_in_list(previous);
        }
        match previous {
            Some(previous) => previous.set_next_in_list(next),
            None => self.set_head(class(size), next),
        }
    }

    /// Removes a block of at least this size: of the exact size below `EXACT` granules, else of the
    /// next wider size class, so that no list is searched.
    #[inline]
    pub(super) fn remove_fitting(&mut self, size: usize) -> Option<TlsfBlock> {
        let class = self.classes.first_from(classes::class_above(size / GRANULE))?;
        let block = self.heads[class / ROW][class % ROW]?;
        let next = block.links().next;
        if let Some(next) = next {
            next.set_previous_in_list(None);
        }
        self.set_head(class, next);
        Some(block)
    }

    #[inline]
    fn set_head(&mut self, class: usize, head: Option<TlsfBlock>) {
        self.heads[class / ROW][class % ROW] = head;
        let Some(head) = head else { return self.classes.clear(class) };
        // The next allocation of its size class takes this block. It should not wait for this word,
        // nor for that of the block behind it.
        if class < EXACT {
            head.split_at(class * GRANULE).prefetch();
        }
        head.prefetch();
    }

    /// Walks all lists.
    ///
    /// # Panics
    /// Panics if a list, its bits or the class of a block are wrong.
    pub(super) fn check(&self, blocks: usize) {
        self.classes.check(|class| self.heads[class / ROW][class % ROW].is_some());
        let mut found = 0;
        for (class_of_list, head) in self.heads.iter().flatten().enumerate() {
            let (mut at, mut before) = (*head, None);
            while let Some(block) = at {
                let links = block.links();
                assert!(block.is_free(), "a block in a list is in use");
                assert_eq!(class(block.size()), class_of_list, "a block is in the wrong list");
                assert_eq!(links.previous, before, "a list has come apart");
                (at, before, found) = (links.next, at, found + 1);
            }
        }
        assert_eq!(found, blocks, "free blocks in lists, and in regions");
    }
}
