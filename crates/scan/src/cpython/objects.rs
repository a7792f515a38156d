//! Types of Python objects in live blocks.
//!
//! Include/object.h and Include/cpython/object.h of CPython 3.8 to 3.14:
//!
//! ```text
//!  object             type object (also an object)
//!     0  reference count 16  size of the variable part
//!     8  type            24  name
//!                        32  size of an instance, and of an item of its variable part
//!                       168  flags
//! ```
//!
//! Two optional parts of 16 bytes each can precede an object. One contains the links of the garbage
//! collector. The other, since 3.11, contains the pointers to the dictionary and the weak
//! references of an instance. The flags of the type determine which parts exist.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use pagewise_model::heap_scan::{LiveAmount, LiveType};
use pagewise_model::{Mapping, Name};

use crate::blocks::{BlockTable, LiveBlock};
use crate::memory::Memory;

/// Number of bytes that are read from a type object.
const TYPE_BYTES: usize = 176;
const TYPE: usize = 8;
const TYPE_NAME: usize = 24;
const BASIC_SIZE: usize = 32;
const ITEM_SIZE: usize = 40;
const FLAGS: usize = 168;
/// Bit numbers in the flags of a type. `PREFIX_BITS`: instances have a dictionary or weak
/// references before the object. `READY_BIT`: the type is complete. `COLLECTED_BIT`: instances have
/// links of the garbage collector.
const PREFIX_BITS: [u32; 2] = [3, 4];
const READY_BIT: u32 = 12;
const COLLECTED_BIT: u32 = 14;
/// Possible numbers of bytes before an object in its block.
const OFFSETS: [u64; 3] = [0, 16, 32];
/// Number of bytes that are read from a block: the largest offset plus an object header.
const EXAMINED_BYTES: usize = 48;
/// Size in bytes of the smallest object: the reference count and the type.
const MIN_OBJECT: u64 = 16;
const MAX_BASIC_SIZE: u64 = 64 << 10;
const MAX_ITEM_SIZE: u64 = 4 << 10;
/// Maximum length of the chain of metaclasses from a type to `type`.
const MAX_METACLASSES: usize = 8;
/// Maximum number of bytes of a type name; longer names are truncated.
const MAX_NAME: usize = 200;
/// Number of bytes that are read from a name at once: the memory after a name can be unmapped.
const NAME_PIECE: usize = 8;
/// Maximum number of cached addresses at which no type was found.
const MAX_OTHERS: usize = 1 << 18;
/// Maximum number of types in the report.
const MAX_TYPES: usize = 10_000;

/// Returns the live objects in all blocks by type, in descending order of bytes.
///
/// # Complexity
/// Linear in the number of blocks.
pub(crate) fn live_types(memory: &dyn Memory, blocks: &BlockTable) -> Vec<LiveType> {
    let mut known = KnownTypes { memory, types: HashMap::new(), others: HashSet::new() };
    let mut sums: HashMap<u64, LiveAmount> = HashMap::new();
    for block in blocks.iter() {
        if let Some(object_type) = known.type_of(block) {
            let amount = LiveAmount { blocks: 1, bytes: block.size };
            sums.entry(object_type).or_default().add(amount);
        }
    }
    let named = sums.into_iter().filter_map(|(object_type, live)| {
        let known = known.types.get(&object_type)?;
        Some(LiveType { name: known.name.clone(), live })
    });
    let mut types: Vec<LiveType> = named.collect();
    types.sort_by(|one, other| {
        let key = |it: &LiveType| (Reverse(it.live.bytes), Reverse(it.live.blocks));
        key(one).cmp(&key(other)).then_with(|| one.name.as_bytes().cmp(other.name.as_bytes()))
    });
    types.truncate(MAX_TYPES);
    types
}

/// A Python type.
struct ObjectType {
    name: Name,
    /// Number of bytes between the start of a block and the object.
    offset: u64,
    /// Size of an instance in bytes.
    size: u64,
}

struct KnownTypes<'a> {
    memory: &'a dyn Memory,
    /// Known types by address.
    types: HashMap<u64, ObjectType>,
    /// Addresses at which no type was found, at most [`MAX_OTHERS`].
    others: HashSet<u64>,
}

impl KnownTypes<'_> {
    /// Address of the type of the object in a block; `None` if the block contains no object.
    fn type_of(&mut self, block: LiveBlock) -> Option<u64> {
        let mut bytes = [0; EXAMINED_BYTES];
        let len = usize::try_from(block.size).unwrap_or(usize::MAX).min(bytes.len());
        if !self.memory.read(block.start, &mut bytes[..len]) {
            return None;
        }
        OFFSETS.into_iter().find_map(|offset| {
            let at = usize::try_from(offset).ok()?;
            let [references, object_type] = [at, at + TYPE].map(|at| word(&bytes, at));
            if !is_count(references) || block.size < offset + MIN_OBJECT {
                return None;
            }
            let known = self.get(object_type)?;
            let fits = known.offset == offset && offset + known.size <= block.size;
            fits.then_some(object_type)
        })
    }

    fn get(&mut self, address: u64) -> Option<&ObjectType> {
        if !address.is_multiple_of(8) || self.others.contains(&address) {
            return None;
        }
        if !self.types.contains_key(&address) {
            let Some(read) = read_type(self.memory, address) else {
                if self.others.len() < MAX_OTHERS {
                    self.others.insert(address);
                }
                return None;
            };
            self.types.insert(address, read);
        }
        self.types.get(&address)
    }
}

/// True if `word` can be a reference count: the low half is not 0, and the 16 bits above it are 0.
/// Since 3.12 the topmost bits can be flags. Most addresses have other bits set.
const fn is_count(word: u64) -> bool {
    word & 0xffff_ffff != 0 && word >> 32 & 0xffff == 0
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it))
}

fn read_type(memory: &dyn Memory, address: u64) -> Option<ObjectType> {
    let mappings = memory.mappings();
    let at = mappings.partition_point(|mapping| mapping.range.end <= address);
    // Python writes the reference count of every type, so the memory of a type is writable.
    let is_writable = |it: &Mapping| it.prot.write && it.range.contains(address);
    if !mappings.get(at).is_some_and(is_writable) {
        return None;
    }
    let mut bytes = [0; TYPE_BYTES];
    if !memory.read_constant(address, &mut bytes) {
        return None;
    }
    let has = |bit: u32| word(&bytes, FLAGS) >> bit & 1 == 1;
    let [size, item] = [BASIC_SIZE, ITEM_SIZE].map(|at| word(&bytes, at));
    let makes_sense = is_count(word(&bytes, 0))
        && has(READY_BIT)
        && (MIN_OBJECT..=MAX_BASIC_SIZE).contains(&size)
        && item <= MAX_ITEM_SIZE
        && is_class(memory, address);
    let name = makes_sense.then(|| type_name(memory, word(&bytes, TYPE_NAME))).flatten()?;
    let part = |is_there: bool| if is_there { 16 } else { 0 };
    let offset = part(has(COLLECTED_BIT)) + part(PREFIX_BITS.into_iter().any(has));
    // An object with a variable part, such as an int or a tuple, can be smaller than the instance
    // size of its type. The variable part can be empty, and some instance sizes include its first
    // item.
    let size = if item > 0 { MIN_OBJECT } else { size };
    Some(ObjectType { name, offset, size })
}

/// True if the chain of metaclasses from the type at `address` ends with `type`, which is its own
/// type.
fn is_class(memory: &dyn Memory, address: u64) -> bool {
    let mut class = address;
    for _ in 0..MAX_METACLASSES {
        let mut bytes = [0; 8];
        let is_read = class
            .checked_add(TYPE as u64)
            .is_some_and(|address| memory.read_constant(address, &mut bytes));
        let next = u64::from_le_bytes(bytes);
        if !is_read || next == 0 || next == class {
            return is_read && next == class;
        }
        class = next;
    }
    false
}

/// Reads the NUL-terminated text at `address`.
fn type_name(memory: &dyn Memory, address: u64) -> Option<Name> {
    let mut name = Vec::new();
    let mut at = address;
    while name.len() < MAX_NAME {
        let mut piece = [0; NAME_PIECE];
        // An aligned piece does not cross a page boundary.
        let len = NAME_PIECE - usize::try_from(at % NAME_PIECE as u64).unwrap_or(0);
        let piece = &mut piece[..len];
        if !memory.read_constant(at, piece) {
            return None;
        }
        let end = piece.iter().position(|byte| *byte == 0);
        name.extend_from_slice(&piece[..end.unwrap_or(len)]);
        if end.is_some() {
            break;
        }
        at = at.checked_add(len as u64)?;
    }
    let is_text = std::str::from_utf8(&name).is_ok_and(|text| !text.chars().any(char::is_control));
    (is_text && !name.is_empty()).then(|| Name::new(&name))
}
