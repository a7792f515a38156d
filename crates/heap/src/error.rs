//! What can go wrong with a recording.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket where recorders are awaited could not be made.
    #[error("cannot wait for the recorder in the program")]
    Socket(#[source] io::Error),
    /// What the recorder shares could not be read.
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
