//! Metrics file for the textfile collector of node_exporter.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::exporter::ExportedSweep;
use crate::exposition::{ExpositionFormat, write_families};

/// Name of the file. The collector reads files with the suffix `.prom`.
const FILE: &str = "pagewise.prom";

/// Writes `pagewise.prom` in a folder. The file is replaced atomically.
///
/// # Errors
/// [`io::Error`] if the folder cannot be written to.
pub fn write_textfile(folder: &Path, sweep: &ExportedSweep) -> io::Result<()> {
    let mut text = String::new();
    // The collector rejects timestamps and end marks. The collector itself exports the age of the
    // file.
    write_families(&mut text, &sweep.families, ExpositionFormat::Prometheus);
    // The collector ignores this file, because its name does not end with `.prom`.
    let unfinished = folder.join(format!(".{FILE}.{}", std::process::id()));
    let written = fs::write(&unfinished, text)
        .and_then(|()| fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&unfinished, folder.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}
