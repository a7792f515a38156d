//! Tests of the stack of a thread.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]

use std::panic::catch_unwind;

use pagewise_alloc::{TScope, t_scope};

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

fn t_join<'s>(scope: &TScope<'s>, words: &[&str]) -> &'s str {
    let parts: Vec<&str> = t_scope(|_| words.to_vec());
    scope.alloc_str(&parts.join(" "))
}

#[test]
fn a_function_allocates_in_the_frame_of_its_caller_and_uses_one_of_its_own() {
    t_scope(|scope| {
        let first = t_join(scope, &["a", "b"]);
        let second = t_join(scope, &["c"]);
        assert_eq!((first, second), ("a b", "c"));
    });
}

#[test]
fn frames_of_a_thread_use_the_same_memory_again() {
    let place = || t_scope(|scope| address(scope.alloc(1_u64)));
    assert_eq!(place(), place());
    let elsewhere = std::thread::spawn(place).join().unwrap();
    assert_ne!(elsewhere, t_scope(|scope| address(scope.alloc(1_u64))));
}

/// Number of resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn a_thread_that_ends_gives_its_memory_back() {
    let allocate = || t_scope(|scope| scope.alloc_slice_with(16 << 20, |_| 1_u8).len());
    let run = || std::thread::spawn(allocate).join().unwrap();
    // The first threads make the C library create arenas, which stay resident.
    (0..4).for_each(|_| _ = run());
    let before = resident();
    let allocated: usize = (0..16).map(|_| run()).sum();
    let left = resident().saturating_sub(before);
    assert!(left < allocated / 4, "of {allocated} bytes {left} are left");
}

#[test]
fn an_outer_scope_cannot_be_used_while_an_inner_one_is_open() {
    let panic = catch_unwind(|| t_scope(|outer| t_scope(|_| _ = outer.alloc(1)))).unwrap_err();
    let said = panic.downcast_ref::<&str>().unwrap();
    assert!(said.contains("another is open inside"), "{said:?}");
    t_scope(|scope| assert_eq!(*scope.alloc(1), 1));
}
