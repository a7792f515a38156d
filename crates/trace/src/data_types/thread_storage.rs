//! Location of the thread-local storage of a file. For the program it is directly below the thread
//! pointer. For a library it is found by a word that the dynamic linker relocates
//! (`R_X86_64_DTPMOD64`, `R_X86_64_TPOFF64`).
//!
//! Code of a library finds its thread-local variables by such words, so a library that uses its
//! variables has one of them.

use pagewise_model::data_types::ThreadStorage;

use crate::elf::{FileLayout, FileSource};
use crate::symbolizer::SymbolModule;

/// Bytes of a table that are read.
const MAX_TABLE: u64 = 64 << 20;
/// Bytes of an entry of a table of relocations, and of one of symbols.
const RELOCATION: usize = 24;
const SYMBOL: u64 = 24;

/// The location of the storage of a file, the last of its `modules`. `None` if the file has no
/// storage, or no word that leads to it.
pub(crate) fn thread_storage(modules: &[SymbolModule], bias: u64) -> Option<ThreadStorage> {
    const X86_64: u16 = 62;
    let module = modules.last()?;
    let (source, layout) = (&module.source, &module.layout);
    let bytes = layout.thread_local_bytes?;
    let head = source.read(16, 4)?;
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    if !layout.is_wide || half(2)? != X86_64 {
        return None;
    }
    if is_program(source, layout, half(0)?) {
        return Some(ThreadStorage::BelowThreadPointer(bytes));
    }
    let relocations = table(source, layout, b".rela.dyn")?;
    relocations.chunks_exact(RELOCATION).find_map(|entry| by_word(source, layout, entry, bias))
}

fn is_program(source: &FileSource, layout: &FileLayout, file_type: u16) -> bool {
    const EXECUTABLE: u16 = 2;
    const FLAGS: u64 = 0x6fff_fffb;
    const PIE: u64 = 1 << 27;
    let dynamic = || table(source, layout, b".dynamic").unwrap_or_default();
    let is_pie = |entry: &[u8]| {
        word(entry, 0) == Some(FLAGS) && word(entry, 8).is_some_and(|flags| flags & PIE != 0)
    };
    file_type == EXECUTABLE || dynamic().chunks_exact(16).any(is_pie)
}

/// The storage by a relocated word, if the relocation is for a thread-local variable of the file.
fn by_word(
    source: &FileSource,
    layout: &FileLayout,
    entry: &[u8],
    bias: u64,
) -> Option<ThreadStorage> {
    const NUMBER: u64 = 16;
    const DISTANCE: u64 = 18;
    let (address, info, addend) = (word(entry, 0)?, word(entry, 8)?, word(entry, 16)?);
    let address = address.wrapping_add(bias);
    let own = |symbol| match symbol {
        0 => Some(0),
        symbol => own_symbol(source, layout, symbol),
    };
    match info & 0xffff_ffff {
        NUMBER => own(info >> 32).map(|_| ThreadStorage::Numbered { word: address }),
        DISTANCE => own(info >> 32).map(|value| ThreadStorage::OfVariable {
            word: address,
            offset: value.wrapping_add(addend),
        }),
        _ => None,
    }
}

/// The value of a symbol that the file defines itself.
fn own_symbol(source: &FileSource, layout: &FileLayout, number: u64) -> Option<u64> {
    let symbols = layout.find(b".dynsym")?;
    let at = number.checked_mul(SYMBOL).filter(|at| *at < symbols.size)?;
    let entry = source.read(symbols.offset.checked_add(at)?, SYMBOL)?;
    let section = u16::from_le_bytes(*entry.get(6..)?.first_chunk()?);
    word(&entry, 8).filter(|_| section != 0)
}

fn table(source: &FileSource, layout: &FileLayout, name: &[u8]) -> Option<Vec<u8>> {
    let section = layout.find(name)?;
    source.read(section.offset, section.size.min(MAX_TABLE))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
