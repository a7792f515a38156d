//! A queue: blocks are freed in the order of their allocation.

#![expect(clippy::print_stdout, reason = "an example prints")]

use pagewise_alloc::{Fifo, Os};
use std::collections::VecDeque;

pub(crate) fn main() {
    let pool = Fifo::new(Os).expect("there is memory");
    let mut queue = VecDeque::new();
    for n in 0..1_000_000_u64 {
        queue.push_back(pool.boxed(n).expect("there is memory"));
        if queue.len() > 1000 {
            queue.pop_front();
        }
    }
    println!("{} live, in {} bytes of the system", queue.len(), pool.held());
}
