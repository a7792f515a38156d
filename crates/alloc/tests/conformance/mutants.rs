//! Tests of the suite: it must reject pools with common defects.

use std::alloc::Layout;
use std::ptr::NonNull;

use pagewise_alloc::{Discipline, DisciplinedAllocator};

use crate::direct::Direct;
use crate::{TestMemory, suite};

/// Defect of a pool.
const OVERLAPS: u8 = 0;
const MISALIGNED: u8 = 1;
const FORGETS: u8 = 2;
const NOT_ZERO: u8 = 3;
const REFUSES: u8 = 4;

#[derive(Debug)]
struct Wrong<const HOW: u8> {
    pool: Direct<TestMemory>,
    last: Option<(NonNull<u8>, Layout)>,
}

fn wrong<const HOW: u8>(memory: TestMemory) -> Option<Wrong<HOW>> {
    Some(Wrong { pool: Direct::new(memory), last: None })
}

// SAFETY: violated on purpose, since the suite must detect the defect. Every block lies in memory
// of its own pool.
unsafe impl<const HOW: u8> DisciplinedAllocator for Wrong<HOW> {
    const NAME: &'static str = "wrong";
    const FREES: Discipline = Discipline::Any;
    const ZEROED: bool = HOW == NOT_ZERO;

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let fits = |(_, last): &(_, Layout)| {
            layout.size() > 0 && last.size() >= layout.size() && last.align() >= layout.align()
        };
        match HOW {
            OVERLAPS if self.last.as_ref().is_some_and(fits) => {
                return self.last.map(|(start, _)| start);
            }
            MISALIGNED if layout.align() > 1 => {
                let more = Layout::from_size_align(layout.size() + 1, layout.align()).ok()?;
                // SAFETY: the layout has one byte more than requested.
                return Some(unsafe { self.pool.allocate(more)?.add(1) });
            }
            REFUSES if layout.size() == 40 => return None,
            _ => {}
        }
        let start = self.pool.allocate(layout)?;
        self.last = Some((start, layout));
        Some(start)
    }

    unsafe fn free(&mut self, start: NonNull<u8>, layout: Layout) {
        self.last = None;
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.pool.free(start, layout) };
    }

    unsafe fn resize(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        self.last = None;
        if HOW == FORGETS {
            let moved = self.pool.allocate(new)?;
            // SAFETY: the caller passes a block of this pool with this layout.
            unsafe { self.pool.free(start, layout) };
            return Some(moved);
        }
        // SAFETY: the caller passes a block of this pool with this layout.
        unsafe { self.pool.resize(start, layout, new) }
    }

    fn check(&self) {
        self.pool.check();
    }
}

#[test]
#[should_panic(expected = "blocks overlap")]
fn a_pool_that_allocates_the_same_bytes_twice_is_found() {
    suite::runs_any_program(wrong::<OVERLAPS>);
}

#[test]
#[should_panic(expected = "a block is not aligned")]
fn a_pool_that_does_not_align_is_found() {
    suite::runs_any_program(wrong::<MISALIGNED>);
}

#[test]
#[should_panic(expected = "a block does not hold what was written")]
fn a_pool_that_moves_a_block_and_forgets_what_it_held_is_found() {
    suite::runs_any_program(wrong::<FORGETS>);
}

#[test]
#[should_panic(expected = "a block is not zero")]
fn a_pool_that_says_its_memory_is_zero_where_it_is_not_is_found() {
    suite::runs_any_program(wrong::<NOT_ZERO>);
}

#[test]
#[should_panic(expected = "had no memory where there was")]
fn a_pool_that_refuses_without_need_is_found() {
    suite::runs_any_program(wrong::<REFUSES>);
}
