//! A child of `fork` that uses a heap until it is killed, and reports its progress. The child does
//! not call `malloc`, because another thread may have held its locks at the fork.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number in memory that parent and child share.
pub(crate) struct SharedNumber(NonNull<AtomicU64>);

impl SharedNumber {
    pub(crate) fn new() -> SharedNumber {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address, so the call changes no existing mapping.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), 8, prot, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        SharedNumber(NonNull::new(place.cast()).unwrap())
    }

    pub(crate) fn get(&self) -> u64 {
        self.number().load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, number: u64) {
        self.number().store(number, Ordering::SeqCst);
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: the memory was mapped with this size and is unmapped only when this value is
        // dropped, and every bit pattern is a valid number.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this size.
        unsafe { libc::munmap(self.0.as_ptr().cast(), 8) };
    }
}

/// A child process. Dropping this value kills the child and waits for it.
pub(crate) struct HeapChild(libc::pid_t);

impl HeapChild {
    /// Runs `work` in a child process. The child exits with the returned status; SIGALRM ends it
    /// after a minute.
    pub(crate) fn run(work: impl FnOnce() -> i32) -> HeapChild {
        // SAFETY: the child does not call `malloc` and takes no lock before it ends.
        match unsafe { libc::fork() } {
            -1 => panic!("fork failed"),
            0 => {
                // SAFETY: the call takes a number; the default action of SIGALRM ends the process.
                unsafe { libc::alarm(60) };
                let status = work();
                // SAFETY: the call ends the process at once.
                unsafe { libc::_exit(status) }
            }
            pid => HeapChild(pid),
        }
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        self.0
    }

    /// Kills the child. Panics if the child has already ended.
    pub(crate) fn kill(self) {
        // SAFETY: the child was not waited for, so no other process has its PID.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let status = self.wait();
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        assert!(killed, "the child had ended with status {status:#x}");
        std::mem::forget(self);
    }

    /// Waits until the child ends, and returns its wait status.
    pub(crate) fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the call writes only to `status`.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(pid, self.0);
        status
    }
}

impl Drop for HeapChild {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers and accesses no memory of this process.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: the call does not write to a null status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
