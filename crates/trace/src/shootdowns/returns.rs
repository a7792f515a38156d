//! Callers of the C library functions that make system calls.
//!
//! Such a function has no frame pointer of its own, so that the chain of frame pointers goes on
//! with its caller's caller. Its return address lies on the stack, always as far from the stack
//! pointer at one instruction: at most a small frame away.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;

use crate::{Spaces, files};

/// Bytes of the stack that are searched: no such function has a larger frame (`mremap` of glibc has
/// 88).
pub(super) const LOOKED_AT: u32 = 128;

/// By program and instruction: distance of the return address from the stack pointer, in words;
/// `None` if it was not found.
#[derive(Debug, Default)]
pub(super) struct Returns {
    known: HashMap<(u32, u64), Option<usize>>,
}

impl Returns {
    /// The return address of the function in which a system call is made at `ip`.
    pub(super) fn find(&mut self, spaces: &Spaces, pid: u32, ip: u64, stack: &[u8]) -> Option<u64> {
        let word = |at: usize| {
            let bytes = stack.get(at.checked_mul(8)?..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        let is_code = |address: u64| spaces.find(pid, address).is_some_and(|region| region.execute);
        /// Number of remembered functions.
        const KEPT: usize = 1 << 16;
        let key = (spaces.program(pid), ip);
        if self.known.len() > KEPT {
            self.known.clear();
        }
        let at = *self.known.entry(key).or_insert_with(|| {
            let words = (0..stack.len() / 8).filter_map(|at| Some((at, word(at)?)));
            let mut code = words.filter(|(_, address)| is_code(*address));
            code.find(|(at, address)| follows_a_call(spaces, pid, *address).unwrap_or(*at == 0))
                .map(|(at, _)| at)
        });
        word(at?).filter(|address| is_code(*address))
    }
}

/// True if a call precedes an address. `None` if that is unknown.
fn follows_a_call(spaces: &Spaces, pid: u32, address: u64) -> Option<bool> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let region = spaces.find(pid, address).filter(|region| region.is_file())?;
    let file = files::open(pid, &region.name, region.id())?;
    let offset = address - region.start + region.offset;
    let mut before = [0; MAX_CALL_BYTES];
    file.read_exact_at(&mut before, offset.checked_sub(MAX_CALL_BYTES as u64)?).ok()?;
    Some(ends_with_a_call(before))
}

/// Maximum length of a call: one through memory with a prefix.
const MAX_CALL_BYTES: usize = 7;

/// True if the last of these bytes may be a call of x86: `call rel32`, or one through a register or
/// memory, which is 2 to 7 bytes long.
fn ends_with_a_call(bytes: [u8; MAX_CALL_BYTES]) -> bool {
    const INDIRECT: u8 = 0xff;
    let is_call = |modrm: u8| modrm & 0x38 == 0x10;
    let indirect = |from: usize| bytes[from] == INDIRECT && is_call(bytes[from + 1]);
    bytes[2] == 0xe8 || [0, 1, 3, 4, 5].into_iter().any(indirect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_distinguished_from_other_instructions() {
        assert!(ends_with_a_call([0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        assert!(ends_with_a_call([0x90, 0xff, 0x15, 1, 2, 3, 4]));
        assert!(ends_with_a_call([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
        assert!(ends_with_a_call([0x90, 0x90, 0x90, 0x90, 0xff, 0x50, 0x18]));
        assert!(!ends_with_a_call([0x90; 7]));
        assert!(!ends_with_a_call([0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0]), "a jump");
    }
}
