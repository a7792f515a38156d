//! Pools that the name in `maps` identifies: the kernel's mappings, shared memory, named memory,
//! files.

use std::collections::HashMap;

use pagewise_model::mapping::MappedFileKey;
use pagewise_model::{Backing, Mapping, Name, Sharing};

use super::{PoolKind, PoolMark, Sorter};

/// Rule for the names of pools, which determines the mappings that share a pool.
#[derive(Clone, Copy)]
enum Naming {
    /// One pool with this name contains all mappings that match.
    One(&'static str),
    /// Each file has a pool, named by its path.
    File,
    /// Each name has a pool, named by the part after the prefix.
    Rest,
    /// Each name has a pool, named by the whole name.
    Whole,
}

use Naming::{File, One, Rest, Whole};

/// Prefixes of names that the kernel and well-known programs give to their memory. The first
/// matching prefix applies.
const NAMES: &[(&[u8], PoolKind, Naming)] = &[
    (b"[heap]", PoolKind::Heap, One("[heap]")),
    (b"[stack]", PoolKind::MainStack, One("[stack]")),
    // Linux 3.4 to 4.4 gives each thread's stack a name.
    (b"[stack:", PoolKind::ThreadStack, Whole),
    (b"[v", PoolKind::Kernel, One("vdso, vvar")),
    (b"[uprobes]", PoolKind::Kernel, One("vdso, vvar")),
    (b"[sigpage]", PoolKind::Kernel, One("vdso, vvar")),
    (b"[anon:pagewise:", PoolKind::Pagewise, Rest),
    (b"[anon_shmem:pagewise:", PoolKind::Pagewise, Rest),
    (b"/memfd:pagewise", PoolKind::Pagewise, File),
    (b"[anon:stack_and_tls:", PoolKind::ThreadStack, Whole),
    (b"[anon: glibc: pthread stack", PoolKind::ThreadStack, Whole),
    (b"[anon: glibc: malloc arena", PoolKind::MallocArena, One(super::anonymous::ARENAS)),
    (b"[anon: glibc: malloc", PoolKind::MallocChunk, One(super::anonymous::CHUNKS)),
    (b"[anon:libc_malloc", PoolKind::Allocator, One("libc_malloc")),
    (b"[anon:scudo", PoolKind::Allocator, One("scudo")),
    (b"[anon:jemalloc", PoolKind::Allocator, One("jemalloc")),
    (b"[anon:tcmalloc", PoolKind::Allocator, One("tcmalloc")),
    (b"[anon:mimalloc", PoolKind::Allocator, One("mimalloc")),
    (b"[anon: Go: ", PoolKind::Go, Rest),
    (b"[anon:Go: ", PoolKind::Go, Rest),
    (b"[anon:", PoolKind::Named, Rest),
    (b"[anon_shmem:", PoolKind::SharedAnonymous, Rest),
    (b"/anon_hugepage", PoolKind::Hugetlb, One("huge TLB pages")),
    (b"/memfd:", PoolKind::Memfd, File),
    (b"/SYSV", PoolKind::SharedSysv, File),
    (b"/dev/shm/", PoolKind::SharedPosix, File),
    (b"anon_inode:", PoolKind::Device, Whole),
    (b"/[aio]", PoolKind::Device, One("/[aio]")),
];

/// Assigns every mapping that has a name or a file, and no pool yet.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let readable: HashMap<MappedFileKey, bool> =
        sorter.snapshot.objects.iter().map(|o| (o.key(), o.elf.is_ok())).collect();
    let exe = sorter.snapshot.process.exe.as_ref().ok().map(path);
    for (index, mapping) in sorter.mappings.iter().enumerate() {
        if !sorter.is_free(index) || mapping.name.is_empty() && mapping.inode == 0 {
            continue;
        }
        match NAMES.iter().find(|(prefix, ..)| mapping.name.as_bytes().starts_with(prefix)) {
            Some(&(prefix, kind, naming)) => put(sorter, index, mapping, kind, naming, prefix),
            None => {
                let is_elf = mapping.file_key().and_then(|key| readable.get(&key).copied());
                put_file(sorter, index, mapping, exe.as_ref(), is_elf == Some(true));
            }
        }
    }
}

fn put(
    sorter: &mut Sorter<'_>,
    index: usize,
    mapping: &Mapping,
    kind: PoolKind,
    naming: Naming,
    prefix: &[u8],
) {
    let whole = &mapping.name;
    match naming {
        One(name) => sorter.put(index, kind, name),
        File => put_by_file(sorter, index, mapping, kind),
        Whole => {
            _ = sorter.put_marked(index, kind, PoolMark::Name(whole.clone()), || whole.clone())
        }
        Rest => {
            let rest = || Name::new(rest(whole.as_bytes(), prefix));
            sorter.put_marked(index, kind, PoolMark::Name(whole.clone()), rest);
        }
    }
}

fn put_by_file(sorter: &mut Sorter<'_>, index: usize, mapping: &Mapping, kind: PoolKind) {
    let key = MappedFileKey::new(mapping.device, mapping.inode, &mapping.name);
    let mark = PoolMark::File(key);
    sorter.put_marked(index, kind, mark, || path(&mapping.name));
}

/// Assigns a file or a device without a matching prefix.
fn put_file(
    sorter: &mut Sorter<'_>,
    index: usize,
    mapping: &Mapping,
    exe: Option<&Name>,
    is_elf: bool,
) {
    match sorter.backings[index] {
        Backing::Shmem if mapping.path() == b"/dev/zero" => {
            sorter.put(index, PoolKind::SharedAnonymous, "MAP_SHARED|MAP_ANONYMOUS");
        }
        // A private mapping of /dev/zero has an inode. Other names are bracketed names of later
        // kernels.
        Backing::Anonymous if mapping.inode != 0 => {}
        Backing::Anonymous => put(sorter, index, mapping, PoolKind::Named, Whole, b""),
        Backing::Shmem => put_by_file(sorter, index, mapping, PoolKind::Tmpfs),
        Backing::Special => put_by_file(sorter, index, mapping, PoolKind::Device),
        Backing::File => put_by_file(sorter, index, mapping, file_kind(mapping, exe, is_elf)),
    }
}

/// Use of a file that is not an image with known parts.
fn file_kind(mapping: &Mapping, exe: Option<&Name>, is_elf: bool) -> PoolKind {
    if exe.is_some_and(|exe| exe.as_bytes() == mapping.path()) {
        PoolKind::Program
    } else if mapping.sharing != Sharing::Shared && !is_elf && is_library_name(mapping.path()) {
        PoolKind::Library
    } else {
        PoolKind::File
    }
}

/// Returns the name of a file without the ` (deleted)` that the kernel appends.
pub(super) fn path(name: &Name) -> Name {
    match name.as_bytes().strip_suffix(b" (deleted)") {
        Some(path) => Name::new(path),
        None => name.clone(),
    }
}

/// True for names like `libz.so` and `libc.so.6`. Called only for files whose ELF headers could not
/// be read.
fn is_library_name(path: &[u8]) -> bool {
    let base = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    base.ends_with(b".so") || base.windows(4).any(|w| w == b".so.")
}

/// Returns `[anon:pagewise:frames]` without its prefix and the closing bracket.
fn rest<'a>(name: &'a [u8], prefix: &[u8]) -> &'a [u8] {
    let rest = name.strip_prefix(prefix).unwrap_or(name);
    rest.strip_suffix(b"]").unwrap_or(rest)
}
