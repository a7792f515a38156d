//! Separate debug files: by build ID, by `.gnu_debuglink`, and what several of them share, by
//! `.gnu_debugaltlink`.
//!
//! The names in a file are chosen by its author and not trusted. They are looked up only where
//! debug files are: beside the file, in `.debug` beside it, and in the folders of debug files; in
//! the root of the process first if the file is from there, and never by a name with folders in it
//! (`.gnu_debuglink`). A candidate is used only if its build ID or CRC is the one in the file, and
//! it is opened by [`pagewise_proc::target_file`]: a FIFO, a device, or a file that is too large
//! counts as missing. `.debug_sup` is not followed.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pagewise_proc::target_file::{MAX_ELF_BYTES, TargetRoot};

use crate::elf::{FileLayout, FileSource};
use crate::symbolizer::SymbolModule;

/// Maximum size of a file whose CRC is computed, and of all such files together.
const MAX_CRC_BYTES: u64 = 512 << 20;
const MAX_CRC_BYTES_OF_ALL: u64 = 2 << 30;
/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// Possible location of a debug file.
#[derive(Clone, Debug)]
pub(crate) struct DebugFilePath<'a> {
    /// The root that names are looked up in.
    pub(crate) root: &'a TargetRoot,
    /// The folder that the file is in.
    pub(crate) folder: Option<PathBuf>,
}

/// Finds debug files.
#[derive(Clone, Debug)]
pub(crate) struct DebugLinks {
    folders: Vec<PathBuf>,
    /// Number of bytes that may still be read for CRCs.
    left: Cell<u64>,
}

/// A debug file, and the folders that its relative links can start from.
struct FoundDebugFile {
    source: Rc<FileSource>,
    layout: FileLayout,
    folders: Vec<PathBuf>,
}

impl DebugLinks {
    /// With folders that are laid out as `/usr/lib/debug` is.
    pub(crate) fn new(folders: &[PathBuf]) -> DebugLinks {
        DebugLinks { folders: folders.to_vec(), left: Cell::new(MAX_CRC_BYTES_OF_ALL) }
    }

    /// Sources of symbols of a file: its debug file, then the file itself, each with its
    /// supplementary file.
    pub(crate) fn modules(
        &self,
        source: FileSource,
        layout: FileLayout,
        places: &[DebugFilePath<'_>],
    ) -> Vec<SymbolModule> {
        let mut modules = Vec::new();
        if let Some((found, root)) = self.debug_file(&layout, places) {
            let own: Vec<DebugFilePath<'_>> = found
                .folders
                .iter()
                .map(|folder| DebugFilePath { root, folder: Some(folder.clone()) })
                .collect();
            modules.push(self.module(found.source, found.layout, &own));
        }
        modules.push(self.module(Rc::new(source), layout, places));
        modules
    }

    /// The debug file of a build whose own file is missing, found by the build ID.
    pub(crate) fn of_build(&self, id: &[u8], root: &TargetRoot) -> Option<SymbolModule> {
        let places = [DebugFilePath { root, folder: None }];
        let (found, root) = self.by_build_id(id, &places)?;
        let own: Vec<DebugFilePath<'_>> = found
            .folders
            .iter()
            .map(|folder| DebugFilePath { root, folder: Some(folder.clone()) })
            .collect();
        Some(self.module(found.source, found.layout, &own))
    }

    fn module(
        &self,
        source: Rc<FileSource>,
        layout: FileLayout,
        places: &[DebugFilePath<'_>],
    ) -> SymbolModule {
        let shared = if layout.has_dwarf() { self.shared(&layout, places) } else { None };
        SymbolModule::new(source, layout, shared)
    }

    fn debug_file<'a>(
        &self,
        layout: &FileLayout,
        places: &[DebugFilePath<'a>],
    ) -> Option<(FoundDebugFile, &'a TargetRoot)> {
        let by_id = layout.build_id.as_ref().and_then(|id| self.by_build_id(id, places));
        by_id.or_else(|| {
            let (name, crc) = layout.debug_link.as_ref().filter(|_| !layout.has_dwarf())?;
            let name = Path::new(OsStr::from_bytes(name));
            let is_plain = name.file_name() == Some(name.as_os_str());
            places.iter().filter(|_| is_plain).find_map(|place| {
                let mut paths = Vec::new();
                if let Some(folder) = &place.folder {
                    paths.extend([folder.join(name), folder.join(".debug").join(name)]);
                    let within = folder.strip_prefix("/").ok();
                    let folders = self.folders.iter();
                    paths.extend(folders.filter_map(|it| Some(it.join(within?).join(name))));
                }
                paths.extend(self.folders.iter().map(|it| it.join(name)));
                let found = paths.iter().filter_map(|path| open(place.root, path)).find(
                    |found| match (&layout.build_id, &found.layout.build_id) {
                        (Some(id), Some(other)) => id == other,
                        _ => self.crc(&found.source) == Some(*crc),
                    },
                )?;
                Some((found, place.root))
            })
        })
    }

    fn by_build_id<'a>(
        &self,
        id: &[u8],
        places: &[DebugFilePath<'a>],
    ) -> Option<(FoundDebugFile, &'a TargetRoot)> {
        let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!(".build-id/{first:02x}/{rest}.debug");
        places.iter().find_map(|place| {
            let paths = self.folders.iter().map(|folder| folder.join(&name));
            let mut found = paths.filter_map(|path| open(place.root, &path));
            let is_it = |found: &FoundDebugFile| found.layout.build_id.as_deref() == Some(id);
            found.find(is_it).map(|found| (found, place.root))
        })
    }

    /// Supplementary file of a file, from `.gnu_debugaltlink`.
    fn shared(
        &self,
        layout: &FileLayout,
        places: &[DebugFilePath<'_>],
    ) -> Option<(Rc<FileSource>, FileLayout)> {
        let (path, id) = layout.alt_link.as_ref()?;
        let path = Path::new(OsStr::from_bytes(path));
        let found = self.by_build_id(id, places).map(|(found, _)| found).or_else(|| {
            places.iter().find_map(|place| {
                // An absolute path stays as it is.
                let path = place.folder.as_deref().unwrap_or(Path::new("/")).join(path);
                let found = open(place.root, &path);
                found.filter(|found| found.layout.build_id.as_ref() == Some(id))
            })
        })?;
        Some((found.source, found.layout))
    }

    /// The CRC of a whole file; none of one that is too large.
    fn crc(&self, source: &FileSource) -> Option<u32> {
        let size = source.size();
        let left = self.left.get().checked_sub(size).filter(|_| size <= MAX_CRC_BYTES)?;
        self.left.set(left);
        let mut crc = flate2::Crc::new();
        let mut at = 0;
        while at < size {
            let bytes = source.read(at, PIECE).filter(|bytes| !bytes.is_empty())?;
            crc.update(&bytes);
            at += bytes.len() as u64;
        }
        Some(crc.sum())
    }
}

fn open(root: &TargetRoot, path: &Path) -> Option<FoundDebugFile> {
    let file = root.open(path, MAX_ELF_BYTES).ok()?;
    // Names of debug files are often links: a relative path in one starts from where the file
    // really is.
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
    let folders = [real.as_deref(), Some(path)].into_iter().flatten();
    let folders = folders.filter_map(|path| Some(path.parent()?.to_owned())).collect();
    let source = Rc::new(FileSource::from(file));
    let layout = FileLayout::parse(&source)?;
    Some(FoundDebugFile { source, layout, folders })
}
