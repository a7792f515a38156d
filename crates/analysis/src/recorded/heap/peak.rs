//! The 95 % range of the peak of live bytes in a sampled recording.
//!
//! The estimate of the live bytes is unbiased at each time. The largest of these estimates is above
//! the true peak on average: it is taken at a time at which the estimate happens to be too high. So
//! it is an upper estimate. It exceeds the peak by more if fewer samples are live, and if the heap
//! was replaced more often.
//!
//! - The true peak exceeds its estimate at that time by 1.96 standard errors in 1 case of 40, and
//!   the highest estimate is at least that estimate.
//! - The highest estimate is above the true peak by at most the largest error of an estimate. The
//!   live blocks are replaced `allocated / live` times, and each time the error is drawn anew: its
//!   maximum is distributed as that of a normal process of that length
//!   ([`pagewise_stats::highest_of`]).
//!
//! Samples are events of a Poisson process, so the error grows with the square root of the live
//! bytes. Each bound is the value under which the estimate is just as unlikely (score intervals),
//! which is also valid for few samples.

use pagewise_model::heap::{AllocationSite, HeapRecording};

use crate::cells::float;

/// The range in which the peak of live bytes lies in 95 cases of 100; beyond each end in 1 of 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeakBounds {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// The chance of being beyond each bound.
const BEYOND: f64 = 0.025;
const DEVIATIONS: f64 = 1.96;

/// The bounds; none where every call was recorded, or the errors are not known.
pub(crate) fn bounds(recording: &HeapRecording) -> Option<PeakBounds> {
    recording.every_bytes?;
    recording.totals.errors?;
    let totals = &recording.totals;
    let estimate = float(totals.peak.bytes);
    let (mut variance, mut weighted) = (0.0, 0.0);
    for site in &recording.sites {
        let Some((each, at_peak)) = weight(site) else { continue };
        variance += at_peak * each;
        weighted += at_peak * each * each;
    }
    // Bytes that one sample stands for, weighted by its part of the variance.
    let each = if variance > 0.0 { weighted / variance } else { 0.0 };
    let score = |deviations: f64| {
        let middle = estimate + deviations * deviations * each / 2.0;
        let half = (variance + (deviations * each).powi(2) / 4.0).sqrt() * deviations;
        (middle - half, middle + half)
    };
    let mut least = estimate;
    // The lower the peak is, the more often the live blocks were replaced.
    for _ in 0..ROUNDS {
        let times = float(totals.allocated.bytes) / least.max(each).max(1.0);
        least = score(pagewise_stats::highest_of(times, BEYOND)).0;
    }
    let most = score(DEVIATIONS).1;
    let within = float(totals.peak_within);
    Some(PeakBounds { least: bytes(least - within), most: bytes(most + within) })
}

/// Number of iterations after which the lower bound and the replacements have converged.
const ROUNDS: u32 = 30;

/// The variance per live byte of a site, and the site's bytes at the peak.
fn weight(site: &AllocationSite) -> Option<(f64, f64)> {
    let (error, _) = site.errors?;
    let allocated = float(site.allocated.bytes);
    (allocated > 0.0).then(|| (error * error / allocated, float(site.at_peak.bytes)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is below 0 or above 2^64 becomes the end of the range"
)]
fn bytes(number: f64) -> u64 {
    number.round() as u64
}
