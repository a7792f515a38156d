//! Code of mimalloc in a process: while a thread executes it, the data of the allocator may
//! contradict itself.

use pagewise_model::{AddrRange, Mapping, Pid};
use pagewise_proc::variables::functions_where;
use pagewise_proc::{ProcRoot, target_file};

use crate::memory::mapped_function;

/// True for the path of the library.
pub(super) fn is_library(path: &[u8]) -> bool {
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    path[start..].starts_with(b"libmimalloc")
}

/// The code of the library of mimalloc, or of a program that contains it.
pub(crate) fn malloc_code(root: &ProcRoot, pid: Pid, mappings: &[Mapping]) -> Vec<AddrRange> {
    let mut code = mappings.iter().filter(|it| it.inode != 0 && it.prot.exec);
    let library: Vec<AddrRange> =
        code.clone().filter(|it| is_library(it.path())).map(|it| it.range).collect();
    if !library.is_empty() {
        return library;
    }
    let of_program = |program: &Mapping| {
        let file = target_file::open_mapped(root, pid, program).ok()?;
        let is_wanted = |name: &[u8]| name.starts_with(b"mi_") || name.starts_with(b"_mi_");
        let found = functions_where(&file, &is_wanted).seen;
        let ranges = found.iter().filter_map(|it| mapped_function(&it.function, program));
        Some(ranges.collect())
    };
    code.next().and_then(of_program).unwrap_or_default()
}
