//! `malloc_context`: the variables of malloc, and the list of areas with descriptors.
//!
//! The layouts are those of src/malloc/mallocng/meta.h of musl 1.2.1 to 1.2.6, on 64-bit machines.
//! On machines with several page sizes, a word with the page size follows the secret in
//! `malloc_context`, and all later offsets are larger by 8:
//!
//! ```text
//!  malloc_context                                  meta_area
//!     0  secret                                       0  secret
//!     8  initialized (4 bytes)                        8  next area
//!    16  free descriptors                            16  number of descriptors (4 bytes)
//!    56  first area                                  24  descriptors
//!    64  last area
//!    80  groups with free slots [48], by size class
//!   464  number of slots [48], by size class
//! ```

use std::collections::HashSet;

use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Backing, Mapping};

use super::groups::META_BYTES;
use crate::corruption::CorruptionLog;
use crate::memory::Memory;
use crate::slot_heap::MAX_ADDRESS;

/// Number of size classes.
pub(super) const CLASSES: usize = 48;
/// Size and alignment in bytes of an area, independent of the page size.
const AREA_BYTES: u64 = 4 << 10;
/// Offset of the first descriptor in an area.
const AREA_HEADER: u64 = 24;
/// Number of descriptors in an area.
const AREA_METAS: u64 = (AREA_BYTES - AREA_HEADER) / META_BYTES;
const NEXT_AREA: u64 = 8;
const AREA_COUNT: u64 = 16;

/// Possible shifts in bytes of the fields after the secret: 0, or 8 if the page size follows the
/// secret.
const SHIFTS: [u64; 2] = [0, 8];
const PAGE_SIZE: u64 = 8;
const INITIALIZED: u64 = 8;
const FIRST_AREA: u64 = 56;
const LAST_AREA: u64 = 64;
const ACTIVE: u64 = 80;
const USAGE: u64 = 464;

/// Fields of a `malloc_context`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MallocContext {
    pub(super) address: u64,
    secret: u64,
    shift: u64,
    first_area: u64,
    last_area: u64,
    /// Address of the first group with free slots of each size class, or 0.
    pub(super) active: Vec<u64>,
    /// Number of slots of each size class.
    pub(super) usage: Vec<u64>,
}

/// An area with descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetaArea {
    start: u64,
}

impl MetaArea {
    pub(super) const fn range(self) -> AddrRange {
        AddrRange { start: self.start, end: self.start + AREA_BYTES }
    }

    /// Addresses of the descriptors in the area.
    pub(super) fn metas(self) -> impl Iterator<Item = u64> {
        (0..AREA_METAS).map(move |index| self.start + AREA_HEADER + index * META_BYTES)
    }

    fn is_sound(self, memory: &dyn Memory, secret: u64) -> bool {
        let mut count = [0; 4];
        self.start != 0
            && self.start < MAX_ADDRESS
            && self.start.is_multiple_of(AREA_BYTES)
            && memory.word(self.start) == Some(secret)
            && memory.read(self.start + AREA_COUNT, &mut count)
            && u64::from(u32::from_le_bytes(count)) == AREA_METAS
    }
}

/// Returns the `malloc_context` of each C library in a process, usually one.
///
/// A `malloc_context` is found by its pointer to the first area: the pointer is a multiple of 4
/// KiB, and the area begins with the same secret as the `malloc_context`.
pub(super) fn contexts(memory: &dyn Memory) -> Vec<MallocContext> {
    let mappings = memory.mappings();
    let mut found: Vec<MallocContext> = Vec::new();
    for at in (0..mappings.len()).filter(|at| holds_variables(mappings, *at)) {
        memory.visit(mappings[at].range, &mut |address, bytes| {
            let words = bytes.as_chunks().0.iter().zip((address..).step_by(8));
            for (word, at) in words {
                let area = u64::from_le_bytes(*word);
                if area != 0 && area.is_multiple_of(AREA_BYTES) && area < MAX_ADDRESS {
                    let shifts = SHIFTS.into_iter();
                    found.extend(shifts.filter_map(|shift| MallocContext::read(memory, at, shift)));
                }
            }
        });
    }
    found
}

/// True if the mapping at index `at` contains variables of an ELF object: writable data of a file,
/// or the anonymous mapping directly after it, which is the end of `.bss`.
fn holds_variables(mappings: &[Mapping], at: usize) -> bool {
    let mapping = &mappings[at];
    // A core file contains neither inodes nor the sharing of file mappings.
    let is_data = |it: &Mapping| {
        it.sharing != Sharing::Shared && it.prot.write && it.range.end <= MAX_ADDRESS
    };
    let before = at.checked_sub(1).map(|before| &mappings[before]);
    let is_bss = || {
        mapping.backing() == Backing::Anonymous
            && before.is_some_and(|before| {
                before.file_key().is_some() && before.range.end == mapping.range.start
            })
    };
    is_data(mapping) && (mapping.file_key().is_some() || is_bss())
}

impl MallocContext {
    /// Reads the `malloc_context` if the word at `at` can be its pointer to the first area.
    fn read(memory: &dyn Memory, at: u64, shift: u64) -> Option<MallocContext> {
        let address = at.checked_sub(FIRST_AREA + shift)?;
        let word = |offset: u64| memory.word(address + shift + offset);
        let (secret, first_area) = (memory.word(address)?, word(FIRST_AREA)?);
        let first = MetaArea { start: first_area };
        if secret == 0 || !first.is_sound(memory, secret) {
            return None;
        }
        let is_initialized = word(INITIALIZED)? & u64::from(u32::MAX) == 1;
        let has_page_size = shift == 0
            || memory.word(address + PAGE_SIZE).is_some_and(|size| size.is_power_of_two());
        let words = |offset: u64| -> Option<Vec<u64>> {
            (0..CLASSES as u64).map(|class| word(offset + 8 * class)).collect()
        };
        (is_initialized && has_page_size).then_some(())?;
        Some(MallocContext {
            address,
            secret,
            shift,
            first_area,
            last_area: word(LAST_AREA)?,
            active: words(ACTIVE)?,
            usage: words(USAGE)?,
        })
    }

    /// Address of the link to the first group with free slots of a size class.
    pub(super) const fn active_address(&self, class: usize) -> u64 {
        self.address + self.shift + ACTIVE + 8 * class as u64
    }

    /// Address of the number of slots of a size class.
    pub(super) const fn usage_address(&self, class: usize) -> u64 {
        self.address + self.shift + USAGE + 8 * class as u64
    }

    /// Returns all areas, and reports an inconsistent link between them.
    pub(super) fn areas(&self, memory: &dyn Memory, log: &mut CorruptionLog) -> Vec<MetaArea> {
        let mut areas = Vec::new();
        let mut known = HashSet::new();
        let (mut next, mut link) = (self.first_area, self.address + self.shift + FIRST_AREA);
        loop {
            let area = MetaArea { start: next };
            if !area.is_sound(memory, self.secret) || !known.insert(next) {
                log.add(self.address, link, "the address of a page with descriptors", next);
                break;
            }
            areas.push(area);
            if next == self.last_area {
                break;
            }
            link = next + NEXT_AREA;
            next = memory.word(link).unwrap_or(0);
        }
        areas.sort_unstable_by_key(|area| area.start);
        areas
    }
}
