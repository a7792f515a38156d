//! Files that processes have mapped. Names are first looked up in the root directory of the
//! process.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pagewise_model::mapping::AddrRange;
use pagewise_model::{Name, Pid};
use pagewise_proc::target_file::{self, FileId, TargetRoot};
use pagewise_proc::{ProcRoot, maps};

use crate::elf::{FileLayout, FileSource};
use crate::jit;
use crate::links::{DebugFilePath, DebugLinks};
use crate::symbolizer::{FoundCall, SymbolModule};

/// Folder in which distributions install debugging information.
pub(crate) const DEBUG: &str = "/usr/lib/debug";

/// Maximum number of open files: with their debug files they use most of the default limit of 1024
/// descriptors.
const MAX_OPEN: usize = 256;
/// Maximum number of processes whose root is kept open, for the maps of their just-in-time
/// compilers.
const MAX_ROOTS: usize = 64;

/// A file of code, kept open because the file may be deleted and its process may end.
#[derive(Debug)]
pub(crate) struct OpenCodeFile {
    /// Sources of the file's symbols, best first. The last source is the file itself.
    modules: Vec<SymbolModule>,
}

impl OpenCodeFile {
    /// Returns the functions at an offset of the file, the innermost inlined one first. The list is
    /// empty if no function is known.
    pub(crate) fn calls(&self, offset: u64) -> Vec<FoundCall> {
        let address = self.modules.last().and_then(|file| file.layout.segments.address(offset));
        let Some(address) = address else { return Vec::new() };
        calls(&self.modules, address)
    }

    /// Distance of an offset from the start of its function.
    pub(crate) fn since_start(&self, offset: u64) -> Option<u64> {
        let address = self.modules.last()?.layout.segments.address(offset)?;
        let start = self.modules.iter().find_map(|it| it.symbol(address))?.0;
        address.checked_sub(start)
    }

    /// Bytes of the file.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let bytes = self.modules.last()?.source.read(offset, length)?;
        (bytes.len() as u64 == length).then_some(bytes)
    }

    /// Returns true if a read failed because the file or its debug file was changed after it was
    /// opened.
    pub(crate) fn has_changed(&self) -> bool {
        self.modules.iter().any(|module| module.source.has_changed())
    }

    /// Approximate memory of the parsed data, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.modules.iter().map(SymbolModule::weight).sum()
    }

    /// Drops the parsed data.
    pub(crate) fn forget(&self) {
        self.modules.iter().for_each(SymbolModule::forget);
    }
}

/// The functions at an address, from the first module that contains any.
pub(crate) fn calls(modules: &[SymbolModule], address: u64) -> Vec<FoundCall> {
    let mut found = modules.iter().map(|module| module.calls(address));
    found.find(|calls| !calls.is_empty()).unwrap_or_default()
}

/// Files of code, each opened when it is first requested.
#[derive(Clone, Debug)]
pub(crate) struct CodeFiles {
    opened: HashMap<(Name, FileId), Rc<OpenCodeFile>>,
    /// Files that could not be opened, and the process through which they were tried.
    refused: HashSet<(u32, Name, FileId)>,
    jits: HashMap<u32, Option<Rc<jit::JitOrigin>>>,
    links: DebugLinks,
}

impl Default for CodeFiles {
    fn default() -> CodeFiles {
        CodeFiles::with_debug_folders(&[PathBuf::from(DEBUG)])
    }
}

impl CodeFiles {
    /// Uses debugging information in folders that are laid out as `/usr/lib/debug` is.
    pub(crate) fn with_debug_folders(folders: &[PathBuf]) -> CodeFiles {
        CodeFiles {
            opened: HashMap::new(),
            refused: HashSet::new(),
            jits: HashMap::new(),
            links: DebugLinks::new(folders),
        }
    }

    /// Returns a file that a process has mapped. Returns `None` if the file cannot be opened, or
    /// could not be opened earlier.
    pub(crate) fn get(&mut self, pid: u32, module: &Name, id: FileId) -> Option<Rc<OpenCodeFile>> {
        let key = (module.clone(), id);
        if let Some(opened) = self.opened.get(&key) {
            return Some(Rc::clone(opened));
        }
        let refused = (pid, module.clone(), id);
        if self.refused.contains(&refused) {
            return None;
        }
        let Some(opened) = self.open(pid, module, id) else {
            self.refused.insert(refused);
            return None;
        };
        Some(Rc::clone(self.opened.entry(key).or_insert(Rc::new(opened))))
    }

    /// Opens a file, as [`CodeFiles::get`] does, within a limit: the recording in progress needs
    /// file descriptors, too.
    pub(crate) fn keep(&mut self, pid: u32, module: &Name, id: FileId) {
        if self.opened.len() < MAX_OPEN {
            let _ = self.get(pid, module, id);
        }
    }

    /// Location of the map of a process's just-in-time compiler.
    pub(crate) fn jit(&mut self, pid: u32) -> Option<Rc<jit::JitOrigin>> {
        if self.jits.len() >= MAX_ROOTS && !self.jits.contains_key(&pid) {
            return jit::JitOrigin::of_process(pid).map(Rc::new);
        }
        self.jits.entry(pid).or_insert_with(|| jit::JitOrigin::of_process(pid).map(Rc::new)).clone()
    }

    /// Opens the location of the map while the process exists.
    pub(crate) fn keep_jit(&mut self, pid: u32) {
        if self.jits.len() < MAX_ROOTS {
            let _ = self.jit(pid);
        }
    }

    /// Returns all open files and their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Name, &OpenCodeFile)> {
        self.opened.iter().map(|((name, _), opened)| (name, &**opened))
    }

    fn open(&self, pid: u32, module: &Name, id: FileId) -> Option<OpenCodeFile> {
        Some(OpenCodeFile { modules: self.modules(pid, module, id)? })
    }

    /// Sources of symbols of a file that a process has mapped, best first; the last is the file.
    pub(crate) fn modules(&self, pid: u32, module: &Name, id: FileId) -> Option<Vec<SymbolModule>> {
        let source = FileSource::from(open(pid, module, id)?);
        let layout = FileLayout::parse(&source)?;
        let folder = Path::new(OsStr::from_bytes(module.as_bytes())).parent().map(Path::to_owned);
        let theirs = TargetRoot::of_process(&ProcRoot::live(), Pid(pid)).ok();
        let own = TargetRoot::own().ok();
        let mut places = Vec::new();
        places.extend(theirs.as_ref().map(|root| DebugFilePath { root, folder: folder.clone() }));
        // In our own root, a debug file in this folder may belong to another program with the same
        // path. So the folder is searched there only if the root of the process is unknown.
        let folder = folder.filter(|_| theirs.is_none());
        places.extend(own.as_ref().map(|root| DebugFilePath { root, folder }));
        Some(self.links.modules(source, layout, &places))
    }
}

/// Opens a file that a process has mapped, by the first of these methods that succeeds:
/// - the name of the file in the root of the process or in our root, if device and inode are equal;
/// - the program of the process;
/// - the mapping of the file, even if its name denotes another file;
/// - the name of the file, by the rules of [`target_file`] for file systems that report another
///   device.
///
/// Returns `None` if no method finds this file.
pub(crate) fn open(pid: u32, module: &Name, id: FileId) -> Option<File> {
    let path = Path::new(OsStr::from_bytes(module.as_bytes()));
    if !path.is_absolute() {
        return None;
    }
    let (root, pid) = (ProcRoot::live(), Pid(pid));
    let roots = [TargetRoot::of_process(&root, pid).ok(), TargetRoot::own().ok()];
    let mut roots = roots.iter().flatten();
    let exact = roots.clone().find_map(|root| root.open_exact(path, id).ok());
    exact
        .or_else(|| target_file::open_program_if(&root, pid, id).ok())
        .or_else(|| target_file::open_range(&root, pid, mapped(&root, pid, id)?, id).ok())
        .or_else(|| roots.find_map(|root| root.open_mapped(path, id, false).ok()))
}

/// Address range at which a file is mapped now.
fn mapped(root: &ProcRoot, pid: Pid, id: FileId) -> Option<AddrRange> {
    let mappings = maps::parse(&root.read(pid, "maps").ok()?).mappings;
    mappings.iter().find(|mapping| FileId::of_mapping(mapping) == id).map(|mapping| mapping.range)
}

/// The bytes of our own vDSO: the kernel maps the same one into all programs of 64 bits.
pub(crate) fn vdso() -> Option<Vec<u8>> {
    /// Maximum size in bytes that is read; the vDSO has a few pages.
    const LARGEST: u64 = 1 << 20;
    let own = std::process::id();
    let text = ProcRoot::live().read(Pid(own), "maps").ok()?;
    let mappings = maps::parse(&text).mappings;
    let range = &mappings.iter().find(|mapping| mapping.name.as_bytes() == VDSO)?.range;
    let (start, length) = (range.start, (range.end - range.start).min(LARGEST));
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let ranges = std::slice::from_ref(&(start..start + length)).to_vec();
    let read = pagewise_sys::remote::read(own, &ranges, &mut bytes).ok()?;
    (read == bytes.len()).then_some(bytes)
}

/// Name of the vDSO in `maps`.
pub(crate) const VDSO: &[u8] = b"[vdso]";
