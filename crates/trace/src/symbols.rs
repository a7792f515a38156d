//! Functions and source lines of code locations.
//!
//! | code | read from |
//! |---|---|
//! | files | the file as its process sees it, also in a container and after it was deleted, while the process lives |
//! | stripped files | their debugging information, where it is installed: by build ID, else by `.gnu_debuglink` ([`crate::links`]) |
//! | `[vdso]` | our own: all programs of 64 bits have the same |
//! | just-in-time compilers | `/tmp/perf-<pid>.map`, where they write it; jitdump is not read |
//!
//! A process's view of the file system ends with the process: [`Symbols::keep`] opens the needed
//! files before.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use pagewise_model::mapping::Device;
use pagewise_model::traced::{Frame, SourcePosition};
use pagewise_model::{Absent, Name};
use pagewise_proc::target_file::FileId;

use crate::elf::{FileLayout, FileSource};
use crate::files::{self, CodeFiles, VDSO};
use crate::jit;
use crate::spaces::Spaces;
use crate::symbolizer::{FoundCall, SymbolModule};

/// Maximum approximate number of bytes of the parsed data of files. Beyond it, all of that data is
/// dropped.
const MAX_MEMORY: u64 = 160 << 20;
/// Maximum number of bytes of memory of all maps of just-in-time compilers.
const MAX_JIT_MEMORY: u64 = 64 << 20;
/// Number of lookups between two counts of memory.
const COUNTED_EVERY: u32 = 64;

/// A location in code, described so that it outlives the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodePlace {
    /// Process ID.
    pid: u32,
    /// Name of the mapped file; empty for memory without a file.
    module: Name,
    /// The file's inode; 0 if the mapping has no file.
    inode: u64,
    /// The file's device.
    device: Device,
    /// Offset in the file or the vDSO, else the address.
    offset: u64,
    /// True if the location is a return address.
    returns: bool,
}

impl CodePlace {
    /// Location of an address of a process now.
    pub(crate) fn locate(spaces: &Spaces, pid: u32, address: u64, returns: bool) -> CodePlace {
        let unknown = CodePlace {
            pid,
            module: Name::default(),
            inode: 0,
            device: Device::default(),
            offset: address,
            returns,
        };
        let Some(region) = spaces.find(pid, address) else { return unknown };
        // Code that a just-in-time compiler writes to shared memory belongs to no file: it is
        // identified by its address.
        let is_made = region.name.as_bytes().starts_with(b"/memfd:");
        let inode = if is_made { 0 } else { region.inode };
        let offset = match region.name.as_bytes() {
            VDSO => address - region.start,
            _ if inode != 0 => address - region.start + region.offset,
            _ => address,
        };
        let device = if inode == 0 { Device::default() } else { region.device };
        CodePlace { module: region.name.clone(), inode, device, offset, ..unknown }
    }

    /// The location without its process ID, if it is in a file: a location in a file is the same in
    /// all processes.
    pub(crate) fn key(&self) -> CodePlace {
        CodePlace { pid: if self.inode == 0 { self.pid } else { 0 }, ..self.clone() }
    }

    /// Identity of the location's file, if it is in a file.
    fn file(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }

    /// Opens the file that a later lookup needs.
    pub(crate) fn keep(&self, files: &mut CodeFiles) {
        match self.inode {
            0 if self.module.as_bytes() == VDSO => {}
            0 => files.keep_jit(self.pid),
            _ => files.keep(self.pid, &self.module, self.file()),
        }
    }

    /// A frame with the location, without a function.
    pub(crate) fn unresolved(&self) -> Frame {
        Frame {
            function: None,
            module: Some(self.module.clone()).filter(|name| !name.is_empty()),
            offset: self.offset,
            line: None,
            inlined: false,
        }
    }

    /// Address of the instruction: for a return address, inside the call before it.
    fn instruction(&self) -> u64 {
        self.offset.saturating_sub(self.returns.into())
    }
}

/// Finds functions and lines, with their inlined callees. Each code location is looked up once.
#[derive(Debug)]
pub struct Symbols {
    files: CodeFiles,
    known: HashMap<CodePlace, Rc<[Frame]>>,
    jits: HashMap<u32, jit::JitMap>,
    vdso: Option<Option<SymbolModule>>,
    looked_up: u32,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::with(CodeFiles::default())
    }
}

impl Symbols {
    /// Returns a lookup with debugging information in other folders, each laid out as
    /// `/usr/lib/debug` is.
    pub fn with_debug_folders(folders: &[PathBuf]) -> Symbols {
        Symbols::with(CodeFiles::with_debug_folders(folders))
    }

    /// Returns a lookup with files that are already open.
    pub(crate) fn with(files: CodeFiles) -> Symbols {
        let (known, jits) = (HashMap::new(), HashMap::new());
        Symbols { files, known, jits, vdso: None, looked_up: 0 }
    }

    /// Opens the files of locations, so that they can be looked up after their process has ended.
    /// For files that are already open, the cost is one table look-up.
    pub fn keep(&mut self, places: &[impl Borrow<CodePlace>]) {
        places.iter().for_each(|place| place.borrow().keep(&mut self.files));
    }

    /// Returns the frames of a code location: the innermost inlined function first.
    pub fn frames(&mut self, place: &CodePlace) -> Rc<[Frame]> {
        // A code location in a file is the same in each process.
        let pid = if place.inode == 0 { place.pid } else { 0 };
        let key = CodePlace { pid, ..place.clone() };
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let frames: Rc<[Frame]> = self.look_up(place).into();
        self.known.insert(key, Rc::clone(&frames));
        frames
    }

    fn look_up(&mut self, place: &CodePlace) -> Vec<Frame> {
        let unknown = place.unresolved();
        let calls = match place.inode {
            0 if place.module.as_bytes() == VDSO => self.in_vdso(place),
            0 => self.in_jit(place),
            _ => self.in_file(place),
        };
        frames(calls, &unknown)
    }

    fn in_file(&mut self, place: &CodePlace) -> Vec<FoundCall> {
        let Some(opened) = self.files.get(place.pid, &place.module, place.file()) else {
            return Vec::new();
        };
        let calls = opened.calls(place.instruction());
        self.looked_up = self.looked_up.wrapping_add(1);
        if self.looked_up.is_multiple_of(COUNTED_EVERY) {
            let all: u64 = self.files.all().map(|(_, opened)| opened.weight()).sum();
            if all > MAX_MEMORY {
                self.files.all().for_each(|(_, opened)| opened.forget());
            }
        }
        calls
    }

    fn in_jit(&mut self, place: &CodePlace) -> Vec<FoundCall> {
        if !self.jits.contains_key(&place.pid) {
            let map = self.files.jit(place.pid).and_then(|it| it.read()).unwrap_or_default();
            let others: u64 = self.jits.values().map(jit::JitMap::bytes).sum();
            if others + map.bytes() > MAX_JIT_MEMORY {
                self.jits.clear();
            }
            self.jits.insert(place.pid, map);
        }
        let name = self.jits.get(&place.pid).and_then(|map| map.find(place.instruction()));
        name.map(|name| FoundCall { name: Some(name), line: None }).into_iter().collect()
    }

    fn in_vdso(&mut self, place: &CodePlace) -> Vec<FoundCall> {
        let read = || {
            let source = Rc::new(FileSource::Memory(files::vdso()?));
            let layout = FileLayout::parse(&source)?;
            Some(SymbolModule::new(source, layout, None))
        };
        let module = self.vdso.get_or_insert_with(read).as_ref();
        let address = module.and_then(|it| it.layout.segments.address(place.instruction()));
        module.zip(address).map(|(module, address)| module.calls(address)).unwrap_or_default()
    }

    /// Reasons for missing functions: files that were written to after they were opened.
    pub fn lacks(&self) -> Vec<Absent> {
        let changed = self.files.all().filter(|(_, opened)| opened.has_changed());
        let mut names: Vec<&Name> = changed.map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        let lack = |name: &Name| {
            let name = name.escaped();
            let what = format!("functions of {name}: the file was written to after it was opened");
            Absent::NotCollected(what.into())
        };
        names.into_iter().map(lack).collect()
    }
}

/// Converts the result to frames; an empty result becomes the unknown frame.
pub(crate) fn frames(calls: Vec<FoundCall>, unknown: &Frame) -> Vec<Frame> {
    let Some(last) = calls.len().checked_sub(1) else { return vec![unknown.clone()] };
    let frames = calls.into_iter().enumerate().map(|(depth, call)| Frame {
        function: call.name.map(|name| demangled(&name)),
        line: call.line.map(|(file, number)| SourcePosition { file, number }),
        inlined: depth < last,
        ..unknown.clone()
    });
    frames.collect()
}

/// Approximate size of a frame, in bytes.
pub(crate) fn bytes_of(frame: &Frame) -> usize {
    let function = frame.function.as_ref().map_or(0, String::len);
    let file = frame.line.as_ref().map_or(0, |line| line.file.len());
    size_of::<Frame>() + function + file + 32
}

/// Returns a name as it is in the source code. Only mangled names are changed, because demanglers
/// treat a C function called `t` as a type.
pub fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let mangled = Some(name).filter(|name| name.starts_with("_Z"));
    let symbol = mangled.and_then(|name| cpp_demangle::Symbol::new(name).ok());
    let text = symbol.and_then(|symbol| {
        let mut text = Bounded(String::new());
        let options = cpp_demangle::DemangleOptions::default();
        symbol.structured_demangle(&mut text, &options).ok().map(|()| text.0)
    });
    text.unwrap_or_else(|| name.to_owned())
}

/// Text of a limited length: each reference in a mangled name can double it.
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        const MAX: usize = 256 << 10;
        if self.0.len() + text.len() > MAX {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_whose_references_double_it_again_and_again_stays_as_it_is() {
        let mut name = "_Z1fSt4pairIiiE".to_owned();
        for at in 0..40 {
            let before = if at == 0 { "S".to_owned() } else { format!("S{}", base_36(at - 1)) };
            name.push_str(&format!("St4pairI{before}_{before}_E"));
        }
        assert!(demangled(&name).len() <= 256 << 10);
    }

    /// Number of a back reference in a mangled name.
    fn base_36(number: usize) -> String {
        let digit =
            |it| char::from_digit(u32::try_from(it).unwrap(), 36).unwrap().to_ascii_uppercase();
        match number {
            0..36 => digit(number).to_string(),
            _ => format!("{}{}", digit(number / 36), digit(number % 36)),
        }
    }

    #[test]
    fn only_mangled_names_are_demangled() {
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
