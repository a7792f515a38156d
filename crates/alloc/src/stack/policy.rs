//! Policies for choosing blocks in a stack. One is the best; the others exist to measure the
//! difference.

use core::alloc::Layout;

/// Choice of blocks and placement of allocations. [`Usual`] is for use; the trait is sealed, since
/// stacks rely on its implementations.
pub trait StackPolicy: sealed::SealedPolicy + core::fmt::Debug + 'static {
    /// A new block is at least 64 times as large as the mean request, and at least a 128th part of
    /// the stack's memory, not 64 KiB only.
    const SIZED: bool = true;
    /// The search for a large enough block releases the smaller ones on its way.
    const GREEDY: bool = false;
    /// A frame whose block was nearly full when an inner frame left it continues in the next block.
    /// Otherwise each inner frame that follows would cross into that block again.
    const FOLLOW: bool = true;
    /// The last allocation changes its size where it is.
    const IN_PLACE: bool = true;
    /// Scopes check at run time that they are the innermost: the compiler does not know all of
    /// them.
    const LINKED: bool = false;

    /// Called when a stack gets its first memory.
    fn begins() {}

    /// Layout that is reserved for an allocation.
    #[inline(always)]
    fn shape(layout: Layout) -> Layout {
        layout
    }
}

mod sealed {
    /// Seals the trait.
    pub trait SealedPolicy {}
}

/// The size that blocks have at least.
pub(super) const SMALLEST: usize = 64 << 10;

/// A block is at least this part of the stack's memory: large stacks have few blocks, and waste
/// little in the last one.
pub(super) const PART: usize = 128;

/// Minimum number of requests of mean size that a block holds.
pub(super) const REQUESTS: usize = 64;

/// A frame follows an inner one into the next block if less than this part of its own block is
/// left. Otherwise an inner frame that crosses over has filled at least this part.
pub(super) const FOLLOWED: usize = 8;

/// The policy of every stack that asks for no other.
#[derive(Clone, Copy, Debug)]
pub struct Usual;

impl sealed::SealedPolicy for Usual {}

impl StackPolicy for Usual {}

/// As [`Usual`], where the compiler does not know which scope is the innermost: the stack of a
/// thread, and those of C.
#[derive(Clone, Copy, Debug)]
pub struct LinkedPolicy;

impl sealed::SealedPolicy for LinkedPolicy {}

impl StackPolicy for LinkedPolicy {
    const LINKED: bool = true;

    #[cfg(feature = "thread")]
    fn begins() {
        super::thread::end_with_thread();
    }
}

/// Earlier policies, to measure the difference.
#[cfg(any(test, feature = "ablation"))]
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
pub(super) mod old {
    use super::{Layout, StackPolicy, sealed::SealedPolicy};

    /// Releases the blocks that the search passes over.
    #[derive(Clone, Copy, Debug)]
    pub struct Greedy;

    impl SealedPolicy for Greedy {}

    impl StackPolicy for Greedy {
        const GREEDY: bool = true;
    }

    /// Blocks of the smallest size, whatever is asked for.
    #[derive(Clone, Copy, Debug)]
    pub struct SmallBlocks;

    impl SealedPolicy for SmallBlocks {}

    impl StackPolicy for SmallBlocks {
        const SIZED: bool = false;
    }

    /// Frames go back to the block where they were.
    #[derive(Clone, Copy, Debug)]
    pub struct NoFollow;

    impl SealedPolicy for NoFollow {}

    impl StackPolicy for NoFollow {
        const FOLLOW: bool = false;
    }

    /// Allocations that grow always move.
    #[derive(Clone, Copy, Debug)]
    pub struct NotInPlace;

    impl SealedPolicy for NotInPlace {}

    impl StackPolicy for NotInPlace {
        const IN_PLACE: bool = false;
    }

    /// Sizes are rounded to 16 bytes, so that every address is aligned.
    #[derive(Clone, Copy, Debug)]
    pub struct Rounded;

    impl SealedPolicy for Rounded {}

    impl StackPolicy for Rounded {
        #[inline(always)]
        fn shape(layout: Layout) -> Layout {
            let align = layout.align().max(16);
            let size = layout.size().max(1).next_multiple_of(16);
            Layout::from_size_align(size, align).unwrap_or(layout)
        }
    }
}

#[cfg(all(test, feature = "os"))]
#[allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]
mod tests {
    use super::old::{Greedy, NoFollow, NotInPlace, Rounded, SmallBlocks};
    use super::*;
    use crate::{Os, Stack};

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    fn stack<P: StackPolicy>() -> Stack<Os, P> {
        Stack::with_policy(Os, false)
    }

    /// Bytes taken of the system, in MiB, in a number of rounds: inner frames fill many blocks, and
    /// the outer one asks for blocks that are larger than those, and larger each time. The frames
    /// are two deep in every round.
    fn taken_in_rounds<P: StackPolicy>(rounds: usize) -> f64 {
        let mut stack = stack::<P>();
        stack.scope(|outer| {
            for round in 0..rounds {
                outer.scope(|inner| {
                    (0..20_000).for_each(|_| _ = inner.allocate(layout(100)).unwrap());
                });
                outer.allocate(layout(80_000 + (4 << 10) * round)).unwrap();
            }
        });
        stack.check();
        f64::from(u32::try_from(stack.taken()).unwrap()) / f64::from(1 << 20)
    }

    #[test]
    fn large_requests_among_small_ones_do_not_cost_the_blocks_of_the_small_ones() {
        let (usual, greedy) = (taken_in_rounds::<Usual>(20), taken_in_rounds::<Greedy>(20));
        assert!(usual <= 7.5, "{usual} MiB");
        assert!((30.0..45.0).contains(&greedy), "{greedy} MiB");
    }

    /// Number of blocks for 10,000 requests of a size.
    fn blocks<P: StackPolicy>(size: usize) -> usize {
        let stack = stack::<P>();
        (0..10_000).for_each(|_| _ = stack.allocate(layout(size)).unwrap());
        stack.blocks().count()
    }

    #[test]
    fn blocks_have_room_for_64_requests_of_mean_size() {
        let (by_mean, small) = (blocks::<Usual>(4000), blocks::<SmallBlocks>(4000));
        assert!(by_mean <= 10_000 / 60 && small >= 600, "{by_mean}, {small}");
        assert_eq!(blocks::<Usual>(100), blocks::<SmallBlocks>(100));
    }

    /// Number of 100 frames that cross the end of a block, if the first begins just before it.
    fn crossings<P: StackPolicy>() -> usize {
        let stack = stack::<P>();
        stack.allocate(layout(8)).unwrap();
        while stack.end.get().addr() - stack.next.get().addr() > 100 {
            stack.allocate(layout(8)).unwrap();
        }
        let crosses = |_: &usize| {
            let mark = stack.mark();
            stack.allocate(layout(200)).unwrap();
            let crossed = stack.mark().block != mark.block;
            // SAFETY: the mark belongs to this frame, whose allocations are not used any more.
            unsafe { stack.rewind(mark) };
            crossed
        };
        (0..100).filter(crosses).count()
    }

    #[test]
    fn a_frame_at_the_end_of_its_block_goes_on_in_the_next() {
        assert_eq!((crossings::<Usual>(), crossings::<NoFollow>()), (1, 100));
    }

    /// True if an allocation that grows stays where it is.
    fn stays<P: StackPolicy>() -> bool {
        let stack = stack::<P>();
        let block = stack.allocate(layout(16)).unwrap();
        // SAFETY: the block was allocated there with this layout, and is not used any more.
        unsafe { stack.resize(block, layout(16), layout(32)) }.unwrap() == block
    }

    #[test]
    fn earlier_policies_can_be_measured() {
        assert!(stays::<Usual>() && !stays::<NotInPlace>());
        let held = [blocks::<Usual>(8), blocks::<Rounded>(8)];
        assert!(held[1] > held[0], "{held:?}");
    }
}
