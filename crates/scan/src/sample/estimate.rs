//! Estimates from windows at random addresses: shares of resident memory, each with a range.

use pagewise_model::Bytes;
use pagewise_model::heap_sample::{BytesEstimate, MemoryExcerpt};

/// Number of standard errors on each side of an estimate.
const ERRORS: f64 = 3.0;
/// Upper bound of the share of a use that no window contains, multiplied by the number of windows
/// read (rule of three, 95 %).
const UNSEEN: f64 = 3.0;

/// Lower and upper bound of a number of bytes in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowBounds {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Resident bytes of one window by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowShares {
    pub(crate) resident: u64,
    pub(crate) free: WindowBounds,
    pub(crate) trimmable: WindowBounds,
    pub(crate) pinned: WindowBounds,
    pub(crate) top: WindowBounds,
    pub(crate) unsettled: u64,
}

/// A sample of the windows of a heap.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowSample {
    /// Windows that were read.
    pub(crate) windows: Vec<WindowShares>,
    /// Number of all windows of the heap.
    pub(crate) population: u64,
    /// One free page of each window that has such pages.
    pub(crate) free_pages: Vec<MemoryExcerpt>,
}

impl WindowSample {
    /// Resident bytes of the heap, extrapolated from the windows that were read.
    pub(crate) fn resident(&self) -> Bytes {
        let read: u64 = self.windows.iter().map(|window| window.resident).sum();
        let scaled = u128::from(read) * u128::from(self.population);
        let whole = scaled / (self.windows.len().max(1) as u128);
        Bytes(u64::try_from(whole).unwrap_or(u64::MAX))
    }

    /// Estimates the bytes of one use in the heap. `resident` is the number of resident bytes of
    /// the heap.
    pub(crate) fn estimate(
        &self,
        resident: Bytes,
        of_window: impl Fn(&WindowShares) -> WindowBounds,
    ) -> BytesEstimate {
        let bytes = |share: f64| part_of(resident, share.clamp(0.0, 1.0));
        let (low, margin) = self.share(|window| of_window(window).low);
        let low = bytes(low - margin);
        let (high, margin) = self.share(|window| of_window(window).high);
        BytesEstimate { low, high: bytes(high + margin) }
    }

    /// Returns the share of a use in the resident bytes and the margin of error of this share: a
    /// ratio estimate with windows as clusters.
    fn share(&self, of_window: impl Fn(&WindowShares) -> u64) -> (f64, f64) {
        let pairs: Vec<(f64, f64)> = self
            .windows
            .iter()
            .filter(|window| window.resident > 0)
            .map(|window| (window.resident as f64, of_window(window) as f64))
            .collect();
        let count = pairs.len() as f64;
        let resident: f64 = pairs.iter().map(|pair| pair.0).sum();
        if resident <= 0.0 {
            return (0.0, 1.0);
        }
        let ratio = pairs.iter().map(|pair| pair.1).sum::<f64>() / resident;
        let unread = 1.0 - self.windows.len() as f64 / self.population.max(1) as f64;
        let squares: f64 =
            pairs.iter().map(|(all, part)| (part - ratio * all).powi(2)).sum::<f64>();
        let variance = squares / (count - 1.0).max(1.0) * unread.max(0.0);
        let error = (variance / count).sqrt() / (resident / count);
        let unseen = if unread > 0.0 { UNSEEN / count } else { 0.0 };
        (ratio, ERRORS * error + unseen)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a number lies between 0 and it"
)]
fn part_of(whole: Bytes, share: f64) -> Bytes {
    Bytes((whole.0 as f64 * share) as u64)
}

/// Yields all numbers below `count` once. For any N, the first N numbers are spread evenly: they
/// are multiples of a step near the golden section that is coprime to `count`.
pub(crate) fn spread_order(count: u64) -> impl Iterator<Item = u64> {
    let golden = u128::from(count) * 618_034 / 1_000_000;
    let mut step = u64::try_from(golden).unwrap_or(1).max(1);
    while count > 1 && common_divisor(step, count) > 1 {
        step += 1;
    }
    let mut at = count / 3;
    (0..count).map(move |_| {
        at = (at + step) % count;
        at
    })
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 64 << 10;

    fn free(window: &WindowShares) -> WindowBounds {
        window.free
    }

    fn window(free: u64) -> WindowShares {
        WindowShares {
            resident: WINDOW,
            free: WindowBounds { low: free, high: free },
            ..WindowShares::default()
        }
    }

    #[test]
    fn every_number_comes_once_and_beginnings_are_spread() {
        for count in [1, 2, 3, 10, 1000, 4096, 4999] {
            let order: Vec<u64> = spread_order(count).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
            if count > 100 {
                let first = &order[..100];
                let low = first.iter().filter(|at| **at < count / 4).count();
                assert!((20..=30).contains(&low), "{count}: {low}");
            }
        }
    }

    #[test]
    fn a_whole_reading_is_exact_and_a_part_of_it_contains_the_truth() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let blocks: Vec<u64> = (0..2000).map(|_| random.u64(..3) * WINDOW / 2).collect();
            let truth: u64 = blocks.iter().sum();
            let resident = Bytes(WINDOW * 2000);
            let all = WindowSample {
                windows: blocks.iter().map(|free| window(*free)).collect(),
                population: 2000,
                ..WindowSample::default()
            };
            let exact = all.estimate(resident, free);
            assert!(exact.low.0.abs_diff(truth) <= 1 && exact.high.0.abs_diff(truth) <= 1);
            let part = WindowSample {
                windows: spread_order(2000)
                    .take(200)
                    .map(|at| window(blocks[usize::try_from(at).unwrap()]))
                    .collect(),
                population: 2000,
                ..WindowSample::default()
            };
            let found = part.estimate(resident, free);
            assert!(found.low.0 <= truth && truth <= found.high.0, "{truth}: {found:?}");
            assert!(found.high.0 - found.low.0 < resident.0 / 4, "{found:?}");
        }
    }

    #[test]
    fn windows_that_show_nothing_leave_room_for_something() {
        let sample = WindowSample {
            windows: vec![window(0); 100],
            population: 10_000,
            ..WindowSample::default()
        };
        let found = sample.estimate(Bytes::gib(1), free);
        assert_eq!(found.low, Bytes::ZERO);
        assert!(found.high >= Bytes::mib(30), "{found:?}");
    }
}
