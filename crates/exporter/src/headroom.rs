//! Headroom of cgroups: bytes until the nearest memory limit of a cgroup or its ancestors.

use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::sweep::{Sweep, SweepCgroup};

/// Headroom of the cgroups of a sweep.
#[derive(Debug)]
pub(crate) struct Headroom<'a> {
    /// Bytes until the limit of the cgroup itself, by path; `u64::MAX` if it is unlimited, `None`
    /// if it is unknown.
    own: HashMap<&'a [u8], Option<u64>>,
}

impl<'a> Headroom<'a> {
    pub(crate) fn of(sweep: &'a Sweep) -> Headroom<'a> {
        let cgroups = sweep.cgroups.iter().flatten();
        Headroom { own: cgroups.map(|it| (it.path.as_bytes(), own(it))).collect() }
    }

    /// Lowest headroom of a cgroup and its ancestors; `u64::MAX` if all are unlimited, `None` if it
    /// is unknown.
    pub(crate) fn at(&self, path: &Name) -> Option<u64> {
        let path = path.as_bytes();
        let mut least = *self.own.get(path)?;
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let ancestor: &[u8] = if at == 0 { b"/" } else { &path[..at] };
            if let Some(Some(left)) = self.own.get(ancestor) {
                least = least.map(|it| it.min(*left));
            }
        }
        least
    }
}

fn own(cgroup: &SweepCgroup) -> Option<u64> {
    match cgroup.limit.as_ref().ok()? {
        None => Some(u64::MAX),
        Some(limit) => Some(limit.0.saturating_sub(cgroup.current.as_ref().ok()?.0)),
    }
}
