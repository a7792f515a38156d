//! Depth-first search from all roots: the reachable nodes, numbered in the order of their
//! discovery.

use super::{PointerGraph, number};

/// Number of the virtual root, which points to all roots.
pub const VIRTUAL_ROOT: u32 = 0;

/// Depth-first numbers (preorder): 0 is the virtual root, then every reachable node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traversal {
    /// The node of each number; of the virtual root, `u32::MAX`.
    order: Vec<u32>,
    /// The number of each node; 0 if no root reaches it.
    numbers: Vec<u32>,
    /// Number of the node from which each number was reached.
    parents: Vec<u32>,
}

/// Nodes without a number, one bit each: the bits fit in the CPU caches, unlike the numbers, and
/// each pointer requires a look-up.
struct UnseenNodes(Vec<u64>);

impl UnseenNodes {
    fn new(nodes: usize) -> UnseenNodes {
        UnseenNodes(vec![u64::MAX; nodes.div_ceil(64)])
    }

    fn contains(&self, node: u32) -> bool {
        self.0[node as usize / 64] >> (node % 64) & 1 == 1
    }

    /// Removes a node. False if it was not there.
    fn remove(&mut self, node: u32) -> bool {
        let (bits, bit) = (&mut self.0[node as usize / 64], 1 << (node % 64));
        let was_there = *bits & bit != 0;
        *bits &= !bit;
        was_there
    }
}

impl Traversal {
    /// Searches from all roots of a graph.
    pub fn new(graph: &PointerGraph) -> Traversal {
        Traversal::unordered(graph).ordered()
    }

    /// A search whose `order` is still missing.
    pub(super) fn unordered(graph: &PointerGraph) -> Traversal {
        let mut numbers = vec![0; graph.nodes()];
        // Unused capacity takes no memory. Growth would take the used part twice.
        let mut parents: Vec<u32> = Vec::with_capacity(graph.nodes() + 1);
        parents.push(VIRTUAL_ROOT);
        let mut unseen = UnseenNodes::new(graph.nodes());
        // Pointers to follow: number of the source, and target. The pointers of a node are read
        // once, when it is found: to come back to it would read cold memory again.
        let mut waiting: Vec<(u32, u32)> = Vec::with_capacity(graph.pointers());
        for root in graph.blocks..graph.nodes() {
            waiting.push((VIRTUAL_ROOT, number(root)));
            while let Some((source, node)) = waiting.pop() {
                if !unseen.remove(node) {
                    continue;
                }
                let own = number(parents.len());
                numbers[node as usize] = own;
                parents.push(source);
                // The first pointer is followed first.
                let targets = graph.targets_of(node).iter().rev();
                let targets = targets.filter(|target| unseen.contains(**target));
                waiting.extend(targets.map(|&target| (own, target)));
            }
        }
        Traversal { order: Vec::new(), numbers, parents }
    }

    /// Adds the order, which follows from the numbers.
    pub(super) fn ordered(mut self) -> Traversal {
        self.order = vec![u32::MAX; self.parents.len()];
        let reached = (0..).zip(&self.numbers).filter(|(_, number)| **number != 0);
        reached.for_each(|(node, &number)| self.order[number as usize] = node);
        self
    }

    /// Calls `each(source, target)` for the pointers between reachable nodes, by number.
    pub(super) fn visit_pointers(&self, graph: &PointerGraph, mut each: impl FnMut(u32, u32)) {
        let reached = (0..).zip(&self.numbers).filter(|(_, source)| **source != 0);
        for (node, &source) in reached {
            for &target in graph.targets_of(node) {
                each(source, self.numbers[target as usize]);
            }
        }
    }

    /// Number of numbered nodes, the virtual root included.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// True if no root exists.
    pub fn is_empty(&self) -> bool {
        self.parents.len() == 1
    }

    /// True if a root reaches the node.
    pub fn reaches(&self, node: u32) -> bool {
        self.numbers[node as usize] != 0
    }

    /// The node of a number; `None` for the virtual root.
    pub fn node(&self, number: u32) -> Option<u32> {
        (number != VIRTUAL_ROOT).then(|| self.order[number as usize])
    }

    /// The number of a node; `None` if no root reaches it.
    pub fn number(&self, node: u32) -> Option<u32> {
        Some(self.numbers[node as usize]).filter(|&number| number != 0)
    }

    /// Number of the node from which a number was reached.
    pub fn parent(&self, number: u32) -> u32 {
        self.parents[number as usize]
    }
}
