//! Stacks that live for one request: a list of 100,000 nodes of 8 bytes, or ten strings, in a new
//! pool each time.

use std::ptr;

use bump_scope::Bump;
use bumpalo::Bump as Bumpalo;
use pagewise_alloc::stack::Stack;
use pagewise_alloc::{Os, t_scope};
use pagewise_bench_allocators::{BenchRunner, black_box, race};

/// A node of a list: where the next is.
#[derive(Clone, Copy)]
struct ShortListNode(
    #[expect(dead_code, reason = "the list is built, not walked")] *mut ShortListNode,
);

/// Nodes of a list.
#[inline(always)]
fn build(nodes: usize, mut allocate: impl FnMut(ShortListNode) -> *mut ShortListNode) {
    let first: *mut ShortListNode = ptr::null_mut();
    black_box((0..nodes).fold(first, |head, _| allocate(ShortListNode(head))));
}

fn with_stack(nodes: usize) {
    Stack::new(Os).scope(|scope| build(nodes, |node| scope.alloc(node)));
}

fn compare(title: &str, nodes: usize, times: usize) {
    let runner = |name: &str, list: fn(usize)| {
        BenchRunner::new(name, nodes * times, move || (0..times).for_each(|_| list(nodes)))
    };
    let runners = vec![
        runner("pagewise", with_stack),
        runner("pagewise, stack of the thread", |nodes| {
            t_scope(|scope| build(nodes, |node| scope.alloc(node)));
        }),
        runner("bumpalo", |nodes| {
            let bump = Bumpalo::new();
            build(nodes, |node| bump.alloc(node));
        }),
        runner("bump-scope", |nodes| {
            let bump: Bump = Bump::new();
            build(nodes, |node| bump.alloc(node).into_mut());
        }),
    ];
    race(title, 15, runners).goal_of_best("pagewise", 1.0, &["pagewise, "]);
}

fn main() {
    compare("list of 100,000 nodes of 8 bytes, a new pool each time: a node", 100_000, 20);
    compare("10 nodes, a new pool each time: a node", 10, 20_000);
}
