//! Changes of a target that are noted outside of it, and undone by another process if this one ends
//! before.

use std::fmt;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::RemoteError;
use crate::scratch::MappingUndo;
use crate::snapshot::ChildUndo;

/// Notes what has to be undone in a target if this process ends before it does so itself.
pub trait Keeper {
    /// Called before the target is changed.
    fn note(&mut self, undo: &Undo);
    /// Called once the change is undone.
    fn strike(&mut self, undo: &Undo);
}

/// No keeper: what a killed process leaves in a target stays there.
impl Keeper for () {
    fn note(&mut self, _: &Undo) {}
    fn strike(&mut self, _: &Undo) {}
}

/// A change that is to be undone, as text in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A mapping is to be unmapped.
    Mapping(MappingUndo),
    /// A child that has ended is to be waited for.
    Child(ChildUndo),
}

impl Undo {
    /// Undoes the change. False where there is nothing to do: it was never made, or the process has
    /// ended or become another program.
    ///
    /// It tries again until `patience` is over: on a busy machine threads may take longer to stop
    /// than a process may be paused.
    ///
    /// # Errors
    /// As [`RemoteProcess::stop_all`](crate::RemoteProcess::stop_all); [`RemoteError::NotStopped`]
    /// where the change cannot be undone within `patience`.
    pub fn carry_out(&self, patience: Duration) -> Result<bool, RemoteError> {
        match self {
            Undo::Mapping(mapping) => mapping.carry_out(patience),
            Undo::Child(child) => child.carry_out(patience),
        }
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::Mapping(mapping) => mapping.fmt(f),
            Undo::Child(child) => child.fmt(f),
        }
    }
}

impl FromStr for Undo {
    type Err = ();

    fn from_str(text: &str) -> Result<Undo, ()> {
        text.parse().map(Undo::Child).or_else(|()| text.parse().map(Undo::Mapping))
    }
}

/// Repeats an attempt until it returns a result, or `patience` is over; `None` means "not yet".
pub(crate) fn attempt_until(
    patience: Duration,
    attempt: &dyn Fn() -> Result<Option<bool>, RemoteError>,
) -> Result<bool, RemoteError> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let error = match attempt() {
            Ok(Some(was_changed)) => return Ok(was_changed),
            Ok(None) => RemoteError::NotStopped(patience),
            Err(RemoteError::Gone) => return Ok(false),
            Err(error @ RemoteError::Unsupported(_)) => return Err(error),
            Err(error) => error,
        };
        if begin.elapsed() > patience {
            return Err(error);
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
