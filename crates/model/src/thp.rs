//! The huge pages of a process and their zero-filled parts, the plan of a change to them, and its
//! result.

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::reading::plain;
use crate::{Absent, AddrRange, Bytes, Name, Reading};

/// Every transparent huge page that a process maps by one page-table entry.
///
/// Not atomic: pages come and go while they are looked at. Pages of the huge TLB pool are not among
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// The bytes of one (`hpage_pmd_size`).
    pub huge_size: Bytes,
    /// Those mappings that have any, by address.
    pub mappings: Vec<HugeMapping>,
    /// Anonymous memory in large folios of all sizes ("mTHP").
    #[serde(with = "plain")]
    pub sizes: Reading<Vec<FolioSize>>,
    /// Selection of the base pages whose contents were read.
    pub look: HugePageLook,
    /// Amount of the process's memory that was read.
    pub read: Bytes,
    /// Duration in nanoseconds, scans included.
    pub took_ns: u64,
    /// The longest single system call that may have held the process's mmap lock, in nanoseconds.
    pub longest_hold_ns: u64,
    /// Parts that could not be read.
    pub gaps: Vec<Gap>,
}

/// Anonymous memory in folios of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolioSize {
    /// The bytes of a folio.
    pub size: Bytes,
    /// True if one page-table entry maps all of it; false if each base page has an entry.
    pub one_entry: bool,
    /// Resident memory of the process in such folios.
    pub resident: Bytes,
    /// Part of it in base pages that are zero in every byte.
    #[serde(with = "plain")]
    pub zero: Reading<Bytes>,
}

/// Extent to which the contents of huge pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePageLook {
    /// Every base page.
    Exact,
    /// This number of base pages, chosen at random with equal probability.
    Sample(u64),
}

/// The huge pages of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeMapping {
    /// The whole mapping.
    pub range: AddrRange,
    /// The kernel's name of it.
    pub name: Name,
    /// Resident in anonymous huge pages.
    pub anonymous: Bytes,
    /// Resident in huge pages of files and tmpfs. They are not searched for zeros: their content is
    /// the file's.
    pub file: Bytes,
    /// Number of base pages of the anonymous huge pages that were read.
    pub read: u64,
    /// Number of those that are zero in every byte.
    pub zero: u64,
    /// Each anonymous huge page whose every base page was read.
    pub pages: Vec<HugePage>,
}

/// One anonymous huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePage {
    /// Its first address.
    pub start: u64,
    /// Number of its base pages that are zero in every byte.
    pub zero: u32,
}

/// Change to the memory of a process.
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
    /// The name used as a key.
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
    /// The change.
    pub action: Action,
    /// Ranges of the change; for [`Action::Shrink`] and [`Action::Collapse`] whole huge pages.
    pub ranges: Vec<AddrRange>,
    /// Ranges in which huge pages are forbidden first, so that the kernel does not create them
    /// again.
    pub hold: Vec<AddrRange>,
    /// Expected decrease (for [`Action::Collapse`]: increase) of resident memory, if it is known
    /// beforehand.
    #[serde(with = "plain")]
    pub change: Reading<Bytes>,
    /// Similar memory that is left unchanged.
    pub spared: Bytes,
}

/// Method of releasing the zero pages of a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixMethod {
    /// `process_madvise(MADV_COLD)` on one base page splits it, and the kernel maps its zero pages
    /// to the zero page.
    Split,
    /// While every thread is stopped, the process drops what is proven zero:
    /// `madvise(MADV_DONTNEED)`.
    Drop,
    /// `process_madvise(MADV_PAGEOUT)`: the pages go to swap, which stores no zero-filled pages.
    Swap,
}

impl FixMethod {
    /// All, the gentlest first.
    pub const ALL: [FixMethod; 3] = [FixMethod::Split, FixMethod::Drop, FixMethod::Swap];

    /// The name used as a key.
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
    /// The change.
    pub action: Action,
    /// Method, if there are several.
    pub method: Option<FixMethod>,
    /// Number of planned ranges that were changed.
    pub done: u64,
    /// Number of ranges that failed.
    pub failed: u64,
    /// Reason of the first failure.
    pub why: Option<String>,
    /// Resident memory of the process before the change.
    pub rss_before: Bytes,
    /// Resident memory of the process after the change.
    pub rss_after: Bytes,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which one of its threads was stopped, in nanoseconds; 0 where none was.
    pub longest_stop_ns: u64,
    /// Why huge pages are not forbidden where the plan wants it.
    pub not_held: Option<Absent>,
}
