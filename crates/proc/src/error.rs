//! Errors of reading a source, with the next step if there is one.

use std::io;
use std::path::{Path, PathBuf};

use pagewise_model::{Name, Pid};
use rustix::io::Errno;

use crate::ProcRoot;
use crate::root::shown;

/// The capability to read and to trace the processes of other users.
pub const CAP_SYS_PTRACE: &str = "CAP_SYS_PTRACE";

/// Error of reading a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcError {
    /// A line of a file does not have the expected format.
    #[error("{}:{line}: expected {expected}, found \"{}\"", shown(path), found.escaped())]
    Parse {
        /// Path of the file, or the name of the format if bytes in memory were parsed.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Expected text.
        expected: &'static str,
        /// Text found, cut to a readable length.
        found: Name,
    },
    /// A file could not be read.
    #[error("cannot read {}", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", shown(path))]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The user has no permission to read a file of a copied proc tree.
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
        /// Name of the user that owns the process, or the user's ID.
        owner: Name,
        /// The capability that is missing.
        needs: &'static str,
    },
    /// The proc file system contains no processes, not even this one.
    #[error("{} is not a proc file system", shown(path))]
    NotMounted {
        /// Expected path.
        path: PathBuf,
    },
    /// The process does not exist, or it ended while it was read.
    #[error("process {pid} does not exist")]
    NoSuchProcess {
        /// Requested process ID.
        pid: Pid,
    },
    /// No process has that name.
    #[error("no process is called \"{}\"", name.escaped())]
    NotFound {
        /// Requested name.
        name: Name,
    },
    /// Several processes have that name.
    #[error("{} processes are called \"{}\", the largest first:{}", candidates.len(), name.escaped(), list(candidates))]
    AmbiguousName {
        /// Requested name.
        name: Name,
        /// IDs and command lines of these processes, in descending order of resident memory.
        candidates: Vec<(Pid, Name)>,
    },
    /// A file is not a core file that can be read.
    #[error("{}: offset {offset:#x}: {problem}", shown(path))]
    CoreFile {
        /// The file.
        path: PathBuf,
        /// Offset of the problem in the file. For a compressed file: the offset in the decompressed
        /// core.
        offset: u64,
        /// Problem at this offset.
        problem: String,
    },
    /// A program differs from the program of a core file.
    #[error("{} is not the program of the core file: {problem}", shown(path))]
    OtherProgram {
        /// The program.
        path: PathBuf,
        /// Difference between the two programs.
        problem: String,
    },
    /// A file is not a snapshot that this version can open.
    #[error("{} is not a snapshot: {why}", shown(path))]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// Problem with the file.
        why: String,
    },
}

impl ProcError {
    /// Returns the next step for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            ProcError::NotPermitted { .. } => Some("another user owns it: try sudo".into()),
            ProcError::NoSuchProcess { .. } => {
                Some("it may have ended, or /proc hides other users' processes (hidepid)".into())
            }
            ProcError::NotMounted { .. } => Some("mount -t proc proc /proc".into()),
            ProcError::NotFound { .. } => Some("`pagewise ps` lists every process".into()),
            ProcError::AmbiguousName { .. } => Some("choose one by its PID".into()),
            ProcError::NotASnapshot { .. } => {
                Some("`pagewise explain TARGET --save FILE` makes one".into())
            }
            ProcError::OtherProgram { .. } => {
                Some("`--exe` takes the file of the same build, stripped or not".into())
            }
            ProcError::NoAccess { .. }
            | ProcError::CoreFile { .. }
            | ProcError::Parse { .. }
            | ProcError::Io { .. }
            | ProcError::Write { .. } => None,
        }
    }

    /// Converts the error of reading a process's file: the process may have ended, or reading is
    /// not permitted.
    pub(crate) fn of_process(source: io::Error, pid: Pid, path: &Path) -> ProcError {
        match Errno::from_io_error(&source) {
            Some(Errno::SRCH | Errno::NOENT) => ProcError::NoSuchProcess { pid },
            Some(Errno::PERM | Errno::ACCESS) => {
                ProcError::no_access(&ProcRoot::live(), pid, CAP_SYS_PTRACE)
            }
            _ => ProcError::io(path, source),
        }
    }

    /// Returns the error of a denied access to a process, with the capability that permits the
    /// access. The kernel also denies access to a zombie; the error is then that the process has
    /// ended.
    pub fn no_access(root: &ProcRoot, pid: Pid, needs: &'static str) -> ProcError {
        if root.is_zombie(pid) {
            return ProcError::NoSuchProcess { pid };
        }
        ProcError::NoAccess { pid, owner: root.owner(pid), needs }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> ProcError {
        ProcError::Io { path: path.into(), source }
    }

    /// Returns a parse error, with the found text cut to a readable length.
    pub(crate) fn parse(
        path: &str,
        line: usize,
        expected: &'static str,
        found: &[u8],
    ) -> ProcError {
        let found = Name::new(&found[..found.len().min(80)]);
        ProcError::Parse { path: path.into(), line, expected, found }
    }
}

/// Returns one line for each candidate, with its PID and command line, for at most `MAX_LISTED`
/// candidates. The last line has the number of omitted candidates.
fn list(candidates: &[(Pid, Name)]) -> String {
    const MAX_LISTED: usize = 12;
    let shown = candidates.iter().take(MAX_LISTED);
    let mut lines: String =
        shown.map(|(pid, command)| format!("\n  {:>7}  {}", pid.0, command.escaped())).collect();
    if candidates.len() > MAX_LISTED {
        lines.push_str(&format!("\n  and {} more", candidates.len() - MAX_LISTED));
    }
    lines
}
