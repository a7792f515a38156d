//! Errors of a recording.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Reason why a recording is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The socket to which recorders connect could not be made.
    #[error("cannot wait for the recorder in the program")]
    Socket(#[source] io::Error),
    /// The recorder's shared memory could not be read.
    #[error("cannot read what the recorder in process {pid} counted")]
    Tables {
        /// The process.
        pid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}
