//! The state of every page of a process, as runs of pages alike.

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::process::Process;
use crate::reading::plain;
use crate::{AddrRange, Bytes, Mapping, PageSize, Reading};

/// State of every page of some mappings.
///
/// Not atomic: pages come and go while others are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMap {
    /// The process.
    pub process: Process,
    /// The base page size of the machine.
    pub page_size: PageSize,
    /// Interface that the states were read from.
    pub way: PageTableWay,
    /// `Ok` if page frames were looked up too; else the fields that need them are absent.
    #[serde(with = "plain")]
    pub frames: Reading<()>,
    /// `Ok` if [`PageState::soft_dirty`] is valid on this kernel.
    #[serde(with = "plain")]
    pub soft_dirty: Reading<()>,
    /// The mappings that were looked at, by address.
    pub mappings: Vec<MappedPages>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The longest single system call that may have held the process's mmap lock, in nanoseconds.
    pub longest_hold_ns: u64,
    /// Parts that could not be read.
    pub gaps: Vec<Gap>,
}

/// Interface by which the page tables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageTableWay {
    /// The words of `pagemap`, and `PAGEMAP_SCAN` for the rest: huge entries and the zero page.
    Both,
    /// `PAGEMAP_SCAN` alone.
    Scan,
    /// The words of `/proc/<pid>/pagemap` alone.
    Pagemap,
}

impl PageTableWay {
    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            PageTableWay::Both => "pagemap and PAGEMAP_SCAN",
            PageTableWay::Scan => "PAGEMAP_SCAN",
            PageTableWay::Pagemap => "pagemap",
        }
    }
}

/// The pages of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedPages {
    /// The mapping, without any counter.
    pub mapping: Mapping,
    /// Its pages, or that part of them that was asked for: in order, without gap or overlap, and no
    /// two neighbours alike.
    pub runs: Vec<PageRun>,
}

/// Pages in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Address range.
    pub range: AddrRange,
    /// State of each page.
    pub state: PageState,
}

/// State of a page. A field is `None` if no interface that was read provides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageState {
    /// Kind of the page.
    pub kind: PageMapKind,
    /// Mapped by a huge page-table entry.
    pub huge: Option<bool>,
    /// Written since soft-dirty bits were cleared, or since it was mapped.
    pub soft_dirty: Option<bool>,
    /// Written since it was last write-protected, where the process has that tracked (userfaultfd,
    /// asynchronous).
    pub written: Option<bool>,
    /// Mapped by no other page table.
    pub exclusive: Option<bool>,
    /// By how many page tables it is mapped.
    pub mappers: Option<u32>,
    /// Merged with equal pages of this or other processes.
    pub ksm: Option<bool>,
    /// Number of base pages of the folio that the page belongs to.
    pub folio: Option<u32>,
}

/// Kind of a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PageMapKind {
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

impl PageMapKind {
    /// All.
    pub const ALL: [PageMapKind; 7] = [
        PageMapKind::Untouched,
        PageMapKind::Anonymous,
        PageMapKind::File,
        PageMapKind::Shmem,
        PageMapKind::Zero,
        PageMapKind::Swapped,
        PageMapKind::Guard,
    ];

    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            PageMapKind::Untouched => "untouched",
            PageMapKind::Anonymous => "anonymous",
            PageMapKind::File => "file",
            PageMapKind::Shmem => "shmem",
            PageMapKind::Zero => "zero",
            PageMapKind::Swapped => "swapped",
            PageMapKind::Guard => "guard",
        }
    }

    /// True if RES counts it.
    pub const fn is_resident(self) -> bool {
        matches!(self, PageMapKind::Anonymous | PageMapKind::File | PageMapKind::Shmem)
    }
}

/// Which memory a process used in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedMemory {
    /// The process.
    pub process: Process,
    /// The mappings with every counter of `smaps`, read at the end.
    pub mappings: Vec<Mapping>,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Time to clear the referenced bits, in nanoseconds; the process could not map memory during
    /// that time.
    pub clear_ns: u64,
    /// Time to read `smaps`, in nanoseconds.
    pub read_ns: u64,
    /// Bytes written in the interval, of each mapping in order.
    #[serde(with = "plain")]
    pub written: Reading<Vec<Bytes>>,
}
