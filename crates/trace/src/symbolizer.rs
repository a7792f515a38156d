//! Functions, lines and inlined functions of one file, whose bytes are read by `pread`.
//!
//! The file belongs to whoever may harm us, and it may change while it is read:
//!
//! | danger | answer |
//! |---|---|
//! | truncation, which ends a process that has the file mapped by SIGBUS | nothing is mapped: [`reader`] keeps copies of the pieces that were needed |
//! | links to other files (`.gnu_debuglink`, `.gnu_debugaltlink`) | nothing is opened here: [`crate::links`] opens what a link may lead to |
//! | tables that make much of little: a row of 16 bytes for each byte, one table for thousands of units | lists have limits, and every byte that is interpreted takes [`reader::Fuel`]; what was made of it is dropped when it has become much |
//! | entries a million levels deep, references in a circle | [`dwarf`] has limits and does not recurse |
//! | compressed sections | decompressed up to [`MAX_DECOMPRESSED`] |
//! | millions of units or symbols | refused above the limits in [`dwarf`] and [`table`] |
//!
//! A child process that maps the file and may die was the other choice. It would be no faster, it could not be had in a program
//! with threads that uses this crate as a library, and would still interpret bytes that change under it.
//!
//! What is missing in DWARF is looked up in the symbol tables.

mod dwarf;
mod layout;
mod reader;
mod table;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;

use gimli::{Dwarf, SectionId};

use dwarf::Info;
pub(crate) use layout::Layout;
use reader::{Pieces, Reader};
use table::Table;

/// Bytes of decompressed sections of a file.
const MAX_DECOMPRESSED: u64 = 256 << 20;
/// Bytes that are interpreted to find which unit an address is in, and to look one address up.
const TO_OPEN: u64 = 512 << 20;
const TO_LOOK_UP: u64 = 64 << 20;
/// Bytes that are interpreted of a file, all together. Those of a browser's whole run are fewer.
const MAX_INTERPRETED: u64 = 2 << 30;

/// What a file is read from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file.
    File(Original),
    /// Memory.
    Memory(Vec<u8>),
}

/// A file as it was when it was opened. Nothing is read of it once it was changed: no name is better than a wrong one, and code
/// that reads a table twice may rely on reading the same.
#[derive(Debug)]
pub(crate) struct Original {
    file: File,
    /// Its size, and when it was written to.
    state: (u64, i64, i64),
    changed: Cell<bool>,
}

fn state(file: &File) -> (u64, i64, i64) {
    file.metadata().map_or((0, 0, 0), |it| (it.len(), it.mtime(), it.mtime_nsec()))
}

impl From<File> for Source {
    fn from(file: File) -> Source {
        let state = state(&file);
        Source::File(Original { file, state, changed: Cell::new(false) })
    }
}

impl Original {
    /// Reads as many bytes as there are. How many; `None` where it cannot be read, or is no longer what it was.
    fn read(&self, offset: u64, to: &mut [u8]) -> Option<usize> {
        let mut filled = 0;
        while filled < to.len() {
            let at = offset.checked_add(filled as u64)?;
            match self.file.read_at(&mut to[filled..], at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        // After the reading: what was read is of the original then.
        self.changed.set(self.changed.get() || state(&self.file) != self.state);
        (!self.changed.get()).then_some(filled)
    }
}

impl Source {
    /// Bytes from an offset on, as many as there are, at least one. `None` where there is none or it cannot be read.
    fn read_into(&self, offset: u64, to: &mut [u8]) -> Option<usize> {
        let count = match self {
            Source::File(original) => original.read(offset, to)?,
            Source::Memory(bytes) => {
                let rest = bytes.get(usize::try_from(offset).ok()?..)?;
                let count = rest.len().min(to.len());
                to[..count].copy_from_slice(&rest[..count]);
                count
            }
        };
        (count > 0).then_some(count)
    }

    /// Bytes from an offset on: as many, or those that there are.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        // No more memory is asked for than the file has bytes.
        let length = self.size().checked_sub(offset)?.min(length);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Some(bytes)
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Source::File(original) => original.state.0,
            Source::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Whether something could not be read of it, since it was written to after it was opened.
    pub(crate) fn has_changed(&self) -> bool {
        matches!(self, Source::File(original) if original.changed.get())
    }
}

/// A function that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its name as the file has it.
    pub(crate) name: Option<String>,
    /// The path and number of the line.
    pub(crate) line: Option<(String, u32)>,
}

/// A file, and the one that has what several debug files share.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) source: Rc<Source>,
    pub(crate) layout: Layout,
    shared: Option<(Rc<Source>, Layout)>,
    tables: RefCell<Option<[Option<Table>; 2]>>,
    lines: RefCell<Lines>,
    interpreted: Cell<u64>,
}

/// What was made of the debugging information.
#[derive(Default)]
enum Lines {
    #[default]
    Unread,
    /// With pieces of the file, and of the shared one, and the bytes of decompressed sections.
    Read(Box<Info>, Vec<Rc<Pieces>>, u64),
    /// There is none, or it cannot be read.
    Unusable,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lines::Unread => "Unread",
            Lines::Read(..) => "Read",
            Lines::Unusable => "Unusable",
        })
    }
}

impl Module {
    /// Of a file with its layout. The other one is where `.gnu_debugaltlink` leads.
    pub(crate) fn new(
        source: Rc<Source>,
        layout: Layout,
        shared: Option<(Rc<Source>, Layout)>,
    ) -> Module {
        Module {
            source,
            layout,
            shared,
            tables: RefCell::default(),
            lines: RefCell::default(),
            interpreted: Cell::new(0),
        }
    }

    /// The functions at an address as the file has it (`p_vaddr`), the innermost inlined one first. Empty where none is known.
    pub(crate) fn calls(&self, address: u64) -> Vec<Call> {
        let mut calls = self.line_calls(address).unwrap_or_default();
        let Some(outermost) = calls.last_mut() else {
            let symbol = self.symbol(address);
            return symbol
                .map(|(_, name)| Call { name: Some(name), line: None })
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
                .map(|kind| Table::read(&self.source, &self.layout, kind))
        });
        tables.iter().flatten().find_map(|table| table.find(&self.source, address))
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn weight(&self) -> u64 {
        let tables = self.tables.borrow();
        let tables: u64 = tables.iter().flatten().flatten().map(Table::bytes).sum();
        tables
            + match &*self.lines.borrow() {
                Lines::Read(info, pieces, decompressed) => {
                    decompressed + info.bytes() + pieces.iter().map(|it| it.bytes()).sum::<u64>()
                }
                Lines::Unread | Lines::Unusable => 0,
            }
    }

    /// Drops what was made of the file; it is read again when it is asked for.
    pub(crate) fn forget(&self) {
        self.tables.take();
        let mut lines = self.lines.borrow_mut();
        if matches!(*lines, Lines::Read(..)) {
            *lines = Lines::Unread;
        }
    }

    fn line_calls(&self, address: u64) -> Option<Vec<Call>> {
        let mut lines = self.lines.borrow_mut();
        if matches!(*lines, Lines::Unread) {
            *lines = self.open().unwrap_or(Lines::Unusable);
        }
        let Lines::Read(info, pieces, _) = &mut *lines else { return None };
        if self.interpreted.get() > MAX_INTERPRETED {
            return None;
        }
        let used = |pieces: &[Rc<Pieces>]| pieces.iter().map(|it| it.fuel.used()).sum::<u64>();
        let before = used(pieces);
        pieces.iter().for_each(|it| it.fuel.fill(TO_LOOK_UP));
        let calls = info.calls(address);
        self.interpreted.set(self.interpreted.get() + (used(pieces) - before));
        calls.ok()
    }

    fn open(&self) -> Option<Lines> {
        if !self.layout.has_dwarf() || self.interpreted.get() > MAX_INTERPRETED {
            return None;
        }
        let mut decompressed = 0;
        let pieces = Rc::new(Pieces::new(Rc::clone(&self.source)));
        let mut dwarf = load(&self.source, &self.layout, &pieces, &mut decompressed)?;
        let mut all = vec![pieces];
        if let Some((source, layout)) = &self.shared {
            let pieces = Rc::new(Pieces::new(Rc::clone(source)));
            dwarf.set_sup(load(source, layout, &pieces, &mut decompressed)?);
            all.push(pieces);
        }
        let info = Info::of(dwarf).ok()?;
        let used: u64 = all.iter().map(|it| it.fuel.used()).sum();
        self.interpreted.set(self.interpreted.get() + used);
        Some(Lines::Read(Box::new(info), all, decompressed))
    }
}

/// The sections of a file that functions and lines are in.
fn load(
    source: &Source,
    layout: &Layout,
    pieces: &Rc<Pieces>,
    decompressed: &mut u64,
) -> Option<Dwarf<Reader>> {
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
            return Some(Reader::of_memory(pieces, layout.endian, Vec::new()));
        };
        if !section.is_compressed() {
            return Some(Reader::of_file(pieces, layout.endian, section.offset, section.size));
        }
        let bytes = layout.decompressed(source, section, MAX_DECOMPRESSED - *decompressed)?;
        *decompressed += bytes.len() as u64;
        Some(Reader::of_memory(pieces, layout.endian, bytes))
    };
    Dwarf::load(|id| section(id).ok_or(())).ok()
}

/// What a section has once it is decompressed, if that are no more bytes.
fn inflate(bytes: &[u8], length: u64, at_most: u64) -> Option<Vec<u8>> {
    if length > at_most {
        return None;
    }
    let mut inflated = Vec::new();
    flate2::read::ZlibDecoder::new(bytes).take(length).read_to_end(&mut inflated).ok()?;
    (inflated.len() as u64 == length).then_some(inflated)
}
