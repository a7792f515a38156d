//! Variables of a process by address: the symbols that contain given addresses, and the size of
//! thread-local storage.

use object::Endianness;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use pagewise_model::{AddrRange, Mapping, Name, Pid};

use super::variables::{
    LARGEST, LoadHeader, MAX_NAME_BYTES, files, load_bias, loads, name_at, names,
};
use crate::elf::FilePieces;
use crate::{ProcRoot, target_file};

/// Maximum number of variables that are returned.
const MAX_VARIABLES: usize = 1 << 20;

/// A variable that contains an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedVariable {
    /// Addresses of the variable. For a thread-local variable: wrapping offsets from the thread
    /// pointer, so `u64::MAX` is the byte directly below the thread pointer.
    pub range: AddrRange,
    /// Name in the symbol table.
    pub name: Name,
    /// File that defines the variable.
    pub module: Name,
    /// Source file of a variable with local binding, such as a `static` variable in C.
    pub source: Option<Name>,
}

/// Names of variables of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedVariables {
    /// Variables that contain a wanted address, in order of address. They do not overlap.
    pub variables: Vec<NamedVariable>,
    /// Thread-local variables of the program. Add a thread pointer to their addresses (wrapping).
    pub thread_local: Vec<NamedVariable>,
    /// Bytes of the thread-local storage of all files together.
    pub thread_local_bytes: u64,
}

/// Returns the variables that contain any of `addresses`, which must be sorted, and all
/// thread-local variables of `program`. If `addresses` is empty, only the size of thread-local
/// storage is read. A file that is damaged, or is not a 64-bit ELF file, has no variables.
pub fn named_variables(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    program: Option<&Name>,
    addresses: &[u64],
) -> NamedVariables {
    let mut found = NamedVariables::default();
    for first in files(mappings) {
        let is_program = program == Some(&first.name);
        // A damaged file has no usable symbols.
        let _ = found.add_file(root, pid, mappings, first, is_program, addresses);
    }
    sort(&mut found.variables);
    sort(&mut found.thread_local);
    found
}

/// Sorts the variables by address. Among overlapping variables, the function keeps the one with the
/// lowest address, and the largest one if addresses are equal.
fn sort(variables: &mut Vec<NamedVariable>) {
    variables.sort_by_key(|it| (it.range.start, std::cmp::Reverse(it.range.end)));
    let mut end = 0;
    variables.retain(|it| {
        let is_behind = it.range.start >= end;
        if is_behind {
            end = it.range.end;
        }
        is_behind
    });
}

impl NamedVariables {
    fn add_file(
        &mut self,
        root: &ProcRoot,
        pid: Pid,
        mappings: &[Mapping],
        first: &Mapping,
        is_program: bool,
        addresses: &[u64],
    ) -> Option<()> {
        let file = target_file::open_mapped(root, pid, first).ok()?;
        let cache = ReadCache::new(&file);
        let data = FilePieces(&cache, LARGEST);
        let symbols = FileSymbols::read(data)?;
        self.thread_local_bytes = self.thread_local_bytes.saturating_add(symbols.tls_bytes);
        if addresses.is_empty() {
            return None;
        }
        let bias = load_bias(mappings, first, &symbols.loads)?;
        symbols.each(data, |symbol| {
            let variable = |start: u64, size: u64| NamedVariable {
                range: AddrRange { start, end: start.saturating_add(size.max(1)) },
                name: Name::new(symbol.name),
                module: first.name.clone(),
                source: symbol.source.map(Name::new),
            };
            if self.variables.len() + self.thread_local.len() >= MAX_VARIABLES {
                return;
            }
            if symbol.is_thread_local {
                // The thread-local storage of the program lies directly below the thread pointer.
                let start = symbol.value.wrapping_sub(symbols.tls_bytes);
                if is_program && symbol.value < symbols.tls_bytes {
                    self.thread_local.push(variable(start, symbol.size));
                }
                return;
            }
            let variable = variable(symbol.value.wrapping_add(bias), symbol.size);
            let next = addresses.partition_point(|&address| address < variable.range.start);
            if addresses.get(next).is_some_and(|&address| variable.range.contains(address)) {
                self.variables.push(variable);
            }
        });
        Some(())
    }
}

/// The headers of a file that are needed to interpret its symbols.
struct FileSymbols {
    loads: Vec<LoadHeader>,
    /// Number of bytes of the file's thread-local storage, rounded up to its alignment.
    tls_bytes: u64,
}

struct DataSymbol<'a> {
    name: &'a [u8],
    value: u64,
    size: u64,
    is_thread_local: bool,
    /// Source file of the symbol, if the symbol has local binding.
    source: Option<&'a [u8]>,
}

impl FileSymbols {
    fn read(data: FilePieces<'_>) -> Option<FileSymbols> {
        if !data.is_elf64() {
            return None;
        }
        let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let headers = header.program_headers(endian, data).ok()?;
        let tls = headers.iter().find(|it| it.p_type(endian) == elf::PT_TLS);
        let tls_bytes = tls.map_or(0, |it| {
            let align = it.p_align(endian).clamp(1, 1 << 20);
            it.p_memsz(endian).min(1 << 30).next_multiple_of(align)
        });
        Some(FileSymbols { loads: loads(header, endian, data).ok()?, tls_bytes })
    }

    /// Calls `each` with the data symbols of both symbol tables.
    fn each(&self, data: FilePieces<'_>, mut each: impl FnMut(&DataSymbol<'_>)) -> Option<()> {
        let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let table = sections.iter().find(|section| section.sh_type(endian) == kind);
            if table.is_none_or(|table| table.sh_size(endian) > LARGEST) {
                continue;
            }
            let table = sections.symbols(endian, data, kind).ok()?;
            let names = names(&sections, table.string_section(), endian, data).ok().flatten();
            let Some(names) = names else { continue };
            // Local symbols follow the symbol of their source file.
            let mut source = None;
            for symbol in table.iter() {
                if symbol.st_type() == elf::STT_FILE {
                    source = name_at(names, symbol.st_name(endian)).and_then(source_file);
                }
                let is_data = [elf::STT_OBJECT, elf::STT_TLS].contains(&symbol.st_type());
                let is_defined = ![elf::SHN_UNDEF, elf::SHN_ABS].contains(&symbol.st_shndx(endian));
                let name = name_at(names, symbol.st_name(endian)).filter(|_| is_data && is_defined);
                let Some(rest) = name else { continue };
                let source = source.filter(|_| symbol.st_bind() == elf::STB_LOCAL);
                each(&DataSymbol {
                    source,
                    name: before_zero(rest),
                    value: symbol.st_value(endian),
                    size: symbol.st_size(endian),
                    is_thread_local: symbol.st_type() == elf::STT_TLS,
                });
            }
        }
        Some(())
    }
}

/// Returns the name at the start of `rest`, without its final zero and at most [`MAX_NAME_BYTES`]
/// long.
fn before_zero(rest: &[u8]) -> &[u8] {
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())]
}

/// Returns the name of a source file. Returns `None` for a code generation unit, which Rust records
/// in place of a source file.
fn source_file(rest: &[u8]) -> Option<&[u8]> {
    const ENDS: [&[u8]; 8] = [b".c", b".cc", b".cpp", b".cxx", b".C", b".c++", b".m", b".mm"];
    let name = before_zero(rest);
    ENDS.iter().any(|end| name.ends_with(end)).then_some(name)
}
