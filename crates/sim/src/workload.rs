//! Synthetic streams of memory accesses, in blocks.

use crate::MemoryAccess;

/// Function that receives each block of a stream.
pub type AccessSink<'a> = &'a mut dyn FnMut(&[MemoryAccess]);

/// Number of accesses in a block: enough to make the cost of a call negligible, few enough to stay
/// in the first-level cache of the CPU that runs the simulation.
const BLOCK: usize = 512;

/// Order of the windows of a [`WindowWalk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each window begins at a random line, uniformly distributed.
    Random {
        /// Seed of the random number generator.
        seed: u64,
    },
    /// Windows follow each other, and start again at the beginning of the region.
    Sequential,
}

/// Several passes over each window of a large region, touching every line: the first and every 8th
/// line after it by a write, all other lines by a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowWalk {
    /// Size of the region in bytes; 1 GiB in the original workload.
    pub bytes: u64,
    /// Number of windows; 2^20 in the original workload.
    pub rounds: u64,
    /// Number of lines in a window; 512 lines of 64 bytes in the original workload.
    pub window: u64,
    /// Number of passes over each window; 16 in the original workload.
    pub passes: u64,
    /// Order of the windows.
    pub order: Order,
}

/// Number of bytes of a line, the distance between two accesses.
const LINE: u64 = 64;

/// Number of bytes of an access.
const WORD: u16 = 8;

/// Number of accesses for each write.
const WRITE_EVERY: u64 = 8;

/// Start address of regions: aligned to every page size, and not 0, since a program's memory never
/// begins at 0. A region that is too large continues at 0 after the last address.
const REGION: u64 = 1 << 40;

impl WindowWalk {
    /// The walk with the sizes of the original workload.
    pub const fn original(order: Order) -> WindowWalk {
        WindowWalk { bytes: 1 << 30, rounds: 1 << 20, window: 512, passes: 16, order }
    }

    /// Generates the stream, with a block for each pass. A region smaller than a window is one
    /// window.
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

/// One write to each line of a region, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequentialFill {
    /// Size of the region in bytes.
    pub bytes: u64,
}

impl SequentialFill {
    /// Generates the stream.
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
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Number of reads.
    pub accesses: u64,
    /// Seed of the random number generator.
    pub seed: u64,
}

impl Uniform {
    /// Generates the stream.
    pub fn play(&self, sink: AccessSink<'_>) {
        let words = (self.bytes / u64::from(WORD)).max(1);
        let mut chance = fastrand::Rng::with_seed(self.seed);
        let place = || REGION.wrapping_add(chance.u64(..words) * u64::from(WORD));
        in_blocks(self.accesses, MemoryAccess::read, place, sink);
    }
}

/// A pointer chase: reads of one word in each line (or each `stride`) of a region, in an order
/// without a pattern, in which every word is read once before any word is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerChase {
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Distance in bytes between two words of the chase: a line, or a page to measure the TLB
    /// alone.
    pub stride: u64,
    /// Number of reads.
    pub accesses: u64,
    /// Seed of the random number generator.
    pub seed: u64,
}

impl PointerChase {
    /// Generates the stream. Its memory use does not depend on the region's size.
    pub fn play(&self, sink: AccessSink<'_>) {
        let stride = self.stride.max(1);
        let order = Shuffle::new((self.bytes / stride).max(1), self.seed);
        let mut numbers = (0..order.count).cycle();
        let at = |number| REGION.wrapping_add(order.at(number) * stride);
        let place = || numbers.next().map_or(REGION, at);
        in_blocks(self.accesses, MemoryAccess::read, place, sink);
    }
}

/// A pseudorandom permutation of the numbers below `count`.
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
        // A multiplication by an odd factor is invertible, so no two numbers have the same result.
        Shuffle { count, bits, factors: std::array::from_fn(|_| chance.u64(..) | 1) }
    }

    /// Returns the result for a number. A result outside of the range is mixed again until it is
    /// inside: a walk along a cycle of the permutation.
    fn at(&self, number: u64) -> u64 {
        let mut place = self.mixed(number);
        while place >= self.count {
            place = self.mixed(place);
        }
        place
    }

    /// Mixes the bits of a number. Each operation is invertible, so the result is a permutation of
    /// all numbers with `bits` bits.
    fn mixed(&self, number: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.bits);
        self.factors.iter().fold(number, |number, factor| {
            let multiplied = number.wrapping_mul(*factor).wrapping_add(factor >> 1) & mask;
            multiplied ^ multiplied >> self.bits.div_ceil(2)
        })
    }
}

/// Generates accesses of one kind to words, in blocks. `place` returns the address of each word.
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
