//! Bounds of the number of series.

/// Bounds of the series of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesLimits {
    /// Number of series of a scrape: machine, groups, cgroups, findings and the exporter itself.
    pub max_series: usize,
    /// Number of groups; the others are summed as the group `other`.
    pub max_groups: usize,
    /// Number of cgroups.
    pub max_cgroups: usize,
}

impl Default for SeriesLimits {
    fn default() -> SeriesLimits {
        SeriesLimits { max_series: 10_000, max_groups: 100, max_cgroups: 200 }
    }
}

/// Series that are left until the limit, and those that did not fit.
#[derive(Debug)]
pub(crate) struct SeriesBudget {
    left: usize,
    /// Series that were left out.
    pub(crate) dropped: u64,
}

impl SeriesBudget {
    pub(crate) fn new(left: usize) -> SeriesBudget {
        SeriesBudget { left, dropped: 0 }
    }

    /// Takes `count` series and returns true if they fit and `is_within` is true; otherwise counts
    /// them as dropped.
    pub(crate) fn take(&mut self, count: usize, is_within: bool) -> bool {
        if is_within && count <= self.left {
            self.left -= count;
            return true;
        }
        self.dropped += count as u64;
        false
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }
}
