//! Functions and lines of files that are known by path and build ID: of a program that ended long ago.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use pagewise_model::Name;
use pagewise_model::traced::Frame;

use crate::elf::{Bytes, Headers};
use crate::files::{self, DEBUG, Held};
use crate::symbols;

/// A file as it was when the program ran.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Its build ID; empty where it has none.
    pub build_id: &'a [u8],
    /// When it ran, in nanoseconds since 1970: a file without a build ID that was changed since is another.
    pub ran_ns: u64,
}

/// Why a file tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is not there, or cannot be read, and no debugging information of its build is installed.
    Missing,
    /// What is there is another build.
    OtherBuild,
    /// It was changed since.
    Changed,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unusable::Missing => "it cannot be read here",
            Unusable::OtherBuild => "another build of it is there now",
            Unusable::Changed => "it was changed since",
        })
    }
}

/// Looks up places in files.
#[derive(Debug)]
pub struct FileSymbols {
    symbolizer: Symbolizer,
    debug: Vec<PathBuf>,
}

impl Default for FileSymbols {
    fn default() -> FileSymbols {
        FileSymbols::with_debug_folders(&[PathBuf::from(DEBUG)])
    }
}

impl FileSymbols {
    /// With debugging information in folders that are laid out as `/usr/lib/debug` is.
    pub fn with_debug_folders(folders: &[PathBuf]) -> FileSymbols {
        FileSymbols {
            symbolizer: Symbolizer::builder().set_debug_dirs(Some(folders)).build(),
            debug: folders.to_vec(),
        }
    }

    /// The frames of addresses, as the file has them (`p_vaddr`): of each the innermost inlined function first. Of return
    /// addresses, hand in those of the calls before them. Where nothing is found, a frame has no function.
    ///
    /// Files are read, so they are asked for all their addresses at once.
    pub fn frames(
        &mut self,
        module: &Module<'_>,
        addresses: &[u64],
    ) -> (Vec<Vec<Frame>>, Option<Unusable>) {
        let unknown = |address: u64| Frame {
            function: None,
            module: Some(Name::new(module.path)).filter(|name| !name.is_empty()),
            offset: address,
            line: None,
            inlined: false,
        };
        let (sources, unusable) = match self.sources(module) {
            Ok(sources) => (sources, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut frames: Vec<Option<Vec<Frame>>> = vec![None; addresses.len()];
        for (held, debug_syms) in &sources {
            let missing: Vec<usize> =
                (0..frames.len()).filter(|at| frames[*at].is_none()).collect();
            let asked: Vec<u64> = missing.iter().map(|at| addresses[*at]).collect();
            let elf = Elf { debug_syms: *debug_syms, ..Elf::new(&held.path) };
            let input = Input::VirtOffset(&asked[..]);
            // One that cannot be read leaves all to the next.
            let found = self.symbolizer.symbolize(&Source::Elf(elf), input).unwrap_or_default();
            for (at, found) in missing.into_iter().zip(found) {
                if let Symbolized::Sym(symbol) = found {
                    frames[at] = Some(symbols::frames(&symbol, &unknown(addresses[at])));
                }
            }
        }
        let all = frames.into_iter().zip(addresses);
        let all = all.map(|(found, address)| found.unwrap_or_else(|| vec![unknown(*address)]));
        (all.collect(), unusable)
    }

    /// What to ask, the best first: debugging information by build ID, the file with what it links to, the file alone.
    fn sources(&self, module: &Module<'_>) -> Result<Vec<(Held, bool)>, Unusable> {
        let path = Path::new(OsStr::from_bytes(module.path));
        let id = Some(module.build_id).filter(|id| !id.is_empty());
        let debug = id.and_then(|id| files::debug_file(id, self.debug.iter().cloned()));
        let mut sources: Vec<(Held, bool)> = debug.into_iter().map(|held| (held, true)).collect();
        match self.file(path, id, module.ran_ns) {
            Ok([with, alone]) => sources.extend([(with, true), (alone, false)]),
            Err(why) if sources.is_empty() => return Err(why),
            Err(_) => {}
        }
        Ok(sources)
    }

    /// The file itself, if it is the one that ran, opened twice: what reads it keeps what it has read by its path.
    fn file(&self, path: &Path, id: Option<&[u8]>, ran_ns: u64) -> Result<[Held; 2], Unusable> {
        if !path.is_absolute() {
            return Err(Unusable::Missing);
        }
        let open = || files::open_regular(path, |_| true).ok_or(Unusable::Missing);
        let file = open()?;
        let changed = file.metadata().map_err(|_| Unusable::Missing)?;
        let bytes = Bytes::File(file);
        let headers = Headers::of(&bytes).ok_or(Unusable::OtherBuild)?;
        match id {
            Some(_) if headers.build_id.as_deref() != id => return Err(Unusable::OtherBuild),
            Some(_) => {}
            None => {
                let seconds = u64::try_from(changed.mtime()).unwrap_or(0);
                if seconds > ran_ns / 1_000_000_000 {
                    return Err(Unusable::Changed);
                }
            }
        }
        let Bytes::File(file) = bytes else { return Err(Unusable::Missing) };
        Ok([Held::new(file), Held::new(open()?)])
    }
}
