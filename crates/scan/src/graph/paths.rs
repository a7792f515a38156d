//! Paths from roots to a block: the pointers that keep it alive.

use std::collections::VecDeque;

use super::{PointerGraph, number};

/// A shortest path from a root to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepPath {
    /// Nodes from the root to the block.
    pub nodes: Vec<u32>,
}

/// Shortest paths to a block from at most `most` roots, the shortest first. Empty if the block is
/// leaked.
pub fn paths_to(graph: &PointerGraph, block: u32, most: usize) -> Vec<KeepPath> {
    PathSearch::new(graph).paths_to(block, most, usize::MAX)
}

/// A search for paths to several blocks, one after the other.
#[derive(Debug)]
pub struct PathSearch<'g> {
    graph: &'g PointerGraph,
    sources: SourceLists,
    /// The node that follows on the path to the block; [`NO_NODE`] for nodes that were not visited.
    next: Vec<u32>,
}

const NO_NODE: u32 = u32::MAX;

impl<'g> PathSearch<'g> {
    /// Reverses all pointers.
    pub fn new(graph: &'g PointerGraph) -> PathSearch<'g> {
        let (sources, next) = (SourceLists::new(graph), vec![NO_NODE; graph.nodes()]);
        PathSearch { graph, sources, next }
    }

    /// Shortest paths to a block from at most `most` roots, the shortest first, among the
    /// `max_nodes` nodes that are nearest to the block.
    pub fn paths_to(&mut self, block: u32, most: usize, max_nodes: usize) -> Vec<KeepPath> {
        let mut queue = VecDeque::from([block]);
        let mut visited = vec![block];
        self.next[block as usize] = block;
        let mut paths = Vec::new();
        while let Some(node) = queue.pop_front() {
            if self.graph.root_of(node).is_some() {
                paths.push(KeepPath { nodes: follow(&self.next, node) });
                if paths.len() >= most {
                    break;
                }
            }
            for &source in self.sources.of(node) {
                let next = &mut self.next[source as usize];
                if *next == NO_NODE && visited.len() < max_nodes {
                    *next = node;
                    visited.push(source);
                    queue.push_back(source);
                }
            }
        }
        visited.iter().for_each(|&node| self.next[node as usize] = NO_NODE);
        paths
    }
}

fn follow(next: &[u32], from: u32) -> Vec<u32> {
    let step = |&node: &u32| Some(next[node as usize]).filter(|&after| after != node);
    std::iter::successors(Some(from), step).collect()
}

/// Pointers by their target.
#[derive(Debug)]
struct SourceLists {
    offsets: Vec<u32>,
    sources: Vec<u32>,
}

impl SourceLists {
    fn new(graph: &PointerGraph) -> SourceLists {
        let mut offsets = vec![0_u32; graph.nodes() + 1];
        graph.targets.iter().for_each(|&target| offsets[target as usize] += 1);
        let mut sum = 0;
        for offset in &mut offsets {
            sum += *offset;
            *offset = sum;
        }
        let mut sources = vec![0; sum as usize];
        for source in 0..number(graph.nodes()) {
            for &target in graph.targets_of(source) {
                let offset = &mut offsets[target as usize];
                *offset -= 1;
                sources[*offset as usize] = source;
            }
        }
        SourceLists { offsets, sources }
    }

    fn of(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.sources[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }
}
