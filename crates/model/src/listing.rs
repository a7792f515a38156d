//! Every process of a machine in one line each: what `ps` shows.

use serde::{Deserialize, Serialize};

use crate::machine::ReadMethod;
use crate::reading::plain;
use crate::{Absent, Bytes, Name, Pid, Quadrant, Reading};

/// Every process that was there while the listing was made.
///
/// Not atomic: processes are read one after the other, so a page handed on meanwhile can count
/// twice or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The processes, by pid. Those that could not be read are among them, with the reason in
    /// [`ProcessSummary::memory`].
    pub processes: Vec<ProcessSummary>,
    /// Number of kernel threads left out: they have no memory of their own.
    pub kernel_threads: u64,
    /// Number of processes that ended before any of their files was read.
    pub vanished: u64,
    /// Number of processes that are hidden: `/proc` is mounted with `hidepid`.
    #[serde(default)]
    pub hidden: u64,
    /// `MemTotal`.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// Duration of the reading.
    pub took_ns: u64,
    /// The longest single system call that may have held a target's mmap lock, over all of them.
    #[serde(with = "plain")]
    pub longest_hold_ns: Reading<u64>,
}

/// One process of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSummary {
    /// Its id.
    pub pid: Pid,
    /// `comm`: at most 15 bytes.
    pub name: Name,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub state: char,
    /// Real user id.
    pub uid: u32,
    /// The user's name, where the reader's machine knows it.
    pub user: Option<Name>,
    /// `cmdline`, one name an argument; empty for a zombie.
    #[serde(with = "plain")]
    pub command: Reading<Vec<Name>>,
    /// Target of the link `/proc/<pid>/exe`.
    #[serde(with = "plain")]
    pub exe: Reading<Name>,
    /// Its path in the hierarchy of the memory cgroup (v1), or in the unified hierarchy (v2).
    #[serde(with = "plain")]
    pub cgroup: Reading<Name>,
    /// Method by which its memory was read; absent with the reason if it could not be read.
    #[serde(with = "plain")]
    pub memory: Reading<ReadMethod>,
    /// Bytes that only this process maps: what its end would free.
    #[serde(with = "plain")]
    pub uss: Reading<Bytes>,
    /// The proportional share: the only column whose sum over processes means something.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// The proportional share by kind of page.
    #[serde(with = "plain", default = "not_saved")]
    pub shares: Reading<PssByKind>,
    /// Resident bytes.
    #[serde(with = "plain")]
    pub rss: Reading<Bytes>,
    /// Bytes in swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Resident bytes by effective quadrant.
    pub quadrants: ByQuadrant,
}

impl ProcessSummary {
    /// True if it has ended and waits for its parent: it holds no memory.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.rss == Ok(Bytes::ZERO)
    }
}

/// Value of a field that the pagewise version of a saved listing did not read.
fn not_saved<T>() -> Reading<T> {
    Err(Absent::NotCollected("save it with this version of pagewise".into()))
}

/// The proportional share of a process by kind of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PssByKind {
    /// Anonymous pages.
    pub anonymous: Bytes,
    /// Pages of files, and of devices that map pages.
    pub file: Bytes,
    /// Pages of tmpfs and of shared anonymous memory.
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
    /// The same reading in all four.
    pub fn all(reading: Reading<Bytes>) -> ByQuadrant {
        ByQuadrant {
            private_anonymous: reading.clone(),
            shared_anonymous: reading.clone(),
            private_file: reading.clone(),
            shared_file: reading,
        }
    }

    /// Four absences for one reason.
    pub fn absent(why: &Absent) -> ByQuadrant {
        ByQuadrant::all(Err(why.clone()))
    }

    /// One of the four.
    pub const fn get(&self, quadrant: Quadrant) -> &Reading<Bytes> {
        match quadrant {
            Quadrant::PrivateAnonymous => &self.private_anonymous,
            Quadrant::SharedAnonymous => &self.shared_anonymous,
            Quadrant::PrivateFile => &self.private_file,
            Quadrant::SharedFile => &self.shared_file,
        }
    }
}
