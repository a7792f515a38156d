//! Functions, lines and inlined functions of one file, whose bytes are read by `pread`.
//!
//! The file is untrusted, and may change while it is read:
//!
//! | danger | answer |
//! |---|---|
//! | truncation, after which SIGBUS ends a process that has mapped the file | nothing is mapped: [`reader`] keeps copies of the pieces that were needed |
//! | links to other files (`.gnu_debuglink`, `.gnu_debugaltlink`) | nothing is opened here: [`crate::links`] opens only files that a link may name |
//! | tables that expand when they are parsed: a row of 16 bytes for each byte, one table for thousands of units | lists have limits, and every interpreted byte takes [`reader::Fuel`]; parsed data is dropped when it takes too much memory |
//! | entries a million levels deep, cyclic references | [`dwarf`] has limits and does not recurse |
//! | compressed sections | decompressed up to [`MAX_DECOMPRESSED`] |
//! | millions of units or symbols | refused above the limits in [`dwarf`] and [`table`] |
//!
//! The alternative is a child process that maps the file and may die. It would not be faster, it
//! could not be forked by a program with threads that uses this crate as a library, and it would
//! still interpret bytes that change meanwhile.
//!
//! Functions without DWARF information are looked up in the symbol tables.

mod dwarf;
mod reader;
mod table;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gimli::{Dwarf, SectionId};

use dwarf::DebugInfo;
pub(crate) use dwarf::empty_unit;
use reader::{PieceReader, PieceSource};
use table::SymbolTable;

use crate::elf::{FileLayout, FileSource};

/// Maximum number of bytes of the decompressed sections of a file.
const MAX_DECOMPRESSED: u64 = 256 << 20;
/// Maximum bytes that are interpreted to index the units of a file, and to look up one address.
const TO_OPEN: u64 = 512 << 20;
const TO_LOOK_UP: u64 = 64 << 20;
/// Maximum bytes of a file that are interpreted in total. The whole run of a browser takes fewer.
const MAX_INTERPRETED: u64 = 2 << 30;

/// A function that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundCall {
    /// Name of the function in the file.
    pub(crate) name: Option<String>,
    /// Path of the source file, and the line number.
    pub(crate) line: Option<(String, u32)>,
}

/// A file, and the supplementary file of its debug file.
#[derive(Debug)]
pub(crate) struct SymbolModule {
    pub(crate) source: Rc<FileSource>,
    pub(crate) layout: FileLayout,
    shared: Option<(Rc<FileSource>, FileLayout)>,
    tables: RefCell<Option<[Option<SymbolTable>; 2]>>,
    lines: RefCell<LineTable>,
    interpreted: Cell<u64>,
}

/// State of the debugging information.
#[derive(Default)]
enum LineTable {
    #[default]
    Unread,
    /// Parsed information, pieces of the file and of the shared file, and number of bytes of
    /// decompressed sections.
    Read(Box<DebugInfo>, Vec<Rc<PieceSource>>, u64),
    /// Missing, or unreadable.
    Unusable,
}

impl std::fmt::Debug for LineTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LineTable::Unread => "Unread",
            LineTable::Read(..) => "Read",
            LineTable::Unusable => "Unusable",
        })
    }
}

impl SymbolModule {
    /// A file with its layout. `shared` is the target of `.gnu_debugaltlink`.
    pub(crate) fn new(
        source: Rc<FileSource>,
        layout: FileLayout,
        shared: Option<(Rc<FileSource>, FileLayout)>,
    ) -> SymbolModule {
        SymbolModule {
            source,
            layout,
            shared,
            tables: RefCell::default(),
            lines: RefCell::default(),
            interpreted: Cell::new(0),
        }
    }

    /// Returns the functions at an address of the file (`p_vaddr`), the innermost inlined one
    /// first. The list is empty if no function is known.
    pub(crate) fn calls(&self, address: u64) -> Vec<FoundCall> {
        let mut calls = self.line_calls(address).unwrap_or_default();
        let Some(outermost) = calls.last_mut() else {
            let symbol = self.symbol(address);
            return symbol
                .map(|(_, name)| FoundCall { name: Some(name), line: None })
                .into_iter()
                .collect();
        };
        if outermost.name.is_none() {
            outermost.name = self.symbol(address).map(|(_, name)| name);
            if outermost.name.is_none() {
                return Vec::new();
            }
        }
        calls
    }

    /// The symbol that covers an address: where it begins, and its name.
    pub(crate) fn symbol(&self, address: u64) -> Option<(u64, String)> {
        let mut tables = self.tables.borrow_mut();
        let tables = tables.get_or_insert_with(|| {
            [table::SYMBOLS, table::DYNAMIC_SYMBOLS]
                .map(|kind| SymbolTable::read(&self.source, &self.layout, kind))
        });
        tables.iter().flatten().find_map(|table| table.find(&self.source, address))
    }

    /// The supplementary file, which several debug files share.
    pub(crate) fn shared_file(&self) -> Option<(&FileSource, &FileLayout)> {
        self.shared.as_ref().map(|(source, layout)| (&**source, layout))
    }

    /// Approximate memory of the parsed data, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        let tables = self.tables.borrow();
        let tables: u64 = tables.iter().flatten().flatten().map(SymbolTable::bytes).sum();
        tables
            + match &*self.lines.borrow() {
                LineTable::Read(info, pieces, decompressed) => {
                    decompressed + info.bytes() + pieces.iter().map(|it| it.bytes()).sum::<u64>()
                }
                LineTable::Unread | LineTable::Unusable => 0,
            }
    }

    /// Drops the parsed data; the next lookup reads the file again.
    pub(crate) fn forget(&self) {
        self.tables.take();
        let mut lines = self.lines.borrow_mut();
        if matches!(*lines, LineTable::Read(..)) {
            *lines = LineTable::Unread;
        }
    }

    fn line_calls(&self, address: u64) -> Option<Vec<FoundCall>> {
        let mut lines = self.lines.borrow_mut();
        if matches!(*lines, LineTable::Unread) {
            *lines = self.open().unwrap_or(LineTable::Unusable);
        }
        let LineTable::Read(info, pieces, _) = &mut *lines else { return None };
        if self.interpreted.get() > MAX_INTERPRETED {
            return None;
        }
        let used = |pieces: &[Rc<PieceSource>]| pieces.iter().map(|it| it.fuel.used()).sum::<u64>();
        let before = used(pieces);
        pieces.iter().for_each(|it| it.fuel.fill(TO_LOOK_UP));
        let calls = info.calls(address);
        self.interpreted.set(self.interpreted.get() + (used(pieces) - before));
        calls.ok()
    }

    fn open(&self) -> Option<LineTable> {
        if !self.layout.has_dwarf() || self.interpreted.get() > MAX_INTERPRETED {
            return None;
        }
        let mut decompressed = 0;
        let pieces = Rc::new(PieceSource::new(Rc::clone(&self.source)));
        let mut dwarf = load(&self.source, &self.layout, &pieces, &mut decompressed)?;
        let mut all = vec![pieces];
        if let Some((source, layout)) = &self.shared {
            let pieces = Rc::new(PieceSource::new(Rc::clone(source)));
            dwarf.set_sup(load(source, layout, &pieces, &mut decompressed)?);
            all.push(pieces);
        }
        let info = DebugInfo::parse(dwarf).ok()?;
        let used: u64 = all.iter().map(|it| it.fuel.used()).sum();
        self.interpreted.set(self.interpreted.get() + used);
        Some(LineTable::Read(Box::new(info), all, decompressed))
    }
}

/// Loads the sections of a file that describe functions and lines.
fn load(
    source: &FileSource,
    layout: &FileLayout,
    pieces: &Rc<PieceSource>,
    decompressed: &mut u64,
) -> Option<Dwarf<PieceReader>> {
    const NEEDED: [SectionId; 10] = [
        SectionId::DebugAbbrev,
        SectionId::DebugAddr,
        SectionId::DebugAranges,
        SectionId::DebugInfo,
        SectionId::DebugLine,
        SectionId::DebugLineStr,
        SectionId::DebugRanges,
        SectionId::DebugRngLists,
        SectionId::DebugStr,
        SectionId::DebugStrOffsets,
    ];
    pieces.fuel.fill(TO_OPEN);
    let mut section = |id: SectionId| {
        let found = layout.find(id.name().as_bytes()).filter(|_| NEEDED.contains(&id));
        let Some(section) = found else {
            return Some(PieceReader::of_memory(pieces, layout.endian, Vec::new()));
        };
        if !section.is_compressed() {
            return Some(PieceReader::of_file(pieces, layout.endian, section.offset, section.size));
        }
        let bytes = layout.decompressed(source, section, MAX_DECOMPRESSED - *decompressed)?;
        *decompressed += bytes.len() as u64;
        Some(PieceReader::of_memory(pieces, layout.endian, bytes))
    };
    Dwarf::load(|id| section(id).ok_or(())).ok()
}
