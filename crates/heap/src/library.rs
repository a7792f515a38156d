//! The recorder that programs load: part of this program, or a file.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// What this crate was built with; empty where there is none for the machine.
static RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpagewise_preload.so"));

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
    /// The path by which a program can load it; written into `folder` where it is in none.
    pub(crate) fn place(&self, folder: &Path) -> io::Result<PathBuf> {
        match self {
            Library::File(path) => fs::canonicalize(path),
            Library::Own => {
                let path = folder.join("libpagewise_preload.so");
                fs::write(&path, RECORDER)?;
                Ok(path)
            }
        }
    }
}

/// A folder that nobody else can look into, where files can be executed, and whose path is plain: the loader separates paths
/// by colons and blanks.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases =
        [Some(std::env::temp_dir()), runtime, Some("/dev/shm".into()), Some("/var/tmp".into())];
    let mut first = None;
    for base in bases.into_iter().flatten() {
        let plain = !base.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' '));
        let refuses = |mount: rustix::fs::StatVfs| mount.f_flag.contains(StatVfsMountFlags::NOEXEC);
        if !plain || !base.is_absolute() || statvfs(&base).is_ok_and(refuses) {
            continue;
        }
        match make(&base) {
            Ok(path) => return Ok(path),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        io::Error::other("no folder for temporary files allows to execute them")
    }))
}

fn make(base: &Path) -> io::Result<PathBuf> {
    let pid = std::process::id();
    let mut number = 0_u32;
    loop {
        let path = base.join(format!("pagewise-heap-{pid}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
