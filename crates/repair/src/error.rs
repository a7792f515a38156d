//! Why a process was not changed.

use std::io;

use pagewise_model::Absent;

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The process could not be read.
    #[error(transparent)]
    Proc(#[from] pagewise_proc::ProcError),
    /// The change is not possible in this process, or not safe.
    #[error("refused: {0}")]
    Refused(Absent),
    /// The kernel refused.
    #[error("{what}")]
    System {
        /// Attempted operation.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl RepairError {
    /// Advice for the reader.
    pub fn hint(&self) -> Option<String> {
        match self {
            RepairError::Proc(error) => error.hint(),
            RepairError::System { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Some(
                    "pagewise needs CAP_SYS_NICE and the right to trace the process: try sudo"
                        .into(),
                )
            }
            RepairError::Refused(_) | RepairError::System { .. } => None,
        }
    }

    pub(crate) fn system(what: &'static str, source: io::Error) -> RepairError {
        RepairError::System { what, source }
    }
}
