//! The program and its libraries: load biases, and which part of its ELF file a mapping is.
//!
//! ```text
//! file        |ELF .dynsym .rodata|  .text  |relro .data|
//! segments    |     R             |   R X   |   R W     :  p_memsz > p_filesz |
//! mappings    |     r--p          |   r-xp  |r--p  rw-p |  rw-p, anonymous    |
//! part        |    rodata         |   text  |   data    |        bss          |
//! ```

use std::collections::HashMap;

use pagewise_model::mapping::MappedFileKey;
use pagewise_model::object::{Elf, ElfObject, LoadSegment};
use pagewise_model::{AddrRange, Mapping, PageSize, Snapshot};

use super::{ElfPart, PoolKind, PoolMark, Sorter};

/// Places the mappings of the program, and of libraries whose ELF headers are known.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let images = find(sorter);
    let program = program(&images, sorter.snapshot);
    for image in &images {
        for &(mapping, part) in &image.mappings {
            sorter.parts[mapping] = Some(part);
            place_one(sorter, mapping, part, image.object, program.as_ref());
        }
    }
}

fn place_one(
    sorter: &mut Sorter<'_>,
    mapping: usize,
    part: ElfPart,
    object: &ElfObject,
    program: Option<&MappedFileKey>,
) {
    let key = object.key();
    let kind = if program == Some(&key) { program_kind(part) } else { PoolKind::Library };
    sorter.put_marked(mapping, kind, PoolMark::File(key), || super::names::path(&object.name));
}

const fn program_kind(part: ElfPart) -> PoolKind {
    match part {
        ElfPart::Text => PoolKind::ProgramText,
        ElfPart::Rodata => PoolKind::ProgramRodata,
        ElfPart::Data => PoolKind::ProgramData,
        ElfPart::Bss => PoolKind::ProgramBss,
        ElfPart::Padding => PoolKind::Program,
    }
}

/// An ELF file that is loaded at one address.
struct LoadedImage<'a> {
    object: &'a ElfObject,
    elf: &'a Elf,
    page: PageSize,
    /// Difference between the file's addresses and the process's, modulo 2^64.
    bias: u64,
    mappings: Vec<(usize, ElfPart)>,
    executable: bool,
}

/// The images in a process, by address.
fn find<'a>(sorter: &Sorter<'a>) -> Vec<LoadedImage<'a>> {
    let page = sorter.snapshot.provenance.page_size;
    let objects: HashMap<MappedFileKey, &ElfObject> =
        sorter.snapshot.objects.iter().map(|o| (o.key(), o)).collect();
    let mut images = Vec::new();
    let mut current: Option<LoadedImage<'a>> = None;
    let mut last: Option<(MappedFileKey, Option<&ElfObject>)> = None;
    for (index, mapping) in sorter.mappings.iter().enumerate() {
        let Some(key) = mapping.file_key() else {
            if let Some(image) = &mut current {
                image.take_anonymous(index, mapping);
            }
            continue;
        };
        let object = match &last {
            Some((same, object)) if *same == key => *object,
            _ => objects.get(&key).copied(),
        };
        last = Some((key, object));
        let taken = current.as_mut().is_some_and(|image| image.take_file(index, mapping));
        if !taken && let Some(object) = object {
            images.extend(current.take());
            current = LoadedImage::begin(object, page, mapping);
            if let Some(image) = &mut current {
                image.take_file(index, mapping);
            }
        }
    }
    images.extend(current);
    images.retain(LoadedImage::is_loaded);
    images
}

/// The file that the process executes: where `exe` points, else the lowest image with code.
fn program(images: &[LoadedImage<'_>], snapshot: &Snapshot) -> Option<MappedFileKey> {
    let exe = snapshot.process.exe.as_ref().ok().map(super::names::path);
    let named = images.iter().find(|i| Some(super::names::path(&i.object.name)) == exe);
    let image = named.or_else(|| images.iter().find(|i| i.executable))?;
    Some(image.object.key())
}

impl<'a> LoadedImage<'a> {
    /// The image that starts with this mapping, where the file is ELF and one of its segments
    /// starts there.
    fn begin(object: &'a ElfObject, page: PageSize, first: &Mapping) -> Option<LoadedImage<'a>> {
        let elf = object.elf.as_ref().ok()?;
        let starts = |s: &&LoadSegment| s.file_size > 0 && down(page, s.offset) == first.offset;
        let segment = elf.segments.iter().find(starts)?;
        let bias = first.range.start.wrapping_sub(down(page, segment.range.start));
        Some(LoadedImage { object, elf, page, bias, mappings: Vec::new(), executable: false })
    }

    /// Adds a file mapping if it is of this image: the same file, at the addresses of a segment.
    fn take_file(&mut self, index: usize, mapping: &Mapping) -> bool {
        let same = mapping.file_key() == Some(self.object.key());
        let part = if same { self.file_part(mapping) } else { None };
        if let Some(part) = part {
            self.mappings.push((index, part));
            self.executable |= mapping.prot.exec;
        }
        part.is_some()
    }

    fn file_part(&self, mapping: &Mapping) -> Option<ElfPart> {
        let address = mapping.range.start.wrapping_sub(self.bias);
        let Some(segment) = self.segment_at(address) else {
            let span = self.span();
            return (mapping.prot.is_none() && span.contains(address)).then_some(ElfPart::Padding);
        };
        let here = segment.offset.wrapping_add(address.wrapping_sub(segment.range.start));
        (here == mapping.offset).then(|| self.part(segment, address))
    }

    /// Adds an anonymous mapping if it is the zero-filled tail of a segment, or stands in for a
    /// part of one (code copied into huge pages).
    fn take_anonymous(&mut self, index: usize, mapping: &Mapping) {
        if !(mapping.name.is_empty() || mapping.name.as_bytes() == b"[anon:.bss]") {
            return;
        }
        let start = mapping.range.start.wrapping_sub(self.bias);
        let Some(segment) = self.segment_at(start) else { return };
        // The kernel merges bss with anonymous memory that happens to follow it: the larger part
        // decides.
        let inside = up(self.page, segment.range.end).saturating_sub(start);
        if inside.saturating_mul(2) >= mapping.size().0 {
            self.mappings.push((index, self.part(segment, start)));
        }
    }

    fn part(&self, segment: &LoadSegment, address: u64) -> ElfPart {
        let file_end = up(self.page, segment.range.start.saturating_add(segment.file_size));
        if segment.file_size == 0 || address >= file_end {
            ElfPart::Bss
        } else if segment.exec {
            ElfPart::Text
        } else if segment.write {
            ElfPart::Data
        } else {
            ElfPart::Rodata
        }
    }

    /// The segment whose pages hold an address of the file.
    fn segment_at(&self, address: u64) -> Option<&'a LoadSegment> {
        let segments = &self.elf.segments;
        let after = segments.partition_point(|s| down(self.page, s.range.start) <= address);
        let segment = &segments[after.checked_sub(1)?];
        (address < up(self.page, segment.range.end)).then_some(segment)
    }

    fn span(&self) -> AddrRange {
        let segments = &self.elf.segments;
        AddrRange {
            start: segments.first().map_or(0, |s| down(self.page, s.range.start)),
            end: segments.last().map_or(0, |s| up(self.page, s.range.end)),
        }
    }

    /// True if the file is loaded for execution, and not only mapped for reading, as debuggers do.
    fn is_loaded(&self) -> bool {
        self.executable || self.mappings.len() > 1
    }
}

fn down(page: PageSize, address: u64) -> u64 {
    address & !(page.bytes() - 1)
}

fn up(page: PageSize, address: u64) -> u64 {
    down(page, address.saturating_add(page.bytes() - 1))
}
