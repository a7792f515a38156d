//! Sampling: a block is recorded with a probability that grows with its size, and is weighted by
//! the inverse of that probability.
//!
//! Each thread draws a number of bytes from an exponential distribution, and counts the allocated
//! bytes down from it. It samples the block at which the count ends, and draws a new number. So the
//! sampling points form a Poisson process over the allocated bytes. A block of `s` bytes is sampled
//! with the probability p = 1 - exp(-s/mean), and counts as 1/p blocks. The sums are unbiased, and
//! their variance is estimated by the sum of s^2 (1-p)/p^2 (Horvitz and Thompson).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use pagewise_heaplog::tables::record;

use crate::begin;
use crate::hooks;
use crate::live::{self, RecordedBlock};
use crate::next_alloc;
use crate::peak;
use crate::stacks::CallPoint;
use crate::stubs::{Own, own, set_own};
use crate::threads::{self, ThreadData};

/// Mean number of bytes between samples; 0 if all calls are recorded.
static MEAN: AtomicU64 = AtomicU64::new(0);

/// Number of low address bits that [`FILTER`] ignores. Neighboring blocks share an entry, so a
/// program with memory locality also has locality in the filter.
pub(crate) const FILTER_BITS: usize = 8;

/// Number of sampled blocks for each value of the 16 address bits above the lowest [`FILTER_BITS`]
/// bits; [`u8::MAX`] for 255 or more.
pub(crate) static FILTER: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

/// Starts sampling with `mean` bytes between samples on average.
pub(crate) fn begin(mean: u64) {
    MEAN.store(mean, Relaxed);
    for count in &FILTER {
        count.store(0, Relaxed);
    }
}

/// True if sampling is on.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    MEAN.load(Relaxed) != 0
}

/// False if a block that is being freed is certainly not sampled, which is the most frequent case.
#[inline(always)]
pub(crate) fn may_be_one(address: u64) -> bool {
    !is_on() || filter(address).load(Relaxed) != 0
}

/// True if an allocation must be recorded or examined. With sampling, subtracts the size of an
/// allocation that is not due from the byte counter.
#[inline(always)]
pub(crate) fn is_due(size: usize) -> bool {
    if !is_on() {
        return true;
    }
    let left = own::<{ Own::Left as usize }>().wrapping_sub(size as u64);
    let is_due = left.cast_signed() < 0;
    if !is_due {
        set_own::<{ Own::Left as usize }>(left);
    }
    is_due
}

fn filter(address: u64) -> &'static AtomicU8 {
    &FILTER[(address >> FILTER_BITS) as usize & 0xffff]
}

/// Slow path of `malloc`: called if the bytes until the next sample are used up.
pub(crate) unsafe extern "C" fn malloc(size: usize, stack: u64, frame: u64) -> *mut c_void {
    let block = next_alloc::malloc(size);
    counted_down(block, size, stack, frame);
    block
}

/// Slow path of `calloc`, for a product that does not overflow.
pub(crate) unsafe extern "C" fn calloc(
    count: usize,
    size: usize,
    stack: u64,
    frame: u64,
) -> *mut c_void {
    let block = next_alloc::calloc(count, size);
    counted_down(block, count.wrapping_mul(size), stack, frame);
    block
}

/// Records a block if it is sampled. Called after the stub has subtracted the size of the block.
fn counted_down(block: *mut c_void, size: usize, stack: u64, frame: u64) {
    if let Some(entered) = threads::enter() {
        let thread = entered.thread();
        if !block.is_null() && is_sample(thread) {
            sample_block(thread, block.addr() as u64, size as u64, hooks::at(stack, frame));
        }
        threads::leave(entered);
    } else if !begin::is_recording() || own::<{ Own::Left as usize }>() >> 63 != 0 {
        // Sets the negative byte counter to 0. A thread that begins to record later draws a new
        // number.
        set_own::<{ Own::Left as usize }>(0);
    }
}

/// Records a block of a function other than `malloc` and `calloc` if the block is sampled.
pub(crate) fn allocated(thread: &ThreadData, address: u64, size: u64, at: CallPoint) {
    let left = own::<{ Own::Left as usize }>().wrapping_sub(size);
    set_own::<{ Own::Left as usize }>(left);
    if left.cast_signed() < 0 && is_sample(thread) {
        sample_block(thread, address, size, at);
    }
}

/// True if a sampling point is within the subtracted bytes. In this case draws the next point.
fn is_sample(thread: &ThreadData) -> bool {
    let mut left = own::<{ Own::Left as usize }>().cast_signed();
    let mut hits = 0;
    if thread.begins_sampling() {
        // This thread has not drawn a number before.
        left = left.saturating_add(draw(thread));
    }
    while left < 0 {
        hits += 1;
        left = left.saturating_add(draw(thread));
        if hits == 64 {
            // A block may contain very many sampling points. The distance from its end to the next
            // point does not depend on the points in the block, so one draw replaces the remaining
            // draws.
            left = draw(thread);
        }
    }
    set_own::<{ Own::Left as usize }>(left.cast_unsigned());
    hits > 0
}

/// Draws the number of bytes to the next sampling point.
fn draw(thread: &ThreadData) -> i64 {
    let mean = MEAN.load(Relaxed) as f64;
    // The interval of `uniform` is (0, 1].
    let uniform = ((thread.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-logarithm(uniform) * mean) as i64
}

/// Number of blocks and bytes that a sampled block represents, and the variance of these estimates.
struct BlockWeight {
    blocks: u64,
    bytes: u64,
    variance: f64,
}

#[allow(clippy::cast_sign_loss, reason = "neither number is below zero")]
fn weight(size: u64) -> BlockWeight {
    let mean = MEAN.load(Relaxed) as f64;
    let size = size.max(1) as f64;
    let probability = (-exponential_less_one(-size / mean)).max(f64::MIN_POSITIVE);
    BlockWeight {
        blocks: (1.0 / probability).round_ties_even() as u64,
        bytes: (size / probability).round_ties_even() as u64,
        variance: size * size * (1.0 - probability) / (probability * probability),
    }
}

/// Number of bytes of a mapping that a sampled block of `size` bytes represents.
pub(crate) fn scaled(bytes: u64, size: u64) -> u64 {
    bytes.saturating_mul(weight(size).blocks)
}

fn sample_block(thread: &ThreadData, address: u64, size: u64, at: CallPoint) {
    let Some((site, record)) = thread.site(at) else { return };
    let weight = weight(size);
    record.roll();
    record.add(record::ALLOCATIONS, weight.blocks);
    record.add(record::ALLOCATED, weight.bytes);
    vary(record, record::VARIANCE, weight.variance);
    vary(record, record::LIVE_VARIANCE, weight.variance);
    thread.count_size(size, weight.blocks);
    thread.set_last(address, own::<{ Own::Left as usize }>());
    if live::put::<false>(address, RecordedBlock { site, size, timed: false }, begin::room(address))
    {
        let _ = filter(address).fetch_update(Relaxed, Relaxed, |count| count.checked_add(1));
    }
    if size >= threads::LARGE {
        threads::count_mapped(address, size, false);
    }
    peak::more(thread, weight.bytes);
}

/// Counts a free of a sampled block.
pub(crate) fn freed(thread: &ThreadData, address: u64, block: RecordedBlock) {
    // A saturated counter stays saturated, because the number of its blocks is unknown.
    let _ = filter(address).fetch_update(Relaxed, Relaxed, |count| {
        if count == u8::MAX { None } else { count.checked_sub(1) }
    });
    let weight = weight(block.size);
    peak::less(thread, weight.bytes);
    let Some(record) = thread.record_of(block.site) else { return };
    record.roll();
    record.add(record::FREES, weight.blocks);
    record.add(record::FREED, weight.bytes);
    vary(record, record::LIVE_VARIANCE, -weight.variance);
    // Any later allocation of this thread would have reduced the counter.
    if thread.is_last(address, own::<{ Own::Left as usize }>()) {
        record.add(record::TEMPORARY, weight.blocks);
    }
}

fn vary(record: crate::shared::SiteRecord, number: usize, more: f64) {
    record.set(number, (f64::from_bits(record.get(number)) + more).to_bits());
}

/// Computes ln(x) for x in (0, 1] without the mathematical library, which the program may not have
/// loaded.
pub(crate) fn logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // The series is 2 atanh((m-1)/(m+1)) for m in [1, 2); each term is at most 1/9 of the previous
    // one.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let mut term = ratio;
    let mut sum = 0.0;
    for odd in (1..40).step_by(2) {
        sum += term / f64::from(odd);
        term *= square;
    }
    exponent * std::f64::consts::LN_2 + 2.0 * sum
}

/// Computes exp(x) - 1 for x <= 0.
fn exponential_less_one(x: f64) -> f64 {
    if x < -40.0 {
        return -1.0;
    }
    // The result for a small fraction of x is squared repeatedly: (1+e)^2 - 1 = e (2 + e).
    let halvings = 7;
    let small = x / f64::from(1 << halvings);
    let mut term = small;
    let mut sum = 0.0;
    for number in 1..18 {
        sum += term;
        term *= small / f64::from(number + 1);
    }
    for _ in 0..halvings {
        sum *= 2.0 + sum;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_library() {
        for number in 1..=100_000 {
            let x = f64::from(number) / 100_000.0;
            assert!((logarithm(x) - x.ln()).abs() < 1e-12, "{x}");
        }
        assert!((logarithm(2_f64.powi(-53)) - 2_f64.powi(-53).ln()).abs() < 1e-12);
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        for number in 1..=100_000 {
            let x = -f64::from(number) / 2_000.0;
            let expected = x.exp_m1();
            assert!(((exponential_less_one(x) - expected) / expected).abs() < 1e-12, "{x}");
        }
    }
}
