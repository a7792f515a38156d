//! Runs experiments: each run is a separate process, conditions are interleaved, memory and time
//! are limited, and the system is restored.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagewise_model::lab::{self, ExperimentArm, ExperimentRun, NOTEBOOK_VERSION, Notebook};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, Bytes, Name, Reading};
use pagewise_proc::ProcRoot;
use pagewise_stats::ratio_of_medians;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::about::{ExperimentAbout, Parameters, Size};
use crate::cgroup::{cgroups, limit};
use crate::environment::{cpus, environment};
use crate::guest::kernels_of;
use crate::needs::{GivenResources, missing};
use crate::outline::outline;
use crate::results::ExperimentResults;
use crate::{ComparedKernels, Journal, LabError, RunExperiment, find};

/// Experiments to run, and their parameters.
#[derive(Clone, Debug)]
pub struct LabPlan {
    /// The program that runs one condition once: it is called with `lab-once` and the words of
    /// [`crate::RunContext`].
    pub program: PathBuf,
    /// The experiments, by name.
    pub names: Vec<String>,
    /// Extent of the experiments.
    pub size: Size,
    /// Parameters that were set by hand.
    pub set: Vec<(String, u64)>,
    /// Number of runs of each condition; `None` for the number that each experiment declares.
    pub runs: Option<u32>,
    /// True if settings of the system may be changed and restored.
    pub change_system: bool,
    /// Folder for files, on a disk.
    pub disk: PathBuf,
    /// Folder for journals.
    pub journals: PathBuf,
    /// Kernels to compare; `None` for the kernels that were built with the lab's own patch.
    pub kernels: Option<ComparedKernels>,
}

impl LabPlan {
    fn given(&self) -> GivenResources {
        GivenResources {
            change_system: self.change_system,
            cpus: cpus(),
            cgroups: cgroups(),
            kernels: self.kernels.is_some() || ComparedKernels::find().is_some(),
        }
    }
}

/// Progress of the lab.
#[derive(Clone, Copy, Debug)]
pub struct LabProgress<'a> {
    /// The experiment that runs now.
    pub experiment: &'a str,
    /// The condition that runs now.
    pub arm: &'a str,
    /// Number of completed runs of all experiments.
    pub done: u64,
    /// Number of all runs of all experiments.
    pub of: u64,
}

/// Time limits of a run, by [`Size`]; a run that takes longer is killed.
const MAX_RUN_TIMES: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(180), Duration::from_secs(1800)];

/// Time limit of a run in a virtual machine, which is slow with an emulated CPU. The machine has a
/// lower limit ([`crate::guest::TIME_LIMIT`]), so that its console explains the failure.
const MAX_GUEST_TIME: Duration = Duration::from_secs(500);

/// Number of bytes that are touched twice, to detect a host that reclaims unused guest memory.
const TOUCHED: Bytes = Bytes::mib(64);

/// Suffix of the name of the baseline's second series of runs. The difference between the two
/// series is the noise of this machine.
const AGAIN: &str = " again";

/// Memory of a run in addition to the memory of its experiment: for the program itself and page
/// tables.
const ROOM: Bytes = Bytes::mib(64);

/// Runs experiments one after the other. If `interrupted` returns true, stops and returns the
/// results so far.
///
/// # Errors
/// [`LabError::NoSuchExperiment`], [`LabError::NoSuchParameter`], and an error if journals cannot
/// be written. Errors of an experiment are in the returned notebook.
pub fn run(
    plan: &LabPlan,
    progress: &mut dyn FnMut(LabProgress<'_>),
    interrupted: &dyn Fn() -> bool,
) -> Result<Notebook, LabError> {
    let experiments: Vec<&dyn RunExperiment> =
        plan.names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
    for experiment in &experiments {
        Parameters::for_size(experiment.about(), plan.size, &ours(experiment.about(), plan))?;
    }
    let journal = Journal::begin(&plan.journals)?;
    let _alone = if plan.change_system { journal.have_settings_alone(interrupted)? } else { None };
    let given = plan.given();
    let mut lab = LabRunner { plan, journal, given, interrupted, done: 0, of: 0 };
    lab.of = experiments.iter().map(|experiment| lab.runs_of(experiment.about())).sum();
    let first_touch = lab.first_touch();
    let mut notebook = Notebook {
        pagewise_notebook: NOTEBOOK_VERSION,
        environment: environment(first_touch),
        experiments: Vec::new(),
        interrupted: false,
    };
    for experiment in experiments {
        if interrupted() {
            break;
        }
        notebook.experiments.push(lab.try_out(experiment, progress)?);
    }
    notebook.interrupted = interrupted();
    lab.journal.restore()?;
    Ok(notebook)
}

/// A running series of experiments.
struct LabRunner<'a> {
    plan: &'a LabPlan,
    journal: Journal,
    given: GivenResources,
    interrupted: &'a dyn Fn() -> bool,
    done: u64,
    of: u64,
}

impl LabRunner<'_> {
    fn repetitions(&self, about: &ExperimentAbout) -> u32 {
        self.plan.runs.unwrap_or(about.runs[self.plan.size as usize]).max(1)
    }

    /// Number of runs of an experiment; 0 if a requirement is missing.
    fn runs_of(&self, about: &ExperimentAbout) -> u64 {
        if missing(about.needs, &self.given).is_some() {
            return 0;
        }
        let arms = about.arms.len() as u64 + u64::from(about.timed);
        arms * u64::from(self.repetitions(about))
    }

    /// Runs an experiment and judges it.
    fn try_out(
        &mut self,
        experiment: &dyn RunExperiment,
        progress: &mut dyn FnMut(LabProgress<'_>),
    ) -> Result<lab::ExperimentRecord, LabError> {
        let begin = Instant::now();
        let about = experiment.about();
        let parameters = Parameters::for_size(about, self.plan.size, &ours(about, self.plan))?;
        let mut entry = entry(about, &parameters, self.plan);
        entry.plots = experiment.plots();
        entry.skipped = missing(about.needs, &self.given).or_else(|| too_large(about, &parameters));
        if entry.skipped.is_some() {
            self.done += self.runs_of(about);
            return Ok(entry);
        }
        entry.kernels = kernels_of(experiment, &parameters, self.plan.kernels.as_ref());
        let bounds = self.bounds((about.memory)(&parameters))?;
        self.turns(about, &parameters, &bounds, &mut entry, progress);
        self.journal.restore()?;
        entry.noise = if about.timed { noise(about, &mut entry) } else { None };
        entry.claims = experiment.judge(&ExperimentResults(&entry));
        entry.took_ns = nanoseconds(begin.elapsed());
        Ok(entry)
    }

    /// Runs all conditions, interleaved: a round runs each condition once. Each round begins with
    /// another condition.
    fn turns(
        &mut self,
        about: &ExperimentAbout,
        parameters: &Parameters,
        bounds: &RunBounds,
        entry: &mut lab::ExperimentRecord,
        progress: &mut dyn FnMut(LabProgress<'_>),
    ) {
        let _ = self.touch((about.memory)(parameters));
        for round in 0..self.repetitions(about) as usize {
            let arms = entry.arms.len();
            for arm in (0..arms).map(|turn| (turn + round) % arms) {
                if (self.interrupted)() {
                    return;
                }
                let arm = &mut entry.arms[arm];
                let (done, of) = (self.done, self.of);
                progress(LabProgress { experiment: about.name, arm: &arm.name, done, of });
                match self.run_once(about, &arm.name, parameters, bounds) {
                    Ok(run) => arm.runs.push(run),
                    Err(why) => arm.failures.push(why),
                }
                self.done += 1;
            }
        }
    }

    /// Runs a condition once, and undoes the changes of the run.
    fn run_once(
        &self,
        about: &ExperimentAbout,
        arm: &str,
        parameters: &Parameters,
        bounds: &RunBounds,
    ) -> Result<ExperimentRun, Name> {
        let arm = arm.strip_suffix(AGAIN).unwrap_or(arm);
        let mut command = Command::new(&self.plan.program);
        command.args(["lab-once", about.name, arm]);
        for (name, value) in parameters.iter() {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        command.arg("--journal").arg(self.journal.folder());
        command.arg("--folder").arg(&bounds.folder);
        if let Some(cgroup) = &bounds.cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        if let Some(kernels) = &self.plan.kernels {
            command.envs(kernels.variables());
        }
        let words = |error: &dyn std::error::Error| Name::from(error.to_string().as_str());
        let usual = MAX_RUN_TIMES[self.plan.size as usize];
        let limit = if about.is_virtual() { usual.max(MAX_GUEST_TIME) } else { usual };
        let first = self.journal.next();
        let text = self.output(command, limit);
        self.journal.restore_from(first).map_err(|error| words(&error))?;
        serde_json::from_slice(&text?).map_err(|error| words(&error))
    }

    /// Runs a command, and returns its output. If it takes too long, kills it with all processes
    /// that it started.
    fn output(&self, mut command: Command, limit: Duration) -> Result<Vec<u8>, Name> {
        let words = |error: io::Error| Name::from(error.to_string().as_str());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("RUST_BACKTRACE", "0");
        let mut child = command.process_group(0).spawn().map_err(words)?;
        let [out, err] = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
        let deadline = Instant::now() + limit;
        let status = loop {
            match child.try_wait().map_err(words)? {
                Some(status) => break Ok(status),
                None if (self.interrupted)() => break Err("it was interrupted"),
                None if Instant::now() > deadline => break Err("it exceeded its time limit"),
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // Remaining processes of the run are killed too; usually all of them have ended.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
        let [out, err] =
            [out, err].map(|reader| reader.and_then(|r| r.join().ok()).unwrap_or_default());
        match status {
            Ok(status) if status.success() => Ok(out),
            Ok(status) if err.is_empty() => Err(status.to_string().as_str().into()),
            Ok(_) => Err(Name::new(err.trim_ascii())),
            Err(why) => Err(why.into()),
        }
    }

    /// Touches memory in another process, so that the host backs it. Returns the nanoseconds per
    /// page.
    fn touch(&self, bytes: Bytes) -> Reading<f64> {
        let mut command = Command::new(&self.plan.program);
        command.arg("lab-touch").arg(bytes.0.to_string());
        let failed = |why: Name| Absent::NotSupported(why.escaped().into_owned().into());
        let text = self.output(command, MAX_RUN_TIMES[self.plan.size as usize]).map_err(failed)?;
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| Absent::NotSupported("it printed no number".into()))
    }

    fn first_touch(&self) -> Reading<[f64; 2]> {
        Ok([self.touch(TOUCHED)?, self.touch(TOUCHED)?])
    }

    /// Creates a folder for files, and a cgroup if possible.
    fn bounds(&self, memory: Bytes) -> Result<RunBounds, LabError> {
        let folder = self.journal.make_folder(&self.plan.disk)?;
        let cgroup = self.given.cgroups.as_deref().and_then(|base| {
            let path = base.join(format!("pagewise-lab-{}", std::process::id()));
            self.journal.make_cgroup(&path).ok()?;
            limit(&path, Bytes(memory.0 + ROOM.0)).ok()?;
            Some(path)
        });
        Ok(RunBounds { folder, cgroup })
    }
}

/// Limits on the memory and the files of a run.
struct RunBounds {
    folder: PathBuf,
    cgroup: Option<PathBuf>,
}

fn reader(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Part of an experiment's entry that does not depend on its results.
fn entry(
    about: &ExperimentAbout,
    parameters: &Parameters,
    plan: &LabPlan,
) -> lab::ExperimentRecord {
    let mut entry = outline(about, parameters, rerun(about, plan));
    if about.timed {
        let again = about.arms[0].to_owned() + AGAIN;
        entry.arms.push(ExperimentArm { name: again.into(), ..ExperimentArm::default() });
    }
    entry
}

/// The record of each experiment without measurements, with the reason if it would be skipped.
///
/// # Errors
/// [`LabError::NoSuchExperiment`], [`LabError::NoSuchParameter`]
pub fn outlines(plan: &LabPlan) -> Result<Vec<lab::ExperimentRecord>, LabError> {
    let given = plan.given();
    let one = |name: &String| {
        let about = find(name)?.about();
        let parameters = Parameters::for_size(about, plan.size, &ours(about, plan))?;
        let skipped = missing(about.needs, &given).or_else(|| too_large(about, &parameters));
        Ok(lab::ExperimentRecord { skipped, ..outline(about, &parameters, rerun(about, plan)) })
    };
    plan.names.iter().map(one).collect()
}

/// Returns the parameters that were set by hand, for one experiment. If the plan has several
/// experiments, parameters that this experiment does not have are left out, because they may belong
/// to another experiment.
fn ours(about: &ExperimentAbout, plan: &LabPlan) -> Vec<(String, u64)> {
    let is_ours = |name: &str| about.parameters.iter().any(|row| row.name == name);
    plan.set.iter().filter(|(name, _)| plan.names.len() == 1 || is_ours(name)).cloned().collect()
}

fn rerun(about: &ExperimentAbout, plan: &LabPlan) -> String {
    let mut words = vec![format!("pagewise lab run {}", about.name)];
    match plan.size {
        Size::Quick => words.push("--quick".to_owned()),
        Size::Usual => {}
        Size::Full => words.push("--full".to_owned()),
    }
    words.extend(ours(about, plan).iter().map(|(name, value)| format!("--set {name}={value}")));
    words.extend(plan.runs.map(|runs| format!("--runs {runs}")));
    words.extend(plan.change_system.then(|| "--change-system".to_owned()));
    words.join(" ")
}

/// Reason why the experiment does not fit into the memory of this machine; `None` if it fits.
fn too_large(about: &ExperimentAbout, parameters: &Parameters) -> Option<Absent> {
    let needed = (about.memory)(parameters);
    let available = pagewise_proc::meminfo::machine(&ProcRoot::live()).mem_available.ok()?;
    let why = || {
        format!(
            "it needs {} MiB of memory, {} MiB are available",
            needed.0 >> 20,
            available.0 >> 20
        )
    };
    (needed > available).then(|| Absent::NotSupported(why().into()))
}

/// Maximum relative difference of two series of the baseline, with 95 % confidence. Removes the
/// second series from the entry.
pub(crate) fn noise(about: &ExperimentAbout, entry: &mut lab::ExperimentRecord) -> Option<f64> {
    let again = entry.arms.pop()?;
    let timed = about.quantities.iter().find(|row| row.is_time())?;
    let baseline = entry.arms.first()?.values(timed.name);
    let interval = ratio_of_medians(&again.values(timed.name), &baseline)?.interval?;
    Some((interval.high - 1.0).max(1.0 - interval.low).max(0.0))
}
