//! Optional policies of a pool of pages; a benchmark can switch each off.

/// Policies of a pool. Benchmarks with the feature `ablation` can choose others.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct PagesPolicy {
    /// Threads cache runs, and allocate them again without the lock.
    pub at_hand: bool,
    /// The pool samples the share of freed pages that are backed by memory. Otherwise it assumes
    /// that all are.
    pub looks: bool,
    /// Statistics do not list the pool, which is the system's source. Its threads have caches from
    /// the start.
    pub hidden: bool,
}

#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
impl PagesPolicy {
    /// With caches and samples, and listed by statistics.
    pub const ALL: PagesPolicy = PagesPolicy { at_hand: true, looks: true, hidden: false };
}
