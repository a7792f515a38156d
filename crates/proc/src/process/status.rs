//! `/proc/<pid>/status`: identity of the process, and its `Vm*` lines.

use pagewise_model::process::ProcessStatus;
use pagewise_model::{Absent, Bytes, Pid, Reading};

use crate::text::{field, kilobytes, lines, number};

/// The lines of a `status` that the model contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedStatus {
    /// The memory lines.
    pub status: ProcessStatus,
    /// `NSpid`, from the outermost pid namespace to the process's own.
    pub ns_pids: Vec<Pid>,
    /// The real user id of `Uid`.
    pub uid: Option<u32>,
    /// `Threads`.
    pub threads: Option<u64>,
    /// `Kthread` (since 6.8).
    pub kernel_thread: Option<bool>,
    /// True if CAP_IPC_LOCK is effective (`CapEff`): no limit then applies to mlock.
    pub locks_freely: Option<bool>,
    /// `voluntary_ctxt_switches`, of the main thread.
    pub waits: Option<u64>,
}

/// The bit of CAP_IPC_LOCK.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Reads a whole `status`. The value of a missing or malformed line is absent.
pub fn parse(text: &[u8]) -> ParsedStatus {
    let find =
        |name: &str| lines(text).filter_map(|(_, l)| field(l)).find(|(n, _)| *n == name.as_bytes());
    let value = |name: &str| find(name).map(|(_, value)| value);
    let size = |name: &'static str, since: &'static str| -> Reading<Bytes> {
        let text = value(name).ok_or_else(|| Absent::NotInThisKernel(since.into()))?;
        kilobytes(text).map(Bytes).ok_or_else(|| Absent::NotSupported("not a size in kB".into()))
    };
    let words = |name: &str| value(name).unwrap_or_default().split(u8::is_ascii_whitespace);
    let first = |name: &str| words(name).next().and_then(number);
    ParsedStatus {
        status: ProcessStatus::from_lines(size),
        ns_pids: words("NSpid")
            .filter_map(number)
            .filter_map(|n| u32::try_from(n).ok())
            .map(Pid)
            .collect(),
        uid: first("Uid").and_then(|n| u32::try_from(n).ok()),
        threads: first("Threads"),
        kernel_thread: first("Kthread").map(|n| n == 1),
        locks_freely: value("CapEff").and_then(hexadecimal).map(|mask| mask & CAP_IPC_LOCK != 0),
        waits: first("voluntary_ctxt_switches"),
    }
}

/// The lines of a `status` that a sweep (one reading of all processes of a machine) needs, read in
/// one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatus {
    /// The real user ID of `Uid`.
    pub uid: Option<u32>,
    /// `VmHWM`.
    pub peak: Option<Bytes>,
    /// `VmRSS`.
    pub resident: Option<Bytes>,
    /// `RssAnon`.
    pub anonymous: Option<Bytes>,
    /// `RssFile`.
    pub file: Option<Bytes>,
    /// `RssShmem`.
    pub shmem: Option<Bytes>,
    /// `VmSwap`.
    pub swap: Option<Bytes>,
}

impl MemoryStatus {
    /// Reads a whole `status`. For a process without memory, the file has only the user ID of these
    /// lines.
    pub fn parse(text: &[u8]) -> MemoryStatus {
        let mut status = MemoryStatus::default();
        let size = |value| kilobytes(value).map(Bytes);
        for (name, value) in lines(text).filter_map(|(_, line)| field(line)) {
            match name {
                b"Uid" => {
                    let first = value.split(u8::is_ascii_whitespace).next();
                    status.uid = first.and_then(number).and_then(|n| u32::try_from(n).ok());
                }
                b"VmHWM" => status.peak = size(value),
                b"VmRSS" => status.resident = size(value),
                b"RssAnon" => status.anonymous = size(value),
                b"RssFile" => status.file = size(value),
                b"RssShmem" => status.shmem = size(value),
                b"VmSwap" => status.swap = size(value),
                // The lines after `Threads:` are about signals and scheduling.
                b"Threads" => break,
                _ => {}
            }
        }
        status
    }
}

/// True if SIGKILL was sent to the process, from a whole `status`.
///
/// `ShdPnd` keeps a SIGKILL of kill(2) until the process is reaped. `stat` loses the signal for a
/// moment: a thread that handles the signal clears its own pending signals before the kernel sets
/// PF_EXITING.
pub fn is_killed(text: &[u8]) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let masks = lines(text).filter_map(|(_, line)| field(line));
    masks
        .filter(|(name, _)| matches!(*name, b"SigPnd" | b"ShdPnd"))
        .any(|(_, mask)| hexadecimal(mask).is_some_and(|mask| mask & SIGKILL != 0))
}

fn hexadecimal(mask: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(mask.trim_ascii()).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_ipc_lock_is_read_from_the_effective_capabilities() {
        for (text, exempt) in [
            ("CapEff:\t0000000000004000\n", Some(true)),
            ("CapEff:\t000001ffffffffff\n", Some(true)),
            ("CapPrm:\t0000000000004000\nCapEff:\t0000000000002000\n", Some(false)),
            ("CapEff:\tx\n", None),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes()).locks_freely, exempt, "{text}");
        }
    }

    #[test]
    fn one_pass_reads_the_same_as_a_pass_for_each_line() {
        let text = std::fs::read("/proc/self/status").unwrap();
        let (all, few) = (parse(&text), MemoryStatus::parse(&text));
        assert_eq!(few.uid, all.uid);
        let status = all.status;
        for (one, other) in [
            (few.peak, &status.vm_hwm),
            (few.anonymous, &status.rss_anon),
            (few.file, &status.rss_file),
            (few.shmem, &status.rss_shmem),
            (few.swap, &status.vm_swap),
        ] {
            assert_eq!(one, other.clone().ok());
        }
    }

    #[test]
    fn a_pending_sigkill_is_that_of_a_killed_process() {
        let none = "0000000000000000";
        for (own, shared, is) in [
            (none, none, false),
            (none, "0000000000000100", true),
            ("0000000000000101", none, true),
            ("0000000000000200", "fffffffffffffeff", false),
        ] {
            let text = format!("SigQ:\t0/7\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
            assert_eq!(is_killed(text.as_bytes()), is, "{own} {shared}");
        }
        assert!(!is_killed(b"SigPnd:\tx\nSigBlk:\t0000000000000100\n"));
    }
}
