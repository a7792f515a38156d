//! Optional policies of a pool of pages; a benchmark can switch each off.

/// Policies. Without the feature `ablation` all are on.
#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
#[derive(Clone, Copy, Debug)]
pub struct PagesPolicy {
    /// Threads cache runs, and allocate them again without the lock.
    pub at_hand: bool,
    /// The pool looks how much of what comes back is backed by memory. Else it takes all for
    /// backed.
    pub looks: bool,
    /// The pool is not among those that statistics name: it is the system's source. Its threads
    /// have caches from the start.
    pub hidden: bool,
}

#[cfg_attr(not(feature = "ablation"), expect(unreachable_pub, reason = "public for benchmarks"))]
impl PagesPolicy {
    /// All on.
    pub const ALL: PagesPolicy = PagesPolicy { at_hand: true, looks: true, hidden: false };
}
