//! Errors of a heap in a file.

use core::fmt;

use super::format::{CHUNK, NAME, ROOT_COUNT, VERSION};

/// Reason of a failed call. The heap is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PersistentError {
    /// A system call failed.
    Os {
        /// System call.
        call: &'static str,
        /// Error number, as in `errno.h`.
        errno: i32,
    },
    /// The heap is open elsewhere.
    Busy,
    /// The file is not a heap.
    Foreign,
    /// The file's format is not known to this version.
    Newer {
        /// The version of the format.
        version: u32,
    },
    /// The file is shorter than it says.
    CutOff {
        /// The bytes that it should have.
        expected: u64,
        /// The bytes that it has.
        found: u64,
    },
    /// The file was damaged, or not written by this library.
    Corrupt {
        /// Description of the problem.
        what: &'static str,
        /// Offset in the file.
        place: u64,
    },
    /// No memory for the index of the heap, which is not in the file.
    OutOfMemory,
    /// The heap has as many chunks as it may have.
    Full,
    /// The transaction changes more than the log holds.
    LogFull,
    /// The pointer is null, or not to an allocated block.
    NotABlock,
    /// The block has a name: remove the name first.
    Named,
    /// The range is not in the heap, or the pointer is not aligned for its type.
    OutOfRange,
    /// More than the 16 KiB that blocks can be aligned to.
    Alignment,
    /// The name of a root is empty, longer than 40 bytes, or has a NUL.
    Name,
    /// There are 64 roots.
    TooManyRoots,
    /// The capacity or the size of the log is 0 or too large.
    Options,
}

impl fmt::Display for PersistentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PersistentError::Os { call, errno } => write!(f, "{call} failed with errno {errno}"),
            PersistentError::Busy => {
                f.write_str("the heap is open elsewhere: close it there, or wait")
            }
            PersistentError::Foreign => f.write_str("the file is not a persistent heap"),
            PersistentError::Newer { version } => {
                write!(f, "the heap has format {version}, this library supports format {}", VERSION)
            }
            PersistentError::CutOff { expected, found } => {
                write!(f, "the heap is cut off: it has {found} bytes of {expected}")
            }
            PersistentError::Corrupt { what, place } => {
                write!(f, "the heap is damaged at byte {place}: {what} is not what was written")
            }
            PersistentError::OutOfMemory => f.write_str("no memory for the index of the heap"),
            PersistentError::Full => f.write_str("the heap is as large as it may get"),
            PersistentError::LogFull => {
                f.write_str("the transaction is larger than the heap's log")
            }
            PersistentError::NotABlock => f.write_str("no block of the heap starts there"),
            PersistentError::Named => f.write_str("the block has a name: remove the name first"),
            PersistentError::OutOfRange => {
                f.write_str("that is not in the heap, or not aligned for its type")
            }
            PersistentError::Alignment => {
                write!(f, "blocks can be aligned to {CHUNK} bytes at most")
            }
            PersistentError::Name => {
                write!(f, "the name of a root has 1 to {NAME} bytes and no NUL")
            }
            PersistentError::TooManyRoots => {
                write!(f, "the heap has {ROOT_COUNT} roots, and may have no more")
            }
            PersistentError::Options => {
                f.write_str("the capacity or the size of the log is 0 or too large")
            }
        }
    }
}

impl core::error::Error for PersistentError {}
