//! Extents: runs of pages that are a slab of equal slots, one large block, or free.
//!
//! `extent_t` of jemalloc 5.2 and `edata_t` of 5.3 differ in the first word:
//!
//! ```text
//!  offset                                   bits of the first word    5.2      5.3
//!    0  bits                                 arena                    0..12    0..12
//!    8  address                              slab                     12       12
//!   16  size; low 12 bits: serial number     state                    16..18   17..20
//!   64  bitmap of 512 bits: free slots       size class               18..26   20..28
//!                                            free slots of the slab   26..36   28..38
//! ```

use std::cell::Cell;

use pagewise_model::AddrRange;

use super::extent_tree::{ExtentTree, LeafElement};
use super::size_classes::{CLASSES, MAX_SLOTS, PAGE, SMALL_CLASSES, class_size};
use crate::corruption::CorruptionLog;
use crate::memory::{Memory, words};

const BITMAP: u64 = 64;
/// Number of words of the bitmap of free slots.
const BITMAP_WORDS: usize = 8;
/// Maximum number of extents that are compared to detect the layout.
const MAX_VOTERS: usize = 4000;

/// Layout of extents in a range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtentLayout {
    /// Versions with this layout, for the report.
    pub(super) name: &'static str,
    state_shift: u32,
    state_bits: u32,
    class_shift: u32,
    free_shift: u32,
    /// Bit offset of the size class in the second word of 16-byte leaf elements.
    leaf_class_shift: u32,
    /// Number of bytes of a large extent outside of its block (`sz_large_pad`), which jemalloc uses
    /// to start blocks at different cache lines.
    pad: u64,
}

/// jemalloc 5.3 added a flag for guard pages, and states of extents that a thread is changing.
const LAYOUTS: [ExtentLayout; 2] = [
    ExtentLayout {
        name: "jemalloc 5.3",
        state_shift: 17,
        state_bits: 3,
        class_shift: 20,
        free_shift: 28,
        leaf_class_shift: 5,
        pad: 0,
    },
    ExtentLayout {
        name: "jemalloc 5.2",
        state_shift: 16,
        state_bits: 2,
        class_shift: 18,
        free_shift: 26,
        leaf_class_shift: 0,
        pad: 0,
    },
];

/// State of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentState {
    Active,
    /// Free, and still backed by memory.
    Dirty,
    /// Free; the kernel may reclaim the memory (`MADV_FREE`).
    Muzzy,
    /// Free, and not backed by memory.
    Retained,
    /// A thread was changing the extent.
    Changing,
}

/// An extent of the radix tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Address of the `extent_t` or `edata_t`.
    pub(super) edata: u64,
    /// Address of the block, which is on the first page.
    pub(super) address: u64,
    /// Address range of the extent.
    pub(super) pages: AddrRange,
    bits: u64,
    /// Words of the leaf element of the first page.
    leaf: [u64; 2],
    is_compact: bool,
}

impl Extent {
    /// Reads the extent whose first page has the leaf element `element`. The error is the
    /// inconsistent word.
    fn read(memory: &dyn Memory, element: LeafElement, is_compact: bool) -> Result<Extent, u64> {
        let read = words(memory, element.edata);
        let [bits, address, size] = read.ok_or(element.raw[0])?;
        let start = element.page;
        let end = start.checked_add(size & !(PAGE - 1)).ok_or(size)?;
        let pages = AddrRange { start, end };
        if address & !(PAGE - 1) != start || pages.is_empty() {
            return Err(address);
        }
        Ok(Extent { edata: element.edata, address, pages, bits, leaf: element.raw, is_compact })
    }

    /// Number of the arena that owns the extent.
    pub(super) const fn arena(&self) -> u64 {
        self.bits & 0xfff
    }

    /// True if the extent is a slab.
    pub(super) const fn is_slab(&self) -> bool {
        self.bits >> 12 & 1 != 0
    }

    /// Returns the free slots among the first `count` slots; `None` if the bitmap is unknown.
    pub(super) fn free_slots(&self, memory: &dyn Memory, count: u64) -> Option<FreeSlots> {
        let mut bits: [u64; BITMAP_WORDS] = words(memory, self.edata + BITMAP)?;
        for (word, first) in bits.iter_mut().zip((0..).step_by(64)) {
            // Bits beyond the last slot are left over from earlier uses.
            let own = count.saturating_sub(first).min(64);
            *word &= u64::MAX.checked_shr(64 - u32::try_from(own).unwrap_or(64)).unwrap_or(0);
        }
        Some(FreeSlots(bits))
    }

    /// For a slab: true if the count of free slots agrees with the bitmap. Otherwise: true if the
    /// size class agrees with the tree.
    fn agrees(&self, layout: ExtentLayout, memory: &dyn Memory) -> bool {
        let class = layout.class(self);
        if class >= SMALL_CLASSES || !self.is_slab() {
            return class == layout.leaf_class(self);
        }
        let free = layout.slots(self).and_then(|(_, count)| self.free_slots(memory, count));
        free.is_some_and(|free| free.count() == layout.free_count(self))
    }
}

/// Bitmap of the free slots of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeSlots([u64; BITMAP_WORDS]);

impl FreeSlots {
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(super) fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }
}

impl ExtentLayout {
    pub(super) const fn state(self, extent: &Extent) -> ExtentState {
        match extent.bits >> self.state_shift & ((1 << self.state_bits) - 1) {
            0 => ExtentState::Active,
            1 => ExtentState::Dirty,
            2 => ExtentState::Muzzy,
            3 => ExtentState::Retained,
            _ => ExtentState::Changing,
        }
    }

    pub(super) const fn class(self, extent: &Extent) -> u64 {
        extent.bits >> self.class_shift & 0xff
    }

    pub(super) const fn free_count(self, extent: &Extent) -> u64 {
        extent.bits >> self.free_shift & 0x3ff
    }

    /// Size class of an extent according to its leaf element.
    pub(super) const fn leaf_class(self, extent: &Extent) -> u64 {
        let [first, second] = extent.leaf;
        if extent.is_compact { first >> 48 } else { second >> self.leaf_class_shift & 0xff }
    }

    /// Size in bytes and number of the slots of a slab.
    pub(super) fn slots(self, extent: &Extent) -> Option<(u64, u64)> {
        let class = self.class(extent);
        let size = class_size(class).filter(|_| class < SMALL_CLASSES)?;
        let slots = extent.pages.len().0 / size;
        (1..=MAX_SLOTS as u64).contains(&slots).then_some((size, slots))
    }

    /// Returns the layout with which most extents agree, if they are more than half of the compared
    /// extents.
    pub(super) fn detect(extents: &[Extent], memory: &dyn Memory) -> Option<ExtentLayout> {
        let count = |layout: ExtentLayout| {
            let agree = extents.iter().map(|extent| (extent, extent.agrees(layout, memory)));
            // The tree may still contain the size class of a slab that was freed, so a free extent
            // that disagrees does not count.
            let voters = agree.filter(|(extent, agrees)| *agrees || !layout.is_free(extent));
            voters.take(MAX_VOTERS).fold((0, 0), |(votes, voters), (_, agrees)| {
                (votes + usize::from(agrees), voters + 1)
            })
        };
        let counted = LAYOUTS.map(|layout| (count(layout), layout));
        let ((votes, voters), layout) = counted.into_iter().max_by_key(|((votes, _), _)| *votes)?;
        let has_pad = extents.iter().any(|extent| layout.shows_pad(extent));
        let pad = if has_pad { PAGE } else { 0 };
        (votes * 2 > voters).then_some(ExtentLayout { pad, ..layout })
    }

    /// True if the extent contains no block.
    fn is_free(self, extent: &Extent) -> bool {
        self.state(extent) != ExtentState::Active && self.class(extent) == CLASSES
    }

    /// True if a large extent is longer than its block, or its block does not begin at the start of
    /// its first page.
    fn shows_pad(self, extent: &Extent) -> bool {
        let is_large = self.state(extent) == ExtentState::Active && !extent.is_slab();
        let class = self.class(extent);
        let is_longer = class >= SMALL_CLASSES
            && class_size(class).is_some_and(|size| size < extent.pages.len().0);
        is_large && (is_longer || extent.address != extent.pages.start)
    }

    /// Number of usable bytes of the single block of an extent; `None` if its size class is
    /// inconsistent. Since 5.3.1, the size of a block above 16 KiB can be any number of whole
    /// pages. Its size class is the smallest class that is larger.
    pub(super) fn block_size(self, extent: &Extent) -> Option<u64> {
        let class = self.class(extent);
        if class < SMALL_CLASSES {
            return class_size(class).filter(|size| *size <= extent.pages.len().0);
        }
        let size = extent.pages.len().0.checked_sub(self.pad)?;
        let next_below = class_size(class - 1)?;
        (next_below < size && size <= class_size(class)?).then_some(size)
    }
}

/// The extents of a radix tree.
#[derive(Debug, Default)]
pub(super) struct TreeExtents {
    /// Extents in order of address, without overlaps.
    pub(super) extents: Vec<Extent>,
    /// Address ranges of the nodes of the tree.
    pub(super) nodes: Vec<AddrRange>,
    /// Pages whose extents could not be read.
    pub(super) unread: Vec<u64>,
}

/// A tree is rejected if it has at least this number of contradictions, and more contradictions
/// than extents. A damaged but real tree has more extents than contradictions.
const MAX_CONTRADICTIONS: u64 = 1000;

/// Reads all extents of a tree. The result is empty if the words look like a tree only by chance.
/// Pointers in such words can refer to all memory of a process, so following them would take long.
pub(super) fn tree_extents(
    memory: &dyn Memory,
    tree: ExtentTree,
    log: &mut CorruptionLog,
) -> TreeExtents {
    let mut found = TreeExtents::default();
    let mut overlaps = Vec::new();
    let is_compact = tree.shape.is_compact();
    let (extents, contradictions) = (Cell::new(0), Cell::new(0));
    let is_likely =
        || contradictions.get() < MAX_CONTRADICTIONS || contradictions.get() <= extents.get();
    let nodes = tree.visit(
        memory,
        &mut |element| {
            let known = log.count;
            let is_stray = found.add(memory, element, is_compact, log);
            contradictions.update(|it| it + (log.count - known) + u64::from(is_stray));
            extents.set(found.extents.len() as u64);
            is_likely()
        },
        &mut |at, word| {
            overlaps.push((at, word));
            contradictions.update(|it| it + 1);
            is_likely()
        },
    );
    if !is_likely() {
        return TreeExtents::default();
    }
    for (at, word) in overlaps {
        log.add(at, at, "the address of a node of its own in the tree of extents", word);
    }
    found.nodes = nodes;
    found
}

/// True if a mapping of the process contains `address`.
fn is_mapped(memory: &dyn Memory, address: u64) -> bool {
    let mappings = memory.mappings();
    let at = mappings.partition_point(|mapping| mapping.range.end <= address);
    mappings.get(at).is_some_and(|mapping| mapping.range.contains(address))
}

impl TreeExtents {
    /// Adds the extent of a leaf element. The elements of the first and the last page of an extent
    /// contain the address of the extent; in a slab, the elements of all pages contain this
    /// address. Returns true if the element's extent address is in no mapping.
    fn add(
        &mut self,
        memory: &dyn Memory,
        element: LeafElement,
        is_compact: bool,
        log: &mut CorruptionLog,
    ) -> bool {
        // An element without an extent keeps the other bits of an earlier extent.
        if element.edata == 0 {
            return false;
        }
        let LeafElement { page, edata, .. } = element;
        if let Some(last) = self.extents.last().filter(|last| last.pages.contains(page)) {
            if last.edata != edata {
                log.add(page, edata, "an extent behind the last one", last.pages.start);
            }
            return false;
        }
        match Extent::read(memory, element, is_compact) {
            Ok(extent) => self.extents.push(extent),
            Err(_) if words::<3>(memory, edata).is_none() => {
                self.unread.push(page);
                return !is_mapped(memory, edata);
            }
            Err(found) => log.add(page, edata + 8, "an extent that begins on this page", found),
        }
        false
    }
}
