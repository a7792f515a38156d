//! The trace of valgrind's lackey (`--trace-mem=yes`): text to accesses, piece by piece.
//!
//! ```text
//! I  0401ab70,3        an instruction of 3 bytes
//!  S 1fff000d78,8      a store of 8 bytes
//!  L 04025000,8        a load
//!  M 1fff000d70,4      a load and a store of the same bytes
//! ==123== Lackey, ..   words for people
//! ```

use crate::MemoryAccess;

/// Counts of the lines so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LackeyCounts {
    /// Instructions.
    pub instructions: u64,
    /// Accesses to memory.
    pub accesses: u64,
    /// Lines that are neither, nor messages of valgrind.
    pub unknown: u64,
}

/// Kind of access that stands for a load and a store of the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModifyAs {
    /// A read: a cache misses at the load, and never at the store that follows.
    #[default]
    Read,
    /// A write: the page is dirty afterwards.
    Write,
}

/// Reads a trace that comes in pieces, which may end within a line.
#[derive(Debug, Default)]
pub struct LackeyReader {
    modify: ModifyAs,
    /// The beginning of a line whose end is not read yet.
    rest: Vec<u8>,
    /// True while the rest of a line that is too long is skipped.
    skipping: bool,
    lines: LackeyCounts,
    accesses: Vec<MemoryAccess>,
}

/// Maximum length of a line; longer ones are not part of a trace, and are not stored.
const MAX_LINE_BYTES: usize = 256;

/// Maximum bytes of an access. The largest is that of the instruction that saves all registers,
/// some KiB.
const LARGEST: u64 = 16 << 10;

impl LackeyReader {
    /// A reader that turns a load and a store of the same bytes into an access of this kind.
    pub fn new(modify: ModifyAs) -> LackeyReader {
        LackeyReader { modify, ..LackeyReader::default() }
    }

    /// The accesses of the lines that end in this piece.
    pub fn read(&mut self, piece: &[u8]) -> &[MemoryAccess] {
        self.accesses.clear();
        let mut lines = piece.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            self.end_of_line(line);
        }
        self.keep(last);
        &self.accesses
    }

    /// The access of a last line that no newline ended.
    pub fn finish(&mut self) -> &[MemoryAccess] {
        self.accesses.clear();
        if !self.rest.is_empty() || self.skipping {
            self.end_of_line(b"");
        }
        &self.accesses
    }

    /// Counts of the lines.
    pub fn lines(&self) -> LackeyCounts {
        self.lines
    }

    /// Processes a line: the part that was kept, and `line`, its end.
    fn end_of_line(&mut self, line: &[u8]) {
        if self.rest.is_empty() && !self.skipping {
            return self.line(line);
        }
        self.keep(line);
        let line = std::mem::take(&mut self.rest);
        if std::mem::take(&mut self.skipping) {
            self.lines.unknown += 1;
        } else {
            self.line(&line);
        }
    }

    fn keep(&mut self, part: &[u8]) {
        self.skipping |= self.rest.len() + part.len() > MAX_LINE_BYTES;
        if self.skipping {
            self.rest.clear();
        } else {
            self.rest.extend_from_slice(part);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let (kind, rest) = line.split_at_checked(3).unwrap_or((line, b""));
        let access = match kind {
            b"I  " => {
                self.lines.instructions += 1;
                return;
            }
            b" M " if self.modify == ModifyAs::Write => {
                place(rest).map(|(address, size)| MemoryAccess::write(address, size))
            }
            b" L " | b" M " => place(rest).map(|(address, size)| MemoryAccess::read(address, size)),
            b" S " => place(rest).map(|(address, size)| MemoryAccess::write(address, size)),
            _ => None,
        };
        match access {
            Some(access) => {
                self.lines.accesses += 1;
                self.accesses.push(access);
            }
            None => self.lines.unknown += u64::from(!is_words(line)),
        }
    }
}

/// `04025000,8`: an address in hex and a size in decimal.
fn place(text: &[u8]) -> Option<(u64, u16)> {
    let comma = text.iter().position(|byte| *byte == b',')?;
    let number = |text, radix| u64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok();
    let size = number(&text[comma + 1..], 10)?;
    let size = u16::try_from(size).ok().filter(|size| u64::from(*size) <= LARGEST)?;
    Some((number(&text[..comma], 16)?, size))
}

/// True for a message of valgrind (`==pid==` and `--pid--`), and for an empty line.
fn is_words(line: &[u8]) -> bool {
    line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &[u8] = b"==7== Lackey, an example\nI  0401ab70,3\n S 1fff000d78,8\n\n L 04025000,4\n M 10,1\nnonsense\n L xy,8\n L 10,99999\n S 20,2";

    fn all(pieces: &[&[u8]]) -> (Vec<MemoryAccess>, LackeyCounts) {
        let mut reader = LackeyReader::default();
        let mut accesses = Vec::new();
        pieces.iter().for_each(|piece| accesses.extend_from_slice(reader.read(piece)));
        accesses.extend_from_slice(reader.finish());
        (accesses, reader.lines())
    }

    #[test]
    fn loads_and_stores_are_accesses_and_other_lines_are_counted() {
        let expected = [
            MemoryAccess::write(0x1f_ff00_0d78, 8),
            MemoryAccess::read(0x402_5000, 4),
            MemoryAccess::read(0x10, 1),
            MemoryAccess::write(0x20, 2),
        ];
        let lines = LackeyCounts { instructions: 1, accesses: 4, unknown: 3 };
        assert_eq!(all(&[TRACE]), (expected.to_vec(), lines));
    }

    #[test]
    fn a_load_and_a_store_of_the_same_bytes_are_a_write_where_pages_are_simulated() {
        let mut reader = LackeyReader::new(ModifyAs::Write);
        let expected = [MemoryAccess::write(0x10, 1), MemoryAccess::read(0x20, 1)];
        assert_eq!(reader.read(b" M 10,1\n L 20,1\n"), expected);
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut reader = LackeyReader::default();
        (0..100).for_each(|_| assert!(reader.read(&[b'a'; 1000]).is_empty()));
        assert!(reader.rest.capacity() <= 2 * MAX_LINE_BYTES);
        assert_eq!(reader.read(b"\n L 10,8\n"), [MemoryAccess::read(0x10, 8)]);
        assert_eq!(
            reader.lines(),
            LackeyCounts { accesses: 1, unknown: 1, ..LackeyCounts::default() }
        );
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_trace_is_cut(cuts in prop::collection::vec(0..TRACE.len(), 0..9)) {
            let mut cuts = cuts;
            cuts.extend([0, TRACE.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &TRACE[ends[0]..ends[1]]).collect();
            prop_assert_eq!(all(&pieces), all(&[TRACE]));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let (accesses, lines) = all(&[&bytes]);
            prop_assert_eq!(accesses.len() as u64, lines.accesses);
        }
    }
}
