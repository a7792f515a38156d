//! Rates of change between two sweeps.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{PagesReading, ProcessKey, Sweep, SweepCgroup, SweepMachine, SweepProcess};
use crate::fragmentation::BootCounter;
use crate::reading::plain;
use crate::settings::PressureFigures;
use crate::{Absent, Bytes, Name, Reading};

/// The change from one sweep to a later one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepDelta {
    /// Time between the sweeps.
    pub elapsed_ns: u64,
    /// Processes of both sweeps, in order of PID.
    pub processes: Vec<ProcessDelta>,
    /// Processes of the later sweep only.
    pub started: Vec<ProcessKey>,
    /// Processes of the earlier sweep only.
    pub ended: Vec<ProcessKey>,
    /// Cgroups of both sweeps, in order of path; empty if a sweep has none.
    pub cgroups: Vec<CgroupDelta>,
    /// The machine.
    pub machine: MachineDelta,
}

/// The change of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessDelta {
    /// The process.
    pub key: ProcessKey,
    /// Growth of RSS, in bytes per minute.
    pub rss_per_minute: f64,
    /// Growth of PSS, in bytes per minute; absent if the pages were not read again.
    #[serde(with = "plain")]
    pub pss_per_minute: Reading<f64>,
    /// Growth of swap, in bytes per minute.
    #[serde(with = "plain")]
    pub swap_per_minute: Reading<f64>,
    /// Minor page faults per second.
    pub minor_faults_per_second: f64,
    /// Major page faults per second.
    pub major_faults_per_second: f64,
    /// CPU time per time: 1 is one core.
    pub cpu: f64,
}

/// The change of a cgroup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupDelta {
    /// The cgroup.
    pub path: Name,
    /// Growth of the charged memory, in bytes per minute.
    #[serde(with = "plain")]
    pub current_per_minute: Reading<f64>,
    /// Number of times that the limit was reached.
    #[serde(with = "plain")]
    pub limit_hits: Reading<u64>,
    /// Number of OOM kills.
    #[serde(with = "plain")]
    pub oom_kills: Reading<u64>,
    /// Share of the time in which at least one task waited for memory, from 0 to 1.
    #[serde(with = "plain")]
    pub stalled: Reading<f64>,
}

/// The change of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineDelta {
    /// Growth of `MemAvailable`, in bytes per minute.
    #[serde(with = "plain")]
    pub available_per_minute: Reading<f64>,
    /// Counters of `vmstat`.
    pub vmstat: Vec<CounterRate>,
    /// Share of the time in which at least one task waited for memory, from 0 to 1.
    #[serde(with = "plain")]
    pub memory_stalled: Reading<f64>,
    /// Share of the time in which at least one task waited for I/O, from 0 to 1.
    #[serde(with = "plain")]
    pub io_stalled: Reading<f64>,
    /// Processes and threads created per second.
    #[serde(with = "plain")]
    pub forks_per_second: Reading<f64>,
}

/// Rate of a counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterRate {
    /// The kernel's name of the counter.
    pub name: Name,
    /// Events per second.
    pub per_second: f64,
}

impl SweepDelta {
    /// The change from `before` to `after`.
    pub fn between(before: &Sweep, after: &Sweep) -> SweepDelta {
        let elapsed_ns = after.time.boot_ns.saturating_sub(before.time.boot_ns);
        let elapsed = Elapsed(elapsed_ns);
        let mut delta = SweepDelta {
            elapsed_ns,
            processes: Vec::with_capacity(after.processes.len()),
            started: Vec::new(),
            ended: Vec::new(),
            cgroups: cgroups(before, after, elapsed),
            machine: machine(&before.machine, &after.machine, elapsed),
        };
        let mut old = before.processes.iter().peekable();
        for new in &after.processes {
            while let Some(gone) = old.next_if(|it| it.key < new.key) {
                delta.ended.push(gone.key);
            }
            match old.next_if(|it| it.key == new.key) {
                Some(old) => delta.processes.push(process(old, new, elapsed)),
                None => delta.started.push(new.key),
            }
        }
        delta.ended.extend(old.map(|it| it.key));
        delta
    }

    /// The change of a process that is in both sweeps.
    pub fn process(&self, key: ProcessKey) -> Option<&ProcessDelta> {
        let at = self.processes.binary_search_by_key(&key, |it| it.key).ok()?;
        self.processes.get(at)
    }
}

/// Time between two sweeps in nanoseconds. A rate over no time is 0.
#[derive(Clone, Copy)]
struct Elapsed(u64);

#[expect(clippy::cast_precision_loss, reason = "rates are shown with three digits")]
impl Elapsed {
    fn per_second(self, count: f64) -> f64 {
        if self.0 == 0 { 0.0 } else { count * 1e9 / self.0 as f64 }
    }

    /// Rate of a counter that only grows.
    fn rate(self, before: u64, after: u64) -> f64 {
        self.per_second(after.saturating_sub(before) as f64)
    }

    /// Growth of a size per minute.
    fn growth(self, before: Bytes, after: Bytes) -> f64 {
        self.per_second((after.0 as f64 - before.0 as f64) * 60.0)
    }

    fn growth_of(self, before: &Reading<Bytes>, after: &Reading<Bytes>) -> Reading<f64> {
        both(before, after, |before, after| self.growth(*before, *after))
    }

    /// Growth of a counter of microseconds as a share of the elapsed time.
    fn stalled(
        self,
        before: &Reading<PressureFigures>,
        after: &Reading<PressureFigures>,
    ) -> Reading<f64> {
        both(before, after, |before, after| {
            (self.rate(before.some_us, after.some_us) / 1e6).min(1.0)
        })
    }
}

fn both<T, R>(before: &Reading<T>, after: &Reading<T>, f: impl Fn(&T, &T) -> R) -> Reading<R> {
    match (before, after) {
        (Ok(before), Ok(after)) => Ok(f(before, after)),
        (_, Err(why)) | (Err(why), _) => Err(why.clone()),
    }
}

fn process(before: &SweepProcess, after: &SweepProcess, elapsed: Elapsed) -> ProcessDelta {
    let pss_per_minute = match after.pages {
        PagesReading::Postponed(_) => {
            Err(Absent::NotCollected("the pages were not read again, to keep to the budget".into()))
        }
        _ => elapsed.growth_of(&before.pss_total(), &after.pss_total()),
    };
    ProcessDelta {
        key: after.key,
        rss_per_minute: elapsed.growth(before.rss, after.rss),
        pss_per_minute,
        swap_per_minute: elapsed.growth_of(&before.swap, &after.swap),
        minor_faults_per_second: elapsed.rate(before.minor_faults, after.minor_faults),
        major_faults_per_second: elapsed.rate(before.major_faults, after.major_faults),
        cpu: elapsed.rate(before.cpu_ns, after.cpu_ns) / 1e9,
    }
}

fn cgroups(before: &Sweep, after: &Sweep, elapsed: Elapsed) -> Vec<CgroupDelta> {
    let both = after.cgroups.iter().flatten();
    both.filter_map(|new| Some(cgroup(before.cgroup(&new.path)?, new, elapsed))).collect()
}

fn cgroup(before: &SweepCgroup, after: &SweepCgroup, elapsed: Elapsed) -> CgroupDelta {
    let count = |before, after| both(before, after, |a: &u64, b: &u64| b.saturating_sub(*a));
    CgroupDelta {
        path: after.path.clone(),
        current_per_minute: elapsed.growth_of(&before.current, &after.current),
        limit_hits: count(&before.limit_hits, &after.limit_hits),
        oom_kills: count(&before.oom_kills, &after.oom_kills),
        stalled: elapsed.stalled(&before.pressure, &after.pressure),
    }
}

fn machine(before: &SweepMachine, after: &SweepMachine, elapsed: Elapsed) -> MachineDelta {
    let available = |machine: &SweepMachine| machine.memory("MemAvailable");
    MachineDelta {
        available_per_minute: elapsed.growth_of(&available(before), &available(after)),
        vmstat: rates(&before.vmstat, &after.vmstat, elapsed),
        memory_stalled: elapsed.stalled(&before.memory_pressure, &after.memory_pressure),
        io_stalled: elapsed.stalled(&before.io_pressure, &after.io_pressure),
        forks_per_second: both(&before.forks, &after.forks, |a, b| elapsed.rate(*a, *b)),
    }
}

fn rates(
    before: &Reading<Vec<BootCounter>>,
    after: &Reading<Vec<BootCounter>>,
    elapsed: Elapsed,
) -> Vec<CounterRate> {
    let (Ok(before), Ok(after)) = (before, after) else { return Vec::new() };
    let before: HashMap<&Name, u64> = before.iter().map(|it| (&it.name, it.count)).collect();
    let rate = |it: &BootCounter| {
        let per_second = elapsed.rate(*before.get(&it.name)?, it.count);
        Some(CounterRate { name: it.name.clone(), per_second })
    };
    after.iter().filter_map(rate).collect()
}
