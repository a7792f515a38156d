//! Memory of a target for reading and writing: the only interface by which pagewise writes to
//! another process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice;

use pagewise_model::Pid;
use pagewise_proc::ProcRoot;
use pagewise_sys::remote;

/// Open `/proc/PID/mem`. After `execve` it still refers to the memory of the program that was
/// running at the opening.
#[derive(Debug)]
pub struct TargetMemory {
    pid: u32,
    file: File,
}

impl TargetMemory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// `EACCES` and `EPERM` without permission to trace the process, `ENOENT` and `ESRCH` if the
    /// process has ended.
    pub(crate) fn open(pid: u32) -> io::Result<TargetMemory> {
        let path = ProcRoot::live().file(Pid(pid), "mem");
        Ok(TargetMemory { pid, file: File::options().read(true).write(true).open(path)? })
    }

    /// Writes bytes, also to pages that the program may only read or execute.
    ///
    /// # Errors
    /// `EIO` if the address is not mapped, or if the process has executed another program.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// `EIO` if the address is not mapped, `UnexpectedEof` if the process has ended or executed
    /// another program.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// Reads from an address on, until `length` bytes are read or a byte cannot be read.
    pub fn read_up_to(&self, at: u64, length: usize) -> Vec<u8> {
        /// Number of bytes that are read at a time. If a page of such a piece is unreadable, the
        /// kernel may also return none of the readable bytes before it in the piece, so pieces are
        /// small.
        const PIECE: u64 = 64 << 10;
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < bytes.len() {
            let Some(from) = at.checked_add(read as u64) else { break };
            let wanted = (PIECE - from % PIECE).min((bytes.len() - read) as u64);
            let range: Range<u64> = from..from.saturating_add(wanted);
            let count = remote::read(self.pid, slice::from_ref(&range), &mut bytes[read..]);
            let count = count.unwrap_or(0);
            read += count;
            if count as u64 != wanted {
                break;
            }
        }
        bytes.truncate(read);
        bytes
    }
}
