//! The decision on a heap scan: it is the most expensive instrument.

use std::time::Duration;

use pagewise_model::evidence::ActivityPoint;
use pagewise_model::{Absent, Backing, Bytes, Sharing, Snapshot};

use crate::ScanBounds;

/// Smaller memory of the program's own is harmless.
const SMALL: Bytes = Bytes::mib(8);
/// From this size on, or with this growth, reachability matters.
const LARGE: Bytes = Bytes::mib(24);
const GROWTH: Bytes = Bytes(512 << 10);
/// CPU time of copy, walk, search of pointers and dominators for blocks of 1 KiB.
const CPU_PER_GIB: Duration = Duration::from_millis(1500);
/// Pause of a stopped process, with a reserve for the stop itself.
const PAUSE_PER_GIB: Duration = Duration::from_millis(150);
const PAUSE_OF_STOP: Duration = Duration::from_millis(1);

/// The bounds of a scan; `None` if reachability does not matter.
///
/// # Errors
/// The scan would exceed what is left of the budget.
pub(crate) fn decide(
    snapshot: &Snapshot,
    activity: &[ActivityPoint],
    cpu_left: Duration,
    pause: Duration,
) -> Result<Option<ScanBounds>, Absent> {
    let Ok(mappings) = &snapshot.mappings else { return Ok(None) };
    let is_own = |it: &&pagewise_model::Mapping| {
        it.prot.write && it.sharing == Sharing::Private && it.backing() == Backing::Anonymous
    };
    let private: Bytes = mappings.iter().filter(is_own).filter_map(|it| it.rss().ok()).sum();
    let size = |point: &ActivityPoint| point.anonymous.as_ref().map_or(0, |it| it.0);
    let growth = match activity {
        [first, .., last] => Bytes(size(last).saturating_sub(size(first))),
        _ => Bytes::ZERO,
    };
    if private < SMALL || private < LARGE && growth < GROWTH {
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
    Ok(Some(match stopped <= pause {
        true => ScanBounds::Stopped(pause),
        false => ScanBounds::Running(Bytes(private.0.saturating_mul(2))),
    }))
}
