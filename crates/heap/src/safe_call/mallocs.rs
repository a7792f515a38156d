//! Files of a process that export a `malloc`. The dynamic loader may call it, so a thread that is
//! made to load a library must be in no function of such a file. The decisions about threads are in
//! [`super::judge`].

use std::fs::File;
use std::ops::Range;

use pagewise_model::{Mapping, Name, Pid};
use pagewise_proc::ProcRoot;
use pagewise_proc::target_file::{self, FileId};
use pagewise_proc::variables::{self, WantedFunctions};

use super::{is_libc, is_recorder, judge};
use crate::names;

/// A file that exports a `malloc`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MallocFile {
    id: FileId,
    name: Name,
    extent: AllocatorCode,
    /// Address ranges of its functions that allocate and free.
    functions: Vec<Range<u64>>,
}

/// Location of the allocator's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocatorCode {
    /// In its file: a library of jemalloc, tcmalloc or mimalloc, which calls no other library
    /// except the C library.
    File,
    /// In its file, and perhaps in other files to which its functions jump without returning.
    FileAndMore,
    /// Anywhere in the program, mixed with other code.
    Program,
}

/// All files of a process that export a `malloc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mallocs {
    all: Vec<MallocFile>,
    /// Address range of the C library's `poll`, if a restarted `poll` must be distinguished from
    /// other restarted system calls.
    pub(crate) poll: Range<u64>,
}

/// Exported functions by which allocators are recognized.
const KNOWN: &[&[&str]] =
    &[&["mallocx", "mallctl"], &["tc_malloc", "tc_free"], &["mi_malloc", "mi_free"]];

/// Functions of the runtimes of sanitizers. Sanitizers keep their own data about each block and
/// about each thread's stack.
const SANITIZERS: &[&str] = &[
    "__asan_init",
    "__hwasan_init",
    "__lsan_do_leak_check",
    "__msan_init",
    "__sanitizer_set_death_callback",
    "__tsan_init",
];

impl Mallocs {
    /// Finds the files with a `malloc` among the mappings of a process.
    ///
    /// # Errors
    /// Returns the reason why no thread of such a process may be made to call a function.
    pub(crate) fn find(root: &ProcRoot, pid: u32, mappings: &[Mapping]) -> Result<Mallocs, String> {
        let entry = judge::entry(root, pid);
        let mut mallocs = Mallocs::default();
        let mut seen: Vec<FileId> = Vec::new();
        for mapping in mappings.iter().filter(|it| it.inode != 0 && it.prot.exec) {
            let id = FileId::of_mapping(mapping);
            let is_passed = is_libc(&mapping.name)
                || judge::is_loader(&mapping.name)
                || is_recorder(&mapping.name);
            if seen.contains(&id) || is_passed {
                continue;
            }
            seen.push(id);
            let pieces: Vec<&Mapping> =
                mappings.iter().filter(|it| it.prot.exec && FileId::of_mapping(it) == id).collect();
            let has_entry =
                entry.is_some_and(|entry| pieces.iter().any(|it| it.range.contains(entry)));
            let file = target_file::open_mapped(root, Pid(pid), mapping).ok();
            let Some(malloc) = of_file(file.as_ref(), &pieces, entry.is_none() || has_entry)?
            else {
                continue;
            };
            mallocs.all.push(malloc);
        }
        if mallocs.scattered().is_some() {
            let libc = mappings.iter().filter(|it| it.prot.exec && is_libc(&it.name));
            mallocs.poll = poll(root, pid, &libc.collect::<Vec<_>>()).unwrap_or(0..0);
        }
        Ok(mallocs)
    }

    /// True if an address in a file is known to be code of one of these allocators.
    pub(crate) fn contain(&self, address: u64, file: FileId) -> bool {
        self.all.iter().any(|malloc| {
            let is_in_file = malloc.extent != AllocatorCode::Program && malloc.id == file;
            is_in_file || malloc.functions.iter().any(|function| function.contains(&address))
        })
    }

    /// True if a file contains one of these allocators.
    pub(crate) fn has_file(&self, file: FileId) -> bool {
        self.all.iter().any(|malloc| malloc.id == file)
    }

    /// A file with a `malloc` whose code may be mixed with other code of the program.
    pub(crate) fn scattered(&self) -> Option<&Name> {
        let found = self.all.iter().find(|malloc| malloc.extent != AllocatorCode::File);
        found.map(|malloc| &malloc.name)
    }

    /// Names of the files.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.all.iter().map(|malloc| &malloc.name)
    }
}

/// Determines the allocator of a file that exports `malloc`. `file` is `None` if the file cannot be
/// opened; then only its name decides.
fn of_file(
    file: Option<&File>,
    pieces: &[&Mapping],
    is_program: bool,
) -> Result<Option<MallocFile>, String> {
    let Some(first) = pieces.first() else { return Ok(None) };
    let (id, name) = (FileId::of_mapping(first), first.name.clone());
    if name.base().starts_with(b"vgpreload_") {
        return Err("valgrind runs it, which translates its code before it runs".to_owned());
    }
    let Some(file) = file else {
        // A library file that was replaced after it was loaded is recognized by its name.
        let is_allocator = memchr::memmem::find(name.base(), b"malloc").is_some();
        let malloc =
            MallocFile { id, name, extent: AllocatorCode::FileAndMore, functions: Vec::new() };
        return Ok(is_allocator.then_some(malloc));
    };
    let wanted = |name: &[u8]| {
        let is_of = |names: &[&str]| names.iter().any(|it| it.as_bytes() == name);
        names::is_wanted(name) || is_of(SANITIZERS) || KNOWN.iter().any(|names| is_of(names))
    };
    let functions = variables::functions_where(file, &wanted);
    if !exports(&functions, "malloc") {
        return Ok(None);
    }
    if SANITIZERS.iter().any(|name| exports(&functions, name)) {
        let name = name.escaped();
        return Err(format!(
            "its malloc is a sanitizer's ({name}), which keeps the state of each block itself"
        ));
    }
    let is_known = KNOWN.iter().any(|names| names.iter().all(|name| exports(&functions, name)));
    let extent = match (is_program, is_known) {
        (true, _) => AllocatorCode::Program,
        (false, true) => AllocatorCode::File,
        (false, false) => AllocatorCode::FileAndMore,
    };
    let ranges = functions.seen.iter().filter_map(|seen| {
        let start = address(pieces, seen.function.offset)?;
        Some(start..start.saturating_add(seen.function.size.max(1)))
    });
    Ok(Some(MallocFile { id, name, extent, functions: ranges.collect() }))
}

fn exports(functions: &WantedFunctions, name: &str) -> bool {
    functions.seen.iter().any(|seen| seen.exported && seen.function.name == name)
}

/// The address at which an offset of a file is mapped.
pub(crate) fn address(pieces: &[&Mapping], offset: u64) -> Option<u64> {
    pieces.iter().find_map(|piece| {
        let into = offset.checked_sub(piece.offset)?;
        let address = piece.range.start.checked_add(into)?;
        piece.range.contains(address).then_some(address)
    })
}

fn poll(root: &ProcRoot, pid: u32, libc: &[&Mapping]) -> Option<Range<u64>> {
    let file = target_file::open_mapped(root, Pid(pid), libc.first()?).ok()?;
    let function = variables::functions(&file, &["poll"]).into_iter().next()?;
    let start = address(libc, function.offset)?;
    Some(start..start.saturating_add(function.size))
}
