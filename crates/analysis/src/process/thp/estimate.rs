//! Zero-filled share of huge pages, with the sampling error.

use pagewise_model::thp::HugeMapping;
use pagewise_model::{Absent, Bytes, Reading};

use crate::cells::float;

/// Number of standard deviations around the mean that includes 95 of 100 normally distributed
/// values.
const Z: f64 = 1.96;

/// Number of zero bytes: exact if `low` and `high` are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroEstimate {
    /// The most probable number of zero bytes.
    pub bytes: Bytes,
    /// The lower end of the 95 % interval.
    pub low: Bytes,
    /// The upper end of the 95 % interval.
    pub high: Bytes,
}

impl ZeroEstimate {
    /// Estimates the zero bytes of several mappings together; absent if no page was read.
    ///
    /// The interval is Wilson's interval for a share in a random sample; its width is 0 if every
    /// huge page was read. The sample contains one random page of each of many equal parts of the
    /// memory, so its real error is smaller.
    pub fn over<'a>(
        mappings: impl Iterator<Item = &'a HugeMapping> + Clone,
        huge_size: Bytes,
    ) -> Reading<ZeroEstimate> {
        let whole: Bytes = mappings.clone().map(|mapping| mapping.anonymous).sum();
        if whole.is_zero() {
            return Ok(ZeroEstimate { bytes: Bytes::ZERO, low: Bytes::ZERO, high: Bytes::ZERO });
        }
        let (read, zero) =
            mappings.clone().fold((0_u64, 0_u64), |(read, zero), m| (read + m.read, zero + m.zero));
        if read == 0 {
            let nothing = "none of their pages was read: use a larger --sample, or leave it out";
            return Err(Absent::NotCollected(nothing.into()));
        }
        let exact = mappings.clone().flat_map(|mapping| &mapping.pages).count() as u64
            >= whole.0 / huge_size.0.max(1);
        let (low, high) = interval(zero, read, if exact { 0.0 } else { 1.0 });
        let part = |share: f64| scaled(whole, share);
        Ok(ZeroEstimate {
            bytes: part(float(zero) / float(read)),
            low: part(low),
            high: part(high),
        })
    }
}

impl ZeroEstimate {
    /// Estimates the zero bytes of memory from pages that were read at random. Without read pages,
    /// the interval is from 0 to `whole`.
    pub(crate) fn of_sample(whole: Bytes, read: u64, zero: u64) -> ZeroEstimate {
        if read == 0 {
            return ZeroEstimate { bytes: Bytes::ZERO, low: Bytes::ZERO, high: whole };
        }
        let (low, high) = interval(zero, read, 1.0);
        let bytes = scaled(whole, float(zero) / float(read));
        ZeroEstimate { bytes, low: scaled(whole, low), high: scaled(whole, high) }
    }
}

/// Wilson's score interval of the share `zero` / `read`; `error` scales its width.
fn interval(zero: u64, read: u64, error: f64) -> (f64, f64) {
    let (share, n) = (float(zero) / float(read), float(read));
    let z = Z * error;
    let middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size is a size"
)]
fn scaled(whole: Bytes, share: f64) -> Bytes {
    Bytes((float(whole.0) * share).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons() {
        // 8 of 10, computed by hand: (0.8 + 0.19208) / 1.38416 -+ 0.227...
        let (low, high) = interval(8, 10, 1.0);
        assert!((low - 0.4902).abs() < 1e-3 && (high - 0.9433).abs() < 1e-3, "{low} {high}");
        assert_eq!(interval(8, 10, 0.0), (0.8, 0.8));
        let (low, high) = interval(0, 100, 1.0);
        assert!(low == 0.0 && (high - 0.037).abs() < 1e-3, "{high}");
    }
}
