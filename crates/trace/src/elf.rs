//! Headers of ELF files that programs have mapped: segments, sections, unwind index, build ID and
//! links to debug files.
//!
//! Any file can be mapped, so this module does not trust the bytes of a file, and reads only
//! requested parts.

mod source;

use std::io::Read;
use std::ops::Range;

use gimli::{Endianity, RunTimeEndian};

pub(crate) use source::FileSource;

/// Maximum number of segments that are read from a file: no linker writes more.
const MAX_SEGMENTS: u64 = 512;
const MAX_SECTIONS: u64 = 1 << 16;
const MAX_NAMES: u64 = 4 << 20;
const MAX_NOTES: u64 = 1 << 16;
const MAX_LINK: u64 = 4 << 10;

/// A section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderSection {
    name: u32,
    pub(crate) kind: u32,
    flags: u64,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
}

impl HeaderSection {
    const NOBITS: u32 = 8;
    const COMPRESSED: u64 = 1 << 11;

    pub(crate) fn is_compressed(&self) -> bool {
        self.flags & HeaderSection::COMPRESSED != 0
    }
}

/// Contents of a file's headers.
#[derive(Clone, Debug)]
pub(crate) struct FileLayout {
    pub(crate) endian: RunTimeEndian,
    /// True for a 64-bit file.
    pub(crate) is_wide: bool,
    pub(crate) sections: Vec<HeaderSection>,
    names: Vec<u8>,
    pub(crate) segments: Segments,
    /// Address range of the index of unwind tables, `PT_GNU_EH_FRAME`.
    pub(crate) unwind_index: Option<Range<u64>>,
    /// Bytes of thread-local storage, rounded up to their alignment (`PT_TLS`).
    pub(crate) thread_local_bytes: Option<u64>,
    /// Checksum that the linker stored; the debug file has the same.
    pub(crate) build_id: Option<Vec<u8>>,
    /// The file name and CRC of `.gnu_debuglink`.
    pub(crate) debug_link: Option<(Vec<u8>, u32)>,
    /// The path and build ID of `.gnu_debugaltlink`.
    pub(crate) alt_link: Option<(Vec<u8>, Vec<u8>)>,
}

/// Numbers at offsets of a header; a number beyond the end is 0.
struct HeaderWords<'a> {
    bytes: &'a [u8],
    endian: RunTimeEndian,
    /// True if words have 64 bits.
    is_wide: bool,
}

impl HeaderWords<'_> {
    /// Returns an offset or a size: `wide` for a 64-bit file, `narrow` for a 32-bit file.
    fn by_class(&self, wide: usize, narrow: usize) -> usize {
        if self.is_wide { wide } else { narrow }
    }

    /// Returns the word at the offset `wide` of a 64-bit file, or at the offset `narrow` of a
    /// 32-bit file.
    fn word(&self, wide: usize, narrow: usize) -> u64 {
        self.get(self.by_class(wide, narrow), self.by_class(8, 4))
    }

    fn get(&self, at: usize, width: usize) -> u64 {
        let bytes = self.bytes.get(at..at + width).unwrap_or_default();
        match width {
            2 => bytes.try_into().map_or(0, |it: [u8; 2]| self.endian.read_u16(&it).into()),
            4 => bytes.try_into().map_or(0, |it: [u8; 4]| self.endian.read_u32(&it).into()),
            _ => bytes.try_into().map_or(0, |it: [u8; 8]| self.endian.read_u64(&it)),
        }
    }

    fn u32(&self, at: usize) -> u32 {
        u32::try_from(self.get(at, 4)).unwrap_or(0)
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl HeaderSection {
    /// Parses an entry of the section header table.
    fn parse(words: &HeaderWords<'_>) -> HeaderSection {
        HeaderSection {
            name: words.u32(0),
            kind: words.u32(4),
            flags: words.word(8, 8),
            address: words.word(16, 12),
            offset: words.word(24, 16),
            size: words.word(32, 20),
            link: words.u32(words.by_class(40, 24)),
        }
    }
}

impl FileLayout {
    /// Parses the headers of a file. `None` if the file is not ELF.
    pub(crate) fn parse(source: &FileSource) -> Option<FileLayout> {
        let head = source.read(0, 64)?;
        let (is_wide, endian) = match head.get(..6)? {
            [0x7f, b'E', b'L', b'F', class @ 1..=2, order @ 1..=2] => {
                let endian = if *order == 1 { RunTimeEndian::Little } else { RunTimeEndian::Big };
                (*class == 2, endian)
            }
            _ => return None,
        };
        let words = HeaderWords { bytes: &head, endian, is_wide };
        let (segments_at, sections_at) = (words.word(32, 28), words.word(40, 32));
        let half = |wide, narrow| words.get(words.by_class(wide, narrow), 2);
        let (segment_size, segment_count) = (half(54, 42), half(56, 44));
        let (section_size, mut count, mut names) = (half(58, 46), half(60, 48), half(62, 50));
        let mut layout = FileLayout {
            endian,
            is_wide,
            sections: Vec::new(),
            names: Vec::new(),
            segments: Segments::default(),
            unwind_index: None,
            thread_local_bytes: None,
            build_id: None,
            debug_link: None,
            alt_link: None,
        };
        let mut notes = Vec::new();
        if segment_size == words.by_class(56, 32) as u64 {
            let length = segment_count.min(MAX_SEGMENTS) * segment_size;
            let table = source.read(segments_at, length).unwrap_or_default();
            for bytes in table.chunks_exact(size(segment_size)) {
                layout.segment(&HeaderWords { bytes, endian, is_wide }, &mut notes);
            }
        }
        if section_size == words.by_class(64, 40) as u64 && sections_at != 0 {
            let section =
                |bytes: &[u8]| HeaderSection::parse(&HeaderWords { bytes, endian, is_wide });
            let first = section(&source.read(sections_at, section_size).unwrap_or_default());
            if count == 0 {
                count = first.size;
            }
            if names == 0xffff {
                names = first.link.into();
            }
            let length = count.min(MAX_SECTIONS) * section_size;
            let table = source.read(sections_at, length).unwrap_or_default();
            let sections = table.chunks_exact(size(section_size));
            layout.sections.extend(sections.map(section));
            let table = layout.sections.get(size(names)).cloned();
            layout.names = table
                .and_then(|it| source.read(it.offset, it.size.min(MAX_NAMES)))
                .unwrap_or_default();
        }
        layout.read_notes(source, &notes);
        layout.read_links(source);
        Some(layout)
    }

    fn segment(&mut self, words: &HeaderWords<'_>, notes: &mut Vec<(u64, u64)>) {
        const LOAD: u32 = 1;
        const NOTE: u32 = 4;
        const TLS: u32 = 7;
        const EH_FRAME: u32 = 0x6474_e550;
        const EXECUTE: u32 = 1;
        let flags = words.u32(words.by_class(4, 24));
        let (offset, address, length) = (words.word(8, 4), words.word(16, 8), words.word(32, 16));
        match words.u32(0) {
            // The segments of a debug file have addresses but no bytes.
            LOAD => {
                let execute = flags & EXECUTE != 0;
                self.segments.0.push(ElfSegment { offset, address, length, execute });
            }
            NOTE => notes.push((offset, length)),
            TLS => {
                let align = words.word(48, 28).max(1);
                self.thread_local_bytes = words.word(40, 20).checked_next_multiple_of(align);
            }
            EH_FRAME => {
                let end = address.checked_add(words.word(40, 20));
                self.unwind_index = end.map(|end| address..end);
            }
            _ => {}
        }
    }

    /// Reads the build ID. In a debug file, the section of the build ID has bytes but the segments
    /// have none.
    fn read_notes(&mut self, source: &FileSource, segments: &[(u64, u64)]) {
        let section = self.find(b".note.gnu.build-id").map(|it| (it.offset, it.size));
        self.build_id = section.iter().chain(segments).find_map(|(offset, length)| {
            let notes = source.read(*offset, (*length).min(MAX_NOTES))?;
            build_id(&notes, |bytes| self.endian.read_u32(&bytes))
        });
    }

    fn read_links(&mut self, source: &FileSource) {
        let read = |name: &[u8]| {
            let section = self.find(name)?;
            let bytes = source.read(section.offset, section.size.min(MAX_LINK))?;
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some((bytes, end))
        };
        let debug_link = read(b".gnu_debuglink").and_then(|(bytes, end)| {
            let crc = bytes.get((end + 1).next_multiple_of(4)..)?.get(..4)?;
            Some((bytes[..end].to_vec(), self.endian.read_u32(crc)))
        });
        let alt_link = read(b".gnu_debugaltlink");
        self.alt_link =
            alt_link.map(|(bytes, end)| (bytes[..end].to_vec(), bytes[end + 1..].to_vec()));
        self.debug_link = debug_link;
    }

    /// The section with this name, if it has bytes in the file.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&HeaderSection> {
        let is_it = |section: &&HeaderSection| {
            let rest = self.names.get(size(section.name.into())..).unwrap_or_default();
            section.kind != HeaderSection::NOBITS
                && rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
        };
        self.sections.iter().find(is_it)
    }

    /// The bytes of a compressed section, up to a maximum number. `None` for a compression other
    /// than zlib's.
    pub(crate) fn decompressed(
        &self,
        source: &FileSource,
        section: &HeaderSection,
        at_most: u64,
    ) -> Option<Vec<u8>> {
        const ZLIB: u32 = 1;
        let bytes = source.read(section.offset, section.size.min(at_most))?;
        let words = HeaderWords { bytes: &bytes, endian: self.endian, is_wide: self.is_wide };
        let length = words.word(8, 4);
        let rest = bytes.get(words.by_class(24, 12)..).filter(|_| words.u32(0) == ZLIB)?;
        inflate(rest, length, at_most)
    }

    /// Returns true if the file contains debugging information.
    pub(crate) fn has_dwarf(&self) -> bool {
        self.find(b".debug_info").is_some()
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
    /// The virtual address, according to the program headers, of the byte at an offset of the file.
    /// A page of the file can be in two segments: code is in the one that can be executed.
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

/// Decompresses a section, up to a maximum number of bytes.
fn inflate(bytes: &[u8], length: u64, at_most: u64) -> Option<Vec<u8>> {
    if length > at_most {
        return None;
    }
    let mut inflated = Vec::new();
    flate2::read::ZlibDecoder::new(bytes).take(length).read_to_end(&mut inflated).ok()?;
    (inflated.len() as u64 == length).then_some(inflated)
}

/// The description of the note `NT_GNU_BUILD_ID` in bytes that hold notes, with the byte order of
/// the file.
fn build_id(mut notes: &[u8], order: impl Fn([u8; 4]) -> u32) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    let padded = |length: u32| usize::try_from(length).ok()?.checked_next_multiple_of(4);
    loop {
        let word = |at: usize| notes.get(at..)?.first_chunk().copied().map(&order);
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
    use std::fs::File;

    use pagewise_skip::{Lack, skip};
    use proptest::prelude::*;

    use super::*;

    /// Returns the bytes of the test program, which is an ELF file.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn addresses_and_offsets_of_code_are_those_that_readelf_prints() {
        let path = std::env::current_exe().unwrap();
        let readelf = std::process::Command::new("readelf").arg("-Wl").arg(&path).output();
        let Ok(output) = readelf else { return skip(&Lack::Tool("readelf")) };
        let headers = FileLayout::parse(&FileSource::from(File::open(path).unwrap())).unwrap();
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
            if let Some(headers) = FileLayout::parse(&FileSource::Memory(bytes)) {
                let _ = (headers.segments.address(0x1234), headers.segments.offset(u64::MAX));
            }
        }
    }
}
