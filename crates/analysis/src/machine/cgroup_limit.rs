//! The memory limit that a control group needs.

use pagewise_model::Bytes;

/// A limit that has room for `needed` bytes, with a quarter to spare; at least half above the
/// present one, so that a cgroup that only fits barely gets room as well.
pub(crate) fn raised_limit(limit: Bytes, needed: Bytes) -> Bytes {
    let half_more = limit.0.saturating_add(limit.0 / 2);
    Bytes(half_more.max(needed.0.saturating_add(needed.0 / 4)))
}
