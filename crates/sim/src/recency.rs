//! Replacement policies for the ways of a set, and the state that each policy keeps for a set.

use std::fmt::Debug;

use crate::table::{LANES, LookupLevel, ONES, SetTable, lowest, zero_bytes};

/// A replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecencyPolicy {
    /// Replaces the way that was used longest ago.
    Lru,
    /// Uses a binary tree over the ways: each node points to the half that was not used last, and
    /// the way at the end of the path is replaced. If the number of ways is not a power of two,
    /// nodes without a way on their right side point left.
    TreePlru,
    /// Replaces the way that was filled longest ago.
    Fifo,
    /// Replaces a random way; the same seed gives the same ways.
    Random {
        /// Seed of the random number generator.
        seed: u64,
    },
}

impl RecencyPolicy {
    /// All replacement policies.
    pub const ALL: [RecencyPolicy; 4] = [
        RecencyPolicy::Lru,
        RecencyPolicy::TreePlru,
        RecencyPolicy::Fifo,
        RecencyPolicy::Random { seed: 0 },
    ];

    /// Name of the policy.
    pub const fn name(self) -> &'static str {
        match self {
            RecencyPolicy::Lru => "LRU",
            RecencyPolicy::TreePlru => "tree-PLRU",
            RecencyPolicy::Fifo => "FIFO",
            RecencyPolicy::Random { .. } => "random",
        }
    }

    /// Creates an empty table with this policy, of blocks of 2^`shift` bytes.
    pub(crate) fn table(self, sets: usize, ways: usize, shift: u32) -> Box<dyn LookupLevel> {
        let filled = FilledFirst { ways };
        match self {
            RecencyPolicy::Lru if ways <= LANES => Box::new(SetTable::<_, 1>::new(
                sets,
                shift,
                Matrix { all: u8::MAX >> (LANES - ways) },
            )),
            RecencyPolicy::Lru if ways <= 2 * LANES => {
                Box::new(SetTable::<_, 2>::new(sets, shift, Stamps { ways, now: 0 }))
            }
            RecencyPolicy::Lru => {
                Box::new(SetTable::<_, 16>::new(sets, shift, Stamps { ways, now: 0 }))
            }
            RecencyPolicy::TreePlru => boxed(sets, ways, shift, TreePlru::new(ways)),
            RecencyPolicy::Fifo => boxed(sets, ways, shift, FifoOrder { ways }),
            RecencyPolicy::Random { seed } => {
                let generator = fastrand::Rng::with_seed(seed);
                boxed(sets, ways, shift, RandomOrder { filled, generator })
            }
        }
    }
}

/// Creates a table with 1, 2 or 16 groups, the smallest number that has enough ways.
fn boxed<R>(sets: usize, ways: usize, shift: u32, recency: R) -> Box<dyn LookupLevel>
where
    R: Recency<1> + Recency<2> + Recency<16> + 'static,
{
    match ways.div_ceil(LANES) {
        ..=1 => Box::new(SetTable::<R, 1>::new(sets, shift, recency)),
        2 => Box::new(SetTable::<R, 2>::new(sets, shift, recency)),
        _ => Box::new(SetTable::<R, 16>::new(sets, shift, recency)),
    }
}

/// A replacement policy for sets of `GROUPS` groups, each of up to 8 ways. Empty ways are filled
/// first, in ascending order.
pub(crate) trait Recency<const GROUPS: usize>: Debug + Send {
    /// State for one set.
    type Order: Copy + Debug + Send;

    /// State of an empty set.
    fn at_first(&self) -> Self::Order;

    /// Records a hit of a way.
    fn used(&mut self, order: &mut Self::Order, way: usize);

    /// Chooses the way to fill, and records its use.
    fn make_room(&mut self, order: &mut Self::Order) -> usize;
}

/// LRU of up to 8 ways, with one 64-bit word per set.
///
/// ```text
///   byte w | bit v      1 if way w was used later than way v
/// ```
///
/// The byte of the way that was used longest ago is 0. The byte of a way that does not exist is
/// never 0.
#[derive(Debug)]
pub(crate) struct Matrix {
    /// A mask with a bit for each way.
    all: u8,
}

impl Recency<1> for Matrix {
    type Order = u64;

    fn at_first(&self) -> u64 {
        // Way 0 is the oldest, so that it is filled first; bytes that are not ways are younger than
        // all ways.
        let row = |way: usize| if self.all >> way == 0 { u8::MAX } else { (1 << way) - 1 };
        u64::from_le_bytes(std::array::from_fn(row))
    }

    #[inline(always)]
    fn used(&mut self, later: &mut u64, way: usize) {
        *later = (*later | u64::from(self.all) << (8 * way)) & !(ONES << way);
    }

    #[inline(always)]
    fn make_room(&mut self, later: &mut u64) -> usize {
        let way = lowest(zero_bytes(*later)) % LANES;
        self.used(later, way);
        way
    }
}

/// LRU of more than 8 ways: the time of the last use of each way. The 64-bit counter of uses would
/// take centuries to wrap.
#[derive(Debug)]
pub(crate) struct Stamps {
    ways: usize,
    now: u64,
}

impl<const GROUPS: usize> Recency<GROUPS> for Stamps {
    type Order = [[u64; LANES]; GROUPS];

    fn at_first(&self) -> Self::Order {
        [[0; LANES]; GROUPS]
    }

    #[inline(always)]
    fn used(&mut self, stamps: &mut Self::Order, way: usize) {
        self.now += 1;
        stamps[way / LANES % GROUPS][way % LANES] = self.now;
    }

    #[inline(always)]
    fn make_room(&mut self, stamps: &mut Self::Order) -> usize {
        let ways = stamps.as_flattened().iter().take(self.ways).enumerate();
        let way = ways.min_by_key(|(_, stamp)| **stamp).map_or(0, |(way, _)| way);
        self.used(stamps, way);
        way
    }
}

/// State of FIFO: the way to fill next.
#[derive(Debug)]
pub(crate) struct FifoOrder {
    ways: usize,
}

impl<const GROUPS: usize> Recency<GROUPS> for FifoOrder {
    type Order = usize;

    fn at_first(&self) -> usize {
        0
    }

    #[inline(always)]
    fn used(&mut self, _: &mut usize, _: usize) {}

    #[inline(always)]
    fn make_room(&mut self, next: &mut usize) -> usize {
        let way = *next;
        *next = if way + 1 == self.ways { 0 } else { way + 1 };
        way
    }
}

/// Fills empty ways first, for policies that do not do so by themselves.
#[derive(Debug)]
struct FilledFirst {
    ways: usize,
}

impl FilledFirst {
    /// Returns the first empty way and counts it as filled; `None` if the set is full.
    #[inline(always)]
    fn next(&self, filled: &mut usize) -> Option<usize> {
        let way = *filled;
        (way < self.ways).then(|| {
            *filled += 1;
            way
        })
    }
}

/// State of random replacement: the number of filled ways.
#[derive(Debug)]
pub(crate) struct RandomOrder {
    filled: FilledFirst,
    generator: fastrand::Rng,
}

impl<const GROUPS: usize> Recency<GROUPS> for RandomOrder {
    type Order = usize;

    fn at_first(&self) -> usize {
        0
    }

    #[inline(always)]
    fn used(&mut self, _: &mut usize, _: usize) {}

    #[inline(always)]
    fn make_room(&mut self, filled: &mut usize) -> usize {
        let empty = self.filled.next(filled);
        empty.unwrap_or_else(|| self.generator.usize(..self.filled.ways))
    }
}

/// The policy tree-PLRU.
#[derive(Debug)]
pub(crate) struct TreePlru {
    /// For each way, a mask of the nodes above it, and a mask of those of these nodes that point
    /// right when they point away from the way.
    above: Box<[(u128, u128)]>,
    filled: FilledFirst,
    leaves: usize,
}

/// State of tree-PLRU: one bit for each node, 1 if the node points right, and the number of filled
/// ways. Node 1 is the root, the children of node n are 2n and 2n + 1, and leaves are ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlruBits {
    right: u128,
    filled: usize,
}

impl TreePlru {
    fn new(ways: usize) -> TreePlru {
        let leaves = ways.next_power_of_two();
        let above = |way: usize| {
            let path = std::iter::successors(Some(way + leaves), |node| Some(node / 2));
            let path = path.take_while(|node| *node > 1);
            path.fold((0, 0), |(nodes, right), node| {
                let parent = 1_u128 << (node / 2);
                (nodes | parent, if node.is_multiple_of(2) { right | parent } else { right })
            })
        };
        TreePlru { above: (0..ways).map(above).collect(), filled: FilledFirst { ways }, leaves }
    }

    /// The way at the end of the path from the root.
    #[inline(always)]
    fn pointed_at(&self, nodes: PlruBits) -> usize {
        let (mut node, mut first, mut span) = (1, 0, self.leaves / 2);
        while span > 0 {
            let right = nodes.right >> node & 1 == 1 && first + span < self.filled.ways;
            first += if right { span } else { 0 };
            node = 2 * node + usize::from(right);
            span /= 2;
        }
        first
    }

    #[inline(always)]
    fn point_away(&self, nodes: &mut PlruBits, way: usize) {
        let (above, right) = self.above[way];
        nodes.right = nodes.right & !above | right;
    }
}

impl<const GROUPS: usize> Recency<GROUPS> for TreePlru {
    type Order = PlruBits;

    fn at_first(&self) -> PlruBits {
        PlruBits { right: 0, filled: 0 }
    }

    #[inline(always)]
    fn used(&mut self, nodes: &mut PlruBits, way: usize) {
        self.point_away(nodes, way);
    }

    #[inline(always)]
    fn make_room(&mut self, nodes: &mut PlruBits) -> usize {
        let empty = self.filled.next(&mut nodes.filled);
        let way = empty.unwrap_or_else(|| self.pointed_at(*nodes));
        self.point_away(nodes, way);
        way
    }
}
