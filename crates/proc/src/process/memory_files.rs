//! Files in memory that a process holds open, files of shared memory that it can open, and System V
//! segments that it created: the mappings of the process may not show this memory. Also removed
//! files on disks that it holds open, whose pages are in the page cache.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

use pagewise_model::evidence::MemoryFile;
use pagewise_model::{Bytes, Device, Name, Pid};

use crate::ProcRoot;
use crate::mountinfo;
use crate::text::{lines, number};

/// Maximum number of descriptors that are examined; further ones are left out.
const MAX_DESCRIPTORS: usize = 4000;
/// Maximum depth of the subfolders of [`SHARED_MEMORY`] that are read.
const MAX_DEPTH: u32 = 3;
/// Name of all System V segments together.
const SEGMENTS: &[u8] = b"/SYSV segments";
/// Size in bytes of the blocks in which `stat` counts the memory of a file.
const BLOCK: u64 = 512;

/// Folder of `shm_open` and of other shared memory with a name.
const SHARED_MEMORY: &str = "root/dev/shm";

/// Sizes of the files in memory of a process, by name, at one time.
#[derive(Debug, Default)]
pub struct MemoryFiles(HashMap<GroupKey, FileGroup>);

/// A group of files of one state whose names differ only by numbers.
#[derive(Clone, Debug, Default)]
struct FileGroup {
    /// The name of the file that was added last.
    last: Name,
    size: Bytes,
    count: u64,
}

/// Reason why a file stays allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FileState {
    /// A file in memory that the process has open, or a System V segment that it created.
    Open,
    /// A file of shared memory that the process does not have open: its path keeps it.
    Closed,
    /// A removed file on a disk that the process has open.
    Removed,
}

/// Key of a group: the name with `N` in place of each number, and the state.
type GroupKey = (Name, FileState);

impl MemoryFiles {
    /// Reads the sizes.
    pub fn read(root: &ProcRoot, pid: Pid) -> MemoryFiles {
        let mut files = MemoryFiles::default();
        if root.is_live() {
            let open = files.add_open(root, pid);
            files.add_closed(root, pid, &open);
            files.add_segments(root, pid);
        }
        files
    }

    fn add(&mut self, name: &[u8], size: Bytes, state: FileState) {
        let group = self.0.entry((without_numbers(name), state)).or_default();
        group.last = Name::new(name);
        group.size += size;
        group.count += 1;
    }

    /// Adds the open files. Returns the device and inode of each.
    fn add_open(&mut self, root: &ProcRoot, pid: Pid) -> HashSet<(u64, u64)> {
        let Ok(entries) = fs::read_dir(root.file(pid, "fd")) else { return HashSet::new() };
        let on_tmpfs = tmpfs_devices(root, pid);
        // A file counts once, even if several descriptors refer to it.
        let mut known = HashSet::new();
        for entry in entries.flatten().take(MAX_DESCRIPTORS) {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let name = link.as_os_str().as_encoded_bytes();
            // Metadata of the link's target: the file is not opened.
            let Ok(file) = fs::metadata(entry.path()) else { continue };
            let is_memory = name.starts_with(b"/memfd:") || on_tmpfs.contains(&device(&file));
            let is_new = known.insert((file.dev(), file.ino()));
            if file.is_file() && is_new && (is_memory || file.nlink() == 0) {
                let plain = name.strip_suffix(b" (deleted)").unwrap_or(name);
                let state = if is_memory { FileState::Open } else { FileState::Removed };
                self.add(plain, allocated(&file), state);
            }
        }
        known
    }

    /// Adds the files of shared memory that the process has closed or that other processes created,
    /// including files in subfolders.
    fn add_closed(&mut self, root: &ProcRoot, pid: Pid, open: &HashSet<(u64, u64)>) {
        let mut folders = vec![(root.file(pid, SHARED_MEMORY), b"/dev/shm/".to_vec(), 0)];
        let mut left = MAX_DESCRIPTORS;
        while let Some((folder, name, depth)) = folders.pop() {
            let Ok(entries) = fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                if left == 0 {
                    return;
                }
                left -= 1;
                // The metadata of the entry itself: links are not followed.
                let Ok(file) = entry.metadata() else { continue };
                let path = [&name, entry.file_name().as_encoded_bytes()].concat();
                if file.is_dir() && depth < MAX_DEPTH {
                    folders.push((entry.path(), [&path, &b"/"[..]].concat(), depth + 1));
                } else if file.is_file() && !open.contains(&(file.dev(), file.ino())) {
                    self.add(&path, allocated(&file), FileState::Closed);
                }
            }
        }
    }

    fn add_segments(&mut self, root: &ProcRoot, pid: Pid) {
        let Ok(text) = root.machine("sysvipc/shm") else { return };
        for (creator, size) in segments(&text) {
            if creator == u64::from(pid.0) {
                self.add(SEGMENTS, size, FileState::Open);
            }
        }
    }

    /// Returns each group of files with its size in this reading and in the reading `before`. A
    /// group of one open file that is not a memfd is called by the name of this file, unless the
    /// group in `before` had another file or several. Any other group is called by its key.
    pub fn since(self, before: &MemoryFiles) -> Vec<MemoryFile> {
        let file = |(key, group): (GroupKey, FileGroup)| {
            let earlier = before.0.get(&key);
            let (group_name, state) = key;
            let FileGroup { last, size: after, count } = group;
            let (is_closed, is_removed) = (state == FileState::Closed, state == FileState::Removed);
            let is_single = count == 1 && !is_closed && !last.as_bytes().starts_with(b"/memfd:");
            let has_same_name = earlier.is_none_or(|it| it.count == 1 && it.last == last);
            let name = if is_single && has_same_name { last } else { group_name };
            let before = earlier.map_or(Bytes::ZERO, |group| group.size);
            MemoryFile { name, before, after, count, is_closed, is_removed }
        };
        let mut files: Vec<MemoryFile> = self.0.into_iter().map(file).collect();
        files.sort_by(|a, b| b.after.cmp(&a.after).then_with(|| a.name.cmp(&b.name)));
        files
    }
}

/// The creator and the resident and swapped bytes of each segment of `sysvipc/shm`.
fn segments(text: &[u8]) -> Vec<(u64, Bytes)> {
    let rows = lines(text).skip(1).filter_map(|(_, line)| {
        let columns: Vec<u64> = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(|word| number(word).unwrap_or(0))
            .collect();
        // key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
        let [_, _, _, _, creator, .., resident, swapped] = columns.as_slice() else { return None };
        (columns.len() >= 16).then(|| (*creator, Bytes(*resident) + Bytes(*swapped)))
    });
    rows.collect()
}

fn allocated(file: &Metadata) -> Bytes {
    Bytes(file.blocks().saturating_mul(BLOCK))
}

/// The name with `N` in place of each number.
fn without_numbers(name: &[u8]) -> Name {
    let mut group: Vec<u8> = Vec::with_capacity(name.len());
    for byte in name {
        let byte = if byte.is_ascii_digit() { b'N' } else { *byte };
        if byte != b'N' || group.last() != Some(&b'N') {
            group.push(byte);
        }
    }
    Name::new(&group)
}

/// The devices of all tmpfs that the process has mounted.
fn tmpfs_devices(root: &ProcRoot, pid: Pid) -> Vec<Device> {
    let text = root.reading(pid, "mountinfo").unwrap_or_default();
    let mounts = mountinfo::parse(&text).into_iter();
    mounts.filter(|mount| mount.fs == b"tmpfs").map(|mount| mount.device).collect()
}

/// The device of a file.
pub(crate) fn device(file: &Metadata) -> Device {
    let number = file.dev();
    Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};

    use super::*;

    #[test]
    fn segments_are_read_with_their_creator() {
        let text = b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n         0          3  1600               65536   42    42      0     0     0     0     0 1 2 3 61440 4096\nrubbish\n";
        assert_eq!(segments(text), [(42, Bytes(65536))]);
    }

    #[test]
    fn files_that_differ_by_a_number_are_one_group() {
        let of = |names: &[&str], is_closed| {
            let state = if is_closed { FileState::Closed } else { FileState::Open };
            let mut files = MemoryFiles::default();
            names.iter().for_each(|name| files.add(name.as_bytes(), Bytes(100), state));
            files
        };
        let found = of(&["/memfd:frame-17"], false).since(&MemoryFiles::default());
        assert_eq!(found[0].name, Name::from("/memfd:frame-N"));
        let found = of(&["/dev/shm/log17"], false).since(&of(&["/dev/shm/log17"], false));
        assert_eq!(found[0].name, Name::from("/dev/shm/log17"));
        // If a file is replaced by one whose name has another number, the group does not grow.
        let found = of(&["/dev/shm/tile8"], false).since(&of(&["/dev/shm/tile7"], false));
        assert_eq!((found[0].before, found[0].after), (Bytes(100), Bytes(100)));
        let names = ["/dev/shm/tile7", "/dev/shm/tile8", "/dev/shm/tile90"];
        let found = of(&names, false).since(&of(&names[..1], false));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, Name::from("/dev/shm/tileN"));
        assert_eq!((found[0].before, found[0].after), (Bytes(100), Bytes(300)));
        assert!(of(&names, true).since(&MemoryFiles::default())[0].is_closed);
    }

    #[test]
    fn an_open_file_on_tmpfs_is_found_with_its_size() {
        let root = ProcRoot::live();
        let pid = root.ourselves().expect("/proc is of our pid namespace");
        let path = format!("/dev/shm/pagewise-memory-files-{pid}");
        let before = MemoryFiles::read(&root, pid);
        let file = match fs::File::create(&path) {
            Ok(file) => file,
            Err(error) => {
                let lack = Lack::Refused { call: "open of a file in /dev/shm", error: &error };
                return skip(&lack);
            }
        };
        std::io::Write::write_all(&mut &file, &[1; 100_000]).unwrap();
        let files = MemoryFiles::read(&root, pid).since(&before);
        drop(file);
        let closed = MemoryFiles::read(&root, pid).since(&before);
        fs::remove_file(&path).unwrap();
        let found = files.iter().find(|file| file.name.as_bytes() == path.as_bytes()).unwrap();
        assert_eq!(found.before, Bytes::ZERO);
        assert!(found.after >= Bytes(100_000) && !found.is_closed, "{found:?}");
        let name = without_numbers(path.as_bytes());
        let found = closed.iter().find(|file| file.name == name).unwrap();
        assert!(found.after >= Bytes(100_000) && found.is_closed, "{found:?}");
    }
    #[test]
    fn a_removed_file_on_a_disk_is_found_while_it_is_open() {
        let root = ProcRoot::live();
        let pid = root.ourselves().expect("/proc is of our pid namespace");
        let folder = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile_in(&folder).unwrap();
        if tmpfs_devices(&root, pid).contains(&device(&file.metadata().unwrap())) {
            return skip(&Lack::Machine("the temporary folder is on tmpfs"));
        }
        let before = MemoryFiles::read(&root, pid);
        std::io::Write::write_all(&mut &file, &[1; 3_000_000]).unwrap();
        file.sync_all().unwrap();
        let files = MemoryFiles::read(&root, pid).since(&before);
        let folder = without_numbers(folder.path().as_os_str().as_encoded_bytes());
        let of_test = |name: &Name| {
            without_numbers(name.as_bytes()).as_bytes().starts_with(folder.as_bytes())
        };
        let found = files.iter().find(|it| of_test(&it.name)).unwrap();
        assert!(found.is_removed && found.count == 1, "{found:?}");
        assert!(found.after.0 - found.before.0 >= 3_000_000, "{found:?}");
    }
}
