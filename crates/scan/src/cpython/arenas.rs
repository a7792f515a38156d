//! The arenas of each interpreter, found and checked by their structure because programs are
//! usually stripped.
//!
//! Objects/obmalloc.c and Include/internal/pycore_obmalloc.h of CPython 3.8 to 3.14, on 64-bit
//! machines:
//!
//! ```text
//!  arena_object                        _obmalloc_mgmt (since 3.12)
//!     0  address; 0 if unused             0  vector of arena_object
//!     8  first pool never carved          8  number of its entries
//!    16  available pools                 16  first unused entry
//!    20  all pools                       24  first entry with available pools
//!    24  first freed pool                32  last entry by number of available pools
//!    32  next entry
//!    40  previous entry
//! ```
//!
//! Until 3.11 the vector and its length are two static variables, which are not always adjacent.

use std::collections::HashSet;

use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping};

use super::pools::{ALIGNMENT, ARENA_INDEX, CLASS, CLASSES, LAST_OFFSET};
use crate::corruption::CorruptionLog;
use crate::memory::Memory;

/// Number of bytes of an `arena_object`.
const ENTRY_BYTES: u64 = 48;
/// Offset of the number of available pools in an `arena_object`.
pub(super) const AVAILABLE: u64 = 16;
/// Maximum number of pools of an arena that are examined to determine the pool size.
const EXAMINED_POOLS: usize = 8;
/// Number of entries of a new vector. CPython doubles this number when the vector is full.
const MIN_ENTRIES: u64 = 16;
/// Maximum number of entries that are read from a vector, enough for 1 TiB of arenas.
const MAX_ENTRIES: u64 = 1 << 20;
/// Maximum number of bytes that are searched in the anonymous mapping after the data of a file,
/// which is the end of `.bss`.
const MAX_BSS: u64 = 64 << 20;
/// Upper bound of accepted addresses. No program has memory above it, so sums of addresses and
/// sizes cannot overflow.
const MAX_ADDRESS: u64 = 1 << 62;
/// First word of `_PyRuntime` since 3.13 (`_Py_DebugOffsets`). The second word is the version. The
/// third word is 1 in builds without the global lock.
const RUNTIME_COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Sizes of arenas and pools in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolGeometry {
    pub(super) arena: u64,
    pub(super) pool: u64,
}

/// Sizes in CPython until 3.9, since 3.10, and since 3.10 in builds without the radix tree of
/// arenas (`WITH_PYMALLOC_RADIX_TREE`).
const GEOMETRIES: [PoolGeometry; 3] = [
    PoolGeometry { arena: 256 << 10, pool: 4 << 10 },
    PoolGeometry { arena: 1 << 20, pool: 16 << 10 },
    PoolGeometry { arena: 1 << 20, pool: 4 << 10 },
];

/// An entry of a vector that describes an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PythonArena {
    /// Address of the `arena_object`.
    pub(super) entry: u64,
    pub(super) index: u64,
    pub(super) range: AddrRange,
    /// Range of all pools of the arena.
    pub(super) pools: AddrRange,
    /// End of the pools that were ever used.
    pub(super) carved_end: u64,
    /// Number of available pools according to the `arena_object`.
    pub(super) available: u64,
}

/// The arena vector of an interpreter; several interpreters can share a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArenaVector {
    pub(super) address: u64,
    pub(super) geometry: PoolGeometry,
    pub(super) arenas: Vec<PythonArena>,
}

/// Results of the search for interpreters.
#[derive(Debug, Default)]
pub(super) struct PythonStates {
    pub(super) vectors: Vec<ArenaVector>,
    /// True if the search found a Python without the global lock, which does not use obmalloc.
    pub(super) is_free_threaded: bool,
}

impl PythonStates {
    /// Searches the data of all ELF objects for the arena vector of the main interpreter. Since
    /// 3.12 the state of an interpreter contains an `_obmalloc_mgmt`, and each interpreter with its
    /// own lock has its own arenas. The state of such an interpreter is in a block of malloc. So if
    /// the search finds an `_obmalloc_mgmt` of the main interpreter, `find` also searches anonymous
    /// memory.
    pub(super) fn find(memory: &dyn Memory, log: &mut CorruptionLog) -> PythonStates {
        let mut search = StateSearch::new(memory);
        let mappings = memory.mappings();
        for at in (0..mappings.len()).filter(|&at| is_object_data(mappings, at)) {
            search.search_data(data_range(&mappings[at]), log);
        }
        if search.has_management {
            for at in 0..search.anonymous.len() {
                search.search_heap(search.anonymous[at], log);
            }
        }
        search.states
    }
}

/// True if the mapping at index `at` is writable data of an ELF object, or the anonymous mapping
/// directly after such data, which is the end of `.bss`.
fn is_object_data(mappings: &[Mapping], at: usize) -> bool {
    let is_file = |mapping: &Mapping| is_private_data(mapping) && mapping.file_key().is_some();
    let mapping = &mappings[at];
    let before = at.checked_sub(1).map(|before| &mappings[before]);
    let is_behind = before.is_some_and(|it| is_file(it) && it.range.end == mapping.range.start);
    is_file(mapping) || is_behind && is_anonymous(mapping)
}

/// Range of the mapping that can be object data. The kernel can merge the end of `.bss` with other
/// anonymous memory after it, so only the first [`MAX_BSS`] bytes of an anonymous mapping count.
fn data_range(mapping: &Mapping) -> AddrRange {
    let range = mapping.range;
    if mapping.file_key().is_some() {
        return range;
    }
    AddrRange { end: range.end.min(range.start + MAX_BSS), ..range }
}

fn is_private_data(mapping: &Mapping) -> bool {
    mapping.prot.write && mapping.sharing != Sharing::Shared && mapping.range.end <= MAX_ADDRESS
}

fn is_anonymous(mapping: &Mapping) -> bool {
    is_private_data(mapping)
        && mapping.backing() == Backing::Anonymous
        && mapping.name.as_bytes() != b"[stack]"
}

struct StateSearch<'a> {
    memory: &'a dyn Memory,
    /// Anonymous mappings, which can contain vectors, in order of address.
    anonymous: Vec<AddrRange>,
    known: HashSet<u64>,
    states: PythonStates,
    /// True if an `_obmalloc_mgmt` refers to one of the vectors.
    has_management: bool,
}

impl<'a> StateSearch<'a> {
    fn new(memory: &'a dyn Memory) -> StateSearch<'a> {
        let anonymous = memory.mappings().iter().filter(|mapping| is_anonymous(mapping));
        StateSearch {
            memory,
            anonymous: anonymous.map(|mapping| mapping.range).collect(),
            known: HashSet::new(),
            states: PythonStates::default(),
            has_management: false,
        }
    }

    fn may_be_vector(&self, address: u64) -> bool {
        let at = self.anonymous.partition_point(|range| range.end <= address);
        address.is_multiple_of(16)
            && self.anonymous.get(at).is_some_and(|range| range.contains(address))
    }

    fn search_data(&mut self, range: AddrRange, log: &mut CorruptionLog) {
        let memory = self.memory;
        memory.visit(range, &mut |start, bytes| {
            for (at, word) in words(start, bytes) {
                if word == RUNTIME_COOKIE {
                    let is_free_threaded = memory.word(at.saturating_add(16)) == Some(1);
                    self.states.is_free_threaded |= is_free_threaded;
                } else if word != 0 && self.may_be_vector(word) {
                    self.add_vector(at, word, log);
                }
            }
        });
    }

    fn add_vector(&mut self, at: u64, vector: u64, log: &mut CorruptionLog) {
        if self.known.contains(&vector) || !begins_vector(self.memory, vector) {
            return;
        }
        let length = management_length(self.memory, at, vector);
        self.has_management |= length.is_some();
        let length = length.or_else(|| static_length(self.memory, at));
        self.push(vector, length, log);
    }

    /// Searches memory of malloc for the states of other interpreters.
    fn search_heap(&mut self, range: AddrRange, log: &mut CorruptionLog) {
        let mut before = (0, 0);
        let mut found = Vec::new();
        self.memory.visit(range, &mut |start, bytes| {
            for (at, word) in words(start, bytes) {
                let (vector_at, vector) = std::mem::replace(&mut before, (at, word));
                if is_length(word) && vector_at + 8 == at && self.may_be_vector(vector) {
                    found.push((vector_at, vector));
                }
            }
        });
        for (at, vector) in found {
            let length = management_length(self.memory, at, vector);
            let is_new = length.is_some() && !self.known.contains(&vector);
            if is_new && begins_vector(self.memory, vector) {
                self.push(vector, length, log);
            }
        }
    }

    fn push(&mut self, vector: u64, length: Option<u64>, log: &mut CorruptionLog) {
        if let Some(read) = ArenaVector::read(self.memory, vector, length, log) {
            self.known.insert(vector);
            self.states.vectors.push(read);
        }
    }
}

fn words(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    (start..).step_by(8).zip(words)
}

const fn is_length(word: u64) -> bool {
    MIN_ENTRIES <= word && word <= MAX_ENTRIES && word.is_power_of_two()
}

/// Reads the number of entries of the vector at `vector` if an `_obmalloc_mgmt` begins at `at`;
/// `None` otherwise.
fn management_length(memory: &dyn Memory, at: u64, vector: u64) -> Option<u64> {
    let word = |offset: u64| memory.word(at.checked_add(offset)?);
    // The length is an `unsigned`; the four padding bytes after it are zero.
    let length = word(8).filter(|length| is_length(*length))?;
    let is_entry = |entry: u64| {
        entry == 0
            || entry.checked_sub(vector).is_some_and(|offset| {
                offset.is_multiple_of(ENTRY_BYTES) && offset / ENTRY_BYTES < length
            })
    };
    let lists = [16, 24, 32, 40].map(|offset| word(offset).is_some_and(is_entry));
    lists.into_iter().all(|is_list| is_list).then_some(length)
}

/// Reads the number of entries of the vector from a word next to the static variable `arenas`,
/// whose address is `at`.
fn static_length(memory: &dyn Memory, at: u64) -> Option<u64> {
    let half = |address: u64| {
        let mut bytes = [0; 4];
        memory.read(address, &mut bytes).then(|| u64::from(u32::from_le_bytes(bytes)))
    };
    let beside = [at.checked_sub(8), at.checked_sub(4), at.checked_add(8)];
    beside.into_iter().flatten().filter_map(half).find(|length| is_length(*length))
}

/// Fields of an `arena_object`.
#[derive(Clone, Copy, Debug)]
struct ArenaEntry {
    address: u64,
    carved_end: u64,
    available: u64,
    total: u64,
    freed: u64,
    next: u64,
}

impl ArenaEntry {
    fn read(memory: &dyn Memory, at: u64) -> Option<ArenaEntry> {
        let mut bytes = [0; 48];
        if !memory.read(at, &mut bytes) {
            return None;
        }
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        Some(ArenaEntry {
            address: word(0),
            carved_end: word(8),
            available: word(16) & 0xffff_ffff,
            total: word(16) >> 32,
            freed: word(24),
            next: word(32),
        })
    }

    /// Returns the arena if all fields agree with the sizes in `geometry`.
    fn arena(&self, entry: u64, index: u64, geometry: PoolGeometry) -> Option<PythonArena> {
        if self.address == 0 || self.address > MAX_ADDRESS || !self.address.is_multiple_of(8) {
            return None;
        }
        let range = AddrRange { start: self.address, end: self.address + geometry.arena };
        let first = range.start.next_multiple_of(geometry.pool);
        let last = range.end - range.end % geometry.pool;
        let pools = AddrRange { start: first, end: last };
        let is_pool = |address: u64| address.is_multiple_of(geometry.pool);
        let carved = AddrRange { start: first, end: self.carved_end };
        let makes_sense = self.total == pools.len().0 / geometry.pool
            && is_pool(self.carved_end)
            && (first + 1..=last).contains(&self.carved_end)
            && self.available <= self.total
            && self.available >= (last - self.carved_end) / geometry.pool
            && (self.freed == 0 || is_pool(self.freed) && carved.contains(self.freed));
        makes_sense.then_some(PythonArena {
            entry,
            index,
            range,
            pools,
            carved_end: self.carved_end,
            available: self.available,
        })
    }

    /// True if the entry has no arena and can belong to a vector at address `vector`.
    fn is_unused(&self, vector: u64) -> bool {
        let is_entry = |next: u64| {
            next.checked_sub(vector).is_some_and(|offset| {
                offset.is_multiple_of(ENTRY_BYTES) && offset / ENTRY_BYTES < MAX_ENTRIES
            })
        };
        self.address == 0 && (self.next == 0 || is_entry(self.next))
    }
}

/// True if a vector begins at the address `vector`: the first entry with an arena is consistent,
/// and one of the first pools of this arena has the index of the entry.
fn begins_vector(memory: &dyn Memory, vector: u64) -> bool {
    geometry_of(memory, vector).is_some()
}

fn geometry_of(memory: &dyn Memory, vector: u64) -> Option<PoolGeometry> {
    let mut ends = 0;
    for index in 0..MAX_ENTRIES {
        let at = vector.checked_add(index * ENTRY_BYTES)?;
        let entry = ArenaEntry::read(memory, at)?;
        if entry.address != 0 {
            return GEOMETRIES.into_iter().find(|geometry| {
                let arena = entry.arena(at, index, *geometry);
                arena.is_some_and(|arena| has_own_pool(memory, &arena, geometry.pool))
            });
        }
        // Only the last entry in the list of unused entries has no next entry.
        ends += u32::from(entry.next == 0);
        if ends > 1 || !entry.is_unused(vector) {
            return None;
        }
    }
    None
}

/// True if the header of one of the first pools agrees with the index of the arena and with the
/// pool size. The `arena_object` alone can be consistent with two geometries.
fn has_own_pool(memory: &dyn Memory, arena: &PythonArena, pool: u64) -> bool {
    let size = usize::try_from(pool).unwrap_or(usize::MAX);
    let carved = (arena.pools.start..arena.carved_end).step_by(size);
    carved.take(EXAMINED_POOLS).any(|start| {
        let half = |offset: u64| {
            let mut bytes = [0; 4];
            memory.read(start + offset, &mut bytes).then(|| u64::from(u32::from_le_bytes(bytes)))
        };
        half(ARENA_INDEX) == Some(arena.index)
            && half(LAST_OFFSET).zip(half(CLASS)).is_some_and(|(last, class)| {
                class < CLASSES && last + ALIGNMENT * (class + 1) == pool
            })
    })
}

impl ArenaVector {
    /// Reads a vector. If its length is unknown, reading ends at the first inconsistent entry.
    fn read(
        memory: &dyn Memory,
        vector: u64,
        length: Option<u64>,
        log: &mut CorruptionLog,
    ) -> Option<ArenaVector> {
        let geometry = geometry_of(memory, vector)?;
        let mut arenas = Vec::new();
        for index in 0..length.unwrap_or(MAX_ENTRIES) {
            let at = vector + index * ENTRY_BYTES;
            let Some(entry) = ArenaEntry::read(memory, at) else { break };
            match entry.arena(at, index, geometry) {
                Some(arena) => arenas.push(arena),
                None if entry.is_unused(vector) => {}
                None if length.is_none() => break,
                None => log.add(at, at, "an arena of Python, or 0", entry.address),
            }
        }
        Some(ArenaVector { address: vector, geometry, arenas })
    }
}
