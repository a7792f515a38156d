//! Causes of memory trouble: one shape for every conclusion that pagewise draws.

use crate::mapping::AddrRange;
use crate::report::{CellValue, Fact, Label};
use crate::traced::{Frame, SourcePosition};
use crate::{Bytes, Name, Pid};

/// A cause of trouble, with its evidence and its remedies.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The stable name of the row in the table of causes: `fragmented-heap`.
    pub id: &'static str,
    /// One sentence with the main figures.
    pub sentence: Vec<CellValue>,
    /// The object to change or to look at.
    pub object: CauseObject,
    /// Certainty of the conclusion.
    pub confidence: Confidence,
    /// Cost of the trouble, by which causes are ranked.
    pub cost: CauseCost,
    /// The values behind the sentence.
    pub evidence: Vec<Fact>,
    /// Remedy without a change of the program.
    pub now: Option<Remedy>,
    /// Remedy in the program's code.
    pub code: Option<Remedy>,
}

/// Object of a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CauseObject {
    /// A function of the process, with the line that acts.
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
    /// The function, if the object is one that has a name.
    pub fn function(&self) -> Option<&str> {
        match self {
            CauseObject::Function(frame) => frame.function.as_deref(),
            _ => None,
        }
    }

    /// The line of source code, if it is known.
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
    /// The evidence excludes every other explanation that the table knows.
    Certain,
    /// Other explanations are improbable. The command would decide.
    Likely(Label),
    /// The evidence allows other explanations. The command would decide.
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

    /// The command that would decide; `None` if the cause is certain.
    pub fn decided_by(&self) -> Option<&Label> {
        match self {
            Confidence::Certain => None,
            Confidence::Likely(command) | Confidence::Possible(command) => Some(command),
        }
    }

    /// Weight of the certainty in the rank of a cause.
    pub const fn weight(&self) -> f64 {
        match self {
            Confidence::Certain => 1.0,
            Confidence::Likely(_) => 0.8,
            Confidence::Possible(_) => 0.4,
        }
    }
}

/// Cost of a cause. The largest share ranks the cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CauseCost {
    /// Memory that the cause takes.
    pub bytes: Option<Bytes>,
    /// That memory as a share of the process's RES, or of the machine's memory.
    pub memory_share: f64,
    /// Share of the time of the process, or of one CPU, that the cause takes, from 0 to 1.
    pub time_share: f64,
    /// Danger for the process: 1 if it is about to fail, 0 if it is not at risk.
    pub risk: f64,
}

impl CauseCost {
    /// Memory that the cause takes, as a share of other memory.
    pub fn of_memory(bytes: Bytes, whole: Bytes) -> CauseCost {
        let memory_share = bytes.fraction_of(whole).unwrap_or(0.0).min(1.0);
        CauseCost { bytes: Some(bytes), memory_share, ..CauseCost::default() }
    }

    /// Share of time that the cause takes.
    pub fn of_time(time_share: f64) -> CauseCost {
        CauseCost { time_share: time_share.clamp(0.0, 1.0), ..CauseCost::default() }
    }

    /// Danger that the process fails.
    pub fn of_risk(risk: f64) -> CauseCost {
        CauseCost { risk: risk.clamp(0.0, 1.0), ..CauseCost::default() }
    }

    /// The largest of the shares.
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
    /// Effect in bytes or time, if it was estimated or tried; empty otherwise.
    pub effect: Vec<CellValue>,
    /// True if the change can be undone while the process runs; `None` for a change of code.
    pub reversible: Option<bool>,
}

/// Result of a rule for one cause.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The cause is present.
    Present(Box<Cause>),
    /// The evidence excludes the cause: one line with the figure.
    RuledOut(Vec<CellValue>),
    /// The evidence is not sufficient: the reason, and the command that would decide.
    Unknown(Label, Label),
    /// The cause cannot exist in a process of this kind, so it needs no line.
    NotApplicable,
}

impl From<Cause> for Verdict {
    fn from(cause: Cause) -> Verdict {
        Verdict::Present(Box::new(cause))
    }
}
