//! What the whole machine counts: `/proc/vmstat` and the TLB row of `/proc/interrupts`, before and after a run.

use std::fs;

use pagewise_model::measured::{Count, Metric, Origin, Scope, Unit};
use pagewise_model::{Absent, Reading};
use pagewise_proc::{interrupts, vmstat};

/// Lines of `vmstat` that say what memory management did, by how they start. All only grow.
const STARTS: &[&str] =
    &["thp_", "compact_", "numa_", "pgmajfault", "pswpin", "pswpout", "allocstall_", "oom_kill"];

/// What the TLB row of `/proc/interrupts` counts: interrupts that CPUs got to flush their TLBs.
const SHOOTDOWNS: &str = "tlb_shootdowns";

/// The machine's counts at one moment.
#[derive(Debug)]
pub(crate) struct Moment {
    shootdowns: Option<u64>,
    vmstat: Vec<(String, u64)>,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        let text = fs::read("/proc/vmstat").unwrap_or_default();
        let counted = vmstat::parse(&text).into_iter().filter_map(|line| {
            let name = line.name.escaped().into_owned();
            STARTS.iter().any(|start| name.starts_with(start)).then_some((name, line.count))
        });
        let vmstat = counted.collect();
        let interrupts = fs::read("/proc/interrupts").unwrap_or_default();
        Moment { shootdowns: interrupts::parse(&interrupts, "TLB"), vmstat }
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> {
        let names = self.vmstat.iter().map(|(name, _)| name.clone().into());
        std::iter::once(SHOOTDOWNS.into()).chain(names).map(|name| Metric {
            name,
            unit: Unit::Count,
            scope: Scope::Machine,
            origin: Origin::Machine,
        })
    }

    /// What was added since an earlier moment.
    pub(crate) fn since(&self, before: &Moment) -> impl Iterator<Item = Reading<Count>> {
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
        let before = Moment::now();
        let names: Vec<_> = before.metrics().map(|metric| metric.name).collect();
        assert_eq!(names[0], "tlb_shootdowns");
        for name in ["pgmajfault", "pswpin", "pswpout"] {
            assert!(names.iter().any(|have| have == name), "{name} of {names:?}");
        }
        assert_eq!(Moment::now().since(&before).count(), names.len());
    }

    #[test]
    fn what_is_not_there_is_absent_and_what_is_gets_subtracted() {
        let moment =
            |shootdowns, pswpin| Moment { shootdowns, vmstat: vec![("pswpin".to_owned(), pswpin)] };
        let added: Vec<_> = moment(Some(9), 5).since(&moment(Some(2), 5)).collect();
        assert_eq!(added, [Ok(Count::exact(7)), Ok(Count::exact(0))]);
        let added: Vec<_> = moment(None, 6).since(&moment(None, 5)).collect();
        assert!(added[0].is_err() && added[1] == Ok(Count::exact(1)), "{added:?}");
    }
}
