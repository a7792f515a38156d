//! `/proc/<pid>/smaps` and `smaps_rollup`: entries to [`Mapping`]s with every counter.
//!
//! The kernel writes each line of an entry with a name padded to 16 bytes and a number padded to 8,
//! in the same order for each mapping. So the parser keeps the lines of the entry before and first
//! tries whether the next line starts like its counterpart there: then a line costs two comparisons and
//! eight bytes of arithmetic. Anything else (a wider number, a new line, another kernel) goes the
//! general way, with the same result.

use pagewise_model::{Counter, Mapping, Name, Smaps, VmFlags};

use crate::Error;
use crate::maps::{Builder, Parsed, whole_lines};
use crate::text::{field, kilobytes, lines, number};

/// Reads a whole `smaps`.
pub fn parse(text: &[u8]) -> Parsed {
    let mut parser = Parser::default();
    parser.push(text);
    parser.finish()
}

/// Reads a `smaps_rollup`: its one entry, or `None` where there is no whole one.
pub fn parse_rollup(text: &[u8]) -> Option<Smaps> {
    let body = memchr::memchr(b'\n', text)? + 1;
    if !text.ends_with(b"\n") || !is_header(text) {
        return None;
    }
    let mut smaps = Smaps::default();
    for (_, line) in lines(&text[body..]) {
        general(&mut smaps, line)?;
    }
    Some(smaps)
}

/// Reads `smaps` piece by piece, as it comes from the kernel.
#[derive(Debug, Default)]
pub struct Parser {
    builder: Builder,
    parsed: Parsed,
    open: Option<(Mapping, Smaps)>,
    layout: Vec<Shape>,
    /// The start of a line whose end is in the next piece.
    carry: Vec<u8>,
    /// Which line of the layout comes next.
    next: usize,
    line: usize,
    last_flags: (Vec<u8>, VmFlags),
}

/// A line that an earlier entry had: the name as it is padded, and its counter.
#[derive(Clone, Copy, Debug)]
struct Shape {
    prefix: [u8; 16],
    counter: Counter,
}

/// `Rss:            ` and `    1234` and ` kB\n`.
const PREFIX: usize = 16;
const DIGITS: usize = 8;
const LINE: usize = PREFIX + DIGITS + 4;

impl Parser {
    /// Takes the next piece of text, cut anywhere.
    pub fn push(&mut self, text: &[u8]) {
        let mut carry = std::mem::take(&mut self.carry);
        let rest = whole_lines(&mut carry, text, |lines| self.whole_lines(lines));
        carry.extend_from_slice(rest);
        self.carry = carry;
    }

    /// The mappings that were read whole, and what stopped the reading.
    pub fn finish(mut self) -> Parsed {
        if !self.carry.is_empty() {
            let carry = std::mem::take(&mut self.carry);
            self.tear("a whole line", &carry);
            self.open = None;
        } else if self.is_cut() {
            self.tear("the rest of the entry", b"");
            self.open = None;
        }
        self.close();
        self.parsed
    }

    /// Whether the entry that is open has fewer lines than the one before.
    fn is_cut(&self) -> bool {
        match (&self.open, self.parsed.mappings.last().and_then(|m| m.smaps.as_ref().ok())) {
            (Some((_, open)), Some(before)) => {
                open.flags.is_some() != before.flags.is_some()
                    || Counter::ALL
                        .iter()
                        .any(|&c| before.has(c) && !open.has(c) && c != Counter::ProtectionKey)
            }
            (Some((_, open)), None) => !open.has(Counter::Rss),
            (None, _) => false,
        }
    }

    fn whole_lines(&mut self, mut text: &[u8]) {
        while !text.is_empty() && self.parsed.torn.is_none() {
            text = match self.known_line(text) {
                Some(rest) => rest,
                None => {
                    let end = memchr::memchr(b'\n', text).unwrap_or(text.len() - 1);
                    self.any_line(&text[..end]);
                    &text[end + 1..]
                }
            };
            self.line += 1;
        }
    }

    /// The quick way: the line that the entry before had here, with another number.
    #[inline]
    fn known_line<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let shape = self.layout.get(self.next)?;
        let (line, rest) = text.split_first_chunk::<LINE>()?;
        let (prefix, tail) = line.split_first_chunk::<PREFIX>()?;
        let (digits, end) = tail.split_first_chunk::<DIGITS>()?;
        if *prefix != shape.prefix || end != b" kB\n" {
            return None;
        }
        let (_, smaps) = self.open.as_mut()?;
        smaps.set(shape.counter, padded_number(*digits)? << 10);
        self.next += 1;
        Some(rest)
    }

    /// The general way: any line at all, without its newline.
    fn any_line(&mut self, line: &[u8]) {
        if is_header(line) {
            self.close();
            match self.builder.mapping(line) {
                Some(mapping) => self.open = Some((mapping, Smaps::default())),
                None => self.tear("a mapping", line),
            }
            self.next = 0;
            return;
        }
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            return self.flags(flags);
        }
        let Some((_, smaps)) = &mut self.open else { return self.tear("a mapping", line) };
        match general(smaps, line) {
            None => self.tear("a field and its value", line),
            Some(None) => {}
            Some(Some(counter)) => self.learn(counter, line),
        }
    }

    /// Keeps step with the layout, or makes it longer while the first entry is read.
    fn learn(&mut self, counter: Counter, line: &[u8]) {
        if self.layout.get(self.next).is_some_and(|shape| shape.counter == counter) {
            self.next += 1;
        } else if self.next == self.layout.len() && line.len() + 1 == LINE && line.ends_with(b" kB")
        {
            let prefix = *line.first_chunk::<PREFIX>().expect("the line is longer");
            self.layout.push(Shape { prefix, counter });
            self.next += 1;
        }
    }

    /// `VmFlags`, which neighbours often share.
    fn flags(&mut self, codes: &[u8]) {
        if self.last_flags.0 != codes {
            self.last_flags = (codes.to_vec(), vm_flags(codes));
        }
        match &mut self.open {
            Some((_, smaps)) => smaps.flags = Some(self.last_flags.1.clone()),
            None => self.tear("a mapping", codes),
        }
    }

    fn close(&mut self) {
        if let Some((mut mapping, smaps)) = self.open.take() {
            mapping.smaps = Ok(Box::new(smaps));
            self.parsed.add(mapping);
        }
    }

    fn tear(&mut self, expected: &'static str, found: &[u8]) {
        self.open = None;
        self.parsed.torn = Some(Error::parse("smaps", self.line + 1, expected, found));
    }
}

/// A counter line; any other `Name: text` goes to [`Smaps::extra`]. `None` where it is neither.
fn general(smaps: &mut Smaps, line: &[u8]) -> Option<Option<Counter>> {
    let (name, value) = field(line)?;
    let counter = Counter::named(name);
    let parsed = counter.and_then(|c| if c.is_bytes() { kilobytes(value) } else { number(value) });
    match (counter, parsed) {
        (Some(counter), Some(value)) => {
            smaps.set(counter, value);
            Some(Some(counter))
        }
        (Some(_), None) => None,
        (None, _) => {
            smaps.extra.push((Name::new(name), Name::new(value)));
            Some(None)
        }
    }
}

fn vm_flags(codes: &[u8]) -> VmFlags {
    let mut flags = VmFlags::default();
    for code in codes.split(|&b| b == b' ') {
        if let &[first, second] = code {
            flags.insert([first, second]);
        }
    }
    flags
}

/// Whether a line starts an entry: only those start with a lower-case hexadecimal number and a `-`.
fn is_header(line: &[u8]) -> bool {
    let digits = line.iter().take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).count();
    digits > 0 && line.get(digits) == Some(&b'-')
}

/// Eight bytes, blanks and then digits, as a number: `    1234`.
///
/// All eight are looked at at once. A blank and a `0` have the same low half; what the high halves
/// must be is checked, and that no blank follows a digit.
#[inline]
fn padded_number(bytes: [u8; DIGITS]) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let text = u64::from_le_bytes(bytes);
    let low = text & (0x0f * ONES);
    let high = text & (0xf0 * ONES);
    let is_digit = (text >> 4) & ONES;
    let blank_or_digit = high & !(0x10 * ONES) == 0x20 * ONES;
    let no_digit_above_9 = (low + 0x06 * ONES) & (0x10 * ONES) == 0;
    let blanks_are_zero = low & !(is_digit * 0x0f) == 0;
    let digits_at_the_end = is_digit & !(is_digit >> 8 | 1 << 56) == 0;
    let a_digit = is_digit != 0;
    if !(blank_or_digit && no_digit_above_9 && blanks_are_zero && digits_at_the_end && a_digit) {
        return None;
    }
    // Pairs, then fours, then all eight: each step weighs the earlier half ten, a hundred, ten thousand.
    let pairs = (low * 10 + (low >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}
