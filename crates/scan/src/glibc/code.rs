//! Address ranges of malloc code in a process. While a thread executes this code, the data of the
//! allocator may contradict itself.

use pagewise_model::{AddrRange, Mapping, Pid};
use pagewise_proc::variables::{FileFunction, functions};
use pagewise_proc::{ProcRoot, target_file};

use crate::memory::file_name;

/// Functions that glibc exports from `malloc.c`.
const EXPORTED: [&str; 16] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_usable_size",
    "malloc_stats",
    "malloc_info",
    "mallinfo",
    "mallinfo2",
    "mallopt",
];
/// A function that only glibc exports.
const OF_GLIBC: &str = "malloc_info";
/// Maximum number of bytes between a static function of `malloc.c` and the first exported function
/// after it.
const STATIC_CODE: u64 = 48 << 10;
/// Maximum number of bytes of all malloc code. A larger range means that the program has its own
/// functions with some of these names.
const MAX_CODE: u64 = 256 << 10;

/// Returns the ranges of malloc code in the C library, or in a program that is linked statically
/// with it.
pub fn malloc_code(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Vec<AddrRange> {
    let is_library = |mapping: &&Mapping| {
        let name = file_name(mapping.path());
        name.starts_with(b"libc.") || name.starts_with(b"libc-")
    };
    let code = || mappings.iter().filter(|it| it.inode != 0 && it.prot.exec);
    let libraries: Vec<AddrRange> =
        code().filter(is_library).filter_map(|it| code_in(root, pid, it)).collect();
    if !libraries.is_empty() {
        return libraries;
    }
    code().take(1).filter_map(|it| code_in(root, pid, it)).collect()
}

fn code_in(root: &ProcRoot, pid: Pid, mapping: &Mapping) -> Option<AddrRange> {
    let file = target_file::open_mapped(root, pid, mapping).ok()?;
    let found = functions(&file, &EXPORTED);
    if found.iter().all(|function| function.name != OF_GLIBC) {
        return None;
    }
    range_of(&found, mapping)
}

fn range_of(found: &[FileFunction], mapping: &Mapping) -> Option<AddrRange> {
    let address = |offset: u64| {
        let at = mapping.range.start.checked_add(offset.checked_sub(mapping.offset)?)?;
        mapping.range.contains(at).then_some(at)
    };
    let known = || found.iter().filter_map(|it| Some((address(it.offset)?, it.size)));
    let anchor = found.iter().find(|it| it.name == OF_GLIBC).and_then(|it| address(it.offset))?;
    let near = || known().filter(|(at, _)| at.abs_diff(anchor) < MAX_CODE);
    let first = near().map(|(at, _)| at).min()?;
    let end = near().map(|(at, size)| at.saturating_add(size)).max()?;
    let all = AddrRange { start: first.saturating_sub(STATIC_CODE), end };
    all.intersection(mapping.range)
}
