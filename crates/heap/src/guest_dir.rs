//! A folder in the root directory of a target that has another root than pagewise: for example in a
//! container, or after `chroot`.
//!
//! The target may be hostile: it may own the parent folder, and replace any name by a symbolic
//! link. So each name is resolved only once, in the target's root, and all operations use
//! descriptors that are already open.
//!
//! The process that creates a folder locks it. The kernel releases the lock when the process is
//! killed, so the next run recognizes the folder as unused and removes it.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use pagewise_model::Pid;
use pagewise_proc::ProcRoot;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fchmod,
    flock, fstat, fstatvfs, mkdirat, openat, openat2, renameat, statat, unlinkat,
};

use crate::library::NAME;
use crate::run_dir::{LETTERS, LOCK, PREFIX, SECRET, random_name};

/// Candidates for the parent folder, in order of preference.
const BASES: [&str; 4] = ["/tmp", "/dev/shm", "/var/tmp", "/run"];

/// Maximum number of entries of a folder that the removal of unused folders reads.
const MAX_ENTRIES: usize = 10_000;
/// Number of attempts to create a folder: another process may remove it before it is locked.
const MAX_TRIES: usize = 10;

/// A folder that contains the recorder and a socket. Dropping the value removes the folder.
#[derive(Debug)]
pub(crate) struct GuestDir {
    base: OwnedFd,
    name: String,
    folder: OwnedFd,
    /// The socket, as an `O_PATH` descriptor.
    socket: Option<OwnedFd>,
    secret: String,
    /// The folder's path in the target's root.
    inside: PathBuf,
}

impl GuestDir {
    /// Creates a folder with the recorder and a listening socket. Removes the folders that killed
    /// runs have left in this root.
    ///
    /// # Errors
    /// Returns an error if the target has no folder that this process may write and from which
    /// libraries may be loaded.
    pub(crate) fn make(
        root: &ProcRoot,
        pid: u32,
        recorder: &[u8],
    ) -> io::Result<(GuestDir, UnixListener)> {
        let theirs = open_root(&root.file(Pid(pid), "root"))?;
        for base in BASES {
            if let Ok(base) = open_base(&theirs, Path::new(base)) {
                remove_left(&base);
            }
        }
        let mut first = None;
        for base in BASES {
            match GuestDir::make_in(&theirs, Path::new(base), recorder) {
                Ok(made) => return Ok(made),
                Err(error) => first = first.or(Some((base, error))),
            }
        }
        let (base, error) = first.unwrap_or((BASES[0], io::ErrorKind::NotFound.into()));
        let what = format!("no folder in its root can hold the recorder ({base}: {error})");
        Err(io::Error::new(error.kind(), what))
    }

    fn make_in(
        theirs: &OwnedFd,
        base: &Path,
        recorder: &[u8],
    ) -> io::Result<(GuestDir, UnixListener)> {
        let opened = open_base(theirs, base)?;
        if fstatvfs(&opened)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(io::Error::other("it is mounted with noexec"));
        }
        let (name, folder) = make_locked(&opened)?;
        let inside = base.join(&name);
        let secret = random_name(SECRET)?;
        // From here on, dropping the value removes the folder if a later call fails.
        let mut made = GuestDir { base: opened, name, folder, socket: None, secret, inside };
        let listener = made.fill(recorder)?;
        Ok((made, listener))
    }

    fn fill(&mut self, recorder: &[u8]) -> io::Result<UnixListener> {
        let path = by_descriptor(&self.folder).join(NAME);
        // The open fails if the name exists, also as a symbolic link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(recorder)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        // `/proc/net/unix` shows the name to which a socket was bound, so the socket is renamed to
        // a secret name.
        let listener = UnixListener::bind(by_descriptor(&self.folder).join("socket"))?;
        listener.set_nonblocking(true)?;
        renameat(&self.folder, "socket", &self.folder, self.secret.as_str())?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&self.folder, self.secret.as_str(), flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("another file was put in the place of the socket"));
        }
        // Every process that knows the name can connect to root's socket; unknown processes are
        // rejected by their credentials.
        let is_root = rustix::process::geteuid().is_root();
        let mode = if is_root { 0o666 } else { 0o600 };
        std::fs::set_permissions(by_descriptor(&socket), Permissions::from_mode(mode))?;
        if is_root {
            fchmod(&self.folder, Mode::from_raw_mode(0o711))?;
        }
        self.socket = Some(socket);
        Ok(listener)
    }

    /// The recorder's path in the target's root.
    pub(crate) fn recorder(&self) -> PathBuf {
        self.inside.join(NAME)
    }

    /// The socket's path in the target's root.
    pub(crate) fn socket(&self) -> PathBuf {
        self.inside.join(&self.secret)
    }

    /// User ID of the owner of the folder.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.folder)?.st_uid)
    }

    /// Changes the owner of the folder and the socket to a user.
    pub(crate) fn give_to(&self, uid: u32) -> io::Result<()> {
        for file in [Some(&self.folder), self.socket.as_ref()].into_iter().flatten() {
            chown(by_descriptor(file), Some(uid), None)?;
        }
        Ok(())
    }
}

/// Opens the root directory to which a link in `/proc` refers.
fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a folder of another root, by its path in that root.
fn open_base(theirs: &OwnedFd, base: &Path) -> io::Result<OwnedFd> {
    let within = base.strip_prefix("/").map_err(io::Error::other)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(theirs, within, flags, Mode::empty(), how)?)
}

/// Creates a folder with a random name, and locks it.
fn make_locked(base: &OwnedFd) -> io::Result<(String, OwnedFd)> {
    for _ in 0..MAX_TRIES {
        let name = format!("{PREFIX}{}", random_name(LETTERS)?);
        mkdirat(base, name.as_str(), Mode::RWXU)?;
        let Ok(folder) = open_folder(base, name.as_bytes()) else { continue };
        if fstat(&folder)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("another folder was put in the place of ours"));
        }
        let is_locked = flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_locked && is_in(base, name.as_bytes(), &folder) {
            return Ok((name, folder));
        }
    }
    Err(io::Error::other("other processes remove each new folder"))
}

/// Opens a folder by its name in `base`; fails for a link or a mount point.
fn open_folder(base: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(base, name, flags, Mode::empty(), ResolveFlags::NO_XDEV | ResolveFlags::BENEATH)
}

/// True if a name in `base` still refers to an open folder.
fn is_in(base: &OwnedFd, name: &[u8], folder: &OwnedFd) -> bool {
    let there = statat(base, name, AtFlags::SYMLINK_NOFOLLOW);
    let both = there.ok().zip(fstat(folder).ok());
    both.is_some_and(|(a, b)| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Removes folders of pagewise whose lock is free.
fn remove_left(base: &OwnedFd) {
    let Ok(entries) = std::fs::read_dir(by_descriptor(base)) else { return };
    for entry in entries.flatten().take(MAX_ENTRIES) {
        let name = entry.file_name();
        let letters = name.as_bytes().strip_prefix(PREFIX.as_bytes());
        if letters.is_some_and(|letters| letters.len() == LETTERS) {
            // Folders that cannot be removed stay.
            let _ = remove_folder(base, name.as_bytes());
        }
    }
}

/// Removes a folder and the files of pagewise in it, unless another process holds a lock on the
/// folder. Leaves a folder that contains a lock file: a pagewise that runs inside the target's root
/// made this folder, and [`crate::run_dir`] removes it.
fn remove_folder(base: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    let folder = open_folder(base, name)?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    if statat(&folder, LOCK, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(());
    }
    let entries = std::fs::read_dir(by_descriptor(&folder)).into_iter().flatten().flatten();
    for entry in entries.take(MAX_ENTRIES) {
        let is_socket = entry.file_type().is_ok_and(|it| it.is_socket());
        if is_socket || entry.file_name() == NAME {
            unlinkat(&folder, entry.file_name().as_bytes(), AtFlags::empty())?;
        }
    }
    unlinkat(base, name, AtFlags::REMOVEDIR)
}

/// Path in `/proc` that refers to an open file.
fn by_descriptor(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

impl Drop for GuestDir {
    fn drop(&mut self) {
        for name in [NAME, self.secret.as_str(), "socket"] {
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
        let _ = unlinkat(&self.base, self.name.as_str(), AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn ours() -> (ProcRoot, u32) {
        (ProcRoot::live(), std::process::id())
    }

    #[test]
    fn a_folder_is_removed_with_its_files() {
        let (root, pid) = ours();
        let (made, listener) = GuestDir::make(&root, pid, b"recorder").unwrap();
        assert_eq!(std::fs::read(made.recorder()).unwrap(), b"recorder");
        assert_eq!(made.owner().unwrap(), rustix::process::geteuid().as_raw());
        UnixStream::connect(made.socket()).unwrap();
        listener.accept().unwrap();
        let inside = made.inside.clone();
        drop(made);
        assert!(!inside.exists());
    }

    #[test]
    fn folders_of_killed_runs_are_removed_and_no_others() {
        let base = tempfile::tempdir_in("/tmp").unwrap();
        let opened = open_root(base.path()).unwrap();
        let (lives, _lock) = make_locked(&opened).unwrap();
        let (killed, lock) = make_locked(&opened).unwrap();
        let path = |name: &str| base.path().join(name);
        for name in [&lives, &killed] {
            std::fs::write(path(name).join(NAME), "recorder").unwrap();
            UnixListener::bind(path(name).join("socket")).unwrap();
        }
        // The first folder belongs to a run in this root, the other folders to other programs.
        let [in_root, foreign, filled] = ["aaaaaaaa", "bbbb", "cccccccc"];
        for letters in [in_root, foreign, filled] {
            std::fs::create_dir(path(&format!("{PREFIX}{letters}"))).unwrap();
        }
        std::fs::write(path(&format!("{PREFIX}{in_root}")).join(LOCK), "").unwrap();
        std::fs::write(path(&format!("{PREFIX}{filled}")).join("file"), "").unwrap();
        std::os::unix::fs::symlink(path(&lives), path(&format!("{PREFIX}dddddddd"))).unwrap();
        drop(lock);
        remove_left(&opened);
        assert!(!path(&killed).exists());
        assert!(path(&lives).join(NAME).exists() && path(&lives).join("socket").exists());
        for letters in [in_root, foreign, filled, "dddddddd"] {
            assert!(path(&format!("{PREFIX}{letters}")).exists(), "{letters}");
        }
    }

    #[test]
    fn links_lead_nowhere_out_of_the_root() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let outside = tempfile::tempdir_in("/tmp").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("tmp")).unwrap();
        let theirs = open_root(root.path()).unwrap();
        assert!(GuestDir::make_in(&theirs, Path::new("/tmp"), b"recorder").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
