//! Causes: files that are mapped, and memory in files.

use super::CauseRow;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[];
