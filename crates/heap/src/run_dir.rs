//! Temporary folders of a run, and the removal of those that killed runs have left.
//!
//! The process that creates a folder locks a file in it; the kernel releases the lock when the last
//! process that has the file open ends. A folder whose lock is free is unused.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, StatVfsMountFlags, flock, statvfs};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::library::NAME;

/// Prefix of the names of folders.
pub(crate) const PREFIX: &str = "pagewise-heap-";
/// The file that is locked.
pub(crate) const LOCK: &str = "lock";
/// Maximum bytes of the path of the folder above, so that the socket's path has at most 107 bytes.
const MAX_PATH_BYTES: usize = 107 - PREFIX.len() - "/".len() - LETTERS - "/".len() - SECRET;
/// Number of random letters in a folder's name, of 5 bits each.
pub(crate) const LETTERS: usize = 8;
/// Number of random letters of a name: 130 bits.
pub(crate) const SECRET: usize = 26;

/// A folder that only this user can access. Dropping the value removes it.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes a folder in which files can be executed, and removes those that killed runs have left
    /// beside it.
    pub(crate) fn make() -> io::Result<RunDir> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        // `TMPDIR` may name a folder that another root lacks.
        let usual = ["/tmp", "/dev/shm", "/var/tmp"].map(PathBuf::from).map(Some);
        let bases = [Some(std::env::temp_dir()), runtime].into_iter().chain(usual);
        let mut first = None;
        for base in bases.flatten() {
            // The kernel limits a socket's path, and recorders have a small buffer for it.
            let is_short = base.as_os_str().len() <= MAX_PATH_BYTES;
            if !base.is_absolute() || !is_short || !takes_programs(&base) {
                continue;
            }
            match make_in(&base) {
                Ok(folder) => {
                    remove_left(&base);
                    return Ok(folder);
                }
                Err(error) => {
                    let what = format!("{}: {error}", base.display());
                    first = first.or(Some(io::Error::new(error.kind(), what)));
                }
            }
        }
        Err(first.unwrap_or_else(|| {
            io::Error::other(
                "no folder for temporary files has a short path and allows to execute them",
            )
        }))
    }

    /// Path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// True if programs can load a file in a folder by `LD_PRELOAD`: files can be executed, and the
/// path has no colon, blank or dollar sign, which the loader would interpret.
pub(crate) fn takes_programs(folder: &Path) -> bool {
    let taken_apart = |byte: &u8| matches!(byte, b':' | b' ' | b'$');
    let is_plain = !folder.as_os_str().as_bytes().iter().any(taken_apart);
    let refuses = |mount: rustix::fs::StatVfs| mount.f_flag.contains(StatVfsMountFlags::NOEXEC);
    is_plain && !statvfs(folder).is_ok_and(refuses)
}

/// A random name, with 5 bits a letter.
///
/// # Errors
/// Returns an error if the kernel provides no random numbers.
pub(crate) fn random_name(letters: usize) -> io::Result<String> {
    let mut bytes = vec![0; letters];
    // By the system call: a root without `/dev` has no files of random numbers.
    let mut filled = 0;
    while filled < letters {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes
        .iter()
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte & 31)]))
        .collect())
}

fn make_in(base: &Path) -> io::Result<RunDir> {
    for number in 0..=1000 {
        let path = base.join(format!("{PREFIX}{}", random_name(LETTERS)?));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => continue,
            Err(error) => return Err(error),
        }
        let mut options = OpenOptions::new();
        let lock = options.write(true).create_new(true).mode(0o600).open(path.join(LOCK));
        // A clean-up in another process may remove the folder in between.
        if let Ok(lock) = lock
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_at(&lock, &path.join(LOCK))
        {
            return Ok(RunDir { path, _lock: lock });
        }
    }
    Err(io::Error::other("no folder for temporary files can be locked"))
}

/// True if an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |of: fs::Metadata| (of.dev(), of.ino());
    let both = file.metadata().ok().zip(fs::symlink_metadata(path).ok());
    both.is_some_and(|(a, b)| identity(a) == identity(b))
}

/// Removes our folders whose lock is free.
fn remove_left(base: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_ours = |of: fs::Metadata| of.is_dir() && of.uid() == uid && of.mode() & 0o022 == 0;
        if !is_named || !fs::symlink_metadata(&path).is_ok_and(is_ours) {
            continue;
        }
        let mut options = OpenOptions::new();
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();
        options.write(true).custom_flags(flags);
        let Ok(lock) = options.open(path.join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        // The lock file goes last: a folder without one counts as one that is being made, and
        // stays.
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|it| it.is_socket()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        for name in [NAME, LOCK] {
            let _ = fs::remove_file(path.join(name));
        }
        let _ = fs::remove_dir(&path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_folders_of_ended_runs_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let lives = make_in(base.path()).unwrap();
        let gone = base.path().join(format!("{PREFIX}1-0"));
        let foreign = base.path().join("pagewise-other");
        let unlocked = base.path().join(format!("{PREFIX}2-0"));
        for folder in [&gone, &foreign, &unlocked] {
            DirBuilder::new().mode(0o700).create(folder).unwrap();
        }
        for name in [NAME, LOCK] {
            fs::write(gone.join(name), "x").unwrap();
            fs::write(foreign.join(name), "x").unwrap();
        }
        for folder in [gone.as_path(), lives.path()] {
            UnixListener::bind(folder.join("socket")).unwrap();
        }
        remove_left(base.path());
        assert!(!gone.exists());
        assert!(foreign.join(LOCK).exists() && unlocked.exists());
        assert!(lives.path().join("socket").exists());
        let path = lives.path().to_owned();
        drop(lives);
        assert!(!path.exists());
    }
}
