//! Reasons why a heap is not scanned.

use std::time::Duration;

use pagewise_model::Bytes;
use pagewise_proc::ProcError;
use pagewise_remote::RemoteError;

/// Reason why a process was not copied, or its heap was not walked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The process cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The threads of the process cannot be stopped.
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
        /// `MemAvailable` of `/proc/meminfo`.
        available: Bytes,
        /// Available memory that the copy must leave to other processes.
        reserve: Bytes,
    },
    /// The copy would stop, or has stopped, the process for longer than permitted.
    #[error(
        "copying {} MiB stops the process for about {} ms, more than the {} ms of --max-pause",
        mebibytes(*bytes), takes.as_millis(), limit.as_millis()
    )]
    PauseTooLong {
        /// Size of the copy.
        bytes: Bytes,
        /// Estimated or measured duration of the stop.
        takes: Duration,
        /// Maximum permitted duration of the stop.
        limit: Duration,
    },
    /// The copy would be larger than permitted.
    #[error("{} MiB would be copied, more than {} MiB", mebibytes(*bytes), mebibytes(*limit))]
    TooLarge {
        /// Size of the copy.
        bytes: Bytes,
        /// Maximum permitted size of the copy.
        limit: Bytes,
    },
    /// Forking a snapshot was refused for this process.
    #[error("the process is not made to fork a snapshot: {0}")]
    ForkRefused(String),
    /// The process grew during each attempt to copy it.
    #[error("the process grows faster than its copy can be prepared")]
    Grows,
    /// The kernel refused to read the memory of the process.
    #[error("cannot read its memory")]
    Copy(#[source] std::io::Error),
    /// The kernel refused to allocate memory for the copy.
    #[error("cannot map memory for the copy")]
    Buffer(#[source] std::io::Error),
    /// The process has no allocator that can be walked.
    #[error("{0}")]
    NoHeap(&'static str),
    /// The process has an allocator that cannot be walked.
    #[error("the heap of {allocator} cannot be walked: {why}")]
    NotWalked {
        /// Name of the allocator.
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
