//! Counters of the machine at one time.

use std::fs;
use std::path::Path;

use pagewise_model::Name;
use pagewise_model::evidence::{MachinePoint, counter};
use pagewise_model::fragmentation::BootCounter;

use crate::mountinfo::Mount;
use crate::root::read_all;
use crate::text::{lines, number};
use crate::{ProcRoot, interrupts, meminfo, mountinfo, pressure, vmstat};

/// Settings and counters of KSM.
const KSM: &str = "/sys/kernel/mm/ksm";

/// Reads the counters of the machine; `at_ns` is the time since the beginning of the observation.
pub fn point(root: &ProcRoot, at_ns: u64) -> MachinePoint {
    let file = |name| root.machine(name).ok();
    let stat = file("stat").unwrap_or_default();
    MachinePoint {
        at_ns,
        vmstat: file("vmstat").map(|text| vmstat::parse(&text)).unwrap_or_default(),
        meminfo: file("meminfo").map(|text| meminfo::all(&text)).unwrap_or_default(),
        ksm: numbers(Path::new(KSM)),
        shootdowns: file("interrupts").and_then(|text| interrupts::parse(&text, "TLB")),
        forks: vmstat::parse(&stat)
            .into_iter()
            .find(|it| it.name.as_bytes() == b"processes")
            .map(|it| it.count),
        pressure: file("pressure/memory").and_then(|text| pressure::parse(&text)),
        dying_cgroups: removed_cgroups(root),
    }
}

/// Folders of cgroups that are counted at most; with more the number of removed ones is unknown.
const MAX_FOLDERS: u64 = 20_000;

/// Number of memory cgroups that were removed and still exist. cgroup v2 counts them; for v1 it is
/// the number of all less that of the folders.
fn removed_cgroups(root: &ProcRoot) -> Option<u64> {
    if !root.is_live() {
        return None;
    }
    let mounts = mountinfo::parse(&read_all(Path::new("/proc/self/mountinfo")).ok()?);
    let is_v1 = |mount: &&Mount| {
        mount.fs == b"cgroup" && mount.options.split(|&b| b == b',').any(|it| it == b"memory")
    };
    if let Some(v1) = mounts.iter().find(is_v1) {
        let folders = if v1.root == Path::new("/") { folders(&v1.point)? } else { return None };
        return all_memory_cgroups(&root.machine("cgroups").ok()?)?.checked_sub(folders);
    }
    let v2 = mounts.iter().find(|mount| mount.fs == b"cgroup2")?;
    let stat = vmstat::parse(&read_all(&v2.point.join("cgroup.stat")).ok()?);
    counter(&stat, "nr_dying_descendants")
}

/// The number of memory cgroups in `/proc/cgroups`.
fn all_memory_cgroups(text: &[u8]) -> Option<u64> {
    let row = lines(text).find_map(|(_, line)| line.strip_prefix(b"memory\t"))?;
    number(row.split(|&byte| byte == b'\t').nth(1)?)
}

/// Number of folders from this one down.
fn folders(top: &Path) -> Option<u64> {
    let mut open = vec![top.to_path_buf()];
    let mut count = 0;
    while let Some(folder) = open.pop() {
        count += 1;
        if count > MAX_FOLDERS {
            return None;
        }
        // A folder can vanish meanwhile.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        open.extend(entries.flatten().filter(is_folder).map(|entry| entry.path()));
    }
    Some(count)
}

/// Files of a folder that hold one number each.
fn numbers(folder: &Path) -> Vec<BootCounter> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let counter = |entry: fs::DirEntry| {
        let count = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        Some(BootCounter { name: Name::new(entry.file_name().as_encoded_bytes()), count })
    };
    entries.flatten().filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_memory_cgroups_is_the_third_column() {
        let text =
            b"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t7\t1\nmemory\t4\t22\t1\n";
        assert_eq!(all_memory_cgroups(text), Some(22));
        assert_eq!(all_memory_cgroups(b"cpu\t1\t7\t1\n"), None);
    }

    #[test]
    fn folders_are_counted_with_those_below() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("a/b")).unwrap();
        fs::write(top.path().join("a/file"), "1").unwrap();
        assert_eq!(folders(top.path()), Some(3));
    }
}
