//! The memory limit that a control group needs.

use pagewise_model::Bytes;

/// A limit 25 % above `needed`, and at least 50 % above the present limit, so that a cgroup that
/// barely fits also gains headroom.
pub(crate) fn raised_limit(limit: Bytes, needed: Bytes) -> Bytes {
    let half_more = limit.0.saturating_add(limit.0 / 2);
    Bytes(half_more.max(needed.0.saturating_add(needed.0 / 4)))
}
