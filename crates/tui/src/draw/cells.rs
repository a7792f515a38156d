//! Values of the table as short texts.

use pagewise_model::Reading;
use pagewise_model::report::CellValue;
use pagewise_view::text;

use super::canvas::width;

/// A missing value. The reason is in the help and on the page of the process.
pub(super) const ABSENT: &str = "–";

/// The mark before a value of an earlier sweep, if the process has changed since.
pub(super) const OUTDATED: &str = "~";

/// Heights of a trend.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Divisor of the highest value: a change below this part is drawn lower than full height, so that
/// noise does not look like growth.
const FULL_HEIGHT_SHARE: u64 = 20;
/// The same for small processes, in bytes.
const FULL_HEIGHT_BYTES: u64 = 256 << 10;

/// A value, or the mark of a missing one.
pub(super) fn reading<T>(reading: &Reading<T>, cell: impl FnOnce(&T) -> String) -> String {
    reading.as_ref().map_or_else(|_| ABSENT.to_owned(), cell)
}

pub(super) fn bytes(bytes: u64) -> String {
    text::cell(&CellValue::Bytes(bytes))
}

pub(super) fn change(change: i64) -> String {
    text::cell(&CellValue::Change(change))
}

pub(super) fn share(share: f64) -> String {
    text::cell(&CellValue::Share(share))
}

/// A rate in at most seven columns. A rate above 0 is never drawn as 0.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        _ if !rate.is_finite() => "?".to_owned(),
        _ if rate <= 0.0 => "0".to_owned(),
        _ if rate < 0.05 => "<0.1".to_owned(),
        _ if rate < 99.95 => format!("{rate:.1}"),
        _ if rate < 999_999.5 => format!("{rate:.0}"),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

/// The age of an event, before its sentence.
pub(super) fn age(ns: u64) -> String {
    match ns / 1_000_000_000 {
        0 => "now: ".to_owned(),
        _ => format!("{} ago: ", duration(ns)),
    }
}

/// A duration in whole seconds, or minutes from one minute on.
pub(super) fn duration(ns: u64) -> String {
    match ns / 1_000_000_000 {
        seconds if seconds < 60 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

/// The last values of a series to scale, in `columns` characters.
pub(super) fn trend(values: &[Option<u64>], columns: usize) -> String {
    let picked = pick(values, columns);
    let known = || picked.iter().flatten().copied();
    let (Some(low), Some(high)) = (known().min(), known().max()) else {
        return String::new();
    };
    let span = (high - low).max(high / FULL_HEIGHT_SHARE).max(FULL_HEIGHT_BYTES);
    let height = |value: u64| {
        let step = u128::from(value - low) * 7 / u128::from(span);
        HEIGHTS[usize::try_from(step).unwrap_or(7).min(7)]
    };
    let missing = columns.saturating_sub(picked.len());
    let blanks = std::iter::repeat_n(' ', missing);
    blanks.chain(picked.iter().map(|value| value.map_or(' ', height))).collect()
}

/// At most `columns` values, at equal distances, the last one included.
fn pick(values: &[Option<u64>], columns: usize) -> Vec<Option<u64>> {
    if values.len() <= columns {
        return values.to_vec();
    }
    (1..=columns).map(|at| values[at * values.len() / columns - 1]).collect()
}

/// The end of a text that fits a number of columns.
pub(super) fn end_of(text: &str, room: u16) -> &str {
    let mut rest = text;
    while width(rest) > usize::from(room) {
        let mut letters = rest.chars();
        letters.next();
        rest = letters.as_str();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_has_its_last_value_at_the_right() {
        let mib = |n: u64| Some(n << 20);
        assert_eq!(trend(&[mib(1), mib(8)], 4), "  ▁█");
        assert_eq!(trend(&[mib(1), None, mib(8)], 3), "▁ █");
        let many: Vec<_> = (0..30).map(mib).collect();
        assert_eq!(trend(&many, 8).chars().count(), 8);
        assert!(trend(&many, 8).ends_with('█'));
        assert_eq!(trend(&[None, None], 4), "");
    }

    #[test]
    fn noise_is_flat() {
        let kib = |n: u64| Some(n << 10);
        assert_eq!(trend(&[kib(100_000), kib(100_004), kib(99_996)], 3), "▁▁▁");
    }

    #[test]
    fn rates_are_short_and_never_0_for_some() {
        let shown = [0.0, 0.01, 0.4, 99.9, 1234.5, 2e7].map(rate);
        assert_eq!(shown, ["0", "<0.1", "0.4", "99.9", "1234", "20M"]);
        assert_eq!(rate(f64::NAN), "?");
    }
}
