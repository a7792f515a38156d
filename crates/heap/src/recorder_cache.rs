//! The recorder's file, which stays after a run: the children of a recorded program load it by
//! `LD_PRELOAD` even after pagewise has ended. If the file were gone, the loader would print an
//! error to their standard error.
//!
//! ```text
//!  $XDG_CACHE_HOME/pagewise/  or  ~/.cache/pagewise/  or, for root only,  /var/cache/pagewise/
//!      91c7..e2/libpagewise_preload.so      by content, so that versions do not share a file
//! ```
//!
//! Programs load this file, so other users must not be able to write it, and it is compared byte
//! for byte before use.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::library::NAME;
use crate::run_dir::takes_programs;

/// A file of another version is removed after this time without use.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Resolution of the last-use time of a file.
const NOTED: Duration = Duration::from_secs(24 * 60 * 60);
/// Write permission of the group and of others.
const WRITABLE: u32 = 0o022;
/// Sticky bit of a folder: only the owner of a file in it can remove the file.
const STICKY: u32 = 0o1000;

/// Permanent path of a file with these contents; `name` is derived from them. `None` without a
/// writable location.
pub(crate) fn keep(contents: &[u8], name: &str) -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    bases(uid).into_iter().find_map(|base| keep_in(&base, uid, contents, name).ok().flatten())
}

/// The user's cache folders.
fn bases(uid: u32) -> Vec<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let set = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let base = set.or_else(|| folder("HOME").map(|home| home.join(".cache")));
    let mut bases = Vec::from_iter(base);
    if uid == 0 {
        bases.push("/var/cache".into());
    }
    bases
}

fn keep_in(base: &Path, uid: u32, contents: &[u8], name: &str) -> io::Result<Option<PathBuf>> {
    if !base.is_absolute() {
        return Ok(None);
    }
    // Root may run programs as any user, and these load the file too.
    let is_for_all = uid == 0;
    if !is_for_all && !base.exists() {
        DirBuilder::new().mode(0o700).create(base)?;
    }
    let base = base.canonicalize()?;
    let of = fs::metadata(&base)?;
    let is_safe = of.mode() & WRITABLE == 0 || of.mode() & STICKY != 0;
    let is_ours = of.uid() == uid || of.uid() == 0;
    if !is_safe || !is_ours || !takes_programs(&base) || (is_for_all && !all_can_enter(&base)) {
        return Ok(None);
    }
    let all = base.join("pagewise");
    let folder = all.join(name);
    if !folder_of(&all, uid)? || !folder_of(&folder, uid)? {
        return Ok(None);
    }
    let path = folder.join(NAME);
    if !holds(&path, uid, contents) {
        write(&folder, &path, contents)?;
        if !holds(&path, uid, contents) {
            return Ok(None);
        }
    }
    let now = SystemTime::now();
    note_use(&path, now);
    remove_unused(&all, name, uid, now);
    Ok(Some(path))
}

/// Creates a folder if it is missing; returns true if only this user can write to it.
fn folder_of(path: &Path, uid: u32) -> io::Result<bool> {
    match DirBuilder::new().mode(0o755).create(path) {
        // Independent of the umask: programs that run as other users load the file, too.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let of = fs::symlink_metadata(path)?;
    Ok(of.is_dir() && of.uid() == uid && of.mode() & WRITABLE == 0)
}

/// True if every user can enter a folder.
fn all_can_enter(folder: &Path) -> bool {
    const ENTER: u32 = 0o001;
    folder.ancestors().all(|path| fs::metadata(path).is_ok_and(|of| of.mode() & ENTER != 0))
}

/// True if only this user can write a file, all users can read it, and it has these contents.
fn holds(path: &Path, uid: u32, contents: &[u8]) -> bool {
    const READABLE: u32 = 0o444;
    let Ok(of) = fs::symlink_metadata(path) else { return false };
    let is_ours = of.is_file() && of.uid() == uid && of.mode() & WRITABLE == 0;
    if !is_ours || of.mode() & READABLE != READABLE || of.len() != contents.len() as u64 {
        return false;
    }
    let mut found = Vec::with_capacity(contents.len());
    // One more byte reveals a longer file.
    let read = File::open(path)
        .and_then(|file| file.take(contents.len() as u64 + 1).read_to_end(&mut found));
    read.is_ok() && found == contents
}

/// Writes a file under another name and renames it, so that other processes load either the old or
/// the complete new file.
fn write(folder: &Path, path: &Path, contents: &[u8]) -> io::Result<()> {
    let new = folder.join(format!("{NAME}.{}", std::process::id()));
    // A killed process with the same PID may have left it.
    let _ = fs::remove_file(&new);
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        fs::rename(&new, path)
    };
    let result = written();
    if result.is_err() {
        let _ = fs::remove_file(&new);
    }
    result
}

/// The modification time is the time of last use, since the contents do not change.
fn note_use(path: &Path, now: SystemTime) {
    let is_old = |path: &Path| Some(now.duration_since(fs::metadata(path).ok()?.modified().ok()?));
    if is_old(path).is_some_and(|age| age.is_ok_and(|age| age > NOTED)) {
        // If the time cannot be set, the file is created again some day.
        let _ = File::open(path).and_then(|file| file.set_modified(now));
    }
}

/// Removes unused files of other versions.
fn remove_unused(all: &Path, name: &str, uid: u32, now: SystemTime) {
    let Ok(entries) = fs::read_dir(all) else { return };
    for entry in entries.flatten() {
        let folder = entry.path();
        let other = entry.file_name();
        let other = other.to_str().unwrap_or_default();
        let is_version = other.len() == name.len() && other.bytes().all(|b| b.is_ascii_hexdigit());
        let is_folder =
            fs::symlink_metadata(&folder).is_ok_and(|of| of.is_dir() && of.uid() == uid);
        if other == name || !is_version || !is_folder {
            continue;
        }
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files
            .flatten()
            .filter(|file| file.file_name().to_str().is_some_and(|file| file.starts_with(NAME)))
        {
            let used = file.metadata().and_then(|of| of.modified());
            let age = used.ok().and_then(|used| now.duration_since(used).ok());
            if age.is_some_and(|age| age > UNUSED) {
                let _ = fs::remove_file(file.path());
            }
        }
        // This fails if the folder is not empty.
        let _ = fs::remove_dir(&folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A folder that others can enter.
    fn base() -> tempfile::TempDir {
        let base = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        base
    }

    fn kept(base: &Path, contents: &[u8], name: &str) -> Option<PathBuf> {
        keep_in(base, uid(), contents, name).ok().flatten()
    }

    #[test]
    fn a_file_is_written_once_and_again_if_it_was_changed() {
        let base = base();
        let path = kept(base.path(), b"contents", "00ff").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        let first = fs::metadata(&path).unwrap().ino();
        assert_eq!(kept(base.path(), b"contents", "00ff").as_ref(), Some(&path));
        assert_eq!(fs::metadata(&path).unwrap().ino(), first);
        for wrong in ["", "contentz", "contents and more"] {
            fs::write(&path, wrong).unwrap();
            assert_eq!(kept(base.path(), b"contents", "00ff").as_ref(), Some(&path));
            assert_eq!(fs::read(&path).unwrap(), b"contents");
        }
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn files_that_other_users_can_write_are_not_used() {
        let base = base();
        let path = kept(base.path(), b"contents", "00ff").unwrap();
        let change = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        change(&path, 0o666);
        kept(base.path(), b"contents", "00ff").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        for folder in path.ancestors().skip(1).take(2) {
            change(folder, 0o777);
            assert_eq!(kept(base.path(), b"contents", "00ff"), None, "{}", folder.display());
            change(folder, 0o755);
        }
        change(base.path(), 0o777);
        assert_eq!(kept(base.path(), b"contents", "00ff"), None);
        // As /tmp is.
        change(base.path(), 0o1777);
        assert_eq!(kept(base.path(), b"contents", "00ff"), Some(path));
    }

    #[test]
    fn links_are_not_followed() {
        let (base, elsewhere) = (base(), base());
        symlink(elsewhere.path(), base.path().join("pagewise")).unwrap();
        assert_eq!(kept(base.path(), b"contents", "00ff"), None);
        fs::remove_file(base.path().join("pagewise")).unwrap();
        let path = kept(base.path(), b"contents", "00ff").unwrap();
        let other = elsewhere.path().join("other");
        fs::write(&other, "contents").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(kept(base.path(), b"contents", "00ff").as_ref(), Some(&path));
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&other).unwrap(), b"contents");
    }

    #[test]
    fn paths_that_the_loader_would_take_apart_are_not_used() {
        let base = base();
        for name in ["with blank", "with:colon", "with$ORIGIN"] {
            let folder = base.path().join(name);
            fs::create_dir(&folder).unwrap();
            assert_eq!(kept(&folder, b"contents", "00ff"), None, "{name}");
        }
    }

    #[test]
    fn only_long_unused_files_of_other_versions_are_removed() {
        let base = base();
        let now = SystemTime::now();
        let old = kept(base.path(), b"old", "0001").unwrap();
        let new = kept(base.path(), b"new", "0002").unwrap();
        let foreign = base.path().join("pagewise/notes");
        fs::create_dir(&foreign).unwrap();
        let foreign = foreign.join(NAME);
        fs::write(&foreign, "not ours").unwrap();
        let age = |path: &Path, age| {
            File::open(path).unwrap().set_modified(now.checked_sub(age).unwrap()).unwrap();
        };
        age(&old, UNUSED / 2);
        kept(base.path(), b"new", "0002").unwrap();
        assert!(old.exists());
        age(&old, UNUSED * 2);
        age(&new, UNUSED * 2);
        age(&foreign, UNUSED * 2);
        kept(base.path(), b"new", "0002").unwrap();
        assert!(!old.exists() && !old.parent().unwrap().exists());
        assert!(foreign.exists());
        // Its use was noted.
        let used = fs::metadata(&new).unwrap().modified().unwrap();
        assert!(now.duration_since(used).is_err() || now.duration_since(used).unwrap() < NOTED);
    }
}
