//! Counters of the machine at one time.

use std::fs;
use std::path::Path;

use pagewise_model::Name;
use pagewise_model::evidence::MachinePoint;
use pagewise_model::fragmentation::BootCounter;

use crate::cgroup::hierarchy::CgroupHierarchy;
use crate::{ProcRoot, interrupts, meminfo, pressure, vmstat};

/// Folder of the settings and counters of KSM.
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
        shootdowns: shootdowns(root),
        forks: vmstat::parse(&stat)
            .into_iter()
            .find(|it| it.name.as_bytes() == b"processes")
            .map(|it| it.count),
        pressure: file("pressure/memory").and_then(|text| pressure::parse(&text)),
        dying_cgroups: CgroupHierarchy::find(root).ok().and_then(|tree| tree.dying()),
    }
}

/// TLB shootdowns of all CPUs since boot; `None` if the kernel does not count them.
pub fn shootdowns(root: &ProcRoot) -> Option<u64> {
    interrupts::parse(&root.machine("interrupts").ok()?, "TLB")
}

/// Reads the files of a folder that contain one number each.
fn numbers(folder: &Path) -> Vec<BootCounter> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let counter = |entry: fs::DirEntry| {
        let count = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        Some(BootCounter { name: Name::new(entry.file_name().as_encoded_bytes()), count })
    };
    entries.flatten().filter_map(counter).collect()
}
