//! One mapping (VMA) of a process, and its classification by sharing and by backing.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, Reading, Smaps, SmapsCounter};

/// Addresses from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddrRange {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
}

impl AddrRange {
    /// Length of the range in bytes; 0 if `end` is not above `start`.
    pub const fn len(self) -> Bytes {
        Bytes(self.end.saturating_sub(self.start))
    }

    /// True if the range contains no address.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// True if `address` is in the range.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Intersection of both ranges; `None` if it is empty.
    pub fn intersection(self, other: AddrRange) -> Option<AddrRange> {
        let both = AddrRange { start: self.start.max(other.start), end: self.end.min(other.end) };
        (!both.is_empty()).then_some(both)
    }
}

/// Writes `start-end` in lower-case hex, like `/proc/<pid>/maps`.
impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start, self.end)
    }
}

/// Access rights of a mapping: the letters `rwx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prot {
    /// True if the memory can be read (`r`).
    pub read: bool,
    /// True if the memory can be written (`w`).
    pub write: bool,
    /// True if the memory can be executed (`x`).
    pub exec: bool,
}

impl Prot {
    /// True if no access is permitted: a guard region, or reserved address space.
    pub const fn is_none(self) -> bool {
        !(self.read || self.write || self.exec)
    }
}

/// Sharing of a mapping: `MAP_PRIVATE` or `MAP_SHARED`, the letter `p` or `s` of `maps`.
///
/// It differs from `Shared_Clean` of `smaps`, which counts pages that are mapped more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Writes stay in this process; a fork copies pages on write.
    Private,
    /// Writes are visible to all processes that map the same object.
    Shared,
    /// Unknown: a core file does not record the sharing of file mappings.
    Unknown,
}

/// Backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Anonymous memory: the kernel provides zero-filled pages and reclaims them to swap.
    Anonymous,
    /// A file of any file system except tmpfs.
    File,
    /// A tmpfs object with or without a name: `MAP_SHARED|MAP_ANONYMOUS`, memfd, System V,
    /// `/dev/shm`. The kernel reclaims its pages to swap.
    Shmem,
    /// The kernel's own pages (`[vdso]`, `[vvar]`, `[vsyscall]`) and device memory.
    Special,
}

/// Combination of sharing and backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quadrant {
    /// Stack, malloc, `MAP_PRIVATE|MAP_ANONYMOUS`.
    PrivateAnonymous,
    /// `MAP_SHARED|MAP_ANONYMOUS`, System V, memfd, `/dev/shm`.
    SharedAnonymous,
    /// `MAP_PRIVATE` of a file: programs and libraries.
    PrivateFile,
    /// `MAP_SHARED` of a file.
    SharedFile,
}

impl Quadrant {
    /// The four quadrants, in the order in which reports show them.
    pub const ALL: [Quadrant; 4] = [
        Quadrant::PrivateAnonymous,
        Quadrant::SharedAnonymous,
        Quadrant::PrivateFile,
        Quadrant::SharedFile,
    ];

    /// The name used as a key: `private_anonymous` and so on.
    pub const fn key(self) -> &'static str {
        match self {
            Quadrant::PrivateAnonymous => "private_anonymous",
            Quadrant::SharedAnonymous => "shared_anonymous",
            Quadrant::PrivateFile => "private_file",
            Quadrant::SharedFile => "shared_file",
        }
    }

    /// The name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            Quadrant::PrivateAnonymous => "private anonymous",
            Quadrant::SharedAnonymous => "shared anonymous",
            Quadrant::PrivateFile => "private file",
            Quadrant::SharedFile => "shared file",
        }
    }
}

/// Major and minor number of the device that contains a mapped file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Identity of a mapped file within one process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappedFileKey {
    /// The device of the file.
    pub device: Device,
    /// Inode of the file; 0 if it is not recorded.
    pub inode: u64,
    /// Name of the file; `None` if the inode identifies the file. A core file does not record
    /// inodes.
    pub name: Option<Name>,
}

impl MappedFileKey {
    /// Creates the key of a file with these properties.
    pub fn new(device: Device, inode: u64, name: &Name) -> MappedFileKey {
        MappedFileKey { device, inode, name: (inode == 0).then(|| name.clone()) }
    }
}

/// The pages of one mapping by kind, read from the page tables. `smaps` does not split them this
/// way.
///
/// `file_exclusive` and `file_co_mapped` contain page-cache pages of files and of tmpfs.
/// [`Backing::Shmem`] distinguishes tmpfs from files. A page is *exclusive* if one page table maps
/// it, *co-mapped* if several page tables do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Resident anonymous pages that only this process maps.
    pub anon_exclusive: Bytes,
    /// Resident anonymous pages that other processes map too (after `fork`, or merged by KSM).
    pub anon_co_mapped: Bytes,
    /// Resident page-cache pages that only this process maps.
    pub file_exclusive: Bytes,
    /// Resident page-cache pages that other processes map too.
    pub file_co_mapped: Bytes,
    /// Pages whose page-table entries show that they are in swap. [`MappingPages::swap`] is absent
    /// if there may be other swapped pages.
    pub swapped: Bytes,
    /// Pages that were read but never written, so that the kernel maps its zero page. Rss excludes
    /// them.
    pub zero: Bytes,
    /// Bytes of guard regions (`MADV_GUARD_INSTALL`).
    pub guard: Bytes,
}

impl Breakdown {
    /// Sum of resident bytes: `Rss` of `smaps`.
    pub fn resident(&self) -> Bytes {
        self.anon_exclusive + self.anon_co_mapped + self.file_exclusive + self.file_co_mapped
    }

    /// Unique set size (USS): resident bytes that only this process maps. The file pages may stay
    /// in the page cache after the process ends.
    pub fn exclusive(&self) -> Bytes {
        self.anon_exclusive + self.file_exclusive
    }
}

/// Result of the page scan of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingPages {
    /// The pages by kind.
    pub breakdown: Breakdown,
    /// Proportional set size: the sum of page size divided by number of mappers, rounded down to
    /// KiB as the kernel does. The sum needs `/proc/kpagecount` (CAP_SYS_ADMIN) if any page is
    /// co-mapped.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// Anonymous part of the PSS, not rounded. The PSS of a private file mapping can contain both
    /// anonymous pages and file pages.
    #[serde(with = "plain")]
    pub pss_anon: Reading<Bytes>,
    /// Pages in swap: `Swap` of `smaps`. Page tables have no entries for swapped tmpfs pages, so
    /// the value for a [`Backing::Shmem`] mapping is known only while the machine uses no swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Anonymous memory that huge page-table entries map: `AnonHugePages` of `smaps`.
    #[serde(with = "plain")]
    pub anon_huge: Reading<Bytes>,
}

/// One mapping: a line of `/proc/<pid>/maps`, with the data about its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Address range.
    pub range: AddrRange,
    /// Access rights of the process.
    pub prot: Prot,
    /// Sharing: `p` or `s`.
    pub sharing: Sharing,
    /// Offset in the mapped file, in bytes.
    pub offset: u64,
    /// The device of the file; 0:0 if the mapping has no file.
    pub device: Device,
    /// The inode of the file; 0 if the mapping has no file.
    pub inode: u64,
    /// The name as `maps` prints it (with ` (deleted)`, and newlines as `\012`); empty if the
    /// mapping has no name.
    pub name: Name,
    /// True if the file is on tmpfs, according to `mountinfo`.
    pub on_tmpfs: bool,
    /// The entry of `smaps`. Mappings with equal entries share one value: most of 65,000 small
    /// mappings are equal.
    #[serde(with = "plain")]
    pub smaps: Reading<Arc<Smaps>>,
    /// The pages by kind, from the page tables. Mappings with equal contents share one value.
    #[serde(with = "plain")]
    pub pages: Reading<Arc<MappingPages>>,
}

impl Mapping {
    /// The name without the ` (deleted)` that `maps` appends.
    pub fn path(&self) -> &[u8] {
        let name = self.name.as_bytes();
        name.strip_suffix(b" (deleted)").unwrap_or(name)
    }

    /// True if the mapped file was deleted.
    ///
    /// Also true for an existing file whose name ends in ` (deleted)`, because `maps` prints it in
    /// the same form.
    pub fn is_deleted(&self) -> bool {
        self.path().len() != self.name.as_bytes().len()
    }

    /// Key of the mapped file; `None` if the mapping has no file.
    pub fn file_key(&self) -> Option<MappedFileKey> {
        let is_file = self.inode != 0 || self.name.as_bytes().starts_with(b"/");
        is_file.then(|| MappedFileKey::new(self.device, self.inode, &self.name))
    }

    /// Backing of the mapping.
    pub fn backing(&self) -> Backing {
        let name = self.name.as_bytes();
        let has = |prefix: &[u8]| name.starts_with(prefix);
        if name.is_empty() && self.inode == 0 {
            Backing::Anonymous
        } else if has(b"[anon_shmem:") {
            Backing::Shmem
        } else if has(b"[v") || has(b"[uprobes]") || has(b"[sigpage]") || has(b"anon_inode:") {
            Backing::Special
        } else if has(b"[") && self.inode == 0 {
            Backing::Anonymous
        } else if has(b"/dev/zero") && self.path() == b"/dev/zero" || has(b"/anon_hugepage") {
            match self.sharing {
                Sharing::Private | Sharing::Unknown => Backing::Anonymous,
                Sharing::Shared => Backing::Shmem,
            }
        } else if has(b"/SYSV") || has(b"/memfd:") || has(b"/dev/shm/") || self.on_tmpfs {
            Backing::Shmem
        } else if has(b"/dev/") || has(b"/[aio]") {
            Backing::Special
        } else {
            Backing::File
        }
    }

    /// Quadrant by the arguments of `mmap`. Private mappings of tmpfs files count as shared
    /// anonymous, because their pages are tmpfs pages. The kernel's own pages count as file pages,
    /// like in the kernel's counters. A mapping with unknown sharing counts as private.
    pub fn declared(&self) -> Quadrant {
        match (self.backing(), self.sharing) {
            (Backing::Anonymous, Sharing::Private | Sharing::Unknown) => Quadrant::PrivateAnonymous,
            (Backing::Anonymous, Sharing::Shared) | (Backing::Shmem, _) => {
                Quadrant::SharedAnonymous
            }
            (Backing::File | Backing::Special, Sharing::Private | Sharing::Unknown) => {
                Quadrant::PrivateFile
            }
            (Backing::File | Backing::Special, Sharing::Shared) => Quadrant::SharedFile,
        }
    }

    /// Length of the address range.
    pub fn size(&self) -> Bytes {
        self.range.len()
    }

    /// Value of an `smaps` counter that is a size.
    #[inline]
    pub fn counter(&self, counter: SmapsCounter) -> Reading<Bytes> {
        self.smaps.as_ref().map_err(Clone::clone)?.bytes(counter)
    }

    /// Resident bytes.
    #[inline]
    pub fn rss(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Rss, |pages| Ok(pages.breakdown.resident()))
    }

    /// Proportional set size: the sum of page size divided by number of mappers.
    #[inline]
    pub fn pss(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Pss, |pages| pages.pss.clone())
    }

    /// Bytes in swap.
    #[inline]
    pub fn swap(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Swap, |pages| pages.swap.clone())
    }

    /// Anonymous memory that huge page-table entries map.
    #[inline]
    pub fn anon_huge(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::AnonHugePages, |pages| pages.anon_huge.clone())
    }

    /// Unique set size: bytes that only this process maps.
    #[inline]
    pub fn uss(&self) -> Reading<Bytes> {
        match &self.smaps {
            Ok(smaps) => Ok(smaps.bytes(SmapsCounter::PrivateClean)?
                + smaps.bytes(SmapsCounter::PrivateDirty)?),
            Err(absent) => match &self.pages {
                Ok(pages) => Ok(pages.breakdown.exclusive()),
                Err(_) => Err(absent.clone()),
            },
        }
    }

    /// Dirty bytes: the kernel must write them to a file or to swap before it can free their pages.
    pub fn dirty(&self) -> Reading<Bytes> {
        Ok(self.counter(SmapsCounter::SharedDirty)? + self.counter(SmapsCounter::PrivateDirty)?)
    }

    /// Returns the `smaps` counter. Without `smaps`, returns the value from the page tables, or the
    /// reason why `smaps` is missing.
    #[inline]
    fn either(
        &self,
        counter: SmapsCounter,
        pages: impl Fn(&MappingPages) -> Reading<Bytes>,
    ) -> Reading<Bytes> {
        match (&self.smaps, &self.pages) {
            (Ok(smaps), _) => smaps.bytes(counter),
            (Err(_), Ok(read)) => pages(read),
            (Err(absent), Err(_)) => Err(absent.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Absent;

    fn mapping(name: &str, sharing: Sharing, inode: u64) -> Mapping {
        Mapping {
            range: AddrRange { start: 0x1000, end: 0x3000 },
            prot: Prot::default(),
            sharing,
            offset: 0,
            device: Device::default(),
            inode,
            name: name.into(),
            on_tmpfs: false,
            smaps: Err(Absent::NotCollected("".into())),
            pages: Err(Absent::NotCollected("".into())),
        }
    }

    #[test]
    fn every_kind_of_mapping_falls_in_its_quadrant() {
        use Quadrant::{PrivateAnonymous, PrivateFile, SharedAnonymous, SharedFile};
        use Sharing::{Private, Shared};
        for (name, sharing, inode, quadrant) in [
            ("", Private, 0, PrivateAnonymous),
            ("[heap]", Private, 0, PrivateAnonymous),
            ("[stack]", Private, 0, PrivateAnonymous),
            ("[anon:scudo:primary]", Private, 0, PrivateAnonymous),
            ("/dev/zero", Private, 5, PrivateAnonymous),
            ("/anon_hugepage (deleted)", Private, 9, PrivateAnonymous),
            ("/dev/zero (deleted)", Shared, 1025, SharedAnonymous),
            ("/memfd:x (deleted)", Shared, 7, SharedAnonymous),
            ("/memfd:x (deleted)", Private, 7, SharedAnonymous),
            ("/SYSV00000000 (deleted)", Shared, 0, SharedAnonymous),
            ("/dev/shm/sem.a", Shared, 3, SharedAnonymous),
            ("/usr/lib/libc.so.6", Private, 12, PrivateFile),
            ("[vdso]", Private, 0, PrivateFile),
            ("/var/lib/db", Shared, 12, SharedFile),
            ("/dev/dri/card0", Shared, 12, SharedFile),
        ] {
            assert_eq!(mapping(name, sharing, inode).declared(), quadrant, "{name}");
        }
    }

    #[test]
    fn an_unread_mapping_is_absent_not_empty() {
        assert!(mapping("", Sharing::Private, 0).rss().is_err());
    }
}
