//! Sums by key in bounded memory: the smallest sums are merged into one, and the total stays exact.
//!
//! Whenever the limit is exceeded, the smaller half is discarded. A discarded key that occurs again
//! begins at 0, so its sum lacks the discarded amounts. Each time, the error of a sum grows by at
//! most the largest sum that is discarded at that time. A key whose sum is larger than the total of
//! these amounts cannot be missing.

use std::collections::HashMap;
use std::hash::Hash;

/// The largest sums that fit a limit.
#[derive(Debug)]
pub(crate) struct Heaviest<K> {
    kept: HashMap<K, u64>,
    /// Number of discarded keys. The field `largest` is the largest discarded sum.
    pub(crate) folded: u64,
    pub(crate) largest: u64,
}

impl<K: Copy + Eq + Hash + Ord> Heaviest<K> {
    /// Returns the sums that are kept within the limit, where each sum occupies a given size.
    pub(crate) fn from_sums(
        sums: HashMap<K, u64>,
        room: usize,
        takes: impl Fn(K) -> usize,
    ) -> Self {
        let mut order: Vec<(K, u64)> = sums.into_iter().collect();
        order.sort_unstable_by_key(|(key, sum)| (std::cmp::Reverse(*sum), *key));
        let (mut kept, mut left) = (HashMap::new(), room);
        let (mut folded, mut largest) = (0, 0);
        for (key, sum) in order {
            let bytes = takes(key);
            // After the first sum that does not fit, all smaller sums are discarded.
            if folded == 0 && bytes <= left {
                left -= bytes;
                kept.insert(key, sum);
            } else {
                folded += 1;
                largest = largest.max(sum);
            }
        }
        Heaviest { kept, folded, largest }
    }

    /// Returns true if the sum of the key is kept.
    pub(crate) fn has(&self, key: K) -> bool {
        self.kept.contains_key(&key)
    }
}

/// The sums of some values by key.
pub(crate) fn sums<K: Eq + Hash>(values: impl Iterator<Item = (K, u64)>) -> HashMap<K, u64> {
    let mut sums = HashMap::new();
    for (key, value) in values {
        let sum: &mut u64 = sums.entry(key).or_default();
        *sum = sum.saturating_add(value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with exact sums of the same values.
        #[test]
        fn no_sum_misses_more_than_its_error(
            values in prop::collection::vec((0_u32..60, 1_u64..9), 0..600),
        ) {
            const MAX_KEPT: usize = 8;
            let (mut kept, mut other, mut error) = (HashMap::<u32, u64>::new(), 0, 0);
            for (key, value) in &values {
                *kept.entry(*key).or_default() += value;
                if kept.len() > MAX_KEPT {
                    let heaviest = Heaviest::from_sums(kept.clone(), MAX_KEPT / 2, |_| 1);
                    error += heaviest.largest;
                    let before: u64 = kept.values().sum();
                    kept.retain(|key, _| heaviest.has(*key));
                    prop_assert_eq!(kept.len(), MAX_KEPT / 2);
                    other += before - kept.values().sum::<u64>();
                }
            }
            let exact = sums(values.iter().copied());
            prop_assert_eq!(kept.values().sum::<u64>() + other, exact.values().sum::<u64>());
            for (key, sum) in exact {
                let found = kept.get(&key).copied().unwrap_or(0);
                prop_assert!(found <= sum && sum - found <= error, "{key}: {found} of {sum}, {error}");
            }
        }
    }
}
