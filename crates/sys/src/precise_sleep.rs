//! Precise short sleeps: by default, a thread's timers may fire 50 µs late (timer slack).

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::thread::{current_timer_slack, set_current_timer_slack};

/// While this value exists, the thread that made it sleeps with a timer slack of 1 ns.
///
/// Dropping it restores the thread's timer slack.
#[derive(Debug)]
pub struct PreciseRests {
    slack_before: Option<NonZeroU64>,
    /// The slack belongs to a thread, so the value must stay on it.
    _on_this_thread: std::marker::PhantomData<*const ()>,
}

impl PreciseRests {
    /// Sets this thread's timer slack to 1 ns. If that is refused, sleeps only last longer.
    pub fn start() -> PreciseRests {
        let slack_before = current_timer_slack().ok().and_then(NonZeroU64::new);
        if slack_before.is_some() {
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        PreciseRests { slack_before, _on_this_thread: std::marker::PhantomData }
    }

    /// Sleeps.
    pub fn rest(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl Drop for PreciseRests {
    fn drop(&mut self) {
        if self.slack_before.is_some() {
            let _ = set_current_timer_slack(self.slack_before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_slack_is_put_back() {
        let before = current_timer_slack().unwrap();
        let rests = PreciseRests::start();
        assert_eq!(current_timer_slack().unwrap(), 1);
        drop(rests);
        assert_eq!(current_timer_slack().unwrap(), before);
    }
}
