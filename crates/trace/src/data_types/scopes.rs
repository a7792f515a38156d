//! Functions and blocks whose code contains wanted instructions: the instruction addresses of
//! frames of threads. The functions and blocks are tracked while the entries of a unit are read in
//! order.
//!
//! Variables of different blocks can share memory, so a variable is used only if its block contains
//! the instruction. Code in several ranges (`DW_AT_ranges`) is not searched.

use gimli::{AttributeValue, EntriesRaw, Expression, Result, constants as dw};

use super::{Dwarf, Slice, Unit};

/// Address from which the offsets of local variables count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FrameBase {
    /// The stack pointer of the caller (`DW_OP_call_frame_cfa`).
    CallFrame,
    /// The frame pointer.
    FramePointer,
    /// The stack pointer.
    StackPointer,
}

/// Code of a function or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScopeCode {
    /// First address in the file.
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) base: FrameBase,
}

impl ScopeCode {
    pub(super) fn contains(&self, instruction: u64) -> bool {
        (self.low..self.high).contains(&instruction)
    }
}

/// The addresses of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScopeEntry {
    low: Option<u64>,
    high: Option<u64>,
    is_divided: bool,
    base: Option<FrameBase>,
}

impl ScopeEntry {
    /// Reads the attributes of a function, an inlined function or a block.
    pub(super) fn read(
        dwarf: &Dwarf<'_>,
        unit: &Unit<'_>,
        entries: &mut EntriesRaw<'_, Slice<'_>>,
        attributes: &[gimli::AttributeSpecification],
    ) -> Result<ScopeEntry> {
        let mut entry = ScopeEntry::default();
        let mut length = None;
        for spec in attributes {
            let attribute = entries.read_attribute(*spec)?;
            match (attribute.name(), attribute.value()) {
                (dw::DW_AT_low_pc, value) => {
                    entry.low = dwarf.attr_address(unit, value).ok().flatten();
                }
                (dw::DW_AT_high_pc, value) => match dwarf.attr_address(unit, value) {
                    Ok(Some(high)) => entry.high = Some(high),
                    _ => length = attribute.udata_value(),
                },
                (dw::DW_AT_ranges, _) => entry.is_divided = true,
                (dw::DW_AT_frame_base, AttributeValue::Exprloc(base)) => {
                    entry.base = frame_base(base);
                }
                _ => {}
            }
        }
        let behind = length.and_then(|length| entry.low?.checked_add(length));
        entry.high = entry.high.or(behind);
        Ok(entry)
    }

    /// Returns the code of the entry within the code of the outer entry.
    fn code(&self, outer: Option<ScopeCode>) -> Option<ScopeCode> {
        match (self.low, self.high, self.base.or(outer.map(|outer| outer.base))) {
            _ if self.is_divided => None,
            (Some(low), Some(high), Some(base)) => Some(ScopeCode { low, high, base }),
            (None, None, _) => outer,
            _ => None,
        }
    }
}

/// The functions and blocks that an entry is in.
pub(super) struct OpenScopes<'w> {
    /// Addresses of instructions, in order.
    wanted: &'w [u64],
    /// Depth of each scope in the tree of entries, and its code. `None` if the code contains no
    /// wanted instruction.
    open: Vec<(isize, Option<ScopeCode>)>,
}

impl<'w> OpenScopes<'w> {
    pub(super) const fn new(wanted: &'w [u64]) -> OpenScopes<'w> {
        OpenScopes { wanted, open: Vec::new() }
    }

    /// Leaves the scopes that do not contain an entry at this depth.
    pub(super) fn leave(&mut self, depth: isize) {
        while self.open.last().is_some_and(|(open, _)| *open >= depth) {
            self.open.pop();
        }
    }

    pub(super) fn enter(&mut self, depth: isize, entry: &ScopeEntry) {
        let code = entry.code(self.code()).filter(|code| {
            let next = self.wanted.partition_point(|&it| it < code.low);
            self.wanted.get(next).is_some_and(|&it| code.contains(it))
        });
        self.open.push((depth, code));
    }

    /// The innermost code, if it contains a wanted instruction.
    pub(super) fn code(&self) -> Option<ScopeCode> {
        self.open.last()?.1
    }

    /// Returns true if any instruction is wanted.
    pub(super) const fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }
}

fn frame_base(base: Expression<Slice<'_>>) -> Option<FrameBase> {
    const FRAME_POINTER: u8 = 0x56;
    const STACK_POINTER: u8 = 0x57;
    const CALL_FRAME: u8 = 0x9c;
    match *base.0.slice() {
        [CALL_FRAME] => Some(FrameBase::CallFrame),
        [FRAME_POINTER] => Some(FrameBase::FramePointer),
        [STACK_POINTER] => Some(FrameBase::StackPointer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(low: u64, high: u64, base: Option<FrameBase>) -> ScopeEntry {
        ScopeEntry { low: Some(low), high: Some(high), is_divided: false, base }
    }

    #[test]
    fn blocks_count_while_they_contain_a_wanted_instruction() {
        let mut scopes = OpenScopes::new(&[0x118]);
        scopes.enter(1, &entry(0x100, 0x200, Some(FrameBase::CallFrame)));
        assert!(scopes.code().is_some());
        scopes.enter(2, &entry(0x120, 0x130, None));
        assert_eq!(scopes.code(), None, "another block");
        scopes.leave(2);
        scopes.enter(2, &entry(0x110, 0x120, None));
        let code = ScopeCode { low: 0x110, high: 0x120, base: FrameBase::CallFrame };
        assert_eq!(scopes.code(), Some(code));
        // An inlined function without addresses of its own.
        scopes.enter(3, &ScopeEntry::default());
        assert_eq!(scopes.code(), Some(code));
        scopes.leave(2);
        scopes.enter(2, &ScopeEntry { is_divided: true, ..ScopeEntry::default() });
        assert_eq!(scopes.code(), None, "code in several ranges");
        scopes.leave(1);
        assert_eq!(scopes.code(), None);
    }
}
