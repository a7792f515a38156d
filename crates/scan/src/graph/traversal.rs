//! Depth-first search from all roots, which numbers the reachable nodes in order of discovery.

use super::{PointerGraph, number};

/// Number of the virtual root, an additional node that points to all roots.
pub const VIRTUAL_ROOT: u32 = 0;

/// Depth-first numbers (preorder): 0 for the virtual root, then one for every reachable node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traversal {
    /// Node of each number; `u32::MAX` for the virtual root.
    order: Vec<u32>,
    /// Number of each node; 0 if no root reaches the node.
    numbers: Vec<u32>,
    /// Number of the parent in the depth-first tree, for each number.
    parents: Vec<u32>,
}

/// Set of nodes without a number, with one bit for each node. Each pointer requires a lookup, and
/// unlike the numbers these bits fit in the CPU caches.
struct UnseenNodes(Vec<u64>);

impl UnseenNodes {
    fn new(nodes: usize) -> UnseenNodes {
        UnseenNodes(vec![u64::MAX; nodes.div_ceil(64)])
    }

    fn contains(&self, node: u32) -> bool {
        self.0[node as usize / 64] >> (node % 64) & 1 == 1
    }

    /// Removes a node. Returns false if the set did not contain it.
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

    /// Searches from all roots, and leaves `order` empty.
    pub(super) fn unordered(graph: &PointerGraph) -> Traversal {
        let mut numbers = vec![0; graph.nodes()];
        // Unused capacity takes no physical memory. While a vector grows, its used part exists
        // twice.
        let mut parents: Vec<u32> = Vec::with_capacity(graph.nodes() + 1);
        parents.push(VIRTUAL_ROOT);
        let mut unseen = UnseenNodes::new(graph.nodes());
        // Pointers to follow: number of the source, and target node. All pointers of a node are
        // read when the node is discovered; reading some of them later would access cold memory
        // again.
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
                // The reverse order on the stack makes the search follow the first pointer first.
                let targets = graph.targets_of(node).iter().rev();
                let targets = targets.filter(|target| unseen.contains(**target));
                waiting.extend(targets.map(|&target| (own, target)));
            }
        }
        Traversal { order: Vec::new(), numbers, parents }
    }

    /// Fills in `order`, which follows from the numbers.
    pub(super) fn ordered(mut self) -> Traversal {
        self.order = vec![u32::MAX; self.parents.len()];
        let reached = (0..).zip(&self.numbers).filter(|(_, number)| **number != 0);
        reached.for_each(|(node, &number)| self.order[number as usize] = node);
        self
    }

    /// Calls `each(source, target)` with the depth-first numbers of each pointer between reachable
    /// nodes.
    pub(super) fn visit_pointers(&self, graph: &PointerGraph, mut each: impl FnMut(u32, u32)) {
        let reached = (0..).zip(&self.numbers).filter(|(_, source)| **source != 0);
        for (node, &source) in reached {
            for &target in graph.targets_of(node) {
                each(source, self.numbers[target as usize]);
            }
        }
    }

    /// Number of numbered nodes, including the virtual root.
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// True if the graph has no roots.
    pub fn is_empty(&self) -> bool {
        self.parents.len() == 1
    }

    /// True if a root reaches the node.
    pub fn reaches(&self, node: u32) -> bool {
        self.numbers[node as usize] != 0
    }

    /// The node with a number; `None` for the virtual root.
    pub fn node(&self, number: u32) -> Option<u32> {
        (number != VIRTUAL_ROOT).then(|| self.order[number as usize])
    }

    /// Depth-first number of a node; `None` if no root reaches the node.
    pub fn number(&self, node: u32) -> Option<u32> {
        Some(self.numbers[node as usize]).filter(|&number| number != 0)
    }

    /// Number of the parent in the depth-first tree.
    pub fn parent(&self, number: u32) -> u32 {
        self.parents[number as usize]
    }
}
