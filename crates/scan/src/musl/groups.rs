//! `meta`: the descriptors of groups.
//!
//! ```text
//!  meta                                      group
//!     0  previous group of the list             0  descriptor
//!     8  next group of the list                 8  last active slot (5 bits)
//!    16  group                                 16  slots
//!    24  slots to hand out (32 bits)
//!    28  freed slots (32 bits)
//!    32  last slot (5 bits), can be freed (1), size class (6), units of 4 KiB that are mapped (52)
//! ```
//!
//! A group without mapped units lies in a slot of another group or, if it cannot be freed, in
//! memory that the dynamic linker has left over.

use pagewise_model::{AddrRange, Mapping};

use super::context::{CLASSES, MallocContext, MetaArea};
use crate::corruption::CorruptionLog;
use crate::memory::{Memory, half, word};
use crate::slot_heap::MAX_ADDRESS;

/// Bytes of a descriptor.
pub(super) const META_BYTES: u64 = 40;
const META_LEN: usize = 40;
/// Sizes and addresses are multiples of this; also the size of a group's header.
pub(super) const UNIT: u64 = 16;
/// Unit of mapped bytes, whatever the page size is.
const MAP_UNIT: u64 = 4 << 10;
const NEXT: u64 = 8;
const GROUP: u64 = 16;
const AVAILABLE: u64 = 24;
const FREED: u64 = 28;
const BITS: u64 = 32;
/// Size class of a group that is one block with a mapping of its own.
const NO_CLASS: u64 = 63;

/// Sizes of slots in units, by size class.
const SLOT_UNITS: [u16; CLASSES] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];

/// A descriptor of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupMeta {
    /// Address of the descriptor.
    pub(super) address: u64,
    previous: u64,
    next: u64,
    /// Address of the group.
    pub(super) group: u64,
    available: u32,
    freed: u32,
    last: u32,
    can_be_freed: bool,
    class: u64,
    mapped: u64,
}

impl GroupMeta {
    fn parse(address: u64, bytes: &[u8; META_LEN]) -> GroupMeta {
        let bits = word(bytes, BITS);
        GroupMeta {
            address,
            previous: word(bytes, 0),
            next: word(bytes, NEXT),
            group: word(bytes, GROUP),
            available: half(bytes, AVAILABLE),
            freed: half(bytes, FREED),
            last: (bits & 31) as u32,
            can_be_freed: bits >> 5 & 1 != 0,
            class: bits >> 6 & 63,
            mapped: (bits >> 12).saturating_mul(MAP_UNIT),
        }
    }

    /// The first field that contradicts: its offset and expected value.
    fn contradiction(&self, mappings: &[Mapping]) -> Option<(u64, &'static str)> {
        let all = u32::MAX >> (31 - self.last);
        let free = self.available | self.freed;
        let is_single = self.class == NO_CLASS;
        if !self.group.is_multiple_of(UNIT) || self.group >= MAX_ADDRESS {
            return Some((GROUP, "the address of a group"));
        }
        if !is_single && self.class >= CLASSES as u64 || is_single && self.last > 0 {
            return Some((BITS, "a size class and a number of slots"));
        }
        if self.mapped >= MAX_ADDRESS || is_single && self.mapped == 0 {
            return Some((BITS, "the size of a mapping"));
        }
        if self.available & self.freed != 0 || free & !all != 0 {
            return Some((AVAILABLE, "each free slot in one of two sets"));
        }
        if self.mapped > 0 && self.range().end < self.slot(self.last).end {
            return Some((BITS, "a mapping that holds all slots"));
        }
        let is_memory = |at| is_writable(mappings, at);
        (!is_memory(self.group) || !is_memory(self.range().end - 1))
            .then_some((GROUP, "the address of a group in memory"))
    }

    pub(super) fn stride(&self) -> u64 {
        if self.last == 0 && self.mapped > 0 {
            return self.mapped - UNIT;
        }
        let units = usize::try_from(self.class).ok().and_then(|class| SLOT_UNITS.get(class));
        UNIT * u64::from(units.copied().unwrap_or(1))
    }

    /// The bytes of a slot, its header excluded, which lies before them.
    pub(super) fn slot(&self, index: u32) -> AddrRange {
        let start = self.group + UNIT + self.stride() * u64::from(index);
        AddrRange { start, end: start + self.stride() }
    }

    /// All memory of the group.
    pub(super) fn range(&self) -> AddrRange {
        let slots = UNIT + self.stride() * u64::from(self.last + 1);
        let bytes = if self.mapped > 0 { self.mapped } else { slots };
        AddrRange { start: self.group, end: self.group + bytes }
    }

    /// True if the group is one block with a mapping of its own.
    pub(super) const fn is_single_block(&self) -> bool {
        self.class == NO_CLASS
    }

    /// True if the group lies in a slot of another.
    pub(super) const fn is_nested(&self) -> bool {
        self.mapped == 0 && self.can_be_freed
    }

    /// True if no slot is in use.
    pub(super) fn is_unused(&self) -> bool {
        self.free_slots() == self.last + 1
    }

    pub(super) fn free_slots(&self) -> u32 {
        (self.available | self.freed).count_ones()
    }

    /// Indices of the slots in use.
    pub(super) fn used_slots(&self) -> impl Iterator<Item = u32> {
        let free = self.available | self.freed;
        (0..=self.last).filter(move |index| free >> index & 1 == 0)
    }
}

fn is_writable(mappings: &[Mapping], address: u64) -> bool {
    let after = mappings.partition_point(|it| it.range.end <= address);
    mappings.get(after).is_some_and(|it| it.range.contains(address) && it.prot.write)
}

/// All groups, in order of the addresses of their descriptors.
#[derive(Debug)]
pub(super) struct GroupTable {
    groups: Vec<GroupMeta>,
    /// Addresses of the groups in slots of others, in order.
    nested: Vec<u64>,
}

impl GroupTable {
    pub(super) fn read(
        memory: &dyn Memory,
        areas: &[MetaArea],
        log: &mut CorruptionLog,
    ) -> GroupTable {
        let mut groups = Vec::new();
        for address in areas.iter().flat_map(|area| area.metas()) {
            let mut bytes = [0; META_LEN];
            if !memory.read(address, &mut bytes) {
                continue;
            }
            let group = GroupMeta::parse(address, &bytes);
            // A descriptor without a group is unused.
            if group.group == 0 {
                continue;
            }
            match group.contradiction(memory.mappings()) {
                Some((field, expected)) => {
                    log.add(address, address + field, expected, word(&bytes, field));
                }
                None => groups.push(group),
            }
        }
        let mut table = GroupTable { groups, nested: Vec::new() };
        table.drop_overlapping(log);
        table.check_links_back(memory, log);
        let nested = table.groups.iter().filter(|it| it.is_nested()).map(|it| it.group);
        table.nested = nested.collect();
        table.nested.sort_unstable();
        table
    }

    pub(super) fn groups(&self) -> &[GroupMeta] {
        &self.groups
    }

    /// The group in a slot.
    pub(super) fn group_in(&self, slot: AddrRange) -> Option<u64> {
        let first = self.nested.partition_point(|group| *group < slot.start);
        self.nested.get(first).copied().filter(|group| slot.contains(*group))
    }

    /// Drops groups that overlap the one before them, except those in slots of others.
    fn drop_overlapping(&mut self, log: &mut CorruptionLog) {
        self.groups.sort_unstable_by_key(|it| (it.group, it.is_nested(), it.address));
        let (mut end, mut last_group) = (0, 0);
        self.groups.retain(|group| {
            let overlaps =
                if group.is_nested() { group.group == last_group } else { group.group < end };
            last_group = group.group;
            if overlaps {
                let field = group.address + GROUP;
                log.add(group.address, field, "a group that overlaps no other", group.group);
            } else if !group.is_nested() {
                end = group.range().end;
            }
            !overlaps
        });
        self.groups.sort_unstable_by_key(|it| it.address);
    }

    /// Each group points to its descriptor.
    fn check_links_back(&self, memory: &dyn Memory, log: &mut CorruptionLog) {
        for group in &self.groups {
            if let Some(link) = memory.word(group.group).filter(|link| *link != group.address) {
                let expected = format!("the descriptor {:#x} of the group", group.address);
                log.add(group.group, group.group, &expected, link);
            }
        }
    }

    fn at(&self, address: u64) -> Option<&GroupMeta> {
        let index = self.groups.binary_search_by_key(&address, |it| it.address).ok()?;
        self.groups.get(index)
    }

    /// Checks the lists of groups with free slots, and the numbers of slots by size class.
    pub(super) fn check_lists(&self, context: &MallocContext, log: &mut CorruptionLog) {
        for (class, &first) in context.active.iter().enumerate() {
            let is_first = self.at(first).is_some_and(|it| it.class == class as u64);
            if first != 0 && !is_first {
                let link = context.active_address(class);
                log.add(context.address, link, "a group of the size class", first);
            }
        }
        let mut usage = [0_u64; CLASSES];
        for group in &self.groups {
            let next = self.at(group.next);
            let is_linked = group.next == 0
                || next.is_some_and(|it| it.previous == group.address && it.class == group.class);
            if !is_linked {
                let link = group.address + NEXT;
                log.add(group.address, link, "the next group of the list", group.next);
            }
            let class = usize::try_from(group.class).unwrap_or(CLASSES);
            if let Some(slots) = usage.get_mut(class).filter(|_| group.can_be_freed) {
                *slots += u64::from(group.last + 1);
            }
        }
        for (class, (slots, &counted)) in usage.into_iter().zip(&context.usage).enumerate() {
            if slots != counted {
                let expected = format!("the number {slots} of slots of a size class");
                log.add(context.address, context.usage_address(class), &expected, counted);
            }
        }
    }

    /// Checks that the slots whose headers mark a group are the slots in which descriptors place
    /// one.
    pub(super) fn check_nested(&self, marked: &mut [u64], log: &mut CorruptionLog) {
        marked.sort_unstable();
        for &slot in marked.iter().filter(|slot| self.nested.binary_search(slot).is_err()) {
            log.add(slot, slot, "a group in a slot that is marked to hold one", slot);
        }
        for &group in self.nested.iter().filter(|group| marked.binary_search(group).is_err()) {
            log.add(group, group, "a slot that is marked to hold the group", group);
        }
    }
}
