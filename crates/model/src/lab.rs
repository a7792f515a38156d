//! A notebook of the lab: what was tried on which machine, every value as it was measured, and what it says of claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::plain;
use crate::report::{Label, Scale, Unit};
use crate::{Absent, Bytes, Name, Reading};

/// The version of the saved form. Raised when an older reader would misread a newer file.
pub const NOTEBOOK_VERSION: u32 = 1;

/// Experiments that were run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notebook {
    /// [`NOTEBOOK_VERSION`] of the writer.
    pub pagewise_notebook: u32,
    /// Where.
    pub environment: Environment,
    /// What was run, in this order.
    pub experiments: Vec<Experiment>,
    /// Whether it was cut off: by Ctrl-C.
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
    /// Whether it is a virtual machine, and whose.
    #[serde(with = "plain")]
    pub hypervisor: Reading<Name>,
    /// Whether it was run as root.
    pub root: bool,
    /// Nanoseconds for the first touch of a page, and for the first touch of the same memory by the next process: where the
    /// first is many times the second, the host gives memory back that nobody uses.
    #[serde(with = "plain")]
    pub first_touch: Reading<[f64; 2]>,
    /// When, as Unix time.
    pub unix_seconds: u64,
}

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name.
    pub name: Label,
    /// What it asks.
    pub question: Label,
    /// What should come out, and why.
    pub expectation: Label,
    /// Who measured what before.
    pub figures: Label,
    /// The sizes that it ran with.
    pub parameters: Vec<Parameter>,
    /// What it measures.
    pub quantities: Vec<Quantity>,
    /// Its conditions. The first is the baseline.
    pub arms: Vec<Arm>,
    /// What its values say.
    pub claims: Vec<Claim>,
    /// What its values look like.
    pub plots: Vec<Plot>,
    /// Why it was not run.
    pub skipped: Option<Absent>,
    /// The most by which two interleaved series of one condition differ here, as a share; where it measures time.
    pub noise: Option<f64>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The command that runs it again.
    pub rerun: Label,
}

/// A size that can be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: Label,
    /// What it was.
    pub value: u64,
    /// What it means.
    pub meaning: Label,
}

/// Something that is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantity {
    /// Its name.
    pub name: Label,
    /// Its unit.
    pub unit: Unit,
    /// What it is.
    pub meaning: Label,
}

/// A condition, and its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Its name.
    pub name: Label,
    /// Each in a process of its own.
    pub runs: Vec<Run>,
    /// Runs that failed: why.
    pub failures: Vec<Name>,
}

/// What one run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// By quantity.
    pub values: BTreeMap<Label, Measured>,
    /// Curves, by name.
    pub curves: BTreeMap<Label, Vec<(f64, f64)>>,
}

/// A value, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Measured(#[serde(with = "plain")] pub Reading<f64>);

/// Something that is said of the world, and what this machine says to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// What is said.
    pub text: Label,
    /// What was measured before, elsewhere.
    pub source: Label,
    /// What should be measured here.
    pub expected: Label,
    /// What was.
    pub measured: Label,
    /// What follows.
    pub verdict: Verdict,
    /// Why it cannot be told, or does not hold.
    pub why: Label,
}

/// What an experiment says of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds here.
    Agrees,
    /// Too little is known, or what there is does not decide it.
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
        /// How bars are laid out.
        scale: Scale,
    },
    /// The curves of this name, a line for each arm.
    Curves {
        /// The name.
        curve: Label,
        /// What goes to the right.
        x: (Label, Unit, Scale),
        /// What goes up.
        y: (Label, Unit, Scale),
    },
}

impl Experiment {
    /// The verdict on all claims of which anything was measured: the worst of them. [`Verdict::CannotTell`] where nothing
    /// was; `None` where it was skipped, or claims nothing.
    pub fn verdict(&self) -> Option<Verdict> {
        let measured = self.claims.iter().filter(|claim| !claim.measured.is_empty());
        let worst = measured.map(|claim| claim.verdict).max();
        worst.or_else(|| self.claims.first().map(|_| Verdict::CannotTell))
    }

    /// The runs of a condition.
    pub fn arm(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.name == name)
    }
}

impl Arm {
    /// The points of a curve, of each run that has it.
    pub fn curves(&self, curve: &str) -> Vec<&[(f64, f64)]> {
        self.runs.iter().filter_map(|run| run.curves.get(curve)).map(Vec::as_slice).collect()
    }

    /// All values of a quantity.
    pub fn values(&self, quantity: &str) -> Vec<f64> {
        let value = |run: &Run| run.values.get(quantity).and_then(|value| value.0.clone().ok());
        self.runs.iter().filter_map(value).collect()
    }
}

impl Verdict {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::CannotTell => "cannot tell",
            Verdict::Disagrees => "disagrees",
        }
    }
}

impl Claim {
    /// What belongs to it, each with its name: without what is empty.
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

    fn claim(verdict: Verdict, measured: &'static str) -> Claim {
        let text: fn(&'static str) -> Label = Label::from;
        let (source, why) = (text(""), text(""));
        Claim {
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
            |measured| claim(Verdict::Agrees, measured).details().collect::<Vec<_>>().len();
        assert_eq!((details("2"), details("")), (2, 2));
        let nothing = claim(Verdict::CannotTell, "");
        assert!(nothing.details().any(|row| row == ("measured", "nothing")));
    }

    #[test]
    fn what_was_not_measured_decides_nothing_but_where_it_is_all() {
        let verdict = |claims: Vec<Claim>| {
            let json = r#"{"name":"","question":"","expectation":"","figures":"","parameters":[],"quantities":[],
                "arms":[],"claims":[],"plots":[],"skipped":null,"noise":null,"took_ns":0,"rerun":""}"#;
            let experiment: Experiment = serde_json::from_str(json).unwrap();
            Experiment { claims, ..experiment }.verdict()
        };
        let absent = claim(Verdict::CannotTell, "");
        let holds = claim(Verdict::Agrees, "1");
        let open = claim(Verdict::CannotTell, "1");
        assert_eq!(verdict(vec![absent.clone(), holds.clone()]), Some(Verdict::Agrees));
        assert_eq!(verdict(vec![holds, open]), Some(Verdict::CannotTell));
        assert_eq!(verdict(vec![absent]), Some(Verdict::CannotTell));
        assert_eq!(verdict(vec![]), None);
    }
}
