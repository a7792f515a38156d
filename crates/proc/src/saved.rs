//! Snapshots in files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use pagewise_model::Snapshot;
use pagewise_model::snapshot::SNAPSHOT_VERSION;

use crate::Error;

/// Writes a snapshot: into a file beside the place first, so that no half of one is ever seen there.
///
/// # Errors
/// [`Error::Io`]
pub fn save(snapshot: &Snapshot, path: &Path) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    write(snapshot, &beside).and_then(|()| fs::rename(&beside, path)).map_err(|source| {
        // What could not be finished is of no use to anyone.
        let _ = fs::remove_file(&beside);
        Error::io(path, source)
    })
}

fn write(snapshot: &Snapshot, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut out, snapshot)?;
    out.write_all(b"\n")?;
    out.into_inner()?.sync_all()
}

/// Opens a snapshot.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read, [`Error::NotASnapshot`] where it is foreign, cut off, or of a
/// newer version than this program.
pub fn open(path: &Path) -> Result<Snapshot, Error> {
    let bytes = fs::read(path).map_err(|source| Error::io(path, source))?;
    let not_one = |why: String| Error::NotASnapshot { path: path.into(), why };
    let version = version(&bytes).map_err(not_one)?;
    if version > SNAPSHOT_VERSION {
        return Err(not_one(format!(
            "it has version {version}, this program knows up to {SNAPSHOT_VERSION}"
        )));
    }
    serde_json::from_slice(&bytes).map_err(|error| not_one(error.to_string()))
}

/// The version that a file says it has, before anything else is believed of it.
fn version(bytes: &[u8]) -> Result<u32, String> {
    #[derive(serde::Deserialize)]
    struct Version {
        pagewise_snapshot: u32,
    }
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    match serde_json::from_slice::<Version>(bytes) {
        Ok(version) => Ok(version.pagewise_snapshot),
        Err(error) if error.is_eof() => Err("it is cut off".into()),
        Err(error) => Err(error.to_string()),
    }
}
