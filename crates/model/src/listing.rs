//! All processes of a machine with their main figures: the data of `ps`.

use serde::{Deserialize, Serialize};

use crate::machine::ReadMethod;
use crate::reading::plain;
use crate::{Absent, Bytes, Name, Pid, Quadrant, Reading};

/// All processes that existed while the listing was read.
///
/// Not atomic: processes are read one after the other. A page that moves from one process to
/// another during the reading can count twice or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The processes in order of PID. They include processes that could not be read, with the
    /// reason in [`ProcessSummary::memory`].
    pub processes: Vec<ProcessSummary>,
    /// Number of kernel threads, which the listing omits because they have no memory of their own.
    pub kernel_threads: u64,
    /// Number of processes that ended before one of their files was read.
    pub vanished: u64,
    /// Number of processes that are hidden because `/proc` is mounted with `hidepid`.
    #[serde(default)]
    pub hidden: u64,
    /// `MemTotal`.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// Duration of the reading in nanoseconds.
    pub took_ns: u64,
    /// Longest duration of a single system call that may have held the mmap lock of a process, in
    /// nanoseconds.
    #[serde(with = "plain")]
    pub longest_hold_ns: Reading<u64>,
}

/// One process of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSummary {
    /// PID of the process.
    pub pid: Pid,
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// State letter of `stat`: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Real user ID.
    pub uid: u32,
    /// Name of the user; `None` if the machine of the reading has no name for the user ID.
    pub user: Option<Name>,
    /// `cmdline`, one name for each argument; empty for a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/<pid>/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Path of the process's cgroup in the hierarchy of the memory cgroup (v1), or in the unified
    /// hierarchy (v2).
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Method by which the process's memory was read; absent with the reason if it could not be
    /// read.
    #[serde(with = "plain")]
    pub memory: Reading<ReadMethod>,
    /// Bytes that only this process maps. The end of the process would free them.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// Proportional set size. Other columns count shared pages several times in a sum over
    /// processes.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// Proportional set size by page kind.
    #[serde(with = "plain", default = "not_saved")]
    pub shares: Reading<PssByKind>,
    /// Resident bytes.
    #[serde(with = "plain")]
    pub rss: Reading<Bytes>,
    /// Bytes in swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Resident bytes by effective quadrant: the quadrant by the present state of each page, not by
    /// the arguments of `mmap`.
    pub quadrants: ByQuadrant,
}

impl ProcessSummary {
    /// True if the process has ended and waits for its parent. Such a process has no memory.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.rss == Ok(Bytes::ZERO)
    }
}

/// Value of a field that a saved listing lacks, because an older version of pagewise saved it.
fn not_saved<T>() -> Reading<T> {
    Err(Absent::NotCollected("save it with this version of pagewise".into()))
}

/// Proportional set size of a process by page kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PssByKind {
    /// PSS of anonymous pages.
    pub anonymous: Bytes,
    /// PSS of pages of files, and of devices that map pages.
    pub file: Bytes,
    /// PSS of pages of tmpfs and of shared anonymous memory.
    pub shmem: Bytes,
}

/// A reading for each quadrant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByQuadrant {
    /// [`Quadrant::PrivateAnonymous`].
    #[serde(with = "plain")]
    pub private_anonymous: Reading<Bytes>,
    /// [`Quadrant::SharedAnonymous`].
    #[serde(with = "plain")]
    pub shared_anonymous: Reading<Bytes>,
    /// [`Quadrant::PrivateFile`].
    #[serde(with = "plain")]
    pub private_file: Reading<Bytes>,
    /// [`Quadrant::SharedFile`].
    #[serde(with = "plain")]
    pub shared_file: Reading<Bytes>,
}

impl ByQuadrant {
    /// The same reading for all four quadrants.
    pub fn all(reading: Reading<Bytes>) -> ByQuadrant {
        ByQuadrant {
            private_anonymous: reading.clone(),
            shared_anonymous: reading.clone(),
            private_file: reading.clone(),
            shared_file: reading,
        }
    }

    /// Four absent readings with the same reason.
    pub fn absent(why: &Absent) -> ByQuadrant {
        ByQuadrant::all(Err(why.clone()))
    }

    /// The reading of one quadrant.
    pub const fn get(&self, quadrant: Quadrant) -> &Reading<Bytes> {
        match quadrant {
            Quadrant::PrivateAnonymous => &self.private_anonymous,
            Quadrant::SharedAnonymous => &self.shared_anonymous,
            Quadrant::PrivateFile => &self.private_file,
            Quadrant::SharedFile => &self.shared_file,
        }
    }
}
