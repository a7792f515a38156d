//! Text of views: escaping, width, cuts, and the conversion of values to words.

use std::borrow::Cow;

use pagewise_model::name::escape;
use pagewise_model::report::{CellValue, Label};
use unicode_width::UnicodeWidthChar;

use crate::footnotes::Footnotes;
use crate::number::{self, Units};

/// Text without terminal escape sequences. Printable ASCII, the most frequent case, is only
/// scanned.
pub(crate) fn clean(text: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(text) {
        Ok(text) if is_printable_ascii(text.as_bytes()) => Cow::Borrowed(text),
        _ => escape(text),
    }
}

/// True if every byte is a printable ASCII character.
pub(crate) fn is_printable_ascii(text: &[u8]) -> bool {
    // `all` would stop at the first byte that is not printable, which prevents comparing 16 bytes
    // at once.
    text.iter().fold(true, |so_far, b| so_far & (0x20..0x7f).contains(b))
}

/// Maximum number of columns that the text takes in a terminal.
pub(crate) fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().map(char_width).sum() }
}

fn char_width(c: char) -> usize {
    // U+FE0F makes the preceding character an emoji, which some terminals draw one column wider.
    if c == '\u{fe0f}' { 1 } else { c.width().unwrap_or(0) }
}

/// Splits `text` into its longest prefix that fits into `room` columns, and the remaining text.
pub(crate) fn split(text: &str, room: usize) -> (&str, &str) {
    let mut used = 0;
    let end = text.char_indices().find(|&(_, c)| {
        used += char_width(c);
        used > room
    });
    text.split_at(end.map_or(text.len(), |(at, _)| at))
}

/// Appends `text`, cut to `room` columns. `…` replaces the end of a command line or a sentence, and
/// the middle of other texts. The end of a path contains more information than its start, so the
/// end gets two thirds.
pub(crate) fn push_cut(out: &mut String, text: &str, room: usize) {
    if width(text) <= room {
        out.push_str(text);
    } else if room > 0 && text.contains(' ') && !text.starts_with(['/', '[']) {
        out.push_str(split(text, room - 1).0);
        out.push('…');
    } else if room > 0 {
        let head = (room - 1) / 3;
        out.push_str(split(text, head).0);
        out.push('…');
        out.push_str(tail(text, room - 1 - head));
    }
}

/// The longest suffix of `text` that fits into `room` columns.
fn tail(text: &str, room: usize) -> &str {
    let mut used = 0;
    let start = text.char_indices().rev().find(|&(_, c)| {
        used += char_width(c);
        used > room
    });
    start.map_or(text, |(at, c)| &text[at + c.len_utf8()..])
}

/// Conversion of values to words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wording<'a> {
    /// Format of sizes.
    pub(crate) units: Units,
    /// True if sizes are in a column whose heading has the unit, so that they have none.
    pub(crate) bare: bool,
    /// Footnotes for absent values; `None` to write the reason itself.
    pub(crate) notes: Option<&'a Footnotes<'a>>,
}

impl Wording<'_> {
    /// Appends the text of a value.
    pub(crate) fn push(self, out: &mut String, value: &CellValue) {
        match value {
            CellValue::None => {}
            CellValue::Bytes(n) => self.push_size(out, *n),
            CellValue::Change(n) => {
                number::push_sign(out, *n, self.units);
                self.push_size(out, n.unsigned_abs());
            }
            CellValue::Count(n) => number::push(out, |field| number::decimal(field, *n)),
            CellValue::Address(n) => {
                out.push_str("0x");
                number::push(out, |field| number::hex(field, *n));
            }
            CellValue::Share(share) => number::push_share(out, *share),
            CellValue::Rate(rate) => number::push_rate(out, *rate),
            CellValue::Number(number) => number::push_number(out, *number),
            CellValue::Bar(share) => number::push_bar(out, *share),
            CellValue::Nanos(ns) | CellValue::Seconds(ns) => number::push_nanos(out, *ns),
            CellValue::Flag(flag) => out.push_str(if *flag { "yes" } else { "no" }),
            CellValue::Text(text) | CellValue::Picture(text) => {
                out.push_str(&clean(text.as_bytes()))
            }
            CellValue::Name(name) => out.push_str(&clean(name.as_bytes())),
            CellValue::List(values) => self.push_list(out, values),
            CellValue::Sentence(pieces) => pieces.iter().for_each(|piece| self.push(out, piece)),
            CellValue::Record(members) => self.push_record(out, members),
            CellValue::Absent(absent) => match self.notes {
                Some(notes) => out.push_str(notes.mark(absent)),
                None => out.push_str(&clean(format!("unknown ({absent})").as_bytes())),
            },
        }
    }

    fn push_size(self, out: &mut String, bytes: u64) {
        number::push(out, |field| number::size(field, bytes, self.units));
        match self.units.name() {
            _ if self.bare => {}
            None if bytes >= 1024 => {}
            name => {
                out.push(' ');
                out.push_str(name.unwrap_or("bytes"));
            }
        }
    }

    fn push_list(self, out: &mut String, values: &[CellValue]) {
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                out.push(' ');
            }
            self.push(out, value);
        }
    }

    fn push_record(self, out: &mut String, members: &[(Label, CellValue)]) {
        for (at, (name, value)) in members.iter().enumerate() {
            if at > 0 {
                out.push_str(", ");
            }
            out.push_str(&clean(name.as_bytes()));
            out.push(' ');
            self.push(out, value);
        }
    }

    /// Text of a value.
    pub(crate) fn value(self, value: &CellValue) -> String {
        let mut out = String::new();
        self.push(&mut out, value);
        out
    }

    /// Text of a sentence: its parts without added spaces.
    pub(crate) fn sentence(self, pieces: &[CellValue]) -> String {
        let mut out = String::new();
        for piece in pieces {
            self.push(&mut out, piece);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn cut(text: &str, room: usize) -> String {
        let mut out = String::new();
        push_cut(&mut out, text, room);
        out
    }

    #[test]
    fn a_long_path_keeps_both_its_ends() {
        assert_eq!(cut("/usr/lib/x86_64-linux-gnu/libc.so.6", 16), "/usr/…/libc.so.6");
        assert_eq!(cut("/usr/lib", 8), "/usr/lib");
        assert_eq!(cut("/usr/lib", 1), "…");
        assert_eq!(cut("/usr/lib", 0), "");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(width("漢字"), 4);
        assert_eq!(cut("漢字漢字", 5), "…字");
    }

    proptest! {
        #[test]
        fn cut_text_fits_and_is_cut_only_where_it_must_be(text in "\\PC*", room in 0..40usize) {
            let cut = cut(&text, room);
            prop_assert!(width(&cut) <= room);
            prop_assert!(UnicodeWidthStr::width(cut.as_str()) <= room);
            prop_assert_eq!(cut == text, width(&text) <= room);
        }

        #[test]
        fn only_printable_ascii_counts_as_printable(text: Vec<u8>) {
            prop_assert_eq!(is_printable_ascii(&text), text.iter().all(|b| b.is_ascii_graphic() || *b == b' '));
        }
    }
}
