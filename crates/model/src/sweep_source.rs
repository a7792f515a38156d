//! Interface to recorded sweeps, which `pagewise replay` uses.

use crate::sweep::{CategorySample, Sweep, SweepEvent};

/// A source of recorded sweeps in order of time. Times are nanoseconds since 1970.
pub trait SweepSource {
    /// Error of the source.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Times of the first and the last sweep; `None` for an empty recording.
    ///
    /// # Errors
    /// The source cannot be read.
    fn span(&mut self) -> Result<Option<(u64, u64)>, Self::Error>;

    /// The last `count` sweeps at or before the time `unix_ns`, oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn at(&mut self, unix_ns: u64, count: usize) -> Result<Vec<Sweep>, Self::Error>;

    /// The first sweep after the time `unix_ns`; `None` if the recording has no later sweep.
    ///
    /// # Errors
    /// The source cannot be read.
    fn next(&mut self, unix_ns: u64) -> Result<Option<Sweep>, Self::Error>;

    /// Events from `from_ns` to `to_ns` (inclusive), oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn events(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<SweepEvent>, Self::Error>;

    /// Memory by category of processes from `from_ns` to `to_ns` (inclusive), oldest first.
    ///
    /// # Errors
    /// The source cannot be read.
    fn categories(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<CategorySample>, Self::Error>;

    /// The first event after the time `unix_ns` that `replay` can jump to. Starts and ends of
    /// processes are skipped.
    ///
    /// # Errors
    /// The source cannot be read.
    fn next_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Self::Error>;

    /// The last event before the time `unix_ns` that `replay` can jump to. Starts and ends of
    /// processes are skipped.
    ///
    /// # Errors
    /// The source cannot be read.
    fn previous_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, Self::Error>;
}
