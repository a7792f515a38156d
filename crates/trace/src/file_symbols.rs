//! Functions and lines of files that are known by path and build ID, such as those of a program
//! that has ended.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagewise_model::Name;
use pagewise_model::traced::Frame;
use pagewise_proc::target_file::{MAX_ELF_BYTES, TargetRoot};

use crate::elf::{FileLayout, FileSource};
use crate::files::{self, DEBUG};
use crate::links::{DebugFilePath, DebugLinks};
use crate::symbolizer::SymbolModule as Opened;
use crate::symbols;

/// A file as it was when the program ran.
#[derive(Clone, Copy, Debug)]
pub struct MappedModule<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Its build ID; empty where it has none.
    pub build_id: &'a [u8],
    /// Time of the run, in nanoseconds since 1970. A file without a build ID that was changed later
    /// counts as another file.
    pub ran_ns: u64,
}

/// Reason why a file has no symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is not there, or cannot be read, and no debugging information of its build is installed.
    Missing,
    /// The file is another build.
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

/// Approximate memory of the parsed data of one file, in bytes. Beyond it, the data is dropped and
/// parsed again.
const MAX_MEMORY: u64 = 160 << 20;

/// Looks up the functions and lines of addresses in files.
#[derive(Debug)]
pub struct FileSymbols {
    links: DebugLinks,
}

impl Default for FileSymbols {
    fn default() -> FileSymbols {
        FileSymbols::with_debug_folders(&[PathBuf::from(DEBUG)])
    }
}

impl FileSymbols {
    /// Uses debugging information in folders that are laid out as `/usr/lib/debug` is.
    pub fn with_debug_folders(folders: &[PathBuf]) -> FileSymbols {
        FileSymbols { links: DebugLinks::new(folders) }
    }

    /// The frames of addresses in the file (`p_vaddr`): for each the innermost inlined function
    /// first. For return addresses pass the addresses of the calls before them. A frame without
    /// symbols has no function.
    ///
    /// Each call reads the file, so pass all addresses of a file at once.
    pub fn frames(
        &mut self,
        module: &MappedModule<'_>,
        addresses: &[u64],
    ) -> (Vec<Vec<Frame>>, Option<Unusable>) {
        let unknown = |address: u64| Frame {
            function: None,
            module: Some(Name::new(module.path)).filter(|name| !name.is_empty()),
            offset: address,
            line: None,
            inlined: false,
        };
        let (modules, mut unusable) = match self.modules(module) {
            Ok(modules) => (modules, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let look_up = |address: &u64| {
            let found = symbols::frames(files::calls(&modules, *address), &unknown(*address));
            if modules.iter().map(Opened::weight).sum::<u64>() > MAX_MEMORY {
                modules.iter().for_each(Opened::forget);
            }
            found
        };
        let frames = addresses.iter().map(look_up).collect();
        if modules.iter().any(|module| module.source.has_changed()) {
            unusable = Some(Unusable::Changed);
        }
        (frames, unusable)
    }

    /// Sources of symbols, best first: debugging information by build ID or link, then the file.
    pub(crate) fn modules(&self, module: &MappedModule<'_>) -> Result<Vec<Opened>, Unusable> {
        let path = Path::new(OsStr::from_bytes(module.path));
        let id = Some(module.build_id).filter(|id| !id.is_empty());
        let own = TargetRoot::own().map_err(|_| Unusable::Missing)?;
        self.file(&own, path, id, module.ran_ns).or_else(|why| {
            let debug = id.and_then(|id| self.links.of_build(id, &own));
            debug.map(|debug| vec![debug]).ok_or(why)
        })
    }

    /// The debugging information of the file, then the file itself, if it is the one that ran.
    fn file(
        &self,
        own: &TargetRoot,
        path: &Path,
        id: Option<&[u8]>,
        ran_ns: u64,
    ) -> Result<Vec<Opened>, Unusable> {
        let file = own.open(path, MAX_ELF_BYTES).map_err(|_| Unusable::Missing)?;
        let changed = file.metadata().map_err(|_| Unusable::Missing)?;
        let source = FileSource::from(file);
        let layout = FileLayout::parse(&source).ok_or(Unusable::OtherBuild)?;
        match id {
            Some(_) if layout.build_id.as_deref() != id => return Err(Unusable::OtherBuild),
            Some(_) => {}
            None => {
                let seconds = u64::try_from(changed.mtime()).unwrap_or(0);
                if seconds > ran_ns / 1_000_000_000 {
                    return Err(Unusable::Changed);
                }
            }
        }
        let places = [DebugFilePath { root: own, folder: path.parent().map(Path::to_owned) }];
        Ok(self.links.modules(source, layout, &places))
    }
}
