//! What can go wrong while a source is read, with the next step where there is one.

use std::io;
use std::path::{Path, PathBuf};

use pagewise_model::{Name, Pid};
use rustix::io::Errno;

use crate::ProcRoot;
use crate::root::shown;

/// The capability to read and to trace the processes of other users.
pub const CAP_SYS_PTRACE: &str = "CAP_SYS_PTRACE";

/// Why a source gave no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file does not read as it should.
    #[error("{}:{line}: expected {expected}, found \"{}\"", shown(path), found.escaped())]
    Parse {
        /// The file, or the name of its format where bytes were parsed.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What should have been there.
        expected: &'static str,
        /// What was there, cut to a readable length.
        found: Name,
    },
    /// A file could not be read.
    #[error("cannot read {}", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", shown(path))]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// We may not read a file of a copied tree.
    #[error("{} may not be read", shown(path))]
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// The kernel does not let us read a process, or trace it.
    #[error("cannot read PID {pid} (owner {}): run as root or grant {needs}", owner.escaped())]
    NoAccess {
        /// The process.
        pid: Pid,
        /// The name of its user, or the user's id.
        owner: Name,
        /// The capability that is missing.
        needs: &'static str,
    },
    /// There are no processes in it, not even we.
    #[error("{} is no proc file system", shown(path))]
    NotMounted {
        /// Where it should be.
        path: PathBuf,
    },
    /// The process is not there, or ended while it was read.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The id that was asked for.
        pid: Pid,
    },
    /// No process has that name.
    #[error("no process is called \"{}\"", name.escaped())]
    NotFound {
        /// What was asked for.
        name: Name,
    },
    /// Several processes have that name.
    #[error("{} processes are called \"{}\": {}", candidates.len(), name.escaped(), list(candidates))]
    AmbiguousName {
        /// What was asked for.
        name: Name,
        /// Their ids and names.
        candidates: Vec<(Pid, Name)>,
    },
    /// A file is not a snapshot that this version can open.
    #[error("{} is not a snapshot: {why}", shown(path))]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::NotPermitted { .. } => Some("another user owns it: try sudo".into()),
            Error::NoSuchProcess { .. } => {
                Some("it may have ended, or /proc hides other users' processes (hidepid)".into())
            }
            Error::NotMounted { .. } => Some("mount -t proc proc /proc".into()),
            Error::NotFound { .. } => Some("`pagewise ps` lists every process".into()),
            Error::AmbiguousName { .. } => Some("name one by its pid".into()),
            Error::NotASnapshot { .. } => {
                Some("`pagewise explain TARGET --save FILE` makes one".into())
            }
            Error::NoAccess { .. }
            | Error::Parse { .. }
            | Error::Io { .. }
            | Error::Write { .. } => None,
        }
    }

    /// What a failed read of a file of a process means. The process may be gone, or we may not look.
    pub(crate) fn of_process(source: io::Error, pid: Pid, path: &Path) -> Error {
        match Errno::from_io_error(&source) {
            Some(Errno::SRCH | Errno::NOENT) => Error::NoSuchProcess { pid },
            Some(Errno::PERM | Errno::ACCESS) => {
                Error::no_access(&ProcRoot::live(), pid, CAP_SYS_PTRACE)
            }
            _ => Error::io(path, source),
        }
    }

    /// That the kernel denies access to a process, and the capability that permits it.
    pub fn no_access(root: &ProcRoot, pid: Pid, needs: &'static str) -> Error {
        Error::NoAccess { pid, owner: root.owner(pid), needs }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }

    /// A parse error with what was found cut to a readable length.
    pub(crate) fn parse(path: &str, line: usize, expected: &'static str, found: &[u8]) -> Error {
        let found = Name::new(&found[..found.len().min(80)]);
        Error::Parse { path: path.into(), line, expected, found }
    }
}

/// `17 bash, 23 bash`, cut where it gets long.
fn list(candidates: &[(Pid, Name)]) -> String {
    const SHOWN: usize = 12;
    let shown = candidates.iter().take(SHOWN);
    let mut words: Vec<String> =
        shown.map(|(pid, name)| format!("{pid} {}", name.escaped())).collect();
    if candidates.len() > SHOWN {
        words.push(format!("and {} more", candidates.len() - SHOWN));
    }
    words.join(", ")
}
