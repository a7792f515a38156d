//! Immediate dominators of all reachable nodes: node A dominates B if each path from a root to B
//! passes A.
//!
//! Semi-NCA: L. Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", 2005.

use super::{PointerGraph, Traversal, VIRTUAL_ROOT, number};

/// Immediate dominators by depth-first number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DominatorTree {
    parents: Vec<u32>,
}

impl DominatorTree {
    /// Number of the immediate dominator; that of the virtual root is itself.
    pub fn parent(&self, number: u32) -> u32 {
        self.parents[number as usize]
    }
}

/// Numbers the nodes that the roots of a graph reach, and computes their dominators.
pub fn dominators(graph: &PointerGraph) -> (Traversal, DominatorTree) {
    let (traversal, others) = Traversal::with_other_pointers(graph);
    let pointers = ReversedPointers::new(&traversal, others);
    let nodes = number(traversal.len());
    let mut forest = LinkForest::new(&traversal);
    // Semidominators first; they become dominators in place, from the root on.
    let mut parents = vec![VIRTUAL_ROOT; traversal.len()];
    for node in (1..nodes).rev() {
        let parent = traversal.parent(node);
        let sources = pointers.to(node).iter();
        let semi = sources.fold(parent, |semi, &source| semi.min(forest.lowest(source, node)));
        forest.nodes[node as usize].label = semi;
        parents[node as usize] = semi;
    }
    for node in 1..nodes {
        let mut dominator = traversal.parent(node);
        while dominator > parents[node as usize] {
            dominator = parents[dominator as usize];
        }
        parents[node as usize] = dominator;
    }
    (traversal, DominatorTree { parents })
}

/// Pointers by their target, in depth-first numbers, without those that the search followed.
struct ReversedPointers {
    offsets: Vec<u32>,
    sources: Vec<u32>,
}

impl ReversedPointers {
    fn new(traversal: &Traversal, pointers: Vec<(u32, u32)>) -> ReversedPointers {
        let mut offsets = vec![0_u32; traversal.len() + 1];
        pointers.iter().for_each(|&(_, target)| offsets[target as usize] += 1);
        let mut sum = 0;
        for offset in &mut offsets {
            sum += *offset;
            *offset = sum;
        }
        let mut sources = vec![0; pointers.len()];
        for (source, target) in pointers {
            let offset = &mut offsets[target as usize];
            *offset -= 1;
            sources[*offset as usize] = source;
        }
        ReversedPointers { offsets, sources }
    }

    fn to(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.sources[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }
}

/// Nodes that were processed, linked to their parents; paths are compressed.
struct LinkForest {
    nodes: Vec<LinkedNode>,
    path: Vec<u32>,
}

#[derive(Clone, Copy)]
struct LinkedNode {
    ancestor: u32,
    /// The lowest semidominator on the compressed path to the node.
    label: u32,
}

impl LinkForest {
    fn new(traversal: &Traversal) -> LinkForest {
        let linked = |node| LinkedNode { ancestor: traversal.parent(node), label: node };
        LinkForest { nodes: (0..number(traversal.len())).map(linked).collect(), path: Vec::new() }
    }

    /// The lowest semidominator of `node` and its linked ancestors; `node` itself if it is not
    /// linked yet. Nodes above `last` are linked.
    fn lowest(&mut self, node: u32, last: u32) -> u32 {
        if node <= last {
            return node;
        }
        let mut at = node;
        while self.nodes[at as usize].ancestor > last {
            self.path.push(at);
            at = self.nodes[at as usize].ancestor;
        }
        let mut above = self.nodes[at as usize];
        while let Some(below) = self.path.pop() {
            let below = &mut self.nodes[below as usize];
            below.label = below.label.min(above.label);
            below.ancestor = above.ancestor;
            above = *below;
        }
        above.label
    }
}
