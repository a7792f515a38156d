//! Stacks: a list of 20 million nodes of 8 bytes.

use std::alloc::{GlobalAlloc, Layout};

use pagewise_bench_allocators::{Runner, black_box, for_each_malloc, race};

const NODES: usize = 20_000_000;

/// A node of a list: where the next is.
struct Node(*mut Node);

/// Builds a list, then walks and frees it.
fn list(malloc: &impl GlobalAlloc) {
    let layout = Layout::new::<Node>();
    let mut head = std::ptr::null_mut::<Node>();
    for _ in 0..NODES {
        // SAFETY: a node has a size.
        let node = black_box(unsafe { malloc.alloc(layout) }).cast::<Node>();
        // SAFETY: the memory is for one node and not used yet.
        unsafe { node.write(Node(head)) };
        head = node;
    }
    while !head.is_null() {
        // SAFETY: the list holds nodes that are written and not freed.
        let next = unsafe { (*head).0 };
        // SAFETY: as above, and it is used no more.
        unsafe { malloc.dealloc(head.cast(), layout) };
        head = next;
    }
}

fn main() {
    let mut runners = Vec::new();
    macro_rules! general {
        ($name:literal, $malloc:expr) => {
            runners.push(Runner::new($name, NODES, || list(&$malloc)));
        };
    }
    for_each_malloc!(general);
    race("list of 20M nodes of 8 bytes, built, walked and freed", 3, runners);
}
