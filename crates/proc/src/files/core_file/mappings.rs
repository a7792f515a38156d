//! The mappings of a core file: ranges and access rights from the load segments, names of files
//! from NT_FILE, and special mappings that can be identified by their addresses.

use pagewise_model::core_dump::CoreWriter;
use pagewise_model::mapping::{AddrRange, Backing, Device, Mapping, Prot, Sharing};
use pagewise_model::object::{Elf, ElfObject, LoadSegment};
use pagewise_model::{Absent, Bytes, Name};

use super::notes::{AT_ENTRY, AT_EXECFN, AT_PHDR, AT_RANDOM, AT_SYSINFO_EHDR, MappedFileNote};
use super::{CORE_FILE, CoreFile};

/// Address of the vsyscall page, which is the same in every process of x86-64.
const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
/// Maximum size of `[vvar]`: kernel data for the vdso, which the kernel maps directly below the
/// vdso.
const MAX_VVAR: Bytes = Bytes::kib(128);
/// Maximum distance between the end of the program and the start of the brk area
/// (`arch_randomize_brk`).
const MAX_BRK_GAP: Bytes = Bytes::gib(1);
/// Number of bytes that are compared with zeros at a time.
const PIECE: usize = 1 << 16;

/// A mapping, and whether its access rights are recorded.
struct CoreMapping {
    mapping: Mapping,
    has_rights: bool,
}

/// The mappings, and the counts and names that the remarks on inferred values contain.
pub(super) struct CoreMappings {
    pub(super) mappings: Vec<Mapping>,
    /// Number of file mappings without a segment. Their access rights come from ELF headers or are
    /// unknown.
    pub(super) without_segment: usize,
    /// Number of mappings that gdb wrote as readable and that hold only zeros. These mappings are
    /// treated as mappings without access.
    pub(super) assumed_guards: usize,
    /// Names of the special mappings that were identified by their addresses.
    pub(super) named: Vec<&'static str>,
}

/// Builds the mappings. `objects` are the ELF headers of the mapped files.
pub(super) fn mappings(core: &CoreFile, objects: &[ElfObject]) -> CoreMappings {
    let mut pieces = pieces(core);
    pieces.sort_by_key(|piece| piece.mapping.range);
    let without_segment = pieces.iter().filter(|piece| !piece.has_rights).count();
    for piece in pieces.iter_mut().filter(|piece| !piece.has_rights) {
        let assumed = Prot { read: true, ..Prot::default() };
        piece.mapping.prot = rights_of_file(core, &piece.mapping, objects).unwrap_or(assumed);
    }
    let mut mappings: Vec<Mapping> = pieces.into_iter().map(|piece| piece.mapping).collect();
    let named = name_special(core, &mut mappings, objects);
    let assumed_guards = match core.notes().writer {
        CoreWriter::Gdb => assume_guards(core, &mut mappings),
        CoreWriter::Kernel | CoreWriter::Unknown => 0,
    };
    CoreMappings { mappings, without_segment, assumed_guards, named }
}

/// Segments split at the borders of mapped files, and mapped files without a segment.
fn pieces(core: &CoreFile) -> Vec<CoreMapping> {
    let files = core.notes().files.as_deref().unwrap_or_default();
    let mut pieces = Vec::with_capacity(core.segments.len().max(files.len()));
    for load in &core.loads {
        let mut at = load.range.start;
        for file in overlapping(files, load.range, |file| file.range) {
            let Some(both) = file.range.intersection(load.range) else { continue };
            if at < both.start {
                pieces.push(piece(AddrRange { start: at, end: both.start }, Some(load.prot), None));
            }
            pieces.push(piece(both, Some(load.prot), Some(file)));
            at = both.end;
        }
        if at < load.range.end {
            pieces.push(piece(AddrRange { start: at, ..load.range }, Some(load.prot), None));
        }
    }
    for file in files {
        let mut at = file.range.start;
        for load in overlapping(&core.loads, file.range, |load| load.range) {
            if at < load.range.start {
                let range = AddrRange { start: at, end: load.range.start };
                pieces.push(piece(range, None, Some(file)));
            }
            at = at.max(load.range.end);
        }
        if at < file.range.end {
            pieces.push(piece(AddrRange { start: at, ..file.range }, None, Some(file)));
        }
    }
    pieces
}

/// The elements that overlap a range, of a list sorted by address.
fn overlapping<T>(
    list: &[T],
    range: AddrRange,
    range_of: impl Fn(&T) -> AddrRange + Copy,
) -> impl Iterator<Item = &T> {
    let first = list.partition_point(|one| range_of(one).end <= range.start);
    list[first..].iter().take_while(move |one| range_of(one).start < range.end)
}

fn piece(range: AddrRange, prot: Option<Prot>, file: Option<&MappedFileNote>) -> CoreMapping {
    let absent = || Absent::NotRecorded(CORE_FILE.into());
    let name = file.map_or_else(Name::default, |file| file.name.clone());
    let offset = file.map_or(0, |file| file.offset.saturating_add(range.start - file.range.start));
    let mapping = Mapping {
        range,
        prot: prot.unwrap_or_default(),
        sharing: sharing(&name),
        offset,
        device: Device::default(),
        inode: 0,
        name,
        on_tmpfs: false,
        smaps: Err(absent()),
        pages: Err(absent()),
    };
    CoreMapping { mapping, has_rights: prot.is_some() }
}

/// Infers the sharing of a mapping from its name in NT_FILE. Anonymous shared memory and System V
/// segments have special names. For the mapping of any other file, a core does not record the
/// sharing.
fn sharing(name: &Name) -> Sharing {
    let name = name.as_bytes();
    if name.is_empty() {
        Sharing::Private
    } else if name == b"/dev/zero (deleted)" || name.starts_with(b"/SYSV") {
        Sharing::Shared
    } else {
        Sharing::Unknown
    }
}

/// The access rights of the segment of an ELF file at the offset of a mapping.
fn rights_of_file(core: &CoreFile, mapping: &Mapping, objects: &[ElfObject]) -> Option<Prot> {
    let found = objects.binary_search_by(|object| object.name.cmp(&mapping.name)).ok()?;
    let elf = objects[found].elf.as_ref().ok()?;
    let segment = segment_at(core, elf, mapping.offset)?;
    Some(Prot { read: segment.read, write: segment.write, exec: segment.exec })
}

/// The segment that a mapping at an offset of the file belongs to.
pub(super) fn segment_at<'a>(
    core: &CoreFile,
    elf: &'a Elf,
    offset: u64,
) -> Option<&'a LoadSegment> {
    let page = core.page_size()?.bytes();
    // A segment is mapped from the start of its first page on.
    let starts = |segment: &LoadSegment| {
        segment.offset - segment.offset % page <= offset
            && offset < segment.offset.saturating_add(segment.file_size)
    };
    // If several segments share a page, the loader maps the last of them over the others.
    elf.segments.iter().rev().find(|segment| starts(segment))
}

/// Names `[vdso]`, `[vvar]`, `[vsyscall]`, `[stack]` and `[heap]`.
fn name_special(
    core: &CoreFile,
    mappings: &mut [Mapping],
    objects: &[ElfObject],
) -> Vec<&'static str> {
    let mut named = Vec::new();
    let mut name = |mappings: &mut [Mapping], index: usize, name: &'static str| {
        mappings[index].name = name.into();
        if !named.contains(&name) {
            named.push(name);
        }
    };
    let notes = core.notes();
    if let Some(vdso) = unnamed_at(mappings, notes.auxiliary(AT_SYSINFO_EHDR)) {
        name(mappings, vdso, "[vdso]");
        let mut end = mappings[vdso].range.start;
        let lowest = end.saturating_sub(MAX_VVAR.0);
        for index in (0..vdso).rev() {
            let Mapping { range, prot, .. } = mappings[index];
            let is_data = mappings[index].name.is_empty() && !prot.write && !prot.exec;
            if !is_data || range.end != end || range.start < lowest {
                break;
            }
            end = range.start;
            name(mappings, index, "[vvar]");
        }
    }
    if let Some(vsyscall) = unnamed_at(mappings, Some(VSYSCALL)) {
        name(mappings, vsyscall, "[vsyscall]");
    }
    let on_stack = notes.auxiliary(AT_RANDOM).or_else(|| notes.auxiliary(AT_EXECFN));
    if let Some(stack) = unnamed_at(mappings, on_stack) {
        name(mappings, stack, "[stack]");
    }
    if let Some(heap) = heap(core, mappings, objects) {
        name(mappings, heap, "[heap]");
    }
    named
}

fn unnamed_at(mappings: &[Mapping], address: Option<u64>) -> Option<usize> {
    let index = index_at(mappings, address?)?;
    mappings[index].name.is_empty().then_some(index)
}

fn index_at(mappings: &[Mapping], address: u64) -> Option<usize> {
    let after = mappings.partition_point(|mapping| mapping.range.start <= address);
    let index = after.checked_sub(1)?;
    mappings[index].range.contains(address).then_some(index)
}

/// The file that the process executes, by the auxiliary vector.
pub(super) fn program(core: &CoreFile) -> Option<&MappedFileNote> {
    let notes = core.notes();
    [AT_PHDR, AT_ENTRY].into_iter().find_map(|kind| notes.file_at(notes.auxiliary(kind)?))
}

/// Returns the index of the brk area: the first writable anonymous mapping behind the program and
/// its bss.
///
/// mmap allocates addresses near the stack, so anonymous memory at most [`MAX_BRK_GAP`] behind the
/// program belongs to the brk area.
fn heap(core: &CoreFile, mappings: &[Mapping], objects: &[ElfObject]) -> Option<usize> {
    let program = program(core)?;
    let mut last = index_at(mappings, program.range.start)?;
    while let Some(next) = mappings.get(last + 1)
        && next.name == program.name
    {
        last += 1;
    }
    let file_end = mappings[last].range.end;
    let bss_end = bss_end(core, mappings, program, objects).unwrap_or(file_end);
    let limit = file_end.max(bss_end).saturating_add(MAX_BRK_GAP.0);
    let behind = mappings[last + 1..].iter().enumerate();
    let mut behind = behind.take_while(|(_, mapping)| {
        mapping.backing() == Backing::Anonymous && mapping.range.start < limit
    });
    let is_heap = |mapping: &Mapping| {
        // Without address randomization the kernel merges the brk area with the program's bss.
        let is_bss = mapping.range.start == file_end && mapping.range.end <= bss_end;
        mapping.prot.read && mapping.prot.write && mapping.name.is_empty() && !is_bss
    };
    let (index, _) = behind.find(|(_, mapping)| is_heap(mapping))?;
    Some(last + 1 + index)
}

/// The end of the pages of the program's zero-filled variables.
fn bss_end(
    core: &CoreFile,
    mappings: &[Mapping],
    program: &MappedFileNote,
    objects: &[ElfObject],
) -> Option<u64> {
    let object = objects.binary_search_by(|object| object.name.cmp(&program.name)).ok()?;
    let elf: &Elf = objects[object].elf.as_ref().ok()?;
    let first = mappings.iter().find(|mapping| mapping.name == program.name)?;
    let start = elf.segments.first()?.range.start;
    let end = elf.segments.last()?.range.end;
    let end = first.range.start.checked_add(end.checked_sub(start)?)?;
    end.checked_next_multiple_of(core.page_size()?.bytes())
}

/// Removes the access rights of read-only anonymous mappings that hold only zeros, and returns the
/// number of these mappings. gdb writes mappings without access as readable, and a program has no
/// use for such memory except as a guard or a reservation.
fn assume_guards(core: &CoreFile, mappings: &mut [Mapping]) -> usize {
    let mut assumed = 0;
    for mapping in mappings {
        let Prot { read, write, exec } = mapping.prot;
        let is_candidate = read && !write && !exec && mapping.name.is_empty();
        if is_candidate && is_zero(core, mapping.range) {
            mapping.prot = Prot::default();
            assumed += 1;
        }
    }
    assumed
}

/// Returns true if the file contains every byte of a range and all these bytes are zero.
fn is_zero(core: &CoreFile, range: AddrRange) -> bool {
    let zeros = vec![0; PIECE];
    let mut piece = vec![0; PIECE];
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(PIECE, |rest| rest.min(PIECE));
        let piece = &mut piece[..len];
        if !core.read(at, piece) || *piece != zeros[..len] {
            return false;
        }
        at += len as u64;
    }
    true
}
