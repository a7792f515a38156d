//! Causes: time lost in page faults, TLB shootdowns and memory system calls.

use super::CauseRow;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[];
