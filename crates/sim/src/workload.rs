//! Streams of accesses that programs of this kind make, in blocks.

use crate::Access;

/// What each block of a stream goes to.
pub type Sink<'a> = &'a mut dyn FnMut(&[Access]);

/// Accesses in a block: enough that a call does not count, few enough to stay in the first level of the real cache.
const BLOCK: usize = 512;

/// Where windows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Anywhere, at a line; uniform.
    Random {
        /// Of the generator.
        seed: u64,
    },
    /// One after the other, and from the beginning again.
    Sequential,
}

/// Windows of a large region, each passed over some times, touching every line: every 8th, the first among them, with a
/// write, the others with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemAccess {
    /// The region's size; the original has 1 GiB.
    pub bytes: u64,
    /// How many windows; 2^20.
    pub rounds: u64,
    /// Lines in a window; 512 of 64 bytes.
    pub window: u64,
    /// Passes over each window; 16.
    pub passes: u64,
    /// Where they lie.
    pub order: Order,
}

/// Bytes from one access to the next.
const LINE: u64 = 64;

/// Bytes of an access.
const WORD: u16 = 8;

/// One access of so many writes.
const WRITE_EVERY: u64 = 8;

/// Where regions begin: page-aligned for every size of page, as no program's memory begins at 0.
const REGION: u64 = 1 << 40;

impl MemAccess {
    /// At its original size.
    pub const fn original(order: Order) -> MemAccess {
        MemAccess { bytes: 1 << 30, rounds: 1 << 20, window: 512, passes: 16, order }
    }

    /// How many accesses it makes.
    pub const fn accesses(&self) -> u64 {
        self.rounds.saturating_mul(self.window).saturating_mul(self.passes)
    }

    /// Makes the stream, a pass a block.
    pub fn play(&self, sink: Sink<'_>) {
        let lines = self.bytes / LINE;
        let last = lines.saturating_sub(self.window).max(1);
        let mut chance = fastrand::Rng::with_seed(match self.order {
            Order::Random { seed } => seed,
            Order::Sequential => 0,
        });
        let mut pass = vec![Access::default(); usize::try_from(self.window).unwrap_or(0)];
        for round in 0..self.rounds {
            let first = match self.order {
                Order::Random { .. } => chance.u64(..last),
                Order::Sequential => round.wrapping_mul(self.window) % lines.max(1),
            };
            for (access, number) in pass.iter_mut().zip(0_u64..) {
                let address = REGION + (first + number) * LINE;
                *access = match number % WRITE_EVERY {
                    0 => Access::write(address, WORD),
                    _ => Access::read(address, WORD),
                };
            }
            (0..self.passes).for_each(|_| sink(&pass));
        }
    }
}

/// Reads of words of a region, each anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uniform {
    /// The region's size.
    pub bytes: u64,
    /// How many reads.
    pub accesses: u64,
    /// Of the generator.
    pub seed: u64,
}

impl Uniform {
    /// Makes the stream.
    pub fn play(&self, sink: Sink<'_>) {
        let words = (self.bytes / u64::from(WORD)).max(1);
        let mut chance = fastrand::Rng::with_seed(self.seed);
        let place = || REGION + chance.u64(..words) * u64::from(WORD);
        in_blocks(self.accesses, place, sink);
    }
}

/// A pointer chase: reads of one word in each line (or each `stride`) of a region, in an order that has no pattern, in
/// which each comes once before any comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chase {
    /// The region's size.
    pub bytes: u64,
    /// Bytes from one place to the next; a line, or a page to measure the TLB alone.
    pub stride: u64,
    /// How many reads.
    pub accesses: u64,
    /// Of the generator.
    pub seed: u64,
}

impl Chase {
    /// Makes the stream.
    pub fn play(&self, sink: Sink<'_>) {
        let places = u32::try_from(self.bytes / self.stride.max(1)).unwrap_or(u32::MAX).max(1);
        let mut order: Vec<u32> = (0..places).collect();
        fastrand::Rng::with_seed(self.seed).shuffle(&mut order);
        let mut ring = order.iter().cycle();
        let place = || REGION + ring.next().map_or(0, |place| u64::from(*place)) * self.stride;
        in_blocks(self.accesses, place, sink);
    }
}

/// Reads of words at so many places.
fn in_blocks(accesses: u64, mut place: impl FnMut() -> u64, sink: Sink<'_>) {
    let mut block = [Access::default(); BLOCK];
    let mut left = accesses;
    while left > 0 {
        let some = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        block[..some].iter_mut().for_each(|access| *access = Access::read(place(), WORD));
        sink(&block[..some]);
        left -= some as u64;
    }
}
