//! Headers of ELF files that programs have mapped: where segments, unwind tables and the build ID
//! are.
//!
//! Any file can be mapped, so nothing here trusts what it reads, and no more is read than is asked
//! for.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Source of the bytes of a file.
#[derive(Debug)]
pub(crate) enum ElfBytes {
    /// A file.
    File(File),
    /// Bytes in memory.
    Memory(Vec<u8>),
}

impl ElfBytes {
    /// Returns at most `at_most` bytes from an offset on; fewer at the end.
    pub(crate) fn read(&self, offset: u64, at_most: u64) -> Option<Vec<u8>> {
        let whole = match self {
            ElfBytes::File(file) => file.metadata().ok()?.len(),
            ElfBytes::Memory(bytes) => bytes.len() as u64,
        };
        let length = usize::try_from(whole.checked_sub(offset)?.min(at_most)).ok()?;
        match self {
            ElfBytes::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(bytes)
            }
            ElfBytes::Memory(bytes) => {
                let start = usize::try_from(offset).ok()?;
                bytes.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
            }
        }
    }
}

/// A part of a file that is loaded, `PT_LOAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElfSegment {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) execute: bool,
}

/// All loaded parts of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments(pub(crate) Vec<ElfSegment>);

impl Segments {
    /// The address, as the file has it, of the byte at an offset. A page of the file can be in two
    /// segments: code is in the one that can be executed.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let has = |it: &&ElfSegment| offset.checked_sub(it.offset).is_some_and(|at| at < it.length);
        let code = self.0.iter().filter(|it| it.execute).find(has);
        let segment = code.or_else(|| self.0.iter().find(has))?;
        segment.address.checked_add(offset - segment.offset)
    }

    /// The offset in the file of an address, and the end of its segment.
    pub(crate) fn offset(&self, address: u64) -> Option<Range<u64>> {
        self.0.iter().find_map(|it| {
            let into = address.checked_sub(it.address).filter(|into| *into < it.length)?;
            Some(it.offset.checked_add(into)?..it.offset.checked_add(it.length)?)
        })
    }
}

/// The program headers of a file. Sections are not asked: who strips a file may take them away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) segments: Segments,
    /// Address range of the index of unwind tables, `PT_GNU_EH_FRAME`.
    pub(crate) unwind_index: Option<Range<u64>>,
    /// Checksum that the linker stored; the file of debugging information has the same.
    pub(crate) build_id: Option<Vec<u8>>,
}

/// More program headers than this no file has.
const HEADERS: u64 = 512;
/// A longer note is not a build ID.
const NOTES: u64 = 1 << 16;

/// `p_type`, and a flag.
mod segment {
    pub(super) const LOAD: u32 = 1;
    pub(super) const NOTE: u32 = 4;
    pub(super) const EH_FRAME: u32 = 0x6474_e550;
    pub(super) const EXECUTE: u32 = 1;
}

/// A little-endian number at a place.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(|it| u16::from_le_bytes(it).into())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

impl Headers {
    /// Headers of a little-endian 64-bit file. `None` for any other file.
    pub(crate) fn parse(bytes: &ElfBytes) -> Option<Headers> {
        const MAGIC: &[u8] = b"\x7fELF\x02\x01";
        const FILE_HEADER: u64 = 64;
        const HEADER: usize = 56;
        let file = bytes.read(0, FILE_HEADER)?;
        let (start, size, count) = (u64_at(&file, 32)?, u16_at(&file, 54)?, u16_at(&file, 56)?);
        if !file.starts_with(MAGIC) || size != HEADER as u64 {
            return None;
        }
        let table = bytes.read(start, count.min(HEADERS) * size)?;
        let mut headers = Headers::default();
        for header in table.chunks_exact(HEADER) {
            let (kind, flags) = (u32_at(header, 0)?, u32_at(header, 4)?);
            let (offset, address) = (u64_at(header, 8)?, u64_at(header, 16)?);
            let (in_file, in_memory) = (u64_at(header, 32)?, u64_at(header, 40)?);
            match kind {
                // A file of debugging information has none of the bytes, but has the addresses.
                segment::LOAD => headers.segments.0.push(ElfSegment {
                    offset,
                    address,
                    length: in_file,
                    execute: flags & segment::EXECUTE != 0,
                }),
                segment::EH_FRAME => {
                    let end = address.checked_add(in_memory)?;
                    headers.unwind_index = Some(address..end);
                }
                segment::NOTE if headers.build_id.is_none() => {
                    let notes = bytes.read(offset, in_file.min(NOTES)).unwrap_or_default();
                    headers.build_id = build_id(&notes, u32::from_le_bytes);
                }
                _ => {}
            }
        }
        Some(headers)
    }
}

/// A section of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElfSection {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// The section of a name.
pub(crate) fn section(bytes: &ElfBytes, name: &[u8]) -> Option<ElfSection> {
    const FILE_HEADER: u64 = 64;
    const HEADER: usize = 64;
    /// More sections than this no file has, nor names longer together.
    const SECTIONS: u64 = 1 << 14;
    const NAMES: u64 = 1 << 20;
    let file = bytes.read(0, FILE_HEADER)?;
    let (start, size, count) = (u64_at(&file, 40)?, u16_at(&file, 58)?, u16_at(&file, 60)?);
    if size != HEADER as u64 {
        return None;
    }
    let table = bytes.read(start, count.min(SECTIONS) * size)?;
    let header = |at: usize| table.chunks_exact(HEADER).nth(at);
    let names = header(usize::try_from(u16_at(&file, 62)?).ok()?)?;
    let names = bytes.read(u64_at(names, 24)?, u64_at(names, 32)?.min(NAMES))?;
    let is_it = |header: &&[u8]| {
        let at = u32_at(header, 0).and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| names.get(at..)).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    };
    let found = table.chunks_exact(HEADER).find(is_it)?;
    Some(ElfSection {
        address: u64_at(found, 16)?,
        offset: u64_at(found, 24)?,
        size: u64_at(found, 32)?,
    })
}

/// The description of the note `NT_GNU_BUILD_ID` in bytes that hold notes, with the byte order of
/// the file.
pub(crate) fn build_id(mut notes: &[u8], order: impl Fn([u8; 4]) -> u32) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    let padded = |length: u32| usize::try_from(length).ok()?.checked_next_multiple_of(4);
    loop {
        let word = |at| number(notes, at).map(&order);
        let (name_length, length, kind) = (word(0)?, word(4)?, word(8)?);
        let (name, rest) = notes.get(12..)?.split_at_checked(padded(name_length)?)?;
        let description = rest.get(..usize::try_from(length).ok()?)?;
        if kind == BUILD_ID && name == b"GNU\0" && !description.is_empty() {
            return Some(description.to_vec());
        }
        notes = rest.get(padded(length)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use pagewise_skip::{Lack, skip};
    use proptest::prelude::*;

    use super::*;

    /// The test itself is a file of the kind.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn addresses_and_offsets_of_code_are_those_that_readelf_tells() {
        let path = std::env::current_exe().unwrap();
        let readelf = std::process::Command::new("readelf").arg("-Wl").arg(&path).output();
        let Ok(output) = readelf else { return skip(&Lack::Tool("readelf")) };
        let headers = Headers::parse(&ElfBytes::File(File::open(path).unwrap())).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
        let mut seen = 0;
        for line in text.lines().filter(|line| line.contains("LOAD") && line.contains(" E ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (offset, address) = (hex(words[1]), hex(words[2]));
            assert_eq!(headers.segments.address(offset + 1), Some(address + 1), "{text}");
            assert_eq!(headers.segments.offset(address + 1).map(|it| it.start), Some(offset + 1));
            seen += 1;
        }
        assert!(seen > 0, "{text}");
    }

    #[test]
    fn a_build_id_is_found_behind_another_note() {
        let mut notes = Vec::new();
        for (kind, name, text) in [(1_u32, b"GNU\0", &b"abc"[..]), (3, b"GNU\0", b"\x12\x34")] {
            notes.extend(4_u32.to_le_bytes());
            notes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(name);
            notes.extend(text);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(build_id(&notes, u32::from_le_bytes), Some(vec![0x12, 0x34]));
        assert_eq!(build_id(&notes[..20], u32::from_le_bytes), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_read_or_refused(
            cut in 0_usize..2000,
            changes in prop::collection::vec((0_usize..2000, any::<u8>()), 0..40),
        ) {
            let mut bytes = own();
            bytes.truncate(2000);
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            if let Some(headers) = Headers::parse(&ElfBytes::Memory(bytes)) {
                let _ = (headers.segments.address(0x1234), headers.segments.offset(u64::MAX));
            }
        }
    }
}
