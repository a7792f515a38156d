//! Blocks that no root reaches, each under the block that leads to it.
//!
//! A leak is a block that no other leaked block points to, or the lowest block of a cycle that
//! nothing outside points to. All blocks that it reaches count to it; one that two leaks reach
//! counts to the leak with the higher address.

use super::{PointerGraph, Traversal, number};
use crate::blocks::BlockTable;

/// A leak and the blocks that only leaked blocks lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapLeak {
    /// The head: number of a block.
    pub head: u32,
    /// Blocks, the head included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All leaks of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapLeaks {
    /// In order of address.
    pub leaks: Vec<HeapLeak>,
    /// All blocks that no root reaches.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// State of a block in the search.
const UNSEEN: u8 = 0;
const IN_FIRST_SEARCH: u8 = 1;
const IN_SECOND_SEARCH: u8 = 2;
const REACHABLE: u8 = 3;

impl HeapLeaks {
    /// Finds the leaks: the blocks that `traversal` did not reach.
    pub fn new(graph: &PointerGraph, traversal: &Traversal, blocks: &BlockTable) -> HeapLeaks {
        let state = |block| if traversal.reaches(block) { REACHABLE } else { UNSEEN };
        let state = (0..number(graph.blocks)).map(state).collect();
        let mut search = LeakSearch { graph, state, stack: Vec::new() };
        let mut starts = Vec::new();
        for block in 0..number(graph.blocks) {
            if search.state[block as usize] == UNSEEN {
                starts.push(block);
                search.flood(block, IN_FIRST_SEARCH, |_| ());
            }
        }
        // No other leaked block leads to the last start, or only its own cycle does. In reverse
        // order this holds for each start that a later one does not reach: had an earlier start
        // reached it, it would not have become a start.
        let mut found = HeapLeaks::default();
        for &head in starts.iter().rev() {
            if search.state[head as usize] == IN_SECOND_SEARCH {
                continue;
            }
            let mut leak = HeapLeak { head, ..HeapLeak::default() };
            search.flood(head, IN_SECOND_SEARCH, |block| {
                leak.blocks += 1;
                leak.bytes += blocks.get(block as usize).map_or(0, |it| it.size);
            });
            found.blocks += leak.blocks;
            found.bytes += leak.bytes;
            found.leaks.push(leak);
        }
        found.leaks.reverse();
        found
    }
}

struct LeakSearch<'a> {
    graph: &'a PointerGraph,
    state: Vec<u8>,
    stack: Vec<u32>,
}

impl LeakSearch<'_> {
    /// Gives a new state to all leaked blocks that `start` reaches and that have an older one.
    fn flood(&mut self, start: u32, state: u8, mut each: impl FnMut(u32)) {
        self.state[start as usize] = state;
        self.stack.push(start);
        while let Some(block) = self.stack.pop() {
            each(block);
            for &target in self.graph.targets_of(block) {
                let known = &mut self.state[target as usize];
                if *known < state {
                    *known = state;
                    self.stack.push(target);
                }
            }
        }
    }
}
