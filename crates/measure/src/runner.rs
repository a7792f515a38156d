//! Runs commands, in turns where there are two, and notes what each run cost.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewise_model::measured::{
    Arm, Conditions, Count, Ending, Measurement, Metric, Origin, Run, Scope, Unit,
};
use pagewise_model::{Absent, Bytes, Name, PageSize, Reading};
use pagewise_stats::{Interval, median_interval, ratio_of_medians};
use pagewise_sys::interrupt::Interrupts;
use pagewise_sys::launch::{Launcher, Outcome, Running};
use pagewise_sys::{system, trace};

use crate::counters::Counters;
use crate::error::Error;
use crate::events::{Catalogue, Wanted};
use crate::machine::Moment;
use crate::sampled::{self, Sampler};

/// A program and its arguments.
#[derive(Clone, Debug)]
pub struct Command {
    /// A path, or a name to look for in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How often to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Runs {
    /// So many times.
    Exactly(u32),
    /// Until the 95 % interval of the median wall time, or of the ratio of two, is narrow enough, or time is up.
    Until {
        /// How far the interval may reach to each side, as a share of the median.
        precision: f64,
        /// No run begins later than this after the first.
        time: Duration,
    },
}

/// Fewer runs than this decide nothing, however alike they are.
const FEWEST: usize = 10;
/// More than this are not made by [`Runs::Until`].
const MOST: usize = 10_000;

/// What to run and what to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command, and one to compare it with, if any.
    pub commands: Vec<Command>,
    /// How often each.
    pub runs: Runs,
    /// Runs of each beforehand that do not count.
    pub warmups: u32,
    /// The CPU to stay on.
    pub cpu: Option<u32>,
    /// What to count.
    pub events: Vec<Wanted>,
    /// How often to look at the memory of the command while it runs; never, if not said.
    pub sample: Option<Duration>,
}

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Runs made, of all commands, those that do not count included.
    pub done: u64,
    /// How many it will be; `None` where that depends on how they turn out.
    pub of: Option<u64>,
    /// Since the first began.
    pub elapsed: Duration,
    /// How long it may take, where that is what ends it.
    pub time: Option<Duration>,
    /// How far the interval reaches to each side now, as a share of the median.
    pub precision: Option<f64>,
}

/// Runs the commands and measures each run. The processes that start them are forked first: call it early, while this
/// process is small. A Ctrl-C is for the command; no more runs are made after one.
///
/// # Errors
/// [`Error::NotRun`], [`Error::NotPinned`], [`Error::LauncherGone`].
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<Measurement, Error> {
    let interrupts = Interrupts::note();
    let launchers = plan.commands.iter().map(|command| start(command, plan.cpu));
    let mut launchers = launchers.collect::<Result<Vec<_>, _>>()?;
    let counters = Counters::of(plan.events.clone(), &Catalogue::open());
    let mut session = Session {
        plan,
        counters,
        begin: Instant::now(),
        arms: plan.commands.iter().map(|c| Arm { command: words(c), runs: Vec::new() }).collect(),
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
                // This run was interrupted with us.
                return Ok(session.finish(Conditions { interrupted: true, ..conditions }));
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

fn start(command: &Command, cpu: Option<u32>) -> Result<Launcher, Error> {
    let Command { program, arguments } = command;
    Launcher::start(program, arguments, cpu).map_err(|error| match (error.raw_os_error(), cpu) {
        (Some(libc::EINVAL), Some(cpu)) => Error::NotPinned { cpu, error },
        _ => Error::NotRun { program: program.clone(), error },
    })
}

fn words(command: &Command) -> Vec<Name> {
    let all = std::iter::once(&command.program).chain(&command.arguments);
    all.map(|word| Name::new(word.as_bytes())).collect()
}

fn conditions(plan: &Plan) -> Conditions {
    let sampled_every = plan.sample.map(nanos);
    Conditions {
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs so far.
struct Session<'a> {
    plan: &'a Plan,
    counters: Counters,
    begin: Instant,
    arms: Vec<Arm>,
    precision: Option<f64>,
}

impl Session<'_> {
    fn total(&self) -> Option<u64> {
        let rounds = match self.plan.runs {
            Runs::Exactly(n) => u64::from(n) + u64::from(self.plan.warmups),
            Runs::Until { .. } => return None,
        };
        Some(rounds * self.arms.len() as u64)
    }

    /// Whether enough runs were made.
    fn is_over(&self, since: Instant) -> bool {
        let made = self.arms[0].runs.len();
        match self.plan.runs {
            Runs::Exactly(n) => made as u64 >= u64::from(n),
            Runs::Until { precision, time } => {
                let is_narrow = self.precision.is_some_and(|now| now <= precision);
                made >= MOST || made > 0 && (is_narrow || since.elapsed() >= time)
            }
        }
    }

    /// Looks at the precision after a round, where that matters: more seldom as there are more runs, since it takes longer
    /// then and changes less.
    fn judge(&mut self) {
        let made = self.arms[0].runs.len();
        let is_wanted = matches!(self.plan.runs, Runs::Until { .. });
        if is_wanted && made >= FEWEST && made.is_multiple_of((made / 10).max(1)) {
            self.precision = self.precision_now();
        }
    }

    /// How far the 95 % interval of what [`Runs::Until`] wants to know reaches to each side.
    fn precision_now(&self) -> Option<f64> {
        let (median, Interval { low, high }) = match &self.arms[..] {
            [arm] => {
                let walls = walls(arm);
                (pagewise_stats::Summary::of(&walls)?.median, median_interval(&walls)?)
            }
            [one, other] => {
                let ratio = ratio_of_medians(&walls(one), &walls(other))?;
                (ratio.median, ratio.interval?)
            }
            _ => return None,
        };
        (median > 0.0).then(|| (high - low) / 2.0 / median)
    }

    fn progress(&self, done: u64, of: Option<u64>) -> Progress {
        let time = match self.plan.runs {
            Runs::Exactly(_) => None,
            Runs::Until { time, .. } => Some(time),
        };
        Progress { done, of, elapsed: self.begin.elapsed(), time, precision: self.precision }
    }

    fn run(&self, launcher: &mut Launcher, command: &Command) -> Result<Run, Error> {
        let at = nanos(self.begin.elapsed());
        let before = Moment::now();
        let mut opened = None;
        let prepare = |pid| {
            opened = Some(self.counters.open(pid));
            Ok::<_, io::Error>(())
        };
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Error::LauncherGone,
            _ => Error::NotRun { program: command.program.clone(), error },
        };
        let running = launcher.launch(prepare).map_err(explain)?;
        let (outcome, sampler) = self.wait(running).map_err(explain)?;
        let now = Moment::now();
        let (sampled, at_peak) = sampler.map_or_else(Default::default, Sampler::finish);
        let mut values = resources(&outcome);
        values.extend(sampled);
        values.extend(opened.into_iter().flat_map(|opened| opened.read()));
        values.extend(now.since(&before));
        let floor = Bytes(outcome.floor);
        Ok(Run { at, ending: ending(outcome.ending), floor, values, at_peak })
    }

    fn wait(&self, mut running: Running<'_>) -> io::Result<(Outcome, Option<Sampler>)> {
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

    fn finish(self, conditions: Conditions) -> Measurement {
        let sampled = self.plan.sample.map(|_| sampled::metrics());
        let mut metrics: Vec<Metric> = RESOURCES.iter().map(Resource::metric).collect();
        metrics.extend(sampled.into_iter().flatten());
        metrics.extend(self.counters.metrics());
        metrics.extend(Moment::now().metrics());
        Measurement { conditions, metrics, arms: self.arms }
    }
}

fn walls(arm: &Arm) -> Vec<f64> {
    let estimate = |run: &Run| run.values.first()?.clone().ok()?.estimate().ok();
    arm.runs.iter().filter_map(estimate).collect()
}

fn ending(ending: trace::Ending) -> Ending {
    match ending {
        trace::Ending::Exited(status) => Ending::Exited(status),
        trace::Ending::Killed { signal, .. } => Ending::Killed(signal),
    }
}

/// A number that the clock and `wait4` give.
struct Resource {
    name: &'static str,
    unit: Unit,
    of: fn(&Outcome) -> Reading<u64>,
}

impl Resource {
    fn metric(&self) -> Metric {
        let origin = Origin::Rusage;
        Metric { name: self.name.into(), unit: self.unit, scope: Scope::Process, origin }
    }
}

/// The first is what runs are compared by.
const RESOURCES: &[Resource] = &[
    Resource { name: "wall", unit: Unit::Nanos, of: |o| Ok(nanos(o.wall)) },
    Resource { name: "user", unit: Unit::Nanos, of: |o| Ok(nanos(o.usage.user)) },
    Resource { name: "sys", unit: Unit::Nanos, of: |o| Ok(nanos(o.usage.system)) },
    Resource { name: "peak_res", unit: Unit::Bytes, of: peak_res },
    Resource { name: "minflt", unit: Unit::Count, of: |o| Ok(o.usage.minor_faults) },
    Resource { name: "majflt", unit: Unit::Count, of: |o| Ok(o.usage.major_faults) },
    Resource { name: "inblock", unit: Unit::Count, of: |o| Ok(o.usage.blocks_in) },
    Resource { name: "oublock", unit: Unit::Count, of: |o| Ok(o.usage.blocks_out) },
    Resource { name: "nvcsw", unit: Unit::Count, of: |o| Ok(o.usage.voluntary_switches) },
    Resource { name: "nivcsw", unit: Unit::Count, of: |o| Ok(o.usage.involuntary_switches) },
];

/// A command never has less than the process that became it had: then its own peak is not known.
fn peak_res(outcome: &Outcome) -> Reading<u64> {
    if outcome.usage.max_rss > outcome.floor {
        return Ok(outcome.usage.max_rss);
    }
    let why = "the process that started it was larger: only a smaller one could tell";
    Err(Absent::Ambiguous(why.into()))
}

fn resources(outcome: &Outcome) -> Vec<Reading<Count>> {
    RESOURCES.iter().map(|resource| (resource.of)(outcome).map(Count::exact)).collect()
}
