//! Pools told by the name in `maps`: the kernel's own, shared memory, named memory, files.

use std::collections::HashMap;

use pagewise_model::{Backing, Device, Mapping, Name, Sharing};

use super::{Kind, Mark, Sorter};

/// How a pool is named, and so what is one pool.
#[derive(Clone, Copy)]
enum Naming {
    /// All mappings of the kind are one pool of that name.
    One(&'static str),
    /// Each file is a pool, named by its path.
    File,
    /// Each name is a pool, named by what is left of it without the prefix.
    Rest,
    /// Each name is a pool.
    Whole,
}

use Naming::{File, One, Rest, Whole};

/// What the kernel and well-known programs call their memory. The first prefix that fits decides.
const NAMES: &[(&[u8], Kind, Naming)] = &[
    (b"[heap]", Kind::Heap, One("[heap]")),
    (b"[stack]", Kind::MainStack, One("[stack]")),
    // Linux 3.4 to 4.4 names each thread's stack.
    (b"[stack:", Kind::ThreadStack, Whole),
    (b"[v", Kind::Kernel, One("vdso and kin")),
    (b"[uprobes]", Kind::Kernel, One("vdso and kin")),
    (b"[sigpage]", Kind::Kernel, One("vdso and kin")),
    (b"[anon:pagewise:", Kind::Pagewise, Rest),
    (b"[anon_shmem:pagewise:", Kind::Pagewise, Rest),
    (b"/memfd:pagewise", Kind::Pagewise, File),
    (b"[anon:stack_and_tls:", Kind::ThreadStack, Whole),
    (b"[anon: glibc: pthread stack", Kind::ThreadStack, Whole),
    (b"[anon: glibc: malloc arena", Kind::MallocArena, One(super::anonymous::ARENAS)),
    (b"[anon: glibc: malloc", Kind::MallocChunk, One(super::anonymous::CHUNKS)),
    (b"[anon:libc_malloc", Kind::Allocator, One("libc_malloc")),
    (b"[anon:scudo", Kind::Allocator, One("scudo")),
    (b"[anon:jemalloc", Kind::Allocator, One("jemalloc")),
    (b"[anon:tcmalloc", Kind::Allocator, One("tcmalloc")),
    (b"[anon:mimalloc", Kind::Allocator, One("mimalloc")),
    (b"[anon: Go: ", Kind::Go, Rest),
    (b"[anon:Go: ", Kind::Go, Rest),
    (b"[anon:", Kind::Named, Rest),
    (b"[anon_shmem:", Kind::SharedAnonymous, Rest),
    (b"/anon_hugepage", Kind::Hugetlb, One("huge TLB pages")),
    (b"/memfd:", Kind::Memfd, File),
    (b"/SYSV", Kind::SharedSysv, File),
    (b"/dev/shm/", Kind::SharedPosix, File),
    (b"anon_inode:", Kind::Device, Whole),
    (b"/[aio]", Kind::Device, One("/[aio]")),
];

/// Places every mapping that has a name or a file, and still no home.
pub(super) fn place(sorter: &mut Sorter<'_>) {
    let readable: HashMap<(Device, u64), bool> =
        sorter.snapshot.objects.iter().map(|o| ((o.device, o.inode), o.elf.is_ok())).collect();
    let exe = sorter.snapshot.process.exe.as_ref().ok().map(path);
    for (index, mapping) in sorter.mappings.iter().enumerate() {
        if !sorter.is_free(index) || mapping.name.is_empty() && mapping.inode == 0 {
            continue;
        }
        match NAMES.iter().find(|(prefix, ..)| mapping.name.as_bytes().starts_with(prefix)) {
            Some(&(prefix, kind, naming)) => put(sorter, index, mapping, kind, naming, prefix),
            None => {
                let is_elf = readable.get(&(mapping.device, mapping.inode)).copied();
                put_file(sorter, index, mapping, exe.as_ref(), is_elf == Some(true));
            }
        }
    }
}

fn put(
    sorter: &mut Sorter<'_>,
    index: usize,
    mapping: &Mapping,
    kind: Kind,
    naming: Naming,
    prefix: &[u8],
) {
    let whole = &mapping.name;
    match naming {
        One(name) => sorter.put(index, kind, name),
        File => put_by_file(sorter, index, mapping, kind),
        Whole => _ = sorter.put_marked(index, kind, Mark::Name(whole.clone()), || whole.clone()),
        Rest => {
            let rest = || Name::new(rest(whole.as_bytes(), prefix));
            sorter.put_marked(index, kind, Mark::Name(whole.clone()), rest);
        }
    }
}

fn put_by_file(sorter: &mut Sorter<'_>, index: usize, mapping: &Mapping, kind: Kind) {
    let mark = Mark::File(mapping.device, mapping.inode);
    sorter.put_marked(index, kind, mark, || path(&mapping.name));
}

/// A file or a device that no prefix tells.
fn put_file(
    sorter: &mut Sorter<'_>,
    index: usize,
    mapping: &Mapping,
    exe: Option<&Name>,
    is_elf: bool,
) {
    match sorter.backings[index] {
        Backing::Shmem if mapping.path() == b"/dev/zero" => {
            sorter.put(index, Kind::SharedAnonymous, "MAP_SHARED|MAP_ANONYMOUS");
        }
        // /dev/zero mapped private, or a bracketed name of a later kernel.
        Backing::Anonymous if mapping.inode != 0 => {}
        Backing::Anonymous => put(sorter, index, mapping, Kind::Named, Whole, b""),
        Backing::Shmem => put_by_file(sorter, index, mapping, Kind::Tmpfs),
        Backing::Special => put_by_file(sorter, index, mapping, Kind::Device),
        Backing::File => put_by_file(sorter, index, mapping, file_kind(mapping, exe, is_elf)),
    }
}

/// The kind of a file that is no image with known parts.
fn file_kind(mapping: &Mapping, exe: Option<&Name>, is_elf: bool) -> Kind {
    if exe.is_some_and(|exe| exe.as_bytes() == mapping.path()) {
        Kind::Program
    } else if mapping.sharing == Sharing::Private && !is_elf && is_library_name(mapping.path()) {
        Kind::Library
    } else {
        Kind::File
    }
}

/// The name of a file without the ` (deleted)` that the kernel appends.
pub(super) fn path(name: &Name) -> Name {
    match name.as_bytes().strip_suffix(b" (deleted)") {
        Some(path) => Name::new(path),
        None => name.clone(),
    }
}

/// `libz.so`, `libc.so.6`; asked only where the ELF headers could not be read.
fn is_library_name(path: &[u8]) -> bool {
    let base = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    base.ends_with(b".so") || base.windows(4).any(|w| w == b".so.")
}

/// `[anon:pagewise:frames]` without its prefix and the bracket.
fn rest<'a>(name: &'a [u8], prefix: &[u8]) -> &'a [u8] {
    let rest = name.strip_prefix(prefix).unwrap_or(name);
    rest.strip_suffix(b"]").unwrap_or(rest)
}
