//! Optional policies of a pool of pages; a benchmark can switch each off.

/// Policies of a pool. Benchmarks with the feature `ablation` can choose others.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct PagesPolicy {
    /// Threads cache freed runs, and allocate them again without the lock.
    pub at_hand: bool,
    /// The pool samples the share of freed pages that are backed by memory. Without this policy it
    /// assumes that all freed pages are backed.
    pub looks: bool,
    /// Policy of the pool in the source `Os`: statistics do not list the pool, and its threads have
    /// caches from the start.
    pub hidden: bool,
}

#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
impl PagesPolicy {
    /// Policies with caches and samples; statistics list the pool.
    pub const ALL: PagesPolicy = PagesPolicy { at_hand: true, looks: true, hidden: false };
}
