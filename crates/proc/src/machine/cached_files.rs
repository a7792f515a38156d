//! Page cache of single files: a walk over the file systems of devices. The walk asks the kernel
//! for the cached pages of each file, and does not read the file.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagewise_model::account::{CachedFile, CachedFileSystem, CachedFiles};
use pagewise_model::mapping::Device;
use pagewise_model::{Absent, Bytes, Name, PageSize, Reading};
use pagewise_sys::page_cache::cached_pages;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};

use crate::ProcRoot;
use crate::mountinfo::{self, Mount};
use crate::page_charges::ChargeReader;
use crate::root::read_all;

/// Limits of a search for cached files.
#[derive(Clone, Copy, Debug)]
pub struct FileSearch {
    /// The search ends after this time.
    pub limit: Duration,
    /// Number of largest files to keep.
    pub largest: usize,
    /// True to find the memory cgroups to which the pages of the largest files are charged.
    pub charges: bool,
}

/// Searches the file systems of devices that are mounted here.
///
/// # Errors
/// [`Absent`] for a copied tree.
pub fn find(root: &ProcRoot, page_size: PageSize, search: &FileSearch) -> Reading<CachedFiles> {
    if !root.is_live() {
        return Err(Absent::NotCollected("file systems are not in the copied tree".into()));
    }
    let text = read_all(Path::new("/proc/self/mountinfo"))
        .map_err(|error| Absent::NotSupported(error.to_string().into()))?;
    let mut walk = FileWalk::new(page_size, search);
    for mount in searched(&mountinfo::parse(&text)) {
        walk.file_system(mount);
    }
    let mut found = walk.finish();
    if search.charges {
        let mut reader = ChargeReader::open(root)?;
        for file in &mut found.largest {
            file.charged = reader.charges(file).unwrap_or_default();
        }
    }
    Ok(found)
}

/// File systems on devices whose files have an anonymous device number (major number 0).
const WITHOUT_DEVICE: [&[u8]; 4] = [b"btrfs", b"zfs", b"bcachefs", b"f2fs"];

/// The mounts to search: each file system once, at its highest mount point.
fn searched(mounts: &[Mount]) -> Vec<&Mount> {
    let has_pages = |mount: &&Mount| {
        let is_root_overlay = mount.fs == b"overlay" && mount.point == Path::new("/");
        mount.device.major != 0 || WITHOUT_DEVICE.contains(&mount.fs.as_slice()) || is_root_overlay
    };
    let mut chosen: HashMap<Device, &Mount> = HashMap::new();
    for mount in mounts.iter().filter(|it| !it.may_wait()).filter(has_pages) {
        let depth =
            |mount: &Mount| (mount.root.components().count(), mount.point.components().count());
        let entry = chosen.entry(mount.device).or_insert(mount);
        if depth(mount) < depth(entry) {
            *entry = mount;
        }
    }
    let mut chosen: Vec<&Mount> = chosen.into_values().collect();
    chosen.sort_by(|a, b| a.point.cmp(&b.point));
    chosen
}

/// Number of files between two reads of the clock.
const CLOCK_INTERVAL: u64 = 64;
/// Maximum number of files with several hard links that are remembered, so that each file counts
/// once.
const MAX_LINKED: usize = 1 << 20;

struct FileWalk {
    page_size: PageSize,
    deadline: Instant,
    kept: usize,
    largest: BinaryHeap<Reverse<(u64, PathBuf)>>,
    details: HashMap<PathBuf, CachedFile>,
    linked: HashSet<(u64, u64)>,
    found: CachedFiles,
}

impl FileWalk {
    fn new(page_size: PageSize, search: &FileSearch) -> FileWalk {
        FileWalk {
            page_size,
            deadline: Instant::now() + search.limit,
            kept: search.largest,
            largest: BinaryHeap::new(),
            details: HashMap::new(),
            linked: HashSet::new(),
            found: CachedFiles::default(),
        }
    }

    fn file_system(&mut self, mount: &Mount) {
        let mut sum = CachedFileSystem {
            point: Name::new(mount.point.as_os_str().as_bytes()),
            kind: Name::new(&mount.fs),
            files: 0,
            cached: Bytes::ZERO,
            dirty: None,
        };
        let mut folders = vec![mount.point.clone()];
        let mut device = None;
        while let Some(path) = folders.pop() {
            if self.found.incomplete {
                break;
            }
            self.folder(&path, &mut device, &mut folders, &mut sum);
        }
        if sum.files > 0 {
            self.found.file_systems.push(sum);
        }
    }

    /// Queries the cached pages of the files of a folder, and adds its subfolders to the folders
    /// that are to be searched.
    fn folder(
        &mut self,
        path: &Path,
        device: &mut Option<u64>,
        folders: &mut Vec<PathBuf>,
        sum: &mut CachedFileSystem,
    ) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = openat(CWD, path, flags, Mode::empty());
        let Ok(folder) = opened else {
            self.found.unreadable += 1;
            return;
        };
        // A folder of another device is a mount point, which is searched as a mount of its own or
        // not at all.
        let own = fstat(&folder).map(|stat| stat.st_dev).ok();
        if own.is_none()
            || *device.get_or_insert(own.unwrap_or_default()) != own.unwrap_or_default()
        {
            return;
        }
        let Ok(entries) = Dir::read_from(&folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            match entry.file_type() {
                _ if matches!(name.to_bytes(), b"." | b"..") => {}
                FileType::Directory => {
                    folders.push(path.join(std::ffi::OsStr::from_bytes(name.to_bytes())))
                }
                FileType::RegularFile => self.file(folder.as_fd(), path, &name.to_owned(), sum),
                _ => {}
            }
            if self.found.incomplete {
                return;
            }
        }
    }

    fn file(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &Path,
        name: &CString,
        sum: &mut CachedFileSystem,
    ) {
        self.found.files += 1;
        if self.found.files.is_multiple_of(CLOCK_INTERVAL) && Instant::now() >= self.deadline {
            self.found.incomplete = true;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = openat(folder, name, flags | OFlags::NOATIME, Mode::empty())
            .or_else(|_| openat(folder, name, flags, Mode::empty()));
        let Some((file, cached)) = opened.ok().and_then(|file| self.ask(file)) else {
            self.found.unreadable += 1;
            return;
        };
        if !cached.cached.is_zero() {
            sum.files += 1;
            sum.cached += cached.cached;
            sum.dirty = cached.dirty.map(|dirty| dirty + sum.dirty.unwrap_or_default());
            drop(file);
            self.keep(path.join(std::ffi::OsStr::from_bytes(name.to_bytes())), cached);
        }
    }

    /// Queries the cached pages of an open file; `None` if the file was counted under another name.
    fn ask(&mut self, file: OwnedFd) -> Option<(OwnedFd, CachedFile)> {
        let stat = fstat(&file).ok()?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let pages = cached_pages(&file, size).ok()?;
        let bytes = |pages| self.page_size.pages(pages);
        let mut cached = CachedFile {
            path: Name::default(),
            size: Bytes(size),
            cached: bytes(pages.cached),
            dirty: pages.dirty.map(bytes),
            charged: Vec::new(),
        };
        let is_linked = stat.st_nlink > 1 && pages.cached > 0;
        if is_linked
            && self.linked.len() < MAX_LINKED
            && !self.linked.insert((stat.st_dev, stat.st_ino))
        {
            cached.cached = Bytes::ZERO;
        }
        Some((file, cached))
    }

    /// Keeps the file if it is among the largest.
    fn keep(&mut self, path: PathBuf, file: CachedFile) {
        let size = file.cached.0;
        let smallest = self.largest.peek().map_or(0, |Reverse((size, _))| *size);
        if self.largest.len() >= self.kept && size <= smallest {
            return;
        }
        let name = Name::new(path.as_os_str().as_bytes());
        self.details.insert(path.clone(), CachedFile { path: name, ..file });
        self.largest.push(Reverse((size, path)));
        if self.largest.len() > self.kept
            && let Some(Reverse((_, path))) = self.largest.pop()
        {
            self.details.remove(&path);
        }
    }

    fn finish(self) -> CachedFiles {
        let mut found = self.found;
        found.largest = self.details.into_values().collect();
        found.largest.sort_by(|a, b| b.cached.cmp(&a.cached).then_with(|| a.path.cmp(&b.path)));
        found.file_systems.sort_by_key(|it| Reverse(it.cached));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(text: &str) -> Vec<Mount> {
        mountinfo::parse(text.as_bytes())
    }

    #[test]
    fn a_file_system_is_searched_once_and_those_without_pages_never() {
        let all = mounts(
            "1 0 253:0 / / rw - ext4 /dev/vda rw\n\
             2 1 253:0 /var/lib /bind rw - ext4 /dev/vda rw\n\
             3 1 0:5 / /proc rw - proc proc rw\n\
             4 1 0:40 / /data rw - btrfs /dev/vdb rw\n\
             5 1 0:41 / /net rw - nfs4 host:/ rw\n\
             6 1 0:42 / /ov rw - overlay overlay rw\n\
             7 1 8:1 / /fuse rw - fuseblk /dev/sda1 rw\n",
        );
        let points: Vec<_> = searched(&all).iter().map(|it| it.point.to_str().unwrap()).collect();
        assert_eq!(points, ["/", "/data"]);
    }

    #[test]
    fn the_largest_files_are_kept() {
        let page_size = PageSize::new(4096).unwrap();
        let search = FileSearch { limit: Duration::MAX / 4, largest: 2, charges: false };
        let mut walk =
            FileWalk::new(page_size, &FileSearch { limit: Duration::from_secs(9), ..search });
        for (name, size) in [("a", 5), ("b", 9), ("c", 1), ("d", 7)] {
            let cached = CachedFile {
                path: Name::default(),
                size: Bytes(size),
                cached: Bytes(size),
                dirty: None,
                charged: Vec::new(),
            };
            walk.keep(PathBuf::from(name), cached);
        }
        let found = walk.finish();
        let kept: Vec<_> = found.largest.iter().map(|it| it.path.escaped().into_owned()).collect();
        assert_eq!(kept, ["b", "d"]);
    }
}
