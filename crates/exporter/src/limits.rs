//! Limits of the number of series.

/// Limits of the number of series in a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesLimits {
    /// Maximum number of series of a scrape: machine, groups, cgroups, findings and the exporter
    /// itself.
    pub max_series: usize,
    /// Maximum number of groups with series. The other groups are merged into the group `other`.
    pub max_groups: usize,
    /// Maximum number of cgroups with series.
    pub max_cgroups: usize,
}

impl Default for SeriesLimits {
    fn default() -> SeriesLimits {
        SeriesLimits { max_series: 10_000, max_groups: 100, max_cgroups: 200 }
    }
}

/// Number of series that are left until the limit, and number of series that did not fit.
#[derive(Debug)]
pub(crate) struct SeriesBudget {
    left: usize,
    /// Number of series that were omitted.
    pub(crate) dropped: u64,
}

impl SeriesBudget {
    pub(crate) fn new(left: usize) -> SeriesBudget {
        SeriesBudget { left, dropped: 0 }
    }

    /// Reserves `count` series and returns true if they fit and `is_within` is true. Otherwise
    /// counts them as dropped and returns false.
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
