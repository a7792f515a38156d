//! An ELF file that a process maps: its segments and sections, from its headers.

use serde::{Deserialize, Serialize};

use crate::mapping::{AddrRange, Device, MappedFileKey};
use crate::reading::plain;
use crate::{Name, Reading};

/// A mapped file and the data of its ELF headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElfObject {
    /// The device of the file.
    pub device: Device,
    /// Inode of the file.
    pub inode: u64,
    /// The name as `maps` prints it.
    pub name: Name,
    /// Present state of the file's path: the same file, another file, or no file.
    #[serde(with = "plain")]
    pub on_disk: Reading<OnDisk>,
    /// ELF headers of the file; absent with the reason if the file is not an ELF file or could not
    /// be read.
    #[serde(with = "plain")]
    pub elf: Reading<Elf>,
}

impl ElfObject {
    /// Key of the file, like [`crate::Mapping::file_key`].
    pub fn key(&self) -> MappedFileKey {
        MappedFileKey::new(self.device, self.inode, &self.name)
    }
}

/// Present state of the path of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisk {
    /// The path names the file that is mapped.
    Same,
    /// The path names another file: the mapped file was replaced, for example by a package upgrade.
    Replaced,
    /// The path does not exist: the file was deleted.
    Missing,
}

/// Headers of an ELF file. Its addresses are relative to the load bias; add the bias for addresses
/// in the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elf {
    /// Load segments (`PT_LOAD`) of the file, by address.
    pub segments: Vec<LoadSegment>,
    /// Sections that take up memory (`SHF_ALLOC`), by address; empty if the section headers were
    /// stripped.
    pub sections: Vec<ObjectSection>,
    /// Address range that the dynamic linker makes read-only after relocation (`PT_GNU_RELRO`).
    pub relro: Option<AddrRange>,
    /// True if the file is statically linked, so it needs no dynamic linker.
    pub is_static: bool,
    /// Allocator that the file contains: `jemalloc`, `mimalloc`, `tcmalloc` or `snmalloc`,
    /// recognized by well-known symbols such as `je_malloc`; `None` if the file has none of these.
    pub allocator: Option<Name>,
}

/// One load segment (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSegment {
    /// Address range in the file's addresses, with the length `p_memsz`.
    pub range: AddrRange,
    /// Offset of the segment's bytes in the file.
    pub offset: u64,
    /// Number of bytes in the file (`p_filesz`). The rest of the range is zero-filled.
    pub file_size: u64,
    /// True if the segment is readable (`PF_R`).
    pub read: bool,
    /// True if the segment is writable (`PF_W`).
    pub write: bool,
    /// True if the segment is executable (`PF_X`).
    pub exec: bool,
}

/// One section that takes up memory (`SHF_ALLOC`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSection {
    /// Name of the section: `.text`.
    pub name: Name,
    /// Address range in the file's addresses.
    pub range: AddrRange,
    /// Offset of the section's bytes in the file; meaningless for `.bss`.
    pub offset: u64,
    /// True if the section has no bytes in the file (`SHT_NOBITS`): `.bss`, `.tbss`.
    pub zero_filled: bool,
    /// True if the section is thread-local (`SHF_TLS`). The address range of `.tbss` overlaps other
    /// sections and takes no memory there.
    pub thread_local: bool,
    /// True if the section is writable (`SHF_WRITE`).
    pub write: bool,
    /// True if the section contains instructions (`SHF_EXECINSTR`).
    pub exec: bool,
}
