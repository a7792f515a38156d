//! Mapped ELF files: segments and sections by their headers.
//!
//! Only the headers and name tables of a file are read, each in one piece of limited size: a
//! process chooses the files that it maps, so they may be hostile.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use pagewise_model::mapping::{AddrRange, Mapping};
use pagewise_model::object::{Elf, ElfObject, LoadSegment, ObjectSection, OnDisk};
use pagewise_model::{Absent, Backing, Device, Name, Pid, Reading};

use crate::ProcRoot;
use crate::mountinfo::Mount;
use crate::root::PTRACE;
use crate::target_file::{self, FileId, FoundFile, Refusal, TargetRoot};

/// Maximum number of bytes that are read in one piece. Headers and name tables are smaller, but the
/// sizes in a sparse file can be arbitrarily large.
const LARGEST: u64 = 16 << 20;
/// Maximum number of sections that are read. Real files have dozens.
const SECTIONS: usize = 5000;
/// Maximum number of bytes of a section name that are kept.
const NAME: usize = 256;

/// Symbol names that identify an allocator, each with its final zero, and the name of the
/// allocator.
const ALLOCATORS: &[(&[u8], &str)] = &[
    (b"je_malloc\0", "jemalloc"),
    (b"_rjem_malloc\0", "jemalloc"),
    (b"mallctl\0", "jemalloc"),
    (b"mi_malloc\0", "mimalloc"),
    (b"tc_malloc\0", "tcmalloc"),
    (b"TCMallocInternalMalloc\0", "tcmalloc"),
    (b"sn_malloc\0", "snmalloc"),
];

/// Reads the headers of each mapped file once, in order of first appearance.
pub(crate) fn objects(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    exe: Option<&Name>,
    mounts: &[Mount],
) -> Vec<ElfObject> {
    let overlays = mounts.iter().filter(|m| m.fs == b"overlay").map(|m| m.device).collect();
    let looker = Looker { root, pid, exe, overlays, own_root: OnceCell::new() };
    let mut seen = HashSet::new();
    let mut last = None;
    let files = mappings.iter().filter(|mapping| {
        let key = (mapping.device, mapping.inode);
        // Adjacent mappings often map the same file. A hash lookup for each of 65,000 mappings
        // would take longer than everything else here.
        mapping.inode != 0
            && (mapping.prot.exec || mapping.backing() == Backing::File)
            && last.replace(key) != Some(key)
            && seen.insert(key)
    });
    files.map(|first| looker.object(first)).collect()
}

/// Finds the mapped files of one process and reads their headers.
struct Looker<'a> {
    root: &'a ProcRoot,
    pid: Pid,
    exe: Option<&'a Name>,
    overlays: Vec<Device>,
    own_root: OnceCell<Option<TargetRoot>>,
}

impl Looker<'_> {
    /// Reads the headers of the file that `first` maps.
    fn object(&self, first: &Mapping) -> ElfObject {
        let (on_disk, elf) = if self.root.is_live() {
            (self.on_disk(first), self.elf(first))
        } else {
            let unread = Absent::NotCollected("the copied tree has no mapped files".into());
            (Err(unread.clone()), Err(unread))
        };
        ElfObject {
            device: first.device,
            inode: first.inode,
            name: first.name.clone(),
            on_disk,
            elf,
        }
    }

    /// Finds the file that a name denotes for the process, and does not open it for reading.
    fn find(&self, name: &[u8]) -> Result<FoundFile, Refusal> {
        let root = self.own_root.get_or_init(|| TargetRoot::of_process(self.root, self.pid).ok());
        let root = root.as_ref().ok_or(Refusal::NotPermitted)?;
        root.find(Path::new(std::ffi::OsStr::from_bytes(name)))
    }

    /// Returns the path of the `map_files` link, which denotes the mapped file even if its name has
    /// changed. Following this link needs a capability.
    fn by_map(&self, first: &Mapping) -> PathBuf {
        self.root.file(self.pid, "map_files").join(first.range.to_string())
    }

    fn on_disk(&self, first: &Mapping) -> Reading<OnDisk> {
        let found = match self.find(first.path()) {
            Err(Refusal::Missing) => {
                // The name of an existing file can also end in " (deleted)".
                let is_there = first.is_deleted() && self.find(first.name.as_bytes()).is_ok();
                return Ok(if is_there { OnDisk::Same } else { OnDisk::Missing });
            }
            // The path of a mapped file contains no link, so a link has replaced a component of the
            // path.
            Err(Refusal::NotRegular) => return Ok(OnDisk::Replaced),
            found => found.map_err(|_| Absent::NotPermitted(PTRACE.into()))?,
        };
        let is_same = match fs::metadata(self.by_map(first)) {
            Ok(mapped) => FileId::of_metadata(&mapped) == found.id(),
            Err(_) => self.is_same(first, &found),
        };
        Ok(if is_same { OnDisk::Same } else { OnDisk::Replaced })
    }

    /// Returns true if the found file is the mapped file, according to `maps`.
    ///
    /// Devices are not compared: on btrfs, `maps` and `stat` show different devices. Before Linux
    /// 6.8, inodes on an overlay also differ, so every name on an overlay is accepted that the
    /// kernel has not marked as deleted.
    fn is_same(&self, first: &Mapping, found: &FoundFile) -> bool {
        let id = found.id();
        id.inode == first.inode || !first.is_deleted() && self.overlays.contains(&id.device)
    }

    fn elf(&self, first: &Mapping) -> Reading<Elf> {
        let file = target_file::open_mapped(self.root, self.pid, first);
        let file = file.map_err(|why| match why {
            Refusal::NotPermitted => Absent::NotPermitted(PTRACE.into()),
            Refusal::Missing | Refusal::OtherFile => {
                Absent::NotPermitted("CAP_SYS_ADMIN: it has no name".into())
            }
            why => Absent::NotSupported(why.to_string().into()),
        })?;
        of_file(&file, self.exe == Some(&first.name))
    }
}

/// A file that is read in a few pieces. The second field is the maximum size of a piece in bytes.
#[derive(Clone, Copy)]
pub(crate) struct FilePieces<'d>(pub(crate) &'d ReadCache<&'d File>, pub(crate) u64);

impl FilePieces<'_> {
    /// Returns true if the file begins as a 64-bit ELF file.
    pub(crate) fn is_elf64(self) -> bool {
        self.has_class(elf::ELFCLASS64)
    }

    fn has_class(self, class: u8) -> bool {
        self.read_bytes_at(0, 5).is_ok_and(|head| head[..4] == elf::ELFMAG && head[4] == class)
    }
}

impl<'d> ReadRef<'d> for FilePieces<'d> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'d [u8], ()> {
        if size > self.1 { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: std::ops::Range<u64>, end: u8) -> Result<&'d [u8], ()> {
        self.0.read_bytes_at_until(range, end)
    }
}

/// True if a file begins as an ELF file of 32 bits.
pub fn is_of_32_bits(file: &File) -> bool {
    FilePieces(&ReadCache::new(file), LARGEST).has_class(elf::ELFCLASS32)
}

/// True if a file is an ELF program of 64 bits that names no loader.
pub fn is_static_program(file: &File) -> bool {
    let cache = ReadCache::new(file);
    let data = FilePieces(&cache, LARGEST);
    data.is_elf64() && names_no_loader(data).unwrap_or(false)
}

fn names_no_loader(data: FilePieces<'_>) -> object::read::Result<bool> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let programs = header.program_headers(endian, data)?;
    let is_program = matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN);
    let is_interpreter = |header: &elf::ProgramHeader64<_>| header.p_type(endian) == elf::PT_INTERP;
    Ok(is_program && !programs.is_empty() && !programs.iter().any(is_interpreter))
}

/// Reads the headers of an open ELF file. If `is_exe` is true, the full symbol table is also
/// searched for allocators.
///
/// # Errors
/// [`Absent::NotSupported`] if the file is not an ELF file, or is damaged.
pub fn of_file(file: &File, is_exe: bool) -> Reading<Elf> {
    let all: &[u32] = &[elf::SHT_DYNSYM, elf::SHT_SYMTAB];
    headers(FilePieces(&ReadCache::new(file), LARGEST), if is_exe { all } else { &all[..1] })
}

/// Parses the headers of an ELF file of 64 or 32 bits from memory.
///
/// # Errors
/// [`Absent::NotSupported`] if the bytes are not an ELF file, or are damaged.
pub fn parse(bytes: &[u8]) -> Reading<Elf> {
    headers(bytes, &[elf::SHT_DYNSYM, elf::SHT_SYMTAB])
}

/// Reads the headers. Allocators are searched for in the symbol tables of the section types
/// `symbols`.
fn headers<'d>(data: impl ReadRef<'d>, symbols: &[u32]) -> Reading<Elf> {
    let found = match data.read_bytes_at(0, 5) {
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS64]) => {
            parse_class::<elf::FileHeader64<Endianness>>(data, symbols)
        }
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS32]) => {
            parse_class::<elf::FileHeader32<Endianness>>(data, symbols)
        }
        _ => return Err(Absent::NotSupported("not an ELF file".into())),
    };
    found.map_err(|e| Absent::NotSupported(format!("a broken ELF file: {e}").into()))
}

fn parse_class<'d, H: FileHeader<Endian = Endianness>>(
    data: impl ReadRef<'d>,
    symbols: &[u32],
) -> object::read::Result<Elf> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let programs = header.program_headers(endian, data)?;
    // A file without section headers is still an ELF file: its segments suffice.
    let sections = header.section_headers(endian, data).unwrap_or_default();
    let sections = &sections[..sections.len().min(SECTIONS)];
    let names = header.shstrndx(endian, data).ok();
    let names = names.and_then(|at| bytes(sections, at, endian, data)).unwrap_or_default();
    let relro = programs.iter().find(|p| p.p_type(endian) == elf::PT_GNU_RELRO);
    let inside = |&kind: &u32| allocator(sections, kind, endian, data);
    Ok(Elf {
        segments: segments(programs, endian),
        sections: loaded(sections, names, endian),
        relro: relro.map(|p| range(p.p_vaddr(endian), p.p_memsz(endian))),
        is_static: !programs.iter().any(|p| p.p_type(endian) == elf::PT_INTERP),
        allocator: symbols.iter().find_map(inside),
    })
}

fn segments<P: ProgramHeader<Endian = Endianness>>(
    programs: &[P],
    endian: Endianness,
) -> Vec<LoadSegment> {
    let loads = programs.iter().filter(|p| p.p_type(endian) == elf::PT_LOAD);
    let mut segments: Vec<LoadSegment> = loads
        .map(|p| {
            let has = |flag| p.p_flags(endian) & flag != 0;
            LoadSegment {
                range: range(p.p_vaddr(endian), p.p_memsz(endian)),
                offset: p.p_offset(endian).into(),
                file_size: p.p_filesz(endian).into(),
                read: has(elf::PF_R),
                write: has(elf::PF_W),
                exec: has(elf::PF_X),
            }
        })
        .collect();
    segments.sort_by_key(|segment| segment.range);
    segments
}

/// The sections that take up memory.
fn loaded<S: SectionHeader<Endian = Endianness>>(
    headers: &[S],
    names: &[u8],
    endian: Endianness,
) -> Vec<ObjectSection> {
    let has = |s: &S, flag: u32| s.sh_flags(endian).into() & u64::from(flag) != 0;
    let mut sections: Vec<ObjectSection> = headers
        .iter()
        .filter(|s| has(s, elf::SHF_ALLOC))
        .map(|s| ObjectSection {
            name: name(names, s.sh_name(endian)),
            range: range(s.sh_addr(endian), s.sh_size(endian)),
            offset: s.sh_offset(endian).into(),
            zero_filled: s.sh_type(endian) == elf::SHT_NOBITS,
            thread_local: has(s, elf::SHF_TLS),
            write: has(s, elf::SHF_WRITE),
            exec: has(s, elf::SHF_EXECINSTR),
        })
        .collect();
    sections.sort_by_key(|section| section.range);
    sections
}

fn range(start: impl Into<u64>, len: impl Into<u64>) -> AddrRange {
    let start = start.into();
    AddrRange { start, end: start.saturating_add(len.into()) }
}

/// The name at an offset of a table of names.
fn name(table: &[u8], at: u32) -> Name {
    let rest = usize::try_from(at).ok().and_then(|at| table.get(at..)).unwrap_or_default();
    let rest = &rest[..rest.len().min(NAME)];
    Name::new(&rest[..memchr::memchr(0, rest).unwrap_or(rest.len())])
}

fn bytes<'d, S: SectionHeader<Endian = Endianness>>(
    sections: &[S],
    at: u32,
    endian: Endianness,
    data: impl ReadRef<'d>,
) -> Option<&'d [u8]> {
    sections.get(usize::try_from(at).ok()?)?.data(endian, data).ok()
}

/// Returns the allocator that a symbol of a symbol table identifies.
///
/// A file that only calls the allocator also contains the symbol's name, so the file must define
/// the symbol. Symbols are read only if the string table contains one of the names, which is rare.
fn allocator<'d, S: SectionHeader<Endian = Endianness>>(
    sections: &[S],
    kind: u32,
    endian: Endianness,
    data: impl ReadRef<'d>,
) -> Option<Name> {
    let table = sections.iter().find(|s| s.sh_type(endian) == kind)?;
    let names = bytes(sections, table.sh_link(endian), endian, data)?;
    let defines = |symbol: &[u8]| {
        let at: Vec<usize> = memchr::memmem::find_iter(names, symbol).take(16).collect();
        !at.is_empty() && has_symbol(table, &at, endian, data)
    };
    let found = ALLOCATORS.iter().find(|(symbol, _)| defines(symbol));
    found.map(|(_, known)| Name::from(*known))
}

fn has_symbol<'d, S: SectionHeader<Endian = Endianness>>(
    table: &S,
    names: &[usize],
    endian: Endianness,
    data: impl ReadRef<'d>,
) -> bool {
    type SymbolOf<S> = <<S as SectionHeader>::Elf as FileHeader>::Sym;
    let symbols: &'d [SymbolOf<S>] = table.data_as_array(endian, data).unwrap_or_default();
    let is_named =
        |s: &SymbolOf<S>| names.iter().any(|&at| at as u64 == u64::from(s.st_name(endian)));
    symbols.iter().any(|s| s.st_shndx(endian) != elf::SHN_UNDEF && is_named(s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of a program that exists on every machine: the shell.
    fn own_bytes() -> &'static [u8] {
        static BYTES: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        BYTES.get_or_init(|| fs::read("/bin/sh").unwrap())
    }

    #[test]
    fn a_file_read_in_pieces_says_what_its_bytes_say() {
        let file = File::open("/bin/sh").unwrap();
        let both = [elf::SHT_DYNSYM, elf::SHT_SYMTAB];
        let found = headers(FilePieces(&ReadCache::new(&file), LARGEST), &both);
        assert_eq!(found, parse(own_bytes()));
        let found = found.unwrap();
        assert!(found.segments.iter().any(|segment| segment.exec) && !found.sections.is_empty());
    }

    #[test]
    fn a_table_larger_than_any_real_one_is_not_read() {
        // The file is a single hole after its headers, which declare as many section headers as
        // fit.
        let file = tempfile::tempfile().unwrap();
        let size = 1_u64 << 40;
        file.set_len(size).unwrap();
        let mut header = own_bytes()[..64].to_vec();
        header[0x28..0x30].copy_from_slice(&64_u64.to_le_bytes());
        header[0x3c..0x3e].copy_from_slice(&0_u16.to_le_bytes());
        let mut first = [0; 64];
        first[0x20..0x28].copy_from_slice(&(size / 64 - 1).to_le_bytes());
        let bytes = [header.as_slice(), &first].concat();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        let found =
            headers(FilePieces(&ReadCache::new(&file), LARGEST), &[elf::SHT_SYMTAB]).unwrap();
        assert_eq!((found.sections, found.allocator), (vec![], None));
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let is_static = |bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
            is_static_program(&file)
        };
        let with_type =
            |bytes: &[u8], kind: u16| [&bytes[..16], &kind.to_le_bytes(), &bytes[18..]].concat();
        let interpreter = elf::PT_INTERP.to_le_bytes();
        let mut bytes = own_bytes().to_vec();
        assert!(!is_static(&bytes), "the shell has a loader");
        let headers = (64..64 + 56 * usize::from(bytes[56])).step_by(56);
        for at in headers.filter(|&at| own_bytes()[at..at + 4] == interpreter) {
            bytes[at..at + 4].copy_from_slice(&elf::PT_NULL.to_le_bytes());
        }
        assert!(is_static(&bytes));
        assert!(!is_static(&with_type(&bytes, elf::ET_REL)), "an object file");
        assert!(!is_static(&bytes[..80]), "its program headers are cut off");
        assert!(!is_static(b"\x7fELF\x02\x01\x01") && !is_static(b""));
    }

    #[test]
    fn a_file_that_is_not_a_program_is_absent() {
        for bytes in [b"".as_slice(), b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01\x01"] {
            assert!(matches!(parse(bytes), Err(Absent::NotSupported(_))), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_file_does_not_panic(
            damage in proptest::collection::vec((0..4096_usize, any::<u8>()), 1..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = own_bytes()[..cut.index(own_bytes().len())].to_vec();
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            let _ = parse(&bytes);
        }

        #[test]
        fn a_header_of_any_bytes_does_not_panic(tail in proptest::collection::vec(any::<u8>(), 0..400), wide in any::<bool>()) {
            let _ = parse(&[&[0x7f, b'E', b'L', b'F', 1 + u8::from(wide), 1, 1], tail.as_slice()].concat());
        }
    }
}
