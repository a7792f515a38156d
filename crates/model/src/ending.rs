//! Exit status or terminating signal of a program.

use serde::{Deserialize, Serialize};

/// Exit status or terminating signal of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramEnding {
    /// The program exited with this status.
    Exited(i32),
    /// This signal killed the program.
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

/// Name of a signal that can end a program; `None` for other signals.
pub const fn signal_name(number: u32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}
