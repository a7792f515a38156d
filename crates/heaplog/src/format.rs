//! Format of a file: frames, each with a length and a checksum, and the encoding of numbers.
//! `FORMAT.md` specifies the format.

use std::io::{self, Read, Write};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// First bytes of a file. They detect damage by a text editor, by a transfer in text mode, or by
/// truncation at the first zero byte.
pub(crate) const MAGIC: [u8; 8] = *b"\x89pwheap\n";
/// The version of the format. A reader refuses later versions. Data that a reader can ignore needs
/// a new kind of frame, but no new version.
pub(crate) const VERSION: u8 = 1;

/// Kinds of frames.
pub(crate) mod kind {
    pub(crate) const BEGIN: u8 = 1;
    pub(crate) const MODULES: u8 = 2;
    pub(crate) const PLACES: u8 = 3;
    pub(crate) const NODES: u8 = 4;
    pub(crate) const SITES: u8 = 5;
    pub(crate) const MOMENT: u8 = 6;
    pub(crate) const COUNTS: u8 = 7;
    pub(crate) const END: u8 = 8;
    pub(crate) const INDEX: u8 = 9;
    pub(crate) const TRAILER: u8 = 10;
    pub(crate) const LAYOUT: u8 = 11;
    pub(crate) const BLOCKS: u8 = 12;
}

/// Limits of a reader: a file that exceeds one is damaged or hostile.
pub(crate) mod limit {
    /// Maximum number of bytes in a frame, compressed or uncompressed.
    pub(crate) const FRAME: u64 = 1 << 26;
    pub(crate) const MODULES: usize = 1 << 16;
    pub(crate) const PLACES: usize = 1 << 22;
    pub(crate) const NODES: usize = 1 << 24;
    pub(crate) const SITES: usize = 1 << 21;
    pub(crate) const MOMENTS: usize = 1 << 20;
    /// Maximum number of sites in the live trees of snapshots and in layouts, summed over a file.
    pub(crate) const LEAVES: usize = 1 << 23;
    pub(crate) const LAYOUTS: usize = 1 << 13;
    /// Maximum number of live blocks at the end.
    pub(crate) const BLOCKS: usize = crate::recording::MAX_BLOCKS;
    /// Maximum number of areas in a layout.
    pub(crate) const AREAS: usize = 1 << 14;
    /// Each area counts as this number of sites toward the limit `LEAVES`.
    pub(crate) const AREA_LEAVES: usize = 8;
    pub(crate) const THREADS: usize = 1 << 16;
    /// Maximum number of words of a command, and of cells of a histogram.
    pub(crate) const LIST: usize = 1 << 16;
    /// Maximum number of bytes of a path or of a word.
    pub(crate) const TEXT: usize = 1 << 20;
}

/// Reason why data of a file is invalid.
pub(crate) type Bad = &'static str;

/// Bytes of a frame's payload while it is written.
#[derive(Debug, Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Writes seven bits per byte, the low bits first; the top bit of a byte is set if another byte
    /// follows.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.byte(number.to_le_bytes()[0]);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    /// Writes the difference from `before` to `now`, with wrap-around: small differences of either
    /// sign take few bytes.
    pub(crate) fn change(&mut self, before: u64, now: u64) {
        let change = now.wrapping_sub(before).cast_signed();
        self.number(((change << 1) ^ (change >> 63)).cast_unsigned());
    }

    pub(crate) fn option(&mut self, number: Option<u64>) {
        self.byte(number.is_some().into());
        number.into_iter().for_each(|number| self.number(number));
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        self.count(text.len());
        self.0.extend_from_slice(text);
    }

    pub(crate) fn bits(&mut self, number: f64) {
        self.0.extend_from_slice(&number.to_bits().to_le_bytes());
    }
}

/// The part of a payload that is not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct In<'a>(pub(crate) &'a [u8]);

impl<'a> In<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Bad> {
        let (first, rest) = self.0.split_first().ok_or("it ends early")?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Bad> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("it ends early")?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Bad> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number has more than 64 bits")
    }

    pub(crate) fn number32(&mut self) -> Result<u32, Bad> {
        u32::try_from(self.number()?).map_err(|_| "a number has more than 32 bits")
    }

    /// Reads the number of the following items, each of which has at least `least` bytes. Refuses a
    /// number of items that the remaining bytes cannot contain, so the caller allocates no memory
    /// for them.
    pub(crate) fn count(&mut self, least: usize, most: usize) -> Result<usize, Bad> {
        let count = usize::try_from(self.number()?).map_err(|_| "too many")?;
        let fits = count.checked_mul(least).is_some_and(|bytes| bytes <= self.0.len());
        if !fits {
            return Err("it ends early");
        }
        if count > most { Err("too many") } else { Ok(count) }
    }

    pub(crate) fn change(&mut self, before: u64) -> Result<u64, Bad> {
        let bits = self.number()?;
        let change = (bits >> 1).cast_signed() ^ -(bits & 1).cast_signed();
        Ok(before.wrapping_add_signed(change))
    }

    pub(crate) fn option(&mut self) -> Result<Option<u64>, Bad> {
        if self.flag()? { self.number().map(Some) } else { Ok(None) }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Bad> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    pub(crate) fn text(&mut self) -> Result<Vec<u8>, Bad> {
        let length = self.count(1, limit::TEXT)?;
        Ok(self.bytes(length)?.to_vec())
    }

    pub(crate) fn bits(&mut self) -> Result<f64, Bad> {
        let bytes = self.bytes(8)?.first_chunk().ok_or("it ends early")?;
        Ok(f64::from_bits(u64::from_le_bytes(*bytes)))
    }
}

/// Result of reading a frame.
#[derive(Debug)]
pub(crate) enum Next {
    /// A frame: its kind, its payload, and its number of bytes in the file.
    Frame(u8, Vec<u8>, u64),
    /// The file ends after a complete frame.
    Nothing,
    /// The following bytes are not a complete frame.
    Broken(Bad),
}

/// Checksum of a frame: CRC-32 of its head and of its stored payload.
fn checksum(head: &[u8], stored: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(head);
    crc.update(stored);
    crc.sum().to_le_bytes()
}

/// Encodes a frame; its payload is compressed if this makes it smaller.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> io::Result<Vec<u8>> {
    /// Minimum number of payload bytes for compression; shorter payloads do not become smaller.
    const WORTH_IT: usize = 64;
    let packed = if payload.len() >= WORTH_IT {
        let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::new(7));
        encoder.write_all(payload)?;
        Some(encoder.finish()?).filter(|packed| packed.len() < payload.len())
    } else {
        None
    };
    let stored = packed.as_deref().unwrap_or(payload);
    let mut head = Out(vec![kind]);
    head.count(stored.len());
    head.count(if packed.is_some() { payload.len() } else { 0 });
    let Out(mut bytes) = head;
    let sum = checksum(&bytes, stored);
    bytes.extend_from_slice(&sum);
    bytes.extend_from_slice(stored);
    Ok(bytes)
}

/// Reads a frame. Allocates memory only for bytes that are present, not for the length that the
/// file states.
pub(crate) fn next(input: &mut impl Read) -> io::Result<Next> {
    const CUT: Bad = "the file was cut off in the middle of a frame";
    /// Maximum number of bytes of a frame's head: one for the kind, and ten for each of two
    /// numbers.
    const HEAD: usize = 21;
    let mut head = Vec::with_capacity(HEAD);
    let mut ends = 0;
    while ends < 3 {
        let mut byte = [0];
        if !fill(input, &mut byte)? {
            return Ok(if head.is_empty() { Next::Nothing } else { Next::Broken(CUT) });
        }
        ends += usize::from(head.is_empty() || byte[0] < 0x80);
        head.push(byte[0]);
        if head.len() > HEAD {
            return Ok(Next::Broken("the head of a frame is longer than one can be"));
        }
    }
    let mut numbers = In(&head[1..]);
    let (Ok(stored_length), Ok(length)) = (numbers.number(), numbers.number()) else {
        return Ok(Next::Broken("the head of a frame has a number of more than 64 bits"));
    };
    if stored_length.max(length) > limit::FRAME {
        return Ok(Next::Broken("the size of a frame exceeds its limit"));
    }
    let mut sum = [0; 4];
    if !fill(input, &mut sum)? {
        return Ok(Next::Broken(CUT));
    }
    let mut stored = Vec::new();
    input.take(stored_length).read_to_end(&mut stored)?;
    if stored.len() as u64 != stored_length {
        return Ok(Next::Broken(CUT));
    }
    if checksum(&head, &stored) != sum {
        return Ok(Next::Broken("the checksum of a frame is another"));
    }
    let took = (head.len() + sum.len()) as u64 + stored_length;
    if length == 0 {
        return Ok(Next::Frame(head[0], stored, took));
    }
    let mut payload = Vec::new();
    // Reading one byte more than the stated length detects a longer payload.
    let unpacked = DeflateDecoder::new(&stored[..]).take(length + 1).read_to_end(&mut payload);
    Ok(match unpacked {
        Ok(_) if payload.len() as u64 == length => Next::Frame(head[0], payload, took),
        _ => Next::Broken("a frame cannot be unpacked"),
    })
}

/// Fills `room`; returns false if the input ends before `room` is full.
pub(crate) fn fill(input: &mut impl Read, room: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(room) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_above_64_bits_are_refused() {
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        assert_eq!(In(&most).number(), Ok(u64::MAX));
        assert!(In(&[[0xff; 9].as_slice(), &[2]].concat()).number().is_err());
        assert!(In(&[0x80; 11]).number().is_err());
        assert!(In(&[0x80]).number().is_err());
    }

    #[test]
    fn a_count_that_the_payload_cannot_hold_is_refused() {
        assert_eq!(In(&[2, 0, 0]).count(1, 9), Ok(2));
        assert!(In(&[3, 0, 0]).count(1, 9).is_err());
        assert!(In(&[2, 0, 0]).count(2, 9).is_err());
        assert!(In(&[2, 0, 0]).count(1, 1).is_err());
        assert!(In(&[[0xff; 9].as_slice(), &[1]].concat()).count(1, usize::MAX).is_err());
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(a: u64, b: u64, c in any::<Option<u64>>()) {
            let mut out = Out::default();
            out.number(a);
            out.change(a, b);
            out.change(b, a);
            out.option(c);
            let mut read = In(&out.0);
            let found = (read.number(), read.change(a), read.change(b), read.option());
            prop_assert_eq!(found, (Ok(a), Ok(b), Ok(a), Ok(c)));
            prop_assert!(read.0.is_empty());
        }

        #[test]
        fn frames_are_read_as_they_were_written(
            kind: u8,
            payload in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                prop::collection::vec(0_u8..3, 0..2000),
            ],
        ) {
            let bytes = frame(kind, &payload).unwrap();
            let Next::Frame(found, read, took) = next(&mut &bytes[..]).unwrap() else {
                return Err(TestCaseError::fail("no frame"));
            };
            prop_assert_eq!((found, read, took), (kind, payload, bytes.len() as u64));
            for cut in 1..bytes.len() {
                prop_assert!(matches!(next(&mut &bytes[..cut]).unwrap(), Next::Broken(_)));
            }
        }
    }
}
