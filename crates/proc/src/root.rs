//! The `/proc` tree that is read: the live one, or a copy.

use std::fs;
use std::path::{Path, PathBuf};

use pagewise_model::Pid;

use crate::Error;

/// A `/proc` tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRoot {
    path: PathBuf,
}

impl ProcRoot {
    /// The running kernel's.
    pub fn live() -> ProcRoot {
        ProcRoot { path: "/proc".into() }
    }

    /// A copy of one, or one mounted elsewhere.
    pub fn at(path: impl Into<PathBuf>) -> ProcRoot {
        ProcRoot { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is `/proc`.
    pub fn is_live(&self) -> bool {
        self.path == Path::new("/proc")
    }

    /// The processes in it, by id.
    ///
    /// # Errors
    /// [`Error::Io`] where the tree cannot be listed.
    pub fn pids(&self) -> Result<Vec<Pid>, Error> {
        let failed = |source| Error::Io { path: self.path.clone(), source };
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid));
        }
        pids.sort_unstable();
        Ok(pids)
    }
}
