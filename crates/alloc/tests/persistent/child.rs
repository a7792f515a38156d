//! A child of fork that works on a heap until it is killed, and reports its progress. It allocates
//! nothing from `malloc`, whose locks another thread may have held at the fork.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that parent and child see.
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
        // SAFETY: it was mapped with this size, is unmapped only when dropped, and zero is a
        // number.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size.
        unsafe { libc::munmap(self.0.as_ptr().cast(), 8) };
    }
}

/// A child; killed and waited for when dropped.
pub(crate) struct HeapChild(libc::pid_t);

impl HeapChild {
    /// Runs `work` in a child, which ends with what it returns, or by a signal after a minute.
    pub(crate) fn run(work: impl FnOnce() -> i32) -> HeapChild {
        // SAFETY: the child takes no memory and no lock before it ends.
        match unsafe { libc::fork() } {
            -1 => panic!("fork failed"),
            0 => {
                // SAFETY: the call takes a number; the default action ends the process.
                unsafe { libc::alarm(60) };
                let status = work();
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(status) }
            }
            pid => HeapChild(pid),
        }
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        self.0
    }

    /// Kills it. Panics where it had ended before.
    pub(crate) fn kill(self) {
        // SAFETY: the child was not waited for, so no other process has its PID.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let status = self.wait();
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        assert!(killed, "the child had ended with status {status:#x}");
        std::mem::forget(self);
    }

    /// Wait status.
    pub(crate) fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the status may be written.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(pid, self.0);
        status
    }
}

impl Drop for HeapChild {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for to its end, or it would have been forgotten.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: a null status is not written.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
