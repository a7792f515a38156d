//! Why a call failed.

use core::fmt;

use super::format::{CHUNK, NAME, ROOT_COUNT, VERSION};

/// Why a call failed; the heap is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The system would not.
    Os {
        /// What it was asked.
        call: &'static str,
        /// What it said, as in `errno.h`.
        errno: i32,
    },
    /// Another has the heap open.
    Busy,
    /// The file is no heap.
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
        /// What is wrong.
        what: &'static str,
        /// Where in the file.
        place: u64,
    },
    /// No memory for what is not kept in the file.
    OutOfMemory,
    /// The heap has as many chunks as it may have.
    Full,
    /// The transaction changes more than the log holds.
    LogFull,
    /// The pointer is null, or not to a block that was taken and not freed.
    NotABlock,
    /// The block has a name: take it away first.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { call, errno } => write!(f, "{call} failed with errno {errno}"),
            Error::Busy => f.write_str("the heap is open elsewhere: close it there, or wait"),
            Error::Foreign => f.write_str("the file is not a persistent heap"),
            Error::Newer { version } => {
                write!(f, "the heap has format {version}, this library knows {}", VERSION)
            }
            Error::CutOff { expected, found } => {
                write!(f, "the heap is cut off: it has {found} bytes of {expected}")
            }
            Error::Corrupt { what, place } => {
                write!(f, "the heap is damaged at byte {place}: {what} is not what was written")
            }
            Error::OutOfMemory => f.write_str("no memory for the index of the heap"),
            Error::Full => f.write_str("the heap is as large as it may get"),
            Error::LogFull => f.write_str("the transaction is larger than the heap's log"),
            Error::NotABlock => f.write_str("no block of the heap starts there"),
            Error::Named => f.write_str("the block has a name: take it away first"),
            Error::OutOfRange => {
                f.write_str("that is not in the heap, or not aligned for its type")
            }
            Error::Alignment => write!(f, "blocks can be aligned to {CHUNK} bytes at most"),
            Error::Name => write!(f, "the name of a root has 1 to {NAME} bytes and no NUL"),
            Error::TooManyRoots => {
                write!(f, "the heap has {ROOT_COUNT} roots, and may have no more")
            }
            Error::Options => f.write_str("the capacity or the size of the log is 0 or too large"),
        }
    }
}

impl core::error::Error for Error {}
