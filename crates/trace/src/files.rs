//! Files that processes have mapped, opened as the process sees them.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blazesym::helper::read_elf_build_id;
use pagewise_model::{Name, Pid};
use pagewise_proc::{ProcRoot, maps};

use crate::elf::{Bytes, Headers};

/// Where distributions install debugging information.
pub(crate) const DEBUG: &str = "/usr/lib/debug";

/// A file of code, held open: it may be deleted, and its process end.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Held,
    /// Its debugging information, and where in memory what is at an offset goes.
    pub(crate) debug: Option<(Held, Headers)>,
}

/// A file, and a path to it for as long as it is open, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct Held {
    _file: File,
    pub(crate) path: PathBuf,
}

impl Held {
    pub(crate) fn new(file: File) -> Held {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
        Held { _file: file, path }
    }
}

/// Files of code, each opened when it is first asked for.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    opened: HashMap<(Name, u64), Rc<Opened>>,
    /// What could not be opened, and through which process.
    refused: HashSet<(u32, Name, u64)>,
    debug: Vec<PathBuf>,
}

impl Default for Files {
    fn default() -> Files {
        Files::with_debug_folders(&[PathBuf::from(DEBUG)])
    }
}

impl Files {
    /// With debugging information in folders that are laid out as `/usr/lib/debug` is.
    pub(crate) fn with_debug_folders(folders: &[PathBuf]) -> Files {
        Files { opened: HashMap::new(), refused: HashSet::new(), debug: folders.to_vec() }
    }

    /// The folders of debugging information.
    pub(crate) fn debug_folders(&self) -> &[PathBuf] {
        &self.debug
    }

    /// A file that a process has mapped. `None` where it cannot be opened, now or before.
    pub(crate) fn get(&mut self, pid: u32, module: &Name, inode: u64) -> Option<Rc<Opened>> {
        let key = (module.clone(), inode);
        if let Some(opened) = self.opened.get(&key) {
            return Some(Rc::clone(opened));
        }
        let refused = (pid, module.clone(), inode);
        if self.refused.contains(&refused) {
            return None;
        }
        let Some(opened) = self.open(pid, module, inode) else {
            self.refused.insert(refused);
            return None;
        };
        Some(Rc::clone(self.opened.entry(key).or_insert(Rc::new(opened))))
    }

    /// Opens a file, as [`Files::get`] does, while a recording goes on, which needs to open files, too.
    pub(crate) fn keep(&mut self, pid: u32, module: &Name, inode: u64) {
        /// With their debugging information, half of what a process may have open where nobody said otherwise.
        const MOST: usize = 256;
        if self.opened.len() < MOST {
            let _ = self.get(pid, module, inode);
        }
    }

    fn open(&self, pid: u32, module: &Name, inode: u64) -> Option<Opened> {
        let bytes = Bytes::File(open(pid, module, inode)?);
        let headers = Headers::of(&bytes);
        let Bytes::File(file) = bytes else { return None };
        let root = Path::new("/proc").join(pid.to_string()).join("root");
        let debug = headers.and_then(|headers| {
            let within = self.debug.iter().filter_map(|folder| folder.strip_prefix("/").ok());
            let within = within.map(|folder| root.join(folder));
            let id = headers.build_id.as_deref()?;
            Some((debug_file(id, within.chain(self.debug.iter().cloned()))?, headers))
        });
        Some(Opened { file: Held::new(file), debug })
    }
}

/// The debugging information of a build, in one of some folders: what has the same build ID is of the same build.
pub(crate) fn debug_file(id: &[u8], mut folders: impl Iterator<Item = PathBuf>) -> Option<Held> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!(".build-id/{first:02x}/{rest}.debug");
    folders.find_map(|folder| {
        let held = Held::new(open_regular(&folder.join(&name), |_| true)?);
        let found = read_elf_build_id(&held.path).ok().flatten();
        (found.as_deref() == Some(id)).then_some(held)
    })
}

/// Opens a file that a process has mapped: by its path in the process's own view of the file system, since a container has
/// another; by its path in ours; as the process's program; through its mapping, where it was deleted. `None` where none of
/// them is that file now.
pub(crate) fn open(pid: u32, module: &Name, inode: u64) -> Option<File> {
    let path = Path::new(OsStr::from_bytes(module.as_bytes()));
    let within = path.strip_prefix("/").ok()?;
    let process = Path::new("/proc").join(pid.to_string());
    let seen = process.join("root").join(within);
    let candidates = [seen, path.to_owned(), process.join("exe")];
    let found = candidates.iter().find_map(|path| open_as(path, inode));
    found.or_else(|| open_as(&mapped(&process, pid, inode)?, inode))
}

/// Opens a regular file, if it has that inode.
fn open_as(path: &Path, inode: u64) -> Option<File> {
    open_regular(path, |file| file.ino() == inode)
}

/// Opens a regular file, if it is the one that is meant.
pub(crate) fn open_regular(path: &Path, is_it: impl Fn(&fs::Metadata) -> bool) -> Option<File> {
    let is_it = |file: &fs::Metadata| file.is_file() && is_it(file);
    // Opening what is no regular file can do something, or wait.
    fs::metadata(path).ok().filter(is_it)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|it| is_it(&it)).then_some(file)
}

/// The way to a file through where it is mapped now.
fn mapped(process: &Path, pid: u32, inode: u64) -> Option<PathBuf> {
    let text = ProcRoot::live().read(Pid(pid), "maps").ok()?;
    let mappings = maps::parse(&text).mappings;
    let range = &mappings.iter().find(|mapping| mapping.inode == inode)?.range;
    Some(process.join("map_files").join(format!("{:x}-{:x}", range.start, range.end)))
}

/// The bytes of our own vDSO, and where it is: the kernel maps the same one into all programs of 64 bits.
pub(crate) fn vdso() -> Option<(u64, Vec<u8>)> {
    /// It is some pages.
    const LARGEST: u64 = 1 << 20;
    let own = std::process::id();
    let text = ProcRoot::live().read(Pid(own), "maps").ok()?;
    let mappings = maps::parse(&text).mappings;
    let range = &mappings.iter().find(|mapping| mapping.name.as_bytes() == VDSO)?.range;
    let (start, length) = (range.start, (range.end - range.start).min(LARGEST));
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let ranges = std::slice::from_ref(&(start..start + length)).to_vec();
    let read = pagewise_sys::remote::read(own, &ranges, &mut bytes).ok()?;
    (read == bytes.len()).then_some((start, bytes))
}

/// What the kernel calls its own code in programs.
pub(crate) const VDSO: &[u8] = b"[vdso]";
