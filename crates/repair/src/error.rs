//! Why a process was not changed.

use std::io;

use pagewise_model::Absent;

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process could not be read.
    #[error(transparent)]
    Proc(#[from] pagewise_proc::Error),
    /// It cannot be done here, or not safely.
    #[error("refused: {0}")]
    Refused(Absent),
    /// The kernel refused.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Proc(error) => error.hint(),
            Error::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("it takes CAP_SYS_NICE, and the right to trace the process: try sudo".into())
            }
            Error::Refused(_) | Error::System { .. } => None,
        }
    }

    pub(crate) fn system(what: &'static str, source: io::Error) -> Error {
        Error::System { what, source }
    }
}
