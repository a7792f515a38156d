//! `/proc/<pid>/maps`: lines to [`Mapping`]s. Also the first line of each `smaps` entry.

use pagewise_model::mapping::{AddrRange, Device, Mapping, Prot, Sharing};
use pagewise_model::{Absent, Name};

use crate::Error;
use crate::text::{Cursor, lines};

/// Mappings read one after the other, and where that stopped.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The mappings that are whole, by address.
    pub mappings: Vec<Mapping>,
    /// Why the rest is missing: text that is cut off or does not read as it should.
    pub torn: Option<Error>,
    /// Lines left out because they repeat or overlap what came before: the process changed meanwhile.
    pub repeated: usize,
}

/// Reads a whole `maps`.
pub fn parse(text: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    if !text.is_empty() && !text.ends_with(b"\n") {
        let last = lines(text).last();
        parsed.torn = last.map(|(line, found)| Error::parse("maps", line, "a whole line", found));
    }
    let whole = memchr::memrchr(b'\n', text).map_or(0, |end| end + 1);
    let mut builder = Builder::default();
    for (number, line) in lines(&text[..whole]) {
        match builder.mapping(line) {
            Some(mapping) => parsed.add(mapping),
            None => {
                parsed.torn = Some(Error::parse("maps", number, "a mapping", line));
                break;
            }
        }
    }
    parsed
}

impl Parsed {
    /// Adds a mapping, unless it does not come after the last one.
    pub(crate) fn add(&mut self, mapping: Mapping) {
        match self.mappings.last() {
            Some(last) if mapping.range.start < last.range.end => self.repeated += 1,
            _ => self.mappings.push(mapping),
        }
    }
}

/// Makes mappings of lines, and lets neighbours share a name.
#[derive(Debug)]
pub(crate) struct Builder {
    name: Name,
    unread: Absent,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder { name: Name::default(), unread: Absent::NotCollected("smaps was not read".into()) }
    }
}

impl Builder {
    /// The mapping of a line, or `None` where the line is none.
    #[inline]
    pub(crate) fn mapping(&mut self, line: &[u8]) -> Option<Mapping> {
        let mut at = Cursor::new(line);
        let start = at.hex()?;
        at.byte(b'-')?;
        let end = at.hex()?;
        at.byte(b' ')?;
        let [read, write, exec, sharing] = at.take::<4>()?;
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

    /// The name, shared with the mapping before where that has the same.
    #[inline]
    fn name(&mut self, bytes: &[u8]) -> Name {
        if self.name.as_bytes() != bytes {
            self.name = Name::new(bytes);
        }
        self.name.clone()
    }
}

/// Where names start in a kernel of 64 bits: the kernel fills up with blanks to here.
const NAME_COLUMN: usize = 73;

/// The name at the end of a line. It may itself start with blanks, so the column decides where it can.
fn name<'a>(line: &'a [u8], rest: &'a [u8]) -> &'a [u8] {
    let inode_end = line.len() - rest.len();
    let column = NAME_COLUMN.max(inode_end + 1);
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
