//! Ending of a process that a call of [`pagewise_sys`] waited for.

use pagewise_model::ending::ProgramEnding;
use pagewise_sys::trace::TraceEnding;

/// Converts the ending of a process that was waited for to the model's type.
pub const fn program_ending(ending: TraceEnding) -> ProgramEnding {
    match ending {
        TraceEnding::Exited(status) => ProgramEnding::Exited(status),
        TraceEnding::Killed { signal, .. } => ProgramEnding::Killed(signal),
    }
}
