//! Bytes that only one node keeps alive: of each root and block, and summed up by size and type.

use std::collections::HashMap;

use super::{DominatorTree, PointerGraph, Traversal, VIRTUAL_ROOT, number};
use crate::blocks::BlockTable;

/// Maximum number of entries of a retention tree; further nodes are counted in the entry above.
const MAX_ENTRIES: usize = 50_000;
/// Maximum number of entries from a root down.
const MAX_DEPTH: u32 = 24;

/// Retained bytes and blocks by depth-first number: the node and all nodes that it dominates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedSizes {
    bytes: Vec<u64>,
    blocks: Vec<u32>,
}

impl RetainedSizes {
    /// Sums up the sizes of blocks along the dominator tree.
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

    /// Bytes that are unreachable without the node.
    pub fn bytes(&self, number: u32) -> u64 {
        self.bytes[number as usize]
    }

    /// Blocks that are unreachable without the node, the node included.
    pub fn blocks(&self, number: u32) -> u64 {
        u64::from(self.blocks[number as usize])
    }
}

/// Blocks of one size and type that the same entry retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionNode {
    /// The entry above; `None` of roots, and of blocks that several roots keep alive.
    pub parent: Option<u32>,
    /// The first node: the root, or a block of this size and type.
    pub first: u32,
    /// Blocks of this entry.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks of this entry and of all below it.
    pub retained_blocks: u64,
    /// Their bytes.
    pub retained_bytes: u64,
    /// Class of its nodes.
    pub class: NodeClass,
    depth: u32,
    /// The last entry that was made below this one.
    last: u32,
}

/// Nodes of one class below the same entry share an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeClass {
    /// A root, by its node.
    Root(u32),
    /// Blocks.
    Block {
        /// Usable bytes of each.
        size: u64,
        /// Number of the type.
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

/// The dominator tree by size and type of blocks. A chain of blocks of one class, such as a list,
/// is one entry, also if blocks of other classes lie between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionTree {
    /// Entries, each behind the one above it.
    pub entries: Vec<RetentionNode>,
}

impl RetentionTree {
    /// Groups the dominator tree.
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
            // A loop of its own, so that the cache misses of several blocks overlap.
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
/// Nodes whose blocks are read together.
const BATCH: u32 = 256;

#[derive(Default)]
struct RetentionBuilder {
    entries: Vec<RetentionNode>,
    below: HashMap<(u32, NodeClass), u32>,
}

impl RetentionBuilder {
    /// The entry of a node whose dominator has the entry `above`.
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

    /// Adds a node to its entry.
    fn add(&mut self, entry: u32, class: NodeClass) {
        if let (NodeClass::Block { size, .. }, Some(entry)) =
            (class, self.entries.get_mut(entry as usize))
        {
            entry.blocks += 1;
            entry.bytes += size;
        }
    }

    /// An entry of this class directly below `above`, or `above` itself or an entry over it.
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
    /// True if it stands for a block, or for blocks, that several roots keep alive.
    pub fn is_shared(&self) -> bool {
        self.parent.is_none() && matches!(self.class, NodeClass::Block { .. })
    }
}

/// Number and bytes of all reachable blocks, which the virtual root retains.
pub fn reachable(retained: &RetainedSizes) -> (u64, u64) {
    (retained.blocks(VIRTUAL_ROOT), retained.bytes(VIRTUAL_ROOT))
}
