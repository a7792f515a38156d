//! The events of the last minutes.

use pagewise_model::top::TopEvent;

use super::TopHistory;
use crate::sweeps::events::sentence;

/// Events that are older are not shown.
const MAX_AGE_NS: u64 = 600_000_000_000;

/// The events of the last minutes before a time since boot, oldest first.
pub(super) fn of_history(history: &TopHistory, now_ns: u64) -> Vec<TopEvent> {
    let events = history.events().map(|event| TopEvent {
        age_ns: now_ns.saturating_sub(event.time.boot_ns),
        sentence: sentence(&event.event),
    });
    events.filter(|event| event.age_ns <= MAX_AGE_NS).collect()
}
