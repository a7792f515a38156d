//! Memory of a process by category, between two full snapshots.

use serde::{Deserialize, Serialize};

use super::{ProcessKey, SweepTime};
use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// Memory of a process by the use of its mappings: heap, stacks, libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategorySample {
    /// The sweep before it.
    pub time: SweepTime,
    /// The process.
    pub process: ProcessKey,
    /// The categories with resident memory or swap, the largest first.
    pub categories: Vec<CategoryBytes>,
}

/// Memory of one category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryBytes {
    /// Key of the kind of pool, such as `malloc_heap`.
    pub category: Name,
    /// Resident pages.
    #[serde(with = "plain")]
    pub rss: Reading<Bytes>,
    /// Their proportional share.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// Pages in swap.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
}
