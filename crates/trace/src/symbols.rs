//! Which function and line a place is in.
//!
//! | code | read from |
//! |---|---|
//! | files | the file as its process sees it, also in a container and after it was deleted, while the process lives |
//! | stripped files | their debugging information, where it is installed: by build ID, else by `.gnu_debuglink` |
//! | `[vdso]` | our own: all programs of 64 bits have the same |
//! | just-in-time compilers | `/tmp/perf-<pid>.map`, where they write it; jitdump is not read |
//!
//! Once the process is gone so is its view of the file system: [`Symbols::keep`] opens what will be asked for.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use blazesym::symbolize::source::{Elf, Process, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use pagewise_model::Name;
use pagewise_model::traced::{Frame, Line};

use crate::files::{self, Files, VDSO};
use crate::jit;
use crate::spaces::Spaces;

/// Where something happened, in words that outlive the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The process.
    pid: u32,
    /// The file that is mapped there; empty for memory of no file.
    module: Name,
    /// The file's inode; 0 where there is none.
    inode: u64,
    /// Where in the file or the vDSO, else the address.
    offset: u64,
    /// Whether it is where a call returns to, behind the call.
    returns: bool,
}

impl Place {
    /// Of an address of a process now.
    pub(crate) fn of(spaces: &Spaces, pid: u32, address: u64, returns: bool) -> Place {
        let unknown = Place { pid, module: Name::default(), inode: 0, offset: address, returns };
        let Some(region) = spaces.find(pid, address) else { return unknown };
        // What a compiler writes to shared memory is of no file that anyone wrote: it is known by its address.
        let is_made = region.name.as_bytes().starts_with(b"/memfd:");
        let inode = if is_made { 0 } else { region.inode };
        let offset = match region.name.as_bytes() {
            VDSO => address - region.start,
            _ if inode != 0 => address - region.start + region.offset,
            _ => address,
        };
        Place { module: region.name.clone(), inode, offset, ..unknown }
    }

    /// The same for all processes of a file; memory of no file is each process's own.
    pub(crate) fn key(&self) -> Place {
        Place { pid: if self.inode == 0 { self.pid } else { 0 }, ..self.clone() }
    }

    /// Has its file opened, if it is in one.
    pub(crate) fn keep(&self, files: &mut Files) {
        if self.inode != 0 {
            files.keep(self.pid, &self.module, self.inode);
        }
    }

    /// Where the instruction is: a call is before where it returns to.
    fn instruction(&self) -> u64 {
        self.offset.saturating_sub(self.returns.into())
    }
}

/// Finds functions and lines, with their inlined callees. Each place is looked up once.
#[derive(Debug)]
pub struct Symbols {
    symbolizer: Symbolizer,
    files: Files,
    known: HashMap<Place, Rc<[Frame]>>,
    jits: HashMap<u32, jit::Map>,
    /// Where our own is.
    vdso: Option<Option<u64>>,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::with(Files::default())
    }
}

impl Symbols {
    /// With debugging information in other folders, each laid out as `/usr/lib/debug` is.
    pub fn with_debug_folders(folders: &[PathBuf]) -> Symbols {
        Symbols::with(Files::with_debug_folders(folders))
    }

    /// With files that are open already.
    pub(crate) fn with(files: Files) -> Symbols {
        Symbols {
            symbolizer: Symbolizer::builder().set_debug_dirs(Some(files.debug_folders())).build(),
            files,
            known: HashMap::new(),
            jits: HashMap::new(),
            vdso: None,
        }
    }

    /// Opens the files of places, so that they can be looked up when their process is gone. Of files that are open already,
    /// it costs a look into a table.
    pub fn keep(&mut self, places: &[impl Borrow<Place>]) {
        places.iter().for_each(|place| place.borrow().keep(&mut self.files));
    }

    /// The frames of a place: the innermost inlined function first.
    pub fn frames(&mut self, place: &Place) -> Rc<[Frame]> {
        // A place in a file is the same in each process.
        let pid = if place.inode == 0 { place.pid } else { 0 };
        let key = Place { pid, ..place.clone() };
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let frames: Rc<[Frame]> = self.look_up(place).into();
        self.known.insert(key, Rc::clone(&frames));
        frames
    }

    fn look_up(&mut self, place: &Place) -> Vec<Frame> {
        let unknown = Frame {
            function: None,
            module: Some(place.module.clone()).filter(|name| !name.is_empty()),
            offset: place.offset,
            line: None,
            inlined: false,
        };
        let found = match place.inode {
            0 if place.module.as_bytes() == VDSO => self.in_vdso(place, &unknown),
            0 => {
                let map = self.jits.entry(place.pid).or_insert_with(|| jit::Map::of(place.pid));
                let function = map.find(place.instruction()).map(str::to_owned);
                Some(vec![Frame { function, ..unknown.clone() }])
            }
            _ => self.in_file(place, &unknown),
        };
        found.unwrap_or_else(|| vec![unknown])
    }

    fn in_file(&mut self, place: &Place, unknown: &Frame) -> Option<Vec<Frame>> {
        let opened = self.files.get(place.pid, &place.module, place.inode)?;
        let offset = place.instruction();
        let from_debug = opened.debug.as_ref().and_then(|(debug, headers)| {
            let address = Input::VirtOffset(headers.address(offset)?);
            self.symbolize(&Source::Elf(Elf::new(&debug.path)), address, unknown)
        });
        let from = |debug_syms| {
            let elf = Elf { debug_syms, ..Elf::new(&opened.file.path) };
            self.symbolize(&Source::Elf(elf), Input::FileOffset(offset), unknown)
        };
        // Where its debugging information cannot be read, its symbols may be.
        from_debug.or_else(|| from(true)).or_else(|| from(false))
    }

    fn in_vdso(&mut self, place: &Place, unknown: &Frame) -> Option<Vec<Frame>> {
        let find = || files::vdso().map(|(start, _)| start);
        let start = (*self.vdso.get_or_insert_with(find))?;
        let source = Source::Process(Process::new(blazesym::Pid::Slf));
        let address = start.checked_add(place.instruction())?;
        self.symbolize(&source, Input::AbsAddr(address), unknown)
    }

    fn symbolize(
        &self,
        source: &Source<'_>,
        input: Input<u64>,
        unknown: &Frame,
    ) -> Option<Vec<Frame>> {
        match self.symbolizer.symbolize_single(source, input) {
            Ok(Symbolized::Sym(symbol)) => Some(frames(&symbol, unknown)),
            _ => None,
        }
    }
}

/// Of a symbol, the functions that are inlined at the place and the one that they are inlined into.
pub(crate) fn frames(symbol: &Sym<'_>, unknown: &Frame) -> Vec<Frame> {
    let outermost = (symbol.name.as_ref(), symbol.code_info.as_deref());
    let inlined =
        symbol.inlined.iter().map(|inner| (inner.name.as_ref(), inner.code_info.as_ref()));
    let calls: Vec<(&str, Option<&CodeInfo<'_>>)> =
        std::iter::once(outermost).chain(inlined).collect();
    let frames = calls.iter().enumerate().rev().map(|(depth, (name, code))| Frame {
        function: Some(demangled(name)),
        line: code.map(|code| line(code)),
        inlined: depth > 0,
        ..unknown.clone()
    });
    frames.collect()
}

/// A name as its source has it. Only what is mangled: demanglers take a C function called `t` for a type.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let mangled = Some(name).filter(|name| name.starts_with("_Z"));
    let symbol = mangled.and_then(|name| cpp_demangle::Symbol::new(name).ok());
    let text = symbol.and_then(|symbol| symbol.demangle().ok());
    text.unwrap_or_else(|| name.to_owned())
}

fn line(code: &CodeInfo<'_>) -> Line {
    let file = code.to_path().to_string_lossy().into_owned();
    Line { file, number: code.line.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mangled_is_demangled_and_nothing_else() {
        let names = [
            ("t", "t"),
            ("main", "main"),
            ("_Z", "_Z"),
            ("_ZN3foo3barEv", "foo::bar()"),
            (
                "_ZN4core3ptr8non_null16NonNull$LT$T$GT$6as_ref17h0123456789abcdefE",
                "core::ptr::non_null::NonNull<T>::as_ref",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
        ];
        for (mangled, name) in names {
            assert_eq!(demangled(mangled), name);
        }
    }
}
