//! Start of a command: search for its file, and a child that executes the file when it receives a
//! message.

use std::env;
use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::thread::CapabilitySet;

use super::filter::SeccompFilter;
use crate::ptrace::Tid;
use crate::system::{euid, has_capability};

/// Folders in which `execvp` of glibc searches for a program if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A program and its arguments, in the form that `execv` takes.
pub(crate) struct ExecImage {
    path: CString,
    arguments: Vec<CString>,
}

impl ExecImage {
    /// Finds the program as `execvp` does.
    ///
    /// # Errors
    /// `ENOENT`; `EACCES` if only files without execute permission have the name; an error for an
    /// argument that contains a NUL byte.
    pub(crate) fn find(program: &OsStr, arguments: &[OsString]) -> io::Result<ExecImage> {
        let words = std::iter::once(program.to_owned()).chain(arguments.iter().cloned());
        let arguments = words.map(c_string).collect::<Result<_, _>>()?;
        Ok(ExecImage { path: c_string(find(program)?.into_os_string())?, arguments })
    }

    /// Path of the file to execute.
    pub(crate) fn path(&self) -> &CString {
        &self.path
    }

    /// Pointers to the arguments, which `self` owns, and a null pointer after them.
    pub(crate) fn argv(&self) -> Vec<*const c_char> {
        let words = self.arguments.iter().map(|word| word.as_ptr());
        words.chain(std::iter::once(ptr::null())).collect()
    }

    /// True if executing the file raises privileges, which the kernel does not do under a tracer
    /// without CAP_SYS_PTRACE.
    pub(super) fn gains_privilege_untraced(&self) -> bool {
        let path = Path::new(OsStr::from_bytes(self.path.as_bytes()));
        !has_capability(CapabilitySet::SYS_PTRACE)
            && !rustix::thread::no_new_privs().unwrap_or(false)
            && !is_mounted_nosuid(path)
            && (is_set_id(path) || has_file_capabilities(path))
    }

    /// Creates a child that waits for [`Newborn::go`], installs the filter if there is one, and
    /// executes the program.
    pub(super) fn fork(&self, filter: Option<&SeccompFilter>) -> io::Result<Newborn> {
        let (ours, theirs) = UnixStream::pair()?;
        let argv = self.argv();
        // SAFETY: the child calls only async-signal-safe functions until it executes or exits, so
        // locks that other threads hold now do not matter.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => execute_when_told(&self.path, &argv, filter, ours.as_raw_fd(), theirs.as_raw_fd()),
            pid => Ok(Newborn { pid, channel: ours }),
        }
    }
}

/// A child that has not yet executed its program.
pub(super) struct Newborn {
    pub(super) pid: Tid,
    channel: UnixStream,
}

impl Newborn {
    /// Sends the child the message to execute its program.
    pub(super) fn go(&mut self) -> io::Result<()> {
        self.channel.write_all(&[0])
    }

    /// Waits for the `exec`, and returns the reason if it failed. `None` if it succeeded, or if the
    /// child was killed before.
    pub(super) fn failure(mut self) -> Option<NotExecuted> {
        let mut errno = [0; 4];
        // An `exec` closes the child's side of the channel, and so does the exit of the child.
        self.channel.read_exact(&mut errno).ok()?;
        let errno = c_int::from_ne_bytes(errno);
        let error = io::Error::from_raw_os_error(errno.saturating_abs());
        Some(if errno < 0 { NotExecuted::Filter(error) } else { NotExecuted::Program(error) })
    }
}

/// Reason why a child did not execute its program.
pub(super) enum NotExecuted {
    /// `exec` failed.
    Program(io::Error),
    /// The kernel rejected the filter.
    Filter(io::Error),
}

/// Runs in the child. It must not allocate, lock or unwind: another thread of the parent may have
/// been in one of these operations during the fork.
fn execute_when_told(
    path: &CString,
    argv: &[*const c_char],
    filter: Option<&SeccompFilter>,
    parents: RawFd,
    ours: RawFd,
) -> ! {
    // SAFETY: the parent's end is not used here; closing it lets us notice the parent's death.
    unsafe { libc::close(parents) };
    let mut word = 0_u8;
    // SAFETY: `word` is one writable byte.
    if unsafe { libc::read(ours, (&raw mut word).cast(), 1) } == 1 {
        let errno = execute(path, argv, filter).to_ne_bytes();
        // SAFETY: `errno` is four readable bytes.
        unsafe { libc::write(ours, errno.as_ptr().cast(), errno.len()) };
    }
    // SAFETY: the call ends the child without running the exit handlers of the parent.
    unsafe { libc::_exit(127) }
}

/// Executes the program. Returns only on failure: the error number of `exec`, or the negated error
/// number of the filter.
fn execute(path: &CString, argv: &[*const c_char], filter: Option<&SeccompFilter>) -> c_int {
    let errno = |error: io::Error| error.raw_os_error().unwrap_or(0);
    // SAFETY: no handler is installed. The start-up code of Rust ignores SIGPIPE, but programs
    // expect its default action.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if let Some(Err(error)) = filter.map(SeccompFilter::install) {
        return -errno(error);
    }
    // SAFETY: `path` and the strings of `argv` end with NUL, and `argv` ends with a null pointer.
    // `execvp` does not search for a path with a slash, and lets the shell run a script without a
    // `#!` line.
    unsafe { libc::execvp(path.as_ptr(), argv.as_ptr()) };
    errno(io::Error::last_os_error())
}

fn c_string(text: OsString) -> io::Result<CString> {
    Ok(CString::new(text.into_vec())?)
}

/// Finds the file of a program: `program` itself if it contains a slash, else the first executable
/// file of this name in `PATH`.
pub(super) fn find(program: &OsStr) -> io::Result<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Ok(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut found = Err(io::Error::from_raw_os_error(libc::ENOENT));
    for directory in env::split_paths(&path).filter(|_| !program.is_empty()) {
        // An empty entry is the current directory.
        let file = Path::new(".").join(directory).join(program);
        match is_executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found = Err(error),
            Err(_) => {}
        }
    }
    found
}

fn is_executable(file: &Path) -> io::Result<()> {
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?)
}

fn is_set_id(file: &Path) -> bool {
    let executed_as_group = libc::S_ISGID | libc::S_IXGRP;
    file.metadata().is_ok_and(|file| {
        (file.mode() & libc::S_ISUID != 0 && file.uid() != euid())
            || (file.mode() & executed_as_group == executed_as_group
                && file.gid() != rustix::process::getegid().as_raw())
    })
}

fn has_file_capabilities(file: &Path) -> bool {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(file, "security.capability", &mut value).is_ok()
}

fn is_mounted_nosuid(file: &Path) -> bool {
    rustix::fs::statvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID))
}
