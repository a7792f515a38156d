//! Blocks of any size, freed in any order.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::alloc::Layout;

use pagewise_alloc::{Os, Tlsf};

pub(crate) fn main() {
    let mut pool: Tlsf<Os> = Tlsf::new(Os);
    let layout = Layout::array::<u8>(20).expect("small");
    let block = pool.allocate(layout).expect("the system has memory");
    // SAFETY: the block came from this pool with this layout, and its old address is not used any
    // more.
    let larger = unsafe { pool.reallocate(block, layout, 1000) }.expect("the system has memory");
    println!(
        "{} bytes are held, and the block {} moved",
        pool.held(),
        if larger == block { "has not" } else { "has" }
    );
}
