//! The experiments: a file each, and a line in the table.

use pagewise_model::lab::{Claim, Plot};

use crate::{About, Bench, LabError, Results};

macro_rules! experiments {
    ($($module:ident $name:ident;)*) => {
        $(mod $module;)*

        /// Every experiment, in the order in which a reader learns from them.
        pub const EXPERIMENTS: &[&dyn Experiment] = &[$(&$module::$name),*];
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
    mem_access MemAccess;
    readahead Readahead;
    ksm Ksm;
    latency_ladder LatencyLadder;
    tlb_shootdown TlbShootdown;
    fault_avoidance FaultAvoidance;
    page_source PageSource;
    allocators Allocators;
    compete Compete;
    overcommit Overcommit;
    oom Oom;
    ipc Ipc;
}

/// An experiment.
pub trait Experiment: Sync {
    /// What it is.
    fn about(&self) -> &'static About;

    /// Runs one condition once, in a process of its own, and notes what it measures.
    ///
    /// # Errors
    /// Why it could not; the run counts as failed.
    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError>;

    /// What all runs say of what is claimed.
    fn judge(&self, results: &Results<'_>) -> Vec<Claim>;

    /// What is worth a picture.
    fn plots(&self) -> Vec<Plot>;
}

impl std::fmt::Debug for dyn Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.about().name)
    }
}

/// The experiment of that name.
///
/// # Errors
/// [`LabError::NoSuchExperiment`]
pub fn find(name: &str) -> Result<&'static dyn Experiment, LabError> {
    let found = EXPERIMENTS.iter().find(|experiment| experiment.about().name == name);
    found.copied().ok_or_else(|| LabError::NoSuchExperiment(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use pagewise_model::lab::Verdict;

    use super::*;
    use crate::outline::outline;
    use crate::{Parameters, Size};

    #[test]
    fn who_measured_nothing_can_tell_nothing() {
        for experiment in EXPERIMENTS {
            let about = experiment.about();
            let parameters = Parameters::of(about, Size::Quick, &[]).unwrap();
            let claims = experiment.judge(&Results(&outline(about, &parameters, String::new())));
            assert!(!claims.is_empty(), "{}", about.name);
            for claim in claims {
                assert_eq!(claim.verdict, Verdict::CannotTell, "{}: {}", about.name, claim.text);
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
