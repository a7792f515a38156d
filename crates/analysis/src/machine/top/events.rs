//! The events of the last minutes before a sweep.

use pagewise_model::top::TopEvent;

use super::TopHistory;
use crate::sweeps::events::sentence;

/// Maximum age of shown events, in nanoseconds.
const MAX_AGE_NS: u64 = 600_000_000_000;

/// Returns the events of the last [`MAX_AGE_NS`] nanoseconds before `now_ns` (a time since boot),
/// the oldest first.
pub(super) fn of_history(history: &TopHistory, now_ns: u64) -> Vec<TopEvent> {
    let events = history.events().map(|event| TopEvent {
        age_ns: now_ns.saturating_sub(event.time.boot_ns),
        sentence: sentence(&event.event),
    });
    events.filter(|event| event.age_ns <= MAX_AGE_NS).collect()
}
