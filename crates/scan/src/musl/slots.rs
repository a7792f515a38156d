//! Slots in use: position and size of the block in its slot.
//!
//! The header of a block is the 4 bytes before it. `malloc` varies the position of a block in its
//! slot, in units of 16 bytes. If the block does not begin at the start of the slot, the header
//! before the slot contains the distance:
//!
//! ```text
//!   -4  1 if the distance to the group has 32 bits and is at -8, else 0
//!   -3  index of the slot (5 bits), unused bytes after the block (3): 0 to 4; 5: the number is at
//!       the end of the slot; 6: the slot contains a group; 7: the block begins later in the slot
//!   -2  distance in units: from the first slot of the group, or from the slot to the block
//! ```
//!
//! The usable bytes of a slot are followed by a zero byte, which is also the first byte of the next
//! header. `free` sets the byte at -3 to 255 and the distance to 0 before it marks the slot as
//! free.

use super::groups::{GroupMeta, UNIT};
use crate::blocks::LiveBlock;
use crate::corruption::CorruptionLog;
use crate::memory::Memory;

/// Number of bytes of a block header.
const HEADER: u64 = 4;
/// Maximum number of bytes of a group that is read at once.
const MAX_READ: u64 = 64 << 10;
/// Byte -3 of a slot whose block begins later in the slot, and byte -3 of a freed block.
const MOVED: u8 = 7 << 5;
const FREED: u8 = 255;
/// Values of the upper 3 bits of byte -3.
const SIZE_AT_END: u64 = 5;
const HOLDS_GROUP: u64 = 6;

/// Use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotUse {
    Block(LiveBlock),
    /// The slot contains a group at this address.
    Group(u64),
    /// A thread is allocating or freeing the block in the slot.
    InChange,
    /// The header of the slot is unknown.
    Unknown,
}

/// Fields of a block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotHeader {
    is_long: u8,
    tag: u8,
    distance: u64,
}

impl SlotHeader {
    const fn index(self) -> u32 {
        (self.tag & 31) as u32
    }

    const fn reserved(self) -> u64 {
        (self.tag >> 5) as u64
    }
}

/// Memory of a group.
pub(super) struct GroupBytes<'a> {
    memory: &'a dyn Memory,
    group: &'a GroupMeta,
    /// All bytes of the group if it is small and known; otherwise empty.
    bytes: Vec<u8>,
}

impl<'a> GroupBytes<'a> {
    pub(super) fn new(memory: &'a dyn Memory, group: &'a GroupMeta) -> GroupBytes<'a> {
        let size = group.range().len().0;
        let mut bytes = Vec::new();
        if size <= MAX_READ {
            bytes.resize(usize::try_from(size).unwrap_or(0), 0);
            if !memory.read(group.group, &mut bytes) {
                bytes.clear();
            }
        }
        GroupBytes { memory, group, bytes }
    }

    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let at = usize::try_from(address.checked_sub(self.group.group)?).ok()?;
        if let Some(bytes) = self.bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            return Some(*bytes);
        }
        let mut bytes = [0; N];
        self.memory.read(address, &mut bytes).then_some(bytes)
    }

    fn header(&self, block: u64) -> Option<SlotHeader> {
        let [is_long, tag, low, high] = self.read(block - HEADER)?;
        Some(SlotHeader { is_long, tag, distance: u16::from_le_bytes([low, high]).into() })
    }

    /// Distance of a block from the first slot of the group, in units.
    fn distance(&self, block: u64, header: SlotHeader) -> Option<u64> {
        if header.is_long == 0 {
            return Some(header.distance);
        }
        Some(u32::from_le_bytes(self.read(block - 8)?).into())
    }

    /// Returns the use of a slot that is not free according to the descriptor.
    pub(super) fn slot_use(&mut self, index: u32, log: &mut CorruptionLog) -> SlotUse {
        let slot = self.group.slot(index);
        let Some(first) = self.header(slot.start) else { return SlotUse::Unknown };
        let Some(block) = self.block_start(index, first) else {
            let address = slot.start - HEADER;
            log.add(slot.start, address, "the header of a block", header_word(first));
            return self.whole(slot.start, index);
        };
        let Some(header) = self.header(block) else { return SlotUse::Unknown };
        let is_new = (header.tag, header.distance) == (0, 0) && index > 0;
        if header.is_long == 0 && (header.tag, header.distance) == (FREED, 0) || is_new {
            return SlotUse::InChange;
        }
        let distance = (block - self.group.slot(0).start) / UNIT;
        let is_sound = self.distance(block, header) == Some(distance) && header.index() == index;
        if !is_sound || header.reserved() > HOLDS_GROUP {
            let expected = format!("the header of slot {index}, {distance} units into its group");
            log.add(block, block - HEADER, &expected, header_word(header));
            return self.whole(block, index);
        }
        if header.reserved() == HOLDS_GROUP {
            return SlotUse::Group(block);
        }
        self.sized(block, index, header, log)
    }

    /// Returns the start of the block in a slot, according to the header before the slot. That
    /// header contains only the low 16 bits of the distance. The first distance with these low bits
    /// at which the block's own header is consistent is chosen.
    fn block_start(&self, index: u32, first: SlotHeader) -> Option<u64> {
        const CUT_OFF: u64 = UNIT << 16;
        let slot = self.group.slot(index);
        if first.tag != MOVED {
            return Some(slot.start);
        }
        let moved = slot.start + UNIT * first.distance;
        let starts = (moved..slot.end).step_by(usize::try_from(CUT_OFF).ok()?);
        let mut behind = starts.filter(|start| *start > slot.start);
        let nearest = behind.clone().next();
        let is_block = |block: &u64| {
            self.header(*block).is_some_and(|header| {
                let distance = (block - self.group.slot(0).start) / UNIT;
                header.index() == index && self.distance(*block, header) == Some(distance)
            })
        };
        behind.find(is_block).or(nearest)
    }

    /// Returns a block that extends to the end of its slot, for a block with an unknown size.
    fn whole(&self, block: u64, index: u32) -> SlotUse {
        let end = self.group.slot(index).end - HEADER;
        SlotUse::Block(LiveBlock { start: block, size: end.saturating_sub(block) })
    }

    fn sized(
        &self,
        block: u64,
        index: u32,
        header: SlotHeader,
        log: &mut CorruptionLog,
    ) -> SlotUse {
        let end = self.group.slot(index).end - HEADER;
        let byte = |at: u64| self.read::<1>(at).map(|[byte]| byte);
        let mut reserved = header.reserved();
        if reserved == SIZE_AT_END {
            let Some(size) = self.read(end - 4) else { return SlotUse::Unknown };
            reserved = u32::from_le_bytes(size).into();
            if reserved < SIZE_AT_END
                || reserved > end.saturating_sub(block)
                || byte(end - 5) != Some(0)
            {
                log.add(block, end - 4, "the number of bytes behind the block", reserved);
                return self.whole(block, index);
            }
        }
        let Some(size) = end.checked_sub(block + reserved) else {
            log.add(block, block - HEADER, "a block that ends in its slot", reserved);
            return SlotUse::Block(LiveBlock { start: block, size: 0 });
        };
        // `byte` returns `None` for a byte on a page that was never touched. Such a byte is zero,
        // so it is not reported.
        for zero in [block + size, end] {
            if let Some(found) = byte(zero).filter(|found| *found != 0) {
                log.add(block, zero, "a zero byte behind the block", found.into());
            }
        }
        SlotUse::Block(LiveBlock { start: block, size })
    }
}

fn header_word(header: SlotHeader) -> u64 {
    let SlotHeader { is_long, tag, distance } = header;
    u64::from(is_long) | u64::from(tag) << 8 | distance << 16
}
