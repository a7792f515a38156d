//! `/proc/<pid>/smaps` and `smaps_rollup`: entries to [`Mapping`]s with every counter.
//!
//! The kernel writes each line of an entry with a name padded to 16 bytes and a number padded to 8,
//! in the same order for each mapping. So the parser keeps the lines of the previous entry, and
//! first compares each line with its counterpart in that entry: if both lines start alike, the
//! parser makes only two comparisons and converts eight bytes to a number. Any other line (a wider
//! number, a new line, another kernel) takes the general path, with the same result. Neighboring
//! mappings often have equal entries: an entry whose text equals a recent one is not parsed.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewise_model::{Absent, Mapping, Name, Smaps, SmapsCounter, VmFlags};

use crate::ProcError;
use crate::maps::{Builder, ParsedMappings, whole_lines};
use crate::text::{field, kilobytes, lines, number};

/// Reads a whole `smaps`.
pub fn parse(text: &[u8]) -> ParsedMappings {
    let mut parser = SmapsParser::default();
    parser.push(text);
    parser.finish()
}

/// Parses a `smaps_rollup`: its one entry, or `None` if it is incomplete.
pub fn parse_rollup(text: &[u8]) -> Option<Smaps> {
    let body = memchr::memchr(b'\n', text)? + 1;
    if !text.ends_with(b"\n") || !is_header(text) {
        return None;
    }
    let mut smaps = Smaps::default();
    for (_, line) in lines(&text[body..]) {
        general(&mut smaps, line)?;
    }
    // The line `Locked:` is the last one of `smaps_rollup` in every kernel that has the file.
    smaps.has(SmapsCounter::Locked).then_some(smaps)
}

/// Reads `smaps` piece by piece, as the kernel returns it.
#[derive(Debug)]
pub struct SmapsParser {
    builder: Builder,
    parsed: ParsedMappings,
    /// The open mapping, whose header was parsed and of which further lines may follow, and the
    /// open entry: its lines so far.
    open: Option<(Mapping, SmapsEntryText)>,
    layout: Vec<LineShape>,
    /// Index in `layout` of the counterpart of the next line.
    next: usize,
    /// The start of a line whose end is in the next piece.
    carry: Vec<u8>,
    line: usize,
    /// Number of lines of the open entry. The field `lines_before` is the number for the previous
    /// entry.
    lines: usize,
    lines_before: usize,
    last_flags: (Vec<u8>, VmFlags),
    /// Recent entries with their text, the latest first. If the next entry has the same text, it is
    /// not parsed: its mapping gets a reference to the parsed counters of the recent entry.
    texts: VecDeque<Text>,
}

/// The entry of one mapping.
#[derive(Debug, Default)]
struct SmapsEntryText {
    /// The lines so far.
    own: Smaps,
    /// The entry of an earlier mapping, if all lines so far are the same.
    shared: Option<Arc<Smaps>>,
}

impl SmapsEntryText {
    /// Returns the counters of this entry for adding a line. Shared counters are copied first.
    #[inline]
    fn own(&mut self) -> &mut Smaps {
        if let Some(shared) = self.shared.take() {
            self.own.clone_from(&shared);
        }
        &mut self.own
    }
}

/// The lines of an entry below its header.
#[derive(Debug)]
struct Text {
    bytes: Vec<u8>,
    lines: usize,
    entry: Arc<Smaps>,
}

/// Number of recent texts that the next entry is compared with. One text is not enough: stacks
/// alternate with their guard pages.
const MAX_TEXTS: usize = 4;
/// Maximum number of bytes of a text. An entry has about 700.
const MAX_TEXT: usize = 4000;

/// Layout of a line of an earlier entry: the bytes before and after the number, and the counter
/// that the number belongs to.
#[derive(Clone, Copy, Debug)]
struct LineShape {
    prefix: [u8; PREFIX],
    end: &'static [u8],
    /// Left shift that converts the unit of the line to the unit of the counter: kB to bytes.
    shift: u32,
    counter: SmapsCounter,
}

/// Lengths of the padded name `Rss:            ` and of the padded number `    1234` behind it.
const PREFIX: usize = 16;
const DIGITS: usize = 8;

impl Default for SmapsParser {
    fn default() -> SmapsParser {
        SmapsParser::new(Absent::NotCollected("smaps has no values for single pages".into()))
    }
}

impl SmapsParser {
    /// Returns a parser. `unread` is the reason why the mappings have no data of their pages.
    pub fn new(unread: Absent) -> SmapsParser {
        SmapsParser {
            builder: Builder::new(unread),
            parsed: ParsedMappings::default(),
            open: None,
            layout: Vec::new(),
            next: 0,
            carry: Vec::new(),
            line: 0,
            lines: 0,
            lines_before: 0,
            last_flags: (Vec::new(), VmFlags::default()),
            texts: VecDeque::with_capacity(MAX_TEXTS),
        }
    }

    /// Parses the next piece of text. A piece may begin and end at any byte.
    pub fn push(&mut self, text: &[u8]) {
        let mut carry = std::mem::take(&mut self.carry);
        let rest = whole_lines(&mut carry, text, |lines| self.whole_lines(lines));
        carry.extend_from_slice(rest);
        self.carry = carry;
    }

    /// Returns the complete mappings, and the error that ended the parsing.
    pub fn finish(mut self) -> ParsedMappings {
        let carry = std::mem::take(&mut self.carry);
        // Names of fields start with a capital letter: anything else begins the next entry.
        let field_begun = carry.first().is_some_and(u8::is_ascii_uppercase);
        if field_begun || self.is_cut() {
            self.tear("the rest of the entry", &carry);
        }
        self.close(None);
        if !carry.is_empty() {
            self.tear("a whole line", &carry);
        }
        self.parsed
    }

    /// Returns true if lines of the open entry are missing. All entries of a kernel have the same
    /// lines, so the entry must have at least as many lines as the previous one. The first entry is
    /// complete if it has `VmFlags`, the last line of an entry since Linux 3.8. Before 3.8 every
    /// process had several mappings, so a single entry is incomplete.
    fn is_cut(&self) -> bool {
        match &self.open {
            Some((_, entry)) if self.lines_before == 0 => entry.own.flags.is_none(),
            Some(_) => self.lines < self.lines_before,
            None => false,
        }
    }

    fn whole_lines(&mut self, all: &[u8]) {
        let mut text = all;
        // The lines of the open entry, if all of them are in this piece.
        let mut below: Option<&[u8]> = None;
        while !text.is_empty() && self.parsed.torn.is_none() {
            if let Some(rest) = self.known_line(text) {
                text = rest;
                self.count_lines(1);
                continue;
            }
            let end = memchr::memchr(b'\n', text).unwrap_or(text.len() - 1);
            let (line, rest) = (&text[..end], &text[end + 1..]);
            if is_header(line) {
                let own = below.map(|below| &below[..below.len() - text.len()]);
                self.close(own);
                self.header(line);
                self.count_lines(1);
                below = Some(rest);
                text = self.known_entry(rest).unwrap_or(rest);
            } else {
                self.any_line(line);
                self.count_lines(1);
                text = rest;
            }
        }
    }

    fn count_lines(&mut self, lines: usize) {
        self.line += lines;
        self.lines += lines;
    }

    /// If `text`, which follows the header of a mapping, begins with the lines of a recent entry,
    /// gives the mapping a reference to the parsed counters of that entry. Returns the text behind
    /// these lines.
    fn known_entry<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let (_, entry) = self.open.as_mut()?;
        let known = self.texts.iter().find(|known| text.starts_with(&known.bytes))?;
        entry.shared = Some(Arc::clone(&known.entry));
        let lines = known.lines;
        let rest = &text[known.bytes.len()..];
        self.count_lines(lines);
        // Further lines of the entry, if any, take the general path.
        self.next = self.layout.len();
        Some(rest)
    }

    fn header(&mut self, line: &[u8]) {
        match self.builder.mapping(line) {
            Some(mapping) => self.open = Some((mapping, SmapsEntryText::default())),
            None => self.tear("a mapping", line),
        }
    }

    /// Fast path: parses a line that differs only in its number from its counterpart in the
    /// previous entry.
    #[inline]
    fn known_line<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        let shape = self.layout.get(self.next)?;
        let (prefix, rest) = text.split_first_chunk::<PREFIX>()?;
        let (digits, rest) = rest.split_first_chunk::<DIGITS>()?;
        if *prefix != shape.prefix {
            return None;
        }
        let rest = rest.strip_prefix(shape.end)?;
        let (_, entry) = self.open.as_mut()?;
        entry.own().set(shape.counter, padded_number(*digits)? << shape.shift);
        self.next += 1;
        Some(rest)
    }

    /// General path: parses any line below a header, without its newline.
    fn any_line(&mut self, line: &[u8]) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            return self.flags(flags);
        }
        let Some((_, entry)) = &mut self.open else { return self.tear("a mapping", line) };
        match general(entry.own(), line) {
            None => self.tear("a field and its value", line),
            Some(None) => {}
            Some(Some(counter)) => self.learn(counter, line),
        }
    }

    /// Advances `next` past a line of `layout`, or appends the line to `layout` while the first
    /// entry is read.
    fn learn(&mut self, counter: SmapsCounter, line: &[u8]) {
        if self.layout.get(self.next).is_some_and(|shape| shape.counter == counter) {
            self.next += 1;
        } else if self.next == self.layout.len()
            && let Some(shape) = LineShape::of_line(counter, line)
        {
            self.layout.push(shape);
            self.next += 1;
        }
    }

    /// Parses `VmFlags`, which neighbors often share.
    fn flags(&mut self, codes: &[u8]) {
        if self.last_flags.0 != codes {
            self.last_flags = (codes.to_vec(), vm_flags(codes));
        }
        match &mut self.open {
            Some((_, entry)) => entry.own().flags = Some(self.last_flags.1.clone()),
            None => self.tear("a mapping", codes),
        }
    }

    /// Adds the open mapping to the parsed mappings. `text` contains the lines below its header, if
    /// all of them are in one piece.
    fn close(&mut self, text: Option<&[u8]>) {
        if let Some((mut mapping, entry)) = self.open.take() {
            let entry = match entry.shared {
                Some(shared) => shared,
                None => {
                    let equal = self.texts.iter().find(|known| *known.entry == entry.own);
                    let entry = match equal {
                        Some(known) => Arc::clone(&known.entry),
                        None => Arc::new(entry.own),
                    };
                    if let Some(text) = text.filter(|text| (1..=MAX_TEXT).contains(&text.len())) {
                        self.keep_text(text, &entry);
                    }
                    entry
                }
            };
            mapping.smaps = Ok(entry);
            self.parsed.add(mapping);
            self.lines_before = self.lines;
        }
        self.next = 0;
        self.lines = 0;
    }

    /// Keeps the text of an entry, which replaces the oldest text.
    fn keep_text(&mut self, text: &[u8], entry: &Arc<Smaps>) {
        let (bytes, lines) = (text.to_vec(), self.lines - 1);
        self.texts.truncate(MAX_TEXTS - 1);
        self.texts.push_front(Text { bytes, lines, entry: Arc::clone(entry) });
    }

    /// Discards the open entry, and ignores all further text.
    fn tear(&mut self, expected: &'static str, found: &[u8]) {
        self.open = None;
        let torn = || ProcError::parse("smaps", self.line + 1, expected, found);
        self.parsed.torn.get_or_insert_with(torn);
    }
}

impl LineShape {
    /// Returns the layout of a line that the kernel has padded.
    fn of_line(counter: SmapsCounter, line: &[u8]) -> Option<LineShape> {
        let (prefix, rest) = line.split_first_chunk::<PREFIX>()?;
        let (_, end) = rest.split_first_chunk::<DIGITS>()?;
        let (end, shift): (&[u8], u32) = match end {
            b" kB" => (b" kB\n", 10),
            b"" => (b"\n", 0),
            _ => return None,
        };
        let is_padded = prefix.trim_ascii_end().ends_with(b":");
        let fits = is_padded && counter.is_bytes() == (shift != 0);
        fits.then_some(LineShape { prefix: *prefix, end, shift, counter })
    }
}

/// A counter line; any other `Name: text` goes to [`Smaps::extra`]. `None` if the line is neither.
fn general(smaps: &mut Smaps, line: &[u8]) -> Option<Option<SmapsCounter>> {
    let (name, value) = field(line)?;
    let counter = SmapsCounter::named(name);
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

/// True if a line starts an entry: only those start with a lower-case hexadecimal number and a `-`.
fn is_header(line: &[u8]) -> bool {
    let digits = line.iter().take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).count();
    digits > 0 && line.get(digits) == Some(&b'-')
}

/// Eight bytes, blanks and then digits, as a number: `    1234`.
///
/// All eight bytes are handled at once. A blank and a `0` have the same low half. The function also
/// checks the high halves, and checks that no blank follows a digit.
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
    // Each step joins neighboring groups of digits, first to pairs, then to fours, then to all
    // eight: the first group is multiplied by 10, 100 and 10,000.
    let pairs = (low * 10 + (low >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}
