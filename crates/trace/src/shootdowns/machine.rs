//! Counters of the machine during the recording: interrupts to flush TLBs by CPU, and activities of
//! the kernel that move or protect pages.

use std::fs;

use pagewise_model::{Absent, Name, Reading};
use pagewise_proc::{interrupts, vmstat};

/// Lines of `vmstat`, by how they start.
const STARTS: &[&str] = &[
    // With CONFIG_DEBUG_TLBFLUSH.
    "nr_tlb_",
    "numa_pte_updates",
    "numa_huge_pte_updates",
    "numa_hint_faults",
    "numa_pages_migrated",
    "pgmigrate_success",
    "compact_isolated",
    "compact_migrate_scanned",
    "thp_collapse_alloc",
    "thp_split_pmd",
    "ksm_",
    "cow_ksm",
    "pgsteal_",
    "pswpout",
];

/// Counts at one time, or their increase between two times.
#[derive(Clone, Debug)]
pub(super) struct FlushCounts {
    pub(super) shootdowns: Reading<Vec<(u32, u64)>>,
    pub(super) vmstat: Vec<(Name, u64)>,
}

impl FlushCounts {
    pub(super) fn now() -> FlushCounts {
        let text = fs::read("/proc/interrupts").unwrap_or_default();
        let none = || Absent::NotSupported("/proc/interrupts has no TLB row here".into());
        let text_of = fs::read("/proc/vmstat").unwrap_or_default();
        let wanted =
            |name: &Name| STARTS.iter().any(|start| name.as_bytes().starts_with(start.as_bytes()));
        let lines = vmstat::parse(&text_of).into_iter().filter(|line| wanted(&line.name));
        FlushCounts {
            shootdowns: interrupts::by_cpu(&text, "TLB").ok_or_else(none),
            vmstat: lines.map(|line| (line.name, line.count)).collect(),
        }
    }

    /// Returns the increase since `before`. A CPU that was switched on in between began at 0.
    pub(super) fn since(self, before: &FlushCounts) -> FlushCounts {
        let then = before.shootdowns.as_deref().unwrap_or_default();
        let count = |cpu| then.iter().find(|(known, _)| *known == cpu).map_or(0, |(_, n)| *n);
        let shootdowns = self.shootdowns.map(|rows| {
            rows.into_iter().map(|(cpu, now)| (cpu, now.saturating_sub(count(cpu)))).collect()
        });
        let line = |name: &Name| before.vmstat.iter().find(|(known, _)| known == name);
        let vmstat = self.vmstat.into_iter().filter_map(|(name, now)| {
            let added = now.saturating_sub(line(&name)?.1);
            (added > 0).then_some((name, added))
        });
        FlushCounts { shootdowns, vmstat: vmstat.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_is_reported() {
        let counts = |tlb, numa| FlushCounts {
            shootdowns: Ok(vec![(0, tlb)]),
            vmstat: vec![("numa_hint_faults".into(), numa), ("pswpout".into(), 1)],
        };
        let added = counts(9, 7).since(&counts(4, 5));
        assert_eq!(added.shootdowns, Ok(vec![(0, 5)]));
        assert_eq!(added.vmstat, [("numa_hint_faults".into(), 2)]);
    }
}
