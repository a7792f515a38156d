//! `/proc/<pid>/status`: who the process is, and its `Vm*` lines.

use pagewise_model::process::Status;
use pagewise_model::{Absent, Bytes, Pid, Reading};

use crate::text::{field, kilobytes, lines, number};

/// The lines of a `status` that the model has a place for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The memory lines.
    pub status: Status,
    /// `NSpid`, from the outermost pid namespace to the process's own.
    pub ns_pids: Vec<Pid>,
    /// The real user id of `Uid`.
    pub uid: Option<u32>,
    /// `Threads`.
    pub threads: Option<u64>,
    /// `Kthread` (since 6.8).
    pub kernel_thread: Option<bool>,
}

/// Reads a whole `status`. A line that is missing or does not read as it should is absent.
pub fn parse(text: &[u8]) -> Parsed {
    let find =
        |name: &str| lines(text).filter_map(|(_, l)| field(l)).find(|(n, _)| *n == name.as_bytes());
    let value = |name: &str| find(name).map(|(_, value)| value);
    let size = |name: &str, since: &'static str| -> Reading<Bytes> {
        let text = value(name).ok_or_else(|| Absent::NotInThisKernel(since.into()))?;
        kilobytes(text).map(Bytes).ok_or_else(|| Absent::NotSupported("not a size in kB".into()))
    };
    let words = |name: &str| value(name).unwrap_or_default().split(u8::is_ascii_whitespace);
    let first = |name: &str| words(name).next().and_then(number);
    Parsed {
        status: Status {
            vm_peak: size("VmPeak", ""),
            vm_hwm: size("VmHWM", ""),
            vm_lck: size("VmLck", ""),
            vm_pin: size("VmPin", "3.2"),
            vm_pte: size("VmPTE", ""),
            vm_swap: size("VmSwap", "2.6.34"),
            vm_stk: size("VmStk", ""),
            rss_anon: size("RssAnon", "4.5"),
            rss_file: size("RssFile", "4.5"),
            rss_shmem: size("RssShmem", "4.5"),
            hugetlb: size("HugetlbPages", "4.4"),
        },
        ns_pids: words("NSpid")
            .filter_map(number)
            .filter_map(|n| u32::try_from(n).ok())
            .map(Pid)
            .collect(),
        uid: first("Uid").and_then(|n| u32::try_from(n).ok()),
        threads: first("Threads"),
        kernel_thread: first("Kthread").map(|n| n == 1),
    }
}
