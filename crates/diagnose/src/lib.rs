//! Evidence for the diagnosis of a process. Instruments, such as a snapshot, a heap scan or a
//! recording, collect the evidence within a budget of CPU time and pauses. The cheapest instrument
//! runs first. Each later instrument runs only if the results of cheaper instruments make it worth
//! its cost. The crate draws no conclusions.
//!
//! ```text
//!  begin    snapshot with a heap sample, machine, cgroup, other processes
//!  watch    counters four times a second; recordings that their rates make worthwhile
//!  end      stacks, huge pages, second snapshot, heap scan
//! ```
#![forbid(unsafe_code)]

mod budget;
mod collector;
mod observation;
mod recordings;
mod scan;
mod stack_words;
mod stacks;
mod steps;

use std::time::{Duration, Instant};

use pagewise_model::evidence::{AllocationProfile, Evidence, Instrument};
use pagewise_model::heap_scan::HeapScan;
use pagewise_model::{Bytes, Pid, Reading};
use pagewise_proc::{ProcError, ProcRoot};

pub use budget::Budget;
pub use observation::{MachineObservation, ObservationRequest};

/// Parameters of a diagnosis.
#[expect(missing_debug_implementations, reason = "it holds functions")]
pub struct DiagnosisRequest<'a> {
    /// Duration of the observation.
    pub duration: Duration,
    /// Maximum CPU time of pagewise, and maximum pause of the target.
    pub budget: Budget,
    /// Scans the heap within bounds, including the reachability of its blocks.
    pub scan: &'a dyn Fn(ScanBounds) -> Reading<HeapScan>,
    /// Records allocations for a duration with a recorder that is loaded into the process. Also
    /// returns the longest pause of the process.
    pub record: &'a dyn Fn(Duration) -> (Reading<AllocationProfile>, Duration),
    /// Permission to load the recorder into the process.
    pub recorder: RecorderConsent<'a>,
    /// Called when an instrument begins.
    pub progress: &'a dyn Fn(Instrument),
    /// True if the diagnosis must end now.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Permission of the user to load a recorder into the process.
#[expect(missing_debug_implementations, reason = "it holds a function")]
#[derive(Clone, Copy)]
pub enum RecorderConsent<'a> {
    /// The user has given permission.
    Given,
    /// The user refuses permission, or cannot be asked.
    Refused,
    /// The function asks the user. It is called only if the private memory grows by much, and other
    /// instruments did not find the function that allocates.
    Asked(&'a dyn Fn() -> bool),
}

/// Bounds of a heap scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanBounds {
    /// The process is stopped for at most this duration.
    Stopped(Duration),
    /// The process runs on; at most this number of bytes is copied.
    Running(Bytes),
}

/// Collects evidence about a process.
///
/// # Errors
/// As [`pagewise_proc::capture::capture`]: the process cannot be read.
pub fn collect(
    root: &ProcRoot,
    pid: Pid,
    request: &DiagnosisRequest<'_>,
) -> Result<Evidence, ProcError> {
    steps::Diagnosis::begin(root, pid, request, Instant::now())?.finish()
}
