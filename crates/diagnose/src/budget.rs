//! CPU time and pauses that a diagnosis may cost.

use std::time::{Duration, Instant};

use pagewise_model::evidence::{Instrument, InstrumentRun};
use pagewise_model::units::nanoseconds;
use rustix::time::{ClockId, clock_gettime};

/// Bounds of the cost of a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum CPU time of pagewise.
    pub cpu: Duration,
    /// Maximum pause of the target.
    pub pause: Duration,
}

impl Budget {
    /// Returns the duration multiplied by the number of CPUs that are available to pagewise.
    pub fn whole(duration: Duration) -> Duration {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        duration.saturating_mul(u32::try_from(cpus).unwrap_or(u32::MAX))
    }
}

/// Measures the cost of instruments.
#[derive(Debug)]
pub(crate) struct CostMeter {
    budget: Budget,
    begin: Duration,
    runs: Vec<InstrumentRun>,
}

impl CostMeter {
    pub(crate) fn new(budget: Budget) -> CostMeter {
        CostMeter { budget, begin: cpu_time(), runs: Vec::new() }
    }

    /// CPU time that pagewise has used since the meter was created.
    pub(crate) fn spent(&self) -> Duration {
        cpu_time().saturating_sub(self.begin)
    }

    /// CPU time that remains in the budget.
    pub(crate) fn left(&self) -> Duration {
        self.budget.cpu.saturating_sub(self.spent())
    }

    /// Runs an instrument, and records its cost. `run` returns the result and the longest pause of
    /// the target.
    pub(crate) fn measure<T>(
        &mut self,
        instrument: Instrument,
        run: impl FnOnce() -> (T, Duration),
    ) -> T {
        let (began, cpu) = (Instant::now(), cpu_time());
        let (value, pause) = run();
        self.runs.push(InstrumentRun {
            instrument,
            took_ns: nanoseconds(began.elapsed()),
            cpu_ns: nanoseconds(cpu_time().saturating_sub(cpu)),
            pause_ns: nanoseconds(pause),
        });
        value
    }

    pub(crate) fn runs(&self) -> &[InstrumentRun] {
        &self.runs
    }
}

/// CPU time of all threads of pagewise.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
