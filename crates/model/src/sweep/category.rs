//! Memory of a process by category, which the recorder (`pagewise record`) reads between two
//! sweeps.

use serde::{Deserialize, Serialize};

use super::{ProcessKey, SweepTime};
use crate::reading::plain;
use crate::{Bytes, Name, Reading};

/// Memory of a process by category: heap, stacks, libraries and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategorySample {
    /// Time of the sweep before the sample.
    pub time: SweepTime,
    /// Identity of the process.
    pub process: ProcessKey,
    /// The categories that have resident memory or swap, largest first.
    pub categories: Vec<CategoryBytes>,
}

/// Memory of one category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryBytes {
    /// Key of the category, such as `malloc_heap`.
    pub category: Name,
    /// Resident bytes.
    #[serde(with = "plain")]
    pub rss: Reading<Bytes>,
    /// Proportional share of the resident bytes.
    #[serde(with = "plain")]
    pub pss: Reading<Bytes>,
    /// Swapped bytes.
    #[serde(with = "plain")]
    pub swap: Reading<Bytes>,
}
