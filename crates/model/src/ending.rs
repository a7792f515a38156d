//! Ending of a program.

use serde::{Deserialize, Serialize};

/// Ending of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramEnding {
    /// It exited with this status.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

impl ProgramEnding {
    /// The exit status that a shell reports.
    pub const fn status(self) -> i32 {
        match self {
            ProgramEnding::Exited(status) => status,
            ProgramEnding::Killed(signal) => 128 + signal,
        }
    }
}
