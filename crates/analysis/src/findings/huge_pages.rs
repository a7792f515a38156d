//! Memory that is resident only because it is in huge pages.

use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{Reading, Snapshot};

use super::{FindingRule, fact};
use crate::thp::table::ThpRows;
use crate::thp::{MUCH, NOTABLE, SPARSE, ZeroEstimate};

/// The rules, in the order of their reports.
pub(super) const RULES: &[FindingRule] = &[FindingRule::HugePages(bloat)];

/// Huge pages with much zero-filled memory.
fn bloat(
    snapshot: &Snapshot,
    rows: &ThpRows<'_>,
    bloat: &Reading<ZeroEstimate>,
) -> Option<Finding> {
    let bloat = bloat.as_ref().ok()?;
    let share = bloat.bytes.fraction_of(rows.huge())?;
    if bloat.low < MUCH || share < NOTABLE {
        return None;
    }
    let (worst, wasted) = rows.worst()?;
    let pid = snapshot.process.pid;
    Some(Finding {
        id: "huge-page-bloat",
        severity: if share >= SPARSE { Severity::Warning } else { Severity::Note },
        claim: vec![
            CellValue::Bytes(bloat.bytes.0),
            CellValue::text(
                " is resident only because it lies in huge pages beside something that is used.",
            ),
        ],
        evidence: vec![
            fact("bloat", "bloat", CellValue::Bytes(bloat.bytes.0), ""),
            fact("huge", "huge", CellValue::Bytes(rows.huge().0), ""),
            fact("share", "share", CellValue::Share(share), ""),
            fact("worst", "most of it in", CellValue::Name(worst), ""),
            fact("worst_bloat", "that is", CellValue::Bytes(wasted.0), ""),
        ],
        next_step: vec![CellValue::text(format!(
            "`pagewise thp {pid} --fix` says what can be given back now; add --yes to do it, and --hold to keep it so. \
             For good: {}; or start it with `pagewise run --thp=never -- COMMAND`.",
            rows.remedy()
        ))],
    })
}
