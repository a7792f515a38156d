//! Triggers for which a recorder saves a snapshot: growth of a process, memory pressure, and a
//! cgroup near its limit.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use pagewise_model::sweep::{
    ProcessKey, Sweep, SweepCgroup, SweepProcess, SweepTrigger, TriggerTarget,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Bytes, Name};

/// Time in nanoseconds between two samples of the sizes of all processes.
const SAMPLE_NS: u64 = 60_000_000_000;
/// Minimum growth of a process as a fraction of its size; smaller growth fires no trigger.
const MIN_GROWTH: f64 = 0.2;

/// Thresholds of the triggers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TriggerLimits {
    /// Minimum growth of a process's RSS and swap within `window`. The growth must also be at least
    /// a fifth of the size.
    pub growth: Bytes,
    /// Time within which the growth must happen.
    pub window: Duration,
    /// Minimum fraction of time, from 0 to 1, in which at least one task waited for memory.
    pub pressure: f64,
    /// Minimum memory of a cgroup as a fraction of its limit, from 0 to 1; inactive page cache is
    /// not counted.
    pub near_limit: f64,
    /// Minimum time between two triggers of the same kind for the same target.
    pub pause: Duration,
}

impl Default for TriggerLimits {
    fn default() -> TriggerLimits {
        TriggerLimits {
            growth: Bytes::mib(512),
            window: Duration::from_secs(600),
            pressure: 0.1,
            near_limit: 0.95,
            pause: Duration::from_secs(3600),
        }
    }
}

/// A trigger that fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FiredTrigger {
    /// Kind of the trigger.
    pub trigger: SweepTrigger,
    /// Target of the trigger.
    pub target: TriggerTarget,
    /// Process to diagnose: the target itself, or the process of the target with the largest
    /// growth; among equal growths, the largest process.
    pub process: Option<ProcessKey>,
}

/// Checks sweeps for triggers.
#[derive(Debug)]
pub struct TriggerWatch {
    limits: TriggerLimits,
    /// Samples of the sizes of all processes, oldest first: `boot_ns`, and the size by process.
    samples: VecDeque<(u64, HashMap<ProcessKey, Bytes>)>,
    fired: HashMap<(SweepTrigger, TriggerTarget), u64>,
}

impl TriggerWatch {
    /// Creates a watch without samples.
    pub fn new(limits: TriggerLimits) -> TriggerWatch {
        TriggerWatch { limits, samples: VecDeque::new(), fired: HashMap::new() }
    }

    /// Returns the triggers that fire at a sweep.
    pub fn check(&mut self, sweep: &Sweep) -> Vec<FiredTrigger> {
        let now = sweep.time.boot_ns;
        let mut found = self.growing(sweep);
        if is_pressed(sweep, self.limits.pressure) {
            let process = self.suspect(sweep, |_| true);
            let trigger = SweepTrigger::Pressure;
            found.push(FiredTrigger { trigger, target: TriggerTarget::Machine, process });
        }
        for cgroup in sweep.cgroups.iter().flatten() {
            if is_near_limit(cgroup, self.limits.near_limit) {
                let process = self.suspect(sweep, |it| is_below(it, &cgroup.path));
                let target = TriggerTarget::Cgroup(cgroup.path.clone());
                found.push(FiredTrigger { trigger: SweepTrigger::NearLimit, target, process });
            }
        }
        self.sample(sweep);
        let pause = nanoseconds(self.limits.pause);
        self.fired.retain(|_, at| now.saturating_sub(*at) < pause);
        found.retain(|it| {
            let key = (it.trigger, it.target.clone());
            let is_new = !self.fired.contains_key(&key);
            self.fired.entry(key).or_insert(now);
            is_new
        });
        found
    }

    fn sample(&mut self, sweep: &Sweep) {
        let now = sweep.time.boot_ns;
        let is_due = self.samples.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= SAMPLE_NS);
        if is_due {
            let sizes = sweep.processes.iter().map(|it| (it.key, size(it))).collect();
            self.samples.push_back((now, sizes));
        }
        let window = nanoseconds(self.limits.window);
        while self.samples.front().is_some_and(|(at, _)| now.saturating_sub(*at) > window) {
            self.samples.pop_front();
        }
    }

    /// Growth of a process since its smallest size within the window.
    fn growth(&self, process: &SweepProcess) -> Bytes {
        let sizes = self.samples.iter().filter_map(|(_, sizes)| sizes.get(&process.key));
        sizes.min().map_or(Bytes::ZERO, |least| size(process) - *least)
    }

    fn growing(&self, sweep: &Sweep) -> Vec<FiredTrigger> {
        let grows = |it: &&SweepProcess| {
            let growth = self.growth(it);
            growth >= self.limits.growth
                && growth.fraction_of(size(it)).is_some_and(|share| share >= MIN_GROWTH)
        };
        let fired = |it: &SweepProcess| FiredTrigger {
            trigger: SweepTrigger::Growth,
            target: TriggerTarget::Process(it.key),
            process: Some(it.key),
        };
        sweep.processes.iter().filter(grows).map(fired).collect()
    }

    fn suspect(
        &self,
        sweep: &Sweep,
        is_member: impl Fn(&SweepProcess) -> bool,
    ) -> Option<ProcessKey> {
        let members = sweep.processes.iter().filter(|it| is_member(it) && !it.is_zombie());
        let worst = members.max_by_key(|it| (self.growth(it), size(it)));
        worst.map(|it| it.key)
    }
}

fn size(process: &SweepProcess) -> Bytes {
    process.rss + process.swap.clone().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "hundredths of a percent")]
fn is_pressed(sweep: &Sweep, limit: f64) -> bool {
    let pressure = &sweep.machine.memory_pressure;
    pressure.as_ref().is_ok_and(|it| it.avg10.some as f64 / 10_000.0 >= limit)
}

fn is_near_limit(cgroup: &SweepCgroup, share: f64) -> bool {
    let (Ok(current), Ok(Some(limit))) = (&cgroup.current, &cgroup.limit) else { return false };
    let reclaimable = cgroup.usage.as_ref().map_or(Bytes::ZERO, |it| it.inactive_file);
    let held = *current - reclaimable;
    held.fraction_of(*limit).is_some_and(|used| used >= share)
}

/// True if the process is in the cgroup or in one of its descendants.
fn is_below(process: &SweepProcess, path: &Name) -> bool {
    let Ok(own) = &process.identity.cgroup else { return false };
    match own.as_bytes().strip_prefix(path.as_bytes()) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/") || path.as_bytes() == b"/",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pagewise_model::settings::PressureFigures;
    use pagewise_model::sweep::{
        BytesByPageKind, CgroupUsage, PagesReading, ProcessIdentity, SweepCost, SweepMachine,
        SweepTime,
    };
    use pagewise_model::{Absent, Pid};

    use super::*;

    fn process(pid: u32, rss: Bytes) -> SweepProcess {
        SweepProcess {
            key: ProcessKey { pid: Pid(pid), start_ticks: 1 },
            identity: Arc::new(ProcessIdentity {
                name: "a".into(),
                parent: Pid(1),
                command: Ok(Vec::new()),
                exe: Err(Absent::Vanished),
                uid: Ok(0),
                user: None,
                cgroup: Ok("/a/b".into()),
                started_unix_ns: 0,
            }),
            state: 'S',
            threads: 1,
            virt: rss,
            rss,
            rss_by_kind: Ok(BytesByPageKind::default()),
            peak_rss: Ok(rss),
            pss: Ok(BytesByPageKind::default()),
            uss: Ok(rss),
            uss_anonymous: Ok(rss),
            pages: PagesReading::Now,
            swap: Ok(Bytes::ZERO),
            swap_shmem: Ok(Bytes::ZERO),
            minor_faults: 0,
            major_faults: 0,
            cpu_ns: 0,
            oom_score: Ok(0),
            oom_score_adj: Ok(0),
        }
    }

    fn sweep(minute: u64, processes: Vec<SweepProcess>) -> Sweep {
        let none = || Absent::NotRecorded("the test".into());
        Sweep {
            time: SweepTime { unix_ns: 0, boot_ns: minute * SAMPLE_NS },
            cost: SweepCost::default(),
            processes,
            kernel_threads: 0,
            vanished: 0,
            hidden: 0,
            cgroups: Ok(Vec::new()),
            machine: SweepMachine {
                meminfo: Err(none()),
                vmstat: Err(none()),
                memory_pressure: Ok(PressureFigures::default()),
                io_pressure: Err(none()),
                forks: Err(none()),
            },
        }
    }

    #[test]
    fn growth_fires_once_and_never_if_it_is_a_small_share_of_the_size() {
        let mut watch = TriggerWatch::new(TriggerLimits::default());
        let mut fired = Vec::new();
        for minute in 0..20 {
            let growing = process(1, Bytes::mib(100 + minute * 100));
            let large = process(2, Bytes::gib(40) + Bytes::mib(minute * 100));
            fired.extend(watch.check(&sweep(minute, vec![growing, large])));
        }
        assert_eq!(fired.len(), 1, "{fired:?}");
        assert_eq!(fired[0].trigger, SweepTrigger::Growth);
        assert_eq!(fired[0].process.unwrap().pid, Pid(1));
    }

    #[test]
    fn slow_growth_below_the_limit_of_the_window_does_not_fire() {
        let mut watch = TriggerWatch::new(TriggerLimits::default());
        for minute in 0..60 {
            let growing = process(1, Bytes::mib(100 + minute * 40));
            assert!(watch.check(&sweep(minute, vec![growing])).is_empty(), "{minute}");
        }
    }

    #[test]
    fn page_cache_that_can_be_reclaimed_does_not_make_a_cgroup_full() {
        let mut watch = TriggerWatch::new(TriggerLimits::default());
        let group = |inactive_file| SweepCgroup {
            path: "/a".into(),
            current: Ok(Bytes::mib(99)),
            peak: Err(Absent::Vanished),
            limit: Ok(Some(Bytes::mib(100))),
            swap: Err(Absent::Vanished),
            usage: Ok(CgroupUsage { inactive_file, ..CgroupUsage::default() }),
            limit_hits: Ok(0),
            oom_kills: Ok(0),
            pressure: Err(Absent::Vanished),
        };
        let with = |inactive_file| Sweep {
            cgroups: Ok(vec![group(inactive_file)]),
            ..sweep(1, vec![process(1, Bytes::mib(5)), process(2, Bytes::mib(9))])
        };
        assert!(watch.check(&with(Bytes::mib(50))).is_empty());
        let fired = watch.check(&with(Bytes::ZERO));
        assert_eq!(fired[0].target, TriggerTarget::Cgroup("/a".into()));
        assert_eq!(fired[0].process.unwrap().pid, Pid(2));
        assert!(watch.check(&with(Bytes::ZERO)).is_empty(), "it pauses");
    }
}
