//! CPU time that sweeps may spend on reading pages.

use std::time::Duration;

use pagewise_sys::system;

/// Longest time over which unspent CPU time adds up.
const MAX_SAVED: Duration = Duration::from_secs(600);

/// A share of the CPU time of one core that adds up while it is not spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageBudget {
    share: f64,
    /// Seconds; negative after a reading that took longer than expected.
    balance: f64,
}

impl PageBudget {
    /// A budget with CPU time for the first sweep.
    pub(crate) fn new(share: f64, first: Duration) -> PageBudget {
        PageBudget { share, balance: first.as_secs_f64() }
    }

    /// Adds the CPU time of the time that has passed.
    pub(crate) fn earn(&mut self, passed: Duration) {
        let most = (self.share * MAX_SAVED.as_secs_f64()).max(self.balance);
        self.balance = (self.balance + self.share * passed.as_secs_f64()).min(most);
    }

    /// Forgets CPU time that the share alone would never add up to.
    pub(crate) fn forget_excess(&mut self) {
        self.balance = self.balance.min(self.share * MAX_SAVED.as_secs_f64());
    }

    /// Hands CPU time that has added up for longer than `kept` to another budget.
    pub(crate) fn share_surplus(&mut self, kept: Duration, other: &mut PageBudget) {
        let surplus = self.balance - self.share * kept.as_secs_f64();
        if surplus > 0.0 {
            self.balance -= surplus;
            let most = (self.share + other.share) * MAX_SAVED.as_secs_f64();
            other.balance = (other.balance + surplus).min(most.max(other.balance));
        }
    }

    /// True if a reading of this cost may begin.
    ///
    /// A reading that costs more than the maximum balance may begin at the maximum balance.
    pub(crate) fn allows(&self, cost: Duration) -> bool {
        let most = self.share * MAX_SAVED.as_secs_f64();
        self.has_left() && self.balance >= cost.as_secs_f64().min(most)
    }

    /// True if anything is left.
    pub(crate) fn has_left(&self) -> bool {
        self.balance > 0.0
    }

    /// Subtracts the cost of a reading.
    pub(crate) fn spend(&mut self, cost: Duration) {
        self.balance -= cost.as_secs_f64();
    }

    /// Runs a reading and subtracts its CPU time, which it returns too.
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
