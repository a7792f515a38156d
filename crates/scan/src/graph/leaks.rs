//! Leaks: blocks that no root reaches, grouped by the leaked block that reaches them.
//!
//! The head of a leak is a leaked block that no other leaked block points to. In a cycle of leaked
//! blocks that no block outside the cycle points to, the head is the lowest block. A leak contains
//! all blocks that its head reaches. A block that two heads reach belongs to the head with the
//! higher address.

use super::{PointerGraph, Traversal, number};
use crate::blocks::BlockTable;

/// A leak: its head, and the leaked blocks that the head reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapLeak {
    /// Index of the head block.
    pub head: u32,
    /// Number of blocks, including the head.
    pub blocks: u64,
    /// Number of bytes of the blocks, including the head.
    pub bytes: u64,
}

/// All leaks of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapLeaks {
    /// Leaks in order of the addresses of their heads.
    pub leaks: Vec<HeapLeak>,
    /// Number of blocks that no root reaches.
    pub blocks: u64,
    /// Number of bytes of the blocks that no root reaches.
    pub bytes: u64,
}

/// States of a block in the search. Later states have higher values, so that a search overwrites
/// only earlier states.
const UNSEEN: u8 = 0;
const IN_FIRST_SEARCH: u8 = 1;
const IN_SECOND_SEARCH: u8 = 2;
const REACHABLE: u8 = 3;

impl HeapLeaks {
    /// Groups the blocks that `traversal` did not reach into leaks.
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
        // A block is in `starts` if no earlier block of `starts` reaches it. So only blocks of its
        // own cycle reach the last block of `starts`, and this block is a head. The second search
        // goes through `starts` in reverse order: a block that no later block of `starts` reaches
        // is a head for the same reason.
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
    /// Sets `state` in all leaked blocks that `start` reaches and whose state is lower, and calls
    /// `each` for them.
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
