//! One mapping (VMA) of a process and the two axes that sort it: sharing and backing.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::{Bytes, Name, Reading, Smaps, SmapsCounter};

/// Addresses from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddrRange {
    /// The first address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

impl AddrRange {
    /// Length of the range in bytes; 0 if `end` is not above `start`.
    pub const fn len(self) -> Bytes {
        Bytes(self.end.saturating_sub(self.start))
    }

    /// True if the range spans nothing.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// True if `address` lies inside.
    pub const fn contains(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The part of `self` that is also in `other`, or `None`.
    pub fn intersection(self, other: AddrRange) -> Option<AddrRange> {
        let both = AddrRange { start: self.start.max(other.start), end: self.end.min(other.end) };
        (!both.is_empty()).then_some(both)
    }
}

/// `start-end` in lower-case hex, as `/proc/<pid>/maps` writes it.
impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start, self.end)
    }
}

/// Access rights of a mapping: the letters `rwx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prot {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub exec: bool,
}

impl Prot {
    /// True if no access is allowed at all: a guard, or address space held in reserve.
    pub const fn is_none(self) -> bool {
        !(self.read || self.write || self.exec)
    }
}

/// `MAP_PRIVATE` or `MAP_SHARED`: the `p` or `s` of `maps`.
///
/// Not the `Shared_Clean` of smaps, which counts pages mapped more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Writes stay in this process; a fork copies pages on write.
    Private,
    /// Writes reach whoever maps the same object.
    Shared,
    /// Not recorded: a core file has no such letter for mappings of files.
    Unknown,
}

/// Backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// No file: the kernel provides zero-filled pages and reclaims them to swap.
    Anonymous,
    /// A file on a disk (or any filesystem that is not tmpfs).
    File,
    /// tmpfs, named or not: `MAP_SHARED|MAP_ANONYMOUS`, memfd, System V, `/dev/shm`. Its pages go
    /// to swap.
    Shmem,
    /// The kernel's own pages (`[vdso]`, `[vvar]`, `[vsyscall]`) and device memory.
    Special,
}

/// Sharing x backing.
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
    /// The four, in the order they are shown.
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

    /// The name in words.
    pub const fn label(self) -> &'static str {
        match self {
            Quadrant::PrivateAnonymous => "private anonymous",
            Quadrant::SharedAnonymous => "shared anonymous",
            Quadrant::PrivateFile => "private file",
            Quadrant::SharedFile => "shared file",
        }
    }
}

/// Major and minor number of the device a mapped file lives on.
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
    /// Its inode; 0 if it is not recorded.
    pub inode: u64,
    /// Its name, if the inode is not recorded, as in a core file.
    pub name: Option<Name>,
}

impl MappedFileKey {
    /// The key of a file by its properties.
    pub fn new(device: Device, inode: u64, name: &Name) -> MappedFileKey {
        MappedFileKey { device, inode, name: (inode == 0).then(|| name.clone()) }
    }
}

/// The pages of one mapping by kind, from the page tables: what `smaps` cannot split.
///
/// `file` contains page-cache pages of files and of tmpfs alike; [`Backing::Shmem`] distinguishes
/// them. A page is *exclusive* if one page table maps it, *co-mapped* if more do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Resident anonymous pages that only this process maps.
    pub anon_exclusive: Bytes,
    /// Resident anonymous pages that others map too (after fork, or merged by KSM).
    pub anon_co_mapped: Bytes,
    /// Resident page-cache pages that only this process maps.
    pub file_exclusive: Bytes,
    /// Resident page-cache pages that others map too.
    pub file_co_mapped: Bytes,
    /// Pages in swap, as far as the page table shows them; [`MappingPages::swap`] is absent if
    /// others may exist.
    pub swapped: Bytes,
    /// Entries that point at the kernel's one zero page: read but never written; not in Rss.
    pub zero: Bytes,
    /// Guard regions (`MADV_GUARD_INSTALL`).
    pub guard: Bytes,
}

impl Breakdown {
    /// Resident bytes: what smaps calls `Rss`.
    pub fn resident(&self) -> Bytes {
        self.anon_exclusive + self.anon_co_mapped + self.file_exclusive + self.file_co_mapped
    }

    /// Bytes that would be freed if the process ended: what is called USS.
    pub fn exclusive(&self) -> Bytes {
        self.anon_exclusive + self.file_exclusive
    }
}

/// Result of the page scan of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingPages {
    /// The pages by kind.
    pub breakdown: Breakdown,
    /// Sum of page size divided by number of mappers, rounded down to KiB as the kernel does. If
    /// any page is co-mapped this needs `/proc/kpagecount`, so CAP_SYS_ADMIN.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// The anonymous part of the PSS, not rounded: co-mapped pages of a private file mapping can be
    /// anonymous or of the file.
    #[serde(with = "plain")]
    pub pss_anon: Reading<Bytes>,
    /// Pages in swap: smaps' `Swap`. Page tables forget swapped tmpfs pages, so for a
    /// [`Backing::Shmem`] mapping it is only known while the machine uses no swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
    /// Anonymous memory mapped by huge page-table entries: smaps' `AnonHugePages`.
    #[serde(with = "plain")]
    pub anon_huge: Reading<Bytes>,
}

/// One mapping: a line of `/proc/<pid>/maps`, and what is known of its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Address range.
    pub range: AddrRange,
    /// Access rights of the process.
    pub prot: Prot,
    /// `p` or `s`.
    pub sharing: Sharing,
    /// Offset into the file, in bytes.
    pub offset: u64,
    /// The device of the file; 0:0 if the mapping has no file.
    pub device: Device,
    /// The inode of the file; 0 if the mapping has no file.
    pub inode: u64,
    /// The name as `maps` prints it (` (deleted)` included, newlines as `\012`); empty if there is
    /// no name.
    pub name: Name,
    /// True if the file lives on tmpfs, from `mountinfo`.
    pub on_tmpfs: bool,
    /// The entry of `smaps`, where it was read. Mappings whose entries are alike share one value:
    /// most of 65,000 small mappings are.
    #[serde(with = "plain")]
    pub smaps: Reading<Arc<Smaps>>,
    /// The contents of the page tables, where they were read, shared in the same way.
    #[serde(with = "plain")]
    pub pages: Reading<Arc<MappingPages>>,
}

impl Mapping {
    /// The name without the ` (deleted)` that `maps` appends.
    pub fn path(&self) -> &[u8] {
        let name = self.name.as_bytes();
        name.strip_suffix(b" (deleted)").unwrap_or(name)
    }

    /// True if the file behind it has no name any more.
    ///
    /// A live file whose name ends in ` (deleted)` looks the same in `maps`.
    pub fn is_deleted(&self) -> bool {
        self.path().len() != self.name.as_bytes().len()
    }

    /// The file behind it; `None` for other memory.
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

    /// The quadrant by the arguments of `mmap`. Private tmpfs files count as shared anonymous,
    /// since their pages are; the kernel's own pages count as file pages, as the kernel does. A
    /// mapping whose sharing is unknown counts as private.
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

    /// A counter of smaps.
    #[inline]
    pub fn counter(&self, counter: SmapsCounter) -> Reading<Bytes> {
        self.smaps.as_ref().map_err(Clone::clone)?.bytes(counter)
    }

    /// Resident bytes.
    #[inline]
    pub fn rss(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Rss, |pages| Ok(pages.breakdown.resident()))
    }

    /// The proportional share: the size of each page divided by its number of mappers.
    #[inline]
    pub fn pss(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Pss, |pages| pages.pss.clone())
    }

    /// Bytes in swap.
    #[inline]
    pub fn swap(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::Swap, |pages| pages.swap.clone())
    }

    /// Anonymous memory in huge pages.
    #[inline]
    pub fn anon_huge(&self) -> Reading<Bytes> {
        self.either(SmapsCounter::AnonHugePages, |pages| pages.anon_huge.clone())
    }

    /// Bytes that only this process maps.
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

    /// Bytes that must be written somewhere before their pages can be dropped.
    pub fn dirty(&self) -> Reading<Bytes> {
        Ok(self.counter(SmapsCounter::SharedDirty)? + self.counter(SmapsCounter::PrivateDirty)?)
    }

    /// The `smaps` counter; without `smaps` the value from the page tables, or the reason why
    /// `smaps` is missing.
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
