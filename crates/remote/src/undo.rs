//! Changes of a target that are noted outside of the target. If this process ends before it undoes
//! a change, another process undoes it.

use std::fmt;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::RemoteError;
use crate::scratch::MappingUndo;
use crate::snapshot::ChildUndo;

/// Keeps notes of changes in a target that another process has to undo if this process ends first.
pub trait Keeper {
    /// Writes a note. Called before the target is changed.
    fn note(&mut self, undo: &Undo);
    /// Removes a note. Called after the change is undone.
    fn strike(&mut self, undo: &Undo);
}

/// Keeps no notes: changes by a process that is killed stay in the target.
impl Keeper for () {
    fn note(&mut self, _: &Undo) {}
    fn strike(&mut self, _: &Undo) {}
}

/// A change that is to be undone. Its text form is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A mapping that is to be unmapped.
    Mapping(MappingUndo),
    /// An ended child for which its parent has to wait.
    Child(ChildUndo),
}

impl Undo {
    /// Undoes the change. False if the change was never made, or if the process has ended or
    /// executed another program.
    ///
    /// Failed attempts are repeated until `patience` has passed: on a busy machine threads may take
    /// longer to stop than the maximum pause of a process.
    ///
    /// # Errors
    /// As [`RemoteProcess::stop_all`](crate::RemoteProcess::stop_all); [`RemoteError::NotStopped`]
    /// if the change cannot be undone within `patience`.
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

/// Repeats `attempt` until it returns a result or `patience` has passed; `None` means that the
/// change cannot be undone yet.
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
