//! `pagewise heap run --pools`: blocks of pagewise's allocators by call stack. The program that is
//! recorded is this test.

use crate::fixture;

use std::alloc::Layout;
use std::collections::BTreeMap;

use fixture::number;
use fixture::recorder::{heap, report};
use pagewise_alloc::{Os, Tlsf};

#[inline(never)]
fn fill_small(pool: &mut Tlsf<Os>) -> Vec<std::ptr::NonNull<u8>> {
    let layout = Layout::from_size_align(100, 8).unwrap();
    (0..1000).map(|_| pool.allocate(layout).unwrap()).collect()
}

#[inline(never)]
fn fill_large(pool: &mut Tlsf<Os>) {
    let layout = Layout::from_size_align(5000, 8).unwrap();
    for _ in 0..10 {
        // The blocks are freed with the pool.
        let _ = pool.allocate(layout).unwrap();
    }
}

/// Program that is recorded.
#[test]
#[ignore = "the other test runs it"]
fn the_program() {
    let mut pool = Tlsf::<Os>::new(Os);
    let blocks = fill_small(&mut pool);
    let layout = Layout::from_size_align(100, 8).unwrap();
    for block in &blocks[..400] {
        // SAFETY: `pool` allocated the block with this layout, and the block is not used again.
        unsafe { pool.free(*block, layout) };
    }
    let mut other = Tlsf::<Os>::new(Os);
    fill_large(&mut other);
    drop(other);
    std::mem::forget(pool);
}

/// Number of blocks of pools, their bytes, and number of frees, by allocating function.
fn blocks(more: &[&str]) -> BTreeMap<String, [u64; 3]> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.pwh");
    let program = std::env::current_exe().unwrap();
    let words = ["run", "-o", file.to_str().unwrap()];
    let command = ["--", program.to_str().unwrap()];
    let test = ["--ignored", "--exact", "pools::the_program", "--test-threads=1"];
    let output = heap(&[&words, more, &command, &test].concat());
    assert!(output.status.success(), "{output:?}");
    let mut functions: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for site in report(&file)["sites"].as_array().unwrap() {
        let stack = site["stack"].as_array().unwrap();
        let frame = |name: &&str| stack.iter().any(|it| it.as_str().unwrap().contains(*name));
        if site["kind"] == "pool" {
            let name = ["fill_small", "fill_large"].into_iter().find(frame).unwrap_or("other");
            let sums = functions.entry(name.to_owned()).or_default();
            for (sum, key) in sums.iter_mut().zip(["allocations", "allocated_bytes", "frees"]) {
                *sum += number(site, key);
            }
        }
    }
    functions
}

#[test]
fn blocks_of_pools_are_counted_by_function() {
    let functions = blocks(&["--pools"]);
    assert_eq!(functions["fill_small"], [1000, 100_000, 400]);
    assert_eq!(functions["fill_large"], [10, 50_000, 10], "they went with their pool");
    assert!(blocks(&[]).is_empty(), "nobody is told who did not ask");
}
