//! An ELF file that a process maps: its segments and sections, from its headers.

use serde::{Deserialize, Serialize};

use crate::mapping::{AddrRange, Device, MappedFileKey};
use crate::reading::plain;
use crate::{Name, Reading};

/// A mapped file and what its ELF headers say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElfObject {
    /// The device of the file.
    pub device: Device,
    /// Its inode.
    pub inode: u64,
    /// The name as `maps` prints it.
    pub name: Name,
    /// Present state of its path: the same file, another file, or no file.
    #[serde(with = "plain")]
    pub on_disk: Reading<OnDisk>,
    /// Its headers; absent with the reason if the file is not ELF or could not be read.
    #[serde(with = "plain")]
    pub elf: Reading<Elf>,
}

impl ElfObject {
    /// The file, as [`crate::Mapping::file_key`] has it.
    pub fn key(&self) -> MappedFileKey {
        MappedFileKey::new(self.device, self.inode, &self.name)
    }
}

/// Present state of the path of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisk {
    /// The file that is mapped.
    Same,
    /// Another file: it was replaced, as a package upgrade does.
    Replaced,
    /// Nothing: it was deleted.
    Missing,
}

/// The headers of an ELF file. Addresses are the file's own; add the load bias for the process's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elf {
    /// Its load segments (`PT_LOAD`), by address.
    pub segments: Vec<LoadSegment>,
    /// Its sections that take up memory (`SHF_ALLOC`), by address; empty where the headers were
    /// stripped.
    pub sections: Vec<ObjectSection>,
    /// The part that the loader makes read-only after relocation (`PT_GNU_RELRO`).
    pub relro: Option<AddrRange>,
    /// True if it is linked without a dynamic loader.
    pub is_static: bool,
    /// Allocator that the file contains, by its well-known symbols (`je_malloc`, `mi_malloc`,
    /// `tc_malloc`): `jemalloc`, `mimalloc`, `tcmalloc`, `snmalloc`.
    pub allocator: Option<Name>,
}

/// One `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSegment {
    /// The file's address range, to `p_memsz`.
    pub range: AddrRange,
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Number of bytes from the file; the rest of the range is zero-filled.
    pub file_size: u64,
    /// `PF_R`
    pub read: bool,
    /// `PF_W`
    pub write: bool,
    /// `PF_X`
    pub exec: bool,
}

/// One section that takes up memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSection {
    /// Its name: `.text`.
    pub name: Name,
    /// Its address range, in the file's addresses.
    pub range: AddrRange,
    /// Offset of its bytes in the file; meaningless for `.bss`.
    pub offset: u64,
    /// True if it occupies no bytes in the file (`SHT_NOBITS`): `.bss`, `.tbss`.
    pub zero_filled: bool,
    /// True if it is thread-local: its address range overlaps others and takes no memory there.
    pub thread_local: bool,
    /// `SHF_WRITE`
    pub write: bool,
    /// `SHF_EXECINSTR`
    pub exec: bool,
}
