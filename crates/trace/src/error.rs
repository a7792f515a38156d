//! Why nothing could be traced.

use std::io;

/// Why nothing could be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An event may not be watched, or not here.
    #[error("cannot watch {what}: {error}")]
    NotWatched {
        /// The event.
        what: String,
        /// What the kernel answered.
        error: io::Error,
    },
    /// Tracepoints may not be watched at all.
    #[error("the tracepoint {tracepoint} may not be watched: {error}")]
    NotPermitted {
        /// The one that is needed.
        tracepoint: String,
        /// What the kernel answered.
        error: io::Error,
    },
    /// The kernel has no such event.
    #[error("this kernel has no {what}")]
    NoSuchEvent {
        /// The event.
        what: String,
    },
    /// The process is gone.
    #[error("there is no process {pid}")]
    Gone {
        /// Its number.
        pid: u32,
    },
    /// What was asked for cannot be, whatever the system allows.
    #[error("{why}")]
    Unfit {
        /// Why.
        why: String,
        /// What could be asked for.
        hint: String,
    },
    /// Anything else that the system refuses.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: String,
        /// What the kernel answered.
        error: io::Error,
    },
}

impl Error {
    /// Whether rights are missing, and nothing else.
    pub fn is_denied(&self) -> bool {
        match self {
            Error::NotPermitted { .. } => true,
            Error::NotWatched { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// What the user may do about it.
    pub fn hint(&self) -> Option<String> {
        if let Error::Unfit { hint, .. } = self {
            return Some(hint.clone()).filter(|hint| !hint.is_empty());
        }
        if let Error::NotPermitted { .. } = self {
            return Some(
                "root may (sudo), and so may who has CAP_PERFMON and may read tracefs: the kernel tells of other CPUs to nobody else"
                    .to_owned(),
            );
        }
        let (Error::NotWatched { error, .. } | Error::System { error, .. }) = self else {
            return None;
        };
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Some(
                "root may, and so may who has CAP_PERFMON; others as far as kernel.perf_event_paranoid lets them"
                    .to_owned(),
            ),
            Some(libc::EMFILE) => {
                Some("each thread takes a file for each CPU: raise `ulimit -n`".to_owned())
            }
            Some(libc::ENOSPC) => Some("a CPU has four breakpoints".to_owned()),
            _ => None,
        }
    }
}
