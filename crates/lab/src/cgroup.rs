//! Memory cgroups of version 1 and 2: their mount point and their limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagewise_model::Bytes;
use pagewise_proc::mountinfo;

/// Bounds the memory of a cgroup.
pub(crate) fn limit(cgroup: &Path, memory: Bytes) -> io::Result<()> {
    write_first(cgroup, &[("memory.max", memory.0), ("memory.limit_in_bytes", memory.0)])
}

/// Keeps a cgroup with the limit `memory` from using swap.
pub(crate) fn forbid_swap(cgroup: &Path, memory: Bytes) -> io::Result<()> {
    write_first(cgroup, &[("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", memory.0)])
}

/// Writes a number to the first of these files that is there.
fn write_first(cgroup: &Path, files: &[(&str, u64)]) -> io::Result<()> {
    let found = files.iter().find(|(name, _)| cgroup.join(name).exists());
    let (name, value) = found.ok_or(io::ErrorKind::NotFound)?;
    fs::write(cgroup.join(name), value.to_string())
}

/// Mount point at which memory cgroups can be created: that of the version with the controller.
pub(crate) fn cgroups() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mounts = mountinfo::parse(&fs::read("/proc/self/mountinfo").ok()?);
    let has_memory = |mount: &mountinfo::Mount| match mount.fs.as_slice() {
        b"cgroup" => mount.options.split(|byte| *byte == b',').any(|option| option == b"memory"),
        b"cgroup2" => {
            let control = fs::read_to_string(mount.point.join("cgroup.subtree_control"));
            control.is_ok_and(|text| text.split_whitespace().any(|word| word == "memory"))
        }
        _ => false,
    };
    mounts.into_iter().find(has_memory).map(|mount| mount.point)
}
