//! Starts a command that waits to be traced before it becomes what it was asked to be.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr;

use rustix::pipe::PipeFlags;

use super::ptrace::Tid;

/// A command between `fork` and `exec`.
pub(super) struct Launch {
    pub(super) pid: Tid,
    go: File,
    failed: File,
}

impl Launch {
    /// Forks a child that waits for [`Launch::go`].
    pub(super) fn fork(program: &OsStr, arguments: &[OsString]) -> io::Result<Launch> {
        let words: Vec<CString> = std::iter::once(program)
            .chain(arguments.iter().map(OsString::as_os_str))
            .map(|word| CString::new(word.as_bytes()))
            .collect::<Result<_, _>>()?;
        let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(ptr::null());
        let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (failed, tell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child calls only async-signal-safe functions until it executes or exits.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => become_program(&argv, &wait, go.as_raw_fd(), &tell),
            pid => Ok(Launch { pid, go: go.into(), failed: failed.into() }),
        }
    }

    /// Lets the child become its program.
    ///
    /// # Errors
    /// What `execvp` said. The child is about to exit then; whoever called waits for it.
    pub(super) fn go(mut self) -> io::Result<()> {
        self.go.write_all(b"!")?;
        drop(self.go);
        let mut errno = [0; 4];
        // The pipe closes without a word when the program runs.
        match self.failed.read_exact(&mut errno) {
            Err(_) => Ok(()),
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
        }
    }
}

/// The child: waits for the word, and executes. Allocates nothing and locks nothing.
fn become_program(argv: &[*const libc::c_char], wait: &OwnedFd, go: RawFd, tell: &OwnedFd) -> ! {
    // SAFETY: closes our copy of the writing end, so that the read below ends if the parent dies.
    unsafe { libc::close(go) };
    let mut word = 0_u8;
    // SAFETY: reads one byte into a local that outlives the call.
    let got = unsafe { libc::read(wait.as_raw_fd(), (&raw mut word).cast(), 1) };
    if got == 1 {
        // Rust programs ignore SIGPIPE; the program that we become must not inherit that.
        // SAFETY: sets a disposition to its default; no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        // SAFETY: `argv` ends with a null pointer and its strings live in the parent's copy of memory.
        unsafe { libc::execvp(argv[0], argv.as_ptr()) };
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC).to_ne_bytes();
        // SAFETY: writes four bytes of a local; there is nobody to tell if that fails.
        unsafe { libc::write(tell.as_raw_fd(), errno.as_ptr().cast(), errno.len()) };
    }
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Why tracing would change what the program may do, where it would.
///
/// A traced program gains no privilege from its file, unless whoever traces it has CAP_SYS_PTRACE.
pub(super) fn gains_privilege(program: &OsStr) -> Option<&'static str> {
    if crate::system::has_capability(crate::system::CapabilitySet::SYS_PTRACE) {
        return None;
    }
    let path = find(program)?;
    let mode = path.metadata().ok()?.mode();
    if mode & 0o6000 != 0 {
        return Some("a set-user-ID or set-group-ID program; looking at its exit needs CAP_SYS_PTRACE");
    }
    let has_capabilities = rustix::fs::getxattr(&path, "security.capability", &mut [0_u8; 64]).is_ok();
    has_capabilities.then_some("a program with file capabilities; looking at its exit needs CAP_SYS_PTRACE")
}

/// The file that `execvp` would take.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
