//! The symbol tables of a file, by address.

use gimli::{Endianity, RunTimeEndian};

use crate::elf::FileSource;
use crate::elf::{FileLayout, HeaderSection};

/// A table with more symbols is not read: those of browsers have two million.
const MAX_SYMBOLS: u64 = 6 << 20;
/// Symbols that are read at a time.
const AT_ONCE: u64 = 4 << 10;
/// Maximum length of a name.
const MAX_NAME: u64 = 64 << 10;

/// `sh_type` of a table.
pub(super) const SYMBOLS: u32 = 2;
pub(super) const DYNAMIC_SYMBOLS: u32 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableSymbol {
    address: u64,
    size: u64,
    name: u32,
}

/// The functions of a table.
#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    symbols: Vec<TableSymbol>,
    names: HeaderSection,
    is_dynamic: bool,
}

impl SymbolTable {
    /// Reads the symbol table of a type. Empty if the file has none; `None` if the table is too
    /// large or truncated.
    pub(super) fn read(source: &FileSource, layout: &FileLayout, kind: u32) -> Option<SymbolTable> {
        let Some(section) = layout.sections.iter().find(|it| it.kind == kind) else {
            return Some(SymbolTable::default());
        };
        let width = if layout.is_wide { 24 } else { 16 };
        let count = section.size / width;
        if count > MAX_SYMBOLS {
            return None;
        }
        let names = usize::try_from(section.link).ok().and_then(|at| layout.sections.get(at))?;
        let mut symbols = Vec::new();
        let mut at = 0;
        while at < count {
            let length = (count - at).min(AT_ONCE) * width;
            let bytes = source.read(section.offset.checked_add(at * width)?, length)?;
            if bytes.len() as u64 != length {
                return None;
            }
            let entries = bytes.chunks_exact(usize::try_from(width).ok()?);
            symbols.extend(entries.filter_map(|it| symbol(it, layout.is_wide, layout.endian)));
            at += AT_ONCE;
        }
        // Among symbols of one address the largest comes first.
        symbols.sort_by_key(|it| (it.address, std::cmp::Reverse(it.size)));
        symbols.shrink_to_fit();
        Some(SymbolTable { symbols, names: names.clone(), is_dynamic: kind == DYNAMIC_SYMBOLS })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.symbols.len() * size_of::<TableSymbol>()) as u64
    }

    /// The symbol that covers an address: where it begins, and its name.
    pub(super) fn find(&self, source: &FileSource, address: u64) -> Option<(u64, String)> {
        let behind = self.symbols.partition_point(|it| it.address <= address);
        let start = self.symbols.get(behind.checked_sub(1)?)?.address;
        let first = self.symbols.partition_point(|it| it.address < start);
        // A symbol without a size goes up to the next one. Tables of dynamic symbols have gaps:
        // there it covers only its own address.
        let covers = |it: &&TableSymbol| match it.size {
            0 => !self.is_dynamic || it.address == address,
            size => address - it.address < size,
        };
        let symbol = self.symbols.get(first..behind)?.iter().find(covers)?;
        let at = self.names.offset.checked_add(symbol.name.into())?;
        let left = self.names.size.checked_sub(symbol.name.into())?;
        let mut name = Vec::new();
        let mut length = 128;
        while name.len() as u64 <= MAX_NAME.min(left) {
            let from = name.len() as u64;
            let more = source.read(at.checked_add(from)?, length.min(left - from))?;
            match more.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    name.extend_from_slice(&more[..end]);
                    return Some((symbol.address, String::from_utf8(name).ok()?));
                }
                None if more.is_empty() => return None,
                None => name.extend_from_slice(&more),
            }
            length = MAX_NAME;
        }
        None
    }
}

/// A symbol of code that is defined in the file.
fn symbol(bytes: &[u8], is_wide: bool, endian: RunTimeEndian) -> Option<TableSymbol> {
    /// `STT_NOTYPE`, as functions in assembly are, `STT_OBJECT`, `STT_FUNC` and `STT_GNU_IFUNC`.
    const TYPES: [u8; 4] = [0, 1, 2, 10];
    let u32_at = |at: usize| Some(endian.read_u32(bytes.get(at..)?.first_chunk::<4>()?));
    let u64_at = |at: usize| Some(endian.read_u64(bytes.get(at..)?.first_chunk::<8>()?));
    let name = u32_at(0)?;
    let (info, section, address, size) = match is_wide {
        true => (bytes.get(4)?, bytes.get(6..8)?, u64_at(8)?, u64_at(16)?),
        false => (bytes.get(12)?, bytes.get(14..16)?, u32_at(4)?.into(), u32_at(8)?.into()),
    };
    let is_code = TYPES.contains(&(info & 0xf)) && section != [0, 0];
    (is_code && name != 0).then_some(TableSymbol { address, size, name })
}
