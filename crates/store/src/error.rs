//! Errors of recordings.

use std::path::{Path, PathBuf};

/// A recording that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite reports an error.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The file has another form than this version writes.
    #[error("{} is not a recording of this version of pagewise", path.display())]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// The folder has no recording.
    #[error("no recording in {}", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// Another recorder writes to the folder.
    #[error("another recorder writes to {}", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
}

impl StoreError {
    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> StoreError {
        StoreError::Sqlite { path: path.to_owned(), source }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> StoreError {
        StoreError::Io { path: path.to_owned(), source }
    }

    /// True if the content of the file is damaged.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            StoreError::Sqlite { source, .. } => {
                matches!(source.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            }
            StoreError::NotARecording { .. } => true,
            _ => false,
        }
    }

    /// True if the disk is full, or refuses writes.
    pub fn is_not_writable(&self) -> bool {
        use rusqlite::ErrorCode::{DiskFull, ReadOnly, SystemIoFailure};
        match self {
            StoreError::Sqlite { source, .. } => {
                matches!(source.sqlite_error_code(), Some(DiskFull | ReadOnly | SystemIoFailure))
            }
            StoreError::Io { .. } => true,
            _ => false,
        }
    }

    /// The next step for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            StoreError::Empty { .. } => {
                Some("start a recording with pagewise record, or name its folder with --dir".into())
            }
            StoreError::Locked { .. } => Some("pagewise record status shows it".into()),
            _ => None,
        }
    }
}
