//! Experiments in a virtual machine: the same program runs one condition inside it, and prints its
//! values as on the host.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pagewise_model::lab::{ExperimentRun, Measured};
use pagewise_model::{Bytes, Name};
use pagewise_vm::{
    CgroupVersion, GuestKernel, GuestProgram, VirtualMachine, VmEnd, VmError, VmRequirement,
    VmResult,
};

use crate::about::{Need, Parameters};
use crate::bench::RunContext;
use crate::error::While;
use crate::{ComparedKernels, LabError, RunExperiment};

/// The virtual machine of a condition.
#[derive(Clone, Debug)]
pub struct GuestSetup {
    /// Memory of the machine at boot.
    pub memory: Bytes,
    /// Number of CPUs.
    pub cpus: u32,
    /// Number of NUMA nodes.
    pub nodes: u32,
    /// Kernel command-line options.
    pub kernel_options: &'static str,
    /// Kernel modules in addition to the virtio drivers.
    pub modules: &'static [&'static str],
    /// Sizes of empty disks.
    pub disks: Vec<Bytes>,
    /// Memory that the machine may get in addition while it runs.
    pub growth: Bytes,
    /// Path of the kernel; `None` for the default kernel.
    pub kernel: Option<PathBuf>,
    /// True if the kernel is expected to panic: a panic is then a result, not a failure.
    pub may_panic: bool,
}

impl Default for GuestSetup {
    fn default() -> GuestSetup {
        GuestSetup {
            memory: Bytes::mib(384),
            cpus: 1,
            nodes: 1,
            kernel_options: "",
            modules: &[],
            disks: Vec::new(),
            growth: Bytes::ZERO,
            kernel: None,
            may_panic: false,
        }
    }
}

/// Time limit of a machine. On an idle host a run takes seconds; an emulated machine on a host with
/// many other processes takes minutes.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(480);

/// Path of this program in the machine.
const PROGRAM: &str = "/bin/pagewise";
/// Folder in the machine for files of an experiment.
const FOLDER: &str = "/tmp/lab";
/// Name of the quantity that is 1 if the kernel panicked.
pub(crate) const PANICKED: &str = "panicked";

/// Host memory for a machine: memory of the guest, memory of QEMU, and two copies of the initramfs,
/// which contains this program.
pub(crate) fn host_memory(guest: Bytes) -> Bytes {
    guest + Bytes::mib(384)
}

/// True inside a machine of an experiment.
pub(crate) fn is_guest() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.split_whitespace().any(|word| word == pagewise_vm::GUEST_OPTION)
}

/// The default kernel of machines.
pub(crate) fn usual_kernel() -> Result<GuestKernel, LabError> {
    GuestKernel::find().ok_or_else(|| LabError::Failed(VmRequirement::Kernel.to_string()))
}

/// Releases of the kernels that the conditions of an experiment boot, each once. Experiments on the
/// host have none.
pub(crate) fn kernels_of(
    experiment: &dyn RunExperiment,
    parameters: &Parameters,
    compared: Option<&ComparedKernels>,
) -> Vec<Name> {
    let about = experiment.about();
    let needs = |need| about.needs.contains(&need);
    let images: Vec<Option<PathBuf>> = match compared {
        Some(it) if needs(Need::BuiltKernels) => {
            vec![Some(it.plain.clone()), Some(it.patched.clone())]
        }
        _ if needs(Need::Emulator) => vec![None],
        _ => {
            let guests = about.arms.iter().filter_map(|arm| experiment.guest(arm, parameters));
            guests.map(|guest| guest.kernel).collect()
        }
    };
    let mut releases = Vec::new();
    for image in images {
        let kernel = image.map_or_else(GuestKernel::find, |it| GuestKernel::open(&it).ok());
        let release = kernel.and_then(|kernel| kernel.release);
        let release = Name::from(release.as_deref().unwrap_or("a kernel without a version"));
        if !releases.contains(&release) {
            releases.push(release);
        }
    }
    releases
}

/// An error of a machine, with its cause.
pub(crate) fn failed(error: &VmError) -> LabError {
    let source = std::error::Error::source(error);
    let source = source.map_or_else(String::new, |source| format!(": {source}"));
    LabError::Failed(format!("{error}{source}"))
}

/// Boots a machine and runs a condition in it.
///
/// # Errors
/// [`LabError::Failed`] if the machine does not boot or the condition fails in it.
pub(crate) fn boot_and_run(
    child: &RunContext,
    parameters: &Parameters,
    setup: &GuestSetup,
) -> Result<ExperimentRun, LabError> {
    let kernel = match &setup.kernel {
        Some(image) => GuestKernel::open(image).map_err(|error| failed(&error))?,
        None => usual_kernel()?,
    };
    let host = std::env::current_exe().while_("cannot find the path of this program")?;
    let machine = VirtualMachine {
        memory: setup.memory,
        cpus: setup.cpus,
        nodes: setup.nodes,
        cgroups: CgroupVersion::V2,
        kernel_options: setup.kernel_options.to_owned(),
        modules: setup.modules.iter().map(|name| (*name).to_owned()).collect(),
        disks: setup.disks.clone(),
        growth: setup.growth,
        programs: vec![GuestProgram::new(&host, PROGRAM)],
        time_limit: TIME_LIMIT,
        ..VirtualMachine::new(kernel, command(child, parameters))
    };
    let result = machine.run(&|| false).map_err(|error| failed(&error))?;
    measured(setup, &result)
}

/// Command that the machine runs: this program with the arguments of one run.
fn command(child: &RunContext, parameters: &Parameters) -> Vec<String> {
    let mut words: Vec<String> =
        [PROGRAM, "lab-once", &child.experiment, &child.arm].map(str::to_owned).into();
    for (name, value) in parameters.iter() {
        words.extend(["--set".to_owned(), format!("{name}={value}")]);
    }
    let folders = ["--journal", FOLDER, "--folder", FOLDER];
    words.extend(folders.map(str::to_owned));
    words
}

/// The values of a run, from the output of the machine.
fn measured(setup: &GuestSetup, result: &VmResult) -> Result<ExperimentRun, LabError> {
    if setup.may_panic && matches!(result.end, VmEnd::Panicked(_)) {
        let mut run = ExperimentRun::default();
        run.values.insert(PANICKED.into(), Measured(Ok(1.0)));
        return Ok(run);
    }
    if !result.success() {
        return Err(LabError::Failed(result.failure()));
    }
    serde_json::from_slice(&result.stdout)
        .map_err(|error| LabError::Failed(format!("the machine printed no values: {error}")))
}
