//! Addresses of the ELF sections of mapped files in a process.

use std::collections::{BTreeMap, BTreeSet};

use pagewise_model::object::{Elf, ElfObject, LoadSegment, ObjectSection};
use pagewise_model::report::{Audience, ColumnCells, Label, ReportTable, TableColumn};
use pagewise_model::{AddrRange, Backing, Mapping, Name, PageSize, Snapshot};

/// One section, at its addresses in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedSection<'a> {
    /// Address range.
    pub range: AddrRange,
    /// The section.
    pub section: &'a ObjectSection,
    /// The file.
    pub object: &'a ElfObject,
}

/// The sections that begin inside `mappings`, by address.
///
/// Thread-local zeroes (`.tbss`) are left out: they take memory in every thread's own block and
/// none where the file's headers put them.
pub fn placed<'a>(snapshot: &'a Snapshot, mappings: &[&Mapping]) -> Vec<PlacedSection<'a>> {
    let page_size = snapshot.provenance.page_size;
    let mut seen = BTreeSet::new();
    let mut biases = BTreeMap::new();
    let mut all = Vec::new();
    for mapping in mappings.iter().filter(|m| m.backing() == Backing::File) {
        let Some((object, elf)) = object(snapshot, mapping) else { continue };
        let last = biases.get(&mapping.file_key()).copied();
        let Some(bias) = load_bias(mapping, elf, page_size, last) else { continue };
        biases.insert(mapping.file_key(), bias);
        for section in elf.sections.iter().filter(|s| !(s.thread_local && s.zero_filled)) {
            let range = shift(section.range, bias);
            let is_here = mapping.range.contains(range.start) && !range.is_empty();
            if is_here && seen.insert((range.start, range.end, section.name.clone())) {
                all.push(PlacedSection { range, section, object });
            }
        }
    }
    all.sort_by_key(|placed| (placed.range.start, placed.range.end));
    all
}

/// Difference between an address of the file and the process's; `None` if `mapping` contains no
/// load segment, as for a file that is mapped only for reading.
///
/// Two segments can share a page of the file. The segment that agrees with `last`, the bias of the
/// file's mapping before this one, is preferred, then a segment of the same permissions.
fn load_bias(mapping: &Mapping, elf: &Elf, page_size: PageSize, last: Option<u64>) -> Option<u64> {
    let page = page_size.bytes() - 1;
    let covers = |s: &&LoadSegment| {
        s.offset & !page <= mapping.offset && mapping.offset < s.offset.saturating_add(s.file_size)
    };
    let allows = |s: &&LoadSegment| s.exec == mapping.prot.exec && (s.write || !mapping.prot.write);
    let bias = |s: &LoadSegment| {
        let address = s.range.start.wrapping_sub(s.offset).wrapping_add(mapping.offset);
        mapping.range.start.wrapping_sub(address)
    };
    let candidates = || elf.segments.iter().filter(covers);
    let agreed = candidates().map(bias).find(|bias| Some(*bias) == last);
    let likely = || candidates().find(allows).or_else(|| candidates().next()).map(bias);
    // The loader moves whole pages only.
    agreed.or_else(likely).filter(|bias| bias & page == 0)
}

fn object<'a>(snapshot: &'a Snapshot, mapping: &Mapping) -> Option<(&'a ElfObject, &'a Elf)> {
    let same = |o: &&ElfObject| Some(o.key()) == mapping.file_key();
    let object = snapshot.objects.iter().find(same)?;
    Some((object, object.elf.as_ref().ok()?))
}

fn shift(range: AddrRange, bias: u64) -> AddrRange {
    let start = range.start.wrapping_add(bias);
    AddrRange { start, end: start.saturating_add(range.len().0) }
}

/// The table `sections`.
pub fn table(snapshot: &Snapshot, mappings: &[&Mapping]) -> ReportTable {
    let placed = placed(snapshot, mappings);
    let each = || placed.iter();
    let names = each().map(|p| p.section.name.clone()).collect();
    let files = each().map(|p| Name::new(p.object.name.base())).collect();
    let paths = each().map(|p| p.object.name.clone()).collect();
    let for_people = |column| TableColumn { audience: Audience::People, ..column };
    let for_programs = |column| TableColumn { audience: Audience::Programs, ..column };
    ReportTable {
        key: "sections".into(),
        title: "ELF sections".into(),
        audience: Audience::Everyone,
        columns: vec![
            TableColumn::new(
                "start",
                "Address",
                ColumnCells::Addresses(each().map(|p| p.range.start).collect()),
            ),
            TableColumn::new(
                "end",
                "End",
                ColumnCells::Addresses(each().map(|p| p.range.end).collect()),
            ),
            TableColumn::new(
                "size",
                "Size",
                ColumnCells::Bytes(each().map(|p| p.range.len().0).collect()),
            ),
            TableColumn::new(
                "mode",
                "Mode",
                ColumnCells::Labels(each().map(|p| access(p.section)).collect()),
            ),
            TableColumn::new("section", "Section", ColumnCells::Names(names)),
            for_people(TableColumn::new("file", "File", ColumnCells::Names(files))),
            for_programs(TableColumn::new("name", "File", ColumnCells::Names(paths))),
        ],
        row_keys: None,
        total: None,
        note: missing(snapshot, mappings),
    }
}

/// Access rights in the section header: after relocation the loader may have removed `w`.
fn access(section: &ObjectSection) -> Label {
    match (section.write, section.exec) {
        (false, false) => "r--".into(),
        (true, false) => "rw-".into(),
        (false, true) => "r-x".into(),
        (true, true) => "rwx".into(),
    }
}

/// Says which files among `mappings` have no section headers that could be read.
fn missing(snapshot: &Snapshot, mappings: &[&Mapping]) -> Label {
    let mut files: Vec<(&Name, String)> = Vec::new();
    for mapping in mappings.iter().filter(|m| m.backing() == Backing::File && m.prot.exec) {
        let same = |o: &&ElfObject| Some(o.key()) == mapping.file_key();
        let why = match snapshot.objects.iter().find(same).map(|object| &object.elf) {
            None => "not read".to_owned(),
            Some(Err(absent)) => absent.to_string(),
            Some(Ok(elf)) if elf.sections.is_empty() => "has no section headers".to_owned(),
            Some(Ok(_)) => continue,
        };
        if !files.iter().any(|(name, _)| **name == mapping.name) {
            files.push((&mapping.name, why));
        }
    }
    let line = |(name, why): &(&Name, String)| format!("{}: {why}", name.escaped());
    files.iter().map(line).collect::<Vec<_>>().join("; ").into()
}

#[cfg(test)]
mod tests {
    use pagewise_model::{Absent, Device, Prot, Sharing};

    use super::*;

    fn segment_of(start: u64, offset: u64, size: u64, mode: &str) -> LoadSegment {
        LoadSegment {
            range: AddrRange { start, end: start + size },
            offset,
            file_size: size,
            read: true,
            write: mode.contains('w'),
            exec: mode.contains('x'),
        }
    }

    fn mapping(start: u64, end: u64, offset: u64, mode: &str) -> Mapping {
        Mapping {
            range: AddrRange { start, end },
            prot: Prot { read: true, write: mode.contains('w'), exec: mode.contains('x') },
            sharing: Sharing::Private,
            offset,
            device: Device { major: 8, minor: 1 },
            inode: 7,
            name: "/bin/x".into(),
            on_tmpfs: false,
            smaps: Err(Absent::Vanished),
            pages: Err(Absent::Vanished),
        }
    }

    fn elf() -> Elf {
        Elf {
            // As GNU ld lays out a small program: the data segment is 0x1000 further in memory than
            // in the file.
            segments: vec![
                segment_of(0, 0, 0x628, "r"),
                segment_of(0x1000, 0x1000, 0x179, "rx"),
                segment_of(0x2000, 0x2000, 0x100, "r"),
                segment_of(0x3dd0, 0x2dd0, 0x248, "rw"),
            ],
            sections: Vec::new(),
            relro: None,
            is_static: false,
            allocator: None,
        }
    }

    const BASE: u64 = 0x5555_5555_4000;

    #[test]
    fn every_part_of_a_program_has_the_same_load_bias() {
        let mut last = None;
        for (offset, address, mode) in [
            (0, 0, "r"),
            (0x1000, 0x1000, "rx"),
            (0x2000, 0x2000, "r"),
            (0x2000, 0x3000, "r"), // the same page of the file again: data, read-only after relocation
            (0x3000, 0x4000, "rw"),
        ] {
            let m = mapping(BASE + address, BASE + address + 0x1000, offset, mode);
            last = load_bias(&m, &elf(), PageSize::new(4096).unwrap(), last);
            assert_eq!(last, Some(BASE), "{offset:x} at {address:x}");
        }
    }

    #[test]
    fn hostile_headers_do_not_overflow() {
        let mut elf = elf();
        elf.segments.push(LoadSegment {
            range: AddrRange { start: u64::MAX, end: 3 },
            offset: u64::MAX - 5,
            file_size: u64::MAX,
            read: true,
            write: true,
            exec: true,
        });
        let m = mapping(0, u64::MAX, u64::MAX, "rwx");
        let _ = load_bias(&m, &elf, PageSize::new(4096).unwrap(), Some(1));
    }
}
