//! Causes: a process that is near a limit.

use super::CauseRow;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[];
