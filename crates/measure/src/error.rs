//! Errors of measurements.

use std::ffi::OsString;
use std::io;

/// Error that prevents a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A word of the event list names no event.
    #[error("no event is called {word}")]
    UnknownEvent {
        /// The word.
        word: String,
    },
    /// A command cannot be run.
    #[error("cannot run {}: {error}", program.display())]
    NotRun {
        /// The program.
        program: OsString,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A command cannot be kept on a CPU.
    #[error("cannot run on CPU {cpu}: {error}")]
    NotPinned {
        /// The CPU.
        cpu: u32,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The process that starts the command went away.
    #[error("the process that starts the command went away")]
    LauncherGone,
    /// A counter cannot be read any more.
    #[error("cannot read a counter: {0}")]
    Counter(io::Error),
    /// A region was stopped without a start.
    #[error("no region was begun")]
    NotStarted,
}

impl MeasureError {
    /// Advice for the reader.
    pub fn hint(&self) -> Option<String> {
        match self {
            MeasureError::UnknownEvent { .. } => Some("`pagewise events` lists them".to_owned()),
            MeasureError::NotPinned { .. } => {
                Some("`cat /proc/self/status` lists those allowed as Cpus_allowed_list".to_owned())
            }
            _ => None,
        }
    }
}
