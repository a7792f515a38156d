//! Facts of the running system and of this process: page size, user, kernel, clocks, capabilities.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use rustix::thread::CapabilitySet;

/// The base page size in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// The id of the calling thread.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Number of clock ticks per second, the unit of times in `/proc/<pid>/stat`.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Effective user ID of this process.
pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The kernel's release, as `uname -r` prints it.
pub fn kernel_release() -> Vec<u8> {
    rustix::system::uname().release().to_bytes().to_vec()
}

/// Time since boot, including suspend: the clock of `starttime` in `/proc/<pid>/stat`.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

/// Seconds by which the time zone of this process is ahead of UTC at a given time; 0 if the offset
/// is unknown.
pub fn utc_offset(unix_seconds: i64) -> i64 {
    let mut parts = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are to local values that live until the call returns.
    let filled = unsafe { libc::localtime_r(&raw const unix_seconds, parts.as_mut_ptr()) };
    if filled.is_null() {
        return 0;
    }
    // SAFETY: the call filled the whole struct, since it returned its address.
    unsafe { parts.assume_init() }.tm_gmtoff
}

/// CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// True if the effective set of this process contains a capability.
///
/// Reads `/proc` if it is mounted: valgrind treats half of the bytes that `capget` returns as
/// uninitialized, and would report an error of the program that uses this library.
pub fn has_capability(capability: CapabilitySet) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    match effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) {
        Some(bits) => bits & capability.bits() == capability.bits(),
        None => {
            rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
        }
    }
}

/// True if two processes use the same address space, as after `vfork` or `clone(CLONE_VM)`.
///
/// # Errors
/// `Unsupported` if the kernel has no `kcmp`; `EPERM` without permission to trace both processes;
/// `ESRCH`.
pub fn shares_memory(one: u32, other: u32) -> std::io::Result<bool> {
    /// `KCMP_VM` of `linux/kcmp.h`.
    const MEMORY: libc::c_int = 1;
    // SAFETY: this type of comparison takes two process IDs and accesses no memory of this process.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, MEMORY, 0, 0) } {
        -1 => Err(match std::io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => {
                std::io::ErrorKind::Unsupported.into()
            }
            error => error,
        }),
        order => Ok(order == 0),
    }
}

/// Disables address space randomization for the programs that this process starts from now on
/// (`ADDR_NO_RANDOMIZE`).
///
/// # Errors
/// `EPERM` if the rules of a container forbid it.
pub fn do_not_randomize() -> std::io::Result<()> {
    /// Argument with which the call returns the flags without changing them.
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: the call takes and returns flags.
    let now = unsafe { libc::personality(ASK) };
    let flags = libc::c_ulong::from(now.cast_unsigned()) | libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
    // SAFETY: the call uses numbers only; the addresses of this program are fixed already.
    match unsafe { libc::personality(flags) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Number of bytes of swap in use on the machine.
pub fn swap_in_use() -> u64 {
    let info = rustix::system::sysinfo();
    let units = info.totalswap.saturating_sub(info.freeswap);
    u64::try_from(u128::from(units) * u128::from(info.mem_unit)).unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard limit. Returns true if the soft limit was lower.
pub fn open_more_files() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).is_ok()
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn programs_lie_at_the_same_addresses_where_that_was_asked_for() {
        if let Err(error) = do_not_randomize() {
            return skip(&Lack::Refused { call: "personality", error: &error });
        }
        let maps = || std::process::Command::new("cat").arg("/proc/self/maps").output().unwrap();
        assert_eq!(maps().stdout, maps().stdout);
    }
}
