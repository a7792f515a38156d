//! Past sweeps, as `pagewise replay` reads them.

use crate::sweep::{CategorySample, Sweep, SweepEvent};

/// Recorded sweeps in order of time. Times are nanoseconds since 1970.
pub trait SweepSource {
    /// Why a sweep cannot be read.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Times of the first and the last sweep; `None` for an empty recording.
    ///
    /// # Errors
    /// The source cannot be read.
    fn span(&mut self) -> Result<Option<(u64, u64)>, Self::Error>;

    /// The last `count` sweeps at or before a time, oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn at(&mut self, unix_ns: u64, count: usize) -> Result<Vec<Sweep>, Self::Error>;

    /// The first sweep after a time.
    ///
    /// # Errors
    /// The source cannot be read.
    fn next(&mut self, unix_ns: u64) -> Result<Option<Sweep>, Self::Error>;

    /// Events from one time to another, both included, oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn events(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<SweepEvent>, Self::Error>;

    /// Categories of processes from one time to another, both included, oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn categories(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<CategorySample>, Self::Error>;

    /// The first event after a time that `replay` jumps to: any except the start or end of a
    /// process.
    ///
    /// # Errors
    /// The source cannot be read.
    fn next_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Self::Error>;

    /// The last event before a time that `replay` jumps to: any except the start or end of a
    /// process.
    ///
    /// # Errors
    /// The source cannot be read.
    fn previous_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Self::Error>;
}
