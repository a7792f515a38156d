//! Origin of each mapping: the program, a library, malloc, a stack, a file, ...
//!
//! ELF headers identify text, read-only data, data and bss, the layout and first words of glibc's
//! memory identify its arenas and chunks, and stack pointers identify stacks. A mapping without
//! evidence is "anonymous mmap"; its use is not guessed.

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
        /// Kind of pool of a mapping.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum PoolKind {
            $(#[doc = $meaning] $variant,)*
        }

        impl PoolKind {
            /// Every kind.
            pub const ALL: &'static [PoolKind] = &[$(PoolKind::$variant,)*];

            /// The name used as a key.
            pub const fn id(self) -> &'static str {
                match self { $(PoolKind::$variant => $id,)* }
            }

            /// The name in words.
            pub const fn label(self) -> &'static str {
                match self { $(PoolKind::$variant => $label,)* }
            }

            /// The meaning in one sentence.
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
    /// True if a pool's name adds information to its kind: a path or a thread, not fixed words.
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
    /// Constants, ELF tables.
    Rodata,
    /// Initialized variables, also those made read-only after relocation.
    Data,
    /// Variables that start as zero. The tail of the last page of data is zeroed too and counts as
    /// data.
    Bss,
    /// A hole between segments, kept without access by the loader.
    Padding,
}

impl ElfPart {
    /// The name used as a key and in words.
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

/// One pool: a kind, and the mark that distinguishes it from others of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPool {
    /// Kind of the pool.
    pub kind: PoolKind,
    /// A path, a thread's name, or fixed words if the kind needs no more.
    pub name: Name,
}

impl MemoryPool {
    /// The name of its kind, used as a key.
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
    /// Every pool, by first address.
    pub fn list(&self) -> &[MemoryPool] {
        &self.pools
    }

    /// The index in [`PoolMap::list`] of a mapping's pool.
    pub fn index(&self, mapping: usize) -> usize {
        self.homes[mapping] as usize
    }

    /// The pool of a mapping.
    pub fn pool_of(&self, mapping: usize) -> &MemoryPool {
        &self.pools[self.index(mapping)]
    }

    /// The kernel's name of a mapping; else, in brackets, its pool, with the name that
    /// distinguishes pools of that kind.
    pub fn known_as(&self, index: usize, mapping: &Mapping) -> Name {
        if !mapping.name.is_empty() {
            return mapping.name.clone();
        }
        let pool = self.pool_of(index);
        let part = self.part(index).filter(|_| pool.kind == PoolKind::Library);
        name_of_nameless(pool.kind, part, &pool.name)
    }

    /// The part of an ELF file that a mapping contains; `None` for other mappings.
    pub fn part(&self, mapping: usize) -> Option<ElfPart> {
        self.parts[mapping]
    }
}

/// Name of memory that has none in `maps`: its kind, with the name of the pool if that
/// distinguishes pools of this kind.
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

/// Sorts every mapping of a snapshot into a pool. Empty where the mappings are absent.
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

/// Property that distinguishes pools of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PoolMark {
    File(MappedFileKey),
    Name(Name),
    Number(u64),
}

/// The pools under construction. A mapping keeps its first pool, because earlier passes have better
/// evidence.
struct Sorter<'a> {
    snapshot: &'a Snapshot,
    mappings: &'a [Mapping],
    backings: Vec<Backing>,
    pools: Vec<MemoryPool>,
    homes: Vec<Option<u32>>,
    parts: Vec<Option<ElfPart>>,
    /// The only pool of a kind whose mappings have no distinguishing mark.
    single: [Option<u32>; PoolKind::ALL.len()],
    marked: HashMap<(PoolKind, PoolMark), u32>,
    /// The mark looked up last: neighbors are often of one file.
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

    /// True if a mapping is private anonymous memory that no pass has placed.
    fn is_free_anonymous(&self, mapping: usize) -> bool {
        self.is_free(mapping) && self.backings[mapping] == Backing::Anonymous
    }

    /// Puts a mapping in the only pool of its kind.
    fn put(&mut self, mapping: usize, kind: PoolKind, name: &str) {
        let pools = &mut self.pools;
        let home = *self.single[kind as usize].get_or_insert_with(|| add(pools, kind, name.into()));
        self.homes[mapping] = Some(home);
    }

    /// Puts a mapping in the pool with a mark; `name` is called if the pool is new.
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

    /// The finished map, with the pools in order of their first addresses.
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

/// A count that fits 32 bits because the numbers of pools and of mappings do.
fn small(n: usize) -> u32 {
    u32::try_from(n).expect("no address space holds 2^32 mappings")
}
