//! Converts printed text to styled lines. A word of such a line is a text with one style. Escape
//! sequences that pagewise's text view writes become styles; all other control characters become
//! visible text.

use pagewise_model::name::escape;

use crate::palette::Paint;

/// A line of words, each with its style.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StyledLine {
    pub(crate) words: Vec<(Paint, String)>,
}

/// Maximum number of lines of a text that are kept, to limit memory.
const MAX_LINES: usize = 20_000;

/// Converts a text to styled lines.
pub(crate) fn lines(text: &[u8]) -> Vec<StyledLine> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&b| b == b'\n').take(MAX_LINES).map(line).collect()
}

fn line(text: &[u8]) -> StyledLine {
    let mut line = StyledLine::default();
    let mut paint = Paint::Plain;
    let mut rest = text.strip_suffix(b"\r").unwrap_or(text);
    while let Some(&first) = rest.first() {
        if let Some((parameters, after)) = sgr_sequence(rest) {
            paint = paint_of(parameters, paint);
            rest = after;
            continue;
        }
        // An escape character outside of a known sequence is part of the word that it begins.
        let from = usize::from(first == b'\x1b');
        let end =
            rest[from..].iter().position(|&b| b == b'\x1b').map_or(rest.len(), |at| at + from);
        line.words.push((paint, escape(&rest[..end]).into_owned()));
        rest = &rest[end..];
    }
    line
}

/// If the text begins with an SGR sequence, returns its parameters and the text after the sequence.
fn sgr_sequence(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let body = text.strip_prefix(b"\x1b[")?;
    let end = body.iter().position(|b| !matches!(b, b'0'..=b'9' | b';'))?;
    (body[end] == b'm').then(|| (&body[..end], &body[end + 1..]))
}

/// The style that SGR parameters of the text view stand for; unknown parameters keep `now`.
fn paint_of(parameters: &[u8], now: Paint) -> Paint {
    match parameters {
        b"" | b"0" => Paint::Plain,
        b"1" => Paint::Bold,
        b"2" => Paint::Dim,
        b"36" => Paint::Accent,
        b"32" => Paint::Falling,
        b"33" => Paint::Rising,
        b"1;31" => Paint::Alarm,
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn styles_of_the_text_view_are_kept() {
        let found = lines(b"\x1b[1mTitle\x1b[0m and\n\n\x1b[1;31mbad\x1b[0m\n");
        let expected: [&[(Paint, &str)]; 3] =
            [&[(Paint::Bold, "Title"), (Paint::Plain, " and")], &[], &[(Paint::Alarm, "bad")]];
        for (line, expected) in found.iter().zip(expected) {
            let words: Vec<_> =
                line.words.iter().map(|(paint, it)| (*paint, it.as_str())).collect();
            assert_eq!(words, expected);
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn other_sequences_become_visible() {
        let found = lines(b"a\x1b[2Jb\x1b]0;title\x07\x1b");
        let text: String = found[0].words.iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(text, r"a\x1b[2Jb\x1b]0;title\x07\x1b");
    }

    proptest! {
        #[test]
        fn no_control_character_is_left(text: Vec<u8>) {
            for line in lines(&text) {
                let bad = |(_, word): &(Paint, String)| word.chars().any(char::is_control);
                prop_assert!(!line.words.iter().any(bad));
            }
        }
    }
}
