//! Address ranges of allocator code in a process. While a thread executes allocator code, the data
//! of the allocator may contradict itself.
//!
//! The malloc of a C library is a part of that library, so glibc and musl have their own modules.
//! Other allocators are separate libraries, or are linked into the program.

use pagewise_model::{AddrRange, Mapping, Pid};
use pagewise_proc::variables::functions_where;
use pagewise_proc::{ProcRoot, target_file};

use crate::memory::{file_name, mapped_function};
use crate::{glibc, mimalloc, musl};

/// An allocator that exists as a library of its own.
struct NamedAllocator {
    /// Prefix of the library's file name.
    library: &'static [u8],
    /// Prefixes of the allocator's function names, in a program that is linked with the allocator.
    functions: &'static [&'static [u8]],
}

const ALLOCATORS: [NamedAllocator; 3] = [
    // Rust programs prefix the function names of jemalloc with `_rjem_je_`.
    NamedAllocator { library: b"libjemalloc", functions: &[b"je_", b"_rjem_"] },
    NamedAllocator {
        library: b"libtcmalloc",
        functions: &[b"_ZN8tcmalloc", b"_ZN22TCMallocImplementation", b"tc_"],
    },
    NamedAllocator { library: mimalloc::LIBRARY, functions: &[b"mi_", b"_mi_"] },
];
/// Maximum number of bytes of an allocator's code. A linker places all functions of an allocator
/// next to each other, including functions without the known prefixes. So a range that covers the
/// known functions counts as the allocator's code if it has at most this size.
const MAX_CODE: u64 = 512 << 10;

impl NamedAllocator {
    fn has_function(&self, name: &[u8]) -> bool {
        self.functions.iter().any(|first| name.starts_with(first))
    }
}

/// Returns the code ranges of all allocators of a process.
pub fn allocator_code(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Vec<AddrRange> {
    let mut code = glibc::malloc_code(root, pid, mappings);
    code.extend(musl::malloc_code(root, pid, mappings));
    code.extend(library_code(mappings));
    let mut files = mappings.iter().filter(|it| it.inode != 0 && it.prot.exec);
    code.extend(files.next().map_or_else(Vec::new, |program| program_code(root, pid, program)));
    code
}

fn library_code(mappings: &[Mapping]) -> impl Iterator<Item = AddrRange> {
    let is_library = |mapping: &&Mapping| {
        let name = file_name(mapping.path());
        ALLOCATORS.iter().any(|allocator| name.starts_with(allocator.library))
    };
    let code = mappings.iter().filter(|it| it.inode != 0 && it.prot.exec);
    code.filter(is_library).map(|mapping| mapping.range)
}

/// Returns the code ranges of the allocators that are linked into the program.
fn program_code(root: &ProcRoot, pid: Pid, program: &Mapping) -> Vec<AddrRange> {
    let Ok(file) = target_file::open_mapped(root, pid, program) else { return Vec::new() };
    let is_wanted = |name: &[u8]| ALLOCATORS.iter().any(|it| it.has_function(name));
    let found = functions_where(&file, &is_wanted).seen;
    let of_allocator = |allocator: &NamedAllocator| {
        let own = found.iter().filter(|it| allocator.has_function(it.function.name.as_bytes()));
        with_hull(own.filter_map(|it| mapped_function(&it.function, program)).collect())
    };
    ALLOCATORS.iter().flat_map(of_allocator).collect()
}

/// Returns the hull of `ranges` if it is small enough for one allocator, and `ranges` otherwise.
fn with_hull(ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    match hull(&ranges) {
        Some(hull) if hull.len().0 <= MAX_CODE => vec![hull],
        _ => ranges,
    }
}

/// Smallest range that covers all `ranges`; `None` without ranges.
pub(crate) fn hull(ranges: &[AddrRange]) -> Option<AddrRange> {
    let start = ranges.iter().map(|range| range.start).min()?;
    let end = ranges.iter().map(|range| range.end).max()?;
    Some(AddrRange { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_an_allocator_is_one_range_unless_it_is_scattered() {
        let range = |start, end| AddrRange { start, end };
        let near = vec![range(0x5000, 0x5100), range(0x4000, 0x4010)];
        assert_eq!(with_hull(near), [range(0x4000, 0x5100)]);
        let far = vec![range(0x5000, 0x5100), range(0x40_0000, 0x40_0010)];
        assert_eq!(with_hull(far.clone()), far);
        assert_eq!(with_hull(Vec::new()), []);
    }

    #[test]
    fn functions_of_allocators_are_recognized_by_name() {
        let owners = |name: &str| {
            let owners = ALLOCATORS.iter().filter(|it| it.has_function(name.as_bytes()));
            owners.map(|it| str::from_utf8(it.library).unwrap()).collect::<Vec<&str>>()
        };
        assert_eq!(owners("je_arena_malloc_hard"), ["libjemalloc"]);
        assert_eq!(owners("_rjem_je_tcache_event_hard"), ["libjemalloc"]);
        assert_eq!(owners("_ZN8tcmalloc8PageHeap3NewEm"), ["libtcmalloc"]);
        assert_eq!(owners("_mi_page_malloc"), ["libmimalloc"]);
        for name in ["malloc", "free", "main", "", "mime_type", "jelly"] {
            assert_eq!(owners(name), [] as [&str; 0], "{name}");
        }
    }
}
