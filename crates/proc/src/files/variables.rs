//! Addresses of the global and static variables of a process, from the symbol tables of the files
//! that it maps; and the address of the function that its dynamic linker calls after it has mapped
//! libraries.

use std::collections::HashSet;
use std::fs::File;

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef, SectionIndex};
use pagewise_model::mapping::Mapping;
use pagewise_model::{Name, Pid};

use crate::elf::FilePieces;
use crate::{ProcRoot, target_file};

/// Maximum size in bytes of a table that is read. The tables of browsers are smaller, but a sparse
/// file may declare any size.
pub(super) const LARGEST: u64 = 256 << 20;

/// Types of the symbols that may be variables.
const VARIABLES: &[u8] = &[elf::STT_OBJECT, elf::STT_TLS, elf::STT_NOTYPE, elf::STT_COMMON];

/// A variable of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramVariable {
    /// Address of the variable.
    pub address: u64,
    /// Size in bytes; 0 if the symbol has no size.
    pub size: u64,
    /// File that defines the variable.
    pub module: Name,
    /// True if each thread has its own instance, so that the variable has no single address.
    pub thread_local: bool,
}

/// Finds all variables with this name, each once. Several mapped files may define the name, and
/// several source files of one mapped file may have a static variable of this name.
pub fn find(root: &ProcRoot, pid: Pid, mappings: &[Mapping], name: &[u8]) -> Vec<ProgramVariable> {
    let files = files(mappings);
    files.flat_map(|first| of_file(root, pid, mappings, first, name, VARIABLES)).collect()
}

/// Returns the address of the function that the dynamic linker calls after it has mapped libraries
/// and before code of these libraries runs. The function is empty and exists for debuggers. Returns
/// `None` if the program is linked statically or the linker has no symbols.
pub fn linker_tells(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Option<u64> {
    // Name of the function to which `r_debug.r_brk` points in glibc and musl.
    const NAME: &[u8] = b"_dl_debug_state";
    const FUNCTION: &[u8] = &[elf::STT_FUNC];
    let mut found =
        files(mappings).flat_map(|first| of_file(root, pid, mappings, first, NAME, FUNCTION));
    found.next().map(|function| function.address)
}

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFunction {
    /// Name of the function.
    pub name: String,
    /// Offset of the function in the file, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Returns the functions of a file that have one of the names, each once. A file that is damaged,
/// or is not an ELF file, has no functions.
pub fn functions(file: &File, names: &[&str]) -> Vec<FileFunction> {
    let found = functions_where(file, &|name| names.iter().any(|it| it.as_bytes() == name));
    let of_name = |name: &&str| {
        let mut all = found.seen.iter().map(|seen| &seen.function);
        all.find(|function| function.name == *name).cloned()
    };
    names.iter().filter_map(of_name).collect()
}

/// A function of a file, and its visibility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleFunction {
    /// The function.
    pub function: FileFunction,
    /// True if the symbol is in the dynamic symbol table, so that other files can use the function.
    pub exported: bool,
}

/// Functions with wanted names in the symbol tables of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedFunctions {
    /// The functions. A function that is in both symbol tables is listed twice.
    pub seen: Vec<VisibleFunction>,
    /// True if the file has a table of all symbols (`.symtab`) in addition to the exported ones.
    pub complete: bool,
}

/// Maximum length of a function name that is compared, with its final zero.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// Returns the functions that a file defines and for whose names `wanted` returns true. The symbol
/// tables of the file are read once. A file that is damaged, or is not a 64-bit ELF file, has no
/// functions.
pub fn functions_where(file: &File, wanted: &dyn Fn(&[u8]) -> bool) -> WantedFunctions {
    let cache = ReadCache::new(file);
    let data = FilePieces(&cache, LARGEST);
    if !data.is_elf64() {
        return WantedFunctions::default();
    }
    all_functions(data, wanted).unwrap_or_default()
}

fn all_functions(
    data: FilePieces<'_>,
    wanted: &dyn Fn(&[u8]) -> bool,
) -> object::read::Result<WantedFunctions> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let loads = loads(header, endian, data)?;
    let sections = header.sections(endian, data)?;
    let mut functions = WantedFunctions::default();
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let table = sections.iter().find(|section| section.sh_type(endian) == kind);
        if table.is_none_or(|table| table.sh_size(endian) > LARGEST) {
            continue;
        }
        let table = sections.symbols(endian, data, kind)?;
        functions.complete |= kind == elf::SHT_SYMTAB;
        let Some(names) = names(&sections, table.string_section(), endian, data)? else {
            continue;
        };
        for symbol in table.iter() {
            let is_defined = ![elf::SHN_UNDEF, elf::SHN_ABS].contains(&symbol.st_shndx(endian));
            if symbol.st_type() != elf::STT_FUNC || !is_defined {
                continue;
            }
            let Some(rest) = name_at(names, symbol.st_name(endian)) else { continue };
            let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
            let Some(end) = memchr::memchr(0, rest) else { continue };
            let name = &rest[..end];
            if !wanted(name) {
                continue;
            }
            let value = symbol.st_value(endian);
            let load = loads
                .iter()
                .find(|load| value.checked_sub(load.address).is_some_and(|at| at < load.size));
            if let Some(load) = load {
                let name = String::from_utf8_lossy(name).into_owned();
                let offset = (value - load.address).saturating_add(load.offset);
                let function = FileFunction { name, offset, size: symbol.st_size(endian) };
                functions
                    .seen
                    .push(VisibleFunction { function, exported: kind == elf::SHT_DYNSYM });
            }
        }
    }
    Ok(functions)
}

/// Reads all names of a symbol table at once, because a separate read for each name would be slow.
/// Returns `None` if the names have more than [`LARGEST`] bytes.
pub(super) fn names<'d, H: FileHeader<Endian = Endianness>>(
    sections: &SectionTable<'d, H, FilePieces<'d>>,
    at: SectionIndex,
    endian: Endianness,
    data: FilePieces<'d>,
) -> object::read::Result<Option<&'d [u8]>> {
    let Ok(names) = sections.section(at) else { return Ok(None) };
    if names.sh_size(endian).into() > LARGEST {
        return Ok(None);
    }
    names.data(endian, data).map(Some)
}

/// Returns the part of a name table that begins with the name at an offset.
pub(super) fn name_at(names: &[u8], at: u32) -> Option<&[u8]> {
    names.get(usize::try_from(at).ok()?..)
}

/// The first mapping of each file.
pub(super) fn files(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    let mut seen = HashSet::new();
    mappings
        .iter()
        .filter(move |mapping| mapping.inode != 0 && seen.insert((mapping.device, mapping.inode)))
}

fn of_file(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    first: &Mapping,
    name: &[u8],
    kinds: &[u8],
) -> Vec<ProgramVariable> {
    let Ok(file) = target_file::open_mapped(root, pid, first) else { return Vec::new() };
    let cache = ReadCache::new(&file);
    let data = FilePieces(&cache, LARGEST);
    let found = match data.read_bytes_at(0, 5) {
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS64]) => {
            symbols::<elf::FileHeader64<Endianness>>(data, name, kinds)
        }
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS32]) => {
            symbols::<elf::FileHeader32<Endianness>>(data, name, kinds)
        }
        _ => return Vec::new(),
    };
    // A damaged file has no usable variables.
    let Ok((loads, found)) = found else { return Vec::new() };
    let Some(bias) = load_bias(mappings, first, &loads) else { return Vec::new() };
    let variables = found.into_iter().map(|symbol| ProgramVariable {
        address: symbol.value.wrapping_add(bias),
        size: symbol.size,
        module: first.name.clone(),
        thread_local: symbol.thread_local,
    });
    let mut variables: Vec<ProgramVariable> = variables.collect();
    variables.sort_by_key(|it| (it.address, std::cmp::Reverse(it.size)));
    variables.dedup_by_key(|it| it.address);
    variables
}

/// Returns the difference between the addresses in a process and those in the file. `first` is a
/// mapping of the file.
pub(super) fn load_bias(
    mappings: &[Mapping],
    first: &Mapping,
    loads: &[LoadHeader],
) -> Option<u64> {
    let its = |mapping: &&Mapping| (mapping.device, mapping.inode) == (first.device, first.inode);
    mappings.iter().filter(its).find_map(|mapping| {
        let load = loads.iter().find(|load| load.covers(mapping))?;
        let at = load.address.wrapping_sub(load.offset).wrapping_add(mapping.offset);
        Some(mapping.range.start.wrapping_sub(at))
    })
}

/// A program header of type `PT_LOAD`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadHeader {
    offset: u64,
    size: u64,
    address: u64,
}

impl LoadHeader {
    /// True if the mapping and the segment overlap in the file.
    fn covers(self, mapping: &Mapping) -> bool {
        let end = self.offset.saturating_add(self.size);
        let mapped_to = mapping.offset.saturating_add(mapping.range.end - mapping.range.start);
        mapping.offset < end && self.offset < mapped_to
    }
}

struct ElfSymbol {
    value: u64,
    size: u64,
    thread_local: bool,
}

pub(super) fn loads<'d, H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    data: FilePieces<'d>,
) -> object::read::Result<Vec<LoadHeader>> {
    let loads = header.program_headers(endian, data)?.iter();
    let loads = loads.filter(|it| it.p_type(endian) == elf::PT_LOAD).map(|it| LoadHeader {
        offset: it.p_offset(endian).into(),
        size: it.p_filesz(endian).into(),
        address: it.p_vaddr(endian).into(),
    });
    Ok(loads.collect())
}

fn symbols<'d, H: FileHeader<Endian = Endianness>>(
    data: FilePieces<'d>,
    name: &[u8],
    kinds: &[u8],
) -> object::read::Result<(Vec<LoadHeader>, Vec<ElfSymbol>)> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let loads = loads(header, endian, data)?;
    let sections = header.sections(endian, data)?;
    let mut found = Vec::new();
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let table = sections.iter().find(|section| section.sh_type(endian) == kind);
        if table.is_none_or(|table| table.sh_size(endian).into() > LARGEST) {
            continue;
        }
        let table = sections.symbols(endian, data, kind)?;
        let Some(names) = names(&sections, table.string_section(), endian, data)? else {
            continue;
        };
        for symbol in table.iter() {
            let is_one = kinds.contains(&symbol.st_type());
            let is_defined = symbol.st_shndx(endian) != elf::SHN_UNDEF
                && symbol.st_shndx(endian) != elf::SHN_ABS;
            let has_name = || {
                let rest = name_at(names, symbol.st_name(endian))?.strip_prefix(name)?;
                (rest.first() == Some(&0)).then_some(())
            };
            if is_one && is_defined && has_name().is_some() {
                found.push(ElfSymbol {
                    value: symbol.st_value(endian).into(),
                    size: symbol.st_size(endian).into(),
                    thread_local: symbol.st_type() == elf::STT_TLS,
                });
            }
        }
    }
    Ok((loads, found))
}
