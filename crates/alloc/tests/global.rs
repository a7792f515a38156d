//! `LockedTlsf` as the global allocator of a program. A memory error aborts the program with a
//! message, and a child of `fork` can allocate even if another thread held the lock at the fork.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]
#![cfg(all(feature = "os", not(miri)))]

use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use pagewise_alloc::{LockedTlsf, Os};

#[global_allocator]
static POOL: LockedTlsf<Os> = LockedTlsf::guarded(Os);

/// Environment variable of a child process that makes the memory error.
const CHILD: &str = "PAGEWISE_TEST_DOUBLE_FREE";

fn free_twice() {
    let layout = Layout::new::<[u8; 100]>();
    // SAFETY: the size of the layout is not 0.
    let block = unsafe { POOL.alloc(layout) };
    for _ in 0..2 {
        // SAFETY: the second call violates the contract on purpose: the pool must detect it.
        unsafe { POOL.dealloc(block, layout) };
    }
}

#[test]
fn a_double_free_ends_the_program_with_a_message_and_no_deadlock() {
    if std::env::var_os(CHILD).is_some() {
        return free_twice();
    }
    let name = "a_double_free_ends_the_program_with_a_message_and_no_deadlock";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").stdout(Stdio::null());
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("tlsf: 0x") && said.contains("was freed before"), "{said}");
}

#[test]
fn a_child_of_fork_allocates_while_other_threads_of_its_parent_do() {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut kept = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    kept.push(vec![1_u8; 3000]);
                    kept.truncate(50);
                }
            });
        }
        for _ in 0..30 {
            // SAFETY: the child only allocates, frees and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call takes a number; the default action of SIGALRM ends the child.
                unsafe { libc::alarm(20) };
                let blocks: Vec<Vec<u8>> = (1..50).map(|size| vec![0; size * 100]).collect();
                drop(blocks);
                // SAFETY: the call ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: the call writes only to `status`.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child could not allocate");
        }
        ends.store(true, Ordering::Relaxed);
    });
}
