//! The recorder that programs load: part of this program, or a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::kept;

/// What this crate was built with; empty where there is none for the machine.
static RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpagewise_preload.so"));

/// What is made of its contents, in hexadecimal digits.
const CONTENTS: &str = env!("PAGEWISE_RECORDER_CONTENTS");

/// What the recorder's file is called.
pub(crate) const NAME: &str = "libpagewise_preload.so";

/// Where the recorder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Library {
    /// In this program.
    Own,
    /// A file.
    File(PathBuf),
}

/// The recorder: the file that `PAGEWISE_PRELOAD` names, or this program's own. None on machines for which there is none.
pub fn library() -> Option<Library> {
    if let Some(path) = std::env::var_os("PAGEWISE_PRELOAD") {
        return Some(Library::File(path.into()));
    }
    (!RECORDER.is_empty()).then_some(Library::Own)
}

impl Library {
    /// The path by which a program can load it, for as long as may be; written into `folder` where there is no place to keep it.
    pub(crate) fn place(&self, folder: &Path) -> io::Result<PathBuf> {
        match self {
            Library::File(path) => fs::canonicalize(path),
            Library::Own => {
                if let Some(path) = kept::keep(RECORDER, CONTENTS) {
                    return Ok(path);
                }
                let path = folder.join(NAME);
                fs::write(&path, RECORDER)?;
                Ok(path)
            }
        }
    }
}
