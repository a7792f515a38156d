//! Errors of recordings.

use std::path::{Path, PathBuf};

/// Reason why a recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite reported an error.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// Path of the database file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The file is not a recording, or has a format version that this program does not support.
    #[error("{} is not a recording of this version of pagewise", path.display())]
    NotARecording {
        /// Path of the file.
        path: PathBuf,
    },
    /// The folder contains no recording.
    #[error("no recording in {}", path.display())]
    Empty {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Another recorder is writing to the folder.
    #[error("another recorder writes to {}", path.display())]
    Locked {
        /// Path of the folder.
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

    /// True if the content of the file is damaged, or is not that of a recording.
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

    /// True if the disk is full or refuses writes. Also true for every [`StoreError::Io`].
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

    /// The next step for the user; `None` if no step is known.
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
