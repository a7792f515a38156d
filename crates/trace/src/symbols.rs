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
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Process, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use pagewise_model::Name;
use pagewise_model::traced::{Frame, Line};

use crate::elf::{Bytes, Headers};
use crate::files::{self, VDSO};
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

    /// Where the instruction is: a call is before where it returns to.
    fn instruction(&self) -> u64 {
        self.offset.saturating_sub(self.returns.into())
    }
}

/// A file of code, held open: it may be deleted, and its process end.
#[derive(Debug)]
struct Opened {
    file: Held,
    /// Its debugging information, and where in memory what is at an offset goes.
    debug: Option<(Held, Headers)>,
}

/// A file, and a path to it for as long as it is open, whatever happens to its name.
#[derive(Debug)]
struct Held {
    _file: File,
    path: PathBuf,
}

impl Held {
    fn new(file: File) -> Held {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
        Held { _file: file, path }
    }
}

/// Finds functions and lines, with their inlined callees. Each place is looked up once.
#[derive(Debug)]
pub struct Symbols {
    symbolizer: Symbolizer,
    debug: Vec<PathBuf>,
    /// None where there is no such file any more.
    files: HashMap<(Name, u64), Option<Rc<Opened>>>,
    known: HashMap<Place, Rc<[Frame]>>,
    jits: HashMap<u32, jit::Map>,
    /// Where our own is.
    vdso: Option<Option<u64>>,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::with_debug_folders(&[PathBuf::from(DEBUG)])
    }
}

/// Where distributions install debugging information.
const DEBUG: &str = "/usr/lib/debug";

impl Symbols {
    /// With debugging information in other folders, each laid out as `/usr/lib/debug` is.
    pub fn with_debug_folders(folders: &[PathBuf]) -> Symbols {
        Symbols {
            symbolizer: Symbolizer::builder().set_debug_dirs(Some(folders)).build(),
            debug: folders.to_vec(),
            files: HashMap::new(),
            known: HashMap::new(),
            jits: HashMap::new(),
            vdso: None,
        }
    }

    /// Opens the files of places, so that they can be looked up when their process is gone. Of files that are open already,
    /// it costs a look into a table.
    pub fn keep(&mut self, places: &[impl Borrow<Place>]) {
        let places = places.iter().map(Borrow::borrow);
        for place in places.filter(|place| place.inode != 0) {
            let _ = self.opened(place);
        }
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
        let opened = self.opened(place)?;
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

    /// The file of a place.
    fn opened(&mut self, place: &Place) -> Option<Rc<Opened>> {
        let Symbols { files, debug, .. } = self;
        let key = (place.module.clone(), place.inode);
        let opened = files.entry(key).or_insert_with(|| {
            let file = files::open(place.pid, &place.module, place.inode)?;
            let bytes = Bytes::File(file);
            let headers = Headers::of(&bytes);
            let Bytes::File(file) = bytes else { return None };
            let root = Path::new("/proc").join(place.pid.to_string()).join("root");
            let debug = headers.and_then(|headers| {
                let within = debug.iter().filter_map(|folder| folder.strip_prefix("/").ok());
                let within = within.map(|folder| root.join(folder));
                Some((with_build_id(&headers, within.chain(debug.iter().cloned()))?, headers))
            });
            Some(Rc::new(Opened { file: Held::new(file), debug }))
        });
        opened.clone()
    }
}

/// The debugging information of a file, in one of some folders: what has the same build ID is of the same build.
fn with_build_id(headers: &Headers, mut folders: impl Iterator<Item = PathBuf>) -> Option<Held> {
    let id = headers.build_id.as_deref()?;
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!(".build-id/{first:02x}/{rest}.debug");
    folders.find_map(|folder| {
        let held = Held::new(files::open_regular(&folder.join(&name), |_| true)?);
        let found = read_elf_build_id(&held.path).ok().flatten();
        (found.as_deref() == Some(id)).then_some(held)
    })
}

/// Of a symbol, the functions that are inlined at the place and the one that they are inlined into.
fn frames(symbol: &Sym<'_>, unknown: &Frame) -> Vec<Frame> {
    let outermost = (symbol.name.as_ref(), symbol.code_info.as_deref());
    let inlined =
        symbol.inlined.iter().map(|inner| (inner.name.as_ref(), inner.code_info.as_ref()));
    let calls: Vec<(&str, Option<&CodeInfo<'_>>)> =
        std::iter::once(outermost).chain(inlined).collect();
    let frames = calls.iter().enumerate().rev().map(|(depth, (name, code))| Frame {
        function: Some((*name).to_owned()),
        line: code.map(|code| line(code)),
        inlined: depth > 0,
        ..unknown.clone()
    });
    frames.collect()
}

fn line(code: &CodeInfo<'_>) -> Line {
    let file = code.to_path().to_string_lossy().into_owned();
    Line { file, number: code.line.unwrap_or(0) }
}
