//! Conversions of counts and texts to cells.

use std::borrow::Cow;

use pagewise_model::Bytes;
use pagewise_model::report::CellValue;

/// Converts a count to a float. Above 2^53 the result is the nearest float.
#[expect(clippy::cast_precision_loss, reason = "reports show few digits")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Converts a float to a count: the integer part, and 0 for a negative number and for NaN.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

/// Converts a float to a number of bytes, as [`whole`] does.
pub(crate) fn whole_bytes(value: f64) -> Bytes {
    Bytes(whole(value))
}

/// Ratio of `part` to `whole`; `None` if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| float(part) / float(whole))
}

/// Ratio of `part` to `whole` as a cell, which is empty if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> CellValue {
    ratio(part, whole).map_or(CellValue::None, CellValue::Share)
}

/// Converts a text to a cell.
pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> CellValue {
    CellValue::text(text)
}
