//! Types of blocks, derived from the pointers to them. The search is breadth-first from variables
//! and from objects of known classes.
//!
//! A pointer to the start of a block assigns its declared target type to the block. This requires
//! that the size of the block fits the type or an array of it, and that each pointer in the block
//! is null or points to mapped memory. Two pointers of different types are a contradiction: then
//! the block has no type, and its contents are not followed.

use std::collections::VecDeque;

use pagewise_model::AddrRange;
use pagewise_model::data_types::{DataForm, DataType, DataTypes, PointerField, TypedVariable};
use pagewise_model::heap_scan::{HeapAllocator, LiveAmount};

use super::index::BlockIndex;
use crate::blocks::{BlockTable, LiveBlock};
use crate::memory::Memory;

/// Number of bytes of a block that are read at once.
const PIECE: u64 = 64 << 10;
/// Maximum number of elements whose pointers are checked before a block counts as an array.
const CHECKED_ELEMENTS: u64 = 4;
/// Maximum number of bytes of a block that are read to check its pointers.
const CHECKED_BYTES: u64 = 4 << 10;
/// Maximum number of structures that are nested as first members.
const MAX_NESTING: u32 = 16;
/// Number of pointers that are followed in addition to one for each byte of the heap. Types in a
/// hostile file can declare many pointers at one offset.
const MIN_FOLLOWED: u64 = 16 << 20;

/// Rounding of block sizes by an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRounding {
    /// Chunks are multiples of 16 bytes, and a block is a chunk without 8 bytes. Large blocks have
    /// mappings of whole pages.
    Chunks,
    /// Size classes, with steps of up to 20 %.
    SizeClasses,
}

impl BlockRounding {
    /// Returns the coarsest rounding of these allocators.
    pub fn of(allocators: &[HeapAllocator]) -> BlockRounding {
        match allocators.iter().all(|allocator| allocator.name == "glibc") {
            true => BlockRounding::Chunks,
            false => BlockRounding::SizeClasses,
        }
    }
}

/// Type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockType {
    /// Index in [`DataTypes::types`].
    pub data_type: u32,
    /// True if the block is an array of this type.
    pub is_array: bool,
}

/// Types of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTyping {
    /// Code of each block: 0 if the type is unknown, [`CONTRADICTED`], [`OTHERWISE`], or 1 + the
    /// index of the type.
    codes: Vec<u32>,
    /// Number and bytes of the blocks to which pointers of different types point.
    pub contradicted: LiveAmount,
}

const UNKNOWN: u32 = 0;
const CONTRADICTED: u32 = u32::MAX;
/// Code of a block whose class is known from another source and has no type in the debug
/// information.
const OTHERWISE: u32 = u32::MAX - 1;
/// Upper bound of type indices; types from this index on are ignored.
const MAX_TYPE: u32 = u32::MAX - 3;

/// Input of the type search: the blocks and the types.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds the memory of a process")]
pub struct TypingInput<'a> {
    /// Memory of the process.
    pub memory: &'a dyn Memory,
    /// Live blocks of the process.
    pub blocks: &'a BlockTable,
    /// Types from debug information.
    pub data: &'a DataTypes,
    /// Rounding of block sizes by the allocator.
    pub rounding: BlockRounding,
}

impl BlockTyping {
    /// Determines types of blocks. `classes` are the blocks whose class is known from another
    /// source, each with the type of the class if it has one.
    ///
    /// # Complexity
    /// Linear in the bytes of typed blocks: the type of a block changes only a few times.
    pub fn new(input: &TypingInput<'_>, classes: &[(u32, Option<u32>)]) -> BlockTyping {
        let mut search = TypeSearch::new(input);
        search.run(&input.data.variables, classes);
        if !input.data.locals.is_empty() {
            // Local variables come last, because an uninitialized local variable can have any
            // value.
            search.settle();
            search.run(&input.data.locals, &[]);
        }
        let mut typing = BlockTyping { codes: search.codes, ..BlockTyping::default() };
        for (at, code) in typing.codes.iter_mut().enumerate() {
            match (*code, input.blocks.get(at)) {
                (CONTRADICTED, Some(block)) => {
                    typing.contradicted.add(LiveAmount { blocks: 1, bytes: block.size });
                }
                (OTHERWISE, _) => *code = UNKNOWN,
                _ => {}
            }
        }
        typing
    }

    /// Type of a block; `None` if it is unknown or contradicted.
    pub fn get(&self, input: &TypingInput<'_>, block: u32) -> Option<BlockType> {
        let data_type = type_of(*self.codes.get(block as usize)?)?;
        let described = input.data.types.get(data_type as usize)?;
        let usable = input.blocks.get(block as usize)?.size;
        let is_array = elements(described, usable, input.rounding)? > 1;
        Some(BlockType { data_type, is_array })
    }

    /// Pointer member of a typed block that points to the block `to`.
    pub fn member<'a>(
        &self,
        input: &TypingInput<'a>,
        block: u32,
        to: AddrRange,
    ) -> Option<&'a PointerField> {
        let found = self.get(input, block)?;
        let data_type = input.data.types.get(found.data_type as usize)?;
        let start = input.blocks.get(block as usize)?.start;
        // A pointer in an element of an array has no unique name.
        if found.is_array {
            return None;
        }
        member_of(input.memory, data_type, start, to)
    }
}

/// Pointer member of an object at `start` that points to the block `to`.
pub fn member_of<'a>(
    memory: &dyn Memory,
    data_type: &'a DataType,
    start: u64,
    to: AddrRange,
) -> Option<&'a PointerField> {
    let leads = |field: &&PointerField| {
        let at = |index: u64| start.wrapping_add(field.offset).wrapping_add(index * field.stride);
        (0..field.count.min(PIECE / 8))
            .any(|index| memory.word(at(index)).is_some_and(|word| to.contains(word)))
    };
    data_type.pointers.iter().find(leads)
}

fn type_of(code: u32) -> Option<u32> {
    (code != CONTRADICTED && code != OTHERWISE).then(|| code.checked_sub(1)).flatten()
}

/// Number of objects of a type in a block of `usable` bytes. `None` if the allocator returns no
/// block of this size for any number of objects.
fn elements(data_type: &DataType, usable: u64, rounding: BlockRounding) -> Option<u64> {
    /// Smallest chunk of glibc in bytes: glibc does not split off a smaller remainder of a chunk.
    const REST: u64 = 32;
    /// Number of bytes from which a block may have its own mapping.
    const MAPPED: u64 = 64 << 10;
    const PAGE: u64 = 4 << 10;
    let size = data_type.size;
    if size == 0 || size > usable {
        return None;
    }
    if data_type.is_open_ended {
        return Some(1);
    }
    let of_one = match size.checked_add(8)?.checked_next_multiple_of(16)? - 8 {
        usable if usable < 24 => 24,
        usable => usable,
    };
    let is_plain = data_type.form == DataForm::Scalar || data_type.form == DataForm::Pointer;
    let is_one = usable == of_one && rounding == BlockRounding::Chunks && !is_plain;
    let count = if is_one { 1 } else { usable / size };
    let rest = usable - count * size;
    let most = match rounding {
        BlockRounding::Chunks if usable >= MAPPED => REST + PAGE,
        BlockRounding::Chunks => REST,
        BlockRounding::SizeClasses => REST.max(usable / 5),
    };
    (is_one || rest < most).then_some(count)
}

/// State of the type search.
struct TypeSearch<'a> {
    input: TypingInput<'a>,
    index: BlockIndex<'a>,
    codes: Vec<u32>,
    /// True for each block whose type is final: objects of known classes, to which pointers of a
    /// base class type can point. Empty if no type is final.
    settled: Vec<bool>,
    waiting: VecDeque<u32>,
    /// Number of pointers that may still be followed.
    left: u64,
}

impl<'a> TypeSearch<'a> {
    fn new(input: &TypingInput<'a>) -> TypeSearch<'a> {
        TypeSearch {
            input: *input,
            index: BlockIndex::new(input.blocks),
            codes: vec![UNKNOWN; input.blocks.len()],
            settled: Vec::new(),
            waiting: VecDeque::new(),
            left: (0..input.blocks.len())
                .filter_map(|at| input.blocks.get(at))
                .fold(MIN_FOLLOWED, |sum, block| sum.saturating_add(block.size)),
        }
    }

    /// Searches from variables and from blocks of known classes. If a block is contradicted,
    /// searches a second time without following the contradicted blocks.
    fn run(&mut self, variables: &[TypedVariable], classes: &[(u32, Option<u32>)]) {
        self.seed(classes);
        self.search(variables);
        let mut open = (0..self.codes.len()).filter(|&at| !self.is_settled(at));
        if open.any(|at| self.codes[at] == CONTRADICTED) {
            for at in 0..self.codes.len() {
                if self.codes[at] != CONTRADICTED && !self.is_settled(at) {
                    self.codes[at] = UNKNOWN;
                }
            }
            self.seed(classes);
            self.search(variables);
        }
    }

    /// Makes the types found so far final: later pointers cannot contradict them.
    fn settle(&mut self) {
        self.settled = self.codes.iter().map(|code| *code != UNKNOWN).collect();
    }

    fn is_settled(&self, block: usize) -> bool {
        self.settled.get(block).is_some_and(|it| *it)
    }

    fn seed(&mut self, classes: &[(u32, Option<u32>)]) {
        if !classes.is_empty() && self.settled.is_empty() {
            self.settled = vec![false; self.codes.len()];
        }
        for &(block, data_type) in classes {
            let Some(code) = self.codes.get_mut(block as usize) else { continue };
            *code = match data_type.filter(|it| *it < MAX_TYPE) {
                Some(data_type) => data_type + 1,
                None => OTHERWISE,
            };
            if let (Some(_), Some(settled)) = (data_type, self.settled.get_mut(block as usize)) {
                *settled = true;
                self.waiting.push_back(block);
            }
        }
    }

    fn search(&mut self, variables: &[TypedVariable]) {
        for variable in variables {
            if let Some(data_type) = self.input.data.types.get(variable.data_type as usize) {
                self.object(data_type, variable.range.start);
            }
        }
        while let Some(block) = self.waiting.pop_front() {
            self.follow(block);
        }
    }

    /// Follows the pointers of a block according to its type.
    fn follow(&mut self, block: u32) {
        let data_type = self.codes.get(block as usize).and_then(|&code| type_of(code));
        let data_type = data_type.and_then(|it| self.input.data.types.get(it as usize));
        let (Some(data_type), Some(found)) = (data_type, self.input.blocks.get(block as usize))
        else {
            return;
        };
        if !data_type.pointers.iter().any(|field| field.target.is_some()) {
            return;
        }
        let count = elements(data_type, found.size, self.input.rounding).unwrap_or(1);
        if count == 1 || data_type.size > PIECE {
            for element in 0..count {
                self.object(data_type, found.start + element * data_type.size);
            }
            return;
        }
        self.array(data_type, found.start, count);
    }

    /// Follows the pointers of one object at `start`.
    fn object(&mut self, data_type: &DataType, start: u64) {
        let size = usize::try_from(data_type.size.min(PIECE)).unwrap_or(0);
        let mut bytes = vec![0; size];
        let is_read = self.input.memory.read(start, &mut bytes);
        let bytes = if is_read { bytes.as_slice() } else { &[] };
        self.pointers(data_type, start, bytes);
    }

    fn array(&mut self, data_type: &DataType, start: u64, count: u64) {
        let at_once = (PIECE / data_type.size).max(1);
        let size = usize::try_from(data_type.size).unwrap_or(usize::MAX);
        let mut bytes = vec![0; usize::try_from(at_once * data_type.size).unwrap_or(0)];
        let mut element = 0;
        while element < count {
            let now = at_once.min(count - element);
            let from = start + element * data_type.size;
            let piece = &mut bytes[..usize::try_from(now * data_type.size).unwrap_or(0)];
            let is_read = self.input.memory.read(from, piece);
            for at in 0..now {
                let begin = usize::try_from(at * data_type.size).unwrap_or(0);
                let of_one = if is_read { &bytes[begin..begin + size] } else { &[][..] };
                self.pointers(data_type, from + at * data_type.size, of_one);
            }
            element += now;
        }
    }

    /// Follows the pointers of an object. `bytes` are its first bytes, or empty if they are not
    /// readable as a whole.
    fn pointers(&mut self, data_type: &DataType, start: u64, bytes: &[u8]) {
        for field in &data_type.pointers {
            let Some(target) = field.target else { continue };
            for index in 0..field.count {
                let offset = field.offset.saturating_add(index.saturating_mul(field.stride));
                if self.left == 0 || offset >= data_type.size {
                    break;
                }
                self.left -= 1;
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
                let word = match word {
                    Some(word) => Some(u64::from_le_bytes(*word)),
                    None => self.input.memory.word(start.wrapping_add(offset)),
                };
                if let Some(word) = word {
                    self.lead(word, target);
                }
            }
        }
    }

    /// Handles a pointer with the value `word`: assigns its declared target type `target` to the
    /// block at `word`, if the type is plausible for the block.
    fn lead(&mut self, word: u64, target: u32) {
        if !self.index.may_contain(word) || target >= MAX_TYPE {
            return;
        }
        let Some(block) = self.index.containing(word) else { return };
        let code = self.codes[block as usize];
        if self.is_settled(block as usize)
            || code == CONTRADICTED
            || code == OTHERWISE
            || code == target + 1
        {
            return;
        }
        let Some(found) = self.input.blocks.get(block as usize) else { return };
        let Some(data_type) = self.input.data.types.get(target as usize) else { return };
        if found.start != word || !self.is_plausible(data_type, found) {
            return;
        }
        let joined = match type_of(code) {
            Some(known) => self.joined(known, target),
            None => Some(target),
        };
        let new = joined.map_or(CONTRADICTED, |joined| joined + 1);
        if new != code {
            self.codes[block as usize] = new;
            self.waiting.push_back(block);
        }
    }

    /// Returns the type of a block to which pointers of two types point; `None` if the types
    /// contradict each other.
    fn joined(&self, known: u32, new: u32) -> Option<u32> {
        let types = &self.input.data.types;
        let (a, b) = (types.get(known as usize)?, types.get(new as usize)?);
        // C permits access to any object through a pointer to a byte type.
        let is_bytes = |it: &DataType| it.form == DataForm::Scalar && it.size == 1;
        if is_bytes(b) || is_same(a, b) || self.begins(new, known) {
            Some(known)
        } else if is_bytes(a) || self.begins(known, new) {
            Some(new)
        } else {
            None
        }
    }

    /// True if the first member of type `of`, at any depth, has the type `first`: a base class or a
    /// header.
    fn begins(&self, first: u32, of: u32) -> bool {
        let types = &self.input.data.types;
        let Some(first) = types.get(first as usize) else { return false };
        let mut at = types.get(of as usize);
        for _ in 0..MAX_NESTING {
            at = at.and_then(|it| it.first).and_then(|it| types.get(it as usize));
            match at {
                Some(found) if is_same(found, first) => return true,
                Some(_) => {}
                None => return false,
            }
        }
        false
    }

    /// True if the size and the pointers of a block are plausible for objects of this type.
    fn is_plausible(&self, data_type: &DataType, block: LiveBlock) -> bool {
        let count = elements(data_type, block.size, self.input.rounding);
        let Some(count) = count else { return false };
        if data_type.pointers.is_empty() {
            return true;
        }
        let checked = count.min(CHECKED_ELEMENTS) * data_type.size;
        let mut bytes = vec![0; usize::try_from(checked.min(CHECKED_BYTES)).unwrap_or(0)];
        if !self.input.memory.read(block.start, &mut bytes) {
            return true;
        }
        let size = usize::try_from(data_type.size).unwrap_or(usize::MAX);
        bytes.chunks_exact(size.min(bytes.len().max(1))).all(|object| {
            data_type.pointers.iter().all(|field| {
                let at = usize::try_from(field.offset).unwrap_or(usize::MAX);
                let word = object.get(at..).and_then(|rest| rest.first_chunk());
                word.is_none_or(|word| self.is_pointer(u64::from_le_bytes(*word)))
            })
        })
    }

    fn is_pointer(&self, word: u64) -> bool {
        let mappings = self.input.memory.mappings();
        let after = mappings.partition_point(|it| it.range.start <= word);
        let below = after.checked_sub(1).map(|at| &mappings[at]);
        // A pointer to the end of an array may be the end of a mapping.
        word == 0 || below.is_some_and(|it| it.range.contains(word) || it.range.end == word)
    }
}

/// True if two types are declarations of the same type in two files.
fn is_same(a: &DataType, b: &DataType) -> bool {
    a.name == b.name && a.size == b.size && a.form == b.form && a.pointers.len() == b.pointers.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_size(size: u64, form: DataForm) -> DataType {
        DataType { size, form, ..DataType::default() }
    }

    #[test]
    fn a_block_holds_as_many_objects_as_its_size_allows() {
        let count = |size, usable| {
            elements(&of_size(size, DataForm::Structure), usable, BlockRounding::Chunks)
        };
        assert_eq!(count(16, 24), Some(1), "the smallest block");
        assert_eq!(count(48, 56), Some(1));
        assert_eq!(count(48, 40), None, "the block is too small");
        assert_eq!(count(48, 104), Some(2), "96 bytes");
        assert_eq!(count(100, 168), None, "neither one nor two");
        assert_eq!(count(100, 0x2_0ff0), Some(1351), "a mapping has whole pages");
        assert_eq!(count(0x6000, 0x2_0ff0), None, "five leave almost three pages");
        let plain = of_size(8, DataForm::Pointer);
        assert_eq!(elements(&plain, 8008, BlockRounding::Chunks), Some(1001));
        let open = DataType { is_open_ended: true, ..of_size(16, DataForm::Structure) };
        assert_eq!(elements(&open, 1000, BlockRounding::Chunks), Some(1));
        let class = elements(&of_size(100, DataForm::Structure), 112, BlockRounding::SizeClasses);
        assert_eq!(class, Some(1));
    }
}
