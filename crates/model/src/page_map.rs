//! The state of every page of a process, as runs of pages alike.

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::process::Process;
use crate::reading::plain;
use crate::{AddrRange, Bytes, Mapping, PageSize, Reading};

/// What is mapped at every page of some mappings.
///
/// Not atomic: pages come and go while others are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMap {
    /// Whose.
    pub process: Process,
    /// The base page size of the machine.
    pub page_size: PageSize,
    /// Which interface told the states.
    pub way: Way,
    /// Whether page frames were looked up as well: what only then is known is absent elsewhere.
    #[serde(with = "plain")]
    pub frames: Reading<()>,
    /// Whether [`PageState::soft_dirty`] means anything on this kernel.
    #[serde(with = "plain")]
    pub soft_dirty: Reading<()>,
    /// The mappings that were looked at, by address.
    pub mappings: Vec<MappedPages>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The longest single system call that may have held the process's mmap lock, in nanoseconds.
    pub longest_hold_ns: u64,
    /// What could not be looked at.
    pub gaps: Vec<Gap>,
}

/// How the page tables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The words of `pagemap`, and `PAGEMAP_SCAN` where they do not tell: huge entries and the zero page.
    Both,
    /// `PAGEMAP_SCAN` alone.
    Scan,
    /// The words of `/proc/<pid>/pagemap` alone.
    Pagemap,
}

impl Way {
    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Way::Both => "pagemap and PAGEMAP_SCAN",
            Way::Scan => "PAGEMAP_SCAN",
            Way::Pagemap => "pagemap",
        }
    }
}

/// The pages of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedPages {
    /// The mapping, without any counter.
    pub mapping: Mapping,
    /// Its pages, or that part of them that was asked for: in order, without gap or overlap, and no two neighbours alike.
    pub runs: Vec<PageRun>,
}

/// Pages in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Where.
    pub range: AddrRange,
    /// What they are.
    pub state: PageState,
}

/// What a page is. Absent details are `None`: no interface that was read tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageState {
    /// What is mapped.
    pub kind: PageKind,
    /// Mapped by a huge page-table entry.
    pub huge: Option<bool>,
    /// Written since soft-dirty bits were cleared, or since it was mapped.
    pub soft_dirty: Option<bool>,
    /// Written since it was last write-protected, where the process has that tracked (userfaultfd, asynchronous).
    pub written: Option<bool>,
    /// Mapped by no other page table.
    pub exclusive: Option<bool>,
    /// By how many page tables it is mapped.
    pub mappers: Option<u32>,
    /// Merged with equal pages of this or other processes.
    pub ksm: Option<bool>,
    /// How many base pages the folio has that it is a part of.
    pub folio: Option<u32>,
}

/// What is mapped at a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Nothing, and nothing was yet or any more.
    #[default]
    Untouched,
    /// Anonymous memory.
    Anonymous,
    /// A page of a file.
    File,
    /// A page of tmpfs, named or not.
    Shmem,
    /// The kernel's zero page: read and never written.
    Zero,
    /// Nothing: it is in swap, or on its way between NUMA nodes.
    Swapped,
    /// Nothing: a guard region (`MADV_GUARD_INSTALL`).
    Guard,
}

impl PageKind {
    /// All.
    pub const ALL: [PageKind; 7] = [
        PageKind::Untouched,
        PageKind::Anonymous,
        PageKind::File,
        PageKind::Shmem,
        PageKind::Zero,
        PageKind::Swapped,
        PageKind::Guard,
    ];

    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            PageKind::Untouched => "untouched",
            PageKind::Anonymous => "anonymous",
            PageKind::File => "file",
            PageKind::Shmem => "shmem",
            PageKind::Zero => "zero",
            PageKind::Swapped => "swapped",
            PageKind::Guard => "guard",
        }
    }

    /// Whether RES counts it.
    pub const fn is_resident(self) -> bool {
        matches!(self, PageKind::Anonymous | PageKind::File | PageKind::Shmem)
    }
}

/// Which memory a process used in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// Whose.
    pub process: Process,
    /// The mappings with every counter of `smaps`, read at the end.
    pub mappings: Vec<Mapping>,
    /// How long the interval was, in nanoseconds.
    pub interval_ns: u64,
    /// How long it took to clear the referenced bits, in nanoseconds: the process could not map memory meanwhile.
    pub clear_ns: u64,
    /// How long it took to read `smaps`, in nanoseconds.
    pub read_ns: u64,
    /// Bytes written in the interval, of each mapping in order.
    #[serde(with = "plain")]
    pub written: Reading<Vec<Bytes>>,
}
