//! Why a heap is not scanned.

use std::time::Duration;

use pagewise_model::Bytes;
use pagewise_proc::ProcError;
use pagewise_remote::RemoteError;

/// Why a process was not copied, or its heap not walked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The process cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// Its threads cannot be stopped.
    #[error("cannot stop the process")]
    Stop(#[from] RemoteError),
    /// There is too little memory for the copy.
    #[error(
        "copying its memory takes {} MiB, and the machine has {} MiB available; a reserve of {} MiB must stay free",
        mebibytes(*needed), mebibytes(*available), mebibytes(*reserve)
    )]
    NoMemory {
        /// Size of the copy.
        needed: Bytes,
        /// `MemAvailable`.
        available: Bytes,
        /// Memory that is left to others.
        reserve: Bytes,
    },
    /// The pause would be, or was, too long.
    #[error(
        "copying {} MiB stops the process for about {} ms, more than the {} ms of --max-pause",
        mebibytes(*bytes), takes.as_millis(), limit.as_millis()
    )]
    PauseTooLong {
        /// Size of the copy.
        bytes: Bytes,
        /// Duration of the pause, estimated or measured.
        takes: Duration,
        /// The longest time permitted.
        limit: Duration,
    },
    /// More memory would be copied than permitted.
    #[error("{} MiB would be copied, more than {} MiB", mebibytes(*bytes), mebibytes(*limit))]
    TooLarge {
        /// Size of the copy.
        bytes: Bytes,
        /// The most bytes permitted.
        limit: Bytes,
    },
    /// The process is not made to fork a snapshot.
    #[error("the process is not made to fork a snapshot: {0}")]
    ForkRefused(String),
    /// It grew while its copy was prepared, each time.
    #[error("the process grows faster than its copy can be prepared")]
    Grows,
    /// The kernel refused to read its memory.
    #[error("cannot read its memory")]
    Copy(#[source] std::io::Error),
    /// The kernel gave no memory for the copy.
    #[error("cannot map memory for the copy")]
    Buffer(#[source] std::io::Error),
    /// No allocator that can be walked was found.
    #[error("{0}")]
    NoHeap(&'static str),
    /// An allocator was found that cannot be walked.
    #[error("the heap of {allocator} cannot be walked: {why}")]
    NotWalked {
        /// Its name.
        allocator: &'static str,
        /// The expected data that is missing.
        why: String,
    },
    /// A saved scan cannot be opened.
    #[error("{0} is not a saved heap scan: {1}")]
    NotAScan(String, String),
}

const fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}
