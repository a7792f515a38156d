//! Where each mapping comes from: the program, a library, malloc, a stack, a file, ...
//!
//! Text, read-only data, data and bss are told by ELF headers, malloc's arenas and chunks by the
//! shape and the first words glibc gives them, stacks by stack pointers. What nothing tells apart
//! is "anonymous mmap", not a guess.

mod anonymous;
mod images;
mod names;
mod registered;
mod stacks;
mod sums;

use std::collections::HashMap;

use pagewise_model::{Backing, Device, Mapping, Name, Snapshot};

pub(crate) use anonymous::ARENA_HEAP;
pub use sums::{Sums, sums, total};

macro_rules! kinds {
    ($($variant:ident $id:literal $label:literal $meaning:literal;)*) => {
        /// What kind of pool a mapping belongs to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = $meaning] $variant,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The name used as a key.
            pub const fn id(self) -> &'static str {
                match self { $(Kind::$variant => $id,)* }
            }

            /// The name in words.
            pub const fn label(self) -> &'static str {
                match self { $(Kind::$variant => $label,)* }
            }

            /// One sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Kind::$variant => $meaning,)* }
            }
        }
    };
}

kinds! {
    Program "program" "program" "Of the program's file, but its ELF headers do not tell which part.";
    ProgramText "program_text" "program text" "The program's machine code.";
    ProgramRodata "program_rodata" "program rodata" "The program's constants and ELF tables.";
    ProgramData "program_data" "program data" "The program's initialised variables, those made read-only after relocation too.";
    ProgramBss "program_bss" "program bss" "The program's variables that start as zero.";
    Library "library" "library" "A shared library: text, rodata, data and bss together.";
    Heap "heap" "brk heap" "The area that brk grows; malloc takes small requests from it.";
    MallocArena "malloc_arena" "malloc arena" "glibc's further arenas: 64 MiB reserved each, used from the start.";
    MallocChunk "malloc_chunk" "malloc chunk" "Large requests that glibc maps one by one.";
    Allocator "allocator" "allocator" "Memory of another allocator than glibc's.";
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
    Sanitizer "sanitizer" "sanitizer shadow" "Shadow memory of a sanitizer: huge reservations, little of them resident.";
    Go "go" "Go heap" "Go's heap arenas.";
    Named "named" "named" "Anonymous memory that the program named (PR_SET_VMA_ANON_NAME).";
    Pagewise "pagewise" "pagewise pool" "A pool of pagewise's allocators.";
    Device "device" "device" "Device memory, or a file of the kernel without a name on disk.";
    Kernel "kernel" "kernel" "Pages that the kernel gives each process: vdso, vvar.";
    Reserve "reserve" "no access" "Private address space without any access: guards and reservations.";
    Anonymous "anonymous" "anonymous mmap" "Private anonymous memory that nothing tells apart.";
}

impl Kind {
    /// Whether a pool's name says more than its kind: a path or a thread, not our own words.
    pub(crate) const fn names_each(self) -> bool {
        !matches!(
            self,
            Kind::Heap
                | Kind::MallocArena
                | Kind::MallocChunk
                | Kind::MainStack
                | Kind::CachedStack
                | Kind::SharedAnonymous
                | Kind::Jit
                | Kind::Sanitizer
                | Kind::Go
                | Kind::Kernel
                | Kind::Reserve
                | Kind::Anonymous
        )
    }
}

/// A part of an ELF file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Machine code.
    Text,
    /// Constants, ELF tables.
    Rodata,
    /// Initialised variables, also those made read-only after relocation.
    Data,
    /// Variables that start as zero. The tail of the last page of data is zeroed too and counts as data.
    Bss,
    /// A hole between segments, kept without access by the loader.
    Padding,
}

impl Part {
    /// The name used as a key and in words.
    pub const fn key(self) -> &'static str {
        match self {
            Part::Text => "text",
            Part::Rodata => "rodata",
            Part::Data => "data",
            Part::Bss => "bss",
            Part::Padding => "padding",
        }
    }
}

/// One pool: a kind and what tells it from others of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// What kind.
    pub kind: Kind,
    /// A path, a thread's name, or our own words where the kind says it all.
    pub name: Name,
}

impl Pool {
    /// The name of its kind, used as a key.
    pub const fn id(&self) -> &'static str {
        self.kind.id()
    }
}

/// The pools of a snapshot, and the pool of each mapping.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    pools: Vec<Pool>,
    homes: Vec<u32>,
    parts: Vec<Option<Part>>,
}

impl Pools {
    /// Every pool, by first address.
    pub fn list(&self) -> &[Pool] {
        &self.pools
    }

    /// The place in [`Pools::list`] of a mapping's pool.
    pub fn index(&self, mapping: usize) -> usize {
        self.homes[mapping] as usize
    }

    /// The pool of a mapping.
    pub fn of(&self, mapping: usize) -> &Pool {
        &self.pools[self.index(mapping)]
    }

    /// The kernel's name of a mapping; else, in brackets, its pool, with the name that tells pools of that kind apart.
    pub fn known_as(&self, index: usize, mapping: &Mapping) -> Name {
        if !mapping.name.is_empty() {
            return mapping.name.clone();
        }
        let pool = self.of(index);
        let mut words = pool.kind.label().as_bytes().to_vec();
        if pool.kind == Kind::Library
            && let Some(part) = self.part(index)
        {
            words.extend([b" ", part.key().as_bytes()].concat());
        }
        if pool.kind.names_each() {
            words.extend([b": ", pool.name.as_bytes()].concat());
        }
        Name::new(&[b"[", words.as_slice(), b"]"].concat())
    }

    /// The part of its ELF file that a mapping is; `None` where it is of none.
    pub fn part(&self, mapping: usize) -> Option<Part> {
        self.parts[mapping]
    }
}

/// Sorts every mapping of a snapshot into a pool. Empty where the mappings are absent.
///
/// # Complexity
/// O(n log n) in the number of mappings.
pub fn classify(snapshot: &Snapshot) -> Pools {
    let Ok(mappings) = &snapshot.mappings else { return Pools::default() };
    let mut sorter = Sorter::new(snapshot, mappings);
    images::place(&mut sorter);
    names::place(&mut sorter);
    registered::place(&mut sorter);
    anonymous::place(&mut sorter);
    sorter.finish()
}

/// What tells pools of one kind apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Mark {
    File(Device, u64),
    Name(Name),
    Number(u64),
}

/// The pools as they come to be. A mapping that has a home keeps it: earlier passes know better.
struct Sorter<'a> {
    snapshot: &'a Snapshot,
    mappings: &'a [Mapping],
    backings: Vec<Backing>,
    pools: Vec<Pool>,
    homes: Vec<Option<u32>>,
    parts: Vec<Option<Part>>,
    /// The one pool of a kind whose mappings nothing tells apart.
    single: [Option<u32>; Kind::ALL.len()],
    marked: HashMap<(Kind, Mark), u32>,
    /// The mark looked up last: neighbours are often of one file.
    last: Option<((Kind, Mark), u32)>,
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
            single: [None; Kind::ALL.len()],
            marked: HashMap::new(),
            last: None,
        }
    }

    fn is_free(&self, mapping: usize) -> bool {
        self.homes[mapping].is_none()
    }

    /// Whether a mapping is private anonymous memory that no pass has placed.
    fn is_free_anonymous(&self, mapping: usize) -> bool {
        self.is_free(mapping) && self.backings[mapping] == Backing::Anonymous
    }

    /// Puts a mapping in the only pool of its kind.
    fn put(&mut self, mapping: usize, kind: Kind, name: &str) {
        let pools = &mut self.pools;
        let home = *self.single[kind as usize].get_or_insert_with(|| add(pools, kind, name.into()));
        self.homes[mapping] = Some(home);
    }

    /// Puts a mapping in the pool with that mark, which gets its name when it is new.
    fn put_marked(
        &mut self,
        mapping: usize,
        kind: Kind,
        mark: Mark,
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

    /// The pools by first address, and no mapping without one.
    fn finish(self) -> Pools {
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
        Pools { pools, homes, parts: self.parts }
    }
}

fn add(pools: &mut Vec<Pool>, kind: Kind, name: Name) -> u32 {
    pools.push(Pool { kind, name });
    small(pools.len() - 1)
}

/// A count that fits 32 bits because there are no more pools than mappings, nor mappings than that.
fn small(n: usize) -> u32 {
    u32::try_from(n).expect("no address space holds 2^32 mappings")
}
