//! Bytes that only one node keeps alive: for each root and block, and summed by block size and
//! type.

use std::collections::HashMap;

use super::{DominatorTree, PointerGraph, Traversal, VIRTUAL_ROOT, number};
use crate::blocks::BlockTable;

/// Maximum number of entries of a retention tree; further nodes count in their parent entry.
const MAX_ENTRIES: usize = 50_000;
/// Maximum number of entries on a path from a root entry down.
const MAX_DEPTH: u32 = 24;

/// Retained bytes and blocks of each node, indexed by depth-first number: the sums over the node
/// and all nodes that it dominates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedSizes {
    bytes: Vec<u64>,
    blocks: Vec<u32>,
}

impl RetainedSizes {
    /// Sums the sizes of blocks up the dominator tree.
    pub fn new(
        traversal: &Traversal,
        dominators: &DominatorTree,
        blocks: &BlockTable,
    ) -> RetainedSizes {
        let nodes = number(traversal.len());
        let block = |node| traversal.node(node).and_then(|node| blocks.get(node as usize));
        let mut bytes: Vec<u64> =
            (0..nodes).map(|node| block(node).map_or(0, |it| it.size)).collect();
        let mut counts: Vec<u32> =
            (0..nodes).map(|node| u32::from(block(node).is_some())).collect();
        for node in (1..nodes).rev() {
            let dominator = dominators.parent(node) as usize;
            bytes[dominator] += bytes[node as usize];
            counts[dominator] += counts[node as usize];
        }
        RetainedSizes { bytes, blocks: counts }
    }

    /// Number of bytes that are unreachable without the node.
    pub fn bytes(&self, number: u32) -> u64 {
        self.bytes[number as usize]
    }

    /// Number of blocks that are unreachable without the node, including the node itself.
    pub fn blocks(&self, number: u32) -> u64 {
        u64::from(self.blocks[number as usize])
    }
}

/// An entry of the retention tree: blocks of one size and type with the same parent entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionNode {
    /// Index of the parent entry; `None` for roots, and for blocks that several roots keep alive.
    pub parent: Option<u32>,
    /// First node of the entry: the root, or a block of this size and type.
    pub first: u32,
    /// Number of blocks of the entry.
    pub blocks: u64,
    /// Number of bytes of the blocks of the entry.
    pub bytes: u64,
    /// Number of blocks of the entry and of all its descendants.
    pub retained_blocks: u64,
    /// Number of bytes of the blocks of the entry and of all its descendants.
    pub retained_bytes: u64,
    /// Class of the nodes of the entry.
    pub class: NodeClass,
    depth: u32,
    /// Index of the child entry that was created last.
    last: u32,
}

/// Class of a node. Nodes of one class below the same entry share an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeClass {
    /// A root, given by its node.
    Root(u32),
    /// A block, given by its size and type.
    Block {
        /// Number of usable bytes.
        size: u64,
        /// Type number.
        block_type: u32,
    },
}

impl NodeClass {
    fn of(graph: &PointerGraph, blocks: &BlockTable, node: u32) -> NodeClass {
        let is_block = (node as usize) < graph.blocks();
        let block = blocks.get(node as usize).filter(|_| is_block);
        block.map_or(NodeClass::Root(node), |block| NodeClass::Block {
            size: block.size,
            block_type: graph.types().number(node),
        })
    }
}

/// The dominator tree, grouped by size and type of blocks. A chain of blocks of one class, such as
/// a linked list, is one entry, even if blocks of other classes are between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionTree {
    /// Entries; each entry follows its parent.
    pub entries: Vec<RetentionNode>,
}

impl RetentionTree {
    /// Builds the retention tree from the dominator tree.
    pub fn new(
        graph: &PointerGraph,
        traversal: &Traversal,
        dominators: &DominatorTree,
        blocks: &BlockTable,
    ) -> RetentionTree {
        let mut builder = RetentionBuilder::default();
        let nodes = number(traversal.len());
        let mut entry_of = vec![NO_ENTRY; traversal.len()];
        let mut batch: Vec<(u32, NodeClass)> = Vec::with_capacity(BATCH as usize);
        for first in (1..nodes).step_by(BATCH as usize) {
            // A separate loop overlaps the cache misses of several blocks.
            let found = (first..nodes.min(first + BATCH)).filter_map(|at| traversal.node(at));
            batch.extend(found.map(|node| (node, NodeClass::of(graph, blocks, node))));
            for ((node, class), at) in batch.drain(..).zip(first..) {
                let above = entry_of[dominators.parent(at) as usize];
                let entry = builder.entry(above, class, node);
                entry_of[at as usize] = entry;
                builder.add(entry, class);
            }
        }
        builder.finish()
    }
}

const NO_ENTRY: u32 = u32::MAX;
/// Number of nodes whose blocks are read together.
const BATCH: u32 = 256;

#[derive(Default)]
struct RetentionBuilder {
    entries: Vec<RetentionNode>,
    below: HashMap<(u32, NodeClass), u32>,
}

impl RetentionBuilder {
    /// Returns the entry of a node whose dominator belongs to the entry `above`, and creates it if
    /// necessary.
    fn entry(&mut self, above: u32, class: NodeClass, node: u32) -> u32 {
        if let Some(known) = self.known(above, class) {
            return known;
        }
        let depth = self.entries.get(above as usize).map_or(0, |entry| entry.depth + 1);
        if depth >= MAX_DEPTH || self.entries.len() >= MAX_ENTRIES && above != NO_ENTRY {
            return above;
        }
        let entry = number(self.entries.len());
        self.entries.push(RetentionNode {
            parent: (above != NO_ENTRY).then_some(above),
            first: node,
            blocks: 0,
            bytes: 0,
            retained_blocks: 0,
            retained_bytes: 0,
            depth,
            class,
            last: NO_ENTRY,
        });
        self.below.insert((above, class), entry);
        if let Some(above) = self.entries.get_mut(above as usize) {
            above.last = entry;
        }
        entry
    }

    /// Counts a node in its entry.
    fn add(&mut self, entry: u32, class: NodeClass) {
        if let (NodeClass::Block { size, .. }, Some(entry)) =
            (class, self.entries.get_mut(entry as usize))
        {
            entry.blocks += 1;
            entry.bytes += size;
        }
    }

    /// Returns a child of `above` with this class, or else `above` itself or one of its ancestors
    /// with this class; `None` if no entry matches.
    fn known(&self, above: u32, class: NodeClass) -> Option<u32> {
        let mut at = self.entries.get(above as usize).map(|entry| (above, entry));
        if let Some(last) = at.and_then(|(_, entry)| self.entries.get(entry.last as usize))
            && last.class == class
        {
            return at.map(|(_, entry)| entry.last);
        }
        while let Some((number, entry)) = at {
            if entry.class == class {
                return Some(number);
            }
            at = entry.parent.and_then(|up| Some((up, self.entries.get(up as usize)?)));
        }
        self.below.get(&(above, class)).copied()
    }

    fn finish(mut self) -> RetentionTree {
        for entry in &mut self.entries {
            (entry.retained_blocks, entry.retained_bytes) = (entry.blocks, entry.bytes);
        }
        for at in (0..self.entries.len()).rev() {
            let RetentionNode { parent, retained_blocks, retained_bytes, .. } = self.entries[at];
            if let Some(above) = parent.and_then(|up| self.entries.get_mut(up as usize)) {
                above.retained_blocks += retained_blocks;
                above.retained_bytes += retained_bytes;
            }
        }
        RetentionTree { entries: self.entries }
    }
}

impl RetentionNode {
    /// True if the entry contains blocks that several roots keep alive.
    pub fn is_shared(&self) -> bool {
        self.parent.is_none() && matches!(self.class, NodeClass::Block { .. })
    }
}

/// Number and bytes of all reachable blocks, which the virtual root retains.
pub fn reachable(retained: &RetainedSizes) -> (u64, u64) {
    (retained.blocks(VIRTUAL_ROOT), retained.bytes(VIRTUAL_ROOT))
}
