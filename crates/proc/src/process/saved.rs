//! Snapshots in files.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use pagewise_model::Snapshot;
use pagewise_model::name::escape;
use pagewise_model::snapshot::SNAPSHOT_VERSION;
use pagewise_sys::output_file::{self, FileReaders};

use crate::ProcError;

/// Writes a snapshot that only its owner can read. A regular file is replaced in one step once the
/// new file is on disk. A pipe or a device is written directly.
///
/// # Errors
/// [`ProcError::Write`]
pub fn save(snapshot: &Snapshot, path: &Path) -> Result<(), ProcError> {
    output_file::write(path, FileReaders::Owner, |out| write(snapshot, out))
        .map_err(|source| ProcError::Write { path: path.into(), source })
}

fn write(snapshot: &Snapshot, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, snapshot)?;
    out.write_all(b"\n")
}

/// Opens a snapshot.
///
/// # Errors
/// [`ProcError::Io`] if the file cannot be read, [`ProcError::NotASnapshot`] if the file is not a
/// snapshot, is cut off, or is of a newer version than this program.
pub fn open(path: &Path) -> Result<Snapshot, ProcError> {
    let bytes = fs::read(path).map_err(|source| ProcError::io(path, source))?;
    parse(&bytes).map_err(|why| ProcError::NotASnapshot { path: path.into(), why })
}

/// Parses a saved snapshot; returns the problem if it is invalid.
///
/// # Errors
/// The problem as one clause, escaped for printing.
pub fn parse(bytes: &[u8]) -> Result<Snapshot, String> {
    let parsed = serde_json::from_slice::<Snapshot>(bytes);
    // A snapshot of a newer version may parse without an error and still have another meaning.
    let version = match &parsed {
        Ok(snapshot) => snapshot.pagewise_snapshot,
        Err(error) => version(bytes).map_err(|why| why.unwrap_or_else(|| said(error)))?,
    };
    if version > SNAPSHOT_VERSION {
        return Err(format!(
            "it has version {version}, this program reads versions up to {SNAPSHOT_VERSION}"
        ));
    }
    parsed.map_err(|error| said(&error))
}

/// Message of the parser; it may quote from the file.
fn said(error: &serde_json::Error) -> String {
    escape(error.to_string().as_bytes()).into_owned()
}

/// Returns the version of a snapshot that could not be parsed, or the reason why it has no version,
/// if the reason is evident.
fn version(bytes: &[u8]) -> Result<u32, Option<String>> {
    #[derive(serde::Deserialize)]
    struct Version {
        pagewise_snapshot: u32,
    }
    if bytes.is_empty() {
        return Err(Some("it is empty".into()));
    }
    match serde_json::from_slice::<Version>(bytes) {
        Ok(version) => Ok(version.pagewise_snapshot),
        Err(error) if error.is_eof() => Err(Some("it is cut off".into())),
        Err(error) if error.is_data() => Err(Some("it is of another kind".into())),
        Err(_) => Err(None),
    }
}
