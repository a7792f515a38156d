//! A `/proc`: the live one, or a copied tree. Reads its files, and does not interpret them.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagewise_model::name::escape;
use pagewise_model::{Absent, Name, Pid, Reading};
use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat};
use rustix::io::Errno;

use crate::text::number;
use crate::users::Users;
use crate::{CAP_SYS_PTRACE, ProcError, stat, status};

/// The tree that processes are read from.
#[derive(Clone, Debug)]
pub struct ProcRoot {
    path: PathBuf,
    live: bool,
    held: Option<HeldProcess>,
}

/// A process whose folder is open: the folder stays bound to it, even if another process gets its
/// PID.
#[derive(Clone, Debug)]
struct HeldProcess {
    pid: Pid,
    folder: Arc<OwnedFd>,
}

impl HeldProcess {
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd()).into()
    }

    fn lives(&self) -> bool {
        let seen = accessat(&self.folder, "stat", Access::EXISTS, AtFlags::empty());
        // A process that is hidden (hidepid) exists.
        !matches!(seen, Err(Errno::NOENT | Errno::SRCH))
    }
}

impl ProcRoot {
    /// `/proc` of the running kernel.
    pub fn live() -> ProcRoot {
        ProcRoot { path: "/proc".into(), live: true, held: None }
    }

    /// Returns a copied tree: a folder with copies of files of `/proc`, such as `DIR/<pid>/smaps`.
    pub fn at(path: impl Into<PathBuf>) -> ProcRoot {
        ProcRoot { path: path.into(), live: false, held: None }
    }

    /// The same tree, with the folder of a process held open: all later reads are of the process
    /// that has this PID now. After its end they return [`ProcError::NoSuchProcess`], even if
    /// another process has the PID.
    ///
    /// Data that is not read through the tree, as by `ptrace` or `process_vm_readv`, belongs to the
    /// process if [`check`](ProcRoot::check) confirms it afterwards. For a copied tree, or a tree
    /// of another PID namespace, the function returns an unchanged copy of `self`.
    ///
    /// # Errors
    /// [`ProcError::NoSuchProcess`], [`ProcError::Io`].
    pub fn holding(&self, pid: Pid) -> Result<ProcRoot, ProcError> {
        if !self.has_our_ids() {
            return Ok(self.clone());
        }
        let path = self.path.join(pid.to_string());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| self.explain(pid, &path, error.into()))?;
        let held = HeldProcess { pid, folder: Arc::new(folder) };
        // The parent may have reaped the process in between.
        if !held.lives() {
            return Err(ProcError::NoSuchProcess { pid });
        }
        Ok(ProcRoot { held: Some(held), ..self.clone() })
    }

    /// Returns an error if a [held](ProcRoot::holding) process does not have its PID any more.
    /// Without an error, all data that was read by PID until now belongs to the process. An ended
    /// process keeps its PID until its parent has waited for it.
    ///
    /// # Errors
    /// [`ProcError::NoSuchProcess`]
    pub fn check(&self, pid: Pid) -> Result<(), ProcError> {
        match self.held(pid) {
            Some(held) if !held.lives() => Err(ProcError::NoSuchProcess { pid }),
            _ => Ok(()),
        }
    }

    fn held(&self, pid: Pid) -> Option<&HeldProcess> {
        self.held.as_ref().filter(|held| held.pid == pid)
    }

    /// Returns the path of a file through `PID/` in the tree, also for a [held](ProcRoot::holding)
    /// process, whose files are opened through its open folder.
    pub(crate) fn usual(&self, path: &Path) -> PathBuf {
        let held = self.held.as_ref();
        let inner = held.and_then(|held| Some((held.pid, path.strip_prefix(held.path()).ok()?)));
        inner.map_or_else(
            || path.to_owned(),
            |(pid, name)| self.path.join(pid.to_string()).join(name),
        )
    }

    /// Path of the tree.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the processes of the tree run, so that system calls on their PIDs are possible.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the PID of this process in the tree; `None` in a copied tree.
    pub fn ourselves(&self) -> Option<Pid> {
        let link = std::fs::read_link(self.path.join("self")).ok().filter(|_| self.live)?;
        number(link.as_os_str().as_bytes()).and_then(|n| u32::try_from(n).ok()).map(Pid)
    }

    /// True if system calls accept the PIDs of the tree: the tree is live and belongs to the PID
    /// namespace of this process.
    pub fn has_our_ids(&self) -> bool {
        self.ourselves() == Some(Pid(std::process::id()))
    }

    /// The ids of all processes, in order.
    ///
    /// # Errors
    /// [`ProcError::Io`] if the tree cannot be listed, [`ProcError::NotMounted`] if a live tree is
    /// empty.
    pub fn pids(&self) -> Result<Vec<Pid>, ProcError> {
        let ids = ids(&self.path).map_err(|e| ProcError::io(&self.path, e))?;
        if self.live && ids.is_empty() {
            return Err(ProcError::NotMounted { path: self.path.clone() });
        }
        Ok(ids)
    }

    /// The ids of a process's threads, in order.
    pub(crate) fn tids(&self, pid: Pid) -> Reading<Vec<Pid>> {
        let path = self.file(pid, "task");
        ids(&path).map_err(|e| self.absence(&path, &e))
    }

    /// Returns the thread that has the process's memory: the first thread, or another one if the
    /// first has ended (`pthread_exit` in `main`). In that case the files of the process itself are
    /// empty.
    pub fn holder(&self, pid: Pid, first_has_ended: bool, threads: u64) -> Pid {
        if !self.live || !first_has_ended || threads < 2 {
            return pid;
        }
        let lives = |tid: &Pid| {
            let stat = self.read(*tid, "stat").and_then(|text| stat::parse(&text));
            stat.is_ok_and(|stat| !stat.has_ended())
        };
        self.tids(pid).unwrap_or_default().into_iter().find(lives).unwrap_or(pid)
    }

    /// Checks that the memory of a process may be read.
    ///
    /// # Errors
    /// [`ProcError::NoAccess`], [`ProcError::NoSuchProcess`].
    pub fn check_access(&self, pid: Pid) -> Result<(), ProcError> {
        match self.open(pid, "maps") {
            Err(error @ (ProcError::NoAccess { .. } | ProcError::NoSuchProcess { .. })) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of the user who owns a process, or the user ID if this machine has no name
    /// for it.
    pub(crate) fn owner(&self, pid: Pid) -> Name {
        let status = read_all(&self.file(pid, "status")).ok();
        let status = status.map(|text| status::parse(&text).uid);
        // With `hidepid=1` only the folder is visible.
        let folder = || Some(std::fs::metadata(self.file(pid, "")).ok()?.uid());
        match status.flatten().or_else(folder) {
            Some(uid) => {
                let users = if self.live { Users::read() } else { Users::default() };
                users.name(uid).cloned().unwrap_or_else(|| uid.to_string().as_str().into())
            }
            None => "unknown".into(),
        }
    }

    /// The path of a process's file.
    pub fn file(&self, pid: Pid, name: &str) -> PathBuf {
        let folder = self.held(pid).map(HeldProcess::path);
        folder.unwrap_or_else(|| self.path.join(pid.to_string())).join(name)
    }

    /// Reads the whole file of a process.
    ///
    /// # Errors
    /// [`ProcError::NoSuchProcess`] if the process has ended, [`ProcError::NotPermitted`],
    /// [`ProcError::Io`].
    pub fn read(&self, pid: Pid, name: &str) -> Result<Vec<u8>, ProcError> {
        let path = self.file(pid, name);
        read_all(&path).map_err(|e| self.explain(pid, &path, e))
    }

    /// Reads the whole file of a process, or returns the reason why the file is missing.
    pub(crate) fn reading(&self, pid: Pid, name: &str) -> Reading<Vec<u8>> {
        let path = self.file(pid, name);
        read_all(&path).map_err(|e| self.absence(&path, &e))
    }

    /// Reads a whole file of the machine, or returns the reason why the file is missing.
    pub(crate) fn machine(&self, name: &str) -> Reading<Vec<u8>> {
        self.file_of_the_machine(&self.path.join(name))
    }

    /// Reads a whole file of `/sys`, or returns the reason why the file is missing. A copied tree
    /// has the file below `DIR/sysfs`, since `DIR/sys` is the copy of `/proc/sys`.
    pub(crate) fn sysfs(&self, name: &str) -> Reading<Vec<u8>> {
        self.file_of_the_machine(&self.sysfs_path(name))
    }

    /// Path of a file or folder of `/sys`.
    pub(crate) fn sysfs_path(&self, name: &str) -> PathBuf {
        if self.live { Path::new("/sys").join(name) } else { self.path.join("sysfs").join(name) }
    }

    fn file_of_the_machine(&self, path: &Path) -> Reading<Vec<u8>> {
        read_all(path).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) if self.live => Absent::NotInThisKernel("".into()),
            Some(Errno::PERM | Errno::ACCESS) => Absent::NotPermitted("root".into()),
            _ => self.absence(path, &error),
        })
    }

    /// Target of a symbolic link of a process.
    pub fn link(&self, pid: Pid, name: &str) -> Reading<Name> {
        let path = self.file(pid, name);
        match std::fs::read_link(&path) {
            Ok(to) => Ok(Name::new(to.as_os_str().as_bytes())),
            Err(e) => Err(self.absence(&path, &e)),
        }
    }

    /// Opens a process's file for reading, and never blocks.
    pub(crate) fn open(&self, pid: Pid, name: &str) -> Result<File, ProcError> {
        let path = self.file(pid, name);
        open(&path).map_err(|e| self.explain(pid, &path, e))
    }

    /// Converts an error on a process's file.
    pub(crate) fn explain(&self, pid: Pid, path: &Path, error: io::Error) -> ProcError {
        let gone = || match self.held(pid) {
            Some(held) => !held.lives(),
            None => !self.path.join(pid.to_string()).exists(),
        };
        match Errno::from_io_error(&error) {
            Some(Errno::SRCH) => ProcError::NoSuchProcess { pid },
            Some(Errno::NOENT) if gone() => ProcError::NoSuchProcess { pid },
            Some(Errno::PERM | Errno::ACCESS) if self.live => {
                ProcError::no_access(self, pid, CAP_SYS_PTRACE)
            }
            Some(Errno::PERM | Errno::ACCESS) => ProcError::NotPermitted { path: self.usual(path) },
            _ => ProcError::io(&self.usual(path), error),
        }
    }

    /// True if all threads of a process have ended.
    pub(crate) fn is_zombie(&self, pid: Pid) -> bool {
        let stat = read_all(&self.file(pid, "stat")).ok().and_then(|text| stat::parse(&text).ok());
        stat.is_some_and(|stat| stat.has_ended() && stat.threads < 2)
    }

    /// Converts the error of a read to the reason why the value is absent.
    fn absence(&self, path: &Path, error: &io::Error) -> Absent {
        match Errno::from_io_error(error) {
            Some(Errno::SRCH) => Absent::Vanished,
            Some(Errno::PERM | Errno::ACCESS) => Absent::NotPermitted(PTRACE.into()),
            Some(Errno::NOENT) if !self.live => Absent::NotCollected(NOT_COPIED.into()),
            Some(Errno::NOENT) if path.parent().is_some_and(|folder| !folder.exists()) => {
                Absent::Vanished
            }
            Some(Errno::NOENT)
                if self
                    .held
                    .as_ref()
                    .is_some_and(|it| path.starts_with(it.path()) && !it.lives()) =>
            {
                Absent::Vanished
            }
            Some(Errno::NOENT) => Absent::NotInThisKernel("".into()),
            _ => Absent::NotSupported(format!("{}: {error}", shown(&self.usual(path))).into()),
        }
    }
}

/// A path as it may be printed.
pub(crate) fn shown(path: &Path) -> Cow<'_, str> {
    escape(path.as_os_str().as_bytes())
}

/// Returns the names in a folder that are process or thread IDs, in order.
fn ids(folder: &Path) -> io::Result<Vec<Pid>> {
    let ids = std::fs::read_dir(folder)?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        number(name.as_bytes()).and_then(|n| u32::try_from(n).ok()).map(Pid)
    });
    let mut ids: Vec<Pid> = ids.collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Requirements for reading another process's memory map.
pub(crate) const PTRACE: &str = "the same user, or CAP_SYS_PTRACE";

/// Reason for values that a copied tree lacks.
pub(crate) const NOT_COPIED: &str = "not in the copied tree";

/// Opens a regular file for reading: all files of `/proc` are regular. For a FIFO or a device in a
/// copied tree, which could block or have no end, returns an error.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

pub(crate) fn read_all(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
