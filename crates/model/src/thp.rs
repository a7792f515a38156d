//! The huge pages of a process and how much of them is zero; what can be done about it, and what was done.

use serde::{Deserialize, Serialize};

use crate::machine::Gap;
use crate::reading::plain;
use crate::{Absent, AddrRange, Bytes, Name, Reading};

/// Every transparent huge page that a process maps by one page-table entry.
///
/// Not atomic: pages come and go while they are looked at. Pages of the huge TLB pool are not among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// The bytes of one (`hpage_pmd_size`).
    pub huge_size: Bytes,
    /// Those mappings that have any, by address.
    pub mappings: Vec<HugeMapping>,
    /// Anonymous memory in large folios of all sizes ("mTHP").
    #[serde(with = "plain")]
    pub sizes: Reading<Vec<FolioSize>>,
    /// Which of the base pages inside were read.
    pub look: Look,
    /// How much of the process's memory was read.
    pub read: Bytes,
    /// How long that took, in nanoseconds, scans included.
    pub took_ns: u64,
    /// The longest single system call that may have held the process's mmap lock, in nanoseconds.
    pub longest_hold_ns: u64,
    /// What could not be looked at.
    pub gaps: Vec<Gap>,
}

/// Anonymous memory in folios of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolioSize {
    /// The bytes of a folio.
    pub size: Bytes,
    /// Whether one page-table entry maps all of it; else one entry a base page does.
    pub one_entry: bool,
    /// How much of the process is resident in such folios.
    pub resident: Bytes,
    /// How much of that is base pages that are zero in every byte.
    #[serde(with = "plain")]
    pub zero: Reading<Bytes>,
}

/// How the contents of huge pages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Look {
    /// Every base page.
    Exact,
    /// So many base pages, spread evenly at random.
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
    /// Resident in huge pages of files and tmpfs. Nobody looks for zeros in them: they are the file's.
    pub file: Bytes,
    /// How many base pages of the anonymous ones were read.
    pub read: u64,
    /// How many of those are zero in every byte.
    pub zero: u64,
    /// Each anonymous huge page whose every base page was read.
    pub pages: Vec<HugePage>,
}

/// One anonymous huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePage {
    /// Its first address.
    pub start: u64,
    /// How many of its base pages are zero in every byte.
    pub zero: u32,
}

/// What to do with the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Give the zero base pages of sparse huge pages back.
    Shrink,
    /// Make huge pages of base pages that lie together.
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

/// What is to be done to a process, before anything is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What.
    pub action: Action,
    /// Where: for [`Action::Shrink`] and [`Action::Collapse`] whole huge pages.
    pub ranges: Vec<AddrRange>,
    /// Where huge pages are forbidden first, so that the kernel does not make them again.
    pub hold: Vec<AddrRange>,
    /// How much less (for [`Action::Collapse`]: how much more) will be resident, where that is known before.
    #[serde(with = "plain")]
    pub change: Reading<Bytes>,
    /// What looks alike and is left alone.
    pub spared: Bytes,
}

/// How the zero pages of a huge page can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// `process_madvise(MADV_COLD)` on one base page splits it, and the kernel maps its zero pages to the zero page.
    Split,
    /// While every thread is stopped, the process drops what is proven zero: `madvise(MADV_DONTNEED)`.
    Drop,
    /// `process_madvise(MADV_PAGEOUT)`: it goes to swap, which keeps no zeros.
    Swap,
}

impl Method {
    /// All, the gentlest first.
    pub const ALL: [Method; 3] = [Method::Split, Method::Drop, Method::Swap];

    /// The name used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            Method::Split => "split",
            Method::Drop => "drop",
            Method::Swap => "swap",
        }
    }
}

/// What was done to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// What.
    pub action: Action,
    /// How, where there is more than one way.
    pub method: Option<Method>,
    /// How many of the planned ranges were done.
    pub done: u64,
    /// How many were not, and why the first was not.
    pub failed: u64,
    /// Why the first was not.
    pub why: Option<String>,
    /// How much of the process was resident before.
    pub rss_before: Bytes,
    /// And after.
    pub rss_after: Bytes,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The longest time for which one of its threads was stopped, in nanoseconds; 0 where none was.
    pub longest_stop_ns: u64,
    /// Why huge pages are not forbidden where the plan wants it.
    pub not_held: Option<Absent>,
}
