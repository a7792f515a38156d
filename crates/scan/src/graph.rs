//! Pointers between blocks, and results derived from them: reachable and leaked blocks, dominators,
//! retained bytes, and paths from roots.
//!
//! Blocks and roots are nodes with 32-bit numbers: blocks in order of address, then roots. The
//! diagram lists the bytes of memory in each phase for a block with two pointers. Every phase
//! includes 20 bytes: 8 of the block table, 8 of the pointers, and 4 of their offsets.
//!
//! ```text
//!  pointers      34   result buffers of threads 12, which become the pointers; block index 2
//!  search        36   numbers 4, parents 4, pointers to follow at most 8
//!  dominators    44   numbers 4, parents 4, forest 8, reversed pointers 4, their offsets 4, which
//!                     become the dominators
//!  retention     40   numbers 4, order 4, parents 4, dominators 4, entries 4
//!  names, paths  36   reversed pointers 8, their offsets 4, next nodes 4
//!  retained      48   for `--why`: like retention, with bytes 8 and blocks 4 instead of entries
//! ```
//!
//! ```text
//!  roots        memory that contains roots: registers, stacks, data of ELF objects
//!  edges        one pass over the roots and all blocks, which finds the pointers
//!  entities     pointers of roots grouped by variable, stack frame or mapping
//!  traversal    depth-first numbers of all nodes that a root reaches
//!  leaks        blocks that no root reaches, grouped by the leaked block that reaches them
//!  dominators   immediate dominators (semi-NCA)
//!  retained     bytes that only one root or block keeps alive
//!  paths        paths from roots to a block
//!  typing       types of blocks by the types of pointers
//! ```

mod dominators;
mod edges;
mod entities;
mod index;
mod leaks;
mod paths;
mod retained;
mod roots;
mod traversal;
mod typing;

#[cfg(test)]
pub(crate) mod image;
#[cfg(test)]
mod properties;

pub use dominators::{DominatorTree, dominators};
pub use edges::{BlockTypes, HeapPointers, UnrecordedPointers};
pub use entities::{RootEntity, RootPart};
pub use leaks::{HeapLeak, HeapLeaks};
pub use paths::{KeepPath, PathSearch, paths_to};
pub use retained::{NodeClass, RetainedSizes, RetentionNode, RetentionTree, reachable};
pub(crate) use roots::is_data;
pub use roots::{RootSpan, RootSpanKind, range_without, root_spans};
pub use traversal::{Traversal, VIRTUAL_ROOT};
pub use typing::{BlockRounding, BlockType, BlockTyping, TypingInput, member_of};

use pagewise_model::AddrRange;

use crate::blocks::BlockTable;
use crate::memory::Memory;

/// Maximum number of blocks in a graph.
pub const MAX_BLOCKS: usize = 1 << 30;

/// Finds the pointers of all blocks and roots.
///
/// Returns `None` for more than [`MAX_BLOCKS`] blocks.
pub fn heap_pointers(
    memory: &dyn Memory,
    blocks: &BlockTable,
    spans: &[RootSpan],
) -> Option<HeapPointers> {
    let most = edges::most_pointers(blocks.len());
    (blocks.len() <= MAX_BLOCKS).then(|| edges::pointers(memory, blocks, spans, most))
}

/// Nodes and their pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerGraph {
    blocks: usize,
    /// Index in `targets` of the first pointer of each node, and as last entry the number of
    /// pointers.
    offsets: Vec<u32>,
    targets: Vec<u32>,
    roots: Vec<RootEntity>,
    /// Addresses of the pointers of roots, which are the last pointers in `targets`.
    root_addresses: Vec<u64>,
    types: BlockTypes,
    unrecorded: u64,
}

impl PointerGraph {
    /// Groups the pointers of roots. The pointers in one of `areas` (variables and stack frames, in
    /// order of address) belong to one root. [`RootPart`] describes the grouping of all other
    /// pointers.
    pub fn new(pointers: HeapPointers, spans: &[RootSpan], areas: &[AddrRange]) -> PointerGraph {
        let HeapPointers { mut offsets, mut targets, roots, unrecorded, types } = pointers;
        let blocks = offsets.len().saturating_sub(1);
        let mut entities = entities::entities(&roots, spans, areas);
        targets.reserve_exact(roots.targets.len() + unrecorded.targets.len());
        targets.extend_from_slice(&roots.targets);
        let first = *offsets.last().unwrap_or(&0);
        let starts = entities.iter().skip(1).map(|entity| first + entity.first);
        offsets.extend(starts);
        if !entities.is_empty() {
            offsets.push(number(targets.len()));
        }
        if !unrecorded.targets.is_empty() {
            targets.extend(unrecorded.targets);
            entities.push(RootEntity::unrecorded(number(roots.targets.len())));
            offsets.push(number(targets.len()));
        }
        PointerGraph {
            blocks,
            offsets,
            targets,
            roots: entities,
            root_addresses: roots.addresses,
            types,
            unrecorded: unrecorded.count,
        }
    }

    /// Number of blocks. The nodes of blocks have the numbers below this number.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.blocks + self.roots.len()
    }

    /// Number of pointers.
    pub fn pointers(&self) -> usize {
        self.targets.len()
    }

    /// Number of pointers that were not stored because the limit of stored pointers was reached.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    /// Types of the blocks by their first words.
    pub fn types(&self) -> &BlockTypes {
        &self.types
    }

    /// The roots. Their nodes follow the nodes of the blocks.
    pub fn roots(&self) -> &[RootEntity] {
        &self.roots
    }

    /// The root of the node `node`; `None` for a block.
    pub fn root_of(&self, node: u32) -> Option<&RootEntity> {
        (node as usize).checked_sub(self.blocks).and_then(|root| self.roots.get(root))
    }

    /// The nodes that a node points to.
    pub fn targets_of(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.targets[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }

    /// Address of the first pointer of a root to the block `target`; `None` if the root has no such
    /// pointer.
    pub fn root_pointer(&self, node: u32, target: u32) -> Option<u64> {
        let root = self.root_of(node)?;
        let at = self.targets_of(node).iter().position(|&it| it == target)?;
        self.root_addresses.get(root.first as usize + at).copied()
    }
}

/// Converts an index to 32 bits. [`MAX_BLOCKS`] and the limit of stored pointers bound every index.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
