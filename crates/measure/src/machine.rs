//! Counters of the whole machine: `/proc/vmstat` and the TLB row of `/proc/interrupts`, before and
//! after a run.

use std::fs;

use pagewise_model::measured::{Count, MeasuredMetric, MetricOrigin, MetricScope, MetricUnit};
use pagewise_model::{Absent, Reading};
use pagewise_proc::{interrupts, vmstat};

/// Prefixes of the lines of `vmstat` that count actions of memory management. No count decreases.
const STARTS: &[&str] =
    &["thp_", "compact_", "numa_", "pgmajfault", "pswpin", "pswpout", "allocstall_", "oom_kill"];

/// Name of the TLB row of `/proc/interrupts`: interrupts that CPUs received to flush their TLBs.
const SHOOTDOWNS: &str = "tlb_shootdowns";

/// The machine's counts at one moment.
#[derive(Debug)]
pub(crate) struct MachineCounts {
    shootdowns: Option<u64>,
    vmstat: Vec<(String, u64)>,
}

impl MachineCounts {
    pub(crate) fn now() -> MachineCounts {
        let text = fs::read("/proc/vmstat").unwrap_or_default();
        let counted = vmstat::parse(&text).into_iter().filter_map(|line| {
            let name = line.name.escaped().into_owned();
            STARTS.iter().any(|start| name.starts_with(start)).then_some((name, line.count))
        });
        let vmstat = counted.collect();
        let interrupts = fs::read("/proc/interrupts").unwrap_or_default();
        MachineCounts { shootdowns: interrupts::parse(&interrupts, "TLB"), vmstat }
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = MeasuredMetric> {
        let names = self.vmstat.iter().map(|(name, _)| name.clone().into());
        std::iter::once(SHOOTDOWNS.into()).chain(names).map(|name| MeasuredMetric {
            name,
            unit: MetricUnit::Count,
            scope: MetricScope::Machine,
            origin: MetricOrigin::Machine,
        })
    }

    /// Increase since an earlier reading.
    pub(crate) fn since(&self, before: &MachineCounts) -> impl Iterator<Item = Reading<Count>> {
        let shootdowns = match (self.shootdowns, before.shootdowns) {
            (Some(now), Some(then)) => Ok(Count::exact(now.saturating_sub(then))),
            _ => Err(Absent::NotSupported("/proc/interrupts has no TLB row here".into())),
        };
        let added = self
            .vmstat
            .iter()
            .zip(&before.vmstat)
            .map(|((_, now), (_, then))| Ok(Count::exact(now.saturating_sub(*then))));
        std::iter::once(shootdowns).chain(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_counts_what_its_files_say() {
        let before = MachineCounts::now();
        let names: Vec<_> = before.metrics().map(|metric| metric.name).collect();
        assert_eq!(names[0], "tlb_shootdowns");
        for name in ["pgmajfault", "pswpin", "pswpout"] {
            assert!(names.iter().any(|have| have == name), "{name} of {names:?}");
        }
        assert_eq!(MachineCounts::now().since(&before).count(), names.len());
    }

    #[test]
    fn missing_values_are_absent_and_others_are_subtracted() {
        let moment = |shootdowns, pswpin| MachineCounts {
            shootdowns,
            vmstat: vec![("pswpin".to_owned(), pswpin)],
        };
        let added: Vec<_> = moment(Some(9), 5).since(&moment(Some(2), 5)).collect();
        assert_eq!(added, [Ok(Count::exact(7)), Ok(Count::exact(0))]);
        let added: Vec<_> = moment(None, 6).since(&moment(None, 5)).collect();
        assert!(added[0].is_err() && added[1] == Ok(Count::exact(1)), "{added:?}");
    }
}
