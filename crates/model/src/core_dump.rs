//! Facts that a core file contains and `/proc` does not: the dumped bytes, the registers, and the
//! signal that ended the process.

use serde::{Deserialize, Serialize};

use crate::mapping::AddrRange;
use crate::{Bytes, Name, Pid};

/// Properties of a core file that a [`crate::Snapshot`] does not contain: its mappings and threads
/// are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreDump {
    /// Path of the core file.
    pub file: Name,
    /// Size of the core file; if it is compressed, the size after decompression.
    pub size: Bytes,
    /// Compression of the file on disk; `None` if it is not compressed.
    pub compression: Option<CoreCompression>,
    /// Program that wrote the file, as inferred from the order of the notes.
    pub writer: CoreWriter,
    /// The load segments, by address.
    pub segments: Vec<CoreSegment>,
    /// All threads. The thread that received the signal is the first.
    pub threads: Vec<CoreThread>,
    /// The signal that ended the process; `None` if the core has none.
    pub signal: Option<CoreSignal>,
}

/// Compression of a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreCompression {
    /// Zstandard: systemd-coredump since 246.
    Zstd,
    /// LZ4 frames: systemd-coredump before 246.
    Lz4,
}

impl CoreCompression {
    /// The name used as a key and in reports.
    pub const fn key(self) -> &'static str {
        match self {
            CoreCompression::Zstd => "zstd",
            CoreCompression::Lz4 => "lz4",
        }
    }
}

/// Program that wrote a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreWriter {
    /// The kernel: one segment for each mapping, with its access rights.
    Kernel,
    /// gdb (`gcore`): no segment is executable, and even mappings without access are readable
    /// (`r`).
    Gdb,
    /// Another program.
    Unknown,
}

impl CoreWriter {
    /// The name used as a key and in reports.
    pub const fn key(self) -> &'static str {
        match self {
            CoreWriter::Kernel => "kernel",
            CoreWriter::Gdb => "gdb",
            CoreWriter::Unknown => "unknown",
        }
    }
}

/// One load segment: an address range, and the part of its bytes that the file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSegment {
    /// Addresses of the mapping (`p_memsz`).
    pub range: AddrRange,
    /// Offset of the segment's first byte in the core file.
    pub offset: u64,
    /// Bytes that the writer dumped (`p_filesz`), from the start of the range.
    pub dumped: Bytes,
    /// Bytes of the dumped part that the file contains: fewer than `dumped` if the file is
    /// truncated.
    pub held: Bytes,
}

impl CoreSegment {
    /// Addresses whose bytes the file contains.
    pub const fn held_range(&self) -> AddrRange {
        AddrRange { start: self.range.start, end: self.range.start.saturating_add(self.held.0) }
    }

    /// Addresses whose bytes the writer dumped.
    pub const fn dumped_range(&self) -> AddrRange {
        AddrRange { start: self.range.start, end: self.range.start.saturating_add(self.dumped.0) }
    }
}

/// Registers of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreThread {
    /// Thread ID, in the PID namespace of the process.
    pub tid: Pid,
    /// Signal number in the note of the thread (`pr_cursig`); 0 for none. The kernel writes the
    /// signal that ended the process into the notes of all threads.
    pub signal: u32,
    /// The instruction pointer.
    pub instruction: u64,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The base of thread-local storage.
    pub thread_pointer: u64,
}

/// The signal that a process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSignal {
    /// Thread that received the signal.
    pub tid: Pid,
    /// Signal number (`si_signo`).
    pub number: u32,
    /// Signal code (`si_code`); `None` in cores without NT_SIGINFO.
    pub code: Option<i32>,
    /// Cause of the signal.
    pub cause: SignalCause,
}

/// Cause of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalCause {
    /// A memory access to this address, or the instruction at this address.
    Address(u64),
    /// A process that sent the signal. It can be the process itself.
    Sender {
        /// PID of the sender.
        pid: Pid,
        /// User ID of the sender.
        uid: u32,
    },
    /// The kernel sent the signal, or the cause is unknown.
    Kernel,
}
