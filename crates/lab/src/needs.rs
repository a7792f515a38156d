//! Checks of the requirements of an experiment.

use std::path::Path;

use pagewise_model::Absent;
use pagewise_vm::{GuestArch, VmRequirement};

use crate::about::Need;
use crate::machine;

/// Resources that are available to experiments.
#[derive(Clone, Debug)]
pub(crate) struct GivenResources {
    /// True if settings may be changed and restored.
    pub(crate) change_system: bool,
    /// Number of CPUs that this process may run on.
    pub(crate) cpus: u32,
    /// Folder in which cgroups can be created.
    pub(crate) cgroups: Option<std::path::PathBuf>,
    /// True if a kernel with a patch and a kernel without it exist.
    pub(crate) kernels: bool,
}

/// Returns the first requirement that is not met.
pub(crate) fn missing(needs: &[Need], given: &GivenResources) -> Option<Absent> {
    let missing = needs.iter().find(|need| !is_met(**need, needs, given))?;
    let is_machine = matches!(missing, Need::VirtualMachine | Need::Emulator);
    if let (true, Some(lack)) = (is_machine, missing_of_machine(needs)) {
        return Some(Absent::NotSupported(lack.to_string().into()));
    }
    let why = format!("it needs {}", missing.describe()).into();
    Some(match missing {
        Need::Root => Absent::NotPermitted("root".into()),
        Need::ChangeSystem => Absent::NotCollected(why),
        _ => Absent::NotSupported(why),
    })
}

/// The first requirement of virtual machines that is not met. An experiment with built kernels
/// needs no other kernel.
fn missing_of_machine(needs: &[Need]) -> Option<VmRequirement> {
    let lack = pagewise_vm::missing_requirement()?;
    let is_other = lack == VmRequirement::Kernel && needs.contains(&Need::BuiltKernels);
    (!is_other).then_some(lack)
}

fn is_met(need: Need, needs: &[Need], given: &GivenResources) -> bool {
    match need {
        Need::Root => rustix::process::geteuid().is_root(),
        Need::Cpus(n) => given.cpus >= n,
        Need::Thp => offers_huge_pages(),
        Need::Cgroup => given.cgroups.is_some(),
        Need::ChangeSystem => given.change_system,
        Need::File(path) => Path::new(path).exists(),
        Need::Program(name) => in_path(name),
        Need::StaticC => machine::links_statically(),
        Need::VirtualMachine | Need::Emulator => {
            GuestArch::host().is_some() && missing_of_machine(needs).is_none()
        }
        Need::BuiltKernels => given.kernels,
    }
}

fn offers_huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| !text.contains("[never]"))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
