//! Cells of counts and texts.

use std::borrow::Cow;

use pagewise_model::report::CellValue;

/// A count as a float: the nearest one above 2^53.
#[expect(clippy::cast_precision_loss, reason = "reports show few digits")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// `part` of `whole`, from 0 to 1; `None` of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| float(part) / float(whole))
}

/// `part` of `whole` as a cell, which is empty if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> CellValue {
    ratio(part, whole).map_or(CellValue::None, CellValue::Share)
}

/// A text as a cell.
pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> CellValue {
    CellValue::text(text)
}
