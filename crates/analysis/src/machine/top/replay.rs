//! The history of a recording up to any time in it.

use std::sync::Arc;

use pagewise_model::sweep::{CategorySample, ProcessKey};
use pagewise_model::sweep_source::SweepSource;

use super::history::{MAX_SAMPLES, TopHistory};
use crate::sweeps::CATEGORIES_NS;

/// Maximum age in nanoseconds of the events that are shown with a sweep.
const EVENTS_NS: u64 = 600_000_000_000;

/// A recording, and a position in it.
#[derive(Debug)]
pub struct ReplayCursor<S> {
    source: S,
    span: (u64, u64),
    history: TopHistory,
}

impl<S: SweepSource> ReplayCursor<S> {
    /// Creates a cursor at a time of the recording, or at its end. `None` if the recording has no
    /// sweeps.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn new(mut source: S, unix_ns: Option<u64>) -> Result<Option<ReplayCursor<S>>, S::Error> {
        let Some(span) = source.span()? else { return Ok(None) };
        let mut cursor = ReplayCursor { source, span, history: TopHistory::default() };
        cursor.go(unix_ns.unwrap_or(span.1))?;
        Ok(Some(cursor))
    }

    /// Returns the times of the first and the last sweep, in nanoseconds since 1970.
    pub const fn span(&self) -> (u64, u64) {
        self.span
    }

    /// Returns the sweeps up to the time of the cursor.
    pub const fn history(&self) -> &TopHistory {
        &self.history
    }

    /// Returns the time of the sweep at the cursor, in nanoseconds since 1970.
    pub fn time(&self) -> u64 {
        self.history.current().map_or(self.span.0, |sweep| sweep.time.unix_ns)
    }

    /// Returns the latest memory by category of a process at the time of the cursor, if it was
    /// recorded.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn categories(&mut self, process: ProcessKey) -> Result<Option<CategorySample>, S::Error> {
        let now = self.time();
        let samples = self.source.categories(now.saturating_sub(CATEGORIES_NS), now)?;
        Ok(samples.into_iter().rfind(|it| it.process == process))
    }

    /// Moves the cursor to the last sweep at or before a time, or to the first sweep.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn go(&mut self, unix_ns: u64) -> Result<(), S::Error> {
        let unix_ns = unix_ns.clamp(self.span.0, self.span.1);
        let sweeps = self.source.at(unix_ns, MAX_SAMPLES)?;
        let Some(now) = sweeps.last().map(|sweep| sweep.time.unix_ns) else { return Ok(()) };
        let events = self.source.events(now.saturating_sub(EVENTS_NS), now)?;
        let mut history = TopHistory::default();
        let count = sweeps.len();
        for (index, sweep) in sweeps.into_iter().enumerate() {
            let events = if index + 1 == count { &events[..] } else { &[] };
            history.push(Arc::new(sweep), events);
        }
        self.history = history;
        Ok(())
    }

    /// Moves the cursor to the next sweep; does nothing at the last sweep.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn step_forward(&mut self) -> Result<(), S::Error> {
        let next = self.source.next(self.time())?;
        next.map_or(Ok(()), |sweep| self.go(sweep.time.unix_ns))
    }

    /// Moves the cursor to the previous sweep; does nothing at the first sweep.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn step_back(&mut self) -> Result<(), S::Error> {
        self.go(self.time().saturating_sub(1))
    }

    /// Moves the cursor to the next event; returns false after the last event.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn next_event(&mut self) -> Result<bool, S::Error> {
        let event = self.source.next_event(self.time())?;
        event.map_or(Ok(false), |event| self.go(event.time.unix_ns).map(|()| true))
    }

    /// Moves the cursor to the previous event; returns false before the first event.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read.
    pub fn previous_event(&mut self) -> Result<bool, S::Error> {
        let event = self.source.previous_event(self.time())?;
        event.map_or(Ok(false), |event| self.go(event.time.unix_ns).map(|()| true))
    }
}
