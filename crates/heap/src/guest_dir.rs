//! A folder in the root of a target that does not see ours: in a container, or after `chroot`.
//!
//! The target may be hostile: it may own the folder above, and put a link in the place of any name.
//! Each name is therefore resolved in the target's root, and everything is done by descriptors that
//! are open already; no name is used twice.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use pagewise_model::Pid;
use pagewise_proc::ProcRoot;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fchmod, fstat, fstatvfs,
    mkdirat, openat, openat2, renameat, unlinkat,
};

use crate::library::NAME;
use crate::run_dir::{LETTERS, PREFIX, SECRET, random_name};

/// Folders in which the target may find files of others, and load them.
const BASES: [&str; 4] = ["/tmp", "/dev/shm", "/var/tmp", "/run"];

/// The folder, with the recorder and a socket in it. It is removed with this.
#[derive(Debug)]
pub(crate) struct GuestDir {
    base: OwnedFd,
    name: String,
    folder: OwnedFd,
    /// The socket, as a descriptor that names it alone.
    socket: Option<OwnedFd>,
    secret: String,
    /// The folder's path in the target's root.
    inside: PathBuf,
}

impl GuestDir {
    /// Makes one that holds the recorder, and a socket that listens.
    ///
    /// # Errors
    /// Returns an error if the target has no folder that we may write to and that programs may be
    /// loaded from.
    pub(crate) fn make(
        root: &ProcRoot,
        pid: u32,
        recorder: &[u8],
    ) -> io::Result<(GuestDir, UnixListener)> {
        let theirs = open_root(&root.file(Pid(pid), "root"))?;
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
        let within = base.strip_prefix("/").map_err(io::Error::other)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(theirs, within, flags, Mode::empty(), how)?;
        if fstatvfs(&opened)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(io::Error::other("it is mounted with noexec"));
        }
        let name = format!("{PREFIX}{}", random_name(LETTERS)?);
        mkdirat(&opened, name.as_str(), Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&opened, name.as_str(), flags, Mode::empty())?;
        if fstat(&folder)?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("another folder was put in the place of ours"));
        }
        let inside = base.join(&name);
        let secret = random_name(SECRET)?;
        // From here the folder is removed if something fails.
        let mut made = GuestDir { base: opened, name, folder, socket: None, secret, inside };
        let listener = made.fill(recorder)?;
        Ok((made, listener))
    }

    fn fill(&mut self, recorder: &[u8]) -> io::Result<UnixListener> {
        let path = by_descriptor(&self.folder).join(NAME);
        // It fails if the name exists, also as a link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(recorder)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        // The name that a socket was bound to is public, in /proc/net/unix.
        let listener = UnixListener::bind(by_descriptor(&self.folder).join("socket"))?;
        listener.set_nonblocking(true)?;
        renameat(&self.folder, "socket", &self.folder, self.secret.as_str())?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&self.folder, self.secret.as_str(), flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("another file was put in the place of the socket"));
        }
        // Root's is open to whoever knows its name: other clients are rejected by their
        // credentials.
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

    /// The user that owns the folder.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        Ok(fstat(&self.folder)?.st_uid)
    }

    /// Gives the folder and the socket to a user.
    pub(crate) fn give_to(&self, uid: u32) -> io::Result<()> {
        for file in [Some(&self.folder), self.socket.as_ref()].into_iter().flatten() {
            chown(by_descriptor(file), Some(uid), None)?;
        }
        Ok(())
    }
}

/// The root directory that a path of /proc leads to.
fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A path that leads to an open file.
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
    fn links_lead_nowhere_out_of_the_root() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let outside = tempfile::tempdir_in("/tmp").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("tmp")).unwrap();
        let theirs = open_root(root.path()).unwrap();
        assert!(GuestDir::make_in(&theirs, Path::new("/tmp"), b"recorder").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
