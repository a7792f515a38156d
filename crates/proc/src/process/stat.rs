//! `/proc/<pid>/stat` and `/proc/<pid>/statm`.

use pagewise_model::process::Statm;
use pagewise_model::{Absent, Bytes, Name, PageSize, Pid, Reading};

use crate::ProcError;
use crate::root::PTRACE;
use crate::text::number;

/// The fields of `stat` that the model contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidStat {
    /// `comm`, the text between the first `(` and the last `)`. The name may itself contain
    /// parentheses and newlines.
    pub name: Name,
    /// The letter of the state.
    pub state: char,
    /// Process ID of the parent.
    pub parent: Pid,
    /// `PF_*` flags of the task.
    pub flags: u64,
    /// Number of page faults of all threads that needed no disk access.
    pub minor_faults: u64,
    /// Number of page faults of all threads that needed a disk access.
    pub major_faults: u64,
    /// CPU time of all threads in user mode, in clock ticks.
    pub user_ticks: u64,
    /// CPU time of all threads in the kernel, in clock ticks.
    pub system_ticks: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Size of the address space.
    pub virt: Bytes,
    /// Resident pages. Since Linux 6.2 the kernel does not add up the counters of all CPUs here, so
    /// the number can be wrong by 32 pages for each CPU. For `status` and `statm`, the kernel adds
    /// them up since Linux 6.16 (and in updated stable kernels).
    pub resident_pages: u64,
    /// The signals pending for the first thread, as bits, if the text has this field.
    pub pending: Option<u64>,
}

impl PidStat {
    /// True if the process is a zombie, or already reaped.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// True if the process has ended, is ending, or was sent SIGKILL.
    pub fn is_dying(&self) -> bool {
        /// include/linux/sched.h.
        const PF_EXITING: u64 = 4;
        const SIGKILL: u64 = 1 << (9 - 1);
        self.has_ended()
            || self.flags & PF_EXITING != 0
            || self.pending.is_some_and(|pending| pending & SIGKILL != 0)
    }

    /// True if the process is a kernel thread.
    pub fn is_kernel_thread(&self) -> bool {
        // PF_KTHREAD, include/linux/sched.h.
        self.flags & 0x0020_0000 != 0
    }
}

/// Reads a whole `stat`.
///
/// # Errors
/// [`ProcError::Parse`]
pub fn parse(text: &[u8]) -> Result<PidStat, ProcError> {
    fields(text).ok_or_else(|| ProcError::parse("stat", 1, "pid (comm) state and numbers", text))
}

/// Start of the heap: field 47 (`start_brk`), which reads 0 without the right to trace the process.
pub(crate) fn start_of_heap(text: &[u8]) -> Reading<u64> {
    let (_, rest) = name_and_rest(text).ok_or(Absent::NotSupported("no stat line".into()))?;
    let start = rest.get(47 - FIRST).copied().and_then(number);
    start.filter(|&start| start != 0).ok_or_else(|| Absent::NotPermitted(PTRACE.into()))
}

/// The first field after the name, as proc(5) counts them.
const FIRST: usize = 3;

/// The name, and the fields after it.
fn name_and_rest(text: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let open = memchr::memchr(b'(', text)?;
    let close = memchr::memrchr(b')', text)?;
    let name = text.get(open + 1..close)?;
    Some((name, text[close + 1..].trim_ascii().split(|&b| b == b' ').collect()))
}

fn fields(text: &[u8]) -> Option<PidStat> {
    let (name, rest) = name_and_rest(text)?;
    let at = |field: usize| rest.get(field - FIRST).copied();
    Some(PidStat {
        name: Name::new(name),
        state: char::from(*at(3)?.first()?),
        parent: Pid(u32::try_from(number(at(4)?)?).ok()?),
        flags: number(at(9)?)?,
        minor_faults: number(at(10)?)?,
        major_faults: number(at(12)?)?,
        user_ticks: number(at(14)?)?,
        system_ticks: number(at(15)?)?,
        threads: number(at(20)?)?,
        start_ticks: number(at(22)?)?,
        virt: Bytes(number(at(23)?)?),
        resident_pages: number(at(24)?)?,
        pending: at(31).and_then(number),
    })
}

/// Reads a whole `statm`, which counts pages.
///
/// # Errors
/// [`ProcError::Parse`]
pub fn parse_statm(text: &[u8], page_size: PageSize) -> Result<Statm, ProcError> {
    let numbers: Option<Vec<u64>> = text.trim_ascii().split(|&b| b == b' ').map(number).collect();
    match numbers.as_deref() {
        Some(&[size, resident, shared, code, _lib, data, ..]) => {
            let bytes = |pages| -> Bytes { page_size.pages(pages) };
            Ok(Statm {
                size: bytes(size),
                resident: bytes(resident),
                shared: bytes(shared),
                text: bytes(code),
                data: bytes(data),
            })
        }
        _ => Err(ProcError::parse("statm", 1, "seven numbers of pages", text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets_blanks_and_newlines() {
        let mut text = b"12 (a) S (\n)) R 7 ".to_vec();
        text.extend_from_slice(b"1 1 0 -1 4194560 5 0 6 0 0 0 0 0 20 0 3 0 99 0 0");
        let stat = parse(&text).unwrap();
        assert_eq!((stat.minor_faults, stat.major_faults), (5, 6));
        assert_eq!(stat.name, Name::new(b"a) S (\n)"));
        assert_eq!((stat.state, stat.parent, stat.threads, stat.start_ticks), ('R', Pid(7), 3, 99));
        assert!(!stat.is_kernel_thread());
    }

    #[test]
    fn a_process_that_ends_or_was_killed_is_dying() {
        let stat = |state: &str, flags: u64, pending: u64| {
            let text = format!(
                "12 (bash) {state} 7 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 {pending} 0 0 0"
            );
            parse(text.as_bytes()).unwrap()
        };
        assert_eq!(stat("S", 4_194_560, 2).pending, Some(2));
        assert!(!stat("S", 4_194_560, 2).is_dying());
        assert!(stat("S", 4_194_564, 0).is_dying(), "PF_EXITING");
        assert!(stat("R", 4_194_560, 0x100).is_dying(), "SIGKILL");
        assert!(stat("Z", 0, 0).is_dying());
    }

    #[test]
    fn a_stat_that_is_cut_off_is_an_error() {
        for cut in 0..20 {
            assert!(parse(&b"12 (bash) S 1 1 1 0 "[..cut]).is_err());
        }
    }
}
