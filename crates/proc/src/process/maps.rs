//! `/proc/<pid>/maps`: lines to [`Mapping`]s. Also the first line of each `smaps` entry.

use pagewise_model::mapping::{AddrRange, Device, Mapping, Prot, Sharing};
use pagewise_model::{Absent, Name};

use crate::ProcError;
use crate::text::{LineCursor, lines};

/// Mappings in the order of the text, and the error that ended the parsing.
#[derive(Debug, Default)]
pub struct ParsedMappings {
    /// The complete mappings, by address.
    pub mappings: Vec<Mapping>,
    /// Error that ended the parsing: the text is cut off or malformed, and further mappings are
    /// missing.
    pub torn: Option<ProcError>,
    /// Number of lines that were left out because they repeat or overlap earlier lines: the process
    /// changed its mappings meanwhile.
    pub repeated: usize,
}

/// Reads a whole `maps`.
pub fn parse(text: &[u8]) -> ParsedMappings {
    let mut parser = MapsParser::new(Absent::NotCollected("maps has no counters".into()));
    parser.push(text);
    parser.finish()
}

/// Reads `maps` piece by piece, as the kernel returns it.
#[derive(Debug)]
pub struct MapsParser {
    builder: Builder,
    parsed: ParsedMappings,
    /// The start of a line whose end is in the next piece.
    carry: Vec<u8>,
    line: usize,
}

impl MapsParser {
    /// Returns a parser. `unread` is the reason why the mappings have no data of their pages.
    pub fn new(unread: Absent) -> MapsParser {
        MapsParser {
            builder: Builder::new(unread),
            parsed: ParsedMappings::default(),
            carry: Vec::new(),
            line: 0,
        }
    }

    /// Parses the next piece of text. A piece may begin and end at any byte.
    pub fn push(&mut self, text: &[u8]) {
        let mut carry = std::mem::take(&mut self.carry);
        let rest = whole_lines(&mut carry, text, |lines| self.lines(lines));
        carry.extend_from_slice(rest);
        self.carry = carry;
    }

    /// Returns the complete mappings, and the error that ended the parsing.
    pub fn finish(mut self) -> ParsedMappings {
        if !self.carry.is_empty() && self.parsed.torn.is_none() {
            let torn = ProcError::parse("maps", self.line + 1, "a whole line", &self.carry);
            self.parsed.torn = Some(torn);
        }
        self.parsed
    }

    fn lines(&mut self, text: &[u8]) {
        for (_, line) in lines(text) {
            self.line += 1;
            if self.parsed.torn.is_some() {
                return;
            }
            match self.builder.mapping(line) {
                Some(mapping) => self.parsed.add(mapping),
                None => {
                    let torn = ProcError::parse("maps", self.line, "a mapping", line);
                    self.parsed.torn = Some(torn);
                }
            }
        }
    }
}

/// Passes the complete lines of `carry` and `text` to `take`, and returns the incomplete last line.
///
/// `carry` contains the start of the first line. It is empty afterwards if this line ends in
/// `text`.
pub(crate) fn whole_lines<'t>(
    carry: &mut Vec<u8>,
    mut text: &'t [u8],
    mut take: impl FnMut(&[u8]),
) -> &'t [u8] {
    if !carry.is_empty() {
        let Some(end) = memchr::memchr(b'\n', text) else { return text };
        carry.extend_from_slice(&text[..=end]);
        take(carry);
        carry.clear();
        text = &text[end + 1..];
    }
    let whole = memchr::memrchr(b'\n', text).map_or(0, |end| end + 1);
    take(&text[..whole]);
    &text[whole..]
}

impl ParsedMappings {
    /// Adds a mapping, if it begins behind the last one.
    pub(crate) fn add(&mut self, mapping: Mapping) {
        match self.mappings.last() {
            Some(last) if mapping.range.start < last.range.end => self.repeated += 1,
            _ => self.mappings.push(mapping),
        }
    }
}

/// Converts lines to mappings. Neighbors with equal names share one name.
#[derive(Debug)]
pub(crate) struct Builder {
    name: Name,
    unread: Absent,
}

impl Builder {
    /// Returns a builder of mappings. `unread` is the reason for values that are not on the line.
    pub(crate) fn new(unread: Absent) -> Builder {
        Builder { name: Name::default(), unread }
    }

    /// The mapping of a line, or `None` for an invalid line.
    #[inline]
    pub(crate) fn mapping(&mut self, line: &[u8]) -> Option<Mapping> {
        let mut at = LineCursor::new(line);
        let start = at.hex()?;
        at.byte(b'-')?;
        let end = at.hex()?;
        at.byte(b' ')?;
        let [read, write, exec, sharing] = at.take_array::<4>()?;
        at.byte(b' ')?;
        let offset = at.hex()?;
        at.byte(b' ')?;
        let major = u32::try_from(at.hex()?).ok()?;
        at.byte(b':')?;
        let minor = u32::try_from(at.hex()?).ok()?;
        at.byte(b' ')?;
        let inode = at.decimal()?;
        if start >= end || !matches!(at.rest.first(), None | Some(b' ')) {
            return None;
        }
        let name = self.name(name(line, at.rest));
        Some(Mapping {
            range: AddrRange { start, end },
            prot: Prot {
                read: letter(read, b'r')?,
                write: letter(write, b'w')?,
                exec: letter(exec, b'x')?,
            },
            sharing: if letter_of(sharing)? { Sharing::Shared } else { Sharing::Private },
            offset,
            device: Device { major, minor },
            inode,
            name,
            on_tmpfs: false,
            smaps: Err(self.unread.clone()),
            pages: Err(self.unread.clone()),
        })
    }

    /// Returns the name of a mapping. A mapping with the name of the previous one shares it.
    #[inline]
    fn name(&mut self, bytes: &[u8]) -> Name {
        if self.name.as_bytes() != bytes {
            self.name = Name::new(bytes);
        }
        self.name.clone()
    }
}

/// Column at which names start in a 64-bit kernel: it pads with at least two blanks.
const NAME_COLUMN: usize = 73;

/// Returns the name at the end of a line. A name may itself start with blanks, so the column
/// determines its start if possible.
fn name<'a>(line: &'a [u8], rest: &'a [u8]) -> &'a [u8] {
    let inode_end = line.len() - rest.len();
    let column = NAME_COLUMN.max(inode_end + 2);
    match line.get(inode_end..column) {
        Some(blanks) if blanks.iter().all(|&b| b == b' ') => &line[column..],
        _ => rest.trim_ascii_start(),
    }
}

fn letter(found: u8, set: u8) -> Option<bool> {
    match found {
        b'-' => Some(false),
        _ => (found == set).then_some(true),
    }
}

fn letter_of(sharing: u8) -> Option<bool> {
    match sharing {
        b's' => Some(true),
        b'p' => Some(false),
        _ => None,
    }
}
