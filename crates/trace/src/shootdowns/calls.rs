//! The timed system calls that can flush TLBs.

/// By number and name. Other calls flush too, and are identified by the functions of the kernel;
/// these are rare enough to record each.
const CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_brk, "brk"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_pkey_mprotect, "pkey_mprotect"),
    (libc::SYS_madvise, MADVISE),
    (libc::SYS_process_madvise, PROCESS_MADVISE),
    (libc::SYS_shmdt, "shmdt"),
    (libc::SYS_remap_file_pages, "remap_file_pages"),
    (libc::SYS_mbind, "mbind"),
    (libc::SYS_migrate_pages, "migrate_pages"),
    (libc::SYS_move_pages, "move_pages"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_execve, "execve"),
    (libc::SYS_execveat, "execveat"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_fork, "fork"),
];

const MADVISE: &str = "madvise";
const PROCESS_MADVISE: &str = "process_madvise";

/// The name of one of them.
pub(super) fn name(number: u64) -> Option<&'static str> {
    let number = libc::c_long::try_from(number).ok()?;
    CALLS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Index of the argument that is the `MADV_*` advice of a call.
pub(super) fn advice(name: &str) -> Option<usize> {
    match name {
        MADVISE => Some(2),
        PROCESS_MADVISE => Some(3),
        _ => None,
    }
}

/// Filter expression that limits the tracepoint to these calls.
pub(super) fn filter() -> String {
    let tests: Vec<String> = CALLS.iter().map(|(number, _)| format!("id == {number}")).collect();
    tests.join(" || ")
}
