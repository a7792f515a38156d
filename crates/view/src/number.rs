//! Numbers for people and programs, written right-aligned into a field of bytes.
//!
//! Writing from the right needs neither the length beforehand nor an allocation, which keeps tables
//! of two million cells fast.

/// Format of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// At most five characters, with a suffix for powers of 1024: `512`, `4.0K`, `781M`, `16.0T`.
    #[default]
    Human,
    /// Whole KiB, rounded down, like `/proc`.
    KiB,
    /// Bytes.
    Bytes,
}

impl Units {
    /// Name of the unit; `None` if each number has its own suffix.
    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Units::Human => None,
            Units::KiB => Some("KiB"),
            Units::Bytes => Some("bytes"),
        }
    }
}

/// Maximum number of bytes that a function of this module writes into a field:
/// `18446744073709551615`.
pub(crate) const ROOM: usize = 20;

/// The pairs of digits `00`, `01` .. `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut n = 0;
    while n < 100 {
        // Both digits are below 10, so the cast does not truncate.
        pairs[n as usize] = [b'0' + n / 10, b'0' + n % 10];
        n += 1;
    }
    pairs
};

/// Writes `n` in decimal at the end of `field`, and returns the number of written bytes.
///
/// # Panics
/// Panics if `field` is too short; [`ROOM`] bytes are always enough.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a remainder by 100 fits any integer")]
pub(crate) fn decimal(field: &mut [u8], mut n: u64) -> usize {
    let mut at = field.len();
    while n >= 100 {
        at -= 2;
        field[at..at + 2].copy_from_slice(&PAIRS[(n % 100) as usize]);
        n /= 100;
    }
    if n >= 10 {
        at -= 2;
        field[at..at + 2].copy_from_slice(&PAIRS[n as usize]);
    } else {
        at -= 1;
        field[at] = b'0' + n as u8;
    }
    field.len() - at
}

/// Number of bytes that [`decimal`] writes.
pub(crate) fn decimal_width(n: u64) -> usize {
    n.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Writes `n` in lower-case hex without a prefix, like `/proc/<pid>/maps`, at the end of `field`.
/// Returns the number of written bytes.
#[inline]
pub(crate) fn hex(field: &mut [u8], mut n: u64) -> usize {
    let mut at = field.len();
    loop {
        at -= 1;
        field[at] = b"0123456789abcdef"[(n & 15) as usize];
        n >>= 4;
        if n == 0 {
            return field.len() - at;
        }
    }
}

/// Number of bytes that [`hex`] writes.
pub(crate) fn hex_width(n: u64) -> usize {
    n.checked_ilog2().unwrap_or(0) as usize / 4 + 1
}

/// Writes a size in `units` at the end of `field`, and returns the number of written bytes.
#[inline]
pub(crate) fn size(field: &mut [u8], bytes: u64, units: Units) -> usize {
    match units {
        Units::Human => human(field, bytes),
        Units::KiB => decimal(field, bytes >> 10),
        Units::Bytes => decimal(field, bytes),
    }
}

/// Number of bytes that [`size`] writes.
pub(crate) fn size_width(bytes: u64, units: Units) -> usize {
    match units {
        Units::Human => human(&mut [0; ROOM], bytes),
        Units::KiB => decimal_width(bytes >> 10),
        Units::Bytes => decimal_width(bytes),
    }
}

/// Maximum of [`size_width`] for [`Units::Human`]: `12.3K`, `1023M`.
pub(crate) const WIDEST_HUMAN: usize = 5;

/// Suffixes of the powers of 1024, from the first power on.
const POWERS: &[u8; 6] = b"KMGTPE";

/// Writes a size with a suffix at the end of `field`, and returns the number of written bytes. It
/// is rounded half up, to one decimal below 100 and to an integer from 100 on.
#[inline]
fn human(field: &mut [u8], bytes: u64) -> usize {
    if bytes < 1024 {
        return decimal(field, bytes);
    }
    let power = bytes.ilog2() as usize / 10;
    let tenths = in_tenths(bytes, power);
    if tenths < 1000 {
        return with_tenth(field, tenths, power);
    }
    // `power` is below 6 here, so adding half a unit does not overflow.
    match (bytes + (1 << (power * 10 - 1))) >> (power * 10) {
        1024 => with_tenth(field, 10, power + 1),
        whole => {
            let end = field.len() - 1;
            field[end] = POWERS[power - 1];
            1 + decimal(&mut field[..end], whole)
        }
    }
}

/// `bytes` in units of 1024^`power` / 10, rounded half up.
#[inline]
fn in_tenths(bytes: u64, power: usize) -> u64 {
    // A number of at least 2^60 is divided by 1024 first, because ten times the number can
    // overflow. The lost bits are less than 2^-50 of the number and change no digit.
    let (bytes, shift) =
        if bytes >> 60 == 0 { (bytes, power * 10) } else { (bytes >> 10, power * 10 - 10) };
    (bytes * 10 + (1 << (shift - 1))) >> shift
}

/// Writes `tenths`, in units of 1024^`power` / 10, with one decimal and the suffix. Returns the
/// number of written bytes.
#[inline]
fn with_tenth(field: &mut [u8], tenths: u64, power: usize) -> usize {
    let end = field.len() - 1;
    field[end] = POWERS[power - 1];
    decimal(&mut field[..end], tenths % 10);
    field[end - 2] = b'.';
    3 + decimal(&mut field[..end - 2], tenths / 10)
}

/// Appends a number. The function `write` writes it right-aligned into a field and returns its
/// length.
pub(crate) fn push(out: &mut String, write: impl FnOnce(&mut [u8]) -> usize) {
    let mut field = [b' '; ROOM];
    let length = write(&mut field);
    out.push_str(std::str::from_utf8(&field[ROOM - length..]).expect("digits are ASCII"));
}

/// Appends the sign of a difference. A difference that is drawn as 0 has no sign.
pub(crate) fn push_sign(out: &mut String, change: i64, units: Units) {
    let smallest = if units == Units::KiB { 1024 } else { 1 };
    if change.unsigned_abs() >= smallest {
        out.push(if change > 0 { '+' } else { '-' });
    }
}

/// Appends a share in percent with one decimal. A share above 0 is never drawn as `0.0%`.
pub(crate) fn push_share(out: &mut String, share: f64) {
    let percent = share * 100.0;
    out.push_str(&match percent {
        _ if !percent.is_finite() => "?".to_owned(),
        _ if percent > 0.0 && percent < 0.05 => "<0.1%".to_owned(),
        _ => format!("{percent:.1}%"),
    });
}

/// Appends a rate per second: `12.3/s`, `1200/s`. A rate above 0 is never drawn as `0/s`.
pub(crate) fn push_rate(out: &mut String, rate: f64) {
    out.push_str(&match rate {
        _ if !rate.is_finite() => "?".to_owned(),
        _ if rate == 0.0 => "0/s".to_owned(),
        _ if rate > 0.0 && rate < 0.05 => "<0.1/s".to_owned(),
        _ if rate.abs() < 99.95 => format!("{rate:.1}/s"),
        _ => format!("{rate:.0}/s"),
    });
}

/// Appends a number with four significant digits. From 1000 on, it has all digits of the integer
/// part, in groups of three: `0.01234`, `12.34`, `1,234`, `1,010,665,367`.
pub(crate) fn push_number(out: &mut String, number: f64) {
    if !number.is_finite() {
        out.push('?');
        return;
    }
    let is_whole = number.abs() < 1e15 && (number.fract() == 0.0 || number.abs() >= 1000.0);
    let text = if is_whole { format!("{number:.0}") } else { with_four_digits(number) };
    push_in_threes(out, &text);
}

/// A number with four significant digits, without zeros at the end.
fn with_four_digits(number: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "the logarithm of a double is below 400")]
    let magnitude = number.abs().log10().floor() as i32;
    if !(-6..15).contains(&magnitude) {
        return format!("{number:.3e}");
    }
    let decimals = usize::try_from(3 - magnitude).unwrap_or(0);
    let text = format!("{number:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Appends digits with a comma before each group of three digits of the integer part.
fn push_in_threes(out: &mut String, text: &str) {
    let whole = text.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(text.len());
    for (at, c) in text.char_indices() {
        if c != '-'
            && at > 0
            && at < whole
            && (whole - at).is_multiple_of(3)
            && !text[..at].ends_with('-')
        {
            out.push(',');
        }
        out.push(c);
    }
}

/// Width of a full bar in characters.
const BAR: u32 = 16;

/// Characters for one to seven eighths of a character's width.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Appends a bar with a resolution of an eighth of a character. A share above 0 is never drawn as
/// an empty bar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it lies between 0 and the eighths of a full bar"
)]
pub(crate) fn push_bar(out: &mut String, share: f64) {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * f64::from(BAR * 8)).round().max(f64::from(u8::from(share > 0.0)));
    let (whole, rest) = (eighths as usize / 8, eighths as usize % 8);
    out.extend(std::iter::repeat_n('█', whole));
    out.extend(rest.checked_sub(1).map(|at| EIGHTHS[at]));
}

/// A unit of time: its length, its name, and the smaller unit that is shown with it.
struct Span {
    ns: u64,
    name: &'static str,
    rest: Option<(u64, &'static str)>,
}

const SECOND: u64 = 1_000_000_000;

/// Units from the longest to the shortest. Seconds are used up to two minutes, minutes up to two
/// hours, and so on.
const SPANS: &[Span] = &[
    Span { ns: 86_400 * SECOND, name: "d", rest: Some((3600 * SECOND, "h")) },
    Span { ns: 3600 * SECOND, name: "h", rest: Some((60 * SECOND, "min")) },
    Span { ns: 60 * SECOND, name: "min", rest: Some((SECOND, "s")) },
    Span { ns: SECOND, name: "s", rest: None },
    Span { ns: 1_000_000, name: "ms", rest: None },
    Span { ns: 1000, name: "µs", rest: None },
];

/// Appends a duration with four significant digits, or rounded to the smaller unit: `850 ns`,
/// `1.234 ms`, `12.34 s`, `3 min 20 s`, `4 d 2 h`.
pub(crate) fn push_nanos(out: &mut String, ns: u64) {
    use std::fmt::Write;
    let span =
        SPANS.iter().position(|s| if s.rest.is_some() { ns / 2 >= s.ns } else { ns >= s.ns });
    let Some(span) = span else {
        return write!(out, "{ns} ns").expect("a String takes all");
    };
    let Span { ns: unit, name, rest } = &SPANS[span];
    if let Some((small, rest)) = rest {
        let (whole, per_unit) = (rounded(ns, *small), unit / small);
        write!(out, "{} {name} {} {rest}", whole / per_unit, whole % per_unit)
            .expect("a String takes all");
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
    let in_unit = |unit: u64| with_four_digits(ns as f64 / unit as f64);
    let (number, name) = match (in_unit(*unit), SPANS.get(span.wrapping_sub(1))) {
        // 999.97 ms rounds to 1000 ms, which is shown as 1 s.
        (number, Some(larger)) if number == "1000" && larger.rest.is_none() => {
            (in_unit(larger.ns), larger.name)
        }
        (number, _) => (number, *name),
    };
    out.push_str(&number);
    out.push(' ');
    out.push_str(name);
}

/// `ns` divided by `unit`, rounded half up.
fn rounded(ns: u64, unit: u64) -> u64 {
    ns / unit + u64::from(ns % unit >= unit.div_ceil(2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drawn(bytes: u64) -> String {
        let mut out = String::new();
        push(&mut out, |field| size(field, bytes, Units::Human));
        out
    }

    #[test]
    fn a_bar_is_to_scale_and_a_share_above_0_is_visible() {
        let bar = |share| {
            let mut out = String::new();
            push_bar(&mut out, share);
            out
        };
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1e-9), "▏");
        assert_eq!(bar(0.5), "████████");
        assert_eq!(bar(1.0), "████████████████");
        assert_eq!((bar(7.0), bar(-1.0), bar(f64::NAN)), (bar(1.0), bar(0.0), bar(0.0)));
    }

    #[test]
    fn a_number_has_four_significant_digits_and_its_whole_integer_part() {
        let cases: &[(f64, &str)] = &[
            (0.0, "0"),
            (5.0, "5"),
            (-7.0, "-7"),
            (999.5, "999.5"),
            (1234.5, "1,234"),
            (-123456.0, "-123,456"),
            (1010665367.0, "1,010,665,367"),
            (12.3456, "12.35"),
            (0.012345, "0.01235"),
            (1.5e-9, "1.500e-9"),
            (f64::MAX, "1.798e308"),
            (0.1, "0.1"),
            (f64::NAN, "?"),
        ];
        for &(number, text) in cases {
            let mut out = String::new();
            push_number(&mut out, number);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn a_rate_above_0_is_never_drawn_as_0() {
        let rate = |rate| {
            let mut out = String::new();
            push_rate(&mut out, rate);
            out
        };
        let drawn = [0.0, 0.01, 12.34, 99.96, 1234.5, f64::INFINITY].map(rate);
        assert_eq!(drawn, ["0/s", "<0.1/s", "12.3/s", "100/s", "1234/s", "?"]);
    }

    #[test]
    fn sizes_take_at_most_five_characters_and_round_half_up() {
        let cases: &[(u64, &str)] = &[
            (0, "0"),
            (512, "512"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1024 + 51, "1.0K"),
            (1024 + 52, "1.1K"),
            (99 * 1024 + 972, "99.9K"),
            (99 * 1024 + 973, "100K"),
            (1023 * 1024 + 511, "1023K"),
            (1023 * 1024 + 512, "1.0M"),
            (781 << 20, "781M"),
            (16 << 40, "16.0T"),
            (u64::MAX, "16.0E"),
        ];
        for &(bytes, text) in cases {
            assert_eq!(drawn(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn durations_are_rounded_in_a_suitable_unit() {
        let cases: &[(u64, &str)] = &[
            (0, "0 ns"),
            (850, "850 ns"),
            (1250, "1.25 µs"),
            (1_234_567, "1.235 ms"),
            (2_000_000, "2 ms"),
            (999_949_999, "999.9 ms"),
            (999_950_000, "1 s"),
            (1_083_000_000, "1.083 s"),
            (12_340_000_000, "12.34 s"),
            (119 * SECOND, "119 s"),
            (119_960_000_000, "120 s"),
            (200 * SECOND, "3 min 20 s"),
            (200 * SECOND + SECOND / 2, "3 min 21 s"),
            (239 * SECOND + SECOND / 2, "4 min 0 s"),
            (3 * 3600 * SECOND + 61 * SECOND, "3 h 1 min"),
            (u64::MAX, "213504 d 0 h"),
        ];
        for &(ns, text) in cases {
            let mut out = String::new();
            push_nanos(&mut out, ns);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn a_share_above_0_is_never_drawn_as_0() {
        let draw = |share| {
            let mut out = String::new();
            push_share(&mut out, share);
            out
        };
        assert_eq!(draw(0.0), "0.0%");
        assert_eq!(draw(0.0001), "<0.1%");
        assert_eq!(draw(0.1234), "12.3%");
        assert_eq!(draw(f64::NAN), "?");
    }

    proptest! {
        #[test]
        fn decimal_and_hex_are_what_the_standard_library_writes(n: u64, shift in 0..64u32) {
            let n = n >> shift;
            let (mut dec, mut hexadecimal) = (String::new(), String::new());
            push(&mut dec, |field| decimal(field, n));
            push(&mut hexadecimal, |field| hex(field, n));
            prop_assert_eq!(&dec, &n.to_string());
            prop_assert_eq!(&hexadecimal, &format!("{n:x}"));
            prop_assert_eq!(dec.len(), decimal_width(n));
            prop_assert_eq!(hexadecimal.len(), hex_width(n));
        }

        #[test]
        fn a_human_size_is_within_its_last_digit(n: u64, shift in 0..64u32) {
            let n = n >> shift;
            let text = drawn(n);
            prop_assert!(text.len() <= WIDEST_HUMAN, "{}", text);
            let power = text.bytes().last().and_then(|b| POWERS.iter().position(|&p| p == b));
            let unit = power.map_or(1.0, |p| 1024f64.powi(i32::try_from(p).unwrap() + 1));
            let number: f64 = text.trim_end_matches(char::is_alphabetic).parse().unwrap();
            let digit = if text.contains('.') { 0.1 } else { 1.0 };
            prop_assert!((number - n as f64 / unit).abs() <= digit / 2.0 + 1e-9, "{} is {}", n, text);
        }
    }
}
