//! Tests that every pool must pass.

use std::mem::MaybeUninit;

use pagewise_alloc::DisciplinedAllocator;
use pagewise_alloc::source::{FailAfter, FixedBuffer};
use proptest::test_runner::{Config, TestRunner};

use crate::TestMemory;
use crate::heap::TestHeap;
use crate::mirror::Mirror;
use crate::program::{ProgramStep, programs};

const PROGRAMS: u32 = if cfg!(miri) { 3 } else { 128 };
/// Number of programs for tests of exhausted memory. It is smaller, since each program runs many
/// times: with a source of 0 blocks, of 1 block, and so on up to the number of blocks that the
/// program needs.
const FAILING_PROGRAMS: u32 = if cfg!(miri) { 1 } else { 16 };

/// Runs a test on random programs. If the test panics, prints the shortest program on which it
/// panics.
fn on_programs(cases: u32, test: impl Fn(&[ProgramStep])) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&programs(), |program| {
        test(&program);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Runs a program on a new pool whose source has `most` blocks. Returns true if the pool was out of
/// memory at some step. Programs with an odd number of steps end with live blocks, unless the pool
/// keeps its memory until its last block is freed.
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
        // A pool may take one block for itself, one ahead of its need, and one for each step, but
        // not more. For example, a frame of a ring begins in a block that may be too small for its
        // first allocation.
        let enough = (0..=program.len() + 2).find(|most| !is_refused(pool, program, *most));
        assert!(enough.is_some(), "{} takes more than a block for a step", A::NAME);
    });
}

/// Number of bytes of the buffer, and number of bytes around it that must not change.
const BUFFER: usize = if cfg!(miri) { 1 << 20 } else { 4 << 20 };
const AROUND: usize = 1 << 10;
const UNTOUCHED: u8 = 0x3c;

pub(crate) fn lives_in_a_buffer<A: DisciplinedAllocator>(
    pool: fn(FixedBuffer<'static>) -> Option<A>,
) {
    on_programs(FAILING_PROGRAMS, |program| {
        let whole = vec![MaybeUninit::new(UNTOUCHED); BUFFER + 2 * AROUND].into_boxed_slice();
        let whole = Box::into_raw(whole);
        // SAFETY: `whole` came from a box, and becomes a box again only after the pool has ended.
        let memory = unsafe { &mut *whole };
        let pool =
            pool(FixedBuffer::new(&mut memory[AROUND..][..BUFFER])).expect("a buffer as large");
        let mut mirror = Mirror::new(pool);
        mirror.run(program);
        mirror.free_all();
        drop(mirror);
        // SAFETY: `whole` came from a box, and the pool that used it has ended.
        let whole = unsafe { Box::from_raw(whole) };
        // SAFETY: the bytes around the buffer were initialized when the memory was created.
        let is_untouched = |byte: &MaybeUninit<u8>| unsafe { byte.assume_init() } == UNTOUCHED;
        let around = whole[..AROUND].iter().chain(&whole[AROUND + BUFFER..]);
        assert!({ around }.all(is_untouched), "{} writes beside its buffer", A::NAME);
    });
}
