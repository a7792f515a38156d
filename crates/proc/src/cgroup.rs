//! The memory cgroup of a process: its limit, and what is charged against it.

use std::path::{Path, PathBuf};

use pagewise_model::process::CgroupMemory;
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};

use crate::mountinfo::Mount;
use crate::root::read_all;
use crate::text::{lines, number};
use crate::{ProcRoot, mountinfo};

/// v1 spells "no limit" as the largest number of whole pages; nothing near it is a limit.
const UNLIMITED: u64 = 1 << 60;

/// A memory cgroup as `/proc/<pid>/cgroup` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// 1 or 2.
    pub version: u8,
    /// Its path in the hierarchy.
    pub path: Name,
}

/// Reads a whole `cgroup`: the memory controller's line of v1, else the line of v2.
pub fn parse(text: &[u8]) -> Option<Member> {
    let rows = lines(text).filter_map(|(_, line)| {
        let mut parts = line.splitn(3, |&b| b == b':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    let rows: Vec<_> = rows.collect();
    let v1 =
        rows.iter().find(|(_, list, _)| list.split(|&b| b == b',').any(|name| name == b"memory"));
    let v2 = rows.iter().find(|(id, list, _)| *id == b"0" && list.is_empty());
    let member = |version, path: &[u8]| Member { version, path: Name::new(path) };
    v1.map(|row| member(1, row.2)).or_else(|| v2.map(|row| member(2, row.2)))
}

/// Reads the cgroup of a process and the lowest limit from it up to the root that we can see.
pub(crate) fn read(root: &ProcRoot, pid: Pid) -> Reading<CgroupMemory> {
    let text = root.reading(pid, "cgroup")?;
    let member = parse(&text).ok_or_else(|| Absent::NotInThisKernel("".into()))?;
    if !root.is_live() {
        return Err(Absent::NotCollected("control groups are not in the copied tree".into()));
    }
    // Our own mounts: the target's may be in a namespace that we do not see.
    let mounts = own::mounts()?;
    let Some(mut folder) = folder(&mounts, &member) else {
        return Err(Absent::NotSupported("no memory cgroup is mounted here".into()));
    };
    let names = if member.version == 1 { V1 } else { V2 };
    let mut lowest = None;
    loop {
        if let Some(limit) = bytes(&folder.path.join(names.limit))
            && lowest.as_ref().is_none_or(|(least, _)| limit < *least)
        {
            lowest = Some((limit, folder.path.join(names.usage)));
        }
        if !folder.up() {
            break;
        }
    }
    let (limit, usage) = match lowest {
        Some((limit, usage)) => (Some(Bytes(limit)), usage),
        None => (None, folder.own.join(names.usage)),
    };
    let usage =
        bytes(&usage).map(Bytes).ok_or(Absent::NotSupported("the cgroup gives no usage".into()));
    Ok(CgroupMemory { path: member.path, version: member.version, limit, usage })
}

mod own {
    use super::{Absent, Mount, Path, Reading, mountinfo, read_all};

    /// The mounts that we see.
    pub(super) fn mounts() -> Reading<Vec<Mount>> {
        let text = read_all(Path::new("/proc/self/mountinfo"));
        text.map(|text| mountinfo::parse(&text))
            .map_err(|_| Absent::NotInThisKernel("2.6.26".into()))
    }
}

/// The files of one version.
struct Names {
    limit: &'static str,
    usage: &'static str,
}

const V1: Names = Names { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes" };
const V2: Names = Names { limit: "memory.max", usage: "memory.current" };

/// A cgroup's folder, and those above it up to the mount.
struct Folder {
    own: PathBuf,
    path: PathBuf,
    top: PathBuf,
}

impl Folder {
    /// Goes one up; `false` at the mount.
    fn up(&mut self) -> bool {
        self.path != self.top && self.path.pop()
    }
}

fn folder(mounts: &[Mount], member: &Member) -> Option<Folder> {
    let holds_memory =
        |m: &&Mount| m.options.split(|&b| b == b',').any(|option| option == b"memory");
    let mount = match member.version {
        1 => mounts.iter().filter(|m| m.fs == b"cgroup").find(holds_memory),
        _ => mounts.iter().find(|m| m.fs == b"cgroup2"),
    }?;
    let name = std::str::from_utf8(member.path.as_bytes()).ok()?;
    // In a container the mount shows a part of the hierarchy only.
    let below = Path::new(name).strip_prefix(&mount.root).ok()?;
    let is_plain = below.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    let path = if is_plain { mount.point.join(below) } else { return None };
    Some(Folder { own: path.clone(), path, top: mount.point.clone() })
}

/// A file with a number of bytes; `None` for `max` and for v1's way to say so.
fn bytes(path: &Path) -> Option<u64> {
    number(&read_all(path).ok()?).filter(|&n| n < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_line_of_v1_wins_over_v2() {
        let text = b"5:memory:/a/b\n4:cpu,cpuacct:/\n0::/c:d\n";
        assert_eq!(parse(text), Some(Member { version: 1, path: "/a/b".into() }));
        assert_eq!(parse(b"4:cpu:/\n0::/c:d\n"), Some(Member { version: 2, path: "/c:d".into() }));
        assert_eq!(parse(b""), None);
    }
}
