//! Result files: either written completely, or left unchanged.
//!
//! A new file is first written, without a name (`O_TMPFILE`), in the folder of the old file, and
//! then replaces the old file atomically. So a full disk, a signal or a kill leaves the old file
//! unchanged, and leaves no partial new file. Devices, FIFOs and open descriptors (`/dev/stdout`)
//! are written in place. A symbolic link is followed, and its target is replaced.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, accessat, linkat};
use rustix::io::Errno;
use tempfile::TempPath;

/// Users that may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileReaders {
    /// The owner alone (mode 0600), since the file contains addresses or contents of the memory of
    /// a process. The new file is flushed to disk before it replaces an old file.
    Owner,
    /// The users that the umask permits; a file that replaces another keeps the mode and owner of
    /// the old file.
    Umask,
}

/// Size of the write buffer in bytes, so that an output of 65,000 rows takes few system calls.
const BUFFER: usize = 256 << 10;

/// Writes a file. On failure the previous content is unchanged, unless the target is not a regular
/// file or no new file can be created in its folder.
///
/// # Errors
/// Returns the error of `draw` or of a write.
pub fn write(
    path: &Path,
    access: FileReaders,
    draw: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let target = match Destination::for_path(path)? {
        Destination::Stream(file) => return buffered(&file, draw),
        Destination::File(target) => target,
    };
    let old = existing(&target)?;
    if old.is_some() {
        accessat(CWD, &target, rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)?;
    }
    let mut new = match NewFile::beside(&target, access, old.as_ref()) {
        Ok(new) => new,
        // The folder may belong to another user although this user may write the file.
        Err(error) if old.is_some() && is_refused(&error) => {
            return buffered(&emptied(&target)?, draw);
        }
        Err(error) => return Err(error),
    };
    buffered(new.file(), draw)?;
    if access == FileReaders::Owner {
        new.file().sync_all()?;
    }
    match new.replace(&target) {
        // A file that is itself a mount point, as in containers, cannot be replaced.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            let mut written = new.file();
            written.rewind()?;
            io::copy(&mut written, &mut emptied(&target)?).map(drop)
        }
        replaced => replaced,
    }
}

fn emptied(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(true).open(path)
}

fn buffered(file: &File, draw: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let drawn = draw(&mut out).and_then(|()| out.flush());
    if drawn.is_err() {
        // Dropping `out` would write the remaining buffer again.
        let _ = out.into_parts();
    }
    drawn
}

fn existing(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the error means that this process may not create a file in the folder.
fn is_refused(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Target of an output path.
enum Destination {
    /// A regular file, which is replaced, or a name that does not exist yet.
    File(PathBuf),
    /// A device, a FIFO or an open descriptor, which is written in place.
    Stream(File),
}

impl Destination {
    fn for_path(path: &Path) -> io::Result<Destination> {
        let Some(target) = followed(path)? else {
            // The file is truncated, as a shell redirection does, even if the descriptor refers to
            // a regular file.
            return Ok(Destination::Stream(emptied(path)?));
        };
        match existing(&target)? {
            Some(what) if what.is_dir() => Err(Errno::ISDIR.into()),
            Some(what) if !what.is_file() => {
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(OFlags::NOCTTY.bits().cast_signed());
                Ok(Destination::Stream(options.open(&target)?))
            }
            None if target.file_name().is_none() => Err(Errno::NOENT.into()),
            _ => Ok(Destination::File(target)),
        }
    }
}

/// Follows symbolic links to the target of a path; `None` for a link in `/proc`, which refers to an
/// open file regardless of the text of the link.
fn followed(path: &Path) -> io::Result<Option<PathBuf>> {
    /// Maximum number of links that the kernel follows (`MAXSYMLINKS`).
    const MAX_LINKS: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(what) = fs::symlink_metadata(&at) else { return Ok(Some(at)) };
        if !what.is_symlink() {
            return Ok(Some(at));
        }
        let folder = folder_of(&at).to_owned();
        if is_proc(&folder) {
            return Ok(None);
        }
        // The rule of `fs.protected_symlinks` must be applied here, since the kernel does not apply
        // it to `readlink`.
        let around = fs::metadata(&folder)?;
        let is_shared = around.mode() & 0o1002 == 0o1002;
        let uid = rustix::process::geteuid().as_raw();
        if is_shared && what.uid() != uid && what.uid() != around.uid() {
            return Err(Errno::ACCESS.into());
        }
        at = folder.join(fs::read_link(&at)?);
    }
    Err(Errno::LOOP.into())
}

fn is_proc(folder: &Path) -> bool {
    const PROC: rustix::fs::FsWord = 0x9fa0;
    rustix::fs::statfs(folder).is_ok_and(|fs| fs.f_type == PROC)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file that will replace the target.
enum NewFile {
    /// A file without a name (`O_TMPFILE`), which the kernel deletes when this process ends.
    Unnamed(File),
    /// A file with a temporary name, for file systems without `O_TMPFILE`.
    Named(File, TempPath),
}

/// Prefix of the names of temporary files.
const PREFIX: &str = ".pagewise-";

impl NewFile {
    fn beside(target: &Path, access: FileReaders, old: Option<&Metadata>) -> io::Result<NewFile> {
        let mode = match access {
            FileReaders::Owner => 0o600,
            FileReaders::Umask => 0o666,
        };
        let folder = folder_of(target);
        let new = match unnamed(folder, mode)? {
            Some(file) => NewFile::Unnamed(file),
            None => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(PREFIX).permissions(Permissions::from_mode(mode));
                let (file, name) = builder.tempfile_in(folder)?.into_parts();
                NewFile::Named(file, name)
            }
        };
        if let (FileReaders::Umask, Some(old)) = (access, old) {
            // Only root may change the owner; without this permission the new file belongs to this
            // user.
            let _ = fchown(new.file(), Some(old.uid()), Some(old.gid()));
            new.file().set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
        }
        Ok(new)
    }

    fn file(&self) -> &File {
        match self {
            NewFile::Unnamed(file) | NewFile::Named(file, _) => file,
        }
    }

    /// Replaces the target by this file.
    fn replace(&mut self, target: &Path) -> io::Result<()> {
        match self {
            NewFile::Unnamed(file) => Ok(named(file, target)?.persist(target)?),
            NewFile::Named(_, name) => {
                fs::rename(&name, target)?;
                // The rename has removed the temporary name.
                name.disable_cleanup(true);
                Ok(())
            }
        }
    }
}

/// Creates a file without a name in a folder; `None` if the file system does not support such
/// files.
fn unnamed(folder: &Path, mode: u32) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)) {
        // `linkat` needs the path in `/proc`, which does not exist if `/proc` is of another PID
        // namespace.
        Ok(file) if fs::metadata(path_of(&file)).is_ok() => Ok(Some(file.into())),
        Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn path_of(file: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Links a file to a temporary name beside the target, since `linkat` cannot replace a file.
fn named(file: &File, target: &Path) -> io::Result<TempPath> {
    let give = |name: &Path| -> io::Result<()> {
        Ok(linkat(CWD, path_of(file), CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    };
    let made = tempfile::Builder::new().prefix(PREFIX).make_in(folder_of(target), give)?;
    Ok(made.into_temp_path())
}

/// A file that grows over time, such as a recording. Until it is complete, readers can read the
/// part that is already written.
///
/// If the path does not exist yet, the new file has its final name from the start. An existing
/// regular file stays until the new file is complete; until then the new file has the name
/// `NAME.part`.
#[derive(Debug)]
pub struct Growing {
    /// Requested path.
    name: PathBuf,
    /// Current path; `None` for a device, a FIFO or an open descriptor.
    at: Option<PathBuf>,
    /// File that the new file replaces when the new file is complete.
    replaces: Option<PathBuf>,
}

impl Growing {
    /// Creates a file that only its owner can read. A symbolic link is followed.
    ///
    /// # Errors
    /// Returns the error of creating the file.
    pub fn create(path: &Path) -> io::Result<(Growing, File)> {
        let name = path.to_owned();
        let target = match Destination::for_path(path)? {
            Destination::Stream(file) => {
                return Ok((Growing { name, at: None, replaces: None }, file));
            }
            Destination::File(target) => target,
        };
        match private(&target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let mut part = target.clone().into_os_string();
                part.push(".part");
                let (at, file) = private_at_free_name(Path::new(&part))?;
                Ok((Growing { name, at: Some(at), replaces: Some(target) }, file))
            }
            made => Ok((Growing { name, at: Some(target), replaces: None }, made?)),
        }
    }

    /// Creates a file that only its owner can read, under a name that does not exist, not even as a
    /// symbolic link: `PATH`, `PATH.2` and so on.
    ///
    /// # Errors
    /// Returns the error of creating the file.
    pub fn create_new(path: &Path) -> io::Result<(Growing, File)> {
        let (at, file) = private_at_free_name(path)?;
        Ok((Growing { name: at.clone(), at: Some(at), replaces: None }, file))
    }

    /// Current path. For a device, a FIFO or an open descriptor, the requested path.
    pub fn path(&self) -> &Path {
        self.at.as_ref().unwrap_or(&self.name)
    }

    /// Completes the file: flushes it to disk and replaces the existing file at the requested path.
    /// Returns the final path.
    ///
    /// # Errors
    /// Returns the errors of the flush and of the rename.
    pub fn complete(self, file: &File) -> io::Result<PathBuf> {
        on_disk(file)?;
        if let (Some(at), Some(target)) = (&self.at, &self.replaces) {
            fs::rename(at, target)?;
        }
        Ok(self.name)
    }

    /// Completes the file under a new name that does not exist: `PATH`, `PATH.2` and so on.
    ///
    /// # Errors
    /// Returns the error of creating or renaming a file.
    pub fn complete_at(self, file: &File, path: &Path) -> io::Result<PathBuf> {
        on_disk(file)?;
        let Some(at) = self.at else { return Ok(self.name) };
        // The name is created first, so that it belongs to this process: a rename does not follow
        // links.
        let (to, _) = private_at_free_name(path)?;
        fs::rename(at, &to)?;
        Ok(to)
    }

    /// Removes the file, unless it is a device, a FIFO or an open descriptor.
    pub fn discard(self) {
        if let Some(at) = self.at {
            let _ = fs::remove_file(at);
        }
    }
}

/// Flushes a file to disk. Returns `Ok` also for a file that cannot be flushed, such as a pipe.
fn on_disk(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        synced => synced,
    }
}

fn private(path: &Path) -> io::Result<File> {
    // With `create_new` no link is followed.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn private_at_free_name(path: &Path) -> io::Result<(PathBuf, File)> {
    /// Maximum number of names that are tried, since other users may have created files with these
    /// names.
    const MAX_NAMES: u32 = 10_000;
    let mut free = path.to_owned();
    let mut number = 1;
    loop {
        match private(&free) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAMES => {
                number += 1;
                let mut name = path.to_owned().into_os_string();
                name.push(format!(".{number}"));
                free = name.into();
            }
            made => return Ok((free, made?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pagewise_skip::{Lack, skip};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn put(path: &Path, access: FileReaders, text: &str) {
        write(path, access, |out| out.write_all(text.as_bytes())).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_file_unchanged_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        put(&path, FileReaders::Umask, "good");
        for access in [FileReaders::Owner, FileReaders::Umask] {
            let failed = write(&path, access, |out| {
                out.write_all(&[b'x'; 1 << 20])?;
                Err(Errno::NOSPC.into())
            });
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        }
        assert_eq!(fs::read(&path).unwrap(), b"good");
        assert_eq!(names(folder.path()), ["report"]);
    }

    #[test]
    fn a_report_keeps_the_mode_of_the_file_that_it_replaces_and_a_recording_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        put(&path, FileReaders::Umask, "new");
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"new".to_vec(), 0o604));
        put(&path, FileReaders::Owner, "new");
        assert_eq!(mode(&path), 0o600);
        let (growing, _) = Growing::create(&folder.path().join("recording")).unwrap();
        assert_eq!(mode(growing.path()), 0o600);
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, link) = (folder.path().join("inner"), folder.path().join("link"));
        fs::create_dir(&inner).unwrap();
        symlink("inner/file", &link).unwrap();
        put(&link, FileReaders::Umask, "first");
        put(&link, FileReaders::Owner, "second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(inner.join("file")).unwrap(), b"second");
        assert_eq!([names(folder.path()), names(&inner)], [vec!["inner", "link"], vec!["file"]]);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_written_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("report"), folder.path().join("other"));
        fs::write(&path, "a longer old text").unwrap();
        fs::write(&other, "x").unwrap();
        if rustix::mount::mount_bind(&other, &path).is_err() {
            return skip(&Lack::Machine("the user may not mount a file"));
        }
        put(&path, FileReaders::Umask, "new");
        let written = fs::read(&other).unwrap();
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(written, b"new");
        assert_eq!(names(folder.path()), ["other", "report"]);
    }

    #[test]
    fn links_in_a_circle_and_folders_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let circle = folder.path().join("circle");
        symlink("circle", &circle).unwrap();
        for path in [circle.as_path(), folder.path(), Path::new("/"), Path::new("")] {
            assert!(write(path, FileReaders::Umask, |_| Ok(())).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn devices_and_open_files_are_written_as_they_are() {
        put(Path::new("/dev/null"), FileReaders::Owner, "nothing");
        let full = write(Path::new("/dev/full"), FileReaders::Umask, |out| out.write_all(b"x"));
        assert_eq!(full.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        let file = tempfile::tempfile().unwrap();
        put(&path_of(&file), FileReaders::Umask, "through a descriptor");
        assert_eq!(fs::read(path_of(&file)).unwrap(), b"through a descriptor");
    }

    #[test]
    fn a_recording_takes_the_place_of_another_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.pwh");
        let (growing, mut file) = Growing::create(&path).unwrap();
        assert_eq!(growing.path(), path, "nothing was there");
        file.write_all(b"first").unwrap();
        assert_eq!(growing.complete(&file).unwrap(), path);
        // This recording stays incomplete, as if its process was killed.
        let (_, mut killed) = Growing::create(&path).unwrap();
        killed.write_all(b"cut").unwrap();
        let (growing, mut file) = Growing::create(&path).unwrap();
        file.write_all(b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(growing.complete(&file).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read(folder.path().join("r.pwh.part")).unwrap(), b"cut");
        assert_eq!(names(folder.path()), ["r.pwh", "r.pwh.part"]);
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over_also_where_it_is_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("r.pwh.7"), folder.path().join("victim"));
        symlink(&victim, &path).unwrap();
        let (growing, file) = Growing::create_new(&path).unwrap();
        assert_eq!(growing.path(), folder.path().join("r.pwh.7.2"));
        assert_eq!(growing.complete_at(&file, &path).unwrap(), folder.path().join("r.pwh.7.3"));
        assert!(!victim.exists());
        assert_eq!(names(folder.path()), ["r.pwh.7", "r.pwh.7.3"]);
    }

    #[test]
    fn a_discarded_file_is_removed_unless_it_is_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.pwh");
        Growing::create(&path).unwrap().0.discard();
        assert!(names(folder.path()).is_empty());
        let (growing, file) = Growing::create(Path::new("/dev/null")).unwrap();
        assert_eq!(growing.complete_at(&file, &path).unwrap(), Path::new("/dev/null"));
        Growing::create(Path::new("/dev/null")).unwrap().0.discard();
        assert!(Path::new("/dev/null").exists() && names(folder.path()).is_empty());
    }
}
