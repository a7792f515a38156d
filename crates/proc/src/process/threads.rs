//! `/proc/<pid>/task`: the name and the stack pointer of each thread.

use pagewise_model::process::Thread;
use pagewise_model::{Absent, Name, Pid, Reading};

use crate::ProcRoot;
use crate::text::LineCursor;

/// Reads every thread. One that ends meanwhile is left out.
pub fn read(root: &ProcRoot, pid: Pid) -> Reading<Vec<Thread>> {
    let tids = root.tids(pid)?;
    let thread = |tid: Pid| {
        let comm = root.reading(pid, &format!("task/{tid}/comm")).ok()?;
        let name = Name::new(comm.strip_suffix(b"\n").unwrap_or(&comm));
        let syscall = root.reading(pid, &format!("task/{tid}/syscall"));
        Some(Thread { tid, name, stack_pointer: syscall.and_then(|text| stack_pointer(&text)) })
    };
    Ok(tids.into_iter().filter_map(thread).collect())
}

/// The stack pointer of a `syscall` file: its last number but one.
///
/// # Errors
/// [`Absent::NotSupported`] for a thread that runs: its registers are in use.
pub fn stack_pointer(text: &[u8]) -> Reading<u64> {
    let mut words = text.trim_ascii().rsplit(|&b| b == b' ').skip(1);
    let hex = words.next().and_then(|word| word.strip_prefix(b"0x"));
    let pointer = hex.and_then(|digits| LineCursor::new(digits).hex());
    pointer.ok_or_else(|| Absent::NotSupported("a running thread shows no stack pointer".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_thread_shows_its_stack_pointer_and_a_running_one_does_not() {
        let blocked = b"202 0x1 0x2 0x0 0x0 0x0 0x0 0x7ffd1000 0x7f00beef\n";
        assert_eq!(stack_pointer(blocked), Ok(0x7ffd_1000));
        assert_eq!(stack_pointer(b"-1 0x7ffd2000 0x7f00beef\n"), Ok(0x7ffd_2000));
        assert!(stack_pointer(b"running\n").is_err());
        assert!(stack_pointer(b"").is_err());
    }
}
