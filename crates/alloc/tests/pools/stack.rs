//! Tests of stacks: lifetimes of frames, addresses of allocations, and errors that canaries detect.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagewise_alloc::source::{FailAfter, FixedBuffer};
use pagewise_alloc::{Os, Source, Stack};

/// Number of allocations of a test; smaller under Miri, which is slow.
const MANY: usize = if cfg!(miri) { 500 } else { 10_000 };

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}

#[test]
fn allocations_that_follow_each_other_are_adjacent() {
    let mut stack = Stack::unguarded(Os);
    stack.scope(|scope| {
        let (one, two) = (scope.alloc([1_u8; 3]), scope.alloc([2_u8; 5]));
        assert_eq!(address(two), address(one) + 3, "no smallest size, no header");
    });
}

#[test]
fn an_address_is_aligned_when_that_is_asked_for_and_only_then() {
    let stack = Stack::unguarded(Os);
    for log in 0..16 {
        let align = 1 << log;
        let before = stack.allocate(layout(1, 1)).unwrap().addr().get();
        let start = stack.allocate(layout(24, align)).unwrap().addr().get();
        // If the allocation is in another block, its address may be lower or higher.
        let distance = start.abs_diff(before);
        assert!(start.is_multiple_of(align) && (distance <= align || distance > 1 << 15));
    }
}

#[test]
fn popping_a_frame_frees_all_that_was_allocated_in_it_whatever_its_blocks() {
    let mut stack = Stack::new(Os);
    let mut held = Vec::new();
    for _ in 0..3 {
        stack.scope(|scope| (0..MANY).for_each(|n| _ = scope.alloc([n; 16])));
        held.push(stack.held());
        stack.check();
    }
    assert!(held[0] >= MANY * 64, "{held:?}");
    assert_eq!(held[1..], held[..2], "the memory is used again");
}

#[test]
fn allocations_of_an_outer_frame_survive_pops_of_inner_frames() {
    let mut stack = Stack::new(Os);
    stack.scope(|outer| {
        let mut kept: Vec<&mut [usize]> = Vec::new();
        for size in 0..MANY / 50 {
            kept.push(outer.alloc_slice_with(size, |at| at * size));
            outer.scope(|inner| inner.alloc_slice_with(size * 100, |_| usize::MAX).len());
        }
        let right = |(size, slice): (usize, &&mut [usize])| {
            slice.len() == size && slice.iter().enumerate().all(|(at, value)| *value == at * size)
        };
        assert!(kept.iter().enumerate().all(right));
    });
    stack.check();
}

#[test]
fn a_scope_that_panics_is_popped() {
    let mut stack = Stack::new(Os);
    let body = |stack: &mut Stack<Os>| {
        stack.scope(|outer| {
            outer.alloc(1);
            outer.scope(|inner| {
                inner.alloc(2);
                panic!("on purpose, in a test")
            })
        })
    };
    catch_unwind(AssertUnwindSafe(|| body(&mut stack))).unwrap_err();
    stack.scope(|scope| scope.alloc(1_u64).count_ones());
    let after = stack.mark();
    stack.scope(|_| ());
    assert_eq!(after, stack.mark());
    stack.check();
}

#[test]
fn a_frame_object_pops_when_it_is_dropped() {
    let mut stack = Stack::unguarded(Os);
    let mut outer = stack.frame();
    let mut scope = outer.scope();
    let kept = scope.alloc(1_u32);
    let first = {
        let mut inner = scope.frame();
        address(inner.scope().alloc(2_u32))
    };
    let second = {
        let mut inner = scope.frame();
        address(inner.scope().alloc(3_u32))
    };
    assert_eq!((first, *kept), (second, 1));
}

#[test]
fn the_last_allocation_changes_its_size_where_it_is() {
    let stack = Stack::unguarded(Os);
    let mut size = 8;
    let mut last = stack.allocate(layout(size, 8)).unwrap();
    let first = last;
    for new in [16, 1000, 40_000, 24, 0, 8] {
        // SAFETY: the block is the only allocation, and no other code uses it.
        last = unsafe { stack.resize(last, layout(size, 8), layout(new, 8)) }.unwrap();
        size = new;
        assert_eq!(last, first);
    }
    let next = stack.allocate(layout(1, 1)).unwrap();
    assert_eq!(next.addr().get(), last.addr().get() + size, "and leaves nothing behind");
}

#[test]
fn an_inner_block_moves_when_it_grows_and_stays_when_it_shrinks() {
    let stack = Stack::unguarded(Os);
    let block = stack.allocate(layout(8, 8)).unwrap().cast::<u64>();
    // SAFETY: the block has the layout of a `u64`.
    unsafe { block.write(0x1234_5678_9abc_def0) };
    stack.allocate(layout(1, 1)).unwrap();
    // SAFETY: the block is of this stack and has this layout.
    let smaller = unsafe { stack.resize(block.cast(), layout(8, 8), layout(4, 4)) }.unwrap();
    assert_eq!(smaller, block.cast());
    // SAFETY: the block is of this stack and has this layout.
    let larger = unsafe { stack.resize(smaller, layout(4, 4), layout(8, 8)) }.unwrap();
    assert_ne!(larger, smaller);
    // SAFETY: the block has at least four bytes, and its first four bytes were copied.
    assert_eq!(unsafe { larger.cast::<u32>().read() }, 0x9abc_def0);
}

#[test]
fn destructors_of_owned_values_run_before_their_frame_is_popped() {
    let mut stack = Stack::new(Os);
    let text = std::rc::Rc::new(String::from("shared"));
    stack.scope(|scope| {
        let one = scope.owned(text.clone());
        let two = scope.owned(text.clone());
        assert_eq!((std::rc::Rc::strong_count(&text), one.len()), (3, 6));
        let moved = two.into_inner();
        assert_eq!(std::rc::Rc::strong_count(&text), 3);
        drop(moved);
        assert_eq!(std::rc::Rc::strong_count(&text), 2);
    });
    assert_eq!(std::rc::Rc::strong_count(&text), 1);
}

#[test]
#[cfg_attr(miri, ignore = "asks for more memory than Miri has")]
fn zero_sized_types_and_huge_requests_are_handled() {
    let mut stack = Stack::new(Os);
    stack.scope(|scope| {
        scope.alloc(());
        assert_eq!(scope.alloc_slice::<u64>(&[]), &[]);
        assert_eq!(scope.alloc_str(""), "");
        assert!(scope.allocate(layout(usize::MAX / 4, 1)).is_none());
        assert!(scope.allocate(layout(isize::MAX as usize, 1)).is_none());
        assert!(scope.allocate(layout(1 << 20, 1 << 21)).is_some());
    });
    stack.check();
}

#[test]
fn trimming_gives_free_blocks_back_and_dropping_gives_all() {
    let mut stack = Stack::new(Os);
    stack.scope(|scope| (0..100).for_each(|_| _ = scope.alloc([0_u8; 10_000])));
    let held = stack.held();
    stack.trim();
    assert!(held > 1_000_000 && stack.held() <= 1 << 17, "{held} then {}", stack.held());
    stack.scope(|scope| scope.alloc(5_u64).pow(2));
    stack.check();
}

#[test]
fn a_reservation_is_one_block_that_serves_all_requests() {
    for (stack, guarded) in [(Stack::unguarded(Os), false), (Stack::guarded(Os), true)] {
        assert!(!stack.reserve(usize::MAX / 4) && stack.held() == 0);
        // The outer mark is made before the stack has a block, the inner marks when it has blocks.
        let outer = stack.mark();
        for size in [1 << 20, 3 << 20] {
            assert!(stack.reserve(size));
            let (held, inner) = (stack.held(), stack.mark());
            // A guarded stack has fewer allocations, because each allocation also takes memory for
            // its guard.
            let most = if guarded { size / 10_000 } else { size / 1000 };
            (0..most).for_each(|_| _ = stack.allocate(layout(1000, 8)).unwrap());
            assert_eq!(stack.held(), held);
            // SAFETY: the mark is of this stack, and allocations after it are not used any more.
            unsafe { stack.rewind(inner) };
            assert!(stack.reserve(size) && stack.held() == held, "it was ready");
        }
        // SAFETY: allocations after the mark are not used any more.
        unsafe { stack.rewind(outer) };
        stack.check();
        stack.trim();
        assert!(stack.reserve(100) && stack.held() < 2 << 20, "{}", stack.held());
    }
}

#[test]
fn a_frame_from_before_the_first_block_can_be_rewound_twice() {
    for mut stack in [Stack::unguarded(Os), Stack::guarded(Os)] {
        stack.scope(|outer| {
            outer.scope(|inner| _ = inner.alloc(1_u64));
            outer.scope(|_| ());
        });
        stack.check();
        stack.scope(|outer| assert_eq!(*outer.alloc(2_u64), 2));
        stack.check();
    }
}

#[test]
fn a_stack_in_a_buffer_uses_the_buffer_alone() {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 100_000];
    let range = buffer.as_ptr_range();
    let stack = Stack::unguarded(FixedBuffer::new(&mut buffer));
    let mut bytes = 0;
    while let Some(block) = stack.allocate(layout(100, 4)) {
        assert!(range.contains(&block.as_ptr().cast_const().cast()));
        bytes += 100;
    }
    assert!(bytes > 90_000, "{bytes} of 100000 bytes could be used");
    stack.check();
}

#[test]
fn running_out_of_memory_harms_nothing() {
    for blocks in 0..8 {
        let mut stack = Stack::new(FailAfter::new(Os, blocks));
        let given = stack.scope(|scope| {
            let fits = |_: &usize| scope.try_alloc([0_u8; 30_000]).is_some();
            (0..10).take_while(fits).count()
        });
        let again = stack.scope(|scope| scope.try_alloc([0_u8; 30_000]).is_some());
        assert_eq!(again, given > 0);
        stack.check();
        assert_eq!(given == 0, blocks == 0);
    }
}

/// Returns the message of the panic of `body`.
fn message(body: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(body)).unwrap_err();
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| {
        panic.downcast_ref::<&str>().map(|message| (*message).to_owned()).unwrap_or_default()
    })
}

#[test]
#[cfg_attr(miri, ignore = "misuse on purpose, which Miri finds")]
fn an_overflow_in_a_guarded_stack_is_found_when_the_frame_is_popped() {
    for past in [0, 1, 7, 8, 12] {
        let mut stack = Stack::guarded(Os);
        let said = message(|| {
            stack.scope(|scope| {
                let start = scope.alloc([0_u8; 13]).as_mut_ptr();
                scope.alloc([0_u8; 100]);
                let byte = start.wrapping_add(13 + past);
                // SAFETY: the byte is past the end of the allocation, but within the block.
                let old = unsafe { byte.read() };
                // The guard contains an address, whose bytes may have any value, so only a flipped
                // byte certainly differs. SAFETY: the byte lies within the block of the stack.
                unsafe { byte.write(!old) };
            })
        });
        // A write that reaches the guard destroys its description of the block, so the message is
        // shorter.
        let known = ["was written beyond its bounds", "the canary after the allocation"];
        assert!(known.iter().any(|known| said.contains(known)), "{past}: {said:?}");
        std::mem::forget(stack);
    }
}

#[test]
#[cfg_attr(miri, ignore = "misuse on purpose, which Miri finds")]
fn popped_memory_of_a_guarded_stack_holds_rubbish() {
    let mut stack = Stack::guarded(Os);
    let gone = stack.scope(|scope| std::ptr::from_ref(scope.alloc(7_u32)));
    // SAFETY: the block of the stack is still mapped, and no other code uses this memory.
    assert_eq!(unsafe { gone.read() }, 0xdbdb_dbdb);
}

#[test]
fn a_stale_address_in_a_guarded_stack_reads_fill_bytes() {
    let stack = Stack::guarded(Os);
    let block = stack.allocate(layout(4, 4)).unwrap();
    // SAFETY: the block has four bytes.
    unsafe { block.cast::<u32>().write(7) };
    // SAFETY: the block is of this stack and has this layout.
    let moved = unsafe { stack.resize(block, layout(4, 4), layout(8, 4)) }.unwrap();
    // SAFETY: the memory of both blocks belongs to the stack, and the first four bytes of the new
    // block were copied.
    let found = unsafe { [block, moved].map(|block| block.cast::<u32>().read()) };
    assert_eq!(found, [0xdbdb_dbdb, 7]);
    // SAFETY: violated on purpose, since the block was moved: a guarded stack must detect it.
    let said = message(|| unsafe { stack.free_last(block, layout(4, 4)) });
    assert!(said.contains("is not a live allocation"), "{said:?}");
    // SAFETY: violated on purpose by a wrong size: a guarded stack must detect it.
    let said = message(|| unsafe { stack.free_last(moved, layout(4, 4)) });
    assert!(said.contains("with another size"), "{said:?}");
}

#[test]
fn a_mark_of_a_frame_that_was_popped_is_found_in_a_guarded_stack() {
    let stack = Stack::guarded(Os);
    let outer = stack.mark();
    stack.allocate(layout(8, 8)).unwrap();
    let inner = stack.mark();
    // SAFETY: the allocations after the mark are not used any more.
    unsafe { stack.rewind(outer) };
    // SAFETY: violated on purpose, since the frame of the mark was popped: a guarded stack must
    // detect it before it changes memory.
    let said = message(|| unsafe { stack.rewind(inner) });
    assert!(said.contains("popped twice"), "{said:?}");
}

/// A source that counts the bytes that it takes from the system.
#[derive(Debug, Default)]
struct CountingSystem(std::cell::Cell<usize>);

// SAFETY: every block is a block of the system's source, which keeps the contract.
unsafe impl Source for &'_ CountingSystem {
    fn take(&self, layout: Layout) -> Option<pagewise_alloc::SourceBlock> {
        let block = Os.take(layout)?;
        self.0.set(self.0.get() + block.size);
        Some(block)
    }

    unsafe fn give_back(&self, block: pagewise_alloc::SourceBlock) {
        self.0.set(self.0.get() - block.size);
        // SAFETY: the caller passes a block of the system's source.
        unsafe { Os.give_back(block) };
    }
}

#[test]
#[cfg_attr(miri, ignore = "800 MB")]
fn a_hundred_million_objects_of_8_bytes_take_770_mib_and_all_comes_back() {
    let counting = CountingSystem::default();
    let stack = Stack::unguarded(&counting);
    for _ in 0..100_000_000 {
        stack.allocate(layout(8, 8)).unwrap();
    }
    let mib = counting.0.get() >> 20;
    println!("{mib} MiB");
    assert!((762..=770).contains(&mib), "{mib} MiB");
    assert_eq!(counting.0.get(), stack.held());
    drop(stack);
    assert_eq!(counting.0.get(), 0);
}

#[test]
fn text_is_formatted_into_a_frame_also_where_its_parts_allocate() {
    struct Nested<'a, 's>(&'a pagewise_alloc::stack::Scope<'s, Os>);
    impl std::fmt::Display for Nested<'_, '_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0.alloc_str("in between"))
        }
    }
    let mut stack = Stack::new(Os);
    stack.scope(|scope| {
        let text = scope.alloc_fmt(format_args!("{:>5}, {}, {}", 7, Nested(scope), "end"));
        assert_eq!(text, "    7, in between, end");
        assert_eq!(scope.alloc_fmt(format_args!("")), "");
    });
}
