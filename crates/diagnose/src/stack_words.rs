//! Return addresses in stack memory below the stack pointer, which functions left there when they
//! returned, and the sizes of the frames of these functions.
//!
//! ```text
//!  deep end                                             stack pointer
//!  [ frame of the callee ][ R1 ][ frame of f ][ R2 ][ frame of g ] ..
//! ```
//! R1 is the address in `f` to which its callee returned, and R2 is the address in `g` to which `f`
//! returned. The frame of `f` lies between R1 and R2, so each return address owns the bytes up to
//! the next return address.

use std::collections::HashMap;

/// Length in bytes of the longest call instruction.
pub(crate) const MAX_CALL: usize = 7;
/// Minimum size in bytes of the frame of a leaf function (one that called no function): smaller
/// frames are not reported.
const LARGE_LEAF: u64 = 64 << 10;

/// A return address in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnAddress {
    /// Address of the stack word that holds the return address.
    pub(crate) location: u64,
    /// The return address itself, which is an address in code.
    pub(crate) address: u64,
}

/// Stack bytes that belong to the frames of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnedBytes {
    /// A return address in the function. If `count` is 0, the first instruction of the function.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Number of occurrences of the return address.
    pub(crate) count: u64,
}

/// Sums the stack bytes by return address. `start` is the deepest address that was read, `end` is
/// the end of the stack, and `found` is sorted by location. `leaf` is the first instruction of the
/// function that the deepest return address called; `None` if it is unknown.
pub(crate) fn owned_bytes(
    start: u64,
    found: &[ReturnAddress],
    end: u64,
    leaf: Option<u64>,
) -> Vec<OwnedBytes> {
    let mut owned: HashMap<u64, (u64, u64)> = HashMap::new();
    let nexts = found.iter().skip(1).map(|next| next.location).chain([end]);
    for (it, next) in found.iter().zip(nexts) {
        let entry = owned.entry(it.address).or_default();
        entry.0 += next.saturating_sub(it.location);
        entry.1 += 1;
    }
    let mut all: Vec<OwnedBytes> = owned
        .into_iter()
        .map(|(address, (bytes, count))| OwnedBytes { address, bytes, count })
        .collect();
    let below = found.first().map_or(0, |first| first.location.saturating_sub(start));
    let leaf = leaf.filter(|_| below >= LARGE_LEAF);
    all.extend(leaf.map(|address| OwnedBytes { address, bytes: below, count: 0 }));
    all
}

/// True if code ends with a call instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_behind_call(code: &[u8; MAX_CALL]) -> bool {
    // `call rel32`: opcode e8 and four bytes of distance.
    if code[2] == 0xe8 {
        return true;
    }
    // `call r/m64`: opcode ff, a ModRM byte whose middle bits are 2, and the operand.
    (2..=MAX_CALL).any(|length| {
        let at = MAX_CALL - length;
        code[at] == 0xff && (code[at + 1] >> 3) & 7 == 2 && operand_length(code, at + 1) == length
    })
}

/// Returns the length in bytes of an indirect call whose ModRM byte is at `at`, without prefixes.
#[cfg(target_arch = "x86_64")]
fn operand_length(code: &[u8; MAX_CALL], at: usize) -> usize {
    let (mode, register) = (code[at] >> 6, code[at] & 7);
    let has_index = mode != 3 && register == 4;
    let displacement = match (mode, register) {
        (0, 5) | (2, _) => 4,
        (1, _) => 1,
        (0, 4) if code.get(at + 1).is_some_and(|index| index & 7 == 5) => 4,
        _ => 0,
    };
    2 + usize::from(has_index) + displacement
}

/// True if code ends with a call instruction.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_behind_call(code: &[u8; MAX_CALL]) -> bool {
    let word = u32::from_le_bytes([code[3], code[4], code[5], code[6]]);
    // The instructions BL and BLR of aarch64.
    word & 0xfc00_0000 == 0x9400_0000 || word & 0xffff_fc1f == 0xd63f_0000
}

/// Returns the first instruction of the function that a direct call before the return address
/// calls; `None` for an indirect call, and on machines other than x86-64.
pub(crate) fn leaf_target(address: u64, code: &[u8; MAX_CALL]) -> Option<u64> {
    let distance = i32::from_le_bytes([code[3], code[4], code[5], code[6]]);
    let is_direct = cfg!(target_arch = "x86_64") && code[2] == 0xe8;
    is_direct.then(|| address.wrapping_add_signed(distance.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(location: u64, address: u64) -> ReturnAddress {
        ReturnAddress { location, address }
    }

    /// Returns the bytes and the number of occurrences of a return address.
    fn of(owned: &[OwnedBytes], address: u64) -> (u64, u64) {
        owned.iter().find(|it| it.address == address).map_or((0, 0), |it| (it.bytes, it.count))
    }

    #[test]
    fn a_function_owns_the_bytes_up_to_the_address_to_which_it_returns() {
        // A recursive function (return address 7) with frames of 64 bytes, called by the function
        // of return address 9.
        let mut found: Vec<_> = (0..100).map(|depth| at(1000 + depth * 64, 7)).collect();
        found.push(at(7400, 9));
        let owned = owned_bytes(992, &found, 7500, None);
        assert_eq!(of(&owned, 7), (6400, 100));
        assert_eq!(of(&owned, 9), (100, 1));
        // A function with a large array: its only return address (5) lies below the array.
        let owned = owned_bytes(0, &[at(8, 5), at(1 << 20, 9)], (1 << 20) + 64, None);
        assert_eq!(of(&owned, 5), ((1 << 20) - 8, 1));
    }

    #[test]
    fn a_large_frame_without_calls_belongs_to_the_function_that_was_called() {
        let owned = owned_bytes(0, &[at(1 << 20, 9)], (1 << 20) + 64, Some(4));
        assert_eq!(of(&owned, 4), (1 << 20, 0));
        let owned = owned_bytes(0, &[at(5000, 9)], 9000, Some(4));
        assert_eq!((owned.len(), of(&owned, 9)), (1, (4000, 1)));
        assert!(owned_bytes(0, &[], 9000, Some(4)).is_empty());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_are_recognized_by_their_bytes() {
        let calls: [[u8; MAX_CALL]; 6] = [
            [0, 0, 0xe8, 0xfb, 0xff, 0xff, 0xff],
            [0, 0, 0, 0, 0, 0xff, 0xd0],
            [0, 0xff, 0x15, 1, 2, 3, 4],
            [0, 0, 0, 0, 0xff, 0x50, 8],
            [0, 0, 0, 0xff, 0x54, 0x24, 8],
            [0xff, 0x94, 0x24, 1, 2, 3, 4],
        ];
        for code in calls {
            assert!(is_behind_call(&code), "{code:x?}");
        }
        let others: [[u8; MAX_CALL]; 3] =
            [[0; MAX_CALL], [0, 0, 0, 0, 0, 0xff, 0xe0], [0, 0, 0, 0xff, 0xd0, 0x90, 0x90]];
        for code in others {
            assert!(!is_behind_call(&code), "{code:x?}");
        }
        assert_eq!(leaf_target(100, &calls[0]), Some(95));
        assert_eq!(leaf_target(100, &calls[1]), None);
    }
}
