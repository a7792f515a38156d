//! Pools of an address map in the order of the legend. A pool is a group of mappings with the same
//! use, such as heaps or stacks.

use std::collections::HashMap;

use pagewise_model::report::AddressMap;

/// Pools of an address map by size, largest first. The index of a pool selects its color and its
/// pattern.
#[derive(Clone, Debug)]
pub(crate) struct Palette {
    /// IDs of the pools.
    pub(crate) pools: Vec<&'static str>,
    places: HashMap<&'static str, usize>,
}

impl Palette {
    /// Creates the palette of an address map.
    pub(crate) fn for_map(map: &AddressMap) -> Palette {
        let mut spans: HashMap<&'static str, u64> = HashMap::new();
        for cell in map.clusters.iter().flat_map(|cluster| &cluster.cells) {
            let span = spans.entry(cell.pool).or_default();
            *span = span.saturating_add(cell.range.len().0);
        }
        let mut pools: Vec<&'static str> = spans.keys().copied().collect();
        pools.sort_by_key(|pool| (std::cmp::Reverse(spans[pool]), *pool));
        let places = pools.iter().enumerate().map(|(place, pool)| (*pool, place)).collect();
        Palette { pools, places }
    }

    /// Index of a pool.
    pub(crate) fn place(&self, pool: &str) -> usize {
        self.places.get(pool).copied().unwrap_or(0)
    }
}
