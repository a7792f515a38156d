//! Memory of tmpfs by its uses: mounts, memfds, System V segments.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagewise_model::account::{ShmemKind, ShmemUse};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};

use crate::memory_files::device;
use crate::mountinfo::Mount;
use crate::text::{lines, number};
use crate::{ProcRoot, mountinfo};

/// Maximum number of mount namespaces that are searched.
const MAX_NAMESPACES: usize = 512;
/// Maximum number of descriptors of a process that are examined.
const MAX_DESCRIPTORS: usize = 4000;
/// Size in bytes of the blocks in which `stat` counts the memory of a file.
const BLOCK: u64 = 512;

/// Reads all uses, largest first.
///
/// # Errors
/// [`Absent`] for a copied tree, whose file systems are not mounted.
pub(crate) fn read(root: &ProcRoot, pids: &[Pid]) -> Reading<Vec<ShmemUse>> {
    if !root.is_live() {
        return Err(Absent::NotCollected("file systems are not in the copied tree".into()));
    }
    let mut uses = mounts(root, pids);
    uses.extend(memfds(root, pids));
    uses.extend(segments(&root.machine("sysvipc/shm").unwrap_or_default()));
    uses.retain(|it| !it.bytes.is_zero());
    uses.sort_by(|a, b| Reverse(a.bytes).cmp(&Reverse(b.bytes)).then_with(|| a.name.cmp(&b.name)));
    Ok(uses)
}

/// The mounts of tmpfs in the mount namespaces of all processes, each file system once.
fn mounts(root: &ProcRoot, pids: &[Pid]) -> Vec<ShmemUse> {
    let (mut namespaces, mut devices) = (HashSet::new(), HashSet::new());
    let mut uses = Vec::new();
    for &pid in pids {
        let Ok(namespace) = fs::read_link(root.file(pid, "ns/mnt")) else { continue };
        if namespaces.len() >= MAX_NAMESPACES || !namespaces.insert(namespace) {
            continue;
        }
        let text = root.read(pid, "mountinfo").unwrap_or_default();
        let mounts = mountinfo::parse(&text);
        for mount in mounts.iter().filter(|it| it.fs == b"tmpfs") {
            // Access to a file system that a process or a server implements may block forever.
            let waits = mounts.iter().any(|it| it.may_wait() && mount.point.starts_with(&it.point));
            if waits || devices.contains(&mount.device) {
                continue;
            }
            if let Some(found) = mounted(&root.file(pid, "root"), mount) {
                devices.insert(mount.device);
                uses.push(found);
            }
        }
    }
    uses
}

/// Returns the memory that the file system of a mount reports. Returns `None` if another mount
/// hides this one: the path then belongs to the other file system.
fn mounted(root: &Path, mount: &Mount) -> Option<ShmemUse> {
    let path = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    if device(&fs::metadata(&path).ok()?) != mount.device {
        return None;
    }
    let figures = rustix::fs::statvfs(&path).ok()?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(figures.f_frsize));
    Some(ShmemUse {
        kind: ShmemKind::Tmpfs,
        name: Name::new(mount.point.as_os_str().as_encoded_bytes()),
        bytes: bytes(figures.f_blocks.saturating_sub(figures.f_bfree)),
        swapped: None,
        limit: (figures.f_blocks > 0).then(|| bytes(figures.f_blocks)),
    })
}

/// The files of `memfd_create` that processes hold open, each once.
fn memfds(root: &ProcRoot, pids: &[Pid]) -> Vec<ShmemUse> {
    let mut known = HashSet::new();
    let mut uses = Vec::new();
    for &pid in pids {
        let Ok(entries) = fs::read_dir(root.file(pid, "fd")) else { continue };
        let paths = entries.flatten().take(MAX_DESCRIPTORS).map(|entry| entry.path());
        uses.extend(paths.filter_map(|path| memfd(&path, pid, &mut known)));
    }
    uses
}

fn memfd(path: &PathBuf, pid: Pid, known: &mut HashSet<(u64, u64)>) -> Option<ShmemUse> {
    let link = fs::read_link(path).ok()?;
    let name = link.as_os_str().as_encoded_bytes().strip_prefix(b"/memfd:")?;
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    // Metadata of the link's target: the file is not opened.
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    known.insert((file.dev(), file.ino())).then(|| ShmemUse {
        kind: ShmemKind::Memfd,
        name: Name::new(&[name, format!(" of {pid}").as_bytes()].concat()),
        bytes: Bytes(file.blocks().saturating_mul(BLOCK)),
        swapped: None,
        limit: None,
    })
}

/// The segments of `sysvipc/shm`.
fn segments(text: &[u8]) -> Vec<ShmemUse> {
    let segment = |line: &[u8]| {
        let words: Vec<&[u8]> =
            line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        // key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
        let [_, id, ..] = words.as_slice() else { return None };
        let [.., resident, swapped] = words.as_slice() else { return None };
        let (resident, swapped) = (Bytes(number(resident)?), Bytes(number(swapped)?));
        (words.len() >= 16).then(|| ShmemUse {
            kind: ShmemKind::SystemV,
            name: Name::new(id),
            bytes: resident + swapped,
            swapped: Some(swapped),
            limit: None,
        })
    };
    lines(text).skip(1).filter_map(|(_, line)| segment(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_resident_and_swapped_bytes() {
        let text = b"       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n         0          3  1600               65536   42    42      0     0     0     0     0 1 2 3 61440 4096\nrubbish\n1 2\n";
        let found = segments(text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].bytes, found[0].swapped), (Bytes(65536), Some(Bytes(4096))));
        assert_eq!(found[0].name, "3".into());
    }

    #[test]
    fn a_file_of_memfd_create_is_found_once_with_its_size() {
        let root = ProcRoot::live();
        let pid = root.ourselves().expect("/proc is of our pid namespace");
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("pagewise-test-uses", flags).unwrap();
        let second = file.try_clone().unwrap();
        rustix::io::write(&second, &[1; 100_000]).unwrap();
        let found = memfds(&root, &[pid]);
        let ours: Vec<_> = found
            .iter()
            .filter(|it| it.name.as_bytes().starts_with(b"pagewise-test-uses of"))
            .collect();
        assert_eq!(ours.len(), 1);
        assert!(ours[0].bytes >= Bytes(98_304), "{ours:?}");
    }
}
