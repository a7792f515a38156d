//! The decision on a heap scan: it is the most expensive instrument.

use std::time::Duration;

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::{Absent, Bytes, Snapshot};
use pagewise_scan::sample::is_private_memory;

use crate::ScanBounds;

/// From this size on, or with this growth, reachability matters.
const LARGE: Bytes = Bytes::mib(24);
const GROWTH: Bytes = Bytes(256 << 10);
/// CPU time of copy, walk, search of pointers and dominators for blocks of 1 KiB.
const CPU_PER_GIB: Duration = Duration::from_millis(1500);
/// Pause of a stopped process, with a reserve for the stop itself.
const PAUSE_PER_GIB: Duration = Duration::from_millis(150);
const PAUSE_OF_STOP: Duration = Duration::from_millis(1);

/// The bounds of a scan, and those of another if the first fails; `None` if reachability does not
/// matter.
///
/// # Errors
/// The scan would exceed what is left of the budget.
pub(crate) fn decide(
    snapshot: &Snapshot,
    activity: &[ActivityPoint],
    cpu_left: Duration,
    pause: Duration,
) -> Result<Option<(ScanBounds, Option<ScanBounds>)>, Absent> {
    let Ok(mappings) = &snapshot.mappings else { return Ok(None) };
    let own = mappings.iter().filter(|it| is_private_memory(it));
    let private: Bytes = own.filter_map(|it| it.rss().ok()).sum();
    let growth = match activity {
        [first, .., last] => {
            let ends = last.anonymous.as_ref().ok().zip(first.anonymous.as_ref().ok());
            ends.map(|(after, before)| after.saturating_sub(*before))
        }
        _ => None,
    };
    if private < LARGE && growth.is_none_or(|growth| growth < GROWTH) {
        return Ok(None);
    }
    let gib = private.fraction_of(Bytes::gib(1)).unwrap_or(0.0);
    if CPU_PER_GIB.mul_f64(gib) > cpu_left {
        let why = format!(
            "a heap scan of {} MiB needs about {} ms of CPU time, and the budget has {} ms left",
            private.0 >> 20,
            CPU_PER_GIB.mul_f64(gib).as_millis(),
            cpu_left.as_millis()
        );
        return Err(Absent::NotCollected(why.into()));
    }
    let stopped = PAUSE_OF_STOP + PAUSE_PER_GIB.mul_f64(gib);
    let running = ScanBounds::Running(Bytes(private.0.saturating_mul(2)));
    Ok(Some(match stopped <= pause {
        // A machine that is slow now may need a longer pause.
        true => (ScanBounds::Stopped(pause), Some(running)),
        false => (running, None),
    }))
}
