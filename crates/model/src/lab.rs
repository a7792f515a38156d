//! A lab notebook: the experiments and their machine, every measured value, and the verdicts on
//! claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::report::{AxisUnit, Label, Scale};
use crate::{Absent, Bytes, Name, Reading};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const NOTEBOOK_VERSION: u32 = 1;

/// Experiments that were run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notebook {
    /// [`NOTEBOOK_VERSION`] of the writer.
    pub pagewise_notebook: u32,
    /// Machine of the runs.
    pub environment: Environment,
    /// Experiments in the order in which they ran.
    pub experiments: Vec<ExperimentRecord>,
    /// True if it was cut off: by Ctrl-C.
    pub interrupted: bool,
}

/// A machine as experiments find it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of pagewise.
    pub version: Label,
    /// The kernel's release.
    pub kernel: Name,
    /// The model of the CPU.
    #[serde(with = "plain")]
    pub cpu: Reading<Name>,
    /// CPUs that are online.
    pub cpus: u32,
    /// Its caches, `L1d` and so on.
    #[serde(with = "plain")]
    pub caches: Reading<Vec<(Label, Bytes)>>,
    /// Memory of the machine.
    #[serde(with = "plain")]
    pub mem_total: Reading<Bytes>,
    /// The base page.
    pub page_size: Bytes,
    /// `transparent_hugepage/enabled`.
    #[serde(with = "plain")]
    pub thp: Reading<Name>,
    /// The governor of the first CPU.
    #[serde(with = "plain")]
    pub governor: Reading<Name>,
    /// Name of the hypervisor; absent on bare metal.
    #[serde(with = "plain")]
    pub hypervisor: Reading<Name>,
    /// True if it was run as root.
    pub root: bool,
    /// Duration in nanoseconds of the first access to a page, and of the first access to the same
    /// memory by the next process. If the first is many times the second, the host reclaims unused
    /// memory of its guests.
    #[serde(with = "plain")]
    pub first_touch: Reading<[f64; 2]>,
    /// When, as Unix time.
    pub unix_seconds: u64,
}

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRecord {
    /// Its name.
    pub name: Label,
    /// Question that the experiment answers.
    pub question: Label,
    /// Expected result, and the reason.
    pub expectation: Label,
    /// Earlier measurements with their source.
    pub figures: Label,
    /// The sizes that it ran with.
    pub parameters: Vec<ParameterValue>,
    /// Measured quantities.
    pub quantities: Vec<ExperimentQuantity>,
    /// Its conditions. The first is the baseline.
    pub arms: Vec<ExperimentArm>,
    /// Claims that the values are tested against.
    pub claims: Vec<ExperimentClaim>,
    /// Plots of the values.
    pub plots: Vec<Plot>,
    /// Why it was not run.
    pub skipped: Option<Absent>,
    /// Upper bound of the relative difference between two interleaved series of the baseline, with
    /// 95 % confidence; `None` if the experiment does not measure time.
    pub noise: Option<f64>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The command that runs it again.
    pub rerun: Label,
    /// Kernels of its virtual machines; none for an experiment on the machine itself.
    #[serde(default)]
    pub kernels: Vec<Name>,
}

/// A size that can be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterValue {
    /// Its name.
    pub name: Label,
    /// Value in this run.
    pub value: u64,
    /// Meaning of the parameter.
    pub meaning: Label,
}

/// Something that is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExperimentQuantity {
    /// Its name.
    pub name: Label,
    /// Its unit.
    pub unit: AxisUnit,
    /// Meaning of the quantity.
    pub meaning: Label,
}

/// A condition, and its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentArm {
    /// Its name.
    pub name: Label,
    /// The runs, each in its own process.
    pub runs: Vec<ExperimentRun>,
    /// Runs that failed: why.
    pub failures: Vec<Name>,
}

/// Values measured in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRun {
    /// By quantity.
    pub values: BTreeMap<Label, Measured>,
    /// Curves, by name.
    pub curves: BTreeMap<Label, Vec<(f64, f64)>>,
}

/// A value, or the reason of its absence.
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
    /// Reason why it is undecided, or does not hold.
    pub why: Label,
}

/// Verdict of an experiment about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimVerdict {
    /// It holds here.
    Agrees,
    /// Values are missing, or they do not decide the claim.
    CannotTell,
    /// It does not hold here.
    Disagrees,
}

/// A picture of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plot {
    /// A bar for each arm.
    Bars {
        /// The quantity.
        quantity: Label,
        /// Scale of the bars.
        scale: Scale,
    },
    /// The curves of this name, a line for each arm.
    Curves {
        /// The name.
        curve: Label,
        /// Horizontal axis.
        x: (Label, AxisUnit, Scale),
        /// Vertical axis.
        y: (Label, AxisUnit, Scale),
    },
}

impl ExperimentRecord {
    /// The worst verdict of the claims with a measured value; [`ClaimVerdict::CannotTell`] if
    /// nothing was measured; `None` without claims, as for a skipped experiment.
    pub fn verdict(&self) -> Option<ClaimVerdict> {
        let measured = self.claims.iter().filter(|claim| !claim.measured.is_empty());
        let worst = measured.map(|claim| claim.verdict).max();
        worst.or_else(|| self.claims.first().map(|_| ClaimVerdict::CannotTell))
    }

    /// The runs of a condition.
    pub fn arm(&self, name: &str) -> Option<&ExperimentArm> {
        self.arms.iter().find(|arm| arm.name == name)
    }
}

impl ExperimentArm {
    /// The points of a curve, of each run that has it.
    pub fn curves(&self, curve: &str) -> Vec<&[(f64, f64)]> {
        self.runs.iter().filter_map(|run| run.curves.get(curve)).map(Vec::as_slice).collect()
    }

    /// All values of a quantity.
    pub fn values(&self, quantity: &str) -> Vec<f64> {
        let value =
            |run: &ExperimentRun| run.values.get(quantity).and_then(|value| value.0.clone().ok());
        self.runs.iter().filter_map(value).collect()
    }
}

impl ClaimVerdict {
    /// In words.
    pub const fn describe(self) -> &'static str {
        match self {
            ClaimVerdict::Agrees => "agrees",
            ClaimVerdict::CannotTell => "cannot tell",
            ClaimVerdict::Disagrees => "disagrees",
        }
    }
}

impl ExperimentClaim {
    /// Details of the claim with their names, without empty ones.
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
    fn a_claim_says_what_it_has_and_that_nothing_was_measured() {
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
