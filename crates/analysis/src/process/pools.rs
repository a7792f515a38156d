//! Use of each mapping: the program, a library, malloc, a stack, a file, ... A pool is the set of
//! mappings with the same use and name.
//!
//! Evidence of the use: ELF headers identify text, read-only data, data and bss. The layout and the
//! first words of glibc's memory identify its arenas and chunks. Stack pointers identify stacks. A
//! mapping without evidence is "anonymous mmap"; its use is not guessed.

mod anonymous;
mod images;
mod names;
mod registered;
mod runtime;
mod stacks;
mod sums;

use std::collections::HashMap;

use pagewise_model::mapping::MappedFileKey;
use pagewise_model::{Backing, Mapping, Name, Snapshot};

pub(crate) use anonymous::ARENA_HEAP;
pub(crate) use runtime::LanguageRuntime;
pub(crate) use stacks::stack_name;
pub use sums::{PoolSums, sums, total};

macro_rules! kinds {
    ($($variant:ident $id:literal $label:literal $meaning:literal;)*) => {
        /// Use of the mappings of a pool.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum PoolKind {
            $(#[doc = $meaning] $variant,)*
        }

        impl PoolKind {
            /// All variants.
            pub const ALL: &'static [PoolKind] = &[$(PoolKind::$variant,)*];

            /// Name of the variant, used as a key.
            pub const fn id(self) -> &'static str {
                match self { $(PoolKind::$variant => $id,)* }
            }

            /// Name of the variant in words.
            pub const fn label(self) -> &'static str {
                match self { $(PoolKind::$variant => $label,)* }
            }

            /// Meaning of the variant in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(PoolKind::$variant => $meaning,)* }
            }
        }
    };
}

kinds! {
    Program "program" "program" "Mapping of the program's file; its ELF headers do not show which part.";
    ProgramText "program_text" "program text" "The program's machine code.";
    ProgramRodata "program_rodata" "program rodata" "The program's constants and ELF tables.";
    ProgramData "program_data" "program data" "The program's initialized variables, those made read-only after relocation too.";
    ProgramBss "program_bss" "program bss" "The program's variables that start as zero.";
    Library "library" "library" "A shared library: text, rodata, data and bss together.";
    Heap "heap" "brk heap" "The area that brk extends; malloc allocates small blocks from it.";
    MallocArena "malloc_arena" "malloc arena" "glibc thread arenas: heaps of 64 MiB of address space each, used from the start.";
    MallocChunk "malloc_chunk" "malloc chunk" "Large blocks, each in a mapping of its own (mmapped chunks of glibc).";
    Allocator "allocator" "allocator" "Memory of an allocator other than glibc's.";
    Runtime "runtime" "runtime memory" "Memory of a language runtime (Python, Java, V8 and others), which malloc does not manage, and other private anonymous memory of its process.";
    MainStack "main_stack" "main stack" "The first thread's stack; grows by itself up to RLIMIT_STACK.";
    ThreadStack "thread_stack" "thread stack" "Another thread's stack, with its guard and its thread-local variables.";
    CachedStack "cached_stack" "cached stack" "The stack of a thread that ended, kept by the C library for the next one.";
    File "file" "file" "A mapped file that is neither the program nor a library.";
    SharedAnonymous "shared_anonymous" "shared memory" "MAP_SHARED|MAP_ANONYMOUS: shared with children.";
    SharedSysv "shared_sysv" "System V memory" "A System V segment (shmget).";
    SharedPosix "shared_posix" "POSIX memory" "A file below /dev/shm (shm_open, sem_open).";
    Memfd "memfd" "memfd" "A file that lives in memory only (memfd_create).";
    Tmpfs "tmpfs" "tmpfs file" "A file on a tmpfs: its pages are memory, and go to swap.";
    Hugetlb "hugetlb" "huge TLB" "Memory of the huge TLB pool, which RES leaves out.";
    Jit "jit" "JIT" "Anonymous executable memory: code made while the program runs.";
    Sanitizer "sanitizer" "sanitizer shadow" "Shadow memory of a sanitizer: huge reservations, of which little is resident.";
    Go "go" "Go heap" "Go's heap arenas.";
    Named "named" "named" "Anonymous memory that the program named (PR_SET_VMA_ANON_NAME).";
    Pagewise "pagewise" "pagewise pool" "A pool of pagewise's allocators.";
    Device "device" "device" "Device memory, or a file of the kernel without a name on disk.";
    Kernel "kernel" "kernel" "Pages that the kernel gives each process: vdso, vvar.";
    Reserve "reserve" "no access" "Private address space without any access: guards and reservations.";
    Anonymous "anonymous" "anonymous mmap" "Private anonymous memory of unknown use.";
}

impl PoolKind {
    /// True if the name of a pool adds information to its `PoolKind`: a path or a thread, but not
    /// fixed words.
    pub(crate) const fn names_each(self) -> bool {
        !matches!(
            self,
            PoolKind::Heap
                | PoolKind::MallocArena
                | PoolKind::MallocChunk
                | PoolKind::MainStack
                | PoolKind::CachedStack
                | PoolKind::SharedAnonymous
                | PoolKind::Jit
                | PoolKind::Sanitizer
                | PoolKind::Go
                | PoolKind::Kernel
                | PoolKind::Reserve
                | PoolKind::Anonymous
        )
    }
}

/// A part of an ELF file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElfPart {
    /// Machine code.
    Text,
    /// Constants and ELF tables.
    Rodata,
    /// Initialized variables, including those that are read-only after relocation.
    Data,
    /// Variables that start as zero. The zero-filled end of the last page of data counts as data.
    Bss,
    /// Gap between segments, which the loader keeps inaccessible.
    Padding,
}

impl ElfPart {
    /// Name of the part, used as a key and in words.
    pub const fn key(self) -> &'static str {
        match self {
            ElfPart::Text => "text",
            ElfPart::Rodata => "rodata",
            ElfPart::Data => "data",
            ElfPart::Bss => "bss",
            ElfPart::Padding => "padding",
        }
    }
}

/// A pool: its use, and the name that distinguishes it from other pools with the same use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPool {
    /// Use of the pool's mappings.
    pub kind: PoolKind,
    /// A path, a thread's name, or fixed words if the use needs no name.
    pub name: Name,
}

impl MemoryPool {
    /// Name of the pool's use, used as a key.
    pub const fn id(&self) -> &'static str {
        self.kind.id()
    }
}

/// The pools of a snapshot, and the pool of each mapping.
#[derive(Clone, Debug, Default)]
pub struct PoolMap {
    pools: Vec<MemoryPool>,
    homes: Vec<u32>,
    parts: Vec<Option<ElfPart>>,
}

impl PoolMap {
    /// All pools, in the order of their first addresses.
    pub fn list(&self) -> &[MemoryPool] {
        &self.pools
    }

    /// Index of a mapping's pool in [`PoolMap::list`].
    pub fn index(&self, mapping: usize) -> usize {
        self.homes[mapping] as usize
    }

    /// Pool of a mapping.
    pub fn pool_of(&self, mapping: usize) -> &MemoryPool {
        &self.pools[self.index(mapping)]
    }

    /// Returns the kernel's name of a mapping. A mapping without a name gets the name of its pool,
    /// in brackets.
    pub fn known_as(&self, index: usize, mapping: &Mapping) -> Name {
        if !mapping.name.is_empty() {
            return mapping.name.clone();
        }
        let pool = self.pool_of(index);
        let part = self.part(index).filter(|_| pool.kind == PoolKind::Library);
        name_of_nameless(pool.kind, part, &pool.name)
    }

    /// Part of an ELF file that a mapping contains; `None` if the mapping contains no part of a
    /// known ELF file.
    pub fn part(&self, mapping: usize) -> Option<ElfPart> {
        self.parts[mapping]
    }
}

/// Returns a name for memory that has no name in `maps`: its use, and the name of the pool if that
/// name adds information to the use.
pub(crate) fn name_of_nameless(kind: PoolKind, part: Option<ElfPart>, pool: &Name) -> Name {
    let mut words = kind.label().as_bytes().to_vec();
    if let Some(part) = part {
        words.extend([b" ", part.key().as_bytes()].concat());
    }
    if kind.names_each() {
        words.extend([b": ", pool.as_bytes()].concat());
    }
    Name::new(&[b"[", words.as_slice(), b"]"].concat())
}

/// Assigns each mapping of a snapshot to a pool. The result is empty if the mappings are absent.
///
/// # Complexity
/// O(n log n) in the number of mappings.
pub fn classify(snapshot: &Snapshot) -> PoolMap {
    let Ok(mappings) = &snapshot.mappings else { return PoolMap::default() };
    let mut sorter = Sorter::new(snapshot, mappings);
    images::place(&mut sorter);
    names::place(&mut sorter);
    registered::place(&mut sorter);
    anonymous::place(&mut sorter);
    sorter.finish()
}

/// Property that distinguishes pools with the same use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PoolMark {
    File(MappedFileKey),
    Name(Name),
    Number(u64),
}

/// The pools while they are built. A mapping keeps its first pool, because the earlier passes over
/// the mappings have better evidence.
struct Sorter<'a> {
    snapshot: &'a Snapshot,
    mappings: &'a [Mapping],
    backings: Vec<Backing>,
    pools: Vec<MemoryPool>,
    homes: Vec<Option<u32>>,
    parts: Vec<Option<ElfPart>>,
    /// Index of the pool of each use whose mappings have no distinguishing property.
    single: [Option<u32>; PoolKind::ALL.len()],
    marked: HashMap<(PoolKind, PoolMark), u32>,
    /// The previous mark and its pool, because adjacent mappings are often of one file.
    last: Option<((PoolKind, PoolMark), u32)>,
}

impl<'a> Sorter<'a> {
    fn new(snapshot: &'a Snapshot, mappings: &'a [Mapping]) -> Sorter<'a> {
        Sorter {
            snapshot,
            mappings,
            backings: mappings.iter().map(Mapping::backing).collect(),
            pools: Vec::new(),
            homes: vec![None; mappings.len()],
            parts: vec![None; mappings.len()],
            single: [None; PoolKind::ALL.len()],
            marked: HashMap::new(),
            last: None,
        }
    }

    fn is_free(&self, mapping: usize) -> bool {
        self.homes[mapping].is_none()
    }

    /// True if a mapping is private anonymous memory without a pool.
    fn is_free_anonymous(&self, mapping: usize) -> bool {
        self.is_free(mapping) && self.backings[mapping] == Backing::Anonymous
    }

    /// Assigns a mapping to the only pool of `kind`.
    fn put(&mut self, mapping: usize, kind: PoolKind, name: &str) {
        let pools = &mut self.pools;
        let home = *self.single[kind as usize].get_or_insert_with(|| add(pools, kind, name.into()));
        self.homes[mapping] = Some(home);
    }

    /// Assigns a mapping to the pool with a mark; `name` is called if the pool is new.
    fn put_marked(
        &mut self,
        mapping: usize,
        kind: PoolKind,
        mark: PoolMark,
        name: impl FnOnce() -> Name,
    ) -> u32 {
        let key = (kind, mark);
        let home = match &self.last {
            Some((last, home)) if *last == key => *home,
            _ => {
                let pools = &mut self.pools;
                let home =
                    *self.marked.entry(key.clone()).or_insert_with(|| add(pools, kind, name()));
                self.last = Some((key, home));
                home
            }
        };
        self.homes[mapping] = Some(home);
        home
    }

    /// Returns the map, with the pools in the order of their first addresses.
    fn finish(self) -> PoolMap {
        let mut order = vec![u32::MAX; self.pools.len()];
        let mut pools = Vec::with_capacity(self.pools.len());
        let homes = self.homes.iter().map(|home| {
            let home = home.expect("the last pass places every mapping") as usize;
            if order[home] == u32::MAX {
                order[home] = small(pools.len());
                pools.push(self.pools[home].clone());
            }
            order[home]
        });
        let homes = homes.collect();
        PoolMap { pools, homes, parts: self.parts }
    }
}

fn add(pools: &mut Vec<MemoryPool>, kind: PoolKind, name: Name) -> u32 {
    pools.push(MemoryPool { kind, name });
    small(pools.len() - 1)
}

/// Converts a count to 32 bits. The number of mappings fits 32 bits, and so does the number of
/// pools.
fn small(n: usize) -> u32 {
    u32::try_from(n).expect("no address space holds 2^32 mappings")
}
