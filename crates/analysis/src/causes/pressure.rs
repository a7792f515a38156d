//! Causes: too little memory for the process, its cgroup or the machine.

use super::CauseRow;

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[];
