//! The 95 % range of the peak of live bytes in a sampled recording.
//!
//! The estimate of the live bytes is unbiased at each time. The largest of these estimates exceeds
//! the true peak on average, because it is taken at a time at which the estimate happens to be too
//! high. The largest estimate is therefore an upper estimate. The excess is larger if fewer samples
//! are live, and if the blocks of the heap were replaced more often.
//!
//! The bounds follow from two facts:
//!
//! - In 1 case of 40, the true peak exceeds the estimate at the time of the true peak by more than
//!   1.96 standard errors. The highest estimate is at least that estimate.
//! - The highest estimate exceeds the true peak by at most the largest error of an estimate. The
//!   live blocks are replaced `allocated / live` times. After each replacement, the error is
//!   independent of the earlier error. The largest error is distributed as the maximum of a normal
//!   process over this number of replacements ([`pagewise_stats::highest_of`]).
//!
//! Samples are events of a Poisson process, so the error grows with the square root of the live
//! bytes. Each bound is the true value for which the observed estimate is just as unlikely as the
//! interval permits (score interval), which is also valid for few samples.

use pagewise_model::heap::{AllocationSite, HeapRecording};

use crate::cells::float;

/// Range of the peak of live bytes. The true peak is in the range in 95 cases of 100, and beyond
/// each end in 1 case of 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeakBounds {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// Probability that the true peak is beyond a bound.
const BEYOND: f64 = 0.025;
const DEVIATIONS: f64 = 1.96;

/// Computes the bounds; `None` if every call was recorded, or if the errors are not known.
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
    // Bytes that one sample represents: the average over the sites, weighted by their parts of the
    // variance.
    let each = if variance > 0.0 { weighted / variance } else { 0.0 };
    let score = |deviations: f64| {
        let middle = estimate + deviations * deviations * each / 2.0;
        let half = (variance + (deviations * each).powi(2) / 4.0).sqrt() * deviations;
        (middle - half, middle + half)
    };
    let mut least = estimate;
    // A lower peak means that the live blocks were replaced more often, which lowers the bound
    // again.
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

/// Returns the variance per live byte of a site, and the live bytes of the site at the peak.
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
