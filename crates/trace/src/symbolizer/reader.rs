//! Bytes of a file for gimli, read by `pread` in pieces when they are first needed.
//!
//! A mapping of the file would be simpler. But any process that can truncate the file could end
//! this process by SIGBUS. Also, bytes that change while code reads them as `&[u8]` are undefined
//! behavior. A piece that was read does not change.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use gimli::{Error, ReaderOffsetId, Result, RunTimeEndian};

use crate::elf::FileSource;

/// Number of bytes that are read at a time.
const PIECE: u64 = 16 << 10;
/// Maximum number of pieces of a file that are kept: 16 MiB.
const MAX_PIECES: usize = 1 << 10;
/// Maximum length of a name in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// Number of bytes that may still be interpreted. Parsed data is kept, so this bounds memory as
/// well as time, for any file.
#[derive(Debug, Default)]
pub(super) struct Fuel {
    /// Remaining fuel for this look-up.
    left: Cell<u64>,
    /// Fuel used since the beginning.
    used: Cell<u64>,
}

impl Fuel {
    /// Sets the number of bytes that may be interpreted from now on.
    pub(super) fn fill(&self, bytes: u64) {
        self.left.set(bytes);
    }

    /// Number of bytes that were interpreted since the beginning.
    pub(super) fn used(&self) -> u64 {
        self.used.get()
    }

    #[inline]
    fn charge(&self, bytes: u64) -> Result<()> {
        let left = self.left.get().checked_sub(bytes).ok_or(Error::Io)?;
        self.left.set(left);
        self.used.set(self.used.get().wrapping_add(bytes));
        Ok(())
    }
}

/// A file, with its pieces that are kept.
#[derive(Debug)]
pub(super) struct PieceSource {
    source: Rc<FileSource>,
    kept: RefCell<HashMap<u64, Rc<[u8]>>>,
    pub(super) fuel: Fuel,
}

impl PieceSource {
    pub(super) fn new(source: Rc<FileSource>) -> PieceSource {
        PieceSource { source, kept: RefCell::default(), fuel: Fuel::default() }
    }

    /// Bytes of memory that the pieces take.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.borrow().len() as u64 * PIECE
    }

    fn get(&self, number: u64) -> Result<Rc<[u8]>> {
        if let Some(piece) = self.kept.borrow().get(&number) {
            return Ok(Rc::clone(piece));
        }
        let start = number.checked_mul(PIECE).ok_or(Error::Io)?;
        let left = self.source.size().saturating_sub(start).min(PIECE);
        let mut piece: Rc<[u8]> =
            std::iter::repeat_n(0, usize::try_from(left).unwrap_or(0)).collect();
        let bytes = Rc::get_mut(&mut piece).ok_or(Error::Io)?;
        if self.source.read_into(start, bytes) != Some(bytes.len()) {
            return Err(Error::Io);
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MAX_PIECES {
            kept.clear();
        }
        kept.insert(number, Rc::clone(&piece));
        Ok(piece)
    }
}

/// Reader of a range of a file, or of a decompressed section.
#[derive(Clone, Debug)]
pub(super) struct PieceReader {
    pieces: Rc<PieceSource>,
    endian: RunTimeEndian,
    at: u64,
    end: u64,
    /// Start of the piece that was used last.
    first: u64,
    piece: Rc<[u8]>,
    /// True if the piece is the whole section.
    whole: bool,
}

impl PieceReader {
    /// A reader of a range of a file.
    pub(super) fn of_file(
        pieces: &Rc<PieceSource>,
        endian: RunTimeEndian,
        start: u64,
        length: u64,
    ) -> PieceReader {
        let end = start.saturating_add(length);
        let piece = Rc::default();
        PieceReader {
            pieces: Rc::clone(pieces),
            endian,
            at: start,
            end,
            first: 0,
            piece,
            whole: false,
        }
    }

    /// A reader of bytes in memory.
    pub(super) fn of_memory(
        pieces: &Rc<PieceSource>,
        endian: RunTimeEndian,
        bytes: Vec<u8>,
    ) -> PieceReader {
        let (pieces, end) = (Rc::clone(pieces), bytes.len() as u64);
        PieceReader { pieces, endian, at: 0, end, first: 0, piece: bytes.into(), whole: true }
    }

    /// Bytes of the piece from `at` on, up to its end.
    #[inline]
    fn ready(&self) -> &[u8] {
        let from = self.at.wrapping_sub(self.first);
        let Ok(from) = usize::try_from(from) else { return &[] };
        let rest = self.piece.get(from..).unwrap_or_default();
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        rest.get(..left).unwrap_or(rest)
    }

    /// Loads the piece that contains `at`.
    #[cold]
    fn turn(&mut self) -> Result<()> {
        if self.whole {
            return Err(Error::Io);
        }
        let number = self.at / PIECE;
        self.piece = self.pieces.get(number)?;
        self.first = number * PIECE;
        // The file has become shorter.
        if self.ready().is_empty() { Err(Error::Io) } else { Ok(()) }
    }

    #[cold]
    fn read_across(&mut self, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            if self.ready().is_empty() {
                self.turn()?;
            }
            let ready = self.ready();
            let count = ready.len().min(to.len());
            to[..count].copy_from_slice(&ready[..count]);
            self.at += count as u64;
            to = &mut to[count..];
        }
        Ok(())
    }

    fn too_short(&self) -> Error {
        Error::UnexpectedEof(ReaderOffsetId(self.at))
    }

    fn text(&self) -> Result<Vec<u8>> {
        let length = self.end - self.at;
        if length > MAX_TEXT {
            return Err(Error::Io);
        }
        self.pieces.fuel.charge(length)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.clone().read_across(&mut bytes)?;
        Ok(bytes)
    }
}

impl gimli::Reader for PieceReader {
    type Endian = RunTimeEndian;
    type Offset = u64;

    #[inline]
    fn endian(&self) -> RunTimeEndian {
        self.endian
    }

    #[inline]
    fn len(&self) -> u64 {
        self.end - self.at
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    fn truncate(&mut self, length: u64) -> Result<()> {
        if length > self.len() {
            return Err(self.too_short());
        }
        self.end = self.at + length;
        Ok(())
    }

    fn offset_from(&self, base: &PieceReader) -> u64 {
        self.at.wrapping_sub(base.at)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<u64> {
        (self.at..=self.end).contains(&id.0).then(|| id.0 - self.at)
    }

    fn find(&self, byte: u8) -> Result<u64> {
        let mut at = self.clone();
        loop {
            if at.at == at.end {
                return Err(self.too_short());
            }
            if at.ready().is_empty() {
                at.turn()?;
            }
            let ready = at.ready();
            let found = ready.iter().position(|it| *it == byte);
            let passed = found.unwrap_or(ready.len()) as u64;
            self.pieces.fuel.charge(passed)?;
            at.at += passed;
            if found.is_some() {
                return Ok(at.at - self.at);
            }
        }
    }

    #[inline]
    fn skip(&mut self, length: u64) -> Result<()> {
        if length > self.len() {
            return Err(self.too_short());
        }
        self.at += length;
        Ok(())
    }

    #[inline]
    fn split(&mut self, length: u64) -> Result<PieceReader> {
        if length > self.len() {
            return Err(self.too_short());
        }
        let mut first = self.clone();
        first.end = self.at + length;
        self.at += length;
        Ok(first)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.text().map(Cow::Owned)
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        let text = String::from_utf8(self.text()?).map_err(|_| Error::BadUtf8)?;
        Ok(Cow::Owned(text))
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(Cow::Owned(String::from_utf8_lossy(&self.text()?).into_owned()))
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        if let Some(byte) = self.ready().first().copied() {
            self.pieces.fuel.charge(1)?;
            self.at += 1;
            return Ok(byte);
        }
        let mut byte = [0];
        self.read_slice(&mut byte)?;
        Ok(byte[0])
    }

    #[inline]
    fn skip_leb128(&mut self) -> Result<()> {
        let mut last = self.read_u8()?;
        while last & 0x80 != 0 {
            last = self.read_u8()?;
        }
        Ok(())
    }

    #[inline]
    fn read_slice(&mut self, to: &mut [u8]) -> Result<()> {
        if to.len() as u64 > self.len() {
            return Err(self.too_short());
        }
        self.pieces.fuel.charge(to.len() as u64)?;
        if let Some(ready) = self.ready().get(..to.len()) {
            to.copy_from_slice(ready);
            self.at += to.len() as u64;
            return Ok(());
        }
        self.read_across(to)
    }
}
