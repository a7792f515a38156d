//! Runs one command, or two interleaved commands, and records the cost of each run.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::measured::{
    Count, MeasuredArm, MeasuredMetric, MeasuredRun, Measurement, MetricOrigin, MetricScope,
    MetricUnit, RunConditions,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, Name, PageSize, Reading};
use pagewise_proc::program_ending;
use pagewise_stats::{Interval, median_interval, ratio_of_medians};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::launch::{Launcher, RunOutcome, RunningCommand};
use pagewise_sys::system;

use crate::counters::Counters;
use crate::error::MeasureError;
use crate::events::{EventCatalogue, WantedEvent};
use crate::machine::MachineCounts;
use crate::sampled::{self, Sampler};

/// A program and its arguments.
#[derive(Clone, Debug)]
pub struct MeasuredCommand {
    /// A path, or a name to look for in `PATH`.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
}

/// Number of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunCount {
    /// A fixed number.
    Exactly(u32),
    /// Until the 95 % interval of the median wall time, or of the ratio of two commands' medians,
    /// is narrow enough, or time is up.
    Until {
        /// Goal: half-width of the interval, as a share of the median.
        precision: f64,
        /// Time since the start of the first run after which no further run begins.
        time: Duration,
    },
}

/// Minimum number of runs before the precision is computed.
const FEWEST: usize = 10;
/// Maximum number of runs of [`RunCount::Until`].
const MAX_RUNS: usize = 10_000;

/// Commands to run, and quantities to measure.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// The command, and a second command to compare it with, if any.
    pub commands: Vec<MeasuredCommand>,
    /// Number of measured runs of each command.
    pub runs: RunCount,
    /// Number of runs of each command before the measured ones.
    pub warmups: u32,
    /// CPU on which the commands run; `None` for any CPU.
    pub cpu: Option<u32>,
    /// Events to count.
    pub events: Vec<WantedEvent>,
    /// Interval between samples of the command's memory; `None` for no samples.
    pub sample: Option<Duration>,
}

/// Progress of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasureProgress {
    /// Number of completed runs of all commands, including warm-up runs.
    pub done: u64,
    /// Planned number of runs; `None` if it depends on the results.
    pub of: Option<u64>,
    /// Time since the first run began.
    pub elapsed: Duration,
    /// Time limit, if there is one.
    pub time: Option<Duration>,
    /// Present half-width of the interval, as a share of the median.
    pub precision: Option<f64>,
}

/// Runs the commands and measures each run. Call it early, while this process is small: the
/// processes that start the commands are forked first. After a Ctrl-C, the interrupted run is
/// discarded and no further run begins.
///
/// # Errors
/// [`MeasureError::NotRun`], [`MeasureError::NotPinned`], [`MeasureError::LauncherGone`].
pub fn measure(
    plan: &MeasurePlan,
    progress: &mut dyn FnMut(MeasureProgress),
) -> Result<Measurement, MeasureError> {
    let interrupts = NotedInterrupts::note();
    let launchers = plan.commands.iter().map(|command| start(command, plan.cpu));
    let mut launchers = launchers.collect::<Result<Vec<_>, _>>()?;
    let counters = Counters::from_wanted(plan.events.clone(), &EventCatalogue::open());
    let mut session = MeasureSession {
        plan,
        counters,
        begin: Instant::now(),
        arms: plan
            .commands
            .iter()
            .map(|c| MeasuredArm { command: command_names(c), runs: Vec::new() })
            .collect(),
        precision: None,
    };
    let conditions = conditions(plan);
    let total = session.total();
    let mut done = 0;
    let mut first_that_counts = None;
    for round in 0_u64.. {
        let counts = round >= u64::from(plan.warmups);
        if counts && session.is_over(*first_that_counts.get_or_insert_with(Instant::now)) {
            break;
        }
        for (at, launcher) in launchers.iter_mut().enumerate() {
            let run = session.run(launcher, &plan.commands[at])?;
            if interrupts.came() {
                // The SIGINT of the terminal reached the command too, so its run is incomplete.
                return Ok(session.finish(RunConditions { interrupted: true, ..conditions }));
            }
            if counts {
                session.arms[at].runs.push(run);
            }
            done += 1;
            progress(session.progress(done, total));
        }
        session.judge();
    }
    Ok(session.finish(conditions))
}

fn start(command: &MeasuredCommand, cpu: Option<u32>) -> Result<Launcher, MeasureError> {
    let MeasuredCommand { program, arguments } = command;
    Launcher::start(program, arguments, cpu).map_err(|error| match (error.raw_os_error(), cpu) {
        (Some(libc::EINVAL), Some(cpu)) => MeasureError::NotPinned { cpu, error },
        _ => MeasureError::NotRun { program: program.clone(), error },
    })
}

fn command_names(command: &MeasuredCommand) -> Vec<Name> {
    let all = std::iter::once(&command.program).chain(&command.arguments);
    all.map(|word| Name::new(word.as_bytes())).collect()
}

fn conditions(plan: &MeasurePlan) -> RunConditions {
    let sampled_every = plan.sample.map(nanoseconds);
    RunConditions {
        kernel: Name::new(&system::kernel_release()),
        page_size: PageSize::new(system::page_size()).expect("the kernel's page size is one"),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        pinned: plan.cpu,
        warmups: plan.warmups,
        sampled_every,
        governor: governor(plan.cpu.unwrap_or(0)),
        unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        interrupted: false,
    }
}

fn governor(cpu: u32) -> Reading<Name> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
    let text = std::fs::read(path);
    let text =
        text.map_err(|_| Absent::NotSupported("this CPU's frequency is not chosen here".into()))?;
    Ok(Name::new(text.trim_ascii_end()))
}

/// Runs so far.
struct MeasureSession<'a> {
    plan: &'a MeasurePlan,
    counters: Counters,
    begin: Instant,
    arms: Vec<MeasuredArm>,
    precision: Option<f64>,
}

impl MeasureSession<'_> {
    fn total(&self) -> Option<u64> {
        let rounds = match self.plan.runs {
            RunCount::Exactly(n) => u64::from(n) + u64::from(self.plan.warmups),
            RunCount::Until { .. } => return None,
        };
        Some(rounds * self.arms.len() as u64)
    }

    /// True if enough runs were made.
    fn is_over(&self, since: Instant) -> bool {
        let made = self.arms[0].runs.len();
        match self.plan.runs {
            RunCount::Exactly(n) => made as u64 >= u64::from(n),
            RunCount::Until { precision, time } => {
                let is_narrow = self.precision.is_some_and(|now| now <= precision);
                made >= MAX_RUNS || made > 0 && (is_narrow || since.elapsed() >= time)
            }
        }
    }

    /// Computes the precision after a round (one run of each command), if the plan has a goal. With
    /// more runs the computation takes longer and the result changes less, so the precision is
    /// computed less often.
    fn judge(&mut self) {
        let made = self.arms[0].runs.len();
        let is_wanted = matches!(self.plan.runs, RunCount::Until { .. });
        if is_wanted && made >= FEWEST && made.is_multiple_of((made / 10).max(1)) {
            self.precision = self.precision_now();
        }
    }

    /// Present half-width of the 95 % interval of the quantity in [`RunCount::Until`], as a share
    /// of the median.
    fn precision_now(&self) -> Option<f64> {
        let (median, Interval { low, high }) = match &self.arms[..] {
            [arm] => {
                let walls = walls(arm);
                (pagewise_stats::Summary::from_values(&walls)?.median, median_interval(&walls)?)
            }
            [one, other] => {
                let ratio = ratio_of_medians(&walls(one), &walls(other))?;
                (ratio.median, ratio.interval?)
            }
            _ => return None,
        };
        (median > 0.0).then(|| (high - low) / 2.0 / median)
    }

    fn progress(&self, done: u64, of: Option<u64>) -> MeasureProgress {
        let time = match self.plan.runs {
            RunCount::Exactly(_) => None,
            RunCount::Until { time, .. } => Some(time),
        };
        MeasureProgress { done, of, elapsed: self.begin.elapsed(), time, precision: self.precision }
    }

    fn run(
        &self,
        launcher: &mut Launcher,
        command: &MeasuredCommand,
    ) -> Result<MeasuredRun, MeasureError> {
        let at = nanoseconds(self.begin.elapsed());
        let before = MachineCounts::now();
        let mut opened = None;
        let prepare = |pid| {
            opened = Some(self.counters.open(pid));
            Ok::<_, io::Error>(())
        };
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => MeasureError::LauncherGone,
            _ => MeasureError::NotRun { program: command.program.clone(), error },
        };
        let running = launcher.launch(prepare).map_err(explain)?;
        let (outcome, sampler) = self.wait(running).map_err(explain)?;
        let now = MachineCounts::now();
        let (sampled, at_peak) = sampler.map_or_else(Default::default, Sampler::finish);
        let mut values = resources(&outcome);
        values.extend(sampled);
        values.extend(opened.into_iter().flat_map(|opened| opened.read()));
        values.extend(now.since(&before));
        let floor = Bytes(outcome.floor);
        Ok(MeasuredRun { at, ending: program_ending(outcome.ending), floor, values, at_peak })
    }

    fn wait(&self, mut running: RunningCommand<'_>) -> io::Result<(RunOutcome, Option<Sampler>)> {
        let mut sampler = self.plan.sample.map(Sampler::new);
        loop {
            let deadline = sampler.as_ref().map(Sampler::next);
            match (running.wait(deadline)?, &mut sampler) {
                (Some(outcome), _) => return Ok((outcome, sampler)),
                (None, Some(sampler)) => sampler.look(running.pid()),
                // A signal ended the wait.
                (None, None) => {}
            }
        }
    }

    fn finish(self, conditions: RunConditions) -> Measurement {
        let sampled = self.plan.sample.map(|_| sampled::metrics());
        let mut metrics: Vec<MeasuredMetric> = RESOURCES.iter().map(RunResource::metric).collect();
        metrics.extend(sampled.into_iter().flatten());
        metrics.extend(self.counters.metrics());
        metrics.extend(MachineCounts::now().metrics());
        Measurement { conditions, metrics, arms: self.arms }
    }
}

fn walls(arm: &MeasuredArm) -> Vec<f64> {
    let estimate = |run: &MeasuredRun| run.values.first()?.clone().ok()?.estimate().ok();
    arm.runs.iter().filter_map(estimate).collect()
}

/// A quantity that the clock or `wait4` provides.
struct RunResource {
    name: &'static str,
    unit: MetricUnit,
    of: fn(&RunOutcome) -> Reading<u64>,
}

impl RunResource {
    fn metric(&self) -> MeasuredMetric {
        let origin = MetricOrigin::Rusage;
        MeasuredMetric {
            name: self.name.into(),
            unit: self.unit,
            scope: MetricScope::Process,
            origin,
        }
    }
}

/// The first row is the quantity by which runs are compared.
const RESOURCES: &[RunResource] = &[
    RunResource { name: "wall", unit: MetricUnit::Nanos, of: |o| Ok(nanoseconds(o.wall)) },
    RunResource { name: "user", unit: MetricUnit::Nanos, of: |o| Ok(nanoseconds(o.usage.user)) },
    RunResource { name: "sys", unit: MetricUnit::Nanos, of: |o| Ok(nanoseconds(o.usage.system)) },
    RunResource { name: "peak_res", unit: MetricUnit::Bytes, of: peak_res },
    RunResource { name: "minflt", unit: MetricUnit::Count, of: |o| Ok(o.usage.minor_faults) },
    RunResource { name: "majflt", unit: MetricUnit::Count, of: |o| Ok(o.usage.major_faults) },
    RunResource { name: "inblock", unit: MetricUnit::Count, of: |o| Ok(o.usage.blocks_in) },
    RunResource { name: "oublock", unit: MetricUnit::Count, of: |o| Ok(o.usage.blocks_out) },
    RunResource { name: "nvcsw", unit: MetricUnit::Count, of: |o| Ok(o.usage.voluntary_switches) },
    RunResource {
        name: "nivcsw",
        unit: MetricUnit::Count,
        of: |o| Ok(o.usage.involuntary_switches),
    },
];

/// `execve` keeps the peak resident memory of the launcher as the minimum of the command's own
/// peak. The peak of a command that does not exceed this minimum is unknown.
fn peak_res(outcome: &RunOutcome) -> Reading<u64> {
    if outcome.usage.max_rss > outcome.floor {
        return Ok(outcome.usage.max_rss);
    }
    let why = "the process that started it was larger, so its own peak is unknown";
    Err(Absent::Ambiguous(why.into()))
}

fn resources(outcome: &RunOutcome) -> Vec<Reading<Count>> {
    RESOURCES.iter().map(|resource| (resource.of)(outcome).map(Count::exact)).collect()
}
