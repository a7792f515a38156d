//! Errors of tracing.

use std::io;

use pagewise_model::Absent;

/// Error that prevents tracing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The kernel refuses an event.
    #[error("cannot watch {what}: {error}")]
    NotWatched {
        /// The event.
        what: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The kernel refuses all tracepoints.
    #[error("the tracepoint {tracepoint} may not be watched: {error}")]
    NotPermitted {
        /// The required tracepoint.
        tracepoint: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The kernel has no such event.
    #[error("this kernel has no {what}")]
    NoSuchEvent {
        /// The event.
        what: String,
    },
    /// The process is gone.
    #[error("process {pid} does not exist")]
    Gone {
        /// Its number.
        pid: u32,
    },
    /// The request is impossible, regardless of the system's settings.
    #[error("{why}")]
    Unfit {
        /// Reason.
        why: String,
        /// Possible requests.
        hint: String,
    },
    /// Anything else that the system refuses.
    #[error("{doing}: {error}")]
    System {
        /// The attempted operation.
        doing: String,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl TraceError {
    /// Reason why a value is absent; `needs` are the rights that the recording needs.
    pub fn absent(&self, needs: &'static str) -> Absent {
        match self {
            TraceError::NotPermitted { .. } | TraceError::NotWatched { .. } => {
                Absent::NotPermitted(needs.into())
            }
            TraceError::Gone { .. } => Absent::Vanished,
            error => Absent::NotSupported(error.to_string().into()),
        }
    }

    /// True if rights are missing, and nothing else.
    pub fn is_denied(&self) -> bool {
        match self {
            TraceError::NotPermitted { .. } => true,
            TraceError::NotWatched { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// Advice for the user.
    pub fn hint(&self) -> Option<String> {
        if let TraceError::Unfit { hint, .. } = self {
            return Some(hint.clone()).filter(|hint| !hint.is_empty());
        }
        if let TraceError::NotPermitted { .. } = self {
            return Some(
                "it needs root (sudo), or CAP_PERFMON and the right to read tracefs: the kernel shows other CPUs' events only to these"
                    .to_owned(),
            );
        }
        let (TraceError::NotWatched { error, .. } | TraceError::System { error, .. }) = self else {
            return None;
        };
        match error.raw_os_error() {
            // Root has every capability, so the kernel's configuration or a container refuses.
            Some(libc::EPERM) if pagewise_sys::system::euid() == 0 => Some(
                "root may not do this here: a kernel with lockdown=confidentiality, or the seccomp filter of a container, forbids it"
                    .to_owned(),
            ),
            Some(libc::EACCES | libc::EPERM) => Some(
                "it needs root or CAP_PERFMON; kernel.perf_event_paranoid limits other users"
                    .to_owned(),
            ),
            Some(libc::EMFILE) => Some(
                "each thread needs a file descriptor for each CPU: raise `ulimit -n`".to_owned(),
            ),
            Some(libc::ENOSPC) => Some("a CPU has four breakpoints".to_owned()),
            _ => None,
        }
    }
}
