//! ELF files that the process had mapped. The headers come from the core's memory. Read-only
//! contents that the core lacks come from the files themselves, if their build IDs agree.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagewise_model::mapping::{AddrRange, Device};
use pagewise_model::object::{Elf, ElfObject, OnDisk};
use pagewise_model::{Absent, Name, Reading};

use super::bytes::{number, u32_at, u64_at};
use super::mappings::{program, segment_at};
use super::notes::MappedFileNote;
use super::{CORE_FILE, CoreFile};
use crate::target_file::{self, TargetRoot};
use crate::{ProcError, elf};

/// Maximum number of bytes that are read from the start of a file, where program headers and notes
/// lie.
const MAX_HEAD: usize = 1 << 16;
/// Minimum number of bytes at the start of an image that the core must contain. With fewer bytes,
/// the ELF headers of the image count as missing.
const SMALLEST_HEAD: usize = 1 << 9;
/// Maximum length of a build ID in bytes. A build ID of `ld --build-id` has 20 bytes.
const MAX_BUILD_ID: usize = 64;
/// Maximum number of mapped files that are searched for. A process maps a few hundred.
const MAX_IMAGES: usize = 1 << 14;
/// Maximum size in bytes of a mapped file that is opened.
const MAX_FILE_BYTES: u64 = 16 << 30;

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// Files on this machine that have the build ID of an ELF file that the process had mapped.
#[derive(Debug, Default)]
pub struct ImageFiles {
    parts: Vec<ImagePart>,
    files: Vec<File>,
    objects: Vec<ElfObject>,
    builds: Vec<ImageBuild>,
}

/// Build ID of a mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageBuild {
    /// The name of the file in the core.
    pub name: Name,
    /// Path of the file on this machine.
    pub path: PathBuf,
    /// The recorded build ID.
    pub build_id: Vec<u8>,
}

/// Address range of the process whose bytes are read from a file on this machine.
#[derive(Clone, Copy, Debug)]
struct ImagePart {
    range: AddrRange,
    offset: u64,
    file: usize,
}

impl ImageFiles {
    /// Searches for the mapped files by their paths. If `exe` is given, it is the path of the
    /// program.
    ///
    /// # Errors
    /// [`ProcError::OtherProgram`] if `exe` has another build ID than the program in the core,
    /// [`ProcError::Io`] if `exe` cannot be opened.
    pub fn find(core: &CoreFile, exe: Option<&Path>) -> Result<ImageFiles, ProcError> {
        let mut found = ImageFiles::default();
        let root = TargetRoot::own().ok();
        if let (Some(exe), None) = (exe, program(core)) {
            let problem = "the core does not show which mapped file is the program".to_owned();
            return Err(ProcError::OtherProgram { path: exe.into(), problem });
        }
        for image in images(core) {
            let exe = exe.filter(|_| image.is_program);
            let file = match exe {
                Some(exe) => Some(open_program(exe, &image)?),
                // Without a recorded build ID no file can be identified as the mapped one.
                None if image.build_id.is_none() => None,
                None => root.as_ref().and_then(|root| {
                    root.open(Path::new(OsStr::from_bytes(image.name.as_bytes())), MAX_FILE_BYTES)
                        .ok()
                }),
            };
            if let Some(build_id) = image.build_id.clone() {
                let own = Path::new(OsStr::from_bytes(image.name.as_bytes()));
                let path = exe.unwrap_or(own).to_owned();
                found.builds.push(ImageBuild { name: image.name.clone(), path, build_id });
            }
            found.add(core, image, file, exe.is_some());
        }
        found.parts.sort_by_key(|part| part.range);
        found.objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Fills `into` from a file. Returns false if no file has all of these bytes.
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let after = self.parts.partition_point(|part| part.range.start <= address);
        let Some(part) = after.checked_sub(1).map(|index| &self.parts[index]) else { return false };
        let room = part.range.end.checked_sub(address);
        let fits = room.is_some_and(|room| room >= into.len() as u64);
        let offset = part.offset.checked_add(address - part.range.start);
        let is_read = |offset| fits && self.files[part.file].read_exact_at(into, offset).is_ok();
        offset.is_some_and(is_read)
    }

    /// The address ranges that files can fill, by address.
    pub fn ranges(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.parts.iter().map(|part| part.range)
    }

    /// The build IDs of the mapped files for which the core records a build ID.
    pub fn builds(&self) -> &[ImageBuild] {
        &self.builds
    }

    /// The ELF headers of the mapped files, by name.
    pub(super) fn objects(&self) -> &[ElfObject] {
        &self.objects
    }

    fn add(&mut self, core: &CoreFile, image: CoreImage<'_>, file: Option<File>, is_named: bool) {
        let recorded = image.elf.as_ref().ok().and_then(|_| image.build_id.clone());
        let on_file = file.as_ref().map(head_of_file);
        let is_same = on_file.as_ref().map(|head| {
            is_named && recorded.is_none() || recorded.is_some() && recorded == build_id(head)
        });
        let on_disk = match is_same {
            _ if recorded.is_none() => {
                Err(Absent::NotSupported("the core holds no build ID of it".into()))
            }
            None => Ok(OnDisk::Missing),
            Some(true) => Ok(OnDisk::Same),
            Some(false) => Ok(OnDisk::Replaced),
        };
        let elf = match (file, is_same) {
            (Some(file), Some(true)) => {
                let elf = elf::of_file(&file, image.is_program);
                self.parts_of(core, &image, elf.as_ref().ok());
                self.files.push(file);
                elf
            }
            _ => image.elf,
        };
        self.objects.push(ElfObject {
            device: Device::default(),
            inode: 0,
            name: image.name,
            on_disk,
            elf,
        });
    }

    /// Adds the parts of an image that the process never wrote: the read-only segments.
    fn parts_of(&mut self, core: &CoreFile, image: &CoreImage<'_>, elf: Option<&Elf>) {
        let Some(elf) = elf else { return };
        let file = self.files.len();
        let read_only = image.mapped.iter().filter(|mapped| {
            segment_at(core, elf, mapped.offset).is_some_and(|segment| !segment.write)
        });
        self.parts.extend(read_only.map(|mapped| ImagePart {
            range: mapped.range,
            offset: mapped.offset,
            file,
        }));
    }
}

/// A mapped file that starts like an ELF file, or whose first bytes the core lacks.
struct CoreImage<'a> {
    name: Name,
    mapped: &'a [MappedFileNote],
    elf: Reading<Elf>,
    build_id: Option<Vec<u8>>,
    is_program: bool,
}

/// Returns the mapped files that are ELF files, or whose first bytes the core lacks; one for each
/// file name.
fn images(core: &CoreFile) -> Vec<CoreImage<'_>> {
    let files = core.notes().files.as_deref().unwrap_or_default();
    let program = program(core);
    let mut seen = HashSet::new();
    let mut images: Vec<CoreImage<'_>> = Vec::new();
    for mapped in files.chunk_by(|a, b| a.name == b.name) {
        let name = &mapped[0].name;
        if images.len() >= MAX_IMAGES || seen.contains(name) {
            continue;
        }
        let head = mapped.iter().find(|file| file.offset == 0).map(|file| head(core, file.range));
        let elf = match head.as_deref() {
            None | Some([]) => Err(Absent::NotRecorded(CORE_FILE.into())),
            Some(head) if head.starts_with(b"\x7fELF") => elf::parse(head),
            // The mapped file is not an ELF file.
            Some(_) => continue,
        };
        seen.insert(name.clone());
        let build_id = head.as_deref().and_then(build_id);
        let is_program = program.is_some_and(|program| program.name == *name);
        images.push(CoreImage { name: name.clone(), mapped, elf, build_id, is_program });
    }
    images
}

/// The first bytes of a range that the core holds.
fn head(core: &CoreFile, range: AddrRange) -> Vec<u8> {
    let held = core.held(range).next().filter(|held| held.start == range.start);
    let len = held.map_or(0, |held| held.len().0.min(MAX_HEAD as u64));
    let mut head = vec![0; usize::try_from(len).unwrap_or(0)];
    if head.len() < SMALLEST_HEAD || !core.read(range.start, &mut head) {
        head.clear();
    }
    head
}

fn head_of_file(file: &File) -> Vec<u8> {
    let mut head = vec![0; MAX_HEAD];
    let len = file.read_at(&mut head, 0).unwrap_or(0);
    head.truncate(len);
    head
}

fn open_program(exe: &Path, image: &CoreImage<'_>) -> Result<File, ProcError> {
    let file = target_file::open_regular(exe, MAX_FILE_BYTES)
        .map_err(|refusal| ProcError::io(exe, refusal.into()))?;
    let found = build_id(&head_of_file(&file));
    match &image.build_id {
        Some(recorded) if found.as_ref() != Some(recorded) => {
            let found =
                found.map_or_else(|| "no build ID".into(), |id| format!("build ID {}", hex(&id)));
            let problem = format!("it has {found}, the program in the core has {}", hex(recorded));
            Err(ProcError::OtherProgram { path: exe.into(), problem })
        }
        _ => Ok(file),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build ID of a 64-bit little-endian ELF file, from its first bytes.
fn build_id(head: &[u8]) -> Option<Vec<u8>> {
    elf_note(head, b"GNU\0", NT_GNU_BUILD_ID, MAX_BUILD_ID)
}

/// Returns the release of the kernel that provided the vdso, from `LINUX_VERSION_CODE` in the
/// vdso's note of type 0.
pub(super) fn kernel_release(core: &CoreFile, vdso: AddrRange) -> Option<Name> {
    let code = elf_note(&head(core, vdso), b"Linux\0", 0, 4)?;
    let code = u32_at(&code, 0)?;
    let (version, patch, sublevel) = (code >> 16, code >> 8 & 0xff, code & 0xff);
    // `LINUX_VERSION_CODE` limits the sublevel to 255, so 255 can mean a higher sublevel.
    let sublevel = if sublevel == 255 { String::new() } else { format!(".{sublevel}") };
    Some(Name::from(format!("{version}.{patch}{sublevel}").as_str()))
}

/// The description of the first note of that name and type.
fn elf_note(head: &[u8], name: &[u8], kind: u32, max_len: usize) -> Option<Vec<u8>> {
    const PROGRAM_HEADER: usize = 56;
    let table = usize::try_from(u64_at(head, 32)?).ok()?;
    let count = usize::try_from(number::<2>(head, 56)?).ok()?;
    let headers = head.get(table..)?.chunks_exact(PROGRAM_HEADER).take(count);
    headers.filter(|header| u32_at(header, 0) == Some(PT_NOTE)).find_map(|header| {
        let offset = usize::try_from(u64_at(header, 8)?).ok()?;
        let len = usize::try_from(u64_at(header, 32)?).ok()?;
        let notes = head.get(offset..offset.checked_add(len)?.min(head.len()))?;
        find_note(notes, name, kind, max_len)
    })
}

fn find_note(mut notes: &[u8], wanted: &[u8], kind: u32, max_len: usize) -> Option<Vec<u8>> {
    loop {
        let [name_len, len] = [0, 4].map(|at| u32_at(notes, at).map(|len| len as usize));
        let (name_len, len, found) = (name_len?, len?, u32_at(notes, 8)?);
        let rest = notes.get(12..)?;
        let description = rest.get(name_len.checked_next_multiple_of(4)?..)?;
        let bytes = description.get(..len)?;
        if rest.get(..name_len)? == wanted && found == kind {
            return (len <= max_len).then(|| bytes.to_vec());
        }
        notes = description.get(len.checked_next_multiple_of(4)?..)?;
    }
}
