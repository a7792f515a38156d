//! All memory cgroups that a mount shows: their folders, names and processes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use pagewise_model::cgroup_tree::CgroupTree;
use pagewise_model::evidence::counter;
use pagewise_model::{Absent, Name, Pid, Reading};

use super::{CgroupFiles, MEMORY, V1, V2, WatchedCgroup, is_controller, our_mounts};
use crate::root::read_all;
use crate::text::{lines, number};
use crate::{ProcRoot, vmstat};

/// Maximum number of folders that are visited. A machine with more cgroups is reported in part.
const MAX_FOLDERS: usize = 8192;

/// The mount of the memory controller.
#[derive(Clone, Debug)]
pub struct CgroupHierarchy {
    version: u8,
    /// Mount point.
    point: PathBuf,
    /// Cgroup that is mounted at `point`.
    top: PathBuf,
    /// False for a copied tree.
    live: bool,
}

impl CgroupHierarchy {
    /// Finds the v1 mount of the memory controller, else the v2 mount if it has the memory
    /// controller. A copied tree has the files of a mount in `DIR/sysfs/fs/cgroup`.
    ///
    /// # Errors
    /// [`Absent`] if no memory cgroup is mounted.
    pub fn find(root: &ProcRoot) -> Reading<CgroupHierarchy> {
        if !root.is_live() {
            return CgroupHierarchy::copied(&root.sysfs_path("fs/cgroup"));
        }
        let mounts = our_mounts()?;
        let v1 = mounts.iter().find(|it| it.fs == b"cgroup" && is_controller(it, MEMORY));
        let v2 = mounts.iter().find(|it| {
            let controllers = read_all(&it.point.join("cgroup.controllers")).unwrap_or_default();
            it.fs == b"cgroup2"
                && controllers.trim_ascii().split(|&b| b == b' ').any(|name| name == MEMORY)
        });
        let (version, mount) = match (v1, v2) {
            (Some(mount), _) => (1, mount),
            (None, Some(mount)) => (2, mount),
            (None, None) => {
                return Err(Absent::NotSupported("no memory cgroup is mounted here".into()));
            }
        };
        let (point, top) = (mount.point.clone(), mount.root.clone());
        Ok(CgroupHierarchy { version, point, top, live: true })
    }

    /// The hierarchy of a copied tree.
    fn copied(folder: &Path) -> Reading<CgroupHierarchy> {
        let top = PathBuf::from("/");
        let v1 = folder.join("memory");
        if v1.join("cgroup.procs").exists() {
            return Ok(CgroupHierarchy { version: 1, point: v1, top, live: false });
        }
        let controllers = read_all(&folder.join("cgroup.controllers")).unwrap_or_default();
        if controllers.trim_ascii().split(|&b| b == b' ').any(|name| name == MEMORY) {
            return Ok(CgroupHierarchy {
                version: 2,
                point: folder.to_path_buf(),
                top,
                live: false,
            });
        }
        Err(Absent::NotCollected("control groups are not in the copied tree".into()))
    }

    /// Returns the version of the cgroup interface: 1 or 2.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// All cgroups with their counters, each after its parent.
    pub fn whole_tree(&self) -> CgroupTree {
        self.tree(&self.point)
    }

    /// Returns the folder of a cgroup. `path` is the path of the cgroup in the hierarchy, or the
    /// path of the folder itself.
    pub fn folder(&self, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let below =
            path.strip_prefix(&self.point).or_else(|_| path.strip_prefix(&self.top)).ok()?;
        let is_below = below.components().all(|it| matches!(it, Component::Normal(_)));
        let folder = self.point.join(below);
        (is_below && folder.join("cgroup.procs").exists()).then_some(folder)
    }

    /// Returns the path of a cgroup in the hierarchy. `folder` is the folder of the cgroup.
    pub fn name(&self, folder: &Path) -> Name {
        let below = folder.strip_prefix(&self.point).unwrap_or(Path::new(""));
        let path = if below == Path::new("") { self.top.clone() } else { self.top.join(below) };
        Name::new(path.as_os_str().as_bytes())
    }

    /// A folder and those below it.
    pub fn folders(&self, top: &Path) -> Vec<PathBuf> {
        let mut found = vec![top.to_path_buf()];
        let mut next = 0;
        while let Some(folder) = found.get(next).cloned() {
            next += 1;
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
            let room = MAX_FOLDERS.saturating_sub(found.len());
            found.extend(entries.filter(is_folder).map(|entry| entry.path()).take(room));
        }
        found
    }

    /// Returns the folders of all cgroups.
    pub fn all(&self) -> Vec<PathBuf> {
        self.folders(&self.point)
    }

    /// The processes of a cgroup and of those below it.
    pub fn members(&self, folder: &Path) -> Vec<Pid> {
        let listed = self.folders(folder);
        let texts = listed.iter().filter_map(|it| read_all(&it.join("cgroup.procs")).ok());
        let mut pids: Vec<Pid> = texts
            .flat_map(|text| lines(&text).filter_map(|(_, line)| pid(line)).collect::<Vec<_>>())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Reads the first counters of a cgroup, for [`WatchedCgroup::finish`]. The limit is this
    /// cgroup's own limit.
    pub fn watch(&self, folder: &Path) -> WatchedCgroup {
        WatchedCgroup::of_folder(self.name(folder), self.version, self.files(), folder)
    }

    /// Number of memory cgroups that were removed and still hold memory.
    pub(crate) fn dying(&self) -> Option<u64> {
        match self.version {
            // `/proc/cgroups` counts the cgroups of the whole machine. The count is unknown if the
            // mount shows only a part of them.
            1 if self.top != Path::new("/") || !self.live => None,
            1 => {
                let listed = self.all().len();
                let all = cgroups_of(&read_all(Path::new("/proc/cgroups")).ok()?, MEMORY)?;
                (listed < MAX_FOLDERS).then(|| all.saturating_sub(listed as u64))
            }
            _ => {
                let stat = vmstat::parse(&read_all(&self.point.join("cgroup.stat")).ok()?);
                // Linux 6.12 has a count for each controller.
                counter(&stat, "nr_dying_subsys_memory")
                    .or_else(|| counter(&stat, "nr_dying_descendants"))
            }
        }
    }

    /// True for the first version of the interface.
    pub(super) const fn is_v1(&self) -> bool {
        self.version == 1
    }

    pub(super) fn files(&self) -> &'static CgroupFiles {
        if self.is_v1() { &V1 } else { &V2 }
    }
}

fn pid(line: &[u8]) -> Option<Pid> {
    number(line).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0).map(Pid)
}

/// Number of cgroups of a controller in `/proc/cgroups`, removed ones included.
fn cgroups_of(text: &[u8], controller: &[u8]) -> Option<u64> {
    lines(text).find_map(|(_, line)| {
        let mut words = line.split(|&b| b == b'\t' || b == b' ');
        (words.next()? == controller).then(|| number(words.nth(1)?)).flatten()
    })
}

/// True if a target names a cgroup rather than a process.
pub fn is_path(target: &str) -> bool {
    Path::new(OsStr::new(target)).is_absolute()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(point: &Path) -> CgroupHierarchy {
        let (point, top) = (point.to_path_buf(), PathBuf::from("/pod"));
        CgroupHierarchy { version: 2, point, top, live: true }
    }

    #[test]
    fn a_cgroup_is_found_by_both_of_its_paths_and_none_outside_the_mount() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("a/b");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), "7\n3\n7\n0\nx\n").unwrap();
        let tree = made(top.path());
        assert_eq!(tree.folder("/pod/a/b"), Some(folder.clone()));
        assert_eq!(tree.folder(folder.to_str().unwrap()), Some(folder.clone()));
        assert_eq!(tree.folder("/pod/a"), None, "no cgroup");
        for outside in ["/a/b", "/pod/../etc", "a/b"] {
            assert_eq!(tree.folder(outside), None, "{outside}");
        }
        assert_eq!(tree.name(&folder), Name::new(b"/pod/a/b"));
        assert_eq!(tree.name(top.path()), Name::new(b"/pod"));
        assert_eq!(tree.members(top.path()), [Pid(3), Pid(7)]);
        assert_eq!(tree.all().len(), 3);
    }

    #[test]
    fn removed_cgroups_are_counted_by_the_kernel() {
        let top = tempfile::tempdir().unwrap();
        let stat = top.path().join("cgroup.stat");
        assert_eq!(made(top.path()).dying(), None);
        fs::write(&stat, "nr_descendants 4\nnr_dying_descendants 9\n").unwrap();
        assert_eq!(made(top.path()).dying(), Some(9));
        let text =
            b"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t2\t1\nmemory\t4\t21\t1\n";
        assert_eq!(cgroups_of(text, b"memory"), Some(21));
        assert_eq!(cgroups_of(text, b"pids"), None);
    }
}
