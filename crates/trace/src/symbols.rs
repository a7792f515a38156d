//! Which function and line a place is in.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use pagewise_model::Name;
use pagewise_model::traced::{Frame, Line};

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
    /// Where in the file, or the address.
    offset: u64,
    /// Whether it is where a call returns to, behind the call.
    returns: bool,
}

impl Place {
    /// Of an address of a process now.
    pub(crate) fn of(spaces: &Spaces, pid: u32, address: u64, returns: bool) -> Place {
        let region = spaces.find(pid, address);
        let (module, inode) = region.map_or((Name::default(), 0), |it| (it.name.clone(), it.inode));
        let offset = region
            .filter(|region| region.is_file())
            .map_or(address, |region| address - region.start + region.offset);
        Place { pid, module, inode, offset, returns }
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

/// Finds functions and lines, with their inlined callees. Each place is looked up once.
#[derive(Debug)]
pub struct Symbols {
    symbolizer: Symbolizer,
    /// Where a file is that can be opened now; none where there is no such file any more.
    files: HashMap<(Name, u64), Option<PathBuf>>,
    known: HashMap<Place, Rc<[Frame]>>,
    jits: HashMap<u32, jit::Map>,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols {
            symbolizer: Symbolizer::new(),
            files: HashMap::new(),
            known: HashMap::new(),
            jits: HashMap::new(),
        }
    }
}

impl Symbols {
    /// The frames of a place: the innermost inlined function first.
    pub fn frames(&mut self, place: &Place) -> Rc<[Frame]> {
        if let Some(known) = self.known.get(place) {
            return Rc::clone(known);
        }
        let frames: Rc<[Frame]> = self.look_up(place).into();
        self.known.insert(place.clone(), Rc::clone(&frames));
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
        if place.inode == 0 {
            let map = self.jits.entry(place.pid).or_insert_with(|| jit::Map::of(place.pid));
            let function = map.find(place.instruction()).map(str::to_owned);
            return vec![Frame { function, ..unknown }];
        }
        let Some(path) = self.file(place) else { return vec![unknown] };
        let source = Source::Elf(Elf::new(path));
        let input = Input::FileOffset(place.instruction());
        match self.symbolizer.symbolize_single(&source, input) {
            Ok(Symbolized::Sym(symbol)) => frames(&symbol, &unknown),
            _ => vec![unknown],
        }
    }

    /// The file of a place, in the process's own view of the file system while it runs: a container has another.
    fn file(&mut self, place: &Place) -> Option<PathBuf> {
        let key = (place.module.clone(), place.inode);
        let found = self.files.entry(key).or_insert_with(|| {
            let path = Path::new(OsStr::from_bytes(place.module.as_bytes()));
            let within = path.strip_prefix("/").ok()?;
            let seen = Path::new("/proc").join(place.pid.to_string()).join("root").join(within);
            let is_it = |path: &PathBuf| {
                fs::metadata(path).is_ok_and(|file| file.is_file() && file.ino() == place.inode)
            };
            [seen, path.to_owned()].into_iter().find(is_it)
        });
        found.clone()
    }
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
