//! Collections of other crates with pools as their allocators, on stable Rust.

use std::hash::RandomState;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use pagewise_alloc::{Api04, Fifo, LockedTlsf, Os, Pages, Ring, Stack, t_scope};

/// Number of elements; smaller under Miri, which is slow.
const MANY: u64 = if cfg!(miri) { 60 } else { 2000 };

/// Fills, changes and drops collections of every kind.
fn use_collections(pool: impl Allocator + Copy) {
    let mut boxes = Vec::new_in(pool);
    let mut squares = HashMap::with_hasher_in(RandomState::new(), pool);
    for n in 0..MANY {
        boxes.push(Box::new_in(n, pool));
        squares.insert(n, n * n);
    }
    (0..MANY).step_by(3).for_each(|n| _ = squares.remove(&n));
    boxes.retain(|n| !n.is_multiple_of(3));
    boxes.shrink_to_fit();
    assert!(boxes.iter().all(|n| squares[&**n] == **n * **n));
    assert_eq!(boxes.len(), squares.len());
    let zeroed: Vec<u64, _> = allocator_api2::vec![in pool; 0; 1000];
    assert!(zeroed.iter().all(|n| *n == 0));
}

#[test]
fn collections_live_in_a_stack_and_in_a_scope() {
    for mut stack in [Stack::guarded(Os), Stack::unguarded(Os)] {
        use_collections(&stack);
        stack.scope(|scope| use_collections(&*scope));
        stack.check();
    }
    t_scope(|scope| use_collections(&*scope));
}

#[test]
fn collections_live_in_a_fifo_pool() {
    for pool in [Fifo::guarded(Os), Fifo::unguarded(Os)].map(Option::unwrap) {
        use_collections(&pool);
        pool.check();
    }
}

#[test]
fn collections_live_in_a_frame_that_is_open() {
    for mut ring in [Ring::guarded(Os), Ring::unguarded(Os)].map(Option::unwrap) {
        use_collections(&ring.open().unwrap());
        ring.check();
    }
}

#[test]
fn collections_live_in_a_shared_tlsf_and_in_pages() {
    let pool: LockedTlsf<Os> = LockedTlsf::new(Os);
    use_collections(&pool);
    pool.with(|pool| pool.check());
    let pages = Pages::new(Os);
    let mut vector = Vec::new_in(&pages);
    vector.extend(0..100_000_usize);
    assert_eq!(vector.iter().sum::<usize>(), 4_999_950_000);
    drop(vector);
    assert_eq!(pages.usage().live, 0);
    pages.check();
}

#[test]
fn a_vector_that_is_the_last_allocation_grows_where_it_is() {
    let stack = Stack::unguarded(Os);
    let mut vector = Vec::with_capacity_in(1, &stack);
    let start = vector.as_ptr();
    (0..MANY).for_each(|n| vector.push(n));
    assert_eq!(vector.as_ptr(), start);
    drop(vector);
    assert_eq!(
        Vec::<u64, _>::with_capacity_in(1, &stack).as_ptr(),
        start,
        "its memory is free again"
    );
}

#[test]
#[should_panic(expected = "another is open inside")]
fn a_vector_in_a_frame_of_the_thread_does_not_grow_in_one_further_in() {
    t_scope(|outer| {
        let mut vector = Vec::new_in(&*outer);
        vector.push(1);
        t_scope(|_| (0..100).for_each(|n| vector.push(n)));
    });
}

#[test]
fn collections_of_the_later_version_of_the_traits_use_the_same_pools() {
    let pool: LockedTlsf<Os> = LockedTlsf::new(Os);
    let mut boxes = allocator_api2_04::vec::Vec::new_in(Api04(&pool));
    (0..MANY).for_each(|n| boxes.push(allocator_api2_04::boxed::Box::new_in(n, Api04(&pool))));
    boxes.retain(|n| **n % 2 == 0);
    boxes.shrink_to_fit();
    assert_eq!(boxes.len() as u64, MANY / 2);
}
