//! Units as types: bytes, the page size, process IDs.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whole nanoseconds of a duration; `u64::MAX` if it is longer than 584 years.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A number of bytes.
///
/// Addition saturates: a hostile `smaps` must not make a sum panic.
///
/// ```
/// use pagewise_model::Bytes;
/// assert_eq!(Bytes::kib(4) + Bytes(96), Bytes(4192));
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 0 bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` KiB, the unit that `/proc` calls "kB".
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 10))
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 30))
    }

    /// True for zero bytes.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self - other`; 0 bytes if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// `self - other`; `None` if `other` is larger.
    pub const fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_sub(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// `self / whole` as a floating-point number; `None` if `whole` is 0.
    #[expect(clippy::cast_precision_loss, reason = "a ratio is shown with three digits")]
    pub fn fraction_of(self, whole: Bytes) -> Option<f64> {
        (whole.0 != 0).then(|| self.0 as f64 / whole.0 as f64)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

/// Saturates at 0. Use [`Bytes::checked_sub`] if a negative difference is meaningful.
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        self.saturating_sub(other)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

/// The base page size of the machine of a snapshot: a power of two.
///
/// It is never assumed, because machines with 64 KiB pages exist. All page arithmetic uses a value
/// of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

impl PageSize {
    /// Creates a page size of `bytes`; `None` if `bytes` is not a power of two of at least 512.
    pub const fn new(bytes: u64) -> Option<PageSize> {
        if bytes >= 512 && bytes.is_power_of_two() { Some(PageSize(bytes)) } else { None }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Size of `n` pages in bytes.
    pub const fn pages(self, n: u64) -> Bytes {
        Bytes(n.saturating_mul(self.0))
    }

    /// Number of whole pages in `bytes`.
    pub const fn count(self, bytes: Bytes) -> u64 {
        bytes.0 >> self.0.trailing_zeros()
    }
}

impl TryFrom<u64> for PageSize {
    type Error = String;
    fn try_from(bytes: u64) -> Result<PageSize, String> {
        PageSize::new(bytes).ok_or_else(|| format!("{bytes} is not a page size"))
    }
}

impl From<PageSize> for u64 {
    fn from(size: PageSize) -> u64 {
        size.0
    }
}

/// A process ID or thread ID, in the PID namespace of the `/proc` that was read.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Pid(pub u32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
