//! An ELF file that a process maps: its segments and sections, as far as its headers tell.

use serde::{Deserialize, Serialize};

use crate::mapping::{AddrRange, Device};
use crate::reading::plain;
use crate::{Name, Reading};

/// A mapped file and what its ELF headers say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The device of the file.
    pub device: Device,
    /// Its inode.
    pub inode: u64,
    /// The name as `maps` prints it.
    pub name: Name,
    /// Whether its path still leads to this file.
    #[serde(with = "plain")]
    pub on_disk: Reading<OnDisk>,
    /// Its headers; absent with the reason where it is no ELF file or could not be read.
    #[serde(with = "plain")]
    pub elf: Reading<Elf>,
}

/// What the path of a mapped file leads to now.
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
    pub segments: Vec<Segment>,
    /// Its sections that take up memory (`SHF_ALLOC`), by address; empty where the headers were stripped.
    pub sections: Vec<Section>,
    /// The part that the loader makes read-only after relocation (`PT_GNU_RELRO`).
    pub relro: Option<AddrRange>,
    /// Whether it is linked without a dynamic loader.
    pub is_static: bool,
    /// Allocators it carries inside: names of well-known symbols found (`je_malloc`, `mi_malloc`, `tc_malloc`).
    pub allocator: Option<Name>,
}

/// One `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The file's address range, to `p_memsz`.
    pub range: AddrRange,
    /// Where its bytes are in the file.
    pub offset: u64,
    /// How many bytes come from the file; the rest of the range is zero-filled.
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
pub struct Section {
    /// Its name: `.text`.
    pub name: Name,
    /// Its address range, in the file's addresses.
    pub range: AddrRange,
    /// Where its bytes are in the file; meaningless for `.bss`.
    pub offset: u64,
    /// Whether it takes no room in the file (`SHT_NOBITS`): `.bss`, `.tbss`.
    pub zero_filled: bool,
    /// Whether it is thread-local: its address range overlaps others and takes no memory there.
    pub thread_local: bool,
    /// `SHF_WRITE`
    pub write: bool,
    /// `SHF_EXECINSTR`
    pub exec: bool,
}
