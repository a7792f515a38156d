//! Call stacks of a function that reaches itself on thousands of paths, looked up again in another
//! order.

#![expect(clippy::disallowed_types, reason = "tests run in a program of their own")]

use std::collections::HashSet;
use std::hint::black_box;

use super::*;

/// Calls on each path, each of one of two functions.
const CALLS: u32 = 12;

/// Call point in the function that this is inlined into.
#[inline(always)]
fn here() -> CallPoint {
    let (code, stack, frame);
    // SAFETY: it reads registers.
    unsafe {
        std::arch::asm!("lea {code}, [rip]", "mov {stack}, rsp", "mov {frame}, rbp",
            code = out(reg) code, stack = out(reg) stack, frame = out(reg) frame, options(nomem, nostack, preserves_flags));
    }
    CallPoint { code, stack, frame }
}

type PathProbe<'a> = &'a mut dyn FnMut(CallPoint);

/// Calls `probe` at the end of a path: each bit is a call of one function or the other, which need
/// `LEFT_WORDS` and `RIGHT_WORDS` words of stack.
#[inline(never)]
fn path<const RIGHT: bool, const LEFT_WORDS: usize, const RIGHT_WORDS: usize>(
    left: u32,
    bits: u32,
    probe: PathProbe<'_>,
) {
    let words: &[u32] = if RIGHT { &[bits; RIGHT_WORDS] } else { &[bits; LEFT_WORDS] };
    black_box(words);
    if left == 0 {
        end(probe);
    } else if bits & 1 == 0 {
        path::<false, LEFT_WORDS, RIGHT_WORDS>(left - 1, bits >> 1, probe);
    } else {
        path::<true, LEFT_WORDS, RIGHT_WORDS>(left - 1, bits >> 1, probe);
    }
    // Used after the call, which so is not a tail call.
    black_box(words);
}

#[inline(never)]
fn end(probe: PathProbe<'_>) {
    probe(here());
    black_box(());
}

fn stacks() -> Box<ThreadStacks> {
    shared::install_for_tests();
    // SAFETY: zeros are stacks of which none is known.
    unsafe { Box::<ThreadStacks>::new_zeroed().assume_init() }
}

/// Calls `probe` twice on all paths, with the round and the path, each time in another order.
/// Callers are the same both times.
fn all_paths<const LEFT_WORDS: usize, const RIGHT_WORDS: usize>(
    mut probe: impl FnMut(u32, u32, CallPoint),
) {
    for number in 0..2 << CALLS {
        let (round, number) = (number >> CALLS, number % (1 << CALLS));
        let bits = if round == 0 { number } else { number * 2897 % (1 << CALLS) };
        path::<false, LEFT_WORDS, RIGHT_WORDS>(CALLS, bits, &mut |at| probe(round, bits, at));
    }
}

/// Caches a new path, with its bits as the site. Returns its node.
fn learn(stacks: &ThreadStacks, bits: u32, at: CallPoint) -> u32 {
    match stacks.find(at) {
        Some(StackLookup::New(new)) => {
            stacks.keep(new, bits);
            new.node
        }
        Some(StackLookup::Site(site)) => panic!("path {bits} is taken for {site}"),
        None => panic!("path {bits} cannot be followed"),
    }
}

#[test]
fn each_known_stack_is_found_without_following_it() {
    let stacks = stacks();
    let mut nodes = HashSet::new();
    all_paths::<4, 4>(|round, bits, at| {
        if round == 0 {
            nodes.insert(learn(&stacks, bits, at));
        } else {
            assert_eq!(stacks.known(at).map(|(site, _)| site), Some(bits));
        }
    });
    assert_eq!(nodes.len(), 1 << CALLS, "one node for each path");
}

/// Other code may be loaded at the same addresses.
#[test]
fn forgotten_stacks_are_not_known() {
    let stacks = stacks();
    let mut count = 0;
    all_paths::<4, 4>(|round, bits, at| {
        if (round, bits) == (1, 0) {
            stacks.forget_calls();
        }
        assert_eq!(stacks.known(at), None);
        learn(&stacks, bits, at);
        count += 1;
    });
    assert_eq!(count, 2 << CALLS);
}

/// Many paths end at the same stack pointer, by frames of other sizes.
#[test]
fn stacks_of_equal_depth_with_different_frames_are_distinguished() {
    let stacks = stacks();
    let mut nodes = HashSet::new();
    all_paths::<4, 24>(|round, bits, at| {
        if round == 0 {
            nodes.insert(learn(&stacks, bits, at));
        } else {
            let found = stacks.find(at);
            assert!(matches!(found, Some(StackLookup::Site(site)) if site == bits), "path {bits}");
        }
    });
    assert_eq!(nodes.len(), 1 << CALLS, "one node for each path");
}
