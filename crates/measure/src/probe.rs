//! Cost of a region of code for the thread that runs it: time, page faults, counters of the CPU and
//! of the kernel, memory.
//!
//! ```
//! use pagewise_measure::probe::{ProbeOptions, CodeProbe};
//!
//! let mut probe = CodeProbe::open(&ProbeOptions::default())?;
//! let (sum, cost) = probe.measure(|| (0..1_000_000_u64).sum::<u64>())?;
//! println!("{sum} in {:?}", cost.wall());
//! match cost.get("cycles") {
//!     Some(Ok(cycles)) => println!("{:?} cycles", cycles.estimate()),
//!     Some(Err(absent)) => println!("cycles: {absent}"),
//!     None => println!("nobody asked for cycles"),
//! }
//! # Ok::<(), pagewise_measure::MeasureError>(())
//! ```

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagewise_model::measured::{Count, MetricUnit};
use pagewise_model::report::Label;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Pid, Reading, SmapsCounter};
use pagewise_proc::{ProcRoot, smaps};
use pagewise_sys::launch::KernelUsage;

use crate::error::MeasureError;
use crate::events::{EventCatalogue, WantedEvent, choose};
use groups::Groups;

mod groups;

/// Quantities to measure, and their scope.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Events to count, as [`choose`] finds them by name.
    pub events: Vec<WantedEvent>,
    /// Scope of the measurement.
    pub whose: ProbeScope,
    /// True to count events of the CPU in the kernel too, if that is allowed. False counts user
    /// mode only, which excludes the probe's own system calls.
    pub in_kernel: bool,
    /// True to read `getrusage`.
    pub usage: bool,
    /// True to measure the change of the process's memory: two readings of `smaps_rollup`, which
    /// take milliseconds for a large process.
    pub memory: bool,
    /// True to subtract the cost of an empty region from every value; the result is at least 0.
    pub subtract: bool,
}

/// Time, faults, cycles and instructions of the calling thread. The overhead is reported and not
/// subtracted.
impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        let usual = "minor_faults,major_faults,context_switches,cycles,instructions";
        ProbeOptions {
            events: choose(usual).expect("rows of the table of events"),
            whose: ProbeScope::Thread,
            in_kernel: false,
            usage: true,
            memory: false,
            subtract: false,
        }
    }
}

/// Scope of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeScope {
    /// The thread that opened the probe, by `RUSAGE_THREAD`.
    Thread,
    /// The process. `getrusage` covers all its threads (`RUSAGE_SELF`); counters cover the thread
    /// that opened the probe, and the threads and processes that it started afterwards. Each
    /// counter is read by a system call.
    Process,
}

/// One quantity that a probe measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeQuantity {
    /// Name, such as `minflt`.
    pub name: Label,
    /// Unit of the quantity's values.
    pub unit: MetricUnit,
    /// True if the quantity is counted in user mode only.
    pub user_mode_only: bool,
}

/// A quantity of `getrusage`. CPU times may be sums of scheduler ticks, which are too coarse for
/// regions of less than some milliseconds.
struct UsageNumber {
    name: &'static str,
    unit: MetricUnit,
    of: fn(&KernelUsage) -> u64,
}

const RESOURCES: &[UsageNumber] = &[
    UsageNumber { name: "user", unit: MetricUnit::Nanos, of: |usage| nanoseconds(usage.user) },
    UsageNumber { name: "sys", unit: MetricUnit::Nanos, of: |usage| nanoseconds(usage.system) },
    UsageNumber { name: "minflt", unit: MetricUnit::Count, of: |usage| usage.minor_faults },
    UsageNumber { name: "majflt", unit: MetricUnit::Count, of: |usage| usage.major_faults },
    UsageNumber { name: "inblock", unit: MetricUnit::Count, of: |usage| usage.blocks_in },
    UsageNumber { name: "oublock", unit: MetricUnit::Count, of: |usage| usage.blocks_out },
    UsageNumber { name: "nvcsw", unit: MetricUnit::Count, of: |usage| usage.voluntary_switches },
    UsageNumber { name: "nivcsw", unit: MetricUnit::Count, of: |usage| usage.involuntary_switches },
];

/// The lines of `smaps_rollup` whose changes are reported, in this order.
pub const MEMORY: &[SmapsCounter] = &[
    SmapsCounter::Rss,
    SmapsCounter::Pss,
    SmapsCounter::PrivateDirty,
    SmapsCounter::Anonymous,
    SmapsCounter::AnonHugePages,
];

/// Number of measurements of an empty region, for its median.
const EMPTY_REGIONS: usize = 21;

/// Measures regions of code of the thread that opened it.
///
/// The counters run only between [`CodeProbe::start`] and [`CodeProbe::stop`]. Counters that are
/// read in user mode are an exception: they always run, and the probe subtracts their count at the
/// start. The clock is read last at the start and first at the stop, so that the wall time contains
/// no system call of the probe.
///
/// An event that cannot be counted is not an error: its value has the reason.
///
/// The probe stays in its thread:
///
/// ```compile_fail
/// fn in_another_thread(probe: pagewise_measure::probe::CodeProbe) {
///     std::thread::spawn(move || drop(probe));
/// }
/// ```
#[derive(Debug)]
pub struct CodeProbe {
    groups: Groups,
    quantities: Arc<[ProbeQuantity]>,
    whose: ProbeScope,
    usage: bool,
    memory: bool,
    begun: Option<Begun>,
    overhead: Cost,
    subtract: bool,
    /// Counters of the calling thread have no meaning in another thread.
    not_send: PhantomData<*const ()>,
}

/// State at the beginning of a region.
#[derive(Debug)]
struct Begun {
    memory: Reading<Vec<Reading<u64>>>,
    usage: Option<KernelUsage>,
    at: Instant,
}

impl CodeProbe {
    /// Opens the counters and measures some empty regions.
    ///
    /// # Errors
    /// [`MeasureError::Counter`] where an open counter cannot be enabled, disabled or read.
    pub fn open(options: &ProbeOptions) -> Result<CodeProbe, MeasureError> {
        let opened = Groups::open(options, &EventCatalogue::open());
        let (groups, mut counted) = opened.map_err(MeasureError::Counter)?;
        let mut quantities = vec![quantity("wall", MetricUnit::Nanos)];
        let resources = RESOURCES.iter().filter(|_| options.usage);
        quantities.extend(resources.map(|resource| quantity(resource.name, resource.unit)));
        quantities.append(&mut counted);
        let quantities: Arc<[ProbeQuantity]> = quantities.into();
        let mut probe = CodeProbe {
            groups,
            overhead: Cost {
                quantities: quantities.clone(),
                values: Vec::new(),
                memory: unasked(),
            },
            quantities,
            whose: options.whose,
            usage: options.usage,
            memory: false,
            begun: None,
            subtract: false,
            not_send: PhantomData,
        };
        probe.overhead = probe.cost_of_nothing()?;
        probe.memory = options.memory;
        probe.subtract = options.subtract;
        Ok(probe)
    }

    /// The median of each value over some empty regions. One earlier region warms up and is not
    /// counted.
    fn cost_of_nothing(&mut self) -> Result<Cost, MeasureError> {
        self.measure(|| ())?;
        let costs = (0..EMPTY_REGIONS).map(|_| self.measure(|| ()).map(|((), cost)| cost));
        let costs: Vec<Cost> = costs.collect::<Result<_, _>>()?;
        let values = (0..self.quantities.len()).map(|at| {
            let mut values: Vec<&Reading<Count>> =
                costs.iter().map(|cost| &cost.values[at]).collect();
            values.sort_by_key(|value| value.as_ref().ok().map(|count| count.value));
            values[EMPTY_REGIONS / 2].clone()
        });
        let values = values.collect();
        let memory = Err(Absent::NotCollected("an empty region is measured without it".into()));
        Ok(Cost { quantities: self.quantities.clone(), values, memory })
    }

    /// Measured quantities in the order of the values; changes of memory are separate.
    pub fn quantities(&self) -> &[ProbeQuantity] {
        &self.quantities
    }

    /// Cost of an empty region, measured when the probe was opened. It does not contain changes of
    /// memory.
    pub fn overhead(&self) -> &Cost {
        &self.overhead
    }

    /// Runs a region and returns its result and its cost.
    ///
    /// # Errors
    /// [`MeasureError::Counter`] where a counter cannot be enabled, disabled or read.
    pub fn measure<T>(&mut self, region: impl FnOnce() -> T) -> Result<(T, Cost), MeasureError> {
        self.start()?;
        let result = region();
        let cost = self.stop()?;
        Ok((result, cost))
    }

    /// Begins a region. Discards a region that was started and not stopped.
    ///
    /// # Errors
    /// [`MeasureError::Counter`] where a counter cannot be enabled, disabled or read.
    pub fn start(&mut self) -> Result<(), MeasureError> {
        if self.begun.take().is_some() {
            self.groups
                .freeze()
                .and_then(|()| self.groups.read_counts())
                .map_err(MeasureError::Counter)?;
        }
        let memory = self.memory_now();
        let usage = self.usage_now();
        self.groups.start().map_err(MeasureError::Counter)?;
        self.begun = Some(Begun { memory, usage, at: Instant::now() });
        Ok(())
    }

    /// Ends the region and returns its cost.
    ///
    /// # Errors
    /// [`MeasureError::NotStarted`]; [`MeasureError::Counter`] where a counter cannot be enabled,
    /// disabled or read.
    pub fn stop(&mut self) -> Result<Cost, MeasureError> {
        let end = Instant::now();
        let begun = self.begun.take().ok_or(MeasureError::NotStarted)?;
        self.groups.freeze().map_err(MeasureError::Counter)?;
        let usage = self.usage_now();
        self.groups.read_counts().map_err(MeasureError::Counter)?;
        let memory = self.memory_now();
        let mut values = Vec::with_capacity(self.quantities.len());
        values.push(Ok(Count::exact(nanoseconds(end.saturating_duration_since(begun.at)))));
        if let (Some(now), Some(before)) = (usage, begun.usage) {
            let used = now.since(before);
            values.extend(RESOURCES.iter().map(|resource| Ok(Count::exact((resource.of)(&used)))));
        }
        values.extend(self.groups.counts());
        if self.subtract {
            subtract(&mut values, &self.overhead.values);
        }
        let memory = changes(&begun.memory, &memory);
        Ok(Cost { quantities: self.quantities.clone(), values, memory })
    }

    fn usage_now(&self) -> Option<KernelUsage> {
        self.usage.then(|| match self.whose {
            ProbeScope::Thread => KernelUsage::of_this_thread(),
            ProbeScope::Process => KernelUsage::of_this_process(),
        })
    }

    fn memory_now(&self) -> Reading<Vec<Reading<u64>>> {
        if !self.memory {
            return unasked();
        }
        let text = ProcRoot::live().read(Pid(std::process::id()), "smaps_rollup");
        let rollup = text.ok().and_then(|text| smaps::parse_rollup(&text));
        let rollup = rollup.ok_or_else(|| Absent::NotInThisKernel("4.14".into()))?;
        Ok(MEMORY.iter().map(|counter| rollup.get(*counter)).collect())
    }
}

fn quantity(name: &'static str, unit: MetricUnit) -> ProbeQuantity {
    ProbeQuantity { name: name.into(), unit, user_mode_only: false }
}

fn unasked<T>() -> Reading<T> {
    Err(Absent::NotCollected("open the probe with `memory`".into()))
}

fn subtract(values: &mut [Reading<Count>], overhead: &[Reading<Count>]) {
    for (value, overhead) in values.iter_mut().zip(overhead) {
        if let (Ok(count), Ok(overhead)) = (value, overhead) {
            count.value = count.value.saturating_sub(overhead.value);
        }
    }
}

type Changes = Vec<(SmapsCounter, Reading<i64>)>;

fn changes(
    before: &Reading<Vec<Reading<u64>>>,
    after: &Reading<Vec<Reading<u64>>>,
) -> Reading<Changes> {
    let before = before.as_ref().map_err(Clone::clone)?;
    let after = after.as_ref().map_err(Clone::clone)?;
    let change = |before: &Reading<u64>, after: &Reading<u64>| {
        Ok(after.clone()?.wrapping_sub(before.clone()?).cast_signed())
    };
    let pairs = MEMORY.iter().zip(before.iter().zip(after));
    Ok(pairs.map(|(counter, (before, after))| (*counter, change(before, after))).collect())
}

/// Cost of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    quantities: Arc<[ProbeQuantity]>,
    values: Vec<Reading<Count>>,
    memory: Reading<Changes>,
}

impl Cost {
    /// Wall time, by the monotonic clock.
    pub fn wall(&self) -> Duration {
        let wall = self.values.first().and_then(|wall| wall.as_ref().ok());
        wall.map_or(Duration::ZERO, |wall| Duration::from_nanos(wall.value))
    }

    /// Returns a value by its name, `minflt` or `cycles`; `None` for a value that was not
    /// requested.
    pub fn get(&self, name: &str) -> Option<&Reading<Count>> {
        self.iter().find(|(quantity, _)| quantity.name == name).map(|(_, value)| value)
    }

    /// Every value except the changes of memory.
    pub fn iter(&self) -> impl Iterator<Item = (&ProbeQuantity, &Reading<Count>)> {
        self.quantities.iter().zip(&self.values)
    }

    /// Changes of the lines of `smaps_rollup` in bytes, for the whole process.
    pub fn memory(&self) -> &Reading<Vec<(SmapsCounter, Reading<i64>)>> {
        &self.memory
    }
}
