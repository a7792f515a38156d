//! `/proc/swaps`: swap devices and files.

use pagewise_model::settings::SwapArea;
use pagewise_model::{Bytes, Name};

use crate::ProcError;
use crate::text::{lines, number};

/// Reads a whole `swaps`; its first line is a heading.
///
/// # Errors
/// [`ProcError::Parse`] for a line that is not a swap area.
pub fn parse(text: &[u8]) -> Result<Vec<SwapArea>, ProcError> {
    let bad = |at, line| ProcError::parse("swaps", at, "a path, a type and three numbers", line);
    lines(text).skip(1).map(|(at, line)| area(line).ok_or_else(|| bad(at, line))).collect()
}

/// `/swapfile file 2097148 0 -2`. Blanks in the path are written as `\040`; the path of a removed
/// file ends in `\040(deleted)`.
fn area(line: &[u8]) -> Option<SwapArea> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let path = Name::new(words.next()?);
    let mut sizes = words.by_ref().skip(1).map(number);
    let (size, used) = (Bytes::kib(sizes.next()??), Bytes::kib(sizes.next()??));
    let priority = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    Some(SwapArea { path, size, used, priority })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADING: &[u8] = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    #[test]
    fn an_area_has_a_size_in_kib_and_a_priority_that_may_be_negative() {
        let line = b"/swap\\040file                           file\t\t1024\t\t8\t\t-2\n";
        let areas = parse(&[HEADING, line].concat()).unwrap();
        let expected = SwapArea {
            path: "/swap\\040file".into(),
            size: Bytes::mib(1),
            used: Bytes::kib(8),
            priority: -2,
        };
        assert_eq!(areas, [expected]);
        assert_eq!(parse(HEADING).unwrap(), []);
        assert!(parse(&[HEADING, b"/swapfile file 1024\n"].concat()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(\n/swap (file|partition) [0-9]{0,22} [0-9]{0,4} -?[0-9]{0,21}){0,3}") {
            let _ = parse(&[&text[..], tail.as_bytes()].concat());
        }
    }
}
