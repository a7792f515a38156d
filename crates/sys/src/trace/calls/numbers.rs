//! The memory system calls, by number and name.

/// `AUDIT_ARCH_*` of `linux/audit.h`: the convention by which programs of this machine make system
/// calls.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
pub(super) const NATIVE: u32 = 0xc000_00f3;

/// Value for other architectures, where every program counts as not native.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
pub(super) const NATIVE: u32 = 0;

/// `map_shadow_stack` (Linux 6.6), which is missing in libc. All supported architectures have the
/// same number.
const SYS_MAP_SHADOW_STACK: libc::c_long = 453;
/// `mseal` (Linux 6.10), which is missing in libc. All supported architectures have the same
/// number.
const SYS_MSEAL: libc::c_long = 462;

/// The traced system calls: numbers and names.
pub(super) const CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_brk, "brk"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_pkey_mprotect, "pkey_mprotect"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_process_madvise, "process_madvise"),
    (libc::SYS_msync, "msync"),
    (libc::SYS_mlock, "mlock"),
    (libc::SYS_mlock2, "mlock2"),
    (libc::SYS_munlock, "munlock"),
    (libc::SYS_mlockall, "mlockall"),
    (libc::SYS_munlockall, "munlockall"),
    (libc::SYS_mincore, "mincore"),
    (SYS_MSEAL, "mseal"),
    (libc::SYS_remap_file_pages, "remap_file_pages"),
    (libc::SYS_shmget, "shmget"),
    (libc::SYS_shmat, "shmat"),
    (libc::SYS_shmdt, "shmdt"),
    (libc::SYS_shmctl, "shmctl"),
    (libc::SYS_memfd_create, "memfd_create"),
    (libc::SYS_memfd_secret, "memfd_secret"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_set_mempolicy, "set_mempolicy"),
    (libc::SYS_mbind, "mbind"),
    (libc::SYS_migrate_pages, "migrate_pages"),
    (libc::SYS_move_pages, "move_pages"),
    (SYS_MAP_SHADOW_STACK, "map_shadow_stack"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_arch_prctl, "arch_prctl"),
];

/// Name of a system call; `None` if it is not traced.
pub(super) fn name(number: u64) -> Option<&'static str> {
    let number = libc::c_long::try_from(number).ok()?;
    CALLS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Numbers of all traced system calls.
pub(super) fn all() -> impl Iterator<Item = u32> {
    CALLS.iter().filter_map(|(number, _)| u32::try_from(*number).ok())
}
