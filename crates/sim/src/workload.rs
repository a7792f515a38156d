//! Synthetic streams of accesses, in blocks.

use crate::MemoryAccess;

/// Destination of each block of a stream.
pub type AccessSink<'a> = &'a mut dyn FnMut(&[MemoryAccess]);

/// Accesses in a block: enough to make the cost of a call negligible, few enough to stay in the
/// first-level cache of the CPU that simulates.
const BLOCK: usize = 512;

/// Order of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each begins at a random line, uniformly.
    Random {
        /// Seed of the generator.
        seed: u64,
    },
    /// One after the other, then from the beginning again.
    Sequential,
}

/// Windows of a large region, each passed over some times, touching every line: every 8th, the
/// first among them, with a write, the others with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowWalk {
    /// The region's size; the original has 1 GiB.
    pub bytes: u64,
    /// Number of windows; the original has 2^20.
    pub rounds: u64,
    /// Lines in a window; the original has 512 lines of 64 bytes.
    pub window: u64,
    /// Passes over each window; the original has 16.
    pub passes: u64,
    /// Order of the windows.
    pub order: Order,
}

/// Bytes from one access to the next.
const LINE: u64 = 64;

/// Bytes of an access.
const WORD: u16 = 8;

/// One in this number of accesses writes.
const WRITE_EVERY: u64 = 8;

/// Start of regions: page-aligned for every page size, since a program's memory never begins at 0.
/// A region that does not fit after it continues at 0.
const REGION: u64 = 1 << 40;

impl WindowWalk {
    /// The walk at its original size.
    pub const fn original(order: Order) -> WindowWalk {
        WindowWalk { bytes: 1 << 30, rounds: 1 << 20, window: 512, passes: 16, order }
    }

    /// Makes the stream, a block for each pass. A region smaller than a window is one window.
    pub fn play(&self, sink: AccessSink<'_>) {
        let lines = (self.bytes / LINE).max(1);
        let window = self.window.clamp(1, lines);
        let mut chance = fastrand::Rng::with_seed(match self.order {
            Order::Random { seed } => seed,
            Order::Sequential => 0,
        });
        let mut pass = vec![MemoryAccess::default(); usize::try_from(window).unwrap_or(0)];
        for round in 0..self.rounds {
            let first = match self.order {
                Order::Random { .. } => chance.u64(..(lines - window).max(1)),
                Order::Sequential => round % (lines / window) * window,
            };
            for (access, number) in pass.iter_mut().zip(0_u64..) {
                let address = REGION.wrapping_add((first + number) * LINE);
                *access = match number % WRITE_EVERY {
                    0 => MemoryAccess::write(address, WORD),
                    _ => MemoryAccess::read(address, WORD),
                };
            }
            (0..self.passes).for_each(|_| sink(&pass));
        }
    }
}

/// A write to each line of a region, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequentialFill {
    /// The region's size.
    pub bytes: u64,
}

impl SequentialFill {
    /// Makes the stream.
    pub fn play(&self, sink: AccessSink<'_>) {
        let mut lines = 0..self.bytes / LINE;
        let count = lines.end;
        let next = || REGION.wrapping_add(lines.next().unwrap_or(0) * LINE);
        in_blocks(count, MemoryAccess::write, next, sink);
    }
}

/// Reads of random words of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uniform {
    /// The region's size.
    pub bytes: u64,
    /// Number of reads.
    pub accesses: u64,
    /// Seed of the generator.
    pub seed: u64,
}

impl Uniform {
    /// Makes the stream.
    pub fn play(&self, sink: AccessSink<'_>) {
        let words = (self.bytes / u64::from(WORD)).max(1);
        let mut chance = fastrand::Rng::with_seed(self.seed);
        let place = || REGION.wrapping_add(chance.u64(..words) * u64::from(WORD));
        in_blocks(self.accesses, MemoryAccess::read, place, sink);
    }
}

/// A pointer chase: reads of one word in each line (or each `stride`) of a region, in an order that
/// has no pattern, in which each comes once before any comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerChase {
    /// The region's size.
    pub bytes: u64,
    /// Bytes from one place to the next; a line, or a page to measure the TLB alone.
    pub stride: u64,
    /// Number of reads.
    pub accesses: u64,
    /// Seed of the generator.
    pub seed: u64,
}

impl PointerChase {
    /// Makes the stream. Takes no memory, however large the region.
    pub fn play(&self, sink: AccessSink<'_>) {
        let stride = self.stride.max(1);
        let order = Shuffle::new((self.bytes / stride).max(1), self.seed);
        let mut numbers = (0..order.count).cycle();
        let at = |number| REGION.wrapping_add(order.at(number) * stride);
        let place = || numbers.next().map_or(REGION, at);
        in_blocks(self.accesses, MemoryAccess::read, place, sink);
    }
}

/// The numbers below `count` in an order without a pattern, each once.
#[derive(Clone, Copy, Debug)]
struct Shuffle {
    count: u64,
    /// Number of mixed bits: the smallest number of bits for `count - 1`, at least 1.
    bits: u32,
    factors: [u64; 3],
}

impl Shuffle {
    fn new(count: u64, seed: u64) -> Shuffle {
        let mut chance = fastrand::Rng::with_seed(seed);
        let bits = (u64::BITS - (count - 1).leading_zeros()).max(1);
        // A multiplication by an odd factor can be inverted, so no two numbers get the same place.
        Shuffle { count, bits, factors: std::array::from_fn(|_| chance.u64(..) | 1) }
    }

    /// Result for a number. A result outside of the range is mixed again until it is inside: a walk
    /// along the permutation's cycle.
    fn at(&self, number: u64) -> u64 {
        let mut place = self.mixed(number);
        while place >= self.count {
            place = self.mixed(place);
        }
        place
    }

    /// Each step can be inverted: so this is a permutation of all numbers with this number of bits.
    fn mixed(&self, number: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.bits);
        self.factors.iter().fold(number, |number, factor| {
            let multiplied = number.wrapping_mul(*factor).wrapping_add(factor >> 1) & mask;
            multiplied ^ multiplied >> self.bits.div_ceil(2)
        })
    }
}

/// Makes accesses of one kind to words, in blocks. `place` returns the address of each.
fn in_blocks(
    accesses: u64,
    kind: fn(u64, u16) -> MemoryAccess,
    mut place: impl FnMut() -> u64,
    sink: AccessSink<'_>,
) {
    let mut block = [MemoryAccess::default(); BLOCK];
    let mut left = accesses;
    while left > 0 {
        let some = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        block[..some].iter_mut().for_each(|access| *access = kind(place(), WORD));
        sink(&block[..some]);
        left -= some as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(play: impl Fn(AccessSink<'_>)) -> Vec<u64> {
        let mut addresses = Vec::new();
        play(&mut |block| addresses.extend(block.iter().map(|access| access.address - REGION)));
        addresses
    }

    #[test]
    fn a_fill_writes_each_line_once_in_order() {
        let addresses = addresses(|sink| SequentialFill { bytes: 100_000 }.play(sink));
        assert!(addresses.into_iter().eq((0..100_000 / 64).map(|line| line * 64)));
    }

    proptest! {
        #[test]
        fn a_chase_comes_to_each_place_once_before_any_comes_again(
            places in 1..3000_u64,
            stride in 1..300_u64,
            seed in any::<u64>(),
        ) {
            let chase = PointerChase { bytes: places * stride, stride, accesses: 2 * places, seed };
            let all = addresses(|sink| chase.play(sink));
            let (first, again) = all.split_at(all.len() / 2);
            prop_assert_eq!(first, again);
            let mut sorted = first.to_vec();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq((0..places).map(|place| place * stride)));
        }

        #[test]
        fn windows_lie_in_their_region(
            bytes in 0..100_000_u64,
            window in 0..600_u64,
            random in any::<bool>(),
        ) {
            let order = if random { Order::Random { seed: 1 } } else { Order::Sequential };
            let work = WindowWalk { bytes, rounds: 20, window, passes: 2, order };
            let all = addresses(|sink| work.play(sink));
            prop_assert!(all.iter().all(|address| *address < bytes.max(LINE)));
        }
    }

    #[test]
    fn neighbors_in_a_chase_are_seldom_neighbors_in_memory() {
        let chase = PointerChase { bytes: 1 << 20, stride: 1, accesses: 1 << 20, seed: 7 };
        let all = addresses(|sink| chase.play(sink));
        let near = all.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 1000).count();
        // Two random places are less than 1000 bytes apart with a probability of 2/1049.
        assert!((1_000..3_500).contains(&near), "{near}");
    }
}
