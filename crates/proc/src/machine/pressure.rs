//! `/proc/pressure/memory` and a cgroup's `memory.pressure`.

use pagewise_model::settings::{Pressure, PressureFigures};

use crate::text::{lines, number};

/// Reads a whole pressure file: the averages over ten seconds. `None` if one average is missing.
pub fn parse(text: &[u8]) -> Option<Pressure> {
    average(text, b"avg10=")
}

/// Reads a whole pressure file with all averages. `None` where a value is missing.
pub(crate) fn parse_all(text: &[u8]) -> Option<PressureFigures> {
    let longer = Some([average(text, b"avg60=")?, average(text, b"avg300=")?]);
    Some(PressureFigures { longer, ..parse_totals(text)? })
}

/// Reads the averages over ten seconds and the counters since boot of a whole pressure file.
pub fn parse_totals(text: &[u8]) -> Option<PressureFigures> {
    Some(PressureFigures {
        avg10: parse(text)?,
        longer: None,
        some_us: total(text, b"some ")?,
        full_us: total(text, b"full ")?,
    })
}

/// `some .. total=9` in microseconds.
fn total(text: &[u8], start: &[u8]) -> Option<u64> {
    number(find_word(text, start, b"total=")?)
}

/// `some avg10=0.12 avg60=..` in hundredths of a per cent.
fn average(text: &[u8], name: &[u8]) -> Option<Pressure> {
    let of = |start: &[u8]| share(find_word(text, start, name)?);
    Some(Pressure { some: of(b"some ")?, full: of(b"full ")? })
}

/// The value of a word in the line that begins with `start`.
fn find_word<'t>(text: &'t [u8], start: &[u8], name: &[u8]) -> Option<&'t [u8]> {
    let line = lines(text).find_map(|(_, line)| line.strip_prefix(start))?;
    line.split(|&b| b == b' ').find_map(|word| word.strip_prefix(name))
}

/// `0.12` in hundredths.
fn share(word: &[u8]) -> Option<u64> {
    let point = memchr::memchr(b'.', word)?;
    let (whole, rest) = (number(&word[..point])?, &word[point + 1..]);
    // The kernel always writes two digits.
    let hundredths = if rest.len() == 2 { number(rest)? } else { return None };
    whole.checked_mul(100)?.checked_add(hundredths)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn averages_are_hundredths_of_a_per_cent() {
        let text = b"some avg10=1.05 avg60=0.22 avg300=0.10 total=9\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n";
        assert_eq!(parse(text), Some(Pressure { some: 105, full: 50 }));
        let longer = [22, 10].map(|some| Pressure { some, full: 0 });
        assert_eq!(parse_all(text).unwrap().longer, Some(longer));
        let totals = parse_totals(text).unwrap();
        assert_eq!((totals.some_us, totals.full_us, totals.avg10.some), (9, 3, 105));
        assert_eq!(parse(b"some avg10=1.05 total=1\n"), None);
        assert_eq!(parse(b"some avg10=1.5\nfull avg10=0.00\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "((some|full) avg10=[0-9.]{0,24}\n){0,3}") {
            let text = [&text[..], b"\n", tail.as_bytes()].concat();
            prop_assert!(parse_totals(&text).is_none() || parse(&text).is_some());
        }
    }
}
