//! Finds allocators under names of their own by the symbols of the files that a process has mapped,
//! and determines the role of each of their functions.
//!
//! A program may contain jemalloc or mimalloc under names with a prefix, or a `malloc` that it does
//! not export. A library that exports `malloc` may also have an `operator new` that does not call
//! it. [`crate::hook`] hooks the functions.

use std::fmt;
use std::fs::File;
use std::io::Read;

use pagewise_heaplog::tables::named::role;
use pagewise_model::{Mapping, Name, Pid};
use pagewise_proc::variables::{self, WantedFunctions};
use pagewise_proc::{ProcRoot, maps, target_file};

/// A function that allocates or frees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFunction {
    /// Name of the function.
    pub name: String,
    /// Address.
    pub at: u64,
    /// Size in bytes; 0 if its symbol has no size.
    pub size: u64,
    /// Meaning of the function and its arguments ([`role`]).
    pub role: u64,
    /// For a function that throws an exception if memory is exhausted: address of the variant that
    /// returns null instead. 0 for other functions.
    pub instead: u64,
}

/// The allocators of a file whose functions are not reached through an exported `malloc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileAllocator {
    /// File that contains the allocators.
    pub file: Name,
    /// Name of one of the functions, for example `_rjem_malloc`.
    pub name: String,
    /// Address at which the file is mapped.
    pub start: u64,
    /// Functions of the allocators, each once.
    pub functions: Vec<NamedFunction>,
    /// True if the functions include an `operator new`.
    pub has_new: bool,
}

/// An allocator in a file without symbols of the allocator's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nameless {
    /// File that contains the allocator.
    pub file: Name,
    /// Name of the allocator, which is recognized by strings in the file.
    pub allocator: &'static str,
}

impl fmt::Display for Nameless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nameless { file, allocator } = self;
        write!(
            f,
            "{} has {allocator} in it, but no symbols of its functions (they were stripped): what is allocated by them is not recorded",
            file.escaped()
        )
    }
}

/// Allocators of a process, with and without symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessFunctions {
    pub allocators: Vec<FileAllocator>,
    pub nameless: Vec<Nameless>,
}

/// Name of a function, and its role.
struct FunctionRow {
    name: &'static str,
    role: u64,
    instead: &'static str,
}

const NO: u64 = role::NONE;

const fn row(name: &'static str, role: u64) -> FunctionRow {
    FunctionRow { name, role, instead: "" }
}

/// A function that returns a block, whose size is the argument of index `size`.
const fn size(name: &'static str, size: u64) -> FunctionRow {
    row(name, role::new(role::ALLOCATES, size, NO, NO))
}

/// A function that returns a block, whose size is the product of two arguments.
const fn array(name: &'static str, size: u64, times: u64) -> FunctionRow {
    row(name, role::new(role::ALLOCATES, size, times, NO))
}

/// A function that resizes the block in the argument of index `block`.
const fn resize(name: &'static str, block: u64, size: u64) -> FunctionRow {
    row(name, role::new(role::RESIZES, size, NO, block))
}

const fn resize_array(name: &'static str, block: u64, size: u64, times: u64) -> FunctionRow {
    row(name, role::new(role::RESIZES, size, times, block))
}

const fn free(name: &'static str) -> FunctionRow {
    row(name, role::new(role::FREES, NO, NO, 0))
}

const fn text(name: &'static str) -> FunctionRow {
    row(name, role::new(role::COPIES_TEXT, NO, NO, NO))
}

/// A function that throws an exception in cases in which the function `instead` returns null.
const fn throws(row: FunctionRow, instead: &'static str) -> FunctionRow {
    FunctionRow { instead, ..row }
}

/// The functions of the C standard and its extensions.
const USUAL: &[FunctionRow] = &[
    size("malloc", 0),
    free("free"),
    free("cfree"),
    array("calloc", 0, 1),
    resize("realloc", 0, 1),
    resize_array("reallocarray", 0, 1, 2),
    size("memalign", 1),
    size("aligned_alloc", 1),
    row("posix_memalign", role::new(role::ALLOCATES_INTO, 2, NO, NO)),
    size("valloc", 0),
    size("pvalloc", 0),
];

/// jemalloc's own functions, with or without a prefix.
const OF_JEMALLOC: &[FunctionRow] = &[
    size("mallocx", 0),
    resize("rallocx", 0, 1),
    row("xallocx", role::new(role::RESIZES_IN_PLACE, 1, NO, 0)),
    free("dallocx"),
    free("sdallocx"),
    size("smallocx", 0),
    free("free_sized"),
    free("free_aligned_sized"),
];

/// Prefixes that programs give jemalloc's functions.
const PREFIXES: &[&str] =
    &["_rjem_", "rjem_", "je_", "jem_", "je_arrow_", "duckdb_je_", "jemalloc_", "moz_je_"];

/// mimalloc's functions.
const OF_MIMALLOC: &[FunctionRow] = &[
    size("mi_malloc", 0),
    free("mi_free"),
    array("mi_calloc", 0, 1),
    resize("mi_realloc", 0, 1),
    size("mi_zalloc", 0),
    size("mi_malloc_small", 0),
    size("mi_zalloc_small", 0),
    array("mi_mallocn", 0, 1),
    size("mi_memalign", 1),
    size("mi_aligned_alloc", 1),
    row("mi_posix_memalign", role::new(role::ALLOCATES_INTO, 2, NO, NO)),
    size("mi_valloc", 0),
    size("mi_pvalloc", 0),
    resize("mi_expand", 0, 1),
    resize("mi__expand", 0, 1),
    resize_array("mi_reallocn", 0, 1, 2),
    resize_array("mi_reallocarray", 0, 1, 2),
    row("mi_reallocf", role::new(role::RESIZES_OR_FREES, 1, NO, 0)),
    resize("mi_rezalloc", 0, 1),
    resize_array("mi_recalloc", 0, 1, 2),
    size("mi_malloc_aligned", 0),
    size("mi_malloc_aligned_at", 0),
    size("mi_zalloc_aligned", 0),
    size("mi_zalloc_aligned_at", 0),
    array("mi_calloc_aligned", 0, 1),
    array("mi_calloc_aligned_at", 0, 1),
    resize("mi_realloc_aligned", 0, 1),
    resize("mi_realloc_aligned_at", 0, 1),
    resize("mi_rezalloc_aligned", 0, 1),
    resize("mi_rezalloc_aligned_at", 0, 1),
    resize_array("mi_recalloc_aligned", 0, 1, 2),
    resize_array("mi_recalloc_aligned_at", 0, 1, 2),
    resize_array("mi_aligned_recalloc", 0, 1, 2),
    resize_array("mi_aligned_offset_recalloc", 0, 1, 2),
    free("mi_cfree"),
    free("mi_free_size"),
    free("mi_free_aligned"),
    free("mi_free_size_aligned"),
    free("mi_free_small"),
    text("mi_strdup"),
    text("mi_strndup"),
    text("mi_mbsdup"),
    throws(size("mi_new", 0), "mi_new_nothrow"),
    throws(size("mi_new_aligned", 0), "mi_new_aligned_nothrow"),
    size("mi_new_nothrow", 0),
    size("mi_new_aligned_nothrow", 0),
    throws(array("mi_new_n", 0, 1), "mi_mallocn"),
    throws(resize("mi_new_realloc", 0, 1), "mi_realloc"),
    throws(resize_array("mi_new_reallocn", 0, 1, 2), "mi_reallocn"),
    size("mi_umalloc", 0),
    size("mi_uzalloc", 0),
    array("mi_ucalloc", 0, 1),
    resize("mi_urealloc", 0, 1),
    free("mi_ufree"),
    size("mi_umalloc_aligned", 0),
    size("mi_uzalloc_aligned", 0),
    size("mi_umalloc_small", 0),
    size("mi_uzalloc_small", 0),
    size("mi_heap_malloc", 1),
    size("mi_heap_zalloc", 1),
    array("mi_heap_calloc", 1, 2),
    array("mi_heap_mallocn", 1, 2),
    size("mi_heap_malloc_small", 1),
    size("mi_heap_zalloc_small", 1),
    resize("mi_heap_realloc", 1, 2),
    resize_array("mi_heap_reallocn", 1, 2, 3),
    row("mi_heap_reallocf", role::new(role::RESIZES_OR_FREES, 2, NO, 1)),
    resize("mi_heap_rezalloc", 1, 2),
    resize_array("mi_heap_recalloc", 1, 2, 3),
    size("mi_heap_malloc_aligned", 1),
    size("mi_heap_malloc_aligned_at", 1),
    size("mi_heap_zalloc_aligned", 1),
    size("mi_heap_zalloc_aligned_at", 1),
    array("mi_heap_calloc_aligned", 1, 2),
    array("mi_heap_calloc_aligned_at", 1, 2),
    resize("mi_heap_realloc_aligned", 1, 2),
    resize("mi_heap_realloc_aligned_at", 1, 2),
    resize("mi_heap_rezalloc_aligned", 1, 2),
    resize("mi_heap_rezalloc_aligned_at", 1, 2),
    resize_array("mi_heap_recalloc_aligned", 1, 2, 3),
    resize_array("mi_heap_recalloc_aligned_at", 1, 2, 3),
    text("mi_heap_strdup"),
    text("mi_heap_strndup"),
    throws(size("mi_heap_alloc_new", 1), "mi_heap_malloc"),
    throws(array("mi_heap_alloc_new_n", 1, 2), "mi_heap_mallocn"),
];

/// tcmalloc's functions.
const OF_TCMALLOC: &[FunctionRow] = &[
    size("tc_malloc", 0),
    free("tc_free"),
    array("tc_calloc", 0, 1),
    resize("tc_realloc", 0, 1),
    free("tc_cfree"),
    free("tc_free_sized"),
    size("tc_memalign", 1),
    row("tc_posix_memalign", role::new(role::ALLOCATES_INTO, 2, NO, NO)),
    size("tc_valloc", 0),
    size("tc_pvalloc", 0),
    size("tc_malloc_skip_new_handler", 0),
    throws(size("tc_new", 0), "tc_new_nothrow"),
    throws(size("tc_newarray", 0), "tc_newarray_nothrow"),
    throws(size("tc_new_aligned", 0), "tc_new_aligned_nothrow"),
    throws(size("tc_newarray_aligned", 0), "tc_newarray_aligned_nothrow"),
    size("tc_new_nothrow", 0),
    size("tc_newarray_nothrow", 0),
    size("tc_new_aligned_nothrow", 0),
    size("tc_newarray_aligned_nothrow", 0),
    free("tc_delete"),
    free("tc_delete_sized"),
    free("tc_delete_nothrow"),
    free("tc_delete_aligned"),
    free("tc_delete_sized_aligned"),
    free("tc_delete_aligned_nothrow"),
    free("tc_deletearray"),
    free("tc_deletearray_sized"),
    free("tc_deletearray_nothrow"),
    free("tc_deletearray_aligned"),
    free("tc_deletearray_sized_aligned"),
    free("tc_deletearray_aligned_nothrow"),
];

/// `operator new` and `operator delete`.
const OF_CPP: &[FunctionRow] = &[
    throws(size("_Znwm", 0), "_ZnwmRKSt9nothrow_t"),
    throws(size("_Znam", 0), "_ZnamRKSt9nothrow_t"),
    throws(size("_ZnwmSt11align_val_t", 0), "_ZnwmSt11align_val_tRKSt9nothrow_t"),
    throws(size("_ZnamSt11align_val_t", 0), "_ZnamSt11align_val_tRKSt9nothrow_t"),
    size("_ZnwmRKSt9nothrow_t", 0),
    size("_ZnamRKSt9nothrow_t", 0),
    size("_ZnwmSt11align_val_tRKSt9nothrow_t", 0),
    size("_ZnamSt11align_val_tRKSt9nothrow_t", 0),
    free("_ZdlPv"),
    free("_ZdaPv"),
    free("_ZdlPvm"),
    free("_ZdaPvm"),
    free("_ZdlPvRKSt9nothrow_t"),
    free("_ZdaPvRKSt9nothrow_t"),
    free("_ZdlPvSt11align_val_t"),
    free("_ZdaPvSt11align_val_t"),
    free("_ZdlPvmSt11align_val_t"),
    free("_ZdaPvmSt11align_val_t"),
    free("_ZdlPvSt11align_val_tRKSt9nothrow_t"),
    free("_ZdaPvSt11align_val_tRKSt9nothrow_t"),
];

/// Strings by which an allocator in a file is recognized, and the name of the allocator.
const WORDS: &[(&[u8], &str)] = &[
    (b"<jemalloc>: ", "jemalloc"),
    (b"mimalloc: error: ", "mimalloc"),
    (b"TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", "tcmalloc"),
];
/// Number of bytes of a file in which the strings of [`WORDS`] are searched, and number of bytes in
/// one read.
const SEARCHED: u64 = 256 << 20;
const PIECE: usize = 1 << 20;

/// True if a name is that of a function of a known allocator.
pub(crate) fn is_wanted(name: &[u8]) -> bool {
    // Most names are rejected here: a file may have a million symbols.
    if !matches!(name.first(), Some(b'_' | b'a'..=b'x')) || name.len() > 64 {
        return false;
    }
    let is_of =
        |rows: &[FunctionRow], name: &[u8]| rows.iter().any(|row| row.name.as_bytes() == name);
    let is_plain = |name| is_of(USUAL, name) || is_of(OF_JEMALLOC, name);
    let is_prefixed = |prefix: &&str| name.strip_prefix(prefix.as_bytes()).is_some_and(is_plain);
    match name {
        [b'm', b'i', b'_', ..] => is_of(OF_MIMALLOC, name),
        [b't', b'c', b'_', ..] => is_of(OF_TCMALLOC, name),
        [b'_', b'Z', b'n' | b'd', ..] => is_of(OF_CPP, name),
        _ => is_plain(name) || PREFIXES.iter().any(is_prefixed),
    }
}

/// Finds the allocators in the files that a process has mapped.
pub(crate) fn find(root: &ProcRoot, pid: Pid) -> ProcessFunctions {
    let Ok(text) = root.read(pid, "maps") else { return ProcessFunctions::default() };
    let mappings = maps::parse(&text).mappings;
    let mut names = ProcessFunctions::default();
    let mut seen = Vec::new();
    for mapping in mappings.iter().filter(|it| it.inode != 0 && it.prot.exec) {
        let key = (mapping.device, mapping.inode);
        if seen.contains(&key) || is_passed(&mapping.name) {
            continue;
        }
        seen.push(key);
        let Ok(file) = target_file::open_mapped(root, pid, mapping) else { continue };
        let functions = variables::functions_where(&file, &is_wanted);
        let pieces: Vec<&Mapping> =
            mappings.iter().filter(|it| (it.device, it.inode) == key).collect();
        match of_file(&functions, &pieces) {
            Some(allocator) => names.allocators.push(allocator),
            None if !functions.complete
                && !exports_malloc(&functions)
                && !is_of_system(&mapping.name) =>
            {
                let file = mapping.name.clone();
                let found = file_label(target_file::open_mapped(root, pid, mapping).ok());
                names.nameless.extend(found.map(|allocator| Nameless { file, allocator }));
            }
            None => {}
        }
    }
    names
}

/// True if a file is not searched: the C library, the loader, the recorder, and libraries whose
/// symbol tables are large and known.
fn is_passed(name: &Name) -> bool {
    let base = name.base();
    let begins = |with: &str| base.starts_with(with.as_bytes());
    ["libc.so.", "libc-2.", "ld-linux", "ld-2.", "libpagewise_preload", "libstdc++.so."]
        .into_iter()
        .any(begins)
}

/// True if a file is a library of the distribution. A process may load many such libraries, and
/// they use the allocator of the program.
fn is_of_system(name: &Name) -> bool {
    [&b"/usr/lib"[..], b"/lib"].into_iter().any(|folder| name.as_bytes().starts_with(folder))
}

fn exports_malloc(functions: &WantedFunctions) -> bool {
    functions.seen.iter().any(|seen| seen.exported && seen.function.name == "malloc")
}

/// Name of the allocator whose strings are in a file.
fn file_label(file: Option<File>) -> Option<&'static str> {
    let mut file = file?.take(SEARCHED);
    let finders: Vec<_> =
        WORDS.iter().map(|(word, name)| (memchr::memmem::Finder::new(word), *name)).collect();
    let most = WORDS.iter().map(|(word, _)| word.len()).max().unwrap_or(0);
    let mut bytes = Vec::new();
    loop {
        let kept = bytes.len().min(most);
        bytes.drain(..bytes.len() - kept);
        let read = file.by_ref().take(PIECE as u64).read_to_end(&mut bytes).ok()?;
        if let Some((_, name)) = finders.iter().find(|(finder, _)| finder.find(&bytes).is_some()) {
            return Some(name);
        }
        if read == 0 {
            return None;
        }
    }
}

/// Adds names with a prefix, each with its role and the name of the function to call instead.
fn add(rows: &mut Vec<(String, u64, String)>, prefix: &str, of: &[FunctionRow]) {
    rows.extend(of.iter().map(|row| {
        let instead = match row.instead {
            "" => String::new(),
            instead => format!("{prefix}{instead}"),
        };
        (format!("{prefix}{}", row.name), row.role, instead)
    }));
}

/// Functions of a file at their mapped addresses.
fn of_file(functions: &WantedFunctions, pieces: &[&Mapping]) -> Option<FileAllocator> {
    let first = pieces.first()?;
    let address = |offset: u64| {
        let piece = pieces.iter().find(|piece| {
            let into = offset.checked_sub(piece.offset);
            piece.prot.exec && into.is_some_and(|it| it < piece.range.end - piece.range.start)
        })?;
        Some(piece.range.start + (offset - piece.offset))
    };
    let place = |name: &str| {
        let seen = functions.seen.iter().find(|seen| seen.function.name == name)?;
        Some((address(seen.function.offset)?, seen.function.size))
    };
    let found = named_functions(rows_of(functions), place);
    let new = place("_Znwm").map(|(at, _)| at);
    let has_new = found.iter().any(|found| Some(found.at) == new);
    let name = found.first()?.name.clone();
    let start = pieces.iter().map(|piece| piece.range.start).min()?;
    Some(FileAllocator { file: first.name.clone(), name, start, functions: found, has_new })
}

/// Functions to hook that a file has: name, role, and function called instead.
fn rows_of(functions: &WantedFunctions) -> Vec<(String, u64, String)> {
    let exports =
        |name: &str| functions.seen.iter().any(|seen| seen.exported && seen.function.name == name);
    let has = |name: &str| functions.seen.iter().any(|seen| seen.function.name == name);
    let mut rows: Vec<(String, u64, String)> = Vec::new();
    for prefix in PREFIXES {
        if ["free", "dallocx", "sdallocx"].iter().any(|name| has(&format!("{prefix}{name}"))) {
            add(&mut rows, prefix, USUAL);
            add(&mut rows, prefix, OF_JEMALLOC);
        }
    }
    // A linker omits unused functions, but `mi_free` is always used.
    if has("mi_free") {
        add(&mut rows, "", OF_MIMALLOC);
    }
    if has("tc_free") {
        add(&mut rows, "", OF_TCMALLOC);
    }
    if has("mallocx") && has("dallocx") {
        add(&mut rows, "", OF_JEMALLOC);
    }
    // Calls of an exported `malloc` already reach the recorder. A file that contains `malloc`,
    // `free` and `realloc`, but does not export `malloc`, has an allocator of its own.
    let is_hidden = ["malloc", "free", "realloc"].into_iter().all(has) && !exports("malloc");
    if is_hidden {
        add(&mut rows, "", USUAL);
    }
    if !rows.is_empty() || exports("malloc") {
        add(&mut rows, "", OF_CPP);
    }
    rows
}

/// Returns the functions that `place` finds, each once.
fn named_functions(
    rows: Vec<(String, u64, String)>,
    place: impl Fn(&str) -> Option<(u64, u64)>,
) -> Vec<NamedFunction> {
    let mut found: Vec<NamedFunction> = Vec::new();
    for (name, role, instead) in rows {
        let Some((at, size)) = place(&name) else { continue };
        // A function may have several names.
        if !found.iter().any(|other| other.at == at) {
            let other = place(&instead).map_or(0, |(at, _)| at);
            // Without a variant that returns null, this is the program's own `operator new`. It is
            // not hooked: it calls another allocation function, which is hooked, and its exception
            // could not pass through a hook.
            if other == 0 && !instead.is_empty() && name.starts_with("_Zn") {
                continue;
            }
            let instead = other;
            found.push(NamedFunction { name, at, size, role, instead });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_allocators_are_wanted_and_others_are_not() {
        for name in ["_rjem_sdallocx", "je_malloc", "mi_new_n", "tc_delete", "_Znwm", "malloc"] {
            assert!(is_wanted(name.as_bytes()), "{name}");
        }
        for name in ["", "main", "_rjem_je_arena_init", "mi_version", "je_", "_ZN3foo3barEv"] {
            assert!(!is_wanted(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn words_are_found_where_pieces_of_a_file_meet() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![b'x'; 3 * PIECE];
        assert!(std::fs::write(path.path(), &bytes).is_ok());
        assert_eq!(file_label(File::open(path.path()).ok()), None);
        bytes[2 * PIECE - 4..][..12].copy_from_slice(b"<jemalloc>: ");
        assert!(std::fs::write(path.path(), &bytes).is_ok());
        assert_eq!(file_label(File::open(path.path()).ok()), Some("jemalloc"));
    }
}
