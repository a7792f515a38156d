//! Facts that a core file has and `/proc` has not: the bytes that were written, registers, and the
//! signal that ended the process.

use serde::{Deserialize, Serialize};

use crate::mapping::AddrRange;
use crate::{Bytes, Name, Pid};

/// A core file, beside the mappings and threads that a [`crate::Snapshot`] holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreDump {
    /// Its path.
    pub file: Name,
    /// Its size; of a compressed file, the size of the decompressed core.
    pub size: Bytes,
    /// Compression of the file on disk.
    pub compression: Option<CoreCompression>,
    /// The writer, as far as the order of the notes shows it.
    pub writer: CoreWriter,
    /// The load segments, by address.
    pub segments: Vec<CoreSegment>,
    /// Every thread, the one that received the signal first.
    pub threads: Vec<CoreThread>,
    /// The signal, if there was one.
    pub signal: Option<CoreSignal>,
}

/// Compression of a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreCompression {
    /// Zstandard: systemd-coredump since 246.
    Zstd,
    /// LZ4 frames: systemd-coredump before.
    Lz4,
}

impl CoreCompression {
    /// The name used as a key and in words.
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
    /// gdb (`gcore`): segments without execute rights, and `r` also for mappings without access.
    Gdb,
    /// Another program.
    Unknown,
}

impl CoreWriter {
    /// The name used as a key and in words.
    pub const fn key(self) -> &'static str {
        match self {
            CoreWriter::Kernel => "kernel",
            CoreWriter::Gdb => "gdb",
            CoreWriter::Unknown => "unknown",
        }
    }
}

/// One load segment: addresses, and the bytes that the file has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSegment {
    /// Addresses of the mapping (`p_memsz`).
    pub range: AddrRange,
    /// Offset of its first byte in the core.
    pub offset: u64,
    /// Bytes that the writer dumped (`p_filesz`), from the start of the range.
    pub dumped: Bytes,
    /// Bytes of these that the file has: fewer if the file is truncated.
    pub held: Bytes,
}

impl CoreSegment {
    /// The addresses whose bytes the file has.
    pub const fn held_range(&self) -> AddrRange {
        AddrRange { start: self.range.start, end: self.range.start.saturating_add(self.held.0) }
    }

    /// The addresses whose bytes the writer dumped.
    pub const fn dumped_range(&self) -> AddrRange {
        AddrRange { start: self.range.start, end: self.range.start.saturating_add(self.dumped.0) }
    }
}

/// Registers of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreThread {
    /// Its id, in the PID namespace of the process.
    pub tid: Pid,
    /// The signal that it was handling; 0 for none.
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
    /// The thread that received it.
    pub tid: Pid,
    /// `si_signo`
    pub number: u32,
    /// `si_code`; absent in cores without NT_SIGINFO.
    pub code: Option<i32>,
    /// Cause.
    pub cause: SignalCause,
}

/// Cause of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalCause {
    /// An access to this address, or the instruction at it.
    Address(u64),
    /// Another process, or the process itself.
    Sender {
        /// Its id.
        pid: Pid,
        /// Its user.
        uid: u32,
    },
    /// The kernel, or unknown.
    Kernel,
}
