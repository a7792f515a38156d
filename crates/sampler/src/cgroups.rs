//! Memory cgroups that are tracked over several sweeps.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pagewise_model::sweep::SweepCgroup;
use pagewise_model::{Absent, Name, Reading};
use pagewise_proc::ProcRoot;
use pagewise_proc::cgroup::hierarchy::CgroupHierarchy;

/// Memory cgroups, in order of path.
#[derive(Debug)]
pub(crate) struct TrackedCgroups {
    hierarchy: Reading<CgroupHierarchy>,
    cgroups: BTreeMap<Name, TrackedCgroup>,
    listed_ns: Option<u64>,
}

#[derive(Debug)]
struct TrackedCgroup {
    folder: PathBuf,
    values: SweepCgroup,
    read_ns: u64,
}

impl TrackedCgroups {
    pub(crate) fn new(root: &ProcRoot) -> TrackedCgroups {
        TrackedCgroups {
            hierarchy: CgroupHierarchy::find(root),
            cgroups: BTreeMap::new(),
            listed_ns: None,
        }
    }

    /// True if the cgroup is tracked, or if cgroups cannot be read at all.
    pub(crate) fn knows(&self, path: &Name) -> bool {
        self.hierarchy.is_err() || self.cgroups.contains_key(path)
    }

    /// Reads all cgroups. A cgroup with unchanged charged memory is read completely only after
    /// `refresh_ns`. New cgroups are searched if a process is in an unknown cgroup, or after
    /// `refresh_ns`.
    pub(crate) fn read(
        &mut self,
        now_ns: u64,
        refresh_ns: u64,
        has_unknown: bool,
    ) -> Reading<Vec<SweepCgroup>> {
        let hierarchy = self.hierarchy.as_ref().map_err(Clone::clone)?;
        let is_due = self.listed_ns.is_none_or(|at| now_ns.saturating_sub(at) >= refresh_ns);
        if is_due || has_unknown {
            self.listed_ns = Some(now_ns);
            for folder in hierarchy.all() {
                let name = hierarchy.name(&folder);
                self.cgroups.entry(name).or_insert_with(|| TrackedCgroup {
                    values: hierarchy.read(&folder),
                    folder,
                    read_ns: now_ns,
                });
            }
        }
        self.cgroups.retain(|_, it| {
            if it.read_ns == now_ns {
                return it.values.current != Err(Absent::Vanished);
            }
            let current = hierarchy.charged(&it.folder);
            let is_old = now_ns.saturating_sub(it.read_ns) >= refresh_ns;
            if current != it.values.current || is_old {
                it.values = hierarchy.read(&it.folder);
                it.read_ns = now_ns;
            }
            current != Err(Absent::Vanished)
        });
        // The root cgroup of v2 has no counter of charged memory; the counters of the machine
        // replace it.
        let has_account = |it: &&TrackedCgroup| it.values.current.is_ok();
        Ok(self.cgroups.values().filter(has_account).map(|it| it.values.clone()).collect())
    }
}
