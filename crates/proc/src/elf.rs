//! Mapped ELF files: segments and sections by their headers.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use pagewise_model::mapping::{AddrRange, Device, Mapping};
use pagewise_model::object::{Elf, Object, OnDisk, Section, Segment};
use pagewise_model::{Absent, Backing, Name, Pid, Reading};

use crate::ProcRoot;
use crate::root::{self, PTRACE};

/// No more symbols than this are looked at for an allocator's: a browser has millions.
const SYMBOLS: usize = 100_000;

/// Names that give an allocator away which is linked in, and what it is called.
const ALLOCATORS: &[(&[u8], &str)] = &[
    (b"je_malloc", "jemalloc"),
    (b"_rjem_malloc", "jemalloc"),
    (b"malloc_conf", "jemalloc"),
    (b"mi_malloc", "mimalloc"),
    (b"tc_malloc", "tcmalloc"),
    (b"sn_malloc", "snmalloc"),
];

/// Looks into each mapped file once, in the order of first appearance.
pub(crate) fn objects(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Vec<Object> {
    let mut seen: HashMap<(Device, u64), usize> = HashMap::new();
    let mut objects: Vec<Candidate<'_>> = Vec::new();
    let mut last = None;
    for mapping in mappings {
        let key = (mapping.device, mapping.inode);
        if mapping.inode == 0 || mapping.backing() != Backing::File && !mapping.prot.exec {
            continue;
        }
        // Neighbours are often of one file: 65,000 look-ups would cost more than the rest.
        if last == Some(key) {
            objects[seen[&key]].exec |= mapping.prot.exec;
            continue;
        }
        last = Some(key);
        let at = *seen.entry(key).or_insert_with(|| {
            objects.push(Candidate { first: mapping, exec: false });
            objects.len() - 1
        });
        objects[at].exec |= mapping.prot.exec;
    }
    objects.iter().map(|candidate| candidate.look(root, pid)).collect()
}

/// A mapped file, by its first mapping.
struct Candidate<'a> {
    first: &'a Mapping,
    exec: bool,
}

impl Candidate<'_> {
    fn look(&self, root: &ProcRoot, pid: Pid) -> Object {
        let Mapping { device, inode, name, .. } = self.first;
        let unread = || Absent::NotCollected("the copied tree has no mapped files".into());
        let (on_disk, elf) = if root.is_live() {
            (self.on_disk(root, pid), self.open(root, pid).and_then(|file| headers(&file)))
        } else {
            (Err(unread()), Err(unread()))
        };
        Object { device: *device, inode: *inode, name: name.clone(), on_disk, elf }
    }

    /// The path as the process itself sees it.
    fn path(&self, root: &ProcRoot, pid: Pid) -> PathBuf {
        let name = std::ffi::OsStr::from_bytes(self.first.path());
        let below = Path::new(name).strip_prefix("/").unwrap_or(Path::new(name));
        root.file(pid, "root").join(below)
    }

    fn on_disk(&self, root: &ProcRoot, pid: Pid) -> Reading<OnDisk> {
        if self.first.is_deleted() && !self.path(root, pid).exists() {
            return Ok(OnDisk::Missing);
        }
        match std::fs::metadata(self.path(root, pid)) {
            Ok(found) if self.is(&found) => Ok(OnDisk::Same),
            Ok(_) => Ok(OnDisk::Replaced),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(OnDisk::Missing),
            Err(_) => Err(Absent::NotPermitted(PTRACE.into())),
        }
    }

    /// Whether a file is the one that is mapped.
    ///
    /// Some filesystems (btrfs, overlayfs) show another device number in `maps`, so the inode decides.
    fn is(&self, found: &std::fs::Metadata) -> bool {
        found.ino() == self.first.inode && found.is_file()
    }

    /// Opens the mapped file itself, also when it was deleted; never a FIFO or a device.
    fn open(&self, root: &ProcRoot, pid: Pid) -> Reading<File> {
        let by_map = root.file(pid, "map_files").join(self.first.range.to_string());
        let regular = |path: &Path| {
            let file = root::open(path).ok()?;
            self.is(&file.metadata().ok()?).then_some(file)
        };
        let file = regular(&by_map).or_else(|| regular(&self.path(root, pid)));
        file.ok_or_else(|| {
            Absent::NotPermitted("the mapped file; CAP_SYS_ADMIN where it was deleted".into())
        })
    }
}

/// The headers of an ELF file of 64 or 32 bits.
fn headers(file: &File) -> Reading<Elf> {
    let data = ReadCache::new(file);
    match data.read_bytes_at(0, 5) {
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS64]) => {
            parse::<elf::FileHeader64<Endianness>>(&data)
        }
        Ok([0x7f, b'E', b'L', b'F', elf::ELFCLASS32]) => {
            parse::<elf::FileHeader32<Endianness>>(&data)
        }
        _ => Err(Absent::NotSupported("not an ELF file".into())),
    }
}

fn parse<'d, H: FileHeader<Endian = Endianness>>(data: &'d ReadCache<&'d File>) -> Reading<Elf> {
    let broken =
        |e: object::read::Error| Absent::NotSupported(format!("a broken ELF file: {e}").into());
    let header = H::parse(data).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    let programs = header.program_headers(endian, data).map_err(broken)?;
    let range = |start: u64, len: u64| AddrRange { start, end: start.saturating_add(len) };
    let mut found =
        Elf { segments: vec![], sections: vec![], relro: None, is_static: true, allocator: None };
    for program in programs {
        let memory = range(program.p_vaddr(endian).into(), program.p_memsz(endian).into());
        let flags = program.p_flags(endian);
        match program.p_type(endian) {
            elf::PT_LOAD => found.segments.push(Segment {
                range: memory,
                offset: program.p_offset(endian).into(),
                file_size: program.p_filesz(endian).into(),
                read: flags & elf::PF_R != 0,
                write: flags & elf::PF_W != 0,
                exec: flags & elf::PF_X != 0,
            }),
            elf::PT_GNU_RELRO => found.relro = Some(memory),
            elf::PT_INTERP => found.is_static = false,
            _ => {}
        }
    }
    found.segments.sort_by_key(|segment| segment.range);
    // Files without section headers are still ELF files: the segments say enough.
    if let Ok(table) = header.sections(endian, data) {
        let loaded =
            table.iter().filter(|s| s.sh_flags(endian).into() & u64::from(elf::SHF_ALLOC) != 0);
        found.sections = loaded
            .map(|s| {
                let flags: u64 = s.sh_flags(endian).into();
                let has = |flag: u32| flags & u64::from(flag) != 0;
                Section {
                    name: Name::new(table.section_name(endian, s).unwrap_or_default()),
                    range: range(s.sh_addr(endian).into(), s.sh_size(endian).into()),
                    offset: s.sh_offset(endian).into(),
                    zero_filled: s.sh_type(endian) == elf::SHT_NOBITS,
                    thread_local: has(elf::SHF_TLS),
                    write: has(elf::SHF_WRITE),
                    exec: has(elf::SHF_EXECINSTR),
                }
            })
            .collect();
        found.sections.sort_by_key(|section| section.range);
        let tables = [elf::SHT_DYNSYM, elf::SHT_SYMTAB];
        found.allocator = tables.into_iter().find_map(|kind| {
            let symbols = table.symbols(endian, data, kind).ok()?;
            let defined =
                symbols.iter().take(SYMBOLS).filter(|s| s.st_shndx(endian) != elf::SHN_UNDEF);
            let strings = symbols.strings();
            defined.filter_map(|s| s.name(endian, strings).ok()).find_map(allocator)
        });
    }
    Ok(found)
}

fn allocator(symbol: &[u8]) -> Option<Name> {
    ALLOCATORS.iter().find(|(name, _)| *name == symbol).map(|(_, known)| Name::from(*known))
}
