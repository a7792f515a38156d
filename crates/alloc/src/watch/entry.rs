//! The counters of one pool, in the layout in which other processes read them.
//!
//! Only one thread at a time, the user of the pool, writes the counters, without a locked
//! instruction. Another process reads each counter with one access, and all counters at about the
//! same time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::PoolProgress;
use crate::source::SourceBlock;

/// Number of size classes of requests: up to 1 byte, 2 bytes, 4 bytes and so on; the last class
/// contains all larger sizes.
pub const SIZES: usize = 24;
/// Maximum number of points of the series, which records live and held bytes over time.
pub const SAMPLES: usize = 64;
/// Maximum number of separate address ranges.
const RANGES: usize = 128;

/// States of an entry.
mod state {
    pub(super) const FREE: u32 = 0;
    pub(super) const LIVE: u32 = 1;
    pub(super) const ENDED: u32 = 2;
    pub(super) const CLAIMED: u32 = 3;
}

/// Counters of one pool. An entry of zeros was never used.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PoolEntry {
    state: AtomicU32,
    /// Number that grows each time a new pool takes the entry.
    serial: AtomicU32,
    /// Names of the kind and of the pool in UTF-8, padded with zeros.
    kind: [AtomicU64; 2],
    name: [AtomicU64; 4],
    /// Number of requested blocks, of their bytes, and of freed bytes.
    requests: AtomicU64,
    requested: AtomicU64,
    returned: AtomicU64,
    /// Maximum number of live bytes.
    peak_live: AtomicU64,
    /// Number of bytes that the pool has taken from its source and not returned, and maximum of
    /// this number.
    held: AtomicU64,
    peak_held: AtomicU64,
    /// Number of blocks that the pool has taken from its source, and number of blocks that it has
    /// returned.
    blocks_taken: AtomicU64,
    blocks_returned: AtomicU64,
    slow_paths: AtomicU64,
    /// Number of requests by size class. A sampled request counts for all requests since the last
    /// sample.
    sizes: [AtomicU64; SIZES],
    /// Value of `requested` at which the next point of the series is due, and distance between
    /// points in requested bytes.
    next_sample: AtomicU64,
    interval: AtomicU64,
    samples_used: AtomicU64,
    /// Number of address ranges that were not recorded because all entries of `ranges` were in use.
    ranges_lost: AtomicU64,
    reserved: [u64; 20],
    samples: [SeriesSample; SAMPLES],
    /// Address ranges of the pool's blocks, with adjacent ranges merged. An empty range is an
    /// unused entry.
    ranges: [AddressRange; RANGES],
}

/// Range of addresses from `start` to `end`, without `end`.
#[repr(C)]
#[derive(Debug)]
struct AddressRange {
    start: AtomicU64,
    end: AtomicU64,
}

/// A point of the series.
#[repr(C)]
#[derive(Debug)]
struct SeriesSample {
    requests: AtomicU64,
    live: AtomicU64,
    held: AtomicU64,
}

/// Number of requested bytes between the first points of the series.
const FIRST_INTERVAL: u64 = 1024;
/// Maximum number of bytes between two reports. An eighth of all requested bytes, if that is less,
/// is the limit instead.
const SIZE_INTERVAL: u64 = 32 << 10;

/// Adds to a counter without a locked instruction, because only one thread writes it.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) -> u64 {
    let sum = counter.load(Relaxed).wrapping_add(n);
    counter.store(sum, Relaxed);
    sum
}

fn raise(most: &AtomicU64, now: u64) {
    if now > most.load(Relaxed) {
        most.store(now, Relaxed);
    }
}

/// Returns the index of the size class of a request.
const fn class(size: usize) -> usize {
    let power = usize::BITS - size.saturating_sub(1).leading_zeros();
    if power as usize >= SIZES { SIZES - 1 } else { power as usize }
}

impl PoolEntry {
    /// Claims the entry for a new pool; returns `false` if another pool uses it.
    pub(super) fn claim(&self, kind: &str) -> bool {
        let was = self.state.load(Relaxed);
        let is_free = was == state::FREE || was == state::ENDED;
        let claimed =
            is_free && self.state.compare_exchange(was, state::CLAIMED, Relaxed, Relaxed).is_ok();
        if claimed {
            self.clear(kind);
        }
        claimed
    }

    fn clear(&self, kind: &str) {
        let counters = [
            &self.requests,
            &self.requested,
            &self.returned,
            &self.peak_live,
            &self.held,
            &self.peak_held,
            &self.blocks_taken,
            &self.blocks_returned,
            &self.slow_paths,
            &self.next_sample,
            &self.samples_used,
            &self.ranges_lost,
        ];
        counters.iter().copied().chain(&self.sizes).for_each(|counter| counter.store(0, Relaxed));
        self.ranges.iter().for_each(|range| range.set(0, 0));
        self.interval.store(FIRST_INTERVAL, Relaxed);
        write(&self.kind, kind);
        write(&self.name, "");
        self.serial.fetch_add(1, Relaxed);
        self.state.store(state::LIVE, Relaxed);
    }

    pub(super) fn rename(&self, name: &str) {
        write(&self.name, name);
    }

    pub(super) fn end(&self) {
        self.state.store(state::ENDED, Relaxed);
    }

    #[cold]
    pub(super) fn taken(&self, block: SourceBlock) {
        add(&self.blocks_taken, 1);
        raise(&self.peak_held, add(&self.held, block.size as u64));
        let (start, end) = ends(block);
        let next_to = |range: &&AddressRange| range.end() == start || range.start() == end;
        if let Some(range) = self.ranges.iter().find(|range| !range.is_empty() && next_to(range)) {
            range.set(range.start().min(start), range.end().max(end));
        } else {
            self.add_range(start, end);
        }
    }

    #[cold]
    pub(super) fn given_back(&self, block: SourceBlock) {
        add(&self.blocks_returned, 1);
        add(&self.held, (block.size as u64).wrapping_neg());
        let (start, end) = ends(block);
        let around = |range: &&AddressRange| range.start() <= start && end <= range.end();
        if let Some(range) = self.ranges.iter().find(around) {
            let after = range.end();
            range.set(range.start(), start);
            self.add_range(end, after);
        }
    }

    fn add_range(&self, start: u64, end: u64) {
        if start == end {
            return;
        }
        match self.ranges.iter().find(|range| range.is_empty()) {
            Some(range) => range.set(start, end),
            None => drop(add(&self.ranges_lost, 1)),
        }
    }

    #[cold]
    pub(super) fn slow(&self) {
        add(&self.slow_paths, 1);
    }

    #[cold]
    pub(super) fn progress(&self, progress: PoolProgress) {
        self.sized(progress.size, progress.requests as u64);
        self.moved(progress);
    }

    /// Adds requests to the count of their size class only.
    pub(super) fn sized(&self, size: usize, requests: u64) {
        add(&self.sizes[class(size)], requests);
    }

    /// Adds the events of a report, except to the counts of size classes.
    pub(super) fn moved(&self, progress: PoolProgress) {
        add(&self.requests, progress.requests as u64);
        // Adds the requests before the frees, since the live bytes had their maximum in between.
        let requested = add(&self.requested, progress.requested as u64);
        self.note_live(requested);
        add(&self.returned, progress.returned as u64);
    }

    /// Returns the number of bytes that a pool may allocate, or free, before it reports: an eighth
    /// of all requested bytes, at most [`SIZE_INTERVAL`].
    pub(super) fn span(&self) -> usize {
        let all = self.requested.load(Relaxed);
        usize::try_from((all / 8).min(SIZE_INTERVAL)).unwrap_or(0)
    }

    /// Adds a report of a pool: numbers of allocated and freed bytes, and the size of a sampled
    /// request, or 0 without a request. The probability that a request is sampled is proportional
    /// to its size; dividing the allocated bytes by this size compensates for that.
    pub(super) fn told(&self, asked: u64, returned: u64, size: usize) {
        let mean = self.requested.load(Relaxed).checked_div(self.requests.load(Relaxed));
        let size = if size > 0 { size as u64 } else { mean.unwrap_or(1).max(1) };
        let stands_for = asked / size;
        add(&self.sizes[class(usize::try_from(size).unwrap_or(usize::MAX))], stands_for);
        add(&self.requests, stands_for);
        let requested = add(&self.requested, asked);
        self.note_live(requested);
        add(&self.returned, returned);
    }

    /// Counts all live bytes as freed.
    pub(super) fn forgotten(&self) {
        self.returned.store(self.requested.load(Relaxed), Relaxed);
    }

    fn note_live(&self, requested: u64) {
        let live = requested.wrapping_sub(self.returned.load(Relaxed));
        raise(&self.peak_live, live);
        if requested >= self.next_sample.load(Relaxed) {
            self.sample(requested, live);
        }
    }

    /// Adds a point to the series. If the series is full, every second point is removed, and the
    /// distance between later points is doubled.
    fn sample(&self, requested: u64, live: u64) {
        let mut used = usize::try_from(self.samples_used.load(Relaxed)).unwrap_or(0).min(SAMPLES);
        if used == SAMPLES {
            used = SAMPLES / 2;
            for at in 0..used {
                self.samples[at].set(self.samples[2 * at].get());
            }
            add(&self.interval, self.interval.load(Relaxed));
        }
        let [requests, held] = [&self.requests, &self.held].map(|counter| counter.load(Relaxed));
        self.samples[used].set([requests, live, held]);
        self.samples_used.store(used as u64 + 1, Relaxed);
        self.next_sample.store(requested.saturating_add(self.interval.load(Relaxed)), Relaxed);
    }
}

fn ends(block: SourceBlock) -> (u64, u64) {
    let start = block.start.addr().get();
    (start as u64, (start + block.size) as u64)
}

impl AddressRange {
    fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.start() == self.end()
    }

    fn set(&self, start: u64, end: u64) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
    }
}

impl SeriesSample {
    fn get(&self) -> [u64; 3] {
        [&self.requests, &self.live, &self.held].map(|number| number.load(Relaxed))
    }

    fn set(&self, numbers: [u64; 3]) {
        let places = [&self.requests, &self.live, &self.held];
        places.iter().zip(numbers).for_each(|(place, number)| place.store(number, Relaxed));
    }
}

/// Writes the start of a text into words, padded with zeros.
fn write(words: &[AtomicU64], text: &str) {
    for (at, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        let rest = text.as_bytes().get(at * 8..).unwrap_or_default();
        let length = rest.len().min(8);
        bytes[..length].copy_from_slice(&rest[..length]);
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}
