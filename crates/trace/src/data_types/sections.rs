//! Copies of the sections that describe types.

use gimli::{DwarfSections, EndianSlice, RunTimeEndian, SectionId};

use super::{Dwarf, MAX_SECTIONS};
use crate::elf::{FileLayout, FileSource};
use crate::symbolizer::SymbolModule;

/// Sections of a file, and of the supplementary file that it shares with other files.
#[derive(Debug)]
pub(super) struct DebugSections {
    own: DwarfSections<Vec<u8>>,
    shared: Option<DwarfSections<Vec<u8>>>,
    endian: RunTimeEndian,
}

const NEEDED: [SectionId; 6] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLineStr,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

impl DebugSections {
    pub(super) fn read(module: &SymbolModule) -> Result<DebugSections, &'static str> {
        let mut left = MAX_SECTIONS;
        let own = load(&module.source, &module.layout, &mut left)?;
        let shared = module.shared_file();
        let shared = shared.map(|(source, layout)| load(source, layout, &mut left)).transpose()?;
        if module.source.has_changed() {
            return Err("the file was written to after it was opened");
        }
        Ok(DebugSections { own, shared, endian: module.layout.endian })
    }

    pub(super) fn dwarf(&self) -> Dwarf<'_> {
        let mut dwarf = self.own.borrow(|bytes| EndianSlice::new(bytes, self.endian));
        if let Some(shared) = &self.shared {
            dwarf.set_sup(shared.borrow(|bytes| EndianSlice::new(bytes, self.endian)));
        }
        dwarf
    }
}

fn load(
    source: &FileSource,
    layout: &FileLayout,
    left: &mut u64,
) -> Result<DwarfSections<Vec<u8>>, &'static str> {
    DwarfSections::load(|id| {
        let section = layout.find(id.name().as_bytes()).filter(|_| NEEDED.contains(&id));
        let Some(section) = section else { return Ok(Vec::new()) };
        if section.size > *left {
            return Err("its debug information is larger than 1 GiB");
        }
        let bytes = match section.is_compressed() {
            true => layout
                .decompressed(source, section, *left)
                .ok_or("its debug information is compressed, and not with zlib")?,
            false => source
                .read(section.offset, section.size)
                .ok_or("its debug information cannot be read")?,
        };
        *left = left.saturating_sub(bytes.len() as u64);
        Ok(bytes)
    })
}
