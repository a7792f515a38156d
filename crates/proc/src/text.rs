//! Parses numbers and words in bytes, for the parsers of this crate.

/// Parses one item after another from the start of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineCursor<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> LineCursor<'a> {
    pub(crate) fn new(line: &'a [u8]) -> LineCursor<'a> {
        LineCursor { rest: line }
    }

    /// A hexadecimal number of 1 to 16 digits, lower or upper case.
    #[inline]
    pub(crate) fn hex(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        let mut used = 0;
        for &byte in self.rest {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                _ => break,
            };
            if value >> 60 != 0 {
                return None;
            }
            value = value << 4 | u64::from(digit);
            used += 1;
        }
        self.rest = &self.rest[used..];
        (used > 0).then_some(value)
    }

    /// A decimal number.
    #[inline]
    pub(crate) fn decimal(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        let mut used = 0;
        for &byte in self.rest {
            if !byte.is_ascii_digit() {
                break;
            }
            value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            used += 1;
        }
        self.rest = &self.rest[used..];
        (used > 0).then_some(value)
    }

    /// Exactly this byte.
    #[inline]
    pub(crate) fn byte(&mut self, wanted: u8) -> Option<()> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        (first == wanted).then_some(())
    }

    /// The next `n` bytes.
    #[inline]
    pub(crate) fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Skips spaces and tabs.
    #[inline]
    pub(crate) fn blanks(&mut self) {
        let blanks = self.rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        self.rest = &self.rest[blanks..];
    }
}

/// The lines of a text, each with its number from 1. A last line without its newline counts too.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = (!text.is_empty()).then(|| text.split(|&b| b == b'\n'));
    lines.into_iter().flatten().enumerate().map(|(at, line)| (at + 1, line))
}

/// `Name:` and the rest of the line without the blanks around it.
pub(crate) fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// A size such as `12 kB`, in bytes.
pub(crate) fn kilobytes(text: &[u8]) -> Option<u64> {
    let mut cursor = LineCursor::new(text);
    let number = cursor.decimal()?;
    cursor.blanks();
    (cursor.rest == b"kB").then(|| number.checked_mul(1024)).flatten()
}

/// A decimal number and nothing else.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let mut cursor = LineCursor::new(text.trim_ascii());
    let number = cursor.decimal()?;
    cursor.rest.is_empty().then_some(number)
}
