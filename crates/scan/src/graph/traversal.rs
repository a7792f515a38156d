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

/// A node on the path from a root: its number, and its pointers that are not followed yet.
struct PathStep {
    number: u32,
    next: u32,
    end: u32,
}

/// Takes the pointers that the search does not follow, by number: source and target.
trait OtherPointers {
    fn add(&mut self, source: u32, target: u32);
}

impl OtherPointers for () {
    fn add(&mut self, _: u32, _: u32) {}
}

impl OtherPointers for Vec<(u32, u32)> {
    fn add(&mut self, source: u32, target: u32) {
        self.push((source, target));
    }
}

impl Traversal {
    /// Searches from all roots of a graph.
    pub fn new(graph: &PointerGraph) -> Traversal {
        Traversal::with_others(graph, &mut ())
    }

    /// Searches from all roots of a graph, and notes the pointers between reachable nodes that the
    /// search does not follow, since their target has its number already.
    pub(super) fn with_other_pointers(graph: &PointerGraph) -> (Traversal, Vec<(u32, u32)>) {
        let mut others = Vec::with_capacity(graph.targets.len());
        (Traversal::with_others(graph, &mut others), others)
    }

    fn with_others(graph: &PointerGraph, others: &mut impl OtherPointers) -> Traversal {
        // Unused capacity takes no memory. Growth would take the used part twice.
        let with_capacity = || Vec::with_capacity(graph.nodes() + 1);
        let mut traversal = Traversal {
            order: with_capacity(),
            numbers: vec![0; graph.nodes()],
            parents: with_capacity(),
        };
        traversal.order.push(u32::MAX);
        traversal.parents.push(VIRTUAL_ROOT);
        let mut path = Vec::with_capacity(graph.nodes());
        for root in graph.blocks..graph.nodes() {
            traversal.search(graph, number(root), &mut path, others);
        }
        traversal
    }

    fn search(
        &mut self,
        graph: &PointerGraph,
        root: u32,
        path: &mut Vec<PathStep>,
        others: &mut impl OtherPointers,
    ) {
        path.push(self.discovered(graph, root, VIRTUAL_ROOT));
        while let Some(step) = path.last_mut() {
            if step.next == step.end {
                path.pop();
                continue;
            }
            let target = graph.targets[step.next as usize];
            step.next += 1;
            let source = step.number;
            match self.numbers[target as usize] {
                0 => path.push(self.discovered(graph, target, source)),
                known => others.add(source, known),
            }
        }
    }

    /// Numbers a node that was reached from `parent`.
    fn discovered(&mut self, graph: &PointerGraph, node: u32, parent: u32) -> PathStep {
        let number = number(self.order.len());
        self.numbers[node as usize] = number;
        self.order.push(node);
        self.parents.push(parent);
        let at = node as usize;
        PathStep { number, next: graph.offsets[at], end: graph.offsets[at + 1] }
    }

    /// Number of numbered nodes, the virtual root included.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if no root exists.
    pub fn is_empty(&self) -> bool {
        self.order.len() == 1
    }

    /// True if a root reaches the node.
    pub fn reaches(&self, node: u32) -> bool {
        self.numbers[node as usize] != 0
    }

    /// The node of a number; `None` of the virtual root.
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
