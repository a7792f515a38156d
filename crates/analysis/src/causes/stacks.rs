//! Causes: stacks, and locked memory.

use super::CauseRow;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[];
