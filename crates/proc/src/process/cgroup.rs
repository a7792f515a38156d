//! The memory cgroup of a process: its limit, and the memory that is charged to it.

pub mod hierarchy;
mod sweep;
mod tree;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use pagewise_model::evidence::{CgroupActivity, CgroupPoint, counter};
use pagewise_model::process::CgroupMemory;
use pagewise_model::settings::CgroupSettings;
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};

use crate::mountinfo::Mount;
use crate::root::read_all;
use crate::text::{lines, number};
use crate::{ProcRoot, mountinfo, pressure, vmstat};

/// Minimum limit in bytes that means "no limit": cgroup v1 prints the largest number of whole
/// pages.
const UNLIMITED: u64 = 1 << 60;
/// Name of the memory controller.
const MEMORY: &[u8] = b"memory";

/// A memory cgroup as `/proc/<pid>/cgroup` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Version of the cgroup interface: 1 or 2.
    pub version: u8,
    /// Path of the cgroup in the hierarchy.
    pub path: Name,
}

/// Reason why a process has no memory cgroup: memory cgroups of version 1 are an option of the
/// kernel since 6.11 (CONFIG_MEMCG_V1), and `cgroup_disable=memory` turns all off.
pub fn no_memory_cgroup() -> Absent {
    Absent::NotSupported("no mounted cgroup hierarchy has the memory controller".into())
}

/// Reads a whole `cgroup`: the memory controller's line of v1, else the line of v2.
pub fn parse(text: &[u8]) -> Option<Member> {
    member_of(text, MEMORY)
}

/// The line of a controller in v1, else the line of v2.
fn member_of(text: &[u8], controller: &[u8]) -> Option<Member> {
    let rows = lines(text).filter_map(|(_, line)| {
        let mut parts = line.splitn(3, |&b| b == b':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let rows: Vec<_> = rows.collect();
    let v1 =
        rows.iter().find(|(_, list, _)| list.split(|&b| b == b',').any(|name| name == controller));
    let v2 = rows.iter().find(|(id, list, _)| *id == b"0" && list.is_empty());
    let member = |version, path: &[u8]| Member { version, path: Name::new(path) };
    v1.map(|row| member(1, row.2)).or_else(|| v2.map(|row| member(2, row.2)))
}

/// Reads the cgroup of a process and the lowest limit from it up to the root that we can see.
pub(crate) fn read(root: &ProcRoot, pid: Pid) -> Reading<CgroupMemory> {
    let (member, folder) = place(root, pid)?;
    let names = names(&member);
    let (limit, tightest) = folder.lowest(names.limit);
    let usage = usage(&tightest.join(names.usage));
    Ok(CgroupMemory { path: member.path, version: member.version, limit, usage })
}

/// Reads the memory limit of a process's cgroup, with the file that contains it.
pub(crate) fn settings(root: &ProcRoot, pid: Pid) -> Reading<CgroupSettings> {
    let (member, folder) = place(root, pid)?;
    let names = names(&member);
    let (limit, tightest) = folder.lowest(names.limit);
    let pressure = match member.version {
        1 => Err(Absent::NotSupported("cgroup v1 has none".into())),
        _ => read_all(&folder.path.join("memory.pressure"))
            .ok()
            .and_then(|text| pressure::parse(&text))
            .ok_or_else(|| Absent::NotInThisKernel("4.20".into())),
    };
    Ok(CgroupSettings {
        limit_file: Name::new(tightest.join(names.limit).as_os_str().as_bytes()),
        limit,
        usage: usage(&tightest.join(names.usage)),
        swapped: swapped(tightest, names),
        with_swap: (member.version == 1)
            .then(|| tightest.join(names.swap_limit))
            .and_then(|file| Some((Name::new(file.as_os_str().as_bytes()), Bytes(bytes(&file)?)))),
        pressure,
    })
}

/// A memory cgroup whose counters are read at the start and at the end of an interval. For a
/// process, it is the cgroup with the lowest limit, from the process's own cgroup up to the root
/// that we can see.
#[derive(Clone, Debug)]
pub struct WatchedCgroup {
    member: Member,
    /// Path of the cgroup with the lowest limit. The next field is its folder.
    limited: Name,
    folder: PathBuf,
    names: &'static CgroupFiles,
    limit: Option<Bytes>,
    first: CgroupPoint,
}

impl WatchedCgroup {
    /// Finds the cgroup, and reads its counters.
    ///
    /// # Errors
    /// [`Absent`] if the process is in no memory cgroup that we can see.
    pub fn begin(root: &ProcRoot, pid: Pid) -> Reading<WatchedCgroup> {
        let (member, own) = place(root, pid)?;
        let names = names(&member);
        let (limit, folder) = own.lowest(names.limit);
        let (limited, first) = (own.path_of(folder), point(folder, names));
        Ok(WatchedCgroup { member, limited, folder: folder.to_path_buf(), names, limit, first })
    }

    /// Reads the first counters of the cgroup of a folder. `limit` is this cgroup's own limit, even
    /// if an ancestor has a lower one.
    fn of_folder(
        path: Name,
        version: u8,
        names: &'static CgroupFiles,
        folder: &Path,
    ) -> WatchedCgroup {
        let limit = bytes(&folder.join(names.limit)).map(Bytes);
        let (limited, first) = (path.clone(), point(folder, names));
        let member = Member { version, path };
        WatchedCgroup { member, limited, folder: folder.to_path_buf(), names, limit, first }
    }

    /// Reads the counters again.
    pub fn finish(self) -> CgroupActivity {
        let WatchedCgroup { member, limited, folder, names, limit, first } = self;
        CgroupActivity {
            path: member.path,
            limited,
            version: member.version,
            limit,
            swap_limit: bytes(&folder.join(names.swap_limit)).map(Bytes),
            points: [first, point(&folder, names)],
        }
    }
}

/// Counters of a cgroup now.
fn point(folder: &Path, names: &CgroupFiles) -> CgroupPoint {
    let file = |name: &str| read_all(&folder.join(name)).ok();
    let events = |(name, key): (&str, &str)| match key {
        "" => file(name).and_then(|text| number(&text)),
        _ => counter(&vmstat::parse(&file(name)?), key),
    };
    CgroupPoint {
        usage: bytes(&folder.join(names.usage)).map(Bytes),
        peak: bytes(&folder.join(names.peak)).map(Bytes),
        limit_hits: events(names.limit_hits),
        oom_kills: events(names.oom_kills),
        stat: file("memory.stat").map(|text| vmstat::parse(&text)).unwrap_or_default(),
        pressure: file("memory.pressure").and_then(|text| pressure::parse(&text)),
    }
}

/// Returns the number of bytes that may still be charged to the memory cgroups of a process: the
/// minimum over all levels up to the root that we can see. `None` without a limit. Page cache that
/// is easily reclaimed counts as free.
pub(crate) fn memory_left(root: &ProcRoot, pid: Pid) -> Option<Bytes> {
    let (member, folder) = place(root, pid).ok()?;
    let names = names(&member);
    let left = |folder: &Path| {
        let (limit, usage) = (bytes(&folder.join(names.limit))?, bytes(&folder.join(names.usage))?);
        let stat = read_all(&folder.join("memory.stat")).unwrap_or_default();
        let cache = lines(&stat).find_map(|(_, line)| number(line.strip_prefix(names.cache)?));
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    };
    folder.up_to_top().filter_map(left).min().map(Bytes)
}

/// Number of tasks that the pids cgroups of a process may still get; `None` without a limit.
pub(crate) fn tasks_left(root: &ProcRoot, pid: Pid) -> Option<u64> {
    let (_, folder) = place_of(root, pid, b"pids").ok()?;
    let left = |folder: &Path| {
        let file = |name| bytes(&folder.join(name));
        Some(file("pids.max")?.saturating_sub(file("pids.current")?))
    };
    folder.up_to_top().filter_map(left).min()
}

/// The memory cgroup of a process, and its folder.
fn place(root: &ProcRoot, pid: Pid) -> Reading<(Member, CgroupFolder)> {
    place_of(root, pid, MEMORY)
}

fn place_of(root: &ProcRoot, pid: Pid, controller: &[u8]) -> Reading<(Member, CgroupFolder)> {
    let text = root.reading(pid, "cgroup")?;
    let member = member_of(&text, controller).ok_or_else(|| Absent::NotInThisKernel("".into()))?;
    if !root.is_live() {
        return Err(Absent::NotCollected("control groups are not in the copied tree".into()));
    }
    let mounts = our_mounts()?;
    let folder =
        mounts.iter().find_map(|mount| CgroupFolder::of_member(&member, mount, controller));
    let folder = folder.ok_or(Absent::NotSupported("no memory cgroup is mounted here".into()))?;
    Ok((member, folder))
}

fn usage(file: &Path) -> Reading<Bytes> {
    bytes(file).map(Bytes).ok_or(Absent::NotSupported("the cgroup gives no usage".into()))
}

/// Returns the memory in swap of a cgroup and of the cgroups below it.
fn swapped(folder: &Path, names: &CgroupFiles) -> Reading<Bytes> {
    let absent = || Absent::NotSupported("the kernel does not count swap by cgroup".into());
    let text = read_all(&folder.join(names.swap.0)).map_err(|_| absent())?;
    let value = lines(&text).find_map(|(_, line)| number(line.strip_prefix(names.swap.1)?));
    value.map(Bytes).ok_or_else(absent)
}

fn names(member: &Member) -> &'static CgroupFiles {
    if member.version == 1 { &V1 } else { &V2 }
}

/// Returns the mounts that this process sees. The mount namespace of the target may be
/// inaccessible.
fn our_mounts() -> Reading<Vec<Mount>> {
    let text = read_all(Path::new("/proc/self/mountinfo"));
    text.map(|text| mountinfo::parse(&text)).map_err(|_| Absent::NotInThisKernel("2.6.26".into()))
}

/// Returns true if a mount of v1 includes a controller.
fn is_controller(mount: &Mount, controller: &[u8]) -> bool {
    mount.options.split(|&b| b == b',').any(|option| option == controller)
}

/// File names of one version of the cgroup interface.
#[derive(Debug)]
struct CgroupFiles {
    limit: &'static str,
    usage: &'static str,
    peak: &'static str,
    swap_limit: &'static str,
    /// File and key of the number of times that the limit was hit. The next field has the file and
    /// key of the number of OOM kills. If the key is empty, the file contains only the number.
    limit_hits: (&'static str, &'static str),
    oom_kills: (&'static str, &'static str),
    /// Beginning of the line of `memory.stat` for inactive page cache, children included.
    cache: &'static [u8],
    /// The file and the beginning of its line for memory in swap, children included.
    swap: (&'static str, &'static [u8]),
}

static V1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    swap_limit: "memory.memsw.limit_in_bytes",
    limit_hits: ("memory.failcnt", ""),
    oom_kills: ("memory.oom_control", "oom_kill"),
    cache: b"total_inactive_file ",
    swap: ("memory.stat", b"total_swap "),
};
static V2: CgroupFiles = CgroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    peak: "memory.peak",
    swap_limit: "memory.swap.max",
    limit_hits: ("memory.events", "max"),
    oom_kills: ("memory.events", "oom_kill"),
    cache: b"inactive_file ",
    swap: ("memory.swap.current", b""),
};

/// A cgroup's folder, and the mount that contains it.
struct CgroupFolder {
    path: PathBuf,
    top: PathBuf,
}

impl CgroupFolder {
    /// Returns the folder, if the mount shows it.
    fn of_member(member: &Member, mount: &Mount, controller: &[u8]) -> Option<CgroupFolder> {
        let is_its_kind = match member.version {
            1 => mount.fs == b"cgroup" && is_controller(mount, controller),
            _ => mount.fs == b"cgroup2",
        };
        let path = Path::new(OsStr::from_bytes(member.path.as_bytes()));
        // In a container the mount shows a part of the hierarchy only.
        let below = path.strip_prefix(&mount.root).ok()?;
        let is_below = below.components().all(|c| matches!(c, Component::Normal(_)));
        (is_its_kind && is_below)
            .then(|| CgroupFolder { path: mount.point.join(below), top: mount.point.clone() })
    }

    /// This folder and those above it, up to the mount.
    fn up_to_top(&self) -> impl Iterator<Item = &Path> {
        let depth = self.path.components().count() - self.top.components().count();
        self.path.ancestors().take(depth + 1)
    }

    /// Returns the path of this folder, or of a folder above it, relative to the mount.
    fn path_of(&self, folder: &Path) -> Name {
        let below = folder.strip_prefix(&self.top).unwrap_or(folder);
        Name::new(Path::new("/").join(below).as_os_str().as_bytes())
    }

    /// Returns the lowest limit from this folder up to the mount, and the folder that has the
    /// limit. Without a limit, returns this folder.
    fn lowest(&self, file: &str) -> (Option<Bytes>, &Path) {
        let limits =
            self.up_to_top().filter_map(|folder| Some((bytes(&folder.join(file))?, folder)));
        match limits.min_by_key(|(limit, _)| *limit) {
            Some((limit, folder)) => (Some(Bytes(limit)), folder),
            None => (None, &self.path),
        }
    }
}

/// Reads a number of bytes from a file; `None` for `max` and for v1's number that means "no limit".
fn bytes(path: &Path) -> Option<u64> {
    number(&read_all(path).ok()?).filter(|&n| n < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_memory_line_of_v1_wins_over_v2() {
        let text = b"5:memory:/a/b\n4:cpu,cpuacct:/\n0::/c:d\n";
        assert_eq!(parse(text), Some(Member { version: 1, path: "/a/b".into() }));
        assert_eq!(parse(b"4:cpu:/\n0::/c:d\n"), Some(Member { version: 2, path: "/c:d".into() }));
        assert_eq!(parse(b""), None);
    }

    fn mount(root: &str, point: &Path) -> Mount {
        let line = format!("30 23 0:26 {root} {} rw - cgroup2 cgroup2 rw\n", point.display());
        mountinfo::parse(line.as_bytes()).remove(0)
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let top = tempfile::tempdir().unwrap();
        let (middle, own) = (top.path().join("a"), top.path().join("a/b"));
        fs::create_dir_all(&own).unwrap();
        fs::write(middle.join("memory.max"), "4096\n").unwrap();
        fs::write(own.join("memory.max"), "max\n").unwrap();
        let member = Member { version: 2, path: "/pod/a/b".into() };
        let folder = CgroupFolder::of_member(&member, &mount("/pod", top.path()), MEMORY).unwrap();
        assert_eq!(folder.lowest("memory.max"), (Some(Bytes(4096)), middle.as_path()));
        assert_eq!(folder.path_of(&middle), "/a".into());
        assert_eq!(folder.path_of(top.path()), "/".into());
        fs::write(own.join("memory.max"), "1024\n").unwrap();
        assert_eq!(folder.lowest("memory.max"), (Some(Bytes(1024)), own.as_path()));
    }

    #[test]
    fn memory_in_swap_is_read_as_each_version_counts_it() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("memory.stat"), "swap 1\ntotal_swap 4096\n").unwrap();
        fs::write(top.path().join("memory.swap.current"), "8192\n").unwrap();
        assert_eq!(swapped(top.path(), &V1), Ok(Bytes(4096)));
        assert_eq!(swapped(top.path(), &V2), Ok(Bytes(8192)));
        fs::write(top.path().join("memory.stat"), "cache 1\n").unwrap();
        assert!(swapped(top.path(), &V1).is_err());
    }

    #[test]
    fn counters_of_both_versions_have_the_same_names() {
        let files = [
            (&V1, "memory.failcnt", "7\n"),
            (&V1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            (&V2, "memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n"),
        ];
        for version in [&V1, &V2] {
            let top = tempfile::tempdir().unwrap();
            fs::write(top.path().join(version.usage), "4096\n").unwrap();
            fs::write(top.path().join("memory.stat"), "total_rss 5\n").unwrap();
            for (_, name, text) in files.iter().filter(|(of, ..)| std::ptr::eq(*of, version)) {
                fs::write(top.path().join(name), text).unwrap();
            }
            let read = point(top.path(), version);
            assert_eq!((read.usage, read.peak), (Some(Bytes(4096)), None));
            assert_eq!((read.limit_hits, read.oom_kills), (Some(7), Some(2)));
            assert_eq!(counter(&read.stat, "total_rss"), Some(5));
        }
    }

    #[test]
    fn the_number_that_v1_writes_for_no_limit_is_unlimited() {
        let top = tempfile::tempdir().unwrap();
        fs::write(top.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(bytes(&top.path().join("memory.limit_in_bytes")), None);
    }

    #[test]
    fn a_cgroup_that_a_mount_does_not_show_is_not_looked_for_elsewhere() {
        for path in ["/elsewhere", "/pod/../../etc"] {
            let member = Member { version: 2, path: path.into() };
            assert!(
                CgroupFolder::of_member(
                    &member,
                    &mount("/pod", Path::new("/sys/fs/cgroup")),
                    MEMORY
                )
                .is_none(),
                "{path}"
            );
        }
    }
}
