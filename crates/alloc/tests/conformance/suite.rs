//! The tests that every pool passes.

use std::mem::MaybeUninit;

use pagewise_alloc::DisciplinedAllocator;
use pagewise_alloc::source::{FailAfter, FixedBuffer};
use proptest::test_runner::{Config, TestRunner};

use crate::TestMemory;
use crate::heap::TestHeap;
use crate::mirror::Mirror;
use crate::program::{ProgramStep, programs};

const PROGRAMS: u32 = if cfg!(miri) { 3 } else { 128 };
/// Fewer, since each runs once for every block that it takes.
const FAILING_PROGRAMS: u32 = if cfg!(miri) { 1 } else { 16 };

/// Runs a test on random programs, and prints the shortest on which it panics.
fn on_programs(cases: u32, test: impl Fn(&[ProgramStep])) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&programs(), |program| {
        test(&program);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Runs a program on a new pool with a limited number of blocks; returns true if it was ever out of
/// memory. Every other program ends with live blocks, unless the pool would wait for them.
fn is_refused<A: DisciplinedAllocator>(
    pool: fn(TestMemory) -> Option<A>,
    program: &[ProgramStep],
    most: usize,
) -> bool {
    let heap = TestHeap::default();
    let pool = pool(FailAfter::new(heap.clone(), most));
    let refused = pool.is_none_or(|pool| {
        let mut mirror = Mirror::new(pool);
        mirror.run(program);
        if A::DEFERS || program.len().is_multiple_of(2) {
            mirror.free_all();
        }
        mirror.refused() > 0
    });
    assert_eq!(heap.missing(), 0, "a pool that ends gives every block back");
    refused
}

pub(crate) fn runs_any_program<A: DisciplinedAllocator>(pool: fn(TestMemory) -> Option<A>) {
    on_programs(PROGRAMS, |program| {
        let refused = is_refused(pool, program, usize::MAX);
        assert!(!refused, "{} had no memory where there was", A::NAME);
    });
}

pub(crate) fn survives_running_out<A: DisciplinedAllocator>(pool: fn(TestMemory) -> Option<A>) {
    on_programs(FAILING_PROGRAMS, |program| {
        // A pool may take a block for itself and one ahead of its need (a ring's frame begins in
        // one, which may be too small for what comes), but not go on asking for ever.
        let enough = (0..=program.len() + 2).find(|most| !is_refused(pool, program, *most));
        assert!(enough.is_some(), "{} takes more than a block for a step", A::NAME);
    });
}

/// Bytes of a buffer, and of what lies around it.
const BUFFER: usize = if cfg!(miri) { 1 << 20 } else { 4 << 20 };
const AROUND: usize = 1 << 10;
const UNTOUCHED: u8 = 0x3c;

pub(crate) fn lives_in_a_buffer<A: DisciplinedAllocator>(
    pool: fn(FixedBuffer<'static>) -> Option<A>,
) {
    on_programs(FAILING_PROGRAMS, |program| {
        let whole = vec![MaybeUninit::new(UNTOUCHED); BUFFER + 2 * AROUND].into_boxed_slice();
        let whole = Box::into_raw(whole);
        // SAFETY: it was a box just now, and is one again only when the pool has ended.
        let memory = unsafe { &mut *whole };
        let pool =
            pool(FixedBuffer::new(&mut memory[AROUND..][..BUFFER])).expect("a buffer as large");
        let mut mirror = Mirror::new(pool);
        mirror.run(program);
        mirror.free_all();
        drop(mirror);
        // SAFETY: it came from a box, and the pool that used it is gone.
        let whole = unsafe { Box::from_raw(whole) };
        // SAFETY: what lies around the buffer was written when it was made.
        let is_untouched = |byte: &MaybeUninit<u8>| unsafe { byte.assume_init() } == UNTOUCHED;
        let around = whole[..AROUND].iter().chain(&whole[AROUND + BUFFER..]);
        assert!({ around }.all(is_untouched), "{} writes beside its buffer", A::NAME);
    });
}
