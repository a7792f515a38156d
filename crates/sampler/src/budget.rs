//! Budget of CPU time for reading the pages of processes.

use std::time::Duration;

use pagewise_sys::system;

/// Maximum time over which unspent CPU time accumulates.
const MAX_SAVED: Duration = Duration::from_secs(600);

/// Budget: a fraction (`share`) of one core's CPU time, which accumulates while it is not spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageBudget {
    share: f64,
    /// Available CPU time in seconds; negative after a reading that took longer than expected.
    balance: f64,
}

impl PageBudget {
    /// Creates a budget of `share`, with the CPU time `first` for the first sweep.
    pub(crate) fn new(share: f64, first: Duration) -> PageBudget {
        PageBudget { share, balance: first.as_secs_f64() }
    }

    /// Adds the CPU time that accumulated during the elapsed time `passed`.
    pub(crate) fn earn(&mut self, passed: Duration) {
        let most = (self.share * MAX_SAVED.as_secs_f64()).max(self.balance);
        self.balance = (self.balance + self.share * passed.as_secs_f64()).min(most);
    }

    /// Limits the balance to the CPU time that the share accumulates in [`MAX_SAVED`].
    pub(crate) fn forget_excess(&mut self) {
        self.balance = self.balance.min(self.share * MAX_SAVED.as_secs_f64());
    }

    /// Moves CPU time above the amount that accumulates in `kept` to another budget.
    pub(crate) fn share_surplus(&mut self, kept: Duration, other: &mut PageBudget) {
        let surplus = self.balance - self.share * kept.as_secs_f64();
        if surplus > 0.0 {
            self.balance -= surplus;
            let most = (self.share + other.share) * MAX_SAVED.as_secs_f64();
            other.balance = (other.balance + surplus).min(most.max(other.balance));
        }
    }

    /// True if a reading with this expected cost may begin.
    ///
    /// A reading that costs more than the maximum balance may begin when the balance is at its
    /// maximum.
    pub(crate) fn allows(&self, cost: Duration) -> bool {
        let most = self.share * MAX_SAVED.as_secs_f64();
        self.has_left() && self.balance >= cost.as_secs_f64().min(most)
    }

    /// True if CPU time is available.
    pub(crate) fn has_left(&self) -> bool {
        self.balance > 0.0
    }

    /// Subtracts the CPU time of a reading.
    pub(crate) fn spend(&mut self, cost: Duration) {
        self.balance -= cost.as_secs_f64();
    }

    /// Runs a reading and subtracts its CPU time. Returns the result and the CPU time.
    pub(crate) fn meter<T>(&mut self, read: impl FnOnce() -> T) -> (T, Duration) {
        let before = system::thread_cpu_time();
        let result = read();
        let cost = system::thread_cpu_time().saturating_sub(before);
        self.spend(cost);
        (result, cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_costly_reading_waits_until_enough_has_added_up() {
        let mut budget = PageBudget::new(0.01, Duration::ZERO);
        let cost = Duration::from_millis(100);
        for _ in 0..9 {
            budget.earn(Duration::from_secs(1));
            assert!(!budget.allows(cost));
        }
        budget.earn(Duration::from_millis(1100));
        assert!(budget.allows(cost));
        budget.spend(cost);
        assert!(!budget.allows(cost));
    }

    #[test]
    fn unused_cpu_time_goes_to_the_other_budget() {
        let kept = Duration::from_secs(10);
        let mut small = PageBudget::new(0.007, Duration::ZERO);
        let mut large = PageBudget::new(0.003, Duration::ZERO);
        small.earn(Duration::from_secs(5));
        small.share_surplus(kept, &mut large);
        assert!(!large.has_left(), "35 ms are kept");
        small.earn(Duration::from_secs(20));
        small.share_surplus(kept, &mut large);
        assert!(large.allows(Duration::from_millis(104)));
        assert!(
            small.allows(Duration::from_millis(69)) && !small.allows(Duration::from_millis(71))
        );
    }

    #[test]
    fn a_reading_larger_than_the_budget_is_not_put_off_for_ever() {
        let mut budget = PageBudget::new(0.01, Duration::ZERO);
        budget.earn(Duration::from_secs(601));
        assert!(budget.allows(Duration::from_secs(60)));
        budget.spend(Duration::from_secs(60));
        assert!(!budget.has_left());
    }
}
