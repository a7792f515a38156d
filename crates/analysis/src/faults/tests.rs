//! Reports of recordings whose sums are known.
