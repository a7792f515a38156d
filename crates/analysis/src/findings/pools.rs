//! Findings about pools of pagewise's allocators that hold much unused memory.

use pagewise_model::Bytes;
use pagewise_model::pagewise_pools::RegisteredPool;
use pagewise_model::report::{CellValue, Finding, Severity};

use super::{FindingRule, fact};
use crate::pagewise_pools::called;

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[FindingRule::Pool(idle)];

/// Minimum ratio of the footprint of a pool to its live bytes for a finding.
const IDLE_TIMES: u64 = 4;
/// Minimum footprint of a pool for a finding.
const IDLE_BYTES: Bytes = Bytes::mib(8);

/// A pool that holds much more than is allocated from it.
fn idle(pool: &RegisteredPool) -> Option<Finding> {
    let enough = Bytes(pool.live().0.saturating_mul(IDLE_TIMES)).max(IDLE_BYTES);
    if !pool.lives || pool.held < enough {
        return None;
    }
    let mut claim = called(pool);
    claim.extend([
        CellValue::text(" holds "),
        CellValue::Bytes(pool.held.0),
        CellValue::text(" for "),
        CellValue::Bytes(pool.live().0),
        CellValue::text(" that are out"),
    ]);
    Some(Finding {
        id: "idle-pool",
        severity: Severity::Note,
        claim,
        evidence: vec![
            fact("live", "live", CellValue::Bytes(pool.live().0), ""),
            fact("held", "held", CellValue::Bytes(pool.held.0), ""),
            fact("peak_live", "at most", CellValue::Bytes(pool.peak_live.0), ""),
        ],
        next_step: vec![CellValue::text(
            "if it will not soon be as full again, trim it: that releases its empty blocks",
        )],
    })
}
