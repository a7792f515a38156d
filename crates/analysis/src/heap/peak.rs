//! How high a peak was that is known by samples: between which bounds.
//!
//! What is live is estimated without bias at each time. The most that any estimate was is above the most that was live, on average:
//! the time with the most is one at which the estimate is too high. So it is an upper estimate, and the more so, the fewer samples are
//! live and the more often the heap was replaced.
//!
//! - The true peak is above its estimate at that time in 1 case of 40 by 1.96 standard errors, and the highest estimate is no lower.
//! - The highest estimate is above the true peak by no more than the estimates' error is at any time. What is live is replaced
//!   `allocated / live` times, after each of which the error is a new one: its maximum has the distribution of that of a normal process
//!   that is as long ([`pagewise_stats::highest_of`]).
//!
//! Samples are events of a Poisson process, so the error grows with the root of what is live: each bound is the value under which the
//! estimate is just as unlikely (score intervals), which also holds of few samples.

use pagewise_model::heap::{Recording, Site};

use super::real;

/// Between which bytes the most that was live lies in 95 cases of 100, and beyond each in 1 of 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// The chance of being beyond each bound.
const BEYOND: f64 = 0.025;
const DEVIATIONS: f64 = 1.96;

/// The bounds; none where every call was recorded, or the errors are not known.
pub(super) fn bounds(recording: &Recording) -> Option<Bounds> {
    recording.every_bytes?;
    recording.totals.errors?;
    let totals = &recording.totals;
    let estimate = real(totals.peak.bytes);
    let (mut variance, mut weighted) = (0.0, 0.0);
    for site in &recording.sites {
        let Some((each, at_peak)) = weight(site) else { continue };
        variance += at_peak * each;
        weighted += at_peak * each * each;
    }
    // What a sample stands for, of those that make the error.
    let each = if variance > 0.0 { weighted / variance } else { 0.0 };
    let score = |deviations: f64| {
        let middle = estimate + deviations * deviations * each / 2.0;
        let half = (variance + (deviations * each).powi(2) / 4.0).sqrt() * deviations;
        (middle - half, middle + half)
    };
    let mut least = estimate;
    // The lower the peak is, the more often it was replaced.
    for _ in 0..ROUNDS {
        let times = real(totals.allocated.bytes) / least.max(each).max(1.0);
        least = score(pagewise_stats::highest_of(times, BEYOND)).0;
    }
    let most = score(DEVIATIONS).1;
    let within = real(totals.peak_within);
    Some(Bounds { least: bytes(least - within), most: bytes(most + within) })
}

/// Enough for both numbers to settle.
const ROUNDS: u32 = 30;

/// How many bytes one sample of a site stands for beyond itself, so that the variance of a sum is the sum times that, and what the
/// site had at the peak.
fn weight(site: &Site) -> Option<(f64, f64)> {
    let (error, _) = site.errors?;
    let allocated = real(site.allocated.bytes);
    (allocated > 0.0).then(|| (error * error / allocated, real(site.at_peak.bytes)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is below 0 or above 2^64 becomes the end of the range"
)]
fn bytes(number: f64) -> u64 {
    number.round() as u64
}
