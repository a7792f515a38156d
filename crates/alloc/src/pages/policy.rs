//! What a pool of pages does beyond the least, each of which a benchmark can do without.

/// Policies. Without the feature `ablation` all are on.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Threads keep runs at hand, which they take again without the lock.
    pub at_hand: bool,
    /// The pool looks how much of what comes back is backed by memory. Else it takes all for backed.
    pub looks: bool,
}

#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
impl Policy {
    /// All on.
    pub const ALL: Policy = Policy { at_hand: true, looks: true };
}
