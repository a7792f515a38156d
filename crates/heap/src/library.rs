//! The recorder that programs load: part of this program, or a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagewise_heaplog::tables;

use crate::recorder_cache;

/// The recorder that this crate was built with; empty on other machines.
static RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpagewise_preload.so"));

/// Hash of its contents in hexadecimal digits.
const CONTENTS: &str = env!("PAGEWISE_RECORDER_CONTENTS");

/// File name of the recorder.
pub(crate) const NAME: &str = tables::RECORDER_FILE;

/// Location of the recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecorderLibrary {
    /// In this program.
    Own,
    /// A file.
    File(PathBuf),
}

/// The recorder: the file that `PAGEWISE_PRELOAD` names, or the embedded one. `None` on machines
/// without a recorder.
pub fn library() -> Option<RecorderLibrary> {
    if let Some(path) = std::env::var_os("PAGEWISE_PRELOAD") {
        return Some(RecorderLibrary::File(path.into()));
    }
    (!RECORDER.is_empty()).then_some(RecorderLibrary::Own)
}

impl RecorderLibrary {
    /// Path from which a program can load it, permanent if possible; a file in `folder` if no
    /// permanent location is writable.
    pub(crate) fn place(&self, folder: &Path) -> io::Result<PathBuf> {
        match self {
            RecorderLibrary::File(path) => fs::canonicalize(path),
            RecorderLibrary::Own => {
                if let Some(path) = recorder_cache::keep(RECORDER, CONTENTS) {
                    return Ok(path);
                }
                let path = folder.join(NAME);
                fs::write(&path, RECORDER)?;
                Ok(path)
            }
        }
    }
}
