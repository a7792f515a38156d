//! The experiments: a file each, and a line in the table.

use pagewise_model::lab::{ExperimentClaim, Plot};

use crate::guest::GuestSetup;
use crate::{Bench, ExperimentAbout, ExperimentResults, LabError, Parameters};

macro_rules! experiments {
    ($($module:ident $name:ident;)*) => {
        $(mod $module;)*

        /// Every experiment, in the order in which a reader learns from them.
        pub const EXPERIMENTS: &[&dyn RunExperiment] = &[$(&$module::$name),*];
    };
}

experiments! {
    first_touch FirstTouch;
    aslr Aslr;
    stack_vs_heap StackVsHeap;
    thp_advise ThpAdvise;
    cow_fork CowFork;
    thp_compaction ThpCompaction;
    thp_bloat ThpBloat;
    mem_access MemAccessExperiment;
    readahead Readahead;
    ksm KsmExperiment;
    latency_ladder LatencyLadder;
    tlb_shootdown TlbShootdown;
    fault_avoidance FaultAvoidance;
    page_source PageSource;
    allocators Allocators;
    compete Compete;
    overcommit Overcommit;
    oom Oom;
    ipc Ipc;
    vm_oom VmOom;
    vm_compete VmCompete;
    vm_swappiness VmSwappiness;
    vm_cgroup VmCgroup;
    vm_numa VmNuma;
    vm_thp_age VmThpAge;
    vm_hotplug VmHotplug;
    vm_swap VmSwap;
    vm_patch VmPatch;
}

/// An experiment.
pub trait RunExperiment: Sync {
    /// Description of the experiment.
    fn about(&self) -> &'static ExperimentAbout;

    /// The virtual machine in which a condition runs; `None` if it runs on the host.
    fn guest(&self, _arm: &str, _parameters: &Parameters) -> Option<GuestSetup> {
        None
    }

    /// Runs one condition once, in a process of its own, and notes what it measures. Experiments
    /// with a virtual machine are run inside that machine.
    ///
    /// # Errors
    /// Returns the reason of a failure; the run counts as failed.
    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError>;

    /// Verdicts on the claims, from all runs.
    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim>;

    /// Plots of the results.
    fn plots(&self) -> Vec<Plot>;
}

impl std::fmt::Debug for dyn RunExperiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.about().name)
    }
}

/// The experiment of that name.
///
/// # Errors
/// [`LabError::NoSuchExperiment`]
pub fn find(name: &str) -> Result<&'static dyn RunExperiment, LabError> {
    let found = EXPERIMENTS.iter().find(|experiment| experiment.about().name == name);
    found.copied().ok_or_else(|| LabError::NoSuchExperiment(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use pagewise_model::lab::ClaimVerdict;

    use super::*;
    use crate::Size;
    use crate::outline::outline;

    #[test]
    fn without_measurements_a_verdict_is_undecided() {
        for experiment in EXPERIMENTS {
            let about = experiment.about();
            let parameters = Parameters::for_size(about, Size::Quick, &[]).unwrap();
            let claims =
                experiment.judge(&ExperimentResults(&outline(about, &parameters, String::new())));
            assert!(!claims.is_empty(), "{}", about.name);
            for claim in claims {
                assert_eq!(
                    claim.verdict,
                    ClaimVerdict::CannotTell,
                    "{}: {}",
                    about.name,
                    claim.text
                );
            }
        }
    }

    #[test]
    fn pictures_are_of_what_is_measured() {
        for experiment in EXPERIMENTS {
            let about = experiment.about();
            for plot in experiment.plots() {
                if let Plot::Bars { quantity, .. } = &plot {
                    let known = about.quantities.iter().any(|row| *quantity == row.name);
                    assert!(known, "{}: {quantity}", about.name);
                }
            }
        }
    }
}
