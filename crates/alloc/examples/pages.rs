//! Runs of pages, and a pool that takes its memory from them.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::alloc::Layout;

use pagewise_alloc::{Os, Pages, Tlsf};

static PAGES: Pages<Os> = Pages::new(Os);

pub(crate) fn main() {
    let mebibyte = Layout::array::<u8>(1 << 20).expect("small");
    let run = PAGES.allocate(mebibyte).expect("the system has memory");
    // SAFETY: the run is twice as long.
    let half = unsafe { run.add(1 << 19) };
    // SAFETY: the second half of the run is used no more; the first stays.
    unsafe { PAGES.free_part(half, 1 << 19) };
    let mut pool: Tlsf<&Pages<Os>> = Tlsf::new(&PAGES);
    let block = pool.allocate(Layout::new::<[u64; 100]>());
    println!("{:?}, of {:?}", block.is_some(), PAGES.usage());
}
