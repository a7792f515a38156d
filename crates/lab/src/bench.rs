//! One run of one condition in a separate process, and the interface for an experiment's code.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pagewise_measure::probe::{CodeProbe, ProbeOptions, ProbeScope};
use pagewise_model::lab::{ExperimentRun, Measured};
use pagewise_model::process::Statm;
use pagewise_model::{Absent, Bytes, PageSize, Pid, Reading, Smaps, SmapsCounter};
use pagewise_proc::{ProcRoot, smaps, stat};
use pagewise_sys::launch::KernelUsage;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::about::{ExperimentAbout, Parameters, Size};
use crate::cgroup::{forbid_swap, limit};
use crate::error::While;
use crate::guest::{boot_and_run, is_guest};
use crate::{Journal, LabError, find};

/// Context of a run.
#[derive(Debug)]
pub struct Bench {
    about: &'static ExperimentAbout,
    parameters: Parameters,
    journal: Journal,
    folder: PathBuf,
    cgroup: Option<PathBuf>,
    run: ExperimentRun,
}

/// Instructions of the lab for a run.
#[derive(Clone, Debug)]
pub struct RunContext {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the condition.
    pub arm: String,
    /// Names and values of all parameters.
    pub parameters: Vec<(String, u64)>,
    /// Folder of the lab's journal.
    pub journal: PathBuf,
    /// A folder for files, on a disk.
    pub folder: PathBuf,
    /// The cgroup that limits the memory of the run; `None` without cgroups.
    pub cgroup: Option<PathBuf>,
}

/// Runs one condition once, and writes the measured values.
///
/// # Errors
/// Returns the error of the experiment; nothing is written in this case.
pub fn run_child(child: &RunContext, out: &mut dyn Write) -> Result<(), LabError> {
    // The run must end when the process of the lab ends, because the limits of the run are then
    // removed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let experiment = find(&child.experiment)?;
    let about = experiment.about();
    let parameters = Parameters::for_size(about, Size::Usual, &child.parameters)?;
    if let Some(cgroup) = &child.cgroup {
        join(cgroup, std::process::id())?;
    }
    if let Some(setup) = experiment.guest(&child.arm, &parameters).filter(|_| !is_guest()) {
        let run = boot_and_run(child, &parameters, &setup)?;
        return write_run(&run, out);
    }
    // An experiment for a virtual machine may end every process and change every setting of its
    // machine.
    if about.is_virtual() && !is_guest() {
        return Err(LabError::Failed("it runs in a virtual machine only".to_owned()));
    }
    let mut bench = Bench {
        about,
        parameters,
        journal: Journal::join(child.journal.clone()),
        folder: child.folder.clone(),
        cgroup: child.cgroup.clone(),
        run: ExperimentRun::default(),
    };
    experiment.run(&child.arm, &mut bench)?;
    write_run(&bench.run, out)
}

fn write_run(run: &ExperimentRun, out: &mut dyn Write) -> Result<(), LabError> {
    let text = serde_json::to_vec(run).map_err(std::io::Error::from);
    text.and_then(|text| out.write_all(&text)).while_("cannot write what was measured")
}

impl Bench {
    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> u64 {
        self.parameters.get(name)
    }

    /// The value of a parameter, as a size or an index.
    pub fn size(&self, name: &str) -> usize {
        usize::try_from(self.parameter(name)).unwrap_or(usize::MAX)
    }

    /// Size of a base page in bytes.
    pub fn page(&self) -> usize {
        usize::try_from(pagewise_sys::system::page_size()).unwrap_or(usize::MAX)
    }

    /// A folder on a disk for files, which is removed after the run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Journal of changes to the system, which the lab undoes after this run.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The memory cgroup that bounds this run.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    /// Creates a cgroup next to the cgroup of this run, with a memory limit, with or without swap.
    /// Processes can join it. `None` without cgroups.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn make_cgroup(&self, memory: Bytes, swap: bool) -> Result<Option<PathBuf>, LabError> {
        let Some(cgroup) = self.cgroup() else { return Ok(None) };
        let path = cgroup.with_extension("within");
        self.journal.make_cgroup(&path)?;
        limit(&path, memory).while_("cannot bound the memory of a cgroup")?;
        if !swap {
            forbid_swap(&path, memory).while_("cannot keep a cgroup from swapping")?;
        }
        Ok(Some(path))
    }

    /// Runs and measures the work: time, page faults and counters of this thread.
    ///
    /// # Errors
    /// [`LabError::Measure`]
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> Result<T, LabError> {
        let wanted = |name: &str| self.about.quantities.iter().any(|row| row.name == name);
        let mut options =
            ProbeOptions { whose: ProbeScope::Thread, in_kernel: true, ..ProbeOptions::default() };
        options.events = pagewise_measure::events::choose(EVENTS)?;
        options.events.retain(|event| wanted(&event.name));
        let mut probe = CodeProbe::open(&options)?;
        let (done, cost) = probe.measure(work)?;
        let values: Vec<(String, Reading<f64>)> = cost
            .iter()
            .map(|(quantity, value)| {
                let value = value.clone().and_then(|count| count.estimate());
                (quantity.name.to_string(), value)
            })
            .collect();
        for (name, value) in values.into_iter().filter(|(name, _)| wanted(name)) {
            self.put(&name, value);
        }
        Ok(done)
    }

    /// Records a value.
    ///
    /// # Panics
    /// Panics if the experiment did not declare the quantity.
    pub fn record(&mut self, quantity: &str, value: f64) {
        self.put(quantity, Ok(value));
    }

    /// Records that a value is missing, and the reason.
    pub fn missing(&mut self, quantity: &str, why: Absent) {
        self.put(quantity, Err(why));
    }

    /// Records a value; if it is `None`, records that the kernel does not have `source`.
    pub fn record_or_missing(&mut self, quantity: &str, value: Option<f64>, source: &str) {
        let missing = || Absent::NotSupported(format!("this kernel does not have {source}").into());
        self.put(quantity, value.ok_or_else(missing));
    }

    fn put(&mut self, quantity: &str, value: Reading<f64>) {
        let row = self.about.quantities.iter().find(|row| row.name == quantity);
        let row = row.unwrap_or_else(|| panic!("{quantity} is no quantity of {}", self.about.name));
        self.run.values.insert(row.name.into(), Measured(value));
    }

    /// Records a point of a curve.
    pub fn point(&mut self, curve: &'static str, x: f64, y: f64) {
        self.run.curves.entry(curve.into()).or_default().push((x, y));
    }

    /// Records the mean time of one of `times` operations that began at `since`, in nanoseconds.
    pub fn each(&mut self, quantity: &str, since: Instant, times: u64) {
        self.record(quantity, nanos(since) / count(times.max(1)));
    }

    /// A counter of `smaps_rollup` of this process, in bytes.
    ///
    /// # Errors
    /// [`LabError::Failed`] if the counter cannot be read.
    pub fn memory(&self, counter: SmapsCounter) -> Result<f64, LabError> {
        let read = smaps::parse_rollup(&own_file("smaps_rollup")?);
        counted(&read.ok_or_else(|| unreadable("smaps_rollup"))?, counter)
    }

    /// A counter of `smaps` of the mapping that contains an address, in bytes. The kernel may have
    /// merged this mapping with adjacent mappings of the same kind.
    ///
    /// # Errors
    /// [`LabError::Failed`] if the counter cannot be read, or if the address is not mapped.
    pub fn memory_at(&self, address: u64, counter: SmapsCounter) -> Result<f64, LabError> {
        let mappings = smaps::parse(&own_file("smaps")?).mappings;
        let found = mappings.iter().find(|mapping| mapping.range.contains(address));
        let read = found.and_then(|mapping| mapping.smaps.as_ref().ok());
        counted(read.ok_or_else(|| unreadable("smaps"))?, counter)
    }

    /// Reads `statm` of this process: VIRT, RES, SHR and DATA.
    ///
    /// # Errors
    /// [`LabError::Failed`] if the file cannot be read.
    pub fn columns(&self) -> Result<Statm, LabError> {
        let page = PageSize::new(pagewise_sys::system::page_size());
        let page = page.ok_or_else(|| unreadable("the page size"))?;
        let text = own_file("statm")?;
        stat::parse_statm(&text, page).map_err(|error| LabError::Failed(error.to_string()))
    }

    /// `getrusage` of this process.
    pub fn usage(&self) -> KernelUsage {
        KernelUsage::of_this_process()
    }
}

/// Moves a process into a cgroup, to which memory that the process touches from now on is charged.
pub(crate) fn join(cgroup: &Path, process: u32) -> Result<(), LabError> {
    fs::write(cgroup.join("cgroup.procs"), process.to_string()).while_("cannot join the cgroup")
}

/// Reads a file of this process in `/proc`.
fn own_file(name: &str) -> Result<Vec<u8>, LabError> {
    let text = ProcRoot::live().read(Pid(std::process::id()), name);
    text.map_err(|error| LabError::Failed(error.to_string()))
}

fn unreadable(name: &str) -> LabError {
    LabError::Failed(format!("{name} does not read as it should"))
}

fn counted(read: &Smaps, counter: SmapsCounter) -> Result<f64, LabError> {
    read.get(counter).map(count).map_err(|why| LabError::Failed(why.to_string()))
}

/// Counters that a run opens if its experiment declares them.
const EVENTS: &str = "minor_faults,major_faults,context_switches,cycles,instructions,dtlb_reads,dtlb_read_misses,\
    dtlb_write_misses,l1d_reads,l1d_read_misses";

/// Nanoseconds since a time.
pub(crate) fn nanos(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e9
}

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "nobody counts to 2^53 here")]
pub(crate) fn count(n: u64) -> f64 {
    n as f64
}
