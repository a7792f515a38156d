//! The radix tree in which jemalloc looks up the extent of an address (`rtree_t`).
//!
//! The root is an array in the data of the library or program. An entry of the root points to a
//! leaf, or to a node whose entries point to leaves. A leaf has an element for each page:
//!
//! ```text
//!  built for addresses of 48 bits                       57 bits
//!   root: 2^18 pointers to leaves                        root: 2^15 pointers to nodes
//!                                                        node: 2^15 pointers to leaves
//!   leaf: 2^18 elements of 8 bytes                       leaf: 2^15 elements of 16 bytes
//!    48..56  size class of the extent                     first word: address of edata
//!     7..48  address of edata                             second word, 5.3: bits 0 slab,
//!     0..7   flags; 0: slab                               5..13 size class; 5.2: 0..8 size
//!                                                         class, 32 slab
//! ```
//!
//! The symbols of the tree are not exported. A pointer in data counts as an entry of a root under
//! one condition: the address of the extent of the first used element below the pointer agrees with
//! the position of this element. The address of this extent determines the index of the entry in
//! the root, and so the start of the root.

use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping};

use super::size_classes::PAGE;
use crate::graph::is_data;
use crate::memory::{Memory, first_word, words};
use crate::span_tally::{DisjointRanges, joined};

/// Alignment in bytes of nodes.
const NODE_ALIGNMENT: u64 = 64;
/// Alignment in bytes of `extent_t` in jemalloc 5.2; `edata_t` of 5.3 has an alignment of 128.
const EXTENT_ALIGNMENT: u64 = 64;
/// Upper bound of addresses in user space.
const MAX_ADDRESS: u64 = 1 << 57;
/// Maximum number of zero bytes that are read, in total, behind pointers that turn out not to point
/// to nodes.
const MAX_SEARCH: u64 = 1 << 30;
/// Maximum number of rejected trees that are stored, so that they are not read again.
const MAX_REFUSED: usize = 256;
/// Shape of a tree, which depends on the width of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeShape {
    /// Number of bits of the page number that each level indexes.
    level_bits: u32,
    /// Number of levels below the root, including the leaves.
    levels: u32,
    /// Number of bytes of a leaf element.
    element: u64,
}

const SHAPES: [TreeShape; 2] = [
    TreeShape { level_bits: 18, levels: 1, element: 8 },
    TreeShape { level_bits: 15, levels: 2, element: 16 },
];

impl TreeShape {
    const fn entries(self) -> u64 {
        1 << self.level_bits
    }

    /// Number of bytes of a node that is `levels` levels above the leaves; of a leaf if `levels` is
    /// 0.
    const fn node_bytes(self, levels: u32) -> u64 {
        self.entries() * if levels == 0 { self.element } else { 8 }
    }

    const fn root_bytes(self) -> u64 {
        self.entries() * 8
    }

    /// True if leaf elements are one word.
    pub(super) const fn is_compact(self) -> bool {
        self.element == 8
    }

    /// Address of the extent in the first word of an element; 0 if it has none.
    fn edata(self, word: u64) -> u64 {
        let address = if self.is_compact() { word & ((1 << 48) - 1) } else { word };
        address & !(EXTENT_ALIGNMENT - 1)
    }
}

/// An element of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafElement {
    /// Address of the page.
    pub(super) page: u64,
    /// Address of the `extent_t` or `edata_t` of the page.
    pub(super) edata: u64,
    /// The words of the element.
    pub(super) raw: [u64; 2],
}

/// A tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtentTree {
    pub(super) root: u64,
    pub(super) shape: TreeShape,
}

impl ExtentTree {
    /// Address range of the root.
    pub(super) fn root_range(self) -> AddrRange {
        AddrRange { start: self.root, end: self.root + self.shape.root_bytes() }
    }

    /// Calls `each` for all leaf elements that have an extent, in order of address. Calls
    /// `overlapping` with the address and value of an entry whose node overlaps another node, and
    /// skips this node. The visit ends when a callback returns false. Returns the address ranges of
    /// the nodes.
    pub(super) fn visit(
        self,
        memory: &dyn Memory,
        each: &mut dyn FnMut(LeafElement) -> bool,
        overlapping: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Vec<AddrRange> {
        let root = TreeNode { address: self.root, levels: self.shape.levels, key: 0 };
        let nodes = DisjointRanges::default();
        let mut visit = TreeVisit { shape: self.shape, memory, nodes, each, is_ended: false };
        visit.node(root, overlapping);
        visit.nodes.into_ranges()
    }
}

#[derive(Clone, Copy)]
struct TreeNode {
    address: u64,
    /// Number of levels below the node.
    levels: u32,
    /// Number of the first page that the node covers.
    key: u64,
}

struct TreeVisit<'a> {
    shape: TreeShape,
    memory: &'a dyn Memory,
    /// Ranges of the visited nodes below the root, so that no memory is visited twice.
    nodes: DisjointRanges,
    each: &'a mut dyn FnMut(LeafElement) -> bool,
    is_ended: bool,
}

impl TreeVisit<'_> {
    fn node(&mut self, node: TreeNode, overlapping: &mut dyn FnMut(u64, u64) -> bool) {
        let TreeVisit { shape, memory, .. } = *self;
        let entry = if node.levels == 0 { shape.element } else { 8 };
        let bytes = shape.node_bytes(node.levels);
        let range = AddrRange { start: node.address, end: node.address.saturating_add(bytes) };
        memory.visit(range, &mut |address, bytes| {
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            for (at, word) in (address..).step_by(8).zip(words) {
                if self.is_ended {
                    return;
                }
                let offset = at - node.address;
                if word == 0 || !offset.is_multiple_of(entry) {
                    continue;
                }
                let index = offset / entry;
                if node.levels == 0 {
                    let second = if entry == 8 { 0 } else { memory.word(at + 8).unwrap_or(0) };
                    let page = (node.key + index) * PAGE;
                    let edata = shape.edata(word);
                    self.is_ended = !(self.each)(LeafElement { page, edata, raw: [word, second] });
                    continue;
                }
                let key = node.key + (index << (shape.level_bits * node.levels));
                let child = TreeNode { address: word, levels: node.levels - 1, key };
                if self.enter(child) {
                    self.node(child, overlapping);
                } else {
                    self.is_ended = !overlapping(at, word);
                }
            }
        });
    }

    /// Records a node as visited. Returns false if it overlaps a visited node.
    fn enter(&mut self, node: TreeNode) -> bool {
        let bytes = self.shape.node_bytes(node.levels);
        let end = node.address.checked_add(bytes).filter(|end| *end <= MAX_ADDRESS);
        let range = end.map(|end| AddrRange { start: node.address, end });
        node.address.is_multiple_of(8) && range.is_some_and(|range| self.nodes.insert(range))
    }
}

/// Private writable anonymous memory, in order of address. Adjacent mappings are joined, because
/// the kernel may have split a block of the allocator into several mappings.
pub(crate) fn anonymous_memory(mappings: &[Mapping]) -> Vec<AddrRange> {
    let is_anonymous = |it: &&Mapping| {
        it.sharing == Sharing::Private
            && it.prot.write
            && it.backing() == Backing::Anonymous
            && it.range.end <= MAX_ADDRESS
    };
    joined(mappings.iter().filter(is_anonymous).map(|it| it.range))
}

/// Writable data of the program and its libraries, in order of address.
pub(crate) fn written_data(mappings: &[Mapping]) -> Vec<AddrRange> {
    let is_written = |at: &usize| mappings[*at].prot.write && is_data(mappings, *at);
    joined((0..mappings.len()).filter(is_written).map(|at| mappings[at].range))
}

/// The range of a sorted list that contains `address`; `None` if none does.
pub(crate) fn range_of(ranges: &[AddrRange], address: u64) -> Option<AddrRange> {
    let at = ranges.partition_point(|range| range.end <= address);
    ranges.get(at).copied().filter(|range| range.contains(address))
}

/// Finds all trees of a process: a program and a library can each contain a tree. `accepts` reads a
/// tree, and returns false for words that only look like a tree. `accepts` is not called again for
/// a rejected tree.
pub(super) fn find_extent_trees(
    memory: &dyn Memory,
    anonymous: &[AddrRange],
    accepts: &mut dyn FnMut(ExtentTree) -> bool,
) {
    let mut search = TreeSearch { memory, anonymous, left: MAX_SEARCH };
    let mut refused: Vec<ExtentTree> = Vec::new();
    let mut last: Option<AddrRange> = None;
    for range in written_data(memory.mappings()) {
        memory.visit(range, &mut |address, bytes| {
            let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            for (at, word) in (address..).step_by(8).zip(words) {
                let is_in_tree = last.is_some_and(|tree| tree.contains(at));
                if word == 0 || !word.is_multiple_of(NODE_ALIGNMENT) || is_in_tree {
                    continue;
                }
                let tree = search.tree_with_entry(at, word, range);
                let Some(tree) = tree.filter(|tree| !refused.contains(tree)) else { continue };
                if accepts(tree) {
                    last = Some(tree.root_range());
                } else if refused.len() < MAX_REFUSED {
                    refused.push(tree);
                }
            }
        });
    }
}

struct TreeSearch<'a> {
    memory: &'a dyn Memory,
    anonymous: &'a [AddrRange],
    /// Number of zero bytes that may still be read.
    left: u64,
}

impl TreeSearch<'_> {
    /// Returns the tree whose root contains the pointer `node` at the address `entry` in the data
    /// range `data`.
    fn tree_with_entry(&mut self, entry: u64, node: u64, data: AddrRange) -> Option<ExtentTree> {
        let region = range_of(self.anonymous, node)?;
        let room = region.end - node;
        SHAPES.into_iter().find_map(|shape| {
            let levels = shape.levels - 1;
            let page = self.page_below(shape, node, levels, room)?;
            let index = (page / PAGE) >> (shape.level_bits * shape.levels);
            let root = entry.checked_sub(index.checked_mul(8)?)?;
            let end = root.checked_add(shape.root_bytes())?;
            (data.start <= root && end <= data.end).then_some(ExtentTree { root, shape })
        })
    }

    /// Address of the page of the first element with an extent below a node; `None` if this extent
    /// does not contain the page.
    fn page_below(&mut self, shape: TreeShape, node: u64, levels: u32, room: u64) -> Option<u64> {
        let bytes = shape.node_bytes(levels);
        if room < bytes {
            return None;
        }
        let range = AddrRange { start: node, end: node + bytes };
        if levels > 0 {
            let (index, word) =
                first_word(self.memory, range, 8, &mut self.left, &|word| word != 0)?;
            let region = range_of(self.anonymous, word)?;
            let page = self.page_below(shape, word, levels - 1, region.end - word)?;
            let own_index = (page / PAGE) >> (shape.level_bits * levels) & (shape.entries() - 1);
            return (own_index == index).then_some(page);
        }
        // An element whose extent was merged into another extent keeps its size class, so only the
        // address shows whether an element has an extent.
        let has_extent = |word| shape.edata(word) != 0;
        let (index, word) =
            first_word(self.memory, range, shape.element, &mut self.left, &has_extent)?;
        let edata = shape.edata(word);
        range_of(self.anonymous, edata)?;
        let [address, size] = words(self.memory, edata.checked_add(8)?)?;
        page_with_index(address, size, index, shape.entries() - 1)
    }
}

/// Address of the page of an extent whose page number has the low bits `index`.
fn page_with_index(address: u64, size: u64, index: u64, mask: u64) -> Option<u64> {
    let pages = size / PAGE;
    if pages == 0 || address >= MAX_ADDRESS || size >= MAX_ADDRESS {
        return None;
    }
    let first = address / PAGE;
    let ahead = index.wrapping_sub(first) & mask;
    (ahead < pages).then_some((first + ahead) * PAGE)
}
