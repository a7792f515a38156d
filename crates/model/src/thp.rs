//! Huge pages of a process with their zero-filled parts, the plan of a change to these huge pages,
//! and the result of the change.

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::reading::plain;
use crate::{Absent, AddrRange, Bytes, Name, Reading};

/// All transparent huge pages that a process maps by one page-table entry each.
///
/// Not atomic: pages appear and disappear during the scan. Pages of hugetlbfs pools are excluded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Size of a huge page in bytes (`hpage_pmd_size`).
    pub huge_size: Bytes,
    /// Mappings that contain huge pages, by address.
    pub mappings: Vec<HugeMapping>,
    /// Anonymous memory in large folios of all sizes ("mTHP").
    #[serde(with = "plain")]
    pub sizes: Reading<Vec<FolioSize>>,
    /// Selection of the base pages whose contents were read.
    pub look: HugePageLook,
    /// Bytes of the process's memory that were read.
    pub read: Bytes,
    /// Duration in nanoseconds, including the scans of page tables.
    pub took_ns: u64,
    /// Longest duration of a single system call that may have held the process's mmap lock, in
    /// nanoseconds.
    pub longest_hold_ns: u64,
    /// Parts that could not be read.
    pub gaps: Vec<Gap>,
}

/// Anonymous memory in folios of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolioSize {
    /// Size of a folio in bytes.
    pub size: Bytes,
    /// True if one page-table entry maps the whole folio; false if each base page has its own
    /// entry.
    pub one_entry: bool,
    /// Resident memory of the process in folios of this size.
    pub resident: Bytes,
    /// Part of `resident` in base pages that are zero in every byte.
    #[serde(with = "plain")]
    pub zero: Reading<Bytes>,
}

/// Selection of the base pages of huge pages whose contents are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePageLook {
    /// All base pages.
    Exact,
    /// This number of base pages, chosen at random with equal probability.
    Sample(u64),
}

/// The huge pages of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeMapping {
    /// Address range of the mapping.
    pub range: AddrRange,
    /// The kernel's name of the mapping.
    pub name: Name,
    /// Bytes in anonymous huge pages.
    pub anonymous: Bytes,
    /// Bytes in huge pages of files and tmpfs. They are not searched for zero-filled pages, because
    /// their content belongs to the file.
    pub file: Bytes,
    /// Number of base pages of the anonymous huge pages that were read.
    pub read: u64,
    /// Number of read base pages that are zero in every byte.
    pub zero: u64,
    /// Anonymous huge pages of which all base pages were read.
    pub pages: Vec<HugePage>,
}

/// One anonymous huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePage {
    /// First address of the huge page.
    pub start: u64,
    /// Number of base pages that are zero in every byte.
    pub zero: u32,
}

/// Kind of a change to the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Release the zero-filled base pages of sparse huge pages.
    Shrink,
    /// Collapse adjacent base pages into huge pages.
    Collapse,
    /// Reclaim memory that is not used.
    PageOut,
}

impl Action {
    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Action::Shrink => "shrink",
            Action::Collapse => "collapse",
            Action::PageOut => "page_out",
        }
    }
}

/// Plan of a change to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixPlan {
    /// Kind of the change.
    pub action: Action,
    /// Address ranges to change; for [`Action::Shrink`] and [`Action::Collapse`] whole huge pages.
    pub ranges: Vec<AddrRange>,
    /// Address ranges in which huge pages are forbidden before the change, so that the kernel does
    /// not create them again.
    pub hold: Vec<AddrRange>,
    /// Expected decrease of resident memory, or increase for [`Action::Collapse`]; absent if it
    /// cannot be predicted.
    #[serde(with = "plain")]
    pub change: Reading<Bytes>,
    /// Memory to which the action also applies, but which the plan leaves unchanged.
    pub spared: Bytes,
}

/// Method of releasing the zero pages of a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixMethod {
    /// `process_madvise(MADV_COLD)` on one base page splits the huge page. The kernel then maps its
    /// zero-filled base pages to the zero page.
    Split,
    /// All threads are stopped, and the process drops the pages that are verified to be zero:
    /// `madvise(MADV_DONTNEED)`.
    Drop,
    /// `process_madvise(MADV_PAGEOUT)` moves the pages to swap, which does not store zero-filled
    /// pages.
    Swap,
}

impl FixMethod {
    /// All methods, in order of their effect on the process, smallest first.
    pub const ALL: [FixMethod; 3] = [FixMethod::Split, FixMethod::Drop, FixMethod::Swap];

    /// The name used as a key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            FixMethod::Split => "split",
            FixMethod::Drop => "drop",
            FixMethod::Swap => "swap",
        }
    }
}

/// Result of a change to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Kind of the change.
    pub action: Action,
    /// Method of the change; `None` if the kind of change has only one method.
    pub method: Option<FixMethod>,
    /// Number of planned ranges that were changed.
    pub done: u64,
    /// Number of ranges whose change failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub why: Option<String>,
    /// Resident memory of the process before the change.
    pub rss_before: Bytes,
    /// Resident memory of the process after the change.
    pub rss_after: Bytes,
    /// Duration of the change in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which a thread of the process was stopped, in nanoseconds; 0 if no
    /// thread was stopped.
    pub longest_stop_ns: u64,
    /// Reason why huge pages were not forbidden in [`FixPlan::hold`]; `None` if they were.
    pub not_held: Option<Absent>,
}
