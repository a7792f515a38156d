//! A lab notebook: the experiments, the machine on which they ran, all measured values, and the
//! verdicts on claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::report::{AxisUnit, Label, Scale};
use crate::{Absent, Bytes, Name, Reading};

/// Version of the file format. It increases when a change would make an older program misread the
/// file.
pub const NOTEBOOK_VERSION: u32 = 1;

/// Experiments that ran in one invocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notebook {
    /// [`NOTEBOOK_VERSION`] of the program that wrote the file.
    pub pagewise_notebook: u32,
    /// Machine on which the experiments ran.
    pub environment: Environment,
    /// Experiments in the order in which they ran.
    pub experiments: Vec<ExperimentRecord>,
    /// True if the user interrupted the experiments (Ctrl-C).
    pub interrupted: bool,
}

/// Properties of the machine at the start of the experiments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of pagewise.
    pub version: Label,
    /// The kernel's release: `uname -r`.
    pub kernel: Name,
    /// The model of the CPU.
    #[serde(with = "plain")]
    pub cpu: Reading<Name>,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Caches of the CPU (`L1d` and so on) with their sizes.
    #[serde(with = "plain")]
    pub caches: Reading<Vec<(Label, Bytes)>>,
    /// Memory of the machine: `MemTotal`.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// The base page size.
    pub page_size: Bytes,
    /// `transparent_hugepage/enabled`.
    #[serde(with = "plain")]
    pub thp: Reading<Name>,
    /// The `scaling_governor` of the first CPU.
    #[serde(with = "plain")]
    pub governor: Reading<Name>,
    /// Name of the hypervisor; absent on bare metal.
    #[serde(with = "plain")]
    pub hypervisor: Reading<Name>,
    /// True if pagewise ran as root.
    pub root: bool,
    /// Duration in nanoseconds of the first access to a page, and of the first access to the same
    /// memory by the next process. If the first number is many times the second one, the host had
    /// to allocate the page at the first access: it reclaims unused memory of its guests.
    #[serde(with = "plain")]
    pub first_touch: Reading<[f64; 2]>,
    /// Time at which the experiments began, in seconds since 1970.
    pub unix_seconds: u64,
}

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRecord {
    /// Name of the experiment.
    pub name: Label,
    /// Question that the experiment answers.
    pub question: Label,
    /// Expected result, and the reason.
    pub expectation: Label,
    /// Earlier measurements with their source.
    pub figures: Label,
    /// Parameters with the values of this run.
    pub parameters: Vec<ParameterValue>,
    /// Quantities that the experiment measures.
    pub quantities: Vec<ExperimentQuantity>,
    /// Conditions of the experiment. The first condition is the baseline.
    pub arms: Vec<ExperimentArm>,
    /// Claims that the experiment tests.
    pub claims: Vec<ExperimentClaim>,
    /// Plots of the measured values.
    pub plots: Vec<Plot>,
    /// Reason why the experiment was skipped; `None` if it ran.
    pub skipped: Option<Absent>,
    /// Upper bound of the relative difference between two interleaved series of the baseline, with
    /// 95 % confidence; `None` if the experiment does not measure time.
    pub noise: Option<f64>,
    /// Duration of the experiment in nanoseconds.
    pub took_ns: u64,
    /// The command that runs the experiment again.
    pub rerun: Label,
    /// Kernels of the experiment's virtual machines; empty for an experiment on the machine itself.
    #[serde(default)]
    pub kernels: Vec<Name>,
}

/// A parameter of an experiment, which the user can set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterValue {
    /// Name of the parameter.
    pub name: Label,
    /// Value in this run.
    pub value: u64,
    /// Meaning of the parameter.
    pub meaning: Label,
}

/// A quantity that an experiment measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExperimentQuantity {
    /// Name of the quantity.
    pub name: Label,
    /// Unit of the quantity.
    pub unit: AxisUnit,
    /// Meaning of the quantity.
    pub meaning: Label,
}

/// A condition of an experiment, and its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentArm {
    /// Name of the condition.
    pub name: Label,
    /// The runs, each in its own process.
    pub runs: Vec<ExperimentRun>,
    /// Reasons of the failed runs.
    pub failures: Vec<Name>,
}

/// Values that were measured in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRun {
    /// Values by the name of their quantity.
    pub values: BTreeMap<Label, Measured>,
    /// Curves by name, each a list of points.
    pub curves: BTreeMap<Label, Vec<(f64, f64)>>,
}

/// A measured value, or the reason of its absence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Measured(#[serde(with = "plain")] pub Reading<f64>);

/// A claim about memory, and the result on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentClaim {
    /// Text of the claim.
    pub text: Label,
    /// Source of the earlier measurement.
    pub source: Label,
    /// Expected value.
    pub expected: Label,
    /// Measured value.
    pub measured: Label,
    /// Verdict.
    pub verdict: ClaimVerdict,
    /// Reason why the claim is undecided or does not hold; empty if it holds.
    pub why: Label,
}

/// Verdict of an experiment about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimVerdict {
    /// The claim holds on this machine.
    Agrees,
    /// Values are missing, or they do not decide the claim.
    CannotTell,
    /// The claim does not hold on this machine.
    Disagrees,
}

/// A plot of the values of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plot {
    /// A bar for each condition.
    Bars {
        /// Name of the quantity in [`ExperimentRecord::quantities`].
        quantity: Label,
        /// Scale of the axis.
        scale: Scale,
    },
    /// The curves that have one name in [`ExperimentRun::curves`], with a line for each condition.
    Curves {
        /// Name in [`ExperimentRun::curves`] that all these curves have; also the title of the
        /// plot.
        curve: Label,
        /// Label, unit and scale of the horizontal axis.
        x: (Label, AxisUnit, Scale),
        /// Label, unit and scale of the vertical axis.
        y: (Label, AxisUnit, Scale),
    },
}

impl ExperimentRecord {
    /// The worst verdict of the claims with a measured value; [`ClaimVerdict::CannotTell`] if
    /// nothing was measured; `None` if the list of claims is empty, for example because the
    /// experiment was skipped.
    pub fn verdict(&self) -> Option<ClaimVerdict> {
        let measured = self.claims.iter().filter(|claim| !claim.measured.is_empty());
        let worst = measured.map(|claim| claim.verdict).max();
        worst.or_else(|| self.claims.first().map(|_| ClaimVerdict::CannotTell))
    }

    /// Returns the condition with this name; `None` if the experiment does not have it.
    pub fn arm(&self, name: &str) -> Option<&ExperimentArm> {
        self.arms.iter().find(|arm| arm.name == name)
    }
}

impl ExperimentArm {
    /// The points of a curve, one list for each run that has the curve.
    pub fn curves(&self, curve: &str) -> Vec<&[(f64, f64)]> {
        self.runs.iter().filter_map(|run| run.curves.get(curve)).map(Vec::as_slice).collect()
    }

    /// All values of a quantity, in the order of the runs; absent values are skipped.
    pub fn values(&self, quantity: &str) -> Vec<f64> {
        let value =
            |run: &ExperimentRun| run.values.get(quantity).and_then(|value| value.0.clone().ok());
        self.runs.iter().filter_map(value).collect()
    }
}

impl ClaimVerdict {
    /// The verdict in words.
    pub const fn describe(self) -> &'static str {
        match self {
            ClaimVerdict::Agrees => "agrees",
            ClaimVerdict::CannotTell => "cannot tell",
            ClaimVerdict::Disagrees => "disagrees",
        }
    }
}

impl ExperimentClaim {
    /// Details of the claim with their names. Empty details are skipped.
    pub fn details(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let measured = if self.measured.is_empty() { "nothing" } else { &self.measured };
        let all = [
            ("expected", &*self.expected),
            ("measured", measured),
            ("source", &*self.source),
            ("why", &*self.why),
        ];
        all.into_iter().filter(|(_, words)| !words.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(verdict: ClaimVerdict, measured: &'static str) -> ExperimentClaim {
        let text: fn(&'static str) -> Label = Label::from;
        let (source, why) = (text(""), text(""));
        ExperimentClaim {
            text: text("A"),
            source,
            expected: text("1"),
            measured: text(measured),
            verdict,
            why,
        }
    }

    #[test]
    fn a_claim_shows_its_details_and_the_missing_measurement() {
        let details =
            |measured| claim(ClaimVerdict::Agrees, measured).details().collect::<Vec<_>>().len();
        assert_eq!((details("2"), details("")), (2, 2));
        let nothing = claim(ClaimVerdict::CannotTell, "");
        assert!(nothing.details().any(|row| row == ("measured", "nothing")));
    }

    #[test]
    fn missing_values_decide_a_verdict_only_if_all_are_missing() {
        let verdict = |claims: Vec<ExperimentClaim>| {
            let json = r#"{"name":"","question":"","expectation":"","figures":"","parameters":[],"quantities":[],
                "arms":[],"claims":[],"plots":[],"skipped":null,"noise":null,"took_ns":0,"rerun":""}"#;
            let experiment: ExperimentRecord = serde_json::from_str(json).unwrap();
            ExperimentRecord { claims, ..experiment }.verdict()
        };
        let absent = claim(ClaimVerdict::CannotTell, "");
        let holds = claim(ClaimVerdict::Agrees, "1");
        let open = claim(ClaimVerdict::CannotTell, "1");
        assert_eq!(verdict(vec![absent.clone(), holds.clone()]), Some(ClaimVerdict::Agrees));
        assert_eq!(verdict(vec![holds, open]), Some(ClaimVerdict::CannotTell));
        assert_eq!(verdict(vec![absent]), Some(ClaimVerdict::CannotTell));
        assert_eq!(verdict(vec![]), None);
    }
}
