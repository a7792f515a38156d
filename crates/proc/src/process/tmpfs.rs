//! Devices of tmpfs file systems: mappings of their files are shared memory.

use std::collections::HashMap;
use std::sync::Mutex;

use pagewise_model::{Device, Mapping, Pid};

use crate::{ProcRoot, mountinfo};

/// For each device, true if it is a tmpfs. Device numbers mean the same in every mount namespace.
#[derive(Debug, Default)]
pub(crate) struct TmpfsDevices(Mutex<HashMap<Device, bool>>);

impl TmpfsDevices {
    /// Marks the mappings of tmpfs files. The kernel gives tmpfs devices of major number 0.
    pub(crate) fn mark(&self, root: &ProcRoot, pid: Pid, mappings: &mut [Mapping]) {
        let mut known = self.0.lock().expect("no thread panics while it holds the lock");
        let unknown = |m: &Mapping, known: &HashMap<Device, bool>| {
            m.inode != 0 && m.device.major == 0 && !known.contains_key(&m.device)
        };
        if mappings.iter().any(|m| unknown(m, &known)) {
            let text = root.read(pid, "mountinfo").unwrap_or_default();
            known.extend(mountinfo::parse(&text).iter().map(|m| (m.device, m.fs == b"tmpfs")));
            // The kernel's internal mounts, such as that of tmpfs, are in no mount namespace. The
            // names of their files identify these mounts.
            for mapping in mappings.iter().filter(|m| m.inode != 0 && m.device.major == 0) {
                known.entry(mapping.device).or_insert(false);
            }
        }
        for mapping in mappings {
            mapping.on_tmpfs = known.get(&mapping.device).copied().unwrap_or(false);
        }
    }
}
