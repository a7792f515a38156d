//! Memory of a process by category, for a recording. A category is a `PoolKind`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pagewise_model::sweep::CategoryBytes;
use pagewise_model::{Bytes, Reading, Snapshot};

use crate::pools::{self, PoolKind, PoolSums};
use crate::pss;

/// Returns the categories of a snapshot that have resident or swapped memory, the largest first.
///
/// # Errors
/// Returns [`pagewise_model::Absent`] if the mappings could not be read.
pub fn categories(snapshot: &Snapshot) -> Reading<Vec<CategoryBytes>> {
    let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
    let classified = pools::classify(snapshot);
    let shares = pss::shares(snapshot, mappings);
    let sums = pools::sums(&classified, mappings, &shares);
    let mut kinds: BTreeMap<PoolKind, PoolSums> = BTreeMap::new();
    for (pool, sums) in classified.list().iter().zip(&sums) {
        kinds.entry(pool.kind).or_insert(PoolSums::NONE).add(sums);
    }
    let category = |(kind, sums): (PoolKind, PoolSums)| CategoryBytes {
        category: kind.id().into(),
        rss: sums.resident.map(whole_kib),
        pss: sums.pss.map(whole_kib),
        swap: sums.swap.map(whole_kib),
    };
    let mut found: Vec<CategoryBytes> = kinds.into_iter().map(category).collect();
    let is_empty = |size: &Reading<Bytes>| *size == Ok(Bytes::ZERO);
    found.retain(|it| !(is_empty(&it.rss) && is_empty(&it.swap)));
    found.sort_by_key(|it| Reverse(it.rss.clone().unwrap_or_default()));
    Ok(found)
}

fn whole_kib(bytes: Bytes) -> Bytes {
    Bytes::kib(bytes.0 >> 10)
}
