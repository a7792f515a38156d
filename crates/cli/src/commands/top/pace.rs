//! The time between sweeps (readings of all processes), chosen so that sweeps stay within the CPU
//! budget.

use std::time::Duration;

use super::sampling::PAGE_SHARE;

/// Maximum share of the CPU time of one core for up to [`FEW_PROCESSES`] processes.
const SHARE: f64 = 0.01;
/// Number of processes above which the share grows with the number of processes.
const FEW_PROCESSES: f64 = 300.0;
/// Maximum share of the CPU time of one core for any number of processes.
const MAX_SHARE: f64 = 0.03;
/// Maximum interval of sweeps, also on a slow machine.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Weight of the cost of the last sweep in the average cost.
const WEIGHT: f64 = 0.3;
/// The interval becomes shorter only if the new interval is below this share of the last one.
const TOLERANCE: f64 = 0.8;

/// CPU time of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepCpu {
    /// CPU time for reading the pages of processes. This reading has a budget of its own: the share
    /// [`PAGE_SHARE`] of the interval. A sweep may use more if earlier sweeps used less, so at most
    /// this share counts.
    pub(super) pages: Duration,
    /// CPU time for everything else, including the table and its frame.
    pub(super) others: Duration,
}

/// Chooses the interval from the cost of the last sweeps.
#[derive(Debug)]
pub(super) struct SweepPace {
    wanted: Duration,
    actual: Duration,
    /// Average CPU time of a sweep, including its table and its frame, in seconds. The first sweep,
    /// which reads everything, does not count.
    cost: Option<f64>,
    sweeps: u64,
}

impl SweepPace {
    pub(super) fn new(wanted: Duration) -> SweepPace {
        SweepPace { wanted, actual: wanted, cost: None, sweeps: 0 }
    }

    /// Changes the interval that the user wants.
    pub(super) fn want(&mut self, wanted: Duration) {
        self.wanted = wanted;
        self.actual = self.fitting(0.0).unwrap_or(wanted);
    }

    pub(super) const fn interval(&self) -> Duration {
        self.actual
    }

    /// Counts the cost of a sweep; returns the new interval if it changes.
    pub(super) fn count(&mut self, cpu: SweepCpu, processes: usize) -> Option<Duration> {
        self.sweeps += 1;
        if self.sweeps == 1 {
            return None;
        }
        let pages = PAGE_SHARE * self.actual.as_secs_f64();
        let cpu = cpu.others.as_secs_f64() + cpu.pages.as_secs_f64().min(pages);
        self.cost = Some(self.cost.map_or(cpu, |cost| cost + (cpu - cost) * WEIGHT));
        #[expect(clippy::cast_precision_loss, reason = "the number of processes is below 2^22")]
        let fitting = self.fitting(processes as f64)?;
        let (now, before) = (fitting.as_secs_f64(), self.actual.as_secs_f64());
        if now > before || now < before * TOLERANCE || fitting == self.wanted {
            let is_new = fitting != self.actual;
            self.actual = fitting;
            return is_new.then_some(fitting);
        }
        None
    }

    fn fitting(&self, processes: f64) -> Option<Duration> {
        let share = (SHARE * processes / FEW_PROCESSES).clamp(SHARE, MAX_SHARE);
        let least = Duration::from_secs_f64((self.cost? / share).min(MAX_INTERVAL.as_secs_f64()));
        // The view shows the interval in tenths of a second.
        let tenths = u64::try_from(least.as_millis().div_ceil(100)).unwrap_or(u64::MAX);
        Some(Duration::from_millis(tenths.saturating_mul(100)).max(self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(pages: u64, others: u64) -> SweepCpu {
        SweepCpu { pages: Duration::from_millis(pages), others: Duration::from_millis(others) }
    }

    #[test]
    fn a_cheap_sweep_keeps_the_interval() {
        let mut pace = SweepPace::new(Duration::from_secs(1));
        for _ in 0..9 {
            assert_eq!(pace.count(cpu(900, 6), 300), None);
        }
        assert_eq!(pace.interval(), Duration::from_secs(1));
    }

    #[test]
    fn an_expensive_sweep_makes_the_interval_longer_and_a_cheap_one_shorter() {
        let mut pace = SweepPace::new(Duration::from_secs(1));
        pace.count(cpu(0, 9000), 300);
        assert_eq!(pace.interval(), Duration::from_secs(1), "the first sweep does not count");
        let longer = pace.count(cpu(0, 40), 300);
        assert_eq!(longer, Some(Duration::from_secs(4)));
        for _ in 0..30 {
            pace.count(cpu(0, 5), 300);
        }
        assert_eq!(pace.interval(), Duration::from_secs(1));
    }

    #[test]
    fn many_processes_may_take_three_percent() {
        let mut pace = SweepPace::new(Duration::from_secs(1));
        pace.count(cpu(0, 0), 3000);
        assert_eq!(pace.count(cpu(0, 60), 3000), Some(Duration::from_secs(2)));
    }
}
