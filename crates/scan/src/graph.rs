//! Pointers between blocks, and conclusions from them: reachable and leaked blocks, dominators,
//! retained bytes, paths from roots.
//!
//! Blocks and roots are nodes with 32-bit numbers: blocks in order of address, then roots. Bytes of
//! memory for a block with two pointers, of which 20 live through all steps: the table 8, the
//! pointers 8, their offsets 4.
//!
//! ```text
//!  pointers      34   their own threads' results 12, which become the pointers; index of blocks 2
//!  search        36   numbers 4, parents 4, pointers to follow at most 8
//!  dominators    44   numbers 4, parents 4, forest 8, reversed pointers 4 + 4, the latter of which
//!                     become dominators
//!  retention     40   numbers 4, order 4, parents 4, dominators 4, entries 4
//!  names, paths  36   reversed pointers 8 + 4, next nodes 4
//!  retained      48   for `--why`: as retention, and bytes 8, blocks 4 instead of entries
//! ```
//!
//! ```text
//!  roots        memory that holds roots: registers, stacks, data of objects
//!  edges        one pass over this memory and all blocks: the pointers
//!  entities     pointers of roots grouped by variable, stack frame or mapping
//!  traversal    depth-first numbers of all nodes that a root reaches
//!  leaks        blocks that no root reaches, under the blocks that lead to them
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

/// More blocks than this are not numbered.
pub const MAX_BLOCKS: usize = 1 << 30;

/// The pointers of all blocks and roots.
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
    /// Index in `targets` of the first pointer of each node; one more entry than nodes.
    offsets: Vec<u32>,
    targets: Vec<u32>,
    roots: Vec<RootEntity>,
    /// Addresses of the last pointers: those of roots.
    root_addresses: Vec<u64>,
    types: BlockTypes,
    unrecorded: u64,
}

impl PointerGraph {
    /// Groups the pointers of roots: those in one of `areas` (variables, stack frames; in order of
    /// address) belong together, the others of a span as [`RootPart`] describes.
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

    /// Number of blocks: the first nodes.
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

    /// Number of pointers beyond the bound.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    /// Types of the blocks.
    pub fn types(&self) -> &BlockTypes {
        &self.types
    }

    /// The roots: nodes behind the blocks.
    pub fn roots(&self) -> &[RootEntity] {
        &self.roots
    }

    /// The root with this number; `None` for a block.
    pub fn root_of(&self, node: u32) -> Option<&RootEntity> {
        (node as usize).checked_sub(self.blocks).and_then(|root| self.roots.get(root))
    }

    /// The nodes that a node points to.
    pub fn targets_of(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.targets[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }

    /// Address of the first pointer of a root to a block.
    pub fn root_pointer(&self, node: u32, target: u32) -> Option<u64> {
        let root = self.root_of(node)?;
        let at = self.targets_of(node).iter().position(|&it| it == target)?;
        self.root_addresses.get(root.first as usize + at).copied()
    }
}

/// Numbers of nodes and pointers are bounded: [`MAX_BLOCKS`] and the bound of pointers.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
