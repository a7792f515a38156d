//! What can go wrong while reading `/proc`, and what the reader can do about it.

use std::io;
use std::path::{Path, PathBuf};

use pagewise_model::Pid;

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process is not there (any more), or has no memory (any more).
    #[error("there is no process {pid}, or it has just ended")]
    NoSuchProcess {
        /// The process.
        pid: Pid,
    },
    /// We may not look at the process.
    #[error("not permitted to read {}", pagewise_model::name::escape(path.as_os_str().as_encoded_bytes()))]
    NotPermitted {
        /// The file that was refused.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("{}", pagewise_model::name::escape(path.as_os_str().as_encoded_bytes()))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    /// The next step to take, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NotPermitted { .. } => {
                Some("another user's process needs CAP_SYS_PTRACE: try sudo".to_owned())
            }
            Error::NoSuchProcess { .. } | Error::Io { .. } => None,
        }
    }

    /// What a failed read of a file of a process means.
    pub(crate) fn of_process(source: io::Error, pid: Pid, path: &Path) -> Error {
        let is_gone = rustix::io::Errno::from_io_error(&source) == Some(rustix::io::Errno::SRCH);
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Error::NoSuchProcess { pid },
            _ if is_gone => Error::NoSuchProcess { pid },
            io::ErrorKind::PermissionDenied => Error::NotPermitted { path },
            _ => Error::Io { path, source },
        }
    }
}
