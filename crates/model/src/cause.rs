//! Causes of memory problems. A diagnosis of pagewise reports each conclusion as a [`Cause`]. The
//! table of causes lists all causes that pagewise can find.

use crate::mapping::AddrRange;
use crate::report::{CellValue, Fact, Label};
use crate::traced::{Frame, SourcePosition};
use crate::{Bytes, Name, Pid};

/// A cause of a memory problem, with its evidence and its remedies.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Stable ID of the cause in the table of causes: `fragmented-heap`.
    pub id: &'static str,
    /// One sentence with the main figures.
    pub sentence: Vec<CellValue>,
    /// The object to change or to examine.
    pub object: CauseObject,
    /// Certainty of the conclusion.
    pub confidence: Confidence,
    /// Cost of the problem, which determines the rank of the cause.
    pub cost: CauseCost,
    /// The values from which the conclusion follows.
    pub evidence: Vec<Fact>,
    /// Remedy without a change of the program.
    pub now: Option<Remedy>,
    /// Remedy in the program's code.
    pub code: Option<Remedy>,
}

/// Object of a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CauseObject {
    /// A function of the process, with its source line.
    Function(Frame),
    /// A thread.
    Thread(Pid, Name),
    /// A mapping; the name may be empty.
    Mapping(AddrRange, Name),
    /// A variable, and the program or library that defines it.
    Variable(Name, Option<Name>),
    /// A control group, by its path.
    Cgroup(Name),
    /// A kernel setting, an environment variable, or a resource limit.
    Setting(Label),
    /// A file.
    File(Name),
    /// A process.
    Process(Pid, Name),
    /// The heap of an allocator or of a language runtime.
    Heap(Label),
    /// The machine as a whole.
    Machine,
}

impl CauseObject {
    /// Name of the function; `None` if the object is not a function or has no name.
    pub fn function(&self) -> Option<&str> {
        match self {
            CauseObject::Function(frame) => frame.function.as_deref(),
            _ => None,
        }
    }

    /// Source line of the function; `None` if it is unknown.
    pub fn line(&self) -> Option<&SourcePosition> {
        match self {
            CauseObject::Function(frame) => frame.line.as_ref(),
            _ => None,
        }
    }
}

/// Certainty of a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// The evidence excludes every other explanation in the table of causes.
    Certain,
    /// Other explanations are improbable. The value is the command that would decide between them.
    Likely(Label),
    /// The evidence allows other explanations. The value is the command that would decide between
    /// them.
    Possible(Label),
}

impl Confidence {
    /// The name in JSON and in reports.
    pub const fn key(&self) -> &'static str {
        match self {
            Confidence::Certain => "certain",
            Confidence::Likely(_) => "likely",
            Confidence::Possible(_) => "possible",
        }
    }

    /// The command that would decide between the explanations; `None` if the cause is certain.
    pub fn decided_by(&self) -> Option<&Label> {
        match self {
            Confidence::Certain => None,
            Confidence::Likely(command) | Confidence::Possible(command) => Some(command),
        }
    }

    /// Factor by which the certainty multiplies the rank of a cause.
    pub const fn weight(&self) -> f64 {
        match self {
            Confidence::Certain => 1.0,
            Confidence::Likely(_) => 0.8,
            Confidence::Possible(_) => 0.4,
        }
    }
}

/// Cost of a cause. The largest of `memory_share`, `time_share` and `risk` ranks the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CauseCost {
    /// Memory that the cause takes.
    pub bytes: Option<Bytes>,
    /// `bytes` as a share of the process's RES or of the machine's memory, from 0 to 1.
    pub memory_share: f64,
    /// Share of the time of the process, or of one CPU, that the cause takes, from 0 to 1.
    pub time_share: f64,
    /// Risk that the process fails: 1 if a failure is imminent, 0 without a risk.
    pub risk: f64,
}

impl CauseCost {
    /// Cost of a cause that takes `bytes` of a total of `whole`.
    pub fn of_memory(bytes: Bytes, whole: Bytes) -> CauseCost {
        let memory_share = bytes.fraction_of(whole).unwrap_or(0.0).min(1.0);
        CauseCost { bytes: Some(bytes), memory_share, ..CauseCost::default() }
    }

    /// Cost of a cause that takes this share of time.
    pub fn of_time(time_share: f64) -> CauseCost {
        CauseCost { time_share: time_share.clamp(0.0, 1.0), ..CauseCost::default() }
    }

    /// Cost of a cause that puts the process at this risk.
    pub fn of_risk(risk: f64) -> CauseCost {
        CauseCost { risk: risk.clamp(0.0, 1.0), ..CauseCost::default() }
    }

    /// The largest of `memory_share`, `time_share` and `risk`.
    pub fn rank(&self) -> f64 {
        self.memory_share.max(self.time_share).max(self.risk)
    }
}

/// A change that removes a cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// The change, in the imperative.
    pub change: Vec<CellValue>,
    /// The exact command; empty for a change of code.
    pub command: Label,
    /// Effect in bytes or time, estimated or measured; empty if it is unknown.
    pub effect: Vec<CellValue>,
    /// True if the change can be undone while the process runs; `None` for a change of code.
    pub reversible: Option<bool>,
}

/// Result of the rule that tests for one cause.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The cause is present.
    Present(Box<Cause>),
    /// The evidence excludes the cause. The value is one line of text with the deciding number.
    RuledOut(Vec<CellValue>),
    /// The evidence is not sufficient. The values are the reason, and the command that would
    /// decide.
    Unknown(Label, Label),
    /// The cause cannot exist in a process of this kind, so reports omit it.
    NotApplicable,
}

impl From<Cause> for Verdict {
    fn from(cause: Cause) -> Verdict {
        Verdict::Present(Box::new(cause))
    }
}
