//! Heap walk of musl's malloc (mallocng, since musl 1.2.1) in the memory of a process.
//!
//! ```text
//!  context  the variables of malloc, found and checked by structure
//!  groups   descriptors of groups; a group is memory divided into up to 32 equal slots
//!  slots    the headers of slots in use: position and size of the block in the slot
//!  code     address ranges of the code that changes these structures
//! ```
//!
//! Descriptors are outside of the heap, in areas that begin with a secret number, and each group
//! points back to its descriptor. A slot of a group can contain a smaller group; such a slot counts
//! as memory of the allocator, not as a block. musl does not guarantee these layouts, so all data
//! is checked, and each contradiction is reported. The number of descriptors bounds every loop.

mod code;
mod context;
mod groups;
mod slots;
#[cfg(test)]
mod tests;

use pagewise_model::PageSize;
use pagewise_model::heap_scan::{HeapAllocator, WalkedArena};

use crate::ScanError;
use crate::memory::Memory;
use crate::slot_heap::{NOT_RESIDENT, SlotHeap, SlotOwner};
use crate::walk::AllocatorWalk;
use context::MallocContext;
use groups::{GroupMeta, GroupTable};
use slots::{GroupBytes, SlotUse};

pub(crate) use code::{is_library, malloc_code};

/// Walks the heap of musl. Returns `None` if the process has no `malloc_context` of mallocng.
///
/// # Complexity
/// O(n log n) in the number of groups and blocks.
pub(crate) fn walk(
    memory: &dyn Memory,
    page_size: PageSize,
) -> Result<Option<AllocatorWalk>, ScanError> {
    let contexts = context::contexts(memory);
    if contexts.is_empty() {
        return Ok(None);
    }
    let mut walk = MuslWalk { memory, heap: SlotHeap::default() };
    for (arena, context) in contexts.iter().enumerate() {
        walk.add_context(context, arena);
    }
    let allocator = HeapAllocator { name: "musl".to_owned(), ..HeapAllocator::default() };
    Ok(Some(walk.heap.finish(memory, page_size, allocator)))
}

/// State and sums of the walk.
struct MuslWalk<'a> {
    memory: &'a dyn Memory,
    heap: SlotHeap,
}

impl MuslWalk<'_> {
    fn add_context(&mut self, context: &MallocContext, arena: usize) {
        self.heap.arenas.push(WalkedArena {
            state: context.address,
            is_main: arena == 0,
            // All threads share one heap.
            threads: self.memory.threads().len() as u64,
            threads_seen: true,
            ..WalkedArena::default()
        });
        let areas = context.areas(self.memory, &mut self.heap.log);
        for area in &areas {
            self.heap.add_range(area.range(), SlotOwner::Arena(arena));
        }
        let table = GroupTable::read(self.memory, &areas, &mut self.heap.log);
        let before = self.heap.log.count;
        table.check_lists(context, &mut self.heap.log);
        let in_lists = self.heap.log.count - before;
        let mut marked = Vec::new();
        for group in table.groups() {
            let is_mapped = group.is_single_block();
            let owner = if is_mapped { SlotOwner::Mapped } else { SlotOwner::Arena(arena) };
            if !group.is_nested() {
                self.heap.add_range(group.range(), owner);
            }
            self.add_group(group, owner, arena, &table, &mut marked);
        }
        let before = self.heap.log.count;
        table.check_nested(&mut marked, &mut self.heap.log);
        // An inconsistent descriptor means that a thread holds the lock of malloc and is changing
        // the descriptor. A program that writes outside of its blocks does not reach descriptors,
        // which are outside of the heap.
        let in_change = in_lists > 0 || self.heap.log.count > before;
        self.heap.arenas[arena].is_locked |= in_change;
    }

    /// Adds the slots of a group. Adds the addresses of groups in these slots to `marked`.
    fn add_group(
        &mut self,
        group: &GroupMeta,
        owner: SlotOwner,
        arena: usize,
        table: &GroupTable,
        marked: &mut Vec<u64>,
    ) {
        let free = u64::from(group.free_slots()) * group.stride();
        let sum = &mut self.heap.arenas[arena].free;
        if group.is_unused() && !group.is_nested() {
            sum.pages += free;
        } else {
            sum.slots += free;
        }
        let mut bytes = GroupBytes::new(self.memory, group);
        for index in group.used_slots() {
            let slot = group.slot(index);
            match bytes.slot_use(index, &mut self.heap.log) {
                // If the program has overwritten the header of the slot, the descriptor of the
                // nested group still shows that the slot contains a group.
                SlotUse::Block(block) => match table.group_in(slot) {
                    Some(group) => marked.push(group),
                    None => self.heap.add_block(block, slot, owner),
                },
                SlotUse::Group(address) => marked.push(address),
                SlotUse::InChange => {
                    self.heap.arenas[arena].is_locked = true;
                    self.heap.arenas[arena].free.slots += slot.len().0;
                }
                SlotUse::Unknown => self.heap.add_gap(slot, NOT_RESIDENT),
            }
        }
    }
}
