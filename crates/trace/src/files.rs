//! Files that processes have mapped, opened as the process sees them.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagewise_model::{Name, Pid};
use pagewise_proc::{ProcRoot, maps};

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
