//! Processes that share one address space, as after `vfork` and `clone(CLONE_VM)`: the files of
//! each process show all of this memory.

use std::collections::HashMap;
use std::hash::Hash;

use pagewise_model::Pid;
use pagewise_sys::system;

use crate::ProcRoot;

/// Maximum number of comparisons for the processes of one size.
const MAX_COMPARISONS: usize = 64;

/// Returns, for each process that uses the memory of an earlier process in the list, this earlier
/// process. Only processes with equal keys are compared. A key is the size of the process.
pub(crate) fn of_earlier<K: Hash + Eq>(
    root: &ProcRoot,
    processes: impl Iterator<Item = (Pid, K)>,
) -> HashMap<Pid, Pid> {
    let mut found = HashMap::new();
    if !root.has_our_ids() {
        return found;
    }
    let mut groups: HashMap<K, Vec<Pid>> = HashMap::new();
    for (pid, key) in processes {
        groups.entry(key).or_default().push(pid);
    }
    for group in groups.into_values().filter(|group| group.len() > 1) {
        let mut left = MAX_COMPARISONS;
        let mut owners: Vec<Pid> = Vec::new();
        for pid in group {
            let same = owners
                .iter()
                .take(left)
                .find(|owner| system::shares_memory(owner.0, pid.0).unwrap_or(false));
            left = left.saturating_sub(owners.len());
            match same {
                Some(owner) => {
                    found.insert(pid, *owner);
                }
                None => owners.push(pid),
            }
        }
    }
    found
}
