//! Statistics of repeated measurements: typical value, confidence interval, outliers, drift.
//!
//! Pure functions over slices of values in the order in which they were measured. Common rules:
//!
//! - The median and the MAD come first: run times are skewed to the right, and one disturbed run
//!   must not change the reported value.
//! - A value that is not finite makes the result absent. Leave missing measurements out of the
//!   slice. Functions that dropped non-finite values quietly would hide a fault of the measuring
//!   program.
//! - The bootstrap draws from a generator with a fixed seed: the same values give the same
//!   interval.
//!
//! ```
//! use pagewise_stats::{Summary, ratio_of_medians};
//!
//! let before = [10.1, 10.3, 10.2, 10.9, 10.0, 10.2];
//! let after = [5.1, 5.0, 5.2, 5.1, 5.4, 5.0];
//! assert_eq!(Summary::from_values(&before).unwrap().median, 10.2);
//! let ratio = ratio_of_medians(&after, &before).unwrap();
//! assert!(ratio.interval.unwrap().high < 0.6);
//! ```
#![forbid(unsafe_code)]

mod bootstrap;
mod normal;
mod summary;
mod trend;

pub use bootstrap::{Interval, Ratio, median_interval, ratio_of_medians};
pub use normal::highest_of;
pub use summary::{Summary, median_curve, outliers};
pub use trend::{TrendDrift, drift};
