//! Immediate dominators of all reachable nodes: node A dominates B if each path from a root to B
//! passes A.
//!
//! Semi-NCA: L. Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", 2005.

use super::{PointerGraph, Traversal, VIRTUAL_ROOT, number};

/// Number of nodes whose sources are prefetched together.
const BATCH: usize = 64;

/// Immediate dominators, indexed by depth-first number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DominatorTree {
    parents: Vec<u32>,
}

impl DominatorTree {
    /// Number of the immediate dominator; the virtual root dominates itself.
    pub fn parent(&self, number: u32) -> u32 {
        self.parents[number as usize]
    }
}

/// Numbers the nodes that the roots of a graph reach, and computes their immediate dominators.
pub fn dominators(graph: &PointerGraph) -> (Traversal, DominatorTree) {
    let traversal = Traversal::unordered(graph);
    let ReversedPointers { mut ends, sources, mut forest } =
        ReversedPointers::new(graph, &traversal);
    let nodes = number(traversal.len());
    // The semidominator of a node overwrites the end index of its sources, which is not
    // read again.
    for node in (1..nodes).rev() {
        let at = node as usize;
        if at.is_multiple_of(BATCH) {
            forest.read(&sources[ends[at - BATCH] as usize..ends[at] as usize]);
        }
        let sources = &sources[ends[at - 1] as usize..ends[at] as usize];
        let lowest = forest.nodes[at].label;
        let semi = sources.iter().fold(lowest, |semi, &it| semi.min(forest.lowest(it, node)));
        forest.nodes[at].label = semi;
        ends[at] = semi;
    }
    drop((forest, sources));
    // Dominators replace the semidominators in place, from the root down.
    let mut parents = ends;
    parents[VIRTUAL_ROOT as usize] = VIRTUAL_ROOT;
    let mut shortcuts = Shortcuts::with_capacity(traversal.len());
    for node in 1..nodes {
        let semi = parents[node as usize];
        let dominator = shortcuts.above(&parents, traversal.parent(node), semi);
        parents[node as usize] = dominator;
        shortcuts.push(dominator);
    }
    drop(shortcuts);
    (traversal.ordered(), DominatorTree { parents })
}

/// A second, higher ancestor of each node of the dominator tree. With it, an ancestor is found in a
/// number of steps that is logarithmic in the depth: E. W. Myers, "An applicative random-access
/// stack", 1983. A linked list in the program makes the tree as deep as the list is long.
struct Shortcuts {
    ancestors: Vec<u32>,
    depths: Vec<u32>,
}

impl Shortcuts {
    /// The virtual root alone.
    fn with_capacity(nodes: usize) -> Shortcuts {
        let mut new =
            Shortcuts { ancestors: Vec::with_capacity(nodes), depths: Vec::with_capacity(nodes) };
        new.ancestors.push(VIRTUAL_ROOT);
        new.depths.push(0);
        new
    }

    /// Adds the next node below its dominator.
    fn push(&mut self, dominator: u32) {
        let near = self.ancestors[dominator as usize];
        let far = self.ancestors[near as usize];
        let depth = |node: u32| self.depths[node as usize];
        let are_equal = depth(dominator) - depth(near) == depth(near) - depth(far);
        let depth = depth(dominator) + 1;
        self.ancestors.push(if are_equal { far } else { dominator });
        self.depths.push(depth);
    }

    /// The nearest of `node` and its dominators whose number is at most `limit`. Numbers fall
    /// towards the root.
    fn above(&self, parents: &[u32], node: u32, limit: u32) -> u32 {
        let mut at = node;
        while at > limit {
            at = self.step(parents, at, limit);
        }
        at
    }

    /// The next dominator of `node` on the way to a number of at most `limit`.
    fn step(&self, parents: &[u32], node: u32, limit: u32) -> u32 {
        let far = self.ancestors[node as usize];
        if far > limit { far } else { parents[node as usize] }
    }
}

/// Pointers grouped by their target, in depth-first numbers. Sources with a lower number than the
/// target are ancestors of the target in the depth-first tree. Only the lowest ancestor matters,
/// and it is the label of the target in the forest.
struct ReversedPointers {
    /// Index after the last source of each number. The first source follows the last source of the
    /// previous number.
    ends: Vec<u32>,
    /// Sources with a higher number than their target.
    sources: Vec<u32>,
    forest: LinkForest,
}

impl ReversedPointers {
    fn new(graph: &PointerGraph, traversal: &Traversal) -> ReversedPointers {
        // The order of two numbers is practically random, so a branch on it would often be
        // mispredicted, and the CPU would wait for a cache miss each time. This computation has no
        // branch.
        let is_back = |source: u32, target: u32| u32::from(source > target);
        let mut forest = LinkForest::new(traversal);
        traversal.visit_pointers(graph, |source, target| {
            let target_node = &mut forest.nodes[target as usize];
            target_node.label = source.min(target_node.label);
            // `ancestor` counts the sources until the second pass.
            target_node.ancestor += is_back(source, target);
        });
        let mut ends = Vec::with_capacity(traversal.len());
        let mut sum = 0;
        for (node, number) in forest.nodes.iter_mut().zip(0..) {
            // The sum is the index of the first source; the second pass adds 1 for each source.
            ends.push(sum);
            sum += std::mem::replace(&mut node.ancestor, traversal.parent(number));
        }
        // The last element absorbs the writes for pointers that are not counted.
        let mut sources = vec![0; sum as usize + 1];
        traversal.visit_pointers(graph, |source, target| {
            let (end, is_back) = (&mut ends[target as usize], is_back(source, target));
            let at = if is_back == 1 { *end } else { sum };
            sources[at as usize] = source;
            *end += is_back;
        });
        ReversedPointers { ends, sources, forest }
    }
}

/// Processed nodes, linked to their parents, with path compression.
struct LinkForest {
    nodes: Vec<LinkedNode>,
    path: Vec<u32>,
}

#[derive(Clone, Copy)]
struct LinkedNode {
    ancestor: u32,
    /// Lowest semidominator on the compressed path to the node. Before the node is processed: the
    /// lowest number of the nodes that point to the node.
    label: u32,
}

impl LinkForest {
    /// Creates a forest of unlinked nodes. The label of each node is its parent.
    fn new(traversal: &Traversal) -> LinkForest {
        let parents = (0..number(traversal.len())).map(|node| traversal.parent(node));
        let nodes = parents.map(|parent| LinkedNode { ancestor: 0, label: parent });
        LinkForest { nodes: nodes.collect(), path: Vec::new() }
    }

    /// Prefetches nodes: these reads are independent of each other, unlike the reads along a path.
    fn read(&self, numbers: &[u32]) {
        let ancestors = numbers.iter().map(|&it| self.nodes[it as usize].ancestor);
        std::hint::black_box(ancestors.fold(0, |all, it| all ^ it));
    }

    /// Returns the lowest semidominator of `node` and its linked ancestors. Requires that all nodes
    /// with numbers above `last` are linked, and that `node` is one of them.
    fn lowest(&mut self, node: u32, last: u32) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each node is dominated by the node before it, as in a linked list.
    fn list(nodes: u32) -> (Vec<u32>, Shortcuts) {
        let parents: Vec<u32> = (0..nodes).map(|node| node.saturating_sub(1)).collect();
        let mut shortcuts = Shortcuts::with_capacity(parents.len());
        parents[1..].iter().for_each(|&parent| shortcuts.push(parent));
        (parents, shortcuts)
    }

    #[test]
    fn a_dominator_of_a_long_list_is_found_in_few_steps() {
        const NODES: u32 = 1 << 17;
        let (parents, shortcuts) = list(NODES);
        for limit in [0, 1, 777, NODES / 2, NODES - 2] {
            let (mut at, mut steps) = (NODES - 1, 0);
            while at > limit {
                at = shortcuts.step(&parents, at, limit);
                steps += 1;
            }
            assert_eq!(at, limit);
            assert!(steps <= 3 * NODES.ilog2(), "{steps} steps to {limit}");
        }
    }

    #[test]
    fn the_nearest_dominator_below_a_number_is_found_in_any_tree() {
        // The parent of node N is node N / 3, or node N - 1.
        for divisor in [1, 3] {
            let parents: Vec<u32> = (0..500_u32)
                .map(|node| if divisor == 1 { node.saturating_sub(1) } else { node / divisor })
                .collect();
            let mut shortcuts = Shortcuts::with_capacity(parents.len());
            parents[1..].iter().for_each(|&parent| shortcuts.push(parent));
            for (node, limit) in (0..500).flat_map(|node| (0..500).map(move |limit| (node, limit)))
            {
                let mut plain = node;
                while plain > limit {
                    plain = parents[plain as usize];
                }
                assert_eq!(shortcuts.above(&parents, node, limit), plain);
            }
        }
    }
}
