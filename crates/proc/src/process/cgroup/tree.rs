//! All memory cgroups of a mount at one time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pagewise_model::cgroup_tree::{CgroupNode, CgroupTree};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::PressureFigures;
use pagewise_model::{Absent, Bytes, Pid, Reading};

use super::hierarchy::CgroupHierarchy;
use super::{CgroupFiles, bytes, swapped, usage};
use crate::root::read_all;
use crate::text::{lines, number};
use crate::{pressure, vmstat};

/// Reason of the absent sizes of the root cgroup of v2.
const NOT_OF_ROOT: &str = "the root cgroup of v2 does not count them; see `pagewise system`";

impl CgroupHierarchy {
    /// Reads a cgroup and those below it, each after its parent.
    pub fn tree(&self, top: &Path) -> CgroupTree {
        let mut folders = self.folders(top);
        // The path of a parent is a prefix of the paths of its children, so it comes before them.
        folders.sort();
        let mut places: HashMap<PathBuf, usize> = HashMap::new();
        let mut nodes: Vec<CgroupNode> = Vec::with_capacity(folders.len());
        for folder in folders {
            let parent = folder.parent().and_then(|it| places.get(it)).copied();
            let depth = parent.map_or(0, |parent| nodes[parent].depth + 1);
            places.insert(folder.clone(), nodes.len());
            nodes.push(self.node(&folder, parent, depth));
        }
        CgroupTree { version: self.version(), nodes, dying: self.dying() }
    }

    fn node(&self, folder: &Path, parent: Option<usize>, depth: u64) -> CgroupNode {
        let names = self.files();
        let is_v1 = self.version() == 1;
        let file = |name: &str| read_all(&folder.join(name)).ok();
        let size = |name: &str| bytes(&folder.join(name)).map(Bytes);
        // Documentation/admin-guide/cgroup-v2.rst: every cgroup but the root has this file.
        let is_root = !is_v1 && !folder.join("cgroup.type").exists();
        let root = || Absent::NotSupported(NOT_OF_ROOT.into());
        let missing = |why: Absent| if is_root { root() } else { why };
        let control = file("memory.oom_control").map(|text| vmstat::parse(&text));
        let flag = |name: &str| file(name).and_then(|text| number(&text)) == Some(1);
        CgroupNode {
            path: self.name(folder),
            depth,
            parent,
            processes: processes(folder),
            current: usage(&folder.join(names.usage)).map_err(missing),
            peak: size(names.peak).ok_or_else(|| missing(Absent::NotInThisKernel("5.19".into()))),
            limit: size(names.limit),
            high: size("memory.high").filter(|_| !is_v1),
            protected: match is_v1 {
                true => size("memory.soft_limit_in_bytes"),
                false => size("memory.min").max(size("memory.low")).filter(|it| !it.is_zero()),
            },
            swap: swapped(folder, names).map_err(missing),
            swap_limit: size(names.swap_limit),
            swappiness: file("memory.swappiness").and_then(|text| number(&text)),
            kills_all: flag("memory.oom.group"),
            kill_disabled: control.is_some_and(|list| has(&list, "oom_kill_disable")),
            stat: stat(folder, is_v1),
            events: events(folder, names),
            pressure: cgroup_pressure(folder, is_v1),
        }
    }
}

fn processes(folder: &Path) -> Vec<Pid> {
    let text = read_all(&folder.join("cgroup.procs")).unwrap_or_default();
    let pids = lines(&text).filter_map(|(_, line)| u32::try_from(number(line)?).ok());
    pids.filter(|pid| *pid > 0).map(Pid).collect()
}

fn has(list: &[BootCounter], name: &str) -> bool {
    list.iter().any(|counter| counter.name.as_bytes() == name.as_bytes() && counter.count > 0)
}

/// Returns the counters of `memory.stat`, with the children included. In v2 every line includes the
/// children. In v1 only the lines that begin with `total_` do, so this function returns these lines
/// without the prefix. Version 1 has kernel memory in a separate file.
fn stat(folder: &Path, is_v1: bool) -> Vec<BootCounter> {
    let text = read_all(&folder.join("memory.stat")).unwrap_or_default();
    let all = vmstat::parse(&text);
    if !is_v1 {
        return all;
    }
    let total = |counter: BootCounter| {
        let name = counter.name.as_bytes().strip_prefix(b"total_")?.into();
        Some(BootCounter { name, ..counter })
    };
    let kernel = read_all(&folder.join("memory.kmem.usage_in_bytes")).ok();
    let kernel = kernel.and_then(|text| number(&text));
    let kernel = kernel.map(|count| BootCounter { name: "kernel".into(), count });
    all.into_iter().filter_map(total).chain(kernel).collect()
}

fn events(folder: &Path, names: &CgroupFiles) -> Vec<BootCounter> {
    let file = |name: &str| read_all(&folder.join(name)).ok();
    if names.limit_hits.1 == "max" {
        return file("memory.events").map(|text| vmstat::parse(&text)).unwrap_or_default();
    }
    let count = |name: &str, count: Option<u64>| {
        count.map(|count| BootCounter { name: name.into(), count })
    };
    let hits = file(names.limit_hits.0).and_then(|text| number(&text));
    let control = file(names.oom_kills.0).map(|text| vmstat::parse(&text)).unwrap_or_default();
    let kills = pagewise_model::evidence::counter(&control, names.oom_kills.1);
    [count("max", hits), count("oom_kill", kills)].into_iter().flatten().collect()
}

fn cgroup_pressure(folder: &Path, is_v1: bool) -> Reading<PressureFigures> {
    if is_v1 {
        return Err(Absent::NotSupported("cgroup v1 has none".into()));
    }
    let text = read_all(&folder.join("memory.pressure")).ok();
    text.and_then(|text| pressure::parse_all(&text))
        .ok_or_else(|| Absent::NotSupported("the kernel does not measure it (psi=0)".into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ProcRoot;

    /// A copied tree with these files below `sysfs/fs/cgroup`.
    fn copied(files: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = tree.path().join("sysfs/fs/cgroup").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }

    fn tree_of(copied: &tempfile::TempDir) -> CgroupTree {
        CgroupHierarchy::find(&ProcRoot::at(copied.path())).unwrap().whole_tree()
    }

    #[test]
    fn both_versions_of_a_copied_tree_give_the_same_names() {
        let v2 = copied(&[
            ("cgroup.controllers", "cpu memory\n"),
            ("a/cgroup.type", "domain\n"),
            ("a/cgroup.procs", "7\n9\n"),
            ("a/memory.current", "8192\n"),
            ("a/memory.max", "max\n"),
            ("a/memory.stat", "anon 4096\nfile 100\n"),
            ("a/memory.events", "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n"),
            ("a/b/memory.max", "4096\n"),
            ("a/b/memory.oom.group", "1\n"),
        ]);
        let tree = tree_of(&v2);
        let paths: Vec<_> = tree.nodes.iter().map(|it| it.path.escaped().into_owned()).collect();
        assert_eq!(paths, ["/", "/a", "/a/b"]);
        assert_eq!(tree.nodes[1].processes, [Pid(7), Pid(9)]);
        assert_eq!((tree.nodes[1].limit, tree.nodes[2].limit), (None, Some(Bytes(4096))));
        assert_eq!((tree.nodes[2].parent, tree.nodes[2].depth), (Some(1), 2));
        assert!(tree.nodes[2].kills_all && !tree.nodes[1].kills_all);
        let not_of_root = Err(Absent::NotSupported(NOT_OF_ROOT.into()));
        assert_eq!([&tree.nodes[0].current, &tree.nodes[0].peak], [&not_of_root; 2]);
        assert_eq!(tree.nodes[1].peak, Err(Absent::NotInThisKernel("5.19".into())));
        let v1 = copied(&[
            ("memory/cgroup.procs", ""),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.usage_in_bytes", "8192\n"),
            ("memory/a/memory.stat", "rss 1\ntotal_rss 4096\n"),
            ("memory/a/memory.failcnt", "2\n"),
            ("memory/a/memory.kmem.usage_in_bytes", "300\n"),
            ("memory/a/memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 4\n"),
        ]);
        let old = tree_of(&v1);
        let (a, old_a) = (&tree.nodes[1], &old.nodes[1]);
        assert_eq!((old.version, old.nodes[0].limit), (1, None));
        assert_eq!(a.current, old_a.current);
        let count = |node: &CgroupNode, name| pagewise_model::evidence::counter(&node.events, name);
        for name in ["max", "oom_kill"] {
            assert_eq!(count(a, name), count(old_a, name), "{name}");
        }
        let stat = |name: &str, count| BootCounter { name: name.into(), count };
        assert_eq!(old_a.stat, [stat("rss", 4096), stat("kernel", 300)]);
        assert!(old_a.kill_disabled);
    }
}
