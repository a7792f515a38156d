//! Address ranges of musl's malloc code in a process. While a thread executes this code, the data
//! of the allocator may contradict itself.

use pagewise_model::{AddrRange, Mapping, Pid};
use pagewise_proc::variables::{FileFunction, functions_where};
use pagewise_proc::{ProcRoot, target_file};

use crate::allocator_code::hull;
use crate::memory::{file_name, mapped_function};

/// Functions that musl exports from src/malloc.
const EXPORTED: [&[u8]; 9] = [
    b"aligned_alloc",
    b"calloc",
    b"free",
    b"malloc",
    b"malloc_usable_size",
    b"memalign",
    b"posix_memalign",
    b"realloc",
    b"reallocarray",
];
/// Names of internal malloc functions, which only files with a full symbol table contain.
const INTERNAL: [&[u8]; 12] = [
    b"__libc_calloc",
    b"__libc_free",
    b"__libc_malloc",
    b"__libc_malloc_impl",
    b"__libc_realloc",
    b"__malloc_alloc_meta",
    b"__malloc_allzerop",
    b"__malloc_donate",
    b"alloc_group",
    b"alloc_slot",
    b"free_group",
    b"nontrivial_free",
];
/// A function that only mallocng contains.
const OF_MALLOCNG: &str = "__malloc_alloc_meta";
/// A function that only glibc exports.
const OF_GLIBC: &[u8] = b"malloc_info";
/// Maximum number of bytes of the malloc code in a shared library.
const MAX_CODE: u64 = 32 << 10;

/// Returns the ranges of malloc code in musl's C library, or in a program that is linked statically
/// with it.
pub(crate) fn malloc_code(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Vec<AddrRange> {
    let code = || mappings.iter().filter(|it| it.inode != 0 && it.prot.exec);
    if let Some(library) = code().find(|it| is_library(it)) {
        return code_in(root, pid, library, true);
    }
    code().next().map_or_else(Vec::new, |program| code_in(root, pid, program, false))
}

/// True for a mapping of musl's C library; its file is also the dynamic linker.
pub(crate) fn is_library(mapping: &Mapping) -> bool {
    let name = file_name(mapping.path());
    name.starts_with(b"ld-musl-") || name == b"libc.so"
}

fn code_in(root: &ProcRoot, pid: Pid, mapping: &Mapping, is_library: bool) -> Vec<AddrRange> {
    let Ok(file) = target_file::open_mapped(root, pid, mapping) else { return Vec::new() };
    let is_wanted = |name: &[u8]| {
        let base = name.split(|byte| *byte == b'.').next().unwrap_or(name);
        EXPORTED.contains(&base) || INTERNAL.contains(&base) || base == OF_GLIBC
    };
    let found = functions_where(&file, &is_wanted);
    let functions: Vec<&FileFunction> = found.seen.iter().map(|seen| &seen.function).collect();
    let has = |name: &str| functions.iter().any(|function| function.name == name);
    if has("malloc_info") || !is_library && !has(OF_MALLOCNG) {
        return Vec::new();
    }
    let mut ranges: Vec<AddrRange> =
        functions.iter().filter_map(|function| mapped_function(function, mapping)).collect();
    // In a library, functions without symbols are between the named functions, so the whole range
    // counts.
    if let Some(whole) = hull(&ranges).filter(|hull| is_library && hull.len().0 <= MAX_CODE) {
        ranges.push(whole);
    }
    ranges
}
