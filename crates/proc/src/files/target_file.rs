//! The only module that opens files named by a target: files that it maps, its program, separate
//! debug files, perf maps.
//!
//! A target chooses these names, so a name may denote a FIFO, a device, a link to a file that only
//! root may read, or a file of 300 GB. Each file is opened in the following steps, which open only
//! regular files for reading:
//!
//! 1. `/proc/PID/map_files/START-END` denotes the mapped file itself, even if another file has its
//!    name now. Following this link needs `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
//! 2. Without these capabilities, the name is resolved by `openat2` in `/proc/PID/root` with
//!    `RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS`. Links resolve in the same way as for the target,
//!    and never lead out of the target's root. If a seccomp filter forbids `openat2` (ENOSYS,
//!    EPERM), one component after another is opened with `O_NOFOLLOW`: names in `maps` contain no
//!    links.
//! 3. Steps 1 and 2 use `O_PATH`, which runs no driver code and never blocks. `fstat` then returns
//!    the type, the size and the identity of the file.
//! 4. The checked inode is opened through `/proc/self/fd/N` with `O_NONBLOCK`, so that a file lease
//!    that the target holds does not block the call.
//!
//! # Identity
//!
//! `maps` contains the device of the file system and the inode. `stat` returns the same inode, but
//! on some file systems another device:
//!
//! | file system | `st_dev` | accepted by name if |
//! |---|---|---|
//! | most | as in `maps` | device and inode are those of `maps` |
//! | btrfs and others with subvolumes | the subvolume's | the inode is that of `maps`, and the mount that contains the found file has the device of `maps` |
//! | overlayfs | the overlay's; before Linux 6.8 `maps` has the device and inode of the lower file system | the kernel has not marked the name as deleted |
//!
//! In the last two rows, the target may have replaced the mapped file by another regular file in
//! its root. This module then opens that other file. With `map_files` (step 1), it opens the mapped
//! file.
//!
//! # Files that this process has locked
//!
//! The kernel releases all POSIX locks of a process on a file when the process closes any
//! descriptor of the file (fcntl(2)). A recorder (a pagewise process that writes a recording) holds
//! such locks on its recording file, and maps a part of this file. Without the locks, the next
//! process that opens the recording truncates the mapped part, and the recorder ends by SIGBUS.
//! This module therefore never opens the files that [`keep_locks_of`] names. Closing a descriptor
//! that was opened with `O_PATH` releases no locks.
//!
//! # Changes
//!
//! A file can be changed while it is read. Use only `read` and `pread`: if a file is truncated, an
//! access to its mapping ends this process by SIGBUS.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pagewise_model::Pid;
use pagewise_model::mapping::{AddrRange, Device, Mapping};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs};
use rustix::io::Errno;

use crate::mountinfo::{self, Mount};
use crate::{ProcRoot, root};

/// Maximum size in bytes of a file that is read for its symbols. The largest debug files of
/// browsers have some GB.
pub const MAX_ELF_BYTES: u64 = 16 << 30;

/// `f_type` of overlayfs, `linux/magic.h`.
const OVERLAY: u64 = 0x794c_7630;
/// Number of attempts to resolve a name that is renamed at the same time.
const ATTEMPTS: usize = 8;

/// The files of [`keep_locks_of`].
static LOCKED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Sets the files on which this process holds, or will hold, POSIX locks. From now on this module
/// refuses to open these files. It no longer refuses the files of the previous call.
pub fn keep_locks_of(paths: Vec<PathBuf>) {
    *LOCKED.lock().unwrap_or_else(PoisonError::into_inner) = paths;
}

/// Reason why a file of a target was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The name denotes no file.
    #[error("it cannot be found")]
    Missing,
    /// The file is a FIFO, a device, a folder, a socket or a link.
    #[error("it is not a regular file")]
    NotRegular,
    /// The name denotes another file than the mapped one.
    #[error("another file has its name now")]
    OtherFile,
    /// The file belongs to another user.
    #[error("it belongs to another user")]
    OtherOwner,
    /// The file is too large.
    #[error("it has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the file in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// This process has locked the file: see [`keep_locks_of`].
    #[error("it is a file of pagewise itself, which pagewise has locked")]
    Locked,
    /// The file may not be opened.
    #[error("it may not be read")]
    NotPermitted,
    /// Another error.
    #[error("it cannot be read")]
    Io(#[source] io::Error),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        match refusal {
            Refusal::Io(error) => error,
            Refusal::Missing => io::Error::new(io::ErrorKind::NotFound, refusal),
            Refusal::NotPermitted => io::Error::new(io::ErrorKind::PermissionDenied, refusal),
            refusal => io::Error::new(io::ErrorKind::InvalidInput, refusal),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Refusal {
        match error {
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH | Errno::NAMETOOLONG => Refusal::Missing,
            Errno::PERM | Errno::ACCESS => Refusal::NotPermitted,
            // The name contains a link that may not be followed, or a cycle of links.
            Errno::LOOP => Refusal::NotRegular,
            error => Refusal::Io(error.into()),
        }
    }
}

/// Identity of a file: its device and inode, as in `maps` and in the kernel's records of mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device of the file system.
    pub device: Device,
    /// Inode of the file.
    pub inode: u64,
}

impl FileId {
    /// The file of a mapping.
    pub fn of_mapping(mapping: &Mapping) -> FileId {
        FileId { device: mapping.device, inode: mapping.inode }
    }

    /// The file that `stat` describes.
    pub fn of_metadata(metadata: &Metadata) -> FileId {
        FileId::of_stat(metadata.dev(), metadata.ino())
    }

    fn of_stat(device: u64, inode: u64) -> FileId {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        FileId { device: Device { major, minor }, inode }
    }
}

/// Rule for a link as the last component of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastLink {
    Followed,
    Refused,
}

/// A file that was found but is not open for reading.
#[derive(Debug)]
pub struct FoundFile {
    handle: OwnedFd,
    stat: Stat,
}

impl FoundFile {
    fn new(handle: OwnedFd) -> Result<FoundFile, Refusal> {
        let stat = fstat(&handle)?;
        Ok(FoundFile { handle, stat })
    }

    /// Device and inode, from `stat`.
    pub fn id(&self) -> FileId {
        FileId::of_stat(self.stat.st_dev, self.stat.st_ino)
    }

    /// Returns true if the file lies on an overlay, where `maps` and `stat` may show different
    /// inodes.
    pub fn is_on_overlay(&self) -> bool {
        // `f_type` has another width on some machines.
        #[allow(clippy::cast_sign_loss, reason = "magic numbers are patterns of bits")]
        #[allow(clippy::unnecessary_cast, reason = "the type depends on the machine")]
        fstatfs(&self.handle).is_ok_and(|it| it.f_type as u64 & 0xffff_ffff == OVERLAY)
    }

    /// Returns true if the file is one of the files of [`keep_locks_of`].
    fn is_locked(&self) -> bool {
        let locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |it: Metadata| FileId::of_metadata(&it) == self.id();
        locked.iter().any(|path| std::fs::metadata(path).is_ok_and(is_it))
    }

    /// Opens the file for reading, if it is a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// The reason, if the file is refused.
    pub fn open(self, limit: u64) -> Result<File, Refusal> {
        if !FileType::from_raw_mode(self.stat.st_mode).is_file() {
            return Err(Refusal::NotRegular);
        }
        if self.is_locked() {
            return Err(Refusal::Locked);
        }
        let bytes = u64::try_from(self.stat.st_size).unwrap_or(0);
        if bytes > limit {
            return Err(Refusal::TooLarge { bytes, limit });
        }
        let path = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let now = fstat(&file)?;
        // `/proc` may be a folder that is not the kernel's file system.
        let is_it = FileType::from_raw_mode(now.st_mode).is_file()
            && (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino);
        if is_it { Ok(File::from(file)) } else { Err(Refusal::OtherFile) }
    }
}

/// Open root folder of a process. Names are resolved in this folder even after the process has
/// ended, as long as its mounts exist.
#[derive(Debug)]
pub struct TargetRoot {
    folder: OwnedFd,
    pid: Option<(ProcRoot, Pid)>,
    /// Path of the folder from the root of this process, if the kernel shows one. After a `chroot`
    /// of the target, the names in `maps` begin with this path.
    outside: Option<PathBuf>,
    mounts: OnceCell<Vec<Mount>>,
}

impl TargetRoot {
    /// The root of a process.
    ///
    /// # Errors
    /// Returns an error if the process has ended, or belongs to another user.
    pub fn of_process(root: &ProcRoot, pid: Pid) -> Result<TargetRoot, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(root.file(pid, "root"), flags, Mode::empty())?;
        let outside = std::fs::read_link(root.file(pid, "root")).ok();
        let outside = outside.filter(|path| path != Path::new("/"));
        let pid = Some((root.clone(), pid));
        Ok(TargetRoot { folder, pid, outside, mounts: OnceCell::new() })
    }

    /// Opens the root of this process.
    ///
    /// # Errors
    /// Returns an error if the root cannot be opened.
    pub fn own() -> Result<TargetRoot, Refusal> {
        TargetRoot::at(Path::new("/"))
    }

    fn at(folder: &Path) -> Result<TargetRoot, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        Ok(TargetRoot { folder, pid: None, outside: None, mounts: OnceCell::new() })
    }

    /// Finds the file that an absolute name denotes for the process, and does not open it for
    /// reading.
    ///
    /// # Errors
    /// Returns the reason if the file cannot be used.
    pub fn find(&self, path: &Path) -> Result<FoundFile, Refusal> {
        self.resolve(path, LastLink::Followed).or_else(|why| {
            let within = self.outside.as_ref().and_then(|root| path.strip_prefix(root).ok());
            let within = within.filter(|_| matches!(why, Refusal::Missing)).ok_or(why)?;
            self.resolve(&Path::new("/").join(within), LastLink::Followed)
        })
    }

    /// Opens the regular file of an absolute name, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// The reason, if the file is refused.
    pub fn open(&self, path: &Path, limit: u64) -> Result<File, Refusal> {
        self.find(path)?.open(limit)
    }

    /// Like [`TargetRoot::open`], for a file that belongs to one of the users `owners` and whose
    /// name is not a link.
    ///
    /// # Errors
    /// The reason, if the file is refused.
    pub fn open_owned(&self, path: &Path, owners: &[u32], limit: u64) -> Result<File, Refusal> {
        let found = self.resolve(path, LastLink::Refused)?;
        if !FileType::from_raw_mode(found.stat.st_mode).is_file() {
            return Err(Refusal::NotRegular);
        }
        if !owners.contains(&found.stat.st_uid) {
            return Err(Refusal::OtherOwner);
        }
        found.open(limit)
    }

    /// Opens a file by its name, if the file has the device and inode of `id`.
    ///
    /// # Errors
    /// The reason, if the file is refused.
    pub fn open_exact(&self, path: &Path, id: FileId) -> Result<File, Refusal> {
        let found = self.find(path)?;
        if found.id() == id { found.open(MAX_ELF_BYTES) } else { Err(Refusal::OtherFile) }
    }

    /// Opens a file by its name in `maps` or in a record of a mapping, if the name still denotes
    /// the file `id`. `deleted` is true if the kernel has marked the name as deleted.
    ///
    /// # Errors
    /// The reason, if the file is refused.
    pub fn open_mapped(&self, path: &Path, id: FileId, deleted: bool) -> Result<File, Refusal> {
        let found = self.find(path)?;
        if self.is_mapped(&found, id, deleted) {
            found.open(MAX_ELF_BYTES)
        } else {
            Err(Refusal::OtherFile)
        }
    }

    /// Returns true if a found file is the mapped one, by the rules in the table of the module
    /// documentation.
    fn is_mapped(&self, found: &FoundFile, id: FileId, deleted: bool) -> bool {
        if found.id() == id {
            return true;
        }
        if found.is_on_overlay() {
            // Without a PID, `self` is the root of pagewise, and the mapped file may lie in another
            // root. The inodes must then be equal.
            return !deleted && (self.pid.is_some() || found.id().inode == id.inode);
        }
        found.id().inode == id.inode && self.file_system(found) == Some(id.device)
    }

    /// Returns the device of the mount that contains a found file. `maps` shows the same device.
    fn file_system(&self, found: &FoundFile) -> Option<Device> {
        let fd = found.handle.as_fd().as_raw_fd();
        let text = root::read_all(Path::new(&format!("/proc/self/fdinfo/{fd}"))).ok()?;
        let text = String::from_utf8_lossy(&text);
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let id: u64 = id.trim().parse().ok()?;
        let mounts = self.mounts.get_or_init(|| {
            let own = root::read_all(Path::new("/proc/self/mountinfo")).unwrap_or_default();
            let theirs =
                self.pid.as_ref().and_then(|(root, pid)| root.read(*pid, "mountinfo").ok());
            let mut mounts = mountinfo::parse(&own);
            mounts.extend(mountinfo::parse(&theirs.unwrap_or_default()));
            mounts
        });
        mounts.iter().find(|mount| mount.id == id).map(|mount| mount.device)
    }

    fn resolve(&self, path: &Path, last: LastLink) -> Result<FoundFile, Refusal> {
        // The names of mappings without a file do not begin with `/`.
        let within = path.strip_prefix("/").map_err(|_| Refusal::Missing)?;
        if within.as_os_str().is_empty() {
            return Err(Refusal::NotRegular);
        }
        let last_flag = if last == LastLink::Refused { OFlags::NOFOLLOW } else { OFlags::empty() };
        let flags = OFlags::PATH | OFlags::CLOEXEC | last_flag;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match rustix::fs::openat2(&self.folder, within, flags, Mode::empty(), how) {
                Ok(handle) => return FoundFile::new(handle),
                // A component of the path was renamed during the resolution.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOSYS | Errno::PERM) => return self.walk(within),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::Io(Errno::AGAIN.into()))
    }

    /// Opens one component of the path after another. Returns an error if a component is a link.
    fn walk(&self, within: &Path) -> Result<FoundFile, Refusal> {
        let mut components = Vec::new();
        for component in within.components() {
            match component {
                Component::Normal(name) => components.push(name),
                Component::CurDir => {}
                _ => return Err(Refusal::Missing),
            }
        }
        let (file, folders) = components.split_last().ok_or(Refusal::Missing)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut at: Option<OwnedFd> = None;
        for folder in folders {
            let from = at.as_ref().unwrap_or(&self.folder);
            let flags = flags | OFlags::DIRECTORY;
            at = Some(rustix::fs::openat(from, *folder, flags, Mode::empty())?);
        }
        let from = at.as_ref().unwrap_or(&self.folder);
        FoundFile::new(rustix::fs::openat(from, *file, flags, Mode::empty())?)
    }
}

/// The name in `maps` as a path; `None` if it is not a path.
pub fn path(mapping: &Mapping) -> Option<&Path> {
    let path = Path::new(OsStr::from_bytes(mapping.path()));
    path.is_absolute().then_some(path)
}

/// Opens the file of a mapping.
///
/// # Errors
/// The reason, if the file is refused.
pub fn open_mapped(root: &ProcRoot, pid: Pid, mapping: &Mapping) -> Result<File, Refusal> {
    let id = FileId::of_mapping(mapping);
    open_range(root, pid, mapping.range, id).or_else(|_| {
        let path = path(mapping).ok_or(Refusal::Missing)?;
        TargetRoot::of_process(root, pid)?.open_mapped(path, id, mapping.is_deleted())
    })
}

/// Opens the file that is mapped at exactly this address range, if the file still has the inode of
/// `id`.
///
/// # Errors
/// The reason, if the file is refused: most often [`Refusal::NotPermitted`].
pub fn open_range(
    root: &ProcRoot,
    pid: Pid,
    range: AddrRange,
    id: FileId,
) -> Result<File, Refusal> {
    let link = root.file(pid, "map_files").join(range.to_string());
    let found = through(&link)?;
    // The range may map another file by now. On an overlay, `stat` may return another inode than
    // `maps`.
    if found.id().inode != id.inode && !found.is_on_overlay() {
        return Err(Refusal::OtherFile);
    }
    found.open(MAX_ELF_BYTES)
}

/// Opens the program that a process runs.
///
/// # Errors
/// The reason, if the file is refused.
pub fn open_program(root: &ProcRoot, pid: Pid) -> Result<File, Refusal> {
    through(&root.file(pid, "exe"))?.open(MAX_ELF_BYTES)
}

/// Opens the program that a process runs, if the program is the file `id`.
///
/// # Errors
/// The reason, if the file is refused.
pub fn open_program_if(root: &ProcRoot, pid: Pid, id: FileId) -> Result<File, Refusal> {
    let found = through(&root.file(pid, "exe"))?;
    let is_it = TargetRoot::of_process(root, pid)?.is_mapped(&found, id, true);
    if is_it { found.open(MAX_ELF_BYTES) } else { Err(Refusal::OtherFile) }
}

/// Opens a file that the user named. Links are followed, and only a regular file is opened.
///
/// # Errors
/// The reason, if the file is refused.
pub fn open_regular(path: &Path, limit: u64) -> Result<File, Refusal> {
    through(path)?.open(limit)
}

/// Finds the file of a name that the kernel or the user provided. Links are followed.
fn through(path: &Path) -> Result<FoundFile, Refusal> {
    FoundFile::new(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use pagewise_model::mapping::{Prot, Sharing};
    use pagewise_model::{Absent, Name};
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

    use super::*;

    /// Counts how often files are opened; `O_PATH` does not count.
    struct CountedOpens(OwnedFd);

    impl CountedOpens {
        fn watch(paths: &[&Path]) -> CountedOpens {
            let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
            for path in paths {
                inotify::add_watch(&watch, *path, WatchFlags::OPEN).unwrap();
            }
            CountedOpens(watch)
        }

        fn any(&self) -> bool {
            let mut bytes = [0_u8; 4096];
            rustix::io::read(&self.0, &mut bytes).is_ok_and(|read| read > 0)
        }
    }

    fn fifo(path: &Path) {
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
    }

    fn id_of(path: &Path) -> FileId {
        through(path).unwrap().id()
    }

    fn mapping_of(path: &Path, id: FileId) -> Mapping {
        Mapping {
            range: AddrRange { start: 0x1000, end: 0x2000 },
            prot: Prot { read: true, write: false, exec: true },
            sharing: Sharing::Private,
            offset: 0,
            device: id.device,
            inode: id.inode,
            name: Name::new(path.as_os_str().as_bytes()),
            on_tmpfs: false,
            smaps: Err(Absent::NeverScheduled),
            pages: Err(Absent::NeverScheduled),
        }
    }

    #[test]
    fn a_fifo_is_refused_at_once_and_never_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libc.so.6");
        fifo(&path);
        let opened = CountedOpens::watch(&[&path]);
        let root = TargetRoot::own().unwrap();
        assert!(matches!(root.open(&path, u64::MAX), Err(Refusal::NotRegular)));
        let mapped = open_mapped(
            &ProcRoot::live(),
            Pid(std::process::id()),
            &mapping_of(&path, id_of(&path)),
        );
        assert!(matches!(mapped, Err(Refusal::NotRegular)), "{mapped:?}");
        assert!(matches!(open_regular(&path, u64::MAX), Err(Refusal::NotRegular)));
        assert!(root.walk(path.strip_prefix("/").unwrap()).unwrap().open(u64::MAX).is_err());
        assert!(!opened.any());
    }

    #[test]
    fn a_link_leads_nowhere_outside_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("root");
        fs::create_dir_all(inside.join("etc")).unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, b"of the host").unwrap();
        symlink(&secret, inside.join("absolute")).unwrap();
        symlink("../../secret", inside.join("relative")).unwrap();
        symlink("/dev/zero", inside.join("device")).unwrap();
        symlink("/proc/self/exe", inside.join("magic")).unwrap();
        symlink("/etc/own", inside.join("link")).unwrap();
        fs::write(inside.join("etc/own"), b"its own").unwrap();
        let root = TargetRoot::at(&inside).unwrap();
        let opens_any = || {
            let opened = CountedOpens::watch(&[&secret, Path::new("/dev/zero")]);
            for name in ["/absolute", "/relative", "/device", "/magic", "/../../secret", "/etc"] {
                assert!(root.open(Path::new(name), u64::MAX).is_err(), "{name}");
            }
            opened.any()
        };
        // Other programs open the device, too. In at least one of 100 attempts, they do not open
        // it.
        assert!((0..100).any(|_| !opens_any()));
        assert_eq!(
            io::read_to_string(root.open(Path::new("/link"), 10).unwrap()).unwrap(),
            "its own"
        );
        // Without `openat2` no link at all is followed.
        for name in ["absolute", "link", "../secret", "magic"] {
            let found = root.walk(Path::new(name)).and_then(|found| found.open(u64::MAX));
            assert!(found.is_err(), "{name}");
        }
        let found = root.walk(Path::new("etc/own")).unwrap().open(10).unwrap();
        assert_eq!(io::read_to_string(found).unwrap(), "its own");
    }

    #[test]
    fn an_equal_inode_on_another_device_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"text").unwrap();
        let root = TargetRoot::own().unwrap();
        let id = id_of(&path);
        assert!(root.open_mapped(&path, id, false).is_ok());
        if root.find(&path).unwrap().is_on_overlay() {
            return;
        }
        let other = FileId { device: Device { major: 0, minor: 0xfffff }, ..id };
        assert!(matches!(root.open_mapped(&path, other, false), Err(Refusal::OtherFile)));
        let other = FileId { inode: id.inode + 1, ..id };
        assert!(matches!(root.open_mapped(&path, other, false), Err(Refusal::OtherFile)));
    }

    #[test]
    fn the_device_of_the_mount_is_the_one_in_maps() {
        let exe = fs::read_link("/proc/self/exe").unwrap();
        let text = ProcRoot::live().read(Pid(std::process::id()), "maps").unwrap();
        let mappings = crate::maps::parse(&text).mappings;
        let mapping = mappings.iter().find(|it| path(it) == Some(&exe)).unwrap();
        let root = TargetRoot::of_process(&ProcRoot::live(), Pid(std::process::id())).unwrap();
        let found = root.find(&exe).unwrap();
        if !found.is_on_overlay() {
            assert_eq!(root.file_system(&found), Some(mapping.device));
        }
        assert!(root.is_mapped(&found, FileId::of_mapping(mapping), false));
        assert!(open_mapped(&ProcRoot::live(), Pid(std::process::id()), mapping).is_ok());
        let id = FileId::of_mapping(mapping);
        assert!(open_program_if(&ProcRoot::live(), Pid(std::process::id()), id).is_ok());
    }

    #[test]
    fn a_file_has_at_most_the_size_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hole");
        File::create(&path).unwrap().set_len(300 << 30).unwrap();
        let root = TargetRoot::own().unwrap();
        let refused = root.open(&path, MAX_ELF_BYTES);
        let expected = (300 << 30, MAX_ELF_BYTES);
        assert!(
            matches!(refused, Err(Refusal::TooLarge { bytes, limit }) if (bytes, limit) == expected)
        );
    }

    #[test]
    fn a_file_that_this_process_has_locked_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        keep_locks_of(vec![path.clone()]);
        fs::write(&path, b"text").unwrap();
        fs::hard_link(&path, &link).unwrap();
        let opened = CountedOpens::watch(&[&path]);
        for name in [&path, &link] {
            assert!(matches!(open_regular(name, 10), Err(Refusal::Locked)));
        }
        assert!(!opened.any());
        keep_locks_of(Vec::new());
        assert!(open_regular(&path, 10).is_ok());
    }

    #[test]
    fn a_file_of_another_owner_or_behind_a_link_is_refused_where_that_matters() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, b"text").unwrap();
        symlink(&path, &link).unwrap();
        let (root, own) = (TargetRoot::own().unwrap(), rustix::process::geteuid().as_raw());
        assert!(root.open_owned(&path, &[own], 4).is_ok());
        assert!(matches!(root.open_owned(&path, &[own + 1], 4), Err(Refusal::OtherOwner)));
        assert!(matches!(root.open_owned(&link, &[own], 4), Err(Refusal::NotRegular)));
        assert!(root.open(&link, 4).is_ok());
    }

    #[test]
    fn names_that_are_not_paths_are_missing() {
        let root = TargetRoot::own().unwrap();
        for name in ["", "[vdso]", "anon_inode:[perf_event]", "etc/passwd", "/"] {
            assert!(root.open(&PathBuf::from(name), u64::MAX).is_err(), "{name}");
        }
    }
}
